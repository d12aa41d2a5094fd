"""Vision Transformers."""

from __future__ import annotations

from txcalc.sources.huggingface.config import Config
from txcalc.sources.huggingface.shared import Raw, alone, head_of, heads, labels, layer_norm, plain


def vit(c: Config) -> Raw:
    """Square patches and a class token; the classifier has a row a label."""
    alone(c)
    raw: Raw = {"kind": "vision", "d_model": c.size("hidden_size"), "n_layers": c.layers("num_hidden_layers")}
    image, patch = c.size("image_size", default=224), c.size("patch_size", default=16)
    c.divides(patch, image, "patch_size", "image_size")
    bias = ["q", "k", "v"] if c.flag("qkv_bias", default=True) else []
    c.ignore("encoder_stride", "pooler_output_size", "pooler_act")
    form = head_of(c, "classifier", "none")
    head = {"form": "classifier", "classes": labels(c)} if form == "classifier" else {"form": "none", "pooler": True}
    return raw | {
        "attention": heads(c, raw, kv_names=(), width_names=()) | {"bias": [*bias, "o"]},
        "feed_forward": plain(c),
        "norm": layer_norm(c, "layer_norm_eps", eps=1e-12),
        "positions": {"form": "learned"},
        "vision": {"image": image, "patch": patch, "channels": c.size("num_channels", default=3)},
        "head": head,
    }
