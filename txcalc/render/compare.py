"""The table of `compare`: quantities as rows, models as columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from txcalc.questions.answers import ModelInfo
from txcalc.questions.compare import Compare, ComparedQuantity, Match
from txcalc.render.report import Report, Table, TableCell
from txcalc.units import iec, short

WITH_RATIO_COLUMNS = 4  # up to this many models ratios have a column, else they stand below the figure
CROSSOVER = "length from which scores and values ≥"
NAME = 20  # characters of a model's name per line


def report(answer: Compare, form: str) -> Report:
    """One table; ratios in columns of their own, or below the figures of many models."""
    models, rows = answer.models, [row for row in answer.rows if form != "table" or not _says_nothing(row, answer)]
    ratio_columns = len(models) <= WITH_RATIO_COLUMNS
    headings: list[object] = [TableCell("quantity", "")]
    columns: list[Sequence[Any]] = []
    for i, model in enumerate(models):
        cells = [_cell(row, i, _beyond(row, model)) for row in rows]
        ratios = [_ratio(row, i, cell.style) for row, cell in zip(rows, cells, strict=True)]
        if i and not ratio_columns:
            cells = [c._replace(text=f"{c.text}\n{r.text}".rstrip()) for c, r in zip(cells, ratios, strict=True)]
        width = max(8, *(len(line) for cell in cells for line in cell.text.split("\n")))
        headings.append(TableCell(model.name, fold(model.name, max(width, NAME))))
        columns.append(cells)
        if i and ratio_columns:
            headings.append(TableCell("", "×"))
            columns.append([ratio._replace(text=ratio.text.removeprefix("×")) for ratio in ratios])
    lines: list[Sequence[Any]] = []
    group = ""
    for row, *cells in zip(rows, *columns, strict=True):
        heading, label = _labels(row, answer.convention.dtype)
        if heading not in ("", group):
            lines.append([TableCell(None, heading, "bold"), *[""] * len(columns)])
        group = heading
        what = row.quantity.replace("_flops", "_share") if row.of else row.quantity
        name = what if row.tokens is None else f"{what} at {row.tokens}"
        lines.append([TableCell(name, f"  {label}" if group else label), *cells])
    header = [
        f"{len(models)} models; × is the ratio to {models[0].name}",
        f"{answer.convention}; cache in {answer.convention.kv_dtype}",
        "one sequence, lengths in tokens; FLOPs per token: average over a prefill; scores and values: share of FLOPs",
        *(_matches(answer.match, models[0].name) if answer.match else ()),
    ]
    return Report([Table("", headings, lines, name="comparison", crossed=True)], header, answer.notes)


def _says_nothing(row: ComparedQuantity, answer: Compare) -> bool:
    """Active parameters of dense models, and a cache without a fixed part."""
    if row.quantity == "active":
        return row.values == next(other.values for other in answer.rows if other.quantity == "params")
    return row.quantity == "cache_constant_bytes" and not any(row.values)


def _labels(row: ComparedQuantity, dtype: str) -> tuple[str, str]:
    """The heading that rows of one meaning share, and what tells them apart."""
    length = "whole picture" if row.tokens is None else f"{row.tokens:,}"
    return {
        "params": ("", "parameters"),
        "active": ("", "active per token"),
        "weights_bytes": ("", f"weights, {dtype}"),
        "flops_per_token": ("FLOPs per token at", length),
        "flops_per_token_dense": ("FLOPs per token, dense, at", length),
        "flops_per_token_masked": ("FLOPs per token, masked, at", length),
        "attention_core_flops": ("scores and values at", length),
        "cache_bytes": ("cache at", length),
        "cache_growth_bytes": ("cache at", "per token"),
        "cache_constant_bytes": ("cache at", "fixed part"),
        "crossover: scores + values ≥ feed-forward": (CROSSOVER, "feed-forward"),
        "crossover: scores + values ≥ every linear layer": (CROSSOVER, "linear layers"),
    }[row.quantity]


def _matches(match: Match, first: str) -> list[str]:
    """Each model's size, or the two nearest, with their distances from the budget."""
    words = {"params": "parameters", "flops": "FLOPs", "cache": "cached elements"}[match.quantity]
    at = "" if match.tokens is None else f" at {match.tokens:,} tokens"
    lines = [f"equal {words}{at} by {match.by}: {match.budget:,} of {first}"]
    for model in match.models:
        near = [
            f"{size.value:,} ({abs(size.difference):,} {'over' if size.difference > 0 else 'short'})"
            for size in (model.below, model.above)
            if size and size.difference
        ]
        exact = f"{match.by} = {model.value:,}: exact"
        lines.append(f"  {model.name}: {f'nearest: {match.by} = ' + ' or '.join(near) if model.difference else exact}")
    return lines


def _cell(row: ComparedQuantity, i: int, dim: bool) -> TableCell:
    """A model's figure; styled by its ratio to the first model's, bold from twice or half."""
    value, ratio = row.values[i], row.ratios[i] if row.ratios else None
    if row.never and row.never[i]:
        return TableCell("never", "never", "dim" if dim else "")
    if value is None:
        return TableCell(None, "")
    if row.of:
        share = Fraction(value) / Fraction(row.of[i] or 1)
        return TableCell(float(share), f"{float(100 * share):.1f} %", "dim" if dim else "")
    if i == 0 or ratio is None or row.quantity.startswith("crossover"):  # a longer one is no worse
        style = ""
    elif ratio == 1:
        style = "dim"
    else:
        style = ("yellow" if ratio > 1 else "cyan") + (" bold" if ratio >= 2 or ratio <= 0.5 else "")
    return TableCell(value, _text(row, i), "dim" if dim else style)


def _text(row: ComparedQuantity, i: int) -> str:
    value = row.values[i]
    assert value is not None
    if row.quantity.endswith("_bytes"):
        return iec(int(value), digits=3)
    if row.quantity.startswith("crossover"):
        return f"{value:,}" if value < 10**6 else short(value)
    if row.flops and row.tokens:
        return short(Fraction(row.flops[i] or 0, row.tokens))
    return short(value)


def _ratio(row: ComparedQuantity, i: int, style: str) -> TableCell:
    ratio = row.ratios[i] if row.ratios else None
    return TableCell(None, "") if ratio is None else TableCell(ratio, ratio_text(ratio), style)


def ratio_text(ratio: float | Fraction) -> str:
    """`×1.21`, `=` for 1: about five characters."""
    if ratio == 1:
        return "="
    if ratio < Fraction(1, 10):
        return f"×{float(ratio):.2g}"
    digits = 2 if ratio < 10 else 1 if ratio < 100 else 0
    return "×" + (f"{float(ratio):.{digits}f}" if ratio < 999 else short(ratio).replace(" ", ""))


def fold(name: str, width: int) -> str:
    """A name in up to three lines, broken after `-`, `_`, `/` and spaces if possible."""
    lines = [""]
    for piece in re.findall(r"[^-_/\s]*[-_/\s]?", name):
        while piece:
            room = width - len(lines[-1])
            if len(piece.rstrip()) > room and lines[-1]:
                lines.append("")
                continue
            lines[-1] += piece[:room]
            piece = piece[room:].lstrip()
    lines = [line.rstrip() for line in lines]
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], lines[2][: width - 1] + "…"])


def _beyond(row: ComparedQuantity, model: ModelInfo) -> bool:
    return model.context is not None and row.tokens is not None and row.tokens > model.context
