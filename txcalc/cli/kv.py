"""`txcalc kv`: what the cache holds."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
@o.follows(
    "kv",
    without_cache=Annotated[
        bool,
        typer.Option("--without-cache", help="What generating so many tokens costs with the cache, and without it."),
    ],
    prompt=Annotated[int, o.length("--prompt", "Those of the first pass of --without-cache.")],
)
def kv(
    source: o.Source,
    contexts: Annotated[
        str | None,
        o.option("--context", "4k,32k,128k.", several=True),
    ] = None,
    batches: Annotated[str, o.option("--batch", several=True)] = "1,8,64",
    kv_dtypes: Annotated[str, o.option("--kv", "bf16,fp8.", several=True)] = "bf16",
    set_: o.Set = None,
    ignore: o.Ignore = None,
    *,
    format_: o.Format = "table",
    json_: o.Json = False,
    plot: o.Plot = None,
    force: o.Force = False,
    **asked: Any,
) -> None:
    """The KV cache over contexts, batches and dtypes. Windows and recurrent states are charged for what they hold;
    --without-cache adds what a whole generation costs without it.

    Example: txcalc kv gemma-3-27b --context 8k,128k --kv bf16,fp8
    """
    from txcalc import kv as answer
    from txcalc import load
    from txcalc.cli.output import give

    chosen = o.chosen(format_, json_)
    place = o.plotted(plot, chosen, force)
    model = load(source, o.changes(set_), ignore=ignore or ())
    lengths = o.numbers(contexts, "--context") if contexts else None
    found = answer(model, lengths, o.numbers(batches, "--batch"), kv_dtypes, **asked)
    give(found, chosen, place)
