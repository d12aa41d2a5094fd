"""`scale`, `entropy`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import txcalc
from txcalc.cli import completion, options as o
from txcalc.cli.command import command


@command(
    params=o.count("--params", "Instead of a model's."),
    train_tokens=o.count("--train-tokens"),
    compute=o.count("--compute"),
    unique_tokens=o.count("--unique-tokens", "Distinct training tokens; the rest are repeats."),
    laws=typer.Option(
        "--law",
        help="Laws, separated by commas (default: all that apply).",
        metavar="NAME,…",
        autocompletion=completion.law,
    ),
    bytes_per_token=o.own("Bytes of text per token of your tokenizer, for bits per byte.", "X"),
)
def scale(
    source: Annotated[
        str | None, typer.Argument(help="A model, whose parameters are N.", autocompletion=completion.source)
    ] = None,
    **asked: Any,
) -> Any:
    """Predict the loss, and the optimal size for a budget, by published scaling laws.

    Example: txcalc scale llama-3.1-8b --train-tokens 15T
    """
    return txcalc.scale(source, **asked)


@command()
def entropy(
    p: Annotated[str, typer.Argument(help="Probabilities, separated by commas: 0.5,0.25,1/4.", metavar="P,P,…")],
    against: Annotated[
        str | None, o.option("--against", "another distribution q, for cross-entropy and divergence.", metavar="Q,Q,…")
    ] = None,
) -> Any:
    """Entropy and perplexity of a distribution, cross-entropy and KL divergence against another, in bits and nats.

    Example: txcalc entropy 0.5,0.5 --against 0.9,0.1
    """
    return txcalc.entropy(p, against)
