"""`txcalc report`: one file that explains models and plans, without a server or a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def report(
    sources: o.Sources,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.", metavar="FILE")],
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    title: Annotated[str | None, typer.Option(help="What the page is called.", metavar="TEXT")] = None,
    set_: o.Set = None,
    ignore: o.Ignore = None,
) -> None:
    """An interactive page in one file: a model's sizes as sliders, its parts, formulas and theorems; several models
    side by side. Works offline and can be mailed.

    Example: txcalc report llama-3.1-8b qwen3-8b -o models.html
    """
    import shlex

    from txcalc import __version__, load
    from txcalc.cli.output import tell
    from txcalc.explorer import explore
    from txcalc.render.page import checked, page, writable, write

    writable(output, force)
    checked(len(sources))
    changes = o.changes(set_)
    said = "".join(f" --set {shlex.quote(pair)}" for pair in set_ or ())
    said += "".join(f" --ignore {shlex.quote(key)}" for key in ignore or ())
    models = [(shlex.quote(source) + said, load(source, changes, ignore=ignore or ())) for source in sources]
    named = title or ", ".join(model.name for _, model in models)
    command = shlex.join(["txcalc", "report", *sources]) + said + f" -o {shlex.quote(output.name)}"
    text = page([(source, explore(model)) for source, model in models], [], [], named, command, __version__)
    write(output, text)
    tell([f"the page is in {output} ({len(text.encode()):,} bytes)"])
