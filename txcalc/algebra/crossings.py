"""Crossover lengths as formulas."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import sympy

from txcalc.algebra import BoundSymbol, generic, over_letters, symbol, symbolic, values
from txcalc.algebra.textbook import classic
from txcalc.ledger import walk
from txcalc.notation import LATEX, TEXT, Expression, Style, Term, tidy, write
from txcalc.parts.part import Composite, Workload
from txcalc.planning.crossover import RULES, CrossoverRule, Prefills, RuleCrossover


class RealCrossing(NamedTuple):
    """The real length T from which a·T² ≥ b·T + c: a quotient where one of a and c is 0, else the larger root."""

    a: Expression
    b: Expression
    c: Expression

    def write(self, style: Style = TEXT) -> str:
        """The closed form; of a root, with its three coefficients."""
        return _written(self, style)

    def latex(self) -> str:
        """The same in LaTeX."""
        return self.write(LATEX)


@cache
def _written(form: RealCrossing, style: Style) -> str:
    """The closed form, cached: a page, a table and a row each ask for it."""
    if 0 in (form.a, form.c):
        return _quotient(form.b / form.a if form.c == 0 else -form.c / form.b, style)
    root = style.root(f"{style.power('b', 2)} + {style.times.join('4ac')}")
    closed = style.quotient(f"b + {root}", style.times.join("2a"), True, True)
    shared = sympy.gcd_list(list(form))
    parts = {name: tidy(sympy.cancel(part / shared)) for name, part in form._asdict().items()}
    return "; ".join((closed, *(f"{name} = {write(part, style)}" for name, part in parts.items())))


def _quotient(expression: Expression, style: Style) -> str:
    above, below = map(tidy, sympy.fraction(sympy.cancel(expression)))
    numerator = write(above, style)
    if below == tidy(1):
        return numerator
    (term,) = below if len(below) == 1 else (Term(Fraction(1), (), (below,)),)
    several = len(term.powers) + len(term.sums) + (term.coefficient != 1) > 1
    return style.quotient(numerator, write(below, style), len(above) > 1, several)


def crossing(difference: Expression, at: int, letters: Mapping[Expression, BoundSymbol]) -> RealCrossing:
    """Where a difference of costs, at most quadratic in T, turns positive on the piece that ends at T = `at`.

    Beyond a window min(T, W) is W, before it T: every minimum takes its value just before `at`, and every number of
    chunks is that of the chunk in which `at` stands.
    """
    length = symbol("T")
    before = {**values(letters), length: sympy.Rational(2 * at - 1, 2)}
    minima = difference.atoms(sympy.Min)
    opened = {least: min(least.args, key=lambda size: size.xreplace(before)) for least in minima}
    opened |= {chunks: chunks.xreplace({**before, length: at - 1}) for chunks in difference.atoms(sympy.ceiling)}
    powers = sympy.expand(difference.xreplace(opened))
    return RealCrossing(powers.coeff(length, 2), -powers.coeff(length, 1), -powers.coeff(length, 0))


def closed_forms(prefills: Prefills, crossovers: list[RuleCrossover]) -> list[RealCrossing | None]:
    """The closed form of each crossover; None where there is none, where it is the first token, or where visible pairs
    or positions come in whole blocks."""
    tree = symbolic(prefills.model)
    over, workload_letters = over_letters(prefills.model, prefills.start)
    if prefills.coupled:
        over = over._replace(source=over.tokens)
    costs = _costs(tree.root, over._replace(batch=1))
    letters = {**workload_letters, **tree.letters}
    by_groups = any(c > 1 for _, _, c in prefills.model.root.grouped())
    return [
        crossing(_excess(rule, costs[attention]), tokens, letters)
        if tokens and tokens > 1 and not by_groups and (attention == "dense" or prefills.filled == 1)
        else None
        for rule, attention, tokens, *_ in crossovers
    ]


def classic_forms(gated: bool = False) -> list[RealCrossing]:
    """What the rules give for the classic block, in the order of `crossovers`."""
    model = generic(gated)
    over, _ = over_letters(model, Workload(1, 1, 0, 1))
    costs = _costs(model.root, over._replace(batch=1))
    return [crossing(classic(_excess(rule, costs[attention])), 1, {}) for rule in RULES for attention in costs]


def _costs(root: Composite, work: Workload) -> dict[str, dict[str, Expression]]:
    ledger = walk(root, work)
    return {"dense": ledger.by_kind("flops"), "masked": ledger.by_kind("flops_masked")}


def _excess(rule: CrossoverRule, costs: Mapping[str, Expression]) -> Expression:
    left, right = rule.sides(costs)
    return sympy.sympify(left) - right
