"""What is measured and proved with PyTorch: `verify`, `prove`, `trace`, `calibrate`."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import txcalc
from txcalc.api.phrases import adapters
from txcalc.cli import completion, options as o
from txcalc.cli.command import Tell, command
from txcalc.errors import InputError

if TYPE_CHECKING:
    from txcalc.model import Model

MANY = 8  # models that are worth the start of a process for each core


@command(
    oracles=Annotated[
        list[str],
        typer.Option(
            "--oracle",
            help="parameters, fvcore, flops (the default), bytes, training, saved, cache, mask, traffic, other, "
            "memory, or all; on a device also peak and time, and by default all that takes no fakes. Repeatable.",
            metavar="NAME",
            autocompletion=completion.oracle,
        ),
    ],
    symbolic=typer.Option(
        "--symbolic/--points",
        help="Every layer for every batch and length, or refuse; or at points only. By default one layer of each "
        "kind for every batch and length, and all at a point.",
        show_default=False,
    ),
    layers=o.own("Only the first N layers, for small devices.", "N"),
    dtype=o.option("--dtype", "Here fp32 or bf16, of the modules."),
    against=o.option("--against", "also that library's module of the same config.json."),
    gpu=o.option("--gpu", "For the floor of times; or calibrate's file (default: measured)."),
    zero_cost=o.own("List the operators that may run without a count."),
    record=o.own("Store what was found of presets, as show's evidence."),
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
    workers: Annotated[int | None, o.option("--workers", "(of many models: one each core).")] = None,
    tell: Tell,
    **asked: Any,
) -> Any:
    """Predicted and measured side by side, part by part. With exact differences; exit code 0 only when all are equal.

    Example: txcalc verify gpt2
    """
    changes = adapters(lora)[0]
    if layout is not None:
        if not sources:
            raise InputError("verify", ["expected models whose --layout is verified"])
        _refuse({"--workers": workers is not None}, "belongs to models without --layout")
        models = o.models(sources, ignore, changes)
        if torchrun is not None:
            if ranks is not None:
                raise InputError("verify", ["--ranks is for --layout alone: --torchrun runs all of them"])
            return _torchrun(models, layout, recipe or "", torchrun, device)
        _refuse({"--device": device != "meta"}, "with --layout belongs to --torchrun")
        return txcalc.verify(*models, layout=layout, recipe=recipe or "", ranks=ranks)
    alone = {"--recipe": recipe, "--ranks": ranks is not None, "--torchrun": torchrun is not None}
    _refuse(alone, "belongs to --layout")
    given = _given("verify", sources, everything)
    if lora and asked["record"]:
        raise InputError("options", ["--record keeps what holds of presets, --lora changes them"])
    models = o.models(given, ignore, changes)
    if device != "meta":
        gc.freeze()  # what is imported is no garbage: measuring collects often, and need not look at it
    if workers is None:
        workers = os.cpu_count() or 1 if device == "meta" and len(models) >= MANY else 1
    return txcalc.verify(*models, device=device, workers=workers, tell=tell, **asked)


def _given(command: str, sources: list[str] | None, everything: bool) -> list[str]:
    """The models that are named, or every preset. Errors: `InputError` for none, or for both."""
    from txcalc.sources.presets import names

    if everything == bool(sources):
        raise InputError(command, ["expected models, or --all for every preset" + (", not both" if sources else "")])
    return names() if everything else sources or []


def _torchrun(models: Sequence[Model], layout: str, recipe: str, number: int, device: str) -> Any:
    """Every model over real processes; only one of them says what was found."""
    from txcalc.api.proofs import Verify
    from txcalc.planning.layout import parse_layout
    from txcalc.planning.training.recipe import parse_recipe
    from txcalc.verify.real import verify_real

    asked = parse_recipe(recipe, parse_layout(layout))
    found = [verify_real(model, asked, number, "cpu" if device == "meta" else device) for model in models]
    verdicts = [verdict for verdict in found if verdict is not None]
    return Verify(verdicts) if len(verdicts) == len(found) else None


def _refuse(given: dict[str, Any], why: str) -> None:
    """Errors: `InputError` that names every option given for nothing."""
    if faults := [f"{name} {why}" for name, value in given.items() if value]:
        raise InputError("verify", faults)


@command()
def prove(
    sources: o.MaybeSources = None,
    everything: Annotated[bool, o.option("--all")] = False,
    set_: o.Set = None,
    ignore: o.Ignore = None,
    again: Annotated[bool, typer.Option("--again", help="Also prove again what has a theorem.")] = False,
    out: Annotated[
        Path | None, o.option("--out", "a .json for the theorems (default: in your own data folder).")
    ] = None,
    *,
    tell: Tell,
) -> Any:
    """Prove a model's formulas for every size. Its structure is traced with symbols for widths, heads, experts, batch
    and length; every model of that structure inherits the theorem.

    Example: txcalc prove my-model/config.json
    """
    given = _given("prove", sources, everything)
    return txcalc.prove(*o.models(given, ignore, o.changes(set_)), again=again, out=out, tell=tell)


@command(
    inputs=Annotated[
        list[str],
        typer.Option(
            "--input",
            help="What it takes, if not token ids: sizes are B, T, T_src or numbers. Repeatable.",
            metavar="NAME=B,T:int64",
        ),
    ],
    batch=o.length("--batch", "Measures at this one, where no formula holds for all."),
    tokens=o.length("--tokens", "Measures at this length."),
    source_tokens=o.length("--source-tokens", "Measures at this T_src."),
    device=o.option("--device", "The last two measure what depends on data."),
)
def trace(
    source: Annotated[
        str,
        typer.Argument(
            help="FILE.py:factory or module:Class, called without arguments, that makes a module taking token ids.",
            metavar="FILE.py:NAME",
        ),
    ],
    **asked: Any,
) -> Any:
    """Parameters and FLOPs of any PyTorch module, by part. As formulas in batch and length, beside what fvcore counts.

    Exit code 1 where an operator that may cost has no count: the FLOPs are then at least those shown.
    Example: txcalc trace model.py:build
    """
    return txcalc.trace(source, **asked)


@command()
def calibrate(
    device: Annotated[str, o.option("--device", "Not meta.")] = "cpu",
    out: Annotated[Path | None, o.option("--out", "a .toml for deploy --gpu FILE.")] = None,
    force: o.Force = False,
    like: Annotated[
        str | None,
        typer.Option(
            help="The accelerator whose datasheet it has; without it the best that is measured.",
            metavar="NAME",
            autocompletion=completion.accelerator,
        ),
    ] = None,
    *,
    tell: Tell,
) -> Any:
    """Measure what this machine reaches in two minutes: products, copies, attention, launches. For deploy --gpu FILE.

    Example: txcalc calibrate --device cpu --out mine.toml
    """
    return txcalc.calibrate(device, out=out, force=force, like=like, tell=tell)
