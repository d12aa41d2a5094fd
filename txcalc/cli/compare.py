"""`txcalc compare`: models side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)

MOST = 8


@app.command()
def compare(
    sources: o.Sources,
    contexts: Annotated[
        str | None,
        typer.Option("--contexts", "--tokens", help="Lengths of prefills and caches: 1k,8k,32k.", metavar="N,…"),
    ] = None,
    dtype: o.Dtype = "bf16",
    kv_dtype: o.KvDtype = "bf16",
    attention: o.Attention = "dense",
    logits: o.Logits = "all",
    mla: o.Mla = "expanded",
    format_: o.Format = "table",
    json_: o.Json = False,
    plot: o.Plot = None,
) -> None:
    """Two to eight models side by side, with ratios to the first. Parameters, FLOPs and cache over lengths, and where
    attention overtakes the rest.

    Example: txcalc compare llama-3.1-8b qwen3-8b gemma-2-9b
    """
    from txcalc import load
    from txcalc.cli.output import emit
    from txcalc.errors import InputError
    from txcalc.render.compare import Question, report, usual_contexts

    chosen = o.chosen(format_, json_)
    place = o.plotted(plot, chosen)
    if not 2 <= len(sources) <= MOST:
        raise InputError("compare", [f"{len(sources)} given, expected 2 to {MOST} models"])
    models = [load(source) for source in sources]
    at = o.numbers(contexts, "--contexts") if contexts else usual_contexts(models)
    asked = Question(at, dtype, kv_dtype, attention, logits, mla)
    emit(report(models, asked), chosen, place, lambda plots: plots.compare(models, asked))
