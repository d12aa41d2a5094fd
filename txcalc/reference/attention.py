"""Attention: the cores, explicit and fused, and the layers around them: see `parts.cores` and `parts.attention`.

K and V keep their own h_kv heads throughout: the queries are grouped, nothing is repeated.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor, nn

from txcalc.parts import attention as parts, cores, positions, spans
from txcalc.reference.linear import FORMS, Linear, Norm, Times, sinusoids
from txcalc.reference.run import Cached, Run, TensorOptions, current


class Core(Cached):
    """softmax(q·kᵀ)·v over the keys visible under the span, and the cached keys and values."""

    def __init__(self, span: spans.Span, scale: float, softcap: float | None = None) -> None:
        super().__init__()
        self.causal, self.chunked = span.causal, isinstance(span, spans.Chunks)
        self.window: int | None = None if isinstance(span, spans.Selected) else span.max_keys
        self.scale, self.softcap = scale, softcap

    def extend(self, run: Run, *new: Tensor) -> tuple[Tensor, ...]:
        """Tensors (B, T, …) of the new tokens, preceded by the visible cached ones: (B, S, …)."""
        if run.cache is None or not self.causal:
            return new
        if self.window is None:
            return run.cache.append(f"{run.layer}.{self.place}", *new)
        cached = run.recall(self.place)
        if cached:
            visible = min(cached[0].shape[1], self.window - 1)
            new = tuple(torch.cat((h[:, h.shape[1] - visible :], n), 1) for h, n in zip(cached, new, strict=True))
        run.keep(self.place, *(n[:, -self.window :].clone() for n in new))
        return new

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, run: Run, bias: Tensor | None = None, sinks: Tensor | None = None
    ) -> Tensor:
        """y (B, T, h·d_v) of q (B, T, h, d), k (B, S, h_kv, d), v (B, S, h_kv, d_v) and `bias` (…, h, T, S), which is
        added to the scores. A soft cap or a sink has no fused form."""
        groups = k.shape[2]
        fused = not current().explicit and self.softcap is None and sinks is None
        plain = fused and bias is None and self.window is None and run.past == 0  # the kernel's own causal mask
        single_query = run.past > 0 and run.positions.shape[0] == 1 and not self.chunked  # it sees the whole cache
        masked = (self.causal or self.window is not None) and not (plain or single_query)
        stacked = not fused or (current().grouped and (masked or bias is not None))
        # Queries that share a key and value, stacked as rows. (A quotient of symbols would be a floor.)
        group = q.unflatten(2, (groups, -1)).shape[3] if stacked else 1
        if bias is not None and stacked:
            bias = bias.unflatten(-3, (groups, group)).flatten(-3, -2)
        if masked:
            key = "mask", self.window, self.chunked, group
            mask = run.build_once(key, lambda: self.additive_mask(run, k.shape[1], q.dtype).repeat(group, 1))
            bias = mask if bias is None else bias + mask
        if fused:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            q = q.unflatten(1, (groups, group)).flatten(2, 3) if group > 1 else q
            bias = bias.unsqueeze(0) if bias is not None and bias.dim() == 3 else bias  # kernels take two or four axes
            y = F.scaled_dot_product_attention(
                q, k, v, bias, is_causal=self.causal and plain, scale=self.scale, enable_gqa=bool(q.shape[1] != groups)
            )
            y = y.unflatten(2, (group, -1)).flatten(1, 2) if group > 1 else y
            return y.transpose(1, 2).flatten(2)
        q = (q * self.scale).unflatten(2, (groups, group)).permute(0, 2, 3, 1, 4).flatten(2, 3).flatten(0, 1)
        k, v = k.permute(0, 2, 3, 1).flatten(0, 1), v.permute(0, 2, 1, 3).flatten(0, 1)
        scores = torch.bmm(q, k).unflatten(0, (-1, groups))  # (B, h_kv, group·T, S)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if bias is not None:
            scores = scores + bias
        if sinks is not None:
            column = sinks.unflatten(0, (groups, group, 1)).expand(-1, -1, run.positions.shape[0]).flatten(1)
            column = column.unsqueeze(-1).expand(scores.shape[0], -1, -1, -1)
            scores = torch.cat((scores, column.to(scores.dtype)), -1)
        probabilities = scores.softmax(-1, dtype=torch.float32 if scores.dtype.itemsize < 4 else None).to(v.dtype)
        if sinks is not None:
            probabilities = probabilities[..., :-1]
        y = torch.bmm(probabilities.flatten(0, 1), v).unflatten(0, (-1, groups)).unflatten(2, (group, -1))
        return y.permute(0, 3, 1, 2, 4).flatten(2)

    def additive_mask(self, run: Run, keys: int, dtype: torch.dtype) -> Tensor:
        """0 where query i sees key j, else −∞: (T, S)."""
        offsets = distances(run, keys)
        if self.window is None:
            hidden = offsets < 0
        elif self.causal:
            max_offset = run.positions[:, None] % self.window if self.chunked else self.window - 1
            hidden = (offsets < 0) | (offsets > max_offset)
        else:
            hidden = offsets.abs() >= self.window
        return torch.zeros_like(offsets, dtype=dtype).masked_fill(hidden, -math.inf)


def by_head(x: Tensor) -> Tensor:
    """x (B, S, heads, d) with each head's rows contiguous, where products are explicit: they need this order, and
    layers that share x then make one copy."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if current().explicit else x


