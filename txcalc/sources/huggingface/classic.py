"""Dense decoders in the line of GPT: LayerNorm or plain feed-forwards, learned positions or ALiBi."""

from __future__ import annotations

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import GLOBAL, LOCAL, Config, Raw, layered


def stablelm(c: Config) -> Raw:
    raw = c.stack()
    bias = ["q", "k", "v"] if c.flag("use_qkv_bias", default=False) else []
    attention = c.heads(raw, kv=32, width_names=()) | {"bias": bias}
    if c.flag("qk_layernorm", default=False):
        c.fault("qk_layernorm", True, "false", "norms of Q and K without a bias, beside norms with one, are not read")
    parallel = "shared" if c.flag("use_parallel_residual", default=False) else "no"
    return c.decoder(raw, attention, norm=c.layer_norm(parallel=parallel), partial=0.25)


def _gpt(c: Config) -> Raw:
    """The widths of the GPT-2 generation, and its learned positions."""
    raw = c.stack(("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"))
    c.ignore("n_ctx", "n_special", "predict_special_tokens")
    return raw


GPT_HEADS = ("n_head", "num_attention_heads")
GPT_ACT = ("activation_function",)


def gpt2(c: Config) -> Raw:
    raw = _gpt(c)
    inner = 4 * raw["d_model"]
    return raw | {
        "attention": c.heads(raw, names=GPT_HEADS, kv_names=(), width_names=()) | {"bias": True},
        "feed_forward": c.plain("n_inner", act="gelu_new", act_names=GPT_ACT, default=inner),
        "norm": c.layer_norm(),
        "positions": {"form": "learned", "rows": c.size("n_positions", "max_position_embeddings", default=1024)},
        "head": c.lm_head(tied=True),
    }


def gpt_bigcode(c: Config) -> Raw:
    raw = gpt2(c)
    shared = c.flag("multi_query", default=True)
    attention = raw["attention"] | ({"n_kv_heads": 1} if shared else {})
    c.only(attention["n_kv_heads"], "num_key_value_heads", why="multi_query says so")
    c.ignore("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32")
    return raw | {"attention": attention}


def gptj(c: Config) -> Raw:
    raw = _gpt(c)
    attention = c.heads(raw, names=GPT_HEADS, kv_names=(), width_names=()) | {"bias": False}
    dims = c.size("rotary_dim", default=64)
    c.only(True, "rotary", why="transformers' gptj is rotary")
    return raw | {
        "attention": attention,
        "feed_forward": c.plain("n_inner", act="gelu_new", act_names=GPT_ACT, default=4 * raw["d_model"]),
        "norm": c.layer_norm(parallel="shared"),
        "positions": {"form": "rotary", "rotary_dims": dims, "interleaved": True},
        "head": c.lm_head(tied=False, bias=True),
    }


def openai_gpt(c: Config) -> Raw:
    raw = _gpt(c)
    activation = c.activation("afn", default="gelu_new")
    activation = "gelu_tanh" if activation == "gelu" else activation  # transformers' GPT-1 has one gelu, by tanh
    return raw | {
        "attention": c.heads(raw, names=GPT_HEADS, kv_names=(), width_names=()) | {"bias": True},
        "feed_forward": {"d_ff": 4 * raw["d_model"], "activation": activation, "bias": True},
        "norm": c.layer_norm(place="post"),
        "positions": {"form": "learned", "rows": c.size("n_positions", "max_position_embeddings", default=512)},
        "head": c.lm_head(tied=True),
    }


def ctrl(c: Config) -> Raw:
    raw = _gpt(c)
    return raw | {
        "attention": c.heads(raw, names=GPT_HEADS, kv_names=(), width_names=()) | {"bias": True},
        "feed_forward": {"d_ff": c.size("dff"), "activation": "relu", "bias": True},
        "norm": c.layer_norm(eps=1e-6),
        "positions": {"form": "sinusoidal"},
        "embedding": {"scale": raw["d_model"] ** 0.5},
        "head": c.lm_head(tied=True, bias=True),
    }


def gpt_neo(c: Config) -> Raw:
    raw = c.stack(n_layers=("num_layers", "num_hidden_layers"))
    n, inner = raw["n_layers"], 4 * raw["d_model"]
    types = _neo_layers(c, n)
    raw |= {
        "attention": c.heads(raw, names=("num_heads", "num_attention_heads"), kv_names=(), width_names=())
        | {"bias": ["o"]},
        "feed_forward": c.plain("intermediate_size", act="gelu_new", act_names=GPT_ACT, default=inner),
        "norm": c.layer_norm(),
        "positions": {"form": "learned", "rows": c.size("max_position_embeddings", default=2048)},
        "head": c.lm_head(tied=True),
    }
    return layered(raw, c.windows(raw, c.size("window_size", default=256), types))


