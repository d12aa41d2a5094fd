"""Decoders with experts."""

from __future__ import annotations

from txcalc.errors import ABSENT, shown
from txcalc.sources.huggingface.config import GLOBAL, LOCAL, NAMES, ROUTED, TOP, WIDTH, Config, Raw, layered
from txcalc.sources.huggingface.keys import REQUIRED, number


def mixtral(c: Config) -> Raw:
    raw = c.stack()
    mixed = c.experts(("num_local_experts", "num_experts"), ("num_experts_per_tok",), ("intermediate_size",), 8, 2)
    raw = c.decoder(raw, c.heads(raw, kv=8), mixed=mixed, theta=1e6)
    return layered(raw, c.one_window(raw, c.size("sliding_window", default=None)))


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


def qwen3_moe(c: Config) -> Raw:
    raw = c.stack()
    attention = c.heads(raw, kv=4) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    names = ("num_experts", "num_local_experts")
    mixed = c.experts(names, ("num_experts_per_tok",), ("moe_intermediate_size",), 128, 8)
    raw = c.decoder(raw, attention, mixed=mixed)
    c.only(0, "shared_expert_intermediate_size", why="transformers' qwen3_moe has no shared expert")
    c.only(True, "use_qk_norm", why="transformers' qwen3_moe normalises Q and K")
    c.only(False, "qkv_bias", why="attention_bias is what transformers' qwen3_moe reads")
    c.ignore("max_window_layers")
    on = c.flag("use_sliding_window", default=False)
    window = c.size("sliding_window", default=4096, null=None) if on else None
    c.ignore("sliding_window")
    return layered(raw, c.one_window(raw, window), _qwen_mixture(c, raw))


def olmoe(c: Config) -> Raw:
    raw = c.stack()
    attention = c.heads(raw) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "width"}
    c.square(raw, attention, "the norm of Q is hidden_size wide")
    return c.decoder(raw, attention, mixed=c.experts(NAMES, TOP, ("intermediate_size",), 64, 8))


def flex_olmo(c: Config) -> Raw:
    raw = c.stack()
    attention = c.heads(raw) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "width"}
    raw = c.decoder(raw, attention, mixed=c.experts(NAMES, TOP, ("intermediate_size",), 7, 5), theta=5e5)
    return raw | {"norm": c.rms(place="after")}


def granitemoe(c: Config) -> Raw:
    raw = c.stack()
    attention = c.heads(raw) | {"bias": c.flag("attention_bias", default=False)}
    mixed = c.experts(("num_local_experts",), TOP, ("intermediate_size",), 8, 2)
    return c.decoder(raw, attention, mixed=mixed)


def granitemoe_swa(c: Config) -> Raw:
    raw = granitemoeshared(c)
    raw["attention"]["sinks"] = True
    return c.with_own_bases(raw)


def granitemoeshared(c: Config) -> Raw:
    raw = granitemoe(c)
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


def hunyuan_v1_moe(c: Config) -> Raw:
    """A shared feed-forward as wide as a routed expert in every layer."""
    raw = c.stack()
    attention = c.heads(raw, d_head=REQUIRED) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    mixed = c.experts(NAMES, ("moe_topk", "num_experts_per_tok"), ("intermediate_size",), 1, 1)
    c.ignore("eod_token_id")
    return c.decoder(raw, attention, mixed=mixed | {"n_shared": 1})


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


def kolibri1(c: Config) -> Raw:
    """Sandwich norms; positions in the layers with a window alone."""
    raw = c.stack()
    n, window = raw["n_layers"], c.size("sliding_window", default=513, null=None)
    mixed = c.experts(NAMES, TOP, WIDTH, 384, 6, d_ff_shared=c.size("shared_expert_intermediate_size", default=512))
    raw = c.decoder(raw, c.heads(raw, kv=4, d_head=128) | {"qk_norm": "head"}, mixed=mixed | {"scoring": "sigmoid"})
    raw["norm"] |= {"place": "sandwich"}
    types = c.layer_types(n, [LOCAL if (i + 1) % 5 else GLOBAL for i in range(n)])
    unrotated: Raw = {} if window is None else {"positions": {"form": "none"}}
    return layered(raw, c.windows(raw, window, types, {"global": unrotated}))


