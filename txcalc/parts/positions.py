"""How the order of tokens is known: rotation of queries and keys, biases by distance, and what is said of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from txcalc.num import divides, exact_div, exceeds, product
from txcalc.parts.disentangled import DisentangledAttention, DisentangledCore, DistanceTable
from txcalc.parts.frozen import frozen
from txcalc.parts.linear import Linear, Unused
from txcalc.parts.norm import NormOptions
from txcalc.parts.options import REQUIRED, Options, Wished, flag, key, letter, one_of, real, size, some_of
from txcalc.parts.part import Composite, Leaf, Operation, Weight, Workload, elementwise
from txcalc.parts.sharding import Ways


@frozen
class Rotary(Leaf):
    """Rotates `dims` of every query and key head by its position: the first ones, or, `spread`, the first of each half
    at the frequencies of the whole head (Gemma-4).

    Shapes   q (B, T, h, d_h), k (B, T, h_kv, d_h)
    Unit     3 FLOPs per rotated element, under other; no weights, nothing new kept for backward
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


@frozen
class RelativeBias(Leaf):
    """T5's table of biases by distance, one scalar per bucket and head, which layers share or (UMT5) do not. In a
    picture of `side` patches each way a distance is a pair, which has a bucket, and so have those from, to and within
    the class token.

    Shapes   table (buckets, h), added to the scores (B, h, T, S)
    Unit     its additions are counted in the core of each layer
    Source   Raffel et al. 2019 (arXiv 1910.10683), section 2.1; Bao et al. 2021 (arXiv 2106.08254), section 2.2
    """

    kind = "attention"
    role = "table"
    buckets: Any
    n_heads: Any
    distance: Any
    bidirectional: bool
    side: Any = None

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("weight", (self.buckets, self.n_heads)),)

    def shard(self, ways: Ways) -> RelativeBias:
        """The columns of its heads."""
        return replace(self, n_heads=ways.split("n_heads", self.n_heads))


@frozen
class PositionsOptions(Options, section="positions"):
    """`[positions]`: how order is known, a class for each form. `biased`: scores get an addition by distance."""

    biased: ClassVar[bool] = False
    form: str = key(
        one_of("rotary", "learned", "sinusoidal", "relative", "relative-projection", "disentangled", "alibi", "none"),
        "rotary",
        "how order is known",
        "with attention; 'learned' and 'sinusoidal' with an embedding",
    )

    def table_of(self, positions: Any) -> Any:
        """Rows of the learned table of a stack of so many positions (None: as many as are asked for), or None."""
        return None

    def rotary(self, heads: Any, width: Any, *, partly: bool = False, paired: bool = False) -> Rotary | None:
        """The rotation of `heads` of a width, where positions turn them: `partly`, of the part of it that is said,
        `paired`, by the pairs that are said."""
        return None

    def angles(self, width: Any) -> Unused | None:
        """Sinusoids of rotated heads that are stored."""
        return None

    def relative_bias(self, heads: Any, role: str, *, own: bool) -> RelativeBias | None:
        """The table of biases by distance of a stack of this role, or of each of its layers (`own`)."""
        return None

    def distances(self, norm: NormOptions, width: Any) -> DistanceTable | None:
        """The table of vectors by distance."""
        return None

    def attention(self, d_model: Any, heads: Any, width: Any, *, bias: list[str], scale: Any) -> Composite | None:
        """Attention of another kind."""
        return None


@frozen
class UnsaidPositions(PositionsOptions, forms="sinusoidal none"):
    """Sines and cosines that are added, or nothing."""


@frozen
class Slopes(PositionsOptions, forms="relative-projection alibi"):
    """Scores less by a slope of the distance, or more by its projected sinusoids."""

    biased = True


