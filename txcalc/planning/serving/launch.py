"""The command that serves a plan with an engine: its parallelism, lengths, concurrency, memory, drafts and adapters.

Flags are those of the engines' own parsers and documentation; tests/data/serving/flags.toml lists them, with sources.
vLLM: engine arguments and features/spec_decode (docs.vllm.ai). SGLang: server arguments and
advanced_features/speculative_decoding (docs.sglang.io). TensorRT-LLM: `trtllm-serve`, features/speculative-decoding and
features/lora (nvidia.github.io/TensorRT-LLM). Dynamo: launch scripts of vLLM workers (ai-dynamo/dynamo,
examples/backends/vllm/launch, 11bc2e8). llama.cpp: tools/server. Ollama: docs/modelfile.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from txcalc.errors import Fault, InputError, UnknownName
from txcalc.num import ceil_div
from txcalc.parts.cores import CachedCore
from txcalc.parts.spans import Window
from txcalc.planning.formats.weights import plain
from txcalc.planning.layout import Layout
from txcalc.planning.machine import NODE
from txcalc.planning.serving.deployment import Plan
from txcalc.planning.serving.disaggregation import Pools
from txcalc.planning.serving.engine_profiles import EngineProfile, engines_for, is_gguf, profile, unsupported_fault
from txcalc.planning.serving.launch_gguf import Flags, gguf_file, gguf_path, llama_server, modelfile, running, slots
from txcalc.planning.serving.launch_weights import CommandWeights, repository_of, weights_of_plan
from txcalc.planning.serving.points import Request, SpeculativeDecoding
from txcalc.units import number_of

if TYPE_CHECKING:
    from txcalc.model import Model

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


def command(plan: Plan, engine: str, pools: Pools | None = None, request: Request | None = None) -> str:
    """Shell lines: comments on what no flag covers, then the command, one flag per line; of `pools`, both commands.
    `request`: its speculation and its lengths.

    Errors: `UnknownName` for an unknown engine; `InputError` for a plan that does not fit, of another engine, or that
    the engine's flags cannot express.
    """
    if engine not in ENGINES:
        raise UnknownName("--emit", "engine", engine, list(ENGINES), f"one of {', '.join(ENGINES)}")
    style = ENGINES[engine]
    layout, config = plan.best.layout, plan.planner.engine
    guess = request.speculation if request else None
    server = _engine_of_plan(plan, engine)
    comments = [f"# the flags are those of {style.version}, the plan is of {server}"] if server.user_version else []
    if guess and plan.planner.draft is None:
        comments.append(f"# {guess.tokens} tokens per step are proposed at no cost: n-grams of the text so far")
    if config.adapters:
        comments.append(f"# {style.adapters}")
    if plan.planner.model.left_out and not style.without_towers:
        comments.append("# the plan leaves the model's towers out, for which no flag is known here")
    if (config.gathers or config.interval > 1) and style.gathers is not config.gathers:
        raise InputError("--emit", [f"{engine} has no flag for --{'gather' if config.gathers else 'poll'}"])
    cache = plan.best.fullest.rank.caches(plan.context)
    if engine == "sglang" and not config.memory and cache.algorithmic < cache.dense:
        comments.append("# SGLang caches more than the sliding windows of the plan: plan with --engine sglang")
    if (longest := _longest(request)) and longest == plan.context:
        comments.append(f"# requests of more than {longest:,} tokens are refused: plan for a range (--prompt 2k±1k)")
    if (most := plan.planner.model.context) and plan.context > most and not style.gguf:
        scaled = "unless its config scales positions (YaRN)"
        comments.append(f"# the server refuses more than the model's {most:,} tokens, {scaled}")
    if server.engine == "vllm" and config.weights.name == "mxfp4" and plan.planner.accelerator.kernels == "blackwell":
        comments.append("export VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1  # experts multiply in MXFP8, as planned")
    weights = style.weights(plan)
    comment = [f"# {weights.comment}"] if weights.comment else []
    if style.write is None:
        return "\n".join([*comments, *comment, *_dynamo(plan, weights, pools, guess)])
    if pools:
        raise InputError("--emit", [f"{engine} alone does not disaggregate prefill and decode (--emit dynamo)"])
    start, flags = style.write(plan, weights, guess)
    if style.gguf:
        requests = f"{number_of('request', slots(plan, engine))} at once, {plan.context:,} tokens each"
        comments.append(f"# {requests} (change with --concurrency, --context)")
    if style.one_copy and layout.dp > 1 and layout.sharing == 1:
        gpus = number_of("GPU", layout.replica.gpus)
        comments.append(f"# {layout.dp} of these, each on {gpus}, behind a load balancer")
    elif layout.gpus > (node := plan.planner.accelerator.node or NODE):
        comments.append(f"# on {ceil_div(layout.gpus, node)} nodes, which the engine's launcher needs the addresses of")
    return "\n".join([*comments, *comment, _lines(start, flags)])


def _engine_of_plan(plan: Plan, engine: str) -> EngineProfile:
    """The engine and version that runs the plan. Errors: `InputError` for a plan that does not fit, of another engine,
    longer than the model's table of positions, or in formats that the engine lacks on the accelerator."""
    config, style = plan.planner.engine, ENGINES[engine]
    planned = config.memory.profile if config.memory else None
    runs = profile(style.runs or engine)
    assert runs is not None
    if not style.gguf and is_gguf(config.weights):
        expected = f"weights that {runs.rules.title} serves: a .gguf file is for llama.cpp"
        raise InputError("--emit", [Fault("--weights", config.weights.name, expected, "--emit llama.cpp")])
    if planned and planned.engine != runs.engine:
        expected = f"{runs.rules.title}, which --emit {engine} starts"
        raise InputError("--emit", [Fault("--engine", planned.rules.title, expected, f"--emit {planned.engine}")])
    server = planned or runs
    model = plan.planner.model
    served = [name for name in engines_for(model) if name in engines_for(model, "unserved")]
    if runs.engine not in served:
        fix = ", ".join(f"--emit {name}" for name in served) or "there is none"
        raise InputError("--emit", [Fault("--emit", engine, f"a command that serves {model.name} ({model.kind})", fix)])
    if lacking := unsupported_fault(server, model, config.weights, plan.planner.accelerator, config.kv):
        raise InputError("--emit", [lacking])
    if not model.fixed_length and (most := model.position_limit) and plan.context > most:
        raise InputError("--emit", [f"{model.name} has positions for {most:,} tokens (--context {most})"])
    if config.block_given and config.block not in (pages := style.pages(plan)):
        if not pages:
            raise InputError("--emit", [f"{engine} has no pages for --block"])
        expected = f"a size of pages that {engine} has for {model.name}"
        raise InputError("--emit", [Fault("--block", config.block, expected, f"--block {pages[0]}")])
    if not plan.best.serves:
        raise InputError("--emit", [f"the plan does not fit (its {plan.best.limit}); fit tells which formats do"])
    return server


