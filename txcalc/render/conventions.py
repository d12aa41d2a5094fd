"""A published count of FLOPs beside txcalc's, as one more table of `txcalc show`."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from txcalc.ledger import Ledger
from txcalc.planning.conventions import Convention, Term
from txcalc.render.report import Report, Table, cell, error, rounded


def beside(report: Report, found: Convention, ledger: Ledger) -> Report:
    """The report with a convention: its table first, its numbers under `as` in JSON."""
    tokens = ledger.work.positions
    rows = [[_named(term), cell(term.theirs), cell(term.ours), _share(term, found.ours)] for term in found.terms]
    rows.append(["total", cell(found.theirs), cell(found.ours), error(found.theirs, found.ours)])
    if tokens > 1:
        rows.append(["a token", rounded(Fraction(found.theirs, tokens)), rounded(Fraction(found.ours, tokens)), ""])
    title = f"As {found.name} counts {found.counts}: {found.formula} ({found.source})"
    table = Table(title, ("term: why they differ", found.name, "txcalc", "off"), rows)
    data = {
        "name": found.name,
        "counts": found.counts,
        "formula": found.formula,
        "source": found.source,
        "theirs": found.theirs,
        "ours": found.ours,
        "terms": [{**term._asdict(), "difference": term.theirs - term.ours} for term in found.terms],
    }
    return replace(report, data={**report.data, "as": data}, tables=[table, *report.tables])


def _named(term: Term) -> str:
    return f"{term.name}: {term.why}" if term.why else term.name


def _share(term: Term, whole: int) -> object:
    """What a term adds to the difference, as a share of txcalc's total."""
    return error(whole + term.theirs - term.ours, whole) if term.theirs != term.ours else ""
