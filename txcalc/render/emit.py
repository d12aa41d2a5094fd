"""The command that serves a plan with an engine: parallelism, lengths, sequences and memory as they were planned.

Flags are those of the engines' own documentation: vLLM's engine arguments (docs.vllm.ai), SGLang's server arguments
(docs.sglang.io), TensorRT-LLM's `trtllm-serve` (nvidia.github.io/TensorRT-LLM). Newer versions may rename some.
"""

from __future__ import annotations

import re
import shlex

from txcalc.errors import InputError, UnknownName
from txcalc.num import ceil_div
from txcalc.planning.deployment import Plan

NODE = 8
Flags = list[tuple[str, object]]


def command(plan: Plan, engine: str) -> str:
    """Lines of a shell: comments on what no flag says, and the command, a flag a line.

    Errors: `UnknownName` for another engine; `InputError` for a plan that an engine's flags cannot say.
    """
    engines = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}
    if engine not in engines:
        raise UnknownName("--emit", "engine", engine, list(engines), f"one of {', '.join(engines)}")
    layout, held = plan.best.layout, plan.deployment.engine
    start, flags = engines[engine](plan)
    comments = []
    if held.asked != "native":
        comments.append(f"# the checkpoint's weights are {held.weights.name}")
    if engine == "trtllm" and layout.dp > 1:
        comments.append(f"# {layout.dp} of these, each on {layout.gpus // layout.dp} GPUs, behind a load balancer")
    elif layout.gpus > NODE:
        comments.append(f"# on {ceil_div(layout.gpus, NODE)} nodes, which the engine's launcher needs the addresses of")
    lines = [start, *(flag if value is None else f"{flag} {value}" for flag, value in flags)]
    return "\n".join([*comments, " \\\n  ".join(lines)])


def _model(plan: Plan) -> str:
    """Where the weights are: a repository on the hub, where the description names one."""
    source = str(plan.deployment.model.spec["source"])
    found = re.search(r"(?:huggingface\.co/|hf:)([\w.-]+/[\w.-]+)|([\w.-]+/[\w.-]+) config\.json", source)
    return shlex.quote(found[1] or found[2]) if found else "MODEL"


def _shared(plan: Plan) -> bool:
    """Whether copies of the model share their experts."""
    return plan.best.layout.ep > plan.best.layout.tp


def _refuse(plan: Plan, engine: str) -> InputError:
    return InputError("--emit", [f"{engine}'s flags do not say the layout {plan.best.layout}"])


def _kept(plan: Plan) -> list[str]:
    """The share of the memory that the engine may fill; nothing where the reserve is a size."""
    share = plan.deployment.engine.reserve.share
    return [f"{float(1 - share):g}"] if share else []


def _vllm(plan: Plan) -> tuple[str, Flags]:
    layout, engine = plan.best.layout, plan.deployment.engine
    if layout.ep not in (1, layout.tp * layout.dp):
        raise _refuse(plan, "vLLM")
    flags: Flags = [("--tensor-parallel-size", layout.tp)]
    if layout.pp > 1:
        flags.append(("--pipeline-parallel-size", layout.pp))
    if layout.dp > 1:
        flags.append(("--data-parallel-size", layout.dp))
    if layout.ep > 1:
        flags.append(("--enable-expert-parallel", None))
    flags += [("--max-model-len", plan.context), ("--max-num-seqs", ceil_div(plan.concurrency, layout.dp))]
    flags += [("--max-num-batched-tokens", engine.chunk), ("--block-size", engine.block)]
    flags += [("--gpu-memory-utilization", share) for share in _kept(plan)]
    if engine.cache_bits == 8:
        flags.append(("--kv-cache-dtype", "fp8"))
    return f"vllm serve {_model(plan)}", flags


def _sglang(plan: Plan) -> tuple[str, Flags]:
    layout, engine, shared = plan.best.layout, plan.deployment.engine, _shared(plan)
    together = layout.tp * layout.dp
    if (shared and (layout.ep != together or layout.pp > 1)) or layout.ep not in (1, layout.tp, together):
        raise _refuse(plan, "SGLang")
    flags: Flags = [("--tp-size", together if shared else layout.tp)]
    if layout.pp > 1:
        flags.append(("--pp-size", layout.pp))
    if layout.dp > 1:
        flags.append(("--dp-size", layout.dp))
    if shared:
        flags.append(("--enable-dp-attention", None))
    if layout.ep > 1:
        flags.append(("--ep-size", layout.ep))
    sequences = plan.concurrency if shared else ceil_div(plan.concurrency, layout.dp)
    flags += [("--context-length", plan.context), ("--max-running-requests", sequences)]
    flags += [("--chunked-prefill-size", engine.chunk), ("--page-size", engine.block)]
    if engine.cache_bits == 8:
        flags.append(("--kv-cache-dtype", "fp8_e4m3"))
    return f"python -m sglang.launch_server --model-path {_model(plan)}", flags


def _trtllm(plan: Plan) -> tuple[str, Flags]:
    layout, engine = plan.best.layout, plan.deployment.engine
    if _shared(plan):
        raise _refuse(plan, "TensorRT-LLM")
    flags: Flags = [("--tp_size", layout.tp)]
    if layout.pp > 1:
        flags.append(("--pp_size", layout.pp))
    if layout.ep > 1:
        flags.append(("--ep_size", layout.ep))
    flags += [("--max_seq_len", plan.context), ("--max_batch_size", ceil_div(plan.concurrency, layout.dp))]
    flags += [("--max_num_tokens", engine.chunk)]
    return f"trtllm-serve {_model(plan)}", flags
