"""Towers and projectors that no parts make yet: parameters alone, as sums over the tensors of transformers' classes,
whose defaults absent keys take. And what all of them are read as.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from txcalc.errors import InputError
from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.spec import MAX_SIZE, flag, size

Steps = tuple[Raw, ...]


class Tower(NamedTuple):
    """A tower: the width of what it hands on, the description of its stack, the steps of a projector that are its own,
    and parameters that no description says. Where the stack does not run as it is described, its parameters alone are
    known. `first` positions stand for all of a picture.
    """

    width: int
    raw: Raw | None = None
    steps: Steps = ()
    params: int = 0
    runs: bool = True
    first: int = 0


class Projection(NamedTuple):
    """A projector: its steps, how many positions of the tower it drops, and parameters that no step says."""

    steps: Steps
    dropped: int = 0
    params: int = 0


# Keys.


class Sizes(NamedTuple):
    """Of a tower's layers."""

    width: int
    d_ff: int
    layers: int
    heads: int


def heard(v: Config, *defaults: int) -> Sizes:
    """By Whisper's names, or the usual ones."""
    size = Sizes(
        v.size("d_model", "hidden_size", default=defaults[0]),
        v.size("encoder_ffn_dim", "intermediate_size", default=defaults[1]),
        v.size("encoder_layers", "num_hidden_layers", default=defaults[2]),
        v.size("encoder_attention_heads", "num_attention_heads", default=defaults[3]),
    )
    v.divides(size.heads, size.width, "heads", "the width")
    return size


# Tensors.


def linear(d_in: int, d_out: int, bias: bool = True) -> int:
    return d_out * (d_in + 1) if bias else d_out * d_in


def block(width: int, d_ff: int, attention: int) -> int:
    """A layer: its attention, two matrices and two norms, with biases."""
    return attention + linear(width, d_ff) + linear(d_ff, width) + 4 * width


def full(width: int, bias: bool = True) -> int:
    """Attention of as many key/value as query heads: Q, K, V and O."""
    return 4 * linear(width, width, bias)


def side_of(v: Config, key: str, default: int) -> int:
    """A side in pixels, given once or for both directions."""
    value = v.data.get(key)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1] and type(value[0]) is int:
        v.asked.add(key)
        return max(1, value[0])
    return v.size(key, default=default)  # type: ignore[no-any-return]


def area(v: Config, key: str) -> int:
    """Of a window of two sides, 2 × 2 unless told otherwise."""
    sides = v.data.get(key, [2, 2])
    v.asked.add(key)
    if not isinstance(sides, list) or len(sides) != 2 or not all(type(n) is int and 0 < n < 100 for n in sides):
        v.fault(key, sides, "two whole numbers above 0")
        return 1
    return int(sides[0] * sides[1])


def grid_of(v: Config, image: int, patch: int) -> tuple[int, int, int]:
    """Patches along a side, pixels of a patch's side, channels."""
    side, pixels = side_of(v, "image_size", image), side_of(v, "patch_size", patch)
    if pixels > side:
        v.fault("patch_size", pixels, f"at most image_size = {side}")
    return side // pixels, pixels, v.size("num_channels", default=3)


# Towers.


def vibevoice_encoder(v: Config, both: bool = False) -> Tower:
    """Convolutions that take a wave's samples together, stage by stage, each before blocks of a filter and two
    matrices; with `both` a decoder, too, of the same stages backwards."""
    width, f, taps = (
        v.size("hidden_size", default=64),
        v.size("num_filters", default=32),
        v.size("kernel_size", default=7),
    )
    channels, wide = v.size("channels", default=1), v.size("ffn_expansion", default=4)
    ratios = v.items("downsampling_ratios", of=size, length=None, default=[2, 2, 4, 5, 5, 8])
    depths = v.items("depths", of=size, length=None, default=[3, 3, 3, 3, 3, 3, 8])
    if len(depths) != len(ratios) + 1 or len(ratios) > 20:
        v.fault("depths", depths, f"a list of {len(ratios) + 1:,} items, one more than downsampling_ratios")
        return Tower(width)

    def blocks(d: int, depth: int) -> int:
        return depth * (4 * d + linear(d, wide * d) + linear(wide * d, d) + linear(taps, d))

    params, back = linear(channels * taps, f) + blocks(f, depths[0]), blocks(f, depths[0]) + linear(f * taps, channels)
    for ratio, depth in zip(ratios, depths[1:], strict=True):
        params += linear(f * 2 * ratio, 2 * f) + blocks(2 * f, depth)
        back += linear(2 * f * 2 * ratio, f) + blocks(2 * f, depth)
        f *= 2
    params, back = params + linear(f * taps, width), back + linear(width * taps, f)
    return Tower(width, params=params + back if both else params)


