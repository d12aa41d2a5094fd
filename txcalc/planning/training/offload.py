"""Offloading to host memory: bytes and time, modelled.

optimizer     its state and the fp32 copy of the weights: each step gradients go to the host, whose processors make the
              step, and new weights come back (ZeRO-Offload)
activations   what blocks keep for backward, but for the block at work and the one on its way: out behind forward, and
              back before backward
Omits         pinning, buckets, a host's caches; other work of its processors
Source        Ren et al. 2021 (arXiv 2101.06840), sections 4 and 5; torch.autograd.graph.save_on_cpu
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from txcalc.num import ceil_div
from txcalc.planning.training.memory import Peak
from txcalc.planning.training.recipe import Recipe

# Host memory bandwidth per accelerator, in bytes per second: two sockets with eight channels of DDR5-4800 (38.4 GB/s
# each) for eight accelerators, as in a DGX H100.
HOST = 76_800_000_000


class Hosted(NamedTuple):
    """Seconds of a step that the busiest rank waits for the link and for the host's CPUs."""

    link: float
    processors: float


def hosted(recipe: Recipe, ranks: Sequence[Peak], link: int, forward: float, backward: float) -> Hosted:
    """`forward` and `backward`: seconds of a micro-batch's compute, which overlap with the transfer of activations."""
    waiting = processors = 0.0
    if recipe.offloads("optimizer"):
        for rank in ranks:
            shards = recipe.layout.dp * recipe.layout.cp if recipe.zero in (1, 2) else 1
            gradients = rank.state.gradients // (shards if recipe.zero == 1 else 1)
            weights = ceil_div(rank.state.adapters or rank.state.parameters, shards)
            waiting = max(waiting, (gradients + weights) / link)
            processors = max(processors, (gradients + 2 * rank.state.optimizer + weights) / HOST)
    if recipe.offloads("activations"):
        moved = max(rank.offloaded for rank in ranks) / link
        waiting += recipe.accumulation * (max(0.0, moved - forward) + max(0.0, moved - backward))
    return Hosted(waiting, processors)
