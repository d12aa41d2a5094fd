"""The leaves of each pipeline stage on one rank, each with the same leaf before it is sharded.

All of training gets its shards from here, and this module from `planning.parallelism`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, islice, pairwise
from math import gcd
from typing import Any, NamedTuple, cast

from txcalc.errors import Fault, InputError
from txcalc.ledger import Entry, walk
from txcalc.model import Model
from txcalc.num import product
from txcalc.parts.model import Root, Stack
from txcalc.parts.part import Composite, Leaf, Workload
from txcalc.parts.sharding import AllReduce, ReduceScatter, Ring
from txcalc.parts.work import Axis
from txcalc.planning import parallelism
from txcalc.planning.gradients import recomputed
from txcalc.planning.layout import Layout
from txcalc.planning.training.recipe import BEHIND, V_SHAPED, Recipe


class RankLeaf(NamedTuple):
    """A leaf's shard on one rank of tp.

    entry        its ledger entry on the rank
    whole        the leaf before it is sharded
    on_residual  it is outside the tensor-parallel region (norms, residual sums): sequence parallelism shards its tokens
    layers       indices of the layers it is part of; () outside all layers
    of_tower     it belongs to a tower, whose weights take memory but which is not run
    dispatched   it belongs to a branch that dispatches tokens to experts: each rank of tp processes a share of them
    sequence     with cp: its entry for full sequences, whose work the ranks share evenly
    products     for a collective: the sharded products that read its output (a gather) or make its input (a reduction)
    passes       for a collective: its runs per forward and per backward
    source       for a collective: the leaf before it
    """

    entry: Entry
    whole: Leaf
    on_residual: bool
    layers: tuple[int, ...]
    of_tower: bool = False
    dispatched: bool = False
    sequence: Entry | None = None
    products: tuple[RankLeaf, ...] = ()
    passes: tuple[int, int] = (1, 1)
    source: RankLeaf | None = None

    def times(self, sequences: int) -> RankLeaf:
        """The same leaf for micro-batches of `sequences` sequences, from that for one."""

        def scaled(entry: Entry) -> Entry:
            work = entry.work and entry.work._replace(batch=entry.work.batch * sequences)
            counts = entry.times, entry.active_times, entry.runs
            return Entry(entry.steps, entry.leaf, entry.kind, work, *counts, entry.routed)

        return self._replace(entry=scaled(self.entry), sequence=self.sequence and scaled(self.sequence))

    def flops(self, layout: Layout, masked: bool = False) -> Any:
        """FLOPs of one forward. The ranks of cp compute equally many attention pairs: each has one chunk from the start
        and one from the end of a sequence (Megatron-LM, get_batch_on_this_cp_rank; torch, context_parallel; Llama 3,
        arXiv 2407.21783, section 3.3.2), or all pairs of some heads (Ulysses)."""
        entry = self.sequence or self.entry
        return Fraction(entry.flops_masked if masked else entry.flops) / (layout.cp if self.sequence else 1)

    def width(self, default: int) -> int:
        """Bytes per element of a collective: a norm's statistics are summed in fp32."""
        return 4 if self.entry.duty == "statistics" else default

    @property
    def shared(self) -> bool:
        """Whether several layers share its weights."""
        return bool(self.entry.times < len(self.layers))

    @property
    def gives_logits(self) -> bool:
        """Whether it is the output projection, to the vocabulary or to classes."""
        return self.entry.kind == "head" and self.entry.duty == "logits"

    @property
    def branch(self) -> tuple[Any, ...]:
        """The path of the layer's branch that it is part of; () outside all layers."""
        steps = self.entry.steps
        inner = next((i for i, step in enumerate(steps) if step.duty == "layer"), None)
        return () if inner is None else steps[: inner + 2]

    def summed_whole(self, join: Entry) -> bool:
        """Whether it is a row-sharded embedding table whose output `join` all-reduces at all positions."""
        siblings = join.steps[:-1] == self.entry.steps[:-1]
        return siblings and self.split and self.entry.leaf.row is not None and join.leaf.kind == "all_reduce"

    @property
    def learns(self) -> bool:
        """Whether its weights have gradients."""
        return self.entry.gradient in ("both", "weights")

    def token_shards(self, layout: Layout) -> int:
        """The number of tp ranks over which its positions are sharded; experts' `runs` already include this."""
        if self.dispatched and not self.entry.routed and self.entry.kind != "shared_experts":
            return layout.tp
        return layout.sp if self.on_residual else 1

    def recomputed_in(self, recompute: str, numbers: frozenset[int]) -> int:
        """The number of layers in which backward recomputes it; `numbers` are the layers whose blocks are recomputed.
        An attention core outside all layers counts as one."""
        if recompute == "core":
            return (len(self.layers) or 1) if recomputed(self.entry, "core") else 0
        return len(numbers.intersection(self.layers))

    @property
    def column(self) -> bool:
        """Whether it is a linear layer that reads its full input on every rank of tp."""
        matrix, whole = self.entry.leaf.matrix, self.whole.matrix
        return matrix is not None and whole is not None and matrix[0] == whole[0]

    @property
    def widened(self) -> bool:
        """Whether it is a linear layer whose outputs are sharded over tp; its matrix may be tied to another's."""
        return self.column and self.entry.leaf.matrix != self.whole.matrix

    @property
    def split(self) -> bool:
        """Whether one of its weights is sharded."""
        return self.entry.leaf is not self.whole and any(axis is not None for _, _, axis in self.axes())

    def axes(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int | None]]:
        """For each weight: its shape on the rank, its full shape, and the sharded axis (None: replicated)."""
        for weight, whole in zip(self.entry.leaf.weights(), self.whole.weights(), strict=True):
            split = [i for i, (a, b) in enumerate(zip(weight.shape, whole.shape, strict=True)) if a != b]
            yield weight.shape, whole.shape, split[0] if split else None


