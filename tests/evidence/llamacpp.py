"""llama.cpp's measured speeds beside what is predicted, and the fit of `presets/efficiency/apple.toml`.

`python tests/evidence/llamacpp.py` compares tests/data/serving/consumer.csv, of which nothing was fitted to;
`python tests/evidence/llamacpp.py --fit` fits tests/data/serving/apple.csv (NumPy): three shares of the bandwidth, one
start, and of each format the median share of the peak.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from txcalc import hardware, load
from txcalc.curves import Curve
from txcalc.hardware import Accelerator
from txcalc.planning.engine import engine
from txcalc.planning.engine_memory import EngineMemory, profile
from txcalc.planning.layout import Layout
from txcalc.planning.pace import Pace
from txcalc.planning.parallelism import Sharding

DATA = Path(__file__).parents[1] / "data" / "serving"
VERSION = "llama.cpp@b2824"  # as the notebooks say: with CUDA graphs, without flash attention
BARS = {"generation": 0.12, "prompt": 0.25}


def rows(name: str) -> list[dict[str, Any]]:
    with (DATA / name).open() as file:
        return [
            {**row, "number": int(row["number"]), "tokens": int(row["tokens"]), "rate": float(row["tokens_per_s"])}
            for row in csv.DictReader(file)
        ]


def pace(row: dict[str, Any], card: Accelerator) -> Pace:
    model, found = load(row["model"]), profile(VERSION)
    assert found
    memory = EngineMemory(found, card, 8192)
    how = engine(model, row["weights"], "fp16", chunk=memory.most_tokens, memory=memory)
    return Pace(model, Sharding(model, True, how.offload), Layout(pp=row["number"]), card, how)


def rate(held: Pace, what: str, tokens: int) -> float:
    """Prompt tokens a second; or of an answer from nothing, by Simpson's rule over its length."""
    if what == "prompt":
        return tokens / held.prefill(tokens).achievable
    first, middle, last = (held.step(1, n).achievable for n in (1, tokens // 2, tokens))
    return 6 / (first + 4 * middle + last)


def compare() -> None:
    paces: dict[tuple[Any, ...], Pace] = {}
    ratios: dict[str, list[float]] = defaultdict(list)
    lines: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for row in rows("consumer.csv"):
        key = row["model"], row["weights"], row["gpu"], row["number"]
        if key not in paces:
            paces[key] = pace(row, hardware.load(row["gpu"]))
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

    def held(row: dict[str, Any], compute: float, memory: float, start: float) -> Pace:
        card = hardware.load(row["gpu"])
        base, one = card.efficiency, Curve(compute=compute, memory=memory, start_s=start)
        curves = {**base.curves, **{f"matmul.{kind}": one for kind in ("bf16", "w8", "w4")}}
        for kind in ("attention.decode", "attention.prefill"):
            curves[kind] = base.curves[kind]._replace(start_s=start, depth_s=0.0)
        return pace(row, replace(card, calibration=replace(base, curves=curves, launch_s=start)))

    formats, unit = ("fp16", "Q8_0", "Q4_0"), 1e-6
    found = {(row["gpu"], row["weights"], row["what"]): row for row in rows("apple.csv")}
    matrix, right, prompts = [], [], []
    for (_, weights, what), row in found.items():
        if what == "prompt":
            prompts.append(row)
            continue
        plain, half, late = (
            held(row, 1, *how).step(1, row["tokens"] // 2).achievable for how in ((1, 0), (0.5, 0), (1, unit))
        )
        reads, time = half - plain, 1 / row["rate"]
        matrix.append([reads / time * (weights == each) for each in formats] + [(late - plain) / time])
        right.append((time - plain + reads) / time)
    *shares, start = np.linalg.lstsq(np.array(matrix), np.array(right), rcond=None)[0]
    print("share of the bandwidth", {each: f"{1 / share:.3f}" for each, share in zip(formats, shares, strict=True)})
    print(f"start {start:.3g} µs")
    for each in formats:
        reached = []
        for row in (row for row in prompts if row["weights"] == each):
            whole, half = (held(row, how, 1, start * unit).prefill(row["tokens"]).achievable for how in (1, 0.5))
            reached.append((half - whole) / (row["tokens"] / row["rate"] - 2 * whole + half))
        print(f"{each}: share of the peak {median(reached):.3f}, {min(reached):.2f} to {max(reached):.2f}")


if __name__ == "__main__":
    fit() if "--fit" in sys.argv[1:] else compare()
