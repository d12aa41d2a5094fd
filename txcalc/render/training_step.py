"""The table of a training step, part by part, in `show`."""

from __future__ import annotations

from txcalc.ledger import kind_words
from txcalc.questions.training_step import TrainingStep
from txcalc.render.report import Table, TableCell, cell
from txcalc.units import iec, short

HEADINGS = (
    ("FLOPs, dense", "FLOPs"),
    ("of these recomputed", "recomputed"),
    ("saved activations, bytes", "saved"),
    ("optimizer state, bytes", "optimizer"),
)


def table(step: TrainingStep) -> Table:
    """Each kind of part of the fullest GPU, and their sum."""
    rows = [
        [
            kind_words(kind),
            cell(part.flops or None),
            TableCell(part.recomputed_flops, short(part.recomputed_flops) if part.recomputed_flops else ""),
            TableCell(part.saved_bytes, iec(part.saved_bytes) if part.saved_bytes else ""),
            TableCell(part.optimizer_bytes, iec(part.optimizer_bytes) if part.optimizer_bytes else ""),
        ]
        for kind, part in step.in_order().items()
    ]
    sums = (short(step.recomputed_flops), iec(step.saved_bytes), iec(step.optimizer_bytes))
    rows.append(["total", cell(step.flops), *map(cell, sums)])
    batches = f", {step.accumulation} micro-batches" if step.accumulation > 1 else ""
    where = f" of rank {step.rank} of {step.layout}{batches}" if step.layout.layout.gpus > 1 else ""
    headings = ["part", *(TableCell(name, text) for name, text in HEADINGS)]
    return Table(f"A training step{where}: modelled", headings, rows, total=True, name="training step")
