"""Whole models: embedding, a stack of blocks, and head; encoder–decoders of two stacks.

A layer pattern is data: `LayerGroup`s of equal blocks with their layer indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from msgspec.structs import replace

from txcalc.num import Num
from txcalc.parts.adapters import around
from txcalc.parts.block import Block
from txcalc.parts.cores import MatrixProduct
from txcalc.parts.disentangled import DistanceTable
from txcalc.parts.drafts import Features
from txcalc.parts.embedding import Embedding
from txcalc.parts.head import Head
from txcalc.parts.hyper import HyperConnection
from txcalc.parts.linear import Linear, Lookup, Sum, Unused
from txcalc.parts.mixers.pieces import Pieces
from txcalc.parts.norm import Norm
from txcalc.parts.options import every
from txcalc.parts.part import Child, Composite, Leaf, Stream, Workload, on_batch, on_one, on_source, optional
from txcalc.parts.positions import RelativeBias
from txcalc.parts.sharding import Collective, Ways


class LayerGroup(NamedTuple):
    """`count` equal blocks at `indices`. `shared`: one set of weights for all (ALBERT)."""

    name: str
    block: Block
    indices: tuple[int, ...]
    count: Any
    shared: bool = False


class Root(Composite):
    """A model, or a tower of one: made of stacks."""

    @property
    def halves(self) -> Mapping[str, Stack]:
        """Its stacks in the order of computation, by the prefix of their paths."""
        return {}

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """Its stacks."""
        return tuple(self.halves.values())

    @property
    def single_stack(self) -> Stack | None:
        """Its stack, if it consists of one alone."""
        return None

    def with_stacks(self, change: Callable[[Stack], Stack]) -> Self:
        """A copy with each stack changed."""
        return self

    def at_length(self, positions: Num) -> Self:
        """A copy with this number of positions, where it is fixed by the model."""
        return self

    @property
    def fixed(self) -> Num | None:
        """Number of positions fixed by the model, as of a picture; None: as the workload says."""
        return None

    @property
    def prompt(self) -> Num:
        """Tokens of the language model's prompt that a tower reads too, at most; 0: none."""
        return 0

    def whole(self, tokens: Num) -> Num:
        """The number of tokens produced where `tokens` are needed: a tower may produce several at once."""
        return tokens

    def shard(self, ways: Ways) -> Self:
        """Shares of its stacks."""
        return self.with_stacks(lambda stack: stack.shard(ways))


class LayerInputs(Composite):
    """Per-layer embeddings: a vector per layer and token, from one table row for all layers and the stack's input.

    (norm(projection(x)) + rows) · 1/√2, with the stack's input x (B, T, D) and rows (B, T, L·width) scaled by √width;
    the projection is scaled by 1/√D. `count` is L.
    Source   Gemma Team 2025, Gemma 3n: per-layer embeddings
    """

    width: Num
    count: Num
    tokens: Lookup
    projection: Linear
    norm: Norm
    # On one rank: joins the rows of a vocabulary-parallel table.
    join: Collective | None = None
    on_stream = True

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
        """Vocabulary-parallel rows; the projection is replicated."""
        tokens = replace(self.tokens, rows=ways.rows(self.tokens.rows))
        return replace(self, tokens=tokens, join=ways.join_summands(tokens.width))


class StreamEnds(Composite):
    """A matrix per residual stream but the first, before or after the layers; the streams are scaled to the norm of the
    first.

    Source   Gemma Team 2025, Gemma 3n
    """

    width: Num
    number: Num
    first: bool
    on_stream = True

    def children(self) -> Iterator[Child]:
        projections = self.number - 1
        projection = Linear(d_in=self.width, d_out=self.width, bias=False, keeps="no" if self.first else "yes")
        yield Child("projections", projection, times=projections, indices=every(projections))
        yield Child("match", Sum(width=self.width * self.number, sums=3))


class Join(Composite):
    """The input of a multi-token-prediction layer: hidden state and token embedding, each with a norm, projected from
    2·D to D.

    Source   DeepSeek-AI 2024 (arXiv 2412.19437), section 2.2, equation 21
    """

    norm: Norm
    projection: Linear

    def children(self) -> Iterator[Child]:
        yield Child("norms", self.norm, times=2, indices=range(2))
        yield Child("projection", self.projection)


