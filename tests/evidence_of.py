"""Published models, and how one of their figures is known."""

from __future__ import annotations

import json

from paths import HF

from txcalc.evidence.known import Evidence, all_known
from txcalc.evidence.theorems import inheritance
from txcalc.model import Model
from txcalc.sources import build
from txcalc.sources.huggingface import describe


def config(name: str) -> Model:
    """A published model's, of those that are kept."""
    return build(*describe(json.loads((HF / "configs.json").read_text())[name]))


def how_known(model: Model, quantity: str) -> Evidence:
    """The word, and where it holds."""
    return all_known(model, {quantity: quantity})[quantity]


def inherited(model: Model, quantity: str) -> tuple[str, str] | None:
    """What theorems alone say; None where one is lacking."""
    return inheritance(model, (quantity,)).get(quantity)
