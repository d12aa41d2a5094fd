"""Active parameters: the experts' weights that one token reads, by every operator's operands."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from txcalc.evidence import theorems
from txcalc.evidence.theorems import QuantityEvidence, Unit
from txcalc.ledger import Entry
from txcalc.num import Num
from txcalc.reference import modules
from txcalc.verification.sizes import inputs, measured_at, refusing_symbols
from txcalc.verification.symbolic import NotForAll
from txcalc.verification.verdict import CheckedRow, compare

ORACLE = "weights that a token reads"
QUANTITY = "active"


class _Reads(TorchDispatchMode):
    """The storages that operators read."""

    def __init__(self) -> None:
        super().__init__()
        self.storages = set[int]()

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        for value in torch.utils._pytree.tree_leaves((args, kwargs)):
            if isinstance(value, torch.Tensor):
                self.storages.add(value.untyped_storage()._cdata)
        return func(*args, **(kwargs or {}))


def measure_active(unit: Unit) -> tuple[dict[str, QuantityEvidence], list[CheckedRow]]:
    """At two sizes of everything: one token through the module, with its router's own choice."""
    if not any(entry.routed for entry in theorems.ledger(unit.over(unit.values), 1, 1, 1)):
        raise NotForAll("it has no experts: all its parameters are active")
    rows: list[CheckedRow] = []
    probe = theorems.probe(unit)
    for values in (probe, dict(zip(probe, reversed(probe.values()), strict=True))):
        with refusing_symbols():
            rows += _read_weights(unit, _whole_groups(unit, values))
    where = f"at {len({row.where for row in rows})} sizes"
    return {QUANTITY: measured_at(unit, QUANTITY, where)}, rows


def _whole_groups(unit: Unit, values: dict[str, int]) -> dict[str, int]:
    """Sizes at which groups of experts are equally large, each as large as the number that is chosen."""
    groups = max((layer.experts.n_groups or 1 for layer in unit.description.layers if layer.experts), default=1)
    chosen = values.get("experts.top_k", 1)
    idle = {"experts.idle": chosen * (groups - 1)} if groups > 1 and "experts.idle" in values else {}
    return {**values, **idle}


def _read_weights(unit: Unit, values: dict[str, int]) -> list[CheckedRow]:
    root = unit.over(values)
    net = modules(root, torch.device("cpu"), torch.float32)
    with torch.no_grad():
        for weight in net.parameters():
            weight.zero_()
    ids_read = [torch.zeros(ids.shape, dtype=ids.dtype) for ids in inputs(unit, values, (1, 1, 1), int)]
    with torch.no_grad(), _Reads() as reads:
        net(*ids_read)
    active_params: dict[str, int] = {}
    for name, weight in net.named_parameters():
        if ".routed." in name and weight.untyped_storage()._cdata in reads.storages:
            path = name.rpartition(".")[0]
            active_params[path] = active_params.get(path, 0) + weight.numel()
    where = ", ".join(f"{name} = {value}" for name, value in values.items() if "experts" in name or "top_k" in name)
    return list(compare(theorems.ledger(root, 1, 1, 1), _active, active_params, QUANTITY, ORACLE, where))


def _active(entry: Entry) -> Num:
    return entry.active if entry.routed else 0
