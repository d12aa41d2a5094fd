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


class SavedActivations(NamedTuple):
    """Bytes that a piece saves for one micro-batch.

    saved         from its forward to its backward
    recomputed    in addition, while backward of its largest recomputed block or attention core runs
    offloadable   of `saved`, what can be offloaded to the host: its blocks' activations except the two largest
    """

    saved: int
    recomputed: int
    offloadable: int


def saved_activations(piece: StagePiece, recipe: Recipe, width: int) -> SavedActivations:
    """Bytes of one micro-batch in a piece; `width`: the model's D."""
    layers = sorted({i for leaf in piece.leaves for i in leaf.layers})
    numbers = recomputed(piece, recipe)
    sizes = [(leaf, leaf_bytes(leaf, recipe)) for leaf in piece.leaves]
    outside = sum(size for leaf, size in sizes if not leaf.layers)
    folded = _folded(layers, piece)
    layer_bytes = {i: sum(size // len(h.layers) for h, size in sizes if i in h.layers) for i in {*folded.values()}}
    by_layer = {i: layer_bytes[first] for i, first in folded.items()}
    entrances = _entrances(piece, recipe, width)
    blocks = sorted(entrances[i] if i in numbers else size for i, size in by_layer.items())
    saved, offloadable = outside + sum(blocks), sum(blocks[:-2])
    recomputed_bytes = max((size - entrances[i] for i, size in by_layer.items() if i in numbers), default=0)
    if recipe.recompute == "core":
        recomputed_bytes = max((_recomputed_core(leaf, recipe) for leaf in piece.leaves), default=0)
    return SavedActivations(saved, recomputed_bytes, offloadable)


def saved_by_kind(piece: StagePiece, recipe: Recipe, width: int) -> dict[str, int]:
    """`SavedActivations.saved` by kind of leaf; recomputed blocks save only their inputs."""
    numbers, sizes = recomputed(piece, recipe), dict[str, int]()
    for leaf in piece.leaves:
        layers = len(numbers.intersection(leaf.layers))
        size = leaf_bytes(leaf, recipe)
        sizes[leaf.entry.kind] = sizes.get(leaf.entry.kind, 0) + size - size // (len(leaf.layers) or 1) * layers
    blocks = numbers.intersection(i for leaf in piece.leaves for i in leaf.layers)
    entrances = _entrances(piece, recipe, width)
    return {**sizes, INPUTS: sum(entrances[i] for i in blocks)}


def _entrances(piece: StagePiece, recipe: Recipe, width: int) -> dict[int, int]:
    """Bytes of each block's input; an encoder's has its own positions."""
    sizes: dict[int, int] = {}
    for leaf in piece.leaves:
        if leaf.layers and leaf.layers[0] not in sizes and leaf.entry.work is not None:
            size = ceil_div(leaf.entry.work.positions * width, recipe.layout.sp) * recipe.compute_bytes
            sizes |= dict.fromkeys(leaf.layers, int(size))
    return sizes


def _recomputed_core(leaf: RankLeaf, recipe: Recipe) -> int:
    """Bytes that a recomputed attention core saves in addition to its operands: its result and row statistics; without
    a fused kernel also the scores and the scaled queries."""
    entry, work, attended = leaf.entry, leaf.entry.work, leaf.entry.leaf.attended
    if entry.kind != "attention_core" or work is None or attended is None:
        return 0
    copies = len(leaf.layers) or 1
    if not work.keep_scores:
        rows = entry.leaf.statistics(work)
        return int(entry.runs * (core_result(entry) * recipe.compute_bytes + rows * STATISTIC)) // copies
    operands = work.positions * attended.groups * (attended.d_qk + attended.d_v)
    return int((entry.leaf.saved(work) - operands) * entry.runs * recipe.compute_bytes) // copies


def recomputed(piece: StagePiece, recipe: Recipe) -> frozenset[int]:
    """The indices of the layers whose blocks are recomputed."""
    if recipe.recompute in ("none", "core"):
        return frozenset()
    return recipe.recomputed(1 + max((i for leaf in piece.leaves for i in leaf.layers), default=-1))


def _folded(layers: Iterable[int], piece: StagePiece) -> dict[int, int]:
    """Each layer's index → the first layer equal to it."""
    first: dict[int, int] = {}
    for alike in dict.fromkeys(leaf.layers for leaf in piece.leaves):
        for i in alike:
            first.setdefault(i, alike[0])
    return {i: first[i] for i in layers}


def leaf_bytes(leaf: RankLeaf, recipe: Recipe) -> int:
    """Bytes that a leaf and its copies are the first to save, for one micro-batch."""
    entry, work = leaf.entry, leaf.entry.work
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
        elements, width = _eager(leaf, elements, width)
    elif recipe.rules.fused_qkv:
        elements += _fused_keys(leaf)
    if _saves_quantised_input(leaf, recipe):
        elements += work.positions * entry.leaf.matrix[0]  # type: ignore[index]
    rows = entry.leaf.statistics(work)
    if recipe.recompute == "core" and entry.kind == "attention_core":
        elements = saved_by_core(entry)
        rows = 0
    share = _share(leaf, recipe)
    return int(ceil_div(elements * entry.runs * width, share)) + int(
        ceil_div(rows * entry.runs * STATISTIC, leaf.token_shards(recipe.layout))
    )


def _eager(leaf: RankLeaf, elements: int, width: int) -> tuple[int, int]:
    """What uncompiled operations save instead, and in how many bytes (`Framework.eager`)."""
    entry = leaf.entry
    if entry.leaf.role == "norm":
        return elements, STATISTIC
    if entry.leaf.role == "attention":  # half of q, k, v and the result, together as wide as q: q and k once more
        return elements + elements // 2, width
    dropped = entry.duty == "adapts"
    return elements, width + 1 if dropped else width


def _fused_keys(leaf: RankLeaf) -> int:
    """Elements of keys and values that stay saved with queries of as many heads: all three are one tensor, and rotary
    writes a second one of keys and values (nanotron, models/llama.py, CausalSelfAttention.forward)."""
    attended, work = leaf.entry.leaf.attended, leaf.entry.work
    if leaf.entry.kind != "attention_core" or attended is None or work is None or attended.heads != attended.groups:
        return 0
    return int(work.positions * attended.groups * (attended.d_qk + attended.d_v))


def _saves_quantised_input(leaf: RankLeaf, recipe: Recipe) -> bool:
    """Whether a frozen 4-bit product saves its input, which no gradient needs (bitsandbytes 0.41 and later,
    autograd/_functions.py, MatMul4Bit): the first reader does, unless an adapter saves the same tensor."""
    entry, four = leaf.entry, recipe.frozen is not None and recipe.frozen.startswith("nf4")
    if not four or entry.gradient != "input" or entry.leaf.input_kept not in ("yes", "eager") or not leaf.layers:
        return False
    return recipe.rules.eager or entry.duty != "base"


def _share(leaf: RankLeaf, recipe: Recipe) -> int:
    """The number of tp ranks that split a leaf's saved rows: those that it computes, or the input of a sharded product
    where the framework gathers it again."""
    layout = recipe.layout
    return layout.sp if leaf.column and recipe.regathers_inputs and not leaf.entry.routed else leaf.token_shards(layout)
