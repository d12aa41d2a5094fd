"""A pipeline's step by events: every rank's actions in the order of its schedule, each of which waits for messages from
other ranks.

The bubble is not assumed but is the remaining idle time. Stages may differ, and so may pieces of a rank.

Source   GPipe: Huang et al. 2018 (arXiv 1811.06965); 1F1B: Narayanan et al. 2019 (PipeDream); interleaved: Narayanan et
         al. 2021 (arXiv 2104.04473), section 2.2; zero bubble (ZB-H1) and ZB-V: Qi et al. 2023 (arXiv 2401.10241);
         DualPipe-V: DeepSeek-V3 (arXiv 2412.19437), section 3.2.1, folded
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from operator import le
from typing import NamedTuple

from txcalc.errors import InputError
from txcalc.planning.training.recipe import V_SHAPED, Recipe


class PieceTime(NamedTuple):
    """Seconds of a piece of the pipeline for one micro-batch: forward; backward for its input, with recomputation;
    backward for its weights; and the message to the next piece."""

    forward: float
    inputs: float
    weights: float
    send: float

    @property
    def backward(self) -> float:
        return self.inputs + self.weights

    @property
    def passes(self) -> tuple[float, float]:
        """Forward, and backward with recomputation."""
        return self.forward, self.backward

    @property
    def seconds(self) -> float:
        return self.forward + self.backward

    def plus(self, other: PieceTime) -> PieceTime:
        return PieceTime(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, number: float) -> PieceTime:
        return PieceTime(*(number * seconds for seconds in self))

    @property
    def by_kind(self) -> dict[str, float]:
        """Seconds of each kind of action."""
        return {"F": self.forward, "B": self.backward, "I": self.inputs, "W": self.weights}


class Event(NamedTuple):
    """An action of a rank, from `start` to `end` seconds."""

    action: Action
    start: float
    end: float


class Timeline(NamedTuple):
    """Events by rank of the pipeline."""

    ranks: tuple[tuple[Event, ...], ...]

    @property
    def seconds(self) -> float:
        return max((events[-1].end for events in self.ranks if events), default=0.0)

    def busy(self, rank: int) -> float:
        return sum(event.end - event.start for event in self.ranks[rank])


def simulate(recipe: Recipe, pieces: Sequence[PieceTime], waits: tuple[float, float] = (0.0, 0.0)) -> Timeline:
    """One step's forwards and backwards. `pieces` are in the order of the model; `waits`: seconds for which a message
    of activations, and one of gradients, first occupies both ranks.

    Errors   `InputError` for a deadlock
    """
    stages, batches, last = recipe.layout.pp, recipe.accumulation, len(pieces) - 1
    tables = [order(recipe.schedule, stages, rank, batches, recipe.pieces) for rank in range(stages)]
    numbers = [[number(recipe, rank, piece) for piece in range(recipe.pieces)] for rank in range(stages)]
    home = {n: rank for rank, pieces_of_rank in enumerate(numbers) for n in pieces_of_rank}
    seconds_by_kind = [piece.by_kind for piece in pieces]
    end_times: dict[tuple[str, int, int], float] = {}
    clocks, positions = [0.0] * stages, [0] * stages
    events: list[list[Event]] = [[] for _ in range(stages)]
    waiting: dict[tuple[str, int, int], int] = {}
    ready = list(range(stages))
    while ready:
        rank = ready.pop()
        table, clock = tables[rank], clocks[rank]
        while positions[rank] < len(table):
            action = table[positions[rank]]
            n = numbers[rank][action.piece]
            needed = _prerequisite(action, n, last)
            start = clock
            if needed:
                if needed not in end_times:
                    waiting[needed] = rank
                    break
                crosses = home[needed[1]] != rank
                send = pieces[min(n, needed[1])].send if crosses else 0.0
                start = max(clock + waits[needed[0] == "G"] * crosses, end_times[needed] + send)
            clock = start + seconds_by_kind[n][action.kind]
            events[rank].append(Event(action, start, clock))
            positions[rank] += 1
            if action.kind == "W":
                continue
            kind, reader = ("F", n + 1) if action.kind == "F" else ("G", n - 1)
            clock += waits[kind == "G"] * (home.get(reader, rank) != rank)
            key = (kind, n, action.batch)
            end_times[key] = clock
            if key in waiting:
                ready.append(waiting.pop(key))
        clocks[rank] = clock
    if any(position < len(table) for position, table in zip(positions, tables, strict=True)):
        raise InputError("schedule", [f"{recipe.schedule} with {batches} micro-batches deadlocks at pp = {stages}"])
    return Timeline(tuple(map(tuple, events)))


def equal_stages(recipe: Recipe, layers: float, slowest: float, send: float, waits: tuple[float, float]) -> float:
    """Seconds of `simulate` in closed form, for the search: stages take `layers` seconds per micro-batch, the slowest
    `slowest`. The bubble is one micro-batch of the other stages; no compute hides the first micro-batch's forward
    messages and the last one's backward messages.

    Source   Narayanan et al. 2021 (arXiv 2104.04473), section 2.2
    """
    pp, vpp, batches = recipe.layout.pp, recipe.layout.vpp, recipe.accumulation
    messages = 2 * (pp * vpp - 1) * send + batches * vpp * min(2, pp - 1) * sum(waits)
    return batches * slowest + (pp - 1) * layers / vpp + messages


def number(recipe: Recipe, rank: int, piece: int) -> int:
    """The index of a rank's piece, from the front of the model."""
    stages = recipe.layout.pp
    if recipe.schedule in V_SHAPED:
        return rank if piece == 0 else 2 * stages - 1 - rank
    return piece * stages + rank


