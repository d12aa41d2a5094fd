"""`train`: memory of every rank, time of a step, days and cost of a training run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Self

from msgspec import field

from txcalc import hardware
from txcalc.errors import InputError
from txcalc.evidence.known import Evidence
from txcalc.hardware import Accelerator, product_dtype
from txcalc.hardware.curves import PYTORCH
from txcalc.planning.conventions import known_conventions
from txcalc.planning.layout import Layout, ranks_per_node, read_layout
from txcalc.planning.machine import NODE, PCIE_4, Kernels, LibrarySource, Machine, slow_link
from txcalc.planning.memory import learning
from txcalc.planning.training import answer as planning
from txcalc.planning.training.answer import (
    GRID,
    PUE,
    OnAccelerator,
    Terms,
    Training,
    TrainingRun,
    parse_days,
    tokens_of,
)
from txcalc.planning.training.exchange import HOST_MEMORY
from txcalc.planning.training.memory import CATEGORIES, RankPeak
from txcalc.planning.training.optimizers import OPTIMIZERS
from txcalc.planning.training.recipe import Recipe, parse_options
from txcalc.planning.training.search import FoundLayout, Searched, resolve_recipe, search_layouts, sequence_length
from txcalc.planning.utilisation import REPORTED, Utilisation, parse_measured
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, ModelInfo, Result
from txcalc.questions.arguments import bandwidth, count, length, maybe, names
from txcalc.questions.phrases import parse_adapters, parse_priced, prices_by_name
from txcalc.questions.pictures import Mark, Panel, Picture, PlotAxis, Series
from txcalc.questions.training_step import LayoutInfo
from txcalc.sources import load
from txcalc.units import bits_of, iec, parse_count

MAX_SPANS = 4000  # of a pipeline that is drawn
SPANS = {"F": "forward", "B": "backward", "I": "input gradients", "W": "weight gradients"}


FRAMEWORK = o.Option(
    "Framework whose buffers count: fsdp2, megatron, deepspeed, nanotron, litgpt.", "NAME", completes="framework"
)
ZERO = o.Option("ZeRO stage: dp ranks shard the optimizer (1), gradients too (2), parameters too (3). Default: 0.", "N")
SCHEDULE = o.Option("Pipeline schedule: gpipe, 1f1b, interleaved, zb, zbv, dualpipev.", "NAME", completes="schedule")
MICRO_BATCH = o.tokens("Sequences per rank and pass.")._replace(group="Workload")
OFFLOAD = o.Option("Offload to the host: optimizer, activations, or both joined by +.", "WHAT", completes="offload")
RECIPE = o.RECIPE.with_help(
    "parameter=bf16,gradient=bf16,reduce=bf16 (dtypes), loss_parallel=off, fused_loss=on, eager=on (uncompiled), "
    "keep_scores=on, attention=flash1|flash2, reshard=off, context=ring|allgather|ulysses, stages=3+4+4+3 (layers per "
    "stage)."
)
HOST_LINK = o.Option("With --offload: bandwidth to the host, one way: 64GB/s (default: PCIe 4.0 x16).", "RATE")
MEASURED = o.Option("Compute the MFU of your measured speed: 1007tok/s, 400TFLOPS (per GPU), 1.42s (per step).", "RATE")
DEADLINE = o.Option("How many GPUs finish within this time: 30d, 4w.", "TIME")
BUDGET = o.Option("Tokens that this money trains: 1M. Without --train-tokens: plan that run.", "N", parse=parse_count)


class RecipeOptions(o.Options):
    """The recipe of a training run besides layout and length. `recipe`: further fields of it, as a text."""

    section: ClassVar[str] = "Engine"

    framework: Annotated[str | None, FRAMEWORK] = None
    zero: Annotated[int | None, ZERO] = None
    schedule: Annotated[str | None, SCHEDULE] = None
    micro_batch: Annotated[o.Length | None, MICRO_BATCH] = None
    global_batch: Annotated[o.Length | None, o.GLOBAL_BATCH] = None
    recompute: Annotated[str | None, o.RECOMPUTE] = None
    offload: Annotated[str | None, OFFLOAD] = None
    optimizer: Annotated[str, o.OPTIMIZER] = "adamw"
    recipe: Annotated[str, RECIPE] = ""

    def choices(self, **options: object) -> dict[str, Any]:
        """The recipe's fields: `given`, and those of the options and of `--recipe`. Errors: `InputError`."""
        options |= {
            "framework": self.framework,
            "schedule": self.schedule,
            "recompute": self.recompute,
            "micro_batch": maybe(self.micro_batch, "--micro-batch", length),
            "offload": self.offload,
            "zero": self.zero,
        }
        choices = {name: value for name, value in options.items() if value is not None}
        recipe_choices = parse_options(self.recipe)
        if repeated := sorted((choices.keys() | {"tokens", "accumulation", "optimizer"}) & recipe_choices.keys()):
            raise InputError("--recipe", [f"{name} has an option of its own" for name in repeated])
        return {**choices, **recipe_choices, "optimizer": self.optimizer}


