"""The operators that are free: they multiply no matrices.

Any other operator without a count fails the verification by name: a fused attention that fvcore skips silently, a
grouped product, a custom kernel. `txcalc verify --zero-cost` prints the list.
"""

from __future__ import annotations

import json
from pathlib import Path

ZERO_COST: dict[str, list[str]] = json.loads(Path(__file__).with_name("zero_cost.json").read_text("utf-8"))
_NAMES = frozenset(name for names in ZERO_COST.values() for name in names)
_OWN = frozenset(ZERO_COST["the reference's own"])


def costs_nothing(operator: str) -> bool:
    """True where the operator, or the one of which it is the in-place form, is on the list."""
    space, _, name = operator.rpartition("::")
    if name.startswith("PythonOp."):  # a user's class: its name does not say what it does
        return name.removeprefix("PythonOp.") in _OWN
    return space in ("aten", "prim") and (name in _NAMES or name.removesuffix("_") in _NAMES)
