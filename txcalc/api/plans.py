"""The keys of a plan of `deploy`, and their types."""

from __future__ import annotations

from txcalc.api.results import Planned, Record


class Card(Record):
    """The accelerator: its memory, what the engine and the driver keep of it, and where its figures come from."""

    name: str
    memory_bytes: int
    reserve_bytes: int
    reserve_source: str
    source: dict[str, str]


class PlannedLoad(Record):
    """What the plan is for: sequences at once, each of so many tokens; a prefix that all share; a draft."""

    context: int
    concurrency: int
    shared_prefix: int
    draft: str | None


class Profile(Record):
    """What an engine keeps for itself, beside weights and cache."""

    name: str
    version: str
    source: str
    visible_bytes: int
    graphs_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int


class Host(Record):
    """RAM in bytes, its bandwidth and the host's peak where they are known, bytes per second of copies to a GPU."""

    memory: int
    bandwidth: int | None
    peak: int | None
    link: int


class Aside(Record):
    """What lies in RAM: whole layers from the first on, the experts of layers, the head; bytes of RAM that are left."""

    layers: int
    experts_of_layers: int
    head: bool
    free_bytes: int | None
    host: Host | None


class Engine(Record):
    """Formats of weights and cache, tokens of a page, tokens of a step of prefill; decode steps between two polls for
    new requests, or at most where copies that share experts gather them."""

    weights: str
    weights_source: str
    kv: str
    block: int
    chunk: int
    poll: int | None
    gather: int | None
    profile: Profile | None
    ram: Aside | None


class LayoutWays(Record):
    """Ways to split a model, and the GPUs they take."""

    tp: int
    pp: int
    dp: int
    ep: int
    etp: int | None
    gpus: int


class Choice(LayoutWays):
    """A layout: whether it fits, what is left of the fullest GPU, the most sequences at once."""

    fits: bool
    headroom_bytes: int
    max_concurrency: int


class Draft(Record):
    """What a draft takes of a GPU."""

    weights_bytes: int
    cache_a_sequence: int


class CacheSizes(Record):
    """One sequence's cache on one GPU: what later tokens need, in pages, and if no window were used."""

    algorithmic: int
    pages: int
    dense: int


class Piece(Record):
    """Bytes of one part, of which there are so many copies."""

    path: str
    copies: int
    bytes: int


class Stage(Record):
    """What each GPU of a stage holds."""

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
    """Seconds of a prompt and of a step alone, and what each is bound by."""

    ttft_s: float
    tpot_s: float | None
    ttft_bound: str
    tpot_bound: str | None


class Spread(Record):
    """A mean; percentiles are of a simulation."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class Means(Record):
    """A load that lasts, or does not: seconds to the first token, per token and of a whole request; the share of time
    that prompts take; sequences that decode at once; seconds of TTFT in line for a seat in the cache."""

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
    """A layout with so many users: its times alone and at the load, rates and costs."""

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
    """GPUs for prompts alone, or for answers."""

    layout: LayoutWays
    headroom_bytes: int
    max_concurrency: int


class CacheTransfer(Record):
    """The cache of a prompt that goes from one pool to the other."""

    bytes: int
    seconds: float


class Disaggregated(Record):
    """Prompts and answers on GPUs of their own."""

    prefill: PoolPlan
    decode: PoolPlan
    gpus: int
    transfer: CacheTransfer
    prompt_alone_s: float
    step_s: float
    steady: Means
    cost_per_million_output: float | None


class Simulation(Record):
    """Requests of one copy, one by one."""

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
    """Sequences from which on a step is bound by compute; None: never."""

    weights: int | None
    with_cache: int | None


class Speculation(Record):
    """Tokens proposed a step, how likely each is accepted, and how many a step yields."""

    tokens: int
    acceptance: float
    draft: str | None
    expected_tokens_per_step: float


class Spent(Record):
    """Seconds of a kind of part by what takes them; launches and their sum where they are achievable ones."""

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
    floor: Spent
    achievable: Spent


class Parts(Record):
    """The time of a prefill and of a decode step by kind of part."""

    prefill: list[PartTimes]
    decode: list[PartTimes]


class Limits(Record):
    """Seconds that were asked for at most."""

    ttft_s: float | None
    tpot_s: float | None


class KernelShare(Record):
    """The share of a peak that kernels reach (or the seconds of a start), and where that comes from."""

    value: float
    source: str


class Speed(Point):
    """The chosen point, and all around it; seats: of its sequences, those that the cache holds at their mean length."""

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
    """A model on one kind of accelerator."""

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
    """A model that cannot be on a kind of accelerator, and why."""

    model: str
    gpu: str
    refused: str
