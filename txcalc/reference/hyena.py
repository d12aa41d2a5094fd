"""Hyena with its filters: see `parts.hyena`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from txcalc.parts import hyena as parts
from txcalc.parts.taps import short_memory
from txcalc.reference.convolution import Product
from txcalc.reference.linear import Convolution, Linear
from txcalc.reference.run import Cached, Run, TensorOptions, current


class LongConvolution(Cached):
    """y (B, T, C) of u (B, T, C), with cached columns, and filters h (S, C): by a matrix product, or by FFT.

    In the `static` mode FFTs are left out: u times h, elementwise, has the result's shape.
    """

    def __init__(self, part: parts.LongConvolution, like: TensorOptions) -> None:
        super().__init__()
        self.bias = like.parameter(part.width)
        self.fft = part.fft

    def forward(self, u: Tensor, h: Tensor, run: Run) -> Tensor:
        columns = u if run.cache is None else run.cache.append(f"{run.layer}.{self.place}", u)[0]
        if not self.fft or run.past:
            y = self._product(columns, h, u.shape[1])
        elif current().static:
            y = u * h
        else:
            points = 2 * u.shape[1]
            signal, taps = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (u, h))  # FFTs need float32
            spectrum = torch.fft.rfft(signal, points, dim=1) * torch.fft.rfft(taps, points, dim=0)
            y = torch.fft.irfft(spectrum, points, dim=1)[:, : u.shape[1]].to(u.dtype)
        return y + self.bias * u

    @staticmethod
    def _product(u: Tensor, h: Tensor, tokens: int) -> Tensor:
        """The last `tokens` of h ∗ u: every channel's matrix h(t − s) times its u."""
        positions = torch.arange(u.shape[1], device=u.device)
        offsets = positions[-tokens:, None] - positions
        matrix = torch.where((offsets >= 0).unsqueeze(-1), h[offsets.clamp(min=0)], 0)  # (T, S, C)
        y: Tensor = torch.bmm(matrix.permute(2, 0, 1), u.permute(2, 1, 0))  # (C, T, B)
        return y.permute(2, 1, 0)


class ModalConvolution(Cached):
    """y (B, T, C) of u (B, T, C) by filters Re Σ r·pᵗ: by FFT, or from the state (B, C, N, 2).

    In the `static` mode both are left out: u times one number per channel has the result's shape.
    """

    def __init__(self, part: parts.ModalConvolution, like: TensorOptions) -> None:
        super().__init__()
        shape = part.width, part.states, 2
        self.poles, self.residues = like.parameter(*shape), like.parameter(*shape)
        self.bias = like.parameter(part.width)
        self.fft = part.fft

    def forward(self, u: Tensor, run: Run) -> Tensor:
        upcast = u.to(torch.promote_types(u.dtype, torch.float32))  # states and FFTs are at least float32
        cached = run.recall(self.place)
        if current().static:
            y = upcast * (self.poles * self.residues).to(upcast.dtype).sum((1, 2))
            state = upcast[:, -1, :, None, None] * self.poles
        else:
            poles, residues = (torch.view_as_complex(w.to(upcast.dtype)) for w in (self.poles, self.residues))
            if self.fft and not run.past:
                y, state = self._convolve(upcast, poles, residues)
            else:
                y, state = self._step(upcast, poles, residues, torch.view_as_complex(cached[0]) if cached else None)
            state = torch.view_as_real(state)
        run.keep(self.place, state)
        return y.to(u.dtype) + self.bias * u

    @staticmethod
    def _convolve(u: Tensor, poles: Tensor, residues: Tensor) -> tuple[Tensor, Tensor]:
        tokens = u.shape[1]
        powers = (poles.log().unsqueeze(-1) * torch.arange(tokens, device=u.device)).exp()  # (C, N, T)
        filters = (residues.unsqueeze(-1) * powers).real.sum(1)
        spectrum = torch.fft.rfft(u.transpose(1, 2), 2 * tokens) * torch.fft.rfft(filters, 2 * tokens)
        y = torch.fft.irfft(spectrum, 2 * tokens)[..., :tokens].transpose(1, 2)
        return y, (u.transpose(1, 2).unsqueeze(2) * powers.flip(-1)).sum(-1)

    @staticmethod
    def _step(u: Tensor, poles: Tensor, residues: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        ys = []
        for token in u.unsqueeze(-1).unbind(1):
            state = token + (0 if state is None else poles * state)
            ys.append((residues * state).real.sum(-1))
        assert state is not None
        return torch.stack(ys, 1), state


class Sine(nn.Module):
    """sin(f·x)."""

    def __init__(self, part: parts.Sine, like: TensorOptions) -> None:
        super().__init__()
        self.frequency = like.parameter(part.width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.frequency * x)


class Decay(nn.Module):
    """h (S, C) with a decay rate per channel: down to a hundredth after 300 to 1,500 positions."""

    def __init__(self, part: parts.Decay, like: TensorOptions) -> None:
        super().__init__()
        self.width = part.width

    def forward(self, h: Tensor, positions: Tensor) -> Tensor:
        fractions = torch.arange(self.width, device=h.device, dtype=torch.float32) / self.width
        rates = math.log(100) / 1000 * (1 / 1.5 + (1 / 0.3 - 1 / 1.5) * fractions)
        return h * torch.exp(-positions[:, None] * rates)


class ImplicitFilter(nn.Module):
    """Filters (S, C) of S positions."""

    def __init__(self, part: parts.ImplicitFilter, like: TensorOptions) -> None:
        super().__init__()
        self.features = part.features
        self.first = Linear(part.features, part.width, True, like)
        self.sine = Sine(parts.Sine(width=part.width), like)
        self.inner = nn.ModuleList(Linear(part.width, part.width, True, like) for _ in range(part.layers))
        self.last = Linear(part.width, part.channels, False, like)
        self.decay = Decay(parts.Decay(width=part.channels), like)

    def forward(self, positions: Tensor) -> Tensor:
        turns = torch.arange(self.features, device=positions.device, dtype=torch.float32)
        x = torch.cos(positions[:, None] * turns / 1000).to(self.first.weight.dtype)
        x = self.sine(self.first(x))
        for matrix in self.inner:
            x = self.sine(matrix(x))
        h: Tensor = self.decay(self.last(x), positions)
        return h.to(x.dtype)


class Hyena(nn.Module):
    """A long convolution between two gates and two projections."""

    def __init__(self, part: parts.Hyena, like: TensorOptions) -> None:
        super().__init__()
        width = part.d_model
        self.in_proj = Linear(width, 3 * width, part.bias, like)
        self.conv = Convolution(short_memory(3 * width, part.taps, bias=True), like)
        self.filter = None if part.filter is None else ImplicitFilter(part.filter, like)
        self.write, self.read = Product(), Product()
        self.long: LongConvolution | ModalConvolution
        if isinstance(part.long, parts.ModalConvolution):
            self.long = ModalConvolution(part.long, like)
        else:
            self.long = LongConvolution(part.long, like)
        self.out_proj = Linear(width, width, part.bias, like)

    def forward(self, x: Tensor, run: Run) -> Tensor:
        read, write, value = self.conv(self.in_proj(x), run).unflatten(-1, (3, -1)).unbind(-2)
        u = self.write(write, value)
        if self.filter is None:
            return self.out_proj(self.read(read, self.long(u, run)))
        keys = torch.arange(run.past + x.shape[1], device=x.device, dtype=torch.float32)
        return self.out_proj(self.read(read, self.long(u, self.filter(keys), run)))
