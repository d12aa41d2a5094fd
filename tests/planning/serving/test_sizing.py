"""Targets drive the answer: the fewest GPUs that are rented and keep them, the largest load where they are missed."""

from __future__ import annotations

import json
from math import inf
from typing import Any, cast

import pytest
from command import Command

from txcalc import hardware, load
from txcalc.errors import InputError
from txcalc.planning.layout import Layout
from txcalc.planning.serving.demand import Steady
from txcalc.planning.serving.deployment import LayoutCapacity, Planner, largest, taken
from txcalc.planning.serving.engine import engine
from txcalc.planning.serving.offload import parse_offload
from txcalc.planning.serving.points import Slo, Timer, request
from txcalc.planning.serving.sizing import arrange, fewer_users, rentable
from txcalc.planning.serving.speed import most_rate, serve, sizes

run = Command("deploy")


def test_counts_that_are_rented() -> None:
    """Parts of a node and whole nodes up to 1,024; of a layout that is given, multiples of what it takes."""
    assert rentable(10, {})[0] == 16 and rentable(1, {"tp": 2})[:4] == [2, 4, 8, 16]
    assert rentable(1, {"tp": 3})[:2] == [24, 48] and rentable(1, {"tp": 16})[:2] == [16, 32]
    assert rentable(1, {"tp": 3, "pp": 5})[:2] == [15, 30]
    assert rentable(1, {}, 4)[:5] == [1, 2, 4, 8, 12] and rentable(1, {}, 72)[:5] == [1, 2, 4, 8, 16]
    assert rentable(1, {}) == [1, 2, 4, *range(8, 1025, 8)] and rentable(1024, {}) == [1024] and not rentable(1025, {})
    assert rentable(1, {}, 3) == [1, 2, *range(3, 1025, 3)]
    assert rentable(1, {"tp": 1024}) == [1024] and rentable(1, {"tp": 512, "dp": 3}) == []
    assert rentable(1, {"pp": 12}) == [*range(12, 1025, 12)] and rentable(9, {"pp": 3, "tp": 2}) == [
        *range(24, 1025, 24)
    ]
    assert rentable(1, {"pp": 341, "dp": 3}) == [1023]


