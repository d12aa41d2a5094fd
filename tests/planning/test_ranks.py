"""Totals of every tiny model on a rank of each stage of a layout, kept in `golden/ranks.csv`: a diff shows which
quantity of which model a change of a formula moved.

Other tests show that they are right: PyTorch's own sharding, closed forms, ledgers by hand.
`pytest tests/planning/test_ranks.py --update-golden` writes the file again.
"""

from __future__ import annotations

import csv
import io

from paths import GOLDEN
from tiny import TINY

from txcalc.ledger import QUANTITIES
from txcalc.parts.part import Workload
from txcalc.planning.crossover import cache_read
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.sources import build

FILE = GOLDEN / "ranks.csv"
PROMPT, STEP = Workload(2, 70, 0, 50), Workload(3, 2, 50, 5, decoding=True, last_logits=True, absorbed=True)
PLACES = [
    ("prompt", PROMPT, Layout()),
    ("step", STEP, Layout()),
    ("prompt", PROMPT, Layout(tp=2)),
    ("prompt", PROMPT, Layout(tp=2, sp=2)),
    ("prompt", PROMPT, Layout(ep=2, dp=2)),
    ("prompt", PROMPT, Layout(pp=2)),
]


def rows(name: str) -> list[list[str]]:
    """A row for each stage of each layout that the model can have."""
    sharding = Sharding(build(TINY[name], name))
    blocks = [group.block for stack in sharding.model.root.stacks for group in stack.groups]
    alive = sum(branch.part.peak_elements() for block in blocks for branch in block.branches)
    return [
        [name, str(layout), str(number), title, *map(str, [*map(ledger.total, QUANTITIES), read, alive])]
        for title, work, layout in PLACES
        if not sharding.faults(layout)
        for number, stage in enumerate(sharding.stages(layout))
        for ledger in [stage.ledger(work)]
        for read in [sum(map(cache_read, ledger))]
    ]


def test_totals_of_ranks_are_the_ones_kept(update_golden: bool) -> None:
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["model", "layout", "stage", "workload", *QUANTITIES, "cache_read", "alive"])
    for name in TINY:
        table.writerows(rows(name))
    if update_golden:
        FILE.write_text(out.getvalue(), "utf-8")
    assert out.getvalue().splitlines() == FILE.read_text("utf-8").splitlines()
