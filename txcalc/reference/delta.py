"""The delta rule: see `parts.delta`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txcalc.parts import delta as parts
from txcalc.parts.linear import Linear as LinearPart
from txcalc.parts.norm import Norm as NormPart
from txcalc.parts.taps import short_memory
from txcalc.reference.linear import Activation, Convolution, Linear, Norm
from txcalc.reference.recurrent import sum_states
from txcalc.reference.run import Cached, Run, TensorOptions, current


def unit(x: Tensor) -> Tensor:
    """Vectors of length 1, as the kernels of the delta rule make them."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


class DeltaRule(Cached):
    """The state (h, d_k, d_v) of the delta rule, in float32: y (B, T, h, d_v) of q and k (B, T, key heads, d_k),
    v (B, T, h, d_v), the decays' logits (B, T, h, 1 or d_k), and β's (B, T, h).

    In the `static` mode v is written, not v − Sᵀ·k, whose closed form is a triangular system: the same shapes, other
    values.
    """

    def __init__(self, part: parts.DeltaRule, like: TensorOptions) -> None:
        super().__init__()
        self.A_log = like.parameter(part.n_heads)
        self.dt_bias = like.parameter(part.n_heads * part.decays)
        self.group, self.bound = part.n_heads // part.n_key_heads, part.bound
        self.max_beta = 2 if part.signed else 1

    def forward(self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, run: Run) -> Tensor:
        q, k = (unit(side.float()).repeat_interleave(self.group, 2) for side in (q, k))
        q, value = q * q.shape[-1] ** -0.5, v.float()
        decay = self._log_decay(decay.float()).unsqueeze(-1)
        beta = self.max_beta * beta.float().sigmoid().unsqueeze(-1)
        cached = run.recall(self.place)
        state = cached[0] if cached else None
        if current().static:
            update = k.unsqueeze(-1) * (beta * value).unsqueeze(-2)
            states = sum_states(decay, update, state)
            y, state = (states * q.unsqueeze(-1)).sum(-2), states[:, -1]
        else:
            y, state = self._scan(q, k, value, decay.exp(), beta, state)
        run.keep(self.place, state)
        return y.to(v.dtype)

    def _log_decay(self, logits: Tensor) -> Tensor:
        logits = logits + self.dt_bias.float().view(logits.shape[2:])
        rate = self.A_log.float().exp().unsqueeze(-1)
        return -rate * F.softplus(logits) if self.bound is None else self.bound * (rate * logits).sigmoid()

    @staticmethod
    def _scan(
        q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if state is None:
            state = v.new_zeros(*v.shape[:1], *v.shape[2:3], k.shape[-1], v.shape[-1])
        ys = []
        for t in range(v.shape[1]):
            state = decay[:, t] * state
            key = k[:, t].unsqueeze(-1)
            change = beta[:, t] * (v[:, t] - (state * key).sum(-2))
            state = state + key * change.unsqueeze(-2)
            ys.append((state * q[:, t].unsqueeze(-1)).sum(-2))
        return torch.stack(ys, 1), state


class DeltaNet(nn.Module):
    """A delta rule between projections."""

    def __init__(self, part: parts.DeltaNet, like: TensorOptions) -> None:
        super().__init__()
        keys, values = part.n_key_heads * part.d_key, part.n_heads * part.d_value
        mixed = 2 * keys + values
        for child in part.parts:
            if isinstance(child.part, LinearPart):
                self.add_module(child.name, Linear(child.part.d_in, child.part.d_out, False, like))
        self.conv = Convolution(short_memory(mixed, part.d_conv, bias=False), like)
        self.activation = Activation("silu")
        self.scan = DeltaRule(part.rule, like)
        self.norm = Norm(
            NormPart(width=part.d_value, form="rms", bias=False, eps=part.norm_eps, groups=part.n_heads), like
        )
        self.gate = Activation(part.gate)
        self.widths, self.d_key, self.d_value = (keys, keys, values), part.d_key, part.d_value
        self.decays = part.decays

    def forward(self, x: Tensor, run: Run) -> Tensor:
        mixed = self.activation(self.conv(self._project("in", x), run))
        q, k, v = mixed.split(self.widths, -1)
        q, k = (side.unflatten(-1, (-1, self.d_key)) for side in (q, k))
        decay = self._project("decay", x).unflatten(-1, (-1, self.decays))
        y = self.scan(q, k, v.unflatten(-1, (-1, self.d_value)), decay, self._project("beta", x), run)
        y = self.norm(y).flatten(2)
        return self._project("out", self.gate(self._project("gate", x), y))

    def _project(self, name: str, x: Tensor) -> Tensor:
        """Through one projection, or a low-rank pair."""
        for step in ("proj", "down", "up"):
            module = self._modules.get(f"{name}_{step}")
            x = x if module is None else module(x)
        return x