@frozen
class RotaryPositions(PositionsOptions, forms="rotary"):
    """Queries and keys are turned."""

    theta: Any = key(real, 10000, "base of the rotary frequencies")
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
    rows: Any = letter(None, "in an encoder, rows of a table of sinusoids that is stored and not learnt")

    def rotary(self, heads: Any, width: Any, *, partly: bool = False, paired: bool = False) -> Rotary:
        return Rotary(
            heads=heads,
            dims=self.rotary_dims if partly and self.rotary_dims is not None else width,
            theta=self.theta,
            width=width,
            interleaved=paired and self.interleaved,
            spread=partly and self.spread,
        )

    def angles(self, width: Any) -> Unused | None:
        return None if self.rows is None else Unused(d_in=width, d_out=self.rows, bias=False)


@frozen
class LearnedPositions(PositionsOptions, forms="learned"):
    """A learned vector for each position."""

    rows: Any = letter(None, "rows of the learned table; absent: a picture's or sound's positions")

    def table_of(self, positions: Any) -> Any:
        return positions if self.rows is None else self.rows


@frozen
class RelativePositions(PositionsOptions, forms="relative"):
    """T5's biases by distance."""

    biased = True
    buckets: Any = key(size, 32, "buckets of the relative bias")
    distance: Any = key(size, 128, "longest distance the buckets, or the table of distances, tell apart")
    side: Any = key(size, None, "patches a side of the picture whose pairs of distances have a bucket each")
    apart: bool = key(flag, False, "each layer has a table of its own")
    rows: Any = letter(None, "one beside an encoder's relative bias")

    def misfits(self) -> Iterator[Wished]:
        if self.side is not None:
            for name, usual in (("buckets", 32), ("distance", 128)):
                if getattr(self, name) != usual:
                    yield Wished(name, f"none beside side = {self.side}, which says them")

    def table_of(self, positions: Any) -> Any:
        return self.rows

    def relative_bias(self, heads: Any, role: str, *, own: bool) -> RelativeBias | None:
        if (own and not self.apart) or (self.apart and not own):
            return None
        two = role == "encoder" or role == "vision"
        buckets = self.buckets if self.side is None else (2 * self.side - 1) * (2 * self.side - 1) + 3
        return RelativeBias(buckets=buckets, n_heads=heads, distance=self.distance, bidirectional=two, side=self.side)


@frozen
class DisentangledPositions(PositionsOptions, forms="disentangled"):
    """DeBERTa's vectors for the distances, which meet queries and keys in products of their own."""

    rows: Any = letter(REQUIRED, "disentangled: of both signs of the distances")
    distance: Any = key(size, 128, "longest distance the buckets, or the table of distances, tell apart")
    terms: list[str] = key(some_of("c2p", "p2c"), ["c2p", "p2c"], "queries meet distances, keys do")
    shared: bool = key(flag, False, "q and k project the distances too")
    bias: list[str] = key(some_of("q", "k"), [], "projections of the distances with a bias")
    norm: bool = key(flag, False, "norm of the distances' vectors")
    clipped: bool = key(flag, False, "only the distances that occur are projected")

    def misfits(self) -> Iterator[Wished]:
        if not divides(2, self.rows):
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

    def distances(self, norm: NormOptions, width: Any) -> DistanceTable:
        own = replace(norm.over(width), keeps=False) if self.norm else None
        return DistanceTable(rows=self.rows, width=width, norm=own)

    def attention(self, d_model: Any, heads: Any, width: Any, *, bias: list[str], scale: Any) -> DisentangledAttention:
        biases = bias if self.shared else self.bias
        form = {"d_in": d_model, "d_out": product((heads, width)), "keeps": "no", "borrowed": self.shared}
        return DisentangledAttention(
            d_model=d_model,
            n_heads=heads,
            d_head=width,
            biases=frozenset(bias),
            distance_k=Linear(**form, bias="k" in biases) if "c2p" in self.terms else None,
            distance_q=Linear(**form, bias="q" in biases) if "p2c" in self.terms else None,
            core=DisentangledCore(
                n_heads=heads,
                d_head=width,
                reach=exact_div(self.rows, 2),
                distance=self.distance,
                clipped=self.clipped,
                c2p="c2p" in self.terms,
                p2c="p2c" in self.terms,
                scale=scale,
            ),
        )
