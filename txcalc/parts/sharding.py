"""Over how many ranks parts are split: what each `shard` asks, and what it finds in the way.

A part's share on one rank is a part of the same type with fewer heads, columns, channels or experts, so that the
formulas are the same. Numbers are looked at here, so that no formula does.
Source   Shoeybi et al. 2019 (arXiv 1909.08053) tensor parallel; Lepikhin et al. 2020 (arXiv 2006.16668) experts
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from txcalc.errors import Fault
from txcalc.num import ceil_div, exact_div, minimum, ratio, whole


class Ways:
    """The ways of a layout that split parts, what stands in the way (`faults`) and what is held twice (`notes`).

    tp      ranks that split heads, columns, channels and the vocabulary
    ep      ranks that experts are spread over
    etp     ranks that split one expert
    value   the number behind a size; over symbols it says what a letter stands for
    """

    def __init__(self, tp: int = 1, ep: int = 1, etp: int = 1, value: Callable[[Any], Any] = lambda size: size) -> None:
        self.tp, self.ep, self.etp, self.value = tp, ep, etp, value
        self.said = "tp", tp  # what a fault names
        self._faults: dict[str, Fault] = {}
        self._notes: dict[str, None] = {}

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
        """Something that a split by tp holds more than once, or pads; each is said once."""
        if self.tp > 1:
            self._notes[text] = None

    def _divided(self, number: Any, ways: int) -> Any:
        """A ways-th; of what does not divide, which is a fault, as many as there could be."""
        if whole(number):
            return number // ways or 1
        return exact_div(number, ways)

    def split(self, name: str, number: Any) -> Any:
        """A tp-th of heads, columns or channels, whose number must divide."""
        if self.value(number) % self.tp:
            self.fault(*self.said, f"a divisor of {name} = {self.value(number):,}")
        return self._divided(number, self.tp)

    @property
    def routed(self) -> Ways:
        """Those of one routed expert, which etp splits."""
        expert = Ways(self.etp, value=self.value)
        expert._faults, expert._notes = self._faults, self._notes
        expert.said = self.said if self.etp == max(1, self.tp // self.ep) else ("etp", self.etp)
        return expert

    def groups(self, name: str, number: Any) -> Any:
        """A tp-th; or one, which several ranks hold alike, where there are fewer than ranks."""
        there = self.value(number)
        if there % self.tp == 0:
            return self._divided(number, self.tp)
        if self.tp % there == 0:
            self.note(f"{name} = {there:,} is less than tp = {self.tp}: {self.tp // there} ranks hold each")
        else:
            self.fault("tp", self.tp, f"a divisor of {name} = {there:,}, or a multiple of it")
        return 1

    def rows(self, number: Any) -> Any:
        """A tp-th of a vocabulary, rounded up."""
        there = self.value(number)
        if there % self.tp:
            padded = ceil_div(there, self.tp) * self.tp
            self.note(f"V = {there:,} is padded to {padded:,}, a multiple of tp = {self.tp}")
            return ceil_div(number, self.tp)
        return exact_div(number, self.tp)

    def experts(self, number: Any) -> Any:
        """An ep-th of the experts, which must divide."""
        if self.value(number) % self.ep:
            self.fault("ep", self.ep, f"a divisor of n_experts = {self.value(number):,}")
        return self._divided(number, self.ep)

    def passed(self, top_k: Any) -> Any:
        """How many of a rank's experts the tokens of its own sequences pass on average: those of other sequences come
        to it as its own go to others. A Fraction where k does not divide."""
        return ratio(top_k, minimum(self.tp, self.ep))

    def head_norm(self, norm: Any, number: Any, kept: Any) -> Any:
        """A norm of each of `number` heads, of which `kept` are left; one over all of them stays whole."""
        if norm is None or self.value(norm.groups) != self.value(number):
            return norm
        return replace(norm, groups=kept)

    def inner_norm(self, norm: Any, width: Any) -> Any:
        """A rank's columns of a norm over what is split, or its groups of them; of columns the ranks add up the mean
        square."""
        if norm is None:
            return None
        if self.value(norm.groups) != 1:  # of every pair of heads
            return replace(norm, groups=self._divided(width, norm.width))
        if self.value(norm.width) != self.value(width):
            self.note("the statistics of norms before o and down are summed over the ranks of tp")
        return replace(norm, width=width)

    def whole(self, name: str) -> None:
        """A part that is not split: a fault where there are several ranks."""
        if self.tp > 1:
            self.fault("tp", self.tp, f"1: splitting a {name} over ranks is not supported yet")
