"""Attention between its projections: MHA, GQA or MQA by its number of key/value heads, self or cross.

Rotary embedding, Q/K norms, biases, sinks and windows are fields or children, never a model's name. The cores are in
`parts.cores`, and multi-head latent attention is in `parts.latent`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from txcalc.num import exact_div, product
from txcalc.parts.collectives import AllGather, AllReduce
from txcalc.parts.cores import AttentionCore, DifferentialCore, DynamicMask, Gate, gate
from txcalc.parts.frozen import frozen
from txcalc.parts.linear import Linear, Sum, linear
from txcalc.parts.norm import Norm, NormOptions
from txcalc.parts.options import (
    REQUIRED,
    Wished,
    biases,
    count,
    flag,
    groups_of,
    key,
    letter,
    one_of,
    per_head,
    real,
    size,
    text,
)
from txcalc.parts.part import Child, Composite, Workload, on_source, optional
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.positions import PositionsOptions, RelativeBias, Rotary
from txcalc.parts.sharding import Ways
from txcalc.parts.spans import Apart, Around, Blocks, Causal, Chunks, Cross, Full, Selected, Span, Squares, Window


def on_keys(work: Workload) -> Workload:
    """At every position attended to, the cached ones again."""
    return work._replace(tokens=work.keys)


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
    groups: tuple[Any, ...] | None = None
    # Of one rank's share: heads of all ranks, for norms over all of them; statistics of `inner_norm`.
    norm_gather: AllGather | None = None
    inner_join: AllReduce | None = None

    def children(self) -> Iterator[Child]:
        cross = type(self.span) is Cross
        queries, pairs = self.n_heads * self.d_head, self.n_kv_heads * self.d_head
        values = self.n_kv_heads * self.core.d_v
        keeps = "yes" if self.keeps_input else "no"
        # The encoder's output is one tensor for all layers: the first cross-attention's k keeps it (see the stack).
        at = {"on": on_source} if cross else {}
        read = self.d_model if self.d_memory is None else self.d_memory
        of_q, of_k, of_v, of_o = self.groups or (None, None, None, None)
        yield Child("q", linear(self.d_model, queries, bias="q" in self.biases, keeps=keeps, groups=of_q), duty="reads")
        if self.lender is None:
            made = linear(read, pairs, bias="k" in self.biases, keeps="no", groups=of_k)
            yield Child("k", made, **at, duty="reads")  # type: ignore[arg-type]
        if self.lender is None and not self.tied_kv:
            made = linear(read, values, bias="v" in self.biases, keeps="no", groups=of_v)
            yield Child("v", made, **at, duty="reads")  # type: ignore[arg-type]
        if self.gate:
            yield Child(
                "g",
                Linear(d_in=self.d_model, d_out=self.n_heads * self.gate.gates, bias="g" in self.biases, keeps="no"),
            )
        yield from optional("norm_gather", self.norm_gather)
        yield from optional("q_norm", self.query_norm)
        yield from optional("k_norm", self.key_norm, **at)
        yield from optional("v_norm", self.value_norm, **at)
        if self.value_scale is not None:
            yield Child("v_scale", Sum(width=values, sums=1), **at)  # type: ignore[arg-type]
        yield from optional("rotary", self.rotary)
        yield from optional("position", self.position, gradient="weights")
        yield from optional("relative_bias", self.relative_bias)
        if self.mask:
            part = Linear(d_in=values, d_out=self.n_kv_heads, bias="v" in self.biases, keeps="no")
            yield Child("mask_proj", part, on=on_keys)
            yield Child("mask", self.mask, on=on_keys)
        yield Child("core", self.core)
        yield from optional("gate", self.gate)
        yield from optional("inner_norm", self.inner_norm)
        yield from optional("inner_join", self.inner_join)
        if self.direct:
            return
        keeps = "yes" if self.gate or self.inner_norm else "eager"
        read = self.n_heads * self.core.d_v
        yield Child("o", linear(read, self.d_model, bias="o" in self.biases, keeps=keeps, groups=of_o), duty="writes")

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


@frozen
class AttentionOptions(Mechanism, section="attention", kind="attention", stands="", ordered=True):
    """`[attention]`: softmax over keys, and what may be done to its scores, keys and results; a class for each way of
    saying which keys a query sees."""

    masked: ClassVar[bool] = False  # whether a mask that the values make chooses among the keys
    n_heads: Any = letter(REQUIRED, "query heads", of="n_kv_heads", grows="heads")
    n_kv_heads: Any = letter(lambda at: at["attention"]["n_heads"], "key/value heads", grows="heads")
    d_head: Any = letter(per_head("attention"), "width of a head", even=True, grows="head")
    bias: list[str] = key(biases, [], "projections with a bias")
    qk_norm: str = key(
        one_of("none", "head", "width", "apart", "bare"),
        "none",
        "norm of Q and K: shared by the heads, over all of them, a weight for each, or without weights",
    )
    sinks: bool = key(flag, False, "one learned sink per head")
    scale: Any = key(real, None, "multiplies the scores; 1/√d_head when absent")
    softcap: Any = key(real, None, "scores are capped at ± this by a tanh")
    gate: str = key(one_of("none", "element", "head"), "none", "gates on what is read: one per element or per head")
    gate_activation: str = key(one_of("sigmoid", "softplus"), "sigmoid", "activation of the gates")
    inner_norm: bool = key(flag, False, "norm before o, over all heads")
    d_v: Any = letter(None, "width of a value head; absent: d_head")
    v_scale: Any = key(real, None, "multiplies the values")
    v_norm: bool = key(flag, False, "norm of V, head by head, without weights")
    tied_kv: bool = key(flag, False, "one projection for K and V")
    direct: bool = key(flag, False, "what the heads read is the result: no projection o")
    groups: list[Any] | None = key(
        groups_of(4), None, "groups that q, k, v and o are cut into, each with inputs and outputs of its own"
    )
    kv_from: str | None = key(text, None, "layer kind whose last layer lends its keys and values: none of its own")

    def misfits(self) -> Iterator[Wished]:
        for wished in super().misfits():
            yield wished._replace(fix=f"{self.n_heads} is MHA, 1 is MQA")
        lacking = {"g": self.gate == "none" and "there is no gate"}
        lacking |= {"v": self.tied_kv and "tied_kv leaves it no projection"}
        lacking |= {"o": self.direct and "direct leaves it no projection"}
        for side, why in lacking.items():
            if why and side in self.bias:
                yield Wished("bias", f'a list without "{side}": {why}')
        if self.gate == "none" and self.gate_activation == "softplus":
            yield Wished("gate_activation", "'sigmoid', the default, where there is no gate")
        for name, value in (("d_v", self.d_v), ("v_scale", self.v_scale)):
            if value is not None and (self.tied_kv or self.kv_from is not None):
                yield Wished(name, "none where the values are the keys, or another layer's")

    def build(self, place: Place) -> Composite:
        made = place.positions.attention(place.d_model, self.n_heads, self.d_head, bias=self.bias, scale=self.scale)
        if made is not None:
            return made
        bias = place.positions.relative_bias(self.n_heads, place.role, own=True)
        return replace(self._multi_head(place, self._span(place.role in ("encoder", "vision"))), relative_bias=bias)

    def across(self, place: Place, memory: Any) -> Attention:
        """Cross-attention to an encoder's result, `memory` wide."""
        return replace(self._multi_head(place, Cross()), d_memory=memory)

    def _span(self, both: bool) -> Span:
        """What a query sees, of what comes after it too (`both`) or not."""
        raise NotImplementedError

    def _multi_head(self, place: Place, span: Span) -> Attention:
        places, norm = place.positions, place.norm
        cross = type(span) is Cross
        heads, groups, width = self.n_heads, self.n_kv_heads, self.d_head
        lender = None if cross else self.kv_from
        value = width if self.d_v is None else self.d_v
        distances = places.form == "relative-projection" and not cross
        turned = heads + groups if lender is None else heads
        rotary = None if cross else places.rotary(turned, width, partly=True, paired=True)
        query_norm, key_norm = self._norms(norm)
        core, value_norm = self._core(span, places, value), None
        if self.tied_kv:  # a norm of the one keeps what is the other; without one they are the same, unless K turns
            core = replace(core, tied=rotary is None if key_norm is None else not self.v_norm)
        if self.v_norm and lender is None:  # beside a norm of the keys, which keeps what both read
            keeps = not (self.tied_kv and self.qk_norm != "none")
            value_norm = replace(replace(norm, weighted=False).over(value, groups), keeps=keeps)
        return Attention(
            d_model=place.d_model,
            n_heads=heads,
            n_kv_heads=groups,
            d_head=width,
            span=span,
            biases=frozenset(self.bias),
            query_norm=query_norm,
            key_norm=key_norm if lender is None else None,
            rotary=rotary,
            core=core,
            keeps_input=place.keeps_input,
            position=Linear(d_in=place.d_model, d_out=product((heads, width)), bias=False) if distances else None,
            gate=gate(self.gate, heads, value, self.gate_activation),
            value_norm=value_norm,
            tied_kv=self.tied_kv,
            direct=self.direct and not cross,
            lender=lender,
            inner_norm=self._inner_norm(norm, value),
            value_scale=None if lender is not None else self.v_scale,
            mask=DynamicMask(n_kv_heads=groups) if self.masked and not cross else None,
            groups=tuple(self.groups) if self.groups else None,
        )

    def _core(self, span: Span, places: PositionsOptions, value: Any) -> AttentionCore:
        cross = type(span) is Cross
        width = self.d_head
        sizes = {"n_heads": self.n_heads, "n_kv_heads": self.n_kv_heads, "d_qk": width}
        added = places.biased or self.masked
        return AttentionCore(
            **sizes,
            d_v=value,
            span=span,
            sinks=self.sinks,
            biased=added and not cross,
            distances=places.form == "relative-projection" and not cross,
            softcap=self.softcap,
            scale=self.scale,
            borrowed=self.kv_from is not None and not cross,
        )

    def _norms(self, norm: NormOptions) -> tuple[Norm | None, Norm | None]:
        """Of queries and of keys."""
        heads, groups, width = self.n_heads, self.n_kv_heads, self.d_head
        own = replace(norm, bias=norm.qk_bias)
        if self.qk_norm == "head":
            return own.over(width, heads), own.over(width, groups)
        if self.qk_norm == "width":
            return own.over(product((heads, width))), own.over(groups * width)
        if self.qk_norm == "apart":
            return own.over(width, heads, apart=True), own.over(width, groups, apart=True)
        if self.qk_norm == "bare":
            bare = replace(own, weighted=False)
            return bare.over(width, heads), bare.over(width, groups)
        return None, None

    def _inner_norm(self, norm: NormOptions, value: Any) -> Norm | None:
        """Before o: over all heads."""
        if not self.inner_norm:
            return None
        return replace(norm.over(product((self.n_heads, value))), fused=self.gate == "none")


