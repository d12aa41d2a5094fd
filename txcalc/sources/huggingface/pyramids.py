"""Transformers whose layers read a picture that is smaller in each stage, with convolutions between and inside them."""

from __future__ import annotations

from txcalc.sources.huggingface.config import Config, Raw, piece
from txcalc.sources.huggingface.convolved import Network, even, inverted, picture, stages
from txcalc.sources.huggingface.leaves import Pieces, attends, fed, normed
from txcalc.sources.spec import real, size


def segformer(c: Config) -> Raw:
    """Layers whose keys and values are a convolution's that skips positions, and whose feed-forwards have a depthwise
    convolution inside."""
    c.ignore("downsampling_rates", "decoder_hidden_size")
    c.ignore("semantic_loss_ignore_index")
    widths, depths, patches, steps, heads, ratios, less = _lists(c, "sr_ratios", [7, 3, 3, 3], [4, 4, 4, 4])
    form = c.head_of("classifier", "none", "pixels")
    if form == "pixels":
        c.only(True, "reshape_last_stage", why="the head reads a picture of each stage")
    c.ignore("reshape_last_stage")
    net = Network(c, picture(c, 512, own=False), c.size("num_channels", default=3), "", "")
    act, shapes = c.activation("hidden_act", default="gelu"), list[tuple[Raw, int]]()
    for i, d in enumerate(widths):
        net.outside("embedding")
        net.conv(f"patches{i + 1}", d, patches[i], steps[i], bias=True, norm="layer")
        _stage(net, i, depths[i], heads[i], ratios[i], less[i], act)
        net.outside("norm")
        net.normed(f"stage{i + 1}", "layer")
        shapes.append((net.here, d))
    if form != "pixels":
        return net.classified()
    net.outside("head")
    d = c.size("decoder_hidden_size", default=256)
    net.around += [
        piece(f"projection{i + 1}", "linear", width, d, kind="head", **here) for i, (here, width) in enumerate(shapes)
    ]
    last, here = net.channels, shapes[0][0]
    net.around += [piece("fuse", "linear", len(widths) * d, d, bias=False, kind="head", **here)]
    net.around += [
        piece("fuse_scale", "scale", d, kind="norm", **here),
        piece("fuse_shift", "shift", d, kind="norm", **here),
    ]
    net.around += [piece("fuse_activation", "relu", d, kind="head", **here)]
    net.around += [piece("classifier", "linear", d, c.labels(), kind="head", **here)]
    return net.described(last)


def _lists(c: Config, less: str, patches: list[int], ratios: list[int], base: int = 32) -> list[list[int]]:
    """Widths, depths, patches, steps, heads, widths of feed-forwards and by how much keys are fewer, of each stage."""
    usual = [64, 128, 320, 512] if base == 64 else [32, 64, 160, 256]
    found = stages(
        c, hidden_sizes=(size, usual), depths=(size, [2, 2, 2, 2]), patch_sizes=(size, patches),
        strides=(size, [4, 2, 2, 2]), num_attention_heads=(size, [1, 2, 5, 8]), mlp_ratios=(real, ratios),
        **{less: (size, [8, 4, 2, 1])},
    )  # fmt: skip
    c.equal("num_encoder_blocks", len(found[0]), 4, "the length of hidden_sizes")
    if "num_hidden_layers" in c:
        c.only(len(found[0]), "num_hidden_layers", why="the length of hidden_sizes")
    for width, heads, ratio in zip(found[0], found[4], found[5], strict=True):
        c.divides(heads, width, "num_attention_heads", "hidden_sizes")
        if not 1 <= width * ratio < 2**40:
            c.fault("mlp_ratios", found[5], "ratios that give widths above 0")
            found[5] = [1] * len(found[0])
            break
    return found


