"""Answers: what `txcalc`'s functions return, as frozen typed values.

A function builds its answer once. The JSON document, data frames, tables and the page read that object: none of them
computes a figure. A number has its field's name everywhere, except where JSON has an older key (`json_key`). JSON omits
a field that has its default: it was not asked for, or does not apply.

>>> import txcalc
>>> answer = txcalc.kv("gpt2", context="1k", batch=8)
>>> answer.rows[0].bytes
301989888
>>> answer.to_dict()["schema"]
'txcalc/kv/1'
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, dataclass_transform

from msgspec import NODEFAULT, Struct, field, structs, to_builtins

from txcalc.errors import Fault, InputError, no_attribute
from txcalc.frames import Framed
from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.parts.part import Workload
from txcalc.questions.arguments import check_arguments
from txcalc.sources.files import writable, write

if TYPE_CHECKING:
    from txcalc.questions.pictures import Picture
    from txcalc.render.draw import Style
    from txcalc.render.report import Report


Value = TypeVar("Value")


def json_key(key: str, default: object = NODEFAULT) -> Any:
    """A field whose JSON key is older than its name."""
    return field(name=key, default=default)


@dataclass_transform(frozen_default=True, field_specifiers=(field, json_key))  # for type checkers alone
class Answer(Struct, frozen=True, omit_defaults=True):
    """An answer or a table in one: its fields are attributes, and keys of the JSON document."""

    def to_dict(self) -> dict[str, Any]:
        """Dicts, lists and plain values, as `--json` prints them."""
        return json.loads(self._to_json(None))  # type: ignore[no-any-return]

    def _to_json(self, indent: int | None) -> str:
        return json.dumps(self._document(), indent=indent, ensure_ascii=False, allow_nan=False)

    def _document(self) -> dict[str, Any]:
        """The JSON document, with functions (a plot's, a command's) as None, which leaves them out."""
        functions = [name for name in self.__struct_fields__ if callable(getattr(self, name))]
        return to_builtins(structs.replace(self, **dict.fromkeys(functions)), enc_hook=lambda deferred: deferred.value)  # type: ignore[no-any-return]

    def __hash__(self) -> int:
        return hash(self._to_json(None))

    def __dir__(self) -> list[str]:
        hidden = {"draw", "launch", "view", "rows_key"}
        return [name for name in super().__dir__() if name not in hidden and not name.startswith("deferred_")]

    if not TYPE_CHECKING:  # which would take any name

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property's own error
                return object.__getattribute__(self, name)
            raise no_attribute(self, name)

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        parts = (f"{name}={value!r}" for name, value in values.items() if isinstance(value, str | int | float | Answer))
        return f"{type(self).__name__}({', '.join(parts)})"


class Deferred(Generic[Value]):
    """A figure that takes long and that few tables show: computed on first read."""

    def __init__(self, compute: Callable[[], Value]) -> None:
        self.compute = compute

    @cached_property
    def value(self) -> Value:
        return self.compute()


class Result(Answer, Framed, kw_only=True):
    """The answer of a command. `print` and notebooks show its tables; its rows make a data frame (`to_pandas`,
    `to_polars`, or the object itself for libraries that read Arrow).

    A subclass names its JSON schema as its tag (`tag="txcalc/kv/1"`). `report` in the module of `txcalc.render` named
    after the command (or as `view` says) makes its tables.

    draw       a function that makes the `Picture` of `plot`; None: there is none
    rows_key   the key of the rows of a data frame
    """

    draw: Callable[[], Any] | None = None
    rows_key: ClassVar[str] = "rows"

    @property
    def schema(self) -> str:
        """The name and version of its JSON document."""
        return str(self.__struct_config__.tag)

    @property
    def view(self) -> str:
        """The module of `txcalc.render` that makes its tables."""
        return self.schema.split("/")[1]

    @property
    def failed(self) -> bool:
        """Whether the answer is no: a plan does not fit, figures differ."""
        return False

    @check_arguments
    def report(self, form: str = "table") -> Report:
        """Its header, tables and notes, for a format."""
        return import_module(f"txcalc.render.{self.view}").report(self, form)  # type: ignore[no-any-return]

    def to_json(self) -> str:
        """The JSON document: exact integers, keys in the order of the schema."""
        return self._to_json(2)

    @check_arguments
    def to_text(self, form: str = "table", width: int = 100) -> str:
        """Text as the command line prints it, in a `form` of `--format`; a table has `width` columns.
        Errors: `InputError`."""
        return import_module("txcalc.render").text(self, form, width)  # type: ignore[no-any-return]

    @check_arguments
    def to_latex(self, rows: Sequence[str] = (), digits: int | None = None) -> str:
        """Its tables in LaTeX, for booktabs: all, or `rows` whose name contains one of these texts; with large numbers
        in `digits` significant digits. Errors: `UnknownName`."""
        report = self.report("latex").only([rows] if isinstance(rows, str) else rows, digits)
        return import_module("txcalc.render").written(report, "latex")  # type: ignore[no-any-return]

    def picture(self) -> Picture:
        """The plot as data. Errors: `InputError` where there is none."""
        if self.draw is None:
            raise InputError(self.schema, ["has no picture"])
        return self.draw()  # type: ignore[no-any-return]

    @check_arguments
    def plot(
        self,
        place: str | Path | None = None,
        *,
        force: bool = False,
        panel: str | None = None,
        size: str | float | None = None,
        font: float | None = None,
        ax: object = None,
    ) -> Any:
        """A plot: shown in a notebook, printed in a terminal, or written to a file.

        place  FILE.svg, .png, .pdf or .pgf; `force` overwrites it
        panel  draw one panel, by a part of its title, without text above it
        size   inches: a width (3.3), "3.3x2.5", or "column" of a paper
        font   points of the text
        ax     matplotlib's axes to draw one panel into; they are returned

        Errors: `InputError` without a plot, or if the file exists or cannot be written; `UnknownName` for a panel;
        `MissingExtra`.
        """
        picture = self.picture()
        if panel or ax is not None:
            picture = picture.panel(panel or "")
        draw = import_module("txcalc.render.draw")
        if ax is not None:
            draw.panel_into(ax, picture.panels[0])
            return ax
        drawing = Drawing(picture, draw.style(size, font))
        if place is not None:
            drawing.save(place, force=force)
        return drawing

    def _rows(self) -> Sequence[Mapping[str, Any]]:
        rows = self.to_dict().get(self.rows_key)
        if not isinstance(rows, list):
            raise InputError(self.schema, ["has no rows, which a data frame is made of"])
        return rows

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return super().__hash__()

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(f"{type(self).__name__} is not pickled: its to_dict() is")

    def __str__(self) -> str:
        return self.to_text(width=get_terminal_size((100, 24)).columns)

    def __repr__(self) -> str:
        report = self.report()
        tables = report.tables
        lines = [*report.header, *(table.title for table in tables), *(f"{len(t.rows)} rows" for t in tables)]
        return f"<txcalc.{self.schema.split('/')[1]}: {next(filter(None, lines), '')}>"

    def _repr_html_(self) -> str:
        report = self.report()
        return import_module("txcalc.render.html").fragment(report.header, report.tables)  # type: ignore[no-any-return]


class Drawing:
    """A plot, drawn when it is shown."""

    def __init__(self, picture: Picture, style: Style) -> None:
        self.picture = picture
        self.style = style

    def __repr__(self) -> str:
        return f"<plot: {self.picture.title or self.picture.panels[0].name}>"

    def _repr_svg_(self) -> str:
        draw = import_module("txcalc.render.draw")
        return draw.as_file(self.picture, ".svg", self.style).decode()  # type: ignore[no-any-return]

    def __str__(self) -> str:
        width = min(get_terminal_size((80, 24)).columns, 100)
        return import_module("txcalc.render.terminal").as_text(self.picture, width, False)  # type: ignore[no-any-return]

    @check_arguments
    def save(self, place: str | Path, *, force: bool = False) -> None:
        """Writes FILE.svg, .png, .pdf or .pgf. Errors: `InputError` (a file that exists, unless `force`),
        `MissingExtra`."""
        draw = import_module("txcalc.render.draw")
        path = Path(place)
        if path.suffix.lower() not in draw.SUFFIXES:
            raise InputError("plot", [Fault("plot", str(place), f"a file named {' or '.join(draw.SUFFIXES)}")])
        writable(path, force)
        write(path, draw.as_file(self.picture, path.suffix.lower(), self.style), force)


class ModelInfo(Answer):
    """A model and its source. `summary`: its kind and sizes in one line, its layers in another."""

    name: str
    kind: str
    context: int | None
    source: str
    model_type: str | None
    params: int
    summary: tuple[str, ...]

    @classmethod
    def of(cls, model: Model) -> ModelInfo:
        description = model.description
        source, model_type = description.source or model.origin, description.model_type or None
        return cls(model.name, model.kind, model.context, source, model_type, model.params, model.outline())


class SourceInfo(Answer):
    """A source without a description, so that its kind is not known. `model_type`: a config.json's."""

    name: str
    kind: None
    source: str
    model_type: str | None


