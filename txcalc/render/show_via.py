"""The tables of `show --via transformers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txcalc.questions.show_via import CACHE_DTYPE, MeasuredModule, ShowVia
from txcalc.render.report import Report, Table, TableCell, group_copies, rounded, with_stars
from txcalc.units import iec


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
    facts: list[tuple[str, int, str]] = []

    def add(name: str, number: int | None, size: bool = False) -> None:
        if number is not None:
            facts.append((name, number, iec(number) if size else rounded(number).text))

    cache = answer.cache
    add("parameters", answer.params.total)
    add("parameters with towers and projectors", answer.params.whole)
    add(f"weights ({answer.memory.dtype}), bytes", answer.memory.weights_bytes, True)
    add("forward FLOPs of this workload", answer.flops.forward.matmul)
    add("cache of a sequence, elements", cache.elements)
    add(f"cache of a sequence ({CACHE_DTYPE}), bytes", cache.bytes, True)
    add("cache elements of the next token", cache.elements_per_token)
    rows = [[name, number, short] for name, number, short in facts]
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
