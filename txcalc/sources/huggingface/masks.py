"""Class or mask of every pixel, from the maps that a backbone makes of a picture (UPerNet, arXiv 1807.10221;
MaskFormer, arXiv 2107.06278; Mask2Former, arXiv 2112.01527), and pictures made larger (Swin2SR).
"""

from __future__ import annotations

from math import log2
from typing import Any

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import Config, Raw, piece
from txcalc.sources.huggingface.convolved import Maps, Network, blocks, outputs, picture, residual, stages
from txcalc.sources.huggingface.deformable import SAMPLED, sampled
from txcalc.sources.huggingface.detection import read_by, told
from txcalc.sources.huggingface.leaves import attends, fed, normed, swin, windowed
from txcalc.sources.spec import MAX_LAYERS, size


def backboned(c: Config, pixels: int, usual: Raw, every: bool = False) -> tuple[Network, Maps]:
    """A network that has run the backbone, and the maps which that gives: ResNet's, or ConvNeXt's or Swin's, normed;
    `every`: all of Swin's four, whatever its config asks for."""
    c.only(None, "backbone", why="a backbone by its name is another file")
    c.ignore("backbone_kwargs", "use_timm_backbone", "use_pretrained_backbone")
    inner = c.nested("backbone_config", usual=usual)
    net = Network(c, picture(c, pixels, own=False), inner.size("num_channels", default=3))
    inner.ignore("image_size")
    if inner.model_type in ("convnext", "convnextv2"):
        made = blocks(inner, net)
    elif inner.model_type == "swin":
        made = _swin(inner, net)
    else:
        made = residual(inner, net)
        if inner.model_type != "resnet":
            named = inner.data.get("model_type", ABSENT)
            inner.fault("model_type", named, "'resnet', 'convnext', 'convnextv2' or 'swin'")
    if (kind := inner.model_type) == "swin" and every:
        inner.ignore("out_features", "out_indices", "stage_names")
        if len(made) != 5:
            inner.fault("depths", inner.data.get("depths"), "a list of 4 stages, all of which are read")
        maps = made[1:]
    else:
        maps = outputs(inner, made, [len(made) - 1])
    if kind != "resnet":
        net.outside("norm")
        for i, (net.sides, net.channels) in enumerate(maps):
            net.normed(f"map{i + 1}", "layer")
    return net, maps


