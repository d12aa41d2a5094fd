"""The tables of `sweep`, for small grids; larger ones are streamed as CSV or Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from txcalc.questions.sweep import Sweep
from txcalc.render.report import Report, Table, TableCell, percent
from txcalc.sweeps.sweep import COLUMNS
from txcalc.units import iec, short

MAX_KINDS = 5  # in a table of 80 columns


def report(answer: Sweep, form: str) -> Report:
    """One row per point: the model if several, axes, and each quantity exact and short; or, by kind of part, a table
    per quantity and model."""
    rows = answer.rows
    workload = [f"{key} {value:,}" for key, value in answer.workload.items()]
    grid = " × ".join(f"{axis.name} ({len(axis.values):,})" for axis in answer.axes)
    quantities = {quantity.partition(".")[0] for quantity in answer.quantities}
    meanings = [f"{name}: {meaning}" for name, meaning in COLUMNS.items() if name in quantities]
    convention = "; ".join([*workload, str(answer.convention)])
    header = [f"{', '.join(answer.model_names)} over {grid}", convention, *meanings]
    tables = list(_by_kind(answer)) if answer.by_kind else [_points(answer, rows)]
    return Report(tables, header, answer.notes)


def _sizes(answer: Sweep) -> list[str]:
    """Names of the axes, and of sizes that follow them."""
    return [*(axis.name for axis in answer.axes), *(answer.follow or ())]


def _points(answer: Sweep, rows: Sequence[dict[str, Any]]) -> Table:
    labels = [*(["model"] if answer.models else []), *_sizes(answer)]
    headings = [*labels, *(heading for name in answer.quantities for heading in (name, ""))]
    cells = [
        [
            *(row[name] for name in labels),
            *(cell for name in answer.quantities for cell in (row[name], _short(name, row[name], 4))),
        ]
        for row in rows
    ]
    return Table("", headings, cells, left=frozenset({0} if answer.models else ()), keys=len(labels))


def _by_kind(answer: Sweep) -> Iterator[Table]:
    """One table per quantity and model: kinds of parts as columns, with their shares below."""
    sizes = _sizes(answer)
    for what in dict.fromkeys(quantity.partition(".")[0] for quantity in answer.quantities):
        start = 0
        for grid in answer.grids:
            rows = answer.rows[start : start + grid.points]
            start += grid.points
            names = [name for name in answer.quantities if name.partition(".")[0] == what]
            names = [name for name in names if any(row[name] for row in rows)]
            title = f"{grid.base.name}: {what}" if len(answer.grids) > 1 else what
            for first in range(0, max(1, len(names)), MAX_KINDS):
                columns = names[first : first + MAX_KINDS]
                kinds = [name.partition(".")[2] for name in columns]
                headings = [*sizes, *(TableCell(kind, kind.replace("_", "\n")) for kind in kinds), "total"]
                cells = []
                for row in rows:
                    total = answer.total(row, what)
                    cells.append([*(row[name] for name in sizes), *_kinds(row, columns, total, what)])
                suffix = ", continued" if first else ""
                yield Table(title + suffix, headings, cells, left=frozenset(), keys=len(sizes))


def _kinds(row: dict[str, Any], columns: Sequence[str], total: int, what: str) -> list[TableCell]:
    """Each kind with its share, and the total."""
    cells = [TableCell(row[name], f"{_short(what, row[name])}\n{percent(row[name], total).text}") for name in columns]
    return [*cells, TableCell(total, _short(what, total))]


def _short(quantity: str, value: int, digits: int = 3) -> str:
    return iec(value, digits=digits) if "bytes" in quantity else short(value)
