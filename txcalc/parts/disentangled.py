"""Disentangled attention (DeBERTa): separate products for content and relative position.

A table of relative positions, shared by all layers, is projected per head to keys (content to position, c2p) and
queries (position to content, p2c), once per layer whatever the batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from txcalc.num import Num, minimum
from txcalc.parts.linear import Linear, Lookup
from txcalc.parts.norm import Norm
from txcalc.parts.part import Child, Composite, Leaf, MatMul, Operation, Traffic, Workload, elementwise, optional
from txcalc.parts.spans import Attended


class DistanceTable(Composite):
    """A vector per relative position: `rows`/2 per side, or as many buckets; optionally with a norm."""

    rows: Num
    width: Num
    norm: Norm | None

    def children(self) -> Iterator[Child]:
        yield Child("table", Lookup(rows=self.rows, width=self.width), on=self._every_row)
        yield from optional("norm", self.norm, on=self._every_row)

    def _every_row(self, work: Workload) -> Workload:
        return work._replace(batch=1, tokens=self.rows)


class DisentangledCore(Leaf):
    """softmax(q·kᵀ + q·Kᵀ + k·Qᵀ)·v, where K and Q are projected relative positions, gathered per pair.

    Shapes   q, k, v (B, h, T, d), K and Q (h, R, d), y (B, T, h·d); R = 2·`reach`, the table's rows, or 2·T where it is
             `clipped` to the distances that occur and these are fewer
    Unit     FLOPs 4·B·h·d·T², and for each of the two terms it has 2·B·h·d·T·R; other: 5 per score for the softmax, and
             1 for each term added
    Kept     q, k, v; for each term q or k again, in per-head layout, and its h·T·R products; h·T² probabilities with
             `keep_scores`, without it y
    Source   He et al. 2020 (arXiv 2006.03654), equations 2 to 4
    """

    kind = "attention_core"
    role = "attention"
    n_heads: Num
    d_head: Num
    reach: Num
    distance: Num  # the longest one; more than `reach` where the rows are buckets
    clipped: bool
    c2p: bool
    p2c: bool
    scale: float | None = None
    extra_products = "the products with the distances too"

    @property
    def attended(self) -> Attended:
        return Attended(self.n_heads, self.n_heads, self.d_head, self.d_head, strided=True)

    def saved_differs(self, work: Workload) -> str:
        return "" if work.keep_scores else "disentangled scores (PyTorch has no fused kernel for them)"

    @property
    def breakpoints(self) -> tuple[Num, ...]:
        """Lengths below `reach` have fewer relative positions than the table."""
        return (self.reach,) if self.clipped else ()

    def distances(self, work: Workload) -> Num:
        """R."""
        return 2 * (minimum(work.tokens, self.reach) if self.clipped else self.reach)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        heads, tokens, rows = work.batch * self.n_heads, work.tokens, self.distances(work)
        elements, scores = heads * tokens * self.d_head, heads * tokens * tokens
        content = MatMul("scores", heads, tokens, self.d_head, tokens, Traffic(0, 2 * elements), "attention")
        table = Traffic(0, elements + self.n_heads * rows * self.d_head + heads * tokens * rows)
        term = MatMul("", heads, tokens, self.d_head, rows, table, "attention")
        added = elementwise("added", scores, "add", 0, 0)
        return (
            content,
            *((term._replace(name="c2p"), added) if self.c2p else ()),
            *((term._replace(name="p2c"), added) if self.p2c else ()),
            elementwise("softmax", scores, "softmax", 0, 0),
            MatMul("values", heads, tokens, tokens, self.d_head, Traffic(0, 2 * elements), "attention"),
        )

    def saved(self, work: Workload) -> Num:
        elements = work.positions * self.n_heads * self.d_head
        term = elements + work.positions * self.n_heads * self.distances(work)
        scores_or_output = work.positions * work.tokens * self.n_heads if work.keep_scores else elements
        return 3 * elements + (self.c2p + self.p2c) * term + scores_or_output


class DisentangledAttention(Composite):
    """q, k, v, the projections of relative positions to keys and queries, the core and o.

    `biases` names the token projections with one. The projections of positions may be `borrowed`: q and k themselves
    (DeBERTa-v3).
    """

    d_model: Num
    n_heads: Num
    d_head: Num
    biases: frozenset[str]
    distance_k: Linear | None
    distance_q: Linear | None
    core: DisentangledCore

    def children(self) -> Iterator[Child]:
        width = self.n_heads * self.d_head
        yield Child("q", Linear(d_in=self.d_model, d_out=width, bias="q" in self.biases), duty="reads")
        yield Child("k", Linear(d_in=self.d_model, d_out=width, bias="k" in self.biases, keeps="no"), duty="reads")
        yield Child("v", Linear(d_in=self.d_model, d_out=width, bias="v" in self.biases, keeps="no"), duty="reads")
        yield from optional("distance_k", self.distance_k, on=self._at_distances)
        if self.distance_q:
            yield Child("distance_q", self.distance_q, on=self._at_distances)
        yield Child("core", self.core)
        yield Child("o", Linear(d_in=width, d_out=self.d_model, bias="o" in self.biases, keeps="eager"), duty="writes")

    def _at_distances(self, work: Workload) -> Workload:
        return work._replace(batch=1, tokens=self.core.distances(work))
