"""A page's data of serving and training: the library's answers at every point of a stated grid.

Nothing is interpolated. A price, which only multiplies, is applied in the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

from txcalc.errors import Fault, InputError
from txcalc.hardware import Accelerator
from txcalc.model import Model
from txcalc.planning.serving.deployment import Gpu, Plan, Planner
from txcalc.planning.serving.engine import engine
from txcalc.planning.serving.launch import command
from txcalc.planning.serving.points import OperatingPoint, request
from txcalc.planning.serving.sizing import arrange
from txcalc.planning.serving.speed import Serving, serve
from txcalc.planning.training.answer import Training
from txcalc.questions.train import answer_of

CONTEXTS = (2048, 8192, 32768, 131072)
USERS = (1, 8, 32, 128, 512)
PROMPTS = (Fraction(1, 2), Fraction(7, 8))  # share of the context; the rest is the answer
ENGINES = ("vllm", "sglang", "trtllm")
MOST_POINTS = 2000
MOST_EVENTS = 1500


class PageGrid(NamedTuple):
    """The grid's values."""

    weights: tuple[str, ...] = ("native",)
    kv: tuple[str, ...] = ("bf16", "fp8")
    contexts: tuple[int, ...] = CONTEXTS
    users: tuple[int, ...] = USERS

    def of(self, model: Model) -> PageGrid:
        """The contexts that a model supports; the shortest if it supports none of them."""
        least = self.contexts[0]
        fits = tuple(n for n in self.contexts if model.context is None or n <= model.context)
        return self._replace(contexts=fits or (min(least, model.context or least),))

    @property
    def points(self) -> int:
        return len(self.weights) * len(self.kv) * len(self.contexts) * len(PROMPTS) * len(self.users)


def checked(grids: Sequence[PageGrid]) -> None:
    """Errors: `InputError` for more points than a page can hold."""
    points = sum(grid.points for grid in grids)
    if points > MOST_POINTS:
        mend = "fewer models, GPUs, --context, --concurrency, --weights or --kv"
        raise InputError("report", [Fault("points of the grid", f"{points:,}", f"at most {MOST_POINTS:,}", mend)])


def serving(
    index: int, model: Model, kind: Accelerator, gpus: int | None, price: float | None, grid: PageGrid
) -> dict[str, Any]:
    """Every point of the grid for a model on `gpus` accelerators (None: the fewest that fit)."""
    texts: dict[str, int] = {}
    points: list[dict[str, Any]] = []
    fronts: list[list[dict[str, Any]]] = []
    for weights, kv in product(grid.weights, grid.kv):
        planner = Planner(model, kind, engine(model, weights, kv))
        for context, share in product(grid.contexts, PROMPTS):
            asked = request(context, max(1, int(share * context)))
            front: list[dict[str, Any]] = []
            for users in grid.users:
                try:
                    plan = arrange(planner, asked, context, users, gpus)
                    speed = serve(plan, asked, price) if plan.best.serves else None
                except InputError as error:
                    points.append({"refused": str(error)})
                    continue
                points.append(_point(plan, speed, texts))
                if speed and not front:
                    front = [_speed(point) for point in speed.front]
            fronts.append(front)
    return {
        "model": index,
        "gpu": kind.title,
        "count": gpus,
        "memory": str(kind.memory),
        "price": price,
        "weights": grid.weights,
        "kv": grid.kv,
        "context": grid.contexts,
        "prompt": [[str(max(1, int(share * context))) for share in PROMPTS] for context in grid.contexts],
        "users": grid.users,
        "engines": ENGINES,
        "points": points,
        "fronts": fronts,
        "texts": list(texts),
    }


def _point(plan: Plan, speed: Serving | None, texts: dict[str, int]) -> dict[str, Any]:
    best, held = plan.best, plan.planner
    return {
        "layout": str(best.layout),
        "gpus": best.layout.gpus,
        "fits": best.fits,
        "serves": best.serves,
        "limit": best.fullest.limit,
        "free": str(best.fullest.free),
        "most": best.max_concurrency,
        "longest": plan.max_context,
        "least": plan.min_gpus,
        "weights": held.engine.weights.name,
        "stages": [_held(gpu) for gpu in held.gpus(best.layout, plan.context, plan.concurrency)],
        "speed": _speed(speed.chosen) if speed else None,
        "commands": [texts.setdefault(text, len(texts)) for text in _commands(plan)],
        "notes": [texts.setdefault(text, len(texts)) for text in plan.notes],
    }


def _held(gpu: Gpu) -> dict[str, Any]:
    """Bytes by purpose on an accelerator of one stage."""
    parts = {"weights": gpu.weights, "cache": gpu.cache, "activations": gpu.peak, "reserve": gpu.reserve + gpu.rest}
    stage = gpu.rank.stage
    return {"first": stage.first, "alike": stage.copies, **{name: str(size) for name, size in parts.items()}}


def _speed(point: OperatingPoint) -> dict[str, Any]:
    """The steady state of a point, or the fact that it has none."""
    steady = point.steady
    found: dict[str, Any] = {"layout": str(point.layout), "users": point.sequences, "served": point.tokens_per_s_gpu}
    if steady.timed:
        found |= {"ttft": steady.ttft, "tpot": steady.tpot, "e2e": steady.e2e, "rate": steady.rate, "line": steady.line}
    return found


def _commands(plan: Plan) -> Iterator[str]:
    """Each engine's command, or the reason why it has none."""
    for name in ENGINES:
        try:
            yield command(plan, name)
        except InputError as error:
            yield f"# {error}"


def training(index: int, found: Sequence[Training], price: float | None) -> dict[str, Any]:
    """Training runs of one model, with the keys of `txcalc train --json`, and each pipeline's events."""
    runs = [{**_whole(answer_of(each).to_dict()), **_events(each)} for each in found]
    return {"model": index, "price": price, "runs": runs}


def _whole(value: Any) -> Any:
    """Integers that JavaScript would round, as strings."""
    if isinstance(value, Mapping):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(item) for item in value]
    return str(value) if type(value) is int and abs(value) > 2**53 else value


def _events(found: Training) -> dict[str, Any]:
    """The timeline of each stage, in seconds; None without stages, or with too many to draw."""
    step = found.step
    if step is None or found.recipe.layout.pp < 2:
        return {"timeline": None, "too_many": 0}
    number = sum(map(len, step.timeline.ranks))
    if number > MOST_EVENTS:
        return {"timeline": None, "too_many": number}
    ranks = [[(e.action.kind, e.action.batch, e.start, e.end) for e in events] for events in step.timeline.ranks]
    return {"timeline": ranks, "too_many": 0}
