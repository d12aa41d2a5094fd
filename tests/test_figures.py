"""What the planners say of many runs, and the parts of tiny models of every kind, number by number: a formula that
gives another figure is seen, and is meant.

Nothing here says that a figure is right; what other tests compare (measured servers, PyTorch's own bytes, closed forms)
does. These say which figures a change of formulas moves. `pytest tests/test_figures.py --update-golden` keeps them as
they are now (also after a key is added to the JSON); `tests/snapshot.py` says what moved in which file.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from command import typed
from tiny import TINY

from txcalc.ledger import walk
from txcalc.model import Model
from txcalc.parts.part import Composite, Workload
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.sources import build
from txcalc.sources.huggingface import describe

GOLDEN = Path(__file__).parent / "golden" / "figures.json"
DENSE = "D=512 L=8 h=8 h_kv=4 F=1376 V=32000"
MIXED = "D=512 L=8 h=8 h_kv=4 F=352 V=32000 E=16 k=2"
RUN = "--gpu h100-sxm --tokens 2048"
SERVE = "--gpu"
LINES = [
    # Training: frameworks, layouts, schedules, what is computed again, optimizers, hosts.
    *(f"train '{DENSE}' {RUN} {rest}" for rest in (
        "--layout dp=8 --global-batch 64",
        "--layout dp=8 --zero 1 --framework deepspeed --micro-batch 2 --global-batch 64",
        "--layout dp=8 --zero 2 --framework deepspeed --offload optimizer --global-batch 64",
        "--layout dp=8 --zero 3 --framework deepspeed --global-batch 16 --recompute blocks",
        "--layout fsdp=8 --framework fsdp2 --global-batch 64 --offload activations",
        "--layout fsdp=4,dp=2,tp=2 --framework fsdp2 --global-batch 64 --recompute core --products fp8",
        "--layout tp=4,sp=4,pp=2,dp=2 --framework megatron --global-batch 64 --schedule 1f1b --zero 1",
        "--layout tp=2,pp=4,vpp=2,dp=2 --framework megatron --global-batch 64 --schedule interleaved",
        "--layout pp=4,dp=2 --framework megatron --global-batch 64 --schedule zb --recompute every:2",
        "--layout pp=2,dp=2 --framework megatron --global-batch 64 --schedule dualpipev",
        "--layout pp=4 --framework megatron --global-batch 64 --schedule zbv --optimizer adamw-8bit",
        "--layout cp=4,dp=2 --framework megatron --global-batch 64 --optimizer muon",
        "--layout tp=2,pp=2,dp=2 --framework nanotron --global-batch 32 --zero 1",
        "--layout pp=2 --framework nanotron --global-batch 32 --schedule gpipe --recipe parameter=bf16",
        "--layout dp=2 --framework litgpt --micro-batch 4 --global-batch 64 --optimizer adafactor",
        "--lora r=16,targets=all --layout dp=2 --global-batch 16",
        "--gpu h100-sxm:8@2 --compute 1e21 --deadline 30d --budget 1M --fits-on --as palm --measured 400TFLOPS",
        "--gpu h100-sxm:8 --train-tokens 1T",
        "--gpu h100-sxm:8 --tokens 64k --offload activations --global-batch 32",
        "--layout cp=4 --framework megatron --global-batch 16 --recipe context=allgather --recompute blocks",
        "--layout cp=2,fsdp=4 --global-batch 16 --recipe context=ulysses,keep_scores=on --recompute core",
        "--layout dp=4 --framework deepspeed --zero 1 --offload optimizer+activations --global-batch 16",
        "--layout tp=4,sp=4,dp=2 --framework nanotron --global-batch 16 --recipe keep_scores=on",
        "--layout tp=2,dp=2 --framework megatron --global-batch 16 --recipe parameter=fp32,fused_loss=on",
        "--layout tp=2,fsdp=3,dp=2 --global-batch 24 --set V=32001 --recipe loss_parallel=off",
        "--layout fsdp=4,dp=2 --global-batch 64 --node 4 --network 25GB --no-overlap --rank 5 --optimizer sgd",
        "--layout tp=2,pp=2 --framework megatron --global-batch 16 --offload optimizer --host-link 20GB --rank 3",
        "--layout tp=2,pp=4 --global-batch 16 --recipe stages=2+3+2+1,eager=on,reshard=off,attention=flash2 --node 2",
        "--layout fsdp=4 --gpu a100-80gb-sxm:4@2 --train-tokens 10B --pue 1.2 --grid 300 --recompute layers:0,2",
        "--layout dp=2 --lora r=8,targets=q+v,base=nf4-dq,dtype=fp32 --framework litgpt --global-batch 8",
        "--layout tp=2,sp=2,cp=2 --global-batch 8 --optimizer lion --recipe gradient=fp32,reduce=bf16 --as 6n",
    )),
    *(f"train '{MIXED}' {RUN} {rest}" for rest in (
        "--layout ep=8,dp=8 --framework megatron --global-batch 64 --zero 1",
        "--layout ep=4,fsdp=8 --framework fsdp2 --global-batch 64",
        "--layout tp=2,ep=2,pp=2,dp=2 --framework megatron --global-batch 64 --recompute blocks",
        "--layout dp=4 --framework nanotron --global-batch 64",
        "--layout ep=4,dp=8 --framework megatron --global-batch 64 --recompute every:2 --zero 1",
        "--layout ep=2,cp=2,dp=2 --framework megatron --global-batch 64 --recipe keep_scores=on --recompute core",
        "--gpu h100-sxm:4 --global-batch 16",
    )),
    f"train t5-small {RUN} --layout tp=2,dp=2 --global-batch 32",
    f"train t5-small {RUN} --layout fsdp=2 --global-batch 32 --recompute blocks",
    f"train mamba-130m {RUN} --layout dp=4 --global-batch 32",
    "train gpt2 --gpu a100-80gb-sxm --layout tp=2,pp=2,dp=2 --global-batch 32 --framework megatron --node 2",
    # Serving: engines, formats, loads, pools, drafts, adapters, hosts.
    *(f"deploy '{DENSE}' {SERVE} {rest}" for rest in (
        "h100-sxm --context 8k",
        "h100-sxm --engine vllm --concurrency 32 --prompt 1000 --answer 200 --tp 2",
        "h100-sxm --engine sglang --concurrency 8 --prompt 500..1500 --answer 100±20 --tp 1",
        "h100-sxm --engine trtllm --concurrency 64 --prompt 1000 --answer 200 --dp 2 --tp 1",
        "h100-sxm --engine vllm --rate 5/s --prompt 1000 --answer 200 --prefix-hits 30% --tp 1",
        "h100-sxm --rate 5/s --prompt 1000 --answer 200 --shared-prefix 300 --tp 1 --simulate --requests 200",
        "h100-sxm --weights int4 --kv fp8 --concurrency 4 --pp 2 --tp 1 --price 2",
        "h100-sxm --weights fp8 --engine vllm --concurrency 16 --draft 3 --acceptance 70% --tp 1",
        "h100-sxm --engine vllm --adapters 4 --adapter-rank 16 --concurrency 16 --tp 1",
        "h100-sxm --concurrency 16 --ttft 200ms --tpot 20ms --context 4k",
        "h100-sxm:8 --disaggregate 2 --concurrency 32 --prompt 1000 --answer 200 --tp 1",
        "rtx-4090 --engine llama.cpp --weights Q4_K_M --prompt 500 --answer 100",
        "rtx-4090 --engine llama.cpp --weights Q8_0 --ram 64GB@40GB@2TFLOPS --gpu-layers 4 --pcie 20GB/s",
        "h100-sxm:8 --tp 8 --node 4 --network 25GB --concurrency 4 --set h_kv=8 --block 32 --chunk 512 --kv int8",
        "h100-sxm --engine vllm --max-num-seqs 64 --reserve 4GiB --rate 3/s --burstiness 4 --prompt 900 --answer 50",
        "h100-sxm:2 --dp 2 --tp 1 --rate 5/s --prompt 1000 --answer 200 --kv fp8 --weights fp8 --engine vllm",
        "h100-sxm --engine vllm --adapters 4 --adapter-rank 64 --concurrency 3 --prompt 400 --answer 200 --tp 1",
        "rtx-4090:2 --pp 2 --tp 1 --engine llama.cpp --weights Q8_0 --ram 64GB@40GB --gpu-layers 5 --context 2k",
        "h100-sxm --simulate --requests 80 --concurrency 6 --seed 3 --prompt 200..900 --answer 60 --tp 1",
        "h100-sxm:4@2 --disaggregate auto --rate 2/s --prompt 2000 --answer 100 --tp 1 --ttft 1s --tpot 50ms",
    )),
    *(f"deploy '{MIXED}' {SERVE} {rest}" for rest in (
        "h100-sxm --engine vllm --concurrency 32 --prompt 1000 --answer 200 --tp 1 --ep 1",
        "h100-sxm:8 --ep 8 --dp 8 --tp 1 --concurrency 256 --prompt 1000 --answer 200",
        "rtx-4090 --engine llama.cpp --weights Q4_K_M --ram 64GB@40GB --n-cpu-moe 4",
        "h100-sxm --weights mxfp4 --engine sglang --concurrency 12 --prompt 300 --answer 40 --tp 2 --dp 2 --ep 4",
    )),
    "deploy deepseek-v3 --gpu h200:16 --tp 8 --pp 2 --concurrency 32 --prompt 2000 --answer 500 --engine sglang",
    "deploy gemma-3-27b --gpu a100-80gb-sxm:2 --tp 2 --concurrency 8 --prompt 3000 --answer 100 --engine vllm",
    "deploy jamba-v0.1 --gpu h100-sxm:2 --tp 2 --context 16k",
    "deploy whisper-large-v3 --gpu l4",
    # The rest.
    "fit llama-3.1-8b gpt2 --gpu rtx-4090 --gpu l4 --context 4k",
    "kv gemma-2-9b", "kv jamba-v0.1", "kv deepseek-v3",
    "crossover gemma-3-27b --no-formulas", "crossover deepseek-v3 --no-formulas",
    "scale --compute 1e23", "scale gpt2 --train-tokens 1.4T",
    "design --params 1B", "design --compute 1e21",
    "design --memory 24GiB --weights Q4_K_M --vocab 50000 --ratio 3.5 --gqa 4 --head 64 --tied --context 16k --kv fp8",
    "design mixtral-8x7b --params 20B", "design deepseek-v3 --memory 141GB --reserve 5%",
    "fit deepseek-v3 gpt2 --memory 48GB --weights Q4_K_M --kv fp8 --context 2k --block 32 --chunk 512 --reserve 1GiB",
    "fit qwen3-30b-a3b --gpu rtx-4090:2 --engine llama.cpp --ram 64GB@40GB --all",
    "scale --params 1B --law chinchilla", "scale --compute 1e24 --unique-tokens 1T --law muennighoff",
    "scale llama-3.1-8b --train-tokens 15T --bytes-per-token 4.2",
    "kv gemma-3-27b --context 1k,20k --batch 3 --kv fp8 --without-cache --prompt 100 --attention masked",
    "kv t5-small --source-tokens 100", "crossover llama-3.1-8b --no-formulas --kv fp8 --dtype fp8 --logits last",
    f"compare llama-3.1-8b '{DENSE}' --match params --by F --context 1k --kv fp8 --attention masked",
    f"compare gpt2 '{MIXED}' --match cache --by h_kv --context 1k,9k", "compare deepseek-v3 kimi-k2 --mla absorbed",
    "show llama-3.1-8b --batch 3 --tokens 50 --past 20 --weights Q4_K_M --dtype fp8 --kv int8 --initial",
    f"show '{MIXED}' --lora r=8,targets=all --as palm,6n", "diff gemma-2-9b gemma-3-27b --tokens 9 --past 5000",
    "compare llama-3.1-8b mixtral-8x7b", "diff llama-3.1-8b mistral-7b",
    "show deepseek-v3 --tokens 3 --past 5000 --mla absorbed --logits last",
    "show 'D=512 L=8 h=8 F=1376' --as palm,megatron-lm,chinchilla,6n", "show gpt2 --as palm,megatron-lm,chinchilla,6n",
    "show t5-small --tokens 7 --source 11", "show jamba-v0.1 --attention masked",
]  # fmt: skip


def numbers(value: Any, path: str, found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Those of a JSON value by its first two keys."""
    if isinstance(value, dict):
        for key, item in value.items():
            numbers(item, path if "." in path else f"{path}.{key}" if path else key, found)
    elif isinstance(value, list):
        for item in value:
            numbers(item, path, found)
    elif not isinstance(value, str):
        found.setdefault(path, []).append(float(f"{value:.6g}") if isinstance(value, float) else value)
    return found


