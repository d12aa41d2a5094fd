"""Layouts of many models against PyTorch's own sharding: `python tests/scripts/layouts.py [FIRST [LAST]] [--keep]`.

A line for each case: the figures compared, how many differ, seconds. Worlds to 1,024 ranks that do and do not divide,
models to 405B and DeepSeek-V3, every schedule. Exit code 1 where anything differs. `--keep` writes what PyTorch has of
each rank into `tests/data/training/layouts.json`, with which quick tests compare the planner.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from tiny import TINY

from txcalc import load
from txcalc.planning.training import Layout, Recipe
from txcalc.questions.phrases import adapters
from txcalc.sources import build

if TYPE_CHECKING:
    from txcalc.model import Model
    from txcalc.verification.verdict import Verdict

SMALL = "D=64 L=4 h=8 h_kv=4 F=96 V=250"
ODD = "D=72 L=3 h=9 h_kv=3 F=99 V=251"
PLAIN = "D=64 L=3 h=8 F=256 V=250 plain ln bias learned=128"
TIED = SMALL + " tied"

CASES: list[tuple[str, Layout, dict[str, Any]]] = [
    *((SMALL, Layout(fsdp=n), {"micro_batch": 2}) for n in (2, 3, 7, 16, 250, 256, 1024)),
    *((ODD, Layout(fsdp=n), {}) for n in (2, 5, 73, 100)),
    *((PLAIN, Layout(fsdp=n), {}) for n in (2, 3, 65)),
    *((TIED, Layout(fsdp=n), {}) for n in (4, 251)),
    (SMALL, Layout(fsdp=4, dp=2), {}),
    (SMALL, Layout(fsdp=3, dp=5), {}),
    (SMALL, Layout(fsdp=4, cp=2), {}),
    (SMALL, Layout(cp=4), {}),
    (SMALL, Layout(fsdp=4), {"reshard": False}),
    (SMALL, Layout(fsdp=4), {"parameter": "bf16"}),
    (SMALL, Layout(fsdp=4), {"reduce": "bf16"}),
    (SMALL, Layout(fsdp=4), {"optimizer": "sgd"}),
    (SMALL, Layout(fsdp=4), {"optimizer": "sgd-momentum"}),
    (SMALL, Layout(), {"parameter": "bf16"}),
    (SMALL, Layout(), {"compute": "fp32"}),
    *((SMALL, Layout(tp=n), {"parameter": "bf16"}) for n in (2, 4)),
    *((SMALL, Layout(tp=n, sp=n), {"parameter": "bf16"}) for n in (2, 4)),
    (SMALL, Layout(tp=4, sp=4), {"parameter": "bf16", "loss_parallel": False}),
    (SMALL, Layout(tp=2), {"parameter": "bf16", "optimizer": "sgd-momentum"}),
    (ODD, Layout(tp=3, sp=3), {"parameter": "bf16"}),
    (TIED, Layout(tp=2, sp=2), {"parameter": "bf16"}),
    *((SMALL, Layout(tp=2, sp=2, fsdp=n), {}) for n in (2, 3, 32)),
    (SMALL, Layout(tp=4, sp=4, fsdp=256), {}),
    (SMALL, Layout(tp=2, fsdp=3), {}),
    (SMALL, Layout(tp=2, sp=2, fsdp=2, dp=2), {}),
    (SMALL, Layout(tp=2, sp=2, fsdp=2, dp=2), {"loss_parallel": False}),
    (ODD, Layout(tp=3, sp=3, fsdp=4), {}),
    (TIED, Layout(tp=2, sp=2, fsdp=2), {}),
    *((SMALL, Layout(pp=2, fsdp=2), {"accumulation": 4, "schedule": s}) for s in ("gpipe", "1f1b", "zb")),
    (SMALL, Layout(pp=4, fsdp=3), {"accumulation": 6}),
    (SMALL, Layout(pp=2, vpp=2, fsdp=2), {"accumulation": 4, "schedule": "interleaved"}),
    (SMALL, Layout(pp=2, fsdp=2), {"accumulation": 4, "schedule": "zbv"}),
    (SMALL, Layout(pp=2, fsdp=2), {"accumulation": 4, "schedule": "dualpipev"}),
    (SMALL, Layout(pp=2, tp=2, sp=2, fsdp=2), {"accumulation": 4}),
    (TIED, Layout(pp=2, tp=2, sp=2, fsdp=2), {"accumulation": 4}),
    (ODD, Layout(pp=3, fsdp=2), {"accumulation": 3}),
    (SMALL, Layout(fsdp=3), {"recompute": "blocks", "micro_batch": 2}),
    (SMALL, Layout(fsdp=3), {"recompute": "core"}),
    (SMALL, Layout(tp=2, fsdp=2), {"recompute": "blocks"}),
    (SMALL, Layout(tp=2, sp=2, fsdp=2), {"recompute": "every:2"}),
    (SMALL, Layout(pp=2, fsdp=2), {"recompute": "layers:0,3", "accumulation": 4}),
    ("gpt2", Layout(fsdp=8), {"recompute": "blocks"}),
    ("bert-base", Layout(fsdp=6), {"recompute": "blocks"}),
    ("gemma-2-9b", Layout(tp=2, sp=2, fsdp=2), {"recompute": "blocks"}),
    ("deepseek-v3", Layout(fsdp=256), {"recompute": "blocks"}),
    ("gpt2", Layout(fsdp=8), {}),
    ("gpt2", Layout(fsdp=48), {}),
    ("bert-base", Layout(fsdp=6), {}),
    ("t5-small", Layout(fsdp=4), {}),
    ("vit-b", Layout(fsdp=8), {}),
    ("llama-3.1-8b", Layout(fsdp=8), {}),
    ("llama-3.1-8b", Layout(fsdp=1024), {}),
    ("llama-3.1-8b", Layout(tp=8, sp=8, fsdp=8), {}),
    ("llama-3.1-8b", Layout(tp=8, sp=8, fsdp=128), {}),
    ("qwen3-8b", Layout(tp=4, sp=4, fsdp=4), {}),
    ("qwen2.5-7b", Layout(tp=4, sp=4, fsdp=3), {}),
    ("mistral-7b", Layout(tp=8, sp=8, fsdp=2), {}),
    ("gemma-3-27b", Layout(fsdp=16), {}),
    ("mixtral-8x7b", Layout(fsdp=16), {}),
    ("deepseek-v3", Layout(fsdp=256), {}),
    ("mamba-2.8b", Layout(fsdp=8), {}),
    ("vit-b", Layout(tp=2, fsdp=2), {}),
]

# What ranks of tp join or share out beside heads and columns: statistics and norms over all heads, gates and slopes of
# each head, a draft's embedding, vectors of each layer, several streams; and weights that nothing trains.
MECHANISMS = (
    "diffllama", "bitnet", "gemma4", "gemma4-moe", "gemma3n", "olmo2", "bloom", "laguna", "afmoe", "channel-delta",
    "eagle3", "eagle", "predictor", "esmc", "roformer", "esm", "mamba2", "minimax", "olmo-hybrid", "cohere", "hy-v4",
)  # fmt: skip
EXPERTS = SMALL + " E=8 k=2"
# tp, sp, dp, fsdp, ep, etp: beside dp; over the ranks of tp; over more and over fewer; each expert on several ranks.
SPREAD = (
    (1, 1, 2, 2, 2, None), (1, 1, 3, 4, 2, None),
    (2, 2, 1, 2, 2, None), (4, 4, 1, 3, 2, None), (2, 1, 1, 3, 2, None), (2, 2, 1, 1, 2, None),
    (2, 2, 1, 4, 4, None), (2, 1, 1, 4, 4, None), (2, 2, 2, 4, 8, None),
    (1, 1, 1, 4, 2, 2), (2, 2, 1, 4, 2, 2), (2, 1, 1, 4, 2, 4), (4, 4, 1, 2, 2, 1), (2, 2, 2, 2, 1, 1),
)  # fmt: skip
SIXTEEN = SMALL + " E=16 k=2"
CASES += [
    # Stacked experts that the ranks do not divide, and more ranks than experts, which share out the rows of each.
    *((SIXTEEN, Layout(fsdp=n), {}) for n in (3, 9, 32)),
    (SIXTEEN, Layout(fsdp=5, dp=2), {}),
    (SIXTEEN, Layout(fsdp=10, ep=2), {}),
    (SIXTEEN, Layout(tp=2, sp=2, fsdp=3, dp=2), {"recompute": "blocks"}),
    (SIXTEEN, Layout(tp=2, sp=2, fsdp=6, ep=4), {}),
    (SIXTEEN, Layout(fsdp=12, ep=2, etp=2), {}),
    (SIXTEEN, Layout(pp=2, fsdp=9), {"accumulation": 2}),
    ("mixtral-8x7b", Layout(fsdp=3), {}),
    ("gpt-oss-20b", Layout(tp=4, sp=4, fsdp=5), {}),
    *(
        (EXPERTS, Layout(tp=t, sp=s, dp=d, fsdp=n, ep=e, etp=w), {} if n > 1 else {"parameter": "bf16"})
        for t, s, d, n, e, w in SPREAD
    ),
    (EXPERTS, Layout(tp=2, sp=2, fsdp=4, ep=4), {"recompute": "blocks"}),
    (EXPERTS, Layout(tp=2, sp=2, fsdp=4, ep=2, etp=2), {"recompute": "blocks"}),
    (EXPERTS, Layout(tp=2, fsdp=4, ep=4), {"recompute": "blocks"}),
    (EXPERTS, Layout(pp=2, tp=2, sp=2, fsdp=2, ep=4), {"accumulation": 4}),
    ("glm-4.5-air", Layout(tp=2, sp=2, fsdp=8, ep=16), {}),
    ("glm-4.5-air", Layout(tp=2, fsdp=8, ep=16), {}),
    ("glm-4.5-air", Layout(tp=4, sp=4, fsdp=4, ep=4), {}),
    ("deepseek-v3", Layout(tp=4, sp=4, fsdp=32, dp=2, ep=64), {}),
    ("deepseek-v3", Layout(tp=4, sp=4, fsdp=32, ep=32, etp=4), {"recompute": "blocks"}),
    ("mixtral-8x7b", Layout(tp=4, sp=4, fsdp=8, dp=2, ep=8), {}),
    ("gpt-oss-20b", Layout(tp=4, sp=4, fsdp=8, ep=8, etp=2), {}),
    *((EXPERTS, Layout(fsdp=n, ep=e), {}) for n, e in ((2, 2), (8, 2), (6, 2), (8, 8), (256, 8))),
    (EXPERTS, Layout(fsdp=4, ep=2), {"recompute": "blocks"}),
    (EXPERTS, Layout(pp=2, fsdp=4, ep=2), {"accumulation": 4}),
    (EXPERTS, Layout(tp=2), {"parameter": "bf16"}),
    (EXPERTS, Layout(tp=4, sp=4, fsdp=3), {}),
    (EXPERTS, Layout(tp=2, sp=2, fsdp=2), {"recompute": "blocks"}),
    ("mixtral-8x7b", Layout(tp=8, sp=8, fsdp=4), {}),
    ("mixtral-8x7b", Layout(fsdp=64, ep=8), {}),
    ("qwen3-30b-a3b", Layout(fsdp=32, ep=16), {}),
    ("gpt-oss-20b", Layout(tp=4, sp=4, fsdp=8), {}),
    ("jamba-v0.1", Layout(tp=4, sp=4, fsdp=4), {}),
    ("mamba-2.8b", Layout(tp=4, sp=4, fsdp=4), {}),
    ("deepseek-v3", Layout(tp=8, sp=8, fsdp=16), {}),
    ("deepseek-v3", Layout(fsdp=128, ep=64), {}),
    ("llama-3.1-405b", Layout(tp=8, sp=8, fsdp=128), {}),
    ("llama-3.1-405b", Layout(tp=8, sp=8, pp=2, fsdp=4), {"accumulation": 2, "recompute": "blocks"}),
    ("albert-base-v2", Layout(fsdp=4), {}),  # layers that share their weights
    ("albert-base-v2", Layout(fsdp=4), {"reshard": False}),
    ("albert-base-v2", Layout(tp=2), {"parameter": "bf16"}),
    ("albert-base-v2", Layout(tp=2, fsdp=2), {"recompute": "blocks"}),
    ("albert-base-v2", Layout(pp=2, fsdp=2), {"accumulation": 2}),
    ("albert-base-v2", Layout(tp=2, sp=2, fsdp=2), {}),  # tables beside the tokens', and a head's own product
    ("bert-base", Layout(tp=3, sp=3, fsdp=2), {"micro_batch": 2}),
    ("gpt2", Layout(tp=2, sp=2, fsdp=2), {"recompute": "blocks"}),
    ("gpt2", Layout(tp=2, sp=2), {"parameter": "bf16"}),
    ("palm-8b", Layout(tp=4, sp=4, fsdp=4), {}),  # parallel branches with one norm: each gathers and saves its result
    ("palm-8b", Layout(tp=2, fsdp=2), {}),
    ("falcon-40b", Layout(tp=4, sp=4, fsdp=2), {}),
    *((f"tiny {name}", Layout(tp=2, sp=2, fsdp=2), {}) for name in MECHANISMS),
    *(("tiny jetmoe", Layout(fsdp=n), {}) for n in (2, 8)),
]
# Adapters beside frozen weights: all of one dtype, or each with its own. Those of experts are stacks of their own, of
# which a rank of few rows may have none. A frozen table has no gradient, nor have the positions and norms of the ends.
FEW, ALL = " --lora r=4,targets=q+v", " --lora r=6,targets=all"
MIXED = {"frozen": "bf16", "adapter": "fp32"}
CASES += [
    *((SMALL + FEW, Layout(fsdp=n), {"micro_batch": 2}) for n in (3, 16, 1024)),
    *((SMALL + ALL, Layout(fsdp=n), MIXED) for n in (2, 7, 256)),
    (SMALL + ALL, Layout(fsdp=3), {"frozen": "fp32", "adapter": "bf16"}),
    (SMALL + ALL, Layout(fsdp=3), {"parameter": "bf16", "adapter": "fp32", "optimizer": "sgd-momentum"}),
    *((SMALL + ALL, Layout(fsdp=3), MIXED | {"recompute": way}) for way in ("blocks", "core", "every:2")),
    (SMALL + FEW, Layout(fsdp=4), MIXED | {"reshard": False}),
    (SMALL + ALL, Layout(fsdp=2, dp=2), MIXED),
    (SMALL + FEW, Layout(fsdp=2, cp=2), MIXED),
    (SMALL + ALL, Layout(), {"parameter": "bf16"}),
    (SMALL + ALL, Layout(tp=2), {"parameter": "bf16"}),
    (SMALL + FEW, Layout(tp=4, sp=4), {"parameter": "bf16"}),
    (SMALL + ALL, Layout(tp=4, sp=4), {"parameter": "bf16", "loss_parallel": False}),
    (SMALL + FEW, Layout(tp=2, fsdp=3), MIXED),
    (SMALL + ALL, Layout(tp=2, sp=2, fsdp=3), MIXED),
    (SMALL + ALL, Layout(tp=2, sp=2, fsdp=2, dp=2), MIXED | {"recompute": "blocks"}),
    (ODD + ALL, Layout(tp=3, sp=3, fsdp=4), MIXED),
    (TIED + ALL, Layout(fsdp=251), MIXED),
    (TIED + FEW, Layout(tp=2, sp=2, fsdp=2), MIXED),
    (PLAIN + ALL, Layout(fsdp=65), MIXED),
    (PLAIN + ALL, Layout(tp=2, sp=2, fsdp=2), MIXED),
    (SMALL + ALL, Layout(pp=2, fsdp=2), MIXED | {"accumulation": 4}),
    (SMALL + ALL, Layout(pp=4, fsdp=3), MIXED | {"accumulation": 6, "recompute": "blocks"}),
    (SMALL + FEW, Layout(pp=2, vpp=2, fsdp=2), MIXED | {"accumulation": 4, "schedule": "interleaved"}),
    (SMALL + FEW, Layout(pp=2, fsdp=2), MIXED | {"accumulation": 4, "schedule": "zbv"}),
    (SMALL + ALL, Layout(pp=2, tp=2, sp=2, fsdp=2), MIXED | {"accumulation": 4}),
    *((EXPERTS + ALL, Layout(fsdp=n), MIXED) for n in (2, 8, 16)),
    (SIXTEEN + ALL, Layout(fsdp=32), MIXED),
    (EXPERTS + FEW, Layout(fsdp=8, ep=8), MIXED),
    *((EXPERTS + ALL, Layout(fsdp=n, ep=e), MIXED) for n, e in ((2, 2), (4, 2), (8, 2))),
    (EXPERTS + ALL, Layout(fsdp=4, ep=2, etp=2), MIXED),
    (EXPERTS + ALL, Layout(tp=2, sp=2, fsdp=2), MIXED),
    (EXPERTS + ALL, Layout(tp=2, sp=2, fsdp=2, ep=2), MIXED),
    (EXPERTS + ALL, Layout(tp=2, fsdp=4, ep=4), MIXED | {"recompute": "blocks"}),
    (EXPERTS + ALL, Layout(tp=2, sp=2, fsdp=4, ep=2, etp=2), MIXED),
    (EXPERTS + ALL, Layout(pp=2, tp=2, sp=2, fsdp=2, ep=4), MIXED | {"accumulation": 4}),
    ("gpt2" + ALL, Layout(fsdp=8), MIXED),
    ("albert-base-v2" + ALL, Layout(tp=2, fsdp=2), MIXED),
    ("gemma-2-9b" + ALL, Layout(tp=2, sp=2, fsdp=2), MIXED),
    ("mamba-2.8b" + ALL, Layout(fsdp=8), MIXED),
    ("llama-3.1-8b --lora r=16,targets=all", Layout(fsdp=8), MIXED),
    ("llama-3.1-8b --lora r=16,targets=q+v", Layout(tp=8, sp=8, fsdp=8), MIXED),
    ("llama-3.1-405b --lora r=16,targets=all", Layout(tp=8, sp=8, fsdp=16), MIXED | {"recompute": "blocks"}),
    ("mixtral-8x7b --lora r=16,targets=all", Layout(fsdp=64, ep=8), MIXED),
    ("gpt-oss-20b --lora r=16,targets=all", Layout(tp=4, sp=4, fsdp=8), MIXED),
    ("deepseek-v3 --lora r=16,targets=all", Layout(fsdp=128, ep=64), MIXED),
    ("deepseek-v3 --lora r=16,targets=all", Layout(tp=4, sp=4, fsdp=32, ep=32, etp=4), MIXED | {"recompute": "blocks"}),
]
# Muon of the blocks' matrices, beside AdamW of all others.
CASES += [
    (SMALL, Layout(fsdp=3), {"optimizer": "muon"}),
    (TIED, Layout(fsdp=4, dp=2), {"optimizer": "muon"}),
    (SMALL, Layout(tp=2), {"parameter": "bf16", "optimizer": "muon"}),
    (SMALL, Layout(tp=2, sp=2, fsdp=3), {"optimizer": "muon", "recompute": "blocks"}),
    (SMALL, Layout(pp=2, fsdp=2), {"optimizer": "muon", "accumulation": 4}),
    (SMALL + ALL, Layout(fsdp=3), MIXED | {"optimizer": "muon"}),
    ("gpt2", Layout(fsdp=8), {"optimizer": "muon"}),
    ("llama-3.1-8b", Layout(fsdp=8), {"optimizer": "muon"}),
]


KEPT = Path(__file__).parents[2] / "tests" / "data" / "training" / "layouts.json"


def model_of(source: str) -> Model:
    """A model by its source, perhaps with adapters, or a tiny one by its name."""
    name, _, lora = source.removeprefix("tiny ").partition(" --lora ")
    return build(TINY[name], name) if source.startswith("tiny ") else load(name, adapters(lora or None)[0])


def title(source: str, layout: Layout, more: dict[str, Any]) -> str:
    """A case in words."""
    return f"{source} | {layout} | {', '.join(f'{key}={value}' for key, value in more.items())}"


def keep(case: str, verdict: Verdict) -> None:
    """What was measured of each rank, by quantity, a line for each case."""
    found: dict[str, dict[str, int]] = {}
    for row in verdict.rows:
        if row.path.startswith("rank "):
            found.setdefault(row.path.removeprefix("rank "), {})[row.quantity] = row.measured
    kept = {**json.loads(KEPT.read_text()), case: found} if KEPT.is_file() else {case: found}
    lines = (f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in kept.items())
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main(first: int = 0, last: int = len(CASES), *, kept: bool = False) -> int:
    from txcalc.verification.layouts import verify_layout

    wrong = figures = 0
    for number, (source, layout, more) in list(enumerate(CASES))[first:last]:
        start = time.time()
        tokens = 32 * layout.sp * layout.cp
        verdict = verify_layout(
            model_of(source), Recipe(layout, tokens=tokens, **more), ranks=2, affine=number % 8 == 0
        )
        figures, wrong = figures + len(verdict.rows), wrong + len(verdict.failures)
        said = ", ".join(f"{key}={value}" for key, value in more.items())
        print(f"{number:3} {source[:32]:32} {layout!s:24} {said[:32]:32} {len(verdict.rows):4} figures, "
              f"{len(verdict.failures)} differ, {time.time() - start:.0f} s", flush=True)  # fmt: skip
        if kept and verdict.ok:
            keep(title(source, layout, more), verdict)
        for row in verdict.failures:
            print(f"      {row.path} {row.quantity}: predicted {row.predicted:,}, measured {row.measured:,}")
    print(f"{last - first} cases, {figures:,} figures, {wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument != "--keep"]
    raise SystemExit(main(*numbers, kept="--keep" in sys.argv))
