"""Convolutions over time that are branches: see `parts.convolution`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txcalc.parts import convolution as parts
from txcalc.parts.taps import Convolution as ConvolutionPart, short_memory
from txcalc.reference.attention import AttentionCore
from txcalc.reference.linear import Activation, Convolution, Linear, padded
from txcalc.reference.mode import current
from txcalc.reference.run import Run, TensorOptions


class TimeConvolution(nn.Module):
    """A convolution over both sides, and its activation."""

    def __init__(self, part: parts.TimeConvolution, like: TensorOptions) -> None:
        super().__init__()
        self.product = Convolution(
            ConvolutionPart(
                c_in=part.d_model, c_out=part.d_model, taps=part.taps, bias=True, depthwise=False, causal=False
            ),
            like,
        )
        self.activation = Activation(part.activation)

    def forward(self, x: Tensor, run: Run) -> Tensor:
        return self.activation(self.product(x))


class Product(nn.Module):
    """x·y."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y


class ShortConvolution(nn.Module):
    """A causal convolution between two gates and two projections."""

    def __init__(self, part: parts.ShortConvolution, like: TensorOptions) -> None:
        super().__init__()
        width, bias = part.d_model, part.bias
        self.in_proj = Linear(width, 3 * width, bias, like)
        self.write = Product()
        self.conv = Convolution(short_memory(width, part.taps, bias=bias), like)
        self.read = Product()
        self.out_proj = Linear(width, width, bias, like)

    def forward(self, x: Tensor, run: Run) -> Tensor:
        write, read, x = self.in_proj(x).split([x.shape[-1]] * 3, -1)
        return self.out_proj(self.read(read, self.conv(self.write(write, x), run)))


class Transform(nn.Module):
    """The real part of the Fourier transform of x (B, T, D) over T and D, in float32; left out in the `static` mode."""

    def forward(self, x: Tensor) -> Tensor:
        if current().static:
            return x.clone()
        return torch.fft.fft2(x.float(), dim=(1, 2)).real.to(x.dtype)


class Fourier(nn.Module):
    """Tokens mixed by a Fourier transform."""

    def __init__(self, part: parts.Fourier, like: TensorOptions) -> None:
        super().__init__()
        self.transform = Transform()

    def forward(self, x: Tensor, run: Run) -> Tensor:
        y: Tensor = self.transform(x)
        return y


class SpanCore(nn.Module):
    """y (B, T, h·d): each position's softmax of weights (B, T, h·K) over the K values (B, T, h·d) around it."""

    def __init__(self, heads: int, taps: int) -> None:
        super().__init__()
        self.heads, self.taps = heads, taps

    def forward(self, weights: Tensor, values: Tensor) -> Tensor:
        sides = (self.taps - 1) // 2
        shares = weights.unflatten(-1, (self.heads, self.taps)).softmax(-1).flatten(0, 2).unsqueeze(-1)
        windows = padded(values, sides, self.taps - 1 - sides).unfold(1, self.taps, 1)  # (B, T, h·d, K)
        rows = windows.unflatten(2, (self.heads, -1)).flatten(0, 2)  # (B·T·h, d, K)
        return torch.bmm(rows, shares).squeeze(-1).view(values.shape)


class SpanAttention(nn.Module):
    """Attention beside convolutions whose weights are computed from each position."""

    def __init__(self, part: parts.SpanAttention, like: TensorOptions) -> None:
        super().__init__()
        d, heads, width = part.d_model, part.n_heads, part.n_heads * part.d_head
        self.q = Linear(d, width, "q" in part.biases, like)
        self.k = Linear(d, width, "k" in part.biases, like)
        self.v = Linear(d, width, "v" in part.biases, like)
        self.core = AttentionCore(part.core, like)
        self.depthwise = Convolution(part.depthwise, like)
        self.pointwise = Linear(d, width, True, like)
        self.product = Product()
        self.kernel = Linear(width, heads * part.taps, True, like)
        self.values = Linear(d, width, True, like)
        self.span = SpanCore(heads, part.taps)
        self.o = Linear(2 * width, d, "o" in part.biases, like)
        self.heads = heads

    def forward(self, x: Tensor, run: Run) -> Tensor:
        q = self.q(x)
        attended = self.core(*(y.unflatten(-1, (self.heads, -1)) for y in (q, self.k(x), self.v(x))), run)
        weights = self.kernel(self.product(self.pointwise(self.depthwise(x)), q))
        return self.o(torch.cat((attended, self.span(weights, self.values(x))), -1))
