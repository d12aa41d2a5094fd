"""The answer of `deploy`: the memory, layouts, speed and cost of a model on accelerators.

Each figure is computed here once, from the plan and its timing (`planning.serving`). A further column of `deploy` is a
field here, and a column in `render.deploy` or `render.serving`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import TYPE_CHECKING, Any

from msgspec import field
from msgspec.structs import replace

from txcalc.ledger import KINDS
from txcalc.num import ceil_div
from txcalc.planning.layout import Layout
from txcalc.planning.machine import LibrarySource
from txcalc.planning.serving.demand import LatencyStats, Steady
from txcalc.planning.serving.offload import HostMemory
from txcalc.planning.serving.points import Slo
from txcalc.planning.serving.rank_memory import Caches
from txcalc.planning.serving.rank_time import ADAPTERS, LINKS
from txcalc.planning.serving.speed import DEFINITIONS, RidgeBatch
from txcalc.questions.answers import Answer, Deferred, json_key
from txcalc.units import MONTH_HOURS

if TYPE_CHECKING:
    from txcalc.planning.serving.deployment import Gpu, LayoutCapacity, Plan
    from txcalc.planning.serving.disaggregation import Pools
    from txcalc.planning.serving.durations import BoundedTime, Cost
    from txcalc.planning.serving.points import OperatingPoint, Request
    from txcalc.planning.serving.simulation import Simulated
    from txcalc.planning.serving.speed import Serving


class Degrees(Answer, kw_only=True):
    """A layout: GPUs of each kind of parallelism. `etp`: None where it follows from tp and ep."""

    tp: int
    pp: int
    dp: int
    ep: int
    etp: int | None = None
    gpus: int

    @classmethod
    def of(cls, layout: Layout, **fields: Any) -> Any:
        return cls(**layout.record(), gpus=layout.gpus, **fields)

    def __str__(self) -> str:
        return str(Layout(tp=self.tp, pp=self.pp, dp=self.dp, ep=self.ep, etp=self.etp))


class LayoutFit(Degrees, kw_only=True):
    """Whether a layout fits: bytes on its fullest GPU, and the maximum concurrency."""

    fits: bool
    headroom_bytes: int
    max_concurrency: int
    weights_bytes: int
    cache_bytes: int


class ReplicaLatency(Answer):
    """Mean latencies of one replica with a number of users, in seconds."""

    users: int
    ttft_s: float | None
    tpot_s: float | None


class UnsuitedReplica(Degrees, kw_only=True):
    """The replica that comes closest to the limits: it misses one with one user, or with two."""

    latencies: tuple[ReplicaLatency, ...]


class AcceleratorInfo(Answer):
    """The accelerator: memory, visible memory, the reserve of engine and driver, and the sources of its figures."""

    name: str
    memory_bytes: int
    visible_bytes: int
    reserve_bytes: int
    reserve_source: str
    source: dict[str, str]
    title: str
    reserve: str  # as given: a share or bytes


class Workload(Answer):
    """The load: sequences at once and their length, and the mean lengths of requests in tokens."""

    context: int
    concurrency: int
    shared_prefix: int
    draft: str | None
    prompt: int
    answer: int
    decoding_length: int  # of a sequence half way through its answer


class MemoryProfile(Answer):
    """The memory of a named engine besides weights and cache, and its limits of a step."""

    name: str
    version: str
    source: str
    visible_bytes: int
    graphs_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int


class Offloaded(Answer):
    """The part of the model in host RAM: first layers, experts of layers, the head; and the free bytes of RAM."""

    layers: int
    experts_of_layers: int
    head: bool
    free_bytes: int | None
    host: HostMemory | None
    summary: str


class EngineInfo(Answer, kw_only=True):
    """The engine: formats of weights and cache, the dtype of matrix products, tokens per page and per prefill chunk.

    poll     decode steps between admissions of new requests
    gather   their maximum where expert-parallel replicas admit together
    """

    weights: str
    weights_source: str
    kv: str
    block: int
    chunk: int
    poll: int | None
    gather: int | None
    profile: MemoryProfile | None = None
    ram: Offloaded | None = None
    compute_dtype: str


class DraftMemory(Answer):
    """Memory of a draft model on one GPU."""

    weights_bytes: int
    cache_a_sequence: int


class PartBytes(Answer):
    """Bytes of a part, and its number of copies."""

    path: str
    copies: int
    bytes: int


class StageMemory(Answer, kw_only=True):
    """Memory of each GPU of a pipeline stage."""

    stage: int
    stages_alike: int
    weights_bytes: int
    weights_by_kind: dict[str, int]
    towers_bytes: int = 0
    adapters_bytes: int = 0
    draft: DraftMemory | None
    cache_bytes: int
    cache_a_sequence: Caches
    activations_bytes: int
    activations: dict[str, int]
    rest_bytes: int
    rest: dict[str, int]
    free_bytes: int
    weights: tuple[PartBytes, ...]
    cache: tuple[PartBytes, ...]


class Latency(Answer):
    """Seconds of one prefill and of one decode step without other load, what bounds them, and decode rates."""

    ttft_s: float
    tpot_s: float | None
    ttft_bound: str
    tpot_bound: str | None
    tokens_per_s_user: float | None
    tokens_per_s_gpu: float | None


class SingleRequest(Answer):
    """Seconds of one request with no other on the server, their lower bounds, and what bounds a decode step."""

    ttft_s: float
    tpot_s: float | None
    e2e_s: float
    tokens_per_s_user: float | None
    ttft_floor_s: float
    tpot_floor_s: float | None
    tpot_bound: str | None


class SteadyState(Answer, kw_only=True):
    """The steady state of a load.

    lasts              the load is sustainable
    utilisation        share of time spent on prefill
    decoding           sequences that decode at once
    line_s             the part of TTFT spent queueing for cache; None: the latencies have no known mean
    requests_in_system on average, waiting or running
    """

    ttft_s: LatencyStats
    tpot_s: LatencyStats
    e2e_s: LatencyStats
    lasts: bool
    utilisation: float
    decoding: float | None
    line_s: float | None
    requests_per_s: float
    output_tokens_per_s: float | None
    tokens_per_s_gpu: float | None = json_key("per_gpu")
    prompt_tokens_per_s_gpu: float
    tokens_per_s_user: float | None
    requests_in_system: float | None

    @property
    def timed(self) -> bool:
        """Whether the mean latencies are known."""
        return self.line_s is not None


class Point(Answer, kw_only=True):
    """A layout at a concurrency: unloaded latencies, the steady state, throughput and cost.

    tokens_per_s_user, decode_tokens_per_s_gpu   of decode without prefill; prompt_tokens_per_s_gpu: without decode
    within_limits   None: there are no limits
    """

    layout: Degrees
    sequences: int
    ttft_s: float
    tpot_s: float | None
    tpot_floor_s: float | None
    bound: str
    tokens_per_s_user: float | None
    decode_tokens_per_s_gpu: float | None = json_key("tokens_per_s_gpu")
    prompt_tokens_per_s_gpu: float
    steady: SteadyState
    cost_per_million_input: float | None
    cost_per_million_output: float | None
    cost_per_request: float | None
    cost_per_hour: float | None
    joules_per_token_at_most: float | None
    cost_per_month: float | None = None
    cost_per_thousand_requests: float | None = None
    max_watts: int | None = None
    within_limits: bool | None = None

    def to_row(self) -> dict[str, Any]:
        """A row of a data frame."""
        return {
            "layout": " ".join(f"{axis}={ways}" for axis, ways in self.layout.to_dict().items() if axis != "gpus"),
            "gpus": self.layout.gpus,
            "users": self.sequences,
            "ttft_s": self.steady.ttft_s.mean,
            "tpot_s": self.steady.tpot_s.mean,
            "tokens_per_s_gpu": self.steady.tokens_per_s_gpu,
            "cost_per_million_output": self.cost_per_million_output,
        }


class PoolPlan(Answer):
    """A prefill or decode pool."""

    layout: Degrees
    headroom_bytes: int
    max_concurrency: int


class CacheTransfer(Answer):
    """Transfer of a prompt's cache from the prefill to the decode pool."""

    bytes: int
    seconds: float


