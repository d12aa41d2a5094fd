"""Published utilisations beside those that txcalc computes from the same rates: `python tests/scripts/utilisation.py`.

A line for each source: how many rows, the largest and the median difference. Data: `tests/data/training/`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from txcalc import hardware, load
from txcalc.model import Model
from txcalc.planning.training import Layout, Recipe, memory
from txcalc.planning.utilisation import utilisation

DATA = Path(__file__).parents[2] / "tests" / "data" / "training"
MPT = {  # width, layers, heads: llm-foundry (8c8dd48), tests/scripts/train/yamls/pretrain
    "mpt-125m": (768, 12, 12),
    "mpt-350m": (1024, 24, 16),
    "mpt-760m": (1536, 24, 12),
    "mpt-1b": (2048, 24, 16),
    "mpt-3b": (2560, 32, 20),
    "mpt-7b": (4096, 32, 32),
    "mpt-13b": (5120, 40, 40),
    "mpt-30b": (7168, 48, 56),
    "mpt-70b": (8192, 80, 64),
}
NANOTRON = {  # huggingface/nanotron, tests/scripts/scaling_benchmarks.py of the playbook
    "1B": "D=2048 L=16 h=32 h_kv=32 F=8192 gated V=131072 tied",
    "3B": "D=3072 L=28 h=32 h_kv=32 F=8192 V=131072 tied",
    "8B": "D=4096 L=32 h=32 h_kv=32 F=14336 V=131072 untied",
    "80B": "D=8192 L=80 h=64 h_kv=64 F=28672 V=131072 untied",
}
GPT = "D={width} L={layers} h={heads} F={inner} V=51200 plain ln bias learned=2048 tied"


class Figure(NamedTuple):
    """One published number and ours, in the same unit."""

    source: str
    what: str
    published: float
    ours: float

    @property
    def off(self) -> float:
        return abs(self.ours - self.published)


@cache
def counted(source: str, name: str, tokens: int, recompute: str, pp: int) -> tuple[Model, Any]:
    """The utilisation at one token a second of a peak of one: FLOPs per token."""
    model = load(source)
    (entry,) = utilisation(model, model.ledger(1, tokens), 1.0, 1.0, recompute, pp, names=(name,))
    return model, entry


def rows(name: str) -> Iterator[dict[str, str]]:
    with (DATA / name).open() as file:
        yield from csv.DictReader(file)


def mpt(name: str, tokens: int) -> str:
    width, layers, heads = MPT[name]
    return f"D={width} L={layers} h={heads} F={4 * width} V=50368 plain ln bias learned={tokens} tied"


def foundry() -> Iterator[Figure]:
    """MFU and HFU in percent, by llm-foundry's own convention, over the dense peak of the products' dtype. The printed
    rate lacks its fraction, half a token a second on average, with which both were computed (061f2c7c,
    tests/scripts/train/benchmarking/collect_results.py: 'Throughput (T/s/GPU)': int(…))."""
    for row in rows("llm-foundry.csv"):
        model, entry = counted(
            mpt(row["model"], int(row["tokens"])), "llm-foundry", int(row["tokens"]), row["recompute"], 1
        )
        assert model.params == int(row["params"]), row
        peak = hardware.load(row["gpu"]).peak("fp8" if row["precision"] == "amp_fp8" else "bf16")
        scale = 100 * (float(row["tokens_s"]) + 0.5) / peak
        what = f"{row['model']} {row['gpu']}:{row['gpus']} T={row['tokens']}"
        yield Figure("llm-foundry MFU", what, float(row["mfu"]), entry.mfu * scale)
        yield Figure("llm-foundry HFU", what, float(row["hfu"]), entry.hfu * scale)


def nanotron() -> Iterator[Figure]:
    peak = hardware.load("h100-sxm").peak("bf16")
    for row in rows("nanotron.csv"):
        if not row["mfu"]:
            continue
        _, entry = counted(NANOTRON[row["model"]], "nanotron", 4096, "none", int(row["pp"]))
        what = f"{row['model']} tp={row['tp']} pp={row['pp']} dp={row['dp']}"
        yield Figure("nanotron MFU", what, float(row["mfu"]), 100 * entry.mfu * float(row["tokens_s"]) / peak)


def bridge() -> Iterator[Figure]:
    """TFLOP/s from the printed tokens per second, in percent of the printed TFLOP/s."""
    for row in rows("megatron.csv"):
        if row["source"] == "megatron-bridge":
            _, entry = counted(row["model"], "megatron-lm", int(row["tokens"]), "none", 1)
            ours = entry.mfu * float(row["tokens_s"]) / 1e12
            what = f"{row['model']} {row['gpu']}:{row['gpus']}"
            yield Figure("Megatron-Bridge TFLOP/s, %", what, 100.0, 100 * ours / float(row["tflops"]))


def papers() -> Iterator[Figure]:
    """Utilisations in percent and GPU-hours that papers print, from the rates that they print."""
    _, palm = counted("palm-540b", "palm", 2048, "none", 1)
    yield Figure(
        "PaLM MFU", "238.3K tokens/s, 6,144 TPU v4 of 275 TFLOP/s", 46.2, 100 * palm.mfu * 238_300 / 6144 / 275e12
    )
    turing = GPT.format(width=20_480, layers=105, heads=128, inner=4 * 20_480)
    rate = 65_430 / 2240 / 312e12
    for name, published in (("6n", 29.7), ("palm", 30.2)):
        _, entry = counted(turing, name, 2048, "none", 1)
        yield Figure("MT-NLG MFU", f"65.43K tokens/s, 2,240 A100, as {name}", published, 100 * entry.mfu * rate)
    # "BF16 MFU of 38-43 %": TFLOP/s are printed to tens, so that 400 may be 405.
    yield Figure("Llama 3 MFU", "430 TFLOP/s of 989 (8,192 GPUs)", 43, 100 * 430 / 989)
    yield Figure("Llama 3 MFU", "400 TFLOP/s of 989 (16,384 GPUs)", 41, 100 * 400 / 989)
    _, llama = counted("llama-3.1-405b", "llama-3", 8192, "none", 1)
    yield Figure("Llama 3 FLOPs, 1e25", "405 B on 15.6 T tokens", 3.8, float(llama.flops_per_token) * 15.6e12 / 1e25)
    yield Figure("LLaMA-65B GPU-hours, thousands", "1.4 T tokens at 380 per second", 1022.362, 1.4e12 / 380 / 3600e3)
    hours = 14.8 * 180
    yield Figure("DeepSeek-V3 GPU-hours, thousands", "14.8 T tokens at 180K H800 hours a trillion", 2664, hours)


def zero() -> Iterator[Figure]:
    """Rajbhandari et al. 2020 (arXiv 1910.02054), figure 1: states of 7.5 B parameters in mixed precision on each of 64
    ranks, by what is shared; here of a model of about that size, each parameter's bytes times 7.5 B."""
    model = load(GPT.format(width=4096, layers=36, heads=32, inner=16_384))
    for stage, published in enumerate((120, 31.4, 16.6, 1.9)):
        recipe = Recipe(Layout(dp=64), framework="deepspeed", zero=stage, tokens=64)
        state_bytes = sum(memory(model, recipe).fullest.state)
        yield Figure("ZeRO figure 1, GB", f"stage {stage}", published, 7.5 * state_bytes / model.params)


