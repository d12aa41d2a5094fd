"""From what is given of a training run to a whole recipe: of a given layout, or of the fastest that a search finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from txcalc.errors import Fault, InputError
from txcalc.model import Model
from txcalc.num import ceil_div
from txcalc.planning.layout import Layout
from txcalc.planning.machine import Machine
from txcalc.planning.training.frameworks import FRAMEWORKS
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.search import Search, Searched, fewest_gpus

TOKENS = 4096  # default sequence length, if the context is not shorter
STEP_TOKENS = 1 << 20  # default tokens per step, at least
ADAPTER_SEQUENCES = 64  # default sequences per step with adapters, at most


def sequence_length(model: Model, tokens: int | None) -> int:
    """The sequence length: as given, or the default; fixed in vision models."""
    if model.fixed_length:
        return int(model.workload().tokens)
    return min(TOKENS, model.context or TOKENS) if tokens is None else tokens


def global_batch(batch: int | None, multiple: int, tokens: int, adapters: bool = False) -> int:
    """Sequences per step: as given, or the power of two times `multiple` that reaches `STEP_TOKENS`; with adapters at
    most `ADAPTER_SEQUENCES`, or `multiple`. Errors: `InputError`."""
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
    """The fastest layouts of a number of GPUs (None: of the fewest on which one fits), or the smallest where none fits.
    `choices` are fields of the recipe, which the search keeps. Errors: `InputError`, `Refuted` where there is none."""
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
    layout: Layout,
    gpus: int | None,
    batch: int | None,
    tokens: int,
    choices: Mapping[str, Any],
    flag: str = "--gpu",
) -> Recipe:
    """The recipe of a layout: `choices` are fields of it, `flag` says where the number of GPUs was given. Errors:
    `InputError` with every fault."""
    faults: list[Fault | str] = []
    if gpus is not None and layout.gpus != gpus:
        product = f"its sizes multiply to {layout.gpus:,}"
        faults.append(Fault("--layout", str(layout), f"the {gpus:,} GPUs of {flag}", product))
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
    usual = ("fsdp2",) if layout.fsdp > 1 or single else ("megatron", "fsdp2")
    having = (name for name in usual if FRAMEWORKS[name].schedules_by(schedule, layout.pp))
    chosen = {"framework": next(having, usual[0]), "schedule": schedule, **choices}
    return Recipe(layout, accumulation=max(1, step_sequences // (sequences or 1)), tokens=tokens, **chosen)
