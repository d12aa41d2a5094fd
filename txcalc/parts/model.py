"""Whole models: what is put before a stack of blocks, the stack, and what is read off it.

A layer pattern is data: `LayerGroup`s of equal blocks with the indices at which they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Self

from txcalc.parts.adapters import around
from txcalc.parts.block import Block
from txcalc.parts.collectives import Collective
from txcalc.parts.cores import MatrixProduct
from txcalc.parts.disentangled import DistanceTable
from txcalc.parts.drafts import Features
from txcalc.parts.embedding import Embedding
from txcalc.parts.frozen import frozen
from txcalc.parts.head import Head
from txcalc.parts.hyper import HyperConnection
from txcalc.parts.linear import Linear, Lookup, Sum, Unused
from txcalc.parts.mixers.pieces import Pieces
from txcalc.parts.norm import Norm
from txcalc.parts.options import every
from txcalc.parts.part import Child, Composite, Leaf, Stream, Workload, on_batch, on_one, on_source, optional
from txcalc.parts.positions import RelativeBias
from txcalc.parts.sharding import Ways


class LayerGroup(NamedTuple):
    """Equal blocks: `count` of them at `indices`. `shared`: one set of weights for all (ALBERT)."""

    name: str
    block: Block
    indices: tuple[int, ...]
    count: Any
    shared: bool = False


class Root(Composite):
    """A model, or a tower of one: a composite that is made of stacks."""

    @property
    def halves(self) -> Mapping[str, Stack]:
        """The stacks it is made of, in the order in which they compute, by what their paths begin with."""
        return {}

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The same without the paths."""
        return tuple(self.halves.values())

    @property
    def alone(self) -> Stack | None:
        """The stack that it is, where it is one and nothing else."""
        return None

    def with_stacks(self, change: Callable[[Stack], Stack]) -> Self:
        """The same with each of its stacks changed."""
        return self

    def at_length(self, positions: Any) -> Self:
        """The same over so many positions, where their number is part of it."""
        return self

    @property
    def fixed(self) -> Any:
        """Positions that are part of the model, whatever is asked, as of a picture; None: as many as are asked for."""
        return None

    @property
    def prompt(self) -> Any:
        """The most tokens of the language model's prompt that a tower reads too; 0: none."""
        return 0

    def whole(self, tokens: Any) -> Any:
        """The tokens that are made where so many are asked for: a tower may make several at once."""
        return tokens

    def shard(self, ways: Ways) -> Self:
        """The shares of its stacks."""
        return self.with_stacks(lambda stack: stack.shard(ways))


@frozen
class LayerInputs(Composite):
    """A vector for each layer and token: from the token's row of a table for all layers, and from the stack's input.

    (norm(projection(x)) + rows) · 1/√2, with x the stack's input (B, T, D) and rows (B, T, L·width), which are scaled
    by √width, as the projection is by 1/√D. `count` is L.
    Source   Gemma Team 2025, Gemma 3n: per-layer embeddings
    """

    width: Any
    count: Any
    tokens: Lookup
    projection: Linear
    norm: Norm
    # Of one rank's share: rows that other ranks found.
    join: Collective | None = None

    def children(self) -> Iterator[Child]:
        everything = self.count * self.width
        yield Child("tokens", self.tokens, kind="embedding", duty="tokens")
        if self.join:
            yield Child("join", self.join)
        yield Child("scale", Sum(width=everything, sums=2))
        yield Child("projection", self.projection)
        yield Child("norm", self.norm)
        yield Child("sum", Sum(width=everything, sums=2))

    def shard(self, ways: Ways) -> LayerInputs:
        """Its rows of the vocabulary; the projection is whole."""
        tokens = replace(self.tokens, rows=ways.rows(self.tokens.rows))
        return replace(self, tokens=tokens, join=ways.scattered(tokens.width))


@frozen
class StreamEnds(Composite):
    """A matrix for each stream but the first, before the layers or after them; all are made as long as the first.

    Source   Gemma Team 2025, Gemma 3n
    """

    width: Any
    number: Any
    first: bool

    def children(self) -> Iterator[Child]:
        others = self.number - 1
        projection = Linear(d_in=self.width, d_out=self.width, bias=False, keeps="no" if self.first else "yes")
        yield Child("projections", projection, times=others, indices=every(others))
        yield Child("match", Sum(width=self.width * self.number, sums=3))


