"""Random valid descriptions of every family against every oracle that needs no device:

    python tests/evidence/structures.py RESULTS.jsonl [--number 2000] [--seed 1] [--seconds 500] [--oracle NAME …]

Hypothesis draws them as the tests' strategies say, each by itself from the seed and its number; the modules that each
means are run at points. A line of RESULTS is written for each; what is there already is not run again, so a run goes on
where one of the same seed ended. Prints every description that an oracle refutes, and at the end of all lines how many
different ones were tried, and how many figures compared; what is refused is counted apart. Exit code 1 where one is
refuted, or its modules do not run.
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


def tried(description: dict[str, Any], oracles: list[str]) -> dict[str, Any]:
    """What the oracles say of it."""
    try:
        verdict = verify(build(description, "drawn"), oracles, lengths="points")
    except TxcalcError as error:
        return {"said": f"refused: {str(error)[:60]}"}
    except Exception as error:  # its module cannot be run, though the description is taken
        return {"said": "crashed", "why": repr(error)}
    said = "refuted" if verdict.failures else "held"
    return {"said": said, "figures": len(verdict.rows), "why": [str(row) for row in verdict.failures[:3]]}


def main() -> int:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("results", type=Path)
    about.add_argument("--number", type=int, default=2000)
    about.add_argument("--seed", type=int, default=1)
    about.add_argument("--seconds", type=float, default=500, help="after which no other is tried")
    about.add_argument("--oracle", nargs="+", default=[name for name in ORACLES if name not in WITHOUT])
    asked = about.parse_args()
    done = [json.loads(line) for line in asked.results.read_text().splitlines()] if asked.results.is_file() else []
    known, end = {one["description"] for one in done}, time.monotonic() + asked.seconds
    first = 1 + max((one["number"] for one in done if one["seed"] == asked.seed), default=-1)
    for number in range(first, asked.number):
        if time.monotonic() > end:
            break
        description = drawn(1_000_000 * asked.seed + number)
        text = json.dumps(description, sort_keys=True)
        if text in known:
            continue
        known.add(text)
        done.append({"seed": asked.seed, "number": number, **tried(description, asked.oracle), "description": text})
        with asked.results.open("a") as out:
            out.write(json.dumps(done[-1], ensure_ascii=False) + "\n")
    for one in done:
        if one["said"] in ("refuted", "crashed"):
            print(one["seed"], one["number"], one["said"], one["why"], one["description"], sep="\n  ")
    counts = Counter(one["said"] for one in done)
    print(", ".join(f"{said} {times:,}" for said, times in counts.most_common()), end="; ")
    print(f"{len(known):,} different, {sum(one.get('figures', 0) for one in done):,} figures")
    return int(counts["refuted"] + counts["crashed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