def brief(values: list[Any]) -> Any:
    """One number itself; of more, how many there are, and what tells them from others."""
    return values[0] if len(values) == 1 else f"{len(values)}:{sha256(json.dumps(values).encode()).hexdigest()[:6]}"


def said(line: str) -> dict[str, Any]:
    ran = typed(*shlex.split(line), "--json")
    assert ran.exit_code in (0, 1), ran.output
    return {key: brief(values) for key, values in numbers(json.loads(ran.stdout), "", {}).items()}


@pytest.mark.parametrize("line", LINES, ids=[f"{line.split()[0]}{i}" for i, line in enumerate(LINES)])
def test_figures_are_those_that_were_kept(line: str, update_golden: bool) -> None:
    kept = json.loads(GOLDEN.read_text())
    now = said(line)
    if update_golden:
        kept = {each: kept[each] for each in LINES if each in kept and each != line} | {line: now}
        GOLDEN.write_text(json.dumps(kept, ensure_ascii=False, indent=0) + "\n")
    moved = {key: (value, now.get(key)) for key, value in kept[line].items() if now.get(key) != value}
    assert not moved, f"if this is meant: pytest {Path(__file__).name} --update-golden"


PARTS = Path(__file__).parent / "golden" / "parts.json"
WORKS = (
    Workload(2, 7, 0, 5),
    Workload(2, 70, 0, 50, keep_scores=True),
    Workload(3, 2, 50, 5, decoding=True),
    Workload(2, 7, 0, 5, last_logits=True, absorbed=True),
    Workload(3, 2, 50, 5, decoding=True, last_logits=True, absorbed=True),
)
SPLITS = (Layout(tp=2), Layout(tp=2, sp=2), Layout(ep=2, dp=2), Layout(tp=2, etp=2, dp=2, ep=2), Layout(pp=2))
FOUND = {  # what is asked of a leaf at a workload, beside what it computes
    "saved": ("saved", "saved_fused", "statistics", "on_chip"),
    "cache": ("cache", "dense", "cache_read", "transfers"),
}
ALONE = ("matrix", "row", "input_kept", "elsewhere", "shared_by", "attended", "turns", "period", "filled", "fills",
         "beyond", "angles", "holds", "role", "kernels", "launched")  # fmt: skip


