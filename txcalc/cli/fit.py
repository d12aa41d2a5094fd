"""`txcalc fit`: which models accelerators or a memory hold, by how much, in which format and how fast."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
@o.follows(
    "fit",
    gpu=Annotated[list[str], o.option("--gpu", "Also 8xh100, 16GB@500GB/s. Repeatable.")],
    weights=Annotated[
        str | None,
        o.option("--weights", "By default native, Q8_0, Q4_K_M, the first that fits.", several=True),
    ],
    context=Annotated[int, o.length("--context", "Of the one there is.")],
    chunk=Annotated[int, o.length("--chunk")],
    every=Annotated[bool, o.option("--all", "Those that do not fit too, with what they are short of.")],
)
def fit(
    sources: o.MaybeSources = None,
    *,
    format_: o.Format = "table",
    json_: o.Json = False,
    **asked: Any,
) -> None:
    """Which models fit on accelerators, by how much, in which format and how fast. Without sources: the presets.

    Exit code 1: none fits.

    Example: txcalc fit qwen3-32b gpt-oss-20b --gpu 4090 --gpu 4090:2 --gpu m4-pro
    """
    from txcalc import fit as answer
    from txcalc.cli.output import give

    found = answer(*(sources or ()), **asked)
    give(found, o.chosen(format_, json_))
