"""Attention between its projections: MHA, GQA or MQA by its number of key/value heads, self or cross.

Rotary embedding, Q/K norms, biases, sinks and windows are fields or children, never a model's name. The cores are in
`parts.cores`, and multi-head latent attention is in `parts.latent`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, final

from txcalc.num import exact_div
from txcalc.parts.collectives import AllGather, AllReduce
from txcalc.parts.cores import AttentionCore, DifferentialCore
from txcalc.parts.frozen import frozen
from txcalc.parts.linear import SAVES_RESULT, Linear, Norm, Sum, linear
from txcalc.parts.part import Child, Composite, Leaf, Operation, Weight, Workload, elementwise, on_source
from txcalc.parts.sharding import Ways
from txcalc.parts.spans import Cross, Span


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
