"""`txcalc measure`: a list of models on a real device, beside what was predicted."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Annotated

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def measure(
    device: Annotated[str, o.option("--device", "Not meta.")] = "cpu",
    gpu: Annotated[
        str | None, o.option("--gpu", "For the floor of times; or calibrate's file (default: measured).")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Of the list only this item. Repeatable.", metavar="ITEM")
    ] = None,
    limit: Annotated[float, typer.Option(help="Seconds after which nothing new is begun.", metavar="N")] = 540,
    out: Annotated[
        Path | None, o.option("--out", "a .json that is written after every step, and gone on with.")
    ] = None,
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """Measure a list of models on this device, beside what was predicted. Counts must be equal (exit code 0); memory
    and times stand side by side; what --out holds of an earlier run is not measured again.

    Example: txcalc measure --device cpu --out mine.json
    """
    from txcalc import hardware
    from txcalc.cli.output import emit, progress
    from txcalc.errors import Fault, InputError
    from txcalc.render.measurements import report
    from txcalc.verify.suite import Suite

    chosen = o.chosen(format_, json_)
    if not limit > 0:
        raise InputError("measure", [Fault("--limit", limit, "seconds, more than 0")])
    command = " ".join(["txcalc", *sys.argv[1:]])
    like = hardware.load(gpu) if gpu else None
    gc.freeze()  # what is imported is no garbage: measuring collects often, and need not look at it
    with progress() as tell:
        found = Suite(device, out, command, limit, like=like, tell=tell, only=only or ()).run()
    emit(report(found), chosen)
    steps = [step for item in found["items"].values() for step in item["steps"].values()]
    if any(step.get("unequal") or "failed" in step for step in steps):
        raise typer.Exit(1)
