"""`txcalc trace`: what anybody's module costs, as formulas."""

from __future__ import annotations

from typing import Annotated

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def trace(
    source: Annotated[
        str,
        typer.Argument(
            help="FILE.py:factory or module:Class, called without arguments, that makes a module taking token ids.",
            metavar="FILE.py:NAME",
        ),
    ],
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """Parameters and FLOPs of any PyTorch module, by part. As formulas in batch and length, beside what fvcore counts.

    Example: txcalc trace model.py:build
    """
    from txcalc.cli.output import emit
    from txcalc.render.trace import report
    from txcalc.verify.trace import trace as traced

    emit(report(traced(source)), o.chosen(format_, json_))
