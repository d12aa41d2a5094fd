"""Plans by memory alone, without a load: what the tests of memory and layouts ask for."""

from __future__ import annotations

from collections.abc import Mapping

from txcalc.planning.serving.deployment import Plan, Planner, check, choices, gpus_of


def plan(
    planner: Planner,
    context: int,
    concurrency: int = 1,
    gpus: int | None = None,
    fixed: Mapping[str, int] | None = None,
) -> Plan:
    """What fits on `gpus` accelerators (None: the fewest that do), with the `fixed` degrees of its layout."""
    fixed = fixed or {}
    check(context, concurrency, gpus, fixed)
    least = planner.min_gpus(context, concurrency, fixed)
    capacities = choices(planner, gpus or least or gpus_of(fixed), context, concurrency, fixed)
    return Plan(planner, context, concurrency, capacities, least)
