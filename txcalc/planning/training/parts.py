"""A training step by part: as numbers on the fullest GPU of a layout, and as formulas for any part of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from txcalc.ledger import Entry, Ledger
from txcalc.model import Model
from txcalc.num import Num, ceil_div, exact_div, total
from txcalc.parts.model import Root
from txcalc.planning.gradients import passes, recomputed, saved_by_core
from txcalc.planning.parallelism import own_logits
from txcalc.planning.training.activations import recomputed as recomputed_indices, saved_by_kind
from txcalc.planning.training.collectives import local_kv_elements
from txcalc.planning.training.frameworks import FRAMEWORKS, Framework
from txcalc.planning.training.memory import RankPeak, memory
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import Pipeline, residual_leaves
from txcalc.planning.training.states import optimizer_bytes, rank_weights, stacked_experts, states


class StepCosts(NamedTuple):
    """The costs of a step for leaves of one kind on one rank.

    flops      of matrix products with dense attention: forward, backward and recomputation
    recomputed those of recomputation
    saved      bytes saved for backward, of all micro-batches in flight
    optimizer  bytes of optimizer state
    """

    flops: int
    recomputed: int
    saved: int
    optimizer: int


class StepParts(NamedTuple):
    """A rank, as in `memory`, and its parts by kind."""

    rank: RankPeak
    parts: dict[str, StepCosts]
    notes: tuple[str, ...]

    @property
    def total(self) -> StepCosts:
        return StepCosts(*map(sum, zip(*self.parts.values(), strict=True)))


def by_part(model: Model, recipe: Recipe) -> StepParts:
    """A step of the rank with the most memory. Errors: `InputError` as `memory`."""
    plan, pipeline, layout = memory(model, recipe), Pipeline(model, recipe), recipe.layout
    rank, pieces = plan.fullest, pipeline.of_stage(plan.fullest.stage)
    flops, recomputed_flops, saved, optimizer = (Counter[str]() for _ in StepCosts._fields)
    weights = [tensor for tensors in rank_weights(pieces, recipe, rank.column) for tensor in tensors]
    for kind in dict.fromkeys(tensor.kind for tensor in weights):
        weights_of_kind = [weight for weight in weights if weight.kind == kind]
        optimizer[kind] = states(weights_of_kind, recipe, 0, rank.column).optimizer  # the first shard is the largest
    for piece, flights in zip(pieces, rank.in_flight, strict=True):
        numbers = recomputed_indices(piece, recipe)
        for leaf in piece.leaves:
            of_step = leaf.flops(layout) * recipe.accumulation
            repeated = ceil_div(of_step * leaf.recomputed_in(recipe.recompute, numbers), len(leaf.layers) or 1)
            recomputed_flops[leaf.entry.kind] += repeated
            flops[leaf.entry.kind] += ceil_div(of_step * passes(leaf.entry), 1) + repeated
        for kind, size in saved_by_kind(piece, recipe, model.d_model).items():
            saved[kind] += size * flights
    columns = (flops, recomputed_flops, saved, optimizer)
    costs = {kind: StepCosts(*(column[kind] for column in columns)) for kind in {**saved, **optimizer}}
    return StepParts(rank, {kind: part for kind, part in costs.items() if any(part)}, (*plan.notes, *plan.sharding))


def rules_of(recipe: Recipe | None) -> dict[str, Any]:
    """A framework's rules for `Sharding` and `Ways`."""
    if recipe is None:
        return {}
    rules = recipe.rules
    return {"pads": 0 if rules.dtensor else rules.pads, "slices": recipe.regathers_inputs, "copies": not rules.relays}


