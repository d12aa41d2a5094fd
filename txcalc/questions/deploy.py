"""`deploy`: does a model fit on accelerators, how fast is it, what does it cost?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from txcalc.errors import Fault, InputError
from txcalc.hardware import Accelerator, load as load_accelerator
from txcalc.model import Model
from txcalc.planning.machine import NODE
from txcalc.planning.serving import points, traffic
from txcalc.planning.serving.deployment import FewestGpus, Plan, Planner, with_offload
from txcalc.planning.serving.engine import CHUNK, EngineConfig, engine as engine_config, on_accelerator, parse_reserve
from txcalc.planning.serving.engine_memory import EngineMemory
from txcalc.planning.serving.engine_profiles import (
    EngineProfile,
    is_mlx,
    is_personal,
    is_served,
    offloading,
    personal_engine,
    profile,
    unsupported_fault,
)
from txcalc.planning.serving.offload import OffloadRequest, parse_offload
from txcalc.planning.serving.sizing import arrange, rentable
from txcalc.planning.serving.speed import Serving, check_budget, most_users, serve
from txcalc.questions import deployment, options as o, phrases
from txcalc.questions.answers import Answer, ModelInfo, Result
from txcalc.questions.arguments import bandwidth, check_arguments, length, maybe, models, source_list, split_commas
from txcalc.questions.deployment import (
    AcceleratorInfo,
    ApiComparison,
    Degrees,
    EngineInfo,
    LayoutFit,
    Point,
    Speed,
    StageMemory,
    UnsuitedReplica,
    Workload,
)
from txcalc.units import three

if TYPE_CHECKING:
    from txcalc.planning.serving.points import Request, Slo

LENGTHS = "N|N±M|N..M|@FILE"
PROMPT = o.PROMPT.with_help(
    "A number, a uniform range, or drawn from a file (default: half of the context).", value=LENGTHS, parse=None
)
ANSWER = o.Option("Tokens per answer (default: the context less the prompt).", LENGTHS)
RATE = o.Option("Open loop: requests arrive at random at this rate, in place of --concurrency: 5/s, 3M/month.", "N/s")
SIMULATE = o.Option("Simulate the load request by request: percentiles, goodput, queue.")
DRAFT = o.Option(
    "Speculative decoding: tokens proposed per step, and the draft model; mtp: the model's own prediction layer.",
    "N[:SOURCE]|mtp",
)
ACCEPTANCE = o.Option("Probability that a proposed token is accepted.", "80%|0.8")
API = o.Option(
    "API prices per million prompt and answer tokens: find the load per month above which serving is cheaper.",
    "IN/OUT",
    "Money",
)
UTILISATION = o.Option("For --api: the average load as a share of the plan's.", "30%|0.3", "Money")
LIMIT = "Limit of the time {} at the load: of the mean (200ms), or of a percentile, by simulation (p95:0.5s)."
Time = float | str  # seconds, or "200ms"


class Parallelism(o.Options):
    """GPUs of each kind of parallelism, where they are not to be chosen; and how nodes are linked.

    >>> import txcalc
    >>> str(txcalc.deploy("llama-3.1-8b", "h100", layout=txcalc.Parallelism(tp=2, dp=2)).layout)
    'tp=2 dp=2'
    """

    section: ClassVar[str] = "Engine"

    tp: Annotated[int | str, o.Option("Tensor parallel (a number, or auto).", "N|auto")] = "auto"
    pp: Annotated[int | str, o.Option("Pipeline parallel (a number, or auto).", "N|auto")] = "auto"
    dp: Annotated[int | str, o.Option("Data parallel (a number, or auto).", "N|auto")] = "auto"
    ep: Annotated[int | str, o.Option("Expert parallel (a number, or auto).", "N|auto")] = "auto"
    etp: Annotated[int | None, o.Option("Expert tensor-parallel size (may span --dp replicas).", "N")] = None
    node: Annotated[int | None, o.NODE] = None
    link: Annotated[o.Length | None, o.LINK] = None
    network: Annotated[o.Length | None, o.NETWORK] = None

    def given(self) -> dict[str, int]:
        """The degrees that are numbers."""
        return phrases.parse_degrees({"tp": self.tp, "pp": self.pp, "dp": self.dp, "ep": self.ep, "etp": self.etp})


class Engine(o.Options):
    """How the engine runs: steps, pages, its own memory, offload to host RAM, disaggregated pools and adapters."""

    section: ClassVar[str] = "Engine"

    block: Annotated[o.Length | None, o.BLOCK.with_help("Default: 16.")] = None
    chunk: Annotated[o.Length | None, o.CHUNK.with_help("Default: 8192, or the engine's own.")] = None
    engine: Annotated[
        str | None,
        o.ENGINE.with_help(
            "Default: llama.cpp for GGUF formats, and on Apple GPUs for all formats that it runs; otherwise none."
        ),
    ] = None
    max_num_seqs: Annotated[o.Length | None, o.tokens("Maximum sequences per step (default: the engine's).")] = None
    poll: Annotated[int, o.Option("Decode steps between admissions of new requests (SGLang).", "N")] = 1
    gather: Annotated[
        int | None,
        o.Option(
            "Wait up to N steps so that all expert-parallel ranks start prefills in one step (TensorRT-LLM).", "N"
        ),
    ] = None
    reserve: Annotated[str | None, o.RESERVE.with_help("Default: the engine's own, or 10%.")] = None
    ram: Annotated[str | None, o.RAM] = None
    gpu_layers: Annotated[int | None, o.GPU_LAYERS] = None
    n_cpu_moe: Annotated[int | str | None, o.N_CPU_MOE] = None
    pcie: Annotated[str | None, o.PCIE] = None
    disaggregate: Annotated[
        int | str | None, o.Option("Disaggregated serving: N of the GPUs for prefill, the others for decode.", "N|auto")
    ] = None
    adapters: Annotated[int, o.Option("LoRA adapters in memory; a request uses one.", "N")] = 0
    adapter_rank: Annotated[int, o.Option("Rank of each adapter.", "R")] = 0

    def offload(self) -> OffloadRequest | None:
        layers = None if self.n_cpu_moe is None else str(self.n_cpu_moe)
        return parse_offload(self.ram, self.pcie, self.gpu_layers, layers)

    def sequences(self, engine_profile: EngineProfile | None) -> int | None:
        """The maximum sequences per step. Errors: `InputError` where no engine is named."""
        number = maybe(self.max_num_seqs, "--max-num-seqs", length)
        most = engine_profile.numbers.get("most_sequences", 1 << 20) if engine_profile else 1 << 20
        if number is not None and (engine_profile is None or not 1 <= number <= most):
            raise InputError("options", [f"--max-num-seqs is a number from 1 to {most:,} and needs --engine"])
        return number

    def config(self, weights: str, kv: str, prefix: int) -> dict[str, Any]:
        """The arguments of `planning.serving.engine.engine` that depend on neither model nor accelerator."""
        if self.gather is not None and self.poll != 1:
            raise InputError("options", ["--poll and --gather exclude each other: both say when requests are admitted"])
        return dict(
            weights=weights,
            kv=kv,
            block=maybe(self.block, "--block", length),
            prefix=prefix,
            adapters=(self.adapters, self.adapter_rank),
            reserve=None if self.reserve is None else parse_reserve(self.reserve),
            interval=self.poll if self.gather is None else self.gather,
            gathers=self.gather is not None,
        )


class Speculation(o.Options):
    """Speculative decoding: `draft` is a number of tokens per step with a source ("4:llama-3.2-1b"), "mtp" the
    model's own prediction layer, a bare number a draft without cost."""

    section: ClassVar[str] = "Engine"

    draft: Annotated[int | str | None, DRAFT] = None
    acceptance: Annotated[float | str | None, ACCEPTANCE] = None


