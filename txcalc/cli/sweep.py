"""`txcalc sweep`: any quantity over a grid of sizes and lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)

READABLE = {"table": 2_000, "markdown": 2_000, "latex": 2_000, "json": 1_000_000}
_OVER = (
    "A letter, a key or a word of the workload, and its values: T=1k:1M:2x (times 2, the end included), "
    "D=512:4096:+512 (steps) or h=8,16,32. Repeatable; the last varies fastest."
)
_QUANTITY = (
    "params, active, flops, flops_masked, flops_other, bytes, saved, cache, weights_bytes, saved_bytes or cache_bytes. "
    "Repeatable."
)


@app.command()
def sweep(
    source: o.Source,
    over: Annotated[list[str], typer.Option("--over", help=_OVER, metavar="AXIS=GRID")],
    quantity: Annotated[list[str] | None, typer.Option("--quantity", help=_QUANTITY, metavar="NAME")] = None,
    set_: o.Set = None,
    ignore: o.Ignore = None,
    batch: o.MaybeBatch = None,
    tokens: o.MaybeTokens = None,
    past: o.MaybePast = None,
    source_length: o.SourceLength = None,
    dtype: o.Dtype = "bf16",
    kv_dtype: o.KvDtype = "bf16",
    logits: o.Logits = "all",
    mla: o.Mla = "expanded",
    format_: o.Format = "table",
    json_: o.Json = False,
    plot: o.Plot = None,
) -> None:
    """Any quantity over a grid of sizes and lengths. A table to read, or CSV of up to 100 million exact rows. B, T, P
    and T_src are the workload's batch, tokens, past and source.

    Example: txcalc sweep llama-3.1-8b --over T=1k:1M:2x --quantity flops --quantity cache_bytes
    """
    import sys

    from txcalc import load
    from txcalc.cli.output import emit, save, tell
    from txcalc.errors import InputError
    from txcalc.render.sweep import columns, notes, report
    from txcalc.sources.spec import letter_path
    from txcalc.sweep import Sweep, parse_axis

    chosen = o.chosen(format_, json_)
    place = o.plotted(plot, chosen)
    changes = o.changes(set_)
    model = load(source, changes, ignore=ignore or ())
    lengths = {"batch": batch, "tokens": tokens, "past": past, "source": source_length}
    fixed: dict[str, Any] = {name: value for name, value in lengths.items() if value is not None}
    how = {"dtype": dtype, "kv_dtype": kv_dtype, "logits": logits, "mla": mla}
    grid = Sweep(model, [parse_axis(text) for text in over], quantity or ["params", "flops"], {**fixed, **how})
    given = {*fixed, *(letter_path(key, model.raw) for key in changes)}
    if twice := [f"{name} is swept, and given a value too" for name in grid.places if name in given]:
        raise InputError("options", twice)
    limit = READABLE.get(chosen, grid.points)
    if grid.points > limit:
        fault = f"{grid.points:,} points are more than --format {chosen} writes ({limit:,}): choose --format csv"
        raise InputError("sweep", [fault])
    if place:
        from txcalc.render import plot as plots

        plots.drawable([len(axis.values) for axis in grid.axes])
    if chosen != "csv":
        written = report(grid)
        emit(written, chosen, place, lambda plots: plots.sweep(written.data))
        return
    wrote = [save(plots.sweep(report(grid).data), place)] if place else []
    names = columns(grid)
    line = ",".join(["%d"] * len(names)) + "\n"
    sys.stdout.write(",".join(names) + "\n")
    for block in _watched(grid, grid.points):  # one write a block: a million small ones take longer than the figures
        rows = zip(*(column.tolist() for column in block), strict=True)
        sys.stdout.write("".join(map(line.__mod__, rows)))
    tell([*notes(grid), *wrote])


def _watched(blocks: Iterable[list[Any]], points: int) -> Iterator[list[Any]]:
    """The blocks; with a progress bar on stderr after a second, where that is a terminal and stdout is not."""
    import sys
    from time import monotonic

    started, done, bar, task = monotonic(), 0, None, None
    wanted = sys.stderr.isatty() and not sys.stdout.isatty()
    try:
        for block in blocks:
            yield block
            done += len(block[0])
            if wanted and bar is None and monotonic() - started > 1:
                from rich.console import Console
                from rich.progress import Progress

                console = Console(stderr=True)
                bar = Progress(console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
                task = bar.add_task("points", total=points)
                bar.start()
            if bar is not None and task is not None:
                bar.update(task, completed=done)
    finally:
        if bar is not None:
            bar.stop()
