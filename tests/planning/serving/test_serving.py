"""Speed: floors by hand, measured figures of others, no achievable figure below a floor, answers that are the largest
and smallest, and what is refused."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from math import inf
from random import Random
from typing import Any

import pytest
from command import Command
from hypothesis import assume, given, strategies as st
from msgspec.structs import replace
from plans import plan

import txcalc
from txcalc import hardware, load
from txcalc.errors import InputError
from txcalc.hardware import Accelerator, default_efficiency
from txcalc.hardware.curves import PEAKS, SECONDS, SHARES, Curve, Efficiency, Link, untouched
from txcalc.parts.part import Workload
from txcalc.planning.layout import Group, Layout
from txcalc.planning.machine import FLASH, NEWER, Kernels, Machine, ring
from txcalc.planning.parallelism import PipelineStage, Sharding
from txcalc.planning.serving.deployment import Planner
from txcalc.planning.serving.durations import Cost, series
from txcalc.planning.serving.engine import engine
from txcalc.planning.serving.layout_time import LayoutTime
from txcalc.planning.serving.points import Slo, SpeculativeDecoding, Timer, request
from txcalc.planning.serving.rank_time import RankTime
from txcalc.planning.serving.speed import Serving, serve
from txcalc.sources.presets import names

ONE = Layout()
PERFECT = default_efficiency().overlaid(
    dict.fromkeys((*(f"matmul.{dtype}" for dtype in PEAKS), *SHARES), 1.0) | dict.fromkeys(SECONDS, 0.0), {}
)


def pace(name: str, gpu: str | Accelerator = "h100-sxm", layout: Layout = ONE, **how: Any) -> LayoutTime:
    model = load(name)
    accelerator = hardware.load(gpu) if isinstance(gpu, str) else gpu
    return LayoutTime(model, Sharding(model), layout, accelerator, engine(model, **{"weights": "bf16", **how}))


def serving(
    name: str, gpu: str = "h100-sxm", gpus: int = 1, context: int = 2048, concurrency: int = 1, **options: Any
) -> Serving:
    model = load(name)
    planner = Planner(model, hardware.load(gpu), engine(model, "bf16"), options.pop("draft", None))
    deployment = plan(planner, context, concurrency, gpus)
    price, limits = options.pop("price", None), Slo(options.pop("ttft", None), options.pop("tpot", None))
    return serve(deployment, request(context, **options), price, limits)


run = Command("deploy")


# Floors, by hand from the published sizes.


def test_decode_of_a_dense_model_reads_its_weights_and_its_cache() -> None:
    """Llama-3.1-8B, bf16, one H100 of 3.35 TB/s: all weights but the input embedding (one row of it), and the cache."""
    weights = 2 * (8_030_261_248 - 128_256 * 4096 + 4096)
    step = pace("llama-3.1-8b").step(1, 2048)
    assert step.floor == pytest.approx((weights + 131_072 * 2048) / 3.35e12, rel=1e-12)
    assert f"{1000 * step.floor:.2f}" == "4.56" and step.floor_bound == "memory"
    many = pace("llama-3.1-8b").step(7, 2048).floor
    assert many == pytest.approx((weights + 6 * 2 * 4096 + 7 * 131_072 * 2048) / 3.35e12, rel=1e-12)


def test_prefill_of_a_dense_model_computes_what_the_mask_leaves() -> None:
    """2 per weight and token but for the head, which is read for the last; 4·D per visible pair and layer; 989e12/s."""
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336)
    flops = 2 * 2048 * layers + 2 * 4096 * 128_256 + 32 * 4 * 4096 * 2048 * 2049 // 2
    prefill = pace("llama-3.1-8b").prefill(2048)
    assert prefill.floor == pytest.approx(flops / 989e12, rel=1e-12) and prefill.floor_bound == "compute"


def test_decode_of_experts_reads_at_least_those_of_a_token() -> None:
    """Mixtral 8x7B on 4 GPUs: a rank's quarter of the matrices, of 8 experts the 2 that all tokens may share, and norms
    and routers whole. Achievable: those that tokens choose of experts as popular as differently."""
    attention = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024)
    expert = 32 * 3 * 4096 * 14_336
    small = 32 * (4096 * 8 + 2 * 4096) + 4096
    for batch in (1, 4, 300):
        elements = (attention + 2 * expert + 32_000 * 4096) / 4 + small + batch * 4096
        cache = batch * 2048 * 2 * 32 * 2 * 128  # two of the eight key/value heads
        step = pace("mixtral-8x7b", "a100-80gb-sxm", Layout(tp=4)).step(batch, 2048)
        assert step.floor == pytest.approx(2 * (elements + cache) / 2.039e12, rel=1e-9)
    card = replace(hardware.load("a100-80gb-sxm"), calibration=replace(PERFECT, spread=0.8))
    single, few = (pace("mixtral-8x7b", card, Layout(tp=4)).decode_parts(n, 2048)["experts"].memory for n in (1, 4))
    # Beta-distributed chances of 1/4 on average: a = 0.8, b = 2.4; untouched by four: Π (b + i)/(a + b + i)
    untouched = (2.4 * 3.4 * 4.4 * 5.4) / (3.2 * 4.2 * 5.2 * 6.2)
    assert single == pytest.approx(2 * 2 * expert / 4 / 2.039e12, rel=0.02)  # and activations
    assert few == pytest.approx(2 * 8 * (1 - untouched) * expert / 4 / 2.039e12, rel=0.02)


# A pass by hand, of kernels whose every parameter counts.

CURVES = {
    "matmul.fp8": Curve(0.4, 0.8, 1e-6, 1e-9, 2.0, quantise=1.5),
    "matmul.w4": Curve(0.5, 0.6, 5e-6, 3e-9, 1.0, unpack=20.0),
    "matmul.bf16": Curve(0.6, 0.7, 3e-6, 2e-9),
    "experts.bf16": Curve(0.3, 0.9, 7e-6, 4e-9, 1.0, tile=6.0, gathered=2.5),
    "attention.decode": Curve(0.3, 0.9, 4e-6, 1e-9, 1.0, score=128.0, apart=1.0),
    "attention.prefill": Curve(0.2, 0.5, 6e-6, 5e-9, score=16.0),
}
LINKS = {"all_to_all": Link(0.5, 0.0, 0.0, 1e-5, 1e-6)}


def handled() -> Accelerator:
    card = hardware.load("h200")
    return replace(card, calibration=Efficiency(CURVES, LINKS, 0.5, 2e-6, 2.0, {}))


def by_hand_pass(text: str, weights: str, work: Workload, layout: Layout = ONE) -> tuple[dict[str, Cost], Accelerator]:
    model, card = load(text), handled()
    rank = LayoutTime(model, Sharding(model), layout, card, engine(model, weights)).ranks[0]
    return rank.parts(work), card


def test_a_decode_step_by_hand() -> None:
    """Five sequences of 101 tokens; fp8 with a scale a tensor, all else in 16 bits."""
    work = Workload(5, 1, 100, 0, decoding=True)
    costs, card = by_hand_pass("D=64 L=3 h=4 h_kv=2 F=96 V=50 untied", "fp8", work)
    bw, narrow, wide = card.bandwidth, card.peak("fp8"), card.peak("bf16")

    def product(d_in: int, d_out: int) -> float:
        memory = 3 * (d_in * d_out + 4 + 5 * 2 * (d_in + d_out)) / bw / 0.8
        compute = 3 * 5 * 2 * d_in * d_out / narrow / 0.4
        return (memory**2 + compute**2) ** 0.5

    def narrowing(d_in: int) -> float:
        return 3 * 5 * 1.5 * d_in * (2 + 1) / bw / 0.5

    fed = 2 * product(64, 96) + product(96, 64) + narrowing(64) + narrowing(96) + 3 * 5 * 2 * (3 * 96) / bw / 0.5
    projected = 2 * product(64, 64) + 2 * product(64, 32) + 2 * narrowing(64) + 3 * 5 * 2 * 192 / bw / 0.5
    cache = 3 * 5 * 2 * 2 * 101 * 2 * 16
    scored = 3 * 5 * 4 * 64 * 101 / (wide / (128 / 64)) / 0.3
    times = {
        "feed_forward": fed,
        "attention": projected,
        "attention_core": (2 * cache + 3 * 5 * 2 * 128) / bw / 0.9 + scored,  # two heads share keys, each reads them
        "norm": 7 * 2 * (64 + 5 * 128) / bw / 0.5,
        "other": 3 * 5 * 2 * 384 / bw / 0.5,
        "embedding": 5 * 2 * (64 + 64) / bw / 0.5,
        "head": max(2 * (64 * 50 + 5 * 114) / bw / 0.7, 5 * 2 * 64 * 50 / wide / 0.6),
    }
    starts = {
        "feed_forward": 3 * (2e-6 + (64 + 96) * 1e-9 + 2e-6),
        "attention": 3 * (2e-6 + 2 * 64 * 1e-9 + 2e-6),
        "attention_core": 3 * (4e-6 + 101 * 1e-9),
        "norm": 7 * 2e-6,
        "other": 0.0,
        "embedding": 2e-6,
        "head": 3e-6 + 64 * 2e-9,
    }
    assert {kind: cost.compute + cost.memory for kind, cost in costs.items()} == pytest.approx(times, rel=1e-12)
    assert {kind: cost.launch for kind, cost in costs.items()} == pytest.approx(starts, rel=1e-12)
    floors = {kind: cost.least for kind, cost in costs.items()}
    assert floors["feed_forward"] == pytest.approx((3 * 5 * 6 * 64 * 96 / narrow, 3 * (3 * 64 * 96 + 12) / bw, 0))
    assert floors["attention_core"] == pytest.approx((3 * 5 * 4 * 64 * 101 / wide, cache / bw, 0))
    assert floors["embedding"] == pytest.approx((0, 5 * 2 * 64 / bw, 0))


@pytest.mark.parametrize("rows", [1, 2])
def test_packed_weights_by_hand(rows: int) -> None:
    """Four bits and a scale of 20 for each row's group; with one row a sequence they are unpacked once for all five."""
    work = Workload(5, rows, 100, 0, decoding=True)
    costs, card = by_hand_pass("D=64 L=3 h=4 F=96 V=50 untied", "int4", work)
    bw, wide = card.bandwidth, card.peak("bf16")
    once = 20 / 2 - 1 / 0.5 if rows == 1 else 0.0

    def product(d_in: int, d_out: int) -> float:
        memory = 3 * ((d_in * d_out * 4 + d_out * 20) / 8 + 5 * rows * 2 * (d_in + d_out)) / bw / 0.6
        return memory + 3 * 2 * d_in * d_out / wide * (5 * rows / 0.5 + once)

    fed = 2 * product(64, 96) + product(96, 64) + 3 * 5 * rows * 2 * (3 * 96) / bw / 0.5
    cost = costs["feed_forward"]
    assert cost.memory + cost.compute == pytest.approx(fed, rel=1e-12)
    assert cost.launch == pytest.approx(3 * (2 * 5e-6 + (64 + 96) * 3e-9 + 2e-6), rel=1e-12)


