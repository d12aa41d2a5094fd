"""Heads: logits over a vocabulary or classes, and poolers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from msgspec.structs import replace

from txcalc.num import Num
from txcalc.parts.embedding import EmbeddingOptions, without_class_token
from txcalc.parts.linear import Activation, Linear, Sum
from txcalc.parts.norm import Norm, NormOptions
from txcalc.parts.options import ACTIVATIONS, REQUIRED, Conflict, Options, Raw, flag, key, letter, one_of, real, size
from txcalc.parts.part import Child, Composite, on_logits, on_one, optional
from txcalc.parts.pooling import AttentionPool
from txcalc.parts.sharding import Collective, Ways


class Head(Composite):
    """A head over a vocabulary or classes, optionally after a transform (BERT's masked-LM head); or a pooler.

    A language-model head works at the positions that get logits, a classifier or pooler at a `single_position`: the
    first, or with `pool` the mean of all others, with a norm of its own; `joined`: both, concatenated. A `reader` pools
    all positions by attention. `scale` multiplies the logits, `softcap` bounds them by a tanh. `classes`: the outputs
    are classes, not a vocabulary.
    """

    projection: Linear | None
    transform: Linear | None
    activation: Activation | None
    norm: Norm | None
    single_position: bool
    kind: str = "head"
    scale: float | None = None
    softcap: float | None = None
    pool: Sum | None = None
    pool_norm: Norm | None = None
    joined: bool = False
    classes: bool = False
    reader: AttentionPool | None = None
    # On one rank: gathers positions before it, and logits after it.
    gather: Collective | None = None
    join: Collective | None = None

    @property
    def borrowed(self) -> Head:
        """The same head with a tied projection."""
        return replace(self, projection=self.projection and replace(self.projection, tied=True))

    def children(self) -> Iterator[Child]:
        on = on_one if self.single_position else on_logits
        gather = list(optional("gather", self.gather, on=on))
        yield from () if self.position_wise else gather
        yield from optional("reader", self.reader)
        yield from optional("pool", self.pool, on=without_class_token)
        yield from optional("pool_norm", self.pool_norm, on=on)
        yield from optional("transform", self.transform, on=on)
        yield from optional("activation", self.activation, on=on)
        yield from optional("norm", self.norm, on=on, kind="head", forced=True)
        yield from gather if self.position_wise else ()
        yield from optional("projection", self.projection, on=on, duty="logits")
        if self.projection and self.softcap is not None:
            yield Child("softcap", Activation(width=self.projection.d_out, form="tanh", gated=False), on=on)
        yield from optional("join", self.join, on=on, duty="logits")

    @property
    def position_wise(self) -> bool:
        """Whether it works on every position by itself: before the projection, on each rank's share of them.

        Source   Megatron-LM 04255480, core/models/bert/bert_lm_head.py: dense and layernorm are `sequence_parallel`
        """
        return not self.single_position and self.pool is None and self.reader is None

    def along(self, child: Child) -> bool:
        return self.position_wise and child.name in ("transform", "activation", "norm")

    def shard(self, ways: Ways) -> Head:
        """Vocabulary-parallel (or class-parallel) rows; the transform is replicated."""
        if not self.projection:
            return self
        projection = replace(self.projection, d_out=ways.rows(self.projection.d_out, self.classes))
        join = ways.all_gather(projection.d_out * ways.tp)
        first = self.projection if self.position_wise else self.transform or self.projection
        return replace(self, projection=projection, gather=ways.gather_positions(first.d_in), join=join)


class HeadInputs(NamedTuple):
    """The context of a head: width and role of its stack, vocabulary, norms and embedding; `activation`: that of the
    first layer's feed-forward; `reader`: its attention pool."""

    d_model: Num
    vocab: Num | None
    role: str
    norm: NormOptions
    embedding: EmbeddingOptions
    activation: str
    reader: AttentionPool | None


class HeadOptions(Options, section="head"):
    """`[head]`: the output after the last layer; one class per form. `reads_vocab`: over the vocabulary."""

    reads_vocab: ClassVar[bool] = False
    form: str = key(
        one_of("lm", "masked-lm", "classifier", "none"),
        "lm",
        "the output after the last layer",
        "where there are tokens or classes; 'lm' in a decoder",
    )
    tied: bool = key(flag, False, "tied to the token embedding", "with a head over the vocabulary")
    pooler: bool = key(flag, False, "a D×D layer with tanh on the first position")
    pairs: Num | None = key(size, None, "classes of a second head on the pooler (next-sentence prediction)")

    def conflicts(self) -> Iterator[Conflict]:
        if self.pairs is not None and not self.pooler:
            yield Conflict("pairs", "none without head.pooler")

    def build(self, at: HeadInputs) -> Head | None:
        """The head over a vocabulary or classes; None where a stack ends in hidden states."""
        return None

    def pooled(self, at: HeadInputs) -> Head | None:
        """The pooler, or the head of one position."""
        if not self.pooler:
            return None
        return replace(
            _POOLED,
            classes=True,
            projection=None if self.pairs is None else Linear(d_in=at.d_model, d_out=self.pairs, bias=True),
            transform=Linear(d_in=at.d_model, d_out=at.d_model, bias=True),
            activation=Activation(width=at.d_model, form="tanh", gated=False),
        )


class LmHead(HeadOptions, forms="lm"):
    """Logits over the vocabulary, in a decoder."""

    reads_vocab = True
    bias: bool = key(flag, False, "bias of the head", "with an lm head, a classifier, or a plain masked-lm head")
    rank: Num = letter(
        lambda at: at["embedding"]["rank"],
        "width that a masked-lm head works at; absent: d_model",
        "with a masked-lm head or embedding.early",
        same="embedding.rank",
    )
    softcap: float | None = key(real, None, "logits are capped at ± this by a tanh")
    scale: float | None = key(real, None, "multiplies the logits")

    def build(self, at: HeadInputs) -> Head | None:
        if at.vocab is None or at.role == "encoder":
            return None
        embedding, d_model = at.embedding, at.d_model
        width = self.rank if embedding.early else d_model
        return _head(
            Linear(d_in=width, d_out=at.vocab, bias=self.bias, tied=self.tied),
            transform=Linear(d_in=d_model, d_out=width, bias=False) if embedding.early else None,
            scale=self.scale,
            softcap=self.softcap,
        )


class MaskedHead(HeadOptions, forms="masked-lm"):
    """Logits over the vocabulary at every position, after a transform, as BERT's."""

    reads_vocab = True
    bias: bool = key(flag, False, "bias of the head")
    rank: Num = letter(
        lambda at: at["embedding"]["rank"],
        "width that a masked-lm head works at; absent: d_model",
        same="embedding.rank",
    )
    transform_bias: bool = key(
        flag,
        True,
        "bias of the transform before a masked-lm head or a classifier",
        "with a transform before a masked-lm head or a classifier",
    )
    activation: str | None = key(
        one_of(*ACTIVATIONS), None, "activation before a masked-lm head; absent: that of the feed-forward"
    )
    plain: bool = key(flag, False, "a masked-lm head without a transform, whose bias is `bias`")

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.plain and self.activation is not None:
            yield Conflict("activation", "none without a transform before a masked-lm head")
        if self.plain and self.rank is not None:
            yield Conflict("plain", "false but in a head as wide as the model")

    def build(self, at: HeadInputs) -> Head | None:
        if at.vocab is None:
            return None
        if self.plain:
            return _head(Linear(d_in=at.d_model, d_out=at.vocab, bias=self.bias, tied=self.tied))
        inner = at.d_model if self.rank is None else self.rank
        form = at.activation if self.activation is None else self.activation
        activation = Activation(width=inner, form=form, gated=False)
        return _head(
            Linear(d_in=inner, d_out=at.vocab, bias=True, tied=self.tied),
            transform=Linear(d_in=at.d_model, d_out=inner, bias=self.transform_bias),
            activation=activation,
            norm=replace(at.norm.over(inner), keeps=not activation.keeps_result),
        )


class PooledHead(HeadOptions):
    """Heads on one vector per sequence: of one position, or pooled."""

    pool: str = key(
        one_of("first", "mean", "both", "attention"),
        "first",
        "input of a picture's head: class token, mean of the patches, both, or attention by a learned query",
    )
    pool_norm: bool = key(flag, False, "norm of that mean")
    norm: bool = key(flag, False, "norm of that one position")

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.pool_norm and self.pool != "mean":
            yield Conflict("pool_norm", "false without head.pool = 'mean'")

    def pooling(self, at: HeadInputs) -> Raw:
        """Fields of a head that pools other positions than the first."""
        if self.pool in ("first", "attention"):
            return {}
        norm = at.norm.over(at.d_model) if self.pool_norm else None
        return {"pool": Sum(width=at.d_model, sums=1), "pool_norm": norm, "joined": self.pool == "both"}


class Classifier(PooledHead, forms="classifier"):
    """Logits over classes."""

    classes: Num = letter(REQUIRED, "the number of classes")
    bias: bool = key(flag, True, "of a classifier true when absent")
    every: bool = key(flag, False, "token classifier: every position, not the first alone")
    transform: str | None = key(
        one_of(*ACTIVATIONS), None, "activation of a D×D layer before a classifier; absent: none"
    )
    transform_norm: bool = key(flag, False, "norm after that layer")
    transform_bias: bool = key(flag, True, "bias of the transform before a masked-lm head or a classifier")

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.norm and (self.every or self.transform is not None):
            yield Conflict("norm", "false but for a classifier of one position, or no head")
        if self.transform_norm and self.transform is None:
            yield Conflict("transform_norm", "false without head.transform")

    def build(self, at: HeadInputs) -> Head:
        width = 2 * at.d_model if self.pool == "both" else at.d_model
        projection = Linear(d_in=width, d_out=self.classes, bias=self.bias)
        head = _head(projection, single_position=not self.every, classes=True, reader=at.reader)
        normed = at.norm.over(at.d_model)
        if self.transform is None:
            return replace(head, norm=normed if self.norm else None, **self.pooling(at))
        return replace(
            head,
            transform=Linear(d_in=at.d_model, d_out=at.d_model, bias=self.transform_bias),
            activation=Activation(width=at.d_model, form=self.transform, gated=False),
            norm=normed if self.transform_norm else None,
        )


class NoHead(PooledHead, forms="none"):
    """Hidden states, or one pooled vector."""

    def pooled(self, at: HeadInputs) -> Head | None:
        if self.pooler or not (self.norm or at.reader or self.pool == "mean"):
            return super().pooled(at)
        if self.norm:
            return replace(_POOLED, norm=at.norm.over(at.d_model))
        return replace(_POOLED, reader=at.reader, **self.pooling(at))


def _head(projection: Linear | None, **fields: Any) -> Head:
    """A head at every position, with only the given fields."""
    bare = {"transform": None, "activation": None, "norm": None, "single_position": False}
    return Head(projection=projection, **{**bare, **fields})


_POOLED = _head(None, single_position=True, kind="other")
