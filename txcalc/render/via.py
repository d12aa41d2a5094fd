"""The report of `txcalc show --via transformers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from txcalc.notation import tidy, write
from txcalc.num import ceil_div
from txcalc.render.report import DataReport, Table, TableCell, cell, folded, rounded, starred
from txcalc.units import bits_of, iec
from txcalc.verification.via import TransformersCost, TransformersModule

CACHE_DTYPE = "bf16"  # whatever the weights' format


class Described(NamedTuple):
    """The figures of txcalc's own description of the same config.json."""

    params: int
    flops: int


def report(
    found: TransformersCost,
    name: str,
    where: str,
    model_type: str,
    dtype: str = "bf16",
    described: Described | None = None,
    ignored: Sequence[str] = (),
) -> DataReport:
    """By module; what only a description gives (kinds, cache, masked FLOPs) is null."""
    batch, tokens, source = found.sizes
    how = {"how": "measured", "where": f"{found.cls} of transformers {found.library} on meta"}
    weights = ceil_div(found.params * bits_of(dtype), 8)
    notes = [*_notes(found), *ignored, *_beside(found, described)]
    data: dict[str, Any] = {
        "schema": "txcalc/show/1",
        "model": {"name": name, "kind": None, "source": where, "model_type": model_type},
        "workload": {"batch": batch, "tokens": tokens, "past": 0, "source": source},
        "convention": {"flops_per_mac": 2, "attention": "dense", "logits": "all", "mla": None},
        "params": {"total": found.params, "active": None, "embedding": None, "by_kind": None},
        "flops": {"forward": {"matmul": found.flops, "other": None}, "masked": {"matmul": None}, "by_kind": None},
        "cache": _cache(found),
        "memory": {"weights_bytes": weights},
        "sums": None,
        "rules": None,
        "published": None,
        "assumptions": list(found.assumptions),
        "notes": notes,
        "known": {
            "params": how,
            "flops": how if found.flops is not None else None,
            "cache": how if found.cache is not None else None,
        },
        "measured": {
            "class": found.cls,
            "library": f"transformers {found.library}",
            "formula": None if found.formula is None else write(tidy(found.formula)),
            "domain": found.domain or None,
            "not_counted": dict(found.uncounted),
            "rows": [_data(part) for part in found.parts],
        },
    }
    if found.whole is not None:
        data["params"]["whole"] = found.whole
    places = [("batch", batch), ("tokens", tokens), ("past", 0), ("source", source)]
    header = [
        f"{name}: {found.cls} of transformers {found.library}, built on the meta device and measured",
        ", ".join(f"{word} {value:,}" for word, value in places if value is not None),
        "2 FLOPs per multiply-add; dense attention; all logits; as transformers' own code computes it",
    ]
    if found.formula is not None:
        header.append(f"FLOPs forward: {write(tidy(found.formula))}, for {found.domain}")
    facts = [["parameters", cell(found.params), rounded(found.params)]]
    if found.whole is not None:
        facts.append(["parameters with towers and projectors", cell(found.whole), rounded(found.whole)])
    facts.append([f"weights ({dtype}), bytes", cell(weights), iec(weights)])
    if found.flops is not None:
        facts.append(["forward FLOPs of this workload", cell(found.flops), rounded(found.flops)])
    if found.cache is not None:
        elements, size = found.cache.elements, data["cache"]["bytes"]
        facts.append(["cache of a sequence, elements", cell(elements), rounded(elements)])
        facts.append([f"cache of a sequence ({CACHE_DTYPE}), bytes", cell(size), iec(size)])
        facts.append(
            ["cache elements of the next token", cell(found.cache.next_token), rounded(found.cache.next_token)]
        )
    return DataReport(
        data,
        [_modules(found), Table("Total: measured", ("quantity", "exact", TableCell("", "short")), facts)],
        header,
        notes,
    )


def _cache(found: TransformersCost) -> dict[str, int | None]:
    """The cache of one sequence by the keys that `show` has; null where transformers makes none."""
    keys = ("elements_per_token", "constant_elements", "windows_full_at", "elements", "bytes")
    if (cache := found.cache) is None:
        return dict.fromkeys(keys)
    constant = cache.elements - found.sizes[1] * cache.next_token
    size = ceil_div(cache.elements * bits_of(CACHE_DTYPE), 8)
    return dict(zip(keys, (cache.next_token, constant, None, cache.elements, size), strict=True))


def _notes(found: TransformersCost) -> list[str]:
    notes = ["every figure is measured on transformers' module; kinds of parts and masked attention are not known"]
    notes += [f"assumed {line}" for line in found.assumptions]
    if found.cache is None and not found.cache_why:
        notes.append("a forward pass leaves no cache")
    if found.cache_why:
        notes.append(f"the cache could not be measured: {found.cache_why}")
    if found.flops is None:
        notes.append(f"FLOPs could not be measured: {found.why}")
    elif found.formula is None:
        notes.append(f"FLOPs hold for these sizes only, without a formula: {found.points}")
    if found.whole is not None:
        notes.append(
            f"multimodal: only the language model is counted, of {found.whole:,} parameters in all; FLOPs are for text "
            "without pictures or sound"
        )
    if found.uncounted:
        listed = ", ".join(f"{operator} ({times} times)" for operator, times in sorted(found.uncounted.items()))
        notes.append(f"not counted, though they may cost FLOPs: {listed}")
    return notes


def _beside(found: TransformersCost, described: Described | None) -> list[str]:
    """Compares with txcalc's own description."""
    if described is None:
        return []
    same = [
        f"{word} differ ({ours:,} there)" if ours != theirs else f"{word} are the same"
        for word, ours, theirs in (
            ("parameters", described.params, found.params),
            ("FLOPs", described.flops, found.flops),
        )
        if theirs is not None
    ]
    return [f"compared with txcalc's own description of this config: {', '.join(same)}"]


def _data(part: TransformersModule) -> dict[str, Any]:
    return {
        "path": part.path,
        "class": part.kind,
        "params": part.params,
        "flops": part.flops,
        "formula": None if part.formula is None else write(tidy(part.formula)),
    }


def _modules(found: TransformersCost) -> Table:
    rows = [_row(copies) for copies in folded(found.parts)]
    total = sum(part.params for part in found.parts)
    rows.append(["total", "", cell(total), _formula(found.formula), cell(found.flops)])
    headings = ("module", "class", "parameters", "FLOPs each", "FLOPs each, here")
    title = "By module, without submodules: measured"
    return Table(title, headings, rows, left=frozenset({0, 1}), total=True)


def _row(copies: Sequence[TransformersModule]) -> list[Any]:
    first = copies[0]
    name = starred([part.path for part in copies]) or "model"
    name = f"{name} × {len(copies)}" if len(copies) > 1 else name
    return [name, first.kind, cell(first.params), _formula(first.formula), cell(first.flops)]


def _formula(formula: Any) -> TableCell:
    text = "" if formula is None else write(tidy(formula))
    return TableCell(text, text)
