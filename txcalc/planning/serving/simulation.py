"""Continuous batching, request by request: a discrete-event simulation of one copy of a model.

What it does as vLLM's scheduler does: a step decodes every running sequence and has at most `budget` tokens; those that
are left compute chunks of prompts, first come, first served, as long as sequences and pages are free. Where a page is
lacking, the sequence that came last loses its own, and is computed again when there is room. A step takes the time of
its decoding (`demand.StepCurve`, sequences at their mean length) and that of its prompts' tokens.

Steps between two events are alike, so they are taken at once: what costs time is a request, not a token.

Source   Yu et al. 2022 (Orca); Agrawal et al. 2024 (arXiv 2403.02310); vLLM 0.11, vllm/v1/core/sched/scheduler.py
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import ceil, floor
from typing import NamedTuple

from txcalc.errors import Fault, InputError
from txcalc.num import ceil_div
from txcalc.planning.layout import Layout
from txcalc.planning.serving.demand import ROUNDS, Steady
from txcalc.planning.serving.points import Limits, Point, Timer
from txcalc.planning.serving.steady_state import Among, among
from txcalc.planning.serving.traffic import Arrival

REQUESTS = 10_000  # of an open loop
SEQUENCES = 1024  # at once, unless an engine says: vLLM's max_num_seqs on large cards


class Server(NamedTuple):
    """One copy of a model.

    step       seconds of a decode step of so many sequences
    token      seconds that a prompt's token adds to a step
    delay      seconds of TTFT beside the steps: a pipeline's way, the engine's own
    budget     tokens of a step (max_num_batched_tokens)
    sequences  that run at once (max_num_seqs)
    pages      of the cache
    block      tokens of a page
    tokens     expected of a sequence in a step: 1, or more by speculation
    polls      steps of decoding that the engine takes besides until a first token
    interval   steps between two polls for requests, while any run
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
        """One copy as the simulation sees it, of which so many sequences run at once, with all the pages that it has.

        load   a copy's clients (None: an open loop) and steady state: of what the other copies that share its experts
               do; without it they do what it does
        """
        demand, engine = timer.demand(layout), timer.deployment.engine
        others = among(demand, *load) if load else Among(demand.prompt, 0.0, demand.interval)
        away = others.away * demand.tokens / max(1, demand.answer - 1)
        traffic = timer.asked.traffic
        longest = min(timer.context, traffic.prompts.high + traffic.answers.high if traffic else timer.context)
        most = timer.deployment.max_concurrency(layout, longest) // layout.dp
        computed = max(1, timer.asked.prompt - timer.asked.on(timer.pace(layout), timer.context)[1])
        return cls(
            lambda n: demand.step(n) + n * away,
            others.prompt / computed,
            demand.alone - (demand.lone or demand.prompt) + demand.own,
            engine.chunk,
            sequences,
            most * ceil_div(longest - engine.shared, engine.block),
            engine.block,
            demand.tokens,
            demand.polls,
            max(1, round(others.interval)),
        )


class Done(NamedTuple):
    """An answered request, in seconds: when it came, had its first token, its last; tokens of the answer."""

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


class Spread(NamedTuple):
    """A figure of all requests."""

    mean: float
    p50: float
    p90: float
    p99: float


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and percentiles (nearest rank); None: of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    ranks = (ordered[max(0, ceil(share * len(ordered)) - 1)] for share in (0.5, 0.9, 0.99))
    return Spread(sum(ordered) / len(ordered), *ranks)


@dataclass
class SimulatedRun:
    """What happened.

    waiting     requests that have no token yet, on average over the time; most_waiting: at once
    inside      requests that wait, are computed or decode, on average
    busy        share of the time in which a step runs
    """

    done: list[Done] = field(default_factory=list)
    seconds: float = 0.0
    waiting: float = 0.0
    most_waiting: int = 0
    inside: float = 0.0
    busy: float = 0.0
    preempted: int = 0
    steps: int = 0

    @property
    def output(self) -> float:
        """Tokens of answers a second."""
        return sum(one.answer for one in self.done) / self.seconds if self.seconds else 0.0

    def within(self, ttft: float | None, tpot: float | None) -> float:
        """Share of the requests that keep both limits."""
        good = sum(
            (ttft is None or one.ttft <= ttft) and (tpot is None or one.tpot is None or one.tpot <= tpot)
            for one in self.done
        )
        return good / len(self.done) if self.done else 0.0


