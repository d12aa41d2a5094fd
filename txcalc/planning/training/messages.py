"""The messages that the ranks of a training step exchange, with their groups and bytes.

Source   Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.2, for the collectives of sequence parallelism
"""

from __future__ import annotations

from collections.abc import Iterator

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
from txcalc.planning.training.states import RankTensor, sharers, tensors


def stage_message(recipe: Recipe, machine: Machine, positions: int, width: int) -> Message | None:
    """The activations that a stage sends to the next, over one hop, between nodes if any stage's is; each rank of tp
    sends a share. None without a pipeline."""
    layout = recipe.layout
    if layout.pp == 1:
        return None
    crosses = layout.group("pp", machine.node).crosses
    return Message("send", Group(2, 1 if crosses else 2), float(positions) * width * recipe.compute_bytes / layout.tp)


class Messages:
    """The messages of a pipeline's pieces on a machine."""

    def __init__(self, model: Model, recipe: Recipe, machine: Machine, pipeline: Pipeline) -> None:
        self.model, self.recipe, self.machine, self.pipeline = model, recipe, machine, pipeline
        layout = recipe.layout
        self.tp, self.cp = layout.group("tp", machine.node), layout.group("cp", machine.node)
        self.width = model.d_model
        self.element = recipe.compute_bytes

    def exchanged(self, leaf: RankLeaf) -> Iterator[Message]:
        """The messages of one forward of a collective. Tokens are dispatched to experts in the compute dtype, also if
        experts multiply in FP8 (Megatron-LM d98e8a64, core/transformer/moe/fused_a2a.py, fp8_dispatch)."""
        for transfer in leaf.entry.transfers:
            group = self.recipe.layout.group(transfer.axis.name, self.machine.node)
            if transfer.kind == "all_to_all" and self.recipe.rules.relays:
                yield relayed(group, float(transfer.message) * self.element, float(transfer.choices))
            else:
                yield Message(transfer.kind, group, float(transfer.sent) * leaf.width(self.element))

    def keys(self, leaf: RankLeaf) -> Message:
        """Context parallelism in one forward of an attention core: keys and values of the rest of the sequence; with
        Ulysses, all-to-alls of queries, keys, values and outputs."""
        module, work = leaf.entry.leaf, leaf.entry.work
        assert work is not None
        if self.recipe.context == "ulysses" and module.attended:
            return ring("all_to_all", self.cp, float(module.attended.crossing(work.positions)) * self.element, 4)
        elements = float(local_kv_elements(leaf.entry, self.width))
        return ring("all_gather", self.cp, elements * self.element * self.recipe.layout.cp)

    def keys_in_backward(self, leaf: RankLeaf) -> int:
        """How many times backward sends the message of `keys`: once for the gradients, and with a ring once more for
        the keys and values, since a rank saves only its own. 0 without a gradient (an index).

        Source   Transformer Engine, context_parallel.py, AttnFuncWithCPAndKVP2P.backward: buffers of (2, *kv.shape).
                 PyTorch 2.13, _context_parallel/_attention.py, _templated_ring_attention_backward, sends the gradients
                 cp times for cp − 1, and by default in 32 bits, which is not counted
        """
        if leaf.entry.gradient == "none":
            return 0
        return 2 if self.recipe.context == "ring" else 1

    def tp_reductions(self, piece: StagePiece) -> Iterator[tuple[Message, str]]:
        """All-reduces over tp in every micro-batch, with the pass they belong to: the loss on split logits in
        `forward`, and DTensor's partial gradients of replicated weights in `backward`."""
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
