"""A report: what a command found, once as data (JSON) and once as tables for people, CSV, Markdown and LaTeX.

A cell is a value with the text that shows it; CSV and JSON get the value, exact, the others the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from txcalc.units import short


class Cell(NamedTuple):
    """A value and how people see it; a heading's `unit` is that of the exact values under or beside it, for CSV."""

    value: Any
    text: str
    style: str = ""
    unit: str = ""


def column(name: str, unit: str) -> Cell:
    """The heading of a column, or of a row, of values in a unit, which other formats than CSV show beside each."""
    return Cell(name, name, unit=unit)


def exact(number: Any) -> Cell:
    """An integer with separators."""
    return Cell(number, f"{number:,}" if isinstance(number, int) else str(number))


def rounded(number: Any, unit: str = "") -> Cell:
    """Three significant digits: 8.03 B."""
    return Cell(number, f"{short(number)} {unit}".rstrip())


def percent(part: Any, whole: Any) -> Cell:
    """A share of a whole, to a tenth; a share of nothing is empty."""
    if not whole:
        return Cell(None, "")
    share = Fraction(part) / Fraction(whole)
    return Cell(float(share), f"{float(100 * share):.1f} %")


def error(got: Any, truth: Any) -> Cell:
    """How far a number is from the truth, signed."""
    if not truth:
        return Cell(None, "")
    off = Fraction(got) / Fraction(truth) - 1
    text = "exact" if off == 0 else f"{float(100 * off):+.2f} %"
    style = "green" if off == 0 else "red" if abs(off) > Fraction(1, 10) else "yellow"
    return Cell(float(off), text, style)


def cell(value: Any) -> Cell:
    """A plain value as a cell: an int with separators, anything else as it is."""
    if isinstance(value, Cell):
        return value
    if value is None:
        return Cell(None, "")
    return exact(value) if type(value) is int else Cell(value, str(value))


def times(copies: int) -> Cell:
    """How many equal things a row stands for; one goes without saying."""
    return Cell(copies, f"{copies:,}" if copies > 1 else "")


@dataclass(frozen=True)
class Table:
    """Rows under headings; columns are right-aligned but the first (and those in `left`). `total` marks a last sum.

    A heading is a text, or a cell whose text is broken into lines; so may other cells be.
    """

    title: str
    headings: Sequence[Any]
    rows: Sequence[Sequence[Any]]
    left: frozenset[int] = frozenset({0})
    total: bool = False


@dataclass(frozen=True)
class Report:
    """What a command prints: `data` for JSON, `header` lines and `tables` for the rest, `notes` for stderr.

    `later` makes data that takes time, where JSON is asked for.
    """

    data: dict[str, Any]
    tables: Sequence[Table]
    header: Sequence[str] = ()
    notes: Sequence[str] = field(default=())
    later: Callable[[], dict[str, Any]] | None = None


def as_json(report: Report) -> str:
    """One object, exact integers, keys in the order of the schema."""
    import json

    data = {**report.data, **report.later()} if report.later else report.data
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)


def as_csv(report: Report) -> str:
    """One table: its headings and exact values. Several: rows of (table, row, column, value).

    A column without a heading repeats the one before it in short, and a row without a label is a heading of those below
    it; both are left out.
    """
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if len(report.tables) == 1:
        (table,) = report.tables
        headings = [_unit(heading) for heading in table.headings]
        for row in (headings, *(row for row in table.rows if cell(row[0]).value is not None)):
            writer.writerow([cell(value).value for name, value in zip(table.headings, row, strict=True) if _name(name)])
        return out.getvalue().rstrip("\n")
    writer.writerow(("table", "row", "column", "value"))
    for table in report.tables:
        for first, *rest in table.rows:
            label = _unit(first)
            for heading, value in zip(table.headings[1:], rest, strict=True):
                if _name(heading) and cell(value).value is not None:
                    writer.writerow((table.title, label, _unit(heading), cell(value).value))
    return out.getvalue().rstrip("\n")


