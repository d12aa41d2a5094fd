"""Equal budgets: the value of one key at which two models cost the same, solved in whole numbers.

Every candidate is built and counted. A budget that no whole number meets lies between two neighbours, which are both
given; sizes that the description refuses (heads that do not divide a width) are passed over.
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
from txcalc.sources.spec import MAX_LAYERS, MAX_SIZE, changed, layers, letter_path

TRIED = 1024  # sizes that are refused one after another before a side is given up


class Near(Struct, frozen=True):
    """A size, and by how much it spends more than the budget (below 0: less)."""

    value: int
    difference: int


class MatchedModel(NamedTuple):
    """`model` with `key` at the size that comes nearest to `budget`; the largest size below it and the smallest that is
    not, None where there is none."""

    model: Model
    key: str
    budget: int
    best: Near
    below: Near | None
    above: Near | None


def matched(model: Model, key: str, budget: int, cost: Callable[[Model], int]) -> MatchedModel:
    """The size of `key` at which `cost` comes nearest to the budget; of two as near, the smaller.

    Errors: `InputError` where the key is no size, or the cost does not grow with it.
    """
    path = letter_path(key, model.raw, "--by")
    field = size_field(path)
    if field is None:
        raise InputError("--by", [f"{path} is not a size of a description"])
    start = size_of(model.raw, key)
    search = SizeSearch(model, key, budget, cost, MAX_LAYERS if field.check is layers else MAX_SIZE)
    below, above = search.around(start)
    near = [size for size in (below, above) if size is not None]
    best = min(near, key=lambda size: abs(size.difference))
    if best.value == start:
        return MatchedModel(model, key, budget, best, below, above)
    return MatchedModel(search.model(best.value), key, budget, best, below, above)


class SizeSearch:
    """Sizes of one key, each built once."""

    def __init__(self, base: Model, key: str, budget: int, cost: Callable[[Model], int], most: int) -> None:
        self.base, self.key, self.budget, self.cost, self.most = base, key, budget, cost, most
        self._known: dict[int, int | None] = {}

    def model(self, value: int) -> Model:
        """The model with this size. Errors: `InputError` where it cannot be."""
        base = self.base
        built = build(changed(base.raw, {self.key: value}), base.origin, base.assumptions, base.notes)
        return replace(built, name=base.name, changed=f"changed: {self.key} = {value}")

    def over(self, value: int) -> int | None:
        """By how much a size is over the budget; None where it cannot be."""
        if value not in self._known:
            try:
                self._known[value] = self.cost(self.model(value)) - self.budget
            except (InputError, ValueError):
                self._known[value] = None
        return self._known[value]

    def next(self, value: int, end: int, up: bool) -> int | None:
        """The first size that can be, from `value` up or down to `end`, which it may be."""
        sizes = range(value, min(value + TRIED, end) + 1) if up else range(value, max(value - TRIED, end) - 1, -1)
        return next((size for size in sizes if self.over(size) is not None), None)

    def around(self, start: int) -> tuple[Near | None, Near | None]:
        """The largest size below the budget and the smallest at or above it; only the latter if `start` meets it
        exactly."""
        at = self.over(start)
        assert at is not None, "a model can be"
        if at == 0:
            return None, Near(start, 0)
        last, beyond = self._beyond(start, at < 0)
        low, high = (last, beyond) if at < 0 else (beyond, last)
        while low is not None and high is not None:
            middle = (low + high) // 2
            size = self.next(middle, low + 1, False) or self.next(middle + 1, high - 1, True)
            if size is None:
                break
            low, high = (size, high) if self._rising(size, low, high) < 0 else (low, size)
        return self._near(low), self._near(high)

    def _near(self, size: int | None) -> Near | None:
        over = None if size is None else self.over(size)
        return None if size is None or over is None else Near(size, over)

    def _rising(self, size: int, low: int, high: int) -> int:
        over, least, most = self.over(size), self.over(low), self.over(high)
        assert over is not None and least is not None and most is not None
        if not least <= over <= most:
            raise InputError(
                "--by", [f"the quantity to match does not grow with {self.key}: {low:,}, {size:,}, {high:,}"]
            )
        return over

    def _beyond(self, start: int, up: bool) -> tuple[int, int | None]:
        """The last size tried on this side of the budget and the first on the other, farther and farther up or down;
        None where there is none."""
        end, step = (self.most, 1) if up else (1, -1)
        last, reach = start, 1
        while last != end:
            target = min(last + reach, end) if up else max(last - reach, end)
            size = self.next(target, end, up) or self.next(target - step, last + step, not up)
            if size is None:
                break
            if ((self.over(size) or 0) >= 0) == up:
                return last, size
            last, reach = size, 2 * reach
        other = self.next(start - step, 1 if up else self.most, not up)
        if len({self.over(size) for size in (start, last, other) if size}) == 1:
            raise InputError(
                "--by",
                [f"the quantity to match does not change with {self.key} (name a size that it depends on: L, h_kv)"],
            )
        return last, None
