"""Laws that times obey whatever the numbers are: of a rank's pass, a step of training, and a server at a load.

A unit of time is no number: where all that an accelerator does takes half as long, every answer is half. And no
answer gets better where one rate is lower or one cost higher, while at least one gets worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from txcalc import hardware, load
from txcalc.hardware import Accelerator
from txcalc.hardware.curves import Curve, Link
from txcalc.planning import machine as machines
from txcalc.planning.layout import Layout
from txcalc.planning.machine import Machine
from txcalc.planning.parallelism import Sharding
from txcalc.planning.serving.demand import Demand, Steady
from txcalc.planning.serving.engine import engine
from txcalc.planning.serving.engine_memory import EngineMemory
from txcalc.planning.serving.engine_profiles import profile
from txcalc.planning.serving.layout_time import LayoutTime
from txcalc.planning.serving.steady_state import closed_loop, open_loop
from txcalc.planning.training import Recipe, memory
from txcalc.planning.training.step import StepTimer

RATES = ("bandwidth", "link", "link_between")
SHARES = ("compute", "memory", "share")
# What is asked of a class of kernels, or of a link.
ASKED = {
    "matmul.": ("compute", "memory", "start_s", "depth_s", "quantise"),
    "experts.": ("compute", "memory", "start_s", "depth_s", "tile", "gathered"),
    "attention.": ("compute", "memory", "start_s", "depth_s", "score"),
    "link.": ("share", "start_s", "rank_s", "crowd"),
}


def h200() -> Accelerator:
    """In nodes of four, of a host that is waited for, and every cost of a curve present."""
    accelerator = hardware.load("h200")
    curves = {
        key: curve._replace(
            quantise=curve.quantise or 1.0,
            tile=curve.tile or 8.0,
            gathered=curve.gathered or 1.0,
            score=600.0,
            depth_s=curve.depth_s or 2e-10,
        )
        for key, curve in accelerator.efficiency.curves.items()
    }
    links = {
        key: link._replace(crowd=link.crowd or 0.1, growth=link.growth or 0.1)
        for key, link in accelerator.efficiency.links.items()
    }
    efficiency = replace(accelerator.efficiency, curves=curves, links=links)
    return replace(accelerator.placed(4, 5 * 10**10), calibration=efficiency)


def curved(accelerator: Accelerator, change: Callable[[str, Curve | Link], Any], **rest: Any) -> Accelerator:
    """With every curve and every link changed."""
    efficiency = accelerator.efficiency
    curves: dict[str, Any] = {key: change(key, curve) for key, curve in efficiency.curves.items()}
    links: dict[str, Any] = {key: change(f"link.{key}", link) for key, link in efficiency.links.items()}
    return replace(accelerator, calibration=replace(efficiency, curves=curves, links=links, **rest))


def twice_as_fast(accelerator: Accelerator) -> Accelerator:
    """All that it does takes half as long."""

    def change(key: str, curve: Curve | Link) -> Curve | Link:
        if isinstance(curve, Link):
            return curve._replace(start_s=curve.start_s / 2, rank_s=curve.rank_s / 2)
        return curve._replace(start_s=curve.start_s / 2, depth_s=curve.depth_s / 2)

    efficiency = accelerator.efficiency
    rates = {key: 2 * getattr(accelerator, key) for key in RATES}
    peaks = {dtype: 2 * peak for dtype, peak in accelerator.peaks.items()}
    rest = {"launch_s": efficiency.launch_s / 2, "host_s": efficiency.host_s / 2}
    return replace(curved(accelerator, change, **rest), peaks=peaks, **rates)


PLANS: dict[str, tuple[str, Layout, dict[str, Any]]] = {
    "dense": ("llama-3.1-8b", Layout(tp=8), {}),
    "node": ("llama-3.1-8b", Layout(tp=4), {}),
    "experts": ("mixtral-8x7b", Layout(tp=2, dp=4, ep=8), {"weights": "fp8", "kv": "fp8"}),
    "latent": ("deepseek-v3", Layout(tp=8, pp=2), {"weights": "fp8", "chunk": 512}),
    "adapters": ("llama-3.1-8b", Layout(pp=4), {"weights": "int4", "adapters": (8, 16)}),
}


@cache
def plan_inputs(plan: str) -> tuple[Any, ...]:
    source, layout, how = PLANS[plan]
    model = load(source)
    return model, Sharding(model), layout, engine(model, **{"weights": "bf16", **how})


def paced(plan: str, accelerator: Accelerator) -> dict[str, float]:
    """Seconds of prompts and steps, floors and parts too."""
    model, sharding, layout, how = plan_inputs(plan)
    layout_time, seconds = LayoutTime(model, sharding, layout, accelerator, how), dict[str, float]()
    for name, time in (
        ("prompt", layout_time.prefill(3000)),
        ("rest of a prompt", layout_time.prefill(3000, 1000)),
        ("step", layout_time.step(2, 2048)),
        ("large step", layout_time.step(512, 300, 2)),
    ):
        seconds |= {name: time.achievable, f"floor of {name}": time.floor}
    seconds |= {f"{kind} of a step": cost.achievable for kind, cost in layout_time.decode_parts(64, 2048).items()}
    seconds |= {f"{kind} of a prompt": cost.achievable for kind, cost in layout_time.prefill_parts(3000).items()}
    return seconds


def test_a_draft_s_proposals_are_decoded() -> None:
    """Of a token and up to 63 proposals; more are a prompt's."""

    def dearer(key: str, curve: Curve | Link) -> Curve | Link:
        return curve._replace(start_s=curve.start_s + 1) if key == "attention.decode" else curve

    model, sharding, layout, how = plan_inputs("dense")
    usual, dear = (LayoutTime(model, sharding, layout, card, how) for card in (h200(), curved(h200(), dearer)))
    for tokens, decoded in ((1, True), (64, True), (65, False)):
        delay = dear.step(1, 2048, tokens).achievable - usual.step(1, 2048, tokens).achievable
        assert (delay > 1) == decoded


