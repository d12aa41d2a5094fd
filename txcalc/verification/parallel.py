"""What one rank stores and sends under PyTorch's own sharding, on fake tensors and a fake process group: any world
size, no device.

The only module that uses torch's private names (`PRIVATE`): a torch without them is refused. Each rank runs in its own
process, since a process group can be created only once.

    fully_shard on every block and on the root · ColwiseParallel, RowwiseParallel, SequenceParallel · PipelineStage
    under torch's schedules · an optimizer's step · collectives, with their bytes · saved_tensors_hooks
"""

from __future__ import annotations

import logging
import multiprocessing
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from multiprocessing.pool import Pool
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from txcalc.ledger import walk
from txcalc.model import Model
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import Pipeline
from txcalc.reference import inputs, mode
from txcalc.verification.branches import (
    DTYPE_OF_BYTES,
    NoParallel,
    build_in_dtypes,
    paths,
    plan,
    raising_no_parallel,
    shard_outside_branches,
    split_branches,
)
from txcalc.verification.experts import distribute_experts, stack_experts
from txcalc.verification.rank_recorder import Collectives, SavedStorages, shard_bytes

Context = Callable[[nn.Module], AbstractContextManager[Any]]

PRIVATE = (
    ("torch.testing._internal.distributed.fake_pg", "FakeStore"),
    ("torch._subclasses.fake_tensor", "FakeTensorMode"),
    ("torch.distributed.fsdp", "fully_shard"),
    ("torch.distributed.fsdp", "FSDPModule._get_fsdp_state"),
    ("torch.distributed.fsdp._fully_shard._fsdp_common", "ShardPlacementResult"),
    ("torch.distributed.fsdp._fully_shard._fsdp_init", "_get_mesh_info"),
    ("torch.distributed.tensor", "DTensor"),
    ("torch.distributed.tensor.parallel", "parallelize_module"),
    ("torch.distributed.pipelining.schedules", "_PipelineSchedule._warmup_p2p"),
    ("torch.distributed.pipelining.schedules", "ScheduleDualPipeV"),
    ("torch.distributed.pipelining.stage", "InferenceMode"),
    ("torch.distributed.pipelining.stage", "PipelineStage.backward_weight_one_chunk"),
    ("torch._C", "_autograd._top_saved_tensors_default_hooks"),
)
# What a rank's step imports when it runs, half of its time: imported once, before ranks are forked.
PRELOADED = ("torch._dynamo", *dict.fromkeys(module for module, _ in PRIVATE))
TIMEOUT = 600  # seconds for one rank


class RankJob(NamedTuple):
    """One rank's work: a model (or a pipeline piece of one, with few layers) under a recipe, as rank `rank`."""

    model: Model
    recipe: Recipe
    rank: int


def check() -> None:
    """Errors: `NoParallel`, with what this torch lacks."""
    missing = []
    for module, name in PRIVATE:
        try:
            value: Any = import_module(module)
            for part in name.split("."):
                value = getattr(value, part)
        except (ImportError, AttributeError):
            missing.append(f"{module}.{name}")
    if missing or not dist.is_available():
        lacks = ", ".join(missing) or "torch.distributed"
        raise NoParallel(f"verifying a layout needs {lacks}, which torch {torch.__version__} lacks (2.13 has it)")


def measure(jobs: Sequence[Sequence[RankJob]]) -> list[list[Counter[str]]]:
    """What each job's rank stores and sends in one micro-batch and a step; the jobs of one list share a process."""
    return [in_new_process(_run, list(process_jobs)) for process_jobs in jobs]


def micro_batches_in_flight(recipe: Recipe) -> list[tuple[tuple[int, ...], ...]]:
    """The micro-batches in flight on each stage's rank, by piece, counted under torch's own schedule."""
    return [in_new_process(_count_in_flight, recipe, stage) for stage in range(recipe.layout.pp)]


def in_new_process(work: Callable[..., Any], *args: object) -> Any:
    """The result of `work(*args)` in a new process."""
    with start_processes(1) as pool:
        return pool.apply_async(work, args).get(TIMEOUT)


