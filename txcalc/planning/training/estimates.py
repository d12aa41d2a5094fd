"""Estimates of training layouts in closed form: the bytes of the fullest rank and the seconds of a step.

They combine the time and bytes of a layer (one table per tp, cp, ep, micro-batch and framework), the pipeline's bubble,
the communication of data parallelism and the optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from msgspec.structs import replace

from txcalc.errors import InputError
from txcalc.model import Model
from txcalc.num import ceil_div, product
from txcalc.planning.layout import Group, Layout
from txcalc.planning.links import Message, ring
from txcalc.planning.machine import Kernels, Machine
from txcalc.planning.training.activations import kept
from txcalc.planning.training.profiles import logits
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import Pipeline, StagePiece
from txcalc.planning.training.states import moments, optimizer_bytes, tensors, weight_bytes
from txcalc.planning.training.step import StepTimer

MATRIX = (1024, 1024)  # a typical matrix, whose optimizer state per element is used for all weights


class LayerTable(NamedTuple):
    """Costs of one micro-batch, all layers together; `ends` is what comes before and after the layers."""

    layers: tuple[float, float, float]  # seconds: forward, backward, recomputation
    ends: tuple[float, float]  # seconds: forward, backward
    kept: tuple[float, float]  # bytes saved for backward: without and with recomputed blocks
    logits: float  # bytes
    elements: tuple[float, float, float]  # trainable: layers, experts with ep > 1, ends
    frozen: tuple[float, float] = (0.0, 0.0)  # bytes: layers, ends
    handed: float = 0.0  # bytes of activations that a rank sends to the next stage


@dataclass(eq=False)
class Estimate:
    """`bytes` of the fullest rank; the seconds of a step are estimated when they are needed."""

    recipe: Recipe
    bytes: float
    timed: Callable[[], float]

    @cached_property
    def seconds(self) -> float:
        return self.timed()


class Estimates:
    """Estimates of a model's layouts on a machine; tables are made once."""

    def __init__(self, model: Model, machine: Machine) -> None:
        self.model, self.machine, self.kernels = model, machine, Kernels(machine)
        self.n_layers = model.n_layers
        stack = model.root.alone
        head = stack and stack.head
        self.tied = bool(head and head.projection and head.projection.tied)
        self._tables: dict[tuple[int, int, int, int, str], LayerTable | None] = {}

    def table(self, recipe: Recipe) -> LayerTable | None:
        """Costs of a recipe's layers; None if the model does not allow its layout."""
        layout = recipe.layout
        key = (layout.tp, layout.cp, layout.ep, recipe.micro_batch, recipe.framework)
        if key not in self._tables:
            self._tables[key] = self._made(recipe)
        return self._tables[key]

    def sizes(self, recipe: Recipe) -> LayerTable | None:
        """The table without its seconds: saved bytes are those of one sequence, times the micro-batch."""
        layout, many = recipe.layout, recipe.micro_batch
        key = (layout.tp, layout.cp, layout.ep, 0, recipe.framework)
        if key not in self._tables:
            self._tables[key] = self._made(replace(recipe, micro_batch=1), timed=False)
        one = self._tables[key]
        return one and one._replace(kept=(many * one.kept[0], many * one.kept[1]), logits=many * one.logits)

    def _made(self, recipe: Recipe, timed: bool = True) -> LayerTable | None:
        layout = recipe.layout
        copies = {"fsdp": layout.fsdp * layout.pp} if layout.fsdp > 1 else {"dp": layout.dp * layout.pp}
        probe = replace(
            recipe,
            layout=Layout(tp=layout.tp, sp=layout.sp, cp=layout.cp, ep=layout.ep, **copies),
            accumulation=2,
            recompute="none",
            zero=0,
            schedule="1f1b",
        )
        try:
            pipeline = Pipeline(self.model, probe)
            pace = StepTimer(self.model, probe, self.machine, pipeline)
            (piece,) = pipeline.pieces
        except InputError:
            return None
        layers, ends = (0.0, 0.0), (0.0, 0.0)
        if timed:
            layers, ends = (
                (sum(work.forward.values()), sum(work.backward.values()))
                for work in (pace.work(_part(piece, inside), pace.kernels) for inside in (True, False))
            )
        blocks = kept(piece, replace(probe, recompute="blocks"), pace.width)
        sums, frozen = [0.0, 0.0, 0.0], [0.0, 0.0]
        for tensor in tensors(piece, probe):
            if tensor.learns:
                where = 2 if not tensor.group or tensor.reads > 1 else 1 if tensor.expert and layout.ep > 1 else 0
                sums[where] += tensor.size * tensor.copies
            else:
                frozen[not tensor.group or tensor.reads > 1] += tensor.copies * weight_bytes(tensor, tensor.size, probe)
        saved = float(kept(piece, probe, pace.width).saved)
        head = float(probe.logit_bytes[1] * logits(probe, [piece], 0))
        return LayerTable(
            (*layers, layers[0]),
            ends,
            (saved, float(blocks.saved)),
            head,
            (sums[0], sums[1], sums[2]),
            (frozen[0], frozen[1]),
            float(piece.work.positions) * pace.width * pace.element / layout.tp,
        )

    def estimate(
        self, recipe: Recipe, table: LayerTable, timed: Callable[[Recipe], LayerTable | None] | None = None
    ) -> Estimate:
        """Estimated bytes of the fullest rank and seconds of a step, these by the table that `timed` gives, if any."""
        return Estimate(
            recipe, self._bytes(recipe, table), lambda: self._seconds(recipe, (timed and timed(recipe)) or table)
        )

    def _elements(self, recipe: Recipe, table: LayerTable) -> tuple[float, float]:
        """Trainable elements of a rank of the first stage: of experts with ep > 1, and others."""
        pp = recipe.layout.pp
        return table.elements[0] / pp + table.elements[2], table.elements[1] / pp

    def _share(self, recipe: Recipe) -> float:
        """The share of the layers that the largest stage has."""
        return float(ceil_div(self.n_layers, recipe.layout.pp) / self.n_layers)

    def _seconds(self, recipe: Recipe, table: LayerTable) -> float:
        layout, batches = recipe.layout, recipe.accumulation
        one = self._share(recipe) * (table.layers[0] + table.layers[1] + (recipe.recompute != "none") * table.layers[2])
        ends = sum(table.ends) * (1.0 if layout.pp == 1 else 0.9)  # mostly the head's, on the last stage
        slowest = one + ends
        bubble = (layout.pp - 1) * one / layout.vpp + self._messages(recipe, table.handed)
        elements = self._elements(recipe, table)
        exchange = self._exchange(recipe, elements, table.elements[2], one)
        if self.tied and layout.pp > 1 and not recipe.rules.dtensor:
            shared = ring("all_reduce", layout.ends(self.machine.node), table.elements[2] * recipe.gradient_bytes)
            exchange += self.kernels.transfer(shared)
        moved, _, _ = self._state(recipe, elements)
        return batches * slowest + bubble + exchange + self.kernels.update(moved, moments(recipe))

    def _bytes(self, recipe: Recipe, table: LayerTable) -> float:
        layout, batches, again = recipe.layout, recipe.accumulation, recipe.recompute != "none"
        _, resident, gradients = self._state(recipe, self._elements(recipe, table))
        shares = layout.copies * layout.cp if recipe.zero_stage == 3 else 1
        resident += (table.frozen[0] / layout.pp + table.frozen[1]) / shares
        flights = min(batches, layout.pp)
        ahead = flights * (1 + (layout.pp - 1) / (layout.pp * layout.vpp)) if layout.vpp > 1 else flights
        activations = table.kept[again] * self._share(recipe) * ahead
        if recipe.offloads("activations"):
            activations = min(activations, 3 * table.kept[again] / self.n_layers)
        forward = activations + (table.logits if layout.pp == 1 else 0.0)
        if batches > 1 or recipe.rules.held:
            return resident + forward + gradients
        return resident + max(forward, gradients)  # gradients are made as activations are freed

    def _messages(self, recipe: Recipe, handed: float) -> float:
        """Seconds of messages between stages that no compute hides, the first micro-batch's there and the last one's
        back, and of the waits before all of them."""
        layout = recipe.layout
        if layout.pp == 1:
            return 0.0
        sent = self.kernels.transfer(
            Message("send", Group(2, 1 if layout.group("pp", self.machine.node).crosses else 2), handed)
        )
        before = recipe.accumulation * layout.vpp * min(2, layout.pp - 1) * sum(self.machine.waits)
        return 2 * (layout.pp * layout.vpp - 1) * sent + before

    def _state(self, recipe: Recipe, elements: tuple[float, float]) -> tuple[float, float, float]:
        """Bytes of a rank: moved by the optimizer step, of weights and optimizer state, and of gradients."""
        beside = optimizer_bytes(MATRIX, recipe, recipe.parameter_bytes, True) / product(MATRIX)
        width, gradient = recipe.parameter_bytes, recipe.gradient_bytes
        copies = recipe.layout.copies * recipe.layout.cp
        held = moved = gradients = 0.0
        for number, sharers in zip(
            elements, (copies, max(1, copies * recipe.layout.tp // recipe.layout.expert_group)), strict=True
        ):
            shares = sharers if recipe.zero_stage else 1
            on_it = 0.0 if recipe.offloads("optimizer") else beside / shares
            held += number * (width / (shares if recipe.zero_stage == 3 else 1) + on_it)
            gradients += number * gradient / (shares if recipe.zero_stage > 1 else 1)
            moved += number * (gradient + 2 * width + 2 * beside) / shares
        if recipe.shards > 1 and recipe.layout.pp > 1:
            held += sum(elements) * recipe.compute_bytes
            gradients += sum(elements) * recipe.reduce_bytes
        return moved, held, gradients

    def _exchange(self, recipe: Recipe, elements: tuple[float, float], ends: float, backward: float) -> float:
        """Seconds of data-parallel communication that compute does not hide. `elements` of weights and experts per
        rank; `ends` those of them outside the layers."""
        kernels, layout, lost = self.kernels, recipe.layout, self.machine.lost
        copies = layout.copies * layout.cp
        seconds = 0.0
        for number, step, last in zip(elements, (layout.tp, layout.expert_group), (ends, 0.0), strict=True):
            size = max(1, copies * layout.tp // step)
            if size == 1 or not number:
                continue
            group = self.machine.group(size, step, layout.gpus)
            layers = max(1, self.n_layers // layout.pp)
            alone = (last + (number - last) / layers) / number  # with no compute beside it
            if recipe.zero_stage == 3:
                rounds = recipe.accumulation if layout.pp == 1 else 1
                gathered = kernels.transfer(ring("all_gather", group, number * recipe.compute_bytes, layers))
                reduced = kernels.transfer(ring("reduce_scatter", group, number * recipe.reduce_bytes, layers))
                beside = (2 - alone) * gathered + (1 - alone) * reduced
                seconds += rounds * (lost(beside, backward) + alone * (gathered + reduced))
                continue
            gradients, weights = number * recipe.gradient_bytes, number * recipe.parameter_bytes
            if recipe.zero and recipe.rules.reduces_after:
                moves = ring("all_reduce", group, gradients), ring("all_gather", group, weights)
                seconds += sum(map(kernels.transfer, moves))
                continue
            pieces = max(1, round(gradients / recipe.rules.bucket))
            kind = "reduce_scatter" if recipe.zero else "all_reduce"
            reduced = kernels.transfer(ring(kind, group, gradients, pieces))
            seconds += lost((1 - alone) * reduced, 2 / 3 * backward) + alone * reduced
            if recipe.zero:
                gathered = kernels.transfer(ring("all_gather", group, weights, pieces))
                hides = recipe.rules.gathers_beside
                seconds += lost((1 - alone) * gathered, backward / 3) + alone * gathered if hides else gathered
        return seconds


def _part(piece: StagePiece, inside: bool) -> StagePiece:
    """The leaves and collectives of the layers, or those around them."""
    leaves, joins = (
        tuple(held for held in some if bool(held.layers) == inside) for some in (piece.leaves, piece.joins)
    )
    return piece._replace(leaves=leaves, joins=joins)
