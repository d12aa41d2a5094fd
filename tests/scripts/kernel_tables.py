"""Fits the curves of `presets/efficiency/` to kernels: `python tests/scripts/kernel_tables.py DATA [FAMILY …]`.

DATA is `aiconfigurator_core/systems/data` of PyPI `aiconfigurator-core` 0.12.0 (Apache-2.0, NVIDIA), unpacked: tables
of kernels measured one by one, of three engines. Of every size the median over engines counts, each with its fastest
kernel; where engines' kernels differ in kind (MLA on Hopper) the fastest. Prints the tables as TOML, and how far each
curve is from its measurements: the mean absolute error and the median of predicted ÷ measured. Needs numpy and pyarrow.

Nothing here sees a server or a whole model.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from txcalc import hardware
from txcalc.curves import untouched

FAMILIES = {
    "hopper": {"h100_sxm": "h100-sxm", "h200_sxm": "h200"},
    "blackwell": {"b200_sxm": "b200", "b300_sxm": "b300"},
    "ampere": {"a100_sxm": "a100-80gb-sxm"},
    "ada": {"l40s": "l40s"},
}
MOST = 12_000  # measurements of a class that are fitted to, evenly drawn
# The tables' names of each class; w4 and w8 multiply in the wide dtype.
PRODUCTS = {
    "bf16": ["bfloat16"],
    "fp8": ["fp8"],
    "fp8-block": ["fp8_block"],
    "fp4": ["nvfp4"],
    "w4": ["int4_wo"],
    "w8": ["int8_wo"],
}
EXPERTS = {**PRODUCTS, "mxfp4": ["w4a16_mxfp4", "w4a8_mxfp4_mxfp8"]}
BYTES = {"bf16": 2, "fp8": 1, "fp8-block": 1, "fp4": 0.5625, "w4": 0.53125, "w8": 1, "mxfp4": 0.53125}
PEAKS = {"fp8-block": "fp8", "w4": "bf16", "w8": "bf16", "mxfp4": "bf16"}
SPREAD = 0.8  # of the experts' popularity: with each class free it comes out at 0.64 to 0.98
ENGINES = ("trtllm", "vllm", "sglang")
# Kernels many times slower than the other engines' of the same operation are left out, and measurements whose data the
# benchmark finds in a large cache where a model would not.
SLOW = {("matmul", "vllm", "fp8-block"), ("experts", "vllm", "fp8")}
CACHES = {"l40s": 96 << 20}
# vLLM 0.19's Marlin for INT4 takes twice as long as 0.24's, and SGLang's: left out where the later one was measured.
REPLACED = dict.fromkeys(("h200_sxm", "b200_sxm"), ("vllm_marlin_int4",))

Array = Any
Table = Mapping[tuple[Any, ...], Mapping[str, float]]


def tables(data: Path, gpu: str, pattern: str, key: Callable[[dict[str, Any]], tuple[Any, ...] | None]) -> Table:
    """Seconds by key and engine: each engine's fastest."""
    found: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    for path in sorted((data / gpu).glob(pattern)):
        engine = path.parts[-3]
        for row in pq.read_table(path).to_pylist():
            if (size := key(row)) is not None and row["latency"] > 0:
                found[size][engine] = min(found[size].get(engine, np.inf), row["latency"] * 1e-3)
    return found


def columns(rows: list[tuple[Any, ...]]) -> list[Array]:
    """Columns of evenly drawn rows."""
    if len(rows) > MOST:
        rows = [rows[i] for i in np.random.default_rng(0).choice(len(rows), MOST, replace=False)]
    return [np.array(column, dtype=float) for column in zip(*rows, strict=True)]


def fit(
    model: Callable[..., Array], taken: Array, start: dict[str, float], steps: dict[str, float]
) -> dict[str, float]:
    """The parameters whose mean |log(predicted/measured)| is least: one at a time, with steps that halve."""
    least = {"blend": 1.0, "spread": 0.05}
    most = {"compute": 1.0, "memory": 0.95, "share": 1.0, "blend": 8.0}

    def off(values: dict[str, float]) -> float:
        if any(value < least.get(key, 0) or value > most.get(key, np.inf) for key, value in values.items()):
            return float("inf")
        with np.errstate(all="ignore"):
            return float(np.mean(np.abs(np.log(model(**values) / taken))))

    best, error, step = dict(start), off(start), dict(steps)
    for _ in range(400):
        better = False
        for key in step:
            for sign in (1, -1):
                tried = best | {key: best[key] + sign * step[key]}
                if (found := off(tried)) < error:
                    best, error, better = tried, found, True
        if not better:
            step = {key: value / 2 for key, value in step.items()}
            if all(step[key] < steps[key] / 500 for key in step):
                break
    return best


