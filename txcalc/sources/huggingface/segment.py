"""SAM (arXiv 2304.02643) and SAM 2 (arXiv 2408.00714): a picture's encoder, and a decoder of masks that reads it,
without a prompt; and Hiera, the encoder of SAM 2 (arXiv 2306.00989), by itself.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from txcalc.sources.huggingface.config import Config, Raw, piece
from txcalc.sources.huggingface.convolved import Network, Sides, picture, stages
from txcalc.sources.huggingface.leaves import Pieces, fed, listed, normed, places, preceded
from txcalc.sources.huggingface.reading import global_layers, grid_of
from txcalc.sources.spec import MAX_SIZE, flag, size


def sam(c: Config) -> Raw:
    """Layers that attend in square windows, a few to all, with biases by row and by column; then two convolutions."""
    c.head_of("none")
    c.only(True, "tie_word_embeddings", why="a prompt's positions are the picture's")
    v = c.nested("vision_config", "sam_vision_model")
    d = v.size("hidden_size", default=768)
    usual = int(d * v.real("mlp_ratio", default=4.0))
    raw, grid, out = pictures(v, v.size("mlp_dim", default=usual, null=usual))
    feats = v.size("num_pos_feats", default=128)
    v.only(d // 2, "scale", why="it is what the class derives")
    around, here = raw["around"], places((grid, grid))
    around.append(piece("grid_positions", "linear", 2, feats, bias=False, shared=True, kind="embedding", **here))
    _prompts(c, out, grid, feats, around)
    _masks(c, out, grid, around, fine=d if c.model_type == "sam_hq" else 0)
    if c.model_type == "sam_hq":
        around += _finer(d, out, grid, int("whole" in raw["layer"]))
    c.note("a picture of its own size is read, whatever number of tokens is asked for, without a prompt")
    return raw


sam_hq = sam


def _finer(d: int, out: int, grid: int, whole: int) -> Pieces:
    """A mask of finer pixels (SAM-HQ, arXiv 2306.01567): of what the encoder gives, of its first layer that attends to
    all, where there is one (`whole`), and of the decoder's pixels."""
    quarter, eighth, finest = max(1, out // 4), max(1, out // 8), {"at": [0, 16 * grid**2, 1]}
    made = [*_larger("encoder_", out, quarter, eighth, grid)]
    made += [one | {"runs": whole} for one in _larger("layer_", d, out, eighth, grid)]
    made += [piece("pixels1", "convolution", eighth, quarter, 9, 1, **finest), normed("pixels", quarter, **finest)]
    made.append(piece("pixels2", "convolution", quarter, eighth, 9, 1, **finest))
    return [one | {"kind": "head"} for one in made]


def _larger(name: str, d: int, middle: int, to: int, grid: int) -> Pieces:
    """Two convolutions that each double a map's sides, and a norm between them."""
    here, finer = {"at": [0, grid**2, 1]}, {"at": [0, 4 * grid**2, 1]}
    made = [piece(f"{name}finer", "linear", d, 4 * middle, bias=False, **here)]
    made += [piece(f"{name}finer_bias", "held", middle), normed(f"{name}finer", middle, **finer)]
    made.append(piece(f"{name}finest", "linear", middle, 4 * to, bias=False, **finer))
    return [*made, piece(f"{name}finest_bias", "held", to)]


def pictures(v: Config, wide: int) -> tuple[Raw, int, int]:
    """The encoder of pictures, with feed-forwards of width `wide`; patches along a side, and the channels it makes."""
    raw: Raw = {"kind": "encoder", "d_model": v.size("hidden_size", default=768)}
    raw["n_layers"] = n = v.size("num_hidden_layers", default=12)
    d, heads = raw["d_model"], v.size("num_attention_heads", default=12)
    act = v.activation("hidden_act", default="gelu")
    v.divides(heads, d, "num_attention_heads", "hidden_size")
    side, patch, channels = grid_of(v, 1024, 16)
    grid, width = max(1, side), max(1, d // heads)
    window, whole = v.size("window_size", default=14), global_layers(v, n)
    bias, relative = v.flag("qkv_bias", default=True), v.flag("use_rel_pos", default=True)
    here = places((grid, grid))

    def layer(across: int, form: str, *sizes: int) -> Pieces:
        inside = places((grid, grid), across)
        own = {"keys": [0, across, 1], **inside}
        core = [piece(name, "scores", heads, width, **own) for name in ("rows", "columns")] if relative else []
        core += [piece("distances", "held", 2 * (2 * across - 1) * width)] if relative else []
        core.append(piece("core", form, heads, width, width, *sizes, bias=relative, **inside))
        return preceded(d, core, wide, act, bias, inside, here)

    out = v.size("output_channels", default=256)
    around = [piece("patches", "convolution", channels, d, patch**2, patch**2, kind="embedding", **here)]
    if v.flag("use_abs_pos", default=True):
        around.append(piece("positions", "table", grid**2, d, bias=True, kind="embedding", **here))
    for i, made in enumerate((piece("", "linear", d, out, bias=False), piece("", "linear", 9 * out, out, bias=False))):
        around += [made | {"name": f"neck{i + 1}", **here}, piece(f"neck{i + 1}_norm", "layer_norm", out, **here)]
    kinds = {"windowed": layer(window, "windows", window**2), "whole": layer(grid, "attention")}
    order = ["whole" if i in whole else "windowed" for i in range(n)]
    raw |= {"around": around, "head": {"form": "none"}}
    return listed(raw, {one: kinds[one] for one in sorted({*order})}, order), grid, out


def _prompts(c: Config, out: int, grid: int, feats: int, around: Pieces) -> None:
    """What reads points and masks, none of which is there."""
    p = c.nested("prompt_encoder_config", f"{c.model_type}_prompt_encoder")
    d, found = p.size("hidden_size", default=256), grid_of(p, 1024, 16)[0]
    wide = p.size("mask_input_channels", default=16)
    for key, value, other, what in (
        ("hidden_size", d, out, "the width of what vision_config gives"),
        ("hidden_size", d, 2 * feats, "twice vision_config.num_pos_feats"),
        ("image_size", found, grid, "as many patches as vision_config has"),
    ):
        if value != other:
            p.fault(key, value, f"{other:,}, {what}")
    p.only(found, "image_embedding_size", why="it is what the class derives")
    p.ignore("scale")
    p.multiple("mask_input_channels", wide, 4)
    p.activation("hidden_act", default="gelu")
    quarter = max(1, wide // 4)
    convolutions = 4 * quarter + quarter + 4 * quarter * wide + wide + wide * d + d + 2 * quarter + 2 * wide
    points = (2 + p.size("num_point_embeddings", default=4)) * d
    around.append(piece("prompts", "held", convolutions + points, kind="embedding"))


def _masks(c: Config, out: int, grid: int, around: Pieces, *, second: bool = False, fine: int = 0) -> None:
    """A token for each mask and one for their quality attend to each other and to the picture, and it to them; in the
    `second` version one token more, for whether there is an object, two that stand for no point, and finer pictures;
    one more for a finer mask where it reads layers of `fine` channels, too."""
    m = c.nested("mask_decoder_config", f"{c.model_type}_mask_decoder")
    d, n = m.size("hidden_size", default=256), m.size("num_hidden_layers", default=2)
    heads, last = m.size("num_attention_heads", default=8), d // m.size("attention_downsample_rate", default=2)
    narrow = last if second else d // 2  # which rate the first version's layers have is not asked
    masks, wide = m.size("num_multimask_outputs", default=3) + 1, m.size("mlp_dim", default=2048)
    if d != out or d % 8:
        m.fault("hidden_size", d, f"{out:,}, the width of what vision_config gives, which 8 divides")
    for inner in (d, narrow, last):
        m.divides(heads, inner, "num_attention_heads", "hidden_size, and what attention_downsample_rate leaves of it")
    if fine:
        m.equal("vit_dim", fine, 768, "the width of vision_config's layers")
    more = int(fine > 0)
    few, seen, once = {"at": [0, 1 + masks + more + 3 * second, 1]}, {"at": [0, grid**2, 1]}, {"at": [0, 1, 1]}
    made: Pieces = [piece("tokens", "held", (1 + masks + more + second) * d)]

    def attends(name: str, reading: Raw, read: Raw, inner: int, **more: Any) -> None:
        made.extend(
            piece(f"{name}_{one}", "linear", d, inner, **(reading if one == "q" else read), **more) for one in "qkv"
        )
        each = max(1, inner // heads)
        made.extend(piece(f"{name}_{one}", "scores", heads, each, keys=read["at"], **reading, **more)
                    for one in ("scores", "values"))  # fmt: skip
        made.append(piece(f"{name}_o", "linear", inner, d, **reading, **more))

    attends("among", few, few, d, times=n)
    attends("picture", few, seen, narrow, times=n)
    attends("back", seen, few, narrow, times=n)
    attends("final", few, seen, last)
    made.append(piece("norms", "layer_norm", d, times=3 * n + 1, **few))
    made.append(piece("back_norm", "layer_norm", d, times=n, **seen))
    act = m.activation("hidden_act", default="relu")
    made += [piece("up", "linear", d, wide, times=n, **few), piece("activation", act, wide, times=n, **few)]
    made.append(piece("down", "linear", wide, d, times=n, **few))
    if second and n > 2:  # the class makes its feed-forwards as deep as its layers are many
        made.append(piece("between", "linear", wide, wide, times=n * (n - 2), **few))
    made += _larger("", d, max(1, d // 4), max(1, d // 8), grid)
    made += [piece(f"mask{i + 1}", "linear", d, d, times=masks + more, **once) for i in range(2)]
    made += [piece("mask3", "linear", d, max(1, d // 8), times=masks + more, **once)]
    made += [piece("masks", "scores", 1, max(1, d // 8), keys=[0, 16 * grid**2, 1], at=[0, masks + more, 1])]
    inner, depth = m.size("iou_head_hidden_dim", default=256), m.size("iou_head_depth", default=3)
    made += [piece("quality", "linear", d, inner, **once)]
    made += [piece("qualities", "linear", inner, inner, times=depth - 2, **once)] if depth > 2 else []
    made += [piece("quality_scores", "linear", inner, masks, **once)]
    if second:
        made += [piece(f"object{i + 1}", "linear", d, d, **once) for i in range(2)] + [
            piece("object", "linear", d, 1, **once)
        ]
        made.append(piece("fine", "linear", d, max(1, d // 4), at=[0, 4 * grid**2, 1]))
        made.append(piece("finest_fine", "linear", d, max(1, d // 8), at=[0, 16 * grid**2, 1]))
        m.ignore(*(f"dynamic_multimask_{key}" for key in ("via_stability", "stability_delta", "stability_thresh")))
    around += [one | {"kind": "head"} for one in made]


def sam2(c: Config) -> Raw:
    """Hiera (arXiv 2306.00989): layers that attend in windows, whose queries are pooled where a stage begins; the three
    finest stages are read, the coarsest of them by the decoder."""
    c.head_of("none")
    v = c.nested("vision_config", "sam2_vision_model")
    b = v.nested("backbone_config", "sam2_hiera_det_model", {})
    net = Network(c, picture(b, (1024, 1024)), b.size("num_channels", default=3), "", "")
    if c.data.get("image_size", list(net.pixels)) not in (list(net.pixels), net.pixels[0]):
        c.fault("image_size", c.data["image_size"], "what vision_config.backbone_config says")
    c.ignore("image_size")
    maps, out = _hiera(b, net), v.size("fpn_hidden_size", default=256)
    channels = v.items("backbone_channel_list", of=size, length=None, default=[768, 384, 192, 96])
    if channels != [width for _, width in reversed(maps)] or len(maps) < 3:
        v.fault(
            "backbone_channel_list", channels, "the widths of three or more stages of backbone_config, the last first"
        )
    for key, value in (("fpn_kernel_size", 1), ("fpn_stride", 1), ("num_feature_levels", 3)):
        v.equal(key, value, {"num_feature_levels": 3}.get(key, 1), "no other is read")
    v.only(0, "fpn_padding", why="no other is read")
    v.ignore("hidden_act", "fpn_top_down_levels")
    added = v.data.get("fpn_top_down_levels", [2, 3])
    added = added if isinstance(added, list) else [*range(len(maps))]
    halves = [(2 * small[0], 2 * small[1]) == large for (large, _), (small, _) in pairwise(maps)]
    if not all(half for i, half in enumerate(halves) if i in added):
        v.fault("fpn_top_down_levels", added, "stages that are twice as large as the next, to which that is added")
    sides = [list(sides) for sides, _ in maps[:3]]
    told = v.data.get("backbone_feature_sizes", [[256, 256], [128, 128], [64, 64]])
    v.ignore("backbone_feature_sizes")
    grid = sides[-1][0]
    if told != sides or sides != [[4 * grid] * 2, [2 * grid] * 2, [grid] * 2]:
        v.fault(
            "backbone_feature_sizes", told, f"{sides}, the sides of the first three stages, each half the one before"
        )
    net.outside("embedding")
    for i, (net.sides, net.channels) in enumerate(maps):
        net.conv(f"neck{i + 1}", out, 1, bias=True)
    net.around.append(piece("no_memory", "held", out, kind="embedding"))
    net.around.append(
        piece("grid_positions", "tied", 2, max(1, out // 2), shared=True, at=[0, grid**2, 1], kind="embedding")
    )
    net.around.append(piece("point_positions", "tied", 2, max(1, out // 2), at=[0, 2, 1], kind="embedding"))
    _prompts(c, out, grid, out // 2 if out % 2 == 0 else out, net.around)
    _masks(c, out, grid, net.around, second=True)
    c.note("without a prompt: two points that are none")
    c.note("transformers' attention also multiplies the queries of each position with its keys, which nothing reads "
           "(same_place)")  # fmt: skip
    return net.described(maps[-1][1])


def _hiera(b: Config, net: Network) -> list[tuple[Sides, int]]:
    """The stages' layers; gives the sides and widths of what they make."""
    depths, widths, heads, windows = stages(
        b, blocks_per_stage=(size, [1, 2, 7, 2]), embed_dim_per_stage=(size, [96, 192, 384, 768]),
        num_attention_heads_per_stage=(size, [1, 2, 4, 8]), window_size_per_stage=(size, [8, 4, 14, 7]),
    )  # fmt: skip
    kernel, stride, pad, step, table = (
        b.items(key, of=size, length=2, default=list(usual))
        for key, usual in (("patch_kernel_size", (7, 7)), ("patch_stride", (4, 4)), ("patch_padding", (3, 3)),
                           ("query_stride", (2, 2)), ("window_positional_embedding_background_size", (7, 7)))
    )  # fmt: skip
    pooled, ratio = b.count("num_query_pool_stages", default=3), b.ratio("mlp_ratio", 4.0, *widths)
    whole, act = b.data.get("global_attention_blocks", [5, 7, 9]), b.activation("hidden_act", default="gelu")
    b.equal("hidden_size", widths[0], 96, "the first of embed_dim_per_stage")
    b.ignore("global_attention_blocks", "num_attention_heads")
    for key, sides in (
        ("patch_kernel_size", kernel),
        ("patch_stride", stride),
        ("patch_padding", pad),
        ("query_stride", step),
    ):
        if sides[0] != sides[1]:
            b.fault(key, sides, "two equal numbers")
    if not isinstance(whole, list) or not all(type(i) is int for i in whole):
        b.fault("global_attention_blocks", whole, "a list of layers")
        whole = []
    net.conv("patches", widths[0], (kernel[0], kernel[0]), stride[0], pad=pad[0], bias=True)
    net.around.append(piece("positions", "held", widths[0] * (table[0] * table[1] + windows[0] ** 2), kind="embedding"))
    if any(side % windows[0] for side in net.sides):
        b.fault("window_size_per_stage", windows, f"first a number that divides {net.sides[0]} and {net.sides[1]}")
    maps, number = [], 0
    for i, (depth, d, several) in enumerate(zip(depths, widths, heads, strict=True)):
        b.divides(several, d, "num_attention_heads_per_stage", "embed_dim_per_stage")
        for j in range(min(depth, 1000)):
            window = 0 if number in whole else windows[i - 1 if i and not j else i]
            number += 1
            less = step[0] if 0 < i <= pooled and not j else 1
            name = f"stage{i + 1}_{'first' if not j else 'whole' if not window else 'windowed'}"
            if name in net.kinds:
                net.order.append(f"1*{name}")
                continue
            odd = any(side % less for side in net.sides) or window % less
            if less > 1 and (odd or not window or net.channels == d):
                wanted = "numbers that divide windows and sides where a stage begins, in windows and of another width"
                b.fault("query_stride", step, wanted)
            net.layer(name)
            _attending(net, d, several, window, less)
            net.leaves += fed("feed_forward", d, int(d * ratio), act, **net.here)
        maps.append((net.sides, d))
    return maps


def hiera(c: Config) -> Raw:
    """A classifier of what Hiera's layers make of a picture of one size, in windows that get smaller with it."""
    found = stages(
        c, depths=(size, [2, 3, 16, 3]), num_heads=(size, [1, 2, 4, 8]),
        masked_unit_attention=(flag, [True, True, False, False]),
    )  # fmt: skip
    sides, kernel, stride, pad, step, unit = (
        c.items(key, of=size, length=2, default=list(usual))
        for key, usual in (("image_size", (224, 224)), ("patch_size", (7, 7)), ("patch_stride", (4, 4)),
                           ("patch_padding", (3, 3)), ("query_stride", (2, 2)), ("masked_unit_size", (8, 8)))
    )  # fmt: skip
    c.ignore("decoder_hidden_size", "decoder_depth", "decoder_num_heads", "normalize_pixel_loss", "mask_ratio")
    c.ignore("layer_norm_init", "hidden_size", "num_hidden_layers", "stage_names", "out_features", "out_indices")
    width, pooled, wider = c.size("embed_dim", default=96), c.count("num_query_pool", default=3), c.ratio(
        "embed_dim_multiplier", 2.0, 1)  # fmt: skip
    ratio, act, n = c.ratio("mlp_ratio", 4.0, width), c.activation("hidden_act", default="gelu"), len(found[0])
    net = Network(c, (sides[0], sides[1]), c.size("num_channels", default=3), "", "")
    for key, pair in (("patch_size", kernel), ("patch_stride", stride), ("patch_padding", pad),
                      ("query_stride", step), ("masked_unit_size", unit)):  # fmt: skip
        if pair[0] != pair[1]:
            c.fault(key, pair, "two equal numbers")
    if pooled >= n or n > 20 or unit[0] % step[0] ** (min(n, 20) - 1):
        c.fault("num_query_pool", pooled, "less than the stages, after each of which query_stride divides units")
        return net.described()
    net.conv("patches", width, kernel[0], stride[0], pad=pad[0], bias=True)
    if net.sides != (sides[0] // stride[0], sides[1] // stride[0]) or any(side % unit[0] for side in net.sides):
        c.fault("image_size", sides, "sides of which patch_stride makes whole units (masked_unit_size)")
    net.add(piece("positions", "table", net.sides[0] * net.sides[1], width, bias=True))
    before = found[2][0]
    for i, (depth, heads, inside) in enumerate(zip(*found, strict=True)):
        d, across = int(width * wider**i), unit[0] // step[0] ** i
        c.divides(heads, d, "num_heads", "the stage's width")
        less = step[0] if 0 < i <= pooled else 1
        if (less > 1 and d == net.channels) or d > MAX_SIZE:
            c.fault("embed_dim_multiplier", wider, "a number by which a stage that pools is wider, and can be held")
        for leads in net.stage(i + 1, depth):
            windowed, shrunk = inside or (before and leads), less if leads else 1
            _attending(net, d, heads, across * shrunk if windowed else 0, shrunk, found=False)
            net.leaves += fed("feed_forward", d, int(d * ratio), act, **net.here)
        before = inside
    return net.classified(norm=True)


def _attending(net: Network, d: int, heads: int, window: int, less: int, *, found: bool = True) -> None:
    """A layer's attention in windows (0: to all), to `d` channels, of `less` times fewer queries along a side; with
    the products that nothing reads (`found`)."""
    before, here, sides = net.channels, net.here, net.sides
    inside = places(sides, window) if window else here
    width, keys = max(1, d // heads), [0, window**2 if window else sides[0] * sides[1], 1]
    net.leaves.append(normed("attention", before, **here))
    if before != d:
        net.leaves.append(piece("shortcut", "linear", before, d, **here))
    made = [piece(name, "linear", before, d, **inside) for name in "qkv"]
    made += [piece("same_place", "product", heads, width, heads, **inside)] * found
    net.sides, net.channels = net.checked((sides[0] // less, sides[1] // less)), d
    if less > 1:
        inside = {"at": [0, inside["at"][1] // less**2, 1]}
        made.append(piece("core", "reading", heads, width, width, bias=False, keys=keys, **inside))
    elif window:
        made.append(piece("core", "windows", heads, width, width, window**2, bias=False, **inside))
    else:
        made.append(piece("core", "attention", heads, width, width, bias=False, **inside))
    made += [piece("o", "linear", d, d, **inside), piece("attention_sum", "sum", d, **net.here)]
    net.leaves += [one | {"kind": "attention"} for one in made]
