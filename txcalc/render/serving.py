"""The speed of a deployment: latencies, loads, the Pareto front, time by part, cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txcalc.hardware.curves import SHARES
from txcalc.ledger import KINDS, kind_words
from txcalc.num import ceil_div
from txcalc.planning.serving.rank_time import ADAPTERS, LINKS
from txcalc.questions.deploy import Deploy
from txcalc.questions.deployment import (
    ApiComparison,
    Disaggregated,
    LatencyLimits,
    LimitCheck,
    MonthlyCost,
    PartTime,
    Point,
    Simulation,
    Speed,
    SteadyState,
    UnsuitedReplica,
)
from txcalc.render.report import Column, Item, Table, TableCell, cell, column, duration, tabulate
from txcalc.units import MONTH_HOURS, number_of, seconds, short, three

FRONT = 12  # points shown
LOADS = 4  # shown without detail
LIMITED = TableCell("bound", "limited by")


def capacity(answer: Deploy, point: Point, limits: LatencyLimits) -> str:
    """What the GPUs carry where no load is given."""
    steady, gpus = point.steady, f"{point.layout.gpus} × {answer.gpu.title}"
    work = answer.workload
    answers = "" if point.tpot_s is None else f" and answers of {work.answer:,}"
    rates = f"{three(steady.requests_per_s)} requests/s, {_rate(steady.output_tokens_per_s).text} tokens/s"
    gpus += f" ({point.layout}, the layout for many users)" if point.layout != answer.layout else ""
    users = f"{number_of('user', point.sequences)} in flight{' within the limits' * bool(limits)}"
    return f"capacity of {gpus}: {users}, prompts of {work.prompt:,}{answers} tokens; {rates}"


def headline(answer: Deploy, speed: Speed) -> list[str]:
    """The speed at the load; if that is not sustainable, of one prefill and one step alone."""
    steady = speed.steady
    if steady.timed:
        load, label, pools_line = _load(speed), "", []
        if (pools := speed.disaggregated) and pools.steady.timed:
            gpus = f"{pools.prefill.layout.gpus:,} of {pools.gpus:,} GPUs for prefill"
            label, pools_line = ", not disaggregated", [f"{load}, {gpus}: {_times(pools.steady)}"]
        load += "" if speed.limits else _of_saturation(speed)
        return [*pools_line, f"{load}{label}: {_times(steady)}", *_speculation(speed), *_queue(answer, speed)]
    achievable, floor = speed.achievable, speed.floor
    prefill = "a pass" if achievable.tpot_s is None else "prefill"
    times = _bounded_time(prefill, achievable.ttft_s, floor.ttft_s, achievable.ttft_bound)
    if achievable.tpot_s is not None:
        step = f"decode step of {number_of('sequence', speed.running)}"
        times += f"; {_bounded_time(step, achievable.tpot_s, floor.tpot_s, achievable.tpot_bound)}"
    return [f"without queueing: {times}"]


def _bounded_time(name: str, achievable: float, floor: float | None, bound: str | None) -> str:
    return f"{name} {seconds(achievable)} (floor {duration(floor).text}), limited by {bound}"


def _speculation(speed: Speed) -> list[str]:
    """What speculative decoding proposes, and what it gains at the load."""
    guess, tpot = speed.speculation, speed.steady.tpot_s.mean
    if guess is None or guess.step_s is None:
        return []
    by = f" by {guess.draft}" if guess.draft else ""
    text = (
        f"speculation: {guess.tokens} proposed{by}, {100 * guess.acceptance:.3g} % accepted, "
        f"{guess.expected_tokens_per_step:.3g} tokens per step of {seconds(guess.step_s)}"
    )
    if tpot is None or guess.plain_tpot_s is None:
        return [text]
    gain = guess.plain_tpot_s / tpot
    return [f"{text}; TPOT is {gain:.3g} × as fast as without it ({seconds(guess.plain_tpot_s)})"]


def _queue(answer: Deploy, speed: Speed) -> list[str]:
    """How users queue for the cache, where it holds them only at their mean length or not at all."""
    wait = speed.steady.line_s
    if speed.rate is not None or (answer.fits and not wait):
        return []
    length = f"{answer.workload.decoding_length:,} tokens on average"
    if not wait:
        return [
            f"the cache holds all users at {length}; when it fills up, the last request is preempted and recomputed"
        ]
    full = (
        "the most that the engine runs" if speed.seats_limit == "max_num_seqs" else f"limited by the cache, at {length}"
    )
    return [f"{speed.seats:,} of {speed.sequences:,} users are served at once, {full}; the others wait {seconds(wait)}"]


def _of_saturation(speed: Speed) -> str:
    """How near a rate is to the highest that the plan keeps up with."""
    most = speed.sustainable_requests_per_s
    return f" ({100 * speed.rate / most:.0f} % of the {three(most)} it can sustain)" if speed.rate and most else ""


def _load(speed: Speed) -> str:
    rate, users = speed.rate, speed.sequences
    if rate is not None:
        return f"at {three(rate) if rate >= 1000 else format(rate, 'g')} requests/s"
    return number_of("user", users) + " in flight" * (speed.capacity is None)


def verdict(answer: Deploy, speed: Speed) -> str | None:
    """Whether the load is sustainable and within the limits; else by how much it misses them, and the largest load that
    does not."""
    limits, pools = speed.limits, speed.disaggregated
    steady = pools.steady if pools else speed.steady
    if not steady.lasts:
        return _overload(answer, speed, steady)
    if not steady.timed:
        why = "the cache is full at times, so mean latencies have no closed form"
        near = f"sustainable, but near saturation{_of_saturation(speed)}"
        return f"{near}; {'' if pools else 'use --simulate for latencies: '}{why}"
    if not limits:
        return None
    if speed.meets_limits:
        return _met(speed) + (", with disaggregated prefill and decode" if pools else "")
    missed = [
        f"{check.statistic} {check.latency} {_excess(check.value_s, check.limit_s)}"
        for check in speed.checks
        if check.value_s is not None and not check.within
    ]
    return f"misses {' and '.join(missed)}" + ("" if pools else f"; {_largest_within(answer, speed)}")


def _excess(value: float, limit: float) -> str:
    """By how much a latency is above its limit."""
    ratio = value / limit
    above = f"by {100 * (ratio - 1):.2g} %" if ratio < 2 else f"by {ratio:,.{int(ratio < 100)}f} ×"
    return f"{above} ({seconds(value)} > {seconds(limit)})"


def unsuited_reason(replica: UnsuitedReplica, checks: Sequence[LimitCheck]) -> str:
    """Why no number of these GPUs is enough: the latencies of one replica with one user and with two."""
    texts = []
    for check in checks:
        name = check.latency
        times = [(latency.users, latency.ttft_s if name == "TTFT" else latency.tpot_s) for latency in replica.latencies]
        if times[-1][1] is not None and times[-1][1] > check.limit_s:
            values = (f"{duration(time).text} with {number_of('user', users)}" for users, time in times)
            start = " who start together" if times[-1][0] > 1 else ""
            texts.append(
                f"{check.statistic} {name} is {' and '.join(values)}{start}, the limit {seconds(check.limit_s)}"
            )
    number = "one GPU" if replica.gpus == 1 else f"{replica.gpus} GPUs ({replica})"
    more = "help little" if replica.latencies[-1].users > 1 else "do not help"
    return f"not suited: on {number} {'; '.join(texts)}. More replicas {more}"


def _met(speed: Speed) -> str:
    """The latencies that are within the limits, and the share of simulated requests that is."""
    run = speed.simulation
    values = [
        f"{check.statistic} {check.latency} {seconds(check.value_s)} ≤ {seconds(check.limit_s)}"
        for check in speed.checks
        if check.value_s is not None
    ]
    if run:  # 100 % are all of them
        percent = 100 if run.within_limits == 1 else min(99, round(100 * run.within_limits))
        share = f"{percent} % of requests within"
    else:
        share = "percentiles not checked (--simulate)"
    if not values:  # a limit of TPOT, where there is none
        return f"meets the limits: {_limits(speed)}"
    return f"meets the limits: {' and '.join(values)}" + ("" if speed.disaggregated else f"; {share}")


def _overload(answer: Deploy, speed: Speed, steady: SteadyState) -> str:
    number = speed.disaggregated.prefill.layout.gpus if speed.disaggregated else speed.layout.gpus
    gpus = f"{number} × {answer.gpu.name}"
    if steady.utilisation >= 1:
        why = f"prefill alone takes {100 * steady.utilisation:.0f} % of {gpus}"
    elif steady.decoding is None:
        why = f"no batch size keeps up on {gpus}"
    else:
        why = f"the load needs more sequences at once than the cache holds, {steady.decoding:,.0f} of mean length"
    text = f"not sustainable: {why}; at most {three(steady.requests_per_s)} requests/s"
    has_limit = speed.highest_rate or (speed.limits and not speed.disaggregated)
    return f"{text}; {_largest_within(answer, speed)}" if has_limit else text


def _limits(speed: Speed) -> str:
    """The limits, that of a percentile with its name."""
    names = [f"{check.statistic} {check.latency}".removeprefix("mean ") for check in speed.checks]
    return " and ".join(f"{name} ≤ {seconds(check.limit_s)}" for name, check in zip(names, speed.checks, strict=True))


def _largest_within(answer: Deploy, speed: Speed) -> str:
    """The largest load within the limits, or why there is none."""
    point = speed.cheapest if speed.rate is None else speed.highest_rate
    if point is not None:
        kind = "within them" if speed.limits else "with known latencies"
        return f"largest load {kind}: {load(point, speed.rate is not None)}"
    for check in speed.checks:
        if check.floor_s is not None and check.limit_s < check.floor_s:
            gpus = f"{speed.layout.gpus} × {answer.gpu.name}"
            return f"impossible on {gpus}: the floor of {check.latency} is {seconds(check.floor_s)}"
    return f"no layout and batch meets {_limits(speed)}"


def load(point: Point, as_rate: bool = False) -> str:
    """A load with its speed and cost, in a line; `as_rate`: its requests per second in place of its users."""
    steady, cost = point.steady, point.cost_per_million_output
    what = f"{three(steady.requests_per_s)} requests/s" if as_rate else number_of("user", point.sequences)
    price = "" if cost is None else f", {money(cost).text} per 1M out"
    return f"{what} on {point.layout}, {_times(steady)}{price}"


def _times(steady: SteadyState) -> str:
    tpot = "" if steady.tpot_s.mean is None else f", TPOT {seconds(steady.tpot_s.mean)}"
    rate = "" if steady.tokens_per_s_gpu is None else f", {_rate(steady.tokens_per_s_gpu).text} tokens/s per GPU"
    return f"TTFT {duration(steady.ttft_s.mean).text}{tpot}{rate}"


def shared_header(answers: Sequence[Deploy], speed: Speed) -> list[str]:
    """The load and definitions that several deployments share, and all of their formats."""
    work = answers[0].workload
    weights, caches = (
        ", ".join(dict.fromkeys(getattr(answer.engine, name) for answer in answers)) for name in ("weights", "kv")
    )
    within = " within the limits" if speed.limits else ""
    users = f"as many users as fit{within}" if speed.capacity else _load(speed)
    most = "within the limits" if within and speed.capacity else "as many as memory holds"
    return [
        f"{users}, prompts of {work.prompt:,} and answers of {work.answer:,} tokens; weights {weights}, cache {caches}",
        *([f"limits: {_limits(speed)}"] if speed.checks else ()),
        f"TTFT, TPOT: means at this load; max users: requests in flight at full context, {most}",
    ]


def tables(answer: Deploy, speed: Speed, detail: bool = True) -> list[Table]:
    """Latencies, loads, cost; in detail also the front, time by part and definitions."""
    last = [_steps(answer, speed), _parts(speed), _definitions(answer, speed)] if detail else []
    result = [_latencies(answer, speed, detail)]
    if speed.tpot_s is None:
        return [*result, *last]
    if speed.disaggregated:
        result.append(_disaggregated(speed, speed.disaggregated))
    if speed.simulation:
        result.append(_simulation(speed, speed.simulation))
    if detail or not speed.simulation:
        result.append(_loads(answer, speed, None if detail else LOADS))
    if detail and speed.layouts_compared > 1:
        result.append(_front(speed))
    if answer.api:
        result.append(_api_table(answer.api))
    if detail and (speed.price_per_gpu_hour is not None or speed.max_watts is not None):
        result.append(_budget(speed))
    return [*result, *last]


def _rate(value: float | None) -> TableCell:
    return cell(None) if value is None else TableCell(value, three(value))


def money(value: float | None) -> TableCell:
    if value is None:
        return cell(None)
    return TableCell(value, f"{value:,.4f}" if value < 1 else f"{value:,.2f}")


TTFT: Column[Point] = Column(column("TTFT", "s"), lambda point: duration(point.steady.ttft_s.mean))
TPOT: Column[Point] = Column(column("TPOT", "s"), lambda point: duration(point.steady.tpot_s.mean))
USER_RATE: Column[Point] = Column(
    TableCell("tokens/s per user", "tokens/s\nper user"), lambda point: _rate(point.steady.tokens_per_s_user)
)
GPU_RATE: Column[Point] = Column(
    TableCell("tokens/s per GPU", "tokens/s\nper GPU"), lambda point: _rate(point.steady.tokens_per_s_gpu)
)
HOURLY_COST: Column[Point] = Column(
    TableCell("cost per hour", "cost per\nhour"), lambda point: money(point.cost_per_hour)
)
OUTPUT_COST: Column[Point] = Column(
    TableCell("cost of 1M out", "cost of\n1M out"), lambda point: money(point.cost_per_million_output)
)


def comparison_columns(priced: bool) -> list[Column[Point]]:
    """The columns of a load in a table of several deployments; `priced`: with costs."""
    return [TTFT._replace(cell=_ttft), TPOT, GPU_RATE, *([HOURLY_COST, OUTPUT_COST] if priced else [])]


def _ttft(point: Point) -> TableCell:
    """The mean, or why it is not known."""
    if point.steady.timed:
        return duration(point.steady.ttft_s.mean)
    return TableCell(None, "saturated" if point.steady.lasts else "overloaded")


def _share(value: float) -> TableCell:
    return TableCell(value, f"{three(100 * value)} %")


def _latencies(answer: Deploy, speed: Speed, detail: bool) -> Table:
    """The means at the load, and of one request alone with its lower bounds."""
    steady, single, decodes = speed.steady, speed.single_request, speed.tpot_s is not None
    cached = f", {speed.prefix_cached:,} of them cached" if speed.prefix_cached else ""
    name, of = ("TTFT", ", prompt of") if decodes else ("a pass", " over")
    assert single is not None
    first = column(name, "s", f"{name}{of} {speed.prompt:,}{cached}")
    limit = speed.achievable.ttft_bound
    rows: list[tuple[Any, ...]] = [
        (first, duration(steady.ttft_s.mean), duration(single.ttft_s), limit, duration(single.ttft_floor_s))
    ]
    if decodes:
        tpot, whole = column("TPOT", "s"), column("end to end", "s", f"end to end, answer of {speed.answer:,}")
        times = steady.tpot_s.mean, single.tpot_s
        rows += [
            (tpot, *map(duration, times), single.tpot_bound, duration(single.tpot_floor_s)),
            (whole, duration(steady.e2e_s.mean), duration(single.e2e_s), None, None),
            _rates("tokens/s per user", steady.tokens_per_s_user, single.tokens_per_s_user, label=", decoding"),
            _rates("tokens/s per GPU", steady.tokens_per_s_gpu, label=", with prefill"),
        ]
    rows.append(_rates("requests/s", steady.requests_per_s))
    if detail or not decodes:
        rows.append(_rates(f"{'prompt tokens' if decodes else 'positions'}/s per GPU", steady.prompt_tokens_per_s_gpu))
        rows.append(("share of time in prefill", _share(steady.utilisation), None, None, None))
        if steady.timed and speed.rate is not None:
            rows.append(_rates("requests in the system, on average", steady.requests_in_system))
    headings: tuple[object, ...] = ("", "at the load", "one request", LIMITED, "floor")
    if not detail and all(cell(row[2]).text in ("", row[1].text) for row in rows):  # a load of one request
        headings, rows = (*headings[:2], *headings[3:]), [(*row[:2], *row[3:]) for row in rows]
    return Table("Speed", headings, rows)


def _rates(name: str, at_the_load: float | None, one_request: float | None = None, label: str = "") -> tuple[Any, ...]:
    return column(name, "", f"{name}{label}"), _rate(at_the_load), _rate(one_request), None, None


def _steps(answer: Deploy, speed: Speed) -> Table:
    """A prefill and a decode step, each with nothing else on the server; of speculation, the whole step."""
    floor, time, guess = speed.floor, speed.achievable, speed.speculation
    kind = "a pass" if time.tpot_s is None else "prefill"
    first = column(kind, "s", f"{kind} over {speed.prompt - speed.prefix_cached:,}")
    times = duration(time.ttft_s), time.ttft_bound, duration(floor.ttft_s)
    rows: list[tuple[Any, ...]] = [(first, *times, _rate(speed.prompt_tokens_per_s_gpu))]
    if time.tpot_s is not None and floor.tpot_s is not None:
        tokens = guess.expected_tokens_per_step if guess else 1
        of = f"decode step, {number_of('sequence', speed.running)} of {answer.workload.context:,}"
        step = duration(time.tpot_s * tokens), time.tpot_bound, duration(floor.tpot_s * tokens)
        rows.append((column("decode step", "s", of), *step, _rate(time.tokens_per_s_gpu)))
    if time.tpot_s is not None and speed.sequences > 1:
        last = column("the last prompt", "s", f"the last of {speed.sequences:,} simultaneous prompts")
        rows.append((last, duration(speed.ttft_last_s), None, None, None))
    if speed.ridge:
        for name, batch in (("weights only", speed.ridge.weights), ("with the cache", speed.ridge.with_cache)):
            text = batch if batch else TableCell(None, "never")
            rows.append((f"ridge-point batch, {name}", None, None, text, None))
    return Table("One prefill and one decode step", ("", "time", LIMITED, "floor", "tokens/s per GPU"), rows)


def _disaggregated(speed: Speed, pools: Disaggregated) -> Table:
    """Disaggregated prefill and decode, compared with one server for both."""
    disaggregated, combined = pools.steady, speed.steady
    rows: list[tuple[Any, ...]] = [
        ("GPUs for prefill", pools.prefill.layout.gpus, speed.layout.gpus),
        ("layout of prefill", str(pools.prefill.layout), str(speed.layout)),
        ("GPUs for decode", pools.decode.layout.gpus, None),
        ("layout of decode", str(pools.decode.layout), None),
        (column("TTFT", "s"), duration(disaggregated.ttft_s.mean), duration(combined.ttft_s.mean)),
        (column("of which cache transfer", "s"), duration(pools.transfer.seconds), None),
        (column("TPOT", "s"), duration(disaggregated.tpot_s.mean), duration(combined.tpot_s.mean)),
        (column("end to end", "s"), duration(disaggregated.e2e_s.mean), duration(combined.e2e_s.mean)),
        ("tokens/s per GPU", _rate(disaggregated.tokens_per_s_gpu), _rate(combined.tokens_per_s_gpu)),
        ("requests/s", _rate(disaggregated.requests_per_s), _rate(combined.requests_per_s)),
        ("share of time in prefill", _share(disaggregated.utilisation), _share(combined.utilisation)),
    ]
    if pools.cost_per_million_output is not None:
        costs = pools.cost_per_million_output, speed.cost_per_million_output
        rows.append(("cost of 1M out", *map(money, costs)))
    return Table("Disaggregated prefill and decode", ("", "disaggregated", "together"), rows)


def _simulation(speed: Speed, run: Simulation) -> Table:
    none = [None] * 3
    rows: list[tuple[Any, ...]] = [
        (column(name, "s"), *map(duration, (stats.mean, stats.p50, stats.p90, stats.p99)))
        for name, stats in (("TTFT", run.ttft_s), ("TPOT", run.tpot_s), ("end to end", run.e2e_s))
        if stats
    ]
    rows.append(("requests/s", _rate(run.requests_per_s), *none))
    if speed.limits:
        good = TableCell(run.within_limits, f"{100 * run.within_limits:.1f} %")
        limits = " and ".join(f"{check.latency} ≤ {seconds(check.limit_s)}" for check in speed.checks)
        rows.append((f"within {limits}", good, *none))
        rows.append(("goodput, requests/s", _rate(run.goodput_requests_per_s), *none))
    rows.append(("tokens/s per GPU", _rate(run.tokens_per_s_gpu), *none))
    rows.append(("waiting for a first token, per replica", _rate(run.waiting), *none))
    if run.preempted:
        rows.append(("preempted", run.preempted, *none))
    start = "" if speed.rate else f" from {number_of('user', ceil_div(speed.sequences, run.copies))} who start together"
    title = f"Simulated, {run.requests:,} requests of one replica{start}, seed {run.seed}"
    return Table(title, ("", "mean", "p50", "p90", "p99"), rows)


def _loads(answer: Deploy, speed: Speed, most: int | None) -> Table:
    """Loads of the layout; without a load of one's own, up to the capacity, and the cost of that alone."""
    points: Sequence[Point] = speed.batches if most is None else _spread_points(speed.batches, most)
    requested = [point for point in speed.batches if point.sequences == speed.sequences and point not in points]
    if requested and most is not None:
        by_users = {point.sequences: point for point in (*_spread_points(speed.batches, most - 1), *requested)}
        points = [by_users[users] for users in sorted(by_users)]
    costly = points
    if speed.capacity and most is not None:
        points, costly = (*speed.below_capacity, speed.capacity), (speed.capacity,)
    columns: list[Column[Point]] = [
        Column("users", lambda point: point.sequences),
        TTFT,
        TPOT,
        Column(LIMITED, lambda point: point.bound),
        USER_RATE,
        GPU_RATE,
    ]
    if speed.price_per_gpu_hour is not None:
        columns.append(OUTPUT_COST._replace(cell=lambda point: OUTPUT_COST.cell(point) if point in costly else None))
    if most:
        columns += [
            Column("requests/s", lambda point: _rate(point.steady.requests_per_s), optional=True),
            Column(column("end to end", "s"), lambda point: duration(point.steady.e2e_s.mean), optional=True),
        ]
    of_run = f"; {number_of('user', speed.sequences)} simulated" if speed.simulation and speed.rate is None else ""
    layout = f"{points[0].layout}{' (the layout for many users)' * (points[0].layout != answer.layout)}"
    title = f"Loads, {layout}: each user sends the next request when an answer ends{of_run}"
    return tabulate(title, points, columns)