def blended(memory: Array, compute: Array, blend: float) -> Array:
    return (memory**blend + compute**blend) ** (1 / blend)


def told(name: str, values: dict[str, float], predicted: Array, taken: Array) -> None:
    digits = {key: f"{value:.3g}" for key, value in values.items() if value}
    ratio = predicted / taken
    error, middle = 100 * np.mean(np.abs(ratio - 1)), np.median(ratio)
    body = ", ".join(f"{key} = {text}" for key, text in digits.items())
    print(f'{name} = {{ {body}, source = "kernels" }}  # {len(taken)} sizes, error {error:.1f} %, median {middle:.2f}')


def owner(engine: str) -> str:
    return f"engine.{engine}" if engine else "curve"


def chosen(by: Mapping[str, float], engine: str) -> float | None:
    """Seconds of an engine's kernel; "": the median of all."""
    return by.get(engine) if engine else float(np.median(list(by.values())))


def static(data: Path, gpu: str, engine: str) -> dict[tuple[int, int], float]:
    """Seconds that finding a scale and applying it takes, by rows and columns: the product was measured with both, but
    fp8 checkpoints bring the scales of their inputs, and the norm or activation before applies them: in TensorRT-LLM,
    and in what vLLM compiles (docs.vllm.ai, design/fusions: RMSNorm + Quant, SiLU + Mul + Quant)."""
    key = lambda row: (row["m"], row["k"]) if row["quant_dtype"] == "fp8" else None  # noqa: E731
    seconds: dict[tuple[int, int], float] = defaultdict(float)
    for name in ("computescale", "scale_matrix"):
        for size, by in tables(data, gpu, f"quantize/{engine}/*/{name}_perf.parquet", key).items():
            seconds[size[0], size[1]] += min(by.values())
    return seconds


def scaled(engine: str, m: int) -> bool:
    """Whether a product in fp8 was measured as one with a scale of all inputs is. vLLM's had a scale for every row, and
    takes 1.1 to 1.8 times as long with a row more than a multiple of four (vllm-project/vllm#30717); TensorRT-LLM's,
    with one scale, 1.03."""
    return engine != "vllm" or m <= 16 or m % 4 == 0


def products(data: Path, gpus: Mapping[str, str], dtype: str, engine: str) -> None:
    rows, names = [], PRODUCTS[dtype]
    for gpu, preset in gpus.items():
        card = hardware.load(preset)
        peak = card.peaks.get(PEAKS.get(dtype, dtype))
        if peak is None:
            continue
        found = tables(
            data, gpu, "gemm/*/*/gemm_perf.parquet",
            lambda row: (row["m"], row["n"], row["k"]) if row["gemm_dtype"] in names else None,
        )  # fmt: skip
        scaling = static(data, gpu, engine) if dtype == "fp8" and engine in ("trtllm", "vllm") else {}
        for (m, n, k), by in found.items():
            kept = {one: t for one, t in by.items() if ("matmul", one, dtype) not in SLOW}
            if dtype == "fp8" and not scaled(engine, m):
                continue
            if kept and 512 <= n <= 65536 and 512 <= k <= 16384 and (taken := chosen(kept, engine)):
                read = n * k * BYTES[dtype] + (m * k + m * n) * 2
                passes = m * k * (2 + BYTES[dtype]) / 0.8 / card.bandwidth
                taken -= scaling.get((m, k), 0.0)
                rows.append((read / card.bandwidth, 2 * m * n * k / peak, k, passes, taken))
    if not rows:
        return
    memory_, compute_, depth, passes_, taken = columns(rows)

    def model(start_s: float, depth_s: float, memory: float, compute: float, blend: float, quantise: float) -> Array:
        return start_s + depth_s * depth + quantise * passes_ + blended(memory_ / memory, compute_ / compute, blend)

    start = dict(compute=0.7, memory=0.8, start_s=4e-6, depth_s=3e-10, blend=3.0, quantise=0.0)
    steps = dict(compute=0.1, memory=0.1, start_s=1e-6, depth_s=1e-10, blend=1.0)
    if dtype.startswith("fp"):
        start["quantise"], steps["quantise"] = 1.0, 0.3
    best = fit(model, taken, start, steps)
    told(f"{owner(engine)}.matmul.{dtype}", best, model(**best), taken)


