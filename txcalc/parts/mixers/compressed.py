"""Compressed attention (DeepSeek-V4): a sliding window, and entries that pool `rate` tokens into one key, which is its
own value; queries see all earlier entries or those that an index selects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from txcalc.num import Num, ceil_div, exact_div, floor_div, minimum, product, triangle
from txcalc.parts.cores import SoftmaxCore, attend
from txcalc.parts.linear import GroupedLinear, Linear
from txcalc.parts.norm import Norm
from txcalc.parts.options import REQUIRED, RMS_EPS, Conflict, Raw, flag, key, letter
from txcalc.parts.part import (
    Cache,
    Child,
    Composite,
    Leaf,
    MatMul,
    Operation,
    Stream,
    Traffic,
    Weight,
    Workload,
    elementwise,
    optional,
)
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.positions import Rotary
from txcalc.parts.spans import Uncached, Window


class Entries(Uncached):
    """Query i sees the entries of complete groups of `rate` tokens up to i, at most `top_k` of them. Their cache is
    counted in `Pool`, not here."""

    causal: ClassVar[bool] = True
    rate: Num
    top_k: Num | None = None

    def describe(self) -> str:
        selected = "" if self.top_k is None else f", {self.top_k:,} a query"
        return f" and one of every {self.rate:,} tokens{selected}"

    def number(self, tokens: Num) -> Num:
        """⌊tokens / rate⌋, the number of complete groups."""
        return floor_div(tokens, self.rate)

    def keys(self, work: Workload) -> Num:
        return self.number(work.keys)

    def visible(self, work: Workload) -> Num:
        return self._up_to(work.keys) - self._up_to(work.past)

    def _up_to(self, n: Num) -> Num:
        """Σ min(⌊i / rate⌋, top_k) over i = 1 … n."""
        growing = n if self.top_k is None else minimum(n, self.rate * self.top_k)
        full = self.number(growing)
        pairs = self.rate * triangle(full - 1) + full * (growing - self.rate * full + 1)
        return pairs if self.top_k is None else pairs + (n - growing) * self.top_k

    def read(self, work: Workload, width: Num) -> Num:
        visible = self.number(work.keys)
        return width * (visible if self.top_k is None else minimum(visible, self.top_k))


class Pool(Leaf):
    """One entry per `rate` tokens: Σ softmax(gates + bias)·kv over them, channel by channel; with `overlap` also over
    the group before, by a second half of kv and gates.

    Shapes   kv and gates (B, T, w·d), bias (rate, w·d), entries (B, ⌊S/rate⌋, d); w is 2 with `overlap`, else 1
    Unit     FLOPs under other: 1 per gate for its bias, 5 for the softmax, 2 for the weighted sum
    Kept     the pooled kv (without `overlap` all of kv) and the softmax's result; nothing where no gradient reaches it
             (`keeps`)
    Cache    d per entry, kv and gates of tokens not yet pooled, and with `overlap` those of the group before: it grows
             in steps; the growth is the average, d/rate per token, rounded up
    Source   DeepSeek-AI 2026, DeepSeek-V4, sections 2.3.1 and 2.3.2
    """

    initial_values: ClassVar[Mapping[str, str]] = {"bias": "zero"}
    kept_in_fp32 = False
    width: Num
    rate: Num
    overlap: bool
    keeps: bool = True
    cache_kind = "steps"

    @property
    def series(self) -> Num:
        return 2 * self.width if self.overlap else self.width

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("bias", (self.rate, self.series)),)

    def new_entries(self, work: Workload) -> Num:
        """Entries completed by the new tokens."""
        entries = Entries(rate=self.rate)
        return entries.number(work.keys) - entries.number(work.past)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        new_entries = work.batch * self.new_entries(work)
        pooled, read = new_entries * self.rate * self.series, work.positions * self.series
        return (
            elementwise("bias", pooled, "add", 2 * read, 0, self.params),
            elementwise("softmax", pooled, "softmax", 0, 0),
            elementwise("weigh", pooled, "add", 0, 0),
            elementwise("sum", pooled, "add", 0, new_entries * self.width),
        )

    def saved(self, work: Workload) -> Num:
        if not self.keeps:
            return 0
        pooled = work.batch * self.new_entries(work) * self.rate * self.series
        return 2 * pooled if self.overlap else work.positions * self.series + pooled

    def cache(self, work: Workload) -> Cache:
        entries = Entries(rate=self.rate).number(work.keys)
        pending = 2 * self.series * (work.keys - self.rate * entries)
        before = 2 * self.width * self.rate if self.overlap else 0
        elements = self.width * entries + pending + before * minimum(1, entries)
        return Cache(ceil_div(self.width, self.rate), before, elements)

    def cache_read(self, work: Workload) -> Num:
        """Tokens not yet pooled; the attention core reads the entries."""
        return self.cache(work).elements - self.width * Entries(rate=self.rate).number(work.keys)

    def describe_cache(self) -> str:
        return (
            f"what is pending, and of every {self.rate:,} tokens an entry: {self.width:,} · ⌊S/{self.rate:,}⌋ elements"
        )


class Compressor(Composite):
    """The projections to kv and gates, the pooling, and the entries' norm and rotation."""

    d_model: Num
    pool: Pool
    norm: Norm
    rotary: Rotary

    def children(self) -> Iterator[Child]:
        for name in ("kv", "gate"):
            yield Child(name, Linear(d_in=self.d_model, d_out=self.pool.series, bias=False, keeps="no"))
        yield Child("pool", self.pool, duty="pools")
        yield Child("norm", self.norm, on=self._on_entries)
        yield Child("rotary", self.rotary, on=self._on_entries)

    @property
    def _on_entries(self) -> Stream:
        pool = self.pool
        return lambda work: work._replace(tokens=pool.new_entries(work), past=Entries(rate=pool.rate).number(work.past))


