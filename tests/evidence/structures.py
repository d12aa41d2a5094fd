"""Random valid descriptions of every family against every oracle that needs no device:

    python tests/evidence/structures.py [--number 2000] [--seed 1] [--seconds 500] [--oracle NAME …]

Hypothesis draws them as the tests' strategies say; the modules that each means are run at points. Prints every
description that an oracle refutes, then how many were tried and how many figures were compared. What is refused is
counted apart. Exit code 1 where one is refuted, or its modules do not run.
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
from txcalc.verify import ORACLES, verify

WITHOUT = {"bytes", "memory", "transformers"}  # of a device, of a whole training step, of a config of theirs


def main() -> int:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("--number", type=int, default=2000)
    about.add_argument("--seed", type=int, default=1)
    about.add_argument("--seconds", type=float, default=500, help="after which no other is tried")
    about.add_argument("--oracle", nargs="+", default=[name for name in ORACLES if name not in WITHOUT])
    asked = about.parse_args()
    found, end = Counter[str](), time.monotonic() + asked.seconds

    @seed(asked.seed)
    @settings(
        max_examples=asked.number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(descriptions)
    def each(description: dict[str, Any]) -> None:
        if time.monotonic() > end:
            return
        try:
            verdict = verify(build(description, "drawn"), asked.oracle, lengths="points")
        except TxcalcError as error:
            found[f"refused: {str(error)[:60]}"] += 1
            return
        except RuntimeError as error:  # its module cannot be run, though the description is taken
            found["crashed"] += 1
            print(json.dumps(description), error, sep="\n  ", flush=True)
            return
        found["tried"] += 1
        found["figures"] += len(verdict.rows)
        if verdict.failures:
            found["refuted"] += 1
            print(json.dumps(description), *verdict.failures[:3], sep="\n  ", flush=True)

    each()
    print(f"seed {asked.seed}: " + ", ".join(f"{name} {number:,}" for name, number in found.most_common()))
    return int(found["refuted"] + found["crashed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