def experts(data: Path, gpus: Mapping[str, str], dtype: str, engine: str) -> None:
    rows, names = [], EXPERTS[dtype]

    def key(row: dict[str, Any], gpu: str = "") -> tuple[Any, ...] | None:
        if (
            row["moe_dtype"] not in names
            or row["moe_ep_size"] > 1
            or any(text in row["kernel_source"] for text in ("nongated", "situ", *REPLACED.get(gpu, ())))
        ):
            return None
        if "power_law" not in row["distribution"] or row["inter_size"] / row["moe_tp_size"] < 128:
            return None
        if not 2 <= row["topk"] <= 10 or row["num_experts"] == 16:
            return None
        sizes = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "num_tokens")
        return row["distribution"], *(row[size] for size in sizes)

    for gpu, preset in gpus.items():
        card = hardware.load(preset)
        peak = card.peaks.get(PEAKS.get(dtype, dtype))
        if peak is None:
            continue
        for (_, h, inner, k, every, tp, tokens), by in tables(
            data, gpu, "moe/*/*/moe_perf.parquet", partial(key, gpu=gpu)
        ).items():
            i = inner / tp
            kept = {one: t for one, t in by.items() if ("experts", one, dtype) not in SLOW}
            taken = chosen(kept, engine) if kept else None
            if taken is None or every * 3 * h * i * BYTES[dtype] < 2 * CACHES.get(gpu, 0):
                continue
            weights, moved = 3 * h * i * BYTES[dtype], tokens * k * 3 * (h + i) * 2
            rows.append((weights / card.bandwidth, moved / card.bandwidth, 6 * h * i / peak, tokens, k, every, taken))
    if not rows:
        return
    weights_, moved_, row_, tokens_, k_, every_, taken = columns(rows)
    left = np.vectorize(untouched)(k_ / every_, tokens_, SPREAD)

    def model(start_s: float, memory: float, compute: float, blend: float, tile: float) -> Array:
        touched = every_ * (1 - left)
        memory_ = (weights_ * touched + moved_) / memory
        return 2 * start_s + blended(memory_, row_ * (tokens_ * k_ + tile / 2 * touched) / compute, blend)

    start = dict(compute=0.5, memory=0.8, start_s=10e-6, blend=2.0, tile=0.0)
    best = fit(model, taken, start, dict(compute=0.1, memory=0.1, start_s=3e-6, blend=0.5, tile=8.0))
    told(f"{owner(engine)}.experts.{dtype}", best, model(**best), taken)


def gathered(data: Path, gpus: Mapping[str, str], dtype: str, engine: str) -> None:
    """What tokens spread evenly take on n ranks beyond an n-th of what they take on one, in passes over all tokens'
    vectors at 0.8 of the bandwidth. Kept where quartiles are within some 2.5 times of each other: of kernels that leave
    other ranks' tokens out (CUTLASS, TensorRT-LLM's), not of Triton's, which walk through all pairs."""
    sizes = ("hidden_size", "inter_size", "topk", "num_experts", "num_tokens", "moe_ep_size")

    def key(row: dict[str, Any]) -> tuple[Any, ...] | None:
        whole = row["distribution"] == "balanced" and row["moe_tp_size"] == 1 and "nongated" not in row["kernel_source"]
        many = row["num_tokens"] * row["topk"] >= 128 * row["num_experts"]
        return tuple(row[s] for s in sizes) if whole and many and row["moe_dtype"] in EXPERTS[dtype] else None

    passes = []
    for gpu, preset in gpus.items():
        found, bandwidth = tables(data, gpu, "moe/*/*/moe_perf.parquet", key), hardware.load(preset).bandwidth
        for (h, *rest, tokens, n), by in found.items():
            whole = found.get((h, *rest, tokens, 1))
            one, taken = (chosen(each, engine) for each in (whole or by, by))
            if whole and 1 < n <= 32 and one and taken:
                passes.append((taken - one / n) / (1 - 1 / n) * 0.8 * bandwidth / (2 * tokens * h))
    if passes:
        low, middle, high = np.quantile(passes, (0.25, 0.5, 0.75))
        print(
            f"# {owner(engine)}.experts.{dtype}: gathered = {middle:.3g} ({low:.3g} to {high:.3g}, {len(passes)} sizes)"
        )


