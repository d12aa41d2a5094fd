"""Types of towers and projectors, and the keys that several of them read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from txcalc.sources import build
from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.leaf_list import leaf, leaf_stack
from txcalc.sources.spec import MAX_SIZE

Steps = tuple[Raw, ...]


class Tower(NamedTuple):
    """A tower: its output width, the description of its stack, and steps that belong to the tower.

    `why`: the reason why only its parameters are known, not its FLOPs. `first` is its number of class tokens, `dropped`
    that of padding positions.
    """

    width: int
    raw: Raw
    steps: Steps = ()
    why: str = ""
    first: int = 0
    dropped: int = 0


class Projection(NamedTuple):
    """A projector: its steps, the number of positions that it drops, and why its FLOPs are unknown, if they are."""

    steps: Steps
    dropped: int = 0
    why: str = ""


class Sizes(NamedTuple):
    """Sizes of a tower's layers."""

    width: int
    d_ff: int
    layers: int
    heads: int


def whisper_sizes(v: Config, *defaults: object) -> Sizes:
    """The sizes of a tower, by Whisper's or CLIP's key names; `defaults` are the class's."""
    size = Sizes(
        v.size("d_model", "hidden_size", default=defaults[0]),
        v.size("encoder_ffn_dim", "intermediate_size", default=defaults[1]),
        v.size("encoder_layers", "num_hidden_layers", default=defaults[2]),
        v.size("encoder_attention_heads", "num_attention_heads", default=defaults[3]),
    )
    v.divides(size.heads, size.width, "heads", "the width")
    return size


def leaf_tower(d: int, layer: list[Raw], n: int = 1, around: Sequence[Raw] = ()) -> Raw:
    """The description of a tower whose layers are these leaves."""
    raw: Raw = {"kind": "encoder", "d_model": d, "n_layers": n, "around": [*around], "head": {"form": "none"}}
    return leaf_stack(raw, {"layer": layer}, [])


def count_params(leaves: list[Raw]) -> int:
    """The number of parameters of leaves."""
    return build(leaf_tower(1, leaves), "leaves").params


def resampler_step(leaves: list[Raw], reads: int, makes: int, to: int, **keys: int) -> Raw:
    """A step that makes `makes` positions of width `to` from every `reads` positions."""
    return {"resample": leaves, "reads": reads, "makes": makes, "to": to, **keys}


def strided_convolution(grid: int, widths: Sequence[int], bias: bool) -> Raw:
    """3 × 3 convolutions with stride 2 over grid × grid positions; `widths` are those before and after each."""
    reads, leaves = grid**2, list[Raw]()
    for i, (c_in, c_out) in enumerate(pairwise(widths)):
        grid = -(-grid // 2)
        leaves.append(leaf(f"conv{i + 1}", "convolution", c_in, c_out, 9, 4, bias=bias, at=[0, grid**2, 1]))
    return resampler_step(leaves, reads, grid**2, widths[-1])


def gated_steps(width: int, to: int, bias: bool = True) -> Steps:
    """Steps of a gated feed-forward with one matrix for gate and up."""
    return {"linear": 2 * width, "bias": bias}, {"activation": "silu", "gated": True}, {"linear": to, "bias": bias}


# Keys.


def side_of(v: Config, key: str, default: int) -> int:
    """A side in pixels, one number or two equal ones."""
    value = v.data.get(key)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1] and type(value[0]) is int:
        v.ignore(key)
        return max(1, value[0])
    return int(v.size(key, default=default))


def mlp_width(v: Config, width: int, default: float) -> int:
    """The feed-forward's width by `mlp_ratio`."""
    d_ff = int(width * v.real("mlp_ratio", default=default))
    if not 1 <= d_ff <= MAX_SIZE:
        v.fault("mlp_ratio", v.data.get("mlp_ratio"), "a ratio that gives a width above 0")
        return width
    return d_ff


def patch_area(v: Config, key: str) -> int:
    """The product of two sides in patches, by default 2 × 2."""
    sides = v.data.get(key, [2, 2])
    v.ignore(key)
    if not isinstance(sides, list) or len(sides) != 2 or not all(type(n) is int and 0 < n < 100 for n in sides):
        v.fault(key, sides, "two whole numbers above 0")
        return 1
    return int(sides[0] * sides[1])


def grid_of(v: Config, image: int, patch: int) -> tuple[int, int, int]:
    """Patches per side, pixels per side of a patch, channels."""
    side, pixels = side_of(v, "image_size", image), side_of(v, "patch_size", patch)
    if pixels > side:
        v.fault("patch_size", pixels, f"at most image_size = {side}")
    return side // pixels, pixels, v.size("num_channels", default=3)


def global_layers(v: Config, n: int) -> set[int]:
    """SAM's layers with global attention."""
    indexes = v.data.get("global_attn_indexes", [2, 5, 8, 11])
    v.ignore("global_attn_indexes")
    if not isinstance(indexes, list) or not all(type(i) is int and 0 <= i < n for i in indexes):
        v.fault("global_attn_indexes", indexes, f"a list of layers below {n}")
        return set()
    return set(indexes)
