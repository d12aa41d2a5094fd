"""What every part is: a leaf that owns formulas, or a composite that only lists its children.

Those who write parts find here too what formulas are written in (`work`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

from txcalc.parts.frozen import once
from txcalc.parts.leaf import Leaf, Role
from txcalc.parts.sharding import Ways
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

# What a child is to the part that it stands in, where somebody asks: one of a stack's layers; a half of a model; what a
# table's rows are of; one of the experts; a product of a branch that reads the stream, or the last, which writes to it;
# the projection to a mixer's step sizes; a norm of a latent; what pools keys, or weighs an index's heads; the way back
# from the experts' latent; what an adapter stands beside, and its first factor; what brings together logits. "": none.
Duty = Literal[
    "", "layer", "encoder", "decoder", "tokens", "positions", "types", "expert", "reads", "writes", "steps", "pools",
    "latent", "weighs", "widens", "base", "adapts", "logits",
]  # fmt: skip


class Child(NamedTuple):
    """A part under its parent.

    times     how many copies, each with its own weights (equal ones are folded)
    runs      how many of them each token passes; `times` unless weights are shared (ALBERT) or routed (experts)
    routed    its copies are experts: `runs` of them are active
    indices   the copies' numbers in the path `name.0`, `name.1`, …; None: no number
    on        where it works
    kind      what its leaves are counted as, unless they say otherwise (`forced`: whatever they say)
    gradient  what the model's loss gives one of: "both", its input and its weights; "weights" alone, where the input is
              data that nobody learns (a picture, sinusoids); "input" alone, of frozen weights; "none", nothing in it
    duty      what it is to the parent
    """

    name: str
    part: Part
    times: Any = 1
    runs: Any = None
    routed: bool = False
    indices: Sequence[int] | None = None
    on: Stream = everywhere
    kind: str | None = None
    forced: bool = False
    gradient: Gradient = "both"
    duty: Duty = ""


def optional(name: str, part: Part | None, **more: Any) -> Iterator[Child]:
    """A child that may not be there."""
    if part is not None:
        yield Child(name, part, **more)


class Composite:
    """A part that is only its children, and says which share of them a rank has."""

    def children(self) -> Iterator[Child]:
        """The children, in the order in which they compute."""
        raise NotImplementedError

    @once
    def parts(self) -> tuple[Child, ...]:
        """The children, made once."""
        return tuple(self.children())

    leaf: ClassVar[None] = None
    on_stream: ClassVar[bool] = False  # what it has of its own stands beside the residual stream, whole on every rank

    def leaves(self) -> Iterator[Leaf]:
        """Every leaf of it, equal copies once."""
        for child in self.parts:
            yield from child.part.leaves()

    def describe(self) -> str:
        """What it is, in a line about the model; "" where its leaves say it."""
        return ""

    def alive(self) -> Any:
        """Elements a token that a step without backward has alive in it at its peak."""
        return 0

    @property
    def cuttable(self) -> bool:
        """Whether a pipeline may cut before and after it: it reads the part before it alone."""
        return True

    @property
    def complete(self) -> bool:
        """Whether a rank's share gives the whole result: else a summand of it, which is joined outside."""
        return False

    def shard(self, ways: Ways) -> Self:
        """A share on one rank: fewer heads, columns, experts; `ways` hears what prevents it."""
        ways.whole(type(self).__name__)
        return self


Part = Leaf | Composite
