"""What stands beside a multimodal config's language model: its vision or audio tower, and the projector between them.

Only parameters are counted here. A key that a tower or projector does not know makes the whole unknown, and never the
language model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from txcalc.errors import ABSENT, InputError, shown
from txcalc.sources.huggingface.config import Config
from txcalc.sources.huggingface.shared import Raw
from txcalc.sources.huggingface.towers import TOWERS, Tower, block, full, linear
from txcalc.sources.spec import MAX_SIZE

# Sizes of the language model that older configs say outside text_config, too; `multimodal` compares them.
SAID_TWICE = frozenset({"hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"})


class Beside(NamedTuple):
    """How a model type is put together: the key of its tower's config (none: its sizes stand in the whole's), the
    tower that a config without a model type means, which towers it may be (none: always that one), and the projector's
    parameters."""

    key: str
    tower: str
    others: tuple[str, ...]
    projector: Callable[[Config, Config, Tower, Raw], int]
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
        params, projector = _counted(own, plan, raw)
        own.leftovers()
        own.finish(c.model_type)
    except InputError as error:
        more = f" (and {len(error.faults) - 1} more)" if len(error.faults) > 1 else ""
        c.note(f"params.whole is not known: {error.faults[0]}{more}")
        return found
    c.assumptions += own.assumptions
    kind = "audio" if plan.key in ("audio_config", "encoder_config") else "vision"
    towers = "towers" if plan.copies > 1 else "tower"
    parts = f"{params:,}, projector {projector:,}" if projector else f"with its projector {params:,}"
    c.note(f"beside the language model: {kind} {towers} {parts} parameters")
    return found | {"beside": params + projector}


# Activations of transformers' table that have weights of their own.
_LEARNED = ("prelu", "xielu")


def _without_weights(c: Config) -> None:
    """A fault for an activation that has weights: those of a tower or projector are not looked at otherwise."""
    for key, value in c.data.items():
        if isinstance(value, str) and value in _LEARNED:
            c.fault(key, value, "an activation without weights")


def _counted(own: Config, plan: Beside, raw: Raw) -> tuple[int, int]:
    """Parameters of the towers and of the projector. Errors: `InputError` where a table or a tower is not read."""
    _without_weights(own)
    if not plan.key:
        tower = TOWERS[plan.tower](own)
        return tower.params, plan.projector(own, own, tower, raw)
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
    return plan.copies * tower.params, plan.projector(own, v, tower, raw)


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


def _llava(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """Two matrices."""
    c.ignore("projector_hidden_act", "vision_feature_select_strategy", "image_grid_pinpoints", "vision_aspect_ratio")
    c.ignore("spatial_pool_mode", "spatial_pool_stride")
    d, bias = raw["d_model"], c.flag("multimodal_projector_bias", default=True)
    return linear(tower.width * _layers_read(c), d, bias) + linear(d, d, bias)


def _llava_next(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """And a vector that stands for the end of a row."""
    c.ignore("use_image_newline_parameter")
    return _llava(c, v, tower, raw) + int(raw["d_model"])


def _vipllava(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """A norm over five layers' features before the two matrices."""
    c.ignore("projector_hidden_act", "projector_layernorm_eps")
    layers = c.data.get("vision_feature_layers", c.data.get("vision_feature_layer", [-2, -5, -8, -11, 6]))
    c.ignore("vision_feature_layers", "vision_feature_layer")
    wide, d = tower.width * (len(layers) if isinstance(layers, list) else 1), int(raw["d_model"])
    return 2 * wide + linear(wide, d) + linear(d, d)


