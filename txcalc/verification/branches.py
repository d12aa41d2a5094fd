"""Sharded branches for which torch has no tensor-parallel style (MLA, experts, recurrent mixers), and expert
parallelism: DTensors hold the weights and join the branch to the residual stream; the branch itself runs on the local
shards.

    x → all positions, on every rank → the branch on local shards → a partial sum → all-reduce or reduce-scatter

Replicated weights get partial gradients from the local heads, columns or channels; FSDP sums them, as it does those of
the norms between branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from txcalc.errors import TxcalcError
from txcalc.ledger import walk
from txcalc.model import Model
from txcalc.planning.training.collectives import per_head, without_tp_style
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import RankLeaf, StagePiece
from txcalc.reference import build
from txcalc.units import bits_of

DTYPE_OF_BYTES = {2: torch.bfloat16, 4: torch.float32}


class NoParallel(TxcalcError):
    """This torch lacks what verifying a layout needs."""

    exit_code = 3


@contextmanager
def raising_no_parallel(where: str) -> Iterator[None]:
    """Turns torch's errors into `NoParallel`: some cannot be pickled, and so cannot reach another process."""
    try:
        yield
    except TxcalcError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise NoParallel(f"{where}: {type(error).__name__}: {lines[0][:200]}") from None


def paths(steps: Sequence[Any]) -> Iterator[str]:
    """The paths of a leaf's modules."""
    names = [""]
    for step in steps:
        numbers = [""] if step.indices is None else [f".{i}" for i in step.indices]
        names = [f"{name}.{step.name}{number}".lstrip(".") for name in names for number in numbers]
    return iter(names)


def owners(leaf: RankLeaf) -> Iterator[str]:
    """The paths of the branches that contain a leaf."""
    return paths(leaf.branch)


def plan(piece: StagePiece, recipe: Recipe, stream: Any) -> tuple[dict[str, Any], list[RankLeaf]]:
    """torch's parallel style for each module, from how the tree splits its weights; and the leaves of branches in which
    some weight has no style. `stream` is the placement of the residual stream."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import PrepareModuleInput

    styles: dict[str, Any] = {}
    unstyled = without_tp_style(piece)
    for leaf in piece.leaves:
        style = None if leaf.branch in unstyled and not leaf.on_residual else _style(leaf, piece, recipe, stream)
        for path in paths(leaf.entry.steps) if style else ():
            styles[path] = style
        if style and leaf.widened and leaf.layers:
            ins, outs = (stream, None), (Replicate(), None)
            styles |= dict.fromkeys(owners(leaf), PrepareModuleInput(input_layouts=ins, desired_input_layouts=outs))
    return styles, [leaf for leaf in piece.leaves if leaf.branch in unstyled and not leaf.on_residual]


def _style(leaf: RankLeaf, piece: StagePiece, recipe: Recipe, stream: Any) -> object:
    """torch's parallel style for a leaf; None if it has none, or if nothing is split."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    axes = [axis for _, _, axis in leaf.axes()]
    if leaf.on_residual and leaf.entry.leaf.matrix is None:
        normed = axes and leaf.entry.leaf.role == "norm" and recipe.layout.sp > 1
        return SequenceParallel(use_local_output=True) if normed else None
    if leaf.entry.leaf.role == "table" and axes == [0]:
        outputs = Replicate() if any(leaf.summed_whole(join.entry) for join in piece.collectives) else stream
        return RowwiseParallel(input_layouts=Replicate(), output_layouts=outputs)
    if leaf.entry.kind == "head" and leaf.widened:
        local = not recipe.loss_parallel
        layouts = Replicate() if local else Shard(-1)
        return ColwiseParallel(input_layouts=stream, output_layouts=layouts, use_local_output=local)
    if leaf.widened and leaf.layers:
        return ColwiseParallel()
    if axes[:1] == [1] and leaf.layers:
        return RowwiseParallel(output_layouts=stream)
    return SequenceParallel(sequence_dim=2, use_local_output=True) if per_head(leaf) else None


