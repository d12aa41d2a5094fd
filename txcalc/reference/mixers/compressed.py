"""Attention over a window and compressed entries: see `parts.mixers.compressed`."""

from __future__ import annotations

import math
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from txcalc.parts.linear import GroupedLinear as GroupedLinearPart
from txcalc.parts.mixers import compressed as parts
from txcalc.parts.norm import Norm as NormPart
from txcalc.parts.spans import Full
from txcalc.reference.attention import Core, Rotary
from txcalc.reference.linear import GroupedLinear, Linear, Norm
from txcalc.reference.run import Cached, Run, TensorOptions, current


def rotate_tail(rotary: Rotary, dims: int, x: Tensor, run: Run, back: bool = False) -> Tensor:
    """x (B, T, h, d) with its last dimensions rotated by their positions, or back."""
    head, tail = x.split((x.shape[-1] - dims, dims), -1)
    run = replace(run, positions=-run.positions, tables={}) if back else run
    return torch.cat((head, rotary(tail, run)), -1)


class Pool(Cached):
    """New entries (B, n, d) of kv and gates (B, T, w·d), and all entries (B, E, d) including cached ones."""

    def __init__(self, part: parts.Pool, like: TensorOptions) -> None:
        super().__init__()
        self.bias = like.parameter(part.rate, part.series)
        self.width, self.rate, self.overlap = part.width, part.rate, part.overlap

    def forward(self, kv: Tensor, gate: Tensor, run: Run) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The entries before norm and rotation, and the tensors to cache with them."""
        cached, rate = run.recall(self.place), self.rate
        if cached:
            kv, gate = torch.cat((cached[1], kv), 1), torch.cat((cached[2], gate), 1)
        keys = run.past + run.positions.shape[0]
        full = 0 if keys < rate else keys // rate - run.past // rate  # symbolic quotients are never 0
        pending = tuple(x[:, full * rate :].clone() for x in (kv, gate)) if run.cache is not None else ()
        kv, gate = (x[:, : full * rate].unflatten(1, (full, rate)) for x in (kv, gate))
        gate = gate + self.bias
        if self.overlap:
            before = cached[3:] if cached else ()
            if run.cache is not None:
                last = tuple(x[:, full - 1 :, :, : self.width].flatten(1, 2).clone() for x in (kv, gate))
                pending += last if full else before
            kv, gate = self._overlap(kv, before[:1], 0), self._overlap(gate, before[1:], -math.inf)
        return (kv * gate.softmax(2)).sum(2), pending

    def _overlap(self, x: Tensor, before: tuple[Tensor, ...], empty: float) -> Tensor:
        """Each group's second half (B, n, rate, d), joined with the previous group's first half: (B, n, 2·rate, d)."""
        second, earlier = x[..., self.width :], x[:, :-1, :, : self.width]
        first = before[0].unsqueeze(1) if before else torch.full_like(second[:, :1], empty)
        return torch.cat((torch.cat((first, earlier), 1)[:, : x.shape[1]], second), 2)


class Compressor(nn.Module):
    """All entries (B, E, d) up to the last token."""

    def __init__(self, part: parts.Compressor, like: TensorOptions) -> None:
        super().__init__()
        self.kv, self.gate = (Linear(part.d_model, part.pool.series, False, like) for _ in range(2))
        self.pool, self.norm = Pool(part.pool, like), Norm(part.norm, like)
        self.rotary, self.dims = Rotary(part.rotary), part.rotary.dims

    def forward(self, x: Tensor, run: Run) -> Tensor:
        rate = self.pool.rate
        pooled, pending = self.pool(self.kv(x), self.gate(x), run)
        positions = run.past // rate * rate + rate * torch.arange(pooled.shape[1], device=x.device)
        entry_run = replace(run, positions=positions, tables={})
        entries = rotate_tail(self.rotary, self.dims, self.norm(pooled).unsqueeze(2), entry_run).squeeze(2)
        cached = run.recall(self.pool.place)
        entries = torch.cat((cached[0], entries), 1) if cached else entries
        run.keep(self.pool.place, entries, *pending)
        return entries


def entry_mask(run: Run, entries: int, rate: int, dtype: torch.dtype) -> Tensor:
    """0 where a query sees an entry, else −∞: (T, E)."""
    visible = (run.positions[:, None] + 1) // rate
    hidden = torch.arange(entries, device=run.positions.device) >= visible
    return torch.zeros_like(hidden, dtype=dtype).masked_fill(hidden, -math.inf)


class SelectionCore(nn.Module):
    """−∞ for the entries that a query does not select: (B, 1, T, E)."""

    def __init__(self, part: parts.SelectionCore) -> None:
        super().__init__()
        assert part.span.top_k is not None
        self.rate, self.top_k, self.scale = part.span.rate, part.span.top_k, (part.n_heads * part.width) ** -0.5

    def forward(self, q: Tensor, entries: Tensor, weights: Tensor, run: Run) -> Tensor:
        heads = q.shape[2]
        products = torch.bmm(q.flatten(1, 2), entries.mT).relu().unflatten(1, (-1, heads))  # (B, T, h, E)
        scores = (products * (weights * self.scale).unsqueeze(-1)).sum(2)
        mask = entry_mask(run, entries.shape[1], self.rate, q.dtype)
        if current().static:
            return (0 * scores + mask).unsqueeze(1)
        best = (scores + mask).sort(dim=-1, descending=True, stable=True).indices[..., : self.top_k]
        return (torch.full_like(scores, -math.inf).scatter(-1, best, 0) + mask).unsqueeze(1)


class Selector(nn.Module):
    """The index; the model's loss gives it no gradient."""

    def __init__(self, part: parts.Selector, like: TensorOptions) -> None:
        super().__init__()
        self.compressor = Compressor(part.compressor, like)
        self.q = Linear(part.q_rank, part.core.n_heads * part.core.width, False, like)
        self.weights = Linear(part.d_model, part.core.n_heads, False, like)
        self.rotary, self.core = Rotary(part.rotary), SelectionCore(part.core)
        self.dims, self.width = part.rotary.dims, part.core.width

    @torch.no_grad()
    def forward(self, x: Tensor, low: Tensor, run: Run) -> Tensor:
        q = rotate_tail(self.rotary, self.dims, self.q(low).unflatten(-1, (-1, self.width)), run)
        selected: Tensor = self.core(q, self.compressor(x, run), self.weights(x), run)
        return selected


