"""`txcalc crossover`: where attention overtakes the rest, and the cache the weights."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
@o.follows(
    "crossover",
    formulas=Annotated[
        bool, typer.Option("--formulas/--no-formulas", help="Closed forms in letters (SymPy, half a second).")
    ],
)
def crossover(
    sources: o.Sources,
    set_: o.Set = None,
    ignore: o.Ignore = None,
    *,
    format_: o.Format = "table",
    json_: o.Json = False,
    plot: o.Plot = None,
    force: o.Force = False,
    **asked: Any,
) -> None:
    """The length from which attention outweighs the feed-forward. Exact, by every rule in circulation; and the context
    from which a decode step reads more cache than weights.

    Example: txcalc crossover llama-3.1-8b gemma-3-27b
    """
    from txcalc import crossover as answer
    from txcalc import load
    from txcalc.cli.output import give

    chosen = o.chosen(format_, json_)
    place = o.plotted(plot, chosen, force)
    models = [load(source, o.changes(set_), ignore=ignore or ()) for source in sources]
    found = answer(*models, **asked)
    give(found, chosen, place)
