"""The memory of a deployment by accelerator, and the largest batch and context that fit.

Weights and caches are exact bytes from a rank's tree; activations are modelled from its operations; the engine's own
memory is a named assumption. Memory never falls as sequences or contexts grow, so maxima are found by bisection on
integers, and checked: the result fits, and one more does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from txcalc.errors import Fault, InputError
from txcalc.hardware import Accelerator
from txcalc.model import MAX_TOKENS, Model
from txcalc.num import ceil_div
from txcalc.planning.formats.quantised import cache_published, native
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.planning.serving.demand import Steady
from txcalc.planning.serving.engine import EngineConfig, multiplies, out_of_range
from txcalc.planning.serving.offload import Offload, OffloadRequest
from txcalc.planning.serving.rank_memory import RankBytes, towers_bytes
from txcalc.units import iec

MOST_GPUS = 1024
MOST_SEQUENCES = 10**9


class Gpu(NamedTuple):
    """The memory of each accelerator of a stage, in bytes; `available`: visible memory less the reserve."""

    rank: RankBytes
    available: int
    weights: int
    cache: int
    activations: dict[str, int]

    @property
    def overhead(self) -> int:
        """Bytes that the engine takes besides the reserve."""
        return sum(self.rank.overheads.values())

    @property
    def peak(self) -> int:
        """Bytes of activations at their peak."""
        return max(self.activations.values())

    @property
    def free(self) -> int:
        """Free bytes; negative: bytes that are missing."""
        return self.available - self.overhead - self.weights - self.cache - self.peak

    @property
    def pool(self) -> int:
        """Bytes available for the cache; negative: bytes that are missing even without a cache."""
        return self.free + self.cache

    def cache_tokens(self, context: int) -> int | None:
        """Tokens that the pool holds, in sequences of a context; None: a token takes no memory."""
        pages = self.rank.pages_bytes(context)
        return max(0, self.pool) * context // pages if pages else None

    @property
    def limit(self) -> str:
        """What does not fit, or would be the first not to."""
        room = self.available - self.overhead - self.weights
        return "weights" if room < 0 else "activations" if room < self.peak or not self.rank.gpu_caches else "cache"


class Planner:
    """A model, an engine and a kind of accelerator: what fits, with maxima and minima.

    draft   a model that proposes tokens, on the last stage
    """

    def __init__(
        self, model: Model, accelerator: Accelerator, engine: EngineConfig, draft: Model | None = None
    ) -> None:
        self.model, self.accelerator, self.engine, self.draft = model, accelerator, engine, draft
        self.sharding = Sharding(model, True, engine.offload)
        self._draft = Sharding(draft, serving=True) if draft else None
        self._drafts: dict[Layout, RankBytes] = {}
        self.available = engine.reserve.available(accelerator)
        self.timers: dict[tuple[Any, int], Any] = {}  # of `points.Timer.of`
        self._ranks: dict[Layout, list[RankBytes]] = {}
        self._refusals: dict[tuple[int, ...], InputError | None] = {}

    def ranks(self, layout: Layout) -> Iterator[RankBytes]:
        """One rank of every distinct stage, built on first use."""
        ranks = self._ranks.setdefault(layout.replica, [])
        for i, stage in enumerate(self.sharding.stages(layout)):
            if i == len(ranks):
                last = stage.first + stage.copies == layout.pp
                ranks.append(RankBytes(self.model, stage, self.engine, layout, self._draft_memory(layout, last)))
            yield ranks[i]

    def draft_layout(self, layout: Layout) -> tuple[Sharding, Layout]:
        """The draft's layout: the model's own prediction layer is split like its other layers; a draft model over the
        tp ranks if possible, else it is on one GPU."""
        assert self.draft is not None and self._draft is not None
        split = layout.uncut if self.draft is self.model.predictor else Layout(tp=layout.tp)
        return self._draft, Layout() if self._draft.faults(split) else split

    def _draft_memory(self, layout: Layout, last: bool) -> RankBytes | None:
        if self.draft is None or not last:
            return None
        sharding, split = self.draft_layout(layout)
        if split not in self._drafts:
            (stage,) = sharding.stages(split)
            self._drafts[split] = RankBytes(self.draft, stage, self.engine.of(self.draft), split)
        return self._drafts[split]

    def layouts(self, gpus: int, fixed: Mapping[str, int] | None = None) -> Iterator[Layout]:
        """The layouts that the model and the engine allow and whose tensors the weights' format can store."""
        degrees, profile = fixed or {}, self.engine.memory.profile if self.engine.memory else None
        if profile and profile.rules.stages:
            if split := [axis for axis in ("tp", "ep") if degrees.get(axis, 1) > 1]:
                expected = f"1: {profile.rules.title} splits a model over GPUs by layers"
                fix = f"--pp N{', or another --engine' if profile.default else ''}"
                raise InputError("layout", [Fault(f"--{axis}", degrees[axis], expected, fix) for axis in split])
            degrees = {**degrees, "tp": 1, "ep": 1}
        whole = profile is not None and profile.rules.attention_dp and "tp" not in degrees
        layouts = (layout for layout in self.sharding.layouts(gpus, degrees) if not self.refusal(layout))
        return (layout for layout in layouts if not whole or layout.tp == 1 or layout.sharing == 1)

    def refusal(self, layout: Layout) -> InputError | None:
        """The reason why the weights' format cannot store a rank's tensors, or the engine cannot load them. Pipeline
        stages do not split tensors."""
        memory = self.engine.memory
        if not (self.engine.weights.whole or (memory and memory.profile.rules.divides)):
            return None
        key = layout.tp, layout.ep, layout.expert_ways
        if key not in self._refusals:
            self._refusals[key] = None
            try:
                next(self.ranks(layout.uncut))
            except InputError as error:
                self._refusals[key] = error
        return self._refusals[key]

    def gpus(self, layout: Layout, context: int, concurrency: int) -> list[Gpu]:
        """An accelerator of every distinct stage, with its share of the sequences at full context."""
        sequences = ceil_div(concurrency, layout.dp)
        return [
            Gpu(
                rank,
                self.available,
                rank.weights_bytes,
                rank.cache_bytes(context, sequences),
                rank.activations(context, sequences),
            )
            for rank in self.ranks(layout)
        ]

    def fullest(self, layout: Layout, context: int, concurrency: int) -> Gpu:
        """The accelerator with the least free memory."""
        return min(self.gpus(layout, context, concurrency), key=lambda gpu: gpu.free)

    def ram_free(self, layout: Layout, context: int, concurrency: int) -> int | None:
        """Free bytes of RAM; negative: missing bytes; None: no RAM was given."""
        offload = self.engine.offload
        if offload is None or offload.host is None:
            return None
        ranks = self.ranks(layout)
        return offload.host.memory - sum(rank.ram(context, concurrency) * rank.stage.copies for rank in ranks)

    def fits(self, layout: Layout, context: int, concurrency: int) -> bool:
        """Whether `concurrency` sequences at a full context fit on every accelerator.

        A pipeline's stages together hold at least as much as a single stage: if that is too much, no stage is
        evaluated.
        """
        sequences = ceil_div(concurrency, layout.dp)
        whole = next(self.ranks(layout.uncut))
        if whole.weights_bytes + whole.cache_bytes(context, sequences) > layout.pp * self.available:
            return False
        if (free := self.ram_free(layout, context, concurrency)) is not None and free < 0:
            return False
        return all(rank.fits(self.available, context, sequences) for rank in self.ranks(layout))

    def max_concurrency(self, layout: Layout, context: int) -> int:
        """The most sequences at a context; 0: not one."""
        most = bisect_max(lambda n: self.fits(layout, context, n * layout.dp), MOST_SEQUENCES)
        return (MOST_SEQUENCES if most is None else most) * layout.dp

    def max_context(self, layout: Layout, concurrency: int, near: int = 1) -> int | None:
        """The longest context of `concurrency` sequences; `near`: a first guess. 0: none fits; None: no limit."""
        return bisect_max(lambda context: self.fits(layout, context, concurrency), MAX_TOKENS, near)

    def min_gpus(self, context: int, concurrency: int, fixed: Mapping[str, int] | None = None) -> int | None:
        """The fewest accelerators on which some layout fits; None: not on `MOST_GPUS`.

        Together they hold at least all weights and every sequence's pages: a lower bound, from which every number is
        tried. Layouts with a replica that has no sequence are left out, except with experts: fewer accelerators do the
        same.
        """
        (whole,) = self.ranks(Layout())
        needed = whole.weights_bytes + whole.cache_bytes(context, concurrency)
        if self.available <= 0:
            return None
        spare = self.sharding.has_experts or "dp" in (fixed or ())
        for n in range(max(1, ceil_div(needed, self.available)), MOST_GPUS + 1):
            layouts = (layout for layout in self.layouts(n, fixed) if spare or layout.dp <= concurrency)
            if any(self.fits(layout, context, concurrency) for layout in layouts):
                return n
        return None


