"""Attention: the core between the projections, and the two families of layers.

`Attention` is MHA, GQA or MQA by its number of key/value heads, self or cross; `LatentAttention` is DeepSeek's MLA,
where an `Indexer` may select the keys (sparse attention).
Rotary embedding, Q/K norms, biases, sinks and windows are fields or children, never a model's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, final

from txcalc.notation import named_by_groups, pair
from txcalc.num import exact_div, minimum
from txcalc.parts.collectives import AllGather, AllReduce
from txcalc.parts.frozen import frozen
from txcalc.parts.linear import SAVES_RESULT, Linear, Norm, Sum, linear
from txcalc.parts.part import (
    NO_CACHE,
    Attended,
    Cache,
    Child,
    Composite,
    Leaf,
    MatMul,
    Operation,
    Traffic,
    Weight,
    Workload,
    elementwise,
    on_all_keys,
    on_source,
)
from txcalc.parts.sharding import Ways

# Spans are an attention's own words: they are imported from here too.
from txcalc.parts.spans import Around as Around
from txcalc.parts.spans import Blocks as Blocks
from txcalc.parts.spans import Causal as Causal
from txcalc.parts.spans import Chunks as Chunks
from txcalc.parts.spans import Cross as Cross
from txcalc.parts.spans import Full as Full
from txcalc.parts.spans import Selected as Selected
from txcalc.parts.spans import Span as Span
from txcalc.parts.spans import Window as Window
from txcalc.parts.spans import Windowed as Windowed


@frozen
class SoftmaxCore(Leaf):
    """What every core of a softmax over keys has: heads, what a query sees, and the k and v that are kept."""

    kind = "attention_core"
    role = "attention"
    n_heads: Any
    n_kv_heads: Any
    d_qk: Any
    d_v: Any
    span: Span

    def describe(self) -> str:
        form = named_by_groups(self.n_heads, self.n_kv_heads)
        return f"{form} {self.n_heads}/{self.n_kv_heads} × {self.d_qk}{self.span.describe()}"

    @property
    def attended(self) -> Attended:
        return Attended(self.n_heads, self.n_kv_heads, self.d_qk, self.d_v)

    @property
    def turns(self) -> tuple[Any, ...]:
        return () if self.span.most is None else (self.span.most,)

    @property
    def period(self) -> Any:
        return self.span.period

    def statistics(self, work: Workload) -> Any:
        return 0 if work.keep_scores else work.positions * self.n_heads

    @property
    def token(self) -> Any:
        """Elements of a token's k and v."""
        return self.n_kv_heads * (self.d_qk + self.d_v)

    @property
    def holds(self) -> str:
        return self.span.holds

    @property
    def fills(self) -> Any:
        return self.span.fills

    def cache(self, work: Workload) -> Cache:
        return self.span.cache(work, self.token)

    def dense(self, work: Workload) -> Any:
        return self.span.dense(work, self.token)

    def paged(self, work: Workload, block: Any, chunk: Any) -> Any:
        return self.span.paged(work, self.token, block, chunk)

    def kept(self) -> str:
        return self.span.kept("K and V", pair(self.n_kv_heads, self.d_qk, self.d_v))


