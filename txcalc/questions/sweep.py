"""`sweep`: quantities over a grid of sizes and lengths, in memory or streamed to a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec.structs import replace

from txcalc.errors import Fault, InputError
from txcalc.ledger import KINDS, kind_words
from txcalc.model import asked_for
from txcalc.num import counted
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, Convention, Deferred, ModelInfo, Result, WorkloadInfo, json_key
from txcalc.questions.arguments import check_arguments, length, names, several_texts, source_list
from txcalc.questions.pictures import MAX_LINES, Panel, Picture, PlotAxis, Series
from txcalc.sources import load
from txcalc.symbols import BY_LETTER

if TYPE_CHECKING:
    from txcalc.render.report import Report
    from txcalc.sources import Source
    from txcalc.sweeps.parquet import Written
    from txcalc.sweeps.sweep import Sweep as Grid, SweepAxis as GridAxis

MAX_MODELS = 8
MAX_DRAWN = 20_000  # points
# Most points of data formats, and of formats for readers.
MOST_POINTS = {"json": 1_000_000, "csv": 1_000_000}
READABLE = 2_000


class SweepAxis(Answer):
    """An axis and its values."""

    name: str
    values: tuple[int, ...]


class Sweep(Result, tag_field="schema", tag="txcalc/sweep/1", kw_only=True):
    """Quantities over a grid, the last axis varying fastest. Rows are computed when they are read; `to_parquet` streams
    them.

    model, models   one model, or several
    workload        sizes that are the same at all points
    follow          sizes that follow the axes, with their expressions
    quantities      with their meanings
    grids           one per model
    """

    model: ModelInfo | None = None
    models: tuple[ModelInfo, ...] | None = None
    workload: dict[str, int]
    convention: Convention
    deferred_axes: Any = json_key("axes")
    follow: dict[str, str] | None = None
    quantities: dict[str, str]
    deferred_rows: Any = json_key("rows")
    grids: tuple[Any, ...] = ()

    @property
    def axes(self) -> tuple[SweepAxis, ...]:
        return self.deferred_axes.value  # type: ignore[no-any-return]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.deferred_rows.value  # type: ignore[no-any-return]

    @property
    def model_names(self) -> list[str]:
        return [grid.base.name for grid in self.grids]

    @property
    def by_kind(self) -> bool:
        """Whether quantities are those of kinds of parts."""
        return any("." in quantity for quantity in self.quantities)

    def total(self, row: Mapping[str, int], quantity: str) -> int:
        """The sum of a quantity of a row over all kinds of parts."""
        return sum(row[name] for name in self.quantities if name.partition(".")[0] == quantity)

    @property
    def points(self) -> int:
        """Number of rows."""
        return sum(grid.points for grid in self.grids)

    @property
    def notes(self) -> list[str]:
        """Notes on the models, on axes without effect, and on sizes that were rounded in the rows read so far."""
        if len(self.grids) == 1:
            return grid_notes(self.grids[0])
        return [f"{grid.base.name}: {note}" for grid in self.grids for note in grid_notes(grid)]

    @check_arguments
    def check(self, form: str) -> None:
        """Errors: `InputError` where a format cannot hold this many rows."""
        limit = MOST_POINTS.get(form, READABLE)
        if self.points > limit:
            fault = f"{self.points:,} points are more than --format {form} writes ({limit:,}): choose --format csv"
            raise InputError("sweep", [f"{fault}, or --out FILE.parquet"])

    @check_arguments
    def report(self, form: str = "table") -> Report:
        """Its header, tables and notes, for a format. Errors: `InputError` where it cannot hold this many rows."""
        self.check(form)
        return super().report(form)

    def blocks(self) -> Iterator[list[Any]]:
        """The columns of a grid, block by block: arrays of int64, or of Python's ints where a number needs more."""
        for grid in self.grids:
            yield from grid

    @check_arguments
    def to_parquet(
        self,
        place: str | Path,
        *,
        workers: int = 1,
        executor: Executor | None = None,
        cluster: str | None = None,
        force: bool = False,
        tell: Callable[[float], None] = lambda share: None,
    ) -> Written:
        """Streams every point to FILE.parquet in constant memory, computed by `workers` processes, an executor
        (`concurrent.futures`), or a Dask scheduler (`cluster`, its address); the bytes are the same."""
        from txcalc.sweeps import parquet

        if len(self.grids) > 1:
            raise InputError("--out", [f"writes the grid of one model, and {len(self.grids)} are given"])
        if cluster is None:
            return parquet.write(self.grids[0], place, executor, workers, force, tell)
        with parquet.cluster(cluster) as machines:
            return parquet.write(self.grids[0], place, machines, workers, force, tell)

    def _document(self) -> dict[str, Any]:
        self.check("json")
        return super(Sweep, replace(self, grids=()))._document()

    def _rows(self) -> Sequence[Mapping[str, Any]]:
        return self.rows

    def __repr__(self) -> str:
        axes = " × ".join(f"{axis.name} ({len(axis.values):,})" for axis in self.grids[0].axes)
        return f"<txcalc.sweep: {', '.join(self.model_names)} over {axes}>"


