"""A training step piece by piece, each number worked out by hand, by summation or by another reading of the source."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from paths import DATA

from txcalc import hardware, load
from txcalc.errors import InputError
from txcalc.hardware import Accelerator
from txcalc.hardware.curves import Curve
from txcalc.planning.layout import Group, parse_layout
from txcalc.planning.machine import (
    LINK_SHARE,
    NCCL,
    PCIE_4,
    SLOWED,
    Floor,
    Kernels,
    Machine,
    Message,
    relayed_all_to_all,
)
from txcalc.planning.training import Layout, Recipe, memory, order, profiles
from txcalc.planning.training.activations import INPUTS, leaf_bytes, saved_activations, saved_by_kind
from txcalc.planning.training.collectives import collectives
from txcalc.planning.training.exchange import HOST_MEMORY, ProductTime, StageWeights, host_offload
from txcalc.planning.training.memory import RankPeak, rank_of
from txcalc.planning.training.optimizers import OPTIMIZERS
from txcalc.planning.training.parts import RankTree, in_letters
from txcalc.planning.training.profiles import WORKSPACE, PassSizes, WeightGroups
from txcalc.planning.training.stages import Pipeline, StagePiece
from txcalc.planning.training.states import RankTensor, State, rank_weights, states, tensors
from txcalc.planning.training.step import Step, StepTimer
from txcalc.planning.training.timeline import Action, PieceTime, number, simulate

# Actions of ranks as torch 2.13's classes of schedules list them (`_calculate_single_rank_operations`; test_layouts.py
# asks them of many more): schedule, stages, pieces, micro-batches, rank, and kind, piece of the model and micro-batch.
ACTIONS = json.loads((DATA / "training" / "schedules.json").read_text())


@pytest.mark.parametrize(("schedule", "stages", "pieces", "batches", "rank", "actions"), ACTIONS)
def test_a_rank_works_in_torch_s_order(
    schedule: str, stages: int, pieces: int, batches: int, rank: int, actions: str
) -> None:
    recipe = Recipe(Layout(pp=stages, vpp=pieces), schedule=schedule)
    sequence = order(schedule, stages, rank, batches, pieces)
    assert " ".join(f"{kind}{number(recipe, rank, piece)}.{batch}" for kind, piece, batch in sequence) == actions


def relaxed(
    recipe: Recipe, pieces: list[PieceTime], waits: tuple[float, float]
) -> dict[tuple[int, int], tuple[float, float]]:
    """When each action of each rank begins and ends, by going over all of them until nothing moves."""
    stages, last = recipe.layout.pp, len(pieces) - 1
    tables = [order(recipe.schedule, stages, rank, recipe.accumulation, recipe.pieces) for rank in range(stages)]
    numbers_of_rank = [[number(recipe, rank, piece) for piece in range(recipe.pieces)] for rank in range(stages)]
    home = {n: rank for rank, numbers in enumerate(numbers_of_rank) for n in numbers}
    times: dict[tuple[int, int], tuple[float, float]] = {}
    while True:
        there = {
            (numbers_of_rank[rank][a.piece], "F" if a.kind == "F" else "G", a.batch): (rank, times[rank, i][1])
            for rank, table in enumerate(tables)
            for i, a in enumerate(table)
            if (rank, i) in times and a.kind != "W"
        }
        now: dict[tuple[int, int], tuple[float, float]] = {}
        for rank, table in enumerate(tables):
            free = 0.0
            for i, (kind, piece, batch) in enumerate(table):
                n = numbers_of_rank[rank][piece]
                came = {"F": (n - 1, "F"), "W": None}.get(kind, (n + 1, "G") if n < last else (n, "F"))
                start = free
                if came and came[0] >= 0:
                    if (*came, batch) not in there:
                        break
                    giver, done = there[(*came, batch)]
                    if giver != rank:
                        wait = waits[came[1] == "G"]
                        start = max(free + wait, done + wait + pieces[min(n, came[0])].send)
                    else:
                        start = max(free, done + (0 if home[n] == rank else waits[came[1] == "G"]))
                cost = pieces[n]
                took = {"F": cost.forward, "I": cost.inputs, "W": cost.weights, "B": cost.inputs + cost.weights}[kind]
                now[rank, i] = start, start + took
                to = n + 1 if kind == "F" else n - 1
                free = start + took + (waits[kind != "F"] if kind != "W" and home.get(to, rank) != rank else 0)
        if now == times:
            return times
        times = now


@pytest.mark.parametrize("waits", [(0.0, 0.0), (5.0, 3.0)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb", "zbv", "dualpipev"])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_events_are_those_of_the_longest_way(schedule: str, stages: int, waits: tuple[float, float]) -> None:
    """Of uneven pieces and messages, whole numbers of seconds."""
    vpp = 2 if schedule == "interleaved" and stages > 1 else 1
    recipe = Recipe(Layout(pp=stages, vpp=vpp), accumulation=2 * stages, schedule=schedule)
    pieces = [PieceTime(3 + 5 * n, 7 + n, 2 + 3 * n, 11 + n) for n in range(stages * recipe.pieces)]
    line, expected = simulate(recipe, pieces, waits), relaxed(recipe, pieces, waits)
    intervals = {(rank, i): (e.start, e.end) for rank, events in enumerate(line.ranks) for i, e in enumerate(events)}
    assert intervals == expected
    assert line.seconds == max(end for _, end in expected.values())
    for rank in range(stages):
        assert line.busy(rank) == sum(end - start for (owner, _), (start, end) in expected.items() if owner == rank)


def test_what_cannot_begin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from txcalc.planning.training import timeline

    monkeypatch.setattr(timeline, "order", lambda *arguments: [Action("B", 0, 0), Action("F", 0, 0)])
    with pytest.raises(InputError, match="1f1b with 1 micro-batches deadlocks at pp = 1"):
        simulate(Recipe(), [PieceTime(1, 1, 1, 0)])


# A machine whose figures are round: a second is a FLOP, a byte, a start or a term of a sum, as it is asked for.


def card(peak: int = 10**30, bandwidth: int = 10**30, **curve: float) -> Accelerator:
    """One with all classes of kernels alike; what is not said takes no time."""
    base = hardware.load("h100-sxm")
    measured, peaks = base.efficiency, {"bf16": peak, "fp8": 4 * peak, "fp16": peak}
    curves = {key: Curve(**curve) for key in measured.curves}
    efficiency = replace(measured, curves=curves, memory=1.0, launch_s=curve.get("start_s", 0.0), host_s=0.0)
    return replace(base, peaks=peaks, bandwidth=bandwidth, calibration=efficiency)


def kernels(wide: str = "bf16", products: str = "bf16", flash: str | None = None, **options: Any) -> Kernels:
    return Kernels(Machine.of(card(**options), products=products), wide, flash)


@pytest.mark.parametrize(
    ("kind", "size", "local", "seconds"),
    [
        ("all_gather", 4, 4, 14 + 3 * 1.9),
        ("reduce_scatter", 16, 8, 14 + 13 * 1.9 + 2 * 4.0),  # of 15 hops two between nodes
        ("all_gather", 3, 1, 14 + 3 * 4.0),
        ("all_reduce", 2, 2, 14 + 2 * 1 * 1.25),  # the tree's, of a hop
        ("all_reduce", 4, 1, 14 + 2 * 4 * 4.0),  # the ring's: less than two steps of a tree between nodes
        ("all_reduce", 32, 4, 14 + 2 * (3 * 1.25 + 3 * 8.5)),
        ("all_to_all", 8, 8, 14 + 1.9),
        ("send", 2, 1, 14 + 4.0),
    ],
)
def test_a_collective_starts_as_nccl_s_model_says(kind: str, size: int, local: int, seconds: float) -> None:
    assert NCCL.latency(Message(kind, Group(size, local), 0)) == pytest.approx(seconds * 1e-6)


def test_what_a_machine_says() -> None:
    assert Machine.of(card()).host == PCIE_4 == 16 * 16 * 10**9 // 8
    assert Machine.of(card(), host=1).host == 1
    assert HOST_MEMORY == 16 * 38_400_000_000 // 8
    assert pytest.approx(0.189 / 0.310278) == SLOWED
    assert Machine.lost(10, 100) == pytest.approx(10 * SLOWED) and Machine.lost(10, 1) == 9
    four = Machine.of(card(), node=4)
    assert [four.group(8, stride, 64) for stride in (1, 2, 4, 8)] == [Group(8, n) for n in (4, 2, 1, 1)]
    assert Machine.of(replace(card(), node=None)).group(8, 2, 16) == Group(8, 8)
    # Ten bytes from one node to the next, and within one; nothing of one rank alone.
    near, far = replace(card(), link=10), replace(card(), link=10, link_between=5, node=1)
    for gpu, seconds in ((near, 1), (far, 2)):
        assert Floor(Machine.of(gpu)).transfer(Message("send", Group(4, 4 if gpu is near else 1), 10)) == seconds
    assert Kernels(Machine.of(near)).transfer(Message("send", Group(1, 1), 10)) == 0
    assert Kernels(Machine.of(near)).transfer(Message("all_gather", Group(2, 2), 0)) == 0
    whole = Kernels(Machine.of(near)).transfer(Message("all_gather", Group(2, 2), 10, 3))
    assert whole == pytest.approx(1 / LINK_SHARE + 3 * 15.9e-6)


# What a host holds.


def rank(state: State, away: int = 0) -> RankPeak:
    return RankPeak({}, "", {}, state, (), 0, away, rank=0, count=1, stage=0, column=0, collective_bytes=0)


@pytest.mark.parametrize(
    ("layout", "zero", "link", "processors"),
    [
        (Layout(fsdp=4), 0, 30 + 40, 30 + 2 * 50 + 40),  # gradients there, weights back
        (Layout(dp=4), 0, 30 + 40, 30 + 2 * 50 + 40),
        (Layout(dp=4), 1, 7 + 10, 7 + 2 * 50 + 10),  # whole on every rank, of which each hands on its share
        (Layout(dp=2, cp=2), 2, 30 + 10, 30 + 2 * 50 + 10),
        (Layout(dp=4), 3, 30 + 40, 30 + 2 * 50 + 40),
    ],
)
def test_an_optimizer_s_state_in_the_host(layout: Layout, zero: int, link: int, processors: int) -> None:
    recipe = Recipe(layout, framework="deepspeed", zero=zero, offload="optimizer")
    hosts = [rank(State(40, 30, 50)), rank(State(4, 3, 5))]
    assert host_offload(recipe, hosts, 2, 0, 0) == (link / 2, processors / HOST_MEMORY)
    tuned = [rank(State(400, 30, 50, adapters=40))]
    assert host_offload(recipe, tuned, 2, 0, 0) == (link / 2, processors / HOST_MEMORY)


def test_activations_in_the_host() -> None:
    """60 bytes at 2 per second each way, of which compute hides 10 s and 25 s, of each micro-batch."""
    recipe = Recipe(accumulation=3, offload="activations")
    hosts = [rank(State(40, 30, 50), away) for away in (60, 8)]
    assert host_offload(recipe, hosts, 2, 10, 25) == (3 * (20 + 5), 0)
    assert host_offload(recipe, hosts, 2, 31, 40) == (0, 0)
    combined = replace(recipe, offload="optimizer+activations")
    assert host_offload(combined, hosts, 2, 10, 25) == (35 + 75, 170 / HOST_MEMORY)


# Weights, gradients and optimizer state.


@pytest.mark.parametrize(
    ("name", "vector", "matrix", "cube"),
    [
        ("adamw", 2 * 4 * 6, 2 * 4 * 15, 2 * 4 * 30),
        ("adamw-bf16", 2 * 2 * 6, 2 * 2 * 15, 2 * 2 * 30),
        ("sgd", 0, 0, 0),
        ("sgd-momentum", 4 * 6, 4 * 15, 4 * 30),
        ("lion", 4 * 6, 4 * 15, 4 * 30),
        ("muon", 2 * 4 * 6, 4 * 15, 2 * 4 * 30),  # a matrix between hidden vectors alone
        ("adafactor", 4 * 6, 4 * (3 + 5), 4 * 2 * (3 + 5)),
    ],
)
def test_what_an_optimizer_keeps(name: str, vector: int, matrix: int, cube: int) -> None:
    size = OPTIMIZERS[name].size
    shapes = (((6,), False), ((3, 5), True), ((2, 3, 5), False))
    assert [size(shape, 4, hidden) for shape, hidden in shapes] == [vector, matrix, cube]
    assert size((3, 0), 4, False) == 0


def test_eight_bits_have_a_scale_for_256() -> None:
    recipe = Recipe(optimizer="adamw-8bit")
    for elements, sizes in ((4095, 8 * 4095), (4096, 2 * (4096 + 64)), (4097, 2 * (4097 + 4 * 17))):
        tensor = RankTensor((elements,), 1, None, False, False, ())
        assert states([tensor], recipe, 0).optimizer == sizes


MATRIX = RankTensor((10, 8), 3, None, False, True, (0, 1, 2))
VECTOR = RankTensor((5,), 1, None, False, False, ())
FROZEN = RankTensor((6,), 1, None, False, False, (), learns=False)


@pytest.mark.parametrize(
    ("recipe", "shard", "elements"),
    [
        (Recipe(), 0, (251, 245, 245)),
        (Recipe(Layout(fsdp=4)), 0, (3 * 24 + 2 + 2, 74, 74)),  # rows, as torch.chunk cuts them
        (Recipe(Layout(fsdp=4)), 3, (3 * 8, 24, 24)),
        (Recipe(Layout(fsdp=2, cp=2)), 3, (24, 24, 24)),
        (Recipe(Layout(dp=4), framework="megatron"), 0, (251, 245, 245)),
        (Recipe(Layout(dp=4), framework="megatron", zero=1), 3, (251, 245, 62)),  # of one buffer, padded
        (Recipe(Layout(dp=4), framework="deepspeed", zero=2), 1, (251, 62, 62)),
        (Recipe(Layout(dp=4), framework="deepspeed", zero=3), 1, (62 + 2, 62, 62)),  # what is frozen apart
        (Recipe(Layout(dp=3), framework="nanotron", zero=1), 0, (251, 245, 3 * 27 + 2)),  # each tensor by itself
        (Recipe(Layout(dp=3), framework="nanotron", zero=1), 2, (251, 245, 3 * 26 + 1)),
        (Recipe(Layout(dp=3), framework="nanotron"), 2, (251, 245, 245)),
    ],
)
def test_a_rank_holds_its_share(recipe: Recipe, shard: int, elements: tuple[int, int, int]) -> None:
    """Three matrices of ten rows, a vector of five, and one of six that is frozen: weights, gradients, AdamW's state
    with fp32 weights beside narrower ones."""
    state = states([MATRIX, VECTOR, FROZEN], recipe, shard)
    weights, gradients, learnt = elements
    itemsize = recipe.parameter_bytes
    assert state == State(weights * itemsize, gradients * recipe.gradient_bytes, learnt * (8 if itemsize == 4 else 12))
    wide = replace(recipe, parameter="fp32", gradient="fp32", optimizer="sgd")
    assert states([MATRIX, VECTOR, FROZEN], wide, shard) == State(4 * weights, 4 * gradients, 0)


@pytest.mark.parametrize(
    ("layout", "numbers"),
    [
        (Layout(fsdp=9), [2] * 8 + [0]),
        (Layout(fsdp=5, dp=2), [4] * 4 + [0]),
        (Layout(fsdp=16), [1] * 16),
        (Layout(fsdp=32), [0.5] * 32),  # more ranks than experts: rows of each
        (Layout(fsdp=10, ep=2), [2] * 8 + [0] * 2),  # its two ranks each with the same shard of other experts
        (Layout(tp=2, fsdp=3), [3, 3, 2]),  # of half as many columns
    ],
)
def test_fsdp_shards_stacked_experts_whole(layout: Layout, numbers: list[float]) -> None:
    """Sixteen experts of three matrices of 64 × 96, in each of four layers, and AdamW's two moments, in fp32."""
    model, recipe = load("D=64 L=4 h=8 h_kv=4 F=96 V=250 E=16 k=2"), Recipe(layout, tokens=32)
    experts = [tensor for tensor in rank_weights(Pipeline(model, recipe).pieces, recipe)[0] if tensor.expert]
    every = [states(experts, recipe, rank) for rank in range(layout.fsdp)]
    assert [state.parameters for state in every] == [n * 4 * 3 * 64 * 96 * 4 for n in numbers]
    assert [state.optimizer for state in every] == [2 * state.parameters for state in every]


