"""How a model is spread over accelerators: the tree of parts that one of them holds.

One rule: a rank's share is itself a tree of parts, with fewer heads, columns, experts and layers. Its ledger gives the
rank's weights, FLOPs, traffic, cache and activations by the same formulas as the whole model's.

Split by tp: query heads, key/value heads down to one a rank, feed-forward columns, recurrent channels and heads, rows
of the vocabulary (padded up). Whole on every rank: norms, routers, a layer's own inputs, biases after a row-split
product, the low-rank halves, the latent and the index of MLA, key/value heads where tp > h_kv, positions, patches,
convolutions in front.
Source   Shoeybi et al. 2019 (arXiv 1909.08053) tensor parallel; Lepikhin et al. 2020 (arXiv 2006.16668) experts; the
         stages of an uneven pipeline as vLLM's `get_pp_indices` cuts them
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from txcalc.errors import Fault, InputError
from txcalc.model import Model
from txcalc.num import ceil_div
from txcalc.parts.attention import Attention, DifferentialCore, LatentAttention, RelativeBias, Rotary
from txcalc.parts.block import Block
from txcalc.parts.feedforward import Experts, FeedForward, LayerInput
from txcalc.parts.linear import Norm
from txcalc.parts.linear_attention import ChannelMix, DeltaNet, LinearAttention, TimeMix
from txcalc.parts.model import Embedding, EncoderDecoder, FixedLength, Head, LayerGroup, LayerInputs, Stack
from txcalc.parts.part import Composite
from txcalc.parts.recurrent import Griffin, Mamba, Mamba2
from txcalc.planning.layout import Layout, unserved


class Stage(NamedTuple):
    """Equal stages of a pipeline, `copies` of them, the first at number `first`: the tree that a rank of one holds."""

    first: int
    copies: int
    root: Composite


class Sharding:
    """A model's ranks under many layouts; trees are made once. `serving`: what is for training only is refused."""

    def __init__(self, model: Model, serving: bool = False) -> None:
        self.model, self.serving = model, serving
        root = model.root
        # Layers that a pipeline may cut; 0: it may not.
        self.layers: int = sum(group.count for group in root.groups) if isinstance(root, Stack) and _cuts(root) else 0
        tables = (layer for stack in model.spec["stacks"].values() for layer in stack["layer"].values())
        self.has_experts = any("experts" in layer for layer in tables)
        self._ranks: dict[tuple[int, int], _Rank] = {}
        self._stages: dict[Layout, tuple[Stage, ...]] = {}

    def stages(self, layout: Layout) -> tuple[Stage, ...]:
        """The different stages of a layout. Errors: `InputError` with every reason why it cannot be."""
        if faults := self.faults(layout):
            raise InputError(f"layout {layout}", faults)
        key = layout.replace(dp=1)
        if key not in self._stages:
            self._stages[key] = tuple(_stages(self._rank(layout).root, layout.pp))
        return self._stages[key]

    def notes(self, layout: Layout) -> tuple[str, ...]:
        """What is held more than once, or padded."""
        return tuple(self._rank(layout).notes)

    def faults(self, layout: Layout) -> list[Fault | str]:
        """Why the model cannot be laid out so; [] where it can."""
        return layout.faults() or (unserved(layout) if self.serving else []) or self._reasons(layout)

    def _reasons(self, layout: Layout) -> list[Fault | str]:
        faults: list[Fault | str] = []
        stages = layout.pp * layout.vpp
        if stages > 1 and not self.layers:
            expected = "1: only a single stack of layers is cut into stages, where each reads the one before alone"
            faults.append(Fault("pp", layout.pp, expected))
        elif stages > self.layers > 0:
            key = "pp" if layout.vpp == 1 else "pp · vpp"
            faults.append(Fault(key, stages, f"at most the {self.layers} layers"))
        return faults or self._rank(layout).faults

    def layouts(self, gpus: int, fixed: Mapping[str, int] | None = None) -> Iterator[Layout]:
        """Every layout of so many accelerators that the model allows, `fixed` ones held: tp, pp, dp, and experts split
        as the rest is (ep = 1) or spread over all of a stage."""
        held = fixed or {}

        def of(name: str, number: int) -> Iterable[int]:
            return _divisors(number) if name not in held else (held[name],) if number % held[name] == 0 else ()

        for tp in of("tp", gpus):
            for pp in of("pp", gpus // tp):
                dp = gpus // tp // pp
                spread = {1, tp * dp} if self.has_experts else {1}
                for ep in (held["ep"],) if "ep" in held else sorted(spread):
                    layout = Layout(tp=tp, pp=pp, dp=dp, ep=ep)
                    if held.get("dp", dp) == dp and not self.faults(layout):
                        yield layout

    def _rank(self, layout: Layout) -> _Rank:
        key = (layout.tp, layout.ep)
        if key not in self._ranks:
            self._ranks[key] = _Rank(self.model.root, *key)
        return self._ranks[key]


@cache
def _divisors(n: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, n + 1) if n % d == 0)


