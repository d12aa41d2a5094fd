"""Pictures of `txcalc train`: the memory of every rank by category, and the pipeline's timeline."""

from __future__ import annotations

from fractions import Fraction

from txcalc.planning.training.answer import Training
from txcalc.planning.training.memory import CATEGORIES
from txcalc.planning.training.search import Searched
from txcalc.questions.pictures import Mark, Panel, Picture, PlotAxis, Series
from txcalc.units import iec

WORDS = {"F": "forward", "B": "backward", "I": "input gradients", "W": "weight gradients"}
MOST = 4000  # spans that are drawn


def picture(found: Training, searched: Searched | None = None) -> Picture:
    """Stacked memory per stage with its capacity; for a pipeline the schedule of each stage; and the speed of the
    candidate layouts."""
    panels = [_memory(found), *([_layouts(searched)] if searched else [])]
    step = found.step
    if step and found.recipe.layout.pp > 1 and sum(map(len, step.timeline.ranks)) <= MOST:
        panels.append(_timeline(found))
    recipe = found.recipe
    batches = f"{recipe.accumulation:,} micro-batches of {recipe.micro_batch} × {recipe.tokens:,} tokens"
    said = f"{recipe.framework}, {batches}, recompute {recipe.recompute}, {recipe.optimizer}"
    title = f"{found.model.name} on {recipe.layout.gpus:,} × {found.machine.accelerator.title}, {recipe.layout}"
    return Picture(title, said, panels)


def _layouts(searched: Searched) -> Panel:
    """The fastest layouts that fit, by name."""
    names = [
        f"{recipe.layout} × {recipe.micro_batch}, {recipe.framework}{', again' if recipe.recompute != 'none' else ''}"
        for recipe in (each.recipe for each in searched.best)
    ]
    speeds = Series("tokens/s per GPU", names, [each.step.tokens_s for each in searched.best])
    return Panel(
        "Speed of the fastest layouts", PlotAxis("layout"), PlotAxis("tokens/s per GPU"), [speeds], kind="bars"
    )


def _memory(found: Training) -> Panel:
    """The fullest rank of every stage, as a step of width one."""
    fullest = [
        max((rank for rank in found.plan.ranks if rank.stage == stage), key=lambda rank: rank.allocated)
        for stage in range(found.recipe.layout.pp)
    ]
    edges = [(Fraction(i), Fraction(i) + Fraction(999, 1000)) for i in range(len(fullest))]
    xs = [x for pair in edges for x in pair]
    held = [name for name in CATEGORIES if any(rank.bytes[name] for rank in fullest)]
    series = [
        Series(name.replace("_", " "), xs, [rank.bytes[name] for rank in fullest for _ in "ab"], i)
        for i, name in enumerate(held)
    ]
    marks = [Mark(f"memory: {iec(found.capacity)}", y=found.capacity)]
    return Panel(
        "Memory of the fullest rank of each stage",
        PlotAxis("stage", "sizes"),
        PlotAxis("memory", "bytes"),
        series,
        marks,
        "stack",
    )


def _timeline(found: Training) -> Panel:
    step = found.step
    assert step is not None
    series: list[Series] = []
    for kind, word in WORDS.items():
        spans = [
            ((event.start, event.end), rank)
            for rank, events in enumerate(step.timeline.ranks)
            for event in events
            if event.action.kind == kind
        ]
        if spans:
            xs, ys = zip(*spans, strict=True)
            series.append(Series(word, xs, ys, len(series)))
    return Panel(
        f"The pipeline, {found.recipe.schedule}",
        PlotAxis("time", "seconds"),
        PlotAxis("stage", "sizes"),
        series,
        kind="spans",
    )
