"""What stands beside a multimodal config's language model: its vision or audio tower, and the projector between them.

A key that a tower or projector does not know makes the whole unknown, and never the language model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isqrt
from typing import NamedTuple

from txcalc.errors import ABSENT, InputError, shown
from txcalc.ledger import walk
from txcalc.model import Model
from txcalc.parts.part import Workload
from txcalc.parts.projectors import projector
from txcalc.parts.tower import Projector
from txcalc.sources import build
from txcalc.sources.huggingface import tensors
from txcalc.sources.huggingface.config import Config
from txcalc.sources.huggingface.shared import Raw
from txcalc.sources.huggingface.tensors import Projection, Steps, Tower
from txcalc.sources.huggingface.towers import GELU, TOWERS, shuffled
from txcalc.sources.spec import MAX_SIZE

# Sizes of the language model that older configs say outside text_config, too; `multimodal` compares them.
SAID_TWICE = frozenset({"hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"})


class Beside(NamedTuple):
    """How a model type is put together: the key of its tower's config (none: its sizes stand in the whole's), the
    tower that a config without a model type means, which towers it may be (none: always that one), and its
    projector."""

    key: str
    tower: str
    others: tuple[str, ...]
    projector: Callable[[Config, Config, Tower, Raw], Projection]
    copies: int = 1


def beside(c: Config, text: Config, raw: Raw) -> Raw:
    """The keys of a description that say what is beside the language model `raw`, and a note with its parts."""
    found: Raw = {"multimodal": True}
    plan = BESIDE.get(c.model_type)
    if plan is None:
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
        tower, projection = _read(own, plan, raw)
        own.leftovers()
        own.finish(c.model_type)
        made, said = _described(plan, tower, projection)
    except InputError as error:
        more = f" (and {len(error.faults) - 1} more)" if len(error.faults) > 1 else ""
        c.note(f"params.whole is not known: {error.faults[0]}{more}")
        return found
    c.assumptions += own.assumptions
    c.note(f"beside the language model: {said} parameters")
    return found | made


def _described(plan: Beside, tower: Tower, projection: Projection) -> tuple[Raw, str]:
    """The towers that are descriptions, and the parameters of what is none; what there is, in words. Errors:
    `InputError`."""
    steps, held = [*tower.steps, *projection.steps], tower.params + projection.params
    names = ("audio",) if plan.key in ("audio_config", "encoder_config") else ("vision", "video")[: plan.copies]
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
        tower = TOWERS[plan.tower](own)
        return tower, plan.projector(own, own, tower, raw)
    data = own.data.get(plan.key, ABSENT)
    own.ignore(plan.key)
    if not isinstance(data, Mapping):
        raise InputError(own.model_type, [f"{plan.key} is {shown(data)}, expected an object, the tower's own config"])
    name = data.get("model_type", plan.tower) if plan.others else plan.tower
    if name not in (plan.tower, *plan.others):
        raise InputError(own.model_type, [f"{plan.key}.model_type is {shown(name)}, a tower that is not read"])
    v = Config(data, name, f"{plan.key}.", own)
    _without_weights(v)
    v.ignore("dropout", "encoder_layerdrop", "tie_word_embeddings")
    tower = TOWERS[name](v)
    return tower, plan.projector(own, v, tower, raw)


# Projectors: the whole's config, the tower's, the tower, the language model.


def _layers_read(c: Config) -> int:
    """How many of the tower's layers are put side by side."""
    layers = c.data.get("vision_feature_layer", -1)
    c.asked.add("vision_feature_layer")
    if type(layers) is int:
        return 1
    if not isinstance(layers, list) or not layers:
        c.fault("vision_feature_layer", layers, "a layer, or a list of layers")
        return 1
    return len(layers)


def _dropped(c: Config, default: str) -> int:
    """The first position, unless all are handed on."""
    c.asked.add("vision_feature_select_strategy")
    return 1 if c.data.get("vision_feature_select_strategy", default) == "default" else 0


def _two(width: int, bias: bool = True) -> Steps:
    """Two matrices to one width."""
    return {"linear": width, "bias": bias}, GELU, {"linear": width, "bias": bias}


