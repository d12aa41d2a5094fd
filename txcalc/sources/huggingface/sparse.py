"""Decoders with experts."""

from __future__ import annotations

from typing import Any

from txcalc.errors import ABSENT, shown
from txcalc.sources.huggingface.config import REQUIRED, Config, any_of, number
from txcalc.sources.huggingface.shared import (
    GLOBAL,
    LAYER_NAMES,
    LOCAL,
    Raw,
    experts,
    gated,
    heads,
    layer_norm,
    layer_types,
    layered,
    lm_head,
    mixture,
    more_heads,
    rms,
    rotary,
    stack,
    windows,
    with_own_bases,
)
from txcalc.sources.spec import size


def _decoder(
    c: Config, raw: Raw, attention: Raw, mixed: Raw, tied: bool = False, theta: float = 1e4, **turned: Any
) -> Raw:
    return raw | {
        "attention": attention,
        "experts": mixed,
        "norm": rms(c),
        "positions": rotary(c, attention["d_head"], theta, **turned),
        "head": lm_head(c, tied),
    }


def _one_window(c: Config, raw: Raw, window: Any) -> tuple[list[str], dict[str, Raw]]:
    """The same window, or none, in every layer."""
    return windows(c, raw, window, [GLOBAL if window is None else LOCAL] * raw["n_layers"])  # type: ignore[no-any-return]


def mixtral(c: Config) -> Raw:
    raw = stack(c)
    mixed = experts(c, ("num_local_experts", "num_experts"), ("num_experts_per_tok",), ("intermediate_size",), 8, 2)
    raw = _decoder(c, raw, heads(c, raw, kv=8), mixed, theta=1e6)
    return layered(raw, _one_window(c, raw, c.size("sliding_window", default=None)))


def qwen_sparse(c: Config, raw: Raw) -> list[bool]:
    """Every `decoder_sparse_step`-th layer has experts, unless `mlp_only_layers` names it."""
    step = c.size("decoder_sparse_step", default=1)
    only = set(c.items("mlp_only_layers", of=number, length=None, default=[]))
    sparse = [i not in only and (i + 1) % step == 0 for i in range(raw["n_layers"])]
    if all(sparse):
        c.ignore("intermediate_size")
    else:
        raw["feed_forward"] = gated(c)
    return sparse


def _qwen_mixture(c: Config, raw: Raw) -> tuple[list[str], dict[str, Raw]]:
    return mixture(c, raw, qwen_sparse(c, raw))


