"""The data of `report`'s page: models with their sliders and theorems, serving plans at every point of a grid, training
runs.

Nothing is interpolated. Prices, which only multiply, are applied in the page. Numbers have the names of `deploy`'s and
`train`'s answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any, NamedTuple

from msgspec.structs import replace

from txcalc.errors import InputError
from txcalc.evidence.domains import everywhere
from txcalc.evidence.known import Evidence, all_known
from txcalc.hardware import Accelerator
from txcalc.model import Model
from txcalc.planning.serving.deployment import Gpu, Plan, Planner
from txcalc.planning.serving.engine import engine
from txcalc.planning.serving.launch import command
from txcalc.planning.serving.points import OperatingPoint, Request, request
from txcalc.planning.serving.sizing import arrange
from txcalc.planning.serving.speed import Serving, serve
from txcalc.planning.training.answer import Training
from txcalc.program import Guard, Program, written
from txcalc.questions.answers import Answer
from txcalc.questions.explorer import Domain, Explorer, PagePart, Slider
from txcalc.questions.train import Train, answer_of

# Quantities whose evidence the page shows, by their names on it.
KNOWN = {
    "params": "params",
    "active": "active",
    "flops": "flops",
    "flops_masked": "masked flops",
    "training": "training flops",
    "cache": "cache",
    "saved": "saved, fused attention",
}
CONTEXTS = (2048, 8192, 32768, 131072)
USERS = (1, 8, 32, 128, 512)
PROMPTS = (Fraction(1, 2), Fraction(7, 8))  # share of the context; the rest is the answer
ENGINES = ("vllm", "sglang", "trtllm")
MOST_MODELS = 20
MOST_BYTES = 1_500_000
POINT_BYTES, RUN_BYTES = 1_000, 40_000  # of a point of a serving grid and of a training view, at most in pages so far
MOST_EVENTS = 1500

Condition = tuple[str, str]  # how two sides relate, and the condition as text


class PageSlider(Answer):
    """A letter and the keys that it sets. `rule`: the formula of its value where the description has none."""

    letter: str
    symbol: str
    meaning: str
    keys: tuple[str, ...]
    value: int | None
    rule: str

    @classmethod
    def of(cls, slider: Slider, explorer: Explorer) -> PageSlider:
        letter, symbol = slider.letter, slider.symbol
        rule = written(explorer.follows[letter].results[letter]) if slider.value is None else ""
        return cls(letter, symbol.letter, symbol.meaning, slider.keys, slider.value, rule)


class FurtherTheorem(Answer):
    """How a further quantity is known, and at which sizes."""

    how: str
    conditions: tuple[Condition, ...]


class PageDomain(Answer):
    """A theorem of a part of the model, and the sizes at which it holds."""

    part: str
    key: str
    lengths: str
    conditions: tuple[Condition, ...]
    further: dict[str, FurtherTheorem]

    @classmethod
    def of(cls, domain: Domain) -> PageDomain:
        further = {
            name: FurtherTheorem(how, conditions_of(program.conditions))
            for name, how, program in further_theorems(domain)
        }
        return cls(domain.part, domain.key, domain.lengths, conditions_of(domain.program.conditions), further)


class PageModel(Answer):
    """A model; `source` is its name in commands, `positions` those of a model of fixed length."""

    name: str
    source: str
    summary: tuple[str, ...]
    notes: tuple[str, ...]
    sliders: tuple[PageSlider, ...]
    fixed: tuple[str, ...]
    fixed_length: bool
    positions: str | None
    latents: bool
    totals: tuple[str, ...]
    conditions: tuple[Condition, ...]
    parts: tuple[PagePart, ...]
    domains: tuple[PageDomain, ...]
    unproved: str
    known: dict[str, Evidence]

    @classmethod
    def of(cls, source: str, explorer: Explorer) -> PageModel:
        model = explorer.model
        ledger = model.ledger(tokens=model.usual_tokens)
        return cls(
            name=model.name,
            source=source,
            summary=tuple(line for line in model.outline() if line),
            notes=tuple(model.all_notes),
            sliders=tuple(PageSlider.of(slider, explorer) for slider in explorer.sliders),
            fixed=explorer.fixed,
            fixed_length=model.fixed_length,
            positions=str(model.root.fixed) if model.fixed_length else None,
            latents=model.has_latents,
            totals=tuple(explorer.totals.results),
            conditions=conditions_of(explorer.totals.conditions),
            parts=explorer.parts,
            domains=tuple(map(PageDomain.of, explorer.domains)),
            unproved=explorer.unproved,
            known={name: on_page(known) for name, known in all_known(model, KNOWN, ledger).items()},
        )


def on_page(evidence: Evidence) -> Evidence:
    """The evidence of a figure; a proof for some batches or lengths only does not cover all that the page shows."""
    if evidence.how in ("measured", "modelled") or everywhere(evidence.where):
        return evidence
    return Evidence("modelled", f"{evidence.how} only for {evidence.where}")


def conditions_of(conditions: Sequence[Guard]) -> tuple[Condition, ...]:
    return tuple((condition.relation, str(condition)) for condition in conditions)


def further_theorems(domain: Domain) -> list[tuple[str, str, Program]]:
    """The evidence for quantities with theorems of their own, by their names on the page."""
    extra = domain.extra_theorems
    return [(name, *extra[quantity]) for name, quantity in KNOWN.items() if quantity in extra]


class StageBytes(Answer):
    """Bytes by purpose on each accelerator of a stage."""

    stage: int
    stages_alike: int
    weights: int
    cache: int
    activations: int
    reserve: int

    @classmethod
    def of(cls, gpu: Gpu, usable: int) -> StageBytes:
        stage = gpu.rank.stage
        return cls(stage.first, stage.copies, gpu.weights, gpu.cache, gpu.peak, usable - gpu.available + gpu.overhead)


class GridSpeed(Answer):
    """The steady state of a load; None where the latencies have no known mean."""

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    line_s: float | None
    tokens_per_s_gpu: float

    @classmethod
    def of(cls, point: OperatingPoint) -> GridSpeed:
        steady = point.steady
        if not steady.timed:
            return cls(None, None, None, None, point.tokens_per_s_gpu)
        return cls(steady.ttft, steady.tpot, steady.e2e, steady.cache_wait, point.tokens_per_s_gpu)


class FrontPoint(Answer):
    """A point of the Pareto front."""

    layout: str
    sequences: int
    ttft_s: float
    tpot_s: float | None
    tokens_per_s_gpu: float

    @classmethod
    def of(cls, point: OperatingPoint) -> FrontPoint:
        steady = point.steady
        return cls(str(point.layout), point.sequences, steady.ttft, steady.tpot, point.tokens_per_s_gpu)


class GridPoint(Answer):
    """A plan; `commands` of each engine and `notes` are indices into the grid's texts."""

    layout: str
    gpus: int
    fits: bool
    limit: str
    headroom_bytes: int
    max_concurrency: int
    max_context: int | None
    min_gpus: int | None
    weights: str
    memory: tuple[StageBytes, ...]
    speed: GridSpeed | None
    commands: tuple[int, ...]
    notes: tuple[int, ...]


