"""What a framework holds beside the state and the activations: gathered weights, buffers of collectives, the loss.

Memory is largest at one of a few moments, each named here. A rule is its framework's own code (`Framework.source`);
nothing here is fitted to a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from txcalc.parts.linear import Linear
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import Piece
from txcalc.planning.training.states import State, Tensor, chunk

# Bytes of a logit in PyTorch's cross-entropy in fp32: its log-softmax, kept for backward; at the most beside it the
# gradients of both of the loss's steps.
LOSS_KEEPS, LOSS_AT_MOST = 4, 12


class Moment(NamedTuple):
    """What is there at a moment beside parameters and optimizer state; `saved`: the activations, `again`: those of a
    block that is computed again too."""

    gradients: int
    gathered: int = 0
    buffers: int = 0
    logits: int = 0
    saved: bool = True
    again: bool = False


def moments(
    recipe: Recipe, pieces: Sequence[Piece], held: Sequence[Sequence[Tensor]], state: State, column: int
) -> dict[str, Moment]:
    """The moments at which a rank may hold most: in the loss, in the first block's backward, at the end of backward,
    and in the optimizer's step."""
    loss = LOSS_AT_MOST * logits(recipe, pieces, column)
    if recipe.layout.fsdp > 1:
        return _fsdp2(recipe, held, state, loss)
    return _unsharded(recipe, state, loss)


def logits(recipe: Recipe, pieces: Sequence[Piece], column: int) -> int:
    """Logits of one micro-batch on the column-th rank of tp."""
    elements = 0
    for piece in pieces:
        for leaf in piece.leaves:
            if leaf.entry.kind == "head" and isinstance(leaf.entry.leaf, Linear) and leaf.entry.work is not None:
                own, whole = leaf.entry.leaf, leaf.whole
                assert isinstance(whole, Linear)
                columns = own.d_out if recipe.loss_parallel else whole.d_out
                if recipe.rules.name == "fsdp2" and recipe.loss_parallel and own.d_out != whole.d_out:
                    columns = chunk(whole.d_out, recipe.layout.tp, column)
                elements += leaf.entry.work.positions * columns
    return elements


def _fsdp2(recipe: Recipe, held: Sequence[Sequence[Tensor]], state: State, loss: int) -> dict[str, Moment]:
    """fully_shard on every block and on the root: the root's weights stay gathered from forward to backward, a block's
    are gathered when it runs; in backward the next one's as well, and its gradient is reduced in `reduce`."""
    width, wide = recipe.compute_bytes, recipe.reduce_bytes
    blocks: dict[int, int] = {}
    root, stays = 0, not recipe.reshard
    for tensor in (tensor for some in held for tensor in some):
        for layer in tensor.group:
            blocks[layer] = blocks.get(layer, 0) + tensor.size * tensor.copies // len(tensor.group)
        root += 0 if tensor.group else tensor.size * tensor.copies
    block = max(blocks.values(), default=0)
    accumulated, whole = 0, 0
    if recipe.layout.pp > 1:
        # torch's pipeline: between micro-batches weights stay gathered, and gradients whole, in `reduce`, unreduced.
        stays, whole = True, wide * (root + sum(blocks.values())) if recipe.accumulation > 1 else 0
    elif recipe.accumulation > 1:
        accumulated = state.gradients
    always = sum(blocks.values()) * width if stays else 0
    running = root * width + (always or min(2, len(blocks)) * block * width)
    return {
        "loss": Moment(accumulated, root * width + always, whole, loss),
        "backward": Moment(accumulated, running, whole or block * (width + wide) + root * width, again=True),
        "end": Moment(state.gradients, root * width, root * (width + wide), saved=False),
        "step": Moment(state.gradients, saved=False),
    }


def _unsharded(recipe: Recipe, state: State, loss: int) -> dict[str, Moment]:
    """Whole weights on every rank; gradients are there throughout where they live in buffers or are accumulated."""
    kept = recipe.rules.held or recipe.accumulation > 1
    # DistributedDataParallel copies gradients into buckets, which together are as large.
    buckets = state.gradients if recipe.rules.name == "fsdp2" and recipe.layout.dp > 1 else 0
    accumulated = state.gradients if kept else 0
    return {
        "loss": Moment(accumulated, 0, buckets, loss),
        "backward": Moment(accumulated, 0, buckets, again=True),
        "end": Moment(state.gradients, 0, buckets, saved=False),
        "step": Moment(state.gradients, 0, buckets, saved=False),
    }
