"""Saved tensors and collectives of one rank, recorded by torch's hooks while a step runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from txcalc.reference.run import Run
from txcalc.verification.tracker import Tracker

# torch's names of collectives in its two interfaces, and the argument whose size counts (None: the result): the output
# of a gather, the input of a reduction.
COLLECTIVES = {
    "_allgather_base_": ("all_gather", 0),
    "all_gather_into_tensor": ("all_gather", None),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_tensor": ("reduce_scatter", 0),
    "allreduce_": ("all_reduce", 0),
    "all_reduce": ("all_reduce", 0),
    "all_reduce_": ("all_reduce", 0),
    "all_to_all_single": ("all_to_all", 0),
    "alltoall_base_": ("", 0),  # how many tokens go to each expert
}


def local_shard(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor


def shard_bytes(tensor: Tensor) -> int:
    return local_shard(tensor).numel() * tensor.dtype.itemsize


class SavedStorages:
    """Bytes of the distinct storages that autograd saves, in the modules and in the loss.

    Left out: weights and tensors computed only from weights; ids and boolean masks; tables of positions. A norm's
    statistics are fp32 in CUDA's kernels for any input; the CPU's 16-bit ones are counted as fp32. `saved to route` is
    what experts save to dispatch tokens and weight outputs, which differs between implementations.
    `recomputed_bytes`: what each recomputed module adds while its backward runs.
    """

    def __init__(self) -> None:
        self.bytes = {"saved": 0, "saved by the loss": 0, "saved to route": 0}
        self.recomputed_bytes: Counter[int] = Counter()
        self._runs = 0
        self._seen = dict[int, Any]()
        self._tables = dict[int, Any]()  # kept alive, so that no address is reused

    def watch(self, net: nn.Module) -> None:
        self.tracker, self._modules = Tracker(net), dict(net.named_modules())

    def _pack(self, tensor: Tensor) -> Tensor:
        path, size = self._new(tensor)
        kind = "saved to route" if self._routes(path) else "saved" if path else "saved by the loss"
        self.bytes[kind] += size
        return tensor

    def _routes(self, path: str) -> bool:
        return hasattr(self._modules[path], "_route")

    def _new(self, tensor: Tensor) -> tuple[str, int]:
        """The running module, and the bytes not saved before."""
        shard, path = local_shard(tensor), self.tracker.path
        storage = shard.untyped_storage()
        if storage._cdata in self._seen:
            return path, 0
        self._seen[storage._cdata] = storage
        weights = (local_shard(p).untyped_storage()._cdata for p in self._modules[path].parameters(recurse=False))
        counts = shard.dtype.is_floating_point and shard.dim() > 1
        if not counts or storage._cdata in self._tables or storage._cdata in weights:
            return path, 0
        statistic_in_16_bits = hasattr(self._modules[path], "eps") and shard.shape[-1] == 1 and shard.dtype.itemsize < 4
        return path, storage.nbytes() * (2 if statistic_in_16_bits else 1)

    @contextmanager
    def recomputed(self, _: object) -> Iterator[None]:
        """Records what a recomputation saves; torch's own hooks still pass the tensors to backward."""
        pack, unpack = torch._C._autograd._top_saved_tensors_default_hooks(True)
        self._runs += 1
        number = self._runs

        def counted(tensor: Tensor) -> Any:
            path, size = self._new(tensor)
            self.recomputed_bytes[number] += 0 if self._routes(path) else size
            return pack(tensor)

        with saved_tensors_hooks(counted, unpack):
            yield

    @contextmanager
    def recording(self) -> Iterator[None]:
        build_once, tables = Run.build_once, self._tables

        def recorded(self: Run, key: object, make: Any) -> Tensor:
            table = build_once(self, key, make)
            storage = table.untyped_storage()
            tables[storage._cdata] = storage
            return table

        Run.build_once = recorded  # type: ignore[method-assign]
        try:
            with self.tracker, saved_tensors_hooks(self._pack, lambda tensor: tensor):
                yield
        finally:
            Run.build_once = build_once  # type: ignore[method-assign]


class Collectives(TorchDispatchMode):
    """The number of collectives of each kind, and their bytes: the output of a gather, else the input."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):  # it dispatches its own collectives
            return NotImplemented
        result = function(*args, **(kwargs or {}))
        space, _, operator = str(function).partition(".")
        name = operator.rpartition(".")[0]
        if "c10d" in space and name in COLLECTIVES:
            kind, argument = COLLECTIVES[name]
            if not kind:
                return result
            operand = result if argument is None else args[argument]
            operand = operand[0] if isinstance(operand, (list, tuple)) else operand
            self.counts[kind] += 1
            self.counts[f"{kind} bytes"] += operand.numel() * operand.dtype.itemsize
        elif "c10d" in space and "wait" not in name and "wrap" not in name:
            self.counts[f"unknown {name}"] += 1
        return result
