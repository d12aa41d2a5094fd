"""`txcalc compare`: models side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)

MOST = 8


@app.command()
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
    match: Annotated[
        Literal["params", "flops", "cache"] | None,
        typer.Option(help="Give every further model the first one's budget, by the key of --by."),
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", help="The size that is solved for: F, L, D, h_kv …", metavar="KEY")
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
    attention overtakes the rest; also variants of one model, and models of one budget.

    Example: txcalc compare llama-3.1-8b qwen3-8b gemma-2-9b
    """
    from txcalc.cli.output import emit
    from txcalc.errors import InputError
    from txcalc.render.compare import Budget, Question, report, usual_contexts

    chosen = o.chosen(format_, json_)
    place = o.plotted(plot, chosen)
    if (match is None) != (by is None):
        raise InputError("options", ["--match and --by go together: what is equal, and the size that makes it so"])
    changed = o.variants(set_)
    if not 2 <= len(sources) + len(changed) <= MOST:
        given = len(sources) + len(changed)
        raise InputError("compare", [f"{given} given, expected 2 to {MOST} models, or variants of one by --set"])
    models = o.models(sources, ignore)
    for changes in changed:
        (variant,) = o.models(sources[:1], ignore, changes)
        models.append(replace(variant, name=f"{variant.name} {' '.join(f'{k}={v}' for k, v in changes.items())}"))
    at = o.numbers(contexts, "--context") if contexts else usual_contexts(models)
    asked = Question(at, dtype, kv_dtype, attention, logits, mla)
    told = None
    if match is not None and by is not None:
        budget = Budget(match, by, at[0] if contexts else min(at, default=1), asked)
        models, told = budget.met(models)
    emit(report(models, asked, told), chosen, place, lambda plots: plots.compare(models, asked))
