"""Dense decoders in the lines of GPT, Falcon and Phi whose code is published beside weights."""

from __future__ import annotations

from collections.abc import Mapping

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import Config, Raw, layered
from txcalc.sources.huggingface.decoders import decoder
from txcalc.sources.huggingface.dense import falcon
from txcalc.sources.huggingface.keys import without
from txcalc.sources.huggingface.tower_registry import describe_towers
from txcalc.sources.spec import real, size


def phi3small(c: Config) -> Raw:
    """LayerNorms and biases; all but every n-th layer attend in blocks, to near ones and to every n-th of all."""
    c.require_published_class()
    raw = c.stack()
    attention = c.heads(raw, width_names=(), bias=True)
    blocks = [key for key in c.data if key.startswith("blocksparse_")]
    c.ignore(*blocks)
    period = c.count("dense_attention_every_n_layers", default=0, null=0)
    if period != 1:
        c.note("its blocks of keys are a mask that is not read: masked FLOPs are those of all keys before a query")
    width = {"d_ff": c.size("ff_intermediate_size"), "gated": True, "activation": "quick_gelu", "bias": True}
    return c.decoder(raw, attention, mlp=width, norm=c.layer_norm(), positions={"form": "rotary"}, tied=True)


def openelm(c: Config) -> Raw:
    """Heads and widths of each layer's own."""
    c.require_published_class(writes=True)
    raw = c.stack(("model_dim",), ("num_transformer_layers",))
    n, width = raw["n_layers"], c.size("head_dim", default=128)
    queries = c.items("num_query_heads", of=size, length=n, default=None)
    groups = c.items("num_kv_heads", of=size, length=n, default=None)
    shares = c.items("ffn_multipliers", of=real, length=n, default=None)
    for name, given in (("num_query_heads", queries), ("num_kv_heads", groups), ("ffn_multipliers", shares)):
        if given is None:
            c.fault(name, c.data.get(name, ABSENT), "a list, one per layer")
    divisor = c.size("ffn_dim_divisor", default=256)
    normed = c.flag("normalize_qk_projections", default=False)
    tied = c.flag("share_input_output_layers", default=False)
    c.require_value(tied, "tie_word_embeddings", why="share_input_output_layers says so")
    attention = {"d_head": width, "qk_norm": "head" if normed else "none"}
    activation = c.activation("activation_fn_name", default="silu")
    raw["context"] = c.size("max_context_length", default=2048)
    attention["n_heads"], mlp = 1, {"d_ff": 1, "gated": True, "activation": activation}
    raw = c.decoder(raw, attention, mlp=mlp, positions={"form": "rotary"}, head={"tied": tied})
    if c.faults:
        return raw
    kinds, tables = [], dict[str, Raw]()
    for heads_, shared, share in zip(queries, groups, shares, strict=True):
        c.divides(shared, heads_, "num_kv_heads", "num_query_heads")
        d_ff = divisible(share * raw["d_model"], divisor)
        kinds.append(f"heads{heads_}over{shared}wide{d_ff}")
        tables[kinds[-1]] = {"attention": {"n_heads": heads_, "n_kv_heads": shared}, "feed_forward": {"d_ff": d_ff}}
    return raw if c.faults else layered(raw, (kinds, tables))


