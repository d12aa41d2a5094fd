"""The JSON of serving."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from txcalc.ledger import KINDS
from txcalc.planning.serving.demand import Steady
from txcalc.planning.serving.durations import Cost
from txcalc.planning.serving.points import OperatingPoint
from txcalc.planning.serving.rank_time import ADAPTERS, LINKS
from txcalc.planning.serving.speed import DEFINITIONS, Serving
from txcalc.render.serving import parts

if TYPE_CHECKING:
    from txcalc.planning.serving.disaggregation import Pools
    from txcalc.planning.serving.simulation import Simulated


def data(serving: Serving) -> dict[str, Any]:
    """The JSON of `speed`."""
    chosen, found = serving.chosen, serving.efficiency
    prefill, decode = parts(serving)
    guess, watts = serving.request.speculation, serving.plan.planner.accelerator.power
    draft = serving.plan.planner.draft
    return {
        "floor": _latency(chosen, 0, 2),
        "achievable": _latency(chosen, 1, 3),
        "prompt": serving.prompt,
        "prefix_cached": serving.cached,
        "answer": chosen.answer,
        "rate": serving.request.rate,
        "seats": min(int(serving.seats), chosen.sequences),
        "ttft_last_s": chosen.last(serving.prompt) if chosen.tpot else None,
        **point_data(serving, chosen),
        "steady": _steady(chosen, serving.simulated),
        "disaggregated": _apart_data(serving, serving.apart) if serving.apart else None,
        "simulation": _simulation(serving.simulated) if serving.simulated else None,
        "ridge": serving.ridge._asdict() if serving.ridge else None,
        "speculation": guess
        and {
            "tokens": guess.tokens,
            "acceptance": guess.acceptance,
            "draft": draft.name if draft else None,
            "expected_tokens_per_step": guess.expected,
        },
        "parts": {
            name: [_part(kind, costs[kind]) for kind in (*KINDS, ADAPTERS, LINKS) if kind in costs]
            for name, costs in (("prefill", prefill), ("decode", decode))
        },
        "batches": [point_data(serving, point) for point in serving.batches if point.tpot],
        "front": [point_data(serving, point) for point in serving.front],
        "price_per_gpu_hour": serving.price,
        "limits": {"ttft_s": serving.limits.ttft, "tpot_s": serving.limits.tpot},
        "cheapest": point_data(serving, serving.cheapest) if serving.cheapest else None,
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


def _latency(point: OperatingPoint, figure: int, bound: int) -> dict[str, Any]:
    tpot = point.tpot
    return {
        "ttft_s": point.ttft[figure],
        "tpot_s": tpot[figure] if tpot else None,
        "ttft_bound": point.ttft[bound],
        "tpot_bound": tpot[bound] if tpot else None,
    }


def point_data(serving: Serving, point: OperatingPoint) -> dict[str, Any]:
    """The JSON of a point."""
    price, watts = serving.price, serving.plan.planner.accelerator.power
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
        "steady": _steady(point),
        "cost_per_million_input": None if price is None else point.million_input(price),
        "cost_per_million_output": None if price is None or not answers else point.million_output(price),
        "cost_per_request": None if price is None else price / 3600 * point.seconds,
        "cost_per_hour": None if price is None else price * point.layout.gpus,
        "joules_per_token_at_most": None if watts is None or not answers else point.joules(watts),
    }


def _apart_data(serving: Serving, found: Pools) -> dict[str, Any]:
    price = serving.price
    return {
        **{
            name: {
                "layout": {**one.layout.record(), "gpus": one.layout.gpus},
                "headroom_bytes": one.fullest.free,
                "max_concurrency": one.max_concurrency,
            }
            for name, one in (("prefill", found.prefill), ("decode", found.decode))
        },
        "gpus": found.gpus,
        "transfer": {"bytes": found.handed, "seconds": found.transfer},
        "prompt_alone_s": found.prompt.achievable,
        "step_s": found.step.achievable,
        "steady": {**_means(found.steady), "requests_per_s": found.rate, "per_gpu": found.served},
        "cost_per_million_output": None if price is None else found.million_output(price),
    }


def _simulation(found: Simulated) -> dict[str, Any]:
    run = found.run
    return {
        **{
            name: figure._asdict() if figure else None
            for name, figure in (("ttft_s", found.ttft), ("tpot_s", found.tpot), ("e2e_s", found.e2e))
        },
        "requests": len(run.done),
        "copies": found.copies,
        "seed": found.seed,
        "seconds": run.seconds,
        "output_tokens_per_s": found.output,
        "within_limits": found.good,
        "goodput_requests_per_s": found.goodput,
        "waiting": run.waiting,
        "most_waiting": run.most_waiting,
        "inside": run.inside,
        "busy": run.busy,
        "preempted": run.preempted,
    }


def _steady(point: OperatingPoint, simulated: Simulated | None = None) -> dict[str, Any]:
    """The load's means, with null for what only a simulation gives."""
    return {
        **_means(point.steady, simulated, point.tpot is not None),
        "requests_per_s": point.rate,
        "output_tokens_per_s": point.rate * point.answer if point.tpot else None,
        "per_gpu": point.served if point.tpot else None,
    }


def _means(steady: Steady, simulated: Simulated | None = None, answers: bool = True) -> dict[str, Any]:
    spreads = (simulated.ttft, simulated.tpot, simulated.e2e) if simulated else [None] * 3
    if not steady.timed:
        means: list[float | None] = [None] * 3
    else:
        means = [steady.ttft, steady.tpot, steady.e2e if answers else None]
    return {
        **{
            name: {"mean": mean, **{key: getattr(found, key, None) for key in ("p50", "p90", "p99")}}
            for name, mean, found in zip(("ttft_s", "tpot_s", "e2e_s"), means, spreads, strict=True)
        },
        "lasts": steady.lasts,
        "utilisation": steady.utilisation,
        "decoding": steady.decoding if steady.decoding < inf else None,
        "line_s": steady.line if steady.timed else None,
    }


def _part(kind: str, cost: Cost) -> dict[str, Any]:
    compute, memory, link = cost.least
    floor: dict[str, Any] = {"compute_s": compute, "memory_s": memory, "link_s": link, "bound": cost.floor_bound}
    if cost.least_ram:
        floor["ram_s"] = cost.least_ram
    spent = dict(zip(("compute_s", "memory_s", "link_s", "launch_s"), cost.spent, strict=True))
    return {"part": kind, "floor": floor, "achievable": {**spent, "time_s": cost.achievable, "bound": cost.bound}}