@final
@frozen
class AttentionCore(SoftmaxCore):
    """softmax(q·kᵀ)·v between the projections, its cache, and the sinks it may hold.

    Shapes   q (B, h, T, d_qk), k (B, h_kv, S, d_qk), v (B, h_kv, S, d_v), y (B, T, h·d_v)
    Unit     FLOPs 2·B·h·(d_qk + d_v)·T·S; with `distances` q meets the projected relative positions too, another
             2·B·h·d_qk·T·S; other: 5 a score for the softmax, 1 each for an added bias and a soft cap
    Counts   the full T×S rectangle; `flops_masked` only the pairs that the span lets through
    Traffic  that of a fused kernel: q, k, v and y once, no score leaves the chip
    Kept     q, k, v and the projected distances; with `keep_scores` the h·T·S probabilities (a sink's too, and what a
             soft cap made of the scores), without it y (the fused kernel's own result)
    Cache    k and v; none where they are `borrowed` from an earlier layer, which keeps them
    Source   Vaswani et al. 2017 (arXiv 1706.03762), equation 1; Dao et al. 2022 (arXiv 2205.14135)
    """

    sinks: bool = False
    biased: bool = False
    distances: bool = False
    softcap: Any = None
    scale: Any = None
    borrowed: bool = False

    @property
    def beyond(self) -> str:
        return "the products with the distances too" if self.distances else ""

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("sinks", (self.n_heads,)),) if self.sinks else ()

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        heads, keys, tokens = work.batch * self.n_heads, self.span.keys(work), work.tokens
        pairs = self.span.visible(work)
        query, result = heads * tokens * self.d_qk, heads * tokens * self.d_v
        kv, scores = work.batch * self.n_kv_heads * keys, heads * tokens * keys
        read, written = self.span.moved(query, kv * self.d_qk, self.params), self.span.moved(result, kv * self.d_v)
        content = MatMul("scores", heads, tokens, self.d_qk, keys, read, "attention", pairs * self.d_qk)
        distance = content._replace(name="distances", traffic=Traffic(0, heads * keys * self.d_qk))
        return (
            content,
            *((distance,) if self.distances else ()),
            *((elementwise("softcap", scores, "tanh", 0, 0),) if self.softcap is not None else ()),
            *((elementwise("bias", scores, "add", 0, 0),) if self.biased else ()),
            elementwise("softmax", scores, "softmax", 0, 0),
            MatMul("values", heads, tokens, keys, self.d_v, written, "attention", pairs * self.d_v),
        )

    def saved(self, work: Workload) -> Any:
        tokens, keys = work.batch * work.tokens, work.batch * self.span.keys(work)
        query, kv = tokens * self.n_heads * self.d_qk, keys * self.n_kv_heads * (self.d_qk + self.d_v)
        scores = (keys + work.batch if self.sinks else keys) * work.tokens * self.n_heads
        scores = scores if self.softcap is None else scores + keys * work.tokens * self.n_heads
        kept = scores if work.keep_scores else tokens * self.n_heads * self.d_v
        distances = keys * self.n_heads * self.d_qk if self.distances else 0
        return query + kept + distances if self.borrowed else query + kv + kept + distances

    @property
    def token(self) -> Any:
        """None of its own where they are borrowed."""
        return 0 if self.borrowed else self.n_kv_heads * (self.d_qk + self.d_v)

    @property
    def holds(self) -> str:
        return "nothing" if self.borrowed else self.span.holds

    def cache(self, work: Workload) -> Cache:
        return NO_CACHE if self.borrowed else self.span.cache(work, self.token)


