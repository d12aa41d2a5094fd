"""Positions: rotary embedding, biases by distance, and the options of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec.structs import replace

from txcalc.num import Num, divides, exact_div, exceeds, product
from txcalc.parts.disentangled import DisentangledAttention, DisentangledCore, DistanceTable
from txcalc.parts.linear import Linear, Unused
from txcalc.parts.norm import NormOptions
from txcalc.parts.options import REQUIRED, Conflict, Options, Raw, flag, key, letter, one_of, real, size, some_of
from txcalc.parts.part import Composite, Leaf, Operation, Weight, Workload, elementwise
from txcalc.parts.sharding import Ways


class Rotary(Leaf):
    """Rotates `dims` of every query and key head by its position: the first ones, or, `spread`, the first of each half
    at the frequencies of the whole head (Gemma-4).

    Shapes   q (B, T, h, d_h), k (B, T, h_kv, d_h)
    Unit     3 FLOPs per rotated element, under other; nothing saved for backward
    Source   Su et al. 2021 (arXiv 2104.09864)
    """

    heads: Num
    dims: Num
    theta: float | None
    width: Num
    interleaved: bool = False
    spread: bool = False
    reads_places = True
    unfused = 5  # torchtitan, apply_rotary_emb: to fp32 (6 bytes), the complex product (8), back (6), for 4

    @property
    def traffic_exact(self) -> bool:
        return not self.spread

    @property
    def operators_exact(self) -> str:
        return "" if self.spread else "all"

    @property
    def rotated_dims(self) -> tuple[Num, Num]:
        return self.dims, self.width

    @property
    def angles(self) -> tuple[Num, float | None]:
        return self.dims, self.theta

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.heads * self.dims
        return (elementwise("rotary", elements, "rotary", elements, elements),)


class RelativeBias(Leaf):
    """T5's relative bias: a table with a scalar per distance bucket and head, shared by layers or (UMT5) one per layer.
    In a picture of `side` patches each way a distance is a pair with a bucket of its own, and so are those from, to and
    within the class token.

    Shapes   table (buckets, h), added to the scores (B, h, T, S)
    Unit     its additions are counted in the core of each layer
    Source   Raffel et al. 2019 (arXiv 1910.10683), section 2.1; Bao et al. 2021 (arXiv 2106.08254), section 2.2
    """

    kind = "attention"
    role = "table"
    buckets: Num
    n_heads: Num
    distance: Num
    bidirectional: bool
    side: Num | None = None

    def weights(self) -> tuple[Weight, ...]:
        return (Weight("weight", (self.buckets, self.n_heads)),)

    def shard(self, ways: Ways) -> RelativeBias:
        """The columns of its heads."""
        return replace(self, n_heads=ways.split("n_heads", self.n_heads))


class PositionsOptions(Options, section="positions"):
    """`[positions]`: one class per form. `biased`: a bias by distance is added to the scores."""

    biased: ClassVar[bool] = False
    form: str = key(
        one_of("rotary", "learned", "sinusoidal", "relative", "relative-projection", "disentangled", "alibi", "none"),
        "rotary",
        "how positions are encoded",
        "with attention; 'learned' and 'sinusoidal' with an embedding",
    )

    def table_of(self, positions: Num | None) -> Num | None:
        """Rows of the learned position table for `positions` (None: as the workload says); None: no table."""
        return None

    def rotary(self, heads: Num, width: Num, *, partly: bool = False, paired: bool = False) -> Rotary | None:
        """Rotary embedding of `heads`, or None; `partly`, `paired`: whether `rotary_dims` and `interleaved` apply."""
        return None

    def angles(self, width: Num) -> Unused | None:
        """Stored rotary sinusoids, if any."""
        return None

    def relative_bias(self, heads: Num, role: str, *, per_layer: bool) -> RelativeBias | None:
        """The relative-bias table of a stack with this role, or of each layer (`per_layer`), if any."""
        return None

    def distances(self, norm: NormOptions, width: Num) -> DistanceTable | None:
        """The table of relative-position embeddings, if any."""
        return None

    def attention(
        self, d_model: Num, heads: Num, width: Num, *, bias: list[str], scale: float | None
    ) -> Composite | None:
        """The attention of another kind that these positions need, if any."""
        return None


class PlainPositions(PositionsOptions, forms="sinusoidal none"):
    """Sinusoidal positions, or none."""


class Slopes(PositionsOptions, forms="relative-projection alibi"):
    """ALiBi's slopes, or projected sinusoids of the distance (Transformer-XL)."""

    biased = True


