"""Theorems of listed leaves: each is traced separately, for any number of positions.

The list also gives each leaf's number of positions as a formula in the text length. It is evaluated here a second time;
both results must be equal formulas.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import nn

from txcalc.evidence.theorems import Condition, Unit
from txcalc.ledger import Ledger, walk
from txcalc.notation import Expression
from txcalc.num import floor_div
from txcalc.parts.forms import BORROWED
from txcalc.parts.mixers.pieces import Pieces
from txcalc.parts.options import Table
from txcalc.parts.part import Workload
from txcalc.reference import tracing
from txcalc.reference.mixers.pieces import SingleLeaf
from txcalc.reference.run import TensorOptions
from txcalc.verification import flops
from txcalc.verification.parameters import ORACLE as WEIGHTS
from txcalc.verification.sizes import Case, SizeSymbols, refusing_symbols, simplify, subsets
from txcalc.verification.symbolic import T_SRC, B, T
from txcalc.verification.verdict import CheckedRow, compare, uncounted

LENGTHS = ("B", "T", "T_src")
LIST = "the list of leaves"


def rows(unit: Unit) -> tuple[list[CheckedRow], list[Condition]]:
    """A leaf's parameters and FLOPs for all sizes and lengths, and PyTorch's assumptions about the sizes."""
    result: list[CheckedRow] = []
    conditions: dict[Condition, None] = {}
    letters = SizeSymbols(unit.values, (B, T, T_SRC))
    for ones in subsets(LENGTHS):
        symbols = letters.at_one(ones)
        root = symbols.tree(unit)
        leaf_rows, cost = _trace_leaf(root.pieces[0], symbols, ", ".join(Case(ones).describe()) or "all ≥ 2")
        result += leaf_rows
        conditions |= dict.fromkeys(symbols.conditions())
        if not ones:
            flops_there = sum(sympy.sympify(cost).subs(at, simultaneous=True) for at in _positions(root.pieces[0]))
            costs = {root.pieces[0]["name"]: simplify(flops_there)}
            ledger = _ledger(root, B, T, T_SRC)
            result += compare(ledger, _cost, costs, "flops", LIST, "at its positions", for_all=True)
    return result, list(conditions)


def _trace_leaf(piece: Table, symbols: SizeSymbols, where: str) -> tuple[list[CheckedRow], Any]:
    """Rows of a leaf at these lengths, and its FLOPs."""
    plain = {**piece, "at": None, "keys": None, "shared": False}
    if piece["form"] == "windows":  # attention within each window
        plain |= {"form": "attention", "sizes": piece["sizes"][:-1]}
    root = Pieces(pieces=(plain,))
    (leaf,) = root.leaves()
    predicted, name = _ledger(root, *symbols.letter_shape), piece["name"]
    with refusing_symbols(), tracing(), symbols.mode, torch.no_grad():
        net = nn.Module()
        single = SingleLeaf(
            symbols.of(leaf), TensorOptions(torch.device("meta"), torch.float32), piece["form"] in BORROWED
        )
        net.add_module(name, single.leaf)
        counter = flops.count(net, lambda: single(*symbols.symbol_shape))
    costs = {name: sum(symbols.read(value) for value in counter.by_module.values())}
    weights = {name: sum(symbols.read(w.numel()) for w in single.leaf.parameters())}
    result = [
        *compare(predicted, lambda entry: entry.params, weights, "params", WEIGHTS, for_all=True),
        *compare(predicted, _cost, costs, "flops", flops.ORACLE, where, for_all=True),
        *uncounted(counter.uncounted, flops.ORACLE, where),
    ]
    return result, costs[name]


def _ledger(root: Pieces, batch: Expression, tokens: Expression, source: Any) -> Ledger:
    return walk(root, Workload(batch, tokens, 0, source))


def _cost(entry: Any) -> Any:
    return simplify(entry.flops)


def _positions(piece: Table) -> list[dict[Any, Any]]:
    """A leaf's B, T and T_src, as formulas in the text's; with windows, those of the full windows and of the last."""
    batch, tokens, source = B, T, T_SRC
    at, keys = piece["at"], piece["keys"]
    if keys == "batch":
        batch, tokens, source = sympy.Integer(1), B, B
    elif keys is not None:
        source = _length(keys)
    if at == "source":
        tokens = T_SRC
    elif at is not None:
        tokens = _length(at)
    if piece["shared"]:
        batch = sympy.Integer(1)
    if piece["form"] != "windows":
        return [{B: batch, T: tokens, T_SRC: source}]
    window = piece["sizes"][-1]
    full = floor_div(tokens, window)
    return [{B: batch * full, T: window, T_SRC: source}, {B: batch, T: tokens - full * window, T_SRC: source}]


def _length(at: Any) -> Any:
    """m·⌈(a·T + b)/c⌉, where a·T + b ≥ 0."""
    a, b, c, m = (*at, 1)[:4]
    numerator = a * T + b
    return sympy.ceiling((numerator - sympy.Min(0, numerator)) / c) * m
