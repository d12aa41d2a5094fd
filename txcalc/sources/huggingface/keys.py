"""The keys of a config.json: the values that a reader asks for are checked, and unread keys are reported.

A reader asks for a key by all its names, with the default of transformers' configuration class. All faults are
reported at once: after a fault the reader continues with a stand-in value, and `finish` raises. Since a stand-in can
cause further faults, `describe` reads a faulty config twice, with different stand-ins, and reports the faults that
both readings have. A key that no reader asked for is a fault unless it is known to change no size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Self

from txcalc.errors import ABSENT, MOST_UNKNOWN, NULL, Fault, InputError, quote
from txcalc.parts.options import REQUIRED as REQUIRED, Raw, Table
from txcalc.sources.huggingface.transformers_metadata import (
    IGNORED_KEYS,
    TRAINING_NUMBERS,
    elsewhere,
    is_neutral,
    is_unnamed,
    kinds_of,
    knows,
    names,
    needs_value,
    part_of,
    size_of,
    table,
    words_of,
)
from txcalc.sources.spec import MAX_LAYERS, Wrong, count, flag, layers, real, size, text

MAX_KEYS = 10_000  # of one object


# Activations by the names of transformers' table, as those of `parts.work.COST`.
ACTIVATIONS: dict[str, str] = table("families.json")["activations"]


class Keys:
    """One object of a config.json. `path` is its place in the file (`text_config.`); faults go to its parent's list.

    A `partial` object has only the keys that differ from its class's defaults: absent sizes are the class's.
    """

    def __init__(
        self,
        data: Table,
        model_type: str,
        path: str = "",
        parent: Keys | None = None,
        *,
        partial: bool = False,
        second_reading: bool = False,
    ) -> None:
        self.data, self.model_type, self.path, self.partial = data, model_type, path, partial
        self.parent = parent
        self.second_reading: bool = parent.second_reading if parent else second_reading
        self.faults: list[Fault | str] = parent.faults if parent else []
        self.assumptions: list[str] = parent.assumptions if parent else []
        self.notes: list[str] = parent.notes if parent else []
        self.keys_read: set[str] = set()
        self.sizes_read: dict[str, int] = {}  # sizes that were read or assumed
        self.listed: set[str] = set()  # keys that were read as lists
        self.faulty: set[str] = set()
        self.inner: list[Keys] = []
        if parent:
            parent.inner.append(self)

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def fault(self, key: str, got: object, expected: str, fix: str = "") -> None:
        self.faulty.add(key)
        self.faults.append(Fault(self.path + printable(key), NULL if got is None else got, expected, fix))

    def size(self, *names: str, default: object = REQUIRED, null: object = REQUIRED) -> Any:
        """A whole number above 0. `default` is what the class takes when the key is absent, `null` when it is null."""
        return self._get(names, size, 1, default, null)

    def count(self, *names: str, default: object = REQUIRED, null: object = REQUIRED) -> Any:
        """A whole number from 0."""
        return self._get(names, count, 0, default, null)

    def layers(self, *names: str) -> int:
        number: int = self._get(names, layers, 1, REQUIRED, REQUIRED)
        return number

    def flag(self, *names: str, default: object = REQUIRED, null: object = REQUIRED) -> Any:
        return self._get(names, flag, False, default, null)

    def text(self, *names: str, default: object, null: object = REQUIRED) -> Any:
        """A text that selects the structure."""
        return self._get(names, text, "", default, null)

    def real(self, *names: str, default: object = None) -> Any:
        """A number that changes no size, so that its default is not listed among the assumptions."""
        return self._get(names, real, 1.0, default, default, assumed=False)

    def ratio(self, name: str, default: float, *widths: int) -> float:
        """A number above 0 that multiplies sizes; its product with each of `widths` must be at least 1."""
        value: float = self.real(name, default=default)
        if self.data.get(name, default) is None:
            self.fault(name, None, "a number")
        elif not 0 < value <= 1000 or any(value * width < 1 for width in widths):
            self.fault(name, value, "a number above 0, at most 1,000" + ", that gives a width above 0" * bool(widths))
            return default
        return value

    def nested(self, name: str, model_type: str = "", default: Table | None = None) -> Self:
        """The config of a part; absent sizes are its class's, and `default` replaces an absent config. Its type is
        `model_type`, or without it the one that the config names."""
        table = self.data.get(name)
        self.ignore(name)
        if not isinstance(table, Mapping):
            if table is not None or default is None:
                self.fault(name, ABSENT if table is None else table, "an object, the config of that part")
            table = default or {}
        part_type = model_type or table.get("model_type", "")
        part_type = part_type if isinstance(part_type, str) else ""
        return type(self)({**table, "architectures": None}, part_type, f"{self.path}{name}.", self, partial=True)

    def activation(self, *names: str, default: str) -> str:
        name = self._get(names, text, "gelu", default, default, assumed=False)
        if not isinstance(name, str) or name not in ACTIVATIONS:
            self.fault(self.spelling(*names), name, f"one of {', '.join(ACTIVATIONS)}")
            return "silu" if self.second_reading else "gelu"
        return ACTIVATIONS[name]

    def items(self, *names: str, of: Callable[[Any], Any], length: int | None, default: object) -> Any:
        """A list whose items pass the check `of`, with one item per layer if `length` is given."""

        def check(value: object) -> list[Any]:
            if not isinstance(value, list) or len(value) > MAX_LAYERS:
                raise Wrong("a list")
            if length is not None and len(value) != length:
                raise Wrong(f"a list of {length:,} items, one per layer", f"it has {len(value):,}")
            return [of(item) for item in (_present_names(value, of) if "layer_types" in names else value)]

        self.listed.update(names)
        return self._get(names, check, default, default, default, assumed=False)

    def require_value(self, value: object, *names: str, why: str = "its class takes no other") -> None:
        """A fault unless a key is absent or has this value, the only one that this reader supports."""
        self.keys_read.update(names)
        for name in names:
            got = self.data.get(name)
            if got is not None and (type(got) is not type(value) or got != value):
                self.fault(name, got, f"{_json(value)}", why)

    def require_size(self, name: str, value: int, default: int, why: str) -> None:
        """A fault unless a size, `default` if absent, has this value."""
        if (got := self.size(name, default=default)) != value:
            self.fault(name, got, f"{value:,}", why)

    def ignore(self, *names: str) -> None:
        """Mark keys as read: they change no size in this family."""
        self.keys_read.update(names)

    def assume(self, name: str, value: object) -> None:
        line = f"{self.path}{name} = {_json(value)}, the default of {self.model_type}"
        if line not in self.assumptions:
            self.assumptions.append(line)

    def has_key(self, name: str) -> bool:
        """Whether the code of this model type names a key."""
        return names(self.model_type, name)

    def fill(self, defaults: Table) -> None:
        """Set absent keys to the defaults of the published code, and list these among the assumptions."""
        absent = {name: value for name, value in defaults.items() if name not in self}
        for name, value in absent.items():
            self.assume(name, value)
        self.data = {**absent, **self.data}

    def override(self, **values: object) -> None:
        """Replace the file's values."""
        self.data = {**self.data, **values}

    def drop(self, *names: str) -> None:
        """Remove keys before they are read."""
        self.data = without(self.data, *names)

    def note(self, line: str) -> None:
        self.notes.append(line)

    def spelling(self, *names: str) -> str:
        """The first of `names` that this file uses."""
        return next((name for name in names if self.data.get(name) is not None), names[0])

    def divides(self, part: object, whole: Any, name: str, whole_name: str) -> None:
        """A fault unless `part` divides `whole`."""
        if not part or whole % part:
            self.fault(name, part, f"a divisor of {whole_name} = {whole:,}")

    def multiple(self, name: str, value: int, of: int) -> None:
        if value % of:
            self.fault(name, value, f"a multiple of {of}")

    def report_unread_keys(self) -> None:
        """Add a fault for every unread key that may change a size, and for every value that transformers refuses; if no
        size depends on that value, a note. A key that the type's code does not name is ignored, with a note, if its
        value cannot be a size or repeats one that was read."""
        if len(self.data) > MAX_KEYS:
            self.faults.append(f"{self.path[:-1] or 'it'} has {len(self.data):,} keys, expected at most {MAX_KEYS:,}")
            return
        self.apply_ignored_keys()
        ignored: list[str] = []
        self.check_kinds()
        unknown = 0
        for key, value in self.data.items():
            if key not in self.keys_read and not is_neutral(key, value):
                if owner := elsewhere(self.model_type, key, self.data):
                    self.note(f"ignored: {self.path}{printable(key)} = {quote(value, 30)}, {owner}")
                    continue
                if self._harmless(key, value):
                    ignored.append(f"{printable(key)} = {quote(value, 30)}")
                    continue
                unknown += 1
                if unknown > MOST_UNKNOWN:
                    continue
                self.faults.append(
                    f"{self.path}{printable(key)} is {quote(value)}, a key that is not understood "
                    f"in a config of {self.model_type} and may change a size "
                    f"(--ignore {self.path}{printable(key)} if it does not)"
                )
        if unknown > MOST_UNKNOWN:
            place = f" of {self.path[:-1]}" if self.path else ""
            self.faults.append(f"{unknown - MOST_UNKNOWN:,} further keys{place} are not understood")
        if ignored:
            suffix = f" and {len(ignored) - 8:,} more" if len(ignored) > 8 else ""
            where = f" in {self.path.rstrip('.')}" if self.path else ""
            unread = f"transformers' {self.model_type} does not read them and " if knows(self.model_type) else ""
            self.note(f"ignored{where}, because {unread}they add no size: {', '.join(ignored[:8])}{suffix}")
        for inner in self.inner:
            inner.report_unread_keys()

    def check_kinds(self) -> None:
        """Add a fault or a note for each value that transformers' class does not accept."""
        owner, refusals = self.owner_type(), list[str]()
        inner_paths = {inner.path for inner in self.inner}
        for key, value in self.data.items():
            if isinstance(value, Mapping) and f"{self.path}{key}." not in inner_paths:
                of = value.get("model_type", part_of(owner, key))
                refused = (name for name in value if isinstance(of, str) and _misfits(of, name, value[name]))
                path = self.path + printable(key)
                refusals += (f"{path}.{printable(name)} = {_quote_short(value[name])}" for name in refused)
            kinds = kinds_of(owner, key)
            labels = key == "num_labels" and self.data.get("id2label") is None and not isinstance(value, int)
            if key in self.faulty or not (_misfits(owner, key, value) or (labels and knows(owner))):
                continue
            integral = type(value) is int and "f" in kinds  # in place of a number with a point
            if key in self.keys_read and not integral and (value is None or not is_neutral(key, value)):
                expected = "a value" if value is None else " or ".join(KINDS[kind][1] for kind in kinds)
                expected = " or ".join(words_of(owner, key)) if isinstance(value, str) and "s" in kinds else expected
                self.fault(key, value, expected, f"transformers makes no {owner} of it")
            else:
                refusals.append(f"{self.path}{printable(key)} = {_quote_short(value)}")
        if refusals:
            suffix = f" and {len(refusals) - 8:,} more" if len(refusals) > 8 else ""
            self.note(f"transformers' {owner} refuses, though no size depends on it: {', '.join(refusals[:8])}{suffix}")

    def owner_type(self) -> str:
        """The model type whose class defines this object's keys; "" if unknown."""
        if self.parent is None or self.parent.model_type != self.model_type or self.path == self.parent.path:
            return self.model_type
        name, key = self.data.get("model_type"), self.path[len(self.parent.path) : -1]
        return name if isinstance(name, str) else part_of(self.parent.owner_type(), key)

    def apply_ignored_keys(self, place: str = "") -> None:
        """Apply the rows of `ignored_keys.json` for this type, or for this nested table of it; `place` names the
        rows of another type's table."""
        outer: Keys = self
        while outer.parent and outer.parent.model_type == self.model_type:
            outer = outer.parent
        inner = self.path[len(outer.path) : -1]
        place = place or (f"{self.model_type}/{inner}" if inner else self.model_type)
        for row in IGNORED_KEYS.get(place, ()):
            self.ignore(*row.get("ignore", "").split())
            for value, keys, why in row.get("only", ()):
                self.require_value(value, *keys.split(), why=why)

    def _take(self, names: tuple[str, ...], value: object) -> None:
        if type(value) is int:
            self.sizes_read |= dict.fromkeys(names, value)

    def _harmless(self, key: str, value: object) -> bool:
        """Whether a key that transformers' code of this type never names adds no size: its value cannot be a size, is a
        number of training, or repeats a key that was read."""
        is_named = knows(self.model_type)
        if is_named and not is_unnamed(self.model_type, key):
            return False
        training = type(value) is int and key in TRAINING_NUMBERS
        return (type(value) is int and self._repeats(key, value)) or (is_named and (training or _no_size(value)))

    def _repeats(self, key: str, value: int) -> bool:
        """Whether a key that was read has this value and a word of this name; all words, for a type that the tables do
        not know."""
        words = set(key.split("_")) - COMMON_WORDS
        fits = words.intersection if knows(self.model_type) else words.issubset
        return any(number == value and words and fits(name.split("_")) for name, number in self.sizes_read.items())

    def finish(self, where: str, second: Keys | None = None) -> None:
        """Raise the faults that the `second` reading, with different stand-ins, has too."""
        if self.faults:
            messages = dict.fromkeys(map(str, self.faults))
            repeated = {str(fault) for fault in second.faults} if second else messages.keys()
            raise InputError(where, [fault for fault in messages if fault in repeated] or messages)

    def _get(
        self,
        names: tuple[str, ...],
        check: Callable[[Any], Any],
        stand_in: object,
        default: object,
        null: object,
        assumed: bool = True,
    ) -> Any:
        self.keys_read.update(names)
        present = {name: self.data[name] for name in names if name in self.data}
        values = {name: value for name, value in present.items() if value is not None}
        if not values:
            absent = not present
            value = default if absent else null if null is not REQUIRED else default if default is None else REQUIRED
            if value is REQUIRED and absent and self.partial:
                sizes = (size_of(self.model_type, name) for name in names)
                value = next((size for size in sizes if size is not None), REQUIRED)
            if value is REQUIRED:
                self.fault(next(iter(present), names[0]), ABSENT if absent else None, _expectation(check))
                return _second_stand_in(stand_in, check) if self.second_reading else stand_in
            self._take(names, value)
            if assumed and value is not None:
                self.assume(next(iter(present), names[0]), value)
            return value
        first, value = next(iter(values.items()))
        for alias, duplicate in values.items():
            if type(duplicate) is not type(value) or (duplicate != value and duplicate == duplicate):
                self.fault(alias, duplicate, f"{quote(value)}, the value of {first}", "both keys mean the same")
        self._take((first,), value)
        try:
            return check(value)
        except Wrong as wrong:
            self.fault(first, value, wrong.expected, wrong.fix)
            return _second_stand_in(stand_in, check) if self.second_reading else stand_in


