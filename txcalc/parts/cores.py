"""Attention cores: the softmax over keys between the projections, and its cache."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from txcalc.notation import named_by_groups, pair
from txcalc.num import Num, total
from txcalc.parts.linear import SAVES_RESULT
from txcalc.parts.part import NO_CACHE, Cache, Leaf, MatMul, Operation, Traffic, Weight, Workload, elementwise
from txcalc.parts.spans import Attended, Span


class CachedCore(Leaf):
    """A core over the keys of a span; its cache is `token` elements of every token that the span keeps."""

    kind = "attention_core"
    kept_in_fp32 = False

    @property
    @abstractmethod
    def span(self) -> Span:
        """The keys that a query may see."""

    @property
    @abstractmethod
    def token(self) -> Num:
        """Cached elements per token."""

    @property
    def max_keys(self) -> Num | None:
        return self.span.max_keys

    @property
    def breakpoints(self) -> tuple[Num, ...]:
        return () if self.max_keys is None else (self.max_keys,)

    @property
    def period(self) -> Num | None:
        return self.span.period

    @property
    def length_multiple(self) -> Num | None:
        return self.span.length_multiple

    @property
    def cache_kind(self) -> str:
        return self.span.cache_kind

    @property
    def cache_limit(self) -> Num | None:
        return self.span.cache_limit

    def cache(self, work: Workload) -> Cache:
        return self.span.cache(work, self.token)

    def dense(self, work: Workload) -> Num:
        return self.span.dense(work, self.token)

    def paged(self, work: Workload, block: Num, chunk: Num) -> Num:
        return self.span.paged(work, self.token, block, chunk)


def attend(
    heads: Num, tokens: Num, keys: Num, widths: tuple[Num, Num], pairs: Num, moved: tuple[Traffic, Traffic],
    *between: Operation,
) -> tuple[Operation, ...]:  # fmt: skip
    """The operations of one softmax attention: scores, operations on them, softmax, weighted values.

    `widths` are those of keys and of values, `moved` the traffic of both products.
    """
    (d_qk, d_v), (read, written) = widths, moved
    return (
        MatMul("scores", heads, tokens, d_qk, keys, read, "attention", pairs * d_qk),
        *between,
        elementwise("softmax", heads * tokens * keys, "softmax", 0, 0),
        MatMul("values", heads, tokens, keys, d_v, written, "attention", pairs * d_v),
    )


class HeadsCore(CachedCore):
    """A softmax per head over the keys of a span."""

    role = "attention"

    @property
    @abstractmethod
    def n_heads(self) -> Num:
        """Query heads."""

    @property
    def mask_span(self) -> Span:
        return self.span

    @property
    def masked(self) -> bool:
        return self.span.masked

    def rows_kept(self, work: Workload) -> Num:
        return 0 if work.keep_scores else self.n_heads

    def statistics(self, work: Workload) -> Num:
        return 0 if work.keep_scores else work.positions * self.n_heads


class SoftmaxCore(HeadsCore):
    """A core that caches keys and values of every head."""

    n_heads: Num
    n_kv_heads: Num
    d_qk: Num
    d_v: Num
    span: Span

    @property
    def plain(self) -> bool:
        """Whether nothing but a mask changes its scores, as the common fused kernels require."""
        return True

    def describe(self) -> str:
        form = named_by_groups(self.n_heads, self.n_kv_heads)
        return f"{form} {self.n_heads}/{self.n_kv_heads} heads of {self.d_qk}{self.span.describe()}"

    @property
    def attended(self) -> Attended:
        return Attended(self.n_heads, self.n_kv_heads, self.d_qk, self.d_v)

    def saved_differs(self, work: Workload) -> str:
        fused = self.plain or work.keep_scores
        return "" if fused else "biased, capped or sunk scores (PyTorch has no fused kernel for them)"

    @property
    def token(self) -> Num:
        return self.n_kv_heads * (self.d_qk + self.d_v)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        return tuple(operation for sequence in self.span.sequences(work) for operation in self.products(sequence))

    def saved(self, work: Workload) -> Num:
        return total(self.keeps(sequence) for sequence in self.span.sequences(work))

    @abstractmethod
    def products(self, work: Workload) -> tuple[Operation, ...]:
        """The products of sequences that attend to themselves."""

    @abstractmethod
    def keeps(self, work: Workload) -> Num:
        """Elements saved for backward, of sequences that attend to themselves."""

    def describe_cache(self) -> str:
        return self.span.describe_cache("K and V", pair(self.n_kv_heads, self.d_qk, self.d_v))


class AttentionCore(SoftmaxCore):
    """softmax(q·kᵀ)·v between the projections, its cache, and the sinks it may hold.

    Shapes   q (B, h, T, d_qk), k (B, h_kv, S, d_qk), v (B, h_kv, S, d_v), y (B, T, h·d_v)
    Unit     FLOPs 2·B·h·(d_qk + d_v)·T·S; with `distances` q meets the projected relative positions too, another
             2·B·h·d_qk·T·S; other: 5 per score for the softmax, 1 each for an added bias and a soft cap
    Counts   the full T×S rectangle; `flops_masked` only the pairs that the span lets through
    Traffic  that of a fused kernel: q, k, v and y once, no score leaves the chip
    Kept     q, k, v and the projected distances; with `keep_scores` the h·T·S probabilities (with a sink's, and the
             capped scores), without it y (the fused kernel's result), and only one of k and v where they are `tied`:
             one tensor, or one saved by a norm of the other
    Cache    k and v; none where they are `borrowed` from an earlier layer (shared KV)
    Source   Vaswani et al. 2017 (arXiv 1706.03762), equation 1; Dao et al. 2022 (arXiv 2205.14135)
    """

    sinks: bool = False
    biased: bool = False
    distances: bool = False
    softcap: float | None = None
    scale: float | None = None
    borrowed: bool = False
    tied: bool = False
    reads_places = True
    exchanges = True

    @property
    def traffic_exact(self) -> bool:
        """Not where k and v may be one tensor, which kernels read twice."""
        return not (self.biased or self.distances or self.tied)

    @property
    def operators_exact(self) -> str:
        return "" if self.sinks else "softmax"

    @property
    def masked(self) -> bool:
        return False if self.distances else self.span.masked

    def saved_differs(self, work: Workload) -> str:
        return "projected distances" if self.distances else super().saved_differs(work)

    @property
    def attended(self) -> Attended:
        return super().attended._replace(strided=self.tied)

    @property
    def plain(self) -> bool:
        return not (self.biased or self.sinks or self.softcap is not None)

    @property
    def extra_products(self) -> str:
        return "the products with the distances too" if self.distances else ""

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("sinks", (self.n_heads,)),) if self.sinks else ()

    def products(self, work: Workload) -> tuple[Operation, ...]:
        heads, keys, tokens = work.batch * self.n_heads, self.span.keys(work), work.tokens
        pairs = self.span.visible(work)
        query, result = heads * tokens * self.d_qk, heads * tokens * self.d_v
        kv, scores = work.batch * self.n_kv_heads * keys, heads * tokens * keys
        moved = self.span.moved(query, kv * self.d_qk, self.params), self.span.moved(result, kv * self.d_v)
        far = Traffic(0, heads * keys * self.d_qk)
        distance = MatMul("distances", heads, tokens, self.d_qk, keys, far, "attention", pairs * self.d_qk)
        operations = (
            *((distance,) if self.distances else ()),
            *((elementwise("softcap", scores, "tanh", 0, 0),) if self.softcap is not None else ()),
            *((elementwise("bias", scores, "add", 0, 0),) if self.biased else ()),
        )
        return attend(heads, tokens, keys, (self.d_qk, self.d_v), pairs, moved, *operations)

    def keeps(self, work: Workload) -> Num:
        tokens, keys = work.batch * work.tokens, work.batch * self.span.keys(work)
        width = self.d_qk if self.tied and not work.keep_scores else self.d_qk + self.d_v
        query, kv = tokens * self.n_heads * self.d_qk, 0 if self.borrowed else keys * self.n_kv_heads * width
        scores = (keys + work.batch if self.sinks else keys) * work.tokens * self.n_heads
        scores = scores if self.softcap is None else scores + keys * work.tokens * self.n_heads
        scores_or_output = scores if work.keep_scores else tokens * self.n_heads * self.d_v
        distances = keys * self.n_heads * self.d_qk if self.distances else 0
        return query + kv + scores_or_output + distances

    @property
    def token(self) -> Num:
        """0 where the keys and values are another layer's."""
        return 0 if self.borrowed else super().token

    @property
    def cache_kind(self) -> str:
        return "nothing" if self.borrowed else self.span.cache_kind

    def cache(self, work: Workload) -> Cache:
        return NO_CACHE if self.borrowed else self.span.cache(work, self.token)


class Gate(Leaf):
    """An output gate on attention: y·act(g), per element or per head.

    Shapes   y (B, T, h, d_v), g (B, T, h, `gates`) with as many gates as a head has elements, or 1
    Unit     FLOPs under other: `COST[form]` per gate and 1 per element
    Kept     act(g), and g where the derivative needs it; y with `keep_scores`, else the core has saved it
    Source   Qiu et al. 2025 (arXiv 2505.06708), section 2.2
    """

    n_heads: Num
    d_v: Num
    gates: Num
    form: str = "sigmoid"

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        gates, elements = (work.positions * self.n_heads * width for width in (self.gates, self.d_v))
        act = elementwise("activation", gates, self.form, gates, gates)
        return act, elementwise("gate", elements, "add", gates + elements, elements)

    def saved(self, work: Workload) -> Num:
        gates, elements = (work.positions * self.n_heads * width for width in (self.gates, self.d_v))
        saved_gates = gates if self.form in SAVES_RESULT else 2 * gates
        return saved_gates + elements if work.keep_scores else saved_gates


def gate(form: str, heads: Num, d_v: Num, activation: str = "sigmoid") -> Gate | None:
    """The output gate: one value per element, one per head, or none."""
    if form == "none":
        return None
    return Gate(n_heads=heads, d_v=d_v, gates=d_v if form == "element" else 1, form=activation)


class DynamicMask(Leaf):
    """Doge's dynamic mask: exp(A·softplus(d)) of each key and head is added to the scores and selects which keys are
    kept; d is a projection of the values of all heads.

    Shapes   d and y (B, S, h_kv), A (h_kv,)
    Unit     FLOPs under other: 2 for the softplus, 1 for the product, 1 for exp, of every key and head
    Kept     d, the softplus, the result
    Source   Doge (arXiv 2412.11834): dynamic mask attention
    """

    kind = "attention"
    n_kv_heads: Num

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("rate", (self.n_kv_heads,)),)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.n_kv_heads
        return (
            elementwise("softplus", elements, "softplus", elements, elements, self.n_kv_heads),
            *(elementwise(name, elements, "add", elements, elements) for name in ("product", "exponential")),
        )

    def saved(self, work: Workload) -> Num:
        return 3 * work.positions * self.n_kv_heads