def distances(run: Run, keys: int) -> Tensor:
    """i − j of every new token i and each of the last S positions j: (T, S)."""
    last = run.past + run.positions.shape[0]
    return run.positions[:, None] - torch.arange(last - keys, last, device=run.positions.device)


class AttentionCore(Core):
    """The core of `Attention`: with sinks, ALiBi's slopes, the stack's relative bias, or projected distances."""

    def __init__(self, part: cores.AttentionCore, like: TensorOptions) -> None:
        super().__init__(part.span, part.d_qk**-0.5 if part.scale is None else part.scale, part.softcap)
        self.sinks = like.parameter(part.n_heads) if part.sinks else None
        self.biased, self.n_heads = part.biased, part.n_heads
        self.first = 0  # of the heads here among all `n_heads`

    def forward(self, q: Tensor, k: Tensor, v: Tensor, run: Run, projected: Tensor | None = None) -> Tensor:
        """`projected` (B, S, h, d) are the projected relative positions, from distance 0 up."""
        bias = None
        if projected is not None:
            bias = self.distance_scores(q, projected, run)
        elif self.biased and run.bias is None:
            slopes = ("alibi", self.n_heads, self.window)
            bias = run.build_once(slopes, lambda: self.alibi_bias(run, k.shape[1], q.dtype, q.shape[2]))
        elif self.biased:
            bias = run.bias
        return self.attend(q, k, v, run, bias, self.sinks)

    def distance_scores(self, q: Tensor, projected: Tensor, run: Run) -> Tensor:
        farthest_first = projected.flip(1).permute(0, 2, 3, 1)
        scores = (q * self.scale).transpose(1, 2) @ farthest_first  # (B, h, T, S)
        # Row i moves left by T − 1 − i, one more per row, by a view that is one column wider (Transformer-XL, appendix
        # B). The columns that enter on the right are masked.
        tokens = scores.shape[2]
        wider = torch.cat((scores.new_zeros(*scores.shape[:3], 1), scores), 3)
        return wider.flatten(2)[..., tokens:].unflatten(2, (tokens, -1))

    def alibi_bias(self, run: Run, keys: int, dtype: torch.dtype, heads: int) -> Tensor:
        """−slope·(i − j), one slope per head (h, T, S): Press et al. 2021 (arXiv 2108.12409), section 3."""
        if type(self.n_heads) is not int:  # a symbol: no values are computed
            return distances(run, keys).expand(self.n_heads, -1, -1).to(dtype)
        power_of_two = 2 ** math.floor(math.log2(self.n_heads))
        steps = [(i + 1) * 8 / power_of_two for i in range(power_of_two)]
        steps += [(2 * i + 1) * 4 / power_of_two for i in range(self.n_heads - power_of_two)]
        steps = steps[self.first : self.first + heads]
        slopes = torch.tensor([2**-step for step in steps], device=run.positions.device, dtype=torch.float32)
        return (-slopes[:, None, None] * distances(run, keys)).to(dtype)


