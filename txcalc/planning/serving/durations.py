"""The time of a pass as a sum of seconds by cause: its lower bound, and the predicted time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

BOUNDS = ("compute", "memory", "link", "launch")
FLOORS = ("compute", "memory", "link", "RAM")


class Cost(NamedTuple):
    """Seconds, additive: the lower bounds of compute, memory (weights and cache) and link, achievable time by cause,
    the host's time to issue the work, and the lower bound of RAM reads."""

    least_compute: float = 0.0
    least_weights: float = 0.0
    least_cache: float = 0.0
    least_link: float = 0.0
    compute: float = 0.0
    memory: float = 0.0
    link: float = 0.0
    launch: float = 0.0
    host: float = 0.0
    least_ram: float = 0.0

    def plus(self, other: Cost) -> Cost:
        return Cost(*[a + b for a, b in zip(self, other, strict=True)])

    def times(self, number: float) -> Cost:
        return Cost(*[a * number for a in self])

    @property
    def least(self) -> tuple[float, float, float]:
        """The lower bounds of compute, memory and link."""
        return self.least_compute, self.least_weights + self.least_cache, self.least_link

    @property
    def floor(self) -> float:
        return max(*self.least, self.least_ram)

    @property
    def spent(self) -> tuple[float, float, float, float]:
        """Achievable time on compute, memory, link and launches, which include waiting for the host."""
        work = self.compute + self.memory + self.link
        return self.compute, self.memory, self.link, max(self.launch, self.host - work)

    @property
    def achievable(self) -> float:
        return sum(self.spent)

    @property
    def floor_bound(self) -> str:
        return FLOORS[(*self.least, self.least_ram).index(self.floor)]

    @property
    def bound(self) -> str:
        """The cause of most of the achievable time."""
        return BOUNDS[self.spent.index(max(self.spent))]


class BoundedTime(NamedTuple):
    """A latency: floor and achievable time in seconds, and the bound of each."""

    floor: float
    achievable: float
    floor_bound: str
    bound: str


def total(costs: Any) -> Cost:
    """The sum of costs."""
    columns = list(zip(*costs, strict=True))
    return Cost(*map(sum, columns)) if columns else Cost()


def series(term: Callable[[int], Cost], number: int) -> Cost:
    """Σ term(i) over i < number, for terms that are smooth except for a few bends: an interval is summed as the
    parabola through its ends and middle if that matches a fourth term to 1e-6, and is halved otherwise."""

    def add(low: int, high: int) -> Cost:
        n, half, quarter = high - low, (low + high) // 2, (3 * low + high) // 4
        if n < 4:
            return total(term(i) for i in range(low, high + 1))
        first, fourth, middle, last = term(low), term(quarter), term(half), term(high)
        sums: list[float] = []
        m, i = half - low, quarter - low
        for a, d, b, c in zip(first, fourth, middle, last, strict=True):
            # a + s·i + t·i·(i − m), through (0, a), (m, b), (n, c)
            s = (b - a) / m
            t = (c - a - s * n) / (n * (n - m))
            if abs(a + s * i + t * i * (i - m) - d) > 1e-6 * (abs(a) + abs(c)):
                return add(low, half).plus(add(half + 1, high))
            ones, squares = n * (n + 1) / 2, n * (n + 1) * (2 * n + 1) / 6
            sums.append(a * (n + 1) + s * ones + t * (squares - m * ones))
        return Cost(*sums)

    return add(0, number - 1)
