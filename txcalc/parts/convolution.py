"""Convolutions over time as branches of a block, FNet's Fourier transforms, and ConvBERT's span attention."""

from __future__ import annotations

from collections.abc import Iterator

from txcalc.num import Num, exact_div, product
from txcalc.parts.cores import AttentionCore
from txcalc.parts.linear import Activation, Linear
from txcalc.parts.options import REQUIRED, Conflict, activation, biases, flag, key, letter, odd, size, ungated
from txcalc.parts.part import Child, Composite, Leaf, MatMul, Operation, Traffic, Weight, Workload, elementwise
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.spans import Full
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

    One projection gives B, C and x as one tensor.

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


class Fourier(Composite):
    """FNet's token mixing: the real part of a Fourier transform over positions and channels, without weights.

    Source   Lee-Thorp et al. 2021 (arXiv 2105.03824), section 3.2
    """

    d_model: Num

    def describe(self) -> str:
        return "Fourier transforms"

    def children(self) -> Iterator[Child]:
        yield Child("transform", Transform(width=self.d_model))


class FourierOptions(Mechanism, section="fourier", kind="other", stands="encoder"):
    """`[fourier]`, which has no options."""

    def build(self, place: Place) -> Fourier:
        return Fourier(d_model=place.d_model)


class Transform(Leaf):
    """A fast Fourier transform in two dimensions.

    Shapes   x and y (B, T, width)
    Unit     none: it has no matrix product
    Omits    its arithmetic, about 5·n·log₂(n) FLOPs per transform of n points, depending on the library
    Source   Cooley and Tukey 1965
    """

    width: Num

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        return (elementwise("transform", elements, "none", elements, elements),)


class SpanProduct(Leaf):
    """k·q per position, element by element, from which the position's convolution kernel is made.

    Shapes   k, q and y (B, T, width)
    Unit     FLOPs under other: 1 per element
    Kept     k; q too where the core saves a scaled copy of it (`keep_scores`)
    Source   Jiang et al. 2020 (arXiv 2008.02496), equation 6
    """

    width: Num

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        return (elementwise("product", elements, "add", 2 * elements, elements),)

    def saved(self, work: Workload) -> Num:
        elements = work.positions * self.width
        return 2 * elements if work.keep_scores else elements


class SpanCore(Leaf):
    """A convolution of each head's channels over the positions on both sides, with a kernel of the position's own.

    Shapes   weights (B, T, h, K), x and y (B, T, h, d)
    Unit     FLOPs 2·B·T·h·d·K; other: 5 per weight for their softmax
    Kept     the weights, and x laid out in windows of K
    Source   Jiang et al. 2020 (arXiv 2008.02496), equations 4 to 7
    """

    kind = "attention_core"
    n_heads: Num
    d_head: Num
    taps: Num

    def describe(self) -> str:
        return f"convolutions of {self.n_heads} heads over {self.taps}, made by each position"

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        heads = work.positions * self.n_heads
        moved = Traffic(0, heads * (2 * self.d_head + self.taps))
        return (
            elementwise("softmax", heads * self.taps, "softmax", 0, 0),
            MatMul("span", heads, self.d_head, self.taps, 1, moved, "attention"),
        )

    def saved(self, work: Workload) -> Num:
        return work.positions * self.n_heads * self.taps * (self.d_head + 1)


class SpanAttention(Composite):
    """ConvBERT's mixed attention: heads that attend, and as many that convolve with kernels made from each position.

    The kernels come from k·q, where k is a separable convolution of the input. `biases` names the projections with one;
    those of the convolution all have one.

    The weights come from k·q, where k is what a separable convolution makes of the input. `biases` names the
    projections that have one; those of the convolution all have.
    Source   Jiang et al. 2020 (arXiv 2008.02496), section 3.3
    """

    d_model: Num
    n_heads: Num
    d_head: Num
    taps: Num
    biases: frozenset[str]

    def children(self) -> Iterator[Child]:
        d, width = self.d_model, self.n_heads * self.d_head
        yield Child("q", Linear(d_in=d, d_out=width, bias="q" in self.biases), duty="reads")
        yield Child("k", Linear(d_in=d, d_out=width, bias="k" in self.biases, keeps="no"), duty="reads")
        yield Child("v", Linear(d_in=d, d_out=width, bias="v" in self.biases, keeps="no"), duty="reads")
        yield Child("core", self.core)
        yield Child("depthwise", self.depthwise)
        yield Child("pointwise", Linear(d_in=d, d_out=width, bias=True))
        yield Child("product", SpanProduct(width=width))
        yield Child("kernel", Linear(d_in=width, d_out=self.n_heads * self.taps, bias=True))
        yield Child("values", Linear(d_in=d, d_out=width, bias=True, keeps="no"))
        yield Child("span", SpanCore(n_heads=self.n_heads, d_head=self.d_head, taps=self.taps))
        yield Child("o", Linear(d_in=2 * width, d_out=d, bias="o" in self.biases), duty="writes")

    @property
    def core(self) -> AttentionCore:
        """The attention core."""
        heads, width = self.n_heads, self.d_head
        return AttentionCore(n_heads=heads, n_kv_heads=heads, d_qk=width, d_v=width, span=Full())

    @property
    def depthwise(self) -> Convolution:
        """The depthwise half of the separable convolution."""
        d = self.d_model
        return Convolution(c_in=d, c_out=d, taps=self.taps, bias=False, depthwise=True, causal=False, keeps=False)


class SpanAttentionOptions(Mechanism, section="span_attention", kind="attention", stands="encoder"):
    """`[span_attention]`: heads that attend to all positions, and as many that convolve."""

    n_heads: Num = letter(REQUIRED, "heads that attend, and as many that convolve")
    d_head: Num = letter(REQUIRED, "width per head")
    taps: Num = key(size, REQUIRED, "kernel width of the dynamic convolutions")
    bias: list[str] = key(biases, [], "projections with a bias; those of the convolutions all have one")

    def conflicts(self) -> Iterator[Conflict]:
        yield from odd("taps", self.taps)
        yield from ungated(self.bias)

    def build(self, place: Place) -> SpanAttention:
        sizes = {"n_heads": self.n_heads, "d_head": self.d_head, "taps": self.taps}
        return SpanAttention(d_model=place.d_model, **sizes, biases=frozenset(self.bias))


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
        rows, (one, *_) = work.positions, self.weights()
        fan_in, made = product(one.shape[1:]), exact_div(self.c_out, self.groups)
        moved = Traffic(one.size, rows * (self.stride * self.c_in + self.c_out))
        found = MatMul("convolution", self.groups, rows, fan_in, made, moved, "convolution")
        return (found, elementwise("bias", rows * self.c_out, "add", 0, 0, self.c_out)) if self.bias else (found,)

    def saved(self, work: Workload) -> Num:
        return work.positions * self.stride * self.c_in
