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


TrainTokens = Annotated[int | None, count("--train-tokens")]
Compute = Annotated[int | None, count("--compute")]


@app.command()
def scale(
    source: Annotated[
        str | None, typer.Argument(help="A model, whose parameters are N.", autocompletion=completion.source)
    ] = None,
    params: Annotated[int | None, count("--params", "Instead of a model's.")] = None,
    train_tokens: TrainTokens = None,
    compute: Compute = None,
    unique_tokens: Annotated[
        int | None, count("--unique-tokens", "Of the tokens, how many are different: the rest is seen again.")
    ] = None,
    law: Annotated[
        str | None,
        typer.Option(
            help="Laws, separated by commas (default: all that answer).",
            metavar="NAME,…",
            autocompletion=completion.law,
        ),
    ] = None,
    bytes_per_token: Annotated[
        str | None, typer.Option(help="Bytes of text in a token of your tokenizer: for bits per byte.", metavar="X")
    ] = None,
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """What loss to expect, and which size is best for a budget. By scaling laws whose constants were checked.

    Example: txcalc scale llama-3.1-8b --train-tokens 15T
    """
    from txcalc import scale as answer
    from txcalc.cli.output import give

    numbers = {"params": params, "train_tokens": train_tokens, "compute": compute, "unique_tokens": unique_tokens}
    found = answer(source, **numbers, laws=law, bytes_per_token=bytes_per_token)
    give(found, o.chosen(format_, json_))
