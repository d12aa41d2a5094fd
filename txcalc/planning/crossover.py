"""Where one cost overtakes another: the length from which attention outweighs other layers, the context from which
reading the cache outweighs reading the weights.

All arithmetic is on integers. Every cost is a polynomial in the length of at most the second degree, on intervals that
end at the windows. Each polynomial is found from values in its interval, so that "never" is proved by coefficients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import lcm
from typing import Any, NamedTuple

from txcalc.errors import InputError
from txcalc.ledger import FEED_FORWARD, Entry, Ledger, walk
from txcalc.model import Model
from txcalc.num import Num, ceil_div, minimum, total
from txcalc.parts.part import Workload
from txcalc.units import bits_of

CORE = ("attention_core",)
PROJECTIONS = ("attention",)


class CrossoverRule(NamedTuple):
    """left ≥ right: sums over kinds of parts. `right` None: every other kind except those in `without`."""

    name: str
    left: tuple[str, ...]
    right: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()

    def sides(self, costs: Mapping[str, Any]) -> tuple[Num, Num]:
        """Both sides, from costs by kind."""
        remaining_kinds = [kind for kind in costs if kind not in (*self.left, *self.without)]
        right = remaining_kinds if self.right is None else self.right
        return total(costs.get(kind, 0) for kind in self.left), total(costs.get(kind, 0) for kind in right)


# The common definitions. For the classic block, dense, they give 4·D, 2·D, 2·D and 6·D (8·D where a feed-forward of
# F = 4·D is gated). Scores and values against every linear layer are the s = 6h of Narayanan et al. 2021 (arXiv
# 2104.04473, equation 3) and the 8D of Austin et al. 2025 ("How to scale your model", chapter 4).
RULES = (
    CrossoverRule("scores + values ≥ feed-forward", CORE, FEED_FORWARD),
    CrossoverRule("all of attention ≥ feed-forward", CORE + PROJECTIONS, FEED_FORWARD),
    CrossoverRule("scores + values ≥ attention projections", CORE, PROJECTIONS),
    CrossoverRule("scores + values ≥ every linear layer", CORE, None, ("head",)),
    CrossoverRule("scores + values ≥ every linear layer and the head", CORE),
)


class Prefills(NamedTuple):
    """Prefills of one sequence at any length."""

    model: Model
    start: Workload
    coupled: bool  # a separate encoder has the same length
    windows: tuple[int, ...]
    chunk: int | None  # length of the chunks of chunked attention
    filled: int  # positions are padded to multiples of this, for attention in blocks or grouped positions

    def first(self, excess: Callable[[int], int]) -> int | None:
        """The smallest length at which a cost is at least 0, or None."""
        if self.filled > 1:
            return first_in_blocks(excess, self.filled, self.windows)
        return first(excess, self.windows) if self.chunk is None else first_in_chunks(excess, self.chunk)

    def at(self, tokens: int) -> Workload:
        return self.start._replace(tokens=tokens, source=tokens if self.coupled else self.start.source)


def lengths(model: Model, source: int | None = None, logits: str = "all", mla: str = "expanded") -> Prefills:
    """A model's prefills; `source` fixes the length of a separate encoder.

    Errors: `InputError` for a model with a fixed number of positions, or whose cost is no such polynomial.
    """
    start = model.workload(1, 1, 0, source, logits=logits, mla=mla)
    if model.fixed_length:
        raise InputError(model.name, [f"always has {start.tokens:,} positions: no length at which a cost overtakes"])
    coupled = model.workload(1, 2, 0, source, logits=logits, mla=mla).source == 2 and source is None
    windows, chunks = ends(model)
    groups = {*model.root.grouped()}
    windows += [ceil_div(-b, a) for a, b, _ in groups if b < 0 < a]  # below them it has no positions
    if chunks and len({*windows}) > 1:
        raise InputError(model.name, [f"mixes chunks of attention with windows of other lengths: {sorted({*windows})}"])
    multiples = {leaf.length_multiple for leaf in model.root.leaves()} | {c for _, _, c in groups}
    if None in multiples:
        raise InputError(model.name, ["attends in squares of an image: its cost is no polynomial of the length"])
    filled = lcm(*filter(None, multiples))
    if chunks and filled != 1:
        raise InputError(model.name, [f"mixes chunks of attention with blocks of {filled}"])
    return Prefills(model, start, coupled, tuple(sorted({*windows})), next(iter(chunks), None), filled)


def ends(model: Model) -> tuple[list[Num], list[Num]]:
    """The lengths at which a cost's polynomial changes, and those that are chunks of chunked attention."""
    leaves = list(model.root.leaves())
    chunks = [leaf.period for leaf in leaves if leaf.period is not None]
    return [end for leaf in leaves for end in leaf.breakpoints], chunks


