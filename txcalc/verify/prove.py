"""Theorems: a structure's module traced with symbols for its sizes, the batch and the lengths, beside its formulas.

Every size is a symbol of PyTorch's own (`SymInt`), so that `FlopCounterMode` and the shapes of weights give
expressions in all of them; the parts' formulas over the same letters, minus these, must simplify to zero.
"""

from __future__ import annotations

import logging
from typing import Any

import sympy
import torch
from torch import nn

from txcalc.planning import theorems
from txcalc.planning.theorems import Condition, Theorem, Unit
from txcalc.reference import modules, tracing
from txcalc.verify import flops, steps
from txcalc.verify.parameters import ORACLE as WEIGHTS
from txcalc.verify.sizes import SizeSymbols, inputs, lengths_of, ones_of, refusing
from txcalc.verify.symbolic import T_SRC, B, T
from txcalc.verify.verdict import Row, compare, uncounted


def prove(unit: Unit) -> tuple[Theorem, list[Row]]:
    """A unit's theorem and the rows behind it, part by part.

    Errors: `NotForAll` where the trace fixes a size, where what it had to assume is no condition of sizes, or where an
    operator that may cost has no count. Rows that are not equal refute it: no theorem may be kept.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # what PyTorch logs of its errors is told once
    try:
        return _prove(unit)
    finally:
        logging.disable(before)


def _prove(unit: Unit) -> tuple[Theorem, list[Row]]:
    conditions: dict[Condition, None] = {}
    rows: list[Row] = []
    domains: list[str] = []
    for ones in ones_of(unit):
        found, assumed, domain = _at(unit, ones)
        conditions |= dict.fromkeys(assumed)
        domains.append(domain)
        rows += found
    digests = {quantity: theorems.digest(unit, quantity) for quantity in theorems.PROVED}
    domain = f"all {', '.join(lengths_of(unit))} ≥ 1" if not any(domains) else "; ".join(domains)
    shown, more = steps.shown(unit) if all(row.equal for row in rows) else ({}, [])
    return Theorem(unit.name, digests, domain, tuple(conditions), shown), [*rows, *more]


def _at(unit: Unit, ones: tuple[str, ...]) -> tuple[list[Row], list[Condition], str]:
    """Rows for all lengths of 2 or more but for those that are 1, with what PyTorch assumed of sizes and of lengths."""
    symbols = SizeSymbols(unit.values, ones)
    root = unit.over({name: symbols.letters[name] for name in unit.values})
    batch, tokens, source = (1 if str(letter) in ones else letter for letter in (B, T, T_SRC))
    predicted = theorems.ledger(root, batch, tokens, source)
    with refusing(), tracing(), symbols.mode, torch.no_grad():
        net = modules(symbols.of(root), torch.device("meta"), torch.float32)
        given = inputs(unit, root, symbols.sides, symbols.of)
        counter = flops.count(net, lambda: net(*given))
    conditions, lengths = symbols.conditions()
    where = ", ".join(
        [*(f"{one} = 1" for one in ones), *(f"{x} ≥ 2" for x in lengths_of(unit) if x not in ones), *lengths]
    )
    costs = {path: symbols.read(value) for path, value in counter.by_module.items()}
    found = [
        *compare(predicted, lambda entry: entry.params, _weights(net, symbols), "params", WEIGHTS, for_all=True),
        *compare(predicted, lambda entry: entry.flops, costs, "flops", flops.ORACLE, where, for_all=True),
        *uncounted(counter.uncounted, flops.ORACLE, where),
    ]
    return found, conditions, where if lengths else ""


def _weights(net: nn.Module, symbols: SizeSymbols) -> dict[str, Any]:
    """Elements by module; over symbols one expert stands for all, and its weights count as often."""
    found: dict[str, Any] = {}
    number = {path: part.experts for path, part in net.named_modules() if hasattr(part, "experts")}
    for name, weight in net.named_parameters():
        path = name.rpartition(".")[0]
        size = symbols.read(weight.numel())
        for above, experts in number.items():
            if path.startswith(f"{above}.routed."):
                size = sympy.expand(size * symbols.read(experts))
        found[path] = found.get(path, 0) + size
    return found


def made_with() -> dict[str, str]:
    """The version of what traced."""
    return {"torch": torch.__version__}
