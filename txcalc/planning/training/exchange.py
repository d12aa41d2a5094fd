"""The time that a rank waits in a step for messages: weights and gradients of data parallelism, activations of tensor
parallelism, and tensors offloaded to host memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from txcalc.num import ceil_div
from txcalc.planning.layout import Group
from txcalc.planning.machine import Kernels, Machine, Message, ring
from txcalc.planning.training.collectives import partial_gradients
from txcalc.planning.training.memory import Peak
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import Pipeline, RankLeaf, StagePiece
from txcalc.planning.training.states import RankTensor, State, moments, rank_weights, sharers, weight_bytes


class WeightSizes(NamedTuple):
    """Sizes of a rank's weights.

    gathered   bytes of weights in the compute dtype, or in their quantised format; `blocks`: those of layers
    learning   trainable elements; `updated`: bytes of their parameters; `summed`: bytes of their gradients
    root       bytes of weights outside all layers, which forward needs first; `ends`: their trainable elements, whose
               gradients are ready last
    """

    gathered: float = 0.0
    blocks: float = 0.0
    learning: float = 0.0
    updated: float = 0.0
    summed: float = 0.0
    root: float = 0.0
    ends: float = 0.0


class StageWeights(NamedTuple):
    """The weights whose values or gradients the replicas of a rank's pieces exchange.

    shared, experts   sizes of the weights that all replicas have, and of experts that ep distributes
    layers            number of layers
    replicated        by axis, elements of weights whose gradient is a partial sum on each of its ranks
    tied, alike       elements of a table tied between the first and the last stage; of weights that layers of other
                      stages share
    """

    shared: WeightSizes
    experts: WeightSizes
    layers: int
    replicated: Mapping[str, int]
    tied: int = 0
    alike: int = 0

    @classmethod
    def of(cls, pipeline: Pipeline, pieces: Sequence[StagePiece]) -> StageWeights:
        recipe = pipeline.recipe
        tensors = (tensor for weights in rank_weights(pieces, recipe) for tensor in weights)
        layers = sum(len({i for leaf in piece.leaves for i in leaf.layers}) for piece in pieces)
        replicated = replicated_elements(pieces, recipe)
        return cls(*weight_sizes(tensors, recipe), max(1, layers), replicated, pipeline.tied, pipeline.alike(pieces))


def replicated_elements(pieces: Iterable[StagePiece], recipe: Recipe) -> Mapping[str, int]:
    """`StageWeights.replicated`; DTensor reduces these gradients in every backward pass instead."""
    sums = Counter[str]()
    for part in (part for piece in pieces for part in partial_gradients(piece, recipe) if not recipe.rules.dtensor):
        sums[part.axis] += part.copies * part.elements
    return sums


def weight_sizes(tensors: Iterable[RankTensor], recipe: Recipe) -> tuple[WeightSizes, WeightSizes]:
    """Sizes of the weights that all replicas have, and of experts that ep distributes. FSDP's root includes the head
    (torch 2.13, fully_shard: _root_pre_forward waits for earlier work, finalize_backward for all reductions); in other
    frameworks the head's gradient is the first, and compute hides its reduction."""
    expert_parallel = recipe.layout.ep > 1 or recipe.layout.exchanges
    compute, sharded = recipe.compute_bytes, recipe.shards > 1
    usual_bytes, adapter_bytes = (recipe.parameter_bytes, recipe.gradient_bytes), (recipe.adapter_bytes,) * 2
    sizes: tuple[list[WeightSizes], list[WeightSizes]] = ([], [])
    for tensor in tensors:
        elements = tensor.size * tensor.copies
        size = elements * compute
        if tensor.packed and recipe.packed:
            size = tensor.copies * weight_bytes(tensor, tensor.size, recipe)
        learning = elements if tensor.learns else 0
        parameter, gradient = adapter_bytes if tensor.adapter else usual_bytes
        gathered = size * tensor.reads
        root = not tensor.group and (sharded or tensor.kind == "embedding")
        sizes[tensor.expert and expert_parallel].append(
            WeightSizes(
                gathered=gathered,
                blocks=gathered if tensor.group else 0,
                learning=learning,
                updated=learning * parameter,
                summed=learning * gradient,
                root=gathered if root else 0,
                ends=learning if root else 0,
            )
        )
    shared, experts = (WeightSizes(*map(float, map(sum, zip(*group_sizes, strict=True)))) for group_sizes in sizes)
    return shared, experts


class ExchangedMessage(NamedTuple):
    """A message of a step, its phase, and the share of it that no compute can hide. Phases:

    gather      weights before forward
    regather    weights of blocks freed after forward, before backward
    reduce      gradients during backward
    after       gradients after backward, including those of weights replicated over tp
    tied        gradients of an embedding tied between the first and the last stage, for which all stages wait
    """

    message: Message
    phase: str
    exposed: float


