"""Every weight of the modules, by path and shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from txcalc.verification.subject import Subject
from txcalc.verification.verdict import CheckedRow, compare, module_paths

ORACLE = "torch.nn"


def sizes_by_module(net: nn.Module, size: Callable[[Tensor], Any] = Tensor.numel) -> Counter[str]:
    """Path → elements (or another size) of every module's own weights; a shared weight counts once."""
    sizes: Counter[str] = Counter()
    for name, weight in net.named_parameters():
        sizes[name.rpartition(".")[0]] += size(weight)
    return sizes


def rows(subject: Subject) -> Iterator[CheckedRow]:
    """Elements by part; and a row for every weight with another shape, missing, or not described."""
    shapes = {name: tuple(weight.shape) for name, weight in subject.net.named_parameters()}
    ledger = subject.model.ledger()
    yield from compare(ledger, lambda entry: entry.params, sizes_by_module(subject.net), "params", ORACLE, for_all=True)
    described = {
        f"{path}.{weight.name}": weight.shape
        for entry in ledger
        for path in module_paths(entry, experts=True)
        for weight in entry.leaf.weights()
    }
    for name in [*described, *(name for name in shapes if name not in described)]:
        expected, actual = described.get(name, "nothing"), shapes.get(name, "nothing")
        if expected != actual:
            yield CheckedRow(name, "shape", str(expected), str(actual), False, ORACLE)
