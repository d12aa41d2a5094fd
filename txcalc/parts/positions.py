"""How the order of tokens is known: rotation of queries and keys, biases by distance, and what is said of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, final

from txcalc.num import divides, exceeds
from txcalc.parts.frozen import frozen
from txcalc.parts.options import Options, Wished, flag, key, letter, one_of, real, size, some_of
from txcalc.parts.part import Leaf, Operation, Weight, Workload, elementwise
from txcalc.parts.sharding import Ways


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
    reads_places = True
    unfused = 5  # torchtitan, apply_rotary_emb: to fp32 (6 bytes), the complex product (8), back (6), for 4

    @property
    def moves(self) -> bool:
        return not self.spread

    @property
    def computes(self) -> str:
        return "" if self.spread else "all"

    @property
    def turned(self) -> tuple[Any, Any]:
        return self.dims, self.width

    @property
    def angles(self) -> tuple[Any, Any]:
        return self.dims, self.theta

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.heads * self.dims
        return (elementwise("rotary", elements, "rotary", elements, elements),)


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
class PositionsOptions(Options):
    """`[positions]`"""

    section = "positions"
    form: str = key(
        one_of("rotary", "learned", "sinusoidal", "relative", "relative-projection", "disentangled", "alibi", "none"),
        "rotary",
        "how order is known",
        "with attention; 'learned' and 'sinusoidal' with an embedding",
    )
    theta: Any = key(real, 10000, "base of the rotary frequencies", "with rotary positions")
    rotary_dims: Any = letter(
        None, "rotated part of a head; absent: all of it", "with rotary positions of [attention]", even=True
    )
    interleaved: bool = key(
        flag,
        False,
        "rotary pairs are neighbours, not halves",
        "with rotary positions of [attention], [latent] or [compressed]",
    )
    spread: bool = key(
        flag,
        False,
        "the rotated part is the first of both halves, at the whole head's frequencies",
        "with rotary positions of [attention]",
    )
    rows: Any = letter(
        None,
        "rows of the learned table, or of one beside an encoder's relative bias; disentangled: of both signs of "
        "the distances; an encoder's rotary: of a table of sinusoids that is stored and not learnt",
    )
    buckets: Any = key(size, 32, "buckets of the relative bias", "with positions.form = 'relative'")
    distance: Any = key(
        size,
        128,
        "longest distance the buckets, or the table of distances, tell apart",
        "with positions.form = 'relative' or 'disentangled'",
    )
    apart: bool = key(flag, False, "relative: each layer has a table of its own")
    terms: list[str] = key(
        some_of("c2p", "p2c"),
        ["c2p", "p2c"],
        "disentangled: queries meet distances, keys do",
        "with positions.form = 'disentangled'",
    )
    shared: bool = key(
        flag, False, "disentangled: q and k project the distances too", "with positions.form = 'disentangled'"
    )
    bias: list[str] = key(
        some_of("q", "k"),
        [],
        "disentangled: projections of the distances with a bias",
        "with positions.form = 'disentangled'",
    )
    norm: bool = key(
        flag, False, "disentangled: norm of the distances' vectors", "with positions.form = 'disentangled'"
    )
    clipped: bool = key(
        flag, False, "disentangled: only the distances that occur are projected", "with positions.form = 'disentangled'"
    )

    def misfits(self) -> Iterator[Wished]:
        if self.apart and self.form != "relative":
            yield Wished("apart", "false without positions.form = 'relative'")
        if self.form != "disentangled":
            return
        if self.rows is None or not divides(2, self.rows):
            yield Wished("rows", "the rows of the table of distances, an even number")
        elif exceeds(self.rows, 2 * self.distance):
            yield Wished("rows", f"at most twice the distance = {self.distance}")
        elif self.clipped and exceeds(2 * self.distance, self.rows):
            yield Wished("clipped", "false where the distances are in buckets")
        if not self.terms:
            yield Wished("terms", "one of 'c2p' and 'p2c' at least")
        if self.shared and len(self.terms) < 2:
            yield Wished("shared", "false with one term: q and k both project the distances")
        if self.shared and self.bias:
            yield Wished("bias", "none where q and k project the distances, with the biases they have")

    @property
    def looked_up(self) -> bool:
        """Whether positions have a learned table, also one beside a relative bias."""
        return self.form == "learned" or (self.form == "relative" and self.rows is not None)

    def rotary(
        self, heads: Any, width: Any, dims: Any = None, *, interleaved: bool = False, spread: bool = False
    ) -> Rotary | None:
        """The rotation of `heads` of a width, or of so many dimensions of it, where positions turn them."""
        if self.form != "rotary":
            return None
        turned = width if dims is None else dims
        return Rotary(heads=heads, dims=turned, theta=self.theta, width=width, interleaved=interleaved, spread=spread)

    def relative_bias(self, heads: Any, role: str) -> RelativeBias:
        """The table of biases by distance, in a stack of this role."""
        return RelativeBias(
            buckets=self.buckets, n_heads=heads, distance=self.distance, bidirectional=role == "encoder"
        )
