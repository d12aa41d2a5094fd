"""An engine's own share of latencies, fitted: `python tests/scripts/engines.py [ENGINE …]`.

The numbers of `[latency]` in `presets/engines.toml` are engines' own, so that only servers tell them: those of
`servers.py`, TPOT first (`step_s`, `sequence_s`, `together`), then TTFT (`own_s`, `steps`). The best of a grid is what
makes the mean |log(predicted/measured)| least, which leaves as many above as below (a mean error in per cent is least
where most are below: what is too small is at most 100 % off). Prints the mean absolute error in per cent with the
preset's, with the best, and of each model with the best for all the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from math import log
from typing import NamedTuple

from servers import DRAWN, SUSPECT, Row, held_by, rows, timer

from txcalc.errors import TxcalcError
from txcalc.planning.layout import Layout
from txcalc.planning.serving.demand import ROUNDS, Demand, StepCurve
from txcalc.planning.serving.engine_profiles import latency
from txcalc.planning.serving.steady_state import closed_loop

STEPS, SEQUENCES, TOGETHER = (0.0, 2e-4, 4e-4, 8e-4, 1.2e-3), (0.0, 5e-6, 1e-5, 2e-5, 3e-5, 4e-5), (0.5, 0.7, 0.9, 1.0)
OWN, POLLS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.16, 0.2), (0, 1, 2, 3, 5, 8, 12, 16, 20)


class Server(NamedTuple):
    """A measured server: what requests ask of a copy but for the engine's own, and its clients."""

    row: Row
    demand: Demand
    clients: float
    seats: float
    alike: bool

    def loaded(self, step: float, sequence: float, together: float) -> tuple[Row, float, float, float]:
        """TPOT over the measured one; TTFT without the engine's own, and a step where others decode, in seconds."""
        bare = self.demand.step
        demand = self.demand._replace(
            step=StepCurve(lambda n: bare(n) + step + sequence * n), together=together if self.alike else 1 / ROUNDS
        )
        steady = closed_loop(demand, self.clients, self.seats)
        assert steady.tpot
        beside = min(1.0, max(0.0, 1 - 1 / max(1.0, min(self.clients, self.seats))) * steady.decoding)
        return self.row, steady.tpot / self.row.tpot, steady.ttft, beside * demand.step(steady.decoding)


def servers(engine: str) -> list[Server]:
    """Those of an engine that the library predicts."""
    own, found = latency(engine), []
    for row in rows():
        if row.engine.split()[0] != engine or any(wrong(row) for wrong in SUSPECT.values()):
            continue
        layout = Layout(tp=row.tp, dp=row.dp, ep=row.ep)
        try:
            timing = timer(held_by(row), row.prompt, row.answer)
            demand, seats = timing.demand(layout, row.concurrency), timing.cache_slots(layout)
        except TxcalcError:
            continue

        def seconds(n: float, step: Callable[[float], float] = demand.step) -> float:
            return step(n) - own.step_s - own.sequence_s * n

        bare = demand._replace(step=seconds, overhead=0.0, polls=0.0)
        alike = (row.prompt, row.answer) not in DRAWN
        found.append(Server(row, bare, row.concurrency / min(row.dp, row.concurrency), seats, alike))
    return found


def error(ratios: list[float]) -> float:
    return sum(abs(ratio - 1) for ratio in ratios) / len(ratios)


def off(ratios: list[float]) -> float:
    """Mean |log ratio|."""
    return sum(abs(log(ratio)) for ratio in ratios) / len(ratios)


def report(engine: str) -> None:
    every, own = servers(engine), latency(engine)
    models = sorted({one.row.name for one in every})
    shared = TOGETHER if engine == "sglang" else (0.1,)
    preset = (own.step_s, own.sequence_s, own.together)
    tpot = {
        numbers: [one.loaded(*numbers) for one in every] for numbers in {*product(STEPS, SEQUENCES, shared), preset}
    }
    print(f"{engine}, {len(every)} servers")
    left = {model: [i for i, one in enumerate(every) if one.row.name != model] for model in models}

    def loss(numbers: tuple[float, float, float], rows: list[int], by: Callable[[list[float]], float] = off) -> float:
        return by([tpot[numbers][i][1] for i in rows])

    def told(name: str, given: object, best: object, errors: tuple[float, float, float]) -> None:
        print(
            f"  {name}: preset {given} {errors[0]:.1%}, best {best} {errors[1]:.1%}, each by the others {errors[2]:.1%}"
        )

    whole = list(range(len(every)))
    best = min(tpot, key=lambda numbers: loss(numbers, whole))
    apart = 0.0
    for rest in left.values():
        mine, theirs = [i for i in whole if i not in set(rest)], min(tpot, key=lambda numbers: loss(numbers, rest))
        apart += loss(theirs, mine, error) * len(mine) / len(every)
    told("TPOT", preset, best, (loss(preset, whole, error), loss(best, whole, error), apart))

    def late(numbers: tuple[float, float], rows: list[int], by: Callable[[list[float]], float] = off) -> float:
        found = [tpot[best][i] for i in rows]
        return by([(ttft + numbers[0] + numbers[1] * step) / row.ttft for row, _, ttft, step in found])

    grid = list(product(OWN, POLLS))
    first = min(grid, key=lambda numbers: late(numbers, whole))
    apart = 0.0
    for rest in left.values():
        mine, other = [i for i in whole if i not in set(rest)], min(grid, key=lambda numbers: late(numbers, rest))
        apart += late(other, mine, error) * len(mine) / len(every)
    given = own.own_s, own.steps
    told("TTFT", given, first, (late(given, whole, error), late(first, whole, error), apart))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", nargs="*", default=["vllm", "trtllm", "sglang"])
    for engine in parser.parse_args().engine:
        report(engine)


if __name__ == "__main__":
    main()
