"""Options: the keys of a description's tables, their checks, defaults and meanings, and the parts they build.

The options of a mechanism are one frozen class beside its part; nothing else knows them. Symbols and arrays as sizes
come from `algebra` and `sweep`, never from a user, and pass unchecked. Nothing here is a formula.
"""

from __future__ import annotations

import json
import math
from abc import ABC
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

from msgspec import Struct

from txcalc.num import Num, divides, exact_div, exceeds

MAX_SIZE = 10**9
Table = Mapping[str, Any]  # a table of a description
Raw = dict[str, Any]  # a table under construction
Made = TypeVar("Made", bound=Struct)


class Wrong(ValueError):
    """An invalid value; `expected` and `fix` go into the fault."""

    def __init__(self, expected: str, fix: str = "") -> None:
        self.expected, self.fix = expected, fix
        super().__init__(expected)


class Unsound(Exception):
    """A rule asked for a key that is faulty, or that follows from one that is."""


Check = Callable[[Any], Any]


def size(value: object) -> Any:
    """A whole number from 1 to 10^9."""
    if isinstance(value, bool | str | float | list | dict) or value is None:
        raise Wrong("a whole number above 0")
    if type(value) is int and not 1 <= value <= MAX_SIZE:
        raise Wrong(f"a whole number from 1 to {MAX_SIZE:,}")
    return value


def count(value: object) -> Any:
    """A whole number from 0 to 10^9."""
    return value if type(value) is int and value == 0 else size(value)


def flag(value: object) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise Wrong("true or false")
    return value


def up_to(most: int) -> Check:
    """A whole number from 0 to `most`: structure, never a symbol."""
    choices = range(most + 1)

    def check(value: object) -> int:
        if type(value) is not int or value not in choices:
            raise Wrong(f"a whole number from 0 to {most}")
        return value

    return check


def real(value: object) -> Any:
    """A finite number that is not a size: an epsilon, a scale."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise Wrong("a finite number")
    return value


def one_of(*choices: str) -> Check:
    """One of several texts, listed as the check's `choices`."""

    def check(value: object) -> str:
        if value not in choices or not isinstance(value, str):
            raise Wrong(" or ".join(map(repr, choices)) if len(choices) < 5 else f"one of {', '.join(choices)}")
        return value

    check.choices = choices  # type: ignore[attr-defined]
    return check


def text(value: object) -> str:
    """A text."""
    if not isinstance(value, str) or not value:
        raise Wrong("a text")
    return value


def texts(value: object) -> list[str]:
    """A list of texts."""
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise Wrong("a list of texts", json.dumps(value.strip("[]").split(",")) if isinstance(value, str) else "")
    return value


def biases(value: object) -> list[str]:
    """Projections with a bias: true (all four), false, or a list of their letters (g: the gate's)."""
    if isinstance(value, bool):
        return ["q", "k", "v", "o"] if value else []
    if isinstance(value, list) and all(item in ("q", "k", "v", "o", "g") for item in value):
        return value
    raise Wrong('true, false, or a list out of "q", "k", "v", "o", "g"')


def some_of(*choices: str) -> Check:
    """A list of distinct choices."""

    def check(value: object) -> list[str]:
        if isinstance(value, list) and all(item in choices for item in value) and len(set(value)) == len(value):
            return value
        raise Wrong(f"a list out of {', '.join(map(repr, choices))}, each once")

    return check


def tables(value: object) -> list[list[Any]]:
    """Pairs of sizes: rows of a table, and reads per token."""
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise Wrong("a list of pairs: rows of a table, and reads per token")
    return [[size(rows), size(reads)] for rows, reads in value]


RMS_EPS, LAYER_EPS = 1e-6, 1e-5  # default epsilons

ACTIVATIONS = (
    "relu", "relu2", "relu6", "gelu", "gelu_tanh", "quick_gelu", "silu", "clamped_silu", "hard_swish", "sigmoid",
    "tanh", "none",
)  # fmt: skip
activation = one_of(*ACTIVATIONS)

# Kinds of leaves, except collectives (`ledger.KINDS`).
LEAF_KINDS = (
    "embedding", "attention", "attention_core", "feed_forward", "experts", "shared_experts", "router", "recurrent",
    "norm", "adapters", "head", "projector", "other",
)  # fmt: skip


