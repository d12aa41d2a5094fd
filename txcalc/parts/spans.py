"""What a query may see, and so what is kept for later queries: the spans of an attention.

`keys` of the dense product, `visible` pairs that the mask lets through; of what is kept `cache`, `dense` and `paged`
elements, at `width` per token, and `kept` in words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from txcalc.num import ceil_div, exact_div, floor_div, maximum, minimum, nearest_square, triangle
from txcalc.parts.frozen import frozen
from txcalc.parts.work import NO_CACHE, Cache, Traffic, Workload


class Attended(NamedTuple):
    """The heads of a softmax over keys: of queries, of keys and values, and the widths of both; `strided`: whether
    explicit products of a single head copy it depends on how it lies in memory."""

    heads: Any
    groups: Any
    d_qk: Any
    d_v: Any
    strided: bool = False

    def crossing(self, rows: Any) -> Any:
        """Elements of queries, keys, values and results of so many tokens."""
        return rows * (self.heads + self.groups) * (self.d_qk + self.d_v)


@frozen
class Span:
    """What a query may see: where a kind of span says nothing else, every key j ≤ i, each of which is kept."""

    # What is kept, as `Leaf.holds` says it.
    holds: ClassVar[str] = "tokens"
    # Whether a query sees nothing that comes after it.
    causal: ClassVar[bool] = True
    # Whether a mask says what is seen, and no scores choose among the keys.
    masked: ClassVar[bool] = True

    @property
    def most(self) -> Any:
        """The most keys that one query sees (to one side, of both); None: as many as there are."""
        return None

    @property
    def fills(self) -> Any:
        """Tokens after which no more are kept; None: every token is, or none."""
        return None

    @property
    def period(self) -> Any:
        """After how many tokens what a query sees begins again; None: never."""
        return None

    @property
    def filled(self) -> Any:
        """The multiple that positions are filled up to, or cut by; None: none such."""
        return 1

    def describe(self) -> str:
        """What is behind the heads in a line about the layer."""
        return ""

    def read(self, work: Workload, width: Any) -> Any:
        """Elements of what is kept that one step reads."""
        return self.cache(work, width).held

    def keys(self, work: Workload) -> Any:
        """S, the keys of the dense product."""
        return work.keys

    def alone(self, work: Workload) -> Iterable[Workload]:
        """What attends to itself alone: all of it, or sequences that it is cut into."""
        return (work,)

    def grid(self, work: Workload) -> tuple[Any, Any] | None:
        """Rows and columns of the picture that so many positions are taken for, in what is merged of it; None: it does
        not matter."""
        return None

    def visible(self, work: Workload) -> Any:
        """Pairs (query, key) the mask lets through: Σ (i + 1) over i = past … past + T − 1."""
        return triangle(work.keys) - triangle(work.past)

    def cache(self, work: Workload, width: Any) -> Cache:
        """K and V of `width` elements per token."""
        return Cache(width, 0, width * work.keys)

    def moved(self, own: Any, kv: Any, weights: Any = 0) -> Traffic:
        """What a kernel moves: its own activations, and keys or values, which are read from the cache."""
        return Traffic(weights, own, kv)

    def dense(self, work: Workload, width: Any) -> Any:
        """Elements of every token, whatever a mask hides."""
        return width * work.keys

    def paged(self, work: Workload, width: Any, block: Any, chunk: Any) -> Any:
        """Elements of whole pages, as vLLM's manager of hybrid caches has them (v1/kv_cache_interface.py, 2026-11)."""
        return width * block * ceil_div(work.keys, block)

    def kept(self, what: str, width: str) -> str:
        """What is kept of every token, in words."""
        return f"{what} of every token: {width} · S elements"


@frozen
class Causal(Span):
    """Query i attends to every key j ≤ i."""


