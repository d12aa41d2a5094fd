"""A training step in the answer of `txcalc show`: its FLOPs, saved activations and optimizer state by part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from txcalc.ledger import KINDS
from txcalc.planning.training.parts import StepParts
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.states import OPTIMIZERS
from txcalc.render.report import Report, Table, TableCell, cell
from txcalc.units import iec, short


def recipe_line(recipe: Recipe) -> str:
    """What is assumed of a step, in one line."""
    kept = OPTIMIZERS[recipe.optimizer].what
    master = ", and fp32 weights beside" if recipe.rules.master and recipe.parameter_bytes < 4 else ""
    return f"trained: recompute {recipe.recompute}; {recipe.optimizer} as {recipe.framework} keeps it ({kept}{master})"


def recipe_data(recipe: Recipe) -> dict[str, Any]:
    """The same as JSON has it."""
    return {
        "framework": recipe.framework,
        "micro_batch": recipe.micro_batch,
        "accumulation": recipe.accumulation,
        "tokens": recipe.tokens,
        "recompute": recipe.recompute,
        "optimizer": recipe.optimizer,
    }


def with_step(found: Report, recipe: Recipe, step: StepParts) -> Report:
    """The report with a training step of one rank."""
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
