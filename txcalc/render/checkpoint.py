"""What a checkpoint holds, and how it agrees with the model: tables and JSON for `txcalc show`."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from txcalc.checkpoint import Checkpoint, CheckpointCheck, StoredSize, StoredTensor, TensorGroup, folded
from txcalc.render.report import DataReport, Table, TableCell, cell, percent, rounded
from txcalc.units import iec

MOST = 40  # rows of a table; JSON has them all
EXTRA = {"tied": "tied copies", "buffer": "buffers", "scale": "scales of a quantiser"}


def data(held: Checkpoint, found: CheckpointCheck | None) -> dict[str, Any]:
    """The JSON of a checkpoint: exact sizes by type and by name, and how it agrees with the model."""
    return {
        "format": held.form,
        "files": held.files,
        "of_files": max(held.of, held.files),
        **held.size._asdict(),
        "by_dtype": {dtype: size._asdict() for dtype, size in held.by_dtype().items()},
        "by_name": [_row(row) for row in folded(held.tensors)],
        "check": None
        if found is None
        else {
            "agrees": found.agrees,
            "expected": found.expected,
            "explained": found.explained,
            "by_kind": found.by_kind,
            "bits_per_weight": float(Fraction(8 * held.size.bytes, found.explained)) if found.explained else None,
            "extra": {why: _rows(tensors) for why, tensors in found.extra.items()},
            "unexplained": _rows(found.unexplained),
            "missing": [{"path": m.path, "shape": list(m.shape), "copies": m.copies} for m in found.missing],
        },
    }


def _rows(tensors: Iterable[StoredTensor]) -> list[dict[str, Any]]:
    return [_row(row) for row in folded(tensors)]


def _row(row: TensorGroup) -> dict[str, Any]:
    return {"name": row.name, "shape": list(row.shape), "dtype": row.dtype, **row.size._asdict()}


def tables(found: CheckpointCheck) -> list[Table]:
    """The checkpoint of a model: bytes by type, and what is on one side only."""
    stored = [_types(found.held)]
    extra = [(EXTRA[why], row) for why, tensors in found.extra.items() for row in folded(tensors)]
    if extra:
        rows = [[why, row.name, _shape(row.shape), row.dtype, cell(row.size.elements)] for why, row in extra]
        title = "Explained, and no parameters of their own"
        stored.append(_cut(title, ("what", "tensor", "shape", "type", "elements"), rows, frozenset({0, 1, 3})))
    if found.missing:
        lacks = [[m.path, _shape(m.shape), cell(m.copies), cell(m.elements)] for m in found.missing]
        stored.append(_cut("Described, and not in the checkpoint", ("part", "shape", "copies", "parameters"), lacks))
    if found.unexplained:
        stored.append(_names("In the checkpoint, and not described", found.unexplained))
    return stored


def report(held: Checkpoint) -> DataReport:
    """A checkpoint without a config.json: what it holds, and no model."""
    size = held.size
    missing = "no config.json beside it: sizes of heads, windows and experts per token are not in a checkpoint"
    facts = {
        "schema": "txcalc/show/1",
        "model": {"name": held.where, "kind": None, "source": held.where, "model_type": None},
        "checkpoint": data(held, None),
        "assumptions": [],
        "notes": [missing],
    }
    header = [f"{held.where}: {size.tensors:,} tensors, {size.elements:,} elements, {iec(size.bytes)}"]
    return DataReport(facts, [_types(held), _names("By name", held.tensors)], header, [missing])


def _types(held: Checkpoint) -> Table:
    rows = [_sizes(dtype, size, held.size) for dtype, size in held.by_dtype().items()]
    rows.append(_sizes("total", held.size, held.size))
    files = f"{held.files:,} of {held.of:,} files" if held.partial else f"{held.files:,} file{'s' * (held.files > 1)}"
    title = f"Checkpoint ({held.form}, {files})"
    headings = ("type", "tensors", "elements", "", "bits each", "bytes", TableCell("", "size"), "share")
    return Table(title, headings, rows, total=True)


def _sizes(name: str, size: StoredSize, whole: StoredSize) -> list[Any]:
    each = Fraction(8 * size.bytes, size.elements) if size.elements else None
    bits = TableCell(None, "") if each is None else TableCell(float(each), f"{float(each):.4g}")
    held = [cell(size.tensors), cell(size.elements), rounded(size.elements), bits, cell(size.bytes), iec(size.bytes)]
    return [name, *held, percent(size.bytes, whole.bytes)]


def _names(title: str, tensors: Iterable[StoredTensor]) -> Table:
    rows = [
        [row.name, cell(row.size.tensors), _shape(row.shape), row.dtype, cell(row.size.elements), cell(row.size.bytes)]
        for row in folded(tensors)
    ]
    return _cut(title, ("tensor", "times", "shape", "type", "elements", "bytes"), rows, frozenset({0, 3}))


def _shape(shape: tuple[int, ...]) -> TableCell:
    return TableCell(list(shape), " × ".join(f"{n:,}" for n in shape))


def _cut(title: str, headings: tuple[str, ...], rows: list[list[Any]], left: frozenset[int] = frozenset({0})) -> Table:
    """The first rows, and in the title how many there are where that is not all of them."""
    more = f" (the first {MOST} of {len(rows):,})" if len(rows) > MOST else ""
    return Table(title + more, headings, rows[:MOST], left=left)