def qwen2_moe(c: Config) -> Raw:
    raw = stack(c)
    n = raw["n_layers"]
    mixed = experts(
        c,
        ("num_experts", "num_local_experts"),
        ("num_experts_per_tok",),
        ("moe_intermediate_size",),
        60,
        4,
        d_ff_shared=c.size("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    bias = ["q", "k", "v"] if c.flag("qkv_bias", default=True) else False
    raw = _decoder(c, raw, heads(c, raw, kv=16) | {"bias": bias}, mixed)
    on = c.flag("use_sliding_window", default=False)
    window = c.size("sliding_window", default=4096, null=None) if on else None
    top = c.count("max_window_layers", default=28) if on else 0
    c.ignore("sliding_window", "max_window_layers")
    types = layer_types(c, n, [LOCAL if on and i % 2 == 0 and i < top else GLOBAL for i in range(n)])
    return layered(raw, windows(c, raw, window, types), _qwen_mixture(c, raw))


def qwen3_moe(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, kv=4) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    names = ("num_experts", "num_local_experts")
    mixed = experts(c, names, ("num_experts_per_tok",), ("moe_intermediate_size",), 128, 8)
    raw = _decoder(c, raw, attention, mixed)
    c.only(0, "shared_expert_intermediate_size", why="transformers' qwen3_moe has no shared expert")
    c.only(True, "use_qk_norm", why="transformers' qwen3_moe normalises Q and K")
    c.only(False, "qkv_bias", why="attention_bias is what transformers' qwen3_moe reads")
    c.ignore("max_window_layers")
    on = c.flag("use_sliding_window", default=False)
    window = c.size("sliding_window", default=4096, null=None) if on else None
    c.ignore("sliding_window")
    return layered(raw, _one_window(c, raw, window), _qwen_mixture(c, raw))


def with_shared(
    c: Config, mixed: Raw, *names: str, default: Any, groups: tuple[int | None, int | None] = (None, None)
) -> Raw:
    """Experts that every token passes, each as wide as a routed one; the groups that the choice is narrowed to, and how
    many there are and are chosen from where the class says it (`groups`)."""
    number = c.count(*names, default=default, null=0)
    parted, top = c.size("n_group", default=groups[0]), c.size("topk_group", default=groups[1])
    if parted:
        c.divides(parted, mixed["n_experts"], "n_group", "the number of experts")
        mixed = mixed | {"n_groups": parted, "top_groups": min(parted, top or parted)}
    return mixed | ({"n_shared": number} if number else {})


def first_dense(c: Config, raw: Raw, default: int) -> tuple[list[str], dict[str, Raw]]:
    """The first `first_k_dense_replace` layers are dense."""
    first = c.count("first_k_dense_replace", default=default)
    c.only(1, "moe_layer_freq", why="every layer after the first dense ones has experts")
    return dense_where(c, raw, [i < first for i in range(raw["n_layers"])])


def typed(c: Config, raw: Raw, default: list[bool]) -> tuple[list[str], dict[str, Raw]]:
    """`mlp_layer_types`, one a layer: "dense" or "sparse"; `default` says where they are dense."""
    names = ["dense" if is_dense else "sparse" for is_dense in default]
    kinds = c.items("mlp_layer_types", of=any_of("dense", "sparse"), length=raw["n_layers"], default=names)
    return dense_where(c, raw, [kind == "dense" for kind in kinds])


def dense_where(c: Config, raw: Raw, dense: list[bool]) -> tuple[list[str], dict[str, Raw]]:
    """Dense layers are `intermediate_size` wide; without any, the key says nothing."""
    if any(dense):
        raw["feed_forward"] = gated(c)
    c.ignore("intermediate_size")
    return mixture(c, raw, [not is_dense for is_dense in dense])


TOP = ("num_experts_per_tok",)
NAMES = ("num_experts", "num_local_experts")
ROUTED = ("n_routed_experts", "num_local_experts", "num_experts")
WIDTH = ("moe_intermediate_size",)


def olmoe(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "width"}
    if attention["n_heads"] * attention["d_head"] != raw["d_model"]:
        c.fault(
            "head_dim", attention["d_head"], "hidden_size / num_attention_heads", "the norm of Q is hidden_size wide"
        )
    return _decoder(c, raw, attention, experts(c, NAMES, TOP, ("intermediate_size",), 64, 8))


def flex_olmo(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "width"}
    raw = _decoder(c, raw, attention, experts(c, NAMES, TOP, ("intermediate_size",), 7, 5), theta=5e5)
    return raw | {"norm": rms(c, place="after")}


def granitemoe(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw) | {"bias": c.flag("attention_bias", default=False)}
    mixed = experts(c, ("num_local_experts",), TOP, ("intermediate_size",), 8, 2)
    return _decoder(c, raw, attention, mixed)


def granitemoe_swa(c: Config) -> Raw:
    raw = granitemoeshared(c)
    raw["attention"]["sinks"] = True
    return with_own_bases(c, raw)


def granitemoeshared(c: Config) -> Raw:
    raw = granitemoe(c)
    width = c.count("shared_intermediate_size", default=0)
    return raw | {"experts": raw["experts"] | ({"d_ff_shared": width} if width else {})}


def phimoe(c: Config) -> Raw:
    raw = stack(c)
    window = c.size("sliding_window", default=None)
    attention = heads(c, raw, kv=8) | {"bias": c.flag("attention_bias", default=False)}
    mixed = experts(c, ("num_local_experts",), TOP, ("intermediate_size",), 16, 2)
    if mixed["top_k"] != 2:
        c.fault("num_experts_per_tok", mixed["top_k"], "2", "transformers' phimoe always takes two")
    raw = _decoder(c, raw, attention, mixed, theta=1e6)
    raw["norm"] = layer_norm(c, "rms_norm_eps")
    if c.flag("lm_head_bias", default=False) and raw["head"].get("form", "lm") == "lm":
        raw["head"]["bias"] = True
    return layered(raw, _one_window(c, raw, window))


def minimax_m2(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, kv=8, d_head=128) | {"qk_norm": "width"}
    c.only([1] * raw["n_layers"], "attn_type_list", why="attention over all tokens in every layer is read")
    c.ignore("rotary_dim", "mlp_intermediate_size", "mtp_transformer_layers", "num_mtp_modules")
    further = c.data.get("num_mtp_modules")
    if further:
        c.note(f"{shown(further)} modules that predict further tokens (num_mtp_modules) are not counted")
    return _decoder(c, raw, attention, experts(c, NAMES[::-1], TOP, ("intermediate_size",), 256, 8), theta=5e6)


def gpt_oss(c: Config) -> Raw:
    """Sinks, biases everywhere, experts whose activation is clamped, every second layer with a window."""
    raw = stack(c)
    attention = heads(c, raw, kv=8, d_head=64) | {"bias": c.flag("attention_bias", default=True), "sinks": True}
    names = ("num_local_experts", "num_experts")
    mixed = experts(c, names, TOP, ("intermediate_size",), 128, 4, bias=True, router_bias=True)
    mixed |= {"activation": "clamped_silu", "scoring": "softmax_after"}
    c.ignore("swiglu_alpha", "swiglu_limit", "experts_per_token", "initial_context_length")
    raw = _decoder(c, raw, attention, mixed, theta=150000.0)
    n, window = raw["n_layers"], c.size("sliding_window", default=128, null=None)
    types = layer_types(c, n, [GLOBAL if i % 2 else LOCAL for i in range(n)])
    return layered(raw, windows(c, raw, window, types))


def ernie4_5_moe(c: Config) -> Raw:
    """Experts from one layer to another, every so many; the router's correction is a parameter, one a routed expert."""
    raw = stack(c)
    n, bias = raw["n_layers"], c.flag("use_bias", default=False)
    mixed = experts(c, ("moe_num_experts", "num_experts"), ("moe_k", "num_experts_per_tok"), WIDTH, 64, 6)
    mixed = with_shared(c, mixed, "moe_num_shared_experts", default=2) | {"router_bias": True}
    raw = _decoder(c, raw, heads(c, raw, kv=4) | {"bias": bias}, mixed, tied=True, theta=5e5)
    if bias:
        c.fault("use_bias", True, "false", "biases of the shared experts, not of the routed ones, are not read")
    c.ignore("moe_norm_min", "moe_capacity", "moe_gate", "moe_use_aux_free", "moe_layer_end_index")
    first, every = c.count("moe_layer_start_index", default=1), c.size("moe_layer_interval", default=1)
    last = c.data.get("moe_layer_end_index", -1)
    if type(last) is not int or last < -1:
        c.fault("moe_layer_end_index", last, "a layer, or -1 for the last")
        last = -1
    sparse = [first <= i <= (n if last == -1 else last) and (i + 1) % every == 0 for i in range(n)]
    return layered(raw, dense_where(c, raw, [not is_sparse for is_sparse in sparse]))


def hunyuan_v1_moe(c: Config) -> Raw:
    """A shared feed-forward as wide as a routed expert in every layer."""
    raw = stack(c)
    attention = heads(c, raw, d_head=REQUIRED) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    mixed = experts(c, NAMES, ("moe_topk", "num_experts_per_tok"), ("intermediate_size",), 1, 1)
    c.ignore("eod_token_id")
    return _decoder(c, raw, attention, mixed | {"n_shared": 1})


def mellum(c: Config) -> Raw:
    raw = stack(c)
    n, window = raw["n_layers"], c.size("sliding_window", default=1024, null=None)
    attention = heads(c, raw, kv=4, d_head=128) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    raw = _decoder(c, raw, attention, experts(c, NAMES, TOP, WIDTH, 64, 8), kind=GLOBAL)
    more_heads(c)
    c.ignore("mtp_layer_types", "mtp_mlp_layer_types")
    axis = windows(c, raw, window, layer_types(c, n, [GLOBAL] * n))
    return layered(raw, axis, typed(c, raw, [False] * n))


def cohere2_moe(c: Config) -> Raw:
    """Attention and experts side by side; the first layers may be dense, with a pattern of windows of their own."""
    raw = stack(c)
    n, window = raw["n_layers"], c.size("sliding_window", default=4096, null=None)
    first = c.count("first_k_dense_replace", default=0) if "first_k_dense_replace" in c else 0
    attention = heads(c, raw, d_head=128) | {"bias": c.flag("attention_bias", default=False)}
    mixed = with_shared(c, experts(c, NAMES, TOP, ("intermediate_size",), 8, 2), "num_shared_experts", default=0)
    c.ignore("shared_expert_combination_strategy")
    if c.text("expert_selection_fn", default="softmax") == "sigmoid":
        mixed["scoring"] = "sigmoid"
    raw = _decoder(c, raw, attention, mixed, tied=True)
    raw["positions"]["interleaved"] = True
    raw["norm"] = layer_norm(c, bias=False) if c.real("rms_norm_eps") is None else rms(c)
    raw["norm"]["parallel"] = "shared"
    before, after = (
        c.size(f"{name}sliding_window_pattern", default=of) for name, of in (("prefix_dense_", 1), ("", 4))
    )
    places = [(i, before) for i in range(min(first, n))] + [(i, after) for i in range(n - min(first, n))]
    types = layer_types(c, n, [LOCAL if (i + 1) % every else GLOBAL for i, every in places])
    names = ["dense" if i < first else "sparse" for i in range(n)]
    kinds = c.items("mlp_layer_types", of=any_of("dense", "sparse"), length=n, default=names)
    if "dense" in kinds:
        width = c.size("prefix_dense_intermediate_size", default=mixed["d_ff"], null=mixed["d_ff"])
        raw["feed_forward"] = {"d_ff": width, "gated": True, "activation": mixed["activation"]}
    c.ignore("prefix_dense_intermediate_size")
    # Dense layers turn their heads with a window or without one, unless their windows have a pattern.
    turned = [kind == LOCAL or (part == "dense" and before == 1) for kind, part in zip(types, kinds, strict=True)]
    turning: dict[str, Raw] = {"rotary": {}, "unrotated": {"positions": {"form": "none"}}}
    return layered(
        raw,
        windows(c, raw, window, types),
        (["rotary" if on else "unrotated" for on in turned], turning),
        mixture(c, raw, [kind == "sparse" for kind in kinds]),
    )


def flint(c: Config) -> Raw:
    """A sink a head; full attention, without positions, in the first two layers, every fourth and the last."""
    raw = stack(c)
    n, window = raw["n_layers"], c.size("sliding_window", default=513)
    attention = heads(c, raw, kv=4, d_head=128) | {"bias": c.flag("attention_bias", default=False)}
    mixed = experts(c, NAMES, TOP, WIDTH, 256, 6, d_ff_shared=c.size("shared_expert_intermediate_size", default=1024))
    raw = _decoder(c, raw, attention | {"qk_norm": "head", "sinks": True}, mixed | {"scoring": "sigmoid"})
    types = layer_types(c, n, [GLOBAL if i < 2 or i % 4 == 1 or i == n - 1 else LOCAL for i in range(n)])
    step = c.size("decoder_sparse_step", default=1)
    only = c.items("mlp_only_layers", of=number, length=None, default=[0, 1])
    dense = [i in only or (i + 1) % step != 0 for i in range(n)]
    axis = windows(c, raw, window, types, {"global": {"positions": {"form": "none"}}})
    return layered(raw, axis, dense_where(c, raw, dense))


def kolibri1(c: Config) -> Raw:
    """Sandwich norms; positions in the layers with a window alone."""
    raw = stack(c)
    n, window = raw["n_layers"], c.size("sliding_window", default=513, null=None)
    mixed = experts(c, NAMES, TOP, WIDTH, 384, 6, d_ff_shared=c.size("shared_expert_intermediate_size", default=512))
    raw = _decoder(c, raw, heads(c, raw, kv=4, d_head=128) | {"qk_norm": "head"}, mixed | {"scoring": "sigmoid"})
    raw["norm"] |= {"place": "sandwich"}
    types = layer_types(c, n, [LOCAL if (i + 1) % 5 else GLOBAL for i in range(n)])
    unrotated: Raw = {} if window is None else {"positions": {"form": "none"}}
    return layered(raw, windows(c, raw, window, types, {"global": unrotated}))


def glm4_moe(c: Config) -> Raw:
    raw = stack(c)
    bias = ["q", "k", "v"] if c.flag("attention_bias", default=False) else []
    attention = heads(c, raw, kv=8, whole=None) | {"bias": bias}
    attention["qk_norm"] = "head" if c.flag("use_qk_norm", default=False) else "none"
    mixed = with_shared(c, experts(c, ROUTED, TOP, WIDTH, 128, 8), "n_shared_experts", default=1)
    raw = _decoder(c, raw, attention, mixed | {"scoring": "sigmoid"}, partial=0.5, even=True)
    more_heads(c)
    return layered(raw, first_dense(c, raw, 1))


def glm4v_moe_text(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, kv=8, whole=None) | {
        "bias": ["q", "k", "v"] if c.flag("attention_bias", default=True) else []
    }
    mixed = with_shared(c, experts(c, ROUTED, TOP, WIDTH, 128, 8), "n_shared_experts", default=1)
    raw = _decoder(c, raw, attention, mixed | {"scoring": "sigmoid"}, partial=0.5, even=True)
    c.only(False, "use_qk_norm", why="transformers' glm4v_moe has no norms of Q and K")
    more_heads(c)
    return layered(raw, first_dense(c, raw, 1))


def qwen3_vl_moe_text(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, kv=16) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    raw = _decoder(c, raw, attention, experts(c, NAMES, TOP, WIDTH, 60, 4), tied=True, theta=5e5)
    return layered(raw, _qwen_mixture(c, raw))


def aria_text(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, whole=True) | {"bias": c.flag("attention_bias", default=False)}
    names = (("moe_num_experts",), ("moe_topk",), ("intermediate_size", "moe_intermediate_size"))
    mixed = with_shared(c, experts(c, *names, 8, 2), "moe_num_shared_experts", default=2)
    c.only(False, "mlp_bias", why="biases of the feed-forward are not read here")
    return _decoder(c, raw, attention, mixed)


def dots1(c: Config) -> Raw:
    raw = stack(c)
    n = raw["n_layers"]
    attention = heads(c, raw, kv=32) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    mixed = with_shared(c, experts(c, ROUTED, TOP, WIDTH), "n_shared_experts", default=REQUIRED)
    raw = _decoder(c, raw, attention, mixed | {"scoring": "sigmoid"})
    window, first = c.size("sliding_window", default=4096, null=None), c.count("max_window_layers", default=62)
    types = layer_types(c, n, [LOCAL if window is not None and i >= first else GLOBAL for i in range(n)])
    return layered(raw, windows(c, raw, window, types), first_dense(c, raw, 0))


def solar_open(c: Config) -> Raw:
    raw = stack(c)
    bias = ["q", "k", "v"] if c.flag("attention_bias", default=False) else []
    attention = heads(c, raw, kv=8, d_head=128) | {"bias": bias}
    mixed = with_shared(c, experts(c, ROUTED, TOP, WIDTH, 128, 8), "n_shared_experts", default=1)
    c.only(0, "first_k_dense_replace", why="every layer of transformers' solar_open has experts")
    c.only(False, "use_qk_norm", why="transformers' solar_open has no norms of Q and K")
    c.ignore("intermediate_size")
    return _decoder(c, raw, attention, mixed | {"scoring": "sigmoid"}, theta=1e6)


def exaone_moe(c: Config) -> Raw:
    raw = stack(c)
    n = raw["n_layers"]
    attention = heads(c, raw, kv=32) | {"qk_norm": "head"}
    mixed = with_shared(c, experts(c, NAMES, TOP, WIDTH, 64, 8), "num_shared_experts", default=1)
    raw = _decoder(c, raw, attention, mixed | {"scoring": "sigmoid"})
    first = 0 if c.data.get("mlp_layer_types") is not None else c.count("first_k_dense_replace", default=1)
    window = c.size("sliding_window", default=4096)
    if c.data.get("layer_types") is not None:
        default = [GLOBAL] * n
    else:
        period = c.size("sliding_window_pattern", default=4)
        default = [LOCAL if (i + 1) % period else GLOBAL for i in range(n)]
    c.ignore("first_k_dense_replace", "sliding_window_pattern")
    axis = windows(c, raw, window, layer_types(c, n, default), {"global": {"positions": {"form": "none"}}})
    return layered(raw, axis, typed(c, raw, [i < first for i in range(n)]))


def hy_v3(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, kv=8, d_head=128) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    mixed = with_shared(c, experts(c, NAMES, TOP, WIDTH, 192, 8), "num_shared_experts", default=1)
    if "n_shared" not in mixed:
        c.fault("num_shared_experts", 0, "at least 1", "transformers' hy_v3 makes one of intermediate_size out of none")
    c.only(False, "mlp_bias", why="biases of the feed-forward are not read here")
    c.ignore("router_scaling_factor", "enable_moe_fp32_combine")
    raw = _decoder(c, raw, attention, mixed | {"scoring": "sigmoid"}, theta=11158840.0)
    return layered(raw, typed(c, raw, [i == 0 for i in range(raw["n_layers"])]))


def dbrx(c: Config) -> Raw:
    raw = stack(c, ("d_model", "hidden_size"), ("n_layers", "num_hidden_layers"))
    inner, channel = c.table("attn_config"), c.table("ffn_config")
    c.ignore("max_seq_len")
    attention = heads(c, raw, names=("n_heads", "num_attention_heads"), kv_names=(), width_names=())
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
        mixed = experts(channel, ("moe_num_experts",), ("moe_top_k",), ("ffn_hidden_size",), 4, 1)
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
    raw = _decoder(c, raw, attention, mixed)
    c.only(False, "tie_word_embeddings", why="transformers' dbrx is never tied")
    return raw | {"norm": layer_norm(c, bias=False)}


def llama4_text(c: Config) -> Raw:
    """Layers with chunks and rotation, every fourth with neither; experts in every `interleave_moe_layer_step`-th."""
    raw = stack(c)
    n = raw["n_layers"]
    normed = c.flag("use_qk_norm", default=True)
    attention = heads(c, raw, kv=8, d_head=128) | {"bias": c.flag("attention_bias", default=False)}
    mixed = experts(c, NAMES[::-1], TOP, ("intermediate_size",), 16, 1)
    mixed |= {"d_ff_shared": mixed["d_ff"], "scoring": "sigmoid"}
    raw = _decoder(c, raw, attention, mixed, theta=5e5)
    raw["positions"] |= {"interleaved": True}
    c.ignore("attn_temperature_tuning", "floor_scale", "attn_scale", "for_llm_compressor", "layer_types")
    every = c.size("no_rope_layer_interval", default=4)
    default = [int((i + 1) % every != 0) for i in range(n)]
    turned = c.items("no_rope_layers", of=any_of(0, 1), length=None, default=default) or default
    if len(turned) != n:
        c.fault("no_rope_layers", turned, f"a list of {n:,} items, one a layer")
        turned = default
    chunked = ["chunked_attention" if on else GLOBAL for on in turned]
    types = layer_types(c, n, chunked, ("chunked_attention", GLOBAL))
    chunk = c.size("attention_chunk_size", default=8192)
    step = c.size("interleave_moe_layer_step", default=1)
    given = c.items("moe_layers", of=number, length=None, default=None)
    sparse = set(range(step - 1, n, step) if given is None else given)
    if not all(i in sparse for i in range(n)):
        width = c.size("intermediate_size_mlp")
        raw["feed_forward"] = {"d_ff": width, "gated": True, "activation": mixed["activation"]}
    c.ignore("intermediate_size_mlp")
    local: Raw = {"attention": {"window": chunk, "chunked": True}}
    spans = ["chunked" if kind == "chunked_attention" else "global" for kind in types]
    turning: dict[str, Raw] = {"rotary": {}, "unrotated": {"positions": {"form": "none"}}}
    if normed:
        turning["rotary"] = {"attention": {"qk_norm": "bare"}}
    return layered(
        raw,
        (spans, {"chunked": local, "global": {}}),
        (["rotary" if on else "unrotated" for on in turned], turning),
        mixture(c, raw, [i in sparse for i in range(n)]),
    )


def mimo_v2_flash(c: Config) -> Raw:
    """Values narrower than keys; layers with a window have sinks and twice the key/value heads."""
    raw = stack(c)
    n, window = raw["n_layers"], c.size("sliding_window", default=129)
    attention = heads(c, raw, kv=4, d_head=192, whole=None)
    attention |= {
        "bias": ["q", "k", "v"] if c.flag("attention_bias", default=False) else [],
        "d_v": c.size("v_head_dim", default=128),
        "v_scale": c.real("attention_value_scale", default=0.707),
    }
    if "attention_value_scale" in c and c.data["attention_value_scale"] is None:
        del attention["v_scale"]
    before = c.size("sliding_window_size", default=None)
    window = window if before is None else before + 1
    names = ("n_routed_experts", "num_local_experts")
    mixed = with_shared(c, experts(c, names, TOP, WIDTH, 256, 8), "n_shared_experts", default=0, groups=(1, 1))
    if mixed.pop("n_shared", 0):
        c.fault(
            "n_shared_experts", c.data["n_shared_experts"], "0", "transformers' mimo_v2_flash has no shared experts"
        )
    raw |= {
        "attention": attention,
        "experts": mixed | {"scoring": "sigmoid"},
        "norm": rms(c, eps=1e-5),
        "head": lm_head(c, False),
    }
    types = layer_types(c, n, [GLOBAL if i == 0 or (i + 1) % 6 == 0 else LOCAL for i in range(n)])
    twice = 2 * attention["n_kv_heads"]
    if LOCAL in types:
        c.divides(twice, attention["n_heads"], "num_key_value_heads · 2", "num_attention_heads")
    # What the file's own code reads, where transformers' has a rule.
    own = "transformers' class has it so"
    c.only(attention["n_heads"], "swa_num_attention_heads", why=own)
    c.only(attention["d_head"], "swa_head_dim", why=own)
    c.only(attention["d_v"], "swa_v_head_dim", why=own)
    c.only(twice, "swa_num_key_value_heads", why=own)
    c.only(True, "add_swa_attention_sink_bias", why=own)
    c.only(False, "add_full_attention_sink_bias", why=own)
    c.only([int(kind == LOCAL) for kind in types], "hybrid_layer_pattern", why=own)
    c.ignore("swa_rope_theta", "attention_chunk_size", "partial_rotary_factor", "rope_theta")
    given = c.data.get("rope_parameters")
    tables: dict[str, Raw] = {}
    for kind, theta in ((GLOBAL, 5e6), (LOCAL, 1e4)):
        if kind in types and given is not None and not isinstance(given, dict):
            c.fault("rope_parameters", given, "an object with a table for each layer type")
        elif kind in types and given is not None and not isinstance(given.get(kind), dict):
            c.fault("rope_parameters", sorted(map(str, given)), f"a table for each layer type: {kind} has none")
        places = rotary(c, attention["d_head"], theta, 0.334, kind=kind, names=())
        tables[LAYER_NAMES[kind]] = {"positions": places}
    tables["local"]["attention"] = {"n_kv_heads": twice, "sinks": True}
    axis = windows(c, raw, window, types, tables)
    kinds = typed(c, raw, [i == 0 for i in range(n)])
    c.only([int(kind == "sparse") for kind in kinds[0]], "moe_layer_freq", why=own)
    return layered(raw, axis, kinds)


def laguna(c: Config) -> Raw:
    """A gate by softplus on what is read; heads, windows and experts layer by layer; the correction is a parameter."""
    raw = stack(c)
    n = raw["n_layers"]
    attention = heads(c, raw, kv=8, d_head=128) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    width, given = attention["d_head"], c.data["gating"] if "gating" in c else True
    c.ignore("gating")
    if given not in (True, "per-head", "per-element") or type(given) is int:
        c.fault("gating", given, "true, 'per-head' or 'per-element'")
    gate = "element" if given == "per-element" else "head"
    mixed = experts(c, NAMES, TOP, WIDTH, 256, 8, d_ff_shared=c.size("shared_expert_intermediate_size", default=512))
    mixed |= {"scoring": "sigmoid", "correction": True, "scale": c.real("moe_routed_scaling_factor", default=1.0)}
    c.only(False, "moe_apply_router_weight_on_input", why="the experts' results are weighed, not their inputs")
    if c.real("moe_router_logit_softcapping", default=0.0) > 0:
        c.fault("moe_router_logit_softcapping", c.data["moe_router_logit_softcapping"], "0: no part caps them")
    raw |= {
        "attention": attention | {"gate": gate, "gate_activation": "softplus"},
        "experts": mixed,
        "norm": rms(c),
        "head": lm_head(c, False),
    }
    types = layer_types(c, n, [GLOBAL] * n)
    angles = c.data.get("rope_parameters")
    turned = {GLOBAL: (5e5, 0.5), LOCAL: (1e4, 1.0)}
    for kind in sorted(set(types)):
        if isinstance(angles, dict) and not isinstance(angles.get(kind), dict):
            c.fault("rope_parameters", sorted(map(str, angles)), f"a table for each layer type: {kind} has none")
    positions = {
        kind: {"positions": rotary(c, width, theta, partial if angles is None else 1.0, kind=kind)}
        for kind, (theta, partial) in turned.items()
        if kind in types
    }
    window = c.size("sliding_window", default=512) if LOCAL in types else None
    c.ignore("sliding_window")
    tables = {"global": positions.get(GLOBAL, {}), "local": positions.get(LOCAL, {})}
    axis = windows(c, raw, window, types, tables)
    counts = c.items("num_attention_heads_per_layer", of=size, length=n, default=None) or [attention["n_heads"]] * n
    for count in sorted(set(counts)):
        if count % attention["n_kv_heads"]:
            c.fault(
                "num_attention_heads_per_layer", count, f"multiples of num_key_value_heads = {attention['n_kv_heads']}"
            )
    by_heads: dict[str, Raw] = {f"{count}h": {"attention": {"n_heads": count}} for count in counts}
    return layered(raw, axis, ([f"{count}h" for count in counts], by_heads), typed(c, raw, [i == 0 for i in range(n)]))


def afmoe(c: Config) -> Raw:
    """Gated attention, sandwich norms, and positions only in the layers with a window."""
    raw = stack(c)
    n = raw["n_layers"]
    attention = heads(c, raw, d_head=128) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    mixed = experts(c, NAMES, TOP, WIDTH, 64, 6, n_shared=c.size("num_shared_experts", default=2))
    mixed |= {"scoring": "sigmoid", "correction": True, "scale": c.real("route_scale", default=1.0)}
    raw = _decoder(c, raw, attention | {"gate": "element"}, mixed)
    raw["norm"] = rms(c, eps=1e-5, place="sandwich")
    if c.flag("mup_enabled", default=False, null=False):
        raw["embedding"] = {"scale": raw["d_model"] ** 0.5}
    window, every = c.size("sliding_window", default=1024, null=None), c.size("global_attn_every_n_layers", default=4)
    types = layer_types(c, n, [LOCAL if (i + 1) % every else GLOBAL for i in range(n)])
    first = c.count("num_dense_layers", default=1)
    axis = windows(c, raw, window, types, {"global": {"positions": {"form": "none"}}})
    return layered(raw, axis, dense_where(c, raw, [i < first for i in range(n)]))
