"""Convolutions over time that are branches of a block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from txcalc.parts.frozen import frozen
from txcalc.parts.linear import Activation, Convolution, Linear
from txcalc.parts.part import Child, Composite, Leaf, Operation, Workload, elementwise


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
        yield Child("product", Convolution(self.d_model, self.d_model, self.taps, True, False, False, keeps=False))
        yield Child("activation", Activation(self.d_model, self.activation, False))


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
        yield Child("in_proj", Linear(width, 3 * width, self.bias))
        yield Child("write", Product(width, 3 * width))
        yield Child("conv", Convolution(width, width, self.taps, self.bias, True, True))
        yield Child("read", Product(width, width))
        yield Child("out_proj", Linear(width, width, self.bias))
