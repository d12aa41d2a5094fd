"""llama.cpp's measured speeds beside what is predicted, and the fits of `presets/efficiency/` that are of its kernels.

`python tests/scripts/llamacpp.py` compares tests/data/serving/consumer.csv, of which nothing was fitted to; with
`--lowered` its M1 Max has the clock that its own first two prompts say: what is off there, and no prediction. Then
hopper.csv, to which `presets/efficiency/hopper.toml` is fitted.
`python tests/scripts/llamacpp.py --fit` fits hopper.csv (NumPy): a start of packed formats and what a weight of 4 bits
costs to unpack by least squares, the rest as medians; the tokens of its mixture of experts are not used.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

from msgspec.structs import replace

from txcalc import hardware, load
from txcalc.hardware import Accelerator
from txcalc.hardware.curves import Curve
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.planning.serving.engine import engine
from txcalc.planning.serving.engine_memory import EngineMemory
from txcalc.planning.serving.engine_profiles import profile
from txcalc.planning.serving.layout_time import LayoutTime

DATA = Path(__file__).parents[2] / "tests" / "data" / "serving"
VERSION = "llama.cpp@b2824"  # as the notebooks say: with CUDA graphs, without flash attention
NEWEST = "llama.cpp"  # with it
BARS = {"generation": 0.12, "prompt": 0.25, "token": 0.12}
UNPACK = 300.0  # FLOPs per weight, beyond which a single row's product is not bound by memory
SMALL = 0.05  # a share that bounds a pass by what it is of
TIMED = 32  # tokens on average between those that a token is said to stand behind and those that it does


def rows(name: str) -> list[dict[str, Any]]:
    with (DATA / name).open() as file:
        return [
            {**row, "number": int(row["number"]), "tokens": int(row["tokens"]), "rate": float(row["tokens_per_s"])}
            for row in csv.DictReader(file)
        ]


def pace(row: dict[str, Any], card: Accelerator, version: str = VERSION) -> LayoutTime:
    model, engine_profile = load(row["model"]), profile(version)
    assert engine_profile
    memory = EngineMemory(engine_profile, card, 8192)
    how = engine(model, row["weights"], "fp16", chunk=memory.most_tokens, memory=memory)
    return LayoutTime(model, Sharding(model, True, how.offload), Layout(pp=row["number"]), card, how)


def rate(layout_time: LayoutTime, what: str, tokens: int) -> float:
    """Prompt tokens per second; of a single token behind so many; or of an answer from nothing, by Simpson's rule over
    its length."""
    if what == "prompt":
        return tokens / layout_time.prefill(tokens).achievable
    if what == "token":
        return 1 / layout_time.step(1, tokens + TIMED).achievable
    first, middle, last = (layout_time.step(1, n).achievable for n in (1, tokens // 2, tokens))
    return 6 / (first + 4 * middle + last)


def lowered(card: Accelerator) -> Accelerator:
    """An M1 Max whose clock falls as this one's prompts of fp16 do from 512 to 1,024 tokens; any other as it is."""
    if card.name != "m1-max":
        return card
    return replace(card, peaks={kind: round(peak * 418.77 / 517.34) for kind, peak in card.peaks.items()})


def compare(file: str, version: str, adapt: Callable[[Accelerator], Accelerator] = lambda card: card) -> None:
    paces: dict[tuple[Any, ...], LayoutTime] = {}
    ratios: dict[str, list[float]] = defaultdict(list)
    lines: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for row in rows(file):
        key = row["model"], row["weights"], row["gpu"], row["number"]
        if key not in paces:
            paces[key] = pace(row, adapt(hardware.load(row["gpu"])), version)
        ratio = rate(paces[key], row["what"], row["tokens"]) / row["rate"]
        ratios[row["what"]].append(ratio)
        lines[row["what"], *key].append(f"{row['tokens']}: {ratio:.2f}")
    for names, texts in lines.items():
        print(*names, "predicted ÷ measured", ", ".join(texts))
    for what, ours in ratios.items():
        inside = sum(abs(quotient - 1) <= BARS[what] for quotient in ours)
        error = fmean(abs(quotient - 1) for quotient in ours)
        print(f"{what}: {inside} of {len(ours)} within {BARS[what]:.0%}, median {median(ours):.2f}, error {error:.1%}")


