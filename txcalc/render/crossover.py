"""The report of `txcalc crossover`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from txcalc.model import Model
from txcalc.planning.crossover import RULES, CacheCrossover, RuleCrossover
from txcalc.render.report import DataReport, Table, TableCell, cell, column
from txcalc.units import iec

if TYPE_CHECKING:
    from txcalc.algebra.crossings import RealCrossing

Forms = Sequence["RealCrossing | None"]
NEVER = TableCell(None, "never")
BESIDE = 28  # characters of a closed form that fit next to its rule


class ModelCrossovers(NamedTuple):
    """The crossovers of one model; `forms` has the closed form of each, or is empty."""

    model: Model
    crossovers: Sequence[RuleCrossover]
    balances: Sequence[CacheCrossover]
    forms: Forms


def report(
    answers: Sequence[ModelCrossovers],
    classic: Sequence[Forms],
    convention: dict[str, Any],
    format_: str,
    notes: Sequence[str],
) -> DataReport:
    """Two tables per model, and the classic block's lengths, plain and gated, if there are closed forms."""
    rows: list[dict[str, Any]] = []
    contexts: list[dict[str, Any]] = []
    tables: list[Table] = []
    for model, crossovers, balances, forms in answers:
        beside = forms or [None] * len(crossovers)
        rows += [{"model": model.name, **_row(each, form)} for each, form in zip(crossovers, beside, strict=True)]
        contexts += [{"model": model.name, **each._asdict()} for each in balances]
        tables.append(_lengths(model, crossovers))
        if len({each.why for each in crossovers}) > 1 or forms:  # a common reason is in the verdict
            tables += _closed(model, crossovers, beside, format_)
        if balances:
            tables.append(_contexts(model, balances))
    data = {"schema": "txcalc/crossover/1", "convention": convention, "rows": rows, "cache": contexts}
    if classic:
        names = [(rule.name, attention) for rule in RULES for attention in ("dense", "masked")]
        blocks = list(zip(names, *classic, strict=True))
        data["classic"] = [
            {"rule": rule, "attention": attention, "plain": _text(plain), "gated": _text(gated)}
            for (rule, attention), plain, gated in blocks
        ]
        lines = [
            [f"{rule}, {attention}", _math(plain, format_), _math(gated, format_)]
            for (rule, attention), plain, gated in blocks
        ]
        title = "Classic blocks: h_kv = h, h·d_h = D, F = 4·D"
        tables.append(Table(title, ("rule", "plain", "gated"), lines, frozenset(range(3))))
    header = [
        *(_verdict(model.name, crossovers[:2]) for model, crossovers, _, _ in answers),
        "below: the smallest length T at which the left side of a rule reaches the right side",
        "forward FLOPs summed over layers; active experts and routers count as feed-forward; "
        + f"{convention['logits']} logits{', MLA ' + convention['mla'] if convention['mla'] else ''}",
        "a decode step reads its cache, and every weight once except embedding tables and unused experts",
    ]
    return DataReport(data, tables, header, notes)


def _verdict(name: str, first: Sequence[RuleCrossover]) -> str:
    """The first rule's lengths in a line, or why there are none."""
    if not any(each.tokens for each in first):
        why = " or ".join(dict.fromkeys(each.why for each in first if each.why))
        return f"{name}: attention never exceeds the feed-forward{why and f' ({why})'}"
    dense, masked = (f"from {each.tokens:,} tokens" if each.tokens else "never" for each in first)
    return f"{name}: attention exceeds the feed-forward {dense}{f', masked {masked}' if masked != dense else ''}"


def _row(each: RuleCrossover, form: RealCrossing | None) -> dict[str, Any]:
    row = {"rule": each.rule.name, "attention": each.attention, "formula": _text(form), "tokens": each.tokens}
    return {**row, "why": each.why} if each.why else row


def _lengths(model: Model, crossovers: Sequence[RuleCrossover]) -> Table:
    """One line per rule, with two lengths."""
    found = {(each.rule.name, each.attention): cell(each.tokens) if each.tokens else NEVER for each in crossovers}
    lines = [[rule, found[rule, "dense"], found[rule, "masked"]] for rule in dict.fromkeys(name for name, _ in found)]
    headings = ("rule", column("dense", "tokens"), column("masked", "tokens"))
    title = f"{model.name}: crossover length"
    return Table(f"{title} in tokens", headings, lines, name=title)


def _closed(model: Model, crossovers: Sequence[RuleCrossover], forms: Forms, format_: str) -> Iterator[Table]:
    """The closed form of each length, or why there is none; long ones below their rule on a terminal."""
    found: dict[str, dict[TableCell, list[str]]] = {}
    for each, form in zip(crossovers, forms, strict=True):
        how = TableCell(each.why, each.why) if each.why else _math(form, format_)
        if how.text:
            found.setdefault(each.rule.name, {}).setdefault(how, []).append(each.attention)
    lines = [
        (f"{rule}, {of[0]}" if len(of) == 1 else rule, how) for rule, hows in found.items() for how, of in hows.items()
    ]
    headings: tuple[str, ...] = ("rule", "closed form" if any(forms) else "why")
    rows: list[list[Any]] = [[*line] for line in lines]
    title = f"{model.name}: {headings[1]}"
    if format_ == "table" and any(len(how.text) > BESIDE for _, how in lines):
        headings, rows = ("",), [[f"{rule}\n  " + how.text.replace("; ", "\n  ")] for rule, how in lines]
    if lines:
        yield Table(title, headings, rows, frozenset({0, 1}), name=title)


def _contexts(model: Model, balances: Sequence[CacheCrossover]) -> Table:
    lines = []
    for batch, context, weights, cache in balances:
        found = cell(context) if context else NEVER
        lines.append(
            [cell(batch), found, TableCell(weights, iec(weights)), TableCell(cache, iec(cache) if cache else "")]
        )
    title = f"{model.name}: context from which a decode step reads more cache than weights"
    read = TableCell("weights bytes", "weights read"), TableCell("cache bytes", "cache read")
    return Table(title, ("batch", "context from", *read), lines, frozenset(), name=title)


def _text(form: RealCrossing | None) -> str | None:
    return form.write() if form else None


def _math(form: RealCrossing | None, format_: str) -> TableCell:
    if form is None:
        return TableCell(None, "")
    return TableCell(form.write(), f"${form.latex()}$" if format_ == "latex" else form.write())
