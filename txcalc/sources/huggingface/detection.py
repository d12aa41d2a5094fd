"""What finds objects or points in a picture: layers over its patches or over what convolutions make of it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from txcalc.sources.huggingface import release
from txcalc.sources.huggingface.config import Config, Raw, piece
from txcalc.sources.huggingface.convolved import Maps, Network, outputs, picture, residual
from txcalc.sources.huggingface.leaves import Pieces, attends, fed, listed, normed, preceded
from txcalc.sources.huggingface.recorded import recorded
from txcalc.sources.spec import size

# What trains a detector, and changes no size.
LOSSES = ("class_cost", "bbox_cost", "giou_cost", "bbox_loss_coefficient", "giou_loss_coefficient", "auxiliary_loss",
          "eos_coefficient", "mask_loss_coefficient", "dice_loss_coefficient", "init_xavier_std")  # fmt: skip


def told(name: str, widths: list[int], act: str, **here: Any) -> Pieces:
    """Matrices from width to width with an activation between them."""
    made: Pieces = []
    for i, (d_in, d_out) in enumerate(pairwise(widths)):
        made.append(piece(f"{name}{i + 1}", "linear", d_in, d_out, kind="head", **here))
        if i < len(widths) - 2:
            made.append(piece(f"{name}{i + 1}_activation", act, d_out, kind="head", **here))
    return made


def yolos(c: Config) -> Raw:
    """ViT with a token for each object that may be found, and a table of positions between layers, too."""
    c.alone()
    raw: Raw = {"kind": "encoder", "d_model": c.size("hidden_size"), "n_layers": c.layers("num_hidden_layers")}
    d, wide, patch = raw["d_model"], c.size("intermediate_size"), c.size("patch_size", default=16)
    channels, heads = c.size("num_channels", default=3), c.size("num_attention_heads", default=12)
    act, bias = c.activation("hidden_act", default="gelu"), c.flag("qkv_bias", default=True)
    found = c.size("num_detection_tokens", default=100)
    middle = c.flag("use_mid_position_embeddings", default=True)
    c.ignore("auxiliary_loss", "class_cost", "bbox_cost", "giou_cost", "bbox_loss_coefficient", "giou_loss_coefficient")
    c.ignore("eos_coefficient")
    c.divides(heads, d, "num_attention_heads", "hidden_size")
    high, across = picture(c, (512, 864))
    if high % patch or across % patch or not isinstance(c.data.get("image_size", []), list):
        c.fault(
            "image_size",
            c.data.get("image_size", [512, 864]),
            f"a height and a width that patch_size = {patch} divides",
        )
    patches = max(1, (high // patch) * (across // patch))
    here: Raw = {"at": [0, 1 + patches + found, 1]}
    width = max(1, d // heads)
    core = piece("core", "attention", heads, width, width, bias=False, **here)
    around = [piece("patches", "convolution", channels, d, patch**2, patch**2, at=[0, patches, 1])]
    around += [piece("tokens", "held", (1 + found) * d)]
    around += [piece("positions", "table", 1 + patches + found, d, bias=True, **here)]
    if middle and raw["n_layers"] > 1:
        around.append(
            piece("inner_positions", "table", 1 + patches + found, d, bias=True, times=raw["n_layers"] - 1, **here)
        )
    around = [one | {"kind": "embedding"} for one in around] + [normed("last", d, **here)]
    if c.head_of("none", "boxes") == "boxes":
        there = {"at": [0, found, 1]}
        around += told("classes", [d, d, d, c.labels() + 1], "relu", **there) + told(
            "boxes", [d, d, d, 4], "relu", **there
        )
    else:
        around.append(piece("pooler", "linear", d, d, kind="other", at=[0, 1, 1]))
    c.note(f"a picture of {high} × {across} pixels is read, whatever number of tokens is asked for")
    raw |= {"around": around, "head": {"form": "none"}, "length": 1 + patches + found}
    return listed(raw, {"layer": preceded(d, [core], wide, act, bias, here, here)}, [])


def owlvit(c: Config) -> Raw:
    """OWL-ViT: what texts and a picture are told of is compared patch by patch, and each patch has a box."""
    boxes = c.named("ForObjectDetection")
    if boxes:
        c.data = {**c.data, "architectures": ["Owlv2Model" if c.model_type == "owlv2" else "OwlViTModel"]}
    raw = recorded(c)
    if not boxes:
        return raw
    keys = release.table("recorded.json")[c.model_type][c.data["architectures"][0]]["keys"]
    side, patch, d = (_size(c, f"vision_config.{key}", keys) for key in ("image_size", "patch_size", "hidden_size"))
    to = _size(c, "text_config.hidden_size", keys)
    n = max(1, (side // patch) ** 2) if all(type(one) is int and one > 0 for one in (side, patch)) else 1
    shared = c.data.get("projection_dim", 512)
    if to != shared:
        c.fault("projection_dim", shared, f"{to}, the width of texts, which are compared with patches")
    here: Raw = {"at": [0, n, 1], "kind": "head"}
    found = [piece("detection_norm", "layer_norm", d, at=[0, n, 1], kind="norm")]
    found += [piece("class", "linear", d, to, **here), piece("class_shift", "linear", d, 1, **here)]
    found += [piece("class_scale", "linear", d, 1, **here), piece("logits", "product", 1, to, 1, **here)]
    widths = [d, d, d, 4]
    found += told("box", widths, "gelu", at=[0, n, 1])
    found += told("object", [d, d, d, 1], "gelu", at=[0, n, 1]) if c.model_type == "owlv2" else []
    c.note("one text per picture is looked for")
    return raw | {"around": [*raw["around"], *found]}


def _size(c: Config, path: str, usual: dict[str, int]) -> Any:
    """What a table of the config says, or its class."""
    table, _, key = path.partition(".")
    inner = c.data.get(table)
    return inner.get(key, usual[path]) if isinstance(inner, dict) else usual[path]


# timm's networks, whose batch norms have no parameters here.
_DEEP: Raw = {"embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048], "layer_type": "bottleneck"}
_FLAT: Raw = {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "layer_type": "basic"}
_RESNETS = {
    "resnet18": _FLAT | {"depths": [2, 2, 2, 2]},
    "resnet34": _FLAT | {"depths": [3, 4, 6, 3]},
    "resnet50": _DEEP | {"depths": [3, 4, 6, 3]},
    "resnet101": _DEEP | {"depths": [3, 4, 23, 3]},
}


def detr(c: Config) -> Raw:
    """A residual network, layers over what it makes, and layers in which queries attend to each other and to that; in
    Conditional DETR (arXiv 2108.06152) what they look for and where have matrices of their own."""
    c.ignore(
        *LOSSES,
        "is_encoder_decoder",
        "use_pretrained_backbone",
        "max_position_embeddings",
        "num_hidden_layers",
        "scale_embedding",
    )
    tables, apart = c.model_type == "table-transformer", c.model_type == "conditional_detr"
    d, act = c.size("d_model", "hidden_size", default=256), c.activation("activation_function", default="relu")
    queries = c.size("num_queries", default=300 if apart else 100)
    net = Network(
        c, picture(c, (800, 800) if tables else (800, 1066), own=False), c.size("num_channels", default=3), norm=""
    )
    backbone(c, net)
    places = c.text("position_embedding_type", default="sine")
    net.outside("embedding")
    net.conv("projection", d, 1, bias=True, act="")
    if places == "learned":
        if d % 2 or max(net.sides) > 50:
            c.fault("position_embedding_type", places, '"sine" where a side has more than 50 positions')
        net.leaves += [piece("rows", "held", 50 * max(1, d // 2), times=2, kind="embedding")]
    elif places != "sine":
        c.fault("position_embedding_type", places, "'sine' or 'learned'")
    there = [0, net.sides[0] * net.sides[1], 1]
    asked: Raw = {"at": [0, queries, 1]}
    net.leaves += [piece("queries", "table", queries, d, bias=True, kind="embedding", **asked)]
    for half in ("encoder", "decoder"):
        own: Raw = {"at": there} if half == "encoder" else asked
        n = c.size(f"{half}_layers", default=6)
        names = (f"{half}_attention_heads", *(("num_attention_heads",) if half == "encoder" else ()))
        heads, wide = c.size(*names, default=8), c.size(f"{half}_ffn_dim", default=2048)
        c.divides(heads, d, f"{half}_attention_heads", "d_model")
        layer = read_by(d, heads, wide, act, there if half == "decoder" else None, own)
        if half == "decoder" and apart:
            c.multiple("d_model", d, 4)
            c.ignore("cls_loss_coefficient", "focal_alpha")
            layer, n = _apart(net, layer, d, there, asked), n - 1
            net.around += [one | {"runs": n, "kind": "other"} for one in told("scales", [d, d, d], "relu", **own)]
        if n:
            net.layer(half, n)
            net.leaves += layer
        if half == "decoder" or tables:
            net.around.append(normed(half, d, **own))
    if c.head_of("none", "boxes") == "boxes":
        net.around.append(piece("classes", "linear", d, c.labels() + (not apart), kind="head", **asked))
        net.around += told("boxes", [d, d, d, 4], "relu", **asked)
    return net.described(d)


table_transformer = conditional_detr = detr


def _apart(net: Network, layer: Pieces, d: int, there: list[int], own: Raw) -> Pieces:
    """A decoder's layer with matrices for the places of queries and keys, which are added where queries attend to each
    other, and stand beside them where they read; the first layer, which has one more, is listed."""
    more = [piece(f"{name}_places", "linear", d, d, kind="attention", **own) for name in ("q", "k", "reading_sine")]
    more.append(piece("reading_k_places", "linear", d, d, kind="attention", at=there))
    for one in layer:
        if one["form"] == "reading":
            heads, width, _ = one["sizes"]
            one["sizes"] = [heads, 2 * width, width]
    net.around += [one | {"kind": "other"} for one in told("places", [d, d, 2], "relu", **own)]
    net.layer("first")
    net.leaves += [*layer, *more, piece("reading_q_places", "linear", d, d, kind="attention", **own)]
    return [*layer, *more]


def read_by(d: int, heads: int, wide: int, act: str, keys: list[int] | None, own: Raw) -> Pieces:
    """DETR's layer: what attends to itself, and to `keys` where there are some, and a feed-forward, each normed."""
    width = max(1, d // heads)
    made = [*attends("", d, heads, width, **own), normed("attention", d, **own)]
    if keys:
        made += [*attends("reading_", d, heads, width, keys=keys, **own), normed("reading", d, **own)]
    return [*made, *fed("feed_forward", d, wide, act, norm="", **own), normed("feed_forward", d, **own)]


def vitpose(c: Config) -> Raw:
    """ViT's layers, and what is larger by its head: a map for each point of a body (arXiv 2204.12484)."""
    c.head_of("pose")
    net, d = _posed(c.nested("backbone_config", "vitpose_backbone", {"out_indices": [4]}))
    net.outside("head")
    times = c.size("scale_factor", default=4)
    if c.flag("use_simple_decoder", default=True):
        net.add(piece("activation", "relu", d))
        net.sides = net.checked((net.sides[0] * times, net.sides[1] * times))
        net.conv("points", c.labels(), bias=True, norm="", act="")
        return net.described(d)
    for name in ("larger1", "larger2"):
        net.add(piece(name, "linear", net.channels, 256 * 16, bias=False))
        net.sides, net.channels = (2 * net.sides[0], 2 * net.sides[1]), 256
        net.normed(name, "batch")
        net.add(piece(f"{name}_activation", "relu", 256))
    net.conv("points", c.labels(), 1, bias=True, norm="", act="")
    return net.described(d)


def vitpose_backbone(c: Config) -> Raw:
    """ViTPose without its head."""
    c.alone()
    c.ignore("architectures")  # there is but one class
    net, d = _posed(c)
    return net.described(d)


def _posed(c: Config) -> tuple[Network, int]:
    """Its backbone, which has run: a part of each feed-forward's output may be one of several experts', all of which
    run."""
    net = Network(c, picture(c, (256, 192)), c.size("num_channels", default=3))
    d, n, heads = c.size("hidden_size", default=768), c.layers("num_hidden_layers"), c.size(
        "num_attention_heads", default=12)  # fmt: skip
    high, across = c.items("patch_size", of=size, length=2, default=[16, 16])
    wide, bias = d * c.size("mlp_ratio", default=4), c.flag("qkv_bias", default=True)
    act = c.activation("hidden_act", default="gelu")
    several, part = c.size("num_experts", default=1), c.size("part_features", default=256)
    c.divides(heads, d, "num_attention_heads", "hidden_size")
    (height, width), filled = net.sides, tuple(side + 4 for side in net.sides)
    net.sides = net.checked((filled[0] // high, filled[1] // across))
    if net.sides != (height // high, width // across):
        c.fault("patch_size", [high, across], "sides of which 4 pixels more make no further patch")
    outputs(c, [(net.sides, d)] * (n + 1), [n])
    net.add(piece("patches", "convolution", net.channels, d, high * across, high * across))
    positions, each = net.sides[0] * net.sides[1], max(1, d // heads)
    net.add(piece("positions", "table", positions + 1, d, bias=True))
    core = piece("core", "attention", heads, each, each, bias=False, **net.here)
    net.layer("layer", n)
    net.leaves += preceded(d, [core], wide, act, bias, net.here, net.here)
    if several > 1:
        if part >= d:
            c.fault("part_features", part, f"less than hidden_size = {d:,}")
        place = next(i for i, one in enumerate(net.leaves) if one["name"] == "down")
        down = net.leaves[place] | {"sizes": [wide, max(1, d - part)]}
        net.leaves[place : place + 1] = [down, down | {"name": "experts", "sizes": [wide, part], "times": several}]
    net.channels = d
    net.around.append(normed("last", d, **net.here))
    return net, d


def superpoint(c: Config) -> Raw:
    """Convolutions, from which a map of points and one of their descriptors are made (arXiv 1712.07629)."""
    c.head_of("points")
    c.ignore("keypoint_threshold", "max_keypoints", "nms_radius", "border_removal_distance")
    net = Network(c, picture(c, (480, 640), own=False), 1, norm="")
    widths = c.items("encoder_hidden_sizes", of=size, length=None, default=[64, 64, 128, 128])
    if not 2 <= len(widths) <= 30:
        c.fault("encoder_hidden_sizes", widths, "a list of 2 numbers or more")
    for i, width in enumerate(widths[:30]):
        net.layer(f"block{i + 1}")
        net.conv("conv1", width, bias=True)
        net.conv("conv2", width, bias=True)
        if i < len(widths) - 1:
            net.pooled(2, 2, 0)
    net.outside("head")
    d, made = net.channels, c.size("decoder_hidden_size", default=256)
    c.equal("keypoint_decoder_dim", 65, 65, "a score for each of 8 × 8 pixels and one for none")
    for name, to in (("points", 65), ("descriptors", c.size("descriptor_decoder_dim", default=256))):
        net.channels = d
        net.conv(f"{name}_inner", made, bias=True)
        net.conv(name, to, 1, bias=True, act="")
    return net.described(d)


def backbone(c: Config, net: Network, *, several: bool = False) -> Maps:
    """The residual network that reads the picture: of `backbone_config`, or one of timm's by its name. Gives the
    pictures that it makes, of its last stage or of `several`."""
    own, name = c.data.get("backbone_config"), c.data.get("backbone")
    c.ignore("backbone", "backbone_config", "backbone_kwargs", "dilation", "use_timm_backbone")
    outer = c.flag("use_timm_backbone", default=True, null=True)
    if isinstance(own, dict) and own.get("model_type") == "resnet":
        inner = Config(own, "resnet", f"{c.path}backbone_config.", c)
        inner.ignore("architectures", "image_size")
        inner.equal("num_channels", net.channels, 3, "as many as num_channels")
        made = residual(inner, net)
        maps = outputs(inner, made, [len(made) - 1])
        if not several and maps[-1:] != made[-1:]:
            inner.fault("out_features", own.get("out_features"), f"a list that ends in 'stage{len(made) - 1}'")
        return maps
    timm: dict[str, Any] = own if isinstance(own, dict) and own.get("model_type") == "timm_backbone" else {}
    known = (timm.get("backbone", name) if outer or timm else None) or "resnet50"
    dilated = c.flag("dilation", default=False) and outer and not timm
    if (stride := timm.get("output_stride")) is not None:
        dilated = stride == 16
    found = timm.get("out_indices") or ([2, 3, 4] if several and outer else [4])
    plain = stride in (None, 16, 32) and isinstance(found, list) and found[-1:] in ([4], [-1])
    plain = plain and (not several or found in ([2, 3, 4], [1, 2, 3, 4], [4]))
    more, usual = c.data.get("backbone_kwargs"), {"in_chans": net.channels, "out_indices": [1, 2, 3, 4]}
    if more and more != usual | ({"output_stride": 16} if dilated else {}):
        c.fault("backbone_kwargs", more, f"{usual}, which transformers itself writes", "others are not read")
    if (own is not None and not timm) or known not in _RESNETS or not plain:
        got = own if own is not None else known
        c.fault(
            "backbone_config" if own is not None else "backbone", got,
            f"one of {', '.join(_RESNETS)} of timm to its end, or a backbone_config of resnet", "others are not read",
        )  # fmt: skip
        known, found = "resnet50", [4]
    table = _RESNETS[known] | {"hidden_act": "relu", "downsample_in_first_stage": False}
    made = residual(Config(table, "resnet", f"{c.path}backbone.", c), net, dilated=dilated)
    return [made[i] for i in found] if several else made[-1:]
