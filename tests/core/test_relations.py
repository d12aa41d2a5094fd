"""Relations that hold for every mechanism, format or convention of a kind, and at the very ends of ranges."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from tiny import TINY

from txcalc import hardware, load
from txcalc.errors import Fault, InputError
from txcalc.ledger import walk
from txcalc.model import MAX_TOKENS
from txcalc.parts.cores import AttentionCore, SoftmaxCore
from txcalc.parts.feedforward import Experts
from txcalc.parts.mechanisms import ATTENTIONS, MIXERS
from txcalc.parts.mixers.compressed import CompressedCore, Entries
from txcalc.parts.mixers.forgetting import ForgettingCore
from txcalc.parts.options import REQUIRED
from txcalc.parts.part import MatMul, Workload
from txcalc.parts.place import mechanism
from txcalc.parts.sharding import Ways
from txcalc.parts.spans import Causal, CentredWindow, SquareWindows
from txcalc.parts.work import on_batch
from txcalc.planning.activations import korthikanti
from txcalc.planning.conventions import CONVENTIONS
from txcalc.planning.crossover import steps_to_zero
from txcalc.planning.fitting import CardSet, FormatFits, checked_context
from txcalc.planning.formats import modules
from txcalc.planning.formats.mixtures import WHEN
from txcalc.planning.formats.modules import Modules
from txcalc.planning.formats.names import covering, stored_narrow, weights_of
from txcalc.planning.formats.quantised import READERS, configured, native
from txcalc.planning.formats.weights import EXPERTS, FORMATS, LAYERS, Format
from txcalc.planning.generation import FLOPS, generations
from txcalc.planning.gradients import core_result, saved_by_core
from txcalc.planning.layout import ORDER, SERVING_ORDER, Group, Layout, filled, parse_layout
from txcalc.planning.matching import matched
from txcalc.planning.parallelism import Sharding
from txcalc.planning.scaling import ScalingQuestion
from txcalc.planning.serving.demand import Demand, Steady
from txcalc.planning.serving.deployment import (
    MOST_GPUS,
    MOST_SEQUENCES,
    Gpu,
    LayoutCapacity,
    Planner,
    check,
    notes_of_layout,
)
from txcalc.planning.serving.engine import EngineConfig, Reserve, engine, parse_reserve, reserve_of
from txcalc.planning.serving.engine_memory import PCIE, EngineMemory, visible
from txcalc.planning.serving.engine_profiles import data, profile, unsupported
from txcalc.planning.serving.layout_time import LayoutTime
from txcalc.planning.serving.offload import HostMemory, Offload
from txcalc.planning.serving.points import Request, Slo, request
from txcalc.planning.serving.rank_time import RankTime
from txcalc.planning.serving.simulation import Server, simulate
from txcalc.planning.serving.sizing import rentable
from txcalc.planning.serving.speed import check_budget, sizes, within
from txcalc.planning.serving.steady_state import open_
from txcalc.planning.serving.traffic import Arrival, Lengths, Requests, arrivals, lengths
from txcalc.planning.shapes import DecoderShape, DesignBudget, DesignFamily, Likeness, designs
from txcalc.planning.training.activations import kept
from txcalc.planning.training.collectives import collectives, local_kv_elements
from txcalc.planning.training.frameworks import FRAMEWORKS
from txcalc.planning.training.machine import Machine, ring
from txcalc.planning.training.memory import memory
from txcalc.planning.training.parts import rules_of
from txcalc.planning.training.recipe import LONGEST, MOST, Recipe
from txcalc.planning.training.run import Terms, tokens_of
from txcalc.planning.training.stages import Pipeline
from txcalc.planning.training.states import State
from txcalc.planning.training.step import StepTimer
from txcalc.sources import build
from txcalc.sources.spec import MAX_LAYERS
from txcalc.units import parse_bytes

GROUPED = [
    name
    for name in ("attention", "draft_attention", "shared", *ATTENTIONS, *MIXERS)
    if {"n_heads", "n_kv_heads"} <= {*mechanism(name).table()}
]


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize(("heads", "groups", "fits"), [(8, 2, True), (8, 8, True), (8, 3, False), (8, 16, False)])
def test_key_value_heads_divide_query_heads(name: str, heads: int, groups: int, fits: bool) -> None:
    keys = mechanism(name).table()
    usual = {key: field.default for key, field in keys.items() if field.default is not REQUIRED}
    own: dict[str, Any] = {"d_ff": 8} if name == "shared" else {"bias": []}
    table = usual | own | {"n_heads": heads, "n_kv_heads": groups, "d_head": 8}
    wished = [each.key for each in mechanism(name).of(table).conflicts()]
    assert ("n_kv_heads" not in wished) == fits


@pytest.mark.parametrize("stages", [2, 3])
def test_no_more_stages_than_layers(stages: int) -> None:
    for layers in (stages - 1, stages):
        faults = Sharding(load(f"D=64 L={layers} h=2 F=96 V=50")).faults(Layout(pp=stages))
        assert bool(faults) == (layers < stages)


def test_memory_that_is_just_enough_suffices() -> None:
    for free, ram, limit in ((0, 0, "cache"), (5, 0, "cache"), (0, None, "cache"), (5, -1, "RAM"), (-1, -1, "cache")):
        fullest: Any = SimpleNamespace(free=free, limit="cache")
        choice = LayoutCapacity(Layout(), fullest, 1, ram)
        assert (choice.fits, choice.limit) == (free >= 0 and (ram is None or ram >= 0), limit)


@pytest.mark.parametrize("lacking", [-1, 0, 1])
def test_what_an_accelerator_has_left(lacking: int) -> None:
    """Of a hundred bytes less what an engine, weights, caches and activations take; what is lacking first is named."""
    for held in ([1], []):
        rank: Any = SimpleNamespace(rest={"a": 3, "b": 4}, held=held, pages_bytes=lambda context: context // 10)
        gpu = Gpu(rank, 100, 10, 40 - lacking, 20, {"prefill": 5, "decode": 23})
        assert (gpu.rest, gpu.peak, gpu.free, gpu.pool) == (7, 23, lacking, 20 + lacking)
        assert gpu.cache_tokens(70) == (20 + lacking) * 10 and gpu.cache_tokens(9) is None
        full = gpu._replace(weights=86 + lacking)
        assert full.pool == -26 - lacking and full.cache_tokens(70) == 0
        for weights, limit in ((83 - 23, "cache" if held else "activations"), (61, "activations"), (83, "activations")):
            assert gpu._replace(weights=weights).limit == limit
        assert gpu._replace(weights=84).limit == "weights"


@pytest.mark.parametrize("copies", [1, 2])
def test_the_largest_batch_within_limits(copies: int) -> None:
    """Of each copy, one by one: up to what fits, and at most 65,536; none without limits, or where one is too many."""
    timer: Any = SimpleNamespace(
        pace=lambda layout: SimpleNamespace(caching=True),
        steady=lambda layout, n: Steady(float(n), 1.0, 1.0, 1.0, 0.5, 1.0),
    )
    for most in (0, 1, 2, 7, 20, 200_000):
        choice = LayoutCapacity(Layout(dp=copies), None, most * copies)  # type: ignore[arg-type]
        for limit in (0.5, 1, 2, 5.5, 11, 14, 39, 40, 41, 1e9):
            inside = [n for n in range(1, min(most, 2**16) + 1) if n * copies <= limit][-1:]
            assert within(timer, choice, Slo(ttft=limit)) == sum(inside)
        assert within(timer, choice, Slo()) == 0
        assert sizes(most * copies, copies, 5) == [
            n * copies for n in sorted({2**i for i in range(17) if 2**i <= most} | {min(most, 2**16), 5}) if n
        ]


@pytest.mark.parametrize("name", sorted(CONVENTIONS))
def test_without_a_vocabulary_there_are_no_logits(name: str) -> None:
    model = load("D=64 L=2 h=2 F=256")
    try:
        found = CONVENTIONS[name](model, model.ledger(2, 8), "dense", 1)
    except InputError:
        return
    assert all(each.theirs == 0 for each in found.terms if each.name in ("logits", "embeddings"))


def test_korthikanti_s_terms_are_all_that_the_layers_keep() -> None:
    model = load("D=64 L=3 h=2 F=256 V=50 plain ln bias")
    ledger = model.ledger(2, 8, keep_scores=True)
    assert korthikanti(model, ledger).ours == 2 * sum(e.saved for e in ledger if e.steps[0].name == "layers")
    for change in ({"attention.d_v": 16}, {"attention.d_head": 16, "attention.d_v": 32}):
        other = model.set(change)
        with pytest.raises(InputError, match="as wide as the model"):
            korthikanti(other, other.ledger(2, 8, keep_scores=True))


@pytest.mark.parametrize("value", ["x", None, 0, -1, 2.5, True, [], {}])
@pytest.mark.parametrize("method", sorted(READERS))
def test_no_value_of_a_quantisation_is_a_traceback(method: str, value: Any) -> None:
    """Each key of numbers, at a value that it may not have: read or refused."""
    model = load("D=256 L=1 h=4 F=256 V=50")
    for key in ("bits", "w_bit", "group_size", "q_group_size", "weight_block_size", "modules_to_not_convert"):
        try:
            configured(model, {"quant_method": method, key: value})
        except InputError:
            continue


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-12b", "deepseek-v3", "jamba-v0.1"])
def test_a_shared_prefix_is_held_once(name: str) -> None:
    """The first sequence holds all its pages, and every further one all but those of the prefix."""
    model, card = load(name), hardware.load("h200")
    for rank in Planner(model, card, engine(model, prefix=1000)).ranks(Layout()):
        held = [rank.cache_bytes(4096, n) for n in range(4)]
        own = rank.pages_bytes(4096) - rank.shared_bytes(4096)
        assert held == [0, *(rank.pages_bytes(4096) + n * own for n in range(3))]
        assert 0 < own < rank.pages_bytes(4096)


def test_of_a_prefix_as_long_as_the_context_all_but_a_token_is_shared() -> None:
    model = load("llama-3.1-8b")
    (rank,) = Planner(model, hardware.load("h200"), engine(model, prefix=64, block=1)).ranks(Layout())
    assert rank.shared_bytes(64) == 63 * rank.pages_bytes(1)


def test_what_a_core_keeps_that_is_computed_again() -> None:
    """What it reads, without what it gives: DeepSeek's queries and keys are 192 wide and its values 128, of 128
    heads."""
    for keep in (True, False):
        ledger = load("deepseek-v3").ledger(2, 8, keep_scores=keep)
        core = next(entry for entry in ledger if entry.kind == "attention_core")
        assert core_result(core) == 2 * 8 * 128 * 128
        read = 2 * 8 * 128 * (192 + 192 + 128)
        fused = core.leaf.saved(core.work._replace(keep_scores=False))  # type: ignore[union-attr]
        assert read <= fused - core_result(core) <= read + 2 * 8 * 128
        assert saved_by_core(core) == fused - keep * core_result(core)
        assert core_result(next(entry for entry in ledger if entry.kind == "norm")) == 0


@pytest.mark.parametrize(
    ("learns", "passes"), [(["all"], 2), ([], 3)]
)  # of frozen weights backward multiplies for the input alone
def test_a_count_beside_frozen_weights(learns: list[str], passes: int) -> None:
    model = load("D=64 L=2 h=4 F=96 V=50 untied", {"lora.rank": 4, "lora.modules": learns} if learns else {})
    found = CONVENTIONS["6n"](model, model.ledger(2, 8), "dense", 1)
    ours = {each.name: each.ours for each in found.terms}
    assert ours["feed-forward"] == passes * 2 * 3 * 64 * 96 * 2 * 2 * 8


@pytest.mark.slow
def test_a_size_that_meets_a_budget_is_the_one_above() -> None:
    """Of sizes tried one by one: the largest below, the smallest that is not, and of two as near the smaller."""
    model = load("D=64 L=9 h=4 F=96 V=50 untied")
    for budget in (0, 7, 8, 9, 10, 63, 64, 65, 6400):
        found = matched(model, "L", 3 * budget + 1, lambda one: 3 * one.spec["stacks"][""]["n_layers"])
        exact = [(n, 3 * n - 3 * budget - 1) for n in range(1, MAX_LAYERS + 1)]
        below = max((one for one in exact if one[1] < 0), default=None)
        above = min((one for one in exact if one[1] >= 0), default=None)
        assert (found.below, found.above) == (below, above), budget
        met = matched(model, "L", 3 * budget + 3, lambda one: 3 * one.spec["stacks"][""]["n_layers"])
        assert (met.best, met.above) == ((budget + 1, 0),) * 2 and met.model.spec["stacks"][""][
            "n_layers"
        ] == budget + 1
        assert met.below == ((budget, -3) if budget and budget + 1 != 9 else None)


SMALL = load("D=256 L=1 h=4 F=256 V=50")


def packed(strategy: str, group: int | None) -> Any:
    """A quantiser's config with groups of so many."""
    weights = {"num_bits": 4, "type": "int", "strategy": strategy, "group_size": group}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return configured(SMALL, {"quant_method": "compressed-tensors", "config_groups": groups})


