"""Prints a report: the result on stdout, notes on stderr, colour only on a terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import typer

from txcalc.render import FORMATS, written
from txcalc.render.lines import Line, as_lines, wrap

if TYPE_CHECKING:
    from txcalc.cli.options import Plot
    from txcalc.questions.answers import Drawing, Result

DRAWN = 100  # columns that a drawing has at most; 80 where no terminal says otherwise


def print_answer(
    answer: Result | None, form: str, plot: Plot | None = None, chosen: tuple[Sequence[str], int | None] = ((), None)
) -> None:
    """Prints an answer, or its chosen rows and digits, and plots it; exit code 1 for a negative answer. None: the
    command has printed. Tables are 100 columns wide without a terminal."""
    if answer is None:
        return
    drawing = plot.drawing(answer) if plot else None
    wrote = [save(drawing, plot.place)] if plot and drawing and plot.place != "-" else []
    if form == "json":
        sys.stdout.write(escape(answer.to_json()) + "\n")
        print_notes(wrote)
    else:
        report = answer.report(form).only(*chosen)
        if form in FORMATS:
            sys.stdout.write(written(report, form) + "\n")
        else:
            lines = as_lines(report, get_terminal_size((100, 24)).columns)
            sys.stdout.write(_style(lines) if _wants_colour() else _plain(lines))
        if drawing and not wrote:
            from txcalc.render.terminal import as_text

            width = min(get_terminal_size((80, 24)).columns, DRAWN)
            sys.stdout.write("\n" + as_text(drawing.picture, width, _wants_colour()))
        print_notes(report.notes)
        print_notes(wrote)
    if answer.failed:
        raise typer.Exit(1)


@contextmanager
def progress(shared_terminal: bool = True) -> Iterator[Callable[[str, float], None]]:
    """A progress bar on stderr, from the first step on, if that is a terminal; without
    `shared_terminal` only if stdout is not one too."""
    if not sys.stderr.isatty() or (not shared_terminal and sys.stdout.isatty()):
        yield lambda step, share: None
        return

    @cache
    def bar() -> Any:
        from rich.console import Console
        from rich.progress import Progress

        redirect: Any = {"redirect_stdout": shared_terminal, "redirect_stderr": shared_terminal}
        display = Progress(console=Console(stderr=True), transient=True, **redirect)
        display.add_task("", total=1.0)
        display.start()
        return display

    try:
        yield lambda step, share: bar().update(bar().task_ids[0], description=step, completed=share)
    finally:
        if bar.cache_info().currsize:
            bar().stop()


def escape(text: str) -> str:
    """JSON in the encoding of standard output."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        import json

        return json.dumps(json.loads(text), indent=2)
    return text


def save(drawing: Drawing, place: str) -> str:
    """Writes a plot, and says so. Errors: `InputError`."""
    drawing.save(place, force=True)  # `plot_request` has checked the file
    return f"the picture is in {place}"


def _wants_colour() -> bool:
    colour = sys.stdout.isatty() or os.environ.get("FORCE_COLOR")
    return bool(colour) and not os.environ.get("NO_COLOR")


# Control characters and those that turn the direction of writing: a terminal would obey them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """A text without control characters: names come from files."""
    return text if text.isprintable() else _CONTROLS.sub("", text)


def _plain(lines: Iterable[Line]) -> str:
    return "".join("".join(printable(text) for text, _ in line).rstrip() + "\n" for line in lines)


def _style(lines: Iterable[Line]) -> str:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    with console.capture() as captured:  # rich answers a closed pipe with exit code 1, which here means refuted
        for line in lines:
            console.print(Text.assemble(*((printable(text), style) for text, style in line)), soft_wrap=True)
    return captured.get()


def print_notes(notes: Iterable[str]) -> None:
    """Notes on stderr; equal ones about several models (`NAME: …`) are joined."""
    for note in fold_notes(notes):
        typer.echo(wrap_stderr("note: ", note), err=True)


def wrap_stderr(label: str, text: str) -> str:
    """A labelled message. If standard error is a terminal, it is wrapped to its width, and indented by the label."""
    text = printable(text)
    if not sys.stderr.isatty():
        return label + text
    width = get_terminal_size(os.get_terminal_size(sys.stderr.fileno())).columns or 80
    return label + "\n".join(wrap(" " * len(label) + text, width))[len(label) :]


def fold_notes(notes: Iterable[str]) -> list[str]:
    """Joins notes that differ only in the name before the colon."""
    names: dict[str, dict[str, None]] = {}
    for note in notes:
        name, colon, text = note.partition(": ")
        names.setdefault(text if colon else note, {})[name if colon else ""] = None
    return [f"{', '.join(of)}: {text}" if any(of) else text for text, of in names.items()]
