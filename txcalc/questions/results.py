"""Results of `txcalc`'s functions: the JSON document of the command, with typed keys as attributes.

Of commands whose answers are not yet typed (`answers`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from msgspec import Struct, convert

from txcalc.errors import Fault, InputError
from txcalc.frames import Framed
from txcalc.questions.arguments import checked
from txcalc.render import FORMATS, written
from txcalc.render.report import DataReport as Report
from txcalc.sources.files import writable, write

if TYPE_CHECKING:
    from txcalc.questions.pictures import Picture


class Record:
    """A table of a JSON document: a class declares its keys with their types, and each is an attribute (`from_` for the
    key `from`). A missing key is None if its type allows that, else an AttributeError."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.__dict__["_data"] = data

    if not TYPE_CHECKING:  # type checkers see only the declared keys

        def __getattr__(self, name: str) -> Any:
            hint = _hints(type(self)).get(name)
            if hint is None:
                raise AttributeError(f"{type(self).__name__} has no {name!r}")
            key = name.removesuffix("_")
            if key not in self._data and NoneType not in get_args(hint):
                raise AttributeError(f"{type(self).__name__} has no {name!r} here: it was not asked for")
            value = self.__dict__[name] = _made(self._data.get(key), hint)
            return value

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_hints(type(self))})  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_dict(), sort_keys=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.to_dict(),)

    def __repr__(self) -> str:
        said = {key: value for key, value in self.to_dict().items() if not isinstance(value, dict | list)}
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in said.items())})"

    def to_dict(self) -> dict[str, Any]:
        """Dicts, lists and plain values, as `--json` prints them."""
        return json.loads(json.dumps(self._data))  # type: ignore[no-any-return, attr-defined]


@cache
def _hints(cls: type) -> dict[str, Any]:
    """The declared keys with their types."""
    return {name: hint for name, hint in get_type_hints(cls).items() if name[0] != "_"}


def _made(value: Any, hint: Any) -> Any:
    """A value by its type: dicts become records, also in lists and dicts."""
    if get_origin(hint) in (Union, UnionType):
        kinds = {one: dict if _of(one) or _typed(one) else one for one in get_args(hint)}
        fitting = [one for one, kind in kinds.items() if isinstance(value, get_origin(one) or kind)]
        if isinstance(value, dict):  # of several records the one that declares most of its keys
            fitting.sort(key=lambda one: len(value.keys() - _hints(one)) if _of(one) else 0)
        return _made(value, fitting[0]) if fitting else value
    if _typed(hint):
        return convert(value, hint)
    inner = get_args(hint)
    if isinstance(value, dict) and (inner or _of(hint)):
        return hint(value) if _of(hint) else {key: _made(one, inner[1]) for key, one in value.items()}
    return [_made(one, inner[0]) for one in value] if isinstance(value, list | tuple) and inner else value


def _of(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Record)


def _typed(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct)


class Known(Record):
    """How a figure is known: proved, measured, published or modelled; and for which sizes or by whom."""

    how: str
    where: str


class Planned(Record):
    """The model of a plan."""

    name: str
    source: str | None
    params: int


class Result(Record, Framed):
    """The result of a command. `failed`: the answer is no (a plan does not fit, figures differ).

    Its keys are attributes; `to_dict()` is the `--json` document; `print` and notebooks show the table; its rows make a
    data frame (`to_pandas`, `to_polars`, or the object itself where Arrow is understood).
    """

    schema: str

    def __init__(
        self,
        make: Callable[[str], Report],
        picture: Callable[[Any], Picture] | None = None,
        failed: bool = False,
    ) -> None:
        vars(self).update({"_make": make, "_reports": {}, "picture": picture, "failed": failed})

    if TYPE_CHECKING:
        failed: bool
        picture: Callable[[Any], Picture] | None

    @checked
    def report(self, form: str = "table") -> Report:
        """The report in a format."""
        reports = self.__dict__["_reports"]
        if form not in reports:
            reports[form] = self.__dict__["_make"](form)
        return reports[form]  # type: ignore[no-any-return]

    @cached_property
    def _data(self) -> dict[str, Any]:
        return json.loads(written(self.report("json"), "json"))  # type: ignore[no-any-return]

    @checked
    def to_text(self, form: str = "table", width: int = 100) -> str:
        """Text as the command line prints it: table, json, csv, markdown, latex or html. Errors: `InputError`."""
        if form in FORMATS:
            return written(self.report(form), form)
        if form != "table":
            raise InputError("format", [Fault("format", form, f"table, {', '.join(FORMATS)}")])
        from txcalc.render.lines import as_lines

        return "\n".join("".join(text for text, _ in line).rstrip() for line in as_lines(self.report(), width))

    @checked
    def plot(self, place: str | Path | None = None, *, force: bool = False) -> Drawing:
        """A plot: shown in a notebook, printed in a terminal, or written to `place` (FILE.svg or FILE.png).

        Errors: `InputError` without a plot, or if the file exists (unless `force`) or cannot be written;
        `MissingExtra`.
        """
        if self.picture is None:
            raise InputError(self.schema, ["has no picture"])
        drawing = Drawing(self.picture(import_module("txcalc.render.plot")))
        if place is not None:
            drawing.save(place, force=force)
        return drawing

    def _rows(self) -> Sequence[Mapping[str, Any]]:
        rows = self._data.get("rows")
        if not isinstance(rows, list):
            raise InputError(self._data["schema"], ["has no rows, which a data frame is made of"])
        return rows

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"{type(self).__name__} is not pickled: its to_dict() is")

    def __str__(self) -> str:
        return self.to_text(width=get_terminal_size((100, 24)).columns)

    def __repr__(self) -> str:
        tables = self.report().tables
        header = [*self.report().header, *(table.title for table in tables), *(f"{len(t.rows)} rows" for t in tables)]
        return f"<txcalc.{self.schema.split('/')[1]}: {next(filter(None, header), '')}>"

    def _repr_html_(self) -> str:
        from txcalc.render.html import fragment

        return fragment(self.report().header, self.report().tables)


class Drawing:
    """A plot, drawn when it is shown."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture

    def _repr_svg_(self) -> str:
        from txcalc.render.draw import as_file

        return as_file(self.picture, ".svg").decode()

    def __str__(self) -> str:
        from txcalc.render.terminal import as_text

        return as_text(self.picture, min(get_terminal_size((80, 24)).columns, 100), False)

    @checked
    def save(self, place: str | Path, *, force: bool = False) -> None:
        """Writes FILE.svg or FILE.png. Errors: `InputError` (a file that exists, unless `force`), `MissingExtra`."""
        from txcalc.render.draw import SUFFIXES, as_file

        path = Path(place)
        if path.suffix.lower() not in SUFFIXES:
            raise InputError("plot", [Fault("plot", str(place), f"a file named {' or '.join(SUFFIXES)}")])
        writable(path, force)
        write(path, as_file(self.picture, path.suffix.lower()), force)
