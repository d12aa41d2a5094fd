"""The table of `entropy`."""

from __future__ import annotations

from typing import Any

from txcalc.questions.entropy import Divergence, Entropy, Sums
from txcalc.render.report import Report, Table, TableCell


def report(answer: Entropy, form: str) -> Report:
    """Entropy, cross-entropy and divergence, in bits and nats, and the perplexities."""
    rows = [_row("entropy H(p)", answer.entropy)]
    if answer.cross_entropy and answer.kl:
        rows += [_row("cross-entropy H(p, q)", answer.cross_entropy), _row("divergence KL(p ‖ q)", answer.kl)]
    return Report([Table("", ("quantity", "bits", "nats", "perplexity"), rows)], notes=answer.notes)


def _row(name: str, values: Divergence) -> list[Any]:
    last = _cell(values.perplexity) if isinstance(values, Sums) else TableCell(None, "")
    return [name, _cell(values.bits), _cell(values.nats), last]


def _cell(value: float | None) -> TableCell:
    return TableCell(value, "infinite" if value is None else f"{value:,.6f}")
