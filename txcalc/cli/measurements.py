"""`txcalc measurements`: what was measured, as tables."""

from __future__ import annotations

from typing import Annotated

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def measurements(
    file: Annotated[
        str,
        typer.Argument(
            help='A file that "txcalc measure" wrote, or the name of one that comes with txcalc.', metavar="FILE"
        ),
    ] = "cpu",
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """Show what "txcalc measure" found: counts, memory and times beside what was predicted. Nothing is measured.

    Example: txcalc measurements cpu
    """
    from txcalc import measurements as answer
    from txcalc.cli.output import emit

    emit(answer(file).report(), o.chosen(format_, json_))
