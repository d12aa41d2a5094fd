"""Estimates of training layouts for the search, by the functions that `memory` and `StepTimer` use.

Layouts that shard layers equally share a table of all layers: their tensors and sizes, and the seconds of a
micro-batch. In a pipeline, only the first and the last stage have a table, and one between if layers differ: its
layers' tensors, and a share of the sizes and seconds by their number. Only the pipeline's bubble is a closed form
(`timeline.equal_stages`), so that an estimate without a pipeline is exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

from msgspec.structs import replace

from txcalc.errors import InputError
from txcalc.model import Model
from txcalc.num import ceil_div
from txcalc.planning import parallelism
from txcalc.planning.layout import Layout
from txcalc.planning.machine import Kernels, Machine
from txcalc.planning.training import timeline
from txcalc.planning.training.activations import SavedActivations, leaf_bytes, saved_activations
from txcalc.planning.training.collectives import stage_message
from txcalc.planning.training.exchange import Exchange, StageWeights, host_offload, replicated_elements, weight_sizes
from txcalc.planning.training.memory import Peak, peak_of
from txcalc.planning.training.profiles import PassSizes, WeightGroups
from txcalc.planning.training.recipe import BEHIND, Recipe
from txcalc.planning.training.stages import Pipeline, RankLeaf, StagePiece, head_elements
from txcalc.planning.training.states import RankTensor, State, find_unshardable, sharers, states, tensors
from txcalc.planning.training.step import StepTimer
from txcalc.planning.training.timeline import PieceTime


class LayerTable:
    """All layers of a model in one piece, sharded by a recipe's layout, for micro-batches of one sequence."""

    def __init__(self, pipeline: Pipeline) -> None:
        """Errors: `InputError` where the model does not allow the layout."""
        (self.piece,) = pipeline.pieces
        self.pipeline, self.recipe, self.model = pipeline, pipeline.recipe, pipeline.model
        self.sizes = PassSizes.of(self.recipe, [self.piece])
        self.replicated = replicated_elements([self.piece], self.recipe)
        most_common = max((leaf.layers for leaf in self.piece.leaves if leaf.entry.params), key=len, default=())
        self.first_common = min(most_common, default=0)  # the first layer of the most common kind
        self._saved: dict[str, tuple[SavedActivations, int, int]] = {}
        self._tensors: dict[tuple[bool, int], list[RankTensor]] = {}

    def saved(self, recompute: str) -> tuple[SavedActivations, int, int]:
        """What a sequence saves for backward, and the bytes of this before and after all layers."""
        if recompute not in self._saved:
            recipe = replace(self.recipe, recompute=recompute)
            _, before, after = (sum(leaf_bytes(leaf, recipe) for leaf in part.leaves) for part in parts(self.piece))
            self._saved[recompute] = saved_activations(self.piece, recipe, self.model.d_model), before, after
        return self._saved[recompute]

    def tensors(self, recipe: Recipe) -> list[RankTensor]:
        key = recipe.shards == 1, sharers(recipe, True)
        if key not in self._tensors:
            self._tensors[key] = list(tensors(self.piece, recipe))
        return self._tensors[key]


class StageTable(NamedTuple):
    """A stage of a layout: its number, its number of layers, bytes of its state, and its weights by FSDP group and for
    their exchange."""

    number: int
    layers: int
    state: State
    groups: WeightGroups
    weights: StageWeights


class PassTable(NamedTuple):
    """Seconds of a micro-batch: in all layers without recomputation, before them, after them, and of recomputation."""

    layers: PieceTime
    before: PieceTime
    after: PieceTime
    recomputed: float


class Estimate:
    """`bytes` of the fullest GPU, which include `state_bytes`, and `seconds` of a step, both computed on demand."""

    def __init__(self, tables: LayerTables, recipe: Recipe, state_bytes: int) -> None:
        self.tables, self.recipe, self.state_bytes = tables, recipe, state_bytes

    def fits(self, capacity: float) -> bool:
        """Whether its bytes are at most the capacity."""
        return self.state_bytes <= capacity and self.bytes <= capacity

    @cached_property
    def peaks(self) -> list[Peak]:
        return self.tables.peaks(self.recipe)

    @cached_property
    def bytes(self) -> int:
        return max(peak.allocated for peak in self.peaks)

    @cached_property
    def seconds(self) -> float:
        return self.tables.seconds(self.recipe, self.peaks)