@final
@frozen
class DifferentialCore(SoftmaxCore):
    """Heads in two halves: what one reads less λ times what the other reads, each of the values of both halves. λ is
    learned: exp(a·b) − exp(c·d) of four vectors, and more in later layers.

    Shapes   q (B, T, h, d), k and v (B, S, h_kv, d), vectors (d,), y (B, T, h/2, 2·d)
    Unit     FLOPs 8·B·T·S·h·d: a half meets its keys anew for each half of the values, so that values are as wide as
             keys, as kernels want them; other: 5 a score for the softmax, 3 a result: λ, the difference, its scale
    Counts   the full T×S rectangle; `flops_masked` only the pairs that the span lets through
    Traffic  that of fused kernels, each of which reads its half of q, k and v
    Kept     q, k, v and the four results (with `keep_scores` the probabilities instead), and what λ multiplies, where
             it learns
    Source   Ye et al. 2024 (arXiv 2410.05258), equation 1
    """

    scale: Any = None
    learns: bool = True

    @property
    def frozen(self) -> DifferentialCore:
        return replace(self, learns=False)

    @property
    def beyond(self) -> str:
        return "two attentions with the same queries and keys"

    def weights(self) -> tuple[Weight, ...]:
        return tuple(Weight(name, (self.d_qk,)) for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        heads, keys, tokens = 2 * work.batch * self.n_heads, self.span.keys(work), work.tokens
        pairs, width = self.span.visible(work), self.d_qk
        own, kv = heads * tokens * width, 2 * work.batch * self.n_kv_heads * keys * width
        read, written = self.span.moved(own, kv, self.params), self.span.moved(own, kv)
        result = work.positions * self.n_heads * width
        return (
            MatMul("scores", heads, tokens, width, keys, read, "attention", pairs * width),
            elementwise("softmax", heads * tokens * keys, "softmax", 0, 0),
            MatMul("values", heads, tokens, keys, width, written, "attention", pairs * width),
            *(elementwise("difference", result, "add", result, result) for _ in range(3)),
        )

    def saved(self, work: Workload) -> Any:
        tokens, keys = work.batch * work.tokens, work.batch * self.span.keys(work)
        query, kv = tokens * self.n_heads * self.d_qk, 2 * keys * self.n_kv_heads * self.d_qk
        scores = 2 * keys * work.tokens * self.n_heads
        multiplied = query if self.learns else 0
        return kv + multiplied + (2 * query + scores if work.keep_scores else 3 * query)


@final
@frozen
class LatentCore(Leaf):
    """The core of MLA: expanded heads as any other, or all heads on the shared latent (absorbed). Caches the latent.

    Shapes   expanded: k (B, h, S, d_nope + d_rope), v (B, h, S, d_v); absorbed: both (B, S, r_kv + d_rope)
    Unit     FLOPs 2·B·T·S·h·(d_nope + d_rope + d_v), or absorbed 2·B·T·S·h·(2·r_kv + d_rope)
    Counts   the expanded rectangle as `AttentionCore` does; cache r_kv + d_rope elements a token, whatever the form
    Traffic  where keys are selected, the absorbed form reads no latent twice, and no more than its queries choose
    Source   DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix C
    """

    kind = "attention_core"
    role = "attention"
    kernels = "latent"
    n_heads: Any
    kv_rank: Any
    d_nope: Any
    d_rope: Any
    d_v: Any
    span: Span
    scale: Any = None

    def describe(self) -> str:
        return f"MLA {self.n_heads} heads, latent {self.kv_rank} + {self.d_rope}{self.span.describe()}"

    @property
    def attended(self) -> Attended:
        return Attended(self.n_heads, self.n_heads, self.d_nope + self.d_rope, self.d_v)

    @property
    def turns(self) -> tuple[Any, ...]:
        return () if self.span.most is None else (self.span.most,)

    @property
    def period(self) -> Any:
        return self.span.period

    def cache_read(self, work: Workload) -> Any:
        """Of selected keys no more than a query selects."""
        return self.span.read(work, self.kv_rank + self.d_rope)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        heads, keys, tokens = work.batch * self.n_heads, self.span.keys(work), work.tokens
        pairs = self.span.visible(work)
        d_qk = (self.kv_rank if work.absorbed else self.d_nope) + self.d_rope
        d_v = self.kv_rank if work.absorbed else self.d_v
        query, result = heads * tokens * d_qk, heads * tokens * d_v
        needed = keys
        if type(self.span) is Selected and work.absorbed:
            needed = minimum(keys, tokens * self.span.top_k)
        latents = work.batch * needed * (self.kv_rank + self.d_rope)
        expanded = 0 if work.absorbed else heads * keys * (self.d_nope + self.d_rope + self.d_v)
        read, written = self.span.moved(query + expanded, latents), self.span.moved(result, 0)
        return (
            MatMul("scores", heads, tokens, d_qk, keys, read, "attention", pairs * d_qk),
            elementwise("softmax", heads * tokens * keys, "softmax", 0, 0),
            MatMul("values", heads, tokens, keys, d_v, written, "attention", pairs * d_v),
        )

    def saved(self, work: Workload) -> Any:
        tokens, keys = work.batch * work.tokens * self.n_heads, work.batch * self.span.keys(work) * self.n_heads
        query, kv = tokens * (self.d_nope + self.d_rope), keys * (self.d_nope + self.d_rope + self.d_v)
        return query + kv + (keys * work.tokens if work.keep_scores else tokens * self.d_v)

    def statistics(self, work: Workload) -> Any:
        return 0 if work.keep_scores else work.positions * self.n_heads

    @property
    def holds(self) -> str:
        return self.span.holds

    @property
    def fills(self) -> Any:
        return self.span.fills

    def cache(self, work: Workload) -> Cache:
        return self.span.cache(work, self.kv_rank + self.d_rope)

    def dense(self, work: Workload) -> Any:
        return self.span.dense(work, self.kv_rank + self.d_rope)

    def paged(self, work: Workload, block: Any, chunk: Any) -> Any:
        return self.span.paged(work, self.kv_rank + self.d_rope, block, chunk)

    def kept(self) -> str:
        return self.span.kept("a latent", f"({self.kv_rank:,} + {self.d_rope:,})")


@final
@frozen
class IndexCore(Leaf):
    """How much each query wants each key: Σ w·relu(q·k) over a few heads on one key, by which keys are selected. It
    caches that key.

    Shapes   q (B, T, h_i, d_i), k (B, S, d_i), w (B, T, h_i), scores (B, T, S)
    Unit     FLOPs 2·B·T·S·h_i·(d_i + 1); other: 1 a head's score for the ReLU, 1 a weight for its scale
    Counts   the full T×S rectangle, `flops_masked` the pairs before the selection; cache d_i elements a token
    Omits    choosing the best, which only compares
    Traffic  q, k and w once; the scores leave the chip, for a query's best are known when all are there
    Kept     nothing: what a selection is made by gets no gradient from what is selected
    Source   DeepSeek-V3.2-Exp (2025), section 2.1, equation 1: the lightning indexer
    """

    kind = "attention_core"
    role = "selection"
    n_heads: Any
    width: Any
    span: Span

    def describe(self) -> str:
        return f"index {self.n_heads} × {self.width}"

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        heads, keys, tokens = work.batch * self.n_heads, self.span.keys(work), work.tokens
        pairs = self.span.visible(work)
        weights, scores = work.positions * self.n_heads, work.positions * keys
        read = self.span.moved(weights * self.width, work.batch * keys * self.width)
        written = Traffic(0, weights + scores)
        return (
            MatMul("scores", heads, tokens, self.width, keys, read, "attention", pairs * self.width),
            elementwise("relu", heads * tokens * keys, "relu", 0, 0),
            elementwise("scale", weights, "add", 0, 0),
            # Of each query by itself: 1 × h_i by h_i × S.
            MatMul("weigh", work.batch, tokens, self.n_heads, keys, written, "attention", pairs * self.n_heads),
        )

    @property
    def holds(self) -> str:
        return self.span.holds

    @property
    def fills(self) -> Any:
        return self.span.fills

    def cache(self, work: Workload) -> Cache:
        return self.span.cache(work, self.width)

    def dense(self, work: Workload) -> Any:
        return self.span.dense(work, self.width)

    def paged(self, work: Workload, block: Any, chunk: Any) -> Any:
        return self.span.paged(work, self.width, block, chunk)

    def kept(self) -> str:
        return self.span.kept("an index key", f"{self.width:,}")


@final
@frozen
class Rotary(Leaf):
    """Rotates `dims` of every query and key head by its position: the first ones, or, `spread`, the first of each half
    at the frequencies of the whole head (Gemma-4).

    Shapes   q (B, T, h, d_h), k (B, T, h_kv, d_h)
    Unit     3 FLOPs a rotated element, under other; no weights, nothing new kept for backward
    Source   Su et al. 2021 (arXiv 2104.09864)
    """

    heads: Any
    dims: Any
    theta: Any
    width: Any
    interleaved: bool = False
    spread: bool = False

    @property
    def angles(self) -> tuple[Any, Any]:
        return self.dims, self.theta

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.heads * self.dims
        return (elementwise("rotary", elements, "rotary", elements, elements),)


@final
@frozen
class Gate(Leaf):
    """y·act(g): how much of what a head read is let through, element by element or in all.

    Shapes   y (B, T, h, d_v), g (B, T, h, `gates`) with as many gates as a head has elements, or 1
    Unit     FLOPs under other: `COST[form]` a gate and 1 an element
    Kept     act(g), and g for a form whose slope its result does not tell; y with `keep_scores`, else the core keeps it
    Source   Qiu et al. 2025 (arXiv 2505.06708), section 2.2
    """

    n_heads: Any
    d_v: Any
    gates: Any
    form: str = "sigmoid"

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        gates, elements = (work.positions * self.n_heads * width for width in (self.gates, self.d_v))
        act = elementwise("activation", gates, self.form, gates, gates)
        return act, elementwise("gate", elements, "add", gates + elements, elements)

    def saved(self, work: Workload) -> Any:
        gates, elements = (work.positions * self.n_heads * width for width in (self.gates, self.d_v))
        kept = gates if self.form in SAVES_RESULT else 2 * gates
        return kept + elements if work.keep_scores else kept


@final
@frozen
class DynamicMask(Leaf):
    """exp(A·softplus(d)): how much each key of a head is wanted whoever asks, added to the scores, by which the keys
    are chosen that queries keep. d is what a projection makes of the values of all heads.

    Shapes   d and y (B, S, h_kv), A (h_kv,)
    Unit     FLOPs under other: 2 for the softplus, 1 for the product, 1 for exp, of every key and head
    Kept     d, the softplus, the result
    Source   Doge (arXiv 2412.11834): dynamic mask attention
    """

    kind = "attention"
    n_kv_heads: Any

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("rate", (self.n_kv_heads,)),)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.n_kv_heads
        return (
            elementwise("softplus", elements, "softplus", elements, elements, self.n_kv_heads),
            *(elementwise(name, elements, "add", elements, elements) for name in ("product", "exponential")),
        )

    def saved(self, work: Workload) -> Any:
        return 3 * work.positions * self.n_kv_heads


