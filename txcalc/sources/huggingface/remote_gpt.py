"""Dense decoders, descendants of GPT, Falcon and Phi, whose code is published with the weights."""

from __future__ import annotations

from collections.abc import Mapping

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import Config, Raw, with_kinds
from txcalc.sources.huggingface.decoders import decoder
from txcalc.sources.huggingface.dense import falcon
from txcalc.sources.huggingface.keys import without
from txcalc.sources.huggingface.tower_registry import describe_towers
from txcalc.sources.spec import real, size


def phi3small(c: Config) -> Raw:
    """LayerNorms and biases; all but every n-th layer have block-sparse attention, local and strided."""
    c.require_published_class()
    raw = c.stack()
    attention = c.heads(raw, width_names=(), bias=True)
    blocks = [key for key in c.data if key.startswith("blocksparse_")]
    c.ignore(*blocks)
    period = c.count("dense_attention_every_n_layers", default=0, null=0)
    if period != 1:
        c.note("its block-sparse mask is not supported: masked FLOPs count all keys before a query")
    mlp = {"d_ff": c.size("ff_intermediate_size"), "gated": True, "activation": "quick_gelu", "bias": True}
    return c.decoder(raw, attention, mlp=mlp, norm=c.layer_norm(), positions={"form": "rotary"}, tied=True)


def openelm(c: Config) -> Raw:
    """Its own numbers of heads and feed-forward width in each layer."""
    c.require_published_class(writes=True)
    raw = c.stack(("model_dim",), ("num_transformer_layers",))
    n, width = raw["n_layers"], c.size("head_dim", default=128)
    queries = c.items("num_query_heads", of=size, length=n, default=None)
    groups = c.items("num_kv_heads", of=size, length=n, default=None)
    factors = c.items("ffn_multipliers", of=real, length=n, default=None)
    for name, values in (("num_query_heads", queries), ("num_kv_heads", groups), ("ffn_multipliers", factors)):
        if values is None:
            c.fault(name, c.data.get(name, ABSENT), "a list, one per layer")
    divisor = c.size("ffn_dim_divisor", default=256)
    qk_norm = "head" if c.flag("normalize_qk_projections", default=False) else "none"
    tied = c.flag("share_input_output_layers", default=False)
    c.require_value(tied, "tie_word_embeddings", why="it repeats share_input_output_layers")
    attention = {"n_heads": 1, "d_head": width, "qk_norm": qk_norm}
    mlp = {"d_ff": 1, "gated": True, "activation": c.activation("activation_fn_name", default="silu")}
    raw["context"] = c.size("max_context_length", default=2048)
    raw = c.decoder(raw, attention, mlp=mlp, positions={"form": "rotary"}, head={"tied": tied})
    if c.faults:
        return raw
    kinds, tables = [], dict[str, Raw]()
    for n_heads, n_kv_heads, factor in zip(queries, groups, factors, strict=True):
        c.divides(n_kv_heads, n_heads, "num_kv_heads", "num_query_heads")
        d_ff = divisible(factor * raw["d_model"], divisor)
        kinds.append(f"heads{n_heads}over{n_kv_heads}wide{d_ff}")
        heads = {"n_heads": n_heads, "n_kv_heads": n_kv_heads}
        tables[kinds[-1]] = {"attention": heads, "feed_forward": {"d_ff": d_ff}}
    return raw if c.faults else with_kinds(raw, (kinds, tables))


