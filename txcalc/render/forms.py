"""Measured beside each other: keys and values shared by more and more heads, a cache as it grows, and both forms of
latent attention. Every number is in a file of measurements (`render.measurements`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import groupby, pairwise
from typing import Any

from txcalc.render.report import Table, TableCell

Found = Mapping[str, Any]
Items = Collection[tuple[str, Found]]
SHARED = " h_kv="  # in the description of a model that differs from its neighbours in nothing else
ABSORBED = ", latents absorbed"


def forms(items: Items) -> list[Table]:
    """The tables that have rows."""
    return [table for table in (_shared(items), _growth(items), _latent(items)) if table.rows]


def _decodes(item: Found, quantity: str) -> list[Found]:
    """Figures of whole decode steps."""
    figures = [figure for step in item["steps"].values() for figure in step.get("figures", ())]
    return [f for f in figures if f["quantity"] == quantity and not f["part"] and f["load"].startswith("decode")]


def _ratios(figure: Found, other: Found) -> list[TableCell]:
    """How many times another's a figure is, predicted and measured."""
    found = (figure[key] / other[key] for key in ("predicted", "measured"))
    return [TableCell(ratio, f"{ratio:.2f}") for ratio in found]


def _cache(item: Found) -> int:
    """Bytes of the cache that was compared, to the byte; 0: none was."""
    for step in item["steps"].values():
        for row in step.get("wholes", ()):
            said = dict(zip(step["columns"], row, strict=True))
            if said["quantity"] == "bytes of the cache":
                return int(said["measured"])
    return 0


def _shared(items: Items) -> Table:
    """Equal models but for the heads that share a key and a value, beside the first of them."""
    rows: list[list[Any]] = []
    some = [(name, item) for name, item in items if SHARED in item["source"] and _cache(item)]
    for _, group in groupby(some, key=lambda pair: pair[1]["source"].partition(SHARED)[0]):
        (_, first), *others = group
        for name, item in others:
            ratio = _cache(item) / _cache(first)
            pairs = zip(_decodes(item, "time"), _decodes(first, "time"), strict=False)
            rows += [[name, TableCell(ratio, f"{ratio:.4f}"), *_ratios(now, then)] for now, then in pairs]
    return Table("Shared keys and values, over none shared", ("model", "cache", "time expected", "measured"), rows)


def _growth(items: Items) -> Table:
    """What each further token of the past adds to the memory of a decode step."""
    rows: list[list[Any]] = []
    for name, item in items:
        for before, now in pairwise(_decodes(item, "peak memory")):
            (batch, low), (other, high) = (_batch_and_past(figure["load"]) for figure in (before, now))
            if batch == other and low < high:
                each = [(now[key] - before[key]) / (high - low) for key in ("floor", "measured")]
                rows.append([name, f"{low:,} to {high:,}", *(TableCell(size, f"{size:,.1f}") for size in each)])
    return Table("Bytes that each further token adds", ("model", "past", "ledger", "measured"), rows, frozenset({0, 1}))


def _batch_and_past(load: str) -> tuple[str, int]:
    """Of a decode step as it is written: `decode B = 2, T = 1, 4,096 past`."""
    batch, _, rest = load.partition(", T = 1, ")
    past = rest.partition(" past")[0].replace(",", "")
    return batch, int(past) if past.isdecimal() else 0


def _latent(items: Items) -> Table:
    """A decode step with absorbed latents over the one that expands them."""
    rows: list[list[Any]] = []
    for name, item in items:
        for quantity in ("peak memory", "time"):
            found = {figure["load"]: figure for figure in _decodes(item, quantity)}
            pairs = [(load, found.get(load.replace(ABSORBED, ""))) for load in found if ABSORBED in load]
            rows += [[f"{name}, {quantity}", *_ratios(found[load], other)] for load, other in pairs if other]
    return Table("Latents absorbed, over expanded", ("work", "predicted", "measured"), rows)