class Disaggregated(Answer):
    """Disaggregated prefill and decode."""

    prefill: PoolPlan
    decode: PoolPlan
    gpus: int
    transfer: CacheTransfer
    prompt_alone_s: float
    step_s: float
    steady: SteadyState
    cost_per_million_output: float | None


class Simulation(Answer):
    """A discrete-event simulation of one replica's requests; rates are of all replicas."""

    ttft_s: LatencyStats | None
    tpot_s: LatencyStats | None
    e2e_s: LatencyStats | None
    requests: int
    copies: int
    seed: int
    seconds: float
    output_tokens_per_s: float
    within_limits: float
    goodput_requests_per_s: float
    waiting: float
    most_waiting: int
    inside: float
    busy: float
    preempted: int
    requests_per_s: float
    tokens_per_s_gpu: float


class SpeculationInfo(Answer):
    """Speculative decoding: tokens proposed per step, acceptance probability, and expected tokens per step.

    at_once        the draft model proposes all tokens of a step in one pass
    step_s         a step of `running` sequences at the full context, the draft's passes included
    plain_tpot_s   mean TPOT at the load without speculation; None: no decode, or the load is not sustained
    """

    tokens: int
    acceptance: float
    draft: str | None
    expected_tokens_per_step: float
    at_once: bool
    step_s: float | None = None
    plain_tpot_s: float | None = None