class LayerTables:
    """Tables and estimates of a model's layouts on a machine."""

    def __init__(self, model: Model, machine: Machine) -> None:
        self.model, self.machine, self.kernels = model, machine, Kernels(machine)
        self.n_layers, stack = model.n_layers, model.root.single_stack
        head = stack and stack.head
        self.tied = bool(head and head.projection and head.projection.tied)
        self._layers: dict[object, LayerTable | None] = {}
        self._stages: dict[object, list[StageTable]] = {}
        self._passes: dict[object, PassTable] = {}

    def estimate(self, recipe: Recipe) -> Estimate | None:
        """None if the model does not allow the recipe."""
        stages = self.stage_tables(recipe)
        if not stages:
            return None
        offloaded = recipe.offloads("optimizer")
        states = (sum(stage.state._replace(gradients=0)) - offloaded * stage.state.optimizer for stage in stages)
        return Estimate(self, recipe, max(states))

    def peaks(self, recipe: Recipe) -> list[Peak]:
        """Peaks of the first rank of each stage that has a table."""
        table = self.layer_table(recipe)
        assert table
        return [self._peak(recipe, table, stage) for stage in self.stage_tables(recipe)]

    def _peak(self, recipe: Recipe, table: LayerTable, stage: StageTable) -> Peak:
        pieces, pp, width = recipe.pieces, recipe.layout.pp, self.model.d_model
        sequence, before, after = table.saved(recipe.recompute)
        inside = (sequence.saved - before - after) * stage.layers / self.n_layers
        ends = (before if stage.number == 0 else 0) + (after if stage.number == pp - 1 else 0)
        offloadable = max(0.0, 1 - 2 * pieces / stage.layers) if stage.layers else 0.0  # all but two blocks of a piece
        piece = SavedActivations(
            saved=int((inside + ends) * recipe.micro_batch / pieces),
            recomputed=sequence.recomputed * recipe.micro_batch,
            offloadable=int(inside * offloadable * recipe.micro_batch / pieces),
        )
        sizes = table.sizes.times(recipe.micro_batch, logits=stage.number == pp - 1)
        return peak_of(recipe, stage.number, [piece] * pieces, sizes, stage.groups, stage.state, width)

    def seconds(self, recipe: Recipe, peaks: Sequence[Peak]) -> float:
        """Seconds of a step, with the exchange of the slowest stage that has a table."""
        table, passes, stages = self.layer_table(recipe), self.pass_table(recipe), self.stage_tables(recipe)
        assert table
        pp, most_layers = recipe.layout.pp, max(sum(map(len, ranges)) for ranges in self._stage_layers(recipe))
        recomputed = passes.recomputed if recipe.recompute != "none" else 0.0
        layers = passes.layers._replace(inputs=passes.layers.inputs + recomputed)
        times = list[PieceTime]()
        for stage in stages:
            time = layers.times(stage.layers / self.n_layers)
            time = time.plus(passes.before) if stage.number == 0 else time
            times.append(time.plus(passes.after) if stage.number == pp - 1 else time)
        slowest = max(range(len(stages)), key=lambda i: times[i].seconds)
        message = stage_message(recipe, self.machine, table.sizes.positions * recipe.micro_batch, self.model.d_model)
        pipeline = timeline.equal_stages(
            recipe,
            layers=layers.seconds / pp,
            slowest=max(times[slowest].seconds, layers.seconds * most_layers / self.n_layers),
            send=self.kernels.transfer(message) if message else 0.0,
            waits=self.machine.waits,
        )
        exchange, (forward, backward) = Exchange(recipe, self.machine), times[slowest].passes
        waited = sum(host_offload(recipe, peaks, self.machine.host, forward, backward))
        updated = 0.0
        if not recipe.offloads("optimizer"):
            updated = exchange.optimizer((stage.state for stage in stages), self.kernels)
        exchanged = exchange.exposed(stages[slowest].weights, self.kernels, forward, backward)
        return pipeline + exchanged + waited + updated

    def _stage_layers(self, recipe: Recipe) -> tuple[tuple[range, ...], ...]:
        return stage_layers(self.n_layers, recipe.layout.pp, recipe.pieces)

    def layer_table(self, recipe: Recipe) -> LayerTable | None:
        """The table of all recipes that shard layers as this one does; None if the model does not allow it."""
        key = split_key(recipe)
        if key not in self._layers:
            try:
                self._layers[key] = LayerTable(Pipeline(self.model, in_one_stage(recipe)))
            except InputError:
                self._layers[key] = None
        return self._layers[key]

    def stage_tables(self, recipe: Recipe) -> list[StageTable]:
        """Tables of the first and the last stage, and of one between if layers differ, for all recipes of a layout with
        any micro-batch and recomputation; [] if the model does not allow it."""
        key = recipe.layout, recipe.framework, recipe.zero, recipe.pieces
        if key not in self._stages:
            table, last = self.layer_table(recipe), recipe.layout.pp - 1
            self._stages[key] = []
            if table and not find_unshardable(table.tensors(recipe), recipe):
                numbers = (0, last) if table.first_common == 0 else (0, self._common_stage(recipe, table), last)
                self._stages[key] = [self.stage_table(recipe, table, number) for number in dict.fromkeys(numbers)]
        return self._stages[key]

    def _common_stage(self, recipe: Recipe, table: LayerTable) -> int:
        """The first stage with the most layers, all of the most common kind."""
        stages = self._stage_layers(recipe)
        most_layers = max(sum(map(len, ranges)) for ranges in stages)
        common = (i for i, (first, *_) in enumerate(stages) if first.start >= table.first_common)
        return next((i for i in common if sum(map(len, stages[i])) == most_layers), 0)

    def stage_table(self, recipe: Recipe, table: LayerTable, number: int) -> StageTable:
        pp, ranges = recipe.layout.pp, self._stage_layers(recipe)[number]
        layers = sum(map(len, ranges))
        weights = table.tensors(recipe)
        if pp > 1:
            first, last = number == 0, number == pp - 1
            shares = (share(tensor, ranges, first, last, self.tied) for tensor in weights)
            weights = [tensor for tensor in shares if tensor.copies]
        replicated = {axis: ceil_div(count * layers, self.n_layers) for axis, count in table.replicated.items()}
        summed = self.tied and pp > 1 and not recipe.rules.dtensor
        tied = head_elements(table.piece.leaves) if summed else 0
        exchanged = StageWeights(*weight_sizes(weights, recipe), max(1, layers), replicated, tied)
        return StageTable(number, layers, states(weights, recipe, 0), WeightGroups.of(weights), exchanged)

    def pass_table(self, recipe: Recipe) -> PassTable:
        """The table of all recipes that shard layers as this one does and have as many sequences per micro-batch."""
        recompute = "blocks" if recipe.recompute == "none" else recipe.recompute
        # Gradients accumulate from the second micro-batch on: with FSDP and no pipeline, only a rank's share of them.
        batches = min(2, recipe.accumulation) if recipe.layout.pp == 1 else 2
        key = split_key(recipe), recipe.micro_batch, recompute, recipe.layout.pp == 1, batches
        if key not in self._passes:
            table, sequences = self.layer_table(recipe), recipe.micro_batch
            assert table
            probe = replace(in_one_stage(recipe), micro_batch=sequences, accumulation=batches, recompute=recompute)
            timer = StepTimer(self.model, probe, self.machine, table.pipeline)
            piece = table.piece.times(sequences)
            layers, before, after = (timer.work(part, timer.kernels) for part in parts(piece))
            recomputed = layers.total.recomputed
            inside = layers.piece._replace(inputs=layers.piece.inputs - recomputed)
            self._passes[key] = PassTable(inside, before.piece, after.piece, recomputed)
        return self._passes[key]


