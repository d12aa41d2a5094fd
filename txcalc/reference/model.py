"""Whole models: blocks, stacks, an encoder with a decoder; and what can be asked of them: see `parts.model`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from txcalc.errors import InputError
from txcalc.parts import linear_attention as linear_parts
from txcalc.parts import model as parts
from txcalc.parts import recurrent as recurrent_parts
from txcalc.parts.attention import Attention as AttentionPart
from txcalc.parts.attention import LatentAttention as LatentAttentionPart
from txcalc.parts.block import Block as BlockPart
from txcalc.parts.convolution import ShortConvolution as ShortConvolutionPart
from txcalc.parts.convolution import TimeConvolution as TimeConvolutionPart
from txcalc.parts.disentangled import DisentangledAttention as DisentangledAttentionPart
from txcalc.parts.feedforward import Experts as ExpertsPart
from txcalc.parts.feedforward import FeedForward as FeedForwardPart
from txcalc.parts.linear import Linear as LinearPart
from txcalc.parts.part import Composite
from txcalc.reference.attention import Attention, LatentAttention, RelativeBias
from txcalc.reference.convolution import ShortConvolution, TimeConvolution
from txcalc.reference.disentangled import DisentangledAttention, DistanceTable
from txcalc.reference.feedforward import Experts, FeedForward
from txcalc.reference.linear import (
    Activation,
    Convolution,
    LayerScale,
    Linear,
    Lookup,
    Mean,
    Norm,
    Patches,
    Scale,
    Sum,
    Vector,
    sinusoids,
)
from txcalc.reference.linear_attention import ChannelMix, DeltaNet, LinearAttention, TimeMix
from txcalc.reference.mode import current, mode
from txcalc.reference.recurrent import Griffin, Mamba, Mamba2
from txcalc.reference.run import Cache, Like, Remembers, Run

BRANCHES: dict[type[Composite], type[Any]] = {
    AttentionPart: Attention,
    LatentAttentionPart: LatentAttention,
    FeedForwardPart: FeedForward,
    ExpertsPart: Experts,
    recurrent_parts.Mamba: Mamba,
    recurrent_parts.Mamba2: Mamba2,
    recurrent_parts.Griffin: Griffin,
    linear_parts.DeltaNet: DeltaNet,
    linear_parts.LinearAttention: LinearAttention,
    linear_parts.TimeMix: TimeMix,
    linear_parts.ChannelMix: ChannelMix,
    TimeConvolutionPart: TimeConvolution,
    ShortConvolutionPart: ShortConvolution,
    DisentangledAttentionPart: DisentangledAttention,
}


class Block(nn.Module):
    """Branches beside the residual stream, one after the other or side by side; norms as `parts.block` places them."""

    def __init__(self, part: BlockPart, like: Like) -> None:
        super().__init__()
        self.names = [branch.name for branch in part.branches]
        self.beside = {branch.name for branch in part.branches if branch.beside}
        self.parallel, self.norm_after_sum = part.parallel, part.norm_after_sum
        self.norm = Norm(part.shared_norm, like) if part.shared_norm else None
        for branch in part.branches:
            if branch.pre:
                self.add_module(f"{branch.name}_norm", Norm(branch.pre, like))
            made = BRANCHES.get(type(branch.part))
            if made is None:
                raise InputError("reference", [f"{branch.name} is a {type(branch.part).__name__}, which has no module"])
            self.add_module(branch.name, made(branch.part, like))
            if branch.scale:
                self.add_module(f"{branch.name}_scale", LayerScale(branch.scale, like))
            if branch.post:
                suffix = "norm" if part.norm_after_sum else "post_norm"
                self.add_module(f"{branch.name}_{suffix}", Norm(branch.post, like))
        self.residual = Sum()
        for name, module in self.named_modules():
            if isinstance(module, Remembers):
                module.place = name

    def forward(self, x: Tensor, run: Run) -> Tensor:
        if not self.parallel:
            stream = x
            for name in self.names:
                stream = self._branch(name, x if name in self.beside else stream, stream, run)
            return stream
        y, shared = x, x if self.norm is None else self.norm(x)
        for name in self.names:
            y = self._branch(name, shared, y, run)
        return y

    def _branch(self, name: str, x: Tensor, stream: Tensor, run: Run) -> Tensor:
        """The stream with a branch of x added."""
        suffixes = ("", "_norm", "_scale", "_post_norm")
        own, norm, scale, post = (self._modules.get(f"{name}{suffix}") for suffix in suffixes)
        assert own is not None
        y = own(x if norm is None or self.norm_after_sum else norm(x), run)
        y = y if scale is None else scale(y)
        if self.norm_after_sum:
            y = self.residual(stream, y)
            return y if norm is None else norm(y)
        return self.residual(stream, y if post is None else post(y))


class Embedding(nn.Module):
    """Ids (B, T), pictures (B, channels, side, side) or bands of sound (B, mels, 2·T) to vectors (B, T, D)."""

    def __init__(self, part: parts.Embedding, like: Like, tied: Lookup | None = None) -> None:
        super().__init__()
        self.tokens = Lookup(part.tokens.rows, part.tokens.width, like, tied) if part.tokens else None
        self.patches = Patches(part.patches, like) if part.patches else None
        self.class_token = Vector(part.class_token.width, like) if part.class_token else None
        self.mask_token = Vector(part.mask_token.width, like) if part.mask_token else None
        self.convolutions = range(1, len(part.convolutions) + 1)
        for i, convolution in zip(self.convolutions, part.convolutions, strict=True):
            self.add_module(f"conv{i}", Convolution(convolution, like))
            self.add_module(f"conv{i}_activation", Activation(part.activation))
        self.scale = Scale(part.scale) if part.scale is not None else None
        self.types = Lookup(part.types.rows, part.types.width, like) if part.types else None
        self.positions: nn.Module | None = None
        if part.positions:
            self.positions = Lookup(part.positions.rows, part.positions.width, like)
        elif part.fixed:
            self.positions = Sum()
        self.norm = Norm(part.norm, like) if part.norm else None
        self.projection = _linear(part.projection, like)

    def forward(self, inputs: Tensor, past: int, types: Tensor | None = None) -> Tensor:
        """`types` (B, T) are the tokens' types, 0 when absent."""
        x = self._vectors(inputs)
        positions = past + torch.arange(x.shape[1], device=x.device)
        if self.scale is not None:
            x = self.scale(x)
        if self.types is not None:
            x = x + self.types(torch.zeros_like(inputs) if types is None else types)
        if isinstance(self.positions, Lookup):
            x = x + self.positions(positions)
        elif self.positions is not None:
            x = self.positions(x, sinusoids(positions, x.shape[2]).to(x.dtype))
        x = x if self.norm is None else self.norm(x)
        return x if self.projection is None else self.projection(x)

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
        return x


