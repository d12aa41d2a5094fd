"""Saved activations of one micro-batch on one rank, in bytes: by layer, and for a recomputed layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from txcalc.num import ceil_div
from txcalc.planning.gradients import core_result, saved_by_core
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import RankLeaf, StagePiece

STATISTIC = 4  # bytes of a row statistic of a kernel (mean, deviation, log-sum): fp32
INPUTS = "block inputs"  # of recomputed blocks


class SavedActivations(NamedTuple):
    """Bytes that a pipeline piece saves for one micro-batch.

    saved         from its forward to its backward
    recomputed    in addition, while backward of its largest recomputed block or attention core runs
    offloadable   of `saved`, all blocks' activations except the two largest, which host memory can hold
    """

    saved: int
    recomputed: int
    offloadable: int


def saved_activations(piece: StagePiece, recipe: Recipe, width: int) -> SavedActivations:
    """Bytes that a piece saves for one micro-batch; `width` is d_model."""
    layers = sorted({i for leaf in piece.leaves for i in leaf.layers})
    numbers = recomputed(piece, recipe)
    sizes = [(leaf, leaf_bytes(leaf, recipe)) for leaf in piece.leaves]
    outside = sum(size for leaf, size in sizes if not leaf.layers)
    folded = _first_equal(layers, piece)
    layer_bytes = {i: sum(size // len(h.layers) for h, size in sizes if i in h.layers) for i in {*folded.values()}}
    by_layer = {i: layer_bytes[first] for i, first in folded.items()}
    input_bytes = _block_inputs(piece, recipe, width)
    blocks = sorted(input_bytes[i] if i in numbers else size for i, size in by_layer.items())
    saved, offloadable = outside + sum(blocks), sum(blocks[:-2])
    recomputed_bytes = max((size - input_bytes[i] for i, size in by_layer.items() if i in numbers), default=0)
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
    input_bytes = _block_inputs(piece, recipe, width)
    return {**sizes, INPUTS: sum(input_bytes[i] for i in blocks)}


def _block_inputs(piece: StagePiece, recipe: Recipe, width: int) -> dict[int, int]:
    """Bytes of each block's input, by layer."""
    sizes: dict[int, int] = {}
    for leaf in piece.leaves:
        if leaf.layers and leaf.layers[0] not in sizes and leaf.entry.work is not None:
            size = ceil_div(leaf.entry.work.positions * width, recipe.layout.sp) * recipe.compute_bytes
            sizes |= dict.fromkeys(leaf.layers, int(size))
    return sizes


def _recomputed_core(leaf: RankLeaf, recipe: Recipe) -> int:
    """Bytes that a recomputed attention core saves in addition to its operands: its result and row statistics; without
    a fused kernel, the scores and the scaled queries."""
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


def _first_equal(layers: Iterable[int], piece: StagePiece) -> dict[int, int]:
    """Each layer's index → the first layer equal to it."""
    first: dict[int, int] = {}
    for equal_layers in dict.fromkeys(leaf.layers for leaf in piece.leaves):
        for i in equal_layers:
            first.setdefault(i, equal_layers[0])
    return {i: first[i] for i in layers}


def leaf_bytes(leaf: RankLeaf, recipe: Recipe) -> int:
    """Bytes that a leaf and its copies are the first to save, for one micro-batch."""
    entry, work = leaf.entry, leaf.entry.work
    if work is None or entry.gradient == "none":
        return 0
    elements = entry.leaf.saved_fused(work) if recipe.rules.fused else entry.leaf.saved(work)
    if recipe.context == "ulysses" and recipe.layout.cp > 1 and entry.leaf.input_kept == "eager":
        # The attention kernel saves another tensor, since all-to-alls come before this product.
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
        elements, rows = saved_by_core(entry), 0
    statistics = ceil_div(rows * entry.runs * STATISTIC, leaf.token_shards(recipe.layout))
    return int(ceil_div(elements * entry.runs * width, _saved_shards(leaf, recipe))) + int(statistics)


def _eager(leaf: RankLeaf, elements: int, width: int) -> tuple[int, int]:
    """The elements that uncompiled operations save, and bytes per element (`Framework.eager`)."""
    entry = leaf.entry
    if entry.leaf.role == "norm":
        return elements, STATISTIC
    if entry.leaf.role == "attention":  # q, k, v and the result have equal widths; q and k are saved twice
        return elements + elements // 2, width
    return elements, width + 1 if entry.duty == "adapts" else width  # one byte for dropout's mask


def _fused_keys(leaf: RankLeaf) -> int:
    """Elements of keys and values that stay saved if queries have as many heads: q, k and v are one tensor, and rotary
    writes a second tensor of keys and values (nanotron, models/llama.py, CausalSelfAttention.forward)."""
    attended, work = leaf.entry.leaf.attended, leaf.entry.work
    if leaf.entry.kind != "attention_core" or attended is None or work is None or attended.heads != attended.groups:
        return 0
    return int(work.positions * attended.groups * (attended.d_qk + attended.d_v))


def _saves_quantised_input(leaf: RankLeaf, recipe: Recipe) -> bool:
    """Whether a frozen 4-bit product saves its input, which no gradient needs (bitsandbytes 0.41 and later,
    autograd/_functions.py, MatMul4Bit): the first reader does, unless an adapter saves the same tensor."""
    entry = leaf.entry
    reads_first = entry.gradient == "input" and entry.leaf.input_kept in ("yes", "eager") and bool(leaf.layers)
    return recipe.frozen in ("nf4", "nf4-dq") and reads_first and (recipe.rules.eager or entry.duty != "base")


def _saved_shards(leaf: RankLeaf, recipe: Recipe) -> int:
    """The number of tp ranks over which a leaf's saved rows are sharded: the rows that it computes, or the input of a
    sharded product if the framework gathers it again."""
    layout = recipe.layout
    return layout.sp if leaf.column and recipe.regathers_inputs and not leaf.entry.routed else leaf.token_shards(layout)
