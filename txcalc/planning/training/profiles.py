"""Memory other than state and activations: gathered weights, buffers of collectives, the loss.

Memory is largest at one of a few moments, each named here. The rules follow each framework's own code
(`Framework.source`); nothing here is fitted to a measurement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import StagePiece
from txcalc.planning.training.states import RankTensor, State, chunk


class Moment(NamedTuple):
    """Memory at a moment, in addition to parameters and optimizer state; `saved`: saved activations exist,
    `recomputes`: a recomputed block's exist too."""

    gradients: int
    gathered: int = 0
    buffers: int = 0
    logits: int = 0
    saved: bool = True
    recomputes: bool = False


class PassSizes(NamedTuple):
    """Sizes of a micro-batch's temporaries in a rank's pieces.

    logits      elements of logits
    positions   of a micro-batch in the residual stream
    activation  elements of the widest activation function's operands
    products    elements of the weights of linear layers, each shape once
    """

    logits: int
    positions: int
    activation: int
    products: int

    @classmethod
    def of(cls, recipe: Recipe, pieces: Sequence[StagePiece], column: int = 0) -> PassSizes:
        entries = [leaf.entry for piece in pieces for leaf in piece.leaves]
        operands = [
            entry.leaf.saved_fused(entry.work)
            for entry in entries
            if entry.leaf.role == "activation" and not entry.routed and entry.work is not None
        ]
        elements = logits(recipe, pieces, column)
        return cls(elements, pieces[0].work.positions, max(operands, default=0), _products(pieces))

    def times(self, micro_batch: int, logits: bool = True) -> PassSizes:
        """The sizes for `micro_batch` sequences, from those for one, with or without logits."""
        return PassSizes(
            self.logits * micro_batch * logits,
            self.positions * micro_batch,
            self.activation * micro_batch,
            self.products,
        )


class WeightGroups(NamedTuple):
    """Elements of a rank's weights as FSDP2 groups them.

    root, block, blocks   outside all blocks; of the largest block; of all `number` blocks
    learning              of all trainable weights; `*_learning`: of those of a group
    """

    root: int
    block: int
    blocks: int
    number: int
    learning: int
    root_learning: int
    block_learning: int
    blocks_learning: int

    @classmethod
    def of(cls, tensors: Iterable[RankTensor]) -> WeightGroups:
        tensors = list(tensors)
        learning = [tensor for tensor in tensors if tensor.learns]
        (root, blocks), (root_learning, blocks_learning) = _groups(tensors), _groups(learning)
        return cls(
            root=root,
            block=max(blocks.values(), default=0),
            blocks=sum(blocks.values()),
            number=len(blocks),
            learning=sum(tensor.size * tensor.copies for tensor in learning),
            root_learning=root_learning,
            block_learning=max(blocks_learning.values(), default=0),
            blocks_learning=sum(blocks_learning.values()),
        )


def moments(recipe: Recipe, sizes: PassSizes, groups: WeightGroups, state: State, width: int) -> dict[str, Moment]:
    """The moments at which a rank's memory may be largest: the loss, the first block's backward, the end of backward,
    and the optimizer's step."""
    loss = recipe.logit_bytes[1] * sizes.logits
    if recipe.rules.fuses_gradients:
        return _megatron(recipe, sizes, state, width)
    if recipe.shards > 1:
        return _fsdp2(recipe, groups, state, loss)
    return _unsharded_profile(recipe, groups.learning, state, loss, gathering(recipe, sizes.positions, width))


def gathering(recipe: Recipe, positions: int, width: int) -> int:
    """nanotron's two buffers, never freed, into which a sharded product's input, and its result's gradient, are
    gathered (parallel/utils.py, MemoryBuffer)."""
    if not recipe.rules.gather_buffers or recipe.layout.sp == 1:
        return 0
    return (2 if recipe.regathers_inputs else 1) * positions * width * recipe.compute_bytes


# Entries of a device's launch queue, beyond which the host waits (forums.developer.nvidia.com, thread 68937).
QUEUE = 1024


def unreleased_bytes(recipe: Recipe, pieces: Sequence[StagePiece], state: State) -> int:
    """Bytes that are freed but not yet reusable, because a collective's stream may still read them."""
    if not recipe.rules.record_stream:
        return 0
    rounds = recipe.layout.pp - pieces[0].number if recipe.layout.pp > 1 else 2
    return queued_bytes(recipe, pieces, rounds) + _gathered_weights(recipe, pieces, state)


