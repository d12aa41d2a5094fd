"""`fit`, `design`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import txcalc
from txcalc.cli import completion, options as o
from txcalc.cli.command import command


@command(
    gpu=Annotated[list[str], o.option("--gpu", "Also 8xh100. Repeatable.")],
    weights=o.option("--weights", "Default: the first of native, Q8_0, Q4_K_M that fits.", several=True),
    context=o.length("--context", "Of one sequence."),
    chunk=o.length("--chunk"),
    every=o.option("--all", "Also list what does not fit, and by how much."),
)
def fit(sources: o.MaybeSources = None, **asked: Any) -> Any:
    """Which models fit on accelerators, in which format, with how much room and how fast. Without sources: the presets.

    Exit code 1: none fits.

    Example: txcalc fit qwen3-32b gpt-oss-20b --gpu 4090 --gpu 4090:2 --gpu m4-pro
    """
    return txcalc.fit(*(sources or ()), **asked)


@command(
    params=o.option("--params", "The budget."),
    compute=o.option("--compute", "The budget, 6·N·D with N the active parameters."),
    train_tokens=o.option("--train-tokens", "D for --compute (default: 20 per parameter)."),
    vocab=o.length("--vocab", "Rows of the vocabulary (default: 32,000)."),
    ratio=o.own("F/D before it is rounded up to a multiple of 256 (default: 8/3).", "R"),
    gqa=o.length("--gqa", "Query heads per key/value head (default: 1)."),
    head=o.length("--head", "Width per head (default: 128)."),
    tied=o.own("Tie embedding and head."),
    context=o.length("--context", "Also count its cache and activations (default: weights only)."),
)
def design(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A model to scale (experts, MLA, windows, hybrids …), heads and widths growing with D; without one, "
            "Llama's architecture.",
            autocompletion=completion.source,
            metavar="[SOURCE]",
        ),
    ] = None,
    set_: Annotated[list[str] | None, o.option("--set", "With SOURCE; or an expression: F=8/3*D. Repeatable.")] = None,
    **asked: Any,
) -> Any:
    """Shapes for a budget of parameters, memory or training FLOPs: L, D, h, h_kv and F, on hardware-friendly multiples.

    Example: txcalc design --memory 16GB --weights fp16
    """
    return txcalc.design(source, changes=o.changes(set_), **asked)