class Load(o.Options):
    """Requests: lengths (a number, a range such as "3k..5k" or "4k±1k", or "@FILE"), and when they arrive. Without a
    rate each of `concurrency` users sends the next request when an answer ends. Without either, the answer is what the
    GPUs carry: `speed.capacity`."""

    section: ClassVar[str] = "Traffic"

    concurrency: Annotated[
        o.Length | None, o.CONCURRENCY.with_help("Default: the most within --ttft and --tpot; without these 1.")
    ] = None
    prompt: Annotated[o.Length | None, PROMPT] = None
    answer: Annotated[o.Length | None, ANSWER] = None
    rate: Annotated[float | str | None, RATE] = None
    arrivals: Annotated[
        str | None, o.Option("Open loop: arrival times from a file, in seconds, one per line.", "FILE")
    ] = None
    burstiness: Annotated[
        float, o.Option("Burstiness of --rate: 1 is Poisson, below 1 bursts, above 1 more even.", "B")
    ] = 1.0
    simulate: Annotated[bool, SIMULATE] = False
    requests: Annotated[o.Length | None, o.tokens("Simulated requests (default: 10,000; per user 10 to 400).")] = None
    seed: Annotated[int, o.Option("Seed of the simulation.", "N")] = 0
    prefix_hits: Annotated[float | str, o.Option("Share of each prompt found in the prefix cache.", "30%|0.3")] = 0
    shared_prefix: Annotated[
        o.Length, o.tokens("Tokens of a common prefix (system prompt), computed and cached once.")
    ] = 0

    def simulated_requests(self, limits: Slo) -> int | None:
        """The number of simulated requests; None: its default."""
        number = maybe(self.requests, "--requests", length)
        if not limits.needs_simulation and (number is not None or self.seed):
            raise InputError("options", ["--requests and --seed need --simulate, or a limit such as --ttft p95:500ms"])
        if number is not None and not 1 <= number <= 10**6:
            raise InputError("options", [Fault("requests", number, "a whole number from 1 to 1,000,000")])
        return number


