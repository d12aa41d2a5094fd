"""The tables of `scale`."""

from __future__ import annotations

from typing import Any

from txcalc.planning.scaling import TOKENS_PER_PARAM
from txcalc.questions.scale import ExpectedLoss, LawPrediction, RuleOfThumb, Scale
from txcalc.render.report import Report, Table, TableCell, column, rounded
from txcalc.units import short

LONG = 1e6  # a perplexity from here on is written with an exponent


def report(answer: Scale, form: str) -> Report:
    """The predictions of each law for the given model and for the optimum, and the constants with their confidence."""
    cautions = answer.laws[0].warnings if form == "table" else ()  # of the headline, which data lack
    header = [_verdict(answer), _rule_of_thumb(answer), *cautions, answer.counts]
    headings: list[object] = ["law", "N", "D", "D/N", column("loss", "nats"), "perplexity", "bits/token"]
    headings += ["bits/byte"] if answer.bytes_per_token else []
    title = "Optimal model" if answer.optimal else "Given model"
    tables = [Table(title, headings, [_row(law.name, law.asked) for law in answer.laws])]
    if not answer.optimal:
        rows = [_row(law.name, law.best) for law in answer.laws]
        tables.append(Table(f"Optimal for the same {_flops(answer.laws[0].compute)}", headings, rows))
    laws = [law for law in answer.laws if law.interval_95]
    constants = [
        [name, *(_round(value, 3) for value in (law.constants[name], *interval))]
        for law in laws
        for name, interval in law.interval_95.items()
    ]
    if constants:
        title = f"95 % confidence of the constants of {' and '.join(law.name for law in laws)}"
        tables.append(Table(title, ("constant", "value", "low", "high"), constants))
    return Report(tables, header, [note for note in answer.notes if note not in cautions])


def _verdict(answer: Scale) -> str:
    law: LawPrediction = answer.laws[0]
    point = law.asked
    name = f"{answer.model.name}: " if answer.model else ""
    loss = f"loss {point.loss:.3f} ({law.name})"
    if answer.optimal:
        sizes = f"{_sizes(point)} ({point.tokens_per_param:.1f} per parameter)"
        return f"{name}optimal: {sizes}, {_flops(law.compute)}; {loss}"
    above = f"{100 * law.excess_loss:.1f} % above the optimum for its {_flops(law.compute)}"
    return f"{name}{_sizes(point)}: {loss}, {above}"


def _rule_of_thumb(answer: Scale) -> str:
    same = "" if answer.optimal else " for these FLOPs"
    return f"rule of thumb, {TOKENS_PER_PARAM} tokens per parameter: {_sizes(answer.rule_of_thumb)}{same}"


def _sizes(point: ExpectedLoss | RuleOfThumb) -> str:
    return f"{short(point.params)} parameters on {short(point.train_tokens)} tokens"


def _row(name: str, point: ExpectedLoss) -> list[Any]:
    row = [name, rounded(point.params), rounded(point.train_tokens), _round(point.tokens_per_param, 1)]
    row += [_round(point.loss, 3), _perplexity(point.perplexity), _round(point.bits_per_token, 3)]
    return row if point.bits_per_byte is None else [*row, _round(point.bits_per_byte, 3)]


def _flops(number: float) -> str:
    return f"{number:.3g}".replace("e+", "e") + " FLOPs"


def _round(value: float, digits: int) -> TableCell:
    return TableCell(value, f"{value:,.{digits}f}")


def _perplexity(value: float | None) -> TableCell:
    if value is None:
        return TableCell(None, "infinite")
    return _round(value, 2) if value < LONG else TableCell(value, f"{value:.3g}".replace("e+", "e"))
