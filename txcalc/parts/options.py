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
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from txcalc.num import divides, exact_div, exceeds

MAX_SIZE = 10**9
Made = TypeVar("Made")


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


def text(value: Any) -> str:
    """A text."""
    if not isinstance(value, str) or not value:
        raise Wrong("a text")
    return value


def texts(value: Any) -> list[str]:
    """A list of texts."""
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise Wrong("a list of texts")
    return value


def biases(value: Any) -> list[str]:
    """Which of the projections have a bias: true (all four), false, or a list of their letters (g: of the gate)."""
    if isinstance(value, bool):
        return ["q", "k", "v", "o"] if value else []
    if isinstance(value, list) and all(item in ("q", "k", "v", "o", "g") for item in value):
        return value
    raise Wrong('true, false, or a list out of "q", "k", "v", "o", "g"')


def some_of(*choices: str) -> Check:
    """A list of different ones of the choices."""

    def check(value: Any) -> list[str]:
        if isinstance(value, list) and all(item in choices for item in value) and len(set(value)) == len(value):
            return value
        raise Wrong(f"a list out of {', '.join(map(repr, choices))}, each once")

    return check


def tables(value: Any) -> list[list[Any]]:
    """Pairs of sizes: the rows of a table, and how often it is read for a token."""
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise Wrong("a list of pairs: the rows of a table, and how often it is read")
    return [[size(rows), size(reads)] for rows, reads in value]


def groups_of(number: int) -> Check:
    """A list of so many numbers of groups."""

    def check(value: Any) -> list[Any]:
        if isinstance(value, list) and len(value) == number and any(item != 1 for item in value):
            return [size(item) for item in value]
        raise Wrong(f"a list of {number} whole numbers above 0, not all of them 1")

    return check


RMS_EPS, LAYER_EPS = 1e-6, 1e-5  # what norms add to the variance where nobody says

ACTIVATIONS = ("relu", "relu2", "gelu", "gelu_tanh", "quick_gelu", "silu", "clamped_silu", "sigmoid", "tanh", "none")
activation = one_of(*ACTIVATIONS)

# What leaves count as, but for what ranks send each other (`ledger.KINDS`).
LEAF_KINDS = (
    "embedding",
    "attention",
    "attention_core",
    "feed_forward",
    "experts",
    "shared_experts",
    "router",
    "recurrent",
    "norm",
    "adapters",
    "head",
    "projector",
    "other",
)


class FreeSize(NamedTuple):
    """A size over which theorems hold, and what it is beside others, by their keys in the same table.

    of       it is a whole number of these: h = h_kv·g
    beyond   these are a part of it, so that there is a rest
    chosen   so many of them work for a token, and the rest is idle
    cut      it is divided into so many, or into none
    same     it is one with this size of another table (`embedding.rank`)
    even     its halves are turned, or paired
    grows    with a design's width, in proportion: a number of "heads" or a "width"; the width of a "head" stays
    """

    of: str = ""
    beyond: str = ""
    chosen: str = ""
    cut: str = ""
    same: str = ""
    even: bool = False
    grows: str = ""


class Field(NamedTuple):
    """What a key may be, what it is when absent (`REQUIRED`, a value, or a function of the sections resolved so far,
    {"": top level, "attention": …}), what it says, when it counts, if not always, what a value becomes beside the
    others, if it does not stay what it is, and what is known of a size over which theorems hold (else: structure)."""

    check: Check
    default: Any
    meaning: str
    when: str = ""
    beside: Callable[[Any, Mapping[str, Any]], Any] | None = None
    letter: FreeSize | None = None


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


def key(
    check: Check,
    default: Any,
    meaning: str,
    when: str = "",
    *,
    beside: Callable[[Any, Mapping[str, Any]], Any] | None = None,
    letter: FreeSize | None = None,
) -> Any:
    """A key of an `Options`. One that Python has for a word of its own (`from`) is a field with `_` behind it."""
    return field(metadata={"key": Field(check, default, meaning, when, beside, letter)})


def letter(
    default: Any,
    meaning: str,
    when: str = "",
    *,
    check: Check = size,
    beside: Callable[[Any, Mapping[str, Any]], Any] | None = None,
    **known: Any,
) -> Any:
    """A key that is a size over which theorems hold; `known` says what is known of it (`FreeSize`)."""
    return key(check, default, meaning, when, beside=beside, letter=FreeSize(**known))


def absent(number: Any) -> bool:
    """Whether a number is a plain 0: what has so much of it is not there (0 × an array would be a part of width 0)."""
    return type(number) is int and number == 0


def every(number: Any) -> range:
    """The numbers of so many copies; where that is a symbol or an array, any stands for all."""
    return range(number if type(number) is int else 10**9)


def numbered(times: Any) -> range | None:
    """The numbers that so many copies have in a path; a single one has none."""
    return None if type(times) is int and times == 1 else every(times)


