"""The tables of `design`."""

from __future__ import annotations

from collections.abc import Sequence

from txcalc.planning.shapes import Shape
from txcalc.questions.design import Design
from txcalc.render.report import Column, Report, Table, byte_size, column, rounded, tabulate, yes_or_no
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
    tables = [_table(f"Best first: {answer.rule}", answer.rows, in_bytes)]
    if answer.classic:
        title = "Well-known shapes with this architecture"
        tables.append(_table(title, answer.classic, in_bytes, verdicts=in_bytes))
    return Report(tables, header)


def _what_counts(answer: Design) -> str:
    """What counts towards the budget."""
    budget = answer.budget
    if budget.flops is not None:
        return f"training FLOPs: 6 · {short(budget.params)} active parameters · {short(budget.tokens)} tokens"
    if budget.params is not None:
        return "parameters, which the nearest depth of a width may exceed"
    if budget.context is None:
        return f"for weights in {answer.weights} (--context adds a cache)"
    return f"for weights in {answer.weights}, one sequence of {budget.context:,} tokens and its activations"


def _table(title: str, shapes: Sequence[Shape], in_bytes: bool, verdicts: bool = False) -> Table:
    """One row per shape; sizes that no shape has are left out. A wide terminal shows the aspect ratio too."""
    sizes: list[Column[Shape]] = [
        Column("L", lambda shape: shape.layers),
        Column("D", lambda shape: shape.width),
        Column("h", lambda shape: shape.heads),
        Column("h_kv", lambda shape: shape.kv_heads),
        Column("F", lambda shape: shape.d_ff),
    ]
    columns = [of for of in sizes if any(of.cell(shape) is not None for shape in shapes)]
    columns.append(Column("parameters", lambda shape: rounded(shape.params)))
    if any(shape.active != shape.params for shape in shapes):
        columns.append(Column("active", lambda shape: rounded(shape.active)))
    left = column("budget left", "bytes" if in_bytes else "", "left\n(− over)")
    columns += [
        Column(column("memory", "bytes"), lambda shape: byte_size(shape.bytes)),
        Column(column("cache per token", "bytes", "cache\nper token"), lambda shape: byte_size(shape.cache_per_token)),
        Column(left, lambda shape: byte_size(shape.spare) if in_bytes else rounded(shape.spare)),
    ]
    if verdicts:
        columns.append(Column("fits", lambda shape: yes_or_no(shape.fits)))
    columns.append(Column("D/L", lambda shape: f"{shape.width / shape.layers:.0f}", optional=True))
    return tabulate(title, shapes, columns, left=())