def divisible(width: float, by: int) -> int:
    """A width rounded to a multiple, up where rounding takes more than a tenth (MobileNet's rule)."""
    near = max(by, int(width + by / 2) // by * by)
    return near + by * (10 * near < 9 * width)


def jais(c: Config) -> Raw:
    """GPT-2 with ALiBi or learned positions, and SwiGLU beside the plain feed-forwards."""
    c.require_published_class()
    raw = c.stack(("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"))
    form = c.text("activation_function", default="gelu")
    inner = c.size("n_inner", default=4 * raw["d_model"], null=4 * raw["d_model"])
    wide: Raw = {"d_ff": inner, "bias": True, "gated": form == "swiglu", "activation": "silu"}
    if form != "swiglu":
        wide["activation"] = c.activation("activation_function", default="gelu")
    places = c.text("position_embedding_type", default="learned")
    if places not in ("alibi", "learned"):
        c.fault("position_embedding_type", places, "'alibi' or 'learned'")
    rows = c.size("n_positions", "max_position_embeddings", default=1024)
    attention = c.mha(raw, names=("n_head", "num_attention_heads"), bias=True)
    positions = {"form": "alibi"} if places == "alibi" else {"form": "learned", "rows": rows}
    return c.decoder(raw, attention, mlp=wide, norm=c.layer_norm(), positions=positions, tied=True)


def plamo(c: Config) -> Raw:
    """Llama with attention and feed-forward side by side after one norm; `n_shared_head` query heads share a key."""
    c.require_published_class()
    raw = c.stack()
    shared = c.size("n_shared_head", default=8)
    attention = c.mha(raw)
    c.require_value(attention["n_heads"], "num_key_value_heads", why="n_shared_head is what the published code reads")
    c.divides(shared, attention["n_heads"], "n_shared_head", "num_attention_heads")
    attention["n_kv_heads"] = max(1, attention["n_heads"] // shared)
    return c.decoder(raw, attention, norm=c.rms(parallel="shared"))


def qwen2_reward(c: Config) -> Raw:
    """Qwen2.5-Math-RM and -PRM: Qwen2, a layer with a ReLU, and a score, or one for each label, at every position."""
    process = c.class_ends("ProcessRewardModel")
    c.drop("architectures", "tie_word_embeddings")
    c.model_type = "qwen2"
    raw = decoder(c, "qwen2")
    c.ignore("alpha", "id2label", "label2id", "num_labels")
    return raw | {
        "head": {"form": "classifier", "classes": c.labels() if process else 1, "every": True, "transform": "relu"}
    }


def refinedwebmodel(c: Config) -> Raw:
    """Falcon-7B before it was transformers'."""
    c.require_published_class("rw", "falcon")
    return falcon(c)


def refinedweb(c: Config) -> Raw:
    """Falcon-40B before it was transformers': two norms, and keys that groups of queries share."""
    c.require_published_class("rw", "falcon")
    c.override(new_decoder_architecture=True)
    return falcon(c)


def mpt_grouped(c: Config) -> Raw:
    """MPT as llm-foundry has it, whose heads share keys and values: in groups, or all of them. Its class has biases and
    a table of positions unless a config says otherwise."""
    c.require_published_class("mpt")
    table = c.data.get("attn_config")
    table = table if isinstance(table, Mapping) else {}
    shared = 1 if table.get("attn_type") == "multiquery_attention" else table.get("kv_n_heads")
    if type(shared) is not int or shared < 1:
        c.fault("attn_config.kv_n_heads", ABSENT if shared is None else shared, "a whole number above 0")
        shared = 1
    for name, given in (("no_bias", c.data), ("attn_config.alibi", table)):
        if given.get(name.rpartition(".")[2]) is None:
            c.fault(name, ABSENT, "true", "its class has it false, which is not read")
    fields = without(table, "attn_type", "kv_n_heads")
    c.require_value({"ffn_type": "mptmlp", "fc_type": "torch"}, "ffn_config", why="two matrices are read")
    c.require_value("torch", "fc_type", why="plain matrices are read")
    c.ignore("use_pad_tok_in_ffn")
    c.drop("architectures")
    c.override(attn_config=fields)
    declared_type, c.model_type = c.model_type, "mpt"
    raw = decoder(c, "mpt")
    for config in (c, *c.inner):  # what transformers' class does not read may say more of its own
        config.model_type = declared_type
    c.divides(shared, raw["attention"]["n_heads"], "attn_config.kv_n_heads", "n_heads")
    return raw | {"attention": raw["attention"] | {"n_kv_heads": shared}}


def phi_msft(c: Config) -> Raw:
    """Phi-1, 1.5 and 2 before they were transformers': GPT-J's layers under GPT-2's names."""
    c.require_published_class("phi", "mixformersequential")
    raw = c.stack(("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"))
    attention = c.heads(raw, names=("n_head", "num_attention_heads"), kv_names=("n_head_kv",), width_names=())
    blocks = c.table("architecture") or Config({}, c.model_type, parent=c)
    blocks.require_value("parallel", "block_cls", why="attention beside the feed-forward is read")
    blocks.require_value({}, "mixer", why="attention is read")
    if (channel := blocks.data.get("mlp", {"mlp_cls": "mlp"})) not in ({"mlp_cls": "mlp"}, {"mlp_cls": "fused_mlp"}):
        blocks.fault("mlp", channel, "'mlp' or, the same in one kernel, 'fused_mlp', as mlp_cls")
    blocks.ignore("mlp")
    dims = c.size("rotary_dim", default=32)
    places: Raw = {"form": "rotary"} | ({"rotary_dims": dims} if dims < attention["d_head"] else {})
    mlp = c.mlp("n_inner", act="gelu_new", act_names=("activation_function",), default=4 * raw["d_model"])
    norm, head = c.layer_norm(parallel="shared"), c.lm_head(tied=False, bias=True)
    return c.decoder(raw, attention | {"bias": True}, mlp=mlp, norm=norm, positions=places, head=head)


def hf_olmo(c: Config) -> Raw:
    """OLMo and OLMo 1.7 before they were transformers': every choice of its trainer's is a key."""
    c.require_published_class("olmo")
    raw = c.stack(("d_model",), ("n_layers",))
    d = raw["d_model"]
    context = c.size("max_sequence_length", default=1024)
    several = c.flag("multi_query_attention", default=None, null=None)
    attention = c.heads(raw, kv=1 if several else None, names=("n_heads",), kv_names=("n_kv_heads",), width_names=())
    bias = c.flag("include_bias", default=True)
    attention |= {"bias": bias, "qk_norm": "width" if c.flag("attention_layer_norm", default=False) else "none"}
    if attention["qk_norm"] == "width":
        c.require_value(True, "attention_layer_norm_with_affine", why="norms of Q and K have weights")
    ratio = c.size("mlp_ratio", default=4)
    wide = c.size("mlp_hidden_size", default=ratio * d, null=ratio * d)
    form = c.text("activation_type", default="swiglu")
    if form not in ("swiglu", "gelu", "relu"):
        c.fault("activation_type", form, "'swiglu', 'gelu' or 'relu'")
    rope, alibi = c.flag("rope", default=False), c.flag("alibi", default=False)
    places = c.rotary(attention["d_head"]) if rope else {"form": "learned", "rows": context}
    raw |= {"context": context, "vocab_size": c.size("embedding_size", default=50304, null=raw["vocab_size"])}
    mlp = _halved(c, wide, bias) if form == "swiglu" else {"d_ff": wide, "activation": form, "bias": bias}
    head = c.lm_head(tied=True) | {"tied": c.flag("weight_tying", default=True)}
    positions = {"form": "alibi"} if alibi else places
    return c.decoder(raw, attention, mlp=mlp, norm=_norm_of_olmo(c, bias), positions=positions, head=head)


def llada(c: Config) -> Raw:
    """OLMo's code with Llama's layers, whose positions see one another: what is masked is written."""
    if not c.class_ends("LLaDAModelLM"):
        c.require_published_class(writes=True)
    raw = c.stack(("d_model",), ("n_layers",))
    off = "alibi", "attention_layer_norm", "bias_for_layer_norm", "include_bias", "input_emb_norm", "scale_logits"
    c.require_value(False, *off, why="it is not read")
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
        c.fault("bias_for_layer_norm", biased, "false", "an RMSNorm with a bias is not read")
    kind = {"form": "rms"} if form == "rms" else {"form": "layer", "bias": biased and weighted}
    return kind | {"eps": c.real("layer_norm_eps", default=1e-5), "place": place, "weighted": weighted}


def _halved(c: Config, both: int, bias: bool) -> Raw:
    """SwiGLU whose two gates are as wide together as is said."""
    if both % 2:
        c.fault("mlp_hidden_size", both, "an even number: the width of both gates")
    return {"d_ff": max(1, both // 2), "gated": True, "activation": "silu", "bias": bias}


def molmo(c: Config) -> Raw:
    """Molmo's: OLMo's code under Llama's names, with 128 further rows of the token table."""
    c.require_published_class(writes=True)
    raw = c.stack()
    attention = c.heads(raw, width_names=())
    attention["bias"] = ["q", "k", "v"] if c.flag("qkv_bias", default=False) else []
    attention["qk_norm"] = "width" if c.flag("attention_layer_norm", default=False) else "none"
    raw |= {
        "vocab_size": c.size("embedding_size", default=raw["vocab_size"], null=raw["vocab_size"]),
        "embedding": {"extra": 128},
        "attention": attention,
        "feed_forward": _halved(c, c.size("intermediate_size"), bias=False),
        "norm": _norm_of_olmo(c, bias=False),
        "positions": c.rotary(attention["d_head"]),
        "head": {"tied": False},
    }
    return raw | describe_towers(c, c, raw)


def codeshell(c: Config) -> Raw:
    """GPT-2 with keys that groups of queries share, and rotary or learned positions."""
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
    places = None if form == "rope" else learned
    return c.decoder(raw, attention, mlp=mlp, norm=c.layer_norm(), positions=places, tied=True)
