"""Pooling by attention: see `parts.pooling`."""

from __future__ import annotations

from msgspec.structs import replace
from torch import Tensor, nn

from txcalc.parts import pooling as parts
from txcalc.reference.attention import AttentionCore
from txcalc.reference.feedforward import FeedForward
from txcalc.reference.linear import Linear, Norm, Sum, Vector
from txcalc.reference.run import Run, TensorOptions


class AttentionPool(nn.Module):
    """A vector (B, D) from positions (B, T, D), by attention with a learned query."""

    def __init__(self, part: parts.AttentionPool, like: TensorOptions) -> None:
        super().__init__()
        width, inner = part.d_model, part.core.n_heads * part.core.d_qk
        self.probe = Vector(width, like)
        self.q, self.k, self.v = (Linear(width, inner, True, like) for _ in range(3))
        self.o = Linear(inner, width, True, like)
        self.core = AttentionCore(part.core, like)
        self.norm = Norm(part.norm, like)
        self.feed_forward = FeedForward(part.feed_forward, like)
        self.residual = Sum()
        self.width = part.core.d_qk

    def forward(self, x: Tensor, run: Run) -> Tensor:
        probe_run = replace(run, cache=None, bias=None, positions=run.positions[:1])
        q = self.q(self.probe.weight.expand(x.shape[0], 1, -1))
        q, k, v = (y.unflatten(-1, (-1, self.width)) for y in (q, self.k(x), self.v(x)))
        y: Tensor = self.o(self.core(q, k, v, probe_run))[:, 0]
        pooled: Tensor = self.residual(y, self.feed_forward(self.norm(y), probe_run))
        return pooled
