"""Vision and audio towers: parameters alone, as sums over the tensors of transformers' classes, whose defaults absent
keys take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from txcalc.sources.huggingface.config import Config


class Tower(NamedTuple):
    """A tower's parameters, and the width of what it hands on."""

    params: int
    width: int


# Tensors.


def linear(d_in: int, d_out: int, bias: bool = True) -> int:
    return d_out * (d_in + 1) if bias else d_out * d_in


def block(width: int, d_ff: int, attention: int, gated: bool = False, bias: bool = True, norm: int = 2) -> int:
    """A layer: its attention, two or three matrices, and two norms of `norm` vectors each."""
    up = linear(width, d_ff, bias)
    return attention + (2 * up if gated else up) + linear(d_ff, width, bias) + 2 * norm * width


def full(width: int, bias: bool = True) -> int:
    """Attention of as many key/value as query heads: Q, K, V and O."""
    return 4 * linear(width, width, bias)


def _sizes(v: Config, width: int, d_ff: int, layers: int, heads: int) -> tuple[int, int, int]:
    """Width, feed-forward width and layers, by the usual names; the arguments are the class's defaults."""
    d = v.size("hidden_size", default=width)
    f = v.size("intermediate_size", default=d_ff)
    n = v.layers("num_hidden_layers") if "num_hidden_layers" in v else layers
    if "num_hidden_layers" not in v:
        v.assume("num_hidden_layers", layers)
    v.divides(v.size("num_attention_heads", default=heads), d, "num_attention_heads", "the width")
    v.ignore("hidden_act", "attention_dropout", "head_dim", "vocab_size")
    return d, f, n


def _side(v: Config, key: str, default: int) -> int:
    """A side in pixels, given once or for both directions."""
    value = v.data.get(key)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1] and type(value[0]) is int:
        v.asked.add(key)
        return max(1, value[0])
    return v.size(key, default=default)  # type: ignore[no-any-return]


def _grid(v: Config, image: int, patch: int) -> tuple[int, int, int]:
    """Patches along a side, pixels of a patch's side, channels."""
    side, pixels = _side(v, "image_size", image), _side(v, "patch_size", patch)
    if pixels > side:
        v.fault("patch_size", pixels, f"at most image_size = {side}")
    return side // pixels, pixels, v.size("num_channels", default=3)


# Towers, by the model type of their configs.


def clip(v: Config) -> Tower:
    """CLIP's: a class token, patches without a bias, a norm before and after."""
    d, f, n = _sizes(v, 768, 3072, 12, 12)
    grid, patch, channels = _grid(v, 224, 32)
    v.ignore("projection_dim")
    ends = d + linear(channels * patch**2, d, False) + (grid**2 + 1) * d + 4 * d
    return Tower(ends + n * block(d, f, full(d)), d)


def siglip(v: Config) -> Tower:
    """SigLIP's: no class token; a head that pools by attention, unless `vision_use_head` is false."""
    tower = _siglip(v, 16)
    v.ignore("projection_dim", "projector_hidden_act", "num_image_tokens")  # PaliGemma's and Gemma 3's own
    if not v.flag("vision_use_head", default=True):
        return tower
    d, f = tower.width, v.size("intermediate_size", default=3072)
    return Tower(tower.params + d + full(d) + 2 * d + linear(d, f) + linear(f, d), d)


def _siglip(v: Config, patch: int, width: int = 768, heads: int = 12) -> Tower:
    d, f, n = _sizes(v, width, 3072, 12, heads)
    grid, pixels, channels = _grid(v, 224, patch)
    ends = linear(channels * pixels**2, d) + grid**2 * d + 2 * d
    return Tower(ends + n * block(d, f, full(d)), d)


def idefics3(v: Config) -> Tower:
    """SigLIP's without the head, under Idefics3 and SmolVLM."""
    v.ignore("max_image_size", "size", "use_base_siglip")
    return _siglip(v, 32, 1152, 16)


