"""`txcalc entropy`: the elementary sums over distributions."""

from __future__ import annotations

from typing import Annotated

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def entropy(
    p: Annotated[str, typer.Argument(help="Probabilities, separated by commas: 0.5,0.25,1/4.", metavar="P,P,…")],
    against: Annotated[
        str | None,
        o.option("--against", "another distribution q, for cross-entropy and divergence.", metavar="Q,Q,…"),
    ] = None,
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """Entropy and perplexity of a distribution. Cross-entropy and KL divergence against another, in bits and nats.

    Example: txcalc entropy 0.5,0.5 --against 0.9,0.1
    """
    from txcalc import entropy as answer
    from txcalc.cli.output import give

    give(answer(p, against), o.chosen(format_, json_))
