"""`txcalc diff`: what makes one model differ from another, and what each difference costs."""

from __future__ import annotations

from typing import Any

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def diff(
    source: o.Source,
    other: o.Source,
    batch: o.Batch = 1,
    tokens: o.Tokens = 1,
    past: o.Past = 0,
    source_length: o.SourceLength = None,
    kv_dtype: o.KvDtype = "bf16",
    attention: o.Attention = "dense",
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """In what two models differ, and what each difference costs. In parameters, FLOPs and cache, each alone.

    Example: txcalc diff llama-3.1-8b qwen3-8b --tokens 2k
    """
    from txcalc import load
    from txcalc.cli.output import emit
    from txcalc.planning.differences import differences
    from txcalc.render.diff import report

    one, two = load(source), load(other)
    work: dict[str, Any] = {"batch": batch, "tokens": tokens, "past": past, "kv_dtype": kv_dtype}
    apart: dict[str, Any] = {} if source_length is None else {"source": source_length}
    mine = one.ledger(**work, **apart)
    theirs = two.ledger(**work, **(apart if two.has_encoder_apart else {}))
    found = differences(one, two, {**work, **apart}, "flops_masked" if attention == "masked" else "flops")
    emit(report(one, two, found, mine, theirs, attention, kv_dtype), o.chosen(format_, json_))