def build_in_dtypes(model: Model, recipe: Recipe, device: Any) -> nn.Module:
    """The reference module of a model, in the parameters' dtype; adapters and frozen weights in theirs."""
    net = build(model, device=device, dtype=DTYPE_OF_BYTES[recipe.parameter_bytes])
    if recipe.frozen is None and recipe.adapter is None:
        return net
    frozen = DTYPE_OF_BYTES[bits_of(recipe.frozen) // 8 if recipe.frozen else recipe.parameter_bytes]
    for entry in walk(model.root, model.workload()):
        matrix = entry.layer is not None and entry.kind != "norm"
        for part in map(net.get_submodule, paths(entry.steps) if entry.leaf.weights() else ()):
            for weight in part.parameters(recurse=False):
                if entry.kind == "adapters":
                    weight.data = weight.to(DTYPE_OF_BYTES[recipe.adapter_bytes])
                elif not weight.requires_grad and recipe.frozen:
                    weight.data = weight.to(
                        frozen if matrix and weight.dim() == 2 else DTYPE_OF_BYTES[recipe.compute_bytes]
                    )
    return net


def split_branches(
    net: nn.Module,
    rank: Model,
    leaves: Sequence[RankLeaf],
    recipe: Recipe,
    meshes: Mapping[Any, object],
    stream: object,
) -> None:
    """Replaces the branches of `leaves` by one tp rank's shards of them; `rank` is the model of that rank's share, and
    `stream` the placement of the residual stream.

    Errors: `NoParallel` if a rank's share of a weight is not one contiguous piece.
    """
    shares = build_in_dtypes(rank, recipe, next(net.parameters()).device)
    mesh = meshes["tp"]
    routed = {path for leaf in leaves if leaf.entry.routed for path in owners(leaf)}
    sent = {path for leaf in leaves if leaf.dispatched for path in owners(leaf)}
    branch_paths = dict.fromkeys(path for leaf in leaves for path in owners(leaf))
    for path in branch_paths:
        if path not in routed:  # experts are modules of their own, each as wide as its weights
            net.set_submodule(path, shares.get_submodule(path))
    for leaf in leaves:
        if not leaf.entry.routed or "ep" not in meshes:
            distribute(net, leaf, mesh)
    inner = dict.fromkeys((net.get_submodule(path), how) for path, how in _joined_modules(rank))
    for module, how in inner:
        if how == "statistics":
            _use_split_norm(module, mesh)
    branches = {net.get_submodule(path): path in sent for path in branch_paths}  # layers may share one
    for branch in branches:
        for module in branch.modules():
            use_local_shards(module)
    for module, how in inner:
        if how in ("heads", "positions"):
            _gather_input(module, mesh, -1 if how == "heads" else 1)
        elif how == "sums":
            _join(module, mesh, None)
    for branch, sends in branches.items():
        (_share_positions if sends else _join)(branch, mesh, stream)


def shard_outside_branches(net: Any, piece: StagePiece, mesh: Any, stream: object) -> None:
    """Modules outside the branches without a tensor-parallel style in torch: tables split by heads (a relative bias)
    and, with sequence parallelism, operations per position other than norms, and an embedding with added positions,
    whose output is sharded afterwards. Also sets which heads a core has."""
    from torch.distributed.tensor import Replicate

    for leaf in piece.leaves:
        if (shard := leaf.entry.leaf.attended) and (full := leaf.whole.attended) and shard.heads < full.heads:
            for core in map(net.get_submodule, paths(leaf.entry.steps)):
                core.n_heads, core.first = full.heads, shard.heads * mesh.get_local_rank()
        biases = leaf.entry.leaf.role == "table" and [axis for _, _, axis in leaf.axes()] == [1]
        on_stream = leaf.on_residual and leaf.entry.leaf.weights() and leaf.entry.leaf.role not in ("norm", "table")
        if (biases and not leaf.layers) or (on_stream and stream != Replicate()):
            distribute(net, leaf, mesh)
            for path in paths(leaf.entry.steps):
                use_local_shards(net.get_submodule(path))
        elif stream != Replicate() and any(leaf.summed_whole(join.entry) for join in piece.collectives):
            _keep_share(net.embedding, mesh, stream)


def _keep_share(module: nn.Module, mesh: Any, stream: Any) -> None:
    """Makes a module return a rank's share of its result: a copy, so that the full result is freed."""
    from torch.distributed.tensor import DTensor, Replicate

    forward = module.forward

    def share(*args: Any) -> Tensor:
        full = DTensor.from_local(forward(*args), mesh, [Replicate()], run_check=False)
        return full.redistribute(placements=[stream]).to_local().clone()

    module.forward = share


def distribute(net: nn.Module, leaf: RankLeaf, mesh: Any) -> None:
    """Turns a leaf's weights into DTensors, sharded or replicated."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    for module, prefix, experts in _weight_owners(net, leaf):
        for weight, (local_shape, full_shape, axis) in zip(leaf.entry.leaf.weights(), leaf.axes(), strict=True):
            name = prefix + weight.name
            before = module._parameters[name]
            assert before is not None
            values = torch.empty((*experts, *full_shape), dtype=before.dtype, device=before.device)
            place = Replicate() if axis is None else Shard(axis + len(experts))
            tensor: Any = distribute_tensor(values, mesh, [place], src_data_rank=None)
            if tensor.to_local().shape != (*experts, *local_shape):
                raise NoParallel(f"{leaf.entry.name}: a rank's share is not one contiguous piece, as torch shards it")
            module._parameters[name] = nn.Parameter(tensor, requires_grad=before.requires_grad)
            if axis is None and 1 in [split_axis for _, _, split_axis in leaf.axes()]:
                _divide_bias(module, name, mesh.size())


def _weight_owners(net: nn.Module, leaf: RankLeaf) -> list[tuple[nn.Module, str, tuple[int, ...]]]:
    """The modules that hold a leaf's weights, the prefix of their names and, for stacked experts, (number,)."""
    if not leaf.entry.routed:
        return [(module, "", ()) for module in dict.fromkeys(map(net.get_submodule, paths(leaf.entry.steps)))]
    inner = "".join(f"{step.name}." for step in leaf.entry.steps[_expert(leaf.entry.steps) + 1 :])
    stacks = list[tuple[nn.Module, str, tuple[int, ...]]]()
    for path in paths(leaf.entry.steps[: _expert(leaf.entry.steps)]):
        owner: Any = net.get_submodule(path)
        stacks.append((owner, stacked_name(inner), (len(owner.routed),)))
    return stacks


def _expert(steps: Sequence[Any]) -> int:
    return [step.duty for step in steps].index("expert")


def stacked_name(name: str) -> str:
    return "routed_" + name.replace(".", "_")


def _divide_bias(module: nn.Module, name: str, ranks: int) -> None:
    """Makes every rank add 1/ranks of a row-parallel layer's bias."""
    forward = module.forward

    def shared(*args: object) -> Any:
        bias = module._parameters[name]
        assert bias is not None
        try:
            module._parameters[name] = bias / ranks  # type: ignore[assignment]
            return forward(*args)
        finally:
            module._parameters[name] = bias

    module.forward = shared


def use_local_shards(module: nn.Module) -> None:
    """Makes forward read this rank's shards; gradients of replicated weights are partial sums."""
    from torch.distributed.tensor import DTensor, Partial

    forward = module.forward

    def local(*args: object, **kwargs: object) -> Any:
        parameters = dict(module._parameters)
        try:
            for name, p in parameters.items():
                if isinstance(p, DTensor):
                    placements = [Partial() if place.is_replicate() else place for place in p.placements]
                    module._parameters[name] = p.to_local(grad_placements=placements)
            return forward(*args, **kwargs)
        finally:
            module._parameters.update(parameters)

    module.forward = local


class SplitNorm(torch.autograd.Function):
    """A norm over columns sharded over ranks, as one kernel: it saves its input and one or two statistics per row.
    Forward and backward each all-reduce their sums over columns once, in fp32.

    x (…, columns), weight and bias (columns,) of this rank; `total` sums over ranks; `width` counts all columns.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Any, bias: Any, norm: Any, width: int, total: Any) -> Tensor:
        x32 = x.float()
        sums = [x32.square().sum(-1), *([] if norm.rms else [x32.sum(-1)])]
        square, *mean = (total(torch.stack(sums, -1)) / width).split(1, -1)
        mean = mean[0].clone() if mean else torch.zeros_like(square)  # a view would save the squares too
        scale = torch.rsqrt(square - mean.square() + norm.eps)
        ctx.save_for_backward(x, weight, bias, scale, *(() if norm.rms else (mean,)))
        ctx.width, ctx.total = width, total
        y = (x32 - mean) * scale
        y = y if weight is None else y * weight
        return (y if bias is None else y + bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, bias, scale, *mean = ctx.saved_tensors
        normed = (x.float() - (mean[0] if mean else 0)) * scale
        inner = grad.float() if weight is None else grad.float() * weight
        sums = [(inner * normed).sum(-1), *([inner.sum(-1)] if mean else [])]
        mean_product, *mean_inner = (ctx.total(torch.stack(sums, -1)) / ctx.width).split(1, -1)
        x_grad = scale * (inner - normed * mean_product - (mean_inner[0] if mean_inner else 0))
        weight_grad = None if weight is None else (grad * normed).sum_to_size(weight.shape).to(weight.dtype)
        bias_grad = None if bias is None else grad.sum_to_size(bias.shape)
        return x_grad.to(x.dtype), weight_grad, bias_grad, None, None, None


def _use_split_norm(module: Any, mesh: Any) -> None:
    """Makes a norm whose columns are sharded sum its statistics over ranks."""
    from torch.distributed._functional_collectives import all_reduce

    def normed(x: Tensor) -> Tensor:
        weight = module.weight if module.weight is None or not module.offset else 1 + module.weight
        total = lambda sums: all_reduce(sums, "sum", mesh)  # noqa: E731
        y: Tensor = SplitNorm.apply(x, weight, module.bias, module, module.width * mesh.size(), total)
        return y

    module.forward = normed


def _gather_input(module: nn.Module, mesh: Any, axis: int) -> None:
    """Makes a norm gather its input along an axis: positions (1), or heads (the last), and then keep its own heads."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    forward = module.forward

    def gathered(x: Tensor) -> Tensor:
        shard = DTensor.from_local(x, mesh, [Shard(axis % x.dim())], run_check=False)
        normed: Tensor = forward(shard.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()]))
        return normed if axis == 1 else normed.chunk(mesh.size(), axis)[mesh.get_local_rank()].contiguous()

    module.forward = gathered


