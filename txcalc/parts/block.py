"""A block: branches (attention, feed-forward, a mixer…) with norms and residual additions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

from msgspec.structs import replace

from txcalc.num import Num, maximum, total
from txcalc.parts.adapters import Adapters, freeze
from txcalc.parts.hyper import HyperConnection
from txcalc.parts.linear import Activation, LayerScale, Linear, Sum
from txcalc.parts.norm import Norm
from txcalc.parts.part import Child, Composite, Leaf, MatMul, Operation, Traffic, Workload, elementwise, optional
from txcalc.parts.sharding import Collective, Ways
from txcalc.parts.shared import SharedBlock


class Branch(NamedTuple):
    """One residual branch: x + post(scale·part(pre(x))); absent pieces are None.

    kind               what its leaves count as
    from_block_input   reads the block's input, not the stream after the branches before it
    follows            reads what the branch before it reads, through that one's norm (Falcon-H1, arXiv 2507.22448)
    stream             scales x as the branch's result is added to it (Doge, arXiv 2412.11834)
    sums               residual additions to count: 0 where leaves of the part do the addition
    gather, join       on one rank: the collectives before it (its positions) and after it (the sum over ranks)
    """

    name: str
    part: Composite
    kind: str | None
    pre: Norm | None
    post: Norm | None
    from_block_input: bool = False
    scale: LayerScale | None = None
    follows: bool = False
    gather: Collective | None = None
    join: Collective | None = None
    stream: LayerScale | None = None
    sums: int = 1


class Laurel(Composite):
    """LAuReL: x + norm(right(left(x))), a learned low-rank residual parallel to a block's first branch, on its normed
    input. The sum of stream, branch and this residual is divided by √2.

    Source   Menghani et al. 2024 (arXiv 2411.07501), section 3.2
    """

    d_model: Num
    rank: Num
    norm: Norm
    on_stream = True

    def children(self) -> Iterator[Child]:
        yield Child("left", Linear(d_in=self.d_model, d_out=self.rank, bias=False, keeps="no"))
        yield Child("right", Linear(d_in=self.rank, d_out=self.d_model, bias=False))
        yield Child("norm", self.norm)
        yield Child("sum", Sum(width=self.d_model, sums=3))


class Mix(Leaf):
    """Each of n residual streams plus a mix of all, with coefficients per token.

    Shapes   streams (n, B, T, D), coefficients (B, T, n, n)
    Unit     FLOPs 2·B·T·D·n²; 1 per element of all streams under other
    Source   Baykal et al. 2023 (arXiv 2301.13310), section 3
    """

    width: Num
    number: Num

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width * self.number
        moved = Traffic(0, 2 * elements + work.positions * self.number * self.number)
        mixed = MatMul("mix", work.positions, self.width, self.number, self.number, moved)
        return mixed, elementwise("sum", elements, "add", 2 * elements, elements)

    def saved(self, work: Workload) -> Num:
        return work.positions * self.number * (self.width + self.number)


class Streams(Composite):
    """AltUp: a block predicts all n residual streams, runs on the `active` one, and corrects all.

    Coefficients per token: tanh(router(norm(x))) of the active stream, before and after the block. `scale` multiplies
    the corrected active stream that the per-layer input reads.

    Source   Baykal et al. 2023 (arXiv 2301.13310), section 3; Gemma Team 2025, Gemma 3n
    """

    width: Num
    number: Num
    active: int
    norm: Norm
    on_stream = True

    def children(self) -> Iterator[Child]:
        yield Child("norm", self.norm, runs=2)
        yield Child("router", Linear(d_in=self.width, d_out=self.number, bias=False), runs=2)
        yield Child("activation", Activation(width=self.number, form="tanh", gated=False), runs=2)
        yield Child("predict", Linear(d_in=self.number, d_out=self.number * self.number, bias=False, keeps="no"))
        yield Child("mix", Mix(width=self.width, number=self.number))
        yield Child("correct", Linear(d_in=self.number, d_out=self.number, bias=False, keeps="no"))
        yield Child("update", Sum(width=self.number * self.width, sums=3))
        yield Child("scale", LayerScale(width=self.width))


class Block(Composite):
    """Branches in sequence, each with a residual addition; or parallel from one input (`parallel`).

    Norms are before a branch (pre), after it (sandwich has both) or, with `norm_after_sum`, after the addition
    (post-norm, as published in 2017). `shared_norm`: the one norm of parallel branches. The `joint` branches read one
    input, and `joint_norm` norms the sum of their results. `scaled`: one stored number (a buffer) multiplies the
    block's result. With `adapters` all other weights are frozen.
    Source   Vaswani et al. 2017; Xiong et al. 2020 (arXiv 2002.04745) pre-norm; GPT-J, PaLM (arXiv 2204.02311) parallel
    """

    d_model: Num
    branches: tuple[Branch, ...]
    parallel: bool = False
    norm_after_sum: bool = False
    shared_norm: Norm | None = None
    joint: tuple[str, ...] = ()
    joint_norm: Norm | None = None
    scaled: bool = False
    # Multiplies the result of each branch.
    residual_scale: float | None = None
    laurel: Laurel | None = None
    streams: Streams | None = None
    # Hyper-connections of every branch.
    hyper: HyperConnection | None = None
    adapters: Adapters | None = None
    # A block shared by layers, whose result the first branch reads too.
    shared: SharedBlock | None = None
    on_stream = True

    def peak_elements(self) -> Num:
        """The peak of its widest branch."""
        return reduce(maximum, (branch.part.peak_elements() for branch in self.branches), 0)

    def children(self) -> Iterator[Child]:
        yield from self._all() if self.adapters is None else freeze(self._all(), self.adapters)[0]

    def _all(self) -> Iterator[Child]:
        if self.shared:
            yield Child("shared", self.shared, kind="other")
            yield Child("shared_sum", Sum(width=self.d_model, sums=1), kind="other")
        yield from optional("streams", self.streams, kind="other")
        yield from optional("laurel", self.laurel, kind="other")
        yield from optional("norm", self.shared_norm)
        for branch in self.branches:
            if self.hyper:
                yield Child(f"{branch.name}_streams", self.hyper, kind="other")
            if branch.pre:
                yield Child(f"{branch.name}_norm", branch.pre)
            if branch.gather:
                yield Child(f"{branch.name}_gather", branch.gather)
            yield Child(branch.name, branch.part, kind=branch.kind)
            if branch.join:
                yield Child(f"{branch.name}_join", branch.join)
            if branch.scale:
                yield Child(f"{branch.name}_scale", branch.scale)
            if branch.stream:
                yield Child(f"{branch.name}_residual", branch.stream)
            if branch.post:
                suffix = "norm" if self.norm_after_sum else "post_norm"
                yield Child(f"{branch.name}_{suffix}", branch.post)
            if self.joint_norm and branch.name == self.joint[len(self.joint) - 1]:
                yield Child("joint_norm", self.joint_norm)
        sums = total([branch.sums for branch in self.branches])
        sums = sums if self.residual_scale is None else 2 * sums
        if self.hyper is None:
            yield Child("residual", Sum(width=self.d_model, sums=sums), kind="other")
        if self.scaled:
            yield Child("scale", Sum(width=self.d_model, sums=1), kind="other")

    @property
    def cuttable(self) -> bool:
        """Not with shared KV, a block shared by layers, or several residual streams."""
        return self.shared is None and self.hyper is None and all(branch.part.cuttable for branch in self.branches)

    def shard(self, ways: Ways) -> Block:
        """Shares of the branches; norms and additions are replicated."""
        if self.shared:
            ways.cannot_split("block that layers share")
        return replace(self, branches=ways.branches(self.branches, self.d_model, self.parallel))