class Limits(o.Options):
    """Limits of latencies at the load: of the mean, in seconds or as "200ms", or of a percentile, as "p95:200ms"."""

    section: ClassVar[str] = "Traffic"

    ttft: Annotated[Time | None, o.Option(LIMIT.format("to first token"), "[pN:]TIME")] = None
    tpot: Annotated[Time | None, o.Option(LIMIT.format("per output token"), "[pN:]TIME")] = None

    def slo(self, simulate: bool) -> Slo:
        (ttft_percentile, ttft), (tpot_percentile, tpot) = (
            phrases.parse_limit(value, flag) for flag, value in (("--ttft", self.ttft), ("--tpot", self.tpot))
        )
        return points.Slo(ttft, tpot, ttft_percentile, tpot_percentile, simulate)


class Deploy(Result, tag_field="schema", tag="txcalc/deploy/1", kw_only=True):
    """A model deployed on one kind of accelerator.

    cache_tokens   capacity of one replica's cache
    limit          what does not fit, or would be the first not to
    min_gpus       the fewest GPUs whose memory holds the load
    fewest_gpus    the fewest that serve it within the limits; None: none do
    unsuited       if more GPUs do not mend a missed limit: the replica that comes closest
    times_cheapest  cost over that of the model's cheapest deployment that serves the load: per hour, or per million
                   tokens if each is at its capacity
    layouts        best first, by `rule`
    memory         of each GPU of every distinct stage
    largest        the largest load that fits or, if a rate is too high, is within the limits
    api            if API prices are given: the load above which serving is cheaper
    notes          on the model, and `plan_notes` on the plan and its speed
    detail         whether the printed text has every table
    launch         a function that writes the command of an engine
    """

    model: ModelInfo
    gpu: AcceleratorInfo
    workload: Workload
    engine: EngineInfo
    cache_tokens: int | None
    fits: bool
    limit: str
    headroom_bytes: int
    max_concurrency: int
    max_context: int | None
    min_gpus: int | None
    fewest_gpus: FewestGpus | None
    layout: Degrees
    rule: str
    layouts: tuple[LayoutFit, ...]
    memory: tuple[StageMemory, ...]
    speed: Speed | None
    largest: Point | None
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    largest_that_fits: Point | None = None
    unsuited: UnsuitedReplica | None = None
    times_cheapest: float | None = None
    api: ApiComparison | None = None
    plan_notes: tuple[str, ...] = ()
    detail: bool = False
    launch: Callable[[str], str] | None = None

    @property
    def failed(self) -> bool:
        """It does not fit, has to queue users, or misses a limit."""
        return not self.fits or (self.speed is not None and not self.speed.meets_limits)

    @property
    def deployments(self) -> tuple[Deploy | Refusal, ...]:
        """This deployment; of several models or accelerators all of them."""
        return (self,)

    @check_arguments
    def to_command(self, engine: str) -> str:
        """The command that serves the plan with vllm, sglang, trtllm, dynamo or llama.cpp, or ollama's Modelfile.

        Errors: `InputError` for a plan of a comparison, and for one that the engine cannot run.
        """
        if self.launch is None:
            raise _no_command()
        return self.launch(engine)

    def _rows(self) -> list[dict[str, Any]]:
        """A row per load and layout; `pareto`: it is on the front."""
        if not self.speed:
            raise InputError("deploy", ["has no speed, whose loads would be the rows of a data frame"])
        front = {(at.layout, at.sequences): at for at in self.speed.front}
        points = {(at.layout, at.sequences): at for at in self.speed.batches} | front
        return [{**at.to_row(), "pareto": key in front} for key, at in points.items()]


