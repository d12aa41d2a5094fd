"""The table of `fit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txcalc.planning.fitting import ModelFit
from txcalc.questions.fit import Cards, Fit
from txcalc.render.report import Report, Table, TableCell, byte_size, column, rounded
from txcalc.units import iec, three

SIZES = (
    (20 * 10**9, "20 B parameters and more"),
    (7 * 10**9, "7 to 20 B"),
    (2 * 10**9, "2 to 7 B"),
    (0, "less than 2 B"),
)


def report(answer: Fit, form: str) -> Report:
    """Which models fit, largest first, each on a line: for one card a column per format, for several a column per card
    with the best format that fits."""
    models: dict[str, list[ModelFit]] = {}
    for row in answer.rows:
        models.setdefault(row.model, []).append(row)
    fitting = [name for name, rows in models.items() if any(row.fits for row in rows)]
    served = [name for name in fitting if models[name][0].listed]
    grouped = answer.only_fits and form == "table" and bool(served)
    listed = served if grouped else fitting if answer.only_fits else models
    model_names = sorted(listed, key=lambda name: (-models[name][0].params, name))
    best_alone, one_format = answer.one_row_per_card, answer.in_turn and len(answer.cards) == 1
    timed = any(row.tokens_per_s for row in answer.rows)
    sizes = [column(card.name, "bytes") for card in answer.cards]
    if not best_alone:
        sizes = [column(f"left, {name}", "bytes", f"free, {name}") for name in answer.formats]
    headings: list[object] = ["model", "parameters", "tokens", *sizes]
    optional = frozenset[int]()
    if one_format:
        headings[3:] = ["format", *["tokens/s"] * timed, column("left", "bytes", "free")]
        optional = frozenset((len(headings),))
        headings.append(column("needed", "bytes"))
    lines: list[Sequence[Any]] = []
    groups: list[str] = []
    for name in model_names:
        rows = [row for row in models[name] if row.best] if best_alone else models[name]
        first = models[name][0]
        size = next(text for least, text in SIZES if first.params >= least)
        if grouped and size not in groups:
            groups.append(size)
            lines.append((TableCell(None, size, "bold"), *[""] * (len(headings) - 1)))
        if one_format:
            speed = rows[0].tokens_per_s
            cells = [TableCell(rows[0].weights, rows[0].weights)]
            cells += [TableCell(speed, three(speed) if speed else "")] * timed
            cells += [_room(rows[0]), byte_size(rows[0].need_bytes)]
        else:
            cells = [(_best if best_alone else _room)(row) for row in rows]
        lines.append((name, rounded(first.params), first.context, *cells))
    table = Table("", headings, lines, name="fit", crossed=not one_format, optional=optional)
    verb = "model fits" if len(models) == 1 else "models fit"
    tokens = f"with one sequence of {answer.context:,} tokens (the model's context if shorter)"
    refused = sum(all(row.refused for row in rows) for rows in models.values())
    count = f"{len(fitting)} of {len(models)} {verb}{f' ({refused} refused)' * bool(refused)}"
    header = [f"{count}, {tokens}", *_cards(answer)]
    header += dict.fromkeys(
        f"measured on {row.known['where']}; without activations" for row in answer.rows if row.known
    )
    if best_alone:
        names = (name.upper() if name[0] == "q" else name for name in answer.formats)
        speeds, room = " and its tokens/s with one sequence" * timed, "; free memory per GPU" * one_format
        what = "format" if one_format else "each cell"
        header.append(f"{what}: the first of {', '.join(names)} that fits{speeds}{room}")
    if grouped and (omitted := len(fitting) - len(served)):
        header.append(f"{omitted} of the {len(fitting)} are not listed: encoders, or run by no engine (--all)")
    return Report([table], header, answer.notes, not answer.failed)


def _cards(answer: Fit) -> list[str]:
    """Of each kind of accelerator its memory, what of it is not for the model, and by whose rule."""
    lines = []
    for card in answer.cards:
        times, suffix = (f"{card.number} × ", " each") if card.number > 1 else ("", "")
        system, remark = card.memory_bytes - card.visible_bytes, f" ({card.more})" if card.more else ""
        usable = f"{iec(card.visible_bytes)} usable{remark} of " if system or remark else ""
        reserved = f"; reserve {iec(reserve)}" if (reserve := card.reserve_bytes - system) else ""
        lines.append(f"{times}{card.title}: {usable}{iec(card.memory_bytes)}{suffix}{reserved}{_engine(answer, card)}")
    return lines


def _engine(answer: Fit, card: Cards) -> str:
    """Which formats are judged by an engine on a card: all, or those named; "": none."""
    rows = [row for row in answer.rows if row.gpu == card.name and (row.best or not answer.one_row_per_card)]
    judged = [row for row in rows if row.engine]
    if not judged:
        return ""
    formats = "" if all(row.engine or row.refused for row in rows) else ", for the formats that it runs"
    return f"; memory as in {answer.engine_label}{formats}"


def _room(row: ModelFit) -> TableCell:
    """Free or missing bytes."""
    if row.room_bytes is None:
        return TableCell(None, "refused", "red")
    if row.short_bytes:
        where = ["of RAM"] * (-row.short_bytes < row.room_bytes)
        return TableCell(-row.short_bytes, "\n".join([f"short {iec(row.short_bytes)}", *where]), "red")
    where = [row.in_ram, "in RAM"] if row.in_ram else []
    return TableCell(row.room_bytes, "\n".join([iec(row.room_bytes), *where]), "green")


def _best(row: ModelFit) -> TableCell:
    """The format and its speed, or that it does not fit; in data free or missing bytes too."""
    if row.room_bytes is None:
        return _room(row)
    values = {"": _room(row).value, "format": row.weights, "tokens/s": row.tokens_per_s}
    speed = [three(row.tokens_per_s)] if row.tokens_per_s else []
    text = " ".join([row.weights, *speed, *["partly in RAM"] * bool(row.in_ram)])
    return TableCell(values, text, "green") if row.fits else TableCell(values, "no", "red")
