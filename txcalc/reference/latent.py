"""Multi-head latent attention and the index that selects its keys: see `parts.latent`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from txcalc.parts import latent as parts
from txcalc.parts.norm import Norm as NormPart
from txcalc.parts.spans import Selected
from txcalc.reference.attention import Core, Gate, Rotary
from txcalc.reference.linear import Linear, Norm
from txcalc.reference.run import Run, TensorOptions, current


class LatentCore(Core):
    """The core of `LatentAttention`; it caches the latents and the rotated key that all heads share."""

    def __init__(self, part: parts.LatentCore, like: TensorOptions) -> None:
        super().__init__(part.span, (part.d_nope + part.d_rope) ** -0.5 if part.scale is None else part.scale)
        self.sinks = like.parameter(part.n_heads) if part.sinks else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, run: Run, selected: Tensor | None = None) -> Tensor:
        """`selected` (B, 1, T, S) is added to the scores of every head."""
        bias = None if selected is None else selected.expand(-1, q.shape[2], -1, -1)
        return self.attend(q, k, v, run, bias, self.sinks)


class IndexCore(Core):
    """The keys that each query selects, by Σ w·relu(q·k); it caches k (B, S, d)."""

    def __init__(self, part: parts.IndexCore) -> None:
        super().__init__(part.span, (part.n_heads * part.width) ** -0.5)

    def forward(self, q: Tensor, k: Tensor, weights: Tensor, top_k: int, run: Run) -> Tensor:
        """0 where a query selects a key and −∞ elsewhere (B, 1, T, S), for q (B, T, h, d), k (B, T, d) and weights (B,
        T, h). Ties go to the earlier key. In the `static` mode it is 0 everywhere, but computed from the scores, since
        a trace drops unused results."""
        (k,) = self.extend(run, k)
        heads = q.shape[2]
        products = torch.bmm(q.flatten(1, 2), k.mT).relu().unflatten(1, (-1, heads)).flatten(0, 1)  # (B·T, h, S)
        scores = torch.bmm((weights * self.scale).flatten(0, 1).unsqueeze(1), products).view(*q.shape[:2], k.shape[1])
        if current().static:
            return (0 * scores).unsqueeze(1)
        scores = scores + run.build_once("seen", lambda: self.additive_mask(run, k.shape[1], q.dtype))
        best = scores.sort(dim=-1, descending=True, stable=True).indices[..., :top_k]
        return torch.full_like(scores, -math.inf).scatter(-1, best, 0).unsqueeze(1)


class Temperature(nn.Module):
    """Heads (B, T, h, d) times s·ln(i + 1) + b at position i."""

    def __init__(self, part: parts.Temperature, like: TensorOptions) -> None:
        super().__init__()
        self.scale, self.bias = like.parameter(part.n_heads), like.parameter(part.n_heads)

    def forward(self, q: Tensor, run: Run) -> Tensor:
        logs = run.build_once("logs", lambda: (run.positions + 1).float().log().unsqueeze(-1).to(q.dtype))
        return q * (self.scale * logs + self.bias).unsqueeze(-1)


class Indexer(nn.Module):
    """The queries, key and weights of the index; the model's loss gives them no gradient."""

    def __init__(self, part: parts.Indexer, top_k: int, like: TensorOptions) -> None:
        super().__init__()
        self.q_norm = Norm(part.q_norm, like) if part.q_norm else None
        self.q = Linear(part.d_query, part.n_heads * part.width, False, like)
        self.k = Linear(part.d_model, part.width, False, like)
        self.k_norm = Norm(part.key_norm, like)
        self.weights = Linear(part.d_model, part.n_heads, False, like)
        self.temper = Temperature(part.temper, like) if part.temper else None
        self.rotary = Rotary(part.rotary) if part.rotary else None
        self.core = IndexCore(part.core)
        self.width, self.top_k = part.width, top_k

    @torch.no_grad()
    def forward(self, x: Tensor, low: Tensor | None, run: Run) -> Tensor:
        """`IndexCore`'s mask, from the layer's input x (B, T, D) and its low-rank queries (B, T, r_q), if any."""
        query_input = low if self.q_norm is None else self.q_norm(x)
        q, k = self.q(query_input).unflatten(-1, (-1, self.width)), self.k_norm(self.k(x)).unsqueeze(2)
        if self.temper is not None:
            q = self.temper(q, run)
        if self.rotary is not None:
            q, k = self.rotary(q, run), self.rotary(k, run)
        selected: Tensor = self.core(q, k.squeeze(2), self.weights(x), self.top_k, run)
        return selected


