"""The memory of every rank of a training run, by category: exact integers of allocated bytes.

Parameters, gradients, optimizer state and saved activations equal PyTorch's own sharding, to the byte (`txcalc verify
--layout`). Gathered weights, buffers and logits are modelled by the framework's rules: shapes do not show when a
temporary of a kernel or collective is freed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import asdict, replace

from txcalc.errors import Fault, InputError
from txcalc.model import Model
from txcalc.planning.training import profiles
from txcalc.planning.training.activations import SavedActivations, saved_activations
from txcalc.planning.training.collectives import collectives
from txcalc.planning.training.optimizers import OPTIMIZERS
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import Pipeline, StagePiece
from txcalc.planning.training.states import RankTensor, State, rank_weights, shard_runs, sharers, states
from txcalc.planning.training.timeline import in_flight

# Categories of a rank's memory, with their titles in tables and plots.
CATEGORIES = {
    **{name: name for name in ("parameters", "gradients", "optimizer")},
    "saved": "saved activations", "gathered": "gathered weights", "buffers": "buffers", "logits": "logits",
    "in_flight": "in flight (pipeline)", "adapters": "adapters",
}  # fmt: skip

# Ratio of bytes reserved by PyTorch's caching allocator to allocated bytes: the median of 43 runs of Megatron-LM on
# B200 (SimuMax 4dcaae5, docs/b200: 1.028 … 1.093). FSDP2 in eager mode fragments more (torchtitan: 1.17 … 1.22).
RESERVED = (1040, 1000)


class Peak(Struct, frozen=True):
    """The peak memory of a rank.

    bytes      by category, at the moment when their sum is largest
    moment     the name of that moment
    moments    the sum at each moment
    state      bytes that it holds at every moment
    in_flight  micro-batches in flight, of each of its pieces
    host       bytes in host memory
    offloaded  bytes of activations of one micro-batch that move to host memory and back
    """

    bytes: dict[str, int]
    moment: str
    moments: dict[str, int]
    state: State
    in_flight: tuple[int, ...]
    host: int
    offloaded: int

    @property
    def allocated(self) -> int:
        return sum(self.bytes.values())


class RankPeak(Peak, frozen=True):
    """The peak memory of equal ranks.

    rank, count       the number of the first, and how many there are
    stage             of the pipeline
    column            the number of the first in its group of tp
    collective_bytes  bytes freed while a collective still uses them, so that they cannot be reused
    """

    rank: int
    count: int
    stage: int
    column: int
    collective_bytes: int

    @property
    def reserved(self) -> int:
        """Bytes that the allocator is likely to reserve: `RESERVED`, a measured factor, times the sum of
        `allocated` and `collective_bytes`."""
        return (self.allocated + self.collective_bytes) * RESERVED[0] // RESERVED[1]


class Ranks(Struct, frozen=True):
    """The ranks of a training run, equal ones folded."""

    model: Model
    recipe: Recipe
    ranks: tuple[RankPeak, ...]
    notes: tuple[str, ...]
    sharding: tuple[str, ...]

    @property
    def fullest(self) -> RankPeak:
        return max(self.ranks, key=lambda rank: rank.reserved)


def memory(model: Model, recipe: Recipe) -> Ranks:
    """Every rank's memory at its peak.

    Unit     bytes
    Counts   allocated tensors: weights, gradients, optimizer state after the first step, saved tensors, gathered
             weights, buffers of collectives, logits and the loss's temporaries
    Omits    the CUDA context (see `machine.CONTEXT`), NCCL's buffers, the libraries' workspaces, fragmentation (see
             `RESERVED`)
    Errors   `InputError` with every reason why the model does not allow the layout
    """
    ranks = memory_within(model, recipe, None)
    assert ranks is not None
    return ranks


def memory_within(model: Model, recipe: Recipe, capacity: int | None) -> Ranks | None:
    """`memory` if no rank reserves more than `capacity` bytes; None as soon as one stage's does."""
    pipeline, width = Pipeline(model, recipe), model.d_model
    layout, peaks = recipe.layout, list[RankPeak]()
    for stage in range(layout.pp):
        pieces = pipeline.of_stage(stage)
        ranks = _stage(stage, pieces, [saved_activations(piece, recipe, width) for piece in pieces], recipe, width)
        if capacity is not None and any(rank.reserved > capacity for rank in ranks):
            return None
        peaks += ranks
    cautions = [recipe.rules.caution] if recipe.rules.caution else []
    if OPTIMIZERS[recipe.optimizer].newton_schulz and recipe.rules.dtensor and layout.tp > 1:
        cautions.append(f"{recipe.optimizer}: communication for matrices that tp splits is not counted")
    if layout.tp > 1:
        of_all = dict.fromkeys(leaf.entry.leaf.of_all for piece in pipeline.pieces for leaf in piece.leaves)
        cautions += [
            f"tp: {operation}: each rank takes only its own share; messages to take all are not counted"
            for operation in of_all
            if operation
        ]
    return Ranks(model, recipe, tuple(_fold(peaks)), (*_towers(model), *pipeline.unsummed, *cautions), pipeline.notes)


