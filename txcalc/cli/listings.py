"""What there is, what is measured and what is written back: `presets`, `export`, `measure`, `measurements`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import txcalc
from txcalc.cli import options as o
from txcalc.cli.command import Tell, command
from txcalc.cli.output import tell as told


@command()
def presets(
    pattern: Annotated[str, typer.Argument(help="A part of a name or family; * and ? as in file names.")] = "*",
    hardware: Annotated[bool, typer.Option("--hardware", help="Accelerators instead of models.")] = False,
) -> Any:
    """List the presets: models, or accelerators. With family, kind, parameters, active parameters and context.

    Example: txcalc presets 'llama*'
    """
    return txcalc.presets(pattern, hardware=hardware)


@command(formats=False)
def export(
    source: o.Source,
    to: Annotated[Literal["toml", "config.json"], typer.Option("--to", help="A preset, or a Hugging Face config.")],
    file: Annotated[Path | None, typer.Argument(help="Where to; without it, standard output.", metavar="FILE")] = None,
    force: o.Force = False,
    set_: o.Set = None,
    ignore: o.Ignore = None,
) -> Any:
    """Write a model's description as a preset or a config.json. It reads back to the same numbers.

    Example: txcalc export llama-3.1-8b --to config.json
    """
    found = txcalc.export(o.model(source, set_, ignore), to, file, force=force)
    if file is None:
        sys.stdout.write(found.text)
    told(found.notes)


@command()
def measure(
    device: Annotated[str, o.option("--device", "Not meta.")] = "cpu",
    gpu: Annotated[
        str | None, o.option("--gpu", "For the floor of times; or calibrate's file (default: measured).")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this item of the list. Repeatable.", metavar="ITEM")
    ] = None,
    limit: Annotated[float, typer.Option(help="Seconds after which no new item is started.", metavar="N")] = 540,
    out: Annotated[
        Path | None, o.option("--out", "a .json that is written after every step, and gone on with.")
    ] = None,
    *,
    tell: Tell,
) -> Any:
    """Measure a list of models on this device, beside what was predicted. Counts must be equal (exit code 0); memory
    and times stand side by side; what --out holds of an earlier run is not measured again.

    Example: txcalc measure --device cpu --out mine.json
    """
    command = " ".join(["txcalc", *sys.argv[1:]])
    return txcalc.measure(device, gpu=gpu, only=only or (), limit=limit, out=out, command=command, tell=tell)


@command()
def measurements(
    file: Annotated[
        str,
        typer.Argument(
            help='A file that "txcalc measure" wrote, or the name of one that comes with txcalc.', metavar="FILE"
        ),
    ] = "cpu",
) -> Any:
    """Show what "txcalc measure" found: counts, memory and times beside what was predicted. Nothing is measured.

    Example: txcalc measurements cpu
    """
    return txcalc.measurements(file).report()
