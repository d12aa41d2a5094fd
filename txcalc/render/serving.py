"""The speed section of `txcalc deploy`: latencies, time by part, batches, the Pareto front, cost."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Any

from txcalc.curves import SHARES
from txcalc.ledger import KINDS
from txcalc.planning.serving.demand import Steady
from txcalc.planning.serving.durations import BoundedTime, Cost
from txcalc.planning.serving.points import OperatingPoint, Slo
from txcalc.planning.serving.rank_time import ADAPTERS, LINKS
from txcalc.planning.serving.speed import DEFINITIONS, SEATED, Serving
from txcalc.render.report import Table, TableCell, cell, column
from txcalc.units import seconds, three

if TYPE_CHECKING:
    from txcalc.planning.serving.disaggregation import Pools
    from txcalc.planning.serving.simulation import Simulated

FRONT = 12  # points shown
BATCHES = 6  # shown without detail


def headline(serving: Serving) -> list[str]:
    """The speed at the load; if that is not sustainable, of one prefill and one step alone."""
    point, steady = serving.chosen, serving.chosen.steady
    if steady.timed:
        tpot = (
            "" if steady.tpot is None else f", TPOT {seconds(steady.tpot)}, {_rate(point.served).text} tokens/s per GPU"
        )
        return [f"{_load(serving)}: TTFT {seconds(steady.ttft)}{tpot}", *_line(serving, steady)]

    def said(name: str, figure: BoundedTime) -> str:
        return f"{name} {seconds(figure.achievable)} (floor {seconds(figure.floor)}), bound by {figure.bound}"

    alone = said("prefill" if point.tpot else "a pass", point.ttft)
    return [f"unloaded: {alone}" + (f"; {said('decode step', point.tpot)}" if point.tpot else "")]


def _line(serving: Serving, steady: Steady) -> list[str]:
    """How users queue for the cache, where it holds them only at their mean length or not at all."""
    if serving.request.rate is not None or (serving.plan.best.fits and not steady.line):
        return []
    users, length = serving.chosen.sequences, f"{serving.request.mean_length:,} tokens on average"
    if not steady.line:
        return [
            f"the cache holds all users at {length}; when it fills up, the last request is preempted and recomputed"
        ]
    seats, line = f"{serving.seats:,.0f} of {users:,}", seconds(steady.line)
    memory, copies = serving.plan.planner.engine.memory, serving.chosen.layout.dp
    full = memory is not None and memory.at_once is not None and serving.seats >= memory.at_once * copies
    where = "by the engine's max_num_seqs" if full else f"by the cache, at {length}"
    return [f"{seats} users are served at once, limited {where}; the others wait {line}"]


def _load(serving: Serving) -> str:
    rate, users = serving.request.rate, serving.chosen.sequences
    if rate is not None:
        return f"at {three(rate) if rate >= 1000 else format(rate, 'g')} requests/s"
    return "1 user" if users == 1 else f"{users:,} users"


def verdict(serving: Serving) -> str | None:
    """Whether the load is sustainable and within the limits; else by how much it misses them, and the largest load that
    does not."""
    limits, pools = serving.limits, serving.apart
    steady = pools.steady if pools else serving.chosen.steady
    if not steady.lasts:
        return _overload(serving, steady)
    if not steady.timed:
        return f"sustainable, but near saturation: {SEATED}" + ("" if pools else " (--simulate gives TTFT and TPOT)")
    if not limits:
        return None
    if limits.kept(steady):
        return f"meets the limits: {_limits(limits)}{', with disaggregated prefill and decode' if pools else ''}"
    missed = [
        f"{name} {seconds(found)}, {found / limit:,.{int(found < 100 * limit)}f} × the limit of {seconds(limit)}"
        for name, found, limit in (("TTFT", steady.ttft, limits.ttft), ("TPOT", steady.tpot, limits.tpot))
        if limit is not None and found is not None and found > limit
    ]
    return f"misses a limit: {' and '.join(missed)}" + ("" if pools else f"; {_within(serving)}")


def _overload(serving: Serving, over: Steady) -> str:
    number = serving.apart.prefill.layout.gpus if serving.apart else serving.chosen.layout.gpus
    gpus = f"{number} × {serving.plan.planner.accelerator.name}"
    if over.utilisation >= 1:
        why = f"prefill alone takes {100 * over.utilisation:.0f} % of {gpus}"
    elif over.decoding == inf:
        why = f"no batch size keeps up on {gpus}"
    else:
        why = f"more than the {over.decoding:,.0f} sequences that the cache holds would have to decode at once"
    said = f"not sustainable: {why}; at most {three(over.rate)} requests/s"
    return f"{said}; {_within(serving)}" if serving.busiest or (serving.limits and not serving.apart) else said


def _limits(limits: Slo) -> str:
    return " and ".join(
        f"{name} ≤ {seconds(limit)}" for name, limit in (("TTFT", limits.ttft), ("TPOT", limits.tpot)) if limit
    )


def _within(serving: Serving) -> str:
    """The largest load within the limits, or why there is none."""
    limits, floors = serving.limits, serving.floors
    point = serving.cheapest if serving.request.rate is None else serving.busiest
    if point is not None:
        return f"largest load {'within them' if limits else 'with known latencies'}: {largest(serving, point)}"
    gpus = f"{serving.chosen.layout.gpus} × {serving.plan.planner.accelerator.name}"
    for name, limit, floor in (("TTFT", limits.ttft, floors.ttft), ("TPOT", limits.tpot, floors.tpot)):
        if limit is not None and floor is not None and limit < floor:
            return f"impossible on {gpus}: the floor of {name} is {seconds(floor)}"
    return f"no layout and batch has {_limits(limits)}"


def largest(serving: Serving, point: OperatingPoint) -> str:
    """A load with its speed and cost, in a line."""
    steady = point.steady
    tpot = "" if steady.tpot is None else f", TPOT {seconds(steady.tpot)}"
    price = serving.price
    cost = "" if price is None or not point.tpot else f", {_money(point.million_output(price)).text} per 1M out"
    load = "1 user" if point.sequences == 1 else f"{point.sequences:,} users"
    if point is serving.busiest:
        load = f"{three(point.rate)} requests/s"
    rate = f", {_rate(point.served).text} tokens/s per GPU" if point.tpot else ""
    return f"{load} on {point.layout}, TTFT {seconds(steady.ttft)}{tpot}{rate}{cost}"


def asked(serving: Serving) -> list[str]:
    """The load and definitions that several deployments share."""
    engine = serving.plan.planner.engine
    return [
        f"{_load(serving)}, prompts of {serving.request.prompt:,} and answers of {serving.request.answer:,} tokens; "
        f"weights {engine.weights.name}, cache {engine.kv}",
        *(f"{name.upper()}: {DEFINITIONS[name].partition(': ')[2]}" for name in ("ttft", "tpot")),
        "achievable figures at the load, with the best layout of each; floors are in --json",
    ]


def row(serving: Serving) -> list[TableCell]:
    """The speed columns of a table of several deployments."""
    point, steady = serving.chosen, serving.chosen.steady
    if not steady.timed:
        why = "saturated" if steady.lasts else "overloaded"
        return [TableCell(None, why), cell(None), _rate(point.served), *_costs_of(serving, point)]
    if steady.tpot is None:
        return [_time(steady.ttft), cell(None), cell(None), *_costs_of(serving, None)]
    return [_time(steady.ttft), _time(steady.tpot), _rate(point.served), *_costs_of(serving, point)]


def _costs_of(serving: Serving, point: OperatingPoint | None) -> tuple[TableCell, ...]:
    if serving.price is None:
        return ()
    return (_money(point.million_output(serving.price)) if point else cell(None),)


def tables(serving: Serving, detail: bool = True) -> list[Table]:
    """Latencies, batches, cost; in detail also the front, time by part and definitions."""
    more = [_parts(serving), _definitions(serving)] if detail else []
    if serving.chosen.tpot is None:
        return [_latencies(serving, detail), *more]
    found = [_latencies(serving, detail)]
    if serving.apart:
        found.append(_apart(serving, serving.apart))
    if serving.simulated:
        found.append(_simulated(serving, serving.simulated))
    if detail or not serving.simulated:
        found.append(_batches(serving, None if detail else BATCHES))
    if detail and len({point.layout for point in serving.points}) > 1:
        found.append(_front(serving))
    if serving.price is not None or (detail and serving.plan.planner.accelerator.power is not None):
        found.append(_budget(serving))
    return [*found, *more]


def sequences(number: int) -> str:
    return "1 sequence" if number == 1 else f"{number:,} sequences"


def _time(value: float | None) -> TableCell:
    return cell(None) if value is None else TableCell(value, seconds(value))


def _rate(value: float) -> TableCell:
    return TableCell(value, three(value))


def _money(value: float) -> TableCell:
    return TableCell(value, f"{value:,.4f}" if value < 1 else f"{value:,.2f}")


def _latencies(serving: Serving, detail: bool) -> Table:
    point, what = serving.chosen, ("TTFT", ", prompt of") if serving.chosen.tpot else ("a pass", " over")
    steady = point.steady if point.steady.timed else None
    gpus, said = point.layout.gpus, f", {serving.cached:,} of them cached" if serving.cached else ""
    rows = [_figure(what[0], f"{what[1]} {serving.prompt:,}{said}", steady and steady.ttft, point.ttft)]
    if point.tpot:
        held = f", {sequences(point.held)} of {serving.plan.context:,}"
        rows.append(_figure("TPOT", held, steady and steady.tpot, point.tpot))
        whole = column("end to end", "s", f"end to end, answer of {point.answer:,}")
        rows.append((whole, _time(steady and steady.e2e), *[None] * 3))
        user = _rate(1 / steady.tpot) if steady and steady.tpot else None
        rows.append(("tokens/s per user", user, _rate(point.user), _rate(1 / point.tpot.floor), None))
        output = point.held / point.tpot.floor / gpus
        rows.append(("tokens/s per GPU", _rate(point.served), _rate(point.output), _rate(output), None))
    prompts = f"{'prompt tokens' if point.tpot else 'positions'}/s per GPU"
    rows.append((prompts, _rate(point.rate * serving.prompt / gpus), _rate(point.input), None, None))
    rows.append(("requests/s", _rate(point.rate), None, None, None))
    share = point.steady.utilisation
    rows.append(("share of time in prefill", TableCell(share, f"{three(100 * share)} %"), None, None, None))
    if steady and serving.request.rate is not None:
        rows.append(("requests in the system, on average", _rate(steady.inside), None, None, None))
    if detail and point.tpot and point.sequences > 1:
        last = column("the last prompt", "s", f"the last of {point.sequences:,} simultaneous prompts")
        rows.append((last, None, _time(point.last(serving.prompt)), None, None))
    if detail and serving.ridge:
        for name, n in zip(("weights only", "with the cache"), serving.ridge, strict=True):
            rows.append((f"ridge-point batch, {name}", None, None, cell(n) if n else TableCell(None, "never"), None))
    return Table("Speed", ("", "at the load", "unloaded", "floor", "bound"), rows)


def _apart(serving: Serving, found: Pools) -> Table:
    """Disaggregated prefill and decode, compared with one server for both."""
    point, both = serving.chosen, serving.chosen.steady
    one, two = (state if state.timed else None for state in (found.steady, both))
    rows: list[tuple[Any, ...]] = [
        ("GPUs for prefill", cell(found.prefill.layout.gpus), cell(point.layout.gpus)),
        ("layout of prefill", cell(str(found.prefill.layout)), cell(str(point.layout))),
        ("GPUs for decode", cell(found.decode.layout.gpus), cell(None)),
        ("layout of decode", cell(str(found.decode.layout)), cell(None)),
        (column("TTFT", "s"), _time(one and one.ttft), _time(two and two.ttft)),
        (column("of which cache transfer", "s"), _time(found.transfer), cell(None)),
        (column("TPOT", "s"), _time(one and one.tpot), _time(two and two.tpot)),
        (column("end to end", "s"), _time(one and one.e2e), _time(two and two.e2e)),
        ("tokens/s per GPU", _rate(found.served), _rate(point.served)),
        ("requests/s", _rate(found.rate), _rate(point.rate)),
    ]
    shares = (TableCell(state.utilisation, f"{three(100 * state.utilisation)} %") for state in (found.steady, both))
    rows.append(("share of time in prefill", *shares))
    if serving.price is not None:
        rows.append(("cost of 1M out", *(_money(one.million_output(serving.price)) for one in (found, point))))
    return Table("Disaggregated prefill and decode", ("", "disaggregated", "together"), rows)


def _simulated(serving: Serving, found: Simulated) -> Table:
    rows: list[tuple[Any, ...]] = []
    for name, figure in (("TTFT", found.ttft), ("TPOT", found.tpot), ("end to end", found.e2e)):
        if figure:
            rows.append((column(name, "s"), *map(_time, figure)))
    run, rate = found.run, len(found.run.done) / found.run.seconds * found.copies
    rows.append(("requests/s", _rate(rate), *[None] * 3))
    if serving.limits:
        rows.append(
            (f"within {_limits(serving.limits)}", TableCell(found.good, f"{100 * found.good:.1f} %"), *[None] * 3)
        )
        rows.append(("goodput, requests/s", _rate(found.goodput), *[None] * 3))
    rows.append(("tokens/s per GPU", _rate(found.output / serving.chosen.layout.gpus), *[None] * 3))
    rows.append(("waiting for a first token, per replica", _rate(run.waiting), *[None] * 3))
    if run.preempted:
        rows.append(("preempted", cell(run.preempted), *[None] * 3))
    title = f"Simulated, {len(run.done):,} requests of one replica, seed {found.seed}"
    return Table(title, ("", "mean", "p50", "p90", "p99"), rows)


def _figure(name: str, of: str, loaded: float | None, figure: BoundedTime) -> tuple[Any, ...]:
    return column(name, "s", name + of), _time(loaded), _time(figure.achievable), _time(figure.floor), figure.bound


def _batches(serving: Serving, most: int | None) -> Table:
    rows = []
    points = serving.batches if most is None else _spaced(serving.batches, most)
    for point in points:
        assert point.tpot is not None
        times = (_time(point.steady.ttft), _time(point.steady.tpot), _time(point.tpot.achievable))
        rows.append([cell(point.sequences), *times, TableCell(*[point.tpot.bound] * 2), *_served(serving, point)])
    times = column("TTFT", "s"), column("TPOT", "s"), column("decode step", "s")
    headings = (TableCell("users", "users"), *times, "bound", *_rates(), *_costs(serving))
    return Table(f"Loads, {serving.chosen.layout}: users who send the next request at once", headings, rows)


def _served(serving: Serving, point: OperatingPoint) -> tuple[TableCell, ...]:
    user = _rate(1 / point.steady.tpot) if point.steady.tpot else cell(None)
    return user, _rate(point.served), *_costs_of(serving, point)


def _rates() -> tuple[TableCell, TableCell]:
    return TableCell("tokens/s per user", "tokens/s\nper user"), TableCell("tokens/s per GPU", "tokens/s\nper GPU")


def _costs(serving: Serving) -> tuple[TableCell, ...]:
    return () if serving.price is None else (TableCell("cost of 1M out", "cost of\n1M out"),)


def _front(serving: Serving) -> Table:
    rows = []
    for point in _spaced(serving.front, FRONT):
        times = _time(point.steady.ttft), _time(point.steady.tpot)
        rows.append([f"{point.layout}, {point.sequences:,}", *times, *_served(serving, point)])
    headings = ("layout, users", column("TTFT", "s"), column("TPOT", "s"), *_rates(), *_costs(serving))
    return Table("Pareto front of latency and throughput", headings, rows)


def _spaced(points: list[OperatingPoint], most: int) -> list[OperatingPoint]:
    """At most `most` points, the first and last included."""
    if len(points) <= most:
        return points
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def _budget(serving: Serving) -> Table:
    """Cost and maximum power of the load, here and at the cheapest point within the limits."""
    columns = {"here": serving.chosen}
    if cheapest := serving.cheapest:
        columns["cheapest"] = cheapest
    points = list(columns.values())
    rows: list[tuple[Any, ...]] = [
        ("layout", *(TableCell(*[str(point.layout)] * 2) for point in points)),
        ("users", *(point.sequences for point in points)),
    ]
    if (price := serving.price) is not None:
        rows.append(("cost per hour", *(_money(price * point.layout.gpus) for point in points)))
        rows.append(("cost per month (730 hours)", *(_money(730 * price * point.layout.gpus) for point in points)))
        rows.append(("cost of 1,000 requests", *(_money(price / 3.6 * point.seconds) for point in points)))
        rows.append(("cost of 1M prompt tokens", *(_money(p.million_input(price)) for p in points)))
        rows.append(("cost of 1M output tokens, incl. prompts", *(_money(p.million_output(price)) for p in points)))
    if (watts := serving.plan.planner.accelerator.power) is not None:
        rows.append(("max watts (TDP of all GPUs)", *(point.layout.gpus * watts for point in points)))
        rows.append(("max joules per output token", *(_rate(point.joules(watts)) for point in points)))
    title = "Budget" if serving.price is None else f"Budget, at {serving.price:g} per GPU-hour"
    within = " within the limits" if serving.limits else ""
    return Table(f"{title}; cheapest of all points{within}", ("", *columns), rows)


def _parts(serving: Serving) -> Table:
    """Achievable time of prefill and decode step by kind of part, and what bounds it."""
    prefill, decode = parts(serving)
    sums = [sum(cost.achievable for cost in found.values()) for found in (prefill, decode)]
    rows = []
    for kind in (*KINDS, ADAPTERS, LINKS):
        if kind in prefill or kind in decode:
            row: list[Any] = [kind.replace("_", " ")]
            for found in (prefill, decode)[: 2 if decode else 1]:
                cost = found.get(kind)
                row += [_time(cost.achievable), TableCell(*[cost.bound] * 2)] if cost else [None, None]
            rows.append(row)
    rows.append(["all", *(x for total in sums[: 2 if decode else 1] for x in (_time(total), None))])
    headings = ("part", column("prefill", "s"), "bound", column("decode", "s"), TableCell("decode bound", "bound"))
    return Table("Time by part (achievable)", headings[: 5 if decode else 3], rows, total=True)


def parts(serving: Serving) -> tuple[Mapping[str, Cost], Mapping[str, Cost]]:
    """A prefill and a decode step of the chosen point by kind of part, without speculation."""
    pace, plan, point = serving.pace, serving.plan, serving.chosen
    if point.tpot is None:
        return pace.prefill_parts(serving.prompt), {}
    each = -(-point.held // point.layout.dp)
    decode = pace.decode_parts(each, plan.context, busy=pace.busy(point.held))
    return pace.prefill_parts(serving.request.prompt, serving.cached), decode


def _definitions(serving: Serving) -> Table:
    rows = [(name.upper() if name in ("ttft", "tpot") else name, text) for name, text in DEFINITIONS.items()]
    found = serving.efficiency
    shares = ", ".join(f"{key.replace('_', ' ')} {100 * getattr(found, key):.0f} %" for key in SHARES)
    dtype = serving.plan.planner.engine.weights.dtype
    starts = f"{seconds(found.launch_s)} a start, {seconds(found.collective_s)} a transfer"
    rows.append(
        ("shares", f"{dtype} products {100 * found.matmul[dtype]:.0f} %, {shares}; {starts} (--json has the sources)")
    )
    draft = serving.plan.planner.draft
    if guess := serving.request.speculation:
        passes = "one over g" if draft and draft.spec["drafting"] != "in-turn" else "g"
        rows.append(
            (
                "speculation",
                f"(1 − a^(g + 1))/(1 − a) = {guess.expected:.3g} tokens per step at a = {guess.acceptance:g}, g = "
                f"{guess.tokens}; a step is one over g + 1 tokens"
                + (f" and {passes} of {draft.name}" if draft else "; drafts cost nothing"),
            )
        )
    return Table("Definitions", ("term", "meaning"), rows, left=frozenset({0, 1}))