def attention(data: Path, gpus: Mapping[str, str], kind: str, dtype: str, engine: str) -> None:
    rows = []

    def key(row: dict[str, Any]) -> tuple[Any, ...] | None:
        if row["beam_width"] != 1 or row.get("window_size") or row["attn_dtype"] != "bfloat16":
            return None
        if not 4 <= row["num_heads"] / row["num_key_value_heads"] <= 16 or row["head_dim"] not in (64, 128):
            return None
        if row["kv_cache_dtype"] != dtype or row["batch_size"] > 512:
            return None
        sizes = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim")
        return tuple(row[size] for size in sizes)

    for gpu, preset in gpus.items():
        card = hardware.load(preset)
        found = tables(data, gpu, f"attention/*/*/{kind}_attention_perf.parquet", key)
        for (batch, tokens, step, heads, kv, width), by in found.items():
            prefill = kind == "context"
            if (tokens if prefill else step + 1) < 64 or (taken := chosen(by, engine)) is None:
                continue
            keys, size = tokens if prefill else step + 1, 1 if dtype == "fp8" else 2
            pairs = batch * heads * (tokens * (tokens + 1) / 2 if prefill else keys)
            read = 2 * batch * keys * kv * width * size + 4 * batch * tokens * heads * width
            peak = card.peaks["bf16"]
            if gpu in CACHES and 2e6 < read < 1.5 * CACHES[gpu]:
                continue
            rows.append((read / card.bandwidth, 4 * width * pairs / peak, pairs / peak, keys, taken))
    if not rows:
        return
    memory_, compute_, score_, depth, taken = columns(rows)

    def model(start_s: float, depth_s: float, memory: float, compute: float, blend: float, score: float) -> Array:
        flops = np.maximum(compute_, score * score_)
        return start_s + depth_s * depth + blended(memory_ / memory, flops / compute, blend)

    start = dict(compute=0.6, memory=0.85, start_s=10e-6, depth_s=1e-9, blend=4.0, score=0.0)
    steps = dict(compute=0.1, memory=0.1, start_s=3e-6, depth_s=1e-9, blend=1.0)
    if kind == "context":
        start["score"], steps["score"] = 300.0, 100.0
    best = fit(model, taken, start, steps)
    name = {"context": "prefill", "generation": "decode"}[kind] + ("-fp8" if dtype == "fp8" else "")
    told(f"{owner(engine)}.attention.{name}", best, model(**best), taken)


def latent(data: Path, gpus: Mapping[str, str], kind: str) -> None:
    rows = []
    for gpu, preset in gpus.items():
        card = hardware.load(preset)
        sizes = ("num_heads", "kv_cache_dtype", "batch_size", "isl", "step")
        found = tables(
            data, gpu, f"mla/*/*/{kind}_mla_perf.parquet",
            lambda row, sizes=sizes: tuple(row[size] for size in sizes),  # type: ignore[misc]
        )  # fmt: skip
        for (heads, dtype, batch, tokens, step), by in found.items():
            if kind == "context" and (dtype != "bfloat16" or tokens < 64):
                continue
            if kind == "generation" and step < 63:
                continue
            keys = tokens if kind == "context" else step + 1
            if kind == "context":
                flops, read = batch * heads * tokens * (tokens + 1) * 320, batch * tokens * heads * (2 * 192 + 256) * 2
            else:
                flops = batch * heads * keys * 2 * 1088
                read = batch * (keys * 576 * (1 if dtype == "fp8" else 2) + heads * 1088 * 2)
            if gpu in CACHES and 2e6 < read < 1.5 * CACHES[gpu]:
                continue
            rows.append((read / card.bandwidth, flops / card.peaks["bf16"], keys, min(by.values())))
    if not rows:
        return
    memory_, compute_, depth, taken = columns(rows)

    def model(start_s: float, depth_s: float, memory: float, compute: float, blend: float) -> Array:
        return start_s + depth_s * depth + blended(memory_ / memory, compute_ / compute, blend)

    start = dict(compute=0.6, memory=0.8, start_s=10e-6, depth_s=1e-9, blend=4.0)
    best = fit(model, taken, start, dict(compute=0.1, memory=0.1, start_s=3e-6, depth_s=1e-9, blend=1.0))
    told("curve.attention.latent_" + {"context": "prefill", "generation": "decode"}[kind], best, model(**best), taken)


