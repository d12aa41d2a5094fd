"""What training takes: memory of every rank, time of a step, days and cost: `train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from txcalc.api.arguments import Length, Names, count, length, maybe, names
from txcalc.api.results import Known, Planned, Record, Result
from txcalc.errors import Fault, InputError, UnknownName
from txcalc.sources import load

if TYPE_CHECKING:
    from txcalc.ledger import Ledger
    from txcalc.model import Model
    from txcalc.planning.training import Recipe
    from txcalc.planning.training.machine import Machine
    from txcalc.planning.training.search import Searched
    from txcalc.render.report import Report
    from txcalc.sources import Source

TOKENS = 4096  # of a sequence, where the model's context is not shorter
BATCH = 1 << 20  # tokens of a step, at least, where nobody says


class TrainingCards(Record):
    """The accelerators, and the memory of each."""

    name: str
    count: int
    memory_bytes: int


class Decided(Record):
    """What a run decides besides its layout; `frozen` and `adapter` are formats of a fine-tuning with adapters."""

    framework: str
    schedule: str | None
    micro_batch: int
    accumulation: int
    global_batch: int
    tokens: int
    recompute: str
    optimizer: str
    products: str
    frozen: str | None
    adapter: str | None
    offload: str


class RankMemory(Record):
    """What equal ranks hold at their fullest moment, and in their host's memory; `in_flight` micro-batches of each
    piece of the pipeline."""

    rank: int
    count: int
    stage: int
    in_flight: list[int]
    moment: str
    bytes: dict[str, int]
    allocated_bytes: int
    reserved_bytes: int
    host_bytes: int


class Fewest(Record):
    """The same ways of splitting the model over the fewest copies that fit."""

    gpus: int
    layout: dict[str, int]


class StepTime(Record):
    """Seconds of a step; None where they are not known."""

    floor: float | None
    achievable: float | None


class Deadline(Record):
    """Accelerators that are done in so many days."""

    days: float
    gpus: int


class Budget(Record):
    """Tokens that a sum of money pays for."""

    money: int
    tokens: int


class WholeRun(Record):
    """The whole run."""

    train_tokens: int
    compute: int
    days: float
    gpu_hours: float
    cost: float | None
    energy_kwh: float | None
    co2_kg: float | None
    deadline: Deadline | None
    budget: Budget | None


class Fast(Record):
    """One of the fastest layouts that fit."""

    layout: dict[str, int]
    framework: str
    micro_batch: int
    recompute: str
    schedule: str
    reserved_bytes: int
    step_s: float
    tokens_per_s_per_gpu: float


class Found(Record):
    """Layouts that were looked at, and about how many fit."""

    considered: int
    fitting: int
    best: list[Fast]


class Elsewhere(Record):
    """The same recipe on another accelerator."""

    gpu: str
    fits: bool
    tokens_per_s_per_gpu: float | None


class StepPart(Record):
    """What one kind of parts takes of a training step."""

    flops: int
    recomputed_flops: int
    saved_bytes: int
    optimizer_bytes: int


class StepRecipe(Record):
    """What a training step decides besides its layout."""

    framework: str
    micro_batch: int
    accumulation: int
    tokens: int
    recompute: str
    optimizer: str


class TrainingStep(StepRecipe, StepPart):
    """A training step of the fullest rank of a layout, and of its parts by kind; `in_flight` as in `RankMemory`."""

    layout: dict[str, int]
    rank: int
    stage: int
    in_flight: list[int]
    parameters_bytes: int
    gradients_bytes: int
    parts: dict[str, StepPart]


class Train(Result):
    """A training run; equal ranks once, with their count."""

    model: Planned
    gpu: TrainingCards
    layout: dict[str, int]
    recipe: Decided
    ranks: list[RankMemory]
    rank: RankMemory | None
    fits: bool
    max_micro_batch: int
    max_tokens: int
    min_gpus: Fewest | None
    step_s: StepTime
    spent_s: dict[str, float] | None
    tokens_per_s_per_gpu: float | None
    measured: bool
    mfu: dict[str, float]
    mfu_headline: str | None
    hfu: dict[str, float]
    sent: dict[str, int] | None
    run: WholeRun | None
    known: dict[str, Known]
    search: Found | None
    fits_on: list[Elsewhere] | None
    notes: list[str]

    def _rows(self) -> list[dict[str, Any]]:
        """A row for every kind of rank."""
        return [
            {
                "rank": one.rank,
                "count": one.count,
                "stage": one.stage,
                **{f"{name}_bytes": size for name, size in one.bytes.items()},
                "allocated_bytes": one.allocated_bytes,
                "reserved_bytes": one.reserved_bytes,
            }
            for one in self.ranks
        ]


def train(
    source: Source,
    gpu: str,
    *,
    layout: str | None = None,
    framework: str | None = None,
    zero: int | None = None,
    schedule: str | None = None,
    tokens: Length | None = None,
    micro_batch: Length | None = None,
    global_batch: Length | None = None,
    recompute: str | None = None,
    offload: str | None = None,
    optimizer: str = "adamw",
    recipe: str = "",
    lora: str | None = None,
    rank: int | None = None,
    products: str = "bf16",
    node: int | None = None,
    network: str | None = None,
    host_link: str | None = None,
    overlap: bool = True,
    measured: str | None = None,
    conventions: Names = (),
    train_tokens: Length | float | None = None,
    compute: Length | float | None = None,
    deadline: str | None = None,
    budget: Length | float | None = None,
    text_only: bool = False,
    fits_on: bool = False,
    pue: float = 1.1,
    grid: float = 385.0,
    tell: Callable[[str, float], None] | None = None,
) -> Train:
    """What training takes: the memory of every rank, the time of a step, and what a whole run costs.

    `gpu` is NAME:N or NAME:N@PRICE; `layout` ways to split the model (`"tp=8,fsdp=4"`; without one, the fastest of so
    many accelerators); `tokens` the length of a sequence (4,096 or the context), `micro_batch` and `global_batch`
    sequences; `offload` what the host holds (`"optimizer"`, `"activations"`, or both with a `+`), `host_link` bytes a
    second away; `recipe` what else a run decides (`"parameter=bf16,loss_parallel=off"`); `lora` adapters beside frozen
    weights (`"r=16,targets=q+v,base=nf4-dq"`); `measured` a rate (`"400TFLOPS"`), for its utilisation by `conventions`.
    `text_only`: without the towers of a multimodal model. `train_tokens` or `compute` (FLOPs) of the whole run;
    `fits_on`: on which accelerators it fits too; `tell` hears how far a search is.
    `failed`: it does not fit. Errors: `InputError`, `UnknownName`, `Refuted` where no layout fits.

    >>> import txcalc
    >>> found = txcalc.train("llama-3.1-8b", "h100-sxm:8", layout="fsdp=8", tokens="8k", micro_batch=1)
    >>> found.fits, found.ranks[0].bytes["parameters"]
    (True, 4015130624)
    """
    from txcalc import hardware
    from txcalc.api.phrases import adapters, priced
    from txcalc.planning.training import answer
    from txcalc.planning.training.machine import Machine
    from txcalc.planning.training.recipe import parse_options
    from txcalc.planning.training.run import Terms, parse_days, tokens_of
    from txcalc.planning.utilisation import REPORTED, parse_measured
    from txcalc.render import timeline
    from txcalc.render.train import report
    from txcalc.units import parse_rate

    tuned, beside = adapters(lora, ("base", "dtype"))
    model = load(source, tuned).language() if text_only else load(source, tuned)
    name, gpus, price = priced(gpu)
    accelerator = hardware.load(name)
    wide = None if network is None else parse_rate(network, "--network")
    host = None if host_link is None else parse_rate(host_link, "--host-link")
    machine = Machine.of(accelerator, node, wide, products, overlap, host)
    days = None if deadline is None else parse_days(deadline)
    terms = Terms(price, accelerator.power, pue, grid, days, maybe(budget, "--budget", count)).checked()
    run = tokens_of(model, maybe(train_tokens, "--train-tokens", count), maybe(compute, "--compute", count), terms)
    rate = None if measured is None else parse_measured(measured)
    counted = conventions_of(names(conventions)) if conventions else REPORTED
    long = tokens_of_sequence(model, maybe(tokens, "--tokens", length))
    micro, batch = maybe(micro_batch, "--micro-batch", length), maybe(global_batch, "--global-batch", length)
    asked: dict[str, Any] = {"framework": framework, "schedule": schedule, "recompute": recompute, "micro_batch": micro}
    asked["offload"] = offload
    if tuned:  # PEFT's defaults: frozen weights as they are computed with, adapters in fp32
        asked |= {"frozen": beside.get("base", "bf16"), "adapter": beside.get("dtype", "fp32")}
    asked = {name: value for name, value in {**asked, "zero": zero}.items() if value is not None}
    more = parse_options(recipe)
    if twice := sorted((asked.keys() | {"tokens", "accumulation", "optimizer"}) & more.keys()):
        raise InputError("--recipe", [f"{name} has an option of its own" for name in twice])
    asked |= more
    searched = None
    if layout is not None:
        chosen = recipe_of(layout, gpus, batch, long, optimizer, asked)
    else:
        searched = search(model, machine, gpus, batch, long, optimizer, asked, tell)
        chosen = searched.best[0].recipe
    found = answer.train(model, chosen, machine, rate, counted, run, terms, rank)
    others = answer.elsewhere(found) if fits_on else ()
    told = report(found, terms, searched, others)
    return Train(lambda _: told, lambda _: timeline.picture(found, searched), not found.fits)


def step_of(ledger: Ledger, recompute: str | None, optimizer: str | None, layout: str | None, dtype: str) -> Recipe:
    """The recipe of a step over a ledger's workload, each rank's; of a pipeline as many micro-batches as stages.
    Errors: `InputError` for a workload that none trains on."""
    from txcalc.planning.layout import parse_layout

    work, faults = ledger.work, list[Fault | str]()
    for name, wrong, expected in (
        ("--past", work.past, "0: a training step has no cache"),
        ("--logits", "last" if work.last_logits else 0, "all: the loss is of every position"),
        ("--mla", "absorbed" if work.absorbed else 0, "expanded, as it is trained"),
    ):
        faults += [Fault(name, wrong, expected)] if wrong else []
    if faults:
        raise InputError("training step", faults)
    text = layout or "tp=1"
    spread = parse_layout(text)
    asked: dict[str, Any] = {"micro_batch": work.batch, "compute": dtype, "recompute": recompute or "none"}
    recipe = recipe_of(text, None, work.batch * spread.copies * spread.pp, work.tokens, optimizer or "adamw", asked)
    recipe.check()
    return recipe


def with_step(
    found: Report,
    model: Model,
    ledger: Ledger,
    recompute: str | None,
    optimizer: str | None,
    layout: str | None,
    dtype: str,
) -> Report:
    """The report with a training step, where anything of it was asked for. Errors: `InputError`, `UnknownName`."""
    if recompute is None and optimizer is None and layout is None:
        return found
    from txcalc.planning.training.parts import by_part
    from txcalc.render.further import with_step as written

    work, recipe = ledger.work, step_of(ledger, recompute, optimizer, layout, dtype)
    usual = model.workload(work.batch, work.tokens).source
    if usual != work.source:
        expected = f"{usual:,}, which a training step has where nobody says"
        raise InputError("training step", [Fault("--source-tokens", work.source, expected)])
    return written(found, recipe, by_part(model.language(), recipe))


def tokens_of_sequence(model: Model, said: int | None) -> int:
    """The length of a sequence: what is said, or the usual; of a model of pictures its positions, whatever is said."""
    if model.fixed_length:
        return int(model.workload().tokens)
    return min(TOKENS, model.context or TOKENS) if said is None else said


def conventions_of(asked: Sequence[str], *more: str) -> tuple[str, ...]:
    """The conventions asked for, of all there are and `more`, each once. Errors: `UnknownName`."""
    from txcalc.planning.conventions import CONVENTIONS

    known = [*CONVENTIONS, *more]
    for name in asked:
        if name not in known:
            raise UnknownName("--as", "convention", name, known, f"one of {', '.join(known)}")
    return tuple(dict.fromkeys(asked))


def _batch(batch: int | None, together: int, tokens: int) -> int:
    """Sequences of a step: said, or a power of two for each of `together` so that it has 2^20 tokens at least. Errors:
    `InputError`."""
    if tokens < 1:
        raise InputError("train", [Fault("--tokens", tokens, "a whole number from 1")])
    return together << (-(-BATCH // (together * tokens)) - 1).bit_length() if batch is None else batch


def search(
    model: Model,
    machine: Machine,
    gpus: int | None,
    batch: int | None,
    tokens: int,
    optimizer: str,
    asked: Mapping[str, Any],
    tell: Callable[[str, float], None] | None = None,
    flag: str = "--gpu",
) -> Searched:
    """The fastest layouts of so many GPUs, which `flag` says. Errors: `InputError`, `Refuted` where none fits."""
    from txcalc.planning.training import Recipe
    from txcalc.planning.training.search import Search

    if gpus is None:
        raise InputError(flag, ["without --layout it needs a number: NAME:N"])
    base = Recipe(tokens=tokens, optimizer=optimizer, **{key: value for key, value in asked.items() if key != "zero"})
    base.check()
    base = replace(base, zero=asked.get("zero", 0))
    whole = _batch(batch, gpus, tokens)
    if whole < 1:
        raise InputError("train", [Fault("--global-batch", whole, "a whole number from 1")])
    return Search(model, base, machine, gpus, whole, frozenset(asked)).run(tell)


def recipe_of(
    layout: str,
    gpus: int | None,
    batch: int | None,
    tokens: int,
    optimizer: str,
    asked: Mapping[str, Any],
    flag: str = "--gpu",
) -> Recipe:
    """The recipe that the options say. Errors: `InputError` with every fault."""
    from txcalc.planning.layout import parse_layout
    from txcalc.planning.training import FRAMEWORKS, Recipe

    spread = parse_layout(layout)
    faults: list[Fault | str] = []
    if gpus is not None and spread.gpus != gpus:
        faults.append(Fault("layout " + str(spread), spread.gpus, f"the {gpus:,} GPUs of {flag}", "its ways multiply"))
    micro = asked.get("micro_batch", 1)
    together = micro * spread.copies
    whole = _batch(batch, max(1, together), tokens)
    if together and (whole < 1 or whole % together):
        faults.append(Fault("--global-batch", whole, f"a multiple of micro-batch · dp · fsdp = {together:,}"))
    if "schedule" in asked and spread.pp == 1:
        faults.append(Fault("--schedule", asked["schedule"], "none where pp = 1: it is of a pipeline"))
    if faults:
        raise InputError("train", faults)
    alone = spread.dp == spread.tp == spread.pp == 1
    schedule = asked.get("schedule", "interleaved" if spread.vpp > 1 else "1f1b")
    usual = ("fsdp2",) if spread.fsdp > 1 or alone else ("megatron", "fsdp2")
    having = (name for name in usual if FRAMEWORKS[name].schedules_by(schedule, spread.pp))
    chosen = {"framework": next(having, usual[0]), "schedule": schedule, **asked}
    accumulation = max(1, whole // (together or 1))
    return Recipe(spread, accumulation=accumulation, tokens=tokens, optimizer=optimizer, **chosen)
