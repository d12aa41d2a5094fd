"""`report`: an interactive page about models and plans, as one HTML file."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from txcalc.errors import Fault, InputError, TxcalcError
from txcalc.hardware import load as load_accelerator, names as accelerator_names
from txcalc.ledger import KINDS
from txcalc.model import Model
from txcalc.planning.crossover import RULES
from txcalc.planning.layout import parse_layout
from txcalc.planning.machine import Machine
from txcalc.planning.memory import ADAMW_MIXED
from txcalc.planning.serving.deployment import check
from txcalc.planning.serving.speed import check_budget
from txcalc.planning.training.answer import train as train_plan
from txcalc.planning.training.search import resolve_recipe, search_layouts, sequence_length
from txcalc.questions import options as o, page as data
from txcalc.questions.arguments import check_arguments, length, lengths, maybe, names, several_texts, source_list
from txcalc.questions.explorer import explore
from txcalc.questions.page import PageData, PageModel, PlanGrid, ServingPlans, TrainingPlans, TrainingRun
from txcalc.questions.phrases import parse_priced
from txcalc.questions.verify import Progress, no_progress
from txcalc.sources import load
from txcalc.sources.files import write

CONTEXTS = o.CONTEXTS.with_help("Contexts to plan serving for (default: 2k,8k,32k,128k).", aliases=("--contexts",))
RUNS = 6  # layouts of a search that the page shows


class ServingGrid(o.Options):
    """The points of serving plans: contexts × users × formats of weights × formats of the cache."""

    section: ClassVar[str] = "Model"

    context: Annotated[o.Lengths | None, CONTEXTS] = None
    concurrency: Annotated[
        o.Lengths | None,
        o.CONCURRENCY.with_help(
            f"Several: a plan for each (default: {','.join(map(str, data.USERS))}).",
            value="N,…",
            parse=None,
        ),
    ] = None
    weights: Annotated[
        o.Names | None, o.WEIGHTS.with_help("Several: a plan for each (default: native).", value="FORMAT,…")
    ] = None
    kv: Annotated[o.Names | None, o.KV.with_help("Several: a plan for each (default: bf16,fp8).", value="TYPE,…")] = (
        None
    )

    def given(self) -> dict[str, Any]:
        """The options that are given, by flag."""
        values = {f"--{name}": getattr(self, name) for name in self.__struct_fields__}
        return {flag: value for flag, value in values.items() if value is not None}

    def plan_grid(self) -> PlanGrid:
        """Errors: `InputError`."""
        changes, grid = self.given(), PlanGrid()
        values: dict[str, Any]
        values = {"--context": grid.contexts, "--concurrency": grid.users, "--weights": grid.weights, "--kv": grid.kv}
        for flag, value in changes.items():
            items = names(value) if flag in ("--weights", "--kv") else sorted(lengths(value, flag))
            values[flag] = tuple(dict.fromkeys(items))
        if empty := [flag for flag, items in values.items() if not items]:
            raise InputError("options", [Fault(flag, changes[flag], "one or more") for flag in empty])
        contexts, users, weights, kv = values.values()
        for end in (0, -1):
            check(contexts[end], users[end], None, {})
        return PlanGrid(weights, kv, contexts, users)


class Page(Struct, frozen=True):
    """An interactive page as one HTML file."""

    html: str
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<txcalc.report: a page of {len(self.html.encode()):,} bytes>"

    @check_arguments
    def save(self, place: str | Path, *, force: bool = False) -> Path:
        """Writes it. Errors: `InputError` for a file that exists (unless `force`) or cannot be written."""
        write(Path(place), self.html, force)
        return Path(place)


@o.Question(
    "txcalc report llama-3.1-8b qwen3-8b --gpu h100-sxm:2@2.5 --out plan.html",
    takes=("--set", "--ignore"),
    formats=False,
    first=("--gpu", "--train", "--concurrency", "--context", "--weights", "--set", "--out", "--title"),
)
def report(
    *sources: o.SourcesArgument,
    gpu: Annotated[
        str | Sequence[str],
        o.GPU.with_help(
            "Also plan serving: memory, speed, cost and commands for each combination of users, context and formats. "
            "Without N: the fewest that fit. Repeatable.",
            value="NAME[:N][@PRICE]",
            repeats=True,
        ),
    ] = (),
    grid: ServingGrid = ServingGrid(),
    train: Annotated[
        str | Sequence[str],
        o.Option(
            "Also plan training: memory of every rank, the step, the pipeline. Repeatable.",
            "NAME:N[@PRICE]",
            "Engine",
            completes="accelerator",
            repeats=True,
        ),
    ] = (),
    layout: Annotated[
        str | Sequence[str],
        o.LAYOUT.with_help(
            "For training: tp=8,pp=4,dp=2. Repeatable. Default: the fastest layouts that fit.",
            repeats=True,
            aliases=("--layouts",),
        ),
    ] = (),
    tokens: Annotated[
        o.Length | None, o.TOKENS.with_help("For training (default: 4,096, or the model's context if shorter).")
    ] = None,
    global_batch: Annotated[o.Length | None, o.GLOBAL_BATCH.with_help("For training.")] = None,
    title: Annotated[str | None, o.Option("Title of the page.", "TEXT")] = None,
    changes: Mapping[str, object] | None = None,
    ignore: Sequence[str] = (),
    command: str = "txcalc.report",
    tell: Progress = no_progress,
    **options: object,
) -> Page:
    """Write an interactive page: sliders for a model's sizes, its parts, formulas and theorems; several models side by
    side; serving and training plans. One file that works offline.

    In Python: a `Page`, whose `html` is the file; `command` is shown as the command that made it. Training is planned
    with each `layout` or with the fastest that fit; where none fits, with the one of the least estimated memory:
    `notes` say so, and name models without a layout. The fields of `grid` are keywords too.

    Errors: `InputError` (also for more models or points than a page has place for), `UnknownName`, `MissingExtra`.

    >>> import txcalc
    >>> len(txcalc.report("gpt2").html) < 1_500_000
    True
    """
    model_sources = source_list(sources)
    if len(model_sources) > data.MOST_MODELS:
        raise InputError("report", [Fault("models", len(model_sources), f"at most {data.MOST_MODELS} in one page")])
    if not model_sources:
        raise InputError("report", ["expected models"])
    gpus, runs, layouts = (
        [] if values == () else several_texts(name, values)
        for name, values in (("gpu", gpu), ("train", train), ("layout", layout))
    )
    gpus, runs = names(gpus), names(runs)
    training = {"--layout": layouts or None, "--tokens": tokens, "--global-batch": global_batch}
    faults = [] if gpus else [f"{flag} applies to serving plans (add --gpu NAME)" for flag in grid.given()]
    if not runs:
        flags = [flag for flag, value in training.items() if value is not None]
        faults += [f"{flag} applies to training plans (add --train NAME:N)" for flag in flags]
    if faults:
        raise InputError("options", faults)
    models = [load(source, changes, ignore=ignore) for source in model_sources]
    plan_grid = grid.plan_grid()
    grids = [plan_grid.of(model) for model in models]
    priced = [parse_priced(text) for text in gpus]
    for _, _, price in priced:
        check_budget(price)
    explorers = [explore(model) for model in models]
    commands = [
        _source(source if isinstance(source, str) else model.name, changes or {}, ignore)
        for source, model in zip(model_sources, models, strict=True)
    ]
    accelerators = map(load_accelerator, accelerator_names())
    empty = PageData(
        version=vars(sys.modules["txcalc"])["__version__"],
        title=title or ", ".join(model.name for model in models),
        command=command,
        kinds=KINDS,
        rules=tuple(rule._asdict() for rule in RULES),
        state=ADAMW_MIXED,
        gpus=tuple(
            (accelerator.name, accelerator.peaks["bf16"]) for accelerator in accelerators if "bf16" in accelerator.peaks
        ),
        models=tuple(map(PageModel.of, commands, explorers)),
        serve=(),
        train=(),
    )
    write_page = import_module("txcalc.render.page").page
    points = sum(grid.points for grid in grids) * len(gpus)
    data.check_size(len(write_page(empty, explorers).encode()), points, len(models) * len(runs))
    serving = tuple(_serving(models, priced, grids, tell))
    numbers = maybe(tokens, "--tokens", length), maybe(global_batch, "--global-batch", length)
    notes: list[str] = []
    if grid.context is not None:
        notes += [
            f"{model.name} was made for {model.context:,} tokens: its serving plans have contexts of at most "
            f"{grid.contexts[-1]:,}, not {plan_grid.contexts[-1]:,}"
            for model, grid in zip(models, grids, strict=True)
            if grid.contexts != plan_grid.contexts
        ]
    plans = tuple(plan for text in runs for plan in _training(models, text, layouts, *numbers, notes))
    page = write_page(replace(empty, serve=serving, train=plans), explorers)
    if len(page.encode()) > data.MOST_BYTES:
        notes.append(f"the page has {len(page.encode()):,} bytes; browsers open it more slowly")
    return Page(page, tuple(notes))


def _source(name: str, changes: Mapping[str, object], ignore: Sequence[str]) -> str:
    """A model as words of a command line."""
    pairs = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in changes.items()]
    words = [shlex.quote(name), *(f"--set {shlex.quote(pair)}" for pair in pairs)]
    return " ".join([*words, *(f"--ignore {shlex.quote(key)}" for key in ignore)])


def _serving(
    models: Sequence[Model],
    priced: Sequence[tuple[str, int | None, float | None]],
    grids: Sequence[PlanGrid],
    tell: Progress,
) -> Iterator[ServingPlans]:
    kinds = [load_accelerator(name) for name, _, _ in priced]
    for i, model in enumerate(models):
        for kind, (_, number, price) in zip(kinds, priced, strict=True):
            tell(f"{model.name} on {kind.name}", i / len(models))
            yield data.serving_plans(i, model, kind, number, price, grids[i])


def _training(
    models: Sequence[Model],
    text: str,
    layouts: Sequence[str],
    tokens: int | None,
    batch: int | None,
    notes: list[str],
) -> list[TrainingPlans]:
    """Training runs of every model on a kind of GPU, with the given layouts or the fastest that fit; if none fits, with
    the layout of the least estimated memory. Adds to `notes` which models do not fit or have no layout.

    Errors: `TxcalcError` where no model has one.
    """
    name, number, price = parse_priced(text, "--train")
    check_budget(price)
    machine = Machine.of(load_accelerator(name))
    plans, refused = [], []
    for i, model in enumerate(models):
        sequence = sequence_length(model, tokens)
        try:
            if layouts:
                recipes = [
                    resolve_recipe(parse_layout(layout), number, batch, sequence, {}, "--train") for layout in layouts
                ]
            else:
                search = search_layouts(model, machine, number, batch, sequence, {})
                notes += [f"{model.name}: {search.refused}"] if search.refused else []
                recipes = [run.recipe for run in search.best[: 1 if search.refused else RUNS]]
            runs = tuple(TrainingRun.of(train_plan(model, recipe, machine)) for recipe in recipes)
            plans.append(TrainingPlans(i, price, runs))
        except TxcalcError as error:
            refused.append((model.name, error))
    if not plans:
        raise refused[0][1]
    notes += [f"no training view of {model}: {error}" for model, error in refused]
    return plans
