"""The tables of `prove`."""

from __future__ import annotations

from collections import Counter

from txcalc.questions.prove import Prove
from txcalc.render.report import Report, Table, TableCell


def report(answer: Prove, form: str) -> Report:
    """One row per structure, with the first model that has it."""
    rows = []
    names = {"frame": "embedding and head", "saved, attention matrix kept": "saved, eager attention"}
    for each in answer.structures:
        how = TableCell(each.how, each.how, "green" if each.proved else "red" if each.unequal else "yellow")
        where = ", ".join([each.where, *each.conditions]) if each.where is not None else ""
        rows.append([each.model, names.get(each.structure, each.structure), how, where])
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
        [each.model, names.get(each.structure, each.structure), names.get(quantity, quantity), known.how, known.where]
        for each in answer.structures
        for quantity, known in each.further.items()
    ]
    if extra_rows:
        headings = ("model", "structure", "quantity", "evidence", "for")
        tables.append(Table("Further quantities", headings, extra_rows, left=frozenset(range(5)), name="further"))
    words = Counter("proved" if each.new else "known" for each in answer.structures if each.proved)
    numbers = ", ".join(f"{number} {word}" for word, number in words.items())
    verdict = f"{words.total()} of {len(answer.structures)} structures {' and '.join(words) or 'proved'} for every size"
    verdict += f" ({numbers})" if len(words) > 1 else ""
    notes = [f"{each.model}, {each.structure}: {each.reason}" for each in answer.structures if each.reason]
    notes += [
        f"{each.model}, {each.structure}: {row.path or 'total'}, {row.quantity}: predicted {row.predicted}, "
        f"measured {row.measured}"
        for each in answer.structures
        for row in each.unequal
    ]
    notes += [f"written to {answer.file}"] if answer.file else []
    return Report(tables, [verdict], notes, good=answer.ok)
