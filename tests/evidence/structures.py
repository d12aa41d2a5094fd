"""Random valid descriptions of every family against every oracle that needs no device:

    python tests/evidence/structures.py [--number 2000] [--seed 1] [--first 0] [--seconds 500] [--oracle NAME …]

Hypothesis draws them as the tests' strategies say, each by itself from the seed and its number; the modules that each
means are run at points. Prints every description that an oracle refutes, then how many were tried and how many figures
were compared. What is refused is counted apart. Exit code 1 where one is refuted, or its modules do not run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).parents[1]))

from strategies import descriptions

from txcalc.errors import TxcalcError
from txcalc.sources import build
from txcalc.verify import ORACLES, subject, verify

WITHOUT = {"bytes", "memory", "transformers"}  # of a device, of a whole training step, of a config of theirs


subject.POINTS = ((3, 1, 4), (2, 5, 3))  # of one position, and of several


def drawn(chance: int) -> dict[str, Any]:
    """One description: the second that Hypothesis draws, for the first is always the simplest."""
    made: list[dict[str, Any]] = []

    @seed(chance)
    @settings(
        max_examples=2, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(descriptions)
    def each(description: dict[str, Any]) -> None:
        made.append(description)

    each()
    return made[-1]


def tried(description: dict[str, Any], oracles: list[str], found: Counter[str], number: int) -> None:
    """What the oracles say of it, counted; a refutation is printed."""
    try:
        verdict = verify(build(description, "drawn"), oracles, lengths="points")
    except TxcalcError as error:
        found[f"refused: {str(error)[:60]}"] += 1
        return
    except Exception as error:  # its module cannot be run, though the description is taken
        found["crashed"] += 1
        print(f"{number}:", json.dumps(description), repr(error), sep="\n  ", flush=True)
        return
    found["tried"] += 1
    found["figures"] += len(verdict.rows)
    if verdict.failures:
        found["refuted"] += 1
        print(f"{number}:", json.dumps(description), *verdict.failures[:3], sep="\n  ", flush=True)


def main() -> int:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("--number", type=int, default=2000)
    about.add_argument("--seed", type=int, default=1)
    about.add_argument("--first", type=int, default=0, help="the number of the first of them")
    about.add_argument("--seconds", type=float, default=500, help="after which no other is tried")
    about.add_argument("--oracle", nargs="+", default=[name for name in ORACLES if name not in WITHOUT])
    asked = about.parse_args()
    found, end = Counter[str](), time.monotonic() + asked.seconds
    for number in range(asked.first, asked.first + asked.number):
        if time.monotonic() > end:
            break
        tried(drawn(1_000_000 * asked.seed + number), asked.oracle, found, number)
    counts = ", ".join(f"{name} {times:,}" for name, times in found.most_common())
    print(f"seed {asked.seed}, {asked.first} to {number}: {counts}")
    return int(found["refuted"] + found["crashed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
