"""What a training run runs on: accelerators in nodes, the links within and between them, and how long a kernel takes.

Times are a roofline with the shares of `hardware.Efficiency`, which come from measurements of kernels alone. A
collective over ranks of one node has the accelerator's link; one that reaches over nodes has as many network ports as
it has ranks in each, up to the link.
Source   Williams et al. 2009 (roofline); Thakur et al. 2005 (rings); NCCL's multi-rail rings
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import NamedTuple

from txcalc.errors import Fault, InputError
from txcalc.hardware import Accelerator
from txcalc.planning.layout import Group
from txcalc.planning.roofline import peak

# Accelerators of a node, and bytes a second one way of the network port that each has, by the beginning of the name.
NODES: dict[str, tuple[int, int, str]] = {
    "gb300": (72, 100 * 10**9, "NVIDIA GB300 NVL72 datasheet: 72 in a rack, 800 Gb/s each"),
    "gb200": (72, 50 * 10**9, "NVIDIA GB200 NVL72 datasheet: 72 in a rack, 400 Gb/s each"),
    "b300": (8, 100 * 10**9, "NVIDIA DGX B300 datasheet: 8 × 800 Gb/s"),
    "b200": (8, 50 * 10**9, "NVIDIA DGX B200 datasheet: 8 × 400 Gb/s"),
    "h200": (8, 50 * 10**9, "NVIDIA DGX H200 datasheet: 8 × 400 Gb/s"),
    "h100": (8, 50 * 10**9, "NVIDIA DGX H100 datasheet: 8 × 400 Gb/s; Llama 3 (arXiv 2407.21783), section 3.3"),
    "a100": (8, 25 * 10**9, "NVIDIA DGX A100 datasheet: 8 × 200 Gb/s; Narayanan et al. 2021, section 5"),
    "mi3": (8, 50 * 10**9, "AMD Instinct platform design: 8 × 400 Gb/s"),
}


@dataclass(frozen=True)
class Machine:
    """Where a run takes place.

    node       accelerators that share fast links
    network    bytes a second one way of each accelerator to other nodes; None: unknown
    products   dtype that linear layers multiply in
    overlap    whether gathering weights and reducing gradients goes on beside compute
    """

    accelerator: Accelerator
    node: int = 8
    network: int | None = None
    products: str = "bf16"
    overlap: bool = True

    @classmethod
    def of(
        cls,
        accelerator: Accelerator,
        node: int | None = None,
        network: int | None = None,
        products: str = "bf16",
        overlap: bool = True,
    ) -> Machine:
        """With the node and network that its maker sells it with, where nothing else is said."""
        known = next((found for start, found in NODES.items() if accelerator.name.startswith(start)), (8, None, ""))
        if node is not None and node < 1:
            raise InputError("--node", [Fault("--node", node, "a whole number from 1")])
        peak(accelerator, products)
        return cls(accelerator, node or known[0], network or known[1], products, overlap)

    def link(self, group: Group) -> float:
        """Bytes a second one way that each rank of a group has for a collective. Errors: `InputError` where unknown."""
        if not group.crosses:
            return float(self.accelerator.needed("link")) if group.size > 1 else 1.0
        ports = self._ports * group.local
        return float(min(ports, self.accelerator.link)) if self.accelerator.link and group.local > 1 else float(ports)

    @property
    def _ports(self) -> int:
        if self.network is None:
            raise InputError(self.accelerator.name, ["the network between its nodes is not known (say --network 50GB)"])
        return self.network


class Moved(NamedTuple):
    """A collective: its kind, the ranks, the bytes that each of them sends, and in how many pieces."""

    kind: str
    group: Group
    sent: float
    pieces: int = 1


def ring(kind: str, group: Group, message: float, pieces: int = 1) -> Moved:
    """A collective of a whole message of so many bytes, by a ring."""
    others = (group.size - 1) / group.size
    return Moved(kind, group, message * (2 * others if kind == "all_reduce" else others), pieces)


# Seconds that NCCL's own model gives a collective over nodes: its start, a hop within a node and one between two, of
# rings and of trees, with its LL128 protocol. NCCL 2.2x, src/graph/tuning.cc: baseLat, hwLat.
START, RING, TREE = 14e-6, (1.9e-6, 4.0e-6), (1.25e-6, 8.5e-6)


def latency(moved: Moved) -> float:
    """Seconds of one piece of a collective over nodes, however small it is: the ring's, or of an all-reduce the tree's
    if that is less."""
    size, local = moved.group
    if moved.kind not in ("all_reduce", "all_gather", "reduce_scatter"):
        return START + RING[1]
    nodes, rounds = -(-size // local), 2 if moved.kind == "all_reduce" else 1
    around = rounds * ((size - 1 - nodes) * RING[0] + nodes * RING[1]) if size > nodes else rounds * nodes * RING[1]
    if rounds == 1:
        return START + around
    return START + min(around, 2 * ((local - 1) * TREE[0] + log2(nodes) * TREE[1]))


class Kernels:
    """Seconds of a rank's kernels and collectives, as they are reached; `Floor` has those that nothing can beat."""

    def __init__(self, machine: Machine, wide: str = "bf16") -> None:
        self.machine, self.accelerator = machine, machine.accelerator
        found = self.accelerator.efficiency
        self.peak, self.wide = float(peak(self.accelerator, machine.products)), float(peak(self.accelerator, wide))
        self.product_share = found.matmul.get(machine.products, 1.0)
        self.wide_share, self.core_share = found.matmul.get(wide, 1.0), found.attention_prefill
        self.memory_share, self.launch = found.memory, found.launch_s
        self.link_share, self.collective = found.link, found.collective_s
        self.bandwidth = float(self.accelerator.bandwidth)

    def product(self, flops: float, size: float, starts: float) -> float:
        """A matrix product that moves so many bytes."""
        compute, memory = flops / self.peak / self.product_share, size / self.bandwidth / self.memory_share
        return max(compute, memory) + starts * self.launch

    def core(self, flops: float, size: float, starts: float, fused: bool) -> float:
        """Attention: one kernel (`fused`), or products whose scores go through memory, one after the other."""
        memory = size / self.bandwidth / self.memory_share
        if fused:
            return max(flops / self.wide / self.core_share, memory) + starts * self.launch
        return flops / self.wide / self.wide_share + memory + 4 * starts * self.launch

    def stream(self, size: float, starts: float) -> float:
        """Whatever moves more than it computes."""
        return size / self.bandwidth / self.memory_share + starts * self.launch

    def transfer(self, moved: Moved) -> float:
        """A collective or a transfer."""
        if moved.group.size == 1 or not moved.sent:
            return 0.0
        machine, group = self.machine, moved.group
        if moved.kind == "all_to_all" and group.crosses:  # what stays in the node goes beside what leaves it
            near = moved.sent * (group.local - 1) / (group.size - 1)
            inside = near / float(self.accelerator.link) if self.accelerator.link else 0.0
            outside = (moved.sent - near) / machine.link(Group(group.size, 1))
            return max(inside, outside) / self.link_share + self.starts(moved)
        return moved.sent / machine.link(group) / self.link_share + self.starts(moved)

    def starts(self, moved: Moved) -> float:
        """Seconds of a collective's pieces, however small they are."""
        return moved.pieces * (latency(moved) if moved.group.crosses else self.collective)


class Floor(Kernels):
    """The same at the datasheet: full peaks and bandwidths, and starts that cost nothing."""

    def __init__(self, machine: Machine, wide: str = "bf16") -> None:
        super().__init__(machine, wide)
        self.product_share = self.wide_share = self.core_share = self.memory_share = self.link_share = 1.0
        self.launch = 0.0

    def starts(self, moved: Moved) -> float:
        return 0.0