OVER = o.Option(
    "An axis (a letter, a key or a workload length) with its values: T=1k:1M:2x (doubling, end included), "
    "D=512:4096:+512 (steps) or h=8,16,32. Repeatable; the last varies fastest.",
    "AXIS=GRID", "Workload", completes="key", repeats=True,
)  # fmt: skip
QUANTITY = o.Option(
    "params, active, flops, flops_masked, flops_other, bytes, saved, cache, weights_bytes, saved_bytes or cache_bytes; "
    "or of one kind of part: params.attention. Repeatable.",
    "NAME", "Workload", "--quantity", "quantity", repeats=True,
)  # fmt: skip
BY_KIND = o.Option("Split each quantity by kind of part: attention, feed_forward, norm …", group="Workload")


@o.Question(
    "txcalc sweep llama-3.1-8b --over T=1k:1M:2x --quantity flops --quantity cache_bytes",
    draws=True,
    first=("--over", "--quantity", "--set", "--tokens", "--batch", "--out", "--format", "--plot"),
)
def sweep(
    *sources: o.SourcesArgument,
    over: Annotated[Mapping[str, Any] | Sequence[str], OVER],
    changes: Annotated[Mapping[str, Any] | None, o.SET.with_help("Repeatable.", repeats=True)] = None,
    ignore: Annotated[Sequence[str], o.IGNORE.with_help("Repeatable.", repeats=True)] = (),
    quantities: Annotated[o.Names, QUANTITY] = ("params", "flops"),
    by_kind: Annotated[bool, BY_KIND] = False,
    batch: Annotated[o.Length | None, o.BATCH.with_help("Default: 1, unless --over varies it.")] = None,
    tokens: Annotated[o.Length | None, o.TOKENS.with_help("Default: 1, unless --over varies it.")] = None,
    past: Annotated[o.Length | None, o.PAST.with_help("Default: 0, unless --over varies it.")] = None,
    source_tokens: Annotated[o.Length | None, o.SOURCE_TOKENS.with_help("Default: as many as tokens.")] = None,
    dtype: Annotated[str, o.DTYPE] = "bf16",
    kv: Annotated[str, o.KV] = "bf16",
    logits: Annotated[o.Logits, o.LOGITS] = "all",
    mla: Annotated[o.Mla, o.MLA] = "expanded",
) -> Sweep:
    """Exact quantities over a grid of sizes and lengths: a table, CSV of up to 100 million rows, or Parquet of any
    size. B, T, P and T_src are batch, new tokens, cached tokens and encoder positions; --set F=8/3*D makes F follow D.

    In Python: `over` is `{"T": "1k:1M:2x", "h_kv": [1, 8, 32]}`, or texts, `["T=1k:1M:2x"]`. `changes` are other keys,
    also expressions in the axes (`{"F": "8/3*D"}`). Errors: `InputError` with every fault, `UnknownName`,
    `MissingExtra` (NumPy).

    >>> import txcalc
    >>> txcalc.sweep("llama-3.1-8b", over={"T": [1024, 2048]}, quantities="flops").rows
    [{'T': 1024, 'flops': 15919296282624}, {'T': 2048, 'flops': 32938104193024}]
    """
    from txcalc.sweeps.sweep import meaning

    model_sources = source_list(sources)
    if not 1 <= len(model_sources) <= MAX_MODELS:
        raise InputError("sweep", [f"{len(model_sources)} models, expected 1 to {MAX_MODELS}"])
    lengths = {"batch": batch, "tokens": tokens, "past": past, "source": source_tokens}
    fixed = {name: length(value, name) for name, value in lengths.items() if value is not None}
    conventions = {"dtype": dtype, "kv_dtype": kv, "logits": logits, "mla": mla}
    axes, sizes = list(grid_axes(over)), asked_for(changes, {})
    grids = [grid_of(source, sizes, ignore, axes, names(quantities), fixed, conventions) for source in model_sources]
    if by_kind:
        kinds = tuple(dict.fromkeys(name for grid in grids for name in grid.by_kind()))
        for grid in grids:
            grid.quantities = kinds
    first, several = grids[0], len(grids) > 1
    models = tuple(ModelInfo.of(grid.base) for grid in grids)
    workload = WorkloadInfo.of(first.base, first.first).to_dict()
    answer = Sweep(
        model=None if several else models[0],
        models=models if several else None,
        workload={name: n for name, n in workload.items() if name not in first.places and n is not None},
        convention=Convention.of([grid.base for grid in grids], first.first.work),
        deferred_axes=Deferred(lambda: tuple(SweepAxis(axis.name, tuple(axis.values)) for axis in first.axes)),
        follow={follower.name: follower.expression.text for follower in first.followers} or None,
        quantities={name: meaning(name) for name in first.quantities},
        deferred_rows=Deferred(lambda: list(grid_rows(grids))),
        grids=tuple(grids),
    )
    return replace(answer, draw=lambda: picture(answer))


