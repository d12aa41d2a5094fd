"""Predicted and measured memory of training runs: `python tests/scripts/train_memory.py [--rows]`.

Every row of `tests/data/training/memory.csv` is predicted from its model, layout and recipe alone. The rules are read
off the frameworks' sources, but for what nanotron's rows of 1B and 3B chose: that a stage may end at just its share of
the cost, and how long steps tell that a pipeline's hosts waited (`WAITED`). Its figures are of these rows too, and of
each size by itself. Columns are predicted less measured, in per cent.

megatron   the fullest rank's max_memory_allocated, SimuMax's runs of Megatron-LM 0.14 with Transformer Engine on B200
nanotron   what rank 0 reserved, as the playbook plots it: the benchmark writes rank 0's counters down after the third
           step, and sets them back behind every backward, so that what was allocated at most is not among them
           (nanotron 67c5ebb6: helpers.py log_throughput, create_table_log; trainer.py training_step; logging.py)
sane       of these runs, those whose step took at most twice what is predicted: others waited, most of them for their
           pipeline's messages, which later code looks for every 0.1 s (p2p.py, _send_meta)
litgpt     max_memory_allocated of LoRA on one A100 (resource-tables.md), at Alpaca's longest example
fits       of nanotron's: whether a layout is possible and fits an H100 exactly where the run did not fail (which may
           have other reasons than memory)
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from txcalc import hardware, load
from txcalc.errors import InputError
from txcalc.model import Model
from txcalc.planning.machine import Machine
from txcalc.planning.training import Layout, Ranks, Recipe, memory, profiles
from txcalc.planning.training.stages import Pipeline
from txcalc.planning.training.step import StepTimer
from txcalc.sources import build

DATA = Path(__file__).parents[2] / "tests" / "data" / "training" / "memory.csv"
NANOTRON = {
    "1B": "D=2048 L=16 h=32 F=8192 gated V=131072 tied", "3B": "D=3072 L=28 h=32 F=8192 V=131072 tied",
    "8B": "D=4096 L=32 h=32 F=14336 V=131072", "80B": "D=8192 L=80 h=64 F=28672 V=131072",
}  # fmt: skip
LITGPT = {"Llama 2 7 B": "llama-2-7b", "Llama 2 13 B": "llama-2-13b"}
SANE = 2
WAITED = 1.5  # times the predicted step; of 1B and of 3B alone any from 1.3 to 1.6 does as well
H100 = hardware.load("h100-sxm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="every row too")
    parser.add_argument("--data", type=Path, default=DATA, help="another table of the same columns")
    options = parser.parse_args()
    with options.data.open() as file:
        rows = list(csv.DictReader(file))
    runs_of = {"megatron": megatron, "nanotron": nanotron, "sane": sane, "litgpt": litgpt}
    for name, runs in runs_of.items():
        errors = [
            (100 * (predicted / measured - 1), row)
            for row in rows
            if row["framework"] == ("nanotron" if name == "sane" else name)
            for predicted, measured in runs(row)
        ]
        report(name, errors, options.rows)
        sizes = {row["model"] for _, row in errors} if name in ("nanotron", "sane") else ()
        for size in sorted(sizes):
            report(size.rsplit("-", 1)[-1].rjust(9), [error for error in errors if error[1]["model"] == size], False)
    tried = [row for row in rows if row["framework"] == "nanotron"]
    fits(tried)


def report(name: str, errors: list[tuple[float, dict[str, str]]], every: bool) -> None:
    if every:
        for error, row in errors:
            print(f"  {error:+6.2f} % {' '.join(f'{key}={value}' for key, value in row.items() if value)}")
    if errors:
        sizes = sorted(abs(error) for error, _ in errors)
        ninth = sizes[min(len(sizes) - 1, 9 * len(sizes) // 10)]
        print(
            f"{name:9} {len(errors):5} rows: median {statistics.median(sizes):.2f} %, p90 {ninth:.2f} %, worst "
            f"{sizes[-1]:.2f} %; signed median {statistics.median(error for error, _ in errors):+.2f} %"
        )


def fits(rows: list[dict[str, str]]) -> None:
    """Runs whose prediction is on the same side of the capacity as they were; a run may fail for other reasons."""
    right = {"ran": 0, "failed": 0}
    total = {"ran": 0, "failed": 0}
    for row in rows:
        plan = planned(row)
        total[row["outcome"]] += 1
        fitting = plan is not None and plan.fullest.reserved <= H100.memory
        right[row["outcome"]] += fitting == (row["outcome"] == "ran")
    if total["ran"]:
        sums = sum(right.values()), sum(total.values())
        counts = ", ".join(f"{kind} {right[kind]} of {total[kind]}" for kind in total)
        print(f"fits      {sums[1]:5} rows: right in {sums[0]} ({100 * sums[0] / sums[1]:.1f} %): {counts}")


def megatron(row: dict[str, str]) -> Iterator[tuple[int, float]]:
    plan = planned(row)
    if plan is not None and row["memory"]:
        yield plan.fullest.allocated, max(map(float, row["memory"].split())) * 2**20


def nanotron(row: dict[str, str]) -> Iterator[tuple[int, float]]:
    plan = planned(row)
    if plan is not None and row["memory"]:
        yield first(plan, longer(plan, row) > WAITED), float(row["memory"]) * 2**30


def sane(row: dict[str, str]) -> Iterator[tuple[int, float]]:
    plan = planned(row)
    if plan is not None and row["memory"] and 0 < longer(plan, row) <= SANE:
        yield from nanotron(row)


def first(plan: Ranks, waited: bool) -> int:
    """Reserved by rank 0, whose counters the benchmark writes down. Where hosts waited for a pipeline's messages, the
    device was done with the forwards that warm up when the next one was issued, which then took what they had lent."""
    rank = next(rank for rank in plan.ranks if rank.rank == 0)
    pieces, before = Pipeline(plan.model, plan.recipe).of_stage(0), plan.recipe.layout.pp - 1
    if waited and before:
        first_saved = rank.bytes["saved"] if sum(rank.in_flight) > before else 0
        less, lent = (profiles.queued_bytes(plan.recipe, pieces, rounds) for rounds in (before, before + 1))
        rank = replace(rank, collective_bytes=rank.collective_bytes - lent + max(0, less - first_saved))
    return rank.reserved


def longer(plan: Ranks, row: dict[str, str]) -> float:
    """A step's measured time over the predicted one; 0 where its speed is not known."""
    speed = speeds().get(key(row, "mbs"))
    return StepTimer(plan.model, plan.recipe, Machine.of(H100)).step(plan).tokens_s / speed if speed else 0.0


