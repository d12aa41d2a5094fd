"""A server that prefills and decodes at once, in closed form: means of TTFT, TPOT and end to end at a load.

One copy of the model serves x requests a second. A prompt takes τ seconds of its time, so prompts take ρ = x·τ of it,
and decode steps have the rest:

TPOT     t(D)/(1 − ρ), where t(D) is a decode step of the D sequences that decode on average; by Little's law
         D = x·(answer − 1)·TPOT, so that TPOT = t(D) + D·τ/(answer − 1): a step, and its share of the prompts (of N
         clients in a closed loop (N − 1)/N of it: one's own prompt is before its answer; in rounds whose prompts are
         computed `together`, before any answer, half of it)
TTFT     the wait in line, the prompt alone, the decode steps that its chunks share a step with, the engine's own share;
         where it polls for requests once in several steps, half of these, and the prompts that came meanwhile
wait     M/G/1 (Pollaczek and Khinchine; of bursts Kingman) with a prompt's time in a step that decodes too, and what is
         left of the running step, a server's vacation. Of N clients in a closed loop each sees (N − 1)/N of the others
         (Schweitzer), and all start at once, as benchmarks do, with `ROUNDS` requests each: then half of all come
         first, and so in every round that they come `together`
x        open loop: the rate asked for, which lasts while ρ < 1 and D fits; closed loop: of N clients,
         N = x·(TTFT + (answer − 1)·TPOT)

Source   Little 1961; Kleinrock 1975 (Queueing Systems I, 5.6) and Schweitzer 1979 for the wait; Agrawal et al. 2024
         (arXiv 2403.02310) for chunks of prompts that share their steps with decoding
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, sqrt
from typing import NamedTuple

# A benchmark's clients send so many requests each: --num-prompts is 10 · --max-concurrency in InferenceX's runs
# (SemiAnalysisAI/InferenceX, benchmarks, 2026-02).
ROUNDS = 10
CLOSE = 1e-6  # relative, of a root
MANY = 1e6  # sequences: what these do not keep up with, no number does
FEW = 64  # seats, all of which may be taken at times though on average less than half are
COUPLED = 8  # rounds in which the prompts of copies that share experts settle


class Demand(NamedTuple):
    """What requests ask of one copy of the model.

    step     seconds of a decode step of so many sequences at their mean length
    tokens   expected of a sequence in a step: 1, or more by speculation
    prompt   seconds of the copy's time that a prompt takes among others: τ
    alone    seconds from a prompt's first token in to its first one out, with nothing else to do
    chunks   steps that a prompt takes where each holds a full chunk: of prompts that share one, a part
    answer   tokens of an answer, the first of which comes with the prompt
    own      seconds of TTFT that an engine takes for itself
    polls    decode steps of others that it takes besides
    interval decode steps between two polls for new requests: a request waits for half of them, and for the prompts
             that came meanwhile
    spread   variance of a prompt's time over its mean squared
    bursts   variance of the time between requests of an open loop over its mean squared: 1 at random
    together    share of the rounds in which all prompts of a closed loop are computed before any answer: the first of
             `ROUNDS`, and more where an engine computes prompts first and answers are of one length: they end together
    dense    of a closed loop: how many times as close as evenly spread requests come (`denser`)
    sharing  copies that share experts, whose steps all wait for the slowest of them
    lone     seconds of a prompt where no other of these copies computes one
    gathers  of these copies, prompts wait for each other: until all copies have one, at most `interval` steps
    """

    step: Callable[[float], float]
    prompt: float
    alone: float
    chunks: float
    answer: int
    tokens: float = 1.0
    own: float = 0.0
    polls: float = 0.0
    spread: float = 0.0
    bursts: float = 1.0
    together: float = 1 / ROUNDS
    interval: int = 1
    dense: float = 1.0
    sharing: int = 1
    lone: float = 0.0
    gathers: bool = False


def denser(spread: float) -> float:
    """How many times as close as evenly spread the requests of a closed loop come, of `ROUNDS` that begin together:
    answers of lengths evenly from one number to another end over so much of an answer's time, which grows with the
    root of the rounds (a random walk) until it is all of it. `spread`: variance of an answer's length over its mean
    squared; 0: 1, for those that are `together` are told apart.
    """
    width = sqrt(12 * spread)
    return sum(max(1.0, 1 / (width * sqrt(i))) for i in range(1, ROUNDS)) / (ROUNDS - 1) if width else 1.0


class Steady(NamedTuple):
    """Means of a copy of the model at a load, in seconds; tpot: None where an answer is one token.

    rate          requests a second
    utilisation   share of the time that prompts take
    decoding      sequences that decode
    line          of TTFT, the wait for a seat in the cache
    lasts         it can keep up with the requests; else no latency has a mean (inf), rate is what it can keep up with,
                  utilisation what prompts would take, decoding what would have to decode (inf: no number is enough)
    """

    ttft: float
    tpot: float | None
    e2e: float
    rate: float
    utilisation: float
    decoding: float
    line: float = 0.0
    lasts: bool = True

    @property
    def inside(self) -> float:
        """Requests that wait, are computed or decode: Little's law."""
        return self.rate * self.e2e


