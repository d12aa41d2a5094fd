"""Continuous batching, request by request: a discrete-event simulation of one replica.

The scheduler is vLLM's. A step decodes every running sequence; the rest of its token budget computes chunks of prompts,
first come, first served, while sequences and cache pages are free. If a page is lacking, the sequence that came last is
preempted: it frees its pages and is computed again later. A step takes the time of its decode (`demand.StepCurve`, with
sequences at their mean length) plus that of its prompt tokens.

Steps between two events are equal and are taken at once, so the run time grows with requests, not with tokens.

Source   Yu et al. 2022 (Orca); Agrawal et al. 2024 (arXiv 2403.02310); vLLM 0.11, vllm/v1/core/sched/scheduler.py
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heapify, heappop, heappush
from math import ceil, floor, inf
from typing import NamedTuple

from txcalc.errors import Fault, InputError
from txcalc.num import ceil_div
from txcalc.planning.layout import Layout
from txcalc.planning.serving.demand import REQUESTS, LatencyStats, Steady, rounds
from txcalc.planning.serving.points import Slo, Timer
from txcalc.planning.serving.steady_state import Coupling, coupling
from txcalc.planning.serving.traffic import Arrival, Lengths

SEQUENCES = 1024  # concurrent, unless the engine says: vLLM's max_num_seqs on large cards


class Server(NamedTuple):
    """One replica.

    step       seconds of a decode step, by its number of sequences
    token      seconds that a prompt token adds to a step
    delay      seconds of TTFT besides the steps: pipeline transfers and the engine's overhead
    budget     tokens per step (max_num_batched_tokens)
    sequences  that run at once (max_num_seqs)
    pages      of the KV cache
    block      tokens per page
    tokens     expected per sequence and step: 1, or more with speculation
    polls      further decode steps that the engine takes until a first token
    interval   steps between two polls for requests, while any sequence runs
    """

    step: Callable[[float], float]
    token: float
    delay: float
    budget: int
    sequences: int
    pages: int
    block: int = 16
    tokens: float = 1.0
    polls: float = 0.0
    interval: int = 1

    @classmethod
    def of(
        cls, timer: Timer, layout: Layout, sequences: int, load: tuple[float | None, Steady] | None = None
    ) -> Server:
        """A replica of a layout, with all its cache pages and at most `sequences` concurrent sequences.

        load   its clients (None: an open loop) and steady state, for the effect of replicas that share its experts;
               without a load, they prefill whenever this one does
        """
        demand, engine = timer.demand(layout), timer.planner.engine
        expert_coupling = coupling(demand, *load) if load else Coupling(demand.prompt, 0.0, demand.interval)
        away = expert_coupling.away * demand.tokens / max(1, demand.answer - 1)
        traffic = timer.request.traffic
        longest = min(timer.context, traffic.prompts.high + traffic.answers.high)
        most = timer.planner.max_concurrency(layout, longest) // layout.dp
        prompt, cached = timer.request.on(timer.layout_time(layout), timer.context)
        return cls(
            step=cache(lambda n: demand.step(n) + n * away),
            token=expert_coupling.prompt / (prompt - cached),
            delay=demand.unloaded - (demand.solo or demand.prompt) + demand.overhead,
            budget=engine.chunk,
            sequences=sequences,
            pages=most * ceil_div(longest - engine.shared, engine.block),
            block=engine.block,
            tokens=demand.tokens,
            polls=demand.polls,
            interval=max(1, round(expert_coupling.interval)),
        )


class Done(NamedTuple):
    """A completed request: seconds of its arrival, first token and last token; tokens of its answer."""

    at: float
    first: float
    last: float
    answer: int

    @property
    def ttft(self) -> float:
        return self.first - self.at

    @property
    def tpot(self) -> float | None:
        return (self.last - self.first) / (self.answer - 1) if self.answer > 1 else None

    @property
    def e2e(self) -> float:
        return self.last - self.at


def spread(values: Sequence[float]) -> LatencyStats | None:
    """Mean and percentiles; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return LatencyStats(sum(ordered) / len(ordered), *(percentile(ordered, percent) for percent in (50, 90, 99)))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value that this percentage of ascending values do not exceed (nearest rank)."""
    return ordered[max(0, ceil(percent * len(ordered) / 100) - 1)]


@dataclass
class SimulatedRun:
    """The result of a simulation.

    seconds       simulated time
    waiting       requests without a first token, mean over time; most_waiting: at most
    inside        requests that wait, prefill or decode, mean over time
    busy          share of time in which a step runs
    preempted     preemptions
    steps         steps of the engine
    stopped       whether it ended early, because a limit was missed
    """

    done: list[Done] = field(default_factory=list)
    seconds: float = 0.0
    waiting: float = 0.0
    most_waiting: int = 0
    inside: float = 0.0
    busy: float = 0.0
    preempted: int = 0
    steps: int = 0
    stopped: bool = False

    @property
    def output(self) -> float:
        """Answer tokens per second."""
        return sum(request.answer for request in self.done) / self.seconds if self.seconds else 0.0

    def within(self, ttft: float | None, tpot: float | None) -> float:
        """Share of the requests within both limits (goodput)."""
        good = sum(
            (ttft is None or request.ttft <= ttft) and (tpot is None or request.tpot is None or request.tpot <= tpot)
            for request in self.done
        )
        return good / len(self.done) if self.done else 0.0


class _Request:
    """A request in the system.

    prompt   tokens to compute before it decodes; left: those not computed yet
    base     tokens in the cache when its decode begins
    answer   tokens still to generate
    since    step at which its decode began
    late     seconds from a token's step to the token's arrival at the user
    """

    __slots__ = ("answer", "base", "first", "job", "late", "left", "order", "prompt", "since")

    def __init__(self, job: Arrival) -> None:
        self.job, self.prompt, self.answer = job, job.prompt, job.answer
        self.left = self.base = self.since = self.order = 0
        self.late = 0.0
        self.first: float | None = None


def simulate(
    server: Server, jobs: Iterator[Arrival], clients: int | None = None, misses: Misses | None = None
) -> SimulatedRun:
    """Runs all jobs, or as many as decide that a limit is missed. In a closed loop each of the `clients` takes the next
    job when its answer is there; in an open loop (None) jobs arrive at their own times, in order.

    Errors: `InputError` for a request that the cache cannot hold.
    """
    return _Simulation(server, jobs, clients, misses).run()


class Misses:
    """Counts requests above limits of percentiles, until so many of `number` are that a limit is missed."""

    def __init__(self, limits: Slo, number: int) -> None:
        def most(limit: float | None, percent: float | None) -> float:
            return inf if limit is None or percent is None else number - floor(percent * number / 100)

        self.limits = limits
        self.ttft, self.tpot = (
            most(*limit) for limit in ((limits.ttft, limits.ttft_percentile), (limits.tpot, limits.tpot_percentile))
        )

    def missed(self, done: Done) -> bool:
        """Counts a request; whether a limit is missed, whatever the latencies of the rest."""
        self.ttft -= self.limits.ttft is not None and done.ttft > self.limits.ttft
        self.tpot -= self.limits.tpot is not None and done.tpot is not None and done.tpot > self.limits.tpot
        return self.ttft < 0 or self.tpot < 0


class _Simulation:
    def __init__(
        self, server: Server, jobs: Iterator[Arrival], clients: int | None, misses: Misses | None = None
    ) -> None:
        self.misses = misses
        self.server, self.jobs, self.closed = server, jobs, clients is not None
        self.capacity = server.pages * server.block
        self.now, self.counter, self.order, self.cached_tokens, self.result = 0.0, 0, 0, 0.0, SimulatedRun()
        self.polled = 0  # the last step at which it polled for requests
        self.line: deque[_Request] = deque()  # waiting
        self.filling: deque[_Request] = deque()  # in prefill
        self.decoding: list[tuple[int, int, _Request]] = []  # a heap by the step of the last token
        self.waited = self.inside = self.busy = 0.0  # seconds, summed over requests
        self.next = next(jobs, None)
        self.asking = [0.0] * (clients or 0)  # a heap of the times of the clients' next requests

    def run(self) -> SimulatedRun:
        while not self.result.stopped:
            self._arrive()
            self._admit()
            if self.filling:
                self._mixed_step()
            elif self.decoding:
                self._decode()
            elif (due := self._due()) is not None:
                self._pass(due - self.now, False)
            else:
                break
        result, seconds = self.result, self.now or 1.0
        result.seconds, result.steps = self.now, self.counter
        result.waiting, result.inside, result.busy = self.waited / seconds, self.inside / seconds, self.busy / seconds
        return result

    @property
    def running(self) -> int:
        return len(self.filling) + len(self.decoding)

    def _pass(self, seconds: float, busy: bool = True) -> None:
        self.waited += (len(self.line) + len(self.filling)) * seconds
        self.inside += (len(self.line) + self.running) * seconds
        self.busy += seconds * busy
        self.now += seconds

    def _due(self) -> float | None:
        """Arrival time of the next request; None: there is none."""
        if self.next is None or (self.closed and not self.asking):
            return None
        return self.asking[0] if self.closed else self.next.at

    def _enter(self, job: Arrival) -> None:
        tokens = job.prompt + job.cached + job.answer
        if tokens > self.capacity:
            expected = f"at most the {self.capacity:,} that the cache holds"
            raise InputError("simulation", [Fault("tokens of a request", tokens, expected)])
        self.line.append(_Request(job))
        self.result.most_waiting = max(self.result.most_waiting, len(self.line) + len(self.filling))

    def _arrive(self) -> None:
        if self.running and (self.polled - self.counter) % self.server.interval:
            return
        self.polled = self.counter
        while (due := self._due()) is not None and due <= self.now and self.next:
            late = self.now - due  # within the step that has ended
            self.waited, self.inside = self.waited + late, self.inside + late
            self._enter(self.next._replace(at=due))
            if self.closed:
                heappop(self.asking)
            self.next = next(self.jobs, None)

    def _fits(self, new_tokens: float, running: int) -> bool:
        """Whether `new_tokens` more tokens fit: the last page of each sequence is half empty on average."""
        return running <= 1 or self.cached_tokens + new_tokens + running * self.server.block / 2 <= self.capacity

    def _admit(self) -> None:
        """Admits waiting requests, first come, first served, while a sequence and pages for a whole prompt are free."""
        while self.line and self.running < self.server.sequences:
            request = self.line[0]
            base = request.prompt + request.job.cached + 1
            if not self._fits(base + len(self.decoding) * self.server.tokens, self.running + 1):
                return
            self.line.popleft()
            request.left, request.base = request.prompt, base
            self.order += 1
            request.order = self.order
            self.cached_tokens += base
            self.filling.append(request)

    def _mixed_step(self) -> None:
        """A step that decodes and computes chunks of prompts."""
        server = self.server
        self._make_room()
        decoding = len(self.decoding)
        budget = max(1, server.budget - ceil(decoding * server.tokens))
        computed = 0
        for request in self.filling:
            chunk = min(request.left, budget - computed)
            request.left -= chunk
            computed += chunk
            if request.left:
                break
        self._pass((server.step(decoding) if decoding else 0.0) + computed * server.token)
        self._advance(1)
        while self.filling and not self.filling[0].left:
            self._begin(self.filling.popleft())

    def _begin(self, request: _Request) -> None:
        """Begins decode: the last step of a prompt gives a token, the first or the next after a preemption."""
        if request.first is None:
            decoding, polls = len(self.decoding), self.server.polls
            request.late = self.server.delay + (polls * self.server.step(decoding) if decoding and polls else 0.0)
            request.first = self.now + request.late
        request.answer -= 1
        request.since = self.counter
        if request.answer:
            last = self.counter + ceil(request.answer / self.server.tokens)
            heappush(self.decoding, (last, request.order, request))
        else:
            self._finish(request, self.counter)

    def _decode(self) -> None:
        """Steps without prefill, until a sequence ends, a request arrives, or pages run out."""
        self._make_room()
        decoding, tokens = len(self.decoding), self.server.tokens
        step_s = self.server.step(decoding)
        steps = self.decoding[0][0] - self.counter
        if (due := self._due()) is not None:
            until = max(0, ceil((due - self.now) / step_s))
            steps = min(steps, until + (self.polled - self.counter - until) % self.server.interval)
        if decoding > 1:
            free = self.capacity - self.cached_tokens - decoding * self.server.block / 2
            steps = min(steps, floor(free / decoding / tokens))
        steps = max(1, steps)
        self._pass(steps * step_s)
        self._advance(steps)

    def _advance(self, steps: int) -> None:
        """Advances all that decode by `steps`, and finishes those that have their last token."""
        self.counter += steps
        self.cached_tokens += steps * len(self.decoding) * self.server.tokens
        while self.decoding and self.decoding[0][0] <= self.counter:
            last, _, request = heappop(self.decoding)
            self._finish(request, last)

    def _finish(self, request: _Request, step: int) -> None:
        job = request.job
        self.cached_tokens -= request.base + (step - request.since) * self.server.tokens
        assert request.first is not None
        last = self.now + request.late
        finished = Done(job.at, request.first, last, job.answer)
        self.result.done.append(finished)
        self.result.stopped |= self.misses is not None and self.misses.missed(finished)
        if self.closed:
            heappush(self.asking, last)

    def _make_room(self) -> None:
        """Preempts the sequence that came last while the next step lacks pages."""
        while not self._fits(len(self.decoding) * self.server.tokens, self.running):
            self.result.preempted += 1
            if self.filling:
                request = self.filling.pop()
                self.cached_tokens -= request.base
            else:
                place = max(range(len(self.decoding)), key=lambda i: self.decoding[i][1])
                request = self.decoding.pop(place)[2]
                heapify(self.decoding)
                steps = self.counter - request.since
                self.cached_tokens -= request.base + steps * self.server.tokens
                tokens = min(request.answer - 1, int(steps * self.server.tokens))
                request.prompt, request.answer = request.base - request.job.cached + tokens, request.answer - tokens
            self.line.appendleft(request)


class Simulated(NamedTuple):
    """A simulated load: one replica was simulated, for all `copies`.

    varied   answer lengths were varied, although the load's are equal
    """

    run: SimulatedRun
    copies: int
    seed: int
    varied: bool

    @property
    def ttft(self) -> LatencyStats | None:
        return spread([request.ttft for request in self.run.done])

    @property
    def tpot(self) -> LatencyStats | None:
        return spread([request.tpot for request in self.run.done if request.tpot is not None])

    @property
    def e2e(self) -> LatencyStats | None:
        return spread([request.e2e for request in self.run.done])

    def means(self, steady: Steady) -> Steady:
        """A steady state with the simulated mean latencies."""
        ttft, tpot, e2e = self.ttft, self.tpot, self.e2e
        assert ttft and e2e and ttft.mean is not None and e2e.mean is not None
        return steady._replace(ttft=ttft.mean, tpot=tpot.mean if tpot else None, e2e=e2e.mean)

    def bounded(self, limits: Slo, steady: Steady) -> Steady:
        """A steady state with the latencies that the limits bound: simulated means, and percentiles in their place."""
        state = self.means(steady)
        if limits.ttft_percentile is not None:
            state = state._replace(
                ttft=percentile(sorted(request.ttft for request in self.run.done), limits.ttft_percentile)
            )
        tpots = sorted(request.tpot for request in self.run.done if request.tpot is not None)
        if limits.tpot_percentile is not None and tpots:
            state = state._replace(tpot=percentile(tpots, limits.tpot_percentile))
        return state

    @property
    def requests_per_s(self) -> float:
        """Requests answered per second by all replicas."""
        return len(self.run.done) / self.run.seconds * self.copies

    @property
    def output(self) -> float:
        """Answer tokens per second of all replicas."""
        return self.run.output * self.copies


def simulated(
    timer: Timer, layout: Layout, sequences: int, rate: float | None = None, limits: Slo | None = None
) -> Simulated:
    """Simulates one replica's even share of a load: a closed loop of `sequences`, or an open one at a rate; with
    `limits`, until one is missed.

    A replica runs at most as many sequences at once as its engine does: `SEQUENCES` if none is named; if it has no
    maximum, `sequences` (of an open loop `SEQUENCES`). There are `REQUESTS`, in a closed loop `rounds` per client, or
    one per given arrival time, unless the load names a number. Answers of equal length would end together round
    after round, so they are varied by a few tokens (`ALIKE`), except for engines that compute prompts first: SGLang
    0.5.1's mean TTFT is that of equal answers.
    """
    load, memory = timer.request, timer.planner.engine.memory
    traffic, number, times = load.traffic, load.simulated_requests, timer.layout_time(layout)
    if not times.caching:  # a pass is a prompt without an answer
        positions = load.on(times, timer.context)[0]
        traffic = traffic._replace(prompts=Lengths(positions, positions), answers=Lengths(1, 1))
    answers = traffic.answers
    steady = timer.steady(layout, sequences, rate)
    copies = layout.dp if rate else min(layout.dp, sequences)
    mean = steady._replace(rate=steady.rate / copies, decoding=steady.decoding / copies)
    most = (memory.at_once if memory else SEQUENCES) or (SEQUENCES if rate else sequences)
    server = Server.of(timer, layout, most, (None if rate else sequences / copies, mean))
    clients = ceil(sequences / copies) if rate is None else None
    if clients:
        if clients > 1 and not answers.spread and not timer.demand(layout).together:
            traffic = traffic._replace(answers=answers.varied)
        traffic = traffic._replace(rate=None, times=())
        number = number or round(rounds(clients) * clients)
    elif rate and traffic.times:
        slower = load.rate / rate if load.rate else 1.0
        traffic = traffic._replace(times=tuple(slower * time for time in traffic.times[::copies]))
        number = len(traffic.times)
    elif rate:
        traffic = traffic._replace(rate=rate / copies)
    number = number or REQUESTS
    run = simulate(server, traffic.jobs(number, load.seed), clients, Misses(limits, number) if limits else None)
    return Simulated(run, copies, load.seed, traffic.answers != answers)  # one token is not varied
