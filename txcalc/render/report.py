"""A report: what a command found, once as data (JSON) and once as tables for people, CSV, Markdown and LaTeX.

A cell is a value with the text that shows it; CSV and JSON get the value, exact, the others the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

from txcalc.parts.frozen import record
from txcalc.units import short

Part = TypeVar("Part", bound=tuple[Any, ...])
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


class TableCell(NamedTuple):
    """A value and how people see it; a heading's `unit` is that of the exact values under or beside it, for CSV."""

    value: Any
    text: str
    style: str = ""
    unit: str = ""


def column(name: str, unit: str = "", shown: str = "") -> TableCell:
    """The heading of a column, or of a row, of values in a unit, which other formats than CSV show beside each; `shown`
    says more than its name, by which ids call it: what was asked."""
    return TableCell(name, shown or name, unit=unit)


def exact(number: Any) -> TableCell:
    """An integer with separators."""
    return TableCell(number, f"{number:,}" if isinstance(number, int) else str(number))


def rounded(number: Any, unit: str = "") -> TableCell:
    """Three significant digits: 8.03 B."""
    return TableCell(number, f"{short(number)} {unit}".rstrip())


def percent(part: Any, whole: Any) -> TableCell:
    """A share of a whole, to a tenth; a share of nothing is empty."""
    if not whole:
        return TableCell(None, "")
    share = Fraction(part) / Fraction(whole)
    return TableCell(float(share), f"{float(100 * share):.1f} %")


def error(got: Any, truth: Any) -> TableCell:
    """How far a number is from the truth, signed."""
    if not truth:
        return TableCell(None, "")
    off = Fraction(got) / Fraction(truth) - 1
    text = "exact" if off == 0 else f"{float(100 * off):+.2f} %"
    style = "green" if off == 0 else "red" if abs(off) > Fraction(1, 10) else "yellow"
    return TableCell(float(off), text, style)


def cell(value: Any) -> TableCell:
    """A plain value as a cell: an int with separators, anything else as it is."""
    if isinstance(value, TableCell):
        return value
    if value is None:
        return TableCell(None, "")
    return exact(value) if type(value) is int else TableCell(value, str(value))


def times(copies: int) -> TableCell:
    """How many equal things a row stands for; one goes without saying."""
    return TableCell(copies, f"{copies:,}" if copies > 1 else "")


def starred(paths: Sequence[str]) -> str:
    """Paths of as many names as one, with a * for those that differ."""
    segments = zip(*(path.split(".") for path in paths), strict=True)
    return ".".join(names[0] if len(set(names)) == 1 else "*" for names in segments)


def folded(parts: Iterable[Part]) -> list[list[Part]]:
    """Those together that differ in nothing but the numbers in their path, their first field."""
    groups: dict[Any, list[Part]] = {}
    for part in parts:
        groups.setdefault((_NUMBER.sub("*", part[0]), *part[1:]), []).append(part)
    return list(groups.values())


@record
class Table:
    """Rows under headings; columns are right-aligned but the first (and those in `left`). `total` marks a last sum.

    A heading is a text, or a cell whose text is broken into lines; so may other cells be. The first `keys` columns tell
    the rows apart. `name` is what data calls it where its title says more; `known` is how the figures of a column are
    known; `crossed`: each further column is a thing (a model, a card), not something that is said of the rows, and the
    value of a cell may be several by name, the first by none.
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


@record
class Report:
    """What a command prints: `data` for JSON, `header` lines and `tables` for the rest, `notes` for stderr.

    `later` makes data that takes time, where JSON is asked for. `good`: the first line is a verdict, a good one or not.
    """

    data: dict[str, Any]
    tables: Sequence[Table]
    header: Sequence[str] = ()
    notes: Sequence[str] = field(default=())
    later: Callable[[], dict[str, Any]] | None = None
    good: bool | None = None


def as_json(report: Report) -> str:
    """One object, exact integers, keys in the order of the schema."""
    import json

    data = {**report.data, **report.later()} if report.later else report.data
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)


def as_csv(report: Report) -> str:
    """One table: a row for each of its own, with exact values. Several, or one that is `crossed`: a row for each of
    their values; `value` is a number, what is none is `text`. Every row has an id of its own.

    A column without a heading repeats the one before it in short, and a row without a label is a heading of those below
    it; both are left out.
    """
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if len(report.tables) == 1 and not report.tables[0].crossed:
        (table,) = report.tables
        headings = [_unit(heading) for heading in table.headings]
        for label, row in (("id", headings), *_labelled(table)):
            cells = zip(table.headings, row, strict=True)
            writer.writerow([label, *(_plain(value) for name, value in cells if _name(name))])
        return out.getvalue().rstrip("\n")
    writer.writerow(Value._fields)
    short = [_called(table) for table in report.tables]
    for table, name in zip(report.tables, short, strict=True):
        writer.writerows(values(table, name if short.count(name) == 1 else table.name or table.title))
    return out.getvalue().rstrip("\n")


class Value(NamedTuple):
    """One value of a table, as a row of tidy data: `known` is how it is known, where that is said."""

    id: str
    table: str
    row: str
    column: str
    value: Any
    unit: str
    known: str
    text: str


def _called(table: Table) -> str:
    """A table's name: what its title says first."""
    return table.name or re.split(r"[:;,(]", table.title)[0].strip()


