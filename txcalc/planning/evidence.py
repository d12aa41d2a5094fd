"""How each figure is known: proved, measured, published or modelled.

`txcalc verify --record` keeps what it found for the presets in `presets/proofs.json`: for each quantity a digest of the
figures that were compared, part by part. A figure is called proved only where the digest is that of the ledger at hand,
so that neither a changed description nor a changed formula inherits a proof; an equal description by another name does.
"""

from __future__ import annotations

import json
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from txcalc.errors import InputError
from txcalc.model import Model
from txcalc.sources.presets import folder

MEANING = {
    "proved": "equal to the traced module for every batch and length",
    "measured": "equal to the module at the sizes where it was run",
    "published": "a citation reproduces it",
    "modelled": "none of these",
}

PROMPT: dict[str, Any] = {"batch": 2, "tokens": 7}
DECODE: dict[str, Any] = {"batch": 1, "tokens": 3, "past": 5000}


class Probe(NamedTuple):
    """The ledger's quantity that is recorded, and the workloads whose figures tell its formulas apart."""

    quantity: str
    workloads: tuple[dict[str, Any], ...]


RECORDED = {
    "params": Probe("params", (PROMPT,)),
    "flops": Probe("flops", (PROMPT,)),
    "flops with cache": Probe("flops", (DECODE,)),
    "training flops": Probe("flops", (PROMPT,)),
    "cache": Probe("cache", (PROMPT, DECODE)),
    "saved, fused attention": Probe("saved", (PROMPT,)),
    "saved, attention matrix kept": Probe("saved", ({**PROMPT, "keep_scores": True},)),
}


class Known(NamedTuple):
    """A word of `MEANING`, and where it holds: "all B, T ≥ 2"."""

    how: str
    where: str


def digest(model: Model, recorded: str) -> str:
    """The figures of a recorded quantity, part by part and at sizes that tell formulas apart."""
    probe = RECORDED[recorded]
    figures = [
        [(entry.path, entry.times, getattr(entry, probe.quantity)) for entry in model.ledger(**workload)]
        for workload in probe.workloads
        if model.kind not in ("encoder", "vision") or "past" not in workload
    ]
    return sha256(json.dumps(figures).encode()).hexdigest()[:16]


def proofs_file() -> Path:
    """Where what was proved of the presets is kept."""
    return folder() / "proofs.json"


@cache
def _proofs() -> dict[tuple[str, str], Known]:
    """By quantity and digest."""
    try:
        stored = json.loads(proofs_file().read_text())["presets"]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError) as error:
        raise InputError(str(proofs_file()), [f"cannot be read: {error}"]) from None
    return {
        (quantity, proof["digest"]): Known(proof["how"], proof["where"])
        for proofs in stored.values()
        for quantity, proof in proofs.items()
    }


def how_known(model: Model, quantity: str) -> Known:
    """How a figure of a model is known; `quantity` is one of `RECORDED`, or any other that the ledger has.

    Active parameters are as sure as all of them. What has no oracle (masked FLOPs, other FLOPs, traffic) is modelled.
    """
    quantity = "params" if quantity == "active" else quantity
    if quantity in RECORDED and (found := _proofs().get((quantity, digest(model, quantity)))):
        return found
    if quantity == "params" and model.spec["published"] and model.spec["params"] == model.params:
        return Known("published", model.spec["source"])
    return Known("modelled", "")
