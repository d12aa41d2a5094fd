"""The tables of `kv`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from txcalc.questions.kv import CacheRow, GenerationCost, Kv
from txcalc.render.report import Report, Table, TableCell, byte_size, percent
from txcalc.units import iec, short


def report(answer: Kv, form: str) -> Report:
    """The caches over contexts, and what generating costs with and without one."""
    cross = any(row.cross_bytes is not None for row in answer.rows)
    if form == "table":
        tables = [_by_batch(answer)]
    else:
        headings: list[object] = ["dtype", "context", "batch", "bytes", ""]
        headings += [TableCell("dense_bytes", "full attention"), TableCell("of dense", "of full")]
        headings += [TableCell("cross_bytes", "cross")] if cross else []
        tables = [Table("", headings, [_line(row) for row in answer.rows], keys=3, name="cache")]
    holds = answer.holds if len(answer.holds) < 2 or form != "table" else ()  # several are in the formulas
    header = [f"{answer.model.name}: {_growth(answer, cross)}", *holds]
    header += [f"measured on {answer.known.where}"] if answer.known else []
    if cross and answer.source is None:
        header.append("as many source positions as tokens")
    if form != "table":
        header.append("bytes of the whole batch; full: if every attention layer cached every token")
    if answer.generation:
        latents = "; MLA absorbed in single-token passes" if answer.generation.convention.mla else ""
        header.append(f"generation: a prompt of {answer.generation.prompt:,}, then one pass per token")
        attention = answer.generation.convention.attention
        header.append(f"FLOPs: {attention} attention; logits of the last position{latents}")
        what = "states" if answer.model.kind == "recurrent" else "K and V"
        tables += _generation(answer.generation, what)
    return Report(tables, header, answer.notes)


def _growth(answer: Kv, cross: bool) -> str:
    cache, longest = answer.cache, max(row.context for row in answer.rows)
    grows = ""
    if cache.bytes_per_token is not None:
        grows = f"{iec(cache.bytes_per_token)} of cache per token"
    if grows and cache.constant_bytes:
        full = cache.windows_full_at
        grows += f" + {iec(cache.constant_bytes)} {f'once windows are full ({full:,} tokens)' if full else 'fixed'}"
    if grows and cache.constant_bytes is None:
        grows = f"{iec(cache.bytes_per_token or 0)} of cache for the next token at {longest:,}"
    grows = grows or "grows in steps of several tokens"
    source = longest if answer.source is None else answer.source
    grows += f" with {source:,} source positions" if cross else ""
    full = cache.windows_full_at
    grows += f"; windows fill up at {full:,}" if full is not None and longest < full else ""
    return f"{grows}, {answer.rows[0].dtype}"


def _by_batch(answer: Kv) -> Table:
    """A line per dtype and batch, a column per context; what share of full attention, and of it the encoder's. A wide
    terminal shows how the cache grows too."""
    rows, cache = answer.rows, answer.cache
    contexts = dict.fromkeys(row.context for row in rows)
    several = len({row.dtype for row in rows}) > 1
    lines: dict[tuple[str, int], list[Any]] = {}
    for row in rows:
        label = f"batch {row.batch:,}" + f", {row.dtype}" * several
        lines.setdefault((row.dtype, row.batch), [label]).append(byte_size(row.bytes))
    first = rows[0].dtype, rows[0].batch
    shares = [row for row in rows if (row.dtype, row.batch) == first]
    below = []
    if any(row.dense_bytes not in (None, row.bytes) for row in rows):
        below.append(["share of full attention", *map(_share, shares)])
    if len({row.cross_bytes for row in shares}) > 1:
        below.append([f"encoder's, batch {first[1]:,}", *(byte_size(row.cross_bytes or 0) for row in shares)])
    growth = ["per token"] * bool(cache.elements_per_token) + ["fixed"] * bool(cache.constant_elements)
    for (dtype, batch), line in lines.items():
        line += [byte_size(size) for size in cache.in_bytes(dtype, batch) if size]
    headings = ["context", *(f"{context:,}" for context in contexts), *growth]
    optional = range(1 + len(contexts), len(headings))
    table = [*lines.values(), *([*line, *[None] * len(growth)] for line in below)]
    return Table("", headings, table, name="cache", optional=frozenset(optional))


def _share(row: CacheRow) -> TableCell:
    return percent(row.bytes, row.dense_bytes)._replace(style="dim" if row.bytes == row.dense_bytes else "green")


def _line(row: CacheRow) -> list[object]:
    cells: list[Any] = [row.dtype, row.context, row.batch, row.bytes, iec(row.bytes)]
    cells += [byte_size(row.dense_bytes), _share(row)]
    return cells if row.cross_bytes is None else [*cells, byte_size(row.cross_bytes)]


def _generation(cost: GenerationCost, what: str) -> list[Table]:
    positions: list[list[object]] = []
    flops: list[list[object]] = []
    for row in cost.rows:
        computed, whole = row.kv_computed, row.kv_computed_without_cache
        positions.append([row.context, computed, whole, row.kv_redundant, _times(whole, computed)])
        flops.append([row.context, row.flops, row.flops_without_cache, _times(row.flops_without_cache, row.flops)])
    names = {
        "kv_computed": f"{what} with a cache, O(n)",
        "kv_computed_without_cache": f"{what} without, O(n²)",
        "kv_redundant": "of which redundant",
        "flops": "FLOPs with a cache",
        "flops_without_cache": "FLOPs without",
    }
    title = "Formulas for n tokens at the end" + (f", n ≥ {cost.start:,}" if cost.start > 1 else "")
    formulas = [(names[name], formula) for name, formula in cost.formulas.items()]
    caption = f"Positions for which a layer computes {what}, over all passes"
    headings, none = ("context", "with", "without", "redundant", "×"), frozenset[int]()
    costs = ("context", "with", "without", "×")
    return [
        Table(caption, headings, positions, left=none),
        Table("FLOPs of all passes, with and without a cache", costs, flops, left=none),
        Table(title, ("quantity", "formula"), formulas, left=frozenset({0, 1})),
    ]


def _times(without: int, with_cache: int) -> TableCell:
    ratio = Fraction(without, with_cache)
    return TableCell(float(ratio), f"{float(ratio):,.4g}" if ratio < 10**4 else short(ratio))
