"""The time of what ranks send each other, on the datasheet of their links."""

from __future__ import annotations

from txcalc.hardware import Accelerator
from txcalc.num import ceil_div
from txcalc.planning.layout import Group

# Ranks of one node up to which engines exchange tokens of experts by an all-gather and a reduce-scatter, unless told:
# vLLM (--all2all-backend allgather_reducescatter), SGLang (--moe-a2a-backend none), TensorRT-LLM but in racks.
GATHERED = 8
NODE = 8  # accelerators that usually share a link
HOST = 8 * 10**9  # bytes per second between cards without a link: PCIe 4.0 of four lanes, the slowest slot in use


def seconds(
    accelerator: Accelerator, group: Group, kind: str, sent: float, least: bool = False, across: float | None = None
) -> float:
    """The time of bytes that every rank of a group sends, on the datasheet: links within nodes and between them work at
    the same time, and the slower decides.

    A ring enters and leaves a node once, over the network cards of all its ranks there (at `least` only what no rank of
    the other node has does); in an all-to-all every rank sends to all others alike, over its own
    (`across`: the bytes of it that leave the node, where they are known). What a pipeline stage sends to the next is
    the mean over all stages, some of which share a node; without a link it goes through the host's memory.
    Errors: `InputError` where a link is needed and not known.
    """
    if kind == "send" and accelerator.link is None and not group.crosses:
        return sent / (8 * HOST if least else HOST)  # at least: PCIe 5.0 of sixteen lanes
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