class SelectionCore(Leaf):
    """Index scores: Σ w·relu(q·k) over a few heads, by which entries are selected.

    Shapes   q (B, T, h, d), k (B, ⌊S/rate⌋, d), w (B, T, h), scores (B, T, ⌊S/rate⌋)
    Unit     FLOPs 2·B·T·⌊S/rate⌋·h·d; other: 3 per score of a head for the ReLU, its weight and the sum
    Counts   all pairs, `flops_masked` those before the selection
    Omits    the top-k, which only compares
    Source   DeepSeek-AI 2026, DeepSeek-V4, section 2.3.1, equation 16
    """

    kind = "attention_core"
    role = "selection"
    n_heads: Num
    width: Num
    span: Entries

    def describe(self) -> str:
        return f"index {self.n_heads} × {self.width}"

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        heads, keys, tokens = work.batch * self.n_heads, self.span.keys(work), work.tokens
        query, scores = heads * tokens * self.width, heads * tokens * keys
        read = Traffic(0, query, work.batch * keys * self.width)
        visible = replace(self.span, top_k=None).visible(work) * self.width
        return (
            MatMul("scores", heads, tokens, self.width, keys, read, "attention", visible),
            elementwise("relu", scores, "relu", 0, 0),
            elementwise("weigh", scores, "add", work.positions * self.n_heads, 0),
            elementwise("sum", scores, "add", 0, work.positions * keys),
        )


class Selector(Composite):
    """The index: its own compressed entries, a few query heads from the low-rank queries, a weight per head."""

    d_model: Num
    q_rank: Num
    compressor: Compressor
    rotary: Rotary
    core: SelectionCore

    def children(self) -> Iterator[Child]:
        heads, width = self.core.n_heads, self.core.width
        yield Child("compressor", self.compressor, duty="pools")
        yield Child("q", Linear(d_in=self.q_rank, d_out=heads * width, bias=False, keeps="no"), duty="reads")
        yield Child("weights", Linear(d_in=self.d_model, d_out=heads, bias=False, keeps="no"), duty="weighs")
        yield Child("rotary", self.rotary)
        yield Child("core", self.core)


