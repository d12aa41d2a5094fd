"""What is chosen of a training run: layouts that are searched, what a recipe cannot be, limits, a step by part."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from paths import DATA
from test_train_exact import DECODER, card, recipe_of
from tiny import TINY

import txcalc
from txcalc import hardware, load
from txcalc.errors import InputError
from txcalc.planning.layout import read_layout
from txcalc.planning.machine import CONTEXT, Machine
from txcalc.planning.training import Layout, Recipe, in_flight, memory, order, timeline
from txcalc.planning.training.answer import Terms, Training, fewest_replicas, tokens_of
from txcalc.planning.training.exchange import StageWeights
from txcalc.planning.training.frameworks import FRAMEWORKS
from txcalc.planning.training.layer_tables import LayerTables
from txcalc.planning.training.memory import rank_columns
from txcalc.planning.training.recipe import parse_options, parse_recipe
from txcalc.planning.training.search import Search, Searched, fewest_gpus, resolve_recipe
from txcalc.planning.training.stages import Pipeline
from txcalc.planning.training.step import StepTimer
from txcalc.planning.training.timeline import PieceTime
from txcalc.sources import build

EXPERTS = "D=64 L=4 h=8 h_kv=4 F=96 V=250 E=4 k=2"
ONE = Machine.of(replace(card(peak=1, bandwidth=1), link=1, link_between=1), node=4)


def searching(source: Any = DECODER, gpus: int = 8, batch: int = 16, **base: Any) -> Search:
    recipe = Recipe(**{"tokens": 32, **base})
    return Search(load(source), recipe, ONE, gpus, batch, frozenset(base) & {"framework"})


# Which layouts there are.


@pytest.mark.parametrize("tokens", [30, 32_767, 32_768, 32_772])
@pytest.mark.parametrize("gpus", [1, 6, 16])
@pytest.mark.parametrize(("source", "stages"), [(DECODER, 4), (EXPERTS, 4), ("t5-small", 1)])
def test_all_layouts_are_searched(source: str, stages: int, gpus: int, tokens: int) -> None:
    """Of all numbers those that may be: tp within a node of four, no more stages than layers and one of what is not
    cut, cp of long sequences; experts on all of tp or on none of them by themselves."""
    expected = set()
    for tp, pp, cp, ep in product(range(1, gpus + 1), repeat=4):
        if gpus % (tp * pp * cp) or tp > 4 or pp > stages or (cp > 1 and (tokens < 32_768 or cp not in (2, 4, 8, 16))):
            continue
        if ep > 1 and (source != EXPERTS or (gpus // pp) % ep or ep < tp):
            continue
        rest, sp = gpus // (tp * pp * cp), tp if (tokens // cp) % tp == 0 else 1
        base = Layout(tp=tp, sp=sp, pp=pp, cp=cp, ep=ep)
        expected |= {(base.replace(fsdp=rest), "fsdp2"), (base.replace(dp=rest), "megatron")}
    layouts = list(searching(source, gpus, tokens=tokens).layouts())
    assert len(layouts) == len(set(layouts)) and set(layouts) == expected
    held_to = list(searching(source, gpus, tokens=tokens, framework="nanotron").layouts())
    assert set(held_to) == {(layout, "nanotron") for layout, framework in expected if framework == "megatron"}


@pytest.mark.parametrize(
    ("layout", "framework"),
    [
        (Layout(fsdp=8), "fsdp2"),
        (Layout(dp=8), "megatron"),
        (Layout(tp=8), "megatron"),
        (Layout(pp=2, fsdp=4), "fsdp2"),
        (Layout(pp=2, dp=4), "megatron"),
        (Layout(pp=4, dp=2), "nanotron"),
        (Layout(pp=4, dp=2), "deepspeed"),
        (Layout(dp=8), "deepspeed"),
        (Layout(tp=2, pp=4), "megatron"),
    ],
)
def test_all_recipes_of_a_layout_are_searched(layout: Layout, framework: str) -> None:
    """Of a step of 16 sequences: micro-batches that divide it, ZeRO where copies share (2 and 3 of DeepSpeed without
    stages), pieces of a rank where the schedule and four layers allow them, as many micro-batches as that needs."""
    expected = set()
    least = {"fsdp2": layout.pp, "nanotron": max(1, layout.pp - 1)}.get(framework, 1)
    for micro, pieces, zero, recompute in product((1, 2, 4, 8, 16, 32), (1, 2, 4), range(4), ("none", "blocks")):
        batches, rest = divmod(16, micro * layout.copies)
        several = layout.pp > 1 and framework == "megatron" and batches % layout.pp == 0 and layout.pp * pieces <= 4
        if rest or (pieces > 1 and not several) or (zero and (framework == "fsdp2" or layout.dp == 1)):
            continue
        if zero > 1 and (framework != "deepspeed" or layout.pp > 1):
            continue
        if batches >= (layout.pp if pieces > 1 else least):
            schedule = "interleaved" if pieces > 1 else "1f1b"
            expected.add((layout.replace(vpp=pieces), micro, batches, zero, recompute, schedule, framework))
    searched = [
        (r.layout, r.micro_batch, r.accumulation, r.zero, r.recompute, r.schedule, r.framework)
        for r in searching().recipes(layout, framework)
    ]
    assert len(searched) == len(set(searched)) and set(searched) == expected


def test_what_was_asked_for_is_all_that_is_searched() -> None:
    base = Recipe(tokens=32, zero=1, recompute="core", micro_batch=2, schedule="gpipe", optimizer="lion")
    search = Search(load(DECODER), base, ONE, 8, 16, frozenset({"zero", "recompute", "micro_batch", "schedule"}))
    (recipe,) = search.recipes(Layout(pp=2, dp=4), "nanotron")
    assert recipe == replace(base, layout=Layout(pp=2, dp=4), accumulation=2, framework="nanotron")
    for layout in (Layout(tp=2, pp=4), Layout(pp=2, fsdp=4)):  # shares nothing, or as the third stage does
        assert not list(search.recipes(layout, "nanotron" if layout.fsdp == 1 else "fsdp2"))
    assert not list(search.recipes(Layout(pp=2, dp=4), "megatron"))  # which has no GPipe
    search.base = replace(base, zero=3)
    assert list(search.recipes(Layout(pp=2, fsdp=4), "fsdp2")) and not list(search.recipes(Layout(dp=8), "nanotron"))
    search.base = replace(base, optimizer="muon")  # whole matrices
    assert not list(search.recipes(Layout(pp=2, dp=4), "nanotron"))


# What an estimate puts together.


@pytest.mark.parametrize("recompute", ["none", "blocks", "core", "every:2"])
@pytest.mark.parametrize(
    ("source", "changes"),
    [
        (DECODER, {}),
        (DECODER, {"layout": Layout(fsdp=2), "micro_batch": 3}),
        (DECODER, {"layout": Layout(tp=2, sp=2, dp=2), "framework": "megatron", "zero": 1, "micro_batch": 2}),
        (DECODER, {"layout": Layout(dp=2), "framework": "deepspeed", "zero": 2}),
        (EXPERTS, {"layout": Layout(fsdp=2, ep=2), "accumulation": 2}),
        (EXPERTS, {"layout": Layout(tp=2, sp=2), "framework": "megatron"}),
        ("t5-small", {"micro_batch": 2}),
    ],
)
def test_an_estimate_without_a_pipeline_is_exact(source: str, changes: dict[str, Any], recompute: str) -> None:
    """To the byte, and in seconds but for passes over whole weights that the optimizer does not need."""
    recipe = Recipe(tokens=32, recompute=recompute, **changes)
    model, plan = load(source), memory(load(source), recipe)
    estimate = LayerTables(model, ONE).estimate(recipe)
    assert estimate and estimate.bytes == plan.fullest.allocated
    timer = StepTimer(model, recipe, ONE)
    weights = StageWeights.of(timer.pipeline, timer.pipeline.pieces)
    swept = timer.passes_over_weights(timer.pipeline.pieces, weights)
    assert estimate.seconds == pytest.approx(timer.step(plan).seconds - swept, rel=1e-9)


@pytest.mark.parametrize("source", [DECODER, EXPERTS, DECODER + " tied"])
@pytest.mark.parametrize(("pp", "vpp"), [(2, 1), (3, 1), (4, 1), (2, 2)])
def test_stages_share_out_all_weights(source: str, pp: int, vpp: int) -> None:
    """The last stage has its own copy of a tied table."""
    recipe = Recipe(Layout(pp=pp, vpp=vpp), tokens=32, accumulation=4)
    tables = LayerTables(load(source), ONE)
    table = tables.layer_table(recipe)
    assert table
    stages = [tables.stage_table(recipe, table, number) for number in range(pp)]
    assert sum(stage.layers for stage in stages) == 4
    learning = sum(stage.weights.shared.learning + stage.weights.experts.learning for stage in stages)
    assert learning == tables.model.params + 250 * 64 * tables.tied


@pytest.mark.parametrize(("pp", "vpp", "batches"), [(1, 1, 3), (2, 1, 2), (4, 1, 9), (2, 2, 4), (4, 2, 8), (3, 4, 6)])
def test_the_bubble_of_equal_stages_is_the_simulated_one(pp: int, vpp: int, batches: int) -> None:
    schedule = "interleaved" if vpp > 1 else "1f1b"
    recipe = Recipe(Layout(pp=pp, vpp=vpp), accumulation=batches, schedule=schedule, framework="megatron")
    piece = PieceTime(1.0, 1.5, 0.5, 0.0)
    simulated = timeline.simulate(recipe, [piece] * pp * vpp).seconds
    stage = vpp * piece.seconds
    assert timeline.equal_stages(recipe, stage, stage, 0.0, (0.0, 0.0)) == pytest.approx(simulated)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb", "zbv", "dualpipev"])
def test_micro_batches_in_flight_are_counted_to_the_end(schedule: str) -> None:
    """The schedule is read for twice as many as there are stages alone: no more are in flight in all its actions."""
    for stages, batches in ((2, 12), (3, 12), (4, 24)):
        vpp = 2 if schedule == "interleaved" else 1
        recipe = Recipe(Layout(pp=stages, vpp=vpp), accumulation=batches, schedule=schedule)
        for stage in range(stages):
            running, most = Counter[int](), 0
            for kind, piece, _ in order(schedule, stages, stage, batches, recipe.pieces):
                running[piece] += {"F": 1, "I": 0}.get(kind, -1)
                most = max(most, running.total())
            assert max(map(sum, in_flight(recipe, stage))) == most, (stages, batches, stage)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"zero": 3, "layout": "dp=8"}, "zero is 3, expected one of 0, 1 with --framework megatron (dee"),
        ({"zero": 3, "layout": "fsdp=8"}, "zero is 3, expected 0 with --framework fsdp2 (fsdp=N is ZeRO-3)"),
        ({"recipe": "frozen=bf16", "layout": "fsdp=8"}, "frozen is 'bf16', expected none: the model has no a"),
        ({"recipe": "adapter=fp32", "layout": "fsdp=8"}, "adapter is 'fp32', expected none: the model has no"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        txcalc.train("gpt2", "h100-sxm:8", **options)


@pytest.mark.parametrize(
    ("name", "what"),
    [("gemma3n", "gates that are cut by their mean and")],
)
@pytest.mark.parametrize("framework", ["fsdp2", "megatron"])
def test_what_is_taken_of_all_channels_is_not_counted_over_tp(name: str, what: str, framework: str) -> None:
    model = build(TINY[name], name)
    for tp in (1, 2):
        notes = memory(model, Recipe(Layout(tp=tp), tokens=32, framework=framework)).notes
        uncounted = [note for note in notes if note.startswith(f"tp: {what}") and "not counted" in note]
        assert len(uncounted) == tp - 1


# What a recipe is, and what it cannot be.

REFUSED: dict[str, Any] = tomllib.loads((DATA / "training" / "refusals.toml").read_text("utf-8"))


@pytest.mark.parametrize("row", REFUSED["recipes"], ids=str)
def test_what_a_recipe_cannot_be(row: dict[str, Any]) -> None:
    words, faults = row.get("words", ""), "; ".join(map(str, Recipe(**recipe_of(row)).faults()))
    assert words in faults and bool(words) == bool(faults)


@pytest.mark.parametrize(
    ("layout", "schedule", "framework"),
    [
        ("pp=2,dp=2", "1f1b", "megatron"), ("pp=2,dp=2", "zbv", "fsdp2"), ("pp=2,vpp=2", "interleaved", "megatron"),
        ("pp=2,vpp=2", "zb", "fsdp2"), ("fsdp=2", None, "fsdp2"), ("tp=1", None, "fsdp2"), ("tp=2", None, "megatron"),
    ],
)  # fmt: skip
def test_a_framework_that_has_the_schedule_is_taken(layout: str, schedule: str | None, framework: str) -> None:
    options = {"schedule": schedule} if schedule else {}
    assert resolve_recipe(read_layout(layout), None, 4, 64, options).framework == framework
    if not schedule:
        with pytest.raises(InputError, match="--schedule is 'gpipe', expected none where pp = 1"):
            resolve_recipe(read_layout(layout), None, 4, 64, {"schedule": "gpipe"})


@pytest.mark.parametrize(
    ("changes", "whole", "split"),
    [
        ({}, 6 + 24 + 6, 6 + 64 + 6),  # widened, passes in fp32, narrowed
        ({"compute": "fp32"}, 24, 64),
        ({"loss_parallel": False}, 36, 36),
        ({"fused_loss": True}, 6, 6),
        ({"framework": "megatron"}, 52, 52),
        ({"framework": "megatron", "compute": "fp32"}, 40, 40),
        ({"framework": "nanotron"}, 52, 52),
        ({"framework": "deepspeed"}, 36, 52),
    ],
)
def test_what_the_loss_moves_of_a_logit(changes: dict[str, Any], whole: int, split: int) -> None:
    assert [Recipe(Layout(tp=tp), **changes).loss_bytes for tp in (1, 2)] == [whole, split]


def test_a_recipe_s_own_numbers() -> None:
    recipe = Recipe(Layout(tp=2, cp=4, fsdp=3, dp=5), 7, 11, 4096)
    assert (recipe.global_batch, recipe.local_tokens, recipe.shards) == (7 * 11 * 15, 1024, 12)
    assert Recipe(Layout(cp=4)).shards == 4  # of FSDP over them
    assert Recipe(Layout(cp=4), framework="megatron").shards == 1
    assert [Recipe(frozen=form).packed for form in (None, "bf16", "int8", "nf4", "nf4-dq")] == [0, 0, 1, 1, 1]
    assert Recipe(fused_loss=True).logit_bytes == (2, 2) and Recipe().logit_bytes == (4, 12)
    read = parse_recipe("", Layout(cp=2, tp=4, sp=4))
    assert read == Recipe(Layout(cp=2, tp=4, sp=4), tokens=32 * 2 * 4)
    assert parse_options("tokens=999999999,eager=on,stages=3+4") == {
        "tokens": 999_999_999,
        "eager": True,
        "stages": (3, 4),
    }
    for text in ("tokens=1000000000", "stages=3+x", "eager=yes", "toknes=3"):
        with pytest.raises(InputError):
            parse_options(text)


# Limits, and the whole answer.


@pytest.mark.slow
def test_the_fewest_is_the_first_that_fits() -> None:
    """Of divisors, or of multiples where all of the recipe's do not suffice."""
    model, recipe = load(DECODER), Recipe(Layout(fsdp=8), tokens=32)
    sizes = {n: memory(model, replace(recipe, layout=Layout(fsdp=n))).fullest.reserved for n in range(1, 19)}
    single = replace(recipe, layout=Layout(fsdp=1))
    for size in (sizes[n] for n in (1, 2, 5, 8, 9, 18)):
        first = next(n for n in sizes if sizes[n] <= size)
        assert fewest_replicas(model, single, size) == Layout(fsdp=first)
        replicas = (*(1, 2, 4), *range(8, 1000, 8))
        assert fewest_replicas(model, recipe, size) == Layout(fsdp=next(n for n in replicas if n >= first))
    assert fewest_replicas(model, recipe, 10_000) is None


