"""Saved activations of one micro-batch on one rank, in bytes: by layer, and for a recomputed layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from txcalc.num import ceil_div
from txcalc.planning.gradients import core_result, saved_by_core
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import RankLeaf, StagePiece

STATISTIC = 4  # bytes: row statistics of kernels (means, deviations, log-sums) are fp32
INPUTS = "block inputs"  # of recomputed blocks


class Kept(NamedTuple):
    """Bytes that a piece saves for one micro-batch.

    saved    from its forward to its backward
    again    in addition, while backward of its largest recomputed block or attention core runs
    away     of `saved`, what can be offloaded to the host: its blocks' activations except the two largest
    """

    saved: int
    again: int
    away: int


def kept(piece: StagePiece, recipe: Recipe, width: int) -> Kept:
    """Bytes of one micro-batch in a piece; `width`: the model's D."""
    layers = sorted({i for held in piece.leaves for i in held.layers})
    numbers = recomputed(piece, recipe)
    sizes = [(held, leaf_bytes(held, recipe)) for held in piece.leaves]
    outside = sum(size for held, size in sizes if not held.layers)
    folded = _folded(layers, piece)
    each = {i: sum(size // len(h.layers) for h, size in sizes if i in h.layers) for i in {*folded.values()}}
    by_layer = {i: each[first] for i, first in folded.items()}
    entrances = _entrances(piece, recipe, width)
    blocks = sorted(entrances[i] if i in numbers else size for i, size in by_layer.items())
    saved, away = outside + sum(blocks), sum(blocks[:-2])
    again = max((size - entrances[i] for i, size in by_layer.items() if i in numbers), default=0)
    if recipe.recompute == "core":
        again = max((_core_again(held, recipe) for held in piece.leaves), default=0)
    return Kept(saved, again, away)


def kept_by_kind(piece: StagePiece, recipe: Recipe, width: int) -> dict[str, int]:
    """`Kept.saved` by kind of leaf; recomputed blocks save only their inputs."""
    numbers, found = recomputed(piece, recipe), dict[str, int]()
    for held in piece.leaves:
        again = len(numbers.intersection(held.layers))
        size = leaf_bytes(held, recipe)
        found[held.entry.kind] = found.get(held.entry.kind, 0) + size - size // (len(held.layers) or 1) * again
    blocks = numbers.intersection(i for held in piece.leaves for i in held.layers)
    entrances = _entrances(piece, recipe, width)
    return {**found, INPUTS: sum(entrances[i] for i in blocks)}


def _entrances(piece: StagePiece, recipe: Recipe, width: int) -> dict[int, int]:
    """Bytes of each block's input; an encoder's has its own positions."""
    found: dict[int, int] = {}
    for held in piece.leaves:
        if held.layers and held.layers[0] not in found and held.entry.work is not None:
            size = ceil_div(held.entry.work.positions * width, recipe.layout.sp) * recipe.compute_bytes
            found |= dict.fromkeys(held.layers, int(size))
    return found


def _core_again(held: RankLeaf, recipe: Recipe) -> int:
    """What a recomputed attention core saves beside its operands: its result and statistics; without a fused kernel
    also the scores and the scaled queries."""
    entry, work, attended = held.entry, held.entry.work, held.entry.leaf.attended
    if entry.kind != "attention_core" or work is None or attended is None:
        return 0
    copies = len(held.layers) or 1
    if not work.keep_scores:
        rows = entry.leaf.statistics(work)
        return int(entry.runs * (core_result(entry) * recipe.compute_bytes + rows * STATISTIC)) // copies
    operands = work.positions * attended.groups * (attended.d_qk + attended.d_v)
    return int((entry.leaf.saved(work) - operands) * entry.runs * recipe.compute_bytes) // copies


def recomputed(piece: StagePiece, recipe: Recipe) -> frozenset[int]:
    """The indices of the layers whose blocks are recomputed."""
    if recipe.recompute in ("none", "core"):
        return frozenset()
    return recipe.recomputed(1 + max((i for held in piece.leaves for i in held.layers), default=-1))


def _folded(layers: Iterable[int], piece: StagePiece) -> dict[int, int]:
    """Each layer's index → the first layer equal to it."""
    first: dict[int, int] = {}
    for alike in dict.fromkeys(held.layers for held in piece.leaves):
        for i in alike:
            first.setdefault(i, alike[0])
    return {i: first[i] for i in layers}


def leaf_bytes(held: RankLeaf, recipe: Recipe) -> int:
    """Bytes that a leaf and its copies are the first to save, for one micro-batch."""
    entry, work = held.entry, held.entry.work
    if work is None or entry.gradient == "none":
        return 0
    elements = entry.leaf.saved(work)
    if recipe.rules.fused:
        elements = entry.leaf.saved_fused(work)
    if recipe.context == "ulysses" and recipe.layout.cp > 1 and entry.leaf.input_kept == "eager":
        # Not the tensor that the attention kernel saves: ranks exchange heads for tokens in between.
        elements = work.positions * entry.leaf.matrix[0]  # type: ignore[index]
    width = recipe.compute_bytes
    if recipe.rules.eager:
        elements, width = _eager(held, elements, width)
    elif recipe.rules.fused_qkv:
        elements += _joint(held)
    if _packed(held, recipe):
        elements += work.positions * entry.leaf.matrix[0]  # type: ignore[index]
    rows = entry.leaf.statistics(work)
    if recipe.recompute == "core" and entry.kind == "attention_core":
        elements = saved_by_core(entry)
        rows = 0
    share = _share(held, recipe)
    return int(ceil_div(elements * entry.runs * width, share)) + int(
        ceil_div(rows * entry.runs * STATISTIC, held.token_shards(recipe.layout))
    )


def _eager(held: RankLeaf, elements: int, width: int) -> tuple[int, int]:
    """What uncompiled operations save instead, and in how many bytes (`Framework.eager`)."""
    entry = held.entry
    if entry.leaf.role == "norm":
        return elements, STATISTIC
    if entry.leaf.role == "attention":  # half of q, k, v and the result, together as wide as q: q and k once more
        return elements + elements // 2, width
    dropped = entry.duty == "adapts"
    return elements, width + 1 if dropped else width


def _joint(held: RankLeaf) -> int:
    """Elements of keys and values that stay saved with queries of as many heads: all three are one tensor, and rotary
    writes a second one of keys and values (nanotron, models/llama.py, CausalSelfAttention.forward)."""
    attended, work = held.entry.leaf.attended, held.entry.work
    if held.entry.kind != "attention_core" or attended is None or work is None or attended.heads != attended.groups:
        return 0
    return int(work.positions * attended.groups * (attended.d_qk + attended.d_v))


def _packed(held: RankLeaf, recipe: Recipe) -> bool:
    """Whether a frozen 4-bit product saves its input, which no gradient needs (bitsandbytes 0.41 and later,
    autograd/_functions.py, MatMul4Bit): the first reader does, unless an adapter saves the same tensor."""
    entry, four = held.entry, recipe.frozen is not None and recipe.frozen.startswith("nf4")
    if not four or entry.gradient != "input" or entry.leaf.input_kept not in ("yes", "eager") or not held.layers:
        return False
    return recipe.rules.eager or entry.duty != "base"


def _share(held: RankLeaf, recipe: Recipe) -> int:
    """The number of tp ranks that split a leaf's saved rows: those that it computes, or the input of a sharded product
    where the framework gathers it again."""
    layout = recipe.layout
    return layout.sp if held.column and recipe.gathers_again and not held.entry.routed else held.token_shards(layout)
