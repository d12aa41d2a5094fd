"""Attention pooling: a learned query over every position gives one vector per sequence."""

from __future__ import annotations

from collections.abc import Iterator

from txcalc.num import Num
from txcalc.parts.cores import AttentionCore
from txcalc.parts.feedforward import FeedForward
from txcalc.parts.linear import Linear, Sum, Vector
from txcalc.parts.norm import Norm
from txcalc.parts.part import Child, Composite, Workload, on_one


def _over_all(work: Workload) -> Workload:
    """One query that sees every position."""
    return on_one(work)._replace(past=0, source=work.tokens)


class AttentionPool(Composite):
    """A learned query attends to every position; a norm and a feed-forward follow.

    Shapes   x (B, T, D), y (B, D); heads of d_h
    Source   Zhai et al. 2022 (arXiv 2106.04560), section 3.4, with the feed-forward of SigLIP's head
    """

    d_model: Num
    probe: Vector
    core: AttentionCore
    norm: Norm
    feed_forward: FeedForward
    complete = True  # every rank has all of it

    def children(self) -> Iterator[Child]:
        width, inner = self.d_model, self.core.n_heads * self.core.d_qk
        yield Child("probe", self.probe)
        yield Child("q", Linear(d_in=width, d_out=inner, bias=True, keeps="no"), on=on_one, duty="reads")
        yield Child("k", Linear(d_in=width, d_out=inner, bias=True), duty="reads")
        yield Child("v", Linear(d_in=width, d_out=inner, bias=True, keeps="no"), duty="reads")
        yield Child("core", self.core, on=_over_all)
        yield Child("o", Linear(d_in=inner, d_out=width, bias=True, keeps="eager"), on=on_one, duty="writes")
        yield Child("norm", self.norm, on=on_one)
        yield Child("feed_forward", self.feed_forward, on=on_one)
        yield Child("residual", Sum(width=width, sums=1), on=on_one)
