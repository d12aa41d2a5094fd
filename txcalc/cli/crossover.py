"""`txcalc crossover`: where attention overtakes the rest, and the cache the weights."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def crossover(
    sources: o.Sources,
    set_: o.Set = None,
    ignore: o.Ignore = None,
    source_length: o.SourceLength = None,
    dtype: o.Dtype = "bf16",
    kv_dtype: o.KvDtype = "bf16",
    logits: o.Logits = "all",
    mla: o.Mla = "expanded",
    formulas: Annotated[
        bool, typer.Option("--formulas/--no-formulas", help="Closed forms in letters (SymPy, half a second).")
    ] = True,
    format_: o.Format = "table",
    json_: o.Json = False,
    plot: o.Plot = None,
) -> None:
    """The length from which attention outweighs the feed-forward. Exact, by every rule in circulation; and the context
    from which a decode step reads more cache than weights.

    Example: txcalc crossover llama-3.1-8b gemma-3-27b
    """
    from txcalc import load
    from txcalc.cli.output import emit
    from txcalc.errors import MissingExtra
    from txcalc.planning.crossover import balances, crossovers, lengths
    from txcalc.render.crossover import Answers, report

    chosen = o.chosen(format_, json_)
    place = o.plotted(plot, chosen)
    changes = o.changes(set_)
    prefills = [lengths(load(source, changes, ignore=ignore or ()), source_length, logits, mla) for source in sources]
    found = [crossovers(each) for each in prefills]
    forms: list[Any] = [[] for _ in found]
    classic: list[Any] = []
    notes: list[str] = []
    if formulas:
        try:
            from txcalc.algebra import classic_forms, closed_forms
        except MissingExtra as missing:
            notes.append(f"no closed forms: {missing}")
        else:
            forms = [closed_forms(each, rows) for each, rows in zip(prefills, found, strict=True)]
            classic = [classic_forms(gated) for gated in (False, True)]
    answers = [
        Answers(each.model, rows, balances(each, dtype, kv_dtype), closed)
        for each, rows, closed in zip(prefills, found, forms, strict=True)
    ]
    notes += [note for each in prefills for note in each.model.notes]
    latent = mla if any(each.model.has_latents for each in prefills) else None
    convention = {"logits": logits, "mla": latent, "dtype": dtype, "kv_dtype": kv_dtype}
    convention["experts_read"] = "min(E, k·batch)"
    emit(
        report(answers, classic, convention, chosen, notes),
        chosen,
        place,
        lambda plots: plots.crossover(prefills, found, logits, mla),
    )
