"""Convolutions over time as branches of a block, and over any number of dimensions as leaves."""

from __future__ import annotations

from collections.abc import Iterator

from txcalc.num import Num, exact_div, product
from txcalc.parts.linear import Activation, Linear
from txcalc.parts.options import Conflict, activation, flag, key, odd, size
from txcalc.parts.part import Child, Composite, Leaf, MatMul, Operation, Traffic, Weight, Workload, elementwise
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.taps import Convolution, short_memory


class TimeConvolution(Composite):
    """act(convolution over the positions on both sides), dense over channels.

    Source   He et al. 2020 (arXiv 2006.03654), v2: the layer beside the first block
    """

    d_model: Num
    taps: Num
    activation: str
    # Whether its input is saved for backward; False: the block's first part saves it.
    keeps_input: bool = True

    def children(self) -> Iterator[Child]:
        yield Child(
            "product",
            Convolution(
                c_in=self.d_model,
                c_out=self.d_model,
                taps=self.taps,
                bias=True,
                depthwise=False,
                causal=False,
                keeps=self.keeps_input,
            ),
        )
        yield Child("activation", Activation(width=self.d_model, form=self.activation, gated=False))


class TimeConvolutionOptions(Mechanism, section="convolution", stands="encoder"):
    """`[convolution]` over the positions of an encoder."""

    taps: Num = key(size, 3, "kernel width")
    activation: str = key(activation, "gelu", "activation")

    def conflicts(self) -> Iterator[Conflict]:
        yield from odd("taps", self.taps)

    def build(self, place: Place) -> TimeConvolution:
        return self.into(TimeConvolution, d_model=place.d_model, keeps_input=place.keeps_input)


class Product(Leaf):
    """x·y, element by element: a gate without activation.

    Shapes   x and y (B, T, width)
    Unit     FLOPs under other: 1 per element
    Kept     `read` elements per position: those of x and y that no earlier leaf saves
    Source   LFM2 (arXiv 2511.23404), section 2
    """

    width: Num
    read: Num

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        return (elementwise("product", elements, "add", 2 * elements, elements),)

    def saved(self, work: Workload) -> Num:
        return work.positions * self.read


class ShortConvolution(Composite):
    """C·conv(B·x) between projections: a gated causal depthwise convolution.

    One projection makes B, C and x, which are one tensor.
    Source   LFM2 (arXiv 2511.23404), section 2
    """

    d_model: Num
    taps: Num
    bias: bool

    def describe(self) -> str:
        return f"short convolution, {self.taps} taps"

    def children(self) -> Iterator[Child]:
        width = self.d_model
        yield Child("in_proj", Linear(d_in=width, d_out=3 * width, bias=self.bias))
        yield Child("write", Product(width=width, read=3 * width))
        yield Child("conv", short_memory(width, self.taps, bias=self.bias))
        yield Child("read", Product(width=width, read=width))
        yield Child("out_proj", Linear(d_in=width, d_out=width, bias=self.bias), duty="writes")


class ShortConvolutionOptions(Mechanism, section="short_convolution"):
    taps: Num = key(size, 3, "kernel width of the short convolution")
    bias: bool = key(flag, False, "biases on the convolution and the projections")

    def build(self, place: Place) -> ShortConvolution:
        return self.into(ShortConvolution, d_model=place.d_model)


class Filter(Leaf):
    """A convolution with any number of dimensions, over its outputs: `taps` per output in `groups` of channels.

    Shapes   W (c_out, c_in/groups, taps), y (B, T, c_out); each output reads `stride` new inputs
    Unit     FLOPs 2·B·T·taps·c_out·c_in/groups
    Kept     its input
    Source   Baevski et al. 2020 (arXiv 2006.11477), section 2: audio features, and positions
    """

    role = "product"
    c_in: Num
    c_out: Num
    taps: Num
    groups: int
    stride: Num
    bias: bool

    def weights(self) -> tuple[Weight, ...]:
        weight = Weight("weight", (self.c_out, exact_div(self.c_in, self.groups), self.taps))
        return (weight, Weight("bias", (self.c_out,))) if self.bias else (weight,)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, (weight, *_) = work.positions, self.weights()
        fan_in, columns = product(weight.shape[1:]), exact_div(self.c_out, self.groups)
        moved = Traffic(weight.size, rows * (self.stride * self.c_in + self.c_out))
        products = MatMul("convolution", self.groups, rows, fan_in, columns, moved, "convolution")
        return (products, elementwise("bias", rows * self.c_out, "add", 0, 0, self.c_out)) if self.bias else (products,)

    def saved(self, work: Workload) -> Num:
        return work.positions * self.stride * self.c_in