def _prerequisite(action: Action, n: int, last: int) -> tuple[str, int, int] | None:
    """The event that must have ended: a forward needs the previous piece's, a gradient the next piece's."""
    if action.kind == "F":
        return ("F", n - 1, action.batch) if n else None
    if action.kind == "W":
        return None
    return ("G", n + 1, action.batch) if n < last else ("F", n, action.batch)


class Action(NamedTuple):
    """kind: F forward; B backward, or, in schedules that split it, I the input's gradient and W the weights'. `piece`:
    the index among the rank's pieces, from the front. B or W frees a piece's activations of a micro-batch."""

    kind: str
    piece: int
    batch: int


def order(schedule: str, stages: int, rank: int, batches: int, pieces: int = 1) -> list[Action]:
    """The actions of stage `rank` of `stages` in one step of `batches` micro-batches."""
    if stages == 1:
        return [Action(kind, 0, m) for m in range(batches) for kind in "FB"]
    if schedule == "gpipe":
        return [Action(kind, 0, m) for kind in "FB" for m in range(batches)]
    if schedule == "zbv":
        return [a for a in _zbv(stages, rank, max(batches, 2 * stages - 1)) if a.batch < batches]
    if schedule == "dualpipev":
        return list(_dualpipev(stages, rank, batches))
    return list(_one_f_one_b(stages, rank, batches, pieces, schedule == "zb"))


