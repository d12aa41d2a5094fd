"""Attention whose query heads are experts: see `parts.routed`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txcalc.parts import routed as parts
from txcalc.reference.attention import AttentionCore, Rotary
from txcalc.reference.linear import Linear, Shift
from txcalc.reference.run import Run, TensorOptions, current


class ChosenExperts(nn.Module):
    """Applies the selected expert to each of a row's k vectors."""

    def __init__(self, experts: int, top_k: int, widths: tuple[int, int], like: TensorOptions) -> None:
        super().__init__()
        self.experts, self.top_k = experts, top_k  # with PyTorch's symbols one stands for all
        modules = range(experts) if type(experts) is int else range(1)
        self.routed = nn.ModuleList(Linear(*widths, False, like) for _ in modules)

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        """(rows, k, …) of x (rows, k, …) and the experts' indices (rows, k)."""
        flat = x.flatten(0, 1)
        if current().static:
            order = torch.arange(flat.shape[0], device=x.device).unflatten(0, (-1, self.top_k)).T.flatten()
            if type(self.experts) is int:
                busy = [(expert, x.shape[0]) for expert in list(self.routed)[: self.top_k]]
            else:
                busy = [(self.routed[0], flat.shape[0])]
        else:
            order = chosen.flatten().argsort(stable=True)
            number = len(self.routed)
            even = [len(range(i, flat.shape[0], number)) for i in range(number)]
            counts = even if current().even else chosen.flatten().bincount(minlength=number).tolist()
            busy = [(expert, count) for expert, count in zip(self.routed, counts, strict=True) if count]
        shares = flat[order].split([count for _, count in busy])
        outputs = torch.cat([expert(share) for (expert, _), share in zip(busy, shares, strict=True)])
        return outputs[order.argsort()].unflatten(0, (-1, self.top_k))


class RoutedAttention(nn.Module):
    """Queries from each token's experts, on keys and values that all experts share."""

    def __init__(self, part: parts.RoutedAttention, like: TensorOptions) -> None:
        super().__init__()
        d, width = part.d_model, part.n_kv_heads * part.d_head
        self.router = Linear(d, part.n_experts, False, like)
        self.q = ChosenExperts(part.n_experts, part.top_k, (d, width), like)
        self.k, self.v = Linear(d, width, False, like), Linear(d, width, False, like)
        self.rotary = Rotary(part.rotary) if part.rotary else None
        self.core = AttentionCore(part.core, like)
        self.o = ChosenExperts(part.n_experts, part.top_k, (width, d), like)
        self.bias = Shift(part.bias, like) if part.bias else None
        self.top_k, self.width = part.top_k, part.d_head

    def forward(self, x: Tensor, run: Run) -> Tensor:
        rows = x.flatten(0, 1)
        weights, chosen = self._route(rows)
        q = self.q(rows.unsqueeze(1).expand(-1, self.top_k, -1), chosen)  # (rows, k, h_kv·d)
        q = q.unflatten(2, (-1, self.width)).transpose(1, 2).flatten(1, 2)  # grouped by key/value head
        q = q.unflatten(0, x.shape[:2])
        k, v = (side(x).unflatten(-1, (-1, self.width)) for side in (self.k, self.v))
        if self.rotary is not None:
            q, k = self.rotary(q, run), self.rotary(k, run)
        y = self.core(q, *self.core.extend(run, k, v), run).flatten(0, 1)
        y = y.unflatten(1, (-1, self.top_k, self.width)).transpose(1, 2).flatten(2)
        y = (self.o(y, chosen) * weights.unsqueeze(2).to(x.dtype)).sum(1).view_as(x)
        return y if self.bias is None else self.bias(y)

    def _route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and indices (rows, k) of each row's experts."""
        scores = self.router(rows).float()
        if current().static:
            chosen = torch.arange(self.top_k, device=rows.device).expand(rows.shape[0], -1)
        elif current().even:
            turns = torch.arange(rows.shape[0] * self.top_k, device=rows.device) % len(self.q.routed)
            chosen = turns.unflatten(0, (-1, self.top_k))
        else:
            chosen = scores.topk(self.top_k).indices
        return scores.gather(1, chosen).softmax(-1), chosen