class _Request:
    """A request inside.

    prompt   tokens that are to be computed before it decodes; left: of them
    base     tokens in the cache when it begins to decode
    answer   tokens that are still to come
    since    the step at which it began to decode
    late     seconds from a token to when its user has it
    """

    __slots__ = ("answer", "base", "first", "job", "late", "left", "order", "prompt", "since")

    def __init__(self, job: Arrival) -> None:
        self.job, self.prompt, self.answer = job, job.prompt, job.answer
        self.left = self.base = self.since = self.order = 0
        self.late = 0.0
        self.first: float | None = None


def simulate(server: Server, jobs: Iterator[Arrival], clients: int | None = None) -> SimulatedRun:
    """Every job from first to last. Of a closed loop's `clients` each takes the next one when its own is answered; an
    open loop's come when they come, in order.

    Errors: `InputError` for a request that the cache cannot hold.
    """
    return _Simulation(server, jobs, clients).run()


class _Simulation:
    def __init__(self, server: Server, jobs: Iterator[Arrival], clients: int | None) -> None:
        self.server, self.jobs, self.closed = server, jobs, clients is not None
        self.capacity = server.pages * server.block
        self.now, self.counter, self.order, self.held, self.result = 0.0, 0, 0, 0.0, SimulatedRun()
        self.polled = 0  # a step at which it polled for requests
        self.line: deque[_Request] = deque()  # waiting
        self.filling: deque[_Request] = deque()  # their prompts are being computed
        self.decoding: list[tuple[int, int, _Request]] = []  # a heap by the step of the last token
        self.waited = self.inside = self.busy = 0.0  # seconds, of all requests together
        self.next = next(jobs, None)
        self.asking = [0.0] * (clients or 0)  # a heap of when the clients ask again

    def run(self) -> SimulatedRun:
        while True:
            self._arrive()
            self._admit()
            if self.filling:
                self._mixed()
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
        """When the next request comes; None: none does."""
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

    def _fits(self, more: float, running: int) -> bool:
        """Whether more tokens have pages, of which each sequence's last is half empty on average."""
        return running <= 1 or self.held + more + running * self.server.block / 2 <= self.capacity

    def _admit(self) -> None:
        """First come, first served, while there are sequences and pages for a whole prompt."""
        while self.line and self.running < self.server.sequences:
            request = self.line[0]
            base = request.prompt + request.job.cached + 1
            if not self._fits(base + len(self.decoding) * self.server.tokens, self.running + 1):
                return
            self.line.popleft()
            request.left, request.base = request.prompt, base
            self.order += 1
            request.order = self.order
            self.held += base
            self.filling.append(request)

    def _mixed(self) -> None:
        """A step that decodes and computes chunks of prompts."""
        server = self.server
        self._make_room()
        decoding = len(self.decoding)
        room = max(1, server.budget - ceil(decoding * server.tokens))
        computed = 0
        for request in self.filling:
            chunk = min(request.left, room - computed)
            request.left -= chunk
            computed += chunk
            if request.left:
                break
        self._pass((server.step(decoding) if decoding else 0.0) + computed * server.token)
        self._stepped(1)
        while self.filling and not self.filling[0].left:
            self._begin(self.filling.popleft())

    def _begin(self, request: _Request) -> None:
        """Its prompt is computed, and with it comes a token: the first, or the next after a preemption."""
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
        """Steps that only decode, until the next sequence is done, a request comes, or pages are short."""
        self._make_room()
        decoding, tokens = len(self.decoding), self.server.tokens
        each = self.server.step(decoding)
        steps = self.decoding[0][0] - self.counter
        if (due := self._due()) is not None:
            until = max(0, ceil((due - self.now) / each))
            steps = min(steps, until + (self.polled - self.counter - until) % self.server.interval)
        if decoding > 1:
            free = self.capacity - self.held - decoding * self.server.block / 2
            steps = min(steps, floor(free / decoding / tokens))
        steps = max(1, steps)
        self._pass(steps * each)
        self._stepped(steps)

    def _stepped(self, steps: int) -> None:
        """The decoding ones are so many steps further; those with their last token are done."""
        self.counter += steps
        self.held += steps * len(self.decoding) * self.server.tokens
        while self.decoding and self.decoding[0][0] <= self.counter:
            last, _, request = heappop(self.decoding)
            self._finish(request, last)

    def _finish(self, request: _Request, step: int) -> None:
        job = request.job
        self.held -= request.base + (step - request.since) * self.server.tokens
        assert request.first is not None
        last = self.now + request.late
        self.result.done.append(Done(job.at, request.first, last, job.answer))
        if self.closed:
            heappush(self.asking, last)

    def _make_room(self) -> None:
        """Pages for the next step: while they are short, the sequence that came last gives its own back."""
        while not self._fits(len(self.decoding) * self.server.tokens, self.running):
            self.result.preempted += 1
            if self.filling:
                request = self.filling.pop()
                self.held -= request.base
            else:
                place = max(range(len(self.decoding)), key=lambda i: self.decoding[i][1])
                request = self.decoding.pop(place)[2]
                heapify(self.decoding)
                steps = self.counter - request.since
                self.held -= request.base + steps * self.server.tokens
                told = min(request.answer - 1, int(steps * self.server.tokens))
                request.prompt, request.answer = request.base - request.job.cached + told, request.answer - told
            self.line.appendleft(request)


