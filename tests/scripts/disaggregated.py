"""Measured servers with pools for prompts and for answers beside the library, for tests/planning/serving/test_pools.py.

Every row of `tests/data/serving/disaggregated.csv` is predicted from the workers of both pools, their layouts, formats,
lengths and concurrency alone. Rows do not say whether a server drafts tokens with the model's own layers (multi-token
prediction), which halves TPOT: DeepSeek's on Blackwell often do. Nor do they say how many sequences a decoding worker
runs at most (a number of each recipe of InferenceX's: DECODE_MAX_BATCH_SIZE): of more, the others wait for a seat,
seconds of TTFT where the pools are hardly used.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from servers import DATA, Row, cache_of, form, planner, timer

from txcalc.errors import InputError, TxcalcError
from txcalc.planning.layout import Layout
from txcalc.planning.serving.demand import Steady
from txcalc.planning.serving.deployment import Planner
from txcalc.planning.serving.steady_state import disaggregated_state


class Pair(NamedTuple):
    """A measured server: its workers for prompts and for answers, each with its layout."""

    row: Row
    fillers: int
    prefill: Layout
    decoders: int
    decode: Layout


def pairs() -> list[Pair]:
    with (DATA / "disaggregated.csv").open(encoding="utf-8") as file:
        return [_pair(row) for row in csv.DictReader(file)]


def _pair(line: dict[str, str]) -> Pair:
    loads = (int(line[key]) for key in ("concurrency", "prompt", "answer"))
    times = (float(line[key]) / 1e3 for key in ("ttft_ms", "tpot_ms"))
    row = Row(line["engine"], line["model"], line["gpu"], 1, 1, 1, 1, line["weights"], line["experts"], *loads, *times)
    layouts = [
        Layout(**{name: int(line[f"{pool}_{name}"]) for name in ("tp", "dp", "pp", "ep")})
        for pool in ("prefill", "decode")
    ]
    return Pair(row, int(line["prefill_workers"]), layouts[0], int(line["decode_workers"]), layouts[1])


def spread(row_planner: Planner, layout: Layout) -> Layout:
    """A row's layout; where it has whole copies on GPUs that do not hold the weights, copies that share the experts."""
    return layout if row_planner.max_concurrency(layout, 1) else layout.replace(ep=layout.tp * layout.dp)


def predict(pair: Pair) -> Steady:
    """Errors: `TxcalcError` where the library refuses the model or a layout."""
    row = pair.row
    row_planner = planner(row.name, row.gpu, form(row), cache_of(row), row.engine.split()[0])
    for layout in (pair.prefill, pair.decode):
        if faults := row_planner.sharding.faults(layout):
            raise InputError(f"layout {layout}", faults)
    timing = timer(row_planner, row.prompt, row.answer)
    copies = pair.fillers * pair.prefill.dp, pair.decoders * pair.decode.dp
    prefill, decode = (timing.demand(spread(row_planner, layout)) for layout in (pair.prefill, pair.decode))
    # The transfer is below a hundredth of TTFT on these GPUs' links, and is not counted here.
    steady = disaggregated_state(prefill, decode, copies, 0.0, float(row.concurrency))
    assert steady.tpot
    return steady


def gather(every: Iterable[Pair]) -> tuple[list[tuple[Pair, float, float]], Counter[str]]:
    """Of every row TPOT and TTFT over the measured ones; and of how many there is none, and why."""
    ratios, without = [], Counter[str]()
    for pair in every:
        try:
            steady = predict(pair)
        except TxcalcError as error:
            without[f"{pair.row.name}: {str(error).splitlines()[0][:90]}"] += 1
            continue
        assert steady.tpot
        ratios.append((pair, steady.tpot / pair.row.tpot, steady.ttft / pair.row.ttft))
    return ratios, without
