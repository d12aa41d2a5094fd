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
    ignore: o.Ignore = None,
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
    from txcalc import diff as answer
    from txcalc.cli.output import give

    asked: dict[str, Any] = {"batch": batch, "tokens": tokens, "past": past, "source_length": source_length}
    one, two = o.models([source, other], ignore)
    give(answer(one, two, **asked, kv_dtype=kv_dtype, attention=attention), o.chosen(format_, json_))
