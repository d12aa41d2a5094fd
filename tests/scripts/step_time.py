"""Measured training speeds beside predicted ones: `python tests/scripts/step_time.py [SOURCE …] [--rows | --cells]`.

For each source (models with experts by themselves) and accelerator: rows, the median of predicted ÷ measured seconds,
the median and the 90th percentile of the absolute error, and how many floors are above the measurement (none may be).
No number is fitted to these rows: shares come from measurements of kernels. But what nanotron's measured bandwidth is
of, and which of its runs waited, was decided with its rows in view (`BETWEEN`, `WAITS`). Data: `tests/data/training/`.
`--cells`: for each model and number of nodes of nanotron's playbook, the first layout of a search that was measured,
and its speed over that of the fastest that was.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import median
from typing import NamedTuple

import utilisation as published
from msgspec.structs import replace

from txcalc import hardware, load
from txcalc.errors import InputError
from txcalc.planning.machine import Machine, Nccl
from txcalc.planning.training import Layout, Ranks, Recipe, memory
from txcalc.planning.training.search import Search
from txcalc.planning.training.step import Step, StepTimer

described, sold_as = cache(load), cache(hardware.load)  # a thousand rows are of a dozen models and machines


class Row(NamedTuple):
    """A measured step: predicted from the recipe and the machine alone."""

    source: str
    what: str
    seconds: float
    model: str
    recipe: Recipe
    machine: Machine

    def plan(self) -> Ranks:
        return memory(described(self.model), self.recipe)

    def step(self, plan: Ranks) -> Step:
        return StepTimer(described(self.model), self.recipe, self.machine).step(plan)


@cache
def rows() -> tuple[Row, ...]:
    return (*foundry(), *nanotron(), *megatron(), *torchtitan())


def foundry() -> Iterator[Row]:
    """Composer with FSDP. DEFAULT: weights in fp32, gathered in 16 bits, gradients reduced in fp32; PURE: all bf16.
    FlashAttention in Triton (tests/scripts/train/benchmarking/submit_benchmarks.py: --attn_impl), and its cross-entropy
    (llm-foundry 8c8dd48, models/mpt/modeling_mpt.py: loss_fn = "fused_crossentropy")."""
    for row in published.rows("llm-foundry.csv"):
        gpus, micro, batch, tokens = (int(row[key]) for key in ("gpus", "micro_batch", "global_batch", "tokens"))
        pure = row["precision"] == "bf16"
        recipe = Recipe(
            Layout(fsdp=gpus),
            micro_batch=micro,
            accumulation=max(1, batch // micro // gpus),
            tokens=tokens,
            recompute=row["recompute"],
            parameter="bf16" if pure else "fp32",
            reduce="bf16" if pure else "fp32",
            attention="flash1",
            fused_loss=True,
        )
        products = "fp8" if row["precision"] == "amp_fp8" else "bf16"
        what = f"{row['model']} {row['gpu']}:{gpus} T={tokens} mbs={micro}"
        seconds = recipe.global_batch * tokens / float(row["tokens_s"]) / gpus
        machine = Machine.of(sold_as(row["gpu"]), products=products)
        yield Row("llm-foundry", what, seconds, published.mpt(row["model"], tokens), recipe, machine)


# What an all-reduce of 1 GiB between so many nodes of the playbook's cluster reached, in GB/s (bus bandwidth, the mean
# of its jobs): assets/data/benchmarks/pp_comm_bandwidth.html, which its training runs measured first (trainer.py,
# measure_bandwidth), one group of all GPUs. On eight nodes and more that is a quarter or less of what their network
# cards give: it is read as what one group reaches, whether it has one GPU of a node or eight, and not as what a node's
# cards are worth. Which reading is right was seen in these rows: predicted ÷ measured on 16 nodes is then 0.77 to 0.85
# for tp = 2, 4 and 8 as on four nodes (0.74 to 0.78), and with the other 1.03 to 1.08.
BETWEEN = {1: 435.97, 2: 361.75, 4: 160.14, 8: 99.56, 16: 84.74, 32: 64.93, 64: 32.94}


# The playbook's branch says of every tensor between stages first how large it is, in two messages, and looks every
# 0.1 s whether each has gone, or has come (nanotron 67c5ebb6, nouamane/bench2: p2p.py, _send_meta, _recv_meta).
# Forward has two tensors, hidden states and the mask; backward has the first one's gradient (models/llama.py, the
# decoder's PipelineBlock). Runs before that commit of 27 December 2024 did not wait; which ones is not published. Of
# these rows 95 of 96 pipelines on 64 nodes took about as long as with the waits, most on 1 to 16 nodes did not, and on
# 32 some did.
WAITS = 4 * 0.1, 2 * 0.1


@cache
def cluster(gpus: int) -> Machine:
    """The playbook's, where a job on so many GPUs runs."""
    nodes = max(1, gpus // 8)
    machine = replace(Machine.of(sold_as("h100-sxm")), library=Nccl(busbw=BETWEEN[nodes] * 1e9))
    return replace(machine, waits=WAITS) if nodes == 64 else machine


def nanotron() -> Iterator[Row]:
    for row in published.rows("nanotron.csv"):
        tp, pp, dp, zero, micro, accumulation = (
            int(row[key]) for key in ("tp", "pp", "dp", "zero", "micro_batch", "accumulation")
        )
        recipe = Recipe(
            Layout(tp=tp, sp=tp, pp=pp, dp=dp),
            micro_batch=micro,
            accumulation=accumulation,
            framework="nanotron",
            zero=zero if dp > 1 else 0,
        )
        what = f"{row['model']} tp={tp} pp={pp} dp={dp} zero={zero} mbs={micro}"
        seconds = recipe.global_batch * 4096 / float(row["tokens_s"]) / recipe.layout.gpus
        machine = cluster(recipe.layout.gpus)
        yield Row("nanotron", what, seconds, published.NANOTRON[row["model"]], recipe, machine)


def megatron() -> Iterator[Row]:
    """SC'21 and Korthikanti: no fused attention, no gradient of a layer hidden, and of SC'21 nothing at all, as
    Megatron-LM summed no input's gradient beside another before cf7efd4f (August 2021); the fastest schedules. Bridge:
    what is said, no recomputation, a fused loss (067f987d, models/gpt_provider.py: cross_entropy_loss_fusion) and
    gradients in 16 bits (perf_recipes/_common.py: grad_reduce_in_fp32)."""
    for row in published.rows("megatron.csv"):
        old = row["source"] != "megatron-bridge"
        sizes = ("gpus", "tp", "pp", "dp", "cp", "ep", "vpp", "sp", "tokens", "micro_batch", "global_batch")
        gpus, tp, pp, dp, cp, ep, vpp, sp, tokens, micro, batch = (int(row[key]) for key in sizes)
        stages = None
        if row["model"] == "llama-3.1-405b" and pp > 1:  # embedding and loss take the place of a layer each
            per_stage = 128 // (pp * vpp)  # (recipes/llama: account_for_embedding_in_pipeline_split, …_loss_…)
            stages = (per_stage - 1, *[per_stage] * (pp * vpp - 2), per_stage - 1)
        recipe = Recipe(
            Layout(tp=tp, sp=tp if sp or not old else 1, pp=pp, vpp=vpp, dp=dp, cp=cp, ep=ep),
            micro_batch=micro,
            accumulation=batch // micro // dp,
            tokens=tokens,
            recompute=row["recompute"] or "none",
            framework="megatron",
            schedule="interleaved" if vpp > 1 else "1f1b",
            zero=0 if old or dp * cp == 1 else 1,
            keep_scores=old,
            fused_loss=not old,
            gradient="fp16" if old else "bf16",
            stages=stages,
        )
        precision = row["precision"].lower()
        products = next((name for name in ("fp8", "fp4") if name in precision), "bf16")
        machine = Machine.of(sold_as(row["gpu"]), products=products, overlap=row["source"] != "sc21")
        seconds = measured(row, recipe, gpus)
        what = f"{row['model'][:24]} {row['gpu']}:{gpus} {recipe.layout} mbs={micro} {row['precision']}"
        yield Row(row["source"], what, seconds, row["model"], recipe, machine)


def torchtitan() -> Iterator[Row]:
    """Compiled, blocks computed again, on H100s of 2.4 TB/s (of 500 W, which is not modelled). Torch's own attention
    is FlashAttention-2, and torchtitan let nothing faster be chosen beside context parallelism (9dec370,
    distributed/utils.py, get_train_context); later versions of torch choose cuDNN's first."""
    accelerator = replace(sold_as("h100-sxm"), bandwidth=2_400_000_000_000)
    for row in published.rows("torchtitan.csv"):
        sizes = ("fsdp", "tp", "pp", "cp", "tokens", "micro_batch", "accumulation")
        fsdp, tp, pp, cp, tokens, micro, accumulation = (int(row[key]) for key in sizes)
        recipe = Recipe(
            Layout(fsdp=fsdp, tp=tp, sp=tp, pp=pp, cp=cp),
            micro_batch=micro,
            accumulation=accumulation,
            tokens=tokens,
            recompute="blocks",
            attention="flash2",
        )
        seconds = recipe.global_batch * tokens / float(row["tokens_s"]) / recipe.layout.gpus
        machine = Machine.of(accelerator, products=row["precision"])
        what = f"{row['model']} h100-sxm {recipe.layout} T={tokens} {row['precision']}"
        yield Row("torchtitan", what, seconds, row["model"], recipe, machine)


def measured(row: dict[str, str], recipe: Recipe, gpus: int) -> float:
    """Seconds of a step: printed, or from tokens per second, or from Megatron's equation 3 at the printed TFLOP/s."""
    if row["step_s"]:
        return float(row["step_s"])
    tokens = recipe.global_batch * recipe.tokens
    if row["tokens_s"]:
        return tokens / float(row["tokens_s"]) / gpus
    _, utilised = published.counted(row["model"], "megatron", recipe.tokens, "blocks", 1)
    return tokens * utilised.hfu / (float(row["tflops"]) * 1e12) / gpus


@dataclass(frozen=True)
class Verdict:
    """A row's prediction over its measurement."""

    row: Row
    plan: Ranks
    step: Step

    @property
    def ratio(self) -> float:
        return self.step.seconds / self.row.seconds

    @cached_property
    def floor(self) -> float:
        return self.step.floor / self.row.seconds


def judged(source: str | None = None) -> tuple[list[Verdict], list[str]]:
    """Every row that can be predicted, and why others cannot."""
    verdicts, refused = [], []
    for row in rows():
        if source in (None, row.source):
            try:
                plan = row.plan()
                verdicts.append(Verdict(row, plan, row.step(plan)))
            except InputError as error:
                refused.append(f"{row.what}: {error}")
    return verdicts, refused


def summary(verdicts: list[Verdict]) -> str:
    errors = sorted(abs(verdict.ratio - 1) for verdict in verdicts)
    over = sum(verdict.floor > 1 for verdict in verdicts)
    ninth = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    middle = median(verdict.ratio for verdict in verdicts)
    error = f"error mean {sum(errors) / len(errors):.1%}, median {median(errors):.1%}, p90 {ninth:.1%}"
    return f"{len(verdicts)} rows, predicted ÷ measured {middle:.3f}, {error}, {over} floors above"


def cells() -> None:
    measured: dict[tuple[str, str, int], dict[Recipe, float]] = {}
    for row in nanotron():
        if row.recipe.global_batch == 256:
            cell = row.what.split()[0], row.model, row.recipe.layout.gpus
            measured.setdefault(cell, {})[row.recipe] = row.seconds
    shares = []
    for (name, model, gpus), seconds_of in measured.items():
        base, kept = Recipe(framework="nanotron"), frozenset({"framework", "recompute"})
        best = Search(described(model), base, cluster(gpus), gpus, 256, kept).run().best
        first = next((estimate.recipe for estimate in best if estimate.recipe in seconds_of), None)
        shares.append(min(seconds_of.values()) / seconds_of[first] if first else 0.0)
        what = f"{first.layout} zero={first.zero} mbs={first.micro_batch}" if first else "none was measured"
        print(f"{name}, nodes: {gpus // 8}: {shares[-1]:.2f}  {what}")
    print(f"{sum(share >= 0.9 for share in shares)} of {len(shares)} at 0.90 or more of the fastest that was measured")


def main(argv: list[str]) -> None:
    if "--cells" in argv:
        return cells()
    words = [word for word in argv if not word.startswith("--")]
    verdicts, refused = judged(words[0] if words else None)
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        dense = "" if verdict.row.recipe.layout.ep == 1 else " experts"
        name = verdict.row.machine.accelerator.name
        for title in (f"{verdict.row.source}{dense}", f"{verdict.row.source}{dense} {name}"):
            groups.setdefault(title, []).append(verdict)
    for name, group in sorted(groups.items()):
        print(f"{name}: {summary(group)}")
    print(f"{len(refused)} rows cannot be laid out" + (f", the first: {refused[0]}" if refused else ""))
    if "--rows" in argv:
        for verdict in verdicts:
            print(f"{verdict.ratio:6.3f} {verdict.floor:6.3f}  {verdict.row.what}")


if __name__ == "__main__":
    main(sys.argv[1:])