def came(number: int) -> list[float]:
    """So many requests, of a file, half a second apart."""
    with NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(str(i / 2) for i in range(number)))
        file.flush()
        return arrivals(file.name)


def served(**asked: Any) -> Any:
    return request(1000, 100, answer=10, **asked)


# Of each number that is asked for: what takes it, the last ones that may be, and those next to them that may not.
ENDS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "pue": (lambda n: Terms(1, pue=n).checked(), (1, 1.01, 9.9, 10), (0.99, 10.1)),
    "grid": (lambda n: Terms(1, grid=n).checked(), (0, 0.5, 10_000), (-0.5, 10_000.5)),
    "run's price": (lambda n: Terms(n).checked(), (0.5, 1e15 - 1), (0, -1, 1e15)),
    "deadline": (lambda n: Terms(1, deadline=n).checked(), (0.5, 1e15 - 1), (0, 1e15)),
    "budget": (lambda n: Terms(1, budget=n).checked(), (0.5, 1e15 - 1), (0, 1e15)),
    "price": (lambda n: check_budget(price=n), (0.5, 1e9 - 0.5), (0, 1e9)),
    "ttft": (lambda n: check_budget(ttft=n), (0.5, 1e9 - 0.5), (0, 1e9)),
    "tpot": (lambda n: check_budget(tpot=n), (0.5, 1e9 - 0.5), (0, 1e9)),
    "vocab": (lambda n: DesignFamily(vocab=n).checked(), (1, 10**9), (0, 10**9 + 1)),
    "gqa": (lambda n: DesignFamily(gqa=n, d_head=8).checked(), (1, 1024), (0, 1025)),
    "d_head": (lambda n: DesignFamily(d_head=n).checked(), (1, 4096), (0, 4097)),
    "ratio": (lambda n: DesignFamily(ratio=n).checked(), (Fraction(1, 2), 64), (0, Fraction(129, 2))),
    "rate": (lambda n: served(rate=n), (0.5, 1e9 - 0.5), (0, 1e9)),
    "burstiness": (lambda n: served(burstiness=n), (0.01, 1000), (0.009, 1000.5)),
    "hits": (lambda n: served(hits=n), (0, 0.5, 1), (-0.1, 1.1)),
    "acceptance": (lambda n: served(acceptance=n, draft_tokens=1), (0, 0.5, 1), (-0.1, 1.1)),
    "draft tokens": (lambda n: served(acceptance=1, draft_tokens=n), (1, 64), (0, 65, True)),
    "prompt": (lambda n: request(1000, n), (1, 1000), (0, 1001)),
    "answer": (lambda n: request(1000, answer=n), (1, 1000), (0, 1001)),
    "context": (lambda n: check(n, 1, None, {}), (1, MAX_TOKENS), (0, MAX_TOKENS + 1, 1.5)),
    "concurrency": (lambda n: check(1, n, None, {}), (1, MOST_SEQUENCES), (0, MOST_SEQUENCES + 1)),
    "gpus": (lambda n: check(1, 1, n, {}), (None, 1, MOST_GPUS), (0, MOST_GPUS + 1)),
    "compute": (lambda n: ScalingQuestion(compute=n).checked(), (6000, 1e30), (5999, 0)),
    "compute of a size": (lambda n: ScalingQuestion(params=2000, compute=n).checked(), (12_000,), (11_999,)),
    "length of a prompt": (lambda n: lengths(f"{n}..5", "--prompt"), (1, 5), (0, 6)),
    "held": (lambda n: check(1, 1, None, {"tp": n}), (1, MOST_GPUS), (0, MOST_GPUS + 1)),
    "block": (lambda n: engine(SMALL, block=n), (1, 1 << 16), (0, (1 << 16) + 1)),
    "chunk": (lambda n: engine(SMALL, chunk=n), (1, MAX_TOKENS), (0, MAX_TOKENS + 1)),
    "poll": (lambda n: engine(SMALL, interval=n), (1, 1000), (0, 1001)),
    "gather": (lambda n: engine(SMALL, interval=n, gathers=True), (1, 1000), (0, 1001)),
    "prefix": (lambda n: engine(SMALL, prefix=n), (0, 1, MAX_TOKENS), (-1, MAX_TOKENS + 1)),
    "adapters": (lambda n: engine(SMALL, adapters=(n, 8)), (1, 100), (-1,)),
    "group of compressed-tensors": (lambda n: packed("group", n), (1, 32), (0, -1)),
    "no group of compressed-tensors": (lambda n: packed("channel", n), (None, 0, -1), (1,)),
    "times": (lambda n: came(n), (2, 3), (0, 1)),
    "context that fits": (checked_context, (1, MAX_TOKENS), (0, MAX_TOKENS + 1)),
    "micro-batch": (lambda n: Recipe(micro_batch=n).check(), (1, MOST), (0, MOST + 1, True)),
    "accumulation": (lambda n: Recipe(accumulation=n).check(), (1, MOST), (0, MOST + 1)),
    "length": (lambda n: Recipe(tokens=n).check(), (1, LONGEST), (0, LONGEST + 1)),
    "every": (lambda n: Recipe(recompute=f"every:{n}").check(), (1, MOST), (0, MOST + 1)),
    "tile": (
        lambda n: configured(load("D=256 L=1 h=4 F=256 V=50"), {"quant_method": "fp8", "weight_block_size": [n, 128]}),
        (1, 128),
        (0, -1),
    ),
    "bits of MLX": (
        lambda n: configured(load("D=256 L=1 h=4 F=256 V=50"), {"bits": n, "group_size": 64}),
        (2, 3, 4, 5, 6, 8),
        (1, 7),
    ),
    "group of Quark's": (
        lambda n: configured(
            load("D=256 L=1 h=4 F=256 V=50"),
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int4", "group_size": n}}},
        ),
        (1, 32),
        (0, -1),
    ),
    "rows of distances": (
        lambda n: load(TINY["deberta"]).set({"positions.rows": n, "positions.clipped": False}), (2, 12), (0, 13, 14)
    ),
    "rows of clipped distances": (lambda n: load(TINY["deberta"]).set({"positions.rows": n}), (12,), (10, 14)),
    "rows, a distance of one": (
        lambda n: load(TINY["deberta"]).set({"positions.rows": n, "positions.distance": n // 2}), (2, 4, 40), (3, 5)
    ),
}  # fmt: skip


@pytest.mark.drawn(quick=1000)
@pytest.mark.parametrize("name", ENDS)
def test_the_last_numbers_that_may_be(name: str) -> None:
    taken, last, beyond = ENDS[name]
    for value in last:
        taken(value)
    for value in beyond:
        with pytest.raises(InputError):
            taken(value)


# Layers that share their weights (ALBERT's) work as layers of their own do: only the weights are held once.

DENSE = "D=64 L=4 h=8 F=96 V=250"
APART = load(DENSE, {"attention.d_v": 4})
ALIKE = APART.set({"shared_layers": True})
CARD = hardware.load("h100-sxm")


@pytest.mark.parametrize("layout", [Layout(), Layout(tp=2), Layout(pp=2)], ids=str)
@pytest.mark.parametrize("weights", ["bf16", "fp8"])
def test_layers_that_share_weights_are_served_as_others(layout: Layout, weights: str) -> None:
    times, held = [], []
    for model in (APART, ALIKE):
        one = Planner(model, CARD, engine(model, weights))
        pace = LayoutTime(model, one.sharding, layout, CARD, one.engine)
        times.append((pace.step(3, 100).achievable, pace.prefill(50).achievable))
        held.append([rank.pages_bytes(100) for rank in one.ranks(layout)])
    assert times[0] == pytest.approx(times[1], rel=1e-12) and held[0] == held[1]


def test_an_adapter_of_layers_that_share_weights_is_one() -> None:
    """Its kernels start in every layer."""
    found = []
    for model in (APART, ALIKE):
        how = engine(model, adapters=(3, 8))
        cost = LayoutTime(model, Sharding(model, serving=True), Layout(), CARD, how).decode_parts(1, 9)["adapters"]
        (rank,) = Planner(model, CARD, how).ranks(Layout())
        found.append((cost.launch, rank.adapters_bytes))
    assert found[0] == (found[1][0], 4 * found[1][1]) and found[1][0] > 0


def test_cuda_graphs_hold_layers_that_share_weights_each() -> None:
    found = profile("vllm")
    assert found
    memory = EngineMemory(found, CARD, 8192)
    sizes = {memory.graphs(model, model.ledger(), model.root) for model in (APART, ALIKE)}  # type: ignore[arg-type]
    assert len(sizes) == 1 and sizes != {0}


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"keep_scores": True}, {"recompute": "core"}, {"recompute": "core", "keep_scores": True},
        {"layout": Layout(tp=2, sp=2)}, {"layout": Layout(cp=2)}, {"framework": "nanotron", "recompute": "blocks"},
    ],
    ids=str,
)  # fmt: skip
def test_layers_that_share_weights_are_trained_as_others(changes: dict[str, Any]) -> None:
    found = []
    for model in (APART, ALIKE):
        timer = StepTimer(model, Recipe(**{"tokens": 32, **changes}), Machine.of(CARD))
        (piece,) = timer.pipeline.of_stage(0)
        work = timer.work(piece, timer.kernels)
        found.append((work.forward, work.again, kept(piece, timer.recipe, 64)))
    assert found[0] == found[1]