class Refusal(Answer):
    """A model that cannot run on a kind of accelerator, and why."""

    model: str
    gpu: str
    refused: str


class DeployComparison(Result, tag_field="schema", tag="txcalc/deploy/1", kw_only=True):
    """Several models or kinds of accelerator."""

    deployments: tuple[Deploy | Refusal, ...]

    @property
    def failed(self) -> bool:
        """None of them serves the load within the limits."""
        return all(isinstance(plan, Refusal) or plan.failed for plan in self.deployments)

    def _document(self) -> dict[str, Any]:
        document = super()._document()
        for row in document["deployments"]:
            row.pop("schema", None)
        return document

    @check_arguments
    def to_command(self, engine: str) -> str:
        """Errors: `InputError`."""
        raise _no_command()

    def _rows(self) -> list[dict[str, Any]]:
        """A row per deployment, at the requested load."""
        rows: list[dict[str, Any]] = []
        for plan in self.deployments:
            if isinstance(plan, Refusal):
                rows.append({"model": plan.model, "gpu": plan.gpu, "fits": None, "refused": plan.refused})
            else:
                first = {"model": plan.model.name, "gpu": plan.gpu.name, "fits": plan.fits, "refused": None}
                rows.append({**first, **((plan.speed.capacity or plan.speed).to_row() if plan.speed else {})})
        columns = dict.fromkeys(key for row in rows for key in row)
        return [{key: row.get(key) for key in columns} for row in rows]


def _no_command() -> InputError:
    return InputError("deploy", ["a serving command needs one model and one kind of accelerator"])


