"""Collectives as leaves, placed where the shares of a split model are joined.

`message` is the whole tensor that a group of n ranks shares. Counts are those of ring algorithms, the fewest elements
of any algorithm without in-network reduction.
Source   Thakur et al. 2005 (Optimization of collective communication operations in MPICH), sections 4 to 7
"""

from __future__ import annotations

from typing import ClassVar

from txcalc.num import Num, power, ratio
from txcalc.parts.leaf import Leaf
from txcalc.parts.work import Axis, Transfer, Workload


class Ring(Leaf):
    """A ring algorithm: in each of `passes`, n − 1 steps of an n-th of the message."""

    role = "collective"
    passes: ClassVar[int] = 1
    width: Num
    axis: Axis

    def transfers(self, work: Workload) -> tuple[Transfer, ...]:
        message = work.positions * self.width
        moved = ratio(self.passes * message * (self.axis.size - 1), self.axis.size)
        return (Transfer(str(self.kind), self.axis, message, moved, moved),)


class AllReduce(Ring):
    """Partial sums of every rank become the sum on all ranks.

    Shapes   partial sums and sum (B, T, width)
    Unit     2·B·T·width·(n − 1)/n elements sent; the additions are not counted
    Source   Shoeybi et al. 2019 (arXiv 1909.08053), section 3: once after attention and once after the feed-forward
    """

    kind = "all_reduce"
    passes = 2


class AllGather(Ring):
    """Each rank's n-th of a tensor becomes the whole on all ranks.

    Shapes   shares (B, T, width/n) or (B, T/n, width), result (B, T, width)
    Unit     B·T·width·(n − 1)/n elements sent
    Source   Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.2
    """

    kind = "all_gather"


class ReduceScatter(Ring):
    """Partial sums of every rank become an n-th of the sum on each.

    Shapes   partial sums (B, T, width), share of the sum (B, T/n, width)
    Unit     B·T·width·(n − 1)/n elements sent; the additions are not counted
    Source   Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.2
    """

    kind = "reduce_scatter"


class AllToAll(Leaf):
    """Dispatch and combine of experts: each token goes to the ranks that hold one of its `choices` experts, or its
    results come back.

    `sharers` ranks hold the same tokens, of which each sends a share. `narrow`: sent in the dtype of the products.
    `copies`: one copy per choice; else one per rank that has any of them.

    Shapes   tokens (B, T, width)
    Unit     B·T·width/sharers·(n − 1)·(1 − (1 − 1/n)^choices) elements sent; with copies B·T·width/sharers·choices·
             (n − 1)/n
    Counts   even routing: the expectation for experts chosen independently
    Source   Lepikhin et al. 2020 (arXiv 2006.16668), section 3.2; once per rank: DeepSeek-V3 (arXiv 2412.19437), 3.2.2
    """

    kind = "all_to_all"
    role = "collective"
    width: Num
    axis: Axis
    sharers: Num
    choices: Num
    narrow: bool
    copies: bool = False

    def transfers(self, work: Workload) -> tuple[Transfer, ...]:
        ranks = self.axis.size
        share = ratio(work.positions * self.width, self.sharers)
        reached = self.choices if self.copies else ranks * (1 - power(1 - ratio(1, ranks), self.choices))
        moved = share * reached * ratio(ranks - 1, ranks)
        return (Transfer(self.kind, self.axis, share, moved, moved, self.narrow, self.choices),)


class Hop(Leaf):
    """The residual stream between two pipeline stages; each of the `sharers` ranks that hold it passes on a share."""

    role = "collective"
    sends: ClassVar[int] = 0
    width: Num
    axis: Axis
    sharers: Num

    def transfers(self, work: Workload) -> tuple[Transfer, ...]:
        share = ratio(work.positions * self.width, self.sharers)
        return (Transfer(str(self.kind), self.axis, share, share * self.sends, share * (1 - self.sends)),)


class Send(Hop):
    """A stage sends the residual stream to the next.

    Shapes   (B, T, width)
    Unit     B·T·width/sharers elements sent
    Source   Narayanan et al. 2021 (arXiv 2104.04473), section 4.1
    """

    kind = "send"
    sends = 1


class Receive(Hop):
    """A stage receives the residual stream from the one before.

    Shapes   (B, T, width)
    Unit     B·T·width/sharers elements received, none sent
    Source   Narayanan et al. 2021 (arXiv 2104.04473), section 4.1
    """

    kind = "receive"


Collective = AllReduce | AllGather | ReduceScatter | AllToAll | Send | Receive
