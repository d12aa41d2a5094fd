"""Decoders with experts whose code is published with the weights."""

from __future__ import annotations

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import GLOBAL, TOP, WIDTH, Config, Raw, with_kinds
from txcalc.sources.huggingface.delta import LINEAR, minimax
from txcalc.sources.huggingface.keys import any_of
from txcalc.sources.huggingface.leaf_list import leaf, matrix, norm_leaf, of_kind


def hunyuan(c: Config) -> Raw:
    """Hunyuan-Large: groups of layers share keys and values (cross-layer attention), and there is one shared expert or
    none; and Hunyuan-A13B by its published code, whose configs give some sizes as a list with one item per layer."""
    c.require_published_class("hunyuan", "hunyuanmoev1")
    raw = c.stack()
    for name in ("moe_topk", "num_shared_expert", *WIDTH):
        sizes = c.data.get(name)
        if isinstance(sizes, list) and len(sizes) == raw["n_layers"] and all(size == sizes[0] for size in sizes):
            c.data = {**c.data, name: sizes[0]}
    c.ignore(*(key for key in c.data if key.startswith(("anyres_", "image_token", "vit_"))))
    attention = c.heads(raw, width_names=(), attention_bias=False)
    why = "the published code computes hidden_size / num_attention_heads"
    c.require_value(attention["d_head"], "attention_head_dim", why=why)
    qk_norm = c.flag("use_qk_norm", default=False)
    factor = c.size("cla_share_factor", default=1) if c.flag("use_cla", default=False) else 1
    raw |= {
        "attention": attention | {"qk_norm": "head" if qk_norm else "none"},
        "norm": c.rms(eps=1e-5),
        "positions": c.rotary(attention["d_head"]),
        "head": c.lm_head(tied=False),
    }
    if c.size("num_experts", default=1) > 1:
        has_width = c.data.get(*WIDTH) is not None
        c.ignore("intermediate_size")
        mixed = c.experts(("num_experts",), ("moe_topk",), WIDTH if has_width else ("intermediate_size",), 1, 1)
        shared = c.size("num_shared_expert", default=1) if c.flag("use_mixed_mlp_moe", default=False) else 0
        raw["experts"] = mixed | ({"n_shared": shared} if shared else {})
        parts = ["attention", "experts"]
    else:
        c.ignore("moe_topk", "num_shared_expert", "use_mixed_mlp_moe", *WIDTH)
        raw["feed_forward"] = c.gated_mlp()
        parts = ["attention", "feed_forward"]
    kinds = ["borrower" if i % factor else "owner" for i in range(raw["n_layers"])]
    if qk_norm and "borrower" in kinds:  # borrowers also have a norm of K, which they do not run
        raw["idle"] = kinds.count("borrower") * attention["d_head"]
    borrower = {"parts": parts, "attention": {"kv_from": "owner"}}
    return with_kinds(raw, (kinds, {"owner": {"parts": parts}, "borrower": borrower}))


def arctic(c: Config) -> Raw:
    """A dense feed-forward, as wide as the model, in parallel with the experts; other layers have one feed-forward."""
    c.require_published_class()
    raw = c.stack()
    n, attention = raw["n_layers"], c.heads(raw, kv=None, width_names=())
    mixed = c.experts(("num_local_experts",), TOP, ("intermediate_size",), 8, 1)
    period = c.size("moe_layer_frequency", default=2)
    c.require_value(None, "sliding_window", why="windows are not supported")
    parallel = c.flag("parallel_attn_mlp_res", default=False)
    sparse = [(i + 1) % period == 0 for i in range(n)]
    raw["feed_forward"] = {"d_ff": mixed["d_ff"], "gated": True, "activation": mixed["activation"]}
    attention["bias"] = c.flag("attention_bias", default=False)
    raw = c.decoder(raw, attention, mixed=mixed, norm=c.rms(eps=1e-5))
    if not parallel:
        return with_kinds(raw, c.mixture(raw, sparse))
    c.note("the experts read the layer's input, not the output of attention; this changes no FLOPs")
    both = {"parts": ["attention", "feed_forward", "experts"], "feed_forward": {"d_ff": raw["d_model"]}}
    return with_kinds(raw, (["both" if has_experts else "dense" for has_experts in sparse],
                         {"both": both, "dense": {"parts": ["attention", "feed_forward"]}}))  # fmt: skip


