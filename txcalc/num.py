"""The numbers of a formula: ints, SymPy expressions, NumPy arrays or recorded ones. Only this module tells them apart.

A formula uses `+ - *` and the helpers below. SymPy, NumPy and `program` are consulted only if the caller has imported
them. Whole numbers stay whole: an inexact division is an error, never rounded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from math import isqrt, prod
from typing import Any, TypeAlias

# A size or a quantity of a formula. The type checker sees an int, which nearly every caller has; SymPy expressions,
# NumPy arrays and recorded numbers (`program.Recorded`) stand in for one. A protocol of `+ - *` alone would not do:
# code that has whole numbers also compares, divides and passes them on as ints.
Num: TypeAlias = int


def whole(number: object) -> bool:
    """True for a plain int (a bool is not one)."""
    return type(number) is int


def _kind(*numbers: Any) -> str:
    for n in numbers:  # not `all`, whose generator takes as long as most formulas
        if type(n) is not int:
            break
    else:
        return "int"
    numpy, sympy = sys.modules.get("numpy"), sys.modules.get("sympy")
    if numpy and any(isinstance(n, numpy.ndarray) for n in numbers):
        for n in numbers:  # a subclass answers for itself: `sweep` has one that knows what wrapped
            if type(n) is numpy.ndarray and n.dtype.kind != "O" and n.dtype != numpy.float64:
                raise TypeError(f"a sweep needs float64 or object arrays ({n.dtype} wraps silently past its range)")
        return "array"
    if sympy and all(type(n) is int or isinstance(n, sympy.Expr) for n in numbers):
        return "symbol"
    if all(type(n) in (int, float) or type(n).__name__ == "Fraction" for n in numbers):
        return "real"
    if all(type(n) is int or _tape(n) for n in numbers):
        return "recorded"
    raise TypeError(f"not a number a formula can use: {[type(n).__name__ for n in numbers]}")


def _tape(*numbers: object) -> Any:
    """The tape of the first recorded number; None without one."""
    program = sys.modules.get("txcalc.program")
    number = program.recorded(*numbers) if program else None
    return number.tape if number is not None else None


def usable(number: object) -> bool:
    """True for a possible size: an int, a symbol, or an array that is exact or detects when it is not."""
    try:
        return _kind(number) != "real"
    except TypeError:
        return False


def counted(number: Any) -> Any:
    """A NumPy integer as an int, an integer array as an array of Python ints, which never wrap; anything else
    unchanged."""
    numpy = sys.modules.get("numpy")
    if numpy and isinstance(number, numpy.integer):
        return int(number)
    return number.astype(object) if is_array(number) and number.dtype.kind in "iu" else number


def is_array(number: object) -> bool:
    """True for a NumPy array."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(number, numpy.ndarray)


def spread(numbers: Iterable[Any]) -> tuple[int, ...] | None:
    """The broadcast shape of numbers; None where arrays do not broadcast."""
    shapes = [number.shape for number in numbers if is_array(number)]
    try:
        return tuple(sys.modules["numpy"].broadcast_shapes(*shapes)) if shapes else ()
    except ValueError:
        return None


def each(number: object, shape: tuple[int, ...]) -> list[Any]:
    """The numbers of an array broadcast to a shape, flattened; a scalar as a list of one."""
    numpy = sys.modules.get("numpy")
    return numpy.broadcast_to(number, shape).ravel().tolist() if numpy and shape else [number]


def minimum(a: Num, b: Num) -> Num:
    """The smaller of two numbers, element by element."""
    kind = _kind(a, b)
    if kind == "symbol":
        return sys.modules["sympy"].Min(a, b)
    if kind == "array":
        return sys.modules["numpy"].minimum(a, b)
    if kind == "recorded":
        return _tape(a, b).step("min", a, b)
    return a if a <= b else b


def maximum(a: Num, b: Num) -> Num:
    """The larger of two numbers, element by element."""
    return a + b - minimum(a, b)


