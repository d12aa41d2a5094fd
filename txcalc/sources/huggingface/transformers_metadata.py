"""What transformers' code says about a model type: its classes, the keys it names, the sizes it takes unless told.

The tables beside this file are made by `tests/scripts/release.py` from one release of transformers; nothing of it is
imported here.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from txcalc.parts.options import Raw


@cache
def table(name: str) -> Raw:
    """A table of data beside this file."""
    content: Raw = json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return content


def knows(model_type: str) -> bool:
    """True for a model type that transformers has."""
    return bool(model_type) and model_type in table("transformers_classes.json")


def classes(model_type: str) -> list[str]:
    """transformers' classes of a model type; none where it is not transformers'."""
    return list(table("transformers_classes.json").get(model_type, ())) if model_type else []


@cache
def types_of(cls: str) -> tuple[str, ...]:
    """The model types of which this is a class, whatever the spelling of its capitals."""
    folded = cls.casefold()
    return tuple(
        model_type
        for model_type, names in table("transformers_classes.json").items()
        if model_type and any(name.casefold() == folded for name in names)
    )


def unnamed(model_type: str, key: str) -> bool:
    """True for a key that neither the code of this model type nor the code that all types share names; False where
    that code is not known."""
    keys = _kinds(model_type)
    return keys is not None and key not in table("transformers_keys.json")[""] and key not in keys


def names(model_type: str, key: str) -> bool:
    """True for a key that the code of this model type names itself."""
    return key in (_kinds(model_type) or {})


def kinds_of(model_type: str, key: str) -> str:
    """The kinds of values that the configuration class of a model type takes for a key, a letter each: null, boolean,
    integer, float, string, list, dict; "" where it takes all or is not known."""
    return (_kinds(model_type) or {}).get(key, "")


def words_of(model_type: str, key: str) -> list[str]:
    """The texts that the configuration class of a model type takes for a key, where it takes a few; else none."""
    return list(table("transformers_keys.json")["words"].get(model_type, {}).get(key, ()))


def part_of(model_type: str, key: str) -> str:
    """The model type of a table in a config, where it is always the same; else ""."""
    return str(table("transformers_keys.json")["parts"].get(model_type, {}).get(key, ""))


@cache
def _kinds(model_type: str) -> dict[str, str] | None:
    """The keys that the code of a model type names, with the kinds of values; None where it is not known."""
    named = table("transformers_keys.json")["named"].get(model_type)
    return None if named is None else {key: kinds for kinds, keys in named.items() for key in keys.split()}


def size_of(model_type: str, key: str) -> int | None:
    """The size that the configuration class of a model type takes when it is told nothing."""
    size: int | None = table("transformers_keys.json")["sizes"].get(model_type, {}).get(key)
    return size


def padding_of(model_type: str) -> tuple[bool, int | None]:
    """Whether the table of tokens of a model type may have a row for padding, and which its class takes when it is told
    nothing."""
    rows = table("transformers_keys.json")["padding"]
    return model_type in rows or not classes(model_type), rows.get(model_type)