def vibevoice_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Two matrices with a norm between them."""
    d = raw["d_model"]
    return Projection((), params=linear(tower.width, d) + d + linear(d, d))


def diffusing(v: Config) -> Tower:
    """VibeVoice's diffusion head, but for the matrices of the text's width: see `diffusing_projector`."""
    return Tower(1)


def diffusing_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Layers of a feed-forward under a norm, each shifted, scaled and gated by matrices of what they are told; and two
    factors of the latents."""
    d, f, n = raw["d_model"], v.size("intermediate_size", default=4608), v.size("num_hidden_layers", default=4)
    audio, bias = c.data.get("audio_config"), v.flag("mlp_bias", default=False)
    latent = audio.get("hidden_size", 64) if isinstance(audio, Mapping) else 1
    latent = latent if type(latent) is int else 1  # what is no size is a fault of its own table
    for key, wanted in (("hidden_size", d), ("latent_size", latent)):
        if v.data.get(key, wanted) != wanted:
            v.fault(key, v.data[key], f"{wanted:,}, which the class derives")
    layer = 2 * linear(d, f, bias) + linear(f, d, bias) + d + 3 * d * d
    ends = 2 * latent * d + d * d + v.size("frequency_embedding_size", default=256) * d + d * d + 2 * d * d
    return Projection((), params=n * layer + ends + 2)


def florence2(v: Config) -> Tower:
    """DaViT: stages of pairs of layers behind a convolution, one that attends in windows and one among channels."""
    widths = v.items("embed_dim", of=size, length=None, default=[128, 256, 512, 1024])
    n = len(widths)
    usual = {"depths": [1, 1, 9, 1], "patch_size": [7, 3, 3, 3], "num_heads": [4, 8, 16, 32]}
    lists = {key: v.items(key, of=size, length=None, default=given) for key, given in usual.items()}
    lists["num_groups"] = v.items("num_groups", of=size, length=None, default=usual["num_heads"])
    before = v.items("patch_prenorm", of=flag, length=None, default=[False, True, True, True])
    for key, given in {**lists, "patch_prenorm": before}.items():
        if not n or len(given) != n:
            v.fault(key, given, f"a list as long as embed_dim, which has {n:,}")
            return Tower(1)
    v.ignore("patch_stride", "patch_padding", "window_size", "drop_path_rate", "activation_function")
    v.ignore("projection_dim", "max_temporal_embeddings", "max_position_embeddings")
    for key in (key for key in v.asked & v.data.keys() if v.data[key] is None):
        v.fault(key, None, "a value, which transformers wants")
    ratio, bias = v.real("mlp_ratio", default=4.0), v.flag("qkv_bias", default=True)
    if not min(widths) * ratio >= 1:
        v.fault("mlp_ratio", ratio, "a number with which feed-forwards have a width")
    params, d_in = 0, v.size("in_channels", default=3)
    for d, depth, side, pre in zip(widths, lists["depths"], lists["patch_size"], before, strict=True):
        params += linear(d_in * side**2, d) + 2 * (d_in if pre else d)
        attention = linear(d, 3 * d, bias) + linear(d, d)
        params += 2 * depth * (block(d, int(d * ratio), attention) + 2 * linear(9, d))
        d_in = d
    return Tower(d_in, params=params)