def without(table: Mapping[str, object], *names: str) -> Raw:
    return {name: value for name, value in table.items() if name not in names}


# Layer types by their names in older configs.
RENAMED = {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}


def _present_names(value: list[Any], of: Callable[[Any], Any]) -> list[object]:
    """Layer types by their present names, except where the class uses the older name."""
    names = []
    for item in value:
        try:
            of(item)
        except Wrong:
            item = RENAMED.get(item, item) if isinstance(item, str) else item
        names.append(item)
    return names


def _second_stand_in(stand_in: object, check: Callable[[Any], Any]) -> object:
    """The stand-in of the second reading: a number with many divisors, the opposite flag."""
    if isinstance(stand_in, bool):
        return not stand_in
    if isinstance(stand_in, int):
        return 60 if check is layers else 5040
    return 2.0 if isinstance(stand_in, float) else stand_in


# Words that names of different sizes share.
COMMON_WORDS = frozenset(("num", "n", "size", "of", "per", "dim", "max", "number", "total"))


def _no_size(value: object) -> bool:
    """Whether a value cannot be a size: a flag, a number below 1, a float, a text, an empty list."""
    if isinstance(value, bool | str | float) or value is None:
        return True
    if isinstance(value, int):
        return value <= 0
    if isinstance(value, Mapping):
        return all(isinstance(inner, Mapping) and not inner for inner in value.values())
    return bool(value == [])


