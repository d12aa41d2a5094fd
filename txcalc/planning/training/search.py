"""Search for the fastest training layout: estimate every layout that the model allows, then compute the fastest
exactly.

An estimate combines, in closed form, the time and bytes of a layer (one table per tp, cp, ep, micro-batch and
framework), the pipeline's bubble, the communication of data parallelism and the optimizer step. The layouts with the
least estimated time are computed by `memory` and `StepTimer`, as if given by the user, until `ENOUGH` of them fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from txcalc.errors import Fault, InputError, Refuted, TxcalcError
from txcalc.model import Model
from txcalc.num import ceil_div, divisors, product
from txcalc.planning.layout import Layout
from txcalc.planning.links import NODE
from txcalc.planning.training.activations import kept
from txcalc.planning.training.frameworks import FRAMEWORKS
from txcalc.planning.training.machine import Kernels, Machine, Message, ring
from txcalc.planning.training.memory import RESERVED, Ranks, memory
from txcalc.planning.training.optimizers import OPTIMIZERS
from txcalc.planning.training.profiles import logits
from txcalc.planning.training.recipe import Recipe, choice
from txcalc.planning.training.stages import Pipeline
from txcalc.planning.training.states import optimizer_bytes, states, tensors, weight_bytes
from txcalc.planning.training.step import Step, StepTimer
from txcalc.units import iec

ENOUGH = 6  # layouts that fit and are timed exactly
TRIED = 60  # layouts whose memory is computed: the fastest and, if none of them fits, the smallest
SLACK = 1.1  # estimated memory may exceed the capacity by this factor
MICRO = (1, 2, 4, 8, 16, 32)
PIECES = (1, 2, 4)
SMALLER = 0.99  # of its bytes must be left on twice as many accelerators for still more to be tried
MATRIX = (1024, 1024)  # a typical matrix, whose optimizer state per element is used for all weights


class FoundLayout(NamedTuple):
    """A layout that fits, computed exactly."""

    recipe: Recipe
    plan: Ranks
    step: Step


class Searched(NamedTuple):
    """The fastest layouts that fit, the number considered, and about how many of these fit. `refused` says that none
    fits; `best` is then the smallest one computed. `too_few`: the next smaller number of accelerators on which none was
    found to fit; None: the number was given."""

    best: tuple[FoundLayout, ...]
    considered: int
    fitting: int
    refused: str = ""
    too_few: int | None = None

    @property
    def held(self) -> int:
        """Bytes of the fullest rank of the best."""
        return self.best[0].plan.fullest.reserved


class _Table(NamedTuple):
    """Costs of one micro-batch, all layers together; `ends` is what comes before and after the layers."""

    layers: tuple[float, float, float]  # seconds: forward, backward, recomputation
    ends: tuple[float, float]  # seconds: forward, backward
    kept: tuple[float, float]  # bytes saved for backward: without and with recomputed blocks
    logits: float  # bytes
    elements: tuple[float, float, float]  # trainable: layers, experts with ep > 1, ends
    frozen: tuple[float, float] = (0.0, 0.0)  # bytes: layers, ends
    handed: float = 0.0  # bytes of activations that a rank sends to the next stage


class _Estimate(NamedTuple):
    recipe: Recipe
    seconds: float
    bytes: float


@dataclass(eq=False)
class Search:
    """A search over layouts of `gpus` accelerators with `batch` sequences per step. Fields of `base` named in `fixed`
    (framework, zero, recompute, micro_batch, schedule) are kept; the search chooses the others.

    Errors: `InputError` for a stage of ZeRO that no framework has, and a batch that is no multiple of the micro-batch.
    """

    model: Model
    base: Recipe
    machine: Machine
    gpus: int
    batch: int
    fixed: frozenset[str] = frozenset()
    considered: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.n_layers = next(reversed(self.model.spec["stacks"].values()))["n_layers"]
        stack = self.model.root.alone
        head = stack and stack.head
        self.tied = bool(head and head.projection and head.projection.tied)
        self._tables: dict[tuple[int, int, int, int, str], _Table | None] = {}
        self.kernels = Kernels(self.machine)
        self.frameworks = [self.base.framework] if "framework" in self.fixed else ["fsdp2", "megatron"]
        rules = [FRAMEWORKS[name] for name in self.frameworks]
        stages = {0, *(n for each in rules for n in each.zeros), *(3 for each in rules if each.dtensor)}
        if self.base.zero not in stages:
            expected = f"{choice(sorted(stages))} with --framework {' or '.join(self.frameworks)}"
            having = " or ".join(name for name, each in FRAMEWORKS.items() if self.base.zero in each.zeros)
            raise InputError("train", [Fault("zero", self.base.zero, expected, having and f"{having} has it")])
        if "micro_batch" in self.fixed and self.batch % self.base.micro_batch:
            expected = f"a multiple of --micro-batch = {self.base.micro_batch}"
            raise InputError("train", [Fault("--global-batch", self.batch, expected)])

    @property
    def least(self) -> int:
        """The accelerators that hold parameters, gradients and optimizer state once between them: on fewer, nothing
        fits. 1 where a framework has no layout of one accelerator to count them in."""
        held = []
        for name in self.frameworks:
            whole = replace(self.base, layout=Layout(), zero=0, framework=name, schedule="1f1b")
            try:
                pieces = Pipeline(self.model, whole).pieces
            except InputError:
                return 1
            state = states([tensor for piece in pieces for tensor in tensors(piece, whole)], whole, 0)
            held.append(sum(state) - (state.optimizer if whole.offloads("optimizer") else 0))
        return int(ceil_div(min(held) * RESERVED[0], RESERVED[1] * self.machine.accelerator.memory))

    def run(self, tell: Callable[[str, float], None] | None = None, given: bool = True) -> Searched:
        """The fastest layouts. `tell` is called with the progress; `given`: the user said how many accelerators.

        Errors: `InputError` if the options leave no layout, `Refuted` if none can be computed.
        """
        estimates = sorted(self.estimates(tell), key=lambda each: each.seconds)
        capacity = self.machine.accelerator.memory * RESERVED[1] / RESERVED[0]
        likely = [each for each in estimates if each.bytes <= capacity * SLACK]
        plans: list[tuple[Recipe, Ranks]] = []
        found = self._fitting(likely[:TRIED], plans) or self._fitting(self._smallest(estimates), plans)
        if found:
            fitting = sum(each.bytes <= capacity for each in estimates)
            found.sort(key=lambda each: each.step.seconds)
            return Searched(tuple(found), self.considered, max(fitting, len(found)))
        said = f"none of {self.considered:,} layouts of {self.gpus:,} was found to fit {self.machine.accelerator.title}"
        if not plans:
            raise Refuted(f"{self.model.name}: {said}")
        least = self._timed(*min(plans, key=lambda each: each[1].fullest.reserved))
        takes = iec(least.plan.fullest.reserved, 3)
        mends = self._mends(given)
        said += f": the smallest of {len(plans)} that were computed takes {takes}" + (f" ({mends})" if mends else "")
        if given:
            said += f'; without ":{self.gpus}" the fewest that suffice are found'
        return Searched((least,), self.considered, 0, said)

    def _fitting(self, estimates: Iterable[_Estimate], plans: list[tuple[Recipe, Ranks]]) -> list[FoundLayout]:
        """The first layouts that fit, at most `ENOUGH`; appends each computed plan to `plans`."""
        found: list[FoundLayout] = []
        for each in estimates:
            try:
                plan = memory(self.model, each.recipe)
            except InputError:
                continue
            plans.append((each.recipe, plan))
            if plan.fullest.reserved <= self.machine.accelerator.memory:
                found.append(self._timed(each.recipe, plan))
                if len(found) == ENOUGH:
                    break
        return found

    def _timed(self, recipe: Recipe, plan: Ranks) -> FoundLayout:
        return FoundLayout(recipe, plan, StepTimer(self.model, recipe, self.machine).step(plan))

    @staticmethod
    def _smallest(estimates: list[_Estimate]) -> list[_Estimate]:
        """The estimates of least memory, fastest first: for each layout and framework one with gradient accumulation
        and one without."""
        small = dict[object, _Estimate]()
        for each in sorted(estimates, key=lambda each: each.bytes):
            recipe = each.recipe
            small.setdefault((recipe.layout.replace(vpp=1), recipe.framework, recipe.accumulation == 1), each)
        return sorted(list(small.values())[:TRIED], key=lambda each: each.seconds)

    def _mends(self, given: bool = True) -> str:
        """Ways to use less memory that the user has not chosen yet."""
        base = self.base
        mends = ["more GPUs"] if given else []
        mends += [] if self.model.fixed_length or base.tokens == 1 else ["fewer tokens"]
        mends += [] if base.packed else ["--lora with base=nf4-dq"] if base.frozen else ["--lora"]
        if not base.frozen and not base.offloads("optimizer"):
            beside = {name: optimizer_bytes(MATRIX, replace(base, optimizer=name), 4, True) for name in OPTIMIZERS}
            smaller = min(beside.values()) < beside[base.optimizer]
            mends += ["--offload optimizer", *(["a smaller --optimizer"] if smaller else [])]
        return " or ".join(filter(None, (", ".join(mends[:-1]), *mends[-1:])))

    def estimates(self, tell: Callable[[str, float], None] | None = None) -> Iterator[_Estimate]:
        """An estimate of every recipe. Errors: `InputError` if the options leave no layout."""
        layouts = list(self.layouts())
        for done, (layout, framework) in enumerate(layouts):
            if tell:
                tell("searching layouts", done / len(layouts))
            for recipe in self.recipes(layout, framework):
                self.considered += 1
                table = self.table(recipe)
                if table:
                    yield self.estimate(recipe, table)
        if not self.considered:
            own = ", ".join(f"{name} = {getattr(self.base, name)}" for name in sorted({"optimizer", *self.fixed}))
            card = self.machine.accelerator.title
            raise InputError("train", [f"no layout of {self.gpus:,} × {card} has {own} and {self.batch:,} sequences"])

    def layouts(self) -> Iterator[tuple[Layout, str]]:
        """Layouts and frameworks: tp within a node, pp, cp for long sequences, ep; the rest is data parallel."""
        experts = self.model.active != self.model.params
        context = [1, 2, 4, 8, 16] if self.base.tokens >= 32_768 else [1]
        for tp in (n for n in divisors(self.gpus) if n <= (self.machine.node or 8)):
            for pp in (n for n in divisors(self.gpus // tp) if n <= (self.n_layers if self.model.root.cuttable else 1)):
                for cp in (n for n in context if (self.gpus // tp // pp) % n == 0):
                    rest = self.gpus // tp // pp // cp
                    for ep in (n for n in divisors(tp * cp * rest) if n == 1 or (n >= tp and experts)):
                        for framework in self.frameworks:
                            sharded = FRAMEWORKS[framework].dtensor and rest > 1
                            sp = tp if self.base.tokens // cp % tp == 0 else 1
                            if sharded:
                                yield Layout(tp=tp, sp=sp, pp=pp, cp=cp, ep=ep, fsdp=rest), framework
                            if not sharded or self.base.packed:  # quantised weights may fit unsharded
                                yield Layout(tp=tp, sp=sp, pp=pp, cp=cp, ep=ep, dp=rest), framework

    def recipes(self, layout: Layout, framework: str) -> Iterator[Recipe]:
        """Recipes of a layout: micro-batch, interleaving, ZeRO stage and recomputation."""
        rules, whole = FRAMEWORKS[framework], OPTIMIZERS[self.base.optimizer].newton_schulz > 0
        if rules.lacks(layout) or ("schedule" in self.fixed and layout.pp == 1):
            return  # a schedule needs a pipeline
        if self.base.packed and not rules.packs:
            return
        zeros = [n for n in rules.zeros if n == 0 or (not whole and (n == 1 or layout.pp == 1))]
        agains = [self.base.recompute] if "recompute" in self.fixed else ["none", "blocks"]
        for micro in [self.base.micro_batch] if "micro_batch" in self.fixed else MICRO:
            if self.batch % (micro * layout.copies):
                continue
            accumulation = self.batch // (micro * layout.copies)
            for pieces in PIECES if layout.pp > 1 and "schedule" not in self.fixed else (1,):
                schedule = "interleaved" if pieces > 1 else self.base.schedule
                if not rules.schedules_by(schedule, layout.pp):
                    continue
                if pieces > 1 and (rules.dtensor or accumulation % layout.pp or layout.pp * pieces > self.n_layers):
                    continue
                for zero in zeros if layout.dp > 1 else [0]:
                    for again in agains:
                        made = replace(
                            self.base,
                            layout=layout.replace(vpp=pieces) if pieces > 1 else layout,
                            micro_batch=micro,
                            accumulation=accumulation,
                            recompute=again,
                            framework=framework,
                            zero=zero,
                            schedule=schedule,
                        )
                        asked = "zero" not in self.fixed or self.base.zero in (zero, made.zero_stage)
                        if asked and accumulation >= made.least:
                            yield made

    def table(self, recipe: Recipe) -> _Table | None:
        """Costs of a recipe's layers; None if the model does not allow its layout."""
        layout = recipe.layout
        key = (layout.tp, layout.cp, layout.ep, recipe.micro_batch, recipe.framework)
        if key not in self._tables:
            self._tables[key] = self._made(recipe)
        return self._tables[key]

    def _made(self, recipe: Recipe) -> _Table | None:
        layout = recipe.layout
        copies = {"fsdp": layout.fsdp * layout.pp} if layout.fsdp > 1 else {"dp": layout.dp * layout.pp}
        probe = replace(
            recipe,
            layout=Layout(tp=layout.tp, sp=layout.sp, cp=layout.cp, ep=layout.ep, **copies),
            accumulation=2,
            recompute="none",
            zero=0,
            schedule="1f1b",
        )
        try:
            pipeline = Pipeline(self.model, probe)
            pace = StepTimer(self.model, probe, self.machine, pipeline)
            (piece,) = pipeline.pieces
        except InputError:
            return None
        within = piece._replace(
            leaves=tuple(held for held in piece.leaves if held.layers),
            joins=tuple(held for held in piece.joins if held.layers),
        )
        inner, whole = pace.work(within, pace.kernels), pace.work(piece, pace.kernels)
        forward, backward = sum(inner.forward.values()), sum(inner.backward.values())
        ends = sum(whole.forward.values()) - forward, sum(whole.backward.values()) - backward
        blocks = kept(piece, replace(probe, recompute="blocks"), pace.width)
        sums, frozen = [0.0, 0.0, 0.0], [0.0, 0.0]
        for tensor in tensors(piece, probe):
            if tensor.learns:
                where = 2 if not tensor.group or tensor.reads > 1 else 1 if tensor.expert and layout.ep > 1 else 0
                sums[where] += tensor.size * tensor.copies
            else:
                frozen[not tensor.group or tensor.reads > 1] += tensor.copies * weight_bytes(tensor, tensor.size, probe)
        saved = float(kept(piece, probe, pace.width).saved)
        head = float(probe.logit_bytes[1] * logits(probe, [piece], 0))
        return _Table(
            (forward, backward, forward),
            ends,
            (saved, float(blocks.saved)),
            head,
            (sums[0], sums[1], sums[2]),
            (frozen[0], frozen[1]),
            float(piece.work.positions) * pace.width * pace.element / layout.tp,
        )

    def estimate(self, recipe: Recipe, table: _Table) -> _Estimate:
        """Estimated seconds of a step and bytes of the fullest rank."""
        layout, batches = recipe.layout, recipe.accumulation
        again = recipe.recompute != "none"
        part = ceil_div(self.n_layers, layout.pp) / self.n_layers
        one = part * (table.layers[0] + table.layers[1] + (table.layers[2] if again else 0.0))
        ends = sum(table.ends) * (1.0 if layout.pp == 1 else 0.9)  # mostly the head's, on the last stage
        slowest = one + ends
        bubble = (layout.pp - 1) * one / layout.vpp + self._messages(recipe, table.handed)
        elements = table.elements[0] / layout.pp + table.elements[2], table.elements[1] / layout.pp
        exchange = self._exchange(recipe, elements, table.elements[2], one)
        if self.tied and layout.pp > 1 and not recipe.rules.dtensor:
            shared = ring("all_reduce", layout.ends(self.machine.node), table.elements[2] * recipe.gradient_bytes)
            exchange += self.kernels.transfer(shared)
        state, resident, gradients = self._state(recipe, elements)
        shares = layout.copies * layout.cp if recipe.zero_stage == 3 else 1
        resident += (table.frozen[0] / layout.pp + table.frozen[1]) / shares
        optimizer = state / self.machine.accelerator.bandwidth / self.machine.accelerator.efficiency.memory
        flights = min(batches, layout.pp)
        ahead = flights * (1 + (layout.pp - 1) / (layout.pp * layout.vpp)) if layout.vpp > 1 else flights
        activations = table.kept[1 if again else 0] * part * ahead
        if recipe.offloads("activations"):
            activations = min(activations, 3 * table.kept[1 if again else 0] / self.n_layers)
        loss = table.logits if layout.pp == 1 else 0.0
        forward = activations + loss
        if batches > 1 or recipe.rules.held:
            resident += forward + gradients
        else:  # gradients are made as activations are freed
            resident += max(forward, gradients)
        return _Estimate(recipe, batches * slowest + bubble + exchange + optimizer, resident)

    def _messages(self, recipe: Recipe, handed: float) -> float:
        """Seconds of messages between stages that no compute hides, the first micro-batch's there and the last one's
        back, and of the waits before all of them."""
        layout = recipe.layout
        if layout.pp == 1:
            return 0.0
        sent = self.kernels.transfer(Message("send", layout.group("pp", self.machine.node), handed))
        before = recipe.accumulation * layout.vpp * min(2, layout.pp - 1) * sum(self.machine.waits)
        return 2 * (layout.pp * layout.vpp - 1) * sent + before

    def _state(self, recipe: Recipe, elements: tuple[float, float]) -> tuple[float, float, float]:
        """Bytes of a rank: moved by the optimizer step, of weights and optimizer state, and of gradients."""
        beside = optimizer_bytes(MATRIX, recipe, recipe.parameter_bytes, True) / product(MATRIX)
        width, gradient = recipe.parameter_bytes, recipe.gradient_bytes
        copies = recipe.layout.copies * recipe.layout.cp
        held = moved = gradients = 0.0
        for number, sharers in zip(
            elements, (copies, max(1, copies * recipe.layout.tp // recipe.layout.expert_group)), strict=True
        ):
            shares = sharers if recipe.zero_stage else 1
            on_it = 0.0 if recipe.offloads("optimizer") else beside / shares
            held += number * (width / (shares if recipe.zero_stage == 3 else 1) + on_it)
            gradients += number * gradient / (shares if recipe.zero_stage > 1 else 1)
            moved += number * (gradient + 2 * width + 2 * beside) / shares
        if recipe.shards > 1 and recipe.layout.pp > 1:
            held += sum(elements) * recipe.compute_bytes
            gradients += sum(elements) * recipe.reduce_bytes
        return moved, held, gradients

    def _exchange(self, recipe: Recipe, elements: tuple[float, float], ends: float, backward: float) -> float:
        """Seconds of data-parallel communication that compute does not hide. `elements` of weights and experts per
        rank; `ends` those of them outside the layers."""
        kernels, layout, lost = self.kernels, recipe.layout, self.machine.lost
        copies = layout.copies * layout.cp
        seconds = 0.0
        for number, step, last in zip(elements, (layout.tp, layout.expert_group), (ends, 0.0), strict=True):
            size = max(1, copies * layout.tp // step)
            if size == 1 or not number:
                continue
            group = self.machine.beside(size, step, layout.gpus)
            layers = max(1, self.n_layers // layout.pp)
            alone = (last + (number - last) / layers) / number  # with no compute beside it
            if recipe.zero_stage == 3:
                rounds = recipe.accumulation if layout.pp == 1 else 1
                gathered = kernels.transfer(ring("all_gather", group, number * recipe.compute_bytes, layers))
                reduced = kernels.transfer(ring("reduce_scatter", group, number * recipe.reduce_bytes, layers))
                beside = (2 - alone) * gathered + (1 - alone) * reduced
                seconds += rounds * (lost(beside, backward) + alone * (gathered + reduced))
                continue
            gradients, weights = number * recipe.gradient_bytes, number * recipe.parameter_bytes
            if recipe.zero and recipe.rules.reduces_after:
                moves = ring("all_reduce", group, gradients), ring("all_gather", group, weights)
                seconds += sum(map(kernels.transfer, moves))
                continue
            pieces = max(1, round(gradients / recipe.rules.bucket))
            kind = "reduce_scatter" if recipe.zero else "all_reduce"
            reduced = kernels.transfer(ring(kind, group, gradients, pieces))
            seconds += lost((1 - alone) * reduced, 2 / 3 * backward) + alone * reduced
            if recipe.zero:
                gathered = kernels.transfer(ring("all_gather", group, weights, pieces))
                hides = recipe.rules.gathers_beside
                seconds += lost((1 - alone) * gathered, backward / 3) + alone * gathered if hides else gathered
        return seconds


def fewest_gpus(
    search_of: Callable[[int], Search], node: int | None, tell: Callable[[str, float], None] | None = None
) -> Searched:
    """The search over the fewest accelerators on which a layout fits: 1, 2, 4 … of a node, and whole nodes, of which
    those with less memory than the model's state are not searched. `refused` where twice as many do not hold less.
    Errors: as `Search.run`, where no number of a node's has a layout."""
    node = node or NODE

    def run(number: int) -> Searched | TxcalcError:
        try:
            return search_of(number).run(tell, given=False)
        except (InputError, Refuted) as error:
            return error

    few, number, found = 0, 1, run(1)
    least = 1 if isinstance(found, TxcalcError) or not found.refused else search_of(1).least
    while isinstance(found, TxcalcError) or found.refused:
        few, number, before = number, min(2 * number, node) if number < node else 2 * number, found
        while node < number < least:
            few, number = number, 2 * number
        found = run(number)
        if isinstance(before, TxcalcError):
            if number > node:
                raise before
        elif isinstance(found, TxcalcError):
            return before._replace(refused=f"{before.refused}; of {number:,}: {found}")
        elif found.refused and found.held > SMALLER * before.held:
            return found
    low, high = max(few, min(number, least) - 1) // node, number // node
    while high - low > 1:
        middle = (low + high) // 2
        between = run(middle * node)
        if isinstance(between, TxcalcError) or between.refused:
            low = middle
        else:
            high, found = middle, between
    return found._replace(too_few=low * node or few)
