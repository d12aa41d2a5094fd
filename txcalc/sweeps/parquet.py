"""Streams a sweep to a Parquet file in constant memory, over processes or machines; the bytes do not depend on them.

The grid is cut into chunks of 2^20 points, one row group each, computed by any `concurrent.futures.Executor`
(processes, threads, Dask, MPI) and written in order. A column holds 64-bit integers, or 38-digit decimals where a
number of the grid needs more.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from txcalc.errors import Fault, InputError, MissingExtra
from txcalc.sources.files import writable
from txcalc.sweeps.processes import processes
from txcalc.sweeps.sweep import BLOCK, Sweep

try:
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet
except ImportError:
    raise MissingExtra("a Parquet file", "pyarrow", "frames") from None

CHUNK = BLOCK << 6
AHEAD = 2  # chunks for each worker that are waited for
MOST_WORKERS = 512
MAX_INT64 = int(np.iinfo(np.int64).max)


class Written(NamedTuple):
    """What was written: where, rows, row groups, bytes, and the columns with their types."""

    path: str
    rows: int
    groups: int
    bytes: int
    columns: dict[str, str]


class _Narrow(Exception):
    """A number does not fit the type of its column."""


def write(
    sweep: Sweep,
    place: str | Path,
    executor: Executor | None = None,
    workers: int = 1,
    force: bool = False,
    tell: Callable[[float], None] = lambda share: None,
) -> Written:
    """Writes every point of a grid. What is interrupted leaves no file. `tell` hears the share that is written.

    Errors: `InputError` for a file that exists (unless `force`) or cannot be written, and for a point that cannot be.
    """
    path = Path(place)
    if path.suffix != ".parquet":
        raise InputError("--out", [Fault("--out", str(place), "a file named .parquet")])
    writable(path, force)
    part = path.with_name(f"{path.name}.part")
    wide = wide_columns(sweep)
    try:
        while True:
            try:
                groups = _written(sweep, part, wide, executor, workers, tell)
                break
            except _Narrow as column:
                wide = wide | {str(column)}
        part.replace(path)
    except OSError as error:
        raise InputError(str(place), [f"cannot be written: {(error.strerror or str(error)).lower()}"]) from None
    finally:
        part.unlink(missing_ok=True)
    types = {field.name: str(field.type) for field in _schema(sweep, wide)}
    return Written(str(path), sweep.points, groups, path.stat().st_size, types)


def _written(
    sweep: Sweep,
    part: Path,
    wide: frozenset[str],
    executor: Executor | None,
    workers: int,
    tell: Callable[[float], None],
) -> int:
    count = 0
    with parquet.ParquetWriter(part, _schema(sweep, wide), compression="zstd") as writer:
        for batch in _compute_ahead(sweep, wide, executor, workers):
            writer.write_batch(batch, row_group_size=CHUNK)
            count += 1
            tell(min(1.0, count * CHUNK / sweep.points))
    return count


def _schema(sweep: Sweep, wide: frozenset[str]) -> Any:
    names = [*sweep.names, *sweep.quantities]
    fields = [pa.field(name, pa.decimal128(38) if name in wide else pa.int64(), nullable=False) for name in names]
    content = {"model": sweep.base.name, "work": {key: str(value) for key, value in sweep.work.items()}}
    return pa.schema(fields, metadata={"txcalc": json.dumps(content, sort_keys=True)})


def wide_columns(sweep: Sweep) -> frozenset[str]:
    """The columns that need more than 64 bits at a corner of the grid."""
    ends = [sorted({min(axis.values), max(axis.values)}) for axis in sweep.axes]
    names: set[str] = set()
    for corner in product(*ends):
        try:
            columns = sweep.at([np.array([value]) for value in corner])
        except InputError:
            continue  # a grid may lack corners
        pairs = zip([*sweep.names, *sweep.quantities], columns, strict=True)
        names |= {name for name, column in pairs if abs(int(column[0])) > MAX_INT64}
    return frozenset(names)


def chunk(sweep: Sweep, start: int, stop: int, wide: frozenset[str]) -> Any:
    """The points of one row group, as an Arrow batch. Errors: `_Narrow` names a column that cannot hold them."""
    blocks = list(sweep.between(start, stop))
    columns = [np.concatenate(column) for column in zip(*blocks, strict=True)]
    arrays = []
    for name, column in zip([*sweep.names, *sweep.quantities], columns, strict=True):
        if name in wide:
            arrays.append(_decimals(column))
        elif column.dtype == object and any(abs(value) > MAX_INT64 for value in column.tolist()):
            raise _Narrow(name)
        else:
            arrays.append(pa.array(column.astype(np.int64)))
    return pa.record_batch(arrays, schema=_schema(sweep, wide))


def _decimals(column: Any) -> object:
    """Whole numbers as decimals of 128 bits: their lower and upper halves side by side, as Arrow lays them out."""
    if column.dtype == object:
        lower = np.array([value & (2**64 - 1) for value in column.tolist()], dtype=np.uint64)
        upper = np.array([value >> 64 for value in column.tolist()], dtype=np.int64)
    else:
        lower, upper = column.astype(np.int64).view(np.uint64), column.astype(np.int64) >> 63
    halves = np.stack([lower, upper.view(np.uint64)], axis=1)
    return pa.Array.from_buffers(pa.decimal128(38), len(column), [None, pa.py_buffer(halves.tobytes())])


def _compute_ahead(sweep: Sweep, wide: frozenset[str], executor: Executor | None, workers: int) -> Iterator[object]:
    """The chunks in their order, some of them computed ahead."""
    chunks = (sweep.points - 1) // CHUNK + 1
    ends = ((i * CHUNK, min((i + 1) * CHUNK, sweep.points)) for i in range(chunks))
    if executor is None:
        if not 1 <= workers <= MOST_WORKERS:
            raise InputError("--workers", [Fault("--workers", workers, f"a whole number from 1 to {MOST_WORKERS}")])
        if workers == 1 or chunks == 1:
            yield from (chunk(sweep, start, stop, wide) for start, stop in ends)
            return
        with processes(workers) as pool:
            yield from _compute_ahead(sweep, wide, pool, workers)
        return
    waiting: deque[Future[object]] = deque()
    ahead = AHEAD * max(workers, getattr(executor, "_max_workers", 1) or 1)
    try:
        for start, stop in ends:
            waiting.append(executor.submit(chunk, sweep, start, stop, wide))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """The workers of a Dask scheduler (`tcp://host:8786`), which have txcalc installed. Errors: `MissingExtra`,
    `InputError` where nothing answers."""
    try:
        from distributed import Client
    except ImportError:
        raise MissingExtra("--cluster", "distributed", "cluster") from None
    try:
        client: Any = Client(address, timeout=10)  # type: ignore[no-untyped-call, unused-ignore]
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError("--cluster", [f"{address} does not answer: {error}"]) from None
    with client:
        yield client.get_executor()
