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
from txcalc.planning.training.states import State, Tensor


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
    recipe: Recipe, pieces: Sequence[Piece], held: Sequence[Sequence[Tensor]], state: State
) -> dict[str, Moment]:
    """The moments at which a rank may hold most: in the loss, in the first block's backward, at the end of backward,
    and in the optimizer's step."""
    loss = logits_bytes(recipe, pieces)
    if recipe.layout.fsdp > 1:
        return _fsdp2(recipe, held, state, loss)
    return _unsharded(recipe, state, loss)


def logits_bytes(recipe: Recipe, pieces: Sequence[Piece]) -> int:
    """Logits and what the loss makes of them, at the largest: 12 bytes each in PyTorch (log-softmax in fp32, kept for
    backward, its gradient and that of the loss); Megatron and nanotron: logits in 16 bits, in fp32 and the softmax."""
    elements = 0
    for piece in pieces:
        for leaf in piece.leaves:
            if leaf.entry.kind == "head" and isinstance(leaf.entry.leaf, Linear) and leaf.entry.work is not None:
                own, whole = leaf.entry.leaf, leaf.whole
                assert isinstance(whole, Linear)
                columns = own.d_out if recipe.loss_parallel else whole.d_out
                elements += leaf.entry.work.positions * columns
    return 12 * elements


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
