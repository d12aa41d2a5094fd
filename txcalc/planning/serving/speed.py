"""The speed of a plan: TTFT, TPOT, throughput, and cost per token.

Points are layouts with a number of concurrent sequences, timed by `points`; limits and prices choose among them.
Limits, throughput and cost refer to the steady state, in which prefill and decode share the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import ceil, floor, inf, log10, sqrt
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from txcalc.errors import Fault, InputError
from txcalc.planning.layout import Layout
from txcalc.planning.machine import NODE, slow_link
from txcalc.planning.serving.demand import MOST_ROUNDS, REQUESTS, ROUNDS, Steady
from txcalc.planning.serving.deployment import MOST_SEQUENCES, LayoutCapacity, Plan, bisect_max
from txcalc.planning.serving.durations import total
from txcalc.planning.serving.layout_time import LayoutTime
from txcalc.planning.serving.points import OperatingPoint, Request, Slo, Timer
from txcalc.planning.serving.traffic import ALIKE

if TYPE_CHECKING:
    from txcalc.planning.serving.disaggregation import Pools
    from txcalc.planning.serving.simulation import Simulated

DEFINITIONS = {
    "ttft": "mean time to first token at the load: queueing, prefill and the engine's overhead",
    "tpot": "mean time per output token at the load: a decode step at the mean length, the engine's overhead and "
    "prefills of other prompts",
    "alone": "one prompt with no other load, in chunks, to its first token",
    "one request": "one user, and nobody else on the server: with the engine's overhead, without a queue",
    "step": "one decode step of all sequences at the full context, without prefill",
    "load": "users who each send the next request when the answer is complete: all start at once, and there are "
    f"{REQUESTS:,} requests per replica, but {ROUNDS} to {MOST_ROUNDS} per user; or requests that arrive at random at "
    "a rate",
    "capacity": "the most users within the limits; without limits, those that memory holds at the full context and the "
    "engine runs at once; of layouts within 5 % of the highest throughput, one without pipeline stages",
    "throughput": "answer tokens per second, the time of prefill included; prompt tokens per second of prefill alone",
    "cost": "of a million answer tokens: all GPU time, prefill included; of a million prompt tokens: the GPU time "
    "of prefill",
    "floor": "datasheet peaks, perfect overlap, free kernel launches: no server is faster",
    "achievable": "every operation at its measured efficiency, one after the other, with its kernel launch",
}
DIFFER = (
    f"simulated answers differ by up to {ALIKE} tokens from the one length asked for: those of measured servers do not "
    "end together as equal ones would (--answer 4k±400 draws lengths)"
)
MOST_LAYOUTS = 24  # compared for the Pareto front
ALIKE_THROUGHPUT = 0.95  # of the highest: predictions are off by 8 % (the median in docs/limits.md)
MOST_BATCH = 1 << 16  # sequences per replica that are evaluated


class RidgeBatch(Struct, frozen=True):
    """Sequences per replica from which a decode step is compute-bound by the datasheet; None: never.

    weights      reads of weights only, against the arithmetic of all but the attention core: for any context
    with_cache   all reads and arithmetic at the full context
    """

    weights: int | None
    with_cache: int | None


class Serving(Struct, frozen=True, eq=False, dict=True):
    """The speed of a plan that fits.

    chosen     its best layout at the requested concurrency or rate
    batches    the same layout from one sequence to as many as fit
    points     every layout that fits at every batch
    simulated  the chosen point request by request, if requested
    pools      disaggregated pools, if requested: the limits apply to them
    cheapest   the point within the limits with the fewest GPU-seconds per request; None: no point is within them
    """

    plan: Plan
    timer: Timer
    price: float | None
    limits: Slo
    chosen: OperatingPoint
    simulated: Simulated | None = None
    pools: Pools | None = None

    @property
    def request(self) -> Request:
        return self.timer.request

    @property
    def layout_time(self) -> LayoutTime:
        return self.timer.layout_time(self.chosen.layout)

    def _as_simulated(self, point: OperatingPoint) -> OperatingPoint:
        """A closed loop with the means of a simulation, where limits are of one."""
        run = simulation(self.timer, point.layout, point.sequences) if self.limits.needs_simulation else None
        return replace(point, steady=run.means(point.steady)) if run else point

    @cached_property
    def batches(self) -> list[OperatingPoint]:
        points, chosen = {point.sequences: point for point in self._time_choice(self.plan.best)}, self.chosen
        if self.simulated and self.request.rate is None:  # all are closed forms
            chosen = self.timer.point(chosen.layout, chosen.sequences, None, self.plan.best.max_concurrency)
        if self.request.rate is None:
            points[chosen.sequences] = chosen
        return [points[n] for n in sorted(points)]

    @property
    def capacity(self) -> list[OperatingPoint]:
        """The loads to show where none is given, ascending: one user, half of the maximum, and the maximum: the chosen
        load with limits, else all sequences that memory holds and the engine runs, on the layout with the highest
        throughput then, or on one without pipeline stages whose throughput differs by less than a prediction's error.
        Empty if one user misses a limit, or the model does not decode."""
        best, chosen, timer = self.plan.best, self.chosen, self.timer
        if chosen.tpot is None or self.unmet:
            return []
        users = chosen.sequences
        if not self.limits:

            def full(choice: LayoutCapacity) -> int:
                return min(choice.max_concurrency, min(timer.at_once, MOST_BATCH) * choice.layout.dp)

            serving = [choice for choice in self.timed_choices if choice.serves]
            rates = [timer.steady(choice.layout, full(choice)).rate for choice in serving]
            alike = [i for i, rate in enumerate(rates) if rate >= ALIKE_THROUGHPUT * max(rates)]
            best = serving[min(alike, key=lambda i: (serving[i].layout.pp > 1, -rates[i]))]
            users = full(best)
        numbers = sorted({1, max(1, users // 2), users})
        return [self._as_simulated(timer.point(best.layout, n, None, best.max_concurrency)) for n in numbers]

    @property
    def timed_choices(self) -> list[LayoutCapacity]:
        """Layouts that can be timed, best first."""
        return [choice for choice in self.plan.choices[:MOST_LAYOUTS] if self.timer.links_known(choice.layout)]

    @cached_property
    def points(self) -> list[OperatingPoint]:
        return [point for choice in self.timed_choices for point in self._time_choice(choice)]

    def _time_choice(self, choice: LayoutCapacity) -> list[OperatingPoint]:
        also = 0 if self.limits.needs_simulation else within(self.timer, choice, self.limits)
        return [self.timer.point(choice.layout, n) for n in sizes(choice.max_concurrency, choice.layout.dp, also)]

    @cached_property
    def ridge(self) -> RidgeBatch | None:
        """Compute and cache reads grow with the batch; weight reads do not (experts: ever more slowly)."""
        if not self.layout_time.caching:
            return None

        def first_bound(caches: bool) -> int | None:
            def reads_longer(n: int) -> bool:
                parts = self.layout_time.decode_parts(n, self.plan.context)
                cost = total(part for kind, part in parts.items() if caches or kind != "attention_core")
                return cost.least_compute < cost.least_weights + caches * cost.least_cache

            last = bisect_max(reads_longer, MOST_SEQUENCES)
            return None if last is None else last + 1

        return RidgeBatch(first_bound(False), first_bound(True))

    @property
    def cache_slots(self) -> float:
        """Sequences of mean length that the cache holds at once, over all replicas."""
        layout = self.chosen.layout
        return self.timer.cache_slots(layout) * layout.dp

    @property
    def notes(self) -> tuple[str, ...]:
        notes, run = [*notes_of_plan(self.plan, self.timer, self.chosen)], self.simulated
        if run and run.varied:
            notes.append(DIFFER)
        crowded = self.request.rate is None and self.chosen.sequences > self.chosen.layout.dp
        if crowded and self.timer.demand(self.chosen.layout).together:
            length = self.request.answer
            notes.append(
                "answers of one length end together, and then all prompts queue at once, since this engine computes "
                f"prompts first: lengths that vary shorten TTFT (--answer {length}±{max(1, length // 10)})"
            )
        number = len(run.run.done) if run else 0
        for percent in dict.fromkeys((self.limits.ttft_percentile, self.limits.tpot_percentile)):
            if run and percent is not None and ceil(percent * number / 100) == number:
                notes.append(
                    f"p{percent:g} of {number:,} simulated requests is the slowest: --requests N simulates more"
                )
        return tuple(notes)

    @property
    def prompt(self) -> int:
        """Tokens of a prompt, or positions of a pass."""
        return self.request.on(self.layout_time, self.plan.context)[0]

    @property
    def cached(self) -> int:
        """Cached tokens of a prompt."""
        return self.request.on(self.layout_time, self.plan.context)[1]

    @property
    def front(self) -> list[OperatingPoint]:
        """The Pareto front of TPOT and tokens per second and GPU, quickest first."""
        front: list[OperatingPoint] = []
        points = [point for point in self.points if point.steady.tpot]
        for point in sorted(points, key=lambda p: (p.steady.tpot, -p.tokens_per_s_gpu)):
            if not front or point.tokens_per_s_gpu > front[-1].tokens_per_s_gpu:
                front.append(point)
        return front

    @cached_property
    def cheapest(self) -> OperatingPoint | None:
        if self.limits and self.limits.needs_simulation:
            layout, users = most_users(self.timer, self.timed_choices, self.limits)
            return self._as_simulated(self.timer.point(layout, users)) if users else None
        points = self.points if self.request.rate else [*self.points, self.chosen]
        within = [point for point in points if point.tpot and self.limits.met_by(point.steady)]
        return min(within, key=lambda p: p.gpu_seconds, default=None)

    @cached_property
    def busiest(self) -> OperatingPoint | None:
        """If a rate is too high, the highest rate within the limits, on the layout with the highest throughput; None:
        the load is no rate, or there is no such rate."""
        target, best = self.request.rate, None
        if target is None or self.pools or not self.unmet:
            return None
        for choice in self.plan.choices[:MOST_LAYOUTS]:
            layout = choice.layout
            if not (choice.serves and self.timer.links_known(layout)):
                continue

            def acceptable(rate: float, layout: Layout = layout) -> bool:
                timed = self.timer.steady(layout, rate=rate).timed
                return timed and self.limits.met_by(bounded(self.timer, self.limits, layout, rate=rate, whole=False))

            if rate := most_rate(acceptable, best.rate if best else 0.0, target):
                inside = min(ceil(self.timer.steady(layout, rate=rate).in_system), choice.max_concurrency)
                best = self.timer.point(layout, inside, rate, choice.max_concurrency)
        return best

    @cached_property
    def sustainable_rate(self) -> float | None:
        """Requests per second at which the plan saturates; None: the load is no rate, or of disaggregated pools."""
        if self.request.rate is None or self.pools:
            return None
        return self.timer.steady(self.chosen.layout, rate=inf).rate

    @cached_property
    def floors(self) -> Slo:
        """The lower bounds of TTFT and TPOT of one sequence on any layout of these accelerators."""
        copies = [choice.layout for choice in self.plan.choices if self.timer.links_known(choice.layout)]
        figures = [self.timer.single_times(layout) for layout in copies]
        steps = [step.floor for _, step in figures if step]
        return Slo(min(prompt.floor for prompt, _ in figures), min(steps, default=None))

    @property
    def unmet(self) -> bool:
        """Whether the load cannot be sustained, or a limit is missed."""
        return not self.limits.met_by(self.bounded)

    @cached_property
    def bounded(self) -> Steady:
        """The latencies that the limits bound."""
        steady = self.pools.steady if self.pools else self.chosen.steady
        return (
            self.simulated.bounded(self.limits, steady) if self.limits.needs_simulation and self.simulated else steady
        )

    @property
    def without_speculation(self) -> Steady:
        """The steady state of the load with one token per step."""
        timer = Timer.of(self.plan.planner, replace(self.request, speculation=None), self.plan.context)
        return timer.steady(self.chosen.layout, self.chosen.sequences, self.request.rate)


def bounded(
    timer: Timer, limits: Slo, layout: Layout, sequences: int = 1, rate: float | None = None, whole: bool = True
) -> Steady:
    """The steady state of a closed loop of `sequences`, or an open one at a rate, with the latencies that the limits
    bound: means in closed form; with a percentile, all by a simulation, which ends when a limit is missed unless
    `whole`."""
    steady = timer.steady(layout, sequences, rate)
    if not limits.needs_simulation or not steady.lasts:
        return steady
    return simulation(timer, layout, sequences, rate, None if whole else limits).bounded(limits, steady)


def simulation(
    timer: Timer, layout: Layout, sequences: int, rate: float | None = None, limits: Slo | None = None
) -> Simulated:
    """The load request by request: a closed loop of `sequences`, or an open one at a rate; with `limits`, until one is
    missed."""
    from txcalc.planning.serving.simulation import simulated

    key = layout, sequences if rate is None else 0, rate
    if cached := timer.simulations.get(key):
        return cached  # type: ignore[no-any-return]
    run = simulated(timer, layout, sequences, rate, limits)
    if not run.run.stopped:
        timer.simulations[key] = run
    return run


def most_rate(acceptable: Callable[[float], bool], least: float, most: float) -> float:
    """The highest rate between two bounds that `acceptable` accepts, rounded down to three digits, if acceptance is
    monotonic; 0: none."""
    low, high = max(1.01 * least, most / 1e9), most
    if low > high or not acceptable(low):
        return 0.0
    while high > 1.0005 * low:
        middle = sqrt(low * high)
        low, high = (middle, high) if acceptable(middle) else (low, middle)
    digits = 2 - floor(log10(low))
    return round(floor(low * 10.0**digits) / 10.0**digits, max(0, digits))


def check_budget(price: float | None = None, ttft: float | None = None, tpot: float | None = None) -> None:
    """Errors: `InputError` for an invalid price or limit in seconds."""
    faults: list[Fault | str] = [
        Fault(name, value, f"a number above 0{unit}")
        for name, value, unit in (("price", price, ""), ("ttft", ttft, " of seconds"), ("tpot", tpot, " of seconds"))
        if value is not None and not 0 < value < 1e9
    ]
    if faults:
        raise InputError("deploy", faults)


def serve(plan: Plan, request: Request, price: float | None = None, limits: Slo | None = None) -> Serving:
    """The speed of a plan, at a price per GPU-hour, within limits.

    Errors: `InputError` for an unknown peak or link that is needed, or a plan that holds no sequence.
    """
    limits = Slo() if limits is None else limits
    if not plan.best.serves:
        raise InputError("speed", ["the plan has no room for a sequence, so it has no speed"])
    timer, best = Timer.of(plan.planner, request, plan.context), plan.best.layout
    chosen = timer.point(best, plan.concurrency, request.rate, plan.best.max_concurrency)
    if not limits.needs_simulation or not chosen.steady.lasts:
        return Serving(plan, timer, price, limits, chosen)
    run = simulation(timer, best, chosen.sequences, request.rate)
    return Serving(plan, timer, price, limits, replace(chosen, steady=run.means(chosen.steady)), run)


def within(timer: Timer, choice: LayoutCapacity, limits: Slo) -> int:
    """The most sequences per replica within the limits: the cheapest batch, since it amortises weight reads most; 0:
    none, or no limits."""
    layout = choice.layout
    if not limits or not timer.layout_time(layout).caching or not choice.max_concurrency:
        return 0
    most = min(choice.max_concurrency // layout.dp, MOST_BATCH)

    def acceptable(n: int) -> bool:
        return n <= most and limits.met_by(bounded(timer, limits, layout, n * layout.dp, whole=False))

    last = bisect_max(acceptable, most + 1)
    return most if last is None else last


def most_users(timer: Timer, choices: Sequence[LayoutCapacity], limits: Slo) -> tuple[Layout, int]:
    """The layout with the highest throughput within the limits, and its users; 0: one user misses them.

    Throughput never falls with users, so a layout whose full cache gives no more than another within the limits is not
    searched: a percentile takes a simulation of each number.
    """
    best, users, rate = choices[0].layout, 0, 0.0
    most = {choice.layout: min(choice.max_concurrency, MOST_BATCH * choice.layout.dp) for choice in choices}
    full = {layout: timer.steady(layout, max(1, users)).rate for layout, users in most.items()}
    for choice in sorted(choices, key=lambda choice: -full[choice.layout]):
        layout = choice.layout
        if full[layout] <= rate:
            break
        if number := within(timer, choice, limits) * layout.dp:
            answered = timer.steady(layout, number).rate
            if answered > rate:
                best, users, rate = layout, number, answered
    return best, users


def notes_of_plan(plan: Plan, timer: Timer, chosen: OperatingPoint) -> Iterator[str]:
    times, request = timer.layout_time(chosen.layout), timer.request
    if not times.caching:
        yield f"{plan.planner.model.name} does not decode: its only latency is that of a pass"
    elif not times.encodes and request.traffic.prompts.high == plan.context > 1:
        filled = f"prompts of {plan.context:,} leave no room in a context of {plan.context:,}"
        yield f"{filled}: an answer is its first token alone, which has no TPOT (--answer N lengthens the context)"
    accelerator = plan.planner.accelerator
    if chosen.layout.gpus > NODE and accelerator.link is not None and accelerator.node is None:
        yield f"communication is timed as if all {chosen.layout.gpus} GPUs were in one node"
    if chosen.layout.gpus > chosen.layout.dp and (slow := slow_link(accelerator)):
        ring, shared = accelerator.efficiency.transfer("all_reduce"), ""
        if chosen.layout.tp > 2 and ring.crowd:
            reached = ring.reached(1 << 26, chosen.layout.tp) * accelerator.needed("link") / 1e9  # of a long prompt
            server = f"one server of {accelerator.efficiency.cards[0]}"  # further cards have no links measured
            shared = f"; {chosen.layout.tp} of them reach {reached:.2g} GB/s each, by the share measured on {server}"
        yield f"{slow}{shared}"
    if chosen.layout.pp > 1 and accelerator.link is None:
        yield (
            "pipeline stages exchange activations through the host at 8 GB/s each way (PCIe 4.0 x4): the card's link "
            "is not known (--link)"
        )
    if len(plan.choices) > MOST_LAYOUTS:
        yield f"Pareto front: best {MOST_LAYOUTS} of {len(plan.choices)} layouts"
    if any(not timer.links_known(choice.layout) for choice in plan.choices):
        yield "layouts that need a link are not timed: that of the accelerator is not known (--link 32GB/s)"


def sizes(most: int, copies: int, also: int = 0) -> list[int]:
    """Batches to evaluate: 1, 2, 4 … sequences per replica up to what fits and 65,536, and `also`."""
    per_copy = min(most // copies, MOST_BATCH)
    doubled = [1 << i for i in range(per_copy.bit_length())]
    return [n * copies for n in sorted({*doubled, per_copy, also}) if n]