def test_korthikanti_counts_layers_that_share_weights_each() -> None:
    model = load("D=64 L=3 h=2 F=256 V=50 plain ln bias")
    found = [
        korthikanti(one, one.ledger(2, 8, keep_scores=True)) for one in (model, model.set({"shared_layers": True}))
    ]
    assert [each.theirs for each in found] == [3 * 2 * 8 * (34 * 64 + 5 * 2 * 8)] * 2
    assert found[0].ours == found[1].ours


# What softmax attention multiplies, reads, keeps and caches follows from the shapes of q, k, v and y alone.


@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize(("core", "gates"), [(AttentionCore, 0), (ForgettingCore, 1)])
def test_a_core_by_the_shapes_of_its_tensors(core: type[SoftmaxCore], gates: int, past: int) -> None:
    """Widths of keys and of values differ; a forget gate is another number of every key and head."""
    h, h_kv, d_qk, d_v, batch, tokens = 6, 3, 5, 7, 2, 4
    keys, pairs = past + tokens, sum(past + i + 1 for i in range(tokens))
    q, y = batch * h * tokens * d_qk, batch * h * tokens * d_v
    k, v, c = batch * h_kv * keys * d_qk, batch * h_kv * keys * d_v, gates * batch * h * keys
    one = core(n_heads=h, n_kv_heads=h_kv, d_qk=d_qk, d_v=d_v, span=Causal())
    work = Workload(batch, tokens, past, tokens)
    products = [op for op in one.operations(work) if isinstance(op, MatMul)]
    assert [op.flops for op in products] == [2 * batch * h * tokens * keys * width for width in (d_qk, d_v)]
    assert [op.flops_masked for op in products] == [2 * batch * h * pairs * width for width in (d_qk, d_v)]
    assert [(op.traffic.activations, op.traffic.cache) for op in products] == [(q, k + c), (y, v)]
    token = h_kv * (d_qk + d_v) + gates * h
    assert one.token == token and one.cache(work).held == token * keys
    assert one.describe_cache().startswith("K") and f"{h_kv:,} · ({d_qk} + {d_v})" in one.describe_cache()
    assert one.saved(work) == q + k + v + y + c
    assert one.saved(work._replace(keep_scores=True)) == q + k + v + batch * h * tokens * keys
    assert (one.rows_kept(work), one.rows_kept(work._replace(keep_scores=True))) == (h, 0)


