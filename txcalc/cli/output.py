"""Prints a report: the result on stdout, notes on stderr, colour only on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import typer

from txcalc.render import FORMATS, written
from txcalc.render.lines import Line, as_lines, wrapped
from txcalc.render.report import Report

if TYPE_CHECKING:
    from txcalc.api.results import Result
    from txcalc.render.picture import Picture

DRAWN = 100  # columns that a drawing has at most; 80 where no terminal says otherwise


def emit(
    report: Report, format_: str, place: str | None = None, picture: Callable[[Any], Picture] | None = None
) -> None:
    """Prints a report in a format; tables are 100 columns wide without a terminal.

    `picture` makes a plot from the module `render.plot`: written to the file `place` before anything is printed, or
    drawn below the table (`-`).
    """
    image = picture(import_module("txcalc.render.plot")) if place and picture else None
    wrote = [save(image, place)] if image and place and place != "-" else []
    if format_ in FORMATS:
        text = written(report, format_)
        sys.stdout.write((escaped(text) if format_ == "json" else text) + "\n")
    else:
        lines = as_lines(report, get_terminal_size((100, 24)).columns)
        sys.stdout.write(_styled(lines) if _coloured() else _plain(lines))
    if image and place == "-":
        from txcalc.render.terminal import as_text

        sys.stdout.write("\n" + as_text(image, min(get_terminal_size((80, 24)).columns, DRAWN), _coloured()))
    if format_ != "json":
        tell(report.notes)
    tell(wrote)


def printed(found: Result | Report | None, format_: str, place: str | None = None) -> None:
    """Prints what a command found; exit code 1 if a result failed."""
    if isinstance(found, Report):
        return emit(found, format_)
    if found is None:
        return
    emit(found.report(format_), format_, place, found.picture)
    if found.failed:
        raise typer.Exit(1)


@contextmanager
def progress(beside: bool = True) -> Iterator[Callable[[str, float], None]]:
    """A progress bar on stderr, if that is a terminal; with `beside` False not while stdout is one too."""
    if not sys.stderr.isatty() or (not beside and sys.stdout.isatty()):
        yield lambda step, share: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=beside, redirect_stderr=beside) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda step, share: bar.update(task, description=step, completed=share)


def escaped(text: str) -> str:
    """JSON in the encoding of standard output."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        import json

        return json.dumps(json.loads(text), indent=2)
    return text


def save(picture: Picture, place: str) -> str:
    """Writes a plot, and says so. Errors: `InputError`."""
    from txcalc.api.results import Drawing

    Drawing(picture).save(place, force=True)  # `plotted` has checked the file
    return f"the picture is in {place}"


def _coloured() -> bool:
    asked = sys.stdout.isatty() or os.environ.get("FORCE_COLOR")
    return bool(asked) and not os.environ.get("NO_COLOR")


def _plain(lines: Iterable[Line]) -> str:
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def _styled(lines: Iterable[Line]) -> str:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    with console.capture() as captured:  # rich answers a closed pipe with exit code 1, which here means refuted
        for line in lines:
            console.print(Text.assemble(*line), soft_wrap=True)
    return captured.get()


def tell(notes: Iterable[str]) -> None:
    """Notes on stderr; equal ones about several things (`NAME: …`) are joined."""
    for note in folded(notes):
        typer.echo(fitted("note: ", note), err=True)


def fitted(label: str, text: str) -> str:
    """A labelled message. If standard error is a terminal, it is wrapped to that and stands beside its label."""
    if not sys.stderr.isatty():
        return label + text
    width = get_terminal_size(os.get_terminal_size(sys.stderr.fileno())).columns or 80
    return label + "\n".join(wrapped(" " * len(label) + text, width))[len(label) :]


def folded(notes: Iterable[str]) -> list[str]:
    """Joins notes that differ only in the name before the colon."""
    names: dict[str, dict[str, None]] = {}
    for note in notes:
        name, colon, said = note.partition(": ")
        names.setdefault(said if colon else note, {})[name if colon else ""] = None
    return [f"{', '.join(of)}: {said}" if any(of) else said for said, of in names.items()]