def with_offload(
    request: OffloadRequest,
    model: Model,
    accelerator: Accelerator,
    engine: EngineConfig,
    gpus: int,
    context: int,
    concurrency: int,
) -> EngineConfig:
    """An engine with the requested part of the model in RAM. Errors: `InputError` for unified memory."""
    if accelerator.unified:
        raise InputError("--ram", [f"{accelerator.title} shares its memory with the host: nothing can be moved to RAM"])
    layout = Layout(pp=gpus)

    def fits(offload: Offload) -> bool:
        planner = Planner(model, accelerator, replace(engine, offload=offload))
        return not planner.sharding.faults(layout) and planner.fullest(layout, context, concurrency).free >= 0

    return replace(engine, offload=request.of(model, fits))


def bisect_max(fits: Callable[[int], bool], most: int, near: int = 1) -> int | None:
    """The largest n ≥ 1 that fits, if fitting is monotonic; 0: none; None: `most` fits. The search begins above
    `near`."""
    low = next((n for n in sorted({near, 1}, reverse=True) if fits(n)), 0)
    if not low:
        return 0
    if fits(most):
        return None
    high = 2 * low
    while fits(min(high, most)):
        low, high = high, 2 * high
    high = min(high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


class LayoutCapacity(NamedTuple):
    """A layout with its capacity."""

    layout: Layout
    fullest: Gpu
    max_concurrency: int
    ram: int | None = None  # free bytes of RAM

    @property
    def fits(self) -> bool:
        return self.fullest.free >= 0 and (self.ram is None or self.ram >= 0)

    @property
    def serves(self) -> bool:
        """Whether every replica holds at least one sequence: sequences beyond capacity wait."""
        return self.max_concurrency > 0

    @property
    def limit(self) -> str:
        """What does not fit, or would be the first not to."""
        return "RAM" if self.ram is not None and self.ram < 0 <= self.fullest.free else self.fullest.limit


# A pipeline only if nothing else fits, since its stages add to every token's time.
MEMORY_RULE = (
    "first those that fit; tp over links only; fewest pipeline stages; most sequences at this context; largest tp; "
    "most free memory"
)


class FewestGpus(Struct, frozen=True):
    """The fewest accelerators that serve a load within its limits.

    needed   in replicas of any size
    rented   in replicas that can be rented, of `replica` accelerators each
    """

    needed: int
    rented: int
    replica: int


class Unsuited(NamedTuple):
    """The replica that comes closest to the limits, and misses one even with two users.

    one_user    the latencies that the limits bound, with one user
    two_users   the same with two users; None: one user misses a limit
    """

    layout: Layout
    one_user: Steady
    two_users: Steady | None


class Plan(Struct, frozen=True, eq=False, dict=True):
    """The layouts of the requested number of accelerators (or of the fewest that suffice), best first; all have the
    `fixed` degrees.

    min_gpus   the fewest whose memory holds the load
    fewest     the fewest that serve it within the limits; None: no number does
    unsuited   why no number does
    """

    planner: Planner
    context: int
    concurrency: int
    choices: list[LayoutCapacity]
    min_gpus: int | None
    rule: str = MEMORY_RULE
    fixed: Mapping[str, int] = field(default_factory=dict)
    fewest: FewestGpus | None = None
    unsuited: Unsuited | None = None

    @property
    def best(self) -> LayoutCapacity:
        return self.choices[0]

    @cached_property
    def max_context(self) -> int | None:
        return self.planner.max_context(self.best.layout, self.concurrency, self.context)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        return tuple(notes_of_layout(self.planner, self.best.layout, self.context))


def gpus_of(fixed: Mapping[str, int]) -> int:
    """The accelerators of a layout with the given degrees, the others being 1."""
    return fixed.get("tp", 1) * fixed.get("pp", 1) * fixed.get("dp", 1)


def check(context: int, concurrency: int, gpus: int | None, fixed: Mapping[str, int]) -> None:
    """Errors: `InputError` for invalid numbers."""
    if faults := out_of_range(
        ("context", context, MAX_TOKENS),
        ("concurrency", concurrency, MOST_SEQUENCES),
        ("gpus", 1 if gpus is None else gpus, MOST_GPUS),
        *((name, value, MOST_GPUS) for name, value in fixed.items()),
    ):
        raise InputError("deploy", faults)


def choices(
    planner: Planner, number: int, context: int, concurrency: int, fixed: Mapping[str, int]
) -> list[LayoutCapacity]:
    """The layouts of `gpus` accelerators, best first by `MEMORY_RULE`. Errors: `InputError` if there is none."""
    capacities = [
        LayoutCapacity(
            layout,
            planner.fullest(layout, context, concurrency),
            planner.max_concurrency(layout, context),
            planner.ram_free(layout, context, concurrency),
        )
        for layout in planner.layouts(number, fixed)
    ]
    if not capacities:
        refusals = (planner.refusal(layout) for layout in planner.sharding.layouts(number, fixed))
        if refusal := next(refusals, None):
            raise refusal
        raise InputError("layout", _reasons(planner, number, fixed))
    unlinked = planner.accelerator.link is None  # cards without a link each hold whole layers, as in llama.cpp

    def order(c: LayoutCapacity) -> tuple[Any, ...]:
        crossed = unlinked and (c.layout.tp > 1 or c.layout.expert_group > 1)
        lacking = 0 if c.max_concurrency else -c.fullest.free  # if no sequence fits, the least shortage is best
        return not c.fits, crossed, lacking, c.layout.pp, -c.max_concurrency, -c.layout.tp, -c.fullest.free

    return sorted(capacities, key=order)


def _reasons(planner: Planner, gpus: int, fixed: Mapping[str, int]) -> list[Fault | str]:
    """Why there is no layout of `gpus` accelerators."""
    sharding, degrees = planner.sharding, gpus_of(fixed)
    if gpus % degrees:
        return [f"tp · pp · dp = {degrees} does not divide {gpus} GPUs"]
    if len(fixed.keys() & {"tp", "pp", "dp"}) == 3 and gpus != degrees:
        return [f"tp · pp · dp = {degrees} is not {gpus} GPUs"]
    free = next((name for name in ("tp", "dp", "pp") if name not in fixed), None)
    free_axis = {free: gpus // degrees} if free else {}
    if faults := sharding.faults(Layout(**{**fixed, **free_axis})):
        return faults
    engine = planner.engine.memory.profile.rules.title if planner.engine.memory else sharding.model.name
    return [f"no layout of {gpus} GPUs that {engine} allows" + " (--dp 1)" * (fixed.get("dp", 1) > 1)]


def notes_of_layout(planner: Planner, layout: Layout, context: int) -> Iterable[str]:
    model, engine = planner.model, planner.engine
    yield from model.left_out
    if most := max(rank.towers_bytes for rank in planner.ranks(layout)):
        divided = engine.towers == "split" and most < towers_bytes(model, engine, 1, 0)
        where = "split over tp" if divided else "on the first GPU" if engine.towers == "first" else "whole on every GPU"
        bytes_said = f"{iec(most)} in {engine.activation_bits} bits"
        yield f"{model.name}: towers and projectors are stored {where}, {bytes_said} (--text-only leaves them out)"
    if model.context and context > model.context:
        yield f"a context of {context:,} is beyond the {model.context:,} that {model.name} was made for"
    if model.fixed_length:
        yield f"{model.name} always has {model.workload().tokens:,} positions, whatever --context says"
    yield from planner.accelerator.cautions
    if note := planner.accelerator.gives_more:
        yield f"{planner.accelerator.title}: {note}"
    if model.checkpoint and engine.weights != native(model):
        stored = model.checkpoint.stored.size.bytes
        yield f"the checkpoint itself stores {stored:,} bytes; here its weights are counted as {engine.weights.name}"
    if engine.kv == "bf16" and (dtype := cache_published(model)):
        yield f"the checkpoint has scales for a cache in {dtype}, which --kv {dtype} counts"
    if not multiplies(planner.accelerator, engine.weights.dtype):
        name, narrow = planner.accelerator.name, engine.weights.dtype
        yield f"{name} does not multiply in {narrow}: weights are read as {engine.weights.name}, multiplied in 16 bits"
    if engine.memory:
        yield from engine.memory.notes(model, max(rank.graphs for rank in planner.ranks(layout)), layout)
    if engine.offload:
        yield from engine.offload.notes()
    yield from planner.sharding.notes(layout)
    if wide := engine.weights.left_wide(model.entries):
        yield f"{engine.weights.name} {wide}"
    entries = (entry for rank in planner.ranks(layout) for entry, _ in rank.weights)
    if parted := list(dict.fromkeys(engine.weights.part_filled(entries))):
        suffix = f" and {len(parted) - 1} more" if len(parted) > 1 else ""
        yield f"{engine.weights.name}'s last block of each row of {parted[0]}{suffix} is padded, on each GPU"
    leaves = (cache.leaf for rank in planner.ranks(layout) for cache in rank.gpu_caches)
    if (widest := max(map(engine.bits_cached, leaves), default=0)) > engine.cache_bits:
        yield f"recurrent states stay at {widest} bits"