class StagePiece(NamedTuple):
    """A model chunk of the pipeline: its index from the front, its leaves, their collectives, and the leaves of towers,
    which are stored but not run. A rank has several pieces with interleaved and V-shaped schedules."""

    number: int
    first: bool
    last: bool
    leaves: tuple[RankLeaf, ...]
    work: Workload
    collectives: tuple[RankLeaf, ...] = ()
    towers: tuple[RankLeaf, ...] = ()

    def times(self, sequences: int) -> StagePiece:
        """The same piece for micro-batches of `sequences` sequences, from that for one."""
        leaves = tuple(leaf.times(sequences) for leaf in self.leaves)
        joins = tuple(leaf.times(sequences) for leaf in self.collectives)
        return self._replace(work=self.work._replace(batch=sequences), leaves=leaves, collectives=joins)


class Pipeline:
    """A model partitioned into the pieces of a recipe's pipeline.

    Each piece is a separate module. A weight that several pieces read (a tied table, a shared layer) has a copy in
    each, even on the same rank, with its own gradient and optimizer state. Once per step the copies' gradients are
    summed (`tied`, `alike`), but not in PyTorch, where torchtitan refuses tied weights in stages.

    Source   torchtitan b5bcd76c, distributed/pipeline_parallel.py, _split_module (a deep copy of the model per piece),
             models/common/decoder.py; Megatron-LM d98e8a64, training/training.py, get_model (a model per virtual
             stage), core/distributed/finalize_model_grads.py, _allreduce_embedding_grad; nanotron 67c5ebb6,
             parallel/tied_parameters.py; DeepSpeed 0.19, runtime/pipe/engine.py, _exec_reduce_tied_grads
    """

    def __init__(self, model: Model, recipe: Recipe) -> None:
        """Errors: `InputError` with every reason why the model does not allow the layout."""
        layout, rules = recipe.layout, recipe.rules
        if layout.cp > 1 and (reason := _cp_obstacle(model)):
            axes = ("fsdp", "dp") if rules.dtensor else ("dp",)
            mend = " or ".join(f"{axis}={getattr(layout, axis) * layout.cp}" for axis in axes) + " splits the batch"
            raise InputError(f"layout {layout}", [Fault("cp", layout.cp, f"1: {reason}", mend)])
        recipe.check()
        vocabulary_multiple = rules.pads * layout.tp if rules.pads > 1 else 1
        sharding, notes = parallelism.sharding_of(
            model,
            vocabulary_multiple,
            pads=0 if rules.dtensor else 1,
            slices=recipe.regathers_inputs,
            copies=not rules.relays,
        )
        self.model, self.recipe = sharding.model, recipe
        total = recipe.layout.pp * recipe.pieces
        faults = list(self._faults(sharding, total))
        inner = layout.replace(pp=1, vpp=1)
        faults += sharding.faults(inner)
        if faults:
            raise InputError(f"layout {layout}", faults)
        (stage,) = sharding.stages(inner)
        self.notes = (*notes, *sharding.notes(inner))
        self.rank, self._whole, self._total = stage.root, sharding.model.root, total
        self._built, self._unbuilt = list[StagePiece](), self._build_pieces()
        if recipe.loss_parallel:
            self.rank = parallelism.own_logits(stage.root)
        if faults := [*(self._replication_faults() if recipe.rules.dtensor else ()), *self._ulysses_faults()]:
            raise InputError(f"layout {layout}", faults)

    def _faults(self, sharding: parallelism.Sharding, total: int) -> Iterator[Fault | str]:
        layout = self.recipe.layout
        if total > 1 and not sharding.layers:
            yield Fault("pp", layout.pp, parallelism.UNCUT)
        elif self.recipe.stages is not None and sum(self.recipe.stages) != sharding.layers:
            expected = f"numbers that add up to the {sharding.layers} layers"
            yield Fault("stages", "+".join(map(str, self.recipe.stages)), expected)
        elif total > max(1, sharding.layers) and self.recipe.stages is None:
            yield Fault("pp · pieces", total, f"at most the {sharding.layers} layers")
        tuned = any(stack.lora for stack in self.model.stacks)
        for name in ("frozen", "adapter"):
            if (value := getattr(self.recipe, name)) and not tuned:
                yield Fault(name, value, "none: the model has no adapters", "see --lora")
        text, stacks = self.recipe.recompute, [stack.n_layers for stack in self.model.stacks]
        if text.startswith("layers:") and len(stacks) > 1:
            yield Fault("recompute", text, "none, core, blocks or every:N, since each stack has a layer of each number")
        elif text.startswith("layers:") and max(map(int, text[7:].split(","))) >= stacks[0]:
            yield Fault("recompute", text, f"numbers of layers from 0 to {stacks[0] - 1}")

    def _replication_faults(self) -> Iterator[Fault | str]:
        """Faults of layouts that would replicate key/value heads over ranks of tp, which PyTorch does not."""
        tp = self.recipe.layout.tp
        for leaf in _rank_leaves(self._whole, self.rank, self.model.workload()):
            for shape, whole, axis in leaf.axes():
                if axis is None or leaf.entry.routed:
                    continue
                ways = whole[axis] // shape[axis]
                if ways < tp and whole[axis] == shape[axis] * ways:
                    expected = f"at most {ways} with --framework fsdp2, which repeats no key/value heads"
                    yield Fault("tp", tp, expected, "megatron and nanotron do")

    def _ulysses_faults(self) -> Iterator[Fault | str]:
        """Ulysses divides a tp rank's heads evenly among the ranks of cp (Transformer Engine, context_parallel.py,
        AttnFuncWithCPAndQKVOA2A)."""
        layout = self.recipe.layout
        if layout.cp > 1 and self.recipe.context == "ulysses":
            attended = [entry.leaf.attended for entry in walk(self.rank, self.model.workload())]
            fewest = min((gcd(core.heads, core.groups) for core in attended if core), default=layout.cp)
            if fewest % layout.cp:
                yield Fault("cp", layout.cp, f"a divisor of a rank's {fewest} heads with context=ulysses")

    @cached_property
    def sizes(self) -> list[int]:
        """Layers of each piece: as the recipe says, by the framework's cost, or evenly (see `parallelism.sizes`)."""
        root = _single_stack(self._whole)
        if root is None:
            return []
        layers = sum(group.count for group in root.groups)
        if self.recipe.stages is not None:
            return list(self.recipe.stages)
        if self.recipe.rules.balanced and self._total > 1:
            return self._by_cost(layers)
        return parallelism.sizes(layers, self._total)

    def _by_cost(self, layers: int) -> list[int]:
        """Nanotron's partition (models/base.py): a stage ends with the first block that reaches its share of all
        matrices' elements; the output layer counts with the last block. Runs of its 1B model show that equality ends a
        stage."""
        linear = [entry for entry in walk(self._whole, self.model.workload()) if entry.leaf.matrix]
        head = sum(product(e.leaf.matrix or ()) for e in linear if e.kind == "head")
        layer = sum(e.leaf.params * max(e.times, e.runs) for e in linear if e.kind != "head") // layers
        total, stage, sizes = layers * layer + head, 0, [0] * self._total
        for number in range(layers):
            sizes[stage] += 1
            if (number + 1) * layer * self._total >= total * (stage + 1):
                stage += 1
        return sizes

    @property
    def pieces(self) -> list[StagePiece]:
        return self._first(self._total)

    def _first(self, number: int) -> list[StagePiece]:
        """At least the first `number` pieces, each built once."""
        self._built += islice(self._unbuilt, max(0, number - len(self._built)))
        return self._built

    def _build_pieces(self) -> Iterator[StagePiece]:
        recipe, layout = self.recipe, self.recipe.layout
        tokens = recipe.local_tokens
        gathered = recipe.tokens - tokens if recipe.context == "allgather" else 0
        work = self.model.workload(recipe.micro_batch, tokens, gathered, decoding=False, keep_scores=recipe.keep_scores)
        sequence = None
        if layout.cp > 1:
            sequence = self.model.workload(recipe.micro_batch, recipe.tokens, keep_scores=recipe.keep_scores)
        pairs = zip(self._cut(self._whole), self._cut(self.rank), strict=True)
        sends, last = layout.exchanges, self._total - 1
        for i, (whole, rank) in enumerate(pairs):
            leaves = tuple(_rank_leaves(whole, rank, work, sends, sequence))
            joins = tuple(_collectives(rank, work, leaves, layout))
            towers = () if i else tuple(self._tower_leaves(work))
            yield StagePiece(i, i == 0, i == last, leaves, work, joins, towers)

    def _tower_leaves(self, work: Workload) -> Iterator[RankLeaf]:
        """The leaves of towers, which tp does not shard."""
        for number, root in enumerate(self.model.tower_roots):
            for entry in walk(root, work):
                layers = tuple(layer + (number + 2) * BEHIND for layer in layer_numbers(entry))
                yield RankLeaf(entry, entry.leaf, False, layers, of_tower=True)

    @property
    def tied(self) -> int:
        """Elements of a tied embedding on the first and the last stage, whose gradients are summed once per step."""
        return head_elements(self.pieces[-1].leaves) if self._sums and self._ties else 0

    def alike(self, pieces: Sequence[StagePiece]) -> int:
        """Elements of a stage's weights that layers of other stages share, whose gradients are summed once per
        step; each weight counts once."""
        elements = 0
        for layers in self._across if self._sums else ():
            leaves = [[leaf for leaf in piece.leaves if not layers.isdisjoint(leaf.layers)] for piece in pieces]
            elements += sum(leaf.entry.params for leaf in next(filter(None, leaves), ()) if leaf.learns)
        return elements

    @property
    def unsummed(self) -> tuple[str, ...]:
        """A note on copies whose gradients are not summed."""
        if self._sums or self.recipe.layout.pp == 1 or not (self._ties or self._across):
            return ()
        return ("pp: stages hold copies of shared weights; torch does not sum their gradients, torchtitan refuses it",)

    @property
    def _sums(self) -> bool:
        """Whether stages sum the gradients of copies."""
        return self.recipe.layout.pp > 1 and not self.recipe.rules.dtensor

    @property
    def _ties(self) -> bool:
        stack = _single_stack(self._whole)
        return bool(stack and stack.head and stack.head.projection and stack.head.projection.tied)

    @cached_property
    def _across(self) -> list[frozenset[int]]:
        """The layers of each group with shared weights that is in several stages."""
        stack, pp = _single_stack(self._whole), self.recipe.layout.pp
        sharing = [frozenset(group.indices) for group in stack.groups if group.shared] if stack else []
        stages = [{i for piece in self.of_stage(n) for leaf in piece.leaves for i in leaf.layers} for n in range(pp)]
        return [group for group in sharing if sum(not group.isdisjoint(layers) for layers in stages) > 1]

    def root(self, number: int) -> Root:
        """The tree of a piece, before tp shards it."""
        return list(self._cut(self._whole))[number]

    def of_stage(self, stage: int) -> list[StagePiece]:
        """The pieces of the ranks of one stage, from the front."""
        pp = self.recipe.layout.pp
        if pp > 1 and self.recipe.schedule in V_SHAPED:
            return [self.pieces[stage], self.pieces[-1 - stage]]
        return self._first(self._total - pp + stage + 1)[stage : self._total : pp]

    def _cut(self, root: Root) -> Iterator[Root]:
        stack = _single_stack(root)
        if self._total == 1 or stack is None:
            yield root
            return
        ends = list(accumulate(self.sizes, initial=0))
        for number, (start, end) in enumerate(pairwise(ends)):
            yield parallelism.piece(stack, range(start, end), number == 0, number == self._total - 1)