@frozen
class Join(Composite):
    """What a layer that predicts a further token reads: the hidden state and the token's row, each with a norm of its
    own, in one matrix from 2·D to D.

    Source   DeepSeek-AI 2024 (arXiv 2412.19437), section 2.2, equation 21
    """

    norm: Norm
    projection: Linear

    def children(self) -> Iterator[Child]:
        yield Child("norms", self.norm, times=2, indices=range(2))
        yield Child("projection", self.projection)


@frozen
class Stack(Root):
    """Embedding, layers, final norm and heads: a decoder, an encoder, or a half of both.

    `relative_bias` is a table of biases by distance that all layers share, `distances` one of vectors. Head None: the
    stack ends in hidden states. `contacts` is a regression on the attention weights of all heads, which is asked for
    apart (ESM). `angles` are the sinusoids of rotary positions where a checkpoint holds them, which nothing learns.
    `idle` are parameters of layers that these inputs do not run.
    """

    d_model: Any
    embedding: Embedding | None
    relative_bias: RelativeBias | None
    groups: tuple[LayerGroup, ...]
    final_norm: Norm | None
    pooler: Head | None
    head: Head | None
    distances: DistanceTable | None = None
    layer_inputs: LayerInputs | None = None
    spread: StreamEnds | None = None
    merge: StreamEnds | None = None
    # What is read of several residual streams after the last layer.
    collapse: HyperConnection | None = None
    contacts: Unused | None = None
    angles: Unused | None = None
    join: Join | None = None
    idle: Unused | None = None
    # Leaves around the layers that no other part says; they have no module.
    around: Pieces | None = None
    # Of a draft: what its stream begins with, in the place of the embedding.
    features: Features | None = None
    # Of one stage of a pipeline: the residual stream from the stage before it, and to the next one.
    receive: Collective | None = None
    send: Collective | None = None
    # How often: of interleaved stages once for each piece.
    receives: Any = 1
    sends: Any = 1
    # The weights around the layers learn nothing: the layers have adapters. What the layers read gets a gradient all
    # the same (as PEFT's `enable_input_require_grads` has it), so that all layers cost the same.
    frozen: bool = False
    on_stream = True

    @property
    def halves(self) -> Mapping[str, Stack]:
        return {"": self}

    @property
    def alone(self) -> Stack:
        return self

    def with_stacks(self, change: Callable[[Stack], Stack]) -> Stack:
        return change(self)

    def children(self) -> Iterator[Child]:
        yield from around(self._all()) if self.frozen else self._all()

    def _all(self) -> Iterator[Child]:
        yield from optional("receive", self.receive, runs=self.receives)
        yield from optional("embedding", self.embedding, kind="embedding")
        yield from optional("around", self.around, kind="other")
        yield from optional("relative_bias", self.relative_bias)
        yield from optional("distances", self.distances, kind="embedding")
        yield from optional("angles", self.angles, kind="embedding")
        yield from optional("layer_inputs", self.layer_inputs, kind="other")
        yield from optional("join", self.join, kind="other")
        yield from optional("features", self.features, kind="other")
        yield from optional("spread", self.spread, kind="other")
        for group in self.groups:
            times = 1 if group.shared else group.count
            yield Child("layers", group.block, times=times, runs=group.count, indices=group.indices, duty="layer")
        yield from optional("merge", self.merge, kind="other")
        yield from optional("collapse", self.collapse, kind="other")
        yield from optional("final_norm", self.final_norm)
        yield from optional("contacts", self.contacts, kind="other")
        yield from optional("idle", self.idle, kind="other")
        if self.pooler:
            yield Child("pooler", self.pooler, kind=self.pooler.kind)
        if self.head:
            yield Child("head", self.head, kind=self.head.kind)
        yield from optional("send", self.send, runs=self.sends)

    @property
    def predictor(self) -> Stack:
        """A layer like the last that predicts a further token; the table and the head that it shares are held here."""
        norm = Norm(width=self.d_model, form="rms", bias=False, eps=None)
        join = Join(norm=norm, projection=Linear(d_in=2 * self.d_model, d_out=self.d_model, bias=False))
        head = self.head and self.head.borrowed
        *_, last = self.groups
        groups = (last._replace(indices=(0,), count=1),)
        return replace(self, embedding=None, join=join, groups=groups, final_norm=norm, head=head)

    @property
    def cuttable(self) -> bool:
        """Whether a pipeline may cut its layers: not where they read another layer's keys, or the stack's input."""
        alone = self.layer_inputs is None and self.spread is None and self.features is None and self.around is None
        return alone and all(group.block.cuttable for group in self.groups)

    def shard(self, ways: Ways) -> Stack:
        """The shares of its blocks, tables over the vocabulary and head; norms and a pooler are whole."""
        return replace(
            self,
            embedding=self.embedding and self.embedding.shard(ways),
            relative_bias=self.relative_bias and self.relative_bias.shard(ways),
            groups=tuple(group._replace(block=group.block.shard(ways)) for group in self.groups),
            head=self.head and self.head.shard(ways),
            around=self.around and self.around.shard(ways),
            layer_inputs=self.layer_inputs and self.layer_inputs.shard(ways),
        )


