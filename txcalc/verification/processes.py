"""Runs a layout on real processes: loss and gradients must equal those of one process, and bytes the prediction.

A few processes on gloo (or NCCL, with a GPU each) run one step of a small model in fp32 with torch's own sharding,
collectives and schedules. Every process also runs the full step alone. It sums in another order, so results must agree
to `TOLERANCE` of the largest element, and gradients whose terms cancel to `ROUNDING` of the largest gradient.

Under torchrun (RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set) each process is one rank; otherwise processes are
started here.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from math import prod
from multiprocessing.pool import Pool
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor, nn

from txcalc.errors import InputError
from txcalc.model import Model
from txcalc.planning.layout import Layout
from txcalc.planning.training import Recipe, rank_of
from txcalc.planning.training.collectives import KINDS, collectives
from txcalc.planning.training.stages import Pipeline
from txcalc.planning.training.timeline import number
from txcalc.reference import build, inputs, mode
from txcalc.verification import context
from txcalc.verification.branches import NoParallel, raising_no_parallel
from txcalc.verification.parallel import (
    build_sharded,
    check,
    loss_parallel,
    make_optimizer,
    make_schedule,
    meshes,
    rank_state_bytes,
    start_processes,
)
from txcalc.verification.rank_recorder import Collectives
from txcalc.verification.verdict import CheckedRow, Verdict, check_equal

TIMEOUT = 300  # seconds; longer means a deadlock
ROUNDING = 2**-24  # of fp32, relative: terms of the largest gradient that cancel leave this much
TOLERANCE = 2e-5  # of the largest element: fp32 rounds to 6e-8, and sums of some hundred terms change their order
MAX_PARAMS = 200_000_000  # every process also holds the full model
RECOMPUTED = "modules computed again"


class RecomputeMarker:
    """A context that adds a module to `modules` when it is recomputed. A schedule may enter it twice: the second time
    for the gradients of weights."""

    def __init__(self, modules: set[nn.Module], module: nn.Module) -> None:
        self.modules, self.module = modules, module

    def __enter__(self) -> None:
        self.modules.add(self.module)

    def __exit__(self, *_: object) -> None: ...


class RankResult(NamedTuple):
    """One rank's losses (None except on the last stage), largest differences of gradients, bytes, and the number of
    recomputed modules."""

    rank: int
    full_loss: float
    loss: float | None
    gradients: dict[str, float]
    bytes: dict[str, int]


def verify_real(
    model: Model, recipe: Recipe, processes: int, device: str = "cpu", pool: Pool | None = None
) -> Verdict | None:
    """Verifies one step of a layout on `processes` processes; under torchrun, returns None on every rank but the first.
    A `pool` of at least as many processes is used if given; with tp or ep only once, since DTensor caches meshes by
    shape.

    Errors: `InputError` for what cannot run on processes, `NoParallel` if ranks fail or deadlock.
    """
    check()
    recipe = replace(recipe, parameter="fp32", compute="fp32", reduce="fp32")
    recipe.check()
    _check_runnable(model, recipe, processes)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        gathered = _run_on_rank(model, recipe, rank, world, device, gather=True)
        return _verdict(model, recipe, gathered) if gathered else None
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        free_port = int(server.getsockname()[1])
    with nullcontext(pool) if pool else start_processes(processes) as ranks:
        jobs = [
            ranks.apply_async(_run_rank, (model, recipe, rank, processes, free_port, device))
            for rank in range(processes)
        ]
        try:
            results = [job.get(TIMEOUT) for job in jobs]
        except multiprocessing.TimeoutError:
            ranks.terminate()
            raise NoParallel(f"{recipe.layout}: after {TIMEOUT} s ranks still wait for each other") from None
    return _verdict(model, recipe, results)


def _check_runnable(model: Model, recipe: Recipe, processes: int) -> None:
    layout, faults = recipe.layout, list[str]()
    if layout.gpus != processes:
        faults.append(f"--torchrun {processes} is not the {layout.gpus} ranks of {layout}")
    if not recipe.rules.dtensor:
        faults.append("runs only fsdp, tp, pp, sp and ep of torch itself, no other framework")
    if layout.cp > 1:
        faults += context.faults(model, recipe)
    if layout.exchanges and (layout.expert_ways > 1 or recipe.shards == 1):
        faults.append(
            "token dispatch is run only to unsharded experts over the ranks of fsdp and tp; --layout verifies others"
        )
    if layout.dp > 1 and recipe.shards == 1:
        faults.append("dp without fsdp is DistributedDataParallel, which is not run: fsdp=N")
    if layout.tp > 1 and any(entry.kind == "recurrent" for entry in model.ledger()):
        faults.append("tp of recurrent mixers: a packed projection is split part by part, and torch splits it as one")
    if layout.tp > 1:
        over_all = dict.fromkeys(entry.leaf.of_all for entry in model.ledger() if entry.leaf.of_all)
        faults += [f"tp of {operation}: each rank would take only its own share" for operation in over_all]
    if layout.pp > 1 and layout.tp > 1:
        faults.append("pp with tp is not run with values; --layout without --torchrun verifies its bytes")
    if recipe.frozen or recipe.adapter:
        faults.append("runs everything in fp32: no format of frozen weights, no dtype of adapters")
    if model.params > MAX_PARAMS:
        faults.append(f"every process holds the full model: at most {MAX_PARAMS:,} parameters, {model.name} has more")
    root = model.root.single_stack
    if root is None or root.head is None or root.embedding is None:
        faults.append("runs only decoders of tokens with a head")
    elif root.pooler is not None:
        faults.append("a pooler has no gradient, since the head's loss does not read it")
    elif layout.pp > 1 and root.head.projection and root.head.projection.tied:
        faults.append("a tied matrix is in two stages, and its gradients are not summed here: head.tied = false")
    if faults:
        raise InputError("verify --torchrun", faults)


def _run_rank(model: Model, recipe: Recipe, rank: int, world: int, port: int, device: str) -> RankResult:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
    (result,) = _run_on_rank(model, recipe, rank, world, device)
    return result


def _run_on_rank(
    model: Model, recipe: Recipe, rank: int, world: int, device: str, gather: bool = False
) -> list[RankResult]:
    """Runs this rank's share of a step, and the full step alone; with `gather`, returns all ranks' results on the first
    rank, [] on others."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rank_device = torch.device(device)
    if device == "cuda":
        rank_device = torch.device(device, int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(rank_device)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=rank, world_size=world)
    try:
        with raising_no_parallel(f"rank {rank} of {recipe.layout}"):
            result = _step(model, recipe, rank, rank_device)
            if not gather:
                return [result]
            results: list[Any] | None = [None] * world if rank == 0 else None
            dist.gather_object(result, results)
            return results or []
    finally:
        dist.destroy_process_group()


