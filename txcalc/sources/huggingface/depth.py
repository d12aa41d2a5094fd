"""Depth or class of every pixel: a Vision Transformer, and convolutions that join its layers' outputs at several
resolutions (DPT, arXiv 2103.13413; Depth Anything, arXiv 2401.10891).
"""

from __future__ import annotations

from collections.abc import Mapping

from txcalc.sources.huggingface.config import Config, Raw, piece
from txcalc.sources.huggingface.convolved import Network, Sides, outputs
from txcalc.sources.huggingface.vision import dinov2, vit
from txcalc.sources.spec import count, real, size


def dpt(c: Config) -> Raw:
    """Each layer that is joined also reads the class token (`readout_type`)."""
    form = c.head_of("none", "depth", "pixels")
    c.only(False, "is_hybrid", why="a Vision Transformer without a convolutional network before it is read")
    c.ignore("backbone", "backbone_featmap_shape", "neck_ignore_stages", "use_timm_backbone", "use_pretrained_backbone")
    c.ignore("backbone_kwargs", "semantic_loss_ignore_index", "auxiliary_loss_weight")
    if c.data.get("backbone_config") is not None:
        if form != "depth":
            c.fault("backbone_config", c.data["backbone_config"], "null where no depth is estimated")
        c.ignore(
            "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size", "patch_size"
        )
        c.ignore("num_channels", "qkv_bias", "backbone_out_indices", "pooler_output_size", "pooler_act")
        (raw, joined), act = _dinov2(c, {}), c.activation("hidden_act", default="gelu")
    else:
        raw = vit(c, "none", 384) | {"head": {"form": "none", "pooler": form == "none"}}
        act, n = raw["feed_forward"]["activation"], raw["n_layers"]
        c.only(raw["d_model"], "pooler_output_size", why="hidden_size")
        c.only("tanh", "pooler_act", why="a pooler of tanh is read")
        given = c.items("backbone_out_indices", of=count, length=None, default=[2, 5, 8, 11])
        joined = len({*given} & {*range(n)})
        if not joined and form != "none":
            c.fault("backbone_out_indices", given, f"a list of layers, from 0 to {n - 1}")
    c.ignore("backbone_config")
    if form == "none":
        c.ignore(*_NECK, "readout_type", "add_projection", "use_auxiliary_head", "use_batch_norm_in_fusion_residual")
        c.ignore("use_bias_in_fusion_residual", "head_in_index")
        return raw
    readout = c.text("readout_type", default="project")
    if readout not in ("ignore", "add", "project"):
        c.fault("readout_type", readout, "'ignore', 'add' or 'project'")
    norm = c.flag("use_batch_norm_in_fusion_residual", default=False)
    bias = c.flag("use_bias_in_fusion_residual", default=not norm, null=not norm)
    net = _reassembled(c, raw, joined, [96, 192, 384, 768], readout == "project", act)
    d, made = _fused(c, net, c.size("fusion_hidden_size", default=256), bias, norm, False)
    net.outside("head")
    net.sides, net.channels = made, d
    if form == "pixels":
        for name in ("head", *(["auxiliary"] if c.flag("use_auxiliary_head", default=True) else [])):
            net.sides, net.channels = made if name == "head" else net.pixels, d
            net.conv(f"{name}_inner", d, norm="batch", act="relu")
            net.conv(name, c.labels(), 1, bias=True)
        c.ignore("add_projection")
    else:
        c.ignore("use_auxiliary_head")
        if c.flag("add_projection", default=False):
            if d != 256:
                c.fault("add_projection", True, "false where fusion_hidden_size is not 256")
            net.conv("projection", 256, bias=True, act="relu")
        net.conv("head1", max(1, d // 2), bias=True)
        net.sides = 2 * net.sides[0], 2 * net.sides[1]
        net.conv("head2", 32, bias=True, act="relu")
        net.conv("head3", 1, 1, bias=True, act="relu")
    return raw | {"around": [*raw.get("around", ()), *net.around]}


def depth_anything(c: Config) -> Raw:
    """DINOv2 without the class token's part, and a picture as large as the one that is read."""
    c.head_of("depth")
    raw, joined = _dinov2(c, _SMALL)
    c.equal("patch_size", raw["vision"]["patch"], 14, "backbone_config's")
    c.equal("reassemble_hidden_size", raw["d_model"], 384, "the width of backbone_config")
    form = c.text("depth_estimation_type", default="relative")
    if form not in ("relative", "metric"):
        c.fault("depth_estimation_type", form, "'relative' or 'metric'")
    c.ignore("max_depth")
    net = _reassembled(c, raw, joined, [48, 96, 192, 384], False, "")
    d, net.sides = _fused(c, net, c.size("fusion_hidden_size", default=64), True, False, True)
    net.outside("head")
    net.channels, side = d, raw["vision"]["image"]
    net.conv("head1", max(1, d // 2), bias=True)
    net.sides = side, side
    net.conv("head2", c.size("head_hidden_size", default=32), bias=True, act="relu")
    net.conv("head3", 1, 1, bias=True, act="relu" if form == "relative" else "sigmoid")
    return raw | {"around": [*raw.get("around", ()), *net.around]}


_NECK = ("reassemble_factors", "neck_hidden_sizes", "fusion_hidden_size")
_SMALL: Raw = {"model_type": "dinov2", "image_size": 518, "hidden_size": 384, "num_attention_heads": 6,
               "num_hidden_layers": 12, "out_indices": [9, 10, 11, 12], "reshape_hidden_states": False}  # fmt: skip


def _dinov2(c: Config, usual: Raw) -> tuple[Raw, int]:
    """DINOv2, of which some layers' states are given, each normed; and how many."""
    table = c.data.get("backbone_config")
    c.ignore("backbone_config", "image_size")
    table = {**table} if isinstance(table, Mapping) else usual
    inner = Config({**table, "architectures": ["Dinov2Model"]}, "dinov2", "backbone_config.", c, partial=True)
    if table.get("model_type") != "dinov2":
        inner.fault("model_type", table.get("model_type"), "'dinov2'", "other backbones are not read")
    raw = dinov2(inner)
    if c.data.get("image_size", raw["vision"]["image"]) != raw["vision"]["image"] and c.model_type != "dpt":
        c.fault("image_size", c.data["image_size"], f"{raw['vision']['image']}, as large as backbone_config's")
    elif c.data.get("image_size", raw["vision"]["image"]) != raw["vision"]["image"]:
        c.note(f"a picture of backbone_config's image_size, {raw['vision']['image']}, is read, not of the file's own")
    if inner.flag("reshape_hidden_states", default=True):
        inner.fault("reshape_hidden_states", True, "false", "the class token must stand among what is given")
    several = len(outputs(inner, [((1, 1), raw["d_model"])] * (raw["n_layers"] + 1), [raw["n_layers"]]))
    if inner.flag("apply_layernorm", default=True):
        here = {"at": [0, 1 + (raw["vision"]["image"] // raw["vision"]["patch"]) ** 2, 1]}
        again = [piece("outputs_norm", "norm_again", raw["d_model"], runs=several - 1, kind="norm", **here)]
        raw["around"] = again * (several > 1)
    else:
        raw["norm"] |= {"final": False}
        raw["around"] = [piece("unused_norm", "held", 2 * raw["d_model"], kind="norm")]
    return raw, several


def _reassembled(c: Config, raw: Raw, joined: int, usual: list[int], project: bool, act: str) -> Network:
    """Pictures of several sizes: what layers give of each patch, projected, and enlarged or made smaller."""
    widths = c.items("neck_hidden_sizes", of=size, length=None, default=usual)
    factors = c.items("reassemble_factors", of=real, length=len(widths), default=[4, 2, 1, 0.5])
    if not widths or (joined and joined != len(widths)) or len(factors) != len(widths):
        c.fault("neck_hidden_sizes", widths, f"a list of {joined or 4} numbers, one for each layer that is joined")
        widths, factors = usual, [4, 2, 1, 0.5]
    if not all(factor == int(factor) if factor >= 1 else factor > 0.001 for factor in factors) or max(factors) > 1024:
        c.fault("reassemble_factors", factors, "whole numbers, or fractions of 1 above 0.001")
        factors = [1] * len(widths)
    d, side = raw["d_model"], raw["vision"]["image"] // raw["vision"]["patch"]
    net = Network(c, (side, side), d, "", "")
    maps = []
    for i, (width, factor) in enumerate(zip(widths, factors, strict=True)):
        net.sides, net.channels, name = (side, side), d, f"reassemble{i + 1}"
        if project:
            net.add(piece(f"{name}_readout", "linear", 2 * d, d), piece(f"{name}_activation", act, d))
        net.conv(name, width, 1, bias=True)
        if factor > 1:
            more = int(factor)
            net.add(piece(f"{name}_larger", "linear", width, width * more * more, bias=False))
            net.add(piece(f"{name}_larger_bias", "held", width))
            net.sides = side * more, side * more
        elif factor < 1:
            net.conv(f"{name}_smaller", width, 3, int(1 / factor), pad=1, bias=True)
        maps.append((net.sides, width))
    net.maps = maps
    return net


def _fused(c: Config, net: Network, d: int, bias: bool, norm: bool, fitting: bool) -> tuple[int, Sides]:
    """Each picture is added to the one made of the smaller ones, after two convolutions, and two more follow; it is
    then as large as the next (`fitting`) or twice as large. Gives the width, and the sides of what the head reads."""
    last = c.data.get("head_in_index", -1)
    c.ignore("head_in_index")
    maps = net.maps
    if type(last) is not int or not -len(maps) <= last < len(maps):
        c.fault("head_in_index", last, f"a number below {len(maps)}")
        last = -1
    if d < 2:
        c.fault("fusion_hidden_size", d, "2 or more, of which the head has half")
    for i, (net.sides, net.channels) in enumerate(maps):
        net.conv(f"neck{i + 1}", d)
    made, now = [], maps[-1][0]
    for i in range(len(maps)):
        for j, name in enumerate(("added", "sum")):
            net.sides, net.channels, net.runs = now, d, min(1, i + j)
            for k in (1, 2):
                net.add(piece(f"fusion{i + 1}_{name}_relu{k}", "relu", d))
                net.conv(f"fusion{i + 1}_{name}{k}", d, bias=bias, norm="batch" if norm else "")
            net.add(piece(f"fusion{i + 1}_{name}_residual", "sum", d))
        more = maps[-2 - i][0] if fitting and i < len(maps) - 1 else (2 * now[0], 2 * now[1])
        net.sides, net.channels = more, d
        net.conv(f"fusion{i + 1}", d, 1, bias=True)
        now = more
        made.append(now)
    net.pixels = made[-1]
    return d, made[last]
