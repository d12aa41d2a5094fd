"""Multi-head attention with its projections: MHA, GQA or MQA by the number of key/value heads, self or cross.

Rotary embedding, Q/K norms, biases, sinks and windows are fields or children. The cores are in `parts.cores`,
multi-head latent attention in `parts.latent`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from msgspec.structs import replace

from txcalc.num import Num, product
from txcalc.parts.cores import AttentionCore, DynamicMask, Gate, gate
from txcalc.parts.linear import Linear, Sum, linear
from txcalc.parts.norm import Norm, NormOptions
from txcalc.parts.options import (
    REQUIRED,
    Conflict,
    Raw,
    biases,
    count,
    flag,
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
from txcalc.parts.sharding import AllGather, AllReduce, Ways
from txcalc.parts.spans import (
    Causal,
    CentredWindow,
    Chunks,
    Cross,
    Full,
    Selected,
    SeparateWindows,
    Span,
    SparseBlocks,
    SquareWindows,
    Window,
)


def on_keys(work: Workload) -> Workload:
    """All positions attended to, the cached ones recomputed."""
    return work._replace(tokens=work.keys)


class Attention(Composite):
    """q, k, v, the core and o: MHA (h_kv = h), GQA (1 < h_kv < h) or MQA (h_kv = 1), self or cross.

    biases        projections that have a bias
    query_norm    between projection and rotation, as `key_norm`
    position      projects the sinusoids of relative positions (Transformer-XL, arXiv 1901.02860, section 3.3): one new
                  distance per new token and sequence; earlier ones depend on no input and are stored like a table,
                  outside the cache. Code that shares them over the batch has 1/B of these FLOPs
    gate          an output gate, whose logits `g` projects from the input
    tied_kv       v is k's projection, before norm and rotation (Gemma-4)
    lender        shared KV: the layer group whose last layer provides keys and values; this one projects queries only
                  (Brandon et al. 2024, arXiv 2405.12981)
    inner_norm    before o, over all heads (Wang et al. 2022, arXiv 2210.06423, section 2.1)
    value_scale   multiplies the values, whose width (`core.d_v`) need not be a query's
    """

    d_model: Num
    n_heads: Num
    n_kv_heads: Num
    d_head: Num
    span: Span
    biases: frozenset[str]
    query_norm: Norm | None
    key_norm: Norm | None
    rotary: Rotary | None
    core: AttentionCore
    # False: another leaf saves its input (a parallel block's feed-forward reads the same).
    keeps_input: bool = True
    position: Linear | None = None
    gate: Gate | None = None
    value_norm: Norm | None = None
    tied_kv: bool = False
    lender: str | None = None
    inner_norm: Norm | None = None
    # A relative-bias table of this layer's own.
    relative_bias: RelativeBias | None = None
    value_scale: float | None = None
    # A dynamic mask computed from the values; its projection has a bias where v has one.
    mask: DynamicMask | None = None
    # Width of the encoder's output, where it differs from this stack's.
    d_memory: Num | None = None
    # The concatenated heads are the result: no projection o.
    direct: bool = False
    # On one rank: gather heads for norms over all of them; sums the statistics of `inner_norm`.
    query_gather: AllGather | None = None
    key_gather: AllGather | None = None
    inner_join: AllReduce | None = None

    def children(self) -> Iterator[Child]:
        cross = type(self.span) is Cross
        queries, pairs = self.n_heads * self.d_head, self.n_kv_heads * self.d_head
        values = self.n_kv_heads * self.core.d_v
        keeps = "yes" if self.keeps_input else "no"
        # The encoder's output is one tensor for all layers: `model.Memory` saves it once.
        at: Raw = {"on": on_source} if cross else {}
        read = self.d_model if self.d_memory is None else self.d_memory
        yield Child("q", linear(self.d_model, queries, bias="q" in self.biases, keeps=keeps), duty="reads")
        if self.lender is None:
            projection = linear(read, pairs, bias="k" in self.biases, keeps="no")
            yield Child("k", projection, **at, duty="reads")
        if self.lender is None and not self.tied_kv:
            projection = linear(read, values, bias="v" in self.biases, keeps="no")
            yield Child("v", projection, **at, duty="reads")
        if self.gate:
            yield Child(
                "g",
                Linear(d_in=self.d_model, d_out=self.n_heads * self.gate.gates, bias="g" in self.biases, keeps="no"),
            )
        yield from optional("q_gather", self.query_gather, duty="heads")
        yield from optional("q_norm", self.query_norm)
        yield from optional("k_gather", self.key_gather, duty="heads", **at)
        yield from optional("k_norm", self.key_norm, **at)
        yield from optional("v_norm", self.value_norm, **at)
        if self.value_scale is not None:
            yield Child("v_scale", Sum(width=values, sums=1), **at)
        yield from optional("rotary", self.rotary)
        yield from optional("position", self.position, gradient="weights")
        yield from optional("relative_bias", self.relative_bias)
        if self.mask:
            part = Linear(d_in=values, d_out=self.n_kv_heads, bias="v" in self.biases, keeps="eager")
            yield Child("mask_proj", part, on=on_keys)
            yield Child("mask", self.mask, on=on_keys)
        yield Child("core", self.core)
        yield from optional("gate", self.gate)
        yield from optional("inner_norm", self.inner_norm)
        yield from optional("inner_join", self.inner_join, duty="statistics")
        if self.direct:
            return
        keeps = "yes" if self.gate or self.inner_norm else "eager"
        read = self.n_heads * self.core.d_v
        yield Child("o", linear(read, self.d_model, bias="o" in self.biases, keeps=keeps), duty="writes")

    def peak_elements(self) -> Num:
        """Queries, keys, values and the result."""
        return 2 * self.n_heads * self.core.d_qk + 2 * self.n_kv_heads * self.core.d_qk

    @property
    def cuttable(self) -> bool:
        """Not where it reads another layer's keys and values."""
        return self.lender is None

    def shard(self, ways: Ways) -> Attention:
        """Its query heads, and its key/value heads or a replicated one; norms over all heads stay whole."""
        if self.mask:
            ways.cannot_split("mask that the values of all heads make")
        if self.direct:
            ways.cannot_split("attention without o")
        heads, groups = ways.split("n_heads", self.n_heads), ways.groups("n_kv_heads", self.n_kv_heads)
        rotated_heads = heads if self.lender else heads + groups
        return replace(
            self,
            n_heads=heads,
            n_kv_heads=groups,
            keeps_input=self.keeps_input or ways.gathers_each,
            query_norm=ways.head_norm(self.query_norm, self.n_heads, heads),
            key_norm=ways.head_norm(self.key_norm, self.n_kv_heads, groups),
            value_norm=ways.head_norm(self.value_norm, self.n_kv_heads, groups),
            rotary=self.rotary and replace(self.rotary, heads=rotated_heads),
            core=replace(self.core, n_heads=heads, n_kv_heads=groups),
            position=self.position
            and replace(self.position, d_out=ways.split("n_heads · d_head", self.position.d_out)),
            gate=self.gate and replace(self.gate, n_heads=heads),
            inner_norm=ways.inner_norm(self.inner_norm, heads * self.core.d_v),
            relative_bias=self.relative_bias and self.relative_bias.shard(ways),
            query_gather=ways.norm_gather(self.query_norm, self.n_heads, self.d_head),
            key_gather=ways.norm_gather(self.key_norm, self.n_kv_heads, self.d_head),
            inner_join=ways.norm_statistics(self.inner_norm),
        )


