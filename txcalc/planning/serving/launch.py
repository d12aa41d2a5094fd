"""The command that serves a plan with an engine: parallelism, lengths, concurrency, memory, drafts and adapters as
planned.

Flags are those of the engines' own documentation: vLLM's engine arguments and features/spec_decode (docs.vllm.ai),
SGLang's server arguments and advanced_features/speculative_decoding (docs.sglang.io), TensorRT-LLM's `trtllm-serve`,
features/speculative-decoding and features/lora (nvidia.github.io/TensorRT-LLM), Dynamo's launch scripts of vLLM workers
(ai-dynamo/dynamo, examples/backends/vllm/launch, 11bc2e8). Newer versions may rename some.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from txcalc.errors import InputError, UnknownName
from txcalc.num import ceil_div
from txcalc.planning.layout import Layout
from txcalc.planning.links import NODE
from txcalc.planning.serving.deployment import Plan
from txcalc.planning.serving.disaggregation import Pools
from txcalc.planning.serving.engine_profiles import profile, unsupported
from txcalc.planning.serving.points import SpeculativeDecoding

if TYPE_CHECKING:
    from txcalc.model import Model

Flags = list[tuple[str, object]]

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # of adapters, that vLLM has kernels for (vllm/config/lora.py)
# Names of the draft methods in vLLM, SGLang and TensorRT-LLM.
METHODS = {
    "mtp": ("mtp", "EAGLE", "MTP"),
    "eagle3": ("eagle3", "EAGLE3", "Eagle3"),
    "eagle": ("eagle", "EAGLE", None),
    "model": ("draft_model", "STANDALONE", "DraftTarget"),
    "ngram": ("ngram", "NGRAM", "NGram"),
}
# Linear layers that TensorRT-LLM has adapters for, without those of routed experts.
ADAPTED = ("attn_q", "attn_k", "attn_v", "attn_dense", "mlp_h_to_4h", "mlp_4h_to_h", "mlp_gate")
NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'  # how vLLM's workers hand caches on


def command(plan: Plan, engine: str, pools: Pools | None = None, guess: SpeculativeDecoding | None = None) -> str:
    """Shell lines: comments on what no flag covers, then the command, one flag per line; for `pools`, the commands of
    both. `guess`: the number of tokens that the plan's draft proposes.

    Errors: `UnknownName` for an unknown engine; `InputError` for a plan that the engine's flags cannot express.
    """
    if engine not in ENGINES:
        raise UnknownName("--emit", "engine", engine, list(ENGINES), f"one of {', '.join(ENGINES)}")
    written = ENGINES[engine]
    layout, held = plan.best.layout, plan.planner.engine
    served = profile(engine if written.write else "vllm")  # dynamo's workers are vLLM
    if served and (lacking := unsupported(served, held.weights, plan.planner.accelerator, held.kv)):
        raise InputError("--emit", [lacking])
    comments = []
    if held.asked != "native":
        comments.append(f"# the checkpoint's weights are {held.weights.name}")
    if guess and plan.planner.draft is None:
        comments.append(f"# {guess.tokens} tokens per step are proposed at no cost: n-grams of what was said before")
    if held.adapters:
        comments.append(f"# {written.adapters}")
    if plan.planner.model.text_only and not written.without_towers:
        comments.append("# the plan leaves the model's towers out, for which no flag is known here")
    if (held.gathers or held.interval > 1) and written.gathers is not held.gathers:
        raise InputError("--emit", [f"{engine} has no flag for --{'gather' if held.gathers else 'poll'}"])
    if written.write is None:
        return "\n".join([*comments, *_dynamo(plan, pools, guess)])
    if pools:
        raise InputError(
            "--emit", [f"{engine} alone serves no pools of their own for prompts and answers: --emit dynamo"]
        )
    start, flags = written.write(plan, guess)
    if written.one_copy and layout.dp > 1 and not _shared(plan):
        comments.append(f"# {layout.dp} of these, each on {layout.gpus // layout.dp} GPUs, behind a load balancer")
    elif layout.gpus > (node := plan.planner.accelerator.node or NODE):
        comments.append(f"# on {ceil_div(layout.gpus, node)} nodes, which the engine's launcher needs the addresses of")
    return "\n".join([*comments, _lines(start, flags)])


class CommandStyle(NamedTuple):
    """How the command of an engine is written.

    adapters        what the user has to do about adapters
    write           start and flags; None: several commands (dynamo)
    without_towers  it has a flag that leaves out a model's towers
    gathers         which wait it has a flag for: True --gather, False --poll, None neither
    one_copy        a command starts one copy of the model, unless copies share experts
    """

    adapters: str
    write: Callable[[Plan, SpeculativeDecoding | None], tuple[str, Flags]] | None
    without_towers: bool = False
    gathers: bool | None = None
    one_copy: bool = False


def _lines(start: str, flags: Flags) -> str:
    return " \\\n  ".join([start, *(flag if value is None else f"{flag} {value}" for flag, value in flags)])


def _dynamo(plan: Plan, pools: Pools | None, guess: SpeculativeDecoding | None) -> list[str]:
    """The commands of a front end and its workers: one pool, or one for prefill and one for decode."""
    found = ["python -m dynamo.frontend"]
    roles = (("prefill", pools.prefill), ("decode", pools.decode)) if pools else (("", plan.best),)
    for role, choice in roles:
        layout = choice.layout
        copies = 1 if layout.sharing > 1 else layout.dp  # a worker is all copies that share experts
        worker = layout if copies == 1 else layout.alone
        each = 1 if role == "prefill" else ceil_div(plan.concurrency, layout.dp)
        flags: Flags = [("--model", _model(plan)), *_vllm_flags(plan, worker, each, guess)]
        if role:
            flags += [("--disaggregation-mode", role), ("--kv-transfer-config", shlex.quote(NIXL))]
        found.append(f"# {copies} of these, each on {worker.gpus} GPUs{f', for {role}' if role else ''}")
        found.append(_lines("python -m dynamo.vllm", flags))
    return found


def _model(plan: Plan) -> str:
    return _repository(plan.planner.model, "MODEL")


def _repository(model: Model, otherwise: str) -> str:
    """The repository of the weights on the hub, where the description names one."""
    source = str(model.spec["source"])
    found = re.search(r"(?:huggingface\.co/|hf:)([\w.-]+/[\w.-]+)|([\w.-]+/[\w.-]+) config\.json", source)
    return shlex.quote(found[1] or found[2]) if found else otherwise


def _method(plan: Plan, engine: int) -> str:
    """The draft method by the engine's name. Errors: `InputError` where the engine has none."""
    draft = plan.planner.draft
    if draft is None:
        kind = "ngram"
    elif draft is plan.planner.model.predictor:
        kind = "mtp"
    elif features := draft.spec["stacks"][""]["features"]:
        kind = "eagle3" if features["number"] > 1 else "eagle"
    else:
        kind = "model"
    if (word := METHODS[kind][engine]) is None or (engine and _at_once(draft)):
        name = ("vLLM", "SGLang", "TensorRT-LLM")[engine]
        raise InputError("--emit", [f"{name} has no flags for a draft such as {draft.name if draft else kind}"])
    return word


