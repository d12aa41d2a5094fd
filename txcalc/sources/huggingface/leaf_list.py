"""Layers that no part describes, as lists of leaves (`parts.mixers.pieces`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from txcalc.parts.options import Raw

Leaves = list[Raw]


def leaf(name: str, form: str, *sizes: int, **fields: object) -> Raw:
    """A leaf of `around` or of a layer's `pieces`; `parts.forms` lists the forms and their sizes."""
    return {"name": name, "form": form, "sizes": list(sizes), **fields}


def matrix(name: str, d_in: int, d_out: int, **fields: object) -> Raw:
    """A linear leaf without a bias."""
    return leaf(name, "linear", d_in, d_out, bias=False, **fields)


def leaf_stack(raw: Raw, kinds: dict[str, Leaves], order: list[str]) -> Raw:
    """A stack whose layers are lists of leaves; with several kinds, `order` is the kind of each layer."""
    layers = {name: {"parts": ["pieces"], "pieces": {"leaves": pieces}} for name, pieces in kinds.items()}
    defaults: Raw = {"norm": {"form": "layer", "without": ["pieces"], "final": False}, "positions": {"form": "none"}}
    return defaults | raw | {"layer": layers} | ({"pattern": order} if len(layers) > 1 else {})


def of_kind(kind: str, leaves: Iterable[Raw]) -> Leaves:
    """Leaves with this kind, except those that have one."""
    return [{"kind": kind} | item for item in leaves]


def norm_leaf(name: str, width: int, form: str = "layer_norm", /, **fields: object) -> Raw:
    """A norm leaf; `name` is its input, or the branch that reads it."""
    return leaf(f"{name}_norm", form, width, kind="norm", **fields)


def ffn_leaves(
    name: str, d: int, ff: int, act: str, *, norm: str = "layer_norm", bias: bool = True, gated: bool = False,
    **fields: object,
) -> Leaves:  # fmt: skip
    """A feed-forward with its norm ("": none) and its residual."""
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
    """Q, K, V, the leaves `before` the core, the core and O with its residual. Self-attention, or with `keys`
    cross-attention to these positions, `d_source` wide. O's output width is `to`, by default d."""
    form, kv_at, span = ("attention", {}, {}) if keys is None else ("reading", {"at": keys}, {"keys": keys})
    kv = heads // groups * width
    leaves = [leaf(f"{name}q", "linear", d, heads * width, bias="q" in bias)]
    leaves += [leaf(f"{name}{letter}", "linear", d_source or d, kv, bias=letter in bias, **kv_at) for letter in "kv"]
    leaves += [*before, leaf(f"{name}core", form, heads, width, width, groups=groups, bias=False, **span)]
    leaves += [leaf(f"{name}o", "linear", heads * width, to or d, bias="o" in bias)]
    leaves.append(leaf(f"{name}attention_sum", "sum", to or d))
    return [fields | item | {"kind": "attention"} for item in leaves]


def conformer_leaves(
    d: int, ff: int, act: str, mixer: Leaves, taps: int, inner: Leaves, *, channels: int = 0, bias: bool = False,
    norm: str = "layer_norm", ffn_bias: bool = True,
) -> Leaves:  # fmt: skip
    """A Conformer layer: a half-step feed-forward, the `mixer`, a gated depthwise convolution of `channels` (default
    d) with the norm `inner`, and the second feed-forward."""
    channels = channels or d
    convolution = [
        norm_leaf("conv", d, norm),
        leaf("conv_gates", "linear", d, 2 * channels, bias=bias),
        leaf("conv_sigmoid", "sigmoid", channels),
        leaf("conv", "convolution", channels, channels, taps, 1, groups=channels, bias=False),
        *inner,
        leaf("conv_activation", act, channels),
        leaf("conv_out", "linear", channels, d, bias=bias),
        leaf("conv_sum", "sum", d),
    ]
    first, second = (ffn_leaves(name, d, ff, act, norm=norm, bias=ffn_bias) for name in ("first", "second"))
    return [*first, *of_kind("attention", mixer), *convolution, *second, leaf("norm", norm, d, kind="norm")]


def patch_grid(sides: tuple[int, int], window: int = 1) -> Raw:
    """The positions of an image's patches, padded to whole windows."""
    padded = [-(-side // window) * window for side in sides]
    return {"at": [0, padded[0] * padded[1], 1]}


def swin_leaves(d: int, heads: int, window: int, sides: tuple[int, int], ff: int, act: str, bias: bool,
              v2: bool) -> Leaves:  # fmt: skip
    """A layer of Swin or (`v2`) Swin 2: attention in square windows with relative position biases, and a
    feed-forward."""
    inside, width, distances = patch_grid(sides, window), max(1, d // heads), (2 * window - 1) ** 2
    core = [leaf("distances", "held", distances * heads)]
    if v2:
        shared: Raw = {"at": [0, distances, 1], "shared": True}
        core = [leaf("scale", "held", heads), leaf("distances_up", "linear", 2, 512, **shared)]
        core += [leaf("distances_activation", "relu", 512, **shared)]
        core += [matrix("distances_down", 512, heads, **shared)]
    core.append(leaf("core", "windows", heads, width, width, window**2, bias=True, **inside))
    return pre_norm_leaves(d, core, ff, act, bias, inside, patch_grid(sides), "k" if v2 else "")


def pre_norm_leaves(
    d: int, core: Leaves, ff: int, act: str, bias: bool, inside: Raw, here: Raw, unbiased: str = ""
) -> Leaves:
    """Attention and a feed-forward, each after a norm. The attention's matrices run at the positions `inside`, all
    other leaves at `here`; matrices in `unbiased` never have a bias."""
    attention = {"kind": "attention"}
    leaves = [leaf("attention_norm", "layer_norm", d, kind="norm", **here)]
    leaves += [leaf(name, "linear", d, d, bias=bias and name not in unbiased, **inside, **attention) for name in "qkv"]
    leaves += [item | attention for item in core]
    leaves += [leaf("o", "linear", d, d, **inside, **attention), leaf("attention_sum", "sum", d, **here)]
    leaves += [leaf("feed_forward_norm", "layer_norm", d, kind="norm", **here)]
    ffn = [leaf("up", "linear", d, ff, **here), leaf("activation", act, ff, **here)]
    ffn += [leaf("down", "linear", ff, d, **here), leaf("feed_forward_sum", "sum", d, **here)]
    return leaves + of_kind("feed_forward", ffn)
