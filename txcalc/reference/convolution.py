"""Convolutions over time that are branches: see `parts.convolution`."""

from __future__ import annotations

from torch import Tensor, nn

from txcalc.parts import convolution as parts
from txcalc.parts.taps import Convolution as ConvolutionPart, short_memory
from txcalc.reference.linear import Activation, Convolution, Linear
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
