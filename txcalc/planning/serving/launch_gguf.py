"""The commands that serve a plan from a .gguf file: llama.cpp's `llama-server`, and a Modelfile for Ollama."""

from __future__ import annotations

import re
import shlex

from txcalc.errors import Fault, InputError
from txcalc.num import ceil_div
from txcalc.planning.formats.names import NATIVE
from txcalc.planning.formats.weights import plain
from txcalc.planning.layout import Layout
from txcalc.planning.serving.deployment import Plan
from txcalc.planning.serving.engine_profiles import data, profile
from txcalc.planning.serving.launch_weights import CommandWeights, name_of, to_fill_in
from txcalc.planning.serving.offload import is_single_decoder, layer_count
from txcalc.planning.serving.points import SpeculativeDecoding

Flags = list[tuple[str, object]]

BATCH = 2048  # llama.cpp's default of tokens that a request hands on at once; a step has `--ubatch-size` of them
CACHES_OF_OLLAMA = ("q8_0", "q4_0")


def running(plan: Plan, layout: Layout) -> int:
    """Concurrent sequences of a replica: its share of the total, at most as many as its memory was planned for."""
    memory, share = plan.planner.engine.memory, ceil_div(plan.concurrency, layout.dp)
    return min(share, memory.at_once or share) if memory else share


def gguf_file(plan: Plan) -> CommandWeights:
    """The plan's .gguf file for a shell: the file that was read, or a variable to set."""
    if path := _read(plan):
        return CommandWeights(shlex.quote(path))
    text = f"the {_type(plan)} .gguf file of {name_of(plan.planner.model)}"
    return CommandWeights(to_fill_in("GGUF", text), comment=f"set GGUF to {text}")


def gguf_path(plan: Plan) -> CommandWeights:
    """The plan's .gguf file for a Modelfile."""
    if path := _read(plan):
        return CommandWeights(path)
    model, kind = name_of(plan.planner.model), _type(plan)
    name, word = re.sub(r"[^A-Za-z0-9.]+", "-", model.rpartition("/")[2]), re.sub(r"[^A-Z0-9_]+", "-", kind)
    comment = f"replace the file after FROM by the {kind} .gguf file of {model}"
    return CommandWeights(f"./REPLACE-WITH-THE-{word}-FILE-OF-{name}.gguf", comment=comment)


def _read(plan: Plan) -> str:
    """The .gguf file that the model was read from, if the plan uses its weights; else ""."""
    model = plan.planner.model
    file = model.checkpoint.stored if model.checkpoint else None
    readable = file and file.form == "gguf" and not file.partial
    return file.where if file and readable and plan.planner.engine.weights_name == NATIVE and not model.changed else ""


def _type(plan: Plan) -> str:
    """The type of the .gguf file, as its name has it: Q4_K_M, BF16."""
    return plan.planner.engine.weights.name.upper()


def llama_server(plan: Plan, weights: CommandWeights, guess: SpeculativeDecoding | None) -> tuple[str, Flags]:
    """Start and flags of `llama-server`. Its context is of all slots together."""
    engine, layout, model = plan.planner.engine, plan.best.layout, plan.planner.model
    number = slots(plan, "llama.cpp")
    flags: Flags = [("--ctx-size", plan.context * number), ("--parallel", number)]
    flags += [("--batch-size", max(BATCH, engine.chunk)), ("--ubatch-size", engine.chunk)]
    flags += [("--n-gpu-layers", layers) for layers in _gpu_layers(plan)]
    if engine.offload and engine.offload.experts > engine.offload.layers:
        flags.append(("--n-cpu-moe", engine.offload.experts))
    if layout.pp > 1:
        flags += [("--split-mode", "layer"), ("--tensor-split", ",".join(["1"] * layout.pp))]
    else:
        flags.append(("--split-mode", "none"))
    flags.append(("--flash-attn", "off" if engine.memory and engine.memory.score_bytes else "on"))
    if word := _cache(plan, tuple(data()["formats"]["llama.cpp"]["kv"]), "llama.cpp"):
        flags += [("--cache-type-k", word), ("--cache-type-v", word)]
    if model.kind == "encoder":
        flags.append(("--embeddings", None))
    if model.multimodal and not model.left_out:
        flags.append(("--mmproj", to_fill_in("MMPROJ", f"the projector's .gguf file of {name_of(model)}")))
    if guess:
        flags += _draft(plan, guess)
    return f"llama-server --model {weights.checkpoint}", flags


