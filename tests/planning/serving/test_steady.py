"""The steady state: by hand, Little's law, monotone in load, limits of light and of full load, what cannot last."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import exp, factorial, inf

import pytest
from command import Command
from hypothesis import example, given, strategies as st

from txcalc.planning.serving.demand import Demand, rounds
from txcalc.planning.serving.queueing import TOLERANCE, Replica
from txcalc.planning.serving.steady_state import closed_loop, open_loop


def linear(fixed: float, slope: float) -> Callable[[float], float]:
    return lambda n: fixed + slope * max(1.0, n)


DEMANDS = st.builds(
    lambda fixed, slope, prompt, slower, chunks, answer, tokens, overhead: Demand(
        linear(fixed, slope), prompt, prompt * slower, chunks, answer, tokens, overhead, overhead * 10
    ),
    st.floats(1e-3, 0.1),
    st.floats(0, 1e-3),
    st.floats(1e-4, 5),
    st.floats(1, 3),
    st.floats(0.001, 20),
    st.integers(1, 5000),
    st.floats(1, 5),
    st.floats(0, 0.5),
)


def test_one_user_alone() -> None:
    """Nothing in line: the prompt, and 99 steps that nobody shares."""
    steady = closed_loop(Demand(linear(0.01, 0), 0.2, 0.3, 0.25, 100, overhead=0.05), 1)
    assert steady.ttft == pytest.approx(0.05 + 0.3) and steady.tpot == pytest.approx(0.01) and steady.cache_wait == 0
    assert steady.e2e == pytest.approx(0.35 + 0.99) == pytest.approx(1 / steady.rate, rel=1e-4)


def test_a_step_and_its_share_of_the_prompts() -> None:
    """Long answers: all users decode nearly all the time, each step pays users/(answer − 1) prompts."""
    steady = closed_loop(Demand(linear(0.01, 0.001), 0.2, 0.2, 0.1, 10_001), 64)
    assert steady.tpot == pytest.approx(0.01 + 0.064 + 64 * 0.2 / 10_000, rel=0.01)
    assert steady.utilisation == pytest.approx(steady.rate * 0.2)


def test_the_wait_of_an_open_loop_is_pollaczek_and_khinchines() -> None:
    """Answers of one token: a queue of prompts alone, M/D/1."""
    steady = open_loop(Demand(linear(0.01, 0), 0.2, 0.2, 0.0, 1), 2.5, 100)
    assert steady.lasts and steady.utilisation == pytest.approx(0.5)
    assert steady.ttft == pytest.approx(0.2 + 0.5 * 0.2 / (2 * 0.5)) and steady.tpot is None


def test_copies_that_share_experts_wait_for_each_other() -> None:
    """Few requests: each of eight copies' prompts, alone at 0.06 s, holds up all steps. Many: nearly all have one."""
    demand = Demand(linear(0.01, 0), 0.1, 0.06, 0.0, 1001, sharing=8, solo=0.06)
    unshared, few = (closed_loop(load, 2) for load in (demand._replace(sharing=1, prompt=0.06), demand))
    assert few.tpot and unshared.tpot
    # Of two users' prompts one is another's; of sixteen fifteen are.
    assert few.tpot - 0.01 == pytest.approx(15 * (unshared.tpot - 0.01), rel=0.1)  # two coincide at times
    many = [closed_loop(load, 2000) for load in (demand, demand._replace(sharing=1))]
    assert many[0].rate == pytest.approx(many[1].rate, rel=0.1) == pytest.approx(10, rel=0.2)
    # Eight prompts per step and copy: every copy computes some, though they take a third of its time.
    slow = demand._replace(step=linear(0.03, 1e-4), prompt=0.02, unloaded=0.012, solo=0.012)
    thousands = [closed_loop(load, 8000).tpot for load in (slow, slow._replace(sharing=1))]
    assert thousands[0] == pytest.approx(thousands[1], rel=0.01)


