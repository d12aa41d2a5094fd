"""`presets`, `export`, `measure`, `measurements`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import txcalc
from txcalc.cli import options as o
from txcalc.cli.command import Tell, command
from txcalc.cli.output import print_notes as told


@command()
def presets(
    pattern: Annotated[str, typer.Argument(help="Part of a name or family; * and ? are wildcards.")] = "*",
    hardware: Annotated[bool, typer.Option("--hardware", help="List accelerators instead of models.")] = False,
) -> Any:
    """List the presets: models with family, kind, parameters and context; or accelerators.

    Example: txcalc presets 'llama*'
    """
    return txcalc.presets(pattern, hardware=hardware)


@command(formats=False)
def export(
    source: o.Source,
    to: Annotated[Literal["toml", "config.json"], typer.Option("--to", help="A preset, or a Hugging Face config.")],
    file: Annotated[Path | None, typer.Argument(help="The file; default: standard output.", metavar="FILE")] = None,
    force: o.Force = False,
    set_: o.Set = None,
    ignore: o.Ignore = None,
) -> Any:
    """Write a model as a preset or a config.json, which reads back to the same numbers.

    Example: txcalc export llama-3.1-8b --to config.json
    """
    found = txcalc.export(o.model(source, set_, ignore), to, file, force=force)
    if file is None:
        sys.stdout.write(found.text)
    told(found.notes)


@command()
def measure(
    device: Annotated[str, o.option("--device", help="Device: cpu or cuda.")] = "cpu",
    gpu: Annotated[
        str | None,
        o.option("--gpu", help="An accelerator or calibrate's file, for the floor times (default: measured)."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this item of the list. Repeatable.", metavar="ITEM")
    ] = None,
    limit: Annotated[float, typer.Option(help="Start no new item after N seconds.", metavar="N")] = 540,
    out: Annotated[Path | None, o.option("--out", "a .json after every step; a later run continues it.")] = None,
    *,
    tell: Tell,
) -> Any:
    """Measure a list of models on this device and compare with the predictions. Counts must be equal (exit code 0);
    memory and times are shown with their predictions.

    Example: txcalc measure --device cpu --out mine.json
    """
    command = " ".join(["txcalc", *sys.argv[1:]])
    return txcalc.measure(device, gpu=gpu, only=only or (), limit=limit, out=out, command=command, tell=tell)


@command()
def measurements(
    file: Annotated[
        str,
        typer.Argument(help='A file written by "txcalc measure", or the name of a bundled one.', metavar="FILE"),
    ] = "cpu",
) -> Any:
    """Show the results of "txcalc measure": counts, memory and times with their predictions.

    Example: txcalc measurements cpu
    """
    return txcalc.measurements(file).report()