def _front(speed: Speed) -> Table:
    load: Column[Point] = Column("layout, users", lambda point: f"{point.layout}, {point.sequences:,}")
    columns = [load, TTFT, TPOT, USER_RATE, GPU_RATE, *([] if speed.price_per_gpu_hour is None else [OUTPUT_COST])]
    return tabulate("Pareto front of latency and throughput", _spread_points(speed.front, FRONT), columns)


def _spread_points(points: Sequence[Item], most: int) -> Sequence[Item]:
    """At most `most` points, the first and last included."""
    if len(points) <= most:
        return points
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def cost(speed: Speed) -> list[str]:
    """What the load costs, or what the GPUs carry, in a line."""
    point = speed.capacity or speed
    hour, output = money(point.cost_per_hour), money(point.cost_per_million_output)
    tokens = f", {output.text} per 1M out (with prompts)" if output.text else ""
    most = "" if point.steady.lasts else "at most "
    requests = most + short(round(point.steady.requests_per_s * MONTH_HOURS * 3600))
    where = " at capacity" * bool(speed.capacity)
    return [f"cost{where}: {hour.text}/h, {point.cost_per_month:,.0f}/month ({requests} requests){tokens}"]


def _budget(speed: Speed) -> Table:
    """Cost and maximum power of the load (of as many users as fit, if none is given), and at the cheapest point within
    the limits."""
    here, cheapest = speed.capacity or speed, speed.cheapest
    columns: dict[str, Point] = {"at capacity" if speed.capacity else "here": here}
    if cheapest and (cheapest.layout, cheapest.sequences) != (here.layout, here.sequences):
        columns["cheapest"] = cheapest
    points, price = list(columns.values()), speed.price_per_gpu_hour
    rows: list[tuple[Any, ...]] = [
        ("layout", *(str(point.layout) for point in points)),
        ("users", *(point.sequences for point in points)),
    ]
    if price is not None:
        rows.append(("cost per hour", *(money(point.cost_per_hour) for point in points)))
        rows.append(("cost per month (730 hours)", *(money(point.cost_per_month) for point in points)))
        rows.append(("cost of 1,000 requests", *(money(point.cost_per_thousand_requests) for point in points)))
        rows.append(("cost of 1M prompt tokens", *(money(point.cost_per_million_input) for point in points)))
        output = (money(point.cost_per_million_output) for point in points)
        rows.append(("cost of 1M output tokens, incl. prompts", *output))
    if speed.max_watts is not None:
        rows.append(("max watts (TDP of all GPUs)", *(point.max_watts for point in points)))
        rows.append(("max joules per output token", *(_rate(point.joules_per_token_at_most) for point in points)))
    title = "Budget" if price is None else f"Budget, at {price:g} per GPU-hour"
    within = " within the limits" if speed.limits else ""
    other = f"; cheapest computed load{within}" if len(points) > 1 else ""
    return Table(f"{title}{other}", ("", *columns), rows)