class CompressedCore(SoftmaxCore):
    """softmax(q·kᵀ)·k over the window and the entries, with a sink per head.

    Shapes   q (B, h, T, d), k (B, S_w + ⌊S/rate⌋, d), y (B, T, h·d)
    Unit     FLOPs 4·B·T·h·d·(S_w + ⌊S/rate⌋), S_w the window's keys; other: 5 per score for the softmax
    Counts   the full rectangle; `flops_masked` the pairs in the window, and the entries that a query selects
    Traffic  that of a fused kernel: q, k and y once
    Kept     q, k; with `keep_scores` the probabilities, a sink's too, without it y
    Cache    d of every token in the window: values are keys
    Source   DeepSeek-AI 2026, DeepSeek-V4, section 2.3
    """

    entries: Entries | None
    plain = False

    def describe(self) -> str:
        return f"{super().describe()}{'' if self.entries is None else self.entries.describe()}"

    @property
    def masked(self) -> bool:
        return self.span.masked if self.entries is None else False

    @property
    def token(self) -> Num:
        return self.d_qk

    @property
    def breakpoints(self) -> tuple[Any, ...]:
        top_k = None if self.entries is None else self.entries.top_k
        return (self.span.max_keys,) if self.entries is None or top_k is None else (
            self.span.max_keys, self.entries.rate * top_k)  # fmt: skip

    @property
    def period(self) -> Num | None:
        return None if self.entries is None else self.entries.rate

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("sinks", (self.n_heads,)),)

    def all_keys(self, work: Workload) -> Num:
        """Keys of the dense product: window and entries."""
        window = self.span.keys(work)
        return window if self.entries is None else window + self.entries.keys(work)

    def cache_read(self, work: Workload) -> Num:
        window = self.span.read(work, self.token)
        return window if self.entries is None else window + self.entries.read(work, self.token)

    def products(self, work: Workload) -> tuple[Operation, ...]:
        heads, keys, tokens = work.batch * self.n_heads, self.all_keys(work), work.tokens
        pairs = self.span.visible(work)
        pairs = pairs if self.entries is None else pairs + self.entries.visible(work)
        query = heads * tokens * self.d_qk
        moved = Traffic(self.params, query, work.batch * keys * self.d_qk), Traffic(0, query)
        return attend(heads, tokens, keys, (self.d_qk, self.d_v), pairs, moved)

    def keeps(self, work: Workload) -> Num:
        tokens, keys = work.positions * self.n_heads, self.all_keys(work)
        scores_or_output = tokens * (keys + 1) if work.keep_scores else tokens * self.d_v
        return tokens * self.d_qk + work.batch * keys * self.d_qk + scores_or_output

    def describe_cache(self) -> str:
        return self.span.describe_cache("keys that are values", f"{self.d_qk:,}")


class CompressedAttention(Composite):
    """Low-rank queries with a norm per head; one head of keys that are their own values; the result is rotated back,
    and projected in groups to a low rank, then to d_model.

    Source   DeepSeek-AI 2026, DeepSeek-V4, section 2.3
    """

    d_model: Num
    n_heads: Num
    d_head: Num
    q_rank: Num
    groups: Num
    # Per group: width of the input and of the low-rank projection.
    d_group: Num
    o_rank: Num
    norm_eps: float
    rotary: Rotary
    core: CompressedCore
    compressor: Compressor | None = None
    selector: Selector | None = None

    def children(self) -> Iterator[Child]:
        width, heads = self.d_head, self.n_heads * self.d_head
        rms: Raw = {"form": "rms", "bias": False, "eps": self.norm_eps}
        yield Child("q_a", Linear(d_in=self.d_model, d_out=self.q_rank, bias=False))
        yield Child("q_norm", Norm(width=self.q_rank, **rms))
        yield Child("q_b", Linear(d_in=self.q_rank, d_out=heads, bias=False))
        yield Child("q_head_norm", Norm(width=width, **rms, groups=self.n_heads, weighted=False))
        yield Child("kv", Linear(d_in=self.d_model, d_out=width, bias=False, keeps="no"))
        yield Child("kv_norm", Norm(width=width, **rms))
        yield Child("rotary", self.rotary)
        yield from optional("compressor", self.compressor, duty="pools")
        if self.selector:
            # Trained with a loss of its own, not the model's.
            yield Child("selector", self.selector, gradient="none")
        yield Child("core", self.core)
        yield Child("unrotary", replace(self.rotary, heads=self.n_heads))
        yield Child("o_a", GroupedLinear(groups=self.groups, d_in=self.d_group, d_out=self.o_rank, bias=False))
        yield Child("o_b", Linear(d_in=self.groups * self.o_rank, d_out=self.d_model, bias=False))

    def peak_elements(self) -> Num:
        """Queries and the result."""
        return 2 * self.n_heads * self.d_head


