"""Embedding and head of a stack of blocks: see `parts.embedding` and `parts.head`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txcalc.parts import embedding, head
from txcalc.parts.linear import Linear as LinearPart
from txcalc.reference.linear import (
    Activation,
    Convolution,
    Linear,
    Lookup,
    Mean,
    Norm,
    Patches,
    Sum,
    Times,
    Vector,
    sinusoids,
)
from txcalc.reference.pooling import AttentionPool
from txcalc.reference.run import Run, TensorOptions, current


class Embedding(nn.Module):
    """Ids (B, T), images (B, channels, side, side) or mel bands (B, mels, 2·T) to vectors (B, T, D)."""

    def __init__(self, part: embedding.Embedding, like: TensorOptions, tied: Lookup | None = None) -> None:
        super().__init__()
        self.tokens = Lookup(part.tokens.rows, part.tokens.width, like, tied) if part.tokens else None
        self.patches = Patches(part.patches, like) if part.patches else None
        self.class_token = Vector(part.class_token.width, like) if part.class_token else None
        self.mask_token = Vector(part.mask_token.width, like) if part.mask_token else None
        self.convolutions = range(1, len(part.convolutions) + 1)
        for i, convolution in zip(self.convolutions, part.convolutions, strict=True):
            self.add_module(f"conv{i}", Convolution(convolution, like))
            self.add_module(f"conv{i}_activation", Activation(part.activation))
        self.scale = Times(part.scale) if part.scale is not None else None
        self.types = Lookup(part.types.rows, part.types.width, like) if part.types else None
        self.reads = {f"table{i + 1}": reads for i, (_, reads) in enumerate(part.tables)}
        for name, (table, _) in zip(self.reads, part.tables, strict=True):
            self.add_module(name, Lookup(table.rows, table.width, like))
        self.positions: nn.Module | None = None
        if part.positions:
            self.positions = Lookup(part.positions.rows, part.positions.width, like)
        elif part.fixed:
            self.positions = Sum()
        self.norm = Norm(part.norm, like) if part.norm else None
        self.projection, self.early = _linear(part.projection, like), part.early

    def forward(self, inputs: Tensor, past: int, types: Tensor | None = None) -> Tensor:
        """`types` (B, T) are the tokens' types, 0 when absent."""
        x = self._vectors(inputs)
        x = self.projection(x) if self.projection is not None and self.early else x
        positions = past + torch.arange(x.shape[1], device=x.device)
        if self.scale is not None:
            x = self.scale(x)
        if self.types is not None:
            x = x + self.types(torch.zeros_like(inputs) if types is None else types)
        for name, reads in self.reads.items():
            for _ in range(reads):
                x = x + self.get_submodule(name)(torch.zeros_like(inputs))
        if isinstance(self.positions, Lookup):
            x = x + self.positions(positions)
        elif self.positions is not None:
            x = self.positions(x, sinusoids(positions, x.shape[2]).to(x.dtype))
        x = x if self.norm is None else self.norm(x)
        return x if self.projection is None or self.early else self.projection(x)

    def _vectors(self, inputs: Tensor) -> Tensor:
        if self.tokens is not None:
            return self.tokens(inputs)
        if self.patches is not None:
            x = self.patches(inputs)
            if self.mask_token is not None:  # no patch is hidden
                hidden = x.new_zeros(x.shape[0], x.shape[1], 1, dtype=torch.bool)
                x = torch.where(hidden, self.mask_token.weight, x)
            return x if self.class_token is None else self.class_token(x)
        x = inputs.transpose(1, 2)
        for i in self.convolutions:
            x = self.get_submodule(f"conv{i}_activation")(self.get_submodule(f"conv{i}")(x))
        return x.contiguous()  # otherwise every layer that reads it would save a copy


def _linear(part: LinearPart | None, like: TensorOptions, tied: Lookup | None = None) -> Linear | None:
    return Linear(part.d_in, part.d_out, part.bias, like, tied if part.tied else None) if part else None


class Head(nn.Module):
    """Logits, or a pooled vector: of all positions, of the last (by the mode), or of the first (`single_position`)."""

    def __init__(self, part: head.Head, like: TensorOptions, tied: Lookup | None = None) -> None:
        super().__init__()
        self.transform = _linear(part.transform, like)
        self.activation = Activation(part.activation.form) if part.activation else None
        self.norm = Norm(part.norm, like) if part.norm else None
        self.projection = _linear(part.projection, like, tied)
        self.softcap = Activation("tanh") if part.softcap is not None else None
        self.single_position, self.scale = part.single_position, part.scale
        self.cap = part.softcap or 0.0
        self.pool = Mean() if part.pool else None
        self.pool_norm = Norm(part.pool_norm, like) if part.pool_norm else None
        self.joined = part.joined
        self.reader = AttentionPool(part.reader, like) if part.reader else None

    def forward(self, x: Tensor, run: Run) -> Tensor:
        if self.reader is not None:
            x = self.reader(x, run)
        elif self.pool is not None:
            mean = self.pool(x)
            mean = mean if self.pool_norm is None else self.pool_norm(mean)
            x = torch.cat((x[:, 0], mean), 1) if self.joined else mean
        elif self.single_position:
            x = x[:, 0].clone()  # a view would save every position for backward
        elif current().last:
            x = x[:, -1:]
        for module in (self.transform, self.activation, self.norm, self.projection):
            x = x if module is None else module(x)
        if self.scale is not None:
            x = x * self.scale
        return x if self.softcap is None else self.softcap(x / self.cap) * self.cap
