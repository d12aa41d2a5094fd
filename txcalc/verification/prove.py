"""Proves theorems: traces a structure's module with symbolic sizes, batch and lengths, and compares with its formulas.

Every size is a PyTorch symbol (`SymInt`), so that `FlopCounterMode` and weight shapes give expressions in all of them;
the parts' formulas over the same letters, minus these, must simplify to zero.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import nn

from txcalc.evidence import theorems
from txcalc.evidence.theorems import Condition, Theorem, Unit
from txcalc.verification import extra_quantities, leaves
from txcalc.verification.parameters import ORACLE as WEIGHTS
from txcalc.verification.sizes import SizeSymbols, lengths_of
from txcalc.verification.symbolic import without_logs
from txcalc.verification.verdict import CheckedRow, compare

LISTED = "all B, T ≥ 1, each listed leaf separately"


def prove(unit: Unit, extra: bool = True) -> tuple[Theorem, list[CheckedRow]]:
    """A unit's theorem and the rows that prove it, part by part; with `extra`, also of quantities other than parameters
    and FLOPs.

    Errors: `NotForAll` if the trace fixes a size or assumes something that is no condition on sizes, or if an operator
    that may cost FLOPs has no count. Unequal rows refute the theorem: it must not be stored.
    """
    with without_logs():
        return _prove(unit, extra)


def _prove(unit: Unit, extra: bool) -> tuple[Theorem, list[CheckedRow]]:
    conditions: dict[Condition, None] = {}
    rows: list[CheckedRow] = []
    digests = {quantity: theorems.digest(unit, quantity) for quantity in theorems.PROVED}
    if unit.listed:
        rows, assumed = leaves.rows(unit)
        return Theorem(unit.name, digests, LISTED, tuple(assumed)), rows
    traces = extra_quantities.trace_steps(unit, extra)
    for trace in traces:
        rows += prove_at(unit, trace)
        conditions |= dict.fromkeys(trace.forward.conditions)
    domain = f"all {', '.join(lengths_of(unit))} ≥ 1"
    theorem = Theorem(unit.name, digests, domain, tuple(conditions))
    if not extra or not all(row.equal for row in rows):
        return theorem, rows
    evidence, extra_rows = extra_quantities.prove_extra(unit, traces=traces)
    return theorem._replace(extra_quantities=evidence), rows + extra_rows


def prove_at(unit: Unit, trace: extra_quantities.StepTrace) -> list[CheckedRow]:
    """Rows for all lengths of a case."""
    case, symbols = trace.case, trace.saved.symbols
    fixed = {*case.ones, *case.formulas}
    where = ", ".join([*case.describe(), *(f"{length} ≥ 2" for length in lengths_of(unit) if length not in fixed)])
    rows: list[CheckedRow] = []
    if not case.ones:
        weights = _weights(trace.net, symbols)
        rows += compare(trace.saved.ledger, lambda entry: entry.params, weights, "params", WEIGHTS, for_all=True)
    rows += trace.rows(trace.forward, "flops", where=where)
    return rows


def _weights(net: nn.Module, symbols: SizeSymbols) -> dict[str, Any]:
    """Elements by module; with symbols one expert stands for all, and its weights are multiplied by their number."""
    sizes: dict[str, Any] = {}
    experts = {path: part.experts for path, part in net.named_modules() if hasattr(part, "experts")}
    for name, weight in net.named_parameters():
        path = name.rpartition(".")[0]
        size = symbols.read(weight.numel())
        for owner, number in experts.items():
            if path.startswith(f"{owner}.routed."):
                size = sympy.expand(size * symbols.read(number))
        sizes[path] = sizes.get(path, 0) + size
    return sizes


def tracer_version() -> dict[str, str]:
    return {"torch": torch.__version__}
