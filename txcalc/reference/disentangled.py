"""Disentangled attention: see `parts.disentangled`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txcalc.parts import disentangled as parts
from txcalc.parts.linear import Linear as LinearPart
from txcalc.reference.attention import distances
from txcalc.reference.linear import Linear, Lookup, Norm
from txcalc.reference.run import Run, TensorOptions


class DistanceTable(nn.Module):
    """A vector (rows, D) for each distance from −rows/2 up, or for each bucket of them."""

    def __init__(self, part: parts.DistanceTable, like: TensorOptions) -> None:
        super().__init__()
        self.table = Lookup(part.rows, part.width, like)
        self.norm = Norm(part.norm, like) if part.norm else None

    def forward(self) -> Tensor:
        return self.table.weight if self.norm is None else self.norm(self.table.weight)


class Borrowed(Linear):
    """The weight and the bias of another layer."""

    def __init__(self, owner: Linear) -> None:
        nn.Module.__init__(self)
        self.weight, self.bias = owner.weight, owner.bias


class DisentangledCore(nn.Module):
    """Scores of content with content, and of content with distances, gathered by distance."""

    def __init__(self, part: parts.DisentangledCore) -> None:
        super().__init__()
        self.scale = (part.d_head * (1 + part.c2p + part.p2c)) ** -0.5 if part.scale is None else part.scale
        self.reach, self.distance, self.clipped = part.reach, part.distance, part.clipped

    def forward(self, q: Tensor, k: Tensor, v: Tensor, run: Run, *projected: Tensor | None) -> Tensor:
        """y (B, T, h·d) of q, k, v (B, T, h, d) and, if present, the distances' keys and queries (R, h, d)."""
        c2p_keys, p2c_queries = projected
        q = q * self.scale
        scores = torch.bmm(_by_head(q), _by_head(k).mT).unflatten(0, (-1, q.shape[2]))
        index = run.build_once(("distances", self.reach, self.distance), lambda: self._row_index(run))
        if c2p_keys is not None:
            scores = scores + _products_by_head(q, c2p_keys).gather(3, index.expand_as(scores))
        if p2c_queries is not None:
            scores = scores + _products_by_head(k, p2c_queries * self.scale).gather(3, index.mT.expand_as(scores)).mT
        probs = scores.softmax(-1, dtype=torch.float32 if scores.dtype.itemsize < 4 else None).to(v.dtype)
        return torch.bmm(probs.flatten(0, 1), _by_head(v)).unflatten(0, (-1, q.shape[2])).transpose(1, 2).flatten(2)

    def rows(self, tokens: int) -> slice:
        """The rows of the table that are projected."""
        reach = self._reach(tokens)
        return slice(self.reach - reach, self.reach + reach)

    def _reach(self, tokens: int) -> int:
        if not self.clipped:
            return self.reach
        tokens = int(tokens) if isinstance(tokens, Tensor) else tokens  # fvcore traces lengths as tensors
        return torch.sym_min(tokens, self.reach)

    def _row_index(self, run: Run) -> Tensor:
        """The row (T, T) of the distance i − j: the distance or its bucket, from the middle of the table."""
        tokens = run.positions.shape[0]
        offset, reach = distances(run, tokens), self._reach(tokens)
        if self.reach < self.distance:
            offset = self._bucket(offset)
        return (offset + reach).clamp(min=0).clamp(max=2 * reach - 1)

    def _bucket(self, offset: Tensor) -> Tensor:
        """Exact distances up to half the buckets, logarithmic beyond."""
        exact = self.reach // 2
        size = offset.abs()
        longest = torch.full((), (self.distance - 1) / exact, device=offset.device).log()
        growth = torch.log(size.clamp(min=exact) / exact) / longest * (exact - 1)
        return torch.where(size <= exact, offset, (growth.ceil().long() + exact) * offset.sign())


def _by_head(x: Tensor) -> Tensor:
    """(B, T, h, d) as (B·h, T, d)."""
    return x.transpose(1, 2).flatten(0, 1)


def _products_by_head(x: Tensor, projected: Tensor) -> Tensor:
    """x (B, T, h, d) times projected (R, h, d): (B, h, T, R), one product per head for all sequences."""
    rows = x.permute(2, 0, 1, 3).flatten(1, 2)
    return torch.bmm(rows, projected.permute(1, 2, 0)).unflatten(1, x.shape[:2]).transpose(0, 1)


def _projection(part: LinearPart | None, owner: Linear, like: TensorOptions) -> Linear | None:
    if part is None:
        return None
    return Borrowed(owner) if part.borrowed else Linear(part.d_in, part.d_out, part.bias, like)


class DisentangledAttention(nn.Module):
    """q, k, v, the distances projected, the core and o."""

    def __init__(self, part: parts.DisentangledAttention, like: TensorOptions) -> None:
        super().__init__()
        d_model, width = part.d_model, part.n_heads * part.d_head
        self.q = Linear(d_model, width, "q" in part.biases, like)
        self.k = Linear(d_model, width, "k" in part.biases, like)
        self.v = Linear(d_model, width, "v" in part.biases, like)
        self.distance_k = _projection(part.distance_k, self.k, like)
        self.distance_q = _projection(part.distance_q, self.q, like)
        self.core = DisentangledCore(part.core)
        self.o = Linear(width, d_model, "o" in part.biases, like)
        self.width = part.d_head

    def forward(self, x: Tensor, run: Run) -> Tensor:
        q, k, v = (module(x).unflatten(-1, (-1, self.width)) for module in (self.q, self.k, self.v))
        assert run.distances is not None
        table = run.distances[self.core.rows(x.shape[1])]
        projected = [
            None if module is None else module(table).unflatten(-1, (-1, self.width))
            for module in (self.distance_k, self.distance_q)
        ]
        return self.o(self.core(q, k, v, run, *projected))
