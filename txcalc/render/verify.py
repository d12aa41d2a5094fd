"""The report of `txcalc verify`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import asdict

from txcalc.render.measurements import near
from txcalc.render.report import DataReport, Table, TableCell, cell, times
from txcalc.verification.verdict import CheckedRow, Verdict


def report(verdicts: Sequence[Verdict], zero_cost: Sequence[str] = ()) -> DataReport:
    """All rows of one model; of several one line each, and the rows that differ."""
    data: dict[str, Any] = {
        "schema": "txcalc/verify/1",
        "ok": all(verdict.ok for verdict in verdicts),
        "models": [
            {
                "model": v.model,
                "ok": v.ok,
                "figures": len(v.rows),
                "unequal": len(v.failures),
                "notes": v.notes,
                "known": {quantity: known._asdict() for quantity, known in v.known.items()},
            }
            for v in verdicts
        ],
        "rows": [{"model": v.model, **_data(row)} for v in verdicts for row in v.rows],
    }
    if figures := [(v.model, asdict(figure)) for v in verdicts for figure in v.figures]:
        data["figures"] = [{"model": model, **figure} for model, figure in figures]
    if zero_cost:
        data["zero_cost_operators"] = list(zero_cost)
    header = [line for verdict in verdicts for line in _verdict(verdict)] if len(verdicts) == 1 else [_all(verdicts)]
    if len(verdicts) == 1:
        tables = _tables(verdicts[0].rows)
    else:
        tables = [_overview(verdicts), *(table for v in verdicts for table in _tables(v.failures, f"{v.model}: "))]
    tables += near(figures)
    if zero_cost:
        header.append("operators counted as free: " + ", ".join(zero_cost))
    notes = [note if len(verdicts) == 1 else f"{v.model}: {note}" for v in verdicts for note in v.notes]
    return DataReport(data, tables, header, notes, good=data["ok"])


def number(value: Any) -> Any:
    """A figure for JSON: an int, or a formula as text."""
    return value if isinstance(value, int | str) else formula(value)


def formula(value: Any) -> str:
    """A formula as text: 36,864·B·T² + 247,064,064·B·T."""
    from txcalc.notation import tidy, write

    try:
        return write(tidy(value))
    except (AttributeError, TypeError, ValueError):  # measured expressions need not be polynomials
        return str(value)


def _data(row: CheckedRow) -> dict[str, Any]:
    said = row._asdict()
    return {**said, "predicted": number(row.predicted), "measured": number(row.measured), "copies": row.copies}


def _cell(value: Any) -> TableCell:
    return cell(value) if isinstance(value, int | str) else TableCell(formula(value), formula(value))


def _difference(row: CheckedRow) -> TableCell:
    if row.equal:
        return TableCell(0, "0", "green")
    if isinstance(row.predicted, str):
        return TableCell("differs", "differs", "red")
    difference = row.measured - row.predicted
    return _cell(difference)._replace(style="red")


def _label(row: CheckedRow) -> str:
    return row.path or "whole model"


def _tables(rows: Iterable[CheckedRow], title: str = "") -> list[Table]:
    """One table per quantity and oracle."""
    groups: dict[tuple[str, str], dict[tuple[str, bool], list[CheckedRow]]] = {}
    for row in rows:
        groups.setdefault((row.quantity, row.oracle), {}).setdefault((row.path, row.equal), []).append(row)
    return [
        _table(f"{title}{quantity}, by {oracle}", [line for same in parts.values() for line in _folded(same)])
        for (quantity, oracle), parts in groups.items()
    ]


def _table(title: str, rows: Sequence[CheckedRow]) -> Table:
    """Sizes common to all rows are in the title, else in a column."""
    places = {row.where for row in rows}
    lines = [
        [_label(row), times(row.copies), _cell(row.predicted), _cell(row.measured), _difference(row), row.where]
        for row in rows
    ]
    headings = ("part", "×", "predicted", "measured", "difference", "sizes")
    texts = {2, 3} if any(not isinstance(row.predicted, int) for row in rows) else set()  # formulas may wrap
    if len(places) > 1:
        return Table(title, headings, lines, left=frozenset({0, 5, *texts}))
    (place,) = places
    title = f"{title}, {f'for {place}' if place else 'by path and shape'}"
    return Table(title, headings[:-1], [x[:-1] for x in lines], left=frozenset({0, *texts}))


def _folded(rows: Sequence[CheckedRow]) -> Sequence[CheckedRow]:
    """Equal rows of one part at several sizes as one; unequal rows stay."""
    last, sizes = rows[-1], len({row.where for row in rows})
    return [last._replace(where=f"{sizes} sizes, last {last.where}")] if last.equal and sizes > 1 else rows


def _verdict(verdict: Verdict) -> list[str]:
    figures = f"{len(verdict.rows):,} figures"
    if verdict.ok and not verdict.rows:
        return [f"{verdict.model}: nothing to compare"]
    if verdict.ok:
        return [f"{verdict.model}: {_shown([verdict])}, {figures} compared and all equal", *_evidence(verdict)]
    if not verdict.rows:
        return [f"{verdict.model}: nothing was measured"]
    first = verdict.failures[0]
    place = f"{_label(first)}, {first.quantity}, by {first.oracle}"
    return [f"{verdict.model}: REFUTED, {len(verdict.failures):,} of {figures} differ, the first: {place}"]


def _shown(verdicts: Iterable[Verdict]) -> str:
    """The evidence word: that of the least certain quantity."""
    words = {known.how for verdict in verdicts for known in verdict.known.values()}
    return "proved" if words == {"proved"} else "measured" if words <= {"measured"} else "proved and measured"


def _evidence(verdict: Verdict) -> list[str]:
    """One line per kind of evidence: "proved for all B, T ≥ 2: flops"."""
    groups: dict[str, list[str]] = {}
    for quantity, (how, where) in verdict.known.items():
        place = f" for {where}" if how == "proved" and where else f" {where}" if where else ""
        groups.setdefault(f"{how}{place}", []).append(quantity)
    return [f"{shown}: {', '.join(quantities)}" for shown, quantities in groups.items()]


def _all(verdicts: Sequence[Verdict]) -> str:
    good = sum(verdict.ok for verdict in verdicts)
    figures = sum(len(verdict.rows) for verdict in verdicts)
    if good == len(verdicts):
        return f"all {good} models {_shown(verdicts)}: {figures:,} figures compared, all equal"
    return f"REFUTED: {len(verdicts) - good} of {len(verdicts)} models have figures that differ"


def _overview(verdicts: Sequence[Verdict]) -> Table:
    lines = []
    for verdict in verdicts:
        wholes = [row for row in verdict.rows if row.path == ""]
        params = next((row.measured for row in wholes if row.quantity == "params"), None)
        known = next(
            (row.where for row in wholes if row.for_all and row.where), f"{len({r.where for r in wholes})} sizes"
        )
        style = "green" if verdict.ok else "red"
        lines.append(
            [
                verdict.model,
                cell(params),
                cell(len(verdict.rows)),
                cell(len(verdict.failures))._replace(style=style),
                known,
            ]
        )
    headings = ("model", "parameters", "figures", "unequal", "sizes")
    return Table("", headings, lines, left=frozenset({0, 4}), name="figures")
