"""Operating points: a layout at a number of concurrent sequences, with its latencies and throughput.

An `OperatingPoint` has the unloaded times (`layout_time`: one prompt, one decode step of all sequences) and those under
load (`steady_state`: prefill and decode interleaved). `Timer` computes and caches both.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf, sqrt
from typing import Any, NamedTuple

from msgspec import Struct

from txcalc.errors import Fault, InputError
from txcalc.num import ceil_div
from txcalc.planning.layout import SERVING_ORDER, Layout
from txcalc.planning.serving.demand import Demand, Steady, StepCurve, Throughput
from txcalc.planning.serving.deployment import MOST_SEQUENCES, Planner
from txcalc.planning.serving.durations import BoundedTime
from txcalc.planning.serving.engine_profiles import latency
from txcalc.planning.serving.layout_time import LayoutTime
from txcalc.planning.serving.steady_state import closed_loop, open_loop
from txcalc.planning.serving.traffic import Lengths, Requests

CONTEXT = 8192  # tokens, the default of a plan
UNACCEPTED = "a draft needs the probability that a proposed token is accepted (--acceptance 70%)"
UNPROPOSED = "an acceptance needs a draft (--draft 4, 4:SOURCE or mtp)"


class SpeculativeDecoding(NamedTuple):
    """Speculative decoding: g = `tokens` are proposed per step, each accepted with probability a = `acceptance`.

    A draft model proposes them (one pass per token, or one for all), or the model's own MTP layer. Without either,
    proposals cost nothing. A step yields (1 − a^(g + 1))/(1 − a) tokens on average; it takes a decode step over g + 1
    tokens per sequence and the draft's passes.

    Source   Leviathan et al. 2022 (arXiv 2211.17192), equation 1 and theorem 3.8
    """

    tokens: int
    acceptance: float

    @property
    def expected(self) -> float:
        a, g = self.acceptance, self.tokens
        return g + 1 if a == 1 else (1 - a ** (g + 1)) / (1 - a)


class Request(Struct, frozen=True):
    """The load: request lengths, arrivals and speculation.

    prompt        tokens per prompt
    answer        tokens per answer
    traffic       distributions of lengths and interarrival times
    hits          share of the prompt found in the prefix cache: whole pages, never the last token
    speculation   None: no draft
    rate          requests per second of an open loop; None: a closed loop
    prompt_given  whether a prompt was given; if not, an encoder's pass is over the context
    simulated_requests   their number; None: the default
    seed          of the simulation
    rounds        requests of each user of a closed loop in the closed form; None: as many as in a simulation
    """

    prompt: int
    answer: int
    traffic: Requests
    hits: Fraction
    speculation: SpeculativeDecoding | None
    rate: float | None
    prompt_given: bool
    simulated_requests: int | None = None
    seed: int = 0
    rounds: float | None = None

    @property
    def width(self) -> float:
        """Width of the uniform distribution of answer lengths over its mean; of equal lengths, as the simulation varies
        them."""
        answers = self.traffic.answers
        return sqrt(12 * (answers.spread or answers.varied.spread))

    @property
    def mean_length(self) -> int:
        """Mean length of a decoding sequence in tokens."""
        return self.prompt + self.answer // 2

    def cached(self, block: int) -> int:
        """Prompt tokens that the prefix cache saves: its hits or the shared prefix, whichever is longer."""
        tokens = max(int(self.hits * self.prompt), self.traffic.prefix)
        return min(tokens // block * block, self.prompt - 1)

    def on(self, times: LayoutTime, context: int) -> tuple[int, int]:
        """Tokens of a prompt (of a model that does not decode: positions), and those in the prefix cache."""
        if not times.caching:
            return times.model.workload(1, self.prompt if self.prompt_given else context).tokens, 0
        return self.prompt, 0 if times.encodes else self.cached(times.engine.block)


def default_context(prompts: Lengths | None, answers: Lengths | None, trained: Sequence[int], decodes: bool) -> int:
    """The default context of a plan in tokens.

    The longest prompt plus the longest answer. If only one is given: twice its length, at least 8,192 and at most what
    the models were `trained` for, unless the given length itself is longer. If no model decodes: the prompt.
    """
    if prompts and answers:
        return prompts.high + answers.high
    if prompts and not decodes:
        return prompts.high
    longest = max((lengths.high for lengths in (prompts, answers) if lengths), default=0)
    return max(longest, min((max(CONTEXT, 2 * longest), *trained)))


def request(
    context: int,
    prompt: int | Lengths | None = None,
    hits: Fraction = Fraction(0),
    acceptance: float | None = None,
    draft_tokens: int | None = None,
    answer: int | Lengths | None = None,
    rate: float | None = None,
    burstiness: float = 1.0,
    times: Sequence[float] = (),
    prefix: int = 0,
) -> Request:
    """A checked request.

    Without a prompt, it is what the answer leaves of the context, or half of the context (rounded up). Without an
    answer, it is what the prompt leaves, at least one token.

    Errors: `InputError` with every fault.
    """
    prompts = Lengths(prompt, prompt) if isinstance(prompt, int) else prompt
    answers = Lengths(answer, answer) if isinstance(answer, int) else answer
    faults: list[Fault | str] = []
    for name, lengths in (("prompt", prompts), ("answer", answers)):
        if lengths is not None and not (isinstance(lengths, Lengths) and lengths.low >= 1 and lengths.high <= context):
            value = lengths if not isinstance(lengths, Lengths) else lengths.low if lengths.low < 1 else lengths.high
            faults.append(Fault(name, value, f"a whole number from 1 to the context of {context:,}"))
    if prompts and answers and not faults and prompts.high + answers.high > context:
        room = context - prompts.high
        expected = f"at most {room:,}, what a prompt of {prompts.high:,} leaves of the context"
        faults.append(Fault("answer", answers.high, expected, f"--context {prompts.high + answers.high}"))
    if rate is not None and not 0 < rate < 1e9:
        faults.append(Fault("rate", rate, "requests per second, a number above 0"))
    if not 0.01 <= burstiness <= 1000:
        faults.append(Fault("burstiness", burstiness, "a number from 0.01 to 1,000 (1: at random; below: in bursts)"))
    if not 0 <= hits <= 1:
        faults.append(Fault("prefix hits", float(hits), "a share from 0 to 1"))
    if (acceptance is None) != (draft_tokens is None):
        faults.append(UNACCEPTED if acceptance is None else UNPROPOSED)
    if draft_tokens is not None and not (type(draft_tokens) is int and 1 <= draft_tokens <= 64):
        faults.append(Fault("draft tokens", draft_tokens, "a whole number from 1 to 64"))
    if acceptance is not None and not 0 <= acceptance <= 1:
        faults.append(Fault("acceptance", acceptance, "a probability from 0 to 1"))
    if faults:
        raise InputError("deploy", faults)
    prompt_given = prompts is not None
    guess = None if draft_tokens is None or acceptance is None else SpeculativeDecoding(draft_tokens, acceptance)
    if prompts is None:
        mean = ceil_div(context, 2) if answers is None else max(1, context - answers.high)
        prompts = Lengths(mean, mean)
    if not 0 <= prefix <= prompts.low:
        expected = f"at most the {prompts.low:,} tokens of the shortest prompt"
        raise InputError("deploy", [Fault("shared prefix", prefix, expected)])
    if answers is None:
        answer_tokens = max(1, context - prompts.high)
        answers = Lengths(answer_tokens, answer_tokens)
    if times and rate is None:
        rate = (len(times) - 1) / times[-1]
    traffic = Requests(prompts, answers, float(hits), rate, burstiness, tuple(times), prefix)
    return Request(round(prompts.mean), round(answers.mean), traffic, hits, guess, rate, prompt_given)


class Slo(NamedTuple):
    """Upper bounds of latencies at the load in seconds; None: no bound. A load without known latencies is within none.

    ttft_percentile, tpot_percentile   what is bounded: the latency of this percentage of requests; None: the mean
    simulates_means    latencies are those of a simulation even if no percentile is bounded
    """

    ttft: float | None = None
    tpot: float | None = None
    ttft_percentile: float | None = None
    tpot_percentile: float | None = None
    simulates_means: bool = False

    def __bool__(self) -> bool:
        return self.ttft is not None or self.tpot is not None

    @property
    def needs_simulation(self) -> bool:
        """Whether a simulation gives the latencies: of percentiles, only a simulation does."""
        return self.simulates_means or self.ttft_percentile is not None or self.tpot_percentile is not None

    def bounded(self, steady: Steady) -> list[tuple[float, float]]:
        """Latencies (`speed.bounded`; inf: not known), each with its limit. An answer of one token has no TPOT."""
        pairs = (steady.ttft, self.ttft), (steady.tpot if steady.timed else inf, self.tpot)
        return [(latency, limit) for latency, limit in pairs if latency is not None and limit is not None]

    def met_by(self, steady: Steady) -> bool:
        """Whether the bounded latencies are within the limits; those of an overload are not."""
        return steady.lasts and all(latency <= limit for latency, limit in self.bounded(steady))

    def excess(self, steady: Steady) -> float:
        """The largest ratio of a latency to its limit."""
        return max((latency / limit for latency, limit in self.bounded(steady)), default=0.0)


class OperatingPoint(Throughput):
    """A layout at a number of concurrent sequences.

    ttft      one unloaded prompt
    tpot      a decode step at the full context, without prefill, per expected token; None: the model does not decode
    decode_tokens_per_s_gpu   of decode without prefill
    prompt_tokens_per_s_gpu   of prefill without decode
    answer    tokens per answer
    steady    of all GPUs, prefill and decode interleaved
    running   sequences in the decode step of `tpot`: as many as fit at the full context and the engine runs
    """

    layout: Layout
    sequences: int
    ttft: BoundedTime
    tpot: BoundedTime | None
    decode_tokens_per_s_gpu: float
    prompt_tokens_per_s_gpu: float
    answer: int
    steady: Steady
    running: int

    @property
    def gpus(self) -> int:
        return self.layout.gpus

    def cost_per_million_input(self, price: float) -> float:
        """Cost of prefill per million prompt tokens, at a price per GPU-hour."""
        return price / 3600 * 1e6 / self.prompt_tokens_per_s_gpu


class Timer:
    """Computes the points of a deployment, and caches what points of one layout share."""

    def __init__(self, planner: Planner, request: Request, context: int) -> None:
        self.planner, self.request, self.context = planner, request, context
        self._layout_times: dict[Layout, LayoutTime] = {}
        self._prefills: dict[Layout, tuple[BoundedTime, float]] = {}
        self._demands: dict[tuple[Layout, float], Demand] = {}
        self._drafts: dict[Layout, LayoutTime] = {}
        self._cache_slots: dict[Layout, float] = {}
        self.simulations: dict[tuple[Layout, int, float | None], Any] = {}  # of `speed.simulation`

    @classmethod
    def of(cls, planner: Planner, request: Request, context: int) -> Timer:
        """The timer of a request; a planner's search and its answer share it."""
        key = request, context
        if key not in planner.timers:
            planner.timers[key] = cls(planner, request, context)
        return planner.timers[key]  # type: ignore[no-any-return]

    def layout_time(self, layout: Layout) -> LayoutTime:
        """The times of one replica."""
        replica = self._copy(layout)
        if replica not in self._layout_times:
            planner = self.planner
            self._layout_times[replica] = LayoutTime(
                planner.model, planner.sharding, replica, planner.accelerator, planner.engine
            )
        return self._layout_times[replica]

    def _copy(self, layout: Layout) -> Layout:
        """The layout to time: that of one replica, unless replicas share experts."""
        return layout.replica if layout.sharing == 1 else layout

    def links_known(self, layout: Layout) -> bool:
        """Whether the bandwidth of every link that the layout uses is known; stages within a node use none."""
        card = self.planner.accelerator
        groups = [layout.group(axis, card.node, SERVING_ORDER) for axis in ("tp", "ep", "etp", "pp")]
        if card.link_between is None and any(group.crosses for group in groups):
            return False
        return (layout.tp == layout.ep == layout.expert_ways == 1) or card.link is not None

    def point(
        self, layout: Layout, sequences: int, rate: float | None = None, most: int = MOST_SEQUENCES
    ) -> OperatingPoint:
        """A closed loop of `sequences`, or an open one at `rate` requests per second; at most `most` sequences fit at
        the full context."""
        times = self.layout_time(layout)
        ttft, prefill_rate = self.prefill(layout)
        steady = self.steady(layout, sequences, rate)
        per_gpu, answer = prefill_rate * layout.dp / layout.gpus, self.request.answer if times.caching else 1
        running = min(sequences, most, self.at_once * layout.dp) if times.caching else sequences
        tpot = self.step(layout, running) if times.caching else None
        return OperatingPoint(
            layout=layout, sequences=sequences, ttft=ttft, tpot=tpot,
            decode_tokens_per_s_gpu=running / tpot.achievable / layout.gpus if tpot else 0.0,
            prompt_tokens_per_s_gpu=per_gpu, answer=answer, steady=steady, running=running,
        )  # fmt: skip

    def steady(
        self, layout: Layout, clients: int = 1, rate: float | None = None, rounds: float | None = None
    ) -> Steady:
        """The steady state of a closed loop of `clients`, or of an open loop of `rate` requests per second, spread
        evenly over the replicas. The cache of each limits its sequences; the others wait. `rounds`: requests of each
        client; None: those of the request."""
        slots = self.cache_slots(layout)
        if rate is None:
            copies, demand = min(layout.dp, clients), self.demand(layout, clients)
            state = closed_loop(demand._replace(rounds=rounds or demand.rounds), clients / copies, slots)
        else:
            copies = layout.dp
            state = open_loop(self.demand(layout), rate / copies, slots)
        return state._replace(rate=state.rate * copies, decoding=state.decoding * copies)

    @property
    def at_once(self) -> int:
        """Most concurrent sequences of one replica's engine."""
        memory = self.planner.engine.memory
        return (memory.at_once if memory else None) or MOST_SEQUENCES

    def cache_slots(self, layout: Layout) -> float:
        """Sequences of mean length that fit in one replica's cache, at most as many as its engine runs."""
        if layout not in self._cache_slots:
            length = min(self.request.mean_length, self.context)
            slots = min(self.at_once, self.planner.max_concurrency(layout, length) // layout.dp)
            self._cache_slots[layout] = max(1.0, float(slots))
        return self._cache_slots[layout]

    def single_request(self, layout: Layout) -> Steady:
        """The latencies of one request with no other on any replica."""
        demand = self.demand(layout, 1)
        ttft, decode_tokens = demand.unloaded + demand.overhead, demand.answer - 1
        tpot = demand.step(1) / demand.tokens if decode_tokens else None
        e2e = ttft + decode_tokens * (tpot or 0.0)
        return Steady(ttft, tpot, e2e, 1 / e2e, demand.prompt / e2e, (e2e - ttft) / e2e)

    def single_times(self, layout: Layout) -> tuple[BoundedTime, BoundedTime | None]:
        """An unloaded prompt, and a decode step of one sequence of its length; None: the model does not decode."""
        times = self.layout_time(layout)
        step = self.token_time(layout, 1, times.busy(1), self.request.prompt) if times.caching else None
        return self.prefill(layout)[0], step

    def prefill(self, layout: Layout) -> tuple[BoundedTime, float]:
        """An unloaded prompt, and prompt tokens per second of one replica."""
        replica = self._copy(layout)
        if replica not in self._prefills:
            times = self.layout_time(replica)
            prompt, cached = self.request.on(times, self.context)
            self._prefills[replica] = times.prefill(prompt, cached), times.prefill_rate(prompt, cached)
        return self._prefills[replica]

    def step(self, layout: Layout, sequences: int) -> BoundedTime:
        """A decode step of `sequences` at the full context, divided by its expected tokens per sequence."""
        return self.token_time(layout, ceil_div(sequences, layout.dp), self.layout_time(layout).busy(sequences))

    def demand(self, layout: Layout, sequences: int = MOST_SEQUENCES) -> Demand:
        """The demand on one replica if `sequences` are spread over all."""
        times = self.layout_time(layout)
        busy = times.busy(sequences) if sequences < layout.dp else 1.0
        layout = self._copy(layout)
        if (layout, busy) not in self._demands:
            unloaded, rate = self.prefill(layout)
            prompt, cached = self.request.on(times, self.context)
            length = min(self.request.mean_length, self.context)
            guess, engine, traffic = self.request.speculation, self.planner.engine, self.request.traffic
            expected = guess.expected if guess else 1.0
            latencies = latency(engine.kernels)

            def step(n: int) -> float:
                return (
                    expected * self.token_time(layout, n, busy, length).achievable
                    + latencies.step_s
                    + latencies.sequence_s * n
                )

            shares = times.sharing > 1
            self._demands[layout, busy] = Demand(
                step=StepCurve(step),
                prompt=prompt / rate,
                unloaded=unloaded.achievable,
                chunks=(prompt - cached) / engine.chunk if times.caching and not times.encodes else 1.0,
                answer=self.request.answer if times.caching else 1,
                tokens=expected,
                overhead=latencies.own_s,
                polls=latencies.steps,
                spread=traffic.prompts.spread,
                bursts=traffic.bursts,
                together=0.0 if traffic.answers.spread else latencies.together,
                interval=engine.interval if shares or not engine.gathers else 1,
                width=self.request.width,
                sharing=times.sharing,
                solo=prompt / times.prefill_rate(prompt, cached, 1 / times.sharing) if shares else 0.0,
                gathers=engine.gathers and shares,
                rounds=self.request.rounds,
            )
        return self._demands[layout, busy]

    def token_time(self, layout: Layout, sequences: int, busy: float, context: int | None = None) -> BoundedTime:
        """A decode step divided by its expected tokens per sequence."""
        times, guess, context = self.layout_time(layout), self.request.speculation, context or self.context
        if guess is None:
            return times.step(sequences, context, busy=busy)
        step = times.step(sequences, context, guess.tokens + 1, busy)
        floor, achievable = step.floor, step.achievable
        if self.planner.draft:
            drafting = self.draft(layout)
            in_turn = self.planner.draft.description.drafting == "in-turn"
            passes, tokens = (guess.tokens, 1) if in_turn else (1, guess.tokens)
            proposed = drafting.step(sequences, context, tokens, busy if drafting.sharing > 1 else 1.0)
            floor, achievable = floor + passes * proposed.floor, achievable + passes * proposed.achievable
        return step._replace(floor=floor / guess.expected, achievable=achievable / guess.expected)

    def draft(self, layout: Layout) -> LayoutTime:
        """The times of the draft model."""
        planner = self.planner
        model = planner.draft
        assert model is not None
        sharding, split = planner.draft_layout(layout)
        split = self._copy(split)
        if split not in self._drafts:
            self._drafts[split] = LayoutTime(model, sharding, split, planner.accelerator, planner.engine.of(model))
        return self._drafts[split]
