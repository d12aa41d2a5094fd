"""`txcalc show`: what one model is and costs."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def show(
    source: o.Source,
    set_: o.Set = None,
    batch: o.Batch = 1,
    tokens: o.Tokens = 1,
    past: o.Past = 0,
    source_length: o.SourceLength = None,
    dtype: o.Dtype = "bf16",
    kv_dtype: o.KvDtype = "bf16",
    attention: o.Attention = "dense",
    logits: o.Logits = "all",
    mla: o.Mla = "expanded",
    weights: Annotated[
        bool, typer.Option("--weights", help="hf:… only: fetch the checkpoint's headers too, and check them.")
    ] = False,
    as_: Annotated[
        Literal["palm", "chinchilla", "megatron", "nanogpt", "torchtitan", "2n"] | None,
        typer.Option("--as", help="FLOPs by a published convention too, the difference term by term."),
    ] = None,
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """What a model costs: parameters, FLOPs, cache and memory. And how wrong the rules of thumb are.

    Example: txcalc show llama-3.1-8b --tokens 2k
    """
    from txcalc import load
    from txcalc.cli.output import emit
    from txcalc.render.show import report
    from txcalc.sources import lone_checkpoint

    lone = None if set_ or as_ else lone_checkpoint(source)
    if lone:
        from txcalc.render import checkpoint

        return emit(checkpoint.report(lone), o.chosen(format_, json_))
    model = load(source, o.changes(set_), weights=weights)
    asked = {"logits": logits, "mla": mla}
    ledger = model.ledger(batch, tokens, past, source_length, dtype=dtype, kv_dtype=kv_dtype, **asked)
    kept = model.ledger(batch, tokens, past, source_length, dtype=dtype, kv_dtype=kv_dtype, keep_scores=True, **asked)
    found = report(model, ledger, kept, attention, dtype, kv_dtype)
    if as_:
        from txcalc.planning.conventions import CONVENTIONS
        from txcalc.render.conventions import beside

        found = beside(found, CONVENTIONS[as_](model, ledger, attention), ledger)
    emit(found, o.chosen(format_, json_))
