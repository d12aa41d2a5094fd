"""The report of `txcalc design`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txcalc.planning.shapes import RULE, DecoderShape, DesignBudget, boundary
from txcalc.render.report import DataReport, Table, TableCell, cell, column, rounded
from txcalc.units import iec, short


def design_report(
    budget: DesignBudget, shapes: Sequence[DecoderShape], classic: Sequence[DecoderShape], asked: str
) -> DataReport:
    """Shapes that spend a budget, and which of the classic ones do not exceed it."""
    family, form = budget.family, budget.engine.weights.name
    spent = f"{form}, {_counted(budget)}"
    if budget.flops is not None:
        spent = (
            f"FLOPs of training, 6·N·D: N = {short(budget.params)} active parameters, D = {short(budget.tokens)} tokens"
        )
    elif budget.params is not None:
        spent = "parameters"
    best = f"no shape meets {asked}"
    for shape in shapes[:1]:
        best = f"best for {asked}: {shape.layers} layers of D = {shape.width:,}, {short(shape.params)} parameters"
    header = [best, f"{asked}: {spent}", *family.describe(), _line(budget, classic, asked, form)]
    tables = [_table(f"Best first: {RULE}", budget, shapes)]
    if classic:
        tables.append(_table("Well-known shapes, in this family", budget, classic, budget.params is None))
    data = {
        "schema": "txcalc/design/1",
        "budget": {
            "params": budget.params,
            "memory_bytes": budget.memory,
            "context": budget.context,
            "flops": budget.flops,
            "tokens": budget.tokens,
        },
        "weights": form,
        "family": family.data(),
        "rule": RULE,
        "rows": [_shape(budget, shape) for shape in shapes],
        "classic": [_shape(budget, shape) for shape in classic],
    }
    return DataReport(data, tables, [line for line in header if line])


def _shape(budget: DesignBudget, shape: DecoderShape) -> dict[str, Any]:
    """A shape and how to build it."""
    made = budget.family.built(shape.layers, shape.width)
    spent = {} if budget.tokens is None else {"train_flops": 6 * shape.active * budget.tokens}
    return {**shape._asdict(), "fits": shape.fits, **made, **spent}


def _counted(budget: DesignBudget) -> str:
    if budget.context is None:
        return "weights only (--context adds a cache)"
    return f"weights, one sequence of {budget.context:,} tokens and its activations"


def _line(budget: DesignBudget, classic: Sequence[DecoderShape], asked: str, form: str) -> str:
    """16 GB at fp16: L=32 D=4096 fits, L=40 D=5120 does not."""
    if budget.params is not None or not classic:
        return ""
    inside, outside = boundary(classic)
    words = [
        f"L={shape.layers} D={shape.width} {verb}"
        for shape, verb in ((inside, "fits"), (outside, "does not"))
        if shape is not None
    ]
    return f"{asked} at {form}: {', '.join(words)}"


def _table(title: str, budget: DesignBudget, shapes: Sequence[DecoderShape], judged: bool = False) -> Table:
    rows = []
    routed = any(shape.active != shape.params for shape in shapes)
    for shape in shapes:
        spare = rounded(shape.spare) if budget.params is not None else TableCell(shape.spare, iec(shape.spare))
        sizes = (shape.layers, shape.width, shape.heads, shape.kv_heads, shape.d_ff)
        fits = (
            (TableCell(shape.fits, "yes" if shape.fits else "no", "green" if shape.fits else "red"),) if judged else ()
        )
        held = TableCell(shape.cache_per_token, iec(shape.cache_per_token))
        counted = (rounded(shape.params), *((rounded(shape.active),) if routed else ()))
        rows.append((*map(cell, sizes), *counted, TableCell(shape.bytes, iec(shape.bytes)), held, spare, *fits))
    left = column("left over", "" if budget.params is not None else "bytes")._replace(text="left\nover")
    names: list[Any] = ["L", "D", "h", "h_kv", "F", "parameters", *(["active"] if routed else [])]
    cache = column("cache per token", "bytes")._replace(text="cache\nper token")
    kept = [column("memory", "bytes"), cache, left, *(["fits"] if judged else [])]
    filled = [i for i in range(len(names)) if any(row[i].value is not None for row in rows)]
    headings = [names[i] for i in filled] + kept
    lines = [[*(row[i] for i in filled), *row[len(names) :]] for row in rows]
    return Table(title, headings, lines, left=frozenset())
