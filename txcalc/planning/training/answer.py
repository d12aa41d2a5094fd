"""The answer of `txcalc train` for one recipe on one machine: memory, time, utilisation, and a whole run."""

from __future__ import annotations

from fractions import Fraction

from msgspec import Struct

from txcalc import hardware
from txcalc.errors import InputError
from txcalc.hardware import peak
from txcalc.model import Model
from txcalc.planning.layout import Layout
from txcalc.planning.machine import Machine, allocatable
from txcalc.planning.memory import has_frozen_weights
from txcalc.planning.training.inverse import fewest, largest
from txcalc.planning.training.memory import RankPeak, Ranks, memory, rank_of
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.run import Terms, TrainingRun, run
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
