"""Hyper-connections: several residual streams, of which every branch of a block reads a mix and to all of which its
result is added, by shares that each token makes of itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from txcalc.parts.frozen import frozen
from txcalc.parts.linear import Linear
from txcalc.parts.norm import Norm
from txcalc.parts.part import Child, Composite, Leaf, MatMul, Operation, Traffic, Weight, Workload, elementwise


@frozen
class Shares(Leaf):
    """Of n streams: the share of each in what is read, sigmoid(a·x + b); how much of the result each gets, twice such a
    one; and, if they are `mixed`, a matrix of how the streams go on, softmaxes whose rows and columns are normed in
    turn (Sinkhorn and Knopp). Only what is `read` where nothing is written (after the last layer).

    Shapes   x (B, T, n + n + n²) as they are projected; a (3,), b (2·n + n²,)
    Unit     FLOPs under other: 2 per number for a and b, 3 per sigmoid, 5 per softmax, 2 per number of the matrix for
             each of 2·steps − 1 norms
    Kept     x, the sigmoids and what is made of them, the softmax and both sides of every division
    Source   Xie et al. 2026 (arXiv 2512.24880), equations 7 to 9
    """

    begins: ClassVar[Mapping[str, str]] = {"base": "zero", "scale": "one"}
    number: Any
    steps: Any
    mixed: bool
    read: bool = False

    @property
    def made(self) -> Any:
        """Numbers that are projected to for each token."""
        n = self.number
        return n if self.read else 2 * n + n * n if self.mixed else 2 * n

    def weights(self) -> tuple[Weight, ...]:
        return Weight("base", (self.made,)), Weight("scale", (1 if self.read else 3 if self.mixed else 2,))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        tokens, n = work.positions, self.number
        gates = tokens * (n if self.read else 2 * n)
        mixed = tokens * n * n
        found = (
            elementwise("scale", tokens * self.made, "add", tokens * self.made, 0, self.params),
            elementwise("base", tokens * self.made, "add", 0, 0),
            elementwise("sigmoid", gates, "sigmoid", 0, gates),
        )
        if not self.mixed or self.read:
            return found
        norms = (2 * self.steps - 1) * mixed
        return (
            *found,
            elementwise("softmax", mixed, "softmax", 0, 0),
            elementwise("sums", norms, "add", 0, 0),
            elementwise("norms", norms, "add", 0, mixed),
        )

    def saved(self, work: Workload) -> Any:
        tokens, n = work.positions, self.number
        if self.read:
            return tokens * (self.made + n)
        matrix = n * n + (2 * self.steps - 1) * (n * n + n) if self.mixed else 0
        return tokens * (self.made + 2 * n + matrix)


@frozen
class Collapse(Leaf):
    """One stream of n: Σ share·stream.

    Shapes   streams (B, T, n, D), shares (B, T, n), y (B, T, D)
    Unit     FLOPs under other: 2 per element of all streams
    Kept     the shares; the streams are kept where their norm reads them
    Source   Xie et al. 2026 (arXiv 2512.24880), equation 3
    """

    width: Any
    number: Any

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.width * self.number
        read = elements + work.positions * self.number
        return (
            elementwise("weigh", elements, "add", read, 0),
            elementwise("sum", elements, "add", 0, work.positions * self.width),
        )

    def saved(self, work: Workload) -> Any:
        return work.positions * self.number


@frozen
class StreamSpread(Leaf):
    """What a branch makes, added to n streams by a share of each, beside the streams as a matrix mixes them (`mixed`).

    Shapes   streams (B, T, n, D), y (B, T, D), shares (B, T, n), matrix (B, T, n, n)
    Unit     FLOPs 2·B·T·D·n² with the matrix; 2 per element of all streams under other
    Kept     y and the shares, and the matrix; the streams are kept where their norm reads them
    Source   Xie et al. 2026 (arXiv 2512.24880), equation 3
    """

    width: Any
    number: Any
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

    def saved(self, work: Workload) -> Any:
        n = self.number
        return work.positions * (self.width + n + (n * n if self.mixed else 0))


@frozen
class HyperConnection(Composite):
    """Before a branch the streams' norm, shares and mix; behind it its result spread over them.

    `mixed`: a matrix, normed in `steps`, says how the streams go on; else each does as it is. `read`: after the last
    layer, where nothing is spread.
    Source   Zhu et al. 2024 (arXiv 2409.19606); Xie et al. 2026 (arXiv 2512.24880)
    """

    width: Any
    number: Any
    steps: Any
    mixed: bool
    eps: Any
    read: bool = False

    def children(self) -> Iterator[Child]:
        shares = Shares(number=self.number, steps=self.steps, mixed=self.mixed, read=self.read)
        wide = self.number * self.width
        yield Child("norm", Norm(width=wide, form="rms", bias=False, eps=self.eps, weighted=False))
        yield Child("project", Linear(d_in=wide, d_out=shares.made, bias=False))
        yield Child("shares", shares)
        yield Child("collapse", Collapse(width=self.width, number=self.number))
        if not self.read:
            yield Child("spread", StreamSpread(width=self.width, number=self.number, mixed=self.mixed))