@o.Question(
    "txcalc deploy llama-3.1-70b --gpu h100-sxm:8 --context 32k --weights fp8 --price 2.5 --tpot 20ms",
    takes=("--set", "--ignore"),
    draws=True,
    first=("--gpu", "--weights", "--context", "--prompt", "--answer", "--concurrency", "--ttft", "--tpot"),
    examples=(
        "The fewest GPUs for a load: txcalc deploy llama-3.1-8b --gpu h100@2.5 --gpu l40s@1 --rate 5/s --prompt 2k "
        "--answer 300 --ttft p95:1s --tpot 40ms",
        "How many users 8 GPUs serve within limits: txcalc deploy llama-3.1-70b --gpu h100:8@2.5 --ttft 1s --tpot 40ms",
        "The command that serves it: txcalc deploy llama-3.1-8b --gpu h100:1 --concurrency 16 --emit vllm",
    ),
)
def deploy(
    sources: o.SourcesArgument,
    gpu: Annotated[
        str | Accelerator | Sequence[str | Accelerator],
        o.GPU.with_help(
            "Without N: the fewest that serve the load within the limits; in a comparison with prices and no load, the "
            "number whose tokens cost least. With a price per GPU-hour: h100-sxm:8@2.5. Repeatable.",
            value="NAME[:N][@PRICE]",
            repeats=True,
        ),
    ],
    *,
    weights: Annotated[str, o.WEIGHTS] = "native",
    kv: Annotated[str, o.KV] = "bf16",
    text_only: Annotated[bool, o.TEXT_ONLY] = False,
    context: Annotated[
        o.Length | None, o.CONTEXT.with_help("Default: prompt and answer, or 8,192 (less if the model has less).")
    ] = None,
    layout: Parallelism = Parallelism(),
    engine: Engine | str = Engine(),
    speculation: Speculation = Speculation(),
    load: Load = Load(),
    limits: Limits = Limits(),
    price: Annotated[float | None, o.PRICE.with_help("Gives costs per hour, month and token.")] = None,
    api: Annotated[str | None, API] = None,
    utilisation: Annotated[float | str | None, UTILISATION] = None,
    detail: Annotated[
        bool, o.Option("Print every table: layouts, memory and time by part, the Pareto front, definitions.")
    ] = False,
    **options: object,
) -> Deploy:
    """Plan serving: does it fit, how fast is it, what does it cost? Memory of each GPU, maximum concurrency, latency
    and throughput.

    Exit code 1 if it does not fit or misses a limit. Users beyond the maximum concurrency queue.

    Several sources or GPUs are compared in one table.

    In Python: a list of models or accelerators is compared (`deployments`). A field of `layout`, `engine`,
    `speculation`, `load` and `limits` may be a keyword itself: `rate="5/s"` is `load=Load(rate="5/s")`. `failed`: exit
    code 1. `detail`: the printed table has everything that `to_dict()` has.

    Errors: `InputError`, `UnknownName`, `MissingExtra`.

    >>> import txcalc
    >>> plan = txcalc.deploy("llama-3.1-8b", "h100-sxm", context="8k", load=txcalc.Load(concurrency=16))
    >>> plan.fits, plan.layout.gpus, plan.max_concurrency
    (True, 1, 55)
    """
    assert isinstance(engine, Engine), "a name is a field of it (`arguments.group_options`)"
    accelerators = _accelerators(gpu, price)
    offload = engine.offload()
    name = engine.engine or "none"
    engine_profile = profile(offloading(name) if offload else name)
    max_num_seqs = engine.sequences(engine_profile)
    prompts = None if load.prompt is None else traffic.lengths(str(load.prompt), "--prompt")
    answers = None if load.answer is None else traffic.lengths(str(load.answer), "--answer")
    proposed, drafter = phrases.parse_draft(speculation.draft)
    draft = drafter if drafter is None or drafter == phrases.OWN else _checked_draft(models([drafter], text_only)[0])
    loaded = models(source_list([sources]), text_only)
    if draft == phrases.OWN and loaded and not any(model.predictor for model in loaded):
        raise _no_predictor(loaded[0])
    rate, times = phrases.parse_arrivals(load.rate, load.arrivals, load.burstiness)
    prefix = length(load.shared_prefix, "--shared-prefix")
    trained = [model.context for model in loaded if model.context and not model.fixed_length]
    decodes = not loaded or any(model.decodes for model in loaded)
    tokens = (
        points.default_context(prompts, answers, trained, decodes) if context is None else length(context, "--context")
    )
    acceptance = (
        None if speculation.acceptance is None else float(phrases.parse_share(speculation.acceptance, "--acceptance"))
    )
    hits = phrases.parse_share(load.prefix_hits, "--prefix-hits")
    request = points.request(tokens, prompts, hits, acceptance, proposed, answers, rate, load.burstiness, times, prefix)
    slo = limits.slo(load.simulate)
    api_price = None if api is None else phrases.parse_api_prices(api)
    request = replace(request, simulated_requests=load.simulated_requests(slo), seed=load.seed)
    for priced in accelerators:
        check_budget(priced.price, slo.ttft, slo.tpot)
    scenario = Scenario(
        request=request,
        context=tokens,
        concurrency=maybe(load.concurrency, "--concurrency", length),
        limits=slo,
        engine=engine.config(weights, kv, prefix),
        chunk=maybe(engine.chunk, "--chunk", length),
        profile=engine_profile or (personal_engine() if engine.engine is None else None),
        engine_named=engine_profile is not None,
        max_num_seqs=max_num_seqs,
        offload=offload,
        draft=draft,
        fixed=layout.given(),
        disaggregated=engine.disaggregate is not None,
        prefill_gpus=phrases.parse_degrees({"disaggregate": engine.disaggregate}).get("disaggregate"),
        detail=detail,
        api=api_price,
        utilisation=None if utilisation is None else float(phrases.parse_share(utilisation, "--utilisation")),
    )
    if utilisation is not None and (api_price is None or not 0 < (scenario.utilisation or 0) <= 1):
        raise InputError("options", ["--utilisation is a share above 0, up to 100%, and needs --api 0.25/2"])
    if api_price is not None and any(priced.price is None for priced in accelerators):
        raise InputError("options", ["--api needs a price per GPU-hour (--price 2.5, or --gpu h100:8@2.5)"])
    network, link = maybe(layout.network, "--network", bandwidth), maybe(layout.link, "--link", bandwidth)
    one_host = not scenario.fixed  # several Macs hold a model only if their number or a layout is given
    placed = [
        (card.placed(layout.node, network, link), number or (1 if card.unified and one_host else None), card_price)
        for card, number, card_price in accelerators
    ]
    candidates = [(model, *priced) for model in loaded for priced in placed]
    if not candidates:
        raise InputError("deploy", ["expected one or more models and accelerators"])
    refusals = {
        "--disaggregate needs one source and one --gpu": len(candidates) > 1,
        "--disaggregate is not simulated: no --simulate, and limits of means (--ttft 500ms)": slo.needs_simulation,
        "--disaggregate needs a load for its limits: --concurrency 64 or --rate 5/s": slo and scenario.without_load,
    }
    refused = [text for text, applies in refusals.items() if applies]
    if scenario.disaggregated and refused:
        raise InputError("options", refused[:1])
    if len(candidates) == 1:
        return scenario.answer(*candidates[0], single_plan=True)
    deployments, errors = list[Deploy | Refusal](), dict[str, InputError]()
    for model, card, number, card_price in candidates:
        try:
            deployments.append(scenario.compared(model, card, number, card_price))
        except InputError as error:
            deployments.append(Refusal(model.name, card.name, str(error)))
            errors[str(error)] = error
    if all(isinstance(plan, Refusal) for plan in deployments):
        raise InputError("deploy", errors) if len(errors) > 1 else next(iter(errors.values()))
    # The declared type is that of one deployment; several have only `deployments`.
    compared = _rank_by_cost(deployments)
    return cast(Deploy, DeployComparison(deployments=compared, draw=_picture("comparison_picture", compared)))