class Exchange:
    """Data-parallel exchange of a recipe on a machine."""

    def __init__(self, recipe: Recipe, machine: Machine) -> None:
        self.recipe, self.machine = recipe, machine
        layout = recipe.layout
        self.copies = machine.group(layout.cp * layout.copies, layout.tp, layout.gpus)

    def messages(self, weights: StageWeights) -> Iterator[ExchangedMessage]:
        """The messages of a step. No compute hides those of the embedding and one layer, with which forward starts and
        backward ends."""
        recipe, layout, node = self.recipe, self.recipe.layout, self.machine.node
        for expert, sizes in ((False, weights.shared), (True, weights.experts)):
            stride = layout.ep * layout.expert_ways if expert else layout.tp  # ranks with different weights
            copies = max(1, layout.cp * layout.copies * layout.tp // stride)
            if copies == 1 or not sizes.gathered:
                continue
            if recipe.zero_stage == 3:
                yield from self._fully_sharded(sizes, weights.layers, sharers(recipe, expert), copies, stride)
            else:
                yield from self._reduced(sizes, weights.layers, self.machine.group(copies, stride, layout.gpus))
        for axis, elements in weights.replicated.items():
            summed = ring("all_reduce", layout.group(axis, node), float(elements * recipe.gradient_bytes))
            yield ExchangedMessage(summed, "after", 1.0)
        if weights.tied:
            summed = ring("all_reduce", layout.ends(node), float(weights.tied * recipe.gradient_bytes))
            yield ExchangedMessage(summed, "tied", 1.0)
        if weights.alike:
            summed = ring("all_reduce", layout.group("pp", node), float(weights.alike * recipe.gradient_bytes))
            yield ExchangedMessage(summed, "after", 1.0)

    @staticmethod
    def _exposed(ends: float, size: float, layers: int) -> float:
        """The share of an exchange that no compute can hide: the ends, and one layer out of `layers`."""
        return (ends + (size - ends) / layers) / size if size else 1.0

    def _fully_sharded(
        self, sizes: WeightSizes, layers: int, ways: int, copies: int, stride: int
    ) -> Iterator[ExchangedMessage]:
        """Messages of FSDP: weights sharded over `ways` of `copies` ranks; with fewer ways than copies (hybrid
        sharding) an all-reduce sums the gradients of equal shards."""
        recipe, ranks = self.recipe, self.recipe.layout.gpus
        shards = self.machine.group(ways, stride, ranks)
        reduced, exposed = sizes.learning * recipe.reduce_bytes, self._exposed(sizes.ends, sizes.learning, layers)
        if ways > 1:
            first = self._exposed(sizes.root, sizes.gathered, layers)
            yield ExchangedMessage(ring("all_gather", shards, sizes.gathered, layers + 1), "gather", first)
            if recipe.reshard and recipe.layout.pp == 1:
                yield ExchangedMessage(ring("all_gather", shards, sizes.blocks, layers), "regather", 0.0)
            yield ExchangedMessage(ring("reduce_scatter", shards, reduced, layers + 1), "reduce", exposed)
        if copies > ways:
            equal = self.machine.group(copies // ways, stride * ways, ranks)
            yield ExchangedMessage(ring("all_reduce", equal, reduced / ways), "reduce", exposed)

    def _reduced(self, sizes: WeightSizes, layers: int, group: Group) -> Iterator[ExchangedMessage]:
        """Messages of data parallelism with replicated weights: DDP, or ZeRO stages 1 and 2."""
        recipe, exposed = self.recipe, self._exposed(sizes.ends, sizes.learning, layers)
        buckets = max(1, round(sizes.summed / recipe.rules.bucket))
        if recipe.zero and recipe.rules.reduces_after:
            yield ExchangedMessage(ring("all_reduce", group, sizes.summed), "after", 1.0)
            yield ExchangedMessage(ring("all_gather", group, sizes.updated), "gather", 1.0)
            return
        kind = "reduce_scatter" if recipe.zero else "all_reduce"
        yield ExchangedMessage(ring(kind, group, sizes.summed, buckets), "reduce", exposed)
        if recipe.zero:
            yield ExchangedMessage(ring("all_gather", group, sizes.updated, buckets), "gather", exposed)

    def rounds(self, phase: str) -> int:
        """The number of times per step: sharded weights and gradients move in every micro-batch (DeepSpeed,
        runtime/engine.py, no_sync), but only once in a pipeline."""
        repeated = self.recipe.zero_stage >= {"gather": 3, "regather": 3, "reduce": 2}.get(phase, 4)
        return self.recipe.accumulation if repeated and self.recipe.layout.pp == 1 else 1

    def exposed(self, weights: StageWeights, kernels: Kernels, forward: float, backward: float) -> float:
        """Seconds per step that a rank waits for the exchange; `forward` and `backward` are seconds of a micro-batch's
        compute, which hides a part of it."""
        bare, hidden = defaultdict[str, float](float), defaultdict[str, float](float)
        for message, phase, share in self.messages(weights):
            seconds = self.rounds(phase) * kernels.transfer(message)
            bare[phase] += share * seconds
            hidden[phase] += (1 - share) * seconds
        if not self.machine.overlap:
            return sum(bare.values()) + sum(hidden.values())
        lost = self.machine.lost
        waited = lost(hidden["regather"] + hidden["reduce"], self.rounds("reduce") * backward)
        gathers = self.recipe.zero_stage == 3 or self.recipe.rules.gathers_beside
        waited += lost(hidden["gather"], self.rounds("gather") * forward) if gathers else hidden["gather"]
        return sum(bare.values()) + waited

    def optimizer(self, states: Iterable[State], kernels: Kernels) -> float:
        """Seconds of the optimizer on the rank with the most state: it reads gradients and state, and writes state and
        parameters; with ZeRO 1 or 2, those of its share."""
        shards = self.copies.size if self.recipe.zero and self.recipe.zero < 3 else 1
        moved = max(
            (state.gradients + 2 * state.parameters) // shards + 2 * state.optimizer
            if shards > 1
            else state.gradients + 2 * state.optimizer + 2 * (state.adapters or state.parameters)
            for state in states
        )
        return kernels.update(moved, moments(self.recipe))


class ProductTime(NamedTuple):
    """Seconds of products: forward, and of the gradients of their inputs and of their weights."""

    forward: float = 0.0
    inputs: float = 0.0
    weights: float = 0.0

    @classmethod
    def of(cls, products: Iterable[ProductTime]) -> ProductTime:
        """The total over several products."""
        return cls(*map(sum, zip(*products, strict=True)))


def repeats_gather(join: RankLeaf, recipe: Recipe) -> bool:
    """Whether backward repeats a gather, for the gradient of weights whose product saved only a slice of its input."""
    learns = any(product.learns for product in join.products)
    gathers = any(transfer.kind == "all_gather" for transfer in join.entry.transfers)
    return recipe.regathers_inputs and gathers and learns


def waits(
    join: RankLeaf, kind: str, seconds: float, products: ProductTime, recipe: Recipe, machine: Machine
) -> tuple[float, float]:
    """Seconds that a rank waits, in forward and in backward, for a collective of this kind and duration, with products
    that can hide it.

    Gradients of a gathered or all-reduced input are reduced while the weights' gradients are computed; a repeated
    gather overlaps with the input's gradient; the gradient of a reduce-scattered output is gathered.

    Source   Megatron-LM d98e8a64, core/tensor_parallel/layers.py (LinearWithGradAccumulationAndAsyncCommunication,
             ColumnParallelLinear, RowParallelLinear); nanotron 67c5ebb6, parallel/tensor_parallel/functional.py;
             torch 2.13, distributed.tensor.parallel, saves gathered inputs and waits for each reduction
    Omits    Transformer Engine's userbuffers, which send parts of a product while computing others
    """
    rules, lost = recipe.rules, machine.lost
    first_share = 1 / recipe.layout.tp if rules.overlaps_gather and machine.overlap else 0.0
    forwards, backwards = join.passes
    if kind == "reduce_scatter":
        return forwards * seconds, backwards * lost(seconds, first_share * products.inputs)
    hides = float(machine.overlap and kind in rules.hidden_backward)
    forward = lost(seconds, first_share * products.forward) if kind == "all_gather" else seconds
    repeated = lost(seconds, hides * products.inputs) if repeats_gather(join, recipe) else 0.0
    return forwards * forward, backwards * lost(seconds, hides * products.weights) + repeated


# Host memory bandwidth per accelerator, in bytes per second: two sockets with eight channels of DDR5-4800 (38.4 GB/s
# each) for eight accelerators, as in a DGX H100.
HOST_MEMORY = 76_800_000_000


class Hosted(NamedTuple):
    """Seconds of a step that the busiest rank waits for the host link and for the host's CPUs."""

    link: float
    processors: float


def host_offload(recipe: Recipe, ranks: Sequence[Peak], link: int, forward: float, backward: float) -> Hosted:
    """Offloading to host memory, modelled. `forward` and `backward`: seconds of a micro-batch's compute, which overlap
    with the transfer of activations.

    optimizer     its state and the fp32 copy of the weights: each step sends gradients to the host, whose CPUs run the
                  optimizer, and sends new weights back (ZeRO-Offload)
    activations   those that blocks save for backward, except of the running block and the one being transferred: sent
                  to the host during forward, and back before backward
    Omits         pinning, buckets, the host's caches, other load on its CPUs
    Source        Ren et al. 2021 (arXiv 2101.06840), sections 4 and 5; torch.autograd.graph.save_on_cpu
    """
    waiting = processors = 0.0
    if recipe.offloads("optimizer"):
        for rank in ranks:
            shards = recipe.layout.dp * recipe.layout.cp if recipe.zero in (1, 2) else 1
            gradients = rank.state.gradients // (shards if recipe.zero == 1 else 1)
            weights = ceil_div(rank.state.adapters or rank.state.parameters, shards)
            waiting = max(waiting, (gradients + weights) / link)
            processors = max(processors, (gradients + 2 * rank.state.optimizer + weights) / HOST_MEMORY)
    if recipe.offloads("activations"):
        moved = max(rank.offloaded for rank in ranks) / link
        waiting += recipe.accumulation * (max(0.0, moved - forward) + max(0.0, moved - backward))
    return Hosted(waiting, processors)
