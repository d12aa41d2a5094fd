"""What is read off the last layer: logits over a vocabulary or classes, or a pooled position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, final

from txcalc.parts.collectives import Collective
from txcalc.parts.embedding import EmbeddingOptions, without_class_token
from txcalc.parts.frozen import frozen
from txcalc.parts.linear import Activation, Linear, Sum
from txcalc.parts.norm import Norm, NormOptions
from txcalc.parts.options import ACTIVATIONS, Options, Wished, flag, key, letter, one_of, real, size
from txcalc.parts.part import Child, Composite, on_logits, on_one, optional
from txcalc.parts.pooling import AttentionPool
from txcalc.parts.sharding import Ways


@final
@frozen
class Head(Composite):
    """Logits over a vocabulary or classes, with a transform before them (BERT's masked-LM head); or a pooler.

    `at` is where it works: all positions (or the last, as the workload says) for a language model, one for a
    classifier or a pooler. That one is the first position; with `pool` the mean of all others, with a norm of its own;
    `joined`: both, one after the other. A `reader` makes one vector of all. `scale` multiplies the logits, `softcap`
    bounds them by a tanh. `classes`: it is over these, no vocabulary.
    """

    projection: Linear | None
    transform: Linear | None
    activation: Activation | None
    norm: Norm | None
    one: bool
    kind: str = "head"
    scale: Any = None
    softcap: Any = None
    pool: Sum | None = None
    pool_norm: Norm | None = None
    joined: bool = False
    classes: bool = False
    reader: AttentionPool | None = None
    # Of one rank's share: positions of all ranks before it, logits of all ranks after it.
    gather: Collective | None = None
    join: Collective | None = None

    @property
    def borrowed(self) -> Head:
        """The same, with a projection that is held elsewhere."""
        return replace(self, projection=self.projection and replace(self.projection, tied=True))

    def children(self) -> Iterator[Child]:
        on = on_one if self.one else on_logits
        yield from optional("gather", self.gather, on=on)
        yield from optional("reader", self.reader)
        yield from optional("pool", self.pool, on=without_class_token)
        yield from optional("pool_norm", self.pool_norm, on=on)
        yield from optional("transform", self.transform, on=on)
        yield from optional("activation", self.activation, on=on)
        yield from optional("norm", self.norm, on=on, kind="head", forced=True)
        yield from optional("projection", self.projection, on=on)
        if self.projection and self.softcap is not None:
            yield Child("softcap", Activation(width=self.projection.d_out, form="tanh", gated=False), on=on)
        yield from optional("join", self.join, on=on)

    def shard(self, ways: Ways) -> Head:
        """Its rows of the vocabulary or of the classes; what stands before them is whole."""
        if not self.projection:
            return self
        projection = replace(self.projection, d_out=ways.rows(self.projection.d_out, self.classes))
        join = ways.every(projection.d_out * ways.tp)
        return replace(self, projection=projection, gather=ways.gathered(self.projection.d_in), join=join)


@final
@frozen
class HeadOptions(Options):
    """`[head]`"""

    section = "head"
    form: str = key(
        one_of("lm", "masked-lm", "classifier", "none"),
        "lm",
        "what is read off the last layer",
        "where there are tokens or classes; 'lm' in a decoder",
    )
    tied: bool = key(flag, False, "the head multiplies by the token table", "with a head over the vocabulary")
    bias: bool = key(
        flag,
        lambda at: at["head"]["form"] == "classifier",
        "bias of the head",
        "with an lm head, a classifier, or a plain masked-lm head",
    )
    classes: Any = letter(None, "classes of a classifier")
    every: bool = key(flag, False, "a classifier of every position, not of the first alone")
    transform: str | None = key(
        one_of(*ACTIVATIONS), None, "activation of a D×D layer before a classifier; absent: none"
    )
    transform_norm: bool = key(flag, False, "norm after that layer")
    pool: str = key(
        one_of("first", "mean", "both", "attention"),
        "first",
        "what a picture's head reads: its class token, the mean of its patches, both, or all by a learned query",
    )
    pool_norm: bool = key(flag, False, "norm of that mean")
    rank: Any = letter(
        lambda at: at["embedding"]["rank"],
        "width that a masked-lm head works at; absent: d_model",
        "with a masked-lm head or embedding.early",
        same="embedding.rank",
    )
    transform_bias: bool = key(
        flag,
        True,
        "bias of the layer before a masked-lm head or a classifier",
        "with a layer before a masked-lm head or a classifier",
    )
    activation: str | None = key(
        one_of(*ACTIVATIONS), None, "activation before a masked-lm head; absent: that of the feed-forward"
    )
    plain: bool = key(flag, False, "a masked-lm head without a layer before it, whose bias is `bias`")
    pooler: bool = key(flag, False, "a D×D layer with tanh on the first position")
    pairs: Any = key(size, None, "classes of a second head, read off the pooler: of pairs of sentences, in pretraining")
    norm: bool = key(flag, False, "norm of the one position that a classifier, or a head of form none, reads")
    softcap: Any = key(real, None, "logits are capped at ± this by a tanh", "with an lm head")
    scale: Any = key(real, None, "multiplies the logits", "with an lm head")

    def misfits(self) -> Iterator[Wished]:
        for name in ("classes", "every", "transform", "transform_norm"):
            if self.form != "classifier" and getattr(self, name):
                yield Wished(name, f"none with head.form = {self.form!r}")
        if self.pairs is not None and not self.pooler:
            yield Wished("pairs", "none without head.pooler")
        if self.norm and (self.form not in ("classifier", "none") or self.every or self.transform is not None):
            yield Wished("norm", "false but for a classifier of one position, or no head")
        if self.transform_norm and self.transform is None:
            yield Wished("transform_norm", "false without head.transform")
        if self.activation is not None and (self.form != "masked-lm" or self.plain):
            yield Wished("activation", "none but with a layer before a masked-lm head")
        if self.plain and (self.form != "masked-lm" or self.rank is not None):
            yield Wished("plain", "false but with head.form = 'masked-lm' as wide as the model")
        if self.pool_norm and self.pool != "mean":
            yield Wished("pool_norm", "false without head.pool = 'mean'")

    def build(
        self,
        *,
        d_model: Any,
        vocab: Any,
        role: str,
        norm: NormOptions,
        embedding: EmbeddingOptions,
        usual: str,
        reader: AttentionPool | None,
    ) -> Head | None:
        """The head of a stack of this role, over a vocabulary or classes; None where it ends in hidden states.
        `usual` is the activation of the first layer's feed-forward, `reader` what reads all patches."""
        inner = d_model if self.rank is None else self.rank
        if self.form == "classifier":
            return replace(self._classifier(d_model, norm), reader=reader)
        if self.form == "none" or vocab is None or (role == "encoder" and self.form == "lm"):
            return None
        projection = Linear(d_in=d_model, d_out=vocab, bias=self.bias, tied=self.tied)
        if self.form == "lm":
            head = _head(projection)
            if embedding.early:
                projection = replace(projection, d_in=inner)
                head = replace(head, projection=projection, transform=Linear(d_in=d_model, d_out=inner, bias=False))
            return replace(head, scale=self.scale, softcap=self.softcap)
        if self.plain:
            return _head(projection)
        form = usual if self.activation is None else self.activation
        activation = Activation(width=inner, form=form, gated=False)
        return replace(
            _head(Linear(d_in=inner, d_out=vocab, bias=True, tied=self.tied)),
            transform=Linear(d_in=d_model, d_out=inner, bias=self.transform_bias),
            activation=activation,
            norm=replace(norm.over(inner), keeps=not activation.keeps_result),
        )

    def pooled(self, d_model: Any, norm: NormOptions, reader: AttentionPool | None) -> Head | None:
        """What one position gives beside the head, or in its place."""
        nothing = replace(_head(None), one=True, kind="other")
        if self.pooler:
            return replace(
                nothing,
                classes=True,
                projection=None if self.pairs is None else Linear(d_in=d_model, d_out=self.pairs, bias=True),
                transform=Linear(d_in=d_model, d_out=d_model, bias=True),
                activation=Activation(width=d_model, form="tanh", gated=False),
            )
        if self.form == "none" and self.norm:
            return replace(nothing, norm=norm.over(d_model))
        if self.form == "none" and reader is not None:
            return replace(nothing, reader=reader)
        if self.form == "none" and self.pool == "mean":
            return replace(nothing, **self._pool(d_model, norm))
        return None

    def _pool(self, d_model: Any, norm: NormOptions) -> dict[str, Any]:
        """What is read instead of the first position, as the fields of a head say it."""
        if self.pool in ("first", "attention"):
            return {}
        own = norm.over(d_model) if self.pool_norm else None
        return {"pool": Sum(width=d_model, sums=1), "pool_norm": own, "joined": self.pool == "both"}

    def _classifier(self, d_model: Any, norm: NormOptions) -> Head:
        width = 2 * d_model if self.pool == "both" else d_model
        head = replace(_head(Linear(d_in=width, d_out=self.classes, bias=self.bias)), one=not self.every, classes=True)
        if self.transform is None:
            return replace(head, norm=norm.over(d_model) if self.norm else None, **self._pool(d_model, norm))
        return replace(
            head,
            transform=Linear(d_in=d_model, d_out=d_model, bias=self.transform_bias),
            activation=Activation(width=d_model, form=self.transform, gated=False),
            norm=norm.over(d_model) if self.transform_norm else None,
        )


def _head(projection: Linear | None) -> Head:
    """A projection of every position, and nothing else."""
    return Head(projection=projection, transform=None, activation=None, norm=None, one=False)
