"""`kv`, `crossover`, `formula`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

import txcalc
from txcalc.cli import completion, options as o
from txcalc.cli.command import Printing, command
from txcalc.errors import InputError


@command(
    drawn=True,
    formulas=typer.Option("--formulas/--no-formulas", help="Closed forms in letters (SymPy, half a second)."),
)
def crossover(sources: o.Sources, set_: o.Set = None, ignore: o.Ignore = None, **asked: Any) -> Any:
    """The exact length from which attention costs more than the feed-forward, by every rule in circulation; and the
    context from which a decode step reads more cache than weights.

    Example: txcalc crossover llama-3.1-8b gemma-3-27b
    """
    return txcalc.crossover(*o.models(sources, ignore, o.changes(set_)), **asked)


@command(
    layout=o.option("--layout", "Figures of one rank, and what it sends."),
    stage=o.own("Pipeline stage (default: the one with most memory).", "N"),
)
def formula(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A model; without one, the textbook rules derived from the generic block.",
            autocompletion=completion.source,
            metavar="[SOURCE]",
        ),
    ] = None,
    part: Annotated[
        str,
        typer.Argument(
            help="A part and all below it: layers.0.attention, embedding, head.",
            autocompletion=completion.part,
            metavar="[PART]",
        ),
    ] = "",
    set_: o.Set = None,
    ignore: o.Ignore = None,
    *,
    document: Annotated[
        bool,
        typer.Option("--latex", help="A standalone LaTeX document (--format latex: only the tables)."),
    ] = False,
    printing: Printing,
    **asked: Any,
) -> Any:
    """The formula of every figure, part by part: in letters, with the model's numbers, and its value.

    Example: txcalc formula llama-3.1-8b layers.0.attention --tokens 2k
    """
    if document and (source is None or asked["layout"] or printing.form != "table"):
        raise InputError("options", ["--latex needs a model, and excludes --layout and --format"])
    found = txcalc.formula(source and o.model(source, set_, ignore), part, **asked)
    if not document:
        return found
    sys.stdout.write(found.to_document())
