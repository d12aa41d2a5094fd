"""Vision Transformers."""

from __future__ import annotations

from txcalc.sources.huggingface.config import Config, Raw


def pictures(c: Config, patch: int = 16, side: int = 224) -> tuple[Raw, Raw]:
    """Square pictures in square patches, as many as fit: the widths of a stack, and its `vision`."""
    c.alone()
    raw: Raw = {"kind": "vision", "d_model": c.size("hidden_size"), "n_layers": c.layers("num_hidden_layers")}
    image, patch = c.size("image_size", default=side), c.size("patch_size", default=patch)
    if patch > image:
        c.fault("patch_size", patch, f"at most image_size = {image}")
    elif image % patch:
        c.note(f"{image} pixels are {image // patch} patches of {patch}: the last {image % patch} are cut off")
    fitting = max(1, image // patch) * patch
    return raw, {"image": fitting, "patch": patch, "channels": c.size("num_channels", default=3)}


def vit(c: Config, form: str = "", side: int = 224) -> Raw:
    """Square patches and a class token; the classifier has a row a label."""
    raw, vision = pictures(c, side=side)
    bias = ["q", "k", "v"] if c.flag("qkv_bias", default=True) else []
    form = form or c.head_of("classifier", "none")
    head = {"form": "classifier", "classes": c.labels()} if form == "classifier" else {"form": "none", "pooler": True}
    return raw | {
        "attention": c.heads(raw, kv_names=(), width_names=()) | {"bias": [*bias, "o"]},
        "feed_forward": c.plain(),
        "norm": c.layer_norm("layer_norm_eps", eps=1e-12),
        "positions": {"form": "learned"},
        "vision": vision,
        "head": head,
    }


def vit_msn(c: Config) -> Raw:
    """ViT without a pooler."""
    raw = vit(c)
    return raw if raw["head"]["form"] == "classifier" else raw | {"head": {"form": "none"}}


def ijepa(c: Config) -> Raw:
    """ViT without a class token and a pooler."""
    raw = vit(c)
    if raw["head"]["form"] == "classifier":  # so it is where no class is named, too
        c.fault("architectures", c.data.get("architectures"), '["IJepaModel"]', "a mean of all patches is not read")
    return raw | {"vision": raw["vision"] | {"class_token": False}, "head": {"form": "none"}}


def data2vec_vision(c: Config) -> Raw:
    """BEiT, which pools for a classifier alone."""
    raw = beit(c)
    return raw if raw["head"]["form"] == "classifier" else raw | {"head": {"form": "none"}}


def dinov2(c: Config) -> Raw:
    """Scales on what the branches add; a classifier of the class token and the mean of the patches."""
    raw, vision = pictures(c, 14)
    bias = ["q", "k", "v"] if c.flag("qkv_bias", default=True) else []
    vision["mask_token"] = c.flag("use_mask_token", default=True)
    ratio = c.size("mlp_ratio", default=4)
    wide = raw["d_model"] * ratio
    if c.flag("use_swiglu_ffn", default=False):
        c.ignore("hidden_act")
        channel = {"d_ff": -(-(2 * wide // 3) // 8) * 8, "gated": True, "activation": "silu", "bias": True}
    else:
        channel = {"d_ff": wide, "activation": c.activation("hidden_act", default="gelu"), "bias": True}
    head: Raw = {"form": "none"}
    if c.head_of("classifier", "none") == "classifier":
        head = {"form": "classifier", "classes": c.labels(), "pool": "both"}
    return raw | {
        "attention": c.heads(raw, kv_names=(), width_names=()) | {"bias": [*bias, "o"]},
        "feed_forward": channel,
        "norm": c.layer_norm("layer_norm_eps", eps=1e-6, layer_scale=True),
        "positions": {"form": "learned"},
        "vision": vision,
        "head": head,
    }


def beit(c: Config) -> Raw:
    """Keys without a bias, scales on what the branches add, and a norm of the patches' mean in place of a final one."""
    raw, vision = pictures(c)
    vision["mask_token"] = c.flag("use_mask_token", default=False)
    mean = c.flag("use_mean_pooling", default=True)
    scale = c.real("layer_scale_init_value", default=0.1)
    if type(scale) is int:
        c.fault("layer_scale_init_value", scale, "a number with a point")
    head: Raw = {"form": "none"}
    if c.head_of("classifier", "none") == "classifier":
        head = {"form": "classifier", "classes": c.labels()}
    head |= {"pool": "mean", "pool_norm": True} if mean else {}
    shared, own = (c.flag(f"use_{kind}relative_position_bias", default=False) for kind in ("shared_", ""))
    if shared and own:
        c.fault("use_shared_relative_position_bias", True, "false where each layer has a table of biases")
    learned, side = c.flag("use_absolute_position_embeddings", default=False), vision["image"] // vision["patch"]
    places: Raw = {"form": "learned" if learned else "none"}
    if shared or own:
        places = {"form": "relative", "side": side, "apart": own} | ({"rows": side * side + 1} if learned else {})
    return raw | {
        "attention": c.heads(raw, kv_names=(), width_names=()) | {"bias": ["q", "v", "o"]},
        "feed_forward": c.plain(),
        "norm": c.layer_norm("layer_norm_eps", eps=1e-12, layer_scale=scale > 0, final=not mean),
        "positions": places,
        "vision": vision,
        "head": head,
    }
