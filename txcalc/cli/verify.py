"""`txcalc verify`: the module that a description means, under every profiler, against the calculator."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def verify(
    sources: o.MaybeSources = None,
    everything: Annotated[bool, typer.Option("--all", help="Every preset.")] = False,
    oracle: Annotated[
        list[str] | None,
        typer.Option(
            help="parameters, fvcore, flops (the default), training, saved, cache, memory, or all. Repeatable.",
            metavar="NAME",
        ),
    ] = None,
    symbolic: Annotated[
        bool | None,
        typer.Option(
            "--symbolic/--points",
            help="Every layer for every batch and length, or refuse; or at points only. By default one layer of each "
            "kind for every batch and length, and all at a point.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Only the first N layers, for small devices.", metavar="N")] = None,
    device: Annotated[str, typer.Option(help="meta (computes nothing, any size fits), cpu or cuda.")] = "meta",
    dtype: Annotated[Literal["fp32", "bf16"], typer.Option(help="Of the modules.")] = "fp32",
    against: Annotated[
        Literal["transformers"] | None, typer.Option(help="Also that library's module of the same config.json.")
    ] = None,
    zero_cost: Annotated[bool, typer.Option(help="List the operators that may run without a count.")] = False,
    record: Annotated[bool, typer.Option(help="Keep what was found of presets, for the marks of show.")] = False,
    format_: o.Format = "table",
    json_: o.Json = False,
) -> None:
    """Predicted and measured side by side, part by part. With exact differences; exit code 0 only when all are equal.

    Example: txcalc verify gpt2
    """
    from rich.console import Console
    from rich.progress import Progress

    from txcalc import load
    from txcalc.cli.output import emit
    from txcalc.errors import InputError
    from txcalc.sources.presets import names

    chosen = o.chosen(format_, json_)
    if everything == bool(sources):
        raise InputError("verify", ["expected models, or --all for every preset" + (", not both" if sources else "")])
    if layers is not None and record:
        raise InputError("options", ["--record keeps what holds of whole models, --layers cuts them"])
    models = [load(source) for source in (names() if everything else sources or ())]

    from txcalc.render.verify import report
    from txcalc.verify import DEFAULT, ORACLES, shortened, verify
    from txcalc.verify.coverage import ZERO_COST
    from txcalc.verify.device import DTYPES
    from txcalc.verify.record import proofs, store

    asked = [name for name in ORACLES if name != "transformers"] if oracle == ["all"] else list(oracle or DEFAULT)
    asked += ["transformers"] if against else []
    lengths: Any = "auto" if symbolic is None else "symbolic" if symbolic else "points"
    models = [shortened(model, layers) for model in models] if layers is not None else models
    verdicts = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=len(models) if len(models) > 1 else None)
        for model in models:
            bar.update(task, description=model.name)
            verdicts.append(verify(model, asked, lengths=lengths, device=device, dtype=DTYPES[dtype]))
            if record:
                store({model.name: proofs(model, verdicts[-1])})
            bar.advance(task)
    free = sorted(name for group in ZERO_COST.values() for name in group) if zero_cost else ()
    emit(report(verdicts, free), chosen)
    if not all(verdict.ok for verdict in verdicts):
        raise typer.Exit(1)
