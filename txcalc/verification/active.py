"""Active parameters: the expert weights among the operands of all operators that one token runs."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from txcalc.evidence import theorems
from txcalc.evidence.theorems import QuantityEvidence, Unit
from txcalc.reference import modules
from txcalc.verification.sizes import inputs, measured_at, refusing_symbols
from txcalc.verification.symbolic import NotForAll
from txcalc.verification.verdict import CheckedRow, compare

ORACLE = "weights that a token reads"
QUANTITY = "active"
TOKEN = (1, 1, 1)  # a sequence of a token, also of a source


class _ReadStorages(TorchDispatchMode):
    """Records the storages that operators read."""

    def __init__(self) -> None:
        super().__init__()
        self.storages = set[int]()

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        for value in torch.utils._pytree.tree_leaves((args, kwargs)):
            if isinstance(value, torch.Tensor):
                self.storages.add(value.untyped_storage()._cdata)
        return func(*args, **(kwargs or {}))


def measure_active(unit: Unit) -> tuple[dict[str, QuantityEvidence], list[CheckedRow]]:
    """Runs one token through the module, routed by the module's own router, at two assignments of sizes."""
    if not any(entry.routed for entry in theorems.ledger(unit.over(unit.values), *TOKEN)):
        raise NotForAll("it has no experts: all its parameters are active")
    rows: list[CheckedRow] = []
    probe = theorems.probe(unit)
    for values in (probe, dict(zip(probe, reversed(probe.values()), strict=True))):
        with refusing_symbols():
            rows += _read_weights(unit, _equal_groups(unit, values))
    where = f"at {len({row.where for row in rows})} sizes"
    return {QUANTITY: measured_at(unit, QUANTITY, where)}, rows


def _equal_groups(unit: Unit, values: dict[str, int]) -> dict[str, int]:
    """Sizes at which every group of experts has `top_k` experts."""
    groups = max((layer.experts.n_groups or 1 for layer in unit.description.layers if layer.experts), default=1)
    top_k = values.get("experts.top_k", 1)
    idle = {"experts.idle": top_k * (groups - 1)} if groups > 1 and "experts.idle" in values else {}
    return {**values, **idle}


def _read_weights(unit: Unit, values: dict[str, int]) -> list[CheckedRow]:
    root = unit.over(values)
    net = modules(root, torch.device("cpu"), torch.float32)
    for weight in net.parameters():
        weight.detach().zero_()
    zero_ids = [torch.zeros(ids.shape, dtype=ids.dtype) for ids in inputs(unit, values, TOKEN, int)]
    with torch.no_grad(), _ReadStorages() as reads:
        net(*zero_ids)
    active_params: dict[str, int] = {}
    for name, weight in net.named_parameters():
        if ".routed." in name and weight.untyped_storage()._cdata in reads.storages:
            path = name.rpartition(".")[0]
            active_params[path] = active_params.get(path, 0) + weight.numel()
    where = ", ".join(f"{name} = {value}" for name, value in values.items() if "experts" in name or "top_k" in name)
    ledger = theorems.ledger(root, *TOKEN).where(lambda entry: entry.routed)
    return list(compare(ledger, lambda entry: entry.active, active_params, QUANTITY, ORACLE, where))
