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

OF_BYTES = {2: torch.bfloat16, 4: torch.float32}


class NoParallel(TxcalcError):
    """This torch lacks what verifying a layout needs."""

    exit_code = 3


@contextmanager
def telling(where: str) -> Iterator[None]:
    """Makes a `NoParallel` of what torch raises within, which may not be told to another process."""
    try:
        yield
    except TxcalcError:
        raise
    except Exception as error:
        said = str(error).strip().splitlines() or [""]
        raise NoParallel(f"{where}: {type(error).__name__}: {said[0][:200]}") from None


def paths(steps: Sequence[Any]) -> Iterator[str]:
    """The modules of a leaf."""
    names = [""]
    for step in steps:
        numbers = [""] if step.indices is None else [f".{i}" for i in step.indices]
        names = [f"{name}.{step.name}{number}".lstrip(".") for name in names for number in numbers]
    return iter(names)


def owners(held: RankLeaf) -> Iterator[str]:
    """The modules of the branches that contain a leaf."""
    return paths(held.branch)


def plan(piece: StagePiece, recipe: Recipe, between: Any) -> tuple[dict[str, Any], list[RankLeaf]]:
    """torch's parallel style for each module, from how the tree splits its weights; and the leaves of branches where
    some weight has none."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import PrepareModuleInput

    styles: dict[str, Any] = {}
    alone = without_tp_style(piece)
    for held in piece.leaves:
        made = None if held.branch in alone and not held.on_residual else _style(held, piece, recipe, between)
        for path in paths(held.entry.steps) if made else ():
            styles[path] = made
        if made and held.widened and held.layers:
            ins, outs = (between, None), (Replicate(), None)
            styles |= dict.fromkeys(owners(held), PrepareModuleInput(input_layouts=ins, desired_input_layouts=outs))
    return styles, [held for held in piece.leaves if held.branch in alone and not held.on_residual]


def _style(held: RankLeaf, piece: StagePiece, recipe: Recipe, between: Any) -> Any:
    """torch's parallel style for a leaf; None where there is none, or nothing to split."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    axes = [axis for _, _, axis in held.axes()]
    if held.on_residual and held.entry.leaf.matrix is None:
        normed = axes and held.entry.leaf.role == "norm" and recipe.layout.sp > 1
        return SequenceParallel(use_local_output=True) if normed else None
    if held.entry.leaf.role == "table" and axes == [0]:
        outputs = Replicate() if any(held.summed_whole(join.entry) for join in piece.joins) else between
        return RowwiseParallel(input_layouts=Replicate(), output_layouts=outputs)
    if held.entry.kind == "head" and held.widened:
        local = not recipe.loss_parallel
        layouts = Replicate() if local else Shard(-1)
        return ColwiseParallel(input_layouts=between, output_layouts=layouts, use_local_output=local)
    if held.widened and held.layers:
        return ColwiseParallel()
    if axes[:1] == [1] and held.layers:
        return RowwiseParallel(output_layouts=between)
    return SequenceParallel(sequence_dim=2, use_local_output=True) if per_head(held) else None