def start_processes(processes: int) -> Pool:
    """A context with processes that run ranks, reusable for several runs, and stopped on exit."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["txcalc.verification.processes", *PRELOADED])
    return context.Pool(processes)


def _group(rank: int, world: int) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)


def _run(jobs: list[RankJob]) -> list[Counter[str]]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # about collectives that would be slow on real ranks
    _group(jobs[0].rank, jobs[0].recipe.layout.gpus)
    with raising_no_parallel(f"torch {torch.__version__} could not run {jobs[0].recipe.layout}"):
        mesh = meshes(jobs[0].recipe)
        return [_measure_rank(job, mesh) for job in jobs]


def meshes(recipe: Recipe, device: str = "cpu") -> Mapping[Any, Any]:
    """pp × dp × (fsdp and cp) × tp: ranks of cp and fsdp shard the same weights together. For experts, these and tp are
    `replicas` × ep × etp: `replicas` are the ranks that hold the same shards of the same experts."""
    from torch.distributed.device_mesh import init_device_mesh

    layout = recipe.layout
    sizes = (layout.pp, layout.dp, layout.fsdp * layout.cp, layout.tp)
    mesh: Any = init_device_mesh(device, sizes, mesh_dim_names=("pp", "dp", "fsdp", "tp"))
    by_axis = {name: mesh[name] for name in ("pp", "dp", "fsdp", "tp", ("dp", "fsdp"))}
    if layout.ep > 1 or layout.exchanges:
        ranks = sizes[2] * sizes[3] // layout.expert_group
        names = ("pp", "dp", "replicas", "ep", "etp")
        expert_mesh: Any = init_device_mesh(
            device, (layout.pp, layout.dp, ranks, layout.ep, layout.expert_ways), mesh_dim_names=names
        )
        by_axis |= {name: expert_mesh[name] for name in ("replicas", "ep", "etp", ("dp", "replicas"))}
    return by_axis


def _measure_rank(job: RankJob, mesh: object) -> Counter[str]:
    """Bytes of parameters, gradients, optimizer state and saved tensors; number and bytes of collectives."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    model, recipe = job.model, job.recipe
    saved, collectives = SavedStorages(), Collectives()
    net = build_sharded(model, recipe, mesh, recomputed=saved.recomputed)
    saved.watch(net)
    # Fake tensors cannot route tokens, so experts take them in turn; each needs one to have a gradient.
    reference_mode = mode(shares=recipe.layout.sp, explicit=recipe.keep_scores, even=True)
    with FakeTensorMode(allow_non_fake_inputs=True), reference_mode:
        net.to_empty(device="cpu")
        _tie(net, model)
        tensors = _inputs(model, recipe)
        with collectives, saved.recording(), loss_parallel(recipe):
            backward(net(*tensors), model)
        optimizer = make_optimizer(recipe, net)
        optimizer.step()
    sizes = Counter({**saved.bytes, "saved again": max(saved.recomputed_bytes.values(), default=0)})
    return rank_state_bytes(net, optimizer) + sizes + collectives.counts


def rank_state_bytes(net: nn.Module, optimizer: Any) -> Counter[str]:
    """Bytes of parameters, gradients and optimizer state of a rank after a step."""
    sizes: Counter[str] = Counter()
    frozen = not all(parameter.requires_grad for parameter in net.parameters())
    for parameter in net.parameters():
        sizes["adapters" if frozen and parameter.requires_grad else "parameters"] += shard_bytes(parameter)
        sizes["gradients"] += 0 if parameter.grad is None else shard_bytes(parameter.grad)
        state = optimizer.state.get(parameter, {})
        sizes["optimizer"] += sum(shard_bytes(value) for name, value in state.items() if name != "step" and value.dim())
    return sizes


