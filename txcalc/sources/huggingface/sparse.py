"""Decoders with experts that have more to them than a row of `decoders.json` says."""

from __future__ import annotations

from txcalc.errors import ABSENT, shown
from txcalc.sources.huggingface.config import GLOBAL, LOCAL, NAMES, ROUTED, TOP, WIDTH, Config, Raw, layered
from txcalc.sources.huggingface.decoders import decoder
from txcalc.sources.huggingface.keys import REQUIRED, number


def _qwen_mixture(c: Config, raw: Raw) -> tuple[list[str], dict[str, Raw]]:
    return c.mixture(raw, c.qwen_sparse(raw))


def qwen2_moe(c: Config) -> Raw:
    raw = c.stack()
    n = raw["n_layers"]
    mixed = c.experts(
        ("num_experts", "num_local_experts"),
        ("num_experts_per_tok",),
        ("moe_intermediate_size",),
        60,
        4,
        d_ff_shared=c.size("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    bias = ["q", "k", "v"] if c.flag("qkv_bias", default=True) else False
    raw = c.decoder(raw, c.heads(raw, kv=16) | {"bias": bias}, mixed=mixed)
    on = c.flag("use_sliding_window", default=False)
    window = c.size("sliding_window", default=4096, null=None) if on else None
    top = c.count("max_window_layers", default=28) if on else 0
    c.ignore("sliding_window", "max_window_layers")
    types = c.layer_types(n, [LOCAL if on and i % 2 == 0 and i < top else GLOBAL for i in range(n)])
    return layered(raw, c.windows(raw, window, types), _qwen_mixture(c, raw))


def granitemoe_swa(c: Config) -> Raw:
    raw = granitemoeshared(c)
    raw["attention"]["sinks"] = True
    return c.with_own_bases(raw)


def granitemoeshared(c: Config) -> Raw:
    raw = decoder(c, "granitemoe")
    width = c.count("shared_intermediate_size", default=0)
    return raw | {"experts": raw["experts"] | ({"d_ff_shared": width} if width else {})}


def phimoe(c: Config) -> Raw:
    raw = c.stack()
    window = c.size("sliding_window", default=None)
    attention = c.heads(raw, kv=8) | {"bias": c.flag("attention_bias", default=False)}
    mixed = c.experts(("num_local_experts",), TOP, ("intermediate_size",), 16, 2)
    if mixed["top_k"] != 2:
        c.fault("num_experts_per_tok", mixed["top_k"], "2", "transformers' phimoe always takes two")
    raw = c.decoder(raw, attention, mixed=mixed, theta=1e6)
    raw["norm"] = c.layer_norm("rms_norm_eps")
    if c.flag("lm_head_bias", default=False) and raw["head"].get("form", "lm") == "lm":
        raw["head"]["bias"] = True
    return layered(raw, c.one_window(raw, window))


def minimax_m2(c: Config) -> Raw:
    raw = c.stack()
    attention = c.heads(raw, kv=8, d_head=128) | {"qk_norm": "width"}
    c.only([1] * raw["n_layers"], "attn_type_list", why="attention over all tokens in every layer is read")
    c.ignore("rotary_dim", "mlp_intermediate_size", "mtp_transformer_layers", "num_mtp_modules")
    further = c.data.get("num_mtp_modules")
    if further:
        c.note(f"{shown(further)} modules that predict further tokens (num_mtp_modules) are not counted")
    return c.decoder(raw, attention, mixed=c.experts(NAMES[::-1], TOP, ("intermediate_size",), 256, 8), theta=5e6)


def ernie4_5_moe(c: Config) -> Raw:
    """Experts from one layer to another, every so many; the router's correction is a parameter, one a routed expert."""
    raw = c.stack()
    n, bias = raw["n_layers"], c.flag("use_bias", default=False)
    mixed = c.experts(("moe_num_experts", "num_experts"), ("moe_k", "num_experts_per_tok"), WIDTH, 64, 6)
    mixed = c.with_shared(mixed, "moe_num_shared_experts", default=2) | {"router_bias": True}
    raw = c.decoder(raw, c.heads(raw, kv=4) | {"bias": bias}, mixed=mixed, tied=True, theta=5e5)
    if bias:
        c.fault("use_bias", True, "false", "biases of the shared experts, not of the routed ones, are not read")
    c.ignore("moe_norm_min", "moe_capacity", "moe_gate", "moe_use_aux_free", "moe_layer_end_index")
    first, every = c.count("moe_layer_start_index", default=1), c.size("moe_layer_interval", default=1)
    last = c.data.get("moe_layer_end_index", -1)
    if type(last) is not int or last < -1:
        c.fault("moe_layer_end_index", last, "a layer, or -1 for the last")
        last = -1
    sparse = [first <= i <= (n if last == -1 else last) and (i + 1) % every == 0 for i in range(n)]
    return layered(raw, c.dense_where(raw, [not is_sparse for is_sparse in sparse]))


def flint(c: Config) -> Raw:
    """A sink a head; full attention, without positions, in the first two layers, every fourth and the last."""
    raw = c.stack()
    n, window = raw["n_layers"], c.size("sliding_window", default=513)
    attention = c.heads(raw, kv=4, d_head=128) | {"bias": c.flag("attention_bias", default=False)}
    mixed = c.experts(NAMES, TOP, WIDTH, 256, 6, d_ff_shared=c.size("shared_expert_intermediate_size", default=1024))
    raw = c.decoder(raw, attention | {"qk_norm": "head", "sinks": True}, mixed=mixed | {"scoring": "sigmoid"})
    types = c.layer_types(n, [GLOBAL if i < 2 or i % 4 == 1 or i == n - 1 else LOCAL for i in range(n)])
    step = c.size("decoder_sparse_step", default=1)
    only = c.items("mlp_only_layers", of=number, length=None, default=[0, 1])
    dense = [i in only or (i + 1) % step != 0 for i in range(n)]
    axis = c.windows(raw, window, types, {"global": {"positions": {"form": "none"}}})
    return layered(raw, axis, c.dense_where(raw, dense))


def dots1(c: Config) -> Raw:
    raw = c.stack()
    n = raw["n_layers"]
    attention = c.heads(raw, kv=32) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    mixed = c.with_shared(c.experts(ROUTED, TOP, WIDTH), "n_shared_experts", default=REQUIRED)
    raw = c.decoder(raw, attention, mixed=mixed | {"scoring": "sigmoid"})
    window, first = c.size("sliding_window", default=4096, null=None), c.count("max_window_layers", default=62)
    types = c.layer_types(n, [LOCAL if window is not None and i >= first else GLOBAL for i in range(n)])
    return layered(raw, c.windows(raw, window, types), c.first_dense(raw, 0))


def dbrx(c: Config) -> Raw:
    raw = c.stack(("d_model", "hidden_size"), ("n_layers", "num_hidden_layers"))
    inner, channel = c.table("attn_config"), c.table("ffn_config")
    c.ignore("max_seq_len")
    attention = c.heads(raw, names=("n_heads", "num_attention_heads"), kv_names=(), width_names=())
    if inner:
        attention["n_kv_heads"] = inner.size("kv_n_heads", default=1)
        inner.divides(attention["n_kv_heads"], attention["n_heads"], "kv_n_heads", "n_heads")
        inner.ignore("attn_pdrop", "clip_qkv", "tie_word_embeddings")
        c.only(attention["n_kv_heads"], "num_key_value_heads", why="attn_config.kv_n_heads is what transformers reads")
        if inner.real("rope_theta") is None:
            inner.fault("rope_theta", ABSENT, "a number", "transformers makes no dbrx without it")
    else:
        c.fault("attn_config", ABSENT, "an object with kv_n_heads and rope_theta")
    mixed: Raw = {"n_experts": 1, "top_k": 1, "d_ff": 1}
    if channel:
        mixed = channel.experts(("moe_num_experts",), ("moe_top_k",), ("ffn_hidden_size",), 4, 1)
        channel.only(raw["d_model"], "hidden_size", why="the width of the model")
        channel.ignore(
            "tie_word_embeddings",
            "moe_jitter_eps",
            "moe_loss_weight",
            "moe_normalize_expert_weights",
            "uniform_expert_assignment",
        )
        form = channel.table("ffn_act_fn")
        if form:
            mixed["activation"] = form.activation("name", default="silu")
    else:
        c.fault("ffn_config", ABSENT, "an object with ffn_hidden_size and moe_num_experts")
    raw = c.decoder(raw, attention, mixed=mixed)
    c.only(False, "tie_word_embeddings", why="transformers' dbrx is never tied")
    return raw | {"norm": c.layer_norm(bias=False)}
