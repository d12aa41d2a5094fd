"""Encoders with rotary positions, most of them with gated feed-forwards."""

from __future__ import annotations

from txcalc.sources.huggingface.config import GLOBAL, LOCAL, Config, Raw, with_kinds
from txcalc.sources.huggingface.encoder import bert_head, bert_like


def gte(c: Config) -> Raw:
    """Gated feed-forwards with a bias only on the down matrix; type embeddings are optional."""
    raw = bert_like(c, theta=160000.0, types=None, pooler=False, untied=None, without=("question", "choice"))
    raw["feed_forward"] |= {"gated": True, "bias": False, "down_bias": True}
    types = c.count("type_vocab_size", default=1)
    raw["embedding"] |= {"types": types} if types else {}
    return raw


def roformer(c: Config) -> Raw:
    """Rotary positions with stored sinusoids; the embedding may be factorised."""
    act, rank = c.activation("hidden_act", default="gelu"), ("embedding_size", None)
    choice = c.summary_activation(None, False)
    raw = bert_like(c, rows=None, rank=rank, pooler=False, sequence_layer=act, choice_layer=choice)
    d_head = raw["attention"]["d_head"]
    if d_head % 2:
        c.fault("rotary width", d_head, "an even number")
    if raw["kind"] == "decoder":
        c.fault("is_decoder", True, "false", "stored sinusoids are supported only in an encoder")
    rows = c.size("max_position_embeddings", default=1536)
    return raw | {"positions": {"form": "rotary", "interleaved": True, "rows": rows}}


def eurobert(c: Config) -> Raw:
    """Llama's layers with bidirectional attention."""
    raw = _llama_encoder(c)
    form = c.head_of("masked-lm", "none", "sequence", "token")
    if form == "masked-lm":
        tied = c.flag("tie_word_embeddings", default=False)
        return raw | {"head": {"form": form, "plain": True, "tied": tied, "bias": raw["feed_forward"]["bias"]}}
    c.ignore("tie_word_embeddings")
    if form == "none":
        return raw | {"head": {"form": form}}
    head = c.classifier(form)
    if form == "sequence":  # "late": the mean of the scores of all positions
        head["transform"] = "gelu"
        pooling = c.text("classifier_pooling", default="late")
        head["every"] = pooling == "late"
        if pooling not in ("late", "bos", "mean"):
            c.fault("classifier_pooling", pooling, "'late', 'bos' or 'mean'")
    return raw | {"head": head}


def _llama_encoder(c: Config) -> Raw:
    """A stack of Llama's layers as an encoder."""
    raw = c.widths("encoder")
    attention = c.heads(raw, whole=True)
    return raw | {
        "attention": attention | {"bias": c.flag("attention_bias", default=False)},
        "feed_forward": c.gated_mlp(bias=c.flag("mlp_bias", default=False)),
        "norm": c.rms(eps=1e-5),
        "positions": c.rotary(attention["d_head"]),
    }


def esm(c: Config) -> Raw:
    """Pre-norm with a final norm; contact regression weights, which do not run.

    With `token_dropout` tokens are scaled by the share that training left unmasked: 1 − 0.15 · 0.8, in the class.
    """
    if "add_bias_fnn" in c:
        c.fault("add_bias_fnn", c.data["add_bias_fnn"], "no such key", "other code with gated feed-forwards has it")
    raw = c.widths("encoder") | {"contacts": True}
    attention = c.mha(raw, bias=True)
    form = c.text("position_embedding_type", default="absolute")
    positions: Raw = {}
    if form == "rotary":
        positions = {"form": "rotary", "theta": c.real("rope_theta", default=1e4)}
        if attention["d_head"] % 2:
            c.fault("rotary width", attention["d_head"], "an even number")
    elif form == "absolute":
        positions = {"form": "learned", "rows": c.size("max_position_embeddings", default=1026)}
    else:
        c.fault("position_embedding_type", form, "'absolute' or 'rotary'")
    table: Raw = {"norm": c.flag("emb_layer_norm_before", default=False, null=False)}
    if c.flag("token_dropout", default=False, null=False):
        table["scale"] = 1 - 0.15 * 0.8
    return raw | {
        "attention": attention,
        "feed_forward": {"d_ff": c.size("intermediate_size"), "activation": "gelu", "bias": True},
        "norm": c.layer_norm("layer_norm_eps", eps=1e-12),
        "positions": positions,
        "embedding": table,
        "head": bert_head(c, True, False, {"sequence": "tanh", "choice": "", "question": ""}),
    }