def florence2_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A table of rows and one of columns, a matrix and a norm."""
    width, d = tower.width, v.size("projection_dim", default=1024)
    return Projection(
        (), params=v.size("max_position_embeddings", default=50) * width + linear(width, d, False) + 2 * d
    )


def got_ocr2(v: Config) -> Tower:
    """SAM's: windows with relative positions, and a neck of two convolutions."""
    d = v.size("hidden_size", default=768)
    n, f = v.size("num_hidden_layers", default=12), v.size("mlp_dim", default=3072)
    heads, out = v.size("num_attention_heads", default=12), v.size("output_channels", default=256)
    grid, patch, channels = grid_of(v, 1024, 16)
    v.divides(heads, d, "num_attention_heads", "the width")
    window, whole = v.size("window_size", default=14), len(global_layers(v, n))
    attention = 3 * linear(d, d, v.flag("qkv_bias", default=True)) + linear(d, d)
    rows = 2 * (whole * (2 * grid - 1) + (n - whole) * (2 * window - 1))
    relative = rows * (d // heads) if v.flag("use_rel_pos", default=True) else 0
    ends = linear(channels * patch**2, d) + (grid**2 * d if v.flag("use_abs_pos", default=True) else 0)
    neck = out * d + 9 * out**2 + 4 * out
    return Tower(out, params=ends + n * block(d, f, attention) + relative + neck)


def global_layers(v: Config, n: int) -> set[int]:
    """SAM's layers that attend to all of a picture."""
    every = v.data.get("global_attn_indexes", [2, 5, 8, 11])
    v.asked.add("global_attn_indexes")
    if not isinstance(every, list) or not all(type(i) is int and 0 <= i < n for i in every):
        v.fault("global_attn_indexes", every, f"a list of layers below {n}")
        return set()
    return set(every)


def gemma4_unified(v: Config) -> Tower:
    """Norms around a matrix on a picture's pooled patches, and a table of positions for both directions."""
    side = v.size("patch_size", default=16) * v.size("pooling_kernel_size", default=3)
    d, rows = v.size("mm_embed_dim", default=3840), v.size("mm_posemb_size", default=1120)
    v.only(side, "model_patch_size", why="patch_size · pooling_kernel_size")
    wide = 3 * side**2
    return Tower(d, params=2 * wide + linear(wide, d) + 2 * rows * d + 4 * d)


def qwen3_asr(v: Config, *defaults: int) -> Tower:
    """Three convolutions of 3 × 3 with a stride of 2 over bands and time, and layers with biases everywhere."""
    d, f, n, _ = heard(v, *(defaults or (1024, 4096, 24, 16)))
    bands, channels = v.size("num_mel_bins", default=128), v.size("downsample_hidden_size", default=480)
    for _ in range(3):
        bands = (bands + 1) // 2
    ends = linear(9, channels) + 2 * linear(9 * channels, channels) + linear(channels * bands, d, False) + 2 * d
    return Tower(d, params=ends + n * block(d, f, full(d)))


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
    return Tower(d, params=ends + n * (2 * channel + attention + convolution + 2 * d))


def mllama(v: Config) -> Tower:
    """Llama 3.2's: layers, and layers with a gate on each branch; gated tables of tiles and of positions in them."""
    d, f = v.size("hidden_size", default=1280), v.size("intermediate_size", default=5120)
    n, more = v.count("num_hidden_layers", default=32), v.count("num_global_layers", default=8)
    v.divides(v.size("attention_heads", "num_attention_heads", default=16), d, "attention_heads", "the width")
    v.ignore("hidden_act", "norm_eps", "intermediate_layers_indices", "supported_aspect_ratios")
    grid, patch, channels = grid_of(v, 448, 14)
    ratios, tiles = v.data.get("supported_aspect_ratios"), v.size("max_num_tiles", default=4)
    if ratios is not None and not isinstance(ratios, list):
        v.fault("supported_aspect_ratios", ratios, "a list of pairs")
    rows = (len(ratios) if isinstance(ratios, list) else 8) + 1
    seen = grid**2 + 1
    ends = channels * patch**2 * d + d + 1 + seen * d + rows * tiles * seen * d + 2 * (rows * tiles * d + 1) + 4 * d
    layer = block(d, f, full(d, False))
    return Tower(v.size("vision_output_dim", default=7680), params=ends + (n + more) * layer + 2 * more)


# Projectors: the whole's config, the tower's, the tower, the language model.


QFORMER = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}


def idefics2_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A gated matrix triple to the language model's width, and a resampler of latents that attend to what they read."""
    d = int(raw["d_model"])
    p = c.table("perceiver_config") or Config({}, c.model_type, "perceiver_config.", c)
    heads, groups = p.size("resampler_n_heads", default=16), p.size("num_key_value_heads", default=4)
    head, n = p.size("resampler_head_dim", default=96), p.size("resampler_depth", default=3)
    p.divides(groups, heads, "num_key_value_heads", "resampler_n_heads")
    f = raw.get("feed_forward", {}).get("d_ff")
    if f is None:
        raise InputError(c.model_type, ["its language model is not dense"])
    bridge = 2 * linear(tower.width, f, False) + linear(f, d, False)
    layer = 3 * d + 2 * (heads + groups) * head * d + 3 * linear(d, 4 * d, False)
    return Projection((), params=int(bridge + p.size("resampler_n_latents", default=64) * d + n * layer + d))


def conformer(a: Config, out: int) -> int:
    """Gemma 4's encoder of sound: two convolutions, layers of two feed-forwards, attention and a convolution."""
    d, n = a.size("hidden_size", default=1024), a.size("num_hidden_layers", default=12)
    heads, taps = a.size("num_attention_heads", default=8), a.size("conv_kernel_size", default=5)
    a.divides(heads, d, "num_attention_heads", "the width")
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


