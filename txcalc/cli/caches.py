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
