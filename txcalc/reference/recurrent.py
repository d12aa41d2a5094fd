"""Recurrent mixers with their states, in float32 for any dtype of weights: see `parts.recurrent`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txcalc.parts import recurrent as parts
from txcalc.parts.norm import Norm as NormPart
from txcalc.parts.taps import short_memory
from txcalc.reference.linear import Activation, BlockLinear, Convolution, Linear, Norm, RootMeanSquare, linear
from txcalc.reference.run import Cached, Run, TensorOptions, current


def sum_states(decay: Tensor, update: Tensor, state: Tensor | None) -> Tensor:
    """Every state of h ← exp(decay)·h + update, over axis 1: h_t = e^{P_t}·(h_0 + Σ_{s≤t} e^{−P_s}·update_s) with P
    the running sum of the decays."""
    decay = decay.cumsum(1)
    update = ((-decay).exp() * update).cumsum(1)
    return decay.exp() * (update if state is None else update + state.unsqueeze(1))


def run_states(decay: Tensor, update: Tensor, state: Tensor | None) -> Tensor:
    """Every state of h ← exp(decay)·h + update, token by token, or in closed form where the mode is `static`."""
    if current().static:
        return sum_states(decay, update, state)
    states = []
    for t in range(update.shape[1]):
        state = update[:, t] if state is None else decay[:, t].exp() * state + update[:, t]
        states.append(state)
    return torch.stack(states, 1)


def scan(
    x: Tensor, step: Tensor, rate: Tensor, write: Tensor, read: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """h ← exp(Δ·A)·h + Δ·x·B and y = C·h, token by token: y (B, T, …) and the last h (B, …, N).

    x and step Δ (B, T, …), rate A (…, N), write B and read C (B, T, …, N), all broadcastable. `static`: in closed form
    (`sum_states`).
    """
    if current().static:
        states = sum_states(step.unsqueeze(-1) * rate, (step * x).unsqueeze(-1) * write, state)
        return (states * read).sum(-1), states[:, -1]
    if state is None:
        state = torch.zeros((), device=x.device)
    ys = []
    for t in range(x.shape[1]):
        decay = (step[:, t].unsqueeze(-1) * rate).exp()
        state = decay * state + (step[:, t] * x[:, t]).unsqueeze(-1) * write[:, t]
        ys.append((state * read[:, t]).sum(-1))
    return torch.stack(ys, 1), state


class SelectiveScan(Cached):
    """Mamba-1's state (C, N), skip and gate: y (B, T, C) of x, Δ, z (B, T, C) and B, C (B, T, heads, N)."""

    def __init__(self, part: parts.SelectiveScan, like: TensorOptions) -> None:
        super().__init__()
        self.A_log = like.parameter(part.channels, part.states)
        self.D = like.parameter(part.channels)
        self.shares = part.heads > 1

    def forward(self, x: Tensor, step: Tensor, write: Tensor, read: Tensor, z: Tensor, run: Run) -> Tensor:
        upcast, step = x.float(), F.softplus(step.float())
        cached = run.recall(self.place)
        write, read = write.float(), read.float()
        if self.shares:  # channels per head
            share = x.shape[-1] // write.shape[2]
            write, read = (side.repeat_interleave(share, 2) for side in (write, read))
        y, state = scan(upcast, step, -self.A_log.float().exp(), write, read, cached[0] if cached else None)
        run.keep(self.place, state)
        return (y + self.D * upcast).to(x.dtype) * F.silu(z)


class HeadScan(Cached):
    """Mamba-2's state (h, d, N), one decay per head: y (B, T, h, d) of x (B, T, h, d), Δ (B, T, h), B and C
    (B, T, groups, N)."""

    def __init__(self, part: parts.HeadScan, like: TensorOptions) -> None:
        super().__init__()
        self.A_log = like.parameter(part.heads)
        self.D = like.parameter(part.heads)
        self.dt_bias = like.parameter(part.heads)
        self.group = part.heads // part.groups

    def forward(self, x: Tensor, step: Tensor, write: Tensor, read: Tensor, run: Run) -> Tensor:
        upcast, step = x.float(), F.softplus(step.float() + self.dt_bias).unsqueeze(-1)
        write, read = (side.float().repeat_interleave(self.group, 2).unsqueeze(3) for side in (write, read))
        rate = -self.A_log.float().exp()[:, None, None]
        cached = run.recall(self.place)
        y, state = scan(upcast, step, rate, write, read, cached[0] if cached else None)
        run.keep(self.place, state)
        return (y + self.D[:, None] * upcast).to(x.dtype)


class GatedRecurrence(Cached):
    """The state (C) of an RG-LRU, in float32: y (B, T, C) of x and the logits of the input's and the decay's gates."""

    def __init__(self, part: parts.GatedRecurrence, like: TensorOptions) -> None:
        super().__init__()
        self.rate = like.parameter(part.channels)

    def forward(self, x: Tensor, inward: Tensor, keep: Tensor, run: Run) -> Tensor:
        decay = -8 * F.softplus(self.rate.float()) * keep.float().sigmoid()
        first = (run.positions == 0).unsqueeze(1)
        scaled = torch.where(first, 1.0, (1 - (2 * decay).exp()).sqrt()) * x.float() * inward.float().sigmoid()
        cached = run.recall(self.place)
        states = run_states(decay, scaled, cached[0] if cached else None)
        run.keep(self.place, states[:, -1])
        return states.to(x.dtype)