class Cluster(o.Options):
    """The precision of matrix products, and the links of accelerators. `gpus`: their number, where `gpu` has none."""

    section: ClassVar[str] = "Engine"

    products: Annotated[str, o.Option("Matmul precision of linear layers: bf16, fp8.", "TYPE")] = "bf16"
    node: Annotated[int | None, o.NODE] = None
    link: Annotated[str | None, o.LINK] = None
    network: Annotated[str | None, o.NETWORK] = None
    host_link: Annotated[str | None, HOST_LINK] = None
    overlap: Annotated[bool, o.Option("Whether communication of weights and gradients overlaps with compute.")] = True
    gpus: int | None = None

    def machine(self, accelerator: Accelerator) -> Machine:
        """Errors: `InputError`."""
        network, link = maybe(self.network, "--network", bandwidth), maybe(self.link, "--link", bandwidth)
        host = maybe(self.host_link, "--host-link", bandwidth)
        placed = accelerator.placed(self.node, network, link)
        return Machine.of(placed, products=self.products, overlap=self.overlap, host=host)


class Mfu(o.Options):
    """A measured rate, and the published conventions of its utilisation."""

    measured: Annotated[str | None, MEASURED._replace(group="Money")] = None
    conventions: Annotated[o.Names, o.CONVENTIONS.with_help("Only for MFU; conventions as in show.")] = ()


class Run(o.Options):
    """The whole run: its length in tokens or FLOPs, prices and limits."""

    section: ClassVar[str] = "Money"

    train_tokens: Annotated[o.Length | float | None, o.TRAIN_TOKENS] = None
    compute: Annotated[o.Length | float | None, o.COMPUTE] = None
    deadline: Annotated[str | None, DEADLINE] = None
    budget: Annotated[o.Length | float | None, BUDGET] = None
    pue: Annotated[float, o.Option("Power usage effectiveness of the data centre.", "X")] = PUE
    grid: Annotated[float, o.Option("Carbon intensity, grams of CO2 per kWh.", "X")] = GRID
    price: Annotated[float | None, o.PRICE] = None

    def terms(self, price: float | None, power: int | None) -> Terms:
        """Errors: `InputError`."""
        deadline = None if self.deadline is None else parse_days(self.deadline)
        return Terms(price, power, self.pue, self.grid, deadline, maybe(self.budget, "--budget", count)).checked()


class Accelerators(Answer):
    """The accelerators, and the memory of each: in total, visible to a process, and usable by PyTorch's allocator."""

    name: str
    count: int
    memory_bytes: int
    visible_bytes: int
    usable_bytes: int
    title: str


