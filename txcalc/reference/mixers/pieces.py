"""Single leaves, each run alone: see `parts.mixers.pieces`.

A list of leaves does not say how they are connected, so no model is built from it: each leaf gets inputs of its own, of
the shapes in its formulas, at the number of positions asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from txcalc.errors import InputError
from txcalc.num import Num
from txcalc.parts import convolution, cores, linear as parts, linear_attention, norm, spans
from txcalc.parts.mixers import pieces
from txcalc.parts.part import Leaf
from txcalc.reference.attention import AttentionCore
from txcalc.reference.linear import Activation, GroupedLinear, LayerScale, Linear, Lookup, Norm, Shift, Sum, Unused
from txcalc.reference.linear_attention import GatedScan
from txcalc.reference.run import Run, TensorOptions


class Pieces(nn.Module):
    """A layer's list of leaves, which must be empty: listed leaves run alone (`SingleLeaf`)."""

    def __init__(self, part: pieces.Pieces, like: TensorOptions) -> None:
        super().__init__()
        if part.pieces:
            raise InputError("reference", [f"{part.pieces[0]['name']} is a listed leaf, without stated inputs"])

    def forward(self, x: Tensor, run: Run) -> Tensor:
        return x


class Filter(nn.Module):
    """A convolution over x (B, (T − 1)·stride + taps, c_in), as many products as there are groups of channels."""

    def __init__(self, part: convolution.Filter, like: TensorOptions) -> None:
        super().__init__()
        self.weight = like.parameter(part.c_out, part.c_in // part.groups, part.taps)
        self.bias = like.parameter(part.c_out) if part.bias else None
        self.groups, self.taps, self.stride = part.groups, part.taps, part.stride

    def forward(self, x: Tensor, tokens: Any) -> Tensor:
        batch, steps, width = x.shape
        strides = (steps * width, self.stride * width, 1, width)  # `unfold` takes no symbols
        windows = x.as_strided((batch, tokens, width, self.taps), strides).clone(memory_format=torch.contiguous_format)
        rows = windows.flatten(0, 1).unflatten(1, (self.groups, -1)).transpose(0, 1).flatten(2)
        weight = self.weight.flatten(1).unflatten(0, (self.groups, -1))  # (groups, c_out/groups, c_in/groups·taps)
        y = torch.bmm(rows, weight.mT).transpose(0, 1).flatten(1).unflatten(0, (batch, tokens))
        return y if self.bias is None else y + self.bias


class MatrixProduct(nn.Module):
    """Rows (B, h, T, d) times matrices (B, h, d, n)."""

    def forward(self, x: Tensor, matrix: Tensor) -> Tensor:
        return torch.bmm(x.flatten(0, 1), matrix.flatten(0, 1)).unflatten(0, x.shape[:2])


class Idle(nn.Module):
    """A leaf without matrix products and weights."""

    def forward(self) -> None:
        return None


class SingleLeaf(nn.Module):
    """A single leaf with its own inputs: B sequences of T positions, and S further ones that it reads. `borrowed`: its
    weights belong to another leaf."""

    def __init__(self, leaf: Leaf, like: TensorOptions, borrowed: bool) -> None:
        super().__init__()
        self.part, self.like = leaf, like
        entry = MODULES.get(type(leaf))
        self.input_shapes: InputShapes = entry[1] if entry else lambda *_: []
        self.leaf = entry[0](leaf, like) if entry else Idle()
        if borrowed:
            for name, weight in [*self.leaf.named_parameters()]:
                delattr(self.leaf, name)
                self.leaf.register_buffer(name, weight.detach())

    def forward(self, batch: Any, tokens: Any, source: object) -> None:
        shapes = self.input_shapes(self.part, batch, tokens, source)
        tensors = [torch.empty(shape, device=self.like.device, dtype=self.like.dtype) for shape in shapes]
        if isinstance(self.leaf, Lookup):
            tensors = [torch.zeros(batch, tokens, dtype=torch.long, device=self.like.device)]
        if isinstance(self.leaf, Filter):
            self.leaf(*tensors, tokens)
        elif isinstance(self.leaf, AttentionCore):
            self.leaf(*tensors, Run(0, torch.arange(tokens, device=self.like.device)))
        elif not isinstance(self.leaf, Unused):
            self.leaf(*tensors)


Shapes = list[tuple[Any, ...]]
InputShapes = Callable[[Any, Any, Any, Any], Shapes]  # a part, B, T and S


def _attention_inputs(part: cores.AttentionCore, batch: Num, tokens: Num, source: Num) -> Shapes:
    keys = source if isinstance(part.span, spans.Cross | spans.CrossUncached) else tokens
    q = (batch, tokens, part.n_heads, part.d_qk)
    return [q, (batch, keys, part.n_kv_heads, part.d_qk), (batch, keys, part.n_kv_heads, part.d_v)]


def _product_inputs(part: cores.MatrixProduct, batch: Num, tokens: Num, source: Num) -> Shapes:
    columns = source if part.d_out is None else part.d_out
    return [(batch, part.n_heads, tokens, part.d_in), (batch, part.n_heads, part.d_in, columns)]


def _vector_input(part: Any, batch: object, tokens: object, source: object) -> Shapes:
    return [(batch, tokens, part.width)]


def _scan_inputs(part: Any, batch: object, tokens: object, source: object) -> Shapes:
    return [(batch, tokens, part.n_heads, width) for width in (part.d_key, part.d_key, part.d_value, part.d_key)]


# Part → its module, and the shapes of its inputs.
MODULES: Mapping[type[Leaf], tuple[Callable[[Any, TensorOptions], nn.Module], InputShapes]] = {
    parts.Linear: (
        lambda part, like: Linear(part.d_in, part.d_out, part.bias, like),
        lambda part, b, t, s: [(b, t, part.d_in)],
    ),
    parts.GroupedLinear: (GroupedLinear, lambda part, b, t, s: [(b, t, part.groups * part.d_in)]),
    parts.LayerScale: (LayerScale, _vector_input),
    parts.Shift: (Shift, _vector_input),
    parts.Activation: (lambda part, like: Activation(part.form), _vector_input),
    parts.Sum: (lambda part, like: Sum(), lambda part, b, t, s: [(b, t, part.width)] * 2),
    parts.Lookup: (lambda part, like: Lookup(part.rows, part.width, like), lambda *_: []),
    parts.Unused: (Unused, lambda *_: []),
    norm.Norm: (
        lambda part, like: Norm(replace(part, eps=1e-5), like),
        lambda part, b, t, s: [(b, t, part.groups, part.width)],
    ),
    convolution.Filter: (Filter, lambda part, b, t, s: [(b, (t - 1) * part.stride + part.taps, part.c_in)]),
    cores.AttentionCore: (lambda part, like: AttentionCore(replace(part, biased=False), like), _attention_inputs),
    linear_attention.GatedScan: (lambda part, like: GatedScan(), _scan_inputs),
    cores.MatrixProduct: (lambda part, like: MatrixProduct(), _product_inputs),
    cores.Scores: (
        lambda part, like: MatrixProduct(),
        lambda part, b, t, s: [(b, 1, part.n_heads * t, part.width), (b, 1, part.width, t)],
    ),
}