class FloorTime(Answer, kw_only=True):
    """Lower bounds of a kind of part in seconds: compute, memory, links, and reads of host RAM."""

    compute_s: float
    memory_s: float
    link_s: float
    bound: str
    ram_s: float | None = None


class AchievableTime(Answer):
    """Achievable seconds of a kind of part: compute, memory, links and kernel launches, and their sum."""

    compute_s: float
    memory_s: float
    link_s: float
    launch_s: float
    time_s: float
    bound: str


class PartTime(Answer):
    """The time of a kind of part."""

    part: str
    floor: FloorTime
    achievable: AchievableTime


class PartTimes(Answer):
    """Times of prefill and of a decode step by kind of part, and their sums."""

    prefill: tuple[PartTime, ...]
    decode: tuple[PartTime, ...]
    prefill_s: float
    decode_s: float


class LatencyLimits(Answer):
    """Limits or lower bounds of latencies in seconds; of a percentile with its name: {"p95": 0.5}."""

    ttft_s: float | dict[str, float] | None
    tpot_s: float | dict[str, float] | None

    def __bool__(self) -> bool:
        return self.ttft_s is not None or self.tpot_s is not None


class LimitCheck(Answer):
    """A limit of a latency (TTFT or TPOT) in seconds, and the bounded statistic at the load: mean or percentile (p95).

    value_s   None: not known, or there is none
    """

    latency: str
    statistic: str
    limit_s: float
    value_s: float | None
    floor_s: float | None
    within: bool


class MonthlyCost(Answer):
    """A month of 730 hours: requests, their tokens (prompts and answers), and their cost on the plan and by the API.

    utilisation   requests over those that the plan serves at its load in a month
    """

    requests: float
    tokens: float
    utilisation: float
    plan_cost: float
    api_cost: float


class ApiComparison(Answer):
    """The plan against an API, at its prices of a million prompt tokens and a million answer tokens.

    break_even       the load above which the plan is cheaper; None: more than it serves
    at_the_load      the plan's load for a month
    at_utilisation   a given share of it
    """

    prompt_price: float
    answer_price: float
    break_even: MonthlyCost | None
    at_the_load: MonthlyCost
    at_utilisation: MonthlyCost | None = None


