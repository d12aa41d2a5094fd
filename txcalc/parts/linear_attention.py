"""Attention without a softmax, which needs no past but a state: the gated delta rule, fixed decays, RWKV.

As of all recurrent mixers the projections and convolutions are headline FLOPs, and the scan, in its sequential form, is
counted under `other` (see `parts.recurrent`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, final

from txcalc.parts.collectives import AllReduce
from txcalc.parts.frozen import frozen
from txcalc.parts.linear import Activation, Convolution, Linear
from txcalc.parts.norm import Norm
from txcalc.parts.options import (
    REQUIRED,
    RMS_EPS,
    Mechanism,
    Place,
    Wished,
    activation,
    divided,
    flag,
    key,
    one_of,
    per_head,
    real,
    size,
)
from txcalc.parts.part import (
    COST,
    Cache,
    Child,
    Composite,
    Elementwise,
    Leaf,
    Operation,
    Traffic,
    Weight,
    Workload,
)
from txcalc.parts.sharding import Ways


@final
@frozen
class DeltaRule(Leaf):
    """The gated delta rule: S ← a·S, then S ← S + k·β·(v − Sᵀ·k)ᵀ, and y = Sᵀ·q, for every head of values.

    `signed`: β reaches from 0 to 2, not to 1, and eigenvalues from −1 (Grazzi et al. 2024, arXiv 2411.12537).

    Shapes   q and k (B, T, key heads, d_k), of length 1 each; v and y (B, T, h, d_v), β (B, T, h), S (B, h, d_k, d_v),
             a (B, T, h, `decays`), one a head or one a row of S
    Unit     FLOPs under other: 7 an element of S (decay, two multiplies-adds to read, one to write), 2 a value
             (v − Sᵀ·k, β), 7 a channel of the keys (both lengths, 1/√d_k), 3 a head (β = sigmoid; 4 `signed`), and a
             decay's exp(−A·softplus(a + bias)) (5), or exp(`bound`·sigmoid(A·(a + bias))) (7)
    Kept     modelled: q, k, v, a, β and the states at every step
    Source   Yang et al. 2024 (arXiv 2412.06464), equation 10; with d_k decays Kimi Linear (arXiv 2510.26692)
    """

    n_heads: Any
    n_key_heads: Any
    d_key: Any
    d_value: Any
    decays: Any
    bound: Any = None
    signed: bool = False

    def weights(self) -> tuple[Weight, ...]:
        return Weight("A_log", (self.n_heads,)), Weight("dt_bias", (self.n_heads * self.decays,))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, values, keys = work.positions, self.n_heads * self.d_value, self.n_key_heads * self.d_key
        decays = self.n_heads * self.decays
        moved = Traffic(self.n_heads + decays, rows * (2 * keys + 2 * values + decays + self.n_heads), 0)
        state = Traffic(0, 0, 2 * work.batch * values * self.d_key)
        gate = 3 + COST["softplus"] if self.bound is None else 4 + COST["sigmoid"]
        strength = COST["sigmoid"] + self.signed
        return (
            Elementwise("scan", rows * values * self.d_key, 7, state, "scan"),
            Elementwise("correction", rows * values, 2, moved, "scan"),
            Elementwise("lengths", rows * keys, 7, Traffic(), "scan"),
            Elementwise("strength", rows * self.n_heads, strength, Traffic(), "scan"),
            Elementwise("decay", rows * decays, gate, Traffic(), "scan"),
        )

    def saved(self, work: Workload) -> Any:
        values, keys = self.n_heads * self.d_value, self.n_key_heads * self.d_key
        return work.positions * (values * (1 + self.d_key) + 2 * keys + self.n_heads * (1 + self.decays))

    @property
    def holds(self) -> str:
        return "state"

    def kept(self) -> str:
        return f"a state of {self.n_heads:,} · {self.d_key:,} · {self.d_value:,} elements"

    def cache(self, work: Workload) -> Cache:
        state = self.n_heads * self.d_value * self.d_key
        return Cache(0, state, state)


@final
@frozen
class DecayScan(Leaf):
    """Linear attention with a fixed decay a head: S ← λ·S + k·vᵀ and y = Sᵀ·q.

    Shapes   q, k, v and y (B, T, h, d), S (B, h, d, d)
    Unit     FLOPs under other: 5 an element of S (decay, a multiply-add to write, one to read)
    Kept     modelled: q, k, v and the states at every step
    Source   Qin et al. 2024 (arXiv 2401.04658), equation 3
    """

    n_heads: Any
    d_head: Any

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, width = work.positions, self.n_heads * self.d_head
        moved = Traffic(0, 4 * rows * width, 2 * work.batch * width * self.d_head)
        return (Elementwise("scan", rows * width * self.d_head, 5, moved, "scan"),)

    def saved(self, work: Workload) -> Any:
        return work.positions * self.n_heads * self.d_head * (3 + self.d_head)

    @property
    def holds(self) -> str:
        return "state"

    def kept(self) -> str:
        return f"a state of {self.n_heads:,} · {self.d_head:,} · {self.d_head:,} elements"

    def cache(self, work: Workload) -> Cache:
        state = self.n_heads * self.d_head * self.d_head
        return Cache(0, state, state)


@final
@frozen
class TokenShift(Leaf):
    """Each token mixed with the one before, by a learned share for every channel and use: μ·x_t + (1 − μ)·x_{t−1}.

    Shapes   x (B, T, D), one y (B, T, D) and one μ (D) for each of `uses`
    Unit     FLOPs under other: 3 an element and use
    Counts   cache: the last token
    Kept     modelled: x once, and the token before
    Source   Peng et al. 2023 (arXiv 2305.13048), equations 11 to 13
    """

    width: Any
    uses: tuple[str, ...]

    def weights(self) -> tuple[Weight, ...]:
        return tuple(Weight(use, (self.width,)) for use in self.uses)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements, times = work.positions * self.width, len(self.uses)
        moved = Traffic(times * self.width, elements * (1 + times), 2 * work.batch * self.width)
        return (Elementwise("shift", times * elements, 3, moved, "scan"),)

    def saved(self, work: Workload) -> Any:
        return 2 * work.positions * self.width

    @property
    def holds(self) -> str:
        return "state"

    def kept(self) -> str:
        return f"the last token: {self.width:,} elements"

    def cache(self, work: Workload) -> Cache:
        return Cache(0, self.width, self.width)


@final
@frozen
class WeightedSum(Leaf):
    """RWKV's wkv: past values weighted by e^k, decaying at a learned rate a channel, and the present one by e^{u+k}.

    Shapes   k, v and y (B, T, C), decay and bonus u (C); numerator, denominator and their largest exponent (B, C)
    Unit     FLOPs under other: 23 a channel, in the form that subtracts the largest exponent: 12 to read, 11 to update
    Kept     modelled: k, v, y and the states at every step
    Source   Peng et al. 2023 (arXiv 2305.13048), appendix D
    """

    channels: Any

    def weights(self) -> tuple[Weight, ...]:
        return Weight("decay", (self.channels,)), Weight("bonus", (self.channels,))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.channels
        moved = Traffic(2 * self.channels, 3 * elements, 2 * work.batch * 3 * self.channels)
        return (Elementwise("scan", elements, 23, moved, "scan"),)

    def saved(self, work: Workload) -> Any:
        return 6 * work.positions * self.channels

    @property
    def holds(self) -> str:
        return "state"

    def kept(self) -> str:
        return f"a numerator, a denominator and their exponent: 3 · {self.channels:,} elements"

    def cache(self, work: Workload) -> Cache:
        return Cache(0, 3 * self.channels, 3 * self.channels)


@final
@frozen
class MatrixScan(Leaf):
    """The matrix memory of an xLSTM: C ← f·C + i·k·vᵀ, n ← f·n + i·k and y = Cᵀ·q / max(|n·q|, 1), in the form that
    takes the largest exponent m out of the gates' logarithms.

    Shapes   q and k (B, T, h, d_k), v and y (B, T, h, d_v), gates i and f (B, T, h), C (B, h, d_k, d_v), n (B, h, d_k),
             m (B, h)
    Unit     FLOPs under other: 5 an element of C (decay, i·k·v written, a multiply-add to read), 7 a channel of the
             keys (i·k, decay, addition, a multiply-add to read n, 1/√d_k of q, |·|), 1 a value (the division), 22 a
             head (both logits capped by a tanh, log σ(f), the new m, both gates, e^−m, the maximum)
    Kept     modelled: q, k, v, the gates and the states at every step
    Source   Beck et al. 2024 (arXiv 2405.04517), equations 19 to 27; Beck et al. 2025 (arXiv 2503.13427)
    """

    n_heads: Any
    d_key: Any
    d_value: Any

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, keys, values = work.positions, self.n_heads * self.d_key, self.n_heads * self.d_value
        moved = Traffic(0, rows * (2 * keys + 2 * values + 2 * self.n_heads), 0)
        state = Traffic(0, 0, 2 * work.batch * self._state)
        return (
            Elementwise("scan", rows * values * self.d_key, 5, state, "scan"),
            Elementwise("normaliser", rows * keys, 7, moved, "scan"),
            Elementwise("division", rows * values, 1, Traffic(), "scan"),
            Elementwise("gates", rows * self.n_heads, 22, Traffic(), "scan"),
        )

    @property
    def _state(self) -> Any:
        return self.n_heads * (self.d_key * self.d_value + self.d_key + 1)

    def saved(self, work: Workload) -> Any:
        steps = 2 * self.d_key + self.d_value + 2
        return work.positions * (self.n_heads * steps + self._state)

    @property
    def holds(self) -> str:
        return "state"

    def kept(self) -> str:
        return f"a memory of {self.n_heads:,} · ({self.d_key:,} · {self.d_value:,} + {self.d_key:,} + 1) elements"

    def cache(self, work: Workload) -> Cache:
        return Cache(0, self._state, self._state)


@final
@frozen
class DeltaNet(Composite):
    """A gated delta rule between projections: q, k and v through a short convolution, a norm of what every head reads,
    and a gate on it.

    `by_channel`: a decay for every channel of the keys, not one a head. `rank`: decays and gate are projected through
    so few dimensions; None: directly.
    Source   Yang et al. 2024 (arXiv 2412.06464), section 3.3; Kimi Linear (arXiv 2510.26692)
    """

    d_model: Any
    n_heads: Any
    n_key_heads: Any
    d_key: Any
    d_value: Any
    d_conv: Any
    by_channel: bool
    bound: Any
    rank: Any
    gate: str
    norm_eps: Any
    signed: bool = False

    def describe(self) -> str:
        return f"delta rule {self.n_heads} × {self.d_key} × {self.d_value}"

    def children(self) -> Iterator[Child]:
        values, decays = self.n_heads * self.d_value, self.d_key if self.by_channel else 1
        mixed = 2 * self.n_key_heads * self.d_key + values
        yield Child("in_proj", Linear(d_in=self.d_model, d_out=mixed, bias=False))
        yield from self._projected("decay", self.n_heads * decays)
        yield from self._projected("gate", values)
        yield Child("beta_proj", Linear(d_in=self.d_model, d_out=self.n_heads, bias=False, keeps="no"))
        yield Child(
            "conv", Convolution(c_in=mixed, c_out=mixed, taps=self.d_conv, bias=False, depthwise=True, causal=True)
        )
        yield Child("activation", Activation(width=mixed, form="silu", gated=False))
        rule = DeltaRule(
            n_heads=self.n_heads,
            n_key_heads=self.n_key_heads,
            d_key=self.d_key,
            d_value=self.d_value,
            decays=decays,
            bound=self.bound,
            signed=self.signed,
        )
        yield Child("scan", rule)
        yield Child("norm", Norm(width=self.d_value, form="rms", bias=False, eps=self.norm_eps, groups=self.n_heads))
        yield Child("gate", Activation(width=values, form=self.gate, gated=True))
        yield Child("out_proj", Linear(d_in=values, d_out=self.d_model, bias=False))

    def shard(self, ways: Ways) -> DeltaNet:
        """Its heads, and their heads of queries and keys, or one that other ranks have too; what projects to a low rank
        is whole."""
        heads = ways.split("n_heads", self.n_heads)
        return replace(self, n_heads=heads, n_key_heads=ways.groups("n_key_heads", self.n_key_heads))

    def _projected(self, name: str, width: Any) -> Iterator[Child]:
        """One projection, or two through the rank."""
        if self.rank is None:
            yield Child(f"{name}_proj", Linear(d_in=self.d_model, d_out=width, bias=False, keeps="no"))
        else:
            yield Child(f"{name}_down", Linear(d_in=self.d_model, d_out=self.rank, bias=False, keeps="no"))
            yield Child(f"{name}_up", Linear(d_in=self.rank, d_out=width, bias=False))


@final
@frozen
class DeltaOptions(Mechanism):
    """`[delta]`"""

    section = "delta"
    n_heads: Any = key(size, REQUIRED, "heads of values")
    n_key_heads: Any = key(size, lambda at: at["delta"]["n_heads"], "heads of queries and keys")
    d_key: Any = key(size, 128, "width of a query/key head")
    d_value: Any = key(size, lambda at: at["delta"]["d_key"], "width of a value head")
    d_conv: Any = key(size, 4, "taps of the short convolution")
    decay: str = key(one_of("head", "channel"), "head", "one decay a head, or one for each channel of its keys")
    bound: Any = key(real, None, "the decays' logarithm is this times a sigmoid; absent: −A times a softplus")
    rank: Any = key(size, None, "rank of the projections to decays and gate; absent: projected directly")
    gate: str = key(one_of("silu", "sigmoid"), "silu", "activation of the gate on what is read")
    signed: bool = key(flag, False, "what is written reaches to twice its value, so that eigenvalues may be negative")

    def misfits(self) -> Iterator[Wished]:
        yield from divided("n_key_heads", self.n_key_heads, "n_heads", self.n_heads)

    def build(self, place: Place) -> DeltaNet:
        return DeltaNet(
            d_model=place.d_model,
            n_heads=self.n_heads,
            n_key_heads=self.n_key_heads,
            d_key=self.d_key,
            d_value=self.d_value,
            d_conv=self.d_conv,
            by_channel=self.decay == "channel",
            bound=self.bound,
            rank=self.rank,
            gate=self.gate,
            norm_eps=RMS_EPS if place.norm.eps is None else place.norm.eps,
            signed=self.signed,
        )


@final
@frozen
class LinearAttention(Composite):
    """Lightning attention: q, k and v through an activation, fixed decays, a norm over all heads, and a sigmoid's gate.

    Source   Qin et al. 2024 (arXiv 2401.04658); MiniMax-01 (arXiv 2501.08313), section 2.2
    """

    d_model: Any
    n_heads: Any
    d_head: Any
    activation: str
    norm_eps: Any
    # Of one rank's share: the mean square of all heads.
    join: AllReduce | None = None

    def describe(self) -> str:
        return f"linear attention {self.n_heads} × {self.d_head}"

    def children(self) -> Iterator[Child]:
        inner = self.n_heads * self.d_head
        yield Child("in_proj", Linear(d_in=self.d_model, d_out=3 * inner, bias=False))
        yield Child("gate_proj", Linear(d_in=self.d_model, d_out=inner, bias=False, keeps="no"))
        yield Child("activation", Activation(width=3 * inner, form=self.activation, gated=False))
        yield Child("scan", DecayScan(n_heads=self.n_heads, d_head=self.d_head))
        yield Child("norm", Norm(width=inner, form="rms", bias=False, eps=self.norm_eps))
        if self.join:
            yield Child("norm_join", self.join)
        yield Child("gate", Activation(width=inner, form="sigmoid", gated=True))
        yield Child("out_proj", Linear(d_in=inner, d_out=self.d_model, bias=False))

    def shard(self, ways: Ways) -> LinearAttention:
        """Its heads."""
        return replace(self, n_heads=ways.split("n_heads", self.n_heads), join=ways.summed(1))


@final
@frozen
class LinearAttentionOptions(Mechanism):
    """`[linear_attention]`"""

    section = "linear_attention"
    n_heads: Any = key(size, REQUIRED, "heads, each with a fixed decay")
    d_head: Any = key(size, per_head("linear_attention"), "width of a head")
    activation: str = key(activation, "silu", "activation of queries, keys and values")

    def build(self, place: Place) -> LinearAttention:
        # Its norm's own, whatever the norms around it have.
        return LinearAttention(
            d_model=place.d_model,
            n_heads=self.n_heads,
            d_head=self.d_head,
            activation=self.activation,
            norm_eps=RMS_EPS,
        )


@final
@frozen
class TimeMix(Composite):
    """RWKV-4's mixing over time: shifted tokens to keys, values and a gate (the receptance), and their weighted sum.

    Source   Peng et al. 2023 (arXiv 2305.13048), section 3.1
    """

    d_model: Any
    d_inner: Any

    def describe(self) -> str:
        return f"RWKV {self.d_inner:,}"

    def children(self) -> Iterator[Child]:
        yield Child("shift", TokenShift(width=self.d_model, uses=("key", "value", "receptance")))
        yield Child("k", Linear(d_in=self.d_model, d_out=self.d_inner, bias=False))
        yield Child("v", Linear(d_in=self.d_model, d_out=self.d_inner, bias=False))
        yield Child("r", Linear(d_in=self.d_model, d_out=self.d_inner, bias=False))
        yield Child("scan", WeightedSum(channels=self.d_inner))
        yield Child("gate", Activation(width=self.d_inner, form="sigmoid", gated=True))
        yield Child("out_proj", Linear(d_in=self.d_inner, d_out=self.d_model, bias=False))

    def shard(self, ways: Ways) -> TimeMix:
        """Its channels; the shift, which they all read, is whole."""
        return replace(self, d_inner=ways.split("d_inner", self.d_inner))


@final
@frozen
class TimeMixOptions(Mechanism):
    """`[time_mix]`"""

    section = "time_mix"
    d_inner: Any = key(size, lambda at: at[""]["d_model"], "channels")

    def build(self, place: Place) -> TimeMix:
        return TimeMix(d_model=place.d_model, d_inner=self.d_inner)


@final
@frozen
class ChannelMix(Composite):
    """RWKV-4's feed-forward: of shifted tokens, with a gate on what comes out.

    Source   Peng et al. 2023 (arXiv 2305.13048), section 3.1
    """

    d_model: Any
    d_ff: Any

    def describe(self) -> str:
        return f"gated F = {self.d_ff:,}"

    def children(self) -> Iterator[Child]:
        yield Child("shift", TokenShift(width=self.d_model, uses=("key", "receptance")))
        yield Child("up", Linear(d_in=self.d_model, d_out=self.d_ff, bias=False))
        yield Child("activation", Activation(width=self.d_ff, form="relu2", gated=False))
        yield Child("down", Linear(d_in=self.d_ff, d_out=self.d_model, bias=False))
        yield Child("r", Linear(d_in=self.d_model, d_out=self.d_model, bias=False))
        yield Child("gate", Activation(width=self.d_model, form="sigmoid", gated=True))

    def shard(self, ways: Ways) -> ChannelMix:
        """Its columns; the shift and the gate on what comes out are whole."""
        return replace(self, d_ff=ways.split("d_ff", self.d_ff))


@final
@frozen
class ChannelMixOptions(Mechanism):
    """`[channel_mix]`, in the place of the feed-forward."""

    section = "channel_mix"
    kind = "feed_forward"
    d_ff: Any = key(size, REQUIRED, "width")

    def build(self, place: Place) -> ChannelMix:
        return ChannelMix(d_model=place.d_model, d_ff=self.d_ff)


@final
@frozen
class MatrixMemory(Composite):
    """An mLSTM layer: q, k, v and an output gate projected from the input, two gates a head, and a norm of every head.

    `bias` is that of the wide projections and of the norm; the gates' always have one.
    Source   Beck et al. 2025 (arXiv 2503.13427), section 2.2
    """

    d_model: Any
    n_heads: Any
    d_key: Any
    d_value: Any
    bias: bool
    norm_eps: Any
    cap: Any = None

    def describe(self) -> str:
        return f"mLSTM {self.n_heads} × {self.d_key} × {self.d_value}"

    def children(self) -> Iterator[Child]:
        d, keys, values = self.d_model, self.n_heads * self.d_key, self.n_heads * self.d_value
        yield Child("q", Linear(d_in=d, d_out=keys, bias=self.bias))
        yield Child("k", Linear(d_in=d, d_out=keys, bias=self.bias, keeps="no"))
        yield Child("v", Linear(d_in=d, d_out=values, bias=self.bias, keeps="no"))
        yield Child("gate_proj", Linear(d_in=d, d_out=values, bias=self.bias, keeps="no"))
        yield Child("input_gate", Linear(d_in=d, d_out=self.n_heads, bias=True, keeps="no"))
        yield Child("forget_gate", Linear(d_in=d, d_out=self.n_heads, bias=True, keeps="no"))
        yield Child("scan", MatrixScan(n_heads=self.n_heads, d_key=self.d_key, d_value=self.d_value))
        yield Child("norm", self.norm)
        yield Child("gate", Activation(width=values, form="sigmoid", gated=True))
        yield Child("out_proj", Linear(d_in=values, d_out=d, bias=self.bias))

    @property
    def norm(self) -> Norm:
        """Of what each head reads, with a weight for each of its channels."""
        eps, heads = self.norm_eps, self.n_heads
        return Norm(width=self.d_value, form="layer", bias=self.bias, eps=eps, groups=heads, apart=True)

    def shard(self, ways: Ways) -> MatrixMemory:
        """Its heads."""
        return replace(self, n_heads=ways.split("n_heads", self.n_heads))


@final
@frozen
class MatrixMemoryOptions(Mechanism):
    """`[matrix_memory]`"""

    section = "matrix_memory"
    n_heads: Any = key(size, REQUIRED, "heads")
    d_key: Any = key(size, REQUIRED, "width of a query/key head")
    d_value: Any = key(size, REQUIRED, "width of a value head")
    bias: bool = key(flag, False, "biases on the wide projections and the norm")
    cap: Any = key(real, None, "logits of the gates are capped at ± this by a tanh")

    def build(self, place: Place) -> MatrixMemory:
        return MatrixMemory(
            d_model=place.d_model,
            n_heads=self.n_heads,
            d_key=self.d_key,
            d_value=self.d_value,
            bias=self.bias,
            norm_eps=RMS_EPS if place.norm.eps is None else place.norm.eps,
            cap=self.cap,
        )