class Simulated(NamedTuple):
    """A load on all copies of a model, one of which was simulated.

    good     share of the requests within the limits
    varied   its answers differ, where those asked for are of one length
    told     its means are told in place of a closed form's, which has none there
    """

    run: SimulatedRun
    copies: int
    seed: int
    good: float
    varied: bool
    told: bool = False

    @property
    def ttft(self) -> Spread | None:
        return spread([one.ttft for one in self.run.done])

    @property
    def tpot(self) -> Spread | None:
        return spread([one.tpot for one in self.run.done if one.tpot is not None])

    @property
    def e2e(self) -> Spread | None:
        return spread([one.e2e for one in self.run.done])

    def means(self, steady: Steady) -> Steady:
        """A steady state with the latencies that were found."""
        ttft, tpot, e2e = self.ttft, self.tpot, self.e2e
        assert ttft and e2e
        return steady._replace(ttft=ttft.mean, tpot=tpot.mean if tpot else None, e2e=e2e.mean)

    @property
    def output(self) -> float:
        """Tokens of answers a second, of all copies."""
        return self.run.output * self.copies

    @property
    def goodput(self) -> float:
        """Requests per second within the limits, of all copies."""
        return self.good * len(self.run.done) / self.run.seconds * self.copies


def simulated(
    timer: Timer, point: Point, limits: Limits, sequences: int, seed: int = 0, requests: int | None = None
) -> Simulated:
    """A point's load, of which a copy gets its even share, at most so many sequences at once.

    An open loop has `requests` (default: `REQUESTS`, or the times asked for); a closed one `ROUNDS` per client, as
    `steady_state` has it; answers of one length, which would end together round after round, differ by a few tokens
    (`ALIKE`), but where an engine computes prompts first: SGLang 0.5.1's mean TTFT is that of equal answers.
    """
    traffic, layout = timer.asked.traffic, point.layout
    assert traffic is not None
    copies, steady = layout.dp if traffic.rate else min(layout.dp, point.sequences), point.steady
    mean = steady._replace(rate=steady.rate / copies, decoding=steady.decoding / copies)
    load = (None if traffic.rate else point.sequences / copies, mean)
    varied, server = False, Server.of(timer, layout, sequences, load)
    if traffic.rate is None:
        clients = ceil(point.sequences / copies)
        if varied := clients > 1 and not timer.asked.answers and timer.demand(layout).together <= 1 / ROUNDS:
            traffic, alike = traffic._replace(answers=traffic.answers.varied), traffic.answers
            varied = traffic.answers != alike  # none is shorter than one token
        run = simulate(server, traffic.jobs(requests or ROUNDS * clients, seed), clients)
    elif traffic.times:
        mine = traffic._replace(times=traffic.times[::copies])
        run = simulate(server, mine.jobs(len(mine.times), seed))
    else:
        mine = traffic._replace(rate=traffic.rate / copies)
        run = simulate(server, mine.jobs(requests or REQUESTS, seed))
    return Simulated(run, copies, seed, run.within(limits.ttft, limits.tpot), varied)
