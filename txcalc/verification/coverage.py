"""The operators that are free: they multiply no matrices.

Any other operator without a count fails the verification by name: a fused attention that fvcore skips silently, a
grouped product, a custom kernel. `txcalc verify --zero-cost` prints the list.
"""

from __future__ import annotations

import json
from pathlib import Path

ZERO_COST: dict[str, list[str]] = json.loads(Path(__file__).with_name("zero_cost.json").read_text("utf-8"))
_NAMES = frozenset(name for names in ZERO_COST.values() for name in names)
_REFERENCE_OPS = frozenset(ZERO_COST["the reference's own"])


def costs_nothing(operator: str) -> bool:
    """Whether the operator, or the one that it is the in-place form of, is on the list."""
    space, _, name = operator.rpartition("::")
    if name.startswith("PythonOp."):  # a user's autograd function
        return name.removeprefix("PythonOp.") in _REFERENCE_OPS
    return space in ("aten", "prim") and (name in _NAMES or name.removesuffix("_") in _NAMES)