class Expansion(Linear):
    """MLA's kv_b: latents (B, S, r) to every head's key and value; or, absorbed, queries into latent space and attended
    latents out of it, without expanding a latent."""

    def __init__(self, rank: int, heads: int, d_nope: int, d_v: int, like: TensorOptions) -> None:
        super().__init__(rank, heads * (d_nope + d_v), False, like)
        self.heads, self.d_nope = heads, d_nope

    def forward(self, x: Tensor, form: str = "expand") -> Tensor:
        if form == "expand":
            return super().forward(x).unflatten(-1, (self.heads, -1))
        weight = self.weight.unflatten(0, (self.heads, -1))
        weight = weight[:, : self.d_nope] if form == "query" else weight[:, self.d_nope :].mT
        rows = x.permute(2, 0, 1, 3).flatten(1, 2)  # (h, B·T, …)
        return (rows @ weight).unflatten(1, x.shape[:2]).permute(1, 2, 0, 3)


class LatentAttention(nn.Module):
    """MLA: queries through a low rank or directly, keys and values from a latent, positions by a few rotated dims."""

    def __init__(self, part: parts.LatentAttention, like: TensorOptions) -> None:
        super().__init__()
        d_model, heads, rank = part.d_model, part.n_heads, part.kv_rank
        queries = heads * (part.d_nope + part.d_rope)
        self.low_rank = part.q_rank is not None
        if self.low_rank:
            self.q_a = Linear(d_model, part.q_rank, part.bias, like)
            self.q_norm = Norm(NormPart(width=part.q_rank, form="rms", bias=False, eps=part.norm_eps), like)
            self.q_b = Linear(part.q_rank, queries, False, like)
        else:
            self.q = Linear(d_model, queries, False, like)
        self.kv_a = Linear(d_model, rank + part.d_rope, part.bias, like)
        self.kv_norm = Norm(NormPart(width=rank, form="rms", bias=False, eps=part.norm_eps), like)
        self.kv_b = Expansion(rank, heads, part.d_nope, part.d_v, like)
        self.k_norm = Norm(part.k_norm, like) if part.k_norm else None
        self.temper = Temperature(part.temper, like) if part.temper else None
        self.rotary = Rotary(part.rotary) if part.rotary else None
        self.g = Linear(d_model, heads * part.gate.gates, False, like) if part.gate else None
        self.gate = Gate(part.gate) if part.gate else None
        self.core = LatentCore(part.core, like)
        self.chosen = isinstance(part.core.span, Selected)
        self.indexer = None
        if part.indexer:
            assert isinstance(part.core.span, Selected)
            self.indexer = Indexer(part.indexer, part.core.span.top_k, like)
        self.o = Linear(heads * part.d_v, d_model, part.bias, like)
        self.rank, self.d_nope, self.d_rope, self.d_v = rank, part.d_nope, part.d_rope, part.d_v

    def forward(self, x: Tensor, run: Run) -> Tensor:
        d_nope, d_rope = self.d_nope, self.d_rope
        low = self.q_norm(self.q_a(x)) if self.low_rank else None
        q = self.q(x) if low is None else self.q_b(low)
        selected = None
        if self.indexer is not None:
            selected = self.indexer(x, low, run)
            run.lent["selected"] = (selected,)
        elif self.chosen and "selected" in run.lent:  # without a selection all keys are visible
            (selected,) = run.lent["selected"]
        q = q.unflatten(-1, (-1, d_nope + d_rope))
        q = q if self.temper is None else self.temper(q, run)
        q_nope, q_rope = q.split((d_nope, d_rope), -1)
        latent, k_rope = self.kv_a(x).split((self.rank, d_rope), -1)
        if self.k_norm is not None:
            k_rope = self.k_norm(k_rope.contiguous())
        if self.rotary is not None:
            q_rope, k_rope = self.rotary(q_rope, run), self.rotary(k_rope.unsqueeze(2), run).squeeze(2)
        # A copy without the rotated key, which backward would otherwise save too.
        latent, k_rope = self.core.extend(run, self.kv_norm(latent.contiguous()), k_rope)
        if current().absorbed:
            q = torch.cat((self.kv_b(q_nope, "query"), q_rope), -1)
            k = torch.cat((latent, k_rope), -1).unsqueeze(2)
            y = self.core(q, k, latent.unsqueeze(2), run, selected).unflatten(-1, (-1, self.rank))
            return self._out(self.kv_b(y, "value").flatten(2), x)
        k_nope, v = self.kv_b(latent).split((d_nope, self.d_v), -1)
        k = torch.cat((k_nope, k_rope.unsqueeze(2).expand(-1, -1, k_nope.shape[2], -1)), -1)
        return self._out(self.core(torch.cat((q_nope, q_rope), -1), k, v, run, selected), x)

    def _out(self, y: Tensor, x: Tensor) -> Tensor:
        """The heads' output (B, T, h·d_v), gated by x."""
        return self.o(y if self.gate is None or self.g is None else self.gate(y, self.g(x)))