def api(answer: Deploy, comparison: ApiComparison) -> str:
    """From which load serving is cheaper than the API."""
    name, whole, stated = answer.model.name, comparison.at_the_load, comparison.at_utilisation
    load_name = "capacity" if answer.speed and answer.speed.capacity else "this load"
    if least := comparison.break_even:
        text = (
            f"serving {name} is cheaper than the API from {short(least.requests)} requests a month on, "
            f"{_share(least.utilisation).text} of {load_name}"
        )
    else:
        text = f"the API is cheaper than serving {name} at {load_name} and below: {_monthly_cost(whole)}"
    if stated is None:
        return text
    cheaper = "the API" if stated.api_cost < stated.plan_cost else "serving"
    return f"{text}; at {_share(stated.utilisation).text} {cheaper} is cheaper: {_monthly_cost(stated)}"


def _monthly_cost(cost: MonthlyCost) -> str:
    return f"the API takes {money(cost.api_cost).text} a month, the plan {money(cost.plan_cost).text}"


def _api_table(comparison: ApiComparison) -> Table:
    columns = {"break-even": comparison.break_even, "at the load": comparison.at_the_load}
    months = {name: month for name, month in columns.items() if month}
    if stated := comparison.at_utilisation:
        months[f"at {_share(stated.utilisation).text}"] = stated
    costs = months.values()
    rows: list[tuple[Any, ...]] = [
        ("requests", *(TableCell(cost.requests, short(cost.requests)) for cost in costs)),
        ("tokens, prompts and answers", *(TableCell(cost.tokens, short(cost.tokens)) for cost in costs)),
        ("share of the plan's load", *(_share(cost.utilisation) for cost in costs)),
        ("cost of the plan", *(money(cost.plan_cost) for cost in costs)),
        ("cost of the API", *(money(cost.api_cost) for cost in costs)),
    ]
    prices = f"{comparison.prompt_price:g} and {comparison.answer_price:g} per 1M prompt and answer tokens"
    return Table(f"A month here and from an API, at {prices}", ("", *months), rows)


