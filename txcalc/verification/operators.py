"""Traffic and other FLOPs of each part, from every operator that it runs.

A part is one kernel: it reads each external tensor once and writes its outputs; intermediates stay on chip. It reads
only the looked-up rows of a table. Ids, masks and rotary tables, which all sequences share, do not count. FLOPs are
those of `RESULT` per result, or of `READ` per input element of a reduction; one result per row does not count.

Parts are verified if their formulas describe the module as written (`traffic_of`, `computed_by`). Others depend on
kernels and are only modelled: cores except q, k, v, y and the softmax, token dispatch and the choice of experts whose
weights are read, recurrent mixers, absorbed MLA, partial rotary embedding, shared positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import sympy
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from txcalc.ledger import Entry, Ledger
from txcalc.parts.part import Leaf
from txcalc.reference import tracing
from txcalc.reference.linear import Sum as SumModule
from txcalc.verification.subject import SizePoint, Subject
from txcalc.verification.symbolic import B, OneSize, Symbols
from txcalc.verification.tracker import Tracker
from txcalc.verification.verdict import ROUTED, CheckedRow, compare, module_paths

ORACLE = "TorchDispatchMode"
# FLOPs of an operator per element of its result, and of a reduction per element that it reads.
RESULT = {
    "add": 1, "sub": 1, "mul": 1, "div": 1, "neg": 1, "pow": 1, "square": 1, "addmm": 1, "relu": 1, "tanh": 1,
    "sigmoid": 3, "silu": 4, "softplus": 2, "_softmax": 5,
}  # fmt: skip
READ = {"mean": 1, "sum": 1}


class MovedElements(TorchDispatchMode):
    """Elements that each module reads (`read`) and writes (`written`), by tensor, and FLOPs of its operators."""

    def __init__(self, net: nn.Module, symbols: Symbols | OneSize) -> None:
        super().__init__()
        self.tracker, self.symbols = Tracker(net), symbols
        self.names = {module: name for name, module in net.named_modules()}
        self.weights = {parameter.untyped_storage()._cdata for parameter in net.parameters()}
        self.read: dict[str, dict[tuple[int, int, str], Any]] = {}
        self.written: dict[str, dict[tuple[int, int], Any]] = {}
        self.computed: dict[str, dict[str, Any]] = {}
        self.tables: set[str] = set()  # modules that read tensors shared by all sequences
        self.calls = Counter[str]()  # by module; each call is one kernel
        self._producers: dict[int, tuple[str, int]] = {}
        self._storages: dict[int, object] = {}  # kept alive, so that no address is reused
        self._hooks: list[Any] = []

    def __enter__(self) -> Any:
        self._hooks = [register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave)]
        self.tracker.__enter__()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.tracker.__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)]
        outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        before = {self._address(x) for x in inputs}
        if all(self._address(x) in before for x in outputs):
            return result  # a view
        name, path = func.overloadpacket.__name__, self.tracker.path
        looked_up = outputs if name == "embedding" else None
        for x in inputs:
            self._record_read(path, x, looked_up)
        for x in outputs:
            self._producers[self._address(x)] = path, self.calls[path]
        computed = self.computed.setdefault(path, {})
        computed[name] = computed.get(name, 0) + self._cost(name, (args, kwargs or {}), inputs, outputs)
        return result

    def _address(self, x: Tensor) -> int:
        storage = x.untyped_storage()
        self._storages.setdefault(storage._cdata, storage)
        return int(storage._cdata)

    def _elements(self, x: Tensor) -> Any:
        """The elements of a tensor; of one that is expanded, those of its storage."""
        if any(isinstance(step, int) and step == 0 for step in x.stride()):
            return sympy.sympify(self.symbols.read(x.untyped_storage().nbytes())) / x.dtype.itemsize
        return sympy.sympify(self.symbols.read(x.numel()))

    def _record_read(self, path: str, x: Tensor, looked_up: list[Tensor] | None) -> None:
        address = self._address(x)
        weight = address in self.weights
        if weight and f".{ROUTED}." in path:
            return  # which experts' weights are read depends on routing
        elements = self._elements(looked_up[0] if looked_up and weight else x)
        call = self.calls[path]
        if self._producers.get(address) == (path, call) or not x.dtype.is_floating_point:
            return
        if not (weight or elements.has(B)):
            self.tables |= {path} if elements != 1 else set()
            return
        reads = self.read.setdefault(path, {})
        key = address, call, str(x.storage_offset())  # two slices of one tensor count as two
        if not (reads.setdefault(key, elements) - elements).is_nonnegative:
            reads[key] = elements

    def _enter(self, module: nn.Module, _: object) -> None:
        self.calls[self.names.get(module, "")] += 1

    def _leave(self, module: nn.Module, _: object, output: object) -> None:
        path = self.names.get(module, "")
        call = path, self.calls[path]
        for x in tree_leaves(output):
            if isinstance(x, Tensor) and self._producers.get(self._address(x)) == call:
                self.written.setdefault(path, {})[self._address(x), call[1]] = self._elements(x)

    def _cost(self, name: str, args: Any, inputs: list[Tensor], outputs: list[Tensor]) -> Any:
        """FLOPs; 0 for one result per row, and for results shared by all sequences."""
        name = name.removesuffix("_")
        elements = self._elements(inputs[0] if name in READ and inputs else outputs[0])
        per_row = isinstance(outputs[0].shape[-1], int) and outputs[0].shape[-1] == 1 if outputs[0].dim() else True
        if not elements.has(B) or (per_row and name not in READ):
            return 0
        if name == "native_layer_norm":  # mean, subtract, square, mean, scale; and its weight and bias
            return elements * (5 + sum(x is not None for x in args[0][2:4]))
        if name == "gelu":
            return elements * (9 if "tanh" in tree_leaves(args) else 5)
        return elements * (READ.get(name) or RESULT.get(name, 0))

    def traffic(self) -> dict[str, Any]:
        """Path → elements read and written."""
        tables = (self.read, self.written)
        paths = {*self.read, *self.written}
        return {path: sympy.expand(sum(n for table in tables for n in table.get(path, {}).values())) for path in paths}


def traffic_of(entry: Entry) -> Any:
    """Elements that one kernel for a leaf reads and writes; None if the module as written does not show them."""
    if entry.work is None or not entry.leaf.traffic_exact or _partly_rotated(entry.leaf):
        return None
    moved = entry.traffic
    streamed = moved.activations + moved.cache - entry.leaf.on_chip(entry.work) * entry.runs
    return streamed if entry.routed else moved.weights + streamed


def computed_by(entry: Entry) -> tuple[Any, Callable[[str], bool]] | None:
    """FLOPs of a leaf outside matrix products, and the operators of its module that compute them; None as in
    `traffic_of`."""
    if entry.leaf.operators_exact == "softmax":
        softmax = [operation.flops_other for operation in entry.operations if operation.name == "softmax"]
        return sum(softmax) * entry.runs, lambda name: name == "_softmax"
    if entry.leaf.operators_exact != "all" or _partly_rotated(entry.leaf):
        return None
    return entry.flops_other, lambda _: True


def _partly_rotated(leaf: Leaf) -> bool:
    rotated = leaf.rotated_dims  # one channel of an odd width is not rotated
    return bool(rotated and (rotated[0] != rotated[1] or rotated[0] % 2))


def traffic_rows(subject: Subject) -> Iterator[CheckedRow]:
    """Elements that parts read and write."""
    yield from _rows(subject, "traffic", lambda entry: (traffic_of(entry), None))


def other_rows(subject: Subject) -> Iterator[CheckedRow]:
    """FLOPs of parts outside matrix products."""
    yield from _rows(subject, "other flops", lambda entry: computed_by(entry) or (None, None))


@lru_cache(maxsize=1)  # both oracles use the same trace
def _trace(subject: Subject) -> tuple[Ledger, MovedElements]:
    """The reads, writes and FLOPs of every operator of a pass, and the ledger at its sizes."""

    def trace(symbols: Symbols | OneSize, letters: SizePoint) -> tuple[Ledger, MovedElements]:
        with tracing(), symbols.mode, torch.no_grad():
            moved = MovedElements(subject.thin_net, symbols)
            with moved:
                subject.thin_net(*symbols.inputs)
        symbols.domain()
        return subject.ledger(letters), moved

    return subject.trace(trace, "traffic and other FLOPs")


def _rows(subject: Subject, quantity: str, figure: Any) -> Iterator[CheckedRow]:
    ledger, moved = _trace(subject)
    net, symbols = subject.thin_net, moved.symbols
    claims = {entry: figure(entry) if _comparable(entry, ledger, net, moved) else (None, None) for entry in ledger}
    claimed = Ledger((entry for entry, (value, _) in claims.items() if value is not None), ledger.work)
    measured = moved.traffic() if quantity == "traffic" else _flops_of_operators(claimed, claims, moved.computed)
    paths = {path for entry in claimed for path in module_paths(entry, True)}
    measured = {path: value for path, value in subject.expand_layers(measured).items() if path in paths}
    where, for_all = symbols.domain(), symbols.for_all
    for row in compare(claimed, lambda entry: claims[entry][0], measured, quantity, ORACLE, where, for_all):
        if row.path:  # not the total
            yield row
    kinds = {entry.leaf.label for entry in ledger if entry.work is not None}
    if unclaimed := sorted(kinds - {entry.leaf.label for entry in claimed}):
        subject.notes.append(f"{quantity}: modelled, not compared: {', '.join(unclaimed)}")


def _comparable(entry: Entry, ledger: Ledger, net: nn.Module, moved: MovedElements) -> bool:
    """Whether a leaf processes each sequence's data, and its module does what the part describes: a `Sum` may stand
    for a scale, or for an addition without a module."""
    leaf = entry.leaf
    if entry.work is None or entry.work.batch != ledger.work.batch:
        return False
    keys = leaf.mask_span.keys(entry.work) if leaf.mask_span else leaf.attended and entry.work.keys
    if 1 in (leaf.columns, keys):
        return False  # one number per row: left out
    path = module_paths(entry, True)[0]
    if path in moved.tables and not entry.leaf.reads_places:
        return False
    module = dict(net.named_modules()).get(path)
    added = isinstance(module, SumModule) and module.scale is None
    return entry.leaf.additions is None or (added and moved.calls[path] == entry.leaf.additions)


def _flops_of_operators(
    ledger: Ledger, claims: Mapping[Entry, Any], computed: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """FLOPs of the operators that a leaf claims."""
    flops = {}
    for entry in ledger:
        for path in module_paths(entry, True):
            by_operator = computed.get(path, {})
            flops[path] = sympy.expand(sum(value for name, value in by_operator.items() if claims[entry][1](name)))
    return flops