class RankTree(NamedTuple):
    """One rank's share of a model, in numbers or letters.

    root     its tree, with unsharded weights and all positions of its sequences
    shards   ranks over which every weight is sharded, row by row
    sp, cp   ranks that share the positions between branches, and those of a sequence
    sliced   leaves (by `id`) that save only sp's share of the positions
    """

    root: Root
    shards: Num = 1
    sp: Num = 1
    cp: Num = 1
    sliced: frozenset[int] = frozenset()

    @classmethod
    def of(cls, root: Root, whole: Root, recipe: Recipe | None, shards: Num, sp: Num, cp: Num) -> RankTree:
        """From a rank's tree and the unsharded tree."""
        if recipe and recipe.loss_parallel:
            root = own_logits(root)
        sliced = {id(leaf) for leaf in residual_leaves(root)}
        if recipe and recipe.regathers_inputs:
            leaves, whole_leaves = (
                [leaf for leaf in tree.leaves() if leaf.role != "collective"] for tree in (root, whole)
            )
            pairs = zip(leaves, whole_leaves, strict=True)
            sliced |= {
                id(leaf) for leaf, full in pairs if leaf.matrix and full.matrix and leaf.matrix[0] == full.matrix[0]
            }
        return cls(root, shards, sp, cp, frozenset(sliced))

    def position_shards(self, entry: Entry | None) -> Num:
        """The number of ranks over which the positions that a leaf saves are sharded; None: a block's input."""
        return self.sp if entry is None or id(entry.leaf) in self.sliced else 1

    def exchanged(self, entry: Entry) -> Num:
        """Elements of keys and values that a rank sends around the ring of cp."""
        core = entry.kind == "attention_core" and entry.work is not None
        return (self.cp - 1) * local_kv_elements(entry, self.root.stacks[-1].d_model) * entry.runs if core else 0


def in_letters(
    recipe: Recipe, whole: Ledger, rank: RankTree, value: Callable[[Num], int]
) -> dict[str, Callable[[Ledger], Num]]:
    """Figures of parts of a rank's whole ledger that depend on the recipe, in numbers or letters: FLOPs of a step,
    elements saved for backward, bytes of optimizer state. A recomputed block's input counts for its first leaf; `value`
    evaluates an expression in letters. Recomputed layers are not folded with others."""
    core = recipe.recompute == "core"
    last = max((i for entry in whole for i in entry.numbers), default=-1)
    numbers = recipe.recomputed(last + 1)
    first: dict[str, Entry] = {}
    for entry in whole:
        inner = [i for i, step in enumerate(entry.steps) if step.duty == "layer"]
        if inner and entry.work is not None:
            first.setdefault(".".join(map(str, entry.steps[: inner[0] + 1])), entry)
    inputs = {(entry.name, id(entry.leaf)) for entry in first.values()}

    def recomputes(entry: Entry) -> bool:
        return recomputed(entry, "core") if core else not numbers.isdisjoint(entry.numbers)

    def saved(entry: Entry) -> Num:
        if entry.work is None:
            return 0
        if not recomputes(entry):
            elements = entry.leaf.saved_fused(entry.work) * entry.runs if recipe.rules.fused else entry.saved
            return exact_div(elements, rank.position_shards(entry))
        if core:
            return saved_by_core(entry) * entry.runs
        is_input = (entry.name, id(entry.leaf)) in inputs
        width = rank.root.stacks[-1].d_model
        return exact_div(entry.work.positions * width * entry.layers, rank.position_shards(None)) if is_input else 0

    def state(entry: Entry) -> Num:
        hidden = entry.kind != "norm" and entry.layer is not None
        learns, width = entry.gradient in ("both", "weights"), recipe.parameter_bytes
        shards = rank_tensors(entry, rank.shards, value, recipe.rules)
        return total(
            [
                copies * optimizer_bytes(shape, recipe, width, hidden and len(weight.shape) == 2, value)
                for weight, (copies, shape) in zip(entry.leaf.weights(), shards, strict=True)
                if learns
            ]
        )

    return {
        "training": lambda ledger: total([entry.flops * (passes(entry) + int(recomputes(entry))) for entry in ledger]),
        "saved": lambda ledger: total(map(saved, ledger)),
        "optimizer": lambda ledger: total(map(state, ledger)),
    }


def rank_tensors(
    entry: Entry, shards: Num, value: Callable[[Num], int], rules: Framework = FRAMEWORKS["fsdp2"]
) -> list[tuple[Any, tuple[Any, ...]]]:
    """For each of a leaf's weights, the number of tensors on the first rank, and their shape there with `shards` ranks
    (see `states`); `value` evaluates an expression in letters. An expert that is not stacked is sharded by rows."""
    experts, stacks = stacked_experts(entry, rules), entry.routed and rules.stacks
    axis, tensors = int(stacks and value(shards) > value(experts)), []
    for weight in entry.leaf.weights():
        shape = (experts, *weight.shape) if stacks else weight.shape
        if shards != 1:
            shape = (*shape[:axis], ceil_div(shape[axis], shards), *shape[axis + 1 :])
        tensors.append((exact_div(entry.times, experts), shape))
    return tensors