class VectorCore(CachedCore):
    """A core that caches one vector per token."""

    vector: ClassVar[str]
    width: Num
    span: Span

    @property
    def token(self) -> Num:
        return self.width

    def describe_cache(self) -> str:
        return self.span.describe_cache(self.vector, f"{self.width:,}")


class SelectingCore(VectorCore):
    """A scorer that selects keys: queries of a few heads, and one cached key per token."""

    role = "selection"
    vector = "an index key"
    n_heads: Num


class Scores(SelectingCore):
    """Scores of a few heads' queries with every earlier key, by which blocks of keys are selected.

    Shapes   q (B, T, h, d), k (B, S, d), scores (B, T, h, S)
    Unit     FLOPs 2·B·T·S·h·d
    Counts   the full T×S rectangle, `flops_masked` the pairs before the selection; cache d elements per token
    Omits    block maxima and top-k, which only compare
    Kept     nothing: the selection has no gradient
    Source   MiniMax 2026, MiniMax-M3
    """

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        heads, keys, tokens = work.batch * self.n_heads, self.span.keys(work), work.tokens
        moved = self.span.moved(heads * tokens * self.width, work.batch * keys * self.width)
        pairs = self.span.visible(work) * self.width
        return (MatMul("scores", heads, tokens, self.width, keys, moved, "attention", pairs),)


