"""A server that prefills and decodes at once, in closed form: means of TTFT, TPOT and end to end at a load.

One copy of the model serves x requests a second. A prompt takes τ seconds of its time, so prompts take ρ = x·τ of it,
and decode steps have the rest:

TPOT     t(D)/(1 − ρ), where t(D) is a decode step of the D sequences that decode on average; by Little's law
         D = x·(answer − 1)·TPOT, so that TPOT = t(D) + D·τ/(answer − 1): a step, and its share of the prompts (of N
         clients in a closed loop (N − 1)/N of it: one's own prompt is before its answer; in rounds whose prompts are
         computed `together`, before any answer, half of it)
TTFT     the wait in line, the prompt alone, the decode steps that its chunks share a step with, the engine's own share;
         where it polls for requests once in several steps, half of these, and the prompts that came meanwhile
wait     M/G/1 (Pollaczek and Khinchine; of bursts GI/M/1, with the variance of a prompt's time as Kingman has it) with
         a prompt's time in a step that decodes too, and what is left of the running step, a server's vacation. Of N
         clients in a closed loop each sees (N − 1)/N of the others (Schweitzer), and all start at once, as benchmarks
         do, with `ROUNDS` requests each: then half of all come first, and so in every round that they come `together`.
         In an open loop a step serves all prompts that came in the one before, as far as they go into it (`gate`)
x        open loop: the rate asked for, which lasts while ρ < 1 and D fits, D being the mean of a birth-death chain
         (`population`); closed loop: of N clients, N = x·(TTFT + (answer − 1)·TPOT)

An open loop has no means here where all seats are taken for more than `FULL` of the time, or prompts then come faster
than steps take them up: what waits there depends on how answers end, and sequences lose their pages again. Elsewhere
TTFT was 0.87 to 1.04 of the simulation's and TPOT 0.95 to 1.06 (`tests/test_simulation.py`); in bursts (`--burstiness`
0.03 to 0.3) 0.75 to 0.92 and 0.80 to 0.98, for those who come together are served together.

Source   Little 1961; Kleinrock 1975 (Queueing Systems I, 5.6; 6.4 for bursts) and Schweitzer 1979 for the wait; Takagi
         1991 (Queueing Analysis 1, gated service) and Kelly 1979 (3.3, processor sharing) for an open loop; Agrawal et
         al. 2024 (arXiv 2403.02310) for chunks of prompts that share their steps with decoding
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, exp, floor, inf, log, log1p
from typing import NamedTuple

from txcalc.planning.demand import ROUNDS, Demand, Steady, overload

CLOSE = 1e-6  # relative, of a root
MANY = 1e6  # sequences: what these do not keep up with, no number does
FULL = 2e-4  # of the time: above it TTFT fell to 0.8 of the simulation's and less (36 drawn models, cards and lengths)
GRID = 128  # points of a chain up to its mean
COUPLED = 8  # rounds in which the prompts of copies that share experts settle


def closed(demand: Demand, clients: float, seats: float = inf) -> Steady:
    """So many clients, each of which asks again when its answer is there; of which at most as many as have seats in the
    cache are served at once, and the others wait for one in line."""
    if clients > seats:
        seated = closed(demand, seats)
        line = (clients - seats) / seated.rate  # Little's law
        return seated._replace(ttft=seated.ttft + line, e2e=seated.e2e + line, line=line)
    loop = _Loop(demand, clients)
    if demand.answer == 1:

        def over(rate: float) -> float:
            found = loop.state(rate, 0.0)
            return clients if found is None else found.inside - clients

        found = loop.state(_root(over, 0.0, 1 / demand.prompt), 0.0)
    else:

        def excess(decoding: float) -> float:
            found = loop.state(loop.rate(decoding), decoding)
            return clients if found is None else found.inside - clients

        decoding = _root(excess, 0.0, clients)
        found = loop.state(loop.rate(decoding), decoding)
    assert found is not None
    waiting = max(0.0, clients - found.inside) / found.rate  # where prompts take all of a copy's time
    return found._replace(ttft=found.ttft + waiting, e2e=found.e2e + waiting)


def open_(demand: Demand, rate: float, most: float) -> Steady:
    """Requests that come at random, so many a second; of which at most so many decode at once, and the others wait."""
    loop = _Loop(demand, None)
    if demand.answer == 1:
        return loop.state(rate, 0.0) or overload(rate * demand.prompt, 0.0, 1 / demand.prompt)

    def behind(decoding: float) -> float:
        return loop.rate(decoding) - rate

    def stuck(decoding: float) -> float:
        return 1.0 if loop.state(loop.rate(decoding), decoding) is None else -1.0

    if behind(most) >= 0 and loop.state(rate, _root(behind, 0.0, most)):
        decoding, full = loop.population(rate, most)
        found = loop.state(rate, decoding)
        return found if found and full <= FULL else Steady(inf, None, inf, rate, rate * demand.prompt, decoding)
    limit = _root(stuck, 0.0, most) if stuck(most) > 0 else most
    more = behind(most) < 0 <= behind(max(most, MANY))  # further seats would do
    return overload(rate * demand.prompt, most if more else inf, loop.rate(limit))


def apart(
    prefill: Demand,
    decode: Demand,
    copies: tuple[int, int],
    handed: float,
    clients: float | None,
    rate: float = 0.0,
    most: float = inf,
) -> Steady:
    """Prompts computed by some copies, answers decoded by others, each prompt's cache handed on in so many seconds.

    Of so many clients in a closed loop, or of requests at random, so many a second; at most so many decode at once, and
    others wait for a seat. TPOT is a step alone, for no prompt shares it; TTFT the wait in the line of prompts, the
    prompt alone, the engine's own share, the transfer, and the steps until the copy that decodes tells its first token:
    what is left of the running one, those that its engine takes for a new request, and its own. All of all copies.
    """
    fillers, decoders = copies
    each = None if clients is None else clients / fillers
    line, answers = _Loop(prefill._replace(answer=1), each), decode.answer - 1
    start = max(0.0, each - 1) / 2 * prefill.prompt / ROUNDS if each is not None else 0.0

    def tpot(decoding: float) -> float:
        return decode.step(decoding) / decode.tokens

    def told(decoding: float) -> float:
        return (1.5 + decode.polls) * decode.step(decoding)

    def served(decoding: float) -> float:
        return decoders * decoding / answers / tpot(decoding)

    def state(x: float, decoding: float) -> Steady | None:
        first = line.state(x / fillers, 0.0)
        if first is None:
            return None
        ttft, each = first.ttft + start + handed + told(decoding), decoders * decoding / answers / x
        return Steady(ttft, each, ttft + answers * each, x, first.utilisation, decoders * decoding)

    if clients is None:
        busy, largest = rate * prefill.prompt / fillers, served(most / decoders) if most < inf else inf
        if busy >= 1 or largest < rate:
            return overload(busy, most if largest < rate else inf, min(fillers / prefill.prompt, largest))
        steps = _Loop(decode._replace(prompt=0.0, chunks=0.0), None)
        decoding, full = steps.population(rate / decoders, most / decoders)
        found = state(rate, decoding)
        assert found is not None
        return found if full <= FULL else found._replace(ttft=inf, tpot=None, e2e=inf)

    def excess(decoding: float) -> float:
        found = state(served(decoding), decoding)
        return clients if found is None else found.inside - clients

    decoding = _root(excess, 0.0, min(clients, most) / decoders)
    found = state(served(decoding), decoding)
    assert found is not None
    waiting = max(0.0, clients - found.inside) / found.rate  # where prompts take all the time, or for a seat
    seat = waiting if decoding == most / decoders < clients / decoders else 0.0
    return found._replace(ttft=found.ttft + waiting, e2e=found.e2e + waiting, line=seat)


class Among(NamedTuple):
    """What one copy sees of those that share its experts, on average.

    prompt    seconds of one of its prompts
    away      seconds of others' prompts, for each of its own, in which it only waits
    interval  steps between two polls for requests
    """

    prompt: float
    away: float
    interval: float


def among(demand: Demand, clients: float | None, steady: Steady) -> Among:
    """Of a copy in its steady state: of so many clients in a closed loop, or of an open one."""
    loop = _Loop(demand, clients)
    prompt = held = demand.prompt
    if demand.sharing > 1 and demand.answer > 1:
        chance = loop.beside(steady.rate, steady.decoding)
        prompt, held = loop.lasts(chance), loop.held_up(chance)
    return Among(prompt, held - prompt, loop.interval(steady.decoding))


class _Loop:
    """A copy's means by its rate and the number that decodes: of clients in a closed loop, or in an open one."""

    def __init__(self, demand: Demand, clients: float | None) -> None:
        self.demand, self.clients = demand, clients
        # What one request sees of the others.
        self.others = 1.0 if clients is None else max(0.0, 1 - 1 / max(1.0, clients))
        self.bursts = demand.bursts if clients is None else 1.0

    def tpot(self, decoding: float) -> float:
        """A step, and its share of the others' prompts."""
        demand = self.demand
        step, each = demand.step(decoding) / demand.tokens, self.others * decoding / (demand.answer - 1)
        if self.clients is not None:
            each *= 1 - demand.together / 2  # of prompts together, half come before one's own first token
        found = step + each * demand.prompt
        for _ in range(COUPLED if demand.sharing > 1 else 0):
            beside = self.beside(decoding / (demand.answer - 1) / found, decoding)
            found = step + each * self.held_up(beside)
        return found

    def beside(self, rate: float, decoding: float) -> float:
        """The chance that another of the copies that share experts computes a prompt while this one does: its own share
        of the time, or that it found one in the same step, or when they are gathered."""
        demand = self.demand
        own = min(1.0, rate * demand.lone / max(1e-9, 1 - rate * (demand.prompt - demand.lone)))
        return max(own, 1 - exp(-self.found(decoding)))

    def lasts(self, beside: float) -> float:
        """Seconds of a prompt that so many of the others compute one beside."""
        demand = self.demand
        return demand.prompt if demand.sharing == 1 else demand.lone + (demand.prompt - demand.lone) * beside

    def held_up(self, beside: float) -> float:
        """Seconds for which a step waits for each of its copy's prompts, with those of the copies that it waits for."""
        return self.lasts(beside) * self.demand.sharing / (1 + (self.demand.sharing - 1) * beside)

    def found(self, decoding: float) -> float:
        """A copy's prompts of one poll for requests."""
        demand = self.demand
        found = demand.dense * decoding * demand.tokens * self.interval(decoding) / (demand.answer - 1)
        return min(found, decoding) if self.clients is None else min(found, self.clients)

    def interval(self, decoding: float) -> float:
        """Steps between two polls for requests: until each of the copies that gather them has one, which takes the sum
        of 1/i, i to their number, as long as one alone takes (the largest of so many exponential times)."""
        demand = self.demand
        if not demand.gathers or not decoding:
            return demand.interval
        each = (demand.answer - 1) / decoding / demand.tokens
        return min(demand.interval, each * sum(1 / i for i in range(1, demand.sharing + 1)))

    def polled(self, decoding: float) -> float:
        """Seconds of a step and of the prompts that it shares, of those between two polls."""
        demand = self.demand
        if not decoding or demand.answer == 1:
            return 0.0
        each = self.others * decoding * demand.tokens / (demand.answer - 1)
        return demand.step(decoding) + each * demand.prompt

    def rate(self, decoding: float) -> float:
        """Requests a second where so many decode on average."""
        return decoding / (self.demand.answer - 1) / self.tpot(decoding)

    def population(self, rate: float, most: float) -> tuple[float, float]:
        """Sequences that decode on average of requests at random, and the share of the time in which no more can, or
        prompts come faster than steps take them up.

        A birth-death chain: where n decode, each takes its steps, the prompts' share of the time whatever n is, and the
        prompts that came while its own was computed. A request that comes holds up all that decode, so that for a while
        fewer end: a birth counts as 1/(1 − ρ) of them. The chain goes by as many at a time as births and deaths spread.
        """
        demand = self.demand
        steps, mean = (demand.answer - 1) / demand.tokens, _root(lambda n: self.rate(n) - rate, 0.0, most)

        def taken(n: float) -> float:
            """Seconds in which one of n decodes its answer."""
            step, share = demand.step(n), min(rate * self.held(rate, n), 1 - CLOSE)
            even = step / (1 - share)
            own = step + demand.prompt * (1 + 2 * rate * self.rest(rate, step))  # of the step of its own prompt
            ahead: float = share * (1 - share**steps) / (1 - share)
            return steps * even + max(0.0, own - even) * ahead

        counts = 1 / (1 - rate * demand.prompt)
        each = (self.bursts * counts**2 + demand.spread * (counts - 1) ** 2 + 1) / 2
        stride, logs, ns, top = max(each, mean / GRID), [0.0], [0.0], 0.0
        if stride > most:
            return mean, 1.0
        while ns[-1] + stride <= most and (ns[-1] <= mean or logs[-1] > top - 25):
            ns.append(ns[-1] + stride)
            n = ns[-1] - (stride - each) / 2
            logs.append(logs[-1] + stride / each * log(rate * taken(n) / n))
            top = max(top, logs[-1])
        chances = [exp(one - top) * (stride / each if i else 1.0) for i, one in enumerate(logs)]
        full = sum(chance for n, chance in zip(ns, chances, strict=True) if rate * self.service(n) >= 0.99)
        if ns[-1] + stride > most:
            full += chances[-1] * each / stride
        decoding = sum(n * chance for n, chance in zip(ns, chances, strict=True))
        return decoding / sum(chances), full / sum(chances)

    def rest(self, rate: float, step: float) -> float:
        """Seconds that are left of a step when a request comes at random, where each serves the prompts that came in
        the one before: half of the mean of its square over its mean."""
        demand = self.demand
        share = rate * demand.prompt
        prompts = demand.prompt * share * (self.bursts + demand.spread) / (1 - share**2)
        return (step / (1 - share) + prompts) / 2

    def gate(self, rate: float, step: float, queue: float) -> float:
        """Seconds from a request's coming at random until its prompt's last step is done, beside its own time.

        Steps take up all prompts that came in the one before: what is left of that one, and all that it found. Where
        these do not go into a step, `queue` is the wait in line; a prompt's last step is not full of it alone, then.
        """
        demand = self.demand
        share, service = rate * demand.prompt, demand.prompt + demand.chunks * step
        if demand.chunks < 1:
            return max((1 + 2 * share) * self.rest(rate, step), queue) + step
        busy, least = rate * service, floor(demand.chunks) if step else ceil(demand.chunks) - 1
        chunk = demand.prompt / demand.chunks
        alone = (1 - exp(-rate * (step / 2 + least * (step + chunk)))) * (1 + least - demand.chunks)
        behind = (1 - exp(-rate * (queue + service))) / 2
        steps = (1 - busy) * (least + 1) + busy * (demand.chunks + 0.5)
        return queue + steps * step + ((1 - busy) * alone + busy * behind) * chunk

    def held(self, rate: float, decoding: float) -> float:
        """Seconds for which steps wait for a prompt of this copy."""
        return self.held_up(self.beside(rate, decoding)) if self.demand.sharing > 1 else self.demand.prompt

    def service(self, decoding: float) -> float:
        """Seconds that a prompt holds up the next: its own, and the steps of decoding that its chunks share."""
        return self.demand.prompt + self.demand.chunks * (self.demand.step(decoding) if decoding else 0.0)

    def found_busy(self, busy: float) -> float:
        """The share of requests that find a prompt before theirs where prompts take a share of the time: as much at
        random; in bursts more (of times between them that are a gamma's, GI/M/1)."""
        bursts = self.bursts
        if bursts == 1 or not busy:
            return busy

        def above(found: float) -> float:
            served = (1 - found) / busy  # in the time between two requests
            return found - exp(-(log1p(served * bursts) / bursts if bursts else served))

        return _root(above, 0.0, 1 - CLOSE)

    def crowd(self, decoding: float) -> float:
        """Prompts that one waits for of those that were found by the same poll, in steps of whole chunks."""
        demand = self.demand
        if demand.interval == 1 or demand.answer == 1:
            return 0.0
        found = 1 + self.others * self.found(decoding)  # one's own, and those that come at random meanwhile
        return (found + min(max(1.0, 1 / demand.chunks), found)) / 2 - 1

    def state(self, rate: float, decoding: float) -> Steady | None:
        """Means; None: prompts come faster than they are served."""
        demand, others = self.demand, self.others
        step, service = demand.step(decoding) if decoding else 0.0, self.service(decoding)
        busy, utilisation = rate * service, rate * demand.prompt
        if busy >= 1:
            return None
        # Whether another decodes: of a closed loop's few for sure, of those that come at random perhaps none.
        beside = 1 - exp(-decoding) if self.clients is None else min(1.0, others * decoding)
        found = self.found_busy(others * busy)
        wait = found * service / (1 - found) * (self.bursts + demand.spread) / (self.bursts + 1)
        wait += beside * step / 2
        if self.clients is None and demand.answer > 1:
            wait = self.gate(rate, beside * step, wait)
        else:
            wait += max(1.0, demand.chunks) * beside * step
        if self.clients is not None and demand.answer > 1:
            wait += max(0.0, self.clients - 1) / 2 * self.service(self.clients / 2) * demand.together
        wait += self.crowd(decoding) * demand.prompt + max(0.0, self.interval(decoding) - 1) / 2 * self.polled(decoding)
        if demand.sharing > 1 and demand.answer > 1:
            chance = self.beside(rate, decoding)
            away = rate * (self.held_up(chance) - self.lasts(chance))  # others' prompts, none of this copy
            wait += away * self.lasts(chance) / max(1.0, demand.chunks) / 2 + self.lasts(chance) - demand.lone
        ttft = demand.own + wait + demand.alone + demand.polls * beside * step
        if demand.answer == 1:
            return Steady(ttft, None, ttft, rate, utilisation, 0.0)
        tpot = self.tpot(decoding) if self.clients is not None else decoding / rate / (demand.answer - 1)
        return Steady(ttft, tpot, ttft + (demand.answer - 1) * tpot, rate, utilisation, decoding)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that grows is 0, from below, between its ends: halving, with the secant's help (Illinois)."""
    below, above = function(low + (high - low) * 1e-9), function(high)
    if above <= 0:
        return high
    side = 0
    while high - low > CLOSE * high:
        at = (low * above - high * below) / (above - below)
        at = min(max(at, low + (high - low) * 1e-3), high - (high - low) * 1e-3)
        value = function(at)
        if value > 0:
            high, above = at, value
            below = below / 2 if side > 0 else below
            side = 1
        else:
            low, below = at, value
            above = above / 2 if side < 0 else above
            side = -1
    return low
