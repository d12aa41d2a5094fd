"""The answer of `txcalc train` for one recipe on one machine: memory, time, utilisation, a whole run; and the largest
micro-batch, the longest sequence and the fewest GPUs that fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction

from msgspec import Struct
from msgspec.structs import replace

from txcalc import hardware
from txcalc.errors import InputError
from txcalc.hardware import peak
from txcalc.model import Model
from txcalc.num import divisors
from txcalc.planning.layout import Layout
from txcalc.planning.machine import Machine, allocatable
from txcalc.planning.memory import has_frozen_weights
from txcalc.planning.training.memory import RankPeak, Ranks, memory, rank_of
from txcalc.planning.training.recipe import LONGEST, MOST, Recipe
from txcalc.planning.training.run import Terms, TrainingRun, run
from txcalc.planning.training.stages import Pipeline
from txcalc.planning.training.states import tensors, unshared
from txcalc.planning.training.step import Step, StepTimer
from txcalc.planning.utilisation import REPORTED, MeasuredRate, Utilisation, utilisation

ACTIVE = ("torchtitan", "llama-3")  # conventions that count routed experts times k/E


class Training(Struct, frozen=True):
    """step       None where it is not known, and `why` says so
    max_tokens, min_gpus   the longest sequence, and the same layout over the fewest replicas, that fit
    rank       the requested one
    rate       tokens per second and accelerator: measured, or what `step` achieves; None: neither
    measured   whether it was measured
    """

    model: Model
    recipe: Recipe
    machine: Machine
    plan: Ranks
    step: Step | None
    why: str
    rate: float | None
    measured: bool
    used: tuple[Utilisation, ...]
    run: TrainingRun | None
    max_micro_batch: int
    max_tokens: int
    min_gpus: Layout | None
    rank: RankPeak | None = None

    @property
    def capacity(self) -> int:
        return allocatable(self.machine.accelerator)

    @property
    def fits(self) -> bool:
        """Whether the fullest GPU's reserved bytes are at most what PyTorch can allocate."""
        return self.plan.fullest.reserved <= self.capacity

    @property
    def headline(self) -> Utilisation | None:
        """The first convention asked for; for a model with experts the first whose N are active parameters, since
        PaLM's 6·N counts all experts. None whose MFU exceeds the peak."""
        preferred = ACTIVE if self.model.active != self.model.params else ()
        possible = {row.name: row for row in self.used if row.mfu <= 1}
        return next((possible[name] for name in (*preferred, *possible) if name in possible), None)


class OnAccelerator(Struct, frozen=True):
    """The same recipe on another accelerator, of which PyTorch can allocate `usable_bytes`; None: of unknown speed."""

    gpu: str
    fits: bool
    tokens_per_s_per_gpu: float | None
    memory_bytes: int
    usable_bytes: int


def on_every_accelerator(training: Training) -> list[OnAccelerator]:
    """Every accelerator with a preset: those that fit first, each group fastest first."""
    rows = []
    for name in hardware.names():
        accelerator, rate = hardware.load(name), None
        try:
            machine = Machine.of(accelerator, products=training.machine.products, overlap=training.machine.overlap)
            rate = StepTimer(training.model, training.recipe, machine).step(training.plan).tokens_s
        except InputError:
            pass
        fits = training.plan.fullest.reserved <= (usable := allocatable(accelerator))
        rows.append(OnAccelerator(accelerator.name, fits, rate, accelerator.memory, usable))
    return sorted(rows, key=lambda row: (not row.fits, -(row.tokens_per_s_per_gpu or 0), -row.memory_bytes))


def train(
    model: Model,
    recipe: Recipe,
    machine: Machine,
    measured: MeasuredRate | None = None,
    names: tuple[str, ...] = REPORTED,
    tokens: int | None = None,
    terms: Terms | None = None,
    rank: int | None = None,
) -> Training:
    """The whole answer; `tokens`: of the run (None: those that a budget pays for); `rank`: one to show as well.

    Errors: `InputError` with every reason why the recipe is impossible.
    """
    plan = memory(model, recipe)
    step, why = None, ""
    try:
        step = StepTimer(model, recipe, machine).step(plan)
    except InputError as error:
        why = str(error)
    gpus, in_a_step = recipe.layout.gpus, recipe.global_batch * recipe.tokens
    ledger, top = model.ledger(1, recipe.tokens), float(peak(machine.accelerator, machine.products))
    layers = model.n_layers
    recomputed_layers = len(recipe.recomputed(layers))
    mode = "core" if recipe.recompute == "core" else "blocks" if recomputed_layers else "none"
    share = Fraction(recomputed_layers, layers) if mode == "blocks" else Fraction(1)
    rate = step.tokens_s if step else None
    if measured:
        name = "megatron-lm" if len(model.stacks) == 1 else "transformers"  # the first describes one stack
        chosen = REPORTED if has_frozen_weights(ledger) else (name,)
        (mfu_of_rate,) = utilisation(model, ledger, 1, 1, names=chosen) if measured.unit == "tflops" else (None,)
        rate = measured.tokens_s(in_a_step, gpus, mfu_of_rate.mfu if mfu_of_rate else 1.0)
    used = utilisation(model, ledger, rate, top, mode, recipe.layout.pp, share, names) if rate else []
    terms = terms or Terms()
    whole_run = None
    if rate and (tokens := tokens or terms.tokens(rate)):
        whole_run = run(model, tokens, rate, gpus, recipe.layout.copies, terms, recipe.tokens)
    space = allocatable(machine.accelerator)
    limits = (
        largest(model, recipe, "micro_batch", space),
        largest(model, recipe, "tokens", space),
        fewest(model, recipe, space),
    )
    rank_peak = None if rank is None else rank_of(model, recipe, rank)
    return Training(
        model, recipe, machine, plan, step, why, rate, measured is not None, tuple(used), whole_run, *limits, rank_peak
    )