def key(row: dict[str, str], micro: str) -> tuple[str, ...]:
    model = row["model"].rsplit("-", 1)[-1]
    return (model, *(row[name] for name in ("tp", "pp", "dp", "zero", micro, "accumulation")))


@cache
def speeds() -> dict[tuple[str, ...], float]:
    """Measured tokens per second and GPU."""
    with (DATA.parent / "nanotron.csv").open() as file:
        return {key(row, "micro_batch"): float(row["tokens_s"]) for row in csv.DictReader(file)}


def litgpt(row: dict[str, str]) -> Iterator[tuple[int, float]]:
    """LoRA of rank 8 on q and v, all in bf16; quantised matrices as said."""
    if row["kind"] == "Finetuning with LoRA on 1 GPU" and row["memory"]:
        form = {"None": "bf16", "bnb.nf4": "nf4", "bnb.nf4-dq": "nf4-dq"}[row["weights"]]
        recipe = Recipe(micro_batch=int(row["mbs"]), tokens=int(row["seq"]), framework="litgpt", frozen=form)
        model = load(LITGPT[row["model"]], {"lora.rank": 8})
        assert model.ledger().by_kind("params")["adapters"] == int(row["trainable"])
        yield memory(model, recipe).fullest.allocated, float(row["memory"]) * 1e9


def planned(row: dict[str, str]) -> Ranks | None:
    number = {key: int(row[key]) for key in ("tp", "pp", "dp", "cp", "ep", "zero", "seq", "mbs", "accumulation")}
    axes = {key: number[key] for key in ("tp", "pp", "dp", "cp", "ep")}
    layout = Layout(sp=number["tp"], **axes)
    options: dict[str, Any] = {"zero": number["zero"] if layout.dp * layout.cp > 1 else 0}
    if row["framework"] == "megatron":
        options |= {"fused_loss": True, "context": "ulysses"}  # --cross-entropy-fusion-impl te, --cp-comm-type a2a
    recipe = Recipe(layout, number["mbs"], number["accumulation"], number["seq"], framework=row["framework"], **options)
    try:
        return memory(model_of(row["framework"], row["model"], row["layers"], number["tp"]), recipe)
    except InputError:  # more stages than layers: such runs failed, and nothing is predicted of them
        return None


@cache
def model_of(framework: str, name: str, layers: str, tp: int) -> Model:
    if framework == "nanotron":
        return load(NANOTRON[name.rsplit("-", 1)[-1]])
    multiple = 128 * tp

    def padded(vocab: int) -> int:  # as Megatron-LM pads it
        return -(-vocab // multiple) * multiple

    if name == "llama3-70b":
        return load(f"D=8192 L={layers} h=64 h_kv=8 F=28672 V={padded(128256)}")
    if name == "llama3-405b":  # with 16 key/value heads, as these runs had it
        return load(f"D=16384 L={layers} h=128 h_kv=16 F=53248 V={padded(128256)}")
    return build(deepseek(int(layers), name, padded), name)


def deepseek(layers: int, name: str, padded: Any) -> dict[str, Any]:
    """DeepSeek-V2 or V3, cut to so many layers, the first of them dense."""
    v2 = name == "deepseekv2"
    experts: dict[str, Any] = {"n_experts": 160, "top_k": 6, "d_ff": 1536, "n_shared": 2}
    if not v2:
        experts = {"n_experts": 256, "top_k": 8, "d_ff": 2048, "n_shared": 1}
    return {
        "d_model": 5120 if v2 else 7168,
        "n_layers": layers,
        "vocab_size": padded(102400 if v2 else 129280),
        "pattern": ["dense", *["sparse"] * (layers - 1)],
        "latent": {"n_heads": 128, "q_rank": 1536, "kv_rank": 512, "d_nope": 128, "d_rope": 64, "d_v": 128},
        "feed_forward": {"d_ff": 12288 if v2 else 18432, "gated": True},
        "experts": experts,
        "layer": {"dense": {"parts": ["attention", "feed_forward"]}, "sparse": {"parts": ["attention", "experts"]}},
    }


if __name__ == "__main__":
    main()
