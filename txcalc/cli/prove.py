"""`txcalc prove`: theorems of a model's structures, for every size; `show` marks what inherits them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def prove(
    sources: o.MaybeSources = None,
    everything: Annotated[bool, o.option("--all")] = False,
    set_: o.Set = None,
    ignore: o.Ignore = None,
    again: Annotated[bool, typer.Option(help="Also what has a theorem already.")] = False,
    out: Annotated[
        Path | None, o.option("--out", "a .json for the theorems (default: in your own data folder).")
    ] = None,
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """Prove a model's formulas for every size. Its structure is traced with symbols for widths, heads, experts, batch
    and length; every model of that structure inherits the theorem.

    Example: txcalc prove my-model/config.json
    """
    import sys

    from rich.console import Console
    from rich.progress import Progress

    from txcalc import load
    from txcalc.cli.output import emit
    from txcalc.errors import InputError, Refuted
    from txcalc.planning import theorems
    from txcalc.render.prove import Answer, report
    from txcalc.sources.presets import names

    chosen = o.chosen(format_, json_)
    if everything == bool(sources):
        raise InputError("prove", ["expected models, or --all for every preset" + (", not both" if sources else "")])
    models = [
        load(source, o.changes(set_), ignore=ignore or ()) for source in (names() if everything else sources or ())
    ]
    wanted = {unit.key: (model.name, unit) for model in reversed(models) for unit in reversed(theorems.units(model))}

    from txcalc.verify.prove import made_with
    from txcalc.verify.prove import prove as proved

    answers: list[Answer] = []
    path = out or theorems.own_file()
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=len(wanted))
        for name, unit in reversed(wanted.values()):
            bar.update(task, description=f"{name}: {unit.name}")
            if not again and not theorems.obstacle(unit):
                answers.append(Answer(name, unit, theorems.theorems()[unit.key]))
            else:
                try:
                    theorem, rows = proved(unit)
                    unequal = [row for row in rows if not row.equal]
                    answers.append(Answer(name, unit, None if unequal else theorem, unequal, new=True))
                    if not unequal:
                        theorems.write(path, {unit.key: theorem}, made_with())
                except Refuted as refusal:
                    answers.append(Answer(name, unit, None, refusal=str(refusal)))
            bar.advance(task)
    emit(report(answers, path), chosen)
    if any(answer.theorem is None for answer in answers):
        raise typer.Exit(1)