class ResolvedRecipe(Answer, kw_only=True):
    """The training recipe besides the layout.

    frozen, adapter   formats of a LoRA fine-tuning
    overlap           whether communication of weights and gradients overlaps with compute
    """

    framework: str
    schedule: str | None
    micro_batch: int
    accumulation: int
    global_batch: int
    tokens: int
    step_tokens: int
    recompute: str
    optimizer: str
    products: str
    frozen: str | None
    adapter: str | None
    offload: str
    overlap: bool


class RankMemory(Answer):
    """Peak memory of equal ranks, of which `rank` is the first, and of their host.

    in_flight         micro-batches of each of its pieces of the pipeline
    moment            the time of the peak: forward, backward …, or the end of backward (`end`)
    collective_bytes  freed before a collective has finished with them
    """

    rank: int
    count: int
    stage: int
    in_flight: tuple[int, ...]
    moment: str
    bytes: dict[str, int]
    allocated_bytes: int
    reserved_bytes: int
    host_bytes: int
    collective_bytes: int

    @classmethod
    def of(cls, peak: RankPeak) -> Self:
        return cls(
            rank=peak.rank,
            count=peak.count,
            stage=peak.stage,
            in_flight=peak.in_flight,
            moment=peak.moment,
            bytes=dict(peak.bytes),
            allocated_bytes=peak.allocated,
            reserved_bytes=peak.reserved,
            host_bytes=peak.host,
            collective_bytes=peak.collective_bytes,
        )


class MinimumGpus(Answer):
    """The same model split with the fewest data-parallel replicas that fit."""

    gpus: int
    layout: LayoutInfo


class StepTime(Answer):
    """Seconds per step, and what bounds the floor; None where not known."""

    floor: float | None
    achievable: float | None
    floor_bound: str | None


class RankedLayout(Answer):
    """One of the fastest layouts that fit."""

    layout: LayoutInfo
    framework: str
    micro_batch: int
    recompute: str
    schedule: str
    reserved_bytes: int
    step_s: float
    tokens_per_s_per_gpu: float

    @classmethod
    def of(cls, layout: FoundLayout) -> Self:
        recipe = layout.recipe
        return cls(
            layout=LayoutInfo.of(recipe.layout, recipe.zero),
            framework=recipe.framework,
            micro_batch=recipe.micro_batch,
            recompute=recipe.recompute,
            schedule=recipe.schedule,
            reserved_bytes=layout.plan.fullest.reserved,
            step_s=layout.step.seconds,
            tokens_per_s_per_gpu=layout.step.tokens_s,
        )


class SearchSummary(Answer):
    """Layouts considered, and about how many fit.

    too_few   the next smaller number of GPUs, on which none fits, if no number was given
    refused   why none fits; `best` is then the layout of the least memory
    """

    considered: int
    fitting: int
    too_few: int | None
    best: tuple[RankedLayout, ...]
    refused: str = ""

    @classmethod
    def of(cls, search: Searched) -> Self:
        best = tuple(map(RankedLayout.of, search.best))
        return cls(search.considered, search.fitting, search.too_few, best, search.refused)