def _paligemma(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    c.ignore("hidden_size", "vocab_size")
    return linear(tower.width, c.size("projection_dim", default=2048))


def _gemma3(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    c.ignore("mm_tokens_per_image")
    return int(linear(tower.width, raw["d_model"], False)) + tower.width


def _mistral3(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """A norm, patches merged, two matrices."""
    c.ignore("projector_hidden_act")
    d, merged = raw["d_model"], c.size("spatial_merge_size", default=2) ** 2
    bias = c.flag("multimodal_projector_bias", default=False) if c.model_type == "mistral3" else False
    wide = tower.width * (_layers_read(c) if c.model_type == "mistral3" else 1)
    ends = tower.width + linear(tower.width * merged, tower.width, False)
    return int(ends + linear(wide, d, bias) + linear(d, d, bias))


def _internvl(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    c.ignore("projector_hidden_act", "vision_feature_select_strategy", "vision_feature_layer")
    ratio = c.real("downsample_ratio", default=0.5)
    if not 0.01 <= ratio <= 1:
        c.fault("downsample_ratio", ratio, "from 0.01 to 1")
        ratio = 1.0
    wide, d = tower.width * int(1 / ratio) ** 2, int(raw["d_model"])
    return 2 * wide + linear(wide, d) + linear(d, d)


def _idefics3(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    c.ignore("use_cache")
    return linear(tower.width * c.size("scale_factor", default=2) ** 2, raw["d_model"], False)


def _idefics2(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """A gated matrix triple to the language model's width, and a resampler of latents that attend to what they read."""
    c.ignore("use_cache")
    d = int(raw["d_model"])
    p = c.table("perceiver_config") or Config({}, c.model_type, "perceiver_config.", c)
    p.ignore("hidden_act", "hidden_size", "attention_dropout", "rms_norm_eps")
    heads, groups = p.size("resampler_n_heads", default=16), p.size("num_key_value_heads", default=4)
    head, n = p.size("resampler_head_dim", default=96), p.size("resampler_depth", default=3)
    p.divides(groups, heads, "num_key_value_heads", "resampler_n_heads")
    f = raw.get("feed_forward", {}).get("d_ff")
    if f is None:
        raise InputError(c.model_type, ["its language model is not dense"])
    bridge = 2 * linear(tower.width, f, False) + linear(f, d, False)
    layer = 3 * d + 2 * (heads + groups) * head * d + 3 * linear(d, 4 * d, False)
    return int(bridge + p.size("resampler_n_latents", default=64) * d + n * layer + d)


def _ovis2(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """A table of visual words."""
    c.ignore("visual_indicator_token_ids")
    for key, name, default in (("hidden_size", "d_model", 1536), ("vocab_size", "vocab_size", 151643)):
        c.asked.add(key)  # the head's sizes, whatever the language model's are
        if c.data.get(key, default) != raw[name]:
            c.fault(key, c.data.get(key, default), f"text_config's {raw[name]:,}")
    return int(v.size("vocab_size", default=16384) * raw["d_model"])


def _llama4(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    return linear(tower.width, raw["d_model"], False)


def _none(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """The tower merges its patches itself, to the language model's width."""
    if tower.width != raw["d_model"]:
        v.fault("out_hidden_size", tower.width, f"the language model's width {raw['d_model']:,}")
    return 0


def _cohere2(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """A gated layer between two matrices."""
    wide = tower.width * c.size("downsample_factor", default=2) ** 2
    inner = c.size("alignment_intermediate_size", default=36864)
    return linear(wide, inner) + linear(inner // 2, raw["d_model"])


def _aya(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """The same after a norm."""
    c.ignore("vision_feature_select_strategy", "vision_feature_layer", "adapter_layer_norm_eps")
    wide, d = tower.width * int(c.size("downsample_factor", default=2)) ** 2, int(raw["d_model"])
    inner = int(c.size("alignment_intermediate_size", default=d))
    return 2 * wide + linear(wide, inner) + linear(inner // 2, d)


def _kimi(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    merge = v.data.get("merge_kernel_size", [2, 2])
    v.asked.add("merge_kernel_size")
    if not isinstance(merge, list) or len(merge) != 2 or not all(type(n) is int and 0 < n < 100 for n in merge):
        v.fault("merge_kernel_size", merge, "two whole numbers above 0")
        merge = [1, 1]
    if c.size("projection_hidden_size", default=1152) != tower.width:
        c.fault("projection_hidden_size", c.data.get("projection_hidden_size", 1152), f"the tower's {tower.width:,}")
    c.ignore("projection_hidden_act", "projection_layer_norm_eps")
    wide = tower.width * merge[0] * merge[1]
    return 2 * tower.width + linear(wide, wide) + linear(wide, raw["d_model"])


def _got_ocr2(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """Two convolutions of 3 × 3, to twice the channels and to the language model's width, and a matrix."""
    n, d = tower.width, int(raw["d_model"])
    return 9 * n * 2 * n + 9 * 2 * n * d + linear(d, d)


def _voxtral(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """Four frames side by side, two matrices without biases."""
    c.ignore("projector_hidden_act", "hidden_size")
    d = raw["d_model"]
    return linear(v.size("intermediate_size", default=5120), d, False) + linear(d, d, False)


def _audioflamingo3(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    c.ignore("projector_hidden_act")
    d, bias = int(raw["d_model"]), c.flag("projector_bias", default=True)
    return linear(tower.width, d, bias) + linear(d, d, bias)


def _qwen2_audio(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    return linear(tower.width, int(raw["d_model"]))


def _fuyu(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    return linear(tower.width, int(raw["d_model"]))


def _gemma4_unified(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """A matrix for pictures, and one for sounds where there is an audio_config."""
    sound, d = c.table("audio_config"), int(raw["d_model"])
    heard = linear(sound.size("audio_embed_dim", default=640), d, False) if sound else 0
    if sound is None and c.data.get("audio_config") is not None:
        heard = linear(640, d, False)
        c.assume("audio_config.audio_embed_dim", 640)
    return linear(v.size("output_proj_dims", default=3840), d, False) + heard


def _gemma4(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """A matrix for pictures; where there is an audio_config its Conformer, and a matrix for sounds."""
    c.ignore("vision_soft_tokens_per_image")
    d, sound = int(raw["d_model"]), c.table("audio_config")
    return linear(tower.width, d, False) + (_conformer(sound, d) if sound else 0)


def _conformer(a: Config, out: int) -> int:
    """Gemma 4's encoder of sound: two convolutions, layers of two feed-forwards, attention and a convolution."""
    d, n = a.size("hidden_size", default=1024), a.size("num_hidden_layers", default=12)
    heads, taps = a.size("num_attention_heads", default=8), a.size("conv_kernel_size", default=5)
    a.divides(heads, d, "num_attention_heads", "the width")
    a.ignore("hidden_act", "residual_weight", "attention_context_left", "attention_context_right")
    a.ignore("attention_chunk_size", "attention_logit_cap", "attention_invalid_logits_value", "use_clipped_linears")
    a.ignore("gradient_clipping", "subsampling_conv_channels")
    channels = a.data.get("subsampling_conv_channels", [128, 32])
    if not isinstance(channels, list) or len(channels) != 2 or not all(type(n) is int and n > 0 for n in channels):
        a.fault("subsampling_conv_channels", channels, "two whole numbers above 0")
        channels = [4, 1]
    first, second = channels
    ends = 10 * first + 9 * first * second + second + first // 4 * second * d
    attention = 5 * d * d + d // heads + 2 * d
    layer = 2 * (8 * d * d + 2 * d) + attention + 3 * d * d + taps * d + 2 * d + d
    width = a.size("output_proj_dims", default=1536)
    return int(ends + n * layer + linear(d, width) + linear(width, out, False))


def _mllama(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    c.ignore("checkpoint")
    return linear(tower.width, int(raw["d_model"]))


def _minicpmv(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """Norms and two matrices on four patches side by side, once or more."""
    c.ignore("insert_layer_id", "image_size", "patch_size", "drop_vision_last_layer", "downsample_mode")
    c.ignore("merge_kernel_size", "image_start_id", "image_end_id", "slice_start_id", "slice_end_id", "newline_id")
    d, wide, times = int(raw["d_model"]), 4 * tower.width, c.size("merger_times", default=1)
    return int(times * (2 * wide + linear(wide, wide)) + (times - 1) * linear(wide, tower.width) + linear(wide, d))


def _moss(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """Frames side by side, two matrices and a norm."""
    c.ignore("projector_hidden_act", "audio_chunk_size")
    d, bias = int(raw["d_model"]), c.flag("projector_bias", default=True)
    wide = tower.width * c.size("audio_merge_size", default=4)
    return linear(wide, d, bias) + linear(d, d, bias) + 2 * d


def _musicflamingo(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """Audio Flamingo 3's; the times of its frames are rotary positions."""
    c.ignore("rope_parameters", "partial_rotary_factor", "max_position_embeddings", "head_dim", "audio_frame_step")
    return _audioflamingo3(c, v, tower, raw)


def _glmasr(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """As many frames side by side as make the tower's feed-forward width, and two matrices."""
    c.ignore("projector_hidden_act")
    d = int(raw["d_model"])
    return linear(v.size("intermediate_size", default=5120), 2 * d) + linear(2 * d, d)


def _qwen3_asr(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    c.ignore("token_classification_bias")  # of another class's head
    return linear(tower.width, tower.width) + linear(tower.width, v.size("output_dim", default=3584))


QFORMER = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}


def _granite_speech(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """Learned queries that attend to windows of frames (a Q-Former), and a matrix. Granite Speech Plus hands on some
    of the tower's layers beside the last, with no weights of its own."""
    c.ignore("has_lora_adapter")
    queries = c.size("window_size", default=15) // c.size("downsample_rate", default=5)
    p = c.table("projector_config") or Config({}, "blip_2_qformer", "projector_config.", c)
    p.only("blip_2_qformer", "model_type", why="a Q-Former is read")
    p.only(False, "use_qformer_text_input", why="a Q-Former without words is read")
    p.ignore("vocab_size", "hidden_act", "max_position_embeddings", "position_embedding_type")
    d, f, n, heads = (p.size(key, default=size) for key, size in QFORMER.items())
    p.divides(heads, d, "num_attention_heads", "hidden_size")
    read, every = p.size("encoder_hidden_size", default=1408), p.size("cross_attention_frequency", default=2)
    layers = v.data.get("cat_hidden_layers") if c.model_type == "granite_speech_plus" else None
    v.asked |= {"cat_hidden_layers"} if c.model_type == "granite_speech_plus" else set()
    if layers is not None and (not isinstance(layers, list) or read != tower.width * (len(layers) + 1)):
        v.fault("cat_hidden_layers", layers, f"layers that are together as wide as encoder_hidden_size = {read:,}")
    across = 2 * linear(d, d) + 2 * linear(read, d) + 2 * d
    former = 2 * d + n * block(d, f, full(d)) + -(-n // every) * across
    return int(queries * d + former + linear(d, raw["d_model"]))


def _aria(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    """Learned queries that attend to the patches, as many as the longest list needs, and two matrices."""
    c.ignore("vision_feature_layer", "projector_patch_to_query_dict", "max_value_projector_patch_to_query_dict")
    table = c.data.get("projector_patch_to_query_dict")
    table = {"4900": 256} if table is None else table
    sizes = table.items() if isinstance(table, Mapping) else ()
    if not sizes or not all(str(key).isdecimal() and type(n) is int and 0 < n <= MAX_SIZE for key, n in sizes):
        c.fault("projector_patch_to_query_dict", table, "an object with a number of queries for numbers of patches")
        table = {"1": 1}
    d, out = tower.width, int(raw["d_model"])
    across = 3 * linear(d, d, False) + full(d) + linear(d, d) + 4 * d
    return int(max(table.values()) * d + across + 2 * d + linear(d, out, False) + linear(out, out, False))


def _hyperclovax(c: Config, v: Config, tower: Tower, raw: Raw) -> int:
    return linear(tower.width, int(raw["d_model"]))


AUTO = ("clip_vision_model", "siglip_vision_model", "pixtral")
BESIDE: dict[str, Beside] = {
    "aria": Beside("vision_config", "idefics3_vision", (), _aria),
    "audioflamingo3": Beside("audio_config", "whisper", (), _audioflamingo3),
    "aya_vision": Beside("vision_config", "siglip_vision_model", AUTO, _aya),
    "cohere2_vision": Beside("vision_config", "siglip_vision_model", AUTO, _cohere2),
    "cohere_compass": Beside("vision_config", "qwen3_vl", (), _none),
    "exaone4_5": Beside("vision_config", "exaone4_5", (), _none),
    "fuyu": Beside("", "fuyu", (), _fuyu),
    "gemma4_unified": Beside("vision_config", "gemma4_unified_vision", (), _gemma4_unified),
    "gemma4": Beside("vision_config", "gemma4_vision", (), _gemma4),
    "gemma3": Beside("vision_config", "siglip_vision_model", AUTO[:2], _gemma3),
    "glm4v": Beside("vision_config", "glm4v", (), _none),
    "glm4v_moe": Beside("vision_config", "glm4v", (), _none),
    "glmasr": Beside("audio_config", "glmasr_encoder", (), _glmasr),
    "granite_speech": Beside("encoder_config", "granite_speech_encoder", (), _granite_speech),
    "granite_speech_plus": Beside("encoder_config", "granite_speech_encoder", (), _granite_speech),
    "hyperclovax_vision_v2": Beside("vision_config", "qwen2_5_vl", (), _hyperclovax),
    "got_ocr2": Beside("vision_config", "got_ocr2", (), _got_ocr2),
    "idefics2": Beside("vision_config", "idefics2_vision", (), _idefics2),
    "idefics3": Beside("vision_config", "idefics3_vision", (), _idefics3),
    "internvl": Beside("vision_config", "internvl_vision", (), _internvl),
    "kimi_k25": Beside("vision_config", "kimi_k25", (), _kimi),
    "lighton_ocr": Beside("vision_config", "pixtral", AUTO, _mistral3),
    "llama4": Beside("vision_config", "llama4_vision_model", (), _llama4),
    "llava": Beside("vision_config", "clip_vision_model", AUTO, _llava),
    "llava_next": Beside("vision_config", "clip_vision_model", AUTO, _llava_next),
    "llava_next_video": Beside("vision_config", "clip_vision_model", AUTO, _llava_next),
    "llava_onevision": Beside("vision_config", "siglip_vision_model", AUTO, _llava_next),
    "minicpmv4_6": Beside("vision_config", "minicpmv4_6_vision", (), _minicpmv),
    "minicpmv4_7": Beside("vision_config", "minicpmv4_6_vision", (), _minicpmv),
    "mistral3": Beside("vision_config", "pixtral", AUTO, _mistral3),
    "mllama": Beside("vision_config", "mllama_vision_model", (), _mllama),
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