@pytest.mark.parametrize("copies", [1, 4])
def test_experts_by_hand(copies: int) -> None:
    """Two of eight experts per token, popular as a Beta distribution of 2 and 6 has it; of four copies that share them
    each holds two of a layer, the fullest gets more, and passes over all ranks' inputs."""
    layout = Layout(dp=copies, ep=copies)
    work = Workload(5, 1, 100, 0, decoding=True)
    costs, card = by_hand_pass("D=64 L=3 h=4 F=96 V=50 E=8 k=2 untied", "bf16", work, layout)
    bw, wide, touched = card.bandwidth, card.peak("bf16"), 1.0
    for i in range(5 * copies):
        touched *= (6 + i) / (8 + i)
    matrices = 3 * 8 // copies * (1 - touched)
    fullest = 1 + 0.56 * 2**0.82 / (2 * 2) ** 0.5 if copies > 1 else 1.0

    def product(d_in: int, d_out: int) -> float:
        memory = 2 * (matrices * d_in * d_out + 3 * 2 * 5 * fullest * (d_in + d_out)) / bw / 0.9
        rows = 3 * 2 * 5 * fullest + matrices * 6 / 2
        return memory + rows * 2 * d_in * d_out / wide / 0.3

    gathered = 2 * 2.5 * (1 - 1 / copies) * copies * 5 * 64 * 3 / bw / 0.5  # before gate and up, and before down
    cost = costs["experts"]
    assert cost.memory + cost.compute == pytest.approx(2 * product(64, 96) + product(96, 64) + gathered, rel=1e-9)
    assert cost.launch == pytest.approx(3 * (2 * 7e-6 + (64 + 96) * 4e-9), rel=1e-12)
    least = 3 * 8 // copies * min(0.25, 1 - touched) * 3 * 64 * 96
    assert cost.least_weights == pytest.approx(2 * least / bw, rel=1e-9)


