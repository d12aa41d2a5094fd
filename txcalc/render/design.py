"""The tables of `design`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txcalc.planning.shapes import Shape
from txcalc.questions.design import Design
from txcalc.render.report import Report, Table, TableCell, byte_size, cell, column, rounded
from txcalc.units import short


def report(answer: Design, form: str) -> Report:
    """Shapes that meet the budget, and which of the classic ones do not exceed it."""
    budget, in_bytes = answer.budget, answer.budget.params is None
    best = f"no shape meets {budget.text}"
    for shape in answer.rows[:1]:
        best = f"best for {budget.text}: {shape.layers} layers of D = {shape.width:,}, {short(shape.params)} parameters"
    header = [best, f"budget: {budget.text} {_what_counts(answer)}", *answer.family.summary]
    if answer.classic and in_bytes:
        nearest = ((answer.largest_classic, "fits"), (answer.smallest_excess, "does not"))
        words = [f"L={shape.layers} D={shape.width} {verb}" for shape, verb in nearest if shape]
        header.append(f"{budget.text} at {answer.weights}: {', '.join(words)}")
    tables = [_table(f"Best first: {answer.rule}", answer.rows, in_bytes, form)]
    if answer.classic:
        title = "Well-known shapes, in this family"
        tables.append(_table(title, answer.classic, in_bytes, form, verdicts=in_bytes))
    return Report(tables, header)


def _what_counts(answer: Design) -> str:
    """What counts towards the budget."""
    budget = answer.budget
    if budget.flops is not None:
        return f"training FLOPs: 6 · {short(budget.params)} active parameters · {short(budget.tokens)} tokens"
    if budget.params is not None:
        return "parameters"
    if budget.context is None:
        return f"for weights in {answer.weights} (--context adds a cache)"
    return f"for weights in {answer.weights}, one sequence of {budget.context:,} tokens and its activations"


def _table(title: str, shapes: Sequence[Shape], in_bytes: bool, form: str, verdicts: bool = False) -> Table:
    """One row per shape; sizes that no shape has are left out. A wide terminal shows the aspect ratio too."""
    experts = any(shape.active != shape.params for shape in shapes)
    sizes: dict[Any, list[TableCell]] = {
        "L": [cell(shape.layers) for shape in shapes],
        "D": [cell(shape.width) for shape in shapes],
        "h": [cell(shape.heads) for shape in shapes],
        "h_kv": [cell(shape.kv_heads) for shape in shapes],
        "F": [cell(shape.d_ff) for shape in shapes],
        "parameters": [rounded(shape.params) for shape in shapes],
    }
    columns = {name: cells for name, cells in sizes.items() if any(size.value is not None for size in cells)}
    if experts:
        columns["active"] = [rounded(shape.active) for shape in shapes]
    columns[column("memory", "bytes")] = [byte_size(shape.bytes) for shape in shapes]
    cache = column("cache per token", "bytes", "cache\nper token")
    columns[cache] = [byte_size(shape.cache_per_token) for shape in shapes]
    budget_left = column("budget left", "bytes" if in_bytes else "", "budget\nleft")
    columns[budget_left] = [(byte_size if in_bytes else rounded)(shape.spare) for shape in shapes]
    if verdicts:
        columns["fits"] = [
            TableCell(shape.fits, "yes" if shape.fits else "no", "green" if shape.fits else "red") for shape in shapes
        ]
    optional = frozenset((len(columns),)) if form == "table" else frozenset[int]()
    if optional:
        columns["D/L"] = [cell(f"{shape.width / shape.layers:.0f}") for shape in shapes]
    rows = list(zip(*columns.values(), strict=True))
    return Table(title, list(columns), rows, left=frozenset(), optional=optional)
