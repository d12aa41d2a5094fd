"""What a tower and a projector are described as, and what several of them read of a config."""

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
    """A tower: the width of what it hands on, the description of its stack, and the steps of a projector that are its
    own. `why`: what keeps its FLOPs from being known; then its parameters alone are. `first` positions stand for all of
    a picture, and `dropped` ones for nothing.
    """

    width: int
    raw: Raw
    steps: Steps = ()
    why: str = ""
    first: int = 0
    dropped: int = 0


class Projection(NamedTuple):
    """A projector: its steps, how many positions of the tower it drops, and why no FLOPs are known, as a tower's."""

    steps: Steps
    dropped: int = 0
    why: str = ""


class Sizes(NamedTuple):
    """Of a tower's layers."""

    width: int
    d_ff: int
    layers: int
    heads: int


def whisper_sizes(v: Config, *defaults: object) -> Sizes:
    """By Whisper's names, or the usual ones."""
    size = Sizes(
        v.size("d_model", "hidden_size", default=defaults[0]),
        v.size("encoder_ffn_dim", "intermediate_size", default=defaults[1]),
        v.size("encoder_layers", "num_hidden_layers", default=defaults[2]),
        v.size("encoder_attention_heads", "num_attention_heads", default=defaults[3]),
    )
    v.divides(size.heads, size.width, "heads", "the width")
    return size


def leaf_tower(d: int, layer: list[Raw], n: int = 1, around: Sequence[Raw] = ()) -> Raw:
    """A stack whose layers are these leaves."""
    raw: Raw = {"kind": "encoder", "d_model": d, "n_layers": n, "around": [*around], "head": {"form": "none"}}
    return leaf_stack(raw, {"layer": layer}, [])


def count_params(leaves: list[Raw]) -> int:
    """Parameters of leaves that nothing runs here."""
    return build(leaf_tower(1, leaves), "leaves").params


def resampler_step(leaves: list[Raw], reads: int, makes: int, to: int, **keys: int) -> Raw:
    """Of every `reads` positions `makes`, as wide as `to`."""
    return {"resample": leaves, "reads": reads, "makes": makes, "to": to, **keys}


def strided_convolution(grid: int, widths: Sequence[int], bias: bool) -> Raw:
    """Convolutions of 3 × 3 with a stride of 2 over a picture of grid × grid positions, from width to width."""
    reads, leaves = grid**2, list[Raw]()
    for i, (c_in, c_out) in enumerate(pairwise(widths)):
        grid = -(-grid // 2)
        leaves.append(leaf(f"conv{i + 1}", "convolution", c_in, c_out, 9, 4, bias=bias, at=[0, grid**2, 1]))
    return resampler_step(leaves, reads, grid**2, widths[-1])


def gated_steps(width: int, to: int, bias: bool = True) -> Steps:
    """Steps of a gated feed-forward, whose gate and up are one matrix."""
    return {"linear": 2 * width, "bias": bias}, {"activation": "silu", "gated": True}, {"linear": to, "bias": bias}


# Keys.


def side_of(v: Config, key: str, default: int) -> int:
    """A side in pixels, given once or for both directions."""
    value = v.data.get(key)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1] and type(value[0]) is int:
        v.ignore(key)
        return max(1, value[0])
    return int(v.size(key, default=default))


def mlp_width(v: Config, width: int, default: float) -> int:
    """A feed-forward's width, by how many times the layers' it is."""
    wide = int(width * v.real("mlp_ratio", default=default))
    if not 1 <= wide <= MAX_SIZE:
        v.fault("mlp_ratio", v.data.get("mlp_ratio"), "a ratio that gives a width above 0")
        return width
    return wide


def patch_area(v: Config, key: str) -> int:
    """The area of a window of two sides, by default 2 × 2."""
    sides = v.data.get(key, [2, 2])
    v.ignore(key)
    if not isinstance(sides, list) or len(sides) != 2 or not all(type(n) is int and 0 < n < 100 for n in sides):
        v.fault(key, sides, "two whole numbers above 0")
        return 1
    return int(sides[0] * sides[1])


def grid_of(v: Config, image: int, patch: int) -> tuple[int, int, int]:
    """Patches along a side, pixels of a patch's side, channels."""
    side, pixels = side_of(v, "image_size", image), side_of(v, "patch_size", patch)
    if pixels > side:
        v.fault("patch_size", pixels, f"at most image_size = {side}")
    return side // pixels, pixels, v.size("num_channels", default=3)


def global_layers(v: Config, n: int) -> set[int]:
    """SAM's layers that attend to all of a picture."""
    indexes = v.data.get("global_attn_indexes", [2, 5, 8, 11])
    v.ignore("global_attn_indexes")
    if not isinstance(indexes, list) or not all(type(i) is int and 0 <= i < n for i in indexes):
        v.fault("global_attn_indexes", indexes, f"a list of layers below {n}")
        return set()
    return set(indexes)
