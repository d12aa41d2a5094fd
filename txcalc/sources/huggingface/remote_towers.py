"""Towers and projectors of multimodal models whose code is published beside their weights, as that code has them."""

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
# What Phi's code makes of its table for embeddings: the one form that is read.
EMBEDDED = {
    "embedding_cls": "image",
    "hd_transform_order": "sub_glb",
    "projection_cls": "mlp",
    "use_hd_transform": True,
    "with_learnable_separator": True,
}


# Why no FLOPs are said of them.
UNCHECKED = "its code is its own, beside which no count was checked"


def _clip(v: Config, image: int, layers: int = 24) -> Raw:
    """CLIP's layers for pictures of this side, whatever the config says."""
    fields = {**CLIP, "num_hidden_layers": layers, "image_size": image, "patch_size": 14}
    return clip(Config(fields, "clip_vision_model", v.path, v)).raw


def internvl_chat(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """As in transformers; without adapters, and for pictures as large as the table of positions."""
    c.require_value(0, "use_backbone_lora", "use_llm_lora", why="its adapters are not read")
    c.require_value(tower.raw["vision"]["image"], "force_image_size", why="its table of positions is for that size")
    return internvl(c, v, tower, raw)


def minicpmv(v: Config) -> Tower:
    """SigLIP's without its head, for pictures of any size."""
    whole = v.parent
    assert isinstance(whole, Config)
    whole.require_value(False, "drop_vision_last_layer", why="all layers are read")
    if str(whole.data.get("version", "2.5")) not in ("2.5", "2.6"):
        whole.fault("version", whole.data["version"], "2.5 or 2.6", "the resampler of others is not read")
    whole.ignore("version")
    grid, _, _ = grid_of(v, 224, 16)
    return ragged(v, grid**2, 768, 3072, 12, 12)


def resampler(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Queries of its own attend once to a picture's patches, made as wide as the language model."""
    d, queries = raw["d_model"], c.size("query_num", default=64)
    here = {"at": [0, 1, 1]}  # however many patches a picture has
    leaves = [leaf("queries", "held", queries * d), norm_leaf("queries", d), norm_leaf("read", d, **here)]
    leaves += [matrix("narrow", tower.width, d, **here)] * (tower.width != d)
    leaves += [
        *attention_leaves("", d, 1, d, keys=here["at"]),
        norm_leaf("last", d),
        matrix("projection", d, d),
    ]
    return Projection((resampler_step(leaves, 1, queries, d),), why=UNCHECKED)


def phi3_v(v: Config) -> Tower:
    """CLIP's of 336 pixels, which the code itself describes."""
    v.require_value("clip_vision_model", "name", why="that tower alone is read")
    v.require_value("openai/clip-vit-large-patch14-336", "model_name", why="that tower alone is read")
    v.require_value(1024, "image_dim_out", why="it is as wide")
    v.require_value(144, "num_img_tokens", why="of 24 × 24 patches four become one")
    return Tower(CLIP["hidden_size"], _clip(v, 336), why=UNCHECKED)


def phi3_v_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Four patches as one, a vector between rows and one between a picture and its parts, two matrices."""
    given = c.data.get("embd_layer")
    c.ignore("embd_layer")
    if given != EMBEDDED:
        c.fault("embd_layer", given, str(EMBEDDED))
    d = raw["d_model"]
    steps: Steps = ({"merge": 4}, {"vectors": 2}, {"linear": d}, GELU, {"linear": d})
    return Projection(steps, 1)


def deepseek_ocr(v: Config) -> Tower:
    """SAM's, two convolutions that leave a sixteenth of its positions, and CLIP's on these: of sizes that its code
    says, whatever stands in the config."""
    whole = v.parent
    assert isinstance(whole, Config)
    if whole.class_ends("OCR2ForCausalLM", "VLV2ForCausalLM"):
        whole.fault("architectures[0]", whole.data["architectures"][0], "DeepseekOCRForCausalLM", "its tower is read")
    v.require_value("deeplip_b_l", "model_name", why="that tower alone is read")
    if "model_name" not in v.data:
        v.fault("model_name", None, "'deeplip_b_l'")
    v.ignore("image_size", "mlp_ratio", "width")
    wide = CLIP["hidden_size"]
    sam = got_ocr2(Config({"hidden_size": 768}, "got_ocr2", v.path, v))
    second = _clip(v, 224) | {"head": {"form": "none"}}
    neck: Steps = (strided_convolution(64, [sam.width, 512, wide], False), {"merge": 1, "to": 2 * wide})
    return Tower(2 * wide, sam.raw | {"idle": build(second, "CLIP").params}, neck, why=UNCHECKED)


def deepseek_ocr_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A matrix on both towers' features, a vector at the end of a row and one between a picture and its parts."""
    given, d = c.data.get("projector_config"), raw["d_model"]
    c.ignore("projector_config")
    usual = {"input_dim": tower.width, "model_type": "mlp_projector", "n_embed": d, "projector_type": "linear"}
    if given != usual:
        c.fault("projector_config", given, str(usual))
    return Projection(({"linear": d}, {"vectors": 2}))


def dots_ocr(v: Config) -> Tower:
    """A norm of patches, gated layers with RMSNorms and rotary positions."""
    v.require_value(1, "temporal_patch_size", why="one picture makes a patch")
    v.require_value(False, "is_causal", why="all patches see each other")
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
    bias, last = v.flag("use_bias", default=False), v.flag("post_norm", default=True)
    tables: dict[str, Raw] = {"attention": {"bias": bias}, "feed_forward": {"gated": True, "bias": bias}}
    tables |= {"norm": {"form": "rms", "final": last}, "positions": ROTARY, "embedding": {"norm": True}}
    return Tower(size.width, stack(size, "silu", **tables, vision=vision))


def dots_ocr_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A norm, patches side by side, two matrices."""
    v.require_size("hidden_size", raw["d_model"], 1536, "the language model's width")
    return merging(tower, v.size("spatial_merge_size", default=2) ** 2, raw)


def molmo(v: Config) -> Tower:
    """CLIP's of 336 pixels without its last layer and norm, whose sizes the code itself says."""
    wide: Raw = {"merge": 1, "to": 2 * CLIP["hidden_size"]}
    return Tower(2 * CLIP["hidden_size"], _clip(v, 336, 23) | {"head": {"form": "none"}}, (wide,), UNCHECKED, 1)


def molmo_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Two layers' features: one attends to four patches for each, and a gated feed-forward half as wide as the
    config says; two vectors where a picture ends."""
    d_source, wide = tower.width, CLIP["hidden_size"]
    half = c.size("intermediate_size") // 2
    pooled = [leaf(letter, "linear", wide if letter == "o" else d_source, wide) for letter in "qkvo"]
    return Projection(({"vectors": 2}, resampler_step(pooled, 4, 1, wide), *gated_steps(half, raw["d_model"], False)))
