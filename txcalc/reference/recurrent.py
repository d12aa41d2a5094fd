"""Recurrent mixers with their real states: see `parts.recurrent`. States are float32, whatever the weights are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txcalc.parts import recurrent as parts
from txcalc.parts.linear import Convolution as ConvolutionPart
from txcalc.parts.linear import Linear as LinearPart
from txcalc.parts.linear import Norm as NormPart
from txcalc.reference.linear import Activation, Convolution, Linear, Norm, RootMeanSquare
from txcalc.reference.mode import current
from txcalc.reference.run import Like, Remembers, Run


def summed(decay: Tensor, written: Tensor, state: Tensor | None) -> Tensor:
    """Every state of h ← exp(decay)·h + written, over axis 1: h_t = e^{P_t}·(h_0 + Σ_{s≤t} e^{−P_s}·written_s) with P
    the running sum of the decays."""
    decay = decay.cumsum(1)
    written = ((-decay).exp() * written).cumsum(1)
    return decay.exp() * (written if state is None else written + state.unsqueeze(1))


def scan(
    x: Tensor, step: Tensor, rate: Tensor, write: Tensor, read: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """h ← exp(Δ·A)·h + Δ·x·B and y = C·h, token by token: y (B, T, …) and the last h (B, …, N).

    x and step Δ (B, T, …), rate A (…, N), write B and read C (B, T, …, N), all ready to be broadcast. `static`: the
    same in closed form (`summed`).
    """
    if current().static:
        states = summed(step.unsqueeze(-1) * rate, (step * x).unsqueeze(-1) * write, state)
        return (states * read).sum(-1), states[:, -1]
    if state is None:
        state = torch.zeros((), device=x.device)
    ys = []
    for t in range(x.shape[1]):
        decay = (step[:, t].unsqueeze(-1) * rate).exp()
        state = decay * state + (step[:, t] * x[:, t]).unsqueeze(-1) * write[:, t]
        ys.append((state * read[:, t]).sum(-1))
    return torch.stack(ys, 1), state


class SelectiveScan(Remembers):
    """Mamba-1's state (C, N), its skip and its gate: y (B, T, C) of x, Δ, z (B, T, C) and B, C (B, T, N)."""

    def __init__(self, part: parts.SelectiveScan, like: Like) -> None:
        super().__init__()
        self.A_log = like.parameter(part.channels, part.states)
        self.D = like.parameter(part.channels)

    def forward(self, x: Tensor, step: Tensor, write: Tensor, read: Tensor, z: Tensor, run: Run) -> Tensor:
        wide, step = x.float(), F.softplus(step.float())
        held = run.recall(self.place)
        write, read = write.float().unsqueeze(2), read.float().unsqueeze(2)
        y, state = scan(wide, step, -self.A_log.float().exp(), write, read, held[0] if held else None)
        run.keep(self.place, state)
        return (y + self.D * wide).to(x.dtype) * F.silu(z)


class HeadScan(Remembers):
    """Mamba-2's state (h, d, N), one decay a head: y (B, T, h, d) of x (B, T, h, d), Δ (B, T, h), B and C
    (B, T, groups, N)."""

    def __init__(self, part: parts.HeadScan, like: Like) -> None:
        super().__init__()
        self.A_log = like.parameter(part.heads)
        self.D = like.parameter(part.heads)
        self.dt_bias = like.parameter(part.heads)
        self.group = part.heads // part.groups

    def forward(self, x: Tensor, step: Tensor, write: Tensor, read: Tensor, run: Run) -> Tensor:
        wide, step = x.float(), F.softplus(step.float() + self.dt_bias).unsqueeze(-1)
        write, read = (side.float().repeat_interleave(self.group, 2).unsqueeze(3) for side in (write, read))
        rate = -self.A_log.float().exp()[:, None, None]
        held = run.recall(self.place)
        y, state = scan(wide, step, rate, write, read, held[0] if held else None)
        run.keep(self.place, state)
        return (y + self.D[:, None] * wide).to(x.dtype)


