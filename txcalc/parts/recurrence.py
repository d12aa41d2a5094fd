"""What the leaves of every recurrence share: a state of one size, however long the sequence is."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from txcalc.parts.part import Cache, Leaf, Workload


class Recurrence(Leaf):
    """A leaf that keeps a state for each sequence. Its cache is the state; a pass reads it and writes it once."""

    holds = "state"

    @property
    @abstractmethod
    def state(self) -> Any:
        """Elements of one sequence's state."""

    def cache(self, work: Workload) -> Cache:
        return Cache(0, self.state, self.state)

    def passed(self, work: Workload) -> Any:
        """Elements of all sequences' states that a pass reads and writes."""
        return 2 * work.batch * self.state
