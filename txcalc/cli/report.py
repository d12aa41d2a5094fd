"""`txcalc report`: one file that explains models and plans, without a server or a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from txcalc.cli import completion
from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_GPU = (
    "Also plan serving on these: memory, speed, cost, the engines' commands, at every point of a grid. Repeatable."
    " Without a number: the fewest that do."
)
_TRAIN = "Also plan training on so many: memory of every rank, the step, the pipeline. Repeatable."
_LAYOUT = "Of training: tp=8,pp=4,dp=2. Repeatable. Without: the fastest layouts that fit."


@app.command()
def report(
    sources: o.Sources,
    output: Annotated[Path, o.option("--out", "the page (-: standard output).")],
    gpu: Annotated[list[str] | None, o.option("--gpu", _GPU, metavar="NAME[:N][@PRICE]")] = None,
    context: Annotated[
        str | None, o.option("--context", "Of the grid (default: 2k,8k,32k,128k).", several=True)
    ] = None,
    concurrency: Annotated[
        str | None, o.option("--concurrency", "Of the grid (default: 1,8,32,128,512).", several=True)
    ] = None,
    weights: Annotated[str | None, o.option("--weights", "Of the grid (default: native).", several=True)] = None,
    kv: Annotated[str | None, o.option("--kv", "Of the grid (default: bf16,fp8).", several=True)] = None,
    train: Annotated[
        list[str] | None, typer.Option(help=_TRAIN, autocompletion=completion.accelerator, metavar="NAME:N[@PRICE]")
    ] = None,
    layout: Annotated[list[str] | None, o.option("--layout", _LAYOUT)] = None,
    tokens: Annotated[int | None, o.length("--tokens", "Of training (default: 4,096 or the context).")] = None,
    global_batch: Annotated[int | None, o.length("--global-batch", "Of training.")] = None,
    title: Annotated[str | None, typer.Option(help="What the page is called.", metavar="TEXT")] = None,
    force: o.Force = False,
    set_: o.Set = None,
    ignore: o.Ignore = None,
) -> None:
    """An interactive page in one file: a model's sizes as sliders, its parts, formulas and theorems; several models
    side by side; serving and training plans. Works offline and can be mailed.

    Example: txcalc report llama-3.1-8b qwen3-8b --gpu h100-sxm:2@2.5 --out plan.html
    """
    import shlex
    import sys

    from txcalc import report as answer
    from txcalc.cli.output import progress, tell
    from txcalc.sources.files import writable

    if str(output) != "-":
        writable(output, force)
    command = shlex.join(["txcalc", *sys.argv[1:]]) if sys.argv[1:2] == ["report"] else "txcalc report"
    with progress() as told:
        page = answer(
            *sources,
            gpu=gpu or (),
            contexts=context,
            concurrency=concurrency,
            weights=weights,
            kv=kv,
            train=train or (),
            layouts=layout or (),
            tokens=tokens,
            global_batch=global_batch,
            title=title,
            changes=o.changes(set_),
            ignore=ignore or (),
            command=command,
            tell=told,
        )
    if str(output) == "-":
        sys.stdout.write(page.html)
        return tell(page.notes)
    page.save(output, force=force)
    tell([*page.notes, f"the page is in {output} ({len(page.html.encode()):,} bytes)"])
