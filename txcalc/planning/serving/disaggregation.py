"""Disaggregated serving: one pool of accelerators computes prompts, another decodes, and each prompt's cache is sent
from the first to the second. No decode step waits for a prompt, both pools store the weights, and TTFT includes the
transfer.

Both pools have one kind of accelerator; each has its own layout. The best pair meets the limits and has the shortest
end-to-end time at the load (`steady_state.disaggregated_state`).

Source   Patel et al. 2023 (Splitwise, arXiv 2311.18677); Zhong et al. 2024 (DistServe, arXiv 2401.09670)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from txcalc.errors import Fault, InputError
from txcalc.planning.layout import Group, Layout
from txcalc.planning.machine import NODE, Message, datasheet_seconds
from txcalc.planning.serving.demand import Steady, Throughput
from txcalc.planning.serving.deployment import LayoutCapacity, Planner
from txcalc.planning.serving.durations import BoundedTime
from txcalc.planning.serving.points import Request, Slo, Timer
from txcalc.planning.serving.steady_state import disaggregated_state

SPLITS = 16  # the most splits that are tried
LAYOUTS = 12  # layouts of each pool that are combined


class Pools(Throughput):
    """Two pools with their layouts.

    cache_bytes   of a prompt
    transfer      seconds to send them, all ranks at once
    prompt        an unloaded prefill, without transfer
    step          a decode step of all running sequences, at full context
    steady        of all accelerators
    answer        tokens per answer
    """

    prefill: LayoutCapacity
    decode: LayoutCapacity
    cache_bytes: int
    transfer: float
    prompt: BoundedTime
    step: BoundedTime
    steady: Steady
    answer: int

    @property
    def gpus(self) -> int:
        return self.prefill.layout.gpus + self.decode.layout.gpus


def pools(
    planner: Planner,
    request: Request,
    context: int,
    concurrency: int,
    counts: list[int],
    prefill: int | None = None,
    limits: Slo | None = None,
    fixed: Mapping[str, int] | None = None,
) -> Pools:
    """The best two pools on the first of the `counts` of accelerators with which they meet the limits, or else with
    which they fit. `prefill`: accelerators for prompts (None: the best number); `fixed`: degrees of each pool's layout.

    Errors: `InputError` for a model that does not decode, an answer of one token, an empty pool, pools that do not fit.
    """
    if not planner.model.decodes or request.answer == 1:
        raise InputError("--disaggregate", [f"{planner.model.name} decodes nothing here: there is one pool"])
    counts = [gpus for gpus in counts if gpus >= 2]
    if not counts or not 1 <= (1 if prefill is None else prefill) < counts[0]:
        expected = "fewer than all of the GPUs, which leaves some for decoding, or auto"
        raise InputError(
            "--disaggregate",
            [Fault("--disaggregate", "auto" if prefill is None else prefill, expected, "--gpu NAME:16")],
        )
    timer, limits, first = Timer.of(planner, request, context), limits or Slo(), None
    for gpus in counts:
        best = _best(timer, concurrency, gpus, prefill, limits, fixed)
        first = first or best
        if best and limits.met_by(best.steady):
            return best
    if first is None:
        within = "".join(f" with {name} = {number}" for name, number in (fixed or {}).items())
        raise InputError("--disaggregate", [f"both pools hold all weights, and no two of them fit{within}"])
    return first


def _best(
    timer: Timer, concurrency: int, gpus: int, prefill: int | None, limits: Slo, fixed: Mapping[str, int] | None
) -> Pools | None:
    """The best pools on a number of accelerators; None: none fits."""
    step = max(1, gpus // SPLITS)
    splits = [prefill] if prefill else list(range(step, gpus, step))
    candidates = [pair for split in splits for pair in _pairs(timer, concurrency, gpus - split, split, fixed)]

    def rank(pair: Pools) -> tuple[bool, float, float]:  # among overloaded pools, the highest throughput
        return not limits.met_by(pair.steady), pair.steady.e2e, -pair.steady.rate

    return min(candidates, key=rank, default=None)


def _pairs(
    timer: Timer, concurrency: int, decoders: int, fillers: int, fixed: Mapping[str, int] | None
) -> Iterator[Pools]:
    fitting = _fitting(timer, fillers, timer.request.traffic.prompts.high, 1, fixed)
    first = sorted(fitting, key=lambda choice: timer.prefill(choice.layout)[0].achievable)
    second = _fitting(timer, decoders, timer.context, concurrency, fixed)
    for filler in first[:LAYOUTS]:
        for decoder in second[:LAYOUTS]:
            yield _pair(timer, filler, decoder, concurrency)


def _fitting(
    timer: Timer, gpus: int, context: int, concurrency: int, fixed: Mapping[str, int] | None
) -> list[LayoutCapacity]:
    """Layouts that can be timed and hold `concurrency` sequences (at a rate: any number), at least one per replica;
    pipelines only if nothing else fits."""
    planner = timer.planner
    choices: list[LayoutCapacity] = []
    for layout in sorted(planner.layouts(gpus, fixed), key=lambda layout: layout.pp):
        if choices and layout.pp > choices[0].layout.pp:
            break
        most = planner.max_concurrency(layout, context)
        number = max(concurrency if timer.request.rate is None else min(concurrency, most), layout.dp)
        if timer.links_known(layout) and number <= most:
            choices.append(LayoutCapacity(layout, planner.fullest(layout, context, number), most))
    return choices


def _pair(timer: Timer, filler: LayoutCapacity, decoder: LayoutCapacity, concurrency: int) -> Pools:
    request, planner = timer.request, timer.planner
    (replica,) = planner.ranks(Layout())
    cache_bytes = replica.caches(request.prompt).algorithmic
    transfer = _transfer(planner, filler.layout, decoder.layout, request.prompt)
    clients = None if request.rate is not None else float(concurrency)
    prefill = timer.demand(filler.layout)
    decode = timer.demand(decoder.layout, concurrency) if clients else timer.demand(decoder.layout)
    copies = filler.layout.dp, decoder.layout.dp
    most = float(min(decoder.max_concurrency, timer.at_once * decoder.layout.dp))
    steady = disaggregated_state(prefill, decode, copies, transfer, clients, request.rate or 0.0, most)
    step = timer.step(decoder.layout, min(concurrency, int(most)))
    prompt, _ = timer.prefill(filler.layout)
    return Pools(
        prefill=filler, decode=decoder, cache_bytes=cache_bytes, transfer=transfer, prompt=prompt, step=step,
        steady=steady, answer=request.answer,
    )  # fmt: skip


def _transfer(planner: Planner, filler: Layout, decoder: Layout, prompt: int) -> float:
    """Seconds until every rank has sent or received its part of a prompt's cache."""
    most = max(rank.caches(prompt).algorithmic for layout in (filler, decoder) for rank in planner.ranks(layout))
    across = filler.gpus + decoder.gpus > (planner.accelerator.node or NODE)
    return datasheet_seconds(planner.accelerator, Message("send", Group(2, 2 - across), float(most)))
