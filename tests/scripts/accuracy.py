"""How far predictions are from measurements, as the tables of docs/limits.md: `python tests/scripts/accuracy.py`.

An error is |predicted / measured − 1|. A cell has the median of a group's rows, and in brackets what nine rows in ten
stay within. The scripts that predict each row (`servers.py`, `llamacpp.py`, `engine_memory.py`, `step_time.py`,
`train_memory.py`) print the rows themselves, and say where they are from.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import engine_memory
import llamacpp
import servers
import step_time
import train_memory

from txcalc import hardware

ENGINES = {"sglang": "SGLang", "trtllm": "TensorRT-LLM", "vllm": "vLLM"}
FEWEST = 10  # rows of a group that is shown
LOADS = {
    "c <= 4": "1 to 4 requests in flight",
    "c 5-32": "5 to 32",
    "c 33-128": "33 to 128",
    "c > 128": "more than 128",
}
STEPS = {
    "llm-foundry": "fsdp2 (llm-foundry)",
    "torchtitan": "fsdp2 (torchtitan)",
    "megatron-bridge": "megatron (Megatron-Bridge)",
    "korthikanti": "megatron (Korthikanti et al. 2022)",
    "sc21": "megatron (Narayanan et al. 2021)",
    "nanotron": "nanotron (Ultra-Scale Playbook, 1B and 3B)",
}


def typical(ratios: Sequence[float]) -> str:
    """The median error, and what nine in ten are within."""
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    ninth = errors[min(len(errors) - 1, 9 * len(errors) // 10)]
    return f"{percent(median(errors))} ({percent(ninth)})"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1f} %"


def bias(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f}"


def table(headings: str, rows: Iterable[Sequence[object]], words: int) -> str:
    """A Markdown table; the first `words` columns are texts, the others numbers."""
    names = headings.split("|")
    lines = [names, ["---"] * words + ["---:"] * (len(names) - words), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def serving() -> str:
    """`deploy`: TTFT, TPOT and throughput of measured servers, by card and engine, kind of model, and load."""
    groups: dict[tuple[str, str], list[Mapping[str, float]]] = defaultdict(list)
    for server in servers.gather(servers.rows())[0]:
        card = servers.KEYS["gpu"](server.row).partition("_")[0].upper()
        kind = {"dense": "dense", "experts": "MoE"}[servers.KEYS["kind"](server.row)]
        load = LOADS[servers.KEYS["band"](server.row)]
        for group in (
            (card, ENGINES[servers.KEYS["engine"](server.row)]),
            ("all", kind),
            ("all", load),
            ("all", "all"),
        ):
            groups[group].append(server.ratios)
    order = [*sorted(group for group in groups if group[0] != "all")]
    order += [("all", name) for name in ("dense", "MoE", *LOADS.values(), "all")]
    rows = [
        (*group, len(cells), *(typical([ratios[figure] for ratios in cells]) for figure in ("TPOT", "TTFT", "tokens")))
        for group in order
        if len(cells := groups[group]) >= FEWEST
    ]
    return table("GPU|engine or subset|servers|TPOT|TTFT|tokens/s per GPU", rows, 2)


def laptops() -> str:
    """`deploy` and `fit` with llama.cpp: speeds by card."""
    groups: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for file, version in (("consumer.csv", llamacpp.VERSION), ("hopper.csv", llamacpp.NEWEST)):
        for row in llamacpp.rows(file):
            card = hardware.load(row["gpu"])
            name = card.title.replace("NVIDIA ", "").replace("GeForce ", "").removesuffix(" SXM")
            name = f"{row['number']} × {name}" if row["number"] > 1 else name
            ratio = llamacpp.rate(llamacpp.pace(row, card, version), row["what"], row["tokens"]) / row["rate"]
            groups[name, row["model"]]["prompt" if row["what"] == "prompt" else "decode"].append(ratio)
    rows = [
        (*group, len(ratios["prompt"]) + len(ratios["decode"]), typical(ratios["decode"]), typical(ratios["prompt"]))
        for group, ratios in groups.items()
    ]
    return table("hardware|model|runs|decode|prefill", rows, 2)


def engine() -> str:
    """`deploy --engine vllm`: each line of vLLM's start-up logs."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for rows, logs in ((engine_memory.swept(), "0.19 on H100"), (engine_memory.LOGS, "0.2 to 0.27, other cards")):
        for row in rows:
            lines = engine_memory.lines(row)
            for name in ("weights", "activations", "graphs", "cache"):
                predicted, measured = lines[name] if name != "cache" or lines[name][1] else lines["tokens"]
                if measured:
                    groups[logs, {"graphs": "CUDA graphs", "cache": "KV cache"}.get(name, name)].append(
                        predicted / measured
                    )
    return table("vLLM|memory|logs|error", ((*group, len(rows), typical(rows)) for group, rows in groups.items()), 2)


def steps() -> str:
    """`train`: the time of a step, by framework and card."""
    groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for verdict in step_time.judged()[0]:
        row = verdict.row
        kind = "dense" if row.recipe.layout.ep == 1 else "MoE"
        if row.source == "nanotron":
            nodes = max(1, row.recipe.layout.gpus // 8)
            kind = "dense, 1 to 4 nodes" if nodes <= 4 else "dense, 8 to 32 nodes" if nodes <= 32 else "dense, 64 nodes"
        card = row.machine.accelerator.name.upper().removesuffix("-SXM").replace("-", " ")
        groups[STEPS[row.source], card, kind].append(verdict.ratio)
    titles = list(STEPS.values())
    order = sorted(groups, key=lambda group: (titles.index(group[0]), group[2] == "MoE", group[1]))
    rows = [(*group, len(groups[group]), typical(groups[group]), bias(groups[group])) for group in order]
    return table("framework and source|GPU|models|runs|error of step time|predicted / measured", rows, 3)


def training() -> str:
    """`train`: peak memory of a GPU, by framework."""
    with train_memory.DATA.open() as file:
        runs = list(csv.DictReader(file))
    deep = "nanotron, more micro-batches than stages"
    sources = {
        "megatron": (train_memory.megatron, "B200", "allocated"),
        deep: (train_memory.sane, "H100", "reserved"),
        "nanotron, others": (train_memory.sane, "H100", "reserved"),
        "litgpt, LoRA and QLoRA": (train_memory.litgpt, "A100", "allocated"),
    }
    groups: dict[str, list[float]] = {title: [] for title in sources}
    for run in runs:
        title = next(title for title in sources if title.startswith(run["framework"]))
        if title == deep and int(run["accumulation"]) <= int(run["pp"]):
            title = "nanotron, others"
        groups[title] += [predicted / measured for predicted, measured in sources[title][0](run)]
    rows = [
        (title, *sources[title][1:], len(ratios), typical(ratios), bias(ratios)) for title, ratios in groups.items()
    ]
    return table("framework|GPU|memory|runs|error|predicted / measured", rows, 3)


TABLES = (serving, laptops, engine, steps, training)

if __name__ == "__main__":
    for function in TABLES:
        print(f"{function.__doc__}\n\n{function()}\n")
