"""Detectors with deformable attention (arXiv 2010.04159), whose queries sample a few positions of each feature map:
RT-DETR (arXiv 2304.08069, 2407.17140) and Deformable DETR.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from txcalc.sources.huggingface.config import Config, Raw, piece
from txcalc.sources.huggingface.convolved import Maps, Network, outputs, picture, residual
from txcalc.sources.huggingface.detection import LOSSES, backbone, told
from txcalc.sources.huggingface.leaves import Pieces, attends, fed, normed
from txcalc.sources.spec import count, size

SAMPLED = "what is sampled between positions and weighed is not among the FLOPs"


def sampled(name: str, d: int, heads: int, places: int, seen: list[int], **here: Any) -> Pieces:
    """Values of all positions that are `seen`, what says where each head looks (`places` of them) and how much that
    weighs, and O."""
    made = [piece(f"{name}v", "linear", d, d, at=seen)]
    made += [piece(f"{name}offsets", "linear", d, 2 * heads * places, **here)]
    made += [piece(f"{name}weights", "linear", d, heads * places, **here), piece(f"{name}o", "linear", d, d, **here)]
    made.append(piece(f"{name}attention_sum", "sum", d, **here))
    return [one | {"kind": "attention"} for one in made]


def rt_detr(c: Config) -> Raw:
    """A residual network; layers over its smallest pictures, which convolutions join with the larger ones, up and down;
    of all their positions those that look most like objects are the queries of a decoder."""
    v2 = c.model_type == "rt_detr_v2"
    c.ignore(
        *_TRAINING,
        "batch_norm_eps",
        "eval_size",
        "positional_encoding_temperature",
        "normalize_before",
        "is_encoder_decoder",
    )
    c.ignore("with_box_refine", "disable_custom_kernels", "feat_strides", "anchor_image_size", "hidden_size")
    c.ignore("decoder_offset_scale", "decoder_method", "backbone", "backbone_kwargs", "use_pretrained_backbone")
    c.only(False, "use_timm_backbone", why="a backbone_config of rt_detr_resnet is read")
    c.only(True, "tie_word_embeddings", why="heads of the decoder's layers are those of the class") if v2 else None
    inner = c.nested("backbone_config", usual={"model_type": "rt_detr_resnet", "out_indices": [2, 3, 4]})
    net = Network(c, picture(c, (640, 640), own=False), inner.size("num_channels", default=3))
    net.norm = "" if c.flag("freeze_backbone_batch_norms", default=True) else "batch"
    if inner.model_type != "rt_detr_resnet":
        inner.fault("model_type", inner.model_type, "'rt_detr_resnet'", "other backbones are not read")
    made = residual(inner, net)
    maps = outputs(inner, made, [len(made) - 1])
    d, h = c.size("d_model", default=256), c.size("encoder_hidden_dim", default=256)
    act = c.activation("activation_function", default="silu")
    given = c.items("encoder_in_channels", of=size, length=None, default=[512, 1024, 2048])
    if given != [width for _, width in maps]:
        c.fault("encoder_in_channels", given, f"{[width for _, width in maps]}, what backbone_config makes")
    net.norm, net.act = "batch", act
    net.outside("embedding")
    for i, (net.sides, net.channels) in enumerate(maps):
        net.conv(f"projection{i + 1}", h, 1, act="")
    maps = [(sides, h) for sides, _ in maps]
    _encoder(c, net, h, maps)
    _joined(c, net, h, maps)
    levels = c.size("num_feature_levels", default=3)
    given = c.items("decoder_in_channels", of=size, length=None, default=[256, 256, 256])
    if given != [h] * len(maps) or levels < len(maps) or (levels > len(maps) + 1 and d != h):
        c.fault(
            "decoder_in_channels", given, f"{[h] * len(maps)}: encoder_hidden_dim, at most num_feature_levels times"
        )
    c.only(levels, "decoder_n_levels", why="num_feature_levels, of which it looks at all") if v2 else None
    positions = 0
    net.outside("embedding")
    for i in range(min(levels, 64)):
        net.sides, net.channels = maps[min(i, len(maps) - 1)]
        net.conv(f"level{i + 1}", d, *((1, 1) if i < len(maps) else (3, 2)), act="")
        positions += net.sides[0] * net.sides[1]
    return _chosen(c, net, d, levels, [0, positions, 1])


rt_detr_v2 = rt_detr

_TRAINING = (
    "label_noise_ratio", "box_noise_scale", "matcher_alpha", "matcher_gamma", "matcher_class_cost", "matcher_bbox_cost",
    "matcher_giou_cost", "use_focal_loss", "focal_loss_alpha", "focal_loss_gamma", "weight_loss_vfl",
    "weight_loss_bbox", "weight_loss_giou", "eos_coefficient", "auxiliary_loss",
)  # fmt: skip


def _encoder(c: Config, net: Network, d: int, maps: Maps) -> None:
    """Layers in which all positions of one picture attend to each other, for some of the pictures."""
    chosen = c.items("encode_proj_layers", of=count, length=None, default=[2])
    n, wide = c.size("encoder_layers", default=1), c.size("encoder_ffn_dim", default=1024)
    heads = c.size("encoder_attention_heads", "num_attention_heads", default=8)
    act = c.activation("encoder_activation_function", default="gelu")
    c.divides(heads, d, "encoder_attention_heads", "encoder_hidden_dim")
    if d % 4:
        c.fault("encoder_hidden_dim", d, "a multiple of 4")
    if max(chosen, default=0) >= len(maps) or len({*chosen}) < len(chosen):
        c.fault("encode_proj_layers", chosen, f"numbers below {len(maps)}, the pictures of backbone_config, each once")
        return
    for which in chosen:
        net.layer(f"encoder{which + 1}", n)
        net.sides, net.channels = maps[which]
        here = net.here
        net.leaves += [*attends("", d, heads, max(1, d // heads), **here), normed("attention", d, **here)]
        net.leaves += [*fed("feed_forward", d, wide, act, norm="", **here), normed("feed_forward", d, **here)]


def _joined(c: Config, net: Network, d: int, maps: Maps) -> None:
    """What convolutions make of a picture and the next smaller one, from the smallest up, and then down again."""
    wide = int(d * c.ratio("hidden_expansion", 1.0, d))
    if any(large != (2 * small[0], 2 * small[1]) for (large, _), (small, _) in pairwise(maps)):
        c.fault("image_size", list(net.pixels), "sides of which each picture's are twice those of the next")
    net.outside()

    def fused(name: str) -> None:
        net.channels = 2 * d
        net.conv(f"{name}_first", wide, 1)
        for j in range(3):
            net.conv(f"{name}_block{j + 1}_wide", wide, 3, act="")
            net.conv(f"{name}_block{j + 1}_narrow", wide, 1, act="")
            net.add(
                piece(f"{name}_block{j + 1}_sum", "sum", wide), piece(f"{name}_block{j + 1}_activation", net.act, wide)
            )
        net.channels = 2 * d
        net.conv(f"{name}_second", wide, 1)
        net.add(piece(f"{name}_sum", "sum", wide))
        if wide != d:
            net.conv(f"{name}_third", d, 1)
        net.channels = d

    for i in reversed(range(1, len(maps))):
        net.sides, net.channels = maps[i]
        net.conv(f"up{i}", d, 1)
        net.sides = maps[i - 1][0]
        fused(f"up{i}")
    for i in range(1, len(maps)):
        net.sides, net.channels = maps[i - 1]
        net.conv(f"down{i}", d, 3, 2)
        fused(f"down{i}")


def _chosen(c: Config, net: Network, d: int, levels: int, seen: list[int]) -> Raw:
    """Every position is scored and has a box; the best are the queries of the decoder's layers, each of which corrects
    the boxes."""
    n, queries = c.size("decoder_layers", default=6), c.size("num_queries", default=300)
    heads, points = c.size("decoder_attention_heads", default=8), c.size("decoder_n_points", default=4)
    wide, act = c.size("decoder_ffn_dim", default=1024), c.activation("decoder_activation_function", default="relu")
    labels, form = c.labels(), c.head_of("none", "boxes")
    c.divides(heads, d, "decoder_attention_heads", "d_model")
    if queries > seen[1]:
        c.fault("num_queries", queries, f"at most {seen[1]:,}, the positions of all pictures")
    asked: Raw = {"at": [0, queries, 1]}
    net.outside("head")
    if c.count("num_denoising", default=100):
        net.around.append(piece("noised_classes", "held", (labels + 1) * d, kind="embedding"))
    if c.flag("learn_initial_query", default=False):
        c.fault("learn_initial_query", True, "false", "transformers runs no other")
    net.around += [piece("found", "linear", d, d, kind="head", at=seen), normed("found", d, at=seen)]
    net.around += [piece("found_classes", "linear", d, labels, kind="head", at=seen)]
    net.around += told("found_boxes", [d, d, d, 4], "relu", at=seen)
    net.around += [one | {"runs": n} for one in told("places", [4, 2 * d, d], "relu", **asked)]
    if form == "boxes":
        net.around.append(piece("classes", "linear", d, labels, kind="head", times=n, **asked))
        net.around += [one | {"times": n} for one in told("boxes", [d, d, d, 4], "relu", **asked)]
    net.layer("decoder", n)
    net.leaves += [*attends("", d, heads, max(1, d // heads), **asked), normed("attention", d, **asked)]
    net.leaves += [*sampled("reading_", d, heads, levels * points, seen, **asked), normed("reading", d, **asked)]
    net.leaves += [*fed("feed_forward", d, wide, act, norm="", **asked), normed("feed_forward", d, **asked)]
    c.note(SAMPLED)
    return net.described(d)


def deformable_detr(c: Config) -> Raw:
    """All positions of several pictures sample from each other, and queries from them; the queries are learned, or what
    looks most like objects (`two_stage`)."""
    c.ignore(*LOSSES, "use_pretrained_backbone", "max_position_embeddings", "num_hidden_layers", "scale_embedding")
    c.ignore("focal_alpha", "is_encoder_decoder", "return_intermediate", "disable_custom_kernels", "encoder_layerdrop")
    c.ignore("decoder_layerdrop", "init_std")
    c.only(True, "tie_word_embeddings", why="one head for all layers is read where the class ties them")
    d, act = c.size("d_model", "hidden_size", default=256), c.activation("activation_function", default="relu")
    two, refined = c.flag("two_stage", default=False), c.flag("with_box_refine", default=False)
    net = Network(c, picture(c, (800, 1066), own=False), c.size("num_channels", default=3), norm="")
    if d % 32:
        c.fault("d_model", d, "a multiple of 32, the groups of its norms")
    levels, positions = _levels(c, net, d)
    seen, queries = [0, positions, 1], c.size("num_queries", default=300)
    if two:
        queries = c.size("two_stage_num_proposals", default=300)
        if not refined or queries > positions:
            c.fault("two_stage", True, f"with_box_refine, and at most {positions:,} proposals")
    c.ignore("two_stage_num_proposals")
    asked: Raw = {"at": [0, queries, 1]}
    n = {half: c.size(f"{half}_layers", default=6) for half in ("encoder", "decoder")}
    for half, here in (("encoder", {"at": seen}), ("decoder", asked)):
        heads = c.size(f"{half}_attention_heads", *(("num_attention_heads",) if half == "encoder" else ()), default=8)
        wide, points = c.size(f"{half}_ffn_dim", default=1024), c.size(f"{half}_n_points", default=4)
        c.divides(heads, d, f"{half}_attention_heads", "d_model")
        net.layer(half, n[half])
        if half == "decoder":
            net.leaves += [*attends("", d, heads, max(1, d // heads), **here), normed("attention", d, **here)]
        net.leaves += [*sampled("reading_", d, heads, levels * points, seen, **here), normed("reading", d, **here)]
        net.leaves += [*fed("feed_forward", d, wide, act, norm="", **here), normed("feed_forward", d, **here)]
    form, boxes = c.head_of("none", "boxes"), [d, d, d, 4]
    if two and form != "boxes":
        c.fault("two_stage", True, "false where no class scores positions")
    every: Raw = {"at": seen}
    if two:
        net.around += [piece("found", "linear", d, d, kind="head", **every), normed("found", d, **every)]
        net.around += [piece("found_classes", "linear", d, c.labels(), kind="head", **every)]
        net.around += told("found_boxes", boxes, "relu", **every)
        net.around += [piece("places", "linear", 2 * d, 2 * d, kind="head", **asked), normed("places", 2 * d, **asked)]
    else:
        net.around.append(piece("queries", "table", queries, 2 * d, bias=True, kind="embedding", **asked))
        net.around.append(piece("places", "linear", d, 2, kind="head", **asked))
    if form == "boxes":
        several, again = {"times": n["decoder"]}, {"runs": n["decoder"]}
        net.around.append(
            piece("classes", "linear", d, c.labels(), kind="head", **(several if two else again), **asked)
        )
        more = several | {"runs": 2} if refined else again
        net.around += [one | more for one in told("boxes", boxes, "relu", **asked)]
    elif refined:
        c.note("with_box_refine changes nothing where no class corrects boxes")
    c.note(SAMPLED)
    return net.described(d)


def _levels(c: Config, net: Network, d: int) -> tuple[int, int]:
    """The pictures of which a position is `d` wide: those of the backbone, and smaller ones of its last. Gives how many
    there are, and all their positions."""
    levels = c.size("num_feature_levels", default=4)
    maps = backbone(c, net, several=levels > 1)
    if not len(maps) <= levels <= 64:
        c.fault("num_feature_levels", levels, f"from {len(maps)}, the pictures of its backbone, to 64")
        levels = len(maps)
    form, positions = c.text("position_embedding_type", default="sine"), 0
    if form not in ("sine", "learned"):
        c.fault("position_embedding_type", form, "'sine' or 'learned'")
    net.outside("embedding")
    for i in range(levels):
        if i <= len(maps):
            net.sides, net.channels = maps[min(i, len(maps) - 1)]
        net.conv(f"level{i + 1}", d, *((1, 1) if i < len(maps) else (3, 2)), bias=True, norm="layer", act="")
        positions += net.sides[0] * net.sides[1]
        if form == "learned" and max(net.sides) > 50:
            c.fault("position_embedding_type", form, '"sine" where a side has more than 50 positions')
    if form == "learned":
        net.around.append(piece("rows", "held", 50 * max(1, d // 2), times=2, kind="embedding"))
    net.around.append(piece("levels", "held", levels * d, kind="embedding"))
    return levels, positions
