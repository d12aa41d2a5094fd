"""The collectives of one rank in the forward and backward pass of a micro-batch: number and bytes of each kind, and
their messages.

Unit     bytes of an all-gather's output, and of the input of a reduce-scatter and an all-reduce
Counts   FSDP2's all-gathers and reductions, tensor parallelism with and without sequence parallelism, the loss on
         logits sharded over the vocabulary, expert parallelism, hybrid sharding's all-reduce
Omits    pipeline sends, the exchange of token counts per expert, context parallelism with ring or Ulysses; for the
         optimizer step see `muon_collectives`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from txcalc.ledger import Entry
from txcalc.model import Model
from txcalc.num import Num, ceil_div, product, total
from txcalc.planning.layout import Group
from txcalc.planning.machine import Machine, Message, relayed_all_to_all, ring
from txcalc.planning.training.activations import STATISTIC, leaf_bytes, recomputed
from txcalc.planning.training.optimizers import OPTIMIZERS
from txcalc.planning.training.profiles import logits
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import Pipeline, RankLeaf, StagePiece
from txcalc.planning.training.states import RankTensor, sharers, stacked_experts, tensors

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
TWIN = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}  # kind in backward; other kinds do not change
LOSS_REDUCTIONS = 3  # the maximum, the sum of exponentials and the label's logit: one fp32 number per position each

Add = Callable[[str, int, int], None]  # kind, number of collectives, bytes of each


class PartialGradients(NamedTuple):
    """A weight replicated over the ranks of `axis`, each of which computes a partial sum of its gradient."""

    axis: str
    copies: int
    elements: int


def local_kv_elements(entry: Entry, width: Num) -> Num:
    """Elements of the keys and values of a rank's own positions, which the other ranks of cp read. MLA's are expanded
    to all heads; an index has only keys. `width` is d_model.

    Source   Transformer Engine, context_parallel.py; torch, context_parallel: both exchange the operands of attention
    """
    leaf, work = entry.leaf, entry.work
    assert work is not None
    if leaf.attended:
        return work.positions * leaf.attended.groups * (leaf.attended.d_qk + leaf.attended.d_v)
    operations = leaf.operations(work._replace(past=0))
    return total([op.traffic.cache for op in operations]) or 2 * work.positions * width


def muon_replicas(tensor: RankTensor, recipe: Recipe) -> int:
    """The number of tp ranks that gather a sharded matrix and each orthogonalise all of it, as in Megatron-LM."""
    if tensor.axis is None or recipe.rules.dtensor:
        return 1
    return recipe.layout.expert_ways if tensor.expert else recipe.layout.tp


def muon_collectives(tensor: RankTensor, recipe: Recipe) -> list[tuple[str, int, int]]:
    """Collectives of one Muon step for one matrix: kind, number, bytes of each.

    Rows sharded by FSDP2 are orthogonalised over DTensor in 16 bits: an all-reduce of the norm; then per Newton–Schulz
    iteration two all-reduces of a columns × columns product if rows > columns, otherwise two all-gathers of X and one
    of X·Xᵀ. Each of stacked experts is whole on one rank, or all are orthogonalised together. Megatron-LM gathers a
    matrix sharded over tp in fp32.

    Source   torch 2.13, optim/_muon.py; Megatron-LM d98e8a64, --muon-tp-mode duplicated (its default)
    Omits    PyTorch's collectives for a matrix sharded over tp
    """
    if (ways := muon_replicas(tensor, recipe)) > 1:
        return [("all_gather", 1, 4 * tensor.size * ways)]
    ranks, steps = sharers(recipe, tensor.expert), OPTIMIZERS[recipe.optimizer].newton_schulz
    *experts, rows, columns = tensor.shape
    if ranks == 1 or tensor.axis is not None or tensor.rows < len(experts):
        return []
    norm = 2 * product(experts)  # bytes
    if rows > columns:
        return [("all_reduce", 1, norm), ("all_reduce", 2 * steps, norm * columns**2)]
    padded = norm * ceil_div(rows, ranks) * ranks
    gathers = [("all_gather", 2 * steps, padded * columns), ("all_gather", steps, padded * rows)]
    return [("all_reduce", 1, norm), *gathers]


def partial_gradients(piece: StagePiece, recipe: Recipe) -> Iterator[PartialGradients]:
    """Replicated weights whose gradient is partial on each rank of tp (of etp for experts), so that it is all-reduced:
    norms and biases under sequence parallelism (each rank has its own positions), per-head norms (its own heads), and
    replicated weights in branches without a tensor-parallel style in torch.

    DTensor reduces each in every backward pass before FSDP's reduction, and never without FSDP; the other frameworks
    reduce all of them once per step.

    Source   torch 2.13, FSDPParam (redistributes to the weight's placements); Megatron-LM d98e8a64, core/distributed/
             finalize_model_grads.py, _allreduce_non_tensor_model_parallel_grads; nanotron 67c5ebb6, trainer.py,
             mark_unsharded_params_as_tied_across_tp
    """
    layout, exact = recipe.layout, recipe.rules.dtensor
    if exact and recipe.shards == 1:
        return
    unstyled, sharded = without_tp_style(piece), layout.sp > 1
    for leaf in piece.leaves:
        if not leaf.learns:
            continue
        axis, ways = ("etp", layout.expert_ways) if leaf.entry.routed else ("tp", layout.tp)
        experts = stacked_experts(leaf.entry, recipe.rules)
        for weight, (_, _, split_axis) in zip(leaf.entry.leaf.weights(), leaf.axes(), strict=True) if ways > 1 else ():
            if leaf.entry.routed:
                partial = split_axis is None
            elif exact:
                styled = leaf.on_residual or leaf.branch not in unstyled
                partial = (sharded and leaf.on_residual) or per_head(leaf) or (split_axis is None and not styled)
            else:
                partial = (sharded and split_axis is None and leaf.entry.leaf.row is None) or per_head(leaf)
            if partial:
                yield PartialGradients(axis, leaf.entry.times // experts, weight.size * experts)


class Sent(NamedTuple):
    """Number of collectives and their total bytes."""

    times: int
    bytes: int


def collectives(pieces: Sequence[StagePiece], recipe: Recipe, rank: int = 0) -> dict[str, Sent]:
    """Collectives by kind of tp's rank number `rank`, for one micro-batch through `pieces`."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()

    def add(kind: str, times: int, size: int) -> None:
        counts[kind] += times
        sizes[kind] += times * size

    for piece in pieces:
        _activations(piece, recipe, add)
        for leaf in piece.leaves if recipe.loss_parallel else ():
            if leaf.entry.kind == "head" and leaf.widened and leaf.entry.work:
                add("all_reduce", LOSS_REDUCTIONS, leaf.entry.work.positions * 4)
        if recipe.layout.cp > 1 and recipe.context == "allgather":
            _keys(piece, recipe, add)
        for part in partial_gradients(piece, recipe):
            add("all_reduce", part.copies, part.elements * recipe.compute_bytes)
        if recipe.shards > 1:
            _fully_sharded(list(tensors(piece, recipe, rank)), recipe, add)
    return {kind: Sent(counts[kind], sizes[kind]) for kind in sorted(counts) if counts[kind]}


def _activations(piece: StagePiece, recipe: Recipe, add: Add) -> None:
    """The collectives of activations: forward, backward, and those repeated by recomputation. In PyTorch's sharding
    each of two parallel branches has collectives, and a token is sent once to each selected expert."""
    numbers = recomputed(piece, recipe)
    positions = {leaf.entry.path: i for i, leaf in enumerate(piece.leaves)}
    ends = {leaf.branch: i for i, leaf in enumerate(piece.leaves)}
    last_saved = {leaf.layers: i for i, leaf in enumerate(piece.leaves) if numbers and leaf_bytes(leaf, recipe)}
    for join in piece.collectives:
        forward, backward = join.passes
        copies, repeats = len(join.layers) or 1, len(numbers.intersection(join.layers))
        branches = len({product.branch for product in join.products}) or 1
        # Results of routed experts are gathered after the branch's shared experts.
        position = positions.get(join.source.entry.path, 0) if join.source else 0
        position = ends[join.branch] if join.entry.duty == "shares" else position
        # Recomputation ends with the last tensor that backward needs, and does not repeat tp's sum after it.
        after_last = position >= last_saved.get(join.layers, position)
        for transfer in join.entry.transfers:
            recomputed_times = repeats * (branches - (after_last and transfer.axis.name == "tp"))
            size = int(transfer.message * (transfer.choices or 1)) * join.width(recipe.compute_bytes)
            add(transfer.kind, forward * (copies * branches + recomputed_times), size)
            add(TWIN.get(transfer.kind, transfer.kind), backward * copies * branches, size)


def _partial_output(leaf: RankLeaf) -> bool:
    """Whether each rank's result is a partial sum: a product sharded along its inputs, or a table sharded by rows (a
    table of relative biases is sharded by heads instead)."""
    axes, module = [axis for _, _, axis in leaf.axes()], leaf.entry.leaf
    return (axes[:1] == [1] and module.role != "table") or (module.row is not None and axes == [0])


def without_tp_style(piece: StagePiece) -> set[tuple[object, ...]]:
    """Branches for which torch has no tensor-parallel style: routed experts, and branches with both replicated and
    sharded weights. The gradients of their replicated weights are partial sums."""
    inside = [leaf for leaf in piece.leaves if leaf.layers and not leaf.on_residual and leaf.entry.leaf.weights()]
    split = {leaf.branch for leaf in inside if leaf.split or leaf.entry.routed}
    return {
        leaf.branch
        for leaf in inside
        if leaf.entry.routed or not (leaf.widened or _partial_output(leaf) or per_head(leaf))
    } & split


def _keys(piece: StagePiece, recipe: Recipe, add: Add) -> None:
    """Context parallelism by all-gather: every attention core gathers the whole sequence's keys and values, and
    reduce-scatters their gradients."""
    numbers = recomputed(piece, recipe)
    for leaf in piece.leaves:
        attended = leaf.entry.leaf.attended
        if attended is None or leaf.entry.kind != "attention_core":
            continue
        rows = piece.work.positions * recipe.layout.cp * recipe.compute_bytes
        for kind, repeats in (("all_gather", len(numbers.intersection(leaf.layers))), ("reduce_scatter", 0)):
            for width in (attended.d_qk, attended.d_v):
                add(kind, len(leaf.layers) + repeats, rows * attended.groups * width)


def per_head(leaf: RankLeaf) -> bool:
    """Whether it is a norm per head with one weight for all heads, and tp shards the heads."""
    return bool(leaf.entry.leaf.shared_by != leaf.whole.shared_by)


def _fully_sharded(weights: Sequence[RankTensor], recipe: Recipe, add: Add) -> None:
    """FSDP2: a block's weights are all-gathered for its forward and for its backward (for each layer that shares them),
    the root's once; gradients are reduce-scattered once. Rows (or stacked experts) are padded to a multiple of the
    ranks."""
    groups: Counter[tuple[int, bool]] = Counter()
    learning: Counter[tuple[int, bool]] = Counter()
    runs, root, layout = Counter[int](), -1, recipe.layout
    for tensor in weights:
        ways = sharers(recipe, tensor.expert)
        rows = tensor.shape[tensor.rows]
        elements = tensor.copies * ceil_div(rows, ways) * ways * (tensor.size // max(1, rows))
        by_experts = tensor.expert and (layout.ep > 1 or layout.exchanges)  # sharded by the ranks with the same experts
        for layer in tensor.group or (root,):
            runs[layer] = tensor.reads
            groups[layer, by_experts] += elements // max(1, len(tensor.group))
            learning[layer, by_experts] += elements // max(1, len(tensor.group)) if tensor.learns else 0
    for (layer, by_experts), elements in groups.items():
        gathers = runs[layer] if layer == root or not recipe.reshard else 2 * runs[layer]
        if sharers(recipe, by_experts) > 1:
            add("all_gather", gathers, elements * recipe.compute_bytes)
    for (_, by_experts), elements in learning.items():
        if not elements:
            continue
        ways = sharers(recipe, by_experts)
        if ways > 1:
            add("reduce_scatter", 1, elements * recipe.reduce_bytes)
        if layout.dp > 1:
            add("all_reduce", 1, elements // ways * recipe.reduce_bytes)


def stage_message(recipe: Recipe, machine: Machine, positions: int, width: int) -> Message | None:
    """The activations that a stage sends to the next, over one hop, between nodes if any stage's next is on another;
    each rank of tp sends a share. None without a pipeline."""
    layout = recipe.layout
    if layout.pp == 1:
        return None
    crosses = layout.group("pp", machine.node).crosses
    return Message("send", Group(2, 1 if crosses else 2), float(positions) * width * recipe.compute_bytes / layout.tp)


class Messages:
    """The messages of a pipeline's pieces on a machine.

    Source   Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.2, for the collectives of sequence parallelism
    """

    def __init__(self, model: Model, recipe: Recipe, machine: Machine, pipeline: Pipeline) -> None:
        self.model, self.recipe, self.machine, self.pipeline = model, recipe, machine, pipeline
        layout = recipe.layout
        self.tp, self.cp = layout.group("tp", machine.node), layout.group("cp", machine.node)
        self.width = model.d_model
        self.element = recipe.compute_bytes

    def exchanged(self, leaf: RankLeaf) -> Iterator[Message]:
        """The messages of a collective in one forward. Tokens are dispatched to experts in the compute dtype, even if
        experts multiply in FP8 (Megatron-LM d98e8a64, core/transformer/moe/fused_a2a.py, fp8_dispatch)."""
        for transfer in leaf.entry.transfers:
            group = self.recipe.layout.group(transfer.axis.name, self.machine.node)
            if transfer.kind == "all_to_all" and self.recipe.rules.relays:
                yield relayed_all_to_all(group, float(transfer.message) * self.element, float(transfer.choices))
            else:
                yield Message(transfer.kind, group, float(transfer.sent) * leaf.width(self.element))

    def keys(self, leaf: RankLeaf) -> Message:
        """The message of context parallelism in one forward of an attention core: keys and values of other ranks'
        tokens; with Ulysses, all-to-alls of queries, keys, values and outputs."""
        module, work = leaf.entry.leaf, leaf.entry.work
        assert work is not None
        if self.recipe.context == "ulysses" and module.attended:
            return ring("all_to_all", self.cp, float(module.attended.crossing(work.positions)) * self.element, 4)
        elements = float(local_kv_elements(leaf.entry, self.width))
        return ring("all_gather", self.cp, elements * self.element * self.recipe.layout.cp)

    def keys_in_backward(self, leaf: RankLeaf) -> int:
        """The number of times that backward sends the message of `keys`: once for the gradients, and with a ring once
        for the keys and values, since a rank saves only its own. 0 without a gradient (an index).

        Source   Transformer Engine, context_parallel.py, AttnFuncWithCPAndKVP2P.backward: buffers of (2, *kv.shape).
                 PyTorch 2.13, _context_parallel/_attention.py, _templated_ring_attention_backward, sends the gradients
                 cp times for cp − 1, and by default in 32 bits, which is not counted
        """
        if leaf.entry.gradient == "none":
            return 0
        return 2 if self.recipe.context == "ring" else 1

    def tp_reductions(self, piece: StagePiece) -> Iterator[tuple[Message, str]]:
        """All-reduces over tp in every micro-batch, with their pass: the loss on sharded logits in `forward`, and
        DTensor's partial gradients of replicated weights in `backward`."""
        if self.recipe.loss_parallel and logits(self.recipe, [piece], 0):
            heads = [leaf.entry.work for leaf in piece.leaves if leaf.entry.kind == "head" and leaf.entry.leaf.matrix]
            rows = max(work.positions for work in heads if work is not None)
            sums = float(LOSS_REDUCTIONS * STATISTIC * rows)
            yield ring("all_reduce", self.tp, sums, LOSS_REDUCTIONS), "forward"
        for part in partial_gradients(piece, self.recipe) if self.recipe.rules.dtensor else ():
            group = self.recipe.layout.group(part.axis, self.machine.node)
            yield ring("all_reduce", group, float(part.copies * part.elements * self.element), part.copies), "backward"

    def sends(self, piece: StagePiece) -> Iterator[Message]:
        """The activations sent to the next piece of the pipeline."""
        message = stage_message(self.recipe, self.machine, piece.work.positions, self.width)
        if message and not piece.last:
            yield message

    def orthogonalised(self, piece: StagePiece) -> Iterator[RankTensor]:
        """The matrices that Muon orthogonalises."""
        for tensor in tensors(piece, self.recipe) if OPTIMIZERS[self.recipe.optimizer].newton_schulz else ():
            if tensor.hidden and tensor.learns and tensor.size:
                yield tensor

    def muon_messages(self, piece: StagePiece) -> Iterator[Message]:
        """Messages of Muon's orthogonalisation."""
        layout, node = self.recipe.layout, self.machine.node
        for tensor in self.orthogonalised(piece):
            group = layout.group("etp" if tensor.expert else "tp", node)
            if self.recipe.rules.dtensor:
                stride = layout.expert_group if tensor.expert else layout.tp
                group = self.machine.group(sharers(self.recipe, tensor.expert), stride, layout.gpus)
            for kind, times, size in muon_collectives(tensor, self.recipe):
                yield ring(kind, group, float(times * tensor.copies * size), times * tensor.copies)
