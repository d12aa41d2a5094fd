"""RWKV-4: token shift, and a weighted sum with a learned decay per channel."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from txcalc.num import Num
from txcalc.parts.leaf import Recurrence
from txcalc.parts.linear import Activation, Linear
from txcalc.parts.options import REQUIRED, letter
from txcalc.parts.part import Child, Composite, Elementwise, Operation, Traffic, Weight, Workload
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.sharding import Ways


class TokenShift(Recurrence):
    """Token shift: μ·x_t + (1 − μ)·x_{t−1}, with a learned μ per channel and use.

    Shapes   x (B, T, D), one y (B, T, D) and one μ (D) for each of `uses`
    Unit     FLOPs under other: 3 per element and use
    Cache    the last token
    Kept     modelled: x once, and the shifted x
    Source   Peng et al. 2023 (arXiv 2305.13048), equations 11 to 13
    """

    kept_in_fp32 = False
    width: Num
    uses: tuple[str, ...]

    def weights(self) -> tuple[Weight, ...]:
        return tuple(Weight(use, (self.width,)) for use in self.uses)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements, times = work.positions * self.width, len(self.uses)
        moved = Traffic(times * self.width, elements * (1 + times), self.state_traffic(work))
        return (Elementwise("shift", times * elements, 3, moved, "scan"),)

    def saved(self, work: Workload) -> Num:
        return 2 * work.positions * self.width

    @property
    def shape(self) -> tuple[Num, ...]:
        return (self.width,)

    def describe_cache(self) -> str:
        return f"the last token: {self.width:,} elements"


class WeightedSum(Recurrence):
    """RWKV's wkv: past values weighted by e^k with a learned decay per channel, and the current one by e^{u+k}.

    Shapes   k, v and y (B, T, C), decay and bonus u (C); numerator, denominator and their largest exponent (B, C)
    Unit     FLOPs under other: 23 per channel (12 to read, 11 to update), in the form that subtracts the largest
             exponent
    Kept     modelled: k, v, y and the states at every step
    Source   Peng et al. 2023 (arXiv 2305.13048), appendix D
    """

    channels: Num

    def weights(self) -> tuple[Weight, ...]:
        return Weight("decay", (self.channels,)), Weight("bonus", (self.channels,))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.channels
        moved = Traffic(2 * self.channels, 3 * elements, self.state_traffic(work))
        return (Elementwise("scan", elements, 23, moved, "scan"),)

    def saved(self, work: Workload) -> Num:
        return 6 * work.positions * self.channels

    @property
    def shape(self) -> tuple[Num, ...]:
        return 3, self.channels

    def describe_cache(self) -> str:
        return f"a numerator, a denominator and their exponent: 3 · {self.channels:,} elements"


class TimeMix(Composite):
    """RWKV-4's time mixing: shifted tokens to keys, values and a gate (the receptance), and their weighted sum.

    Source   Peng et al. 2023 (arXiv 2305.13048), section 3.1
    """

    d_model: Num
    d_inner: Num

    def describe(self) -> str:
        return f"RWKV {self.d_inner:,}"

    def children(self) -> Iterator[Child]:
        yield Child("shift", TokenShift(width=self.d_model, uses=("key", "value", "receptance")))
        yield Child("k", Linear(d_in=self.d_model, d_out=self.d_inner, bias=False), duty="reads")
        yield Child("v", Linear(d_in=self.d_model, d_out=self.d_inner, bias=False), duty="reads")
        yield Child("r", Linear(d_in=self.d_model, d_out=self.d_inner, bias=False))
        yield Child("scan", WeightedSum(channels=self.d_inner))
        yield Child("gate", Activation(width=self.d_inner, form="sigmoid", gated=True))
        yield Child("out_proj", Linear(d_in=self.d_inner, d_out=self.d_model, bias=False), duty="writes")

    def shard(self, ways: Ways) -> TimeMix:
        """Its channels; the shift is replicated."""
        return replace(self, d_inner=ways.split("d_inner", self.d_inner))


class TimeMixOptions(Mechanism, section="time_mix"):
    d_inner: Num = letter(lambda at: at[""]["d_model"], "channels", grows="width")

    def build(self, place: Place) -> TimeMix:
        return TimeMix(d_model=place.d_model, d_inner=self.d_inner)


class ChannelMix(Composite):
    """RWKV-4's channel mixing: a feed-forward on shifted tokens with an output gate.

    Source   Peng et al. 2023 (arXiv 2305.13048), section 3.1
    """

    d_model: Num
    d_ff: Num

    def describe(self) -> str:
        return f"gated F = {self.d_ff:,}"

    def children(self) -> Iterator[Child]:
        yield Child("shift", TokenShift(width=self.d_model, uses=("key", "receptance")))
        yield Child("up", Linear(d_in=self.d_model, d_out=self.d_ff, bias=False))
        yield Child("activation", Activation(width=self.d_ff, form="relu2", gated=False))
        yield Child("down", Linear(d_in=self.d_ff, d_out=self.d_model, bias=False), duty="writes")
        yield Child("r", Linear(d_in=self.d_model, d_out=self.d_model, bias=False))
        yield Child("gate", Activation(width=self.d_model, form="sigmoid", gated=True))

    def shard(self, ways: Ways) -> ChannelMix:
        """Its columns; the shift and the output gate are replicated."""
        return replace(self, d_ff=ways.split("d_ff", self.d_ff))


class ChannelMixOptions(Mechanism, section="channel_mix", kind="feed_forward"):
    """`[channel_mix]`, in place of the feed-forward."""

    d_ff: Num = letter(REQUIRED, "width", grows="width")

    def build(self, place: Place) -> ChannelMix:
        return ChannelMix(d_model=place.d_model, d_ff=self.d_ff)
