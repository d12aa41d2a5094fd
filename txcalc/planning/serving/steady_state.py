"""The steady state of a server that interleaves prefill and decode: mean TTFT, TPOT and end-to-end latency at a load.

One replica serves x requests per second. A prompt takes τ seconds of its time, so prefill takes ρ = x·τ of the time and
decode steps take the rest.

Open loop: x is given. The load can be served if ρ < 1 and the decode batch D fits.

TPOT     t(D)/(1 − ρ): a decode step of D sequences, and its share of prefill. D is the mean of a birth-death chain
         (`Replica.population`); by Little's law D = x·(answer − 1)·TPOT
TTFT     the wait in the queue, the prompt alone, the decode steps that share its chunks' steps, the engine's overhead
wait     M/G/1 (Pollaczek and Khinchine; GI/M/1 for bursts, with Kingman's variance of the prompt time). A prompt's time
         includes the decode of its steps; the residual time of the running step is a server's vacation; a step computes
         all prompts that arrived during the one before, as far as they fit (`Replica.prefill_wait`)

There is no closed form if, for more than `MAX_FULL` of the time, the cache is full or prompts arrive faster than they
are computed: the wait then depends on when answers end, and sequences are preempted. Elsewhere TTFT was 0.87 to 1.04 of
the simulation's and TPOT 0.95 to 1.06 (`tests/planning/serving/test_simulation.py`). In bursts (`--burstiness` 0.03 to
0.3) they were 0.75 to 0.92 and 0.80 to 0.98: requests that arrive together are served together.

Closed loop: N clients. Time is counted in steps, because an answer takes a fixed number of steps, however long prefill
makes them (machine repair with a fixed time between failures). A queue forms when steps are full of prompt chunks, not
when prefill takes most of the time.

D        N = D + prompts per step · steps of a wait (`Replica.clients_for`)
wait     prompts of the same step, the residual step, and a queue of periodic sources (`Replica.closed_queue`). All
         clients start at once, with as many requests each as in a simulation (`rounds`); the steps of their prompts and
         unequal answers spread them (`Replica.clustering`). While they are `together`, a request waits for half of all
         prompts. An engine that polls once in several steps adds half of these, and the prompts that arrived meanwhile

Of 500 random closed loops, nine tenths had a TTFT 0.80 to 1.07 of the simulation's, a TPOT 0.997 to 1.03 and an
end-to-end latency 0.998 to 1.01. The worst had a TTFT of 0.56 and a TPOT of 1.21: few users with short answers and
prompts of several steps meet more often than at random, because a request that arrives during another's prefill catches
up with it.

Source   Little 1961; Kleinrock 1975 (Queueing Systems I, 5.6; 6.4 for bursts) and Schweitzer 1979 for the wait; Takagi
         1991 (Queueing Analysis 1, gated service) and Kelly 1979 (3.3, processor sharing) for an open loop; Roberts and
         Virtamo 1991 (periodic cell arrival streams) and Siegmund 1979 for a closed one; Agrawal et al. 2024 (arXiv
         2403.02310) for chunks of prompts that share their steps with decoding
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from txcalc.planning.serving.demand import Demand, Steady, overload, rounds
from txcalc.planning.serving.queueing import Replica, find_zero

MAX_BATCH = 1e6  # sequences: no decode batch reaches a rate that this one does not
# Share of the time; above it TTFT fell to 0.8 of the simulation's and less (36 random models, cards and lengths).
MAX_FULL = 2e-4


def closed_loop(demand: Demand, clients: float, slots: float = inf) -> Steady:
    """A closed loop of `clients`. At most `slots` of their sequences fit in the cache; the others wait."""
    if clients > slots:
        full = closed_loop(demand._replace(rounds=demand.rounds or rounds(clients)), slots)
        wait = (clients - slots) / full.rate  # Little's law
        return full._replace(ttft=full.ttft + wait, e2e=full.e2e + wait, cache_wait=wait)
    replica = Replica(demand, clients)
    if demand.answer > 1:
        return replica.closed_state(
            find_zero(lambda n: replica.clients_for(n) - clients, 0.0, min(clients, replica.saturated))
        )

    def over(rate: float) -> float:
        state = replica.state(rate, 0.0)
        return clients if state is None else state.in_system - clients

    state = replica.state(find_zero(over, 0.0, 1 / demand.prompt), 0.0)
    assert state is not None
    waiting = max(0.0, clients - state.in_system) / state.rate  # where prefill takes all the time
    return state._replace(ttft=state.ttft + waiting, e2e=state.e2e + waiting)


def open_loop(demand: Demand, rate: float, most: float) -> Steady:
    """An open loop of `rate` requests per second. At most `most` sequences decode at once; the others wait."""
    replica = Replica(demand, None)
    if demand.answer == 1:
        return replica.state(rate, 0.0) or overload(rate * demand.prompt, 0.0, 1 / demand.prompt)

    def rate_excess(decoding: float) -> float:
        return replica.rate(decoding) - rate

    if rate_excess(most) >= 0 and replica.state(rate, find_zero(rate_excess, 0.0, most)):
        decoding, full = replica.population(rate, most)
        steady = replica.state(rate, decoding)
        return steady if steady and full <= MAX_FULL else Steady(inf, None, inf, rate, rate * demand.prompt, decoding)
    limit = find_zero(lambda n: 1.0 if replica.state(replica.rate(n), n) is None else -1.0, 0.0, most)
    cache_bound = rate_excess(most) < 0 <= rate_excess(max(most, MAX_BATCH))  # a larger cache would suffice
    return overload(rate * demand.prompt, most if cache_bound else inf, replica.rate(limit))


def disaggregated_state(
    prefill: Demand,
    decode: Demand,
    copies: tuple[int, int],
    transfer: float,
    clients: float | None,
    rate: float = 0.0,
    most: float = inf,
) -> Steady:
    """Disaggregated serving: some replicas prefill, others decode.

    copies   replicas that prefill, and replicas that decode
    transfer seconds to transfer a prompt's KV cache
    clients  of a closed loop; None: an open loop of `rate` requests per second
    most     sequences that decode at once; the others wait

    TPOT is a decode step: no prefill interrupts it. TTFT is the wait for prefill, the unloaded prompt, the engine's
    overhead, the transfer, and the steps until the first token: the residual step, those that the engine takes for a
    new request, and the request's own. Rates and decode batch are of all replicas.
    """
    prefills, decoders = copies
    clients_per_prefill = None if clients is None else clients / prefills
    prefiller, answers = Replica(prefill._replace(answer=1), clients_per_prefill), decode.answer - 1
    start = 0.0 if clients is None else max(0.0, clients / prefills - 1) / 2 * prefill.prompt / prefiller.rounds

    def served(decoding: float) -> float:
        return decoders * decoding / answers / (decode.step(decoding) / decode.tokens)

    def state(x: float, decoding: float) -> Steady | None:
        first = prefiller.state(x / prefills, 0.0)
        if first is None:
            return None
        first_token = (1.5 + decode.polls) * decode.step(decoding)
        ttft, tpot = first.ttft + start + transfer + first_token, decoders * decoding / answers / x
        return Steady(ttft, tpot, ttft + answers * tpot, x, first.utilisation, decoders * decoding)

    if clients is None:
        busy, largest = rate * prefill.prompt / prefills, served(most / decoders) if most < inf else inf
        if busy >= 1 or largest < rate:
            return overload(busy, most if largest < rate else inf, min(prefills / prefill.prompt, largest))
        decoder = Replica(decode._replace(prompt=0.0, chunks=0.0), None)
        decoding, full = decoder.population(rate / decoders, most / decoders)
        steady = state(rate, decoding)
        assert steady is not None
        return steady if full <= MAX_FULL else steady._replace(ttft=inf, tpot=None, e2e=inf)

    def excess(decoding: float) -> float:
        steady = state(served(decoding), decoding)
        return clients if steady is None else steady.in_system - clients

    decoding = find_zero(excess, 0.0, min(clients, most) / decoders)
    steady = state(served(decoding), decoding)
    assert steady is not None
    waiting = max(0.0, clients - steady.in_system) / steady.rate  # where prefill takes all the time, or for the cache
    seat = waiting if decoding == most / decoders else 0.0
    return steady._replace(ttft=steady.ttft + waiting, e2e=steady.e2e + waiting, cache_wait=seat)


class Coupling(NamedTuple):
    """The mean effect on one replica of the others that share its experts.

    prompt    seconds of one of its prompts
    away      seconds, per prompt of its own, that it waits for the prefill of others
    interval  decode steps between two polls for requests
    """

    prompt: float
    away: float
    interval: float


def coupling(demand: Demand, clients: float | None, steady: Steady) -> Coupling:
    """The coupling of a replica in its steady state: a closed loop of `clients`, or an open one (None)."""
    replica = Replica(demand, clients)
    prompt = stall = demand.prompt
    if demand.answer > 1:
        overlap = replica.overlap(steady.rate, steady.decoding)
        prompt, stall = replica.prompt_time(overlap), replica.stall(overlap)
    return Coupling(prompt, stall - prompt, replica.poll_interval(steady.decoding))
