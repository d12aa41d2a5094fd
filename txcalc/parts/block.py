"""A block: its branches (attention, feed-forward, a mixer…) with their norms and residual sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from txcalc.parts.frozen import frozen
from txcalc.parts.linear import LayerScale, Norm, Sum
from txcalc.parts.part import Child, Composite


class Branch(NamedTuple):
    """One path beside the residual stream: x + post(scale·part(pre(x))); what it does not have is None.

    `kind` is what its leaves count as. `beside`: it reads what the block reads, not what the branches before it made.
    """

    name: str
    part: Composite
    kind: str | None
    pre: Norm | None
    post: Norm | None
    beside: bool = False
    scale: LayerScale | None = None


@frozen
class Block(Composite):
    """Branches one after the other, each with a residual sum; or side by side from one input (`parallel`).

    Norms stand before a branch (pre), after it (sandwich has both), or, `norm_after_sum`, after the sum (post-norm, as
    published in 2017). `shared_norm` is the one norm that a parallel block's branches share.
    Source   Vaswani et al. 2017; Xiong et al. 2020 (arXiv 2002.04745) pre-norm; GPT-J, PaLM (arXiv 2204.02311) parallel
    """

    d_model: Any
    branches: tuple[Branch, ...]
    parallel: bool = False
    norm_after_sum: bool = False
    shared_norm: Norm | None = None

    def children(self) -> Iterator[Child]:
        if self.shared_norm:
            yield Child("norm", self.shared_norm)
        for branch in self.branches:
            if branch.pre:
                yield Child(f"{branch.name}_norm", branch.pre)
            yield Child(branch.name, branch.part, kind=branch.kind)
            if branch.scale:
                yield Child(f"{branch.name}_scale", branch.scale)
            if branch.post:
                suffix = "norm" if self.norm_after_sum else "post_norm"
                yield Child(f"{branch.name}_{suffix}", branch.post)
        yield Child("residual", Sum(self.d_model, len(self.branches)), kind="other")