def _rank_by_cost(deployments: Sequence[Deploy | Refusal]) -> tuple[Deploy | Refusal, ...]:
    """The deployments of each model: those that serve the load first, by cost; else in the given order."""
    by_model: dict[str, list[Deploy | Refusal]] = {}
    for plan in deployments:
        by_model.setdefault(plan.model if isinstance(plan, Refusal) else plan.model.name, []).append(plan)
    rows: list[Deploy | Refusal] = []
    for of_model in by_model.values():
        costs = [_cost(plan) for plan in of_model]
        cheapest = min(costs) if len(costs) > 1 else inf
        rows += [
            replace(of_model[i], times_cheapest=costs[i] / cheapest) if max(cheapest, costs[i]) < inf else of_model[i]
            for i in sorted(range(len(costs)), key=costs.__getitem__)
        ]
    return tuple(rows)


def _cost(deployment: Deploy | Refusal) -> float:
    """Cost per hour of the load, or per million tokens at capacity; infinite: no price, or the load is not served."""
    if isinstance(deployment, Refusal) or deployment.failed or deployment.speed is None:
        return inf
    speed = deployment.speed
    cost = speed.capacity.cost_per_million_output if speed.capacity else speed.cost_per_hour
    return inf if cost is None else cost


class PricedAccelerator(NamedTuple):
    """An accelerator, how many (None: the fewest), and the price per GPU-hour."""

    accelerator: Accelerator
    number: int | None
    price: float | None


def _accelerators(gpu: Any, price: float | None) -> list[PricedAccelerator]:
    items = list(split_commas(gpu))
    if not items:
        raise InputError("options", [Fault("gpu", gpu, "a text, or a list of them")])
    parsed = [(item, None, None) if isinstance(item, Accelerator) else phrases.parse_priced(item) for item in items]
    cards = [(load_accelerator(card) if isinstance(card, str) else card, *fields) for card, *fields in parsed]
    prices = phrases.prices_by_name([(card.name, number, card_price) for card, number, card_price in cards], price)
    return [PricedAccelerator(card, number, prices[card.name]) for card, number, _ in cards]


def _checked_draft(model: Model) -> Model:
    """A draft model. Errors: `InputError` if the time of its passes is not known."""
    if model.description.drafting == "block":
        mend = "--draft N --acceptance P counts drafting as free"
        raise InputError(
            "--draft", [f"the time of {model.name}'s passes, which draft a block at once, is not known ({mend})"]
        )
    return model


def _no_predictor(model: Model) -> InputError:
    mend = "--draft 4:SOURCE names a draft model; --set predictors=1, if its checkpoint has such a layer"
    return InputError("--draft", [f"{model.name} has no multi-token-prediction layers ({mend})"])


