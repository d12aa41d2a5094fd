"""Serving plans: does it fit, how fast is it, what does it cost: `deploy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from txcalc.errors import Fault, InputError
from txcalc.questions.arguments import checked, length, maybe, models, several_texts
from txcalc.questions.options import Length
from txcalc.questions.plans import Deployment, Point, Refusal
from txcalc.questions.results import Result

if TYPE_CHECKING:
    from txcalc.hardware import Accelerator
    from txcalc.model import Model
    from txcalc.planning.serving.deployment import Plan
    from txcalc.planning.serving.engine_memory import EngineMemory
    from txcalc.planning.serving.engine_profiles import EngineProfile
    from txcalc.planning.serving.offload import OffloadRequest
    from txcalc.planning.serving.points import Request, Slo
    from txcalc.planning.serving.speed import Serving
    from txcalc.render.deploy import DeployAnswer
    from txcalc.sources import Source

CHUNK = 8192  # default tokens per prefill chunk


class Deploy(Result, Deployment):
    """A deployment; with several models or accelerators only `deployments`."""

    deployments: list[Deployment | Refusal]

    def __init__(self, answers: Sequence[DeployAnswer], detail: bool, asked: Request) -> None:
        from txcalc.render.deploy import comparison, report

        one = answers[0]
        if len(answers) > 1 or one.plan is None:
            super().__init__(lambda _: comparison(answers), failed=all(each.failed for each in answers))
        else:
            plan = one.plan
            super().__init__(
                lambda form: report(plan, one.speed, one.why, detail or form != "table", one.instead),
                lambda plots: plots.deploy(plan, one.speed),
                one.failed,
            )
        vars(self).update(_answers=answers, _asked=asked)

    @checked
    def to_command(self, engine: str) -> str:
        """The command that serves the plan with vllm, sglang, trtllm or dynamo. Errors: `InputError` with several
        deployments."""
        from txcalc.planning.serving.simulation import SEQUENCES
        from txcalc.render.emit import command

        one, *others = vars(self)["_answers"]
        if others or one.plan is None:
            raise InputError("deploy", ["a serving command needs one model and one kind of accelerator"])
        asked, plan = vars(self)["_asked"], one.plan
        if asked.rate is not None:  # bursts run more requests than the average
            plan = replace(plan, concurrency=max(plan.concurrency, min(plan.best.max_concurrency, SEQUENCES)))
        return command(plan, engine, one.speed.apart if one.speed else None, asked.speculation)

    def _rows(self) -> list[dict[str, Any]]:
        """One deployment: a row per load and layout; several: a row each at the requested load."""
        if "deployments" not in self._data:
            if not self.speed:
                raise InputError("deploy", ["has no speed, whose loads would be the rows of a data frame"])
            return [_row(point) for point in (*self.speed.batches, *self.speed.front)]
        rows: list[dict[str, Any]] = []
        for one in self.deployments:
            if isinstance(one, Refusal):
                rows.append({"model": one.model, "gpu": one.gpu, "fits": None, "refused": one.refused})
            else:
                first = {"model": one.model.name, "gpu": one.gpu.name, "fits": one.fits, "refused": None}
                rows.append({**first, **(_row(one.speed) if one.speed else {})})
        columns = dict.fromkeys(key for row in rows for key in row)
        return [{key: row.get(key) for key in columns} for row in rows]


def _row(point: Point) -> dict[str, Any]:
    return {
        "layout": " ".join(f"{axis}={ways}" for axis, ways in point.layout.to_dict().items() if axis != "gpus"),
        "gpus": point.layout.gpus,
        "users": point.sequences,
        "ttft_s": point.steady.ttft_s.mean,
        "tpot_s": point.steady.tpot_s.mean,
        "tokens_per_s_gpu": point.steady.per_gpu,
        "cost_per_million_output": point.cost_per_million_output,
    }


def deploy(
    sources: Source | Sequence[Source],
    gpu: str | Sequence[str],
    *,
    context: Length | None = None,
    concurrency: Length = 1,
    weights: str = "native",
    kv: str = "bf16",
    tp: int | str = "auto",
    pp: int | str = "auto",
    dp: int | str = "auto",
    ep: int | str = "auto",
    etp: int | None = None,
    node: int | None = None,
    network: Length | None = None,
    block: Length = 16,
    chunk: Length | None = None,
    engine: str = "none",
    max_num_seqs: Length | None = None,
    poll: int = 1,
    gather: int | None = None,
    reserve: str | None = None,
    ram: str | None = None,
    gpu_layers: int | None = None,
    n_cpu_moe: int | str | None = None,
    pcie: str | None = None,
    prompt: Length | None = None,
    answer: Length | None = None,
    rate: float | str | None = None,
    arrivals: str | None = None,
    burstiness: float = 1.0,
    simulate: bool = False,
    requests: Length | None = None,
    seed: int = 0,
    prefix_hits: float | str = 0,
    shared_prefix: Length = 0,
    disaggregate: int | str | None = None,
    adapters: int = 0,
    adapter_rank: int = 0,
    draft: int | str | None = None,
    acceptance: float | str | None = None,
    price: float | None = None,
    ttft: float | str | None = None,
    tpot: float | str | None = None,
    text_only: bool = False,
    detail: bool = False,
) -> Deploy:
    """Does a model fit on accelerators, how fast is it, and what does it cost? Several models (a list) or kinds of
    accelerator are compared.

    gpu                     NAME, NAME:N or NAME:N@PRICE; without N the fewest that fit
    prompt, answer          lengths, ranges (`"3k..5k"`, `"4k±1k"`) or `"@FILE"`
    rate                    requests per second (`"5/s"`); without it `concurrency` users send the next request at once
    ttft, tpot              limits in seconds, or `"200ms"`
    node, network           accelerators per node, and bytes per second of each to other nodes (default: as sold)
    ram                     host RAM that llama.cpp may use (`"64GB@80GB/s"`) for what the GPUs do not hold, or for all
                            but `gpu_layers`, or for the experts of `n_cpu_moe` layers (`"all"`)
    draft                   tokens proposed per step (`"4:llama-3.2-1b"`; `"mtp"`: the model's own prediction layer)
    adapters                number of LoRA adapters of `adapter_rank` that requests choose from
    text_only               leaves out the towers of a multimodal model
    etp                     ranks that split one expert
    poll, gather            decode steps between admissions of new requests; with `gather` expert-parallel replicas
                            admit together, after at most that number of steps
    detail                  the printed table has everything that `to_dict()` has

    `failed`: it does not fit, or not within the limits; with more users than fit at once, some wait.
    Errors: `InputError`, `UnknownName`, `MissingExtra`.

    >>> import txcalc
    >>> found = txcalc.deploy("llama-3.1-8b", "h100-sxm", context="8k", concurrency=16)
    >>> found.fits, found.layout.gpus, found.max_concurrency
    (True, 1, 56)
    """
    from txcalc import hardware
    from txcalc.planning.serving import points, traffic
    from txcalc.planning.serving.engine import parse_reserve
    from txcalc.planning.serving.engine_profiles import offloading, profile
    from txcalc.planning.serving.offload import parse_offload
    from txcalc.planning.serving.speed import check_budget
    from txcalc.questions import phrases
    from txcalc.render.deploy import DeployAnswer
    from txcalc.units import parse_rate, parse_seconds

    def time(value: float | str | None, flag: str) -> float | None:
        return parse_seconds(value, flag) if isinstance(value, str) else value

    wanted = [phrases.priced(text) for text in several_texts("gpu", gpu)]
    cards = {name: hardware.load(name) for name, _, _ in wanted}
    prices = phrases.one_price([(cards[name].name, gpus, own) for name, gpus, own in wanted], price)
    host = parse_offload(ram, pcie, gpu_layers, None if n_cpu_moe is None else str(n_cpu_moe))
    known = profile(offloading(engine) if host else engine)
    most = maybe(max_num_seqs, "--max-num-seqs", length)
    if most is not None and (known is None or not 1 <= most <= 1 << 20):
        raise InputError("options", ["--max-num-seqs is a number from 1 to 2^20 and needs --engine"])
    several = maybe(requests, "--requests", length)
    if not simulate and (several is not None or seed):
        raise InputError("options", ["--requests and --seed need --simulate"])
    if several is not None and not 1 <= several <= 10**6:
        raise InputError("options", [Fault("requests", several, "a whole number from 1 to 1,000,000")])
    prompts = None if prompt is None else traffic.lengths(str(prompt), "--prompt")
    answers = None if answer is None else traffic.lengths(str(answer), "--answer")
    tokens, drafter = phrases.drafts(draft)
    guess = drafter if drafter is None or drafter == phrases.OWN else _drafting(models([drafter], text_only)[0])
    given = [sources] if isinstance(sources, str | Mapping) or not isinstance(sources, Sequence) else sources
    every = models(given, text_only)
    if guess == phrases.OWN and every and not any(model.predictor for model in every):
        raise _no_predictor(every[0])
    often, times = phrases.comes(rate, arrivals, burstiness)
    prefix = length(shared_prefix, "--shared-prefix")
    trained = [model.context for model in every if model.context and not model.fixed_length]
    decodes = not every or any(model.decodes for model in every)
    held = points.grown(prompts, answers, trained, decodes) if context is None else length(context, "--context")
    asked = points.request(
        held,
        prompts,
        phrases.share(prefix_hits, "--prefix-hits"),
        None if acceptance is None else float(phrases.share(acceptance, "--acceptance")),
        tokens,
        answers,
        often,
        burstiness,
        times,
        prefix,
    )
    limits = points.Slo(time(ttft, "--ttft"), time(tpot, "--tpot"))
    for each in prices.values():
        check_budget(each, *limits)
    planner = _Planner(
        request=asked,
        context=held,
        concurrency=length(concurrency, "--concurrency"),
        limits=limits,
        how=dict(
            weights=weights, kv=kv, block=length(block, "--block"), prefix=prefix, adapters=(adapters, adapter_rank)
        )
        | dict(reserve=None if reserve is None else parse_reserve(reserve), **_polling(poll, gather)),
        chunk=maybe(chunk, "--chunk", length),
        profile=known,
        most=most,
        host=host,
        draft=guess,
        ways=phrases.ways({"tp": tp, "pp": pp, "dp": dp, "ep": ep, "etp": "auto" if etp is None else etp}),
        apart=disaggregate is not None,
        fillers=phrases.ways({"disaggregate": disaggregate or "auto"}).get("disaggregate"),
        simulated=(seed, several) if simulate else None,
    )
    between = None if network is None else parse_rate(str(network), "--network")
    kinds = [(cards[name].placed(node, between), gpus, prices[cards[name].name]) for name, gpus, _ in wanted]
    found = [(model, *kind) for model in every for kind in kinds]
    if not found:
        raise InputError("deploy", ["expected one or more models and accelerators"])
    if planner.apart and len(found) > 1:
        raise InputError("options", ["--disaggregate needs one source and one --gpu"])
    if planner.apart and simulate:
        raise InputError("options", ["--simulate does not support --disaggregate yet"])
    if len(found) == 1:
        return Deploy([planner.answer(*found[0], strict=True)], detail, asked)
    plans = []
    for one in found:
        try:
            plans.append(planner.answer(*one))
        except InputError as error:
            plans.append(DeployAnswer(one[0], one[1], None, None, str(error)))
    if all(each.plan is None for each in plans):
        raise InputError("deploy", dict.fromkeys(each.why for each in plans))
    return Deploy(plans, detail, asked)


def _polling(poll: int, gather: int | None) -> dict[str, int]:
    """Steps between admissions of new requests, and whether expert-parallel replicas admit together."""
    if gather is not None and poll != 1:
        raise InputError("options", ["--poll and --gather exclude each other: both say when requests are admitted"])
    return {"interval": poll if gather is None else gather, "gathers": gather is not None}


def _drafting(model: Model) -> Model:
    """A draft model. Errors: `InputError` if the time of its passes is not known."""
    if model.spec["drafting"] == "block":
        mend = "--draft N --acceptance P counts drafting as free"
        raise InputError(
            "--draft", [f"the time of {model.name}'s passes, which draft a block at once, is not known ({mend})"]
        )
    return model


def _decodes(plan: Plan) -> str:
    """What is known where the speed of a load is not: a step of one sequence; without a peak, by its reads alone."""
    from txcalc.planning.fitting import step
    from txcalc.units import three

    its, best = plan.planner, plan.best
    if not its.model.decodes or not best.fits:
        return ""
    taken = step(its.model, its.sharding, best.layout, its.accelerator, its.engine, plan.context)
    how = "" if its.accelerator.peaks else "by its bandwidth alone "
    return f"; {how}one sequence decodes {three(1 / taken)} tokens/s" if taken else ""


def _no_predictor(model: Model) -> InputError:
    """The refusal of a model without multi-token-prediction layers."""
    mend = "--draft 4:SOURCE names a draft model; --set predictors=1, if its checkpoint has such a layer"
    return InputError("--draft", [f"{model.name} has no multi-token-prediction layers ({mend})"])


class _Planner(Struct, frozen=True, kw_only=True):
    """The request, the same for every model and kind of accelerator.

    how         engine options that depend on neither model nor accelerator
    simulated   seed and number of requests; None: no simulation
    """

    request: Request
    context: int
    concurrency: int
    limits: Slo
    how: Mapping[str, Any]
    chunk: int | None
    profile: EngineProfile | None
    most: int | None
    host: OffloadRequest | None
    draft: Model | str | None
    ways: Mapping[str, int]
    apart: bool
    fillers: int | None
    simulated: tuple[int, int | None] | None

    def answer(
        self, model: Model, kind: Accelerator, gpus: int | None, price: float | None, strict: bool = False
    ) -> DeployAnswer:
        """Plan and speed. Errors: `InputError`; `strict`: also if only the speed cannot be told, though a price or
        limit needs it."""
        from txcalc.planning.serving.deployment import Planner, beside
        from txcalc.planning.serving.engine import engine
        from txcalc.planning.serving.engine_memory import EngineMemory
        from txcalc.planning.serving.sizing import arrange, rentable
        from txcalc.planning.serving.speed import serve
        from txcalc.render.deploy import DeployAnswer

        context = int(model.workload().tokens) if model.fixed_length else self.context
        memory = EngineMemory(self.profile, kind, context, self.most, self.chunk) if self.profile else None
        step = self.chunk if self.chunk is not None else memory.most_tokens if memory else CHUNK
        how = engine(model, chunk=step, memory=memory, **self.how)
        if self.host:
            how = beside(self.host, model, kind, how, gpus or 1, context, self.concurrency)
        planner = Planner(model, kind, how, self._drafts(model))
        found = arrange(planner, self.request, context, self.concurrency, gpus, self.ways, self.limits)
        try:
            instead = None if found.best.fits else self._less(found, price)
            if not found.best.serves or (self.apart and not found.best.fits):
                return DeployAnswer(model, kind, found, None, instead=instead)
            speed = serve(found, self.request, price, *self.limits)
            if self.apart:
                from txcalc.planning.serving.disaggregation import pools

                counts = [gpus] if gpus else rentable(found.best.layout.gpus, {}, kind.node)[:6]
                load = self.request, context, found.concurrency
                two = pools(planner, *load, counts, self.fillers, self.limits, self.ways)
                speed = replace(speed, apart=two)
            speed = self._simulated(speed, memory) if self.simulated else speed
            return DeployAnswer(model, kind, found, speed, instead=instead)
        except InputError as error:
            if strict and (price is not None or self.limits or self.apart):
                raise
            return DeployAnswer(model, kind, found, None, f"{error}{_decodes(found)}")

    def _less(self, plan: Plan, price: float | None) -> Serving | None:
        """The largest load that fits; None: not even one sequence."""
        from txcalc.planning.serving.sizing import fewer_users
        from txcalc.planning.serving.speed import serve

        smaller = fewer_users(plan, self.request, self.ways, self.limits)
        return serve(smaller, replace(self.request, rate=None), price, *self.limits) if smaller else None

    def _drafts(self, model: Model) -> Model | None:
        """The draft model, if any. Errors: `InputError` if the model lacks its own."""
        if not isinstance(self.draft, str):
            return self.draft
        if model.predictor is None:
            raise _no_predictor(model)
        return model.predictor

    def _simulated(self, speed: Serving, memory: EngineMemory | None) -> Serving:
        """Adds a simulation, if the load is sustainable."""
        from txcalc.planning.serving.simulation import SEQUENCES, simulated

        if not speed.chosen.steady.lasts:
            return speed
        most = (memory.at_once if memory else SEQUENCES) or max(1, speed.chosen.sequences)
        found = simulated(speed.timer, speed.chosen, speed.limits, most, *self.simulated or ())
        if (steady := speed.chosen.steady).timed:
            return replace(speed, simulated=found)
        chosen = replace(speed.chosen, steady=found.means(steady))
        return replace(speed, chosen=chosen, simulated=found._replace(told=True))