@cache
def stage_layers(n_layers: int, pp: int, pieces: int) -> tuple[tuple[range, ...], ...]:
    """The numbers of the layers of every stage's pieces."""
    ends = [*accumulate(parallelism.sizes(n_layers, pp * pieces), initial=0)]
    ranges = [range(start, end) for start, end in pairwise(ends)]
    return tuple(tuple(ranges[stage::pp]) for stage in range(pp))


def split_key(recipe: Recipe) -> tuple[object, ...]:
    """The fields of a recipe that decide how a rank's layers are sharded."""
    layout = recipe.layout
    return layout.tp, layout.cp, layout.ep, recipe.framework


def in_one_stage(recipe: Recipe) -> Recipe:
    """The same sharding of layers, in one stage, with micro-batches of one sequence."""
    layout = recipe.layout
    copies = {"fsdp": layout.fsdp * layout.pp} if layout.fsdp > 1 else {"dp": layout.dp * layout.pp}
    splits = Layout(tp=layout.tp, sp=layout.sp, cp=layout.cp, ep=layout.ep, **copies)
    return replace(recipe, layout=splits, micro_batch=1, accumulation=2, recompute="none", zero=0, schedule="1f1b")


def parts(piece: StagePiece) -> Iterator[StagePiece]:
    """The leaves and collectives of the layers, those before them, and those after."""

    def part(leaf: RankLeaf) -> int:
        return 0 if leaf.layers else 1 if leaf.entry.kind == "embedding" else 2

    for number in range(3):
        leaves = tuple(leaf for leaf in piece.leaves if part(leaf) == number)
        joins = tuple(leaf for leaf in piece.collectives if part(leaf) == number)
        yield piece._replace(leaves=leaves, collectives=joins)


def share(tensor: RankTensor, ranges: tuple[range, ...], first: bool, last: bool, tied: bool) -> RankTensor:
    """A tensor's copies on a stage with some of the layers. The first stage has towers and leaves before all layers,
    the last one leaves after them, with its own copy of a tied table; every stage has weights that layers share."""
    group = tensor.group
    if not group or group[0] >= 2 * BEHIND:
        before = bool(group) or tensor.kind == "embedding"
        on_stage = (first and before) or (last and (not before or (tied and not group)))
        return tensor if on_stage else tensor._replace(copies=0)
    if tensor.reads > 1:
        return tensor
    bounds = [(bisect_left(group, numbers.start), bisect_left(group, numbers.stop)) for numbers in ranges]
    layers = tuple(chain.from_iterable(group[start:stop] for start, stop in bounds))
    return tensor._replace(copies=ceil_div(tensor.copies * len(layers), len(group)), group=layers)
