"""The report of `txcalc kv`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.num import ceil_div
from txcalc.planning.generation import FlopsLaw, Generation
from txcalc.planning.memory import cross_cache, dense_cache
from txcalc.render.report import Report, Table, TableCell, exact
from txcalc.render.summary import summary
from txcalc.units import bits_of, iec, short


class CacheRow(NamedTuple):
    """The cache of a batch at one context; `dense_bytes`: without windows; `cross_bytes`: the encoder's part."""

    context: int
    batch: int
    dtype: str
    bytes: int
    dense_bytes: int
    cross_bytes: int


def rows(ledgers: Sequence[Ledger], batches: Sequence[int], dtypes: Sequence[str]) -> list[CacheRow]:
    """One row per dtype, context (a ledger of one sequence) and batch."""
    found = []
    for dtype in dtypes:
        for ledger in ledgers:
            elements = ledger.total("cache"), dense_cache(ledger), cross_cache(ledger)
            for batch in batches:
                sizes = (ceil_div(number * batch * bits_of(dtype), 8) for number in elements)
                found.append(CacheRow(ledger.work.keys, batch, dtype, *sizes))
    return found


def holders(ledger: Ledger) -> list[str]:
    """What layers cache, equal ones folded."""
    layers: dict[str, int] = {}
    for entry in ledger:
        if entry.cache:
            growth, constant, _ = entry.leaf.cache(entry.work or ledger.work)
            what = (
                entry.leaf.describe_cache()
                or f"{entry.leaf.label}: {growth:,} elements per token and {constant:,} more"
            )
            layers[what] = layers.get(what, 0) + entry.runs
    return [f"{number:,} × {what}" for what, number in layers.items()]


def report(model: Model, ledgers: Sequence[Ledger], batches: Sequence[int], dtypes: Sequence[str]) -> Report:
    """The whole report; `ledgers`: one sequence each, one per context."""
    found = rows(ledgers, batches, dtypes)
    last = ledgers[-1]
    terms, bits = last.cache_now, bits_of(dtypes[0])
    growth, constant = (n if n is None else ceil_div(n * bits, 8) for n in terms[:2])
    apart = model.has_encoder_apart
    source = last.work.source if apart else None
    coupled = apart and len({ledger.work.source for ledger in ledgers}) > 1
    at = f" with {source:,} source positions" if apart else ""
    header = [*summary(model), *holders(last)]
    full = last.full_at
    at += f"; windows fill up at {full:,}" if full is not None and last.work.keys < full else ""
    fixed = f", constant part {constant:,} B ({iec(constant)})" if constant else ""
    each = "grows in steps of several tokens" if growth is None else f"{growth:,} B per further token{fixed}"
    header.append(f"{each}{at}, {dtypes[0]}")
    if coupled:
        header.append("as many source positions as tokens")
    header.append("bytes of the whole batch; dense: if every attention layer cached every token")
    headings: list[Any] = ["dtype", "context", "batch", "bytes", "", TableCell("dense_bytes", "dense"), "of dense"]
    if apart:
        headings.append(TableCell("cross_bytes", "cross"))
    table = Table("", headings, [_line(row, apart) for row in found], keys=3, name="cache")
    data = {
        "schema": "txcalc/kv/1",
        "model": {"name": model.name, "kind": model.kind, "source": model.spec["source"] or model.origin},
        "source": None if coupled else source,
        "cache": {
            "elements_per_token": terms.growth,
            "constant_elements": terms.constant,
            "windows_full_at": last.full_at,
        },
        "holds": holders(last),
        "rows": [
            row._asdict() if apart else {k: v for k, v in row._asdict().items() if k != "cross_bytes"} for row in found
        ],
    }
    notes = [*(f"assumed {assumption}" for assumption in model.assumptions), *model.notes]
    longest = max(row.context for row in found)
    if model.context and longest > model.context:
        notes.append(f"{longest:,} tokens exceed its context of {model.context:,}")
    return Report(data, [table], header, notes)


