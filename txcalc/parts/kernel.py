"""How a leaf runs: as which kernels, and what of it its module shows to those who measure.

Nothing here is a formula of a cost; `leaf.Leaf` has all of it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from txcalc.parts.spans import Attended, Span
from txcalc.parts.work import Workload


class Executed:
    """What engines run a leaf as, and where its module, as it is written, is a witness of what it says."""

    # Which kernels of attention; False: no kernel of its own, but within the one beside it.
    kernels: ClassVar[str] = ""
    launched: ClassVar[bool] = True
    blocks: ClassVar[bool] = False  # its weight is a matrix of blocks, each of which multiplies a share of its inputs
    kept_in_fp32: ClassVar[bool] = True  # what it keeps for later tokens; False: as wide as what it reads
    idle: ClassVar[bool] = False  # held, and run by no pass
    reads_places: ClassVar[bool] = False  # what it reads may be the same for every sequence: angles, biases by distance

    exchanges: ClassVar[bool] = False  # ranks that share a context can exchange its keys and values

    @property
    def called(self) -> str:
        """What it is named where it is reported."""
        return type(self).__name__

    @property
    def unfused(self) -> int:
        """Times the traffic of its one kernel in 16 bits that single operations in fp32 have."""
        return 1

    def on_chip(self, work: Workload) -> Any:
        """Elements of its operations that never leave the chip where they run as one kernel."""
        return 0

    @property
    def moves(self) -> bool:
        """Whether its module moves what it says, each tensor once."""
        return False

    @property
    def computes(self) -> str:
        """Which of its module's operators compute what it says besides products: "all", "softmax", or "": none do."""
        return ""

    @property
    def additions(self) -> Any:
        """How many sums of whole vectors it is; None: it is something else."""
        return None

    @property
    def attended(self) -> Attended | None:
        """The heads of its softmax, where it has one."""
        return None

    @property
    def beyond(self) -> str:
        """What its products hold beyond the scores and values of one softmax."""
        return ""

    @property
    def angles(self) -> tuple[Any, Any] | None:
        """Dimensions and base of the rotation that it does, whose cosines and sines depend on the position alone."""
        return None

    @property
    def sees(self) -> Span | None:
        """What its softmax meets of the keys; None: it has none, or no mask."""
        return None

    @property
    def masked(self) -> bool:
        """Whether a mask alone says what is seen: no scores choose among the keys."""
        return False

    @property
    def normed(self) -> tuple[Any, Any] | None:
        """The groups that it norms, and the width of each; None: it is no norm."""
        return None

    @property
    def turned(self) -> tuple[Any, Any] | None:
        """The dimensions of a head that it turns, and all of them; None: it turns none."""
        return None

    def rows_kept(self, work: Workload) -> Any:
        """Rows of each position of which its kernel keeps a number for backward: a mean, a softmax's log-sum."""
        return 0

    def unlike(self, work: Workload) -> str:
        """Why its module keeps something else for backward than its kernel, where it does."""
        return ""
