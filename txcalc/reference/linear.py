"""The leaves that every model has: see `parts.linear`. Autograd saves what `saved` there says."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txcalc.parts import linear as parts, taps
from txcalc.parts.embedding import Patches as PatchesPart
from txcalc.parts.norm import Norm as NormPart
from txcalc.reference.run import Cached, Run, TensorOptions, current


class Linear(nn.Linear):
    """y = x·Wᵀ + b, for x (…, d_in). `tied` is the table whose weight it multiplies by."""

    def __init__(self, d_in: int, d_out: int, bias: bool, like: TensorOptions, tied: Lookup | None = None) -> None:
        nn.Module.__init__(self)  # parameters are created here
        self.in_features, self.out_features = d_in, d_out
        self.weight = like.parameter(d_out, d_in) if tied is None else tied.weight
        self.register_parameter("bias", like.parameter(d_out) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        if symbolic(x):
            return multiply_rows(x, self.weight.t(), self.bias)
        return F.linear(x, self.weight, self.bias)


class LowRank(nn.Module):
    """y = W·x + b + 2·B·A·x for x (…, d_in): a frozen linear layer and its adapter, scaled by α/r = 2."""

    def __init__(self, base: Linear, rank: int, like: TensorOptions) -> None:
        super().__init__()
        self.base = base
        self.lora_a = Linear(base.in_features, rank, False, like)
        self.lora_b = Linear(rank, base.out_features, False, like)
        self.lora_sum = Sum()

    def forward(self, x: Tensor) -> Tensor:
        return self.lora_sum(self.base(x), 2 * self.lora_b(self.lora_a(x)))


def symbolic(x: Tensor) -> bool:
    """Whether a size of x (…, T, d) is a symbol."""
    return x.dim() > 2 and any(isinstance(size, torch.SymInt) for size in x.shape)


def multiply_rows(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """x·matrix + bias as a product of two matrices, for symbolic sizes: PyTorch before 2.12 replaces symbols by the
    sample's numbers when it folds rows itself, so that nothing would be proved."""
    rows = x.flatten(0, -2)
    y = torch.mm(rows, matrix) if bias is None else torch.addmm(bias, rows, matrix)
    return y.unflatten(0, x.shape[:-1])


class BlockLinear(nn.Module):
    """One linear layer per head, side by side, of x (B, T, h·d)."""

    def __init__(self, n_heads: int, width: int, like: TensorOptions) -> None:
        super().__init__()
        self.weight = like.parameter(n_heads, width, width)
        self.bias = like.parameter(n_heads, width)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1).unflatten(-1, self.bias.shape).transpose(0, 1)  # (h, B·T, d)
        y = torch.bmm(rows, self.weight) + self.bias.unsqueeze(1)
        return y.transpose(0, 1).flatten(1).view_as(x)


class GroupedLinear(nn.Module):
    """A linear layer in groups, of x (…, groups·d_in); see `parts.linear.GroupedLinear`."""

    def __init__(self, part: parts.GroupedLinear, like: TensorOptions) -> None:
        super().__init__()
        self.groups = part.groups
        self.weight = like.parameter(part.groups * part.d_out, part.d_in)
        self.bias = like.parameter(part.groups * part.d_out) if part.bias else None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2).unflatten(-1, (self.groups, -1)).transpose(0, 1)  # (groups, rows, d_in/groups)
        y = torch.bmm(rows, self.weight.unflatten(0, (self.groups, -1)).mT).transpose(0, 1).flatten(1)
        y = y.unflatten(0, x.shape[:-1])
        return y if self.bias is None else y + self.bias


