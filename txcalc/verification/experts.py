"""Experts under torch's own sharding: one stacked parameter per projection of a layer, distributed over ranks of ep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txcalc.planning.training.stages import StagePiece
from txcalc.reference.run import Run, current
from txcalc.verification.branches import distribute, owners, stacked_name, use_local_shards


def stack_experts(net: nn.Module) -> None:
    """Stacks each matrix or vector of all experts of a module into one parameter (experts, …), as torchtitan
    (models/common/moe.py, GroupedExperts) and transformers 5 (integrations/moe.py) do. The owner of the experts has
    it; while the owner runs, each expert has its slice."""
    modules: list[Any] = [module for module in net.modules() if hasattr(module, "routed")]
    for owner in modules:
        owner.stacked = {stacked_name(name): name for name, _ in owner.routed[0].named_parameters()}
        for parameter, name in owner.stacked.items():
            weights = [expert.get_parameter(name) for expert in owner.routed]
            stack = torch.stack([weight.detach() for weight in weights])
            owner._parameters[parameter] = nn.Parameter(stack, requires_grad=weights[0].requires_grad)
        _assign_slices(owner, None)
        owner.forward = _with_slices(owner)


def _with_slices(owner: Any) -> Any:
    forward = owner.forward

    def sliced(*args: object, **kwargs: object) -> object:
        try:
            _assign_slices(owner, owner._parameters)
            return forward(*args, **kwargs)
        finally:
            _assign_slices(owner, None)

    return sliced


def _assign_slices(owner: Any, stacks: Mapping[str, Any] | None) -> None:
    """Sets each expert's weights to its slices of `stacks`; None removes them."""
    for parameter, name in owner.stacked.items():
        path, _, last = name.rpartition(".")
        experts = list(owner.routed.children())
        weights = stacks[parameter].unbind() if stacks else [None] * len(experts)
        for expert, weight in zip(experts, weights, strict=True):
            expert.get_submodule(path)._parameters[last] = weight


def distribute_experts(net: nn.Module, piece: StagePiece, meshes: Mapping[Any, Any]) -> None:
    """Distributes experts over the ranks of ep, each expert whole or sharded over etp. Each routed token is sent to a
    rank of its expert and the result is sent back (all-to-all, as in torchtitan); if experts are distributed over tp
    alone, each rank computes the tokens routed to its own experts."""
    ep, etp = meshes["ep"], meshes["etp"]
    experts = [leaf for leaf in piece.leaves if leaf.entry.routed]
    for path, dispatched in dict.fromkeys((path, leaf.dispatched) for leaf in experts for path in owners(leaf)):
        module: Any = net.get_submodule(path)
        per_rank = len(module.routed) // ep.size()
        first = per_rank * ep.get_local_rank()
        module.routed = nn.ModuleDict({str(i): module.routed[i] for i in range(first, first + per_rank)})
        for name in module.stacked:
            weight = module._parameters[name]
            local = weight.detach()[first : first + per_rank].clone()
            module._parameters[name] = nn.Parameter(local, requires_grad=weight.requires_grad)
        module.run_experts = MethodType(_run_exchanged if dispatched else _run_local, module)
        module.ep, module.etp = ep, etp
    if etp.size() > 1:
        for leaf in experts:
            distribute(net, leaf, etp)
        for path in dict.fromkeys(path for leaf in experts for path in owners(leaf)):
            use_local_shards(net.get_submodule(path))


def _run_local(self: Any, rows: Tensor, counts: Sequence[int], run: Run) -> Tensor:
    """`Experts.run_experts` of this rank's experts; rows of other ranks' experts are 0."""
    numbers = [int(name) for name in self.routed]
    before = sum(counts[: numbers[0]])
    local_counts = [counts[number] for number in numbers]
    shares = rows[before:][: sum(local_counts)].clone().split(local_counts)
    outputs = [expert(share, run) for expert, share in zip(self.routed.values(), shares, strict=True)]
    return F.pad(torch.cat(outputs), (0, 0, before, len(rows) - before - sum(local_counts)))


def _run_exchanged(self: Any, rows: Tensor, counts: Sequence[int], run: Run) -> Tensor:
    """`Experts.run_experts` with all-to-alls, for rows (N, D), `counts` of them for each expert; in the mode `even`
    every rank sends equally many."""
    import torch.distributed as dist
    from torch.distributed._functional_collectives import (
        all_gather_tensor_autograd,
        all_to_all_single_autograd,
        reduce_scatter_tensor_autograd,
    )

    per_rank, ranks, group = len(self.routed), self.ep.size(), self.ep.get_group()
    local_counts = list(counts[per_rank * group.rank() :][:per_rank])
    counts_by_rank = [local_counts] * ranks
    if not current().even:
        sent_counts = torch.tensor(counts, device=rows.device)
        received_counts = torch.empty_like(sent_counts)
        dist.all_to_all_single(received_counts, sent_counts, group=group)
        counts_by_rank = received_counts.unflatten(0, (ranks, per_rank)).tolist()
    sent_rows = [sum(counts[i : i + per_rank]) for i in range(0, len(counts), per_rank)]
    received_rows = [*map(sum, counts_by_rank)]
    received = all_to_all_single_autograd(rows, received_rows, sent_rows, group) if ranks > 1 else rows
    if self.etp.size() > 1:  # every rank of an expert needs the rows that any of them received
        received = all_gather_tensor_autograd(received, 0, self.etp.get_group())
        counts_by_rank = counts_by_rank * self.etp.size()
    pieces = received.split([count for rank_counts in counts_by_rank for count in rank_counts])
    outputs = []
    for i, expert in enumerate(self.routed.values()):
        share = torch.cat(pieces[i::per_rank])
        outputs.append(expert(share, run).split([rank_counts[i] for rank_counts in counts_by_rank]))
    back = torch.cat([of_expert[rank] for rank in range(len(counts_by_rank)) for of_expert in outputs])
    if self.etp.size() > 1:
        back = reduce_scatter_tensor_autograd(back, "sum", 0, self.etp.get_group())
    result: Tensor = all_to_all_single_autograd(back, sent_rows, received_rows, group) if ranks > 1 else back
    return result
