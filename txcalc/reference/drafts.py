"""Draft models, which read another model's hidden states and the tokens: see `parts.drafts`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txcalc.parts import drafts as parts
from txcalc.reference.attention import AttentionCore, Rotary
from txcalc.reference.linear import Linear, Norm
from txcalc.reference.run import Run, TensorOptions


class Features(nn.Module):
    """The stream (B, T, D) from another model's hidden states, here zeros, and the tokens' embedding (B, T, D)."""

    def __init__(self, part: parts.Features, like: TensorOptions) -> None:
        super().__init__()
        self.norm = Norm(part.norm, like) if part.norm else None
        self.embedding_norm = Norm(part.embedding_norm, like) if part.embedding_norm else None
        self.number, self.width, self.embedded = part.number, part.width, part.embedded
        d_in = part.number * part.width
        self.fc = Linear(d_in + part.d_model if part.embedded else d_in, part.d_model, part.bias, like)

    def forward(self, x: Tensor) -> Tensor:
        f = x.new_zeros(*x.shape[:2], self.number * self.width)
        if self.norm is not None:
            f = self.norm(f.unflatten(-1, (-1, self.width))).flatten(2)
        if self.embedded:
            f = torch.cat((f, x if self.embedding_norm is None else self.embedding_norm(x)), -1)
        stream: Tensor = self.fc(f)
        return stream


class DraftAttention(nn.Module):
    """Attention over the tokens' normed embedding, joined with x (B, T, D)."""

    def __init__(self, part: parts.DraftAttention, like: TensorOptions) -> None:
        super().__init__()
        d_in, width = 2 * part.d_model, part.d_head
        self.norm = Norm(part.norm, like)
        self.q = Linear(d_in, part.n_heads * width, False, like)
        self.k, self.v = (Linear(d_in, part.n_kv_heads * width, False, like) for _ in range(2))
        self.rotary = Rotary(part.rotary) if part.rotary else None
        self.core = AttentionCore(part.core, like)
        self.o = Linear(part.n_heads * width, part.d_model, False, like)
        self.width = width

    def forward(self, x: Tensor, run: Run) -> Tensor:
        assert run.first is not None
        u = torch.cat((self.norm(run.first), x), -1)
        q, k, v = (side(u).unflatten(-1, (-1, self.width)) for side in (self.q, self.k, self.v))
        if self.rotary is not None:
            q, k = self.rotary(q, run), self.rotary(k, run)
        y: Tensor = self.o(self.core(q, *self.core.extend(run, k, v), run))
        return y
