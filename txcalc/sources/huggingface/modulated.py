"""Vision networks that mix positions without attention: pooling (PoolFormer), focal modulation (FocalNet), convolutions
with standardised weights (BiT).
"""

from __future__ import annotations

from txcalc.sources.huggingface.config import Config, Raw, piece
from txcalc.sources.huggingface.convolved import Network, even, picture, stages
from txcalc.sources.huggingface.leaves import fed, normed
from txcalc.sources.spec import count, size


def poolformer(c: Config) -> Raw:
    """Layers that add the mean of the positions around each (arXiv 2111.11418)."""
    widths, depths, patches, steps, pads = stages(
        c, hidden_sizes=(size, [64, 128, 320, 512]), depths=(size, [2, 2, 6, 2]), patch_sizes=(size, [7, 3, 3, 3]),
        strides=(size, [4, 2, 2, 2]), padding=(count, [2, 1, 1, 1]),
    )  # fmt: skip
    c.equal("num_encoder_blocks", len(widths), 4, "the length of hidden_sizes")
    ratio, act = c.ratio("mlp_ratio", 4.0, *widths), c.activation("hidden_act", default="gelu")
    scaled, pool = c.flag("use_layer_scale", default=True), c.size("pool_size", default=3)
    c.ignore("patch_size", "stride", "layer_scale_init_value")
    if not pool % 2:
        c.fault("pool_size", pool, "an odd number")
    net = Network(c, picture(c, 224, own=False), c.size("num_channels", default=3), "", "")
    for i, (d, depth) in enumerate(zip(widths, depths, strict=True)):
        net.outside("embedding")
        net.conv(f"patches{i + 1}", d, patches[i], steps[i], pad=pads[i], bias=True)
        net.layer(f"stage{i + 1}", depth)
        here, scale = net.here, [piece("pool_scale", "scale", d)] * scaled
        net.leaves.append(normed("pool", d, **here))
        net.add(*scale, piece("pool_sum", "sum", d))
        *made, total = fed("feed_forward", d, int(d * ratio), act, **here)
        net.leaves += made
        net.add(*[piece("feed_forward_scale", "scale", d)] * scaled)
        net.leaves.append(total)
    if c.head_of("classifier", "none") == "classifier":
        net.around.append(normed("last", net.channels, **net.here))
        net.around.append(piece("classifier", "linear", net.channels, c.labels(), kind="head", at=[0, 1, 1]))
    return net.described()


