"""Audio towers listed leaf by leaf, at least in their first layers: convolutions and Conformers.

Layers that run chunk by chunk pad the last chunk.
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
    """Three 3 × 3 convolutions with stride 2 over bands and time, chunk by chunk, and layers with biases and attention
    within windows of whole chunks."""
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
    """A Conformer: two feed-forwards, attention within blocks with relative positions, and a convolution in each layer;
    the predictions of a head in the middle are added to its states."""
    d, n = v.size("hidden_dim", "hidden_size", default=1024), v.size("num_layers", "num_hidden_layers", default=10)
    heads, bands = v.size("num_heads", "num_attention_heads", default=8), v.size("input_dim", default=160)
    head = v.size("dim_head", default=None, null=None)
    width = max(1, d // heads) if head is None else head
    rows, context = v.size("max_pos_emb", default=512), v.size("context_size", default=200)
    if context > rows:
        v.fault("context_size", context, f"at most max_pos_emb = {rows:,}")
    channels, taps = d * v.size("conv_expansion_factor", default=2), v.size("conv_kernel_size", default=15)
    f, vocab = d * v.size("feedforward_mult", default=4), v.size("output_dim", default=42)
    padded = {"at": [1, 0, context, context]}
    mixer = [norm_leaf("attention", d)]
    mixer += [matrix(letter, d, heads * width, **padded) for letter in "qkv"]
    mixer += [leaf("distances", "held", (2 * rows + 1) * width)]
    mixer += [leaf("distance_scores", "scores", heads, width, keys=[0, context, 1], **padded)]
    mixer += [leaf("core", "windows", heads, width, width, context, bias=True, **padded)]
    mixer += [leaf("o", "linear", heads * width, d), leaf("attention_sum", "sum", d)]
    inner = [leaf("conv_scale", "scale", channels), leaf("conv_shift", "shift", channels)]
    around = [leaf("frames", "linear", bands, d, kind="embedding"), leaf("guesses", "linear", d, vocab)]
    around += [leaf("guessed", "linear", vocab, d), leaf("guessed_sum", "sum", d)]
    layer = conformer_leaves(d, f, "silu", mixer, taps, inner, channels=channels, bias=True)
    return Tower(d, leaf_tower(d, layer, n, around))


def gemma4(v: Config) -> Tower:
    """Gemma 4's Conformer: two 3 × 3 convolutions with stride 2; layers of two feed-forwards, attention from blocks to
    themselves and their neighbourhood, and a convolution."""
    d, n = v.size("hidden_size", default=1024), v.size("num_hidden_layers", default=12)
    heads, taps = v.size("num_attention_heads", default=8), v.size("conv_kernel_size", default=5)
    v.divides(heads, d, "num_attention_heads", "the width")
    channels = v.items("subsampling_conv_channels", of=size, length=2, default=[128, 32])
    first, second = channels if len(channels) == 2 else (4, 1)
    if first < 4:
        v.fault("subsampling_conv_channels", channels, "at least 4 channels first: the number of bands is a quarter")
    block, width = v.size("attention_chunk_size", default=12), max(1, d // heads)
    before, after = v.size("attention_context_left", default=13), v.count("attention_context_right", default=0)
    span, act = block + before - 1 + after, v.activation("hidden_act", default="silu")
    v.ignore("gradient_clipping", "attention_invalid_logits_value", "attention_logit_cap", "residual_weight")
    # A block's queries read the same keys: they count as heads of one position.
    blocks = {"at": [1, 0, block]}
    mixer = [norm_leaf("attention", d, "rms_norm"), *(matrix(letter, d, d) for letter in "qkv")]
    mixer += [leaf("query_scale", "held", width)]
    mixer += [matrix("distances", d, d, at=[0, span // 2 + 1, 1], shared=True)]
    spans = {"scores": span, "distance_scores": span // 2 + 1, "values": span}
    mixer += [leaf(name, "scores", heads * block, width, keys=[0, keys, 1], **blocks) for name, keys in spans.items()]
    mixer += [matrix("o", d, d), norm_leaf("attended", d, "rms_norm"), leaf("attention_sum", "sum", d)]
    inner = [norm_leaf("conv_inner", d, "rms_norm")]
    layer = conformer_leaves(d, 4 * d, act, mixer, taps, inner, norm="rms_norm", ffn_bias=False)
    layer.append(leaf("fed_norms", "rms_norm", d, times=2, kind="norm"))
    bands, around = max(1, first // 4), list[Raw]()
    for i, (c_in, c_out, rate) in enumerate(((1, first, 4), (first, second, 1))):
        here = {"at": [rate * bands, 0, 1]}
        around.append(leaf(f"conv{i + 1}", "convolution", c_in, c_out, 9, 4, bias=False, kind="embedding", **here))
        around += [norm_leaf(f"conv{i + 1}", c_out, "layer_norm", bias=False, **here)]
        around += [leaf(f"conv{i + 1}_activation", "relu", c_out, **here)]
    around.append(matrix("frames", bands * second, d, kind="embedding"))
    out = v.size("output_proj_dims", default=1536)
    return Tower(out, leaf_tower(d, layer, n, around), steps=({"linear": out},))


def gemma4_unified(v: Config) -> Tower:
    """No tower: the projector reads the audio frames."""
    d = v.size("audio_embed_dim", default=640)
    return Tower(d, leaf_tower(d, []))


def vibevoice(v: Config, decoder: bool = False) -> Tower:
    """Stages over the samples of a waveform: a strided convolution, then blocks of a depthwise convolution and a
    feed-forward. The `decoder`, with the same stages in reverse, generates audio and does not run."""
    width, f = v.size("hidden_size", default=64), v.size("num_filters", default=32)
    taps, channels = v.size("kernel_size", default=7), v.size("channels", default=1)
    factor, act = v.size("ffn_expansion", default=4), v.activation("hidden_act", default="gelu")
    ratios = v.items("downsampling_ratios", of=size, length=None, default=[2, 2, 4, 5, 5, 8])
    depths = v.items("depths", of=size, length=None, default=[3, 3, 3, 3, 3, 3, 8])
    if len(depths) != len(ratios) + 1 or len(ratios) > 20:
        v.fault("depths", depths, f"a list of {len(ratios) + 1:,} items, one more than downsampling_ratios")
        return Tower(width, leaf_tower(width, []))

    def blocks(i: int, d: int, **fields: object) -> Leaves:
        leaves = [norm_leaf("mixer", d, "rms_norm"), leaf("mixer", "convolution", d, d, taps, 1, groups=d)]
        leaves += [leaf("mixer_scale", "scale", d), leaf("mixer_sum", "sum", d), norm_leaf("fed", d, "rms_norm")]
        leaves += [leaf("up", "linear", d, factor * d), leaf("activation", act, factor * d)]
        leaves += [leaf("down", "linear", factor * d, d), leaf("fed_scale", "scale", d), leaf("fed_sum", "sum", d)]
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
    """VibeVoice's diffusion head, all of which has the text's width: see `diffusing_projector`."""
    return Tower(1, leaf_tower(1, []), why="its number of steps is chosen at run time")


def diffusing_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Feed-forward layers with adaptive norms (shift, scale and gate from the conditioning), and two factors of the
    latents."""
    d, f, n = raw["d_model"], v.size("intermediate_size", default=4608), v.size("num_hidden_layers", default=4)
    audio, bias = c.data.get("audio_config"), v.flag("mlp_bias", default=False)
    latent = audio.get("hidden_size", 64) if isinstance(audio, Mapping) else 1
    latent = latent if type(latent) is int else 1  # audio_config's reader reports other values
    for key, expected in (("hidden_size", d), ("latent_size", latent)):
        if v.data.get(key, expected) != expected:
            v.fault(key, v.data[key], f"{expected:,}, which the class computes")
    act = v.activation("hidden_act", default="silu")
    layer = ffn_leaves("fed", d, f, act, norm="rms_norm", bias=bias, gated=True, times=n)
    layer.append(matrix("shifts", d, 3 * d, times=n))
    frequencies = v.size("frequency_embedding_size", default=256)
    sizes = {"in": (latent, d), "time": (frequencies, d), "times": (d, d), "text": (d, d)}
    sizes |= {"last": (d, 2 * d), "out": (d, latent)}
    matrices = [matrix(name, d_in, d_out) for name, (d_in, d_out) in sizes.items()]
    return Projection((resampler_step([*matrices, *layer, leaf("factors", "held", 2)], 1, 1, d),))
