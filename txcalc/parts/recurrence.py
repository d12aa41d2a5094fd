"""What the leaves of every recurrence share: a state of one size, however long the sequence is."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from txcalc.num import product
from txcalc.parts.frozen import frozen
from txcalc.parts.part import Cache, Leaf, Workload


class Recurrence(Leaf):
    """A leaf that keeps a state for each sequence. Its cache is the state; a pass reads it and writes it once."""

    holds = "state"

    @property
    @abstractmethod
    def shape(self) -> tuple[Any, ...]:
        """The sizes of one sequence's state."""

    @property
    def state(self) -> Any:
        """Elements of one sequence's state."""
        return product(self.shape)

    def kept(self) -> str:
        return f"a state of {' · '.join(f'{size:,}' for size in self.shape)} elements"

    def cache(self, work: Workload) -> Cache:
        return Cache(0, self.state, self.state)

    def passed(self, work: Workload) -> Any:
        """Elements of all sequences' states that a pass reads and writes."""
        return 2 * work.batch * self.state


@frozen
class Remembered(Recurrence):
    """A state of so many elements that a recurrence keeps, whatever it computes with it.

    Unit     elements of one sequence's state; no FLOPs
    Source   Peng et al. 2025 (arXiv 2503.14456), section 4: a matrix of each head, and the last position
    """

    elements: Any

    @property
    def shape(self) -> tuple[Any, ...]:
        return (self.elements,)