def _neo_layers(c: Config, n: int) -> list[str]:
    """GPT-Neo's `attention_types`, [[["global", "local"], 12]], one a layer."""
    names = {"global": GLOBAL, "local": LOCAL}
    given = c.data.get("attention_types")
    c.ignore("attention_types", "attention_layers")
    wanted = f'pairs such as [["global", "local"], 12] that make {n:,} layers'
    types: list[str] = []
    try:
        for kinds, times in [[["global", "local"], 12]] if given is None else given:
            if type(times) is not int or not 0 <= times <= n or not isinstance(kinds, list) or len(kinds) > n:
                raise ValueError
            types += [names[kind] for kind in kinds] * times
    except (TypeError, ValueError, KeyError):
        types = []
    if len(types) != n:
        c.fault("attention_types", ABSENT if given is None else given, wanted)
        return [GLOBAL] * n
    short = {kind: name for name, kind in names.items()}
    if "attention_layers" in c and c.data["attention_layers"] != [short[kind] for kind in types]:
        c.fault("attention_layers", c.data["attention_layers"], "what attention_types says")
    return types


def gpt_neox(c: Config) -> Raw:
    raw = c.stack()
    attention = c.heads(raw, kv_names=(), width_names=(), whole=True) | {"bias": c.flag("attention_bias", default=True)}
    parallel = "separate" if c.flag("use_parallel_residual", default=True) else "no"
    return c.decoder(raw, attention, mlp=c.plain(), norm=c.layer_norm(parallel=parallel), partial=0.25)


def gpt_neox_japanese(c: Config) -> Raw:
    """Branches one after the other; no bias but that of the last layer's o."""
    raw = c.stack()
    n, attention = raw["n_layers"], c.heads(raw, kv_names=(), width_names=())
    width = raw["d_model"] * c.size("intermediate_multiple_size", default=4)
    raw |= {
        "attention": attention,
        "feed_forward": {"d_ff": width, "activation": c.activation("hidden_act", default="gelu"), "bias": False},
        "norm": c.layer_norm(),
        "positions": c.rotary(attention["d_head"]),
        "head": c.lm_head(tied=True),
    }
    kinds = ["last" if i == n - 1 else "earlier" for i in range(n)]
    return layered(raw, (kinds, {"earlier": {}, "last": {"attention": {"bias": ["o"]}}}))


def bloom(c: Config) -> Raw:
    raw = c.stack(("hidden_size", "n_embed", "n_embd"), ("n_layer", "num_hidden_layers"))
    c.ignore(
        "apply_residual_connection_post_layernorm", "slow_but_exact", "bias_dropout_fusion", "masked_softmax_fusion"
    )
    c.ignore("offset_alibi", "skip_bias_add", "skip_bias_add_qkv", "attention_softmax_in_fp32", "unk_token_id")
    c.only(4 * raw["d_model"], "n_inner", why="transformers' bloom is four times as wide")
    return raw | {
        "attention": c.heads(raw, names=GPT_HEADS, kv_names=(), width_names=()) | {"bias": True},
        "feed_forward": {"d_ff": 4 * raw["d_model"], "activation": "gelu_tanh", "bias": True},
        "norm": c.layer_norm(),
        "positions": {"form": "alibi"},
        "embedding": {"norm": True},
        "head": c.lm_head(tied=True),
    }


def falcon(c: Config) -> Raw:
    raw = c.stack(("hidden_size", "n_embed"), ("num_hidden_layers", "n_layer"))
    attention = c.heads(raw, names=("num_attention_heads", "n_head"), kv_names=(), width_names=())
    bias = c.flag("bias", default=False)
    new = c.flag("new_decoder_architecture", default=False)
    shared = c.flag("multi_query", default=True)
    groups = c.size("num_kv_heads", "n_head_kv", default=None)
    if new:
        groups = attention["n_heads"] if groups is None else groups
        c.divides(groups, attention["n_heads"], c.spelling("num_kv_heads", "n_head_kv"), "num_attention_heads")
    else:
        groups = 1 if shared else attention["n_heads"]
    beside = c.flag("parallel_attn", default=True)
    norms = c.size("num_ln_in_parallel_attn", default=None)
    if new and not beside:
        c.fault("parallel_attn", False, "true", "the new decoder architecture is parallel")
    two = norms == 2 or (norms is None and new)
    parallel = ("separate" if two else "shared") if beside or new else "no"
    inner = 4 * raw["d_model"]
    width = c.size("ffn_hidden_size", "ff_factor_hidden_size", default=inner, null=inner)
    activation = c.activation("activation", default="gelu")
    alibi = c.flag("alibi", default=False)
    return raw | {
        "attention": attention | {"n_kv_heads": groups, "bias": bias},
        "feed_forward": {"d_ff": width, "activation": activation, "bias": bias},
        "norm": c.layer_norm(parallel=parallel),
        "positions": {"form": "alibi"} if alibi else c.rotary(attention["d_head"]),
        "head": c.lm_head(tied=True),
    }


