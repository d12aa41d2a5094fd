"""The records of a plan of `deploy`."""

from __future__ import annotations

from txcalc.questions.results import Planned, Record


class Card(Record):
    """The accelerator: memory, the reserve of engine and driver, and the sources of its figures."""

    name: str
    memory_bytes: int
    reserve_bytes: int
    reserve_source: str
    source: dict[str, str]


class PlannedLoad(Record):
    """The load of the plan: concurrent sequences of a length, a shared prefix, a draft model."""

    context: int
    concurrency: int
    shared_prefix: int
    draft: str | None


class Profile(Record):
    """Memory that an engine takes besides weights and cache."""

    name: str
    version: str
    source: str
    visible_bytes: int
    graphs_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int


class Host(Record):
    """The host: RAM in bytes, its bandwidth and peak FLOP/s if known, bytes per second of a link to a GPU."""

    memory: int
    bandwidth: int | None
    peak: int | None
    link: int


class Offloaded(Record):
    """What is in host RAM: the first layers, experts of layers, the head; and the free bytes of RAM."""

    layers: int
    experts_of_layers: int
    head: bool
    free_bytes: int | None
    host: Host | None


class Engine(Record):
    """The engine: formats of weights and cache, tokens per page and per prefill chunk; `poll`: decode steps between
    admissions of new requests; `gather`: the most of them where expert-parallel replicas admit together."""

    weights: str
    weights_source: str
    kv: str
    block: int
    chunk: int
    poll: int | None
    gather: int | None
    profile: Profile | None
    ram: Offloaded | None


class LayoutWays(Record):
    """A layout and its number of GPUs."""

    tp: int
    pp: int
    dp: int
    ep: int
    etp: int | None
    gpus: int


class Choice(LayoutWays):
    """A layout: whether it fits, free bytes of the fullest GPU, and the maximum concurrency."""

    fits: bool
    headroom_bytes: int
    max_concurrency: int


class Draft(Record):
    """Memory of a draft model on one GPU."""

    weights_bytes: int
    cache_a_sequence: int


class CacheSizes(Record):
    """One sequence's cache on one GPU: what later tokens read, in whole pages, and without windows."""

    algorithmic: int
    pages: int
    dense: int


class Piece(Record):
    """Bytes of a part, and its number of copies."""

    path: str
    copies: int
    bytes: int


class Stage(Record):
    """Memory of each GPU of a pipeline stage."""

    stage: int
    stages_alike: int
    weights_bytes: int
    weights_by_kind: dict[str, int]
    draft: Draft | None
    cache_bytes: int
    cache_a_sequence: CacheSizes
    activations_bytes: int
    activations: dict[str, int]
    rest_bytes: int
    rest: dict[str, int]
    free_bytes: int
    weights: list[Piece]
    cache: list[Piece]


class Latency(Record):
    """Seconds of one prefill and one decode step alone, and what bounds them."""

    ttft_s: float
    tpot_s: float | None
    ttft_bound: str
    tpot_bound: str | None


class Spread(Record):
    """A mean, and percentiles from a simulation."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class Means(Record):
    """Steady state of a load: TTFT, TPOT and end-to-end seconds, whether it is sustainable (`lasts`), the share of time
    spent on prefill, concurrently decoding sequences, and the part of TTFT spent queueing for cache."""

    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    lasts: bool
    utilisation: float
    decoding: float | None
    line_s: float | None
    requests_per_s: float
    output_tokens_per_s: float | None
    per_gpu: float | None


class Point(Record):
    """A layout at a concurrency: latencies alone and under load, throughput and cost."""

    layout: LayoutWays
    sequences: int
    ttft_s: float
    tpot_s: float | None
    tpot_floor_s: float | None
    bound: str
    tokens_per_s_user: float | None
    tokens_per_s_gpu: float | None
    prompt_tokens_per_s_gpu: float
    steady: Means
    cost_per_million_input: float | None
    cost_per_million_output: float | None
    cost_per_request: float | None
    cost_per_hour: float | None
    joules_per_token_at_most: float | None


class PoolPlan(Record):
    """A prefill or decode pool."""

    layout: LayoutWays
    headroom_bytes: int
    max_concurrency: int


class CacheTransfer(Record):
    """Transfer of a prompt's cache from the prefill to the decode pool."""

    bytes: int
    seconds: float


class Disaggregated(Record):
    """Disaggregated prefill and decode."""

    prefill: PoolPlan
    decode: PoolPlan
    gpus: int
    transfer: CacheTransfer
    prompt_alone_s: float
    step_s: float
    steady: Means
    cost_per_million_output: float | None


class Simulation(Record):
    """A discrete-event simulation of one replica's requests."""

    ttft_s: Spread | None
    tpot_s: Spread | None
    e2e_s: Spread | None
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


class Ridge(Record):
    """Batch size from which a decode step is bound by compute; None: never."""

    weights: int | None
    with_cache: int | None


class Speculation(Record):
    """Speculative decoding: tokens proposed per step, acceptance probability, and expected tokens per step."""

    tokens: int
    acceptance: float
    draft: str | None
    expected_tokens_per_step: float


class TimeParts(Record):
    """Seconds of a kind of part: compute, memory, links; kernel launches and their total for achievable times."""

    compute_s: float
    memory_s: float
    link_s: float
    launch_s: float | None
    time_s: float | None
    ram_s: float | None
    bound: str


class PartTimes(Record):
    """The time of a kind of part."""

    part: str
    floor: TimeParts
    achievable: TimeParts


class Parts(Record):
    """Times of prefill and decode step by kind of part."""

    prefill: list[PartTimes]
    decode: list[PartTimes]


class Limits(Record):
    """Requested latency limits in seconds."""

    ttft_s: float | None
    tpot_s: float | None


class KernelShare(Record):
    """The efficiency of kernels (or a launch time in seconds), and its source."""

    value: float
    source: str


class Speed(Point):
    """The chosen point and its neighbourhood; `seats`: sequences that the cache holds at their mean length."""

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
    ridge: Ridge | None
    speculation: Speculation | None
    parts: Parts
    batches: list[Point]
    front: list[Point]
    price_per_gpu_hour: float | None
    limits: Limits
    cheapest: Point | None
    watts_at_most: int | None
    efficiency: dict[str, KernelShare]
    definitions: dict[str, str]


class Deployment(Record):
    """A model deployed on one kind of accelerator."""

    model: Planned
    gpu: Card
    workload: PlannedLoad
    engine: Engine
    cache_tokens: int | None
    fits: bool
    limit: str
    headroom_bytes: int
    max_concurrency: int
    max_context: int | None
    min_gpus: int | None
    layout: LayoutWays
    rule: str
    layouts: list[Choice]
    memory: list[Stage]
    speed: Speed | None
    largest: Point | None
    assumptions: list[str]
    notes: list[str]


class Refusal(Record):
    """A model that cannot run on a kind of accelerator, and why."""

    model: str
    gpu: str
    refused: str
