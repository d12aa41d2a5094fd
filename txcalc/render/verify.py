"""The tables of `verify`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from txcalc.questions.verify import VerifiedFigure, VerifiedModel, Verify
from txcalc.render.measurements import near
from txcalc.render.report import Report, Table, TableCell, cell, times


def report(answer: Verify, form: str) -> Report:
    """All rows of one model; of several one line each, and the rows that differ."""
    models, several = answer.models, len(answer.models) > 1
    if several:
        failures = [[row for row in answer.rows if row.model == model.model and not row.equal] for model in models]
        tables = [_overview(answer)]
        for model, rows in zip(models, failures, strict=True):
            tables += _tables(rows, f"{model.model}: ")
        header = [_all(models)]
    else:
        tables = _tables(answer.rows)
        header = [line for model in models for line in _verdict(model, answer.rows)]
    tables += near([(figure.model, figure) for figure in answer.figures])
    if answer.zero_cost_operators:
        header.append("operators counted as free: " + ", ".join(answer.zero_cost_operators))
    notes = [f"{model.model}: {note}" if several else note for model in models for note in model.notes]
    return Report(tables, header, notes, good=answer.ok)


def _difference(row: VerifiedFigure) -> TableCell:
    return cell(row.difference)._replace(style="green" if row.equal else "red")


def _label(row: VerifiedFigure) -> str:
    return row.path or "whole model"


def _tables(rows: Iterable[VerifiedFigure], title: str = "") -> list[Table]:
    """One table per quantity and oracle."""
    groups: dict[tuple[str, str], dict[tuple[str, bool], list[VerifiedFigure]]] = {}
    for row in rows:
        groups.setdefault((row.quantity, row.oracle), {}).setdefault((row.path, row.equal), []).append(row)
    return [
        _table(f"{title}{quantity}, by {oracle}", [line for same in parts.values() for line in _group(same)])
        for (quantity, oracle), parts in groups.items()
    ]


def _table(title: str, rows: Sequence[VerifiedFigure]) -> Table:
    """Sizes common to all rows are in the title, else in a column."""
    sizes = {row.where for row in rows}
    lines = [[_label(row), times(row.copies), row.predicted, row.measured, _difference(row), row.where] for row in rows]
    headings = ("part", "×", "predicted", "measured", "difference", "sizes")
    texts = {2, 3} if any(not isinstance(row.predicted, int) for row in rows) else set()  # formulas may wrap
    if len(sizes) > 1:
        return Table(title, headings, lines, left=frozenset({0, 5, *texts}))
    (common,) = sizes
    title = f"{title}, {f'for {common}' if common else 'by path and shape'}"
    return Table(title, headings[:-1], [line[:-1] for line in lines], left=frozenset({0, *texts}))


def _group(rows: Sequence[VerifiedFigure]) -> Sequence[VerifiedFigure]:
    """Equal rows of one part at several sizes as one; unequal rows stay."""
    last, sizes = rows[-1], len({row.where for row in rows})
    return [replace(last, where=f"{sizes} sizes, shown at {last.where}")] if last.equal and sizes > 1 else rows


def _verdict(model: VerifiedModel, rows: Sequence[VerifiedFigure]) -> list[str]:
    figures = f"{model.figures:,} figures"
    if model.ok and not model.figures:
        return [f"{model.model}: nothing to compare"]
    if model.ok:
        return [f"{model.model}: {_evidence_word([model])}, {figures} compared and all equal", *_evidence(model)]
    if not model.figures:
        return [f"{model.model}: nothing was measured"]
    first = next(row for row in rows if not row.equal)
    place = f"{_label(first)}, {first.quantity}, by {first.oracle}"
    return [f"{model.model}: REFUTED, {model.unequal:,} of {figures} differ, the first: {place}"]


def _evidence_word(models: Iterable[VerifiedModel]) -> str:
    """The evidence word: that of the least certain quantity."""
    words = {evidence.how for model in models for evidence in model.known.values()}
    return "proved" if words == {"proved"} else "measured" if words <= {"measured"} else "proved and measured"


def _evidence(model: VerifiedModel) -> list[str]:
    """One line per kind of evidence: "proved for all B, T ≥ 2: flops"."""
    groups: dict[str, list[str]] = {}
    for quantity, evidence in model.known.items():
        place = (
            f" for {evidence.where}"
            if evidence.how == "proved" and evidence.where
            else f" {evidence.where}" * bool(evidence.where)
        )
        groups.setdefault(f"{evidence.how}{place}", []).append(quantity)
    return [f"{text}: {'; '.join(quantities)}" for text, quantities in groups.items()]


def _all(models: Sequence[VerifiedModel]) -> str:
    good = sum(model.ok for model in models)
    if good == len(models):
        figures = sum(model.figures for model in models)
        return f"all {good} models {_evidence_word(models)}: {figures:,} figures compared, all equal"
    return f"REFUTED: {len(models) - good} of {len(models)} models have figures that differ"


def _overview(answer: Verify) -> Table:
    lines: list[list[Any]] = []
    for model in answer.models:
        wholes = [row for row in answer.rows if row.model == model.model and row.path == ""]
        params = next((row.measured for row in wholes if row.quantity == "params"), None)
        sizes = f"{len({row.where for row in wholes})} sizes"
        domain = next((row.where for row in wholes if row.for_all and row.where), sizes)
        unequal = cell(model.unequal)._replace(style="green" if model.ok else "red")
        lines.append([model.model, params, model.figures, unequal, domain])
    headings = ("model", "parameters", "figures", "unequal", "sizes")
    return Table("", headings, lines, left=frozenset({0, 4}), name="figures")