def _join(module: nn.Module, mesh: Any, stream: Any) -> None:
    """Makes a module sum its outputs over ranks; with `stream`, also gather its input from that placement."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    forward = module.forward

    def joined(x: Tensor, *args: Any) -> Tensor:
        if stream is not None:
            gathered = DTensor.from_local(x, mesh, [stream], run_check=False).redistribute(placements=[Replicate()])
            x = gathered.to_local(grad_placements=[Partial()])
        summand = DTensor.from_local(forward(x, *args), mesh, [Partial()], run_check=False)
        if stream is None:
            return summand.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return summand.redistribute(placements=[stream]).to_local()

    module.forward = joined


def _share_positions(module: Any, mesh: Any, stream: object) -> None:
    """Makes each tp rank run experts with token exchange on its share of the positions; shared experts are sharded as
    any feed-forward. A replicated stream is sliced before and gathered after."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    forward, inputs = module.forward, list[Tensor]()
    if stream != Replicate():
        if module.shared is not None:
            _join(module.shared, mesh, stream)
        return

    def share(x: Tensor, *args: Any) -> Tensor:
        full = DTensor.from_local(x, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])
        inputs.append(full)
        local = full.chunk(mesh.size(), 1)[mesh.get_local_rank()].clone()
        y = DTensor.from_local(forward(local, *args), mesh, [Shard(1)], run_check=False)
        return y.redistribute(placements=[Replicate()]).to_local()

    module.forward = share
    if module.shared is not None:
        inner = module.shared.forward

        def on_full_input(_: Tensor, *args: Any) -> Tensor:
            summand = DTensor.from_local(inner(inputs.pop(), *args), mesh, [Partial()], run_check=False)
            return summand.redistribute(placements=[Shard(1)]).to_local()

        module.shared.forward = on_full_input


def _joined_modules(rank: Model) -> Iterator[tuple[str, str]]:
    """The modules within a branch where ranks communicate, and how: `sums` of outputs; `statistics` of norms whose
    columns are sharded; `heads` or `positions` of all ranks, which a norm reads."""
    for before, entry in pairwise(walk(rank.root, rank.workload())):
        if any(step.duty == "layer" for step in entry.steps[:-2]):
            if entry.duty == "statistics":
                yield from ((path, "statistics") for path in paths(before.steps))
            elif entry.leaf.kind == "all_reduce" and before.leaf.matrix is not None:
                yield from ((path, "sums") for path in paths(before.steps))
        if before.leaf.kind == "all_gather" and entry.leaf.role == "norm" and before.steps[:-1] == entry.steps[:-1]:
            yield from ((path, before.duty or "positions") for path in paths(entry.steps))