class RuleCrossover(NamedTuple):
    """A rule's answer for one model: the smallest whole length, or None and the reason; `one_sided`: one side of the
    rule has no FLOPs."""

    rule: CrossoverRule
    attention: str
    tokens: int | None
    why: str = ""
    one_sided: bool = False


def crossovers(prefills: Prefills) -> list[RuleCrossover]:
    """Every rule's length, dense and masked; layers, active experts and routers are summed.

    A rule with no FLOPs on one side has no length, for example in a model without feed-forward layers.
    """
    ledgers: dict[int, Ledger] = {}

    def sides(rule: CrossoverRule, quantity: str, tokens: int) -> tuple[int, int]:
        if tokens not in ledgers:
            ledgers[tokens] = walk(prefills.model.root, prefills.at(tokens))
        return rule.sides(ledgers[tokens].by_kind(quantity))

    results = []
    for rule in RULES:
        for attention, quantity in (("dense", "flops"), ("masked", "flops_masked")):
            left, right = sides(rule, quantity, 1)
            if not left or not right:
                why = f"no {'attention' if not left else 'such layers'}"
                results.append(RuleCrossover(rule, attention, None, why, one_sided=True))
                continue

            def excess(tokens: int, rule: CrossoverRule = rule, quantity: str = quantity) -> int:
                left, right = sides(rule, quantity, tokens)
                return left - right

            tokens = prefills.first(excess)
            why = "" if tokens else "beyond its windows it grows no faster"
            results.append(RuleCrossover(rule, attention, tokens, why))
    return results


class CacheCrossover(NamedTuple):
    """For one batch, the smallest context at which a decode step reads at least as many bytes of cache as of weights
    (None: never), and both numbers of bytes there."""

    batch: int
    context: int | None
    weights_bytes: int
    cache_bytes: int | None


BATCHES = (1, 8, 32, 128, 512)


def balances(prefills: Prefills, dtype: str = "bf16", kv_dtype: str = "bf16") -> list[CacheCrossover]:
    """Where reading the cache costs more than reading the weights, for some batches; [] for a model without a cache.

    A decode step reads every weight that it multiplies by or adds once, including a tied head; rows of an embedding
    table are not counted. It reads as many experts as its tokens can select: min(E, k·batch). It reads the whole cache,
    or, of a latent with selected keys, only those.
    """
    model = prefills.model
    if not walk(model.root, prefills.at(1)).total("cache"):
        return []
    rows, kv_bits = [], model.cache_bits(kv_dtype)
    for batch in BATCHES:
        step = model.workload(batch, 1, 1, None if prefills.coupled else prefills.start.source)
        weights = total(map(elements_read, walk(model.root, step))) * bits_of(dtype)

        def cache(tokens: int, batch: int = batch) -> int:
            read: int = total(map(cache_read, walk(model.root, prefills.at(tokens))))
            return batch * read * kv_bits

        context = first(lambda tokens, weights=weights: cache(tokens) - weights, prefills.windows)  # type: ignore[misc]
        rows.append(
            CacheCrossover(batch, context, ceil_div(weights, 8), ceil_div(cache(context), 8) if context else None)
        )
    return rows