def _towers(model: Model) -> tuple[str, ...]:
    if not model.tower_roots:
        return model.left_out
    note = f"{model.name}: memory has the {model.tower_params:,} parameters of towers and projectors"
    return (f"{note} (--text-only leaves them out); their activations and their time are not counted",)


def rank_of(model: Model, recipe: Recipe, number: int) -> RankPeak:
    """One rank's memory at its peak. Ranks are numbered by tp first, then by data parallelism, then by stage. Errors:
    `InputError` for a rank that does not exist."""
    layout = recipe.layout
    if not 0 <= number < layout.gpus:
        raise InputError("train", [Fault("--rank", number, f"a rank from 0 to {layout.gpus - 1:,} of {layout}")])
    pipeline, width = Pipeline(model, recipe), model.d_model
    stage, rank_in_stage = divmod(number, layout.cp * layout.copies * layout.tp)
    position, column = divmod(rank_in_stage, layout.tp)
    pieces = pipeline.of_stage(stage)
    weights = rank_weights(pieces, recipe, column)
    saved = [saved_activations(piece, recipe, width) for piece in pieces]
    return _rank(number, 1, stage, pieces, weights, saved, recipe, position % sharers(recipe, False), width)


def _stage(
    stage: int, pieces: list[StagePiece], saved: list[SavedActivations], recipe: Recipe, width: int
) -> list[RankPeak]:
    """The distinct ranks of a stage: of tp, those with different shards; of each of these, the data-parallel ranks with
    different shards."""
    layout = recipe.layout
    ranks, columns = list[RankPeak](), rank_columns(pieces, recipe)
    inner = layout.cp * layout.copies
    for first, after in zip(columns, [*columns[1:], layout.tp], strict=True):
        weights = rank_weights(pieces, recipe, first)
        points = shard_runs((tensor for piece_weights in weights for tensor in piece_weights), recipe, first)
        shards = sharers(recipe, False)
        for start, end in zip(points, [*points[1:], shards], strict=True):
            number = (stage * inner + start) * layout.tp + first
            count = (end - start) * (inner // shards) * (after - first)
            ranks.append(_rank(number, count, stage, pieces, weights, saved, recipe, start, width))
    return ranks


def figures(model: Model, recipe: Recipe, pipeline: Pipeline, rank: RankPeak) -> Counter[str]:
    """The figures of a rank that are verified against PyTorch's sharding: bytes, and the number of each collective."""
    pieces, width = pipeline.of_stage(rank.stage), model.d_model
    values = Counter(rank.state._asdict())
    saved = [saved_activations(piece, recipe, width) for piece in pieces]
    values["saved"] = sum(piece.saved for piece in saved)
    values["saved again"] = max(piece.recomputed for piece in saved)
    values["saved by the loss"] = recipe.logit_bytes[0] * profiles.logits(recipe, pieces, rank.column)
    for kind, sent in collectives(pieces, recipe, rank.column).items():
        values[kind], values[f"{kind} bytes"] = sent
    return values


def rank_columns(pieces: list[StagePiece], recipe: Recipe) -> list[int]:
    """The first tp rank of every run of equal ones: all are equal, except where DTensor shards unevenly."""
    points, previous = list[int](), list[list[RankTensor]]()
    for rank in range(recipe.layout.tp if recipe.rules.dtensor else 1):
        weights = rank_weights(pieces, recipe, rank)
        if weights != previous or recipe.layout.expert_group % recipe.layout.tp:
            points.append(rank)
            previous = weights
    return points


def _rank(
    number: int,
    count: int,
    stage: int,
    pieces: list[StagePiece],
    weights: list[list[RankTensor]],
    saved: list[SavedActivations],
    recipe: Recipe,
    shard: int,
    width: int,
) -> RankPeak:
    column = number % recipe.layout.tp
    tensors = [tensor for piece_weights in weights for tensor in piece_weights]
    state = states(tensors, recipe, shard, column)
    sizes, groups = profiles.PassSizes.of(recipe, pieces, column), profiles.WeightGroups.of(tensors)
    peak = peak_of(recipe, stage, saved, sizes, groups, state, width)
    unreleased = profiles.unreleased_bytes(recipe, pieces, state)
    return RankPeak(**asdict(peak), rank=number, count=count, stage=stage, column=column, collective_bytes=unreleased)


def peak_of(
    recipe: Recipe,
    stage: int,
    saved: Sequence[SavedActivations],
    sizes: profiles.PassSizes,
    groups: profiles.WeightGroups,
    state: State,
    width: int,
) -> Peak:
    """The peak of a rank of a stage; `saved` has an item for each of its pieces."""

    def saved_bytes(counts: Sequence[int]) -> int:
        return sum(count * piece.saved for count, piece in zip(counts, saved, strict=True))

    most: tuple[int, ...] = max(in_flight(recipe, stage), key=saved_bytes)
    running_piece = max((saved[i] for i, count in enumerate(most) if count), key=lambda piece: piece.saved)
    running = running_piece.saved
    in_flight_bytes = saved_bytes(most) - running
    recomputed = max(piece.recomputed for piece in saved)
    optimizer, host, offloaded = state.optimizer, 0, 0
    if recipe.offloads("optimizer"):
        optimizer, host = 0, state.optimizer + state.gradients
    if recipe.offloads("activations"):
        offloaded = max(piece.offloadable for piece in saved)
        host += in_flight_bytes + running_piece.offloadable
        running, in_flight_bytes = running - running_piece.offloadable, 0
    tables: dict[str, dict[str, int]] = {}
    for name, moment in profiles.moments(recipe, sizes, groups, state, width).items():
        tables[name] = {
            "parameters": state.parameters,
            "gradients": moment.gradients,
            "optimizer": optimizer,
            "saved": running + recomputed * moment.recomputes if moment.saved else 0,
            "gathered": moment.gathered,
            "buffers": moment.buffers,
            "logits": moment.logits,
            "in_flight": in_flight_bytes if moment.saved else 0,
            "adapters": state.adapters,
        }
    sums = {name: sum(table.values()) for name, table in tables.items()}
    largest = max(sums, key=sums.__getitem__)
    return Peak(tables[largest], largest, sums, state, most, host, offloaded)


def _fold(ranks: list[RankPeak]) -> list[RankPeak]:
    folded: dict[object, RankPeak] = {}
    for rank in ranks:
        key = (rank.stage, rank.state, tuple(rank.bytes.items()))
        before = folded.get(key)
        folded[key] = rank if before is None else replace(before, count=before.count + rank.count)
    return list(folded.values())