class FreeSize(NamedTuple):
    """A size over which theorems hold, and its relation to other keys of the same table.

    of         a multiple of that key: h = h_kv·g
    contains   that key is a part of it
    chosen     that many of it are active per token
    cut        a multiple of that key, if it is given
    same       equal to that size of another table (`embedding.rank`)
    even       even: halves are rotated or paired
    grows      scales with a design's width: a number of "heads" or a "width"; the width per "head" stays
    """

    of: str = ""
    contains: str = ""
    chosen: str = ""
    cut: str = ""
    same: str = ""
    even: bool = False
    grows: str = ""


class Field(NamedTuple):
    """A key: its check, its default (`REQUIRED`, a value, or a function of the tables resolved so far, {"": top level,
    "attention": …}), its meaning, when it applies, an adjustment by other keys, and, for a size over which theorems
    hold, its relations."""

    check: Check
    default: Any
    meaning: str
    when: str = ""
    adjust: Callable[[Any, Table], Any] | None = None
    letter: FreeSize | None = None


class _Required:
    pass


REQUIRED = _Required()


def per_head(section: str) -> Callable[[Table], Any]:
    """The default head width of a table: d_model/n_heads, which must be whole."""

    def width(at: Table) -> Any:
        d_model, heads = at[""]["d_model"], at[section]["n_heads"]
        try:
            return exact_div(d_model, heads)
        except ValueError:
            raise Wrong(f"a head size: n_heads = {heads} does not divide d_model = {d_model}") from None

    return width


def key(
    check: Check,
    default: object,
    meaning: str,
    when: str = "",
    *,
    adjust: Callable[[Any, Table], Any] | None = None,
    letter: FreeSize | None = None,
) -> Any:
    """A key of an `Options`. Python keywords (`from`) get a trailing `_` as field name."""
    return Field(check, default, meaning, when, adjust, letter)


def letter(
    default: object,
    meaning: str,
    when: str = "",
    *,
    check: Check = size,
    adjust: Callable[[Any, Table], Any] | None = None,
    **known: Any,
) -> Any:
    """A key that is a size over which theorems hold, with its relations (`FreeSize`)."""
    return key(check, default, meaning, when, adjust=adjust, letter=FreeSize(**known))


def absent(number: Num) -> bool:
    """Whether a number is a plain 0, so that its part is left out (0 × an array would be a part of width 0)."""
    return type(number) is int and number == 0


def every(number: Num) -> range:
    """The indices of `number` copies; of a symbol or an array, open-ended."""
    return range(number if type(number) is int else 10**9)


def numbered(times: Num) -> range | None:
    """The indices of copies in a path; None for a single one."""
    return None if type(times) is int and times == 1 else every(times)


class Conflict(NamedTuple):
    """Keys that conflict: one of them, and what it should be given the others."""

    key: str
    expected: str
    fix: str = ""


def divided(key: str, parts: Num, whole: str, number: Num) -> Iterator[Conflict]:
    """A conflict unless `parts` divides `number`."""
    if not divides(parts, number):
        yield Conflict(key, f"a divisor of {whole} = {number}")


def odd(key: str, number: Num) -> Iterator[Conflict]:
    """A conflict unless a kernel width is odd."""
    if divides(2, number):
        yield Conflict(key, "an odd number: equally many on both sides")