class Wished(NamedTuple):
    """What does not fit together: a key, and what it should be beside the others."""

    key: str
    expected: str
    fix: str = ""


def divided(key: str, parts: Any, whole: str, number: Any) -> Iterator[Wished]:
    """Where a number does not divide another."""
    if not divides(parts, number):
        yield Wished(key, f"a divisor of {whole} = {number}")


def even(key: str, number: Any, why: str) -> Iterator[Wished]:
    """Where a number is odd."""
    if not divides(2, number):
        yield Wished(key, f"an even number: {why}")


def odd(key: str, number: Any) -> Iterator[Wished]:
    """Where a number of taps is even."""
    if divides(2, number):
        yield Wished(key, "an odd number: as many on either side")


def ungated(bias: list[str]) -> Iterator[Wished]:
    """Where a gate that is not there has a bias."""
    if "g" in bias:
        yield Wished("bias", 'a list without "g": there is no gate')


class Options:
    """The options that a table of a description has. Subclasses are `frozen`.

    A table whose `form`, or one of whose keys, decides which others it has is a union: a class for each, below one
    with the keys of all. What a class says of its table stands in its first line: `section`, the `forms` that it is the
    class of, and what a `Mechanism` has.
    """

    section: ClassVar[str]  # the table's name
    forms: ClassVar[dict[str, type[Self]]] = {}  # of a union, the class of each form

    def __init_subclass__(cls, section: str = "", forms: str = "", **said: Any) -> None:
        if section:
            cls.section, cls.forms = section, {}
        cls.forms.update(dict.fromkeys(forms.split(), cls))  # type: ignore[arg-type]
        for name, value in said.items():
            getattr(cls, name)  # raises where there is no such thing to say
            setattr(cls, name, value)

    def misfits(self) -> Iterator[Wished]:
        """What no single key shows: here what its letters are beside others (`FreeSize`)."""
        for name, known in self.table().items():
            number = None if known.letter is None else getattr(self, name)
            if known.letter is None or number is None:
                continue
            for least in filter(None, (known.letter.of, known.letter.cut)):
                if (parts := getattr(self, least)) is not None:
                    yield from divided(least, parts, name, number)
            if (chosen := known.letter.chosen) and exceeds(getattr(self, chosen), number):
                yield Wished(chosen, f"at most {name} = {number}")

    @classmethod
    @cache
    def table(cls) -> dict[str, Field]:
        """The keys of its table; of a union those of all forms, each with those that have it."""
        found = {item.name.rstrip("_"): item.metadata["key"] for item in fields(cls)}  # type: ignore[arg-type]
        forms = cls.forms if "forms" in vars(cls) else {}
        for key in dict.fromkeys(key for kind in forms.values() for key in kind.table() if key not in found):
            having = {form: kind.table()[key] for form, kind in forms.items() if key in kind.table()}
            first = next(iter(having.values()))
            meaning = "; ".join(dict.fromkeys(own.meaning for own in having.values()))
            said = "form = " + " or ".join(map(repr, having)) if "form" in found else " or ".join(having)
            when = first.when or ("" if key in forms else f"with {cls.section}.{said}")
            found[key] = first._replace(meaning=meaning, when=when)
        return found

    @classmethod
    def chosen(cls, table: Mapping[str, Any]) -> type[Self]:
        """The class that a table is of; of a form that there is not, the one with the keys of all. A table without a
        `form` is of the first class whose own key, by which that one is known, it has; or else of the first."""
        if not cls.forms:
            return cls
        if tag := cls.table().get("form"):
            form = table.get("form", tag.default)
            return cls.forms.get(form, cls) if isinstance(form, str) else cls
        return cls.forms[next((key for key in cls.forms if table.get(key) is not None), next(iter(cls.forms)))]

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """The options that a checked table says."""
        kind = cls.chosen(table)
        return kind(**{name: table[key] for name, key in kind._keys()})

    def into(self, part: type[Made], **more: Any) -> Made:
        """A part with those of its fields that are options by the same name, and with `more`."""
        known: Mapping[str, Any] = part.__dataclass_fields__  # type: ignore[attr-defined]
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name in known}  # type: ignore[arg-type]
        return part(**{**own, **more})

    @classmethod
    def partly(cls, table: Mapping[str, Any]) -> Self:
        """The same of a table that lacks keys; reading one of them raises `AttributeError`."""
        kind = cls.chosen(table)
        made = object.__new__(kind)
        vars(made).update({name: table[key] for name, key in kind._keys() if key in table})
        return made

    @classmethod
    @cache
    def _keys(cls) -> list[tuple[str, str]]:
        """The names of its fields, each with its key in the table."""
        return [(item.name, item.name.rstrip("_")) for item in fields(cls)]  # type: ignore[arg-type]
