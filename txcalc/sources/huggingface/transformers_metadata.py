"""Facts from transformers' code about a model type: classes, keys, default sizes, and keys that change no size.

`tests/scripts/release.py` writes the tables in this folder from one release of transformers, which is not imported
here.

`size_neutral_keys.json` has keys of any family that change no size: by name, ending or beginning (bookkeeping,
training, generation, kernels); `unread`: numbers of training, texts or a parent model that users add to configs, which
are ignored for types whose code never names them and faults for other types (small test models of transformers have
`type_vocab_size` for any type); `off`: features that are off, as transformers' base class writes them into every nested
config; `null`: keys that may be null in some families, although transformers 5.23 then builds no model, or a different
one; `elsewhere`: keys that other code reads, and that add no weights if another key has this value.

`ignored_keys.json` has keys that the code of some model types names, by type and, after a slash, table: `ignore`: keys
that change no size, or none if the reader does not read them; `only`: keys with one supported value, and why. Only keys
that a reader did not read are looked up here.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from txcalc.parts.options import Raw, Table


@cache
def table(name: str) -> Raw:
    """The content of a JSON file in this folder."""
    content: Raw = json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return content


def knows(model_type: str) -> bool:
    """True for a model type that transformers has."""
    return bool(model_type) and model_type in table("transformers_classes.json")


def classes(model_type: str) -> list[str]:
    """transformers' classes of a model type; empty for other types."""
    return list(table("transformers_classes.json").get(model_type, ())) if model_type else []


@cache
def types_of(cls: str) -> tuple[str, ...]:
    """The model types that have this class; case is ignored."""
    folded = cls.casefold()
    return tuple(
        model_type
        for model_type, names in table("transformers_classes.json").items()
        if model_type and any(name.casefold() == folded for name in names)
    )


def is_unnamed(model_type: str, key: str) -> bool:
    """True for a key that neither the code of this model type nor the shared code names; False if that code is not
    known."""
    keys = _kinds(model_type)
    return keys is not None and key not in table("transformers_keys.json")[""] and key not in keys


def names(model_type: str, key: str) -> bool:
    """True for a key that the code of this model type names."""
    return key in (_kinds(model_type) or {})


def kinds_of(model_type: str, key: str) -> str:
    """The kinds of values that the configuration class of a model type accepts for a key, a letter each: null, boolean,
    integer, float, string, list, dict; "" if it accepts all or is not known."""
    return (_kinds(model_type) or {}).get(key, "")


def words_of(model_type: str, key: str) -> list[str]:
    """The texts that the configuration class of a model type accepts for a key; empty if it accepts any."""
    return list(table("transformers_keys.json")["words"].get(model_type, {}).get(key, ()))


def part_of(model_type: str, key: str) -> str:
    """The model type of a table in a config if it is always the same; else ""."""
    return str(table("transformers_keys.json")["parts"].get(model_type, {}).get(key, ""))


@cache
def _kinds(model_type: str) -> dict[str, str] | None:
    """The keys that the code of a model type names, with their kinds of values; None if it is not known."""
    row = table("transformers_keys.json")["named"].get(model_type)
    return None if row is None else {key: kinds for kinds, keys in row.items() for key in keys.split()}


def size_of(model_type: str, key: str) -> int | None:
    """The default size of the configuration class of a model type."""
    size: int | None = table("transformers_keys.json")["sizes"].get(model_type, {}).get(key)
    return size


def padding_of(model_type: str) -> tuple[bool, int | None]:
    """Whether the token table of a model type may have a padding row, and the class's default index of it."""
    rows = table("transformers_keys.json")["padding"]
    return model_type in rows or not classes(model_type), rows.get(model_type)


NAMES = frozenset(" ".join(table("size_neutral_keys.json")["neutral"]).split())
ENDINGS, BEGINNINGS = (tuple(table("size_neutral_keys.json")[name]) for name in ("endings", "beginnings"))
TRAINING_NUMBERS = frozenset(" ".join(table("size_neutral_keys.json")["unread"]).split())
_OFF: Raw = table("size_neutral_keys.json")["off"]
_NULL: dict[str, str] = table("size_neutral_keys.json")["null"]  # by key, the families

# The rows of ignored keys, by model type and table.
IGNORED_KEYS: dict[str, list[Raw]] = {}
for _places, _row in table("ignored_keys.json").items():
    for _place in _places.split():
        IGNORED_KEYS.setdefault(_place, []).append(_row)


def elsewhere(model_type: str, key: str, config: Table) -> str:
    """The owner of a key that only other code reads, if the key adds no weights; else ""."""
    for family, keys, condition, value, owner in table("size_neutral_keys.json")["elsewhere"]:
        if model_type == family and key in keys.split() and config.get(condition) == value:
            return str(owner)
    return ""


def ignores(place: str, key: str, value: object) -> bool:
    """True for a key that changes no size in this table of a type, or not with this value."""
    return any(
        key in row.get("ignore", "").split()
        or any(key in names.split() and value == only for only, names, _ in row.get("only", ()))
        for row in IGNORED_KEYS.get(place, ())
    )


def is_neutral(key: str, value: object) -> bool:
    """True for a key that changes no size; null never does."""
    off: bool = key in _OFF and type(_OFF[key]) is type(value) and _OFF[key] == value
    return value is None or off or key in NAMES or key.endswith(ENDINGS) or key.startswith(BEGINNINGS)


def needs_value(model_type: str, key: str) -> bool:
    """True if this family accepts null for a key, but transformers then builds no model, or a different one."""
    return model_type in _NULL.get(key, "").split()
