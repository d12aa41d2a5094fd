"""Theorems: evidence for every size of a structure, inherited by every model of that structure.

`verify.prove` traces a structure's module with symbols for all of its sizes, the batch and the lengths; what it shows
is kept in `presets/theorems.json`, or by `txcalc prove` in the user's own folder. A model inherits a theorem where its
structure is the same, its sizes satisfy the theorem's conditions, its formulas have the digest of those that were
proved (`formulas`), and the printed figures are what these formulas give at its sizes. What was only measured of a
model at its own sizes is kept in the same file, by the structure in which every size is a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Sequence
from functools import partial
from itertools import product
from typing import Any

from txcalc.evidence import splits
from txcalc.evidence.domains import common
from txcalc.evidence.formulas import (
    ABSORBED as ABSORBED,
    FIGURES as FIGURES,
    FORMED as FORMED,
    FORMS as FORMS,
    FUSED as FUSED,
    KEPT as KEPT,
    LAST as LAST,
    PROMPT,
    WEIGHTS as WEIGHTS,
    Formulas as Formulas,
    agrees,
    agrees_whole,
    ledger as ledger,
    name_in_form as name_in_form,
)
from txcalc.evidence.store import (
    Condition as Condition,
    QuantityEvidence as QuantityEvidence,
    Theorem as Theorem,
    read as read,
    theorems as theorems,
    theorems_file as theorems_file,
    user_file as user_file,
    write as write,
)
from txcalc.evidence.structures import (
    FRAME,
    PROBES,
    Size as Size,
    Unit as Unit,
    pieces,
    probe as probe,
    probes,
    units as units,
    with_numbers,
)
from txcalc.ledger import Ledger
from txcalc.model import Model

PROVED = ("params", "flops")
APART = "each part separately"
OTHER_FORMULAS = "its formulas are not those that were proved"


def affects(unit: Unit, form: str) -> bool:
    """Whether a form changes what a unit computes: it has a head, or latents."""
    if form == LAST:
        return any(stack.head.form != "none" for stack in unit.description.stacks.values())
    return any(layer.latent for layer in unit.description.layers)


def digest(unit: Unit, quantity: str) -> str:
    """A digest of the formulas of all leaves."""
    return Formulas(unit).digest(quantity)


def inheritance(
    model: Model,
    quantities: Collection[str] = tuple(FIGURES),
    printed: Ledger | None = None,
    with_scores: Ledger | None = None,
) -> dict[str, tuple[str, str]]:
    """Whether quantities of the model are *proved*, *listed* or *measured*, and for which batches and lengths or sizes:
    those for which all of its structures have a theorem that holds, or which were measured of it at its own sizes.

    printed      the ledger whose figures are printed: what is not the theorems' formulas at its sizes is left out
    with_scores  the same with attention probabilities stored for backward
    """
    digests: dict[str, dict[str, str]] = {}
    work = None if printed is None else printed.work
    formulas = [Formulas(unit, work, digests.setdefault(unit.key, {})) for unit in pieces(model)]
    ledgers = {quantity: with_scores if quantity == KEPT else printed for quantity in quantities}
    evidence = {q: proof for q, proof in by_structure(formulas, quantities).items() if q in quantities}
    contradicted = [
        quantity
        for quantity in evidence
        if (at := ledgers[quantity]) is not None and not _holds(partial(agrees, model, at, quantity, formulas))
    ]
    for quantity in contradicted:
        del evidence[quantity]
    weak = [q for q in quantities if q in FIGURES and evidence.get(q, ("listed",))[0] == "listed"]
    whole = Formulas(with_numbers(model), work)
    if weak and (theorem := theorems().find(whole.unit.key)) is not None and not theorem.edited:
        for quantity in (quantity for quantity in weak if quantity in theorem.extra_quantities):
            proof, at = theorem.extra_quantities[quantity], ledgers[quantity]
            same = _digest(whole, quantity) == proof.digest
            if same and (at is None or _holds(partial(agrees_whole, at, quantity, whole))):
                evidence[quantity] = proof.how, proof.where
    return evidence


def by_structure(formulas: Sequence[Formulas], quantities: Collection[str]) -> dict[str, tuple[str, str]]:
    """What the theorems of all of a model's structures show together."""
    forms = [set(quantity.split(", ")) for quantity in quantities]
    figures = {name for name in FIGURES if any(set(name.split(", ")) <= form for form in forms)}
    pieces_evidence = []
    for formula in formulas:
        if not (evidence := _direct_evidence(formula, figures)[0] or _evidence_of_parts(formula.unit)):
            return {}
        wants_active = "active" in quantities and "params" in evidence
        if wants_active and not formula.routed and _digest(formula, "active") == _digest(formula, "params"):
            evidence["active"] = evidence["params"]  # without experts a token uses all
        for figure, ways in product(FORMED, ((LAST,), (ABSORBED,), (LAST, ABSORBED))):
            same = name_in_form(figure, *(form for form in ways if affects(formula.unit, form)))
            if same in evidence:
                evidence[name_in_form(figure, *ways)] = evidence[same]
        pieces_evidence.append(evidence)
    first = next(iter(pieces_evidence), {})
    shared = [quantity for quantity in first if all(quantity in evidence for evidence in pieces_evidence)]
    together = {quantity: weakest([evidence[quantity] for evidence in pieces_evidence]) for quantity in shared}
    if any(formula.unit.listed for formula in formulas):
        together = {
            quantity: ("listed" if how == "proved" else how, where) for quantity, (how, where) in together.items()
        }
    return together