def glm4_moe(c: Config) -> Raw:
    raw = c.stack()
    bias = ["q", "k", "v"] if c.flag("attention_bias", default=False) else []
    attention = c.heads(raw, kv=8, whole=None) | {"bias": bias}
    attention["qk_norm"] = "head" if c.flag("use_qk_norm", default=False) else "none"
    mixed = c.with_shared(c.experts(ROUTED, TOP, WIDTH, 128, 8), "n_shared_experts", default=1)
    raw = c.decoder(raw, attention, mixed=mixed | {"scoring": "sigmoid"}, partial=0.5, even=True)
    c.more_heads()
    return layered(raw, c.first_dense(raw, 1))


def glm4v_moe_text(c: Config) -> Raw:
    raw = c.stack()
    attention = c.heads(raw, kv=8, whole=None) | {
        "bias": ["q", "k", "v"] if c.flag("attention_bias", default=True) else []
    }
    mixed = c.with_shared(c.experts(ROUTED, TOP, WIDTH, 128, 8), "n_shared_experts", default=1)
    raw = c.decoder(raw, attention, mixed=mixed | {"scoring": "sigmoid"}, partial=0.5, even=True)
    c.only(False, "use_qk_norm", why="transformers' glm4v_moe has no norms of Q and K")
    c.more_heads()
    return layered(raw, c.first_dense(raw, 1))


def qwen3_vl_moe_text(c: Config) -> Raw:
    raw = c.stack()
    attention = c.heads(raw, kv=16) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    raw = c.decoder(raw, attention, mixed=c.experts(NAMES, TOP, WIDTH, 60, 4), tied=True, theta=5e5)
    return layered(raw, _qwen_mixture(c, raw))


def aria_text(c: Config) -> Raw:
    raw = c.stack()
    attention = c.heads(raw, whole=True) | {"bias": c.flag("attention_bias", default=False)}
    names = (("moe_num_experts",), ("moe_topk",), ("intermediate_size", "moe_intermediate_size"))
    mixed = c.with_shared(c.experts(*names, 8, 2), "moe_num_shared_experts", default=2)
    c.only(False, "mlp_bias", why="biases of the feed-forward are not read here")
    return c.decoder(raw, attention, mixed=mixed)


def dots1(c: Config) -> Raw:
    raw = c.stack()
    n = raw["n_layers"]
    attention = c.heads(raw, kv=32) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    mixed = c.with_shared(c.experts(ROUTED, TOP, WIDTH), "n_shared_experts", default=REQUIRED)
    raw = c.decoder(raw, attention, mixed=mixed | {"scoring": "sigmoid"})
    window, first = c.size("sliding_window", default=4096, null=None), c.count("max_window_layers", default=62)
    types = c.layer_types(n, [LOCAL if window is not None and i >= first else GLOBAL for i in range(n)])
    return layered(raw, c.windows(raw, window, types), c.first_dense(raw, 0))


def solar_open(c: Config) -> Raw:
    raw = c.stack()
    bias = ["q", "k", "v"] if c.flag("attention_bias", default=False) else []
    attention = c.heads(raw, kv=8, d_head=128) | {"bias": bias}
    mixed = c.with_shared(c.experts(ROUTED, TOP, WIDTH, 128, 8), "n_shared_experts", default=1)
    c.only(0, "first_k_dense_replace", why="every layer of transformers' solar_open has experts")
    c.only(False, "use_qk_norm", why="transformers' solar_open has no norms of Q and K")
    c.ignore("intermediate_size")
    return c.decoder(raw, attention, mixed=mixed | {"scoring": "sigmoid"}, theta=1e6)


def hy_v3(c: Config) -> Raw:
    raw = c.stack()
    attention = c.heads(raw, kv=8, d_head=128) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    mixed = c.with_shared(c.experts(NAMES, TOP, WIDTH, 192, 8), "num_shared_experts", default=1)
    if "n_shared" not in mixed:
        c.fault("num_shared_experts", 0, "at least 1", "transformers' hy_v3 makes one of intermediate_size out of none")
    c.only(False, "mlp_bias", why="biases of the feed-forward are not read here")
    c.ignore("router_scaling_factor", "enable_moe_fp32_combine")
    raw = c.decoder(raw, attention, mixed=mixed | {"scoring": "sigmoid"}, theta=11158840.0)
    return layered(raw, c.typed(raw, [i == 0 for i in range(raw["n_layers"])]))


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