def idefics2(v: Config) -> Tower:
    return _siglip(v, 32)


def pixtral(v: Config) -> Tower:
    """Pixtral's: RMSNorms, gated, no biases, rotary positions."""
    d, f, n = _sizes(v, 1024, 4096, 24, 16)
    _, patch, channels = _grid(v, 1024, 16)
    v.ignore("rope_theta", "image_token_id")
    return Tower(linear(channels * patch**2, d, False) + d + n * block(d, f, full(d, False), True, False, 1), d)


def ovis2(v: Config) -> Tower:
    """AIMv2: RMSNorms, gated, and a matrix to a vocabulary of visual words, less the indicators."""
    d, f, n = _sizes(v, 1024, 2816, 24, 8)
    grid, patch, channels = _grid(v, 224, 14)
    bias, words = v.flag("mlp_bias", default=False), v.size("vocab_size", default=16384)
    attention = 3 * linear(d, d, v.flag("qkv_bias", default=False)) + linear(d, d, v.data.get("qkv_bias") is True)
    words -= v.size("num_visual_indicator_tokens", default=5)
    v.ignore("tokenize_function")
    head = linear(d * v.size("hidden_stride", default=1) ** 2, words, False) + 2 * words
    ends = linear(channels * patch**2, d) + grid**2 * d + 2 * d + head
    return Tower(ends + n * block(d, f, attention, True, bias, 1), d)


def internvl(v: Config) -> Tower:
    """InternViT: a scale on each branch; biases and norms as its config says."""
    d, f, n = _sizes(v, 1024, 4096, 24, 16)
    grid, patch, channels = _grid(v, 448, 14)
    v.ignore("layer_scale_init_value", "projection_dropout", "hidden_dropout_prob")
    norm = {"layer_norm": 2, "rms_norm": 1}.get(v.text("norm_type", default="layer_norm"))
    if norm is None:
        v.fault("norm_type", v.data["norm_type"], "'layer_norm' or 'rms_norm'")
    attention = 3 * linear(d, d, v.flag("attention_bias", default=False)) + linear(d, d)
    attention += 2 * d if v.flag("use_qk_norm", default=False) else 0
    ends = d + linear(channels * patch**2, d)
    ends += d if v.flag("use_mask_token", default=False) else 0
    ends += (grid**2 + 1) * d if v.flag("use_absolute_position_embeddings", default=True) else 0
    ends += 0 if v.flag("use_mean_pooling", default=True) else 2 * d
    return Tower(ends + n * (block(d, f, attention, norm=norm or 2) + 2 * d), d)


def llama4(v: Config) -> Tower:
    """Llama 4's, with its adapter."""
    d, f, n = _sizes(v, 768, 5632, 34, 16)
    grid, patch, channels = _grid(v, 448, 14)
    v.ignore("pixel_shuffle_ratio", "projector_dropout", "vision_feature_select_strategy", "vision_feature_layer")
    v.ignore("rope_theta", "rope_parameters")
    v.only(False, "multi_modal_projector_bias", why="a projector without a bias is read")
    before, after = v.size("projector_input_dim", default=4096), v.size("projector_output_dim", default=4096)
    adapter = linear(f, before, False) + linear(after, after, False)
    ends = d + (grid**2 + 1) * d + linear(channels * patch**2, d, False) + 4 * d
    return Tower(ends + n * block(d, f, full(d)) + adapter, v.size("vision_output_dim", default=7680))


def _qwen(v: Config, patch: int, width: int, heads: int, depth: int) -> tuple[int, int, int, int]:
    """Width, layers, pixels and channels of a patch over time, and patches that are merged into one."""
    d, n = v.size("hidden_size", default=width), v.size("depth", default=depth)
    v.divides(v.size("num_heads", default=heads), d, "num_heads", "the width")
    v.only(3, "in_chans", why="in_channels is what the class reads")
    pixels = v.size("patch_size", default=patch)
    v.only(pixels, "spatial_patch_size", why="patch_size says the same thing")
    v.ignore("hidden_act", "model_type", "tokens_per_second", "window_size", "fullatt_block_indexes")
    fan_in = v.size("in_channels", default=3) * v.size("temporal_patch_size", default=2) * pixels**2
    return d, n, fan_in, v.size("spatial_merge_size", default=2) ** 2


