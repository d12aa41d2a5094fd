"""Formulas compared for all sizes at once, without a computer algebra system.

A tree of parts is evaluated over `Residue`s in the place of sizes, batch and lengths. Every letter has a fixed residue
modulo a prime of 127 bits, taken from a hash of its name. `+ − *` and exact division are those of the field, so that a
formula has the same residue however it is written, and two polynomials of degree d that differ have the same with a
probability of d/2^127 at most (Schwartz and Zippel). Of the smaller of two, a quotient rounded up, a logarithm and the
rows of a grid the residue is a hash of the function and its arguments: they agree where function and arguments do. A
formula that compares its numbers, or asks which of them are large, has no residue: it raises.

Beside its residue a number has its value at sizes of a model's own, if these are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from txcalc.evidence.structures import sha256
from txcalc.program import RUN, Recorded, Tape

PRIME = 2**127 - 1


class Residue(Recorded):
    """A number as its residue and its value; None: no sizes were given, or a division leaves a remainder at them."""

    __slots__ = ("residue", "value")

    def __init__(self, tape: Tape, residue: int, value: int | None) -> None:
        self.tape, self.residue, self.value = tape, residue, value

    def __repr__(self) -> str:
        return f"<{self.residue:x}: {self.value}>"


class ResidueTape(Tape):
    """Letters as residues, and the arithmetic on them. Conditions on sizes are kept in theorems, not here."""

    def __init__(self, values: Mapping[str, int | None]) -> None:
        self.letters = {letter: Residue(self, _letter(letter), number) for letter, number in values.items()}

    def step(self, op: str, left: Any, right: Any) -> Any:
        """The result of a step: an operand that it does not change, 0 where it is 0 at all sizes, or a residue."""
        whole = type(left) is int, type(right) is int
        a = left if whole[0] else left.residue if type(left) is Residue else None
        b = right if whole[1] else right.residue if type(right) is Residue else None
        if a is None or b is None:
            return NotImplemented
        if op in _UNIT:
            unit = _UNIT[op]
            if whole[1] and b == unit:
                return left
            if whole[0] and a == unit and op in ("+", "*"):
                return right
            if op == "*" and ((whole[0] and a == 0) or (whole[1] and b == 0)):
                return 0
        if a == b and op in ("-", "min"):
            return 0 if op == "-" else left
        x, y = left if whole[0] else left.value, right if whole[1] else right.value
        return Residue(self, _FIELD[op](a, b), None if x is None or y is None else _evaluate(op, x, y))

    def require(self, relation: str, a: object, b: object) -> None:
        """Ignores a condition."""


def residue(number: Any) -> int:
    """The residue of a number of a formula: of a whole number, or of letters."""
    value: int = number.residue if type(number) is Residue else number
    return value % PRIME


def value(number: Any) -> int | None:
    """The value of a number of a formula; None where it has none."""
    return number.value if type(number) is Residue else number


@cache
def _letter(name: str) -> int:
    return int(sha256(name), 16) % PRIME


def _hash_of(op: str) -> Callable[[int, int], int]:
    return lambda a, b: int(sha256(f"{op} {a % PRIME} {b % PRIME}"), 16) % PRIME


def _smaller(a: int, b: int) -> int:
    a, b = a % PRIME, b % PRIME
    return _min(a, b) if a < b else _min(b, a)


@cache
def _inverse(number: int) -> int:
    return pow(number, -1, PRIME)


_min = _hash_of("min")
# Operations that leave a number as it is: with 0, or with 1.
_UNIT = {"+": 0, "-": 0, "*": 1, "/": 1, "ceil": 1}
_FIELD: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: (a + b) % PRIME,
    "-": lambda a, b: (a - b) % PRIME,
    "*": lambda a, b: a * b % PRIME,
    "/": lambda a, b: a * _inverse(b) % PRIME,
    "min": _smaller,
    "ceil": _hash_of("ceil"),
    "rows": _hash_of("rows"),
}


def _evaluate(op: str, a: int, b: int) -> int | None:
    try:
        return RUN[op](a, b)
    except (ArithmeticError, ValueError):
        return None