# Steps of linear interpolation before bisection.
LINES = 8
MOST_GPUS = 1 << 14  # in the largest layout that is tried with more replicas


def largest(model: Model, recipe: Recipe, what: str, capacity: int) -> int:
    """The largest `micro_batch`, or the longest sequence (`tokens`), whose fullest GPU reserves at most `capacity`
    bytes; 0 where none does. A length is a multiple of the layout's sequence split."""
    layout = recipe.layout
    step = layout.cp * layout.sp if what == "tokens" else 1

    def reserved(number: int) -> int:
        changed = (
            replace(recipe, micro_batch=number) if what == "micro_batch" else replace(recipe, tokens=number * step)
        )
        return memory(model, changed).fullest.reserved

    if what == "micro_batch":
        return last_within(reserved, MOST, capacity)
    longest = model.workload().tokens if model.fixed_length else max(model.context or LONGEST, recipe.tokens)
    return step * last_within(reserved, max(1, longest // step), capacity)


def fewest(model: Model, recipe: Recipe, capacity: int) -> Layout | None:
    """The same sharding with the fewest replicas whose fullest GPU reserves at most `capacity` bytes: of divisors of
    dp and fsdp, else of multiples of what shards over them (fsdp, or dp with ZeRO); None where none does. Layouts that
    the model or the recipe does not allow are passed over."""

    def holds(layout: Layout) -> bool:
        single = layout.dp == layout.cp == 1  # ZeRO then shards nothing
        try:
            plan = memory(model, replace(recipe, layout=layout, zero=0 if single else recipe.zero))
        except InputError:
            return False
        return plan.fullest.reserved <= capacity

    return next(filter(holds, fewer(recipe.layout)), None) or _more(model, recipe, holds)


def fewer(layout: Layout) -> list[Layout]:
    """The same sharding with fewer replicas, fewest first: every pair of divisors of dp and fsdp."""
    layouts = [layout.replace(dp=dp, fsdp=fsdp) for dp in divisors(layout.dp) for fsdp in divisors(layout.fsdp)]
    return sorted(layouts, key=lambda candidate: candidate.gpus)


def _more(model: Model, recipe: Recipe, holds: Callable[[Layout], bool]) -> Layout | None:
    """The first that fits with twice, three times … as many ranks that share weights or states: of more of them, each
    holds less. Numbers over which FSDP cannot shard experts are left out."""
    layout = recipe.layout
    axis = "fsdp" if recipe.rules.dtensor else "dp"
    if axis == "dp" and not recipe.zero:
        return None
    weights = (tensor for piece in Pipeline(model, recipe).pieces for tensor in tensors(piece, recipe))
    experts = {tensor.shape[:2]: tensor for tensor in weights if tensor.expert}.values()
    multiples = (layout.replace(**{axis: getattr(layout, axis) * n}) for n in range(2, MOST_GPUS // layout.gpus + 1))
    layouts = [candidate for candidate in multiples if not unshared(experts, replace(recipe, layout=candidate))]
    at = bisect_left(layouts, True, key=holds)
    return layouts[at] if at < len(layouts) else None


def last_within(reserved: Callable[[int], int], limit: int, capacity: int) -> int:
    """The largest number up to `limit` whose memory, which grows with it, is at most `capacity`; 0 if 1 is too many.
    Memory is nearly linear, so a few numbers suffice: each is where the line through the last two meets the
    capacity."""
    low, high = 1, limit + 1  # the last that is known to fit, the first that does not
    before = (1, reserved(1))
    if before[1] > capacity:
        return 0
    guess, tried = 2, 0
    while high - low > 1:
        if tried > LINES:
            guess = (low + high) // 2
        number = min(max(guess, low + 1), high - 1)
        latest = (number, reserved(number))
        low, high = (number, high) if latest[1] <= capacity else (low, number)
        grown = latest[1] - before[1]
        guess = before[0] + (capacity - before[1]) * (number - before[0]) // grown if grown else high
        before, tried = latest, tried + 1
    return low
