"""Image–text models: CLIP's and SigLIP's encoders, alone and in pairs; BLIP, GIT and LayoutLMv3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import isqrt

from txcalc.errors import ABSENT, quote
from txcalc.sources import build
from txcalc.sources.huggingface import towers
from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.encoder import bert_like
from txcalc.sources.huggingface.keys import without
from txcalc.sources.huggingface.leaf_list import leaf
from txcalc.sources.huggingface.tower_registry import tower_model
from txcalc.sources.huggingface.tower_types import Tower
from txcalc.sources.huggingface.towers import clip as clip_tower
from txcalc.sources.huggingface.vision import square_images
from txcalc.sources.spec import MAX_SIZE


def _layers(c: Config, raw: Raw, act: str, eps: float = 1e-5) -> Raw:
    """Pre-norm layers with biases everywhere."""
    c.ignore("projection_dim", "dropout", "tie_word_embeddings")
    return raw | {
        "attention": c.mha(raw, bias=True),
        "feed_forward": c.mlp(act=act),
        "norm": c.layer_norm("layer_norm_eps", eps=eps),
    }


def _projection(c: Config, form: str) -> Raw:
    """A matrix without a bias from the pooled position to the width that both encoders share."""
    if form != "projected":
        return {"form": "none"}
    return {"form": "classifier", "classes": c.size("projection_dim", default=512), "bias": False, "every": False}


def clip_text_model(c: Config, form: str = "") -> Raw:
    """Causal layers over a text; in some classes the last token's state is projected."""
    c.require_single_stack()
    raw = c.widths("decoder")
    head = _projection(c, form or c.head_of("none", "projected"))
    if not form:
        c.note("its layers are causal but run once over a whole text: the cache is not used")
    rows = c.size("max_position_embeddings", default=77)
    return _layers(c, raw, "quick_gelu") | {
        "context": rows,
        "positions": {"form": "learned", "rows": rows},
        "head": head,
    }


def _vision_model(c: Config, read_tower: Callable[[Config], Tower], eps: float) -> Raw:
    """A tower as a model; its config must give the primary sizes."""
    for key in ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads"):
        c.size(key)
    c.ignore("dropout", "tie_word_embeddings")
    raw = read_tower(c).raw
    return raw | {"norm": c.layer_norm("layer_norm_eps", eps=eps) | raw["norm"]}


def clip_vision_model(c: Config, form: str = "") -> Raw:
    """CLIP's image encoder; in some classes the class token's state is projected."""
    head = _projection(c, form or c.head_of("none", "projected"))
    square_images(c, 32)
    return _vision_model(c, towers.clip, 1e-5) | {"head": head | {"norm": True}}


def clip(c: Config) -> Raw:
    """Both encoders with projections; the scores are all pairs of images and texts of a batch."""
    c.head_of("none")
    width, halves = c.size("projection_dim", default=512), {}
    for half, key, reader in (("encoder", "vision", clip_vision_model), ("decoder", "text", clip_text_model)):
        table = config_of(c, key)
        inner = Config({**table, "projection_dim": width}, f"clip_{key}_model", f"{key}_config.", c, partial=True)
        inner.ignore("architectures")
        halves[half] = reader(inner, "projected")
    first, second = halves["encoder"], halves["decoder"]
    second |= {"matched": True, "idle": 1}  # the temperature
    second["layer"] = {"text": {"parts": ["attention", "feed_forward"]}}
    first["embedding"] |= {"shared": False}
    c.note("two encoders, for an image and a text; neither uses a cache")
    c.note("other FLOPs do not count the normalisation of both vectors")
    stacks = {half: without(raw, "kind", "context") for half, raw in halves.items()}
    return {"kind": "encoder-decoder", **stacks}


def siglip_text_model(c: Config) -> Raw:
    """A bidirectional text encoder; the last token's state is projected."""
    c.require_single_stack()
    raw: Raw = {
        "kind": "encoder",
        "d_model": c.size("hidden_size"),
        "n_layers": c.layers("num_hidden_layers"),
        "vocab_size": c.size("vocab_size", default=32000),
    }
    c.padding_within(raw)
    c.head_of("none")
    rows, width = c.size("max_position_embeddings", default=64), c.size("projection_size", default=raw["d_model"])
    return _layers(c, raw, "gelu_pytorch_tanh", 1e-6) | {
        "context": rows,
        "positions": {"form": "learned", "rows": rows},
        "head": {"form": "classifier", "classes": width, "every": False},
    }