class Stack(Root):
    """Embedding, layers, final norm and heads: a decoder, an encoder, or one of an encoder–decoder.

    relative_bias   a relative-bias table shared by all layers
    distances       a table of relative-position embeddings (DeBERTa)
    head            None: the stack ends in hidden states
    contacts        a regression on attention weights, a separate call (ESM)
    angles          stored sinusoids of rotary positions, not trained
    idle            parameters of layers that these inputs do not run
    """

    d_model: Num
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
    # Merges several residual streams after the last layer.
    collapse: HyperConnection | None = None
    contacts: Unused | None = None
    angles: Unused | None = None
    join: Join | None = None
    idle: Unused | None = None
    # Further leaves around the layers; they have no module.
    around: Pieces | None = None
    # A draft model's input in place of the embedding.
    features: Features | None = None
    # On one pipeline stage: transfers of the residual stream from the previous and to the next stage.
    receive: Collective | None = None
    send: Collective | None = None
    # Number of these transfers: one per chunk of an interleaved stage.
    receives: Num = 1
    sends: Num = 1
    # Weights outside the layers are frozen: the layers have adapters. The input of the layers gets a gradient all the
    # same (PEFT's `enable_input_require_grads`), so that all layers cost the same.
    frozen: bool = False
    on_stream = True

    @property
    def halves(self) -> Mapping[str, Stack]:
        return {"": self}

    @property
    def single_stack(self) -> Stack:
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
        yield from optional("angles", self.angles, kind="embedding", gradient="none")
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
        yield from optional("contacts", self.contacts, kind="other", gradient="none")
        yield from optional("idle", self.idle, kind="other", gradient="none")
        if self.pooler:
            yield Child("pooler", self.pooler, kind=self.pooler.kind)
        if self.head:
            yield Child("head", self.head, kind=self.head.kind)
        yield from optional("send", self.send, runs=self.sends)

    @property
    def predictor(self) -> Stack:
        """A multi-token-prediction layer like the last; embedding table and head are shared with the model."""
        norm = Norm(width=self.d_model, form="rms", bias=False, eps=None)
        join = Join(norm=norm, projection=Linear(d_in=2 * self.d_model, d_out=self.d_model, bias=False))
        head = self.head and self.head.borrowed
        *_, last = self.groups
        groups = (last._replace(indices=(0,), count=1),)
        return replace(self, embedding=None, join=join, groups=groups, final_norm=norm, head=head)

    @property
    def cuttable(self) -> bool:
        """Whether pipeline stages may split its layers: not with shared KV or where layers read the stack's input."""
        plain = self.layer_inputs is None and self.spread is None and self.features is None and self.around is None
        return plain and all(group.block.cuttable for group in self.groups)

    def shard(self, ways: Ways) -> Stack:
        """Shares of the blocks and of tables and head over the vocabulary; norms and a pooler are replicated."""
        return replace(
            self,
            embedding=self.embedding and self.embedding.shard(ways),
            relative_bias=self.relative_bias and self.relative_bias.shard(ways),
            groups=tuple(group._replace(block=group.block.shard(ways)) for group in self.groups),
            head=self.head and self.head.shard(ways),
            around=self.around and self.around.shard(ways),
            layer_inputs=self.layer_inputs and self.layer_inputs.shard(ways),
        )


class Memory(Leaf):
    """The encoder's output, saved once for backward: all cross-attentions read it.

    Shapes   (B, source, D)
    Unit     no arithmetic
    Source   Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.3
    """

    width: Num

    def saved(self, work: Workload) -> Num:
        return work.positions * self.width


class EncoderDecoder(Root):
    """An encoder over `source` positions and a decoder over `tokens` that attends to its output; or two encoders whose
    pooled outputs are `matched`: each of a batch is multiplied with each of the other's (CLIP).

    `projection` is between stacks of unequal widths, where cross-attention has none; `positions` is the encoder's
    number of positions where the model fixes it (a picture's patches).
    """

    encoder: Stack
    projection: Linear | None
    decoder: Stack
    positions: Num | None = None
    matched: MatrixProduct | None = None
    cuttable = False  # not supported yet: all decoder layers read the encoder's output

    @property
    def halves(self) -> Mapping[str, Stack]:
        return {"encoder.": self.encoder, "decoder.": self.decoder}

    def with_stacks(self, change: Callable[[Stack], Stack]) -> EncoderDecoder:
        return replace(self, encoder=change(self.encoder), decoder=change(self.decoder))

    @property
    def fixed(self) -> Num | None:
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
    """Not in a decode step, like the encoder."""
    return lambda work: None if work.decoding else where(work)


class FixedLength(Root):
    """A stack with a fixed number of positions (a picture's patches): the workload's tokens are ignored."""

    stack: Stack
    positions: Num
    cuttable = False

    @property
    def halves(self) -> Mapping[str, Stack]:
        return {"": self.stack}

    def with_stacks(self, change: Callable[[Stack], Stack]) -> FixedLength:
        return replace(self, stack=change(self.stack))

    def at_length(self, positions: Num) -> FixedLength:
        return replace(self, positions=positions)

    @property
    def fixed(self) -> Num:
        return self.positions

    def children(self) -> Iterator[Child]:
        for child in self.stack.parts:
            yield child._replace(on=_fixed(child.on, self.positions))


def _fixed(inner: Stream, positions: Num) -> Stream:
    return lambda work: inner(work._replace(tokens=positions, past=0))