# What a request leaves open, and what it cannot be.


def test_what_a_request_leaves_open() -> None:
    """Half of the context, none of it shared or cached; a rate of so many gaps in the time between the first and the
    last arrival."""
    asked = request(101)
    assert asked.traffic is not None
    assert (asked.prompt, asked.answer, asked.traffic.prefix, asked.cached(16)) == (51, 50, 0, 0)
    assert request(101, times=(0.0, 1.0, 4.0)).rate == 2 / 4
    assert request(101, times=(0.0, 1.0, 4.0), rate=3.0).rate == 3.0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"prompt": Lengths(0, 5)}, "prompt is 0, expected a whole number from 1 to the context of 100"),
        ({"prompt": Lengths(1, 500)}, "prompt is 500, expected a whole number from 1 to the context of 100"),
        ({"answer": 2.5}, "answer is 2.5, expected a whole number from 1"),
        ({"prompt": 90, "answer": 20}, "answer is 20, expected at most 10, what a prompt of 90 leaves"),
        ({"prompt": 90, "answer": 20}, "(--context 110)"),
        ({"draft_tokens": 2}, "--acceptance 70%"),
        ({"acceptance": 0.5}, "none are proposed"),
        ({"prompt": 5, "prefix": 6}, "shared prefix is 6, expected at most the 5 tokens"),
    ],
)
def test_a_request_that_cannot_be(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        request(100, **asked)
    assert said in str(error.value)


def test_where_nothing_is_left_no_number_of_cards_suffices() -> None:
    for left in (0, 1):
        reserve = Reserve(Fraction(0), CARD.memory - left)
        assert Planner(SMALL, CARD, engine(SMALL, reserve=reserve)).min_gpus(16, 1) is None


def test_ram_that_is_just_enough_suffices() -> None:
    """Of weights in RAM to the last byte, with one sequence's cache."""
    model, card = load("llama-3.1-8b"), hardware.load("rtx-4090")
    how = replace(engine(model, "Q4_K_M"), offload=Offload(HostMemory(10**12, 10**11), 5))
    free = Planner(model, card, how).ram_free(Layout(), 4096, 1)
    assert free is not None and 0 < free < 10**12
    found = FormatFits(model, how, 4096).on(CardSet("", card.memory, accelerator=card))
    assert found.ram_free_bytes == free
    for lacking in (0, 1):
        host = HostMemory(10**12 - free - lacking, 10**11)
        short = Planner(model, card, replace(how, offload=Offload(host, 5)))
        assert short.fits(Layout(), 4096, 1) == (not lacking)


@pytest.mark.parametrize(
    ("name", "tp", "where"),
    [
        ("vllm", 2, "split over tp"),
        ("vllm", 1, "whole on every GPU"),
        ("trtllm", 2, "whole on every GPU"),
        ("llama.cpp", 2, "on the first GPU"),
    ],
)
def test_where_an_engine_holds_towers_is_said(name: str, tp: int, where: str) -> None:
    model, kept = load("qwen3.5-27b"), profile(name)
    assert kept
    planner = Planner(model, CARD, engine(model, memory=EngineMemory(kept, CARD, 4096)))
    assert f"held {where}, " in " ".join(notes_of_layout(planner, Layout(tp=tp), 512, 512))


def test_a_context_that_a_model_was_trained_for_is_none_of_memory_s() -> None:
    model = load("gpt2")
    planner = Planner(model, CARD, engine(model))
    for longest, said in ((1023, False), (1024, False), (1025, True), (None, True)):
        notes = " ".join(notes_of_layout(planner, Layout(), 512, longest))
        assert ("limited by memory alone" in notes) == said and "beyond" not in notes
    assert "a context of 1,025 is beyond" in " ".join(notes_of_layout(planner, Layout(), 1025, 1025))
    assert "beyond" not in " ".join(notes_of_layout(planner, Layout(), 1024, 1025))


def test_what_an_engine_reserves_is_said() -> None:
    """vLLM's share of the memory; others reserve none, and say so."""
    for name in ("vllm", "llama.cpp", "sglang", "trtllm"):
        found = profile(name)
        assert found
        reserve = reserve_of(EngineMemory(found, CARD, 8192))
        ends = "'s gpu_memory_utilization" if reserve.of(10**9) else " reserves none"
        assert (reserve.source == f"{found}{ends}") and bool(reserve.of(10**9)) == (name == "vllm")


# Numbers of an engine, a layout, a run, and files.


def test_an_engine_that_nothing_is_asked_of_is_the_default() -> None:
    """A draft's has its weights in the format asked for, and no adapters."""
    assert engine(SMALL) == EngineConfig(native(SMALL))
    assert engine(SMALL, "fp8", adapters=(3, 8)).of(SMALL) == replace(engine(SMALL, "fp8"), rank=8)
    for adapters, mend in (((0, 8), "(--adapters 16)"), ((8, 0), "(--adapter-rank 16)"), ((-1, 8), "65,536")):
        with pytest.raises(InputError) as error:
            engine(SMALL, adapters=adapters)
        assert mend in str(error.value) and ("--adapter" in str(error.value)) == (0 in adapters)


@pytest.mark.parametrize(("ranks", "local", "gathered"), [(2, 2, True), (8, 8, True), (9, 9, False), (8, 4, False)])
def test_tokens_of_experts_are_gathered_among_few_ranks_of_a_node(ranks: int, local: int, gathered: bool) -> None:
    """vLLM's allgather_reducescatter and SGLang's none, up to eight ranks: every rank gets the messages of all others;
    else it gets what is sent to it."""
    (stage,) = Sharding(SMALL, serving=True).stages(Layout())
    rank = RankTime(stage, Layout(), CARD, engine(SMALL))
    rank.groups = {"ep": Group(ranks, local)}
    least, cost = (rank.message_cost("all_to_all", "ep", 1e9, sent) for sent in (1e6, 2e6))
    assert (least.link == cost.link) == gathered and least.least_link < cost.least_link


def test_a_rate_of_one_card_or_the_parts_of_a_node() -> None:
    """Of a layout of four, four and eight, and whole nodes; of twelve only its multiples."""
    assert rentable(1, {"tp": 4})[:3] == [4, 8, 16] and rentable(1, {"tp": 16})[:3] == [16, 32, 48]
    assert rentable(1, {"tp": 4, "dp": 3})[:3] == [12, 24, 36] and rentable(1, {})[:4] == [1, 2, 4, 8]
    assert rentable(1, {"dp": 41})[-1] == 24 * 41 and rentable(1, {"dp": 8}) == [*range(8, 1025, 8)]


def test_a_run_may_have_a_deadline_where_it_is_known_which_run() -> None:
    dated = Terms(1, deadline=5)
    assert [tokens_of(SMALL, 7, None, dated), tokens_of(SMALL, None, None, Terms(1))] == [7, None]
    assert tokens_of(SMALL, None, 6 * SMALL.active, dated) == 1
    for tokens, compute in ((None, None), (0, None), (None, 6 * SMALL.active - 1), (1, 10**20)):
        with pytest.raises(InputError):
            tokens_of(SMALL, tokens, compute, dated)
    with pytest.raises(InputError, match="train-tokens is 0, expected a number above 0"):
        tokens_of(SMALL, 0, None)


def written(read: Callable[[str], Any], *lines: str) -> Any:
    """What is read of a file of such lines."""
    with NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines))
        file.flush()
        return read(file.name)


