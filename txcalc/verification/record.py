"""Records verified evidence for `evidence.known` in `presets/proofs.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from txcalc.evidence.known import RECORDED, digest, proofs_file
from txcalc.model import Model
from txcalc.verification.subject import Subject
from txcalc.verification.verdict import CheckedRow, Verdict, equal

Proof = dict[str, str]


def proofs(model: Model, verdict: Verdict) -> dict[str, Proof | None]:
    """A verdict's evidence for each recorded quantity of a whole model; None where it was tested and not shown."""
    asked = {row.quantity: row for row in verdict.rows if row.path == "" and row.quantity in RECORDED}
    shown = {name: verdict.known[name] for name, row in asked.items() if verdict.ok and _complete(model, row)}
    return {name: {**shown[name]._asdict(), "digest": digest(model, name)} if name in shown else None for name in asked}


def _complete(model: Model, row: CheckedRow) -> bool:
    """Whether a total covers all parts: some saved activations are only modelled."""
    if not row.quantity.startswith("saved"):
        return True
    letters = Subject(model).letters
    ledger = model.ledger(letters.batch, letters.tokens, 0, letters.source, keep_scores=row.quantity.endswith("kept"))
    return equal(ledger.total("saved"), row.predicted)


def store(found: Mapping[str, Mapping[str, Proof | None]]) -> None:
    """Writes the evidence found into the file, by preset and quantity, and removes what was not shown; other entries
    stay."""
    path = proofs_file()
    whole: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"presets": {}}
    stored = whole["presets"]
    for name, proved in found.items():
        kept = {**stored.get(name, {}), **proved}
        stored[name] = {quantity: proof for quantity, proof in kept.items() if proof}
    made = {package: version(package) for package in ("torch", "fvcore")}
    own = {"schema": "txcalc/proofs/1", "made_with": made, "presets": dict(sorted(stored.items()))}
    content = {**own, **{key: value for key, value in whole.items() if key not in own}}
    path.write_text(json.dumps(content, indent=1) + "\n")
