"""Vision Transformers."""

from __future__ import annotations

from typing import Any

from txcalc.sources.huggingface.config import Config, Raw, piece
from txcalc.sources.huggingface.leaves import Pieces, attends, fed, listed, normed
from txcalc.sources.huggingface.reading import counted


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


def vjepa2(c: Config) -> Raw:
    """Patches of several frames, and layers that guess all of them again from as many narrower ones; or layers and a
    query that pool them for a classifier, where nothing is guessed (arXiv 2506.09985)."""
    c.alone()
    form = c.head_of("none", "classifier")
    d, n = c.size("hidden_size"), c.layers("num_hidden_layers")
    patch, side = c.size("patch_size", default=16), c.size("crop_size", default=256)
    deep, frames = c.size("tubelet_size", default=2), c.size("frames_per_clip", default=64)
    if patch > side:
        c.fault("patch_size", patch, f"at most crop_size = {side}")
    number = (side // patch) ** 2 * (frames // deep or frames)  # fewer frames than a patch has are repeated
    act, bias = c.activation("hidden_act", default="gelu"), "qkvo" if c.flag("qkv_bias", default=True) else "o"
    here: Raw = {"at": [0, number, 1]}

    def layer(width: int, heads: str, usual: int, ratio: str, **at: Any) -> Pieces:
        several, wide = c.size(heads, default=usual), int(width * c.ratio(ratio, 4.0, width))
        c.divides(several, width, heads, "the width")
        made = attends("", width, several, max(1, width // several), bias=bias, **at)
        return [normed("attention", width, **at), *made, *fed("fed", width, wide, act, **at)]

    taps = patch * patch * deep
    around = [piece("patches", "convolution", c.size("in_chans", default=3), d, taps, taps, kind="embedding", **here)]
    around.append(normed("last", d, **here))
    kinds = {"layer": layer(d, "num_attention_heads", 16, "mlp_ratio", **here)}
    narrow, times = c.size("pred_hidden_size", default=384), c.layers("pred_num_hidden_layers")
    masks, both = c.size("pred_num_mask_tokens", default=10), Raw({"at": [0, 2 * number, 1]})
    kinds["guess"] = layer(narrow, "pred_num_attention_heads", 12, "pred_mlp_ratio", **both)
    guessed = [piece("narrowed", "linear", d, narrow, **here), piece("masks", "held", masks * narrow)]
    guessed += [normed("guess", narrow, **both), piece("guesses", "linear", narrow, d, **here)]
    pooled = c.count("num_pooler_layers", default=3)
    raw: Raw = {"kind": "encoder", "d_model": d, "head": {"form": "none"}}
    if form == "none":
        return listed(
            raw | {"n_layers": n + times, "around": around + guessed}, kinds, [f"{n}*layer", f"{times}*guess"]
        )
    raw |= {
        "n_layers": n + pooled,
        "idle": counted([*guessed, *(one | {"times": times} for one in kinds.pop("guess"))]),
    }
    heads = c.size("num_attention_heads", default=16)
    width, once = max(1, d // heads), Raw({"at": [0, 1, 1]})
    asked = [piece("query", "held", d), normed("pooled", d, **here)]
    asked += attends("pooling_", d, heads, width, keys=here["at"], **once)
    asked = [one for one in asked if one["name"] != "pooling_o"]
    asked += [*fed("pooled_fed", d, 4 * d, act, **once), piece("classifier", "linear", d, c.labels(), **once)]
    around += [one | {"kind": "head"} for one in asked]
    if not pooled:
        return listed(raw | {"around": around}, kinds, [])
    kinds["pooling"] = [normed("attention", d, **here), *attends("", d, heads, width, **here)]
    kinds["pooling"] += fed("fed", d, 4 * d, act, **here)
    return listed(raw | {"around": around}, kinds, [f"{n}*layer", f"{pooled}*pooling"])