def _stage(net: Network, i: int, depth: int, heads: int, ratio: float, less: int, act: str, *, bias: bool = True,
           mixed: bool = True, more: int = 0, pooled: int = 0) -> None:  # fmt: skip
    """Layers of a stage, whose keys are `less` in each direction, or those of a picture of `pooled` positions a side;
    `mixed` ones have a convolution in their feed-forward, `more` positions belong to no place."""
    d, (high, wide) = net.channels, net.sides
    net.layer(f"stage{i + 1}", depth)
    seen = high * wide + more
    here: Raw = {"at": [0, seen, 1]}
    biases = "qkvo" if bias else "o"
    leaves: Pieces = [normed("attention", d, **here)]
    keys, width = None, max(1, d // heads)
    if pooled or less > 1:
        few = (pooled, pooled) if pooled else net.checked((high // less, wide // less))
        keys = [0, few[0] * few[1], 1]
        taps = 1 if pooled else less * less
        leaves.append(piece("reduce", "convolution", d, d, taps, taps, kind="attention", at=keys))
        leaves.append(normed("reduce", d, at=keys))
        leaves += [piece("reduce_activation", "gelu", d, at=keys, kind="attention")] * bool(pooled)
    leaves += attends("", d, heads, width, keys=keys, bias=biases, **here)
    if not mixed:
        net.leaves += [*leaves, *fed("feed_forward", d, int(d * ratio), act, **here)]
        return
    ff = int(d * ratio)
    up, *after = fed("feed_forward", d, ff, act, **here)[1:]
    middle = [piece("relu", "relu", ff, kind="feed_forward", **here)] * bool(pooled)
    middle.append(piece("conv", "convolution", ff, ff, 9, 1, groups=ff, kind="feed_forward", **here))
    net.leaves += [*leaves, normed("feed_forward", d, **here), up, *middle, *after]


def pvt(c: Config) -> Raw:
    """Layers with fewer keys, a table of positions in each stage, and a class token in the last."""
    ratios = [8, 8, 4, 4]
    widths, depths, patches, steps, heads, wides, less = _lists(
        c, "sequence_reduction_ratios", [4, 2, 2, 2], ratios, 64
    )
    bias, act = c.flag("qkv_bias", default=True), c.activation("hidden_act", default="gelu")
    side = c.size("image_size", default=224)
    if less[-1] != 1:
        c.fault("sequence_reduction_ratios", less, "1 in the last stage, which has a class token")
    net = Network(c, (side, side), c.size("num_channels", default=3), "", "")
    for i, d in enumerate(widths):
        last = i == len(widths) - 1
        net.outside("embedding")
        net.conv(f"patches{i + 1}", d, steps[i], patches[i], pad=0, bias=True, norm="layer")
        rows = (side // (2 ** (i + 1) if i else 1) // patches[i]) ** 2
        if rows != net.sides[0] * net.sides[1]:
            c.fault("image_size", side, f"a picture with {rows:,} positions in stage {i + 1}, as its table has")
        net.add(piece(f"positions{i + 1}", "table", rows + last, d, bias=True, at=[0, rows + last, 1]))
        net.leaves += [piece("class_token", "held", d, kind="embedding")] * last
        _stage(net, i, depths[i], heads[i], wides[i], less[i], act, bias=bias, mixed=False, more=int(last))
    net.around.append(normed("last", net.channels, at=[0, net.sides[0] * net.sides[1] + 1, 1]))
    return net.classified(labels=1000)


def pvt_v2(c: Config) -> Raw:
    """SegFormer's layers, or some whose keys are always those of 7 × 7 positions (`linear_attention`)."""
    c.ignore("stage_names", "out_features", "out_indices")
    widths, depths, patches, steps, heads, ratios, less = _lists(c, "sr_ratios", [7, 3, 3, 3], [8, 8, 4, 4])
    bias, act = c.flag("qkv_bias", default=True), c.activation("hidden_act", default="gelu")
    pooled = 7 * c.flag("linear_attention", default=False)
    net = Network(c, picture(c, 224), c.size("num_channels", default=3), "", "")
    for i, d in enumerate(widths):
        net.outside("embedding")
        net.conv(f"patches{i + 1}", d, patches[i], steps[i], bias=True, norm="layer")
        _stage(net, i, depths[i], heads[i], ratios[i], less[i], act, bias=bias, pooled=pooled)
        net.outside("norm")
        net.normed(f"stage{i + 1}", "layer")
    return net.classified()


def mobilevit(c: Config) -> Raw:
    """MobileNet's blocks, and stages in which the positions of all patches that have the same place in theirs attend to
    each other."""
    necks = c.items("neck_hidden_sizes", of=size, length=None, default=[16, 32, 64, 96, 128, 160, 640])
    hidden = c.items("hidden_sizes", of=size, length=None, default=[144, 192, 240])
    if len(necks) != 7 or len(hidden) != 3:
        c.fault("neck_hidden_sizes", necks, "a list of 7 numbers, and hidden_sizes one of 3")
        necks, hidden = [16, 32, 64, 96, 128, 160, 640], [144, 192, 240]
    heads, ratio, more = c.size("num_attention_heads", default=4), c.real("mlp_ratio", default=2.0), c.real(
        "expand_ratio", default=4.0)  # fmt: skip
    act, kernel = c.activation("hidden_act", default="silu"), c.size("conv_kernel_size", default=3)
    patch, stride = c.size("patch_size", default=2), c.size("output_stride", default=32)
    bias, form = c.flag("qkv_bias", default=True), c.head_of("classifier", "none", "pixels")
    c.ignore("aspp_out_channels", "atrous_rates", "aspp_dropout_prob", "semantic_loss_ignore_index")
    if not kernel % 2:
        c.fault("conv_kernel_size", kernel, "an odd number")
    if not (min(necks) * more >= 0 and min(hidden) * ratio >= 1 and max(more, ratio) <= 1000):
        c.fault("mlp_ratio", ratio, "ratios that give widths above 0")
        ratio, more = 2.0, 4.0
    net = Network(c, picture(c, 256), c.size("num_channels", default=3), act)
    net.conv("stem", necks[0], 3, 2)
    for i, (to, step) in enumerate(((necks[1], 1), (necks[2], 2), (necks[2], 1), (necks[2], 1))):
        net.layer(f"block{i + 1}")
        inverted(net, to, step, even(round(net.channels * more), 8))
    for i, (d, depth) in enumerate(zip(hidden, (2, 4, 3), strict=True)):
        name, step = f"stage{i + 1}", 1 if i >= {8: 1, 16: 2}.get(stride, 3) else 2
        c.divides(heads, d, "num_attention_heads", "hidden_sizes")
        net.outside()
        inverted(net, necks[3 + i], step, even(round(net.channels * more), 8), f"{name}_down_")
        width = net.channels
        net.conv(f"{name}_near", width, kernel)
        net.conv(f"{name}_in", d, 1, norm="", act="")
        number = -(-net.sides[0] // patch) * -(-net.sides[1] // patch)
        here: Raw = {"at": [0, number * patch * patch, 1]}
        net.layer(name, depth)
        layer = attends("", d, heads, max(1, d // heads), bias="qkvo" if bias else "o", **here)
        core = next(one for one in layer if one["form"] == "attention")
        core |= {"form": "windows", "sizes": [*core["sizes"], number]}
        net.leaves += [normed("attention", d, **here), *layer]
        net.leaves += fed("feed_forward", d, int(d * ratio), act, **here)
        net.outside()
        net.around.append(normed(name, d, **here))
        net.conv(f"{name}_out", width, 1)
        net.channels = 2 * width
        net.conv(f"{name}_fused", width, kernel)
    net.outside("head" if form == "pixels" else "other")
    if form != "pixels":
        net.conv("last", necks[6], 1)
        return net.classified()
    to, rates = (
        c.size("aspp_out_channels", default=256),
        c.items("atrous_rates", of=size, length=None, default=[6, 12, 18]),
    )
    if len(rates) != 3:
        c.fault("atrous_rates", rates, "a list of 3 numbers")
    net.act = "relu"
    d, sides = net.channels, net.sides
    for name, taps, at in (
        ("one", 1, sides),
        ("far1", 3, sides),
        ("far2", 3, sides),
        ("far3", 3, sides),
        ("mean", 1, (1, 1)),
    ):
        net.channels, net.sides = d, at
        net.conv(name, to, taps)
    net.channels, net.sides = 5 * to, sides
    net.conv("projected", to, 1)
    net.conv("classifier", c.labels(), 1, bias=True, norm="", act="")
    return net.described(d)
