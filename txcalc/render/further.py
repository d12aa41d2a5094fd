"""Further tables of `txcalc show`: FLOPs as others count them, and a training step by part."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from msgspec.structs import replace

from txcalc.ledger import KINDS, Ledger
from txcalc.planning.terms import Convention, ConventionTerm
from txcalc.planning.training.optimizers import OPTIMIZERS
from txcalc.planning.training.parts import StepParts
from txcalc.planning.training.recipe import Recipe
from txcalc.render.report import DataReport, Table, TableCell, cell, error, rounded
from txcalc.units import iec, short


def recipe_line(recipe: Recipe) -> str:
    """The recipe of a step, in one line."""
    kept = OPTIMIZERS[recipe.optimizer].what
    master = ", fp32 master weights" if recipe.rules.master and recipe.parameter_bytes < 4 else ""
    return f"training: recompute {recipe.recompute}; {recipe.optimizer} as in {recipe.framework} ({kept}{master})"


def recipe_data(recipe: Recipe) -> dict[str, Any]:
    """The recipe in JSON."""
    names = ("framework", "micro_batch", "accumulation", "tokens", "recompute", "optimizer")
    return {name: getattr(recipe, name) for name in names}


def with_step(found: DataReport, recipe: Recipe, step: StepParts) -> DataReport:
    """Adds a training step of one rank."""
    layout, whole, rank = recipe.layout, step.total, step.rank
    order = [*(kind for kind in KINDS if kind in step.parts), *(kind for kind in step.parts if kind not in KINDS)]
    rows = [
        [
            kind.replace("_", " "),
            cell(part.flops or None),
            *(TableCell(n, text(n) if n else "") for n, text in zip(part[1:], (short, iec, iec), strict=True)),
        ]
        for kind, part in ((kind, step.parts[kind]) for kind in order)
    ]
    rows.append(["total", cell(whole.flops), short(whole.again), iec(whole.saved), iec(whole.optimizer)])
    batches = f", {recipe.accumulation} micro-batches" if recipe.accumulation > 1 else ""
    where = f" of rank {rank.rank} of {layout}{batches}" if layout.gpus > 1 else ""
    names = ("FLOPs, dense", "of these recomputed", "saved activations, bytes", "optimizer state, bytes")
    shown = ("FLOPs", "recomputed", "saved", "optimizer")
    headings = ["part", *(TableCell(name, text) for name, text in zip(names, shown, strict=True))]
    table = Table(f"A training step{where}: modelled", headings, rows, total=True, name="training step")
    data = {
        **recipe_data(recipe),
        "layout": layout.record(),
        "rank": rank.rank,
        "stage": rank.stage,
        "in_flight": list(rank.held),
        "flops": whole.flops,
        "recomputed_flops": whole.again,
        "saved_bytes": whole.saved,
        "parameters_bytes": rank.state.parameters,
        "gradients_bytes": rank.state.gradients,
        "optimizer_bytes": whole.optimizer,
        "parts": {
            kind.replace(" ", "_"): {
                "flops": part.flops,
                "recomputed_flops": part.again,
                "saved_bytes": part.saved,
                "optimizer_bytes": part.optimizer,
            }
            for kind, part in step.parts.items()
        },
    }
    return replace(
        found,
        data={**found.data, "training": data},
        tables=[*found.tables, table],
        header=[*found.header, recipe_line(recipe)],
        notes=[*found.notes, *(note for note in step.notes if note not in found.notes)],
    )


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