def test_lines_of_a_file_are_counted_from_one() -> None:
    """A length of 1 may be, none of 0; a time may be that of the line before, and none is below 0."""

    def read(path: str) -> Lengths:
        return lengths(f"@{path}", "--prompt")

    assert written(read, "1", "", "5") == Lengths(1, 5, (1, 5))
    with pytest.raises(InputError, match="above 0 in every line"):
        written(read, "0", "5")
    with pytest.raises(InputError, match="line 3"):
        written(read, "1", "", "x")
    assert written(arrivals, "1", "", "3", "3") == [0, 2, 2]
    for lines in (("1", "", "x"), ("1", "2", "1.5"), ("1", "2", "-1")):
        with pytest.raises(InputError, match="line 3"):
            written(arrivals, *lines)


def test_requests_come_when_they_came() -> None:
    jobs = Requests(Lengths(5, 5), Lengths(3, 3), times=(0.0, 1.5, 4.0)).jobs(3, 0)
    assert [job.at for job in jobs] == [0.0, 1.5, 4.0]


def test_a_shape_that_leaves_nothing_fits() -> None:
    for spare in (-1, 0, 1):
        assert DecoderShape(1, 2, 3, 4, 5, 6, 7, 8, 9, spare).fits == (spare >= 0)


def test_an_axis_that_is_misspelt() -> None:
    with pytest.raises(InputError, match="did you mean dp"):
        parse_layout("dq=2")
    with pytest.raises(InputError, match="one of tp, "):
        parse_layout("replicas=2")