def test_scores_that_kernels_do_not_fuse_go_through_memory() -> None:
    """llama.cpp without flash attention: of every score so many bytes, of a prompt of 65 tokens or more."""
    engine_profile = profile("llama.cpp@b2824")
    assert engine_profile
    card = hardware.load("rtx-4090")
    model, memory_ = load("llama-3.1-8b"), EngineMemory(engine_profile, card, 8192)
    how = engine(model, "q8_0", memory=memory_)
    rank = LayoutTime(model, Sharding(model), Layout(), card, how).ranks[0]
    for tokens in (64, 65, 100):
        work = model.workload(1, tokens)
        (core,) = (item for item in rank.loads_of(work, True) if item.kind == "attention_core")
        (ask,) = (ask for ask in rank.work.loads(work) if ask.core)
        assert ask.core
        extra = core.moved - ask.moved - ask.cache * core.curve.apart * ask.core.extra_reads
        scores = 32 * 32 * tokens * tokens * memory_.score_bytes
        assert extra * card.efficiency.memory / core.curve.memory == pytest.approx(scores if tokens > 64 else 0, abs=1)


def test_products_that_sum_in_half_precision_are_twice_as_fast() -> None:
    """In fp16, and of narrow weights as integers, where an engine has them; of others none."""
    newer, card, model = profile("llama.cpp@b4000"), hardware.load("rtx-4090"), load("llama-3.1-8b")
    assert newer and card.half_sums == 2
    halves, plain = engine(model, "q8_0", memory=EngineMemory(newer, card, 8192)), engine(model, "bf16")
    for dtype, narrow, times in (("fp16", False, 2), ("fp16", True, 2), ("bf16", False, 1), ("bf16", True, 2)):
        assert halves.peak(card, dtype, narrow) == times * card.peak(dtype) == times * plain.peak(card, dtype, narrow)


RECIPES = {
    "fsdp": Recipe(Layout(fsdp=16), tokens=4096, micro_batch=2),
    "megatron": Recipe(Layout(tp=2, sp=2, pp=2, dp=4), tokens=4096, framework="megatron", zero=1, accumulation=4),
    "context": Recipe(Layout(fsdp=2, cp=8), tokens=32_768, accumulation=2, recompute="blocks"),
}


def trained(name: str, accelerator: Accelerator) -> dict[str, float]:
    """Seconds of a step of training."""
    model, recipe = load("llama-3.1-8b"), RECIPES[name]
    step = StepTimer(model, recipe, Machine.of(accelerator)).step(memory(model, recipe))
    return {"floor": step.floor, "step": step.seconds}


