"""`verify`, `prove`, `trace`, `calibrate`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import txcalc
from txcalc.cli import completion, options as o
from txcalc.cli.command import Tell, command
from txcalc.errors import InputError
from txcalc.questions.changes import parse_changes
from txcalc.questions.phrases import adapters

if TYPE_CHECKING:
    from txcalc.model import Model

MANY = 8  # models from which on one process per core pays


@command(
    oracles=Annotated[
        list[str],
        typer.Option(
            "--oracle",
            help="parameters, fvcore, flops (the default), bytes, training, saved, cache, mask, traffic, other, "
            "memory, or all; on a device also peak and time, and more by default. Repeatable.",
            metavar="NAME",
            autocompletion=completion.oracle,
        ),
    ],
    symbolic=typer.Option(
        "--symbolic/--points",
        help="Prove every layer for every batch and length, or refuse; or compare at points only. Default: one layer "
        "of each kind for every batch and length, and all layers at a point.",
        show_default=False,
    ),
    layers=o.own("Only the first N layers, for small devices.", "N"),
    dtype=o.option("--dtype", help="Dtype of the modules: fp32 or bf16."),
    against=o.option("--against", "transformers' module of the same config.json."),
    gpu=o.option("--gpu", help="An accelerator or calibrate's file, for the floor times (default: measured)."),
    zero_cost=o.own("List the operators counted as free."),
    record=o.own("Store the results for presets, as evidence for show."),
)
def verify(
    sources: o.MaybeSources = None,
    ignore: o.Ignore = None,
    lora: Annotated[
        str | None,
        o.option("--lora", "With --layout, base=bf16 or fp32: dtype of the frozen matrices; dtype=: of the adapters."),
    ] = None,
    everything: Annotated[bool, o.option("--all")] = False,
    *,
    device: Annotated[str, o.option("--device", "On meta any model size works.")] = "meta",
    layouts: Annotated[
        list[str] | None,
        o.option("--layout", "Verify training in this layout, against PyTorch's own sharding: tp=8,sp=8,fsdp=4."),
    ] = None,
    recipe: Annotated[
        str | None,
        o.option(
            "--recipe",
            "tokens=64,micro_batch=2,schedule=1f1b; also accumulation=, optimizer=, parameter=. With --layout.",
        ),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="With --layout: at most N kinds of ranks per stage.", metavar="N")
    ] = None,
    torchrun: Annotated[
        int | None,
        typer.Option(
            help="With --layout: run a real step on N processes with gloo (--device cuda: NCCL), started here or by "
            "torchrun.",
            metavar="N",
        ),
    ] = None,
    workers: Annotated[int | None, o.option("--workers", "(default: one, or one per core for many models).")] = None,
    tell: Tell,
    **asked: Any,
) -> Any:
    """Build the PyTorch module and compare it with the calculator, part by part. Exit code 0 only if everything is
    equal.

    Example: txcalc verify gpt2
    """
    layout = o.once("--layout", layouts)
    changes, beside = adapters(lora, ("base", "dtype") if layout and torchrun is None else ())
    if layout is not None:
        if not sources:
            raise InputError("verify", ["expected models"])
        _refuse({"--workers": workers is not None}, "does not work with --layout")
        models = o.models(sources, ignore, changes)
        if torchrun is not None:
            if ranks is not None:
                raise InputError("verify", ["--ranks does not work with --torchrun, which runs all ranks"])
            return _torchrun(models, layout, recipe or "", torchrun, device)
        _refuse({"--device": device != "meta"}, "with --layout needs --torchrun")
        if lora:  # in the formats that train has
            recipe = f"frozen={beside.get('base', 'bf16')},adapter={beside.get('dtype', 'fp32')},{recipe or ''}"
        return txcalc.verify(*models, layout=layout, recipe=recipe or "", ranks=ranks)
    alone = {"--recipe": recipe, "--ranks": ranks is not None, "--torchrun": torchrun is not None}
    _refuse(alone, "needs --layout")
    given = _given("verify", sources, everything)
    if lora and asked["record"]:
        raise InputError("options", ["--record needs presets as they are, without --lora"])
    models = o.models(given, ignore, changes)
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
    """Runs every model on real processes; rank 0 reports."""
    from txcalc.planning.layout import parse_layout
    from txcalc.planning.training.recipe import parse_recipe
    from txcalc.questions.proofs import Verify
    from txcalc.verification.real import verify_real

    asked = parse_recipe(recipe, parse_layout(layout))
    found = [verify_real(model, asked, number, "cpu" if device == "meta" else device) for model in models]
    verdicts = [verdict for verdict in found if verdict is not None]
    return Verify(verdicts) if len(verdicts) == len(found) else None


def _refuse(given: dict[str, Any], why: str) -> None:
    """Refuses options without effect. Errors: `InputError`."""
    if faults := [f"{name} {why}" for name, value in given.items() if value]:
        raise InputError("verify", faults)


@command()
def prove(
    sources: o.MaybeSources = None,
    everything: Annotated[bool, o.option("--all")] = False,
    set_: o.Set = None,
    ignore: o.Ignore = None,
    again: Annotated[bool, typer.Option("--again", help="Prove again structures that have a theorem.")] = False,
    out: Annotated[Path | None, o.option("--out", "a .json for the theorems (default: in your data folder).")] = None,
    *,
    tell: Tell,
) -> Any:
    """Prove a model's formulas for every size. Its structure is traced with symbolic widths, heads, experts, batch and
    length; every model of that structure inherits the theorem.

    Example: txcalc prove my-model/config.json
    """
    given = _given("prove", sources, everything)
    return txcalc.prove(*o.models(given, ignore, parse_changes(set_)), again=again, out=out, tell=tell)


@command(
    inputs=Annotated[
        list[str],
        typer.Option(
            "--input",
            help="An input, if not token ids, with sizes B, T, T_src or numbers. Repeatable.",
            metavar="NAME=B,T:int64",
        ),
    ],
    batch=o.length("--batch", "Measure at this batch, where no formula holds for all."),
    tokens=o.length("--tokens", "Measure at this length."),
    source_tokens=o.length("--source-tokens", "Measure at this T_src."),
    device=o.option("--device", "cpu and cuda measure what depends on data."),
)
def trace(
    source: Annotated[
        str,
        typer.Argument(
            help="FILE.py:factory or module:Class, called without arguments: returns a module that takes token ids.",
            metavar="FILE.py:NAME",
        ),
    ],
    **asked: Any,
) -> Any:
    """Parameters and FLOPs of any PyTorch module, part by part, as formulas in batch and length, with fvcore's count.

    Exit code 1: an operator that may cost FLOPs has no count, so the FLOPs are a lower bound.

    Example: txcalc trace model.py:build
    """
    return txcalc.trace(source, **asked)


@command()
def calibrate(
    device: Annotated[str, o.option("--device", help="Device: cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, o.option("--out", "a .toml for deploy --gpu FILE.")] = None,
    force: o.Force = False,
    like: Annotated[
        str | None,
        typer.Option(
            help="The accelerator whose datasheet applies, and whose servers' kernels stay as they are known: deploy "
            "keeps them, train takes what is measured. Default: the best measured rates, for all.",
            metavar="NAME",
            autocompletion=completion.accelerator,
        ),
    ] = None,
    *,
    tell: Tell,
) -> Any:
    """Measure this machine in two minutes (matrix products, copies, attention, kernel launches), for deploy --gpu FILE.

    Example: txcalc calibrate --device cpu --out mine.toml
    """
    return txcalc.calibrate(device, out=out, force=force, like=like, tell=tell)
