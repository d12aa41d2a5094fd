"""Networks of convolutions over a picture, which is smaller behind each that skips positions.

A convolution is a leaf of its kernel, stride, groups and channels (`parts.convolution.Filter`) at as many positions as
it makes; a batch norm is what it is once trained, a scale and a shift per channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from txcalc.sources.huggingface.config import Config, Raw, piece
from txcalc.sources.huggingface.leaves import Pieces, listed, normed, places
from txcalc.sources.spec import MAX_LAYERS, count, size

Sides = tuple[int, int]
Maps = list[tuple[Sides, int]]  # sides and channels of several pictures


class Network:
    """A network that is listed as a picture runs through it: the sides and channels here, and the leaves until here.

    `act` stands behind each convolution that is told no other, `norm` between them: "batch", "layer" or "". `runs` is
    how often what comes now runs: 0 where its weights are only held.
    """

    def __init__(self, c: Config, sides: Sides, channels: int, act: str = "relu", norm: str = "batch") -> None:
        self.c, self.sides, self.channels, self.act, self.norm = c, sides, channels, act, norm
        self.pixels = sides
        self.kind, self.maps, self.runs = "embedding", Maps(), 1
        self.around: Pieces = []
        self.leaves, self.kinds, self.order = self.around, dict[str, Pieces](), list[str]()

    @property
    def here(self) -> Raw:
        """Where the picture's positions are."""
        return places(self.sides)

    def layer(self, name: str, times: int = 1) -> None:
        """What comes now are the leaves of a layer, which stands there `times`."""
        self.kind = "other"
        self.leaves = self.kinds[name] = []
        self.order.append(f"{times}*{name}")

    def stage(self, number: int, depth: int) -> Iterator[bool]:
        """Begins each kind of layer of a stage: its first (True), and the others, if it has any."""
        for leads, times in ((True, 1), (False, depth - 1)):
            if times:
                self.layer(f"stage{number}{'_first' * leads}", times)
                yield leads

    def outside(self, kind: str = "other") -> None:
        """What comes now is no layer's."""
        self.leaves, self.kind = self.around, kind

    def add(self, *pieces: Raw) -> None:
        self.leaves += [{"kind": self.kind, "runs": self.runs, **self.here} | one for one in pieces]

    def conv(
        self, name: str, to: int, kernel: int | Sides = 3, stride: int = 1, *, pad: int | None = None, groups: int = 1,
        bias: bool = False, act: str | None = None, norm: str | None = None, to_sides: Sides | None = None,
    ) -> None:  # fmt: skip
        """A convolution with what follows it; it is padded by half its kernel unless told otherwise."""
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        self.sides = self.checked(to_sides) if to_sides else self.after((high, wide), stride, pad)
        sizes = self.channels, to, high * wide, min(high * wide, stride * stride)
        self.add(piece(name, "convolution", *sizes, groups=groups, bias=bias))
        self.channels = to
        self.normed(name, self.norm if norm is None else norm)
        act = self.act if act is None else act
        if act:
            self.add(piece(f"{name}_activation", act, to))

    def normed(self, name: str, norm: str) -> None:
        """A norm of the channels."""
        if norm == "layer":
            self.add(normed(name, self.channels))
        elif norm == "batch":
            self.add(piece(f"{name}_scale", "scale", self.channels, kind="norm"))
            self.add(piece(f"{name}_shift", "shift", self.channels, kind="norm"))

    def after(self, kernel: Sides, stride: int, pad: int | None = None) -> Sides:
        """The sides of what a window of this size makes."""
        found = [
            (side + 2 * (taps // 2 if pad is None else pad) - taps) // stride + 1
            for side, taps in zip(self.sides, kernel, strict=True)
        ]
        return self.checked((found[0], found[1]))

    def checked(self, sides: Sides) -> Sides:
        """Sides, which must be above 0."""
        if min(sides) < 1:
            self.c.fault("image_size", list(self.pixels), "a picture of which every layer leaves a position")
        return max(1, sides[0]), max(1, sides[1])

    def pooled(self, kernel: int, stride: int, pad: int | None = None) -> None:
        """The most or the mean of each window."""
        self.sides = self.after((kernel, kernel), stride, pad)

    def squeezed(self, name: str, narrow: int, act: str = "relu", gate: str = "sigmoid") -> None:
        """Channels that are scaled by what two convolutions make of their means (squeeze and excitation)."""
        once, d = {"at": [0, 1, 1]}, self.channels
        self.add(piece(f"{name}_reduce", "convolution", d, narrow, 1, 1, **once))
        self.add(piece(f"{name}_reduce_activation", act, narrow, **once))
        self.add(piece(f"{name}_expand", "convolution", narrow, d, 1, 1, **once))
        self.add(piece(f"{name}_gate", gate, d, **once), piece(f"{name}_product", "sum", d))

    def classified(self, norm: bool = False, labels: int = 2) -> Raw:
        """The description, with a classifier of the mean of all positions where the class has one; `norm`: of that."""
        c, once, d = self.c, {"at": [0, 1, 1]}, self.channels
        if norm:
            self.around.append(normed("last", d, **once))
        if c.head_of("classifier", "none") == "classifier":
            self.around.append(piece("classifier", "linear", d, c.labels(labels), kind="head", **once))
        return self.described()

    def described(self, width: int | None = None) -> Raw:
        c = self.c
        c.note("a picture of {} × {} pixels is read, whatever number of tokens is asked for".format(*self.pixels))
        n = sum(int(one.partition("*")[0]) for one in self.order)
        if n > MAX_LAYERS:
            c.faults.append(f"it has {n:,} layers, expected at most {MAX_LAYERS:,}")
        raw: Raw = {"kind": "encoder", "d_model": width or self.channels, "n_layers": max(1, n)}
        raw |= {"around": self.around, "head": {"form": "none"}, "length": self.sides[0] * self.sides[1]}
        return listed(raw, self.kinds, self.order)


def picture(c: Config, usual: int | Sides, *, own: bool = True) -> Sides:
    """A picture's height and width in pixels. Without `own` the class has no such key: what its processor makes, unless
    the config says."""
    value = c.data.get("image_size")
    c.ignore("image_size")
    if value is None:
        if own:
            c.assume("image_size", usual)
        else:
            told = usual if isinstance(usual, int) else "{} × {}".format(*usual)
            c.assumptions.append(f"{c.path}image_size = {told}, as its processor makes pictures")
        value = usual if isinstance(usual, int) else list(usual)
    sides = value if isinstance(value, list) else [value, value]
    if len(sides) != 2 or not all(type(side) is int and 0 < side <= 2**20 for side in sides):
        c.fault("image_size", value, "a side, or two, in pixels")
        return 224, 224
    return sides[0], sides[1]


def stages(c: Config, **lists: tuple[Callable[[Any], Any], Sequence[Any]]) -> list[list[Any]]:
    """Lists as long as the first of them, with an item for each stage."""
    found = {key: c.items(key, of=of, length=None, default=list(usual)) for key, (of, usual) in lists.items()}
    if "depths" in c.data and c.data["depths"] is None:  # its length is read whatever the class's default
        c.fault("depths", None, "a list with an item for each stage")
    first, *_ = found.values()
    for key, given in found.items():
        if not given or len(given) < len(first) or len(first) > 64:
            c.fault(key, given, f"a list with an item for each of {min(64, max(1, len(first)))} stages")
            return [list(usual) for _, usual in lists.values()]
    return [given[: len(first)] for given in found.values()]


def resnet(c: Config) -> Raw:
    """Residual blocks; in RegNet of groups, whose channels are weighed in its form "y"."""
    net = Network(c, picture(c, 224, own=False), c.size("num_channels", default=3))
    residual(c, net)
    return net.classified()


def residual(c: Config, net: Network, *, dilated: bool = False) -> Maps:
    """Blocks of two convolutions, or of three of which the middle one is narrow, and a sum with what they read; the
    last stage of a `dilated` network skips nothing, and RT-DETR's reads by three convolutions. Gives the sides and
    channels of the first pictures and of each stage's."""
    grouped, deep = c.model_type == "regnet", c.model_type == "rt_detr_resnet"
    c.ignore("stage_names", "out_features", "out_indices")
    widths, depths = stages(
        c, hidden_sizes=(size, [128, 192, 512, 1088] if grouped else [256, 512, 1024, 2048]),
        depths=(size, [2, 6, 12, 2] if grouped else [3, 4, 6, 3]),
    )  # fmt: skip
    forms = ("x", "y") if grouped else ("basic", "bottleneck")
    form = c.text("layer_type", default=forms[1])
    if form not in forms:
        c.fault("layer_type", form, f"{forms[0]!r} or {forms[1]!r}")
    net.act = act = c.activation("hidden_act", default="relu")
    first_width = c.size("embedding_size", default=32 if grouped else 64)
    if deep:
        if first_width < 2:
            c.fault("embedding_size", first_width, "2 or more, of which the first convolutions make half")
        net.conv("stem1", max(1, first_width // 2), 3, 2)
        net.conv("stem2", net.channels)
        net.conv("stem3", first_width)
        net.act = "relu"  # inside blocks, whatever the config says
    else:
        net.conv("stem", first_width, 3 if grouped else 7, 2)
    if not grouped:
        net.pooled(3, 2)
    first = c.flag("downsample_in_first_stage", default=grouped)
    early = not grouped and form == "bottleneck" and c.flag("downsample_in_bottleneck", default=False)
    across = c.size("groups_width", default=64) if grouped else 1
    c.ignore("downsample_in_bottleneck")
    seen = [(net.sides, net.channels)]
    if not grouped and form == "bottleneck" and min(widths) < 4:
        c.fault("hidden_sizes", widths, "4 or more, of which the middle of a block has a quarter")
    for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        stride = 2 if (i or first) and not (dilated and i == len(widths) - 1) else 1
        whole = net.channels != width or stride != 1 or (deep and form == "basic")
        if deep and form == "basic" and net.channels != width and stride == 1:
            c.fault(
                "hidden_sizes", widths, f"{net.channels}, as its stem makes, first", "what it adds is half as large"
            )
        for leads in net.stage(i + 1, depth):
            before, sides, step = net.channels, net.sides, stride if leads else 1
            if form == "basic":
                net.conv("conv1", width, 3, step)
                net.conv("conv2", width, 3, act="")
            else:
                narrow = width if grouped else max(1, width // 4)
                net.conv("conv1", narrow, 1, step if early else 1)
                groups = max(1, width // across) if grouped else 1
                if width % groups:
                    c.fault("groups_width", across, f"a width that gives groups of one size of {width:,} channels")
                    groups = 1
                net.conv("conv2", narrow, 3, 1 if early else step, groups=groups)
                if form == "y":
                    if before < 3:
                        c.fault("hidden_sizes", before, "3 channels or more, of which a quarter weigh them")
                    net.squeezed("weigh", max(1, round(before / 4)))
                net.conv("conv3", width, 1, act="")
            if whole and leads:
                after, net.channels, net.sides = net.sides, before, sides
                pooled = deep and (form != "basic" or before != width)
                net.conv("shortcut", width, 1, 1 if pooled else step, act="", to_sides=after)
            net.add(piece("sum", "sum", width), piece("activation", act, width))
        seen.append((net.sides, net.channels))
    return seen


def outputs(c: Config, maps: Maps, usual: list[int]) -> Maps:
    """Of the pictures that a backbone makes those that it gives: `out_features`, or `out_indices`."""
    names, found = ["stem", *(f"stage{i}" for i in range(1, len(maps)))], usual
    features, indices = c.data.get("out_features"), c.data.get("out_indices")
    depths = c.data.get("depths")
    if isinstance(depths, list) and len(depths) >= len(maps):
        c.fault("depths", depths, f"a list of {len(maps) - 1} numbers, as many as there are channels of a stage")
    c.ignore("out_features", "out_indices", "stage_names")
    if features is not None:
        found = [names.index(one) for one in features if one in names] if isinstance(features, list) else []
        if not found or len(found) != len(features) or found != sorted({*found}):
            c.fault("out_features", features, f"a list of some of {', '.join(names)}, in this order")
    if indices is not None:
        whole = isinstance(indices, list) and all(type(i) is int and -len(maps) <= i < len(maps) for i in indices)
        told = [i % len(maps) for i in indices] if whole else []
        if not told or told != sorted({*told}) or (features is not None and told != found):
            c.fault("out_indices", indices, f"a list of numbers below {len(maps)}, each above the one before, the same "
                    "as out_features")  # fmt: skip
        found = told
    return [maps[i] for i in found] or maps[-1:]


regnet = resnet


def convnext(c: Config) -> Raw:
    """Blocks, and a classifier of what they make."""
    net = Network(c, picture(c, 224), c.size("num_channels", default=3))
    (sides, last), dino = blocks(c, net)[-1], c.model_type == "dinov3_convnext"
    if not dino:
        return net.classified(norm=True)
    c.head_of("none")
    net.outside()
    net.add(normed("last", last, at=[0, sides[0] * sides[1] + 1, 1]))
    return net.described()


convnextv2 = dinov3_convnext = convnext


def blocks(c: Config, net: Network) -> Maps:
    """ConvNeXt's: a wide depthwise convolution and two matrices, smaller between stages; in its second version the
    middle is scaled by what the whole picture has of each channel. Gives the first map and each stage's."""
    second, dino = c.model_type == "convnextv2", c.model_type == "dinov3_convnext"
    c.ignore("stage_names", "out_features", "out_indices")
    widths, depths = stages(c, hidden_sizes=(size, [96, 192, 384, 768]), depths=(size, [3, 3, 9, 3]))
    if not dino:
        c.equal("num_stages", len(widths), 4, "the length of hidden_sizes")
        if "num_hidden_layers" in c:
            c.only(len(widths), "num_hidden_layers", why="the length of hidden_sizes")
    act, patch = c.activation("hidden_act", default="gelu"), 4 if dino else c.size("patch_size", default=4)
    scaled = (not second and c.real("layer_scale_init_value", default=1e-6) > 0) or dino
    net.conv("stem", widths[0], patch, patch, pad=0, bias=True, norm="layer", act="")
    maps = [(net.sides, net.channels)]
    for i, (d, depth) in enumerate(zip(widths, depths, strict=True)):
        if i:
            net.outside("embedding")
            net.normed(f"merge{i}", "layer")
            net.conv(f"merge{i}", d, 2, 2, pad=0, bias=True, norm="", act="")
        net.layer(f"stage{i + 1}", depth)
        net.conv("conv", d, 7, groups=d, bias=True, norm="layer", act="")
        net.add(piece("up", "linear", d, 4 * d), piece("activation", act, 4 * d))
        if second:
            net.add(piece("response_scale", "scale", 4 * d), piece("response_shift", "shift", 4 * d))
        net.add(piece("down", "linear", 4 * d, d), *[piece("layer_scale", "scale", d)] * scaled, piece("sum", "sum", d))
        maps.append((net.sides, net.channels))
    return maps


def even(value: float, by: int, least: int | None = None) -> int:
    """The nearest multiple, not below `least`, nor less than nine tenths of it."""
    found = max(by if least is None else least, int(value + by / 2) // by * by)
    return int(found + by if found < 0.9 * value else found)


def mobilenet_v1(c: Config) -> Raw:
    """Depthwise convolutions, each before one of a single position."""
    act, least = c.activation("hidden_act", default="relu6"), c.size("min_depth", default=8)
    by, filled = c.ratio("depth_multiplier", 1.0), c.flag("tf_padding", default=True)
    net = Padded(c, picture(c, 224), c.size("num_channels", default=3), act)
    net.filled = filled
    depth = 32
    net.conv("stem", max(int(depth * by), least), 3, 2)
    for i, stride in enumerate([1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1]):
        net.layer(f"block{i + 1}")
        depth = 2 * depth if stride == 2 or i == 0 else depth
        net.conv("depthwise", net.channels, 3, stride, groups=net.channels)
        net.conv("pointwise", max(int(depth * by), least), 1)
    return net.classified()


class Padded(Network):
    """A picture that is filled up so that every stride starts at a position (TensorFlow's padding)."""

    filled = True

    def after(self, kernel: Sides, stride: int, pad: int | None = None) -> Sides:
        if not self.filled:
            return super().after(kernel, stride, (kernel[0] - 1) // 2)
        return -(-self.sides[0] // stride), -(-self.sides[1] // stride)


def mobilenet_v2(c: Config) -> Raw:
    """Inverted residual blocks: wide between narrow ends, with a depthwise convolution there."""
    by, least = c.size("depth_divisible_by", default=8), c.size("min_depth", default=8)
    more, wider = c.ratio("depth_multiplier", 1.0), c.ratio("expand_ratio", 6.0)
    act, most = c.activation("hidden_act", default="relu6"), c.size("output_stride", default=32)
    filled, expands = c.flag("tf_padding", default=True), c.flag("first_layer_is_expansion", default=True)
    fine = c.flag("finegrained_output", default=True)
    channels = [even(round(one * more), by, least) for one in _MOBILE]
    net = Padded(c, picture(c, 224), c.size("num_channels", default=3), act)
    net.filled = filled
    wide = even(round(32 * more), by, least)
    net.conv("stem", wide, 3, 2)
    if not expands:
        net.conv("stem_expand", wide, 1)
    net.conv("stem_depthwise", wide, 3, groups=wide)
    net.conv("stem_reduce", channels[0], 1, act="")
    strides, now = [2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1], 2
    for i, stride in enumerate(strides):
        stride = 1 if now == most else stride
        now *= stride
        net.layer(f"block{i + 1}")
        inverted(net, channels[i + 1], stride, even(round(net.channels * wider), by, least))
    net.outside()
    last = 1280 if fine and more < 1 else even(round(1280 * more), by, least)
    shape = net.sides, net.channels
    net.conv("last", last, 1)
    if not c.named("ForSemanticSegmentation"):
        return net.classified()
    c.ignore("architectures")
    net.outside("head")
    net.sides, net.channels = shape
    net.act = "relu"
    net.sides = 1, 1
    net.conv("pooled", 256, 1)
    net.sides, net.channels = shape
    net.conv("seen", 256, 1)
    net.channels = 512
    net.conv("projected", 256, 1)
    net.conv("classifier", c.labels(), 1, bias=True, norm="", act="")
    return net.described(channels[-1])


_MOBILE = [16, 24, 24, 32, 32, 32, 64, 64, 64, 64, 96, 96, 96, 160, 160, 160, 320]


def inverted(net: Network, to: int, stride: int, wide: int, name: str = "") -> None:
    """A convolution of single positions up, a depthwise one, and one of single positions down; a sum with what it read
    where that is as large."""
    before = net.channels
    net.conv(f"{name}expand", wide, 1)
    net.conv(f"{name}depthwise", wide, 3, stride, groups=wide)
    net.conv(f"{name}reduce", to, 1, act="")
    if stride == 1 and before == to:
        net.add(piece(f"{name}sum", "sum", to))


def efficientnet(c: Config) -> Raw:
    """Inverted residual blocks whose channels are weighed by their means, as many and as wide as two factors say."""
    by, more = c.size("depth_divisor", default=8), c.ratio("width_coefficient", 2.0)
    deeper = c.ratio("depth_coefficient", 3.1)
    c.ignore("batch_norm_eps", "batch_norm_momentum", "drop_connect_rate", "dropout_rate")
    ins, outs, kernels, strides, repeats, ratios = stages(
        c, in_channels=(size, [32, 16, 24, 40, 80, 112, 192]), out_channels=(size, [16, 24, 40, 80, 112, 192, 320]),
        kernel_sizes=(size, [3, 3, 5, 3, 5, 5, 3]), strides=(size, [1, 2, 2, 2, 1, 2, 1]),
        num_block_repeats=(size, [1, 2, 2, 3, 3, 4, 1]), expand_ratios=(size, [1, 6, 6, 6, 6, 6, 6]),
    )  # fmt: skip
    shifted = c.items("depthwise_padding", of=count, length=None, default=[])
    squeeze, act = c.real("squeeze_expansion_ratio", default=0.25), c.activation("hidden_act", default="silu")
    pooling = c.text("pooling_type", default="mean")
    if pooling not in ("mean", "max"):
        c.fault("pooling_type", pooling, "'mean' or 'max'")
    c.ignore("num_hidden_layers")

    def wide(channels: int) -> int:
        return even(channels * more, by)

    net = Network(c, picture(c, 600), c.size("num_channels", default=3), act)
    high, width = net.sides
    net.conv("stem", wide(32), 3, 2, to_sides=((high - 2) // 2 + 1, (width - 2) // 2 + 1))
    block = 0
    for c_in, c_out, kernel, stride, several, ratio in zip(ins, outs, kernels, strides, repeats, ratios, strict=True):
        times = math.ceil(deeper * several)
        if stride > 2 or wide(c_in) != net.channels or block + times > MAX_LAYERS:
            c.fault("in_channels", ins, "as many channels as the stage before makes, of strides of 1 and 2")
            break
        for j in range(times):
            step, before, here = 1 if j else stride, net.channels, net.sides
            net.layer(f"block{block + 1}")
            expanded = before * ratio
            if ratio != 1:
                net.conv("expand", expanded, 1)
            lost = kernel - 2 * (kernel // 2) + (block not in shifted) if step == 2 else 0
            sides = ((here[0] - lost) // 2 + 1, (here[1] - lost) // 2 + 1) if step == 2 else here
            net.conv("depthwise", expanded, kernel, step, groups=expanded, to_sides=sides)
            net.squeezed("weigh", max(1, int(before * squeeze)), act)
            net.conv("project", wide(c_out), 1, act="")
            if step == 1 and j:
                net.add(piece("sum", "sum", net.channels))
            block += 1
    net.outside()
    last = wide(1280)
    c.equal("hidden_dim", last, 2560, "what width_coefficient makes of 1,280 channels")
    net.conv("last", last, 1)
    return net.classified()
