"""llama.cpp's measured speeds beside what is predicted, and the fits of `presets/efficiency/apple.toml`, of Apple's.

`python tests/evidence/llamacpp.py` compares tests/data/serving/consumer.csv, of which nothing was fitted to; with
`--lowered` its M1 Max has the clock that its own first two prompts say: what is off there, and no prediction.
`python tests/evidence/llamacpp.py --fit` fits tests/data/serving/apple.csv (NumPy): a share of the bandwidth for each
chip, one start, and of each format the median share of the peak.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from txcalc import hardware, load
from txcalc.curves import Curve
from txcalc.hardware import Accelerator
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.planning.serving.engine import engine
from txcalc.planning.serving.engine_memory import EngineMemory
from txcalc.planning.serving.engine_profiles import profile
from txcalc.planning.serving.layout_time import LayoutTime

DATA = Path(__file__).parents[1] / "data" / "serving"
VERSION = "llama.cpp@b2824"  # as the notebooks say: with CUDA graphs, without flash attention
BARS = {"generation": 0.12, "prompt": 0.25}


def rows(name: str) -> list[dict[str, Any]]:
    with (DATA / name).open() as file:
        return [
            {**row, "number": int(row["number"]), "tokens": int(row["tokens"]), "rate": float(row["tokens_per_s"])}
            for row in csv.DictReader(file)
        ]


def pace(row: dict[str, Any], card: Accelerator) -> LayoutTime:
    model, found = load(row["model"]), profile(VERSION)
    assert found
    memory = EngineMemory(found, card, 8192)
    how = engine(model, row["weights"], "fp16", chunk=memory.most_tokens, memory=memory)
    return LayoutTime(model, Sharding(model, True, how.offload), Layout(pp=row["number"]), card, how)


def rate(held: LayoutTime, what: str, tokens: int) -> float:
    """Prompt tokens per second; or of an answer from nothing, by Simpson's rule over its length."""
    if what == "prompt":
        return tokens / held.prefill(tokens).achievable
    first, middle, last = (held.step(1, n).achievable for n in (1, tokens // 2, tokens))
    return 6 / (first + 4 * middle + last)


def lowered(card: Accelerator) -> Accelerator:
    """An M1 Max whose clock falls as this one's prompts of fp16 do from 512 to 1,024 tokens; any other as it is."""
    if card.name != "m1-max":
        return card
    return replace(card, peaks={kind: round(peak * 418.77 / 517.34) for kind, peak in card.peaks.items()})


def compare(own: Callable[[Accelerator], Accelerator]) -> None:
    paces: dict[tuple[Any, ...], LayoutTime] = {}
    ratios: dict[str, list[float]] = defaultdict(list)
    lines: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for row in rows("consumer.csv"):
        key = row["model"], row["weights"], row["gpu"], row["number"]
        if key not in paces:
            paces[key] = pace(row, own(hardware.load(row["gpu"])))
        ratio = rate(paces[key], row["what"], row["tokens"]) / row["rate"]
        ratios[row["what"]].append(ratio)
        lines[row["what"], *key].append(f"{row['tokens']}: {ratio:.2f}")
    for names, found in lines.items():
        print(*names, "predicted ÷ measured", ", ".join(found))
    for what, ours in ratios.items():
        inside = sum(abs(one - 1) <= BARS[what] for one in ours)
        error = fmean(abs(one - 1) for one in ours)
        print(f"{what}: {inside} of {len(ours)} within {BARS[what]:.0%}, median {median(ours):.2f}, error {error:.1%}")


def fit() -> None:
    """A step is reads over the bandwidth and its share, and starts: linear in 1/share and in the start."""
    import numpy as np

    def held(row: dict[str, Any], compute: float, memory: float, start: float) -> LayoutTime:
        card = hardware.load(row["gpu"])
        base, one = card.efficiency, Curve(compute=compute, memory=memory, start_s=start)
        curves = {**base.curves, **{f"matmul.{kind}": one for kind in ("bf16", "w8", "w4")}}
        for kind in ("attention.decode", "attention.prefill"):
            curves[kind] = base.curves[kind]._replace(start_s=start, depth_s=0.0)
        return pace(row, replace(card, calibration=replace(base, curves=curves, launch_s=start)))

    unit, found = 1e-6, rows("apple.csv")
    chips = list(dict.fromkeys(row["gpu"] for row in found))
    matrix, right = [], []
    for row in (row for row in found if row["what"] == "generation"):
        plain, half, late = (
            held(row, 1, *how).step(1, row["tokens"] // 2).achievable for how in ((1, 0), (0.5, 0), (1, unit))
        )
        reads, time = half - plain, 1 / row["rate"]
        matrix.append([reads / time * (row["gpu"] == each) for each in chips] + [(late - plain) / time])
        right.append((time - plain + reads) / time)
    *inverse, start = np.linalg.lstsq(np.array(matrix), np.array(right), rcond=None)[0]
    shares = {each: float(1 / share) for each, share in zip(chips, inverse, strict=True)}
    print("share of the bandwidth", {each: f"{share:.3f}" for each, share in shares.items()})
    print(f"median {median(shares.values()):.3f}, start {start:.3g} µs, largest error", end=" ")
    print(f"{max(abs(np.array(matrix) @ np.array([*inverse, start]) - np.array(right))):.1%}")
    for weights in dict.fromkeys(row["weights"] for row in found):
        reached = []
        for row in (row for row in found if row["what"] == "prompt" and row["weights"] == weights):
            share = shares[row["gpu"]]
            whole, half = (held(row, how, share, start * unit).prefill(row["tokens"]).achievable for how in (1, 0.5))
            reached.append((half - whole) / (row["tokens"] / row["rate"] - 2 * whole + half))
        print(f"{weights}: share of the peak {median(reached):.3f}, {min(reached):.2f} to {max(reached):.2f}")


if __name__ == "__main__":
    if "--fit" in sys.argv[1:]:
        fit()
    else:
        compare(lowered if "--lowered" in sys.argv[1:] else lambda card: card)