def test_rows_of_experts_that_fsdp_cannot_shard_are_refused() -> None:
    """torch: "FSDP does not support uneven sharding on dim 1"."""
    model = load("D=64 L=4 h=8 h_kv=4 F=96 V=250 E=16 k=2")
    with pytest.raises(InputError, match="at most 16 ranks for 16 experts, not 36, or a divisor of their 96 rows"):
        memory(model, Recipe(Layout(fsdp=36), tokens=32))
    memory(model, Recipe(Layout(fsdp=32), tokens=32))


# The step of a model of four layers: three sequences of 32 tokens, a second for each FLOP, byte, start or term.

DECODER = "D=64 L=4 h=8 h_kv=4 F=96 V=250"


# Rows with the options of a recipe, the machine's units, and what is expected, in formulas of `names`.
STEP: dict[str, Any] = tomllib.loads((DATA / "training" / "step.toml").read_text("utf-8"))
NAMES: dict[str, Any] = {"WORKSPACE": WORKSPACE}
for _name, _formula in STEP["names"].items():
    NAMES[_name] = eval(_formula, {}, NAMES)
ROWS, HEAD, NORMED, WEIGHTS, PRODUCTS, DENSE, ADAPTERS = (
    NAMES[name] for name in ["ROWS", "HEAD", "NORMED", "WEIGHTS", "PRODUCTS", "DENSE", "ADAPTERS"]
)
STREAM, PADDED, SUMS_OF_LOSS, WIDE, INNER, CORES, STATED, G = (
    NAMES[name] for name in ["STREAM", "PADDED", "SUMS_OF_LOSS", "WIDE", "INNER", "CORES", "STATED", "G"]
)