def _one_f_one_b(stages: int, rank: int, batches: int, pieces: int, zero_bubble: bool) -> Iterator[Action]:
    """Warm-up forwards, then one forward and one backward in turn, then the remaining backwards. With `zero_bubble` the
    weights' gradients are delayed by the rank's index."""
    total, later_stages = batches * pieces, stages - rank - 1
    ahead = later_stages if zero_bubble or pieces == 1 else 2 * later_stages
    ahead = min(total, ahead + (pieces - 1) * stages)

    def turn(kind: str, i: int) -> Action:
        """A rank's pieces take turns, `stages` micro-batches each; backward begins with the last piece."""
        rounds, position = divmod(i, stages * pieces) if pieces > 1 else (0, i)
        piece, batch = (position // stages, rounds * stages + position % stages) if pieces > 1 else (0, i)
        return Action(kind, piece if kind == "F" else pieces - 1 - piece, batch)

    weight_gradients = 0
    for i in range(total + ahead):
        if i < total:
            yield turn("F", i)
        if i < ahead:
            continue
        yield turn("I" if zero_bubble else "B", i - ahead)
        if zero_bubble and i - ahead >= rank:
            yield turn("W", weight_gradients)
            weight_gradients += 1
    if zero_bubble:
        yield from (turn("W", i) for i in range(weight_gradients, total))


class _Script:
    """Actions of a rank with two pieces; numbers micro-batches in order."""

    def __init__(self) -> None:
        self.next = Counter[tuple[str, int]]()
        self.waiting: list[tuple[int, int]] = []  # deferred weights' gradients: piece and micro-batch

    def __call__(self, words: str) -> Iterator[Action]:
        """The actions of words such as F0, I0, W0, B0: kind and piece; W alone is the oldest deferred one."""
        for word in words.split():
            if word == "W":
                if self.waiting:
                    yield Action("W", *self.waiting.pop(0))
                continue
            kind, piece = word[0], int(word[1])
            count = "F" if kind == "F" else "W" if kind == "W" else "I"
            batch = self.next[count, piece]
            self.next[count, piece] += 1
            if kind == "B":
                self.next["W", piece] += 1
            elif kind == "I":
                self.waiting.append((piece, batch))
            yield Action(kind, piece, batch)


def _zbv(stages: int, rank: int, batches: int) -> Iterator[Action]:
    do = _Script()
    for _ in range(2 * (stages - rank) - 1):
        yield from do("F0")
    for _ in range(rank):
        yield from do("F1 F0")
    for _ in range(stages - rank):
        yield from do("F1 I1 W1")
    while do.next["F", 1] < do.next["F", 0] or do.next["F", 0] < batches:
        if do.next["F", 0] < batches:
            yield from do("F0")
        yield from do("I0 W0 F1 I1 W1")
    for _ in range(rank):
        yield from do("I0 I1")
    for _ in range(stages - rank):
        yield from do("I0 W0")
    for piece in (1, 0):
        while do.next["W", piece] < do.next["I", piece]:
            yield from do(f"W{piece}")


def _dualpipev(stages: int, rank: int, batches: int) -> Iterator[Action]:
    do, later_ranks = _Script(), stages - rank - 1
    for _ in range(2 * later_ranks):
        yield from do("F0")
    for _ in range(rank + 1):
        yield from do("F0 F1")
    for _ in range(later_ranks):
        yield from do("I1 W F1")
    for _ in range(batches - 2 * stages + rank + 1):
        yield from do("F0 B1 F1 B0")
    for _ in range(later_ranks):
        yield from do("B1 F1 B0")
    defer = False  # the second half of the following actions defers weights' gradients
    for i in range(rank + 1):
        half = i == (rank + 1) // 2
        defer = defer or (half and rank % 2 == 1)
        yield from do("I1" if defer else "B1")
        defer = defer or half
        yield from do("I0" if defer else "B0")
    for _ in range(later_ranks):
        yield from do("W I0" if defer else "W B0")
    while do.waiting:
        yield from do("W")


def in_flight(recipe: Recipe, stage: int) -> tuple[tuple[int, ...], ...]:
    """The largest numbers of micro-batches in flight of each piece on a rank of this stage; several combinations if
    none dominates."""
    stages, batches = recipe.layout.pp, recipe.accumulation
    if recipe.schedule != "gpipe":  # the schedule repeats itself after twice as many micro-batches as stages
        batches = min(batches, 2 * stages)
    return _fullest(recipe.schedule, stages, stage, batches, recipe.pieces)


@cache
def _fullest(schedule: str, stages: int, rank: int, batches: int, pieces: int) -> tuple[tuple[int, ...], ...]:
    now, combinations = [0] * pieces, dict[tuple[int, ...], None]()
    for kind, piece, _ in order(schedule, stages, rank, batches, pieces):
        if kind == "F":
            now[piece] += 1
            combinations[tuple(now)] = None
        elif kind != "I":
            now[piece] -= 1
    return tuple(
        counts
        for counts in combinations
        if not any(counts != larger and all(map(le, counts, larger)) for larger in combinations)
    )
