"""Models of the library flash-linear-attention and of its kernels, which no code beside the weights describes."""

from __future__ import annotations

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import Config, Raw, layered
from txcalc.sources.huggingface.keys import any_of
from txcalc.sources.huggingface.leaf_list import leaf, matrix, norm_leaf, of_kind
from txcalc.sources.huggingface.recurrent import expanded, mamba_mixer, step_rank

# Options of kernels and losses, which change no size.
KERNELS = ("fuse_norm", "fuse_swiglu", "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp", "attn_mode")


def _stack(c: Config, sized: bool = True, d_model: int = 2048, ratio: int = 4) -> Raw:
    """The widths, norms, feed-forward and head that the models share. `d_model` is the class's default. `sized`: the
    feed-forward is `intermediate_size` wide; else its width follows from `hidden_ratio`, whose default is `ratio`."""
    c.require_published_class()
    c.require_single_stack()
    c.require_value(None, "attnres_block_size", why="residuals over layers are not supported")
    c.ignore(*KERNELS)
    options = {"default": ratio} if any(key in c for key in KERNELS[:4]) else {}  # keys that no other code has
    d, ratio = c.size("hidden_size", default=d_model), c.size("hidden_ratio", null=4, **options)
    width = -(-(2 * d * ratio // 3) // 256) * 256  # two thirds, rounded up to a multiple of 256
    width = c.size("intermediate_size", default=width, null=width) if sized else width
    c.require_value("swish", "hidden_act", why="its library has no other gated feed-forward that is supported")
    return {
        "kind": "decoder",
        "d_model": d,
        "n_layers": c.layers("num_hidden_layers"),
        "vocab_size": c.size("vocab_size", default=32000),
        "context": c.size("max_position_embeddings", default=2048),
        "feed_forward": {"d_ff": width, "gated": True, "activation": "silu"},
        "norm": c.rms("norm_eps"),
        "head": c.lm_head(tied=False),
    }


def _mixed(c: Config, raw: Raw, mixer: str) -> Raw:
    """Layers of this mixer and a feed-forward; the layers that `attn` lists have attention instead of the mixer."""
    n, attn, parts = raw["n_layers"], c.table("attn"), {mixer: {"parts": [mixer, "feed_forward"]}}
    if not attn:
        if c.data.get("attn") is not None:
            c.fault("attn", {}, "null, or an object with layers and num_heads")
        return layered(raw | {"positions": {"form": "none"}}, ([mixer] * n, parts))
    chosen = attn.items("layers", of=any_of(*range(n)), length=None, default=[])
    if "layers" not in attn:
        attn.fault("layers", ABSENT, "indexes of layers, from 0")
    attention = attn.heads(raw, names=("num_heads",), whole=True, kv_names=("num_kv_heads",), width_names=())
    attention["bias"] = [*"qkv"] if attn.flag("qkv_bias", default=False) else False
    if window := attn.size("window_size", default=None, null=None):
        attention["window"] = window
    raw |= {"attention": attention, "positions": attn.rotary(attention["d_head"])}
    kinds = ["attention" if i in chosen else mixer for i in range(n)]
    return layered(raw, (kinds, parts | {"attention": {"parts": ["attention", "feed_forward"]}}))


def _require_true(c: Config, key: str, why: str) -> None:
    """A fault if a flag that is true by default is false or null."""
    if not c.flag(key, default=True):
        c.fault(key, False, "true", why)


def transformer(c: Config) -> Raw:
    """Llama with other key names."""
    raw = _stack(c)
    _require_true(c, "elementwise_affine", "only norms with weights are supported")
    attention = c.heads(raw, names=("num_heads",), whole=True, kv_names=("num_kv_heads",), width_names=())
    attention["bias"] = [*"qkv"] if c.flag("qkv_bias", default=False) else False
    attention["qk_norm"] = "head" if c.flag("qk_norm", default=False, null=False) else "none"
    raw |= {"attention": attention, "positions": c.rotary(attention["d_head"])}
    return layered(raw, c.same_window(raw, c.size("window_size", default=None, null=None)))


def gated_deltanet(c: Config) -> Raw:
    """The gated delta rule in every layer, without positions."""
    raw = _stack(c)
    _require_true(c, "elementwise_affine", "only norms with weights are supported")
    keys = c.size("num_heads", default=6)
    values, width = c.size("num_v_heads", default=keys, null=keys), c.size("head_dim", default=256)
    c.divides(keys, values, "num_heads", "num_v_heads")
    d_value = width * c.real("expand_v", default=2.0)
    if d_value != int(d_value) or d_value < 1 or c.data.get("expand_v", d_value) is None:
        c.fault("expand_v", c.data["expand_v"], "a factor that gives heads of values a whole width")
    for key in ("use_gate", "use_short_conv"):
        _require_true(c, key, "only layers with a gate and short convolutions are supported")
    delta = {"n_heads": values, "n_key_heads": keys, "d_key": width, "d_value": max(1, int(d_value)),
             "d_conv": c.size("conv_size", default=4), "signed": c.flag("allow_neg_eigval", default=False)}  # fmt: skip
    return _mixed(c, raw | {"delta": delta}, "delta")


def samba(c: Config) -> Raw:
    """Mamba or attention, and a feed-forward, in every layer."""
    raw = _stack(c, sized=False, d_model=2304)
    if "attn" not in c:
        attention = {"layers": [*range(1, min(18, raw["n_layers"]), 2)], "num_heads": 18, "window_size": 2048}
        c.override(attn=attention)
        c.assume("attn", attention)
    inner = expanded(c, raw, "expand")
    c.require_value(inner, "intermediate_size", why="its class sets it to expand · hidden_size, the width of its Mamba")
    names = "state_size conv_kernel use_bias use_conv_bias"
    raw["mamba"] = mamba_mixer(c, inner, step_rank(c, raw, "time_step_rank"), names)
    return _mixed(c, raw, "mamba")


def delta_net(c: Config) -> Raw:
    """The delta rule without decay, and without shared keys and values."""
    raw = _stack(c)
    heads, keys, values, _ = _expanded(c, raw["d_model"], key=1.0, n_heads=16, grouped=False)
    for key in ("use_beta", "use_short_conv"):
        _require_true(c, key, "only layers with rates and short convolutions are supported")
    c.ignore("use_output_norm")  # its class does not read it
    delta = {"n_heads": heads, "d_key": keys // heads, "d_value": values // heads, "decay": "none",
             "d_conv": c.size("conv_size", default=4), "signed": c.flag("allow_neg_eigval", default=False),
             "gate": "silu" if c.flag("use_gate", default=False) else "none"}  # fmt: skip
    return _mixed(c, raw | {"delta": delta}, "delta")


def gla(c: Config) -> Raw:
    """Gated linear attention: a low-rank decay for every element of a key."""
    d = c.size("hidden_size", default=2048)
    heads, keys, values, groups = _expanded(c, d, key=0.5, n_heads=4)
    c.ignore("clamp_min", "use_gk", "use_gv")  # its class does not read the last two
    leaves = [matrix("q", d, keys), matrix("k", d, keys // groups), matrix("v", d, values // groups)]
    leaves += _short(c, False, "silu", q=keys, k=keys // groups, v=values // groups)
    if c.data.get("feature_map") is not None:
        leaves.append(leaf("features", c.activation("feature_map", default="none"), 2 * keys))
    c.ignore("feature_map")
    leaves += [matrix("decay_down", d, 16), leaf("decay_up", "linear", 16, keys // groups)]
    leaves.append(leaf("scan", "gated_scan", heads, keys // heads, values // heads))
    return _linear(c, [*leaves, *_gated(c, d, heads, values)])


def _gated(c: Config, d: int, heads: int, values: int) -> list[Raw]:
    """A norm of each head's values, a gate on them, and the output matrix."""
    leaves = list[Raw]()
    if c.flag("elementwise_affine", default=True, null=False):
        leaves.append(norm_leaf("head", values // heads, "rms_norm", groups=heads))
    if c.flag("use_output_gate", default=True):
        leaves += [matrix("gate", d, values), leaf("gated", "silu_gate", values)]
    return [*leaves, matrix("o", values, d)]


def retnet(c: Config) -> Raw:
    """RetNet: linear attention with a different decay in each head. Other published code of the same type uses
    TorchScale's keys, such as decoder_embed_dim.

    Source   Sun et al. 2023 (arXiv 2307.08621), section 2
    """
    if "decoder_embed_dim" in c:
        return _torchscale(c)
    d = c.size("hidden_size", default=2048)
    heads, keys, values, groups = _expanded(c, d, key=1.0, n_heads=8, value=2.0)
    k, v = keys // groups, values // groups
    leaves = [matrix("q", d, keys), matrix("k", d, k), matrix("v", d, v)]
    if c.flag("use_short_conv", default=False):
        c.note("use_short_conv is ignored: its code never has short convolutions")
    if c.data.get("feature_map") is not None:
        leaves.append(leaf("features", c.activation("feature_map", default="none"), keys + k))
    c.ignore("feature_map", "conv_size")
    leaves += _retention(heads, keys, values, heads // groups)
    return _linear(c, [*leaves, *_gated(c, d, heads, values)], ratio=2)


def _retention(heads: int, keys: int, values: int, groups: int) -> list[Raw]:
    """Rotary positions of `heads` queries and `groups` keys, and the state of each head."""
    rotary = leaf("rotary", "rotary", heads + groups, max(1, keys // heads))
    return [rotary, leaf("scan", "gated_scan", heads, max(1, keys // heads), max(1, values // heads))]


def _torchscale(c: Config) -> Raw:
    c.require_published_class("retnet", writes=True)
    c.require_single_stack()
    c.ignore("drop_path_rate", "forward_impl", "recurrent_chunk_size", "use_lm_decay", "z_loss_coeff", "subln")
    c.ignore("use_ffn_rms_norm", "output_retentions", "unk_token_id", "activation_dropout")
    c.require_value(True, "use_glu", why="only gated feed-forwards are supported")
    c.require_value(True, "decoder_normalize_before", why="only pre-norm is supported")
    c.require_value(False, "deepnorm", why="only pre-norm is supported")
    d, heads = c.size("decoder_embed_dim"), c.size("decoder_retention_heads", default=3)
    values = c.size("decoder_value_embed_dim", default=1280)
    c.divides(heads, d, "decoder_retention_heads", "decoder_embed_dim")
    c.divides(heads, values, "decoder_retention_heads", "decoder_value_embed_dim")
    leaves = [matrix("q", d, d), matrix("k", d, d), matrix("v", d, values), *_retention(heads, d, values, heads)]
    leaves += [matrix("gate", d, values), leaf("gated", "silu_gate", values), matrix("o", values, d)]
    raw: Raw = {
        "kind": "decoder",
        "d_model": d,
        "n_layers": c.layers("decoder_layers"),
        "vocab_size": c.size("vocab_size", default=50257),
        "embedding": {} if c.flag("no_scale_embedding", default=True) else {"scale": d**0.5},
        "pieces": {"leaves": of_kind("recurrent", leaves)},
        "feed_forward": {"d_ff": c.size("decoder_ffn_embed_dim", default=1280), "gated": True,
                         "activation": c.activation("activation_fn", default="gelu")},
        "norm": c.rms("layernorm_eps"),
        "head": c.lm_head(tied=False),
    }  # fmt: skip
    if c.flag("layernorm_embedding", default=False):
        raw["around"] = [norm_leaf("embedding", d, "rms_norm")]
    return _mixed(c, raw, "pieces")


def bailing_moe_linear(c: Config) -> Raw:
    """Ring-linear: Ling 2 with retention instead of attention, except in the last layer of each group.

    Source   2025 (arXiv 2510.19338), section 2; the code of MLX and SGLang; the config of Ring-mini-linear-2.0, which
             has 16.4e9 parameters
    """
    c.require_published_class("bailingmoelinearv2", "bailingmoelinear")
    for name in _REQUIRED:
        if name not in c:
            c.fault(name, ABSENT, "a value", "the default of its class is not known")
    raw = c.stack()
    d, n, h = raw["d_model"], raw["n_layers"], c.size("num_attention_heads", default=1)
    bias, qk_norm = c.flag("use_qkv_bias", default=False), c.flag("use_qk_norm", default=False)
    flags = "norm_topk_prob", "use_rmsnorm", "moe_router_enable_shared_expert", "moe_router_enable_routed_scaling"
    c.require_value(True, *flags, why="the published models have this value")
    attention = c.heads(raw, whole=True) | {"bias": [*"qkv"] if bias else False}
    attention["qk_norm"] = "head" if qk_norm else "none"
    positions = c.rotary(attention["d_head"])
    w, group = attention["d_head"], c.size("layer_group_size", default=1)
    if w * h != d:
        c.fault("head_dim", w, "hidden_size / num_attention_heads", _DISAGREE)
    c.divides(group, n, "layer_group_size", "num_hidden_layers")
    leaves = [leaf(name, "linear", d, d, bias=bias) for name in "qkv"]
    leaves += [norm_leaf(name, w, "rms_norm", groups=h) for name in "qk"] * qk_norm
    leaves += [leaf("rotary", "rotary", 2 * h, 2 * max(1, int(w * c.real("partial_rotary_factor", default=1.0)) // 2))]
    leaves += [leaf("scan", "gated_scan", h, w, w), norm_leaf("head", d, "rms_norm"), matrix("gate", d, d)]
    leaves += [leaf("gated", "sigmoid", d), matrix("o", d, d)]
    mixed = c.experts(("num_experts",), ("num_experts_per_tok",), ("moe_intermediate_size",), 1, 1, scoring="sigmoid")
    shared = c.size("moe_shared_expert_intermediate_size", default=mixed["d_ff"], null=mixed["d_ff"])
    if shared != mixed["d_ff"] and c.data.get("num_shared_experts"):
        c.fault("moe_shared_expert_intermediate_size", shared, "moe_intermediate_size", _DISAGREE)
    raw |= {
        "attention": attention,
        "pieces": {"leaves": of_kind("recurrent", leaves)},
        "experts": c.with_shared(mixed, "num_shared_experts", default=0),
        "feed_forward": c.gated_mlp(),
        "norm": c.rms(),
        "positions": positions,
        "head": c.lm_head(tied=False),
    }
    first = c.count("first_k_dense_replace", default=0)
    kinds = [("linear" if (i + 1) % group else "attention", i < first) for i in range(n)]
    named = ["dense-" * dense + mixer for mixer, dense in kinds]
    parts = {"attention": "attention", "linear": "pieces"}
    tables: dict[str, Raw] = {
        name: {"parts": [parts[mixer], "feed_forward" if dense else "experts"]}
        for name, (mixer, dense) in zip(named, kinds, strict=True)
    }
    return layered(raw, (named, tables))


_DISAGREE = "for other values MLX and SGLang build different layers"
# Keys of Ring-linear whose defaults are not known.
_REQUIRED = (
    "num_attention_heads", "num_key_value_heads", "head_dim", "num_experts", "num_experts_per_tok",
    "num_shared_experts", "layer_group_size", "first_k_dense_replace", "partial_rotary_factor", "use_bias",
    "use_qk_norm", "use_qkv_bias", "tie_word_embeddings", "score_function", "linear_silu",
)  # fmt: skip


def gsa(c: Config) -> Raw:
    """Gated slot attention: each head stores keys and values in `num_slots` slots."""
    d = c.size("hidden_size", default=2048)
    heads, keys, values, groups = _expanded(c, d, key=1.0, n_heads=4)
    c.require_value(values, "hidden_size", why="its norm is hidden_size wide")
    if (form := c.text("feature_map", default="swish")) not in ("swish", "relu"):
        c.fault("feature_map", form, "'swish' or 'relu'")
    slots = c.size("num_slots", default=64, null=keys // heads)
    leaves = [matrix("q", d, keys), matrix("k", d, keys // groups), matrix("v", d, values // groups)]
    leaves += _short(c, False, "silu", q=keys, k=keys // groups, v=values // groups)
    leaves += [matrix("slots", d, heads // groups * slots)]
    leaves += [leaf("features", {"swish": "silu", "relu": "relu"}.get(form, "none"), keys + keys // groups)]
    leaves += [leaf("activation", "silu", values // groups)]
    leaves += [leaf("scan", "slot_scan", heads, slots, keys // heads, values // heads), leaf("y", "silu", values)]
    leaves += [leaf("norm", "rms_norm", d, kind="norm")] * c.flag("elementwise_affine", default=True, null=False)
    return _linear(c, [*leaves, matrix("o", values, d)])


def hgrn2(c: Config) -> Raw:
    """HGRN2: forget gates for a state of `expand_ratio` rows per head, with a learned lower bound in each layer."""
    d = c.size("hidden_size", default=2048)
    rows = c.size("expand_ratio", default=128, null=None)
    heads = max(1, d // rows) if rows else c.size("num_heads")
    if rows and (rows > d or d % heads):
        c.fault("expand_ratio", rows, f"a ratio for which hidden_size // expand_ratio divides hidden_size = {d:,}")
    elif not rows:
        c.divides(heads, d, "num_heads", "hidden_size")
    c.ignore("num_heads")
    rows = rows or max(1, d // heads)
    width = heads * rows
    leaves = [matrix("q", d, width), matrix("f", d, width), matrix("i", d, d), *_short(c, False, q=width, f=width, i=d)]
    leaves += [leaf("activation", "silu", width), leaf("scan", "gated_scan", heads, rows, max(1, d // heads))]
    leaves += [leaf("norm", "rms_norm", d, kind="norm")] * c.flag("elementwise_affine", default=True, null=False)
    raw = _linear(c, [*leaves, matrix("o", d, d)])
    if c.flag("use_lower_bound", default=True):
        c.note("the lower bounds of its forget gates are counted in the parameters, but not in FLOPs")
        raw["around"] = [leaf("lower_bounds", "held", raw["n_layers"] * d, kind="recurrent")]
    return raw


def _expanded(
    c: Config, d: int, key: float, n_heads: int, *, value: float = 1.0, grouped: bool = True
) -> tuple[int, int, int, int]:
    """The number of heads, the widths of keys and of values of all heads (`expand_k` and `expand_v` times d), and the
    number of heads that share a key. `key`, `value` and `n_heads` are the class's defaults."""
    heads = c.size("num_heads", default=n_heads)
    factors = {name: c.real(name, default=default) for name, default in (("expand_k", key), ("expand_v", value))}
    keys, values = (int(d * factor) for factor in factors.values())
    shared = c.size("num_kv_heads", default=heads, null=heads) if grouped else heads
    c.divides(shared, heads, "num_kv_heads", "num_heads")
    for name, width in (("expand_k", keys), ("expand_v", values)):
        given = c.data.get(name, factors[name])
        if given is None or width < heads or width % heads:
            c.fault(name, given, f"a factor for which num_heads = {heads:,} divides {name} · hidden_size")
    return heads, max(heads, keys), max(heads, values), max(1, heads // shared)


def _short(c: Config, default: bool, activation: str = "", **widths: int) -> list[Raw]:
    """Depthwise short convolutions with their state, and an activation after each if the class has one."""
    taps = c.size("conv_size", default=4)
    if not c.flag("use_short_conv", default=default):
        return []
    leaves = [leaf(f"{name}_conv", "convolution", w, w, taps, 1, groups=w, bias=False) for name, w in widths.items()]
    leaves.append(leaf("conv_state", "state", taps * sum(widths.values())))
    return [*leaves, leaf("conv_activation", activation, sum(widths.values()))] if activation else leaves


def _linear(c: Config, leaves: list[Raw], ratio: int = 4) -> Raw:
    """Layers of these leaves and a feed-forward."""
    return _mixed(c, _stack(c, ratio=ratio) | {"pieces": {"leaves": of_kind("recurrent", leaves)}}, "pieces")