class KernelShare(Answer):
    """The efficiency of kernels (or a launch time in seconds), and its source."""

    value: float
    source: str


class Speed(Point, kw_only=True):
    """The chosen point and its neighbourhood.

    prompt          tokens, or positions of a pass; `prefix_cached` of them are in the prefix cache
    rate            requests per second; None: `sequences` users each send the next request when an answer ends
    seats           sequences of mean length that run at once; `seats_limit`: what limits them, cache or max_num_seqs
    ttft_last_s     TTFT of the last of all prompts that arrive at once
    batches         the same layout from one sequence to as many as fit
    front           the Pareto front of TPOT and tokens per second and GPU, over all layouts that fit
    cheapest        of all points within the limits, that of the fewest GPU-seconds per request
    highest_rate    if the rate is too high: the highest within the limits
    sustainable_requests_per_s   at a rate: the highest that the plan keeps up with, whatever the latencies
    floors          if a limit is missed: the lower bounds of one sequence on any layout of these GPUs
    running         sequences in the decode step of `achievable`
    layouts_compared   layouts of the points that `front` and `cheapest` are chosen from
    libraries       the communication library of each kind of collective, and the source of its figures
    meets_limits    the load is sustained within the limits (by the pools, if disaggregated)
    checks          each limit, and the latency that it bounds at the load
    capacity        if no load is given: as many users as fit within the limits; `below_capacity`: one user, and half
    """

    floor: Latency
    achievable: Latency
    prompt: int
    prefix_cached: int
    answer: int
    rate: float | None
    seats: int
    ttft_last_s: float | None
    disaggregated: Disaggregated | None
    simulation: Simulation | None
    ridge: RidgeBatch | None
    speculation: SpeculationInfo | None
    parts: PartTimes
    batches: tuple[Point, ...]
    deferred_front: Any = json_key("front")
    price_per_gpu_hour: float | None
    limits: LatencyLimits
    deferred_cheapest: Any = json_key("cheapest")
    watts_at_most: int | None
    efficiency: dict[str, KernelShare]
    definitions: dict[str, str]
    seats_limit: str
    running: int
    layouts_compared: int
    meets_limits: bool
    highest_rate: Point | None = None
    sustainable_requests_per_s: float | None = None
    floors: LatencyLimits | None = None
    libraries: dict[str, LibrarySource] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    single_request: SingleRequest | None = None
    checks: tuple[LimitCheck, ...] = ()
    capacity: Point | None = None
    below_capacity: tuple[Point, ...] = ()

    @property
    def front(self) -> tuple[Point, ...]:
        return self.deferred_front.value  # type: ignore[no-any-return]

    @property
    def cheapest(self) -> Point | None:
        return self.deferred_cheapest.value  # type: ignore[no-any-return]


def accelerator_info(plan: Plan) -> AcceleratorInfo:
    kind, reserve = plan.planner.accelerator, plan.planner.engine.reserve
    reserved_bytes, sources = kind.memory - plan.planner.available, dict(kind.sources)
    return AcceleratorInfo(
        kind.name, kind.memory, kind.visible, reserved_bytes, reserve.source, sources, kind.title, str(reserve)
    )


def layout_fit(choice: LayoutCapacity) -> LayoutFit:
    gpu = choice.fullest
    return LayoutFit.of(  # type: ignore[no-any-return]
        choice.layout,
        fits=choice.fits,
        headroom_bytes=gpu.free,
        max_concurrency=choice.max_concurrency,
        weights_bytes=gpu.weights,
        cache_bytes=gpu.cache,
    )