def recipe_of(row: dict[str, Any]) -> dict[str, Any]:
    """The options of a row's recipe, and `set`, the changes of the model."""
    options = dict(row.get("recipe", {}))
    read: dict[str, Callable[[Any], Any]] = {"layout": parse_layout, "stages": tuple}
    return {key: read[key](value) if key in read else value for key, value in options.items()}


def figure(formula: str | int) -> Any:
    return eval(formula, {}, NAMES) if isinstance(formula, str) else formula


def figures(formulas: dict[str, str | int]) -> dict[str, Any]:
    return {name: figure(formula) for name, formula in formulas.items()}


def stepped(changes: dict[str, Any], units: dict[str, Any]) -> Step:
    """A step whose links, if nothing is said of them, take no time."""
    changes, units = dict(changes), {"link": 10**30, "link_between": 10**30, **units}
    model = load(DECODER, changes.pop("set", {}))
    recipe = Recipe(**{"micro_batch": 3, "tokens": 32, **changes})
    places = {key: units.pop(key) for key in ("link", "link_between")}
    options = {key: units.pop(key) for key in ("products", "node", "overlap") if key in units}
    host = units.pop("host_s", 0.0)
    accelerator = replace(card(**units), **places)
    accelerator = replace(accelerator, calibration=replace(accelerator.efficiency, host_s=host))
    return StepTimer(model, recipe, Machine.of(accelerator, **options)).step(memory(model, recipe))


