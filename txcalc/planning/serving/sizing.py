"""The number of accelerators that a load needs within limits, and the layout that serves it best.

Without a number, the fewest that serve the load within the limits, in replicas that can be rented: each is a part of a
node (1, 2, 4 or 8 accelerators), or whole nodes. More replicas never serve less, so bisection finds the fewest of a
kind. A replica spans nodes only if one node does not hold it. Replicas that share experts count as one: for them the
search finds the first sufficient power of two, and then tries all numbers above the power before it.

An accelerator is suited if some replica meets the limits with two users (with one, if memory holds no more or requests
arrive at a rate). For an unsuited one, no number of replicas is proposed.

Of the layouts that fit, the best meets the limits and has the shortest end-to-end time at the load; if none sustains a
rate, the one with the highest throughput.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf

from msgspec.structs import replace

from txcalc.errors import InputError
from txcalc.num import ceil_div
from txcalc.planning.layout import Layout
from txcalc.planning.machine import NODE
from txcalc.planning.serving.demand import ROUNDS, Steady
from txcalc.planning.serving.deployment import (
    MEMORY_RULE,
    MOST_GPUS,
    FewestGpus,
    LayoutCapacity,
    Plan,
    Planner,
    Unsuited,
    check,
    choices,
    gpus_of,
)
from txcalc.planning.serving.points import Request, Slo, Timer
from txcalc.planning.serving.speed import bounded

RULE = "first those that fit, then those within the limits, then the shortest end-to-end time at this load"


def sizes(node: int | None, ways: int) -> list[int]:
    """Numbers of accelerators that can be rented, ascending, that are a multiple of `ways`: parts of a node, then whole
    nodes."""
    whole = min(node or NODE, NODE)  # of a rack, as many as in one node
    parts = (n for n in (1, 2, 4) if n < whole)
    return [n for n in (*parts, *range(whole, MOST_GPUS + 1, whole)) if n % ways == 0]


def rentable(least: int, fixed: Mapping[str, int], node: int | None = None) -> list[int]:
    """Numbers of accelerators to try, ascending; multiples of the layout that is given, where none of `sizes` is."""
    ways = gpus_of(fixed)
    counts = sizes(node, ways)
    if not counts or ways > min(node or NODE, NODE):
        counts = list(range(ways, MOST_GPUS + 1, ways))
    return [n for n in counts if n >= least]


def replica_sizes(node: int | None, fixed: Mapping[str, int]) -> list[int]:
    """Numbers of accelerators of one replica, ascending: `sizes`, and the product of a given tp and pp, rentable or
    not."""
    ways = gpus_of({axis: degree for axis, degree in fixed.items() if axis != "dp"})
    return sorted({ways, *sizes(node, ways)})


def replica_gpus(layout: Layout) -> int:
    """The accelerators of one replica and of those that share its experts."""
    return layout.gpus // layout.dp * min(layout.sharing, layout.dp)


def arrange(
    planner: Planner,
    request: Request,
    context: int,
    concurrency: int,
    gpus: int | None = None,
    fixed: Mapping[str, int] | None = None,
    limits: Slo | None = None,
) -> Plan:
    """The plan for a load on `gpus` accelerators (None: the fewest), with the `fixed` degrees in its layout. At a
    rate, requests get as many sequences at once as they need on average, at least `concurrency`.

    Errors: `InputError` for an invalid number, a layout that the model does not allow, or a format that the accelerator
    does not multiply in.
    """
    fixed = fixed or {}
    check(context, concurrency, gpus, fixed)
    sizing = Sizing(planner, request, context, concurrency, limits or Slo(), fixed)
    least = planner.min_gpus(context, concurrency, fixed)
    fewest = sizing.fewest(least) if least else None
    layouts = sizing.ranked(gpus) if gpus else sizing.smallest(fewest, least) if least else None
    if layouts is None:
        layouts = choices(planner, gpus or least or gpus_of(fixed), context, concurrency, fixed)
    best = layouts[0]
    if sizing.timed and best.fits and request.rate is not None:
        steady = sizing.steady_state(best.layout)
        full = best.max_concurrency if steady.lasts else concurrency
        inside = min(ceil(steady.in_system), best.max_concurrency) if steady.timed else full
        most = max(concurrency, inside)
        if most != concurrency:
            order = {choice.layout: i for i, choice in enumerate(layouts)}
            resized = choices(planner, best.layout.gpus, context, most, fixed)
            layouts = sorted(
                (choice for choice in resized if choice.layout in order), key=lambda choice: order[choice.layout]
            )
            concurrency, least = most, planner.min_gpus(context, most, fixed)
    rule, unsuited = RULE if sizing.timed else MEMORY_RULE, None if fewest else sizing.unsuited()
    return Plan(planner, context, concurrency, layouts, least, rule, fixed, fewest, unsuited)


class Sizing:
    """The fewest accelerators for a load: layouts of ever more of them, each with its steady state."""

    def __init__(
        self, planner: Planner, request: Request, context: int, concurrency: int, limits: Slo, fixed: Mapping[str, int]
    ) -> None:
        self.planner, self.request, self.context, self.concurrency = planner, request, context, concurrency
        self.timer, self.limits, self.fixed = Timer.of(planner, request, context), limits, fixed
        self.timed = True
        self.replica_sizes = replica_sizes(planner.accelerator.node, fixed)
        self.unrentable = [n for n in range(1, 2 * NODE) if n not in self.replica_sizes]  # sizes of replicas
        self._loads: dict[Layout, Steady] = {}
        self._lightest: dict[Layout, Steady] = {}  # of a replica with the fewest users that justify it

    def steady_state(self, layout: Layout) -> Steady:
        """The latencies that the limits bound; above them, those of the requests simulated so far. Errors: `InputError`
        where it cannot be timed."""
        if layout not in self._loads:
            self._loads[layout] = bounded(
                self.timer, self.limits, layout, self.concurrency, self.request.rate, whole=False
            )
        return self._loads[layout]

    @property
    def bounded(self) -> bool:
        """Whether latency or throughput, not memory alone, decides the number."""
        return self.timed and bool(self.limits or self.request.rate)

    def fewest(self, least: int) -> FewestGpus | None:
        """The fewest that serve the load within the limits, from `least`, which hold it; None: none do."""
        try:
            rented = self._fewest_rentable(least)
        except InputError:  # a peak is not known: nothing can be timed
            self.timed = False
            rented = self._fewest_rentable(least)
        if rented is None:
            return None
        replicas, size = rented
        smaller = max((n for n in self.replica_sizes if n < size), default=0)
        counts = [n * replicas for n in range(smaller + 1, size) if n * replicas >= least]
        needed = next((n for n in counts if self._is_enough(n, replicas)), replicas * size)
        if not self.limits.needs_simulation and (other := self._on_replicas(least, needed - 1, 1, self.unrentable)):
            needed = other[0] * other[1]
        return FewestGpus(needed, replicas * size, size)

    def smallest(self, fewest: FewestGpus | None, least: int) -> list[LayoutCapacity] | None:
        """The layouts of the fewest, best first; if no number meets the limits, of the fewest that hold the load; None:
        there are none."""
        if fewest:
            number = fewest.rented
        else:
            load = replace(self.request, rate=None)
            in_memory = Sizing(self.planner, load, self.context, self.concurrency, Slo(), self.fixed)._fewest_rentable(
                least
            )
            if in_memory is None:
                return None
            number = in_memory[0] * in_memory[1]
        layouts = self.ranked(number)
        return [choice for choice in layouts or () if replica_gpus(choice.layout) in self.replica_sizes] or layouts

    def unsuited(self) -> Unsuited | None:
        """If no replica meets the limits with the fewest users that justify it: the one that comes closest."""
        if not self.limits or not self._lightest or any(map(self.limits.met_by, self._lightest.values())):
            return None

        layout = min(self._lightest, key=lambda layout: self.limits.excess(self._lightest[layout]))
        one_user = self._light_load(layout, 1)
        two_users = self._light_load(layout, 2) if self.limits.met_by(one_user) else None
        return Unsuited(layout, one_user, two_users)

    def _light_load(self, layout: Layout, users: int) -> Steady:
        """The latencies of few users who start together, with as few requests each as in a benchmark, so that this
        start counts: a replica that they overload serves few users, and many replicas are no mend."""
        if self.limits.needs_simulation:
            return bounded(self.timer, self.limits, layout, users)
        return self.timer.steady(layout, users, rounds=ROUNDS)

    def _fewest_rentable(self, least: int) -> tuple[int, int] | None:
        """The fewest replicas and their size; None: none serve the load within the limits."""
        best = self._on_replicas(least, MOST_GPUS, 2, self.replica_sizes)
        if best is None or not self.bounded:
            return best
        return self._on_replicas(least, best[0] * best[1] - 1, 1, self.replica_sizes) or best

    def _on_replicas(self, least: int, most: int, users: int, replica_sizes: Sequence[int]) -> tuple[int, int] | None:
        """The same in replicas of these sizes, on at most `most` accelerators, with at least `users` per replica if
        memory allows."""
        best: tuple[int, int] | None = None
        largest = inf
        for size in replica_sizes:
            if size > min(most, largest):
                break
            for replica in self.planner.layouts(size, {**self.fixed, "dp": 1}):
                if not self.planner.max_concurrency(replica, self.context):
                    continue
                largest = min(largest, max(2 * size, NODE, self.replica_sizes[0]))
                if count := self._replicas(replica, most // size, users):
                    best, most = (count, size), count * size - 1
        if self.planner.sharding.has_experts and replica_sizes is self.replica_sizes:
            counts = [n for n in rentable(least, self.fixed, self.planner.accelerator.node) if n <= most]
            best = self.fewest_with_shared_experts(counts, users) or best
        return best

    def _replicas(self, replica: Layout, most: int, users: int) -> int | None:
        """The fewest replicas that serve the load within the limits; None: more than `most`, or none."""
        replicas = self.fixed.get("dp")
        hold = ceil_div(self.concurrency, self.planner.max_concurrency(replica, self.context))
        if replica.ep > 1 and "ep" not in self.fixed:  # replicas of their own experts are not planned
            most = min(most, 1)
        if self.bounded and self.request.rate is None:
            most = min(most, max(hold, ceil_div(self.concurrency, users)))
        if replicas is not None:
            hold, most = max(hold, replicas), min(most, replicas)
        if hold > most:
            return None
        if users > 1 and self.limits and not self._meets_limits_at_light_load(replica, hold, users):
            return None

        if self.serves(replica.replace(dp=hold)):
            return hold
        if not self.serves(replica.replace(dp=most)):
            return None
        too_few, enough = hold, most
        while enough - too_few > 1:  # from below: a simulation that misses a limit ends early
            middle = too_few + max(1, min(too_few // 4, (enough - too_few) // 3))
            if self.serves(replica.replace(dp=middle)):
                enough = middle
            else:
                too_few = middle
        return enough

    def _meets_limits_at_light_load(self, replica: Layout, hold: int, users: int) -> bool:
        """Whether a replica meets the limits with these users or as many as fit; at a rate, with one request."""
        if not self.timed:
            return True
        if not self.timer.links_known(replica):
            return False
        if replica not in self._lightest:
            users = 1 if self.request.rate else min(users, ceil_div(self.concurrency, hold))
            self._lightest[replica] = self._light_load(replica, users)
        return self.limits.met_by(self._lightest[replica])

    def serves(self, layout: Layout) -> bool:
        """Whether the load fits and is served within the limits; without limits, a rate with known latencies: where the
        cache is full at times, a replica is near saturation."""
        if not self.planner.fits(layout, self.context, self.concurrency):
            return False
        if not self.bounded:
            return True
        if not self.timer.links_known(layout):
            return False
        steady = self.steady_state(layout)
        return self.limits.met_by(steady) if self.limits else steady.timed

    def _is_enough(self, number: int, replicas: int) -> bool:
        """Whether as many replicas serve the load on any number of accelerators, rentable or not."""
        layouts = self.planner.layouts(number, self.fixed)
        return any(self.serves(layout) for layout in layouts if layout.gpus == replica_gpus(layout) * replicas)

    def fewest_with_shared_experts(self, counts: list[int], users: int) -> tuple[int, int] | None:
        """One replica whose experts are spread over all accelerators, of the first count that is enough."""

        def enough(number: int) -> bool:
            layouts = [layout for layout in self.planner.layouts(number, self.fixed) if replica_gpus(layout) == number]
            return any(self.has_enough_users(layout, users) and self.serves(layout) for layout in layouts)

        low = -1  # known to be too few
        for high in (i for i, n in enumerate(counts) if i in (0, len(counts) - 1) or n.bit_count() == 1):
            if enough(counts[high]):
                break
            low = high
        else:
            return None
        return 1, counts[next((i for i in range(low + 1, high) if enough(counts[i])), high)]

    def has_enough_users(self, layout: Layout, users: int) -> bool:
        """Whether every replica has as many users, if memory allows."""
        if not self.bounded or self.request.rate is not None:
            return True
        per_replica = self.planner.max_concurrency(layout, self.context) // layout.dp
        return layout.dp <= ceil_div(self.concurrency, max(1, min(users, per_replica)))

    def ranked(self, number: int) -> list[LayoutCapacity] | None:
        """The layouts of a number of accelerators, best first; None: there are none."""
        try:
            layouts = choices(self.planner, number, self.context, self.concurrency, self.fixed)
        except InputError:
            return None
        try:
            return self._sort(layouts) if self.timed else layouts
        except InputError:  # a peak is not known: nothing can be timed
            self.timed = False
            return layouts

    def _sort(self, layouts: list[LayoutCapacity]) -> list[LayoutCapacity]:
        """Best first. With limits of percentiles: the first that meets them in a simulation, then others by means."""
        order = sorted(layouts, key=self._rank)
        if not self.limits.needs_simulation:
            return order
        best = next((choice for choice in order if choice.fits and self.serves(choice.layout)), order[0])
        return [best, *(choice for choice in order if choice is not best)]

    def _rank(self, choice: LayoutCapacity) -> tuple[bool, bool, float, float]:
        if not (choice.serves and self.timer.links_known(choice.layout)):
            return not choice.fits, True, inf, 0.0
        steady = bounded(self.timer, Slo(), choice.layout, self.concurrency, self.request.rate)
        return not choice.fits, not self.limits.met_by(steady), steady.e2e, -steady.rate
