"""`report`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import txcalc
from txcalc.cli import completion, options as o
from txcalc.cli.command import Tell, command
from txcalc.cli.output import print_notes as note
from txcalc.questions.changes import parse_changes
from txcalc.sources.files import writable

_GPU = (
    "Also plan serving: memory, speed, cost and serving commands at every point of a grid. Without N: the fewest that "
    "fit. Repeatable."
)
_TRAIN = "Also plan training: memory of every rank, the step, the pipeline. Repeatable."
_LAYOUT = "For training: tp=8,pp=4,dp=2. Repeatable. Default: the fastest layouts that fit."


@command(
    formats=False,
    gpu=Annotated[list[str], o.option("--gpu", _GPU, metavar="NAME[:N][@PRICE]")],
    contexts=o.option("--context", "For serving (default: 2k,8k,32k,128k).", several=True),
    concurrency=o.option("--concurrency", "For serving (default: 1,8,32,128,512).", several=True),
    weights=o.option("--weights", "For serving (default: native).", several=True),
    kv=o.option("--kv", "For serving (default: bf16,fp8).", several=True),
    train=Annotated[
        list[str], typer.Option("--train", help=_TRAIN, autocompletion=completion.accelerator, metavar="NAME:N[@PRICE]")
    ],
    layouts=Annotated[list[str], o.option("--layout", _LAYOUT)],
    tokens=o.length("--tokens", "For training (default: 4,096 or the context)."),
    global_batch=o.length("--global-batch", "For training."),
    title=o.own("Title of the page.", "TEXT"),
)
def report(
    sources: o.Sources,
    output: Annotated[Path, o.option("--out", "the page (-: standard output).")],
    *,
    force: o.Force = False,
    set_: o.Set = None,
    ignore: o.Ignore = None,
    tell: Tell,
    **asked: Any,
) -> Any:
    """Write an interactive page: sliders for a model's sizes, its parts, formulas and theorems; several models side by
    side; serving and training plans. One file that works offline.

    Example: txcalc report llama-3.1-8b qwen3-8b --gpu h100-sxm:2@2.5 --out plan.html
    """
    if str(output) != "-":
        writable(output, force)
    command = shlex.join(["txcalc", *sys.argv[1:]]) if sys.argv[1:2] == ["report"] else "txcalc report"
    changes = parse_changes(set_)
    if changes:
        o.models(sources, ignore, changes)
    page = txcalc.report(*sources, changes=changes, ignore=ignore or (), command=command, tell=tell, **asked)
    if str(output) == "-":
        sys.stdout.write(page.html)
        return note(page.notes)
    page.save(output, force=force)
    note([*page.notes, f"the page is in {output} ({len(page.html.encode()):,} bytes)"])