def grid_of(
    source: Source,
    changes: Mapping[str, object],
    ignore: Sequence[str],
    axes: Sequence[GridAxis],
    quantities: Sequence[str],
    lengths: Mapping[str, int],
    conventions: Mapping[str, object],
) -> Grid:
    """The grid of one model. Changes that are expressions follow the axes; a kind of attention that the model lacks
    starts with the first values of its axes. Errors: `InputError`."""
    from txcalc.parts.mechanisms import ATTENTIONS
    from txcalc.sources.expressions import read as read_expressions
    from txcalc.sources.spec import letter_path
    from txcalc.sweeps.sweep import MAX_STREAMED, Sweep as Grid

    attention = {axis.name: axis.values[0] for axis in axes if axis.name.partition(".")[0] in ATTENTIONS}
    expressions = any(isinstance(value, str) for value in changes.values())
    raw = load(source, ignore=ignore).raw if expressions or attention else {}
    follow = read_expressions(raw, changes) if expressions else {}
    first = {name: value for name, value in attention.items() if name.partition(".")[0] not in raw}
    model = load(source, first | {key: changes[key] for key in changes if key not in follow}, ignore=ignore)
    grid = Grid(model, axes, quantities, {**lengths, **conventions}, follow, MAX_STREAMED)
    fixed = {*lengths, *(letter_path(key, model.raw) for key in changes)}
    if repeated := [f"{name} is both swept and fixed" for name in grid.places[: len(axes)] if name in fixed]:
        raise InputError("options", repeated)
    return grid


def grid_axes(over: Mapping[str, object] | Sequence[str]) -> Iterator[GridAxis]:
    from txcalc.sweeps.sweep import SweepAxis as GridAxis, parse_axis

    if over is None or (isinstance(over, Sequence | Mapping) and not over):
        raise InputError("--over", ["names no axis"])
    if not isinstance(over, Mapping):
        yield from map(parse_axis, several_texts("over", over))
        return
    if wrong := [name for name in over if not isinstance(name, str)]:
        raise InputError("--over", [Fault("the name of an axis", name, "a text") for name in wrong])
    for name, values in over.items():
        if isinstance(values, str):
            yield parse_axis(f"{name}={values}")
        elif isinstance(values, range):
            yield GridAxis(name, values)
        else:
            numbers = counted(values) if hasattr(values, "dtype") else values
            numbers = list(numbers) if isinstance(numbers, Iterable) else ()
            if not numbers:
                expected = "values, or a text such as 1k:1M:2x"
                raise InputError("--over", [Fault(name, values, expected, f'over={{"{name}": [1, 2, 4]}}')])
            yield GridAxis(name, tuple(length(value, f"--over {name}") for value in numbers))


def columns(grid: Grid) -> list[str]:
    """Column names: axes, sizes that follow them, quantities."""
    return [*grid.names, *grid.quantities]


def grid_rows(grids: Sequence[Grid]) -> Iterator[dict[str, Any]]:
    """A row per point, with its model if there are several."""
    for grid in grids:
        model = {"model": grid.base.name} if len(grids) > 1 else {}
        for block in grid:
            for values in zip(*(column.tolist() for column in block), strict=True):
                yield {**model, **dict(zip(columns(grid), values, strict=True))}


def grid_notes(grid: Grid) -> list[str]:
    """Notes on the model, axes without effect, and sizes rounded so far."""
    model = grid.base
    notes = model.all_notes
    if model.fixed_length and "tokens" in grid.places:
        notes.append("the model fixes the number of positions: tokens are ignored")
    for follower in grid.followers:
        rounded = ", rounded to the nearest whole number" if follower.uneven else ""
        notes.append(f"{follower.name} = {follower.expression.text} at every point{rounded}")
    return notes


