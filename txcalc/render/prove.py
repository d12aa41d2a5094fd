"""The report of `txcalc prove`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from txcalc.evidence.theorems import Theorem, Unit
from txcalc.render.report import DataReport, Table, TableCell


class ProofAnswer(NamedTuple):
    """A structure of a model with its theorem, else the rows that refute it or the reason."""

    model: str
    unit: Unit
    theorem: Theorem | None
    unequal: Sequence[Any] = ()
    refusal: str = ""
    new: bool = False

    @property
    def how(self) -> str:
        return "proved" if self.theorem else "REFUTED" if self.unequal else "not proved"


def report(answers: Sequence[ProofAnswer], path: Path) -> DataReport:
    """One row per structure, with the first model that has it."""
    data: dict[str, Any] = {
        "schema": "txcalc/prove/1",
        "ok": all(answer.theorem for answer in answers),
        "structures": [
            {
                "model": answer.model,
                "structure": answer.unit.name,
                "key": answer.unit.key,
                "how": answer.how,
                "where": answer.theorem.domain if answer.theorem else None,
                "conditions": [str(condition) for condition in answer.theorem.conditions] if answer.theorem else [],
                "sizes": answer.unit.values,
                "further": {
                    quantity: {"how": shown.how, "where": shown.where}
                    for quantity, shown in (answer.theorem.further if answer.theorem else {}).items()
                },
                "new": answer.new,
                "reason": answer.refusal or None,
            }
            for answer in answers
        ],
    }
    good = [answer for answer in answers if answer.theorem]
    rows = []
    for answer in answers:
        style = "green" if answer.theorem else "red" if answer.unequal else "yellow"
        where = [answer.theorem.domain, *map(str, answer.theorem.conditions)] if answer.theorem else []
        rows.append([answer.model, answer.unit.name, TableCell(answer.how, answer.how, style), ", ".join(where)])
    table = Table(
        "", ("model", "structure", "parameters, FLOPs", "for"), rows, left=frozenset({0, 1, 2, 3}), name="structures"
    )
    more = [
        [answer.model, answer.unit.name, quantity, shown.how, shown.where]
        for answer in good
        for quantity, shown in (answer.theorem.further if answer.theorem else {}).items()
    ]
    beyond = Table(
        "Further quantities",
        ("model", "structure", "quantity", "evidence", "for"),
        more,
        left=frozenset(range(5)),
        name="further",
    )
    verdict = f"{len(good)} of {len(answers)} structures proved for every size"
    notes = [f"{a.model}, {a.unit.name}: {a.refusal}" for a in answers if a.refusal]
    notes += [
        f"{a.model}, {a.unit.name}: {row.path or 'total'}, {row.quantity}: predicted {row.predicted}, "
        f"measured {row.measured}"
        for a in answers
        for row in a.unequal
    ]
    if any(answer.new and answer.theorem for answer in answers):
        notes.append(f"written to {path}")
    return DataReport(data, [table, *([beyond] if more else [])], [verdict], notes, good=bool(data["ok"]))