@pytest.mark.parametrize("plan", PLANS)
def test_all_that_is_twice_as_fast_takes_half_as_long(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's latencies between nodes too."""
    slow = paced(plan, h200())
    monkeypatch.setattr(machines, "START", machines.START / 2)
    for hops in ("RING", "TREE"):
        monkeypatch.setattr(machines, hops, tuple(seconds / 2 for seconds in getattr(machines, hops)))
    fast = paced(plan, twice_as_fast(h200()))
    assert {name: 2 * seconds for name, seconds in fast.items()} == pytest.approx(slow, rel=1e-12)  # powers are rounded


def slower(chip: Accelerator) -> Iterator[tuple[str, Accelerator]]:
    """With one rate lower or one cost higher, each in turn."""
    for rate in RATES:
        yield rate, replace(chip, **{rate: getattr(chip, rate) * 9 // 10})
    yield "peaks", replace(chip, peaks={dtype: peak * 9 // 10 for dtype, peak in chip.peaks.items()})
    efficiency = chip.efficiency
    for field, factor in (("memory", 0.9), ("launch_s", 1.1)):
        yield field, replace(chip, calibration=replace(efficiency, **{field: getattr(efficiency, field) * factor}))
    for kind, fields in ASKED.items():
        for field in fields:

            def change(key: str, curve: Any, kind: str = kind, field: str = field) -> Any:
                value = getattr(curve, field, 0.0) if key.startswith(kind) else 0.0
                return curve._replace(**{field: value * (0.9 if field in SHARES else 1.1)}) if value else curve

            yield f"{kind}{field}", curved(chip, change)


@pytest.mark.slow
def test_what_is_slower_makes_nothing_faster() -> None:
    """Of every change at least one answer of one plan or recipe gets worse: none of the figures is left out."""
    usual = {("plan", plan): paced(plan, h200()) for plan in PLANS}
    usual |= {("recipe", name): trained(name, h200()) for name in RECIPES}
    for what, accelerator in slower(h200()):
        worse = False
        for (kind, name), before in usual.items():
            now = paced(name, accelerator) if kind == "plan" else trained(name, accelerator)
            assert now.keys() == before.keys()
            assert all(seconds >= before[key] * (1 - 1e-12) for key, seconds in now.items()), (what, name)
            worse |= any(seconds > before[key] * (1 + 1e-9) for key, seconds in now.items())
        assert worse, what


TIMES = ("prompt", "unloaded", "overhead", "solo")
GROWING = ("prompt", "unloaded", "overhead", "chunks", "polls")
DEMANDS = {
    "plain": Demand(lambda n: 0.01 + 1e-4 * n, 0.05, 0.06, 0.3, 200, overhead=0.02, polls=1.0, spread=0.5),
    "polled": Demand(lambda n: 0.01 + 1e-4 * n, 0.02, 0.03, 0.1, 200, 2.0, interval=8, width=0.5),
    "shared": Demand(lambda n: 0.01 + 1e-4 * n, 0.03, 0.03, 0.2, 500, sharing=4, solo=0.02, interval=30, gathers=True),
    "one token": Demand(lambda n: 0.0, 0.05, 0.06, 0.3, 1, overhead=0.02, spread=0.5),
}


def loaded(demand: Demand, pace: float = 1.0) -> list[Steady]:
    """At four loads; where time goes by another pace, the rates that are asked for too."""
    return [
        closed_loop(demand, 1),
        closed_loop(demand, 24),
        closed_loop(demand, 48, 16),
        open_loop(demand, 3 * pace, 1e4),
        open_loop(demand, 3 * pace, 48),
    ]


@pytest.mark.parametrize("name", DEMANDS)
def test_a_server_twice_as_fast_answers_twice_as_much(name: str) -> None:
    slow = DEMANDS[name]
    step = slow.step
    fast = slow._replace(step=lambda n: step(n) / 2, **{field: getattr(slow, field) / 2 for field in TIMES})
    for ref, twice in zip(loaded(slow), loaded(fast, 2.0), strict=True):
        assert (
            ref.lasts
            and ref.ttft == 2 * twice.ttft
            and ref.e2e == 2 * twice.e2e
            and ref.cache_wait == 2 * twice.cache_wait
        )
        assert ref.tpot == (2 * twice.tpot if twice.tpot else None) and twice.rate == 2 * ref.rate
        assert (ref.utilisation, ref.decoding) == (twice.utilisation, twice.decoding)


@pytest.mark.parametrize("name", DEMANDS)
def test_a_server_that_is_asked_for_more_answers_no_sooner(name: str) -> None:
    usual = DEMANDS[name]
    step = usual.step
    demands = {field: usual._replace(**{field: getattr(usual, field) * 1.1}) for field in GROWING}
    demands |= {"spread": usual._replace(spread=usual.spread + 0.5), "bursts": usual._replace(bursts=2.0)}
    demands |= {"step": usual._replace(step=lambda n: step(n) * 1.1)}
    for what, demand in demands.items():
        for before, now in zip(loaded(usual), loaded(demand), strict=True):
            assert now.e2e >= before.e2e * (1 - 1e-5), what
            assert now.rate <= before.rate * (1 + 1e-5), what
