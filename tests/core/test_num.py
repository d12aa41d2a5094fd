"""The helpers of formulas: the same on ints, symbols and arrays; refused where a number would be silently wrong."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from math import isqrt
from typing import Any

import pytest
from hypothesis import given, strategies as st

from txcalc import num
from txcalc.num import Num, maximum, minimum, product, total, whole

# The type checker takes a number of a formula for an int; here it is a symbol, an array or a fraction too.
ceil_div: Any = num.ceil_div
divides: Any = num.divides
exact_div: Any = num.exact_div
exceeds: Any = num.exceeds
floor_div: Any = num.floor_div
nearest_square: Any = num.nearest_square
triangle: Any = num.triangle

numpy = pytest.importorskip("numpy")
sympy = pytest.importorskip("sympy")

ints = st.integers(-50, 50)
naturals = st.integers(0, 10**40)


@pytest.mark.slow
@given(ints, ints)
@pytest.mark.parametrize(("helper", "builtin"), [(minimum, min), (maximum, max)], ids=["minimum", "maximum"])
def test_the_smaller_and_the_larger(helper: Any, builtin: Any, a: int, b: int) -> None:
    x, y = sympy.symbols("x y", integer=True)
    assert helper(a, b) == builtin(a, b)
    assert helper(x, y).subs({x: a, y: b}) == builtin(a, b)
    assert helper(x, b).subs(x, a) == builtin(a, b)
    for dtype in (object, float):
        column = helper(numpy.array([a, b], dtype), numpy.array([b, b], dtype))
        assert column.tolist() == [builtin(a, b), b]
    assert helper(Fraction(a, 3), b) == builtin(Fraction(a, 3), b)


@given(st.integers(1, 5000))
def test_the_grid_nearest_to_a_square(n: int) -> None:
    x, rows = sympy.Symbol("x", positive=True, integer=True), nearest_square(n)
    assert n % rows == 0 and not any(n % divisor == 0 for divisor in range(rows + 1, isqrt(n) + 1))
    assert nearest_square(x).subs(x, n) == rows and nearest_square(36) == 6
    for dtype in (object, float):
        assert nearest_square(numpy.array([n, 24], dtype)).tolist() == [rows, 4]


@given(naturals)
def test_triangle(n: int) -> None:
    x = sympy.Symbol("x")
    assert 2 * triangle(n) == n * (n + 1)
    assert triangle(x).subs(x, n) == triangle(n)
    assert triangle(numpy.array([n, 3], object)).tolist() == [triangle(n), 6]
    assert triangle(Fraction(3)) == 6


@given(naturals, st.integers(1, 99))
def test_ceil_div_rounds_up(a: int, b: int) -> None:
    x = sympy.Symbol("x")
    quotient = ceil_div(a, b)
    assert quotient * b >= a > (quotient - 1) * b
    assert ceil_div(x, b).subs(x, a) == ceil_div(a, x).subs(x, b) == quotient
    assert ceil_div(numpy.array([a], object), b).tolist() == [quotient]
    assert floor_div(a, b) == floor_div(x, b).subs(x, a) == a // b
    assert ceil_div(float(a % 2**50), b) == ceil_div(a % 2**50, b)


@given(naturals, st.integers(1, 99))
def test_exact_div_is_exact_or_an_error(a: int, b: int) -> None:
    assert exact_div(a * b, b) == a
    assert exact_div(numpy.array([a * b], object), b).tolist() == [a]
    if a % b:
        with pytest.raises(ValueError, match=f"{b} does not divide {a}"):
            exact_div(a, b)
        with pytest.raises(ValueError, match="does not divide"):
            exact_div(numpy.array([a * b, a], object), b)


def test_exact_div_of_a_symbol_is_the_fraction() -> None:
    x = sympy.Symbol("x")
    assert exact_div(x, 3) == x / 3
    assert exact_div(6, x).subs(x, 4) == sympy.Rational(3, 2)


@pytest.mark.parametrize("number", [True, "8", None, b"1", [1], 1j], ids=repr)
@pytest.mark.parametrize("helper", [lambda n: minimum(n, 2), lambda n: exact_div(n, 2), lambda n: ceil_div(n, 2)])
def test_what_is_no_number_is_refused(helper: Any, number: Any) -> None:
    with pytest.raises(TypeError, match="not a number a formula can use"):
        helper(number)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "float32", "float16", "bool"])
def test_arrays_that_wrap_or_round_are_refused(dtype: str) -> None:
    with pytest.raises(TypeError, match=f"{dtype} wraps silently"):
        minimum(numpy.array([1], dtype), 2)


def test_a_number_of_numpy_that_is_no_array_is_refused() -> None:
    """`np.int64(2**62) * 4` is 0."""
    with pytest.raises(TypeError, match="int64"):
        minimum(numpy.int64(1), 2)


def test_sums_and_products() -> None:
    x = sympy.Symbol("x")
    assert (total([]), product([])) == (0, 1)
    assert (total([x, 2, x]), product([x, 2, x])) == (2 * x + 2, 2 * x * x)
    assert total(iter([1, 2])) + product(iter([3, 4])) == 15


def test_whole() -> None:
    assert whole(3) and whole(10**40)
    assert not any(map(whole, (True, 3.0, Fraction(3), sympy.Integer(3), numpy.int64(3), None)))


def test_what_is_known_of_symbols_and_arrays() -> None:
    x = sympy.Symbol("x")
    assert divides(3, 9) and not divides(3, 10)
    assert divides(x, 10) and divides(3, x) and divides(None, 3)
    assert not divides(numpy.array([3, 4], object), 9)
    assert divides(3, numpy.array([3, 9], float))
    assert exceeds(3, 2) and not exceeds(2, 2) and not exceeds(x, 2) and not exceeds(None, 2)
    assert exceeds(numpy.array([1, 3], object), 2)


def test_ints_need_neither_sympy_nor_numpy() -> None:
    code = (
        "import sys; from txcalc.num import *; from txcalc.num import minimum, ceil_div;"
        "assert minimum(2, 3) == 2 and ceil_div(7, 8) == 1;"
        "assert not {'numpy', 'sympy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def what_no_formula_may_do(n: Num) -> None:
    """`Num` offers + - * and nothing else. Nobody calls this: mypy fails here where it finds nothing to ignore."""
    _: Any = n + 1 - 2 * n
    if n:
        pass
    _ = n / 2
    _ = n // 2
    _ = n % 2
    _ = n**2
    _ = n < 2
    _ = -n
    int(n)
    min(n, 2)
    round(n)
    range(n)