class AttentionOptions(Mechanism, section="attention", kind="attention", stands="", ordered=True):
    """`[attention]`: softmax attention; one class per way to restrict the keys of a query."""

    masked: ClassVar[bool] = False  # whether a dynamic mask from the values selects keys
    n_heads: Num = letter(REQUIRED, "query heads", of="n_kv_heads", grows="heads")
    n_kv_heads: Num = letter(lambda at: at["attention"]["n_heads"], "key/value heads", grows="heads")
    d_head: Num = letter(per_head("attention"), "width per head", even=True, grows="head")
    bias: list[str] = key(biases, [], "projections with a bias")
    qk_norm: str = key(
        one_of("none", "head", "width", "apart", "bare"),
        "none",
        "Q/K norm: per head with shared weights, over all heads, per head with own weights, or without weights",
    )
    sinks: bool = key(flag, False, "one learned sink per head")
    scale: float | None = key(real, None, "multiplies the scores; 1/√d_head when absent")
    softcap: float | None = key(real, None, "scores are capped at ± this by a tanh")
    gate: str = key(one_of("none", "element", "head"), "none", "output gate: per element or per head")
    gate_activation: str = key(one_of("sigmoid", "softplus"), "sigmoid", "activation of the output gate")
    inner_norm: bool = key(flag, False, "norm before o, over all heads")
    d_v: Num | None = letter(None, "width of a value head; absent: d_head")
    v_scale: float | None = key(real, None, "multiplies the values")
    v_norm: bool = key(flag, False, "norm of V per head, without weights")
    tied_kv: bool = key(flag, False, "one projection for K and V")
    direct: bool = key(flag, False, "no output projection: the concatenated heads are the result")
    kv_from: str | None = key(text, None, "shared KV: layer kind whose last layer provides keys and values")

    def conflicts(self) -> Iterator[Conflict]:
        for conflict in super().conflicts():
            yield conflict._replace(fix=f"{self.n_heads} is MHA, 1 is MQA" if self.n_heads > 1 else "")
        lacking = {"g": self.gate == "none" and "there is no gate"}
        lacking |= {"v": self.tied_kv and "with tied_kv it has no projection"}
        lacking |= {"o": self.direct and "with direct it has no projection"}
        for side, why in lacking.items():
            if why and side in self.bias:
                yield Conflict("bias", f'a list without "{side}": {why}')
        if self.gate == "none" and self.gate_activation == "softplus":
            yield Conflict("gate_activation", "'sigmoid', the default, where there is no gate")
        for name, value in (("d_v", self.d_v), ("v_scale", self.v_scale)):
            if value is not None and (self.tied_kv or self.kv_from is not None):
                yield Conflict(name, "none where the values are the keys, or another layer's")

    def build(self, place: Place) -> Composite:
        variant = place.positions.attention(place.d_model, self.n_heads, self.d_head, bias=self.bias, scale=self.scale)
        if variant is not None:
            return variant
        bias = place.positions.relative_bias(self.n_heads, place.role, per_layer=True)
        return self._multi_head(place, self._span(place.role in ("encoder", "vision")), relative_bias=bias)

    def across(self, place: Place, memory: Num) -> Attention:
        """Cross-attention to an encoder's output of width `memory`."""
        return self._multi_head(place, Cross(), d_memory=memory)

    @abstractmethod
    def _span(self, bidirectional: bool) -> Span:
        """The span of keys."""

    def _multi_head(self, place: Place, span: Span, **fields: Any) -> Attention:
        places, norm = place.positions, place.norm
        cross = type(span) is Cross
        heads, groups, width = self.n_heads, self.n_kv_heads, self.d_head
        lender = None if cross else self.kv_from
        value = width if self.d_v is None else self.d_v
        distances = places.form == "relative-projection" and not cross
        rotated_heads = heads + groups if lender is None else heads
        rotary = None if cross else places.rotary(rotated_heads, width, partly=True, paired=True)
        query_norm, key_norm = self._norms(norm)
        core, value_norm = self._core(span, places, value), None
        if self.tied_kv:  # a norm of K saves what V is; without one they are one tensor, unless K is rotated
            core = replace(core, tied=rotary is None if key_norm is None else not self.v_norm)
        if self.v_norm and lender is None:  # a norm of the keys saves the input of both
            keeps = not (self.tied_kv and self.qk_norm != "none")
            value_norm = replace(norm.replace(weighted=False).over(value, groups), keeps=keeps)
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
            **fields,
        )

    def _core(self, span: Span, places: PositionsOptions, value: Num) -> AttentionCore:
        cross = type(span) is Cross
        width = self.d_head
        sizes: Raw = {"n_heads": self.n_heads, "n_kv_heads": self.n_kv_heads, "d_qk": width}
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
        """Of queries and keys."""
        if self.qk_norm == "none":
            return None, None
        heads, groups, width = self.n_heads, self.n_kv_heads, self.d_head
        qk_norm = norm.replace(bias=norm.qk_bias)
        if self.qk_norm == "head":
            return qk_norm.over(width, heads), qk_norm.over(width, groups)
        if self.qk_norm == "width":
            return qk_norm.over(product((heads, width))), qk_norm.over(groups * width)
        if self.qk_norm == "apart":
            return qk_norm.over(width, heads, per_group=True), qk_norm.over(width, groups, per_group=True)
        bare = qk_norm.replace(weighted=False)
        return bare.over(width, heads), bare.over(width, groups)

    def _inner_norm(self, norm: NormOptions, value: Num) -> Norm | None:
        """Over all heads, before o."""
        inner = norm.over(product((self.n_heads, value)))
        return replace(inner, fused=self.gate == "none") if self.inner_norm else None


