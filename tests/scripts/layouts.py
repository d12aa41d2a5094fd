"""Layouts of many models against PyTorch's own sharding: `python tests/scripts/layouts.py [FIRST [LAST]] [--keep]`.

Cases are the keys of `tests/data/training/layouts.json`: worlds to 1,024 ranks that do and do not divide, models to
405B and DeepSeek-V3, every schedule, adapters, Muon. A line for each: figures compared, how many differ, seconds. Exit
code 1 where anything differs. `--keep` writes what PyTorch has of each rank into the file, with which quick tests
compare the planner.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from tiny import TINY

from txcalc import load
from txcalc.planning.layout import parse_layout
from txcalc.planning.training import Layout, Recipe
from txcalc.planning.training.recipe import parse_options
from txcalc.questions.phrases import parse_adapters
from txcalc.sources import build

if TYPE_CHECKING:
    from txcalc.model import Model
    from txcalc.verification.verdict import Verdict

KEPT = Path(__file__).parents[2] / "tests" / "data" / "training" / "layouts.json"
# By title "source | layout | options": what PyTorch has of each rank; None where it is run by this script alone.
MEASURED: dict[str, dict[str, dict[str, int]] | None] = json.loads(KEPT.read_text())


def model_of(source: str) -> Model:
    """A model by its source, perhaps with adapters, or a tiny one by its name."""
    name, _, lora = source.removeprefix("tiny ").partition(" --lora ")
    return build(TINY[name], name) if source.startswith("tiny ") else load(name, parse_adapters(lora or None)[0])


def case_of(title: str) -> tuple[str, Layout, dict[str, Any]]:
    """The source, layout and options of a recipe that a title names."""
    source, layout, options = title.split(" | ")
    return source, parse_layout(layout), parse_options(options)


def keep(title: str, verdict: Verdict) -> None:
    """Write what was measured of each rank, by quantity."""
    by_rank: dict[str, dict[str, int]] = {}
    for row in verdict.rows:
        if row.path.startswith("rank "):
            by_rank.setdefault(row.path.removeprefix("rank "), {})[row.quantity] = row.measured
    rows = {**json.loads(KEPT.read_text()), title: by_rank}
    lines = (f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in rows.items())
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main(first: int = 0, last: int = len(MEASURED), *, kept: bool = False) -> int:
    from txcalc.verification.layouts import verify_layout

    wrong = figures = 0
    for number, title in list(enumerate(MEASURED))[first:last]:
        source, layout, recipe_options = case_of(title)
        start = time.time()
        tokens = 32 * layout.sp * layout.cp
        verdict = verify_layout(
            model_of(source), Recipe(layout, tokens=tokens, **recipe_options), ranks=2, affine=number % 8 == 0
        )
        figures, wrong = figures + len(verdict.rows), wrong + len(verdict.failures)
        options = ", ".join(f"{key}={value}" for key, value in recipe_options.items())
        print(f"{number:3} {source[:32]:32} {layout!s:24} {options[:32]:32} {len(verdict.rows):4} figures, "
              f"{len(verdict.failures)} differ, {time.time() - start:.0f} s", flush=True)  # fmt: skip
        if kept and verdict.ok:
            keep(title, verdict)
        for row in verdict.failures:
            print(f"      {row.path} {row.quantity}: predicted {row.predicted:,}, measured {row.measured:,}")
    print(f"{last - first} cases, {figures:,} figures, {wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument != "--keep"]
    raise SystemExit(main(*numbers, kept="--keep" in sys.argv))
