"""State-space mixers (Mamba-1, Mamba-2, RG-LRU): a short causal convolution and a state updated per token.

Projections and convolution are headline FLOPs. The scan counts in its sequential form under `other`: chunked kernels
trade it for matrix products whose number depends on the implementation.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from txcalc.num import Num, ceil_div, exact_div
from txcalc.parts.leaf import Recurrence
from txcalc.parts.linear import Activation, BlockLinear, Linear, linear
from txcalc.parts.norm import Norm
from txcalc.parts.options import (
    LAYER_EPS,
    REQUIRED,
    RMS_EPS,
    Conflict,
    Table,
    Wrong,
    activation,
    flag,
    key,
    letter,
    per_head,
    size,
)
from txcalc.parts.part import COST, Child, Composite, Elementwise, Operation, Traffic, Weight, Workload, optional
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.sharding import AllReduce, Ways
from txcalc.parts.taps import short_memory


class SelectiveScan(Recurrence):
    """Mamba-1: h ← exp(Δ·A)·h + Δ·B·x, y = C·h + D·x, times silu(z), for every channel and state.

    Shapes   x, Δ, z and y (B, T, C), B and C (B, T, heads, N), each for its share of the channels, A (C, N), D (C),
             h (B, C, N)
    Unit     FLOPs under other: 8 per channel and state (Δ·A, exp, Δ·B, ·x, two multiplies-adds), and a channel's skip
             (2), softplus (2), silu (4) and product (1)
    Kept     modelled: x, Δ, z, B, C, and the states at every step
    Source   Gu and Dao 2023 (arXiv 2312.00752), algorithm 2
    """

    channels: Num
    states: Num
    heads: Num = 1

    def weights(self) -> tuple[Weight, ...]:
        return Weight("A_log", (self.channels, self.states)), Weight("D", (self.channels,))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows = work.positions
        moved = Traffic(self.channels * (self.states + 1), rows * (4 * self.channels + 2 * self.heads * self.states), 0)
        state = Traffic(0, 0, self.state_traffic(work))
        return (
            Elementwise("scan", rows * self.channels * self.states, 8, state, "scan"),
            Elementwise("skip", rows * self.channels, 3 + COST["softplus"] + COST["silu"], moved, "scan"),
        )

    def saved(self, work: Workload) -> Num:
        return work.positions * (3 * self.channels + 2 * self.heads * self.states + self.channels * self.states)

    @property
    def shape(self) -> tuple[Num, ...]:
        return self.channels, self.states


class HeadScan(Recurrence):
    """Mamba-2: one decay per head, h ← a·h + (Δ·x)·Bᵀ, y = h·C + D·x.

    Shapes   x and y (B, T, heads, width), Δ and a (B, T, heads), B and C (B, T, groups, N), h (B, heads, width, N)
    Unit     FLOPs under other: 5 per channel and state, 3 per channel (Δ·x and the skip), 5 per head (Δ + bias,
             softplus, Δ·A, exp)
    Kept     modelled: x, Δ, B, C and the states at every step
    Source   Dao and Gu 2024 (arXiv 2405.21060), section 7
    """

    heads: Num
    width: Num
    groups: Num
    states: Num

    def weights(self) -> tuple[Weight, ...]:
        return Weight("A_log", (self.heads,)), Weight("D", (self.heads,)), Weight("dt_bias", (self.heads,))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, channels = work.positions, self.heads * self.width
        moved = Traffic(3 * self.heads, rows * (2 * channels + 2 * self.groups * self.states + self.heads), 0)
        state = Traffic(0, 0, self.state_traffic(work))
        return (
            Elementwise("scan", rows * channels * self.states, 5, state, "scan"),
            Elementwise("skip", rows * channels, 3, moved, "scan"),
            Elementwise("decay", rows * self.heads, 3 + COST["softplus"], Traffic(), "scan"),
        )

    def saved(self, work: Workload) -> Num:
        channels = self.heads * self.width
        return work.positions * (channels * (1 + self.states) + self.heads + 2 * self.groups * self.states)

    @property
    def shape(self) -> tuple[Num, ...]:
        return self.heads, self.width, self.states


class GatedRecurrence(Recurrence):
    """RG-LRU: h ← a·h + √(1 − a²)·(i·x) with a = exp(−8·softplus(Λ)·r), for every channel; the first h is i·x.

    Shapes   x, y and the gates' logits i and r (B, T, C), Λ (C), h (B, C)
    Unit     FLOPs under other, per channel: 2 to update, 6 for both sigmoids, 8 for a, √(1 − a²) and the products
    Kept     modelled: x, i, r, a and the state at every step
    Source   De et al. 2024 (arXiv 2402.19427), equations 1 to 4
    """

    channels: Num

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("rate", (self.channels,)),)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.channels
        state = Traffic(0, 0, self.state_traffic(work))
        return (
            Elementwise("scan", elements, 2, state, "scan"),
            Elementwise("gates", elements, 8 + 2 * COST["sigmoid"], Traffic(self.channels, 4 * elements, 0), "scan"),
        )

    def saved(self, work: Workload) -> Num:
        return 5 * work.positions * self.channels

    @property
    def shape(self) -> tuple[Num, ...]:
        return (self.channels,)


class Mamba(Composite):
    """A Mamba-1 mixer. With `norm_eps` (Jamba) Δ, B and C have RMSNorms. `n_heads` (Zamba): each group of channels has
    its own Δ, B and C.

    Source   Gu and Dao 2023 (arXiv 2312.00752); Jamba (arXiv 2403.19887); Zamba (arXiv 2405.16712)
    """

    d_model: Num
    d_inner: Num
    d_state: Num
    d_conv: Num
    dt_rank: Num
    bias: bool
    conv_bias: bool
    norm_eps: float | None = None  # None: no norms
    n_heads: int | None = None
    # On one rank: joins Δ, B and C, which are sums over all channels.
    join: AllReduce | None = None

    def describe(self) -> str:
        return f"Mamba {self.d_inner:,} × {self.d_state}"

    def children(self) -> Iterator[Child]:
        yield Child("in_proj", Linear(d_in=self.d_model, d_out=2 * self.d_inner, bias=self.bias))
        yield Child("conv", short_memory(self.d_inner, self.d_conv, bias=self.conv_bias))
        heads, read = self.n_heads or 1, self.dt_rank + 2 * self.d_state
        yield Child("x_proj", linear(self.d_inner, heads * read, bias=False, groups=self.n_heads))
        yield from optional("x_join", self.join)
        if self.norm_eps is not None:
            yield Child("dt_norm", Norm(width=self.dt_rank, form="rms", bias=False, eps=self.norm_eps))
            yield Child("b_norm", Norm(width=self.d_state, form="rms", bias=False, eps=self.norm_eps))
            yield Child("c_norm", Norm(width=self.d_state, form="rms", bias=False, eps=self.norm_eps))
        yield Child("dt_proj", linear(heads * self.dt_rank, self.d_inner, bias=True, groups=self.n_heads), duty="steps")
        yield Child("scan", SelectiveScan(channels=self.d_inner, states=self.d_state, heads=heads))
        yield Child("out_proj", Linear(d_in=self.d_inner, d_out=self.d_model, bias=self.bias), duty="writes")

    def shard(self, ways: Ways) -> Mamba:
        """Its channels; Δ, B and C are replicated."""
        if self.n_heads is not None:
            ways.cannot_split("Mamba mixer of several heads")
        join = ways.all_reduce(self.dt_rank + 2 * self.d_state)
        return replace(self, d_inner=ways.split("d_inner", self.d_inner), join=join)


class MambaOptions(Mechanism, section="mamba"):
    """`[mamba]`: by default 2·d_model channels and a step-size rank of d_model/16."""

    d_inner: Num = letter(lambda at: 2 * at[""]["d_model"], "channels", cut="n_heads", grows="width")
    d_state: Num = letter(16, "states per channel")
    d_conv: Num = key(size, 4, "kernel width of the short convolution")
    dt_rank: Num = letter(lambda at: ceil_div(at[""]["d_model"], 16), "rank of the step-size projection", grows="width")
    bias: bool = key(flag, False, "biases on the outer projections")
    conv_bias: bool = key(flag, True, "bias of the convolution")
    norms: bool = key(flag, False, "RMSNorms on the step size, B and C")
    n_heads: Num | None = key(size, None, "groups of channels, each with its own step size, B and C; absent: one")

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.n_heads is not None and self.norms:
            yield Conflict("n_heads", "none with norms on the step size, B and C")

    def build(self, place: Place) -> Mamba:
        eps = place.norm.epsilon_or(RMS_EPS)
        return self.into(Mamba, d_model=place.d_model, norm_eps=eps if self.norms else None)


class Mamba2(Composite):
    """A Mamba-2 mixer: one projection for z, x, B, C and Δ, and a gated RMSNorm (or gate) before the output projection.

    Source   Dao and Gu 2024 (arXiv 2405.21060)
    """

    d_model: Num
    n_heads: Num
    d_head: Num
    n_groups: Num
    d_state: Num
    d_conv: Num
    bias: bool
    conv_bias: bool
    norm_eps: float | None  # None: no norm
    # On one rank: joins the mean square of each group of channels that several ranks share.
    join: AllReduce | None = None

    def describe(self) -> str:
        return f"Mamba-2 {self.n_heads} × {self.d_head}"

    def children(self) -> Iterator[Child]:
        inner = self.n_heads * self.d_head
        mixed = inner + 2 * self.n_groups * self.d_state
        yield Child("in_proj", Linear(d_in=self.d_model, d_out=inner + mixed + self.n_heads, bias=self.bias))
        yield Child("conv", short_memory(mixed, self.d_conv, bias=self.conv_bias))
        yield Child("scan", HeadScan(heads=self.n_heads, width=self.d_head, groups=self.n_groups, states=self.d_state))
        if self.norm_eps is not None:
            yield Child("norm", Norm(width=inner, form="rms", bias=False, eps=self.norm_eps))
            yield from optional("norm_join", self.join, duty="statistics")
        yield Child("out_proj", Linear(d_in=inner, d_out=self.d_model, bias=self.bias), duty="writes")

    def shard(self, ways: Ways) -> Mamba2:
        """Its heads, and their groups of B and C or a replicated one."""
        heads, groups = ways.split("n_heads", self.n_heads), ways.groups("n_groups", self.n_groups)
        return replace(self, n_heads=heads, n_groups=groups, join=ways.group_statistics(self.n_groups))


def _heads_of_twice(at: Table) -> Num:
    """2·D/d_head, where it is whole."""
    d_model, width = at[""]["d_model"], at["mamba2"]["d_head"]
    try:
        return exact_div(2 * d_model, width)
    except ValueError:
        raise Wrong(f"a number of heads: d_head = {width} does not divide 2·d_model = {2 * d_model}") from None


class Mamba2Options(Mechanism, section="mamba2"):
    """`[mamba2]`: by default 2·d_model channels in all."""

    d_head: Num = letter(64, "width per head", grows="head")
    n_heads: Num = letter(_heads_of_twice, "heads", of="n_groups", grows="heads")
    n_groups: Num = letter(1, "groups that share B and C")
    d_state: Num = letter(128, "states per channel")
    d_conv: Num = key(size, 4, "kernel width of the short convolution")
    bias: bool = key(flag, False, "biases on the outer projections")
    conv_bias: bool = key(flag, True, "bias of the convolution")
    norm: bool = key(flag, True, "gated RMSNorm of the scan's output")

    def build(self, place: Place) -> Mamba2:
        eps = place.norm.epsilon_or(LAYER_EPS)
        return self.into(Mamba2, d_model=place.d_model, norm_eps=eps if self.norm else None)


class Griffin(Composite):
    """Griffin's recurrent block: a convolution and an RG-LRU with block-diagonal gates, times an output gate.

    Source   De et al. 2024 (arXiv 2402.19427), section 2.3
    """

    d_model: Num
    n_heads: Num
    d_head: Num
    d_conv: Num
    bias: bool
    conv_bias: bool
    activation: str

    def describe(self) -> str:
        return f"RG-LRU {self.n_heads} × {self.d_head}"

    def children(self) -> Iterator[Child]:
        inner = self.n_heads * self.d_head
        yield Child("in_proj", Linear(d_in=self.d_model, d_out=inner, bias=self.bias))
        yield Child("gate_proj", Linear(d_in=self.d_model, d_out=inner, bias=self.bias, keeps="no"))
        yield Child("conv", short_memory(inner, self.d_conv, bias=self.conv_bias))
        yield Child("input_gate", BlockLinear(n_heads=self.n_heads, width=self.d_head))
        yield Child("decay_gate", BlockLinear(n_heads=self.n_heads, width=self.d_head, keeps=False))
        yield Child("scan", GatedRecurrence(channels=inner))
        yield Child("gate", Activation(width=inner, form=self.activation, gated=True))
        yield Child("out_proj", Linear(d_in=inner, d_out=self.d_model, bias=self.bias), duty="writes")

    def shard(self, ways: Ways) -> Griffin:
        """Its heads, each with its channels and gates."""
        return replace(self, n_heads=ways.split("n_heads", self.n_heads))


class GriffinOptions(Mechanism, section="rg_lru"):
    n_heads: Num = letter(REQUIRED, "heads: blocks of the block-diagonal gates", grows="heads")
    d_head: Num = letter(per_head("rg_lru"), "channels per head", grows="head")
    d_conv: Num = key(size, 4, "kernel width of the short convolution")
    bias: bool = key(flag, True, "biases on the outer projections")
    conv_bias: bool = key(flag, True, "bias of the convolution")
    activation: str = key(activation, "gelu_tanh", "activation of the output gate")

    def build(self, place: Place) -> Griffin:
        return self.into(Griffin, d_model=place.d_model)
