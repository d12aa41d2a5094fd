"""How one figure of a model is known."""

from __future__ import annotations

from txcalc.evidence.known import Evidence, all_known
from txcalc.evidence.theorems import inheritance
from txcalc.model import Model


def how_known(model: Model, quantity: str) -> Evidence:
    """The word, and where it holds."""
    return all_known(model, {quantity: quantity})[quantity]


def inherited(model: Model, quantity: str) -> tuple[str, str] | None:
    """What theorems alone say; None where one is lacking."""
    return inheritance(model, (quantity,)).get(quantity)
