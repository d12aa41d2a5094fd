"""Towers of multimodal models: a stack over a picture or sound, and the projector to the language model's width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from txcalc.num import Num, ceil_div, maximum, minimum
from txcalc.parts.linear import Unused
from txcalc.parts.mixers.pieces import Pieces
from txcalc.parts.model import Root, Stack
from txcalc.parts.options import numbered
from txcalc.parts.part import Child, Composite, Part, Stream, Workload
from txcalc.parts.sharding import Ways


class ProjectorStep(NamedTuple):
    """A step of a projector: its part runs at `rate` positions per `makes` output tokens."""

    name: str
    part: Part
    rate: Num
    times: Num = 1
    makes: Num = 1


def _at(rate: Num, makes: Num, extra_tokens: Num = 0) -> Stream:
    def on(work: Workload) -> Workload:
        return work._replace(tokens=ceil_div(work.tokens, makes) * rate + extra_tokens, past=0)

    return on


class Resampler(Composite):
    """Learned queries that resample positions: `makes` queries per window of `reads` positions.

    The queries attend to the window; up to `prompt` tokens of the language model's prompt stand beside them (Q-Former).
    Source   Li et al. 2023 (arXiv 2301.12597), section 3.1; Jaegle et al. 2021 (arXiv 2103.03206), section 3.1
    """

    pieces: Pieces
    reads: Num
    makes: Num
    prompt: Num = 0
    complete = True

    def children(self) -> Iterator[Child]:
        for child in self.pieces.parts:
            yield child._replace(on=_after(self._within, child.on))

    def shard(self, ways: Ways) -> Resampler:
        """Replicated: engines do not split a tower's queries."""
        return self

    def _within(self, work: Workload) -> Workload:
        windows, prompt = ceil_div(work.tokens, self.makes), minimum(self.prompt, maximum(0, work.source - work.tokens))
        return work._replace(batch=work.batch * windows, tokens=self.makes + prompt, source=self.reads)


class Projector(Composite):
    """From a tower's positions to tokens of the language model: steps in sequence, some of which merge neighbouring
    positions, pool them, or resample them with learned queries.

    Source   Liu et al. 2023 (arXiv 2310.03744), section 3.2; Wang et al. 2024 (arXiv 2409.12191), section 2.1
    """

    steps: tuple[ProjectorStep, ...]
    # `reads` positions of the tower become `makes` tokens of `width`.
    reads: Num
    makes: Num
    width: Num
    prompt: Num = 0
    complete = True  # partial sums of its split matrices are joined within it

    def children(self) -> Iterator[Child]:
        for step in self.steps:
            on, every = _at(step.rate, step.makes), numbered(step.times)
            yield Child(step.name, step.part, times=step.times, indices=every, on=on, kind="projector", forced=True)

    def shard(self, ways: Ways) -> Projector:
        """Its steps, split pairwise."""
        return replace(self, steps=ways.chained(self.steps))


class TowerStack(Root):
    """A vision or audio stack with its projector; the workload's tokens are those handed to the language model.

    `tokens` is their number where the stack has one fixed length. `dropped` positions are not handed on (a class token,
    a remainder of merging).
    """

    stack: Stack
    projector: Projector
    dropped: Num
    tokens: Num | None = None
    cuttable = False

    @property
    def halves(self) -> Mapping[str, Stack]:
        return {"": self.stack}

    @property
    def fixed(self) -> Num | None:
        return self.tokens

    @property
    def prompt(self) -> Num:
        return self.projector.prompt

    def whole(self, tokens: Num) -> Num:
        return ceil_div(tokens, self.projector.makes) * self.projector.makes

    def children(self) -> Iterator[Child]:
        everywhere = _at(self.projector.reads, self.projector.makes, self.dropped)
        for child in self.stack.parts:
            yield child._replace(on=_after(everywhere, child.on))
        yield Child("projector", self.projector, kind="projector")

    def shard(self, ways: Ways) -> TowerStack:
        """Shares of the stack and the projector."""
        return replace(self, stack=self.stack.shard(ways), projector=self.projector.shard(ways))


class Counted(Composite):
    """Towers of which only the number of parameters is known."""

    params: Num

    def children(self) -> Iterator[Child]:
        yield Child("counted", Unused(d_in=1, d_out=self.params, bias=False), kind="other")

    def shard(self, ways: Ways) -> Counted:
        """Replicated."""
        return self


def _after(first: Stream, then: Stream) -> Stream:
    def on(work: Workload) -> Workload | None:
        changed = first(work)
        return None if changed is None else then(changed)

    return on