def computed(root: Any) -> dict[str, str]:
    """A digest of what all leaves of a tree say, by topic; and of what composites and leaves are."""
    found: dict[str, list[Any]] = {}
    for work in WORKS:
        for entry in walk(root, work):
            leaf, at = entry.leaf, entry.work
            found.setdefault("weights", []).append((entry.path, leaf.weights(), [getattr(leaf, a) for a in ALONE]))
            rows = found.setdefault("operations", [])
            rows.append((entry.path, at, entry.times, entry.runs, entry.active_times, entry.gradient, entry.kind))
            if at is not None:
                rows.append(leaf.operations(at))
                for topic, methods in FOUND.items():
                    said = [getattr(leaf, method)(at) for method in methods]
                    found.setdefault(topic, []).append((entry.path, said, leaf.paged(at, 4, 16)))
    found["parts"] = [
        (type(part).__name__, part.describe(), part.alive(), part.cuttable, part.complete, part.fixed)
        for part in composites(root)
    ] + [(leaf.describe(), callable(leaf.kept) and leaf.kept()) for leaf in root.leaves()]
    return {topic: sha256(repr(said).encode()).hexdigest()[:4] for topic, said in found.items()}


def composites(part: Any) -> Iterator[Composite]:
    if isinstance(part, Composite):
        yield part
        for child in part.parts:
            yield from composites(child.part)