def fit_hopper() -> dict[str, dict[str, float]]:
    """The curves of presets/efficiency/hopper.toml, from products to what rests on them. Times are linear in a start,
    in what a weight costs to unpack, and in the inverse of a share; medians are over rows."""
    import numpy as np

    every, experts = rows("hopper.csv"), "qwen3-30b-a3b"
    fitted: dict[str, dict[str, float]] = {}

    def mine(what: str, weights: str, routed: bool = False) -> list[dict[str, Any]]:
        matching = (row for row in every if (row["what"], row["weights"]) == (what, weights))
        return [row for row in matching if (row["model"] == experts) == routed]

    def seconds(row: dict[str, Any], key: str, **changes: float) -> float:
        card = hardware.load(row["gpu"])
        base = card.efficiency
        share = base.curve("matmul", "bf16").memory
        trial = {**fitted, key: {"compute": 1.0, "memory": share, "start_s": 0.0, **fitted.get(key, {}), **changes}}
        curves = {**base.curves, **{f"llama.cpp.{name}": Curve(**values) for name, values in trial.items()}}
        layout_time = pace(row, replace(card, calibration=replace(base, curves=curves)), NEWEST)
        return (row["tokens"] if row["what"] == "prompt" else 1) / rate(layout_time, row["what"], row["tokens"])

    def inverse(key: str, share: str, of: list[dict[str, Any]]) -> float:
        shares = []
        for row in of:
            whole, half = (seconds(row, key, **{share: value}) for value in (SMALL, SMALL / 2))
            time = (row["tokens"] if row["what"] == "prompt" else 1) / row["rate"]
            shares.append(SMALL * (half - whole) / (time - 2 * whole + half))
        print(f"{key}: {share} {median(shares):.3g}, {min(shares):.3g} to {max(shares):.3g}")
        return median(shares)

    matrix, right = [], []
    for row in mine("token", "Q4_K_M"):
        plain, late, dear = (
            seconds(row, "matmul.w4", start_s=start, unpack=unpack) * row["rate"]
            for start, unpack in ((0.0, UNPACK), (1e-6, UNPACK), (0.0, 2 * UNPACK))
        )
        matrix.append([late - plain, (dear - plain) / UNPACK])
        right.append(1 - 2 * plain + dear)
    start, unpack = (float(value) for value in np.linalg.lstsq(np.array(matrix), np.array(right), rcond=None)[0])
    print(f"matmul.w4: start {start:.3g} µs, {unpack:.0f} FLOPs of the peak to unpack a weight", end=", largest error ")
    print(f"{max(abs(np.array(matrix) @ np.array([start, unpack]) - np.array(right))):.1%}")
    fitted["matmul.w4"] = {"start_s": start * 1e-6, "unpack": unpack}
    fitted["matmul.w8"] = {"start_s": start * 1e-6}
    fitted["matmul.w8"]["memory"] = inverse("matmul.w8", "memory", mine("token", "Q8_0"))
    starts = []
    for row in mine("token", "fp16"):
        without_start, with_start = (seconds(row, "matmul.bf16", start_s=value) for value in (0.0, 1e-6))
        starts.append((1 / row["rate"] - without_start) / (with_start - without_start))
    print(f"matmul.bf16: start {median(starts):.3g} µs, {min(starts):.3g} to {max(starts):.3g}")
    fitted["matmul.bf16"] = {"start_s": median(starts) * 1e-6}
    for key, weights in (("matmul.w4", "Q4_K_M"), ("matmul.w8", "Q8_0"), ("matmul.bf16", "fp16")):
        fitted[key]["compute"] = inverse(key, "compute", mine("prompt", weights))
    fitted["experts.w4"] = {**fitted["matmul.w4"]}
    fitted["experts.w4"]["compute"] = inverse("experts.w4", "compute", mine("prompt", "Q4_K_M", routed=True))
    return fitted


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if "--fit" in arguments:
        fit_hopper()
    else:
        compare("consumer.csv", VERSION, lowered if "--lowered" in arguments else lambda card: card)
        compare("hopper.csv", NEWEST)
