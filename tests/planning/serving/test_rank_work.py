"""What a rank reads, computes and sends in a pass, leaf by leaf."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from tiny import TINY

from txcalc import hardware, load
from txcalc.planning.gradients import flops_per_score, scores as scored
from txcalc.planning.layout import Layout
from txcalc.planning.machine import Kernels, Machine
from txcalc.planning.parallelism import Sharding
from txcalc.planning.serving.deployment import Planner
from txcalc.planning.serving.engine import engine
from txcalc.planning.serving.layout_time import LayoutTime
from txcalc.planning.serving.rank_work import RankWork
from txcalc.planning.training import Recipe
from txcalc.planning.training.step import StepTimer
from txcalc.sources import build

FOUR_LAYERS = "D=64 L=4 h=8 F=96 V=250"

APART = load(FOUR_LAYERS, {"attention.d_v": 4})

ALIKE = APART.set({"shared_layers": True})

CARD = hardware.load("h100-sxm")


@pytest.mark.parametrize("layout", [Layout(), Layout(tp=2), Layout(pp=2)], ids=str)
@pytest.mark.parametrize("weights", ["bf16", "fp8"])
def test_layers_that_share_weights_are_served_as_others(layout: Layout, weights: str) -> None:
    times, pages = [], []
    for model in (APART, ALIKE):
        planner = Planner(model, CARD, engine(model, weights))
        pace = LayoutTime(model, planner.sharding, layout, CARD, planner.engine)
        times.append((pace.step(3, 100).achievable, pace.prefill(50).achievable))
        pages.append([rank.pages_bytes(100) for rank in planner.ranks(layout)])
    assert times[0] == pytest.approx(times[1], rel=1e-12) and pages[0] == pages[1]


def test_an_adapter_of_layers_that_share_weights_is_one() -> None:
    """Its kernels start in every layer."""
    costs = []
    for model in (APART, ALIKE):
        how = engine(model, adapters=(3, 8))
        cost = LayoutTime(model, Sharding(model, serving=True), Layout(), CARD, how).decode_parts(1, 9)["adapters"]
        (rank,) = Planner(model, CARD, how).ranks(Layout())
        costs.append((cost.launch, rank.adapters_bytes))
    assert costs[0] == (costs[1][0], 4 * costs[1][1]) and costs[1][0] > 0


@pytest.mark.parametrize("name", ["zamba", "zamba2"])
def test_weights_of_another_layer_are_read_where_it_computes(name: str) -> None:
    """Those that a layer shares with an earlier one are held there, and read in both."""
    model, layout = build(TINY[name], name), Layout()
    work = RankWork(Sharding(model, serving=True).stages(layout)[0], layout, engine(model))
    work.loads(model.workload())
    read = {leaf.entry.path: leaf.weights for leaf in work.leaves}
    entries = {entry.path: entry for entry in model.ledger()}
    borrowed = [path for path, entry in entries.items() if entry.leaf.matrix and not entry.params]
    assert {"q", "down"} <= {path.rpartition(".")[2] for path in borrowed}
    for path in borrowed:
        if path.startswith("layers"):
            d_in, d_out = entries[path].leaf.matrix or (0, 0)
            bias = d_out * ("feed_forward" in path and name == "zamba2")
            assert read[path] == 2 * (d_in * d_out + bias), path


@pytest.mark.parametrize(
    ("name", "leaf", "scores", "flops"),
    [
        ("llama", "core", 4 * 2 * 24 * 24, 2 * (8 + 8)),
        ("deepseek-v3", "core", 4 * 2 * 24 * 24, 2 * (12 + 6)),
        # A query's one vector of weights, of as many elements as there are heads, and not of as many as there are keys.
        ("deepseek-v3.2", "indexer.core", 8 * 2 * 24 * 24, 2 * (6 + 1)),
        ("chinchilla", "core", 4 * 2 * 24 * 24, 2 * (8 + 8 + 8)),  # and of a projected distance for each key
        # Content, values, and each of both with 12 relative positions.
        ("deberta", "core", 4 * 2 * 24 * 24, 2 * (8 + 8) + 2 * 2 * 8 * Fraction(12, 24)),
    ],
)
def test_what_one_score_costs(
    name: str, leaf: str, scores: int, flops: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two sequences of 24 tokens, in a server's pass and in a training step; FLOPs add up."""
    model, layout = build(TINY[name], name), Layout()
    entry = next(e for e in model.ledger(2, 24) if e.path.endswith(f"attention.{leaf}"))
    assert scored(entry.operations) == scores and flops_per_score(entry.operations) == pytest.approx(float(flops))
    work = model.workload(2, 24)._replace(tokens=96)
    passes = RankWork(Sharding(model, serving=True).stages(layout)[0], layout, engine(model))
    (load, *_) = (job for job in passes.loads(work) if passes.leaves[job.leaf].entry.path.endswith(f"attention.{leaf}"))
    assert load.core and load.core.score * load.core.scores * load.runs == pytest.approx(load.core.dense)
    score_flops = list[float]()

    def core(*arguments: Any, backward: bool = False) -> float:
        score_flops.append(arguments[5])
        return 0.0

    monkeypatch.setattr(Kernels, "core", core)
    recipe = Recipe(tokens=24, micro_batch=2)
    assert StepTimer(model, recipe, Machine.of(hardware.load("h100-sxm"))).works
    assert any(score == pytest.approx(float(flops)) for score in score_flops)


def test_the_first_token_of_a_cached_prompt_is_no_sooner_for_chunks() -> None:
    """The floor is of 3,000 tokens at once after 1,000 cached ones, in however many chunks they come."""
    model = load("llama-3.1-8b")
    sharding, card = Sharding(model), hardware.load("h100-sxm")
    whole, cut = (LayoutTime(model, sharding, Layout(), card, engine(model, chunk=size)) for size in (3000, 512))
    assert whole.prefill(4000, 1000).floor == pytest.approx(cut.prefill(4000, 1000).floor, rel=1e-12)