def test_copies_that_gather_prompts() -> None:
    """A prompt waits for half of what all copies take to have one, 1 + 1/2 of what one takes, or of the interval."""
    demand = Demand(linear(0.01, 0), 0.0, 0.0, 0.01, 1001, sharing=2, gathers=True, interval=60)
    few, many = (closed_loop(demand, n) for n in (2, 100))
    assert few.ttft == pytest.approx(0.01 * (0.5 + 29.5 + 1), rel=0.05)
    assert many.ttft == pytest.approx(0.01 * (0.5 + (1.5 * 10 - 1) / 2 + 1), rel=0.05)


def test_a_start_together_counts_the_less_the_more_requests_follow() -> None:
    """10,000 requests, at least 10 per client and at most 400; the first of 64 waits for half of the prompts."""
    assert [rounds(n) for n in (1, 64, 5000)] == [400, 156.25, 10]
    demand = Demand(linear(0.01, 0), 0.05, 0.05, 0.5, 1001)
    few, usual, many = (closed_loop(demand._replace(rounds=n), 64).ttft for n in (10, None, 1e6))
    assert few - many == pytest.approx(31.5 * 0.05 / 10, rel=0.2) and usual - many == pytest.approx(
        31.5 * 0.05 / 156.25, rel=0.2
    )


def test_polls_of_copies_that_gather_by_hand() -> None:
    """1,000 steps of two tokens among 10 sequences: every 50 a prompt for one copy, every 75 for both; 60 at most."""
    demand = Demand(linear(0.01, 0), 0.1, 0.1, 1.0, 1001, tokens=2.0, sharing=2, gathers=True, interval=1000)
    assert Replica(demand, 20.0).poll_interval(10.0) == pytest.approx(75)
    assert Replica(demand._replace(interval=60), 20.0).poll_interval(10.0) == 60


