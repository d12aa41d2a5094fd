"""A Transformer block whose weights several layers share: see `parts.shared`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txcalc.parts import shared as parts
from txcalc.parts.linear import Linear as LinearPart
from txcalc.reference.attention import AttentionCore, Rotary
from txcalc.reference.feedforward import FeedForward
from txcalc.reference.linear import Linear, Norm, Sum
from txcalc.reference.run import Run, TensorOptions


class SharedBlock(nn.Module):
    """A shared block; a layer's mixer reads its output added to x (B, T, D)."""

    def __init__(self, part: parts.SharedBlock, like: TensorOptions) -> None:
        super().__init__()
        self.norm = Norm(part.norm, like)
        for child in part.parts:
            if isinstance(child.part, LinearPart):
                self.add_module(child.name, Linear(child.part.d_in, child.part.d_out, child.part.bias, like))
            elif child.name.endswith("_sum"):
                self.add_module(child.name, Sum())
        self.rotary = Rotary(part.rotary) if part.rotary else None
        self.core = AttentionCore(part.core, like)
        self.feed_forward_norm = Norm(part.feed_forward_norm, like)
        self.feed_forward = FeedForward(part.feed_forward, like)
        self.lender, self.width = part.lender, part.core.d_qk
        self.borrowed = {  # path → weights owned by another layer
            path
            for path, _ in self.named_parameters()
            if path.split(".")[0] != "out" and not path.split(".")[0].endswith(("_down", "_up"))
        }

    def borrow(self, owner: SharedBlock) -> None:
        """Uses the weights that another layer owns."""
        for path in self.borrowed:
            module, _, name = path.rpartition(".")
            setattr(self.get_submodule(module), name, owner.get_parameter(path))

    def forward(self, x: Tensor, run: Run) -> Tensor:
        assert run.first is not None
        u = self.norm(torch.cat((x, run.first), -1))
        q, k, v = (self._project(name, u).unflatten(-1, (-1, self.width)) for name in ("q", "k", "v"))
        if self.rotary is not None:
            q, k = self.rotary(q, run), self.rotary(k, run)
        y = self._product("o", self.core(q, *self.core.extend(run, k, v), run))
        y = self._feed_forward(self.feed_forward_norm(y), run)
        return self._product("out", y)

    def _feed_forward(self, x: Tensor, run: Run) -> Tensor:
        if "gate_up_down" not in self._modules:
            output: Tensor = self.feed_forward(x, run)
            return output
        inner = self.feed_forward
        assert inner.gate is not None
        products = inner.gate(x), inner.up(x)
        gate_up = self._add_adapter("gate_up", torch.cat(products, -1), x)
        gate, up = gate_up.split([side.shape[-1] for side in products], -1)
        return inner.down(inner.activation(gate, up))

    def _project(self, name: str, x: Tensor) -> Tensor:
        y = self._product(name, x)
        return y if f"{name}_down" not in self._modules else self._add_adapter(name, y, x)

    def _add_adapter(self, name: str, y: Tensor, x: Tensor) -> Tensor:
        """y plus the adapter's output for the product's input x."""
        output: Tensor = self.get_submodule(f"{name}_sum")(
            y, self._product(f"{name}_up", self._product(f"{name}_down", x))
        )
        return output

    def _product(self, name: str, x: Tensor) -> Tensor:
        y: Tensor = self.get_submodule(name)(x)
        return y