def qwen2_vl(v: Config) -> Tower:
    """Qwen2-VL's, with its merger: `embed_dim` is the tower's width, `hidden_size` the language model's."""
    out = v.size("hidden_size", default=3584)
    inner = Config({**v.data, "hidden_size": v.size("embed_dim", default=1280)}, v.model_type, v.path, v)
    d, n, fan_in, merged = _qwen(inner, 14, 1280, 16, 32)
    inner.ignore("embed_dim", "mlp_ratio")
    v.ignore(*v.data)  # the inner one tells what is left over
    ratio = v.real("mlp_ratio", default=4)
    if not 0 < ratio <= 100:
        v.fault("mlp_ratio", ratio, "above 0 and at most 100")
        ratio = 1
    merger = 2 * d + linear(d * merged, d * merged) + linear(d * merged, out)
    return Tower(linear(fan_in, d, False) + n * block(d, int(d * ratio), full(d)) + merger, out)


def qwen2_5_vl(v: Config, grouped: bool = False) -> Tower:
    """Qwen2.5-VL's, with its merger: RMSNorms, gated, biases everywhere; EXAONE 4.5's has fewer key/value heads."""
    d, n, fan_in, merged = _qwen(v, 14, 3584, 16, 32)
    f, out = v.size("intermediate_size", default=3420), v.size("out_hidden_size", default=3584)
    attention = full(d)
    if grouped:
        groups, head = v.size("num_key_value_heads", default=8), d // v.size("num_heads", default=16)
        attention = 2 * linear(d, d) + 2 * linear(d, groups * head)
    merger = d + linear(d * merged, d * merged) + linear(d * merged, out)
    return Tower(linear(fan_in, d, False) + n * block(d, f, attention, True, True, 1) + merger, out)


def exaone4_5(v: Config) -> Tower:
    return qwen2_5_vl(v, grouped=True)


def qwen3_vl(v: Config, deep: bool = True) -> Tower:
    """Qwen3-VL's, with its merger and one more for each layer that is handed on; Qwen3.5 hands none on."""
    d, n, fan_in, merged = _qwen(v, 16, 1152, 16, 27)
    f, out = v.size("intermediate_size", default=4304), v.size("out_hidden_size", default=3584)
    rows = v.size("num_position_embeddings", default=2304)
    wide = d * merged
    ends = linear(fan_in, d) + rows * d + 2 * d + linear(wide, wide) + linear(wide, out)
    handed = v.data.get("deepstack_visual_indexes", [8, 16, 24]) if deep else []
    v.asked.add("deepstack_visual_indexes")
    if not isinstance(handed, list) or len(handed) > n:
        v.fault("deepstack_visual_indexes", handed, "a list of layers")
        handed = []
    more = len(handed) * (2 * wide + linear(wide, wide) + linear(wide, out))
    return Tower(ends + more + n * block(d, f, full(d)), out)


def qwen3_5(v: Config) -> Tower:
    return qwen3_vl(v, deep=False)


def glm4v(v: Config) -> Tower:
    """GLM-4.1V's, with its merger; the layers' feed-forwards are as wide as what comes out."""
    d, n, fan_in, merged = _qwen(v, 14, 1536, 12, 24)
    f, out = v.size("intermediate_size", default=13696), v.size("out_hidden_size", default=4096)
    grid = _side(v, "image_size", 336) // v.size("patch_size", default=14)
    v.ignore("attention_dropout", "num_hidden_layers", "rms_norm_eps")
    attention = 3 * linear(d, d, v.flag("attention_bias", default=False)) + linear(d, d, False)
    merger = linear(out, out, False) + 2 * out + 3 * linear(out, f, False)
    ends = grid**2 * d + linear(fan_in, d) + d + linear(d * merged, out) + d
    return Tower(ends + n * block(d, out, attention, True, False, 1) + merger, out)


