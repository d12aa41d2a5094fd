"""Hyena: a convolution as long as the sequence in place of attention. A small network of the position makes its filter,
or the filter is a sum of decaying exponentials (StripedHyena's modal form).

A long convolution is a T² product (`direct`), or uses Fourier transforms of 2·T points (`fft`), whose arithmetic counts
under other by a stated rule. In a decode step the filter multiplies the cached inputs position by position; modal
filters update a state of fixed size.
"""

from __future__ import annotations

from collections.abc import Iterator

from txcalc.num import Num, ceil_log2, triangle
from txcalc.parts.convolution import Product
from txcalc.parts.leaf import Recurrence
from txcalc.parts.linear import Linear
from txcalc.parts.options import Conflict, absent, count, flag, key, letter, one_of, size, up_to
from txcalc.parts.part import Cache, Child, Composite, Elementwise, Leaf, MatMul, Operation, Traffic, Weight, Workload
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.taps import short_memory


def on_filter(work: Workload) -> Workload:
    """All positions of the filter, once for all sequences."""
    return work._replace(batch=1, tokens=work.keys, past=0)


def by_transforms(work: Workload, width: Num, moved: Traffic) -> tuple[Operation, ...]:
    """The operations of a long convolution by Fourier transforms."""
    transforms = (2 * work.batch + 1) * width * work.keys * ceil_log2(2 * work.keys)
    return (
        Elementwise("transforms", transforms, 5, moved, "scan"),
        Elementwise("frequencies", work.batch * width * (work.keys + 1), 6, Traffic(), "scan"),
    )


class LongConvolution(Leaf):
    """y = h ∗ u + D·u per channel, causal over all positions.

    Shapes   u and y (B, T, C), h (C, S), D (C)
    Unit     direct, and in a decode step: FLOPs 2·B·C·T·S, dense, as a product with a triangular matrix; fft: under
             other 5·N·⌈log₂ N⌉ for a complex transform of N = 2·S points, half of it for real numbers, of u, of h once
             for all sequences, and back; 6 per complex product of S + 1 frequencies. D·u is 2 per element, under other
    Counts   `flops_masked` of the direct form: the pairs with a key at or before their query
    Kept     u and h; with transforms u and the S + 1 complex frequencies of both
    Cache    u of every token
    Source   Poli et al. 2023 (arXiv 2302.10866), section 3; 5·N·log₂ N: Cooley and Tukey 1965, as FFTW reports speeds
    """

    kept_in_fp32 = False
    width: Num
    fft: bool
    cache_kind = "tokens"

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

    def saved(self, work: Workload) -> Num:
        inputs, filters = work.batch * work.keys * self.width, work.keys * self.width
        if not self.fft or work.decoding:
            return inputs + filters
        return inputs + 2 * (work.batch + 1) * (work.keys + 1) * self.width

    def describe_cache(self) -> str:
        return f"what a long convolution reads, of every token: {self.width:,} · S elements"

    def cache(self, work: Workload) -> Cache:
        return Cache(self.width, 0, self.width * work.keys)

    def way(self) -> str:
        return f", by {'transforms' if self.fft else 'products'}"


