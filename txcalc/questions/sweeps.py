"""Quantities over a grid of sizes and lengths, in memory or streamed to a file: `sweep`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txcalc.errors import Fault, InputError
from txcalc.model import asked_for
from txcalc.num import counted
from txcalc.questions.arguments import checked, length, names, several_texts
from txcalc.questions.costs import Conventions, Logits, Mla, Named
from txcalc.questions.options import Length, Names
from txcalc.questions.results import Record, Result
from txcalc.sources import load

if TYPE_CHECKING:
    from txcalc.sources import Source
    from txcalc.sweeps.parquet import Written
    from txcalc.sweeps.sweep import Sweep, SweepAxis

MOST_MODELS = 8
READABLE = {"table": 2_000, "markdown": 2_000, "latex": 2_000, "html": 2_000, "json": 1_000_000, "csv": 1_000_000}


class Grid(Record):
    """An axis and its values."""

    name: str
    values: list[int]


class Swept(Result):
    """Quantities over a grid. Rows are computed when read; `to_parquet` streams them."""

    model: Named | None
    models: list[Named] | None
    workload: dict[str, int]
    convention: Conventions
    axes: list[Grid]
    follow: dict[str, str] | None
    quantities: dict[str, str]
    rows: list[dict[str, Any]]

    def __init__(self, grids: Sequence[Sweep], by_kind: bool) -> None:
        from txcalc.render.sweep import report

        def make(form: str) -> Any:
            self.check(form)
            return report(*grids)

        super().__init__(make, lambda plots: plots.sweep(make("json").data))
        vars(self).update({"grids": tuple(grids), "by_kind": by_kind})

    if TYPE_CHECKING:
        grids: tuple[Sweep, ...]
        by_kind: bool

    @property
    def points(self) -> int:
        """Number of rows."""
        return sum(grid.points for grid in self.grids)

    @checked
    def check(self, form: str) -> None:
        """Errors: `InputError` where a format cannot hold this many rows."""
        limit = READABLE.get(form, self.points)
        if self.points > limit:
            fault = f"{self.points:,} points are more than --format {form} writes ({limit:,}): choose --format csv"
            raise InputError("sweep", [f"{fault}, or --out FILE.parquet"])

    def __repr__(self) -> str:
        axes = " × ".join(f"{axis.name} ({len(axis.values):,})" for axis in self.grids[0].axes)
        return f"<txcalc.sweep: {', '.join(grid.base.name for grid in self.grids)} over {axes}>"

    def blocks(self) -> Iterator[list[Any]]:
        """The columns of a grid, block by block: arrays of int64, or of Python's ints where a number needs more."""
        for grid in self.grids:
            yield from grid

    @checked
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


def sweep(
    *sources: Source,
    over: Mapping[str, Any] | Sequence[str],
    quantities: Names = ("params", "flops"),
    by_kind: bool = False,
    changes: Mapping[str, Any] | None = None,
    batch: Length | None = None,
    tokens: Length | None = None,
    past: Length | None = None,
    source_length: Length | None = None,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    logits: Logits = "all",
    mla: Mla = "expanded",
    ignore: Sequence[str] = (),
) -> Swept:
    """Exact quantities over a grid: `over` names axes (a letter, a key, or a workload length) with their values, the
    last varying fastest: `{"T": "1k:1M:2x", "h_kv": [1, 8, 32]}`; or as texts, `["T=1k:1M:2x"]`.

    `quantities`: those of a ledger, `weights_bytes`, `saved_bytes`, `cache_bytes`, or of one kind of part
    (`params.attention`); `by_kind`: each split by kind. `changes`: other keys, also as expressions in the axes (`{"F":
    "8/3*D"}`). B, T, P and T_src are batch, tokens, past and source.
    Errors: `InputError` with every fault, `UnknownName`, `MissingExtra` (NumPy).

    >>> import txcalc
    >>> txcalc.sweep("llama-3.1-8b", over={"T": [1024, 2048]}, quantities="flops").rows
    [{'T': 1024, 'flops': 15919296282624}, {'T': 2048, 'flops': 32938104193024}]
    """
    from txcalc.sources.expressions import read as expressions
    from txcalc.sources.spec import letter_path
    from txcalc.sweeps.sweep import MAX_STREAMED, Sweep

    if not 1 <= len(sources) <= MOST_MODELS:
        raise InputError("sweep", [f"{len(sources)} models, expected 1 to {MOST_MODELS}"])
    changes = asked_for(changes, {})
    lengths = {"batch": batch, "tokens": tokens, "past": past, "source": source_length}
    fixed: dict[str, Any] = {name: length(value, name) for name, value in lengths.items() if value is not None}
    work = {**fixed, "dtype": dtype, "kv_dtype": kv_dtype, "logits": logits, "mla": mla}
    axes = list(_axes(over))
    grids = []
    for source in sources:
        written_out = any(isinstance(value, str) for value in changes.values())
        follow = expressions(load(source, ignore=ignore).raw, changes) if written_out else {}
        model = load(source, {k: v for k, v in changes.items() if k not in follow}, ignore=ignore)
        grid = Sweep(model, axes, names(quantities), work, follow, MAX_STREAMED)
        given = {*fixed, *(letter_path(key, model.raw) for key in changes)}
        if twice := [f"{name} is both swept and fixed" for name in grid.places[: len(axes)] if name in given]:
            raise InputError("options", twice)
        grids.append(grid)
    if by_kind:
        apart = tuple(dict.fromkeys(name for grid in grids for name in grid.by_kind()))
        for grid in grids:
            grid.quantities = apart
    return Swept(grids, by_kind)


def _axes(over: Mapping[str, Any] | Sequence[str]) -> Iterator[SweepAxis]:
    """The axes. Errors: `InputError`."""
    from txcalc.sweeps.sweep import SweepAxis, parse_axis

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
            yield SweepAxis(name, values)
        else:
            several = counted(values) if hasattr(values, "dtype") else values
            if isinstance(several, int | float | None) or not len(several):
                expected = "values, or a text such as 1k:1M:2x"
                raise InputError("--over", [Fault(name, values, expected, f'over={{"{name}": [1, 2, 4]}}')])
            yield SweepAxis(name, tuple(length(value, f"--over {name}") for value in several))
