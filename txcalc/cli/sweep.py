"""`txcalc sweep`: any quantity over a grid of sizes and lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from txcalc.cli import options as o

app = typer.Typer(rich_markup_mode=None, add_completion=False)

MOST_MODELS = 8
READABLE = {"table": 2_000, "markdown": 2_000, "latex": 2_000, "html": 2_000, "json": 1_000_000}
_OVER = (
    "A letter, a key or a word of the workload, and its values: T=1k:1M:2x (times 2, the end included), "
    "D=512:4096:+512 (steps) or h=8,16,32. Repeatable; the last varies fastest."
)
_QUANTITY = (
    "params, active, flops, flops_masked, flops_other, bytes, saved, cache, weights_bytes, saved_bytes or cache_bytes; "
    "of one kind of part: params.attention. Repeatable."
)


@app.command()
def sweep(
    sources: o.Sources,
    over: Annotated[list[str], typer.Option("--over", help=_OVER, metavar="AXIS=GRID")],
    quantity: Annotated[list[str] | None, typer.Option("--quantity", help=_QUANTITY, metavar="NAME")] = None,
    by_kind: Annotated[
        bool, typer.Option("--by-kind", help="Each quantity apart by kind of part: attention, feed_forward, norm …")
    ] = False,
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
    and T_src are the workload's batch, tokens, past and source; with --set F=8/3*D one size follows another.

    Example: txcalc sweep llama-3.1-8b --over T=1k:1M:2x --quantity flops --quantity cache_bytes
    """
    import sys

    from txcalc import load
    from txcalc.cli.output import emit, save, tell
    from txcalc.errors import InputError
    from txcalc.render.sweep import columns, notes, report
    from txcalc.sources.expressions import read as expressions
    from txcalc.sources.spec import letter_path
    from txcalc.sweep import Sweep, parse_axis

    chosen = o.chosen(format_, json_)
    place = o.plotted(plot, chosen)
    changes = o.changes(set_)
    if len(sources) > MOST_MODELS:
        raise InputError("sweep", [f"{len(sources)} models, expected at most {MOST_MODELS}"])
    lengths = {"batch": batch, "tokens": tokens, "past": past, "source": source_length}
    fixed: dict[str, Any] = {name: value for name, value in lengths.items() if value is not None}
    work = {**fixed, "dtype": dtype, "kv_dtype": kv_dtype, "logits": logits, "mla": mla}
    axes = [parse_axis(text) for text in over]
    grids = []
    for source in sources:
        written_out = any(isinstance(value, str) for value in changes.values())
        follow = expressions(load(source, ignore=ignore or ()).raw, changes) if written_out else {}
        model = load(source, {k: v for k, v in changes.items() if k not in follow}, ignore=ignore or ())
        grid = Sweep(model, axes, quantity or ["params", "flops"], work, follow)
        given = {*fixed, *(letter_path(key, model.raw) for key in changes)}
        if twice := [f"{name} is swept, and given a value too" for name in grid.places[: len(axes)] if name in given]:
            raise InputError("options", twice)
        grids.append(grid)
    if by_kind:
        apart = tuple(dict.fromkeys(name for grid in grids for name in grid.by_kind()))
        for grid in grids:
            grid.quantities = apart
    points = sum(grid.points for grid in grids)
    limit = READABLE.get(chosen, points)
    if points > limit:
        fault = f"{points:,} points are more than --format {chosen} writes ({limit:,}): choose --format csv"
        raise InputError("sweep", [fault])
    if place:
        from txcalc.render import plot as plots

        plots.drawable([len(axis.values) for axis in axes], len(grids), by_kind)
    if chosen != "csv":
        written = report(*grids)
        emit(written, chosen, place, lambda plots: plots.sweep(written.data))
        return
    wrote = [save(plots.sweep(report(*grids).data), place)] if place else []
    names = [*(["model"] if len(grids) > 1 else []), *columns(grids[0])]
    sys.stdout.write(",".join(names) + "\n")
    for grid in grids:
        named = f'"{grid.base.name}",' if len(grids) > 1 else ""
        line = named.replace("%", "%%") + ",".join(["%d"] * len(columns(grid))) + "\n"
        for block in _watched(
            grid, grid.points
        ):  # one write a block: a million small ones take longer than the figures
            rows = zip(*(column.tolist() for column in block), strict=True)
            sys.stdout.write("".join(map(line.__mod__, rows)))
    tell([*(note for grid in grids for note in notes(grid)), *wrote])


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
