"""Equal budgets: the value of one key at which two models cost the same, solved in whole numbers.

Every candidate is built and counted. If no whole number meets a budget exactly, the answer has both neighbours; sizes
that the description refuses (heads that do not divide a width) are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from txcalc.errors import InputError
from txcalc.model import Model
from txcalc.sources import build
from txcalc.sources.expressions import size_field, size_of
from txcalc.sources.spec import MAX_LAYERS, MAX_SIZE, change_keys, layers, letter_path

MAX_REFUSED = 1024  # consecutive refused sizes before the search in a direction ends


class Near(Struct, frozen=True):
    """A size, and its cost minus the budget."""

    value: int
    difference: int


class MatchedModel(NamedTuple):
    """`model` with `key` at the size whose cost is nearest to `budget`; the largest size below the budget and the
    smallest at or above it (None if there is none)."""

    model: Model
    key: str
    budget: int
    best: Near
    below: Near | None
    above: Near | None


def match_size(model: Model, key: str, budget: int, cost: Callable[[Model], int]) -> MatchedModel:
    """The size of `key` at which `cost` is nearest to the budget; of two equally near, the smaller.

    Errors: `InputError` if the key is no size, or the cost does not grow with it.
    """
    path = letter_path(key, model.raw, "--by")
    field = size_field(path)
    if field is None:
        raise InputError("--by", [f"{path} is not a size of a description"])
    start = size_of(model.raw, key)
    search = SizeSearch(model, key, budget, cost, MAX_LAYERS if field.check is layers else MAX_SIZE)
    below, above = search.neighbours(start)
    best = min(filter(None, (below, above)), key=lambda size: abs(size.difference))
    best_model = model if best.value == start else search.model(best.value)
    return MatchedModel(best_model, key, budget, best, below, above)


class SizeSearch:
    """Sizes of one key, each built once."""

    def __init__(self, base: Model, key: str, budget: int, cost: Callable[[Model], int], most: int) -> None:
        self.base, self.key, self.budget, self.cost, self.most = base, key, budget, cost, most
        self._known: dict[int, int | None] = {}

    def model(self, value: int) -> Model:
        """The model with this size. Errors: `InputError` if the description refuses it."""
        base = self.base
        built = build(change_keys(base.raw, {self.key: value}), base.origin, base.assumptions, base.notes)
        return replace(built, name=base.name, changed=f"changed: {self.key} = {value}")

    def excess(self, value: int) -> int | None:
        """The cost of a size minus the budget; None if the description refuses it."""
        if value not in self._known:
            try:
                self._known[value] = self.cost(self.model(value)) - self.budget
            except (InputError, ValueError):
                self._known[value] = None
        return self._known[value]

    def next(self, value: int, end: int, up: bool) -> int | None:
        """The first allowed size from `value` up or down to `end`, inclusive."""
        sizes = (
            range(value, min(value + MAX_REFUSED, end) + 1)
            if up
            else range(value, max(value - MAX_REFUSED, end) - 1, -1)
        )
        return next((size for size in sizes if self.excess(size) is not None), None)

    def neighbours(self, start: int) -> tuple[Near | None, Near | None]:
        """The largest size below the budget and the smallest at or above it; only the latter if `start` meets it
        exactly."""
        excess = self.excess(start)
        assert excess is not None, "the model exists"
        if excess == 0:
            return None, Near(start, 0)
        last, other = self._bracket(start, excess < 0)
        low, high = (last, other) if excess < 0 else (other, last)
        while low is not None and high is not None:
            middle = (low + high) // 2
            size = self.next(middle, low + 1, False) or self.next(middle + 1, high - 1, True)
            if size is None:
                break
            low, high = (size, high) if self._checked_excess(size, low, high) < 0 else (low, size)
        return self._near(low), self._near(high)

    def _near(self, size: int | None) -> Near | None:
        excess = None if size is None else self.excess(size)
        return None if size is None or excess is None else Near(size, excess)

    def _checked_excess(self, size: int, low: int, high: int) -> int:
        """The excess of a size. Errors: `InputError` if it is not between those of `low` and `high`."""
        excess, least, most = self.excess(size), self.excess(low), self.excess(high)
        assert excess is not None and least is not None and most is not None
        if not least <= excess <= most:
            message = f"the quantity to match does not grow with {self.key}: {low:,}, {size:,}, {high:,}"
            raise InputError("--by", [message])
        return excess

    def _bracket(self, start: int, up: bool) -> tuple[int, int | None]:
        """The last size tried on this side of the budget and the first on the other, in doubling steps up or down; None
        if no size is on the other."""
        end, step = (self.most, 1) if up else (1, -1)
        last, distance = start, 1
        while last != end:
            target = min(last + distance, end) if up else max(last - distance, end)
            size = self.next(target, end, up) or self.next(target - step, last + step, not up)
            if size is None:
                break
            if ((self.excess(size) or 0) >= 0) == up:
                return last, size
            last, distance = size, 2 * distance
        opposite = self.next(start - step, 1 if up else self.most, not up)
        if len({self.excess(size) for size in (start, last, opposite) if size}) == 1:
            message = f"the quantity to match does not change with {self.key} (name a size that it depends on: L, h_kv)"
            raise InputError("--by", [message])
        return last, None
