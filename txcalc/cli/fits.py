"""The inverse questions, which models fit and which shapes spend a budget: `fit`, `design`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import txcalc
from txcalc.cli import completion, options as o
from txcalc.cli.command import command


@command(
    gpu=Annotated[list[str], o.option("--gpu", "Also 8xh100, 16GB@500GB/s. Repeatable.")],
    weights=o.option("--weights", "By default native, Q8_0, Q4_K_M, the first that fits.", several=True),
    context=o.length("--context", "Of the one there is."),
    chunk=o.length("--chunk"),
    every=o.option("--all", "Those that do not fit too, with what they are short of."),
)
def fit(sources: o.MaybeSources = None, **asked: Any) -> Any:
    """Which models fit on accelerators, by how much, in which format and how fast. Without sources: the presets.

    Exit code 1: none fits.

    Example: txcalc fit qwen3-32b gpt-oss-20b --gpu 4090 --gpu 4090:2 --gpu m4-pro
    """
    return txcalc.fit(*(sources or ()), **asked)


@command(
    params=o.option("--params", "To spend."),
    compute=o.option("--compute", "To spend, by 6·N·D with N the active parameters."),
    train_tokens=o.option("--train-tokens", "D of --compute (default: 20 per parameter)."),
    vocab=o.length("--vocab", "Rows of the vocabulary (default: 32,000)."),
    ratio=o.own("F/D before it is rounded up to a multiple of 256 (default: 8/3).", "R"),
    gqa=o.length("--gqa", "Query heads for each key/value head (default: 1)."),
    head=o.length("--head", "Width of a head (default: 128)."),
    tied=o.own("One matrix for embedding and head."),
    context=o.length("--context", "Counts its cache and activations too (default: weights only)."),
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
    set_: Annotated[list[str] | None, o.option("--set", "Of SOURCE; also an expression: F=8/3*D. Repeatable.")] = None,
    **asked: Any,
) -> Any:
    """Shapes that spend a budget of parameters, memory or training. L, D, h, h_kv and F, on friendly multiples.

    Example: txcalc design --memory 16GB --weights fp16
    """
    return txcalc.design(source, changes=o.changes(set_), **asked)
