"""The table of `trace`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txcalc.questions.trace import SIZES, ModuleCost, Trace
from txcalc.render.report import Report, Table, TableCell, cell, group_copies, times, with_stars
from txcalc.units import number_of


def report(answer: Trace, form: str) -> Report:
    """Parts that differ only in their index are one row."""
    rows = [_row(copies) for copies in group_copies(answer.rows)]
    rows.append(_row([answer.total]))
    letters = {name: letter for letter, name in SIZES.items()}
    at = ", ".join(f"{letters[name]} = {size}" for name, size in answer.point.items())
    columns = TableCell(f"at {at}", f"at\n{at}"), TableCell(f"fvcore at {at}", f"fvcore at\n{at}")
    headings = ("module", "×", "class", "parameters", "FLOPs", *columns)
    bound = "" if answer.complete else "lower bound on "
    header = [f"{answer.source}: {bound}FLOPs of matmuls, 2 per multiply-add, for {answer.domain}"]
    table = Table("", headings, rows, left=frozenset({0, 2}), total=True, name="parts")
    return Report([table], header, _notes(answer))


def _notes(answer: Trace) -> list[str]:
    notes = [
        f"not counted by {counter}: " + ", ".join(f"{name} (× {number:,})" for name, number in sorted(names.items()))
        for counter, names in answer.not_counted.items()
    ]
    if not answer.complete:
        notes.append("the FLOPs are a lower bound: operators without a count in FlopCounterMode may cost more")
    if answer.untraced:
        notes.append(f"fvcore cannot trace this module: {answer.untraced}")
    if answer.zero_cost_operators:
        notes.append(
            f"{number_of('operator', len(answer.zero_cost_operators))} without a matmul not counted (--json lists them)"
        )
    return notes


def _row(copies: Sequence[ModuleCost]) -> list[Any]:
    first = copies[0]
    name = with_stars([part.path for part in copies]) or ("module" if first.class_ else "total")
    style = "" if first.fvcore_at_point in (None, first.flops_at_point) else "yellow"
    fvcore = cell(first.fvcore_at_point)._replace(style=style)
    sizes = cell(first.params), TableCell(first.flops, first.flops), cell(first.flops_at_point)
    return [name, times(len(copies)), first.class_ or "", *sizes, fvcore]
