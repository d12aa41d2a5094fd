"""The answer of `txcalc train` for one recipe on one machine: memory, time, utilisation, a whole run; and the largest
micro-batch, the longest sequence and the fewest GPUs that fit."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from txcalc import hardware
from txcalc.errors import Fault, InputError
from txcalc.hardware import peak
from txcalc.model import Model
from txcalc.num import ceil_div, divisors
from txcalc.planning.gradients import FLOPS, training_flops
from txcalc.planning.layout import Layout
from txcalc.planning.machine import Machine, allocatable
from txcalc.planning.memory import has_frozen_weights
from txcalc.planning.training.memory import RankPeak, Ranks, memory, rank_of
from txcalc.planning.training.recipe import LONGEST, MOST, Recipe
from txcalc.planning.training.stages import Pipeline
from txcalc.planning.training.states import find_unshardable, tensors
from txcalc.planning.training.step import Step, StepTimer
from txcalc.planning.utilisation import REPORTED, MeasuredRate, Utilisation, utilisation

PUE = 1.1  # power of a data centre over that of its computers: Touvron et al. 2023, section 6
GRID = 385.0  # grams of CO2 equivalents per kWh, the average of the United States: ibid.


class TrainingRun(Struct, frozen=True):
    """The cost of training on `train_tokens` at a given speed.

    compute      FLOPs: 6·N·D, with N active parameters; with frozen weights, those that the steps compute
    energy_kwh   of the accelerators at full power, times PUE; None if their power is not known
    cost         at a price per GPU-hour; None without one
    Source       Touvron et al. 2023 (arXiv 2302.13971), section 6: GPU-hours · watts · PUE, and the grid's factor
    """

    train_tokens: int
    compute: int
    days: float
    gpu_hours: float
    cost: float | None
    energy_kwh: float | None
    co2_kg: float | None
    deadline: DeadlineGpus | None
    budget: RunBudget | None
    price: float | None
    power_w: int | None
    pue: float
    grid_g_per_kwh: float


class DeadlineGpus(Struct, frozen=True):
    """The number of accelerators, a multiple of one replica's, that finish within `days` at the same speed."""

    days: float
    gpus: int


class RunBudget(Struct, frozen=True):
    """The tokens that a sum of money pays for."""

    money: float
    tokens: int


class Terms(NamedTuple):
    """Prices and limits of a run."""

    price: float | None = None
    power: int | None = None
    pue: float = PUE
    grid: float = GRID
    deadline: float | None = None
    budget: float | None = None

    def tokens(self, tokens_s: float) -> int | None:
        """Tokens that the budget pays for at `tokens_s` per accelerator; None without a budget."""
        if self.budget is None or self.price is None:
            return None
        return int(self.budget / self.price * 3600 * tokens_s)

    def checked(self) -> Terms:
        """Errors: `InputError` with every fault."""
        faults: list[Fault | str] = []
        if not 1 <= self.pue <= 10:
            faults.append(Fault("--pue", self.pue, "a factor from 1 to 10"))
        if not 0 <= self.grid <= 10_000:
            faults.append(Fault("--grid", self.grid, "grams of CO2 per kWh from 0 to 10,000"))
        for name, value in (("@PRICE", self.price), ("--deadline", self.deadline), ("--budget", self.budget)):
            if value is not None and not 0 < value < 1e15:
                faults.append(Fault(name, value, "a number above 0"))
        if self.budget is not None and self.price is None:
            faults.append("--budget needs a price per GPU-hour (--price 2.5, or --gpu NAME:N@PRICE)")
        if faults:
            raise InputError("train", faults)
        return self


def flops_per_token(model: Model, length: int) -> Fraction:
    """FLOPs of training per token: 6·N, with N active parameters; with frozen weights, those that a step on sequences
    of this length computes."""
    ledger = model.ledger(1, length)
    if has_frozen_weights(ledger):
        return Fraction(training_flops(ledger), ledger.work.positions)
    return Fraction(FLOPS * model.active)