def unsuited(plan: Plan) -> UnsuitedReplica | None:
    """Why no number of these GPUs serves the load within the limits."""
    replica = plan.unsuited
    if replica is None:
        return None
    states = enumerate((replica.one_user, replica.two_users), 1)
    latencies = (ReplicaLatency(users, state.ttft, state.tpot) for users, state in states if state)
    return UnsuitedReplica.of(replica.layout, latencies=tuple(latencies))  # type: ignore[no-any-return]


def workload(plan: Plan, request: Request) -> Workload:
    draft, lengths = plan.planner.draft, (request.prompt, request.answer, request.mean_length)
    return Workload(plan.context, plan.concurrency, plan.planner.engine.prefix, draft.name if draft else None, *lengths)


def engine_info(plan: Plan) -> EngineInfo:
    engine, memory = plan.planner.engine, plan.planner.engine.memory
    profile = ram = None
    if memory:
        name, version, source = memory.profile.engine, memory.profile.version, memory.profile.source
        graphs, steps = plan.best.fullest.rank.graphs, (memory.most_sequences, memory.most_tokens)
        profile = MemoryProfile(name, version, source, memory.accelerator.visible, graphs, *steps)
    if offload := engine.offload:
        ram = Offloaded(offload.layers, offload.experts, offload.head, plan.best.ram, offload.host, str(offload))
    return EngineInfo(
        weights=engine.weights.name,
        weights_source=engine.weights.source,
        kv=engine.kv,
        block=engine.block,
        chunk=engine.chunk,
        poll=None if engine.gathers else engine.interval,
        gather=engine.interval if engine.gathers else None,
        profile=profile,
        ram=ram,
        compute_dtype=engine.weights.dtype,
    )


def stage_memory(gpu: Gpu, context: int) -> StageMemory:
    rank = gpu.rank
    by_kind: dict[str, int] = {}
    for entry, size in rank.weights:
        kind = "attention" if entry.kind == "attention_core" else entry.kind
        by_kind[kind] = by_kind.get(kind, 0) + size
    return StageMemory(
        stage=rank.stage.first,
        stages_alike=rank.stage.copies,
        weights_bytes=gpu.weights,
        weights_by_kind={kind: by_kind[kind] for kind in KINDS if by_kind.get(kind)},
        towers_bytes=rank.towers_bytes,
        adapters_bytes=rank.adapters_bytes,
        draft=DraftMemory(rank.draft.weights_bytes, rank.draft.pages_bytes(context)) if rank.draft else None,
        cache_bytes=gpu.cache,
        cache_a_sequence=rank.caches(context),
        activations_bytes=gpu.peak,
        activations=gpu.activations,
        rest_bytes=gpu.overhead,
        rest=rank.overheads,
        free_bytes=gpu.free,
        weights=tuple(PartBytes(entry.path, entry.times, size) for entry, size in rank.weights),
        cache=tuple(PartBytes(pages.path, pages.copies, size) for pages, size in rank.pages(context)),
    )


def point(serving: Serving, at: OperatingPoint) -> Point:
    return Point(**_point(serving, at))


def _point(serving: Serving, at: OperatingPoint, simulated: Simulated | None = None) -> dict[str, Any]:
    """The fields of a point, with the percentiles of a simulation."""
    price, watts, decodes = serving.price, serving.plan.planner.accelerator.power, at.tpot is not None
    gpus = at.layout.gpus
    costs: dict[str, float | None]
    if price is None:
        costs = dict.fromkeys(
            ("cost_per_million_input", "cost_per_million_output", "cost_per_request", "cost_per_hour")
        )
    else:
        costs = {
            "cost_per_million_input": at.cost_per_million_input(price),
            "cost_per_million_output": at.cost_per_million_output(price) if decodes else None,
            "cost_per_request": price / 3600 * at.gpu_seconds,
            "cost_per_hour": price * gpus,
            "cost_per_month": MONTH_HOURS * price * gpus,
            "cost_per_thousand_requests": price / 3.6 * at.gpu_seconds,
        }
    return {
        "layout": Degrees.of(at.layout),
        "sequences": at.sequences,
        "ttft_s": at.ttft.achievable,
        "tpot_s": at.tpot.achievable if at.tpot else None,
        "tpot_floor_s": at.tpot.floor if at.tpot else None,
        "bound": at.tpot.bound if at.tpot else at.ttft.bound,
        "tokens_per_s_user": 1 / at.tpot.achievable if at.tpot else None,
        "decode_tokens_per_s_gpu": at.decode_tokens_per_s_gpu if decodes else None,
        "prompt_tokens_per_s_gpu": at.prompt_tokens_per_s_gpu,
        "steady": _steady(at, serving.prompt, at.steady, decodes, simulated),
        "joules_per_token_at_most": None if watts is None or not decodes else watts / at.tokens_per_s_gpu,
        "max_watts": None if watts is None else gpus * watts,
        "within_limits": _within_limits(serving, at),
        **costs,
    }


