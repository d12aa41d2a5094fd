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
        str | None, typer.Option(help="Laws, apart by commas (default: all that answer).", metavar="NAME,…")
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
    from fractions import Fraction

    from txcalc import load
    from txcalc.cli.output import emit
    from txcalc.errors import Fault, InputError
    from txcalc.planning.scaling import Question, ask, counted, laws
    from txcalc.render.scale import scale_report

    if source is not None and params is not None:
        raise InputError("scale", ["give a model or --params, not both"])
    counts = ""
    if source is not None:
        model = load(source)
        params, counts = counted(model), model.name
    size = None
    if bytes_per_token is not None:
        try:
            size = Fraction(bytes_per_token)
        except (ValueError, ZeroDivisionError):
            size = Fraction(0)
        if not 0 < size < 1000:
            raise InputError("scale", [Fault("--bytes-per-token", bytes_per_token, "a number above 0, such as 4.2")])
    asked = Question(params, train_tokens, compute, unique_tokens).checked()
    answers = [ask(each, asked) for each in laws(law, unique_tokens)]
    emit(scale_report(asked, answers, counts, size), o.chosen(format_, json_))
