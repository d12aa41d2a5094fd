"""What is wrong in a document beside the class that gives its types."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from msgspec import Struct, ValidationError, convert

from txcalc.questions.results import Record


def faults(value: Any, hint: Any, path: str, seen: set[tuple[type, str]]) -> Iterator[str]:
    """What of a document its types do not say."""
    if hint is Any:
        return
    if get_origin(hint) in (Union, UnionType):
        tried = [list(faults(value, one, path, set())) for one in get_args(hint)]
        if all(tried):
            yield f"{path} is {value!r}, expected {hint}"
        else:
            yield from faults(value, get_args(hint)[tried.index([])], path, seen)
    elif isinstance(hint, type) and issubclass(hint, Record):
        hints = get_type_hints(hint)
        for key, inner in value.items() if isinstance(value, dict) else [("", None)]:
            name = key if key in hints else f"{key}_"
            if name not in hints:
                yield f"{path}.{key}: {hint.__name__} does not say it"
            else:
                seen.add((hint, name))
                yield from faults(inner, hints[name], f"{path}.{key}", seen)
    elif isinstance(hint, type) and issubclass(hint, Struct):
        try:
            convert(value, hint)
        except ValidationError as error:
            yield f"{path}: {error}"
    elif get_origin(hint) is list:
        for inner in value if isinstance(value, list) else [object()]:
            yield from faults(inner, get_args(hint)[0], f"{path}[]", seen)
    elif get_origin(hint) is dict:
        for key, inner in value.items() if isinstance(value, dict) else [("", object())]:
            yield from faults(inner, get_args(hint)[1], f"{path}[{key}]", seen)
    elif type(value) is not hint:
        yield f"{path} is {value!r}, expected {hint}"