def as_markdown(report: Report) -> str:
    """GitHub tables under bold titles."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in cells) + " |"

    blocks = ["\n".join(report.header)] if report.header else []
    for table in report.tables:
        rule = ("---" if i in table.left else "---:" for i in range(len(table.headings)))
        rows = (line(cell(value).text for value in row) for row in table.rows)
        body = "\n".join([line(map(_name, table.headings)), line(rule), *rows])
        blocks.append(f"**{table.title}**\n\n{body}" if table.title else body)
    return "\n\n".join(blocks)


_LATEX = str.maketrans(
    {"%": r"\%", "&": r"\&", "#": r"\#", "_": r"\_", "$": r"\$", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
    | {"^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "×": r"$\times$", "·": r"$\cdot$", "²": "$^2$"}
    | {"…": r"\dots{}", "–": "--", "≥": r"$\geq$", "→": r"$\to$", "−": "$-$", "⌈": r"$\lceil$", "⌉": r"$\rceil$"}
)


def latex_text(text: str) -> str:
    """Plain text as LaTeX writes it."""
    return text.translate(_LATEX)


def as_latex(report: Report) -> str:
    """A tabular for every table; a cell that is mathematics already (`$…$`) stays as it is."""
    blocks = []
    for table in report.tables:
        columns = "".join("l" if i in table.left else "r" for i in range(len(table.headings)))
        lines = [r"\begin{tabular}{" + columns + "}", r"\hline"]
        lines += [" & ".join(_name(heading).translate(_LATEX) for heading in table.headings) + r" \\", r"\hline"]
        for row in table.rows:
            texts = (cell(value).text.replace("\n", " ") for value in row)
            lines.append(" & ".join(t if t[:1] == t[-1:] == "$" else t.translate(_LATEX) for t in texts) + r" \\")
        blocks.append("\n".join([f"% {table.title}", *lines, r"\hline", r"\end{tabular}"]))
    return "\n\n".join(blocks)


GAP = 2  # between two columns
LABEL = 12  # to which a left-aligned column may shrink

Line = list[tuple[str, str]]  # pieces of text, each with its style


def as_lines(report: Report, width: int) -> Iterator[Line]:
    """The header and the tables for a terminal so wide. Labels wrap; a number is never cut, and makes a table wider."""

    def said(text: str, style: str) -> Iterator[Line]:
        return ([(line, style)] for line in _wrapped(text, width))

    for i, text in enumerate(report.header):
        yield from said(text, "dim" if i else "bold")
    for table in report.tables:
        yield []
        if table.title:
            yield from said(table.title, "bold")
        yield from _table(table, width)


def _table(table: Table, width: int) -> Iterator[Line]:
    rows = [[cell(value) for value in row] for row in (table.headings, *table.rows)]
    widths = [max(len(line) for c in column for line in c.text.split("\n")) for column in zip(*rows, strict=True)]
    room = width - GAP * (len(widths) - 1) - sum(n for i, n in enumerate(widths) if i not in table.left)
    left = {i: widths[i] for i in table.left}
    while sum(left.values()) > room and max(left.values(), default=0) > LABEL:
        left[max(left, key=left.__getitem__)] -= 1
    widths = [left.get(i, n) for i, n in enumerate(widths)]
    for number, row in enumerate(rows):
        last = table.total and number == len(rows) - 1
        if last:
            yield []
        blocks = [_wrapped(c.text, left[i]) if i in left else c.text.split("\n") for i, c in enumerate(row)]
        height = max(map(len, blocks))
        for k in range(height):
            line: Line = []
            for i, (block, c) in enumerate(zip(blocks, row, strict=True)):
                at = (
                    k if number else k - height + len(block)
                )  # headings stand on the rule, cells hang from their first line
                text = block[at] if 0 <= at < len(block) else ""
                text = text.ljust(widths[i]) if i in left else text.rjust(widths[i])
                style = "bold" if last or not number else c.style
                line += [(" " * GAP, ""), (text, style)] if i else [(text, style)]
            yield line
        if not number:
            yield [("─" * (sum(widths) + GAP * (len(widths) - 1)), "")]


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width`, each as indented as the first: cut at a space, after a dot of a path, or anywhere."""
    lines = []
    for line in text.split("\n"):
        indent = min(len(line) - len(line.lstrip()), width // 2)
        while len(line) > width:
            space, dot = line.rfind(" ", indent, width + 1), line.rfind(".", indent, width) + 1
            at = space if space > indent else dot if dot > indent else width
            lines.append(line[:at])
            line = " " * indent + line[at:].lstrip()
        lines.append(line)
    return lines


def _unit(heading: Any) -> str:
    """A heading with the unit of its exact values."""
    unit = cell(heading).unit
    return f"{_name(heading)} ({unit})" if unit else _name(heading)


def _name(heading: Any) -> str:
    """A heading in one line, whatever a terminal needs."""
    return str(cell(heading).value)
