"""What a mechanism is described by: the keys of its table, what each may be, and the part that they make.

A mechanism's options are one frozen class beside its part: each key with its check, its default and its meaning, what
no single key shows, what its leaves count as, and the part it builds. Nothing else says anything about them.
Numbers that are not ints (symbols, arrays) come from `algebra` and `sweep`, never from a user: their sizes pass
unchecked. Nothing here is a formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields
from functools import cache
from typing import Any, ClassVar, NamedTuple

from txcalc.num import divides, exact_div
from txcalc.parts.part import Composite

MAX_SIZE = 10**9


class Wrong(ValueError):
    """A value that is not what was expected; `expected` and `fix` go into the fault."""

    def __init__(self, expected: str, fix: str = "") -> None:
        self.expected, self.fix = expected, fix
        super().__init__(expected)


Check = Callable[[Any], Any]


def size(value: Any) -> Any:
    """A whole number from 1 to 10^9."""
    if isinstance(value, bool | str | float | list | dict) or value is None:
        raise Wrong("a whole number above 0")
    if type(value) is int and not 1 <= value <= MAX_SIZE:
        raise Wrong(f"a whole number from 1 to {MAX_SIZE:,}")
    return value


def count(value: Any) -> Any:
    """A whole number from 0 to 10^9."""
    return value if type(value) is int and value == 0 else size(value)


def flag(value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise Wrong("true or false")
    return value


def up_to(most: int) -> Check:
    """A whole number from 0 to `most`: structure, never a symbol."""
    choices = range(most + 1)

    def check(value: Any) -> int:
        if type(value) is not int or value not in choices:
            raise Wrong(f"a whole number from 0 to {most}")
        return value

    return check


def real(value: Any) -> Any:
    """A finite number: it changes what is computed (an epsilon, a scale), never a size."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise Wrong("a finite number")
    return value


def one_of(*choices: str) -> Check:
    """One of several texts; the check's own `choices` are these."""

    def check(value: Any) -> str:
        if value not in choices or not isinstance(value, str):
            raise Wrong(" or ".join(map(repr, choices)) if len(choices) < 5 else f"one of {', '.join(choices)}")
        return value

    check.choices = choices  # type: ignore[attr-defined]
    return check


RMS_EPS, LAYER_EPS = 1e-6, 1e-5  # what norms add to the variance where nobody says

ACTIVATIONS = ("relu", "relu2", "gelu", "gelu_tanh", "quick_gelu", "silu", "clamped_silu", "sigmoid", "tanh", "none")
activation = one_of(*ACTIVATIONS)


class Field(NamedTuple):
    """What a key may be, what it is when absent (`REQUIRED`, a value, or a function of its section), what it says,
    when it counts, if not always, and what a value becomes beside the others, if it does not stay what it is.

    A function gets the sections resolved so far: {"": top level, "attention": …}.
    """

    check: Check
    default: Any
    meaning: str
    when: str = ""
    beside: Callable[[Any, Mapping[str, Any]], Any] | None = None


class _Required:
    pass


REQUIRED = _Required()


def per_head(section: str) -> Callable[[Mapping[str, Any]], Any]:
    """D/h, where it is whole, of the heads of a table."""

    def width(at: Mapping[str, Any]) -> Any:
        d_model, heads = at[""]["d_model"], at[section]["n_heads"]
        try:
            return exact_div(d_model, heads)
        except ValueError:
            raise Wrong(f"a key of its own: d_model = {d_model} is no multiple of n_heads = {heads}") from None

    return width


def key(check: Check, default: Any, meaning: str) -> Any:
    """A key of an `Options`."""
    return field(metadata={"key": Field(check, default, meaning)})


class Wished(NamedTuple):
    """What does not fit together: a key, and what it should be beside the others."""

    key: str
    expected: str


def divided(key: str, parts: Any, whole: str, number: Any) -> Iterator[Wished]:
    """Where a number does not divide another."""
    if not divides(parts, number):
        yield Wished(key, f"a divisor of {whole} = {number}")


def odd(key: str, number: Any) -> Iterator[Wished]:
    """Where a number of taps is even."""
    if divides(2, number):
        yield Wished(key, "an odd number: as many on either side")


class Options:
    """The options of one mechanism, which has a table of its own name. Subclasses are `frozen`.

    section   the table's name, and the part's in a path
    kind      what its leaves count as (`ledger.KINDS`)
    stands    where it may: in a "decoder" alone, for it reads only what came before; in an "encoder" alone, for it
              reads what comes later too
    """

    section: ClassVar[str]
    kind: ClassVar[str] = "recurrent"
    stands: ClassVar[str] = "decoder"

    def misfits(self) -> Iterator[Wished]:
        """What no single key shows."""
        yield from ()

    def build(self, d_model: Any, eps: Any) -> Composite:
        """The part; `eps` is what the norms of its layer add to the variance, None where nobody said."""
        raise NotImplementedError

    @classmethod
    @cache
    def table(cls) -> dict[str, Field]:
        """The keys of its table."""
        return {item.name: item.metadata["key"] for item in fields(cls)}  # type: ignore[arg-type]
