"""The fields of parts, for tests that build and change them."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import NODEFAULT, Struct


class StructField(NamedTuple):
    """A field with its annotation as text; the default of one without is `NODEFAULT`."""

    name: str
    type: str
    default: Any


def struct_fields(kind: type[Struct]) -> list[StructField]:
    """The fields of a part's class."""
    usual = dict(zip(reversed(kind.__struct_fields__), reversed(kind.__struct_defaults__), strict=False))
    kinds: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        kinds |= vars(base).get("__annotations__", {})
    return [StructField(name, kinds[name], usual.get(name, NODEFAULT)) for name in kind.__struct_fields__]
