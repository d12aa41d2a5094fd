"""Vision and audio towers, whose absent keys take the defaults of transformers' classes: descriptions of stacks, and,
of those that no parts make yet, parameters alone, as sums over their tensors.
"""

from __future__ import annotations

from typing import NamedTuple

from txcalc.sources.huggingface.config import Config, Raw, layered
from txcalc.sources.huggingface.tower_types import (
    Sizes,
    Steps,
    Tower,
    grid_of,
    mlp_width,
    side_of,
    strided_convolution,
    whisper_sizes,
)
from txcalc.sources.spec import MAX_LAYERS

# Keys.


def _sizes(v: Config, width: int, d_ff: int, layers: int, heads: int) -> Sizes:
    """By the usual names; the arguments are the class's defaults."""
    d = v.size("hidden_size", default=width)
    f = v.size("intermediate_size", default=d_ff)
    n = v.layers("num_hidden_layers") if "num_hidden_layers" in v else layers
    if "num_hidden_layers" not in v:
        v.assume("num_hidden_layers", layers)
    h = v.size("num_attention_heads", default=heads)
    v.divides(h, d, "num_attention_heads", "the width")
    v.ignore("attention_dropout", "head_dim", "vocab_size")
    return Sizes(d, f, n, h)


def stack(size: Sizes, activation: str, **tables: Raw) -> Raw:
    """Layers with LayerNorms before two matrices and attention, all with biases, and learned positions; `tables` lay
    over these what is otherwise."""
    raw: Raw = {
        "attention": {"n_heads": size.heads, "d_head": max(1, size.width // size.heads), "bias": True},
        "feed_forward": {"d_ff": size.d_ff, "activation": activation, "bias": True},
        "norm": {"form": "layer"},
        "positions": {"form": "learned"},
        "head": {"form": "none"},
    }
    widths: Raw = {"kind": "encoder" if "audio" in tables else "vision", "d_model": size.width, "n_layers": size.layers}
    return widths | raw | {name: raw.get(name, {}) | table for name, table in tables.items()}


GATED: dict[str, Raw] = {  # without biases
    "norm": {"form": "rms"},
    "attention": {"bias": False},
    "feed_forward": {"gated": True, "bias": False},
}
ROTARY: Raw = {"form": "rotary"}
GELU: Raw = {"activation": "gelu"}


def _act(v: Config, default: str) -> str:
    return v.activation("hidden_act", default=default)


def square(v: Config, image: int, patch: int, **keys: bool) -> Raw:
    """Square pictures in square patches."""
    grid, pixels, channels = grid_of(v, image, patch)
    return {"image": grid * pixels, "patch": pixels, "channels": channels, **keys}


# Towers, by the model type of their configs.


def clip(v: Config) -> Tower:
    """CLIP's: a class token, patches without a bias, a norm before and after."""
    size = _sizes(v, 768, 3072, 12, 12)
    vision = square(v, 224, 32, patch_bias=False)
    ends: Raw = {"embedding": {"norm": True}, "norm": {"final": False}, "head": {"norm": True}}
    return Tower(size.width, stack(size, _act(v, "quick_gelu"), vision=vision, **ends), first=1)


def siglip(v: Config) -> Tower:
    """SigLIP's: no class token; a head that pools by attention, unless `vision_use_head` is false."""
    return pooling(v, headless(v, 16))


def pooling(v: Config, tower: Tower) -> Tower:
    """With the head that pools by attention, unless told otherwise."""
    if v.flag("vision_use_head", default=True):
        tower.raw["head"]["pool"] = "attention"
    return tower


def headless(v: Config, patch: int, width: int = 768, heads: int = 12) -> Tower:
    size = _sizes(v, width, 3072, 12, heads)
    vision = square(v, 224, patch, class_token=False)
    return Tower(size.width, stack(size, _act(v, "gelu_pytorch_tanh"), vision=vision))


def ragged(v: Config, rows: int | None, *sizes: int, patch: int = 16) -> Tower:
    """SigLIP's without the head for pictures of any size: a table of positions that is stretched over theirs; None:
    rotary ones alone."""
    size = _sizes(v, *sizes)
    vision = {"patch": side_of(v, "patch_size", patch), "class_token": False}
    vision["channels"] = v.size("num_channels", default=3)
    places: Raw = ROTARY if rows is None else {"form": "learned", "rows": rows}
    return Tower(size.width, stack(size, _act(v, "gelu_pytorch_tanh"), vision=vision, positions=places))


def siglip2(v: Config) -> Tower:
    return pooling(v, ragged(v, v.size("num_patches", default=256), 768, 3072, 12, 12))


def cosmos3(v: Config) -> Tower:
    return ragged(v, v.size("num_patches", default=256), 1152, 4304, 27, 16)


def paddleocr_vl(v: Config) -> Tower:
    grid, _, _ = grid_of(v, 384, 14)
    return ragged(v, grid**2, 1152, 4304, 27, 16, patch=14)


def kimi_k25(v: Config, first: str = "") -> Tower:
    """MoonViT: a table of positions by height and width, whose keys begin with `first`."""
    rows = v.size(f"{first}pos_emb_height", default=64) * v.size(f"{first}pos_emb_width", default=64)
    return ragged(v, rows, 1152, 4304, 27, 16, patch=14)


def pixtral(v: Config) -> Tower:
    """Pixtral's: RMSNorms, gated, no biases, rotary positions, pictures of any size."""
    size = _sizes(v, 1024, 4096, 24, 16)
    head = max(1, size.width // size.heads)
    v.multiple("head_dim", v.size("head_dim", default=head, null=head), 2)  # of which positions alone follow
    vision = square(v, 1024, 16, class_token=False, patch_bias=False)
    del vision["image"]
    tables = GATED | {"norm": {"form": "rms", "final": False}, "embedding": {"norm": True}, "positions": ROTARY}
    return Tower(size.width, stack(size, _act(v, "gelu"), vision=vision, **tables))


def ovis2(v: Config) -> Tower:
    """AIMv2: RMSNorms, gated, and a matrix to a vocabulary of visual words, less the indicators."""
    size = _sizes(v, 1024, 2816, 24, 8)
    tables: dict[str, Raw] = {
        "attention": {"bias": v.flag("qkv_bias", default=False)},
        "feed_forward": {"gated": True, "bias": v.flag("mlp_bias", default=False)},
        "vision": square(v, 224, 14, class_token=False),
        "embedding": {"norm": True},
    }
    raw = stack(size, _act(v, "silu"), norm={"form": "rms"}, **tables)
    merged, words = v.size("hidden_stride", default=1) ** 2, v.size("vocab_size", default=16384)
    visual_words = words - v.size("num_visual_indicator_tokens", default=5)
    steps = ({"merge": merged}, {"linear": visual_words, "bias": False}, {"norm": "layer"}, {"merge": 1, "to": words})
    return Tower(words, raw, steps=steps)


def internvl(v: Config, bias: bool = False) -> Tower:
    """InternViT as transformers has it."""
    last: Steps = () if v.flag("use_mean_pooling", default=True) else ({"norm": "layer"},)
    learned = v.flag("use_absolute_position_embeddings", default=True)
    vision = square(v, 448, 14, mask_token=v.flag("use_mask_token", default=False))
    biased, normed = v.flag("attention_bias", default=bias), v.flag("use_qk_norm", default=False)
    tower = _intern(v, _sizes(v, 1024, 4096, 24, 16), "layer_norm", biased, normed, vision, learned)
    return tower._replace(steps=last)


def internvit(v: Config) -> Tower:
    """InternViT as its published code has it, where absent sizes are those of the one with 6 billion parameters."""
    biased, normed = v.flag("qkv_bias", default=False), v.flag("qk_normalization", default=True)
    return _intern(v, _sizes(v, 3200, 12800, 48, 25), "rms_norm", biased, normed, square(v, 224, 14))


def _intern(v: Config, size: Sizes, form: str, biased: bool, normed: bool, vision: Raw, learned: bool = True) -> Tower:
    """A scale on each branch; biases and norms as its config says, or else its class."""
    norm = {"layer_norm": "layer", "rms_norm": "rms"}.get(v.text("norm_type", default=form))
    if norm is None:
        v.fault("norm_type", v.data["norm_type"], "'layer_norm' or 'rms_norm'")
    attention = {"bias": ["q", "k", "v", "o"] if biased else ["o"], "qk_norm": "width" if normed else "none"}
    keys = {"qk_bias": False} if normed and norm == "layer" else {}
    raw = stack(
        size,
        _act(v, "gelu"),
        attention=attention,
        norm={"form": norm or "layer", "layer_scale": True, "final": False, **keys},
        positions={"form": "learned" if learned else "none"},
        vision=vision,
    )
    return Tower(size.width, raw, first=1)


def llama4(v: Config) -> Tower:
    """Llama 4's, with its adapter."""
    size = _sizes(v, 768, 5632, 34, 16)
    before, after = v.size("projector_input_dim", default=4096), v.size("projector_output_dim", default=4096)
    vision = square(v, 448, 14, patch_bias=False)
    raw = stack(size, _act(v, "gelu"), vision=vision, embedding={"norm": True})
    width, merge = v.size("vision_output_dim", default=7680), shuffled(v, "pixel_shuffle_ratio")
    first: Steps = ({"merge": merge, "to": size.d_ff}, {"linear": before, "bias": False}, GELU)
    then: Steps = ({"merge": 1, "to": after}, {"linear": after, "bias": False}, GELU, {"merge": 1, "to": width})
    return Tower(width, raw, steps=(*first, *then), first=1)


def shuffled(v: Config, key: str) -> int:
    """Positions that become one where both sides of a picture shrink by a ratio."""
    ratio = v.real(key, default=0.5)
    if not 0.01 <= ratio <= 1:
        v.fault(key, ratio, "from 0.01 to 1")
        ratio = 1.0
    return int(1 / ratio) ** 2


class Merging(NamedTuple):
    """What towers of Qwen's line have: layers, heads, patches over time, and how many of them are merged."""

    width: int
    layers: int
    heads: int
    vision: Raw
    merged: int

    def of(self, d_ff: int) -> Sizes:
        return Sizes(self.width, d_ff, self.layers, self.heads)


def _qwen(v: Config, patch: int, width: int, heads: int, depth: int, frames: int = 2) -> Merging:
    d, n = v.size("hidden_size", default=width), v.size("depth", default=depth)
    h = v.size("num_heads", default=heads)
    v.divides(h, d, "num_heads", "the width")
    v.require_value(3, "in_chans", why="in_channels is what the class reads")
    pixels = v.size("patch_size", default=patch)
    v.require_value(pixels, "spatial_patch_size", why="it repeats patch_size")
    v.ignore("model_type", "tokens_per_second")
    channels = v.size("in_channels", default=3)
    channels *= v.size("temporal_patch_size", default=2) if frames > 1 else 1
    vision = {"patch": pixels, "channels": channels, "class_token": False}
    return Merging(d, n, h, vision, v.size("spatial_merge_size", default=2) ** 2)


def _merger(tower: Merging, out: int, norm: str = "layer") -> Steps:
    """A norm, and two matrices on patches side by side."""
    wide = tower.width * tower.merged
    return {"norm": norm}, {"merge": tower.merged}, {"linear": wide}, GELU, {"linear": out}


def qwen2_vl(v: Config) -> Tower:
    """Qwen2-VL's, with its merger: `embed_dim` is the tower's width, `hidden_size` the language model's."""
    out = v.size("hidden_size", default=3584)
    inner = Config({**v.data, "hidden_size": v.size("embed_dim", default=1280)}, v.model_type, v.path, v)
    tower = _qwen(inner, 14, 1280, 16, 32)
    act = _act(inner, "quick_gelu")
    inner.ignore("embed_dim", "mlp_ratio", "window_size", "fullatt_block_indexes")
    v.ignore(*v.data)  # the inner one tells what is left over
    tables: dict[str, Raw] = {"vision": tower.vision | {"patch_bias": False}, "norm": {"final": False}}
    raw = stack(tower.of(mlp_width(v, tower.width, 4)), act, positions=ROTARY, **tables)
    return Tower(out, raw, steps=_merger(tower, out))


def qwen2_5_vl(v: Config, grouped: bool = False) -> Tower:
    """Qwen2.5-VL's, with its merger: RMSNorms, gated, biases everywhere, and windows of patches in most layers; EXAONE
    4.5's has fewer key/value heads."""
    tower = _qwen(v, 14, 3584, 16, 32)
    f, out = v.size("intermediate_size", default=3420), v.size("out_hidden_size", default=3584)
    tables: dict[str, Raw] = {"vision": tower.vision | {"patch_bias": False}, "norm": {"form": "rms", "final": False}}
    raw = stack(tower.of(f), _act(v, "silu"), feed_forward={"gated": True}, positions=ROTARY, **tables)
    if grouped:
        raw["attention"]["n_kv_heads"] = v.size("num_key_value_heads", default=8)
        v.divides(raw["attention"]["n_kv_heads"], tower.heads, "num_key_value_heads", "num_heads")
    everywhere = v.data.get("fullatt_block_indexes", [7, 15, 23, 31])
    v.ignore("fullatt_block_indexes")
    if not isinstance(everywhere, list) or not all(type(i) is int for i in everywhere):
        v.fault("fullatt_block_indexes", everywhere, "a list of layers")
        everywhere = []
    cell = v.size("spatial_merge_size", default=2)
    side = v.size("window_size", default=112) // tower.vision["patch"] // cell
    window = {"attention": {"side": max(1, side) * cell, "cell": cell}}
    kinds = ["all" if i in everywhere else "window" for i in range(min(tower.layers, MAX_LAYERS))]
    return Tower(out, layered(raw, (kinds, {"window": window, "all": {}})), steps=_merger(tower, out, "rms"))


def qwen3_vl(v: Config, deep: bool = True) -> Tower:
    """Qwen3-VL's, with its merger and one more for each layer that is handed on; Qwen3.5 hands none on."""
    tower = _qwen(v, 16, 1152, 16, 27)
    f, out = v.size("intermediate_size", default=4304), v.size("out_hidden_size", default=3584)
    places = {"form": "learned", "rows": v.size("num_position_embeddings", default=2304)}
    act = _act(v, "gelu_pytorch_tanh")
    raw = stack(tower.of(f), act, vision=tower.vision, positions=places, norm={"final": False})
    handed = v.data.get("deepstack_visual_indexes", [8, 16, 24]) if deep else []
    v.ignore("deepstack_visual_indexes")
    if not isinstance(handed, list) or len(handed) > tower.layers:
        v.fault("deepstack_visual_indexes", handed, "a list of layers")
        handed = []
    norm, merge, *steps_after = _merger(tower, out)
    branches: Steps = ({"branch": [merge, norm, *steps_after], "times": len(handed)},) if handed else ()
    return Tower(out, raw, steps=(*branches, norm, merge, *steps_after))


def glm4v(v: Config, ocr: bool = False) -> Tower:
    """GLM-4.1V's, with its merger; the layers' feed-forwards are as wide as what comes out. GLM-OCR's have biases and
    norms of Q and K, and no table of positions."""
    tower = _qwen(v, 14, *((1024, 16) if ocr else (1536, 12)), 24)
    f = v.size("intermediate_size", default=4096 if ocr else 13696)
    out = v.size("out_hidden_size", default=1536 if ocr else 4096)
    grid = side_of(v, "image_size", 336) // v.size("patch_size", default=14)
    if not grid and not ocr:
        v.fault("image_size", v.data.get("image_size"), "at least patch_size, for a table of positions of its patches")
    biased, act = v.flag("attention_bias", default=ocr), _act(v, "silu")
    tables = GATED | {"attention": {"bias": ["q", "k", "v"] if biased else []}, "vision": tower.vision}
    tables |= {"positions": {"form": "learned", "rows": max(1, grid**2)}, "embedding": {"norm": True}}
    if ocr:
        tables |= {"attention": {"bias": biased, "qk_norm": "head"}, "positions": ROTARY}
        tables["feed_forward"] = {"gated": True, "bias": biased}
        del tables["embedding"]
    raw = stack(tower.of(f if ocr else out), act, **tables)
    merged: Steps = ({"merge": tower.merged}, {"linear": out}, {"linear": out, "bias": False}, {"norm": "layer"}, GELU)
    wide = out * v.size("in_channels", default=3) if ocr else f
    return Tower(out, raw, steps=(*merged, {"feed_forward": wide, "activation": act}))


def ernie4_5_vl(v: Config) -> Tower:
    """ERNIE 4.5's, whose frames are merged by its resampler."""
    tower = _qwen(v, 14, 1280, 16, 32, frames=1)
    tables: dict[str, Raw] = {"vision": tower.vision | {"patch_bias": False}, "positions": ROTARY}
    size = tower.of(v.size("intermediate_size", default=5120))
    return Tower(tower.width, stack(size, _act(v, "quick_gelu"), **tables))


def step3p7(v: Config) -> Tower:
    """A scale on each branch, a table of positions and rotary ones, and two convolutions of 3 × 3 with a stride of 2
    that double the channels."""
    size = _sizes(v, 1536, 8960, 47, 16)
    d, size = size.width, size._replace(d_ff=mlp_width(v, size.width, 8960 / 1536))
    vision = square(v, 728, 14, class_token=False, patch_bias=False)
    norm: Raw = {"layer_scale": True, "final": False}
    raw = stack(size, _act(v, "quick_gelu"), vision=vision, embedding={"norm": True}, norm=norm)
    return Tower(4 * d, raw, (strided_convolution(vision["image"] // vision["patch"], [d, 2 * d, 4 * d], True),))


def muse_glimmer(v: Config) -> Tower:
    """Windows as large as the table of positions in most layers; patches over two frames."""
    size, side = _sizes(v, 1536, 8960, 50, 16), v.size("pos_emb_height", default=32)
    channels = 3 * v.size("patch_temporal", default=2)
    vision = {"patch": v.size("patch_size", default=14), "channels": channels, "class_token": False}
    places = {"form": "learned", "rows": side * v.size("pos_emb_width", default=32)}
    tables: dict[str, Raw] = {"embedding": {"norm": True}, "positions": places}
    tables["vision"] = vision | {"patch_bias": False}
    kinds = v.data.get("layer_types")
    v.ignore("layer_types")
    if kinds is None:
        kinds = ["full_attention" if i % 4 == 3 or i == size.layers - 1 else "window_attention"
                 for i in range(min(size.layers, MAX_LAYERS))]  # fmt: skip
    cell = v.size("merge_size", default=2)
    known = {"window_attention": {"attention": {"side": side, "cell": cell}}, "full_attention": {}}
    if not isinstance(kinds, list) or len(kinds) != size.layers or not all(kind in known for kind in kinds):
        v.fault("layer_types", kinds, f"{size.layers} of {', '.join(known)}")
        kinds = []
    raw = layered(stack(size, _act(v, "gelu"), **tables), (kinds, known))
    return Tower(cell**2 * size.width, raw, steps=({"merge": cell**2},))


def blip2(v: Config) -> Tower:
    """A class token, and a norm after the layers; what a Q-Former reads."""
    size = _sizes(v, 1408, 6144, 39, 16)
    bias = ["q", "k", "v", "o"] if v.flag("qkv_bias", default=True) else ["o"]
    return Tower(size.width, stack(size, _act(v, "gelu"), attention={"bias": bias}, vision=square(v, 224, 14)), first=1)


def molmo2(v: Config) -> Tower:
    """SigLIP's without the norm after the layers."""
    size = _sizes(v, 1152, 4304, 25, 16)
    v.require_size("num_key_value_heads", size.heads, 16, "as many as query heads")
    v.require_size("head_dim", size.width // size.heads, 72, "the width over the heads")
    vision = square(v, 378, 14, class_token=False)
    patches = (vision["image"] // vision["patch"]) ** 2
    rows = v.size("num_position_embeddings", default=patches)
    why = "" if rows == patches else "its table of positions is not one of its crops' patches"
    if why:
        del vision["image"]
    raw = stack(size, _act(v, "gelu_pytorch_tanh"), vision=vision, positions={"rows": rows}, norm={"final": False})
    return Tower(size.width, raw, why=why)


def whisper(v: Config, *defaults: object, bands: int = 128, **tables: Raw) -> Tower:
    """Whisper's encoder: two convolutions, K without a bias."""
    size = whisper_sizes(v, *(defaults or (1280, 5120, 32, 20)))
    sound = {"mels": v.size("num_mel_bins", default=bands), "positions": v.size("max_source_positions", default=1500)}
    act = v.activation("activation_function", default="gelu")
    tables["attention"] = {"bias": ["q", "v", "o"], **tables.get("attention", {})}
    return Tower(size.width, stack(size, act, audio=sound, **tables))


def qwen2_5_omni(v: Config) -> Tower:
    """Whisper's with sines for positions, in windows, and the norm after frames are averaged."""
    window = {"window": v.size("n_window", default=100), "chunked": True}
    return whisper(v, attention=window, positions={"form": "sinusoidal"}, norm={"final": False})


def glmasr(v: Config) -> Tower:
    """Whisper's with rotary positions in place of a table, and as many key/value heads as its config says."""
    size = _sizes(v, 1280, 5120, 32, 20)
    groups = v.size("num_key_value_heads", default=size.heads, null=size.heads)
    v.divides(groups, size.heads, "num_key_value_heads", "num_attention_heads")
    v.require_value(size.width // size.heads, "head_dim", why="the width over the heads")
    positions = v.size("max_position_embeddings", default=1500)
    sound = {"mels": v.size("num_mel_bins", default=128), "positions": positions}
    attention = {"n_kv_heads": groups, "bias": ["q", "v", "o"]}
    return Tower(size.width, stack(size, _act(v, "gelu"), attention=attention, audio=sound, positions=ROTARY))


def gemma4(v: Config) -> Tower:
    """Gemma 4's: norms around both parts, of Q and K head by head, no biases, a table of positions for both axes."""
    size = _sizes(v, 768, 3072, 16, 12)
    groups, patch = v.size("num_key_value_heads", default=12), v.size("patch_size", default=16)
    v.divides(groups, size.heads, "num_key_value_heads", "num_attention_heads")
    width = v.size("head_dim", default=64)
    attention = {"n_kv_heads": groups, "d_head": width, "bias": False, "qk_norm": "head", "v_norm": True}
    raw = stack(
        size,
        v.activation("hidden_activation", "hidden_act", default="gelu_pytorch_tanh"),
        attention=attention,
        feed_forward={"gated": True, "bias": False},
        norm={"form": "rms", "place": "sandwich", "final": False},
        positions={"form": "learned", "rows": 2 * v.size("position_embedding_size", default=10240)},
        vision={"patch": patch, "class_token": False, "patch_bias": False},
    )
    return Tower(size.width, raw, steps=({"pool": v.size("pooling_kernel_size", default=3) ** 2},))