class Train(Result, tag_field="schema", tag="txcalc/train/1", kw_only=True):
    """A training run; equal ranks are folded with a count.

    rank       the requested one
    spent_s    seconds of the busiest stage by cause
    sent       bytes that a rank of that stage sends per step, by kind of collective
    libraries  the communication library of each kind, and the source of its figures
    measured   whether the rate is measured
    fits_on    other accelerators
    detail     whether the printed text has every table
    conventions  the requested conventions of MFU
    """

    model: ModelInfo
    gpu: Accelerators
    layout: LayoutInfo
    recipe: ResolvedRecipe
    ranks: tuple[RankMemory, ...]
    rank: RankMemory | None
    fits: bool
    max_micro_batch: int
    max_tokens: int
    min_gpus: MinimumGpus | None
    step_s: StepTime
    spent_s: dict[str, float] | None
    tokens_per_s_per_gpu: float | None
    measured: bool
    mfu: dict[str, float]
    mfu_headline: str | None
    hfu: dict[str, float]
    sent: dict[str, int] | None
    run: TrainingRun | None
    known: dict[str, Evidence]
    utilisation: tuple[Utilisation, ...]
    trained_params: int  # all, or the adapters'
    adapted: tuple[str, ...] = ()  # linear layers with adapters
    search: SearchSummary | None = None
    fits_on: tuple[OnAccelerator, ...] | None = None
    libraries: dict[str, LibrarySource] = field(default_factory=dict)
    detail: bool = False
    conventions: tuple[str, ...] = ()
    notes: tuple[str, ...]

    @property
    def failed(self) -> bool:
        return not self.fits

    @property
    def has_frozen_weights(self) -> bool:
        """Whether adapters alone are trained."""
        return self.trained_params != self.model.params

    @property
    def fullest(self) -> RankMemory:
        """The rank that reserves the most memory."""
        return max(self.ranks, key=lambda rank: rank.reserved_bytes)

    def _rows(self) -> Sequence[dict[str, Any]]:
        """One row per kind of rank."""
        return [
            {
                "rank": rank.rank,
                "count": rank.count,
                "stage": rank.stage,
                **{f"{name}_bytes": size for name, size in rank.bytes.items()},
                "allocated_bytes": rank.allocated_bytes,
                "reserved_bytes": rank.reserved_bytes,
            }
            for rank in self.ranks
        ]


