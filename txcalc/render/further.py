"""Further tables of `txcalc show`: FLOPs as others count them, and a training step by part."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from msgspec.structs import replace

from txcalc.ledger import Ledger
from txcalc.planning.terms import Convention, ConventionTerm
from txcalc.render.report import DataReport, Table, cell, error, rounded


def beside(report: DataReport, found: Sequence[Convention], ledger: Ledger) -> DataReport:
    """Adds conventions: their tables first; in JSON under `conventions`, the first under `as` too."""
    data = [_data(each) for each in found]
    tables = [_table(each, ledger) for each in found]
    return replace(report, data={**report.data, "as": data[0], "conventions": data}, tables=[*tables, *report.tables])


def _table(found: Convention, ledger: Ledger) -> Table:
    tokens = ledger.work.positions
    rows = [[_named(term), cell(term.theirs), cell(term.ours), _share(term, found.ours)] for term in found.terms]
    rows.append(["total", cell(found.theirs), cell(found.ours), error(found.theirs, found.ours)])
    if tokens > 1:
        rows.append(["per token", rounded(Fraction(found.theirs, tokens)), rounded(Fraction(found.ours, tokens)), ""])
    title = f"As {found.name} counts {found.counts}: {found.formula} ({found.source})"
    return Table(title, ("term: why they differ", found.name, "txcalc", "off"), rows)


def _data(found: Convention) -> dict[str, Any]:
    return {
        "name": found.name,
        "counts": found.counts,
        "formula": found.formula,
        "source": found.source,
        "theirs": found.theirs,
        "ours": found.ours,
        "terms": [{**term._asdict(), "difference": term.theirs - term.ours} for term in found.terms],
    }


def _named(term: ConventionTerm) -> str:
    return f"{term.name}: {term.why}" if term.why else term.name


def _share(term: ConventionTerm, whole: int) -> object:
    """A term's share of the difference, relative to txcalc's total."""
    return error(whole + term.theirs - term.ours, whole) if term.theirs != term.ours else ""
