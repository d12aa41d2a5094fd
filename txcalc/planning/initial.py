"""Initial values of the parameters for training: the standard deviation of each kind.

Matrices and tables start from N(0, 0.02²), biases and sinks at 0, norms at 1 (GPT-2, Radford et al. 2019; BERT, Llama
and most others). The output projections of pre-norm branches are scaled by 1/√(branches of the stack), GPT-2's 1/√(2·N)
of N layers, so that the residual stream's variance does not grow with depth.
"""

from __future__ import annotations

from fractions import Fraction

from msgspec import Struct

from txcalc.ledger import Entry
from txcalc.model import Model

STD = Fraction(2, 100)


class InitialValues(Struct, frozen=True):
    """Parameters with the same initial values: their number, the rule in words, and the standard deviation (0: one
    constant; None: a rule of the part's own)."""

    parts: tuple[str, ...]
    rule: str
    params: int
    deviation: float | None


def initial_values(model: Model) -> tuple[InitialValues, ...]:
    """Every parameter once, by its initial values."""
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
    initial = entry.leaf.initial_value(weight)
    # An expert, or the base of an adapter, has the duty of its product.
    duty = next((step.duty for step in reversed(entry.steps) if step.duty not in ("expert", "base")), "")
    if initial == "own" or duty == "steps":
        return "as the mixer's paper has it", None
    if initial != "normal":
        return {"one": "1", "zero": "0"}[initial], 0.0
    if duty == "writes" and branches:
        return f"N(0, σ²), σ = 0.02/√{branches}", float(STD) / branches**0.5
    return "N(0, σ²), σ = 0.02", float(STD)


def _branches(model: Model) -> dict[str, int]:
    """The number of branches of each stack, by its name, except in blocks with a norm after the sum."""
    return {
        name: sum(group.count * len(group.block.branches) * (not group.block.norm_after_sum) for group in stack.groups)
        for name, stack in zip(model.description.stacks, model.root.stacks, strict=True)
    }