class RotaryPositions(PositionsOptions, forms="rotary"):
    """Rotary positions."""

    theta: float = key(real, 10000, "base of the rotary frequencies")
    rotary_dims: Num | None = letter(
        None, "rotated part of a head; absent: all of it", "with rotary positions of [attention]", even=True
    )
    interleaved: bool = key(
        flag,
        False,
        "rotary pairs are adjacent, not halves apart",
        "with rotary positions of [attention], [latent] or [compressed]",
    )
    spread: bool = key(
        flag,
        False,
        "rotate the first part of both halves, at the whole head's frequencies",
        "with rotary positions of [attention]",
    )
    rows: Num | None = letter(None, "in an encoder, rows of a stored table of sinusoids, not trained")

    def rotary(self, heads: Num, width: Num, *, partly: bool = False, paired: bool = False) -> Rotary:
        return Rotary(
            heads=heads,
            dims=self.rotary_dims if partly and self.rotary_dims is not None else width,
            theta=self.theta,
            width=width,
            interleaved=paired and self.interleaved,
            spread=partly and self.spread,
        )

    def angles(self, width: Num) -> Unused | None:
        return None if self.rows is None else Unused(d_in=width, d_out=self.rows, bias=False)


class LearnedPositions(PositionsOptions, forms="learned"):
    """A learned vector for each position."""

    rows: Num | None = letter(None, "rows of the learned table; absent: a picture's or sound's positions")

    def table_of(self, positions: Num | None) -> Num | None:
        return positions if self.rows is None else self.rows


class RelativePositions(PositionsOptions, forms="relative"):
    """T5's relative bias."""

    biased = True
    buckets: Num = key(size, 32, "buckets of the relative bias")
    distance: Num = key(size, 128, "longest distance that buckets, or the position table, distinguish")
    side: Num | None = key(size, None, "patches per side of a picture, whose pairs of distances have a bucket each")
    apart: bool = key(flag, False, "a table per layer")
    rows: Num | None = letter(None, "an encoder's learned position table, besides its relative bias")

    def conflicts(self) -> Iterator[Conflict]:
        if self.side is not None:
            for name, default in (("buckets", 32), ("distance", 128)):
                if getattr(self, name) != default:
                    yield Conflict(name, f"none with side = {self.side}, which implies it")

    def table_of(self, positions: Num | None) -> Num | None:
        return self.rows

    def relative_bias(self, heads: Num, role: str, *, per_layer: bool) -> RelativeBias | None:
        if (per_layer and not self.apart) or (self.apart and not per_layer):
            return None
        two = role == "encoder" or role == "vision"
        buckets = self.buckets if self.side is None else (2 * self.side - 1) * (2 * self.side - 1) + 3
        return RelativeBias(buckets=buckets, n_heads=heads, distance=self.distance, bidirectional=two, side=self.side)


class DisentangledPositions(PositionsOptions, forms="disentangled"):
    """DeBERTa's relative-position embeddings."""

    rows: Num = letter(REQUIRED, "disentangled: relative positions of both signs")
    distance: Num = key(size, 128, "longest distance that buckets, or the position table, distinguish")
    terms: list[str] = key(some_of("c2p", "p2c"), ["c2p", "p2c"], "content to position, position to content")
    shared: bool = key(flag, False, "q and k project the relative positions too")
    bias: list[str] = key(some_of("q", "k"), [], "projections of relative positions with a bias")
    norm: bool = key(flag, False, "norm of the relative-position embeddings")
    clipped: bool = key(flag, False, "project only the relative positions that occur")

    def conflicts(self) -> Iterator[Conflict]:
        if not divides(2, self.rows):
            yield Conflict("rows", "the rows of the table of distances, an even number")
        elif exceeds(self.rows, 2 * self.distance):
            yield Conflict("rows", f"at most twice the distance = {self.distance}")
        elif self.clipped and exceeds(2 * self.distance, self.rows):
            yield Conflict("clipped", "false where the distances are in buckets")
        if not self.terms:
            yield Conflict("terms", "one of 'c2p' and 'p2c' at least")
        if self.shared and len(self.terms) < 2:
            yield Conflict("shared", "false with one term: q and k both project the distances")
        if self.shared and self.bias:
            yield Conflict("bias", "none where q and k project the distances, with the biases they have")

    def distances(self, norm: NormOptions, width: Num) -> DistanceTable:
        table_norm = replace(norm.over(width), keeps=False) if self.norm else None
        return DistanceTable(rows=self.rows, width=width, norm=table_norm)

    def attention(
        self, d_model: Num, heads: Num, width: Num, *, bias: list[str], scale: float | None
    ) -> DisentangledAttention:
        biases = bias if self.shared else self.bias
        form: Raw = {"d_in": d_model, "d_out": product((heads, width)), "keeps": "no", "borrowed": self.shared}
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
