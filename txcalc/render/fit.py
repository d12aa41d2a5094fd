"""The table of `fit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txcalc.planning.fitting import ModelFit
from txcalc.questions.fit import Fit
from txcalc.render.report import Report, Table, TableCell, column, rounded
from txcalc.units import iec, three


def report(answer: Fit, form: str) -> Report:
    """Which models fit, largest first: for one card a column per format, for several a column per card with the best
    format that fits."""
    models: dict[str, list[ModelFit]] = {}
    for row in answer.rows:
        models.setdefault(row.model, []).append(row)
    fitting = [name for name, rows in models.items() if any(row.fits for row in rows)]
    shown = sorted(fitting if answer.only_fits else models, key=lambda name: (-models[name][0].params, name))
    best_alone, one_format = answer.one_row_per_card, answer.in_turn and len(answer.cards) == 1
    timed = any(row.tokens_per_s for row in answer.rows)
    lines: list[Sequence[Any]] = []
    for name in shown:
        rows = [row for row in models[name] if row.best] if best_alone else models[name]
        first = models[name][0]
        if one_format:
            speed = rows[0].tokens_per_s
            cells = [TableCell(rows[0].weights, rows[0].weights)]
            cells += [TableCell(speed, three(speed) if speed else "")] * timed + [_room(rows[0])]
        else:
            cells = [_room(row, best_alone) for row in rows]
        lines.append((name, rounded(first.params), first.context, *cells))
    names = [card.name for card in answer.cards] if best_alone else [f"left, {name}" for name in answer.formats]
    headings: list[Any] = ["model", "parameters", "tokens", *(column(name, "bytes") for name in names)]
    if one_format:
        headings[3:] = ["format", *["tokens/s"] * timed, column("left", "bytes")]
    table = Table("", headings, lines, name="fit", crossed=not one_format)
    verb = "model fits" if len(models) == 1 else "models fit"
    tokens = f"with one sequence of {answer.context:,} tokens (their context if shorter)"
    header = [f"{len(fitting)} of {len(models)} {verb}, {tokens}", *_cards(answer)]
    if best_alone:
        speeds = ", tokens/s of one sequence," if timed else ""
        header.append(f"the first format that fits{speeds} and free memory per GPU")
    return Report([table], header, answer.notes, not answer.failed)


def _cards(answer: Fit) -> list[str]:
    return [
        f"{f'{card.number} × ' if card.number > 1 else ''}{card.title}: {iec(card.memory_bytes)}"
        f"{' each' if card.number > 1 else ''}, of which {iec(card.reserve_bytes)} reserved"
        for card in answer.cards
    ]


def _room(row: ModelFit, with_format: bool = False) -> TableCell:
    """Free or missing bytes; with format and speed where it is the best of several."""
    if row.room_bytes is None:
        return TableCell(None, "–")
    size, style = iec(row.room_bytes), "green"
    where = [row.in_ram, "in RAM"] if row.in_ram else []
    if not row.fits:
        lacks_ram = row.room_bytes >= 0 and row.ram_free_bytes is not None
        size, style = f"short {iec(-(row.ram_free_bytes or 0) if lacks_ram else -row.room_bytes)}", "red"
        where = ["of RAM"] if lacks_ram else []
    if not with_format:
        return TableCell(row.room_bytes, "\n".join([size, *where]), style)
    speed = [f"{three(row.tokens_per_s)} tok/s"] if row.tokens_per_s else []
    values = {"": row.room_bytes, "format": row.weights, "tokens/s": row.tokens_per_s}
    return TableCell(values, "\n".join([row.weights, *speed, size, *where]), style)