def kimi_k25(v: Config) -> Tower:
    """MoonViT: a table of positions by height and width."""
    d, f, n = _sizes(v, 1152, 4304, 27, 16)
    patch = _side(v, "patch_size", 14)
    rows = v.size("pos_emb_height", default=64) * v.size("pos_emb_width", default=64)
    v.ignore("pos_emb_time", "rope_parameters", "rope_theta")
    return Tower(linear(3 * patch**2, d) + rows * d + n * block(d, f, full(d)) + 2 * d, d)


def got_ocr2(v: Config) -> Tower:
    """SAM's: windows with relative positions, and a neck of two convolutions."""
    d = v.size("hidden_size", default=768)
    n, f = v.size("num_hidden_layers", default=12), v.size("mlp_dim", default=3072)
    heads, out = v.size("num_attention_heads", default=12), v.size("output_channels", default=256)
    grid, patch, channels = _grid(v, 1024, 16)
    v.divides(heads, d, "num_attention_heads", "the width")
    v.ignore("hidden_act", "attention_dropout", "mlp_ratio", "num_pos_feats")
    window, every = v.size("window_size", default=14), v.data.get("global_attn_indexes", [2, 5, 8, 11])
    v.asked.add("global_attn_indexes")
    if not isinstance(every, list) or not all(type(i) is int and 0 <= i < n for i in every):
        v.fault("global_attn_indexes", every, f"a list of layers below {n}")
        every = []
    attention = 3 * linear(d, d, v.flag("qkv_bias", default=True)) + linear(d, d)
    whole = len(set(every))
    rows = 2 * (whole * (2 * grid - 1) + (n - whole) * (2 * window - 1))
    relative = rows * (d // heads) if v.flag("use_rel_pos", default=True) else 0
    ends = linear(channels * patch**2, d) + (grid**2 * d if v.flag("use_abs_pos", default=True) else 0)
    neck = out * d + 9 * out**2 + 4 * out
    return Tower(ends + n * block(d, f, attention) + relative + neck, out)


def whisper(
    v: Config, width: int = 1280, d_ff: int = 5120, layers: int = 32, heads: int = 20, bands: int = 128
) -> Tower:
    """Whisper's encoder: two convolutions, K without a bias."""
    d = v.size("d_model", "hidden_size", default=width)
    f = v.size("encoder_ffn_dim", "intermediate_size", default=d_ff)
    n = v.size("encoder_layers", "num_hidden_layers", default=layers)
    v.divides(v.size("encoder_attention_heads", "num_attention_heads", default=heads), d, "heads", "the width")
    mels, rows = v.size("num_mel_bins", default=bands), v.size("max_source_positions", default=1500)
    v.ignore("activation_function", "activation_dropout", "attention_dropout", "scale_embedding", "vocab_size")
    v.ignore("head_dim")
    ends = linear(3 * mels, d) + linear(3 * d, d) + rows * d + 2 * d
    return Tower(ends + n * block(d, f, full(d) - d), d)


def moss(v: Config) -> Tower:
    """Whisper's of another size."""
    return whisper(v, 1024, 4096, 24, 16, 80)


def fuyu(v: Config) -> Tower:
    """No tower: a picture's patches are handed on as they are."""
    v.ignore("image_size", "text_model_type")
    return Tower(0, v.size("num_channels", default=3) * v.size("patch_size", default=30) ** 2)


def gemma4_unified(v: Config) -> Tower:
    """Norms around a matrix on a picture's pooled patches, and a table of positions for both directions."""
    side = v.size("patch_size", default=16) * v.size("pooling_kernel_size", default=3)
    d, rows = v.size("mm_embed_dim", default=3840), v.size("mm_posemb_size", default=1120)
    v.only(side, "model_patch_size", why="patch_size · pooling_kernel_size")
    v.ignore("num_soft_tokens")
    wide = 3 * side**2
    return Tower(2 * wide + linear(wide, d) + 2 * rows * d + 4 * d, d)


def glmasr(v: Config) -> Tower:
    """Whisper's with rotary positions in place of a table, and as many key/value heads as its config says."""
    d, f, n = _sizes(v, 1280, 5120, 32, 20)
    heads, mels = v.size("num_attention_heads", default=20), v.size("num_mel_bins", default=128)
    groups = v.size("num_key_value_heads", default=heads, null=heads)
    v.divides(groups, heads, "num_key_value_heads", "num_attention_heads")
    v.only(d // heads, "head_dim", why="the width over the heads")
    v.ignore("rope_parameters", "partial_rotary_factor", "max_position_embeddings")
    pairs = groups * (d // heads)
    attention = 2 * linear(d, d) + linear(d, pairs, False) + linear(d, pairs)
    return Tower(linear(3 * mels, d) + linear(3 * d, d) + 2 * d + n * block(d, f, attention), d)


def qwen3_asr(v: Config) -> Tower:
    """Three convolutions of 3 × 3 with a stride of 2 over bands and time, and layers with biases everywhere."""
    d = v.size("d_model", "hidden_size", default=1024)
    f = v.size("encoder_ffn_dim", "intermediate_size", default=4096)
    n = v.size("encoder_layers", "num_hidden_layers", default=24)
    v.divides(v.size("encoder_attention_heads", "num_attention_heads", default=16), d, "heads", "the width")
    bands, channels = v.size("num_mel_bins", default=128), v.size("downsample_hidden_size", default=480)
    v.ignore("activation_function", "activation_dropout", "attention_dropout", "scale_embedding", "n_window")
    v.ignore("n_window_infer", "max_position_embeddings")
    for _ in range(3):
        bands = (bands + 1) // 2
    ends = linear(9, channels) + 2 * linear(9 * channels, channels) + linear(channels * bands, d, False) + 2 * d
    return Tower(ends + n * block(d, f, full(d)), d)


def granite_speech(v: Config) -> Tower:
    """A Conformer: two feed-forwards, attention with a table of relative positions, and a convolution in each layer; a
    head in the middle, whose guesses are read again."""
    d, n = v.size("hidden_dim", "hidden_size", default=1024), v.size("num_layers", "num_hidden_layers", default=10)
    heads, bands = v.size("num_heads", "num_attention_heads", default=8), v.size("input_dim", default=160)
    head = v.size("dim_head", default=None, null=None)
    inner = heads * (d // heads if head is None else head)
    rows, context = v.size("max_pos_emb", default=512), v.size("context_size", default=200)
    if context > rows:
        v.fault("context_size", context, f"at most max_pos_emb = {rows:,}")
    wide, taps = d * v.size("conv_expansion_factor", default=2), v.size("conv_kernel_size", default=15)
    f, words = d * v.size("feedforward_mult", default=4), v.size("output_dim", default=42)
    channel = 2 * d + linear(d, f) + linear(f, d)
    attention = 2 * d + 3 * linear(d, inner, False) + linear(inner, d) + (2 * rows + 1) * (inner // heads)
    convolution = 2 * d + linear(d, 2 * wide) + taps * wide + 2 * wide + linear(wide, d)
    ends = linear(bands, d) + linear(d, words) + linear(words, d)
    return Tower(ends + n * (2 * channel + attention + convolution + 2 * d), d)


def gemma4(v: Config) -> Tower:
    """Gemma 4's: norms around both parts, of Q and K head by head, no biases, a table of positions for both axes."""
    d, f, n = _sizes(v, 768, 3072, 16, 12)
    heads, width = v.size("num_attention_heads", default=12), v.size("head_dim", default=64)
    groups, patch = v.size("num_key_value_heads", default=12), v.size("patch_size", default=16)
    v.divides(groups, heads, "num_key_value_heads", "num_attention_heads")
    v.ignore("hidden_activation", "attention_bias", "default_output_length", "global_head_dim", "pooling_kernel_size")
    v.ignore("rope_parameters", "standardize", "use_clipped_linears", "max_position_embeddings")
    attention = 2 * d * width * (heads + groups) + 2 * width
    ends = 3 * patch**2 * d + 2 * v.size("position_embedding_size", default=10240) * d
    return Tower(ends + n * (attention + 3 * d * f + 4 * d), d)


def mllama(v: Config) -> Tower:
    """Llama 3.2's: layers, and layers with a gate on each branch; gated tables of tiles and of positions in them."""
    d, f = v.size("hidden_size", default=1280), v.size("intermediate_size", default=5120)
    n, more = v.count("num_hidden_layers", default=32), v.count("num_global_layers", default=8)
    v.divides(v.size("attention_heads", "num_attention_heads", default=16), d, "attention_heads", "the width")
    v.ignore("hidden_act", "norm_eps", "intermediate_layers_indices", "supported_aspect_ratios")
    grid, patch, channels = _grid(v, 448, 14)
    ratios, tiles = v.data.get("supported_aspect_ratios"), v.size("max_num_tiles", default=4)
    if ratios is not None and not isinstance(ratios, list):
        v.fault("supported_aspect_ratios", ratios, "a list of pairs")
    rows = (len(ratios) if isinstance(ratios, list) else 8) + 1
    seen = grid**2 + 1
    ends = channels * patch**2 * d + d + 1 + seen * d + rows * tiles * seen * d + 2 * (rows * tiles * d + 1) + 4 * d
    layer = block(d, f, full(d, False))
    return Tower(ends + (n + more) * layer + 2 * more, v.size("vision_output_dim", default=7680))


def minicpmv(v: Config) -> Tower:
    """SigLIP's, whose patches are merged by windows in the middle."""
    tower = _siglip(v, 16)
    d, f = tower.width, v.size("intermediate_size", default=3072)
    sides = v.data.get("window_kernel_size", [2, 2])
    v.ignore("window_kernel_size", "insert_layer_id")
    if (
        not isinstance(sides, list)
        or len(sides) != 2
        or not all(type(side) is int and 0 < side < 100 for side in sides)
    ):
        v.fault("window_kernel_size", sides, "two whole numbers above 0")
        sides = [1, 1]
    merged = sides[0] * sides[1]
    merger = full(d) + 2 * d + 2 * merged * d + linear(merged * d, merged * f) + linear(merged * f, d)
    return Tower(tower.params + merger, d)


TOWERS: dict[str, Callable[[Config], Tower]] = {
    "clip_vision_model": clip,
    "siglip_vision_model": siglip,
    "pixtral": pixtral,
    "ovis2": ovis2,
    "internvl_vision": internvl,
    "idefics2_vision": idefics2,
    "idefics3_vision": idefics3,
    "llama4_vision_model": llama4,
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "exaone4_5": exaone4_5,
    "qwen3_vl": qwen3_vl,
    "qwen3_5": qwen3_5,
    "glm4v": glm4v,
    "kimi_k25": kimi_k25,
    "got_ocr2": got_ocr2,
    "whisper": whisper,
    "glmasr_encoder": glmasr,
    "qwen3_asr_encoder": qwen3_asr,
    "granite_speech_encoder": granite_speech,
    "moss_transcribe_diarize_audio": moss,
    "fuyu": fuyu,
    "gemma4_unified_vision": gemma4_unified,
    "gemma4_vision": gemma4,
    "mllama_vision_model": mllama,
    "minicpmv4_6_vision": minicpmv,
}
