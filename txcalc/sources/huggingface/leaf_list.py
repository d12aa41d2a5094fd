"""Families whose layers no part makes: they are listed leaf by leaf, each where it works (`parts.mixers.pieces`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from txcalc.sources.huggingface.config import GLOBAL, TOP, Config, Raw, layered, piece
from txcalc.sources.huggingface.keys import any_of
from txcalc.sources.huggingface.sparse import uncounted
from txcalc.sources.spec import MAX_SIZE, size

Pieces = list[Raw]


def listed(raw: Raw, kinds: dict[str, Pieces], order: list[str]) -> Raw:
    """A stack whose layers are pieces, of one kind or of several in this order."""
    layers = {name: {"parts": ["pieces"], "pieces": {"leaves": pieces}} for name, pieces in kinds.items()}
    own: Raw = {"norm": {"form": "layer", "without": ["pieces"], "final": False}, "positions": {"form": "none"}}
    return own | raw | {"layer": layers} | ({"pattern": order} if len(layers) > 1 else {})


def normed(name: str, width: int, form: str = "layer_norm", /, **more: Any) -> Raw:
    """A norm, named after what it stands before or what it norms."""
    return piece(f"{name}_norm", form, width, kind="norm", **more)


def fed(
    name: str, d: int, ff: int, act: str, *, norm: str = "layer_norm", bias: bool = True, gated: bool = False,
    **more: Any,
) -> Pieces:  # fmt: skip
    """A norm ("": none) and the two matrices after it, or three where it is gated."""
    made = [normed(name, d, norm)] if norm else []
    made += [piece(f"{name}_up", "linear", d, ff, bias=bias), piece(f"{name}_activation", act, ff)]
    if gated:
        made += [piece(f"{name}_gate", "linear", d, ff, bias=bias), piece(f"{name}_product", "sum", ff)]
    made += [piece(f"{name}_down", "linear", ff, d, bias=bias), piece(f"{name}_sum", "sum", d)]
    return [one | more | {"kind": "feed_forward"} for one in made]


def attends(
    name: str, d: int, heads: int, width: int, *, read: int = 0, keys: list[int] | None = None, groups: int = 1,
    bias: str = "qkvo", to: int = 0, before: Sequence[Raw] = (), **more: Any,
) -> Pieces:  # fmt: skip
    """Q, K, V, what attends (`before` it these) and O, to the width `to`, or as it was: queries see each other, or the
    positions `keys`, as wide as `read`."""
    form, there, seen = ("attention", {}, {}) if keys is None else ("reading", {"at": keys}, {"keys": keys})
    kv = heads // groups * width
    made = [piece(f"{name}q", "linear", d, heads * width, bias="q" in bias)]
    made += [piece(f"{name}{one}", "linear", read or d, kv, bias=one in bias, **there) for one in "kv"]
    made += [*before, piece(f"{name}core", form, heads, width, width, groups=groups, bias=False, **seen)]
    made += [piece(f"{name}o", "linear", heads * width, to or d, bias="o" in bias)]
    made.append(piece(f"{name}attention_sum", "sum", to or d))
    return [more | one | {"kind": "attention"} for one in made]


def conformer(
    d: int, ff: int, act: str, mixed: Pieces, taps: int, inner: Pieces, *, wide: int = 0, bias: bool = False,
    norm: str = "layer_norm", fed_bias: bool = True,
) -> Pieces:  # fmt: skip
    """A layer: half a feed-forward, what mixes positions, a convolution of channels (`wide` of them) with a norm
    (`inner`) in it, the other half."""
    wide = wide or d
    convolved = [
        normed("conv", d, norm),
        piece("conv_gates", "linear", d, 2 * wide, bias=bias),
        piece("conv_sigmoid", "sigmoid", wide),
        piece("conv", "convolution", wide, wide, taps, 1, groups=wide, bias=False),
        *inner,
        piece("conv_activation", act, wide),
        piece("conv_out", "linear", wide, d, bias=bias),
        piece("conv_sum", "sum", d),
    ]
    first, second = (fed(name, d, ff, act, norm=norm, bias=fed_bias) for name in ("first", "second"))
    mixing = [{"kind": "attention"} | one for one in mixed]
    return [*first, *mixing, *convolved, *second, piece("norm", norm, d, kind="norm")]


def mobilebert(c: Config) -> Raw:
    """BERT whose layers work at a narrow width between a matrix down and one up, with several feed-forwards."""
    c.alone()
    raw: Raw = {"kind": "encoder", "d_model": c.size("hidden_size"), "n_layers": c.layers("num_hidden_layers")}
    rows = {"vocab_size": c.size("vocab_size")}
    c.padding_within(rows)
    d, v, wide = raw["d_model"], rows["vocab_size"], c.size("intermediate_size")
    narrow = c.flag("use_bottleneck", default=True)
    t = c.size("intra_bottleneck_size", default=128) if narrow else d
    c.only(t, "true_hidden_size", why="it is what the class derives")
    if narrow:
        c.only(True, "key_query_shared_bottleneck", why="queries and keys of the model's width are not read")
    heads, act = c.size("num_attention_heads", default=4), c.activation("hidden_act", default="relu")
    c.divides(heads, t, "num_attention_heads", "the narrow width")
    form = c.text("normalization_type", default="no_norm")
    if form not in ("no_norm", "layer_norm"):
        c.fault("normalization_type", form, "'no_norm' or 'layer_norm'")

    def normed(name: str, width: int) -> Pieces:
        if form == "layer_norm":
            return [piece(name, "layer_norm", width, kind="norm")]
        return [
            piece(f"{name}_scale", "scale", width, kind="norm"),
            piece(f"{name}_shift", "shift", width, kind="norm"),
        ]

    def fed(name: str) -> Pieces:
        two = piece(f"{name}_up", "linear", t, wide), piece(f"{name}_activation", act, wide)
        made = [
            *two,
            piece(f"{name}_down", "linear", wide, t),
            *normed(f"{name}_norm", t),
            piece(f"{name}_sum", "sum", t),
        ]
        return [one | {"kind": one.get("kind", "feed_forward")} for one in made]

    layer: Pieces = []
    if narrow:
        for name in ("input", "attention_input"):
            layer += [piece(name, "linear", d, t), *normed(f"{name}_norm", t)]
    layer += [piece(name, "linear", d if name == "v" else t, t, kind="attention") for name in "qkv"]
    width = max(1, t // heads)
    layer += [piece("core", "attention", heads, width, width, kind="attention", bias=False)]
    layer += [piece("o", "linear", t, t, kind="attention")]
    layer += [*normed("attention_norm", t), piece("attention_sum", "sum", t)]
    for i in range(c.size("num_feedforward_networks", default=4)):
        layer += fed(f"feed_forward{i + 1}")
    if narrow:
        layer += [piece("output", "linear", t, d), *normed("output_norm", d), piece("output_sum", "sum", d)]
    inner = c.size("embedding_size", default=128)
    read = 3 * inner if c.flag("trigram_input", default=True) else inner
    around = [piece("tokens", "table", v, inner, kind="embedding")]
    if read != d or read != inner:
        around.append(piece("projection", "linear", read, d, kind="embedding"))
    for name, number in (("positions", c.size("max_position_embeddings", default=512)),
                         ("types", c.size("type_vocab_size", default=2))):  # fmt: skip
        around.append(piece(name, "table", number, d, kind="embedding", bias=True))
    around += normed("embedding_norm", d)
    found, head = _answers_of_bert(c, raw, v, inner)
    return listed(raw | {"around": around + found, "head": head}, {"layer": layer}, [])


def _answers_of_bert(c: Config, raw: Raw, rows: int, inner: int) -> tuple[Pieces, Raw]:
    """MobileBERT's heads: the masked language model's multiplies by the token table and by a matrix beside it."""
    d, tasks = raw["d_model"], ("sequence", "token", "question", "choice", "pretraining", "pairs")
    form = c.head_of("masked-lm", "none", *tasks)
    made: Pieces = []
    if form in ("masked-lm", "pretraining"):
        c.only(True, "tie_word_embeddings", why="the head multiplies by the token table")
        if inner >= d:
            c.fault("embedding_size", inner, f"less than hidden_size = {d:,}")
        act = c.activation("hidden_act", default="relu")
        made = [
            piece("transform", "linear", d, d),
            piece("transform_activation", act, d),
            piece("transform_norm", "layer_norm", d),
            piece("scores", "tied", inner, rows),
            piece("more_scores", "linear", max(1, d - inner), rows),
        ]
    pooled = c.flag("classifier_activation", default=True)  # else the first position as it is
    head = {"form": "none", "pooler": pooled and form in ("none", "pretraining")}
    if form in ("pretraining", "pairs", "sequence", "choice"):
        classes = 1 if form == "choice" else c.labels() if form == "sequence" else 2
        once = {"at": [0, 1, 1]}
        if pooled and form != "pretraining":
            made += [piece("pooler", "linear", d, d, **once), piece("pooler_activation", "tanh", d, **once)]
        made.append(piece("classifier", "linear", d, classes, **once))
    elif form in ("token", "question"):
        made.append(piece("classifier", "linear", d, c.labels()))
    return [one | {"kind": "head"} for one in made], head


def swin(c: Config, second: bool = False) -> Raw:
    """Stages of layers that attend in windows of a picture's patches, four of which are merged between stages. The
    `second` version norms what the parts and merges give, and makes its biases of distances by two matrices."""
    c.alone()
    patch, channels = c.size("patch_size", default=4), c.size("num_channels", default=3)
    sides = _sides(c, patch)
    depths = c.items("depths", of=size, length=None, default=[2, 2, 6, 2])
    if c.data.get("depths", depths) is None:
        c.fault("depths", None, "a list with a number of layers per stage")
    heads = c.items("num_heads", "num_attention_heads", of=size, length=len(depths), default=[3, 6, 12, 24])
    width, window = c.size("embed_dim", default=96), c.size("window_size", default=7)
    ratio, act = c.ratio("mlp_ratio", 4.0, width), c.activation("hidden_act", default="gelu")
    bias, n = c.flag("qkv_bias", default=True), len(depths)
    last = width * 2 ** max(0, n - 1)
    c.only(last, "hidden_size", why="it is what the class derives")
    raw: Raw = {"kind": "encoder", "d_model": last, "n_layers": max(1, sum(depths))}
    if not depths or len(heads) != n or last > MAX_SIZE:
        number = f"a list with a number of layers per stage, as many as num_heads, of widths from 1 to {MAX_SIZE:,}"
        c.fault("depths", depths, number)
        return raw
    around = [
        piece(
            "patches", "convolution", channels, width, patch * patch, patch * patch, kind="embedding", **places(sides)
        ),
        piece("embedding_norm", "layer_norm", width, kind="norm", **places(sides)),
    ]
    if c.flag("use_absolute_embeddings", default=False):
        around.append(
            piece("positions", "table", sides[0] * sides[1], width, kind="embedding", bias=True, **places(sides))
        )
    kinds, merges, sides = _stages(c, width, heads, window, sides, ratio, act, bias, second)
    around += [*merges, piece("norm", "layer_norm", last, kind="norm", **places(sides))]
    if c.head_of("classifier", "none") == "classifier":
        around.append(piece("classifier", "linear", last, c.labels(), kind="head", at=[0, 1, 1]))
    order = [f"{number}*stage{i + 1}" for i, number in enumerate(depths)]
    return listed(raw | {"around": around, "head": {"form": "none"}, "length": sides[0] * sides[1]}, kinds, order)


def _stages(c: Config, width: int, heads: list[int], window: int, sides: tuple[int, int], ratio: float, act: str,
            bias: bool, second: bool = False,
            ) -> tuple[dict[str, Pieces], Pieces, tuple[int, int]]:  # fmt: skip
    """A layer of each stage, what merges patches between them, and how many there are at the end."""
    kinds: dict[str, Pieces] = {}
    merges: Pieces = []
    even = sides[0] == sides[1]  # then a window is at most as wide as its stage
    for i, several in enumerate(heads):
        d = width * 2**i
        c.divides(several, d, "num_heads", "the stage's width")
        if min(sides) < window and not (second and even):
            c.fault("window_size", window, f"at most {min(sides)}, the sides of stage {i + 1}")
        across = min(*sides, window) if second else window
        kinds[f"stage{i + 1}"] = windowed(d, several, across, sides, max(1, int(ratio * d)), act, bias, second)
        if i < len(heads) - 1:
            even = even and sides[0] % 2 == 0
            sides = -(-sides[0] // 2), -(-sides[1] // 2)
            normed = 2 * d if second else 4 * d
            merges.append(piece(f"merge{i + 1}_norm", "layer_norm", normed, kind="norm", **places(sides)))
            merges.append(piece(f"merge{i + 1}", "linear", 4 * d, 2 * d, bias=False, **places(sides)))
    return kinds, merges, sides


def _sides(c: Config, patch: int) -> tuple[int, int]:
    """Patches in a picture's height and width."""
    image = c.data.get("image_size", 224)
    sides = image if isinstance(image, list) else [image, image]
    c.ignore("image_size")
    if len(sides) != 2 or not all(type(side) is int and side >= patch and side % patch == 0 for side in sides):
        c.fault("image_size", image, f"a side, or two, that patch_size = {patch} divides")
        return 56, 56
    if "image_size" not in c:
        c.assume("image_size", 224)
    return sides[0] // patch, sides[1] // patch


