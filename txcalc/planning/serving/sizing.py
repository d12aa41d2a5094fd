"""The number of accelerators that a load needs within limits, and the layout that serves it best.

Without a number, the fewest that clouds rent: a part of a node (1, 2, 4 or 8), or whole nodes. Twice as many never
serve less, so the search finds the first sufficient power of two, and then tries all numbers since the one before. Of
the layouts that fit, the best meets the limits and has the shortest end-to-end time at the load; if none sustains a
rate, the one with the highest throughput.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf

from msgspec.structs import replace

from txcalc.errors import InputError
from txcalc.planning.layout import Layout
from txcalc.planning.links import NODE
from txcalc.planning.serving.demand import Steady
from txcalc.planning.serving.deployment import MOST_GPUS, LayoutCapacity, Plan, Planner, check, choices, planned, taken
from txcalc.planning.serving.points import Request, Slo, Timer

RULE = "those that fit; within the limits; quickest from question to answer at this load"


def rentable(least: int, held: Mapping[str, int], node: int | None = None) -> list[int]:
    """Numbers of accelerators to try, ascending: parts of a node, then whole nodes; or multiples of the layout that is
    given, where it is neither."""
    given = taken(held)
    whole = min(node or NODE, NODE)  # of a rack, as many as in one node
    parts = [n for n in (1, 2, 4) if n < whole]
    counts = [n for n in (*parts, *range(whole, MOST_GPUS + 1, whole)) if n % given == 0]
    if not counts or given > whole:
        counts = list(range(given, MOST_GPUS + 1, given))
    return [n for n in counts if n >= least]


def arrange(
    planner: Planner,
    asked: Request,
    context: int,
    concurrency: int = 1,
    gpus: int | None = None,
    fixed: Mapping[str, int] | None = None,
    limits: Slo | None = None,
) -> Plan:
    """The plan for a load: of requests at a rate, with as many sequences at once as they need on average, at least
    `concurrency`.

    Errors: those of `deployment.plan`.
    """
    held, sizing = fixed or {}, _Sizing(planner, asked, context, concurrency, limits or Slo())
    check(context, concurrency, gpus, held)
    least = planner.min_gpus(context, concurrency, held)
    counts = [gpus] if gpus else rentable(least, held, planner.accelerator.node) if least else []
    found = sizing.first(counts, held) if counts else None
    if found is None:
        number = gpus or least or taken(held)
        found = choices(planner, number, context, concurrency, held)
    best = found[0]
    if sizing.timed and best.fits and asked.rate is not None:
        steady = sizing.load(best)
        full = best.max_concurrency if steady.lasts else concurrency
        inside = min(ceil(steady.inside), best.max_concurrency) if steady.timed else full
        most = max(concurrency, inside)
        if most != concurrency:
            order = {choice.layout: i for i, choice in enumerate(found)}
            again = choices(planner, best.layout.gpus, context, most, held)
            found = sorted(again, key=lambda choice: order[choice.layout])
            concurrency = most
    made = planned(planner, context, concurrency, found, least, *([RULE] if sizing.timed else []))
    return replace(made, fixed=held)


def fewer_users(
    plan: Plan, asked: Request, fixed: Mapping[str, int] | None = None, limits: Slo | None = None
) -> Plan | None:
    """For a plan that does not fit, the plan for the most users that fit on as many accelerators; None: not one
    does."""
    most = max(choice.max_concurrency for choice in plan.choices)
    if not most:
        return None
    alone = replace(asked, rate=None)
    return arrange(plan.planner, alone, plan.context, most, plan.best.layout.gpus, fixed, limits)


class _Sizing:
    """Layouts of ever more accelerators, each with its steady state."""

    def __init__(self, planner: Planner, asked: Request, context: int, concurrency: int, limits: Slo) -> None:
        self.planner, self.asked, self.context, self.concurrency = planner, asked, context, concurrency
        self.timer, self.limits = Timer(planner, asked, context), limits
        self.timed = True
        self._loads: dict[Layout, Steady] = {}

    def load(self, choice: LayoutCapacity) -> Steady:
        """Its steady state. Errors: `InputError` where it cannot be timed."""
        if choice.layout not in self._loads:
            if self.asked.rate is None:
                self._loads[choice.layout] = self.timer.steady(choice.layout, self.concurrency)
            else:
                self._loads[choice.layout] = self.timer.open(choice.layout, self.asked.rate)
        return self._loads[choice.layout]

    def first(self, counts: list[int], held: Mapping[str, int]) -> list[LayoutCapacity] | None:
        """The layouts of the first count on which the load is served within limits, best first; of the first on which
        it fits where there is none; None: none fits, or there are no layouts."""
        known: dict[int, list[LayoutCapacity] | None] = {}

        def of(i: int) -> list[LayoutCapacity] | None:
            if i not in known:
                known[i] = self._ranked(counts[i], held)
            return known[i]

        def enough(i: int) -> bool:
            found = of(i)
            return found is not None and found[0].fits and self._met(found[0])

        start = next((i for i in range(len(counts)) if of(i)), None)
        if start is None:
            return None
        if not self.timed or enough(start) or not (self.limits or self.asked.rate):
            return of(start)
        low = start  # known to be too few
        for high in (i for i in range(start + 1, len(counts)) if counts[i].bit_count() == 1):
            if enough(high):
                break
            low = high
        else:
            return of(start)
        return of(next((i for i in range(low + 1, high) if enough(i)), high))

    def _met(self, choice: LayoutCapacity) -> bool:
        if not self.timed:
            return True
        steady = self._quiet(choice)
        return steady is not None and self.limits.kept(steady)

    def _quiet(self, choice: LayoutCapacity) -> Steady | None:
        """Its steady state; None: it holds no sequence, or needs a link that is not known."""
        return self.load(choice) if choice.serves and self.timer.known(choice.layout) else None

    def _ranked(self, number: int, held: Mapping[str, int]) -> list[LayoutCapacity] | None:
        """The layouts of a number of accelerators, best first; None: there are none."""
        try:
            found = choices(self.planner, number, self.context, self.concurrency, held)
        except InputError:
            return None
        try:
            return sorted(found, key=self._rank) if self.timed else found
        except InputError:  # a peak is not known: nothing can be timed
            self.timed = False
            return found

    def _rank(self, choice: LayoutCapacity) -> tuple[bool, bool, float, float]:
        steady = self._quiet(choice)
        if steady is None:
            return not choice.fits, True, inf, 0.0
        return not choice.fits, not self.limits.kept(steady), steady.e2e, -steady.rate