def _step(model: Model, recipe: Recipe, rank: int, device: torch.device) -> RankResult:
    layout = recipe.layout
    torch.manual_seed(0)
    full_net = build(model, device=device)
    (ids,) = inputs(model, recipe.global_batch, recipe.tokens, device=device)
    assert model.vocab_size is not None
    labels = torch.randint(model.vocab_size, ids.shape, device=device)
    mesh = meshes(recipe, device.type)
    full_loss = _loss(full_net(ids), labels)
    full_loss.backward()
    truth = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in full_net.named_parameters()}
    replica, cp_rank = divmod(rank // layout.tp, layout.cp)
    ids, labels = (
        x.chunk(layout.copies)[replica % layout.copies].split(recipe.local_tokens, 1)[cp_rank] for x in (ids, labels)
    )
    group = _sequence(layout, rank) if layout.cp > 1 else None
    recorded, recomputed = Collectives(), set[nn.Module]()
    marker = partial(RecomputeMarker, recomputed)
    if layout.pp > 1:
        nets, loss = _run_pipeline(model, recipe, full_net, mesh, rank, ids, labels, device, marker)
    else:
        net = build_sharded(model, recipe, mesh, str(device), marker)
        _fill(net, dict(full_net.named_parameters()))
        nets = {"": net}
        if group:
            context.exchange(net, recipe, cp_rank, group)
        with mode(shares=layout.sp), recorded, loss_parallel(recipe):
            total = torch.zeros((), device=device)
            for part, targets in zip(*(x.split(recipe.micro_batch) for x in (ids, labels)), strict=True):
                gather = recipe.context == "allgather"
                cache = {"cache": context.RankCache(cp_rank, recipe.local_tokens, group, gather)} if group else {}
                part_loss = _loss(net(part, **cache), targets) / recipe.accumulation
                part_loss.backward()
                total += _full_tensor(part_loss.detach())
        loss = float(total)
    bytes_ = Counter({RECOMPUTED: len(recomputed)})
    worst: dict[str, float] = {}
    for prefix, net in nets.items():
        optimizer = make_optimizer(recipe, net)
        floor = ROUNDING / TOLERANCE * max(float(gradient.abs().max()) for gradient in truth.values())
        for name, p in net.named_parameters():
            if p.grad is not None:
                actual, expected = _full_tensor(p.grad), _value(net, name, truth, prefix)
                size = max(float(expected.abs().max()), floor)  # a key's bias, which softmax ignores, has only rounding
                worst[full_name(name, prefix)] = float((actual - expected).abs().max()) / size
        optimizer.step()
        bytes_ += rank_state_bytes(net, optimizer)
    if recipe.accumulation == 1:
        bytes_.update(recorded.counts)
    mean_loss = None if loss is None else _mean_loss(loss, recipe, mesh, device)
    return RankResult(rank, float(full_loss.detach()), mean_loss, worst, dict(bytes_))


def _sequence(layout: Layout, rank: int) -> Any:
    """The process group of the ranks that share a sequence."""
    groups = [dist.new_group(list(range(i, i + layout.cp))) for i in range(0, layout.gpus, layout.cp)]
    return groups[rank // layout.cp]


def _mean_loss(loss: float, recipe: Recipe, mesh: Any, device: torch.device) -> float:
    """The mean over the data-parallel ranks."""
    tensor = torch.tensor(loss, device=device, dtype=torch.float64 if device.type == "cpu" else torch.float32)
    for axis in ("dp", "fsdp"):
        if mesh[axis].size() > 1:
            dist.all_reduce(tensor, group=mesh[axis].get_group())
    return float(tensor) / recipe.layout.copies / recipe.layout.cp


def _loss(y: Any, labels: Tensor) -> Tensor:
    logits = y[0] if isinstance(y, tuple) else y
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


def _full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor, gathered from its shards."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@torch.no_grad()
def _fill(net: nn.Module, values: Mapping[str, Tensor], prefix: str = "") -> None:
    """Copies the full model's values into a rank's shards."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    for name, p in net.named_parameters():
        value = _value(net, name, values, prefix).detach()
        if isinstance(p, DTensor):
            axes = [i for i, placement in enumerate(p.placements) if getattr(placement, "dim", None) == 0]
            if len(axes) > 1 and p.shape[0] % (ranks := prod(map(p.device_mesh.size, axes))):
                reason = f"{name} has {p.shape[0]:,} rows, no multiple of its {ranks} ranks of tp and fsdp"
                raise NoParallel(f"{reason}: torch's distribute_tensor cannot shard them")
            shards = distribute_tensor(value.clone(), p.device_mesh, p.placements)
            p.to_local().copy_(shards.to_local())
        else:
            p.copy_(value)


def _value(net: nn.Module, name: str, values: Mapping[str, Tensor], first: str) -> Tensor:
    """The full model's value of a parameter; for stacked experts, a stack of theirs."""
    path, _, last = name.rpartition(".")
    owner: Any = net.get_submodule(path)
    if last not in getattr(owner, "stacked", {}):
        return values[full_name(name, first)]
    inner, numbers = owner.stacked[last], (number for number, _ in owner.routed.named_children())
    return torch.stack([values[full_name(f"{path}.routed.{number}.{inner}", first)] for number in numbers])


def full_name(name: str, first: str) -> str:
    """A parameter's name in the full model: the layers of a piece begin at number `first`."""
    kind, _, tail = name.partition(".")
    if kind != "layers" or not first:
        return name
    index, _, tail = tail.partition(".")
    return f"layers.{int(index) + int(first)}.{tail}"


def _run_pipeline(
    model: Model,
    recipe: Recipe,
    full_net: nn.Module,
    mesh: Any,
    rank: int,
    ids: Tensor,
    labels: Tensor,
    device: Any,
    marker: Callable[[nn.Module], RecomputeMarker],
) -> tuple[dict[str, nn.Module], float | None]:
    """Runs each piece of this rank under torch's own schedule; returns the loss on the rank of the last piece."""
    from torch.distributed.pipelining.stage import PipelineStage

    pipeline, layout = Pipeline(model, recipe), recipe.layout
    stage, total = rank // (layout.copies * layout.tp), layout.pp * recipe.pieces
    single_stage = replace(recipe, layout=layout.replace(pp=1, vpp=1), stages=None)
    nets: dict[str, nn.Module] = {}
    stages = []
    for piece in range(recipe.pieces):
        index = number(recipe, stage, piece)
        first = str(sum(pipeline.sizes[:index]))
        part = replace(model, root=pipeline.root(index))
        net = build_sharded(part, single_stage, mesh, str(device), marker)
        _fill(net, dict(full_net.named_parameters()), first)
        nets[first] = net
        stages.append(PipelineStage(net, index, total, device, group=mesh["pp"].get_group()))
    schedule = make_schedule(recipe, stages, _loss)
    last = any(stage.is_last for stage in stages)
    losses: list[Tensor] = []
    inputs_of_rank = (ids,) if any(stage.is_first for stage in stages) else ()
    schedule.step(*inputs_of_rank, **({"target": labels, "losses": losses} if last else {}))
    return nets, float(torch.stack([loss.detach() for loss in losses]).mean()) if last else None


def _verdict(model: Model, recipe: Recipe, results: list[RankResult]) -> Verdict:
    verdict = Verdict(f"{model.name}, {recipe.layout}, {len(results)} processes")
    verdict.rows += [row for result in results for row in compared_rows(model, recipe, result)]
    verdict.notes += [
        f"values: losses and gradients in fp32, equal to one process to {TOLERANCE:g} of the largest element",
        "every rank finished its step: no deadlock in collectives or schedule",
    ]
    if recipe.layout.pp > 1 or recipe.accumulation > 1:
        verdict.notes.append(
            "collectives: compared only for one micro-batch without a pipeline (--layout compares them)"
        )
    return verdict


def compared_rows(model: Model, recipe: Recipe, result: RankResult) -> Iterator[CheckedRow]:
    where, path = f"{recipe.layout}", f"rank {result.rank}"
    oracle = "torch on real processes"
    if result.loss is not None:
        near = abs(result.loss - result.full_loss) <= TOLERANCE * abs(result.full_loss)
        yield CheckedRow(path, "loss", f"{result.full_loss:.6f}", f"{result.loss:.6f}", near, oracle, where)
    for name, difference in result.gradients.items():
        if difference > TOLERANCE:
            yield CheckedRow(
                f"{path}, {name}", "gradient", "one process's", f"{difference:.1e} away", False, oracle, where
            )
    equal = sum(difference <= TOLERANCE for difference in result.gradients.values())
    count = len(result.gradients)
    yield CheckedRow(path, "gradients equal to one process's", count, equal, count == equal > 0, oracle, where)
    want: Counter[str] = Counter(rank_of(model, recipe, result.rank).state._asdict())
    want[RECOMPUTED] = _count_recomputed(model, recipe, result.rank)
    if recipe.layout.pp == 1 and recipe.accumulation == 1:
        pieces = Pipeline(model, recipe).of_stage(0)
        for kind, sent in collectives(pieces, recipe, result.rank % recipe.layout.tp).items():
            want[kind], want[f"{kind} bytes"] = sent
        if recipe.layout.cp > 1:
            want.update(context.exchanged_bytes(pieces[0], recipe))
    routed = {"all_to_all bytes"} if recipe.layout.ep > 1 else set()  # depends on the router, not even
    for name in sorted((want.keys() | result.bytes.keys()) - routed):
        if want[name] or result.bytes.get(name, 0):
            quantity = name.removesuffix(" bytes") + ("" if name in (*KINDS, RECOMPUTED) else ", bytes")
            yield check_equal(path, quantity, want[name], result.bytes.get(name, 0), oracle, where)


def _count_recomputed(model: Model, recipe: Recipe, rank: int) -> int:
    """Blocks or attention cores that backward recomputes on a rank; a module shared by layers counts once."""
    pieces = Pipeline(model, recipe).of_stage(rank // (recipe.layout.gpus // recipe.layout.pp))
    stack = model.root.single_stack
    sharing = [set(group.indices) for group in stack.groups if group.shared] if stack else []

    def modules(layers: set[int]) -> int:
        return len(layers.difference(*sharing)) + sum(not shared.isdisjoint(layers) for shared in sharing)

    if recipe.recompute == "core":
        cores = [leaf for piece in pieces for leaf in piece.leaves if leaf.entry.kind == "attention_core"]
        return sum(modules({*leaf.layers}) for leaf in cores)
    layers_by_piece = [{i for leaf in piece.leaves for i in leaf.layers} for piece in pieces]
    recomputed = recipe.recomputed(1 + max((i for layers in layers_by_piece for i in layers), default=-1))
    return sum(modules(layers & recomputed) for layers in layers_by_piece)
