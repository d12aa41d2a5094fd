"""What stands beside a multimodal config's language model: its towers, and the projectors between them.

A key that a tower or projector does not know makes the whole unknown, and never the language model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from txcalc.errors import ABSENT, InputError, shown
from txcalc.ledger import walk
from txcalc.model import Model
from txcalc.parts.part import Workload
from txcalc.parts.projectors import projector
from txcalc.parts.tower import Projector
from txcalc.sources import build
from txcalc.sources.huggingface import janus, projectors, tensors
from txcalc.sources.huggingface import towers as see
from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.tensors import Projection, Tower
from txcalc.sources.spec import MAX_SIZE

# Sizes of the language model that older configs say outside text_config, too; `multimodal` compares them.
SAID_TWICE = frozenset({"hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"})


class Beside(NamedTuple):
    """How a model type is put together: its tower (where it may have others, that of a config without a model type),
    its projector, those others by model type, and the key of its config (none: its sizes stand in the whole's)."""

    tower: Callable[[Config], Tower]
    projector: Callable[[Config, Config, Tower, Raw], Projection]
    others: Mapping[str, Callable[[Config], Tower]] = {}
    key: str = "vision_config"
    copies: int = 1


def beside(c: Config, text: Config, raw: Raw) -> Raw:
    """The keys of a description that say what is beside the language model `raw`, and a note with its parts."""
    found: Raw = {"multimodal": True}
    plans = BESIDE.get(c.model_type, ())
    if not plans:
        c.note(f"params.whole is not known: the tower and projector of {c.model_type} are not read")
        return found
    own = Config(c.data, c.model_type)
    own.ignore(
        "text_config",
        *(key for key in text.data if key in SAID_TWICE or not text.path),
        "tie_word_embeddings",
        "image_seq_length",
        "video_seq_length",
    )
    try:
        read = [(plan, *_read(own, plan, raw)) for plan in plans]
        own.leftovers()
        own.finish(c.model_type)
        parts = [_described(*one) for one in read]
    except InputError as error:
        more = f" (and {len(error.faults) - 1} more)" if len(error.faults) > 1 else ""
        c.note(f"params.whole is not known: {error.faults[0]}{more}")
        return found
    c.assumptions += own.assumptions
    c.note(f"beside the language model: {', '.join(said for _, said in parts)} parameters")
    towers = {name: table for made, _ in parts for name, table in made.get("towers", {}).items()}
    counted = sum(made.get("beside", 0) for made, _ in parts)
    return found | ({"towers": towers} if towers else {}) | ({"beside": counted} if counted else {})


def _described(plan: Beside, tower: Tower, projection: Projection) -> tuple[Raw, str]:
    """The towers that are descriptions, and the parameters of what is none; what there is, in words. Errors:
    `InputError`."""
    steps, held = [*tower.steps, *projection.steps], tower.params + projection.params
    names = ("vision", "video")[: plan.copies] if plan.key in ("vision_config", "") else ("audio",)
    alone = None if tower.raw is None else stack_of(tower.raw)
    made = projector(tower.width if alone is None else alone.spec["stacks"][""]["d_model"], steps)
    stacks, own = (0 if alone is None else len(names) * alone.params), _params(made)
    towers = f"{' and '.join(names)} tower{'s' * (len(names) > 1)}"
    words = f"{towers} {stacks + tower.params:,}, projector {own + projection.params:,}"
    positions = alone.root.fixed if alone else None
    left = (positions or MAX_SIZE) - projection.dropped
    if tower.raw is None or not tower.runs or left < made.per_token:
        return {"beside": stacks + own + held}, f"{words} (no FLOPs are known)"
    dropped = projection.dropped + (left % made.per_token if positions else 0)
    described = {name: tower.raw | {"projector": {"steps": [], "dropped": dropped}} for name in names}
    described[names[0]]["projector"]["steps"] = steps
    if held:
        words += f" (no FLOPs of {held:,} of them are known)"
    return {"towers": described} | ({"beside": held} if held else {}), words


def stack_of(raw: Raw) -> Model:
    """A tower without its projector. Errors: `InputError`."""
    return build(raw | {"projector": {"steps": []}}, "tower")


def _params(part: Projector) -> int:
    return sum(entry.params for entry in walk(part, Workload(1, 1, 0, None)))


# Activations of transformers' table that have weights of their own.
_LEARNED = ("prelu", "xielu")


def _without_weights(c: Config) -> None:
    """A fault for an activation that has weights: those of a tower or projector are not looked at otherwise."""
    for key, value in c.data.items():
        if isinstance(value, str) and value in _LEARNED:
            c.fault(key, value, "an activation without weights")


def _read(own: Config, plan: Beside, raw: Raw) -> tuple[Tower, Projection]:
    """The tower and the projector. Errors: `InputError` where a table or a tower is not read."""
    _without_weights(own)
    if not plan.key:
        tower = plan.tower(own)
        return tower, plan.projector(own, own, tower, raw)
    data = own.data.get(plan.key, ABSENT)
    own.ignore(plan.key)
    if not isinstance(data, Mapping):
        raise InputError(own.model_type, [f"{plan.key} is {shown(data)}, expected an object, the tower's own config"])
    usual = next((name for name, read in plan.others.items() if read is plan.tower), own.model_type)
    name = data.get("model_type", usual) if plan.others else usual
    if plan.others and (not isinstance(name, str) or name not in plan.others):
        raise InputError(own.model_type, [f"{plan.key}.model_type is {shown(name)}, a tower that is not read"])
    v = Config(data, name, f"{plan.key}.", own)
    _without_weights(v)
    v.ignore("dropout", "encoder_layerdrop", "tie_word_embeddings")
    tower = plan.others.get(name, plan.tower)(v)
    return tower, plan.projector(own, v, tower, raw)


AUTO = {"clip_vision_model": see.clip, "siglip_vision_model": see.siglip, "pixtral": see.pixtral}
_BESIDE: dict[str, tuple[Beside, ...]] = {
    "aria": (Beside(see.idefics3, tensors.aria_projector),),
    "audioflamingo3": (Beside(see.whisper, projectors.audioflamingo3, key="audio_config"),),
    "aya_vision": (Beside(see.siglip, projectors.aya, AUTO),),
    "blip-2 instructblip instructblipvideo": (Beside(see.blip2, tensors.blip2_projector),),
    "cohere2_vision": (Beside(see.siglip, projectors.cohere2, AUTO),),
    "cohere_compass qwen3_vl qwen3_vl_moe": (Beside(see.qwen3_vl, projectors.none),),
    "cosmos3_edge": (
        Beside(lambda v: see.ragged(v, v.size("num_patches", default=256), 1152, 4304, 27, 16), projectors.cosmos3),
    ),
    "deepseek_vl": (Beside(see.siglip, projectors.deepseek_vl, AUTO),),
    "ernie4_5_vl_moe": (Beside(see.ernie4_5_vl, projectors.ernie),),
    "exaone4_5": (Beside(lambda v: see.qwen2_5_vl(v, grouped=True), projectors.none),),
    "florence2": (Beside(tensors.florence2, tensors.florence2_projector),),
    "fuyu": (Beside(see.fuyu, projectors.one, key=""),),
    "gemma3 shieldgemma2 t5gemma2_encoder": (Beside(see.siglip, projectors.gemma3, dict(list(AUTO.items())[:2])),),
    "gemma4": (Beside(see.gemma4, projectors.gemma4),),
    "gemma4_unified": (Beside(tensors.gemma4_unified, tensors.gemma4_unified_projector),),
    "glm46v glm4v glm4v_moe glmga": (Beside(see.glm4v, projectors.none),),
    "glm_ocr": (Beside(lambda v: see.glm4v(v, ocr=True), projectors.none),),
    "glmasr": (Beside(see.glmasr, projectors.glmasr, key="audio_config"),),
    "got_ocr2": (Beside(tensors.got_ocr2, projectors.got_ocr2),),
    "granite_speech granite_speech_plus": (
        Beside(tensors.granite_speech, tensors.granite_speech_projector, key="encoder_config"),
    ),
    "hyperclovax_vision_v2": (Beside(see.qwen2_5_vl, projectors.one),),
    "idefics2": (Beside(lambda v: see.headless(v, 32), tensors.idefics2_projector),),
    "idefics3 smolvlm": (Beside(see.idefics3, projectors.idefics3),),
    "internvl": (Beside(see.internvl, projectors.internvl),),
    "janus": (Beside(janus.tower, janus.projector),),
    "kimi_k25": (Beside(see.kimi_k25, projectors.kimi),),
    "lfm2_vl": (Beside(see.siglip2, projectors.lfm2_vl),),
    "lighton_ocr mistral3": (Beside(see.pixtral, projectors.mistral3, AUTO),),
    "llama4": (Beside(see.llama4, projectors.llama4),),
    "llava": (Beside(see.clip, projectors.llava, AUTO),),
    "llava_next llava_next_video": (Beside(see.clip, projectors.llava_next, AUTO),),
    "llava_onevision": (Beside(see.siglip, projectors.llava_onevision, AUTO),),
    "minicpm_ocr minicpmv4_6 minicpmv4_7": (Beside(see.minicpmv, tensors.minicpmv_projector),),
    "mllama": (Beside(tensors.mllama, projectors.one),),
    "molmo2": (Beside(see.molmo2, tensors.molmo2_projector),),
    "moss_transcribe_diarize": (
        Beside(lambda v: see.whisper(v, 1024, 4096, 24, 16, bands=80), projectors.moss, key="audio_config"),
    ),
    "muse_glimmer": (Beside(see.muse_glimmer, projectors.muse),),
    "musicflamingo": (Beside(see.whisper, projectors.musicflamingo, key="audio_config"),),
    "ovis2": (Beside(see.ovis2, projectors.ovis2),),
    "paddleocr_vl": (Beside(see.paddleocr_vl, projectors.paddleocr),),
    "paligemma": (Beside(see.siglip, projectors.paligemma, AUTO),),
    "qianfan_ocr": (Beside(lambda v: see.internvl(v, bias=True), projectors.internvl),),
    "qwen2_5_omni_thinker": (
        Beside(see.qwen2_5_vl, projectors.none),
        Beside(see.qwen2_5_omni, projectors.qwen2_5_omni, key="audio_config"),
    ),
    "qwen2_5_vl": (Beside(see.qwen2_5_vl, projectors.none),),
    "qwen2_audio": (Beside(see.whisper, projectors.qwen2_audio, key="audio_config"),),
    "qwen2_vl": (Beside(see.qwen2_vl, projectors.none),),
    "qwen3_5 qwen3_5_moe": (Beside(lambda v: see.qwen3_vl(v, deep=False), projectors.none),),
    "qwen3_asr": (Beside(tensors.qwen3_asr, projectors.qwen3_asr, key="audio_config"),),
    "qwen3_omni_moe_thinker": (
        Beside(see.qwen3_vl, projectors.none),
        Beside(lambda v: tensors.qwen3_asr(v, 1280, 5120, 32, 20), projectors.qwen3_asr, key="audio_config"),
    ),
    "step3p7": (Beside(see.step3p7, projectors.step3p7),),
    "vibevoice": (
        Beside(lambda v: tensors.vibevoice_encoder(v, both=True), tensors.vibevoice_projector, key="audio_config"),
        Beside(tensors.vibevoice_encoder, tensors.vibevoice_projector, key="semantic_model_config"),
        Beside(tensors.diffusing, tensors.diffusing_projector, key="diffusion_head_config"),
    ),
    "vibevoice_asr": tuple(
        Beside(tensors.vibevoice_encoder, tensors.vibevoice_projector, key=f"{kind}_tokenizer_encoder_config")
        for kind in ("acoustic", "semantic")
    ),
    "video_llama_3": (Beside(lambda v: see.ragged(v, None, 768, 3072, 12, 12), projectors.deepseek_vl),),
    "video_llava": (Beside(see.clip, projectors.llava, AUTO, copies=2),),
    "vipllava": (Beside(see.clip, projectors.vipllava, AUTO),),
    "voxtral": (Beside(see.whisper, projectors.voxtral, key="audio_config"),),
}
BESIDE = {name: plans for names, plans in _BESIDE.items() for name in names.split()}
