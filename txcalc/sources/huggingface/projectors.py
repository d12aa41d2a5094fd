"""Projectors of multimodal models: the whole's config, the tower's, the tower and the language model make the steps
between the two. Most of them are steps in a row of `tower_registry.json` (`by_row`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.tower_types import (
    Projection,
    Steps,
    Tower,
    gated_steps,
    patch_area,
    strided_convolution,
)
from txcalc.sources.huggingface.towers import GELU, shuffled
from txcalc.sources.spec import MAX_SIZE


def by_row(
    c: Config, v: Config, tower: Tower, raw: Raw, *, steps: Sequence[Raw | str], drops_first: bool = False
) -> Projection:
    """The steps of a row: "gelu", or a table whose values are "text" (the language model's width), "tower" (the
    tower's), or a key, its default and the power to which it is taken; `tower.` begins keys of the tower's config.
    With `drops_first` positions that stand for all of a picture are not handed on."""

    widths = {"text": raw["d_model"], "tower": tower.width}

    def value(given: Any) -> Any:
        if not isinstance(given, list):
            return widths.get(given, given)
        key, default, *power = given
        table = v if key.startswith("tower.") else c
        key = key.removeprefix("tower.")
        if isinstance(default, bool):
            return table.flag(key, default=default)
        return table.size(key, default=default) ** (power[0] if power else 1)

    tables = (GELU if isinstance(step, str) else {name: value(item) for name, item in step.items()} for step in steps)
    return Projection(tuple(tables), tower.first if drops_first else 0)


def _layers_read(c: Config) -> int:
    """How many of the tower's layers are put side by side."""
    layers = c.data.get("vision_feature_layer", -1)
    c.ignore("vision_feature_layer")
    if type(layers) is int:
        return 1
    if not isinstance(layers, list) or not layers:
        c.fault("vision_feature_layer", layers, "a layer, or a list of layers")
        return 1
    return len(layers)


def _dropped(c: Config, default: str) -> int:
    """The first position, unless all are handed on."""
    c.ignore("vision_feature_select_strategy")
    return 1 if c.data.get("vision_feature_select_strategy", default) == "default" else 0


def _two(width: int, bias: bool = True) -> Steps:
    """Two matrices to one width."""
    return {"linear": width, "bias": bias}, GELU, {"linear": width, "bias": bias}


def llava(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Two matrices."""
    wide: Raw = {"merge": 1, "to": tower.width * _layers_read(c)}
    bias = c.flag("multimodal_projector_bias", default=True)
    return Projection((wide, *_two(raw["d_model"], bias)), _dropped(c, "default"))


def llava_next(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """And a vector that stands for the end of a row."""
    steps, dropped, _ = llava(c, v, tower, raw)
    return Projection((*steps, {"vectors": 1}), dropped)


def llava_onevision(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    steps, _, _ = llava_next(c, v, tower, raw)
    return Projection(steps, _dropped(c, "full"))


def vipllava(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A norm over five layers' features before the two matrices."""
    layers = c.data.get("vision_feature_layers", c.data.get("vision_feature_layer", [-2, -5, -8, -11, 6]))
    c.ignore("vision_feature_layers", "vision_feature_layer")
    wide = tower.width * (len(layers) if isinstance(layers, list) else 1)
    return Projection(({"merge": 1, "to": wide}, {"norm": "layer"}, *_two(raw["d_model"])), 1)


def paligemma(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    v.ignore("projection_dim")  # which the class writes into whatever tower it has
    return Projection(({"linear": c.size("projection_dim", default=2048)},))


def perception_lm(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Two matrices, and the mean of neighbours after them."""
    ratio, vision = c.size("projector_pooling_ratio", default=1), tower.raw["vision"]
    c.divides(ratio, vision["image"] // vision["patch"], "projector_pooling_ratio", "a picture's rows")
    if (dropped := c.flag("vision_use_cls_token", default=True)) != vision["class_token"]:
        c.fault("vision_use_cls_token", dropped, "whether its tower has one")
    pool: Steps = ({"pool": ratio**2},) if ratio > 1 else ()
    return Projection((*_two(raw["d_model"]), *pool), tower.first)


def gemma3(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Means of squares of patches, one for each of `mm_tokens_per_image`; a norm, a matrix."""
    tokens = c.size("mm_tokens_per_image", default=256)
    vision = tower.raw["vision"]
    side = vision["image"] // vision["patch"]
    kernel = max(1, side // max(1, isqrt(tokens)))
    steps: Steps = ({"pool": kernel**2}, {"norm": "rms"}, {"linear": raw["d_model"], "bias": False})
    return Projection(steps, side**2 + tower.first - (side // kernel * kernel) ** 2)


def mistral3(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A norm, patches merged, two matrices."""
    has_keys = c.has_key("multimodal_projector_bias")  # LightOnOCR's has not
    merge = c.size("spatial_merge_size", default=2) ** 2
    bias = has_keys and c.flag("multimodal_projector_bias", default=False)
    layers = _layers_read(c) if has_keys else 1
    merged: Steps = ({"merge": merge}, {"linear": tower.width, "bias": False}, {"merge": 1, "to": tower.width * layers})
    return Projection(({"norm": "rms"}, *merged, *_two(raw["d_model"], bias)))


def internvl(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    steps: Steps = ({"merge": shuffled(c, "downsample_ratio")}, {"norm": "layer"}, *_two(raw["d_model"]))
    return Projection(steps, _dropped(c, "default"))


def lfm2_vl(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    bias, wide = c.flag("projector_bias", default=True), c.size("projector_hidden_size", default=2560)
    norm: Steps = ({"norm": "layer"},) if c.flag("projector_use_layernorm", default=True) else ()
    then: Steps = ({"linear": wide, "bias": bias}, GELU, {"linear": raw["d_model"], "bias": bias})
    return Projection(({"merge": c.size("downsample_factor", default=2) ** 2}, *norm, *then))


def merging(tower: Tower, merged: int, raw: Raw) -> Projection:
    """A norm, and two matrices on patches side by side."""
    steps: Steps = ({"norm": "layer"}, {"merge": merged}, {"linear": tower.width * merged}, GELU)
    return Projection((*steps, {"linear": raw["d_model"]}))


def paddleocr(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    return merging(tower, v.size("spatial_merge_size", default=2) ** 2, raw)


def ovis2(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A table of visual words."""
    for key, name, default in (("hidden_size", "d_model", 1536), ("vocab_size", "vocab_size", 151643)):
        c.ignore(key)  # the head's sizes, whatever the language model's are
        if c.data.get(key, default) != raw[name]:
            c.fault(key, c.data.get(key, default), f"text_config's {raw[name]:,}")
    return Projection(({"linear": raw["d_model"], "bias": False},))


def none(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """The tower merges its patches itself, to the language model's width."""
    if tower.width != raw["d_model"]:
        v.fault("out_hidden_size", tower.width, f"the language model's width {raw['d_model']:,}")
    return Projection(())


def _aligned(c: Config, inner: int, raw: Raw) -> Steps:
    """A gated layer between two matrices; what is odd is no half of a width."""
    c.multiple("alignment_intermediate_size", inner, 2)
    return gated_steps(inner // 2, raw["d_model"])


def cohere2(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    merge: Raw = {"merge": c.size("downsample_factor", default=2) ** 2}
    return Projection((merge, *_aligned(c, c.size("alignment_intermediate_size", default=36864), raw)))


def aya(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """The same after a norm."""
    inner = c.size("alignment_intermediate_size", default=raw["d_model"])
    merge: Raw = {"merge": c.size("downsample_factor", default=2) ** 2}
    return Projection((merge, {"norm": "layer"}, *_aligned(c, inner, raw)), _dropped(c, "full"))


def kimi(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    merged = patch_area(v, "merge_kernel_size")
    c.require_size("projection_hidden_size", tower.width, 1152, "the tower's width")
    return merging(tower, merged, raw)


def got_ocr2(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Two convolutions of 3 × 3, to twice the channels and to the language model's width, and a matrix."""
    n, d = tower.width, raw["d_model"]
    return Projection((strided_convolution(isqrt(tower.raw["length"]), [n, 2 * n, d], False), {"linear": d}))


def voxtral(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Four frames side by side, two matrices without biases."""
    return Projection((_as_wide_as(v, tower, v.size("intermediate_size", default=5120)), *_two(raw["d_model"], False)))


def _as_wide_as(v: Config, tower: Tower, wide: int) -> Raw:
    """As many frames side by side as make a width; where none do, no number of them makes a token."""
    return {"merge": MAX_SIZE if wide % tower.width else wide // tower.width, "to": wide}


def glmasr(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """As many frames side by side as make the tower's feed-forward width, and two matrices."""
    frames, d = _as_wide_as(v, tower, v.size("intermediate_size", default=5120)), raw["d_model"]
    return Projection((frames, {"linear": 2 * d}, GELU, {"linear": d}))


def ernie(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """Two matrices on patches side by side, two on what two frames make of them (a picture is both), one to the width,
    and norms after each."""
    merged, frames = v.size("spatial_merge_size", default=2) ** 2, v.size("temporal_merge_size", default=2)
    wide = tower.width * merged
    joined: Raw = {"merge": 1, "to": frames * wide}
    over: Steps = ({"merge": merged}, *_two(wide), {"norm": "layer"}, joined, *_two(wide), {"norm": "layer"})
    return Projection((*over, {"linear": raw["d_model"]}, {"norm": "rms"}))


def muse(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    c.require_size("out_hidden_size", tower.width, 6144, "the width of merged patches")
    inner = c.size("projector_hidden_size", default=4096)
    return Projection((*_two(inner, False), GELU, {"linear": raw["d_model"], "bias": False}))
