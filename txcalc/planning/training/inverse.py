"""The inverse questions: the largest micro-batch, the longest sequence, the fewest GPUs, all whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from txcalc.errors import InputError
from txcalc.model import Model
from txcalc.planning.layout import Layout
from txcalc.planning.training.memory import memory
from txcalc.planning.training.recipe import LONGEST, MOST, Recipe

# Steps of linear interpolation before bisection.
LINES = 8


def largest(model: Model, recipe: Recipe, what: str, capacity: int) -> int:
    """The largest `micro_batch`, or the longest sequence (`tokens`), whose fullest rank reserves at most `capacity`
    bytes; 0 where none does. A length is a multiple of the layout's sequence split."""
    layout = recipe.layout
    step = layout.cp * layout.sp if what == "tokens" else 1

    def held(number: int) -> int:
        changed = (
            replace(recipe, micro_batch=number) if what == "micro_batch" else replace(recipe, tokens=number * step)
        )
        return memory(model, changed).fullest.reserved

    if what == "micro_batch":
        return _last(held, MOST, capacity)
    most = model.workload().tokens if model.fixed_length else max(model.context or LONGEST, recipe.tokens)
    return step * _last(held, max(1, most // step), capacity)


def fewest(model: Model, recipe: Recipe, layouts: Iterable[Layout], capacity: int) -> Layout | None:
    """The first of the layouts, fewest GPUs first, whose fullest rank reserves at most `capacity` bytes; None where
    none does. Layouts that the model or the recipe does not allow are passed over."""
    for layout in sorted(layouts, key=lambda one: one.gpus):
        alone = layout.dp == layout.cp == 1  # ZeRO then shards nothing
        try:
            plan = memory(model, replace(recipe, layout=layout, zero=0 if alone else recipe.zero))
        except InputError:
            continue
        if plan.fullest.reserved <= capacity:
            return layout
    return None


def _last(held: Callable[[int], int], most: int, capacity: int) -> int:
    """The largest number up to `most` whose memory, which grows with it, is at most `capacity`; 0 if 1 is too many.
    Memory is nearly linear, so a few numbers suffice: each is where the line through the last two meets the
    capacity."""
    low, high = 1, most + 1  # the last that is known to fit, the first that does not
    before = (1, held(1))
    if before[1] > capacity:
        return 0
    guess, tried = 2, 0
    while high - low > 1:
        if tried > LINES:
            guess = (low + high) // 2
        number = min(max(guess, low + 1), high - 1)
        now = (number, held(number))
        low, high = (number, high) if now[1] <= capacity else (low, number)
        grown = now[1] - before[1]
        guess = before[0] + (capacity - before[1]) * (number - before[0]) // grown if grown else high
        before, tried = now, tried + 1
    return low
