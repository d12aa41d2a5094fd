"""How each figure is known: proved, measured, published or modelled.

`txcalc verify --record` keeps what it found for the presets in `presets/proofs.json`: for each quantity a digest of
every leaf that was compared, with all its sizes, and of its figures. A figure is called proved only where the digest is
that of the ledger at hand, so that neither a changed description nor a changed formula inherits a proof; an equal
description by another name does. So it is with towers, which were run beside transformers' modules
(`tests/evidence/tower_flops.py`). Parameters and FLOPs are also proved by structure, for every size (`theorems`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import NODEFAULT, Struct

from txcalc.errors import Fault, InputError, UnknownName
from txcalc.evidence import theorems
from txcalc.evidence.structures import fingerprint
from txcalc.model import Model
from txcalc.parts.structs import defaults
from txcalc.sources.presets import folder

MEANING = {
    "proved": "equal to the traced module for every batch and length",
    "measured": "equal to the module at the sizes where it was run",
    "published": "a citation reproduces it",
    "modelled": "none of these",
}

PROMPT: dict[str, Any] = {"batch": 2, "tokens": 7}
DECODE: dict[str, Any] = {"batch": 1, "tokens": 3, "past": 5000}
FAR: dict[str, Any] = {**DECODE, "past": 3_000_000}  # past every window
SOURCE = 11  # encoder positions: as many as no probe has tokens


# Who can be asked, of `txcalc.verification`: module, function, what it shows.
ORACLES = {
    "parameters": ("parameters", "rows", "every weight's path and shape"),
    "bytes": ("storage", "rows", "bytes of every weight and of the cache, and what the device's allocator has of them"),
    "fvcore": ("macs", "rows", "forward FLOPs, from fvcore's trace"),
    "flops": ("flops", "rows", "forward FLOPs, from PyTorch's counter, for every batch and length"),
    "training": ("flops", "training_rows", "FLOPs of forward and backward, without and with blocks recomputed"),
    "saved": ("saved", "rows", "elements that autograd keeps, with the attention matrix and without"),
    "cache": ("cache", "rows", "elements of the cache and FLOPs after a prompt and after each further token"),
    "mask": ("mask", "rows", "FLOPs of attention's visible pairs, from the masks themselves"),
    "traffic": ("operators", "traffic_rows", "elements that parts read and write, each once"),
    "other": ("operators", "other_rows", "FLOPs of norms, activations, sums and softmax, operator by operator"),
    "memory": ("memory", "rows", "a training step's weights, gradients, optimizer state and kept tensors"),
    "transformers": ("witness", "rows", "the weights of transformers' own module of the same config.json"),
}
# And on a device, of prefill, decode and a training step.
MEASURES = {
    "peak": "the most memory, beside that of fake tensors",
    "time": "of prefill and decode by kind of part, beside the roofline's floor and what is expected",
}


def oracles_of(names: Iterable[str], known: Collection[str]) -> list[str]:
    """The requested oracles. Errors: `UnknownName`."""
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in known:
            raise UnknownName("verify", "oracle", name, [*known], f"one of {', '.join(known)}")
    return wanted


class Probe(NamedTuple):
    """The ledger's quantity that is recorded, and the workloads whose figures tell its formulas apart."""

    quantity: str
    workloads: tuple[dict[str, Any], ...]


RECORDED = {
    "params": Probe("params", (PROMPT,)),
    "flops": Probe("flops", (PROMPT,)),
    "flops with cache": Probe("flops", (DECODE, FAR)),
    "masked flops": Probe("flops_masked", (PROMPT, DECODE, FAR)),
    "training flops": Probe("flops", (PROMPT,)),
    "cache": Probe("cache", (PROMPT, DECODE, FAR)),
    "saved, fused attention": Probe("saved", (PROMPT,)),
    "saved, attention matrix kept": Probe("saved", ({**PROMPT, "keep_scores": True},)),
}


