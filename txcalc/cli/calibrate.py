"""`txcalc calibrate`: what this machine reaches, as a hardware file."""

from __future__ import annotations

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
    force: o.Force = False,
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
    from txcalc import calibrate as answer
    from txcalc.cli.output import give, progress

    chosen = o.chosen(format_, json_)
    with progress() as tell:
        found = answer(device, out=out, force=force, like=like, tell=tell)
    give(found, chosen)
