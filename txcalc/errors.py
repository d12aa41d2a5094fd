"""The exceptions. Each carries fields and words its own message; only the command line prints it.

TxcalcError                exit code 2 unless a subclass says otherwise
├── InputError             unusable input: one or more `Fault`s, all reported at once
│   ├── WrongCall          a function was called with wrong arguments (a TypeError too)
│   └── UnknownName        a preset, key or part that does not exist, with the nearest that do
├── MissingExtra           an optional component is not installed (exit code 3)
└── Refuted                a verification or a plan failed (exit code 1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from inspect import BoundArguments, Signature, signature
from typing import Any, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
MOST_TOLD = 40  # faults that a message lists
MOST_UNKNOWN = 20  # of them, of keys that are not known
MOST_LETTERS = 400  # of their location
# Locations that a fault names better: the option, the source, the size itself.
UNNAMED = ("options", "source", "workload", "weights", "dtype", "ledger", "recipe", "engine")


class TxcalcError(Exception):
    """Any refusal; `str(error)` is the whole message."""

    exit_code = 2

    def __reduce__(self) -> tuple[object, ...]:
        """Unpickles unchanged in another process, without the arguments of its class."""
        return type(self).__new__, (type(self), *self.args), vars(self)


class Fault(NamedTuple):
    """One fault: `key is GOT, expected WANT (FIX)`, with the key as the user spelled it."""

    key: str
    got: object
    expected: str
    fix: str = ""

    def __str__(self) -> str:
        fix = f" ({self.fix})" if self.fix else ""
        return f"{self.key} is {quote(self.got)}, expected {self.expected}{fix}"


class Absent:
    """The value of a missing key, or of one that is null."""

    def __init__(self, word: str = "missing") -> None:
        self.word = word

    def __repr__(self) -> str:
        return self.word


ABSENT = Absent()
NULL = Absent("null")  # JSON's


def quote(value: object, limit: int = 60) -> str:
    """`repr`, cut to `limit` characters; never fails (an int of 10^9 digits has no decimal form)."""
    if isinstance(value, list | dict) and len(value) > limit:
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value):,} items"
    try:
        text = f"{value:,}" if type(value) is int else repr(value)
    except ValueError:
        text = f"a whole number of {value.bit_length()} bits" if isinstance(value, int) else "a value too long to show"
    return text if len(text) <= limit else text[: limit - 1] + "…"


class InputError(TxcalcError):
    """Unusable input: its location `where`, and every fault in it."""

    def __init__(self, where: str, faults: Iterable[Fault | str]) -> None:
        self.where = where
        self.faults = tuple({str(fault): fault for fault in faults}.values())
        super().__init__(where, self.faults)

    def __str__(self) -> str:
        where = self.where if len(self.where) <= MOST_LETTERS else self.where[: MOST_LETTERS - 1] + "…"
        if len(self.faults) == 1:
            (fault,) = self.faults
            same_key = isinstance(fault, Fault) and fault.key == self.where
            return str(fault) if same_key or where in UNNAMED else f"{where}: {fault}"
        lines = [f"  {fault}" for fault in self.faults[:MOST_TOLD]]
        hidden = len(self.faults) - len(lines)
        return "\n".join(
            [f"{where}: {len(self.faults):,} faults", *lines, *([f"  and {hidden:,} more"] if hidden else [])]
        )


class WrongCall(InputError, TypeError):
    """Wrong arguments of a function; also a TypeError."""

    @classmethod
    def unless(
        cls, name: str, signature: Signature, args: Any, kwargs: Any, extra: Iterable[str] = ()
    ) -> BoundArguments:
        """The arguments by name. Errors: this one, with the nearest names; `extra` names are known too."""
        try:
            return signature.bind(*args, **kwargs)
        except TypeError as error:
            names = [key for key in signature.parameters if key != "self"]
            unknown = next((key for key in kwargs if key not in names), None)
            names = list(dict.fromkeys([*names, *extra]))
            if unknown is None:
                raise cls(name, [str(error)]) from None
            mend = meant(nearest(unknown, names), f"arguments: {', '.join(names)}")
            raise cls(name, [f"no argument named {unknown!r} ({mend})"]) from None


def check_call(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function raise `WrongCall` for unknown or missing arguments."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            WrongCall.unless(function.__name__, signature(function), args, kwargs)
            raise

    return call


class UnknownName(InputError):
    """A name that does not exist, with the nearest that do."""

    def __init__(
        self, where: str, what: str, name: str, known: Sequence[str], hint: str = "", way_out: str = ""
    ) -> None:
        self.what, self.name = what, name
        self.near = nearest(name, known)
        mend = meant(self.near, hint)
        super().__init__(where, [f"no {what} named {quote(name)}" + (f" ({mend})" if mend else "") + way_out])


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Up to three known names: those with this prefix, punctuation aside (`llama3`), else the most similar."""
    names = list(dict.fromkeys(names))
    start = _letters(name)
    begun = [other for other in names if start and _letters(other).startswith(start)]
    if begun:
        return begun[:3]
    from difflib import get_close_matches

    return get_close_matches(name.lower(), names, n=3, cutoff=0.6 if len(name) > 2 else 0.5)


def either(choices: Sequence[str]) -> str:
    """One or more choices as words: "a, b or c"."""
    return " or ".join(filter(None, (", ".join(choices[:-1]), *choices[-1:])))


def meant(near: Sequence[str], hint: str) -> str:
    """How to mend an unknown name: by one of the nearest, or else a hint."""
    return f"did you mean {either(near)}?" if near else hint


def no_attribute(owner: object, name: str) -> AttributeError:
    """The error of an attribute that is not there, with the nearest that are."""
    names = [key for key in dir(owner) if key[0] != "_"]
    mend = "" if name.startswith("_") else meant(nearest(name, names), "dir() lists what it has")
    what = type(owner).__name__
    return AttributeError(f"{what} has no attribute {name!r}" + (f" ({mend})" if mend else ""), name=name, obj=owner)


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


class MissingExtra(TxcalcError):
    """An optional component is not installed; the message is the install command."""

    exit_code = 3

    def __init__(self, need: str, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"{need} needs {package}, which is not installed (pip install 'txcalc[{extra}]')")


class Refuted(TxcalcError):
    """A negative answer: numbers differ, or a plan does not fit."""

    exit_code = 1
