"""How parts are split over ranks: sizes of a share, the collectives that join shares, and obstacles.

A part's share on one rank is a part of the same type with fewer heads, columns, channels or experts, so that its
formulas stay the same. Numbers are compared here, so that no formula has to.
Source   Shoeybi et al. 2019 (arXiv 1909.08053) tensor parallel; Lepikhin et al. 2020 (arXiv 2006.16668) experts;
         Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.2, sequence parallel
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from txcalc.errors import Fault
from txcalc.num import Num, ceil_div, exact_div, power, ratio, whole
from txcalc.parts.leaf import Leaf
from txcalc.parts.work import Axis, Transfer, Workload


class Ring(Leaf):
    """A ring algorithm: in each of `passes`, n − 1 steps of an n-th of the message (the whole tensor that a group of n
    ranks shares), the fewest elements of any algorithm without in-network reduction.

    Source   Thakur et al. 2005 (Optimization of collective communication operations in MPICH), sections 4 to 7
    """

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
Named = tuple[tuple[str, Collective], ...]


class Ways:
    """The axes of a layout that split parts; collects obstacles (`faults`) and replication or padding (`notes`).

    tp      ranks that split heads, columns, channels and the vocabulary
    ep      ranks that experts are spread over
    etp     ranks that split one expert
    sp      whether the tp ranks, several then, split positions between branches (sequence parallel)
    value   maps a size to its number; over symbols, what a letter stands for
    pads    a vocabulary is padded to a multiple of tp times this; 0: the last ranks hold fewer rows
    slices  whether a layer that reads gathered positions saves its slice and gathers again in backward
    copies  whether a token is sent once per expert, else once per rank that has any of them
    """

    def __init__(
        self,
        tp: Num = 1,
        ep: Num = 1,
        etp: Num = 1,
        *,
        sp: bool = False,
        value: Callable[[Any], int] = lambda size: size,
        pads: int = 1,
        slices: bool = False,
        copies: bool = False,
    ) -> None:
        self.tp, self.ep, self.etp, self.sp, self.value = tp, ep, etp, sp, value
        self.pads, self.slices, self.copies = pads, slices, copies
        self.ranks = value(tp)
        self._axis = "tp", self.ranks  # what a fault names
        self._faults: dict[str, Fault] = {}
        self._notes: dict[str, None] = {}

    @property
    def routed(self) -> Ways:
        """The axes of one routed expert, which etp splits."""
        expert = Ways(self.etp, value=self.value)
        expert._faults, expert._notes = self._faults, self._notes
        derived = expert.ranks == max(1, self.ranks // self.value(self.ep))
        expert._axis = self._axis if derived else ("etp", expert.ranks)
        return expert

    # Obstacles and notes.

    @property
    def faults(self) -> list[Fault | str]:
        """Why the layout cannot split the parts."""
        return list(self._faults.values())

    @property
    def notes(self) -> list[str]:
        """What is replicated or padded."""
        return list(self._notes)

    def fault(self, key: str, number: int, expected: str) -> None:
        """Adds an obstacle, once."""
        fault = Fault(key, number, expected)
        self._faults[str(fault)] = fault

    def note(self, text: str) -> None:
        """Adds a note on what tp replicates, once."""
        if self.ranks > 1:
            self._notes[text] = None

    def cannot_split(self, name: str) -> None:
        """Refuses several ranks for a part that cannot be split yet."""
        if self.ranks > 1:
            self.fault("tp", self.ranks, f"1: splitting a {name} over ranks is not supported yet")

    # Sizes of a share.

    def _divided(self, number: Num, ways: Num) -> Num:
        """number / ways; where that leaves a remainder, which is reported elsewhere, at least 1."""
        if whole(number) and whole(ways):
            return number // ways or 1
        return exact_div(number, ways)

    def split(self, name: str, number: Num) -> Num:
        """number / tp of heads, columns or channels; it must divide."""
        if self.value(number) % self.ranks:
            self.fault(*self._axis, f"a divisor of {name} = {self.value(number):,}")
        return self._divided(number, self.tp)

    def groups(self, name: str, number: Num) -> Num:
        """number / tp of groups; 1, replicated, where there are fewer groups than ranks."""
        groups = self.value(number)
        if groups % self.ranks == 0:
            return self._divided(number, self.tp)
        if self.ranks % groups == 0:
            self.note(f"{name} = {groups:,} is less than tp = {self.ranks}: {self.ranks // groups} ranks hold each")
        else:
            self.fault("tp", self.ranks, f"a divisor of {name} = {groups:,}, or a multiple of it")
        return 1

    def rows(self, number: Num, classes: bool = False) -> Num:
        """The rows of a vocabulary (or of classes, never padded beyond tp) on one rank, rounded up."""
        pads = min(1, self.pads) if classes else self.pads
        rows, multiple = self.value(number), self.ranks * max(1, pads)
        if rows % multiple == 0:
            return exact_div(number, self.tp)
        padded = f"is padded to {ceil_div(rows, multiple) * multiple:,}, a multiple of"
        rule = padded if pads else "is split as by torch.chunk, since it does not divide by"
        what = "the number of classes" if classes else "V"
        self._notes[f"{what} = {rows:,} {rule} {'' if pads > 1 else 'tp = '}{multiple:,}"] = None
        return ceil_div(number, self.tp * max(1, pads)) * max(1, pads)

    def experts(self, number: Num) -> Num:
        """number / ep of the experts; it must divide."""
        if self.value(number) % self.value(self.ep):
            self.fault("ep", self.value(self.ep), f"a divisor of n_experts = {self.value(number):,}")
        return self._divided(number, self.ep)

    def local_top_k(self, top_k: Num) -> Any:
        """Average number of a rank's own experts per local token: k·etp/tp, for tokens of other ranks arrive as its own
        leave. A Fraction where it does not divide."""
        return ratio(top_k * self.etp, self.tp)

    def head_norm(self, norm: Any, number: Num, local_heads: Num) -> Any:
        """A per-head norm of `number` heads with `local_heads` of them on a rank; a norm over all heads stays whole."""
        return replace(norm, groups=local_heads) if norm and self._per_head(norm, number) else norm

    def _per_head(self, norm: Any, number: Num) -> bool:
        return bool(self.value(norm.groups) == self.value(number))

    def keeping(self, norm: Any) -> Any:
        """A norm of a branch's own input, which it saves if no norm of the stream has saved that tensor: one gathered
        for the branch, or the rank's share of the tokens sent to experts."""
        keeps = not self.sp and self.ranks > 1 if self.exchanges else self.gathers_each
        return replace(norm, keeps=True) if norm and keeps else norm

    def inner_norm(self, norm: Any, width: Num) -> Any:
        """A rank's columns, or groups, of a norm over a split width."""
        if norm is None:
            return None
        if self.value(norm.groups) != 1:  # of every pair of heads
            return replace(norm, groups=self._divided(width, norm.width))
        if self.value(norm.width) != self.value(width):
            self.note("the statistics of norms before o and down are summed over the ranks of tp")
        return replace(norm, width=width)

    # Collectives that join shares.

    def all_reduce(self, width: Num) -> AllReduce | None:
        """All-reduce of partial sums over tp."""
        return AllReduce(width=width, axis=Axis("tp", self.tp)) if self.ranks > 1 else None

    def norm_statistics(self, norm: Any) -> AllReduce | None:
        """All-reduce of the statistics of a norm over split columns: mean square, and of LayerNorm the mean."""
        if norm is None or self.value(norm.groups) != 1:
            return None
        return self.all_reduce(1 if norm.form == "rms" else 2)

    def group_statistics(self, number: Num) -> AllReduce | None:
        """All-reduce of the mean squares of groups of channels, where several ranks share a group."""
        return None if self.value(number) % self.ranks == 0 else self.all_reduce(number)

    def join_summands(self, width: Num) -> Collective | None:
        """Joins partial sums over tp: all-reduce, or reduce-scatter to each rank's positions with sp."""
        return ReduceScatter(width=width, axis=Axis("tp", self.tp)) if self.sp else self.all_reduce(width)

    def gather_positions(self, width: Num) -> AllGather | None:
        """All-gather of the positions that sp splits."""
        return self.all_gather(width) if self.sp else None

    def all_gather(self, width: Num) -> AllGather | None:
        """All-gather of shares over tp."""
        return AllGather(width=width, axis=Axis("tp", self.tp)) if self.ranks > 1 else None

    def norm_gather(self, norm: object, number: Num, width: Num) -> AllGather | None:
        """All-gather of `number` heads of a width, for a norm over all of them."""
        return self.all_gather(number * width) if norm and not self._per_head(norm, number) else None

    def branches(self, branches: tuple[Any, ...], width: Num, parallel: bool) -> tuple[Any, ...]:
        """A block's branches on one rank, each joined by itself; parallel ones are joined once."""
        shares = [branch._replace(part=branch.part.shard(self)) for branch in branches]
        sharded = []
        for number, branch in enumerate(shares):
            first, last = number == 0 or not parallel, number == len(shares) - 1 or not parallel
            complete = branch.part.complete
            gather = None if complete or not first else self.gather_positions(width)
            sharded.append(
                branch._replace(gather=gather, join=None if complete or not last else self.join_summands(width))
            )
        return tuple(sharded)

    def chained(self, steps: Sequence[Any]) -> tuple[Any, ...]:
        """A projector's steps on one rank: matrix, activation, matrix are split by columns, then rows; composites by
        their own rule; all else is replicated."""
        sharded: list[Any] = []
        for step in steps:
            part = step.part.shard(self) if step.part.parts else step.part
            sharded.append(step._replace(part=part))
            trio = [branch.part for branch in sharded[-3:]]
            join = self.all_reduce(step.part.d_model) if step.part.parts and not step.part.complete else None
            if [leaf.role for leaf in trio if not leaf.parts] == ["product", "activation", "product"]:
                first, act, last = trio
                outer, inner = (self.split("a projector's width", n) for n in (first.d_out, last.d_in))
                shares = replace(first, d_out=outer), replace(act, width=inner), replace(last, d_in=inner)
                sharded[-3:] = [branch._replace(part=share) for branch, share in zip(sharded[-3:], shares, strict=True)]
                join = self.all_reduce(last.d_out)
            if join:
                sharded.append(step._replace(name=f"{step.name}_join", part=join))
        return tuple(sharded)

    @property
    def exchanges(self) -> bool:
        """Whether tokens are exchanged: experts are spread over more ranks than tp, whose ranks all hold the same
        tokens."""
        return self.value(self.ep) * self.value(self.etp) != self.ranks

    def dispatch(self, width: Num, top_k: Num) -> Named:
        """Collectives that send tokens to their experts."""
        return self._exchange("dispatch", width, top_k, True)

    def combine(self, width: Num, top_k: Num) -> Named:
        """Collectives that return the experts' results, then gather the shares of the tp ranks."""
        back = self._exchange("combine", width, top_k, False)[::-1]
        gather = None if self.sp or not back else self.all_gather(width)
        return (*back, ("gather", gather)) if gather else back

    def _exchange(self, name: str, width: Num, top_k: Num, outward: bool) -> Named:
        if not self.exchanges:
            return ()
        axis = Axis("ep", self.ep)
        exchange = AllToAll(width=width, axis=axis, sharers=self.tp, choices=top_k, narrow=outward, copies=self.copies)
        moved = ((name, exchange),) if self.value(self.ep) > 1 else ()
        if self.value(self.etp) == 1:
            return moved
        # Tokens that arrived at one of the etp ranks, which all of them need.
        reached = top_k if self.copies else self.ep * (1 - power(1 - ratio(1, self.ep), top_k))
        share, axis = ratio(width * reached * self.etp, self.tp), Axis("etp", self.etp)
        every = AllGather(width=share, axis=axis) if outward else ReduceScatter(width=share, axis=axis)
        return *moved, (f"{name}_{'gather' if outward else 'scatter'}", every)

    def shared_gather(self, width: Num) -> AllGather | None:
        """Gathers the input of the shared experts, where routed experts take each rank's positions as they are."""
        return self.gather_positions(width) if self.exchanges else None

    @property
    def gathers_each(self) -> bool:
        """Whether every branch gathers positions by itself and saves what it gathered, also where branches have one
        input: with sequence parallelism, unless a rank saves its slice (torch 2.13, PrepareModuleInput)."""
        return self.sp and not self.slices

    def shared_keeps_input(self, same: bool) -> bool:
        """Whether the shared experts save an input of their own: where tokens are exchanged the router reads tp's share
        of them, the shared experts the gathered ones. `same`: unsplit, both read the same tensor."""
        return (self.exchanges and self.ranks > 1 and not self.slices) or not same

    def shared_join(self, width: Num, whole: bool) -> Collective | None:
        """Joins the shared experts' partial sums over tp, where the routed experts' tokens are exchanged: to each
        rank's share of the tokens, or the whole sum (`whole`: the routed results are gathered before a projection)."""
        if not self.exchanges or self.ranks == 1:
            return None
        return self.all_reduce(width) if whole and not self.sp else ReduceScatter(width=width, axis=Axis("tp", self.tp))