def _within_limits(serving: Serving, at: OperatingPoint) -> bool | None:
    """None: there are no limits, or the bounded percentile of this load is not simulated."""
    limits = serving.limits
    if not limits.needs_simulation:
        return limits.met_by(at.steady) if limits else None
    return not serving.unmet if limits and at is serving.chosen else None


def limit_checks(serving: Serving) -> Iterator[LimitCheck]:
    """The limits, each with the latency that it bounds."""
    limits, steady = serving.limits, serving.bounded
    floors = serving.floors if serving.unmet else Slo()
    for name, limit, percent, value, floor in (
        ("TTFT", limits.ttft, limits.ttft_percentile, steady.ttft, floors.ttft),
        ("TPOT", limits.tpot, limits.tpot_percentile, steady.tpot, floors.tpot),
    ):
        if limit is not None:
            value = value if steady.timed else None
            within = steady.timed and (value is None or value <= limit)
            statistic = "mean" if percent is None else f"p{percent:g}"
            yield LimitCheck(name, statistic, limit, value, floor, within)


def _limit(limit: float | None, percent: float | None) -> float | dict[str, float] | None:
    return limit if limit is None or percent is None else {f"p{percent:g}": limit}


def _steady(
    load: OperatingPoint | Pools, prompt: int, steady: Steady, decodes: bool = True, run: Simulated | None = None
) -> SteadyState:
    """The means of a load (None: only a simulation gives them), with the percentiles of a simulation."""
    ttft, tpot, e2e = (run.ttft, run.tpot, run.e2e) if run else (None, None, None)
    timed = steady.timed
    return SteadyState(
        ttft_s=_stats(steady.ttft if timed else None, ttft),
        tpot_s=_stats(steady.tpot if timed else None, tpot),
        e2e_s=_stats(steady.e2e if timed and decodes else None, e2e),
        lasts=steady.lasts,
        utilisation=steady.utilisation,
        decoding=steady.decoding if steady.decoding < inf else None,
        line_s=steady.cache_wait if timed else None,
        requests_per_s=load.rate,
        output_tokens_per_s=load.rate * load.answer if decodes else None,
        tokens_per_s_gpu=load.tokens_per_s_gpu if decodes else None,
        prompt_tokens_per_s_gpu=load.rate * prompt / load.gpus,
        tokens_per_s_user=1 / steady.tpot if timed and steady.tpot else None,
        requests_in_system=steady.in_system if timed else None,
    )


def _stats(mean: float | None, simulated: LatencyStats | None) -> LatencyStats:
    return replace(simulated, mean=mean) if simulated else LatencyStats(mean, None, None, None)


