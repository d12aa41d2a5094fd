"""`sweep`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import txcalc
from txcalc.cli import completion, options as o
from txcalc.cli.command import Printing, command
from txcalc.cli.output import progress, save, tell
from txcalc.errors import InputError
from txcalc.questions.changes import must_change, parse_changes

if TYPE_CHECKING:
    from txcalc.questions.sweeps import Swept

_OVER = (
    "An axis (a letter, a key or a workload length) with its values: T=1k:1M:2x (doubling, end included), "
    "D=512:4096:+512 (steps) or h=8,16,32. Repeatable; the last varies fastest."
)
_QUANTITY = (
    "params, active, flops, flops_masked, flops_other, bytes, saved, cache, weights_bytes, saved_bytes or cache_bytes; "
    "or of one kind of part: params.attention. Repeatable."
)


@command(
    drawn=True,
    quantities=Annotated[
        list[str], typer.Option("--quantity", help=_QUANTITY, metavar="NAME", autocompletion=completion.quantity)
    ],
    by_kind=o.own("Split each quantity by kind of part: attention, feed_forward, norm …"),
    batch=o.length("--batch", "Unless swept (default: 1)."),
    tokens=o.length("--tokens", "Unless swept (default: 1)."),
    past=o.length("--past", "Unless swept (default: 0)."),
)
def sweep(
    sources: o.Sources,
    over: Annotated[list[str], typer.Option("--over", help=_OVER, metavar="AXIS=GRID", autocompletion=completion.key)],
    set_: o.Set = None,
    ignore: o.Ignore = None,
    *,
    out: Annotated[
        Path | None, o.option("--out", "a Parquet file, streamed, up to 10^12 rows (pip install 'txcalc[frames]').")
    ] = None,
    workers: Annotated[int, o.option("--workers", "(with --out).")] = 1,
    cluster: Annotated[
        str | None, typer.Option(help="With --out: compute on the workers of a Dask scheduler.", metavar="ADDRESS")
    ] = None,
    force: o.Force = False,
    printing: Printing,
    **asked: Any,
) -> Any:
    """Exact quantities over a grid of sizes and lengths: a table, CSV of up to 100 million rows, or Parquet of any
    size. B, T, P and T_src are the workload's batch, tokens, past and source; with --set F=8/3*D one size follows
    another.

    Example: txcalc sweep llama-3.1-8b --over T=1k:1M:2x --quantity flops --quantity cache_bytes
    """
    from txcalc.render.sweep import columns, notes
    from txcalc.sweeps.sweep import MAX_POINTS

    chosen, place = printing
    changes = parse_changes(set_)
    found = txcalc.sweep(*sources, over=over, changes=changes, ignore=ignore or (), **asked)
    if not found.grids[0].followers:  # by which a size follows the axes
        must_change([grid.base for grid in found.grids], changes)
    if out is not None:
        if place or chosen != "table":
            raise InputError("options", ["--out excludes --plot and --format"])
        return _streamed(found, out, workers, cluster, force)
    if workers != 1 or cluster:
        raise InputError("options", ["--workers and --cluster need --out"])
    if found.points > MAX_POINTS:
        raise InputError("sweep", [f"{found.points:,} points are more than {MAX_POINTS:,}: --out streams them"])
    if chosen != "csv":  # which is streamed
        found.check(chosen)
    grids = found.grids
    if place:
        from txcalc.render import plot as plots

        plots.drawable([len(axis.values) for axis in grids[0].axes], len(grids), asked["by_kind"])
    if chosen != "csv":
        return found
    wrote = [save(plots.sweep(found.report("json").data), place)] if place else []
    names = [*(["model"] if len(grids) > 1 else []), *columns(grids[0])]
    sys.stdout.write(",".join(names) + "\n")
    done = 0
    with progress(beside=False) as shown:
        for grid in grids:
            named = f'"{grid.base.name}",' if len(grids) > 1 else ""
            line = named.replace("%", "%%") + ",".join(["%d"] * len(columns(grid))) + "\n"
            # one write a block: a million small ones take longer than the figures
            for block in grid:
                rows = zip(*(column.tolist() for column in block), strict=True)
                sys.stdout.write("".join(map(line.__mod__, rows)))
                shown("points", (done := done + len(block[0])) / found.points)
    tell([*(note for grid in grids for note in notes(grid)), *wrote])


def _streamed(found: Swept, out: Path, workers: int, cluster: str | None, force: bool) -> None:
    """The grid in a Parquet file, with a progress bar where stderr is a terminal."""
    from txcalc.render.sweep import notes

    with progress() as shown:
        written = found.to_parquet(
            out, workers=workers, cluster=cluster, force=force, tell=lambda share: shown("points", share)
        )
    typer.echo(f"{written.path}: {written.rows:,} rows in {written.groups:,} row groups, {written.bytes:,} bytes")
    tell(notes(found.grids[0]))
