"""Attributes operators to modules: in forward the innermost running one, in backward the one that created the autograd
node."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class Tracker:
    """A context in which `path` is the innermost running module; "" for the root, and outside all modules.

    Replaces the tracker of `FlopCounterMode`, which also charges all parents, and is wrong in backward if one tensor is
    the input of several modules. Here backward is exact: autograd numbers its nodes in the order in which forward
    creates them, so a node's number identifies the module. Recomputation (checkpointing) runs under its modules like
    any forward, on CUDA in another thread with other numbers.
    """

    def __init__(self, net: nn.Module) -> None:
        self._names = {module: name for name, module in net.named_modules()}
        self._stack: list[str] = []
        self._numbers: list[int] = [0]
        self._paths: list[str] = [""]
        self._hooks: list[Any] = []

    @property
    def path(self) -> str:
        if self._stack:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        return self._paths[bisect_right(self._numbers, node._sequence_nr()) - 1]

    @property
    def parents(self) -> set[str]:
        """The modules that `FlopCounterMode` charges: only the innermost."""
        return {self.path}

    def _mark(self) -> None:
        if torch._C._current_autograd_node() is not None:
            return
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._paths.append(self._stack[-1] if self._stack else "")

    def _enter(self, module: nn.Module, _: object) -> None:
        if module in self._names:
            self._stack.append(self._names[module])
            self._mark()

    def _leave(self, module: nn.Module, *_: object) -> None:
        if module in self._names:
            self._stack.pop()
            self._mark()

    def __enter__(self) -> Tracker:
        self._hooks = [register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave)]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
