"""`txcalc trace`: what anybody's module costs, as formulas."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
@o.follows(
    "trace",
    inputs=Annotated[
        list[str],
        typer.Option(
            "--input",
            help="What it takes, if not token ids: sizes are B, T, T_src or numbers. Repeatable.",
            metavar="NAME=B,T:int64",
        ),
    ],
    batch=Annotated[int | None, o.length("--batch", "Measures at this one, where no formula holds for all.")],
    tokens=Annotated[int | None, o.length("--tokens", "Measures at this length.")],
    source_tokens=Annotated[int | None, o.length("--source-tokens", "Measures at this T_src.")],
    device=Annotated[str, o.option("--device", "The last two measure what depends on data.")],
)
def trace(
    source: Annotated[
        str,
        typer.Argument(
            help="FILE.py:factory or module:Class, called without arguments, that makes a module taking token ids.",
            metavar="FILE.py:NAME",
        ),
    ],
    *,
    format_: o.Format = "table",
    json_: o.Json = False,
    **asked: Any,
) -> None:
    """Parameters and FLOPs of any PyTorch module, by part. As formulas in batch and length, beside what fvcore counts.

    Exit code 1 where an operator that may cost has no count: the FLOPs are then at least those shown.
    Example: txcalc trace model.py:build
    """
    from txcalc import trace as answer
    from txcalc.cli.output import give

    give(answer(source, **asked), o.chosen(format_, json_))
