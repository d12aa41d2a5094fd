"""`txcalc fit`: which presets an accelerator or a memory holds."""

from __future__ import annotations

from typing import Annotated

import typer

from txcalc.cli import options as o
from txcalc.cli.deploy import Block, Chunk, Kv, ReserveOption, complete_gpu
from txcalc.errors import InputError

app = typer.Typer(rich_markup_mode=None, add_completion=False)

Memory = Annotated[str | None, typer.Option(help="A size instead: 16GB (10^9) or 16GiB; all of it.", metavar="SIZE")]


@app.command()
def fit(
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="An accelerator: l4.", autocompletion=complete_gpu, metavar="NAME")
    ] = None,
    memory: Memory = None,
    weights: Annotated[
        str, typer.Option(help="Formats of the weights, apart by commas.", metavar="FORMAT,…")
    ] = "bf16,fp8,int4",
    context: Annotated[int, o.length("--context", "Tokens of the one sequence.")] = 8192,
    kv: Kv = "bf16",
    block: Block = 16,
    chunk: Chunk = 8192,
    reserve: ReserveOption = None,
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """Which presets fit on one accelerator, and with how much room. In each format of the weights.

    Example: txcalc fit --gpu l4 --weights bf16,int4
    """
    from txcalc import hardware, load
    from txcalc.cli.output import emit
    from txcalc.planning.deployment import Reserve, engine, parse_reserve
    from txcalc.planning.fitting import checked_context, fits
    from txcalc.planning.weights import format_of
    from txcalc.render.fit import fit_report
    from txcalc.sources.presets import names
    from txcalc.units import parse_bytes

    if (gpu is None) == (memory is None):
        raise InputError("fit", ["give one of --gpu and --memory"])
    if memory is not None:
        size, where, kept = parse_bytes(memory, "--memory"), memory, Reserve.none()
    else:
        accelerator = hardware.load(gpu or "")
        size, where, kept = accelerator.memory, accelerator.title, Reserve()
    kept = parse_reserve(reserve) if reserve is not None else kept
    checked_context(context)
    formats = [format_of(name).name for name in weights.split(",")]
    models = [load(name) for name in names()]
    found = [
        fits(model, engine(model, name, kv, block, chunk, kept), size, context) for model in models for name in formats
    ]
    emit(fit_report(found, where, size, kept.of(size), context), o.chosen(format_, json_))
    if not any(one.fits for one in found):
        raise typer.Exit(1)
