"""Queueing formulas for one replica: mean latencies from its request rate and its mean decode batch.

`steady_state` solves for these two. In an open loop requests arrive at a given rate; in a closed loop each client sends
its next request when it has its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import ceil, erfc, exp, floor, inf, log, log1p, pi, sqrt

from txcalc.planning.serving.demand import ROUNDS, Demand, Steady, rounds

TOLERANCE = 1e-6  # of `find_zero`, relative
GRID = 128  # states of the birth-death chain up to its mean
# Clients per unit of `width` whose queue varies as that of periodic sources; 2.15 is the mean of √1 … √9 (random walk).
PERIODIC_CLIENTS = 4 / 3 * 2.15
DISCRETE = 1.166  # 2 · 0.583: a random walk's queue is shorter than the diffusion's (Siegmund 1979)
COUPLING_ITERATIONS = 8  # iterations until the prompt times of replicas that share experts converge


class Replica:
    """Means of one replica under load, by its request rate and its mean decode batch (`decoding`).

    clients      of a closed loop; None: an open loop
    other_share  share of the load that is due to other clients: (n − 1)/n in a closed loop
    """

    def __init__(self, demand: Demand, clients: float | None) -> None:
        self.demand, self.clients = demand, clients
        self.other_share = 1.0 if clients is None else max(0.0, 1 - 1 / max(1.0, clients))
        self.bursts = demand.bursts if clients is None else 1.0
        self.rounds = demand.rounds or rounds(clients or 1.0)
        self.together = max(demand.together, 1 / self.rounds)
        # Root finding calls both many times with the same batch.
        self.tpot, self.polled_prompts = cache(self._tpot), cache(self._polled_prompts)

    def _tpot(self, decoding: float) -> float:
        """Seconds per output token: a decode step and the prefill that interrupts it."""
        demand = self.demand
        step, per_token = demand.step(decoding) / demand.tokens, decoding / (demand.answer - 1)
        tpot = step + per_token * demand.prompt
        for _ in range(COUPLING_ITERATIONS if demand.sharing > 1 else 0):
            overlap = self.overlap(decoding / (demand.answer - 1) / tpot, decoding)
            tpot = step + per_token * self.stall(overlap)
        return tpot

    def overlap(self, rate: float, decoding: float) -> float:
        """Probability that another of the replicas that share experts prefills while this one does: its own share of
        time in prefill, or the chance that its last poll found a prompt, whichever is larger."""
        demand = self.demand
        prefill_share = min(1.0, rate * demand.solo / max(1e-9, 1 - rate * (demand.prompt - demand.solo)))
        return max(prefill_share, 1 - exp(-self.polled_prompts(decoding)))

    def prompt_time(self, overlap: float) -> float:
        """Seconds of a prompt while another replica prefills with this probability."""
        demand = self.demand
        return demand.prompt if demand.sharing == 1 else demand.solo + (demand.prompt - demand.solo) * overlap

    def stall(self, overlap: float) -> float:
        """Seconds that decode waits per prompt of this replica: its own prefill, and that of replicas that share its
        experts."""
        return self.prompt_time(overlap) * self.demand.sharing / (1 + (self.demand.sharing - 1) * overlap)

    def _polled_prompts(self, decoding: float) -> float:
        """Prompts that one poll for requests finds."""
        prompts = self.clustering(decoding) * self.prompts_per_step(decoding) * self.poll_interval(decoding)
        return min(prompts, decoding) if self.clients is None else min(prompts, self.clients)

    def prompts_per_step(self, decoding: float) -> float:
        """Prompts that arrive per decode step; as many answers end."""
        return decoding * self.demand.tokens / (self.demand.answer - 1)

    def clustering(self, decoding: float) -> float:
        """Density of a closed loop's arrivals, relative to evenly spaced ones (1), as a mean over all rounds but the
        first.

        All clients start together. The steps of their prompts spread them, and so do unequal answers, by the square
        root of the round (a random walk), until they are spread over the whole time of an answer.
        """
        if self.clients is None:
            return 1.0
        even, width = self.prompts_per_step(decoding) * self.demand.chunks, self.demand.width

        def spread(i: float) -> float:
            return min(1.0, sqrt(even**2 + i * width**2) or TOLERANCE)

        early = sum(1 / spread(i) for i in range(1, ROUNDS))
        first, last = ROUNDS - 0.5, self.rounds - 0.5  # of the others, whose sum is an integral
        full = min(last, max(first, (1 - even**2) / width**2)) if width else last  # spread over the whole time
        middle = 2 * (spread(full) - spread(first)) / width**2 if width else (last - first) / spread(first)
        return (early + middle + last - full) / (self.rounds - 1)

    def poll_interval(self, decoding: float) -> float:
        """Decode steps between two polls for requests. Replicas that gather prompts wait until each has one: the mean
        of the largest of n exponential times, which is the mean of one times Σ 1/i for i = 1 … n."""
        demand = self.demand
        if not demand.gathers or not decoding:
            return demand.interval
        per_token = (demand.answer - 1) / decoding / demand.tokens
        return min(demand.interval, per_token * sum(1 / i for i in range(1, demand.sharing + 1)))

    def poll_step(self, decoding: float) -> float:
        """Seconds of a decode step between two polls, with the prefill that interrupts it."""
        demand = self.demand
        if not decoding or demand.answer == 1:
            return 0.0
        per_token = self.other_share * decoding * demand.tokens / (demand.answer - 1)
        return demand.step(decoding) + per_token * demand.prompt

    def rate(self, decoding: float) -> float:
        """Requests per second at this mean decode batch (Little's law)."""
        return decoding / (self.demand.answer - 1) / self.tpot(decoding)

    def population(self, rate: float, most: float) -> tuple[float, float]:
        """Mean decode batch at an open loop's rate, and the share of time at which it is overloaded: the batch is full
        (`most`), or prompts arrive faster than they are computed.

        A birth-death chain of the batch size n. A sequence is in the batch for its decode steps, for the prefill that
        interrupts them, and for the prompts that arrived while its own was computed. Each arrival stalls all that
        decode, so fewer end meanwhile: a birth counts 1/(1 − ρ). A stride of the chain is as wide as births and deaths
        vary.
        """
        demand = self.demand
        steps, mean = (demand.answer - 1) / demand.tokens, find_zero(lambda n: self.rate(n) - rate, 0.0, most)

        def decode_time(n: float) -> float:
            """Seconds in which one sequence of n decodes its answer."""
            step, share = demand.step(n), min(rate * self.stall_at(rate, n), 1 - TOLERANCE)
            even = step / (1 - share)
            first = step + demand.prompt * (1 + 2 * rate * self.residual_step(rate, step))  # the step of its own prompt
            ahead: float = share * (1 - share**steps) / (1 - share)
            return steps * even + max(0.0, first - even) * ahead

        counts = 1 / (1 - rate * demand.prompt)
        variance = (self.bursts * counts**2 + demand.spread * (counts - 1) ** 2 + 1) / 2
        stride, logs, ns, top = max(variance, mean / GRID), [0.0], [0.0], 0.0
        if stride > most:
            return mean, 1.0
        while ns[-1] + stride <= most and (ns[-1] <= mean or logs[-1] > top - 25):
            ns.append(ns[-1] + stride)
            n = ns[-1] - (stride - variance) / 2
            logs.append(logs[-1] + stride / variance * log(rate * decode_time(n) / n))
            top = max(top, logs[-1])
        weights = [exp(log_weight - top) * (stride / variance if i else 1.0) for i, log_weight in enumerate(logs)]
        full = sum(weight for n, weight in zip(ns, weights, strict=True) if rate * self.service(n) >= 0.99)
        if ns[-1] + stride > most:
            full += weights[-1] * variance / stride
        decoding = sum(n * weight for n, weight in zip(ns, weights, strict=True))
        return decoding / sum(weights), full / sum(weights)

    def residual_step(self, rate: float, step: float) -> float:
        """Mean residual time of a step at a random arrival, E[S²]/(2·E[S]), where each step prefills the prompts that
        arrived during the one before."""
        demand = self.demand
        share = rate * demand.prompt
        prompts = demand.prompt * share * (self.bursts + demand.spread) / (1 - share**2)
        return (step / (1 - share) + prompts) / 2

    def prefill_wait(self, rate: float, step: float, queue: float) -> float:
        """Seconds from a random arrival to the end of the prompt's last step, without the prompt's own time.

        A step computes all prompts that arrived during the one before (gated service), so a request waits for the
        residual step and for all prompts of its own step. If they do not fit in one step, `queue` is the wait in line,
        and the last step of a prompt also computes others.
        """
        demand = self.demand
        share, service = rate * demand.prompt, demand.prompt + demand.chunks * step
        if demand.chunks < 1:
            return max((1 + 2 * share) * self.residual_step(rate, step), queue) + step
        busy, least = rate * service, floor(demand.chunks) if step else ceil(demand.chunks) - 1
        chunk = demand.prompt / demand.chunks
        first = (1 - exp(-rate * (step / 2 + least * (step + chunk)))) * (1 + least - demand.chunks)
        later = (1 - exp(-rate * (queue + service))) / 2
        steps = (1 - busy) * (least + 1) + busy * (demand.chunks + 0.5)
        return queue + steps * step + ((1 - busy) * first + busy * later) * chunk

    def stall_at(self, rate: float, decoding: float) -> float:
        """`stall` at a rate and a mean decode batch."""
        return self.stall(self.overlap(rate, decoding)) if self.demand.sharing > 1 else self.demand.prompt

    def service(self, decoding: float) -> float:
        """Seconds by which a prompt delays the next: its prefill, and the decode steps that share its chunks' steps."""
        return self.demand.prompt + self.demand.chunks * (self.demand.step(decoding) if decoding else 0.0)

    def found_busy(self, busy: float) -> float:
        """Probability that an arrival finds another prompt before it, where prompts keep the replica busy for a share
        of the time: that share for Poisson arrivals, more for bursts (gamma interarrival times, GI/M/1)."""
        bursts = self.bursts
        if bursts == 1 or not busy:
            return busy

        def above(chance: float) -> float:
            served = (1 - chance) / busy  # in the time between two requests
            return chance - exp(-(log1p(served * bursts) / bursts if bursts else served))

        return find_zero(above, 0.0, 1 - TOLERANCE)

    def polled_ahead(self, decoding: float) -> float:
        """Mean prompts of the same poll that are computed before a request's own."""
        demand = self.demand
        if demand.answer == 1 or (demand.interval == 1 and (self.clients is None or demand.chunks >= 1)):
            return 0.0
        return self.ahead_in_batch(1 + self.other_share * self.polled_prompts(decoding))

    def ahead_in_batch(self, prompts: float) -> float:
        """Of `prompts` that arrive together: how many one waits for on average. Prompts of one step end together."""
        per_step = max(1.0, 1 / self.demand.chunks) if self.demand.chunks else inf
        return (prompts + min(per_step, prompts)) / 2 - 1

    def closed_queue(self, step: float, arrivals: float) -> tuple[float, float, float]:
        """The queue of a closed loop in which `arrivals` prompts arrive per step.

        Returns  prompts ahead that do not fit in the next step; seconds left of the running step; steps of the prompt
                 itself
        Source   each client arrives once per round, so arrivals are those of periodic sources: P(queue > x) =
                 exp(−2x(x/n + 1 − ρ)); n is below the number of clients while answers of nearly equal lengths end
                 together
        """
        demand = self.demand
        assert self.clients is not None
        busy, varied, chunks = arrivals * demand.chunks, 1 + demand.spread, demand.chunks
        n = max(1.0, self.clients * min(1.0, PERIODIC_CLIENTS * demand.width))
        if chunks >= 1:
            ahead = busy * _periodic(n, max(0.0, 1 - busy), varied)
            least = floor(chunks)
            first = (1 - exp(-arrivals * (0.5 + least))) * (1 + least - chunks)  # others in the last step
            later = (1 - exp(-arrivals * chunks * (ahead + 1))) / 2
            delay = (1 - busy) * step / 2 + ((1 - busy) * first + busy * later) * demand.prompt / chunks
            return ahead, delay, (1 - busy) * (least + 1) + busy * (chunks + 0.5)
        whole = step + arrivals * demand.prompt
        delay = (whole + arrivals * demand.prompt**2 * varied / whole) / 2 if whole else 0.0
        slack = max(TOLERANCE, 1 - busy) / arrivals / chunks if busy else inf  # of a step, in units of its arrivals
        ahead = _periodic(n, slack, varied) * exp(-DISCRETE * slack * sqrt(arrivals / varied)) if slack < inf else 0.0
        return ahead, delay, 1.0

    def wait(self, decoding: float) -> tuple[float, float]:
        """Wait of a closed loop's request until the last step of its prompt ends: seconds without the prompt's own
        time, and decode steps."""
        demand, other_share = self.demand, self.other_share
        assert self.clients is not None
        shared, interval = min(1.0, other_share * decoding), self.poll_interval(decoding)
        step, prompt = shared * demand.step(decoding), self.prompt_time_at(decoding)
        arrivals = min(self.clustering(decoding) * self.prompts_per_step(decoding), decoding) * other_share
        ahead, delay, prompt_steps = self.closed_queue(step, arrivals)
        first = self.ahead_in_batch(max(1.0, self.clients))
        seconds = delay + ahead * (prompt + demand.chunks * step) + prompt_steps * step
        seconds += self.polled_ahead(decoding) * prompt
        seconds += shared * (interval - 1) / 2 * self.poll_step(decoding)
        if demand.sharing > 1:  # prefill of the other replicas alone
            away = self.rate(decoding) * (self.stall_at(self.rate(decoding), decoding) - prompt)
            seconds += away * prompt / max(1.0, demand.chunks) / 2
        steps = ahead * demand.chunks + shared * (prompt_steps + interval / 2)
        start = first * self.service(min(self.clients / 2, self.saturated))
        together = self.together
        return (
            (1 - together) * seconds + together * start + demand.polls * step,
            (1 - together) * steps + together * first * demand.chunks + demand.polls * shared,
        )

    @property
    def saturated(self) -> float:
        """Mean decode batch at which every step is full of prompt chunks."""
        demand = self.demand
        return (demand.answer - 1) / demand.tokens / demand.chunks if demand.chunks else inf

    @property
    def overhead(self) -> float:
        """Seconds of TTFT that do not occupy the replica: transfers between pipeline stages, and the engine's."""
        return self.demand.overhead + self.demand.unloaded - (self.demand.solo or self.demand.prompt)

    def prompt_time_at(self, decoding: float) -> float:
        """`prompt_time` at a mean decode batch."""
        if self.demand.sharing == 1:
            return self.demand.prompt
        return self.prompt_time(self.overlap(self.rate(decoding), decoding))

    def clients_for(self, decoding: float) -> float:
        """Clients of a closed loop with this mean decode batch.

        Counted in steps: an answer takes a fixed number of steps, and a queue forms when steps are full of prompt
        chunks.
        """
        idle = self.other_share * self.overhead / self.tpot(decoding) / self.demand.tokens
        return decoding + self.prompts_per_step(decoding) * (self.wait(decoding)[1] + idle)

    def closed_state(self, decoding: float) -> Steady:
        """Means of a closed loop with this mean decode batch.

        A round takes the steps of an answer and of its wait, and the prompts of all clients. TTFT and decode time are
        computed separately, and their sum is a little off the round's time: least squares, relative to each, divide the
        difference, and neither falls below its time without load.
        """
        demand, other_share, clients = self.demand, self.other_share, self.clients
        assert clients is not None
        answer, tpot = demand.answer - 1, self.tpot(decoding)
        prompt, arrivals = self.prompt_time_at(decoding), self.prompts_per_step(decoding)
        line = max(0.0, clients - self.clients_for(decoding)) / arrivals * tpot * demand.tokens
        ttft = prompt + self.overhead + self.wait(decoding)[0] + line * (1 - self.together)
        # An answer's time includes a round's prompts without its own, and half of those that are computed together.
        decodes = answer * tpot - decoding * prompt * (1 - other_share * (1 - self.together / 2))
        e2e = clients / arrivals * tpot * demand.tokens + self.overhead * (1 - other_share)
        unloaded, bare = prompt + self.overhead, answer * demand.step(decoding) / demand.tokens
        e2e = max(e2e, unloaded + bare)
        off = (e2e - ttft - decodes) / (ttft**2 + decodes**2)
        ttft = min(max(ttft + off * ttft**2, unloaded), e2e - bare)
        decodes, rate = e2e - ttft, clients / e2e
        return Steady(ttft, decodes / answer, e2e, rate, rate * demand.prompt, rate * decodes)

    def state(self, rate: float, decoding: float) -> Steady | None:
        """Means at a request rate and a mean decode batch; None: prompts arrive faster than they are computed."""
        demand, other_share = self.demand, self.other_share
        step, service = demand.step(decoding) if decoding else 0.0, self.service(decoding)
        busy, utilisation = rate * service, rate * demand.prompt
        if busy >= 1:
            return None
        shared = 1 - exp(-decoding)  # probability that another sequence decodes
        queued = self.found_busy(other_share * busy)
        wait = queued * service / (1 - queued) * (self.bursts + demand.spread) / (self.bursts + 1)
        if demand.answer > 1:
            wait = self.prefill_wait(rate, shared * step, wait + shared * step / 2)
        polls = max(0.0, self.poll_interval(decoding) - 1) / 2  # while any sequence decodes
        wait += self.polled_ahead(decoding) * demand.prompt + shared * polls * self.poll_step(decoding)
        if demand.sharing > 1 and demand.answer > 1:
            overlap = self.overlap(rate, decoding)
            prompt = self.prompt_time(overlap)
            away = rate * (self.stall(overlap) - prompt)  # prefill of the other replicas alone
            wait += away * prompt / max(1.0, demand.chunks) / 2 + prompt - demand.solo
        ttft = demand.overhead + wait + demand.unloaded + demand.polls * shared * step
        if demand.answer == 1:
            return Steady(ttft, None, ttft, rate, utilisation, 0.0)
        tpot = decoding / rate / (demand.answer - 1)
        return Steady(ttft, tpot, ttft + (demand.answer - 1) * tpot, rate, utilisation, decoding)


def _periodic(n: float, slack: float, varied: float) -> float:
    """Mean of a queue with P(queue > x) = exp(−2x(x/n + slack)/varied)."""
    z = slack * sqrt(n / 2 / varied)
    return varied / 2 / slack * (1 - 0.5 / z**2) if z > 20 else sqrt(pi * n * varied / 8) * exp(z * z) * erfc(z)


def find_zero(function: Callable[[float], float], low: float, high: float) -> float:
    """The zero of an increasing function, from below, by regula falsi (Illinois); `high` if there is none."""
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
    while high - low > TOLERANCE * high:
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
