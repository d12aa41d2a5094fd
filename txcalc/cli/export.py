"""`txcalc export`: a description written back, as a preset or as a config.json."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def export(
    source: o.Source,
    to: Annotated[Literal["toml", "config.json"], typer.Option("--to", help="A preset, or a Hugging Face config.")],
    file: Annotated[Path | None, typer.Argument(help="Where to; without it, standard output.", metavar="FILE")] = None,
    force: o.Force = False,
    set_: o.Set = None,
    ignore: o.Ignore = None,
) -> None:
    """Write a model's description as a preset or a config.json. It reads back to the same numbers.

    Example: txcalc export llama-3.1-8b --to config.json
    """
    from txcalc import export as answer

    found = answer(source, to, file, force=force, changes=o.changes(set_), ignore=ignore or ())
    if file is None:
        sys.stdout.write(found.text)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
