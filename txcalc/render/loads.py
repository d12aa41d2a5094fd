"""Panels of a deployment under load: latency against the number of GPUs, and tokens/s per user against tokens/s per
GPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from txcalc.errors import InputError
from txcalc.planning.serving.demand import Steady
from txcalc.planning.serving.sizing import arrange, rentable
from txcalc.planning.serving.speed import Serving
from txcalc.questions.pictures import Mark, Panel, PlotAxis, Series
from txcalc.units import seconds

TIMES = 16  # as many GPUs as the fewest that fit, at most


def panels(speed: Serving) -> Iterator[Panel]:
    """The panels of a plan that decodes, where there is more than one point to draw."""
    over = _over(speed)
    if len(over.series[0].xs) > 1:
        yield over
    if len(speed.front) > 1:
        yield _front(speed)


def _over(speed: Serving) -> Panel:
    """TTFT and TPOT at the load for each number of GPUs, with its best layout."""
    plan, limits = speed.plan, speed.limits
    least, node = plan.min_gpus or 1, plan.planner.accelerator.node
    found: dict[int, Steady] = {}
    for number in takewhile(lambda n: n <= TIMES * least, rentable(least, plan.fixed, node)):
        try:
            there = arrange(plan.planner, speed.request, plan.context, plan.concurrency, number, plan.fixed, limits)
        except InputError:  # this number has no layout
            continue
        best = there.best
        if not best.fits or not speed.timer.known(best.layout):
            continue
        steady = speed.timer.point(best.layout, plan.concurrency, speed.request.rate, best.max_concurrency).steady
        if steady.timed:
            found[number] = steady
    xs = list(found)
    series = [
        Series("TTFT", xs, [one.ttft for one in found.values()], 0, marked=frozenset(xs)),
        Series("TPOT", xs, [one.tpot for one in found.values()], 1, marked=frozenset(xs)),
    ]
    marks = [Mark(f"asked: {speed.chosen.gpus}", speed.chosen.gpus)] if speed.chosen.gpus in found else []
    for name, limit in (("TTFT", limits.ttft), ("TPOT", limits.tpot)):
        if limit is not None:
            marks.append(Mark(f"limit of {name}: {seconds(limit)}", y=limit))
    return Panel(
        "The load over GPUs, each number at its best layout",
        PlotAxis("GPUs", "sizes", 2),
        PlotAxis("seconds, on average", "seconds", 10),
        series,
        marks,
    )


def _front(speed: Serving) -> Panel:
    """The Pareto front of tokens/s per user and tokens/s per GPU."""
    front = [(1 / point.steady.tpot, point.served) for point in speed.front if point.steady.tpot]
    xs, ys = [x for x, _ in front], [y for _, y in front]
    x, y = PlotAxis("tokens/s per user", log=10), PlotAxis("tokens/s per GPU", log=10)
    return Panel("What a user gets against what a GPU gives", x, y, [Series("front", xs, ys, 0, marked=frozenset(xs))])
