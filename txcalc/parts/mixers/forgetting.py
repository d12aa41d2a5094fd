"""Forgetting attention: softmax attention with a forget gate per head, computed from the input.

The sum of log f over the tokens between key and query is added to the score. Its running sum makes that one subtraction
per score, and is cached with k and v.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from txcalc.notation import pair
from txcalc.num import Num
from txcalc.parts.cores import SoftmaxCore, attend
from txcalc.parts.linear import Linear
from txcalc.parts.options import REQUIRED, Conflict, divided, key, per_head, size
from txcalc.parts.part import Child, Composite, Leaf, Operation, Workload, elementwise
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.sharding import Ways
from txcalc.parts.spans import Causal


class ForgetGate(Leaf):
    """c: the running sum of log σ(f) per head, continued from the cache.

    Shapes   f and c (B, T, h)
    Unit     FLOPs under other, per head and token: 2 for log σ (a softplus) and 1 for the sum
    Kept     f
    Source   Lin et al. 2025 (arXiv 2503.02130), section 3.1
    """

    n_heads: Num

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        gates = work.positions * self.n_heads
        return (
            elementwise("log_sigmoid", gates, "softplus", gates, gates),
            elementwise("sum", gates, "add", gates, gates),
        )

    def saved(self, work: Workload) -> Num:
        return work.positions * self.n_heads


class ForgettingCore(SoftmaxCore):
    """softmax(q·kᵀ + c_i − c_j)·v.

    Shapes   q (B, h, T, d), k and v (B, h_kv, S, d), c (B, h, S), y (B, T, h·d)
    Unit     FLOPs 4·B·h·d·T·S; other: 5 per score for the softmax, 2 for the decay
    Counts   the full T×S rectangle; `flops_masked` only the pairs that the span lets through
    Traffic  that of a fused kernel: q, k, v, c and y once, no score leaves the chip
    Kept     q, k, v; with `keep_scores` the h·T·S probabilities, without it y and c
    Cache    k, v and c
    Source   Lin et al. 2025 (arXiv 2503.02130), equations 4 to 6
    """

    plain = False

    @property
    def token(self) -> Num:
        return self.n_kv_heads * (self.d_qk + self.d_v) + self.n_heads

    def products(self, work: Workload) -> tuple[Operation, ...]:
        heads, keys, tokens = work.batch * self.n_heads, self.span.keys(work), work.tokens
        pairs, scores = self.span.visible(work), work.batch * self.n_heads * work.tokens * keys
        query, result = heads * tokens * self.d_qk, heads * tokens * self.d_v
        kv = work.batch * self.n_kv_heads * keys
        moved = self.span.moved(query, kv * self.d_qk + heads * keys), self.span.moved(result, kv * self.d_v)
        done = (elementwise(name, scores, "add", 0, 0) for name in ("forgotten", "forget"))
        return attend(heads, tokens, keys, (self.d_qk, self.d_v), pairs, moved, *done)

    def keeps(self, work: Workload) -> Num:
        tokens, keys = work.batch * work.tokens, work.batch * self.span.keys(work)
        query, kv = tokens * self.n_heads * self.d_qk, keys * self.n_kv_heads * (self.d_qk + self.d_v)
        result = tokens * self.n_heads * self.d_v + keys * self.n_heads
        return query + kv + (keys * work.tokens * self.n_heads if work.keep_scores else result)

    def describe_cache(self) -> str:
        return self.span.describe_cache(
            "K, V and what is forgotten", f"({pair(self.n_kv_heads, self.d_qk, self.d_v)} + {self.n_heads:,})"
        )


class ForgettingAttention(Composite):
    """q, k, v, a forget gate per head, the core and o; no other position encoding.

    Source   Lin et al. 2025 (arXiv 2503.02130), section 3.2: FoX in blocks as LLaMA's
    """

    d_model: Num
    n_heads: Num
    n_kv_heads: Num
    d_head: Num
    core: ForgettingCore

    def children(self) -> Iterator[Child]:
        d, queries, pairs = self.d_model, self.n_heads * self.d_head, self.n_kv_heads * self.d_head
        yield Child("q", Linear(d_in=d, d_out=queries, bias=False), duty="reads")
        yield Child("k", Linear(d_in=d, d_out=pairs, bias=False, keeps="no"), duty="reads")
        yield Child("v", Linear(d_in=d, d_out=pairs, bias=False, keeps="no"), duty="reads")
        yield Child("f", Linear(d_in=d, d_out=self.n_heads, bias=True, keeps="no"))
        yield Child("forget", ForgetGate(n_heads=self.n_heads))
        yield Child("core", self.core)
        yield Child("o", Linear(d_in=queries, d_out=d, bias=False, keeps="eager"), duty="writes")

    def peak_elements(self) -> Num:
        """Queries, keys, values and the result."""
        return 2 * self.n_heads * self.d_head + 2 * self.n_kv_heads * self.d_head

    def shard(self, ways: Ways) -> ForgettingAttention:
        """Its query heads with their gates, and its key/value heads or a replicated one."""
        heads, groups = ways.split("n_heads", self.n_heads), ways.groups("n_kv_heads", self.n_kv_heads)
        core = replace(self.core, n_heads=heads, n_kv_heads=groups)
        return replace(self, n_heads=heads, n_kv_heads=groups, core=core)


class ForgettingOptions(Mechanism, section="forgetting", kind="attention"):
    n_heads: Num = key(size, REQUIRED, "query heads, each with a forget gate")
    n_kv_heads: Num = key(size, lambda at: at["forgetting"]["n_heads"], "key/value heads")
    d_head: Num = key(size, per_head("forgetting"), "width per head")

    def conflicts(self) -> Iterator[Conflict]:
        yield from divided("n_kv_heads", self.n_kv_heads, "n_heads", self.n_heads)

    def build(self, place: Place) -> ForgettingAttention:
        heads = {"n_heads": self.n_heads, "n_kv_heads": self.n_kv_heads}
        core = ForgettingCore(**heads, d_qk=self.d_head, d_v=self.d_head, span=Causal())
        return ForgettingAttention(d_model=place.d_model, **heads, d_head=self.d_head, core=core)
