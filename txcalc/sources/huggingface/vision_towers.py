"""Vision towers listed leaf by leaf, wholly or in part; for Janus also its image codec."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import Config, Raw, with_kinds
from txcalc.sources.huggingface.leaf_list import (
    Leaves,
    attention_leaves,
    leaf,
    leaf_stack,
    matrix,
    norm_leaf,
    of_kind,
    patch_grid,
    pre_norm_leaves,
)
from txcalc.sources.huggingface.tower_types import (
    Projection,
    Sizes,
    Steps,
    Tower,
    count_params,
    global_layers,
    grid_of,
    leaf_tower,
    mlp_width,
    patch_area,
    resampler_step,
    side_of,
)
from txcalc.sources.huggingface.towers import GELU, ragged, square, stack
from txcalc.sources.huggingface.transformers_metadata import table
from txcalc.sources.spec import MAX_LAYERS, count, flag, size


def fuyu(v: Config) -> Tower:
    """No tower: the projector reads the image's patches."""
    d = v.size("num_channels", default=3) * v.size("patch_size", default=30) ** 2
    return Tower(d, leaf_tower(d, []))


def gemma4_unified(v: Config) -> Tower:
    """A matrix between two norms on an image's pooled patches, and learned positions for both directions."""
    side = v.size("patch_size", default=16) * v.size("pooling_kernel_size", default=3)
    d, rows = v.size("mm_embed_dim", default=3840), v.size("mm_posemb_size", default=1120)
    v.require_value(side, "model_patch_size", why="patch_size · pooling_kernel_size")
    patches = [norm_leaf("patches", 3 * side**2), leaf("patches", "linear", 3 * side**2, d), norm_leaf("embedded", d)]
    patches += [leaf("positions", "table", 2 * rows, d, bias=True), norm_leaf("positions", d)]
    output: Raw = {"merge": 1, "to": v.size("output_proj_dims", default=3840)}
    return Tower(d, leaf_tower(d, [item | {"kind": "embedding"} for item in patches]), (output,))


