"""Context parallelism with real values: attention over a sequence split over ranks, three ways.

allgather  every rank gathers the keys and values of the ranks before it (Llama 3, arXiv 2407.21783, section 3.3.2)
ring       keys and values are passed around, and partial results are merged by their log-sum-exps (Liu et al. 2023,
           arXiv 2310.01889)
ulysses    all-to-alls between a split by tokens and a split by heads (Jacobs et al. 2023, arXiv 2309.14509)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from txcalc.model import Model
from txcalc.planning.training import Recipe
from txcalc.planning.training.stages import StagePiece
from txcalc.reference.attention import AttentionCore as CoreModule
from txcalc.reference.run import CacheTensors


class RankCache(CacheTensors):
    """A cache that places this rank's tokens after those of earlier ranks of a sequence; with `gather`, it also gathers
    their keys and values (B, T, …)."""

    def __init__(self, turn: int, tokens: int, group: Any, gather: bool) -> None:
        super().__init__()
        self.past, self._seen, self._group, self._gather = turn * tokens, (turn + 1) * tokens, group, gather

    def append(self, path: str, *new: Tensor) -> tuple[Tensor, ...]:
        from torch.distributed._functional_collectives import all_gather_tensor_autograd

        if not self._gather:
            return new
        return tuple(all_gather_tensor_autograd(n.contiguous(), 1, self._group)[:, : self._seen] for n in new)


def exchange(net: nn.Module, recipe: Recipe, turn: int, group: object) -> None:
    """Makes every attention core communicate as the recipe's `context` says."""
    way = {"ring": _ring, "ulysses": _ulysses}.get(recipe.context)
    for core in net.modules():
        if way and isinstance(core, CoreModule):
            core.forward = _bound(way, core.scale, recipe.layout.cp, turn, group)  # type: ignore[method-assign]


def _bound(way: Any, scale: float, ways: int, turn: int, group: Any) -> Any:
    return lambda q, k, v, run, projected=None: way(q, k, v, scale, ways, turn, group).flatten(2)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, triangle: bool) -> tuple[Tensor, Tensor]:
    """Results (B, T, h, d_v) and their log-sum-exps (B, T, h, 1)."""
    times = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(times, 2) for x in (k, v))
    scores = torch.einsum("bthd,bshd->bths", q * scale, k)
    if triangle:
        hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden[:, None], -torch.inf)
    sums = scores.logsumexp(-1, keepdim=True)
    return torch.einsum("bths,bshd->bthd", (scores - sums).exp(), v), sums


def _ring(q: Tensor, k: Tensor, v: Tensor, scale: float, ways: int, turn: int, group: object) -> Tensor:
    y, sums = _attend(q, k, v, scale, True)
    width = k.shape[-1]
    kv = torch.cat((k, v), -1)
    for step in range(1, ways):
        kv = _swap(kv, [turn + 1, turn - 1], ways, group)
        if step <= turn:
            block, block_sums = _attend(q, kv[..., :width], kv[..., width:], scale, False)
            total = torch.logaddexp(sums, block_sums)
            y, sums = y * (sums - total).exp() + block * (block_sums - total).exp(), total
        else:  # later tokens are masked, but every rank's backward takes part in the ring
            y = y + 0 * kv.sum()
    return y


def _ulysses(q: Tensor, k: Tensor, v: Tensor, scale: float, ways: int, turn: int, group: object) -> Tensor:
    q, k, v = (_swap(x.unflatten(2, (ways, -1)).movedim(2, 0), None, ways, group) for x in (q, k, v))
    q, k, v = (x.movedim(0, 1).flatten(1, 2) for x in (q, k, v))
    y, _ = _attend(q, k, v, scale, True)
    return _swap(y.unflatten(1, (ways, -1)).movedim(1, 0), None, ways, group).movedim(0, 2).flatten(2, 3)


def _swap(x: Tensor, neighbours: list[int] | None, ways: int, group: Any) -> Tensor:
    """Sends `x` to the first of two neighbours and receives from the second; without neighbours, sends an equal share
    of its rows to every rank."""
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    sent = received = [x.shape[0] // ways] * ways
    if neighbours:
        sent, received = ([x.shape[0] * (rank == n % ways) for rank in range(ways)] for n in neighbours)
    return all_to_all_single_autograd(x.contiguous(), received, sent, group)


def exchanged_bytes(piece: StagePiece, recipe: Recipe) -> Counter[str]:
    """All-to-alls of one micro-batch, forward and backward, and their bytes."""
    counts: Counter[str] = Counter()
    for leaf in piece.leaves:
        attended = leaf.entry.leaf.attended
        if recipe.context == "allgather" or attended is None or leaf.entry.kind != "attention_core":
            continue
        passes, rows, hops = 2 * len(leaf.layers), piece.work.positions, recipe.layout.cp - 1
        ring = recipe.context == "ring"
        kv = rows * attended.groups * (attended.d_qk + attended.d_v)
        counts["all_to_all"] += passes * (hops if ring else 4)
        counts["all_to_all bytes"] += passes * recipe.compute_bytes * (hops * kv if ring else attended.crossing(rows))
    return counts


def faults(model: Model, recipe: Recipe) -> Iterator[str]:
    """Why a model's sequences cannot be split over processes."""
    layout = recipe.layout
    if layout.gpus > layout.fsdp * layout.cp:
        yield "cp is run alone or with fsdp, and no other axis: cp=4 or fsdp=2,cp=2"
    cores: list[Any] = [entry.leaf for entry in model.ledger() if entry.kind == "attention_core"]
    if not all(leaf.exchanges and leaf.breakpoints == () for leaf in cores):
        yield "cp is run only for softmax attention over all keys"
    elif recipe.context != "allgather" and not all(
        leaf.plain and leaf.masked and leaf.span.causal and leaf.span.cache_kind == "tokens" for leaf in cores
    ):
        yield f"cp with context={recipe.context} is run only for causal attention: context=allgather runs others"
    if any(entry.kind == "recurrent" for entry in model.ledger()):
        yield "cp is run without recurrent mixers"
    if recipe.recompute != "none":
        yield "cp is run without recomputation, which would exchange keys again"
