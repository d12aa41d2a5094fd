"""Initial values of the parameters for training: the standard deviation of each kind.

Matrices and tables from N(0, 0.02²), biases and sinks 0, norms 1 (GPT-2, Radford et al. 2019; BERT, Llama, most since).
What a pre-norm block adds to the residual stream is smaller by 1/√(its stack's branches): GPT-2's 1/√(2·N) of N layers,
so that the stream's variance does not grow with them.
"""

from __future__ import annotations

from fractions import Fraction

from msgspec import Struct

from txcalc.ledger import Entry
from txcalc.model import Model

STD = Fraction(2, 100)


class InitialValues(Struct, frozen=True):
    """Parameters that begin alike: how many, the rule in words, and their standard deviation (0: all are one value;
    None: by a rule of the part's own)."""

    parts: tuple[str, ...]
    rule: str
    params: int
    deviation: float | None


def initial_values(model: Model) -> tuple[InitialValues, ...]:
    """Every parameter once, by what it begins with."""
    by_rule: dict[tuple[str, float | None], tuple[dict[str, None], int]] = {}
    branches = _branches(model)
    for entry in model.ledger():
        for weight in entry.leaf.weights():
            rule = _rule(entry, weight.name, branches.get(entry.steps[0].name, branches.get("", 0)))
            names, number = by_rule.get(rule, ({}, 0))
            names[entry.steps[-1].name] = None
            by_rule[rule] = names, number + weight.size * entry.times
    return tuple(
        InitialValues(tuple(names), rule, number, deviation) for (rule, deviation), (names, number) in by_rule.items()
    )


def _rule(entry: Entry, weight: str, branches: int) -> tuple[str, float | None]:
    begins = entry.leaf.initial_value(weight)
    # One of a product's experts, or what an adapter stands beside, does what that product does.
    duty = next((step.duty for step in reversed(entry.steps) if step.duty not in ("expert", "base")), "")
    if begins == "own" or duty == "steps":
        return "as the mixer's paper has it", None
    if begins != "normal":
        return {"one": "1", "zero": "0"}[begins], 0.0
    if duty == "writes" and branches:
        return f"N(0, σ²), σ = 0.02/√{branches}", float(STD) / branches**0.5
    return "N(0, σ²), σ = 0.02", float(STD)


def _branches(model: Model) -> dict[str, int]:
    """Branches of each stack whose norms do not stand after the sums, by the half of the model that it is."""
    halves = model.description.stacks
    return {
        half: sum(group.count * len(group.block.branches) * (not group.block.norm_after_sum) for group in stack.groups)
        for half, stack in zip(halves, model.root.stacks, strict=True)
    }