def on_keys(work: Workload) -> Workload:
    """At every position attended to, the cached ones again."""
    return work._replace(tokens=work.keys)


@final
@frozen
class RelativeBias(Leaf):
    """T5's table of biases by distance, one scalar a bucket and head, which layers share or (UMT5) do not.

    Shapes   table (buckets, h), added to the scores (B, h, T, S)
    Unit     its additions are counted in the core of each layer
    Source   Raffel et al. 2019 (arXiv 1910.10683), section 2.1
    """

    kind = "attention"
    role = "table"
    buckets: Any
    n_heads: Any
    distance: Any
    bidirectional: bool

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("weight", (self.buckets, self.n_heads)),)

    def shard(self, ways: Ways) -> RelativeBias:
        """The columns of its heads."""
        return replace(self, n_heads=ways.split("n_heads", self.n_heads))


@final
@frozen
class Attention(Composite):
    """q, k, v, the core and o; MHA (h_kv = h), GQA (1 < h_kv < h) or MQA (h_kv = 1), self or cross.

    `biases` names the projections that have one; `query_norm` and `key_norm` stand between projection and rotation.
    `position` (Transformer-XL, arXiv 1901.02860, section 3.3) projects the sinusoids of the relative positions to the
    heads' width: one new distance for each new token, in every sequence. Those of the past depend on no input, and are
    kept like a table, outside the cache. Code that shares them over the batch multiplies B times less.
    `gate` multiplies what the heads read by gates that `g` projects from the input.
    `tied_kv`: v is what k projects, before its norm and rotation (Gemma-4). `lender` names the group of layers whose
    last one lends its keys and values: this layer projects queries only (Brandon et al. 2024, arXiv 2405.12981).
    `inner_norm` stands before o, over all heads (Wang et al. 2022, arXiv 2210.06423, section 2.1).
    A value head is as wide as the core says, which need not be a query's width; `value_scale` multiplies it.
    """

    d_model: Any
    n_heads: Any
    n_kv_heads: Any
    d_head: Any
    span: Span
    biases: frozenset[str]
    query_norm: Norm | None
    key_norm: Norm | None
    rotary: Rotary | None
    core: AttentionCore | DifferentialCore
    # Its input is already kept by another leaf (a parallel block's feed-forward shares it).
    keeps_input: bool = True
    position: Linear | None = None
    gate: Gate | None = None
    value_norm: Norm | None = None
    tied_kv: bool = False
    lender: str | None = None
    inner_norm: Norm | None = None
    # A table of biases by distance of this layer's own.
    relative_bias: RelativeBias | None = None
    value_scale: Any = None
    # A mask that the values make, whose projection has a bias where theirs has.
    mask: DynamicMask | None = None
    # Width of what cross-attention reads, where it is not this stack's.
    d_memory: Any = None
    # What the heads read is the result: there is no o.
    direct: bool = False
    # Groups in which q, k, v and o are cut (SqueezeBERT, arXiv 2006.11316).
    groups: tuple[int, int, int, int] | None = None
    # Of one rank's share: heads of all ranks, for norms over all of them; statistics of `inner_norm`.
    norm_gather: AllGather | None = None
    inner_join: AllReduce | None = None

    def children(self) -> Iterator[Child]:  # noqa: C901 - one `if` per optional child
        cross = type(self.span) is Cross
        queries, pairs = self.n_heads * self.d_head, self.n_kv_heads * self.d_head
        values = self.n_kv_heads * self.core.d_v
        keeps = "yes" if self.keeps_input else "no"
        # The encoder's output is one tensor for all layers: the first cross-attention's k keeps it (see the stack).
        at = {"on": on_source} if cross else {}
        read = self.d_model if self.d_memory is None else self.d_memory
        of_q, of_k, of_v, of_o = self.groups or (None, None, None, None)
        yield Child("q", linear(self.d_model, queries, bias="q" in self.biases, keeps=keeps, groups=of_q))
        if self.lender is None:
            made = linear(read, pairs, bias="k" in self.biases, keeps="no", groups=of_k)
            yield Child("k", made, **at)  # type: ignore[arg-type]
        if self.lender is None and not self.tied_kv:
            made = linear(read, values, bias="v" in self.biases, keeps="no", groups=of_v)
            yield Child("v", made, **at)  # type: ignore[arg-type]
        if self.gate:
            yield Child(
                "g",
                Linear(d_in=self.d_model, d_out=self.n_heads * self.gate.gates, bias="g" in self.biases, keeps="no"),
            )
        if self.norm_gather:
            yield Child("norm_gather", self.norm_gather)
        if self.query_norm:
            yield Child("q_norm", self.query_norm)
        if self.key_norm:
            yield Child("k_norm", self.key_norm)
        if self.value_norm:
            yield Child("v_norm", self.value_norm)
        if self.value_scale is not None:
            yield Child("v_scale", Sum(width=values, sums=1), **at)  # type: ignore[arg-type]
        if self.rotary:
            yield Child("rotary", self.rotary)
        if self.position:
            yield Child("position", self.position, gradient="weights")
        if self.relative_bias:
            yield Child("relative_bias", self.relative_bias)
        if self.mask:
            part = Linear(d_in=values, d_out=self.n_kv_heads, bias="v" in self.biases, keeps="no")
            yield Child("mask_proj", part, on=on_keys)
            yield Child("mask", self.mask, on=on_keys)
        yield Child("core", self.core)
        if self.gate:
            yield Child("gate", self.gate)
        if self.inner_norm:
            yield Child("inner_norm", self.inner_norm)
        if self.inner_join:
            yield Child("inner_join", self.inner_join)
        if self.direct:
            return
        keeps = "yes" if self.gate or self.inner_norm else "eager"
        read = self.n_heads * self.core.d_v
        yield Child("o", linear(read, self.d_model, bias="o" in self.biases, keeps=keeps, groups=of_o))

    def alive(self) -> Any:
        """Queries, keys, values and what attention gives."""
        return 2 * self.n_heads * self.core.d_qk + 2 * self.n_kv_heads * self.core.d_qk

    @property
    def cuttable(self) -> bool:
        """Not where another layer lends its keys and values."""
        return self.lender is None

    def shard(self, ways: Ways) -> Attention:
        """Its query heads, and its key/value heads or one that other ranks have too; norms over all heads are whole."""
        if self.mask:
            ways.whole("mask that the values of all heads make")
        if self.groups:
            ways.whole("attention whose projections are in groups")
        if self.direct:
            ways.whole("attention without o")
        heads, groups = ways.split("n_heads", self.n_heads), ways.groups("n_kv_heads", self.n_kv_heads)
        turned = heads if self.lender else heads + groups
        if type(self.core) is DifferentialCore:
            ways.split("pairs of n_heads", exact_div(self.n_heads, 2))
        return replace(
            self,
            n_heads=heads,
            n_kv_heads=groups,
            query_norm=ways.head_norm(self.query_norm, self.n_heads, heads),
            key_norm=ways.head_norm(self.key_norm, self.n_kv_heads, groups),
            value_norm=ways.head_norm(self.value_norm, self.n_kv_heads, groups),
            rotary=self.rotary and replace(self.rotary, heads=turned),
            core=replace(self.core, n_heads=heads, n_kv_heads=groups),
            position=self.position
            and replace(self.position, d_out=ways.split("n_heads · d_head", self.position.d_out)),
            gate=self.gate and replace(self.gate, n_heads=heads),
            inner_norm=ways.inner_norm(self.inner_norm, heads * self.core.d_v),
            relative_bias=self.relative_bias and self.relative_bias.shard(ways),
            norm_gather=ways.normed(
                (
                    (self.query_norm, self.n_heads, self.d_head),
                    (self.key_norm, self.n_kv_heads, self.d_head),
                    (self.value_norm, self.n_kv_heads, self.core.d_v),
                )
            ),
            inner_join=ways.statistics(self.inner_norm),
        )


