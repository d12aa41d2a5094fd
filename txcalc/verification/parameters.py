"""Every weight of the modules, by path and shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from txcalc.verification.subject import Subject
from txcalc.verification.verdict import CheckedRow, compare, module_paths

ORACLE = "torch.nn"


def owned(net: nn.Module, size: Callable[[Tensor], Any] = Tensor.numel) -> Counter[str]:
    """Path → elements (or a size) of every module's own weights, a shared one once."""
    found: Counter[str] = Counter()
    for name, weight in net.named_parameters():
        found[name.rpartition(".")[0]] += size(weight)
    return found


def rows(subject: Subject) -> Iterator[CheckedRow]:
    """Elements by part; and a row for every weight that has another shape, is missing, or is not described."""
    found = {name: tuple(weight.shape) for name, weight in subject.net.named_parameters()}
    ledger = subject.model.ledger()
    yield from compare(ledger, lambda entry: entry.params, owned(subject.net), "params", ORACLE, for_all=True)
    described = {
        f"{path}.{weight.name}": weight.shape
        for entry in ledger
        for path in module_paths(entry, experts=True)
        for weight in entry.leaf.weights()
    }
    for name in [*described, *(name for name in found if name not in described)]:
        want, got = described.get(name, "nothing"), found.get(name, "nothing")
        if want != got:
            yield CheckedRow(name, "shape", str(want), str(got), False, ORACLE)
