"""Stores the evidence from verifying a model at its own sizes, if theorems of its structures prove less."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from txcalc.evidence.formulas import FIGURES, Formulas
from txcalc.evidence.store import QuantityEvidence, Theorem, read, save, theorems_file
from txcalc.evidence.structures import pieces, with_numbers
from txcalc.evidence.theorems import by_structure
from txcalc.model import Model
from txcalc.sources import files
from txcalc.verification.subject import Subject
from txcalc.verification.verdict import CheckedRow, Verdict, equal


def proofs(model: Model, verdict: Verdict) -> dict[str, QuantityEvidence | None]:
    """A verdict's evidence for each quantity of a whole model; None if it was tested but not shown."""
    totals = {row.quantity: row for row in verdict.rows if row.path == "" and row.quantity in FIGURES}
    formulas, evidence = Formulas(with_numbers(model)), dict[str, QuantityEvidence | None]()
    for name, row in totals.items():
        evidence[name] = None
        if verdict.ok and _complete(model, row):
            proof = verdict.known[name]
            evidence[name] = QuantityEvidence(formulas.digest(name), proof.how, proof.where, ())
    return evidence


def _complete(model: Model, row: CheckedRow) -> bool:
    """Whether a total covers all parts (saved activations of some are only modelled)."""
    if not row.quantity.startswith("saved"):
        return True
    letters = Subject(model).letters
    ledger = model.ledger(letters.batch, letters.tokens, 0, letters.source, keep_scores=row.quantity.endswith("kept"))
    return equal(ledger.total("saved"), row.predicted)


def store(results: Mapping[str, tuple[Model, Mapping[str, QuantityEvidence | None]]]) -> None:
    """Stores evidence of models, by name, and removes evidence of quantities not shown. Leaves out what theorems of
    structures prove or measure as well."""
    path = theorems_file()
    with files.lock(path):
        theorems = read(path)
        for name, (model, evidence) in results.items():
            key = with_numbers(model).key
            before = theorems.pop(key).extra_quantities if key in theorems else {}
            by_theorem = by_structure([Formulas(unit) for unit in pieces(model)], tuple(evidence))
            extra = {
                quantity: proof
                for quantity, proof in {**before, **evidence}.items()
                if proof is not None and by_theorem.get(quantity, ("",))[0] not in ("proved", proof.how)
            }
            if extra:
                theorems[key] = Theorem(name, {}, "", (), extra)
        save(path, theorems, {package: version(package) for package in ("torch", "fvcore")})
