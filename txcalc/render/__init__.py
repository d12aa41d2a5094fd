"""Results → text: tables for terminals, JSON, CSV, Markdown, LaTeX, HTML, pictures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from txcalc.errors import Fault, InputError

if TYPE_CHECKING:
    from txcalc.questions.answers import Result
    from txcalc.render.report import Report

# The function that writes a report in each format but a terminal's table (`render.lines`); loaded on first use.
FORMATS = {"csv": "report:as_csv", "markdown": "report:as_markdown", "latex": "latex:as_latex", "html": "html:as_html"}


def written(report: Report, form: str) -> str:
    """A report in one of `FORMATS`."""
    module, _, name = FORMATS[form].partition(":")
    return getattr(import_module(f"txcalc.render.{module}"), name)(report)  # type: ignore[no-any-return]


def text(answer: Result, form: str, width: int) -> str:
    """An answer in a format; a table as wide as `width`. Errors: `InputError` for an unknown format."""
    if form == "json":
        return answer.to_json()
    if form in FORMATS:
        return written(answer.report(form), form)
    if form != "table":
        raise InputError("format", [Fault("format", form, f"table, json, {', '.join(FORMATS)}")])
    from txcalc.render.lines import as_lines

    return "\n".join("".join(text for text, _ in line).rstrip() for line in as_lines(answer.report(), width))
