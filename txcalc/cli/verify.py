"""`verify` on the command line: every preset, a real run of a layout, one process per core."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from txcalc.cli import options
from txcalc.cli.build import Call
from txcalc.errors import InputError
from txcalc.questions import options as o
from txcalc.questions.phrases import adapters

if TYPE_CHECKING:
    from txcalc.model import Model

MANY = 8  # models: from here on one process per core is faster


def run(
    call: Call,
    *,
    lora: Annotated[
        str | None,
        o.LORA.more("With --layout, base=bf16 or fp32: dtype of the frozen matrices; dtype=: of the adapters."),
    ] = None,
    everything: Annotated[bool, o.EVERY_PRESET] = False,
    torchrun: Annotated[
        int | None,
        o.Option(
            "With --layout: run a real step on N processes with gloo (--device cuda: NCCL), started here or by "
            "torchrun.",
            "N",
            "Engine",
        ),
    ] = None,
) -> Any:
    """Refuses options without effect, and asks."""
    values = call.values
    layout, ranks, device, workers = (values[name] for name in ("layout", "ranks", "device", "workers"))
    changes, dtypes = adapters(lora, ("base", "dtype") if layout and torchrun is None else ())
    if layout is not None:
        if not call.sources:
            raise InputError("verify", ["expected models"])
        refuse({"--workers": workers is not None}, "does not work with --layout")
        models = options.models(call.sources, call.ignore, changes)
        if torchrun is not None:
            if ranks is not None:
                raise InputError("verify", ["--ranks does not work with --torchrun, which runs all ranks"])
            return run_step(models, layout, values["recipe"], torchrun, device)
        refuse({"--device": device != "meta"}, "with --layout needs --torchrun")
        recipe = values["recipe"]
        if lora:  # in the formats that train has
            recipe = f"frozen={dtypes.get('base', 'bf16')},adapter={dtypes.get('dtype', 'fp32')},{recipe}"
        return call._replace(values={"layout": layout, "recipe": recipe, "ranks": ranks}).ask(models)
    of_layout = {"--recipe": values["recipe"], "--ranks": ranks is not None, "--torchrun": torchrun is not None}
    refuse(of_layout, "needs --layout")
    sources = given("verify", call.sources, everything)
    if lora and values["record"]:
        raise InputError("options", ["--record needs presets as they are, without --lora"])
    models = options.models(sources, call.ignore, changes)
    if workers is None:
        workers = os.cpu_count() or 1 if device == "meta" and len(models) >= MANY else 1
    return call._replace(values=values | {"workers": workers}).ask(models)


def given(command: str, sources: list[str], everything: bool) -> list[str]:
    """The models that are named, or every preset. Errors: `InputError` for none, or for both."""
    from txcalc.sources.presets import names

    if everything == bool(sources):
        both = ", not both" if sources else ""
        raise InputError(command, [f"expected models, or --all for every preset{both}"])
    return names() if everything else sources


def run_step(models: Sequence[Model], layout: str, recipe: str, processes: int, device: str) -> object:
    """Runs every model on real processes; rank 0 reports."""
    from txcalc.planning.layout import parse_layout
    from txcalc.planning.training.recipe import parse_recipe
    from txcalc.questions.verify import answer_of
    from txcalc.verification.real import verify_real

    training = parse_recipe(recipe, parse_layout(layout))
    device = "cpu" if device == "meta" else device
    by_model = [verify_real(model, training, processes, device) for model in models]  # None on ranks other than 0
    verdicts = [verdict for verdict in by_model if verdict is not None]
    return answer_of(verdicts) if len(verdicts) == len(by_model) else None


def refuse(options_given: dict[str, Any], why: str) -> None:
    """Refuses options without effect. Errors: `InputError`."""
    if faults := [f"{name} {why}" for name, value in options_given.items() if value]:
        raise InputError("verify", faults)
