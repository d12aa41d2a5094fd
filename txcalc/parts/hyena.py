"""Hyena: a convolution as long as the sequence in attention's place, its filter made by a small network of positions.

A long convolution is a matrix product of T² terms (`direct`), or by fast Fourier transforms of 2·T points (`fft`),
whose arithmetic is counted under other by a stated rule. A decode step has no transform to go on from: it multiplies
what it kept by the filter, position by position.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from txcalc.num import ceil_log2, triangle
from txcalc.parts.convolution import Product
from txcalc.parts.frozen import frozen
from txcalc.parts.linear import Convolution, Linear
from txcalc.parts.options import Mechanism, Place, flag, key, one_of, size, up_to
from txcalc.parts.part import (
    Cache,
    Child,
    Composite,
    Elementwise,
    Leaf,
    MatMul,
    Operation,
    Traffic,
    Weight,
    Workload,
)


def on_filter(work: Workload) -> Workload:
    """At every position that a filter reaches, once for all sequences."""
    return work._replace(batch=1, tokens=work.keys, past=0)


@final
@frozen
class LongConvolution(Leaf):
    """y = h ∗ u + D·u for every channel by itself, over all positions before and its own.

    Shapes   u and y (B, T, C), h (C, S), D (C)
    Unit     direct, and in a decode step: FLOPs 2·B·C·T·S, dense, as a product with a triangular matrix; fft: under
             other 5·N·⌈log₂ N⌉ for a complex transform of N = 2·S points, half of it for real numbers, of u, of h once
             for all sequences, and back; 6 a complex product of S + 1 frequencies. D·u is 2 an element, under other
    Counts   `flops_masked` of the direct form: the pairs with a key at or before their query
    Kept     u and h, and of transforms their S + 1 complex frequencies instead
    Cache    u of every token: the filter reaches all of them
    Source   Poli et al. 2023 (arXiv 2302.10866), section 3; 5·N·log₂ N: Cooley and Tukey 1965, as FFTW reports speeds
    """

    width: Any
    fft: bool

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("bias", (self.width,)),)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        channels, elements, keys = work.batch * self.width, work.positions * self.width, work.keys
        skip = Elementwise("skip", elements, 2, Traffic(self.width, 0, 0))
        moved = Traffic(0, channels * (work.tokens + keys) + self.width * keys)
        if not self.fft or work.decoding:
            pairs = triangle(keys) - triangle(work.past)
            return MatMul("convolution", channels, work.tokens, keys, 1, moved, "convolution", pairs), skip
        transforms = (2 * channels + self.width) * keys * ceil_log2(2 * keys)
        return (
            Elementwise("transforms", transforms, 5, moved, "scan"),
            Elementwise("frequencies", channels * (keys + 1), 6, Traffic(), "scan"),
            skip,
        )

    def saved(self, work: Workload) -> Any:
        inputs, filters = work.batch * work.keys * self.width, work.keys * self.width
        if not self.fft or work.decoding:
            return inputs + filters
        return inputs + 2 * (work.batch + 1) * (work.keys + 1) * self.width

    @property
    def holds(self) -> str:
        return "tokens"

    def kept(self) -> str:
        return f"what a long convolution reads, of every token: {self.width:,} · S elements"

    def cache(self, work: Workload) -> Cache:
        return Cache(self.width, 0, self.width * work.keys)


@final
@frozen
class Sine(Leaf):
    """sin(f·x), with a learned frequency of each unit.

    Shapes   f (W,), x and y (S, W)
    Unit     2 FLOPs an element, under other
    Kept     x, and sin(f·x)'s slope: cos of the same
    Source   Romero et al. 2021 (arXiv 2102.02611), section 3.1, as Hyena's filters have it
    """

    width: Any

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("frequency", (self.width,)),)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        return (Elementwise("sine", elements, 2, Traffic(self.width, 2 * elements)),)

    def saved(self, work: Workload) -> Any:
        return 2 * work.positions * self.width


@final
@frozen
class Decay(Leaf):
    """h·exp(−t·δ), with a fixed decay of each channel: a filter forgets.

    Unit     3 FLOPs an element, under other
    Kept     nothing new: the window is fixed
    Source   Poli et al. 2023 (arXiv 2302.10866), section 3.3
    """

    width: Any

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        return (Elementwise("decay", elements, 3, Traffic(0, 2 * elements)),)


@final
@frozen
class ImplicitFilter(Composite):
    """A filter of every channel as a network of the position: features, sines between `layers` + 2 matrices, a decay.

    Shapes   features (S, E): the position, and sines and cosines of it; h (S, C)
    Source   Poli et al. 2023 (arXiv 2302.10866), section 3.3; its code's order of layers
    """

    features: Any
    width: Any
    layers: int
    channels: Any

    def children(self) -> Iterator[Child]:
        yield Child("first", Linear(d_in=self.features, d_out=self.width, bias=True), gradient="weights")
        yield Child("sine", Sine(width=self.width), runs=self.layers + 1)
        inner = Linear(d_in=self.width, d_out=self.width, bias=True)
        yield Child("inner", inner, times=self.layers, indices=range(self.layers))
        yield Child("last", Linear(d_in=self.width, d_out=self.channels, bias=False))
        yield Child("decay", Decay(width=self.channels))


@final
@frozen
class Hyena(Composite):
    """x₁·(h ∗ (x₂·v)) between projections, all three through a short convolution: the operator of order 2.

    Source   Poli et al. 2023 (arXiv 2302.10866), definition 3.1
    """

    d_model: Any
    taps: Any
    bias: bool
    fft: bool
    filter: ImplicitFilter

    def children(self) -> Iterator[Child]:
        width = self.d_model
        yield Child("in_proj", Linear(d_in=width, d_out=3 * width, bias=self.bias))
        yield Child(
            "conv", Convolution(c_in=3 * width, c_out=3 * width, taps=self.taps, bias=True, depthwise=True, causal=True)
        )
        yield Child("filter", self.filter, on=on_filter)
        yield Child("write", Product(width=width, kept=2 * width))
        yield Child("long", LongConvolution(width=width, fft=self.fft))
        yield Child("read", Product(width=width, kept=2 * width))
        yield Child("out_proj", Linear(d_in=width, d_out=width, bias=self.bias))

    def describe(self) -> str:
        return f"Hyena, by {'transforms' if self.fft else 'products'}"


@final
@frozen
class HyenaOptions(Mechanism):
    """`[hyena]`"""

    section = "hyena"
    taps: Any = key(size, 3, "taps of the short convolution")
    bias: bool = key(flag, True, "biases on the outer projections")
    form: str = key(one_of("fft", "direct"), "fft", "the long convolution by Fourier transforms, or as a product")
    features: Any = key(size, 3, "features of a position that the filter's network reads")
    width: Any = key(size, 64, "width of that network")
    layers: int = key(up_to(64), 2, "its inner matrices, between the first and the last")

    def build(self, place: Place) -> Hyena:
        made = ImplicitFilter(features=self.features, width=self.width, layers=self.layers, channels=place.d_model)
        return Hyena(d_model=place.d_model, taps=self.taps, bias=self.bias, fft=self.form in ("fft",), filter=made)
