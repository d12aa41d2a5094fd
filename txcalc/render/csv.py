"""A report as CSV: exact values, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from txcalc.render.report import Report, Table, cell, heading_name


def as_csv(report: Report) -> str:
    """A single table unchanged; several, or a `crossed` one, as tidy data: a row per value, each with an id.

    A column without a heading repeats the one before it, and a row without a label is a subheading; both are left out.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if len(report.tables) == 1 and not report.tables[0].crossed:
        (table,) = report.tables
        headings = [f"{heading_name(h)} ({cell(h).unit})" if cell(h).unit else heading_name(h) for h in table.headings]
        for label, row in (("id", headings), *_labelled(table)):
            cells = zip(table.headings, row, strict=True)
            writer.writerow(map(inert, [label, *(_plain(value) for name, value in cells if heading_name(name))]))
        return out.getvalue().rstrip("\n")
    writer.writerow(Value._fields)
    short = [table.name or re.split(r"[:;,(]", table.title)[0].strip() for table in report.tables]
    for table, name in zip(report.tables, short, strict=True):
        rows = values(table, name if short.count(name) == 1 else table.name or table.title)
        writer.writerows(map(inert, row) for row in rows)
    return out.getvalue().rstrip("\n")


def inert(value: object) -> object:
    """A value of a CSV cell; a text that a spreadsheet would run as a formula begins with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


class Value(NamedTuple):
    """One value of a table in tidy data; `known`: how it is known, if stated."""

    id: str
    table: str
    row: str
    column: str
    value: Any
    unit: str
    known: str
    text: str


def _apart(names: Iterable[str]) -> Iterator[str]:
    """Numbers repeated names; empty ones stay."""
    counts: dict[str, int] = {}
    for name in names:
        copies = counts[name] = counts.get(name, 0) + 1
        yield f"{name} ({copies})" if name and copies > 1 else name


def _labelled(table: Table) -> Iterator[tuple[str, Sequence[object]]]:
    """Labelled rows; subheadings are left out."""
    labels = (
        ", ".join(str(_plain(value)) for value in row[: table.keys] if cell(value).value is not None)
        for row in table.rows
    )
    return ((label, row) for label, row in zip(_apart(labels), table.rows, strict=True) if label)


def values(table: Table, name: str) -> Iterator[Value]:
    """Every value of a table."""
    columns = [*_apart(map(heading_name, table.headings))]
    for label, row in _labelled(table):
        unit = cell(row[0]).unit
        how = next(
            (str(cell(evidence).value) for evidence, what in zip(row, columns, strict=True) if what == KNOWN), ""
        )
        cells = list(zip(columns, table.headings, row, strict=True))
        for column, heading, content in cells[table.keys :]:
            if column in ("", KNOWN):
                continue
            known, several = how or table.known.get(heading_name(heading), ""), cell(content).value
            for what, value in several.items() if isinstance(several, Mapping) else (("", content),):
                number, text = _plain(value), f"{column}, {what}" if what else column
                if number in (None, ""):
                    continue
                of = "" if what else cell(heading).unit or unit
                fields = (number, of, known, "") if isinstance(number, int | float) else ("", "", known, str(number))
                yield Value("/".join(filter(None, (name, label, text))), name, label, text, *fields)


KNOWN = "evidence"  # the heading of how a row's figures are known


def _plain(value: object) -> object:
    """A cell's value as a number or text."""
    plain = cell(value).value
    if isinstance(plain, Fraction):
        return plain.numerator if plain.denominator == 1 else float(plain)
    if isinstance(plain, bool):
        return "yes" if plain else "no"
    return " ".join(map(str, plain)) if isinstance(plain, list | tuple) else plain
