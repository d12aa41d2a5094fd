"""Experts under torch's own sharding: those of a layer are one parameter per projection, and ranks of ep share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txcalc.planning.training.stages import StagePiece
from txcalc.reference.mode import current
from txcalc.reference.run import Run
from txcalc.verification.branches import NoParallel, distributed, on_its_share, owners, stacked_name


def stacked(net: nn.Module) -> None:
    """Makes one parameter of each matrix or vector of all experts of a module (experts, …), as torchtitan
    (models/common/moe.py, GroupedExperts) and transformers 5 (integrations/moe.py) have them. The owner of the experts
    holds it; while the owner runs, each expert has its slice."""
    every: list[Any] = [module for module in net.modules() if hasattr(module, "routed")]
    for owner in every:
        owner.stacked = {stacked_name(name): name for name, _ in owner.routed[0].named_parameters()}
        for made, name in owner.stacked.items():
            each = [expert.get_parameter(name) for expert in owner.routed]
            together = torch.stack([weight.detach() for weight in each])
            owner._parameters[made] = nn.Parameter(together, requires_grad=each[0].requires_grad)
        _slice_by_slice(owner, None)
        owner.forward = _sliced(owner)


def _sliced(owner: Any) -> Any:
    forward = owner.forward

    def sliced(*given: Any, **named: Any) -> Any:
        try:
            _slice_by_slice(owner, owner._parameters)
            return forward(*given, **named)
        finally:
            _slice_by_slice(owner, None)

    return sliced


def _slice_by_slice(owner: Any, stacks: Mapping[str, Any] | None) -> None:
    """Gives each expert its slices of `stacks`; None: takes them away."""
    for made, name in owner.stacked.items():
        path, _, last = name.rpartition(".")
        experts = list(owner.routed.children())
        for expert, own in zip(experts, stacks[made].unbind() if stacks else [None] * len(experts), strict=True):
            expert.get_submodule(path)._parameters[last] = own


def spread(net: nn.Module, piece: StagePiece, meshes: Mapping[Any, Any]) -> None:
    """Distributes experts over the ranks of ep, each expert whole or sharded over those of etp: each routed token is
    sent to a rank of its expert and the result is sent back (all-to-all, as in torchtitan); where the ranks of tp hold
    all experts, each computes the tokens routed to its own."""
    ep, etp = meshes["ep"], meshes["etp"]
    experts = [held for held in piece.leaves if held.entry.routed]
    for path, sent in dict.fromkeys((path, held.dispatched) for held in experts for path in owners(held)):
        module: Any = net.get_submodule(path)
        if not hasattr(module, "through"):
            raise NoParallel(f"{path}: experts of attention over the ranks of ep are modelled, and not run")
        each = len(module.routed) // ep.size()
        first = each * ep.get_local_rank()
        module.routed = nn.ModuleDict({str(i): module.routed[i] for i in range(first, first + each)})
        for name in module.stacked:
            whole = module._parameters[name]
            own = whole.detach()[first : first + each].clone()
            module._parameters[name] = nn.Parameter(own, requires_grad=whole.requires_grad)
        module.through = MethodType(_exchanged if sent else _chosen, module)
        module.ep, module.etp = ep, etp
    if etp.size() > 1:
        for held in experts:
            distributed(net, held, etp)
        for path in dict.fromkeys(path for held in experts for path in owners(held)):
            on_its_share(net.get_submodule(path))


def _chosen(self: Any, rows: Tensor, counts: Sequence[int], run: Run) -> Tensor:
    """`Experts.through` of the local experts; the others add nothing."""
    numbers = [int(name) for name in self.routed]
    before = sum(counts[: numbers[0]])
    mine = [counts[number] for number in numbers]
    made = [
        expert(share, run)
        for expert, share in zip(self.routed.values(), rows[before:][: sum(mine)].clone().split(mine), strict=True)
    ]
    return F.pad(torch.cat(made), (0, 0, before, len(rows) - before - sum(mine)))


def _exchanged(self: Any, rows: Tensor, counts: Sequence[int], run: Run) -> Tensor:
    """`Experts.through` for rows (N, D), `counts` of them for each expert; if experts choose tokens in turn, every rank
    sends equally many."""
    import torch.distributed as dist
    from torch.distributed._functional_collectives import (
        all_gather_tensor_autograd,
        all_to_all_single_autograd,
        reduce_scatter_tensor_autograd,
    )

    each, ranks, group = len(self.routed), self.ep.size(), self.ep.get_group()
    mine = list(counts[each * group.rank() :][:each])
    there = [mine] * ranks
    if not current().even:
        asked = torch.tensor(counts, device=rows.device)
        told = torch.empty_like(asked)
        dist.all_to_all_single(told, asked, group=group)
        there = told.unflatten(0, (ranks, each)).tolist()
    going, coming = [sum(counts[i : i + each]) for i in range(0, len(counts), each)], [sum(one) for one in there]
    arrived = all_to_all_single_autograd(rows, coming, going, group) if ranks > 1 else rows
    if self.etp.size() > 1:  # all ranks of an expert need what one of them received
        arrived, there = all_gather_tensor_autograd(arrived, 0, self.etp.get_group()), there * self.etp.size()
    pieces = arrived.split([count for one in there for count in one])
    made = []
    for i, expert in enumerate(self.routed.values()):
        share = torch.cat(pieces[i::each])
        made.append(expert(share, run).split([one[i] for one in there]))
    back = torch.cat([of_expert[rank] for rank in range(len(there)) for of_expert in made])
    if self.etp.size() > 1:
        back = reduce_scatter_tensor_autograd(back, "sum", 0, self.etp.get_group())
    result: Tensor = all_to_all_single_autograd(back, going, coming, group) if ranks > 1 else back
    return result
