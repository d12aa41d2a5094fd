"""The recipe of a training run, for a given layout or for the fastest: the search estimates every layout that the model
allows, then computes the fastest exactly.

In order of estimated time, `memory` and `StepTimer` compute layouts exactly, until `ENOUGH` of them fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec.structs import replace

from txcalc.errors import Fault, InputError, Refuted, TxcalcError, either
from txcalc.model import Model
from txcalc.num import ceil_div, divisors
from txcalc.planning.layout import Layout
from txcalc.planning.machine import NODE, Machine, allocatable
from txcalc.planning.training.frameworks import FRAMEWORKS
from txcalc.planning.training.layer_tables import Estimate, LayerTables
from txcalc.planning.training.memory import RESERVED, Ranks, memory_within
from txcalc.planning.training.optimizers import OPTIMIZERS
from txcalc.planning.training.recipe import Recipe, choice
from txcalc.planning.training.stages import Pipeline
from txcalc.planning.training.states import optimizer_bytes, states, tensors
from txcalc.planning.training.step import Step, StepTimer
from txcalc.units import iec, number_of

ENOUGH = 6  # layouts that fit and are timed exactly
MAX_COMPUTED = 60  # layouts whose memory is computed: the fastest and, if none of them fits, the smallest
MATRIX = (1024, 1024)  # a typical matrix, to compare the state of optimizers
SLACK = 1.1  # estimated memory may exceed the capacity by this factor
ESTIMATES_SHARE = 0.2  # share of a search's progress for estimates of memory
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
PIECES = (1, 2, 4)
SMALLER = 0.99  # `fewest_gpus` stops if twice as many accelerators do not reduce memory by this factor


class FoundLayout(NamedTuple):
    """A layout that fits, computed exactly."""

    recipe: Recipe
    plan: Ranks
    step: Step


class Searched(NamedTuple):
    """The fastest layouts that fit, the number considered, and about how many of these fit. `refused` is the reason if
    none fits; `best` is then the smallest one computed. `too_few`: the next smaller number of accelerators, on which no
    layout was found to fit; None if the number was given."""

    best: tuple[FoundLayout, ...]
    considered: int
    fitting: int
    refused: str = ""
    too_few: int | None = None

    @property
    def peak_bytes(self) -> int:
        """Bytes of the fullest GPU of the best."""
        return self.best[0].plan.fullest.reserved


@dataclass
class _Tried:
    """The number of layouts whose memory was computed, and the smallest that does not fit: its bytes and seconds."""

    number: int = 0
    smallest: tuple[int, float, Recipe, Ranks] | None = None


@dataclass(eq=False)
class Search:
    """A search over layouts of `gpus` accelerators with `batch` sequences per step. Fields of `base` named in `fixed`
    (framework, zero, recompute, micro_batch, schedule) are kept; the search chooses the others.

    Errors: `InputError` for a ZeRO stage that no framework has, and for a batch that is no multiple of the micro-batch.
    """

    model: Model
    base: Recipe
    machine: Machine
    gpus: int
    batch: int
    fixed: frozenset[str] = frozenset()
    considered: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.tables = LayerTables(self.model, self.machine)
        self.n_layers, self.estimated = self.tables.n_layers, list[Estimate]()
        self.frameworks = [self.base.framework] if "framework" in self.fixed else ["fsdp2", "megatron"]
        rules = [FRAMEWORKS[name] for name in self.frameworks]
        stages = {0}.union(*(framework.zeros for framework in rules), *([3] for rule in rules if rule.dtensor))
        if self.base.zero not in stages:
            expected = f"{choice(sorted(stages))} with --framework {' or '.join(self.frameworks)}"
            others = " or ".join(name for name, framework in FRAMEWORKS.items() if self.base.zero in framework.zeros)
            raise InputError("train", [Fault("zero", self.base.zero, expected, others and f"{others} has it")])
        if "micro_batch" in self.fixed and self.batch % self.base.micro_batch:
            expected = f"a multiple of --micro-batch = {self.base.micro_batch}"
            raise InputError("train", [Fault("--global-batch", self.batch, expected)])

    @property
    def min_gpus(self) -> int:
        """The accelerators that can hold parameters, gradients and optimizer state once: on fewer, nothing fits. 1 if a
        framework has no layout of one accelerator to count them in."""
        states_bytes = []
        for name in self.frameworks:
            unsharded = replace(self.base, layout=Layout(), zero=0, framework=name, schedule="1f1b")
            try:
                pieces = Pipeline(self.model, unsharded).pieces
            except InputError:
                return 1
            state = states([tensor for piece in pieces for tensor in tensors(piece, unsharded)], unsharded, 0)
            states_bytes.append(sum(state) - (state.optimizer if unsharded.offloads("optimizer") else 0))
        capacity = max(1, allocatable(self.machine.accelerator))
        return int(ceil_div(min(states_bytes) * RESERVED[0], RESERVED[1] * capacity))

    def run(
        self, tell: Callable[[str, float], None] | None = None, given: bool = True, enough: int = ENOUGH
    ) -> Searched:
        """The `enough` fastest layouts. `tell` is called with the progress; `given`: the user gave the number of
        accelerators.

        Errors: `InputError` if the options allow no layout, `Refuted` if none can be computed.
        """
        estimates = self.estimated = self.estimated or list(self.estimates(tell))
        capacity = allocatable(self.machine.accelerator) * RESERVED[1] / RESERVED[0]
        likely = [estimate for estimate in estimates if estimate.fits(capacity * SLACK)]
        for count, estimate in enumerate(likely):
            if tell and estimate.seconds:
                tell("searching layouts", ESTIMATES_SHARE + (1 - ESTIMATES_SHARE) * count / len(likely))
        likely.sort(key=lambda estimate: estimate.seconds)
        attempts = _Tried()
        fitting_layouts = self._fitting(likely[:MAX_COMPUTED], attempts, enough)
        if not fitting_layouts:
            smallest = self._smallest(estimates, hopeless=self.gpus < self.min_gpus)
            fitting_layouts = self._fitting(smallest, attempts, enough)
        if fitting_layouts:
            fitting = sum(estimate.fits(capacity) for estimate in estimates)
            fitting_layouts.sort(key=lambda layout: layout.step.seconds)
            return Searched(tuple(fitting_layouts), self.considered, max(fitting, len(fitting_layouts)))
        refusal = f"no layout was found that fits on {self.gpus:,} × {self.machine.accelerator.title}"
        refusal += f" ({self.considered:,} estimated"
        if not attempts.smallest:
            recipes = (recipe for layout in self.layouts() for recipe in self.recipes(*layout))
            memory_within(self.model, next(recipes), None)  # raises its faults
            raise Refuted(f"{self.model.name}: {refusal})")
        smallest_layout = self._timed(*attempts.smallest[2:])
        takes, mends = iec(smallest_layout.plan.fullest.reserved, 3), self._mends(given)
        refusal += f", {attempts.number} computed; the smallest takes {takes})"
        refusal += f". Try {mends}" if mends else ""
        return Searched((smallest_layout,), self.considered, 0, refusal)

    def _fitting(self, estimates: Iterable[Estimate], tried: _Tried, enough: int) -> list[FoundLayout]:
        """The first layouts that fit, at most `enough`. Stops computing a layout's memory as soon as a stage exceeds
        both the capacity and the smallest layout so far."""
        fitting, capacity = list[FoundLayout](), allocatable(self.machine.accelerator)
        for estimate in estimates:
            limit = max(capacity, tried.smallest[0]) if tried.smallest else None
            try:
                plan = memory_within(self.model, estimate.recipe, limit)
            except InputError:
                continue
            tried.number += 1
            reserved = plan.fullest.reserved if plan else 0
            if plan and reserved <= capacity:
                fitting.append(self._timed(estimate.recipe, plan))
                if len(fitting) == enough:
                    break
            elif plan and (tried.smallest is None or (reserved, estimate.seconds) < tried.smallest[:2]):
                tried.smallest = reserved, estimate.seconds, estimate.recipe, plan
        return fitting

    def _timed(self, recipe: Recipe, plan: Ranks) -> FoundLayout:
        return FoundLayout(recipe, plan, StepTimer(self.model, recipe, self.machine).step(plan))

    @staticmethod
    def _smallest(estimates: list[Estimate], hopeless: bool = False) -> list[Estimate]:
        """The estimates with the least memory, fastest first: for each layout and framework one with gradient
        accumulation and one without. If none can fit (`hopeless`), in any order, so that no times are computed."""
        smallest = dict[object, list[Estimate]]()
        for estimate in sorted(estimates, key=lambda estimate: estimate.bytes):
            recipe = estimate.recipe
            key = (recipe.layout.replace(vpp=1), recipe.framework, recipe.accumulation == 1)
            equals = smallest.setdefault(key, [])
            if not equals or estimate.bytes == equals[0].bytes:
                equals.append(estimate)
        fastest = [
            min(equals, key=lambda estimate: estimate.seconds) if equals[1:] else equals[0]
            for equals in [*smallest.values()][:MAX_COMPUTED]
        ]
        return fastest if hopeless else sorted(fastest, key=lambda estimate: estimate.seconds)

    def _mends(self, given: bool = True) -> str:
        """Ways to use less memory that the user has not chosen yet."""
        base = self.base
        mends = [f'more GPUs (--gpu without ":{self.gpus}" finds the fewest)'] if given else []
        mends += [] if self.model.fixed_length or base.tokens == 1 else ["fewer tokens"]
        mends += [] if base.packed else ["--lora with base=nf4-dq"] if base.frozen else ["--lora"]
        if not base.frozen and not base.offloads("optimizer"):
            state_bytes = {name: optimizer_bytes(MATRIX, replace(base, optimizer=name), 4, True) for name in OPTIMIZERS}
            smaller = min(state_bytes.values()) < state_bytes[base.optimizer]
            mends += ["--offload optimizer", *(["a smaller --optimizer"] if smaller else [])]
        return either(mends)

    def estimates(self, tell: Callable[[str, float], None] | None = None) -> Iterator[Estimate]:
        """An estimate of every recipe. Errors: `InputError` if the options allow no layout."""
        layouts = list(self.layouts())
        for count, (layout, framework) in enumerate(layouts):
            if tell:
                tell("searching layouts", ESTIMATES_SHARE * count / len(layouts))
            for recipe in self.recipes(layout, framework):
                self.considered += 1
                if estimate := self.tables.estimate(recipe):
                    yield estimate
        if not self.considered:
            choices = ", ".join(f"{name} = {getattr(self.base, name)}" for name in sorted({"optimizer", *self.fixed}))
            card = self.machine.accelerator.title
            message = f"no layout of {self.gpus:,} × {card} has {choices} and {self.batch:,} sequences"
            raise InputError("train", [message])

    def layouts(self) -> Iterator[tuple[Layout, str]]:
        """Layouts and frameworks: tp within a node, pp, cp for long sequences, ep; others are data parallel."""
        experts = self.model.active != self.model.params
        context = [1, 2, 4, 8, 16] if self.base.tokens >= 32_768 else [1]
        for tp in (n for n in divisors(self.gpus) if n <= (self.machine.node or 8)):
            for pp in (n for n in divisors(self.gpus // tp) if n <= (self.n_layers if self.model.root.cuttable else 1)):
                for cp in (n for n in context if (self.gpus // tp // pp) % n == 0):
                    data_ranks = self.gpus // tp // pp // cp
                    for ep in (n for n in divisors(tp * cp * data_ranks) if n == 1 or (n >= tp and experts)):
                        for framework in self.frameworks:
                            sharded = FRAMEWORKS[framework].dtensor and data_ranks > 1
                            sp = tp if self.base.tokens // cp % tp == 0 else 1
                            if sharded:
                                yield Layout(tp=tp, sp=sp, pp=pp, cp=cp, ep=ep, fsdp=data_ranks), framework
                            if not sharded or self.base.packed:  # quantised weights may fit unsharded
                                yield Layout(tp=tp, sp=sp, pp=pp, cp=cp, ep=ep, dp=data_ranks), framework

    def recipes(self, layout: Layout, framework: str) -> Iterator[Recipe]:
        """Recipes of a layout: micro-batch, interleaving, ZeRO stage and recomputation."""
        rules, whole_matrices = FRAMEWORKS[framework], OPTIMIZERS[self.base.optimizer].newton_schulz > 0
        if rules.lacks(layout) or ("schedule" in self.fixed and layout.pp == 1):
            return  # a schedule needs a pipeline
        if self.base.packed and not rules.packs:
            return
        zeros = [n for n in rules.zeros if n == 0 or (not whole_matrices and (n == 1 or layout.pp == 1))]
        recomputes = [self.base.recompute] if "recompute" in self.fixed else ["none", "blocks"]
        for micro in [self.base.micro_batch] if "micro_batch" in self.fixed else MICRO_BATCHES:
            if self.batch % (micro * layout.copies):
                continue
            accumulation = self.batch // (micro * layout.copies)
            for vpp in PIECES if layout.pp > 1 and "schedule" not in self.fixed else (1,):
                schedule = "interleaved" if vpp > 1 else self.base.schedule
                if not rules.schedules_by(schedule, layout.pp):
                    continue
                if vpp > 1 and (rules.dtensor or accumulation % layout.pp or layout.pp * vpp > self.n_layers):
                    continue
                for zero in zeros if layout.dp > 1 else [0]:
                    for recompute in recomputes:
                        recipe = replace(
                            self.base,
                            layout=layout.replace(vpp=vpp) if vpp > 1 else layout,
                            micro_batch=micro,
                            accumulation=accumulation,
                            recompute=recompute,
                            framework=framework,
                            zero=zero,
                            schedule=schedule,
                        )
                        allowed = "zero" not in self.fixed or self.base.zero in (zero, recipe.zero_stage)
                        if allowed and accumulation >= recipe.min_micro_batches:
                            yield recipe


def fewest_gpus(
    search_of: Callable[[int], Search], node: int | None, tell: Callable[[str, float], None] | None = None
) -> Searched:
    """The search over the fewest accelerators on which a layout fits: 1, 2, 4, … in a node, then whole nodes, skipping
    numbers with less memory than the model's state. `refused` if twice as many accelerators do not reduce memory.
    Errors: as `Search.run`, if no number within a node has a layout."""
    node, searches = node or NODE, dict[int, Search]()

    def run(number: int) -> Searched | TxcalcError:
        searches[number] = search_of(number)
        try:
            return searches[number].run(tell, given=False, enough=1)
        except (InputError, Refuted) as error:
            return error

    too_few, number, result = 0, 1, run(1)
    min_gpus = 1 if isinstance(result, TxcalcError) or not result.refused else searches[1].min_gpus
    while isinstance(result, TxcalcError) or result.refused:
        too_few, number, previous = number, min(2 * number, node) if number < node else 2 * number, result
        while node < number < min_gpus:
            too_few, number = number, 2 * number
        result = run(number)
        if isinstance(previous, TxcalcError):
            if number > node:
                raise previous
        elif isinstance(result, TxcalcError):
            return previous._replace(refused=f"{previous.refused}; on {number:,} GPUs: {result}")
        elif result.refused and result.peak_bytes > SMALLER * previous.peak_bytes:
            return result
    low, high = max(too_few, min(number, min_gpus) - 1) // node, number // node
    while high - low > 1:
        middle = (low + high) // 2
        attempt = run(middle * node)
        if isinstance(attempt, TxcalcError) or attempt.refused:
            low = middle
        else:
            high = middle
    return searches[high * node or number].run(tell, given=False)._replace(too_few=low * node or too_few)


TOKENS = 4096  # default sequence length, if the context is not shorter
STEP_TOKENS = 1 << 20  # default tokens per step, at least
ADAPTER_SEQUENCES = 64  # default sequences per step with adapters, at most


def sequence_length(model: Model, tokens: int | None) -> int:
    """The sequence length: `tokens`, or the default; fixed in vision models."""
    if model.fixed_length:
        return int(model.workload().tokens)
    return min(TOKENS, model.context or TOKENS) if tokens is None else tokens


def global_batch(batch: int | None, multiple: int, tokens: int, adapters: bool = False) -> int:
    """Sequences per step: `batch`, or the power of two times `multiple` that reaches `STEP_TOKENS`; with adapters at
    most `ADAPTER_SEQUENCES`, but at least `multiple`. Errors: `InputError`."""
    if tokens < 1:
        raise InputError("train", [Fault("--tokens", tokens, "a whole number from 1")])
    if batch is not None:
        return batch
    doublings = (ceil_div(STEP_TOKENS, multiple * tokens) - 1).bit_length()
    if adapters:
        doublings = min(doublings, max(1, ADAPTER_SEQUENCES // multiple).bit_length() - 1)
    return multiple << doublings


def search_layouts(
    model: Model,
    machine: Machine,
    gpus: int | None,
    batch: int | None,
    tokens: int,
    choices: Mapping[str, Any],
    tell: Callable[[str, float], None] | None = None,
) -> Searched:
    """The fastest layouts of a number of GPUs (None: of the fewest on which one fits), or the smallest if none fits.
    `choices` are fields of the recipe that the search keeps. Errors: `InputError`, `Refuted` if there is no layout."""
    base = Recipe(tokens=tokens, **{key: value for key, value in choices.items() if key != "zero"})
    base.check()
    base = replace(base, zero=choices.get("zero", 0))
    if batch is not None and batch < 1:
        raise InputError("train", [Fault("--global-batch", batch, "a whole number from 1")])

    def search(number: int) -> Search:
        return Search(
            model, base, machine, number, global_batch(batch, number, tokens, "adapter" in choices), frozenset(choices)
        )

    return fewest_gpus(search, machine.node, tell) if gpus is None else search(gpus).run(tell)


def resolve_recipe(
    layout: Layout, gpus: int | None, batch: int | None, tokens: int, choices: Mapping[str, Any], flag: str = "--gpu"
) -> Recipe:
    """The recipe of a layout: `choices` are fields of it, `flag` is the option with the number of GPUs. Errors:
    `InputError` with every fault."""
    faults: list[Fault | str] = []
    if gpus is not None and layout.gpus != gpus:
        faults.append(f"--layout {layout} has {number_of('GPU', layout.gpus)}, {flag} has {gpus:,}")
    sequences = choices.get("micro_batch", 1) * layout.copies  # of one micro-batch of all ranks
    step_sequences = global_batch(batch, max(1, sequences), tokens, "adapter" in choices)
    if sequences and (step_sequences < 1 or step_sequences % sequences):
        faults.append(Fault("--global-batch", step_sequences, f"a multiple of micro-batch · dp · fsdp = {sequences:,}"))
    if "schedule" in choices and layout.pp == 1:
        faults.append(Fault("--schedule", choices["schedule"], "none where pp = 1, which has no pipeline"))
    if faults:
        raise InputError("train", faults)
    schedule = choices.get("schedule", "interleaved" if layout.vpp > 1 else "1f1b")
    single = layout.dp == layout.tp == layout.pp == 1
    defaults = ("fsdp2",) if layout.fsdp > 1 or single else ("megatron", "fsdp2")
    supporting = (name for name in defaults if FRAMEWORKS[name].schedules_by(schedule, layout.pp))
    fields = {"framework": next(supporting, defaults[0]), "schedule": schedule, **choices}
    return Recipe(layout, accumulation=max(1, step_sequences // (sequences or 1)), tokens=tokens, **fields)
