"""Recurrent mixers: a short causal convolution, a state updated token by token, and the projections around them.

The projections and the convolution are headline FLOPs. The scan is counted in its sequential form under `other`:
chunked kernels trade it for matrix products whose number depends on the implementation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from txcalc.parts.frozen import frozen
from txcalc.parts.linear import Activation, Convolution, Linear, Norm
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


@frozen
class SelectiveScan(Leaf):
    """Mamba-1: h ← exp(Δ·A)·h + Δ·B·x, y = C·h + D·x, times silu(z), for every channel and state.

    Shapes   x, Δ, z and y (B, T, C), B and C (B, T, N), A (C, N), D (C), h (B, C, N)
    Unit     FLOPs under other: 8 a channel and state (Δ·A, exp, Δ·B, ·x, two multiplies-adds), and a channel's skip
             (2), softplus (2), silu (4) and product (1)
    Kept     modelled: x, Δ, z, B, C, and the states at every step
    Source   Gu and Dao 2023 (arXiv 2312.00752), algorithm 2
    """

    channels: Any
    states: Any

    def weights(self) -> tuple[Weight, ...]:
        return Weight("A_log", (self.channels, self.states)), Weight("D", (self.channels,))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows = work.positions
        moved = Traffic(self.channels * (self.states + 1), rows * (4 * self.channels + 2 * self.states), 0)
        state = Traffic(0, 0, 2 * work.batch * self.channels * self.states)
        return (
            Elementwise("scan", rows * self.channels * self.states, 8, state, "scan"),
            Elementwise("skip", rows * self.channels, 3 + COST["softplus"] + COST["silu"], moved, "scan"),
        )

    def saved(self, work: Workload) -> Any:
        return work.positions * (3 * self.channels + 2 * self.states + self.channels * self.states)

    def cache(self, work: Workload) -> Cache:
        state = self.channels * self.states
        return Cache(0, state, state)


@frozen
class HeadScan(Leaf):
    """Mamba-2: one decay a head, h ← a·h + (Δ·x)·Bᵀ, y = h·C + D·x.

    Shapes   x and y (B, T, heads, width), Δ and a (B, T, heads), B and C (B, T, groups, N), h (B, heads, width, N)
    Unit     FLOPs under other: 5 a channel and state, 3 a channel (Δ·x and the skip), 5 a head (Δ + bias, softplus,
             Δ·A, exp)
    Kept     modelled: x, Δ, B, C and the states at every step
    Source   Dao and Gu 2024 (arXiv 2405.21060), section 7
    """

    heads: Any
    width: Any
    groups: Any
    states: Any

    def weights(self) -> tuple[Weight, ...]:
        return Weight("A_log", (self.heads,)), Weight("D", (self.heads,)), Weight("dt_bias", (self.heads,))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, channels = work.positions, self.heads * self.width
        moved = Traffic(3 * self.heads, rows * (2 * channels + 2 * self.groups * self.states + self.heads), 0)
        state = Traffic(0, 0, 2 * work.batch * channels * self.states)
        return (
            Elementwise("scan", rows * channels * self.states, 5, state, "scan"),
            Elementwise("skip", rows * channels, 3, moved, "scan"),
            Elementwise("decay", rows * self.heads, 3 + COST["softplus"], Traffic(), "scan"),
        )

    def saved(self, work: Workload) -> Any:
        channels = self.heads * self.width
        return work.positions * (channels * (1 + self.states) + self.heads + 2 * self.groups * self.states)

    def cache(self, work: Workload) -> Cache:
        state = self.heads * self.width * self.states
        return Cache(0, state, state)


@frozen
class DeltaRule(Leaf):
    """The gated delta rule: S ← a·S, then S ← S + k·β·(v − Sᵀ·k)ᵀ, and y = Sᵀ·q, for every head of values.

    Shapes   q and k (B, T, key heads, d_k), of length 1 each; v and y (B, T, h, d_v), β (B, T, h), S (B, h, d_k, d_v),
             a (B, T, h, `decays`), one a head or one a row of S
    Unit     FLOPs under other: 7 an element of S (decay, two multiplies-adds to read, one to write), 2 a value
             (v − Sᵀ·k, β), 7 a channel of the keys (both lengths, 1/√d_k), 3 a head (β = sigmoid), and a decay's
             exp(−A·softplus(a + bias)) (5), or exp(`bound`·sigmoid(A·(a + bias))) (7)
    Kept     modelled: q, k, v, a, β and the states at every step
    Source   Yang et al. 2024 (arXiv 2412.06464), equation 10; with d_k decays Kimi Linear (arXiv 2510.26692)
    """

    n_heads: Any
    n_key_heads: Any
    d_key: Any
    d_value: Any
    decays: Any
    bound: Any = None

    def weights(self) -> tuple[Weight, ...]:
        return Weight("A_log", (self.n_heads,)), Weight("dt_bias", (self.n_heads * self.decays,))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, values, keys = work.positions, self.n_heads * self.d_value, self.n_key_heads * self.d_key
        decays = self.n_heads * self.decays
        moved = Traffic(self.n_heads + decays, rows * (2 * keys + 2 * values + decays + self.n_heads), 0)
        state = Traffic(0, 0, 2 * work.batch * values * self.d_key)
        gate = 3 + COST["softplus"] if self.bound is None else 4 + COST["sigmoid"]
        return (
            Elementwise("scan", rows * values * self.d_key, 7, state, "scan"),
            Elementwise("correction", rows * values, 2, moved, "scan"),
            Elementwise("lengths", rows * keys, 7, Traffic(), "scan"),
            Elementwise("strength", rows * self.n_heads, COST["sigmoid"], Traffic(), "scan"),
            Elementwise("decay", rows * decays, gate, Traffic(), "scan"),
        )

    def saved(self, work: Workload) -> Any:
        values, keys = self.n_heads * self.d_value, self.n_key_heads * self.d_key
        return work.positions * (values * (1 + self.d_key) + 2 * keys + self.n_heads * (1 + self.decays))

    def cache(self, work: Workload) -> Cache:
        state = self.n_heads * self.d_value * self.d_key
        return Cache(0, state, state)


@frozen
class Mamba(Composite):
    """A Mamba-1 mixer. `norm` (Jamba) normalises Δ, B and C: a norm of each width with these settings.

    Source   Gu and Dao 2023 (arXiv 2312.00752); Jamba (arXiv 2403.19887)
    """

    d_model: Any
    d_inner: Any
    d_state: Any
    d_conv: Any
    dt_rank: Any
    bias: bool
    conv_bias: bool
    norm_eps: Any = None  # None: no norms

    def children(self) -> Iterator[Child]:
        yield Child("in_proj", Linear(self.d_model, 2 * self.d_inner, self.bias))
        yield Child("conv", Convolution(self.d_inner, self.d_inner, self.d_conv, self.conv_bias, True, True))
        yield Child("x_proj", Linear(self.d_inner, self.dt_rank + 2 * self.d_state, False))
        if self.norm_eps is not None:
            yield Child("dt_norm", Norm(self.dt_rank, "rms", False, self.norm_eps))
            yield Child("b_norm", Norm(self.d_state, "rms", False, self.norm_eps))
            yield Child("c_norm", Norm(self.d_state, "rms", False, self.norm_eps))
        yield Child("dt_proj", Linear(self.dt_rank, self.d_inner, True))
        yield Child("scan", SelectiveScan(self.d_inner, self.d_state))
        yield Child("out_proj", Linear(self.d_inner, self.d_model, self.bias))


@frozen
class Mamba2(Composite):
    """A Mamba-2 mixer: one projection for z, x, B, C and Δ, and a gated RMSNorm before the last.

    Source   Dao and Gu 2024 (arXiv 2405.21060)
    """

    d_model: Any
    n_heads: Any
    d_head: Any
    n_groups: Any
    d_state: Any
    d_conv: Any
    bias: bool
    conv_bias: bool
    norm_eps: Any

    def children(self) -> Iterator[Child]:
        inner = self.n_heads * self.d_head
        mixed = inner + 2 * self.n_groups * self.d_state
        yield Child("in_proj", Linear(self.d_model, inner + mixed + self.n_heads, self.bias))
        yield Child("conv", Convolution(mixed, mixed, self.d_conv, self.conv_bias, True, True))
        yield Child("scan", HeadScan(self.n_heads, self.d_head, self.n_groups, self.d_state))
        yield Child("norm", Norm(inner, "rms", False, self.norm_eps))
        yield Child("out_proj", Linear(inner, self.d_model, self.bias))


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

    def children(self) -> Iterator[Child]:
        values, decays = self.n_heads * self.d_value, self.d_key if self.by_channel else 1
        mixed = 2 * self.n_key_heads * self.d_key + values
        yield Child("in_proj", Linear(self.d_model, mixed, False))
        yield from self._projected("decay", self.n_heads * decays)
        yield from self._projected("gate", values)
        yield Child("beta_proj", Linear(self.d_model, self.n_heads, False, "no"))
        yield Child("conv", Convolution(mixed, mixed, self.d_conv, False, True, True))
        yield Child("activation", Activation(mixed, "silu", False))
        yield Child("scan", DeltaRule(self.n_heads, self.n_key_heads, self.d_key, self.d_value, decays, self.bound))
        yield Child("norm", Norm(self.d_value, "rms", False, self.norm_eps, self.n_heads))
        yield Child("gate", Activation(values, self.gate, True))
        yield Child("out_proj", Linear(values, self.d_model, False))

    def _projected(self, name: str, width: Any) -> Iterator[Child]:
        """One projection, or two through the rank."""
        if self.rank is None:
            yield Child(f"{name}_proj", Linear(self.d_model, width, False, "no"))
        else:
            yield Child(f"{name}_down", Linear(self.d_model, self.rank, False, "no"))
            yield Child(f"{name}_up", Linear(self.rank, width, False))
