"""The time of an unloaded prompt and of a decode step on one layout: `rank_time` over all pipeline stages."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import chain

from txcalc.hardware import Accelerator
from txcalc.model import Model
from txcalc.num import ceil_div
from txcalc.parts.part import Workload
from txcalc.planning.layout import Layout
from txcalc.planning.machine import LibrarySource
from txcalc.planning.parallelism import KEPT, Sharding
from txcalc.planning.serving.durations import BoundedTime, Cost, series, total
from txcalc.planning.serving.engine import EngineConfig
from txcalc.planning.serving.rank_time import RankTime


class LayoutTime:
    """The time of a model's prefill and decode steps on one layout."""

    def __init__(
        self, model: Model, sharding: Sharding, layout: Layout, accelerator: Accelerator, engine: EngineConfig
    ) -> None:
        self.model, self.layout, self.engine = model, layout, engine
        self.ranks = [RankTime(stage, layout, accelerator, engine) for stage in sharding.stages(layout)]
        self.caching = model.decodes
        # A prompt is the encoder's tokens (and no prefix is cached), or the tokens that the model decodes from.
        self.encodes = model.has_encoder_apart and not model.reads_no_ids
        self.sharing = layout.sharing
        self._known: dict[tuple[Workload, bool, float], list[Cost]] = {}

    def busy(self, sequences: int) -> float:
        """Mean sequences per replica among those that share experts, relative to the fullest replica, with all
        `sequences` spread evenly."""
        fullest, together = ceil_div(sequences, self.layout.dp), ceil_div(sequences * self.sharing, self.layout.dp)
        return float(Fraction(together, fullest * self.sharing))

    def _stages(self, work: Workload, busy: float, head: bool = True) -> list[Cost]:
        """The cost of every stage, equal stages included."""
        key = work, head, busy
        if key not in self._known:
            if len(self._known) == KEPT:
                self._known.clear()
            costs = [[rank.cost(work, head, busy)] * rank.stage.copies for rank in self.ranks]
            self._known[key] = [*chain(*costs)]
        return self._known[key]

    def decode(self, sequences: int, context: int, tokens: int = 1) -> Workload:
        """A decode step: `tokens` new ones of every sequence, the last at the end of the context."""
        base = self.model.workload(1, context, mla="absorbed")
        new = min(tokens, context)
        return base._replace(batch=sequences, tokens=new, past=context - new, decoding=True)

    def step(self, sequences: int, context: int, tokens: int = 1, busy: float = 1.0) -> BoundedTime:
        """Time of a decode step of `sequences` sequences of one replica; `busy` is the mean load of the replicas
        that share its experts, relative to this one.

        A pipeline of pp stages works on up to pp groups of them at a time: a group waits until it has passed all
        stages, or until the slowest stage has done every group.
        """
        groups = min(self.layout.pp, sequences)
        stages = self._stages(self.decode(ceil_div(sequences, groups), context, tokens), busy)
        floors, seconds, whole = [c.floor for c in stages], [c.achievable for c in stages], total(stages)
        floor, achievable = (max(sum(times), groups * max(times)) for times in (floors, seconds))
        return BoundedTime(floor, achievable, whole.floor_bound, whole.bound)

    @property
    def libraries(self) -> dict[str, LibrarySource]:
        """The communication library of each kind of collective of a pass."""
        work = self.decode(1, 1) if self.caching else self.model.workload(1, 1)
        return {kind: source for rank in self.ranks for kind, source in rank.libraries(work).items()}

    def decode_parts(self, sequences: int, context: int, busy: float = 1.0) -> dict[str, Cost]:
        """A decode step by kind of part, all stages."""
        groups = min(self.layout.pp, sequences)
        return self._parts(self.decode(ceil_div(sequences, groups), context), busy)

    def _chunks(self, prompt: int, cached: int, batch: int) -> tuple[Callable[[int], Workload], int]:
        """The workload of the i-th chunk, and the number of chunks; prompts of one batch are one chunk."""
        if self.encodes or not self.caching:
            source, tokens = (prompt, 1) if self.encodes else (None, prompt)
            whole = self.model.workload(batch, tokens, source=source, logits="last")
            return (lambda i: whole), 1
        base = self.model.workload(batch, prompt, logits="last")
        size = prompt if batch > 1 else self.engine.chunk

        def work(i: int) -> Workload:
            past = cached + i * size
            return base._replace(tokens=min(size, prompt - past), past=past, decoding=i > 0)

        return work, ceil_div(prompt - cached, size)

    def prefill(self, prompt: int, cached: int = 0) -> BoundedTime:
        """Time to the first token of a single prompt, of which `cached` tokens are not computed again.

        Chunks follow each other through the stages: the slowest stage computes all of them, and the last chunk passes
        the other stages. The floor computes the prompt at once.
        """
        work, number = self._chunks(prompt, cached, 1)
        busy = self.busy(1)
        last = self._stages(work(number - 1), busy)
        slowest = self._slowest(prompt, cached, 1, busy)
        whole = work(0)._replace(tokens=prompt - cached) if number > 1 else work(0)  # of an encoder-decoder: its source
        single = self._stages(whole, busy)
        floors = [c.floor for c in last]
        return BoundedTime(
            max(c.floor for c in single) + sum(floors) - max(floors),
            slowest.achievable + self._waits(prompt, cached, busy),
            total(single).floor_bound,
            slowest.bound,
        )

    def _waits(self, prompt: int, cached: int, busy: float) -> float:
        """Seconds in stages other than the slowest: of the last chunk and, with at most `in_flight` chunks in the
        pipeline, of one in so many before it."""
        work, number = self._chunks(prompt, cached, 1)
        flight = int(self.engine.memory.profile.numbers.get("in_flight", 0)) if self.engine.memory else 0

        def wait(i: int) -> Cost:
            times = [cost.achievable for cost in self._stages(work(i), busy, i == number - 1)]
            return Cost(memory=sum(times) - max(times))

        earlier = series(wait, number - 1).memory / flight if flight else 0.0
        return earlier + wait(number - 1).memory

    def _slowest(self, prompt: int, cached: int, batch: int, busy: float) -> Cost:
        """The cost of all chunks in the slowest stage, which sets the pace of a full pipeline."""
        work, number = self._chunks(prompt, cached, batch)

        def chunk(i: int) -> Cost:
            return max(self._stages(work(i), busy, i == number - 1), key=lambda cost: cost.achievable)

        return series(chunk, number - 1).plus(chunk(number - 1))

    def prefill_rate(self, prompt: int, cached: int = 0, busy: float = 1.0) -> float:
        """Prompt tokens per second of one replica that only prefills, with as many prompts at a time as a chunk holds;
        `busy`: the relative load of replicas that share its experts."""
        batch = max(1, self.engine.chunk // (prompt - cached)) if self.caching and not self.encodes else 1
        return batch * prompt / self._slowest(prompt, cached, batch, busy).achievable

    def prefill_parts(self, prompt: int, cached: int = 0) -> dict[str, Cost]:
        """A prefill by kind of part, all stages and chunks."""
        work, number = self._chunks(prompt, cached, 1)
        busy = self.busy(1)
        last = self._parts(work(number - 1), busy)

        def earlier(kind: str) -> Cost:
            return series(lambda i: self._parts(work(i), busy, False).get(kind, Cost()), number - 1)

        kinds = dict.fromkeys([*self._parts(work(0), busy), *last])
        return {kind: earlier(kind).plus(last.get(kind, Cost())) for kind in kinds}

    def _parts(self, work: Workload, busy: float, head: bool = True) -> dict[str, Cost]:
        by_kind: dict[str, list[Cost]] = {}
        for rank in self.ranks:
            for kind, cost in rank.parts(work, head, busy).items():
                by_kind.setdefault(kind, []).append(cost.times(rank.stage.copies))
        return {kind: total(costs) for kind, costs in by_kind.items()}