def _linear(part: LinearPart | None, like: Like, tied: Lookup | None = None) -> Linear | None:
    return Linear(part.d_in, part.d_out, part.bias, like, tied if part.tied else None) if part else None


class Head(nn.Module):
    """Logits, or a pooled vector: of all positions, of the last (as the mode says), or, with `one`, of the first."""

    def __init__(self, part: parts.Head, like: Like, tied: Lookup | None = None) -> None:
        super().__init__()
        self.transform = _linear(part.transform, like)
        self.activation = Activation(part.activation.form) if part.activation else None
        self.norm = Norm(part.norm, like) if part.norm else None
        self.projection = _linear(part.projection, like, tied)
        self.softcap = Activation("tanh") if part.softcap is not None else None
        self.one, self.scale, self.cap = part.one, part.scale, part.softcap
        self.pool = Mean() if part.pool else None
        self.pool_norm = Norm(part.pool_norm, like) if part.pool_norm else None
        self.joined = part.joined

    def forward(self, x: Tensor) -> Tensor:
        if self.pool is not None:
            mean = self.pool(x)
            mean = mean if self.pool_norm is None else self.pool_norm(mean)
            x = torch.cat((x[:, 0], mean), 1) if self.joined else mean
        elif self.one:
            x = x[:, 0].clone()  # a view would keep every position for backward
        elif current().last:
            x = x[:, -1:]
        for module in (self.transform, self.activation, self.norm, self.projection):
            x = x if module is None else module(x)
        if self.scale is not None:
            x = x * self.scale
        return x if self.softcap is None else self.softcap(x / self.cap) * self.cap