class Scenario(Struct, frozen=True, kw_only=True):
    """The load and the settings that every model is planned with on every kind of accelerator.

    engine        arguments of `planning.serving.engine.engine` that depend on neither model nor accelerator
    profile       of the named engine or, without one, of llama.cpp, the default of some formats; None: `none`
    concurrency   None: not given
    fixed         degrees of parallelism that are given
    prefill_gpus  of disaggregated pools; None: the best number
    """

    request: Request
    context: int
    concurrency: int | None
    limits: Slo
    engine: Mapping[str, Any]
    chunk: int | None
    profile: EngineProfile | None
    engine_named: bool
    max_num_seqs: int | None
    offload: OffloadRequest | None
    draft: Model | str | None
    fixed: Mapping[str, int]
    disaggregated: bool
    prefill_gpus: int | None
    detail: bool
    api: tuple[float, float] | None
    utilisation: float | None

    def answer(
        self, model: Model, accelerator: Accelerator, gpus: int | None, price: float | None, single_plan: bool = False
    ) -> Deploy:
        """A deployment. Errors: `InputError`; of a `single_plan` (one model, one kind of accelerator) also if its
        speed is not known but needed for a price or a limit."""
        context = int(model.workload().tokens) if model.fixed_length else self.context
        config = self._engine(model, accelerator, context)
        if self.offload:
            config = with_offload(self.offload, model, accelerator, config, gpus or 1, context, self.least_users)
        planner = Planner(model, accelerator, config, self._drafter(model))
        plan = self._plan(planner, context, gpus)
        serving, fewer, unknown = None, None, ""
        try:
            if not plan.best.fits and (most := max(choice.max_concurrency for choice in plan.choices)):
                closed, number = replace(self.request, rate=None), plan.best.layout.gpus
                smaller = arrange(planner, closed, context, most, number, self.fixed, self.limits)
                fewer = serve(smaller, closed, price, self.limits)  # the most users that fit
            if plan.best.serves and (plan.best.fits or not self.disaggregated):
                serving = self._serve(plan, gpus, price)
        except InputError as error:
            if single_plan and (price is not None or self.limits or self.disaggregated):
                raise
            unknown = f"{error}{_single_stream(plan)}"
        return self._deployment(plan, serving, fewer, unknown, single_plan)

    def compared(self, model: Model, accelerator: Accelerator, gpus: int | None, price: float | None) -> Deploy:
        """A deployment beside others. Without a load and a number of GPUs, more GPUs of a node are tried while their
        tokens cost less: the fewest that hold a model may have no room for users."""
        best, most = self.answer(model, accelerator, gpus, price), min(accelerator.node or NODE, NODE)
        counts = (
            rentable(best.layout.gpus + 1, self.fixed, accelerator.node) if self.without_load and gpus is None else []
        )
        for number in (n for n in counts if n <= most):
            more = self.answer(model, accelerator, number, price)
            if _cost(more) >= 0.99 * _cost(best):  # less than 1 % is not worth more GPUs
                break
            best = more
        return best

    def _engine(self, model: Model, accelerator: Accelerator, context: int) -> EngineConfig:
        """The engine on an accelerator. Errors: `InputError` for a format that it does not have there."""
        plain = engine_config(model, chunk=CHUNK if self.chunk is None else self.chunk, **self.engine)
        memory = (
            EngineMemory(self.profile, accelerator, context, self.max_num_seqs, self.chunk) if self.profile else None
        )
        return on_accelerator(
            plain, model, memory, self.engine["reserve"], self.engine_named, not is_served(accelerator)
        )

    @property
    def without_load(self) -> bool:
        return self.concurrency is None and self.request.rate is None

    @property
    def least_users(self) -> int:
        return 1 if self.concurrency is None else self.concurrency

    def _plan(self, planner: Planner, context: int, gpus: int | None) -> Plan:
        """The plan for the load; without one, for the most users within the limits."""
        plan = arrange(planner, self.request, context, self.least_users, gpus, self.fixed, self.limits)
        if not (self.without_load and self.limits and plan.best.fits) or self.disaggregated:
            return plan
        try:
            serving = serve(plan, self.request, None, self.limits)
            _, users = most_users(serving.timer, serving.timed_choices, self.limits)
        except InputError:  # a peak is not known: nothing can be timed
            return plan
        number = plan.best.layout.gpus
        return arrange(planner, self.request, context, users, number, self.fixed, self.limits) if users > 1 else plan

    def _serve(self, plan: Plan, gpus: int | None, price: float | None) -> Serving:
        serving = serve(plan, self.request, price, self.limits)
        if not self.disaggregated:
            return serving
        from txcalc.planning.serving.disaggregation import pools

        counts = [gpus] if gpus else rentable(plan.best.layout.gpus, {}, plan.planner.accelerator.node)[:6]
        load = self.request, plan.context, plan.concurrency
        of_pools = pools(plan.planner, *load, counts, self.prefill_gpus, self.limits, self.fixed)
        return replace(serving, pools=of_pools)

    def _drafter(self, model: Model) -> Model | None:
        """The draft model, if any. Errors: `InputError` if the model lacks its own."""
        if not isinstance(self.draft, str):
            return self.draft
        if model.predictor is None:
            raise _no_predictor(model)
        return model.predictor

    def _deployment(
        self, plan: Plan, serving: Serving | None, fewer: Serving | None, unknown: str, single_plan: bool
    ) -> Deploy:
        """The answer; `fewer`: the largest load that fits. A `single_plan` has a plot and a command."""
        planner, best, model = plan.planner, plan.best, plan.planner.model
        speed = deployment.speed(serving, self.without_load and not self.disaggregated) if serving else None
        engine, card = planner.engine, planner.accelerator
        unused = [flag for flag in ("--link", "--network") if flag in card.sources.values() and best.layout.gpus == 1]
        notes = [f"{flag} is ignored: one GPU has no other to send to" for flag in unused]
        notes += [f"no speed: {unknown}"] if unknown else speed.notes if speed else []
        notes += plan.notes
        undecided = self.profile if not (engine.memory or is_mlx(engine.weights)) and is_personal(card) else None
        if undecided and not unsupported_fault(undecided, model, engine.weights, card, engine.kv):
            text = f"no engine is named: fit counts llama.cpp on {card.title} (--engine llama.cpp)"
            notes.insert(len(notes) if best.fits else 0, text)  # first where it may be why the model does not fit
        api = None
        if self.api is not None and serving and speed:
            api = deployment.api_comparison(serving, speed.capacity or speed, self.api, self.utilisation)
            if api is None:
                notes.append("not compared with the API: the plan does not sustain the load")
        fitting = None
        if fewer:
            fitting = deployment.point(fewer, (fewer.cheapest if fewer.limits else None) or fewer.chosen)
        stages = planner.gpus(best.layout, plan.context, plan.concurrency)
        return Deploy(
            model=ModelInfo.of(model),
            gpu=deployment.accelerator_info(plan),
            workload=deployment.workload(plan, self.request),
            engine=deployment.engine_info(plan),
            cache_tokens=best.fullest.cache_tokens(plan.context),
            fits=best.fits,
            limit=best.limit,
            headroom_bytes=best.fullest.free,
            max_concurrency=best.max_concurrency,
            max_context=plan.max_context,
            min_gpus=plan.min_gpus,
            fewest_gpus=plan.fewest,
            layout=Degrees.of(best.layout),
            rule=plan.rule,
            layouts=tuple(map(deployment.layout_fit, plan.choices)),
            memory=tuple(deployment.stage_memory(gpu, plan.context) for gpu in stages),
            speed=speed,
            largest=(speed.highest_rate if speed else None) or fitting,
            assumptions=tuple(model.assumptions),
            notes=(*model.notes, *notes),
            largest_that_fits=fitting,
            unsuited=None if self.disaggregated else deployment.unsuited(plan),
            api=api,
            plan_notes=tuple(notes),
            detail=self.detail,
            draw=_picture("picture", plan, serving) if single_plan else None,
            launch=self._launch(plan, serving) if single_plan else None,
        )

    def _launch(self, plan: Plan, serving: Serving | None) -> Callable[[str], str]:
        def launch(engine: str) -> str:
            from txcalc.planning.serving.launch import command
            from txcalc.planning.serving.simulation import SEQUENCES

            planned, full = plan, self.without_load and not self.limits
            if full and serving and not serving.pools and (loads := serving.capacity):
                by_capacity = sorted(plan.choices, key=lambda choice: choice.layout != loads[-1].layout)
                planned = replace(plan, choices=by_capacity)
            if full or self.request.rate is not None:  # bursts run more requests than the average
                sequences = min(planned.best.max_concurrency, SEQUENCES * planned.best.layout.dp)
                planned = replace(planned, concurrency=max(plan.concurrency, sequences))
            return command(planned, engine, serving.pools if serving else None, self.request)

        return launch


def _picture(name: str, *of: object) -> Callable[[], Any]:
    """A function that draws a plan, or compares deployments, by a function of `deploy_plot`."""
    return lambda: getattr(import_module("txcalc.questions.deploy_plot"), name)(*of)


def _single_stream(plan: Plan) -> str:
    """The decode speed of one sequence, if known, where that of the load is not; without a peak, from reads alone."""
    from txcalc.planning.fitting import step

    planner, best = plan.planner, plan.best
    if not planner.model.decodes or not best.fits:
        return ""
    seconds = step(planner.model, planner.sharding, best.layout, planner.accelerator, planner.engine, plan.context)
    rule = "" if planner.accelerator.peaks else "by its bandwidth alone "
    return f"; {rule}one sequence decodes {three(1 / seconds)} tokens/s" if seconds else ""