@pytest.mark.parametrize(("lasts", "inside"), [(True, inf), (False, inf), (True, 7.2), (True, 0.1), (True, 1e9)])
def test_a_rate_s_sequences(lasts: bool, inside: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as are inside on average, at most those that fit and at least those asked for; where that has no closed
    form, all that fit of a rate that lasts."""
    state = Steady(inside, None, inside, 1.0, 0.5, 3.0, lasts=lasts)
    monkeypatch.setattr(Timer, "open", lambda self, layout, rate: state)
    model = load("llama-3.1-8b")
    planner = Planner(model, hardware.load("h100-sxm"), engine(model))
    found = arrange(planner, request(4096, rate=1.0), 4096, 3, 1)
    most = planner.max_concurrency(Layout(), 4096)
    wanted = {inf: most if lasts else 3, 7.2: 8, 0.1: 3, 1e9: most}
    assert found.concurrency == wanted[inside] and found.best.max_concurrency == most
    assert found.rule == "those that fit; within the limits; quickest from question to answer at this load"


@pytest.mark.parametrize("held", [{}, {"tp": 2}, {"tp": 2, "pp": 3, "dp": 4}])
def test_the_accelerators_of_ways_that_are_given(held: dict[str, int]) -> None:
    assert taken(held) == {0: 1, 1: 2, 3: 24}[len(held)]


def test_a_choice_serves_where_it_holds_one() -> None:
    for most in (0, 1):
        assert LayoutCapacity(Layout(), cast("Any", None), most).serves == (most == 1)


def test_ranks_of_smaller_nodes_are_apart() -> None:
    argv = ["llama-3.1-70b", "--gpu", "h100:16", "--tp", "8", "--json"]
    eight, four = (json.loads(run(*argv, "--node", n)[1])["speed"]["achievable"]["tpot_s"] for n in ("8", "4"))
    slow = json.loads(run(*argv, "--node", "4", "--network", "25GB")[1])["speed"]["achievable"]["tpot_s"]
    assert json.loads(run(*argv)[1])["speed"]["achievable"]["tpot_s"] == eight < four < slow
    assert run(*argv, "--node", "0")[0] == 2
    # Of a card whose link between nodes is not known, layouts that need it are not timed.
    code, shown, said = run("llama-3.1-8b", "--gpu", "l40s:4", "--node", "2", "--tp", "4")
    assert code == 0 and "TTFT" not in shown and "link_between" in said


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gpu", "weights", "concurrency", "limits"),
    [
        ("llama-3.1-70b", "h100-sxm", "bf16", 200, Slo(2.0, 0.04)),
        ("llama-3.1-8b", "l40s", "bf16", 64, Slo(None, 0.05)),
        ("deepseek-v3", "h200", "fp8-block", 300, Slo(3.0, 0.04)),
    ],
)
def test_no_fewer_keep_the_targets(name: str, gpu: str, weights: str, concurrency: int, limits: Slo) -> None:
    """Every smaller count that is rented misses them, on every layout."""
    model = load(name)
    planner = Planner(model, hardware.load(gpu), engine(model, weights))
    asked = request(9216, 8192)
    found = arrange(planner, asked, 9216, concurrency, limits=limits)
    assert not serve(found, asked, None, *limits).unmet
    counts = rentable(found.min_gpus or 1, {})
    assert found.best.layout.gpus in counts
    for count in counts[: counts.index(found.best.layout.gpus)]:
        fewer = arrange(planner, asked, 9216, concurrency, count, limits=limits)
        assert serve(fewer, asked, None, *limits).unmet
        points = (
            serve(fewer, asked, None, *limits).timer.point(c.layout, concurrency) for c in fewer.choices if c.fits
        )
        assert not any(limits.met(point) for point in points)


@pytest.mark.slow
def test_the_best_layout_keeps_the_targets_and_is_the_quickest() -> None:
    model = load("llama-3.1-70b")
    planner, asked = Planner(model, hardware.load("h100-sxm"), engine(model)), request(9216, 8192)
    for limits in (Slo(), Slo(3.0, 0.1)):
        found = arrange(planner, asked, 9216, 100, 16, limits=limits)
        speed = serve(found, asked, None, *limits)
        every = [speed.timer.steady(c.layout, 100) for c in found.choices if c.fits]
        kept = [steady for steady in every if limits.kept(steady)]
        assert len(kept) >= 1 and speed.chosen.steady.e2e == min(steady.e2e for steady in kept)


@pytest.mark.slow
def test_the_question_that_ten_gpus_were_the_answer_to() -> None:
    """200 users, prompts of 8,192, TTFT 2 s, TPOT 40 ms: ten H100 hold it, but the prompts alone are too many."""
    asked = ["llama-3.1-70b", "--context", "9216", "--prompt", "8192", "--concurrency", "200"]
    limits = ["--ttft", "2s", "--tpot", "40ms"]
    code, out, _ = run(*asked, *limits, "--gpu", "h100-sxm:16")
    assert (
        code == 1 and out.startswith("misses a limit: TTFT ") and "largest load within them: " in out.replace("\n", " ")
    )
    data = run.data(*asked, *limits, "--gpu", "h100-sxm")
    assert data["min_gpus"] == 10 and data["layout"]["gpus"] > 16 and data["layout"]["gpus"] % 8 == 0
    steady = data["speed"]["steady"]
    assert steady["ttft_s"]["mean"] <= 2 and steady["tpot_s"]["mean"] <= 0.04


@pytest.mark.slow
def test_a_rate_that_is_too_high_is_told_the_highest_that_is_not() -> None:
    """On the layout that answers most, of which a hundredth more is too much: with its speed and its cost."""
    argv = ["llama-3.1-8b", "--gpu", "h100-sxm:8@2", "--rate", "5/s"]
    model, asked = load("llama-3.1-8b"), request(8192, rate=5.0)
    planner = Planner(model, hardware.load("h100-sxm"), engine(model))
    for limits in (Slo(), Slo(tpot=0.012)):
        found = serve(arrange(planner, asked, 8192, gpus=8, limits=limits), asked, None, *limits)
        layouts, timer, best = [choice.layout for choice in found.plan.choices], found.timer, found.busiest
        rates = {layout: timer.open(layout, 5.0).rate for layout in layouts}
        assert best and not found.chosen.steady.lasts and rates[found.chosen.layout] == max(rates.values())
        assert best.rate < max(rates.values()) and limits.kept(best.steady) and best.steady.timed
        more = [timer.open(layout, 1.02 * best.rate) for layout in layouts]
        assert not any(steady.timed and limits.kept(steady) for steady in more)
    code, out, _ = run(*argv)
    assert code == 1 and "requests/s; largest load with known latencies: 4.33 requests/s on tp=2 dp=4, TTFT " in (
        out.replace("\n", " ")
    )
    data = run.data(*argv, "--tpot", "12ms", code=1)
    assert data["largest"]["steady"]["tpot_s"]["mean"] <= 0.012 and data["largest"]["cost_per_million_output"] > 0
    assert run.data("llama-3.1-8b", "--gpu", "h100-sxm:8", "--rate", "1/s")["largest"] is None
    out = run(*argv, "--tpot", "1us")[1].replace("\n", " ")
    assert "requests/s; impossible on 8 × h100-sxm: the floor of TPOT is" in out


def test_the_highest_rate_may_be_less_than_one_a_second() -> None:
    """Of prompts of 100,000 tokens, few of which an accelerator holds at once."""
    model, asked = load("llama-3.1-8b"), request(100_000, rate=5.0)
    planner = Planner(model, hardware.load("h100-sxm"), engine(model))
    found = serve(arrange(planner, asked, 100_000, gpus=1), asked, None)
    assert found.busiest and found.busiest.rate < 0.01 and found.busiest.steady.timed
    assert not found.timer.open(found.busiest.layout, 1.02 * found.busiest.rate).timed


def test_a_rate_gets_as_many_sequences_as_it_needs() -> None:
    code, out, _ = run("llama-3.1-8b", "--gpu", "h100-sxm", "--context", "4k", "--rate", "5/s", "--json")
    data: dict[str, Any] = json.loads(out)
    steady, inside = data["speed"]["steady"], data["workload"]["concurrency"]
    assert code == 0 and steady["requests_per_s"] == 5 and data["layout"]["gpus"] in (2, 4, 8)
    assert inside - 1 < 5 * steady["e2e_s"]["mean"] <= inside <= data["max_concurrency"]


@pytest.mark.slow
def test_users_beyond_the_cache_wait_in_line() -> None:
    """As of a server: those who have seats are served, the others wait. The plan does not fit, and says so."""
    argv = ["llama-3.1-70b", "--gpu", "h100-sxm:8@2.5", "--concurrency", "500"]
    code, out, _ = run(*argv)
    out = out.replace("\n", " ")
    assert code == 1 and "largest load that fits: 174 users on tp=8, TTFT " in out and " per 1M out" in out
    assert (
        out.startswith("fits 174 of 500 sequences at the full context: ")
        and " users are served at once, limited by the cache, at " in out
    )
    data: dict[str, Any] = run.data(*argv, code=1)
    largest, speed, steady = data["largest"], data["speed"], data["speed"]["steady"]
    assert largest["sequences"] == 174 and largest["steady"]["per_gpu"] > 0 and largest["cost_per_million_output"] > 0
    assert not data["fits"] and 174 < speed["seats"] < 500
    served, seated = steady["requests_per_s"], steady["e2e_s"]["mean"] - steady["line_s"]
    assert steady["line_s"] * served == pytest.approx(500 - speed["seats"])  # Little's law, of those in line
    assert seated * served == pytest.approx(speed["seats"], rel=1e-3)  # and of the others
    code, out, _ = run(*argv, "--ttft", "5s")
    assert code == 1 and out.startswith("misses a limit: TTFT ")
    code, out, _ = run("llama-3.1-70b", "--gpu", "h100-sxm:1")
    assert code == 1 and out.startswith("does not fit: ") and "largest load that fits" not in out


def test_seats_are_the_engines_too() -> None:
    """An engine runs no more at once than its max_num_seqs, whatever the cache holds."""
    argv = ["llama-3.1-8b", "--gpu", "h100-sxm:1", "--context", "2k", "--concurrency", "64", "--engine", "vllm"]
    free, bound = (run.data(*argv, *more)["speed"] for more in ([], ["--max-num-seqs", "16"]))
    assert (free["seats"], free["steady"]["line_s"]) == (64, 0) and bound["seats"] == 16
    assert bound["steady"]["decoding"] <= 16 < free["steady"]["decoding"] and bound["steady"]["line_s"] > 0
    assert bound["achievable"]["tpot_s"] < free["achievable"]["tpot_s"]  # a step is of those that run
    assert "TPOT, 16 sequences of 2,048" in run(*argv, "--max-num-seqs", "16")[1].replace("\n", " ")


def test_looks_for_requests() -> None:
    """A look every so many steps delays first tokens; copies that gather theirs decode with fewer interruptions."""
    argv = ["llama-3.1-8b", "--gpu", "h100-sxm:1", "--context", "2k", "--concurrency", "16", "--json"]
    often, seldom = (json.loads(run(*argv, *more)[1])["speed"]["steady"] for more in ([], ["--poll", "30"]))
    assert seldom["ttft_s"]["mean"] > 1.5 * often["ttft_s"]["mean"]
    told = json.loads(run(*argv, "--poll", "30")[1])["engine"]
    assert (told["poll"], told["gather"]) == (30, None)
    argv = ["deepseek-v3", "--gpu", "h200:8", "--tp", "1", "--ep", "8", "--context", "2k", "--concurrency", "256"]
    alone, together = (run.data(*argv, *more)["speed"]["steady"] for more in ([], ["--gather", "50"]))
    assert together["tpot_s"]["mean"] < alone["tpot_s"]["mean"]
    model = load("llama-3.1-70b")
    planner = Planner(model, hardware.load("h100-sxm"), engine(model))
    assert fewer_users(arrange(planner, request(8192), 8192, gpus=1), request(8192)) is None


def test_targets_that_a_floor_forbids() -> None:
    code, out, _ = run("llama-3.1-8b", "--gpu", "h100-sxm:1", "--tpot", "1ms")
    assert code == 1 and "impossible on 1 × h100-sxm: the floor of TPOT is 4.64 ms" in out.replace("\n", " ")
    assert out.startswith("misses a limit: TPOT ")
    code, out, _ = run("llama-3.1-8b", "--gpu", "h100-sxm", "--tpot", "20ms", "--ttft", "1s")
    assert code == 0 and "meets the limits: TTFT ≤ 1 s and TPOT ≤ 20.0 ms" in out.replace("\n", " ")
    code, out, _ = run("llama-3.1-8b", "--gpu", "h100-sxm:1", "--ttft", "20ms")
    assert code == 1 and "the floor of TTFT is 62.3 ms" in out.replace("\n", " ")


def test_prices_are_a_cards_own() -> None:
    code, out, _ = run("llama-3.1-8b", "--gpu", "h100-sxm:1@2.", "--gpu", "h200:1@.4e1", "--json")
    rows = json.loads(out)["deployments"]
    assert code == 0 and [row["speed"]["price_per_gpu_hour"] for row in rows] == [2, 4]
    for row in rows:
        speed = row["speed"]
        assert speed["cost_per_hour"] == speed["price_per_gpu_hour"]
        a_million = speed["price_per_gpu_hour"] / 3600 / speed["steady"]["per_gpu"] * 1e6
        assert speed["cost_per_million_output"] == pytest.approx(a_million)
        assert speed["cost_per_request"] == pytest.approx(a_million * speed["answer"] / 1e6)


def test_acceptance_may_be_a_percentage() -> None:
    argv = ["gpt2", "--gpu", "l4:1", "--context", "1k", "--draft", "3", "--json"]
    assert run(*argv, "--acceptance", "80%")[1] == run(*argv, "--acceptance", "0.8")[1]


def test_limits_are_whole() -> None:
    """What is asked for at the edge of what is allowed."""
    assert request(100, 10, burstiness=1000).traffic is not None
    for burstiness in (1000.5, 0.009):
        with pytest.raises(InputError, match="burstiness"):
            request(100, 10, burstiness=burstiness)
    assert sizes(10, 2, 3) == [2, 4, 6, 8, 10]
    found = parse_offload("64GB@80GB/s", None, 0, None)
    assert found is not None and found.gpu_layers == 0


def test_what_fits_nowhere_is_shown_on_one() -> None:
    model = load("llama-3.1-8b")
    planner = Planner(model, hardware.load("rtx-4090"), engine(model))
    best = arrange(planner, request(131072), 131072, 10**9).best
    assert not best.fits and best.layout.gpus == 1


def test_a_limit_that_is_just_met_is_kept() -> None:
    from txcalc.planning.serving.demand import Steady

    point = Steady(0.5, 0.5, 0.5, 0.5, 0.5, 0.5)
    assert Slo(0.5, 0.5).kept(point) and not Slo(0.49).kept(point) and not Slo(None, 0.49).kept(point)


def test_a_rate_of_one_card_or_the_parts_of_a_node() -> None:
    """Of a layout of four, four and eight, and whole nodes; of twelve only its multiples."""
    assert rentable(1, {"tp": 4})[:3] == [4, 8, 16] and rentable(1, {"tp": 16})[:3] == [16, 32, 48]
    assert rentable(1, {"tp": 4, "dp": 3})[:3] == [12, 24, 36] and rentable(1, {})[:4] == [1, 2, 4, 8]
    assert rentable(1, {"dp": 41})[-1] == 24 * 41 and rentable(1, {"dp": 8}) == [*range(8, 1025, 8)]


@pytest.mark.parametrize(("near", "most"), [(1, 1), (50, 1), (50, 49), (50, 50), (50, 64), (50, 101), (3, 400)])
def test_the_largest_is_found_from_wherever_it_is_looked_for(near: int, most: int) -> None:
    assert largest(lambda n: n <= most, 500, near) == most and largest(lambda n: n <= 0, 500, near) == 0
    assert largest(lambda n: True, most, min(near, most)) is None


def test_the_highest_rate_is_rounded_down_to_three_digits() -> None:
    assert most_rate(lambda rate: rate <= 3.33701, 0.1, 10.0) == pytest.approx(3.33)
    assert most_rate(lambda rate: rate <= 0.0333701, 0.001, 10.0) == pytest.approx(0.0333)
    assert most_rate(lambda rate: rate <= 333.701, 0.1, 1000.0) == 333
    assert most_rate(lambda rate: rate <= 0.042, 0.05, 10.0) == 0.0
    assert most_rate(lambda rate: True, 1.0, 1.01) == 1.01, "of one rate, that one"
    assert most_rate(lambda rate: True, 1.0, 25.0) == pytest.approx(24.9, abs=0.11)
