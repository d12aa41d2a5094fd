"""The reports of `txcalc fit` and `txcalc design`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txcalc.planning.fitting import RULE, Budget, Fit, Shape, boundary
from txcalc.render.report import Cell, Report, Table, column, exact, rounded
from txcalc.units import iec


def _size(value: int | None) -> Cell:
    if value is None:
        return Cell(None, "")
    return Cell(value, iec(value), "green" if value >= 0 else "red")


def fit_report(found: Sequence[Fit], where: str, memory: int, reserve: int, context: int) -> Report:
    """Which models a memory holds: the largest first, a column of room for each format."""
    formats = list(dict.fromkeys(fit.weights for fit in found))
    by_model: dict[str, dict[str, Fit]] = {}
    for fit in found:
        by_model.setdefault(fit.model, {})[fit.weights] = fit
    rows: list[tuple[Any, ...]] = []
    for name, fits in sorted(by_model.items(), key=lambda item: (-_params(item[1]), item[0])):
        if any(fit.fits for fit in fits.values()):
            first = next(iter(fits.values()))
            rooms = [
                _size(fit.room) if fit.fits else Cell(fit.room, "no" if fit.room is not None else "–")
                for fit in fits.values()
            ]
            rows.append((name, rounded(first.params), first.context, *rooms))
    count = sum(any(fit.fits for fit in fits.values()) for fits in by_model.values())
    header = [
        f"{where}: {iec(memory)}, of which {iec(reserve)} reserved",
        f"{count} of {len(by_model)} presets fit, with one sequence of {context:,} tokens, or their own most",
    ]
    data = {
        "schema": "txcalc/fit/1",
        "memory_bytes": memory,
        "reserve_bytes": reserve,
        "context": context,
        "rows": [
            {
                "model": fit.model,
                "params": fit.params,
                "weights": fit.weights,
                "context": fit.context,
                "fits": fit.fits,
                "need_bytes": fit.need,
                "room_bytes": fit.room,
                **({"refused": fit.refused} if fit.refused else {}),
            }
            for fit in found
        ],
    }
    notes = list(dict.fromkeys(f"{fit.model} as {fit.weights}: {fit.refused}" for fit in found if fit.refused))
    if len(notes) > 3:
        notes = [*notes[:3], f"and {len(notes) - 3} more that have no figure (–) for a like reason"]
    headings = ("preset", "parameters", "tokens", *(column(f"room, {name}", "bytes") for name in formats))
    return Report(data, [Table("", headings, rows)], header, notes)


def _params(fits: dict[str, Fit]) -> int:
    return next(iter(fits.values())).params


def design_report(budget: Budget, shapes: Sequence[Shape], classic: Sequence[Shape], asked: str) -> Report:
    """Shapes that spend a budget, and which of the classic ones do not exceed it."""
    family, form = budget.family, budget.engine.weights.name
    spent = "parameters" if budget.params is not None else f"{form}, {_counted(budget)}"
    header = [
        f"{asked}: {spent}",
        f"V = {family.vocab:,}{' (tied)' if family.tied else ''}; F = {family.ratio}·D, up to a multiple of "
        f"{family.multiple}; heads of {family.d_head}, {family.gqa} a key/value head; D a multiple of {family.step()}",
        _line(budget, classic, asked, form),
    ]
    tables = [
        _table(f"Best first: {RULE}", budget, shapes),
        _table("Shapes everybody knows, in this family", budget, classic, budget.params is None),
    ]
    data = {
        "schema": "txcalc/design/1",
        "budget": {"params": budget.params, "memory_bytes": budget.memory, "context": budget.context},
        "weights": form,
        "family": {
            "vocab": family.vocab,
            "ratio": str(family.ratio),
            "gqa": family.gqa,
            "d_head": family.d_head,
            "tied": family.tied,
        },
        "rule": RULE,
        "rows": [{**shape._asdict(), "fits": shape.fits, "inline": _inline(budget, shape)} for shape in shapes],
        "classic": [{**shape._asdict(), "fits": shape.fits, "inline": _inline(budget, shape)} for shape in classic],
    }
    return Report(data, tables, [line for line in header if line])


def _counted(budget: Budget) -> str:
    if budget.context is None:
        return "weights only (--context counts a cache too)"
    return f"weights, one sequence of {budget.context:,} tokens and its activations"


def _inline(budget: Budget, shape: Shape) -> str:
    return budget.family.text(shape.layers, shape.width)


def _line(budget: Budget, classic: Sequence[Shape], asked: str, form: str) -> str:
    """16 GB at fp16: L=32 D=4096 fits, L=40 D=5120 does not."""
    if budget.params is not None:
        return ""
    inside, outside = boundary(classic)
    words = [
        f"L={shape.layers} D={shape.width} {verb}"
        for shape, verb in ((inside, "fits"), (outside, "does not"))
        if shape is not None
    ]
    return f"{asked} at {form}: {', '.join(words)}"


def _table(title: str, budget: Budget, shapes: Sequence[Shape], judged: bool = False) -> Table:
    rows = []
    for shape in shapes:
        spare = rounded(shape.spare) if budget.params is not None else Cell(shape.spare, iec(shape.spare))
        sizes = (shape.layers, shape.width, shape.heads, shape.kv_heads, shape.d_ff)
        fits = (Cell(shape.fits, "yes" if shape.fits else "no", "green" if shape.fits else "red"),) if judged else ()
        cache = Cell(shape.cache_per_token, iec(shape.cache_per_token))
        rows.append(
            (*map(exact, sizes), rounded(shape.params), Cell(shape.bytes, iec(shape.bytes)), cache, spare, *fits)
        )
    left = "left over" if budget.params is not None else column("left over", "bytes")
    headings = (
        "L",
        "D",
        "h",
        "h_kv",
        "F",
        "parameters",
        *(column(name, "bytes") for name in ("memory", "cache a token")),
        left,
    )
    return Table(title, (*headings, *(("fits",) if judged else ())), rows, left=frozenset())
