"""The store of evidence: one file that comes with the package, one of the user's own, both of theorems by structure.

An entry has a checksum, made with the theorem: an entry that was edited by hand is not used. The user's file is read
with a bound on its size; one that cannot be read is a note, and not used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from txcalc.errors import Fault, InputError, TxcalcError
from txcalc.evidence.formulas import FIGURES
from txcalc.evidence.structures import Size, fingerprint
from txcalc.parts.options import Raw, Table
from txcalc.sources import files
from txcalc.sources.presets import folder

SCHEMA, EARLIER = "txcalc/theorems/2", "txcalc/theorems/1"
MAX_BYTES = 64 << 20  # of a file of theorems
HOW = ("proved", "measured")
T = TypeVar("T")


class Condition(NamedTuple):
    """A polynomial of the parameters that must not be 0 (`!=`), or be at least 0 (`>=`)."""

    polynomial: Size
    relation: str

    def holds(self, values: Mapping[str, int]) -> bool:
        value = self.polynomial.over(values)
        return bool(value != 0 if self.relation == "!=" else value >= 0)

    def __str__(self) -> str:
        return f"{self.polynomial} {'≠' if self.relation == '!=' else '≥'} 0"


class QuantityEvidence(NamedTuple):
    """The evidence of one quantity beyond `PROVED`: the digest of its formulas, whether it is *proved* or *measured*,
    its domain, and the conditions on sizes."""

    digest: str
    how: str
    where: str
    conditions: tuple[Condition, ...]


class Theorem(NamedTuple):
    """What was shown of a structure: for each proved quantity the digest of its formulas; the batches and lengths for
    which it holds, and the conditions on sizes (of 2 or more each). Of `extra_quantities` each has its own. `edited`:
    its entry does not have its checksum, and is not used."""

    name: str
    digests: Mapping[str, str]
    domain: str
    conditions: tuple[Condition, ...]
    extra_quantities: Mapping[str, QuantityEvidence] = {}
    edited: bool = False


def theorems_file() -> Path:
    """The theorems that come with the package."""
    return folder() / "theorems.json"


def user_file() -> Path:
    """The user's own theorems: `$XDG_DATA_HOME/txcalc/theorems.json`."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "txcalc" / "theorems.json"


class TheoremFiles(Mapping[str, Theorem]):
    """Theorems by the key of their structure, each from the first file that has it. A model whose structures all have
    theorems needs a few of many: each is looked up in the text. After the first missing key many more are looked up, so
    all entries are parsed."""

    def __init__(self, texts: Mapping[Path, str], notes: Sequence[str] = ()) -> None:
        self.texts, self.notes = texts, tuple(notes)
        self.key_was_missing = False

    @cached_property
    def entries(self) -> dict[str, tuple[Path, Any]]:
        """All entries as written, each with its file."""
        entries: dict[str, tuple[Path, Any]] = {}
        for path, text in self.texts.items():
            for key, entry in _parse(path, partial(_entries, text)).items():
                entries.setdefault(key, (path, entry))
        return entries

    def __getitem__(self, key: str) -> Theorem:
        if self.key_was_missing:
            path, entry = self.entries[key]
        elif (looked_up := self._look_up(key)) is not None:
            path, entry = looked_up
        else:
            self.key_was_missing = True
            raise KeyError(key)
        return _parse(path, lambda: theorem_of(key, entry))

    def find(self, key: str) -> Theorem | None:
        """The theorem of a key that probably has none; a missing one does not parse all entries."""
        present = key in self.entries if self.key_was_missing else self._look_up(key) is not None
        return self[key] if present else None

    def _look_up(self, key: str) -> tuple[Path, object] | None:
        for path, text in self.texts.items():
            prefix = f'"{key}": '
            if (at := text.find(prefix + "{")) >= 0:
                entry, _ = _parse(path, partial(json.JSONDecoder().raw_decode, text, at + len(prefix)))
                return path, entry
        return None

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@cache
def theorems() -> TheoremFiles:
    """The package's theorems and the user's own, whose file is checked as a whole."""
    texts, notes, personal = {theorems_file(): _text(theorems_file())}, [], user_file()
    try:
        text = _text(personal)
        _parse(personal, lambda: [theorem_of(key, entry) for key, entry in _entries(text).items()])
        texts[personal] = text
    except TxcalcError as error:
        notes.append(f"your own theorems are not used: {error}")
    return TheoremFiles({path: text for path, text in texts.items() if text}, notes)


