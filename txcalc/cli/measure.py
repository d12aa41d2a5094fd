"""`txcalc measure`: a list of models on a real device, beside what was predicted."""

from __future__ import annotations

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
        list[str] | None, typer.Option(help="Only this item of the list. Repeatable.", metavar="ITEM")
    ] = None,
    limit: Annotated[float, typer.Option(help="Seconds after which no new item is started.", metavar="N")] = 540,
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
    from txcalc import measure as answer
    from txcalc.cli.output import give, progress

    chosen = o.chosen(format_, json_)
    command = " ".join(["txcalc", *sys.argv[1:]])
    with progress() as tell:
        found = answer(device, gpu=gpu, only=only or (), limit=limit, out=out, command=command, tell=tell)
    give(found, chosen)