def tokens_of(
    model: Model, tokens: int | None, compute: int | None, terms: Terms | None = None, length: int = 1
) -> int | None:
    """The tokens of a run: given, or from a budget of FLOPs; `length` is that of a sequence. Errors: `InputError`, also
    for a deadline without the size of a run."""
    if tokens is not None and compute is not None:
        raise InputError("train", ["--train-tokens and --compute say the same thing twice: give one of them"])
    if tokens == 0:
        raise InputError("train", [Fault("--train-tokens", 0, "a number above 0")])
    if tokens is compute is None and terms and terms.deadline is not None and terms.budget is None:
        raise InputError("train", ["--deadline needs the size of the run: --train-tokens, --compute or --budget"])
    if compute is None:
        return tokens
    token_flops = flops_per_token(model, length)
    if compute < token_flops:
        raise InputError(
            "train", [Fault("--compute", compute, f"at least {ceil(token_flops):,} FLOPs, those of one token")]
        )
    return compute // token_flops


def run(
    model: Model, tokens: int, tokens_s: float, gpus: int, copies: int, terms: Terms, length: int = 1
) -> TrainingRun:
    """A run on `gpus` accelerators, each at `tokens_s` tokens per second, with `copies` replicas of the layout, on
    sequences of `length` tokens."""
    hours = tokens / tokens_s / 3600
    energy = None if terms.power is None else hours * terms.power / 1000 * terms.pue
    deadline = budget = None
    if terms.deadline is not None:
        replica_gpus = gpus // copies
        needed = Fraction(hours) / Fraction(24 * terms.deadline * replica_gpus)
        deadline = DeadlineGpus(terms.deadline, replica_gpus * max(1, ceil_div(needed.numerator, needed.denominator)))
    if (affordable := terms.tokens(tokens_s)) is not None and terms.budget is not None:
        budget = RunBudget(terms.budget, affordable)
    return TrainingRun(
        train_tokens=tokens,
        compute=int(flops_per_token(model, length) * tokens),
        days=hours / gpus / 24,
        gpu_hours=hours,
        cost=None if terms.price is None else hours * terms.price,
        energy_kwh=energy,
        co2_kg=None if energy is None else energy * terms.grid / 1000,
        deadline=deadline,
        budget=budget,
        price=terms.price,
        power_w=terms.power,
        pue=terms.pue,
        grid_g_per_kwh=terms.grid,
    )


_DAYS = {"h": 1 / 24, "d": 1.0, "w": 7.0}


def parse_days(text: str) -> float:
    """`30d`, `12h`, `4w` in days. Errors: `InputError`."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([hdw])\s*", text, re.ASCII)
    if not match or not float(match[1]):
        raise InputError("--deadline", [Fault("--deadline", text, "a time such as 30d, 12h or 4w")])
    return float(match[1]) * _DAYS[match[2]]


ACTIVE = ("torchtitan", "llama-3")  # utilisation conventions that count active parameters


class Training(Struct, frozen=True):
    """The answer of `txcalc train` for one recipe.

    step       None if it is not known; `why` then says the reason
    max_tokens, min_gpus   the longest sequence, and the same layout with the fewest replicas, that fit
    rank       the requested rank
    rate       tokens per second and accelerator: measured (if `measured`), or achieved by `step`; None: neither
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
        """The first requested convention; for a model with experts, the first that counts active parameters, since
        PaLM's 6·N counts all experts. Conventions whose MFU exceeds 1 are left out."""
        preferred = ACTIVE if self.model.active != self.model.params else ()
        possible = {row.name: row for row in self.used if row.mfu <= 1}
        return next((possible[name] for name in (*preferred, *possible) if name in possible), None)


