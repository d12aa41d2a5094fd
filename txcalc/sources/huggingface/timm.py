"""Towers that timm builds: `architecture` names one, and `model_args` changes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import Config, piece
from txcalc.sources.huggingface.convolved import Network, picture
from txcalc.sources.huggingface.leaves import attends
from txcalc.sources.huggingface.reading import Sizes, Tower, side_of
from txcalc.sources.huggingface.towers import stack
from txcalc.sources.spec import size


def _named(v: Config, known: Mapping[str, object], *changes: str) -> tuple[str, Config]:
    """The architecture, one of these, and the table that says what of it is otherwise, by some of these arguments."""
    name = v.text("architecture", default="resnet50")
    if name not in known:
        v.fault("architecture", name, f"one of {', '.join(known)}", "no other of timm's towers is read")
        name = next(iter(known))
    v.ignore("model_type", "do_pooling", "label_names", "num_classes", "num_features", "pretrained_cfg", "global_pool")
    told = v.table("model_args")
    given = {key: value for key, value in told.data.items() if value is not None} if told else {}  # null is left out
    (told or v).ignore(*(told.data if told else ()))
    for key in given.keys() - set(changes):
        (told or v).fault(key, given[key], f"one of {', '.join(changes)}", "no other argument of timm's class is read")
    return name, Config({key: given[key] for key in changes if key in given}, v.model_type, f"{v.path}model_args.", v)


# Perception Encoders: width, layers, heads, the feed-forward's width, sides of a patch and a picture; and whether they
# have a class token, a norm after the layers, a scale on each branch.
PERCEPTION = {
    "vit_pe_core_tiny_patch16_384": (192, 12, 3, 768, 16, 384, True, True, False),
    "vit_pe_core_small_patch16_384": (384, 12, 6, 1536, 16, 384, True, True, False),
    "vit_pe_core_base_patch16_224": (768, 12, 12, 3072, 16, 224, True, True, False),
    "vit_pe_core_large_patch14_336": (1024, 24, 16, 4096, 14, 336, True, True, False),
    "vit_pe_core_gigantic_patch14_448": (1536, 50, 16, 8960, 14, 448, False, True, False),
    "vit_pe_lang_large_patch14_448": (1024, 23, 16, 4096, 14, 448, True, False, True),
    "vit_pe_lang_gigantic_patch14_448": (1536, 47, 16, 8960, 14, 448, False, False, True),
    "vit_pe_spatial_tiny_patch16_512": (192, 12, 3, 768, 16, 512, True, False, False),
    "vit_pe_spatial_small_patch16_512": (384, 12, 6, 1536, 16, 512, True, False, False),
    "vit_pe_spatial_base_patch16_512": (768, 12, 12, 3072, 16, 512, True, False, False),
    "vit_pe_spatial_large_patch14_448": (1024, 24, 16, 4096, 14, 448, True, False, False),
    "vit_pe_spatial_gigantic_patch14_448": (1536, 50, 16, 8960, 14, 448, False, False, True),
}
_CHANGES = (
    "embed_dim",
    "depth",
    "img_size",
    "global_pool",
    "use_post_transformer_norm",
    "init_values",
    "ref_feat_shape",
)


def perception(v: Config) -> Tower:
    """CLIP's layers with rotary positions beside its table, without a pool."""
    name, told = _named(v, PERCEPTION, *_CHANGES)
    width, layers, heads, wide, patch, side, first, last, scaled = PERCEPTION[name]
    d, last = told.size("embed_dim", default=width), told.flag("use_post_transformer_norm", default=last)
    if "embed_dim" not in told:
        told.fault("embed_dim", ABSENT, "the tower's width", "transformers makes its projector of this key")
    told.multiple("embed_dim", d, 4 * heads)
    pool = told.data.get("global_pool", "map" if PERCEPTION[name][7] else "")
    if pool != "":
        told.fault("global_pool", pool, '""', "its pool is not read")
    told.ignore("global_pool", "init_values", "ref_feat_shape")
    if (seen := side_of(told, "img_size", side) // patch) < 1:
        told.fault("img_size", told.data.get("img_size"), f"at least {patch}, a patch's side")
        seen = 1
    vision = {"image": patch * seen, "patch": patch, "class_token": first, "patch_bias": False}
    sizes = Sizes(d, int(d * (wide / width)), told.size("depth", default=layers), heads)
    norm = {"layer_scale": scaled or "init_values" in told, "final": last}
    return Tower(d, stack(sizes, "gelu", vision=vision, embedding={"norm": True}, norm=norm), first=int(first))


class FastVit(NamedTuple):
    """A FastViT: layers of its stages, width of the first (each next is twice as wide), by how much a feed-forward is
    wider, how many stages from the last attend; whether stages begin with an activation between their convolutions,
    whether the last two weigh channels there, and whether attention has LayerNorms and the stem no branches."""

    depths: tuple[int, ...]
    width: int
    ratio: int
    attend: int = 0
    active: bool = False
    weigh: bool = False
    large: bool = False


FAST = {
    "fastvit_t8": FastVit((2, 2, 4, 2), 48, 3),
    "fastvit_t12": FastVit((2, 2, 6, 2), 64, 3),
    "fastvit_s12": FastVit((2, 2, 6, 2), 64, 4),
    "fastvit_sa12": FastVit((2, 2, 6, 2), 64, 4, 1),
    "fastvit_sa24": FastVit((4, 4, 12, 4), 64, 4, 1),
    "fastvit_sa36": FastVit((6, 6, 18, 6), 64, 4, 1),
    "fastvit_ma36": FastVit((6, 6, 18, 6), 76, 4, 1),
    "fastvit_mci0": FastVit((2, 6, 10, 2), 64, 3, 1, True, True),
    "fastvit_mci1": FastVit((4, 12, 20, 4), 64, 3, 1, True, True),
    "fastvit_mci2": FastVit((4, 12, 24, 4), 80, 3, 1, True, True),
    "fastvit_mci3": FastVit((2, 12, 24, 4, 2), 96, 4, 2, True, False, True),
    "fastvit_mci4": FastVit((2, 12, 24, 4, 4), 128, 4, 2, True, False, True),
}


class _Branched(Network):
    """FastViT's: while it learns, each convolution is a sum of several, which are `folded` into one once trained."""

    folded = False

    def several(self, name: str, to: int, kernels: list[int], stride: int = 1, groups: int = 1, same: bool = True,
                act: bool = True, weigh: int = 0) -> None:  # fmt: skip
        """A convolution, or the sum of some of these kernels, each with a batch norm, and of what they read (`same`)
        where that is as large; then a weight for each channel, made by `weigh` numbers."""
        sides, before = self.sides, self.channels
        if self.folded:
            self.conv(name, to, kernels[0], stride, groups=groups, bias=True, norm="", act="")
        else:
            for kernel in kernels:
                self.sides, self.channels = sides, before
                self.conv(f"{name}_of_{kernel}", to, kernel, stride, groups=groups, act="")
            same = same and stride == 1 and before == to
            if same:
                self.normed(f"{name}_same", "batch")
            self.add(*[piece(f"{name}_sum", "sum", to, groups=len(kernels) + same - 1)] * (len(kernels) + same > 1))
        if weigh:
            self.squeezed(f"{name}_weigh", weigh)
        self.add(*[piece(f"{name}_activation", self.act, to)] * act)

    def mixed(self, d: int) -> None:
        """Each channel by itself, over 3 × 3 positions."""
        if self.folded:
            self.several("mixer", d, [3], groups=d, act=False)
            return
        self.normed("mixed", "batch")
        self.several("mixer", d, [3, 1], groups=d, act=False)
        self.add(piece("mixer_scale", "scale", d), piece("mixed_sum", "sum", d, groups=2))


def fast(v: Config) -> Tower:
    """FastViT: stages of depthwise convolutions, each before two matrices, and of attention in the last of them."""
    whole = v.parent
    if whole and whole.data.get("vision_config") is None:
        v = Config(_USUAL, v.model_type, v.path, v.parent)
    name, told = _named(v, FAST, "layers", "embed_dims", "in_chans", "inference_mode")
    own = FAST[name]
    n = len(own.depths)
    depths = told.items("layers", of=size, length=n, default=list(own.depths))
    widths = told.items("embed_dims", of=size, length=n, default=[own.width << i for i in range(n)])
    net = _Branched(v, picture(v, 1024, own=False), told.size("in_chans", default=3), "gelu")
    net.folded = told.flag("inference_mode", default=False)
    branches = [3] if own.large else [3, 1]
    net.several("stem1", widths[0], branches, 2)
    net.several("stem2", widths[0], branches, 2, widths[0])
    net.several("stem3", widths[0], [1])
    for i, (d, depth) in enumerate(zip(widths, depths, strict=True)):
        attends_here, before = i >= n - own.attend, net.channels
        net.outside("embedding")
        if d % before or (attends_here and d % 32):
            told.fault("embed_dims", widths, "each a multiple of the one before, and of 32 where a stage attends")
            break
        if i:
            weigh = max(8, (d // 4 + 4) // 8 * 8) if own.weigh and i >= 2 else 0
            net.several(f"down{i}", d, [7, 3], 2, before, False, own.active, weigh)
            net.several(f"merge{i}", d, [1])
        if attends_here:
            net.conv(f"positions{i + 1}", d, 7, groups=d, bias=True, norm="", act="")
            net.add(*[piece(f"positions{i + 1}_sum", "sum", d)] * (not net.folded))
        net.layer(f"stage{i + 1}", depth)
        if attends_here:
            net.normed("attention", "layer" if own.large else "batch")
            net.add(*attends("", d, d // 32, 32, bias="o"), piece("branch_scale", "scale", d))
        else:
            net.mixed(d)
        net.conv("near", d, 7, groups=d, act="")
        net.add(piece("up", "linear", d, own.ratio * d), piece("activation", "gelu", own.ratio * d))
        net.add(piece("down", "linear", own.ratio * d, d), piece("scale", "scale", d), piece("sum", "sum", d))
    net.outside()
    d = net.channels
    net.several("last", 2 * d, [3, 1], 1, d, weigh=max(1, d // 8))
    if (read := v.data.get("hidden_size", ABSENT)) != 2 * d:
        v.fault("hidden_size", read, f"{2 * d:,}, the width of the last convolution, of which its projector is made")
    v.ignore("hidden_size")
    return Tower(2 * d, net.described())


# What the class takes for its tower where it is told nothing.
_USUAL = {"architecture": "fastvit_mci3", "hidden_size": 3072, "model_args": {"inference_mode": True}}
