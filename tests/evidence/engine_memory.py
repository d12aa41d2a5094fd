"""vLLM's start-up logs (tests/data/vllm_memory.json) beside what is predicted, line by line: `python
tests/evidence/engine_memory.py`. GiB; a constant of the version is the same for every model."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

from txcalc import hardware, load
from txcalc.planning.deployment import Deployment, Gpu
from txcalc.planning.engine import Reserve, engine
from txcalc.planning.engine_memory import EngineMemory, profile
from txcalc.planning.layout import Layout
from txcalc.units import parse_bytes

GIB = 2**30
LOGS = json.loads((Path(__file__).parents[1] / "data" / "vllm_memory.json").read_text())["rows"]


def memory_of(row: dict[str, Any]) -> EngineMemory:
    card = hardware.load(row.get("gpu", "h100-sxm"))
    if "memory" in row:  # a card that has no preset
        card = replace(card, name=row["card"].lower(), title=row["card"], memory=parse_bytes(row["memory"]))
    found = profile(f"vllm@{row['version']}")
    assert found
    return EngineMemory(found, card, row["context"], row.get("sequences"), row.get("tokens_step"))


def gpu_of(row: dict[str, Any]) -> Gpu:
    model, memory = load(row["model"], row.get("set")), memory_of(row)
    kept = Reserve(1 - Fraction(str(row["utilization"])), 0, "the log's")
    how = engine(model, row["weights"], reserve=kept, memory=memory)
    return Deployment(model, memory.accelerator, how).fullest(Layout(tp=row["tp"]), row["context"], 1)


def lines(row: dict[str, Any]) -> dict[str, tuple[float, float | None]]:
    """What is predicted of every line of a log, and the log's own; weights with the rotary table that is loaded with
    them."""
    gpu, parts = gpu_of(row), row["parts"]
    rest = gpu.rank.rest
    graphs = rest.get("CUDA graphs") or memory_of(row).graphs
    found = {"weights": gpu.weights + rest["rotary table"], "activations": gpu.peak}
    found |= {"outside torch": rest["outside torch"], "graphs": graphs, "cache": gpu.pool}
    told = {**parts, "cache": row.get("pool")}
    compared = {name: (size / GIB, told.get(name)) for name, size in found.items()}
    tokens = gpu.cache_tokens(row["context"])
    return {**compared, "tokens": (float(tokens or 0), row.get("tokens"))}


def ratio(row: dict[str, Any]) -> float | None:
    """The cache that is predicted over the log's."""
    found = lines(row)
    pairs = (found[name] for name in ("cache", "tokens"))
    return next((ours / theirs for ours, theirs in pairs if theirs), None)


if __name__ == "__main__":
    for each in LOGS:
        print(
            "vLLM",
            each["version"],
            each["model"],
            each.get("gpu", each.get("card")),
            f"tp {each['tp']}:",
            each["source"],
        )
        for name, (ours, theirs) in lines(each).items():
            print(f"  {name:14}{ours:14,.2f}" + (f"{theirs:14,.2f}{ours / theirs - 1:+9.1%}" if theirs else ""))
    errors = [abs(found - 1) for each in LOGS if (found := ratio(each)) is not None]
    print(f"cache: {sum(e <= 0.04 for e in errors)} of {len(errors)} within 4 %, median {median(errors):.1%}")
