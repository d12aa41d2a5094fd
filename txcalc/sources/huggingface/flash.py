"""Models of flash-linear-attention, which its own library registers: no code lies beside their weights."""

from __future__ import annotations

from txcalc.sources.huggingface.config import Config, Raw, layered

# Kernels, losses and ways to compute the same, none of which changes a size.
KERNELS = ("fuse_norm", "fuse_swiglu", "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp", "attn_mode")


def _stack(c: Config) -> Raw:
    """The widths, norms, feed-forward and head that the models share."""
    c.of_its_own()
    c.alone()
    _on(c, "elementwise_affine", "norms with weights are read")
    c.only(None, "attn", "attnres_block_size", why="layers of one kind without residuals over layers are read")
    c.ignore(*KERNELS)
    d, ratio = c.size("hidden_size", default=2048), c.size("hidden_ratio", null=4)  # no other code has this key
    wide = -(-(2 * d * ratio // 3) // 256) * 256  # two thirds, up to a multiple of 256
    width = c.size("intermediate_size", default=wide, null=wide)
    return {
        "kind": "decoder",
        "d_model": d,
        "n_layers": c.layers("num_hidden_layers"),
        "vocab_size": c.size("vocab_size", default=32000),
        "context": c.size("max_position_embeddings", default=2048),
        "feed_forward": {"d_ff": width, "gated": True, "activation": c.activation("hidden_act", default="silu")},
        "norm": c.rms("norm_eps"),
        "head": c.lm_head(tied=False),
    }


def _on(c: Config, key: str, why: str) -> None:
    """A part that there is unless its key says no, as null does too."""
    if not c.flag(key, default=True):
        c.fault(key, False, "true", why)


def transformer(c: Config) -> Raw:
    """Llama by other names."""
    raw = _stack(c)
    attention = c.heads(raw, names=("num_heads",), whole=True, kv_names=("num_kv_heads",), width_names=())
    attention["bias"] = [*"qkv"] if c.flag("qkv_bias", default=False) else False
    attention["qk_norm"] = "head" if c.flag("qk_norm", default=False) else "none"
    c.only(False, "attention_bias", why="qkv_bias is what its code reads")
    raw |= {"attention": attention, "positions": c.rotary(attention["d_head"])}
    return layered(raw, c.one_window(raw, c.size("window_size", default=None, null=None)))


def gated_deltanet(c: Config) -> Raw:
    """The gated delta rule in every layer, without positions."""
    raw = _stack(c)
    keys = c.size("num_heads", default=6)
    values, width = c.size("num_v_heads", default=keys, null=keys), c.size("head_dim", default=256)
    c.divides(keys, values, "num_heads", "num_v_heads")
    wide = width * c.real("expand_v", default=2.0)
    if wide != int(wide) or wide < 1 or c.data.get("expand_v", wide) is None:
        c.fault("expand_v", c.data["expand_v"], "so much that a head of values is a whole number wide")
    for key in ("use_gate", "use_short_conv"):
        _on(c, key, "a gate and short convolutions are read")
    delta = {"n_heads": values, "n_key_heads": keys, "d_key": width, "d_value": max(1, int(wide)),
             "d_conv": c.size("conv_size", default=4), "signed": c.flag("allow_neg_eigval", default=False)}  # fmt: skip
    raw |= {"delta": delta, "positions": {"form": "none"}}
    return layered(raw, (["delta"] * raw["n_layers"], {"delta": {"parts": ["delta", "feed_forward"]}}))