class Mamba(nn.Module):
    """A Mamba-1 mixer."""

    def __init__(self, part: parts.Mamba, like: TensorOptions) -> None:
        super().__init__()
        inner, states, rank = part.d_inner, part.d_state, part.dt_rank
        self.in_proj = Linear(part.d_model, 2 * inner, part.bias, like)
        self.conv = Convolution(short_memory(inner, part.d_conv, bias=part.conv_bias), like)
        heads = part.n_heads or 1
        self.x_proj = linear(inner, heads * (rank + 2 * states), False, like, part.n_heads)
        self.dt_norm = self.b_norm = self.c_norm = None
        if part.norm_eps is not None:
            self.dt_norm, self.b_norm, self.c_norm = (
                Norm(NormPart(width=width, form="rms", bias=False, eps=part.norm_eps), like)
                for width in (rank, states, states)
            )
        self.dt_proj = linear(heads * rank, inner, True, like, part.n_heads)
        self.scan = SelectiveScan(parts.SelectiveScan(channels=inner, states=states, heads=heads), like)
        self.out_proj = Linear(inner, part.d_model, part.bias, like)
        self.widths, self.inner, self.heads = (rank, states, states), (inner, inner), heads

    def forward(self, x: Tensor, run: Run) -> Tensor:
        x, z = self.in_proj(x).split(self.inner, -1)
        x = F.silu(self.conv(x, run))
        step, write, read = self.x_proj(x).unflatten(-1, (self.heads, -1)).split(self.widths, -1)
        if self.dt_norm is not None and self.b_norm is not None and self.c_norm is not None:
            step, write, read = self.dt_norm(step), self.b_norm(write), self.c_norm(read)
        return self.out_proj(self.scan(x, self.dt_proj(step.flatten(2)), write, read, z, run))


class GroupNorm(Norm):
    """RMSNorm of each group of channels, with one weight per channel."""

    def __init__(self, part: NormPart, groups: int, like: TensorOptions) -> None:
        super().__init__(part, like)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        weight = self.get_parameter("weight").unflatten(0, (self.groups, -1))
        y: Tensor = RootMeanSquare.apply(x.unflatten(-1, (self.groups, -1)), weight, self.eps)
        return y.flatten(-2)


class Mamba2(nn.Module):
    """A Mamba-2 mixer."""

    def __init__(self, part: parts.Mamba2, like: TensorOptions) -> None:
        super().__init__()
        inner, shared = part.n_heads * part.d_head, part.n_groups * part.d_state
        mixed = inner + 2 * shared
        self.in_proj = Linear(part.d_model, inner + mixed + part.n_heads, part.bias, like)
        self.conv = Convolution(short_memory(mixed, part.d_conv, bias=part.conv_bias), like)
        self.scan = HeadScan(
            parts.HeadScan(heads=part.n_heads, width=part.d_head, groups=part.n_groups, states=part.d_state), like
        )
        self.norm = None
        if part.norm_eps is not None:
            self.norm = GroupNorm(NormPart(width=inner, form="rms", bias=False, eps=part.norm_eps), part.n_groups, like)
        self.out_proj = Linear(inner, part.d_model, part.bias, like)
        self.widths, self.mixed = (inner, mixed, part.n_heads), (inner, shared, shared)
        self.d_head, self.d_state = part.d_head, part.d_state

    def forward(self, x: Tensor, run: Run) -> Tensor:
        z, mixed, step = self.in_proj(x).split(self.widths, -1)
        x, write, read = F.silu(self.conv(mixed, run)).split(self.mixed, -1)
        write, read = (side.unflatten(-1, (-1, self.d_state)) for side in (write, read))
        y = self.scan(x.unflatten(-1, (-1, self.d_head)), step, write, read, run).flatten(2)
        y = y * F.silu(z)
        return self.out_proj(y if self.norm is None else self.norm(y))


class Griffin(nn.Module):
    """A convolution and an RG-LRU, times a gate."""

    def __init__(self, part: parts.Griffin, like: TensorOptions) -> None:
        super().__init__()
        inner, heads, width = part.n_heads * part.d_head, part.n_heads, part.d_head
        self.in_proj = Linear(part.d_model, inner, part.bias, like)
        self.gate_proj = Linear(part.d_model, inner, part.bias, like)
        self.conv = Convolution(short_memory(inner, part.d_conv, bias=part.conv_bias), like)
        self.input_gate, self.decay_gate = BlockLinear(heads, width, like), BlockLinear(heads, width, like)
        self.scan = GatedRecurrence(parts.GatedRecurrence(channels=inner), like)
        self.gate = Activation(part.activation)
        self.out_proj = Linear(inner, part.d_model, part.bias, like)

    def forward(self, x: Tensor, run: Run) -> Tensor:
        mixed = self.conv(self.in_proj(x), run)
        y = self.scan(mixed, self.input_gate(mixed), self.decay_gate(mixed), run)
        return self.out_proj(self.gate(self.gate_proj(x), y))
