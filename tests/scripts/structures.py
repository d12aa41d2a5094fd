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
    examples: list[dict[str, Any]] = []

    @seed(chance)
    @settings(
        max_examples=2, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(descriptions)
    def keep(description: dict[str, Any]) -> None:
        examples.append(description)

    keep()
    return examples[-1]


def one_of_each(stack: Stack) -> Stack:
    """One layer of each kind: copies are made from the same part."""
    groups = tuple(group._replace(indices=(i,), count=1) for i, group in enumerate(stack.groups))
    return replace(stack, groups=groups)


def tried(number: int, chance: int) -> dict[str, Any]:
    """What the oracles say of a description."""
    description = drawn(1_000_000 * chance + number)
    record = {"seed": chance, "number": number, "description": json.dumps(description, sort_keys=True)}
    try:
        model = build(description, "drawn")
    except TxcalcError as error:
        return record | {"said": f"refused: {str(error)[:60]}"}
    record["structure"] = " ".join(sorted(unit.key for unit in units(model)))
    try:
        return record | run(replace(model, root=model.root.with_stacks(one_of_each)))
    except Exception as error:  # its module cannot be run, though the description is taken
        return record | {"said": "crashed", "why": repr(error)}


class Small(Subject):
    """Modules that compute: fakes of so few numbers take longer."""

    def at_one_length(self, device: str = "cpu") -> tuple[OneSize, SizePoint]:
        point = SizePoint(B, *super().at_one_length("cpu")[1][1:])
        size = SizePoint(BATCH, *point[1:])
        return OneSize(lambda: self.inputs(size, "cpu"), f"all B, {size}", BATCH), point


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
    options = about.parse_args()
    done = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.is_file() else []
    structures, end = {row["structure"] for row in done if "structure" in row}, time.monotonic() + options.seconds
    first = 1 + max((row["number"] for row in done if row["seed"] == options.seed), default=-1)
    # What torch keeps of the modules it computed grows by some 50 MB per structure.
    with Pool(options.jobs, maxtasksperchild=40) as pool, options.results.open("a") as out:
        for row in pool.imap(partial(tried, chance=options.seed), range(first, first + 100 * options.number)):
            if time.monotonic() > end or len(structures) >= options.number:
                break
            if row.get("structure") in structures:
                continue
            structures |= {row["structure"]} if "structure" in row else set()
            done.append(row)
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
            out.flush()
    for row in done:
        if row["said"] in ("refuted", "crashed"):
            print(row["seed"], row["number"], row["said"], row["why"], row["description"], sep="\n  ")
    counts = Counter(row["said"] for row in done)
    print(", ".join(f"{outcome} {times:,}" for outcome, times in counts.most_common()), end="; ")
    print(f"{len(structures):,} structures, {sum(row.get('figures', 0) for row in done):,} figures")
    return int(counts["refuted"] + counts["crashed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
