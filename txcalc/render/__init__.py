"""Answers as text: tables for terminals (`lines`), and a module for each of `FORMATS`; pictures (`draw`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from msgspec.structs import replace

from txcalc.errors import Fault, InputError

if TYPE_CHECKING:
    from txcalc.questions.answers import Result
    from txcalc.render.report import Report

# Modules that write a report: `csv` by its function `as_csv`, and so on; loaded on first use.
FORMATS = ("csv", "markdown", "latex", "html")


def written(report: Report, form: str) -> str:
    """A report in one of `FORMATS`, without the columns that only a wide terminal shows."""
    report = replace(report, tables=[table.without_optional() for table in report.tables])
    return getattr(import_module(f"txcalc.render.{form}"), f"as_{form}")(report)  # type: ignore[no-any-return]


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