@frozen
class Windowed(Span):
    """No more than the last W keys, and no more than W are kept."""

    window: Any

    @property
    def most(self) -> Any:
        return self.window

    @property
    def fills(self) -> Any:
        return self.window

    def describe(self) -> str:
        return f", window {self.window:,}"

    def keys(self, work: Workload) -> Any:
        return minimum(work.past, self.window - 1) + work.tokens

    def visible(self, work: Workload) -> Any:
        return self._up_to(work.keys) - self._up_to(work.past)

    def _up_to(self, n: Any) -> Any:
        """Pairs of the first n queries."""
        raise NotImplementedError

    def cache(self, work: Workload, width: Any) -> Cache:
        return Cache(0, width * self.window, width * minimum(work.keys, self.window))

    def paged(self, work: Workload, width: Any, block: Any, chunk: Any) -> Any:
        """Those of W − 1 tokens and a chunk, and one more page."""
        return width * block * (ceil_div(minimum(self.window - 1 + chunk, work.keys), block) + 1)


@frozen
class Window(Windowed):
    """Query i attends to key j when 0 ≤ i − j < W."""

    def _up_to(self, n: Any) -> Any:
        """Σ min(i, W) over i = 1 … n."""
        growing = minimum(n, self.window)
        return triangle(growing) + (n - growing) * self.window

    def kept(self, what: str, width: str) -> str:
        return f"{what} of the last {self.window:,} tokens: {width} · min(S, {self.window:,}) elements"


@frozen
class Chunks(Windowed):
    """Windows side by side (Llama-4): query i attends to key j ≤ i of the same window; no more than W are kept."""

    @property
    def period(self) -> Any:
        return self.window

    def describe(self) -> str:
        return f", chunks of {self.window:,}"

    def _up_to(self, n: Any) -> Any:
        """Σ (i mod W) + 1 over i = 0 … n − 1."""
        full = floor_div(n, self.window)
        return full * triangle(self.window) + triangle(n - full * self.window)

    def kept(self, what: str, width: str) -> str:
        return f"{what} of a chunk of {self.window:,} tokens: {width} · min(S, {self.window:,}) elements"


@frozen
class Selected(Span):
    """Query i attends to the `top_k` keys j ≤ i that an index scores best. All are kept, for later queries choose
    others; a dense product with a mask multiplies all of them, and only the masked pairs are fewer."""

    masked: ClassVar[bool] = False
    top_k: Any

    @property
    def most(self) -> Any:
        return self.top_k

    def describe(self) -> str:
        return f", {self.top_k:,} keys per query"

    def read(self, work: Workload, width: Any) -> Any:
        """Of no more than are selected."""
        return Window(window=self.top_k).read(work, width)

    def visible(self, work: Workload) -> Any:
        """Σ min(i + 1, top_k) over i = past … past + T − 1: as many as in a window of `top_k`."""
        return Window(window=self.top_k).visible(work)


@frozen
class Unkept(Span):
    """Nothing is kept for later: of positions that see what comes after them too (encoders), or kept elsewhere."""

    holds: ClassVar[str] = "nothing"
    causal: ClassVar[bool] = False

    def keys(self, work: Workload) -> Any:
        return work.tokens

    def visible(self, work: Workload) -> Any:
        return work.tokens * work.tokens

    def cache(self, work: Workload, width: Any) -> Cache:
        return NO_CACHE

    def moved(self, own: Any, kv: Any, weights: Any = 0) -> Traffic:
        return Traffic(weights, own + kv)

    def dense(self, work: Workload, width: Any) -> Any:
        return 0

    def paged(self, work: Workload, width: Any, block: Any, chunk: Any) -> Any:
        return 0

    def kept(self, what: str, width: str) -> str:
        return ""


@frozen
class Full(Unkept):
    """Every position attends to every other: no mask, no cache."""


@frozen
class Once(Unkept):
    """Query i attends to every key j ≤ i of a text that is read once, as a whole: no cache."""

    causal: ClassVar[bool] = True

    def visible(self, work: Workload) -> Any:
        return triangle(work.tokens)


def _cut(n: Any, width: Any) -> tuple[tuple[Any, Any], ...]:
    """How many are `width` wide, and the one that is left over, which may be none: numbers and widths."""
    full = floor_div(n, width)
    return (full, width), (1, n - full * width)