@o.Question(
    "txcalc train llama-3.1-8b --gpu h100-sxm:8@2.5 --layout fsdp=8 --tokens 8k --train-tokens 1T",
    takes=("--set",),
    draws=True,
    first=("--gpu", "--layout", "--tokens", "--global-batch", "--lora", "--optimizer", "--train-tokens", "--detail"),
    examples=(
        "QLoRA on one card: txcalc train llama-3.1-8b --gpu 4090:1 --lora r=16,base=nf4 --tokens 2k --train-tokens 50M",
        "The fewest GPUs, and the fastest layout: txcalc train llama-3.1-8b --gpu h100 --train-tokens 1T",
    ),
)
def train(
    source: o.SourceArgument,
    gpu: Annotated[
        str | Accelerator,
        o.GPU.with_help("Without N: the fewest that fit. With a price: h100-sxm:64@2.50.", value="NAME[:N][@PRICE]"),
    ],
    *,
    layout: Annotated[
        Layout | str | None,
        o.LAYOUT.with_help("Also fsdp=, cp=, ep=, etp=, vpp=, sp=. Default: the fastest that fits."),
    ] = None,
    tokens: Annotated[o.Length | None, o.TOKENS.with_help("Default: 4,096, or the model's context if shorter.")] = None,
    recipe: RecipeOptions | Recipe | str = RecipeOptions(),
    lora: Annotated[
        str | None, o.LORA.with_help("base=nf4-dq: format of the frozen matrices; dtype=fp32: of the adapters.")
    ] = None,
    rank: Annotated[int | None, o.Option("Also show the memory of this rank.", "N", "Engine")] = None,
    cluster: Cluster = Cluster(),
    mfu: Mfu = Mfu(),
    run: Run = Run(),
    text_only: Annotated[bool, o.TEXT_ONLY] = False,
    fits_on: Annotated[bool, o.Option("Also list the accelerators that the plan fits on.", None, "Engine")] = False,
    detail: Annotated[bool, o.DETAIL] = False,
    tell: Callable[[str, float], None] | None = None,
    **options: object,
) -> Train:
    """Plan training: memory of every rank, time of a step, days and cost. Exit code 1: it does not fit.

    In Python: `recipe`, `cluster`, `mfu` and `run` are classes of options, whose fields are keywords too
    (`framework="megatron"`); a `Recipe` says layout and length as well. `tell` is called with the progress of a search.
    Errors: `InputError`, `UnknownName`, `Refuted` where there is no layout.

    >>> import txcalc
    >>> answer = txcalc.train("llama-3.1-8b", "h100-sxm:8", layout="fsdp=8", tokens="8k", micro_batch=1)
    >>> answer.fits, answer.ranks[0].bytes["parameters"]
    (True, 4015130624)
    """
    changes, adapter_formats = parse_adapters(lora, ("base", "dtype"))
    model = load(source, changes).language() if text_only else load(source, changes)
    kind, number, price = (gpu, None, None) if isinstance(gpu, Accelerator) else parse_priced(gpu)
    accelerator = hardware.load(kind) if isinstance(kind, str) else kind
    gpus = cluster.gpus if number is None else number
    if cluster.gpus not in (None, gpus):
        raise InputError("options", [f"gpu={gpu!r} and gpus={cluster.gpus} contradict each other"])
    machine = cluster.machine(accelerator)
    prices = prices_by_name([(accelerator.name, gpus, price)], run.price)
    terms = run.terms(prices[accelerator.name], accelerator.power)
    rate = None if mfu.measured is None else parse_measured(mfu.measured)
    conventions = known_conventions(names(mfu.conventions)) if mfu.conventions else REPORTED
    asked_tokens, searched = maybe(tokens, "--tokens", length), None
    recipe = RecipeOptions(recipe=recipe) if isinstance(recipe, str) else recipe
    sequence = recipe.tokens if isinstance(recipe, Recipe) else sequence_length(model, asked_tokens)
    train_tokens, compute = maybe(run.train_tokens, "--train-tokens", count), maybe(run.compute, "--compute", count)
    run_tokens = tokens_of(model, train_tokens, compute, terms, sequence)
    if isinstance(recipe, Recipe):
        if layout is not None or tokens is not None:
            raise InputError("train", ["a Recipe has layout and tokens of its own"])
        whole = recipe
    else:
        batch = maybe(recipe.global_batch, "--global-batch", length)
        # PEFT's defaults: frozen weights in the compute dtype, adapters in fp32
        frozen, adapter = adapter_formats.get("base", "bf16"), adapter_formats.get("dtype", "fp32")
        choices = recipe.choices(**{"frozen": frozen, "adapter": adapter} if changes else {})
        if layout is None:
            searched = search_layouts(model, machine, gpus, batch, sequence, choices, tell)
            whole = searched.best[0].recipe
        else:
            whole = resolve_recipe(read_layout(layout), gpus, batch, sequence, choices)
    training = planning.train(model, whole, machine, rate, conventions, run_tokens, terms, rank)
    by_accelerator = planning.on_every_accelerator(training) if fits_on else None
    return answer_of(training, searched, by_accelerator, asked_tokens, detail, names(mfu.conventions))


