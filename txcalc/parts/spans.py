"""Spans: which keys a query may see, and so which tokens stay cached.

`keys` of the dense product, `visible` query-key pairs under the mask, and the elements of `cache`, `dense` and `paged`,
for `width` elements per token.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from txcalc.num import Num, ceil_div, exact_div, floor_div, maximum, minimum, nearest_square, triangle
from txcalc.parts.structs import FrozenStruct
from txcalc.parts.work import NO_CACHE, Cache, Traffic, Workload


class Attended(NamedTuple):
    """The heads of a softmax: query heads, key/value heads and the widths of both; `strided`: whether explicit products
    of a single head copy an operand depends on its memory layout."""

    heads: Num
    groups: Num
    d_qk: Num
    d_v: Num
    strided: bool = False

    def crossing(self, rows: Num) -> Num:
        """Elements of queries, keys, values and results of `rows` tokens."""
        return rows * (self.heads + self.groups) * (self.d_qk + self.d_v)


class Span(FrozenStruct):
    """The keys that a query may see. By default every key j ≤ i, and every key stays cached."""

    # What is cached, as `Leaf.cache_kind`.
    cache_kind: ClassVar[str] = "tokens"
    # Whether no query sees a later key.
    causal: ClassVar[bool] = True
    # Whether the mask alone decides what is seen: no scores select keys.
    masked: ClassVar[bool] = True

    @property
    def max_keys(self) -> Num | None:
        """The most keys that one query sees (in a bidirectional window: to one side); None: all."""
        return None

    @property
    def cache_limit(self) -> Num | None:
        """The number of tokens after which the cache stops growing; None: it never does, or there is none."""
        return None

    @property
    def period(self) -> Num | None:
        """The period of the mask in tokens (chunks); None: not periodic."""
        return None

    @property
    def length_multiple(self) -> Num | None:
        """The multiple that lengths are padded to or cut by; None: there is none."""
        return 1

    def describe(self) -> str:
        """Suffix of the heads in the summary line of a layer."""
        return ""

    def read(self, work: Workload, width: Num) -> Num:
        """Elements of the cache that one step reads."""
        return self.cache(work, width).elements

    def keys(self, work: Workload) -> Num:
        """S, the keys of the dense product."""
        return work.keys

    def sequences(self, work: Workload) -> Iterable[Workload]:
        """The independent sequences that attention sees: the batch, or the windows it is cut into."""
        return (work,)

    def grid(self, work: Workload) -> tuple[Num, Num] | None:
        """(rows, columns), in merged cells, of the picture assumed for this number of positions; None: the cost does
        not depend on it."""
        return None

    def visible(self, work: Workload) -> Num:
        """Query-key pairs under the mask: Σ (i + 1) over i = past … past + T − 1."""
        return triangle(work.keys) - triangle(work.past)

    def cache(self, work: Workload, width: Num) -> Cache:
        """The cache, at `width` elements per token."""
        return Cache(width, 0, width * work.keys)

    def moved(self, activations: Num, kv: Num, weights: Num = 0) -> Traffic:
        """Traffic of a kernel: its own activations, and keys or values, which are read from the cache."""
        return Traffic(weights, activations, kv)

    def dense(self, work: Workload, width: Num) -> Num:
        """Elements of all tokens, without windows."""
        return width * work.keys

    def paged(self, work: Workload, width: Num, block: Num, chunk: Num) -> Num:
        """Elements of whole pages, as vLLM's hybrid KV cache manager allocates them (v1/kv_cache_interface.py,
        2026-11)."""
        return width * block * ceil_div(work.keys, block)

    def describe_cache(self, what: str, width: str) -> str:
        """The cache in words."""
        return f"{what} of each of S tokens: {width} · S elements"


class Causal(Span):
    """Query i attends to every key j ≤ i."""


class Windowed(Span):
    """At most the last W keys, of which at most W are cached."""

    window: Num

    @property
    def max_keys(self) -> Num:
        return self.window

    @property
    def cache_limit(self) -> Num:
        return self.window

    def describe(self) -> str:
        return f", window {self.window:,}"

    def keys(self, work: Workload) -> Num:
        return minimum(work.past, self.window - 1) + work.tokens

    def visible(self, work: Workload) -> Num:
        return self._up_to(work.keys) - self._up_to(work.past)

    @abstractmethod
    def _up_to(self, n: Num) -> Num:
        """Visible pairs of the first n queries."""

    def cache(self, work: Workload, width: Num) -> Cache:
        return Cache(0, width * self.window, width * minimum(work.keys, self.window))

    def paged(self, work: Workload, width: Num, block: Num, chunk: Num) -> Num:
        """W − 1 tokens and a chunk of prefill, and one more page."""
        return width * block * (ceil_div(minimum(self.window - 1 + chunk, work.keys), block) + 1)


class Window(Windowed):
    """Query i attends to key j when 0 ≤ i − j < W."""

    def _up_to(self, n: Num) -> Num:
        """Σ min(i, W) over i = 1 … n."""
        growing = minimum(n, self.window)
        return triangle(growing) + (n - growing) * self.window

    def describe_cache(self, what: str, width: str) -> str:
        return f"{what} of the last {self.window:,} of S tokens: {width} · min(S, {self.window:,}) elements"


class Chunks(Windowed):
    """Chunked attention (Llama-4): query i attends to key j ≤ i of the same chunk; at most W keys are cached."""

    @property
    def period(self) -> Num:
        return self.window

    def describe(self) -> str:
        return f", chunks of {self.window:,}"

    def _up_to(self, n: Num) -> Num:
        """Σ (i mod W) + 1 over i = 0 … n − 1."""
        full = floor_div(n, self.window)
        return full * triangle(self.window) + triangle(n - full * self.window)

    def describe_cache(self, what: str, width: str) -> str:
        return f"{what} of a chunk of {self.window:,} of S tokens: {width} · min(S, {self.window:,}) elements"


class Selected(Span):
    """Query i attends to the `top_k` keys j ≤ i with the best index scores. All keys stay cached, since later queries
    select others. The dense product covers all keys; only the masked pairs are fewer."""

    masked: ClassVar[bool] = False
    top_k: Num

    @property
    def max_keys(self) -> Num:
        return self.top_k

    def describe(self) -> str:
        return f", {self.top_k:,} keys per query"

    def read(self, work: Workload, width: Num) -> Num:
        """At most the selected keys."""
        return Window(window=self.top_k).read(work, width)

    def visible(self, work: Workload) -> Num:
        """Σ min(i + 1, top_k) over i = past … past + T − 1, as in a window of `top_k`."""
        return Window(window=self.top_k).visible(work)


class Uncached(Span):
    """Bidirectional attention (encoders): nothing is cached."""

    cache_kind: ClassVar[str] = "nothing"
    causal: ClassVar[bool] = False

    def keys(self, work: Workload) -> Num:
        return work.tokens

    def visible(self, work: Workload) -> Num:
        return work.tokens * work.tokens

    def cache(self, work: Workload, width: Num) -> Cache:
        return NO_CACHE

    def moved(self, activations: Num, kv: Num, weights: Num = 0) -> Traffic:
        return Traffic(weights, activations + kv)

    def dense(self, work: Workload, width: Num) -> Num:
        return 0

    def paged(self, work: Workload, width: Num, block: Num, chunk: Num) -> Num:
        return 0

    def describe_cache(self, what: str, width: str) -> str:
        return ""


class Full(Uncached):
    """Every position attends to every other: no mask, no cache."""


class CausalUncached(Uncached):
    """Causal attention over a text that is read once, as a whole: no cache."""

    causal: ClassVar[bool] = True

    def visible(self, work: Workload) -> Num:
        return triangle(work.tokens)


def window_pieces(n: Num, width: Num) -> tuple[tuple[Num, Num], ...]:
    """(number, width) of the full pieces of n, and of the remainder, which may be 0 wide."""
    full = floor_div(n, width)
    return (full, width), (1, n - full * width)


class SeparateWindows(Uncached):
    """Windows of a vision tower: each attends to itself; the last may be shorter."""

    window: Num

    @property
    def max_keys(self) -> Num:
        return self.window

    @property
    def length_multiple(self) -> Num | None:
        return self.window

    def describe(self) -> str:
        return f", windows of {self.window:,}"

    def sequences(self, work: Workload) -> Iterable[Workload]:
        for number, tokens in window_pieces(work.tokens, self.window):
            yield work._replace(batch=work.batch * number, tokens=tokens)


class SquareWindows(Uncached):
    """Square windows of a picture, `side` positions high and wide, smaller at its edges; each attends to itself. The
    picture is the one nearest to a square with this many positions, in whole cells of `cell` × `cell` that are merged
    later.

    Source   Bai et al. 2025 (arXiv 2502.13923), section 2.1.1
    """

    side: Num
    cell: Num

    @property
    def max_keys(self) -> Num:
        return self.side * self.side

    @property
    def length_multiple(self) -> Num | None:
        return None

    def describe(self) -> str:
        return f", windows of {self.side:,} × {self.side:,}"

    def grid(self, work: Workload) -> tuple[Num, Num]:
        cells = ceil_div(work.tokens, self.cell * self.cell)
        rows = nearest_square(cells)
        return rows, exact_div(cells, rows)

    def sequences(self, work: Workload) -> Iterable[Workload]:
        rows, columns = (window_pieces(cells * self.cell, self.side) for cells in self.grid(work))
        for down, height in rows:
            for along, width in columns:
                yield work._replace(batch=work.batch * down * along, tokens=height * width)


class CrossUncached(Uncached):
    """Cross-attention of queries that are not the sequence's, to every source position: no cache."""

    def keys(self, work: Workload) -> Num:
        return work.source

    def visible(self, work: Workload) -> Num:
        return work.tokens * work.source