def _at_once(draft: Model | None) -> bool:
    """Whether a draft proposes all tokens of a step in one pass."""
    return draft is not None and draft.spec["drafting"] != "in-turn"


def _drafter(plan: Plan) -> str:
    """The repository of a separate draft model; "" for other drafts."""
    draft, model = plan.planner.draft, plan.planner.model
    return "" if draft is None or draft is model.predictor else _repository(draft, "DRAFT")


def _shared(plan: Plan) -> bool:
    """Whether copies of the model share their experts."""
    return plan.best.layout.sharing > 1


def _refuse(plan: Plan, engine: str) -> InputError:
    return InputError("--emit", [f"{engine}'s flags do not say the layout {plan.best.layout}"])


def _kept(plan: Plan) -> list[str]:
    """The fraction of memory that the engine may use; nothing where the reserve is an absolute size."""
    share = plan.planner.engine.reserve.share
    return [f"{float(1 - share):g}"] if share else []


def _share(part: int, *others: int) -> str:
    """A part of the sum."""
    return f"{part / (part + sum(others)):.3g}"


def _vllm(plan: Plan, guess: SpeculativeDecoding | None) -> tuple[str, Flags]:
    layout = plan.best.layout
    return f"vllm serve {_model(plan)}", _vllm_flags(plan, layout, _running(plan, layout), guess)


def _running(plan: Plan, layout: Layout) -> int:
    """Concurrent sequences per copy: its share of the total, at most as many as its memory and step time were planned
    for."""
    memory = plan.planner.engine.memory
    share: int = ceil_div(plan.concurrency, layout.dp)
    most: int | None = memory.at_once if memory else None
    return min(share, most) if most else share


def _vllm_flags(plan: Plan, layout: Layout, sequences: int, guess: SpeculativeDecoding | None) -> Flags:
    """Those of a layout whose copies each run `sequences` at most."""
    engine = plan.planner.engine
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
    if plan.planner.model.text_only:
        flags.append(("--language-model-only", None))
    if engine.cache_bits == 8:
        flags.append(("--kv-cache-dtype", "fp8"))
    if guess:
        if layout.pp > 1:
            raise InputError("--emit", ["vLLM drafts in no pipeline: --pp 1"])
        said = {"method": _method(plan, 0), "model": _drafter(plan), "num_speculative_tokens": guess.tokens}
        said["parallel_drafting"] = _at_once(plan.planner.draft)
        written = json.dumps({key: value for key, value in said.items() if value})
        flags.append(("--speculative-config", shlex.quote(written)))
    if engine.adapters:
        if engine.rank > RANKS[-1]:
            raise InputError("--emit", [f"vLLM has adapters of a rank up to {RANKS[-1]}: --adapter-rank {RANKS[-1]}"])
        rank = next(each for each in RANKS if each >= engine.rank)
        flags += [("--enable-lora", None), ("--max-loras", engine.adapters), ("--max-lora-rank", rank)]
    return flags