def answer_of(
    training: Training,
    searched: Searched | None = None,
    by_accelerator: Sequence[OnAccelerator] | None = None,
    asked_tokens: int | None = None,
    detail: bool = False,
    conventions: Sequence[str] = (),
) -> Train:
    """The answer for a recipe on a machine. `searched`: the layouts considered; `by_accelerator`: other accelerators;
    `asked_tokens`, `conventions`: the requested sequence length and MFU conventions."""
    recipe, step, accelerator = training.recipe, training.step, training.machine.accelerator
    fewest = training.min_gpus
    fixed_length = asked_tokens not in (None, recipe.tokens)
    notes = ["the model fixes the number of positions: --tokens is ignored"] if fixed_length else []
    notes += [searched.refused] if searched and searched.refused else []
    rates = "" if step is None else f" ({Kernels(training.machine).source})"
    memory = Evidence("modelled", "parameters, gradients and optimizer as PyTorch shards them")
    return Train(
        model=ModelInfo.of(training.model),
        gpu=Accelerators(
            name=accelerator.name,
            count=recipe.layout.gpus,
            memory_bytes=accelerator.memory,
            visible_bytes=accelerator.visible,
            usable_bytes=training.capacity,
            title=accelerator.title,
        ),
        layout=LayoutInfo.of(recipe.layout, recipe.zero),
        recipe=ResolvedRecipe(
            framework=recipe.framework,
            schedule=recipe.schedule if recipe.layout.pp > 1 else None,
            micro_batch=recipe.micro_batch,
            accumulation=recipe.accumulation,
            global_batch=recipe.global_batch,
            tokens=recipe.tokens,
            step_tokens=recipe.global_batch * recipe.tokens,
            recompute=recipe.recompute,
            optimizer=recipe.optimizer,
            products=product_dtype(accelerator, training.machine.products),  # on a V100 fp16 instead of bf16
            frozen=recipe.frozen,
            adapter=recipe.adapter,
            offload=recipe.offload,
            overlap=training.machine.overlap,
        ),
        ranks=tuple(map(RankMemory.of, training.plan.ranks)),
        rank=RankMemory.of(training.rank) if training.rank else None,
        fits=training.fits,
        max_micro_batch=training.max_micro_batch,
        max_tokens=training.max_tokens,
        min_gpus=MinimumGpus(fewest.gpus, LayoutInfo.of(fewest)) if fewest else None,
        step_s=StepTime(step.floor, step.seconds, step.floor_bound) if step else StepTime(None, None, None),
        spent_s=dict(step.spent) if step else None,
        tokens_per_s_per_gpu=training.rate,
        measured=training.measured,
        trained_params=learning(training.model.entries),
        adapted=tuple(
            dict.fromkeys(name for stack in training.model.stacks if stack.lora for name in stack.lora.modules)
        ),
        mfu={used.name: used.mfu for used in training.used},
        mfu_headline=training.headline.name if training.headline else None,
        hfu={used.name: used.hfu for used in training.used},
        sent=dict(step.sent) if step else None,
        run=training.run,
        known={
            "allocated_bytes": memory,
            "step_s": Evidence("modelled", f"a roofline with the shares of kernels{rates}"),
        },
        utilisation=training.used,
        search=SearchSummary.of(searched) if searched else None,
        fits_on=None if by_accelerator is None else tuple(by_accelerator),
        libraries=step.libraries if step else {},
        detail=detail,
        conventions=tuple(conventions),
        notes=(*notes, *notes_of(training)),
        draw=lambda: picture(training, searched),
    )


def notes_of(training: Training) -> list[str]:
    model, recipe, plan, card = training.model, training.recipe, training.plan, training.machine.accelerator
    notes = [*plan.notes, *(f"assumed {assumption}" for assumption in model.assumptions)]
    if model.context and recipe.tokens > model.context:
        notes.append(f"{recipe.tokens:,} tokens exceed its context of {model.context:,}")
    if training.why:
        notes.append(f"no time: {training.why}")
    notes += [card.largest] if card.largest else []
    notes += [f"{card.title}: {card.gives_more}"] if card.gives_more else []
    notes += [*time_notes(training), *recipe_notes(training)]
    notes += [*utilisation_notes(training), *plan.sharding]
    if training.run and training.run.energy_kwh is not None:
        notes.append("energy is that of the accelerators at full power; hosts and networks are not counted")
    elif training.run and training.run.power_w is None:
        notes.append(f"no energy: the power of {card.name} is not known")
    return notes