def test_what_tokens_leave_untouched() -> None:
    assert [untouched(1, tokens, inf) for tokens in (0, 1)] == [1, 0]
    assert untouched(0.25, 1, 0.8) == pytest.approx(0.75) and untouched(0.25, 1, inf) == 0.75
    assert untouched(0.25, 5, inf) == pytest.approx(0.75**5) and untouched(0.25, 5, 1e6) == pytest.approx(
        0.75**5, rel=1e-4
    )
    assert untouched(0.25, 5, 0.8) > 0.75**5 > untouched(1, 5, 0.8) == 0.0
    assert untouched(0.25, 0, 0.8) == 1.0


def test_decode_of_latent_attention_reads_the_latent() -> None:
    """DeepSeek-V3's cache is 576 elements per token and layer, whole on every rank of tp."""
    layout = Layout(tp=8)
    short, long = (pace("deepseek-v3", "h200", layout).step(1, n) for n in (1024, 9216))
    assert long.floor - short.floor == pytest.approx(8192 * 2 * 576 * 61 / 4.8e12, rel=1e-6)


def test_a_tied_head_is_read_once_more() -> None:
    """GPT-2's head multiplies by the embedding, which is held elsewhere; positions and tokens are one row each."""
    params = 124_439_808 - 1024 * 768 - 50_257 * 768
    read = 2 * (params + 50_257 * 768 + 2 * 768) + 2 * 2 * 12 * 768 * 512
    assert pace("gpt2").step(1, 512).floor == pytest.approx(read / 3.35e12, rel=1e-12)


