"""Towers and projectors of multimodal models whose code is published with the weights."""

from __future__ import annotations

from txcalc.sources import build
from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.leaf_list import attention_leaves, leaf, matrix, norm_leaf
from txcalc.sources.huggingface.projectors import internvl, merging
from txcalc.sources.huggingface.tower_types import (
    Projection,
    Sizes,
    Steps,
    Tower,
    gated_steps,
    grid_of,
    resampler_step,
    strided_convolution,
)
from txcalc.sources.huggingface.towers import GELU, ROTARY, clip, ragged, stack
from txcalc.sources.huggingface.vision_towers import got_ocr2

CLIP = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
# The supported value of Phi's `embd_layer`.
EMBD_LAYER = {
    "embedding_cls": "image",
    "hd_transform_order": "sub_glb",
    "projection_cls": "mlp",
    "use_hd_transform": True,
    "with_learnable_separator": True,
}


# Why FLOPs of these towers are unknown.
UNCHECKED = "no FLOP count was checked against its published code"


def _clip(v: Config, image: int, layers: int = 24) -> Raw:
    """CLIP's layers for images of this side; the config does not matter."""
    fields = {**CLIP, "num_hidden_layers": layers, "image_size": image, "patch_size": 14}
    return clip(Config(fields, "clip_vision_model", v.path, v)).raw


