"""`txcalc design`: shapes of a decoder that spend a budget of parameters or of memory."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txcalc.cli import completion
from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
@o.follows(
    "design",
    params=Annotated[str | None, o.option("--params", "To spend.")],
    compute=Annotated[str | None, o.option("--compute", "To spend, by 6·N·D with N the active parameters.")],
    train_tokens=Annotated[str | None, o.option("--train-tokens", "D of --compute (default: 20 per parameter).")],
    vocab=Annotated[int | None, o.length("--vocab", "Rows of the vocabulary (default: 32,000).")],
    ratio=Annotated[
        str | None, typer.Option(help="F/D before it is rounded up to a multiple of 256 (default: 8/3).", metavar="R")
    ],
    gqa=Annotated[int | None, o.length("--gqa", "Query heads for each key/value head (default: 1).")],
    head=Annotated[int | None, o.length("--head", "Width of a head (default: 128).")],
    tied=Annotated[bool, typer.Option("--tied", help="One matrix for embedding and head.")],
    context=Annotated[
        int | None, o.length("--context", "Counts its cache and activations too (default: weights only).")
    ],
)
def design(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A model whose kind of layers the shapes have (experts, MLA, windows, hybrids …), heads and widths "
            "growing with D; without one, Llama's.",
            autocompletion=completion.source,
            metavar="[SOURCE]",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        o.option("--set", "Of SOURCE; also an expression: F=8/3*D. Repeatable."),
    ] = None,
    *,
    format_: o.Format = "table",
    json_: o.Json = False,
    **asked: Any,
) -> None:
    """Shapes that spend a budget of parameters, memory or training. L, D, h, h_kv and F, on friendly multiples.

    Example: txcalc design --memory 16GB --weights fp16
    """
    from txcalc import design as answer
    from txcalc.cli.output import give

    found = answer(source, changes=o.changes(set_), **asked)
    give(found, o.chosen(format_, json_))
