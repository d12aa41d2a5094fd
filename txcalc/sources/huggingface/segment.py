"""SAM (arXiv 2304.02643): a picture's encoder, and a decoder of masks that reads it, without a prompt."""

from __future__ import annotations

from typing import Any

from txcalc.sources.huggingface.config import Config, Raw, piece
from txcalc.sources.huggingface.leaves import Pieces, half, listed, places, preceded
from txcalc.sources.huggingface.reading import global_layers, grid_of


def sam(c: Config) -> Raw:
    """Layers that attend in square windows, a few to all, with biases by row and by column; then two convolutions."""
    c.head_of("none")
    c.only(True, "tie_word_embeddings", why="a prompt's positions are the picture's")
    v = half(c, "vision", "sam_vision_model")
    d = v.size("hidden_size", default=768)
    usual = int(d * v.real("mlp_ratio", default=4.0))
    raw, grid, out = pictures(v, v.size("mlp_dim", default=usual, null=usual))
    feats = v.size("num_pos_feats", default=128)
    v.only(d // 2, "scale", why="it is what the class derives")
    around, here = raw["around"], places((grid, grid))
    around.append(piece("grid_positions", "linear", 2, feats, bias=False, shared=True, kind="embedding", **here))
    _prompts(c, out, grid, feats, around)
    _masks(c, out, grid, around)
    c.note("a picture of its own size is read, whatever number of tokens is asked for, without a prompt")
    return raw


def pictures(v: Config, wide: int) -> tuple[Raw, int, int]:
    """The encoder of pictures, whose feed-forwards are so wide; patches along a side, and the channels it makes."""
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
    p = half(c, "prompt_encoder", "sam_prompt_encoder")
    d, found = p.size("hidden_size", default=256), grid_of(p, 1024, 16)[0]
    wide = p.size("mask_input_channels", default=16)
    for key, value, other, what in (
        ("hidden_size", d, out, "vision_config.output_channels"),
        ("hidden_size", d, 2 * feats, "twice vision_config.num_pos_feats"),
        ("image_size", found, grid, "as many patches as vision_config has"),
    ):
        if value != other:
            p.fault(key, value, f"{other:,}, {what}")
    p.only(found, "image_embedding_size", why="it is what the class derives")
    p.multiple("mask_input_channels", wide, 4)
    p.activation("hidden_act", default="gelu")
    quarter = max(1, wide // 4)
    convolutions = 4 * quarter + quarter + 4 * quarter * wide + wide + wide * d + d + 2 * quarter + 2 * wide
    points = (2 + p.size("num_point_embeddings", default=4)) * d
    around.append(piece("prompts", "held", convolutions + points, kind="embedding"))


def _masks(c: Config, out: int, grid: int, around: Pieces) -> None:
    """A token for each mask and one for their quality attend to each other and to the picture, and it to them."""
    m = half(c, "mask_decoder", "sam_mask_decoder")
    d, n = m.size("hidden_size", default=256), m.size("num_hidden_layers", default=2)
    heads, narrow = m.size("num_attention_heads", default=8), d // 2  # which rate the layers have is not asked
    last = d // m.size("attention_downsample_rate", default=2)
    masks, wide = m.size("num_multimask_outputs", default=3) + 1, m.size("mlp_dim", default=2048)
    if d != out or d % 8:
        m.fault("hidden_size", d, f"vision_config.output_channels = {out:,}, which 8 divides")
    for inner in (d, narrow, last):
        m.divides(heads, inner, "num_attention_heads", "hidden_size, and what attention_downsample_rate leaves of it")
    few, seen, once = {"at": [0, 1 + masks, 1]}, {"at": [0, grid**2, 1]}, {"at": [0, 1, 1]}
    made: Pieces = [piece("tokens", "held", (1 + masks) * d)]

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
    finer = {"at": [0, 4 * grid**2, 1]}
    made += [piece("finer", "linear", d, d // 4 * 4, bias=False, **seen), piece("finer_bias", "held", max(1, d // 4))]
    made += [piece("finer_norm", "layer_norm", max(1, d // 4), **finer)]
    made += [piece("finest", "linear", max(1, d // 4), max(1, d // 8 * 4), bias=False, **finer)]
    made += [piece("finest_bias", "held", max(1, d // 8))]
    made += [piece(f"mask{i + 1}", "linear", d, d, times=masks, **once) for i in range(2)]
    made += [piece("mask3", "linear", d, max(1, d // 8), times=masks, **once)]
    made += [piece("masks", "scores", 1, max(1, d // 8), keys=[0, 16 * grid**2, 1], at=[0, masks, 1])]
    inner, depth = m.size("iou_head_hidden_dim", default=256), m.size("iou_head_depth", default=3)
    made += [piece("quality", "linear", d, inner, **once)]
    made += [piece("qualities", "linear", inner, inner, times=depth - 2, **once)] if depth > 2 else []
    made += [piece("quality_scores", "linear", inner, masks, **once)]
    around += [one | {"kind": "head"} for one in made]
