"""Hyena: a convolution as long as the sequence in attention's place, its filter made by a small network of positions,
or a sum of decaying waves (StripedHyena's modal form).

A long convolution is a matrix product of T² terms (`direct`), or by fast Fourier transforms of 2·T points (`fft`),
whose arithmetic is counted under other by a stated rule. A decode step has no transform to go on from: it multiplies
what it kept by the filter, position by position; waves go on from a state of one size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from txcalc.num import ceil_log2, triangle
from txcalc.parts.convolution import Product
from txcalc.parts.frozen import frozen
from txcalc.parts.linear import Linear
from txcalc.parts.options import Wished, absent, count, flag, key, letter, one_of, size, up_to
from txcalc.parts.part import Cache, Child, Composite, Elementwise, Leaf, MatMul, Operation, Traffic, Weight, Workload
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.recurrence import Recurrence
from txcalc.parts.taps import short_memory


def on_filter(work: Workload) -> Workload:
    """At every position that a filter reaches, once for all sequences."""
    return work._replace(batch=1, tokens=work.keys, past=0)


def by_transforms(work: Workload, width: Any, moved: Traffic) -> tuple[Operation, ...]:
    """The operations of a long convolution by Fourier transforms."""
    transforms = (2 * work.batch + 1) * width * work.keys * ceil_log2(2 * work.keys)
    return (
        Elementwise("transforms", transforms, 5, moved, "scan"),
        Elementwise("frequencies", work.batch * width * (work.keys + 1), 6, Traffic(), "scan"),
    )


@frozen
class LongConvolution(Leaf):
    """y = h ∗ u + D·u for every channel by itself, over all positions before and its own.

    Shapes   u and y (B, T, C), h (C, S), D (C)
    Unit     direct, and in a decode step: FLOPs 2·B·C·T·S, dense, as a product with a triangular matrix; fft: under
             other 5·N·⌈log₂ N⌉ for a complex transform of N = 2·S points, half of it for real numbers, of u, of h once
             for all sequences, and back; 6 per complex product of S + 1 frequencies. D·u is 2 per element, under other
    Counts   `flops_masked` of the direct form: the pairs with a key at or before their query
    Kept     u and h, and of transforms their S + 1 complex frequencies instead
    Cache    u of every token: the filter reaches all of them
    Source   Poli et al. 2023 (arXiv 2302.10866), section 3; 5·N·log₂ N: Cooley and Tukey 1965, as FFTW reports speeds
    """

    kept_in_fp32 = False
    width: Any
    fft: bool
    holds = "tokens"

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("bias", (self.width,)),)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        channels, elements, keys = work.batch * self.width, work.positions * self.width, work.keys
        skip = Elementwise("skip", elements, 2, Traffic(self.width, 0, 0))
        moved = Traffic(0, channels * (work.tokens + keys) + self.width * keys)
        if not self.fft or work.decoding:
            pairs = triangle(keys) - triangle(work.past)
            return MatMul("convolution", channels, work.tokens, keys, 1, moved, "convolution", pairs), skip
        return *by_transforms(work, self.width, moved), skip

    def saved(self, work: Workload) -> Any:
        inputs, filters = work.batch * work.keys * self.width, work.keys * self.width
        if not self.fft or work.decoding:
            return inputs + filters
        return inputs + 2 * (work.batch + 1) * (work.keys + 1) * self.width

    def kept(self) -> str:
        return f"what a long convolution reads, of every token: {self.width:,} · S elements"

    def cache(self, work: Workload) -> Cache:
        return Cache(self.width, 0, self.width * work.keys)

    def way(self) -> str:
        return f", by {'transforms' if self.fft else 'products'}"


@frozen
class ModalConvolution(Recurrence):
    """The same with filters h(t) = Re Σ r·pᵗ of N complex poles p and residues r of each channel, so that a state goes
    on from what was read: s ← p·s + u, y = Re Σ r·s + D·u.

    Shapes   u and y (B, T, C), poles and residues (C, N, 2), D (C), the state (B, C, N, 2)
    Unit     FLOPs under other. In a decode step, and of all tokens without `fft`: 11 per channel, pole and token (6 for
             p·s, 1 to add u, 3 for the real part of r·s, 1 to sum). By transforms: those of `LongConvolution`, and 11
             per channel, pole and position, once for all sequences, to make the filters (2 for t·log p, 5 for its
             exponential, 3 and 1 as above); not the state that a prompt may leave to a decode step. D·u is 2 per
             element
    Kept     modelled: u, and the states at every step, or the powers of p and the frequencies of u and h
    Cache    the state, two numbers per pole, in fp32
    Source   Massaroli et al. 2023 (arXiv 2310.18780), section 3; StripedHyena's published code
    """

    width: Any
    states: Any
    fft: bool

    def weights(self) -> tuple[Weight, ...]:
        shape = self.width, self.states, 2
        return Weight("poles", shape), Weight("residues", shape), Weight("bias", (self.width,))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements, poles = work.positions * self.width, self.width * self.states
        skip = Elementwise("skip", elements, 2, Traffic(self.width * (4 * self.states + 1), 2 * elements, 0))
        if not self.fft or work.decoding:
            return Elementwise("scan", work.positions * poles, 11, Traffic(0, 0, self.passed(work)), "scan"), skip
        filters = Elementwise("filters", poles * work.keys, 11, Traffic(0, 2 * self.width * work.keys), "scan")
        return filters, *by_transforms(work, self.width, Traffic()), skip

    def saved(self, work: Workload) -> Any:
        inputs = work.positions * self.width
        if not self.fft or work.decoding:
            return inputs + 2 * inputs * self.states
        powers, frequencies = work.keys * self.width * self.states, (work.batch + 1) * (work.keys + 1) * self.width
        return inputs + 2 * powers + 2 * frequencies

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.width, 2, self.states

    def way(self) -> str:
        return f" of {self.states} poles, {'by transforms' if self.fft else 'token by token'}"


@frozen
class Sine(Leaf):
    """sin(f·x), with a learned frequency of each unit.

    Shapes   f (W,), x and y (S, W)
    Unit     2 FLOPs per element, under other
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


