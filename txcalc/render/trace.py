"""The report of `txcalc trace`."""

from __future__ import annotations

from typing import Any

from txcalc.render.report import DataReport, Table, TableCell, cell, folded, starred, times
from txcalc.render.verify import formula
from txcalc.verification.trace import LETTERS, ModuleTrace, TracedModule

_SIZES = {"B": "batch", "T": "tokens", "T_src": "source_tokens"}


def report(trace: ModuleTrace) -> DataReport:
    """Parts that differ only in their index are one row."""
    whole = TracedModule(
        "",
        "",
        sum(part.params for part in trace.parts),
        sum(part.flops for part in trace.parts),
        sum(part.fvcore for part in trace.parts),
    )
    data: dict[str, Any] = {
        "schema": "txcalc/trace/1",
        "source": trace.name,
        "domain": trace.domain,
        "complete": trace.complete,
        "point": {_SIZES[letter]: size for letter, size in trace.point.items()},
        "total": _data(whole, trace),
        "rows": [_data(part, trace) for part in trace.parts],
        "not_counted": {counter: dict(names) for counter, names in trace.skipped.items()},
        "zero_cost_operators": trace.free,
    }
    rows = [_row(copies, trace) for copies in folded(trace.parts)]
    rows.append(_row([whole], trace))
    at = ", ".join(f"{letter} = {size}" for letter, size in trace.point.items())
    headings = (
        "module",
        "×",
        "class",
        "parameters",
        "FLOPs",
        TableCell(f"at {at}", f"at\n{at}"),
        TableCell(f"fvcore at {at}", f"fvcore at\n{at}"),
    )
    least = "" if trace.complete else "lower bound on "
    header = [f"{trace.name}: {least}FLOPs of matrix products, 2 per multiply-add, for {trace.domain}"]
    table = Table("", headings, rows, left=frozenset({0, 2}), total=True, name="parts")
    return DataReport(data, [table], header, _notes(trace))


def _notes(trace: ModuleTrace) -> list[str]:
    notes = [
        f"not counted by {counter}: " + ", ".join(f"{name} ({times} times)" for name, times in sorted(names.items()))
        for counter, names in trace.skipped.items()
    ]
    if not trace.complete:
        notes.append("the FLOPs are a lower bound: operators without a count in FlopCounterMode may cost more")
    if trace.untraced:
        notes.append(f"fvcore cannot trace this module: {trace.untraced}")
    free = "free, since they multiply no matrices: " + ", ".join(trace.free)
    return [*notes, free] if trace.free else notes


def _at_point(part: TracedModule, trace: ModuleTrace) -> Any:
    """The FLOPs of a part at the point."""
    if isinstance(part.flops, int):
        return part.flops
    sizes = {str(LETTERS[letter]): size for letter, size in trace.point.items()}
    return int(part.flops.subs({letter: sizes[str(letter)] for letter in part.flops.free_symbols}))


def _data(part: TracedModule, trace: ModuleTrace) -> dict[str, Any]:
    return {
        "path": part.path,
        "class": part.kind or None,
        "params": part.params,
        "flops": formula(part.flops),
        "flops_at_point": _at_point(part, trace),
        "fvcore_at_point": None if trace.untraced else part.fvcore,
    }


def _row(copies: list[TracedModule], trace: ModuleTrace) -> list[Any]:
    first = copies[0]
    name = starred([part.path for part in copies]) or ("module" if first.kind else "total")
    text = formula(first.flops)
    fvcore = TableCell(None, "") if trace.untraced else cell(first.fvcore)
    style = "" if trace.untraced or first.fvcore == _at_point(first, trace) else "yellow"
    return [
        name,
        times(len(copies)),
        first.kind,
        cell(first.params),
        TableCell(text, text),
        cell(_at_point(first, trace)),
        fvcore._replace(style=style),
    ]
