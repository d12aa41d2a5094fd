"""Over how many ranks parts are split: what each `shard` asks, what joins the shares, and what stands in the way.

A part's share on one rank is a part of the same type with fewer heads, columns, channels or experts, so that the
formulas are the same; where shares are joined stands a collective. Numbers are looked at here, so that no formula does.
Source   Shoeybi et al. 2019 (arXiv 1909.08053) tensor parallel; Lepikhin et al. 2020 (arXiv 2006.16668) experts;
         Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.2, sequence parallel
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from txcalc.errors import Fault
from txcalc.num import ceil_div, exact_div, power, ratio, whole
from txcalc.parts.collectives import AllGather, AllReduce, AllToAll, Collective, ReduceScatter
from txcalc.parts.work import Axis

Named = tuple[tuple[str, Collective], ...]


class Ways:
    """The ways of a layout that split parts, what stands in the way (`faults`) and what is held twice (`notes`).

    tp      ranks that split heads, columns, channels and the vocabulary
    ep      ranks that experts are spread over
    etp     ranks that split one expert
    sp      whether the ranks of tp split the positions between branches
    value   the number behind a size or a way; over symbols it says what a letter stands for
    pads    rows of a vocabulary are padded to a multiple of tp times so many; 0: the last ranks have fewer
    slices  whether what reads gathered positions keeps its slice of them, and gathers them again
    copies  whether a token is sent once for each of its experts, else once to each rank that has any of them
    """

    def __init__(
        self,
        tp: Any = 1,
        ep: Any = 1,
        etp: Any = 1,
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
        self._said = "tp", self.ranks  # what a fault names
        self._faults: dict[str, Fault] = {}
        self._notes: dict[str, None] = {}

    @property
    def routed(self) -> Ways:
        """Those of one routed expert, which etp splits."""
        expert = Ways(self.etp, value=self.value)
        expert._faults, expert._notes = self._faults, self._notes
        derived = expert.ranks == max(1, self.ranks // self.value(self.ep))
        expert._said = self._said if derived else ("etp", expert.ranks)
        return expert

    # What is found.

    @property
    def faults(self) -> list[Fault | str]:
        """Why parts cannot be split so."""
        return list(self._faults.values())

    @property
    def notes(self) -> list[str]:
        """What is held more than once, or padded."""
        return list(self._notes)

    def fault(self, key: str, number: int, expected: str) -> None:
        """One reason more; each is said once."""
        found = Fault(key, number, expected)
        self._faults[str(found)] = found

    def note(self, text: str) -> None:
        """Something that a split by tp holds more than once, or that is padded; each is said once."""
        if self.ranks > 1 or self.pads > 1:
            self._notes[text] = None

    def whole(self, name: str) -> None:
        """A part that is not split: a fault where there are several ranks."""
        if self.ranks > 1:
            self.fault("tp", self.ranks, f"1: splitting a {name} over ranks is not supported yet")

    # Shares of numbers.

    def _divided(self, number: Any, ways: Any) -> Any:
        """A ways-th; of what does not divide, which is a fault, as many as there could be."""
        if whole(number) and whole(ways):
            return number // ways or 1
        return exact_div(number, ways)

    def split(self, name: str, number: Any) -> Any:
        """A tp-th of heads, columns or channels, whose number must divide."""
        if self.value(number) % self.ranks:
            self.fault(*self._said, f"a divisor of {name} = {self.value(number):,}")
        return self._divided(number, self.tp)

    def groups(self, name: str, number: Any) -> Any:
        """A tp-th; or one, which several ranks hold alike, where there are fewer than ranks."""
        there = self.value(number)
        if there % self.ranks == 0:
            return self._divided(number, self.tp)
        if self.ranks % there == 0:
            self.note(f"{name} = {there:,} is less than tp = {self.ranks}: {self.ranks // there} ranks hold each")
        else:
            self.fault("tp", self.ranks, f"a divisor of {name} = {there:,}, or a multiple of it")
        return 1

    def rows(self, number: Any, classes: bool = False) -> Any:
        """A tp-th of a vocabulary, rounded up; or of classes, of which there are no more than tp asks for."""
        pads = min(1, self.pads) if classes else self.pads
        there, multiple = self.value(number), self.ranks * max(1, pads)
        if there % multiple == 0:
            return exact_div(number, self.tp)
        padded = f"is padded to {ceil_div(there, multiple) * multiple:,}, a multiple of"
        told = padded if pads else "is cut as torch.chunk cuts it, for it does not divide by"
        named = "the number of classes" if classes else "V"
        self.note(f"{named} = {there:,} {told} {'' if pads > 1 else 'tp = '}{multiple:,}")
        return ceil_div(number, self.tp * max(1, pads)) * max(1, pads)

    def experts(self, number: Any) -> Any:
        """An ep-th of the experts, which must divide."""
        if self.value(number) % self.value(self.ep):
            self.fault("ep", self.value(self.ep), f"a divisor of n_experts = {self.value(number):,}")
        return self._divided(number, self.ep)

    def passed(self, top_k: Any) -> Any:
        """How many of a rank's experts the tokens of its own sequences pass on average: those of other sequences come
        to it as its own go to others. A Fraction where k does not divide."""
        return ratio(top_k * self.etp, self.tp)

    def head_norm(self, norm: Any, number: Any, kept: Any) -> Any:
        """A norm of each of `number` heads, of which `kept` are left; one over all of them stays whole."""
        return replace(norm, groups=kept) if norm and self._of_each(norm, number) else norm

    def _of_each(self, norm: Any, number: Any) -> bool:
        return self.value(norm.groups) == self.value(number)

    def inner_norm(self, norm: Any, width: Any) -> Any:
        """A rank's columns of a norm over what is split, or its groups of them."""
        if norm is None:
            return None
        if self.value(norm.groups) != 1:  # of every pair of heads
            return replace(norm, groups=self._divided(width, norm.width))
        if self.value(norm.width) != self.value(width):
            self.note("the statistics of norms before o and down are summed over the ranks of tp")
        return replace(norm, width=width)

    # What joins the shares.

    def summed(self, width: Any) -> AllReduce | None:
        """Summands of every rank of tp become their sum on all of them."""
        return AllReduce(width=width, axis=Axis("tp", self.tp)) if self.ranks > 1 else None

    def statistics(self, norm: Any) -> AllReduce | None:
        """The mean square of what is normed, and of LayerNorm the mean, from the columns of every rank."""
        if norm is None or self.value(norm.groups) != 1:
            return None
        return self.summed(1 if norm.form == "rms" else 2)

    def scattered(self, width: Any) -> Collective | None:
        """Summands become their sum: on all ranks of tp, or, with sp, each rank's positions of it."""
        return (
            ReduceScatter(width=width, axis=Axis("tp", self.tp)) if self.sp and self.ranks > 1 else self.summed(width)
        )

    def gathered(self, width: Any) -> AllGather | None:
        """Positions that sp splits, before what reads all of them."""
        return self.every(width) if self.sp else None

    def every(self, width: Any) -> AllGather | None:
        """Shares of every rank of tp become the whole on all of them."""
        return AllGather(width=width, axis=Axis("tp", self.tp)) if self.ranks > 1 else None

    def normed(self, norms: Iterable[tuple[Any, Any, Any]]) -> AllGather | None:
        """Heads of all ranks, for norms over all of them: (norm, heads, their width) each."""
        width = [number * each for norm, number, each in norms if norm and not self._of_each(norm, number)]
        return self.every(sum(width)) if width else None

    def branches(self, branches: tuple[Any, ...], width: Any, parallel: bool) -> tuple[Any, ...]:
        """A block's branches on one rank: the results of each are joined, of parallel ones all at once."""
        shares = [branch._replace(part=branch.part.shard(self)) for branch in branches]
        found = []
        for number, branch in enumerate(shares):
            first, last = number == 0 or not parallel, number == len(shares) - 1 or not parallel
            apart = branch.part.complete
            gather = None if apart or not first else self.gathered(width)
            found.append(branch._replace(gather=gather, join=None if apart or not last else self.scattered(width)))
        return tuple(found)

    def chained(self, steps: Sequence[Any]) -> tuple[Any, ...]:
        """Steps one after the other: of two matrices with an activation between them the rows of the first and the
        columns of the second, of a composite its share; all else is whole."""
        found: list[Any] = []
        for step in steps:
            part = step.part.shard(self) if step.part.parts else step.part
            found.append(step._replace(part=part))
            trio = [one.part for one in found[-3:]]
            join = self.summed(step.part.d_model) if step.part.parts and not step.part.complete else None
            if [one.role for one in trio if not one.parts] == ["product", "activation", "product"]:
                first, act, last = trio
                outer, inner = (self.split("a projector's width", n) for n in (first.d_out, last.d_in))
                shares = replace(first, d_out=outer), replace(act, width=inner), replace(last, d_in=inner)
                found[-3:] = [one._replace(part=share) for one, share in zip(found[-3:], shares, strict=True)]
                join = self.summed(last.d_out)
            if join:
                found.append(step._replace(name=f"{step.name}_join", part=join))
        return tuple(found)

    @property
    def exchanges(self) -> bool:
        """Whether experts are spread over others than the ranks of tp, which all have the same tokens."""
        return self.value(self.ep) * self.value(self.etp) != self.ranks

    def arriving(self, width: Any, top_k: Any) -> Named:
        """A rank's share of the tokens, to the experts they choose."""
        return self._exchange("dispatch", width, top_k, True)

    def leaving(self, width: Any, top_k: Any) -> Named:
        """What the experts made of them, back; then the shares of the ranks of tp together."""
        back = self._exchange("combine", width, top_k, False)[::-1]
        gather = None if self.sp or not back else self.every(width)
        return (*back, ("gather", gather)) if gather else back

    def _exchange(self, name: str, width: Any, top_k: Any, there: bool) -> Named:
        if not self.exchanges:
            return ()
        axis = Axis("ep", self.ep)
        exchange = AllToAll(width=width, axis=axis, sharers=self.tp, choices=top_k, narrow=there, copies=self.copies)
        moved = ((name, exchange),) if self.value(self.ep) > 1 else ()
        if self.value(self.etp) == 1:
            return moved
        # Tokens that have come to one of the ranks of etp, which all of them need.
        reached = top_k if self.copies else self.ep * (1 - power(1 - ratio(1, self.ep), top_k))
        share, axis = ratio(width * reached * self.etp, self.tp), Axis("etp", self.etp)
        every = AllGather(width=share, axis=axis) if there else ReduceScatter(width=share, axis=axis)
        return *moved, (f"{name}_{'gather' if there else 'scatter'}", every)

    def read_beside(self, width: Any) -> AllGather | None:
        """What the shared experts read, where the routed ones take each rank's positions as they are."""
        return self.gathered(width) if self.exchanges else None

    def reads_apart(self, same: bool) -> bool:
        """Whether shared experts keep an input of their own, where the whole's is the `same` as the router's: where
        tokens are exchanged the router has tp's share of them, and the shared experts what is gathered."""
        return (self.exchanges and self.ranks > 1 and not self.slices) or not same

    def beside(self, width: Any, apart: bool) -> Collective | None:
        """Summands of the shared experts, which are split by tp, where the routed ones are exchanged: each rank's share
        of the tokens, which goes with theirs; or the sum of all (`apart`: theirs is gathered before a projection)."""
        if not self.exchanges or self.ranks == 1:
            return None
        return self.summed(width) if apart and not self.sp else ReduceScatter(width=width, axis=Axis("tp", self.tp))