def test_quantised_weights_are_read_as_they_are_stored() -> None:
    narrow, wide = (pace("llama-3.1-8b", weights=form).step(1, 2048).floor for form in ("fp8", "bf16"))
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336)
    assert (wide - narrow) * 3.35e12 == pytest.approx(layers - 32 * 7 * 4, rel=1e-9)


# What others measured of whole steps. The curves in presets/efficiency/ are fitted to kernels alone.


@pytest.mark.parametrize(
    ("name", "gpu", "tp", "ttft", "tpot"),
    [
        ("llama-3.1-8b", "h100-sxm", 1, 43.51, 6.238),
        ("llama-3.1-70b", "h100-sxm", 4, None, 14.98),  # its TTFT, 130.18, leaves 28 for 160 all-reduces of 0.33
        ("mixtral-8x7b", "h100-sxm", 4, None, 4.06),  # its TTFT, 33.81, is out of reach: 26.9, 21 % less
        ("llama-3.1-8b", "a100-80gb-sxm", 1, 125.2, 12.01),
        ("llama-3.1-8b", "h200", 1, 43.4, 4.91),
        ("llama-3.1-8b", "l40s", 1, 144.9, 22.04),
    ],
)
def test_achievable_is_near_what_was_measured(name: str, gpu: str, tp: int, ttft: float | None, tpot: float) -> None:
    """aiconfigurator 0.12.0, interpolated from measured kernels (vLLM 0.24, static): a prompt of 2,048, bf16."""
    times = pace(name, gpu, Layout(tp=tp))
    assert 1000 * times.step(1, 2048).achievable == pytest.approx(tpot, rel=0.2)
    assert ttft is None or 1000 * times.prefill(2048).achievable == pytest.approx(ttft, rel=0.2)


# No achievable figure is below a floor.


@pytest.mark.slow
@given(st.data())
def test_nothing_is_faster_than_the_floor(data: st.DataObject) -> None:
    """Any model, accelerator, layout, format, batch, prompt; with shares that leave no slack at all, too."""
    model = load(data.draw(st.sampled_from(names())))
    accelerator = hardware.load(data.draw(st.sampled_from(hardware.names())))
    assume({"bf16", "fp16"} & set(accelerator.peaks))
    if data.draw(st.booleans()):
        accelerator = replace(accelerator, calibration=PERFECT)
    form = data.draw(st.sampled_from(["bf16", "int4"]))
    chunk = data.draw(st.sampled_from([64, 1000, 8192]))
    kv = data.draw(st.sampled_from(["bf16", "fp8"]))
    sharding = Sharding(model)
    gpus = 1 if accelerator.link is None else data.draw(st.sampled_from([1, 2, 6, 8]))
    layout = data.draw(st.sampled_from([layout for layout in sharding.layouts(gpus)] or [ONE]))
    times = LayoutTime(model, sharding, layout, accelerator, engine(model, form, kv, chunk=chunk))
    prompt = data.draw(st.integers(1, 40_000))
    cached = data.draw(st.integers(0, prompt - 1)) if times.caching and not times.encodes else 0
    if not times.caching:
        prompt = request(prompt).on(times, prompt)[0]
    figures = [times.prefill(prompt, cached)]
    if times.caching:
        figures.append(times.step(data.draw(st.integers(1, 3000)), prompt, data.draw(st.integers(1, 9))))
    for figure in figures:
        assert 0 < figure.floor <= figure.achievable * (1 + 1e-9)


def test_an_encoders_prompt_is_not_its_decoders_too() -> None:
    """The decoder computes one token of a prompt, in the floor as well."""
    model, accelerator = load("t5-11b"), hardware.load("m1-max")
    times = LayoutTime(model, Sharding(model), ONE, accelerator, engine(model, "bf16", "bf16", chunk=64))
    for prompt in (61, 500):
        prefill = times.prefill(prompt)
        flops = model.ledger(1, 1, source=prompt).total("flops")
        assert prefill.floor <= prefill.achievable
        assert prefill.floor_bound == "compute" and prefill.floor * accelerator.peaks["fp16"] <= flops


# Chunks.


@pytest.mark.slow
def test_parts_of_chunks_add_up() -> None:
    for name in ("gemma-3-27b", "deepseek-v3", "jamba-v0.1", "gpt-oss-20b"):
        times = pace(name, "h200", Layout(tp=8), chunk=512)
        parts = times.prefill_parts(100_000, 160).values()
        assert sum(part.achievable for part in parts) == pytest.approx(times.prefill(100_000, 160).achievable, rel=1e-9)


@given(st.integers(0, 3000), st.lists(st.integers(0, 3000), max_size=3))
def test_a_series_with_bends(number: int, bends: list[int]) -> None:
    def term(i: int) -> Cost:
        return Cost(compute=1 + 0.25 * i + sum(max(0, i - bend) for bend in bends), memory=3 + i + 0.5 * i * i)

    cost = series(term, number)
    assert cost.compute == pytest.approx(sum(term(i).compute for i in range(number)), rel=1e-6)
    assert cost.memory == pytest.approx(sum(term(i).memory for i in range(number)), rel=1e-6)


