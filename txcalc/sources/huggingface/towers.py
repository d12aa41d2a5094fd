"""Vision and audio towers of transformers, as descriptions of stacks; absent keys have the defaults of its classes."""

from __future__ import annotations

from typing import NamedTuple

from txcalc.sources.huggingface.config import Config, Raw, with_kinds
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
    """The sizes of a tower, by CLIP's key names; the arguments are the class's defaults."""
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
    """Pre-norm layers with LayerNorms, ungated feed-forwards, biases and learned positions; `tables` change these."""
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
    """Square images in square patches."""
    grid, pixels, channels = grid_of(v, image, patch)
    return {"image": grid * pixels, "patch": pixels, "channels": channels, **keys}


# Towers, by the model type of their configs.


def clip(v: Config) -> Tower:
    """A class token, patches without a bias, norms before and after the layers."""
    size = _sizes(v, 768, 3072, 12, 12)
    vision = square(v, 224, 32, patch_bias=False)
    ends: Raw = {"embedding": {"norm": True}, "norm": {"final": False}, "head": {"norm": True}}
    return Tower(size.width, stack(size, _act(v, "quick_gelu"), vision=vision, **ends), first=1)


def siglip(v: Config) -> Tower:
    """No class token; a head with attention pooling, unless `vision_use_head` is false."""
    return pooling(v, headless(v, 16))


def pooling(v: Config, tower: Tower) -> Tower:
    """Add SigLIP's head with attention pooling, unless `vision_use_head` is false."""
    if v.flag("vision_use_head", default=True):
        tower.raw["head"]["pool"] = "attention"
    return tower


def headless(v: Config, patch: int, width: int = 768, heads: int = 12) -> Tower:
    size = _sizes(v, width, 3072, 12, heads)
    vision = square(v, 224, patch, class_token=False)
    return Tower(size.width, stack(size, _act(v, "gelu_pytorch_tanh"), vision=vision))


def ragged(v: Config, rows: int | None, *sizes: int, patch: int = 16) -> Tower:
    """SigLIP without the head, for images of any size: `rows` learned positions are interpolated; None: only rotary
    positions."""
    size = _sizes(v, *sizes)
    vision = {"patch": side_of(v, "patch_size", patch), "class_token": False}
    vision["channels"] = v.size("num_channels", default=3)
    positions: Raw = ROTARY if rows is None else {"form": "learned", "rows": rows}
    return Tower(size.width, stack(size, _act(v, "gelu_pytorch_tanh"), vision=vision, positions=positions))


def siglip2(v: Config) -> Tower:
    return pooling(v, ragged(v, v.size("num_patches", default=256), 768, 3072, 12, 12))


def cosmos3(v: Config) -> Tower:
    return ragged(v, v.size("num_patches", default=256), 1152, 4304, 27, 16)


def paddleocr_vl(v: Config) -> Tower:
    grid, _, _ = grid_of(v, 384, 14)
    return ragged(v, grid**2, 1152, 4304, 27, 16, patch=14)


def kimi_k25(v: Config, first: str = "") -> Tower:
    """MoonViT: learned positions by height and width; `first` is a prefix of their keys."""
    rows = v.size(f"{first}pos_emb_height", default=64) * v.size(f"{first}pos_emb_width", default=64)
    return ragged(v, rows, 1152, 4304, 27, 16, patch=14)


