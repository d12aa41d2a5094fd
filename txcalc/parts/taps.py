"""A convolution over time, and the short one of recurrent mixers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from txcalc.num import Num
from txcalc.parts.options import Table
from txcalc.parts.part import NO_CACHE, Cache, Leaf, MatMul, Operation, Traffic, Weight, Workload, elementwise


class Convolution(Leaf):
    """A one-dimensional convolution over time: of audio features, or depthwise in a recurrent mixer.

    Shapes   x (B, steps, c_in), W (c_out, c_in/groups, K), y (B, T, c_out); T counts outputs
    Unit     FLOPs 2·B·T·K·c_out·c_in/groups (depthwise: 2·B·T·K·C)
    Counts   all K taps at every output, padding included, as PyTorch does
    Cache    of a causal one its last K columns
    Source   Gu and Dao 2023 (arXiv 2312.00752), section 3.4; Radford et al. 2022 (arXiv 2212.04356), section 2.2
    """

    when_frozen: ClassVar[Table] = {"keeps": False}
    role = "product"
    initial_values: ClassVar[Mapping[str, str]] = {"bias": "zero"}
    c_in: Num
    c_out: Num
    taps: Num
    bias: bool
    depthwise: bool
    causal: bool
    stride: int = 1
    # Whether its input is saved for backward; False: an earlier leaf saves the same tensor.
    keeps: bool = True
    kept_in_fp32 = False

    def saved_differs(self, work: Workload) -> str:
        return "convolutions (unfolded in this trace, whole in the other)" if work.keep_scores else ""

    def weights(self) -> tuple[Weight, ...]:
        weight = Weight("weight", (self.c_out, 1 if self.depthwise else self.c_in, self.taps))
        return (weight, Weight("bias", (self.c_out,))) if self.bias else (weight,)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, fan_in = work.positions, self.taps if self.depthwise else self.taps * self.c_in
        weights = self.c_out * fan_in
        moved = Traffic(weights, rows * (self.stride * self.c_in + self.c_out))
        count, n = (self.c_out, 1) if self.depthwise else (1, self.c_out)
        product = MatMul("convolution", count, rows, fan_in, n, moved, "convolution")
        if not self.bias:
            return (product,)
        return product, elementwise("bias", rows * self.c_out, "add", 0, 0, self.c_out)

    def saved(self, work: Workload) -> Num:
        return work.positions * self.stride * self.c_in if self.keeps else 0

    @property
    def cache_kind(self) -> str:
        return "state" if self.causal else "nothing"

    def describe_cache(self) -> str:
        return f"the last {self.taps} columns of a convolution: {self.c_in:,} · {self.taps} elements"

    def cache(self, work: Workload) -> Cache:
        state = self.taps * self.c_in
        return Cache(0, state, state) if self.causal else NO_CACHE


def short_memory(channels: Num, taps: Num, *, bias: bool) -> Convolution:
    """The causal depthwise convolution of a recurrent mixer."""
    return Convolution(c_in=channels, c_out=channels, taps=taps, bias=bias, depthwise=True, causal=True)
