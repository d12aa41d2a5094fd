"""`sweep` on the command line: it streams CSV and Parquet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from txcalc.cli.build import Call
from txcalc.cli.output import print_notes, progress, save
from txcalc.errors import InputError
from txcalc.questions import options as o
from txcalc.questions.changes import must_change
from txcalc.questions.sweep import Sweep, check_drawable, columns
from txcalc.render.report import inert


def run(
    call: Call,
    *,
    out: Annotated[
        Path | None, o.OUT.more("a Parquet file, streamed, up to 10^12 rows (pip install 'txcalc[frames]').")
    ] = None,
    workers: Annotated[int, o.WORKERS.more("(with --out).")] = 1,
    cluster: Annotated[
        str | None,
        o.Option("With --out: compute on the workers of a Dask scheduler.", "ADDRESS", "Engine"),
    ] = None,
    force: Annotated[bool, o.FORCE] = False,
) -> Any:
    """Asks, and streams what is to be a file or CSV."""
    from txcalc.sweeps.sweep import MAX_POINTS

    answer: Sweep = call.ask()
    if not answer.follow:  # a size that follows the axes changes the model
        must_change([grid.base for grid in answer.grids], call.values.get("changes") or {})
    if out is not None:
        if call.plot or call.form != "table":
            raise InputError("options", ["--out excludes --plot and --format"])
        return write(answer, out, workers, cluster, force)
    if workers != 1 or cluster:
        raise InputError("options", ["--workers and --cluster need --out"])
    if answer.points > MAX_POINTS:
        raise InputError("sweep", [f"{answer.points:,} points are more than {MAX_POINTS:,}: --out streams them"])
    if call.form != "csv":
        answer.check(call.form)
    if call.plot:
        check_drawable(answer)
    if call.form != "csv":
        return answer
    drawing = call.plot.drawing(answer) if call.plot else None
    wrote = [save(drawing, call.plot.place)] if call.plot and drawing else []
    print_csv(answer)
    print_notes([*answer.notes, *wrote])
    return None


def print_csv(answer: Sweep) -> None:
    """Every point as a line, in one write per block: a million small ones take longer than the figures."""
    several, names = len(answer.grids) > 1, columns(answer.grids[0])
    sys.stdout.write(",".join([*(["model"] if several else []), *names]) + "\n")
    done = 0
    with progress(shared_terminal=False) as show_progress:
        for grid in answer.grids:
            name = str(inert(grid.base.name)).replace('"', '""')
            label = f'"{name}",' if several else ""
            line = label.replace("%", "%%") + ",".join(["%d"] * len(names)) + "\n"
            for block in grid:
                rows = zip(*(column.tolist() for column in block), strict=True)
                sys.stdout.write("".join(map(line.__mod__, rows)))
                show_progress("points", (done := done + len(block[0])) / answer.points)


def write(answer: Sweep, out: Path, workers: int, cluster: str | None, force: bool) -> None:
    """The grid in a Parquet file, with a progress bar where stderr is a terminal."""
    with progress() as show_progress:
        written = answer.to_parquet(
            out, workers=workers, cluster=cluster, force=force, tell=lambda share: show_progress("points", share)
        )
    typer.echo(f"{written.path}: {written.rows:,} rows in {written.groups:,} row groups, {written.bytes:,} bytes")
    print_notes(answer.notes)
