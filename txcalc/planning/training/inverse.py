"""The inverse questions: the largest micro-batch, the longest sequence, the fewest GPUs, all whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from txcalc.errors import InputError
from txcalc.model import Model
from txcalc.planning.layout import Layout
from txcalc.planning.training.memory import memory
from txcalc.planning.training.recipe import MOST, Recipe

LONGEST = 1 << 30


def largest(model: Model, recipe: Recipe, what: str, capacity: int) -> int:
    """The largest `micro_batch`, or the longest sequence (`tokens`), whose fullest rank reserves at most `capacity`
    bytes; 0 where none does. A length is a multiple of what the layout cuts it by."""
    layout = recipe.layout
    step = layout.cp * layout.sp if what == "tokens" else 1

    def fits(number: int) -> bool:
        changed = (
            replace(recipe, micro_batch=number) if what == "micro_batch" else replace(recipe, tokens=number * step)
        )
        return memory(model, changed).fullest.reserved <= capacity

    most = model.context or LONGEST if what == "tokens" else MOST
    return step * _last(fits, max(1, most // step) if what == "tokens" else most)


def fewest(model: Model, recipe: Recipe, layouts: Iterable[Layout], capacity: int) -> Layout | None:
    """The first of the layouts, fewest GPUs first, whose fullest rank reserves at most `capacity` bytes; None where
    none does. Layouts that the model or the recipe does not allow are passed over."""
    for layout in sorted(layouts, key=lambda one: one.gpus):
        try:
            plan = memory(model, replace(recipe, layout=layout))
        except InputError:
            continue
        if plan.fullest.reserved <= capacity:
            return layout
    return None


def _last(fits: Callable[[int], bool], most: int) -> int:
    """The last number up to `most` that fits, where smaller ones fit if a larger one does; 0 where 1 does not."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