def grok_1(c: Config) -> Raw:
    """Experts gated by GELU, norms before and after every branch, capped scores; by default two of eight experts."""
    c.require_published_class("grok1model", "grok1")
    raw = c.stack()
    attention = c.heads(raw, width_names=("head_dim",)) | {"softcap": c.real("max_attn_value", default=30.0)}
    scale = c.real("embedding_multiplier_scale", default=1.0)
    mixed = c.experts(("num_experts", "num_local_experts"), TOP, ("intermediate_size",), 8, 2, act="gelu")
    return c.decoder(
        raw, attention, mixed=mixed, norm=c.rms(eps=1e-5, place="sandwich"), embedding={"scale": scale}, tied=True
    )


def deepseek(c: Config) -> Raw:
    """DeepSeekMoE, before latent attention: Llama with shared and routed experts."""
    c.require_published_class()
    return _deepseek(c, c.stack(), mla=False)


def _deepseek(c: Config, raw: Raw, mla: bool) -> Raw:
    """DeepSeek's published code of its first two models: multi-head or latent attention, experts if the config has
    `n_routed_experts`. The router's correction bias is a parameter."""
    if not mla:
        attention = c.heads(raw, width_names=(), attention_bias=False)
        c.ignore("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "head_dim")
        raw |= {"attention": attention, "positions": c.rotary(attention["d_head"])}
    else:
        latent = c.mla(1536, 512, 128, 64, 128)
        theta = c.rotary(latent["d_rope"])["theta"]
        raw |= {"latent": latent, "positions": {"form": "rotary", "theta": theta, "interleaved": True}}
    raw |= {"norm": c.rms(), "head": c.lm_head(tied=False)}
    if c.data.get("n_routed_experts") is None:
        c.ignore("n_routed_experts", "n_shared_experts", "moe_intermediate_size", "first_k_dense_replace")
        c.ignore("moe_layer_freq", *TOP)
        return raw | {"feed_forward": c.gated_mlp()}
    mixed = c.with_shared(c.experts(("n_routed_experts",), TOP, WIDTH), "n_shared_experts", default=0)
    method, form = c.text("topk_method", default="greedy"), c.text("scoring_func", default="softmax")
    c.ignore("topk_method", "scoring_func")
    if form not in ("softmax", "sigmoid"):
        c.fault("scoring_func", form, "'softmax' or 'sigmoid'")
    if method == "noaux_tc":
        mixed["correction"] = True
    elif method not in ("greedy", "gready", "group_limited_greedy"):
        c.fault("topk_method", method, "'greedy', 'group_limited_greedy' or 'noaux_tc'")
    mixed["scoring"] = form
    raw["experts"] = mixed
    return with_kinds(raw, c.first_dense(raw, 0))


def deepseek_vl_v2(c: Config) -> Raw:
    """The language model of DeepSeek-VL2 and DeepSeek-OCR, with or without latent attention."""
    from txcalc.sources.huggingface.remote_multimodal import inside

    return inside(c, "language_config", _deepseek_text, "deepseekvlv2", "deepseekocr", "deepseekocr2")


def _deepseek_text(inner: Config) -> Raw:
    defaults = {"vocab_size": 102400, "num_hidden_layers": 30, "num_attention_heads": 32, "hidden_size": 4096,
                "intermediate_size": 11008, "moe_intermediate_size": 1407}  # fmt: skip
    inner.fill(defaults)
    inner.require_published_class("deepseekv2", "deepseekocr")
    mla = inner.flag("use_mla", default=True)
    if not mla and inner.data.get("kv_lora_rank", 0) is None:  # transformers' class would need it
        inner.drop("kv_lora_rank")
    return _deepseek(inner, inner.stack(), mla)


def unlimited_ocr(c: Config) -> Raw:
    """DeepSeek-OCR's with a window over the answer; attention to the whole prompt, which stays in the cache."""
    from txcalc.sources.huggingface.remote_multimodal import inside

    window = c.size("sliding_window", "sliding_window_size", default=128)
    c.note(f"the context counts as the prompt; of the answer, only the last {window:,} tokens are read and cached")

    def text(inner: Config) -> Raw:
        inner.ignore("sliding_window", "sliding_window_size")
        return _deepseek_text(inner)

    return inside(c, "language_config", text, "unlimitedocr")


def step3_text(c: Config) -> Raw:
    """Low-rank queries with a norm, one key/value head, routed experts and a shared one."""
    c.require_published_class("step3text")
    raw = c.stack()
    d, n_heads, width = raw["d_model"], c.size("num_attention_heads"), c.size("head_dim", default=256)
    rank = c.size("share_q_dim", default=2048)
    attention = [
        matrix("q_a", d, rank), norm_leaf("q", rank, "rms_norm"),
        matrix("q_b", rank, n_heads * width), matrix("k", d, width),
        matrix("v", d, width), leaf("rotary", "rotary", n_heads + 1, width),
        leaf("core", "causal", n_heads, width, width, groups=n_heads, bias=False),
        matrix("o", n_heads * width, d), leaf("attention_sum", "sum", d),
    ]  # fmt: skip
    leaves = of_kind("attention", attention)
    mixed = c.experts(("moe_num_experts",), ("moe_top_k",), WIDTH, 48, 3,
                    d_ff_shared=c.size("share_expert_dim", default=5120))  # fmt: skip
    numbers = [str(i) for i in range(raw["n_layers"])]
    listed = c.data.get("moe_layers_enum", [i for i in range(4, 60) if i < len(numbers)])
    c.ignore("moe_layers_enum")
    items = listed.split(",") if isinstance(listed, str) else listed if isinstance(listed, list) else [listed]
    sparse = {item.strip() if isinstance(listed, str) else str(item) for item in items}
    if not isinstance(listed, str | list) or not sparse <= {*numbers}:
        c.fault("moe_layers_enum", listed, f"indexes of layers from 0 to {len(numbers) - 1}, separated by commas")
    raw |= {"pieces": {"leaves": leaves}, "experts": mixed | {"n_shared": 1}, "feed_forward": c.gated_mlp()}
    raw |= {"norm": c.rms(eps=1e-5), "positions": {"form": "none"}, "head": c.lm_head(tied=False)}
    kinds = ["sparse" if i in sparse else "dense" for i in numbers]
    tables = {"sparse": {"parts": ["pieces", "experts"]}, "dense": {"parts": ["pieces", "feed_forward"]}}
    return with_kinds(raw, (kinds, {kind: tables[kind] for kind in set(kinds)}))


def step3_vl(c: Config) -> Raw:
    """The language model of Step-3."""
    from txcalc.sources.huggingface.remote_multimodal import inside

    return inside(c, "text_config", step3_text, "step3vl")


def minimax_text_01(c: Config) -> Raw:
    """MiniMax-Text-01 and M1 before transformers had them: `attn_type_list` names the layers of linear attention."""
    c.require_published_class("minimaxtext01", "minimaxm1")
    attention_types = c.items("attn_type_list", of=any_of(0, 1), length=c.layers("num_hidden_layers"), default=None)
    if attention_types is None:
        c.fault("attn_type_list", c.data.get("attn_type_list", ABSENT), "a list, one per layer")
    shared = c.data.get("shared_intermediate_size", 0)
    if shared not in (0, [0]):
        c.fault("shared_intermediate_size", shared, "0", "a shared expert with a learned coefficient is not supported")
    c.ignore("attn_type_list", "shared_intermediate_size", "shared_moe_mode")
    c.ignore(*(key for key in c.data if key.startswith("layernorm_")))
    types = [GLOBAL if kind else LINEAR for kind in attention_types or []]
    dims = c.size("rotary_dim", default=None)
    c.override(layer_types=types or None)
    raw = minimax(c)
    width = raw["attention"]["d_head"]
    return raw | {"positions": raw["positions"] | ({"rotary_dims": dims} if dims and dims != width else {})}


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
    return with_kinds(raw, (named, tables))


_DISAGREE = "for other values MLX and SGLang build different layers"
# Keys of Ring-linear whose defaults are not known.
_REQUIRED = (
    "num_attention_heads", "num_key_value_heads", "head_dim", "num_experts", "num_experts_per_tok",
    "num_shared_experts", "layer_group_size", "first_k_dense_replace", "partial_rotary_factor", "use_bias",
    "use_qk_norm", "use_qkv_bias", "tie_word_embeddings", "score_function", "linear_silu",
)  # fmt: skip