class CompressedOptions(Mechanism, section="compressed", kind="attention", ordered=True):
    """`[compressed]`, with rotary positions."""

    n_heads: Num = letter(REQUIRED, "query heads, on one head of keys that are their own values", of="groups")
    d_head: Num = letter(REQUIRED, "width per head", contains="d_rope")
    d_rope: Num = letter(REQUIRED, "rotated part of a head, its last dimensions", even=True)
    q_rank: Num = letter(REQUIRED, "rank of the query projection")
    o_rank: Num = letter(REQUIRED, "rank of the output projection, per group of heads")
    groups: Num = letter(REQUIRED, "groups of heads in the low-rank output projection")
    window: Num = letter(REQUIRED, "query i sees token j when 0 ≤ i − j < window")
    rate: Num = letter(None, "tokens pooled into one entry; absent: the window alone")
    overlap: bool = key(flag, False, "an entry pools the group before its own too")
    index_heads: Num = letter(None, "heads of the index that selects entries; absent: all entries are used")
    index_width: Num = letter(None, "width per head of the index", contains="d_rope")
    index_top_k: Num = letter(None, "entries that the index selects per query")

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.rate is None and (self.overlap or self.index_heads is not None):
            yield Conflict("rate", "the tokens per entry, given overlap or an index")
        if self.index_heads is not None and self.index_width is None:
            yield Conflict("index_width", "a size, given index_heads")
        if self.index_heads is not None and self.index_top_k is None:
            yield Conflict("index_top_k", "a size, given index_heads")
        if self.index_heads is None and (self.index_width is not None or self.index_top_k is not None):
            yield Conflict("index_heads", "a size, given index_width or index_top_k")

    def build(self, place: Place) -> CompressedAttention:
        heads, width = self.n_heads, self.d_head
        entries = None if self.rate is None else Entries(rate=self.rate, top_k=self.index_top_k)
        sizes = {"n_heads": heads, "n_kv_heads": 1, "d_qk": width, "d_v": width}
        rotary = self._rotary(place, heads + 1)
        compressor = selector = None
        if entries is not None:
            compressor = self._compressor(place, width, True)
            if self.index_heads is not None:
                selector = Selector(
                    d_model=place.d_model,
                    q_rank=self.q_rank,
                    compressor=self._compressor(place, self.index_width, False),
                    rotary=self._rotary(place, self.index_heads),
                    core=SelectionCore(n_heads=self.index_heads, width=self.index_width, span=entries),
                )
        return self.into(
            CompressedAttention,
            d_model=place.d_model,
            d_group=product((exact_div(heads, self.groups), width)),
            norm_eps=place.norm.epsilon_or(RMS_EPS),
            rotary=rotary,
            core=CompressedCore(**sizes, span=Window(window=self.window), entries=entries),
            compressor=compressor,
            selector=selector,
        )

    def _rotary(self, place: Place, heads: Num) -> Rotary:
        rotary = place.positions.rotary(heads, self.d_rope, paired=True)
        assert rotary is not None  # `layer_rules` requires rotary positions
        return rotary

    def _compressor(self, place: Place, width: Num, keeps: bool) -> Compressor:
        return Compressor(
            d_model=place.d_model,
            pool=Pool(width=width, rate=self.rate, overlap=self.overlap, keeps=keeps),
            norm=Norm(width=width, form="rms", bias=False, eps=place.norm.epsilon_or(RMS_EPS), keeps=keeps),
            rotary=self._rotary(place, 1),
        )
