"""Attention without a softmax, with its real states: see `parts.linear_attention`. States are float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txcalc.parts import linear_attention as parts
from txcalc.parts.linear import Convolution as ConvolutionPart
from txcalc.parts.linear import Linear as LinearPart
from txcalc.parts.norm import Norm as NormPart
from txcalc.reference.linear import Activation, Convolution, Linear, Norm, padded
from txcalc.reference.mode import current
from txcalc.reference.recurrent import summed
from txcalc.reference.run import Like, Remembers, Run


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
        self.reach = 2 if part.signed else 1

    def forward(self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, run: Run) -> Tensor:
        q, k = (unit(side.float()).repeat_interleave(self.group, 2) for side in (q, k))
        q, wide = q * q.shape[-1] ** -0.5, v.float()
        decay, beta = self._log_decay(decay.float()), self.reach * beta.float().sigmoid().unsqueeze(-1)
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


class DecayScan(Remembers):
    """The state (h, d, d) of linear attention, in float32: y (B, T, h, d) of q, k and v (B, T, h, d).

    `decay` (h) is −log λ of every head: 2^(−8·i/h) of the i-th, from 1 (ALiBi's slopes). Published models shrink it
    with depth; it is no parameter.
    """

    decay: Tensor

    def __init__(self, part: parts.DecayScan, like: Like) -> None:
        super().__init__()
        heads = torch.arange(1, part.n_heads + 1, device=like.device, dtype=torch.float32)
        self.register_buffer("decay", 2 ** (-8 * heads / part.n_heads))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, run: Run) -> Tensor:
        q, k, wide = (side.float() for side in (q, k, v))
        held = run.recall(self.place)
        if current().static:
            decay = (-self.decay[:, None, None]).expand(*v.shape[:2], -1, -1, -1)
            states = summed(decay, k.unsqueeze(-1) * wide.unsqueeze(-2), held[0] if held else None)
            run.keep(self.place, states[:, -1])
            return (states * q.unsqueeze(-1)).sum(-2).to(v.dtype)
        kept, ys = (-self.decay).exp()[:, None, None], []
        state = held[0] if held else torch.zeros((), device=v.device)
        for t in range(v.shape[1]):
            state = kept * state + k[:, t].unsqueeze(-1) * wide[:, t].unsqueeze(-2)
            ys.append((state * q[:, t].unsqueeze(-1)).sum(-2))
        run.keep(self.place, state)
        return torch.stack(ys, 1).to(v.dtype)


class TokenShift(Remembers):
    """x (B, T, D) mixed with the token before, once for each use."""

    def __init__(self, part: parts.TokenShift, like: Like) -> None:
        super().__init__()
        for use in part.uses:
            self.register_parameter(use, like.parameter(part.width))
        self.uses = part.uses

    def forward(self, x: Tensor, run: Run) -> tuple[Tensor, ...]:
        held = run.recall(self.place)
        before = torch.cat((held[0], x), 1)[:, :-1] if held else padded(x, 1)[:, :-1]
        run.keep(self.place, x[:, -1:].clone())
        shares = (self.get_parameter(use) for use in self.uses)
        return tuple(share * x + (1 - share) * before for share in shares)


class WeightedSum(Remembers):
    """RWKV's states (C) of numerator, denominator and their exponent, in float32: y (B, T, C) of k and v (B, T, C)."""

    def __init__(self, part: parts.WeightedSum, like: Like) -> None:
        super().__init__()
        self.decay, self.bonus = like.parameter(part.channels), like.parameter(part.channels)

    def forward(self, k: Tensor, v: Tensor, run: Run) -> Tensor:
        wide, value = k.float(), v.float()
        decay, bonus = -self.decay.float().exp(), self.bonus.float()
        form = self._sums if current().static else self._scan
        y, states = form(wide, value, decay, bonus, run.recall(self.place))
        run.keep(self.place, *states)
        return y.to(v.dtype)

    @staticmethod
    def _scan(
        k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, held: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        over, under, top = held or (torch.zeros_like(k[:, 0]),) * 2 + (torch.full_like(k[:, 0], -1e38),)
        ys = []
        for t in range(k.shape[1]):
            now = bonus + k[:, t]
            high = torch.maximum(top, now)
            past, present = (top - high).exp(), (now - high).exp()
            ys.append((past * over + present * v[:, t]) / (past * under + present))
            high = torch.maximum(top + decay, k[:, t])
            past, present = (top + decay - high).exp(), (k[:, t] - high).exp()
            over, under, top = past * over + present * v[:, t], past * under + present, high
        return torch.stack(ys, 1), (over, under, top)

    @staticmethod
    def _sums(
        k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, held: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The same in closed form, with an exponent of 0."""
        over, under = (side * held[2].exp() for side in held[:2]) if held else (torch.zeros_like(k[:, 0]),) * 2
        weight, rates = k.exp(), decay.expand_as(k)
        overs, unders = summed(rates, weight * v, over), summed(rates, weight, under)
        before = [torch.cat((h.unsqueeze(1), all_[:, :-1]), 1) for h, all_ in ((over, overs), (under, unders))]
        now = (bonus + k).exp()
        y = (before[0] + now * v) / (before[1] + now)
        return y, (overs[:, -1], unders[:, -1], torch.zeros_like(over))


class DeltaNet(nn.Module):
    """A gated delta rule between projections."""

    def __init__(self, part: parts.DeltaNet, like: Like) -> None:
        super().__init__()
        keys, values = part.n_key_heads * part.d_key, part.n_heads * part.d_value
        mixed = 2 * keys + values
        for child in part.parts:
            if isinstance(child.part, LinearPart):
                self.add_module(child.name, Linear(child.part.d_in, child.part.d_out, False, like))
        self.conv = Convolution(
            ConvolutionPart(c_in=mixed, c_out=mixed, taps=part.d_conv, bias=False, depthwise=True, causal=True), like
        )
        self.activation = Activation("silu")
        decays = part.d_key if part.by_channel else 1
        self.scan = DeltaRule(
            parts.DeltaRule(
                n_heads=part.n_heads,
                n_key_heads=part.n_key_heads,
                d_key=part.d_key,
                d_value=part.d_value,
                decays=decays,
                bound=part.bound,
                signed=part.signed,
            ),
            like,
        )
        self.norm = Norm(
            NormPart(width=part.d_value, form="rms", bias=False, eps=part.norm_eps, groups=part.n_heads), like
        )
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


class LinearAttention(nn.Module):
    """Lightning attention."""

    def __init__(self, part: parts.LinearAttention, like: Like) -> None:
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


class TimeMix(nn.Module):
    """RWKV-4's mixing over time."""

    def __init__(self, part: parts.TimeMix, like: Like) -> None:
        super().__init__()
        d_model, inner = part.d_model, part.d_inner
        self.shift = TokenShift(parts.TokenShift(width=d_model, uses=("key", "value", "receptance")), like)
        self.k, self.v, self.r = (Linear(d_model, inner, False, like) for _ in range(3))
        self.scan = WeightedSum(parts.WeightedSum(channels=inner), like)
        self.gate = Activation("sigmoid")
        self.out_proj = Linear(inner, d_model, False, like)

    def forward(self, x: Tensor, run: Run) -> Tensor:
        key, value, receptance = self.shift(x, run)
        y = self.scan(self.k(key), self.v(value), run)
        return self.out_proj(self.gate(self.r(receptance), y))


class ChannelMix(nn.Module):
    """RWKV-4's feed-forward."""

    def __init__(self, part: parts.ChannelMix, like: Like) -> None:
        super().__init__()
        self.shift = TokenShift(parts.TokenShift(width=part.d_model, uses=("key", "receptance")), like)
        self.up = Linear(part.d_model, part.d_ff, False, like)
        self.activation = Activation("relu2")
        self.down = Linear(part.d_ff, part.d_model, False, like)
        self.r = Linear(part.d_model, part.d_model, False, like)
        self.gate = Activation("sigmoid")

    def forward(self, x: Tensor, run: Run) -> Tensor:
        key, receptance = self.shift(x, run)
        return self.gate(self.r(receptance), self.down(self.activation(self.up(key))))


class MatrixScan(Remembers):
    """The memory C (h, d_k, d_v), its normaliser n (h, d_k) and their exponent m (h): y (B, T, h, d_v) of q and k
    (B, T, h, d_k), v (B, T, h, d_v), and the logits of both gates (B, T, h)."""

    def __init__(self, part: parts.MatrixScan) -> None:
        super().__init__()
        self.scale = part.d_key**-0.5

    def forward(self, q: Tensor, k: Tensor, v: Tensor, inward: Tensor, keep: Tensor, run: Run) -> Tensor:
        q, k, v, inward, keep = (x.float() for x in (q * self.scale, k, v, inward, F.logsigmoid(keep.float())))
        held = run.recall(self.place)
        compute = self._sums if current().static else self._steps
        y, state = compute(q, k, v, inward, keep, held)
        run.keep(self.place, *state)
        return y

    @staticmethod
    def _steps(
        q: Tensor, k: Tensor, v: Tensor, inward: Tensor, keep: Tensor, held: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        memory = k.new_zeros(*k[:, 0].shape, v.shape[-1]) if held is None else held[0]
        normaliser, top = (torch.zeros_like(k[:, 0]), torch.zeros_like(inward[:, 0])) if held is None else held[1:]
        ys = []
        for t in range(q.shape[1]):
            high = torch.maximum(keep[:, t] + top, inward[:, t])
            past, now = (keep[:, t] + top - high).exp().unsqueeze(-1), (inward[:, t] - high).exp().unsqueeze(-1)
            written = now * k[:, t]
            memory = past.unsqueeze(-1) * memory + written.unsqueeze(-1) * v[:, t].unsqueeze(-2)
            normaliser, top = past * normaliser + written, high
            over, under = (memory * q[:, t].unsqueeze(-1)).sum(-2), (normaliser * q[:, t]).sum(-1)
            ys.append(over / torch.maximum(under.abs(), (-top).exp()).unsqueeze(-1))
        return torch.stack(ys, 1), (memory, normaliser, top)

    @staticmethod
    def _sums(
        q: Tensor, k: Tensor, v: Tensor, inward: Tensor, keep: Tensor, held: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The same in closed form, with an exponent of 0."""
        written = inward.exp().unsqueeze(-1) * k
        memory = normaliser = None
        if held is not None:
            scale = held[2].exp().unsqueeze(-1)
            memory, normaliser = held[0] * scale.unsqueeze(-1), held[1] * scale
        rate = keep.unsqueeze(-1)
        memories = summed(rate.unsqueeze(-1), written.unsqueeze(-1) * v.unsqueeze(-2), memory)
        normalisers = summed(rate, written, normaliser)
        over, under = (memories * q.unsqueeze(-1)).sum(-2), (normalisers * q).sum(-1)
        y = over / under.abs().clamp(min=1).unsqueeze(-1)
        return y, (memories[:, -1], normalisers[:, -1], torch.zeros_like(inward[:, 0]))


class MatrixMemory(nn.Module):
    """An mLSTM layer."""

    def __init__(self, part: parts.MatrixMemory, like: Like) -> None:
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
        gates = (self._capped(self.get_submodule(f"{name}_gate")(x)) for name in ("input", "forget"))
        y = self.norm(self.scan(q, k, v, *gates, run).to(x.dtype)).flatten(2)
        made: Tensor = self.get_submodule("out_proj")(self.gate(self.get_submodule("gate_proj")(x), y))
        return made

    def _capped(self, x: Tensor) -> Tensor:
        return x if self.cap is None else self.cap * torch.tanh(x / self.cap)
