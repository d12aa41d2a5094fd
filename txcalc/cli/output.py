"""Prints a report: the result on stdout, notes on stderr, colour only on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from shutil import get_terminal_size

import typer

from txcalc.render.report import Line, Report, as_csv, as_json, as_latex, as_lines, as_markdown

_PLAIN = {"json": as_json, "csv": as_csv, "markdown": as_markdown, "latex": as_latex}


def emit(report: Report, format_: str) -> None:
    """One report in one format; a table is 100 columns wide where no terminal says otherwise."""
    if format_ in _PLAIN:
        sys.stdout.write(_PLAIN[format_](report) + "\n")
    else:
        lines = as_lines(report, get_terminal_size((100, 24)).columns)
        asked = sys.stdout.isatty() or os.environ.get("FORCE_COLOR")
        sys.stdout.write(_styled(lines) if asked and not os.environ.get("NO_COLOR") else _plain(lines))
    if format_ != "json":
        tell(report.notes)


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
    """Notes, on stderr."""
    for note in notes:
        typer.echo(f"note: {note}", err=True)
