"""Transformers whose layers read a picture that is smaller in each stage, with convolutions between and inside them."""

from __future__ import annotations

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import Config, Raw, piece
from txcalc.sources.huggingface.convolved import Network, even, inverted, picture, stages
from txcalc.sources.huggingface.leaves import Pieces, attends, fed, normed
from txcalc.sources.spec import count, flag, real, size, text


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
    heads, more = c.size("num_attention_heads", default=4), c.ratio("expand_ratio", 4.0)
    ratio = c.ratio("mlp_ratio", 2.0, *hidden)
    act, kernel = c.activation("hidden_act", default="silu"), c.size("conv_kernel_size", default=3)
    patch, stride = c.size("patch_size", default=2), c.size("output_stride", default=32)
    bias, form = c.flag("qkv_bias", default=True), c.head_of("classifier", "none", "pixels")
    c.ignore("aspp_out_channels", "atrous_rates", "aspp_dropout_prob", "semantic_loss_ignore_index")
    if not kernel % 2:
        c.fault("conv_kernel_size", kernel, "an odd number")
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
    return _pixels(c, net, 256)


def _pixels(c: Config, net: Network, usual: int) -> Raw:
    """A head that classifies pixels: convolutions of several reaches side by side, and their mean."""
    to, rates = (
        c.size("aspp_out_channels", default=usual),
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


def mobilevitv2(c: Config) -> Raw:
    """MobileNet's blocks, and stages whose positions are summed by scores that one channel gives."""
    by, more = c.ratio("width_multiplier", 1.0), c.ratio("expand_ratio", 2.0)
    several, units = (c.items(key, of=size, length=3, default=list(usual)) for key, usual in (
        ("n_attn_blocks", (2, 4, 3)), ("base_attn_unit_dims", (128, 192, 256))))  # fmt: skip
    act, kernel = c.activation("hidden_act", default="swish"), c.size("conv_kernel_size", default=3)
    patch, stride = c.size("patch_size", default=2), c.size("output_stride", default=32)
    times, form = c.size("ffn_multiplier", default=2), c.head_of("classifier", "none", "pixels")
    c.ignore("aspp_out_channels", "atrous_rates", "aspp_dropout_prob", "semantic_loss_ignore_index")
    if not kernel % 2:
        c.fault("conv_kernel_size", kernel, "an odd number")
    net = Network(c, picture(c, 256), c.size("num_channels", default=3), act)
    net.conv("stem", even(max(16, min(64, 32 * by)), 8, 16), 3, 2)
    for i, (to, by_what, step) in enumerate(((64, 16, 1), (128, 8, 2), (128, 8, 1))):
        net.layer(f"block{i + 1}")
        inverted(net, even(to * by, by_what), step, even(round(net.channels * more), 8))
    for i, (to, depth, unit) in enumerate(zip((256, 384, 512), several, units, strict=True)):
        name, step = f"stage{i + 1}", 1 if i >= {8: 1, 16: 2}.get(stride, 3) else 2
        net.outside()
        inverted(net, even(to * by, 8), step, even(round(net.channels * more), 8), f"{name}_down_")
        width, d = net.channels, even(unit * by, 8)
        net.conv(f"{name}_near", width, kernel, groups=width)
        net.conv(f"{name}_in", d, 1, norm="", act="")
        high, across = net.checked((net.sides[0] // patch, net.sides[1] // patch))
        wide = times * d // 16 * 16
        here: Raw = {"at": [0, high * across * patch * patch, 1]}  # what fills whole patches
        if not wide:
            c.fault("ffn_multiplier", times, f"16 or more times of {d}")
        net.layer(name, depth)
        net.leaves += [normed("attention", d, **here), piece("qkv", "linear", d, 1 + 2 * d, **here)]
        net.leaves += [piece("relu", "relu", d, **here), piece("o", "linear", d, d, **here)]
        net.leaves.append(piece("attention_sum", "sum", d, **here))
        net.leaves += fed("feed_forward", d, max(1, wide), act, **here)
        net.outside()
        net.around.append(normed(name, d, **here))
        net.conv(f"{name}_out", width, 1, act="")
    if form == "pixels":
        net.outside("head")
        return _pixels(c, net, 512)
    return net.classified()


def levit(c: Config) -> Raw:
    """Convolutions, and stages of attention with biases by distance, whose queries skip positions where the next
    begins; batch norms behind all matrices."""
    teacher = c.named("LevitForImageClassificationWithTeacher")
    if teacher:
        c.ignore("architectures")
    widths, heads, depths, keys, wides, ratios = (
        c.items(key, of=size, length=3, default=list(usual))
        for key, usual in (("hidden_sizes", (128, 256, 384)), ("num_attention_heads", (4, 8, 12)),
                           ("depths", (4, 4, 4)), ("key_dim", (16, 16, 16)), ("mlp_ratio", (2, 2, 2)),
                           ("attention_ratio", (2, 2, 2)))
    )  # fmt: skip
    side, patch = c.size("image_size", default=224), c.size("patch_size", default=16)
    kernel, stride, pad = c.size("kernel_size", default=3), c.size("stride", default=2), c.count("padding", default=1)
    net = Network(c, (side, side), c.size("num_channels", default=3), "hard_swish")
    between = [["Subsample", keys[0], width // keys[0], 4, 2, 2] for width in widths[:2]]
    if c.data.get("down_ops", between) not in (between, [*between, [""]]):  # the class adds the last when it is made
        c.fault("down_ops", c.data["down_ops"], f"{between}, as the class derives it")
    c.ignore("down_ops")
    for i, less in enumerate((8, 4, 2, 1)):
        net.conv(f"patches{i + 1}", max(1, widths[0] // less), kernel, stride, pad=pad, act=None if less > 1 else "")
    if widths[0] < 8 or any(width < keys[0] for width in widths[:2]) or net.sides[0] != side // patch:
        wanted = "8 and key_dim or more, of a picture whose convolutions leave image_size // patch_size"
        c.fault("hidden_sizes", widths, wanted)
    for i, d in enumerate(widths):
        (high, _), here = net.sides, net.here
        net.layer(f"stage{i + 1}", depths[i])
        _biased(net, d, heads[i], keys[i], ratios[i], high, high, 1)
        _normed_matrices(net, wides[i] * d)
        if i < 2:
            net.layer(f"between{i + 1}")
            less = (high - 1) // 2 + 1
            net.sides = less, less
            _biased(net, widths[i + 1], max(1, d // keys[0]), keys[0], 4, high, less, 2, here)
            _normed_matrices(net, 2 * widths[i + 1])
    net.outside("head")
    d, once = net.channels, {"at": [0, 1, 1]}
    classified = teacher or c.head_of("classifier", "none") == "classifier"
    for name in ("classifier", "second")[: classified + teacher]:
        net.around += [piece(f"{name}_{form}", form, d, kind="norm", **once) for form in ("scale", "shift")]
        net.around.append(piece(name, "linear", d, c.labels(), kind="head", **once))
    return net.described(widths[-1])


def _biased(net: Network, to: int, heads: int, width: int, ratio: int, before: int, after: int, step: int,
            seen: Raw | None = None) -> None:  # fmt: skip
    """LeViT's attention, values `ratio` times as wide as keys, with a number a head for each distance between places;
    of `seen` positions where its queries skip some."""
    d, here = net.channels, net.here
    reads = seen or here
    distances = len({abs(a * step - b) for a in range(after) for b in range(before)}) ** 2
    own = 0 if seen else heads * width
    made = [("keys_values", d, own + (1 + ratio) * heads * width, reads)]
    made += [("queries", d, heads * width, here)] if seen else []
    for name, d_in, d_out, there in [*made, ("o", ratio * heads * width, to, here)]:
        if name == "o":
            keys = {"keys": reads["at"]} if seen else {}
            form = "reading" if seen else "attention"
            core = piece("core", form, heads, width, ratio * width, bias=True, **keys, **here)
            net.leaves += [piece("distances", "held", heads * distances), core]
            net.leaves.append(piece("activation", "hard_swish", d_in, **here))
        net.leaves += [piece(name, "linear", d_in, d_out, bias=False, **there)]
        net.leaves += [piece(f"{name}_{form}", form, d_out, kind="norm", **there) for form in ("scale", "shift")]
    net.channels = to
    net.leaves += [piece("attention_sum", "sum", to, **here)] * (seen is None)


def _normed_matrices(net: Network, wide: int) -> None:
    """LeViT's feed-forward."""
    d = net.channels
    for name, d_in, d_out in (("up", d, wide), ("down", wide, d)):
        net.channels = d_out
        net.add(piece(name, "linear", d_in, d_out, bias=False))
        net.normed(name, "batch")
        net.add(*[piece("feed_forward_activation", "hard_swish", wide)] * (name == "up"))
    net.add(piece("feed_forward_sum", "sum", d))


def cvt(c: Config) -> Raw:
    """Layers whose queries, keys and values are depthwise convolutions', the last two of fewer positions; a class token
    in the last stage."""
    c.ignore("attention_drop_rate", "drop_rate", "drop_path_rate")
    found = stages(
        c, embed_dim=(size, [64, 192, 384]), depth=(size, [1, 2, 10]), num_heads=(size, [1, 3, 6]),
        patch_sizes=(size, [7, 3, 3]), patch_stride=(size, [4, 2, 2]), patch_padding=(count, [2, 1, 1]),
        mlp_ratio=(real, [4.0, 4.0, 4.0]), kernel_qkv=(size, [3, 3, 3]), padding_kv=(count, [1, 1, 1]),
        stride_kv=(size, [2, 2, 2]), padding_q=(count, [1, 1, 1]), stride_q=(size, [1, 1, 1]),
        qkv_bias=(flag, [True] * 3), cls_token=(flag, [False, False, True]),
        qkv_projection_method=(text, ["dw_bn"] * 3),
    )  # fmt: skip
    if not c.faulty and len(c.data.get("depth") or [0] * 3) != len(found[0]):
        given = c.data.get("depth", ABSENT)
        c.fault("depth", given, f"a list of {len(found[0])} numbers, as many as embed_dim has")
    net = Network(c, picture(c, 224, own=False), c.size("num_channels", default=3), "", "")
    for i, one in enumerate(zip(*found, strict=True)):
        d, depth, heads, patch, step, pad, ratio, kernel, pad_kv, step_kv, pad_q, step_q, bias, token, method = one
        c.divides(heads, d, "num_heads", "embed_dim")
        last = i == len(found[0]) - 1
        if (token and not last) or method != "dw_bn" or depth <= i or not 1 <= ratio * d <= 2**40:
            wanted = f"more than {i} layers in stage {i + 1}, of convolutions dw_bn; a class token in the last alone"
            c.fault("depth", c.data.get("depth"), wanted)
        net.outside("embedding")
        net.conv(f"patches{i + 1}", d, patch, step, pad=pad, bias=True, norm="layer")
        net.leaves += [piece("class_token", "held", d, kind="embedding")] * token
        sides, act = net.sides, "gelu"
        here: Raw = {"at": [0, sides[0] * sides[1] + token, 1]}
        net.layer(f"stage{i + 1}", depth)
        net.leaves.append(normed("attention", d, **here))
        for name, padding, stride in (("q", pad_q, step_q), ("k", pad_kv, step_kv), ("v", pad_kv, step_kv)):
            net.sides = sides
            net.conv(f"{name}_conv", d, kernel, stride, pad=padding, groups=d, norm="batch")
            if name == "q" and net.sides != sides:
                c.fault("stride_q", c.data.get("stride_q"), "1, with queries of all positions")
        seen, net.sides = [0, net.sides[0] * net.sides[1] + token, 1], sides
        net.leaves += attends("", d, heads, max(1, d // heads), keys=seen, bias="qkvo" if bias else "o", **here)
        net.leaves += fed("feed_forward", d, int(d * ratio), act, **here)
    d = net.channels
    if c.head_of("classifier", "none") == "classifier":
        if not found[13][-1]:
            c.fault("cls_token", found[13], "true in the last stage, whose class token is classified")
        net.around.append(normed("last", d, at=[0, 1, 1]))
        net.around.append(piece("classifier", "linear", d, c.labels(), kind="head", at=[0, 1, 1]))
    return net.described(d)
