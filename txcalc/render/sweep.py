"""The report of `txcalc sweep`, for grids small enough to be read; larger ones are streamed as CSV."""

from __future__ import annotations

from typing import Any

from txcalc.render.report import Report, Table, exact
from txcalc.render.show import workload
from txcalc.sweep import COLUMNS, Sweep
from txcalc.units import iec, short


def columns(sweep: Sweep) -> list[str]:
    """The names of the columns, the axes' first."""
    return [*(axis.name for axis in sweep.axes), *sweep.quantities]


def notes(sweep: Sweep) -> list[str]:
    """What is worth knowing about the model, and where an axis is ignored."""
    model = sweep.base
    said = [*(f"assumed {assumption}" for assumption in model.assumptions), *model.notes]
    if model.fixed_length and "tokens" in sweep.places:
        said.append("the number of positions is part of the model: tokens are ignored")
    return said


def report(sweep: Sweep) -> Report:
    """Every point a row: axes, and each quantity exact and short."""
    model, work = sweep.base, sweep.first.work
    fixed = {k: v for k, v in workload(model, sweep.first).items() if k not in sweep.places and v is not None}
    convention = {
        "flops_per_mac": 2,
        "logits": "last" if work.last_logits else "all",
        "mla": ("absorbed" if work.absorbed else "expanded") if model.has_latents else None,
    }
    names, width = columns(sweep), len(sweep.axes)
    rows = [row for block in sweep for row in zip(*(column.tolist() for column in block), strict=True)]
    data = {
        "schema": "txcalc/sweep/1",
        "model": {"name": model.name, "kind": model.kind, "source": model.spec["source"] or model.origin},
        "workload": fixed,
        "convention": convention,
        "axes": [{"name": axis.name, "values": list(axis.values)} for axis in sweep.axes],
        "quantities": {name: COLUMNS[name] for name in sweep.quantities},
        "rows": [dict(zip(names, row, strict=True)) for row in rows],
    }
    words = [f"{key} {value:,}" for key, value in fixed.items()]
    words += ["2 FLOPs a multiply-add", f"{convention['logits']} logits"]
    words += [f"MLA {convention['mla']}"] if model.has_latents else []
    grid = " × ".join(f"{axis.name} ({len(axis.values):,})" for axis in sweep.axes)
    meaning = [f"{name}: {COLUMNS[name]}" for name in sweep.quantities]
    header = [f"{model.name} over {grid}", "; ".join(words), *meaning]
    headings = [*names[:width], *(heading for name in sweep.quantities for heading in (name, ""))]
    cells = [[*map(exact, row[:width]), *_figures(sweep, row[width:])] for row in rows]
    return Report(data, [Table("", headings, cells, left=frozenset())], header, notes(sweep))


def _figures(sweep: Sweep, values: tuple[int, ...]) -> list[Any]:
    pairs = zip(sweep.quantities, values, strict=True)
    return [cell for name, value in pairs for cell in (exact(value), iec(value) if "bytes" in name else short(value))]
