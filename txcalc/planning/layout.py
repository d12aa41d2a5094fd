"""A layout: the degree of each kind of parallelism, and the placement of ranks on nodes.

Ranks are numbered as in Megatron-LM and torchtitan: tp varies fastest, then cp, fsdp, dp, and pp slowest. The size and
the stride of a group of ranks therefore decide whether it is within a node or spans several.
Source   Narayanan et al. 2021 (arXiv 2104.04473), section 3; Liang et al. 2024 (arXiv 2410.06511), section 2
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cached_property, lru_cache
from itertools import islice
from math import prod
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from txcalc.errors import Fault, InputError, meant, nearest
from txcalc.num import ceil_div

MAX_DEGREE = 1 << 16
ORDER = ("tp", "cp", "fsdp", "dp", "pp")  # from the fastest to the slowest varying axis
# In a server, the stages of each replica are neighbours.
SERVING_ORDER = ("tp", "cp", "pp", "fsdp", "dp")


class Group(NamedTuple):
    """`size` ranks that exchange data, `local` of them in one node. If groups do not align with nodes, the worst group:
    the one with the fewest ranks in a node."""

    size: int
    local: int

    @property
    def crosses(self) -> bool:
        """Whether it spans several nodes."""
        return self.local < self.size


def ranks_per_node(node: int, ranks: int) -> int:
    """Ranks per node of `node` accelerators: equal on the fewest nodes that hold all ranks, as launchers start them (64
    of 72 for 256 ranks on four nodes), or `node` if they do not divide evenly.

    Source   torchrun's --nproc-per-node and Slurm's --ntasks-per-node, one number for all nodes
    """
    nodes = ceil_div(ranks, node)
    return node if ranks % nodes else ranks // nodes


@lru_cache(maxsize=4096)
def standing(size: int, stride: int, node: int, ranks: int) -> tuple[int, int]:
    """Over all groups of `size` ranks, `stride` apart: the fewest ranks that a group has in a node, and the most nodes
    that a group spans. Only a group's first and last node matter: a node between them has at least as many of its ranks
    as the first node of a group that starts less than a stride later."""
    node = ranks_per_node(node, ranks)
    if size == 1 or stride >= node:
        return 1, size
    firsts = {  # positions of the groups' first ranks within their nodes
        (block + offset) % node
        for block in islice(range(0, ranks, size * stride), node)
        for offset in range(stride)
        if block + offset + (size - 1) * stride < ranks
    }
    fewest, most = size, 1
    for first in firsts:
        leading = ceil_div(node - first, stride)
        nodes, last = divmod(first + (size - 1) * stride, node)
        fewest, most = min(fewest, leading, last // stride + 1), max(most, nodes + 1)
    return fewest, most


class Layout(Struct, frozen=True, kw_only=True, dict=True):
    """tp · pp · cp · dp · fsdp accelerators.

    tp     tensor parallel: heads, feed-forward columns and vocabulary are sharded over tp ranks
    sp     sequence parallel: between the branches of a layer, outside tp's region, positions are sharded over tp's
           ranks; tp, or 1 without
    pp     pipeline parallel: the layers are partitioned into stages on pp ranks
    vpp    stages per rank of a pipeline (interleaved)
    dp     data parallel: dp replicas of everything except experts, each with its own sequences
    fsdp   fully sharded data parallel: every weight is sharded over ranks with their own sequences, which gather it
    when
           it is used; with dp above 1 there are dp replicas of such groups (hybrid sharding)
    cp     context parallel: the positions of a sequence are sharded over cp ranks; with --framework fsdp2 every weight
           is sharded over these too
    ep     expert parallel: unsharded experts are distributed over ep ranks of a stage, of any axis; 1: experts are
           sharded like any feed-forward
    etp    ranks over which one expert is sharded; None: tp/ep if ep < tp, else 1
    """

    tp: int = 1
    sp: int = 1
    pp: int = 1
    vpp: int = 1
    dp: int = 1
    fsdp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None

    @property
    def gpus(self) -> int:
        return self.stage * self.pp

    @property
    def stage(self) -> int:
        """Ranks per pipeline stage."""
        return self.tp * self.cp * self.copies

    @property
    def copies(self) -> int:
        """Ranks, or groups of ranks, with their own sequences."""
        return self.dp * self.fsdp

    @property
    def expert_ways(self) -> int:
        """Ranks over which one expert is sharded."""
        return max(1, self.tp // self.ep) if self.etp is None else self.etp

    @property
    def expert_group(self) -> int:
        """Neighbouring ranks of a stage that together have every expert once."""
        return self.ep * self.expert_ways

    @cached_property
    def sharing(self) -> int:
        """Replicas of other weights over which experts are distributed."""
        return max(1, self.expert_group // self.tp)

    @property
    def exchanges(self) -> bool:
        """Whether tokens are dispatched to experts: they are distributed over other ranks than tp's, which all have the
        same tokens."""
        return self.expert_group != self.tp

    @cached_property
    def replica(self) -> Layout:
        """One of its `dp` replicas."""
        return self.replace(dp=1)

    @cached_property
    def uncut(self) -> Layout:
        """The layout without a pipeline."""
        return self.replace(pp=1)

    def replace(self, **ways: int) -> Layout:
        """The layout with other degrees."""
        return replace(self, **ways)

    @cached_property
    def _numbers(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in AXES}

    def record(self) -> dict[str, int]:
        """The degrees of tp, pp, dp and ep, and all others above 1."""
        return {
            name: number
            for name, number in self._numbers.items()
            if number not in (1, None) or name in SERVING or self._is_stated(name)
        }

    def group(self, axis: str, node: int | None, order: tuple[str, ...] = ORDER) -> Group:
        """The ranks of an axis, on nodes of `node` accelerators (None: all accelerators share one link).

        Consecutive ranks of a stage form ep, in blocks of `expert_ways`, which form etp.
        """
        size = self.expert_ways if axis == "etp" else getattr(self, axis)
        if node is None or size == 1:
            return Group(size, size)
        if axis in ("ep", "etp"):
            step = self.expert_ways if axis == "ep" else 1
            if order[-1] == "pp" or self.pp == 1:
                return Group(size, standing(size, step, node, self.gpus)[0])
            return Group(size, self._together(size, step, ranks_per_node(node, self.gpus), order))
        stride = prod(getattr(self, name) for name in order[: order.index(axis)])
        fewest, nodes = standing(size, stride, node, self.gpus)
        return Group(size, ceil_div(size, nodes) if axis == "pp" else fewest)  # each stage sends to the next

    def ends(self, node: int | None) -> Group:
        """A rank of the first stage and the corresponding rank of the last."""
        return Group(2, 2 if node is None else standing(2, (self.pp - 1) * self.stage, node, self.gpus)[0])

    def _together(self, size: int, step: int, node: int, order: tuple[str, ...]) -> int:
        """Over all groups of `size` ranks of a stage, `step` apart in it: the fewest ranks of a group in one node."""
        stride = prod(getattr(self, name) for name in order[: order.index("pp")])
        ranks = [self._first_stage_rank(index, order) for index in range(self.gpus // self.pp)]
        firsts = [block + offset for block in range(0, len(ranks), size * step) for offset in range(step)]
        groups = [ranks[first : first + size * step : step] for first in firsts]
        shifts = [stage * stride for stage in range(self.pp)]
        return min(
            min(Counter((rank + shift) // node for rank in group).values()) for group in groups for shift in shifts
        )

    def _first_stage_rank(self, index: int, order: tuple[str, ...]) -> int:
        """The number of the first stage's rank with this index in its stage."""
        rank, stride = 0, 1
        for name in order:
            ways = getattr(self, name)
            if name != "pp":
                index, digit = divmod(index, ways)
                rank += digit * stride
            stride *= ways
        return rank

    def invalid_degrees(self) -> list[Fault | str]:
        """Faults of degrees that are no whole numbers above 0."""
        return [
            Fault(name, number, f"a whole number from 1 to {MAX_DEGREE:,}")
            for name, number in self._numbers.items()
            if not (type(number) is int and 1 <= number <= MAX_DEGREE) and not (name == "etp" and number is None)
        ]

    def faults(self) -> list[Fault | str]:
        """Why the layout is impossible for any model; [] if it is possible."""
        if faults := self.invalid_degrees():
            return faults
        if self.sp not in (1, self.tp):
            faults.append(Fault("sp", self.sp, f"1 or tp = {self.tp}, whose ranks split the positions"))
        if self.vpp > 1 and self.pp == 1:
            faults.append(Fault("vpp", self.vpp, "1 where pp is 1: it is stages of each rank of a pipeline"))
        return faults + self._experts()

    def _experts(self) -> list[Fault | str]:
        tp, ep, ranks = self.tp, self.ep, self.stage
        axes = " · ".join(["tp", *(name for name in ("cp", "fsdp") if getattr(self, name) > 1), "dp"])
        if self.etp is not None:
            if ranks % (ep * self.etp):
                return [Fault("ep · etp", ep * self.etp, f"a divisor of {axes} = {ranks}")]
        elif (tp % ep and ep % tp) or ranks % ep:
            expected = f"a divisor of tp = {tp}, or a multiple of it that divides {axes} = {ranks}"
            return [Fault("ep", ep, expected)]
        return []

    def __str__(self) -> str:
        return self._written

    @cached_property
    def _written(self) -> str:
        axes = (f"{name}={n}" for name, n in self._numbers.items() if n not in (1, None) or self._is_stated(name))
        return " ".join(axes) or "one GPU"

    def _is_stated(self, name: str) -> bool:
        """Whether a degree of 1 must be written: etp=1, if the default shards experts."""
        return name == "etp" and self.etp is not None and self.etp != max(1, self.tp // self.ep)


AXES = Layout.__struct_fields__
SERVING = ("tp", "pp", "dp", "ep")
# Axes that are only for training, and why.
TRAINING_AXES: Mapping[str, str] = {
    "sp": "1: sequence parallelism saves activations for backward, which a server does not keep",
    "vpp": "1: interleaved stages fill the bubble of training's backward; a server's stages are contiguous",
    "fsdp": "1: a server keeps its weights; gathering them for every step is for training",
    "cp": "1: context parallelism is not supported yet when serving",
}


def serving_faults(layout: Layout) -> list[Fault | str]:
    """Faults of degrees that are only for training."""
    faults: list[Fault | str] = [
        Fault(name, n, why) for name, why in TRAINING_AXES.items() if (n := getattr(layout, name)) not in (1, None)
    ]
    tp, ranks = layout.tp, layout.tp * layout.dp
    if layout.etp is not None and layout.expert_group not in (tp, ranks):
        faults.append(Fault("ep · etp", layout.expert_group, f"tp = {tp}, or tp · dp = {ranks} that share experts"))
    return faults


def parse_layout(text: str) -> Layout:
    """`tp=8,pp=16,dp=64` as a layout; other degrees are 1. Errors: `InputError` with every fault."""
    sizes: dict[str, Any] = {}
    faults: list[Fault | str] = []
    for pair in text.split(","):
        name, equals, number = (piece.strip() for piece in pair.partition("="))
        if not equals or not re.fullmatch(r"[0-9]{1,9}", number):
            faults.append(Fault("--layout", pair.strip(), "NAME=N with a whole number", "tp=8,pp=2,dp=4"))
        elif name not in AXES:
            mend = meant(nearest(name, AXES), f"one of {', '.join(AXES)}")
            faults.append(f"{name!r} is not a kind of parallelism ({mend})")
        elif name in sizes:
            faults.append(f"{name} is given twice")
        else:
            sizes[name] = int(number)
    layout = Layout(**sizes)
    if faults := faults or layout.faults():
        raise InputError("--layout", faults)
    return layout


def read_layout(value: Layout | str) -> Layout:
    """A layout, from a layout or its text. Errors: `InputError` with every fault."""
    if isinstance(value, str):
        return parse_layout(value)
    if faults := value.faults():
        raise InputError("--layout", faults)
    return value