class CentredWindow(Uncached):
    """A bidirectional window (encoders): query i attends to key j when |i − j| < W."""

    window: Num

    @property
    def max_keys(self) -> Num:
        return self.window

    def describe(self) -> str:
        return f", window {self.window:,}"

    def visible(self, work: Workload) -> Num:
        reach = minimum(work.tokens, self.window)
        return work.tokens * (2 * reach - 1) - 2 * triangle(reach - 1)


class SparseBlocks(Uncached):
    """BigBird's block-sparse attention. Beyond (5 + 2·`random`)·`block` positions a query sees its own block, both
    neighbours, the first, the last and `random` others; queries of the first and last block, and shorter sequences, see
    everything. Lengths are padded to whole blocks.

    Source   Zaheer et al. 2020 (arXiv 2007.14062), section 2
    """

    block: Num
    random: Num

    @property
    def max_keys(self) -> Num:
        return (5 + 2 * self.random) * self.block

    @property
    def length_multiple(self) -> Num | None:
        return self.block

    def describe(self) -> str:
        return f", blocks of {self.block}, {self.random} at random"

    def visible(self, work: Workload) -> Num:
        """T²; beyond the length where blocks begin, the pairs of the 2 blocks that see all, of their 2 neighbours,
        which see 4 blocks and the random ones, and of the others, which see 5 and the random ones."""
        tokens, block, blocks = work.tokens, self.block, 4 + self.random
        filled = block * ceil_div(tokens, block)
        pairs = 2 * block * filled + 2 * blocks * block * block + (filled - 4 * block) * (blocks + 1) * block
        beyond = minimum(1, maximum(0, tokens - self.max_keys))
        return tokens * tokens + beyond * (pairs - tokens * tokens)


class Cross(Span):
    """Cross-attention: every decoder position sees every encoder position, whose K and V are cached once."""

    cache_kind: ClassVar[str] = "source"
    causal: ClassVar[bool] = False

    def keys(self, work: Workload) -> Num:
        return work.source

    def visible(self, work: Workload) -> Num:
        return work.tokens * work.source

    def cache(self, work: Workload, width: Num) -> Cache:
        return Cache(0, width * work.source, width * work.source)

    def dense(self, work: Workload, width: Num) -> Num:
        return width * work.source

    def paged(self, work: Workload, width: Num, block: Num, chunk: Num) -> Num:
        return width * block * ceil_div(work.source, block)

    def describe_cache(self, what: str, width: str) -> str:
        return f"{what} of every source position: {width} · T_src elements"
