"""Checks of rules over several keys of a description.

A rule gets tables and `fault(path, got, expected, fix)`. It ends when it reads a faulty key (`SOUND`), so that no fault
is reported that only follows from another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from txcalc.num import exceeds
from txcalc.parts.options import Raw, Table, Unsound

SOUND = suppress(Unsound)  # around one rule
ReportFault = Callable[..., None]


def apply(rules: Iterable[Callable[..., None]], *tables: object) -> None:
    """Apply rules to tables; each rule ends when it reads a faulty key."""
    remaining = iter(rules)
    while True:
        with SOUND:
            for rule in remaining:
                rule(*tables)
            return


class CheckedTable(Raw):
    """A table that is being checked, and the table as `written`. Reading a faulty key raises `Unsound`."""

    def __init__(self, written: Table, faulty: Iterable[str] = ()) -> None:
        super().__init__()
        self.written = written
        self.faulty = {*faulty}

    def __missing__(self, key: str) -> object:
        raise Unsound(key) if key in self.faulty else KeyError(key)


def unequal(a: Any, b: Any) -> bool:
    """Whether two numbers are known to differ."""
    return exceeds(a, b) or exceeds(b, a)