class OnAccelerator(Struct, frozen=True):
    """The same recipe on another accelerator, of which PyTorch can allocate `usable_bytes`; its speed is None if
    unknown."""

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
    """The answer for one recipe; `tokens` are those of the run (None: those that a budget pays for); `rank`: a rank
    whose peak is also wanted.

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
        name = "megatron-lm" if len(model.stacks) == 1 else "transformers"  # Megatron-LM's describes a single stack
        conventions = REPORTED if has_frozen_weights(ledger) else (name,)
        (mfu_of_rate,) = utilisation(model, ledger, 1, 1, names=conventions) if measured.unit == "tflops" else (None,)
        rate = measured.tokens_s(in_a_step, gpus, mfu_of_rate.mfu if mfu_of_rate else 1.0)
    used = utilisation(model, ledger, rate, top, mode, recipe.layout.pp, share, names) if rate else []
    terms, training_run = terms or Terms(), None
    if rate and (tokens := tokens or terms.tokens(rate)):
        training_run = run(model, tokens, rate, gpus, recipe.layout.copies, terms, recipe.tokens)
    space = allocatable(machine.accelerator)
    limits = (
        largest(model, recipe, "micro_batch", space),
        largest(model, recipe, "tokens", space),
        fewest_replicas(model, recipe, space),
    )
    rank_peak = None if rank is None else rank_of(model, recipe, rank)
    return Training(
        model,
        recipe,
        machine,
        plan,
        step,
        why,
        rate,
        measured is not None,
        tuple(used),
        training_run,
        *limits,
        rank_peak,
    )


INTERPOLATIONS = 8  # linear interpolations before bisection
MAX_GPUS = 1 << 14  # of the layouts with more replicas that `fewest_replicas` tries


def largest(model: Model, recipe: Recipe, what: str, capacity: int) -> int:
    """The largest `micro_batch`, or the longest sequence (`tokens`), whose fullest GPU reserves at most `capacity`
    bytes; 0 if none does. A length is a multiple of the ranks that share a sequence."""
    step = recipe.layout.cp * recipe.layout.sp if what == "tokens" else 1

    def reserved(number: int) -> int:
        return memory(model, replace(recipe, **{what: number * step})).fullest.reserved

    if what == "micro_batch":
        return last_within(reserved, MOST, capacity)
    longest = model.workload().tokens if model.fixed_length else max(model.context or LONGEST, recipe.tokens)
    return step * last_within(reserved, max(1, longest // step), capacity)


def fewest_replicas(model: Model, recipe: Recipe, capacity: int) -> Layout | None:
    """The same sharding with the fewest replicas whose fullest GPU reserves at most `capacity` bytes: with divisors of
    dp and fsdp, else with multiples of the degree that shards state (fsdp, or dp with ZeRO); None if none does. Skips
    layouts that the model or the recipe does not allow."""

    def fits(layout: Layout) -> bool:
        single = layout.dp == layout.cp == 1  # ZeRO then shards nothing
        try:
            plan = memory(model, replace(recipe, layout=layout, zero=0 if single else recipe.zero))
        except InputError:
            return False
        return plan.fullest.reserved <= capacity

    return next(filter(fits, fewer_replicas(recipe.layout)), None) or _with_more_shards(model, recipe, fits)


def fewer_replicas(layout: Layout) -> list[Layout]:
    """The same sharding with fewer replicas, fewest first: every pair of divisors of dp and fsdp."""
    layouts = [layout.replace(dp=dp, fsdp=fsdp) for dp in divisors(layout.dp) for fsdp in divisors(layout.fsdp)]
    return sorted(layouts, key=lambda candidate: candidate.gpus)


def _with_more_shards(model: Model, recipe: Recipe, fits: Callable[[Layout], bool]) -> Layout | None:
    """The first layout that fits with 2, 3, … times as many ranks that shard weights or states. Skips numbers of ranks
    over which FSDP cannot shard experts."""
    layout = recipe.layout
    axis = "fsdp" if recipe.rules.dtensor else "dp"
    if axis == "dp" and not recipe.zero:
        return None
    weights = (tensor for piece in Pipeline(model, recipe).pieces for tensor in tensors(piece, recipe))
    experts = {tensor.shape[:2]: tensor for tensor in weights if tensor.expert}.values()
    multiples = (layout.replace(**{axis: getattr(layout, axis) * n}) for n in range(2, MAX_GPUS // layout.gpus + 1))
    layouts = [candidate for candidate in multiples if not find_unshardable(experts, replace(recipe, layout=candidate))]
    index = bisect_left(layouts, True, key=fits)  # more ranks hold less each
    return layouts[index] if index < len(layouts) else None


def last_within(reserved: Callable[[int], int], limit: int, capacity: int) -> int:
    """The largest number up to `limit` whose memory, which grows with it, is at most `capacity`; 0 if 1 is too many.
    Memory is nearly linear, so the secant method needs few numbers."""
    low, high = 1, limit + 1  # the largest known to fit, the smallest known not to
    before = (1, reserved(1))
    if before[1] > capacity:
        return 0
    guess, attempts = 2, 0
    while high - low > 1:
        if attempts > INTERPOLATIONS:
            guess = (low + high) // 2
        number = min(max(guess, low + 1), high - 1)
        latest = (number, reserved(number))
        low, high = (number, high) if latest[1] <= capacity else (low, number)
        grown = latest[1] - before[1]
        guess = before[0] + (capacity - before[1]) * (number - before[0]) // grown if grown else high
        before, attempts = latest, attempts + 1
    return low