def places(sides: tuple[int, int], window: int = 1) -> Raw:
    """Where a picture's patches are, filled up to whole windows."""
    filled = [-(-side // window) * window for side in sides]
    return {"at": [0, filled[0] * filled[1], 1]}


def windowed(d: int, heads: int, window: int, sides: tuple[int, int], wide: int, act: str, bias: bool,
              second: bool) -> Pieces:  # fmt: skip
    """A layer of Swin: attention in square windows with biases by distance, and a feed-forward."""
    inside, width, distances = places(sides, window), max(1, d // heads), (2 * window - 1) ** 2
    core = [piece("distances", "held", distances * heads)]
    if second:
        once: Raw = {"at": [0, distances, 1], "shared": True}
        core = [piece("scale", "held", heads), piece("distances_up", "linear", 2, 512, **once)]
        core += [piece("distances_activation", "relu", 512, **once)]
        core += [piece("distances_down", "linear", 512, heads, bias=False, **once)]
    core.append(piece("core", "windows", heads, width, width, window**2, bias=True, **inside))
    return preceded(d, core, wide, act, bias, inside, places(sides), "k" if second else "")


def preceded(d: int, core: Pieces, wide: int, act: str, bias: bool, inside: Raw, here: Raw, bare: str = "") -> Pieces:
    """Attention and a feed-forward, each after a norm; the attention's matrices, of which some are `bare` of a bias
    where others have one, run `inside`, all else `here`."""
    own = {"kind": "attention"}
    made = [piece("attention_norm", "layer_norm", d, kind="norm", **here)]
    made += [piece(name, "linear", d, d, bias=bias and name not in bare, **inside, **own) for name in "qkv"]
    made += [one | own for one in core]
    made += [piece("o", "linear", d, d, **inside, **own), piece("attention_sum", "sum", d, **here)]
    made += [piece("feed_forward_norm", "layer_norm", d, kind="norm", **here)]
    both = [piece("up", "linear", d, wide, **here), piece("activation", act, wide, **here)]
    both += [piece("down", "linear", wide, d, **here), piece("feed_forward_sum", "sum", d, **here)]
    return made + [one | {"kind": "feed_forward"} for one in both]


swinv2 = partial(swin, second=True)


def donut_swin(c: Config) -> Raw:
    """Swin without a norm after the last stage, of a picture that may be a rectangle."""
    raw = swin(c)
    return raw | {"around": [one for one in raw.get("around", []) if one["name"] != "norm"]}


def deit(c: Config) -> Raw:
    """ViT with a second token, which a distilled model's other classifier reads."""
    c.alone()
    raw: Raw = {"kind": "encoder", "d_model": c.size("hidden_size"), "n_layers": c.layers("num_hidden_layers")}
    d, wide = raw["d_model"], c.size("intermediate_size")
    patch, channels = c.size("patch_size", default=16), c.size("num_channels", default=3)
    several, act = c.size("num_attention_heads", default=12), c.activation("hidden_act", default="gelu")
    c.divides(several, d, "num_attention_heads", "hidden_size")
    sides, bias = _sides(c, patch), c.flag("qkv_bias", default=True)
    seen = sides[0] * sides[1] + 2
    here, once = {"at": [0, seen, 1]}, {"at": [0, 1, 1]}
    width = max(1, d // several)
    core = piece("core", "attention", several, width, width, bias=False, **here)
    layer = preceded(d, [core], wide, act, bias, here, here)
    around = [piece("patches", "convolution", channels, d, patch**2, patch**2, kind="embedding", **places(sides))]
    around += [piece("tokens", "held", 2 * d, kind="embedding")]
    around += [piece("positions", "table", seen, d, kind="embedding", bias=True, **here)]
    around += [piece("norm", "layer_norm", d, kind="norm", **here)]
    names = c.data.get("architectures")
    twice = isinstance(names, list) and names == ["DeiTForImageClassificationWithTeacher"]
    form = "teacher" if twice else c.head_of("classifier", "none")
    c.ignore("architectures")
    if form == "none":
        pooled = c.size("pooler_output_size", default=d, null=d)
        around += [piece("pooler", "linear", d, pooled, **once)]
    else:
        around += [piece("classifier", "linear", d, c.labels(), kind="head", times=1 + twice, **once)]
    return listed(raw | {"around": around, "head": {"form": "none"}, "length": seen}, {"layer": layer}, [])


def minimax_m3_vl_text(c: Config) -> Raw:
    """Experts beside a shared one; in some layers an index of few heads selects the blocks of keys that are read."""
    raw = c.stack()
    n, d = raw["n_layers"], raw["d_model"]
    attention = c.heads(raw, kv=4, d_head=128) | {"qk_norm": "head"}
    table = c.table("sparse_attention_config") or Config({}, c.model_type, parent=c)
    c.data = {**c.data, **{new: table.data[old] for old, new in _INDEX.items() if old in table}}
    few, width = c.size("index_n_heads", default=4), c.size("index_head_dim", default=128)
    frequent = table.items("sparse_attention_freq", of=any_of(0, 1), length=n, default=[0] * n)
    types = c.layer_types(n, [_SELECTED if one else GLOBAL for one in frequent], (_SELECTED, GLOBAL))
    fed = c.items("moe_layer_freq", of=any_of(0, 1), length=n, default=[1] * n)
    names = ["sparse" if one else "dense" for one in fed]
    channels = c.items("mlp_layer_types", of=any_of("dense", "sparse"), length=n, default=names)
    c.only(fed.index(1) if 1 in fed else n, "first_k_dense_replace", why="moe_layer_freq says which layers are dense")
    c.only(1, "n_shared_experts", why="shared_intermediate_size is the width of one")
    c.ignore("num_nextn_predict_layers")  # how often its modules run
    uncounted(c)
    own: Raw = {"activation": "clamped_silu"}
    c.data = {key: value for key, value in c.data.items() if key != "hidden_act"}  # its class takes none
    mixed = c.experts(("num_local_experts", "num_experts"), TOP, ("intermediate_size",), 128, 4) | own
    mixed |= {"d_ff_shared": c.size("shared_intermediate_size", default=3072), "n_shared": 1, "scoring": "sigmoid"}
    mixed["scale"] = c.real("routed_scaling_factor", default=2.0)
    wide = {"d_ff": c.size("dense_intermediate_size", default=12288), "gated": True} | own
    chosen = [
        piece("q", "linear", d, few * width, bias=False), piece("k", "linear", d, width, bias=False),
        piece("q_norm", "rms_norm", width, groups=few, kind="norm"), piece("k_norm", "rms_norm", width, kind="norm"),
        piece("scores", "index", few, width),
    ]  # fmt: skip
    leaves = [{"kind": "attention"} | one for one in chosen]
    if _SELECTED in types:
        c.note("masked FLOPs of layers that select blocks of keys are those of all keys before a query")
    rotated = c.size("rotary_dim", default=64)
    raw |= {"attention": attention, "experts": mixed, "feed_forward": wide, "pieces": {"leaves": leaves}}
    raw |= {"norm": c.rms(offset=True, without=["pieces"]), "head": c.lm_head(tied=False)}
    places = c.rotary(attention["d_head"], 5e6)
    raw["positions"] = places | ({"rotary_dims": rotated} if rotated < attention["d_head"] else {})
    kinds = [f"{'selected' if kind == _SELECTED else 'full'}-{fed}" for kind, fed in zip(types, channels, strict=True)]
    tables: dict[str, Raw] = {}
    for kind in set(kinds):
        parts = ["pieces"] * kind.startswith("selected") + ["attention"]
        parts.append("experts" if kind.endswith("sparse") else "feed_forward")
        norm = {"norm": {"without": ["pieces"]}} if "pieces" in parts else {}
        tables[kind] = {"parts": parts} | norm
    raw["norm"].pop("without")
    return layered(raw, (kinds, tables))


_SELECTED = "minimax_m3_sparse"
# Keys of MiniMax-M3's own table, by the names that transformers gives them.
_INDEX = {
    "sparse_num_index_heads": "index_n_heads",
    "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size",
    "sparse_topk_blocks": "index_topk_blocks",
    "sparse_local_block": "index_local_blocks",
}
