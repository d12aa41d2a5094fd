"""Hyper-connections: every branch reads a mix of several residual streams and adds its result to all of them, with
coefficients per token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from txcalc.num import Num
from txcalc.parts.linear import Linear
from txcalc.parts.norm import Norm
from txcalc.parts.part import Child, Composite, Leaf, MatMul, Operation, Traffic, Weight, Workload, elementwise


class Shares(Leaf):
    """Coefficients of n streams: of the read mix, sigmoid(a·x + b); of the written result, twice a sigmoid; and, if
    `mixed`, a matrix between streams made doubly stochastic by Sinkhorn–Knopp. After the last layer only those that are
    `read`.

    Shapes   x (B, T, n + n + n²) as they are projected; a (3,), b (2·n + n²,)
    Unit     FLOPs under other: 2 per number for a and b, 3 per sigmoid, 5 per softmax, 2 per number of the matrix for
             each of 2·steps − 1 norms
    Kept     x, the sigmoids and their scaled results, the softmax and both operands of every division
    Source   Xie et al. 2026 (arXiv 2512.24880), equations 7 to 9
    """

    initial_values: ClassVar[Mapping[str, str]] = {"base": "zero", "scale": "one"}
    number: Num
    steps: Num
    mixed: bool
    read: bool = False

    @property
    def coefficients(self) -> Num:
        """Coefficients per token."""
        n = self.number
        return n if self.read else 2 * n + n * n if self.mixed else 2 * n

    def weights(self) -> tuple[Weight, ...]:
        return Weight("base", (self.coefficients,)), Weight("scale", (1 if self.read else 3 if self.mixed else 2,))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        tokens, n = work.positions, self.number
        gates = tokens * (n if self.read else 2 * n)
        mixed = tokens * n * n
        operations = (
            elementwise("scale", tokens * self.coefficients, "add", tokens * self.coefficients, 0, self.params),
            elementwise("base", tokens * self.coefficients, "add", 0, 0),
            elementwise("sigmoid", gates, "sigmoid", 0, gates),
        )
        if not self.mixed or self.read:
            return operations
        norms = (2 * self.steps - 1) * mixed
        return (
            *operations,
            elementwise("softmax", mixed, "softmax", 0, 0),
            elementwise("sums", norms, "add", 0, 0),
            elementwise("norms", norms, "add", 0, mixed),
        )

    def saved(self, work: Workload) -> Num:
        tokens, n = work.positions, self.number
        if self.read:
            return tokens * (self.coefficients + n)
        matrix = n * n + (2 * self.steps - 1) * (n * n + n) if self.mixed else 0
        return tokens * (self.coefficients + 2 * n + matrix)


class Collapse(Leaf):
    """The branch's input: Σ share·stream.

    Shapes   streams (B, T, n, D), shares (B, T, n), y (B, T, D)
    Unit     FLOPs under other: 2 per element of all streams
    Kept     the shares; the streams are saved by their norm
    Source   Xie et al. 2026 (arXiv 2512.24880), equation 3
    """

    width: Num
    number: Num

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width * self.number
        read = elements + work.positions * self.number
        return (
            elementwise("weigh", elements, "add", read, 0),
            elementwise("sum", elements, "add", 0, work.positions * self.width),
        )

    def saved(self, work: Workload) -> Num:
        return work.positions * self.number


class StreamSpread(Leaf):
    """Adds a branch's result to n streams, each with its share, after a matrix has mixed the streams (`mixed`).

    Shapes   streams (B, T, n, D), y (B, T, D), shares (B, T, n), matrix (B, T, n, n)
    Unit     FLOPs 2·B·T·D·n² with the matrix; 2 per element of all streams under other
    Kept     y and the shares, and the matrix; the streams are saved by their norm
    Source   Xie et al. 2026 (arXiv 2512.24880), equation 3
    """

    width: Num
    number: Num
    mixed: bool

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        tokens, n = work.positions, self.number
        elements = tokens * self.width * n
        added = (
            elementwise("weigh", elements, "add", tokens * (self.width + n), 0),
            elementwise("sum", elements, "add", 0 if self.mixed else elements, elements),
        )
        moved = Traffic(0, elements + tokens * n * n)
        return (MatMul("mix", tokens, n, n, self.width, moved), *added) if self.mixed else added

    def saved(self, work: Workload) -> Num:
        n = self.number
        return work.positions * (self.width + n + (n * n if self.mixed else 0))


class HyperConnection(Composite):
    """Around a branch: norm, coefficients and mix of the streams before it; its result is added to them after it.

    `mixed`: a matrix, normalised in `steps`, mixes the streams; else each continues unmixed. `read`: after the last
    layer, where nothing is written.
    Source   Zhu et al. 2024 (arXiv 2409.19606); Xie et al. 2026 (arXiv 2512.24880)
    """

    width: Num
    number: Num
    steps: Num
    mixed: bool
    eps: float
    read: bool = False
    on_stream = True

    def children(self) -> Iterator[Child]:
        shares = Shares(number=self.number, steps=self.steps, mixed=self.mixed, read=self.read)
        wide = self.number * self.width
        yield Child("norm", Norm(width=wide, form="rms", bias=False, eps=self.eps, weighted=False))
        yield Child("project", Linear(d_in=wide, d_out=shares.coefficients, bias=False))
        yield Child("shares", shares)
        yield Child("collapse", Collapse(width=self.width, number=self.number))
        if not self.read:
            yield Child("spread", StreamSpread(width=self.width, number=self.number, mixed=self.mixed))
