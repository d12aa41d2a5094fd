"""The speed of a deployment, for `txcalc deploy`: latencies, where the time goes, batches, the front, the cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txcalc.hardware import SHARES
from txcalc.ledger import KINDS
from txcalc.planning.roofline import LINKS, Cost, Figure
from txcalc.planning.serving import DEFINITIONS, Point, Serving
from txcalc.render.report import Cell, Table, cell, column
from txcalc.units import seconds

FRONT = 12  # points shown; JSON has them all


def headline(serving: Serving) -> str:
    """Both latencies in one line."""
    ttft, tpot = serving.chosen.ttft, serving.chosen.tpot

    def said(name: str, figure: Figure) -> str:
        return f"{name} {seconds(figure.achievable)} (floor {seconds(figure.floor)}), bound by {figure.bound}"

    return f"{said('TTFT', ttft)}; {said('TPOT', tpot)}" if tpot else said("a pass:", ttft)


def limits(serving: Serving) -> str | None:
    """Whether some point is within the limits that were asked for."""
    if serving.ttft is None and serving.tpot is None:
        return None
    asked = " and ".join(
        f"{name} of {seconds(limit)}" for name, limit in (("TTFT", serving.ttft), ("TPOT", serving.tpot)) if limit
    )
    point = serving.cheapest
    if point is None:
        return f"no layout and batch is within a {asked}"
    return f"cheapest within a {asked}: {point.layout}, {_sequences(point.sequences)}"


def asked(serving: Serving) -> list[str]:
    """The question and the definitions that figures of several deployments share."""
    plan, engine = serving.plan, serving.plan.deployment.engine
    return [
        f"{_sequences(plan.concurrency)} of {plan.context:,} tokens, prompts of {serving.request.prompt:,}; "
        f"weights {engine.weights.name}, cache {engine.kv}",
        *(f"{name.upper()}: {DEFINITIONS[name].partition(': ')[2]}" for name in ("ttft", "tpot")),
        "achievable figures, at each one's best layout; --json has the floors",
    ]


def row(serving: Serving) -> list[Cell]:
    """What a table of several deployments shows of one."""
    point = serving.chosen
    if point.tpot is None:
        return [_time(point.ttft.achievable), cell(None), cell(None), *_costs_of(serving, None)]
    rate = _rate(point.output)
    return [_time(point.ttft.achievable), _time(point.tpot.achievable), rate, *_costs_of(serving, point)]


def _costs_of(serving: Serving, point: Point | None) -> tuple[Cell, ...]:
    if serving.price is None:
        return ()
    return (_money(point.million_output(serving.price)) if point else cell(None),)


def tables(serving: Serving) -> list[Table]:
    """Latencies, where the time goes, batches, the front, cost, definitions."""
    if serving.chosen.tpot is None:
        return [_latencies(serving), _parts(serving), _definitions(serving)]
    found = [_latencies(serving), _batches(serving)]
    if len({point.layout for point in serving.points}) > 1:
        found.append(_front(serving))
    if serving.price is not None or serving.plan.deployment.accelerator.power is not None:
        found.append(_budget(serving))
    return [*found, _parts(serving), _definitions(serving)]


def _sequences(number: int) -> str:
    return "1 sequence" if number == 1 else f"{number:,} sequences"


def _time(value: float) -> Cell:
    return Cell(value, seconds(value))


def _rate(value: float) -> Cell:
    return Cell(value, f"{value:,.0f}" if value >= 100 else f"{value:.3g}")


def _money(value: float) -> Cell:
    return Cell(value, f"{value:,.4f}" if value < 1 else f"{value:,.2f}")


def _latencies(serving: Serving) -> Table:
    point, what = serving.chosen, "TTFT, prompt of" if serving.chosen.tpot else "a pass over"
    said = f", {serving.cached:,} of them cached" if serving.cached else ""
    rows = [_figure(f"{what} {serving.prompt:,}{said}", point.ttft)]
    if point.tpot:
        if point.sequences > 1:
            last = column(f"the last of {point.sequences:,} prompts at once", "s")
            rows.append((last, None, _time(point.last(serving.prompt)), None))
        rows.append(_figure(f"TPOT, {_sequences(point.sequences)} of {serving.plan.context:,}", point.tpot))
        output = point.sequences / point.tpot.floor / point.layout.gpus
        rows.append(("tokens/s of a user", _rate(1 / point.tpot.floor), _rate(point.user), None))
        rows.append(("tokens/s of a GPU", _rate(output), _rate(point.output), None))
    rows.append((f"{'prompt tokens' if point.tpot else 'positions'}/s of a GPU", None, _rate(point.input), None))
    if serving.ridge:
        for name, n in zip(("weights alone", "with the cache"), serving.ridge, strict=True):
            rows.append((f"batch at the ridge, {name}", cell(n) if n else Cell(None, "never"), None, None))
    return Table("Speed", ("", "floor", "achievable", "bound"), rows)


def _figure(name: str, figure: Figure) -> tuple[Any, ...]:
    return column(name, "s"), _time(figure.floor), _time(figure.achievable), figure.bound


def _batches(serving: Serving) -> Table:
    rows = []
    for point in serving.batches:
        assert point.tpot is not None
        row = [
            cell(point.sequences),
            _time(point.tpot.floor),
            _time(point.tpot.achievable),
            Cell(*[point.tpot.bound] * 2),
        ]
        rows.append([*row, _rate(point.user), _rate(point.output), *_costs_of(serving, point)])
    headings = ("sequences", column("TPOT floor", "s"), column("TPOT", "s"), "bound", *_rates(), *_costs(serving))
    return Table(f"Batches, {serving.chosen.layout}", headings, rows, left=frozenset({0}))


def _rates() -> tuple[Cell, Cell]:
    return Cell("tokens/s a user", "tokens/s\na user"), Cell("tokens/s a GPU", "tokens/s\na GPU")


def _costs(serving: Serving) -> tuple[Cell, ...]:
    return () if serving.price is None else (Cell("cost of 1M out", "cost of\n1M out"),)


def _front(serving: Serving) -> Table:
    rows = []
    for point in _spaced(serving.front, FRONT):
        assert point.tpot is not None
        times = _time(point.ttft.achievable), _time(point.tpot.achievable)
        rows.append([f"{point.layout}, {point.sequences:,}", *times, _rate(point.output), *_costs_of(serving, point)])
    headings = ("layout, sequences", column("TTFT", "s"), column("TPOT", "s"), _rates()[1], *_costs(serving))
    return Table("Latency against throughput: points that no other beats in both", headings, rows)


def _spaced(points: list[Point], most: int) -> list[Point]:
    """At most so many, the first and the last among them."""
    if len(points) <= most:
        return points
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def _budget(serving: Serving) -> Table:
    """What a million tokens cost, and the power they take at most: here, and at the cheapest point within limits."""
    columns = {"here": serving.chosen}
    if cheapest := serving.cheapest:
        columns["cheapest"] = cheapest
    points = list(columns.values())
    rows: list[tuple[Any, ...]] = [
        ("layout", *(Cell(*[str(point.layout)] * 2) for point in points)),
        ("sequences", *(point.sequences for point in points)),
    ]
    if (price := serving.price) is not None:
        rows.append(("cost of a million prompt tokens", *(_money(point.million_input(price)) for point in points)))
        rows.append(("cost of a million tokens of answers", *(_money(point.million_output(price)) for point in points)))
    if (watts := serving.plan.deployment.accelerator.power) is not None:
        rows.append(("watts at most (TDP of all GPUs)", *(point.layout.gpus * watts for point in points)))
        rows.append(("joules at most of a token of an answer", *(_rate(point.joules(watts)) for point in points)))
    title = "Budget" if serving.price is None else f"Budget, at {serving.price:g} a GPU-hour"
    within = " within the limits" if serving.ttft or serving.tpot else ""
    return Table(f"{title}; cheapest of all points{within}", ("", *columns), rows)


def _parts(serving: Serving) -> Table:
    """The achievable time of a prefill and of a decode step by kind of part, and what it is bound by."""
    prefill, decode = parts(serving)
    sums = [sum(cost.achievable for cost in found.values()) for found in (prefill, decode)]
    rows = []
    for kind in (*KINDS, LINKS):
        if kind in prefill or kind in decode:
            row: list[Any] = [kind.replace("_", " ")]
            for found in (prefill, decode)[: 2 if decode else 1]:
                cost = found.get(kind)
                row += [_time(cost.achievable), Cell(*[cost.bound] * 2)] if cost else [None, None]
            rows.append(row)
    rows.append(["all", *(x for total in sums[: 2 if decode else 1] for x in (_time(total), None))])
    headings = ("part", column("prefill", "s"), "bound", column("decode", "s"), Cell("decode bound", "bound"))
    return Table("Where the time goes (achievable)", headings[: 5 if decode else 3], rows, total=True)


def parts(serving: Serving) -> tuple[Mapping[str, Cost], Mapping[str, Cost]]:
    """A prefill and a decode step of the chosen point by kind of part, without speculation."""
    pace, plan, point = serving.pace, serving.plan, serving.chosen
    if point.tpot is None:
        return pace.prefill_parts(serving.prompt), {}
    each = -(-point.sequences // point.layout.dp)
    decode = pace.decode_parts(each, plan.context, busy=pace.busy(point.sequences))
    return pace.prefill_parts(serving.request.prompt, serving.cached), decode


def _definitions(serving: Serving) -> Table:
    rows = [(name.upper() if name in ("ttft", "tpot") else name, text) for name, text in DEFINITIONS.items()]
    found = serving.efficiency
    shares = ", ".join(f"{key.replace('_', ' ')} {getattr(found, key):.0%}" for key in SHARES)
    dtype = serving.plan.deployment.engine.weights.dtype
    starts = f"{seconds(found.launch_s)} a start, {seconds(found.collective_s)} a transfer"
    rows.append(("shares", f"{dtype} products {found.matmul[dtype]:.0%}, {shares}; {starts} (--json has the sources)"))
    if guess := serving.request.speculation:
        rows.append(
            (
                "speculation",
                f"(1 − a^(g + 1))/(1 − a) = {guess.expected:.3g} tokens a step at a = {guess.acceptance:g}, g = "
                f"{guess.tokens}; a step is one over g + 1 tokens"
                + (f" and g of {guess.draft.name}" if guess.draft else "; drafts cost nothing"),
            )
        )
    return Table("What is meant", ("", "meaning"), rows, left=frozenset({0, 1}))


def data(serving: Serving) -> dict[str, Any]:
    """The JSON of `speed`."""
    chosen, found = serving.chosen, serving.efficiency
    prefill, decode = parts(serving)
    guess, watts = serving.request.speculation, serving.plan.deployment.accelerator.power
    return {
        "floor": _latency(chosen, 0, 2),
        "achievable": _latency(chosen, 1, 3),
        "prompt": serving.prompt,
        "prefix_cached": serving.cached,
        "ttft_last_s": chosen.last(serving.prompt) if chosen.tpot else None,
        **_point(serving, chosen),
        "ridge": serving.ridge._asdict() if serving.ridge else None,
        "speculation": guess
        and {
            "tokens": guess.tokens,
            "acceptance": guess.acceptance,
            "draft": guess.draft.name if guess.draft else None,
            "expected_tokens_per_step": guess.expected,
        },
        "parts": {
            name: [_part(kind, costs[kind]) for kind in (*KINDS, LINKS) if kind in costs]
            for name, costs in (("prefill", prefill), ("decode", decode))
        },
        "batches": [_point(serving, point) for point in serving.batches if point.tpot],
        "front": [_point(serving, point) for point in serving.front],
        "price_per_gpu_hour": serving.price,
        "limits": {"ttft_s": serving.ttft, "tpot_s": serving.tpot},
        "cheapest": _point(serving, serving.cheapest) if serving.cheapest else None,
        "watts_at_most": None if watts is None else watts * chosen.layout.gpus,
        "efficiency": {
            key: {
                "value": found.matmul[key[7:]] if key.startswith("matmul.") else getattr(found, key),
                "source": source,
            }
            for key, source in found.sources.items()
        },
        "definitions": DEFINITIONS,
    }


def _latency(point: Point, figure: int, bound: int) -> dict[str, Any]:
    tpot = point.tpot
    return {
        "ttft_s": point.ttft[figure],
        "tpot_s": tpot[figure] if tpot else None,
        "ttft_bound": point.ttft[bound],
        "tpot_bound": tpot[bound] if tpot else None,
    }


def _point(serving: Serving, point: Point) -> dict[str, Any]:
    price, watts = serving.price, serving.plan.deployment.accelerator.power
    answers = point.tpot is not None
    return {
        "layout": {**point.layout.record(), "gpus": point.layout.gpus},
        "sequences": point.sequences,
        "ttft_s": point.ttft.achievable,
        "tpot_s": point.tpot.achievable if point.tpot else None,
        "tpot_floor_s": point.tpot.floor if point.tpot else None,
        "bound": point.tpot.bound if point.tpot else point.ttft.bound,
        "tokens_per_s_user": point.user if answers else None,
        "tokens_per_s_gpu": point.output if answers else None,
        "prompt_tokens_per_s_gpu": point.input,
        "cost_per_million_input": None if price is None else point.million_input(price),
        "cost_per_million_output": None if price is None or not answers else point.million_output(price),
        "joules_per_token_at_most": None if watts is None or not answers else point.joules(watts),
    }


def _part(kind: str, cost: Cost) -> dict[str, Any]:
    compute, memory, link = cost.least
    floor = {"compute_s": compute, "memory_s": memory, "link_s": link, "bound": cost.floor_bound}
    spent = dict(zip(("compute_s", "memory_s", "link_s", "launch_s"), cost.spent, strict=True))
    return {"part": kind, "floor": floor, "achievable": {**spent, "time_s": cost.achievable, "bound": cost.bound}}