class CompressedCore(Core):
    """The core of `CompressedAttention`; it caches the window's keys, which are also the values."""

    def __init__(self, part: parts.CompressedCore, like: TensorOptions) -> None:
        super().__init__(part.span, part.d_qk**-0.5)
        self.seen = Core(Full(), part.d_qk**-0.5)  # masked by the masks passed in
        self.sinks = like.parameter(part.n_heads)

    def forward(self, q: Tensor, kv: Tensor, entries: Tensor | None, mask: Tensor | None, run: Run) -> Tensor:
        """`mask` (B, 1, T, E) is added to the scores of the entries."""
        window = self.additive_mask(run, kv.shape[1], q.dtype).expand(q.shape[0], 1, -1, -1)
        if entries is not None and mask is not None:
            kv = torch.cat((kv, entries.unsqueeze(2)), 1)
            window = torch.cat((window, mask), -1)
        return self.seen.attend(q, kv, kv, run, window.expand(-1, q.shape[2], -1, -1), self.sinks)


class CompressedAttention(nn.Module):
    """Low-rank queries, one head of keys that are also values, compressed entries, and a grouped projection."""

    def __init__(self, part: parts.CompressedAttention, like: TensorOptions) -> None:
        super().__init__()
        d_model, width, heads = part.d_model, part.d_head, part.n_heads
        rms: dict[str, Any] = {"form": "rms", "bias": False, "eps": part.norm_eps}
        self.q_a, self.q_b = Linear(d_model, part.q_rank, False, like), Linear(part.q_rank, heads * width, False, like)
        self.q_norm = Norm(NormPart(width=part.q_rank, **rms), like)
        self.q_head_norm = Norm(NormPart(width=width, **rms, weighted=False), like)
        self.kv, self.kv_norm = Linear(d_model, width, False, like), Norm(NormPart(width=width, **rms), like)
        self.rotary, self.unrotary, self.dims = Rotary(part.rotary), Rotary(part.rotary), part.rotary.dims
        self.compressor = Compressor(part.compressor, like) if part.compressor else None
        self.selector = Selector(part.selector, like) if part.selector else None
        self.core = CompressedCore(part.core, like)
        grouped = GroupedLinearPart(groups=part.groups, d_in=part.d_group, d_out=part.o_rank, bias=False)
        self.o_a = GroupedLinear(grouped, like)
        self.o_b = Linear(part.groups * part.o_rank, d_model, False, like)
        self.width = width

    def forward(self, x: Tensor, run: Run) -> Tensor:
        low = self.q_norm(self.q_a(x))
        q = rotate_tail(self.rotary, self.dims, self.q_head_norm(self.q_b(low).unflatten(-1, (-1, self.width))), run)
        kv = rotate_tail(self.rotary, self.dims, self.kv_norm(self.kv(x)).unsqueeze(2), run)
        entries = mask = None
        if self.compressor is not None:
            entries = self.compressor(x, run)
            if self.selector is None:
                mask = entry_mask(run, entries.shape[1], self.compressor.pool.rate, q.dtype)
                mask = mask.expand(x.shape[0], 1, -1, -1)
            else:
                mask = self.selector(x, low, run)
        y = self.core(q, *self.core.extend(run, kv), entries, mask, run).unflatten(-1, (-1, self.width))
        return self.o_b(self.o_a(rotate_tail(self.unrotary, self.dims, y, run, back=True).flatten(2)))