def test_a_prompt_of_any_length_is_quick_to_time() -> None:
    calls = 0

    def term(i: int) -> Cost:
        nonlocal calls
        calls += 1
        return Cost(compute=3.0 + i)

    assert series(term, 10**9).compute == pytest.approx(3e9 + 10**9 * (10**9 - 1) / 2)
    assert calls == 4
    assert series(term, 0) == Cost()
    assert Cost(compute=1, memory=2, link=4, launch=2, host=10).spent == (1, 2, 4, 3)  # 3 s wait for the host


# Speculation.


def test_speculation_by_its_formula() -> None:
    assert SpeculativeDecoding(4, 0.8).expected == pytest.approx(sum(0.8**i for i in range(5)))
    assert SpeculativeDecoding(3, 1.0).expected == 4 and SpeculativeDecoding(3, 0.0).expected == 1
    plain = serving("llama-3.1-8b").chosen.tpot
    free = serving("llama-3.1-8b", draft_tokens=4, acceptance=0.8).chosen.tpot
    drawn = serving("llama-3.1-8b", draft_tokens=4, acceptance=0.8, draft=load("gpt2")).chosen.tpot
    never = serving("llama-3.1-8b", draft_tokens=4, acceptance=0.0).chosen.tpot
    assert plain and free and drawn and never
    step = pace("llama-3.1-8b").step(1, 2048, 5)
    assert free.achievable == pytest.approx(step.achievable / SpeculativeDecoding(4, 0.8).expected)
    proposed = pace("gpt2").step(1, 2048).achievable
    assert drawn.achievable == pytest.approx((step.achievable + 4 * proposed) / SpeculativeDecoding(4, 0.8).expected)
    assert free.achievable < drawn.achievable < plain.achievable < never.achievable
    once = serving(
        "llama-3.1-8b", draft_tokens=4, acceptance=0.8, draft=load("gpt2", {"drafting": "at-once"})
    ).chosen.tpot
    together = pace("gpt2").step(1, 2048, 4).achievable
    assert once and once.achievable == pytest.approx(
        (step.achievable + together) / SpeculativeDecoding(4, 0.8).expected
    )
    assert once.achievable < drawn.achievable


def test_a_draft_on_ranks_that_share_experts_is_as_busy_as_they() -> None:
    model, layout = load("deepseek-v3"), Layout(dp=2, ep=2)
    planner = Planner(model, hardware.load("h200"), engine(model, "fp8"), model.predictor)
    timer = Timer(planner, request(8192, 1024, acceptance=0.85, draft_tokens=1), 8192)
    step, drafted = (
        times.step(4, 8192, tokens, 0.5) for times, tokens in ((timer.layout_time(layout), 2), (timer.draft(layout), 1))
    )
    token = timer.token_time(layout, 4, 0.5, 8192)
    assert token.achievable == pytest.approx((step.achievable + drafted.achievable) / 1.85)
    assert token.floor == pytest.approx((step.floor + drafted.floor) / 1.85)
    assert drafted.achievable != timer.draft(layout).step(4, 8192, 1, 1.0).achievable
    single, drafted = timer.layout_time(layout).step(1, 1024, 2, 1 / 2), timer.draft(layout).step(1, 1024, 1, 1 / 2)
    first = timer.single_times(layout)[1]
    assert first and first.achievable == pytest.approx((single.achievable + drafted.achievable) / 1.85)


def test_a_draft_that_shares_no_experts_has_all_its_sequences() -> None:
    """However busy the copies are that share the experts of the model that it drafts for."""
    model, layout = load("deepseek-v3"), Layout(dp=2, ep=2)
    planner = Planner(model, hardware.load("h200"), engine(model, "fp8"), load("mixtral-8x7b"))
    timer = Timer(planner, request(8192, 1024, acceptance=0.85, draft_tokens=1), 8192)
    step, drafted = timer.layout_time(layout).step(4, 8192, 2, 0.5), timer.draft(layout).step(4, 8192, 1, 1.0)
    token = timer.token_time(layout, 4, 0.5, 8192)
    assert token.achievable == pytest.approx((step.achievable + drafted.achievable) / 1.85)


