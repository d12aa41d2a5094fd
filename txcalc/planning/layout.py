"""A layout: over how many accelerators each kind of parallelism spreads a model, and where the ranks stand.

Ranks are numbered as Megatron-LM and torchtitan number them: those of tp are neighbours, then cp, fsdp, dp, and stages
of pp are farthest apart. So a group of ranks lies within a node, or reaches over several, by its size and its stride.
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

MOST = 1 << 16
ORDER = ("tp", "cp", "fsdp", "dp", "pp")  # from neighbours to those farthest apart
# A server's copies of a model are apart, each with its stages side by side.
SERVING_ORDER = ("tp", "cp", "pp", "fsdp", "dp")


class Group(NamedTuple):
    """`size` ranks that exchange data, `local` of them in one node. If groups do not align with nodes, the worst group:
    the one with the fewest ranks in a node."""

    size: int
    local: int

    @property
    def crosses(self) -> bool:
        """Whether it reaches over several nodes."""
        return self.local < self.size


def filled(node: int, ranks: int) -> int:
    """Ranks per node of `node` accelerators: the same on each of the fewest nodes that hold all ranks, as launchers
    start them (64 of 72 for 256 ranks on four nodes), or `node` if they do not divide evenly.

    Source   torchrun's --nproc-per-node and Slurm's --ntasks-per-node, one number for all nodes
    """
    nodes = ceil_div(ranks, node)
    return node if ranks % nodes else ranks // nodes


@lru_cache(maxsize=4096)
def standing(size: int, stride: int, node: int, ranks: int) -> tuple[int, int]:
    """Over all groups of `size` ranks, `stride` apart: the fewest ranks that a group has in a node, and the most nodes
    that a group spans. A node between a group's first and last holds no fewer than the first of some other group, which
    begins up to a stride later."""
    node = filled(node, ranks)
    if size == 1 or stride >= node:
        return 1, size
    firsts = {  # in its node, of every group's first rank
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

    tp     tensor parallel: heads, feed-forward columns and vocabulary are split over tp ranks
    sp     sequence parallel: between the branches of a layer, where nothing is split by tp, its ranks hold a share of
           the positions each; tp, or 1 for not
    pp     pipeline parallel: the layers are cut into stages on pp ranks
    vpp    stages of each rank of a pipeline (interleaved)
    dp     data parallel: dp copies of everything but the experts, each with sequences of its own
    fsdp   fully sharded data parallel: ranks with sequences of their own that hold a share of every weight each and
           gather it when it is used; with dp above 1 there are dp copies of such groups (hybrid sharding)
    cp     context parallel: the positions of a sequence are split over cp ranks; with --framework fsdp2 these
           hold a share of every weight each, as those of fsdp do
    ep     expert parallel: whole experts are spread over ep ranks of a stage, whatever else these are; 1: experts are
           split like any feed-forward
    etp    ranks over which one expert is split; None: tp/ep where ep < tp, else 1
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
        """Ranks of one stage of a pipeline."""
        return self.tp * self.cp * self.copies

    @property
    def copies(self) -> int:
        """Ranks, or groups of them, with sequences of their own."""
        return self.dp * self.fsdp

    @property
    def expert_ways(self) -> int:
        """Ranks over which one expert is split."""
        return max(1, self.tp // self.ep) if self.etp is None else self.etp

    @property
    def expert_group(self) -> int:
        """Neighbouring ranks of a stage that hold every expert once between them."""
        return self.ep * self.expert_ways

    @cached_property
    def sharing(self) -> int:
        """Copies of the rest that experts are spread over."""
        return max(1, self.expert_group // self.tp)

    @property
    def exchanges(self) -> bool:
        """Whether tokens are sent to their experts: these are spread over others than the ranks of tp, which all have
        the same tokens."""
        return self.expert_group != self.tp

    @cached_property
    def replica(self) -> Layout:
        """One of its `dp` copies."""
        return self.replace(dp=1)

    @cached_property
    def uncut(self) -> Layout:
        """The same without a pipeline."""
        return self.replace(pp=1)

    def replace(self, **ways: int) -> Layout:
        """The same with other numbers."""
        return replace(self, **ways)

    @cached_property
    def _numbers(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in AXES}

    def record(self) -> dict[str, int]:
        """tp, pp, dp and ep, and others that are not 1."""
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
            return Group(size, self._together(size, step, filled(node, self.gpus), order))
        stride = prod(getattr(self, name) for name in order[: order.index(axis)])
        fewest, nodes = standing(size, stride, node, self.gpus)
        return Group(size, ceil_div(size, nodes) if axis == "pp" else fewest)  # stages hand on one after the other

    def ends(self, node: int | None) -> Group:
        """A rank of the first stage and its fellow of the last."""
        return Group(2, 2 if node is None else standing(2, (self.pp - 1) * self.stage, node, self.gpus)[0])

    def _together(self, size: int, step: int, node: int, order: tuple[str, ...]) -> int:
        """Of all groups of `size` ranks of a stage, `step` apart in it: the fewest ranks that stand in one node."""
        axes = [name for name in order if name != "pp"]
        stride = prod(getattr(self, name) for name in order[: order.index("pp")])
        places = [self._place(member, axes, order) for member in range(self.gpus // self.pp)]
        firsts = [block + offset for block in range(0, len(places), size * step) for offset in range(step)]
        groups = [places[first : first + size * step : step] for first in firsts]
        shifts = [stage * stride for stage in range(self.pp)]
        return min(
            min(Counter((place + shift) // node for place in group).values()) for group in groups for shift in shifts
        )

    def _place(self, member: int, axes: list[str], order: tuple[str, ...]) -> int:
        """The number among all ranks of the i-th of those that differ in some axes alone."""
        place, stride = 0, 1
        for name in order:
            ways = getattr(self, name)
            if name in axes:
                member, digit = divmod(member, ways)
                place += digit * stride
            stride *= ways
        return place

    def not_numbers(self) -> list[Fault | str]:
        """The fields that are no whole numbers above 0."""
        return [
            Fault(name, number, f"a whole number from 1 to {MOST:,}")
            for name, number in self._numbers.items()
            if not (type(number) is int and 1 <= number <= MOST) and not (name == "etp" and number is None)
        ]

    def faults(self) -> list[Fault | str]:
        """Why there is no such layout, whatever the model; [] where there is."""
        if faults := self.not_numbers():
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
        """Whether an axis of 1 is another layout than without it: an expert that is not split where tp is."""
        return name == "etp" and self.etp is not None and self.etp != max(1, self.tp // self.ep)


AXES = Layout.__struct_fields__
SERVING = ("tp", "pp", "dp", "ep")
# What a server has no use for, and why.
UNSERVED: Mapping[str, str] = {
    "sp": "1: sequence parallelism saves activations for backward, which a server does not keep",
    "vpp": "1: interleaved stages fill the bubble of training's backward; a server's stages are contiguous",
    "fsdp": "1: a server keeps its weights; gathering them for every step is for training",
    "cp": "1: context parallelism is not supported yet when serving",
}


def unserved(layout: Layout) -> list[Fault | str]:
    """What of a layout is for training only."""
    faults: list[Fault | str] = [
        Fault(name, n, why) for name, why in UNSERVED.items() if (n := getattr(layout, name)) not in (1, None)
    ]
    if layout.etp is not None and layout.expert_group not in (layout.tp, every := layout.tp * layout.dp):
        faults.append(
            Fault("ep · etp", layout.expert_group, f"tp = {layout.tp}, or tp · dp = {every} that share experts")
        )
    return faults


def parse_layout(text: str) -> Layout:
    """`tp=8,pp=16,dp=64` as a layout; what is not named is 1.

    Errors: `InputError` with every fault at once.
    """
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
    """A layout, also of a text. Errors: `InputError` with every fault."""
    if isinstance(value, str):
        return parse_layout(value)
    if faults := value.faults():
        raise InputError("--layout", faults)
    return value
