"""FLOPs of a training step: forward, backward and recomputation; FLOPs of attention per score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from txcalc.ledger import Entry, Ledger
from txcalc.num import Num, total
from txcalc.parts.work import MatMul, Operation

Recompute = Literal["none", "core", "blocks"]

FLOPS = 6  # per parameter and token: 2 forward, 4 backward
# Products of a step by `Child.gradient`: one for forward, and one for the gradient of inputs and of weights.
PASSES = {"both": 3, "weights": 2, "input": 2, "none": 1}


def training_flops(ledger: Ledger, recompute: Recompute = "none") -> Num:
    """FLOPs of one step over the ledger's workload.

    Unit     FLOPs of matrix products, dense attention, two per multiply-add
    Counts   forward; for each product two of its size in backward (its input's gradient and its weight's, or those of
             both operands in attention), one if the input is data or the weights are frozen, none in an indexer;
             with `recompute` a second forward of the attention cores (`core`) or of whole blocks (`blocks`)
    Omits    everything that is not a matrix product; the optimizer; the indexer's own loss
    Source   Kaplan et al. 2020 (arXiv 2001.08361), section 2.1; Chen et al. 2016 (arXiv 1604.06174) for recomputing
    """
    return total([step_flops(entry, recompute) for entry in ledger])


def step_flops(entry: Entry, recompute: Recompute = "none") -> Num:
    """One leaf's share of `training_flops`."""
    return entry.flops * (passes(entry) + (1 if recomputed(entry, recompute) else 0))


def passes(entry: Entry) -> int:
    """Products of a step for each product of forward. Attention multiplies activations, which both get a gradient even
    if weights are frozen."""
    frozen_core = entry.gradient == "input" and entry.kind == "attention_core"
    return 3 if frozen_core else PASSES[entry.gradient]


def recomputed(entry: Entry, recompute: Recompute) -> bool:
    """Whether backward recomputes this leaf."""
    if recompute == "core":
        return entry.kind == "attention_core" and entry.gradient != "none"
    return recompute == "blocks" and entry.layer is not None


def scores(operations: Iterable[Operation]) -> Num:
    """Query-key pairs of all heads of one attention core for each sequence, including masked ones."""
    return total([op.count * op.m * op.n for op in operations if op.name == "scores" and isinstance(op, MatMul)])


def flops_per_score(operations: Sequence[Operation]) -> float:
    """FLOPs of all products of one attention core over its number of scores: 2·(d_qk + d_v), and any other products; 1
    without scores."""
    number = scores(operations)
    return float(total([op.flops for op in operations])) / float(number) if number else 1.0


def core_result(entry: Entry) -> Num:
    """Elements of the output of one attention core."""
    attended, work = entry.leaf.attended, entry.work
    return work.positions * attended.heads * attended.d_v if attended and work else 0


def saved_by_core(entry: Entry) -> Num:
    """Elements that one recomputed attention core saves: its operands, and its output if the kernel's backward reads
    it."""
    assert entry.work is not None
    elements = entry.leaf.saved(entry.work._replace(keep_scores=False))
    return elements - core_result(entry) if entry.work.keep_scores else elements


def leaves_with_gradient(ledger: Ledger) -> Ledger:
    """The leaves that get a gradient from the model's loss."""
    return ledger.where(lambda entry: entry.gradient != "none")