TIED, ONE = {"head.tied": True}, {"shared_layers": True}
KINDS = {**ONE, "pattern": ["local", "local", "global", "global"], "layer.local.attention.window": 16}


@pytest.mark.parametrize("row", STEP["times"], ids=str)
def test_a_step_is_counted(row: dict[str, Any]) -> None:
    step = stepped(recipe_of(row), row["units"])
    for kind, count in figures(row["expected"]).items():
        assert (step.floor if kind == "floor" else step.spent[kind]) == pytest.approx(count, rel=1e-12, abs=1e-9), kind


@pytest.mark.parametrize("row", STEP["sent"], ids=str)
def test_what_a_rank_sends_is_counted(row: dict[str, Any]) -> None:
    """And at the datasheet of a link of a byte a second takes as many seconds, where it is among copies: the message of
    an all-reduce once."""
    changes, sent = recipe_of(row), figures(row["sent"])
    step = stepped(changes, {"link": 1})
    assert step.sent == sent
    layout = changes["layout"]
    if layout.tp * layout.pp * layout.cp == 1 and changes.get("accumulation", 1) == 1:
        once = layout.dp / 2 / max(1, layout.dp - 1)
        least = sum(size * (once if kind == "all_reduce" else 1) for kind, size in sent.items())
        assert step.floor == pytest.approx(least, rel=1e-12) and step.floor_bound == "link"


GATHER, AGAIN, REDUCE = 1.5 * WEIGHTS, 1.5 * NORMED, 3 * WEIGHTS  # bytes of four ranks with fsdp


def overlapped(byte: float, ends: float, layers: float, of: int = 4) -> float:
    """Seconds of so many bytes an element of what stands in no layer and of the layers, of which all but one go on
    beside compute."""
    return byte * (ends + layers / of + SLOWED * layers * (1 - 1 / of))


