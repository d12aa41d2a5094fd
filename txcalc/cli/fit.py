"""`txcalc fit`: which models accelerators or a memory hold, by how much, in which format and how fast."""

from __future__ import annotations

from typing import Annotated

import typer

from txcalc.cli import options as o
from txcalc.cli.deploy import Block, Chunk, EngineOption, Ram, ReserveOption

app = typer.Typer(rich_markup_mode=None, add_completion=False)

Memory = Annotated[str | None, o.option("--memory")]


@app.command()
def fit(
    sources: o.MaybeSources = None,
    gpu: Annotated[
        list[str] | None,
        o.option("--gpu", "Also 8xh100, 16GB@500GB/s. Repeatable."),
    ] = None,
    memory: Memory = None,
    weights: Annotated[
        str | None,
        o.option("--weights", "By default native, Q8_0, Q4_K_M, the first that fits.", several=True),
    ] = None,
    context: Annotated[int, o.length("--context", "Of the one there is.")] = 8192,
    kv: o.KvDtype = "bf16",
    block: Block = 16,
    chunk: Chunk = 8192,
    engine_: EngineOption = "none",
    reserve: ReserveOption = None,
    ram: Ram = None,
    text_only: o.TextOnly = False,
    every: Annotated[bool, o.option("--all", "Those that do not fit too, with what they are short of.")] = False,
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """Which models fit on accelerators, by how much, in which format and how fast. Without sources: the presets.

    Exit code 1: none fits.

    Example: txcalc fit qwen3-32b gpt-oss-20b --gpu 4090 --gpu 4090:2 --gpu m4-pro
    """
    from txcalc import fit as answer
    from txcalc.cli.output import give

    found = answer(
        *(sources or ()),
        gpu=gpu or (),
        memory=memory,
        weights=weights,
        context=context,
        kv=kv,
        block=block,
        chunk=chunk,
        engine=engine_,
        reserve=reserve,
        ram=ram,
        text_only=text_only,
        every=every,
    )
    give(found, o.chosen(format_, json_))