def _selects_keys(model: Model) -> bool:
    """Whether attention reads selected keys alone (DeepSeek-V3.2)."""
    return any(leaf.role == "selection" for leaf in model.root.leaves())


def _vllm_pages(plan: Plan) -> Sequence[int]:
    """What vLLM's kernels take (design/attention_backends): multiples of 16, or the size for selected keys."""
    block, accelerator = plan.planner.engine.block, plan.planner.accelerator
    if _selects_keys(plan.planner.model):
        return (1,) if accelerator.vendor == "AMD" else (64, 32) if accelerator.kernels == "blackwell" else (64,)
    return (block if accelerator.vendor == "AMD" else 16 * ceil_div(block, 16),)


def _sglang_pages(plan: Plan) -> Sequence[int]:
    """SGLang keeps recurrent states in pages of 1 (mem_cache/mamba_radix_cache.py), and replaces sizes that its default
    kernels lack: for selected keys by 64, on B200 and B300 those other than 16, 32 or 64, with MLA other than 32 or 64
    (server arguments: `page_size`)."""
    model, accelerator, block = plan.planner.model, plan.planner.accelerator, plan.planner.engine.block
    if model.kind in ("hybrid", "recurrent"):
        return (1,)
    if _selects_keys(model):
        return (1, 64) if accelerator.vendor == "AMD" else (64,)
    if accelerator.kernels == "blackwell":
        return (64, 32) if model.has_latents else (64, 32, 16)
    return (block,)


