"""DeepSeek's multi-head latent attention (MLA), optionally sparse: an `Indexer` selects the keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from msgspec.structs import replace

from txcalc.num import Num, exceeds, minimum
from txcalc.parts.cores import Gate, HeadsCore, SelectingCore, attend, gate
from txcalc.parts.linear import Linear
from txcalc.parts.norm import Norm
from txcalc.parts.options import REQUIRED, RMS_EPS, Conflict, Table, flag, key, letter, one_of, real
from txcalc.parts.part import (
    Child,
    Composite,
    Leaf,
    MatMul,
    Operation,
    Traffic,
    Weight,
    Workload,
    elementwise,
    optional,
)
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.positions import Rotary
from txcalc.parts.sharding import Ways
from txcalc.parts.spans import Attended, Causal, Full, Selected, Span, Window

# Epsilon of the LayerNorm of index keys, independent of the other norms (DeepSeek-V3.2).
INDEX_EPS = RMS_EPS


class LatentCore(HeadsCore):
    """The core of MLA: on expanded keys and values, or all heads on the shared latent (absorbed). Caches the latent.

    Shapes   expanded: k (B, h, S, d_nope + d_rope), v (B, h, S, d_v); absorbed: both (B, S, r_kv + d_rope)
    Unit     FLOPs 2·B·T·S·h·(d_nope + d_rope + d_v), or absorbed 2·B·T·S·h·(2·r_kv + d_rope)
    Counts   the full T×S rectangle
    Cache    r_kv + d_rope elements per token in either form
    Traffic  expanded: q, k, v and y, since kv_b reads the latents; absorbed: q, y and the latents once, of
             selected keys at most as many as the queries select
    Source   DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix C
    """

    kernels = "latent"
    n_heads: Num
    kv_rank: Num
    d_nope: Num
    d_rope: Num
    d_v: Num
    span: Span
    scale: float | None = None
    sinks: bool = False

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("sinks", (self.n_heads,)),) if self.sinks else ()

    def describe(self) -> str:
        return f"MLA {self.n_heads} heads, latent {self.kv_rank} + {self.d_rope}{self.span.describe()}"

    @property
    def traffic_exact(self) -> bool:
        """Not with selected keys, whose indices are read too."""
        return type(self.span) is not Selected

    @property
    def operators_exact(self) -> str:
        return "" if self.sinks else "softmax"

    @property
    def attended(self) -> Attended:
        return Attended(self.n_heads, self.n_heads, self.d_nope + self.d_rope, self.d_v, strided=True)

    def saved_differs(self, work: Workload) -> str:
        fused = "latent attention (PyTorch's fused kernel on the CPU takes one head width only)"
        return "" if work.keep_scores else fused

    def cache_read(self, work: Workload) -> Num:
        """Of selected keys, at most those that one query selects."""
        return self.span.read(work, self.token)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        heads, keys, tokens = work.batch * self.n_heads, self.span.keys(work), work.tokens
        pairs = self.span.visible(work)
        d_qk = (self.kv_rank if work.absorbed else self.d_nope) + self.d_rope
        d_v = self.kv_rank if work.absorbed else self.d_v
        query, result = heads * tokens * d_qk, heads * tokens * d_v
        needed = keys
        if type(self.span) is Selected and work.absorbed:
            needed = minimum(keys, tokens * self.span.top_k)
        latents = work.batch * needed * (self.kv_rank + self.d_rope) if work.absorbed else 0
        expanded = 0 if work.absorbed else heads * keys * (self.d_nope + self.d_rope + self.d_v)
        moved = self.span.moved(query + expanded, latents, self.params), self.span.moved(result, 0)
        return attend(heads, tokens, keys, (d_qk, d_v), pairs, moved)

    def saved(self, work: Workload) -> Num:
        tokens, keys = work.batch * work.tokens * self.n_heads, work.batch * self.span.keys(work) * self.n_heads
        query, kv = tokens * (self.d_nope + self.d_rope), keys * (self.d_nope + self.d_rope + self.d_v)
        scores = keys * work.tokens + tokens if self.sinks else keys * work.tokens
        return query + kv + (scores if work.keep_scores else tokens * self.d_v)

    @property
    def token(self) -> Num:
        return self.kv_rank + self.d_rope

    def describe_cache(self) -> str:
        return self.span.describe_cache("a latent", f"({self.kv_rank:,} + {self.d_rope:,})")


class IndexCore(SelectingCore):
    """The lightning indexer's scores: Σ w·relu(q·k) over a few heads with one shared key, which it caches; keys are
    selected by them.

    Shapes   q (B, T, h_i, d_i), k (B, S, d_i), w (B, T, h_i), scores (B, T, S)
    Unit     FLOPs 2·B·T·S·h_i·(d_i + 1); other: 1 per score of a head for the ReLU, 1 per weight for its scale
    Counts   the full T×S rectangle, `flops_masked` the pairs before the selection; cache d_i elements per token
    Omits    the top-k, which only compares
    Traffic  q, k and w once, and the scores, which leave the chip for the top-k
    Kept     nothing: the selection has no gradient
    Source   DeepSeek-V3.2-Exp (2025), section 2.1, equation 1
    """

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


class Temperature(Leaf):
    """Query temperature: q·(s·ln(i + 1) + b) at position i, with a learned s and b per head.

    Shapes   q and result (B, T, h, width), s and b (h)
    Unit     FLOPs under other: 1 per element
    Omits    s·ln(i + 1) + b itself, h numbers per position
    Kept     q, for the gradients of s and b, unless frozen
    Source   transformers' code of Mistral Large 4 (MistralLarge4TextSoftmaxScaling), 2026
    """

    when_frozen: ClassVar[Table] = {"keeps": False}
    kind = "attention"
    initial_values: ClassVar[Mapping[str, str]] = {"scale": "zero", "bias": "one"}
    n_heads: Num
    width: Num
    keeps: bool = True

    def weights(self) -> tuple[Weight, ...]:
        return Weight("scale", (self.n_heads,)), Weight("bias", (self.n_heads,))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.n_heads * self.width
        return (elementwise("scale", elements, "add", elements, elements, 2 * self.n_heads),)

    def saved(self, work: Workload) -> Num:
        return work.positions * self.n_heads * self.width if self.keeps else 0


class Indexer(Composite):
    """The lightning indexer of DeepSeek's sparse attention: a few query heads from MLA's low-rank queries (without
    them, from the normed input, `q_norm`), one normed key per token, and a weight per head. It trains with a loss of
    its own, not the model's, and saves nothing for the model's backward."""

    d_model: Num
    d_query: Num
    n_heads: Num
    width: Num
    key_norm: Norm
    rotary: Rotary | None
    core: IndexCore
    q_norm: Norm | None = None
    temper: Temperature | None = None

    def children(self) -> Iterator[Child]:
        yield from optional("q_norm", self.q_norm)
        yield Child(
            "q", Linear(d_in=self.d_query, d_out=self.n_heads * self.width, bias=False, keeps="no"), duty="reads"
        )
        yield Child("k", Linear(d_in=self.d_model, d_out=self.width, bias=False, keeps="no"), duty="reads")
        yield Child("k_norm", self.key_norm)
        yield Child("weights", Linear(d_in=self.d_model, d_out=self.n_heads, bias=False, keeps="no"), duty="weighs")
        yield from optional("temper", self.temper)
        yield from optional("rotary", self.rotary)
        yield Child("core", self.core)


class LatentAttention(Composite):
    """Multi-head latent attention: K and V of all heads are expanded from one cached latent of r_kv elements per token.

    `q_rank` is None where queries are projected directly (DeepSeek-V2-Lite). `indexer` selects the keys of the core,
    whose span says how many (DeepSeek-V3.2). Without `rotary` nothing is rotated, and heads still share `d_rope` of the
    key's width (Kimi Linear, arXiv 2510.26692, section 4), or nothing where that is 0. `k_norm` norms the shared part.
    `gate`: an output gate, as in `Attention`.
    """

    d_model: Num
    n_heads: Num
    q_rank: Num
    kv_rank: Num
    d_nope: Num
    d_rope: Num
    d_v: Num
    bias: bool
    norm_eps: float
    rotary: Rotary | None
    core: LatentCore
    indexer: Indexer | None = None
    gate: Gate | None = None
    k_norm: Norm | None = None
    temper: Temperature | None = None

    def children(self) -> Iterator[Child]:
        queries = self.n_heads * (self.d_nope + self.d_rope)
        if self.q_rank is None:
            yield Child("q", Linear(d_in=self.d_model, d_out=queries, bias=False), duty="reads")
        else:
            yield Child("q_a", Linear(d_in=self.d_model, d_out=self.q_rank, bias=self.bias))
            yield Child("q_norm", Norm(width=self.q_rank, form="rms", bias=False, eps=self.norm_eps), duty="latent")
            yield Child("q_b", Linear(d_in=self.q_rank, d_out=queries, bias=False))
        yield from optional("temper", self.temper)
        yield Child("kv_a", Linear(d_in=self.d_model, d_out=self.kv_rank + self.d_rope, bias=self.bias, keeps="no"))
        yield Child("kv_norm", Norm(width=self.kv_rank, form="rms", bias=False, eps=self.norm_eps), duty="latent")
        expand = Linear(d_in=self.kv_rank, d_out=self.n_heads * (self.d_nope + self.d_v), bias=False)
        yield from optional("k_norm", self.k_norm)
        yield Child("kv_b", expand, on=self._on_keys)
        if self.gate:
            yield Child("g", Linear(d_in=self.d_model, d_out=self.n_heads * self.gate.gates, bias=False, keeps="no"))
        yield from optional("rotary", self.rotary)
        if self.indexer:
            # Trained with a loss of its own on detached inputs (DeepSeek-V3.2-Exp, section 2.1.1).
            yield Child("indexer", self.indexer, gradient="none")
        yield Child("core", self.core)
        yield from optional("gate", self.gate)
        keeps = "yes" if self.gate else "eager"
        yield Child(
            "o", Linear(d_in=self.n_heads * self.d_v, d_out=self.d_model, bias=self.bias, keeps=keeps), duty="writes"
        )

    def _on_keys(self, work: Workload) -> Workload:
        """All cached positions, whose latents are expanded again; new tokens only when absorbed."""
        return work if work.absorbed else work._replace(tokens=self.core.span.keys(work))

    def peak_elements(self) -> Num:
        """Queries, keys, values and the result, of all heads."""
        return self.n_heads * (2 * (self.core.d_nope + self.core.d_rope) + 2 * self.core.d_v)

    def shard(self, ways: Ways) -> LatentAttention:
        """Its heads; latents, the projections to them and the index are replicated, as in vLLM and transformers' own
        plan (2026-11): all heads select the same keys."""
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
            temper=self.temper and replace(self.temper, n_heads=heads),
        )


class LatentOptions(Mechanism, section="latent", kind="attention", stands="", ordered=True):
    """`[latent]`, in place of `[attention]`."""

    n_heads: Num = letter(REQUIRED, "query heads", grows="heads")
    q_rank: Num | None = letter(None, "rank of the query projection; absent: projected directly")
    kv_rank: Num = letter(REQUIRED, "width of the latent")
    d_nope: Num = letter(REQUIRED, "unrotated width per query/key head")
    d_rope: Num = letter(None, "rotated width per query/key head, shared by the keys; absent: none", even=True)
    d_v: Num = letter(REQUIRED, "width per value head")
    bias: bool = key(flag, False, "biases on the down projections and o")
    scale: float | None = key(real, None, "multiplies the scores")
    k_norm: bool = key(flag, False, "norm of the rotated part of the keys, which all heads share")
    window: Num | None = letter(None, "sliding window: keys that a query sees, itself included")
    gate: str = key(one_of("none", "element", "head"), "none", "output gate, as attention.gate")
    index_heads: Num = letter(
        None, "heads of the index that selects keys (sparse attention); absent: all keys are used"
    )
    index_width: Num = letter(None, "width per head of the index, and of its one key", even=True)
    index_top_k: Num = letter(None, "keys that the index selects per query")
    index_shared: bool = key(flag, False, "reuse the keys that an earlier layer's index selected: no index of its own")
    sinks: bool = key(flag, False, "one learned sink per head")
    tempered: bool = key(flag, False, "query temperature: a learned function of the log of the position, per head")
    index_interleaved: bool = key(flag, False, "rotary pairs of the index are adjacent, not halves apart")

    def conflicts(self) -> Iterator[Conflict]:
        if self.d_rope is None and self.k_norm:
            yield Conflict("k_norm", "false without d_rope, which it norms")
        sizes = {name: getattr(self, name) for name in ("index_heads", "index_width", "index_top_k")}
        key = next((name for name, number in sizes.items() if number is not None), None)
        for name in ("index_interleaved", "index_shared"):
            if key is None and getattr(self, name):
                yield Conflict(name, "false without an index")
        if key is None:
            return
        for name, number in sizes.items():
            if number is None:
                yield Conflict(name, f"a size with {key}: an index has {', '.join(sizes)}")
        if self.window is not None:
            yield Conflict("window", f"none with {key}: the index selects among all keys")
        rotated = 0 if self.d_rope is None else self.d_rope
        if self.index_width is not None and exceeds(rotated, self.index_width):
            yield Conflict("index_width", f"at least d_rope = {self.d_rope}, which is rotated")

    def build(self, place: Place) -> LatentAttention:
        norm, heads, rotated = place.norm, self.n_heads, 0 if self.d_rope is None else self.d_rope
        span: Span = Full() if place.role in ("encoder", "vision") else Causal()
        span = span if self.window is None else Window(window=self.window)
        indexer, rotary = None, None
        if self.d_rope is not None:
            rotary = place.positions.rotary(heads + 1, rotated, paired=True)
        if self.index_heads is not None:
            indexer = None if self.index_shared else self._indexer(place, span)
            span = Selected(top_k=self.index_top_k)
        return self.into(
            LatentAttention,
            d_model=place.d_model,
            d_rope=rotated,
            norm_eps=norm.epsilon_or(RMS_EPS),
            rotary=rotary,
            core=self.into(LatentCore, d_rope=rotated, span=span),
            indexer=indexer,
            gate=gate(self.gate, heads, self.d_v),
            temper=Temperature(n_heads=heads, width=self.d_nope + rotated) if self.tempered else None,
            k_norm=Norm(width=rotated, form="rms", bias=False, eps=norm.epsilon_or(RMS_EPS)) if self.k_norm else None,
        )

    def _indexer(self, place: Place, span: Span) -> Indexer:
        heads, width = self.index_heads, self.index_width
        rotary = None if self.d_rope is None else place.positions.rotary(heads + 1, width)
        norm = Norm(width=place.d_model, form="layer", bias=True, eps=INDEX_EPS, keeps=False)
        return Indexer(
            d_model=place.d_model,
            d_query=place.d_model if self.q_rank is None else self.q_rank,
            q_norm=norm if self.q_rank is None else None,
            temper=Temperature(n_heads=heads, width=width, keeps=False) if self.tempered else None,
            n_heads=heads,
            width=width,
            key_norm=Norm(width=width, form="layer", bias=True, eps=INDEX_EPS, keeps=False),
            rotary=None if rotary is None else replace(rotary, dims=self.d_rope, interleaved=self.index_interleaved),
            core=IndexCore(n_heads=heads, width=width, span=span),
        )
