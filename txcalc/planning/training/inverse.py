"""The inverse questions: the largest micro-batch, the longest sequence, the fewest GPUs, all whole numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from msgspec.structs import replace

from txcalc.errors import InputError
from txcalc.model import Model
from txcalc.num import divisors
from txcalc.planning.layout import Layout
from txcalc.planning.training.memory import memory
from txcalc.planning.training.recipe import LONGEST, MOST, Recipe
from txcalc.planning.training.stages import Pipeline
from txcalc.planning.training.states import tensors, unshared

# Steps of linear interpolation before bisection.
LINES = 8
MOST_GPUS = 1 << 14  # in the largest layout that is tried with more replicas


def largest(model: Model, recipe: Recipe, what: str, capacity: int) -> int:
    """The largest `micro_batch`, or the longest sequence (`tokens`), whose fullest GPU reserves at most `capacity`
    bytes; 0 where none does. A length is a multiple of the layout's sequence split."""
    layout = recipe.layout
    step = layout.cp * layout.sp if what == "tokens" else 1

    def reserved(number: int) -> int:
        changed = (
            replace(recipe, micro_batch=number) if what == "micro_batch" else replace(recipe, tokens=number * step)
        )
        return memory(model, changed).fullest.reserved

    if what == "micro_batch":
        return last_within(reserved, MOST, capacity)
    longest = model.workload().tokens if model.fixed_length else max(model.context or LONGEST, recipe.tokens)
    return step * last_within(reserved, max(1, longest // step), capacity)


def fewest(model: Model, recipe: Recipe, capacity: int) -> Layout | None:
    """The same sharding with the fewest replicas whose fullest GPU reserves at most `capacity` bytes: of divisors of
    dp and fsdp, else of multiples of what shards over them (fsdp, or dp with ZeRO); None where none does. Layouts that
    the model or the recipe does not allow are passed over."""

    def holds(layout: Layout) -> bool:
        single = layout.dp == layout.cp == 1  # ZeRO then shards nothing
        try:
            plan = memory(model, replace(recipe, layout=layout, zero=0 if single else recipe.zero))
        except InputError:
            return False
        return plan.fullest.reserved <= capacity

    return next(filter(holds, fewer(recipe.layout)), None) or _more(model, recipe, holds)


def fewer(layout: Layout) -> list[Layout]:
    """The same sharding with fewer replicas, fewest first: every pair of divisors of dp and fsdp."""
    layouts = [layout.replace(dp=dp, fsdp=fsdp) for dp in divisors(layout.dp) for fsdp in divisors(layout.fsdp)]
    return sorted(layouts, key=lambda candidate: candidate.gpus)


def _more(model: Model, recipe: Recipe, holds: Callable[[Layout], bool]) -> Layout | None:
    """The first that fits with twice, three times … as many ranks that share weights or states: of more of them, each
    holds less. Numbers over which FSDP cannot shard experts are left out."""
    layout = recipe.layout
    axis = "fsdp" if recipe.rules.dtensor else "dp"
    if axis == "dp" and not recipe.zero:
        return None
    weights = (tensor for piece in Pipeline(model, recipe).pieces for tensor in tensors(piece, recipe))
    experts = {tensor.shape[:2]: tensor for tensor in weights if tensor.expert}.values()
    multiples = (layout.replace(**{axis: getattr(layout, axis) * n}) for n in range(2, MOST_GPUS // layout.gpus + 1))
    layouts = [candidate for candidate in multiples if not unshared(experts, replace(recipe, layout=candidate))]
    at = bisect_left(layouts, True, key=holds)
    return layouts[at] if at < len(layouts) else None


def last_within(reserved: Callable[[int], int], limit: int, capacity: int) -> int:
    """The largest number up to `limit` whose memory, which grows with it, is at most `capacity`; 0 if 1 is too many.
    Memory is nearly linear, so a few numbers suffice: each is where the line through the last two meets the
    capacity."""
    low, high = 1, limit + 1  # the last that is known to fit, the first that does not
    before = (1, reserved(1))
    if before[1] > capacity:
        return 0
    guess, tried = 2, 0
    while high - low > 1:
        if tried > LINES:
            guess = (low + high) // 2
        number = min(max(guess, low + 1), high - 1)
        latest = (number, reserved(number))
        low, high = (number, high) if latest[1] <= capacity else (low, number)
        grown = latest[1] - before[1]
        guess = before[0] + (capacity - before[1]) * (number - before[0]) // grown if grown else high
        before, tried = latest, tried + 1
    return low