def _trtllm_pages(plan: Plan) -> Sequence[int]:
    """TensorRT-LLM takes powers of two (kernels/kvCacheUtils.h)."""
    return (1 << (plan.planner.engine.block - 1).bit_length(),)


def _vllm_weights(plan: Plan) -> CommandWeights:
    """vLLM quantises layer by layer in the version whose flags are known here."""
    memory = plan.planner.engine.memory
    return weights_of_plan(plan, online=True, streams=not (memory and memory.profile.user_version))


# SGLang quantises when all weights are on the GPU, TensorRT-LLM nothing while it loads.
_sglang_weights = partial(weights_of_plan, online=True, streams=False)
_trtllm_weights = partial(weights_of_plan, online=False, streams=False)


def _longest(request: Request | None) -> int:
    """Tokens of every request, if a prompt was given and lengths do not vary; else 0."""
    if not request or not request.prompt_given:
        return 0
    prompts, answers = request.traffic.prompts, request.traffic.answers
    return prompts.high + answers.high if prompts.low == prompts.high and answers.low == answers.high else 0


class CommandStyle(NamedTuple):
    """How the command of an engine is written.

    adapters        a comment: how to name adapters
    write           start and flags; None: several commands (dynamo)
    version         the release or the commit whose flags these are
    weights         the checkpoint, and how it is converted while it is loaded
    pages           sizes of pages with which the engine starts, the one asked for if it is one; none: it has no pages
    gguf            it serves .gguf files
    runs            the engine that runs the plan, if this is a front end
    without_towers  it has a flag that leaves out a model's towers
    gathers         it has a flag for --gather (True), for --poll (False), for neither (None)
    one_copy        a command starts one replica, unless replicas share experts
    """

    adapters: str
    write: Callable[[Plan, CommandWeights, SpeculativeDecoding | None], tuple[str, Flags]] | None
    version: str
    weights: Callable[[Plan], CommandWeights]
    pages: Callable[[Plan], Sequence[int]] = lambda plan: ()
    gguf: bool = False
    runs: str = ""
    without_towers: bool = False
    gathers: bool | None = None
    one_copy: bool = False


def _lines(start: str, flags: Flags) -> str:
    return " \\\n  ".join([start, *(flag if value is None else f"{flag} {value}" for flag, value in flags)])


def _dynamo(plan: Plan, weights: CommandWeights, pools: Pools | None, guess: SpeculativeDecoding | None) -> list[str]:
    """The commands of a front end and its workers: one pool, or one for prefill and one for decode."""
    lines = ["python -m dynamo.frontend"]
    roles = (("prefill", pools.prefill), ("decode", pools.decode)) if pools else (("", plan.best),)
    for role, choice in roles:
        layout = choice.layout
        copies = 1 if layout.sharing > 1 else layout.dp  # a worker is all copies that share experts
        worker = layout if copies == 1 else layout.replica
        sequences = 1 if role == "prefill" else ceil_div(plan.concurrency, layout.dp)
        flags: Flags = [("--model", weights.checkpoint), *_vllm_flags(plan, weights, worker, sequences, guess)]
        if role:
            flags += [("--disaggregation-mode", role), ("--kv-transfer-config", shlex.quote(NIXL))]
        purpose = f", for {role}" if role else ""
        lines.append(f"# {copies} of these, each on {number_of('GPU', worker.gpus)}{purpose}")
        lines.append(_lines("python -m dynamo.vllm", flags))
    return lines


def _method(plan: Plan, engine: int) -> str:
    """The draft method by the engine's name. Errors: `InputError` where the engine has none."""
    draft = plan.planner.draft
    if draft is None:
        kind = "ngram"
    elif draft is plan.planner.model.predictor:
        kind = "mtp"
    elif features := draft.description.last.features:
        kind = "eagle3" if features.number > 1 else "eagle"
    else:
        kind = "model"
    if (word := METHODS[kind][engine]) is None or (engine and _at_once(draft)):
        name = ("vLLM", "SGLang", "TensorRT-LLM")[engine]
        raise InputError("--emit", [f"{name} has no flags for a draft such as {draft.name if draft else kind}"])
    if draft and word == "draft_model" and draft.vocab_size != (model := plan.planner.model).vocab_size:
        sizes = f"{draft.vocab_size} tokens in {draft.name}, {model.vocab_size} in {model.name}"
        raise InputError("--emit", [f"vLLM refuses a draft model of another vocabulary: {sizes}"])
    return word