def mpt(c: Config) -> Raw:
    raw = c.stack(("d_model", "hidden_size"), ("n_layers", "num_hidden_layers"))
    c.ignore("max_seq_len", "learned_pos_emb", "verbose", "init_config", "embedding_fraction", "logit_scale")
    c.only(True, "no_bias", why="transformers' mpt has no biases")
    c.only(4, "expansion_ratio", why="transformers' mpt is four times as wide")
    c.only("low_precision_layernorm", "norm_type", why="LayerNorms without bias are read")
    inner = c.table("attn_config")
    if inner:
        inner.ignore("attn_impl", "attn_pdrop", "softmax_scale", "attn_uses_sequence_id", "alibi_bias_max", "clip_qkv")
        inner.only("multihead_attention", "attn_type", why="transformers' mpt has as many K/V heads as Q heads")
        inner.only(True, "alibi", why="transformers' mpt is always biased by distance")
        inner.ignore("tie_word_embeddings")
        inner.only(False, "prefix_lm", "qk_ln", why="transformers' mpt has neither")
    return raw | {
        "attention": c.heads(raw, names=("n_heads", "num_attention_heads"), kv_names=(), width_names=()),
        "feed_forward": {"d_ff": 4 * raw["d_model"], "activation": "gelu"},
        "norm": c.layer_norm(bias=False),
        "positions": {"form": "alibi"},
        "head": c.lm_head(tied=True),
    }


def opt(c: Config) -> Raw:
    raw = c.stack()
    bias = c.flag("enable_bias", default=True)
    before = c.flag("do_layer_norm_before", default=True)
    weighted = c.flag("layer_norm_elementwise_affine", default=True)
    rank = c.size("word_embed_proj_dim", default=raw["d_model"], null=raw["d_model"])
    final = before and not c.flag("_remove_final_layer_norm", default=False)
    rows = c.size("max_position_embeddings", default=2048) + 2
    c.ignore("activation_dropout")
    head = c.lm_head(tied=True)
    narrow = {} if rank == raw["d_model"] else {"embedding": {"rank": rank, "early": True}}
    if narrow and "form" in head:
        c.fault(
            "word_embed_proj_dim", rank, f"hidden_size = {raw['d_model']:,}", "only logits are read of narrow tables"
        )
        narrow = {}
    norm = c.layer_norm(place="pre" if before else "post", final=final)
    return raw | {
        "attention": c.heads(raw, kv_names=(), width_names=()) | {"bias": bias},
        "feed_forward": c.plain("ffn_dim", act="relu", act_names=GPT_ACT, bias=bias),
        "norm": norm | ({} if weighted else {"weighted": False, "bias": False}),
        "positions": {"form": "learned", "rows": rows},
        "head": head,
        **narrow,
    }


def biogpt(c: Config) -> Raw:
    raw = c.stack()
    c.ignore("activation_dropout", "scale_embedding")
    return raw | {
        "attention": c.heads(raw, kv_names=(), width_names=()) | {"bias": True},
        "feed_forward": c.plain(),
        "norm": c.layer_norm(eps=1e-12),
        "positions": {"form": "learned", "rows": c.size("max_position_embeddings", default=1024) + 2},
        "head": c.lm_head(tied=True),
    }


def xglm(c: Config) -> Raw:
    raw = c.stack(("d_model", "hidden_size"), ("num_layers", "num_hidden_layers"))
    c.ignore("activation_dropout", "scale_embedding")
    names = ("attention_heads", "num_attention_heads")
    return raw | {
        "attention": c.heads(raw, names=names, kv_names=(), width_names=()) | {"bias": True},
        "feed_forward": c.plain("ffn_dim", act_names=GPT_ACT),
        "norm": c.layer_norm(),
        "positions": {"form": "sinusoidal"},
        "head": c.lm_head(tied=True),
    }