@frozen
class Memory(Leaf):
    """The encoder's output, kept once for backward by what reads it: the cross-attentions of all decoder layers.

    Shapes   (B, source, D)
    Unit     no arithmetic
    Source   Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.3
    """

    width: Any

    def saved(self, work: Workload) -> Any:
        return work.positions * self.width


@frozen
class EncoderDecoder(Root):
    """An encoder over `source` positions, and a decoder over `tokens` that attends to it; or two that are `matched`:
    what one makes of each sequence of a batch is multiplied by what the other makes of each.

    `projection` is between halves of unequal widths, where the decoder's attention has none of its own; `positions` is
    how many the encoder has where that is part of the model (a picture's patches).
    """

    encoder: Stack
    projection: Linear | None
    decoder: Stack
    positions: Any = None
    matched: MatrixProduct | None = None
    cuttable = False  # not yet: the decoder's layers all read the encoder's result

    @property
    def halves(self) -> Mapping[str, Stack]:
        return {"encoder.": self.encoder, "decoder.": self.decoder}

    def with_stacks(self, change: Callable[[Stack], Stack]) -> EncoderDecoder:
        return replace(self, encoder=change(self.encoder), decoder=change(self.decoder))

    @property
    def fixed(self) -> Any:
        return self.positions

    def children(self) -> Iterator[Child]:
        yield Child("encoder", self.encoder, on=on_source, duty="encoder")
        yield from optional("projection", self.projection, on=on_source, kind="other")
        if self.matched:
            yield Child("memory", Memory(width=self.matched.d_in), on=_once(on_one), kind="other")
        else:
            width = self.projection.d_out if self.projection else self.encoder.d_model
            yield Child("memory", Memory(width=width), on=on_source, kind="other")
        yield Child("decoder", self.decoder, duty="decoder")
        yield from optional("matched", self.matched, on=_once(on_batch), kind="head", forced=True)


def _once(where: Stream) -> Stream:
    """Not in a decode step, as all that an encoder makes."""
    return lambda work: None if work.decoding else where(work)


@frozen
class FixedLength(Root):
    """A stack whose number of positions is part of the model (a picture's patches): the workload's is ignored."""

    stack: Stack
    positions: Any
    cuttable = False

    @property
    def halves(self) -> Mapping[str, Stack]:
        return {"": self.stack}

    def with_stacks(self, change: Callable[[Stack], Stack]) -> FixedLength:
        return replace(self, stack=change(self.stack))

    def at_length(self, positions: Any) -> FixedLength:
        return replace(self, positions=positions)

    @property
    def fixed(self) -> Any:
        return self.positions

    def children(self) -> Iterator[Child]:
        for child in self.stack.parts:
            yield child._replace(on=_fixed(child.on, self.positions))


def _fixed(inner: Stream, positions: Any) -> Stream:
    return lambda work: inner(work._replace(tokens=positions, past=0))
