"""A model's programs as JavaScript: its page computes the library's own numbers at other sizes."""

from __future__ import annotations

from collections.abc import Sequence

from txcalc.program import Guard, Program
from txcalc.questions.explorer import Explorer
from txcalc.questions.page import further_theorems


def programs(explorer: Explorer) -> str:
    """A JavaScript object of functions over BigInt: totals, leaves, both sides of conditions, sizes that follow from
    sliders."""
    letters = explorer.letters
    followed = ",".join(f"{letter}:{program.javascript()}" for letter, program in explorer.follows.items())
    domains = ",".join(_sides(letters, domain.program.conditions) for domain in explorer.domains)
    further = ",".join(
        "{"
        + ",".join(f"{name}:{_sides(letters, program.conditions)}" for name, _, program in further_theorems(domain))
        + "}"
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