@pytest.mark.parametrize("most", [None, 1, 5, 40])
def test_where_a_parabola_reaches_zero(most: int | None) -> None:
    """As every number up to 400 has it; what falls and bends down never does."""
    for start, slope, bend in product((-1, -7, -40, -90), range(-12, 31, 3), (-6, -2, -1, 0, 1, 5)):
        values = [start + i * slope + i * (i - 1) // 2 * bend for i in range(400)]
        if max(values[:4]) < 0:
            ends = values if most is None else values[: most + 1]
            expected = next((i for i, value in enumerate(ends) if value >= 0), None)
            assert steps_to_zero(values[:4], most) == expected, (start, slope, bend)


@pytest.mark.parametrize("name", ["llama4", "gemma3", "mimo-v2-flash"])
def test_generations_are_sums_of_their_passes(name: str) -> None:
    """Of every pass by itself, at every context around windows and chunks."""
    model = build(TINY[name], name)
    for attention, quantity in FLOPS.items():
        steps = [model.ledger(past=past, logits="last", mla="absorbed").total(quantity) for past in range(1, 19)]
        whole = [model.ledger(tokens=n, logits="last").total(quantity) for n in range(1, 19)]
        for found in generations(model, range(3, 19, 2), 3, attention):
            assert found.flops == whole[2] + sum(steps[2 : found.context - 1]), found
            assert found.flops_without == sum(whole[2 : found.context]), found


BARE = {
    "no attention": {"layer": {"a": {"parts": ["feed_forward"]}}, "feed_forward": {"d_ff": 96}},
    "no feed-forward": {"layer": {"a": {"parts": ["attention"]}}, "attention": {"n_heads": 4}},
    "neither head": {"layer": {"a": {"parts": ["attention", "feed_forward"]}}, "attention": {"n_heads": 4},
                     "feed_forward": {"d_ff": 96}, "vocab_size": None},
}  # fmt: skip


@pytest.mark.parametrize("bare", BARE)
@pytest.mark.parametrize("name", CONVENTIONS)
def test_a_convention_s_terms_are_all_that_a_model_has(name: str, bare: str) -> None:
    """Whatever it has not: the terms' own FLOPs are those of one forward, or three."""
    raw = {"d_model": 64, "n_layers": 2, "vocab_size": 50, **BARE[bare]}
    model = build({key: value for key, value in raw.items() if value is not None}, bare)
    ledger = model.ledger(2, 8)
    try:
        found = CONVENTIONS[name](model, ledger, "dense", 1)
    except InputError:
        return
    assert sum(each.ours for each in found.terms) in (ledger.total("flops"), 3 * ledger.total("flops"))


# Layouts: where ranks stand and what they send.


def test_where_ranks_of_experts_stand_one_by_one() -> None:
    """Every rank numbered from the axis of neighbours on: those of a stage in turn, each group of experts' ranks from
    one block of them."""
    for tp, pp, dp, ep, etp in (
        (2, 2, 2, 4, 1), (4, 2, 2, 8, 1), (2, 3, 2, 4, 1), (2, 2, 4, 8, 1), (1, 2, 6, 3, 1), (2, 1, 4, 8, 1),
        (2, 2, 6, 3, 2), (2, 3, 4, 4, 2), (4, 2, 3, 3, 4),
    ):  # fmt: skip
        layout = Layout(tp=tp, pp=pp, dp=dp, ep=ep, etp=etp)
        for node, order in product((2, 3, 4, 8), (ORDER, SERVING_ORDER)):
            degrees = [getattr(layout, axis) for axis in reversed(order)]
            stages: dict[int, list[int]] = {}
            for number, place in enumerate(product(*map(range, degrees))):
                stages.setdefault(dict(zip(reversed(order), place, strict=True))["pp"], []).append(number)
            per_node = filled(node, layout.gpus)
            groups = [
                ranks[i + beside : i + ep * etp : etp]
                for ranks in stages.values()
                for i in range(0, len(ranks), ep * etp)
                for beside in range(etp)
            ]
            fewest = min(min(Counter(rank // per_node for rank in group).values()) for group in groups)
            assert layout.group("ep", node, order) == Group(ep, fewest), (layout, node, order)


@pytest.mark.parametrize(("sp", "kind"), [(1, "all_reduce"), (2, "all_gather")])
def test_a_frozen_table_s_gradient_is_not_gathered(sp: int, kind: str) -> None:
    """Its sums go forward as before; no more than that: one collective of 32 positions' stream less where positions
    are split. Learned positions beside a table add none."""
    found, recipe = [], Recipe(Layout(tp=2, sp=sp), tokens=32, framework="megatron")
    for source, changes in (
        ("D=64 L=4 h=8 F=96 V=250 plain ln bias", {}),
        ("D=64 L=4 h=8 F=96 V=250 plain ln bias", {"positions.form": "learned", "positions.rows": 64}),
        ("D=64 L=4 h=8 F=96 V=250 plain ln bias", {"lora.rank": 4}),
    ):
        own = replace(recipe, frozen="bf16") if "lora.rank" in changes else recipe
        found.append(collectives(Pipeline(load(source, changes), own).of_stage(0), own, 64)[kind])
    plain, learned, frozen = found
    less = (sp - 1, (sp - 1) * 32 * 64 * 2)
    assert plain == learned and (plain.times - frozen.times, plain.bytes - frozen.bytes) == less


def test_one_expert_s_ranks_exchange_among_themselves() -> None:
    """With experts on every rank of two, tokens go to the other half of each expert, and to no other expert."""
    for ep, etp, names in ((1, 2, ["dispatch_gather"]), (2, 1, ["dispatch"]), (2, 2, ["dispatch", "dispatch_gather"])):
        ways = Ways(tp=8, ep=ep, etp=etp, sp=True)
        assert [name for name, _ in ways.dispatch(64, 2)] == names
        assert [name.replace("scatter", "gather") for name, _ in ways.combine(64, 2)] == [
            name.replace("dispatch", "combine") for name in reversed(names)
        ]


def test_a_vocabulary_that_is_padded_says_to_what() -> None:
    for pads, said in ((1, "a multiple of tp = 4"), (128, "a multiple of 512"), (0, "does not divide by tp = 4")):
        ways = Ways(tp=4, pads=pads)
        assert ways.rows(250) == (128 if pads > 1 else 63) and any(note.endswith(said) for note in ways.notes)
    even = Ways(tp=4)
    assert even.rows(252) == 63 and not [*even.notes]


def test_a_classifier_s_loss_is_of_one_position_of_each_picture() -> None:
    recipe = Recipe(Layout(tp=2), micro_batch=3, tokens=197)
    timer = StepTimer(load("vit-b"), recipe, Machine.of(CARD))
    (piece,) = timer.pipeline.of_stage(0)
    (message, when), *_ = timer.beside(piece)
    assert (message, when) == (ring("all_reduce", Group(2, 2), 3 * 4 * 3.0, 3), "forward")


# What a description says no to, and what its parts make of it.


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({"norm.bias": True, "norm.final_bias": True}, ["norm.bias"]),
        ({"norm.final_bias": True}, ["norm.final_bias"]),
        ({"norm.qk_bias": True, "norm.final_bias": True}, ["norm.final_bias", "norm.qk_bias"]),
    ],
)
def test_an_rms_norm_has_no_bias(changes: dict[str, Any], faults: list[str]) -> None:
    """Of biases that follow another, that one alone is named."""
    with pytest.raises(InputError) as error:
        load("D=64 L=1 h=4 F=96 V=50", changes)
    assert [
        key for key in ("norm.bias", "norm.final_bias", "norm.qk_bias") if f"{key} is" in str(error.value)
    ] == faults


def test_differential_attention_halves_heads_of_both_kinds() -> None:
    table = TINY["diffllama"]
    own = next(key for key in table if key.endswith("attention") and isinstance(table[key], dict))
    for heads, groups, faults in ((8, 4, []), (6, 3, ["n_kv_heads"]), (3, 1, ["n_heads", "n_kv_heads"])):
        sizes = {"n_heads": heads, "n_kv_heads": groups, "d_head": 4}
        try:
            build({**table, own: table[own] | sizes}, "test")
            said = ""
        except InputError as error:
            said = str(error)
        assert [name for name in sizes if f"{name} is" in said] == faults, said


@pytest.mark.parametrize(
    ("changes", "tied"),
    [
        ({}, False), ({"positions.form": "none"}, True), ({"attention.qk_norm": "head"}, True),
        ({"attention.qk_norm": "head", "attention.v_norm": True}, False),
    ],
)  # fmt: skip
def test_where_keys_and_values_are_one_tensor(changes: dict[str, Any], tied: bool) -> None:
    """Of one projection: not where K is rotated, but where a norm of K saves what V is, unless V has its own."""
    model = load("D=64 L=1 h=4 F=96 V=50", {"attention.tied_kv": True, **changes})
    (core,) = (leaf for leaf in model.root.leaves() if isinstance(leaf, AttentionCore))
    assert core.tied == tied


def test_the_buffers_of_experts_are_the_largest_s() -> None:
    """Two routed experts' results, or shared ones'."""
    for wide in (8, 400):
        model = load("D=64 L=1 h=4 F=96 V=50 E=4 k=2", {"experts.d_ff_shared": wide})
        parts: list[Any] = [model.root]
        while not isinstance(parts[0], Experts):
            parts = [*parts[1:], *(child.part for child in getattr(parts[0], "children", tuple)())]
        experts = parts[0]
        assert experts.peak_elements() == max(2 * (2 * 96 + 96), 3 * wide)


# What formats and engines say of themselves.


def test_formats_that_cover_experts_cover_all_of_a_model_without() -> None:
    experts = FORMATS["mxfp4"]
    assert covering(experts, ["experts", "head"]) == experts and covering(experts, ["head"]).covers is LAYERS
    for name, form in FORMATS.items():
        if form.covers is not EXPERTS:
            assert covering(form, ["head"]) == form, name
        assert stored_narrow(name) == (name not in ("fp32", "bf16", "fp16"))
    assert not stored_narrow("float4")


@pytest.mark.parametrize("place", ["0", "2", "3", "[02]"])
def test_an_expression_that_names_some_experts_is_refused(place: str) -> None:
    """The first, one in the middle and the last of four are asked for."""
    names = [f"re:.*experts\\.{place}\\.(gate|up|down)_proj"]
    config = {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "weights": {}}}}
    config["config_groups"]["g"]["weights"] = {"num_bits": 8, "type": "float", "strategy": "channel"}  # type: ignore[index]
    with pytest.raises(InputError, match="experts"):
        form = configured(load("D=256 L=1 h=4 F=256 V=50 E=4 k=2"), {**config, "ignore": names})
        sum(form.bytes_of(entry) for entry in load("D=256 L=1 h=4 F=256 V=50 E=4 k=2").ledger())


def test_what_is_reserved_is_a_share_or_bytes() -> None:
    assert [str(Reserve(Fraction(1, 10))), str(Reserve(Fraction(0), 4096))] == ["10 %", "4,096 bytes"]


