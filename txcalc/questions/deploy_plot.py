"""The pictures of `deploy`: memory, latency, load over GPUs, Pareto front and roofline; and of several deployments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import takewhile
from typing import Any

from txcalc.errors import InputError
from txcalc.hardware import peak
from txcalc.ledger import KINDS, kind_words, walk
from txcalc.model import MAX_TOKENS
from txcalc.num import ceil_div
from txcalc.parts.part import Workload
from txcalc.planning.serving.demand import Steady
from txcalc.planning.serving.deployment import Plan
from txcalc.planning.serving.layout_time import LayoutTime
from txcalc.planning.serving.points import Slo
from txcalc.planning.serving.sizing import arrange, rentable
from txcalc.planning.serving.speed import Serving
from txcalc.questions.deployment import limit_checks
from txcalc.questions.pictures import MAX_LINES, Mark, Panel, Picture, PlotAxis, Series, between
from txcalc.units import iec, seconds, short, si_bytes

TIMES = 16  # GPUs of the plot, at most, over the fewest that fit


def picture(plan: Plan, serving: Serving | None = None) -> Picture:
    """Memory of the fullest GPU over the context, stacked, with its capacity; for a timed plan also latency over batch
    and number of GPUs, the Pareto front, and a roofline with the operations."""
    panels = [_memory(plan)]
    if serving and serving.chosen.tpot:
        panels.append(_latency(serving))
        panels += [panel for panel in (*_load_by_gpus(serving), _front(serving)) if len(panel.series[0].xs) > 1]
    if serving:
        panels.append(_roofline(serving))
    planner, engine = plan.planner, plan.planner.engine
    sequences = "1 sequence" if plan.concurrency == 1 else f"{plan.concurrency:,} sequences"
    convention = (
        f"{sequences} of {plan.context:,} tokens; weights {engine.weights.name}, cache {engine.kv} in pages of "
        f"{engine.block} tokens; reserve {engine.reserve}"
    )
    best = plan.best.layout
    title = f"{planner.model.name} on {best.gpus} × {planner.accelerator.title}, {best}"
    return Picture(title, convention, panels)


def _memory(plan: Plan) -> Panel:
    planner, best, context = plan.planner, plan.best, plan.context
    memory = planner.accelerator.visible
    longest = plan.max_context
    high = min(MAX_TOKENS, 2 * max(context, longest or context))
    xs = between(min(1 << 10, context), high, [context, *([longest] if longest else [])])
    gpus = [planner.fullest(best.layout, n, plan.concurrency) for n in xs]
    series = [
        Series("weights", xs, [gpu.weights for gpu in gpus], 0),
        Series("reserve and engine", xs, [memory - gpu.available + gpu.overhead for gpu in gpus], 3),
        Series("activations", xs, [gpu.peak for gpu in gpus], 2),
        Series("cache", xs, [gpu.cache for gpu in gpus], 1),
    ]
    marks = [Mark(f"usable memory: {iec(memory)}", y=memory), Mark(f"context: {context:,}", context)]
    if longest:
        marks.append(Mark(f"longest that fits: {longest:,}", longest))
    x, y = PlotAxis("context of every sequence (tokens)", "tokens", 2), PlotAxis("memory", "bytes")
    return Panel("Memory of the fullest GPU", x, y, series, marks, "stack")


def _latency(serving: Serving) -> Panel:
    points = [point for point in serving.batches if point.tpot]
    xs = [point.sequences for point in points]
    figures = [point.tpot for point in points if point.tpot]
    series = [
        Series("achievable", xs, [figure.achievable for figure in figures], 0, marked=frozenset(xs)),
        Series("lower bound", xs, [figure.floor for figure in figures], 0, True, frozenset(xs)),
    ]
    marks = [Mark(f"this plan: {serving.chosen.sequences:,}", serving.chosen.sequences)]
    batches = (serving.ridge.weights, serving.ridge.with_cache) if serving.ridge else ()
    for what, batch in zip(("weights", "weights and cache"), batches, strict=False):
        if batch and (ridge := batch * serving.chosen.layout.dp) <= max(xs):
            marks.append(Mark(f"compute time = time to read {what}: {ridge:,}", ridge))
    if serving.limits.tpot is not None:
        marks.append(Mark(f"limit: {seconds(serving.limits.tpot)}", y=serving.limits.tpot))
    x, y = PlotAxis("running sequences", "sizes", 2), PlotAxis("time per output token", "seconds", 10)
    return Panel(f"Latency of a decode step at {serving.plan.context:,} tokens", x, y, series, marks)


def _roofline(serving: Serving) -> Panel:
    """The roofline: the accelerator's ceiling and the estimated rate of each kind of operation against its arithmetic
    intensity (FLOPs per byte of minimum traffic), for a decode step at the context and a prefill chunk."""
    plan, times = serving.plan, serving.layout_time
    accelerator, engine = plan.planner.accelerator, plan.planner.engine
    steps: list[tuple[str, Workload]] = []
    if times.caching:
        sequences = ceil_div(plan.concurrency, times.layout.dp)
        work = times.decode(ceil_div(sequences, min(times.layout.pp, sequences)), plan.context)
        steps.append((f"decode, batch {work.batch:,}", work))
    if not times.encodes:
        tokens = min(serving.prompt, engine.chunk) if times.caching else serving.prompt
        work = times.model.workload(1, tokens, logits="last")
        steps.append((f"prefill of {tokens:,}" if times.caching else f"a pass over {tokens:,}", work))
    placed = [(what, kind, *point) for what, work in steps for kind, point in _roofline_points(times, work).items()]
    kinds = sorted({kind for _, kind, *_ in placed}, key=KINDS.index)
    series = [
        Series(f"{kind_words(kind)}, {what}", [x], [y], kinds.index(kind), what != steps[0][0], frozenset([x]))
        for what, kind, x, y in placed
    ]
    peaks = {dtype: peak(accelerator, dtype) for dtype in (engine.weights.dtype, times.ranks[0].wide)}
    ridges = {dtype: Fraction(most, accelerator.bandwidth) for dtype, most in peaks.items()}
    low = min([*(x for _, _, x, _ in placed), *ridges.values()]) / 2
    high = max([*(x for _, _, x, _ in placed), *ridges.values()]) * 2
    for i, (dtype, most) in enumerate(peaks.items()):
        xs = [low, ridges[dtype], high]
        ys = [accelerator.bandwidth * Fraction(x) if x < ridges[dtype] else most for x in xs]
        series.append(Series(f"roof: {short(most)}FLOP/s in {dtype}", xs, ys, -1 - i))
    x, y = PlotAxis("FLOPs per byte of weights and cache", log=10), PlotAxis("FLOP/s per GPU, predicted", log=10)
    return Panel(f"Roofline: memory bandwidth {si_bytes(accelerator.bandwidth)}/s", x, y, series)


def _roofline_points(layout_time: LayoutTime, work: Workload) -> dict[str, tuple[Fraction, Fraction]]:
    """Arithmetic intensity and FLOP/s of every kind of matrix product, over all stages."""
    flops: dict[str, int] = {}
    traffic: dict[str, float] = {}
    times: dict[str, float] = {}
    for rank in layout_time.ranks:
        copies = rank.stage.copies
        for kind, number in walk(rank.stage.root, work).by_kind("flops_masked").items():
            flops[kind] = flops.get(kind, 0) + number * copies
        for kind, cost in rank.parts(work).items():
            read = (cost.least_weights + cost.least_cache) * rank.accelerator.bandwidth
            traffic[kind] = traffic.get(kind, 0.0) + read * copies
            times[kind] = times.get(kind, 0.0) + cost.achievable * copies
    return {
        kind: (Fraction(number) / Fraction(traffic[kind]), Fraction(number) / Fraction(times[kind]))
        for kind, number in flops.items()
        if number and traffic.get(kind) and times.get(kind)
    }


def _load_by_gpus(serving: Serving) -> Iterator[Panel]:
    """TTFT and TPOT at the load for each number of GPUs, with its best layout; a panel each."""
    plan, limits = serving.plan, serving.limits
    of_means = Slo() if limits.needs_simulation else limits  # each number would be simulated
    least, node = plan.min_gpus or 1, plan.planner.accelerator.node
    states: dict[int, Steady] = {}
    counts = sorted({serving.chosen.gpus, *rentable(least, plan.fixed, node)})
    for number in takewhile(lambda n: n <= max(TIMES * least, serving.chosen.gpus), counts):
        try:
            best = arrange(
                plan.planner, serving.request, plan.context, plan.concurrency, number, plan.fixed, of_means
            ).best
        except InputError:  # this number has no layout
            continue
        if not best.fits or not serving.timer.links_known(best.layout):
            continue
        steady = serving.timer.point(best.layout, plan.concurrency, serving.request.rate, best.max_concurrency).steady
        if steady.timed:
            states[number] = steady
    xs = list(states)
    plans = [Mark(f"this plan: {serving.chosen.gpus}", serving.chosen.gpus)] if serving.chosen.gpus in states else []
    for name, ys in (("TTFT", [s.ttft for s in states.values()]), ("TPOT", [s.tpot for s in states.values()])):
        marks = [
            Mark(f"limit, {check.statistic}: {seconds(check.limit_s)}", y=check.limit_s)
            for check in limit_checks(serving)
            if check.latency == name
        ]
        x, y = PlotAxis("GPUs, each number in its best layout", "sizes", 2), PlotAxis(f"mean {name}", "seconds", 10)
        series = [Series(name, xs, ys, marked=frozenset(xs))]
        yield Panel(f"{name} at the load against the number of GPUs", x, y, series, [*plans, *marks])


def _front(serving: Serving) -> Panel:
    """The Pareto front of tokens/s per user and tokens/s per GPU."""
    front = [(1 / point.steady.tpot, point.tokens_per_s_gpu) for point in serving.front if point.steady.tpot]
    xs, ys = [x for x, _ in front], [y for _, y in front]
    return Panel(FRONT, PER_USER, PER_GPU, [Series("front", xs, ys, 0, marked=frozenset(xs))])


def comparison_picture(deployments: Sequence[Any]) -> Picture:
    """Several models or kinds of accelerator: GPUs and cost as bars, and the Pareto fronts on common axes."""
    fitting = [plan for plan in deployments if getattr(plan, "fits", False)]
    if not fitting or len(fitting) > MAX_LINES:
        raise InputError("--plot", [f"{len(fitting)} deployments fit, expected 1 to {MAX_LINES} of them"])
    several = len({plan.model.name for plan in fitting}) > 1
    names = [f"{plan.model.name} on {plan.gpu.title}" if several else plan.gpu.title for plan in fitting]
    names = [f"{plan.layout.gpus} × {name}" for plan, name in zip(fitting, names, strict=True)]
    points = [plan.speed and (plan.speed.capacity or plan.speed) for plan in fitting]
    panels = []
    for title, label, ys in (
        ("Cost per hour", "cost per hour", [point and point.cost_per_hour for point in points]),
        (
            "Cost of output tokens",
            "cost per million output tokens",
            [point and point.cost_per_million_output for point in points],
        ),
        ("Throughput", "tokens/s per GPU", [point and point.steady.tokens_per_s_gpu for point in points]),
    ):
        if any(ys):
            panels.append(Panel(title, PlotAxis(""), PlotAxis(label), [Series(label, names, ys)], kind="bars"))
    series: list[Series] = []
    for i, (plan, name) in enumerate(zip(fitting, names, strict=True)):
        front = [at.steady for at in (plan.speed.front if plan.speed else ()) if at.steady.tpot_s.mean]
        xs, ys = [1 / at.tpot_s.mean for at in front], [at.tokens_per_s_gpu for at in front]
        if len(xs) > 1:
            series.append(Series(name, xs, ys, i, marked=frozenset(xs)))
    if series:
        panels.append(Panel(FRONT, PER_USER, PER_GPU, series))
    if not panels:
        raise InputError("--plot", ["no deployment has a speed to draw"])
    return Picture("Deployments side by side", "", panels)


FRONT = "Pareto front: tokens/s per user and per GPU"
PER_USER, PER_GPU = PlotAxis("tokens/s per user", log=10), PlotAxis("tokens/s per GPU", log=10)
