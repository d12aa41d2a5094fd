"""Projectors of multimodal models: the steps between a tower and the language model.

Arguments are the multimodal config, the tower's config, the tower, and the language model's description. Most are a row
of `tower_registry.json` (`by_row`). Resamplers and Q-Formers have learned queries that attend to the tower's output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any

from txcalc.errors import InputError
from txcalc.num import ceil_div
from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.leaf_list import attention_leaves, ffn_leaves, leaf, matrix, norm_leaf
from txcalc.sources.huggingface.tower_types import (
    Projection,
    Steps,
    Tower,
    gated_steps,
    patch_area,
    resampler_step,
    strided_convolution,
)
from txcalc.sources.huggingface.towers import GELU, shuffle_factor
from txcalc.sources.spec import MAX_SIZE


def by_row(
    c: Config, v: Config, tower: Tower, raw: Raw, *, steps: Sequence[Raw | str], drops_first: bool = False
) -> Projection:
    """The steps of a row: "gelu", or a table whose values are "text" (the language model's width), "tower" (the
    tower's), or a key, its default and an exponent; keys with the prefix `tower.` are the tower's. `drops_first`: class
    tokens are dropped."""

    widths = {"text": raw["d_model"], "tower": tower.width}

    def value(given: Any) -> Any:
        if not isinstance(given, list):
            return widths.get(given, given)
        key, default, *power = given
        table = v if key.startswith("tower.") else c
        key = key.removeprefix("tower.")
        if isinstance(default, bool):
            return table.flag(key, default=default)
        return table.size(key, default=default) ** (power[0] if power else 1)

    tables = (GELU if isinstance(step, str) else {name: value(item) for name, item in step.items()} for step in steps)
    return Projection(tuple(tables), tower.first if drops_first else 0)


def _layers_read(c: Config) -> int:
    """The number of the tower's layers whose outputs are concatenated."""
    layers = c.data.get("vision_feature_layer", -1)
    c.ignore("vision_feature_layer")
    if type(layers) is int:
        return 1
    if not isinstance(layers, list) or not layers:
        c.fault("vision_feature_layer", layers, "a layer, or a list of layers")
        return 1
    return len(layers)


def _dropped_tokens(c: Config, default: str) -> int:
    """1 if the class token is dropped, else 0."""
    c.ignore("vision_feature_select_strategy")
    return 1 if c.data.get("vision_feature_select_strategy", default) == "default" else 0


def _two(width: int, bias: bool = True) -> Steps:
    """Two matrices with the same output width."""
    return {"linear": width, "bias": bias}, GELU, {"linear": width, "bias": bias}


def llava(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    concatenated: Raw = {"merge": 1, "to": tower.width * _layers_read(c)}
    bias = c.flag("multimodal_projector_bias", default=True)
    return Projection((concatenated, *_two(raw["d_model"], bias)), _dropped_tokens(c, "default"))


def llava_next(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """LLaVA's projector with an end-of-row vector."""
    steps, dropped, _ = llava(c, v, tower, raw)
    return Projection((*steps, {"vectors": 1}), dropped)


def llava_onevision(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    steps, _, _ = llava_next(c, v, tower, raw)
    return Projection(steps, _dropped_tokens(c, "full"))


def vipllava(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A norm over the features of five layers before the two matrices."""
    layers = c.data.get("vision_feature_layers", c.data.get("vision_feature_layer", [-2, -5, -8, -11, 6]))
    c.ignore("vision_feature_layers", "vision_feature_layer")
    width = tower.width * (len(layers) if isinstance(layers, list) else 1)
    return Projection(({"merge": 1, "to": width}, {"norm": "layer"}, *_two(raw["d_model"])), 1)


def paligemma(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    v.ignore("projection_dim")  # the class writes it into the config of any tower
    return Projection(({"linear": c.size("projection_dim", default=2048)},))


def perception_lm(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Two matrices, then average pooling."""
    ratio, vision = c.size("projector_pooling_ratio", default=1), tower.raw["vision"]
    c.divides(ratio, vision["image"] // vision["patch"], "projector_pooling_ratio", "the image's patches per side")
    if (class_token := c.flag("vision_use_cls_token", default=True)) != vision["class_token"]:
        c.fault("vision_use_cls_token", class_token, str(vision["class_token"]).lower(), "as in its tower")
    pool: Steps = ({"pool": ratio**2},) if ratio > 1 else ()
    return Projection((*_two(raw["d_model"]), *pool), tower.first)


def gemma3(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Average pooling to `mm_tokens_per_image`; a norm, a matrix."""
    tokens = c.size("mm_tokens_per_image", default=256)
    vision = tower.raw["vision"]
    side = vision["image"] // vision["patch"]
    kernel = max(1, side // max(1, isqrt(tokens)))
    steps: Steps = ({"pool": kernel**2}, {"norm": "rms"}, {"linear": raw["d_model"], "bias": False})
    return Projection(steps, side**2 + tower.first - (side // kernel * kernel) ** 2)


def mistral3(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A norm, merged patches, two matrices."""
    has_keys = c.has_key("multimodal_projector_bias")  # not LightOnOCR
    merge = c.size("spatial_merge_size", default=2) ** 2
    bias = has_keys and c.flag("multimodal_projector_bias", default=False)
    layers = _layers_read(c) if has_keys else 1
    steps: Steps = ({"merge": merge}, {"linear": tower.width, "bias": False}, {"merge": 1, "to": tower.width * layers})
    return Projection(({"norm": "rms"}, *steps, *_two(raw["d_model"], bias)))


def internvl(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    steps: Steps = ({"merge": shuffle_factor(c, "downsample_ratio")}, {"norm": "layer"}, *_two(raw["d_model"]))
    return Projection(steps, _dropped_tokens(c, "default"))


def lfm2_vl(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    bias, inner = c.flag("projector_bias", default=True), c.size("projector_hidden_size", default=2560)
    norm: Steps = ({"norm": "layer"},) if c.flag("projector_use_layernorm", default=True) else ()
    mlp: Steps = ({"linear": inner, "bias": bias}, GELU, {"linear": raw["d_model"], "bias": bias})
    return Projection(({"merge": c.size("downsample_factor", default=2) ** 2}, *norm, *mlp))


def merging(tower: Tower, merged: int, raw: Raw) -> Projection:
    """A norm, and two matrices on `merged` concatenated patches."""
    steps: Steps = ({"norm": "layer"}, {"merge": merged}, {"linear": tower.width * merged}, GELU)
    return Projection((*steps, {"linear": raw["d_model"]}))


def paddleocr(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    return merging(tower, v.size("spatial_merge_size", default=2) ** 2, raw)


def ovis2(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """An embedding of visual tokens."""
    for key, name, default in (("hidden_size", "d_model", 1536), ("vocab_size", "vocab_size", 151643)):
        c.ignore(key)  # the sizes of the head
        if c.data.get(key, default) != raw[name]:
            c.fault(key, c.data.get(key, default), f"text_config's {raw[name]:,}")
    return Projection(({"linear": raw["d_model"], "bias": False},))


def none(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """No projector: the tower's merger gives the language model's width."""
    if tower.width != raw["d_model"]:
        v.fault("out_hidden_size", tower.width, f"the language model's width {raw['d_model']:,}")
    return Projection(())


def _gated_aligner(c: Config, inner: int, raw: Raw) -> Steps:
    """A gated feed-forward, whose gate and up together have the width `inner`."""
    c.multiple("alignment_intermediate_size", inner, 2)
    return gated_steps(inner // 2, raw["d_model"])


def cohere2(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    merge: Raw = {"merge": c.size("downsample_factor", default=2) ** 2}
    return Projection((merge, *_gated_aligner(c, c.size("alignment_intermediate_size", default=36864), raw)))


def aya(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Cohere 2's projector with a norm."""
    inner = c.size("alignment_intermediate_size", default=raw["d_model"])
    merge: Raw = {"merge": c.size("downsample_factor", default=2) ** 2}
    return Projection((merge, {"norm": "layer"}, *_gated_aligner(c, inner, raw)), _dropped_tokens(c, "full"))


def kimi(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    merged = patch_area(v, "merge_kernel_size")
    c.require_size("projection_hidden_size", tower.width, 1152, "the tower's width")
    return merging(tower, merged, raw)


def got_ocr2(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Two 3 × 3 convolutions, to twice the channels and to the language model's width, and a matrix."""
    n, d = tower.width, raw["d_model"]
    return Projection((strided_convolution(isqrt(tower.raw["length"]), [n, 2 * n, d], False), {"linear": d}))


def voxtral(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Four concatenated frames, two matrices without biases."""
    frames = _concatenate(tower, v.size("intermediate_size", default=5120))
    return Projection((frames, *_two(raw["d_model"], False)))


def _concatenate(tower: Tower, width: int) -> Raw:
    """Concatenation of frames to this width; if no number of frames has it, no token results."""
    return {"merge": MAX_SIZE if width % tower.width else width // tower.width, "to": width}


def glmasr(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Frames concatenated to the tower's feed-forward width, and two matrices."""
    frames, d = _concatenate(tower, v.size("intermediate_size", default=5120)), raw["d_model"]
    return Projection((frames, {"linear": 2 * d}, GELU, {"linear": d}))


def ernie(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Two matrices on merged patches, two on merged frames (an image is repeated), one to the language model's width,
    and a norm after each."""
    merged, frames = v.size("spatial_merge_size", default=2) ** 2, v.size("temporal_merge_size", default=2)
    width = tower.width * merged
    temporal: Raw = {"merge": 1, "to": frames * width}
    steps: Steps = ({"merge": merged}, *_two(width), {"norm": "layer"}, temporal, *_two(width), {"norm": "layer"})
    return Projection((*steps, {"linear": raw["d_model"]}, {"norm": "rms"}))


def muse(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    c.require_size("out_hidden_size", tower.width, 6144, "the width of merged patches")
    inner = c.size("projector_hidden_size", default=4096)
    return Projection((*_two(inner, False), GELU, {"linear": raw["d_model"], "bias": False}))


def _patch_count(tower: Tower) -> int:
    """The tower's number of positions, for a fixed image size."""
    vision = tower.raw["vision"]
    return int((vision["image"] // vision["patch"]) ** 2) + tower.first


QFORMER = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}


def _qformer(p: Config, d_source: int, n_source: int, queries: int, vocab: int = 0, prompt: int = 0) -> Raw:
    """A Q-Former: learned queries, a norm, and post-norm layers, some (`cross_attention_frequency`) with attention to
    `n_source` states. Up to `prompt` text tokens follow the queries, with separate feed-forwards."""
    d, f, n, heads = (p.size(key, default=size) for key, size in QFORMER.items())
    p.divides(heads, d, "num_attention_heads", "hidden_size")
    width, act = max(1, d // heads), p.activation("hidden_act", default="gelu")
    n_cross = -(-n // p.size("cross_attention_frequency", default=2))
    at_queries: Raw = {"at": [0, queries, 1]}
    at_prompt: Raw = {"at": [1, -queries, 1]}
    leaves = [leaf("queries", "held", queries * d), norm_leaf("queries", d)]
    leaves += [*attention_leaves("self_", d, heads, width, times=n), norm_leaf("self", d, times=n)]
    keys = [0, n_source, 1]
    leaves += attention_leaves("read_", d, heads, width, d_source=d_source, keys=keys, times=n_cross, **at_queries)
    leaves.append(norm_leaf("read", d, times=n_cross, **at_queries))
    for name, at in (("fed", at_queries), ("words", at_prompt))[: 1 + (prompt > 0)]:
        leaves += [*ffn_leaves(name, d, f, act, norm="", times=n, **at), norm_leaf(name, d, times=n, **at)]
    if prompt:
        leaves.append(leaf("words", "table", vocab, d, **at_prompt))
        leaves.append(leaf("positions", "table", prompt, d, bias=True, **at_prompt))
    return resampler_step(leaves, n_source, queries, d, prompt=prompt)


def granite_speech(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A Q-Former on windows of frames, and a matrix. Granite Speech Plus concatenates the outputs of several layers."""
    frames, rate = c.size("window_size", default=15), c.size("downsample_rate", default=5)
    queries = frames // rate
    p = c.table("projector_config") or Config({}, "blip_2_qformer", "projector_config.", c)
    d_source = p.size("encoder_hidden_size", default=1408)
    layers = v.data.get("cat_hidden_layers") if c.has_key("cat_hidden_layers") else None
    v.ignore(*["cat_hidden_layers"] * c.has_key("cat_hidden_layers"))
    if layers is not None and (not isinstance(layers, list) or d_source != tower.width * (len(layers) + 1)):
        v.fault("cat_hidden_layers", layers, f"layers whose total width is encoder_hidden_size = {d_source:,}")
    if not queries:
        c.fault("downsample_rate", c.data.get("downsample_rate"), f"at most window_size = {frames:,}")
    width = tower.width * (1 + len(layers) if isinstance(layers, list) else 1)
    fits = d_source == width and frames % rate == 0
    why = "" if fits else "its Q-Former does not fit its encoder's width or the frames of a window"
    return Projection((_qformer(p, d_source, frames, max(1, queries)), {"linear": raw["d_model"]}), why=why)


def blip2(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A Q-Former and a matrix; InstructBLIP's also reads the prompt."""
    p = c.subtable("qformer_config")
    queries, rows = c.size("num_query_tokens", default=32), p.size("max_position_embeddings", default=512)
    vocab = p.size("vocab_size", default=30522)
    if c.has_key("use_qformer_text_input"):
        p.require_value(False, "use_qformer_text_input", why="only a Q-Former without text is supported")
        rows = 0
    else:
        c.assumptions.append(f"its Q-Former reads the prompt: all tokens but its {queries:,} queries, at most {rows:,}")
    step = _qformer(p, tower.width, _patch_count(tower), queries, vocab, rows)
    return Projection((step, {"linear": raw["d_model"]}))


def idefics2(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A gated feed-forward to the language model's width, and a Perceiver resampler: latents attend to the patches and
    to themselves."""
    d, f = int(raw["d_model"]), raw.get("feed_forward", {}).get("d_ff")
    if f is None:
        raise InputError(c.model_type, ["its language model is not dense"])
    p = c.subtable("perceiver_config")
    heads, groups = p.size("resampler_n_heads", default=16), p.size("num_key_value_heads", default=4)
    head, n = p.size("resampler_head_dim", default=96), p.size("resampler_depth", default=3)
    latents, act = p.size("resampler_n_latents", default=64), p.activation("hidden_act", default="silu")
    p.divides(groups, heads, "num_key_value_heads", "resampler_n_heads")
    patches = _patch_count(tower)
    keys = [0, patches + latents, 1]
    leaves = [leaf("latents", "held", latents * d), norm_leaf("latents", d, "rms_norm", times=n)]
    leaves.append(norm_leaf("read", d, "rms_norm", at=[0, patches, 1], times=n))
    grouped = heads // groups if heads % groups == 0 else 1
    leaves += attention_leaves("", d, heads, head, keys=keys, groups=grouped, bias="", times=n)
    leaves += ffn_leaves("fed", d, 4 * d, act, norm="rms_norm", bias=False, gated=True, times=n)
    leaves.append(norm_leaf("last", d, "rms_norm"))
    return Projection((*gated_steps(f, d, False), resampler_step(leaves, patches, latents, d)))


def aria(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Learned queries that attend to the patches, and two matrices. The number of queries depends on the number of
    patches; parameters count the largest number."""
    c.ignore("vision_feature_layer", "projector_patch_to_query_dict")
    table = c.data.get("projector_patch_to_query_dict")
    table = {"4900": 256} if table is None else table
    sizes = table.items() if isinstance(table, Mapping) else ()
    if not sizes or not all(str(key).isdecimal() and type(n) is int and 0 < n <= MAX_SIZE for key, n in sizes):
        c.fault("projector_patch_to_query_dict", table, "an object that maps numbers of patches to numbers of queries")
        table = {"1": 1}
    most = max(table.values())
    c.require_value(most, "max_value_projector_patch_to_query_dict", why="the largest number of queries")
    d, out, patches = tower.width, int(raw["d_model"]), _patch_count(tower)
    heads = tower.raw["attention"]["n_heads"]
    queries = {int(key): number for key, number in table.items()}.get(patches)
    at_patches = {"at": [0, patches, 1]}
    leaves = [leaf("queries", "held", most * d), norm_leaf("queries", d), norm_leaf("read", d, **at_patches)]
    leaves += [matrix(f"first_{letter}", d, d, **at_patches if letter != "q" else {}) for letter in "qkv"]
    leaves += attention_leaves("", d, heads, max(1, d // heads), keys=at_patches["at"])
    leaves.append(leaf("after", "linear", d, d))
    mlp: Steps = ({"norm": "layer"}, {"linear": out, "bias": False}, GELU, {"linear": out, "bias": False})
    why = "" if queries else f"projector_patch_to_query_dict has no entry for the image's {patches:,} patches"
    return Projection((resampler_step(leaves, patches, queries or 1, d), *mlp), why=why)


def molmo2(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Concatenated outputs of several layers, attention pooling over 2 × 2 patches (their mean is the query; a crop is
    padded to whole squares), and a gated feed-forward."""
    p = c.subtable("adapter_config")
    layers = p.data.get("vit_layers", p.data.get("vision_feature_layer"))
    layers = [24, 18] if layers is None else layers
    p.ignore("vision_feature_layer", "vit_layers", "hidden_act", "attention_dropout", "image_feature_dropout")
    d, h = p.size("hidden_size", default=1152), p.size("num_attention_heads", default=16)
    if d != tower.width:
        p.fault("hidden_size", d, f"the tower's {tower.width:,}")
    head, groups = p.size("head_dim", default=72), p.size("num_key_value_heads", default=16)
    p.divides(groups, h, "num_key_value_heads", "num_attention_heads")
    f, out = p.size("intermediate_size", default=18944), p.size("text_hidden_size", default=3584)
    width = tower.width * (len(layers) if isinstance(layers, list) else 1)
    pool = attention_leaves("", width, h, head, keys=[0, 4, 1], groups=h // groups if h % groups == 0 else 1, to=d)
    patches = 1 if tower.why else _patch_count(tower)
    windows = ceil_div(isqrt(patches), 2) ** 2
    if not tower.why:
        c.assumptions.append(f"its tower runs one crop, pooled to {windows:,} tokens: its processor makes two or more")
    padded = resampler_step([leaf("masked", "sum", width)], patches, 4 * windows, width)
    return Projection(({"merge": 1, "to": width}, padded, resampler_step(pool, 4, 1, d), *gated_steps(f, out, False)))
