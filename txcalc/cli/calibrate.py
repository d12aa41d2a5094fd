"""`txcalc calibrate`: what this machine reaches, as a hardware file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from txcalc.cli import completion
from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def calibrate(
    device: Annotated[str, o.option("--device", "Not meta.")] = "cpu",
    out: Annotated[Path | None, o.option("--out", "a .toml for deploy --gpu FILE.")] = None,
    like: Annotated[
        str | None,
        typer.Option(
            help="The accelerator whose datasheet it has; without it the best that is measured.",
            metavar="NAME",
            autocompletion=completion.accelerator,
        ),
    ] = None,
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """Measure what this machine reaches in two minutes: products, copies, attention, starts. For deploy --gpu FILE.

    Example: txcalc calibrate --device cpu --out mine.toml
    """
    from rich.console import Console
    from rich.progress import Progress

    from txcalc import hardware
    from txcalc.cli.output import emit
    from txcalc.errors import Fault, InputError
    from txcalc.sources.export import as_toml

    chosen = o.chosen(format_, json_)
    if device == "meta":
        raise InputError("calibrate", [Fault("--device", device, "cpu or cuda")])
    if out is not None and out.suffix != ".toml":
        raise InputError("calibrate", [Fault("--out", str(out), "a file that ends in .toml, as deploy --gpu reads it")])
    if out is not None and not (out.absolute().parent.is_dir() and not out.is_dir()):
        raise InputError("calibrate", [Fault("--out", str(out), "a file in a folder that exists")])
    as_toml({})  # that it can be written is known before two minutes are over
    datasheet = hardware.load(like) if like else None

    from txcalc.render.calibrate import report
    from txcalc.verify.calibrate import calibrate as measure

    name = out.stem if out else "this-machine"
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("measuring", total=1.0)
        found = measure(device, name=name, like=datasheet, progress=lambda share: bar.update(task, completed=share))
    described = found.described()
    if out is not None:
        out.write_text(as_toml(described["accelerator"]))
    emit(report(described, str(out) if out else None), chosen)
