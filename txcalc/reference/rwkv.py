"""RWKV: see `parts.rwkv`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txcalc.parts import rwkv as parts
from txcalc.reference.linear import Activation, Linear, pad_columns
from txcalc.reference.recurrent import sum_states
from txcalc.reference.run import Cached, Run, TensorOptions, current


class TokenShift(Cached):
    """x (B, T, D) mixed with the previous token's, once for each use."""

    def __init__(self, part: parts.TokenShift, like: TensorOptions) -> None:
        super().__init__()
        for use in part.uses:
            self.register_parameter(use, like.parameter(part.width))
        self.uses = part.uses

    def forward(self, x: Tensor, run: Run) -> tuple[Tensor, ...]:
        cached = run.recall(self.place)
        before = torch.cat((cached[0], x), 1)[:, :-1] if cached else pad_columns(x, 1)[:, :-1]
        run.keep(self.place, x[:, -1:].clone())
        shares = (self.get_parameter(use) for use in self.uses)
        return tuple(share * x + (1 - share) * before for share in shares)


class WeightedSum(Cached):
    """RWKV's states (C): numerator, denominator and their exponent, in float32; y (B, T, C) of k and v (B, T, C)."""

    def __init__(self, part: parts.WeightedSum, like: TensorOptions) -> None:
        super().__init__()
        self.decay, self.bonus = like.parameter(part.channels), like.parameter(part.channels)

    def forward(self, k: Tensor, v: Tensor, run: Run) -> Tensor:
        key, value = k.float(), v.float()
        decay, bonus = -self.decay.float().exp(), self.bonus.float()
        form = self._sums if current().static else self._scan
        y, states = form(key, value, decay, bonus, run.recall(self.place))
        run.keep(self.place, *states)
        return y.to(v.dtype)

    @staticmethod
    def _scan(
        k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, cached: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        num, den, exponent = cached or (torch.zeros_like(k[:, 0]),) * 2 + (torch.full_like(k[:, 0], -1e38),)
        ys = []
        for t in range(k.shape[1]):
            now = bonus + k[:, t]
            high = torch.maximum(exponent, now)
            past, present = (exponent - high).exp(), (now - high).exp()
            ys.append((past * num + present * v[:, t]) / (past * den + present))
            high = torch.maximum(exponent + decay, k[:, t])
            past, present = (exponent + decay - high).exp(), (k[:, t] - high).exp()
            num, den, exponent = past * num + present * v[:, t], past * den + present, high
        return torch.stack(ys, 1), (num, den, exponent)

    @staticmethod
    def _sums(
        k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, cached: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """`_scan` in closed form, with an exponent of 0."""
        num, den = (side * cached[2].exp() for side in cached[:2]) if cached else (torch.zeros_like(k[:, 0]),) * 2
        weight, rates = k.exp(), decay.expand_as(k)
        nums, dens = sum_states(rates, weight * v, num), sum_states(rates, weight, den)
        before = [torch.cat((h.unsqueeze(1), all_[:, :-1]), 1) for h, all_ in ((num, nums), (den, dens))]
        now = (bonus + k).exp()
        y = (before[0] + now * v) / (before[1] + now)
        return y, (nums[:, -1], dens[:, -1], torch.zeros_like(num))


class TimeMix(nn.Module):
    """RWKV-4's mixing over time."""

    def __init__(self, part: parts.TimeMix, like: TensorOptions) -> None:
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

    def __init__(self, part: parts.ChannelMix, like: TensorOptions) -> None:
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