def _at_once(draft: Model | None) -> bool:
    """Whether a draft proposes all tokens of a step in one pass."""
    return draft is not None and draft.description.drafting != "in-turn"


def _drafter(plan: Plan) -> str:
    """The repository of a separate draft model; "" for other drafts."""
    draft, model = plan.planner.draft, plan.planner.model
    if draft is None or draft is model.predictor:
        return ""
    return repository_of(draft) or f"REPLACE-WITH-A-CHECKPOINT-OF-{re.sub(r'[^A-Za-z0-9.]+', '-', draft.name)}"


def _refuse(plan: Plan, engine: str) -> InputError:
    return InputError("--emit", [f"{engine}'s flags do not say the layout {plan.best.layout} (--dp 1)"])


def _cache(plan: Plan, words: Mapping[str, str], name: str) -> list[str]:
    """The engine's name of the cache's dtype; none if it is that of the activations. Errors: `InputError` if the engine
    does not have it."""
    engine = plan.planner.engine
    if engine.cache_bits == engine.activation_bits:
        return []
    if (kv := plain(engine.kv)) not in words:
        expected = f"a dtype of {name}'s cache: that of the activations, or {', '.join(words)}"
        raise InputError("--emit", [Fault("--kv", engine.kv, expected)])
    return [words[kv]]


def _above_one(*degrees: tuple[str, int]) -> Flags:
    return [(flag, degree) for flag, degree in degrees if degree > 1]


def _share(part: int, *remaining_parts: int) -> str:
    return f"{part / (part + sum(remaining_parts)):.3g}"


def _vllm(plan: Plan, weights: CommandWeights, guess: SpeculativeDecoding | None) -> tuple[str, Flags]:
    layout = plan.best.layout
    return f"vllm serve {weights.checkpoint}", _vllm_flags(plan, weights, layout, running(plan, layout), guess)


def _conversion_on_load(weights: CommandWeights) -> Flags:
    """How vLLM and SGLang convert weights while they load them."""
    flags = (("--dtype", weights.dtype), ("--quantization", weights.quantization))
    return [(flag, value) for flag, value in flags if value]


