"""A PyTorch module as a model: its parameters, and FLOPs measured at each requested length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from txcalc.description import Description
from txcalc.errors import Fault, InputError
from txcalc.frames import html
from txcalc.ledger import QUANTITIES, Entry, Ledger, PathStep
from txcalc.model import Model
from txcalc.num import Num, whole
from txcalc.parts.model import Root
from txcalc.parts.part import Child, Leaf, MatMul, Operation, Traffic, Weight, Workload
from txcalc.verification import flops
from txcalc.verification.parameters import sizes_by_module
from txcalc.verification.trace import MAX_SIZE, Input, accepted_inputs, module, run_module, user_code, zeros_for


def measured_model(source: nn.Module) -> Model:
    """The model of a module that takes token ids or vectors. Errors: `InputError`, `Refuted` if data decides."""
    net = module(source)
    (takes,) = accepted_inputs(net)
    name = type(source).__name__
    note = f"{name} is measured, not described: its parameters, and its FLOPs at each requested length"
    tree, description = NoTree(name=name), NoDescription.of({"name": name})
    return MeasuredModel(name, tree, NoTables(name), description, "a module", (), (note,), net=net, takes=takes)


def refuse(name: str) -> InputError:
    """The fault of asking for more than parameters and FLOPs."""
    mend = "load its config or a description for more; txcalc.trace(module) has formulas"
    return InputError(name, [f"is measured: only its parameters and FLOPs are known ({mend})"])


class NoDescription(Description):
    """The description of a measured module: only a name. Errors: `InputError` for any other key."""

    def __getattr__(self, key: str) -> Any:
        raise AttributeError(key) if key.startswith("__") else refuse(self.name)


class NoTables(Mapping[str, Num]):
    """The tables of a measured module's description, which has none. Errors: `InputError` for every access."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, key: str) -> Any:
        raise refuse(self.name)

    def __iter__(self) -> Iterator[str]:
        raise refuse(self.name)

    def __len__(self) -> int:
        raise refuse(self.name)


class NoTree(Root):
    """The part tree of a measured module, which has none. Errors: `InputError`."""

    name: str

    def children(self) -> Iterator[Child]:
        raise refuse(self.name)


class MeasuredLeaf(Leaf):
    """A module's own parameters, as one weight, and its measured multiply-adds, as one product."""

    elements: int
    products: int

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("weights", (self.elements,)),)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        return (MatMul("measured", self.products, 1, 1, 1, Traffic()),)


class MeasuredLedger(Ledger):
    """Parameters and FLOPs by module, under one workload."""

    known = MappingProxyType({name: QUANTITIES[name] for name in ("params", "flops")})


class MeasuredModel(Model, frozen=True):
    """A module on meta, and its inputs."""

    net: nn.Module | None = None
    takes: Input | None = None
    kind = "a measured module"
    context = None
    usual_tokens = 2048  # as for a model whose context is unknown

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MeasuredModel) and self.net is other.net

    def __hash__(self) -> int:
        return id(self.net)

    __repr__ = Model.__repr__

    def _repr_html_(self) -> str:
        return html(
            repr(self)[1:-1], [{"part": path or "itself", "parameters": n} for path, n in self._own_params.items()]
        )

    def set(self, changes: Mapping[str, Num] | None = None, /, **sizes: object) -> Model:
        """Itself, since it has no keys. Errors: `InputError` for any key."""
        if changes or sizes:
            raise InputError(self.name, [f"is measured as it is: it has no {', '.join({**(changes or {}), **sizes})}"])
        return self

    @cached_property
    def _own_params(self) -> Mapping[str, int]:
        """The parameters of every module that has any, a shared one once."""
        assert self.net is not None
        return sizes_by_module(self.net)

    @cached_property
    def params(self) -> int:
        """Parameters, a shared one once."""
        return sum(self._own_params.values())

    def encoded(self, tokens: Num) -> Any:
        """The encoder's tokens: a measured module has no separate encoder."""
        return tokens

    def counted(self, work: Workload, bits: tuple[int, int, int]) -> Ledger:
        """Parameters and FLOPs by module, measured in a forward pass on the meta device.

        Errors: `InputError`, also for other lengths and conventions; `Refuted` for data-dependent code."""
        assert self.net is not None and self.takes is not None
        batch, tokens, past = work[:3]
        faults = [
            Fault(name, size, f"a whole number to {MAX_SIZE:,}, one at a time")
            for name, size in (("batch", batch), ("tokens", tokens), ("past", past))
            if not whole(size) or size > MAX_SIZE
        ]
        if faults:
            raise InputError(self.name, faults)
        if work != Workload(batch, tokens, 0, tokens):
            raise refuse(self.name)
        tensor = zeros_for(self.takes, {"B": batch, "T": tokens}, "meta")
        with torch.no_grad(), user_code():
            counter = flops.count(self.net, partial(run_module, self.name, self.net, [self.takes], [tensor]))
        if counter.uncounted:
            names = ", ".join(sorted({name for names in counter.uncounted.values() for name in names}))
            raise InputError(self.name, [f"runs operators without a FLOP count: {names} (txcalc.trace names them)"])
        paths = [
            path for path, _ in self.net.named_modules() if self._own_params.get(path) or counter.by_module.get(path)
        ]
        return MeasuredLedger([self._entry(path, int(counter.by_module.get(path, 0)), work) for path in paths], work)

    def _entry(self, path: str, cost: int, work: Workload) -> Entry:
        steps = tuple(PathStep(name, None, 1, 1) for name in path.split(".") if name)
        leaf = MeasuredLeaf(elements=self._own_params.get(path, 0), products=cost // 2)
        return Entry(steps, leaf, "other", work, 1, 1, 1)
