"""Hyper-connections: see `parts.hyper`."""

from __future__ import annotations

from torch import Tensor, nn

from txcalc.parts import hyper as parts
from txcalc.parts.norm import Norm as NormPart
from txcalc.reference.linear import Linear, Norm
from txcalc.reference.run import TensorOptions


class Shares(nn.Module):
    """Each token's coefficients for n streams: read (B, T, n), write (B, T, n) and mixing matrix (B, T, n, n)."""

    def __init__(self, part: parts.Shares, like: TensorOptions) -> None:
        super().__init__()
        sides = 1 if part.read else 3 if part.mixed else 2  # read, write, mixing matrix
        self.base, self.scale = like.parameter(part.coefficients), like.parameter(sides)
        self.number, self.steps, self.mixed, self.read = part.number, part.steps, part.mixed, part.read

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        n = self.number
        sizes = [n] if self.read else [n, n, n * n] if self.mixed else [n, n]
        scaled = zip(x.split(sizes, -1), self.base.split(sizes), self.scale.unbind(), strict=True)
        read, *weights = (side * scale + base for side, base, scale in scaled)
        first = read.sigmoid() + 1e-6
        if self.read:
            return first, None, None
        write = 2 * weights[0].sigmoid()
        if not self.mixed:
            return first, write, None
        matrix = weights[1].unflatten(-1, (n, n)).softmax(-1) + 1e-6
        for i in range(2 * self.steps - 1):
            matrix = matrix / (matrix.sum(-1 if i % 2 else -2, keepdim=True) + 1e-6)
        return first, write, matrix


class Collapse(nn.Module):
    """Streams (B, T, n, D) weighted by (B, T, n), and summed."""

    def forward(self, streams: Tensor, shares: Tensor) -> Tensor:
        return (shares.unsqueeze(-1) * streams).sum(2)


class StreamSpread(nn.Module):
    """Streams (B, T, n, D), mixed by the matrix if present, plus y (B, T, D) weighted by (B, T, n)."""

    def forward(self, streams: Tensor, y: Tensor, shares: Tensor, matrix: Tensor | None) -> Tensor:
        mixed = streams if matrix is None else matrix.mT @ streams
        return shares.unsqueeze(-1) * y.unsqueeze(2) + mixed


class HyperConnection(nn.Module):
    """A branch's input from the streams, and the streams with its output added."""

    def __init__(self, part: parts.HyperConnection, like: TensorOptions) -> None:
        super().__init__()
        inner = part.number * part.width
        self.norm = Norm(NormPart(width=inner, form="rms", bias=False, eps=part.eps, weighted=False), like)
        shares = parts.Shares(number=part.number, steps=part.steps, mixed=part.mixed, read=part.read)
        self.project, self.shares = Linear(inner, shares.coefficients, False, like), Shares(shares, like)
        self.collapse, self.spread = Collapse(), None if part.read else StreamSpread()

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The branch's input (B, T, D), and the write coefficients and matrix for `spread`."""
        read, write, matrix = self.shares(self.project(self.norm(streams.flatten(2))))
        return self.collapse(streams, read), write, matrix
