"""The tables of `diff`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txcalc.questions.diff import Change, Diff, Difference
from txcalc.render.report import Report, Table, TableCell
from txcalc.units import iec, short


def report(answer: Diff, form: str) -> Report:
    """Each difference with its cost, then those that are part of another."""
    differences = answer.differences
    counted = [[*_values(row), *_costs(row)] for row in differences if row.cache]
    counted.append(["total", "", "", *_costs(answer.whole)])
    tables = []
    if differences:
        title = "Cost of each difference, applied alone to the first model"
        headings = ("key", "from", "to", "parameters", "FLOPs/token", "cache/token")
        tables.append(Table(title, headings, counted, frozenset({0, 1, 2}), True))
    uncounted = [[*_values(row), row.why or ""] for row in differences if not row.cache]
    if uncounted:
        reasons = {row[-1] for row in uncounted}
        columns = 3 if len(reasons) == 1 else 4  # a common reason is in the title
        title = "Not counted separately" + (f": {reasons.pop()}" if columns == 3 else "")
        titles = ("key", "from", "to", "why")[:columns]
        tables.append(Table(title, titles, [row[:columns] for row in uncounted], left=frozenset(range(columns))))
    convention = answer.convention
    first, second = answer.models
    header = [
        _verdict(answer) if differences else f"{first.name} and {second.name} are equal",
        f"{answer.workload}; {convention.flops_per_mac} FLOPs per multiply-add; {convention.attention} attention; "
        f"cache in {convention.kv_dtype}",
        *["differences interact: their separate costs do not add up to the total"] * bool(differences),
    ]
    return Report(tables, header, [*answer.assumptions, *answer.notes])


def _verdict(answer: Diff) -> str:
    """The total, in a line."""
    first, second = answer.models
    words = ("parameters", "FLOPs per token", "cache per token")
    costs = [f"{cost.text} {what}" for cost, what in zip(_costs(answer.whole), words, strict=True) if cost.value]
    return f"{first.name} → {second.name}: {', '.join(costs) or 'equal costs'}"


def _costs(change: Change | Difference) -> Sequence[TableCell]:
    assert change.params is not None and change.flops_per_token is not None and change.cache is not None
    cached = change.cache.bytes_per_token
    return (
        _with_sign(change.params, short(abs(change.params))),
        _with_sign(change.flops_per_token, short(abs(change.flops_per_token))),
        _with_sign(cached, iec(abs(cached))),
    )


def _values(row: Difference) -> list[object]:
    name = f"{row.letter} ({row.key})" if row.letter else row.key
    return [name, _value(row.from_), _value(row.to)]


def _value(value: Any) -> TableCell:
    if value is None:
        return TableCell(None, "–")
    if isinstance(value, list):
        return TableCell(" ".join(map(str, value)), ", ".join(map(str, value)) or "none")
    if isinstance(value, bool):
        return TableCell(value, "yes" if value else "no")
    text = f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else value
    return TableCell(value, text)


def _with_sign(value: int | float, size: str) -> TableCell:
    return TableCell(value, f"+{size}" if value > 0 else f"−{size}" if value < 0 else "0")
