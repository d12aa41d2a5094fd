"""Convolutions over time that are branches of a block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from txcalc.parts.frozen import frozen
from txcalc.parts.linear import Activation, Convolution, Linear
from txcalc.parts.part import Child, Composite, Leaf, Operation, Workload, elementwise


@final
@frozen
class TimeConvolution(Composite):
    """act(convolution of every channel with every other, over the positions on both sides).

    Source   He et al. 2020 (arXiv 2006.03654), v2: the layer beside the first block
    """

    d_model: Any
    taps: Any
    activation: str

    def children(self) -> Iterator[Child]:
        # Its input is the block's, which the block's first product keeps.
        yield Child(
            "product",
            Convolution(
                c_in=self.d_model,
                c_out=self.d_model,
                taps=self.taps,
                bias=True,
                depthwise=False,
                causal=False,
                keeps=False,
            ),
        )
        yield Child("activation", Activation(width=self.d_model, form=self.activation, gated=False))


@final
@frozen
class Product(Leaf):
    """x·y, element by element: a gate without an activation.

    Shapes   x and y (B, T, width)
    Unit     FLOPs under other: 1 an element
    Kept     `kept` elements a position: those of x and y that no leaf before it keeps
    Source   LFM2 (arXiv 2511.23404), section 2
    """

    width: Any
    kept: Any

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        return (elementwise("product", elements, "add", 2 * elements, elements),)

    def saved(self, work: Workload) -> Any:
        return work.positions * self.kept


@final
@frozen
class ShortConvolution(Composite):
    """C·conv(B·x) between projections: a causal convolution of each channel by itself, gated before and after.

    One projection makes B, C and x, which are one tensor.
    Source   LFM2 (arXiv 2511.23404), section 2
    """

    d_model: Any
    taps: Any
    bias: bool

    def children(self) -> Iterator[Child]:
        width = self.d_model
        yield Child("in_proj", Linear(d_in=width, d_out=3 * width, bias=self.bias))
        yield Child("write", Product(width=width, kept=3 * width))
        yield Child(
            "conv", Convolution(c_in=width, c_out=width, taps=self.taps, bias=self.bias, depthwise=True, causal=True)
        )
        yield Child("read", Product(width=width, kept=width))
        yield Child("out_proj", Linear(d_in=width, d_out=width, bias=self.bias))