def overload(utilisation: float, decoding: float, rate: float) -> Steady:
    """Of a rate that a copy cannot keep up with."""
    return Steady(inf, None, inf, rate, utilisation, decoding, lasts=False)


class Answered:
    """What `gpus` answer at a load: `steady`, of all of them, with answers of so many tokens."""

    steady: Steady
    answer: int

    @property
    def gpus(self) -> int:
        raise NotImplementedError

    @property
    def rate(self) -> float:
        """Requests a second that are answered."""
        return self.steady.rate

    @property
    def served(self) -> float:
        """Tokens of answers a second and GPU."""
        return self.rate * self.answer / self.gpus

    @property
    def seconds(self) -> float:
        """GPU-seconds of a request."""
        return self.gpus / self.rate

    def million_output(self, price: float) -> float:
        """Cost of everything, prompts too, over a million tokens of answers, at a price of a GPU-hour."""
        return price / 3600 * 1e6 / self.served


class StepCurve:
    """A step's seconds by the sequences that decode: exact up to 8, then linear between numbers 2^(1/2) apart."""

    def __init__(self, exact: Callable[[int], float]) -> None:
        self.exact = exact
        self._known: dict[int, float] = {}

    def __call__(self, sequences: float) -> float:
        n = max(1.0, sequences)
        low = int(n) if n < 8 else _knot(_index(n))
        if low == n:
            return self._at(low)
        high = low + 1 if n < 8 else _knot(_index(n) + 1)
        first = self._at(low)
        return first + (self._at(high) - first) * (n - low) / (high - low)

    def _at(self, n: int) -> float:
        if n not in self._known:
            self._known[n] = self.exact(n)
        return self._known[n]


def _knot(i: int) -> int:
    return round(8 * 2 ** (i / 2))


def _index(n: float) -> int:
    """The last knot that is not above n."""
    i = 0
    while _knot(i + 1) <= n:
        i += 1
    return i


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

    if behind(most) >= 0:
        decoding = _root(behind, 0.0, most)
        if found := loop.state(rate, decoding):
            line = loop.line(rate, int(most)) if decoding > most / 2 or most <= FEW else 0.0
            return found._replace(ttft=found.ttft + line, e2e=found.e2e + line, line=line)
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
        ttft, each = first.ttft + start + handed + told(decoding), tpot(decoding)
        return Steady(ttft, each, ttft + answers * each, x, first.utilisation, decoders * decoding)

    if clients is None:
        busy, largest = rate * prefill.prompt / fillers, served(most / decoders) if most < inf else inf
        if busy >= 1 or largest < rate:
            return overload(busy, most if largest < rate else inf, min(fillers / prefill.prompt, largest))
        decoding = _root(lambda n: served(n) - rate, 0.0, most / decoders)
        found = state(rate, decoding)
        assert found is not None
        return found

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

    def line(self, rate: float, seats: int) -> float:
        """Seconds in line for a seat, of requests at random: n inside are answered at the rate of n that decode, up to
        the seats (a birth-death chain; of processor sharing it holds whatever the answers' lengths are)."""
        chance = total = 1.0
        for n in range(1, seats + 1):
            chance *= rate / self.rate(n)
            total += chance
            if total > 1e200:
                chance, total = chance / total, 1.0
        share = min(rate / self.rate(seats), 1 - CLOSE)
        waiting = chance * share / (1 - share) ** 2
        return waiting / (total + chance * share / (1 - share)) / rate * (1 + self.demand.bursts) / 2

    def service(self, decoding: float) -> float:
        """Seconds that a prompt holds up the next: its own, and the steps of decoding that its chunks share."""
        return self.demand.prompt + self.demand.chunks * (self.demand.step(decoding) if decoding else 0.0)

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
        wait = others * busy * service / 2 * (demand.bursts + demand.spread) / (1 - others * busy)
        wait += beside * step / 2
        if self.clients is not None and demand.answer > 1:
            wait += max(0.0, self.clients - 1) / 2 * self.service(self.clients / 2) * demand.together
        wait += self.crowd(decoding) * demand.prompt + max(0.0, self.interval(decoding) - 1) / 2 * self.polled(decoding)
        if demand.sharing > 1 and demand.answer > 1:
            chance = self.beside(rate, decoding)
            away = rate * (self.held_up(chance) - self.lasts(chance))  # others' prompts, none of this copy
            wait += away * self.lasts(chance) / max(1.0, demand.chunks) / 2 + self.lasts(chance) - demand.lone
        ttft = demand.own + wait + demand.alone + (max(1.0, demand.chunks) + demand.polls) * beside * step
        if demand.answer == 1:
            return Steady(ttft, None, ttft, rate, utilisation, 0.0)
        tpot = self.tpot(decoding)
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
