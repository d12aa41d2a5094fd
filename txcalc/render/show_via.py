"""The tables of `show --via transformers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txcalc.questions.show_via import CACHE_DTYPE, MeasuredModule, ShowVia
from txcalc.render.report import Report, Table, TableCell, group_copies, with_stars
from txcalc.units import iec, short


def report(answer: ShowVia, form: str) -> Report:
    """By module, and the totals."""
    measured = answer.measured
    header = [
        f"{answer.model.name}: {measured.class_} of {measured.library}, built on the meta device and measured",
        str(answer.workload),
        f"{answer.convention}; as transformers' own code computes it",
    ]
    if measured.formula is not None:
        header.append(f"FLOPs forward: {measured.formula}, for {measured.domain}")
    cache, params, weights = answer.cache, answer.params, answer.memory.weights_bytes
    facts = [
        ("parameters", params.total, short),
        ("parameters with towers and projectors", params.whole, short),
        (f"weights ({answer.memory.dtype}), bytes", weights, iec),
        ("forward FLOPs of this workload", answer.flops.forward.matmul, short),
        ("cache of a sequence, elements", cache.elements, short),
        (f"cache of a sequence ({CACHE_DTYPE}), bytes", cache.bytes, iec),
        ("cache elements of the next token", cache.elements_per_token, short),
    ]
    rows = [[name, number, write(number)] for name, number, write in facts if number is not None]
    total = Table("Total: measured", ("quantity", "exact", TableCell("", "short")), rows)
    return Report([_modules(answer), total], header, answer.notes)


def _modules(answer: ShowVia) -> Table:
    modules = answer.measured.rows
    rows = [_row(copies) for copies in group_copies(modules)]
    formula = answer.measured.formula or ""
    rows.append(["total", "", answer.measured.params, TableCell(formula, formula), answer.flops.forward.matmul])
    headings = ("module", "class", "parameters", "FLOPs each", "FLOPs each, here")
    title = "By module, without submodules: measured"
    return Table(title, headings, rows, left=frozenset({0, 1}), total=True)


def _row(copies: Sequence[MeasuredModule]) -> list[Any]:
    first = copies[0]
    name = with_stars([module.path for module in copies]) or "model"
    name = f"{name} × {len(copies)}" if len(copies) > 1 else name
    formula = first.formula or ""
    return [name, first.class_, first.params, TableCell(formula, formula), first.flops]