@pytest.mark.parametrize(("chunks", "share"), [(1.0, 0), (2.0, 0), (2.5, 0.5)])
def test_a_prompt_beside_nothing_waits_for_the_line(chunks: float, share: float) -> None:
    """Without steps of others: for the prompts before it, and for what its last chunk computes of another."""
    rate, prompt, queue, chunk = 2.0, 0.2, 0.3, 0.2 / chunks
    demand = Demand(linear(0.01, 0), prompt, prompt, chunks, 1)
    whole = int(-(-chunks // 1)) - 1
    mine = (1 - exp(-rate * whole * chunk)) * share
    later = (1 - exp(-rate * (queue + prompt))) / 2
    expected = queue + (0.6 * mine + 0.4 * later) * chunk
    assert Replica(demand, None).prefill_wait(rate, 0.0, queue) == pytest.approx(expected)


def test_as_many_seats_as_a_birth_takes_are_a_chain_of_two_states() -> None:
    """At half of the time for prompts a birth is (4 + 1)/2 sequences: with 2.5 seats, none or all are taken."""
    demand = Demand(linear(0.01, 0), 0.25, 0.25, 0.5, 3)
    replica, share = Replica(demand, None), 0.5
    left = 0.01 / share + 0.25 * share / (1 - share**2)
    busy_step = 0.01 + 0.25 * (1 + 2 * left)
    seconds = 2 * 0.02 + max(0.0, busy_step - 0.02) * share * (1 - share**2) / share
    full = 2 * seconds / 2.5 / (1 + 2 * seconds / 2.5)
    assert replica.population(2.0, 2.5) == (pytest.approx(2.5 * full), pytest.approx(full))
    assert replica.population(2.0, 2.49)[1] == 1.0


def test_those_that_decode_are_a_birth_death_chain() -> None:
    """Answers of 100 steps of 10 ms that no other slows down: Poisson, with Erlang's share of full seats; of steps as
    long as those that share them are many: a queue of one server."""
    replica = Replica(Demand(linear(0.01, 0), 1e-9, 1e-9, 1e-9, 101), None)
    assert replica.population(5, 1e6) == (pytest.approx(5), 0.0)
    poisson = [5.0**n / factorial(n) for n in range(11)]
    assert replica.population(5, 10.01)[1] == pytest.approx(poisson[-1] / sum(poisson), rel=1e-3)
    shared = Replica(Demand(linear(1e-5, 0.01), 1e-9, 1e-9, 1e-9, 101), None)
    assert shared.population(0.8, 1e6)[0] == pytest.approx(0.8 / 0.2, rel=2e-3)
    assert replica.population(500, 1e6)[0] == pytest.approx(500, rel=1e-5)  # by several at a time


@given(DEMANDS, st.floats(1, 2000))
def test_littles_law_in_a_closed_loop(demand: Demand, clients: float) -> None:
    steady = closed_loop(demand, clients)
    assert steady.in_system == pytest.approx(clients, rel=1e-3)
    near = 1 + TOLERANCE  # how exactly the sequences that decode are found
    assert 0 < steady.utilisation < 1 and steady.ttft * near >= demand.unloaded
    if demand.answer > 1:
        assert steady.tpot and steady.tpot * near >= demand.step(steady.decoding) / demand.tokens
        assert steady.decoding == pytest.approx(steady.rate * (demand.answer - 1) * steady.tpot, rel=1e-6)


WHOLE = st.builds(
    lambda fixed, slope, prompt, slower, chunks, answer, *rest: Demand(
        linear(fixed, slope), prompt, prompt * slower, chunks, answer, *rest
    ),
    st.floats(1e-3, 0.1),
    st.floats(1e-5, 1e-3),
    st.floats(1e-3, 2),
    st.floats(1, 3),
    st.floats(0.01, 20),
    st.integers(2, 3000),
    st.floats(1, 5),  # tokens per step
    st.floats(0, 0.5),  # of the engine's own
    st.floats(0, 5),  # polls
    st.floats(0, 2),  # spread
    st.floats(0.1, 20),  # bursts
    st.floats(0, 1),  # together
    st.integers(1, 40),  # interval
    st.floats(0.02, 1),  # width
)


@given(WHOLE, st.sampled_from((0.2, 1.0, 2.0, 300.0)), st.booleans())
def test_no_client_is_answered_quicker_than_alone(demand: Demand, n: float, shared: bool) -> None:
    """Of less than one client a copy too, as a user of several copies is; who looks rarely finds a lone one at once."""
    demand = demand._replace(sharing=2, solo=demand.prompt / 2, gathers=True) if shared else demand
    steady = closed_loop(demand, n)
    assert steady.ttft >= (demand.overhead + demand.unloaded) * (1 - 1e-9)
    assert (steady.tpot or 0) >= demand.step(0.0) / demand.tokens * (1 - 1e-9)
    if n <= 1 and not demand.together and not shared:
        rare = demand._replace(interval=40, rounds=1e9)
        assert closed_loop(rare, n).ttft == pytest.approx(closed_loop(rare._replace(interval=1), n).ttft, rel=1e-6)


@pytest.mark.parametrize("bursts", [0.0, 1e-3, 0.5])
def test_even_requests_far_apart_find_nobody(bursts: float) -> None:
    """The chance that one does is below every number there is: as at random, but for what these meet of each other."""
    demand = Demand(linear(0.01, 1e-4), 0.5, 0.7, 0.5, 100, bursts=bursts)
    assert open_loop(demand, 1e-6, 256).ttft == pytest.approx(
        open_loop(demand._replace(bursts=1.0), 1e-6, 256).ttft, rel=1e-4
    )


def line(n: float, room: float, varied: float) -> float:
    """The mean of P(line > x) = exp(−2x(x/n + room)/varied), by Simpson's rule to where it is exp(−40)."""
    if room == inf:
        return 0.0
    far = min(20 * varied / room if room else inf, (20 * n * varied) ** 0.5)
    points = [exp(-2 * x * (x / n + room) / varied) for x in (far * i / 2000 for i in range(2001))]
    return far / 6000 * (points[0] + points[-1] + 4 * sum(points[1::2]) + 2 * sum(points[2:-1:2]))


@given(WHOLE, st.floats(0.05, 0.95))
def test_a_line_of_prompts_is_what_its_formulas_say(whole: Demand, busy: float) -> None:
    """GI/M/1: who finds another is the fixed point of the transform of a gamma's times; its wait by Kingman's
    variances."""
    demand = whole._replace(
        answer=1, sharing=2, solo=whole.prompt
    )  # copies, none of which has another's steps to wait for
    steady = open_loop(demand, busy / demand.prompt, 100)
    late = steady.ttft - demand.overhead - demand.unloaded
    odds = late / demand.prompt * (demand.bursts + 1) / (demand.bursts + demand.spread)  # finds/(1 − finds)
    finds = odds / (1 + odds)
    assert finds == pytest.approx((1 + demand.bursts * (1 - finds) / busy) ** (-1 / demand.bursts), rel=1e-4)
    assert (steady.tpot, steady.e2e, steady.decoding) == (None, steady.ttft, 0)
    assert (steady.rate, steady.utilisation) == (busy / demand.prompt, pytest.approx(busy))


@example(Demand(linear(0.01, 0.001), 0.1, 0.1, 1.0, 20), 0.8, 30.0)  # full from 14 on, whose steps leave 99 %
@given(WHOLE, st.floats(0.05, 0.8), st.floats(2, 30))
def test_a_population_is_its_chain_s(demand: Demand, busy: float, most: float) -> None:
    """Birth by birth: that of n over n − 1 is the rate times the seconds that one of n takes, over n."""
    rate = busy / demand.prompt
    replica = Replica(demand, None)
    counts = 1 / (1 - busy)
    birth = (demand.bursts * counts**2 + demand.spread * (counts - 1) ** 2 + 1) / 2
    steps = (demand.answer - 1) / demand.tokens

    def seconds_in_seat(n: float) -> float:
        step = demand.step(n)
        left = step / (1 - busy) + demand.prompt * busy * (demand.bursts + demand.spread) / (1 - busy**2)
        busy_step = step + demand.prompt * (1 + rate * left)
        even = step / (1 - busy)
        return steps * even + max(0, busy_step - even) * busy * (1 - busy**steps) / (1 - busy)

    # As many as the mean has, where it has one, are within the grid: steps of the chain are births.
    states, chance = [0.0], [1.0]
    while states[-1] + birth <= most:
        states.append(states[-1] + birth)
        chance.append(chance[-1] * rate * seconds_in_seat(states[-1]) / states[-1])
    mean, full = replica.population(rate, most)
    if birth > most:
        assert full == 1
        return
    crowded = sum(
        c
        for n, c in zip(states, chance, strict=True)
        if rate * (demand.prompt + demand.chunks * demand.step(n) * (n > 0)) >= 0.99
    )
    assert mean == pytest.approx(sum(n * c for n, c in zip(states, chance, strict=True)) / sum(chance), rel=1e-6)
    assert full == pytest.approx((crowded + chance[-1]) / sum(chance), rel=1e-6)


@given(DEMANDS, st.floats(1, 1000), st.floats(1.05, 3))
def test_more_users_wait_longer_and_are_served_more(demand: Demand, clients: float, factor: float) -> None:
    few, many = closed_loop(demand, clients), closed_loop(demand, clients * factor)
    assert many.e2e >= few.e2e * (1 - 1e-4)
    if demand.chunks < 0.5:  # else chunks share so many steps that more users may yield less
        slower = demand.step(many.decoding) / demand.step(few.decoding)
        assert many.rate * slower >= few.rate * 0.95


# The command.


run = Command("deploy")


def test_a_rate_that_does_not_last() -> None:
    argv = ["llama-3.1-8b", "--gpu", "h100-sxm:1", "--context", "4k"]
    code, out, _ = run(*argv, "--rate", "30/s")
    assert code == 1 and out.startswith("not sustainable: prefill alone takes 134 % of 1 × h100-sxm;\nat most ")
    slow = ["llama-3.1-8b", "--gpu", "l4:1", "--context", "8k", "--prompt", "7k", "--rate", "2/s"]
    assert "largest load with known latencies: 0.00150 requests/s" in run(*slow)[1].replace("\n", " ")
    code, out, _ = run(*argv, "--rate", "2.628M/month", "--json")
    speed = json.loads(out)["speed"]
    assert code == 0 and speed["rate"] == 1 and speed["steady"]["requests_per_s"] == 1
