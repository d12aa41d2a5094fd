"""`txcalc formula`: the formula behind every number."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txcalc.cli import completion
from txcalc.cli import options as o
from txcalc.errors import InputError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
@o.follows("formula", layout=Annotated[str | None, o.option("--layout", "Of one of them, and what it sends.")])
def formula(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A model, as everywhere; without one, the textbook's rules derived from the generic block.",
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
        typer.Option("--latex", help="A LaTeX document of its own, ready to compile (--format latex: tables for one)."),
    ] = False,
    format_: o.Format = "table",
    json_: o.Json = False,
    **asked: Any,
) -> None:
    """The formula behind every figure, part by part. In letters, with the model's numbers, and its value.

    Example: txcalc formula llama-3.1-8b layers.0.attention --tokens 2k
    """
    import sys

    from txcalc import formula as answer
    from txcalc import load
    from txcalc.cli.output import give

    chosen = o.chosen(format_, json_)
    if document and (source is None or asked["layout"] or chosen != "table"):
        raise InputError("options", ["--latex is a document of one model: without --layout and another --format"])
    model = None if source is None else load(source, o.changes(set_), ignore=ignore or ())
    found = answer(model, part, **asked)
    if document:
        sys.stdout.write(found.to_document())
    else:
        give(found, chosen)