class RefusedPoint(Answer):
    """A point of the grid without a plan, and why."""

    refused: str


class ServingPlans(Answer):
    """The plans of a model (by index) on a kind of accelerator: `points` of the product of weights, kv, context, prompt
    and users; a front for each context and prompt. `count`: the requested GPUs."""

    model: int
    gpu: str
    count: int | None
    usable_bytes: int
    price: float | None
    weights: tuple[str, ...]
    kv: tuple[str, ...]
    context: tuple[int, ...]
    prompt: tuple[tuple[int, ...], ...]
    users: tuple[int, ...]
    engines: tuple[str, ...]
    points: tuple[GridPoint | RefusedPoint, ...]
    fronts: tuple[tuple[FrontPoint, ...], ...]
    texts: tuple[tuple[int, ...], ...]
    lines: tuple[str, ...]


class PlanGrid(NamedTuple):
    """The values of a grid of serving plans."""

    weights: tuple[str, ...] = ("native",)
    kv: tuple[str, ...] = ("bf16", "fp8")
    contexts: tuple[int, ...] = CONTEXTS
    users: tuple[int, ...] = USERS

    def of(self, model: Model) -> PlanGrid:
        """The contexts that a model supports; the shortest if it supports none of them."""
        least = self.contexts[0]
        fits = tuple(n for n in self.contexts if model.context is None or n <= model.context)
        return self._replace(contexts=fits or (min(least, model.context or least),))

    @property
    def points(self) -> int:
        return len(PROMPTS) * prod(map(len, self))


