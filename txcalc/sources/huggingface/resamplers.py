"""Projectors whose learned queries read a tower's positions: resamplers and Q-Formers, as transformers has them."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

from txcalc.errors import InputError
from txcalc.num import ceil_div
from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.leaf_list import attention_leaves, ffn_leaves, leaf, matrix, norm_leaf
from txcalc.sources.huggingface.tower_types import Projection, Steps, Tower, gated_steps, resampler_step
from txcalc.sources.huggingface.towers import GELU
from txcalc.sources.spec import MAX_SIZE


def _patch_count(tower: Tower) -> int:
    """Positions of a picture whose size is part of the tower."""
    vision = tower.raw["vision"]
    return int((vision["image"] // vision["patch"]) ** 2) + tower.first


QFORMER = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}


def _qformer(p: Config, d_source: int, n_source: int, queries: int, words: int = 0, prompt: int = 0) -> Raw:
    """Queries, a norm, and post-norm layers of which every n-th (`cross_attention_frequency`) attends to what is read;
    up to `prompt` tokens of `words` stand beside the queries, with feed-forwards of their own."""
    d, f, n, heads = (p.size(key, default=size) for key, size in QFORMER.items())
    p.divides(heads, d, "num_attention_heads", "hidden_size")
    width, act = max(1, d // heads), p.activation("hidden_act", default="gelu")
    across = -(-n // p.size("cross_attention_frequency", default=2))
    at_queries: Raw = {"at": [0, queries, 1]}
    at_prompt: Raw = {"at": [1, -queries, 1]}
    leaves = [leaf("queries", "held", queries * d), norm_leaf("queries", d)]
    leaves += [*attention_leaves("self_", d, heads, width, times=n), norm_leaf("self", d, times=n)]
    keys = [0, n_source, 1]
    leaves += attention_leaves("read_", d, heads, width, d_source=d_source, keys=keys, times=across, **at_queries)
    leaves.append(norm_leaf("read", d, times=across, **at_queries))
    for name, place in (("fed", at_queries), ("words", at_prompt))[: 1 + (prompt > 0)]:
        leaves += [*ffn_leaves(name, d, f, act, norm="", times=n, **place), norm_leaf(name, d, times=n, **place)]
    if prompt:
        leaves.append(leaf("words", "table", words, d, **at_prompt))
        leaves.append(leaf("positions", "table", prompt, d, bias=True, **at_prompt))
    return resampler_step(leaves, n_source, queries, d, prompt=prompt)


def granite_speech(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A Q-Former that reads windows of frames, and a matrix. Granite Speech Plus hands on some of the tower's layers
    beside the last, with no weights of its own."""
    frames, rate = c.size("window_size", default=15), c.size("downsample_rate", default=5)
    queries = frames // rate
    p = c.table("projector_config") or Config({}, "blip_2_qformer", "projector_config.", c)
    d_source = p.size("encoder_hidden_size", default=1408)
    layers = v.data.get("cat_hidden_layers") if c.has_key("cat_hidden_layers") else None
    v.ignore(*["cat_hidden_layers"] * c.has_key("cat_hidden_layers"))
    if layers is not None and (not isinstance(layers, list) or d_source != tower.width * (len(layers) + 1)):
        v.fault("cat_hidden_layers", layers, f"layers that are together as wide as encoder_hidden_size = {d_source:,}")
    if not queries:
        c.fault("downsample_rate", c.data.get("downsample_rate"), f"at most window_size = {frames:,}")
    wide = tower.width * (1 + len(layers) if isinstance(layers, list) else 1)
    fits = d_source == wide and frames % rate == 0
    why = "" if fits else "its Q-Former does not fit its encoder, or its queries the frames of a window"
    return Projection((_qformer(p, d_source, frames, max(1, queries)), {"linear": raw["d_model"]}), why=why)


