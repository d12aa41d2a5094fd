"""A pipeline's step by events: every rank executes its own list of actions, and waits for messages from others.

The bubble is not assumed: it is the remaining idle time. Stages may differ, and so may pieces of a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from txcalc.errors import InputError
from txcalc.planning.training.recipe import V_SHAPED, Recipe
from txcalc.planning.training.schedules import Action, order


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
    """One step's forwards and backwards; `pieces` from the front of the model; a message to another rank first occupies
    both ends for `waits` seconds: of activations, and of gradients.

    Errors   `InputError` for a deadlock
    """
    stages, batches, last = recipe.layout.pp, recipe.accumulation, len(pieces) - 1
    tables = [order(recipe.schedule, stages, rank, batches, recipe.pieces) for rank in range(stages)]
    numbers = [[number(recipe, rank, piece) for piece in range(recipe.pieces)] for rank in range(stages)]
    home = {n: rank for rank, pieces_of_rank in enumerate(numbers) for n in pieces_of_rank}
    seconds_by_kind = [piece.by_kind for piece in pieces]
    done: dict[tuple[str, int, int], float] = {}
    clocks, places = [0.0] * stages, [0] * stages
    events: list[list[Event]] = [[] for _ in range(stages)]
    waiting: dict[tuple[str, int, int], int] = {}
    ready = list(range(stages))
    while ready:
        rank = ready.pop()
        table, clock = tables[rank], clocks[rank]
        while places[rank] < len(table):
            action = table[places[rank]]
            n = numbers[rank][action.piece]
            need = _needed(action, n, last)
            start = clock
            if need:
                if need not in done:
                    waiting[need] = rank
                    break
                crosses = home[need[1]] != rank
                moved = pieces[min(n, need[1])].send if crosses else 0.0
                start = max(clock + waits[need[0] == "G"] * crosses, done[need] + moved)
            clock = start + seconds_by_kind[n][action.kind]
            events[rank].append(Event(action, start, clock))
            places[rank] += 1
            if action.kind == "W":
                continue
            kind, to = ("F", n + 1) if action.kind == "F" else ("G", n - 1)
            clock += waits[kind == "G"] * (home.get(to, rank) != rank)
            key = (kind, n, action.batch)
            done[key] = clock
            if key in waiting:
                ready.append(waiting.pop(key))
        clocks[rank] = clock
    if any(place < len(table) for place, table in zip(places, tables, strict=True)):
        raise InputError("schedule", [f"{recipe.schedule} with {batches} micro-batches deadlocks at pp = {stages}"])
    return Timeline(tuple(map(tuple, events)))


def equal_stages(recipe: Recipe, layers: float, slowest: float, send: float, waits: tuple[float, float]) -> float:
    """Seconds of `simulate` in closed form, for the search: of stages of `layers` seconds per micro-batch, of which the
    slowest takes `slowest`. The bubble is one micro-batch of the others; no compute hides the first micro-batch's
    messages there and the last one's back.

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


def _needed(action: Action, n: int, last: int) -> tuple[str, int, int] | None:
    """The event that must have ended: a forward needs the previous piece's, a gradient the next piece's."""
    if action.kind == "F":
        return ("F", n - 1, action.batch) if n else None
    if action.kind == "W":
        return None
    return ("G", n + 1, action.batch) if n < last else ("F", n, action.batch)