def queued_bytes(recipe: Recipe, pieces: Sequence[StagePiece], rounds: int) -> int:
    """Bytes of the inputs and outputs of reductions that the host has freed in `rounds` forwards and the device has not
    run. The host runs ahead of the device by as many layers as the launch queue has room for: to the end of the current
    micro-batch, or its backward and the next forward; in a pipeline until it waits for the first gradient, after the
    forward that follows the warm-up (engine.py). The current p2p.py waits at every message, but measured pipelines of
    the playbook reserve memory as if it did not."""
    layers = sum(len({i for leaf in piece.leaves for i in leaf.layers}) for piece in pieces)
    if recipe.layout.sp == 1 or not layers:
        return 0
    message_bytes = 0
    for piece in pieces:
        for join in piece.collectives:
            for transfer in join.entry.transfers:
                if transfer.kind == "reduce_scatter":
                    message = int(transfer.message) * (len(join.layers) or 1) * recipe.compute_bytes
                    message_bytes += message + message // recipe.layout.sp
    return message_bytes * min(min(rounds, recipe.accumulation) * layers, QUEUE // recipe.rules.record_stream) // layers


def _gathered_weights(recipe: Recipe, pieces: Sequence[StagePiece], state: State) -> int:
    """Bytes of the tensor into which nanotron's ZeRO-1 gathers all weights after the step (distributed.py,
    all_gather_coalesced); 0 if a freed activation is large enough for it."""
    largest = 0
    for piece in pieces:
        for leaf in piece.leaves:
            if leaf.entry.leaf.matrix and leaf.entry.work is not None:
                width = recipe.logit_bytes[0] if leaf.entry.kind == "head" else recipe.compute_bytes
                largest = max(largest, int(leaf.entry.work.positions * leaf.entry.leaf.matrix[1]) * width)
    gathers = recipe.zero and recipe.layout.dp > 1 and state.parameters > largest
    return state.parameters + state.parameters // recipe.layout.dp if gathers else 0


def logits(recipe: Recipe, pieces: Sequence[StagePiece], column: int) -> int:
    """Logits of one micro-batch on tp rank `column`."""
    elements = 0
    for piece in pieces:
        for leaf in piece.leaves:
            if leaf.gives_logits and leaf.entry.work is not None:
                assert leaf.entry.leaf.matrix is not None and leaf.whole.matrix is not None
                rank_columns, all_columns = leaf.entry.leaf.matrix[1], leaf.whole.matrix[1]
                columns = rank_columns if recipe.loss_parallel else all_columns
                if recipe.rules.dtensor and recipe.loss_parallel and rank_columns != all_columns:
                    columns = chunk(all_columns, recipe.layout.tp, column)
                elements += leaf.entry.work.positions * columns
    return elements


def _fsdp2(recipe: Recipe, groups: WeightGroups, state: State, loss: int) -> dict[str, Moment]:
    """fully_shard on every block and on the root: the root's weights stay gathered from forward to backward, a block's
    are gathered when it runs, in backward also the next block's; gradients of its trainable weights are reduced in
    `reduce` (_fsdp_param_group.py, `post_backward`)."""
    width, reduce_width = recipe.compute_bytes, recipe.reduce_bytes
    root, learning, reduced = groups.root, groups.root_learning, groups.block_learning
    keeps_blocks, accumulated, unreduced = not recipe.reshard, 0, 0
    if recipe.layout.pp > 1:
        # torch's pipeline: between micro-batches, weights stay gathered, and unreduced gradients stay in `reduce`.
        keeps_blocks = True
        unreduced = reduce_width * (learning + groups.blocks_learning) if recipe.accumulation > 1 else 0
    elif recipe.accumulation > 1:
        accumulated = state.gradients
    kept = groups.blocks * width if keeps_blocks else 0
    gathered = root * width + (kept or min(2, groups.number) * groups.block * width)
    buffers = unreduced or reduced * (width + reduce_width) + learning * width
    return {
        "loss": Moment(accumulated, root * width + kept, unreduced, loss),
        "backward": Moment(accumulated, gathered, buffers, recomputes=True),
        "end": Moment(state.gradients, root * width, learning * (width + reduce_width), saved=False),
        "step": Moment(state.gradients, saved=False),
    }


def _groups(tensors: Iterable[RankTensor]) -> tuple[int, dict[int, int]]:
    """Elements of the root and of each block."""
    root, groups, blocks = 0, Counter[tuple[int, ...]](), Counter[int]()
    for tensor in tensors:
        elements = tensor.size * tensor.copies
        if tensor.group:
            groups[tensor.group] += elements // len(tensor.group)
        else:
            root += elements
    for layers, elements in groups.items():
        for layer in layers:
            blocks[layer] += elements
    return root, blocks


def _unsharded_profile(recipe: Recipe, learning: int, state: State, loss: int, buffers: int) -> dict[str, Moment]:
    """Unsharded weights on every rank, or gathered ones with DeepSpeed's stage 3. Gradients exist at every moment if
    they are in buffers or accumulated. In addition to fp32 buffers, autograd makes gradients in the weights' dtype, and
    DistributedDataParallel's buckets copy them; nanotron uses it only with zero=0."""
    rules, width = recipe.rules, recipe.parameter_bytes
    persistent = rules.gradient_buffers or recipe.accumulation > 1
    accumulated = state.gradients if persistent else 0
    gathered, autograd_bytes = 0, width * learning if rules.makes_gradients else 0
    if recipe.layout.dp > 1 and recipe.zero == 0 and rules.ddp:
        buffers += autograd_bytes or state.gradients
    elif rules.zero_bucket and recipe.zero:
        buffers = width * min(rules.zero_bucket, learning)
        gathered = width * min(rules.zero_live, learning) if recipe.zero == 3 else 0
    return {
        "loss": Moment(accumulated, gathered, buffers, loss),
        "backward": Moment(accumulated, gathered, buffers, recomputes=True),
        "end": Moment(state.gradients, gathered, buffers + autograd_bytes, saved=False),
        "step": Moment(state.gradients, 0, buffers, saved=False),
    }


# Bytes of Transformer Engine's cuBLAS workspace on Hopper and later (pytorch/module/base.py).
WORKSPACE = 33_554_432


def _megatron(recipe: Recipe, sizes: PassSizes, state: State, model_width: int) -> dict[str, Moment]:
    """Products add weights' gradients to the fp32 buffer; autograd gets a dummy of the weight's shape, one for each
    shape, which Transformer Engine never frees (`get_dummy_wgrad`).

    The moments: the loss; the output layer's backward, with the gradients of its logits and of its input, and, with
    sequence parallel, that input gathered again; the first block's backward, in its activation or the product before.
    """
    width, layout = recipe.compute_bytes, recipe.layout
    dummies = width * sizes.products + WORKSPACE
    stream = width * model_width * sizes.positions
    shared, gates = stream // layout.sp, width * sizes.activation
    stream_bytes = 2 * stream if layout.sp > 1 else stream
    block = shared + max(gates, 2 * stream - gates // 2 if layout.sp > 1 else 0)
    gradient = width * sizes.logits
    peer = stream // layout.sp if layout.pp > 1 else 0  # what the next stage sent
    return {
        "loss": Moment(state.gradients, 0, dummies, recipe.logit_bytes[1] * sizes.logits),
        "output layer": Moment(state.gradients, 0, dummies + (stream_bytes + shared if sizes.logits else 0), gradient),
        "backward": Moment(state.gradients, 0, dummies + block + peer, recomputes=True),
        "end": Moment(state.gradients, 0, dummies, saved=False),
    }


def _products(pieces: Sequence[StagePiece]) -> int:
    """Elements of the weights of linear layers, each shape once; layers that read one input are one matrix."""
    shapes = set[tuple[int, int]]()
    for piece in pieces:
        matrices: list[tuple[Any, int]] = []  # (parent module, inputs), outputs
        for leaf in piece.leaves:
            if leaf.entry.leaf.matrix is not None:
                d_in, d_out = leaf.entry.leaf.matrix
                key = leaf.entry.steps[:-1], d_in
                fused = leaf.entry.leaf.input_kept == "no" and matrices and matrices[-1][0] == key
                matrices.append((key, (matrices.pop()[1] if fused else 0) + d_out))
        shapes |= {(rows, d_in) for (_, d_in), rows in matrices}
    return sum(rows * columns for rows, columns in shapes)
