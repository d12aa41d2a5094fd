"""`txcalc verify`: the module that a description means, under every profiler, against the calculator."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from txcalc.cli import options as o

if TYPE_CHECKING:
    from txcalc.model import Model

app = typer.Typer(rich_markup_mode=None, add_completion=False)
MANY = 8  # models that are worth the start of a process for each core


@app.command()
@o.follows(
    "verify",
    oracles=Annotated[
        list[str],
        typer.Option(
            "--oracle",
            help="parameters, fvcore, flops (the default), bytes, training, saved, cache, mask, traffic, other, "
            "memory, or all; on a device also peak and time, and by default all that takes no fakes. Repeatable.",
            metavar="NAME",
        ),
    ],
    symbolic=Annotated[
        bool | None,
        typer.Option(
            "--symbolic/--points",
            help="Every layer for every batch and length, or refuse; or at points only. By default one layer of each "
            "kind for every batch and length, and all at a point.",
            show_default=False,
        ),
    ],
    layers=Annotated[int | None, typer.Option(help="Only the first N layers, for small devices.", metavar="N")],
    dtype=Annotated[Literal["fp32", "bf16"], o.option("--dtype", "Here fp32 or bf16, of the modules.")],
    against=Annotated[
        Literal["transformers"] | None, o.option("--against", "also that library's module of the same config.json.")
    ],
    gpu=Annotated[
        str | None,
        o.option("--gpu", "For the floor of times; or calibrate's file (default: measured)."),
    ],
    zero_cost=Annotated[bool, typer.Option(help="List the operators that may run without a count.")],
    record=Annotated[bool, typer.Option(help="Store what was found of presets, as show's evidence.")],
)
def verify(
    sources: o.MaybeSources = None,
    ignore: o.Ignore = None,
    lora: o.Lora = None,
    everything: Annotated[bool, o.option("--all")] = False,
    *,
    device: Annotated[str, o.option("--device", "On meta any size fits.")] = "meta",
    layout: Annotated[
        str | None,
        o.option("--layout", "Training so, against PyTorch's own sharding (a fake process group): tp=8,sp=8,fsdp=4."),
    ] = None,
    recipe: Annotated[
        str | None,
        o.option(
            "--recipe",
            "tokens=64,micro_batch=2,accumulation=8,schedule=1f1b,optimizer=adamw,parameter=bf16. With --layout.",
        ),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="With --layout: at most N different ranks of a stage.", metavar="N")
    ] = None,
    torchrun: Annotated[
        int | None,
        typer.Option(
            help="With --layout: N real processes run a step with values, on gloo (--device cuda: NCCL); started here, "
            "or by torchrun, whose environment is taken.",
            metavar="N",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        o.option("--workers", "(of many models: one each core)."),
    ] = None,
    format_: o.Format = "table",
    json_: o.Json = False,
    **asked: Any,
) -> None:
    """Predicted and measured side by side, part by part. With exact differences; exit code 0 only when all are equal.

    Example: txcalc verify gpt2
    """
    from txcalc import verify as answer
    from txcalc.api.phrases import adapters
    from txcalc.cli.output import give, progress
    from txcalc.errors import InputError
    from txcalc.sources.presets import names

    chosen = o.chosen(format_, json_)
    changes = adapters(lora)[0]
    if layout is not None:
        if not sources:
            raise InputError("verify", ["expected models whose --layout is verified"])
        _refuse({"--workers": workers is not None}, "belongs to models without --layout")
        models = o.models(sources, ignore, changes)
        if torchrun is not None:
            if ranks is not None:
                raise InputError("verify", ["--ranks is for --layout alone: --torchrun runs all of them"])
            return _torchrun(models, layout, recipe or "", torchrun, device, chosen)
        _refuse({"--device": device != "meta"}, "with --layout belongs to --torchrun")
        return give(answer(*models, layout=layout, recipe=recipe or "", ranks=ranks), chosen)
    alone = {"--recipe": recipe, "--ranks": ranks is not None, "--torchrun": torchrun is not None}
    _refuse(alone, "belongs to --layout")
    if everything == bool(sources):
        raise InputError("verify", ["expected models, or --all for every preset" + (", not both" if sources else "")])
    if lora and asked["record"]:
        raise InputError("options", ["--record keeps what holds of presets, --lora changes them"])
    models = o.models(names() if everything else sources or [], ignore, changes)
    if device != "meta":
        gc.freeze()  # what is imported is no garbage: measuring collects often, and need not look at it
    if workers is None:
        workers = os.cpu_count() or 1 if device == "meta" and len(models) >= MANY else 1
    with progress() as tell:
        found = answer(*models, device=device, workers=workers, tell=tell, **asked)
    give(found, chosen)


def _torchrun(models: Sequence[Model], layout: str, recipe: str, number: int, device: str, chosen: Any) -> None:
    """Every model over real processes; only one of them says what was found."""
    from txcalc.api.proofs import Verify
    from txcalc.cli.output import give
    from txcalc.planning.layout import parse_layout
    from txcalc.planning.training.recipe import parse_recipe
    from txcalc.verify.real import verify_real

    asked = parse_recipe(recipe, parse_layout(layout))
    found = [verify_real(model, asked, number, "cpu" if device == "meta" else device) for model in models]
    verdicts = [verdict for verdict in found if verdict is not None]
    if len(verdicts) == len(found):
        give(Verify(verdicts), chosen)


def _refuse(given: dict[str, Any], why: str) -> None:
    """Errors: `InputError` that names every option given for nothing."""
    from txcalc.errors import InputError

    if faults := [f"{name} {why}" for name, value in given.items() if value]:
        raise InputError("verify", faults)