def blip2(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A Q-Former and a matrix; InstructBLIP's reads the prompt too."""
    p = c.subtable("qformer_config")
    queries, rows = c.size("num_query_tokens", default=32), p.size("max_position_embeddings", default=512)
    words = p.size("vocab_size", default=30522)
    if c.has_key("use_qformer_text_input"):
        p.require_value(False, "use_qformer_text_input", why="a Q-Former without words is read")
        rows = 0
    else:
        c.assumptions.append(f"its Q-Former reads the prompt: all tokens but its own {queries:,}, at most {rows:,}")
    step = _qformer(p, tower.width, _patch_count(tower), queries, words, rows)
    return Projection((step, {"linear": raw["d_model"]}))


def idefics2(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A gated matrix triple to the language model's width, and layers of latents that attend to what they read and to
    themselves."""
    d, f = int(raw["d_model"]), raw.get("feed_forward", {}).get("d_ff")
    if f is None:
        raise InputError(c.model_type, ["its language model is not dense"])
    p = c.subtable("perceiver_config")
    heads, groups = p.size("resampler_n_heads", default=16), p.size("num_key_value_heads", default=4)
    head, n = p.size("resampler_head_dim", default=96), p.size("resampler_depth", default=3)
    latents, act = p.size("resampler_n_latents", default=64), p.activation("hidden_act", default="silu")
    p.divides(groups, heads, "num_key_value_heads", "resampler_n_heads")
    patches = _patch_count(tower)
    both = [0, patches + latents, 1]
    leaves = [leaf("latents", "held", latents * d), norm_leaf("latents", d, "rms_norm", times=n)]
    leaves.append(norm_leaf("read", d, "rms_norm", at=[0, patches, 1], times=n))
    grouped = heads // groups if heads % groups == 0 else 1
    leaves += attention_leaves("", d, heads, head, keys=both, groups=grouped, bias="", times=n)
    leaves += ffn_leaves("fed", d, 4 * d, act, norm="rms_norm", bias=False, gated=True, times=n)
    leaves.append(norm_leaf("last", d, "rms_norm"))
    return Projection((*gated_steps(f, d, False), resampler_step(leaves, patches, latents, d)))


def aria(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Queries that attend to the patches, as many as their number asks for, and two matrices; what the longest list
    needs is held."""
    c.ignore("vision_feature_layer", "projector_patch_to_query_dict", "max_value_projector_patch_to_query_dict")
    table = c.data.get("projector_patch_to_query_dict")
    table = {"4900": 256} if table is None else table
    sizes = table.items() if isinstance(table, Mapping) else ()
    if not sizes or not all(str(key).isdecimal() and type(n) is int and 0 < n <= MAX_SIZE for key, n in sizes):
        c.fault("projector_patch_to_query_dict", table, "an object with a number of queries for numbers of patches")
        table = {"1": 1}
    d, out, patches = tower.width, int(raw["d_model"]), _patch_count(tower)
    heads = tower.raw["attention"]["n_heads"]
    queries = {int(key): number for key, number in table.items()}.get(patches)
    there = {"at": [0, patches, 1]}
    leaves = [leaf("queries", "held", max(table.values()) * d), norm_leaf("queries", d), norm_leaf("read", d, **there)]
    leaves += [matrix(f"first_{letter}", d, d, **there if letter != "q" else {}) for letter in "qkv"]
    leaves += [*attention_leaves("", d, heads, max(1, d // heads), keys=there["at"]), leaf("after", "linear", d, d)]
    two: Steps = ({"norm": "layer"}, {"linear": out, "bias": False}, GELU, {"linear": out, "bias": False})
    why = "" if queries else f"projector_patch_to_query_dict has no number for a picture's {patches:,} patches"
    return Projection((resampler_step(leaves, patches, queries or 1, d), *two), why=why)


def molmo2(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Layers side by side, of which the mean of 2 × 2 patches attends to them, those of a crop filled up to whole ones,
    and a gated feed-forward."""
    p = c.subtable("adapter_config")
    layers = p.data.get("vit_layers", p.data.get("vision_feature_layer"))
    layers = [24, 18] if layers is None else layers
    p.ignore("vision_feature_layer", "vit_layers", "hidden_act", "attention_dropout", "image_feature_dropout")
    d, h = p.size("hidden_size", default=1152), p.size("num_attention_heads", default=16)
    if d != tower.width:
        p.fault("hidden_size", d, f"the tower's {tower.width:,}")
    head, groups = p.size("head_dim", default=72), p.size("num_key_value_heads", default=16)
    p.divides(groups, h, "num_key_value_heads", "num_attention_heads")
    f, wide = p.size("intermediate_size", default=18944), tower.width * (len(layers) if isinstance(layers, list) else 1)
    out = p.size("text_hidden_size", default=3584)
    pool = attention_leaves("", wide, h, head, keys=[0, 4, 1], groups=h // groups if h % groups == 0 else 1, to=d)
    patches = 1 if tower.why else _patch_count(tower)
    windows = ceil_div(isqrt(patches), 2) ** 2
    if not tower.why:
        c.assumptions.append(f"its tower runs one crop, pooled to {windows:,} tokens: its processor makes two or more")
    filled = resampler_step([leaf("masked", "sum", wide)], patches, 4 * windows, wide)
    return Projection(({"merge": 1, "to": wide}, filled, resampler_step(pool, 4, 1, d), *gated_steps(f, out, False)))
