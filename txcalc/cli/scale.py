"""`txcalc scale`: loss and the best size, by scaling laws."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txcalc.cli import completion
from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


def count(flag: str, more: str = "") -> Any:
    """A number as people write counts: 8B, 15T, 3.8e25."""
    from txcalc.units import parse_count

    return o.option(flag, more, parser=lambda value: parse_count(value, flag), metavar="N")


@app.command()
@o.follows(
    "scale",
    params=Annotated[int | None, count("--params", "Instead of a model's.")],
    train_tokens=Annotated[int | None, count("--train-tokens")],
    compute=Annotated[int | None, count("--compute")],
    unique_tokens=Annotated[
        int | None, count("--unique-tokens", "Of the tokens, how many are different: the rest is seen again.")
    ],
    laws=Annotated[
        str | None,
        typer.Option(
            "--law",
            help="Laws, separated by commas (default: all that answer).",
            metavar="NAME,…",
            autocompletion=completion.law,
        ),
    ],
    bytes_per_token=Annotated[
        str | None, typer.Option(help="Bytes of text per token of your tokenizer, for bits per byte.", metavar="X")
    ],
)
def scale(
    source: Annotated[
        str | None, typer.Argument(help="A model, whose parameters are N.", autocompletion=completion.source)
    ] = None,
    *,
    format_: o.Format = "table",
    json_: o.Json = False,
    **asked: Any,
) -> None:
    """What loss to expect, and which size is best for a budget. By scaling laws whose constants were checked.

    Example: txcalc scale llama-3.1-8b --train-tokens 15T
    """
    from txcalc import scale as answer
    from txcalc.cli.output import give

    give(answer(source, **asked), o.chosen(format_, json_))
