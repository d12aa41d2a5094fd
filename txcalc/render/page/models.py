"""A page's data of a model: sliders, parts and theorems as JSON, programs as JavaScript."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txcalc.evidence.known import all_known
from txcalc.explorer import Domain, Explorer
from txcalc.program import Guard, Program, written
from txcalc.questions.model_info import summary

KNOWN = {
    "params": "params",
    "active": "active",
    "flops": "flops",
    "flops_masked": "masked flops",
    "training": "training flops",
    "cache": "cache",
    "saved": "saved, fused attention",
}


def lines(explorer: Explorer) -> list[str]:
    """The lines that describe the model."""
    return [line for line in summary(explorer.model) if line]


def data(source: str, explorer: Explorer) -> dict[str, Any]:
    """The model as JSON; `source` is its name in commands."""
    model = explorer.model
    return {
        "name": model.name,
        "source": source,
        "summary": lines(explorer),
        "notes": [*(f"assumed {assumption}" for assumption in model.assumptions), *model.notes],
        "sliders": [
            {
                "letter": slider.letter,
                "symbol": slider.symbol.letter,
                "meaning": slider.symbol.meaning,
                "keys": slider.keys,
                "value": slider.value,
                "rule": written(explorer.follows[slider.letter].results[slider.letter]) if slider.value is None else "",
            }
            for slider in explorer.sliders
        ],
        "fixed": explorer.fixed,
        "fixed_length": model.fixed_length,
        "positions": str(model.root.fixed) if model.fixed_length else None,
        "latents": model.has_latents,
        "totals": list(explorer.totals.results),
        "conditions": _said(explorer.totals.conditions),
        "parts": [part._asdict() for part in explorer.parts],
        "domains": [
            {
                "part": d.part,
                "key": d.key,
                "lengths": d.lengths,
                "conditions": _said(d.program.conditions),
                "further": {
                    name: {"how": how, "conditions": _said(program.conditions)} for name, how, program in _further(d)
                },
            }
            for d in explorer.domains
        ],
        "unproved": explorer.unproved,
        "known": {name: known._asdict() for name, known in all_known(model, KNOWN).items()},
    }


def _further(domain: Domain) -> list[tuple[str, str, Program]]:
    """The evidence for quantities with theorems of their own, by their names on the page."""
    return [(name, *domain.further[asked]) for name, asked in KNOWN.items() if asked in domain.further]


def _said(conditions: Sequence[Guard]) -> list[tuple[str, str]]:
    return [(condition.relation, str(condition)) for condition in conditions]


def programs(explorer: Explorer) -> str:
    """A JavaScript object of functions over BigInt: totals, leaves, both sides of conditions, sizes that follow from
    sliders."""
    letters = explorer.letters
    followed = ",".join(f"{letter}:{program.javascript()}" for letter, program in explorer.follows.items())
    domains = ",".join(_sides(letters, domain.program.conditions) for domain in explorer.domains)
    further = ",".join(
        "{" + ",".join(f"{name}:{_sides(letters, program.conditions)}" for name, _, program in _further(domain)) + "}"
        for domain in explorer.domains
    )
    return (
        f"{{totals:{explorer.totals.javascript()},\nleaves:{explorer.leaves.javascript()},\n"
        f"checks:{_sides(letters, explorer.totals.conditions)},\nfollows:{{{followed}}},\ndomains:[{domains}],\n"
        f"further:[{further}]}}"
    )


def _sides(letters: tuple[str, ...], conditions: Sequence[Guard]) -> str:
    """A function that gives both sides of every condition."""
    sides = {f"{i}{side}": number for i, c in enumerate(conditions) for side, number in (("a", c.a), ("b", c.b))}
    return Program(letters, sides).javascript()