def _swin(inner: Config, net: Network) -> Maps:
    """Swin's stages, in windows that are filled up where a map is smaller."""
    patch = inner.size("patch_size", default=4)
    inner.only(False, "use_absolute_embeddings", why="a table of positions of one picture's size is not read here")
    filled = [-(-side // patch) * patch for side in net.sides]
    inner.data = {**inner.data, "image_size": filled, "architectures": ["SwinModel"]}
    raw = swin(inner, whole=True)
    if inner.faults:
        return [(net.sides, net.channels)] * 5
    depths = inner.data.get("depths", [2, 2, 6, 2])
    net.around += raw["around"]
    for name, layer in raw["layer"].items():
        net.kinds[name] = layer["pieces"]["leaves"]
    net.order += [f"{depth}*{name}" for depth, name in zip(depths, raw["layer"], strict=True)]
    width = raw["d_model"] // 2 ** (len(depths) - 1)
    high, wide = (side // patch for side in filled)
    maps = [((high, wide), width)]
    for i in range(len(depths)):
        maps.append(((high, wide), width * 2**i))
        high, wide = -(-high // 2), -(-wide // 2)
    return maps


def _at_least(number: int, c: Config, maps: Maps) -> Maps:
    """The maps, as many as are read; a fault where there are fewer, unless another fault may be the cause."""
    if len(maps) < number and not c.faults:
        inner = c.data.get("backbone_config", ABSENT)
        c.fault("backbone_config", inner, f"one whose out_features give {number} maps or more")
    return maps if len(maps) >= number else maps * number


def upernet(c: Config) -> Raw:
    """Means over parts of the smallest map beside it, what convolutions make of each map and the next smaller one, and
    of all; a second classifier of the third map (`use_auxiliary_head`)."""
    c.head_of("pixels")
    c.ignore("auxiliary_loss_weight", "loss_ignore_index")
    usual = {"model_type": "resnet", "out_features": ["stage1", "stage2", "stage3", "stage4"]}
    net, maps = backboned(c, 512, usual)
    d, parts = c.size("hidden_size", default=512), c.items("pool_scales", of=size, length=None, default=[1, 2, 3, 6])
    net.act, net.norm = "relu", "batch"
    net.outside("head")
    for i, part in enumerate(parts):
        net.sides, net.channels = (part, part), maps[-1][1]
        net.conv(f"mean{i + 1}", d, 1)
    net.sides, net.channels = maps[-1][0], maps[-1][1] + len(parts) * d
    net.conv("means", d)
    for i, (net.sides, net.channels) in enumerate(maps[:-1]):
        net.conv(f"joined{i + 1}_projection", d, 1)
        net.add(piece(f"joined{i + 1}_sum", "sum", d))
        net.conv(f"joined{i + 1}", d)
    net.sides, net.channels = maps[0][0], len(maps) * d
    net.conv("all", d)
    net.conv("classifier", c.labels(), 1, bias=True, norm="", act="")
    convs, wide = c.size("auxiliary_num_convs", default=1), c.size("auxiliary_channels", default=256)
    beside = c.flag("auxiliary_concat_input", default=False)
    if c.flag("use_auxiliary_head", default=True):
        if len(maps) < 3:
            c.fault("use_auxiliary_head", True, "false where the backbone gives fewer than three maps")
            maps *= 3
        if convs > 64:
            c.fault("auxiliary_num_convs", convs, "at most 64")
        net.sides, net.channels = maps[2]
        c.only(net.channels, "auxiliary_in_channels", why="the width of the third map")
        for i in range(min(convs, 64)):
            net.conv(f"auxiliary{i + 1}", wide)
        if beside:
            net.channels += maps[2][1]
            net.conv("auxiliary_beside", wide)
        net.conv("auxiliary", c.labels(), 1, bias=True, norm="", act="")
    c.ignore("auxiliary_in_channels")
    return net.described(maps[-1][1])


_SWIN: Raw = {
    "model_type": "swin", "depths": [2, 2, 18, 2], "out_features": ["stage1", "stage2", "stage3", "stage4"],
}  # fmt: skip
_WEIGHED = ("dice_weight", "mask_weight", "no_object_weight", "init_xavier_std", "output_auxiliary_logits")


def maskformer(c: Config) -> Raw:
    """DETR's queries read the smallest map; convolutions join all maps to the one whose positions are compared with
    what each query gives."""
    form = c.head_of("none", "masks")
    c.ignore(*_WEIGHED, "cross_entropy_weight", "num_attention_heads", "num_hidden_layers")
    usual = _SWIN | {"embed_dim": 128, "num_heads": [4, 8, 16, 32], "window_size": 12}
    net, maps = backboned(c, 384, usual, every=True)
    f, masks = c.size("fpn_feature_size", default=256), c.size("mask_feature_size", "hidden_size", default=256)
    t = c.nested("decoder_config", "detr", {})
    t.ignore(*t.data)  # of which the class asks for the decoder's sizes alone
    d, n, queries = t.size("d_model", "hidden_size", default=256), t.size("decoder_layers", default=6), t.size(
        "num_queries", default=100)  # fmt: skip
    heads, wide = t.size("decoder_attention_heads", default=8), t.size("decoder_ffn_dim", default=2048)
    act = t.activation("activation_function", default="relu")
    t.divides(heads, d, "decoder_attention_heads", "d_model")
    maps = _at_least(2, c, maps)
    if f % 32:
        c.fault("fpn_feature_size", f, "a multiple of 32, the groups of its norms")
    net.act, net.norm = "relu", "layer"
    net.outside()
    net.sides, net.channels = maps[-1]
    net.conv("smallest", f)
    for i, (net.sides, net.channels) in reversed([*enumerate(maps[:-1])]):
        net.conv(f"joined{i + 1}_projection", f, 1, act="")
        net.add(piece(f"joined{i + 1}_sum", "sum", f))
        net.conv(f"joined{i + 1}", f)
    net.conv("pixels", masks, 3, bias=True, norm="", act="")
    found = [0, net.sides[0] * net.sides[1], 1]
    net.sides, net.channels = maps[-1]
    if net.channels != d:
        net.conv("read", d, 1, bias=True, norm="", act="")
    asked: Raw = {"at": [0, queries, 1]}
    net.around.append(piece("queries", "table", queries, d, bias=True, kind="embedding", **asked))
    net.layer("decoder", n)
    net.leaves += read_by(d, heads, wide, act, net.here["at"], asked)
    net.around.append(normed("decoder", d, **asked))
    if form == "masks":
        c.only(False, "use_auxiliary_loss", why="transformers stacks states that it has not kept")
        net.around += [piece("classes", "linear", d, c.labels() + 1, kind="head", **asked)]
        net.around += told("mask", [d, d, d, masks], "relu", **asked)
        net.around.append(_compared(c, masks, found, **asked))
    c.ignore("use_auxiliary_loss")
    return net.described(d)


def _compared(c: Config, width: int, pixels: list[int], **more: Any) -> Raw:
    """What each query says of a mask, with each pixel."""
    if width == 1:
        c.fault("mask_feature_size", 1, "2 or more, for transformers makes no matrix product of single numbers")
    return piece("masks", "scores", 1, width, kind="head", keys=pixels, **more)


def mask2former(c: Config) -> Raw:
    """All positions of the three smallest maps sample from each other; queries attend to one of those maps in each
    layer, and give a mask and a class before the first and after each."""
    form = c.head_of("none", "masks")
    c.ignore(*_WEIGHED, "ignore_value", "class_weight", "train_num_points", "oversample_ratio")
    c.ignore("importance_sample_ratio", "use_auxiliary_loss", "pre_norm")
    net, maps = backboned(c, 384, _SWIN)
    f, d, masks = (c.size(*key, default=256) for key in (("feature_size",), ("hidden_dim", "hidden_size"),
                                                         ("mask_feature_size",)))  # fmt: skip
    heads, act = c.size("num_attention_heads", default=8), c.activation("activation_function", default="relu")
    steps = c.items("feature_strides", of=size, length=None, default=[4, 8, 16, 32])
    coarse = c.size("common_stride", default=4)
    finer = int(log2(min(steps[-3:] or [1])) - log2(coarse))
    maps = _at_least(3, c, maps)
    if not 0 <= finer <= len(maps):
        expected = f"strides of which the least of the last three is common_stride = {coarse:,}, doubled at most"
        c.fault("feature_strides", steps, f"{expected} {len(maps)} times")
        finer = 0
    if f % 32:
        c.fault("feature_size", f, "a multiple of 32, the groups of its norms")
    c.divides(heads, f, "num_attention_heads", "feature_size")
    c.divides(heads, d, "num_attention_heads", "hidden_dim")
    last = maps[:-4:-1]  # the smallest first
    net.act, net.norm = "", "layer"
    net.outside("embedding")
    for i, (net.sides, net.channels) in enumerate(last):
        net.conv(f"level{i + 1}", f, 1, bias=True)
    net.around.append(piece("levels", "held", 3 * f, kind="embedding"))
    seen = [0, sum(high * wide for (high, wide), _ in last), 1]
    net.layer("encoder", c.size("encoder_layers", default=6))
    wide = c.size("encoder_feedforward_dim", default=1024)
    net.leaves += [*sampled("reading_", f, heads, 3 * 4, seen, at=seen), normed("reading", f, at=seen)]
    net.leaves += [*fed("feed_forward", f, wide, "relu", norm="", at=seen), normed("feed_forward", f, at=seen)]
    net.outside()
    net.sides = last[-1][0]
    for i, (net.sides, net.channels) in reversed([*enumerate(maps[:finer])]):
        net.conv(f"finer{i + 1}_projection", f, 1)
        net.add(piece(f"finer{i + 1}_sum", "sum", f))
        net.conv(f"finer{i + 1}", f, act="relu")
    net.channels, net.norm = f, ""
    net.conv("pixels", masks, 1, bias=True)
    found = [0, net.sides[0] * net.sides[1], 1]
    queries, times = c.size("num_queries", default=100), c.size("decoder_layers", "num_hidden_layers", default=10)
    asked: Raw = {"at": [0, queries, 1]}
    tables = [piece(name, "table", queries, d, bias=True, **asked) for name in ("queries", "places")]
    net.around += [one | {"kind": "embedding"} for one in (*tables, piece("read_levels", "held", 3 * d))]
    if c.flag("enforce_input_projection", default=False) or f != d:
        net.outside()
        for i, (net.sides, _) in enumerate(last):
            net.channels = f
            net.conv(f"read{i + 1}", d, 1, bias=True)
    wide, width = c.size("dim_feedforward", default=2048), max(1, d // heads)
    for i in range(min(times - 1, MAX_LAYERS + 1)):  # more are refused by their number
        name = f"decoder{i % 3 + 1}"
        if name in net.kinds:
            net.order.append(f"1*{name}")
            continue
        net.layer(name)
        (high, across), _ = last[i % 3]
        net.leaves += [*attends("reading_", d, heads, width, keys=[0, high * across, 1], **asked)]
        net.leaves += [normed("reading", d, **asked), *attends("", d, heads, width, **asked)]
        net.leaves += [normed("attention", d, **asked), *fed("feed_forward", d, wide, act, norm="", **asked)]
        net.leaves.append(normed("feed_forward", d, **asked))
    every: Raw = {"runs": times, **asked}
    net.around += [normed("last", d, **every), *told("mask", [d, d, d, masks], "relu", **every)]
    net.around.append(_compared(c, masks, found, **every))
    if form == "masks":
        net.around.append(piece("classes", "linear", d, c.labels() + 1, kind="head", **every))
    c.note(SAMPLED)
    return net.described(d)


def swin2sr(c: Config) -> Raw:
    """Swin's second version at one resolution, with a convolution after each stage and others that make the picture
    larger (arXiv 2209.11345)."""
    form = c.head_of("none", "picture")
    c.ignore("img_range", "num_layers", "num_hidden_layers")
    c.only(1, "patch_size", why="patches of more pixels fit no picture again")
    if c.flag("use_absolute_embeddings", default=False):
        c.fault("use_absolute_embeddings", True, "false", "its table has a row more than there are positions")
    depths, heads = stages(c, depths=(size, [6] * 6), num_heads=(size, [6] * 6))
    d, window = c.size("embed_dim", "hidden_size", default=180), c.size("window_size", default=8)
    scale = c.size("upscale", default=2)
    act, bias, ratio = c.activation("hidden_act", default="gelu"), c.flag("qkv_bias", default=True), c.ratio(
        "mlp_ratio", 2.0, d)  # fmt: skip
    behind, way = c.text("resi_connection", default="1conv"), c.data.get("upsampler", "pixelshuffle")
    c.ignore("upsampler")
    if not isinstance(way, str):  # it may be empty
        c.fault("upsampler", way, "a text")
    channels = c.size("num_channels", default=3)
    out = c.size("num_channels_out", default=channels, null=channels)
    net = Network(c, picture(c, 64), channels, "", "")
    if any(side % window for side in net.sides):
        c.fault("image_size", list(net.sides), f"sides that window_size = {window} divides, as its processor fills up")
    net.conv("first", d, bias=True)
    net.conv("patches", d, 1, bias=True, norm="layer")
    for i, (depth, several) in enumerate(zip(depths, heads, strict=True)):
        c.divides(several, d, "num_heads", "embed_dim")
        net.layer(f"stage{i + 1}", depth)
        net.leaves += windowed(d, several, window, net.sides, max(1, int(ratio * d)), act, bias, True)
        net.outside()
        widths = {"1conv": [(d, 3)], "3conv": [(max(1, d // 4), 3), (max(1, d // 4), 1), (d, 3)]}.get(behind)
        if widths is None:
            c.fault("resi_connection", behind, "'1conv' or '3conv'")
        for j, (width, kernel) in enumerate(widths or ()):
            net.conv(f"stage{i + 1}_conv{j + 1}", width, kernel, bias=True)
        net.conv(f"stage{i + 1}_patches", d, 1, bias=True)
        net.add(piece(f"stage{i + 1}_sum", "sum", d))
    net.around.append(normed("last", d, **net.here))
    net.conv("after", d, bias=True)
    net.add(piece("after_sum", "sum", d))
    if form == "picture":
        net.outside("head")
        _enlarged(c, net, way, scale, channels, out)
    return net.described(d)


def _enlarged(c: Config, net: Network, way: str, scale: int, channels: int, out: int) -> None:
    """A picture `scale` times as large, by one of four ways; any other name makes one of the same size."""
    doublings = scale.bit_length() - 1
    if way in ("pixelshuffle", "pixelshuffle_aux") and scale not in (3, 2**doublings):
        c.fault("upscale", scale, "3 or a power of 2")
    if (way == "nearest+conv" and scale != 4) or scale > 1024:
        c.fault("upscale", scale, "4" if scale <= 1024 else "at most 1,024")
        scale = doublings = 4
    if way == "pixelshuffledirect":
        net.conv("larger", scale**2 * out, bias=True)
        return
    if way == "nearest+conv":
        net.conv("inner", 64, bias=True)
        for name, more in (("larger1", 2), ("larger2", 2), ("same", 1)):
            net.sides = net.sides[0] * more, net.sides[1] * more
            net.conv(name, 64, bias=True)
    elif way in ("pixelshuffle", "pixelshuffle_aux"):
        net.conv("inner", 64, bias=True)
        if way == "pixelshuffle_aux":
            c.only(3, "num_channels", why="what is made of the small picture has as many")
            net.conv("small", channels, bias=True)
            net.conv("small_inner", 64, bias=True)
        for i, more in enumerate([3] if scale == 3 else [2] * doublings):
            net.conv(f"larger{i + 1}", 64 * more**2, bias=True)
            net.sides, net.channels = (net.sides[0] * more, net.sides[1] * more), 64
        if way == "pixelshuffle_aux":
            net.channels = channels
            net.conv("enlarged", 64, bias=True)
    net.conv("picture", out, bias=True)
