"""A report: an answer as tables, which a module per format writes.

A cell is a value with its text; CSV has the exact value, the others the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct, field
from msgspec.structs import astuple, replace

from txcalc.errors import UnknownName
from txcalc.units import iec, seconds, short

Item = TypeVar("Item")
Listed = TypeVar("Listed", bound=Struct)
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


class TableCell(NamedTuple):
    """A value and its text; a heading's `unit` is that of the values below it, for CSV."""

    value: Any
    text: str
    style: str = ""
    unit: str = ""


def column(name: str, unit: str = "", label: str = "") -> TableCell:
    """A heading of values in a unit; `label` is a longer text that may name options, where ids use `name`."""
    return TableCell(name, label or name, unit=unit)


def rounded(number: object) -> TableCell:
    """Three significant digits: 8.03 B."""
    return TableCell(number, short(number))


def byte_size(number: int | None) -> TableCell:
    """Bytes with a binary prefix: 14.96 GiB; empty for None."""
    return TableCell(number, "" if number is None else iec(number))


def leading(notes: Sequence[str]) -> Sequence[str]:
    """At most three notes, and how many more `--detail` prints."""
    return notes if len(notes) <= 3 else [*notes[:2], f"{len(notes) - 2} more notes with --detail"]


def percent(part: Any, whole: Any) -> TableCell:
    """A percentage, to a tenth; empty without a part, and if the whole is 0."""
    if part is None or not whole:
        return TableCell(None, "")
    share = Fraction(part) / Fraction(whole)
    return TableCell(float(share), f"{float(100 * share):.1f} %")


def error(got: Any, truth: Any) -> TableCell:
    """The relative error, signed."""
    if not truth:
        return TableCell(None, "")
    off = Fraction(got) / Fraction(truth) - 1
    text = "exact" if off == 0 else f"{float(100 * off):+.2f} %".replace("-", "−")
    style = "green" if off == 0 else "red" if abs(off) > Fraction(1, 10) else "yellow"
    return TableCell(float(off), text, style)


def cell(value: object) -> TableCell:
    """A value as a cell: an int with separators, else its text."""
    if isinstance(value, TableCell):
        return value
    if value is None:
        return TableCell(None, "")
    return TableCell(value, f"{value:,}".replace("-", "−") if type(value) is int else str(value))


def duration(value: float | None) -> TableCell:
    return cell(None) if value is None else TableCell(value, seconds(value))


def times(copies: int) -> TableCell:
    """The number of copies; empty for one."""
    return TableCell(copies, f"{copies:,}" if copies > 1 else "")


def yes_or_no(good: bool, yes: str = "yes", no: str = "no") -> TableCell:
    """A word in green or red."""
    return TableCell(good, yes if good else no, "green" if good else "red")


def with_stars(paths: Sequence[str]) -> str:
    """Joins paths of equal depth, with * for the segments that differ."""
    segments = zip(*(path.split(".") for path in paths), strict=True)
    return ".".join(names[0] if len(set(names)) == 1 else "*" for names in segments)


def group_copies(parts: Iterable[Listed]) -> list[list[Listed]]:
    """Groups of parts that differ only in the numbers of their path, their first field."""
    groups: dict[Any, list[Listed]] = {}
    for part in parts:
        path, *figures = astuple(part)
        groups.setdefault((_NUMBER.sub("*", path), *figures), []).append(part)
    return list(groups.values())


class Table(Struct, frozen=True):
    """Rows under headings, right-aligned except for the columns in `left`. `total`: the last row is a sum.

    Headings are texts or cells, whose text may have several lines.

    keys      number of first columns that identify a row
    name      name in data, if the title says more
    known     how the figures of a column are known
    crossed   each further column is an item (a model, a card); a cell may hold several named values
    optional  columns that only a wide terminal shows
    """

    title: str
    headings: Sequence[Any]
    rows: Sequence[Sequence[Any]]
    left: frozenset[int] = frozenset({0})
    total: bool = False
    keys: int = 1
    name: str = ""
    known: Mapping[str, str] = field(default_factory=dict)
    crossed: bool = False
    optional: frozenset[int] = frozenset()

    def without_optional(self) -> Table:
        kept = [i for i in range(len(self.headings)) if i not in self.optional]
        headings, *rows = ([row[i] for i in kept] for row in (self.headings, *self.rows))
        left = frozenset(kept.index(i) for i in self.left if i in kept)
        return replace(self, headings=headings, rows=rows, left=left, optional=frozenset())


class Column(NamedTuple, Generic[Item]):
    """A column of a table with a row per item: its heading, and the cell of an item."""

    heading: str | TableCell
    cell: Callable[[Item], object]
    optional: bool = False  # only a wide terminal shows it


def tabulate(
    title: str, items: Iterable[Item], columns: Sequence[Column[Item]], left: Sequence[int] = (0,), name: str = ""
) -> Table:
    """A table with a row per item."""
    headings, cells, are_optional = zip(*columns, strict=True)
    rows = [[cell_of(item) for cell_of in cells] for item in items]
    optional = frozenset(i for i, is_optional in enumerate(are_optional) if is_optional)
    return Table(title, headings, rows, frozenset(left), name=name, optional=optional)


class Report(Struct, frozen=True):
    """What a command prints: a header and tables, and `notes` on stderr.

    `good`: the first line is a verdict, and whether it is a good one.
    """

    tables: Sequence[Table]
    header: Sequence[str] = ()
    notes: Sequence[str] = ()
    good: bool | None = None

    def only(self, names: Sequence[str], digits: int | None) -> Report:
        """The rows whose name contains one of these, with what is below them; large numbers in so many digits.

        Errors: `UnknownName`."""
        tables = [_select(table, [name.lower() for name in names]) if names else table for table in self.tables]
        if names and not any(table.rows for table in tables):
            labels = [cell(row[0]).text.strip() for table in self.tables for row in table.rows]
            raise UnknownName("--rows", "row", ",".join(names), labels, "a part of a name in the first column")
        if digits is not None:
            tables = [
                replace(table, rows=[[*row[: table.keys], *(_in_digits(value, digits) for value in row[table.keys :])]
                                     for row in table.rows])
                for table in tables
            ]  # fmt: skip
        return replace(self, tables=[table for table in tables if table.rows])


def _select(table: Table, names: Sequence[str]) -> Table:
    rows: list[Sequence[Any]] = []
    above, keep = [], False
    for row in table.rows:
        text = cell(row[0]).text
        matches = any(name in text.lower() for name in names)
        if not text.startswith(" "):
            above, keep = [row], matches
        elif (matches and not keep) and above:
            rows += above  # the heading of a group
            above = []
        if matches or keep:
            rows.append(row)
    return replace(table, rows=rows, total=table.total and bool(rows) and rows[-1] is table.rows[-1])


def _in_digits(item: object, digits: int) -> object:
    """A cell that is a number of at least a million, bytes, or a ratio."""
    number = cell(item)
    if number.text.startswith("×"):
        small = f"{float(number.value):.{digits}g}"
        return number._replace(text=f"×{small if number.value < 1 else short(number.value, digits).replace(' ', '')}")
    if isinstance(number.value, int | Fraction) and number.value >= 10**6:
        if number.text in (cell(number.value).text, short(number.value)):
            return number._replace(text=short(number.value, digits))
        if number.text in (iec(number.value), iec(number.value, digits=3)):
            return number._replace(text=iec(number.value, digits=digits))
    return number


def heading_name(heading: object) -> str:
    """A heading in one line."""
    return str(cell(heading).value)