def test_a_shared_prefix_is_held_and_computed_once() -> None:
    model = load("llama-3.1-8b")
    unshared, shared = (
        Planner(model, hardware.load("h100-sxm"), engine(model, "bf16", prefix=prefix)) for prefix in (0, 3000)
    )
    per_token, prefix_tokens = 131072, 3000 // 16 * 16  # bytes per token; whole pages
    for n in (1, 2, 50):
        full, reduced = (planner.fullest(ONE, 4096, n).cache for planner in (unshared, shared))
        assert (full, reduced) == (n * 4096 * per_token, n * 4096 * per_token - (n - 1) * prefix_tokens * per_token)
    most = shared.max_concurrency(ONE, 4096)
    last = shared.fullest(ONE, 4096, most)
    assert last.free >= 0 and last.cache == prefix_tokens * per_token + most * (4096 - prefix_tokens) * per_token
    assert last.free < (4096 - prefix_tokens) * per_token + 10**6  # one more sequence and its logits
    assert request(8192, 4096, prefix=3000).cached(16) == prefix_tokens
    assert request(8192, 4096, Fraction(1, 2), prefix=3000).cached(16) == prefix_tokens  # its own hits are within it
    assert request(8192, 4096, Fraction(7, 8), prefix=3000).cached(16) == 3584
    # A window that has passed the prefix, and a state, share nothing of it.
    for name in ("D=256 L=2 h=4 F=512 V=64 window=64", "mamba-2.8b"):
        windowed = load(name)
        a, b = (Planner(windowed, hardware.load("h100-sxm"), engine(windowed, prefix=p)) for p in (0, 1024))
        assert a.fullest(ONE, 20000, 9).cache == b.fullest(ONE, 20000, 9).cache
    with pytest.raises(InputError, match="shared prefix is 5,000, expected at most the 4,096"):
        request(8192, 4096, prefix=5000)


# Answers that are the largest, smallest and best.


@pytest.mark.parametrize("seed", range(30))
def test_one_request_alone_is_never_slower_than_under_load(seed: int) -> None:
    draw = Random(seed)
    model = load(draw.choice(("llama-3.1-8b", "mixtral-8x7b", "gpt2", "qwen3-30b-a3b")))
    planner = Planner(model, hardware.load(draw.choice(("h100", "l40s", "l4"))), engine(model))
    prompt, answer = draw.choice((20, 500, 900)), draw.choice((1, 2, 20, 100))
    timer = Timer(planner, request(prompt + answer, prompt, answer=answer), prompt + answer)
    for layout in planner.layouts(draw.choice((1, 2, 4, 8))):
        if not planner.max_concurrency(layout, prompt + answer) or not timer.links_known(layout):
            continue
        single = timer.single_request(layout)
        if layout.sharing == 1:
            assert timer.steady(layout, 1).e2e == pytest.approx(single.e2e)
        loads = [timer.steady(layout, users) for users in (2, 3, 17, 100)]
        loads += [timer.steady(layout, 1, share * single.rate) for share in (0.01, 0.5, 2)]
        for state in loads:
            assert state.e2e >= single.e2e * (1 - 1e-9) and state.ttft >= single.ttft * (1 - 1e-9), layout
            assert not state.tpot or not single.tpot or state.tpot >= single.tpot * (1 - 1e-9), layout


def test_a_speculative_step_and_its_gain_are_on_screen() -> None:
    argv = ("llama-3.1-70b", "--gpu", "h100:8", "--concurrency", "8")
    draft = ("--draft", "4:llama-3.2-1b", "--acceptance", "80%")
    speed, plain = run.data(*argv, *draft)["speed"], run.data(*argv)["speed"]
    guess, tpot = speed["speculation"], speed["steady"]["tpot_s"]["mean"]
    assert guess["plain_tpot_s"] == plain["steady"]["tpot_s"]["mean"] > tpot
    assert guess["step_s"] == pytest.approx(speed["achievable"]["tpot_s"] * guess["expected_tokens_per_step"])
    text = (
        "speculation: 4 proposed by llama-3.2-1b, 80 % accepted, 3.36 tokens per step "
        f"of {1000 * guess['step_s']:.1f} ms; "
        f"TPOT is {guess['plain_tpot_s'] / tpot:.2f} × as fast as without it ({1000 * guess['plain_tpot_s']:.1f} ms)"
    )
    assert text in " ".join(run(*argv, *draft)[1].split()) and "speculation" not in run(*argv)[1]


def test_costs_are_gpu_time() -> None:
    """A GPU-hour of 3.6 is a thousandth a second; the answers bear all of it, prompt tokens the time they take."""
    priced = serving("llama-3.1-70b", gpus=4, concurrency=8, price=3.6)
    point = priced.chosen
    assert point.layout.gpus == 4
    request_cost = 1e-3 * 4 / point.steady.rate  # of a request
    assert point.cost_per_million_output(3.6) == pytest.approx(1e6 * request_cost / 1024)
    whole = priced.layout_time.prefill_rate(1024)
    assert point.cost_per_million_input(3.6) == pytest.approx(1e6 * 1e-3 * 4 / whole)
    assert point.cost_per_million_input(3.6) == pytest.approx(1e6 * request_cost * point.steady.utilisation / 1024)


# What is not known or makes no sense.


def test_what_is_needed_and_not_known_is_refused() -> None:
    with pytest.raises(InputError, match="m4-pro: its link is not known"):
        pace("gpt2", "m4-pro", Layout(tp=2))
    with pytest.raises(InputError, match="its peak is not known"):
        pace("gpt2", "24GB@600GB/s").step(1, 8)
    assert pace("gpt2", "rtx-4090").step(1, 8).floor > 0


