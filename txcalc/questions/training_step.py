"""A training step part by part: the `training` of `show` and `formula`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from txcalc.errors import Fault, InputError
from txcalc.ledger import KINDS, Ledger
from txcalc.model import Model
from txcalc.planning.layout import AXES, Layout, read_layout
from txcalc.questions.answers import Answer

if TYPE_CHECKING:
    from txcalc.planning.training.parts import StepCosts
    from txcalc.planning.training.recipe import Recipe


class LayoutInfo(Answer, kw_only=True):
    """GPUs of each kind of parallelism; JSON has tp, pp, dp, ep, and others that are not 1. `zero`: stage of ZeRO."""

    tp: int
    sp: int = 1
    pp: int
    vpp: int = 1
    dp: int
    fsdp: int = 1
    cp: int = 1
    ep: int
    etp: int | None = None
    zero: int | None = None

    @classmethod
    def of(cls, layout: Layout, zero: int | None = None) -> Self:
        return cls(**layout.record(), zero=zero)

    @property
    def layout(self) -> Layout:
        return Layout(**{axis: getattr(self, axis) for axis in AXES})

    def __str__(self) -> str:
        return f"{self.layout}{f' ZeRO-{self.zero}' if self.zero else ''}"


class StepRecipe(Answer):
    """The recipe of a training step besides its layout; `summary`: in words."""

    framework: str
    micro_batch: int
    accumulation: int
    tokens: int
    recompute: str
    optimizer: str
    summary: str

    @classmethod
    def of(cls, recipe: Recipe, **fields: object) -> Self:
        from txcalc.planning.training.optimizers import OPTIMIZERS

        states = OPTIMIZERS[recipe.optimizer].what
        master = ", fp32 master weights" if recipe.rules.master and recipe.parameter_bytes < 4 else ""
        optimizer = f"{recipe.optimizer} as in {recipe.framework} ({states}{master})"
        return cls(
            framework=recipe.framework,
            micro_batch=recipe.micro_batch,
            accumulation=recipe.accumulation,
            tokens=recipe.tokens,
            recompute=recipe.recompute,
            optimizer=recipe.optimizer,
            summary=f"training: recompute {recipe.recompute}; {optimizer}",
            **fields,
        )


class StepPart(Answer):
    """A kind of part in a training step."""

    flops: int
    recomputed_flops: int
    saved_bytes: int
    optimizer_bytes: int

    @classmethod
    def of(cls, costs: StepCosts) -> Self:
        return cls(costs.flops, costs.recomputed, costs.saved, costs.optimizer)


class TrainingStep(StepRecipe, kw_only=True):
    """A training step of the fullest GPU of a layout, in total and by kind of part.

    in_flight   micro-batches of each of the rank's pieces of the pipeline
    """

    layout: LayoutInfo
    rank: int
    stage: int
    in_flight: tuple[int, ...]
    flops: int
    recomputed_flops: int
    saved_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    parts: dict[str, StepPart]
    notes: tuple[str, ...] = ()

    def in_order(self) -> dict[str, StepPart]:
        """The parts in the order of the tables."""
        return {kind: self.parts[kind] for kind in (*KINDS, *self.parts) if kind in self.parts}


def step_recipe(
    ledger: Ledger, recompute: str | None, optimizer: str | None, layout: Layout | str | None, dtype: str = "bf16"
) -> Recipe:
    """The recipe of a step over a ledger's workload per rank; in a pipeline, as many micro-batches as stages. Errors:
    `InputError` for a workload that cannot be trained on."""
    from txcalc.planning.training.search import resolve_recipe

    work, faults = ledger.work, list[Fault | str]()
    for name, wrong, expected in (
        ("--past", work.past, "0: a training step has no cache"),
        ("--logits", "last" if work.last_logits else 0, "all: the loss is of every position"),
        ("--mla", "absorbed" if work.absorbed else 0, "expanded, as it is trained"),
    ):
        faults += [Fault(name, wrong, expected)] if wrong else []
    if faults:
        raise InputError("training step", faults)
    ranks = read_layout(layout or Layout())
    choices = {"micro_batch": work.batch, "compute": dtype, "recompute": recompute or "none"}
    choices["optimizer"] = optimizer or "adamw"
    recipe = resolve_recipe(ranks, None, work.batch * ranks.copies * ranks.pp, work.tokens, choices)
    recipe.check()
    return recipe


def training_step(
    model: Model,
    ledger: Ledger,
    recompute: str | None,
    optimizer: str | None,
    layout: Layout | str | None,
    dtype: str = "bf16",
) -> TrainingStep:
    """A training step over a ledger's workload per rank. Errors: `InputError`, `UnknownName`."""
    from txcalc.planning.training.parts import by_part

    work, recipe = ledger.work, step_recipe(ledger, recompute, optimizer, layout, dtype)
    usual = model.workload(work.batch, work.tokens).source
    if usual != work.source:
        expected = f"{usual:,}, the default that a training step has"
        raise InputError("training step", [Fault("--source-tokens", work.source, expected)])
    step = by_part(model.language(), recipe)
    whole, rank = step.total, step.rank
    return TrainingStep.of(
        recipe,
        layout=LayoutInfo.of(recipe.layout),
        rank=rank.rank,
        stage=rank.stage,
        in_flight=rank.in_flight,
        flops=whole.flops,
        recomputed_flops=whole.recomputed,
        saved_bytes=whole.saved,
        parameters_bytes=rank.state.parameters,
        gradients_bytes=rank.state.gradients,
        optimizer_bytes=whole.optimizer,
        parts={kind.replace(" ", "_"): StepPart.of(costs) for kind, costs in step.parts.items()},
        notes=step.notes,
    )
