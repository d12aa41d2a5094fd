"""Decoders of gated delta rules, lightning attention and short convolutions beside attention."""

from __future__ import annotations

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import GLOBAL, LOCAL, NAMES, TOP, WIDTH, Config, Raw, by_mixer, layered
from txcalc.sources.huggingface.keys import any_of, number
from txcalc.sources.spec import MAX_SIZE

LINEAR = "linear_attention"


def minimax(c: Config) -> Raw:
    """Lightning attention, and softmax attention in some layers. The residual stream is what the norms give: the first
    stands after the embedding, each other after a sum."""
    raw = c.stack()
    n = raw["n_layers"]
    attention = c.heads(raw, kv=8)
    types = c.items("layer_types", of=any_of(LINEAR, GLOBAL), length=n, default=None)
    types = types or [LINEAR if i % 2 else GLOBAL for i in range(n)]
    activation = c.activation("hidden_act", default="silu")
    mixed = c.experts(("num_local_experts", "num_experts"), TOP, ("intermediate_size",), 8, 2, scoring="softmax_after")
    c.ignore("block_size", *(f"{part}_{factor}_factor" for part in ("full_attn", "linear_attn", "mlp")
                             for factor in ("alpha", "beta")))  # fmt: skip
    raw["linear_attention"] = {key: attention[key] for key in ("n_heads", "d_head")} | {"activation": activation}
    norm = c.rms(eps=1e-5, place="post")
    raw = c.decoder(raw, attention, mixed=mixed, norm=norm, embedding={"norm": True}, theta=1e6)
    return by_mixer(raw, [LINEAR if kind == LINEAR else "attention" for kind in types], ["experts"] * n)


def _linear_or_full(c: Config, n: int) -> list[str]:
    """Which layers are linear: `layer_types`, or all but every `full_attention_interval`-th."""
    interval = c.size("full_attention_interval", default=4) if c.data.get("layer_types") is None else 0
    default = [LINEAR if (i + 1) % interval else GLOBAL for i in range(n)] if interval else [GLOBAL] * n
    return [DELTA[kind] for kind in c.items("layer_types", of=any_of(LINEAR, GLOBAL), length=n, default=default)]


def _qwen_hybrid(c: Config, kv: int) -> Raw:
    """Gated attention, and the gated delta rule in the layers between."""
    raw = c.stack()
    attention = c.heads(raw, kv=kv, d_head=256) | {"qk_norm": "head", "gate": "element"}
    attention["bias"] = [*"qkvog"] if c.flag("attention_bias", default=False) else False
    key, value = c.size("linear_num_key_heads", default=16), c.size("linear_num_value_heads", default=32)
    c.divides(key, value, "linear_num_key_heads", "linear_num_value_heads")
    c.more_heads()
    return raw | {
        "attention": attention,
        "delta": {
            "n_heads": value,
            "n_key_heads": key,
            "d_key": c.size("linear_key_head_dim", default=128),
            "d_value": c.size("linear_value_head_dim", default=128),
            "d_conv": c.size("linear_conv_kernel_dim", default=4),
        },
        "norm": c.rms(offset=True),
        "positions": c.rotary(attention["d_head"], partial=0.25),
        "head": c.lm_head(tied=False),
    }


DELTA = {LINEAR: "delta", GLOBAL: "attention"}


def _qwen_experts(c: Config, number: int, top: int) -> Raw:
    shared = {"d_ff_shared": c.size("shared_expert_intermediate_size"), "shared_gate": True}
    return c.experts(NAMES[:1], TOP, WIDTH, number, top, scoring="softmax_after", **shared)


def qwen3_next(c: Config) -> Raw:
    raw = _qwen_hybrid(c, kv=2)
    raw["experts"] = _qwen_experts(c, 512, 10)
    channels = ["experts" if sparse else "feed_forward" for sparse in c.qwen_sparse(raw)]
    return by_mixer(raw, _linear_or_full(c, raw["n_layers"]), channels)


def qwen3_5_text(c: Config) -> Raw:
    raw = _qwen_hybrid(c, kv=4) | {"feed_forward": c.gated()}
    n = raw["n_layers"]
    return by_mixer(raw, _linear_or_full(c, n))


def qwen3_5_moe_text(c: Config) -> Raw:
    raw = _qwen_hybrid(c, kv=2)
    raw["experts"] = _qwen_experts(c, 256, 8)
    n = raw["n_layers"]
    return by_mixer(raw, _linear_or_full(c, n), ["experts"] * n)


CONV = "conv"


SHORT = {CONV: "short_convolution", GLOBAL: "attention", LOCAL: "attention"}