@frozen
class Decay(Leaf):
    """h·exp(−t·δ), with a fixed decay of each channel: a filter forgets.

    Unit     3 FLOPs per element, under other
    Kept     nothing new: the window is fixed
    Source   Poli et al. 2023 (arXiv 2302.10866), section 3.3
    """

    width: Any

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        return (Elementwise("decay", elements, 3, Traffic(0, 2 * elements)),)


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


@frozen
class Hyena(Composite):
    """x₁·(h ∗ (x₂·v)) between projections, all three through a short convolution: the operator of order 2.

    `filter`: the network that makes the filters; None where `long` has its own.
    Source   Poli et al. 2023 (arXiv 2302.10866), definition 3.1; StripedHyena's published code for modal filters
    """

    d_model: Any
    taps: Any
    bias: bool
    long: LongConvolution | ModalConvolution
    filter: ImplicitFilter | None

    def children(self) -> Iterator[Child]:
        width = self.d_model
        yield Child("in_proj", Linear(d_in=width, d_out=3 * width, bias=self.bias))
        yield Child("conv", short_memory(3 * width, self.taps, bias=True))
        if self.filter is not None:
            yield Child("filter", self.filter, on=on_filter)
        yield Child("write", Product(width=width, read=2 * width))
        yield Child("long", self.long)
        yield Child("read", Product(width=width, read=2 * width))
        yield Child("out_proj", Linear(d_in=width, d_out=width, bias=self.bias), duty="writes")

    def describe(self) -> str:
        return f"Hyena{self.long.way()}"


@frozen
class HyenaOptions(Mechanism, section="hyena"):
    taps: Any = key(size, 3, "taps of the short convolution")
    bias: bool = key(flag, True, "biases on the outer projections")
    form: str = key(
        one_of("fft", "direct", "recurrent"),
        "fft",
        "the long convolution by Fourier transforms, as a product, or (of poles) token by token",
    )
    states: Any = letter(
        0, "complex poles of each channel's filter (StripedHyena); 0: a network makes the filters", check=count
    )
    features: Any = letter(3, "features of a position that the filter's network reads", "states = 0")
    width: Any = letter(64, "width of that network", "states = 0")
    layers: int = key(up_to(64), 2, "its inner matrices, between the first and the last", "states = 0")

    def misfits(self) -> Iterator[Wished]:
        forms = ("fft", "direct") if absent(self.states) else ("fft", "recurrent")
        if self.form not in forms:
            yield Wished("form", f"{' or '.join(map(repr, forms))} with states = {self.states}")

    def build(self, place: Place) -> Hyena:
        width, fft = place.d_model, self.form in ("fft",)
        if absent(self.states):
            made = ImplicitFilter(features=self.features, width=self.width, layers=self.layers, channels=width)
            long = LongConvolution(width=width, fft=fft)
            return Hyena(d_model=width, taps=self.taps, bias=self.bias, long=long, filter=made)
        modal = ModalConvolution(width=width, states=self.states, fft=fft)
        return Hyena(d_model=width, taps=self.taps, bias=self.bias, long=modal, filter=None)