# Narayanan et al. 2021 (arXiv 2104.04473), table 2: width, layers, heads, GPUs, TFLOP/s, days for 300 B tokens.
DAYS = [
    *((12_288, 96, 96, *row) for row in ((384, 144, 90), (768, 88, 74), (1536, 44, 74))),
    *((20_480, 105, 128, *row) for row in ((640, 138, 169), (1120, 98, 137), (2240, 48, 140))),
    *((12_288, 96, 96, *row) for row in ((384, 153, 84), (768, 149, 43), (1536, 141, 23))),
    *((20_480, 105, 128, *row) for row in ((560, 171, 156), (1120, 167, 80), (2240, 159, 42))),
]


def days() -> Iterator[Figure]:
    for width, layers, heads, gpus, teraflops, published in DAYS:
        source = GPT.format(width=width, layers=layers, heads=heads, inner=4 * width)
        _, entry = counted(source, "megatron", 2048, "blocks", 1)
        seconds = 300e9 * entry.hfu / (gpus * teraflops * 1e12)
        yield Figure("Megatron days", f"{gpus} GPUs at {teraflops} TFLOP/s", published, seconds / 86_400)


def all_figures() -> list[Figure]:
    return [*foundry(), *nanotron(), *bridge(), *days(), *zero(), *papers()]


def main() -> None:
    groups: dict[str, list[Figure]] = {}
    for figure in all_figures():
        groups.setdefault(figure.source, []).append(figure)
    for source, figures in groups.items():
        worst = max(figures, key=lambda entry: entry.off)
        if len(figures) > 4:
            line = f"median {median(entry.off for entry in figures):.3f}, largest {worst.off:.3f} ({worst.what})"
            print(f"{source}: {len(figures)} rows, {line}")
        else:
            for entry in figures:
                print(f"{source}: {entry.published} published, {entry.ours:.4g} ours ({entry.what})")


if __name__ == "__main__":
    main()