def unit(x: Tensor) -> Tensor:
    """Vectors of length 1, as the kernels of the delta rule make them."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


class DeltaRule(Remembers):
    """The state (h, d_k, d_v) of the gated delta rule, in float32: y (B, T, h, d_v) of q and k (B, T, key heads, d_k),
    v (B, T, h, d_v), the decays' logits (B, T, h, 1 or d_k) and β's (B, T, h).

    In the `static` mode v is written, not v − Sᵀ·k, whose closed form is a triangular system: the same shapes, other
    values.
    """

    def __init__(self, part: parts.DeltaRule, like: Like) -> None:
        super().__init__()
        self.A_log = like.parameter(part.n_heads)
        self.dt_bias = like.parameter(part.n_heads * part.decays)
        self.group, self.bound = part.n_heads // part.n_key_heads, part.bound

    def forward(self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, run: Run) -> Tensor:
        q, k = (unit(side.float()).repeat_interleave(self.group, 2) for side in (q, k))
        q, wide = q * q.shape[-1] ** -0.5, v.float()
        decay, beta = self._log_decay(decay.float()), beta.float().sigmoid().unsqueeze(-1)
        held = run.recall(self.place)
        state = held[0] if held else None
        if current().static:
            states = summed(decay.unsqueeze(-1), k.unsqueeze(-1) * (beta * wide).unsqueeze(-2), state)
            y, state = (states * q.unsqueeze(-1)).sum(-2), states[:, -1]
        else:
            y, state = self._scan(q, k, wide, decay.exp(), beta, state)
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
            state = decay[:, t].unsqueeze(-1) * state
            key = k[:, t].unsqueeze(-1)
            change = beta[:, t] * (v[:, t] - (state * key).sum(-2))
            state = state + key * change.unsqueeze(-2)
            ys.append((state * q[:, t].unsqueeze(-1)).sum(-2))
        return torch.stack(ys, 1), state


class Mamba(nn.Module):
    """A Mamba-1 mixer."""

    def __init__(self, part: parts.Mamba, like: Like) -> None:
        super().__init__()
        inner, states, rank = part.d_inner, part.d_state, part.dt_rank
        self.in_proj = Linear(part.d_model, 2 * inner, part.bias, like)
        self.conv = Convolution(ConvolutionPart(inner, inner, part.d_conv, part.conv_bias, True, True), like)
        self.x_proj = Linear(inner, rank + 2 * states, False, like)
        self.dt_norm = self.b_norm = self.c_norm = None
        if part.norm_eps is not None:
            self.dt_norm = Norm(NormPart(rank, "rms", False, part.norm_eps), like)
            self.b_norm = Norm(NormPart(states, "rms", False, part.norm_eps), like)
            self.c_norm = Norm(NormPart(states, "rms", False, part.norm_eps), like)
        self.dt_proj = Linear(rank, inner, True, like)
        self.scan = SelectiveScan(parts.SelectiveScan(inner, states), like)
        self.out_proj = Linear(inner, part.d_model, part.bias, like)
        self.widths = rank, states, states

    def forward(self, x: Tensor, run: Run) -> Tensor:
        x, z = self.in_proj(x).chunk(2, -1)
        x = F.silu(self.conv(x, run))
        step, write, read = self.x_proj(x).split(self.widths, -1)
        if self.dt_norm is not None and self.b_norm is not None and self.c_norm is not None:
            step, write, read = self.dt_norm(step), self.b_norm(write), self.c_norm(read)
        return self.out_proj(self.scan(x, self.dt_proj(step), write, read, z, run))


class GroupNorm(Norm):
    """RMSNorm of each group of channels by itself, with one weight a channel."""

    def __init__(self, part: NormPart, groups: int, like: Like) -> None:
        super().__init__(part, like)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        weight = self.get_parameter("weight").unflatten(0, (self.groups, -1))
        y: Tensor = RootMeanSquare.apply(x.unflatten(-1, (self.groups, -1)), weight, self.eps)  # type: ignore[no-untyped-call]
        return y.flatten(-2)


class Mamba2(nn.Module):
    """A Mamba-2 mixer."""

    def __init__(self, part: parts.Mamba2, like: Like) -> None:
        super().__init__()
        inner, shared = part.n_heads * part.d_head, part.n_groups * part.d_state
        mixed = inner + 2 * shared
        self.in_proj = Linear(part.d_model, inner + mixed + part.n_heads, part.bias, like)
        self.conv = Convolution(ConvolutionPart(mixed, mixed, part.d_conv, part.conv_bias, True, True), like)
        self.scan = HeadScan(parts.HeadScan(part.n_heads, part.d_head, part.n_groups, part.d_state), like)
        self.norm = GroupNorm(NormPart(inner, "rms", False, part.norm_eps), part.n_groups, like)
        self.out_proj = Linear(inner, part.d_model, part.bias, like)
        self.widths, self.mixed = (inner, mixed, part.n_heads), (inner, shared, shared)
        self.d_head, self.d_state = part.d_head, part.d_state

    def forward(self, x: Tensor, run: Run) -> Tensor:
        z, mixed, step = self.in_proj(x).split(self.widths, -1)
        x, write, read = F.silu(self.conv(mixed, run)).split(self.mixed, -1)
        write, read = (side.unflatten(-1, (-1, self.d_state)) for side in (write, read))
        y = self.scan(x.unflatten(-1, (-1, self.d_head)), step, write, read, run).flatten(2)
        return self.out_proj(self.norm(y * F.silu(z)))


class DeltaNet(nn.Module):
    """A gated delta rule between projections."""

    def __init__(self, part: parts.DeltaNet, like: Like) -> None:
        super().__init__()
        keys, values = part.n_key_heads * part.d_key, part.n_heads * part.d_value
        mixed = 2 * keys + values
        for child in part.parts:
            if isinstance(child.part, LinearPart):
                self.add_module(child.name, Linear(child.part.d_in, child.part.d_out, False, like))
        self.conv = Convolution(ConvolutionPart(mixed, mixed, part.d_conv, False, True, True), like)
        self.activation = Activation("silu")
        decays = part.d_key if part.by_channel else 1
        rule = parts.DeltaRule(part.n_heads, part.n_key_heads, part.d_key, part.d_value, decays, part.bound)
        self.scan = DeltaRule(rule, like)
        self.norm = Norm(NormPart(part.d_value, "rms", False, part.norm_eps, part.n_heads), like)
        self.gate = Activation(part.gate)
        self.widths, self.d_key, self.d_value, self.decays = (keys, keys, values), part.d_key, part.d_value, decays

    def forward(self, x: Tensor, run: Run) -> Tensor:
        mixed = self.activation(self.conv(self._projected("in", x), run))
        q, k, v = mixed.split(self.widths, -1)
        q, k = (side.unflatten(-1, (-1, self.d_key)) for side in (q, k))
        decay = self._projected("decay", x).unflatten(-1, (-1, self.decays))
        y = self.scan(q, k, v.unflatten(-1, (-1, self.d_value)), decay, self._projected("beta", x), run)
        y = self.gate(self._projected("gate", x), self.norm(y).flatten(2))
        return self._projected("out", y)

    def _projected(self, name: str, x: Tensor) -> Tensor:
        """Through one projection, or through the rank."""
        for step in ("proj", "down", "up"):
            module = self._modules.get(f"{name}_{step}")
            x = x if module is None else module(x)
        return x