def built(model: Model, recipe: Recipe, device: Any) -> nn.Module:
    """The reference module of a model, in the parameters' dtype; adapters and the frozen weights beside them have
    dtypes of their own."""
    net = build(model, device=device, dtype=OF_BYTES[recipe.parameter_bytes])
    if recipe.frozen is None and recipe.adapter is None:
        return net
    frozen = OF_BYTES[bits_of(recipe.frozen) // 8 if recipe.frozen else recipe.parameter_bytes]
    for entry in walk(model.root, model.workload()):
        matrix = entry.layer is not None and entry.kind != "norm"
        for part in map(net.get_submodule, paths(entry.steps) if entry.leaf.weights() else ()):
            for weight in part.parameters(recurse=False):
                if entry.kind == "adapters":
                    weight.data = weight.to(OF_BYTES[recipe.adapter_bytes])
                elif not weight.requires_grad and recipe.frozen:
                    weight.data = weight.to(frozen if matrix and weight.dim() == 2 else OF_BYTES[recipe.compute_bytes])
    return net


def split(
    net: nn.Module,
    rank: Model,
    apart: Sequence[RankLeaf],
    recipe: Recipe,
    meshes: Mapping[Any, Any],
    between: object,
) -> None:
    """Branches whose leaves are in `apart`, as one rank of tp runs them; `rank` is the model of what it holds, and
    `between` the placement of the residual stream.

    Errors: `NoParallel` where a share is not one piece of every weight.
    """
    shares = built(rank, recipe, next(net.parameters()).device)
    mesh = meshes["tp"]
    routed = {path for held in apart if held.entry.routed for path in owners(held)}
    sent = {path for held in apart if held.dispatched for path in owners(held)}
    every = dict.fromkeys(path for held in apart for path in owners(held))
    for path in every:
        if path not in routed:  # experts are modules of their own, each as wide as its weights
            net.set_submodule(path, shares.get_submodule(path))
    for held in apart:
        if not held.entry.routed or "ep" not in meshes:
            distributed(net, held, mesh)
    inner = dict.fromkeys((net.get_submodule(path), how) for path, how in _inner(rank))
    for module, how in inner:
        if how == "statistics":
            _normed(module, mesh)
    branches = {net.get_submodule(path): path in sent for path in every}  # layers may share one
    for branch in branches:
        for module in branch.modules():
            on_its_share(module)
    for module, how in inner:
        if how in ("heads", "positions"):
            _gathered(module, mesh, -1 if how == "heads" else 1)
        elif how == "sums":
            _joined(module, mesh, None)
    for branch, sends in branches.items():
        (_shared_out if sends else _joined)(branch, mesh, between)


def outside(net: Any, piece: StagePiece, mesh: Any, between: Any) -> None:
    """Modules outside the branches without a tensor-parallel style in torch: tables split by heads (a relative bias)
    and, with sequence parallelism, operations per position other than norms, and an embedding with added positions,
    whose output is sharded afterwards. Also sets which heads a core has."""
    from torch.distributed.tensor import Replicate

    for held in piece.leaves:
        if (own := held.entry.leaf.attended) and (whole := held.whole.attended) and own.heads < whole.heads:
            for core in map(net.get_submodule, paths(held.entry.steps)):
                core.n_heads, core.first = whole.heads, own.heads * mesh.get_local_rank()
        biases = held.entry.leaf.role == "table" and [axis for _, _, axis in held.axes()] == [1]
        beside = held.on_residual and held.entry.leaf.weights() and held.entry.leaf.role not in ("norm", "table")
        if (biases and not held.layers) or (beside and between != Replicate()):
            distributed(net, held, mesh)
            for path in paths(held.entry.steps):
                on_its_share(net.get_submodule(path))
        elif between != Replicate() and any(held.summed_whole(join.entry) for join in piece.joins):
            _taken(net.embedding, mesh, between)


def _taken(module: nn.Module, mesh: Any, between: Any) -> None:
    """Makes a rank's share of the result what comes out, a copy, beside which the whole is freed."""
    from torch.distributed.tensor import DTensor, Replicate

    forward = module.forward

    def taken(*given: Any) -> Tensor:
        whole = DTensor.from_local(forward(*given), mesh, [Replicate()], run_check=False)
        return whole.redistribute(placements=[between]).to_local().clone()

    module.forward = taken


def distributed(net: nn.Module, held: RankLeaf, mesh: Any) -> None:
    """Turns a leaf's weights into DTensors, sharded or replicated."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    for module, prefix, experts in _keepers(net, held):
        for weight, (own, whole, axis) in zip(held.entry.leaf.weights(), held.axes(), strict=True):
            name = prefix + weight.name
            before = module._parameters[name]
            assert before is not None
            values = torch.empty((*experts, *whole), dtype=before.dtype, device=before.device)
            place = Replicate() if axis is None else Shard(axis + len(experts))
            made: Any = distribute_tensor(values, mesh, [place], src_data_rank=None)
            if made.to_local().shape != (*experts, *own):
                raise NoParallel(f"{held.entry.name}: a rank's share is not one piece of it, which torch would cut")
            module._parameters[name] = nn.Parameter(made, requires_grad=before.requires_grad)
            if axis is None and 1 in [cut for _, _, cut in held.axes()]:
                _apart(module, name, mesh.size())


def _keepers(net: nn.Module, held: RankLeaf) -> list[tuple[nn.Module, str, tuple[int, ...]]]:
    """The modules that hold a leaf's weights, with what precedes their names and, of stacked experts, their number."""
    if not held.entry.routed:
        return [(module, "", ()) for module in dict.fromkeys(map(net.get_submodule, paths(held.entry.steps)))]
    inner = "".join(f"{step.name}." for step in held.entry.steps[_expert(held.entry.steps) + 1 :])
    found = list[tuple[nn.Module, str, tuple[int, ...]]]()
    for path in paths(held.entry.steps[: _expert(held.entry.steps)]):
        owner: Any = net.get_submodule(path)
        found.append((owner, stacked_name(inner), (len(owner.routed),)))
    return found


def _expert(steps: Sequence[Any]) -> int:
    return [step.duty for step in steps].index("expert")


def stacked_name(name: str) -> str:
    return "routed_" + name.replace(".", "_")


def _apart(module: nn.Module, name: str, ranks: int) -> None:
    """The bias of a row-parallel layer: every rank adds its share."""
    forward = module.forward

    def shared(*given: object) -> Any:
        held = module._parameters[name]
        assert held is not None
        try:
            module._parameters[name] = held / ranks  # type: ignore[assignment]
            return forward(*given)
        finally:
            module._parameters[name] = held

    module.forward = shared


def on_its_share(module: nn.Module) -> None:
    """Makes forward read this rank's shards; the gradients of replicated weights are partial sums."""
    from torch.distributed.tensor import DTensor, Partial

    forward = module.forward

    def local(*given: object, **named: object) -> Any:
        held = dict(module._parameters)
        try:
            for name, p in held.items():
                if isinstance(p, DTensor):
                    places = [Partial() if place.is_replicate() else place for place in p.placements]
                    module._parameters[name] = p.to_local(grad_placements=places)
            return forward(*given, **named)
        finally:
            module._parameters.update(held)

    module.forward = local


class _SplitNorm(torch.autograd.Function):
    """A norm over columns of which each rank has some, as one kernel: it keeps its input and one or two statistics per
    row. These are sums over the ranks, as are those of backward: one all-reduce in fp32 each.

    x (…, columns), weight and bias (columns,) of this rank; `total` sums over the ranks, `width` is the whole.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Any, bias: Any, norm: Any, width: int, total: Any) -> Tensor:
        wide = x.float()
        sums = [wide.square().sum(-1), *([] if norm.rms else [wide.sum(-1)])]
        square, *mean = (total(torch.stack(sums, -1)) / width).split(1, -1)
        mean = mean[0] if mean else torch.zeros_like(square)
        scale = torch.rsqrt(square - mean.square() + norm.eps)
        ctx.save_for_backward(x, weight, bias, scale, *(() if norm.rms else (mean,)))
        ctx.width, ctx.total = width, total
        y = (wide - mean) * scale
        y = y if weight is None else y * weight
        return (y if bias is None else y + bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, bias, scale, *mean = ctx.saved_tensors
        normed = (x.float() - (mean[0] if mean else 0)) * scale
        inner = grad.float() if weight is None else grad.float() * weight
        sums = [(inner * normed).sum(-1), *([inner.sum(-1)] if mean else [])]
        along, *level = (ctx.total(torch.stack(sums, -1)) / ctx.width).split(1, -1)
        own = scale * (inner - normed * along - (level[0] if level else 0))
        of_weight = None if weight is None else (grad * normed).sum_to_size(weight.shape).to(weight.dtype)
        of_bias = None if bias is None else grad.sum_to_size(bias.shape)
        return own.to(x.dtype), of_weight, of_bias, None, None, None


def _normed(module: Any, mesh: Any) -> None:
    """A norm over columns that the ranks split."""
    from torch.distributed._functional_collectives import all_reduce

    def normed(x: Tensor) -> Tensor:
        weight = module.weight if module.weight is None or not module.offset else 1 + module.weight
        given = x, weight, module.bias, module, module.width * mesh.size(), lambda sums: all_reduce(sums, "sum", mesh)
        made: Tensor = _SplitNorm.apply(*given)
        return made

    module.forward = normed


def _gathered(module: nn.Module, mesh: Any, axis: int) -> None:
    """A norm of what it gathers along an axis: positions (1), or heads (the last), of which a rank keeps its own."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    forward = module.forward

    def gathered(x: Tensor) -> Tensor:
        own = DTensor.from_local(x, mesh, [Shard(axis % x.dim())], run_check=False)
        normed: Tensor = forward(own.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()]))
        return normed if axis == 1 else normed.chunk(mesh.size(), axis)[mesh.get_local_rank()].contiguous()

    module.forward = gathered