@frozen
class Apart(Unkept):
    """A tower's windows: each is a sequence by itself, and the last may be shorter."""

    window: Any

    @property
    def most(self) -> Any:
        return self.window

    @property
    def filled(self) -> Any:
        return self.window

    def describe(self) -> str:
        return f", windows of {self.window:,}"

    def alone(self, work: Workload) -> Iterable[Workload]:
        for number, tokens in _cut(work.tokens, self.window):
            yield work._replace(batch=work.batch * number, tokens=tokens)


@frozen
class Squares(Unkept):
    """Windows of a picture, `side` positions high and wide, of which those at its edges may be smaller; each is a
    sequence by itself. The picture is the one nearest to a square that has so many positions, in whole cells of `cell`
    × `cell` that are merged later.

    Source   Bai et al. 2025 (arXiv 2502.13923), section 2.1.1
    """

    side: Any
    cell: Any

    @property
    def most(self) -> Any:
        return self.side * self.side

    @property
    def filled(self) -> Any:
        return None

    def describe(self) -> str:
        return f", windows of {self.side:,} × {self.side:,}"

    def grid(self, work: Workload) -> tuple[Any, Any]:
        cells = ceil_div(work.tokens, self.cell * self.cell)
        rows = nearest_square(cells)
        return rows, exact_div(cells, rows)

    def alone(self, work: Workload) -> Iterable[Workload]:
        rows, columns = (_cut(cells * self.cell, self.side) for cells in self.grid(work))
        for down, height in rows:
            for along, width in columns:
                yield work._replace(batch=work.batch * down * along, tokens=height * width)


@frozen
class Reading(Unkept):
    """Queries of their own, not the sequence's, which see every position of it."""

    def keys(self, work: Workload) -> Any:
        return work.source

    def visible(self, work: Workload) -> Any:
        return work.tokens * work.source


@frozen
class Around(Unkept):
    """Encoders with a window: query i attends to key j when |i − j| < W."""

    window: Any

    @property
    def most(self) -> Any:
        return self.window

    def describe(self) -> str:
        return f", window {self.window:,}"

    def visible(self, work: Workload) -> Any:
        reach = minimum(work.tokens, self.window)
        return work.tokens * (2 * reach - 1) - 2 * triangle(reach - 1)


@frozen
class Blocks(Unkept):
    """BigBird's blocks: past (5 + 2·`random`)·`block` positions a query sees its own block and those beside it, the
    first, the last and `random` others; up to there all, and from the first and last block always all. Positions are
    filled up to whole blocks.

    Source   Zaheer et al. 2020 (arXiv 2007.14062), section 2
    """

    block: Any
    random: Any

    @property
    def most(self) -> Any:
        return (5 + 2 * self.random) * self.block

    @property
    def filled(self) -> Any:
        return self.block

    def describe(self) -> str:
        return f", blocks of {self.block}, {self.random} at random"

    def visible(self, work: Workload) -> Any:
        """T², and past the length at which blocks begin the pairs of 2 blocks that see all, of the 2 beside them, which
        see 4 and the random ones, and of the others, which see 5 and these."""
        tokens, block, seen = work.tokens, self.block, 4 + self.random
        filled = block * ceil_div(tokens, block)
        pairs = 2 * block * filled + 2 * seen * block * block + (filled - 4 * block) * (seen + 1) * block
        beyond = minimum(1, maximum(0, tokens - self.most))
        return tokens * tokens + beyond * (pairs - tokens * tokens)


@frozen
class Cross(Span):
    """Every decoder position attends to every encoder position, whose K and V are kept."""

    holds: ClassVar[str] = "source"
    causal: ClassVar[bool] = False

    def keys(self, work: Workload) -> Any:
        return work.source

    def visible(self, work: Workload) -> Any:
        return work.tokens * work.source

    def cache(self, work: Workload, width: Any) -> Cache:
        return Cache(0, width * work.source, width * work.source)

    def dense(self, work: Workload, width: Any) -> Any:
        return width * work.source

    def paged(self, work: Workload, width: Any, block: Any, chunk: Any) -> Any:
        return width * block * ceil_div(work.source, block)

    def kept(self, what: str, width: str) -> str:
        return f"{what} of every source position: {width} · T_src elements"
