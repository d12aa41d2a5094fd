"""Forgetting attention: see `parts.mixers.forgetting`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from txcalc.parts.mixers import forgetting as parts
from txcalc.reference.attention import Core
from txcalc.reference.linear import Linear
from txcalc.reference.run import Run, TensorOptions


class ForgetGate(nn.Module):
    """The running sums (B, T, h) of log σ(f), continued from the last cached token's (B, h), if any."""

    def forward(self, f: Tensor, last: Tensor | None) -> Tensor:
        sums = (-F.softplus(-f)).cumsum(1)  # of log σ(f); PyTorch's own also saves a buffer
        return sums if last is None else sums + last.unsqueeze(1)


class ForgettingCore(Core):
    """The core of `ForgettingAttention`: scores plus the summed log-gates between their tokens."""

    def __init__(self, part: parts.ForgettingCore) -> None:
        super().__init__(part.span, part.d_qk**-0.5)

    def last(self, run: Run) -> Tensor | None:
        """The sums of the last cached token."""
        cached = run.recall(self.place)
        return None if cached is None else cached[2][:, -1]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sums: Tensor, run: Run) -> Tensor:
        """`sums` (B, S, h) of all keys; the last T belong to the queries."""
        query_sums = sums[:, sums.shape[1] - q.shape[1] :]
        forgotten = query_sums.transpose(1, 2).unsqueeze(3) - sums.transpose(1, 2).unsqueeze(2)  # (B, h, T, S)
        return self.attend(q, k, v, run, forgotten)


class ForgettingAttention(nn.Module):
    """q, k, v, the forget gates, the core and o."""

    def __init__(self, part: parts.ForgettingAttention, like: TensorOptions) -> None:
        super().__init__()
        d_model, pairs = part.d_model, part.n_kv_heads * part.d_head
        self.q = Linear(d_model, part.n_heads * part.d_head, False, like)
        self.k, self.v = Linear(d_model, pairs, False, like), Linear(d_model, pairs, False, like)
        self.f = Linear(d_model, part.n_heads, True, like)
        self.forget, self.core = ForgetGate(), ForgettingCore(part.core)
        self.o = Linear(part.n_heads * part.d_head, d_model, False, like)
        self.width = part.d_head

    def forward(self, x: Tensor, run: Run) -> Tensor:
        q, k, v = (side(x).unflatten(-1, (-1, self.width)) for side in (self.q, self.k, self.v))
        sums = self.forget(self.f(x), self.core.last(run))
        return self.o(self.core(q, *self.core.extend(run, k, v, sums), run))