def time_notes(training: Training) -> list[str]:
    """Where kernels were measured, the nodes of several, and which products are slow."""
    step, recipe, accelerator = training.step, training.recipe, training.machine.accelerator
    if step is None:
        return []
    gpus, node, efficiency = recipe.layout.gpus, accelerator.node, accelerator.efficiency
    kernels = "kernels" if efficiency.has(PYTORCH) or not efficiency.cards else "serving kernels"
    cards = accelerator.measured_elsewhere
    partly = f" and, in part, on {accelerator.name}" if cards and accelerator.calibration else ""
    notes = [f"time is modelled with {kernels} measured on {cards or 'this GPU'}{partly}"]
    if node and gpus > node:
        used = f" ({ranks_per_node(node, gpus)} of each used)" if ranks_per_node(node, gpus) < node else ""
        rate = f", {accelerator.link_between / 1e9:g} GB/s per GPU between nodes" if accelerator.link_between else ""
        notes.append(f"nodes of {node} GPUs{used}{rate} (--node, --network change them)")
    elif gpus > (node or NODE):
        notes.append(f"all {gpus} GPUs are in one node (--node changes it)")
    if gpus > 1 and (linked := slow_link(accelerator)):
        notes.append(linked)
    narrow, dtype = training.machine.products, product_dtype(accelerator, recipe.compute)
    if step.wide:
        sizes = ", ".join(f"{a:,} × {b:,}" for a, b in step.wide)
        notes.append(f"products by {sizes} are in {dtype}: {narrow} takes only sizes that are multiples of 16")
    if step.unaligned:
        slow = (f"{a:,} × {b:,} at {100 * share:.0f} %" for (a, b), share in step.unaligned.items())
        dtype = product_dtype(accelerator, narrow) if bits_of(narrow) > 8 else dtype
        owner = "a rank's" if recipe.layout.tp > 1 else "these"
        notes.append(
            f"some products run at a fraction of the usual rate, as measured, because rows of their matrices in "
            f"{dtype} are not multiples of 16 bytes: {', '.join(slow)}; pad {owner} sizes to multiples of "
            f"{128 // bits_of(dtype)}"
        )
    return notes


def recipe_notes(training: Training) -> list[str]:
    """Notes on a large pipeline bubble, on stacked experts with Muon, and on offload."""
    step, recipe, model, notes = training.step, training.recipe, training.model, list[str]()
    if step and (bubble := step.spent["pipeline bubble"] / step.seconds) > 0.5:
        notes.append(f"{100 * bubble:.0f} % of the step is pipeline bubble: {smaller_bubble(recipe)}")
    experts = model.active != model.params
    if experts and recipe.rules.stacks and OPTIMIZERS[recipe.optimizer].newton_schulz:
        notes.append("torch.optim.Muon takes matrices alone: stacked experts, counted here, need a Muon of your own")
    if recipe.offload != "none":
        link = f"{training.machine.host / 1e9:.3g} GB/s one way between GPU and host (--host-link)"
        share = f"; the host runs the optimizer step at {HOST_MEMORY / 1e9:.3g} GB/s of its memory bandwidth per GPU"
        notes.append(f"offload is modelled: {link}{share if recipe.offloads('optimizer') else ''}")
    elif training.machine.host != PCIE_4:
        notes.append("--host-link is ignored: nothing is offloaded to the host (--offload optimizer)")
    return notes


def smaller_bubble(recipe: Recipe) -> str:
    """How to make a pipeline's bubble smaller: with 4 micro-batches per stage it is negligible (GPipe, Huang et al.
    2018, section 2.3)."""
    stages, batches = recipe.layout.pp, recipe.accumulation
    larger_batch = f"--global-batch {4 * stages * recipe.micro_batch * recipe.layout.copies} gives each stage 4, or "
    several = f"{batches:,} micro-batch{'es' * (batches > 1)} for {stages:,} stages"
    return f"{several}; {larger_batch if batches < 4 * stages else ''}choose a smaller pp"


def utilisation_notes(training: Training) -> list[str]:
    """Notes on an impossible rate, and on utilisations above 1."""
    step, rate = training.step, training.rate
    if step and training.measured and rate and rate > (most := step.tokens_s * step.seconds / step.floor):
        return [f"the measured rate is impossible: at datasheet rates the step reaches at most {most:,.0f} tokens/s"]
    if above := [used.name for used in training.used if used.hfu > 1]:
        return [f"{', '.join(above)}: above 100 %, because the convention counts more FLOPs than the step computes"]
    return []


