"""`prove`: theorems of the structures of models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from txcalc.errors import InputError, Refuted
from txcalc.evidence.known import Evidence
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, Result
from txcalc.questions.verify import Progress, no_progress
from txcalc.sources import load

if TYPE_CHECKING:
    from txcalc.evidence.theorems import Theorem, Unit


class UnequalFigure(Answer):
    """A figure that refutes a structure's formula."""

    path: str
    quantity: str
    predicted: str
    measured: str


class Structure(Answer):
    """A structure of a model with its sizes: whether it is proved (`new`: by this run), for which sizes and conditions,
    and how `further` quantities are known; `unequal`: the figures that refute it; `reason`: why there is no proof."""

    model: str
    structure: str
    key: str
    how: str
    where: str | None
    conditions: tuple[str, ...]
    sizes: dict[str, int]
    further: dict[str, Evidence]
    new: bool
    reason: str | None
    unequal: tuple[UnequalFigure, ...] = ()

    @property
    def proved(self) -> bool:
        return self.where is not None


class Prove(Result, tag_field="schema", tag="txcalc/prove/1", kw_only=True):
    """Theorems of the structures of models; `contradicted`: models whose own figures are not what the formulas give;
    `file`: where new theorems were written."""

    rows_key: ClassVar[str] = "structures"

    ok: bool
    structures: tuple[Structure, ...]
    contradicted: tuple[str, ...] = ()
    file: str | None = None

    @property
    def failed(self) -> bool:
        return not self.ok


@o.Question("txcalc prove my-model/config.json", takes=("--set", "--ignore"))
def prove(
    *sources: o.OptionalSources,
    again: Annotated[bool, o.Option("Prove again what has a stored proof.")] = False,
    out: Annotated[
        str | Path | None, o.OUT.with_help("the theorems to a .json (default: in your data folder).")
    ] = None,
    tell: Progress = no_progress,
) -> Prove:
    """Prove a model's formulas for every size. Its structure is traced with symbolic widths, heads, experts, batch and
    length; every model of that structure inherits the theorem.

    In Python: structures that are the sum of smaller ones with theorems are skipped too. `failed`: one is not proved.
    """
    from txcalc.evidence import theorems

    if not sources:
        raise InputError("prove", ["expected models"])
    models = [load(source) for source in sources]
    units: dict[str, tuple[str, Unit]] = {}
    for model in models:
        for unit in theorems.units(model):
            for part in [unit] if again else theorems.bearing(unit) or [unit]:
                units.setdefault(part.key, (model.name, part))
    from txcalc.verification.prove import prove as prove_unit, tracer_version

    structures: list[Structure] = []
    path = theorems.user_file() if out is None else Path(out)
    for i, (name, unit) in enumerate(units.values()):
        tell(f"{name}: {unit.name}", i / len(units))
        evidence, obstacle = theorems.own_evidence(unit)
        if not again and not obstacle:
            kept = theorems.theorems()[unit.key]
            further = {quantity: proof for quantity, proof in kept.extra_quantities.items() if quantity in evidence}
            structures.append(structure(name, unit, kept._replace(extra_quantities=further)))
            continue
        try:
            theorem, rows = prove_unit(unit)
        except Refuted as refusal:
            structures.append(structure(name, unit, None, reason=str(refusal)))
            continue
        unequal = [row for row in rows if not row.equal]
        reason = "" if unequal else theorems.other_theorem(unit, theorem)
        proved = None if unequal or reason else theorem
        structures.append(structure(name, unit, proved, unequal, reason, new=True))
        if proved:
            theorems.write(path, {unit.key: theorem}, tracer_version())
    written = any(structure.new and structure.proved for structure in structures)
    contradicted = tuple(model.name for model in models if theorems.contradicted(model))
    return Prove(
        ok=all(structure.proved for structure in structures) and not contradicted,
        structures=tuple(structures),
        contradicted=contradicted,
        file=str(path) if written else None,
    )


def structure(
    model: str, unit: Unit, theorem: Theorem | None, unequal: Sequence[Any] = (), reason: str = "", new: bool = False
) -> Structure:
    """A structure with its theorem, or without one the figures that refute it or the reason."""
    further = theorem.extra_quantities if theorem else {}
    return Structure(
        model=model,
        structure=unit.name,
        key=unit.key,
        how=("proved" if new else "known") if theorem else "REFUTED" if unequal else "not proved",
        where=theorem.domain if theorem else None,
        conditions=tuple(map(str, theorem.conditions)) if theorem else (),
        sizes=dict(unit.values),
        further={name: Evidence(evidence.how, evidence.where) for name, evidence in further.items()},
        new=new,
        reason=reason or None,
        unequal=tuple(UnequalFigure(row.path, row.quantity, str(row.predicted), str(row.measured)) for row in unequal),
    )