def with_generation(
    model: Model, held: Report, found: Sequence[Generation], laws: tuple[FlopsLaw, FlopsLaw] | None, attention: str
) -> Report:
    """Adds the cost of generating up to each context, with and without a cache."""
    prompt = found[0].prompt
    what = "states" if model.kind == "recurrent" else "K and V"
    latents = "; MLA absorbed in single-token passes" if model.has_latents else ""
    header = [
        f"generation: a prompt of {prompt:,}, then one pass per token",
        f"FLOPs: {attention} attention; logits of the last position{latents}",
    ]
    headings = ("context", "with", "without", "redundant", "×")
    positions = [
        (*map(exact, (each.context, each.computed, each.computed_without, each.redundant)), _times(*counts))
        for each in found
        for counts in [(each.computed_without, each.computed)]
    ]
    costs = [
        (exact(each.context), exact(each.flops), exact(each.flops_without), _times(each.flops_without, each.flops))
        for each in found
    ]
    tables = [
        *held.tables,
        Table(f"Positions for which a layer computes {what}, over all passes", headings, positions, left=frozenset()),
        Table(
            "FLOPs of all passes, with and without a cache",
            ("context", "with", "without", "×"),
            costs,
            left=frozenset(),
        ),
    ]
    known = {} if laws is None else dict(zip(("flops", "flops_without_cache"), laws, strict=True))
    p = prompt
    formulas = {
        "kv_computed": "n",
        "kv_computed_without_cache": "n·(n + 1)/2" if p == 1 else f"n·(n + 1)/2 − {p * (p - 1) // 2}",
        "kv_redundant": "n·(n − 1)/2" if p == 1 else f"n·(n − 1)/2 − {p * (p - 1) // 2}",
        **{name: law.text() for name, law in known.items()},
    }
    names = {
        "kv_computed": f"{what} with a cache, O(n)",
        "kv_computed_without_cache": f"{what} without, O(n²)",
        "kv_redundant": "of which redundant",
        "flops": "FLOPs with a cache",
        "flops_without_cache": "FLOPs without",
    }
    start = max([p, *(law.start for law in known.values())])
    title = "Formulas for n tokens at the end" + (f", n ≥ {start:,}" if start > 1 else "")
    lines = [(names[k], v) for k, v in formulas.items()]
    tables.append(Table(title, ("quantity", "formula"), lines, left=frozenset({0, 1})))
    generation = {
        "prompt": prompt,
        "convention": {"attention": attention, "logits": "last", "mla": "absorbed" if model.has_latents else None},
        "rows": [
            {
                "context": each.context,
                "passes": each.passes,
                "kv_computed": each.computed,
                "kv_computed_without_cache": each.computed_without,
                "kv_redundant": each.redundant,
                "flops": each.flops,
                "flops_without_cache": each.flops_without,
            }
            for each in found
        ],
        "formulas": formulas,
        "from": start,
    }
    return Report({**held.data, "generation": generation}, tables, [*held.header, *header], held.notes)


def _times(without: int, with_cache: int) -> TableCell:
    ratio = Fraction(without, with_cache)
    return TableCell(float(ratio), f"{float(ratio):.4g}" if ratio < 10**4 else short(ratio))


def _line(row: CacheRow, apart: bool) -> list[Any]:
    share = Fraction(row.bytes, row.dense_bytes)
    style = "dim" if share == 1 else "green"
    held = TableCell(float(share), "100 %" if share == 1 else f"{float(100 * share):.1f} %", style)
    cells: list[Any] = [row.dtype, exact(row.context), exact(row.batch), exact(row.bytes), iec(row.bytes)]
    cells += [TableCell(row.dense_bytes, iec(row.dense_bytes)), held]
    return [*cells, TableCell(row.cross_bytes, iec(row.cross_bytes))] if apart else cells
