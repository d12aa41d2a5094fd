"""The tables of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from txcalc.questions.stored import CheckpointInfo, ShowStored, TensorRow, TensorSizes
from txcalc.render.report import Report, Table, TableCell, cell, percent, rounded
from txcalc.units import iec

MAX_ROWS = 40  # of a table; JSON has them all
EXTRA = {"tied": "tied copies", "buffer": "buffers", "scale": "scales of a quantiser"}


def report(answer: ShowStored, form: str) -> Report:
    """A checkpoint without a config.json: what it holds, and no model."""
    held = answer.checkpoint
    header = [f"{answer.model.name}: {held.tensors:,} tensors, {held.elements:,} elements, {iec(held.bytes)}"]
    return Report([_types(held), _names("By name", held.by_name)], header, answer.notes)


def tables(held: CheckpointInfo) -> list[Table]:
    """The checkpoint of a model: bytes by type, and what is on one side only."""
    found = [_types(held)]
    if (check := held.check) is None:
        return found
    extra = [
        [EXTRA[why], row.name, _shape(row.shape), row.dtype, cell(row.elements)]
        for why, rows in check.extra.items()
        for row in rows
    ]
    if extra:
        title = "Explained, and no parameters of their own"
        found.append(_cut(title, ("what", "tensor", "shape", "type", "elements"), extra, frozenset({0, 1, 3})))
    if check.missing:
        lacking = [[row.path, _shape(row.shape), cell(row.copies), cell(row.elements)] for row in check.missing]
        headings = ("part", "shape", "copies", "parameters")
        found.append(_cut("Described, and not in the checkpoint", headings, lacking))
    if check.unexplained:
        found.append(_names("In the checkpoint, and not described", check.unexplained))
    return found


def _types(held: CheckpointInfo) -> Table:
    whole = TensorSizes(held.tensors, held.elements, held.bytes)
    rows = [_sizes(dtype, size, whole) for dtype, size in held.by_dtype.items()]
    rows.append(_sizes("total", whole, whole))
    several = f"{held.files:,} file{'s' * (held.files > 1)}"
    files = f"{held.files:,} of {held.of_files:,} files" if held.of_files > held.files else several
    headings = ("type", "tensors", "elements", "", "bits each", "bytes", TableCell("", "size"), "share")
    return Table(f"Checkpoint ({held.format}, {files})", headings, rows, total=True)


def _sizes(name: str, size: TensorSizes, whole: TensorSizes) -> list[Any]:
    each = Fraction(8 * size.bytes, size.elements) if size.elements else None
    bits = TableCell(None, "") if each is None else TableCell(float(each), f"{float(each):.4g}")
    stored = [cell(size.tensors), cell(size.elements), rounded(size.elements), bits, cell(size.bytes), iec(size.bytes)]
    return [name, *stored, percent(size.bytes, whole.bytes)]


def _names(title: str, tensors: Sequence[TensorRow]) -> Table:
    rows = [
        [row.name, cell(row.tensors), _shape(row.shape), row.dtype, cell(row.elements), cell(row.bytes)]
        for row in tensors
    ]
    return _cut(title, ("tensor", "times", "shape", "type", "elements", "bytes"), rows, frozenset({0, 3}))


def _shape(shape: tuple[int, ...]) -> TableCell:
    return TableCell(list(shape), " × ".join(f"{n:,}" for n in shape))


def _cut(title: str, headings: tuple[str, ...], rows: list[list[Any]], left: frozenset[int] = frozenset({0})) -> Table:
    """The first rows, and in the title how many there are where that is not all of them."""
    more = f" (the first {MAX_ROWS} of {len(rows):,})" if len(rows) > MAX_ROWS else ""
    return Table(title + more, headings, rows[:MAX_ROWS], left=left)
