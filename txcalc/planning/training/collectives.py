"""What one rank sends and receives in a micro-batch's forward and backward: collectives by kind, how many, how large.

Unit     bytes: of an all-gather what comes out, of a reduce-scatter and an all-reduce what goes in
Counts   FSDP2's gathers and reductions, tensor parallel's between the split products (with or without sequence
         parallel), those of a loss on split logits, and hybrid sharding's all-reduce
Omits    a pipeline's sends, experts' all-to-all, context parallel's exchange, the optimizer's step
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from txcalc.num import ceil_div
from txcalc.planning.training.activations import leaf_bytes, recomputed
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import Held, Piece
from txcalc.planning.training.states import Tensor, sharers, tensors

LOSS_REDUCTIONS = 3  # the maximum, the sum of exponentials and the label's logit, one fp32 number a position each


class Sent(NamedTuple):
    """So many collectives, of so many bytes in all."""

    times: int
    bytes: int


def collectives(pieces: Sequence[Piece], recipe: Recipe, width: int, rank: int = 0) -> dict[str, Sent]:
    """Of the rank-th of tp, for one micro-batch through its pieces, `width` the model's; empty kinds left out."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for piece in pieces:
        if recipe.layout.tp > 1:
            _tensor_parallel(piece, recipe, width, counts, sizes)
        if recipe.shards > 1:
            _fully_sharded(list(tensors(piece, recipe, rank)), recipe, counts, sizes)
    return {kind: Sent(counts[kind], sizes[kind]) for kind in sorted(counts) if counts[kind]}


def _tensor_parallel(piece: Piece, recipe: Recipe, width: int, counts: Counter[str], sizes: Counter[str]) -> None:
    """A branch's input is gathered and its gradient reduced, its output reduced and that gradient gathered; without
    sequence parallel the output and the input's gradient are all-reduced. Norms between have partial gradients, which
    FSDP adds up."""
    rows = piece.work.positions
    stream = rows * width * recipe.compute_bytes
    pair = ("all_gather", "reduce_scatter") if recipe.layout.sp > 1 else ("all_reduce",)
    entrances = set()
    numbers = recomputed(piece, recipe)
    last = {held.layers: i for i, held in enumerate(piece.leaves) if numbers and leaf_bytes(held, recipe)}
    for number, held in enumerate(piece.leaves):
        axes = [axis for _, _, axis in held.axes()]
        copies = len(held.layers) or 1
        if _inside_a_branch(held) and axes[0] == 0 and held.column:
            owner = held.entry.steps[:-1]
            times = 0 if owner in entrances else copies
            entrances.add(owner)
            again = pair[0] if recipe.layout.sp > 1 else None
        else:
            outward = axes[:1] == [1] or (held.entry.leaf.row is not None and axes == [0])
            times = copies if outward or (held.entry.kind == "head" and held.widened) else 0
            again = pair[-1] if number < last.get(held.layers, 0) else None
        for kind in pair if times else ():
            counts[kind] += times
            sizes[kind] += times * stream
        if times and again:  # forward's, where backward runs it again as far as something is kept of it
            times = len(numbers.intersection(held.layers))
            counts[again] += times
            sizes[again] += times * stream
        partial = (recipe.layout.sp > 1 and held.between) or per_head(held)
        if partial and recipe.shards > 1:
            elements = sum(weight.size for weight in held.entry.leaf.weights())
            counts["all_reduce"] += copies * len(axes)
            sizes["all_reduce"] += copies * elements * recipe.compute_bytes
        if held.entry.kind == "head" and held.widened:
            _loss(held, recipe, rows, counts, sizes)


def _loss(held: Held, recipe: Recipe, rows: int, counts: Counter[str], sizes: Counter[str]) -> None:
    if recipe.loss_parallel:
        counts["all_reduce"] += LOSS_REDUCTIONS
        sizes["all_reduce"] += LOSS_REDUCTIONS * rows * 4
    else:
        ways = recipe.layout.tp
        columns = ceil_div(held.whole.matrix[1], ways) * ways  # type: ignore[index]
        counts["all_gather"] += 1
        sizes["all_gather"] += rows * columns * recipe.compute_bytes


def _inside_a_branch(held: Held) -> bool:
    return bool(held.layers) and not held.between and bool(held.entry.leaf.weights())


def per_head(held: Held) -> bool:
    """A norm whose groups are heads, which are split, with one weight for all of them."""
    return bool(held.entry.leaf.shared_by != held.whole.shared_by)


def _fully_sharded(held: Sequence[Tensor], recipe: Recipe, counts: Counter[str], sizes: Counter[str]) -> None:
    """A block's weights are gathered for its forward and again for its backward, the root's once; gradients are reduced
    once. Rows are padded to as many for every rank."""
    groups: Counter[int] = Counter()
    learning: Counter[int] = Counter()
    root = -1
    for tensor in held:
        ways = sharers(recipe, tensor.expert)
        rows = tensor.shape[0]
        elements = tensor.copies * ceil_div(rows, ways) * ways * (tensor.size // max(1, rows))
        for layer in tensor.group or (root,):
            groups[layer] += elements // max(1, len(tensor.group))
            learning[layer] += elements // max(1, len(tensor.group)) if tensor.learns else 0
    for layer, elements in groups.items():
        gathers = 1 if layer == root or not recipe.reshard else 2
        counts["all_gather"] += gathers
        sizes["all_gather"] += gathers * elements * recipe.compute_bytes
    for elements in learning.values():
        if not elements:
            continue
        counts["reduce_scatter"] += 1
        sizes["reduce_scatter"] += elements * recipe.reduce_bytes
        if recipe.layout.dp > 1:
            counts["all_reduce"] += 1
            sizes["all_reduce"] += elements // recipe.shards * recipe.reduce_bytes
