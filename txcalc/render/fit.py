"""The report of `txcalc fit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txcalc.planning.fitting import CardSet, ModelFit, best
from txcalc.render.report import DataReport, Table, TableCell, column, rounded
from txcalc.units import iec, three


def _room(fit: ModelFit, formatted: bool = False) -> TableCell:
    """Free or missing bytes; with format and speed where it is the best of several."""
    if fit.room is None:
        return TableCell(None, "–")
    style = "green" if fit.fits else "red"
    lacks = fit.ram if fit.room >= 0 and fit.ram is not None and fit.ram < 0 else fit.room
    where = [] if not fit.in_ram else [fit.in_ram, "in RAM"] if fit.fits else ["of RAM"] if lacks == fit.ram else []
    if not formatted:
        return TableCell(fit.room, "\n".join([iec(lacks) if fit.fits else f"short {iec(-lacks)}", *where]), style)
    lines = [fit.weights, *([f"{three(fit.speed)} tok/s"] if fit.speed else []), iec(lacks)]
    said = {"": fit.room, "format": fit.weights, "tokens/s": fit.speed}
    return TableCell(said, "\n".join([*lines, *where]), style)


def fit_report(
    found: Sequence[ModelFit],
    cards: Sequence[CardSet],
    kept: Sequence[int],
    context: int,
    ladder: bool,
    every: bool,
    apart: Sequence[str] = (),
) -> DataReport:
    """Which models fit, largest first: for one card a column per format, for several a column per card with the best
    format that fits.

    `ladder`: formats were tried in turn; `every`: list what does not fit too; `apart`: notes on models whose towers are
    left out.
    """
    by_model: dict[str, dict[str, list[ModelFit]]] = {}
    for fit in found:
        by_model.setdefault(fit.model, {}).setdefault(fit.card, []).append(fit)
    order = sorted(by_model.items(), key=lambda item: (-next(iter(item[1].values()))[0].params, item[0]))
    shown = [(name, fits) for name, fits in order if every or any(fit.fits for row in fits.values() for fit in row)]
    folded, timed = ladder or len(cards) > 1, any(fit.speed for fit in found)
    rows: list[tuple[Any, ...]] = []
    for name, fits in shown:
        first = next(iter(fits.values()))[0]
        if ladder and len(cards) == 1:
            one = best(fits[first.card])
            speed = [TableCell(one.speed, three(one.speed) if one.speed else "")] * timed
            cells = [TableCell(one.weights, one.weights), *speed, _room(one)]
        else:
            cells = [_room(best(row), True) for row in fits.values()] if folded else list(map(_room, fits[first.card]))
        rows.append((name, rounded(first.params), first.context, *cells))
    verb = "model fits" if len(by_model) == 1 else "models fit"
    count = sum(any(fit.fits for row in fits.values() for fit in row) for fits in by_model.values())
    header = [
        f"{count} of {len(by_model)} {verb}, with one sequence of {context:,} tokens (their context if shorter)",
        *(
            f"{f'{card.number} × ' if card.number > 1 else ''}{card.title}: {iec(card.memory)}"
            f"{' each' if card.number > 1 else ''}, of which {iec(reserve)} reserved"
            for card, reserve in zip(cards, kept, strict=True)
        ),
    ]
    if folded:
        speeds = ", tokens/s of one sequence," * timed
        header.append(f"the first format that fits{speeds} and free memory per GPU")
    card, reserve = cards[0], kept[0]
    data = {
        "schema": "txcalc/fit/1",
        "memory_bytes": card.memory,
        "reserve_bytes": reserve,
        "context": context,
        "cards": [
            {"name": card.name, "number": card.number, "memory_bytes": card.memory, "reserve_bytes": reserve}
            for card, reserve in zip(cards, kept, strict=True)
        ],
        "rows": [_row(fit) for fit in found],
    }
    without = [best(row) for fits in by_model.values() for row in fits.values()] if folded else found
    notes = list(dict.fromkeys(f"{fit.model} as {fit.weights}: {fit.refused}" for fit in without if fit.refused))
    if len(notes) > 3:
        notes = [*notes[:3], f"and {len(notes) - 3} more without a figure (–) for similar reasons"]
    formats = list(dict.fromkeys(fit.asked or fit.weights for fit in found))
    names = [card.name for card in cards] if folded else [f"left, {name}" for name in formats]
    headings: list[Any] = ["model", "parameters", "tokens", *(column(name, "bytes") for name in names)]
    crossed = not (ladder and len(cards) == 1)
    if not crossed:
        headings[3:] = ["format", *["tokens/s"] * timed, column("left", "bytes")]
    return DataReport(
        data, [Table("", headings, rows, name="fit", crossed=crossed)], header, [*apart, *notes], good=count > 0
    )


def _row(fit: ModelFit) -> dict[str, Any]:
    return {
        "model": fit.model,
        "params": fit.params,
        "weights": fit.weights,
        "asked": fit.asked or fit.weights,
        "gpu": fit.card,
        "layout": fit.layout,
        "context": fit.context,
        "fits": fit.fits,
        "need_bytes": fit.need,
        "room_bytes": fit.room,
        "short_bytes": None if fit.room is None else max(0, -fit.room, -(fit.ram or 0)),
        "tokens_per_s": fit.speed,
        **({"in_ram": fit.in_ram, "ram_free_bytes": fit.ram} if fit.in_ram else {}),
        **({"refused": fit.refused} if fit.refused else {}),
    }
