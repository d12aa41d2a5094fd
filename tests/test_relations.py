"""Relations that hold for every mechanism, format or convention of a kind, and at the very ends of ranges."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from tempfile import NamedTemporaryFile
from types import SimpleNamespace
from typing import Any

import pytest
from tiny import TINY

from txcalc import hardware, load
from txcalc.errors import InputError
from txcalc.model import MAX_TOKENS
from txcalc.parts.mechanisms import ATTENTIONS, MIXERS
from txcalc.parts.options import REQUIRED
from txcalc.parts.place import mechanism
from txcalc.planning.activations import korthikanti
from txcalc.planning.conventions import CONVENTIONS
from txcalc.planning.fitting import checked_context
from txcalc.planning.formats.quantised import READERS, configured
from txcalc.planning.gradients import core_result, saved_by_core
from txcalc.planning.layout import Layout
from txcalc.planning.matching import matched
from txcalc.planning.parallelism import Sharding
from txcalc.planning.scaling import ScalingQuestion
from txcalc.planning.serving.demand import Steady
from txcalc.planning.serving.deployment import MOST_GPUS, MOST_SEQUENCES, Choice, Deployment, Gpu, check
from txcalc.planning.serving.engine import engine
from txcalc.planning.serving.points import Limits, request
from txcalc.planning.serving.sizing import _Sizing, rentable
from txcalc.planning.serving.speed import Serving, check_budget, sizes, within
from txcalc.planning.serving.traffic import arrivals, lengths
from txcalc.planning.shapes import DesignFamily
from txcalc.planning.training.recipe import LONGEST, MOST, Recipe
from txcalc.planning.training.run import Terms
from txcalc.sources.spec import MAX_LAYERS

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
    wished = [each.key for each in mechanism(name).partly(table).conflicts()]
    assert ("n_kv_heads" not in wished) == fits


@pytest.mark.parametrize("stages", [2, 3])
def test_no_more_stages_than_layers(stages: int) -> None:
    for layers in (stages - 1, stages):
        faults = Sharding(load(f"D=64 L={layers} h=2 F=96 V=50")).faults(Layout(pp=stages))
        assert bool(faults) == (layers < stages)


def test_memory_that_is_just_enough_suffices() -> None:
    for free, ram, limit in ((0, 0, "cache"), (5, 0, "cache"), (0, None, "cache"), (5, -1, "RAM"), (-1, -1, "cache")):
        fullest: Any = SimpleNamespace(free=free, limit="cache")
        choice = Choice(Layout(), fullest, 1, ram)
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
        choice = Choice(Layout(dp=copies), None, most * copies)  # type: ignore[arg-type]
        for limit in (0.5, 1, 2, 5.5, 11, 14, 39, 40, 41, 1e9):
            inside = [n for n in range(1, min(most, 2**16) + 1) if n * copies <= limit][-1:]
            assert within(timer, choice, Limits(ttft=limit)) == sum(inside)
        assert within(timer, choice, Limits()) == 0
        assert sizes(most * copies, copies, 5) == [
            n * copies for n in sorted({2**i for i in range(17) if 2**i <= most} | {min(most, 2**16), 5}) if n
        ]


def test_so_many_layouts_are_compared() -> None:
    timer: Any = SimpleNamespace(
        known=lambda layout: layout != 3, point=lambda layout, n: (layout, n), pace=lambda one: 0
    )
    every = [SimpleNamespace(layout=SimpleNamespace(dp=1), max_concurrency=1) for _ in range(30)]
    served_: Any = SimpleNamespace(plan=SimpleNamespace(choices=every), timer=timer, _timed=lambda choice: [choice])
    assert Serving.points.func(served_) == every[:24]  # type: ignore[attr-defined]


class _Known(_Sizing):
    """Counts of which those from `start` on fit, and those from `least` on are within limits."""

    def __init__(self, start: int, least: int) -> None:
        self.start, self.least, self.timed, self.limits = start, least, True, Limits(1.0)
        self.tried = list[int]()

    def _ranked(self, number: int, held: Any) -> Any:
        self.tried.append(number)
        return [SimpleNamespace(fits=True, number=number)] if number >= self.start else None

    def _quiet(self, choice: Any) -> Steady | None:
        if choice.number < self.least / 2:
            return None  # it cannot be timed
        return Steady(1.0 if choice.number >= self.least else 1.1, None, 1.0, 1.0, 0.5, 1.0)


@pytest.mark.parametrize("start", [1, 3, 8, 20])
def test_the_fewest_that_are_enough(start: int) -> None:
    """Found by powers of two and then one by one; where none is, the first on which the load fits."""
    counts = rentable(1, {})[:15]
    for least in range(1, counts[-1] + 9):
        known = _Known(start, least)
        fitting = [n for n in counts if n >= start]
        enough = next((n for n in fitting if n >= least), None)
        within_powers = enough is not None and (enough == fitting[0] or any(
            n >= enough and n.bit_count() == 1 for n in fitting[1:]
        ))  # fmt: skip
        found: Any = (known.first(counts, {}) or [None])[0]  # type: ignore[list-item]
        assert found and found.number == (enough if within_powers else fitting[0]), (start, least)
        assert len(known.tried) == len(set(known.tried))
    assert _Known(10**6, 1).first(counts, {}) is None


def test_seats_are_those_of_every_copy() -> None:
    timer: Any = SimpleNamespace(seats=lambda layout: 7)
    for copies in (1, 2, 3):
        served: Any = SimpleNamespace(timer=timer, chosen=SimpleNamespace(layout=Layout(dp=copies)))
        assert Serving.seats.fget(served) == 7 * copies  # type: ignore[attr-defined]


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
    for rank in Deployment(model, card, engine(model, prefix=1000)).ranks(Layout()):
        held = [rank.cache_bytes(4096, n) for n in range(4)]
        own = rank.pages_bytes(4096) - rank.shared_bytes(4096)
        assert held == [0, *(rank.pages_bytes(4096) + n * own for n in range(3))]
        assert 0 < own < rank.pages_bytes(4096)


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


@pytest.mark.parametrize("name", ENDS)
def test_the_last_numbers_that_may_be(name: str) -> None:
    taken, last, beyond = ENDS[name]
    for value in last:
        taken(value)
    for value in beyond:
        with pytest.raises(InputError):
            taken(value)
