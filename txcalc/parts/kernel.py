"""How a leaf is executed: which kernels run it, and how exactly its reference module shows what it claims.

Nothing here is a cost formula; those are in `leaf.Leaf`.
"""

from __future__ import annotations

from typing import ClassVar

from txcalc.num import Num
from txcalc.parts.spans import Attended, Span
from txcalc.parts.structs import FrozenStruct
from txcalc.parts.work import Workload


class Executed(FrozenStruct):
    """How engines execute a leaf, and which of its claims its reference module can witness."""

    # The measured attention kernels it runs as ("latent"; "": the standard ones); `launched` False: fused into the
    # kernel before it.
    kernels: ClassVar[str] = ""
    launched: ClassVar[bool] = True
    blocks: ClassVar[bool] = False  # its weight is block-diagonal: each block multiplies a share of the inputs
    kept_in_fp32: ClassVar[bool] = True  # its cache is fp32; False: in the dtype of its input
    idle: ClassVar[bool] = False  # holds parameters that no pass runs
    reads_places: ClassVar[bool] = False  # reads tensors shared by all sequences: rotary angles, biases by distance
    exchanges: ClassVar[bool] = False  # context-parallel ranks can exchange its keys and values

    @property
    def label(self) -> str:
        """Its name in reports."""
        return type(self).__name__

    @property
    def unfused(self) -> int:
        """Traffic of its unfused operations in fp32, as a multiple of one fused kernel's in 16 bits."""
        return 1

    def on_chip(self, work: Workload) -> Num:
        """Elements that stay on chip if it runs as one kernel."""
        return 0

    @property
    def traffic_exact(self) -> bool:
        """Whether its reference module reads and writes exactly the claimed traffic, each tensor once."""
        return False

    @property
    def operators_exact(self) -> str:
        """Which operators of its reference module compute the claimed non-product FLOPs: "all", "softmax", or ""
        (none)."""
        return ""

    @property
    def additions(self) -> Num | None:
        """Number of additions of whole vectors; None for other leaves."""
        return None

    @property
    def attended(self) -> Attended | None:
        """The heads of its softmax; None without one."""
        return None

    @property
    def extra_products(self) -> str:
        """Products besides the scores and values of one softmax, in words; "": none."""
        return ""

    @property
    def angles(self) -> tuple[Num, float | None] | None:
        """Dimensions and base of its rotary angles, which depend on the position alone; None: not rotary."""
        return None

    @property
    def mask_span(self) -> Span | None:
        """The span of keys that its softmax sees; None: no softmax, or no mask."""
        return None

    @property
    def masked(self) -> bool:
        """Whether the mask alone decides what is seen: no scores select keys."""
        return False

    @property
    def norm_shape(self) -> tuple[Num, Num] | None:
        """(groups, width of each) of a norm; None for other leaves."""
        return None

    @property
    def rotated_dims(self) -> tuple[Num, Num] | None:
        """(rotated dimensions of a head, all of them); None: not rotary."""
        return None

    @property
    def of_all(self) -> str:
        """What it computes over all of its channels or heads, so that tp's shares have other values, in words; "":
        nothing."""
        return ""

    def rows_kept(self, work: Workload) -> Num:
        """Statistics per position that its kernel saves for backward: a mean, a softmax's log-sum-exp."""
        return 0

    def saved_differs(self, work: Workload) -> str:
        """Why its reference module saves other tensors for backward than its kernel; "": it does not."""
        return ""