@pytest.mark.parametrize("node", [8, 6, None])
def test_the_fewest_gpus_are_parts_of_a_node_or_whole_ones(node: int | None) -> None:
    """Every number where a search would succeed, with the number before it; what grows no more ends the search."""

    class Known:
        def __init__(self, number: int, least: int, floor: int = 0) -> None:
            self.number, self.min_gpus, self.floor = number, least, floor

        def run(self, tell: object, given: bool, enough: int = 6) -> Searched:
            assert not given
            size = max(self.floor, 1000 * self.min_gpus // self.number)
            best: Any = SimpleNamespace(plan=SimpleNamespace(fullest=SimpleNamespace(reserved=size)), gpus=self.number)
            return Searched((best,), 1, 1, "" if self.number >= self.min_gpus else "no")

    whole = node or 8
    numbers = [n for n in (1, 2, 4) if n < whole] + list(range(whole, 40 * whole, whole))
    for least in range(1, 20 * whole):
        search = fewest_gpus(lambda number, least=least: Known(number, least), node)  # type: ignore
        enough = next(n for n in numbers if n >= least)
        assert search.best[0].gpus == enough  # type: ignore[attr-defined]
        assert search.too_few == ([0, *numbers][numbers.index(enough)])
    never = fewest_gpus(lambda number: Known(number, 10**9, 5 * 10**11), node)  # type: ignore[arg-type, return-value]
    assert never.refused and never.best[0].gpus == 4  # type: ignore[attr-defined]


def test_where_twice_as_many_gpus_have_no_layout_the_search_ends() -> None:
    def of(number: int) -> Any:
        def run(*_: object, **__: object) -> Searched:
            if number == 2:
                raise InputError("train", ["no layout"])
            best: Any = SimpleNamespace(plan=SimpleNamespace(fullest=SimpleNamespace(reserved=1000 // number)))
            return Searched((best,), 1, 1, "none of them" if number < 4 else "")

        return SimpleNamespace(run=run, min_gpus=1)

    search = fewest_gpus(of, 8)
    assert search.refused == "none of them; on 2 GPUs: train: no layout"


def test_where_nothing_is_left_to_mend_nothing_is_said_of_it() -> None:
    small = replace(ONE, accelerator=replace(ONE.accelerator, memory=1))
    search = Search(load(DECODER, {"lora.rank": 4}), Recipe(tokens=1, frozen="nf4"), small, 1, 1)
    assert search.run(given=False).refused.endswith(" KiB)")
    assert search.run().refused.endswith(' KiB). Try more GPUs (--gpu without ":1" finds the fewest)')


@pytest.mark.parametrize(("reserved", "fits"), [(79, True), (80, True), (81, False)])
def test_memory_that_is_just_enough_fits(reserved: int, fits: bool) -> None:
    machine, plan = Machine.of(replace(card(), memory=80 + CONTEXT)), SimpleNamespace()
    plan.fullest = SimpleNamespace(reserved=reserved)
    arguments: Any = (load(DECODER), Recipe(), machine, plan, None, "", None, False, (), None, 1, 1, None)
    assert Training(*arguments).fits == fits


def test_accelerators_that_fit_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the fastest; of those whose speed is not known the largest."""
    from txcalc.planning.training import answer

    cards = {"small": (70, 9.0), "large": (90, 1.0), "fast": (80, 2.0), "slow": (81, None), "least": (79, None)}
    accelerators = {name: replace(card(), name=name, vendor="", memory=space) for name, (space, _) in cards.items()}

    def timer(model: Any, recipe: Any, machine: Machine) -> Any:
        speed = cards[machine.accelerator.name][1]
        if speed is None:
            raise InputError("link", ["not known"])
        return SimpleNamespace(step=lambda plan: SimpleNamespace(tokens_s=speed))

    shown: Any = SimpleNamespace(reserved=80)
    training: Any = SimpleNamespace(model=None, recipe=None, machine=ONE, plan=SimpleNamespace(fullest=shown))
    monkeypatch.setattr(hardware, "names", lambda: list(accelerators))
    monkeypatch.setattr(hardware, "load", accelerators.get)
    monkeypatch.setattr(answer, "StepTimer", timer)
    rows = [(row.gpu, row.fits, row.tokens_per_s_per_gpu) for row in answer.on_every_accelerator(training)]
    assert rows == [
        ("fast", True, 2.0), ("large", True, 1.0), ("slow", True, None), ("small", False, 9.0), ("least", False, None),
    ]  # fmt: skip


# By part.


@pytest.mark.parametrize("row", REFUSED["models"], ids=str)
def test_what_a_model_does_not_allow(row: dict[str, Any]) -> None:
    words, faults = row.get("words", ""), ""
    try:
        Pipeline(load(row["source"]), Recipe(**recipe_of(row)))
    except InputError as error:
        faults = "; ".join(map(str, error.faults))
    assert words in faults and bool(words) == bool(faults)


@pytest.mark.parametrize(("rows", "columns"), [(256, [0]), (250, [0, 3])])
def test_ranks_of_tp_are_told_apart_where_they_differ(rows: int, columns: list[int]) -> None:
    """Of a table's 250 rows the last of four ranks has 61, the others 63."""
    recipe = Recipe(Layout(tp=4), tokens=16)
    pieces = Pipeline(load(f"D=64 L=1 h=4 h_kv=4 F=96 V={rows}"), recipe).of_stage(0)
    assert rank_columns(pieces, recipe) == columns


SMALL = load("D=256 L=1 h=4 F=256 V=50")


def test_a_run_may_have_a_deadline_where_it_is_known_which_run() -> None:
    dated = Terms(1, deadline=5)
    assert [tokens_of(SMALL, 7, None, dated), tokens_of(SMALL, None, None, Terms(1))] == [7, None]
    assert tokens_of(SMALL, None, 6 * SMALL.active, dated) == 1
    for tokens, compute in ((None, None), (0, None), (None, 6 * SMALL.active - 1), (1, 10**20)):
        with pytest.raises(InputError):
            tokens_of(SMALL, tokens, compute, dated)
    with pytest.raises(InputError, match="train-tokens is 0, expected a number above 0"):
        tokens_of(SMALL, 0, None)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_schedule_that_a_framework_has_not_is_another_s(name: str) -> None:
    """Of those that have pipelines: which of them have it is said, and no other."""
    if not FRAMEWORKS[name].schedules:
        return
    for schedule in {kind for rule in FRAMEWORKS.values() for kind in rule.schedules} - {*FRAMEWORKS[name].schedules}:
        having = [framework for framework, rules in FRAMEWORKS.items() if schedule in rules.schedules]
        with pytest.raises(InputError, match=re.escape(f"({' or '.join(having)} has it)")):
            Pipeline(SMALL, Recipe(Layout(pp=2), framework=name, schedule=schedule, accumulation=8))


@pytest.mark.parametrize("name", ["compressed", "deberta"])
def test_positions_of_an_attention_whose_exchange_is_unknown_are_not_split(name: str) -> None:
    with pytest.raises(
        InputError, match="the exchange of keys and values between ranks is not known for this attention"
    ):
        txcalc.train(TINY[name], gpu="h100:2", layout="cp=2", tokens=64)
    assert txcalc.train(TINY["latents"], gpu="h100:2", layout="cp=2", tokens=64).fits
