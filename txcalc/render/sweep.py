"""The report of `txcalc sweep`, for small grids; larger ones are streamed as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from txcalc.render.report import DataReport, Table, TableCell, exact, percent
from txcalc.render.show import workload
from txcalc.sweeps.sweep import COLUMNS, Sweep, meaning
from txcalc.units import iec, short

BESIDE = 5  # kinds per table of 80 columns


def columns(sweep: Sweep) -> list[str]:
    """Column names: axes, dependent sizes, quantities."""
    return [*sweep.names, *sweep.quantities]


def notes(sweep: Sweep) -> list[str]:
    """Notes on the model, ignored axes, and rounding so far."""
    model = sweep.base
    said = [*(f"assumed {assumption}" for assumption in model.assumptions), *model.notes]
    if model.fixed_length and "tokens" in sweep.places:
        said.append("the model fixes the number of positions: tokens are ignored")
    for follower in sweep.followers:
        rounded = ", rounded to the nearest whole number" if follower.uneven else ""
        said.append(f"{follower.name} = {follower.expression.text} at every point{rounded}")
    return said


def report(*sweeps: Sweep) -> DataReport:
    """One row per point: the model if several, axes, and each quantity exact and short. All sweeps have the same axes
    and quantities."""
    sweep, several = sweeps[0], len(sweeps) > 1
    work = sweep.first.work
    fixed = {k: v for k, v in workload(sweep.base, sweep.first).items() if k not in sweep.places and v is not None}
    latents = any(each.base.has_latents for each in sweeps)
    convention = {
        "flops_per_mac": 2,
        "logits": "last" if work.last_logits else "all",
        "mla": ("absorbed" if work.absorbed else "expanded") if latents else None,
    }
    names, width = columns(sweep), len(sweep.names)
    points = [
        (each, row)
        for each in sweeps
        for block in each
        for row in zip(*(column.tolist() for column in block), strict=True)
    ]
    models = [
        {"name": each.base.name, "kind": each.base.kind, "source": each.base.spec["source"] or each.base.origin}
        for each in sweeps
    ]
    data = {
        "schema": "txcalc/sweep/1",
        **({"models": models} if several else {"model": models[0]}),
        "workload": fixed,
        "convention": convention,
        "axes": [{"name": axis.name, "values": list(axis.values)} for axis in sweep.axes],
        **({"follow": {f.name: f.expression.text for f in sweep.followers}} if sweep.followers else {}),
        "quantities": {name: meaning(name) for name in sweep.quantities},
        "rows": [
            {**({"model": each.base.name} if several else {}), **dict(zip(names, row, strict=True))}
            for each, row in points
        ],
    }
    words = [f"{key} {value:,}" for key, value in fixed.items()]
    words += ["2 FLOPs per multiply-add", f"{convention['logits']} logits"]
    words += [f"MLA {convention['mla']}"] if latents else []
    grid = " × ".join(f"{axis.name} ({len(axis.values):,})" for axis in sweep.axes)
    meanings = [
        f"{name}: {what}" for name, what in COLUMNS.items() if name in {q.split(".")[0] for q in sweep.quantities}
    ]
    header = [f"{', '.join(each.base.name for each in sweeps)} over {grid}", "; ".join(words), *meanings]
    if any("." in quantity for quantity in sweep.quantities):
        return DataReport(data, list(_apart(sweeps, points)), header, _notes(sweeps))
    first = ["model"] if several else []
    headings = [*first, *names[:width], *(heading for name in sweep.quantities for heading in (name, ""))]
    cells = [
        [*([each.base.name] if several else []), *map(exact, row[:width]), *_figures(sweep, row[width:])]
        for each, row in points
    ]
    left = frozenset({0} if several else ())
    return DataReport(data, [Table("", headings, cells, left=left, keys=width + several)], header, _notes(sweeps))


def _apart(sweeps: Sequence[Sweep], points: Sequence[tuple[Sweep, tuple[int, ...]]]) -> Iterator[Table]:
    """One table per quantity and model: kinds of parts as columns, with their shares below."""
    for what in dict.fromkeys(quantity.partition(".")[0] for quantity in sweeps[0].quantities):
        for sweep in sweeps:
            own = [row for each, row in points if each is sweep]
            width = len(sweep.names)
            kinds = [
                (width + i, quantity.partition(".")[2])
                for i, quantity in enumerate(sweep.quantities)
                if quantity.partition(".")[0] == what and any(row[width + i] for row in own)
            ]
            title = f"{sweep.base.name}: {what}" if len(sweeps) > 1 else what
            for start in range(0, max(1, len(kinds)), BESIDE):
                shown = kinds[start : start + BESIDE]
                rows = []
                for row in own:
                    whole = sum(row[i] for i, _ in kinds)
                    cells = [
                        TableCell(row[i], f"{_short(what, row[i])}\n{percent(row[i], whole).text}") for i, _ in shown
                    ]
                    rows.append([*map(exact, row[:width]), *cells, TableCell(whole, _short(what, whole))])
                headings = [*sweep.names, *(TableCell(kind, kind.replace("_", "\n")) for _, kind in shown), "total"]
                yield Table(
                    title + (", continued" if start else ""), headings, rows, left=frozenset(), keys=len(sweep.names)
                )


def _short(quantity: str, value: int) -> str:
    return iec(value, digits=3) if "bytes" in quantity else short(value)


def _notes(sweeps: Sequence[Sweep]) -> list[str]:
    if len(sweeps) == 1:
        return notes(sweeps[0])
    return [f"{each.base.name}: {note}" for each in sweeps for note in notes(each)]


def _figures(sweep: Sweep, values: tuple[int, ...]) -> list[Any]:
    pairs = zip(sweep.quantities, values, strict=True)
    return [cell for name, value in pairs for cell in (exact(value), iec(value) if "bytes" in name else short(value))]