def _apart(names: Iterable[str]) -> Iterator[str]:
    """Names, where one repeats with a number; what has none stays so."""
    seen: dict[str, int] = {}
    for name in names:
        copies = seen[name] = seen.get(name, 0) + 1
        yield f"{name} ({copies})" if name and copies > 1 else name


def _labelled(table: Table) -> Iterator[tuple[str, Sequence[Any]]]:
    """The rows, told apart by their first columns; headings of rows are none."""
    labels = (
        ", ".join(str(_plain(each)) for each in row[: table.keys] if cell(each).value is not None) for row in table.rows
    )
    return ((label, row) for label, row in zip(_apart(labels), table.rows, strict=True) if label)


def values(table: Table, name: str) -> Iterator[Value]:
    """Every value of a table."""
    columns = [*_apart(map(_name, table.headings))]
    for label, row in _labelled(table):
        unit = cell(row[0]).unit
        how = next((str(cell(each).value) for each, what in zip(row, columns, strict=True) if what == KNOWN), "")
        cells = list(zip(columns, table.headings, row, strict=True))
        for column, heading, each in cells[table.keys :]:
            if column in ("", KNOWN):
                continue
            known, several = how or table.known.get(_name(heading), ""), cell(each).value
            for what, one in several.items() if isinstance(several, Mapping) else (("", each),):
                found, named = _plain(one), f"{column}, {what}" if what else column
                if found in (None, ""):
                    continue
                of = "" if what else cell(heading).unit or unit
                said = (found, of, known, "") if isinstance(found, int | float) else ("", "", known, str(found))
                yield Value("/".join(filter(None, (name, label, named))), name, label, named, *said)


KNOWN = "evidence"  # the heading of how a row's figures are known


def _plain(value: Any) -> Any:
    """A cell's value as plain data has it: a number, or a text; of several things, a space between."""
    found = cell(value).value
    if isinstance(found, Fraction):
        return found.numerator if found.denominator == 1 else float(found)
    if isinstance(found, bool):
        return "yes" if found else "no"
    return " ".join(map(str, found)) if isinstance(found, list | tuple) else found


def as_markdown(report: Report) -> str:
    """GitHub tables under bold titles."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in cells) + " |"

    blocks = ["\n".join(report.header)] if report.header else []
    for table in report.tables:
        headings = [_name(heading) or cell(heading).text for heading in table.headings]
        rule = ("---" if i in table.left else "---:" for i in range(len(table.headings)))
        rows = (line(cell(value).text for value in row) for row in table.rows)
        body = "\n".join([line(headings), line(rule), *rows])
        blocks.append(f"**{table.title}**\n\n{body}" if table.title else body)
    return "\n\n".join(blocks)


def _unit(heading: Any) -> str:
    """A heading with the unit of its exact values."""
    unit = cell(heading).unit
    return f"{_name(heading)} ({unit})" if unit else _name(heading)


def _name(heading: Any) -> str:
    """A heading in one line, whatever a terminal needs."""
    return str(cell(heading).value)
