"""Attention without a softmax, with its states in float32: see `parts.linear_attention`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txcalc.parts import linear_attention as parts
from txcalc.parts.linear import Linear as LinearPart
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


class MatrixScan(Cached):
    """The memory C (h, d_k, d_v), its normaliser n (h, d_k) and their exponent m (h): y (B, T, h, d_v) of q and k
    (B, T, h, d_k), v (B, T, h, d_v), and the logits of both gates (B, T, h)."""

    def __init__(self, part: parts.MatrixScan) -> None:
        super().__init__()
        self.scale = part.d_key**-0.5

    def forward(self, q: Tensor, k: Tensor, v: Tensor, inward: Tensor, keep: Tensor, run: Run) -> Tensor:
        q, k, v, inward, keep = (x.float() for x in (q * self.scale, k, v, inward, F.logsigmoid(keep.float())))
        cached = run.recall(self.place)
        compute = self._sums if current().static else self._steps
        y, state = compute(q, k, v, inward, keep, cached)
        run.keep(self.place, *state)
        return y

    @staticmethod
    def _steps(
        q: Tensor, k: Tensor, v: Tensor, inward: Tensor, keep: Tensor, cached: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        memory = k.new_zeros(*k[:, 0].shape, v.shape[-1]) if cached is None else cached[0]
        normaliser, top = (torch.zeros_like(k[:, 0]), torch.zeros_like(inward[:, 0])) if cached is None else cached[1:]
        ys = []
        for t in range(q.shape[1]):
            high = torch.maximum(keep[:, t] + top, inward[:, t])
            past, now = (keep[:, t] + top - high).exp().unsqueeze(-1), (inward[:, t] - high).exp().unsqueeze(-1)
            update = now * k[:, t]
            memory = past.unsqueeze(-1) * memory + update.unsqueeze(-1) * v[:, t].unsqueeze(-2)
            normaliser, top = past * normaliser + update, high
            numerator, denominator = (memory * q[:, t].unsqueeze(-1)).sum(-2), (normaliser * q[:, t]).sum(-1)
            ys.append(numerator / torch.maximum(denominator.abs(), (-top).exp()).unsqueeze(-1))
        return torch.stack(ys, 1), (memory, normaliser, top)

    @staticmethod
    def _sums(
        q: Tensor, k: Tensor, v: Tensor, inward: Tensor, keep: Tensor, cached: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """`_steps` in closed form, with an exponent of 0."""
        update = inward.exp().unsqueeze(-1) * k
        memory = normaliser = None
        if cached is not None:
            scale = cached[2].exp().unsqueeze(-1)
            memory, normaliser = cached[0] * scale.unsqueeze(-1), cached[1] * scale
        rate = keep.unsqueeze(-1)
        memories = sum_states(rate.unsqueeze(-1), update.unsqueeze(-1) * v.unsqueeze(-2), memory)
        normalisers = sum_states(rate, update, normaliser)
        numerator, denominator = (memories * q.unsqueeze(-1)).sum(-2), (normalisers * q).sum(-1)
        y = numerator / denominator.abs().clamp(min=1).unsqueeze(-1)
        return y, (memories[:, -1], normalisers[:, -1], torch.zeros_like(inward[:, 0]))


class MatrixMemory(nn.Module):
    """An mLSTM layer."""

    def __init__(self, part: parts.MatrixMemory, like: TensorOptions) -> None:
        super().__init__()
        for child in part.parts:
            if isinstance(child.part, LinearPart):
                self.add_module(child.name, Linear(child.part.d_in, child.part.d_out, child.part.bias, like))
        self.scan = MatrixScan(parts.MatrixScan(n_heads=part.n_heads, d_key=part.d_key, d_value=part.d_value))
        self.norm = Norm(part.norm, like)
        self.gate = Activation("sigmoid")
        self.heads, self.cap = part.n_heads, part.cap

    def forward(self, x: Tensor, run: Run) -> Tensor:
        q, k, v = (self.get_submodule(name)(x).unflatten(-1, (self.heads, -1)) for name in ("q", "k", "v"))
        gates = (self._cap(self.get_submodule(f"{name}_gate")(x)) for name in ("input", "forget"))
        y = self.norm(self.scan(q, k, v, *gates, run).to(x.dtype)).flatten(2)
        output: Tensor = self.get_submodule("out_proj")(self.gate(self.get_submodule("gate_proj")(x), y))
        return output

    def _cap(self, x: Tensor) -> Tensor:
        return x if self.cap is None else self.cap * torch.tanh(x / self.cap)
