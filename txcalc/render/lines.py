"""A report as terminal lines: none wider than the terminal, no word cut, no number broken.

A table that is too wide gives way in this order: headings wrap at spaces, gaps narrow if that keeps each row in a line,
labels wrap at spaces and after the joints of a path, and at last columns go below each other, each block under the
labels of the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec.structs import replace

from txcalc.render.report import Report, Table, TableCell, cell

WIDE = 100  # columns of a terminal that shows optional columns of tables
GAP = 2  # between two columns; one where nothing else helps
# Where a long word may break; in a path at the dots rather than within names.
JOINTS = re.compile(r"(?:(?<=\w{2})(?:/|,(?=\D))|(?<=\w)\.(?=[a-z_*(]))(?=\S{3})")
# Spaces to break at only as a last resort: beside a =, and between a number and its unit.
BOUND = re.compile(r"(?<==) | (?==)|(?<=\d) (?=(?:[KMBTkGPE]?i?B?|%|[mµn]?s|h|days)(?!\w))")
LEAST = 8  # characters of a column of texts whose words are cut
FINE = re.compile(r"(?:(?<=\w{2})(?:[/_-]|,(?=\D))|(?<=\w)\.(?=[a-z_*(]))(?=\S{2})|(?<=[\w)\]³²])·(?=[\w(√])")

Line = list[tuple[str, str]]  # pieces of text, each with its style
Column = tuple[TableCell, ...]  # its heading, and its cells


def as_lines(report: Report, width: int) -> Iterator[Line]:
    """Header and tables for a terminal of this width."""

    def paragraph(text: str, style: str) -> Iterator[Line]:
        return ([(line, style)] for line in wrap(text, width))

    verdict = {True: "bold green", False: "bold red", None: "bold"}[report.good]
    for i, text in enumerate(report.header):
        yield from paragraph(text, "dim" if i else verdict)
    for k, table in enumerate(report.tables):
        yield from [[]] * bool(k or report.header)
        if table.title:
            yield from paragraph(table.title, "bold")
        table = _with_flat_headings(_without_optional(table, width), width)
        for number, (columns, widths, gap) in enumerate(blocks(table, width)):
            yield from [[]] * bool(number)
            yield from _block(table, columns, widths, gap)


def _without_optional(table: Table, width: int) -> Table:
    """A table without its optional columns, unless the terminal is wide and all columns fit side by side."""
    columns = [[*map(cell, column)] for column in zip(table.headings, *table.rows, strict=True)]
    fits = width >= WIDE and sum(map(_width, columns)) + GAP * (len(columns) - 1) <= width
    return table if fits or not table.optional else table.without_optional()


def _with_flat_headings(table: Table, width: int) -> Table:
    """A table whose headings are in one line, where there is room for that and its cells are in one line too."""
    headings = [head._replace(text=head.text.replace("\n", " ")) for head in map(cell, table.headings)]
    columns = list(zip(headings, *(map(cell, row) for row in table.rows), strict=True))
    room = sum(map(_width, columns)) + GAP * (len(columns) - 1) <= width
    return (
        replace(table, headings=headings)
        if room and not any("\n" in item.text for c in columns for item in c)
        else table
    )


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width`, each indented as the first. Breaks after a semicolon, at a space, at a joint of a long
    word, and anywhere only in a word without one."""
    lines = []
    for line in text.split("\n"):
        indent = min(len(line) - len(line.lstrip()), width // 2)
        while len(line) > width:
            loose = BOUND.sub("=", line)
            spaces = (
                loose.rfind("; ", width // 2, width + 1) + 1,
                loose.rfind(" ", 0, width + 1),
                line.rfind(" ", 0, width + 1),
            )
            at = next((space for space in spaces if space > indent), 0) or _joint(line, indent, width)
            lines.append(line[:at].rstrip())
            line = " " * indent + line[at:].lstrip()
        lines.append(line)
    return lines


def _joint(line: str, start: int, end: int) -> int:
    """Where to break a word too long for its line: at the last joint that fits."""
    for joints in (JOINTS, FINE):
        if ends := [at.end() for at in joints.finditer(line) if start < at.end() <= end]:
            return ends[-1]
    return end


def _longest(text: str, joints: re.Pattern[str]) -> int:
    """The width below which a word of a text would break elsewhere than at these joints."""
    longest = 0
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        for word in line.split():
            ends = [0, *(joint.end() for joint in joints.finditer(word)), len(word)]
            longest = max(longest, *(indent + end - start for start, end in pairwise(ends)))
    return longest


def _width(texts: Sequence[TableCell]) -> int:
    return max((len(line) for text in texts for line in text.text.split("\n")), default=0)


Chosen = tuple[list[int], list[int], int]  # numbers of columns, their widths, the gap


def blocks(table: Table, width: int) -> list[Chosen]:
    """Splits the columns into blocks that fit the width: one if possible, otherwise as few as possible."""
    rows = [[cell(value) for value in row] for row in (table.headings, *table.rows)]
    body = [row for row in rows[1:] if not is_label(row)]  # a label has a line to itself
    columns: list[Column] = list(zip(*(rows[:1] + (body or rows[1:])), strict=True))
    labels = list(range(table.keys))
    groups: list[list[int]] = []
    for i in range(table.keys, len(columns)):  # a column without a heading belongs to the one before it
        if columns[i][0].text or not groups:
            groups.append([])
        groups[-1].append(i)
    for number in range(1, max(2, len(groups) + 1)):
        shares = _shared_out(groups, number)
        fitted = [_fit(table, columns, [*labels, *share], width) for share in shares]
        if all(fits for _, fits in fitted):
            break
    return [columns for columns, _ in fitted]


def is_label(row: Sequence[TableCell]) -> bool:
    """Whether a row is the label of those below it."""
    return len(row) > 1 and not any(cell.text for cell in row[1:])


def _shared_out(groups: list[list[int]], number: int) -> list[list[int]]:
    """Distributes groups of columns evenly over `number` blocks."""
    ends = [round(len(groups) * k / number) for k in range(number + 1)]
    return [[i for group in groups[start:end] for i in group] for start, end in pairwise(ends)]


def _fit(table: Table, columns: list[Column], chosen: list[int], width: int) -> tuple[Chosen, bool]:
    """Widths of columns printed side by side, and whether they fit."""
    texts = [k for k, i in enumerate(chosen) if i in table.left]
    for joints in (JOINTS, FINE):
        widths = [*(natural := [_width(columns[i]) for i in chosen])]
        least, unbroken = [], 0
        for i in chosen:
            heading, *cells = columns[i]
            body = max((_longest(cell.text, joints) for cell in cells), default=0) if i in table.left else _width(cells)
            least.append(max(_longest(heading.text, FINE), body))
            unbroken += max(least[-1], _width(cells))
        gaps = len(chosen) - 1
        narrow = sum(least) + GAP * gaps > width or unbroken + gaps <= width < unbroken + GAP * gaps
        gap = 1 if narrow else GAP
        most = width - gap * gaps
        while sum(widths) > most and (shrinkable := [k for k in range(len(chosen)) if widths[k] > least[k]]):
            k = _cheapest(shrinkable, columns, chosen, widths)
            widths[k] = max(least[k], _wrapped_width(columns[chosen[k]], widths[k] - 1, chosen[k] in table.left))
        if sum(widths) <= most:
            for k in sorted(range(len(chosen)), key=lambda k: natural[k] - widths[k]):
                if natural[k] - widths[k] <= most - sum(widths):
                    widths[k] = natural[k]
            return (chosen, widths, gap), True
    while sum(widths) > most and (shrinkable := [k for k in texts if widths[k] > LEAST]):
        widths[max(shrinkable, key=widths.__getitem__)] -= 1
    return (chosen, widths, gap), False


def _wrapped_width(column: Column, width: int, is_text: bool) -> int:
    """The longest line of a column whose heading, and texts, wrap at `width`."""
    heading, *cells = column
    wrapped, unwrapped = (column, []) if is_text else ((heading,), cells)
    return max(_width(unwrapped), *(len(line) for text in wrapped for line in wrap(text.text, width)))


def _cheapest(shrinkable: list[int], columns: list[Column], chosen: list[int], widths: list[int]) -> int:
    """The column to narrow by one: the one in which that wraps the fewest rows; among equals the wider."""

    def price(k: int) -> tuple[int, int]:
        return sum(_width((cell,)) >= widths[k] for cell in columns[chosen[k]][1:]), -widths[k]

    return min(shrinkable, key=price)


def _block(table: Table, chosen: list[int], widths: list[int], gap: int) -> Iterator[Line]:
    for number, whole in enumerate((table.headings, *table.rows)):
        row = [cell(whole[i]) for i in chosen]
        if not number and not any(c.text for c in row):
            yield _rule(widths, gap)
            continue
        if number and is_label([cell(value) for value in whole]):
            lines = wrap(row[0].text, max(LEAST, sum(widths) + gap * (len(widths) - 1)))
            yield from ([(text, row[0].style)] for text in lines)
            continue
        last = table.total and number == len(table.rows)
        if last:
            yield []
        wraps = [i in table.left or not number for i in chosen]
        blocks = [wrap(c.text, n) if w else c.text.split("\n") for c, n, w in zip(row, widths, wraps, strict=True)]
        height = max(map(len, blocks))
        for k in range(height):
            line: Line = []
            for j, (block, c) in enumerate(zip(blocks, row, strict=True)):
                # Headings align to the bottom, cells to the top.
                at = k if number else k - height + len(block)
                text = block[at] if 0 <= at < len(block) else ""
                text = text.ljust(widths[j]) if chosen[j] in table.left else text.rjust(widths[j])
                style = "bold" if last or not number else c.style
                line += [(" " * gap, ""), (text, style)] if j else [(text, style)]
            yield line
        if not number:
            yield _rule(widths, gap)


def _rule(widths: list[int], gap: int) -> Line:
    return [("─" * (sum(widths) + gap * (len(widths) - 1)), "")]