class ModalConvolution(Recurrence):
    """A long convolution with modal filters h(t) = Re Σ r·pᵗ of N complex poles p and residues r per channel, which
    have a recurrent state: s ← p·s + u, y = Re Σ r·s + D·u.

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

    width: Num
    states: Num
    fft: bool

    def weights(self) -> tuple[Weight, ...]:
        shape = self.width, self.states, 2
        return Weight("poles", shape), Weight("residues", shape), Weight("bias", (self.width,))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements, poles = work.positions * self.width, self.width * self.states
        skip = Elementwise("skip", elements, 2, Traffic(self.width * (4 * self.states + 1), 2 * elements, 0))
        if not self.fft or work.decoding:
            return Elementwise(
                "scan", work.positions * poles, 11, Traffic(0, 0, self.state_traffic(work)), "scan"
            ), skip
        filters = Elementwise("filters", poles * work.keys, 11, Traffic(0, 2 * self.width * work.keys), "scan")
        return filters, *by_transforms(work, self.width, Traffic()), skip

    def saved(self, work: Workload) -> Num:
        inputs = work.positions * self.width
        if not self.fft or work.decoding:
            return inputs + 2 * inputs * self.states
        powers, frequencies = work.keys * self.width * self.states, (work.batch + 1) * (work.keys + 1) * self.width
        return inputs + 2 * powers + 2 * frequencies

    @property
    def shape(self) -> tuple[Num, ...]:
        return self.width, 2, self.states

    def way(self) -> str:
        return f" of {self.states} poles, {'by transforms' if self.fft else 'token by token'}"


class Sine(Leaf):
    """sin(f·x), with a learned frequency per unit.

    Shapes   f (W,), x and y (S, W)
    Unit     2 FLOPs per element, under other
    Kept     x and cos(f·x)
    Source   Romero et al. 2021 (arXiv 2102.02611), section 3.1, as Hyena's filters have it
    """

    width: Num

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("frequency", (self.width,)),)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        return (Elementwise("sine", elements, 2, Traffic(self.width, 2 * elements)),)

    def saved(self, work: Workload) -> Num:
        return 2 * work.positions * self.width


class Decay(Leaf):
    """h·exp(−t·δ), with a fixed decay per channel.

    Unit     3 FLOPs per element, under other
    Kept     nothing new: the decay is fixed
    Source   Poli et al. 2023 (arXiv 2302.10866), section 3.3
    """

    width: Num

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width
        return (Elementwise("decay", elements, 3, Traffic(0, 2 * elements)),)


class ImplicitFilter(Composite):
    """A filter per channel as a network of the position: features, sines between `layers` + 2 matrices, a decay.

    Shapes   features (S, E): the position, and sines and cosines of it; h (S, C)
    Source   Poli et al. 2023 (arXiv 2302.10866), section 3.3; its code's order of layers
    """

    features: Num
    width: Num
    layers: int
    channels: Num

    def children(self) -> Iterator[Child]:
        yield Child("first", Linear(d_in=self.features, d_out=self.width, bias=True), gradient="weights")
        yield Child("sine", Sine(width=self.width), runs=self.layers + 1)
        inner = Linear(d_in=self.width, d_out=self.width, bias=True)
        yield Child("inner", inner, times=self.layers, indices=range(self.layers))
        yield Child("last", Linear(d_in=self.width, d_out=self.channels, bias=False))
        yield Child("decay", Decay(width=self.channels))


class Hyena(Composite):
    """x₁·(h ∗ (x₂·v)) between projections, after a short convolution of all three: the Hyena operator of order 2.

    `filter`: the network that makes the filters; None where `long` has its own.
    Source   Poli et al. 2023 (arXiv 2302.10866), definition 3.1; StripedHyena's published code for modal filters
    """

    d_model: Num
    taps: Num
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


class HyenaOptions(Mechanism, section="hyena"):
    taps: Num = key(size, 3, "kernel width of the short convolution")
    bias: bool = key(flag, True, "biases on the outer projections")
    form: str = key(
        one_of("fft", "direct", "recurrent"),
        "fft",
        "the long convolution by Fourier transforms, as a product, or (modal) token by token",
    )
    states: Num = letter(
        0, "complex poles per channel's modal filter (StripedHyena); 0: a network makes the filters", check=count
    )
    features: Num = letter(3, "position features that the filter network reads", "states = 0")
    width: Num = letter(64, "width of that network", "states = 0")
    layers: int = key(up_to(64), 2, "its inner matrices", "states = 0")

    def conflicts(self) -> Iterator[Conflict]:
        forms = ("fft", "direct") if absent(self.states) else ("fft", "recurrent")
        if self.form not in forms:
            yield Conflict("form", f"{' or '.join(map(repr, forms))} with states = {self.states}")

    def build(self, place: Place) -> Hyena:
        width, fft = place.d_model, self.form == "fft"
        if absent(self.states):
            filter_ = ImplicitFilter(features=self.features, width=self.width, layers=self.layers, channels=width)
            long = LongConvolution(width=width, fft=fft)
            return Hyena(d_model=width, taps=self.taps, bias=self.bias, long=long, filter=filter_)
        modal = ModalConvolution(width=width, states=self.states, fft=fft)
        return Hyena(d_model=width, taps=self.taps, bias=self.bias, long=modal, filter=None)
