"""The two kinds of parts: a leaf owns formulas, a composite only lists its children.

Re-exports the vocabulary of `work` and `Leaf` for modules that define parts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

from txcalc.num import Num
from txcalc.parts.leaf import Leaf, Role
from txcalc.parts.sharding import Ways
from txcalc.parts.structs import FrozenStruct
from txcalc.parts.work import (
    COST,
    NO_CACHE,
    Axis,
    Cache,
    Elementwise,
    MatMul,
    Operation,
    Stream,
    Traffic,
    Transfer,
    Weight,
    Workload,
    elementwise,
    everywhere,
    on_batch,
    on_logits,
    on_one,
    on_source,
)

__all__ = [
    "COST", "NO_CACHE", "Axis", "Cache", "Child", "Composite", "Duty", "Elementwise", "Gradient", "Leaf", "MatMul",
    "Operation", "Part", "Role", "Stream", "Traffic", "Transfer", "Weight", "Workload", "elementwise", "everywhere",
    "on_batch", "on_logits", "on_one", "on_source", "optional",
]  # fmt: skip

Gradient = Literal["both", "weights", "input", "none"]

# A child's role in its parent. layer: one of a stack's layers; encoder, decoder: a half of a model;
# tokens, positions, types: what the rows of a table are; expert; reads: a projection that reads the residual stream;
# writes: the last projection of a branch; steps: the projection to a mixer's step sizes; pools: a pooling of keys;
# latent: the norm of a latent; weighs: the head weights of an index; widens: the projection back from the experts'
# latent; base, adapts: an adapter's frozen layer and its first factor; logits: the product that gives them, and the
# collective that joins them; shares: the collective that gathers the ranks' results for their shares of the tokens;
# statistics: the all-reduce of a norm's, in fp32; heads: the all-gather of all heads for a norm over them.
Duty = Literal[
    "", "layer", "encoder", "decoder", "tokens", "positions", "types", "expert", "reads", "writes", "steps", "pools",
    "latent", "weighs", "widens", "base", "adapts", "logits", "shares", "statistics", "heads",
]  # fmt: skip


class Child(NamedTuple):
    """A part in the list of its parent's children.

    times     copies, each with weights of its own (equal ones are folded)
    runs      how many of them each token runs; `times` unless weights are shared (ALBERT) or routed (experts)
    routed    its copies are experts: `runs` of them are active
    indices   numbers of the copies in the path `name.0`, `name.1`, …; None: no number
    on        the stream: the child's workload, given its parent's
    kind      what its leaves count as, unless they say otherwise (`forced`: whatever they say)
    gradient  what backward computes: "both" the input's and the weights' gradients; "weights" alone, where the input is
    data (a picture, sinusoids); "input" alone, of frozen weights; "none"
    duty      its role in its parent
    """

    name: str
    part: Part
    times: Num = 1
    runs: Num | None = None
    routed: bool = False
    indices: Sequence[int] | None = None
    on: Stream = everywhere
    kind: str | None = None
    forced: bool = False
    gradient: Gradient = "both"
    duty: Duty = ""


def optional(name: str, part: Part | None, **fields: Any) -> tuple[Child, ...]:
    """A child, if the part is not None."""
    return () if part is None else (Child(name, part, **fields),)


class Composite(FrozenStruct):
    """A part defined by its children, and by how it is split over ranks."""

    @abstractmethod
    def children(self) -> Iterator[Child]:
        """The children in the order of computation."""

    @cached_property
    def parts(self) -> tuple[Child, ...]:
        """The children, cached."""
        return tuple(self.children())

    leaf: ClassVar[None] = None
    on_stream: ClassVar[bool] = False  # its own leaves work on the residual stream, replicated on every rank

    def along(self, child: Child) -> bool:
        """Whether a leaf of its own works on the residual stream, replicated on every rank."""
        return self.on_stream and child.part.leaf is not None and child.part.leaf.role != "table"

    def leaves(self) -> Iterator[Leaf]:
        """Every leaf, equal copies once."""
        for child in self.parts:
            yield from child.part.leaves()

    def grouped(self) -> Iterator[tuple[Num, Num, Num]]:
        """(a, b, c) for each of its leaves that works on ⌈(a·T + b)/c⌉ positions, of which its cost is a polynomial."""
        for child in self.parts:
            if child.part.leaf is None:
                yield from child.part.grouped()

    def describe(self) -> str:
        """A few words for the summary line of the model; "" where its leaves give them."""
        return ""

    def peak_elements(self) -> Num:
        """Peak of live activations in an inference step, in elements per token."""
        return 0

    @property
    def cuttable(self) -> bool:
        """Whether a pipeline stage may begin or end here: it reads nothing but the residual stream."""
        return True

    @property
    def complete(self) -> bool:
        """Whether a rank's share computes the whole result; else a partial sum, which the parent joins."""
        return False

    def shard(self, ways: Ways) -> Self:
        """One rank's share: fewer heads, columns or experts. Obstacles are reported to `ways`."""
        ways.cannot_split(type(self).__name__)
        return self


Part = Leaf | Composite