def _inputs(model: Model, recipe: Recipe) -> tuple[Tensor, ...]:
    """Ids (images, audio), or the hidden states from the previous stage."""
    if (stack := model.root.single_stack) and stack.embedding is None:
        shape = recipe.micro_batch, recipe.local_tokens // recipe.layout.sp, model.d_model
        return (torch.empty(shape, dtype=_dtype(recipe), requires_grad=True),)
    tensors = inputs(model, recipe.micro_batch, recipe.local_tokens)
    return tuple(x.to(_dtype(recipe)) if x.is_floating_point() and recipe.shards == 1 else x for x in tensors)


def backward(y: object, model: Model) -> None:
    """Backward from a cross-entropy in float32 if there are logits; else from the output itself."""
    first, *outputs = y if isinstance(y, tuple) else (y,)
    if model.root.stacks[-1].head is not None:
        logits = first.flatten(0, -2).float()
        first = F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long))
    results = [first, *outputs]
    torch.autograd.backward(results, [torch.ones_like(result) for result in results])


def _dtype(recipe: Recipe) -> torch.dtype:
    return DTYPE_OF_BYTES[recipe.compute_bytes]


def make_optimizer(recipe: Recipe, net: nn.Module) -> Any:
    """PyTorch's optimizer of that name, without `foreach`: DTensors of two meshes cannot be stepped together."""
    optimizers: dict[str, Any] = {
        "adamw": lambda p: torch.optim.AdamW(p, foreach=False),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
        "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
        "muon": lambda _: MuonWithAdamW(net),
    }
    if recipe.optimizer not in optimizers:
        names = ", ".join(optimizers)
        raise NoParallel(f"{recipe.optimizer}: only modelled; of the optimizers, {names} are run on sharded tensors")
    return optimizers[recipe.optimizer](net.parameters())


class MuonWithAdamW:
    """PyTorch's Muon for the blocks' matrices, and AdamW for all else."""

    def __init__(self, net: nn.Module) -> None:
        learning = [(f".{name}", p) for name, p in net.named_parameters() if p.requires_grad]
        if any(p.dim() > 2 and ".layers." in name for name, p in learning):
            raise NoParallel("muon of stacked experts and convolutions is modelled: PyTorch's takes only matrices")
        matrices = [p for name, p in learning if ".layers." in name and p.dim() == 2]
        remaining = [p for name, p in learning if ".layers." not in name or p.dim() != 2]
        pairs = (cast(Any, torch.optim.Muon), matrices), (partial(torch.optim.AdamW, foreach=False), remaining)
        self.optimizers = [optimizer(weights) for optimizer, weights in pairs if weights]

    @property
    def state(self) -> dict[Tensor, Any]:
        return {p: state for optimizer in self.optimizers for p, state in optimizer.state.items()}

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()