class Options(ABC):
    """The options of one table of a description. Subclasses declare its keys: `n_heads: Num = key(…)`.

    A table whose `form`, or one of whose keys, decides which other keys exist is a union: a class per form, below one
    with the common keys. Class arguments name the `section`, the `forms` of the class, and the traits of a `Mechanism`.
    """

    section: ClassVar[str]  # the table's name
    forms: ClassVar[dict[str, type[Self]]] = {}  # of a union, the class per form
    declared: ClassVar[Mapping[str, Field]] = {}  # its keys by attribute, inherited ones first

    def __init_subclass__(cls, section: str = "", forms: str = "", **settings: object) -> None:
        keys = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
        cls.declared = {**cls.declared, **keys}
        for name in keys:
            delattr(cls, name)  # an instance has the value of the key, or no such attribute
        if section:
            cls.section, cls.forms = section, {}
        cls.forms.update(dict.fromkeys(forms.split(), cls))  # type: ignore[arg-type]
        for name, value in settings.items():
            getattr(cls, name)  # raises where there is no such trait
            setattr(cls, name, value)

    def conflicts(self) -> Iterator[Conflict]:
        """Conflicts between keys; here those of its sizes' relations (`FreeSize`)."""
        for name, key in self._letters():
            if (number := getattr(self, name)) is None:
                continue
            for least in filter(None, (key.of, key.cut)):
                if (parts := getattr(self, least)) is not None:
                    yield from divided(least, parts, name, number)
            if key.chosen and exceeds(getattr(self, key.chosen), number):
                yield Conflict(key.chosen, f"at most {name} = {number}")

    @classmethod
    @cache
    def _letters(cls) -> list[tuple[str, FreeSize]]:
        """Its sizes over which theorems hold, with their relations."""
        return [(name, key.letter) for name, key in cls.table().items() if key.letter is not None]

    @classmethod
    @cache
    def table(cls) -> dict[str, Field]:
        """The keys of its table; of a union those of all forms, each noting its forms."""
        fields = {name.rstrip("_"): key for name, key in cls.declared.items()}
        forms = cls.forms if "forms" in vars(cls) else {}
        for key in dict.fromkeys(key for kind in forms.values() for key in kind.table() if key not in fields):
            having = {form: kind.table()[key] for form, kind in forms.items() if key in kind.table()}
            first = next(iter(having.values()))
            meaning = "; ".join(dict.fromkeys(option.meaning for option in having.values()))
            condition = "form = " + " or ".join(map(repr, having)) if "form" in fields else " or ".join(having)
            when = first.when or ("" if key in forms else f"with {cls.section}.{condition}")
            fields[key] = first._replace(meaning=meaning, when=when)
        return fields

    @classmethod
    def chosen(cls, table: Table) -> type[Self]:
        """The class of a table: that of its `form` (an unknown one: the class with the common keys); without a `form`,
        the first class whose distinguishing key is given, else the first."""
        if not cls.forms:
            return cls
        if tag := cls.table().get("form"):
            form = table.get("form", tag.default)
            return cls.forms.get(form, cls) if isinstance(form, str) else cls
        return cls.forms[next((key for key in cls.forms if table.get(key) is not None), next(iter(cls.forms)))]

    @classmethod
    def of(cls, table: Table) -> Self:
        """The options of a checked table, whose keys for other forms are kept."""
        return cls.chosen(table).filled(table)

    @classmethod
    def filled(cls, table: Table, faulty: Collection[str] = ()) -> Self:
        """This class's options with the values of a table. Reading one of its `faulty` keys raises `Unsound`."""
        result = object.__new__(cls)
        names = {name.rstrip("_"): name for name in cls.declared}
        vars(result).update({names.get(key, key): value for key, value in table.items()})
        if faulty:
            vars(result)["_faulty"] = {*faulty}
        return result

    def values(self) -> Raw:
        """Its values by key."""
        return {name.rstrip("_"): value for name, value in vars(self).items()}

    def get(self, key: str, default: object = None) -> Any:
        """The value of a key that not every form has, or that the table gives for another form."""
        return getattr(self, f"{key}_" if f"{key}_" in self.declared else key, default)

    @property
    def faulty(self) -> Collection[str]:
        """Keys whose values are faulty."""
        return vars(self).get("_faulty", ())  # type: ignore[no-any-return]

    def replace(self, **changes: object) -> Self:
        """A copy with other values."""
        result = object.__new__(type(self))
        vars(result).update(vars(self) | changes)
        return result

    def with_faulty(self, faulty: Collection[str]) -> Self:
        """A copy in which further keys are faulty."""
        return self.replace(_faulty={*self.faulty, *faulty}) if faulty else self

    def recorded(self, read: Callable[[str], object]) -> Self:
        """A copy that calls `read` with each key the first time that its value is read."""
        copy = object.__new__(type(self))
        vars(copy)["_recorded"] = vars(self), read
        return copy

    if not TYPE_CHECKING:  # which would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            """A value of a recorded copy; of a faulty key there is none."""
            if name in vars(self).get("_faulty", ()):
                raise Unsound(name)
            values, read = vars(self).get("_recorded", ({}, None))
            if name not in values:
                raise AttributeError(f"{type(self).__name__} has no value {name}")
            read(name.rstrip("_"))
            vars(self)[name] = values[name]
            return values[name]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be assigned: options are frozen")

    def into(self, part: type[Made], **fields: object) -> Made:
        """Builds a part from the options with the names of its fields, and further `fields`."""
        names = [name for name in self.declared if name in part.__struct_fields__ and name not in fields]
        return part(**{name: getattr(self, name) for name in names}, **fields)