def sam(v: Config, d_ff: int) -> tuple[Raw, int, int]:
    """SAM's encoder with feed-forwards of width `d_ff`, its patches along a side, and its output channels."""
    raw: Raw = {"kind": "encoder", "d_model": v.size("hidden_size", default=768)}
    raw["n_layers"] = n = v.size("num_hidden_layers", default=12)
    d, heads = raw["d_model"], v.size("num_attention_heads", default=12)
    act = v.activation("hidden_act", default="gelu")
    v.divides(heads, d, "num_attention_heads", "hidden_size")
    side, patch, channels = grid_of(v, 1024, 16)
    grid, width = max(1, side), max(1, d // heads)
    window, full = v.size("window_size", default=14), global_layers(v, n)
    bias, relative = v.flag("qkv_bias", default=True), v.flag("use_rel_pos", default=True)
    here = patch_grid((grid, grid))

    def layer(side: int, form: str, *sizes: int) -> Leaves:
        """A layer with attention in squares of `side` patches."""
        inside = patch_grid((grid, grid), side)
        keys = {"keys": [0, side, 1], **inside}
        core = [leaf(name, "scores", heads, width, **keys) for name in ("rows", "columns")] if relative else []
        core += [leaf("distances", "held", 2 * (2 * side - 1) * width)] if relative else []
        core.append(leaf("core", form, heads, width, width, *sizes, bias=relative, **inside))
        return pre_norm_leaves(d, core, d_ff, act, bias, inside, here)

    out = v.size("output_channels", default=256)
    around = [leaf("patches", "convolution", channels, d, patch**2, patch**2, kind="embedding", **here)]
    if v.flag("use_abs_pos", default=True):
        around.append(leaf("positions", "table", grid**2, d, bias=True, kind="embedding", **here))
    for i, neck in enumerate((matrix("", d, out), matrix("", 9 * out, out))):
        around += [neck | {"name": f"neck{i + 1}", **here}, leaf(f"neck{i + 1}_norm", "layer_norm", out, **here)]
    kinds = {"windowed": layer(window, "windows", window**2), "whole": layer(grid, "attention")}
    order = ["whole" if i in full else "windowed" for i in range(n)]
    raw |= {"around": around, "head": {"form": "none"}}
    return leaf_stack(raw, {kind: kinds[kind] for kind in sorted({*order})}, order), grid, out


def got_ocr2(v: Config) -> Tower:
    """SAM's encoder and a neck of two convolutions."""
    raw, grid, out = sam(v, v.size("mlp_dim", default=3072))
    return Tower(out, raw | {"length": grid**2}, steps=({"merge": 1, "to": out},))


_RATIOS = [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]


def mllama(v: Config) -> Tower:
    """Llama 3.2's tower: layers over all tiles of an image, a norm, and layers with a gate on each branch; gated
    embeddings of tiles and of positions. Each tile is padded to a multiple of 8 positions."""
    n, global_layers = v.count("num_hidden_layers", default=32), v.count("num_global_layers", default=8)
    sizes = Sizes(
        v.size("hidden_size", default=1280),
        v.size("intermediate_size", default=5120),
        n + global_layers,
        v.size("attention_heads", "num_attention_heads", default=16),
    )
    d = sizes.width
    v.divides(sizes.heads, d, "attention_heads", "the width")
    v.ignore("norm_eps", "intermediate_layers_indices", "supported_aspect_ratios")
    act = v.activation("hidden_act", default="gelu")
    grid, patch, channels = grid_of(v, 448, 14)
    ratios, tiles = v.data.get("supported_aspect_ratios"), v.size("max_num_tiles", default=4)
    if ratios is not None and not isinstance(ratios, list):
        v.fault("supported_aspect_ratios", ratios, "a list of pairs")
    if tiles != 4 and ratios in (None, _RATIOS):
        v.fault("max_num_tiles", tiles, "4, as in the default of supported_aspect_ratios")
    rows = (len(ratios) if isinstance(ratios, list) else 8) + 1
    patches = grid**2 + 1
    padded = -(-patches // 8) * 8
    all_tiles, once = {"at": [0, tiles * grid**2, 1]}, {"at": [0, 1, 1]}
    around = [leaf("patches", "convolution", channels, d, patch**2, patch**2, bias=False, **all_tiles)]
    around += [leaf("class_token", "held", d), leaf("positions", "table", patches, d, bias=True)]
    around += [leaf("tile_positions", "table", rows, tiles * patches * d, bias=True, **once)]
    around += [leaf("tiles", "table", rows, tiles * d, times=2, bias=True, **once)]
    around += [leaf("gates", "held", 3 + 2 * global_layers)]
    around = [*of_kind("embedding", around), norm_leaf("first", d), norm_leaf("middle", d)]
    raw = stack(sizes, act, attention={"bias": False}, positions={"form": "none"}, norm={"final": False})
    raw |= {"kind": "encoder", "length": tiles * padded, "around": around}
    output: Raw = {"merge": 1, "to": v.size("vision_output_dim", default=7680)}
    return Tower(d, raw, steps=(output,), dropped=tiles * (padded - patches))


# Classes whose default mode is not 16x.
_DOWNSAMPLE = {"minicpm_ocr": "4x"}


def minicpmv(v: Config) -> Tower:
    """SigLIP for images of any size; in mode 16x patches are merged after one of its layers."""
    grid, _, _ = grid_of(v, 224, 16)
    tower, whole = ragged(v, grid**2, 768, 3072, 12, 12), v.parent
    assert isinstance(whole, Config)
    raw, d, f = tower.raw, tower.width, tower.raw["feed_forward"]["d_ff"]
    heads, act = raw["attention"]["n_heads"], raw["feed_forward"]["activation"]
    merged, width = patch_area(v, "window_kernel_size"), max(1, d // heads)
    unmerged = whole.text("downsample_mode", default=_DOWNSAMPLE.get(whole.model_type, "16x")) == "4x"
    n, here = min(raw["n_layers"], MAX_LAYERS), {"at": [1, 0, merged]}
    insert_after = whole.data.get("insert_layer_id", 6)
    whole.ignore("insert_layer_id")
    if type(insert_after) is not int:
        whole.fault("insert_layer_id", insert_after, "the index of a layer")
        insert_after = 0
    merger = [norm_leaf("merger", d), *attention_leaves("merger_", d, heads, width)]
    (core,) = (item for item in merger if item["form"] == "attention")
    core |= {"form": "windows", "sizes": [heads, width, width, merged]}
    merger += [norm_leaf("merged", merged * d, **here), leaf("merger_up", "linear", merged * d, merged * f, **here)]
    merger += [leaf("merger_activation", act, merged * f, **here)]
    merger += [leaf("merger_down", "linear", merged * f, d, **here)]
    why = "its class always merges 2 × 2 patches, and window_kernel_size differs" if merged != 4 else ""
    if not 0 <= insert_after < n:
        why = f"insert_layer_id = {insert_after} is not the index of a layer"
    if unmerged or why:
        return tower._replace(raw=raw | {"idle": count_params(merger)}, why="" if unmerged else why)
    inside = leaf("core", "attention", heads, width, width, bias=False, **here)
    leaves = pre_norm_leaves(d, [inside], f, act, True, here, here)
    after = {"parts": ["pieces"], "pieces": {"leaves": leaves}, "norm": {"without": ["pieces"]}}
    kinds = ["before" if i <= insert_after else "after" for i in range(n)]
    raw = with_kinds(raw, (kinds, {"before": {"parts": ["attention", "feed_forward"]}, "after": after}))
    raw["norm"] = {**raw["norm"], "final": False}
    raw["around"] = [*merger, norm_leaf("last", d, **here)]
    return Tower(d, raw, ({"merge": merged, "to": d},))


def minicpmv_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A norm and two matrices on four merged patches, `merger_times` times."""
    d, inner, times = int(raw["d_model"]), 4 * tower.width, c.size("merger_times", default=1)
    steps: Steps = ()
    for i in range(min(times, 8)):
        out = d if i == times - 1 else tower.width
        steps += ({"merge": 4}, {"norm": "layer"}, {"linear": inner}, GELU, {"linear": out})
    if times > 8:
        c.fault("merger_times", times, "at most 8")
    return Projection(steps)


def florence2(v: Config) -> Tower:
    """DaViT: each stage is a convolution and pairs of layers, one with window attention (padded to whole windows) and
    one with channel attention."""
    widths = v.items("embed_dim", of=size, length=None, default=[128, 256, 512, 1024])
    defaults = {"depths": [1, 1, 9, 1], "patch_size": [7, 3, 3, 3], "num_heads": [4, 8, 16, 32]}
    defaults |= {"num_groups": defaults["num_heads"], "patch_stride": [4, 2, 2, 2]}
    lists = {key: v.items(key, of=size, length=None, default=default) for key, default in defaults.items()}
    lists["patch_padding"] = v.items("patch_padding", of=count, length=None, default=[3, 1, 1, 1])
    lists["patch_prenorm"] = v.items("patch_prenorm", of=flag, length=None, default=[False, True, True, True])
    for key, values in lists.items():
        if not widths or len(values) != len(widths):
            v.fault(key, values, f"a list as long as embed_dim, which has {len(widths):,}")
            return Tower(1, leaf_tower(1, []))
    window, side = v.size("window_size", default=12), v.size("image_size", default=None) or 768
    if "image_size" not in v:
        v.assumptions.append(f"{v.path}image_size = {side}, the size of its processor")
    rows = v.size("max_position_embeddings", default=50)
    v.ignore("drop_path_rate", "projection_dim", "max_temporal_embeddings")
    for key in (key for key in v.keys_read & v.data.keys() if v.data[key] is None):
        v.fault(key, None, "a value: transformers refuses null")
    bias, act = v.flag("qkv_bias", default=True), v.activation("activation_function", default="gelu")
    stages, why, d_in = list[Raw](), "", v.size("in_channels", default=3)
    for i, (d, *values) in enumerate(zip(widths, *lists.values(), strict=True)):
        depth, kernel, heads, groups, stride, padding, first = values
        before, side = patch_grid((side, side)), (side + 2 * padding - kernel) // stride + 1
        if side < 1 or d % heads or d % groups:
            why, side = "its image is too small, or heads or groups do not divide a stage's width", max(1, side)
        here, inside = patch_grid((side, side)), patch_grid((side, side), window)
        stage = [leaf("patches", "convolution", d_in, d, kernel**2, stride**2, kind="embedding", **here)]
        stage.append(norm_leaf("patches", d_in, **before) if first else norm_leaf("patches", d, **here))
        width, at_channels = max(1, d // heads), [0, max(1, d // groups), 1]
        windows = leaf("core", "windows", heads, width, width, window**2, bias=False, **inside)
        channels = leaf("core", "attention", groups, side**2, side**2, bias=False, at=at_channels)
        for name, core, at_core in (("windows", windows, inside), ("channels", channels, here)):
            layer = pre_norm_leaves(d, [core], mlp_width(v, d, 4.0), act, bias, at_core, here)
            layer += [leaf("place", "convolution", d, d, 9, 1, groups=d, times=2, **here)]
            layer += [leaf("place_sum", "sum", d, times=2, **here)]
            stage += [x | {"name": f"{name}_{x['name']}", "times": depth * x.get("times", 1)} for x in layer]
        stages += [x | {"name": f"stage{i + 1}_{x['name']}"} for x in stage]
        d_in = d
    if side > rows:
        why = why or f"its image has {side:,} rows after the last stage, more than max_position_embeddings = {rows:,}"
    return Tower(d_in, leaf_tower(d_in, [], 1, stages) | {"length": side**2}, why=why)


def florence2_projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Embeddings of rows and of columns; a matrix and a norm for every position and for their mean."""
    tables: Raw = {"vectors": v.size("max_position_embeddings", default=50)}
    n = int(tower.raw.get("length", 1))
    mean = resampler_step([leaf("mean", "sum", tower.width, groups=n, at=[0, 1, 1])], n, n + 1, tower.width)
    matrix: Raw = {"linear": v.size("projection_dim", default=1024), "bias": False}
    return Projection((tables, mean, matrix, {"norm": "layer"}))


def _timm_architecture(v: Config, known: Mapping[str, object], *changes: str) -> tuple[str, Config]:
    """timm's architecture, one of `known`, and the config of its arguments `changes`."""
    name = v.text("architecture", default="resnet50")
    if name not in known:
        v.fault("architecture", name, f"one of {', '.join(known)}", "no other tower of timm is supported")
        name = next(iter(known))
    v.ignore("model_type", "do_pooling", "label_names", "num_classes", "num_features", "pretrained_cfg", "global_pool")
    args = v.table("model_args")
    arguments = {key: value for key, value in args.data.items() if value is not None} if args else {}
    (args or v).ignore(*(args.data if args else ()))
    for key in arguments.keys() - set(changes):
        (args or v).fault(key, arguments[key], f"one of {', '.join(changes)}", "no other argument is supported")
    return name, Config(
        {key: arguments[key] for key in changes if key in arguments}, v.model_type, f"{v.path}model_args.", v
    )


# Perception Encoders: width, layers, heads, feed-forward width, sides of a patch and of an image; and whether they have
# a class token, a norm after the layers, a scale on each branch.
PERCEPTION: dict[str, list[Any]] = table("perception_encoders.json")
_CHANGES = "embed_dim depth img_size global_pool use_post_transformer_norm init_values ref_feat_shape"


def perception(v: Config) -> Tower:
    """CLIP's layers with rotary and learned positions, without pooling."""
    name, args = _timm_architecture(v, PERCEPTION, *_CHANGES.split())
    width, layers, heads, d_ff, patch, side, class_token, final, layer_scale = PERCEPTION[name]
    d, final = args.size("embed_dim", default=width), args.flag("use_post_transformer_norm", default=final)
    if "embed_dim" not in args:
        args.fault("embed_dim", ABSENT, "the tower's width", "transformers sizes its projector by this key")
    args.multiple("embed_dim", d, 4 * heads)
    pool = args.data.get("global_pool", "map" if PERCEPTION[name][7] else "")
    if pool != "":
        args.fault("global_pool", pool, '""', "its pooling is not supported")
    args.ignore("global_pool", "init_values", "ref_feat_shape")
    if (grid := side_of(args, "img_size", side) // patch) < 1:
        args.fault("img_size", args.data.get("img_size"), f"at least {patch}, a patch's side")
        grid = 1
    vision = {"image": patch * grid, "patch": patch, "class_token": class_token, "patch_bias": False}
    sizes = Sizes(d, int(d * (d_ff / width)), args.size("depth", default=layers), heads)
    norm = {"layer_scale": layer_scale or "init_values" in args, "final": final}
    return Tower(d, stack(sizes, "gelu", vision=vision, embedding={"norm": True}, norm=norm), first=int(class_token))


def janus_tower(v: Config) -> Tower:
    """SigLIP without a head; `mlp_ratio` gives the feed-forward's width, as in transformers' janus classes."""
    d, heads = v.size("hidden_size", default=1024), v.size("num_attention_heads", default=16)
    v.divides(heads, d, "num_attention_heads", "hidden_size")
    sizes = Sizes(d, mlp_width(v, d, 4.0), v.size("num_hidden_layers", default=24), heads)
    bias = {"bias": True if v.flag("attention_bias", default=True) else ["o"]}
    act = v.activation("hidden_act", default="gelu")
    out = v.size("projection_dim", default=2048)
    steps: list[Raw] = [{"linear": out}]
    for _ in range(v.size("depth", default=2) - 1):
        steps += [{"activation": act}, {"linear": out}]
    return Tower(d, stack(sizes, act, attention=bias, vision=square(v, 384, 16, class_token=False)), tuple(steps))


def janus_codec(q: Config) -> Tower:
    """Janus' image generator: the codec, the embedding of its codes with an MLP, and the head that predicts the next
    code."""
    codes, code = q.size("num_embeddings", default=16384), q.size("embed_dim", default=8)
    width = q.size("projection_dim", default=2048)
    embed_dim, extra_layers = q.size("image_token_embed_dim", default=2048), q.size("num_hidden_layers", default=2) - 1
    leaves = [leaf("codes", "table", codes, code), leaf("aligner", "linear", code, width)]
    leaves += [leaf("aligners", "linear", width, width, times=extra_layers)] * (extra_layers > 0)
    leaves += [leaf("head_first", "linear", embed_dim, width), leaf("head_last", "linear", width, codes)]
    return Tower(width, leaf_tower(width, [*_codec(q), *leaves]), why="it generates images")


def _codec(q: Config) -> Leaves:
    """A convolutional encoder and decoder with a codebook between them."""
    base, latent = q.size("base_channels", default=128), q.size("latent_channels", default=256)
    factors = q.items("channel_multiplier", of=size, length=None, default=[1, 1, 2, 2, 4]) or [1]
    number, code = q.size("num_res_blocks", default=2), q.size("embed_dim", default=8)
    doubled = 1 + q.flag("double_latent", default=False)
    widths = [base * factor for factor in factors]
    if base % 32:
        q.fault("base_channels", base, "a multiple of 32, the number of groups of norms")
    last = widths[-1]
    middle = [*_residual(last, last, 2), *_attention(last, 1)]
    leaves = [*_conv(q.size("in_channels", default=3), base), *middle, norm_leaf("encoded", last)]
    leaves += _conv(last, doubled * latent)
    for before, after in pairwise([base, *widths]):
        leaves += _level(before, after, number)
    leaves += _attention(last, number)
    for width in widths[:-1]:
        leaves += _conv(width, width)
    leaves += [*_conv(latent, last), *middle, norm_leaf("decoded", widths[0])]
    leaves += _conv(widths[0], q.size("out_channels", default=3))
    for before, after in pairwise([last, *reversed(widths)]):
        leaves += _level(before, after, number + 1)
    leaves += _attention(last, number + 1)
    for width in widths[1:]:
        leaves += _conv(width, width)
    leaves += [leaf("vectors", "table", q.size("num_embeddings", default=16384), code)]
    leaves += [leaf("coded", "linear", latent, code), leaf("uncoded", "linear", code, latent)]
    return [item | {"name": f"codec{i + 1}_{item['name']}"} for i, item in enumerate(leaves)]


def _conv(before: int, after: int, times: int = 1) -> Leaves:
    """A 3 × 3 convolution."""
    return [leaf("conv", "convolution", before, after, 9, 1, times=times)]


def _residual(before: int, after: int, times: int = 1) -> Leaves:
    short = [leaf("short", "linear", before, after, times=times)] * (before != after)
    first = [norm_leaf("first", before, times=times), *_conv(before, after, times)]
    return [*first, norm_leaf("second", after, times=times), *_conv(after, after, times), *short]


def _level(before: int, after: int, number: int) -> Leaves:
    return _residual(before, after) + (_residual(after, after, number - 1) if number > 1 else [])


def _attention(width: int, times: int) -> Leaves:
    return [norm_leaf("attention", width, times=times), *attention_leaves("", width, 1, width, times=times)]