def linear(d_in: int, d_out: int, bias: bool, like: TensorOptions, groups: int | None = None) -> Linear | GroupedLinear:
    """A linear layer, in groups where it has them."""
    if groups is None:
        return Linear(d_in, d_out, bias, like)
    return GroupedLinear(
        parts.GroupedLinear(groups=groups, d_in=d_in // groups, d_out=d_out // groups, bias=bias), like
    )


class Lookup(nn.Embedding):
    """The vectors (B, T, width) of ids (B, T). `tied` is the table that it shares."""

    def __init__(self, rows: int, width: int, like: TensorOptions, tied: Lookup | None = None) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = rows, width
        self.weight = like.parameter(rows, width) if tied is None else tied.weight

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class RootMeanSquare(torch.autograd.Function):
    """x / rms(x) · weight over the last axis, computed in float32, keeping x and one statistic per row.

    PyTorch's own `rms_norm` consists of single operations on the CPU and on meta, which save three times as much; on
    CUDA it is one kernel since torch 2.8, which saves the same.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        upcast = x.float() if x.dtype.itemsize < 4 else x
        scale = torch.rsqrt(upcast.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        normed = upcast * scale
        return (normed if weight is None else normed * weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        normed = x.to(scale.dtype) * scale
        inner = grad if weight is None else grad * weight
        x_grad = scale * (inner - normed * (inner * normed).mean(-1, keepdim=True))
        if weight is None:
            return x_grad.to(x.dtype), None, None
        return x_grad.to(x.dtype), (grad * normed).sum_to_size(weight.shape).to(weight.dtype), None


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the last axis; with `per_group`, each group has its own weight."""

    def __init__(self, part: NormPart, like: TensorOptions) -> None:
        super().__init__()
        shape = (part.groups, part.width) if part.per_group else (part.width,)
        self.weight = like.parameter(*shape) if part.weighted else None
        self.bias = like.parameter(*shape) if part.bias else None
        self.width, self.per_group = part.width, part.per_group
        self.eps: Any = part.eps  # None only in parts that are never built
        self.rms, self.offset = part.form == "rms", part.offset

    def forward(self, x: Tensor) -> Tensor:
        weight = 1 + self.weight if self.offset and self.weight is not None else self.weight
        if not (self.rms or self.per_group):
            return F.layer_norm(x, (self.width,), weight, self.bias, self.eps)
        if self.rms and not self.per_group and x.is_cuda:
            y: Tensor = F.rms_norm(x, (self.width,), weight, self.eps)
            return y if self.bias is None else y + self.bias
        centred = x if self.rms else x - x.mean(-1, keepdim=True)
        y = RootMeanSquare.apply(centred, weight, self.eps)
        return y if self.bias is None else y + self.bias


# Each saves one tensor for backward, as `parts.linear.Activation` counts.
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: F.silu(1.702 * x) / 1.702,
    "silu": F.silu,
    "hard_swish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": F.softplus,
    "none": lambda x: x,
}


class Xielu(torch.autograd.Function):
    """a·x² + β·x above 0 and b·(exp(x) − 1 − x) + β·x below, a = softplus(positive), b = β + softplus(negative), β 1/2:
    Huang and Schlag 2024 (arXiv 2411.13010), keeping x alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        ctx.save_for_backward(x, positive, negative)
        above, below = F.softplus(positive), 0.5 + F.softplus(negative)
        return torch.where(x > 0, above * x * x, below * (torch.expm1(x.clamp(max=0)) - x)) + 0.5 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, positive, negative = ctx.saved_tensors
        above, below = F.softplus(positive), 0.5 + F.softplus(negative)
        under = torch.expm1(x.clamp(max=0))
        x_grad = grad * (torch.where(x > 0, 2 * above * x, below * under) + 0.5)
        of_above = (grad * torch.where(x > 0, x * x, 0)).sum() * positive.sigmoid()
        of_below = (grad * torch.where(x > 0, 0, under - x)).sum() * negative.sigmoid()
        return x_grad, of_above, of_below


class Activation(nn.Module):
    """act(gate), times `up` if present; gpt-oss clamps both and multiplies by up + 1. `sparsity`: gates lose their
    normal quantile at this share, and negative ones become 0. `like` is for xIELU's weights."""

    def __init__(self, form: str, sparsity: float | None = None, like: TensorOptions | None = None) -> None:
        super().__init__()
        self.positive = self.negative = None
        if form == "xielu":
            assert like is not None
            self.positive, self.negative = like.parameter(1), like.parameter(1)
            self.act: Callable[[Tensor], Tensor] = lambda x: Xielu.apply(x, self.positive, self.negative)
        self.deviations = None if sparsity is None else NormalDist().inv_cdf(sparsity)
        self.clamped = form == "clamped_silu"
        if form != "xielu":
            self.act = FORMS["quick_gelu" if self.clamped else form]

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        if self.deviations is not None:
            threshold = gate.mean(-1, keepdim=True) + gate.std(-1, keepdim=True, correction=0) * self.deviations
            gate = F.relu(gate - threshold)
        if self.clamped:
            gate = gate.clamp(max=7)
            up = None if up is None else up.clamp(-7, 7) + 1
        return self.act(gate) if up is None else self.act(gate) * up


def pad_columns(x: Tensor, before: int, after: int = 0) -> Tensor:
    """x (B, steps, c) with columns of zeros (`F.pad` would fix the symbols of a symbolic batch and length)."""
    zeros = x.new_zeros(x.shape[0], max(before, after), x.shape[2])
    return torch.cat((zeros[:, :before], x, zeros[:, :after]), 1)