def _llava(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Two matrices."""
    c.ignore("projector_hidden_act", "image_grid_pinpoints", "vision_aspect_ratio")
    c.ignore("spatial_pool_mode", "spatial_pool_stride")
    wide: Raw = {"merge": 1, "to": tower.width * _layers_read(c)}
    bias = c.flag("multimodal_projector_bias", default=True)
    return Projection((wide, *_two(raw["d_model"], bias)), _dropped(c, "default"))


def _llava_next(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """And a vector that stands for the end of a row."""
    c.ignore("use_image_newline_parameter")
    steps, dropped, _ = _llava(c, v, tower, raw)
    return Projection((*steps, {"vectors": 1}), dropped)


def _llava_onevision(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    steps, _, _ = _llava_next(c, v, tower, raw)
    return Projection(steps, _dropped(c, "full"))


def _vipllava(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A norm over five layers' features before the two matrices."""
    c.ignore("projector_hidden_act", "projector_layernorm_eps")
    layers = c.data.get("vision_feature_layers", c.data.get("vision_feature_layer", [-2, -5, -8, -11, 6]))
    c.ignore("vision_feature_layers", "vision_feature_layer")
    wide = tower.width * (len(layers) if isinstance(layers, list) else 1)
    return Projection(({"merge": 1, "to": wide}, {"norm": "layer"}, *_two(raw["d_model"])), 1)


def _paligemma(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    c.ignore("hidden_size", "vocab_size")
    return Projection(({"linear": c.size("projection_dim", default=2048)},))


def _gemma3(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """The mean of so many patches that a picture has as many tokens as the config says; a norm, a matrix."""
    tokens = c.size("mm_tokens_per_image", default=256)
    assert tower.raw is not None
    vision = tower.raw["vision"]
    side = vision["image"] // vision["patch"]
    kernel = max(1, side // max(1, isqrt(tokens)))
    steps: Steps = ({"pool": kernel**2}, {"norm": "rms"}, {"linear": raw["d_model"], "bias": False})
    return Projection(steps, side**2 + tower.first - (side // kernel * kernel) ** 2)


def _mistral3(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A norm, patches merged, two matrices."""
    c.ignore("projector_hidden_act")
    own = c.model_type == "mistral3"
    merge, bias = (
        c.size("spatial_merge_size", default=2) ** 2,
        own and c.flag("multimodal_projector_bias", default=False),
    )
    layers = _layers_read(c) if own else 1
    merged: Steps = ({"merge": merge}, {"linear": tower.width, "bias": False}, {"merge": 1, "to": tower.width * layers})
    return Projection(({"norm": "rms"}, *merged, *_two(raw["d_model"], bias)))


def _internvl(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    c.ignore("projector_hidden_act", "vision_feature_layer")
    steps: Steps = ({"merge": shuffled(c, "downsample_ratio")}, {"norm": "layer"}, *_two(raw["d_model"]))
    return Projection(steps, _dropped(c, "default"))


# What LFM2-VL's processor cuts a picture by.
TILES = (
    "encoder_patch_size", "tile_size", "min_tiles", "max_tiles", "min_image_tokens", "max_image_tokens",
    "max_num_patches", "do_image_splitting", "use_thumbnail", "use_image_special_tokens", "max_pixels_tolerance",
    "vision_feature_layer",
)  # fmt: skip


def _lfm2_vl(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    c.ignore("projector_hidden_act", *TILES)
    bias, wide = c.flag("projector_bias", default=True), c.size("projector_hidden_size", default=2560)
    norm: Steps = ({"norm": "layer"},) if c.flag("projector_use_layernorm", default=True) else ()
    then: Steps = ({"linear": wide, "bias": bias}, GELU, {"linear": raw["d_model"], "bias": bias})
    return Projection(({"merge": c.size("downsample_factor", default=2) ** 2}, *norm, *then))


def _merging(tower: Tower, merged: int, raw: Raw) -> Projection:
    """A norm, and two matrices on patches side by side."""
    steps: Steps = ({"norm": "layer"}, {"merge": merged}, {"linear": tower.width * merged}, GELU)
    return Projection((*steps, {"linear": raw["d_model"]}))


def _paddleocr(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    return _merging(tower, v.size("spatial_merge_size", default=2) ** 2, raw)


def _deepseek_vl(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    return Projection(_two(raw["d_model"]))


def _idefics3(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    c.ignore("use_cache")
    merge: Raw = {"merge": c.size("scale_factor", default=2) ** 2}
    return Projection((merge, {"linear": raw["d_model"], "bias": False}))


def _ovis2(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A table of visual words."""
    c.ignore("visual_indicator_token_ids")
    for key, name, default in (("hidden_size", "d_model", 1536), ("vocab_size", "vocab_size", 151643)):
        c.asked.add(key)  # the head's sizes, whatever the language model's are
        if c.data.get(key, default) != raw[name]:
            c.fault(key, c.data.get(key, default), f"text_config's {raw[name]:,}")
    return Projection(({"linear": raw["d_model"], "bias": False},))


def _llama4(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    return Projection(({"linear": raw["d_model"], "bias": False},), tower.first)


def _none(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """The tower merges its patches itself, to the language model's width."""
    if tower.width != raw["d_model"]:
        v.fault("out_hidden_size", tower.width, f"the language model's width {raw['d_model']:,}")
    return Projection(())


def _gated(c: Config, inner: int, raw: Raw) -> Steps:
    """A gated layer between two matrices; what is odd is no half of a width."""
    c.divides(2, inner, "2", "alignment_intermediate_size")
    return {"linear": inner}, {"activation": "silu", "gated": True}, {"linear": raw["d_model"]}


def _cohere2(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    merge: Raw = {"merge": c.size("downsample_factor", default=2) ** 2}
    return Projection((merge, *_gated(c, c.size("alignment_intermediate_size", default=36864), raw)))


def _aya(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """The same after a norm."""
    c.ignore("vision_feature_layer", "adapter_layer_norm_eps")
    inner = c.size("alignment_intermediate_size", default=raw["d_model"])
    merge: Raw = {"merge": c.size("downsample_factor", default=2) ** 2}
    return Projection((merge, {"norm": "layer"}, *_gated(c, inner, raw)), _dropped(c, "full"))


def _kimi(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    merge = v.data.get("merge_kernel_size", [2, 2])
    v.asked.add("merge_kernel_size")
    if not isinstance(merge, list) or len(merge) != 2 or not all(type(n) is int and 0 < n < 100 for n in merge):
        v.fault("merge_kernel_size", merge, "two whole numbers above 0")
        merge = [1, 1]
    if c.size("projection_hidden_size", default=1152) != tower.width:
        c.fault("projection_hidden_size", c.data.get("projection_hidden_size", 1152), f"the tower's {tower.width:,}")
    c.ignore("projection_hidden_act", "projection_layer_norm_eps")
    return _merging(tower, merge[0] * merge[1], raw)


def _got_ocr2(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Two convolutions of 3 × 3, to twice the channels and to the language model's width, and a matrix."""
    n, d = tower.width, raw["d_model"]
    first: Steps = ({"merge": 4, "to": 9 * n}, {"linear": 2 * n, "bias": False})
    return Projection((*first, {"merge": 4, "to": 18 * n}, {"linear": d, "bias": False}, {"linear": d}))


def _voxtral(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Four frames side by side, two matrices without biases."""
    c.ignore("projector_hidden_act", "hidden_size")
    return Projection((_together(v, tower, v.size("intermediate_size", default=5120)), *_two(raw["d_model"], False)))


def _together(v: Config, tower: Tower, wide: int) -> Raw:
    """As many frames side by side as make a width; where none do, no number of them makes a token."""
    return {"merge": MAX_SIZE if wide % tower.width else wide // tower.width, "to": wide}


def _audioflamingo3(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    c.ignore("projector_hidden_act")
    return Projection(({"pool": 2}, *_two(raw["d_model"], c.flag("projector_bias", default=True))))


def _qwen2_audio(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    return Projection(({"pool": 2}, {"linear": raw["d_model"]}))


def _one(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A matrix."""
    c.ignore(*(("checkpoint",) if c.model_type == "mllama" else ()))
    return Projection(({"linear": raw["d_model"]},))


def _gemma4(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A matrix for pictures; where there is an audio_config its Conformer, and a matrix for sounds."""
    c.ignore("vision_soft_tokens_per_image")
    d, sound = int(raw["d_model"]), c.table("audio_config")
    return Projection(({"linear": d, "bias": False},), params=tensors.conformer(sound, d) if sound else 0)


def _moss(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Frames side by side, two matrices and a norm."""
    c.ignore("projector_hidden_act", "audio_chunk_size")
    merge: Raw = {"merge": c.size("audio_merge_size", default=4)}
    return Projection((merge, *_two(raw["d_model"], c.flag("projector_bias", default=True)), {"norm": "layer"}))


def _musicflamingo(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Audio Flamingo 3's; the times of its frames are rotary positions."""
    c.ignore("rope_parameters", "partial_rotary_factor", "max_position_embeddings", "head_dim", "audio_frame_step")
    return _audioflamingo3(c, v, tower, raw)


def _glmasr(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """As many frames side by side as make the tower's feed-forward width, and two matrices."""
    c.ignore("projector_hidden_act")
    frames, d = _together(v, tower, v.size("intermediate_size", default=5120)), raw["d_model"]
    return Projection((frames, {"linear": 2 * d}, GELU, {"linear": d}))


def _qwen3_asr(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    c.ignore("token_classification_bias")  # of another class's head
    return Projection(({"linear": tower.width}, GELU, {"linear": v.size("output_dim", default=3584)}))


AUTO = ("clip_vision_model", "siglip_vision_model", "pixtral")
BESIDE: dict[str, Beside] = {
    "aria": Beside("vision_config", "idefics3_vision", (), tensors.aria_projector),
    "audioflamingo3": Beside("audio_config", "whisper", (), _audioflamingo3),
    "aya_vision": Beside("vision_config", "siglip_vision_model", AUTO, _aya),
    "cohere2_vision": Beside("vision_config", "siglip_vision_model", AUTO, _cohere2),
    "cohere_compass": Beside("vision_config", "qwen3_vl", (), _none),
    "exaone4_5": Beside("vision_config", "exaone4_5", (), _none),
    "fuyu": Beside("", "fuyu", (), _one),
    "gemma4_unified": Beside("vision_config", "gemma4_unified_vision", (), tensors.gemma4_unified_projector),
    "gemma4": Beside("vision_config", "gemma4_vision", (), _gemma4),
    "gemma3": Beside("vision_config", "siglip_vision_model", AUTO[:2], _gemma3),
    "glm4v": Beside("vision_config", "glm4v", (), _none),
    "glm4v_moe": Beside("vision_config", "glm4v", (), _none),
    "glmasr": Beside("audio_config", "glmasr_encoder", (), _glmasr),
    "granite_speech": Beside("encoder_config", "granite_speech_encoder", (), tensors.granite_speech_projector),
    "granite_speech_plus": Beside("encoder_config", "granite_speech_encoder", (), tensors.granite_speech_projector),
    "hyperclovax_vision_v2": Beside("vision_config", "qwen2_5_vl", (), _one),
    "got_ocr2": Beside("vision_config", "got_ocr2", (), _got_ocr2),
    "idefics2": Beside("vision_config", "idefics2_vision", (), tensors.idefics2_projector),
    "idefics3": Beside("vision_config", "idefics3_vision", (), _idefics3),
    "internvl": Beside("vision_config", "internvl_vision", (), _internvl),
    "kimi_k25": Beside("vision_config", "kimi_k25", (), _kimi),
    "lighton_ocr": Beside("vision_config", "pixtral", AUTO, _mistral3),
    "llama4": Beside("vision_config", "llama4_vision_model", (), _llama4),
    "llava": Beside("vision_config", "clip_vision_model", AUTO, _llava),
    "llava_next": Beside("vision_config", "clip_vision_model", AUTO, _llava_next),
    "llava_next_video": Beside("vision_config", "clip_vision_model", AUTO, _llava_next),
    "llava_onevision": Beside("vision_config", "siglip_vision_model", AUTO, _llava_onevision),
    "minicpmv4_6": Beside("vision_config", "minicpmv4_6_vision", (), tensors.minicpmv_projector),
    "minicpmv4_7": Beside("vision_config", "minicpmv4_6_vision", (), tensors.minicpmv_projector),
    "mistral3": Beside("vision_config", "pixtral", AUTO, _mistral3),
    "deepseek_vl": Beside("vision_config", "siglip_vision_model", AUTO, _deepseek_vl),
    "glm46v": Beside("vision_config", "glm4v", (), _none),
    "glmga": Beside("vision_config", "glm4v", (), _none),
    "lfm2_vl": Beside("vision_config", "siglip2_vision_model", (), _lfm2_vl),
    "paddleocr_vl": Beside("vision_config", "paddleocr_vl_vision", (), _paddleocr),
    "qianfan_ocr": Beside("vision_config", "qianfan_ocr_vision", (), _internvl),
    "mllama": Beside("vision_config", "mllama_vision_model", (), _one),
    "moss_transcribe_diarize": Beside("audio_config", "moss_transcribe_diarize_audio", (), _moss),
    "musicflamingo": Beside("audio_config", "whisper", (), _musicflamingo),
    "ovis2": Beside("vision_config", "ovis2", (), _ovis2),
    "paligemma": Beside("vision_config", "siglip_vision_model", AUTO, _paligemma),
    "qwen2_5_vl": Beside("vision_config", "qwen2_5_vl", (), _none),
    "qwen2_audio": Beside("audio_config", "whisper", (), _qwen2_audio),
    "qwen2_vl": Beside("vision_config", "qwen2_vl", (), _none),
    "qwen3_5": Beside("vision_config", "qwen3_5", (), _none),
    "qwen3_5_moe": Beside("vision_config", "qwen3_5", (), _none),
    "qwen3_asr": Beside("audio_config", "qwen3_asr_encoder", (), _qwen3_asr),
    "qwen3_vl": Beside("vision_config", "qwen3_vl", (), _none),
    "qwen3_vl_moe": Beside("vision_config", "qwen3_vl", (), _none),
    "shieldgemma2": Beside("vision_config", "siglip_vision_model", AUTO[:2], _gemma3),
    "smolvlm": Beside("vision_config", "idefics3_vision", (), _idefics3),
    "video_llava": Beside("vision_config", "clip_vision_model", AUTO, _llava, copies=2),
    "vipllava": Beside("vision_config", "clip_vision_model", AUTO, _vipllava),
    "voxtral": Beside("audio_config", "whisper", (), _voxtral),
}
