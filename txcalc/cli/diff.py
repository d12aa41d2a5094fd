"""`txcalc diff`: what makes one model differ from another, and what each difference costs."""

from __future__ import annotations

from typing import Any

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
@o.follows("diff")
def diff(
    source: o.Source,
    other: o.Source,
    ignore: o.Ignore = None,
    *,
    format_: o.Format = "table",
    json_: o.Json = False,
    **asked: Any,
) -> None:
    """In what two models differ, and what each difference costs. In parameters, FLOPs and cache, each alone.

    Example: txcalc diff llama-3.1-8b qwen3-8b --tokens 2k
    """
    from txcalc import diff as answer
    from txcalc.cli.output import give

    one, two = o.models([source, other], ignore)
    give(answer(one, two, **asked), o.chosen(format_, json_))
