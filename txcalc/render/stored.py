"""The tables of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from txcalc.checkpoint import StoredSize
from txcalc.questions.stored import CheckpointInfo, ShowStored, TensorRow
from txcalc.render.report import Report, Table, TableCell, percent, rounded
from txcalc.units import iec

MAX_ROWS = 40  # of a table; JSON has them all
EXTRA = {"tied": "tied copies", "buffer": "buffers", "scale": "scales of a quantiser"}


def report(answer: ShowStored, form: str) -> Report:
    """A checkpoint without a config.json: what it holds, and no model."""
    checkpoint = answer.checkpoint
    sizes = f"{checkpoint.tensors:,} tensors, {checkpoint.elements:,} elements, {iec(checkpoint.bytes)}"
    tables = [_types(checkpoint), _names("By name", checkpoint.by_name)]
    return Report(tables, [f"{answer.model.name}: {sizes}"], answer.notes)


def tables(checkpoint: CheckpointInfo) -> list[Table]:
    """The checkpoint of a model: bytes by type, and what is on one side only."""
    result = [_types(checkpoint)]
    if (check := checkpoint.check) is None:
        return result
    extra = [
        [EXTRA[why], row.name, _shape(row.shape), row.dtype, row.elements]
        for why, rows in check.extra.items()
        for row in rows
    ]
    if extra:
        title = "Explained, but not parameters"
        result.append(_cut(title, ("what", "tensor", "shape", "type", "elements"), extra, frozenset({0, 1, 3})))
    if check.missing:
        lacking = [[row.path, _shape(row.shape), row.copies, row.elements] for row in check.missing]
        headings = ("part", "shape", "copies", "parameters")
        result.append(_cut("In the description, not in the checkpoint", headings, lacking))
    if check.unexplained:
        result.append(_names("In the checkpoint, not in the description", check.unexplained))
    return result


def _types(checkpoint: CheckpointInfo) -> Table:
    whole = StoredSize(checkpoint.tensors, checkpoint.elements, checkpoint.bytes)
    rows = [_sizes(dtype, size, whole) for dtype, size in checkpoint.by_dtype.items()]
    rows.append(_sizes("total", whole, whole))
    several = f"{checkpoint.files:,} file{'s' * (checkpoint.files > 1)}"
    files = (
        f"{checkpoint.files:,} of {checkpoint.of_files:,} files" if checkpoint.of_files > checkpoint.files else several
    )
    headings = ("type", "tensors", "elements", "", "bits each", "bytes", TableCell("", "size"), "share")
    return Table(f"Checkpoint ({checkpoint.format}, {files})", headings, rows, total=True)


def _sizes(name: str, size: StoredSize, whole: StoredSize) -> list[Any]:
    density = Fraction(8 * size.bytes, size.elements) if size.elements else None
    bits = TableCell(None, "") if density is None else TableCell(float(density), f"{float(density):.4g}")
    stored = [size.tensors, size.elements, rounded(size.elements), bits, size.bytes, iec(size.bytes)]
    return [name, *stored, percent(size.bytes, whole.bytes)]


def _names(title: str, tensors: Sequence[TensorRow]) -> Table:
    rows = [[row.name, row.tensors, _shape(row.shape), row.dtype, row.elements, row.bytes] for row in tensors]
    return _cut(title, ("tensor", "times", "shape", "type", "elements", "bytes"), rows, frozenset({0, 3}))


def _shape(shape: tuple[int, ...]) -> TableCell:
    return TableCell(list(shape), " × ".join(f"{n:,}" for n in shape))


def _cut(title: str, headings: tuple[str, ...], rows: list[list[Any]], left: frozenset[int] = frozenset({0})) -> Table:
    """The first rows, and in the title how many there are where that is not all of them."""
    suffix = f" (the first {MAX_ROWS} of {len(rows):,})" if len(rows) > MAX_ROWS else ""
    return Table(title + suffix, headings, rows[:MAX_ROWS], left=left)
