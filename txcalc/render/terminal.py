"""Pictures as text, for terminals and text files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from txcalc.questions.pictures import Panel, Picture, PlotAxis
from txcalc.render.draw import extent, fold, shorten, ticks, tracks

HEIGHT = 16  # rows of a panel
# Terminal names of the eight colours, in the palette's order.
NAMES = ("blue", "red", "green", "magenta", "yellow", "cyan", "white", "bright_black")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
LAYERS = "█▓▒░#+=~:"  # of a stack


def as_text(picture: Picture, width: int, coloured: bool) -> str:
    """A picture in characters, at most `width` columns wide; lines carry letters, so it reads without colour."""
    lines = [shorten(picture.title), *fold(picture.convention, width)]
    for panel in picture.panels:
        lines += ["", *(fold(panel.title, width) if panel.title else [])]
        if panel.kind == "spans":
            lines += _span_lines(panel, width)
        else:
            lines += _bar_lines(panel, width) if panel.kind == "bars" else _canvas_lines(panel, width, coloured)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _span_lines(panel: Panel, width: int) -> Iterator[str]:
    """One row per track: each column shows the first letter of the label active at its middle."""
    number, end = tracks(panel), max(high for line in panel.series for _, high in line.xs)
    room = max(10, width - len(str(number)) - 2)
    for track in range(number):
        row = ["·"] * room
        for line in panel.series:
            for (low, high), y in zip(line.xs, line.ys, strict=True):
                if y == track:
                    first, last = math.ceil(room * low / end - 0.5), math.ceil(room * high / end - 0.5)
                    row[first:last] = line.label[0].upper() * (last - first)
        yield f"{track:>{len(str(number))}}  {''.join(row)}"
    yield f"{panel.x.label}: {panel.x.write(end)}; " + ", ".join(
        f"{line.label[0].upper()} {line.label}" for line in panel.series
    )


def _bar_lines(panel: Panel, width: int) -> Iterator[str]:
    yield panel.y.label
    names = [shorten(name) for name in panel.series[0].xs]
    kinds = [line.label for line in panel.series]
    left, kind = min(max(map(len, names)), width * 2 // 5), max(map(len, kinds))
    room = max(10, width - left - kind - 14)
    most = max(Fraction(y or 0) for line in panel.series for y in line.ys) or 1
    for i, name in enumerate(names):
        for line in panel.series:
            value = line.ys[i]
            bar = "█" * round(room * Fraction(value) / most) or "▏" if value else ""
            written = "" if value is None else panel.y.write(value)
            head = name if line is panel.series[0] else ""
            yield f"{shorten(head, left):<{left}}  {line.label:<{kind}}  {bar} {written}"


def _canvas_lines(panel: Panel, width: int, coloured: bool) -> Iterator[str]:
    from plotille import Canvas

    (left, right), (low, high) = extent(panel)
    at = {round((HEIGHT - 1) * _part(panel.y, tick, low, high)): panel.y.write(tick) for tick in
          ticks(panel.y, low, high, HEIGHT // 2)}  # fmt: skip
    margin = max(map(len, at.values()), default=0)
    columns = max(20, width - margin - 2)
    canvas = Canvas(columns, HEIGHT, mode="names", no_color=not coloured)

    def place(x: object, y: object) -> tuple[float, float]:
        across, up = _part(panel.x, x, left, right), _part(panel.y, y, low, high)
        return across * canvas.xmax_inside, up * canvas.ymax_inside

    legend = list(_layers(canvas, panel, place, columns) if panel.kind == "stack" else _letters(canvas, panel, place))
    legend += _draw_notes(canvas, panel, place, (left, low), high)
    yield panel.y.label
    rows = canvas.plot("\n").replace("⠀", " ").split("\n")
    for row, text in zip(range(HEIGHT - 1, -1, -1), rows, strict=True):
        tick = at.get(row)
        yield f"{tick or '':>{margin}} {'┤' if tick else '│'}{text}"
    yield from _ruler(panel.x, left, right, margin, columns)
    yield f"{panel.x.label:>{margin + 2 + columns}}"
    for text in legend:
        yield from fold(text, width)


def _part(axis: PlotAxis, value: Any, low: float, high: float) -> float:
    """The position of a value on its axis, from 0 to 1."""
    if axis.log:
        return math.log(float(value) / low) / math.log(high / low)
    return (float(value) - low) / (high - low)


def _ruler(axis: PlotAxis, low: float, high: float, margin: int, columns: int) -> Iterator[str]:
    """The axis below a canvas: a line with ticks, and their labels."""
    line, labels, end = ["─"] * columns, [" "] * (columns + margin + 2), 0
    for tick in ticks(axis, low, high, max(2, columns // 8)):
        column = round((columns - 1) * _part(axis, tick, low, high))
        text = axis.write(tick)
        start = min(margin + 2 + column - len(text) // 2, len(labels) - len(text))
        if start < end:
            continue
        line[column] = "┬"
        labels[start : start + len(text)] = text
        end = start + len(text) + 1
    yield " " * (margin + 1) + "└" + "".join(line)
    yield "".join(labels)


def _letters(canvas: Any, panel: Panel, place: Any) -> Iterator[str]:
    """Dotted lines, each with its letter wherever there is room."""
    letters: dict[int, str] = {}
    for i, line in enumerate(panel.series):
        colour = NAMES[line.of % len(NAMES)]
        points = [place(x, y) if y is not None else None for x, y in zip(line.xs, line.ys, strict=True)]
        for left, right in pairwise(points):
            if left and right:
                canvas.line(*left, *right, color=colour)
        if line.label:
            letters[i] = LETTERS[len(letters) % len(LETTERS)]
            yield f"{letters[i]}  {shorten(line.label)}"
    filled: set[tuple[int, int]] = set()
    for i, letter in letters.items():
        line = panel.series[i]
        spots = [place(x, y) for x, y in zip(line.xs, line.ys, strict=True) if y is not None]
        for k in range(3):  # spread, and where no other line has its own
            start = (2 * k + 1) * len(spots) // 6 + i % 3
            nearby = [(spots[0][0] + n / canvas.width, spots[0][1]) for n in range(-3, 4) if len(spots) == 1 and not k]
            for x, y in [*spots[start:], *reversed(spots[:start]), *nearby]:
                cell = int(x * canvas.width), int(y * canvas.height)
                if cell not in filled:
                    filled.add(cell)
                    canvas.point(x, y, color=NAMES[line.of % len(NAMES)], marker=letter)
                    break


def _layers(canvas: Any, panel: Panel, place: Any, columns: int) -> Iterator[str]:
    """Layers, drawn with the signs of the report's bars."""
    xs = [place(x, 1)[0] for x in panel.series[0].xs]
    below = [Fraction(0)] * len(xs)
    signs = [LAYERS[line.of % len(LAYERS)] for line in panel.series]
    for line, sign in zip(panel.series, signs, strict=True):
        above = [base + Fraction(y) for base, y in zip(below, line.ys, strict=True)]
        for column in range(columns):
            x = (column + 0.5) / columns
            floor, ceiling = (_height_at(x, xs, layer, place) for layer in (below, above))
            for row in range(HEIGHT):
                middle = (row + 0.5) / HEIGHT
                if floor <= middle < ceiling:
                    canvas.point(x, middle, color=NAMES[line.of % len(NAMES)], marker=sign)
        below = above
        yield f"{sign}  {line.label}"