def build_sharded(
    model: Model, recipe: Recipe, mesh: Any, device: str = "meta", recomputed: Context = nullcontext
) -> nn.Module:
    """The reference module of a model (or of a pipeline piece), sharded by torch; backward recomputes each module
    within the context `recomputed(module)`."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import parallelize_module

    layout = recipe.layout
    net: Any = build_in_dtypes(model, recipe, device)
    stack_experts(net)
    single_stage = replace(recipe, layout=layout.replace(pp=1, vpp=1), schedule="1f1b", stages=None)
    pipeline = Pipeline(model, replace(single_stage, recompute="none"))  # layers are numbered in the whole model
    (piece,) = pipeline.pieces
    if layout.tp > 1:
        stream: Any = Shard(1) if layout.sp > 1 else Replicate()
        styles, unstyled = plan(piece, recipe, stream)
        if unstyled:
            split_branches(net, replace(model, root=pipeline.rank), unstyled, recipe, mesh, stream)
        frozen = [name for name, parameter in net.named_parameters() if not parameter.requires_grad]
        parallelize_module(net, mesh["tp"], styles)
        shard_outside_branches(net, piece, mesh["tp"], stream)
        for name in frozen:  # SequenceParallel replaces a norm's parameters by trainable ones
            net.get_parameter(name).requires_grad_(False)
        _tie(net, model)
    if "ep" in mesh:
        distribute_experts(net, piece, mesh)
    for part in _recomputed_modules(net, model, recipe):
        _checkpoint(part, recomputed)
    if recipe.shards > 1:
        policy = MixedPrecisionPolicy(_dtype(recipe), DTYPE_OF_BYTES[recipe.reduce_bytes])
        ways = mesh["dp", "fsdp"] if layout.dp > 1 else mesh["fsdp"]
        placed = _expert_placement(net, recipe, mesh)
        for part in (*_blocks(net), net):
            reshard = None if part is net else recipe.reshard
            fully_shard(part, mesh=ways, mp_policy=policy, reshard_after_forward=reshard, shard_placement_fn=placed)
            # Gradients of experts, of which the first group has none, are averaged over all ranks.
            for group in part._get_fsdp_state()._fsdp_param_groups[1:]:
                group.gradient_divide_factor = float(recipe.shards * layout.dp)
                if device != "cuda" and mesh["replicas"].size() > 1:
                    group.force_sum_reduction_for_comms = True  # gloo cannot scale what it sums
    return net  # type: ignore[no-any-return]


def _expert_placement(net: nn.Module, recipe: Recipe, mesh: Any) -> Callable[[nn.Parameter], Any]:
    """How FSDP shards experts, as in torchtitan (distributed/fsdp.py, apply_fsdp_to_decoder): with ep over the ranks
    that hold the same experts. Experts stay whole; with more ranks than experts, rows are sharded if divisible."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import ShardPlacementResult
    from torch.distributed.fsdp._fully_shard._fsdp_init import _get_mesh_info
    from torch.distributed.tensor import Shard

    axis = "replicas" if "ep" in mesh else "fsdp"
    mesh_info: Any = _get_mesh_info(mesh["dp", axis] if recipe.layout.dp > 1 else mesh[axis])
    experts = {owner.get_parameter(name) for owner in net.modules() for name in getattr(owner, "stacked", ())}

    def placed(weight: nn.Parameter) -> Any:
        if weight not in experts:
            return None
        ways = mesh[axis].size()
        shard = Shard(int(ways > weight.shape[0] and weight.shape[1] % ways == 0))
        return ShardPlacementResult(shard, mesh_info) if "ep" in mesh else shard

    return placed


def _recomputed_modules(net: nn.Module, model: Model, recipe: Recipe) -> Iterator[nn.Module]:
    """The modules that backward recomputes: blocks, by their indices in the whole model, or attention cores."""
    if not (stack := model.root.single_stack):
        return
    numbers = sorted(i for group in stack.groups for i in group.indices)
    layers: Any = dict(zip(numbers, cast(Any, net).layers, strict=True))
    if recipe.recompute == "core":
        entries = [entry for entry in walk(model.root, model.workload()) if entry.kind == "attention_core"]
        for path in (path for entry in entries for path in paths(entry.steps)):
            home, number, inner = (*path.split(".", 2), "")[:3]
            yield layers[int(number)].get_submodule(inner) if home == "layers" else net.get_submodule(path)
    else:
        recomputed = recipe.recomputed(max(numbers, default=0) + 1)
        yield from dict.fromkeys(layer for i, layer in layers.items() if i in recomputed)


def _checkpoint(module: nn.Module, recomputed: Context) -> None:
    """Activation checkpointing: forward saves only its input."""
    forward = module.forward

    def checkpointed(*args: object) -> Any:
        contexts = lambda: (nullcontext(), recomputed(module))  # noqa: E731
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)

    module.forward = checkpointed


def _blocks(net: nn.Module) -> Iterator[nn.Module]:
    for stack in (getattr(net, "encoder", None), getattr(net, "decoder", None), net):
        yield from dict.fromkeys(getattr(stack, "layers", ()))


def _tie(net: Any, model: Model) -> None:
    """Ties the head to the embedding again after both modules got new parameters."""
    stack, stack_net = model.root.stacks[-1], net.decoder if len(model.root.stacks) > 1 else net
    if stack.embedding and stack.head and stack.head.projection and stack.head.projection.tied:
        stack_net.head.projection.weight = stack_net.embedding.tokens.weight


