"""Mean times of a copy of a model under load, from its rate and the sequences that decode (`steady_state` finds both).

An open loop has requests that arrive by themselves, a closed one has users who ask again when the answer is there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import ceil, erfc, exp, floor, inf, log, log1p, pi, sqrt

from txcalc.planning.serving.demand import ROUNDS, Demand, Steady

CLOSE = 1e-6  # relative, of a root
GRID = 128  # points of a chain up to its mean
OFF = 4 / 3 * 2.15  # clients whose line varies as of those off by `width`; 2.15: the mean of √1 … √9, of a random walk
DISCRETE = 1.166  # 2 · 0.583, by which the line of a random walk is shorter than a diffusion's (Siegmund 1979)
COUPLED = 8  # rounds in which the prompts of copies that share experts settle


class Loop:
    """A copy's means by its rate and the number that decodes: of clients in a closed loop, or in an open one."""

    def __init__(self, demand: Demand, clients: float | None) -> None:
        self.demand, self.clients = demand, clients
        # What one request sees of the others.
        self.others = 1.0 if clients is None else max(0.0, 1 - 1 / max(1.0, clients))
        self.bursts = demand.bursts if clients is None else 1.0
        # Asked again and again at the same number.
        self.tpot, self.found = cache(self._tpot), cache(self._found)

    def _tpot(self, decoding: float) -> float:
        """A step, and its share of the prompts."""
        demand = self.demand
        step, each = demand.step(decoding) / demand.tokens, decoding / (demand.answer - 1)
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

    def _found(self, decoding: float) -> float:
        """A copy's prompts of one poll for requests."""
        found = self.dense(decoding) * self.asked(decoding) * self.interval(decoding)
        return min(found, decoding) if self.clients is None else min(found, self.clients)

    def asked(self, decoding: float) -> float:
        """Prompts of a step where so many decode."""
        return decoding * self.demand.tokens / (self.demand.answer - 1)

    def dense(self, decoding: float) -> float:
        """How many times as close as evenly spread the requests of a closed loop come, of `ROUNDS` that begin together:
        as far apart as their prompts' steps set them, and as answers of unequal lengths do, which grows with the root
        of the rounds (a random walk) until it is all of an answer's time."""
        if self.clients is None:
            return 1.0
        even, width = self.asked(decoding) * self.demand.chunks, self.demand.width
        return sum(1 / min(1.0, sqrt(even**2 + i * width**2) or CLOSE) for i in range(1, ROUNDS)) / (ROUNDS - 1)

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
        """Requests per second where so many decode on average."""
        return decoding / (self.demand.answer - 1) / self.tpot(decoding)

    def population(self, rate: float, most: float) -> tuple[float, float]:
        """Sequences that decode on average of requests at random, and the share of the time in which no more can, or
        prompts come faster than steps take them up.

        A birth-death chain: where n decode, each takes its steps, the prompts' share of the time whatever n is, and the
        prompts that came while its own was computed. A request that comes holds up all that decode, so that for a while
        fewer end: a birth counts as 1/(1 − ρ) of them. The chain goes by as many at a time as births and deaths spread.
        """
        demand = self.demand
        steps, mean = (demand.answer - 1) / demand.tokens, root(lambda n: self.rate(n) - rate, 0.0, most)

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

        return root(above, 0.0, 1 - CLOSE)

    def crowd(self, decoding: float) -> float:
        """Prompts that one waits for of those that were found by the same poll, in steps of whole chunks."""
        demand = self.demand
        if demand.answer == 1 or (demand.interval == 1 and (self.clients is None or demand.chunks >= 1)):
            return 0.0
        return self.before(1 + self.others * self.found(decoding))  # one's own, and those that come meanwhile

    def before(self, found: float) -> float:
        """Prompts that one waits for of those that were found at once, in steps of whole chunks."""
        whole = max(1.0, 1 / self.demand.chunks) if self.demand.chunks else inf
        return (found + min(whole, found)) / 2 - 1

    def queue(self, step: float, come: float) -> tuple[float, float, float]:
        """Of a closed loop, where so many prompts come in a step: how many one finds before it in line that do not go
        into the next step, seconds that are left of the running one, and steps that its own prompt takes.

        Each client comes once in a round, so that there are about as many as come on average in any long while, and
        the line is that of periodic sources: P(line > x) = exp(−2x(x/n + 1 − ρ)), of which `n` is fewer than clients
        where their answers' lengths set them off an even line but little.
        """
        demand = self.demand
        assert self.clients is not None
        busy, varied, chunks = come * demand.chunks, 1 + demand.spread, demand.chunks
        n = max(1.0, self.clients * min(1.0, OFF * demand.width))
        if chunks >= 1:
            ahead = busy * _periodic(n, max(0.0, 1 - busy), varied)
            least = floor(chunks)
            alone = (1 - exp(-come * (0.5 + least))) * (1 + least - chunks)  # who share the last step
            behind = (1 - exp(-come * chunks * (ahead + 1))) / 2
            left = (1 - busy) * step / 2 + ((1 - busy) * alone + busy * behind) * demand.prompt / chunks
            return ahead, left, (1 - busy) * (least + 1) + busy * (chunks + 0.5)
        whole = step + come * demand.prompt
        left = (whole + come * demand.prompt**2 * varied / whole) / 2 if whole else 0.0
        room = max(CLOSE, 1 - busy) / come / chunks if busy else inf  # of a step for more, in those that come
        ahead = _periodic(n, room, varied) * exp(-DISCRETE * room * sqrt(come / varied)) if room < inf else 0.0
        return ahead, left, 1.0

    def wait(self, decoding: float) -> tuple[float, float]:
        """Of a closed loop's requests, until their prompts' last steps are done: seconds besides these prompts' own
        time, and the steps that pass meanwhile."""
        demand, others = self.demand, self.others
        assert self.clients is not None
        beside, interval = min(1.0, others * decoding), self.interval(decoding)
        step, mine = beside * demand.step(decoding), self.mine(decoding)
        come = min(self.dense(decoding) * self.asked(decoding), decoding) * others
        ahead, left, own = self.queue(step, come)
        first = self.before(max(1.0, self.clients))
        seconds = left + ahead * (mine + demand.chunks * step) + own * step + self.crowd(decoding) * mine
        seconds += beside * (interval - 1) / 2 * self.polled(decoding)
        if demand.sharing > 1:  # others' prompts, none of this copy
            away = self.rate(decoding) * (self.held(self.rate(decoding), decoding) - mine)
            seconds += away * mine / max(1.0, demand.chunks) / 2
        steps = ahead * demand.chunks + beside * (own + interval / 2)
        start = first * self.service(min(self.clients / 2, self.full))
        late = demand.together
        return (
            (1 - late) * seconds + late * start + demand.polls * step,
            (1 - late) * steps + late * first * demand.chunks + demand.polls * beside,
        )

    @property
    def full(self) -> float:
        """Those that decode where every step is full of prompts."""
        demand = self.demand
        return (demand.answer - 1) / demand.tokens / demand.chunks if demand.chunks else inf

    @property
    def idle(self) -> float:
        """Seconds of TTFT in which the copy does nothing for a request: its pipeline's way, the engine's own."""
        return self.demand.own + self.demand.alone - (self.demand.lone or self.demand.prompt)

    def mine(self, decoding: float) -> float:
        """Seconds of a prompt where so many decode."""
        return self.lasts(self.beside(self.rate(decoding), decoding)) if self.demand.sharing > 1 else self.demand.prompt

    def asking(self, decoding: float) -> float:
        """Clients of a closed loop of which so many decode on average, counted in steps: for these an answer takes as
        many whatever the prompts that are computed meanwhile, and there is a line where steps are full of prompts."""
        idle = self.others * self.idle / self.tpot(decoding) / self.demand.tokens
        return decoding + self.asked(decoding) * (self.wait(decoding)[1] + idle)

    def together(self, decoding: float) -> Steady:
        """Means of a closed loop's clients, of which so many decode.

        A round takes the steps of an answer and of its wait, and all prompts of a round. TTFT and what is left for an
        answer were found apart, and miss their sum by a little: by least squares, each by its own size, neither below
        what it takes alone.
        """
        demand, others, clients = self.demand, self.others, self.clients
        assert clients is not None
        answer, each, mine, asked = demand.answer - 1, self.tpot(decoding), self.mine(decoding), self.asked(decoding)
        line = max(0.0, clients - self.asking(decoding)) / asked * each * demand.tokens
        ttft = mine + self.idle + self.wait(decoding)[0] + line * (1 - demand.together)
        # Of a round's prompts all but one's own, and of those that are computed together half, are in an answer's time.
        decodes = answer * each - decoding * mine * (1 - others * (1 - demand.together / 2))
        e2e = clients / asked * each * demand.tokens + self.idle * (1 - others)
        alone, bare = mine + self.idle, answer * demand.step(decoding) / demand.tokens
        e2e = max(e2e, alone + bare)
        off = (e2e - ttft - decodes) / (ttft**2 + decodes**2)
        ttft = min(max(ttft + off * ttft**2, alone), e2e - bare)
        decodes, rate = e2e - ttft, clients / e2e
        return Steady(ttft, decodes / answer, e2e, rate, rate * demand.prompt, rate * decodes)

    def state(self, rate: float, decoding: float) -> Steady | None:
        """Means; None: prompts come faster than they are served."""
        demand, others = self.demand, self.others
        step, service = demand.step(decoding) if decoding else 0.0, self.service(decoding)
        busy, utilisation = rate * service, rate * demand.prompt
        if busy >= 1:
            return None
        beside = 1 - exp(-decoding)  # whether another decodes
        found = self.found_busy(others * busy)
        wait = found * service / (1 - found) * (self.bursts + demand.spread) / (self.bursts + 1)
        if demand.answer > 1:
            wait = self.gate(rate, beside * step, wait + beside * step / 2)
        polls = max(0.0, self.interval(decoding) - 1) / 2  # while any decodes
        wait += self.crowd(decoding) * demand.prompt + beside * polls * self.polled(decoding)
        if demand.sharing > 1 and demand.answer > 1:
            chance = self.beside(rate, decoding)
            away = rate * (self.held_up(chance) - self.lasts(chance))  # others' prompts, none of this copy
            wait += away * self.lasts(chance) / max(1.0, demand.chunks) / 2 + self.lasts(chance) - demand.lone
        ttft = demand.own + wait + demand.alone + demand.polls * beside * step
        if demand.answer == 1:
            return Steady(ttft, None, ttft, rate, utilisation, 0.0)
        tpot = decoding / rate / (demand.answer - 1)
        return Steady(ttft, tpot, ttft + (demand.answer - 1) * tpot, rate, utilisation, decoding)


def _periodic(n: float, room: float, varied: float) -> float:
    """Mean of a line with P(line > x) = exp(−2x(x/n + room)/varied)."""
    z = room * sqrt(n / 2 / varied)
    return varied / 2 / room * (1 - 0.5 / z**2) if z > 20 else sqrt(pi * n * varied / 8) * exp(z * z) * erfc(z)


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that grows is 0, from below, between its ends: halving, with the secant's help (Illinois)."""
    above = function(high)
    if above <= 0:
        return high
    for _ in range(4):
        least = low + (high - low) * 1e-9
        if (below := function(least)) < 0:
            break
        high, above = least, below
    else:
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