def _text(path: Path) -> str:
    """The text of a file of theorems; "" where there is none. Errors: `InputError`."""
    if not path.exists():
        return ""
    files.regular(path)
    data = files.read(path, MAX_BYTES)
    if len(data) > MAX_BYTES:
        raise InputError(str(path), [f"holds over {MAX_BYTES >> 20} MiB, expected theorems"])
    return _parse(path, lambda: data.decode("utf-8"))


def read(path: Path) -> dict[str, Theorem]:
    """The theorems of a file, none where it does not exist. Errors: `InputError` for one that holds something else."""
    text = _text(path)
    return _parse(path, lambda: {key: theorem_of(key, entry) for key, entry in _entries(text).items()})


def _parse(path: Path, parse: Callable[[], T]) -> T:
    """The result of `parse`. Errors: `InputError` where the file holds something other than theorems."""
    try:
        return parse()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        message: list[Fault | str] = [f"holds no theorems as {SCHEMA} has them: {error} (delete it, or make it again)"]
        raise InputError(str(path), message) from None


def _entries(text: str) -> Table:
    if not text:
        return {}
    content = json.loads(text)
    if content["schema"] == EARLIER:  # its digests are of other figures and cannot be used
        return {}
    if content["schema"] != SCHEMA:
        raise ValueError(f"its schema is {content['schema']!r}")
    entries: Table = content["theorems"]
    return entries


def theorem_of(key: str, entry: Table) -> Theorem:
    """An entry as a theorem. Errors: `ValueError`, `KeyError` or `TypeError` for an invalid entry."""
    digests = {quantity: str(mark) for quantity, mark in entry["digests"].items()}
    extra = {quantity: _quantity_evidence(record) for quantity, record in entry.get("further", {}).items()}
    if unknown := {*digests, *extra} - FIGURES.keys():
        raise ValueError(f"a proof of {sorted(unknown)}")
    theorem = Theorem(str(entry["name"]), digests, str(entry["domain"]), _conditions(entry["conditions"]), extra)
    return theorem if entry["checksum"] == checksum(key, theorem) else theorem._replace(edited=True)


def _quantity_evidence(entry: Table) -> QuantityEvidence:
    if entry["how"] not in HOW:
        raise ValueError(f"known how: {entry['how']!r}")
    return QuantityEvidence(
        str(entry["digest"]), entry["how"], str(entry["where"]), _conditions(entry.get("conditions", ()))
    )


def _conditions(entries: Any) -> tuple[Condition, ...]:
    conditions = []
    for terms, relation in entries:
        if relation not in ("!=", ">="):
            raise ValueError(f"a condition of {relation!r}")
        conditions.append(Condition(Size(tuple((int(n), tuple(map(str, f))) for n, f in terms)), relation))
    return tuple(conditions)


def checksum(key: str, theorem: Theorem) -> str:
    """The checksum that an entry must have: of its content and its structure's key."""
    return fingerprint([key, _json(theorem)])


def write(path: Path, by_key: Mapping[str, Theorem], versions: Mapping[str, str]) -> None:
    """Adds theorems to a file. Errors: `InputError` for a file that holds something else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.lock(path):
        save(path, {**read(path), **by_key}, versions)


def save(path: Path, by_key: Mapping[str, Theorem], versions: Mapping[str, str]) -> None:
    """Writes a file of these theorems alone."""
    entries = {key: {**_json(by_key[key]), "checksum": checksum(key, by_key[key])} for key in sorted(by_key)}
    content = {"schema": SCHEMA, "made_with": dict(versions), "theorems": entries}
    files.write(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n", True)
    theorems.cache_clear()


def _json(theorem: Theorem) -> Raw:
    extra = {
        quantity: {key: value for key, value in _as_json(evidence).items() if value != []}
        for quantity, evidence in theorem.extra_quantities.items()
    }
    entry = {key: value for key, value in _as_json(theorem).items() if key not in ("extra_quantities", "edited")}
    return {**entry, "further": extra} if extra else entry


def _as_json(entry: Theorem | QuantityEvidence) -> Raw:
    conditions = [[[[n, list(f)] for n, f in c.polynomial.terms], c.relation] for c in entry.conditions]
    return {**entry._asdict(), "conditions": conditions}