class MatrixProduct(Leaf):
    """Products of two activations, without weights: per head, rows of every position times a matrix.

    Shapes   x (B, h, T, d_in), m (B, h, d_in, d_out), y (B, h, T, d_out); d_out None: as many as there are keys
    Unit     FLOPs 2·B·T·h·d_in·d_out
    Kept     its rows; the matrix is saved by the leaf that computes it
    Source   Xiong et al. 2021 (arXiv 2102.03902), section 3: keys and queries beside a fixed number of landmarks
    """

    role = "product"
    kind = "attention_core"
    n_heads: Num
    d_in: Num
    d_out: Num | None

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        heads, d_out = work.batch * self.n_heads, work.source if self.d_out is None else self.d_out
        moved = Traffic(0, heads * (work.tokens * (self.d_in + d_out) + self.d_in * d_out))
        return (MatMul("product", heads, work.tokens, self.d_in, d_out, moved),)

    def saved(self, work: Workload) -> Num:
        return work.positions * self.n_heads * self.d_in


class StateCache(VectorCore):
    """A cached vector per token that is neither key nor value: a layer's input, from which both are recomputed.

    Unit     elements of a token; no FLOPs
    Source   Kitaev et al. 2020 (arXiv 2001.04451), section 2: Reformer's shared queries and keys
    """

    vector = "a state"
