"""The result of a verification: rows of predicted and measured figures, and the verdict.

Torch-free: rows are built from two mappings of module paths to figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from txcalc.evidence.figures import Figure
from txcalc.evidence.known import Evidence
from txcalc.ledger import Entry, Ledger
from txcalc.num import exact_div, total, whole

# Experts are compared together: data decides which of them run, but not the sum of their costs.
ROUTED = "routed"
NO_CACHE = "it keeps no cache: every pass begins at its first token"
NO_MASK = "masked flops: not compared, no mask hides a pair of its attention, or keys are selected by their scores"
NOTHING = {NO_CACHE, NO_MASK}  # notes that say why there is nothing to compare


class CheckedRow(NamedTuple):
    """One figure of one part, predicted by the ledger and measured by an oracle.

    path        the part; "" is the whole model
    quantity    the measured quantity, by the ledger's name if it has one
    predicted   the ledger's figure: an int, or a formula in B, T and T_src
    measured    the oracle's
    equal       no tolerance: the same int, or a difference that simplifies to zero
    oracle      the oracle
    where       batch and lengths
    copies      the number of equal parts that the row represents (`path` is the first)
    for_all     `where` covers all sizes of a stated domain, or no size can vary (shapes of weights)
    """

    path: str
    quantity: str
    predicted: Any
    measured: Any
    equal: bool
    oracle: str
    where: str = ""
    copies: int = 1
    for_all: bool = False


@dataclass
class Verdict:
    """The rows of one model; on a device also `figures` of memory and time, which need not be equal. `notes` list what
    the proof covers and what it leaves out."""

    model: str
    rows: list[CheckedRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when something was measured and all of it equals its prediction, or there is nothing to measure."""
        return (bool(self.rows) or not NOTHING.isdisjoint(self.notes)) and all(row.equal for row in self.rows)

    @property
    def failures(self) -> list[CheckedRow]:
        return [row for row in self.rows if not row.equal]

    @property
    def known(self) -> dict[str, Evidence]:
        """The evidence for each quantity of the whole model whose rows are all equal."""
        totals: dict[str, list[CheckedRow]] = {}
        for row in self.rows:
            if row.path == "":
                totals.setdefault(row.quantity, []).append(row)
        unequal = {row.quantity for row in self.failures}
        return {quantity: _evidence(rows) for quantity, rows in totals.items() if quantity not in unequal}


def _evidence(rows: list[CheckedRow]) -> Evidence:
    """Proved for all sizes of a domain, or measured, with the number of sizes."""
    proved = next((row for row in rows if row.for_all), None)
    if proved:
        return Evidence("proved", proved.where)
    sizes = list(dict.fromkeys(row.where for row in rows))
    return Evidence("measured", f"at {sizes[0]}" if len(sizes) == 1 else f"at {len(sizes)} sizes")


def equal(predicted: object, measured: object) -> bool:
    """Equal as ints, or for all values of the symbols."""
    if whole(predicted) and whole(measured):
        return bool(predicted == measured)
    import sympy

    difference = sympy.expand(sympy.sympify(predicted) - sympy.sympify(measured))
    return bool(difference == 0 or sympy.simplify(difference) == 0)


def check_equal(
    path: str, quantity: str, predicted: object, measured: object, oracle: str, where: str = "", for_all: bool = False
) -> CheckedRow:
    """A row that is equal if its figures are."""
    same = equal(predicted, measured)
    return CheckedRow(path, quantity, predicted, measured, same, oracle, where, for_all=for_all)


def module_paths(entry: Entry, experts: bool = False) -> list[str]:
    """The module paths of a ledger entry: every copy, layers with shared weights once; all routed experts of a layer
    as one path unless `experts`."""
    paths = [""]
    for step in entry.steps:
        names = [step.name]
        all_experts = step.duty == "expert" and not experts
        if step.indices is not None and not all_experts:
            shared = whole(step.times) and step.times == 1
            names = [f"{step.name}.{i}" for i in (step.indices[:1] if shared else step.indices)]
        paths = [f"{path}.{name}" if path else name for path in paths for name in names]
        if all_experts:
            break
    return paths


def figures_by_module(ledger: Ledger, figure: Any) -> dict[str, tuple[str, Any]]:
    """`figure(entry)` of every module: path → (path of the first copy, its share)."""
    result: dict[str, tuple[str, Any]] = {}
    for entry in ledger:
        paths = module_paths(entry)
        share = exact_div(figure(entry), len(paths)) if len(paths) > 1 else figure(entry)
        for path in paths:
            first, before = result.get(path, (paths[0], 0))
            result[path] = (first, before + share)
    return result


def compare(
    ledger: Ledger,
    figure: Any,
    measured: Mapping[str, object],
    quantity: str,
    oracle: str,
    where: str = "",
    for_all: bool = False,
) -> Iterator[CheckedRow]:
    """Rows of one quantity, for each part and the total; a measurement without a prediction also gives a row.

    `measured` maps each module to its own figure, without those of its children.
    """
    predicted = figures_by_module(ledger, figure)
    by_part: dict[str, Any] = {}
    for path, value in measured.items():
        owner = _owner(path, predicted)
        by_part[owner] = by_part.get(owner, 0) + value
    rows: dict[str, list[CheckedRow]] = {}
    for path in [*predicted, *(path for path in by_part if path not in predicted)]:
        first, want = predicted.get(path, (path, 0))
        got = by_part.get(path, 0)
        if want != 0 or got != 0:
            row = check_equal(path, quantity, want, got, oracle, where, for_all)
            rows.setdefault(first, []).append(row)
    for copies in rows.values():
        yield from fold_copies(copies)
    want, got = total([figure(entry) for entry in ledger]), total(by_part.values())
    if want != 0 or got != 0:
        yield check_equal("", quantity, want, got, oracle, where, for_all)


def _owner(path: str, predicted: Mapping[str, object]) -> str:
    """The part of a module: itself, or the nearest parent in the ledger; else itself."""
    parent = path
    while parent:
        if parent in predicted:
            return parent
        parent = parent.rpartition(".")[0]
    return path


def fold_copies(copies: list[CheckedRow]) -> Iterator[CheckedRow]:
    """Equal copies become one row; a copy that differs keeps its row."""
    equal_rows = [row for row in copies if row.equal]
    folded = [row for row in equal_rows if row.predicted == equal_rows[0].predicted]
    if folded:
        yield folded[0]._replace(copies=len(folded))
    yield from (row for row in copies if row not in folded)


def as_number(value: Any) -> object:
    """A figure for JSON: an int, or the text of a formula."""
    return int(value) if whole(value) or getattr(value, "is_Integer", False) else str(value)


def uncounted(operators: Mapping[str, Counter[str]], oracle: str, where: str) -> Iterator[CheckedRow]:
    """A row for every operator without a count, by module: never equal."""
    for path, names in operators.items():
        for name, times in sorted(names.items()):
            yield CheckedRow(path, f"{name} not counted", 0, times, False, oracle, where)
