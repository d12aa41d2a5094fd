"""What the cache holds, where attention overtakes the rest, and the formulas: `kv`, `crossover`, `formula`."""

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
    without_cache=o.own("What generating so many tokens costs with the cache, and without it."),
    prompt=o.length("--prompt", "Those of the first pass of --without-cache."),
)
def kv(
    source: o.Source,
    contexts: Annotated[str | None, o.option("--context", "4k,32k,128k.", several=True)] = None,
    batches: Annotated[str, o.option("--batch", several=True)] = "1,8,64",
    kv_dtypes: Annotated[str, o.option("--kv", "bf16,fp8.", several=True)] = "bf16",
    set_: o.Set = None,
    ignore: o.Ignore = None,
    **asked: Any,
) -> Any:
    """The KV cache over contexts, batches and dtypes. Windows and recurrent states are charged for what they hold;
    --without-cache adds what a whole generation costs without it.

    Example: txcalc kv gemma-3-27b --context 8k,128k --kv bf16,fp8
    """
    lengths = o.numbers(contexts, "--context") if contexts else None
    model = o.model(source, set_, ignore)
    return txcalc.kv(model, lengths, o.numbers(batches, "--batch"), kv_dtypes, **asked)


@command(
    drawn=True,
    formulas=typer.Option("--formulas/--no-formulas", help="Closed forms in letters (SymPy, half a second)."),
)
def crossover(sources: o.Sources, set_: o.Set = None, ignore: o.Ignore = None, **asked: Any) -> Any:
    """The length from which attention outweighs the feed-forward. Exact, by every rule in circulation; and the context
    from which a decode step reads more cache than weights.

    Example: txcalc crossover llama-3.1-8b gemma-3-27b
    """
    return txcalc.crossover(*o.models(sources, ignore, o.changes(set_)), **asked)


@command(
    layout=o.option("--layout", "Of one of them, and what it sends."),
    stage=o.own("Stage of the pipeline (default: the one whose ranks hold most).", "N"),
)
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
    printing: Printing,
    **asked: Any,
) -> Any:
    """The formula behind every figure, part by part. In letters, with the model's numbers, and its value.

    Example: txcalc formula llama-3.1-8b layers.0.attention --tokens 2k
    """
    if document and (source is None or asked["layout"] or printing.form != "table"):
        raise InputError("options", ["--latex is a document of one model: without --layout and another --format"])
    found = txcalc.formula(source and o.model(source, set_, ignore), part, **asked)
    if not document:
        return found
    sys.stdout.write(found.to_document())