def _joined(module: nn.Module, mesh: Any, between: Any) -> None:
    """Sums the outputs, and gathers the input stream of a replicated branch (`between`)."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    forward = module.forward

    def joined(x: Tensor, *given: Any) -> Tensor:
        if between is not None:
            every = DTensor.from_local(x, mesh, [between], run_check=False).redistribute(placements=[Replicate()])
            x = every.to_local(grad_placements=[Partial()])
        summand = DTensor.from_local(forward(x, *given), mesh, [Partial()], run_check=False)
        if between is None:
            return summand.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return summand.redistribute(placements=[between]).to_local()

    module.forward = joined


def _shared_out(module: Any, mesh: Any, between: Any) -> None:
    """Experts with token exchange: each tp rank works on its share of the positions, except for the shared experts,
    which are split as any feed-forward. A replicated stream is sliced before and gathered after."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    forward, given = module.forward, list[Tensor]()
    if between != Replicate():
        if module.shared is not None:
            _joined(module.shared, mesh, between)
        return

    def share(x: Tensor, *rest: Any) -> Tensor:
        whole = DTensor.from_local(x, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])
        given.append(whole)
        own = whole.chunk(mesh.size(), 1)[mesh.get_local_rank()].clone()
        y = DTensor.from_local(forward(own, *rest), mesh, [Shard(1)], run_check=False)
        return y.redistribute(placements=[Replicate()]).to_local()

    module.forward = share
    if module.shared is not None:
        inner = module.shared.forward

        def whole(_: Tensor, *rest: Any) -> Tensor:
            summand = DTensor.from_local(inner(given.pop(), *rest), mesh, [Partial()], run_check=False)
            return summand.redistribute(placements=[Shard(1)]).to_local()

        module.shared.forward = whole


def _inner(rank: Model) -> Iterator[tuple[str, str]]:
    """The modules within a branch that ranks join, and how: their outputs are `sums`; they are norms of whose columns
    each rank has some, so that their `statistics` are sums; or norms that read the `heads` of all ranks, or the
    `positions`."""
    for before, entry in pairwise(walk(rank.root, rank.workload())):
        if any(step.duty == "layer" for step in entry.steps[:-2]):
            if entry.duty == "statistics":
                yield from ((path, "statistics") for path in paths(before.steps))
            elif entry.leaf.kind == "all_reduce" and before.leaf.matrix is not None:
                yield from ((path, "sums") for path in paths(before.steps))
        if before.leaf.kind == "all_gather" and entry.leaf.role == "norm" and before.steps[:-1] == entry.steps[:-1]:
            yield from ((path, before.duty or "positions") for path in paths(entry.steps))
