"""Keys of a config.json that change no size.

`size_neutral_keys.json` has those of any family: by name, ending or beginning (bookkeeping, training, generation,
kernels); numbers that people write beside a model (of training, of texts, of the model that was made): `unread` by
types of transformers whose code never names them, and a fault of any other type (`type_vocab_size` stands in
transformers' own small test models of any type); features that are off, as transformers' base class writes them into
every nested config; keys that may be null in a configuration of some families, of which transformers 5.23 builds no
model then, or another; and keys that other people's code reads beside a class, and that give it no weights where
another key has this value.

`ignored_keys.json` has keys that the code of some model types names, by those types and, after a stroke, the table in
which they stand: `ignore` those from which no size follows, or none where the reader does not ask for them; `only` the
one value of others, and why.

A reader looks at its own keys first; only what it did not ask for is looked up here.
"""

from __future__ import annotations

from txcalc.parts.options import Raw, Table
from txcalc.sources.huggingface.transformers_metadata import table

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
