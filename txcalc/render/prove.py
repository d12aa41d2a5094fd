"""The tables of `prove`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from txcalc.questions.prove import Prove, Structure
from txcalc.render.report import Report, Table, TableCell

NAMES = {"frame": "embedding and head", "saved, attention matrix kept": "saved, eager attention"}
BASE = "parameters, FLOPs"


def report(answer: Prove, form: str) -> Report:
    """On a terminal the quantities of each structure by evidence; in data a row per structure and quantity."""
    tables = [_by_evidence(answer.structures)] if form == "table" else _tables(answer.structures)
    proved = [unit for unit in answer.structures if unit.proved]
    words = Counter(unit.how for unit in proved)
    numbers = ", ".join(f"{number} {word}" for word, number in words.items())
    verdict = (
        f"{len(proved)} of {len(answer.structures)} structures are {' or '.join(words) or 'proved'} for every size"
    )
    verdict += f" ({numbers})" if len(words) > 1 else ""
    notes = [f"{unit.model}, {unit.structure}: {unit.reason}" for unit in answer.structures if unit.reason]
    notes += [
        f"{unit.model}, {unit.structure}: {row.path or 'total'}, {row.quantity}: predicted {row.predicted}, "
        f"measured {row.measured}"
        for unit in answer.structures
        for row in unit.unequal
    ]
    notes += [f"{name}: its own figures are not what these formulas give at its sizes" for name in answer.contradicted]
    notes += [f"written to {answer.file}"] if answer.file else []
    return Report(tables, [verdict], notes, good=answer.ok)


def _by_evidence(structures: Sequence[Structure]) -> Table:
    """Each structure with the first model that has it. What a stored theorem proves is *known*: this run did not prove
    it."""
    several = len({unit.model for unit in structures}) > 1
    rows = []
    for unit in structures:
        groups: dict[tuple[str, str], list[str]] = {(unit.how, _where(unit)): [BASE]}
        for quantity, known in unit.further.items():
            name = NAMES.get(quantity, quantity).replace("flops", "FLOPs")
            how = unit.how if unit.proved and known.how == "proved" else known.how
            groups.setdefault((how, known.where or ""), []).append(name)
        name = NAMES.get(unit.structure, unit.structure)
        for (how, where), quantities in groups.items():
            style = (
                "green" if how in ("proved", "known") else "red" if unit.unequal and BASE in quantities else "yellow"
            )
            label = name if BASE in quantities else "  "  # one of the structure above
            row = [TableCell(name, label), TableCell(how, how, style), "; ".join(quantities), where]
            rows.append([TableCell(unit.model, unit.model if BASE in quantities else "  "), *row] if several else row)
    headings = [*["model"] * several, "structure", "evidence", "quantities", "for"]
    return Table("", headings, rows, left=frozenset(range(len(headings))), keys=1 + several)


def _tables(structures: Sequence[Structure]) -> list[Table]:
    """One row per structure, and one per further quantity."""
    rows = [[unit.model, NAMES.get(unit.structure, unit.structure), unit.how, _where(unit)] for unit in structures]
    headings = ("model", "structure", BASE, "for")
    tables = [Table("", headings, rows, left=frozenset(range(4)), name="structures")]
    further = [
        [unit.model, NAMES.get(unit.structure, unit.structure), NAMES.get(quantity, quantity), known.how, known.where]
        for unit in structures
        for quantity, known in unit.further.items()
    ]
    if further:
        names = ("model", "structure", "quantity", "evidence", "for")
        tables.append(Table("Further quantities", names, further, left=frozenset(range(5)), name="further"))
    return tables


def _where(unit: Structure) -> str:
    return ", ".join([unit.where, *unit.conditions]) if unit.where is not None else ""
