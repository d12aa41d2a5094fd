"""Random valid descriptions of every family against every oracle that needs no device:

    python tests/scripts/structures.py RESULTS.jsonl [--number 2000] [--seed 1] [--seconds 500] [--jobs 2]

Hypothesis draws them as the tests' strategies say, each by itself from the seed and its number, until as many of
different structures have been tried: what mechanisms, flags and equal sizes they have, not how large they are. The
modules that each means, one layer of each kind, compute on the CPU. A line of RESULTS is written for each; a run goes
on where one of the same seed ended. Prints every description that an oracle refutes, and at the end of all lines how
many were tried and how many figures compared; what is refused is counted apart. Exit code 1 where one is refuted, or
its modules do not run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from functools import partial
from importlib import import_module
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from strategies import descriptions

from txcalc.errors import TxcalcError
from txcalc.evidence.theorems import units
from txcalc.model import Model
from txcalc.parts.model import Stack
from txcalc.sources import build
from txcalc.verification import ORACLES, subject
from txcalc.verification.subject import SizePoint, Subject
from txcalc.verification.symbolic import B, OneSize
from txcalc.verification.verdict import CheckedRow

WITHOUT = {"bytes", "memory", "transformers"}  # of a device, of a whole training step, of a config of theirs
BATCH = 211  # a prime of which no size that is drawn is a multiple
SEVERAL, ONE = (2, 5, 3), (3, 1, 4)  # batch, tokens and encoder positions; of one token the forward pass alone
subject.LONG = 7, 5  # tokens and encoder positions of what is kept and moved


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


def one_of_each(stack: Stack) -> Stack:
    """One layer of each kind: copies are made from the same part."""
    groups = tuple(group._replace(indices=(i,), count=1) for i, group in enumerate(stack.groups))
    return replace(stack, groups=groups)


def tried(number: int, chance: int) -> dict[str, Any]:
    """What the oracles say of a description."""
    description = drawn(1_000_000 * chance + number)
    found = {"seed": chance, "number": number, "description": json.dumps(description, sort_keys=True)}
    try:
        model = build(description, "drawn")
    except TxcalcError as error:
        return found | {"said": f"refused: {str(error)[:60]}"}
    found["structure"] = " ".join(sorted(unit.key for unit in units(model)))
    try:
        return found | run(replace(model, root=model.root.with_stacks(one_of_each)))
    except Exception as error:  # its module cannot be run, though the description is taken
        return found | {"said": "crashed", "why": repr(error)}


class Small(Subject):
    """Modules that compute: fakes of so few numbers take longer."""

    def at_one_length(self, device: str = "cpu") -> tuple[OneSize, SizePoint]:
        point = SizePoint(B, *super().at_one_length("cpu")[1][1:])
        given = SizePoint(BATCH, *point[1:])
        return OneSize(lambda: self.inputs(given, "cpu"), f"all B, {given}", BATCH), point


def run(model: Model) -> dict[str, Any]:
    """The oracles' word."""
    rows: list[CheckedRow] = []
    for point, oracles in ((SEVERAL, [name for name in ORACLES if name not in WITHOUT]), (ONE, ["flops"])):
        subject.POINTS = (point,)
        small = Small(model, "cpu", lengths="points")
        for name in oracles:
            module, function, _ = ORACLES[name]
            rows += getattr(import_module(f"txcalc.verification.{module}"), function)(small)
    failures = [str(row) for row in rows if not row.equal]
    return {"said": "refuted" if failures else "held", "figures": len(rows), "why": failures[:3]}


def main() -> int:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("results", type=Path)
    about.add_argument("--number", type=int, default=2000)
    about.add_argument("--seed", type=int, default=1)
    about.add_argument("--seconds", type=float, default=500, help="after which no other is tried")
    about.add_argument("--jobs", type=int, default=1)
    asked = about.parse_args()
    done = [json.loads(line) for line in asked.results.read_text().splitlines()] if asked.results.is_file() else []
    known, end = {one["structure"] for one in done if "structure" in one}, time.monotonic() + asked.seconds
    first = 1 + max((one["number"] for one in done if one["seed"] == asked.seed), default=-1)
    # What torch keeps of the modules it computed grows by some 50 MB per structure.
    with Pool(asked.jobs, maxtasksperchild=40) as pool, asked.results.open("a") as out:
        for one in pool.imap(partial(tried, chance=asked.seed), range(first, first + 100 * asked.number)):
            if time.monotonic() > end or len(known) >= asked.number:
                break
            if one.get("structure") in known:
                continue
            known |= {one["structure"]} if "structure" in one else set()
            done.append(one)
            out.write(json.dumps(one, ensure_ascii=False) + "\n")
            out.flush()
    for one in done:
        if one["said"] in ("refuted", "crashed"):
            print(one["seed"], one["number"], one["said"], one["why"], one["description"], sep="\n  ")
    counts = Counter(one["said"] for one in done)
    print(", ".join(f"{said} {times:,}" for said, times in counts.most_common()), end="; ")
    print(f"{len(known):,} structures, {sum(one.get('figures', 0) for one in done):,} figures")
    return int(counts["refuted"] + counts["crashed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