def test_a_deployment_without_a_speed_still_has_its_memory() -> None:
    argv = ("gpt2", "--gpu", "24GB@600GB/s", "--context", "1k")
    code, out, err = run(*argv)
    assert code == 0 and "Speed" not in out and "no speed: 24GB@600GB/s: its peak is not known" in err
    code, out, _ = run(*argv, "--json")
    data = json.loads(out)
    assert data["speed"] is None and data["fits"] and any("no speed" in note for note in data["notes"])


def test_by_a_bandwidth_alone_one_sequence_has_a_speed() -> None:
    """Both commands say the same, and arithmetic that decides nothing leaves it as it is."""
    card = "16GB@500GB/s"
    _, _, err = run("llama-3.1-8b", "--gpu", f"{card}:1", "--weights", "Q8_0", "--context", "8k")
    assert f"{card}@60TFLOPS says it" in err
    (tokens_per_s,) = re.findall(r"by its bandwidth alone one sequence decodes ([\d.]+) tokens/s$", err, re.M)
    for also in (card, f"{card}@9000TFLOPS"):
        (row,) = txcalc.fit("llama-3.1-8b", gpu=also, weights="Q8_0", context=8192).to_dict()["rows"]
        assert row["tokens_per_s"] == pytest.approx(float(tokens_per_s), rel=0.005)
    line = ("llama-3.1-8b", "--gpu", "rtx-3060:1", "--weights", "Q4_K_M", "--gpu-layers", "16", "--context", "8k")
    _, _, err = run(*line, "--engine", "llama.cpp", "--ram", "64GB@80GB/s")  # prompts need the host's peak
    (tokens_per_s,) = re.findall(r"no speed: .*; one sequence decodes ([\d.]+) tokens/s$", err, re.M)
    _, out, _ = run(*line, "--engine", "llama.cpp", "--ram", "64GB@80GB/s@9000TFLOPS", "--json")
    assert json.loads(out)["speed"]["achievable"]["tpot_s"] == pytest.approx(1 / float(tokens_per_s), rel=0.005)


# The report.


def test_modules_that_are_called_one_by_one_fuse_nothing() -> None:
    """Each module starts its own kernels, every chosen expert too; what fused kernels keep on chip is written and read
    again, and rotary positions are several passes over q and k."""
    card, starts = hardware.load("h100-sxm"), hardware.load("h100-sxm").efficiency.launch_s
    model = load("D=512 L=3 h=8 h_kv=2 F=1024 V=1000")
    form, stage = engine(model, "bf16"), PipelineStage(0, 1, model.root)
    work = model.workload(2, 256, 0, logits="last")
    fused, eager_costs = (RankTime(stage, ONE, card, form, eager).parts(work) for eager in (False, True))
    assert eager_costs["other"].launch - fused["other"].launch == pytest.approx(3 * 2 * starts)  # the sums of a layer
    assert eager_costs["norm"] == fused["norm"]
    grown = eager_costs["feed_forward"].memory - fused["feed_forward"].memory
    on_chip = 3 * 2 * (2 * 256 * 1024) * 2  # act(gate) of each layer, written and read, 2 bytes each
    assert grown == pytest.approx(on_chip / card.bandwidth / card.efficiency.memory)
    turned = eager_costs["attention"].memory - fused["attention"].memory
    passes = 4 * 3 * 2 * 2 * 256 * (8 + 2) * 64 * 2  # q and k of each layer read and written 4 times more, 2 bytes each
    assert turned == pytest.approx(passes / card.bandwidth / card.efficiency.memory)
    mixture = load("D=512 L=3 h=8 h_kv=2 F=1024 V=1000 E=16 k=2")
    slow_host = replace(card, calibration=card.efficiency.overlaid({"host_s": 1.0}, {"host_s": "here"}))
    stage, step = PipelineStage(0, 1, mixture.root), mixture.workload(4, 1, 100, logits="last")
    timer = RankTime(stage, ONE, slow_host, engine(mixture, "bf16"), eager=True, issued=True)
    # Of 16 experts 4 tokens choose 8, each with gate, up, activation and down.
    assert timer.parts(step)["experts"].host == 3 * 8 * 4