def _cp_obstacle(model: Model) -> str:
    """Why cp cannot shard a model's positions; "" if it can."""
    if fixed := model.root.fixed or model.encoded(0):
        return f"the {fixed:,} positions of an image or audio input are not sharded"
    entries = walk(model.root, model.workload())
    if any(entry.kind == "recurrent" for entry in entries):
        return "recurrent layers process the tokens of a sequence in order"
    # Latents are no obstacle: Megatron-LM exchanges the keys and values expanded from them.
    if all(entry.leaf.exchanges for entry in entries if entry.leaf.attended and entry.leaf.kernels != "latent"):
        return ""
    return "the exchange of keys and values between ranks is not known for this attention"


def _rank_leaves(
    whole: Composite, rank: Composite, work: Workload, sends: bool = False, sequence: Workload | None = None
) -> Iterator[RankLeaf]:
    on_residual = {id(leaf) for leaf in residual_leaves(rank)}
    leaves = [
        RankLeaf(entry, whole_entry.leaf, id(entry.leaf) in on_residual, layer_numbers(entry))
        for entry, whole_entry in zip(_entries(rank, work), walk(whole, work), strict=True)
    ]
    routed = {leaf.branch for leaf in leaves if leaf.entry.routed and leaf.entry.kind == "experts"} if sends else set()
    sequence_entries: list[Entry | None] = [None] * len(leaves)
    if sequence is not None:
        sequence_entries = [entry for entry in walk(rank, sequence) if entry.leaf.role != "collective"]
    for leaf, sequence_entry in zip(leaves, sequence_entries, strict=True):
        yield leaf._replace(dispatched=leaf.branch in routed, sequence=sequence_entry)


