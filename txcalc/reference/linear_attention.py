"""Attention without a softmax, with its states in float32: see `parts.linear_attention`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txcalc.parts import linear_attention as parts
from txcalc.parts.norm import Norm as NormPart
from txcalc.reference.linear import Activation, Linear, Norm
from txcalc.reference.recurrent import run_states, sum_states
from txcalc.reference.run import Cached, Run, TensorOptions, current


class DecayScan(Cached):
    """The state (h, d, d) of linear attention, in float32: y (B, T, h, d) of q, k and v (B, T, h, d).

    `decay` (h) is −log λ of every head: 2^(−8·i/h) of the i-th, from 1 (ALiBi's slopes). Published models shrink it
    with depth; it is no parameter.
    """

    decay: Tensor

    def __init__(self, part: parts.DecayScan, like: TensorOptions) -> None:
        super().__init__()
        heads = torch.arange(1, part.n_heads + 1, device=like.device, dtype=torch.float32)
        self.register_buffer("decay", 2 ** (-8 * heads / part.n_heads))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, run: Run) -> Tensor:
        q, k, value = (side.float() for side in (q, k, v))
        cached = run.recall(self.place)
        if current().static:
            decay = (-self.decay[:, None, None]).expand(*v.shape[:2], -1, -1, -1)
            states = sum_states(decay, k.unsqueeze(-1) * value.unsqueeze(-2), cached[0] if cached else None)
            run.keep(self.place, states[:, -1])
            return (states * q.unsqueeze(-1)).sum(-2).to(v.dtype)
        retained, ys = (-self.decay).exp()[:, None, None], []
        state = cached[0] if cached else torch.zeros((), device=v.device)
        for t in range(v.shape[1]):
            state = retained * state + k[:, t].unsqueeze(-1) * value[:, t].unsqueeze(-2)
            ys.append((state * q[:, t].unsqueeze(-1)).sum(-2))
        run.keep(self.place, state)
        return torch.stack(ys, 1).to(v.dtype)


class GatedScan(nn.Module):
    """y (B, T, h, d_v) of gated linear attention and its last state (B, h, d_k, d_v), of q, k and log λ (B, T, h, d_k)
    and v (B, T, h, d_v)."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
        states = run_states(decay.unsqueeze(-1), k.unsqueeze(-1) * v.unsqueeze(-2), None)
        return (states * (q * q.shape[-1] ** -0.5).unsqueeze(-1)).sum(-2), states[:, -1]


class LinearAttention(nn.Module):
    """Lightning attention."""

    def __init__(self, part: parts.LinearAttention, like: TensorOptions) -> None:
        super().__init__()
        inner = part.n_heads * part.d_head
        self.in_proj = Linear(part.d_model, 3 * inner, False, like)
        self.gate_proj = Linear(part.d_model, inner, False, like)
        self.activation = Activation(part.activation)
        self.scan = DecayScan(parts.DecayScan(n_heads=part.n_heads, d_head=part.d_head), like)
        self.norm = Norm(NormPart(width=inner, form="rms", bias=False, eps=part.norm_eps), like)
        self.gate = Activation("sigmoid")
        self.out_proj = Linear(inner, part.d_model, False, like)
        self.width = part.d_head

    def forward(self, x: Tensor, run: Run) -> Tensor:
        q, k, v = self.activation(self.in_proj(x)).unflatten(-1, (3, -1, self.width)).unbind(2)
        y = self.norm(self.scan(q, k, v, run).flatten(2))
        return self.out_proj(self.gate(self.gate_proj(x), y))
