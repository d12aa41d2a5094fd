"""Values of options that every command reads in the same way: models, formats, plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from txcalc.errors import Fault, InputError
from txcalc.questions.changes import must_change

if TYPE_CHECKING:
    from txcalc.model import Model

FormatName = Literal["table", "json", "csv", "markdown", "latex", "html"]


def chosen(format_: FormatName, json_: bool) -> FormatName:
    """The format that `--format` and `--json` select."""
    if json_ and format_ not in ("table", "json"):
        raise InputError("options", [f"--json and --format {format_} exclude each other"])
    return "json" if json_ else format_


def plotted(place: str | None, format_: FormatName, force: bool) -> str | None:
    """Checks `--plot` before anything is computed. Errors: `InputError`, `MissingExtra`."""
    if place is None:
        if force:
            raise InputError("options", ["--force needs a file to write"])
        return None
    from txcalc.render.draw import SUFFIXES, check
    from txcalc.sources.files import writable

    if place == "-":
        if format_ != "table":
            raise InputError("options", [f"--plot - needs --format table, not {format_}"])
    elif Path(place).suffix.lower() not in SUFFIXES:
        raise InputError("--plot", [Fault("--plot", place, f"a file named {' or '.join(SUFFIXES)}, or - to draw here")])
    check(place)
    if place != "-":
        writable(Path(place), force)
    return place


def models(
    sources: Sequence[str], ignore: list[str] | None, changes: Mapping[str, Any] | None = None, *, weights: bool = False
) -> list[Model]:
    """Models, some of which may be presets: --ignore must apply to at least one config.json, and changes must change at
    least one model."""
    from txcalc import load

    loaded, ignored = [], False
    for source in sources:
        try:
            loaded.append(load(source, changes, weights=weights, ignore=ignore or ()))
            ignored = True
        except InputError as error:
            if error.where != "--ignore" or len(sources) == 1:
                raise
            loaded.append(load(source, changes, weights=weights))
    if ignore and not ignored:
        raise InputError("--ignore", ["needs a config.json, and none of these is one"])
    must_change(loaded, changes or {})
    return loaded