@pytest.mark.drawn(quick=3)
@pytest.mark.parametrize(
    ("changes", "idle", "busy", "exposed"),
    [
        ({"layout": Layout(fsdp=4), "accumulation": 3},  # the root and a block wait with every micro-batch
         3 * (GATHER + AGAIN + REDUCE), 3 * (SLOWED * AGAIN + overlapped(4.5, WEIGHTS - NORMED, NORMED)),
         3 * (GATHER + AGAIN + REDUCE)),
        ({"layout": Layout(fsdp=2, pp=2), "accumulation": 2},  # two layers once; the busier stage has the last norm
         3 * (NORMED / 2 + HEAD), overlapped(3, HEAD + 64, NORMED / 2, 2), 3 * (NORMED / 2 + HEAD + 64)),
        ({"layout": Layout(dp=4), "accumulation": 3},  # a table's gradient comes last, a head's first
         6 * WEIGHTS, overlapped(6, HEAD, WEIGHTS - HEAD), 6 * WEIGHTS),
        ({"layout": Layout(dp=4), "framework": "megatron", "zero": 1},
         4.5 * PADDED, overlapped(4.5, HEAD + 6 * 64, WEIGHTS - HEAD + 6 * 64), 4.5 * PADDED),
        ({"layout": Layout(dp=4), "framework": "deepspeed", "zero": 1},  # which gathers behind its step
         3 * WEIGHTS, overlapped(1.5, HEAD, WEIGHTS - HEAD) + 1.5 * WEIGHTS, 3 * WEIGHTS),
        ({"layout": Layout(dp=4), "framework": "nanotron", "zero": 1}, *[7.5 * WEIGHTS] * 3),
        ({"layout": Layout(dp=4), "framework": "deepspeed", "zero": 3},
         GATHER + AGAIN + REDUCE, SLOWED * AGAIN + overlapped(4.5, HEAD, WEIGHTS - HEAD), GATHER + AGAIN + REDUCE),
        ({"layout": Layout(dp=4), "set": TIED, "framework": "megatron"},
         6 * (PADDED - HEAD - 6 * 64), overlapped(6, HEAD + 6 * 64, WEIGHTS - 2 * HEAD), 6 * (PADDED - HEAD - 6 * 64)),
    ],
)  # fmt: skip
def test_what_copies_wait_for(changes: dict[str, Any], idle: float, busy: float, exposed: float) -> None:
    """Of what goes on beside compute all, where that takes no time, and the share by which compute is slower, where it
    takes long; never of the first block's gathering and of the last one's reduction, and of what stands before it."""
    for expected, units in ((idle, {}), (busy, {"peak": 1}), (exposed, {"peak": 1, "overlap": False})):
        spent = stepped(changes, {"link": 1, **units}).spent["weights and gradients"]
        assert spent == pytest.approx(expected / 0.82, abs=0.01)  # the starts of collectives


@pytest.mark.parametrize(
    ("framework", "sp", "waited", "hidden"),
    [
        ("fsdp2", 2, 2 * 18, 0),
        ("fsdp2", 1, 2 * 18, 0),
        ("megatron", 2, 9 + 18, 2 * 9),  # of nine inputs the gradient is reduced, and they are gathered again
        ("megatron", 1, 2 * (18 - 9), 2 * 9),
        ("nanotron", 2, 9 + 1, 3 * 9 + 8),  # and a rank's own positions are begun with; but for the embedding's
        ("nanotron", 1, 2 * 18, 0),
    ],
)
def test_what_tensor_parallel_waits_for(framework: str, sp: int, waited: int, hidden: int) -> None:
    """Of two branches of four layers, the embedding and the head: passes of the stream that a rank waits for, and those
    beside products, which take far longer and are slowed. An all-reduce is two passes."""
    changes = {"layout": Layout(tp=2, sp=sp), "framework": framework}
    passes = {"busy": waited + SLOWED * hidden, "alone": waited + hidden}
    for name, overlap in (("busy", True), ("alone", False)):
        spent = stepped(changes, {"link": 1, "peak": 1, "overlap": overlap}).spent["collectives of a layer"]
        assert spent * 0.82 == pytest.approx(passes[name] * STREAM / 2 + SUMS_OF_LOSS, abs=0.01)


@pytest.mark.parametrize(
    ("source", "changes", "expected"),
    [
        (DECODER, {"layout": Layout(dp=4), "framework": "nanotron", "zero": 1},
         [("all_reduce", 4, 4, "after"), ("all_gather", 4, 4, "gather")]),
        (DECODER, {"layout": Layout(pp=2), "accumulation": 2, "framework": "megatron", "set": ONE},
         [("all_reduce", 2, 2, "after")]),
        (DECODER, {"layout": Layout(dp=4, fsdp=2)},
         [("all_gather", 2, 2, "gather"), ("all_gather", 2, 2, "regather"), ("reduce_scatter", 2, 2, "reduce"),
          ("all_reduce", 4, 2, "reduce")]),
        (DECODER + " E=8 k=2", {"layout": Layout(dp=2, fsdp=2, ep=2)},  # a rank has its experts by itself
         [("all_gather", 2, 2, "gather"), ("all_gather", 2, 2, "regather"), ("reduce_scatter", 2, 2, "reduce"),
          ("all_reduce", 2, 2, "reduce"), ("all_reduce", 2, 2, "reduce")]),
    ],
)  # fmt: skip
def test_exchanges_of_a_step_and_when_they_are(
    source: str, changes: dict[str, Any], expected: list[tuple[Any, ...]]
) -> None:
    """In nodes of four. Nothing hides what comes behind the last gradient; what is gathered again waits for nothing."""
    recipe = Recipe(tokens=32, **{key: value for key, value in changes.items() if key != "set"})
    timer = StepTimer(load(source, changes.get("set")), recipe, Machine.of(replace(card(), link=1, node=4)))
    messages = [*timer.exchange.messages(StageWeights.of(timer.pipeline, timer.pipeline.pieces))]
    assert [(moved.kind, *moved.group, when) for moved, when, _ in messages] == expected
    if changes.get("framework"):
        assert all(exposed_share == 1 for *_, exposed_share in messages)
    assert "set" not in changes or [moved.sent for moved, *_ in messages] == [NORMED]


