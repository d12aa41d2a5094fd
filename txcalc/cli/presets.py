"""`txcalc presets`: which models and accelerators come with txcalc."""

from __future__ import annotations

from typing import Annotated

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def presets(
    pattern: Annotated[str, typer.Argument(help="A part of a name or family; * and ? as in file names.")] = "*",
    hardware: Annotated[bool, typer.Option("--hardware", help="Accelerators instead of models.")] = False,
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """List the presets: models, or accelerators. With family, kind, parameters, active parameters and context.

    Example: txcalc presets 'llama*'
    """
    from fnmatch import fnmatchcase

    from txcalc import load
    from txcalc.cli.output import emit
    from txcalc.errors import UnknownName
    from txcalc.render.report import Report, Table, cell, rounded
    from txcalc.sources.presets import names

    wanted = pattern.lower()
    wanted = wanted if set(wanted) & set("*?[") else f"*{wanted}*"
    if hardware:
        from txcalc.hardware import load as accelerator
        from txcalc.hardware import names as accelerators
        from txcalc.render.hardware import report

        listed = [name for name in accelerators() if fnmatchcase(name, wanted)]
        if not listed:
            raise UnknownName("presets", "accelerator", pattern, accelerators(), "txcalc presets --hardware")
        emit(report([accelerator(name) for name in listed]), o.chosen(format_, json_))
        return
    models = [load(name) for name in names()]
    found = [m for m in models if fnmatchcase(m.name, wanted) or fnmatchcase(m.spec["family"].lower(), wanted)]
    if not found:
        raise UnknownName("presets", "preset", pattern, names(), "txcalc presets lists them all")
    rows, data = [], []
    for model in found:
        ledger, spec = model.ledger(), model.spec
        params, active = ledger.total("params"), ledger.total("active")
        rows.append((model.name, spec["family"], model.kind, rounded(params), rounded(active), cell(model.context)))
        keys = {"name": model.name, "family": spec["family"], "kind": model.kind, "params": params, "active": active}
        data.append({**keys, "context": model.context, "source": spec["source"]})
    headings = ("preset", "family", "kind", "parameters", "active", "context")
    table = Table("", headings, rows, left=frozenset({0, 1, 2}))
    emit(Report({"schema": "txcalc/presets/1", "presets": data}, [table]), o.chosen(format_, json_))
