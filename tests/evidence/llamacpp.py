"""llama.cpp's measured speeds beside what is predicted, and the fits of `presets/efficiency/` that are of its kernels.

`python tests/evidence/llamacpp.py` compares tests/data/serving/consumer.csv, of which nothing was fitted to; with
`--lowered` its M1 Max has the clock that its own first two prompts say: what is off there, and no prediction. Then
hopper.csv, to which `presets/efficiency/hopper.toml` is fitted.
`python tests/evidence/llamacpp.py --fit apple` fits apple.csv (NumPy): a share of the bandwidth for each chip, one
start, and of each format the median share of the peak. `--fit hopper` fits hopper.csv: of each format the median start,
with the bandwidth's share of large products in bf16, and the median share of the peak.
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
NEWEST = "llama.cpp"  # with it
BARS = {"generation": 0.12, "prompt": 0.25, "token": 0.12}
TIMED = 32  # tokens on average between those that a token is said to stand behind and those that it does


def rows(name: str) -> list[dict[str, Any]]:
    with (DATA / name).open() as file:
        return [
            {**row, "number": int(row["number"]), "tokens": int(row["tokens"]), "rate": float(row["tokens_per_s"])}
            for row in csv.DictReader(file)
        ]


def pace(row: dict[str, Any], card: Accelerator, version: str = VERSION) -> LayoutTime:
    model, found = load(row["model"]), profile(version)
    assert found
    memory = EngineMemory(found, card, 8192)
    how = engine(model, row["weights"], "fp16", chunk=memory.most_tokens, memory=memory)
    return LayoutTime(model, Sharding(model, True, how.offload), Layout(pp=row["number"]), card, how)


def rate(held: LayoutTime, what: str, tokens: int) -> float:
    """Prompt tokens per second; of a single token behind so many; or of an answer from nothing, by Simpson's rule over
    its length."""
    if what == "prompt":
        return tokens / held.prefill(tokens).achievable
    if what == "token":
        return 1 / held.step(1, tokens + TIMED).achievable
    first, middle, last = (held.step(1, n).achievable for n in (1, tokens // 2, tokens))
    return 6 / (first + 4 * middle + last)


def lowered(card: Accelerator) -> Accelerator:
    """An M1 Max whose clock falls as this one's prompts of fp16 do from 512 to 1,024 tokens; any other as it is."""
    if card.name != "m1-max":
        return card
    return replace(card, peaks={kind: round(peak * 418.77 / 517.34) for kind, peak in card.peaks.items()})


def compare(file: str, version: str, own: Callable[[Accelerator], Accelerator] = lambda card: card) -> None:
    paces: dict[tuple[Any, ...], LayoutTime] = {}
    ratios: dict[str, list[float]] = defaultdict(list)
    lines: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for row in rows(file):
        key = row["model"], row["weights"], row["gpu"], row["number"]
        if key not in paces:
            paces[key] = pace(row, own(hardware.load(row["gpu"])), version)
        ratio = rate(paces[key], row["what"], row["tokens"]) / row["rate"]
        ratios[row["what"]].append(ratio)
        lines[row["what"], *key].append(f"{row['tokens']}: {ratio:.2f}")
    for names, found in lines.items():
        print(*names, "predicted ÷ measured", ", ".join(found))
    for what, ours in ratios.items():
        inside = sum(abs(one - 1) <= BARS[what] for one in ours)
        error = fmean(abs(one - 1) for one in ours)
        print(f"{what}: {inside} of {len(ours)} within {BARS[what]:.0%}, median {median(ours):.2f}, error {error:.1%}")


def fit_apple() -> None:
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


def fit_hopper() -> dict[str, tuple[float, float]]:
    """Of each class of products its share of the peak and its start in seconds; both are linear in a pass's time."""

    def held(row: dict[str, Any], kind: str, compute: float, start: float) -> LayoutTime:
        card = hardware.load(row["gpu"])
        base, share = card.efficiency, card.efficiency.curve("matmul", "bf16").memory
        curves = {**base.curves, f"llama.cpp.matmul.{kind}": Curve(compute=compute, memory=share, start_s=start)}
        return pace(row, replace(card, calibration=replace(base, curves=curves)), NEWEST)

    found, unit, fitted = rows("hopper.csv"), 1e-6, {}
    for kind, weights in (("bf16", "fp16"), ("w8", "Q8_0"), ("w4", "Q4_K_M")):
        mine = [row for row in found if row["weights"] == weights]
        starts, shares = [], []
        for row in (row for row in mine if row["what"] == "token"):
            none, one = (held(row, kind, 1, start).step(1, row["tokens"] + TIMED).achievable for start in (0, unit))
            starts.append(unit * (1 / row["rate"] - none) / (one - none))
        start = median(starts)
        for row in (row for row in mine if row["what"] == "prompt"):
            whole, half = (held(row, kind, how, start).prefill(row["tokens"]).achievable for how in (1, 0.5))
            shares.append((half - whole) / (row["tokens"] / row["rate"] - 2 * whole + half))
        fitted[kind] = median(shares), start
        print(f"{kind}: share of the peak {fitted[kind][0]:.3f}, {min(shares):.3f} to {max(shares):.3f};", end=" ")
        print(f"start {1e6 * start:.3g} µs, {1e6 * min(starts):.3g} to {1e6 * max(starts):.3g}")
    return fitted


if __name__ == "__main__":
    asked = sys.argv[1:]
    if "--fit" in asked:
        (fit_hopper if "hopper" in asked else fit_apple)()
    else:
        compare("consumer.csv", VERSION, lowered if "--lowered" in asked else lambda card: card)
        compare("hopper.csv", NEWEST)
