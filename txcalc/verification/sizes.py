"""Sizes, batch and lengths as PyTorch symbols: a trace with them holds for all sizes, under conditions.

A guard must hold for all sizes of 2 or more, or be a condition that the theorem can state; else the trace is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple, Self

import sympy
import torch
from msgspec import Struct
from msgspec.structs import replace
from sympy.core.function import Application
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod, ToFloat
from torch.utils._sympy.numbers import int_oo

from txcalc.evidence import theorems
from txcalc.evidence.structures import primes_from
from txcalc.evidence.theorems import Condition, QuantityEvidence, Size, Unit
from txcalc.notation import Expression
from txcalc.parts.model import Stack
from txcalc.verification.symbolic import T_SRC, B, Environment, Fakes, NotForAll, T, user_line

LEAST = 2  # PyTorch takes a symbol to be 2 or more
N, REST, MORE = sympy.symbols("n rest more", integer=True, positive=True)


class SizeSymbols:
    """A PyTorch symbol for every parameter of a structure and every length, except those given by `formulas` in the
    others; `read` converts measured expressions to letters."""

    def __init__(
        self,
        names: Iterable[str],
        lengths: Iterable[Expression] = (B, T, T_SRC, N, REST, MORE),
        formulas: Mapping[str, Expression] | None = None,
    ) -> None:
        formulas = formulas or {}
        self.env = Environment()
        self.mode = Fakes(self.env)
        self.letters: dict[str, Expression] = {name: sympy.Symbol(name, integer=True, positive=True) for name in names}
        self.lengths = frozenset(lengths)
        self.letters |= {str(letter): letter for letter in lengths}
        free = [name for name in self.letters if name not in formulas]
        primes = primes_from(11, len(free))
        self.symbols: dict[str, Any] = {
            name: self._create(name, prime) for name, prime in zip(free, primes, strict=True)
        }
        self._back = {self.symbols[name].node.expr: self.letters[name] for name in free}
        for name, formula in formulas.items():
            self.letters[name], self.symbols[name] = formula, self.of(formula)

    def at_one(self, lengths: Collection[str]) -> Self:
        """These symbols, with some lengths replaced by 1 (PyTorch broadcasts 1, so a symbol is 2 or more)."""
        changed = copy(self)
        changed.letters = self.letters | dict.fromkeys(lengths, sympy.Integer(1))
        changed.symbols = self.symbols | dict.fromkeys(lengths, 1)
        return changed

    def _create(self, name: str, hint: int) -> Any:
        """A symbol of 2 or more; this bound answers most of PyTorch's own guards."""
        source = ConstantSource(name)
        symbol = self.env.create_symbol(hint, source, DimDynamic.DYNAMIC, do_not_specialize_zero_one=True)
        self.env.constrain_symbol_range(symbol, LEAST, int_oo)
        return self.env.create_symintnode(symbol, hint=hint, source=source)

    def of(self, value: Expression) -> Any:
        """A formula in letters as PyTorch's symbols; parts and tuples field by field."""
        if isinstance(value, sympy.Integer):
            return int(value)
        if isinstance(value, sympy.Expr):
            letters = sorted(value.free_symbols, key=str)
            return sympy.lambdify(letters, value, modules=[{}])(*(self.symbols[str(letter)] for letter in letters))
        if isinstance(value, Struct):
            return replace(value, **{name: self.of(getattr(value, name)) for name in value.__struct_fields__})
        if isinstance(value, tuple):
            items = [self.of(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return value

    def tree(self, unit: Unit) -> Any:
        """A unit's tree, in letters."""
        return unit.over({name: self.letters[name] for name in unit.values})

    def inputs(self, unit: Unit) -> tuple[Tensor, ...]:
        """Inputs of a unit's module, B sequences of T after T_src."""
        return inputs(unit, self.letters, self.symbol_shape, self.of)

    def read_all(self, figures: Mapping[str, Expression]) -> dict[str, Expression]:
        """Measured figures by module, in letters."""
        return {path: self.read(figure) for path, figure in figures.items()}

    def read(self, value: Expression) -> Expression:
        """A measured expression, in letters."""
        if isinstance(value, int):
            return sympy.Integer(value)
        formula = sympy.sympify(value.node.expr if isinstance(value, torch.SymInt) else value).xreplace(self._back)
        formula = simplify(formula) if formula.has(FloorDiv) else formula
        formula = formula.replace(Min, sympy.Min)  # PyTorch has its own class
        if unknown := formula.free_symbols - set(self._back.values()):
            raise NotForAll(f"a size depends on data ({', '.join(sorted(map(str, unknown)))})")
        return sympy.expand(formula)

    @property
    def symbol_shape(self) -> tuple[Expression, Expression, Expression]:
        """B, T and T_src."""
        return self.symbols["B"], self.symbols["T"], self.symbols["T_src"]

    @property
    def letter_shape(self) -> tuple[Expression, Expression, Expression]:
        """B, T and T_src in letters."""
        return self.letters["B"], self.letters["T"], self.letters["T_src"]

    def conditions(self) -> list[Condition]:
        """PyTorch's assumptions about sizes that do not hold for all sizes of 2 or more.

        Errors: `NotForAll` for an assumption about lengths, or one that is no inequality of polynomials."""
        for symbol, value in self.env.replacements.items():
            if symbol in self._back:
                letter, replacement = self._back[symbol], sympy.sympify(value).xreplace(self._back)
                raise NotForAll(f"the trace holds only where {letter} = {replacement}{self.env.line(symbol)}")
        sizes: dict[Condition, None] = {}
        for guard in self.env.guards:
            assumption = guard.expr.xreplace(self._back)
            if always(assumption):
                continue
            condition = _condition(assumption)
            if condition is None or condition[0].free_symbols & self.lengths:
                raise NotForAll(f"the trace holds only where {assumption}{self.env.line(guard.expr)}")
            polynomial, relation = condition
            sizes[Condition(_size(polynomial), relation)] = None
        return list(sizes)


def _positive(expression: Expression, strictly: bool = True) -> bool:
    """Whether no coefficient in x − 2 is negative: the polynomial is above 0 (or at least 0) for all sizes from 2."""
    polynomial = sympy.expand(expression)
    shifted = sympy.expand(polynomial.xreplace({letter: letter + LEAST for letter in polynomial.free_symbols}))
    if shifted.has(Application):
        return False
    coefficients = sympy.Poly(shifted, *shifted.free_symbols).coeffs() if shifted.free_symbols else [shifted]
    constant = shifted.subs(dict.fromkeys(shifted.free_symbols, 0))
    return all(c >= 0 for c in coefficients) and bool(constant > 0 if strictly else constant >= 0)


def _nonzero(expression: Expression) -> bool:
    """Whether a polynomial is nonzero for all sizes of 2 or more: each of its factors is."""
    factors = sympy.factor_list(sympy.expand(expression))
    return bool(factors[0] != 0) and all(_positive(f) or _positive(-f) for f, _ in factors[1])


def simplify(expression: Expression) -> Expression:
    """Simplifies Min, Max and remainders whose result is known for all sizes of 2 or more."""
    if isinstance(expression, int) or not expression.has(Application):
        return expression

    def extreme(sign: int, otherwise: Any, *sides: Expression) -> Expression:
        first = [a for a in sides if all(a is b or _positive(sign * (a - b), strictly=False) for b in sides)]
        return first[0] if first else otherwise(*sides)

    def divided(index: int, otherwise: Any, a: Expression, b: Expression) -> Expression:
        division = _divide(a, b)
        return otherwise(a, b) if division is None else division[index]

    def divided_up(a: Expression) -> Expression:
        numerator, denominator = map(sympy.expand, sympy.fraction(sympy.together(a)))
        division = _divide(numerator, denominator, upwards=True)
        return sympy.ceiling(a) if division is None else division[0]

    quotient, remainder = partial(divided, 0, FloorDiv), partial(divided, 1, Mod)
    larger, smaller = partial(extreme, 1, Max), partial(extreme, -1, sympy.Min)
    for _ in range(4):
        before = expression
        expression = expression.replace(Mod, remainder).replace(PythonMod, remainder).replace(FloorDiv, quotient)
        expression = expression.replace(sympy.ceiling, divided_up)
        expression = expression.replace(Min, smaller).replace(sympy.Min, smaller)
        expression = expression.replace(Max, larger).replace(sympy.Max, larger).replace(ToFloat, lambda x: x)
        if expression == before:
            break
    return expression


def _divide(a: Expression, b: Expression, upwards: bool = False) -> tuple[Expression, Expression] | None:
    """Quotient and remainder, a = q·b + r with 0 ≤ r < b (`upwards`: −b < r ≤ 0) for all sizes of 2 or more; None if
    polynomial division does not give them."""
    letters = sorted(a.free_symbols | b.free_symbols, key=str)
    if a.has(Application) or b.has(Application):
        return None
    for first in letters:
        q, r = sympy.div(a, b, first, *(letter for letter in letters if letter != first))
        if r == 0 and _integral(q):
            return q, r
        q, r = (q + 1, r - b) if upwards else (q, r)
        strict, weak = (r + b, -r) if upwards else (b - r, r)
        if _integral(q) and _positive(strict) and _positive(weak, strictly=False):
            return q, r
    return None


def _integral(polynomial: Expression) -> bool:
    letters = polynomial.free_symbols
    return all(c.is_Integer for c in sympy.Poly(polynomial, *letters).coeffs()) if letters else polynomial.is_Integer


def _lower_bound(expression: Expression) -> Expression:
    """A lower bound of an expression: a subtracted Min is replaced by one of its arguments."""
    for smaller in expression.atoms(Min, sympy.Min):
        if expression.coeff(smaller).is_negative:
            bounds = [sympy.expand(expression.xreplace({smaller: side})) for side in smaller.args]
            return next((bound for bound in bounds if bound.is_nonnegative), bounds[0])
    return expression


def always(condition: Expression) -> bool:
    """Whether a condition holds for all sizes of 2 or more."""
    if condition in (sympy.true, True):
        return True
    if isinstance(condition, sympy.Not) and isinstance(condition.args[0], sympy.And):
        return any(always(sympy.Not(part)) for part in condition.args[0].args)
    if isinstance(condition, sympy.Or):
        return any(always(part) for part in condition.args)
    if isinstance(condition, sympy.And):
        return all(always(part) for part in condition.args)
    try:
        condition = simplify(condition)
        if condition in (sympy.true, True):
            return True
        if isinstance(condition, sympy.Eq):
            return bool(sympy.expand(condition.lhs - condition.rhs) == 0)
        if isinstance(condition, sympy.Ne):
            return _nonzero(condition.lhs - condition.rhs)
        if isinstance(condition, sympy.Ge | sympy.Gt):
            return _positive(_lower_bound(condition.lhs - condition.rhs), strictly=isinstance(condition, sympy.Gt))
        if isinstance(condition, sympy.Le | sympy.Lt):
            return _positive(_lower_bound(condition.rhs - condition.lhs), strictly=isinstance(condition, sympy.Lt))
    except sympy.PolynomialError:
        pass
    return False


def _condition(condition: Expression) -> tuple[Expression, str] | None:
    """The polynomial that must be nonzero, or at least 0; None for any other condition."""
    if isinstance(condition, sympy.Or):  # one of its parts suffices
        return next((part for part in map(_condition, condition.args) if part is not None), None)
    condition = simplify(condition)
    if isinstance(condition, sympy.Ne):
        difference, relation = condition.lhs - condition.rhs, "!="
    elif isinstance(condition, sympy.Ge | sympy.Gt):
        difference, relation = condition.lhs - condition.rhs - int(isinstance(condition, sympy.Gt)), ">="
    elif isinstance(condition, sympy.Le | sympy.Lt):
        difference, relation = condition.rhs - condition.lhs - int(isinstance(condition, sympy.Lt)), ">="
    else:
        return None
    difference = sympy.expand(difference)
    polynomial = not difference.atoms(sympy.Function) and difference.is_polynomial() and _integral(difference)
    return (difference, relation) if polynomial else None


def _size(polynomial: Expression) -> Size:
    terms, letters = [], sorted(polynomial.free_symbols, key=str)
    for powers, number in sympy.Poly(polynomial, *letters).terms():
        factors = [str(letter) for letter, power in zip(letters, powers, strict=True) for _ in range(power)]
        terms.append((int(number), tuple(factors)))
    return Size(tuple(terms))


@contextmanager
def refusing_symbols() -> Iterator[None]:
    """Turns PyTorch's errors about symbolic sizes into `NotForAll`."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        message, line = " ".join(str(error).split()), user_line(error.__traceback__)
        raise NotForAll(f"its module takes no symbols ({message[:200]}{f', at {line}' if line else ''})") from None


def lengths_of(unit: Unit) -> list[str]:
    """The batch and the lengths in the formulas."""
    stacks = list(unit.description.stacks.values())
    fixed = stacks[0].vision or stacks[0].length is not None
    return ["B", "T", "T_src"][: len(stacks) + (0 if fixed else 1)]


def subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Every choice of lengths that are 1 (a PyTorch symbol is 2 or more)."""
    return [subset for n in range(len(names) + 1) for subset in combinations(names, n)]


def measured_at(unit: Unit, quantity: str, where: str) -> QuantityEvidence:
    """Evidence from equal figures at some sizes."""
    return QuantityEvidence(theorems.digest(unit, quantity), "measured", where, ())


class Case(NamedTuple):
    """The lengths that one trace covers: those that are 1, and T and the number of pooled tokens as formulas, so that
    neither their order nor a remainder is a condition. All others are 2 or more."""

    ones: tuple[str, ...] = ()
    formulas: Mapping[str, Expression] = {}

    def describe(self) -> list[str]:
        return [f"{name} = {size}" for name, size in (*((length, 1) for length in self.ones), *self.formulas.items())]


def cases(unit: Unit) -> list[Case]:
    """Cases that together cover all lengths."""
    result = [Case(ones) for ones in subsets(lengths_of(unit))]
    for rate in (name for name in unit.values if name.endswith(".rate")):
        letter, size = sympy.Symbol(rate, integer=True, positive=True), REST + MORE - 1
        orders: list[dict[str, object]] = [{rate: T + MORE - 1}]
        for groups in (1, N):
            orders += [{"T": groups * letter}, {"T": groups * letter + 1}, {rate: size, "T": groups * size + REST}]
        result = [Case(case.ones, order) for case in result for order in (orders if "T" not in case.ones else [{}])]
    return result


def inputs(
    unit: Unit,
    values: Mapping[str, Expression],
    lengths: tuple[Expression, Expression, Expression],
    of: Callable[[Expression], Expression],
) -> tuple[Tensor, ...]:
    """Inputs of a unit's module at `values` of its parameters: B sequences of T tokens, after T_src; `of` converts
    sizes to those of tensors."""
    batch, tokens, source = lengths
    root = unit.over(values)
    *encoder, stack = root.stacks
    if root.fixed is not None:
        tokens, source = tokens if encoder else of(root.fixed), of(root.fixed)
    images = {name: spec.vision.image for name, spec in unit.description.stacks.items() if spec.vision}
    sides = {name: of(side.over(values) if isinstance(side, Size) else side) for name, side in images.items()}
    ids = _blank_input(stack, batch, tokens, sides.get(""), of)
    return (ids, *(_blank_input(stack, batch, source, sides.get("encoder"), of) for stack in encoder))


def _blank_input(
    stack: Stack, batch: Expression, tokens: Expression, side: Expression, of: Callable[[Expression], Expression]
) -> Tensor:
    """Ids, images, mel bands, or vectors for a stack without an embedding."""
    embedding = stack.embedding
    if embedding is None:
        return torch.empty(batch, tokens, of(stack.d_model), device="meta")
    if embedding.patches is not None:
        return torch.empty(batch, of(embedding.patches.channels), side, side, device="meta")
    if embedding.convolutions:
        return torch.empty(batch, of(embedding.convolutions[0].c_in), 2 * tokens, device="meta")
    return torch.zeros(batch, tokens, dtype=torch.long, device="meta")