def _sglang(plan: Plan, guess: SpeculativeDecoding | None) -> tuple[str, Flags]:
    layout, engine, shared = plan.best.layout, plan.planner.engine, _shared(plan)
    together = layout.tp * layout.dp
    if (shared and (layout.expert_group != together or layout.pp > 1)) or layout.ep not in (1, layout.tp, together):
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
    sequences = _running(plan, layout) * (layout.dp if shared else 1)
    flags += [("--context-length", plan.context), ("--max-running-requests", sequences)]
    # Of copies that share experts it divides the size by their number (server_args.py: _handle_data_parallelism).
    flags += [("--chunked-prefill-size", engine.chunk * (layout.dp if shared else 1)), ("--page-size", engine.block)]
    held = plan.best.fullest
    kept = engine.reserve.of(held.memory)
    flags.append(("--mem-fraction-static", _share(held.weights + held.pool, kept, held.rest, held.peak)))
    if engine.interval > 1:
        flags.append(("--scheduler-recv-interval", engine.interval))
    if engine.cache_bits == 8:
        flags.append(("--kv-cache-dtype", "fp8_e4m3"))
    if guess:
        method = _method(plan, 1)
        if shared and method in ("STANDALONE", "NGRAM"):
            raise InputError(
                "--emit", ["SGLang shares experts between copies only with drafts of EAGLE's kind, or mtp"]
            )
        flags.append(("--speculative-algorithm", method))
        if where := _drafter(plan):
            flags.append(("--speculative-draft-model-path", where))
        if method != "NGRAM":
            flags += [("--speculative-num-steps", guess.tokens), ("--speculative-eagle-topk", 1)]
        flags.append(("--speculative-num-draft-tokens", guess.tokens + 1))
    if engine.adapters:
        flags += [("--enable-lora", None), ("--max-loras-per-batch", engine.adapters)]
        flags += [("--max-lora-rank", engine.rank), ("--lora-target-modules", "all")]
    return f"python -m sglang.launch_server --model-path {_model(plan)}", flags


def _trtllm(plan: Plan, guess: SpeculativeDecoding | None) -> tuple[str, Flags]:
    layout, engine = plan.best.layout, plan.planner.engine
    if _shared(plan) and (layout.tp > 1 or layout.expert_group != layout.dp):
        raise _refuse(plan, "TensorRT-LLM")
    flags: Flags = [("--tp_size", layout.dp if _shared(plan) else layout.tp)]
    if layout.pp > 1:
        flags.append(("--pp_size", layout.pp))
    if layout.ep > 1:
        flags.append(("--ep_size", layout.ep))
    flags += [("--max_seq_len", plan.context), ("--max_batch_size", _running(plan, layout))]
    held = plan.best.fullest
    kept = engine.reserve.of(held.memory) + held.rank.rest.get("left free", 0)
    flags += [("--max_num_tokens", engine.chunk), ("--kv_cache_free_gpu_memory_fraction", _share(held.pool, kept))]
    start = f"trtllm-serve {_model(plan)}"
    if options := _options(plan, guess):
        flags.append(("--extra_llm_api_options", "options.yaml"))
        start = "\n".join(["cat > options.yaml <<'END'", *options, "END", start])
    return start, flags


def _options(plan: Plan, guess: SpeculativeDecoding | None) -> list[str]:
    """Options that TensorRT-LLM only reads from a file."""
    engine, lines = plan.planner.engine, []
    if engine.cache_bits == 8:
        lines += ["kv_cache_config:", "  dtype: fp8"]
    if _shared(plan):
        lines.append("enable_attention_dp: true")
        if engine.gathers:
            lines += ["attention_dp_config:", "  enable_balance: true", f"  timeout_iters: {engine.interval}"]
            lines.append("  batching_wait_iters: 0")
    if guess:
        method = _method(plan, 2)
        lines += ["speculative_config:", f"  decoding_type: {method}", f"  max_draft_len: {guess.tokens}"]
        if where := _drafter(plan):
            lines.append(f"  speculative_model: {where}")
        if method == "MTP":
            lines.append(f"  num_nextn_predict_layers: {guess.tokens}")
        if method in ("DraftTarget", "NGram"):  # which run beside the scheduler that overlaps steps
            lines.append("disable_overlap_scheduler: true")
    if engine.adapters:
        lines += ["lora_config:", f"  lora_target_modules: [{', '.join(ADAPTED)}]", f"  max_lora_rank: {engine.rank}"]
        lines += [f"  max_loras: {engine.adapters}", f"  max_cpu_loras: {engine.adapters}"]
    return lines


ENGINES = {
    "vllm": CommandStyle("name each adapter: --lora-modules NAME=PATH …", _vllm, without_towers=True),
    "sglang": CommandStyle("name each adapter: --lora-paths NAME=PATH …", _sglang, gathers=False),
    "trtllm": CommandStyle("each request names its adapter: lora_request", _trtllm, gathers=True, one_copy=True),
    "dynamo": CommandStyle(
        "each adapter is loaded by the workers' own API (DYN_LORA_ENABLED=true)", None, without_towers=True
    ),
}