class WindowedAttention(AttentionOptions, forms="window"):
    """All keys, or a window."""

    window: Num | None = letter(None, "query i sees key j when 0 ≤ i − j < window; in an encoder when |i − j| < window")
    chunked: bool = key(
        flag, False, "chunked: query i sees key j ≤ i of its own chunk of `window`, or in a tower all of it"
    )

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.chunked and self.window is None:
            yield Conflict("chunked", "false without a window")

    def _span(self, bidirectional: bool) -> Span:
        if self.window is None:
            return Full() if bidirectional else Causal()
        if bidirectional:
            return SeparateWindows(window=self.window) if self.chunked else CentredWindow(window=self.window)
        return Chunks(window=self.window) if self.chunked else Window(window=self.window)


class SquareAttention(AttentionOptions, forms="side"):
    """Square windows of a picture, in a vision tower."""

    side: Num = key(
        size,
        None,
        "patches per side of a vision tower's square windows, in a picture as near to square as possible",
        "without attention.window",
    )
    cell: Num = key(size, 1, "patches per side of the squares that the projector merges")

    def _span(self, bidirectional: bool) -> Span:
        return SquareWindows(side=self.side, cell=self.cell)


class BlockAttention(AttentionOptions, forms="block"):
    """BigBird's block-sparse attention, in an encoder."""

    block: Num = key(
        size,
        None,
        "positions per block of an encoder's block-sparse attention: a block sees itself, its neighbours, the first, "
        "the last and random ones",
        "without attention.window",
    )
    random_blocks: Num = key(count, 3, "random blocks per block")

    def _span(self, bidirectional: bool) -> Span:
        return SparseBlocks(block=self.block, random=self.random_blocks)


class MaskedAttention(AttentionOptions, forms="keep"):
    """Doge's dynamic mask from the values, which is added to the scores and selects keys."""

    masked = True
    keep: Num = key(
        size, None, "keys that each query keeps, by a dynamic mask from the values (Doge)", "without attention.window"
    )

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        for name in ("kv_from", "tied_kv", "softcap", "sinks"):
            if getattr(self, name):
                yield Conflict(name, "none with a dynamic mask")

    def _span(self, bidirectional: bool) -> Span:
        return Selected(top_k=self.keep)