def check_size(empty: int, points: int, runs: int) -> None:
    """Refuses plans that would make a page of `empty` bytes too large, before they are computed.

    Errors: `InputError`.
    """
    room = MOST_BYTES - empty - RUN_BYTES * runs
    if room < 0:
        raise InputError("report", [f"the page would have more than {MOST_BYTES:,} bytes: name fewer models"])
    if points > (most := room // POINT_BYTES):
        mend = "fewer models, GPUs, --context, --concurrency, --weights or --kv"
        raise InputError("report", [f"the serving plans have {points:,} points, a page holds {most:,} ({mend})"])


def serving_plans(
    index: int, model: Model, kind: Accelerator, gpus: int | None, price: float | None, grid: PlanGrid
) -> ServingPlans:
    """Every point of the grid for a model on `gpus` accelerators (None: the fewest that fit)."""
    texts: dict[str, int] = {}
    points: list[GridPoint | RefusedPoint] = []
    fronts = []
    for weights, kv in product(grid.weights, grid.kv):
        planner = Planner(model, kind, engine(model, weights, kv))
        for context, share in product(grid.contexts, PROMPTS):
            load = request(context, prompt_of(context, share))
            front: tuple[FrontPoint, ...] = ()
            for users in grid.users:
                try:
                    plan = arrange(planner, load, context, users, gpus)
                    speed = serve(plan, load, price) if plan.best.serves else None
                except InputError as error:
                    points.append(RefusedPoint(str(error)))
                    continue
                points.append(_grid_point(plan, speed, load, texts))
                if speed and not front:
                    front = tuple(map(FrontPoint.of, speed.front))
            fronts.append(front)
    prompts = tuple(tuple(prompt_of(context, share) for share in PROMPTS) for context in grid.contexts)
    different = dict.fromkeys(line for text in texts for line in text.split("\n"))
    lines = {line: i for i, line in enumerate(different)}
    return ServingPlans(
        model=index,
        gpu=kind.title,
        count=gpus,
        usable_bytes=kind.visible,
        price=price,
        weights=grid.weights,
        kv=grid.kv,
        context=grid.contexts,
        prompt=prompts,
        users=grid.users,
        engines=ENGINES,
        points=tuple(points),
        fronts=tuple(fronts),
        texts=tuple(tuple(lines[line] for line in text.split("\n")) for text in texts),
        lines=tuple(lines),
    )


def prompt_of(context: int, share: Fraction) -> int:
    return max(1, int(share * context))


def _grid_point(plan: Plan, speed: Serving | None, load: Request, texts: dict[str, int]) -> GridPoint:
    best, planner = plan.best, plan.planner
    gpus = planner.gpus(best.layout, plan.context, plan.concurrency)
    return GridPoint(
        layout=str(best.layout),
        gpus=best.layout.gpus,
        fits=best.fits,
        limit=best.fullest.limit,
        headroom_bytes=best.fullest.free,
        max_concurrency=best.max_concurrency,
        max_context=plan.max_context,
        min_gpus=plan.min_gpus,
        weights=planner.engine.weights.name,
        memory=tuple(StageBytes.of(gpu, planner.accelerator.visible) for gpu in gpus),
        speed=GridSpeed.of(speed.chosen) if speed else None,
        commands=tuple(texts.setdefault(text, len(texts)) for text in _commands(plan, load)),
        notes=tuple(texts.setdefault(text, len(texts)) for text in plan.notes),
    )


def _commands(plan: Plan, load: Request) -> Iterator[str]:
    """Each engine's command, or the reason why it has none."""
    for name in ENGINES:
        try:
            yield command(plan, name, request=load)
        except InputError as error:
            yield f"# {error}"


Event = tuple[str, int, float, float]  # kind, micro-batch, start and end in seconds


class TrainingRun(Answer):
    """A run, and the events of each pipeline stage; None: one stage, or `too_many` events to draw."""

    train: Train
    timeline: tuple[tuple[Event, ...], ...] | None
    too_many: int

    @classmethod
    def of(cls, training: Training) -> TrainingRun:
        step, answer = training.step, replace(answer_of(training), draw=None)
        if step is None or training.recipe.layout.pp < 2:
            return cls(answer, None, 0)
        stages = step.timeline.ranks
        number = sum(map(len, stages))
        if number > MOST_EVENTS:
            return cls(answer, None, number)
        timeline = tuple(
            tuple((event.action.kind, event.action.batch, event.start, event.end) for event in events)
            for events in stages
        )
        return cls(answer, timeline, 0)


class TrainingPlans(Answer):
    """The training runs of a model (by index)."""

    model: int
    price: float | None
    runs: tuple[TrainingRun, ...]


class PageData(Answer):
    """The whole page. `rules` of crossovers, `state` of an optimizer, `gpus` with their peak FLOP/s in bf16."""

    version: str
    title: str
    command: str
    kinds: tuple[str, ...]
    rules: tuple[dict[str, Any], ...]
    state: tuple[tuple[str, int], ...]
    gpus: tuple[tuple[str, int], ...]
    models: tuple[PageModel, ...]
    serve: tuple[ServingPlans, ...]
    train: tuple[TrainingPlans, ...]