def _entries(rank: Composite, work: Workload) -> Iterator[Entry]:
    """Every leaf on the rank's own tokens. Only attention cores also read keys and values of other cp ranks."""
    for local, all_keys in zip(walk(rank, work._replace(past=0)), walk(rank, work), strict=True):
        if local.leaf.role != "collective":
            yield all_keys if local.kind == "attention_core" else local


def _collectives(rank: Root, work: Workload, rank_leaves: Sequence[RankLeaf], layout: Layout) -> Iterator[RankLeaf]:
    """The collectives, each with the products that make its input or, for a gather, read its output.

    Backward runs the transpose of each, except for gathered logits (a rank takes its slice of the gradient) and the sum
    of an embedding table (its gradient is replicated, or not needed). If ranks of tp dispatched shares of the same
    tokens to experts, backward sums the gradients of all shares. If sequence sharding follows an embedding's sum,
    backward gathers the positions' gradients. Without sequence parallelism, an additional all-reduce sums the gradient
    of the head's input.
    """

    def in_backward(entry: Entry, width: int, layers: tuple[int, ...], kind: type[Ring] = AllReduce) -> RankLeaf:
        leaf = kind(width=width, axis=Axis("tp", layout.tp))
        reduction = Entry(entry.steps, leaf, entry.kind, entry.work, 1, 1, entry.runs)
        return RankLeaf(reduction, leaf, False, layers, passes=(0, 1))

    leaves, joins, runs = iter(rank_leaves), list[tuple[Entry, RankLeaf | None]](), list[list[RankLeaf]]([[]])
    leaf: RankLeaf | None = None
    for join in walk(rank, work):
        if join.leaf.role == "collective":
            joins.append((join, leaf))
            runs.append([])
            continue
        leaf = next(leaves)
        if leaf.split and leaf.entry.leaf.matrix and not leaf.entry.routed:
            runs[-1].append(leaf)
    for number, (join, source) in enumerate(joins):
        kinds = {transfer.kind for transfer in join.transfers}
        candidates = runs[number + ("all_gather" in kinds)] if join.duty != "shares" else []
        products = tuple(leaf for leaf in candidates if leaf.column != ("reduce_scatter" in kinds))
        repeats = join.duty not in ("logits", "shares")
        if source is not None and source.entry.leaf.row is not None and "all_gather" not in kinds:
            repeats = source.learns and "all_reduce" not in kinds
        yield RankLeaf(
            join, join.leaf, False, layer_numbers(join), products=products, passes=(1, int(repeats)), source=source
        )
        if join.duty == "shares":
            yield in_backward(join, join.leaf.width, layer_numbers(join))  # type: ignore[attr-defined]
        if layout.sp > 1 and source is not None and source.summed_whole(join):
            yield in_backward(join, rank.stacks[-1].d_model, (), ReduceScatter)._replace(passes=(0, int(source.learns)))
    for head in rank_leaves if layout.tp > layout.sp else ():
        if head.entry.kind == "head" and head.widened:
            yield in_backward(head.entry, head.entry.leaf.matrix[0], ())._replace(products=(head,))  # type: ignore[index]


