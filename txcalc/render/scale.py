"""The tables of `scale`."""

from __future__ import annotations

from collections.abc import Callable

from txcalc.planning.scaling import TOKENS_PER_PARAM
from txcalc.questions.scale import ExpectedLoss, LawPrediction, RuleOfThumb, Scale
from txcalc.render.report import Column, Report, Table, TableCell, column, rounded, tabulate
from txcalc.units import short

LONG = 1e6  # a perplexity from here on is written with an exponent


def report(answer: Scale, form: str) -> Report:
    """The predictions of each law for the given model and for the optimum, and the constants with their confidence."""
    cautions = answer.laws[0].warnings if form == "table" else ()  # of the headline, which data lack
    header = [_verdict(answer), _rule_of_thumb(answer), *cautions, answer.counts]
    title = "Optimal model" if answer.optimal else "Given model"
    tables = [_table(title, answer, lambda law: law.asked)]
    if not answer.optimal:
        tables.append(_table(f"Optimal for the same {_flops(answer.laws[0].compute)}", answer, lambda law: law.best))
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
    loss = f"loss {point.loss:.3f} (law {law.name})"
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


def _table(title: str, answer: Scale, point: Callable[[LawPrediction], ExpectedLoss]) -> Table:
    """A row per law; a wide terminal shows the largest sizes that it was fitted to."""
    columns: list[Column[LawPrediction]] = [
        Column("law", lambda law: law.name),
        Column(column("N", "", "parameters"), lambda law: rounded(point(law).params)),
        Column(column("D", "", "tokens"), lambda law: rounded(point(law).train_tokens)),
        Column(column("D/N", "", "tokens per\nparameter"), lambda law: _round(point(law).tokens_per_param, 1)),
        Column(column("loss", "nats"), lambda law: _round(point(law).loss, 3)),
        Column("perplexity", lambda law: _perplexity(point(law).perplexity)),
        Column("bits/token", lambda law: _round(point(law).bits_per_token, 3)),
    ]
    if answer.bytes_per_token:
        columns.append(Column("bits/byte", lambda law: _round(point(law).bits_per_byte or 0, 3)))
    columns.append(Column("parameters fitted to", lambda law: rounded(law.fitted.params[1]), optional=True))
    columns.append(Column("tokens fitted to", lambda law: rounded(law.fitted.train_tokens[1]), optional=True))
    return tabulate(title, answer.laws, columns)


def _flops(number: float) -> str:
    return f"{number:.3g}".replace("e+", "e") + " FLOPs"


def _round(value: float, digits: int) -> TableCell:
    return TableCell(value, f"{value:,.{digits}f}")


def _perplexity(value: float | None) -> TableCell:
    if value is None:
        return TableCell(None, "infinite")
    return _round(value, 2) if value < LONG else TableCell(value, f"{value:.3g}".replace("e+", "e"))
