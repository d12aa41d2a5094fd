"""Families whose layers no part describes: they are listed leaf by leaf (`parts.mixers.pieces`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from txcalc.parts.options import Raw

Leaves = list[Raw]


def leaf(name: str, form: str, *sizes: int, **fields: object) -> Raw:
    """A leaf of `around` or of a layer's pieces (`parts.forms`)."""
    return {"name": name, "form": form, "sizes": list(sizes), **fields}


def matrix(name: str, d_in: int, d_out: int, **fields: object) -> Raw:
    """A leaf of a matrix without a bias."""
    return leaf(name, "linear", d_in, d_out, bias=False, **fields)


def leaf_stack(raw: Raw, kinds: dict[str, Leaves], order: list[str]) -> Raw:
    """A stack whose layers are pieces, of one kind or of several in this order."""
    layers = {name: {"parts": ["pieces"], "pieces": {"leaves": pieces}} for name, pieces in kinds.items()}
    defaults: Raw = {"norm": {"form": "layer", "without": ["pieces"], "final": False}, "positions": {"form": "none"}}
    return defaults | raw | {"layer": layers} | ({"pattern": order} if len(layers) > 1 else {})


def of_kind(kind: str, leaves: Iterable[Raw]) -> Leaves:
    """Leaves that count as one kind where they have none of their own."""
    return [{"kind": kind} | item for item in leaves]


def norm_leaf(name: str, width: int, form: str = "layer_norm", /, **fields: object) -> Raw:
    """A norm, named after what it stands before or what it norms."""
    return leaf(f"{name}_norm", form, width, kind="norm", **fields)


def ffn_leaves(
    name: str, d: int, ff: int, act: str, *, norm: str = "layer_norm", bias: bool = True, gated: bool = False,
    **fields: object,
) -> Leaves:  # fmt: skip
    """A norm ("": none) and the two matrices after it, or three where it is gated."""
    leaves = [norm_leaf(name, d, norm)] if norm else []
    leaves += [leaf(f"{name}_up", "linear", d, ff, bias=bias), leaf(f"{name}_activation", act, ff)]
    if gated:
        leaves += [leaf(f"{name}_gate", "linear", d, ff, bias=bias), leaf(f"{name}_product", "sum", ff)]
    leaves += [leaf(f"{name}_down", "linear", ff, d, bias=bias), leaf(f"{name}_sum", "sum", d)]
    return [item | fields | {"kind": "feed_forward"} for item in leaves]


def attention_leaves(
    name: str, d: int, heads: int, width: int, *, d_source: int = 0, keys: list[int] | None = None, groups: int = 1,
    bias: str = "qkvo", to: int = 0, before: Sequence[Raw] = (), **fields: object,
) -> Leaves:  # fmt: skip
    """Q, K, V, what attends (`before` it these) and O, to the width `to`, or as it was: queries see each other, or the
    positions `keys`, as wide as `d_source`."""
    form, there, span = ("attention", {}, {}) if keys is None else ("reading", {"at": keys}, {"keys": keys})
    kv = heads // groups * width
    leaves = [leaf(f"{name}q", "linear", d, heads * width, bias="q" in bias)]
    leaves += [leaf(f"{name}{letter}", "linear", d_source or d, kv, bias=letter in bias, **there) for letter in "kv"]
    leaves += [*before, leaf(f"{name}core", form, heads, width, width, groups=groups, bias=False, **span)]
    leaves += [leaf(f"{name}o", "linear", heads * width, to or d, bias="o" in bias)]
    leaves.append(leaf(f"{name}attention_sum", "sum", to or d))
    return [fields | item | {"kind": "attention"} for item in leaves]


def conformer_leaves(
    d: int, ff: int, act: str, mixed: Leaves, taps: int, inner: Leaves, *, wide: int = 0, bias: bool = False,
    norm: str = "layer_norm", ffn_bias: bool = True,
) -> Leaves:  # fmt: skip
    """A layer: half a feed-forward, what mixes positions, a convolution of channels (`wide` of them) with a norm
    (`inner`) in it, the other half."""
    wide = wide or d
    convolved = [
        norm_leaf("conv", d, norm),
        leaf("conv_gates", "linear", d, 2 * wide, bias=bias),
        leaf("conv_sigmoid", "sigmoid", wide),
        leaf("conv", "convolution", wide, wide, taps, 1, groups=wide, bias=False),
        *inner,
        leaf("conv_activation", act, wide),
        leaf("conv_out", "linear", wide, d, bias=bias),
        leaf("conv_sum", "sum", d),
    ]
    first, second = (ffn_leaves(name, d, ff, act, norm=norm, bias=ffn_bias) for name in ("first", "second"))
    mixing = of_kind("attention", mixed)
    return [*first, *mixing, *convolved, *second, leaf("norm", norm, d, kind="norm")]


def patch_grid(sides: tuple[int, int], window: int = 1) -> Raw:
    """Where a picture's patches are, filled up to whole windows."""
    filled = [-(-side // window) * window for side in sides]
    return {"at": [0, filled[0] * filled[1], 1]}


def swin_leaves(d: int, heads: int, window: int, sides: tuple[int, int], wide: int, act: str, bias: bool,
              second: bool) -> Leaves:  # fmt: skip
    """A layer of Swin: attention in square windows with biases by distance, and a feed-forward."""
    inside, width, distances = patch_grid(sides, window), max(1, d // heads), (2 * window - 1) ** 2
    core = [leaf("distances", "held", distances * heads)]
    if second:
        once: Raw = {"at": [0, distances, 1], "shared": True}
        core = [leaf("scale", "held", heads), leaf("distances_up", "linear", 2, 512, **once)]
        core += [leaf("distances_activation", "relu", 512, **once)]
        core += [matrix("distances_down", 512, heads, **once)]
    core.append(leaf("core", "windows", heads, width, width, window**2, bias=True, **inside))
    return pre_norm_leaves(d, core, wide, act, bias, inside, patch_grid(sides), "k" if second else "")


def pre_norm_leaves(
    d: int, core: Leaves, wide: int, act: str, bias: bool, inside: Raw, here: Raw, bare: str = ""
) -> Leaves:
    """Attention and a feed-forward, each after a norm; the attention's matrices, of which some are `bare` of a bias
    where others have one, run `inside`, all else `here`."""
    attention = {"kind": "attention"}
    leaves = [leaf("attention_norm", "layer_norm", d, kind="norm", **here)]
    leaves += [leaf(name, "linear", d, d, bias=bias and name not in bare, **inside, **attention) for name in "qkv"]
    leaves += [item | attention for item in core]
    leaves += [leaf("o", "linear", d, d, **inside, **attention), leaf("attention_sum", "sum", d, **here)]
    leaves += [leaf("feed_forward_norm", "layer_norm", d, kind="norm", **here)]
    ffn = [leaf("up", "linear", d, wide, **here), leaf("activation", act, wide, **here)]
    ffn += [leaf("down", "linear", wide, d, **here), leaf("feed_forward_sum", "sum", d, **here)]
    return leaves + of_kind("feed_forward", ffn)
