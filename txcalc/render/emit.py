"""The command that serves a plan with an engine: parallelism, lengths, sequences and memory as they were planned.

Flags are those of the engines' own documentation: vLLM's engine arguments (docs.vllm.ai), SGLang's server arguments
(docs.sglang.io), TensorRT-LLM's `trtllm-serve` (nvidia.github.io/TensorRT-LLM), Dynamo's launch scripts of vLLM workers
(ai-dynamo/dynamo, examples/backends/vllm/launch, 11bc2e8). Newer versions may rename some.
"""

from __future__ import annotations

import re
import shlex

from txcalc.errors import InputError, UnknownName
from txcalc.num import ceil_div
from txcalc.planning.deployment import Plan
from txcalc.planning.layout import Layout
from txcalc.planning.pools import Pools
from txcalc.planning.serving import NODE

Flags = list[tuple[str, object]]


NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'  # how vLLM's workers hand caches on


def command(plan: Plan, engine: str, pools: Pools | None = None) -> str:
    """Lines of a shell: comments on what no flag says, and the command, a flag a line; of `pools` the commands of both.

    Errors: `UnknownName` for another engine; `InputError` for a plan that an engine's flags cannot say.
    """
    engines = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}
    known = [*engines, "dynamo"]
    if engine not in known:
        raise UnknownName("--emit", "engine", engine, known, f"one of {', '.join(known)}")
    layout, held = plan.best.layout, plan.deployment.engine
    comments = []
    if held.asked != "native":
        comments.append(f"# the checkpoint's weights are {held.weights.name}")
    if engine == "dynamo":
        return "\n".join([*comments, *_dynamo(plan, pools)])
    if pools:
        raise InputError(
            "--emit", [f"{engine} alone serves no pools of their own for prompts and answers: --emit dynamo"]
        )
    start, flags = engines[engine](plan)
    if engine == "trtllm" and layout.dp > 1:
        comments.append(f"# {layout.dp} of these, each on {layout.gpus // layout.dp} GPUs, behind a load balancer")
    elif layout.gpus > (node := plan.deployment.accelerator.node or NODE):
        comments.append(f"# on {ceil_div(layout.gpus, node)} nodes, which the engine's launcher needs the addresses of")
    return "\n".join([*comments, _lines(start, flags)])


def _lines(start: str, flags: Flags) -> str:
    return " \\\n  ".join([start, *(flag if value is None else f"{flag} {value}" for flag, value in flags)])


def _dynamo(plan: Plan, pools: Pools | None) -> list[str]:
    """A front end and its workers: of one pool, or of one for prompts and one for answers."""
    found = ["python -m dynamo.frontend"]
    roles = (("prefill", pools.prefill), ("decode", pools.decode)) if pools else (("", plan.best),)
    for role, choice in roles:
        layout = choice.layout
        copies = 1 if layout.ep > layout.tp else layout.dp  # a worker is all copies that share experts
        worker = layout if copies == 1 else layout.replace(dp=1)
        each = 1 if role == "prefill" else ceil_div(plan.concurrency, layout.dp)
        flags: Flags = [("--model", _model(plan)), *_vllm_flags(plan, worker, each)]
        if role:
            flags += [("--disaggregation-mode", role), ("--kv-transfer-config", shlex.quote(NIXL))]
        found.append(f"# {copies} of these, each on {worker.gpus} GPUs{f', for {role}' if role else ''}")
        found.append(_lines("python -m dynamo.vllm", flags))
    return found


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
    layout = plan.best.layout
    return f"vllm serve {_model(plan)}", _vllm_flags(plan, layout, ceil_div(plan.concurrency, layout.dp))


def _vllm_flags(plan: Plan, layout: Layout, sequences: int) -> Flags:
    """Those of a layout, of which each copy runs so many sequences."""
    engine = plan.deployment.engine
    if layout.ep not in (1, layout.tp * layout.dp):
        raise _refuse(plan, "vLLM")
    flags: Flags = [("--tensor-parallel-size", layout.tp)]
    if layout.pp > 1:
        flags.append(("--pipeline-parallel-size", layout.pp))
    if layout.dp > 1:
        flags.append(("--data-parallel-size", layout.dp))
    if layout.ep > 1:
        flags.append(("--enable-expert-parallel", None))
    flags += [("--max-model-len", plan.context), ("--max-num-seqs", sequences)]
    flags += [("--max-num-batched-tokens", engine.chunk), ("--block-size", engine.block)]
    flags += [("--gpu-memory-utilization", share) for share in _kept(plan)]
    if engine.cache_bits == 8:
        flags.append(("--kv-cache-dtype", "fp8"))
    return flags


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