def loss_parallel(recipe: Recipe) -> AbstractContextManager[None]:
    """A context in which the loss reads logits sharded over tp, if the recipe says so."""
    from torch.distributed.tensor import parallel

    return parallel.loss_parallel() if recipe.layout.tp > 1 and recipe.loss_parallel else nullcontext()


def _count_in_flight(recipe: Recipe, stage: int) -> tuple[tuple[int, ...], ...]:
    """Runs torch's schedule on a stage of small linear layers, and counts the micro-batches in flight."""
    from torch.distributed.pipelining import schedules
    from torch.distributed.pipelining.stage import PipelineStage

    modes = import_module("torch.distributed.pipelining.stage").InferenceMode
    torch.set_num_threads(1)
    layout, pieces = recipe.layout, recipe.pieces
    _group(stage, layout.pp)
    total, v_shaped = layout.pp * pieces, recipe.schedule in ("zbv", "dualpipev")
    numbers = [stage, total - 1 - stage] if v_shaped else list(range(stage, total, layout.pp))
    x = torch.zeros(1, 4)
    now, history = Counter[int](), list[tuple[int, ...]]()

    def note(stage: Any, change: int) -> None:
        now[numbers.index(stage.stage_index)] += change
        history.append(tuple(now[i] for i in range(pieces)))

    class Counting(PipelineStage):
        def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
            note(self, 1)
            return super().forward_one_chunk(*args, **kwargs)

        def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
            result = super().backward_one_chunk(*args, **kwargs)
            note(self, -1 if kwargs.get("full_backward", True) else 0)
            return result

        def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
            result = super().backward_weight_one_chunk(*args, **kwargs)
            note(self, -1)
            return result

    def static(self: object, stages: Any, *args: object, **kwargs: object) -> None:
        for virtual_stage in stages:
            virtual_stage._inference_mode = modes.STATIC

    schedules._PipelineSchedule._warmup_p2p = static  # type: ignore[method-assign]
    like = x.clone().requires_grad_()
    rank_stages = [
        Counting(
            nn.Linear(4, 4), i, total, torch.device("cpu"),
            input_args=(like if i else x,), output_args=(like,), input_grads=(x if i else None,), output_grads=(x,),
        )
        for i in numbers
    ]  # fmt: skip
    schedule = make_schedule(recipe, rank_stages, lambda y, target: (y - target).sum())
    batch = torch.zeros(recipe.accumulation, 4)
    schedule.step(*((batch,) if 0 in numbers else ()), **({"target": batch} if total - 1 in numbers else {}))
    fullest = [
        a for a in set(history) if not any(b != a and all(p >= q for p, q in zip(b, a, strict=True)) for b in history)
    ]
    return tuple(sorted(fullest))


# PyTorch's class for each schedule.
SCHEDULES = {
    "gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B",
    "zb": "ScheduleInterleavedZeroBubble", "zbv": "ScheduleZBVZeroBubble", "dualpipev": "ScheduleDualPipeV",
}  # fmt: skip


def make_schedule(recipe: Recipe, stages: Sequence[object], loss: Callable[[Any, Tensor], Any]) -> Any:
    """torch's own schedule over this rank's stages."""
    from torch.distributed.pipelining import schedules

    stage_or_stages = stages[0] if recipe.schedule in ("gpipe", "1f1b") else stages
    return getattr(schedules, SCHEDULES[recipe.schedule])(stage_or_stages, recipe.accumulation, loss_fn=loss)


def with_layer_counts(model: Model, counts: Sequence[int]) -> Model:
    """The model with the given number of layers of each kind."""
    root: Any = model.root
    groups, number = [], 0
    for group, count in zip(root.groups if counts else (), counts, strict=True):
        groups.append(group._replace(indices=tuple(range(number, number + count)), count=count))
        number += count
    return replace(model, root=replace(root, groups=tuple(groups))) if counts else model
