"""The textbook rules, derived from the generic block: each sums its parts, with the classic sizes substituted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sympy

from txcalc.algebra import FIGURES, BoundSymbol, generic, over_letters, symbol
from txcalc.ledger import Ledger, walk
from txcalc.notation import Expression
from txcalc.parts.part import Workload
from txcalc.symbols import BY_LETTER

Change = tuple[str, Mapping[Expression, Expression]]

# The substitutions that make the generic block the classic one, in order.
CLASSIC: tuple[Change, ...] = (
    ("h_kv = h", {symbol("h_kv"): symbol("h")}),
    ("h·d_h = D", {symbol("d_h"): symbol("D") / symbol("h")}),
    ("F = 4·D", {symbol("F"): 4 * symbol("D")}),
)


def classic(expression: Expression) -> Expression:
    """A cost of the generic block where h_kv = h, h·d_h = D and F = 4·D."""
    for _, change in CLASSIC:
        expression = expression.xreplace(change)
    return expression


def textbook_letters() -> dict[Expression, BoundSymbol]:
    """The letters of the generic block."""
    names = ("B", "T", "L", "V", "D", "h", "h_kv", "d_h", "F")
    return {symbol(name): BoundSymbol(symbol(name), None, BY_LETTER[name]) for name in names}


class TextbookStep(NamedTuple):
    """A line of a derivation: a part and its cost, their sum, or the next substitution."""

    what: str
    expression: Expression


class TextbookRule(NamedTuple):
    """A rule of thumb, from the parts that it is the sum of."""

    title: str
    steps: tuple[TextbookStep, ...]


def derivations() -> list[TextbookRule]:
    """4·D², 8·D², 12·L·D², 2·V·D, 2·L·h_kv·d_h and the FLOPs of a forward pass, from the generic block's tree."""
    params, flops, growth, saved = (FIGURES[name] for name in ("params", "flops", "cache_growth", "saved"))
    model, gated = generic(), generic(gated=True)
    work, _ = over_letters(model, Workload(1, 1, 0, 1))
    plain = walk(model.root, work)
    ends = plain.where(lambda entry: entry.kind in ("embedding", "head"))
    bare = plain.at("layers").where(lambda entry: entry.kind != "norm")
    attention, layer, layers = plain.at("layers.0.attention"), plain.at("layers.0"), ("L of them", plain.at("layers"))
    narrower = ("F = 8·D/3", {symbol("F"): sympy.Rational(8, 3) * symbol("D")})
    return [
        _derivation("Attention: parameters", params, attention, 2),
        _derivation("Feed-forward: parameters", params, plain.at("layers.0.feed_forward"), 2),
        _derivation(
            "Gated feed-forward: parameters",
            params,
            walk(gated.root, work).at("layers.0.feed_forward"),
            2,
            changes=(narrower,),
        ),
        _derivation("All layers: parameters", params, layer, 1, (layers, ("without the norms", bare))),
        _derivation("Embedding and head: parameters", params, ends, 0),
        _derivation("Cache: elements that each token adds", growth, attention, 2, (layers,)),
        _derivation("Attention: forward FLOPs", flops, attention, 2),
        _derivation("Forward FLOPs", flops, layer, 1, (layers, ("with the head", plain))),
        _derivation("One layer: saved activations in elements, fused attention", saved, layer, 1),
    ]


def _derivation(
    title: str,
    figure: Callable[[Ledger], Any],
    whole_part: Ledger,
    depth: int,
    extra_ledgers: tuple[tuple[str, Ledger], ...] = (),
    changes: tuple[Change, ...] = CLASSIC,
) -> TextbookRule:
    """The parts at a depth, their sum, further ledgers that contain it, and the result of each substitution."""
    names = dict.fromkeys(entry.steps[depth].name for entry in whole_part)
    parts = {name: figure(whole_part.where(lambda e, name=name: e.steps[depth].name == name)) for name in names}  # type: ignore[misc]
    steps = [TextbookStep(name, cost) for name, cost in parts.items() if cost != 0]
    for what, ledger in ((("together", whole_part),) if len(steps) > 1 else ()) + extra_ledgers:
        steps.append(TextbookStep(what, figure(ledger)))
    for what, change in changes:
        changed = sympy.expand(steps[-1].expression.xreplace(change))
        if changed != sympy.expand(steps[-1].expression):
            steps.append(TextbookStep(what, changed))
    return TextbookRule(title, tuple(steps))