def internvl_chat(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """As in transformers, without adapters, and for images of the size of the position embedding."""
    c.require_value(0, "use_backbone_lora", "use_llm_lora", why="its adapters are not supported")
    c.require_value(tower.raw["vision"]["image"], "force_image_size", why="its position embedding is for that size")
    return internvl(c, v, tower, raw)


def minicpmv(v: Config) -> Tower:
    """SigLIP without its head, for images of any size."""
    whole = v.parent
    assert isinstance(whole, Config)
    whole.require_value(False, "drop_vision_last_layer", why="only towers with all layers are supported")
    if str(whole.data.get("version", "2.5")) not in ("2.5", "2.6"):
        whole.fault("version", whole.data["version"], "2.5 or 2.6", "other versions have another resampler")
    whole.ignore("version")
    grid, _, _ = grid_of(v, 224, 16)
    return ragged(v, grid**2, 768, 3072, 12, 12)


def resampler(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Learned queries attend once to an image's patches, which are projected to the language model's width."""
    d, queries = raw["d_model"], c.size("query_num", default=64)
    patches = {"at": [0, 1, 1]}  # any number of patches
    leaves = [leaf("queries", "held", queries * d), norm_leaf("queries", d), norm_leaf("read", d, **patches)]
    leaves += [matrix("narrow", tower.width, d, **patches)] * (tower.width != d)
    leaves += [*attention_leaves("", d, 1, d, keys=patches["at"]), norm_leaf("last", d), matrix("projection", d, d)]
    return Projection((resampler_step(leaves, 1, queries, d),), why=UNCHECKED)


def phi3_v(v: Config) -> Tower:
    """CLIP for 336 pixels; the code fixes its sizes."""
    v.require_value("clip_vision_model", "name", why="only that tower is supported")
    v.require_value("openai/clip-vit-large-patch14-336", "model_name", why="only that tower is supported")
    v.require_value(1024, "image_dim_out", why="the width of that tower")
    v.require_value(144, "num_img_tokens", why="four of 24 × 24 patches make a token")
    return Tower(CLIP["hidden_size"], _clip(v, 336), why=UNCHECKED)


def phi3_v_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Merges four patches, adds a separator after each row and one between an image and its crops; two matrices."""
    layer = c.data.get("embd_layer")
    c.ignore("embd_layer")
    if layer != EMBD_LAYER:
        c.fault("embd_layer", layer, str(EMBD_LAYER))
    d = raw["d_model"]
    steps: Steps = ({"merge": 4}, {"vectors": 2}, {"linear": d}, GELU, {"linear": d})
    return Projection(steps, 1)


def deepseek_ocr(v: Config) -> Tower:
    """SAM, two convolutions that leave a sixteenth of its positions, and CLIP on these; the code fixes all sizes."""
    whole = v.parent
    assert isinstance(whole, Config)
    if whole.class_ends("OCR2ForCausalLM", "VLV2ForCausalLM"):
        whole.fault_class("DeepseekOCRForCausalLM", "only its tower is supported")
    v.require_value("deeplip_b_l", "model_name", why="only that tower is supported")
    if "model_name" not in v.data:
        v.fault("model_name", None, "'deeplip_b_l'")
    v.ignore("image_size", "mlp_ratio", "width")
    width = CLIP["hidden_size"]
    sam = got_ocr2(Config({"hidden_size": 768}, "got_ocr2", v.path, v))
    second = _clip(v, 224) | {"head": {"form": "none"}}
    neck: Steps = (strided_convolution(64, [sam.width, 512, width], False), {"merge": 1, "to": 2 * width})
    return Tower(2 * width, sam.raw | {"idle": build(second, "CLIP").params}, neck, why=UNCHECKED)


def deepseek_ocr_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A matrix on both towers' features, a separator after each row and one between an image and its crops."""
    projector, d = c.data.get("projector_config"), raw["d_model"]
    c.ignore("projector_config")
    expected = {"input_dim": tower.width, "model_type": "mlp_projector", "n_embed": d, "projector_type": "linear"}
    if projector != expected:
        c.fault("projector_config", projector, str(expected))
    return Projection(({"linear": d}, {"vectors": 2}))


def dots_ocr(v: Config) -> Tower:
    """A norm after the patches, gated layers with RMSNorms and rotary positions."""
    v.require_value(1, "temporal_patch_size", why="only single images are supported")
    v.require_value(False, "is_causal", why="attention must be bidirectional")
    size = Sizes(
        v.size("embed_dim", default=1536),
        v.size("intermediate_size", default=4224),
        v.size("num_hidden_layers", default=42),
        v.size("num_attention_heads", default=12),
    )
    v.divides(size.heads, size.width, "num_attention_heads", "embed_dim")
    vision = {
        "patch": v.size("patch_size", default=14),
        "channels": v.size("num_channels", default=3),
        "class_token": False,
    }
    bias, final = v.flag("use_bias", default=False), v.flag("post_norm", default=True)
    tables: dict[str, Raw] = {"attention": {"bias": bias}, "feed_forward": {"gated": True, "bias": bias}}
    tables |= {"norm": {"form": "rms", "final": final}, "positions": ROTARY, "embedding": {"norm": True}}
    return Tower(size.width, stack(size, "silu", **tables, vision=vision))


def dots_ocr_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A norm, merged patches, two matrices."""
    v.require_size("hidden_size", raw["d_model"], 1536, "the language model's width")
    return merging(tower, v.size("spatial_merge_size", default=2) ** 2, raw)


def molmo(v: Config) -> Tower:
    """CLIP for 336 pixels without its last layer and norm; the code fixes its sizes."""
    concatenated: Raw = {"merge": 1, "to": 2 * CLIP["hidden_size"]}
    return Tower(2 * CLIP["hidden_size"], _clip(v, 336, 23) | {"head": {"form": "none"}}, (concatenated,), UNCHECKED, 1)


def molmo_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Attention pooling over four patches on the features of two layers, and a gated feed-forward half as wide as
    `intermediate_size`; two vectors at the end of an image."""
    d_source, width = tower.width, CLIP["hidden_size"]
    half = c.size("intermediate_size") // 2
    pooled = [leaf(letter, "linear", width if letter == "o" else d_source, width) for letter in "qkvo"]
    return Projection(({"vectors": 2}, resampler_step(pooled, 4, 1, width), *gated_steps(half, raw["d_model"], False)))
