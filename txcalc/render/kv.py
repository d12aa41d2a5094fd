"""The report of `txcalc kv`: what the cache holds, over contexts, batches and dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.num import ceil_div
from txcalc.planning.memory import cross_cache, dense_cache
from txcalc.render.report import Cell, Report, Table, exact
from txcalc.render.summary import summary
from txcalc.units import bits_of, iec


class Row(NamedTuple):
    """The cache of a whole batch, every sequence at this context; `dense_bytes` if no window ever dropped a token,
    `cross_bytes` the encoder's part of it."""

    context: int
    batch: int
    dtype: str
    bytes: int
    dense_bytes: int
    cross_bytes: int


def rows(ledgers: Sequence[Ledger], batches: Sequence[int], dtypes: Sequence[str]) -> list[Row]:
    """A row for each dtype, context (a ledger of one sequence) and batch."""
    found = []
    for dtype in dtypes:
        for ledger in ledgers:
            elements = ledger.total("cache"), dense_cache(ledger), cross_cache(ledger)
            for batch in batches:
                sizes = (ceil_div(number * batch * bits_of(dtype), 8) for number in elements)
                found.append(Row(ledger.work.keys, batch, dtype, *sizes))
    return found


def holders(ledger: Ledger) -> list[str]:
    """Which layers hold what, equal ones together."""
    layers: dict[str, int] = {}
    for entry in ledger:
        if entry.cache:
            what = entry.leaf.kept()
            layers[what] = layers.get(what, 0) + entry.runs
    return [f"{number:,} × {what}" for what, number in layers.items()]


def report(model: Model, ledgers: Sequence[Ledger], batches: Sequence[int], dtypes: Sequence[str]) -> Report:
    """The whole report; `ledgers` are of one sequence, one a context."""
    found = rows(ledgers, batches, dtypes)
    last = ledgers[-1]
    terms, bits = last.cache_terms, bits_of(dtypes[0])
    growth, constant = (ceil_div(elements * bits, 8) for elements in (terms.growth, terms.constant))
    apart = model.has_encoder_apart
    source = last.work.source if apart else None
    coupled = apart and len({ledger.work.source for ledger in ledgers}) > 1
    at = f" with {source:,} source positions" if apart else ""
    header = [*summary(model), *holders(last)]
    header.append(f"each further token {growth:,} B, constant part {constant:,} B ({iec(constant)}){at}, {dtypes[0]}")
    if coupled:
        header.append("the source is as long as the context")
    header.append("bytes of the whole batch; dense: if every attention layer kept every token")
    headings: list[Any] = ["dtype", "context", "batch", "bytes", "", Cell("dense_bytes", "dense"), "of dense"]
    if apart:
        headings.append(Cell("cross_bytes", "of it cross"))
    table = Table("", headings, [_line(row, apart) for row in found])
    data = {
        "schema": "txcalc/kv/1",
        "model": {"name": model.name, "kind": model.kind, "source": model.spec["source"] or model.origin},
        "source": None if coupled else source,
        "cache": {"elements_per_token": terms.growth, "constant_elements": terms.constant},
        "holds": holders(last),
        "rows": [
            row._asdict() if apart else {k: v for k, v in row._asdict().items() if k != "cross_bytes"} for row in found
        ],
    }
    notes = [*(f"assumed {assumption}" for assumption in model.assumptions), *model.notes]
    longest = max(row.context for row in found)
    if model.context and longest > model.context:
        notes.append(f"{longest:,} tokens are beyond its context of {model.context:,}")
    return Report(data, [table], header, notes)


def _line(row: Row, apart: bool) -> list[Any]:
    share = Fraction(row.bytes, row.dense_bytes)
    style = "dim" if share == 1 else "green"
    held = Cell(float(share), "all" if share == 1 else f"{float(100 * share):.1f} %", style)
    cells: list[Any] = [row.dtype, exact(row.context), exact(row.batch), exact(row.bytes), iec(row.bytes)]
    cells += [Cell(row.dense_bytes, iec(row.dense_bytes)), held]
    return [*cells, Cell(row.cross_bytes, iec(row.cross_bytes))] if apart else cells