READERS = {"attention": ["q", "k", "v"], "feed_forward": ["gate", "up"]}


# What a rank of that model holds for backward, and beside it.


def first_stage(changes: dict[str, Any], column: int = 0) -> tuple[Recipe, list[StagePiece], list[list[RankTensor]]]:
    """The first stage's."""
    changes = dict(changes)
    model = load(changes.pop("source", DECODER), changes.pop("set", {}))
    recipe = Recipe(**{"micro_batch": 3, "tokens": 32, **changes})
    pieces = Pipeline(model, recipe).of_stage(0)
    return recipe, pieces, [list(tensors(piece, recipe, column)) for piece in pieces]


USUAL = {
    "norm": 2 * WIDE + 16 * ROWS, "q": 2 * WIDE, "core": 2 * CORES + 4 * STATED, "gate": 2 * WIDE,
    "activation": 3 * 2 * INNER, "down": 2 * INNER, "final_norm": WIDE // 2 + 4 * ROWS, "projection": WIDE // 2,
}  # fmt: skip


@pytest.mark.parametrize("row", STEP["saved"], ids=str)
def test_what_each_leaf_keeps(row: dict[str, Any]) -> None:
    """Bytes of all four layers: of a norm its input and a statistic of every row, of q and gate theirs, of attention
    queries, keys, values and results with a statistic of every head's rows, of the activation its two inputs and its
    result, of down and of the head theirs."""
    recipe, (piece, *_), _ = first_stage(recipe_of(row))
    expected = figures(row.get("saved", {}))
    kept: dict[str, int] = {}
    for leaf in piece.leaves:
        name = leaf.entry.steps[-1].name
        name = leaf.entry.steps[-2].name if name == "base" else re.sub("^(feed_forward|attention)_", "", name)
        kept[name] = kept.get(name, 0) + leaf_bytes(leaf, recipe)
    assert {name: size for name, size in kept.items() if size} == {
        name: size * (2 if name == "norm" else 1) for name, size in (USUAL | expected).items() if size
    }
    kinds = saved_by_kind(piece, recipe, 64)
    assert sum(kinds.values()) == sum(kept.values()) == saved_activations(piece, recipe, 64).saved


@pytest.mark.parametrize(
    ("changes", "saved", "recomputed", "away"),
    [
        ({}, 4, 0, 2),
        ({"recompute": "layers:1,2"}, 2 + 2j, 1, 2j),
        ({"recompute": "blocks"}, 4j, 1, 2j),
        ({"recompute": "every:3"}, 2 + 2j, 1, 2j),
    ],
)
def test_what_blocks_keep(changes: dict[str, Any], saved: complex, recomputed: int, away: complex) -> None:
    """In whole blocks, and blocks' inputs (j). The host may hold all but the two largest."""
    recipe, (piece,), _ = first_stage(changes)
    entrance, outside = WIDE // 2, USUAL["final_norm"] + USUAL["projection"]
    block = (sum(USUAL.values()) + USUAL["norm"] - outside) // 4

    def size(parts: complex) -> int:
        return int(parts.real) * block + int(parts.imag) * entrance

    assert saved_activations(piece, recipe, 64) == (outside + size(saved), recomputed * (block - entrance), size(away))
    inputs = saved_by_kind(piece, recipe, 64)[INPUTS]
    assert inputs == int(complex(saved).imag) * entrance


@pytest.mark.parametrize(
    ("changes", "recomputed"),
    [
        ({"recompute": "core"}, 2 * ROWS * 64 + 4 * ROWS * 8),  # a layer's result and its statistics
        ({"recompute": "core", "keep_scores": True}, 2 * (3 * 8 * 32 * 32 + ROWS * 64)),  # scores, scaled queries
        ({"recompute": "core", "keep_scores": True, "set": {"attention.d_v": 4}}, 2 * (3 * 8 * 32 * 32 + ROWS * 64)),
    ],
)
def test_a_core_that_is_computed_again(changes: dict[str, Any], recomputed: int) -> None:
    recipe, (piece,), _ = first_stage(changes)
    assert saved_activations(piece, recipe, 64).recomputed == recomputed


@pytest.mark.parametrize("row", STEP["moments"], ids=str)
def test_what_a_framework_holds_beside(row: dict[str, Any]) -> None:
    """At each moment: gradients, gathered weights, buffers, logits."""
    recipe, pieces, tensors_ = first_stage(recipe_of(row))
    sizes, groups = PassSizes.of(recipe, pieces), WeightGroups.of(tensor for some in tensors_ for tensor in some)
    moments = profiles.moments(recipe, sizes, groups, State(0, G), 64)
    for name, numbers in row["moments"].items():
        assert moments[name][:4] == tuple(map(figure, numbers)), name
    for name, moment in moments.items():
        assert (moment.saved, moment.recomputes) == (name not in ("end", "step"), name == "backward")