def _height_at(x: float, xs: Sequence[float], layer: Sequence[object], place: Any) -> float:
    """The interpolated height of a layer on the canvas; that of a single point is its own."""
    if len(xs) == 1:
        return place(1, layer[0])[1]  # type: ignore[no-any-return]
    i = next((i for i, (left, right) in enumerate(pairwise(xs)) if left <= x <= right), len(xs) - 2)
    left, right = place(1, layer[i])[1], place(1, layer[i + 1])[1]
    return left + (right - left) * (x - xs[i]) / (xs[i + 1] - xs[i])  # type: ignore[no-any-return]


def _draw_notes(canvas: Any, panel: Panel, place: Any, start: tuple[float, float], high: float) -> Iterator[str]:
    """Marks: points by number, lengths and levels by lines."""
    number = 0
    for mark in panel.marks:
        if mark.x is None:
            _, y = place(start[0], mark.y)
            for column in range(canvas.width):
                canvas.point((column + 0.5) / canvas.width, y, marker="═")
            yield f"═  {mark.label}"
            continue
        number += 1
        if mark.y is None:
            x, _ = place(mark.x, start[1])
            for row in range(canvas.height - 1):
                canvas.point(x, (row + 0.5) / canvas.height, marker="┊")
            canvas.point(x, place(mark.x, high)[1], marker=str(number))
        else:
            canvas.point(*place(mark.x, mark.y), marker=str(number))
        yield f"{number}  {mark.label}"
