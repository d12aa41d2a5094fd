"""`txcalc compare`: models side by side."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from txcalc.cli import completion
from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
@o.follows(
    "compare",
    match=Annotated[
        Literal["params", "flops", "cache"] | None,
        typer.Option(help="Bring every further model to the first one's budget, by the size that --by names."),
    ],
    by=Annotated[
        str | None,
        typer.Option(
            "--by",
            help="The size that is solved for: F, L, D, h_kv …",
            metavar="KEY",
            autocompletion=completion.key_alone,
        ),
    ],
)
def compare(
    sources: o.Sources,
    contexts: Annotated[
        str | None,
        o.option("--context", "Lengths of prefills and caches: 1k,8k,32k.", several=True),
    ] = None,
    set_: Annotated[
        list[str] | None,
        o.option("--set", "A variant of the first model; several at once are h_kv=8,F=12k. Repeatable.", several=True),
    ] = None,
    ignore: o.Ignore = None,
    *,
    format_: o.Format = "table",
    json_: o.Json = False,
    plot: o.Plot = None,
    force: o.Force = False,
    **asked: Any,
) -> None:
    """Two to eight models side by side, with ratios to the first. Parameters, FLOPs and cache over lengths, and where
    attention overtakes the rest; also variants of one model, and models of one budget.

    Example: txcalc compare llama-3.1-8b qwen3-8b gemma-2-9b
    """
    from txcalc import compare as answer
    from txcalc.cli.output import give

    chosen = o.chosen(format_, json_)
    place = o.plotted(plot, chosen, force)
    lengths = o.numbers(contexts, "--context") if contexts else None
    found = answer(*o.models(sources, ignore), contexts=lengths, variants=o.variants(set_), **asked)
    give(found, chosen, place)
