"""`txcalc presets`: which models and accelerators come with txcalc."""

from __future__ import annotations

from typing import Annotated

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def presets(
    pattern: Annotated[str, typer.Argument(help="A part of a name or family; * and ? as in file names.")] = "*",
    hardware: Annotated[bool, typer.Option("--hardware", help="Accelerators instead of models.")] = False,
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """List the presets: models, or accelerators. With family, kind, parameters, active parameters and context.

    Example: txcalc presets 'llama*'
    """
    from txcalc import presets as answer
    from txcalc.cli.output import give

    give(answer(pattern, hardware=hardware), o.chosen(format_, json_))
