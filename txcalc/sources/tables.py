"""Tables of a description that are checked, key by key, and what a rule over several keys sees of them.

A rule gets such tables and `fault(path, got, expected, fix)`. Where it reads a faulty key it ends there (`SOUND`), so
that no fault is told that rests on another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from txcalc.num import exceeds
from txcalc.parts.options import Raw, Table


class Unsound(Exception):
    """A rule asked for a key that is faulty, or that follows from one that is."""


SOUND = suppress(Unsound)  # around one rule


def apply(rules: Iterable[Callable[..., None]], *tables: object) -> None:
    """Asks rules of tables, one after the other; each ends where it reads a faulty key."""
    remaining = iter(rules)
    while True:
        with SOUND:
            for rule in remaining:
                rule(*tables)
            return


class CheckedTable(Raw):
    """A checked table, and what was `written` in it. A faulty key has no value: reading it, by `get` too, raises
    `Unsound`."""

    def __init__(self, values: Table | None = None) -> None:
        super().__init__(values or {})
        self.written: Table = {}
        self.faulty: set[str] = set(values.faulty) if isinstance(values, CheckedTable) else set()

    def __missing__(self, key: str) -> Any:
        raise Unsound(key) if key in self.faulty else KeyError(key)

    def get(self, key: str, default: object = None) -> Any:
        """Its value, or a default where a table of its form has no such key."""
        return self[key] if key in self or key in self.faulty else default


Tables = Table
Told = Callable[..., None]


def has(section: str, layer: Tables) -> bool:
    """Whether a layer has a table; of one whose parts are faulty nobody knows."""
    return bool(layer["parts"]) and section in layer


def every(section: str, stack: Tables) -> list[Tables]:
    """A table of every layer kind that has it."""
    return [layer[section] for layer in stack["layer"].values() if has(section, layer)]


def unequal(a: Any, b: Any) -> bool:
    """Whether two numbers are known to differ."""
    return exceeds(a, b) or exceeds(b, a)
