"""The reports of `txcalc scale` and `txcalc entropy`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import exp, log
from sys import float_info
from typing import Any

from txcalc.planning.scaling import EntropyValues, LossPoint, ScalingAnswer, ScalingQuestion
from txcalc.render.report import DataReport, Table, TableCell, column, rounded
from txcalc.units import short

COUNTS = "N: all parameters with embeddings; C = 6·N·D; loss in nats per token of each law's own tokenizer"
BITS = log(2)  # nats
LONG = log(1e6)  # nats; a perplexity from here on is written with an exponent


def scale_report(
    asked: ScalingQuestion, answers: Sequence[ScalingAnswer], counted: str, per_token: Fraction | None
) -> DataReport:
    """The predictions of each law; `counted`: the model of N; `per_token`: bytes per token of the user's tokenizer."""
    free = sum(number is not None for number in asked[:3]) == 1
    header = [_verdict(answers[0], free, counted), COUNTS]
    headings: list[Any] = ["law", "N", "D", "D/N", column("loss", "nats"), "perplexity", "bits/token"]
    if per_token:
        headings.append("bits/byte")
    title = "Optimal model" if free else "Given model"
    tables = [Table(title, headings, [_row(each, each.asked, per_token) for each in answers])]
    if not free:
        rows = [_row(each, each.best, per_token) for each in answers]
        tables.append(Table(f"Optimal for the same {_flops(answers[0].compute)}", headings, rows))
    known = [
        [name, *(_round(value, 3) for value in (getattr(each.law, name), *interval))]
        for each in answers
        for name, interval in each.law.interval.items()
    ]
    if known:
        named = " and ".join(each.law.name for each in answers if each.law.interval)
        tables.append(
            Table(f"95 % confidence of the constants of {named}", ("constant", "value", "low", "high"), known)
        )
    sources = [f"{each.law.name}: {each.law.title}; {each.law.data}; {each.law.source}" for each in answers]
    if per_token:
        sources.append("bits per byte assume your tokenizer's bytes per token for every law")
    data = {
        "schema": "txcalc/scale/1",
        **{
            key: value for key, value in zip(("params", "train_tokens", "compute", "unique_tokens"), asked, strict=True)
        },
        "bytes_per_token": float(per_token) if per_token else None,
        "counts": COUNTS,
        "laws": [_data(each, per_token) for each in answers],
    }
    warnings = [warning for each in answers for warning in each.warnings]
    return DataReport(data, tables, header, [*warnings, *sources])


def _verdict(answer: ScalingAnswer, free: bool, counted: str) -> str:
    point, best = answer.asked, answer.best
    who = f"{counted}: " if counted else ""
    sizes = f"{short(point.params)} parameters on {short(point.tokens)} tokens"
    if free:
        return f"{who}optimal: {sizes}, {_flops(answer.compute)}: loss {point.loss:.3f} by {answer.law.name}"
    over = f"{100 * (point.loss / best.loss - 1):.1f} % above the optimum for its {_flops(answer.compute)}"
    return f"{who}{sizes}: loss {point.loss:.3f} by {answer.law.name}, {over}"


def _row(answer: ScalingAnswer, point: LossPoint, per_token: Fraction | None) -> list[Any]:
    bits = point.loss / BITS
    row = [answer.law.name, rounded(point.params), rounded(point.tokens), _round(point.tokens / point.params, 1)]
    row += [_round(point.loss, 3), _perplexity(point.loss), _round(bits, 3)]
    return [*row, _round(bits / float(per_token), 3)] if per_token else row


def _flops(number: float) -> str:
    return f"{number:.3g}".replace("e+", "e") + " FLOPs"


def _round(value: float, digits: int) -> TableCell:
    return TableCell(value, f"{value:,.{digits}f}")


def _perplexity(loss: float) -> TableCell:
    """e to the loss; infinite where no float holds it."""
    if loss > log(float_info.max):
        return TableCell(None, "infinite")
    return _round(exp(loss), 2) if loss < LONG else TableCell(exp(loss), f"{exp(loss):.3g}".replace("e+", "e"))


def _data(answer: ScalingAnswer, per_token: Fraction | None) -> dict[str, Any]:
    law = answer.law

    def point(at: LossPoint) -> dict[str, Any]:
        bits = at.loss / BITS
        return {
            "params": at.params,
            "train_tokens": at.tokens,
            "loss": at.loss,
            "perplexity": _perplexity(at.loss).value,
            "bits_per_token": bits,
            "bits_per_byte": bits / float(per_token) if per_token else None,
        }

    return {
        "name": law.name,
        "title": law.title,
        "source": law.source,
        "data": law.data,
        "constants": {name: getattr(law, name) for name in ("E", "A", "B", "alpha", "beta")},
        "interval_95": {name: list(values) for name, values in law.interval.items()},
        "fitted": {"params": list(law.params), "train_tokens": list(law.tokens)},
        "compute": answer.compute,
        "asked": point(answer.asked),
        "best": point(answer.best),
        "warnings": list(answer.warnings),
    }


def entropy_report(found: EntropyValues) -> DataReport:
    """Entropy, cross-entropy and divergence, in bits and nats, and the perplexities."""
    rows = [_sums("entropy H(p)", found.entropy, True)]
    if found.q is not None:
        rows += [_sums("cross-entropy H(p, q)", found.cross, True), _sums("divergence KL(p ‖ q)", found.kl, False)]
    infinite = found.q is not None and found.cross is None
    notes = ["q is 0 where p is not, so the divergence is infinite"] if infinite else []

    def sums(bits: float | None, perplexity: bool) -> dict[str, float | None]:
        nats = None if bits is None else bits * BITS
        values = {"bits": bits, "nats": nats}
        return {**values, "perplexity": None if bits is None else 2**bits} if perplexity else values

    data: dict[str, Any] = {
        "schema": "txcalc/entropy/1",
        "p": [float(x) for x in found.p],
        "q": None if found.q is None else [float(x) for x in found.q],
        "entropy": sums(found.entropy, True),
    }
    if found.q is not None:
        data |= {"cross_entropy": sums(found.cross, True), "kl": sums(found.kl, False), "infinite": infinite}
    return DataReport(data, [Table("", ("quantity", "bits", "nats", "perplexity"), rows)], notes=notes)


def _sums(name: str, bits: float | None, perplexity: bool) -> list[Any]:
    found = [None] * 3 if bits is None else [bits, bits * BITS, 2**bits]
    cells = [TableCell(None, "infinite") if value is None else _round(value, 6) for value in found]
    return [name, *cells[:2], cells[2] if perplexity else TableCell(None, "")]
