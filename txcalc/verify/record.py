"""What a verification showed, kept for `planning.evidence`: `presets/proofs.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from txcalc.model import Model
from txcalc.planning.evidence import RECORDED, digest, proofs_file
from txcalc.verify.subject import Subject
from txcalc.verify.verdict import Row, Verdict, equal

Proof = dict[str, str]


def proofs(model: Model, verdict: Verdict) -> dict[str, Proof]:
    """What a verdict says of each recorded quantity of a whole model; nothing of what was not asked, or failed."""
    wholes = [row for row in verdict.rows if row.path == ""]
    found: dict[str, Proof] = {}
    for recorded in RECORDED if verdict.ok else ():
        rows = [row for row in wholes if row.quantity == recorded and _complete(model, row)]
        if rows:
            found[recorded] = {**_known(rows), "digest": digest(model, recorded)}
    return found


def _complete(model: Model, row: Row) -> bool:
    """Whether a total is that of all parts: of saved elements, some are only modelled."""
    if not row.quantity.startswith("saved"):
        return True
    letters = Subject(model).letters
    ledger = model.ledger(letters.batch, letters.tokens, 0, letters.source, keep_scores=row.quantity.endswith("kept"))
    return equal(ledger.total("saved"), row.predicted)


def _known(rows: list[Row]) -> Proof:
    """Proved for every size, or for what has none; else measured at so many sizes."""
    proved = next((row for row in rows if row.where.startswith("all ") or not row.where), None)
    if proved:
        return {"how": "proved", "where": proved.where}
    return {"how": "measured", "where": f"at {len({row.where for row in rows})} sizes"}


def store(found: Mapping[str, dict[str, Proof]]) -> None:
    """Adds what was found to the file, by preset and quantity; what is there of others stays."""
    path = proofs_file()
    stored: dict[str, Any] = json.loads(path.read_text())["presets"] if path.is_file() else {}
    for name, proved in found.items():
        stored.setdefault(name, {}).update(proved)
    made = {package: version(package) for package in ("torch", "fvcore")}
    content = {"schema": "txcalc/proofs/1", "made_with": made, "presets": dict(sorted(stored.items()))}
    path.write_text(json.dumps(content, indent=1) + "\n")