def cache_read(entry: Entry) -> int:
    """The elements of a leaf's cache of one sequence that one step reads."""
    return entry.cache if entry.work is None else entry.leaf.cache_read(entry.work) * entry.runs


def elements_read(entry: Entry) -> int:
    """The distinct weights of a leaf that one step reads."""
    if entry.work is None or entry.leaf.row is not None:
        return 0
    copies = minimum(entry.times, entry.runs * entry.work.positions) if entry.routed else entry.times
    return entry.leaf.untied.params * copies


def first(excess: Callable[[int], int], ends: tuple[int, ...] = ()) -> int | None:
    """The smallest whole n ≥ 1 with excess(n) ≥ 0, or None.

    From 1 to the first of `ends`, from each to the next, and from the last one on, `excess` must be a polynomial of at
    most the second degree: `ArithmeticError` if its values show that it is not.
    """
    starts = [1, *(end for end in ends if end > 1)]
    for low, high in pairwise([*starts, None]):
        assert low is not None
        limit = None if high is None else high - low
        values = [excess(low + i) for i in range(4 if limit is None else min(4, limit + 1))]
        for i, value in enumerate(values):
            if value >= 0:
                return low + i
        if len(values) == 4 and (steps := steps_to_zero(values, limit)) is not None:
            if not excess(low + steps) >= 0 > excess(low + steps - 1):
                raise ArithmeticError(f"not quadratic from {low} on")
            return low + steps
    return None


def first_in_chunks(excess: Callable[[int], int], chunk: int) -> int | None:
    """As `first`, for a cost that starts at 0, is convex within every chunk, and at the ends of chunks is a polynomial
    of at most the second degree in their number: if below 0 at both ends of a chunk, it is below 0 within."""
    number = first(lambda n: excess(n * chunk))
    if number is None:
        return None
    low, high = (number - 1) * chunk, number * chunk
    if low == 0 and excess(1) >= 0:
        return 1
    return _bisect_sign(excess, max(low, 1), high)


def _bisect_sign(value: Callable[[int], int], low: int, high: int) -> int:
    """The smallest n with value(n) ≥ 0, which is below 0 at `low`, not at `high`, and changes its sign once."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if value(middle) < 0 else (low, middle)
    return high


def first_in_blocks(excess: Callable[[int], int], block: int, ends: tuple[int, ...] = ()) -> int | None:
    """As `first`, for a cost of positions that are padded to whole blocks: for lengths with the same remainder it is a
    polynomial in the number of blocks, which may jump after an end."""

    def first_with(remainder: int) -> int | None:
        last = [(end - remainder) // block + 1 for end in ends]  # the largest number of blocks up to each end
        jumps = tuple(sorted({n + i for n in last for i in (0, 1)}))
        number = first(lambda n: excess((n - 1) * block + remainder), jumps)
        return None if number is None else (number - 1) * block + remainder

    return min(filter(None, map(first_with, range(1, block + 1))), default=None)


def steps_to_zero(values: list[int], limit: int | None) -> int | None:
    """The smallest i ≤ `limit` at which the polynomial through (0 … 3, values), all below 0, is at least 0."""
    slopes = [b - a for a, b in pairwise(values)]
    start, slope, curvature = values[0], slopes[0], slopes[1] - slopes[0]
    if slopes[2] - slopes[1] != curvature:
        raise ArithmeticError("a cost that grows faster than the square of the length")

    def value(i: int) -> int:
        return start + i * slope + i * (i - 1) // 2 * curvature

    if curvature <= 0 and slope <= 0:
        return None
    high = 1
    if curvature < 0:
        high = -(slope // curvature)  # the maximum
    else:
        while value(high) < 0:
            high *= 2
    high = high if limit is None else min(high, limit)
    if value(high) < 0:
        return None
    return _bisect_sign(value, 0, high)