NORMS = {"rms": "RMSNorm", "layer": "LayerNorm"}
LISTED = {"layer_norm": "LayerNorm", "rms_norm": "RMSNorm", "scale": "scales in place of norms"}  # of listed leaves
PLACES = {"pre": "pre-norm", "post": "post-norm", "after": "norms after branches", "sandwich": "sandwich norms"}
PARALLEL = {"shared": "one norm", "separate": "two norms"}
ADDED = ("learned", "sinusoidal")  # positions added to the embedding
CHANNELS = ("feed_forward", "experts", "channel_mix")


def architecture(model: Model) -> str:
    """Norms and their placement, activations, positions and F/D in one line, each variant once."""
    variants: list[dict[str, None]] = [{}, {}, {}, {}]
    norms, activations, positions, ratios = variants
    has_listed_leaves = False  # some may be positions
    for stack in model.stacks:
        for layer in stack.layer.values():
            norm, form = layer.norm, layer.positions.form
            place = " and after ".join((PLACES[norm.place], *(part.replace("_", "-") for part in norm.after)))
            if norm.fully_parallel:
                place = f"parallel blocks, {PARALLEL[str(norm.parallel)] if norm.place == 'pre' else place}"
            bare = set(layer.parts) <= set(norm.without) and not norm.after
            added = "" if norm.residual is None else f", branches × {norm.residual}"
            leaf_forms = [leaf["form"] for leaf in layer.leaves if leaf["kind"] == "norm"]
            listed = [LISTED[leaf_form] for leaf_form in leaf_forms if leaf_form in LISTED]
            layer_norms = listed or ["no norms"] if bare else [f"{NORMS.get(norm.form, norm.form)}, {place}"]
            norms |= dict.fromkeys(name + added for name in layer_norms)
            if form == "none" and (layer.leaves or stack.around):
                has_listed_leaves = True
            elif form in ADDED or any(layer.options(part).ordered for part in layer.parts):
                positions["no positions" if form == "none" else f"{form} positions"] = None
            for channel in (layer.tables[name] for name in CHANNELS if name in layer.tables):
                if activation := channel.get("activation"):
                    activations[activation] = None
                ratio = float(Fraction(channel.get("d_ff"), stack.d_model))
                ratios[f"{'expert ' * (channel is layer.tables.get('experts'))}F/D = {ratio:.4g}"] = None
    if not (positions or has_listed_leaves):
        positions["no positions"] = None
    for form in [form for form in LISTED.values() if any(other.startswith(f"{form},") for other in norms)]:
        norms.pop(form, None)
    return "; ".join(map(" and ".join, filter(None, variants)))