def _vllm_flags(
    plan: Plan, weights: CommandWeights, layout: Layout, sequences: int, guess: SpeculativeDecoding | None
) -> Flags:
    """The flags of a layout whose replicas run at most `sequences` each."""
    engine = plan.planner.engine
    if layout.ep not in (1, layout.tp * layout.dp):
        raise _refuse(plan, "vLLM")
    flags: Flags = [*_conversion_on_load(weights), ("--tensor-parallel-size", layout.tp)]
    flags += _above_one(("--pipeline-parallel-size", layout.pp), ("--data-parallel-size", layout.dp))
    if layout.ep > 1:
        flags.append(("--enable-expert-parallel", None))
    flags += [("--max-model-len", plan.context), ("--max-num-seqs", sequences)]
    flags.append(("--max-num-batched-tokens", engine.chunk))
    if engine.block_given:  # by itself vLLM takes 16, or what the kernels of MLA need
        flags.append(("--block-size", engine.block))
    visible, reserve = plan.planner.accelerator.visible, engine.reserve
    share = float(1 - reserve.share) if reserve.share else (visible - reserve.of(visible)) * 1000 // visible / 1000
    flags.append(("--gpu-memory-utilization", f"{share:g}"))
    if plan.planner.model.left_out:
        flags.append(("--language-model-only", None))
    words = {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8"}
    flags += [("--kv-cache-dtype", word) for word in _cache(plan, words, "vLLM")]
    if guess:
        if layout.pp > 1:
            raise InputError("--emit", ["vLLM has no drafts with pipeline parallelism (--pp 1)"])
        draft = {"method": _method(plan, 0), "model": _drafter(plan), "num_speculative_tokens": guess.tokens}
        draft["parallel_drafting"] = _at_once(plan.planner.draft)
        text = json.dumps({key: value for key, value in draft.items() if value})
        flags.append(("--speculative-config", shlex.quote(text)))
    if engine.adapters:
        if engine.rank > RANKS[-1]:
            raise InputError("--emit", [f"vLLM has adapters of a rank up to {RANKS[-1]}: --adapter-rank {RANKS[-1]}"])
        rank = next(rank_limit for rank_limit in RANKS if rank_limit >= engine.rank)
        flags += [("--enable-lora", None), ("--max-loras", engine.adapters), ("--max-lora-rank", rank)]
    return flags


def _sglang(plan: Plan, weights: CommandWeights, guess: SpeculativeDecoding | None) -> tuple[str, Flags]:
    layout, engine = plan.best.layout, plan.planner.engine
    shared, together = layout.sharing > 1, layout.tp * layout.dp
    if (shared and (layout.expert_group != together or layout.pp > 1)) or layout.ep not in (1, layout.tp, together):
        raise _refuse(plan, "SGLang")
    flags: Flags = [*_conversion_on_load(weights), ("--tp-size", together if shared else layout.tp)]
    flags += _above_one(("--pp-size", layout.pp), ("--dp-size", layout.dp))
    if shared:
        flags.append(("--enable-dp-attention", None))
    if plan.planner.model.kind == "encoder":
        flags.append(("--is-embedding", None))
    flags += _above_one(("--ep-size", layout.ep))
    sequences = running(plan, layout) * (layout.dp if shared else 1)
    # It keeps a few tokens of the context for itself (managers/tp_worker.py: max_req_input_len = context - 6).
    context = max(plan.context, min(plan.context + 6, plan.planner.model.context or plan.context + 6))
    flags += [("--context-length", context), ("--max-running-requests", sequences)]
    # Of copies that share experts it divides the size by their number (server_args.py: _handle_data_parallelism).
    flags.append(("--chunked-prefill-size", engine.chunk * (layout.dp if shared else 1)))
    if engine.block_given:
        flags.append(("--page-size", engine.block))
    gpu = plan.best.fullest
    reserve = engine.reserve.of(plan.planner.accelerator.visible)
    flags.append(("--mem-fraction-static", _share(gpu.weights + gpu.pool, reserve, gpu.overhead, gpu.peak)))
    if engine.interval > 1:
        flags.append(("--scheduler-recv-interval", engine.interval))
    words = {"bf16": "bfloat16", "fp8": "fp8_e4m3", "fp4": "fp4_mx_block16"}
    flags += [("--kv-cache-dtype", word) for word in _cache(plan, words, "SGLang")]
    if guess:
        method = _method(plan, 1)
        if shared and method in ("STANDALONE", "NGRAM"):
            raise InputError("--emit", ["SGLang shares experts between copies only with EAGLE drafts, or mtp"])
        if plan.planner.model.kind in ("hybrid", "recurrent"):  # docs.sglang.io, basic_usage/qwen3: MambaRadixCache
            flags.append(("--mamba-scheduler-strategy", "extra_buffer"))
        flags.append(("--speculative-algorithm", method))
        if where := _drafter(plan):
            flags.append(("--speculative-draft-model-path", where))
        if method != "NGRAM":
            flags += [("--speculative-num-steps", guess.tokens), ("--speculative-eagle-topk", 1)]
        flags.append(("--speculative-num-draft-tokens", guess.tokens + 1))
    if engine.adapters:
        flags += [("--enable-lora", None), ("--max-loras-per-batch", engine.adapters)]
        flags += [("--max-lora-rank", engine.rank), ("--lora-target-modules", "all")]
    return f"python -m sglang.launch_server --model-path {weights.checkpoint}", flags


def _trtllm(plan: Plan, weights: CommandWeights, guess: SpeculativeDecoding | None) -> tuple[str, Flags]:
    layout, engine = plan.best.layout, plan.planner.engine
    if layout.sharing > 1 and (layout.tp > 1 or layout.expert_group != layout.dp):
        raise _refuse(plan, "TensorRT-LLM")
    flags: Flags = [("--tp_size", layout.dp if layout.sharing > 1 else layout.tp)]
    flags += _above_one(("--pp_size", layout.pp), ("--ep_size", layout.ep))
    flags += [("--max_seq_len", plan.context), ("--max_batch_size", running(plan, layout))]
    gpu = plan.best.fullest
    reserve = engine.reserve.of(plan.planner.accelerator.visible) + gpu.rank.overheads.get("left free", 0)
    flags += [("--max_num_tokens", engine.chunk), ("--kv_cache_free_gpu_memory_fraction", _share(gpu.pool, reserve))]
    start = f"trtllm-serve {weights.checkpoint}"
    if options := _options(plan, weights, guess):
        flags.append(("--extra_llm_api_options", "options.yaml"))
        start = "\n".join(["cat > options.yaml <<'END'", *options, "END", start])
    return start, flags


def _options(plan: Plan, weights: CommandWeights, guess: SpeculativeDecoding | None) -> list[str]:
    """Options that TensorRT-LLM only reads from a file."""
    engine, lines = plan.planner.engine, []
    if weights.dtype:
        lines.append(f"dtype: {weights.dtype}")
    cache = [f"  dtype: {word}" for word in _cache(plan, {"fp8": "fp8", "fp4": "nvfp4"}, "trtllm-serve")]
    if engine.block_given:
        cache.append(f"  tokens_per_block: {engine.block}")
    if windows := _windows(plan):
        cache.append(f"  max_attention_window: {windows}")
    if cache:
        lines += ["kv_cache_config:", *cache]
    if plan.best.layout.sharing > 1:
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
        if method in ("DraftTarget", "NGram"):  # they do not work with the scheduler that overlaps steps
            lines.append("disable_overlap_scheduler: true")
    if engine.adapters:
        lines += ["lora_config:", f"  lora_target_modules: [{', '.join(ADAPTED)}]", f"  max_lora_rank: {engine.rank}"]
        lines += [f"  max_loras: {engine.adapters}", f"  max_cpu_loras: {engine.adapters}"]
    return lines


def _windows(plan: Plan) -> list[int]:
    """Tokens of each layer that TensorRT-LLM should cache, without repetitions, which it adds itself (KvCacheConfig:
    `max_attention_window`); empty: all, its default (pyexecutor/resource_manager.py)."""
    model, context = plan.planner.model, plan.context
    cores = [(entry.numbers, entry.leaf.span) for entry in model.entries if isinstance(entry.leaf, CachedCore)]
    windows = {number: span.max_keys for numbers, span in cores if isinstance(span, Window) for number in numbers}
    kept = [min(windows.get(number, context), context) for number in range(model.n_layers)]
    period = next(n for n in range(1, len(kept) + 1) if all(kept[i] == kept[i % n] for i in range(len(kept))))
    return kept[:period] if min(kept) < context else []


VLLM = CommandStyle(
    "name each adapter: --lora-modules NAME=PATH …", _vllm, "vLLM 0.33", _vllm_weights, _vllm_pages, without_towers=True
)
LLAMA_CPP = CommandStyle(
    "name each adapter: --lora FILE",
    llama_server,
    "llama.cpp 00dc805",
    gguf_file,
    gguf=True,
    without_towers=True,
    one_copy=True,
)
ENGINES = {
    "vllm": VLLM,
    "sglang": CommandStyle(
        "name each adapter: --lora-paths NAME=PATH …",
        _sglang,
        "SGLang 0.5.23",
        _sglang_weights,
        _sglang_pages,
        gathers=False,
    ),
    "trtllm": CommandStyle(
        "each request names its adapter: lora_request",
        _trtllm,
        "TensorRT-LLM 00209af",
        _trtllm_weights,
        _trtllm_pages,
        gathers=True,
        one_copy=True,
    ),
    "dynamo": VLLM._replace(
        adapters="each adapter is loaded by the workers' own API (DYN_LORA_ENABLED=true)", write=None, runs="vllm"
    ),
    "llama.cpp": LLAMA_CPP,
    "ollama": LLAMA_CPP._replace(
        adapters="", write=modelfile, version="Ollama 071c82b", weights=gguf_path, runs="llama.cpp"
    ),
}
