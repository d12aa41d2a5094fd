"""Keys of a config.json that change no size, and what transformers' classes refuse in a key whatever is made of it.

`neutral.json` has them: keys that say nothing of sizes in any family, by name, ending or beginning (bookkeeping,
training, generation, kernels); features that are off, as transformers' base class writes them into every nested config;
keys that may not be null in any family, or in those named or, after "but", in all but those; keys that are whole
numbers where a reader does not look at them, too; and keys that other people's code reads beside a class, and that give
it no weights where another key has this value. What is refused was written down from transformers 5.23 (annotations,
and null in a config of each family built on meta); a test holds it against the classes.

`aside.json` has keys that the code of some model types names, by those types and, after a stroke, the table in which
they stand: `ignore` those from which no size follows, or none where the reader does not ask for them; `only` the one
value of others, and why.

A reader looks at its own keys first; only what it did not ask for is looked up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txcalc.sources.huggingface.release import table


def _words(name: str) -> frozenset[str]:
    return frozenset(" ".join(table("neutral.json")[name]).split())


NAMES, WHOLE, _NEVER_NULL = map(_words, ("neutral", "whole", "never null"))
ENDINGS, BEGINNINGS = (tuple(table("neutral.json")[name]) for name in ("endings", "beginnings"))
_OFF: dict[str, Any] = table("neutral.json")["off"]
# By key, whether the families listed are those that accept null, and the families.
_NULL: dict[str, tuple[bool, frozenset[str]]] = {
    key: (listed.startswith("but "), frozenset(listed.split()) - {"but"})
    for key, listed in table("neutral.json")["null"].items()
}


# By model type and table, the rows of keys that are set aside there.
ASIDE: dict[str, list[dict[str, Any]]] = {}
for _places, _row in table("aside.json").items():
    for _place in _places.split():
        ASIDE.setdefault(_place, []).append(_row)


def elsewhere(model_type: str, key: str, config: Mapping[str, Any]) -> str:
    """Whose a key is that only other people's code reads, where it gives the class no weights; else ""."""
    for family, keys, beside, value, whose in table("neutral.json")["elsewhere"]:
        if model_type == family and key in keys.split() and config.get(beside) == value:
            return str(whose)
    return ""


def is_neutral(key: str, value: Any) -> bool:
    """True for a key that changes no size. One that is null says nothing."""
    off: bool = key in _OFF and type(_OFF[key]) is type(value) and _OFF[key] == value
    return value is None or off or key in NAMES or key.endswith(ENDINGS) or key.startswith(BEGINNINGS)


def refuses_null(model_type: str, key: str) -> bool:
    """True where transformers makes no model of a config of this family whose key is null."""
    accepting, families = _NULL.get(key, (key in _NEVER_NULL, frozenset()))
    return (model_type in families) != accepting
