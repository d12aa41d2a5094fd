"""Verifies a layout against PyTorch's own sharding: parameters, gradients, optimizer state, saved tensors, collectives
and micro-batches in flight of every kind of rank, to the byte.

Few layers are run: one of each kind, then one more of each. All layers follow by the difference between the two, which
a third layer confirms. A note lists what PyTorch does not implement and is therefore not compared.
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
    """A pipeline piece, and its number of layers of each kind (empty: all layers)."""

    piece: int
    counts: tuple[int, ...]


def verify_layout(model: Model, recipe: Recipe, ranks: int | None = None, affine: bool = True) -> Verdict:
    """Predicts and measures every distinct rank of a layout (at most `ranks` per stage: the first ones and the last).
    With `affine`, also checks that a third layer adds as much as the second.

    Errors: `NoParallel` if this torch lacks what is needed; `InputError` for an invalid recipe, or for another
    framework's.
    """
    check()
    plan = memory(model, recipe)
    _check_provable(model, recipe)
    pipeline = Pipeline(model, recipe)
    verdict = Verdict(f"{model.name}, {recipe.layout}")
    for stage in range(recipe.layout.pp):
        stage_ranks = [rank for rank in plan.ranks if rank.stage == stage]
        if ranks is not None:
            stage_ranks = [*stage_ranks[:-1][: ranks - 1], stage_ranks[-1]]
        for rank in stage_ranks:
            check_third = affine and stage == 0 and rank is stage_ranks[0]
            verdict.rows += _rows(model, recipe, pipeline, rank, affine=check_third)
    if recipe.layout.pp > 1:
        verdict.rows += _in_flight_rows(recipe)
    verdict.notes += _notes(model, recipe, plan)
    return verdict


def _check_provable(model: Model, recipe: Recipe) -> None:
    """Errors: `InputError` with everything in the recipe that is only modelled, since PyTorch does not implement it."""
    recipe.check()
    faults = []
    if not recipe.rules.dtensor:
        faults.append(f"--framework {recipe.framework} is modelled from its source; torch itself only runs fsdp2")
    if recipe.recompute != "none" and not model.root.single_stack:
        faults.append(f"--recompute {recipe.recompute}: every decoder layer would save the encoder's output")
    if recipe.packed:
        faults.append(f"frozen={recipe.frozen}: weights that another library packs are only modelled")
    if recipe.offload != "none":
        faults.append(f"offload {recipe.offload}: host memory and its transfers are only modelled")
    if recipe.regather is not None:
        faults.append("regather: torch keeps gathered inputs")
    if recipe.keep_scores:
        faults.append("keep_scores: unfused attention's saved scores are only modelled; a fused kernel is proved")
    if recipe.layout.tp > 1 and len(model.root.stacks) > 1:
        faults.append(
            f"tp = {recipe.layout.tp} of two stacks is only modelled: torch's styles store a shared table twice, and "
            "all-reduce the gradient of the encoder's output for every projection that reads it; fsdp=N is proved"
        )
    faults += _expert_faults(model, recipe)
    if recipe.layout.sp > 1 and (reader := _reader_of_all_positions(model)):
        faults.append(f"sp = {recipe.layout.sp}: {reader} all positions at once, which is only modelled: sp=1")
    dtypes = {name: getattr(recipe, name) for name in ("parameter", "gradient", "compute", "reduce", "adapter")}
    faults += [
        f"{name}={dtype}: weights and gradients not of 16 or 32 bits are only modelled"
        for name, dtype in dtypes.items()
        if dtype and bits_of(dtype) not in (16, 32)
    ]
    if recipe.shards == 1 and not recipe.packed and len(_widths(model, recipe)) > 1:
        faults.append("without fsdp torch computes in the weights' dtype: choose one dtype (--recipe parameter=bf16)")
    if recipe.shards == 1 and recipe.layout.dp > 1:
        faults.append("dp without fsdp: DistributedDataParallel's buckets are only modelled; fsdp=N is proved")
    if recipe.layout.cp > 1 and recipe.context != "ring":
        faults.append(f"context {recipe.context}: its messages are only modelled; --torchrun runs it")
    if faults:
        raise InputError("verify --layout", faults)


def _widths(model: Model, recipe: Recipe) -> set[int]:
    """Bytes per element of the weights, and of computation."""
    widths = {recipe.compute_bytes, recipe.parameter_bytes}
    if any(entry.kind == "adapters" for entry in model.ledger()):
        widths = {recipe.compute_bytes, recipe.adapter_bytes}
        widths.add(bits_of(recipe.frozen) // 8 if recipe.frozen else recipe.parameter_bytes)
    return widths


def _reader_of_all_positions(model: Model) -> str:
    """What reads all positions at once, for which torch has no sequence-parallel style; "" if nothing does."""
    stack = model.root.stacks[-1]
    if stack.embedding is not None and stack.embedding.tokens is None:
        return "an embedding of images or audio reads"
    return "the head reads" if stack.head is not None and not stack.head.position_wise else ""


def _expert_faults(model: Model, recipe: Recipe) -> Iterator[str]:
    layout = recipe.layout
    ranks = recipe.shards * layout.tp
    if ranks % layout.expert_group:
        group = layout.expert_group
        yield f"ep · etp = {group} is no divisor of tp · fsdp · cp = {ranks}: each copy of dp has all experts"
    if layout.exchanges and recipe.shards == 1:
        yield "without fsdp the gradients of experts outside tp's ranks are not summed"
    if layout.exchanges and layout.tp > layout.sp:
        if recipe.local_tokens % layout.tp:
            yield f"{recipe.local_tokens} tokens are no multiple of tp, each rank of which dispatches a share of them"
        if any(entry.duty == "widens" for entry in model.ledger()):
            yield "tp without sp, with token dispatch to experts on a latent: the gather after them is only modelled"


def _rows(model: Model, recipe: Recipe, pipeline: Pipeline, rank: RankPeak, affine: bool) -> Iterator[CheckedRow]:
    pieces = pipeline.of_stage(rank.stage)
    models = {piece.number: replace(model, root=pipeline.root(piece.number)) for piece in pieces}
    foldable = recipe.recompute in ("none", "core", "blocks")  # else layers differ by index
    points = [p for n, part in models.items() for p in (_points(n, part, affine) if foldable else [_Point(n, ())])]
    jobs = [RankJob(with_layer_counts(models[p.piece], p.counts), recipe, rank.rank) for p in points]
    (results,) = measure([jobs])
    measured = dict(zip(points, results, strict=True))
    totals = [_sum_layers(number, part, measured) for number, part in models.items()]
    where, path, total = f"{recipe.layout}", f"rank {rank.rank}", sum(totals, Counter[str]())
    total["saved again"] = max(table["saved again"] for table in totals)
    predicted = figures(model, recipe, pipeline, rank)
    for name in [*COMPARED, *sorted((predicted.keys() | total.keys()) - {*COMPARED})]:
        if name == "saved to route":
            continue
        if name in ("saved", "saved again") and not all(_claims_saved(part, recipe) for part in models.values()):
            continue
        if predicted[name] or total[name]:
            quantity = name.removesuffix(" bytes") + ("" if name in KINDS else ", bytes")
            yield check_equal(path, quantity, predicted[name], total[name], FAKE, where)._replace(copies=rank.count)
    yield from _affine(measured) if affine else ()


def _claims_saved(model: Model, recipe: Recipe) -> bool:
    """Whether the ledger claims all saved activations, except what experts save for routing."""
    ledger = model.ledger(recipe.micro_batch, recipe.local_tokens, keep_scores=recipe.keep_scores)
    return claims(ledger, ignored=("experts",))


def _points(number: int, model: Model, affine: bool) -> Iterator[_Point]:
    """One layer of each kind; a second of each kind that has more; with `affine` also a third, to show that the growth
    is linear."""
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
    """Rows on whether a third layer adds as much as the second."""
    for point, third in measured.items():
        if 3 in point.counts:
            i = point.counts.index(3)
            fewer = [point._replace(counts=(*point.counts[:i], n, *point.counts[i + 1 :])) for n in (1, 2)]
            if not all(smaller in measured for smaller in fewer):  # layers with shared weights are all run together
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
        equal = expected == counted
        yield CheckedRow(path, "micro-batches in flight", predicted, measured, equal, SCHEDULE, where)


def _notes(model: Model, recipe: Recipe, plan: Ranks) -> list[str]:
    notes = [
        "proved for this layout: parameters, gradients, optimizer state, saved tensors, collectives; modelled: "
        "gathered weights, buffers, the loss's temporaries, the time of the peak, and reserved memory",
        "norms and attention save what their fused kernels save: the input and one or two fp32 numbers per row",
    ]
    if not _claims_saved(model, recipe):
        notes.append("saved tensors: not compared, since those of a part of this model are only modelled")
    if recipe.layout.ep > 1:
        notes.append("ep: tokens are dispatched evenly to all experts; messages with token counts are left out")
    if recipe.layout.tp > 1 and any(without_tp_style(piece) for piece in Pipeline(model, recipe).pieces):
        notes.append("tp: torch has no style for some branches: each rank runs its share, held and joined by DTensors")
    if recipe.layout.cp > 1:
        notes.append("cp: state and saved tensors of a rank's own tokens; torch's context parallel needs a GPU")
    if len(plan.ranks) > 1:
        notes.append(f"{len(plan.ranks)} kinds of ranks among {recipe.layout.gpus:,}")
    return notes
