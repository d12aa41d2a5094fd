"""What functions take: models in every form that `load` takes, and lengths as people write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from txcalc.errors import Fault, InputError
from txcalc.model import Model
from txcalc.num import counted, whole
from txcalc.sources import load
from txcalc.units import parse_count, parse_tokens

if TYPE_CHECKING:
    from txcalc.sources import Source

Length = int | str
Lengths = int | str | Sequence[int | str]
Names = str | Sequence[str]


def models(sources: Iterable[Source], text_only: bool = False) -> list[Model]:
    """`text_only`: without the towers of multimodal ones. Errors: `InputError`, `UnknownName`, `MissingExtra`."""
    found = [load(source) for source in sources]
    return [model.language() for model in found] if text_only else found


def length(value: Length, flag: str) -> int:
    """A whole number, written `32k` or not. Errors: `InputError`."""
    return _number(value, flag, parse_tokens)


def count(value: Length | float, flag: str) -> int:
    """A whole number, written `8B`, `15T`, `3.8e25` or not. Errors: `InputError`."""
    if isinstance(value, float) and value.is_integer():
        return int(Fraction(repr(value)))  # 1e23 as it is written: the nearest float is 8,388,608 less
    return _number(value, flag, parse_count)


def _number(value: Any, flag: str, parse: Any) -> int:
    number = parse(value, flag) if isinstance(value, str) else counted(value)
    if not whole(number):
        raise InputError(flag, [Fault(flag, value, "a whole number")])
    return number  # type: ignore[no-any-return]


def lengths(values: Lengths, flag: str) -> list[int]:
    """`"4k,32k"`, a number or a list of them, each once. Errors: `InputError`."""
    return list(dict.fromkeys(length(value, flag) for value in apart(values)))


def some(values: Lengths | None, flag: str) -> list[int]:
    """Those of `lengths`; none where nothing is said."""
    return [] if values is None or (isinstance(values, str) and not values) else lengths(values, flag)


def one(**values: Any) -> None:
    """Errors: `InputError` for arrays, where a command answers for one size at a time."""
    mend = "txcalc.sweep and model.ledger take arrays"
    if faults := [
        Fault(name, value, "one number", mend) for name, value in values.items() if getattr(value, "shape", ())
    ]:
        raise InputError("workload", faults)


def texts(**values: Any) -> None:
    """Errors: `InputError` for what is no text."""
    if faults := [Fault(n, v, "a text") for n, v in values.items() if not isinstance(v, str)]:
        raise InputError("options", faults)


def several_texts(name: str, values: Any) -> list[str]:
    """A text, or some. Errors: `InputError`."""
    found = [values] if isinstance(values, str) else list(values) if isinstance(values, Iterable) else [values]
    if not found or not all(isinstance(value, str) for value in found):
        raise InputError("options", [Fault(name, values, "a text, or a list of them")])
    return found


def names(values: Names) -> list[str]:
    """`"bf16,fp8"` or a list of texts."""
    return [str(value).strip() for value in apart(values)]


def apart(values: Any) -> Iterable[Any]:
    """What stands in texts apart by commas, in a list or an array, or alone."""
    several = [values] if isinstance(values, str) or not isinstance(values, Iterable) else values
    return [piece for value in several for piece in (value.split(",") if isinstance(value, str) else [value])]
