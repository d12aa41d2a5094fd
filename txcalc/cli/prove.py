"""`txcalc prove`: theorems of a model's structures, for every size; `show` marks what inherits them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def prove(
    sources: o.MaybeSources = None,
    everything: Annotated[bool, o.option("--all")] = False,
    set_: o.Set = None,
    ignore: o.Ignore = None,
    again: Annotated[bool, typer.Option(help="Also prove again what has a theorem.")] = False,
    out: Annotated[
        Path | None, o.option("--out", "a .json for the theorems (default: in your own data folder).")
    ] = None,
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """Prove a model's formulas for every size. Its structure is traced with symbols for widths, heads, experts, batch
    and length; every model of that structure inherits the theorem.

    Example: txcalc prove my-model/config.json
    """
    from txcalc import load
    from txcalc import prove as answer
    from txcalc.cli.output import give, progress
    from txcalc.errors import InputError
    from txcalc.sources.presets import names

    chosen = o.chosen(format_, json_)
    if everything == bool(sources):
        raise InputError("prove", ["expected models, or --all for every preset" + (", not both" if sources else "")])
    given = names() if everything else sources or ()
    models = [load(source, o.changes(set_), ignore=ignore or ()) for source in given]
    with progress() as tell:
        found = answer(*models, again=again, out=out, tell=tell)
    give(found, chosen)
