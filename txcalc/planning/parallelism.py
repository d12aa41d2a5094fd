"""Sharding of a model over accelerators: the tree of parts on one of them.

A rank's share is itself a tree of parts, with fewer heads, columns, experts and layers. Its ledger gives the rank's
weights, FLOPs, traffic, cache and activations by the same formulas as the whole model's. Each part defines its own
share (`shard`); this module checks layouts and partitions layers into stages.

Sharded over tp: query heads, key/value heads down to one per rank, feed-forward columns, recurrent channels and heads,
rows of the vocabulary (padded up). Replicated on every rank: norms, routers, a layer's own inputs, biases after a
row-sharded product, the low-rank factors, the latent and the index of MLA, key/value heads if tp > h_kv, positions,
patches, and convolutions before the first layer.
Source   Shoeybi et al. 2019 (arXiv 1909.08053) tensor parallel; Lepikhin et al. 2020 (arXiv 2006.16668) experts; the
         stages of an uneven pipeline as vLLM's `get_pp_indices` cuts them
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec import Struct, field
from msgspec.structs import replace

from txcalc.errors import Fault, InputError
from txcalc.ledger import Entry, Ledger, Spot, spots, walk
from txcalc.model import Model
from txcalc.num import Num, divisors, product
from txcalc.parts.model import Root, Stack
from txcalc.parts.part import Leaf, Stream, Weight, Workload
from txcalc.parts.sharding import Receive, Send, Ways
from txcalc.parts.work import Axis, along
from txcalc.planning.layout import Layout, serving_faults

if TYPE_CHECKING:
    from txcalc.planning.serving.offload import Offload

UNCUT = "1: only a single stack whose layers each read only the one before is partitioned into stages"
KEPT = 64  # ledgers that a stage caches

Asked = dict[Workload, dict[Any, Entry]]


class PipelineStage(Struct, frozen=True, eq=False, dict=True):
    """Equal stages of a pipeline, `copies` of them, the first at index `first`, with the tree of one rank.

    alive   elements alive at the peak of a step, by number of tokens and whether it decodes
    asked   by workload, the first entry of each leaf, shared by all stages of one tree
    passes  the work of a pass on any accelerator, by layout and formats (`planning.serving.rank_work`)
    """

    first: int
    copies: int
    root: Root
    asked: Asked = field(default_factory=dict)

    @cached_property
    def alive(self) -> dict[tuple[int, bool], Num | Fraction]:
        return {}

    @cached_property
    def passes(self) -> dict[Any, Any]:
        return {}

    @cached_property
    def _walked(self) -> dict[Workload, Ledger]:
        return {}

    def ledger(self, work: Workload) -> Ledger:
        """The rank's ledger, cached by workload."""
        if work not in self._walked:
            if len(self._walked) == KEPT:
                self._walked.clear()
            self._walked[work] = Ledger([self._entry(spot, work) for spot in spots(self.root)], work)
        return self._walked[work]

    def _first(self, spot: Spot, work: Workload) -> Entry:
        if work not in self.asked and len(self.asked) == KEPT:
            self.asked.clear()
        entries, key = self.asked.setdefault(work, {}), (spot.leaf, spot.streams, spot.routed)
        if key not in entries:
            entries[key] = spot.at(work)
        return entries[key]

    def _entry(self, spot: Spot, work: Workload) -> Entry:
        first = self._first(spot, work)
        if first.steps is spot.steps:
            return first
        entry = spot.at(work)
        entry.same_as = first
        return entry

    def live(self, work: Workload, without: str) -> Num | Fraction:
        """The most elements that one operation reads and writes, over all leaves except those of one kind."""
        return max((_live(spot, work) for spot in spots(self.root) if spot.kind != without), default=0)


def _live(spot: Spot, work: Workload) -> Num | Fraction:
    """The most elements that one operation of a leaf reads and writes; a layer's experts count together."""
    most = _most_activations(spot.leaf, spot.streams, work)
    if not spot.routed:
        return most
    return most * Fraction(spot.counts[2], product([step.number for step in spot.steps if step.duty == "layer"]))


@lru_cache(maxsize=1024)  # stages of many layouts have the same leaves
def _most_activations(leaf: Leaf, streams: tuple[Stream, ...], work: Workload) -> Num:
    leaf_work = along(streams, work)
    return max([op.traffic.activations for op in leaf.operations(leaf_work)], default=0) if leaf_work else 0