def divisible(width: float, by: int) -> int:
    """A width rounded to a multiple of `by`, but up if it would lose more than a tenth (MobileNet's rule)."""
    rounded = max(by, int(width + by / 2) // by * by)
    return rounded + by * (10 * rounded < 9 * width)


def jais(c: Config) -> Raw:
    """GPT-2 with ALiBi or learned positions, and with SwiGLU or an ungated feed-forward."""
    c.require_published_class()
    raw = c.stack(("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"))
    form = c.text("activation_function", default="gelu")
    inner = c.size("n_inner", default=4 * raw["d_model"], null=4 * raw["d_model"])
    mlp: Raw = {"d_ff": inner, "bias": True, "gated": form == "swiglu", "activation": "silu"}
    if form != "swiglu":
        mlp["activation"] = c.activation("activation_function", default="gelu")
    position_type = c.text("position_embedding_type", default="learned")
    if position_type not in ("alibi", "learned"):
        c.fault("position_embedding_type", position_type, "'alibi' or 'learned'")
    rows = c.size("n_positions", "max_position_embeddings", default=1024)
    attention = c.mha(raw, names=("n_head", "num_attention_heads"), bias=True)
    positions = {"form": "alibi"} if position_type == "alibi" else {"form": "learned", "rows": rows}
    return c.decoder(raw, attention, mlp=mlp, norm=c.layer_norm(), positions=positions, tied=True)


def plamo(c: Config) -> Raw:
    """Llama with parallel branches after one norm; `n_shared_head` query heads share a key/value head."""
    c.require_published_class()
    raw = c.stack()
    shared = c.size("n_shared_head", default=8)
    attention = c.mha(raw)
    c.require_value(attention["n_heads"], "num_key_value_heads", why="the published code reads n_shared_head")
    c.divides(shared, attention["n_heads"], "n_shared_head", "num_attention_heads")
    attention["n_kv_heads"] = max(1, attention["n_heads"] // shared)
    return c.decoder(raw, attention, norm=c.rms(parallel="shared"))


def qwen2_reward(c: Config) -> Raw:
    """Qwen2.5-Math-RM and -PRM: Qwen2, a layer with a ReLU, and one score (RM) or one per label (PRM) at every
    position."""
    process = c.class_ends("ProcessRewardModel")
    c.drop("architectures", "tie_word_embeddings")
    c.model_type = "qwen2"
    raw = decoder(c, "qwen2")
    c.ignore("alpha", "id2label", "label2id", "num_labels")
    return raw | {
        "head": {"form": "classifier", "classes": c.labels() if process else 1, "every": True, "transform": "relu"}
    }


def refinedwebmodel(c: Config) -> Raw:
    """Falcon-7B before transformers had it."""
    c.require_published_class("rw", "falcon")
    return falcon(c)


def refinedweb(c: Config) -> Raw:
    """Falcon-40B before transformers had it: two norms, and grouped-query attention."""
    c.require_published_class("rw", "falcon")
    c.override(new_decoder_architecture=True)
    return falcon(c)


def mpt_grouped(c: Config) -> Raw:
    """llm-foundry's MPT with grouped-query or multi-query attention. By default its class has biases and learned
    positions, which are not supported."""
    c.require_published_class("mpt")
    table = c.data.get("attn_config")
    table = table if isinstance(table, Mapping) else {}
    n_kv_heads = 1 if table.get("attn_type") == "multiquery_attention" else table.get("kv_n_heads")
    if type(n_kv_heads) is not int or n_kv_heads < 1:
        c.fault("attn_config.kv_n_heads", ABSENT if n_kv_heads is None else n_kv_heads, "a whole number above 0")
        n_kv_heads = 1
    for name, keys in (("no_bias", c.data), ("attn_config.alibi", table)):
        if keys.get(name.rpartition(".")[2]) is None:
            c.fault(name, ABSENT, "true", "the default of its class, false, is not supported")
    fields = without(table, "attn_type", "kv_n_heads")
    c.require_value({"ffn_type": "mptmlp", "fc_type": "torch"}, "ffn_config", why="only two matrices are supported")
    c.require_value("torch", "fc_type", why="only plain matrices are supported")
    c.ignore("use_pad_tok_in_ffn")
    c.drop("architectures")
    c.override(attn_config=fields)
    declared_type, c.model_type = c.model_type, "mpt"
    raw = decoder(c, "mpt")
    for config in (c, *c.inner):  # unread keys are checked for llm-foundry's code, not for transformers' class
        config.model_type = declared_type
    c.divides(n_kv_heads, raw["attention"]["n_heads"], "attn_config.kv_n_heads", "n_heads")
    return raw | {"attention": raw["attention"] | {"n_kv_heads": n_kv_heads}}


def phi_msft(c: Config) -> Raw:
    """Phi-1, 1.5 and 2 before transformers had them: GPT-J's layers with GPT-2's key names."""
    c.require_published_class("phi", "mixformersequential")
    raw = c.stack(("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"))
    attention = c.heads(raw, names=("n_head", "num_attention_heads"), kv_names=("n_head_kv",), width_names=())
    blocks = c.table("architecture") or Config({}, c.model_type, parent=c)
    blocks.require_value("parallel", "block_cls", why="only parallel branches are supported")
    blocks.require_value({}, "mixer", why="only attention is supported")
    if (mlp_config := blocks.data.get("mlp", {"mlp_cls": "mlp"})) not in ({"mlp_cls": "mlp"}, {"mlp_cls": "fused_mlp"}):
        blocks.fault("mlp", mlp_config, "mlp_cls = 'mlp' or 'fused_mlp' (the same in one kernel)")
    blocks.ignore("mlp")
    dims = c.size("rotary_dim", default=32)
    positions: Raw = {"form": "rotary"} | ({"rotary_dims": dims} if dims < attention["d_head"] else {})
    mlp = c.mlp("n_inner", act="gelu_new", act_names=("activation_function",), default=4 * raw["d_model"])
    norm, head = c.layer_norm(parallel="shared"), c.lm_head(tied=False, bias=True)
    return c.decoder(raw, attention | {"bias": True}, mlp=mlp, norm=norm, positions=positions, head=head)


def hf_olmo(c: Config) -> Raw:
    """OLMo and OLMo 1.7 before transformers had them: every option of the trainer is a key."""
    c.require_published_class("olmo")
    raw = c.stack(("d_model",), ("n_layers",))
    d = raw["d_model"]
    context = c.size("max_sequence_length", default=1024)
    mqa = c.flag("multi_query_attention", default=None, null=None)
    attention = c.heads(raw, kv=1 if mqa else None, names=("n_heads",), kv_names=("n_kv_heads",), width_names=())
    bias = c.flag("include_bias", default=True)
    attention |= {"bias": bias, "qk_norm": "width" if c.flag("attention_layer_norm", default=False) else "none"}
    if attention["qk_norm"] == "width":
        c.require_value(True, "attention_layer_norm_with_affine", why="norms of Q and K must have weights")
    inner = c.size("mlp_ratio", default=4) * d
    inner = c.size("mlp_hidden_size", default=inner, null=inner)
    form = c.text("activation_type", default="swiglu")
    if form not in ("swiglu", "gelu", "relu"):
        c.fault("activation_type", form, "'swiglu', 'gelu' or 'relu'")
    rope, alibi = c.flag("rope", default=False), c.flag("alibi", default=False)
    positions = c.rotary(attention["d_head"]) if rope else {"form": "learned", "rows": context}
    raw |= {"context": context, "vocab_size": c.size("embedding_size", default=50304, null=raw["vocab_size"])}
    mlp = _fused_swiglu(c, inner, bias) if form == "swiglu" else {"d_ff": inner, "activation": form, "bias": bias}
    head = c.lm_head(tied=True) | {"tied": c.flag("weight_tying", default=True)}
    positions = {"form": "alibi"} if alibi else positions
    return c.decoder(raw, attention, mlp=mlp, norm=_norm_of_olmo(c, bias), positions=positions, head=head)


def llada(c: Config) -> Raw:
    """OLMo's code with Llama's layers and bidirectional attention: a masked diffusion model."""
    if not c.class_ends("LLaDAModelLM"):
        c.require_published_class(writes=True)
    raw = c.stack(("d_model",), ("n_layers",))
    off = "alibi", "attention_layer_norm", "bias_for_layer_norm", "include_bias", "input_emb_norm", "scale_logits"
    c.require_value(False, *off, why="it is not supported")
    attention = c.heads(raw, names=("n_heads",), kv_names=("n_kv_heads",), width_names=())
    attention["bias"] = ["q", "k", "v"] if c.flag("include_qkv_bias", default=False) else []
    return raw | {
        "kind": "encoder",
        "context": c.size("max_sequence_length", default=1024),
        "vocab_size": c.size("embedding_size", default=raw["vocab_size"], null=raw["vocab_size"]),
        "attention": attention,
        "feed_forward": {"d_ff": c.size("mlp_hidden_size"), "gated": True,
                         "activation": c.activation("activation_type", default="silu")},
        "norm": c.rms(eps=1e-5),
        "positions": c.rotary(attention["d_head"]),
        "head": {"form": "masked-lm", "plain": True, "tied": c.flag("weight_tying", default=False), "bias": False},
    }  # fmt: skip


def _norm_of_olmo(c: Config, bias: bool) -> Raw:
    form = c.text("layer_norm_type", default="default")
    if form not in ("default", "low_precision", "rms"):
        c.fault("layer_norm_type", form, "'default', 'low_precision' or 'rms'")
    place = "after" if c.flag("norm_after", default=False) else "pre"
    weighted = c.flag("layer_norm_with_affine", default=True)
    biased = c.flag("bias_for_layer_norm", default=bias, null=bias)
    if form == "rms" and biased:
        c.fault("bias_for_layer_norm", biased, "false", "an RMSNorm with a bias is not supported")
    kind = {"form": "rms"} if form == "rms" else {"form": "layer", "bias": biased and weighted}
    return kind | {"eps": c.real("layer_norm_eps", default=1e-5), "place": place, "weighted": weighted}


def _fused_swiglu(c: Config, gate_up: int, bias: bool) -> Raw:
    """SwiGLU with the width of gate and up together."""
    if gate_up % 2:
        c.fault("mlp_hidden_size", gate_up, "an even number: gate and up have half each")
    return {"d_ff": max(1, gate_up // 2), "gated": True, "activation": "silu", "bias": bias}


def molmo(c: Config) -> Raw:
    """OLMo's code with Llama's key names, and 128 further rows of the embedding."""
    c.require_published_class(writes=True)
    raw = c.stack()
    attention = c.heads(raw, width_names=())
    attention["bias"] = ["q", "k", "v"] if c.flag("qkv_bias", default=False) else []
    attention["qk_norm"] = "width" if c.flag("attention_layer_norm", default=False) else "none"
    raw |= {
        "vocab_size": c.size("embedding_size", default=raw["vocab_size"], null=raw["vocab_size"]),
        "embedding": {"extra": 128},
        "attention": attention,
        "feed_forward": _fused_swiglu(c, c.size("intermediate_size"), bias=False),
        "norm": _norm_of_olmo(c, bias=False),
        "positions": c.rotary(attention["d_head"]),
        "head": {"tied": False},
    }
    return raw | describe_towers(c, c, raw)


def codeshell(c: Config) -> Raw:
    """GPT-2 with grouped-query attention, and rotary or learned positions."""
    c.require_published_class()
    raw = c.stack(("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"))
    attention = c.mha(raw, names=("n_head", "num_attention_heads"), bias=True)
    if c.flag("group_query_attention", default=True):
        groups = c.size("num_query_groups", default=1)
        c.divides(groups, attention["n_heads"], "num_query_groups", "n_head")
        attention["n_kv_heads"] = groups
    form = c.text("position_embedding_type", default="learned_absolute")
    if form not in ("learned_absolute", "rope"):
        c.fault("position_embedding_type", form, "'learned_absolute' or 'rope'")
    learned = {"form": "learned", "rows": c.size("n_positions", "max_position_embeddings", default=8192)}
    mlp = c.mlp("n_inner", act="gelu_pytorch_tanh", act_names=("activation_function",), default=4 * raw["d_model"])
    positions = None if form == "rope" else learned
    return c.decoder(raw, attention, mlp=mlp, norm=c.layer_norm(), positions=positions, tied=True)
