"""Results → text: tables for terminals, JSON, CSV, Markdown, LaTeX, HTML, pictures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txcalc.render.report import Report

# What writes a report, but as a table for a terminal (`render.lines`): a function of a module, loaded when it is used.
FORMATS = {
    "json": "report:as_json",
    "csv": "report:as_csv",
    "markdown": "report:as_markdown",
    "latex": "latex:as_latex",
    "html": "html:as_html",
}


def written(report: Report, form: str) -> str:
    """A report in one of `FORMATS`."""
    module, _, name = FORMATS[form].partition(":")
    return getattr(import_module(f"txcalc.render.{module}"), name)(report)  # type: ignore[no-any-return]