def _convolved(c: Config, taps: int = 3, d_head: int | None = None, kv: int = 8) -> Raw:
    """Short convolutions and attention with norms on Q and K; all but the feed-forwards and which layer is what."""
    raw = c.stack()
    attention = c.heads(raw, kv=kv, d_head=d_head) | {"qk_norm": "head"}
    short = {"taps": c.size("conv_L_cache", default=taps), "bias": c.flag("conv_bias", default=False)}
    head = c.lm_head(tied=True)
    if "tie_embedding" in c:  # it goes before the other
        tied = c.flag("tie_embedding")
        head |= {} if head.get("form") == "none" else {"tied": tied}
    c.only(raw["d_model"], "block_dim", "conv_dim", "conv_dim_out", why="transformers' convolutions are that wide")
    c.only(attention["n_heads"], "num_heads", why="num_attention_heads is what transformers reads")
    positions = c.rotary(attention["d_head"], 1000000.0)
    return raw | {
        "attention": attention,
        "short_convolution": short,
        "norm": c.rms("norm_eps", "rms_norm_eps", eps=1e-5),
        "positions": positions,
        "head": head,
    }


def _kinds(c: Config, raw: Raw, *known: str, default: list[str] | None = None) -> list[str]:
    """`layer_types`, one a layer."""
    kinds = c.items("layer_types", of=any_of(*known), length=raw["n_layers"], default=default)
    if kinds is None:
        c.fault("layer_types", ABSENT, "a list of layer kinds")
        return [GLOBAL] * raw["n_layers"]
    return kinds  # type: ignore[no-any-return]


def lfm2(c: Config) -> Raw:
    """A feed-forward in every layer, two thirds of what the config says where it is adjusted."""
    raw = _convolved(c)
    n = raw["n_layers"]
    attending = c.items("full_attn_idxs", of=number, length=None, default=None)
    default = [GLOBAL if attending is None or i in attending else CONV for i in range(n)]
    kinds = _kinds(c, raw, CONV, GLOBAL, default=default)
    width = c.size("block_ff_dim") if "block_ff_dim" in c else c.size("intermediate_size")
    adjusted = c.flag("block_auto_adjust_ff_dim", default=True)
    factor, multiple = c.real("block_ffn_dim_multiplier", default=1.0), c.size("block_multiple_of", default=256)
    if adjusted:
        width = 2 * width // 3
        width = -(-int(factor * width) // multiple) * multiple
    if not 1 <= width <= MAX_SIZE:
        c.fault("block_ffn_dim_multiplier", factor, "above 0, and no more than makes a size")
        width = 1
    raw["feed_forward"] = {"d_ff": width, "gated": True, "activation": "silu"}
    return by_mixer(raw, [SHORT[kind] for kind in kinds])


def lfm2_moe(c: Config) -> Raw:
    """Dense layers first, then experts."""
    raw = _convolved(c)
    kinds = _kinds(c, raw, CONV, GLOBAL)
    raw["feed_forward"] = {"d_ff": c.size("intermediate_size"), "gated": True, "activation": "silu"}
    mixed = c.experts(("num_experts",), ("num_experts_per_tok",), ("moe_intermediate_size",), 32, 4)
    raw["experts"] = mixed | {"activation": "silu", "scoring": "sigmoid"}
    dense = c.count("num_dense_layers", default=2)
    seconds = ["feed_forward" if i < dense else "experts" for i in range(raw["n_layers"])]
    names = [f"{SHORT[kind]}-{second}" for kind, second in zip(kinds, seconds, strict=True)]
    return layered(raw, (names, {name: {"parts": name.split("-")} for name in set(names)}))


def lfm3(c: Config) -> Raw:
    """Windows in some layers, gates on what the heads read, norms on both sides of every branch."""
    raw = _convolved(c, 7, 128, 4)
    kinds = _kinds(c, raw, *SHORT, default=[
        GLOBAL if i % 4 == 2 else LOCAL if i % 4 == 0 and i > 0 else CONV for i in range(raw["n_layers"])
    ])  # fmt: skip
    attention = raw["attention"]
    attention["gate"] = "head" if c.flag("use_attention_gate", default=True) else "none"
    attention["bias"] = c.flag("attention_bias", default=False)
    raw["norm"] |= {"place": "sandwich" if c.flag("use_sandwich_norm", default=True) else "pre"}
    raw["feed_forward"] = {"d_ff": c.size("intermediate_size"), "gated": True, "activation": "silu"}
    window = c.size("sliding_window", default=256, null=None)
    if LOCAL in kinds and window is None:
        c.fault("sliding_window", None, "a window, for layers use one")
    parts: Raw = {"parts": ["attention", "feed_forward"]}
    said = c.data.get("rope_parameters") is not None
    tables: dict[str, Raw] = {
        CONV: {"parts": ["short_convolution", "feed_forward"]},
        GLOBAL: parts | {"positions": c.rotary(attention["d_head"], 1e6, 1.0 if said else 0.5, GLOBAL)},
        LOCAL: parts | {"positions": c.rotary(attention["d_head"], 1e4, 1.0, LOCAL), "attention": {"window": window}},
    }
    names = [{CONV: "convolution", GLOBAL: "global", LOCAL: "local"}[kind] for kind in kinds]
    by_name = dict(zip(names, kinds, strict=True))
    return layered(raw, (names, {name: tables[kind] for name, kind in by_name.items()}))