def pixtral(v: Config) -> Tower:
    """RMSNorms, gated feed-forwards, no biases, rotary positions, images of any size."""
    size = _sizes(v, 1024, 4096, 24, 16)
    head = max(1, size.width // size.heads)
    v.multiple("head_dim", v.size("head_dim", default=head, null=head), 2)  # only rotary positions use it
    vision = square(v, 1024, 16, class_token=False, patch_bias=False)
    del vision["image"]
    tables = GATED | {"norm": {"form": "rms", "final": False}, "embedding": {"norm": True}, "positions": ROTARY}
    return Tower(size.width, stack(size, _act(v, "gelu"), vision=vision, **tables))


def ovis2(v: Config) -> Tower:
    """AIMv2: RMSNorms, gated feed-forwards, and a matrix to the vocabulary of visual tokens without the indicators."""
    size = _sizes(v, 1024, 2816, 24, 8)
    tables: dict[str, Raw] = {
        "attention": {"bias": v.flag("qkv_bias", default=False)},
        "feed_forward": {"gated": True, "bias": v.flag("mlp_bias", default=False)},
        "vision": square(v, 224, 14, class_token=False),
        "embedding": {"norm": True},
    }
    raw = stack(size, _act(v, "silu"), norm={"form": "rms"}, **tables)
    merge, vocab = v.size("hidden_stride", default=1) ** 2, v.size("vocab_size", default=16384)
    visual = vocab - v.size("num_visual_indicator_tokens", default=5)
    steps = ({"merge": merge}, {"linear": visual, "bias": False}, {"norm": "layer"}, {"merge": 1, "to": vocab})
    return Tower(vocab, raw, steps=steps)


def internvl(v: Config, bias: bool = False) -> Tower:
    """transformers' InternViT."""
    last: Steps = () if v.flag("use_mean_pooling", default=True) else ({"norm": "layer"},)
    learned = v.flag("use_absolute_position_embeddings", default=True)
    vision = square(v, 448, 14, mask_token=v.flag("use_mask_token", default=False))
    bias, qk_norm = v.flag("attention_bias", default=bias), v.flag("use_qk_norm", default=False)
    tower = _intern(v, _sizes(v, 1024, 4096, 24, 16), "layer_norm", bias, qk_norm, vision, learned)
    return tower._replace(steps=last)


def internvit(v: Config) -> Tower:
    """InternViT's published code, whose default sizes are those of the 6B model."""
    bias, qk_norm = v.flag("qkv_bias", default=False), v.flag("qk_normalization", default=True)
    return _intern(v, _sizes(v, 3200, 12800, 48, 25), "rms_norm", bias, qk_norm, square(v, 224, 14))


def _intern(v: Config, size: Sizes, form: str, bias: bool, qk_norm: bool, vision: Raw, learned: bool = True) -> Tower:
    """InternViT: a scale on each branch; `form` is the class's default of `norm_type`."""
    norm = {"layer_norm": "layer", "rms_norm": "rms"}.get(v.text("norm_type", default=form))
    if norm is None:
        v.fault("norm_type", v.data["norm_type"], "'layer_norm' or 'rms_norm'")
    attention = {"bias": ["q", "k", "v", "o"] if bias else ["o"], "qk_norm": "width" if qk_norm else "none"}
    keys = {"qk_bias": False} if qk_norm and norm == "layer" else {}
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
    """Llama 4's tower and adapter."""
    size = _sizes(v, 768, 5632, 34, 16)
    before, after = v.size("projector_input_dim", default=4096), v.size("projector_output_dim", default=4096)
    vision = square(v, 448, 14, patch_bias=False)
    raw = stack(size, _act(v, "gelu"), vision=vision, embedding={"norm": True})
    width, merge = v.size("vision_output_dim", default=7680), shuffle_factor(v, "pixel_shuffle_ratio")
    first: Steps = ({"merge": merge, "to": size.d_ff}, {"linear": before, "bias": False}, GELU)
    then: Steps = ({"merge": 1, "to": after}, {"linear": after, "bias": False}, GELU, {"merge": 1, "to": width})
    return Tower(width, raw, steps=(*first, *then), first=1)


def shuffle_factor(v: Config, key: str) -> int:
    """The number of positions that pixel shuffle merges, by the key of its ratio per side."""
    ratio = v.real(key, default=0.5)
    if not 0.01 <= ratio <= 1:
        v.fault(key, ratio, "from 0.01 to 1")
        ratio = 1.0
    return int(1 / ratio) ** 2


class QwenTower(NamedTuple):
    """Sizes of Qwen's towers: width, layers, heads, the table `vision`, and the number of patches per token."""

    width: int
    layers: int
    heads: int
    vision: Raw
    merged: int

    def sizes(self, d_ff: int) -> Sizes:
        return Sizes(self.width, d_ff, self.layers, self.heads)


def _qwen(v: Config, patch: int, width: int, heads: int, depth: int, frames: int = 2) -> QwenTower:
    d, n = v.size("hidden_size", default=width), v.size("depth", default=depth)
    h = v.size("num_heads", default=heads)
    v.divides(h, d, "num_heads", "the width")
    v.require_value(3, "in_chans", why="the class reads in_channels")
    pixels = v.size("patch_size", default=patch)
    v.require_value(pixels, "spatial_patch_size", why="it repeats patch_size")
    v.ignore("model_type", "tokens_per_second")
    channels = v.size("in_channels", default=3)
    channels *= v.size("temporal_patch_size", default=2) if frames > 1 else 1
    vision = {"patch": pixels, "channels": channels, "class_token": False}
    return QwenTower(d, n, h, vision, v.size("spatial_merge_size", default=2) ** 2)


def _merger(tower: QwenTower, out: int, norm: str = "layer") -> Steps:
    """A norm, and two matrices on merged patches."""
    width = tower.width * tower.merged
    return {"norm": norm}, {"merge": tower.merged}, {"linear": width}, GELU, {"linear": out}


def qwen2_vl(v: Config) -> Tower:
    """Qwen2-VL's tower and merger; `embed_dim` is the tower's width, `hidden_size` the language model's."""
    out = v.size("hidden_size", default=3584)
    inner = Config({**v.data, "hidden_size": v.size("embed_dim", default=1280)}, v.model_type, v.path, v)
    tower = _qwen(inner, 14, 1280, 16, 32)
    act = _act(inner, "quick_gelu")
    inner.ignore("embed_dim", "mlp_ratio", "window_size", "fullatt_block_indexes")
    v.ignore(*v.data)  # unread keys are reported of `inner`
    tables: dict[str, Raw] = {"vision": tower.vision | {"patch_bias": False}, "norm": {"final": False}}
    raw = stack(tower.sizes(mlp_width(v, tower.width, 4)), act, positions=ROTARY, **tables)
    return Tower(out, raw, steps=_merger(tower, out))


def qwen2_5_vl(v: Config, grouped: bool = False) -> Tower:
    """Qwen2.5-VL's tower and merger: RMSNorms, gated feed-forwards, biases, and windows in most layers; `grouped`:
    EXAONE 4.5's, with fewer key/value heads."""
    tower = _qwen(v, 14, 3584, 16, 32)
    f, out = v.size("intermediate_size", default=3420), v.size("out_hidden_size", default=3584)
    tables: dict[str, Raw] = {"vision": tower.vision | {"patch_bias": False}, "norm": {"form": "rms", "final": False}}
    raw = stack(tower.sizes(f), _act(v, "silu"), feed_forward={"gated": True}, positions=ROTARY, **tables)
    if grouped:
        raw["attention"]["n_kv_heads"] = v.size("num_key_value_heads", default=8)
        v.divides(raw["attention"]["n_kv_heads"], tower.heads, "num_key_value_heads", "num_heads")
    full = v.data.get("fullatt_block_indexes", [7, 15, 23, 31])
    v.ignore("fullatt_block_indexes")
    if not isinstance(full, list) or not all(type(i) is int for i in full):
        v.fault("fullatt_block_indexes", full, "a list of layers")
        full = []
    cell = v.size("spatial_merge_size", default=2)
    side = v.size("window_size", default=112) // tower.vision["patch"] // cell
    window = {"attention": {"side": max(1, side) * cell, "cell": cell}}
    kinds = ["all" if i in full else "window" for i in range(min(tower.layers, MAX_LAYERS))]
    return Tower(out, with_kinds(raw, (kinds, {"window": window, "all": {}})), steps=_merger(tower, out, "rms"))


def qwen3_vl(v: Config, deep: bool = True) -> Tower:
    """Qwen3-VL's tower, its merger, and one more for each DeepStack layer; Qwen3.5 has none of these."""
    tower = _qwen(v, 16, 1152, 16, 27)
    f, out = v.size("intermediate_size", default=4304), v.size("out_hidden_size", default=3584)
    positions = {"form": "learned", "rows": v.size("num_position_embeddings", default=2304)}
    act = _act(v, "gelu_pytorch_tanh")
    raw = stack(tower.sizes(f), act, vision=tower.vision, positions=positions, norm={"final": False})
    layers = v.data.get("deepstack_visual_indexes", [8, 16, 24]) if deep else []
    v.ignore("deepstack_visual_indexes")
    if not isinstance(layers, list) or len(layers) > tower.layers:
        v.fault("deepstack_visual_indexes", layers, "a list of layers")
        layers = []
    norm, merge, *mlp = _merger(tower, out)
    branches: Steps = ({"branch": [merge, norm, *mlp], "times": len(layers)},) if layers else ()
    return Tower(out, raw, steps=(*branches, norm, merge, *mlp))


def glm4v(v: Config, ocr: bool = False) -> Tower:
    """GLM-4.1V's tower and merger; the layers' feed-forwards have the output width. GLM-OCR's tower (`ocr`) has biases,
    norms of Q and K, and no learned positions."""
    tower = _qwen(v, 14, *((1024, 16) if ocr else (1536, 12)), 24)
    f = v.size("intermediate_size", default=4096 if ocr else 13696)
    out = v.size("out_hidden_size", default=1536 if ocr else 4096)
    grid = side_of(v, "image_size", 336) // v.size("patch_size", default=14)
    if not grid and not ocr:
        v.fault("image_size", v.data.get("image_size"), "at least patch_size: it gives the number of positions")
    bias, act = v.flag("attention_bias", default=ocr), _act(v, "silu")
    tables = GATED | {"attention": {"bias": ["q", "k", "v"] if bias else []}, "vision": tower.vision}
    tables |= {"positions": {"form": "learned", "rows": max(1, grid**2)}, "embedding": {"norm": True}}
    if ocr:
        tables |= {"attention": {"bias": bias, "qk_norm": "head"}, "positions": ROTARY}
        tables["feed_forward"] = {"gated": True, "bias": bias}
        del tables["embedding"]
    raw = stack(tower.sizes(f if ocr else out), act, **tables)
    merged: Steps = ({"merge": tower.merged}, {"linear": out}, {"linear": out, "bias": False}, {"norm": "layer"}, GELU)
    d_ff = out * v.size("in_channels", default=3) if ocr else f
    return Tower(out, raw, steps=(*merged, {"feed_forward": d_ff, "activation": act}))


def ernie4_5_vl(v: Config) -> Tower:
    """ERNIE 4.5's tower; its projector merges frames."""
    tower = _qwen(v, 14, 1280, 16, 32, frames=1)
    tables: dict[str, Raw] = {"vision": tower.vision | {"patch_bias": False}, "positions": ROTARY}
    size = tower.sizes(v.size("intermediate_size", default=5120))
    return Tower(tower.width, stack(size, _act(v, "quick_gelu"), **tables))


def step3p7(v: Config) -> Tower:
    """A scale on each branch, learned and rotary positions, and two 3 × 3 convolutions with stride 2 that double the
    channels."""
    size = _sizes(v, 1536, 8960, 47, 16)
    d, size = size.width, size._replace(d_ff=mlp_width(v, size.width, 8960 / 1536))
    vision = square(v, 728, 14, class_token=False, patch_bias=False)
    norm: Raw = {"layer_scale": True, "final": False}
    raw = stack(size, _act(v, "quick_gelu"), vision=vision, embedding={"norm": True}, norm=norm)
    return Tower(4 * d, raw, (strided_convolution(vision["image"] // vision["patch"], [d, 2 * d, 4 * d], True),))


def muse_glimmer(v: Config) -> Tower:
    """Windows as large as the position embedding in most layers; patches over two frames."""
    size, side = _sizes(v, 1536, 8960, 50, 16), v.size("pos_emb_height", default=32)
    channels = 3 * v.size("patch_temporal", default=2)
    vision = {"patch": v.size("patch_size", default=14), "channels": channels, "class_token": False}
    positions = {"form": "learned", "rows": side * v.size("pos_emb_width", default=32)}
    tables: dict[str, Raw] = {"embedding": {"norm": True}, "positions": positions}
    tables["vision"] = vision | {"patch_bias": False}
    kinds = v.data.get("layer_types")
    v.ignore("layer_types")
    if kinds is None:
        kinds = ["full_attention" if i % 4 == 3 or i == size.layers - 1 else "window_attention"
                 for i in range(min(size.layers, MAX_LAYERS))]  # fmt: skip
    cell = v.size("merge_size", default=2)
    layer_kinds = {"window_attention": {"attention": {"side": side, "cell": cell}}, "full_attention": {}}
    if not isinstance(kinds, list) or len(kinds) != size.layers or not all(kind in layer_kinds for kind in kinds):
        v.fault("layer_types", kinds, f"{size.layers} of {', '.join(layer_kinds)}")
        kinds = []
    raw = with_kinds(stack(size, _act(v, "gelu"), **tables), (kinds, layer_kinds))
    return Tower(cell**2 * size.width, raw, steps=({"merge": cell**2},))


def blip2(v: Config) -> Tower:
    """A class token, and a norm after the layers."""
    size = _sizes(v, 1408, 6144, 39, 16)
    bias = ["q", "k", "v", "o"] if v.flag("qkv_bias", default=True) else ["o"]
    return Tower(size.width, stack(size, _act(v, "gelu"), attention={"bias": bias}, vision=square(v, 224, 14)), first=1)


def molmo2(v: Config) -> Tower:
    """SigLIP without the norm after the layers."""
    size = _sizes(v, 1152, 4304, 25, 16)
    v.require_size("num_key_value_heads", size.heads, 16, "as many as query heads")
    v.require_size("head_dim", size.width // size.heads, 72, "the width / the number of heads")
    vision = square(v, 378, 14, class_token=False)
    patches = (vision["image"] // vision["patch"]) ** 2
    rows = v.size("num_position_embeddings", default=patches)
    why = "" if rows == patches else "its number of positions differs from the number of a crop's patches"
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
    """Whisper's encoder with sinusoidal positions and windows; the final norm follows the pooling."""
    window = {"window": v.size("n_window", default=100), "chunked": True}
    return whisper(v, attention=window, positions={"form": "sinusoidal"}, norm={"final": False})


def glmasr(v: Config) -> Tower:
    """Whisper's encoder with rotary positions and grouped-query attention."""
    size = _sizes(v, 1280, 5120, 32, 20)
    groups = v.size("num_key_value_heads", default=size.heads, null=size.heads)
    v.divides(groups, size.heads, "num_key_value_heads", "num_attention_heads")
    v.require_value(size.width // size.heads, "head_dim", why="the width / the number of heads")
    positions = v.size("max_position_embeddings", default=1500)
    sound = {"mels": v.size("num_mel_bins", default=128), "positions": positions}
    attention = {"n_kv_heads": groups, "bias": ["q", "v", "o"]}
    return Tower(size.width, stack(size, _act(v, "gelu"), attention=attention, audio=sound, positions=ROTARY))


def gemma4(v: Config) -> Tower:
    """Sandwich norms, norms of Q and K per head, no biases, learned positions for both axes."""
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