def check_drawable(answer: Sweep) -> None:
    """Errors: `InputError` for a grid of more axes, lines or points than a picture shows."""
    sizes, models = [len(axis.values) for axis in answer.grids[0].axes], len(answer.grids)
    if len(sizes) > 2 - answer.by_kind:
        most = "sweep one" if answer.by_kind else "sweep one or two"
        raise InputError("--plot", [f"{len(sizes)} axes are more than a picture has ({most})"])
    lines = models * min(sizes) if len(sizes) == 2 else models
    if lines > MAX_LINES:
        raise InputError("--plot", [f"{lines:,} lines are more than can be told apart ({MAX_LINES})"])
    if prod(sizes) > MAX_DRAWN:
        raise InputError("--plot", [f"{prod(sizes):,} points are more than a picture shows ({MAX_DRAWN:,})"])


def picture(answer: Sweep) -> Picture:
    """One panel per quantity over the longer axis, with a line for each value of the other axis and each model; for a
    quantity by kind of part, one stack per model."""
    check_drawable(answer)
    panels = list(stacks(answer) if answer.by_kind else lines(answer))
    workload = [f"{key} {value:,}" for key, value in answer.workload.items()]
    title = f"{', '.join(answer.model_names)} over {' × '.join(axis.name for axis in answer.axes)}"
    return Picture(title, "; ".join([*workload, str(answer.convention)]), panels)


def lines(answer: Sweep) -> Iterator[Panel]:
    """A panel of lines per quantity."""
    ordered = sorted(answer.axes, key=lambda axis: len(axis.values))  # of two as long, the last is drawn along
    x, other = ordered[-1], ordered[0] if len(ordered) == 2 else None
    other_values = list(dict.fromkeys(other.values)) if other else [None]
    models = answer.model_names
    for quantity, meaning in answer.quantities.items():
        series: list[Series] = []
        for model, value in product(models, other_values):
            points = {
                row[x.name]: row[quantity]
                for row in answer.rows
                if (other is None or row[other.name] == value) and row.get("model", model) == model
            }
            xs = sorted(points)
            words = [model] if len(models) > 1 else []
            words += [f"{other.name} = {value:,}"] if other is not None else []
            marked = frozenset(xs if len(xs) <= 32 else ())
            series.append(Series(", ".join(words) or model, xs, [points[x] for x in xs], len(series), marked=marked))
        unit = "bytes" if "bytes" in quantity else ""
        log = (2 if unit else 10) if wide([y for line in series for y in line.ys]) else 0
        title, label = labels(meaning)
        yield Panel(title, plot_axis(x), PlotAxis(label, unit, log), series)


def labels(meaning: str) -> tuple[str, str]:
    """The title of a panel, which names no option, and the label of its axis."""
    text = re.sub(r" at --\w+", "", meaning)
    return text[:1].upper() + text[1:], text.partition(",")[0]


def stacks(answer: Sweep) -> Iterator[Panel]:
    """A panel per quantity and model, its kinds of parts on top of each other."""
    from txcalc.sweeps.sweep import meaning

    (x,) = answer.axes
    drawn = {name.partition(".")[2] for row in answer.rows for name in answer.quantities if row[name]}
    colours = [kind for kind in KINDS if kind in drawn]  # one kind has one colour in all panels
    models = answer.model_names
    for what in dict.fromkeys(quantity.partition(".")[0] for quantity in answer.quantities):
        unit = "bytes" if "bytes" in what else ""
        kinds = {name: name.partition(".")[2] for name in answer.quantities if name.partition(".")[0] == what}
        for model in models:
            rows = {row[x.name]: row for row in answer.rows if row.get("model", model) == model}
            xs = sorted(rows)
            series = [
                Series(kind_words(kind), xs, [rows[x][name] for x in xs], colours.index(kind))
                for name, kind in kinds.items()
                if any(rows[x][name] for x in xs)
            ]
            title, label = labels(meaning(what))
            title = f"{model}: {label}" if len(models) > 1 else title
            yield Panel(f"{title}, by kind of part", plot_axis(x), PlotAxis(label, unit), series, (), "stack")


def plot_axis(axis: SweepAxis) -> PlotAxis:
    """The plot axis of a swept size; lengths and wide ranges are logarithmic in powers of two."""
    symbol = BY_LETTER.get(axis.name)
    unit = "tokens" if axis.name in ("tokens", "past", "source") or (symbol and symbol.unit == "tokens") else "sizes"
    label = f"{axis.name}: {symbol.meaning}" if symbol else axis.name
    return PlotAxis(label, unit, 2 if wide(axis.values) else 0)


def wide(values: Sequence[int]) -> bool:
    """Whether positive numbers span three octaves or more."""
    return min(values) > 0 and max(values) >= 8 * min(values)