def exact_div(a: Num, b: Num) -> Num:
    """a / b. Errors: `ValueError` where b does not divide a (symbols give the fraction, recorded numbers fail when
    run)."""
    kind = _kind(a, b)
    if kind == "symbol":
        return a * (sys.modules["sympy"].Integer(1) / b)
    if kind == "recorded":
        return _tape(a, b).step("/", a, b)
    numpy = sys.modules.get("numpy")
    floats = numpy is not None and kind == "array" and numpy.result_type(a, b) == numpy.float64
    quotient = sys.modules["numpy"].rint(a / b) if floats else a // b  # rint: ten times faster, and as whole
    left_over: Any = a - quotient * b
    if left_over.any() if kind == "array" else left_over:
        raise ValueError(f"{b} does not divide {a}")
    return quotient


def ratio(a: Num, b: Num) -> Any:
    """a / b: an int where b divides a, else a Fraction (symbols: the fraction itself; float64 arrays: rounded)."""
    kind = _kind(a, b)
    if kind == "symbol":
        return exact_div(a, b)
    if kind == "array":
        numpy = sys.modules["numpy"]
        return a / b if numpy.result_type(a, b) == numpy.float64 else numpy.frompyfunc(ratio, 2, 1)(a, b)
    exact = Fraction(a) / Fraction(b)
    return exact.numerator if exact.denominator == 1 else exact


def power(base: object, exponent: Any) -> Num:
    """base^exponent."""
    return base**exponent


def ceil_div(a: Num, b: Num) -> Num:
    """a / b rounded up to a whole number: bytes of a count of bits, chunks of a count of tokens."""
    if type(a) is int and type(b) is int:
        return -(-a // b)
    kind = _kind(a, b)
    if kind == "symbol":
        sympy = sys.modules["sympy"]
        return sympy.ceiling(a * (sympy.Integer(1) / b))
    if kind == "recorded":
        return _tape(a, b).step("ceil", a, b)
    return -(-a // b)


def floor_div(a: Num, b: Num) -> Num:
    """⌊a / b⌋ of whole numbers. Written with a ceiling, for SymPy does not recognise a floor as equal to one."""
    return ceil_div(a + 1, b) - 1


def nearest_square(n: Any) -> Num:
    """Rows of the most nearly square grid of n cells: the largest divisor up to √n."""
    kind = _kind(n)
    if kind == "int":
        return next(rows for rows in range(isqrt(n), 0, -1) if n % rows == 0)
    if kind == "symbol":
        return _rows()(n)
    if kind == "recorded":
        return _tape(n).step("rows", n, n)
    return sys.modules["numpy"].frompyfunc(lambda value: nearest_square(int(value)), 1, 1)(n).astype(n.dtype)


@cache
def _rows() -> Any:
    """`nearest_square` as a SymPy function, which evaluates once n is a number."""
    sympy = sys.modules["sympy"]

    def known(cls: object, n: Any) -> Any:
        return sympy.Integer(nearest_square(int(n))) if n.is_Integer and n.is_positive else None

    return type("rows", (sympy.Function,), {"is_integer": True, "is_positive": True, "eval": classmethod(known)})


def divides(a: Num, b: Num) -> bool:
    """False where a is known not to divide b, for ints or in any element of arrays; symbols pass, recorded numbers
    record a condition."""
    if tape := _tape(a, b):
        tape.require("|", a, b)
    if not _known(a, b):
        return True
    try:
        exact_div(b, a)
    except ValueError:
        return False
    return True


def exceeds(a: Num, b: Num) -> bool:
    """True where a is known to exceed b, for ints or in any element of arrays; symbols pass, recorded numbers record a
    condition."""
    if tape := _tape(a, b):
        tape.require("<=", a, b)
    return _known(a, b) and _anywhere(a > b)


def _known(*numbers: object) -> bool:
    numpy = sys.modules.get("numpy")
    return all(type(n) is int or (numpy is not None and isinstance(n, numpy.ndarray)) for n in numbers)


def _anywhere(condition: object) -> bool:
    return bool(condition.any() if hasattr(condition, "any") else condition)


@cache
def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a whole number, ascending."""
    return tuple(n for n in range(1, number + 1) if number % n == 0)


def triangle(n: Num) -> Num:
    """1 + 2 + … + n = n(n + 1)/2."""
    return exact_div(n * (n + 1), 2)


def total(numbers: Iterable[Num]) -> Num:
    """The sum; 0 if empty."""
    return sum(numbers)


def product(numbers: Iterable[Num]) -> Num:
    """The product; 1 if empty."""
    return prod(numbers)
