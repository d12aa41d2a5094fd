"""The base of recurrent leaves: a state of fixed size, however long the sequence."""

from __future__ import annotations

from abc import abstractmethod

from txcalc.num import Num, product
from txcalc.parts.part import Cache, Leaf, Workload


class Recurrence(Leaf):
    """A leaf with a state per sequence. The state is its cache; a pass reads and writes it once."""

    cache_kind = "state"

    @property
    @abstractmethod
    def shape(self) -> tuple[Num, ...]:
        """The shape of one sequence's state."""

    @property
    def state(self) -> Num:
        """Elements of one sequence's state."""
        return product(self.shape)

    def describe_cache(self) -> str:
        return f"a state of {' · '.join(f'{size:,}' for size in self.shape)} elements"

    def cache(self, work: Workload) -> Cache:
        return Cache(0, self.state, self.state)

    def state_traffic(self, work: Workload) -> Num:
        """Elements of state that a pass reads and writes."""
        return 2 * work.batch * self.state


class RecurrentState(Recurrence):
    """A state of `elements`, whatever computes with it.

    Unit     elements of one sequence's state; no FLOPs
    Source   Peng et al. 2025 (arXiv 2503.14456), section 4: a matrix per head, and the last position
    """

    elements: Num

    @property
    def shape(self) -> tuple[Num, ...]:
        return (self.elements,)
