"""Dense decoders, descendants of Llama, whose code is published with the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import Config, Raw, with_kinds
from txcalc.sources.huggingface.decoders import decoder as decoder
from txcalc.sources.huggingface.leaf_list import leaf, matrix, norm_leaf, of_kind
from txcalc.sources.spec import Wrong, size


def _decoder(c: Config, raw: Raw, attention: Raw, *, tied: bool, mlp: Raw | None = None) -> Raw:
    c.require_published_class()
    return c.decoder(raw, attention, mlp=mlp or c.gated_mlp(), tied=tied)


def qwen(c: Config) -> Raw:
    """Q, K and V have biases even with `no_bias`; `intermediate_size` is the width of gate and up together. Its first
    configs use GPT-2's key names."""
    raw = c.stack(("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"))
    c.require_value(raw["vocab_size"], "padded_vocab_size", why="the embedding has vocab_size rows")
    c.require_value("swiglu", "activation", why="its code has no other")
    attention = c.mha(raw, names=("num_attention_heads", "n_head"))
    n_heads, width = attention["n_heads"], c.size("kv_channels", default=128)
    if n_heads * width != raw["d_model"]:
        c.fault("kv_channels", width, "hidden_size / num_attention_heads", "Q, K and V are split at hidden_size")
    bias = not c.flag("no_bias", default=True)
    gate_up = c.size("intermediate_size", "ffn_hidden_size")
    if gate_up % 2:
        c.fault(
            c.spelling("intermediate_size", "ffn_hidden_size"), gate_up, "an even number: gate and up have half each"
        )
    raw = _decoder(
        c,
        raw,
        attention | {"bias": ["q", "k", "v", "o"] if bias else ["q", "k", "v"]},
        tied=False,
        mlp={"d_ff": max(1, gate_up // 2), "gated": True, "activation": "silu", "bias": bias},
    )
    raw |= {"norm": c.rms("layer_norm_epsilon"), "positions": c.rotary(width, names=("rotary_emb_base",))}
    return _language_only(c, raw, "visual", "audio")


def _language_only(c: Config, raw: Raw, *towers: str) -> Raw:
    """Add the note of `language_only` if the config has one of these towers."""
    from txcalc.sources.huggingface.remote_multimodal import language_only

    c.ignore(*towers)
    return language_only(c, raw) if any(isinstance(c.data.get(tower), Mapping) for tower in towers) else raw


def baichuan(c: Config) -> Raw:
    """The 7B has rotary positions and `max_position_embeddings`, the 13B has ALiBi and `model_max_length`."""
    raw = c.stack()
    raw = _decoder(c, raw, c.mha(raw), tied=False)
    if "max_position_embeddings" in c:
        return raw
    c.note("no max_position_embeddings: read as Baichuan-13B, which has ALiBi")
    context = c.size("model_max_length", default=4096)
    return raw | {"context": context, "positions": {"form": "alibi"}}


def chatglm(c: Config) -> Raw:
    """ChatGLM-2, -3 and GLM-4: adjacent pairs in half of each head are rotated, and every class has the head. The
    first ChatGLM has other keys."""
    c.require_published_class(writes=True)
    if bits := c.count("quantization_bit", default=None, null=0):
        c.require_value(None, "quantization_config", why="quantization_bit gives the format")
        c.override(quantization_config={"quant_method": "chatglm", "bits": bits})
    if "inner_hidden_size" in c:
        raw = _chatglm_1(c)
        return _with_prefix(c, raw, raw["d_model"], mlp_input=raw["d_model"])
    c.require_single_stack()
    raw = c.widths("decoder", n_layers=("num_layers", "num_hidden_layers"), vocab=("padded_vocab_size",)) | {
        "context": c.size("seq_length", default=2048)
    }
    attention = c.heads(raw, kv_names=(), width_names=("kv_channels",))
    if c.flag("multi_query_attention", default=False):
        groups = c.size("multi_query_group_num", default=1)
        c.divides(groups, attention["n_heads"], "multi_query_group_num", "num_attention_heads")
        attention["n_kv_heads"] = groups
    elif c.data.get("pre_seq_len"):
        c.fault("multi_query_attention", False, "true", "its code sizes the prefix for multi_query_group_num heads")
    bias = c.flag("add_bias_linear", default=False)
    qkv = c.flag("add_qkv_bias", default=False) or bias
    c.require_value(True, "post_layer_norm", why="only stacks with a final norm are supported")
    c.require_value(False, "apply_residual_connection_post_layernorm", why="the residual is the norm's input")
    c.require_value(False, "tie_word_embeddings", why="its head is untied")
    c.ignore("apply_query_key_layer_scaling", "bias_dropout_fusion", "fp32_residual_connection", "original_rope")
    c.ignore("multi_query_group_num", "vocab_size")
    norm = c.rms if c.flag("rmsnorm", default=True) else c.layer_norm
    positions = c.rotary(attention["d_head"], partial=0.5)
    c.ignore("boi_token_id", "eoi_token_id")
    kv = attention["n_kv_heads"] * attention["d_head"]
    raw = _with_prefix(c, raw, kv, mlp_input=2 * raw["n_layers"] * kv)
    raw = _language_only(c, raw, "vision_config")
    return raw | {
        "attention": attention | {"bias": ["q", "k", "v"] * qkv + ["o"] * bias},
        "feed_forward": {"d_ff": c.size("ffn_hidden_size"), "gated": True, "activation": "silu", "bias": bias},
        "norm": norm("layernorm_epsilon", eps=1e-5),
        "positions": positions | {"interleaved": True},
        "head": {"tied": False},
    }


def _with_prefix(c: Config, raw: Raw, kv: int, mlp_input: int) -> Raw:
    """Add P-Tuning's prefix: `pre_seq_len` keys and values of width `kv` for every layer. They are stored directly, or
    (`prefix_projection`) computed by a two-layer MLP from stored vectors of width `mlp_input`."""
    rows, d = c.count("pre_seq_len", default=None, null=0) or 0, raw["d_model"]
    projected = c.flag("prefix_projection", default=False)
    if not rows:
        return raw
    prefix = 2 * raw["n_layers"] * kv
    stored = mlp_input if projected else prefix
    idle = rows * stored + projected * ((stored + 1) * d + (d + 1) * prefix)
    status = "is counted in the parameters; attention to it and its cache entries are not counted"
    return c.with_idle(raw, idle, f"its prefix of {rows:,} keys and values a layer", status)


def _chatglm_1(c: Config) -> Raw:
    """The first ChatGLM: LayerNorms, biases except in the tied head; the scaled output of a norm is the residual."""
    raw = c.stack(n_layers=("num_layers",))
    c.require_value(True, "position_encoding_2d", "tie_word_embeddings", why="the published model has this value")
    attention = c.mha(raw)
    return raw | {
        "context": c.size("max_sequence_length", default=2048),
        "attention": attention | {"bias": True},
        "feed_forward": {"d_ff": c.size("inner_hidden_size"), "activation": "gelu_tanh", "bias": True},
        "norm": c.layer_norm("layernorm_epsilon"),
        "positions": {"form": "rotary"},
        "head": {"tied": True},
    }


def minicpm(c: Config) -> Raw:
    """Llama with scaled embedding, residuals and logits; MiniCPM-MoE has experts in every layer."""
    raw = c.stack()
    c.ignore("dim_model_base", "mup_denominator", "sparse_config", "num_experts_per_tok")
    if c.data.get("sparse_config") is not None:
        c.note("sparse_config: block selection beyond dense_len is not supported; FLOPs count all keys")
    attention = c.heads(raw, width_names=(), attention_bias=False)
    raw = _decoder(c, raw, attention, tied=True)
    if c.count("num_experts", default=None, null=0):
        raw["experts"] = c.experts(("num_experts",), ("num_experts_per_tok",), ("intermediate_size",))
        del raw["feed_forward"]
    return raw


def internlm2(c: Config) -> Raw:
    raw = c.stack()
    rewards = c.class_ends("InternLM2ForRewardModel")
    if rewards:
        c.drop("architectures", "tie_word_embeddings")
        c.ignore("reward_token_id")
    attention = c.heads(raw, width_names=()) | {"bias": c.flag("bias", default=True)}
    raw = _decoder(c, raw, attention, tied=False)
    return raw | {"head": {"form": "classifier", "classes": 1, "every": True, "bias": False}} if rewards else raw


def deci(c: Config) -> Raw:
    """DeciLM: Llama with a different number of key/value heads in each layer."""
    raw = c.stack()
    c.require_published_class("decilm", writes=True)
    attention = c.mha(raw)
    groups = c.items("num_key_value_heads_per_layer", of=size, length=raw["n_layers"], default=None)
    if groups is None:
        c.fault("num_key_value_heads_per_layer", c.data.get("num_key_value_heads_per_layer", ABSENT), "a list")
        return raw
    for number in set(groups):
        c.divides(number, attention["n_heads"], "num_key_value_heads_per_layer", "num_attention_heads")
    raw = c.decoder(raw, attention, head={"tied": c.flag("tie_word_embeddings", default=False)})
    kinds = {f"groups{number}": {"attention": {"n_kv_heads": number}} for number in groups}
    return with_kinds(raw, ([f"groups{number}" for number in groups], kinds))


def mimo(c: Config) -> Raw:
    """Qwen2 with multi-token-prediction layers, which the published class does not run."""
    raw = c.stack()
    d = raw["d_model"]
    attention = c.heads(raw, kv=32, width_names=())
    width, groups = attention["d_head"], attention["n_kv_heads"]
    c.require_value(width, "head_dim", why="only hidden_size / num_attention_heads is supported")
    raw = _decoder(c, raw, attention | {"bias": ["q", "k", "v"]}, tied=False)
    n_mtp = c.count("num_nextn_predict_layers", default=0)
    q, kv = attention["n_heads"] * width, groups * width
    layer = 2 * d * q + 2 * d * kv + q + 2 * kv + 3 * d * raw["feed_forward"]["d_ff"] + 2 * d * d + 5 * d
    what = f"{n_mtp:,} multi-token-prediction layer{'s' * (n_mtp > 1)}"
    return c.with_idle(raw, n_mtp * layer, what, "counted but not run in a forward pass")


def nemotron_nas(c: Config) -> Raw:
    """Llama with its own number of key/value heads and feed-forward width in each layer, or without such a branch."""
    raw = c.stack()
    c.require_published_class("decilm")
    n_heads, d, n = c.size("num_attention_heads"), raw["d_model"], raw["n_layers"]
    c.divides(n_heads, d, "num_attention_heads", "hidden_size")
    width = max(1, d // n_heads)
    c.require_value(width, "head_dim", why="the published code computes hidden_size / num_attention_heads")
    bias = c.flag("attention_bias", default=False)
    blocks = c.items("block_configs", of=_block, length=n, default=None)
    if blocks is None:
        c.fault("block_configs", c.data.get("block_configs", ABSENT), "a list with an object for each layer")
        return raw
    common = {"gated": True, "activation": c.activation("hidden_act", default="silu"),
              "bias": c.flag("mlp_bias", default=False)}  # fmt: skip
    kinds, tables = [], dict[str, Raw]()
    for index, block in enumerate(blocks):
        table: Raw = {"parts": []}
        at = Config(block["attention"], c.model_type, f"block_configs[{index}].attention.", c)
        group = _heads_per_group(at)
        if group:
            at.divides(group, n_heads, "n_heads_in_group", "num_attention_heads")
            table["parts"].append("attention")
            table["attention"] = {"n_kv_heads": max(1, n_heads // group)}
        ffn = Config(block["ffn"], c.model_type, f"block_configs[{index}].ffn.", c)
        factor = _ffn_mult(ffn)
        if factor:
            table["parts"].append("feed_forward")
            table["feed_forward"] = {"d_ff": max(256, -(-int(2 * factor * d / 3) // 256) * 256)}
        if not table["parts"]:
            continue  # an identity layer
        kind = f"heads{group}" * bool(group) + f"wide{table.get('feed_forward', {}).get('d_ff')}" * bool(factor)
        kinds.append(kind)
        tables[kind] = table
    if not kinds:
        c.fault("block_configs", blocks, "a layer with a branch")
    elif n > len(kinds):
        c.note(f"{n - len(kinds):,} of {n:,} layers have no branches and are left out")
        raw["n_layers"] = len(kinds)
    raw |= {
        "attention": {"n_heads": n_heads, "n_kv_heads": n_heads, "d_head": width, "bias": bias},
        "feed_forward": {"d_ff": d, **common},
        "norm": c.rms(),
        "positions": c.rotary(width),
        "head": c.lm_head(tied=False),
    }
    return raw if c.faults else with_kinds(raw, (kinds, tables))


def _block(value: object) -> Any:
    """Check that the config of a layer has both tables."""
    if not isinstance(value, Mapping) or not all(isinstance(value.get(part), Mapping) for part in ("attention", "ffn")):
        raise Wrong("a list of objects, each with the tables attention and ffn")
    return value


def _has_branch(block: Config) -> bool:
    block.require_value(False, "replace_with_linear", why="a matrix in place of a branch is not supported")
    block.require_value(None, "sparsify", why="sparse weights are not supported")
    return not block.flag("no_op", default=False)


def _heads_per_group(attention: Config) -> int:
    """The number of query heads per key/value head; 0 without attention."""
    attention.ignore("unshifted_sink", "use_prefill_window_in_sink_attention", "n_heads_in_group")
    attention.require_value(None, "window_length", "num_sink_tokens", why="windows with sinks are not supported")
    return int(attention.size("n_heads_in_group")) if _has_branch(attention) else 0


def _ffn_mult(ffn: Config) -> float:
    """3/2 of the feed-forward's width, as a multiple of the model's; 0 without a feed-forward."""
    ffn.ignore("ffn_mult")
    if not _has_branch(ffn):
        return 0.0
    factor = float(ffn.real("ffn_mult", default=0.0))
    if not 0 < factor < 1e6:
        ffn.fault("ffn_mult", ffn.data.get("ffn_mult", ABSENT), "a number above 0")
        return 1.0
    return factor


def yuan(c: Config) -> Raw:
    """Yuan 2.0: two convolutions over the last two positions before queries and keys, but not before values."""
    c.require_published_class()
    raw = c.stack()
    d, h = raw["d_model"], c.size("num_attention_heads")
    inner = c.size("attention_projection_size", default=d, null=d)
    c.divides(h, inner, "num_attention_heads", "the width")
    c.divides(2, d, "2", "the width")
    w = max(1, inner // h)
    filters = [leaf("near", "convolution", d, d // 2 or 1, 2, 1), leaf("nearer", "convolution", d // 2 or 1, d, 2, 1)]
    leaves = [
        matrix("v", d, inner), *filters, leaf("filter_sum", "sum", d),
        norm_leaf("filter", d, "rms_norm"), matrix("q", d, inner),
        matrix("k", d, inner), leaf("rotary", "rotary", 2 * h, w),
        leaf("core", "causal", h, w, w, bias=False), matrix("o", inner, d),
        leaf("attention_sum", "sum", d), leaf("last_two", "state", 2 * d),
    ]  # fmt: skip
    raw |= {"pieces": {"leaves": of_kind("attention", leaves)}, "feed_forward": c.gated_mlp()}
    raw |= {"norm": c.rms(), "positions": {"form": "none"}, "head": c.lm_head(tied=False)}
    return with_kinds(raw, (["layer"] * raw["n_layers"], {"layer": {"parts": ["pieces", "feed_forward"]}}))