def links(data: Path, gpus: Mapping[str, str], name: str) -> None:
    rows = []
    for gpu, preset in gpus.items():
        card = hardware.load(preset)
        if not card.link:
            continue

        def key(row: dict[str, Any]) -> tuple[Any, ...] | None:
            eager = "eager" in f"{row.get('backend')}{row['kernel_source']}"
            return (row["num_gpus"], row["message_size"]) if not eager else None

        if name == "all_reduce":
            found = tables(data, gpu, "comm/*/*/custom_allreduce_perf.parquet", key)
        else:
            one = lambda row: key(row) if row["op_name"] == "alltoall" and row["nccl_dtype"] == "half" else None  # noqa: E731
            found = tables(data, gpu, "comm/nccl/*/nccl_perf.parquet", one)
        for (ranks, size), by in found.items():  # a size is a number of elements, of two bytes
            sent = 2 * size * (ranks - 1) / ranks * (2 if name == "all_reduce" else 1)
            rows.append((sent, ranks, card.link, float(np.median(list(by.values())))))
    if not rows:
        return
    sent_, ranks_, link_, taken = columns(rows)

    def model(start_s: float, rank_s: float, share: float, growth: float, crowd: float) -> Array:
        reached = np.minimum(1, share * (sent_ / 2**20) ** growth * (ranks_ / 2) ** -crowd)
        return start_s + rank_s * (ranks_ - 1) + sent_ / link_ / reached

    start = dict(share=0.3, growth=0.1, start_s=4e-6, rank_s=0.2e-6, crowd=0.0)
    best = fit(model, taken, start, dict(share=0.1, growth=0.05, start_s=1e-6, rank_s=0.2e-6, crowd=0.2))
    told(f"curve.link.{name}", best, model(**best), taken)


def classes(data: Path, gpus: Mapping[str, str]) -> dict[str, Callable[[], None]]:
    """What fits each class."""
    found: dict[str, Callable[[], None]] = {}
    for engine in ("", *ENGINES):
        for dtype in PRODUCTS:
            if not engine or dtype.startswith("fp"):
                found[f"{engine}.matmul.{dtype}"] = partial(products, data, gpus, dtype, engine)
        for dtype in EXPERTS:
            found[f"{engine}.experts.{dtype}"] = partial(experts, data, gpus, dtype, engine)
            found[f"{engine}.gathered.{dtype}"] = partial(gathered, data, gpus, dtype, engine)
    for kind in ("context", "generation"):
        for engine, dtype in product(("", *ENGINES), ("bfloat16", "fp8")):
            if kind == "generation" or dtype == "bfloat16":
                found[f"{engine}.attention.{kind}.{dtype}"] = partial(attention, data, gpus, kind, dtype, engine)
        found[f"latent.{kind}"] = partial(latent, data, gpus, kind)
    for name in ("all_reduce", "all_to_all"):
        found[f"link.{name}"] = partial(links, data, gpus, name)
    return found


def main(argv: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("family", nargs="*", choices=[[], *FAMILIES])
    parser.add_argument("--only", default="", help="classes whose name contains the text")
    asked = parser.parse_args(argv)
    for family in asked.family or FAMILIES:
        print(f"# {family}")
        for name, run in classes(asked.data, FAMILIES[family]).items():
            if asked.only in name:
                run()


if __name__ == "__main__":
    main()
