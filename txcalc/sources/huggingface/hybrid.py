"""Attention beside Mamba-2 or a delta rule: in turn, side by side in one layer, or shared between layers."""

from __future__ import annotations

from typing import Any

from txcalc.sources.huggingface.config import Config, number
from txcalc.sources.huggingface.recurrent import granite_mixer
from txcalc.sources.huggingface.shared import Raw, gated, heads, layered, lm_head, rms, rotary, stack
from txcalc.sources.spec import real


def _bamba_decoder(c: Config, inner: Any, partial: float) -> Raw:
    """What Bamba and Falcon-H1 have in common: all but which layer is what. `inner`: channels, from the width D."""
    raw = stack(c)
    attention = heads(c, raw, kv=8) | {"bias": c.flag("attention_bias", default=False)}
    return raw | {
        "attention": attention,
        "mamba2": granite_mixer(c, raw, inner(raw["d_model"])),
        "feed_forward": gated(c, bias=c.flag("mlp_bias", default=False)),
        "norm": rms(c, eps=1e-5),
        "positions": rotary(c, attention["d_head"], partial=partial),
        "head": lm_head(c, tied=False),
    }


def bamba(c: Config) -> Raw:
    """Mamba-2, and attention in the layers that `attn_layer_indices` lists; half of a head is rotated."""
    raw = _bamba_decoder(c, lambda width: c.size("mamba_expand", default=2) * width, 0.5)
    c.ignore("attn_rotary_emb")  # the class rotates what partial_rotary_factor says
    listed = c.items("attn_layer_indices", of=number, length=None, default=[])
    names = ["attention" if i in listed else "mamba2" for i in range(raw["n_layers"])]
    return layered(raw, (names, {name: {"parts": [name, "feed_forward"]} for name in set(names)}))


def falcon_h1(c: Config) -> Raw:
    """Mamba-2 and attention side by side in every layer. The multipliers within a layer scale what is computed and
    change no size."""

    def inner(width: int) -> Any:
        expand = c.size("mamba_expand", default=2)
        return c.size("mamba_d_ssm", default=1024, null=expand * width)

    raw = _bamba_decoder(c, inner, 1.0)
    bias = raw["mamba2"]["bias"]
    outward = c.flag("projectors_bias", default=False)
    if outward != bias:
        c.fault("projectors_bias", outward, f"mamba_proj_bias = {bias}", "biases on one side alone are not read")
    raw["mamba2"]["norm"] = c.flag("mamba_rms_norm", default=False)
    c.ignore("mamba_norm_before_gate")  # where the norm stands, not whether there is one
    for key, length in (("mlp_multipliers", 2), ("ssm_multipliers", 5)):
        given = c.items(key, of=real, length=None, default=None)
        if given is not None and len(given) != length:
            c.fault(key, given, f"a list of {length} numbers")
    c.ignore("attention_in_multiplier", "attention_out_multiplier", "key_multiplier")
    c.ignore("ssm_in_multiplier", "ssm_out_multiplier")
    c.only(True, "mamba_use_mlp", why="every layer has a feed-forward")
    c.only([], "attn_layer_indices", why="every layer has attention")
    c.ignore("mlp_expansion_factor")  # intermediate_size says the width
    raw["norm"]["abreast"] = ["mamba2", "attention"]
    embedding = c.real("embedding_multiplier", default=1.0)
    raw |= {"embedding": {"scale": embedding}} if embedding != 1 else {}
    scale = c.real("lm_head_multiplier", default=1.0)
    raw["head"] |= {"scale": scale} if scale != 1 else {}
    return layered(raw, (["both"] * raw["n_layers"], {"both": {"parts": ["mamba2", "attention", "feed_forward"]}}))