def speed(serving: Serving, with_capacity: bool = False) -> Speed:
    """The speed of a plan and its neighbourhood; `with_capacity`: no load is given."""
    chosen, limits, accelerator = serving.chosen, serving.limits, serving.plan.planner.accelerator
    watts, kernels = accelerator.power, accelerator.efficiency
    most, floors = serving.busiest, serving.floors if limits and serving.unmet else None
    cheapest = Deferred(lambda: point(serving, serving.cheapest) if serving.cheapest else None)
    loads = [point(serving, at) for at in serving.capacity] if with_capacity else []
    prompts = chosen.sequences * serving.prompt  # tokens that arrive where all start at once
    memory = serving.plan.planner.engine.memory
    at_once = memory.at_once if memory else None
    return Speed(
        floor=_latency(chosen, lambda time: (time.floor, time.floor_bound)),
        achievable=_latency(chosen, lambda time: (time.achievable, time.bound)),
        prompt=serving.prompt,
        prefix_cached=serving.cached,
        answer=chosen.answer,
        rate=serving.request.rate,
        seats=min(int(serving.cache_slots), chosen.sequences),
        ttft_last_s=prompts / chosen.prompt_tokens_per_s_gpu / chosen.gpus if chosen.tpot else None,
        **_point(serving, chosen, serving.simulated),
        disaggregated=_disaggregated(serving, serving.pools) if serving.pools else None,
        simulation=_simulation(serving.simulated, limits, chosen.gpus) if serving.simulated else None,
        ridge=serving.ridge,
        speculation=_speculation(serving),
        parts=_part_times(serving),
        batches=tuple(point(serving, at) for at in serving.batches if at.tpot),
        deferred_front=Deferred(lambda: tuple(point(serving, at) for at in serving.front)),
        price_per_gpu_hour=serving.price,
        limits=LatencyLimits(_limit(limits.ttft, limits.ttft_percentile), _limit(limits.tpot, limits.tpot_percentile)),
        deferred_cheapest=cheapest,
        watts_at_most=None if watts is None else watts * chosen.gpus,
        efficiency={key: KernelShare(value, kernels.sources[key]) for key, value in kernels.figures().items()},
        definitions=DEFINITIONS,
        seats_limit="max_num_seqs" if at_once and serving.cache_slots >= at_once * chosen.layout.dp else "cache",
        running=chosen.running,
        layouts_compared=sum(choice.serves for choice in serving.timed_choices),
        meets_limits=not serving.unmet,
        highest_rate=point(serving, most) if most else None,
        sustainable_requests_per_s=serving.sustainable_rate,
        floors=LatencyLimits(floors.ttft, floors.tpot) if floors else None,
        libraries=serving.layout_time.libraries,
        notes=serving.notes,
        single_request=_single_request(serving),
        checks=tuple(limit_checks(serving)),
        capacity=loads[-1] if loads else None,
        below_capacity=tuple(loads[:-1]),
    )


def _single_request(serving: Serving) -> SingleRequest:
    timer, layout = serving.timer, serving.chosen.layout
    steady, (prompt, step) = timer.single_request(layout), timer.single_times(layout)
    rate = 1 / steady.tpot if steady.tpot else None
    floor, bound = (step.floor, step.bound) if step and steady.tpot else (None, None)
    return SingleRequest(steady.ttft, steady.tpot, steady.e2e, rate, prompt.floor, floor, bound)


def api_comparison(
    serving: Serving, point: Point, prices: tuple[float, float], utilisation: float | None
) -> ApiComparison | None:
    """The plan at a load against an API; None: the load is not sustainable."""
    assert serving.price is not None
    pools = serving.pools
    if not (pools or serving.chosen).steady.lasts:
        return None
    rate = pools.rate if pools else point.steady.requests_per_s
    plan_cost = MONTH_HOURS * serving.price * pools.gpus if pools else point.cost_per_month
    assert plan_cost is not None
    answer = serving.request.answer if serving.layout_time.caching else 0
    requests = MONTH_HOURS * 3600 * rate
    request_cost = (serving.prompt * prices[0] + answer * prices[1]) / 1e6

    def month(share: float) -> MonthlyCost:
        number = share * requests
        return MonthlyCost(number, number * (serving.prompt + answer), share, plan_cost, number * request_cost)

    share = plan_cost / (requests * request_cost) if request_cost else inf
    return ApiComparison(
        *prices,
        break_even=month(share) if share <= 1 else None,
        at_the_load=month(1.0),
        at_utilisation=None if utilisation is None else month(utilisation),
    )