def focalnet(c: Config) -> Raw:
    """Layers that multiply each position by what depthwise convolutions of growing reach see around it, and by the mean
    of all (focal modulation, arXiv 2203.11926)."""
    depths, levels, windows = stages(
        c, depths=(size, [2, 2, 6, 2]), focal_levels=(count, [2, 2, 2, 2]), focal_windows=(size, [3, 3, 3, 3])
    )
    width, patch = c.size("embed_dim", default=96), c.size("patch_size", default=4)
    ratio, act = c.ratio("mlp_ratio", 4.0, width), c.activation("hidden_act", default="gelu")
    convolved, scaled = c.flag("use_conv_embed", default=False), c.flag("use_layerscale", default=False)
    inner = c.flag("use_post_layernorm_in_modulation", default=False)
    for key in ("use_post_layernorm", "normalize_modulator"):  # where norms stand, and a division
        c.flag(key, default=False)
    c.ignore("hidden_sizes", "layerscale_value", "encoder_stride")
    c.ignore("stage_names", "out_features", "out_indices")
    if any(not window % 2 for window in windows):
        c.fault("focal_windows", windows, "odd numbers")
    if len(depths) > 20:
        c.fault("depths", depths, "at most 20 stages")
        depths = depths[:4]
    net = Network(c, picture(c, 224), c.size("num_channels", default=3), "", "")

    def patches(name: str, to: int, across: int, own: tuple[int, int, int]) -> None:
        """Squares of patches of `across` a side, the picture filled up to whole ones; or a convolution's positions."""
        high, wide = (-(-side // across) * across for side in net.sides)
        net.sides = high, wide
        kernel, stride, pad = own if convolved else (across, across, 0)
        net.conv(name, to, kernel, stride, pad=pad, bias=True, norm="layer")

    patches("patches", width, patch, (7, 4, 2))
    for i, (depth, level, window) in enumerate(zip(depths, levels, windows, strict=False)):
        d = width * 2**i
        if i:
            net.outside("embedding")
            patches(f"merge{i}", d, 2, (3, 2, 1))
        net.layer(f"stage{i + 1}", depth)
        here = net.here
        net.leaves.append(normed("modulation", d, **here))
        net.add(piece("modulation_in", "linear", d, 2 * d + level + 1))
        for k in range(level):
            net.conv(f"focus{k + 1}", d, 2 * k + window, groups=d)
            net.add(piece(f"focus{k + 1}_activation", "gelu", d), piece(f"focus{k + 1}_sum", "sum", d))
        net.leaves.append(piece("mean_activation", "gelu", d, kind="other", at=[0, 1, 1]))
        net.add(piece("context", "linear", d, d), piece("modulated", "sum", d))
        net.leaves += [normed("modulated", d, **here)] * inner
        net.add(piece("modulation_out", "linear", d, d), *[piece("modulation_scale", "scale", d)] * scaled)
        net.add(piece("modulation_sum", "sum", d))
        *made, total = fed("feed_forward", d, int(d * ratio), act, **here)
        net.leaves += [*made, *[piece("feed_forward_scale", "scale", d, kind="feed_forward", **here)] * scaled, total]
    net.around.append(normed("last", net.channels, **net.here))
    return net.classified()


def bit(c: Config) -> Raw:
    """Residual blocks of three convolutions of standardised weights, with group norms behind them or before (Big
    Transfer, arXiv 1912.11370)."""
    c.ignore("stage_names", "out_features", "out_indices")
    widths, depths = stages(c, hidden_sizes=(size, [256, 512, 1024, 2048]), depths=(size, [3, 4, 6, 3]))
    form, padding = c.text("layer_type", default="preactivation"), c.data.get("global_padding")
    c.ignore("global_padding")
    if form not in ("preactivation", "bottleneck"):
        c.fault("layer_type", form, "'preactivation' or 'bottleneck'")
    filled = isinstance(padding, str) and padding.upper() == "SAME"
    if padding is not None and not filled:
        c.fault("global_padding", padding, "null or 'same'")
    before, groups = form == "preactivation", c.size("num_groups", default=32)
    act, pooled = c.activation("hidden_act", default="relu"), c.flag("embedding_dynamic_padding", default=False)
    by, most = c.size("width_factor", default=1), c.size("output_stride", default=32)
    net = Network(c, picture(c, 224, own=False), c.size("num_channels", default=3), "", "")

    def conv(name: str, to: int, kernel: int, stride: int = 1, norm: bool = True, active: bool = True) -> None:
        """Behind each a norm and an activation, or none of both."""
        high, wide = (-(-side // stride) for side in net.sides)
        net.conv(name, to, kernel, stride, to_sides=(high, wide))
        if norm:
            group(name, active)

    def group(name: str, active: bool = True) -> None:
        if net.channels % groups:
            c.fault("num_groups", groups, f"a number that divides {net.channels:,} channels")
        net.normed(name, "layer")
        net.add(*[piece(f"{name}_activation", act, net.channels)] * active)

    conv("stem", c.size("embedding_size", default=64), 7, 2, norm=not before)
    sides = [side + 2 * (not filled) for side in net.sides]
    high, wide = (-(-side // 2) if pooled else (side - 3) // 2 + 1 for side in sides)
    net.sides, now = net.checked((high, wide)), 4
    for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        to, stride = even(width * by, 8), 1 if not i or now >= most else 2
        now *= stride
        middle = even(to * 0.25, 8)
        for leads in net.stage(i + 1, depth):
            read, here, step = net.channels, net.sides, stride if leads else 1
            if before:
                group("norm1")
            conv("conv1", middle, 1)
            conv("conv2", middle, 3, step)
            conv("conv3", to, 1, norm=not before, active=False)
            if leads:
                after, net.channels, net.sides = net.sides, read, here
                conv("shortcut", to, 1, step, norm=not before, active=False)
                net.sides = after
            net.add(piece("sum", "sum", to), *[piece("activation", act, to)] * (not before))
    if net.channels != widths[-1]:
        c.fault("width_factor", by, "1, with hidden_sizes of which 8 divides the last")
    net.outside("norm")
    if before:
        group("last")
    return net.classified()