class Rotary(nn.Module):
    """Rotates the first `dims` channels of the heads (B, T, heads, width) by position; if odd, not the last."""

    def __init__(self, part: positions.Rotary) -> None:
        super().__init__()
        self.dims, self.interleaved = part.dims, part.interleaved
        self.theta: Any = part.theta  # None only in parts that are never built
        width = part.width if part.spread else part.dims  # the width that defines frequencies and halves
        self.rotated_width = width - width % 2

    def forward(self, x: Tensor, run: Run) -> Tensor:
        if not self.rotated_width:
            return x
        key = self.theta, self.dims, self.rotated_width, self.interleaved
        angles = run.build_once(("angles", *key), lambda: self._angles(run))
        cos = run.build_once(("cos", *key), lambda: self._table(angles.cos(), 1).to(x.dtype))
        sin = run.build_once(("sin", *key), lambda: self._table(angles.sin(), -1).to(x.dtype))
        width = self.rotated_width
        rotated, unrotated = (x, None) if width == x.shape[-1] else x.split((width, x.shape[-1] - width), -1)
        if self.interleaved:
            partner = rotated.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        else:
            partner = rotated.roll(width // 2, -1)
        y = rotated * cos + partner * sin
        return y if unrotated is None else torch.cat((y, unrotated), -1)

    def _angles(self, run: Run) -> Tensor:
        """The angle (T, dims / 2) of each position and pair, in float32. Spread: 0 where nothing is rotated."""
        steps = torch.arange(0, self.rotated_width, 2, device=run.positions.device, dtype=torch.float32)
        speeds = self.theta ** -(steps / self.rotated_width) * (steps < self.dims)
        return run.positions.float()[:, None] * speeds

    def _table(self, half: Tensor, sign: int) -> Tensor:
        """Sines or cosines (T, 1, dims); `sign` is that of a pair's first element, as in (a·cos − b·sin, b·cos +
        a·sin)."""
        pair = (sign * half, half)
        table = torch.stack(pair, -1).flatten(-2) if self.interleaved else torch.cat(pair, -1)
        return table.unsqueeze(1)


class Gate(nn.Module):
    """y (B, T, h·d) times activated gates, one per channel or per head."""

    def __init__(self, part: cores.Gate) -> None:
        super().__init__()
        self.act, self.gates = FORMS[part.form], part.gates

    def forward(self, y: Tensor, gates: Tensor) -> Tensor:
        gates = self.act(gates).unflatten(-1, (-1, self.gates))
        return (y.unflatten(-1, (gates.shape[-2], -1)) * gates).flatten(2)


class DynamicMask(nn.Module):
    """The bias of the scores (B, h, T, S) from the values' logits (B, S, h_kv): each key's weight, and −∞ for keys
    outside a query's `top_k`; in the `static` mode no key is dropped."""

    def __init__(self, part: cores.DynamicMask, top_k: int, group: int, like: TensorOptions) -> None:
        super().__init__()
        self.rate = like.parameter(part.n_kv_heads)
        self.top_k, self.group = top_k, group

    def forward(self, logits: Tensor, run: Run) -> Tensor:
        weights = (self.rate * F.softplus(logits)).exp().transpose(1, 2).unsqueeze(2)  # (B, h_kv, 1, S)
        weights = weights.expand(-1, -1, run.positions.shape[0], -1)
        if not current().static and logits.shape[1] > self.top_k:
            causal = weights.masked_fill(distances(run, logits.shape[1]) < 0, -math.inf)
            best = causal.topk(self.top_k, sorted=False).indices
            selected = torch.zeros_like(weights, dtype=torch.bool).scatter(-1, best, True)
            weights = weights.masked_fill(~selected, -math.inf)
        return weights.repeat_interleave(self.group, 1)


class RelativeBias(nn.Module):
    """T5's biases (h, T, S): exact distances up to half the buckets, logarithmic beyond; or BEiT's."""

    def __init__(self, part: positions.RelativeBias, like: TensorOptions) -> None:
        super().__init__()
        self.weight = like.parameter(part.buckets, part.n_heads)
        self.buckets, self.distance, self.bidirectional = part.buckets, part.distance, part.bidirectional
        self.side = part.side

    def forward(self, run: Run, keys: int) -> Tensor:
        if self.side is not None:
            return F.embedding(self._pairs(self.side, run.positions.device)[run.positions], self.weight).permute(
                2, 0, 1
            )
        back = distances(run, keys)
        buckets, offset = self.buckets, torch.zeros_like(back)
        if self.bidirectional:
            buckets //= 2
            offset, back = (back < 0) * buckets, back.abs()
        back = back.clamp(min=0)
        exact = buckets // 2
        growth = torch.log(back.clamp(min=1).float() / exact) / math.log(self.distance / exact) * (buckets - exact)
        logarithmic = (exact + growth.long()).clamp(max=buckets - 1)
        return F.embedding(offset + torch.where(back < exact, back, logarithmic), self.weight).permute(2, 0, 1)

    def _pairs(self, side: int, device: torch.device) -> Tensor:
        """The bucket of each pair of patches, row by row after the class token, which has the last three buckets."""
        first = torch.arange(side**2 + 1, device=device) == 0
        place = torch.arange(side**2 + 1, device=device) - 1
        row, column = place // side, place % side
        down, right = row[:, None] - row + side - 1, column[:, None] - column + side - 1
        index = torch.where(first, self.buckets - 2, down * (2 * side - 1) + right)
        index = torch.where(first[:, None], torch.where(first, self.buckets - 1, self.buckets - 3), index)
        return index


class Attention(nn.Module):
    """q, k, v, their norms and rotation, the core and o."""

    def __init__(self, part: parts.Attention, like: TensorOptions) -> None:
        super().__init__()
        d_model, heads, groups, width = part.d_model, part.n_heads, part.n_kv_heads, part.d_head
        self.q = Linear(d_model, heads * width, "q" in part.biases, like)
        self.lender, self.tied_kv = part.lender, part.tied_kv
        kv_input = d_model if part.d_memory is None else part.d_memory
        if self.lender is None:
            self.k = Linear(kv_input, groups * width, "k" in part.biases, like)
        if self.lender is None and not self.tied_kv:
            self.v = Linear(kv_input, groups * part.core.d_v, "v" in part.biases, like)
        self.q_norm = Norm(part.query_norm, like) if part.query_norm else None
        self.k_norm = Norm(part.key_norm, like) if part.key_norm else None
        self.v_norm = Norm(part.value_norm, like) if part.value_norm else None
        self.v_scale = Times(part.value_scale) if part.value_scale is not None else None
        self.rotary = Rotary(part.rotary) if part.rotary else None
        self.position = Linear(d_model, heads * width, False, like) if part.position else None
        self.relative_bias = RelativeBias(part.relative_bias, like) if part.relative_bias else None
        self.mask_proj = self.mask = None
        if part.mask:
            assert isinstance(part.span, spans.Selected)
            self.mask_proj = Linear(groups * part.core.d_v, groups, "v" in part.biases, like)
            self.mask = DynamicMask(part.mask, part.span.top_k, heads // groups, like)
        self.core = AttentionCore(part.core, like)
        self.g = Linear(d_model, heads * part.gate.gates, "g" in part.biases, like) if part.gate else None
        self.gate = Gate(part.gate) if part.gate else None
        self.inner_norm = Norm(part.inner_norm, like) if part.inner_norm else None
        self.o: nn.Module = nn.Identity()
        if not part.direct:
            self.o = Linear(heads * part.core.d_v, d_model, "o" in part.biases, like)
        self.cross, self.width, self.d_value = isinstance(part.span, spans.Cross), width, part.core.d_v

    def forward(self, x: Tensor, run: Run) -> Tensor:
        q = self._heads(self.q(x), self.q_norm)
        if self.cross:
            return self._out(self.core(q, *self._memory(run), run), x)
        q = q if self.rotary is None else self.rotary(q, run)
        if self.lender is None:
            k, v = self._keys_and_values(x)
            k = k if self.rotary is None else self.rotary(k, run)
            run.lent[run.group] = tuple(by_head(x) for x in self.core.extend(run, k, v))
        k, v = run.lent[run.group if self.lender is None else self.lender]
        if self.relative_bias is not None:
            run = replace(run, bias=self.relative_bias(run, run.past + x.shape[1]))
        if self.mask is not None and self.mask_proj is not None:
            run = replace(run, bias=self.mask(self.mask_proj(v.flatten(2)), run))
        projected = None if self.position is None else self._distances(x, run)
        return self._out(self.core(q, k, v, run, projected), x)

    def _out(self, y: Tensor, x: Tensor) -> Tensor:
        """The heads' output, gated by x and normed."""
        y = y if self.gate is None or self.g is None else self.gate(y, self.g(x))
        return self.o(y if self.inner_norm is None else self.inner_norm(y))

    def _heads(self, x: Tensor, norm: Norm | None = None) -> Tensor:
        """(B, T, heads, d) of a projection, normed per head, or first by one norm over the whole projection."""
        if norm is not None and norm.width != self.width:
            return norm(x).unflatten(-1, (-1, self.width))
        x = x.unflatten(-1, (-1, self.width))
        return x if norm is None else norm(x)

    def _keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """k and v (B, T, h_kv, d), not rotated."""
        keys = self.k(x)
        v = (keys if self.tied_kv else self.v(x)).unflatten(-1, (-1, self.d_value))
        v = v if self.v_norm is None else self.v_norm(v)
        return self._heads(keys, self.k_norm), v if self.v_scale is None else self.v_scale(v)

    def _memory(self, run: Run) -> tuple[Tensor, ...]:
        """k and v of the encoder's output, computed once."""
        if run.memory is None:
            cached = run.recall(self.core.place)
            assert cached is not None, "neither an encoder's output nor a cache of it"
            return cached
        k, v = self._keys_and_values(run.memory)
        run.keep(self.core.place, k, v)
        return k, v

    def _distances(self, x: Tensor, run: Run) -> Tensor:
        """The projected distances (B, S, h, d): one more for each new token."""
        assert self.position is not None
        waves = run.build_once("waves", lambda: sinusoids(run.positions, x.shape[2]).to(x.dtype))
        new = self._heads(self.position(waves.expand(x.shape[0], -1, -1)))
        if run.cache is None:
            return new
        if run.past:
            new = torch.cat((run.cache.distances[run.layer], new), 1)
        run.cache.distances[run.layer] = new
        return new