def _latency(at: OperatingPoint, figure: Callable[[BoundedTime], tuple[float, str]]) -> Latency:
    """The unloaded latencies, floor or achievable; `figure` gives the seconds of a time and what bounds them."""
    prompt, prompt_bound = figure(at.ttft)
    if at.tpot is None:
        return Latency(prompt, None, prompt_bound, None, None, None)
    step, step_bound = figure(at.tpot)
    return Latency(prompt, step, prompt_bound, step_bound, 1 / step, at.running / step / at.gpus)


def _speculation(serving: Serving) -> SpeculationInfo | None:
    guess, draft = serving.request.speculation, serving.plan.planner.draft
    if guess is None:
        return None
    at_once = draft is not None and draft.description.drafting != "in-turn"
    step, plain = serving.chosen.tpot, serving.without_speculation
    return SpeculationInfo(
        guess.tokens,
        guess.acceptance,
        draft.name if draft else None,
        guess.expected,
        at_once,
        step.achievable * guess.expected if step else None,
        plain.tpot if plain.timed else None,
    )


def _part_times(serving: Serving) -> PartTimes:
    """A prefill and a decode step of the chosen point by kind of part, without speculation."""
    times, at = serving.layout_time, serving.chosen
    costs = [times.prefill_parts(serving.prompt, serving.cached), {}]
    if at.tpot is not None:
        sequences = ceil_div(at.running, at.layout.dp)
        costs[1] = times.decode_parts(sequences, serving.plan.context, busy=times.busy(at.running))
    parts = [tuple(_part_time(kind, of[kind]) for kind in (*KINDS, ADAPTERS, LINKS) if kind in of) for of in costs]
    prefill, decode = (sum(cost.achievable for cost in of.values()) for of in costs)
    return PartTimes(parts[0], parts[1], prefill, decode)


def _part_time(kind: str, cost: Cost) -> PartTime:
    compute, memory, link = cost.least
    floor = FloorTime(
        compute_s=compute, memory_s=memory, link_s=link, bound=cost.floor_bound, ram_s=cost.least_ram or None
    )
    return PartTime(kind, floor, AchievableTime(*cost.spent, cost.achievable, cost.bound))


def _disaggregated(serving: Serving, pools: Pools) -> Disaggregated:
    return Disaggregated(
        _pool(pools.prefill),
        _pool(pools.decode),
        pools.gpus,
        CacheTransfer(pools.cache_bytes, pools.transfer),
        pools.prompt.achievable,
        pools.step.achievable,
        _steady(pools, serving.prompt, pools.steady),
        None if serving.price is None else pools.cost_per_million_output(serving.price),
    )


def _pool(pool: LayoutCapacity) -> PoolPlan:
    return PoolPlan(Degrees.of(pool.layout), pool.fullest.free, pool.max_concurrency)


def _simulation(simulated: Simulated, limits: Slo, gpus: int) -> Simulation:
    run, within = simulated.run, simulated.run.within(limits.ttft, limits.tpot)
    return Simulation(
        ttft_s=simulated.ttft,
        tpot_s=simulated.tpot,
        e2e_s=simulated.e2e,
        requests=len(run.done),
        copies=simulated.copies,
        seed=simulated.seed,
        seconds=run.seconds,
        output_tokens_per_s=simulated.output,
        within_limits=within,
        goodput_requests_per_s=within * simulated.requests_per_s,
        waiting=run.waiting,
        most_waiting=run.most_waiting,
        inside=run.inside,
        busy=run.busy,
        preempted=run.preempted,
        requests_per_s=simulated.requests_per_s,
        tokens_per_s_gpu=simulated.output / gpus,
    )
