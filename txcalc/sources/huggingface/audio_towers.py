"""Towers of sound that are listed leaf by leaf, at least where they begin: convolutions and Conformers.

What works chunk by chunk fills up the last one.
"""

from __future__ import annotations

from collections.abc import Mapping

from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.leaf_list import Leaves, conformer_leaves, ffn_leaves, leaf, matrix, norm_leaf
from txcalc.sources.huggingface.tower_types import (
    Projection,
    Tower,
    count_params,
    leaf_tower,
    resampler_step,
    whisper_sizes,
)
from txcalc.sources.huggingface.towers import stack
from txcalc.sources.spec import size


def qwen3_asr(v: Config, *defaults: int) -> Tower:
    """Three convolutions of 3 × 3 with a stride of 2 over bands and time, chunk by chunk, and layers with biases
    everywhere that attend within windows of whole chunks."""
    sizes = whisper_sizes(v, *(defaults or (1024, 4096, 24, 16)))
    bands, channels = v.size("num_mel_bins", default=128), v.size("downsample_hidden_size", default=480)
    frames = 2 * v.size("n_window", default=50)
    chunks = v.size("n_window_infer", default=800) // frames
    if not chunks:
        v.fault("n_window_infer", v.data.get("n_window_infer"), f"at least 2 · n_window = {frames:,}")
    act, grids = v.activation("activation_function", default="gelu"), []
    for _ in range(3):
        bands, frames = -(-bands // 2), -(-frames // 2)
        grids.append(bands * frames)
    around: Leaves = []
    for i, (grid, c_in) in enumerate(zip(grids, (1, channels, channels), strict=True)):
        here = {"at": [1, 0, frames, grid]}
        around.append(leaf(f"conv{i + 1}", "convolution", c_in, channels, 9, 4, kind="embedding", **here))
        around.append(leaf(f"conv{i + 1}_activation", "gelu", channels, **here))
    flat = matrix("conv_out", channels * bands, sizes.width, at=[1, 0, frames, frames])
    window = {"window": max(1, chunks) * frames, "chunked": True}
    raw = stack(sizes, act, attention=window, positions={"form": "sinusoidal"})
    return Tower(sizes.width, raw | {"kind": "encoder", "around": [*around, flat]})


def granite_speech(v: Config) -> Tower:
    """A Conformer: two feed-forwards, attention within blocks with a table of relative positions, and a convolution in
    each layer; a head in the middle, whose guesses are read again."""
    d, n = v.size("hidden_dim", "hidden_size", default=1024), v.size("num_layers", "num_hidden_layers", default=10)
    heads, bands = v.size("num_heads", "num_attention_heads", default=8), v.size("input_dim", default=160)
    head = v.size("dim_head", default=None, null=None)
    width = max(1, d // heads) if head is None else head
    rows, context = v.size("max_pos_emb", default=512), v.size("context_size", default=200)
    if context > rows:
        v.fault("context_size", context, f"at most max_pos_emb = {rows:,}")
    wide, taps = d * v.size("conv_expansion_factor", default=2), v.size("conv_kernel_size", default=15)
    f, words = d * v.size("feedforward_mult", default=4), v.size("output_dim", default=42)
    filled = {"at": [1, 0, context, context]}
    mixed = [norm_leaf("attention", d)]
    mixed += [matrix(letter, d, heads * width, **filled) for letter in "qkv"]
    mixed += [leaf("distances", "held", (2 * rows + 1) * width)]
    mixed += [leaf("distance_scores", "scores", heads, width, keys=[0, context, 1], **filled)]
    mixed += [leaf("core", "windows", heads, width, width, context, bias=True, **filled)]
    mixed += [leaf("o", "linear", heads * width, d), leaf("attention_sum", "sum", d)]
    inner = [leaf("conv_scale", "scale", wide), leaf("conv_shift", "shift", wide)]
    around = [leaf("frames", "linear", bands, d, kind="embedding"), leaf("guesses", "linear", d, words)]
    around += [leaf("guessed", "linear", words, d), leaf("guessed_sum", "sum", d)]
    layer = conformer_leaves(d, f, "silu", mixed, taps, inner, channels=wide, bias=True)
    return Tower(d, leaf_tower(d, layer, n, around))


def gemma4(v: Config) -> Tower:
    """Gemma 4's Conformer: two convolutions of 3 × 3 with a stride of 2, layers of two feed-forwards, attention of
    blocks to themselves and what is around them, and a convolution."""
    d, n = v.size("hidden_size", default=1024), v.size("num_hidden_layers", default=12)
    heads, taps = v.size("num_attention_heads", default=8), v.size("conv_kernel_size", default=5)
    v.divides(heads, d, "num_attention_heads", "the width")
    channels = v.items("subsampling_conv_channels", of=size, length=2, default=[128, 32])
    first, second = channels if len(channels) == 2 else (4, 1)
    if first < 4:
        v.fault("subsampling_conv_channels", channels, "at least 4 channels first: a quarter of them are bands")
    block, width = v.size("attention_chunk_size", default=12), max(1, d // heads)
    before, after = v.size("attention_context_left", default=13), v.count("attention_context_right", default=0)
    span, act = block + before - 1 + after, v.activation("hidden_act", default="silu")
    v.ignore("gradient_clipping", "attention_invalid_logits_value", "attention_logit_cap", "residual_weight")
    # A block's queries meet the same keys, as if they were heads of one position.
    grouped = {"at": [1, 0, block]}
    mixed = [norm_leaf("attention", d, "rms_norm"), *(matrix(letter, d, d) for letter in "qkv")]
    mixed += [leaf("query_scale", "held", width)]
    mixed += [matrix("distances", d, d, at=[0, span // 2 + 1, 1], shared=True)]
    spans = {"scores": span, "distance_scores": span // 2 + 1, "values": span}
    mixed += [leaf(name, "scores", heads * block, width, keys=[0, keys, 1], **grouped) for name, keys in spans.items()]
    mixed += [matrix("o", d, d), norm_leaf("attended", d, "rms_norm")]
    mixed.append(leaf("attention_sum", "sum", d))
    inner = [norm_leaf("conv_inner", d, "rms_norm")]
    layer = conformer_leaves(d, 4 * d, act, mixed, taps, inner, norm="rms_norm", ffn_bias=False)
    layer.append(leaf("fed_norms", "rms_norm", d, times=2, kind="norm"))
    bands, around = max(1, first // 4), list[Raw]()
    for i, (c_in, c_out, rate) in enumerate(((1, first, 4), (first, second, 1))):
        here = {"at": [rate * bands, 0, 1]}
        around.append(leaf(f"conv{i + 1}", "convolution", c_in, c_out, 9, 4, bias=False, kind="embedding", **here))
        around += [norm_leaf(f"conv{i + 1}", c_out, "layer_norm", bias=False, **here)]
        around += [leaf(f"conv{i + 1}_activation", "relu", c_out, **here)]
    around.append(matrix("frames", bands * second, d, kind="embedding"))
    wide = v.size("output_proj_dims", default=1536)
    return Tower(wide, leaf_tower(d, layer, n, around), steps=({"linear": wide},))


def gemma4_unified(v: Config) -> Tower:
    """A sound's frames as they are."""
    d = v.size("audio_embed_dim", default=640)
    return Tower(d, leaf_tower(d, []))


def vibevoice(v: Config, decoder: bool = False) -> Tower:
    """Convolutions that take a wave's samples together, stage by stage, each before blocks of a filter and two
    matrices. A `decoder` of the same stages backwards is held, for it makes sound."""
    width, f = v.size("hidden_size", default=64), v.size("num_filters", default=32)
    taps, channels = v.size("kernel_size", default=7), v.size("channels", default=1)
    wide, act = v.size("ffn_expansion", default=4), v.activation("hidden_act", default="gelu")
    ratios = v.items("downsampling_ratios", of=size, length=None, default=[2, 2, 4, 5, 5, 8])
    depths = v.items("depths", of=size, length=None, default=[3, 3, 3, 3, 3, 3, 8])
    if len(depths) != len(ratios) + 1 or len(ratios) > 20:
        v.fault("depths", depths, f"a list of {len(ratios) + 1:,} items, one more than downsampling_ratios")
        return Tower(width, leaf_tower(width, []))

    def blocks(i: int, d: int, **fields: object) -> Leaves:
        leaves = [norm_leaf("mixer", d, "rms_norm"), leaf("mixer", "convolution", d, d, taps, 1, groups=d)]
        leaves += [leaf("mixer_scale", "scale", d), leaf("mixer_sum", "sum", d), norm_leaf("fed", d, "rms_norm")]
        leaves += [leaf("up", "linear", d, wide * d), leaf("activation", act, wide * d)]
        leaves += [leaf("down", "linear", wide * d, d), leaf("fed_scale", "scale", d), leaf("fed_sum", "sum", d)]
        return [item | {"name": f"stage{i}_{item['name']}", **fields} for item in leaves]

    rate, c_in, stages, back = 1, channels, list[Raw](), list[Raw]()
    for ratio in ratios:
        rate *= ratio
    for i, (ratio, depth) in enumerate(zip([1, *ratios], depths, strict=True)):
        rate //= ratio
        here = {"at": [rate, 0, 1]}
        kernel = 2 * ratio if i else taps
        stages.append(leaf(f"stage{i}", "convolution", c_in, f, kernel, ratio, **here))
        stages += blocks(i, f, times=depth, **here)
        back += [leaf(f"stage{i}", "convolution", f, c_in, kernel, 1), *blocks(i, f, times=depth)]
        c_in, f = f, 2 * f
    last = leaf("last", "convolution", c_in, width, taps, 1)
    back.append(leaf("first", "convolution", width, c_in, taps, 1))
    raw = leaf_tower(width, [last], 1, stages)
    return Tower(width, raw | {"idle": count_params(back)} if decoder else raw)


def diffusing(v: Config) -> Tower:
    """VibeVoice's diffusion head, all of which is of the text's width: see `diffusing_projector`."""
    return Tower(1, leaf_tower(1, []), why="how many steps it takes, who runs it says")


def diffusing_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Layers of a feed-forward under a norm, each shifted, scaled and gated by matrices of what they are told; and two
    factors of the latents."""
    d, f, n = raw["d_model"], v.size("intermediate_size", default=4608), v.size("num_hidden_layers", default=4)
    audio, bias = c.data.get("audio_config"), v.flag("mlp_bias", default=False)
    latent = audio.get("hidden_size", 64) if isinstance(audio, Mapping) else 1
    latent = latent if type(latent) is int else 1  # what is no size is a fault of its own table
    for key, expected in (("hidden_size", d), ("latent_size", latent)):
        if v.data.get(key, expected) != expected:
            v.fault(key, v.data[key], f"{expected:,}, which the class derives")
    act = v.activation("hidden_act", default="silu")
    layer = ffn_leaves("fed", d, f, act, norm="rms_norm", bias=bias, gated=True, times=n)
    layer.append(matrix("shifts", d, 3 * d, times=n))
    frequencies = v.size("frequency_embedding_size", default=256)
    sides = {"in": (latent, d), "time": (frequencies, d), "times": (d, d), "text": (d, d)}
    sides |= {"last": (d, 2 * d), "out": (d, latent)}
    ends = [leaf(name, "linear", *both, bias=False) for name, both in sides.items()]
    return Projection((resampler_step([*ends, *layer, leaf("factors", "held", 2)], 1, 1, d),))
