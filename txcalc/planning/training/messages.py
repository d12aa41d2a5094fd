"""The messages that the ranks of a training step exchange, with their groups and bytes.

Source   Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.2, for the collectives of sequence parallelism
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from txcalc.model import Model
from txcalc.planning.layout import Group
from txcalc.planning.links import Message, relayed, ring
from txcalc.planning.machine import Machine
from txcalc.planning.training.activations import STATISTIC
from txcalc.planning.training.collectives import LOSS_REDUCTIONS, local_kv_elements, muon_collectives, partial_gradients
from txcalc.planning.training.optimizers import OPTIMIZERS
from txcalc.planning.training.profiles import logits
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import Pipeline, RankLeaf, StagePiece
from txcalc.planning.training.states import RankTensor, held_by, sharers, tensors, weight_bytes


@dataclass
class Amount:
    """Sizes of the weights of a rank's pieces.

    gathered   bytes of weights as compute reads them, quantised ones in their format; `blocks`: those of layers
    learning   trainable elements; `updated`: bytes of their parameters; `summed`: bytes of their gradients
    root       bytes of weights outside all layers, which forward needs first; `ends`: their trainable elements, whose
               gradients come last
    """

    gathered: float = 0.0
    blocks: float = 0.0
    learning: float = 0.0
    updated: float = 0.0
    summed: float = 0.0
    root: float = 0.0
    ends: float = 0.0

    def add(self, other: Amount) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class Messages:
    """The messages of a pipeline's pieces on a machine."""

    def __init__(self, model: Model, recipe: Recipe, machine: Machine, pipeline: Pipeline) -> None:
        self.model, self.recipe, self.machine, self.pipeline = model, recipe, machine, pipeline
        layout = recipe.layout
        self.tp = layout.group("tp", machine.node)
        self.cp, self.stages = layout.group("cp", machine.node), layout.group("pp", machine.node)
        self.copies = machine.beside(layout.cp * layout.copies, layout.tp, layout.gpus)
        self.width = model.d_model
        self.element = recipe.compute_bytes

    def exchanged(self, held: RankLeaf) -> Iterator[Message]:
        """The messages of one forward of a collective. Tokens are dispatched to experts in the compute dtype, also if
        experts multiply in FP8 (Megatron-LM d98e8a64, core/transformer/moe/fused_a2a.py, fp8_dispatch)."""
        for transfer in held.entry.transfers:
            group = self.recipe.layout.group(transfer.axis.name, self.machine.node)
            if transfer.kind == "all_to_all" and self.recipe.rules.relays:
                yield relayed(group, float(transfer.message) * self.element, float(transfer.choices))
            else:
                yield Message(transfer.kind, group, float(transfer.sent) * held.width(self.element))

    def keys(self, held: RankLeaf) -> Message:
        """Context parallelism in one forward of an attention core: keys and values of the rest of the sequence; with
        Ulysses, all-to-alls of queries, keys, values and outputs."""
        leaf, work = held.entry.leaf, held.entry.work
        assert work is not None
        if self.recipe.context == "ulysses" and leaf.attended:
            return ring("all_to_all", self.cp, float(leaf.attended.crossing(work.positions)) * self.element, 4)
        elements = float(local_kv_elements(held.entry, self.width))
        return ring("all_gather", self.cp, elements * self.element * self.recipe.layout.cp)

    def keys_again(self, held: RankLeaf) -> int:
        """How many times backward sends the message of `keys`: once for the gradients, and with a ring once more for
        the keys and values, since a rank saves only its own. 0 without a gradient (an index).

        Source   Transformer Engine, context_parallel.py, AttnFuncWithCPAndKVP2P.backward: buffers of (2, *kv.shape).
                 PyTorch 2.13, _context_parallel/_attention.py, _templated_ring_attention_backward, sends the gradients
                 cp times for cp − 1, and by default in 32 bits, which is not counted
        """
        if held.entry.gradient == "none":
            return 0
        return 2 if self.recipe.context == "ring" else 1

    def beside(self, piece: StagePiece) -> Iterator[tuple[Message, str]]:
        """All-reduces over tp in every micro-batch, with the pass they belong to: the loss on split logits in
        `forward`, and DTensor's partial gradients of replicated weights in `backward`."""
        if self.recipe.loss_parallel and logits(self.recipe, [piece], 0):
            heads = [held.entry.work for held in piece.leaves if held.entry.kind == "head" and held.entry.leaf.matrix]
            rows = max(work.positions for work in heads if work is not None)
            sums = float(LOSS_REDUCTIONS * STATISTIC * rows)
            yield ring("all_reduce", self.tp, sums, LOSS_REDUCTIONS), "forward"
        for part in partial_gradients(piece, self.recipe) if self.recipe.rules.dtensor else ():
            group = self.recipe.layout.group(part.axis, self.machine.node)
            yield ring("all_reduce", group, float(part.copies * part.elements * self.element), part.copies), "backward"

    def sends(self, piece: StagePiece) -> Iterator[Message]:
        """The activations sent to the next piece of the pipeline, over one hop, between nodes if any stage's is; each
        rank of tp sends a share."""
        layout = self.recipe.layout
        if layout.pp > 1 and not piece.last:
            message = float(piece.work.positions) * self.width * self.element
            yield Message("send", Group(2, 1 if self.stages.crosses else 2), message / layout.tp)

    @staticmethod
    def _alone(ends: float, all_of_it: float, layers: int) -> float:
        """The share of an exchange that no compute can hide: that of the ends and of one layer out of `layers`."""
        return (ends + (all_of_it - ends) / layers) / all_of_it if all_of_it else 1.0

    def shared(self, pieces: Sequence[StagePiece]) -> Iterator[tuple[Message, str, float]]:
        """Data-parallel messages of a step, each with its phase and the share of it that no compute can hide.

        `gather`   weights before forward
        `again`    weights of blocks freed after forward, before backward
        `reduce`   gradients during backward
        `after`    gradients after backward, also of weights replicated over tp
        `tied`     gradients of an embedding tied between the first and the last stage, for which all stages wait

        The embedding and one layer are exposed: forward starts and backward ends with them.
        """
        recipe, layout = self.recipe, self.recipe.layout
        layers = max(1, sum(len({i for held in piece.leaves for i in held.layers}) for piece in pieces))
        for expert, amount in enumerate(self._amounts(pieces)):
            apart = layout.ep * layout.expert_ways if expert else layout.tp  # ranks with different weights
            copies = max(1, layout.cp * layout.copies * layout.tp // apart)
            if copies == 1 or not amount.gathered:
                continue
            if recipe.zero_stage == 3:
                yield from self._fully_sharded(amount, layers, sharers(recipe, bool(expert)), copies, apart)
            else:
                yield from self._reduced(amount, layers, self.machine.beside(copies, apart, layout.gpus))
        if not recipe.rules.dtensor:
            sums = Counter[str]()
            for part in (part for piece in pieces for part in partial_gradients(piece, recipe)):
                sums[part.axis] += part.copies * part.elements
            for axis, number in sums.items():
                group = layout.group(axis, self.machine.node)
                yield ring("all_reduce", group, float(number * recipe.gradient_bytes)), "after", 1.0
        if tied := self.pipeline.tied:
            yield ring("all_reduce", layout.ends(self.machine.node), float(tied * recipe.gradient_bytes)), "tied", 1.0
        if alike := self.pipeline.alike(pieces):
            yield ring("all_reduce", self.stages, float(alike * recipe.gradient_bytes)), "after", 1.0

    def _amounts(self, pieces: Sequence[StagePiece]) -> tuple[Amount, Amount]:
        """Sizes of the weights that all copies share, and of experts sharded by other ranks (ep). FSDP's root includes
        the head (torch 2.13, fully_shard: _root_pre_forward waits for what ran before, finalize_backward for all
        reductions); in other frameworks the head's gradient is the first, and compute hides its reduction."""
        recipe, found = self.recipe, (Amount(), Amount())
        for tensor in (tensor for some in held_by(pieces, recipe) for tensor in some):
            kind = int(tensor.expert and (recipe.layout.ep > 1 or recipe.layout.exchanges))
            elements = tensor.size * tensor.copies
            quantised = tensor.packed and recipe.packed
            size = tensor.copies * weight_bytes(tensor, tensor.size, recipe) if quantised else elements * self.element
            learns = elements if tensor.learns else 0
            width, kept = recipe.parameter_bytes, recipe.gradient_bytes
            if tensor.adapter:
                width = kept = recipe.adapter_bytes
            gathered = size * tensor.reads
            root = not tensor.group and (recipe.shards > 1 or tensor.kind == "embedding")
            blocks, first = gathered if tensor.group else 0, gathered if root else 0
            ends = learns if root else 0
            found[kind].add(Amount(gathered, blocks, learns, learns * width, learns * kept, first, ends))
        return found

    def _fully_sharded(
        self, amount: Amount, layers: int, ways: int, copies: int, apart: int
    ) -> Iterator[tuple[Message, str, float]]:
        """Messages of FSDP: weights sharded over `ways` of `copies` ranks; with fewer ways than copies (hybrid
        sharding) an all-reduce sums the gradients of equal shards."""
        recipe, ranks = self.recipe, self.recipe.layout.gpus
        shards = self.machine.beside(ways, apart, ranks)
        reduced, alone = amount.learning * recipe.reduce_bytes, self._alone(amount.ends, amount.learning, layers)
        if ways > 1:
            first = self._alone(amount.root, amount.gathered, layers)
            yield ring("all_gather", shards, amount.gathered, layers + 1), "gather", first
            if recipe.reshard and recipe.layout.pp == 1:
                yield ring("all_gather", shards, amount.blocks, layers), "again", 0.0
            yield ring("reduce_scatter", shards, reduced, layers + 1), "reduce", alone
        if copies > ways:
            group = self.machine.beside(copies // ways, apart * ways, ranks)
            yield ring("all_reduce", group, reduced / ways), "reduce", alone

    def _reduced(self, amount: Amount, layers: int, group: Group) -> Iterator[tuple[Message, str, float]]:
        """Messages of data parallelism with replicated weights: DDP, or ZeRO stages 1 and 2."""
        recipe, alone = self.recipe, self._alone(amount.ends, amount.learning, layers)
        buckets = max(1, round(amount.summed / recipe.rules.bucket))
        if recipe.zero and recipe.rules.reduces_after:
            yield ring("all_reduce", group, amount.summed), "after", 1.0
            yield ring("all_gather", group, amount.updated), "gather", 1.0
            return
        yield ring("reduce_scatter" if recipe.zero else "all_reduce", group, amount.summed, buckets), "reduce", alone
        if recipe.zero:
            yield ring("all_gather", group, amount.updated, buckets), "gather", alone

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
                apart = layout.expert_group if tensor.expert else layout.tp
                group = self.machine.beside(sharers(self.recipe, tensor.expert), apart, layout.gpus)
            for kind, times, size in muon_collectives(tensor, self.recipe):
                yield ring(kind, group, float(times * tensor.copies * size), times * tensor.copies)