@pytest.mark.parametrize(
    ("parameters", "zero", "joined"),
    [(2 * ROWS * 250 * 2, 1, 0), (2 * ROWS * 250 * 2 + 2, 1, 72_001 + 72_002), (10**6, 0, 0), (10**6, 1, 1_500_000)],
)
def test_a_tensor_of_all_weights_needs_a_block_of_its_own(parameters: int, zero: int, joined: int) -> None:
    """Unless an activation was as large: here the logits, in fp32."""
    recipe, pieces, _ = first_stage({"layout": Layout(dp=2), "framework": "nanotron", "zero": zero})
    assert profiles.unreleased_bytes(recipe, pieces, State(parameters)) == joined


@pytest.mark.parametrize(
    "layout",
    [
        Layout(fsdp=2),
        Layout(dp=2, fsdp=2),
        Layout(fsdp=2, ep=2),
        Layout(dp=2, fsdp=2, ep=2),  # each copy has all experts, which are one rank's alone: reduced over the copies
        Layout(tp=2, sp=2, fsdp=2, ep=2),
        Layout(tp=2, sp=2, dp=2, fsdp=2, ep=4),
        Layout(tp=2, sp=2, dp=2, fsdp=2, ep=2, etp=2),
    ],
    ids=str,
)
def test_a_rank_of_two_sends_half_of_every_message(layout: Layout) -> None:
    """All groups are of two ranks but ep = 4's, so that of PyTorch's messages (test_layouts.py) a rank sends half, or
    three quarters; of an all-reduce, which is both a reduce-scatter and an all-gather, as much as it is large."""
    model = load("D=64 L=4 h=8 h_kv=4 F=96 V=256 E=8 k=2")
    recipe = Recipe(layout, tokens=32 * layout.sp)
    pieces = Pipeline(model, recipe).pieces
    machine = Machine.of(replace(card(), link=1))
    sent = StepTimer(model, recipe, machine).step(memory(model, recipe)).sent
    message = {kind: total.bytes for kind, total in collectives(pieces, recipe).items()}
    share = {"all_reduce": 1.0, "all_to_all": (layout.ep - 1) / layout.ep}
    assert sent == {kind: size * share.get(kind, 0.5) for kind, size in message.items()}


def test_tokens_go_to_a_node_once_where_ranks_relay() -> None:
    """Two nodes of two ranks, and two choices of any rank alike: three in four tokens go to the other node, and to
    4 · (1 − (3/4)²) of the four ranks, every second of which is not the one that passes them on."""
    group = Group(4, 2)
    two_nodes, one_node = relayed_all_to_all(group, 8.0, 2), relayed_all_to_all(Group(4, 4), 8.0, 2)
    assert two_nodes.across == 8.0 * 0.75 and two_nodes.sent == 8.0 * 0.75 + 8.0 * 4 * (1 - 0.75**2) / 2
    assert one_node.across == 0 and one_node.sent == 8.0 * 4 * (1 - 0.75**2) * 3 / 4
    floor = Floor(Machine.of(replace(card(), link=10, node=2, link_between=1)))
    assert floor.transfer(two_nodes) == two_nodes.across and floor.transfer(one_node) == one_node.sent / 10


def test_experts_get_tokens_as_they_are_and_narrow_them() -> None:
    """Of each of four layers, forward and backward: every token to one of two ranks, half of them to the other one.
    What comes to an expert is narrowed as what comes to a feed-forward, not what comes to a router of two outputs."""
    model = load("D=64 L=4 h=8 h_kv=4 F=96 V=250 E=2 k=1")
    recipe = Recipe(Layout(fsdp=2, ep=2), 3, tokens=32)
    for products in ("bf16", "fp8"):
        machine = Machine.of(replace(card(), link=1), products=products)
        sent = StepTimer(model, recipe, machine).step(memory(model, recipe)).sent
        assert sent["all_to_all"] == 4 * 2 * (2 + 2) * ROWS * 64 // 2
    recipe, seconds = Recipe(micro_batch=3, tokens=32), list[float]()
    for case in (load(DECODER), model):
        for quantise_s in (0.0, 1.0):
            machine = Machine.of(replace(card(bandwidth=1, quantise=quantise_s), link=1), products="fp8")
            seconds.append(StepTimer(case, recipe, machine).step(memory(case, recipe)).spent["products"])
    assert seconds[3] - seconds[2] == seconds[1] - seconds[0] > 0


@pytest.mark.parametrize(("recompute", "times"), [("none", 4), ("blocks", 2 * 4)])
def test_norms_over_the_heads_of_all_ranks_gather_them(recompute: str, times: int) -> None:
    """Queries and keys of four layers, each by itself: in forward, and once more where a block is computed again;
    backward sums their gradients, of which each rank takes those of its heads."""
    model = load(DECODER, {"attention.qk_norm": "width"})
    recipe = Recipe(Layout(tp=2), 3, tokens=32, recompute=recompute)
    sent = collectives(Pipeline(model, recipe).pieces, recipe)
    assert sent["all_gather"] == (2 * times, times * ROWS * (64 + 32) * 2)
    assert sent["reduce_scatter"] == (2 * 4, 4 * ROWS * (64 + 32) * 2)