@pytest.mark.slow
def test_several_are_one_table() -> None:
    argv = ["llama-3.1-8b", "deepseek-v3", "--gpu", "h100-sxm:8", "--gpu", "l4:3", "--price", "2"]
    code, out, err = run(*argv)
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    assert "deepseek-v3 on h100-sxm" in err and "8 × h100-sxm" in out
    rows = run.data(*argv)["deployments"]
    assert [row["model"]["name"] for row in rows] == ["llama-3.1-8b"] * 2 + ["deepseek-v3"] * 2
    single = run.data("llama-3.1-8b", "--gpu", "l4:3", "--price", "2")
    single["times_cheapest"] = rows[1]["times_cheapest"]
    assert rows[1] == {key: value for key, value in single.items() if key != "schema"}
    assert [row["fits"] for row in rows] == [True, True, False, False]
    assert run("deepseek-v3", "--gpu", "l4", "--gpu", "l40s:2", "--tp", "2", "--pp", "1", "--dp", "1")[0] == 1
    code, out, err = run("gpt2", "llama-3.1-8b", "--gpu", "l4:2", "--tp", "2", "--price", "1", "--context", "1k")
    assert code == 0 and out.count("2 × l4") == 2
    code, out, err = run("gpt2", "llama-3.1-8b", "--gpu", "l4:3", "--tp", "3", "--json")
    assert code == 0 and json.loads(out)["deployments"][1]["refused"].startswith("layout")  # 32 heads over 3
    code, out, err = run(
        "gpt2", "--gpu", "24GB@1TB/s@165TFLOPS:2", "--gpu", "l4:2", "--tp", "2", "--price", "1", "--dp", "1"
    )
    assert code == 0 and "gpt2 on 24GB@1TB/s@165TFLOPS: no speed: 24GB@1TB/s@165TFLOPS: its link is not known" in err


# Links have a place.


def link_seconds(gpu: str, layout: Layout, name: str = "llama-3.1-70b") -> tuple[float, float]:
    """Seconds of the transfers of a prefill of 2,048 tokens: least, and as reached without latency."""
    collectives = pace(name, gpu, layout).prefill_parts(2048)["collectives"]
    return collectives.least_link, collectives.link


def test_a_ring_over_two_nodes_is_as_fast_as_their_network_cards() -> None:
    """Eight cards of 50 GB/s are less than a link of 450: 161 all-reduces pass them. At least half of the logits
    has to, less than what the link carries."""
    message, logits = 2048 * 8192 * 2, 128_256 * 2
    least, reached = link_seconds("h100-sxm", Layout(tp=16))
    assert least == pytest.approx(161 * message / (8 * 50e9) + logits * 15 / 16 / 450e9, rel=1e-9)
    reduced, gathered = (size * 15 / 16 / (8 * 50e9) / 0.82 for size in (2 * message, logits))
    starts = 161 * (14e-6 + 2 * (7 * 1.25e-6 + 8.5e-6)) + 14e-6 + 13 * 1.9e-6 + 2 * 4e-6  # a tree's, and a ring's
    assert reached == pytest.approx(161 * reduced + gathered + starts, rel=1e-9)
    rack = (161 * message + logits * 15 / 16) / 900e9
    assert link_seconds("gb200", Layout(tp=16))[0] == pytest.approx(rack, rel=1e-9)


@pytest.mark.parametrize("size", [2**16, 2**20])
def test_deploy_and_train_differ_by_the_library_of_a_link_alone(size: int) -> None:
    """An all-reduce within a node: the engine's own takes 4.3 and 12.4 µs, NCCL 31.8 and 36.5; between nodes both are
    NCCL's."""
    h100 = hardware.load("h100-sxm")
    for layout, group, libraries in (
        (Layout(tp=8), Group(8, 8), ("all-reduce of the engine", "NCCL")),
        (Layout(tp=16), Group(16, 8), ("NCCL", "NCCL")),
    ):
        (rank,) = pace("llama-3.1-70b", layout=layout).ranks
        message = ring("all_reduce", group, size)
        served = rank.message_cost("all_reduce", "tp", size, message.sent).link
        trained = Kernels(Machine.of(h100)).transfer(message)
        assert (rank.kernels.library.source(h100, "all_reduce", group).library, "NCCL") == libraries
        assert (served == trained) == (libraries[0] == "NCCL")
        if libraries[0] != "NCCL":
            expected = {2**16: (4.3e-6, 31.8e-6), 2**20: (12.4e-6, 36.5e-6)}[size]
            assert (served, trained) == pytest.approx(expected, rel=0.01)
    sources = (rank.kernels.library.source(hardware.load("l40s"), "all_reduce", Group(n, 8)) for n in (2, 4))
    assert [source.library for source in sources] == ["all-reduce of the engine", "NCCL"]  # over PCIe


def test_a_node_without_a_network_is_refused_where_it_is_needed() -> None:
    isolated = replace(hardware.load("h100-sxm"), link_between=None)
    assert pace("llama-3.1-8b", isolated, Layout(tp=8)).prefill(64).achievable > 0
    with pytest.raises(InputError, match="its link between nodes is not known"):
        pace("llama-3.1-8b", isolated, Layout(tp=16))


def test_older_flash_kernels_are_as_fast_as_was_measured() -> None:
    """Dao 2023: of the peak of an A100, and of an H100, which lacks their newer instructions."""
    for gpu, share in (("a100-80gb-sxm", 1.0), ("h100-sxm", NEWER)):
        assert Kernels(Machine.of(hardware.load(gpu)), flash="flash2").flash == pytest.approx(FLASH["flash2"] * share)
