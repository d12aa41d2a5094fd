"""Vision Transformers."""

from __future__ import annotations

from functools import partial

from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.leaf_list import (
    Leaves,
    leaf,
    leaf_stack,
    matrix,
    norm_leaf,
    patch_grid,
    pre_norm_leaves,
    swin_leaves,
)
from txcalc.sources.spec import MAX_SIZE, size


def square_images(c: Config, patch: int = 16, side: int = 224) -> tuple[Raw, Raw]:
    """The widths of a stack, and its table `vision`: square images cropped to whole patches."""
    c.require_single_stack()
    raw: Raw = {"kind": "vision", "d_model": c.size("hidden_size"), "n_layers": c.layers("num_hidden_layers")}
    image, patch = c.size("image_size", default=side), c.size("patch_size", default=patch)
    if patch > image:
        c.fault("patch_size", patch, f"at most image_size = {image}")
    elif image % patch:
        c.note(f"{image} pixels are {image // patch} patches of {patch}: the last {image % patch} are cut off")
    fitting = max(1, image // patch) * patch
    return raw, {"image": fitting, "patch": patch, "channels": c.size("num_channels", default=3)}


def vit(c: Config, pooler: bool = True) -> Raw:
    """Square patches and a class token, with a classifier, or with a pooler if the class has one."""
    raw, vision = square_images(c)
    bias = ["q", "k", "v"] if c.flag("qkv_bias", default=True) else []
    form = c.head_of("classifier", "none")
    head: Raw = {"form": "classifier", "classes": c.labels()} if form == "classifier" else {"form": "none"}
    if form == "none" and pooler:
        c.require_value(raw["d_model"], "pooler_output_size", why="only a pooler as wide as the model is supported")
        head["pooler"] = True
    c.ignore("pooler_output_size")
    return raw | {
        "attention": c.mha(raw, bias=[*bias, "o"]),
        "feed_forward": c.mlp(),
        "norm": c.layer_norm("layer_norm_eps", eps=1e-12),
        "positions": {"form": "learned"},
        "vision": vision,
        "head": head,
    }


def vit_msn(c: Config) -> Raw:
    """ViT without a pooler."""
    return vit(c, pooler=False)


def ijepa(c: Config) -> Raw:
    """ViT without a class token and a pooler."""
    raw = vit(c, pooler=False)
    if raw["head"]["form"] == "classifier":  # also the default without a class
        c.fault("architectures", c.data.get("architectures"), '["IJepaModel"]', "mean pooling is not supported")
    return raw | {"vision": raw["vision"] | {"class_token": False}}


def data2vec_vision(c: Config) -> Raw:
    """BEiT, with pooling only before a classifier."""
    raw = beit(c)
    return raw if raw["head"]["form"] == "classifier" else raw | {"head": {"form": "none"}}


def dinov2(c: Config) -> Raw:
    """A scale on each branch; a classifier of the class token and the mean of the patches."""
    raw, vision = square_images(c, 14)
    bias = ["q", "k", "v"] if c.flag("qkv_bias", default=True) else []
    vision["mask_token"] = c.flag("use_mask_token", default=True)
    d_ff = raw["d_model"] * c.size("mlp_ratio", default=4)
    if c.flag("use_swiglu_ffn", default=False):
        c.ignore("hidden_act")
        ffn = {"d_ff": -(-(2 * d_ff // 3) // 8) * 8, "gated": True, "activation": "silu", "bias": True}
    else:
        ffn = {"d_ff": d_ff, "activation": c.activation("hidden_act", default="gelu"), "bias": True}
    head: Raw = {"form": "none"}
    if c.head_of("classifier", "none") == "classifier":
        head = {"form": "classifier", "classes": c.labels(), "pool": "both"}
    return raw | {
        "attention": c.mha(raw, bias=[*bias, "o"]),
        "feed_forward": ffn,
        "norm": c.layer_norm("layer_norm_eps", eps=1e-6, layer_scale=True),
        "positions": {"form": "learned"},
        "vision": vision,
        "head": head,
    }


def beit(c: Config) -> Raw:
    """No bias on k, a scale on each branch, and a norm of the patches' mean instead of a final norm."""
    raw, vision = square_images(c)
    vision["mask_token"] = c.flag("use_mask_token", default=False)
    mean = c.flag("use_mean_pooling", default=True)
    scale = c.real("layer_scale_init_value", default=0.1)
    if type(scale) is int:
        c.fault("layer_scale_init_value", scale, "a float")
    head: Raw = {"form": "none"}
    if c.head_of("classifier", "none") == "classifier":
        head = {"form": "classifier", "classes": c.labels()}
    head |= {"pool": "mean", "pool_norm": True} if mean else {}
    shared, per_layer = (c.flag(f"use_{kind}relative_position_bias", default=False) for kind in ("shared_", ""))
    if shared and per_layer:
        c.fault("use_shared_relative_position_bias", True, "false with use_relative_position_bias")
    learned, side = c.flag("use_absolute_position_embeddings", default=False), vision["image"] // vision["patch"]
    positions: Raw = {"form": "learned" if learned else "none"}
    if shared or per_layer:
        positions = {"form": "relative", "side": side, "apart": per_layer}
        positions |= {"rows": side * side + 1} if learned else {}
    return raw | {
        "attention": c.mha(raw, bias=["q", "v", "o"]),
        "feed_forward": c.mlp(),
        "norm": c.layer_norm("layer_norm_eps", eps=1e-12, layer_scale=scale > 0, final=not mean),
        "positions": positions,
        "vision": vision,
        "head": head,
    }


def swin(c: Config, v2: bool = False) -> Raw:
    """Stages of layers with window attention; between stages, four patches are merged. Swin 2 (`v2`) has norms after
    the branches and merges, and computes its relative position biases by an MLP."""
    c.require_single_stack()
    patch, channels = c.size("patch_size", default=4), c.size("num_channels", default=3)
    sides = _sides(c, patch)
    depths = c.items("depths", of=size, length=None, default=[2, 2, 6, 2])
    if c.data.get("depths", depths) is None:
        c.fault("depths", None, "a list with the number of layers of each stage")
    heads = c.items("num_heads", "num_attention_heads", of=size, length=len(depths), default=[3, 6, 12, 24])
    width, window = c.size("embed_dim", default=96), c.size("window_size", default=7)
    ratio, act = c.ratio("mlp_ratio", 4.0, width), c.activation("hidden_act", default="gelu")
    bias, n = c.flag("qkv_bias", default=True), len(depths)
    last = width * 2 ** max(0, n - 1)
    c.require_value(last, "hidden_size", why="the class computes it")
    raw: Raw = {"kind": "encoder", "d_model": last, "n_layers": max(1, sum(depths))}
    if not depths or len(heads) != n or last > MAX_SIZE:
        expected = f"the number of layers of each stage, as many as num_heads, for widths from 1 to {MAX_SIZE:,}"
        c.fault("depths", depths, expected)
        return raw
    here: Raw = {"kind": "embedding", **patch_grid(sides)}
    around = [leaf("patches", "convolution", channels, width, patch**2, patch**2, **here)]
    around.append(norm_leaf("embedding", width, **patch_grid(sides)))
    if c.flag("use_absolute_embeddings", default=False):
        around.append(leaf("positions", "table", sides[0] * sides[1], width, bias=True, **here))
    kinds, merges, sides = _stages(c, width, heads, window, sides, ratio, act, bias, v2)
    around += [*merges, leaf("norm", "layer_norm", last, kind="norm", **patch_grid(sides))]
    if c.head_of("classifier", "none") == "classifier":
        around.append(leaf("classifier", "linear", last, c.labels(), kind="head", at=[0, 1, 1]))
    order = [f"{number}*stage{i + 1}" for i, number in enumerate(depths)]
    return leaf_stack(raw | {"around": around, "head": {"form": "none"}, "length": sides[0] * sides[1]}, kinds, order)


def _stages(c: Config, width: int, heads: list[int], window: int, sides: tuple[int, int], ratio: float, act: str,
            bias: bool, v2: bool) -> tuple[dict[str, Leaves], Leaves, tuple[int, int]]:  # fmt: skip
    """A layer of each stage, the merges between stages, and the sides in patches after the last stage."""
    kinds: dict[str, Leaves] = {}
    merges: Leaves = []
    even = sides[0] == sides[1]  # then Swin 2 limits a window to its stage
    for i, n_heads in enumerate(heads):
        d = width * 2**i
        c.divides(n_heads, d, "num_heads", "the stage's width")
        if min(sides) < window and not (v2 and even):
            c.fault("window_size", window, f"at most {min(sides)}, the sides of stage {i + 1}")
        side = min(*sides, window) if v2 else window
        kinds[f"stage{i + 1}"] = swin_leaves(d, n_heads, side, sides, max(1, int(ratio * d)), act, bias, v2)
        if i < len(heads) - 1:
            even = even and sides[0] % 2 == 0
            sides = -(-sides[0] // 2), -(-sides[1] // 2)
            merges.append(norm_leaf(f"merge{i + 1}", 2 * d if v2 else 4 * d, **patch_grid(sides)))
            merges.append(matrix(f"merge{i + 1}", 4 * d, 2 * d, **patch_grid(sides)))
    return kinds, merges, sides


def _sides(c: Config, patch: int) -> tuple[int, int]:
    """An image's height and width in patches."""
    image = c.data.get("image_size", 224)
    sides = image if isinstance(image, list) else [image, image]
    c.ignore("image_size")
    if len(sides) != 2 or not all(type(side) is int and side >= patch and side % patch == 0 for side in sides):
        c.fault("image_size", image, f"one or two sides that patch_size = {patch} divides")
        return 56, 56
    if "image_size" not in c:
        c.assume("image_size", 224)
    return sides[0] // patch, sides[1] // patch


def donut_swin(c: Config) -> Raw:
    """Swin without a norm after the last stage, for images that may be rectangles."""
    raw = swin(c)
    return raw | {"around": [item for item in raw.get("around", []) if item["name"] != "norm"]}


def deit(c: Config) -> Raw:
    """ViT with a distillation token, which the second classifier of a distilled model reads."""
    c.require_single_stack()
    raw: Raw = {"kind": "encoder", "d_model": c.size("hidden_size"), "n_layers": c.layers("num_hidden_layers")}
    d, d_ff = raw["d_model"], c.size("intermediate_size")
    patch, channels = c.size("patch_size", default=16), c.size("num_channels", default=3)
    n_heads, act = c.size("num_attention_heads", default=12), c.activation("hidden_act", default="gelu")
    c.divides(n_heads, d, "num_attention_heads", "hidden_size")
    sides, bias = _sides(c, patch), c.flag("qkv_bias", default=True)
    positions = sides[0] * sides[1] + 2
    here, once = {"at": [0, positions, 1]}, {"at": [0, 1, 1]}
    width = max(1, d // n_heads)
    core = leaf("core", "attention", n_heads, width, width, bias=False, **here)
    layer = pre_norm_leaves(d, [core], d_ff, act, bias, here, here)
    around = [leaf("patches", "convolution", channels, d, patch**2, patch**2, kind="embedding", **patch_grid(sides))]
    around += [leaf("tokens", "held", 2 * d, kind="embedding")]
    around += [leaf("positions", "table", positions, d, kind="embedding", bias=True, **here)]
    around += [leaf("norm", "layer_norm", d, kind="norm", **here)]
    names = c.data.get("architectures")
    distilled = isinstance(names, list) and names == ["DeiTForImageClassificationWithTeacher"]
    form = "teacher" if distilled else c.head_of("classifier", "none")
    c.ignore("architectures")
    if form == "none":
        pooled = c.size("pooler_output_size", default=d, null=d)
        around += [leaf("pooler", "linear", d, pooled, **once)]
    else:
        around += [leaf("classifier", "linear", d, c.labels(), kind="head", times=1 + distilled, **once)]
    return leaf_stack(raw | {"around": around, "head": {"form": "none"}, "length": positions}, {"layer": layer}, [])


swinv2 = partial(swin, v2=True)