class Convolution(Cached):
    """A convolution over time of x (B, steps, c_in): padded evenly, or causal with a cache of the last K columns."""

    def __init__(self, part: taps.Convolution, like: TensorOptions) -> None:
        super().__init__()
        self.weight = like.parameter(part.c_out, 1 if part.depthwise else part.c_in, part.taps)
        self.bias = like.parameter(part.c_out) if part.bias else None
        self.taps, self.stride, self.causal, self.depthwise = part.taps, part.stride, part.causal, part.depthwise

    def forward(self, x: Tensor, run: Run | None = None) -> Tensor:
        if not self.causal:
            sides = (self.taps - 1) // 2
            if not current().explicit:
                return self._conv1d(x, sides)
            return self._products(pad_columns(x, sides, self.taps - 1 - sides))
        if run is None or run.cache is None:
            if not current().explicit:
                # A view would also save the columns after the last for backward.
                return self._conv1d(x, self.taps - 1)[:, : x.shape[1]].clone()
            return self._products(pad_columns(x, self.taps - 1))
        cached = run.recall(self.place)
        columns = torch.cat((cached[0], x), 1) if cached else pad_columns(x, self.taps)
        run.keep(self.place, columns[:, -self.taps :].clone())
        columns = columns[:, 1:]
        return self._products(columns) if current().explicit else self._conv1d(columns, 0)

    def _conv1d(self, x: Tensor, padding: int) -> Tensor:
        groups = x.shape[2] if self.depthwise else 1
        return F.conv1d(x.transpose(1, 2), self.weight, self.bias, self.stride, padding, groups=groups).transpose(1, 2)

    def _products(self, columns: Tensor) -> Tensor:
        """The convolution as a matrix product over windows of the columns: fvcore cannot trace one on meta."""
        windows = columns.unfold(1, self.taps, self.stride)  # (B, T, c_in, K)
        if self.depthwise:
            channels = windows.permute(2, 0, 1, 3).flatten(1, 2)  # (c, B·T, K)
            y = (channels @ self.weight.transpose(1, 2)).unflatten(1, windows.shape[:2]).squeeze(-1).permute(1, 2, 0)
        else:
            y = windows.flatten(2) @ self.weight.flatten(1).T
        return y if self.bias is None else y + self.bias


class Patches(nn.Module):
    """The vectors (B, n, width) of an image's n patches, row by row; images are (B, channels, side, side)."""

    def __init__(self, part: PatchesPart, like: TensorOptions) -> None:
        super().__init__()
        self.weight = like.parameter(part.width, part.channels, part.size, part.size)
        self.bias = like.parameter(part.width) if part.bias else None
        self.size = part.size

    def forward(self, pictures: Tensor) -> Tensor:
        squares = pictures.unflatten(2, (-1, self.size)).unflatten(4, (-1, self.size))  # (B, c, n, size, n, size)
        return F.linear(squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2), self.weight.flatten(1), self.bias)


class Vector(nn.Module):
    """A learned vector before each sequence."""

    def __init__(self, width: int, like: TensorOptions) -> None:
        super().__init__()
        self.weight = like.parameter(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.weight.expand(x.shape[0], 1, -1), x), 1)


class BareVector(nn.Module):
    """A learned vector, returned unchanged."""

    def __init__(self, width: int, like: TensorOptions) -> None:
        super().__init__()
        self.weight = like.parameter(width)

    def forward(self) -> Tensor:
        return self.weight


class Sum(nn.Module):
    """x + y, or x + scale·y."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + (y if self.scale is None else y * self.scale)


class Shift(nn.Module):
    """x plus a learned vector."""

    def __init__(self, part: parts.Shift, like: TensorOptions) -> None:
        super().__init__()
        self.weight = like.parameter(part.width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


class Unused(Linear):
    """Weights that no computation uses: see `parts.linear.Unused`."""

    def __init__(self, part: parts.Unused, like: TensorOptions) -> None:
        super().__init__(part.d_in, part.d_out, part.bias, like)


class LayerScale(nn.Module):
    """x times a learned factor for every channel."""

    def __init__(self, part: parts.LayerScale, like: TensorOptions) -> None:
        super().__init__()
        self.weight = like.parameter(part.width)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Mean(nn.Module):
    """The mean (B, D) of all positions but the first."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 1:].mean(1)


class Factors(nn.Module):
    """x times a learned factor for each of its elements, or for those `chosen`: see `parts.linear.LearnedScale`."""

    def __init__(self, part: parts.LearnedScale, like: TensorOptions) -> None:
        super().__init__()
        self.weight = like.parameter(part.rows)

    def forward(self, x: Tensor, chosen: Tensor | None = None) -> Tensor:
        return x * (self.weight if chosen is None else self.weight[chosen])


class Times(nn.Module):
    """x times a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Sines and cosines (T, width) of the positions at wavelengths from 2π to 10000·2π (Vaswani et al. 2017, 3.5)."""
    steps = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    angles = positions.float()[:, None] * 10000 ** (-steps / width)
    waves = torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
    return waves[:, :width] if width % 2 else waves
