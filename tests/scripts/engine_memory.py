"""vLLM's start-up logs (tests/data/vllm_memory.json) beside what is predicted, line by line: `python
tests/scripts/engine_memory.py`. GiB; a constant of the version is the same for every model."""

from __future__ import annotations

import csv
import json
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

from msgspec.structs import replace

from txcalc import hardware, load
from txcalc.planning.layout import Layout
from txcalc.planning.serving.deployment import Gpu, Planner
from txcalc.planning.serving.engine import Reserve, engine
from txcalc.planning.serving.engine_memory import EngineMemory
from txcalc.planning.serving.engine_profiles import profile
from txcalc.units import parse_bytes

GIB = 2**30
DATA = Path(__file__).parents[2] / "tests" / "data"
LOGS = json.loads((DATA / "vllm_memory.json").read_text())["rows"]
SWEEP_SOURCE = "github.com/jgchn/llm-d-planner (a95e9f6), accuracy/results/v0.19.0/results_raw.csv: 49 models on H100"


def swept() -> list[dict[str, Any]]:
    """Logs of one sweep over models and layouts on H100, all of vLLM 0.19.0 with a context of 8,192."""
    names = {"weights": "loaded", "activations": "activations", "outside torch": "outside", "graphs": "graphs"}
    with (DATA / "vllm_memory.csv").open() as file:
        return [
            {
                "source": SWEEP_SOURCE,
                "version": "0.19",
                "gpu": "h100-sxm",
                "context": 8192,
                "model": row["model"],
                "weights": row["weights"],
                "utilization": row["utilization"],
                "tp": int(row["tp"]),
                "pp": int(row["pp"]),
                "parts": {name: float(row[key]) for name, key in names.items()},
                "pool": float(row["pool"]),
            }
            for row in csv.DictReader(file)
        ]


def memory_of(row: dict[str, Any]) -> EngineMemory:
    card = hardware.load(row.get("gpu", "h100-sxm"))
    if "memory" in row:  # a card that has no preset
        card = replace(card, name=row["card"].lower(), title=row["card"], memory=parse_bytes(row["memory"]))
    engine_profile = profile(f"vllm@{row['version']}")
    assert engine_profile
    return EngineMemory(engine_profile, card, row["context"], row.get("sequences"), row.get("tokens_step"))


def gpu_of(row: dict[str, Any]) -> Gpu:
    model, memory = load(row["model"], row.get("set")), memory_of(row)
    kept = Reserve(1 - Fraction(str(row["utilization"])), 0, "the log's")
    how = engine(model, row["weights"], reserve=kept, memory=memory)
    return Planner(model, memory.accelerator, how).fullest(
        Layout(tp=row["tp"], pp=row.get("pp", 1), ep=row.get("ep", 1)), row["context"], 1
    )


def lines(row: dict[str, Any]) -> dict[str, tuple[float, float | None]]:
    """What is predicted of every line of a log, and the log's own; weights with the rotary table that is loaded with
    them."""
    gpu, parts = gpu_of(row), row["parts"]
    rest = gpu.rank.overheads
    graphs = rest.get("CUDA graphs") or gpu.rank.graphs
    predicted = {"weights": gpu.weights + rest["rotary table"], "activations": gpu.peak}
    predicted |= {"outside torch": rest["outside torch"], "graphs": graphs, "cache": gpu.pool}
    logged = {**parts, "cache": row.get("pool")}
    compared = {name: (size / GIB, logged.get(name)) for name, size in predicted.items()}
    tokens = gpu.cache_tokens(row["context"])
    return {**compared, "tokens": (float(tokens or 0), row.get("tokens"))}


def ratio(row: dict[str, Any]) -> float | None:
    """The cache that is predicted over the log's."""
    by_line = lines(row)
    pairs = (by_line[name] for name in ("cache", "tokens"))
    return next((ours / theirs for ours, theirs in pairs if theirs), None)


if __name__ == "__main__":
    for log in (every := [*LOGS, *swept()]):
        print(
            "vLLM",
            log["version"],
            log["model"],
            log.get("gpu", log.get("card")),
            f"tp {log['tp']} pp {log.get('pp', 1)}:",
            log["source"],
        )
        for name, (ours, theirs) in lines(log).items():
            print(f"  {name:14}{ours:14,.2f}" + (f"{theirs:14,.2f}{ours / theirs - 1:+9.1%}" if theirs else ""))
    errors = [abs(quotient - 1) for log in every if (quotient := ratio(log)) is not None]
    print(f"cache: {sum(e <= 0.04 for e in errors)} of {len(errors)} within 4 %, median {median(errors):.1%}")
