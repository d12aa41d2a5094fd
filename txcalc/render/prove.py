"""The tables of `prove`."""

from __future__ import annotations

from collections import Counter

from txcalc.questions.prove import Prove
from txcalc.render.report import Report, Table, TableCell


def report(answer: Prove, form: str) -> Report:
    """One row per structure, with the first model that has it."""
    rows = []
    names = {"frame": "embedding and head", "saved, attention matrix kept": "saved, eager attention"}
    for unit in answer.structures:
        how = TableCell(unit.how, unit.how, "green" if unit.proved else "red" if unit.unequal else "yellow")
        where = ", ".join([unit.where, *unit.conditions]) if unit.where is not None else ""
        rows.append([unit.model, names.get(unit.structure, unit.structure), how, where])
    tables = [
        Table(
            "",
            ("model", "structure", "parameters, FLOPs", "for"),
            rows,
            left=frozenset({0, 1, 2, 3}),
            name="structures",
        )
    ]
    extra_rows = [
        [unit.model, names.get(unit.structure, unit.structure), names.get(quantity, quantity), known.how, known.where]
        for unit in answer.structures
        for quantity, known in unit.further.items()
    ]
    if extra_rows:
        headings = ("model", "structure", "quantity", "evidence", "for")
        tables.append(Table("Further quantities", headings, extra_rows, left=frozenset(range(5)), name="further"))
    words = Counter("proved" if unit.new else "known" for unit in answer.structures if unit.proved)
    numbers = ", ".join(f"{number} {word}" for word, number in words.items())
    verdict = f"{words.total()} of {len(answer.structures)} structures {' and '.join(words) or 'proved'} for every size"
    verdict += f" ({numbers})" if len(words) > 1 else ""
    notes = [f"{unit.model}, {unit.structure}: {unit.reason}" for unit in answer.structures if unit.reason]
    notes += [
        f"{unit.model}, {unit.structure}: {row.path or 'total'}, {row.quantity}: predicted {row.predicted}, "
        f"measured {row.measured}"
        for unit in answer.structures
        for row in unit.unequal
    ]
    notes += [f"written to {answer.file}"] if answer.file else []
    return Report(tables, [verdict], notes, good=answer.ok)