REFUSALS = (TypeError, ValueError, ArithmeticError)  # raised by a formula that cannot take letters


def _digest(formula: Formulas, quantity: str) -> str | None:
    try:
        return formula.digest(quantity)
    except REFUSALS:
        return None


def _holds(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except REFUSALS:
        return False


def _direct_evidence(formula: Formulas, quantities: Container[str] = PROVED) -> tuple[dict[str, QuantityEvidence], str]:
    """What its own theorem shows for these quantities, which include `PROVED`; or why it shows nothing."""
    unit = formula.unit
    theorem = theorems().get(unit.key)
    if theorem is None:
        return {}, "it has no theorem yet"
    if theorem.edited:
        return {}, "its theorem was edited: it does not have its checksum"
    if failed := [str(condition) for condition in theorem.conditions if not condition.holds(unit.values)]:
        return {}, f"its sizes are outside the theorem's: {', '.join(failed)}"
    proved = {
        q: QuantityEvidence(mark, "proved", theorem.domain if q != "params" else "", ())
        for q, mark in theorem.digests.items()
    }
    claimed = proved | {q: evidence for q, evidence in theorem.extra_quantities.items() if q in quantities}
    same = {q: evidence for q, evidence in claimed.items() if evidence.digest == _digest(formula, q)}
    why = "" if claimed.keys() <= same.keys() else OTHER_FORMULAS
    return {
        q: evidence
        for q, evidence in same.items()
        if all(condition.holds(unit.values) for condition in evidence.conditions)
    }, why


def _evidence_of_parts(unit: Unit) -> dict[str, QuantityEvidence]:
    """What the theorems of smaller structures show."""
    structures, stored = bearing(unit), theorems()
    parts = [structure for structure in structures if not structure.listed]
    domain = common([stored[structure.key].domain for structure in parts or structures]) + f", {APART}" * bool(parts)
    return {q: QuantityEvidence("", "proved", domain if q != "params" else "", ()) for q in PROVED if structures}


def own_evidence(unit: Unit) -> tuple[dict[str, QuantityEvidence], str]:
    """What its own theorem shows at its sizes; and why it shows nothing, or that a formula is another by now."""
    return _direct_evidence(Formulas(unit), FIGURES)


def other_theorem(unit: Unit, theorem: Theorem) -> str:
    """Why a new theorem of a structure cannot stand beside the package's; "" where it can: both are of one formula."""
    kept = read(theorems_file()).get(unit.key, theorem)
    return "" if kept.digests == theorem.digests else "txcalc's own theorem of this structure has other formulas"


def contradicted(model: Model) -> list[str]:
    """Which figures of a prompt its ledger contradicts, for a batch and a length that are primes, one beyond 10⁶."""
    tokens, (batch, *_) = PROBES[-1]
    printed = model.ledger(batch, tokens)
    formulas = [Formulas(unit, printed.work) for unit in pieces(model)]
    figures = [name for name, figure in FIGURES.items() if PROMPT in figure.passes and not figure.form]
    return [name for name in figures if not _holds(partial(agrees, model, printed, name, formulas))]


def weakest(evidence: list[QuantityEvidence]) -> tuple[str, str]:
    """The weakest of several pieces of evidence, and its domain: of measurements, that at the fewest sizes."""
    measured = [item.where for item in evidence if item.how == "measured"]
    if measured:
        return "measured", min(measured, key=lambda where: [int(number) for number in re.findall(r"\d+", where)])
    return "proved", common([item.where for item in evidence])


def obstacle(unit: Unit) -> str:
    """Why a structure at its sizes inherits no theorem; "" where it does."""
    return _direct_evidence(Formulas(unit))[1]


def bearing(unit: Unit) -> list[Unit]:
    """The structures whose theorems prove its parameters and FLOPs: itself, or smaller ones that it is the sum of; []
    where one is missing."""
    why = obstacle(unit)
    if not why:
        return [unit]
    if why == OTHER_FORMULAS:  # a sum of the same wrong parts would prove them
        return []
    for structures in splits.candidates(unit, theorems()):
        if not any(map(obstacle, structures)) and _same_formulas(unit, structures[0]):
            return structures
    pieces = splits.components(unit)
    parts = [bearing(piece.unit) for piece in pieces]
    borne = pieces and all(parts) and _adds_up(unit, [piece.unit.key for piece in pieces])
    return [unit for part in parts for unit in part] if borne else []


def _same_formulas(left: Unit, right: Unit) -> bool:
    """Whether parameters and FLOPs of two structures with the same letters are the same for all sizes."""
    digests = [_digest(Formulas(unit), quantity) for quantity in PROVED for unit in (left, right)]
    return None not in digests and digests[::2] == digests[1::2]


def _adds_up(unit: Unit, keys: list[str]) -> bool:
    """Whether at every probe's sizes the leaves of smaller structures are a structure's own, with their figures.

    The smaller structures have letters of their own, so that their sum is compared at numbers: every letter, batch and
    length is another prime at each of three probes, two of them beyond 5,000 and 10⁶. A structure that
    cannot have prime sizes, since its projector reads positions in pairs, counts as no such sum."""
    return all(
        _holds(partial(_adds_up_at, unit._replace(values=values), lengths, keys)) for values, lengths in probes(unit)
    )


def _adds_up_at(probed: Unit, lengths: tuple[int, int, int], keys: list[str]) -> bool:
    pieces = splits.components(probed)
    if [piece.unit.key for piece in pieces] != keys:
        return False
    batch, tokens, source = lengths
    if probed.listed:
        (piece,), table = pieces, probed.plain_piece
        return all(
            _figures(probed, batch, length, source)
            == _figures(piece.unit, *splits.workload_at(table, batch, length, source))
            for length in (1, tokens, 713 * tokens)
        )
    return all(_sums(probed, pieces, batch, length, source) for length in (tokens, 713 * tokens))


def _sums(probed: Unit, pieces: Sequence[splits.Component], batch: int, tokens: int, source: int) -> bool:
    """Whether the leaves of smaller structures are its own, with their figures, at a length."""
    fixed = probed.over(probed.values).fixed
    leaves, summed = _figures(probed, batch, tokens, source), dict[str, tuple[Any, Any]]()
    if probed.name == FRAME:  # its feed-forward is not the model's
        leaves = {path: figures for path, figures in leaves.items() if not path.startswith("layers.")}
    for part, layer, list_path in pieces:
        for path, figures in _figures(part, batch, tokens if fixed is None else fixed, source).items():
            inner = path.startswith("layers.0.")
            if inner and layer is None:
                continue
            name = path.replace("layers.0.", f"layers.{layer}.", 1) if inner else list_path or path
            if summed.setdefault(name, figures) != figures:
                return False
    return leaves == summed


def _figures(unit: Unit, batch: int, tokens: int, source: int) -> dict[str, tuple[Any, Any]]:
    """Parameters and FLOPs of each leaf."""
    entries = ledger(unit.over(unit.values), batch, tokens, source)
    return {entry.path: (entry.params, entry.flops) for entry in entries}


def missing(unit: Unit) -> list[Unit]:
    """Of the structures that it is the sum of, the smallest that lack a theorem."""
    if bearing(unit):
        return []
    pieces = splits.components(unit)
    if pieces and _adds_up(unit, [piece.unit.key for piece in pieces]):
        return [unit for piece in pieces for unit in missing(piece.unit)]
    if (instead := splits.with_first_activation(unit)) and _same_formulas(unit, instead[0]):
        return [unit for unit in instead if obstacle(unit)]
    return [unit]
