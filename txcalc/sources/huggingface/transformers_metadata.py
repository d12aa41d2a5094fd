"""What transformers' code says about a model type: its classes, the keys it names, its default sizes, and keys that
change no size.

The tables beside this file are made by `tests/scripts/release.py` from one release of transformers; nothing of it is
imported here.

`size_neutral_keys.json` has the keys of any family that change no size: by name, ending or beginning (bookkeeping,
training, generation, kernels); numbers that people write beside a model (of training, of texts, of the model that was
made): `unread` by types of transformers whose code never names them, and a fault of any other type (`type_vocab_size`
stands in transformers' own small test models of any type); features that are off, as transformers' base class writes
them into every nested config; keys that may be null in a configuration of some families, of which transformers 5.23
builds no model then, or another; and keys that other people's code reads beside a class, and that give it no weights
where another key has this value.

`ignored_keys.json` has keys that the code of some model types names, by those types and, after a stroke, the table in
which they stand: `ignore` those from which no size follows, or none where the reader does not ask for them; `only` the
one value of others, and why. A reader looks at its own keys first; only what it did not ask for is looked up here.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from txcalc.parts.options import Raw, Table


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


NAMES = frozenset(" ".join(table("size_neutral_keys.json")["neutral"]).split())
ENDINGS, BEGINNINGS = (tuple(table("size_neutral_keys.json")[name]) for name in ("endings", "beginnings"))
TRAINING_NUMBERS = frozenset(" ".join(table("size_neutral_keys.json")["unread"]).split())
_OFF: Raw = table("size_neutral_keys.json")["off"]
_NULL: dict[str, str] = table("size_neutral_keys.json")["null"]  # by key, the families

# By model type and table, the rows of keys that are set aside there.
IGNORED_KEYS: dict[str, list[Raw]] = {}
for _places, _row in table("ignored_keys.json").items():
    for _place in _places.split():
        IGNORED_KEYS.setdefault(_place, []).append(_row)


def elsewhere(model_type: str, key: str, config: Table) -> str:
    """Whose a key is that only other people's code reads, where it gives the class no weights; else ""."""
    for family, keys, condition, value, owner in table("size_neutral_keys.json")["elsewhere"]:
        if model_type == family and key in keys.split() and config.get(condition) == value:
            return str(owner)
    return ""


def ignores(place: str, key: str, value: object) -> bool:
    """True for a key of which no size follows in this table of a type, or none with this value."""
    return any(
        key in row.get("ignore", "").split()
        or any(key in names.split() and value == only for only, names, _ in row.get("only", ()))
        for row in IGNORED_KEYS.get(place, ())
    )


def is_neutral(key: str, value: object) -> bool:
    """True for a key that changes no size. One that is null says nothing."""
    off: bool = key in _OFF and type(_OFF[key]) is type(value) and _OFF[key] == value
    return value is None or off or key in NAMES or key.endswith(ENDINGS) or key.startswith(BEGINNINGS)


def needs_value(model_type: str, key: str) -> bool:
    """True where a configuration of this family takes null for a key, and transformers builds no model of it, or
    another."""
    return model_type in _NULL.get(key, "").split()