@pytest.mark.parametrize(
    ("changes", "training", "saved"),
    [
        ({}, 3 * (PRODUCTS + DENSE), 9 * WIDE // 2 + CORES + 4 * INNER),
        ({"recompute": "core"}, 3 * PRODUCTS + 4 * DENSE, 9 * WIDE // 2 + CORES + 4 * INNER),
        ({"recompute": "core", "keep_scores": True}, 3 * PRODUCTS + 4 * DENSE, 9 * WIDE // 2 + CORES + 4 * INNER),
        ({"recompute": "blocks"}, 4 * (PRODUCTS + DENSE) - 2 * ROWS * HEAD, WIDE + WIDE // 2),
    ],
)
def test_a_step_in_letters_has_the_same_numbers(changes: dict[str, Any], training: int, saved: int) -> None:
    """FLOPs, elements that are kept and AdamW's state; of adapters theirs."""
    recipe = Recipe(**{"micro_batch": 3, "tokens": 32, **changes})
    for tuning, learnt in (({}, WEIGHTS), ({"lora.rank": 4}, ADAPTERS)):
        model = load(DECODER, tuning)
        ledger = model.ledger(3, 32, keep_scores=recipe.keep_scores)
        values = {key: rule(ledger) for key, rule in in_letters(recipe, ledger, RankTree(model.root), int).items()}
        assert values["optimizer"] == 8 * learnt
        if not tuning:
            assert (values["training"], values["saved"]) == (training, saved)


# The memory of a rank.


def test_ranks_of_stages_hold_their_micro_batches() -> None:
    """1F1B on two stages: two on the first, one on the second, of two layers each; what is in flight beside one."""
    recipe = Recipe(Layout(tp=2, pp=2, fsdp=2), 3, 4, 32)
    model = load(DECODER)
    for number_ in range(8):
        row = rank_of(model, recipe, number_)
        stage, column = divmod(number_, 4)
        assert (row.rank, row.count, row.stage, row.column, row.in_flight) == (
            number_,
            1,
            stage,
            column % 2,
            (2 - stage,),
        )
        if row.bytes["saved"]:
            assert row.bytes["in_flight"] == (1 - stage) * row.bytes["saved"]
    for number_ in (-1, 8):
        with pytest.raises(InputError, match="a rank from 0 to 7"):
            rank_of(model, recipe, number_)
    assert sum(row.count for row in memory(model, recipe).ranks) == 8


@pytest.mark.parametrize(("tp", "count"), [(1, 0), (2, 1)])
def test_what_ranks_send_of_a_matrix_that_tp_splits_is_said_not_to_be_counted(tp: int, count: int) -> None:
    recipe = Recipe(tokens=8, optimizer="muon", layout=Layout(tp=tp))
    assert sum("is not counted" in note for note in memory(load(DECODER), recipe).notes) == count


def test_no_products_take_no_time() -> None:
    assert ProductTime.of([]) == (0, 0, 0) and ProductTime.of([ProductTime(1, 2, 3)] * 2) == (2, 4, 6)


FOUR_LAYERS = "D=64 L=4 h=8 F=96 V=250"

APART = load(FOUR_LAYERS, {"attention.d_v": 4})

ALIKE = APART.set({"shared_layers": True})

CARD = hardware.load("h100-sxm")


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"keep_scores": True}, {"recompute": "core"}, {"recompute": "core", "keep_scores": True},
        {"layout": Layout(tp=2, sp=2)}, {"layout": Layout(cp=2)}, {"framework": "nanotron", "recompute": "blocks"},
    ],
    ids=str,
)  # fmt: skip
def test_layers_that_share_weights_are_trained_as_others(changes: dict[str, Any]) -> None:
    results = []
    for model in (APART, ALIKE):
        timer = StepTimer(model, Recipe(**{"tokens": 32, **changes}), Machine.of(CARD))
        (piece,) = timer.pipeline.of_stage(0)
        work = timer.work(piece, timer.kernels)
        passes = [(time.forward, time.recomputed) for time in work.causes.values()]
        results.append((passes, saved_activations(piece, timer.recipe, 64)))
    assert results[0] == results[1]


def test_stages_are_cut_by_the_elements_of_their_matrices() -> None:
    """nanotron's. All experts count, though a token meets one, and layers that share weights each: of 16 experts three
    layers of 312,320 elements are past half of four and a head of 128,000."""
    layout = Recipe(Layout(pp=2), tokens=32, accumulation=4, framework="nanotron")
    assert 3 * 312_320 > (4 * 312_320 + 128_000) / 2 > 2 * 312_320
    assert Pipeline(load("D=64 L=4 h=8 F=96 V=2000 E=16 k=1"), layout).sizes == [3, 1]
    assert Pipeline(APART, layout).sizes == Pipeline(ALIKE, layout).sizes == [3, 1]
    assert Pipeline(APART, replace(layout, layout=Layout())).sizes == [4]


def test_gradients_are_of_what_learns() -> None:
    """Of adapters' matrices, of each layer, whose rows two ranks share."""
    model, recipe = load(FOUR_LAYERS, {"lora.rank": 4}), Recipe(Layout(fsdp=2), tokens=32, frozen="bf16")
    adapters = [weight for entry in model.ledger() if entry.kind == "adapters" for weight in entry.leaf.weights()]
    sent = collectives(Pipeline(model, recipe).of_stage(0), recipe)["reduce_scatter"]
    assert sent == (4, 4 * sum(weight.size for weight in adapters) * 4)


def test_tied_tables_are_summed_by_the_first_stage_and_the_last() -> None:
    model = load(FOUR_LAYERS + " tied")
    timer = StepTimer(model, Recipe(Layout(pp=3), tokens=32, accumulation=4, framework="megatron"), Machine.of(CARD))
    stages = [timer.pipeline.of_stage(stage) for stage in range(3)]
    sums = [timer.sent(pieces, StageWeights.of(timer.pipeline, pieces)).get("all_reduce", 0) for pieces in stages]
    assert sums == [250 * 64 * 4 + 6 * 64 * 4, 0, 250 * 64 * 4 + 6 * 64 * 4]