def siglip_vision_model(c: Config) -> Raw:
    c.head_of("none")
    square_images(c, 16)
    return _vision_model(c, towers.siglip, 1e-6)


def siglip2_vision_model(c: Config) -> Raw:
    """SigLIP 2 (NaFlex) for images of any shape; the description has as many patches as its position embedding."""
    c.head_of("none")
    rows = c.size("num_patches", default=256)
    if (side := isqrt(rows)) ** 2 != rows:
        c.fault("num_patches", rows, "a square number", "other position embeddings are not supported")
    raw = _vision_model(c, towers.siglip2, 1e-6)
    raw["vision"]["image"] = side * raw["vision"]["patch"]
    c.assumptions.append(f"an image of {side**2:,} patches: its processor's max_num_patches sets the padded number")
    return raw


def siglip(c: Config, vision: Callable[[Config], Raw] = siglip_vision_model) -> Raw:
    """The image encoder, read by `vision`; the text encoder does not run. Classifiers have no text encoder."""
    form, kind = c.head_of("none", "classifier"), c.model_type
    if not c.data.get("architectures"):
        c.fault("architectures", c.data.get("architectures"), f'["{kind.title()}Model"]', "the default of transformers "
                "is an image classifier")  # fmt: skip
    configs = [
        Config({**config_of(c, key), "architectures": None}, f"{kind}_{key}_model", f"{key}_config.", c, partial=True)
        for key in (("vision",) if form == "classifier" else ("vision", "text"))
    ]
    raw = vision(configs[0])
    if form == "classifier":
        classes = leaf("classifier", "linear", raw["d_model"], c.labels(), kind="head", at=[0, 1, 1])
        return raw | {"around": [*raw.get("around", ()), classes]}
    text = siglip_text_model(configs[1])
    idle = (0 if c.faults else build(text, "text").params) + 2
    return c.with_idle(raw, idle, "the text encoder and the scale and bias of scores")


siglip2 = partial(siglip, vision=siglip2_vision_model)


def config_of(c: Config, key: str) -> Mapping[str, object]:
    """The config of one encoder. Configs of transformers 4 may have it twice; then transformers reads the one that ends
    in `_dict`, with the class's defaults."""
    old, new = c.data.get(f"{key}_config_dict"), c.data.get(f"{key}_config")
    c.ignore(f"{key}_config_dict", f"{key}_config")
    for name, value in ((f"{key}_config_dict", old), (f"{key}_config", new)):
        if value is not None and not isinstance(value, Mapping):
            c.fault(name, value, "an object, the encoder's config")
    if not isinstance(new, Mapping) and not isinstance(old, Mapping):
        c.fault(f"{key}_config", ABSENT if new is None else new, "an object, the encoder's config")
    first: Mapping[str, object] = new if isinstance(new, Mapping) else {}
    if not isinstance(old, Mapping):
        return first
    for name, value in old.items():
        if first.get(name, value) != value:
            c.fault(f"{key}_config.{name}", first[name], f"{quote(value)}, the value of {key}_config_dict")
    return old


def blip(c: Config) -> Raw:
    """An image encoder and a post-norm decoder with cross-attention; the head is BERT's masked-LM head."""
    form = c.head_of("lm")
    parts = [
        Config(config_of(c, key), f"blip_{key}_model", f"{key}_config.", c, partial=True) for key in ("vision", "text")
    ]
    v, t = parts
    for half in parts:
        half.ignore("architectures", "label_smoothing")
    raw, vision = square_images(v, 16, 384)
    encoder = _layers(v, raw, "gelu") | {"positions": {"form": "learned"}, "vision": vision}
    encoder |= {"embedding": {"shared": False}}
    t.require_value(encoder["d_model"], "encoder_hidden_size", why="the class takes the width of vision_config")
    text: Raw = {
        "d_model": t.size("hidden_size"),
        "n_layers": t.layers("num_hidden_layers"),
        "vocab_size": t.size("vocab_size"),
    }
    t.padding_within(text)
    decoder = text | {
        "attention": t.mha(text) | {"bias": True},
        "feed_forward": t.mlp(),
        "norm": t.layer_norm("layer_norm_eps", eps=1e-12, place="post"),
        "positions": {"form": "learned", "rows": t.size("max_position_embeddings", default=512)},
        "embedding": {"norm": True},
        "head": {"form": "masked-lm", "tied": form == "lm"},
    }
    stacks = {half: without(raw, "kind") for half, raw in (("encoder", encoder), ("decoder", decoder))}
    return {"kind": "encoder-decoder", **stacks}