@frozen
class WindowedAttention(AttentionOptions, forms="window"):
    """All keys, or those in a window."""

    window: Any = letter(None, "query i sees key j when 0 ≤ i − j < window; in an encoder when |i − j| < window")
    chunked: bool = key(
        flag, False, "windows stand side by side: query i sees key j ≤ i of its own window, or in a tower all of it"
    )

    def misfits(self) -> Iterator[Wished]:
        yield from super().misfits()
        if self.chunked and self.window is None:
            yield Wished("chunked", "false without a window")

    def _span(self, both: bool) -> Span:
        if self.window is None:
            return Full() if both else Causal()
        kind = (Apart if self.chunked else Around) if both else Chunks if self.chunked else Window
        return kind(window=self.window)


@frozen
class SquareAttention(AttentionOptions, forms="side"):
    """Square windows of a picture, in a tower."""

    side: Any = key(
        size,
        None,
        "patches along each side of a tower's windows in its picture, which is as near to a square as can be",
        "without attention.window",
    )
    cell: Any = key(size, 1, "patches along each side of the squares that the projector merges")

    def _span(self, both: bool) -> Span:
        return Squares(side=self.side, cell=self.cell)


@frozen
class BlockAttention(AttentionOptions, forms="block"):
    """BigBird's blocks, in an encoder."""

    block: Any = key(
        size,
        None,
        "positions of the blocks in which an encoder attends: a block to itself, those beside it, the first, the "
        "last and some at random",
        "without attention.window",
    )
    random_blocks: Any = key(count, 3, "how many at random")

    def _span(self, both: bool) -> Span:
        return Blocks(block=self.block, random=self.random_blocks)


@frozen
class MaskedAttention(AttentionOptions, forms="keep"):
    """Doge's mask of the values, which adds to the scores and chooses among all keys."""

    masked = True
    keep: Any = key(
        size, None, "keys that each query keeps, by a mask that the values make (Doge)", "without attention.window"
    )

    def misfits(self) -> Iterator[Wished]:
        yield from super().misfits()
        for name in ("kv_from", "tied_kv", "softcap", "sinks"):
            if getattr(self, name):
                yield Wished(name, "none in attention with a mask of its values'")

    def _span(self, both: bool) -> Span:
        return Selected(top_k=self.keep)