def _parts(speed: Speed) -> Table:
    """Predicted time of prefill and decode step by kind of part, and what bounds it."""
    prefill = {part.part: part for part in speed.parts.prefill}
    decode = {part.part: part for part in speed.parts.decode}
    rows: list[list[Any]] = [
        [kind_words(kind), *_part(prefill.get(kind)), *(_part(decode.get(kind)) if decode else ())]
        for kind in (*KINDS, ADAPTERS, LINKS)
        if kind in prefill or kind in decode
    ]
    sums = [duration(speed.parts.prefill_s), None, *([duration(speed.parts.decode_s), None] if decode else [])]
    rows.append(["all", *sums])
    headings = ("part", column("prefill", "s"), LIMITED, column("decode", "s"), TableCell("decode bound", LIMITED.text))
    return Table("Time by part (predicted)", headings[: 5 if decode else 3], rows, total=True)


def _part(time: PartTime | None) -> list[object]:
    return [duration(time.achievable.time_s), time.achievable.bound] if time else [None, None]


def _definitions(answer: Deploy, speed: Speed) -> Table:
    terms = {"ttft": "TTFT", "tpot": "TPOT", "alone": "prefill", "achievable": "predicted"}
    rows = [(terms.get(name, name), text) for name, text in speed.definitions.items()]
    values = {key: share.value for key, share in speed.efficiency.items()}
    shares = ", ".join(f"{key.replace('_', ' ')} {100 * values[key]:.0f} %" for key in SHARES)
    starts = f"{seconds(values['launch_s'])} a start, {seconds(values['collective_s'])} a transfer"
    dtype = answer.engine.compute_dtype
    products = f"{dtype} products {100 * values[f'matmul.{dtype}']:.0f} %"
    rows.append(("shares", f"{products}, {shares}; {starts} (--json has the sources)"))
    if sent := speed.libraries:
        rows.append(("links", ", ".join(f"{kind.replace('_', '-')}: {of.library}" for kind, of in sent.items())))
    if guess := speed.speculation:
        passes = "one over g" if guess.at_once else "g"
        cost = f" and {passes} of {guess.draft}" if guess.draft else "; drafts cost nothing"
        text = (
            f"(1 − a^(g + 1))/(1 − a) = {guess.expected_tokens_per_step:.3g} tokens per step at "
            f"a = {guess.acceptance:g}, g = {guess.tokens}; a step is one over g + 1 tokens{cost}"
        )
        rows.append(("speculation", text))
    return Table("Definitions", ("term", "meaning"), rows, left=frozenset({0, 1}))