@final
@frozen
class Indexer(Composite):
    """The lightning indexer of DeepSeek's sparse attention: queries of few heads from the low-rank queries of MLA, one
    normed key a token and a weight a head from the layer's input. It learns from a loss of its own, not from the
    model's, and keeps nothing for the model's backward.
    """

    d_model: Any
    q_rank: Any
    n_heads: Any
    width: Any
    key_norm: Norm
    rotary: Rotary
    core: IndexCore

    def children(self) -> Iterator[Child]:
        yield Child("q", Linear(d_in=self.q_rank, d_out=self.n_heads * self.width, bias=False, keeps="no"))
        yield Child("k", Linear(d_in=self.d_model, d_out=self.width, bias=False, keeps="no"))
        yield Child("k_norm", self.key_norm)
        yield Child("weights", Linear(d_in=self.d_model, d_out=self.n_heads, bias=False, keeps="no"))
        yield Child("rotary", self.rotary)
        yield Child("core", self.core)


@final
@frozen
class LatentAttention(Composite):
    """Multi-head latent attention: K and V of all heads are expanded from one latent of r_kv a token, which is cached.

    `q_rank` is None where queries are projected directly (DeepSeek-V2-Lite). `indexer` selects the keys that the core
    attends to, whose span then says how many (DeepSeek-V3.2). Without `rotary` nothing is turned, and keys still share
    `d_rope` of their width (Kimi Linear, arXiv 2510.26692, section 4). `gate` is as in `Attention`.
    """

    d_model: Any
    n_heads: Any
    q_rank: Any
    kv_rank: Any
    d_nope: Any
    d_rope: Any
    d_v: Any
    bias: bool
    norm_eps: Any
    rotary: Rotary | None
    core: LatentCore
    indexer: Indexer | None = None
    gate: Gate | None = None

    def children(self) -> Iterator[Child]:
        queries = self.n_heads * (self.d_nope + self.d_rope)
        if self.q_rank is None:
            yield Child("q", Linear(d_in=self.d_model, d_out=queries, bias=False))
        else:
            yield Child("q_a", Linear(d_in=self.d_model, d_out=self.q_rank, bias=self.bias))
            yield Child("q_norm", Norm(width=self.q_rank, form="rms", bias=False, eps=self.norm_eps))
            yield Child("q_b", Linear(d_in=self.q_rank, d_out=queries, bias=False))
        yield Child("kv_a", Linear(d_in=self.d_model, d_out=self.kv_rank + self.d_rope, bias=self.bias, keeps="no"))
        yield Child("kv_norm", Norm(width=self.kv_rank, form="rms", bias=False, eps=self.norm_eps))
        expand = Linear(d_in=self.kv_rank, d_out=self.n_heads * (self.d_nope + self.d_v), bias=False)
        yield Child("kv_b", expand, on=on_all_keys)
        if self.gate:
            yield Child("g", Linear(d_in=self.d_model, d_out=self.n_heads * self.gate.gates, bias=False, keeps="no"))
        if self.rotary:
            yield Child("rotary", self.rotary)
        if self.indexer:
            # It learns from a loss of its own, on inputs that are detached (DeepSeek-V3.2-Exp, section 2.1.1).
            yield Child("indexer", self.indexer, gradient="none")
        yield Child("core", self.core)
        if self.gate:
            yield Child("gate", self.gate)
        keeps = "yes" if self.gate else "eager"
        yield Child("o", Linear(d_in=self.n_heads * self.d_v, d_out=self.d_model, bias=self.bias, keeps=keeps))

    def alive(self) -> Any:
        """Queries and keys, values and what attention gives, of all heads."""
        return self.n_heads * (2 * (self.core.d_nope + self.core.d_rope) + 2 * self.core.d_v)

    def shard(self, ways: Ways) -> LatentAttention:
        """Its heads; the latents, what projects to them and the index are whole (as vLLM and transformers' own plan
        have it, 2026-11: all heads choose the same keys)."""
        heads = ways.split("n_heads", self.n_heads)
        ways.note("the latent of MLA and the projections to it are whole on every rank of tp")
        if self.indexer:
            ways.note("the index that selects keys is whole on every rank of tp")
        return replace(
            self,
            n_heads=heads,
            rotary=self.rotary and replace(self.rotary, heads=self.rotary.heads - self.n_heads + heads),
            core=replace(self.core, n_heads=heads),
            gate=self.gate and replace(self.gate, n_heads=heads),
        )


AnyAttention = Attention | LatentAttention