class Evidence(NamedTuple):
    """A word of `MEANING`, and where it holds: "all B, T ≥ 2"."""

    how: str
    where: str


def digest(model: Model, recorded: str) -> str:
    """A digest of every leaf with its sizes and its figures of a recorded quantity: the sizes identify the model, the
    figures the formulas."""
    return digests(model, [recorded])[recorded]


def digests(model: Model, recorded: Iterable[str]) -> dict[str, str]:
    """The same of several quantities."""
    source: dict[str, Any] = {"source": SOURCE} if model.has_encoder_apart and not model.reads_no_ids else {}
    walked: dict[str, list[tuple[str, str, Any]]] = {}
    found = {}
    for name in recorded:
        figures = []
        for workload in RECORDED[name].workloads:
            if "past" in workload and not model.decodes:
                continue
            if (key := repr(workload)) not in walked:
                walked[key] = [
                    (entry.path, repr((_sizes(entry.leaf), entry.times, entry.runs, entry.work)), entry)
                    for entry in model.ledger(**workload, **source)
                ]
            quantity = RECORDED[name].quantity
            figures.append([(path, sizes, getattr(entry, quantity)) for path, sizes, entry in walked[key]])
        found[name] = fingerprint(figures)
    return found


def _sizes(value: Any) -> Any:
    """A leaf as its class and the fields that are not at their defaults."""
    if not isinstance(value, Struct):
        return value
    usual = defaults(type(value))
    sizes = [(name, getattr(value, name)) for name in value.__struct_fields__]
    return type(value).__name__, [(name, _sizes(n)) for name, n in sizes if n is not usual.get(name, NODEFAULT)]


def proofs_file() -> Path:
    """Where what was proved of the presets is kept."""
    return folder() / "proofs.json"


@cache
def recorded_proofs() -> dict[tuple[str, str], Evidence]:
    """By quantity and digest."""
    try:
        stored = json.loads(proofs_file().read_text())
        found = {
            (quantity, proof["digest"]): Evidence(proof["how"], proof["where"])
            for proofs in (*stored["presets"].values(), *stored.get("towers", {}).values())
            for quantity, proof in proofs.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(str(proofs_file()), [f"cannot be read: {error}"]) from None
    faults: list[Fault | str] = [
        Fault(f"{quantity}, {mark}", list(known), 'how is "proved" or "measured", and where a text')
        for (quantity, mark), known in found.items()
        if quantity not in RECORDED or known.how not in ("proved", "measured") or not isinstance(known.where, str)
    ]
    if faults:
        raise InputError(str(proofs_file()), faults)
    return found


def how_known(model: Model, quantity: str) -> Evidence:
    """How a figure of a model is known; `quantity` is one of `RECORDED`, or any other that the ledger has.

    Active parameters are as sure as all of them. What has no oracle (other FLOPs, traffic) is modelled.
    """
    return all_known(model, {quantity: quantity})[quantity]


def all_known(model: Model, quantities: Mapping[str, str]) -> dict[str, Evidence]:
    """The same of several, by the names that they are asked by."""
    inherited: dict[str, tuple[str, str]] | None = None
    found = {}
    asks = {name: "params" if asked == "active" else asked for name, asked in quantities.items()}
    marks = digests(model, [asked for asked in asks.values() if asked in RECORDED])
    for name, quantity in asks.items():
        known = recorded_proofs().get((quantity, marks[quantity])) if quantity in marks else None
        if (known is None or known.how != "proved") and quantity.startswith(tuple(theorems.FIGURES)):
            inherited = theorems.inheritance(model) if inherited is None else inherited
            own = Evidence(*inherited[quantity]) if quantity in inherited else None
            known = own if known is None or (own and own.how == "proved") else known
        if known is None and quantity == "params" and model.spec["published"] and model.spec["params"] == model.params:
            known = Evidence("published", model.spec["source"])
        found[name] = known or Evidence("modelled", "")
    return found