def modelfile(plan: Plan, weights: CommandWeights, guess: SpeculativeDecoding | None) -> tuple[str, Flags]:
    """The lines of a Modelfile; comments show how to start the server."""
    engine, model = plan.planner.engine, plan.planner.model
    number = slots(plan, "Ollama")
    lacking = {
        "--draft": guess,
        "--adapters": engine.adapters,
        "--n-cpu-moe": engine.offload and engine.offload.experts > engine.offload.layers,
    }
    if flags := [flag for flag, needed in lacking.items() if needed]:
        raise InputError("--emit", [f"a Modelfile cannot set {', '.join(flags)} (--emit llama.cpp)"])
    start = {"OLLAMA_NUM_PARALLEL": str(number), "OLLAMA_FLASH_ATTENTION": "1"}
    if word := _cache(plan, CACHES_OF_OLLAMA, "Ollama"):
        start["OLLAMA_KV_CACHE_TYPE"] = word
    if plan.best.layout.pp > 1:
        start["OLLAMA_SCHED_SPREAD"] = "1"
    lines = [f"# {' '.join(f'{key}={value}' for key, value in start.items())} ollama serve"]
    lines += ["# ollama create NAME -f Modelfile && ollama run NAME"]
    lines.append(f"FROM {weights.checkpoint}")
    if model.multimodal and not model.left_out:
        lines.append("FROM ./REPLACE-WITH-THE-PROJECTOR.gguf")
    lines += [f"PARAMETER num_ctx {plan.context}", f"PARAMETER num_batch {engine.chunk}"]
    lines += [f"PARAMETER num_gpu {layers}" for layers in _gpu_layers(plan)]
    return "\n".join(lines), []


def slots(plan: Plan, name: str) -> int:
    """Concurrent sequences of a replica. Errors: `InputError` for a layout that llama.cpp does not have."""
    layout = plan.best.layout
    if layout.tp > 1 or layout.ep > 1 or layout.sharing > 1:
        mend = "--tp 1" if plan.planner.engine.memory else "--engine llama.cpp"
        raise InputError("--emit", [f"{name} splits a model by layers, the plan's layout is {layout} ({mend})"])
    engine = profile("llama.cpp")
    assert engine is not None
    most = int(engine.numbers["most_sequences"])
    return min(running(plan, layout), plan.best.max_concurrency // layout.dp, most)


def _gpu_layers(plan: Plan) -> list[int]:
    """Layers on the GPU as llama.cpp counts them, the head included; none for models that it does not split."""
    model, offload = plan.planner.model, plan.planner.engine.offload
    if not is_single_decoder(model):
        return []
    return [0 if offload and offload.head else layer_count(model) + 1 - (offload.layers if offload else 0)]


def _cache(plan: Plan, known: tuple[str, ...], name: str) -> str:
    """The dtype of a narrow cache; "": 16 bits. Errors: `InputError` if the engine does not have it."""
    engine = plan.planner.engine
    if engine.cache_bits == 16:
        return ""
    if (kv := plain(engine.kv)) not in known:
        raise InputError("--emit", [Fault("--kv", engine.kv, f"a dtype of {name}'s cache: bf16, {', '.join(known)}")])
    return kv


def _draft(plan: Plan, guess: SpeculativeDecoding) -> Flags:
    """Flags of a draft model, or of the model's own prediction layer. Errors: `InputError` for other drafts."""
    draft, model = plan.planner.draft, plan.planner.model
    if draft is None or draft.description.drafting != "in-turn" or draft.description.last.features:
        name = draft.name if draft else "n-grams"
        raise InputError("--emit", [f"llama.cpp's flags are not known for a draft such as {name}"])
    if draft is model.predictor:
        flags: Flags = [("--spec-type", "draft-mtp")]
    else:
        file = to_fill_in("DRAFT", f"the .gguf file of {name_of(draft)}")
        flags = [("--spec-type", "draft-simple"), ("--spec-draft-model", file)]
    return [*flags, ("--spec-draft-n-max", guess.tokens)]