def layouts(model: Model) -> Iterator[tuple[str, Any]]:
    """The whole, and a rank's share of each stage; of a layout that cannot be, why."""
    yield "", model.root
    sharding = Sharding(model)
    for layout in SPLITS:
        if faults := sharding.faults(layout):
            yield f"{layout}", sha256(str(sorted(map(str, faults))).encode()).hexdigest()[:4]
            continue
        for stage in sharding.stages(layout):
            yield f"{layout}, {stage.copies} from {stage.first}", stage.root


TOWERS = {  # one of each set of parts
    f"towers of {name}": entry["config"]
    for name, entry in json.loads((Path(__file__).parent / "data" / "hf" / "towers.json").read_text()).items()
    if name in ("aria default", "audioflamingo3 default", "aya_vision clip_vision_model", "glmasr default",
                "internvl default", "llava_next pixtral", "qianfan_ocr qianfan_ocr_vision", "step3p7 default",
                "qwen2_5_omni_thinker default", "video_llava siglip_vision_model")
}  # fmt: skip
TREES = [*TINY, *TOWERS]


def trees(name: str) -> Iterator[tuple[str, Any]]:
    if name in TINY:
        yield from layouts(build(TINY[name], name))
    else:
        yield from ((tower, model.root) for tower, model in build(*describe(TOWERS[name])).towers.items())


@pytest.mark.parametrize("name", TREES)
def test_parts_say_what_was_kept(name: str, update_golden: bool) -> None:
    now = {}
    for place, root in trees(name):
        now[place] = root if isinstance(root, str) else " ".join(f"{k} {v}" for k, v in computed(root).items())
    kept = json.loads(PARTS.read_text()) if PARTS.is_file() else {}
    if update_golden:
        kept = {each: kept[each] for each in TREES if each in kept and each != name} | {name: now}
        lines = (f"{json.dumps(each)}: {json.dumps(marks)}" for each, marks in kept.items())
        PARTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    before = kept.get(name, {})
    moved = {place: (before.get(place), now.get(place)) for place in {**before, **now}}
    moved = {place: marks for place, marks in moved.items() if marks[0] != marks[1]}
    assert not moved, f"if this is meant: pytest {Path(__file__).name} --update-golden"