def _cuts(stack: Stack) -> bool:
    """Whether a pipeline may cut a stack's layers: not where they read another layer's keys, or the stack's input."""
    attentions = (branch.part for group in stack.groups for branch in group.block.branches)
    return (
        stack.layer_inputs is None
        and stack.spread is None
        and all(part.lender is None for part in attentions if isinstance(part, Attention))
    )


def _stages(root: Composite, pp: int) -> Iterator[Stage]:
    """Contiguous layers; where L is no multiple of pp the stages before the last take one more each."""
    if pp == 1 or not isinstance(root, Stack):
        yield Stage(0, 1, root)
        return
    layers = sum(group.count for group in root.groups)
    sizes = [layers // pp] * pp
    for i in range(layers % pp):
        sizes[-2 - i] += 1
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    found: dict[Any, list[Any]] = {}
    for number, (start, end) in enumerate(pairwise(ends)):
        groups = [_slice(group, start, end) for group in root.groups]
        first, last = number == 0, number == pp - 1
        key = (first, last, *(group.count for group in groups))
        found.setdefault(key, [number, 0, tuple(group for group in groups if group.count)])[1] += 1
    for (first, last, *_), (number, copies, held) in found.items():
        head = root.head if last else None
        if head and head.projection and head.projection.tied:  # the embedding is on another accelerator
            head = replace(head, projection=replace(head.projection, tied=False))
        yield Stage(
            number,
            copies,
            replace(
                root,
                embedding=root.embedding if first else None,
                groups=held,
                final_norm=root.final_norm if last else None,
                contacts=root.contacts if last else None,
                angles=root.angles if first else None,
                pooler=root.pooler if last else None,
                head=head,
            ),
        )


def _slice(group: LayerGroup, start: int, end: int) -> LayerGroup:
    indices = tuple(i for i in group.indices if start <= i < end)
    return group._replace(indices=indices, count=len(indices))


class _Rank:
    """The tree of one rank of tp, its experts spread over ep; and what stands in the way."""

    def __init__(self, root: Composite, tp: int, ep: int) -> None:
        self.tp, self.ep = tp, ep
        self._faults: dict[str, Fault] = {}
        self._notes: dict[str, None] = {}
        self.root = self.tree(root)
        self.faults: list[Fault | str] = list(self._faults.values())
        self.notes = list(self._notes)

    def split(self, name: str, number: int, ways: int | None = None, key: str = "tp") -> int:
        """A ways-th of a number that must divide."""
        ways = self.tp if ways is None else ways
        if number % ways:
            fault = Fault(key, self.tp if key == "tp" else self.ep, f"a divisor of {name} = {number:,}")
            self._faults[str(fault)] = fault
        return max(1, number // ways)

    def share(self, name: str, number: int) -> int:
        """A tp-th; or one, which several ranks hold alike, where there are fewer than ranks."""
        if number % self.tp == 0:
            return number // self.tp
        if self.tp % number == 0:
            self._notes[f"{name} = {number:,} is less than tp = {self.tp}: {self.tp // number} ranks hold each"] = None
            return 1
        fault = Fault("tp", self.tp, f"a divisor of {name} = {number:,}, or a multiple of it")
        self._faults[str(fault)] = fault
        return 1

    def rows(self, number: int) -> int:
        """A tp-th of a vocabulary, rounded up."""
        if number % self.tp:
            padded = ceil_div(number, self.tp) * self.tp
            self._notes[f"V = {number:,} is padded to {padded:,}, a multiple of tp = {self.tp}"] = None
        return ceil_div(number, self.tp)  # type: ignore[no-any-return]

    def tree(self, root: Composite) -> Composite:
        if isinstance(root, EncoderDecoder):
            return replace(root, encoder=self.stack(root.encoder), decoder=self.stack(root.decoder))
        if isinstance(root, FixedLength):
            return replace(root, stack=self.stack(root.stack))
        assert isinstance(root, Stack)
        return self.stack(root)

    def stack(self, stack: Stack) -> Stack:
        return replace(
            stack,
            embedding=stack.embedding and self.embedding(stack.embedding),
            relative_bias=stack.relative_bias and self.bias(stack.relative_bias),
            groups=tuple(group._replace(block=self.block(group.block)) for group in stack.groups),
            head=stack.head and self.head(stack.head),
            layer_inputs=stack.layer_inputs and self.layer_inputs(stack.layer_inputs),
        )

    def embedding(self, embedding: Embedding) -> Embedding:
        tokens = embedding.tokens
        return replace(embedding, tokens=tokens and replace(tokens, rows=self.rows(tokens.rows)))

    def layer_inputs(self, inputs: LayerInputs) -> LayerInputs:
        return replace(inputs, tokens=replace(inputs.tokens, rows=self.rows(inputs.tokens.rows)))

    def head(self, head: Head) -> Head:
        projection = head.projection
        return replace(head, projection=projection and replace(projection, d_out=self.rows(projection.d_out)))

    def bias(self, table: RelativeBias) -> RelativeBias:
        return replace(table, n_heads=self.split("n_heads", table.n_heads))

    def block(self, block: Block) -> Block:
        branches = tuple(branch._replace(part=self.branch(branch.part)) for branch in block.branches)
        return replace(block, branches=branches)

    def branch(self, part: Composite) -> Composite:
        if isinstance(part, Attention):
            return self.attention(part)
        if isinstance(part, LatentAttention):
            return self.latent(part)
        if isinstance(part, Experts):
            return self.experts(part)
        if isinstance(part, Mamba):
            return replace(part, d_inner=self.split("d_inner", part.d_inner))
        if isinstance(part, Mamba2):
            heads, groups = self.split("n_heads", part.n_heads), self.share("n_groups", part.n_groups)
            return replace(part, n_heads=heads, n_groups=groups)
        if isinstance(part, DeltaNet):
            heads, groups = self.split("n_heads", part.n_heads), self.share("n_key_heads", part.n_key_heads)
            return replace(part, n_heads=heads, n_key_heads=groups)
        if isinstance(part, Griffin | LinearAttention):
            return replace(part, n_heads=self.split("n_heads", part.n_heads))
        if isinstance(part, TimeMix):
            return replace(part, d_inner=self.split("d_inner", part.d_inner))
        if isinstance(part, ChannelMix):
            return replace(part, d_ff=self.split("d_ff", part.d_ff))
        if isinstance(part, LayerInput):
            return part
        if isinstance(part, FeedForward):
            return self.feed_forward(part, self.tp)
        if self.tp > 1:
            fault = Fault("tp", self.tp, f"1: there is no way yet to split a {type(part).__name__}")
            self._faults[str(fault)] = fault
        return part

    def attention(self, part: Attention) -> Attention:
        heads, groups = self.split("n_heads", part.n_heads), self.share("n_kv_heads", part.n_kv_heads)
        position = part.position
        if isinstance(part.core, DifferentialCore):
            self.split("pairs of n_heads", part.n_heads // 2)
        return replace(
            part,
            n_heads=heads,
            n_kv_heads=groups,
            query_norm=_norm(part.query_norm, part.n_heads, heads),
            key_norm=_norm(part.key_norm, part.n_kv_heads, groups),
            value_norm=_norm(part.value_norm, part.n_kv_heads, groups),
            rotary=part.rotary
            and _rotary(part.rotary, {part.n_heads: heads, part.n_heads + part.n_kv_heads: heads + groups}),
            core=replace(part.core, n_heads=heads, n_kv_heads=groups),
            position=position and replace(position, d_out=self.split("n_heads · d_head", position.d_out)),
            gate=part.gate and replace(part.gate, n_heads=heads),
            inner_norm=self.inner_norm(part.inner_norm, heads * part.core.d_v),
            relative_bias=part.relative_bias and self.bias(part.relative_bias),
        )

    def latent(self, part: LatentAttention) -> LatentAttention:
        heads = self.split("n_heads", part.n_heads)
        if self.tp > 1:
            self._notes["the latent of MLA and the projections to it are whole on every rank of tp"] = None
            if part.indexer:  # as vLLM and transformers' own plan have it (2026-11): all heads choose the same keys
                self._notes["the index that selects keys is whole on every rank of tp"] = None
        rotary = part.rotary and replace(part.rotary, heads=part.rotary.heads - part.n_heads + heads)
        gate = part.gate and replace(part.gate, n_heads=heads)
        return replace(part, n_heads=heads, rotary=rotary, core=replace(part.core, n_heads=heads), gate=gate)

    def feed_forward(self, part: FeedForward, ways: int) -> FeedForward:
        width = self.split("d_ff", part.d_ff, ways)
        return replace(part, d_ff=width, inner_norm=self.inner_norm(part.inner_norm, width))

    def inner_norm(self, norm: Norm | None, width: int) -> Norm | None:
        """A rank's columns of a norm over what is split; the ranks add up its mean square."""
        if norm and norm.groups != 1:  # of every pair of heads
            return replace(norm, groups=norm.groups * width // (norm.groups * norm.width))
        if norm and norm.width != width:
            self._notes["the statistics of norms before o and down are summed over the ranks of tp"] = None
        return norm and replace(norm, width=width)

    def experts(self, part: Experts) -> Experts:
        """A rank's experts, and how many of them the tokens of its own sequences pass on average: those of other
        sequences of dp come to it as its own go to others."""
        runs = Fraction(part.top_k, min(self.tp, self.ep))
        return replace(
            part,
            n_experts=self.split("n_experts", part.n_experts, self.ep, "ep"),
            top_k=runs.numerator if runs.denominator == 1 else runs,
            expert=self.feed_forward(part.expert, max(1, self.tp // self.ep)),
            shared=part.shared and self.feed_forward(part.shared, self.tp),
        )


def _norm(norm: Norm | None, groups: int, kept: int) -> Norm | None:
    """A norm of every head has as many groups as the rank has heads; one over all of them stays whole."""
    return replace(norm, groups=kept) if norm and norm.groups == groups else norm


def _rotary(rotary: Rotary, kept: Mapping[int, int]) -> Rotary:
    """That of the kept heads: of queries and keys, or, where keys are another layer's, of queries."""
    return replace(rotary, heads=kept.get(rotary.heads, rotary.heads))
