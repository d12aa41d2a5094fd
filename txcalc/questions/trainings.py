"""Training plans: memory of every rank, time of a step, days and cost: `train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from txcalc.errors import Fault, InputError, UnknownName
from txcalc.questions.arguments import count, length, maybe, names
from txcalc.questions.options import Length, Names
from txcalc.questions.results import Known, Planned, Record, Result
from txcalc.sources import load

if TYPE_CHECKING:
    from txcalc.ledger import Ledger
    from txcalc.model import Model
    from txcalc.planning.training import Recipe
    from txcalc.planning.training.machine import Machine
    from txcalc.planning.training.search import Searched
    from txcalc.render.report import DataReport as Report
    from txcalc.sources import Source

TOKENS = 4096  # default sequence length, if the context is not shorter
BATCH = 1 << 20  # default tokens per step, at least


class TrainingCards(Record):
    """The accelerators and the memory of each."""

    name: str
    count: int
    memory_bytes: int


class Decided(Record):
    """The training recipe besides the layout; `frozen` and `adapter`: formats of a LoRA fine-tuning."""

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
    """Peak memory of equal ranks, and of their host; `in_flight`: micro-batches per pipeline piece."""

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
    """The same model split with the fewest data-parallel replicas that fit."""

    gpus: int
    layout: dict[str, int]


class StepTime(Record):
    """Seconds per step; None where not known."""

    floor: float | None
    achievable: float | None


class Deadline(Record):
    """Accelerators that finish within a number of days."""

    days: float
    gpus: int


class Budget(Record):
    """Tokens that a budget pays for."""

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
    """Layouts considered, and about how many fit; `too_few`: the next smaller number of GPUs on which none does, where
    no number was given."""

    considered: int
    fitting: int
    too_few: int | None
    best: list[Fast]


class OnAccelerator(Record):
    """The same recipe on another accelerator."""

    gpu: str
    fits: bool
    tokens_per_s_per_gpu: float | None


class StepPart(Record):
    """A kind of part in a training step."""

    flops: int
    recomputed_flops: int
    saved_bytes: int
    optimizer_bytes: int


class StepRecipe(Record):
    """The recipe of a training step besides its layout."""

    framework: str
    micro_batch: int
    accumulation: int
    tokens: int
    recompute: str
    optimizer: str


class TrainingStep(StepRecipe, StepPart):
    """A training step of the fullest rank of a layout, in total and by kind of part; `in_flight` as in `RankMemory`."""

    layout: dict[str, int]
    rank: int
    stage: int
    in_flight: list[int]
    parameters_bytes: int
    gradients_bytes: int
    parts: dict[str, StepPart]


class Train(Result):
    """A training run; equal ranks are folded with a count."""

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
    fits_on: list[OnAccelerator] | None
    notes: list[str]

    def _rows(self) -> list[dict[str, Any]]:
        """One row per kind of rank."""
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
    """What training takes: memory of every rank, time of a step, and cost of the whole run.

    gpu            NAME:N or NAME:N@PRICE; NAME without a layout: the fewest on which one fits
    layout         parallelism (`"tp=8,fsdp=4"`); default: the fastest that fits
    tokens         sequence length (default: 4,096 or the context)
    micro_batch    sequences per rank and pass; `global_batch` per step
    offload        to the host: `"optimizer"`, `"activations"`, or both joined by `+`; `host_link` is the bandwidth
    recipe         further choices (`"parameter=bf16,loss_parallel=off"`)
    lora           adapters on frozen weights (`"r=16,targets=q+v,base=nf4-dq"`)
    measured       a measured rate (`"400TFLOPS"`), to get its MFU by `conventions`
    text_only      without the towers of a multimodal model
    train_tokens   tokens of the whole run, or its FLOPs as `compute`
    fits_on        also which other accelerators it fits on
    tell           a callback for progress of the search

    `failed`: it does not fit. Errors: `InputError`, `UnknownName`, `Refuted` where there is no layout.

    >>> import txcalc
    >>> found = txcalc.train("llama-3.1-8b", "h100-sxm:8", layout="fsdp=8", tokens="8k", micro_batch=1)
    >>> found.fits, found.ranks[0].bytes["parameters"]
    (True, 4015130624)
    """
    from txcalc import hardware
    from txcalc.planning.training import answer
    from txcalc.planning.training.machine import Machine
    from txcalc.planning.training.recipe import parse_options
    from txcalc.planning.training.run import Terms, parse_days, tokens_of
    from txcalc.planning.utilisation import REPORTED, parse_measured
    from txcalc.questions.phrases import adapters, priced
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
    asked_tokens = maybe(tokens, "--tokens", length)
    long = tokens_of_sequence(model, asked_tokens)
    micro, batch = maybe(micro_batch, "--micro-batch", length), maybe(global_batch, "--global-batch", length)
    asked: dict[str, Any] = {"framework": framework, "schedule": schedule, "recompute": recompute, "micro_batch": micro}
    asked["offload"] = offload
    if tuned:  # PEFT's defaults: frozen weights in the compute dtype, adapters in fp32
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
    told = report(found, terms, searched, others, asked_tokens)
    return Train(lambda _: told, lambda _: timeline.picture(found, searched), not found.fits)


def step_of(ledger: Ledger, recompute: str | None, optimizer: str | None, layout: str | None, dtype: str) -> Recipe:
    """The recipe of a step over a ledger's workload per rank; in a pipeline, as many micro-batches as stages. Errors:
    `InputError` for a workload that cannot be trained on."""
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
    """The report with a training step, if one was requested. Errors: `InputError`, `UnknownName`."""
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
    """The sequence length: as given, or the default; fixed in vision models."""
    if model.fixed_length:
        return int(model.workload().tokens)
    return min(TOKENS, model.context or TOKENS) if said is None else said


def conventions_of(asked: Sequence[str], *more: str) -> tuple[str, ...]:
    """The requested conventions, checked. Errors: `UnknownName`."""
    from txcalc.planning.conventions import CONVENTIONS

    known = [*CONVENTIONS, *more]
    for name in asked:
        if name not in known:
            raise UnknownName("--as", "convention", name, known, f"one of {', '.join(known)}")
    return tuple(dict.fromkeys(asked))


def _batch(batch: int | None, together: int, tokens: int) -> int:
    """Sequences per step: as given, or the power of two times `together` that reaches 2^20 tokens. Errors:
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
) -> Searched:
    """The fastest layouts of a number of GPUs (None: of the fewest on which one fits), or the smallest where none fits.
    Errors: `InputError`, `Refuted` where there is none at all."""
    from txcalc.planning.training import Recipe
    from txcalc.planning.training.search import Search, fewest_gpus

    base = Recipe(tokens=tokens, optimizer=optimizer, **{key: value for key, value in asked.items() if key != "zero"})
    base.check()
    base = replace(base, zero=asked.get("zero", 0))
    if batch is not None and batch < 1:
        raise InputError("train", [Fault("--global-batch", batch, "a whole number from 1")])

    def of(number: int) -> Search:
        return Search(model, base, machine, number, _batch(batch, number, tokens), frozenset(asked))

    return fewest_gpus(of, machine.node, tell) if gpus is None else of(gpus).run(tell)


def recipe_of(
    layout: str,
    gpus: int | None,
    batch: int | None,
    tokens: int,
    optimizer: str,
    asked: Mapping[str, Any],
    flag: str = "--gpu",
) -> Recipe:
    """The recipe of the options. Errors: `InputError` with every fault."""
    from txcalc.planning.layout import parse_layout
    from txcalc.planning.training import FRAMEWORKS, Recipe

    spread = parse_layout(layout)
    faults: list[Fault | str] = []
    if gpus is not None and spread.gpus != gpus:
        product = f"its sizes multiply to {spread.gpus:,}"
        faults.append(Fault("--layout", str(spread), f"the {gpus:,} GPUs of {flag}", product))
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