def test_a_host_whose_arithmetic_is_not_known_is_said() -> None:
    for peak in (None, 10**12):
        said = " ".join(Offload(HostMemory(10**12, 10**11, peak), 3).notes())
        assert ("arithmetic is not counted" in said) == (peak is None) and "GB/s" in said
    assert not [*Offload(None, 3).notes()] and not [*Offload(HostMemory(10**12, 10**11)).notes()]


# Training: stages, adapters, schedules.


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
    model, recipe = load(DENSE, {"lora.rank": 4}), Recipe(Layout(fsdp=2), tokens=32, frozen="bf16")
    adapters = [weight for entry in model.ledger() if entry.kind == "adapters" for weight in entry.leaf.weights()]
    found = collectives(Pipeline(model, recipe).of_stage(0), recipe, 64)["reduce_scatter"]
    assert found == (4, 4 * sum(weight.size for weight in adapters) * 4)


def test_tied_tables_are_summed_by_the_first_stage_and_the_last() -> None:
    model = load(DENSE + " tied")
    timer = StepTimer(model, Recipe(Layout(pp=3), tokens=32, accumulation=4, framework="megatron"), Machine.of(CARD))
    sums = [timer.sent(timer.pipeline.of_stage(stage)).get("all_reduce", 0) for stage in range(3)]
    assert sums == [250 * 64 * 4 + 6 * 64 * 4, 0, 250 * 64 * 4 + 6 * 64 * 4]


def test_states_add_up() -> None:
    assert State(1, 2, 3, 4) + State(10, 20, 30, 40) == State(11, 22, 33, 44)


def test_keys_of_a_core_that_caches_nothing_are_as_wide_as_the_stream() -> None:
    core: Any = SimpleNamespace(attended=None, operations=lambda work: ())
    assert local_kv_elements(SimpleNamespace(leaf=core, work=Workload(2, 5, 0, 5)), 64) == 2 * (2 * 5) * 64  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_schedule_that_a_framework_has_not_is_another_s(name: str) -> None:
    """Of those that have pipelines: which of them have it is said, and no other."""
    if not FRAMEWORKS[name].schedules:
        return
    for schedule in {one for each in FRAMEWORKS.values() for one in each.schedules} - {*FRAMEWORKS[name].schedules}:
        having = [other for other, rules in FRAMEWORKS.items() if schedule in rules.schedules]
        with pytest.raises(InputError, match=re.escape(f"({' or '.join(having)} has it)")):
            Pipeline(SMALL, Recipe(Layout(pp=2), framework=name, schedule=schedule, accumulation=8))


# Serving: what is not decoded, what a card does not multiply, designs.


def test_an_encoder_s_prompt_is_in_no_prefix_cache() -> None:
    asked = request(512, 400, Fraction(1, 2))
    for name, cached in (("t5-small", 0), ("llama-3.2-1b", 192)):
        model = load(name)
        assert asked.on(LayoutTime(model, Sharding(model), Layout(), CARD, engine(model)), 512) == (400, cached)


def test_a_design_that_is_not_one_round_deep() -> None:
    for family, said in ((DesignFamily(vocab=1000), "not one layer"), (Likeness(load("gemma-2-9b")), "not 2 layers")):
        with pytest.raises(InputError, match=said):
            designs(DesignBudget(family, engine(SMALL), memory=10))


def test_a_head_is_quantised_where_it_is_said() -> None:
    model = load("D=256 L=1 h=4 F=256 V=256 untied")
    for config, packed in (({}, False), ({"lm_head": True}, True)):
        form = configured(model, {"quant_method": "auto-round", "bits": 4, "group_size": 128, **config})
        head = next(entry for entry in model.ledger() if entry.kind == "head" and entry.leaf.params)
        assert 8 * form.bytes_of(head) == (256 * 256 * 4 + 2 * 256 * 20 if packed else 16 * 256 * 256)


def test_a_mask_is_of_a_window_alone() -> None:
    """Compressed entries are selected beside it."""
    cores = [leaf for leaf in build(TINY["compressed"], "x").root.leaves() if isinstance(leaf, CompressedCore)]
    assert {core.entries is None for core in cores} == {True, False}
    assert all(core.masked == (core.entries is None) for core in cores)


# At the very ends: what is just as much.


def test_a_card_that_is_just_large_enough_is_large() -> None:
    """For vLLM; all of an unnamed card's memory is seen. A link as fast as the slots is none of its own."""
    found, least = profile("vllm"), parse_bytes(data()["large"]["least"], "least")
    assert found
    for size, large in ((least - 1, False), (least, True)):
        card = replace(CARD, name="another", vendor="another", memory=size)
        one = EngineMemory(found, card, 8192)
        assert one.large == large and visible(card) == size
        assert not any("reserve is of" in note for note in one.notes(SMALL, 0, Layout()))
    outside = [
        EngineMemory(found, replace(CARD, link=link), 8192).rest(SMALL, Layout(tp=2), 0, 0)["outside torch"]
        for link in (None, PCIE, PCIE + 1)
    ]
    assert outside[0] == outside[1] != outside[2]


@pytest.mark.parametrize(("bits", "kept_"), [(7, False), (8, True), (16, True)])
def test_experts_of_eight_bits_have_a_workspace(bits: int, kept_: bool) -> None:
    found = profile("vllm@0.17")
    assert found
    memory, model = EngineMemory(found, CARD, 8192, 1, 10), load("D=512 L=2 h=8 F=128 V=50 E=4 k=3")
    assert (memory.workspace(model.ledger(), Format("test", bits, LAYERS, "a test")) > 0) == kept_


def test_expressions_up_to_so_many_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Modules(["re:.*q_proj"]).trials
    monkeypatch.setattr(modules, "MOST_TRIALS", trials)
    assert Modules(["re:.*q_proj"]).trials == trials > 0
    monkeypatch.setattr(modules, "MOST_TRIALS", trials - 1)
    with pytest.raises(InputError):
        Modules(["re:.*q_proj"])


def test_four_heads_a_group_are_grouped() -> None:
    """llama.cpp's n_gqa ≥ 4 and n_expert ≥ 4."""
    for groups, experts in product((3, 4), (3, 4)):
        at: Any = SimpleNamespace(groups=groups, experts=experts)
        assert (WHEN["grouped"](at), WHEN["grouped or sparse"](at)) == (groups == 4, 4 in (groups, experts))


def test_a_file_of_lengths_may_be_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for most, fine in ((3, True), (2, False)):
        monkeypatch.setattr("txcalc.planning.serving.traffic.MAX_BYTES", most)
        if fine:
            assert written(lambda path: lengths(f"@{path}", "--prompt"), "128") == Lengths(128, 128, (128,))
        else:
            with pytest.raises(InputError, match="larger than 2 bytes"):
                written(lambda path: lengths(f"@{path}", "--prompt"), "128")


def test_a_file_of_lengths_is_read_to_16_mib(tmp_path: Path) -> None:
    with (tmp_path / "zeros").open("wb") as made:
        made.truncate(2**24 + 1)
    with pytest.raises(InputError, match="larger than 16,777,216 bytes"):
        lengths(f"@{tmp_path / 'zeros'}", "--prompt")


def test_a_request_without_lengths_is_of_one_length_and_random() -> None:
    plain = Request(100, 7, Fraction(1, 3))
    assert (plain.spread, plain.bursts, plain.answers, plain.width) == (0.0, 1.0, 0.0, 1.0)
    assert (plain.cached(16), plain.cached(1), plain.mean_length) == (32, 33, 103)


