"""What ranks send each other: messages, the datasheet of their links, and what a communication library reaches of it.

`Machine.library` is the communication library: serving and training time a message alike where their libraries are
the same.
"""

from __future__ import annotations

from abc import abstractmethod
from math import inf, log2
from typing import NamedTuple

from msgspec import Struct

from txcalc.hardware import Accelerator
from txcalc.num import ceil_div
from txcalc.planning.layout import Group

# Ranks of one node up to which engines exchange tokens of experts by an all-gather and a reduce-scatter, unless told:
# vLLM (--all2all-backend allgather_reducescatter), SGLang (--moe-a2a-backend none), TensorRT-LLM but in racks.
GATHERED = 8
NODE = 8  # accelerators that usually share a link
HOST = 8 * 10**9  # bytes per second between cards without a link: PCIe 4.0 of four lanes, the slowest slot in use
RINGS = "all_reduce", "all_gather", "reduce_scatter"  # what is sent around a ring


class Message(NamedTuple):
    """A collective, or what one rank sends to the next.

    sent    bytes that each rank sends
    pieces  collectives that it consists of
    across  bytes that leave the node; None: an even share
    """

    kind: str
    group: Group
    sent: float
    pieces: int = 1
    across: float | None = None


def ring(kind: str, group: Group, message: float, pieces: int = 1) -> Message:
    """A ring collective of a message of `message` bytes."""
    others = (group.size - 1) / group.size
    return Message(kind, group, message * (2 * others if kind == "all_reduce" else others), pieces)


def relayed(group: Group, token_bytes: float, choices: float) -> Message:
    """An all-to-all of `token_bytes` of tokens, each with `choices` experts: a token is sent once to each node with any
    of its experts, to the rank of the same number, which forwards it once to each rank of its node that needs it.

    Source   DeepSeek-V3 (arXiv 2412.19437), section 3.2.2; DeepEP
    """
    ranks, local = group
    nodes = ceil_div(ranks, local)
    across = token_bytes * (nodes - 1) * (1 - (1 - 1 / nodes) ** choices)
    inside = token_bytes * ranks * (1 - (1 - 1 / ranks) ** choices) * (local - 1) / local
    return Message("all_to_all", group, inside + across, across=across)


def datasheet_seconds(accelerator: Accelerator, message: Message, least: bool = False) -> float:
    """Seconds of a message at datasheet rates: links within nodes and between them work at the same time, and the
    slower decides.

    A ring enters and leaves a node once, over the network cards of all its ranks there (at `least` only what no rank of
    the other node has does); in an all-to-all every rank sends to all others alike, over its own. What a pipeline stage
    sends to the next is the mean over all stages, some of which share a node; without a link it goes through the host's
    memory (at least: PCIe 5.0 of sixteen lanes).
    Errors: `InputError` where a link is needed and not known.
    """
    kind, group, sent, _, across = message
    if kind == "send" and accelerator.link is None and not group.crosses:
        return sent / (8 * HOST if least else HOST)
    inside = sent / accelerator.needed("link")
    if not group.crosses:
        return inside
    between = sent / accelerator.needed("link_between")
    ranks, local = group
    away = (ranks - local) / (ranks - 1)  # of the others
    if kind == "all_to_all":
        share = away if across is None or not sent else across / sent
        return max(inside * (1 - share), between * share)
    if kind == "send":
        hops = ceil_div(ranks, local) - 1
        return (between * hops + inside * (ranks - 1 - hops)) / (ranks - 1)
    return max(inside, between / local * (away if least and kind != "all_reduce" else 1))


class LibrarySource(Struct, frozen=True):
    """What sends a message, and where its figures are from."""

    library: str
    source: str


class Library(Struct, frozen=True):
    """A communication library."""

    @abstractmethod
    def seconds(self, accelerator: Accelerator, message: Message) -> float:
        """Seconds of a message on an accelerator's links."""

    @abstractmethod
    def source(self, accelerator: Accelerator, kind: str, group: Group) -> LibrarySource:
        """What sends a kind of message to a group."""


