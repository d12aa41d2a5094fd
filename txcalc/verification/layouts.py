"""Verifies a layout against PyTorch's own sharding: parameters, gradients, optimizer state, saved tensors, collectives
and micro-batches in flight of every kind of rank, to the byte.

Layers are folded: one of each kind is run, then one more of each; the rest are multiples of the difference, which a
third layer confirms. What PyTorch does not implement is not compared, and a note says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from txcalc.errors import InputError
from txcalc.model import Model
from txcalc.planning.training import Recipe, in_flight, memory
from txcalc.planning.training.collectives import KINDS, without_tp_style
from txcalc.planning.training.memory import RankPeak, Ranks, figures
from txcalc.planning.training.stages import Pipeline
from txcalc.units import bits_of
from txcalc.verification.parallel import RankJob, check, measure, micro_batches_in_flight, with_layer_counts
from txcalc.verification.saved import claims
from txcalc.verification.verdict import CheckedRow, Verdict, check_equal

FAKE, SCHEDULE = "torch on a fake process group", "torch's schedule"
COMPARED = ("parameters", "adapters", "gradients", "optimizer", "saved", "saved again", "saved by the loss")


class _Point(NamedTuple):
    """A rank's piece, its number of layers of each kind, and the point's purpose."""

    piece: int
    counts: tuple[int, ...]


def verify_layout(model: Model, recipe: Recipe, ranks: int | None = None, affine: bool = True) -> Verdict:
    """Predicts and measures every distinct rank of a layout (at most `ranks` per stage: the first and the last);
    `affine`: also checks that a third layer adds as much as the second.

    Errors: `NoParallel` where torch lacks what is needed; `InputError` for an invalid recipe, or one of another
    framework.
    """
    check()
    plan = memory(model, recipe)
    _provable(model, recipe)
    pipeline = Pipeline(model, recipe)
    verdict = Verdict(f"{model.name}, {recipe.layout}")
    for stage in range(recipe.layout.pp):
        every_rank = [rank for rank in plan.ranks if rank.stage == stage]
        chosen = every_rank if ranks is None else [*every_rank[:-1][: ranks - 1], every_rank[-1]]
        for rank in chosen:
            verdict.rows += _rows(model, recipe, pipeline, rank, affine=affine and rank is chosen[0] and stage == 0)
    if recipe.layout.pp > 1:
        verdict.rows += _in_flight_rows(recipe)
    verdict.notes += _notes(model, recipe, plan)
    return verdict


def _provable(model: Model, recipe: Recipe) -> None:
    """Errors: `InputError` with everything that PyTorch does not implement, and that is therefore modelled."""
    recipe.check()
    faults = []
    if not recipe.rules.dtensor:
        faults.append(
            f"--framework {recipe.framework} is modelled from its source; fsdp2 is what torch itself can show"
        )
    if recipe.recompute != "none" and not model.root.single_stack:
        faults.append(f"--recompute {recipe.recompute}: an encoder's result is kept by every layer that reads it")
    if recipe.packed:
        faults.append(f"frozen={recipe.frozen}: weights that another library packs are modelled")
    if recipe.offload != "none":
        faults.append(f"offload {recipe.offload}: what the host holds, and when it moves, is modelled")
    if recipe.regather is not None:
        faults.append("regather: torch keeps what it gathered")
    if recipe.keep_scores:
        faults.append("keep_scores: how often single operations keep the scores is modelled; a fused kernel is proved")
    if recipe.layout.tp > 1 and len(model.root.stacks) > 1:
        faults.append(
            f"tp = {recipe.layout.tp} of two stacks is modelled: torch's styles hold a table twice if both share it, "
            "and sum the gradient of the first one's result for every projection that reads it; fsdp=N is proved"
        )
    faults += _of_experts(model, recipe)
    if recipe.layout.sp > 1 and (reader := _whole_positions(model)):
        faults.append(f"sp = {recipe.layout.sp}: {reader} all positions at once, which is modelled: sp=1")
    dtypes = {name: getattr(recipe, name) for name in ("parameter", "gradient", "compute", "reduce", "adapter")}
    faults += [
        f"{name}={dtype}: weights and gradients of other than 16 or 32 bits are modelled"
        for name, dtype in dtypes.items()
        if dtype and bits_of(dtype) not in (16, 32)
    ]
    if recipe.shards == 1 and not recipe.packed and len(_widths(model, recipe)) > 1:
        faults.append("without fsdp torch computes in the weights' dtype: give all the same (--recipe parameter=bf16)")
    if recipe.shards == 1 and recipe.layout.dp > 1:
        faults.append("dp without fsdp: DistributedDataParallel's buckets are modelled; fsdp=N is proved")
    if recipe.layout.cp > 1 and recipe.context != "ring":
        faults.append(f"context {recipe.context}: what its ranks exchange is modelled; --torchrun runs it")
    if faults:
        raise InputError("verify --layout", faults)


def _widths(model: Model, recipe: Recipe) -> set[int]:
    """Bytes per element of weights, and of what is computed with them."""
    widths = {recipe.compute_bytes, recipe.parameter_bytes}
    if any(entry.kind == "adapters" for entry in model.ledger()):
        widths = {recipe.compute_bytes, recipe.adapter_bytes}
        widths.add(bits_of(recipe.frozen) // 8 if recipe.frozen else recipe.parameter_bytes)
    return widths


def _whole_positions(model: Model) -> str:
    """What reads positions that sequence parallel splits as a whole, for which torch has no style; "" if nothing."""
    stack = model.root.stacks[-1]
    if stack.embedding is not None and stack.embedding.tokens is None:
        return "patches of a picture, or sound, are embedded at"
    return "the head reads" if stack.head is not None and not stack.head.position_wise else ""


def _of_experts(model: Model, recipe: Recipe) -> Iterator[str]:
    layout = recipe.layout
    ranks = recipe.shards * layout.tp
    if ranks % layout.expert_group:
        group = layout.expert_group
        yield f"ep · etp = {group} is no divisor of tp · fsdp · cp = {ranks}: each copy of dp has all experts"
    if layout.exchanges and recipe.shards == 1:
        yield "without fsdp the gradients of experts outside tp's ranks are not summed"
    if layout.exchanges and layout.tp > layout.sp:
        if recipe.local_tokens % layout.tp:
            yield f"{recipe.local_tokens} tokens are no multiple of tp, whose ranks send a share each to the experts"
        if any(entry.duty == "widens" for entry in model.ledger()):
            yield "experts on a latent that are sent tokens, beside tp without sp: what is gathered behind is modelled"


def _rows(model: Model, recipe: Recipe, pipeline: Pipeline, rank: RankPeak, affine: bool) -> Iterator[CheckedRow]:
    pieces = pipeline.of_stage(rank.stage)
    models = {piece.number: replace(model, root=pipeline.root(piece.number)) for piece in pieces}
    foldable = recipe.recompute in ("none", "core", "blocks")  # else layers differ by index
    points = [p for n, part in models.items() for p in (_points(n, part, affine) if foldable else [_Point(n, ())])]
    local = replace(recipe, accumulation=max(1, recipe.accumulation))
    jobs = [RankJob(with_layer_counts(models[p.piece], p.counts), local, rank.rank) for p in points]
    (results,) = measure([jobs])
    measured = dict(zip(points, results, strict=True))
    totals = [_sum_layers(number, part, measured) for number, part in models.items()]
    where, path = f"{recipe.layout}", f"rank {rank.rank}"
    total = sum(totals, Counter[str]())
    total["saved again"] = max(table["saved again"] for table in totals)
    predicted = figures(model, recipe, pipeline, rank)
    for name in [*COMPARED, *sorted((predicted.keys() | total.keys()) - {*COMPARED})]:
        if name == "saved to route":
            continue
        if name in ("saved", "saved again") and not all(_claimed(part, recipe) for part in models.values()):
            continue
        if predicted[name] or total[name]:
            quantity = name.removesuffix(" bytes") + ("" if name in KINDS else ", bytes")
            yield check_equal(path, quantity, predicted[name], total[name], FAKE, where)._replace(copies=rank.count)
    yield from _affine(measured) if affine else ()


def _claimed(model: Model, recipe: Recipe) -> bool:
    """Whether all saved activations are claimed, except what experts save for routing."""
    ledger = model.ledger(recipe.micro_batch, recipe.local_tokens, keep_scores=recipe.keep_scores)
    return claims(ledger, ignored=("experts",))


def _points(number: int, model: Model, affine: bool) -> Iterator[_Point]:
    """One layer of each kind; one more of each kind that has more; three of the first such kind, to show that the
    growth is linear."""
    root = model.root.single_stack
    if root is None:
        yield _Point(number, ())
        return
    counts = [group.count for group in root.groups]
    if any(group.shared for group in root.groups):
        yield _Point(number, tuple(counts))
        return
    single = tuple(min(1, n) for n in counts)
    yield _Point(number, single)
    for i, n in enumerate(counts):
        for copies in (2, 3) if affine else (2,):
            if n >= copies:
                yield _Point(number, (*single[:i], copies, *single[i + 1 :]))


def _sum_layers(number: int, model: Model, measured: Mapping[_Point, Counter[str]]) -> Counter[str]:
    """The total over all layers of a piece."""
    points = [point for point in measured if point.piece == number]
    base = measured[points[0]]
    total = Counter(base)
    root = model.root.single_stack
    for i, group in enumerate(root.groups if root and points[0].counts else ()):
        if group.count > points[0].counts[i]:
            counts = points[0].counts
            doubled = measured[_Point(number, (*counts[:i], 2, *counts[i + 1 :]))]
            for name in {*doubled, *base}:
                total[name] += (group.count - 1) * (doubled[name] - base[name])
    return total


def _affine(measured: Mapping[_Point, Counter[str]]) -> Iterator[CheckedRow]:
    """Whether a third layer adds as much as the second."""
    for point, third in measured.items():
        if 3 in point.counts:
            i = point.counts.index(3)
            fewer = [point._replace(counts=(*point.counts[:i], n, *point.counts[i + 1 :])) for n in (1, 2)]
            if not all(smaller in measured for smaller in fewer):  # layers that share weights are run all at once
                continue
            first, second = (measured[smaller] for smaller in fewer)
            expected = {name: 2 * second[name] - first[name] for name in {*first, *second, *third}}
            linear = all(third[name] == size for name, size in expected.items())
            total, where = sum(expected.values()), "a layer of each kind and two more"
            yield CheckedRow("a third layer", "sum of all of these", total, third.total(), linear, FAKE, where)


def _in_flight_rows(recipe: Recipe) -> Iterator[CheckedRow]:
    for stage, counted in enumerate(micro_batches_in_flight(recipe)):
        expected = tuple(sorted(in_flight(recipe, stage)))
        path, where = f"stage {stage}", f"{recipe.accumulation} micro-batches, {recipe.schedule}"
        predicted, measured = (max(map(sum, numbers)) for numbers in (expected, counted))
        same = expected == counted
        yield CheckedRow(path, "micro-batches in flight", predicted, measured, same, SCHEDULE, where)


def _notes(model: Model, recipe: Recipe, plan: Ranks) -> list[str]:
    notes = [
        "proved for this layout: parameters, gradients, optimizer state, saved tensors, collectives; modelled: "
        "gathered weights, buffers, the loss's temporaries, the time of the peak, and reserved memory",
        "norms and attention as their fused kernels keep: the input and one or two fp32 numbers per row",
    ]
    if not _claimed(model, recipe):
        notes.append("saved tensors: not compared, a part of this model is only modelled there")
    if recipe.layout.ep > 1:
        notes.append(
            "ep: every choice of a token is sent, evenly to all experts; how many go to each is told beside that"
        )
    if recipe.layout.tp > 1 and any(without_tp_style(piece) for piece in Pipeline(model, recipe).pieces):
        notes.append(
            "tp: torch has no style for some branches; its DTensors hold and join them, each rank runs its own share"
        )
    if recipe.layout.cp > 1:
        notes.append("cp: state and what is kept of a rank's own tokens; torch's context parallel needs a GPU")
    if len(plan.ranks) > 1:
        notes.append(f"{len(plan.ranks)} kinds of ranks among {recipe.layout.gpus:,}")
    return notes