def picture(training: Training, searched: Searched | None = None) -> Picture:
    """Stacked memory per stage with its capacity; the speed of the searched layouts; the schedule of each stage of a
    pipeline."""
    panels = [memory_panel(training), *([layouts_panel(searched)] if searched else [])]
    step, recipe = training.step, training.recipe
    if step and recipe.layout.pp > 1 and sum(map(len, step.timeline.ranks)) <= MAX_SPANS:
        panels.append(timeline_panel(training))
    batches = f"{recipe.accumulation:,} micro-batches of {recipe.micro_batch} × {recipe.tokens:,} tokens"
    convention = f"{recipe.framework}, {batches}, recompute {recipe.recompute}, {recipe.optimizer}"
    accelerators = f"{recipe.layout.gpus:,} × {training.machine.accelerator.title}"
    return Picture(f"{training.model.name} on {accelerators}, {recipe.layout}", convention, panels)


def layouts_panel(searched: Searched) -> Panel:
    """The fastest layouts that fit, by name."""
    recipes = [layout.recipe for layout in searched.best]
    recomputed = [", recompute" if recipe.recompute != "none" else "" for recipe in recipes]
    labels = [
        f"{recipe.layout}, micro-batch {recipe.micro_batch}, {recipe.framework}{suffix}"
        for recipe, suffix in zip(recipes, recomputed, strict=True)
    ]
    speeds = Series("tokens/s per GPU", labels, [layout.step.tokens_s for layout in searched.best])
    x, y = PlotAxis("layout"), PlotAxis("tokens/s per GPU")
    return Panel("Speed of the fastest layouts", x, y, [speeds], kind="bars")


def memory_panel(training: Training) -> Panel:
    """Bars of the fullest GPU's memory; of several stages, stacks with a step for each stage."""
    fullest = [
        max((rank for rank in training.plan.ranks if rank.stage == stage), key=lambda rank: rank.allocated)
        for stage in range(training.recipe.layout.pp)
    ]
    if len(fullest) == 1:
        sizes = {CATEGORIES[name]: size for name, size in fullest[0].bytes.items() if size}
        sizes |= {"allocated": fullest[0].allocated, "usable memory of the GPU": training.capacity}
        bars = [Series("bytes", list(sizes), list(sizes.values()))]
        return Panel("Memory of the fullest GPU", PlotAxis(""), PlotAxis("memory", "bytes"), bars, kind="bars")
    xs = [x for i in range(len(fullest)) for x in (Fraction(2 * i - 1, 2), Fraction(i) + Fraction(499, 1000))]
    categories = [name for name in CATEGORIES if any(rank.bytes[name] for rank in fullest)]
    series = [
        Series(CATEGORIES[name], xs, [rank.bytes[name] for rank in fullest for _ in range(2)], i)
        for i, name in enumerate(categories)
    ]
    x, y = PlotAxis("stage", "sizes"), PlotAxis("memory", "bytes")
    marks = [Mark(f"usable memory: {iec(training.capacity)}", y=training.capacity)]
    return Panel("Memory of the fullest GPU of each stage", x, y, series, marks, "stack")


def timeline_panel(training: Training) -> Panel:
    """The actions of each pipeline stage over time."""
    assert training.step is not None
    series: list[Series] = []
    for kind, word in SPANS.items():
        spans = [
            ((event.start, event.end), rank)
            for rank, events in enumerate(training.step.timeline.ranks)
            for event in events
            if event.action.kind == kind
        ]
        if spans:
            xs, ys = zip(*spans, strict=True)
            series.append(Series(word, xs, ys, len(series)))
    x, y = PlotAxis("time", "seconds"), PlotAxis("stage", "sizes")
    return Panel(f"Pipeline schedule: {training.recipe.schedule}", x, y, series, kind="spans")
