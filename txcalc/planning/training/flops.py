"""FLOPs of a training step: forward, backward, and what is computed again to save memory."""

from __future__ import annotations

from typing import Any, Literal

from txcalc.ledger import Entry, Ledger
from txcalc.num import total

Recompute = Literal["none", "core", "blocks"]

# Leaves that multiply what nobody learns: a picture, sound, the sinusoids of distances. Backward needs no gradient of
# their input, so it has one product for them and not two.
READS_DATA = frozenset({"patches", "conv1", "position"})


# What a model selects by learns from no loss of the model's: the indexer of sparse attention has a forward and no more.
# (DeepSeek-V3.2-Exp, section 2.1.1, trains it beside the model, by a loss of its own on inputs that are detached.)
SELECTS = "indexer"


def training_flops(ledger: Ledger, recompute: Recompute = "none") -> Any:
    """FLOPs of one step over the ledger's workload.

    Unit     FLOPs of matrix products, dense attention, two a multiply-add
    Counts   forward; for each product two of its size in backward (its input's gradient and its weight's, or those of
             both operands in attention), one where the input is data, none in an indexer; with
             `recompute` the forward again of the attention cores (`core`) or of whole blocks (`blocks`)
    Omits    everything that is not a matrix product; the optimizer; the indexer's own loss
    Source   Kaplan et al. 2020 (arXiv 2001.08361), section 2.1; Chen et al. 2016 (arXiv 1604.06174) for recomputing
    """
    return total([step_flops(entry, recompute) for entry in ledger])


def step_flops(entry: Entry, recompute: Recompute = "none") -> Any:
    """One leaf's share of `training_flops`."""
    passes = 1 if selects(entry) else 2 if entry.steps[-1].name in READS_DATA else 3
    return entry.flops * (passes + (1 if recomputed(entry, recompute) else 0))


def recomputed(entry: Entry, recompute: Recompute) -> bool:
    """Whether backward computes this leaf again."""
    if recompute == "core":
        return entry.kind == "attention_core" and not selects(entry)
    return recompute == "blocks" and any(step.name == "layers" for step in entry.steps)


def selects(entry: Entry) -> bool:
    """Whether a leaf is part of what a model selects by."""
    return any(step.name == SELECTS for step in entry.steps)


def reached(ledger: Ledger) -> Ledger:
    """The leaves that the model's loss gives a gradient."""
    return ledger.where(lambda entry: not selects(entry))
