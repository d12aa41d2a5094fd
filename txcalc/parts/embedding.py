"""Embeddings: tokens, image patches or audio, and positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from txcalc.num import Num, exact_div
from txcalc.parts.linear import Activation, Linear, Lookup, Sum, Vector
from txcalc.parts.norm import Norm, NormOptions
from txcalc.parts.options import REQUIRED, Conflict, Options, Raw, count, flag, key, letter, odd, real, size, tables
from txcalc.parts.part import (
    Child,
    Composite,
    Gradient,
    Leaf,
    MatMul,
    Operation,
    Stream,
    Traffic,
    Weight,
    Workload,
    elementwise,
    everywhere,
    optional,
)
from txcalc.parts.positions import PositionsOptions
from txcalc.parts.sharding import Collective, Ways
from txcalc.parts.taps import Convolution


class Patches(Leaf):
    """Patch embedding: a picture in squares, each projected to a vector (a convolution with stride = kernel size).

    Shapes   picture (B, channels, size·√n, size·√n), W (width, channels, size, size), y (B, n, width)
    Unit     FLOPs 2·B·n·channels·size²·width
    Source   Dosovitskiy et al. 2020 (arXiv 2010.11929), equation 1
    """

    role = "product"
    channels: Num
    size: Num
    width: Num
    bias: bool = True

    def weights(self) -> tuple[Weight, ...]:
        weight = Weight("weight", (self.width, self.channels, self.size, self.size))
        return (weight, Weight("bias", (self.width,))) if self.bias else (weight,)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, fan_in = work.positions, self.channels * self.size * self.size
        moved = Traffic(fan_in * self.width, rows * (fan_in + self.width))
        product = MatMul("convolution", 1, rows, fan_in, self.width, moved, "convolution")
        return (product, elementwise("bias", rows * self.width, "add", 0, 0, self.width)) if self.bias else (product,)

    def saved(self, work: Workload) -> Num:
        return work.positions * self.channels * self.size * self.size


class Embedding(Composite):
    """A stack's input from token ids, image patches or audio features.

    `positions` and `types` are tables whose rows are added to the token embeddings; `tables` are further ones, each
    with its reads per token (LayoutLM's coordinates on a page, TAPAS's rows and columns). `fixed` adds sinusoids.
    `projection` maps narrower tables to d_model: their sum (ALBERT), or with `early` the tokens before anything is
    added (OPT). `scale` multiplies (Transformer 2017, Gemma). `mask_token` replaces masked patches in training only.
    """

    width: Num
    tokens: Lookup | None = None
    patches: Patches | None = None
    class_token: Vector | None = None
    convolutions: tuple[Convolution, ...] = ()
    activation: str = "gelu"
    positions: Lookup | None = None
    fixed: Sum | None = None
    types: Lookup | None = None
    norm: Norm | None = None
    projection: Linear | None = None
    scale: float | None = None
    mask_token: Vector | None = None
    early: bool = False
    tables: tuple[tuple[Lookup, Any], ...] = ()
    # On one rank: collects rows of the table that other ranks hold.
    join: Collective | None = None

    def children(self) -> Iterator[Child]:
        yield from optional("tokens", self.tokens, duty="tokens")
        if self.tokens and self.join:
            yield Child("join", self.join)
        if self.projection and self.early:
            yield Child("projection", self.projection)
        if self.patches:
            on: Stream = without_class_token if self.class_token else everywhere
            yield Child("patches", self.patches, on=on, gradient="weights")
        yield from optional("class_token", self.class_token)
        yield from optional("mask_token", self.mask_token)
        gradient: Gradient = "weights"  # the first reads audio features, which need no gradient
        for i, convolution in enumerate(self.convolutions):
            before = _before_strides(self.convolutions[i + 1 :])
            yield Child(f"conv{i + 1}", convolution, on=before, kind="other", gradient=gradient)
            gradient = "both"
            yield Child(
                f"conv{i + 1}_activation",
                Activation(width=self.width, form=self.activation, gated=False),
                on=before,
                kind="other",
            )
        if self.scale is not None:
            yield Child(
                "scale", Sum(width=self.projection.d_out if self.projection and self.early else self.width, sums=1)
            )
        yield from optional("types", self.types, duty="types")
        for i, (table, reads) in enumerate(self.tables):
            yield Child(f"table{i + 1}", table, runs=reads)
        yield from optional("positions", self.positions, duty="positions")
        yield from optional("positions", self.fixed)
        yield from optional("norm", self.norm)
        if self.projection and not self.early:
            yield Child("projection", self.projection)

    @property
    def adds(self) -> bool:
        """Whether anything but a scale is applied to the token embeddings."""
        plain = self.positions is None and self.fixed is None and self.types is None and self.norm is None
        return not (plain and self.projection is None and not self.tables)

    def shard(self, ways: Ways) -> Embedding:
        """Vocabulary-parallel rows; positions, types, patches and convolutions are replicated. Additions to the token
        embeddings run on every rank at all positions; with sequence parallelism each then takes its own positions.

        Source   Megatron-LM 019eddbb, core/models/common/embeddings/language_model_embedding.py, forward
        """
        if not self.tokens:
            return self
        tokens = replace(self.tokens, rows=ways.rows(self.tokens.rows))
        join = ways.all_reduce(tokens.width) if self.adds else ways.join_summands(tokens.width)
        return replace(self, tokens=tokens, join=join)


def without_class_token(work: Workload) -> Workload:
    """The patches alone."""
    return work._replace(tokens=work.tokens - 1)


def _before_strides(later: tuple[Convolution, ...]) -> Stream:
    factor = 1
    for convolution in later:
        factor = factor * convolution.stride
    return lambda work: work._replace(tokens=work.tokens * factor)


class VisionOptions(Options, section="vision"):
    image: Num | None = letter(
        None, "side of the picture, pixels; absent: any size, as many patches as the workload has tokens", of="patch"
    )
    patch: Num = letter(REQUIRED, "side of a patch, pixels")
    channels: Num = letter(3, "colour channels")
    class_token: bool = key(flag, True, "a class token before the patches")
    mask_token: bool = key(flag, False, "a learned vector for masked patches")
    patch_bias: bool = key(flag, True, "bias of the patch projection")

    @property
    def positions(self) -> Num | None:
        """Positions of a picture: patches and class token; None: as the workload says."""
        if self.image is None:
            return None
        side = exact_div(self.image, self.patch)
        return side * side + 1 if self.class_token else side * side


class AudioOptions(Options, section="audio"):
    mels: Num = letter(REQUIRED, "mel bands")
    kernel: Num = key(size, 3, "kernel width of both convolutions")
    positions: Num = letter(REQUIRED, "encoder positions after the stride of 2")

    def conflicts(self) -> Iterator[Conflict]:
        yield from odd("kernel", self.kernel)

    def convolutions(self, width: Num) -> tuple[Convolution, ...]:
        """Mel bands to d_model, then a convolution with stride 2."""
        form: Raw = {"c_out": width, "taps": self.kernel, "bias": True, "depthwise": False, "causal": False}
        return Convolution(c_in=self.mels, **form, stride=1), Convolution(c_in=width, **form, stride=2)


class EmbeddingOptions(Options, section="embedding"):
    types: Num | None = letter(None, "token types", "where there is an embedding")
    extra: Num = letter(0, "rows of the token table beyond the head's", check=count)
    tables: list[list[Num]] = key(
        tables,
        [],
        "further tables added to the token embedding: pairs of rows and reads per token",
        "where tokens are read",
    )
    norm: bool = key(flag, False, "norm after the embedding", "where there is an embedding")
    rank: Num | None = letter(
        None, "factorised: width of the table before a projection to d_model", "where there is an embedding"
    )
    early: bool = key(
        flag, False, "only tokens have that width, projected without a bias, and the lm head works at it too"
    )
    shared: bool = key(
        flag, True, "one table for encoder and decoder", "in an encoder-decoder whose encoder reads tokens"
    )
    scale: float | None = key(real, None, "multiplies the embedding", "where there is an embedding")

    def build(
        self,
        *,
        d_model: Num,
        vocab: Num | None,
        norm: NormOptions,
        places: PositionsOptions,
        vision: VisionOptions | None,
        audio: AudioOptions | None,
    ) -> Embedding | None:
        """The embedding of tokens, patches or audio; None without input of its own."""
        if vocab is None and vision is None and audio is None:
            return None
        inner = d_model if self.rank is None else self.rank
        added = d_model if self.early else inner  # what is added to the tokens is as wide
        patches = None if vision is None else vision.positions
        rows = places.table_of(patches if audio is None else audio.positions)
        read: Raw = {}
        if vision is not None:
            read = {
                "patches": Patches(channels=vision.channels, size=vision.patch, width=d_model, bias=vision.patch_bias),
                "class_token": Vector(width=d_model) if vision.class_token else None,
                "mask_token": Vector(width=d_model) if vision.mask_token else None,
            }
        elif audio is not None:
            read = {"convolutions": audio.convolutions(d_model)}
        elif vocab is not None:
            tables = tuple((Lookup(rows=rows, width=added, added=True), reads) for rows, reads in self.tables)
            read = {"tokens": Lookup(rows=vocab + self.extra, width=inner), "tables": tables}
        return Embedding(
            width=inner,
            positions=Lookup(rows=rows, width=added, added=True) if rows is not None else None,
            fixed=Sum(width=added, sums=1) if places.form == "sinusoidal" else None,
            types=Lookup(rows=self.types, width=added, added=True) if self.types is not None else None,
            norm=norm.over(added) if self.norm else None,
            projection=None if self.rank is None else Linear(d_in=inner, d_out=d_model, bias=not self.early),
            scale=self.scale,
            early=self.early,
            **read,
        )