# What NCCL's large messages reach of a link: 367.61 of 450 GB/s on 8 × H200, 77 % to 83 % on 8 × A100.
LINK_SHARE = 0.82
# Seconds of its start, and of a hop within a node and one between two, of rings and of trees: baseLat, hwLat.
START, RING, TREE = 14e-6, (1.9e-6, 4.0e-6), (1.25e-6, 8.5e-6)


class Nccl(Library, frozen=True):
    """NCCL as frameworks call it: a share of the links' rate, and for every collective, however small, what NCCL's own
    cost model gives its LL128 protocol.

    busbw   bytes per second that rings between nodes reach at most, as nccl-tests measure it: of each group of ranks,
            however many of a node's network cards it has
    """

    busbw: float = inf

    def seconds(self, accelerator: Accelerator, message: Message) -> float:
        limited = message.group.crosses and message.kind in RINGS
        least = message.sent / self.busbw if limited else 0.0
        rated = datasheet_seconds(accelerator, message) / LINK_SHARE
        return max(rated, least) + message.pieces * self.latency(message)

    def latency(self, message: Message) -> float:
        """Seconds of one piece of a collective, however small it is: the ring's, or of an all-reduce the tree's if that
        is less."""
        size, local = message.group
        nodes = ceil_div(size, local)
        hops = nodes if nodes > 1 else 0  # between nodes
        if message.kind not in RINGS:
            return START + (RING[1] if hops else RING[0])
        around = max(0, size - 1 - hops) * RING[0] + hops * RING[1]
        if message.kind != "all_reduce":
            return START + around
        return START + 2 * min(around, (local - 1) * TREE[0] + log2(nodes) * TREE[1])

    def source(self, accelerator: Accelerator, kind: str, group: Group) -> LibrarySource:
        latencies = "latency: NCCL 2.2x, src/graph/tuning.cc"
        rates = "stas00/ml-engineering 744d01e, network/README.md; docs.alayanew.com, 2026-05-06"
        return LibrarySource("NCCL", f"{latencies}; share of the link: nccl-tests ({rates})")


class EngineCollectives(Library, frozen=True):
    """What serving engines send. Within a node they replay captured graphs, measured kernel by kernel
    (`Efficiency.links`): the engine's all-reduce (TensorRT-LLM, vLLM and SGLang each have one), and NCCL for every
    other collective. Between nodes they call NCCL as frameworks do: in the engine's all-reduce ranks write into each
    other's memory, which works only within a node.

    Source   vLLM, distributed/device_communicators/custom_all_reduce.py: disabled for a group over several nodes, and
             for more than two GPUs on a shared bus (PCIe), where NCCL is what was measured
    """

    def seconds(self, accelerator: Accelerator, message: Message) -> float:
        if message.group.crosses:
            return NCCL.seconds(accelerator, message)
        curve, ranks = accelerator.efficiency.transfer(message.kind), message.group.size
        rated = datasheet_seconds(accelerator, message)
        return rated / curve.reached(rated * (accelerator.link or HOST), ranks) + curve.latency(ranks)

    def source(self, accelerator: Accelerator, kind: str, group: Group) -> LibrarySource:
        cited = accelerator.efficiency.cited
        if group.crosses:
            return NCCL.source(accelerator, kind, group)
        if kind != "all_reduce":
            return LibrarySource("NCCL in captured graphs", cited["link.all_to_all"])
        shared_bus = group.size > 2 and accelerator.efficiency.transfer(kind).crowd
        return LibrarySource("NCCL" if shared_bus else "all-reduce of the engine", cited["link.all_reduce"])


class Datasheet(Library, frozen=True):
    """No library but a lower bound: every byte at the datasheet's rate, of an all-reduce its message once, as a switch
    that reduces can do."""

    def seconds(self, accelerator: Accelerator, message: Message) -> float:
        if message.kind == "all_reduce":
            size = message.group.size
            message = message._replace(sent=message.sent * size / (2 * (size - 1)))
        return datasheet_seconds(accelerator, message, least=True)

    def source(self, accelerator: Accelerator, kind: str, group: Group) -> LibrarySource:
        return LibrarySource("none", "datasheet")


NCCL, ENGINE_COLLECTIVES, DATASHEET = Nccl(), EngineCollectives(), Datasheet()