def esmc(c: Config) -> Raw:
    """Llama's layers with LayerNorms; those of Q and K cover all heads and, like the final one, have no bias."""
    raw = _llama_encoder(c)
    attention = raw["attention"]
    d_head = raw["d_model"] // attention["n_heads"]
    c.require_value(d_head, "head_dim", why="the norms of Q and K are as wide as the model")
    if attention["n_kv_heads"] != attention["n_heads"]:
        c.fault("num_key_value_heads", attention["n_kv_heads"], f"num_attention_heads = {attention['n_heads']}")
    attention["qk_norm"] = "width"
    raw["norm"] = {"form": "layer", "eps": 1e-5, "final_bias": False, "qk_bias": False}
    form = c.head_of("masked-lm", "none", "sequence", "token")
    if form in ("masked-lm", "none"):
        return raw | {"head": {"form": form} | ({"activation": "gelu"} if form == "masked-lm" else {})}
    return raw | {"head": c.classifier(form) | ({"transform": "tanh"} if form == "sequence" else {})}


def modernbert(c: Config) -> Raw:
    """Rotary positions, windows in most layers, no norm before the first attention."""
    raw = _modern(c, c.widths("encoder"))
    form = c.head_of("masked-lm", "none", "sequence", "token", "question", "choice")
    raw["head"] = {"form": form}
    bias = c.flag("classifier_bias", default=False)
    if form == "masked-lm":
        raw["head"] |= {"tied": True, "transform_bias": bias}
    elif form != "none":
        activation = c.activation("classifier_activation", default="gelu")
        raw["head"] = c.classifier(form, transform=activation, transform_norm=True, transform_bias=bias)
    period = c.size("global_attn_every_n_layers", default=3)
    return _with_windows(c, raw, period, c.size("local_attention", default=128) // 2 + 1)


def modernbert_decoder(c: Config) -> Raw:
    """ModernBERT's layers as a causal decoder; its head has a transform layer and a norm."""
    raw = _modern(c, c.stack(), "global_rope_theta")
    bias, width = c.flag("classifier_bias", default=False), raw["attention"]["d_head"]
    has_head = c.head_of("lm", "none") == "lm"
    raw["head"] = {"form": "masked-lm", "tied": True, "transform_bias": bias} if has_head else {"form": "none"}
    if c.activation("classifier_activation", default="gelu") != raw["feed_forward"]["activation"]:
        c.fault("classifier_activation", c.data.get("classifier_activation"), "the value of hidden_activation")
    period = c.size("global_attn_every_n_layers") if "global_attn_every_n_layers" in c else 3
    span = c.size("local_attention", default=128)
    if span < 2:
        c.fault("local_attention", span, "2 or more: half of it is the window")
        span = 2
    local = {"positions": c.rotary(width, 10000.0, kind=LOCAL, names=("local_rope_theta",))}
    return _with_windows(c, raw, period, span // 2, {"local": local})


def _modern(c: Config, raw: Raw, *theta: str) -> Raw:
    """Gated feed-forwards, a flag for each kind of bias, a norm after the embedding; `theta` is a key of the base."""
    bias = c.flag("mlp_bias", default=False)
    attention = c.mha(raw, attention_bias=False)
    names: Raw = {"names": theta} if theta else {}
    return raw | {
        "attention": attention,
        "feed_forward": c.gated_mlp(act="gelu", bias=bias),
        "norm": c.layer_norm("norm_eps", bias=c.flag("norm_bias", default=False)),
        "positions": c.rotary(attention["d_head"], 160000.0, kind=GLOBAL, **names),
        "embedding": {"norm": True},
    }


def _with_windows(c: Config, raw: Raw, period: int, window: int, tables: dict[str, Raw] | None = None) -> Raw:
    """Windows in all but every `period`-th layer, and no norm before the first attention."""
    n = raw["n_layers"]
    types = c.layer_types(n, [LOCAL if i % period else GLOBAL for i in range(n)])
    starts = ["first" if i == 0 else "later" for i in range(n)]
    kinds: dict[str, Raw] = {"first": {"norm": {"without": ["attention"]}}, "later": {}}
    return with_kinds(raw, c.windows(raw, window, types, tables), (starts, kinds))