class WorkloadInfo(Answer, kw_only=True):
    """The workload: sequences, new tokens per sequence, cached tokens, and encoder positions (None without an encoder
    of its own length)."""

    batch: int
    tokens: int
    past: int
    source: int | None

    @classmethod
    def of(cls, model: Model, ledger: Ledger) -> WorkloadInfo:
        work = ledger.work
        source = work.source if model.has_encoder_apart else None
        return cls(batch=work.batch, tokens=work.tokens, past=work.past, source=source)

    def __str__(self) -> str:
        sizes = {"batch": self.batch, "tokens": self.tokens, "past": self.past, "source": self.source}
        return ", ".join(f"{name} {value:,}" for name, value in sizes.items() if value is not None)


class Convention(Answer, kw_only=True):
    """The conventions of FLOPs. `attention`: "" where figures have both; `mla`: how latent attention is computed, None
    without it."""

    flops_per_mac: int
    attention: str = ""
    logits: str
    mla: str | None

    @classmethod
    def of(cls, models: Iterable[Model], work: Workload, attention: str = "", **formats: str) -> Self:
        latent = ("absorbed" if work.absorbed else "expanded") if any(model.has_latents for model in models) else None
        logits = "last" if work.last_logits else "all"
        return cls(flops_per_mac=2, attention=attention, logits=logits, mla=latent, **formats)

    def __str__(self) -> str:
        words = [f"{self.flops_per_mac} FLOPs per multiply-add"]
        words += [f"{self.attention} attention"] if self.attention else []
        words += [f"logits at {'every' if self.logits == 'all' else 'the last'} position"]
        words += [f"MLA {self.mla}"] if self.mla else []
        return "; ".join(words)