def test_all_of_a_card_cannot_be_kept_free() -> None:
    assert parse_reserve("99%").of(1000) == 990 and parse_reserve("0%").of(1000) == 0
    with pytest.raises(InputError, match="a share such as 10%"):
        parse_reserve("100%")


@pytest.mark.parametrize(("tokens", "window"), [(1, 3), (7, 1), (7, 4), (7, 7), (3, 9)])
def test_centred_windows_are_of_queries_alone(tokens: int, window: int) -> None:
    pairs = sum(abs(i - j) < window for i in range(tokens) for j in range(tokens))
    assert CentredWindow(window=window).visible(Workload(1, tokens, 0, 2)) == pairs


def test_pairs_of_query_heads_are_split() -> None:
    """Eight heads are four pairs, whose four key/value heads are repeated where there are more ranks."""
    sharding = Sharding(build(TINY["diffllama"], "pairs"))
    assert not sharding.faults(Layout(tp=4)) and "pairs of n_heads" in str(sharding.faults(Layout(tp=8)))


def test_entries_of_two_tokens_are_all_chosen_up_to_six() -> None:
    """Of which three are read: the cost bends there, and where the window of three is full."""
    layer = {**TINY["compressed"]["layer"]["selected"], "compressed": {"rate": 2, "overlap": True, "index_heads": 3}}
    layer["compressed"] |= {"index_width": 6, "index_top_k": 3}
    model = build({**TINY["compressed"], "pattern": ["selected"], "layer": {"selected": layer}}, "chosen")
    assert {entry.leaf.breakpoints for entry in model.ledger() if entry.leaf.attended} == {(3, 6)}


def test_adapters_have_ranks_up_to_4096() -> None:
    assert engine(SMALL, adapters=(1, 4096)).adapters == 1
    with pytest.raises(InputError, match="adapter rank is 4097, expected a whole number from 1 to 4,096"):
        engine(SMALL, adapters=(1, 4097))


def test_square_windows_are_in_whole_cells() -> None:
    """Of 3 × 3 positions: 4 cells, 2 on each side; 5 in a line."""
    windows = SquareWindows(side=4, cell=3)
    assert [windows.grid(Workload(1, tokens, 0, tokens)) for tokens in (36, 45, 54)] == [(2, 2), (1, 5), (2, 3)]


@pytest.mark.parametrize(("rate", "top_k"), [(1, None), (4, None), (4, 3), (3, 5), (5, 1)])
def test_entries_seen_are_counted_one_by_one(rate: int, top_k: int | None) -> None:
    entries = Entries(rate=rate, top_k=top_k)
    seen = [i // rate if top_k is None else min(i // rate, top_k) for i in range(80)]
    for past, tokens in ((0, 1), (0, 20), (7, 9), (30, 40), (2, 77)):
        assert entries.visible(Workload(1, tokens, past, 0)) == sum(seen[past + 1 : past + tokens + 1])


def test_all_of_a_batch_are_compared_at_once() -> None:
    assert on_batch(Workload(3, 7, 2, 5)) == Workload(1, 3, 2, 3)


def test_a_request_takes_what_is_cached_for_it_too() -> None:
    job = Arrival(0.0, 5, 3, 4)
    server = Server(lambda n: 0.01, 1e-3, 0.0, 1000, 8, 12, 1)
    assert len(simulate(server, iter([job]), None).done) == 1
    with pytest.raises(InputError, match="tokens of a request is 12, expected at most the 11"):
        simulate(server._replace(pages=11), iter([job]), None)


def test_the_widest_design_is_one_head_of_it() -> None:
    assert list(Likeness(load("D=32768 L=2 h=1 F=64 V=64")).widths()) == [32_768]
    with pytest.raises(InputError, match="more than the 32,768 tried"):
        Likeness(load("D=32832 L=2 h=1 F=64 V=64")).widths()


def test_projected_positions_are_split_by_heads() -> None:
    """From the stream's width to that of all heads, which differ."""
    model = build({**TINY["chinchilla"], "attention": {"n_heads": 4, "d_head": 12}}, "wide heads")
    for ranks in (1, 2):
        root = Sharding(model).stages(Layout(tp=ranks))[0].root
        shapes = {entry.steps[-1].name: entry.leaf.matrix for entry in walk(root, model.workload(1, 4))}
        assert shapes["position"] == (32, 4 * 12 // ranks)


# What is said of engines, formats and layouts.


def test_a_version_is_the_newest_known_where_a_later_one_is_asked_for() -> None:
    newest = profile("vllm")
    assert newest
    for asked, said in ((newest.version, False), (f"{newest.version}.1", False), ("99", True)):
        found = profile(f"vllm@{asked}")
        assert found and bool(found.newest) == said, asked


def test_a_format_that_an_engine_lacks_is_named_once() -> None:
    """One of several types is named beside the mixture."""
    faults = list[Fault]()
    for name in ("sglang", "trtllm", "llama.cpp"):
        found = profile(name)
        assert found
        faults += filter(None, (unsupported(found, form, CARD) for form in FORMATS.values()))
        if mixed := unsupported(found, weights_of(SMALL, "Q4_K_M"), CARD):
            assert "Q4_K_M, with q" in str(mixed)
    assert faults and not any(", with" in str(fault) for fault in faults)


def test_states_stay_as_wide_as_they_were() -> None:
    for name, kv, said in (("mamba-2.8b", "fp8", True), ("mamba-2.8b", "bf16", False), ("gpt2", "fp8", False)):
        model = load(name)
        notes = " ".join(notes_of_layout(Planner(model, CARD, engine(model, kv=kv)), Layout(), 64, 64))
        assert ("recurrent states stay at 16 bits" in notes) == said, (name, kv)


def test_a_vocabulary_of_torch_s_is_cut_and_not_padded() -> None:
    for framework, said in (("fsdp2", "is cut as torch.chunk cuts it"), ("nanotron", "is padded to 252")):
        plan = memory(load(DENSE), Recipe(Layout(tp=4), tokens=32, framework=framework))
        assert any(said in note for note in plan.notes), framework
    assert [rules_of(Recipe(framework=name))["pads"] for name in ("fsdp2", "nanotron")] == [0, 1]


def test_a_method_that_packs_no_words_takes_any_size() -> None:
    odd = load("D=63 L=1 h=3 F=99 V=50 untied")
    form = configured(odd, {"quant_method": "fbgemm_fp8"})
    down = next(entry for entry in odd.ledger() if entry.path.endswith("feed_forward.down"))
    assert 8 * form.bytes_of(down) == 63 * 99 * 8 + 63 * 32


def test_weights_of_eight_bits_are_multiplied_as_they_are() -> None:
    for kind, bits, dtype in (("float", 8, "fp8"), ("int", 8, "int8"), ("int", 4, "bf16")):
        weights = {"num_bits": bits, "type": kind, "strategy": "channel"}
        groups = {"g": {"targets": ["Linear"], "weights": weights}}
        form = configured(SMALL, {"quant_method": "compressed-tensors", "config_groups": groups})
        entry = next(entry for entry in SMALL.ledger() if entry.path.endswith("attention.q"))
        assert form.dtype_of(entry) == dtype, (kind, bits)


def test_passes_of_prompts_alone_are_answered_as_fast_as_they_are_computed() -> None:
    """Of more than that, no more; of fewer, as many as come."""
    demand = Demand(lambda n: 0.0, 0.25, 0.25, 1.0, 1)
    assert [(open_(demand, rate, 8).lasts, open_(demand, rate, 8).rate) for rate in (3, 5)] == [(True, 3), (False, 4)]