def _expectation(check: Callable[[Any], Any]) -> str:
    """The expectation that a check's error states."""
    try:
        check(None)
    except Wrong as wrong:
        return wrong.expected
    raise AssertionError("every check refuses null")


# Kinds of values, by the letters of `transformers_metadata.kinds_of`.
KINDS: dict[str, tuple[type, str]] = {
    "n": (type(None), "null"),
    "b": (bool, "true or false"),
    "i": (int, "a whole number"),
    "f": (float, "a number with a point"),
    "s": (str, "a text"),
    "l": (list, "a list"),
    "d": (dict, "an object"),
}


def _misfits(model_type: str, key: str, value: object) -> bool:
    """Whether transformers' class of a model type refuses a value: a wrong type, or a word that it does not know."""
    kinds, words = kinds_of(model_type, key), words_of(model_type, key)
    misspelled = isinstance(value, str) and words and value not in words
    return bool((kinds and _kind(value) not in kinds) or misspelled) or (value is None and needs_value(model_type, key))


def _quote_short(value: object) -> str:
    return "null" if value is None else quote(value, 30)


def _kind(value: object) -> str:
    return next((kind for kind, (cls, _) in KINDS.items() if isinstance(value, cls)), "")


def _json(value: object) -> str:
    if value is None:
        return "nothing"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def printable(key: str) -> str:
    """A key as it can be printed: shortened, and quoted if it is not plain text."""
    plain = key.isascii() and key.isprintable() and 0 < len(key) <= 60
    return key if plain else quote(key)


@lru_cache(4096)
def letters_of(name: str) -> str:
    """The letters and digits of a name, in lower case."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def any_of(*choices: object) -> Callable[[Any], Any]:
    """A check that an item of a list is one of `choices`, compared with its type."""

    def check(value: object) -> Any:
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            raise Wrong(f"a list out of {', '.join(map(repr, choices))}")
        return value

    return check


def number(value: object) -> int:
    """Check that an item of a list is a whole number from 0."""
    if type(value) is not int or value < 0:
        raise Wrong("a list of whole numbers")
    return value