def granite_speech_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Learned queries that attend to windows of frames (a Q-Former), and a matrix. Granite Speech Plus hands on some
    of the tower's layers beside the last, with no weights of its own."""
    queries = c.size("window_size", default=15) // c.size("downsample_rate", default=5)
    p = c.table("projector_config") or Config({}, "blip_2_qformer", "projector_config.", c)
    read = p.size("encoder_hidden_size", default=1408)
    layers = v.data.get("cat_hidden_layers") if c.model_type == "granite_speech_plus" else None
    v.asked |= {"cat_hidden_layers"} if c.model_type == "granite_speech_plus" else set()
    if layers is not None and (not isinstance(layers, list) or read != tower.width * (len(layers) + 1)):
        v.fault("cat_hidden_layers", layers, f"layers that are together as wide as encoder_hidden_size = {read:,}")
    return Projection((), params=_qformer(p, read, queries, raw["d_model"]))


def _qformer(p: Config, read: int, queries: int, out: int) -> int:
    """Queries, a norm, post-norm layers of which every so many attend to what is read, and a matrix."""
    d, f, n, heads = (p.size(key, default=size) for key, size in QFORMER.items())
    p.divides(heads, d, "num_attention_heads", "hidden_size")
    across = 2 * linear(d, d) + 2 * linear(read, d) + 2 * d
    every = p.size("cross_attention_frequency", default=2)
    former = 2 * d + n * block(d, f, full(d)) + -(-n // every) * across
    return int(queries * d + former + linear(d, out))


def blip2_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A Q-Former; InstructBLIP's reads words too, which have a table and feed-forwards of their own."""
    p = c.table("qformer_config") or Config({}, c.model_type, "qformer_config.", c)
    held = _qformer(p, tower.width, c.size("num_query_tokens", default=32), raw["d_model"])
    words, rows = p.size("vocab_size", default=30522), p.size("max_position_embeddings", default=512)
    if c.model_type == "blip-2":
        p.only(False, "use_qformer_text_input", why="a Q-Former without words is read")
        return Projection((), params=held)
    d, f, n, _ = (p.size(key, default=size) for key, size in QFORMER.items())
    return Projection((), params=held + (words + rows) * d + n * (linear(d, f) + linear(f, d) + 2 * d))


def molmo2_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Layers side by side, of which the mean of four patches attends to them, and a gated feed-forward."""
    p = c.table("adapter_config") or Config({}, c.model_type, "adapter_config.", c)
    layers = p.data.get("vit_layers", p.data.get("vision_feature_layer"))
    layers = [24, 18] if layers is None else layers
    p.ignore("vision_feature_layer", "vit_layers", "hidden_act", "attention_dropout", "image_feature_dropout")
    d, h = p.size("hidden_size", default=1152), p.size("num_attention_heads", default=16)
    if d != tower.width:
        p.fault("hidden_size", d, f"the tower's {tower.width:,}")
    head, groups = p.size("head_dim", default=72), p.size("num_key_value_heads", default=16)
    f, wide = p.size("intermediate_size", default=18944), tower.width * (len(layers) if isinstance(layers, list) else 1)
    out = p.size("text_hidden_size", default=3584)
    pool = linear(wide, h * head) + 2 * linear(wide, groups * head) + linear(h * head, d)
    return Projection((), params=int(pool + 2 * linear(d, f, False) + linear(f, out, False)))


def aria_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
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
    made = max(table.values()) * d + across + 2 * d + linear(d, out, False) + linear(out, out, False)
    return Projection((), params=int(made))


def minicpmv_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Norms and two matrices on four patches side by side, once or more."""
    d, wide, times = int(raw["d_model"]), 4 * tower.width, c.size("merger_times", default=1)
    held = times * (2 * wide + linear(wide, wide)) + (times - 1) * linear(wide, tower.width) + linear(wide, d)
    return Projection((), params=held)


def gemma4_unified_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A matrix for pictures, and one for sounds where there is an audio_config."""
    sound, d = c.table("audio_config"), int(raw["d_model"])
    heard = linear(sound.size("audio_embed_dim", default=640), d, False) if sound else 0
    if sound is None and c.data.get("audio_config") is not None:
        heard = linear(640, d, False)
        c.assume("audio_config.audio_embed_dim", 640)
    return Projection((), params=linear(v.size("output_proj_dims", default=3840), d, False) + heard)