def git(c: Config) -> Raw:
    """A post-norm decoder whose input is an image's patches, as tokens, followed by the text."""
    c.require_single_stack()
    raw = c.widths("decoder")
    head: Raw = {"form": "none"}
    if c.head_of("lm", "none") == "lm":
        head = {"tied": c.flag("tie_word_embeddings", default=False), "bias": True}
    else:
        c.ignore("tie_word_embeddings")
    d, rows = raw["d_model"], c.size("max_position_embeddings", default=1024)
    vision = c.nested("vision_config", "git_vision_model", {})
    vision.data = {"patch_size": 16, **vision.data}
    tower = clip_tower(vision)
    frames = c.size("num_image_with_embedding", default=None, null=None) or 0
    idle = tower_model(tower.raw).params if not c.faults else 0
    idle += (tower.width + 3) * d + frames * tower.width
    status = "are counted but not run; each position of an image is a further token"
    raw = c.with_idle(raw, idle, "the image encoder and its projection", status)
    attention = c.mha(raw, bias=True)
    norm, positions = c.layer_norm("layer_norm_eps", eps=1e-12, place="post"), {"form": "learned", "rows": rows}
    raw |= {"context": rows, "embedding": {"norm": True}}
    return c.decoder(raw, attention, mlp=c.mlp(), norm=norm, positions=positions, head=head)


def layoutlmv3(c: Config) -> Raw:
    """RoBERTa with relative position biases in the text and on the page, embeddings of positions on the page, and an
    image's patches."""
    raw = bert_like(c, sequence_layer="tanh", without=("choice",), pooler=False, eps=1e-5)
    d, n_heads, rows = raw["d_model"], raw["attention"]["n_heads"], c.size("max_2d_position_embeddings", default=1024)
    coordinate, shape = (c.size(key, default=128) for key in ("coordinate_size", "shape_size"))
    if 4 * coordinate + 2 * shape != d:
        c.fault("coordinate_size", coordinate, f"a quarter of hidden_size − 2·shape_size = {d - 2 * shape:,}")
    idle = 2 * rows * (coordinate + shape)
    buckets, distance = c.size("rel_pos_bins", default=32), c.size("max_rel_pos", default=128)
    if c.flag("has_relative_attention_bias", default=True):
        raw["positions"] |= {"form": "relative", "buckets": buckets, "distance": distance}
    page_buckets = c.size("rel_2d_pos_bins", default=64)
    if c.flag("has_spatial_attention_bias", default=True):
        idle += 2 * page_buckets * n_heads
    side, patch = c.size("input_size", default=224), c.size("patch_size", default=16)
    channels = c.size("num_channels", default=3)
    if c.flag("visual_embed", default=True):
        grid = int(side / patch)
        idle += (channels * patch**2 + 2) * d + (grid**2 + 1) * d + 4 * d
    if idle > MAX_SIZE:
        c.fault("max_2d_position_embeddings", rows, f"at most {MAX_SIZE:,} parameters on the page")
    status = "are counted; their sums are not counted in other FLOPs, and patches of an image are further tokens"
    raw = c.with_idle(raw, idle, "the embeddings of the page and of its image", status)
    head = raw["head"]
    if head["form"] == "classifier":
        form = c.head_of("none", "sequence", "token", "question")
        transform = form != "token" or c.labels() >= 10
        raw["head"] = c.classifier(form) | ({"transform": "tanh"} if transform else {})
    elif head["form"] != "none":
        raw["head"] = {"form": "none"}
    return raw