def layer_numbers(entry: Entry) -> tuple[int, ...]:
    """Indices of the layers that a leaf is part of; a decoder's come after those of any encoder."""
    offset = BEHIND if entry.steps[0].duty == "decoder" else 0
    return tuple(number + offset for number in entry.numbers)


def _single_stack(root: Root) -> Stack | None:
    """The model's stack if it has only one, without a fixed number of positions."""
    return root.stacks[0] if len(root.stacks) == 1 and root.fixed is None else None


def tied_tables(leaves: Iterable[RankLeaf]) -> list[RankLeaf]:
    """The token tables tied to the output layer of the same stack."""
    all_leaves = list(leaves)
    heads = [leaf for leaf in all_leaves if leaf.gives_logits and leaf.entry.leaf.untied is not leaf.entry.leaf]
    tied = {(leaf.entry.steps[:-2], leaf.whole.tied_shapes[0]) for leaf in heads}
    tables = (leaf for leaf in all_leaves if leaf.entry.duty == "tokens" and leaf.whole.weights())
    return [leaf for leaf in tables if (leaf.entry.steps[:-2], leaf.whole.weights()[0].shape) in tied]


def head_elements(leaves: Iterable[RankLeaf]) -> int:
    """Trainable elements of the output layer."""
    matrices = (leaf.entry.leaf.matrix for leaf in leaves if leaf.gives_logits and leaf.learns)
    return sum(product(matrix) for matrix in matrices if matrix)


def residual_leaves(part: Composite) -> Iterator[Leaf]:
    """Leaves outside the tensor-parallel region: norms and sums of the residual stream, and a head's operations per
    position before its product; tables of relative biases are inside."""
    for child in part.parts:
        if child.part.parts:
            yield from residual_leaves(cast(Composite, child.part))
        elif child.part.leaf and part.along(child):
            yield child.part.leaf