class Asked(nn.Module):
    """What can be asked of a whole model, besides its `forward`."""

    def loss(self, *inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        """Mean cross-entropy of the logits. `labels` are what each should say, −100 nothing; absent, the next token."""
        logits = self._logits(*inputs)
        if labels is None:
            logits, labels = logits[:, :-1], inputs[0][:, 1:]
        return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())

    @torch.no_grad()
    def generate(self, ids: Tensor, *source: Tensor, steps: int) -> Tensor:
        """`ids` (B, T) and the `steps` tokens that follow, the likeliest each time: (B, T + steps)."""
        cache = Cache()
        with mode(last=True):
            for _ in range(steps):
                logits = self._logits(ids[:, cache.past :], *source, cache=cache)
                source = ()  # what it read of it is in the cache
                ids = torch.cat((ids, logits[:, -1:].argmax(-1)), 1)
        return ids

    def _logits(self, *inputs: Tensor, **options: Any) -> Tensor:
        if getattr(self, "decoder", self).head is None:
            raise InputError("reference", ["a model without a head gives no logits: nothing to learn, nothing to say"])
        result = self(*inputs, **options)
        return result[0] if isinstance(result, tuple) else result


class Stack(Asked):
    """Embedding, layers, final norm, and what is read off them: logits, else hidden states (B, T, D); with a pooler,
    these and its vector. Without an embedding it takes vectors (B, T, D)."""

    def __init__(self, part: parts.Stack, like: Like, prefix: str = "", tied: Lookup | None = None) -> None:
        super().__init__()
        self.embedding = Embedding(part.embedding, like, tied) if part.embedding else None
        self.relative_bias = RelativeBias(part.relative_bias, like) if part.relative_bias else None
        self.distances = DistanceTable(part.distances, like) if part.distances else None
        layers: dict[int, Block] = {}
        for group in part.groups:
            one = Block(group.block, like) if group.shared else None
            layers |= {i: one or Block(group.block, like) for i in group.indices}
        self.layers = nn.ModuleList(layers[i] for i in sorted(layers))
        self.final_norm = Norm(part.final_norm, like) if part.final_norm else None
        self.pooler = Head(part.pooler, like) if part.pooler else None
        table = self.embedding.tokens if self.embedding else None
        self.head = Head(part.head, like, table) if part.head else None
        self.paths = [f"{prefix}layers.{i}" for i in range(len(layers))]

    def forward(
        self,
        inputs: Tensor,
        *,
        types: Tensor | None = None,
        memory: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Any:
        """`memory` is the encoder's output, for a decoder's cross-attention; `cache` is read, and grows."""
        past = 0 if cache is None else cache.past
        x = inputs if self.embedding is None else self.embedding(inputs, past, types)
        tokens = x.shape[1]
        run = Run(past, past + torch.arange(tokens, device=x.device), cache, memory=memory)
        if self.relative_bias is not None:
            run = replace(run, bias=self.relative_bias(run, past + tokens))
        if self.distances is not None:
            run = replace(run, distances=self.distances())
        for layer, path in zip(self.layers, self.paths, strict=True):
            if current().checkpoint:
                x = checkpoint(layer, x, run.at(path), use_reentrant=False)
            else:
                x = layer(x, run.at(path))
        if cache is not None:
            cache.past = past + tokens
        x = x if self.final_norm is None else self.final_norm(x)
        result = x if self.head is None else self.head(x)
        return result if self.pooler is None else (result, self.pooler(x))


class EncoderDecoder(Asked):
    """An encoder, and a decoder whose every layer attends to its output."""

    def __init__(self, part: parts.EncoderDecoder, like: Like) -> None:
        super().__init__()
        # The decoder first: the table of tokens is its own, and `named_parameters` gives a shared one its first name.
        self.decoder = Stack(part.decoder, like, "decoder.")
        tokens = part.encoder.embedding and part.encoder.embedding.tokens
        table = self.decoder.embedding.tokens if tokens and tokens.tied and self.decoder.embedding else None
        self.encoder = Stack(part.encoder, like, "encoder.", table)
        self.memory = nn.Identity()

    def forward(self, ids: Tensor, source: Tensor | None = None, *, cache: Cache | None = None) -> Tensor:
        """Logits (B, T, V) of decoder ids (B, T) after `source`, ids (B, S) or bands of sound; None where the cache
        holds what the decoder needs of it."""
        memory = None if source is None else self.memory(self.encoder(source))
        return self.decoder(ids, memory=memory, cache=cache)