class RankShare(NamedTuple):
    """One tp and ep rank's tree of a model, with faults, and notes on replicated or padded tensors; `asked` as in
    `PipelineStage`."""

    root: Root
    faults: list[Fault | str]
    notes: list[str]
    asked: Asked


class Placement(NamedTuple):
    """The placement of one parameter tensor: a rank has `shard` of `whole`, its unsharded shape.

    entry   the leaf on the rank, with the number of its copies there
    times   copies of the leaf in the unsharded stage (ep distributes those of experts)
    dim     the sharded dimension; None: the ranks of `axis` all have the tensor
    axis    the axis of the layout that may shard it: tp, or etp of routed experts
    pieces  number of shards; their sum exceeds the whole if it is padded, or if several ranks have the same rows of a
            packed projection (Mamba-2's B and C)
    alike   ranks of the axis that have the same shard
    """

    entry: Entry
    weight: str
    whole: tuple[int, ...]
    shard: tuple[int, ...]
    times: int
    dim: int | None
    axis: str
    pieces: int
    alike: int


class Sharding:
    """A model's ranks under many layouts; trees are built once. `serving`: degrees for training are refused.

    `offload` gives the part of the model in RAM: groups of layers end where it ends, and stages have equal numbers of
    layers without those in RAM. `pads`, `slices` and `copies` as in `Ways`.

    A rank's tree has all rows of its weights, and all positions of its sequences: `planning.training` shards weights
    over fsdp, and positions over cp and sp; the tree has the collectives of sp.
    """

    def __init__(
        self,
        model: Model,
        serving: bool = False,
        offload: Offload | None = None,
        pads: int = 1,
        slices: bool = False,
        copies: bool = False,
    ) -> None:
        self.model, self.serving, self.offload = model, serving, offload
        self.pads, self.slices, self.copies = pads, slices, copies
        self.outside = offload.layers if offload else 0
        # Layers that a pipeline can partition; 0 if it cannot.
        self.layers = sum(group.count for group in cast(Stack, model.root).groups) if model.root.cuttable else 0
        self.has_experts = any(layer.experts for layer in model.description.layers)
        self._ranks: dict[tuple[int, int, int, int], RankShare] = {}
        self._stages: dict[Layout, tuple[PipelineStage, ...]] = {}
        self._faults: dict[Layout, list[Fault | str]] = {}

    def stages(self, layout: Layout) -> tuple[PipelineStage, ...]:
        """The distinct stages of a layout. Errors: `InputError` with every reason why it is impossible."""
        if faults := self.faults(layout):
            raise InputError(f"layout {layout}", faults)
        key = layout.replica
        if key not in self._stages:
            share = self._rank(layout)
            self._stages[key] = tuple(_stages(share.root, layout, share.asked, self.outside))
        return self._stages[key]

    def placements(self, layout: Layout, stage: int = 0) -> list[Placement]:
        """Every tensor on a rank of one of `stages`, in the order of its ledger.

        Errors: `InputError` with every reason why the layout is impossible.
        """
        sharded = self.stages(layout)[stage]
        unsharded = list(_stages(self.model.root, layout, {}))[stage]
        work = self.model.workload()
        full, shards = ([e for e in walk(stage.root, work) if e.leaf.params] for stage in (unsharded, sharded))
        return [
            _placement(entry, shard, tensors, layout)
            for entry, shard in zip(full, shards, strict=True)
            for tensors in zip(entry.leaf.weights(), shard.leaf.weights(), strict=True)
        ]

    def notes(self, layout: Layout) -> tuple[str, ...]:
        """Notes on replicated and padded tensors."""
        return tuple(self._rank(layout).notes)

    def faults(self, layout: Layout) -> list[Fault | str]:
        """Why the model does not allow a layout; [] if it does."""
        if layout not in self._faults:
            self._faults[layout] = self._find_faults(layout)
        return self._faults[layout]

    def _find_faults(self, layout: Layout) -> list[Fault | str]:
        if invalid := layout.invalid_degrees():
            return invalid
        faults = layout.faults() + (serving_faults(layout) if self.serving else [])
        if self.offload and self.offload.cuts and layout.gpus != layout.pp:
            expected = "only pp: with layers or experts in RAM, llama.cpp splits the others by layer"
            faults.append(Fault("layout", str(layout), expected))
        for name in () if self.has_experts else ("etp",) if self.serving else ("ep", "etp"):
            if (ways := getattr(layout, name)) not in (1, None):
                faults.append(Fault(name, ways, "1: the model has no experts"))
        stages, most = layout.pp * layout.vpp, self.layers - self.outside
        if stages > 1 and not self.layers:
            faults.append(Fault("pp", layout.pp, UNCUT))
        elif stages > max(1, most):
            key = "pp" if layout.vpp == 1 else "pp · vpp"
            faults.append(Fault(key, stages, f"at most the {most} layers"))
        return faults or self._rank(layout).faults

    def layouts(self, gpus: int, fixed: Mapping[str, int] | None = None) -> Iterator[Layout]:
        """Every layout of `gpus` accelerators that the model and the `fixed` degrees allow, over tp, pp and dp. Experts
        are sharded like other layers (ep = 1) or distributed over a whole stage; etp is only used if fixed."""
        sizes = fixed or {}

        def of(name: str, number: int) -> Iterable[int]:
            return divisors(number) if name not in sizes else (sizes[name],) if number % sizes[name] == 0 else ()

        for tp in of("tp", gpus):
            for pp in of("pp", gpus // tp):
                dp = gpus // tp // pp
                spread = {1, tp * dp} if self.has_experts else {1}
                for ep in (sizes["ep"],) if "ep" in sizes else sorted(spread):
                    layout = Layout(tp=tp, pp=pp, dp=dp, ep=ep, etp=sizes.get("etp"))
                    if sizes.get("dp", dp) == dp and not self.faults(layout):
                        yield layout

    def _rank(self, layout: Layout) -> RankShare:
        key = (layout.tp, layout.ep, layout.expert_ways, layout.sp)
        if key not in self._ranks:
            tp, ep, etp, sp = key
            ways = Ways(tp, ep, etp, sp=sp > 1, pads=self.pads, slices=self.slices, copies=self.copies)
            root = self.model.root.shard(ways) if max(key) > 1 else self.model.root
            root = split_groups(root, self.offload.cuts) if self.offload else root
            self._ranks[key] = RankShare(root, ways.faults, ways.notes, {})
        return self._ranks[key]


def _placement(whole: Entry, share: Entry, tensors: tuple[Weight, Weight], layout: Layout) -> Placement:
    tensor, shard = tensors
    axis, ways = ("etp", layout.expert_ways) if share.routed else ("tp", layout.tp)
    dims = [dim for dim, (n, n_shard) in enumerate(zip(tensor.shape, shard.shape, strict=True)) if n != n_shard]
    dim = dims[0] if dims else None
    pieces, remainder = divmod(tensor.shape[dim], shard.shape[dim]) if dim is not None else (1, 0)
    if remainder or ways % pieces:
        pieces = ways
    return Placement(share, shard.name, tensor.shape, shard.shape, whole.times, dim, axis, pieces, ways // pieces)


def sizes(layers: int, pieces: int) -> list[int]:
    """Layers of each piece of a pipeline: equal, or with a remainder one more in each of the pieces before the last."""
    counts = [layers // pieces] * pieces
    for i in range(layers % pieces):
        counts[-2 - i] += 1
    return counts


def piece(root: Stack, layers: Iterable[int], first: bool, last: bool) -> Stack:
    """The stack with only these layers, and the parts before all layers if `first`, and after them if `last`."""
    numbers = frozenset(layers)
    groups = (
        group._replace(indices=indices, count=len(indices))
        for group in root.groups
        if (indices := tuple(i for i in group.indices if i in numbers))
    )
    head = root.head if last else None
    if head and head.projection and head.projection.tied and not first:  # the embedding is on another accelerator
        head = replace(head, projection=replace(head.projection, tied=False))
    return replace(
        root,
        embedding=root.embedding if first else None,
        groups=tuple(groups),
        final_norm=root.final_norm if last else None,
        contacts=root.contacts if last else None,
        angles=root.angles if first else None,
        idle=root.idle if last else None,
        pooler=root.pooler if last else None,
        head=head,
    )


def split_groups(root: Root, cuts: Iterable[int]) -> Stack:
    """The same layers, with groups of equal layers split at the cuts; a tied head gets its own weights."""
    stack, head = cast(Stack, root), cast(Stack, root).head
    groups = list(stack.groups)
    for split in cuts:
        sides = (
            (group, tuple(i for i in group.indices if (i < split) is before))
            for group in groups
            for before in (True, False)
        )
        groups = [group._replace(indices=indices, count=len(indices)) for group, indices in sides if indices]
    if head and head.projection and head.projection.tied:
        head = replace(head, projection=replace(head.projection, tied=False))
    return replace(stack, groups=tuple(groups), head=head)


def _stages(root: Root, layout: Layout, request: Asked, outside: int = 0) -> Iterator[PipelineStage]:
    """The distinct stages. The first `outside` layers are additional ones of the first stage."""
    if layout.pp == 1:
        yield PipelineStage(0, 1, root, request)
        return
    stages: dict[Any, list[Any]] = {}
    for number, layers in enumerate(_layers_of_stages(root, layout, outside)):
        share = piece(cast(Stack, root), layers, number == 0, number == layout.pp - 1)
        kinds = {group.name: group.count for group in share.groups}
        stages.setdefault((number == 0, number == layout.pp - 1, *kinds.items()), [number, 0, share])[1] += 1
    for number, copies, share in stages.values():
        yield PipelineStage(number, copies, _with_transfers(share, layout, number, layout.tp), request)


def stage(root: Root, layout: Layout, number: int, tp: Num) -> Stack:
    """The tree of stage `number`, from a rank's tree in numbers or letters; `tp` as in that tree."""
    indices = list(_layers_of_stages(root, layout, 0))[number]
    return _with_transfers(piece(cast(Stack, root), indices, number == 0, number == layout.pp - 1), layout, number, tp)


def _layers_of_stages(root: Root, layout: Layout, outside: int) -> Iterator[Iterable[int]]:
    """The indices of every stage's layers: contiguous, or with vpp above 1 those of every pp-th of pp · vpp pieces
    (Narayanan et al. 2021, section 2.2)."""
    layers = sum(len(group.indices) for group in cast(Stack, root).groups) - outside
    ends = list(accumulate(sizes(layers, layout.pp * layout.vpp), initial=outside))
    pieces = [range(start, end) for start, end in pairwise([0, *ends[1:]])]
    return (chain(*pieces[number :: layout.pp]) for number in range(layout.pp))


def _with_transfers(share: Stack, layout: Layout, number: int, tp: Num) -> Stack:
    """A stage with its receives and sends: the first piece receives nothing, and the last one sends nothing."""
    receives, sends = layout.vpp - (number == 0), layout.vpp - (number == layout.pp - 1)
    axis = Axis("pp", layout.pp)
    receive = Receive(width=share.d_model, axis=axis, sharers=tp) if receives else None
    send = Send(width=share.d_model, axis=axis, sharers=tp) if sends else None
    return replace(share, receive=receive, receives=receives, send=send, sends=sends)


def sharding_of(model: Model, padded: int, **rules: Any) -> tuple[Sharding, tuple[str, ...]]:
    """The sharding of a model whose vocabulary is first padded to a multiple of `padded`, and notes on that; built once
    for all recipes of the same rules."""
    shardings: dict[Any, tuple[Sharding, tuple[str, ...]]] = model.memo.setdefault("shardings", {})
    key = padded, *sorted(rules.items())
    if key not in shardings:
        vocabulary = Ways(pads=padded)
        whole = replace(model, root=model.root.shard(vocabulary)) if padded > 1 else model
        shardings[key] = Sharding(whole, **rules), tuple(vocabulary.notes)
    return shardings[key]


@lru_cache(maxsize=256)
def own_logits(root: Root) -> Root:
    """The tree without the all-gather of logits: each rank has those of its own rows of the vocabulary."""
    stack = root.stacks[-1]
    if stack.head is None:
        return root
    bare = replace(stack, head=replace(stack.head, join=None))
    model = cast(Any, root)
    fields = {name: bare for name in model.__struct_fields__ if getattr(model, name) is stack}
    return cast(Root, replace(model, **fields)) if fields else bare
