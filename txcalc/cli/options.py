"""Values of options that every command reads in the same way: models, formats, plots."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from txcalc.errors import Fault, InputError
from txcalc.questions.phrases import must_change
from txcalc.render import FORMATS

if TYPE_CHECKING:
    from txcalc.model import Model
    from txcalc.questions.answers import Drawing, Result
    from txcalc.render.draw import Style

FORMAT_NAMES = ("table", "json", *FORMATS)


def chosen(format_: str, json_: bool) -> str:
    """The format that `--format` and `--json` select."""
    if json_ and format_ not in ("table", "json"):
        raise InputError("options", [f"--json and --format {format_} exclude each other"])
    return "json" if json_ else format_


def chosen_rows(rows: str | None, digits: int | None, form: str) -> tuple[Sequence[str], int | None]:
    """What `--rows` and `--digits` ask of the tables. Errors: `InputError`."""
    if (rows is not None or digits is not None) and form in ("json", "csv"):
        raise InputError("options", [f"--rows and --digits apply to tables, not to --format {form}"])
    if digits is not None and not 1 <= digits <= 15:
        raise InputError("--digits", [Fault("--digits", digits, "a whole number from 1 to 15")])
    names = re.split(r",(?!\d{3}\b)", rows or "")  # not within 8,192
    return [name.strip() for name in names if name.strip()], digits


class Plot(NamedTuple):
    """The plot that a command line asks for: its file or `-`, one panel or all, and its style."""

    place: str
    panel: str | None
    style: Style

    def drawing(self, answer: Result) -> Drawing | None:
        """The plot of an answer, if it has one."""
        from txcalc.questions.answers import Drawing

        if not answer.draw:
            return None
        picture = answer.picture()
        return Drawing(picture.panel(self.panel) if self.panel else picture, self.style)


def plot_request(
    place: str | None, format_: str, force: bool, panel: str | None, size: str | None, font: float | None
) -> Plot | None:
    """Checks `--plot` and its options before anything is computed. Errors: `InputError`, `MissingExtra`."""
    options = {"--panel": panel, "--size": size, "--font": font}
    if place is None:
        if force:
            raise InputError("options", ["--force needs a file to write"])
        if unused := [flag for flag, value in options.items() if value is not None]:
            raise InputError(unused[0], ["needs --plot FILE"])
        return None
    from txcalc.render.draw import SUFFIXES, check, style
    from txcalc.sources.files import writable

    if place == "-":
        if format_ != "table":
            raise InputError("options", [f"--plot - needs --format table, not {format_}"])
    elif Path(place).suffix.lower() not in SUFFIXES:
        raise InputError("--plot", [Fault("--plot", place, f"a file named {' or '.join(SUFFIXES)}, or - to draw here")])
    check(place)
    if place != "-":
        writable(Path(place), force)
    return Plot(place, panel, style(size, font))


def models(
    sources: Sequence[str],
    ignore: list[str] | None,
    changes: Mapping[str, object] | None = None,
    *,
    weights: bool = False,
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
