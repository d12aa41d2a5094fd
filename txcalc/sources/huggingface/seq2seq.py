"""Encoder–decoders: T5 and its family, BART and its family."""

from __future__ import annotations

from functools import partial

from txcalc.sources.huggingface.config import GLOBAL, LOCAL, Config, Raw, with_kinds
from txcalc.sources.huggingface.keys import ACTIVATIONS, without


def require_pair(c: Config, half: bool = False, cross_attention: bool = False) -> None:
    """A fault unless the config is an encoder–decoder; `half` also allows one of the two. `cross_attention` is the
    required value of add_cross_attention."""
    why = "only an encoder–decoder is supported"
    if half:
        c.ignore("is_encoder_decoder", "add_cross_attention", "is_decoder")
    else:
        if c.class_ends("ForCausalLM"):
            c.fault_class("an encoder–decoder class", f"a single decoder of {c.model_type} is not supported")
        c.require_value(True, "is_encoder_decoder", why=why)
        c.require_value(cross_attention, "add_cross_attention", why=why)
        c.require_value(False, "is_decoder", why=why)
    c.require_value(False, "tie_encoder_decoder", why=why)
    c.require_value({}, "pruned_heads", why="pruned heads are not supported")
    c.ignore("cross_attention_hidden_size", "decoder_start_token_id")


def joined_head(c: Config, may_untie: bool = False, classes: int = 0) -> Raw:
    """The decoder's head; `classes` is the default number of classes (0: the family has no classifiers)."""
    form = c.head_of("lm", "none", *(("sequence", "question") if classes else ()))
    if not may_untie:
        c.require_value(True, "tie_word_embeddings", why="untied, encoder and decoder would not share an embedding")
    if form == "none":
        c.ignore("tie_word_embeddings")
        return {"form": "none"}
    if form != "lm":  # a classifier of all decoder states, or for sequences of the last one
        c.ignore("tie_word_embeddings")
        return c.classifier(form, classes, **({"transform": "tanh"} if form == "sequence" else {}))
    return {"tied": c.flag("tie_word_embeddings", default=True) if may_untie else True}


def _add_head(raw: Raw, head: Raw) -> Raw:
    """The description with its head; only the decoder has a classifier."""
    if head.get("form") != "classifier":
        return raw | {"head": head}
    return raw | {"encoder": raw["encoder"] | {"head": {"form": "none"}}, "decoder": raw["decoder"] | {"head": head}}


# Endings of T5's encoder classes.
_ENCODERS = ("EncoderModel", "ForTokenClassification")


def t5(c: Config, decoder_layers: int | None = None, classes: int = 2, gates: str = "relu") -> Raw:
    """RMSNorms, relative position biases that all layers of a stack share, heads whose width is not D/h."""
    encoder_only = c.class_ends(*_ENCODERS)
    require_pair(c, encoder_only)
    projection = c.text("feed_forward_proj", default=gates)
    gate, _, name = projection.rpartition("-")
    if gate not in ("", "gated") or name not in ACTIVATIONS:
        c.fault("feed_forward_proj", projection, "an activation such as 'relu', or 'gated-gelu'")
        name = "relu"
    c.require_value(gate == "gated", "is_gated_act", why="feed_forward_proj determines it")
    n_layers = c.layers("num_layers", "num_hidden_layers")
    decoder_layers = c.size("num_decoder_layers", default=decoder_layers or n_layers, null=n_layers)
    activation = "gelu_tanh" if projection == "gated-gelu" else ACTIVATIONS[name]
    positions = {
        "form": "relative",
        "buckets": c.size("relative_attention_num_buckets", default=32),
        "distance": c.size("relative_attention_max_distance", default=128),
    }
    raw: Raw = {
        "kind": "encoder-decoder",
        "d_model": c.size("d_model", "hidden_size"),
        "vocab_size": c.size("vocab_size"),
        "attention": {
            "n_heads": c.size("num_heads", "num_attention_heads"),
            "d_head": c.size("d_kv", "head_dim", default=64),
            "scale": 1.0,
        },
        "feed_forward": {"d_ff": c.size("d_ff"), "gated": gate == "gated", "activation": activation},
        "norm": {"form": "rms", "eps": c.real("layer_norm_epsilon", default=1e-6)},
        "positions": positions,
        "encoder": {"n_layers": n_layers},
        "decoder": {"n_layers": decoder_layers},
    }
    if encoder_only:
        return _encoder(c, raw, classes)
    head = joined_head(c, True, classes)
    if head.get("tied") is False:
        c.note("the head is untied, as in later checkpoints of T5: transformers 5 may tie it")
    return _add_head(raw, head)


def _encoder(c: Config, raw: Raw, classes: int) -> Raw:
    """The encoder, without a head or with a token classifier."""
    c.ignore("tie_word_embeddings")
    form = c.head_of("encoder", *(("token",) if classes else ()))
    head = {"form": "none"} if form == "encoder" else c.classifier(form, classes)
    stack = without(raw, "encoder", "decoder")
    return {**stack, "kind": "encoder", **raw["encoder"], "head": head}


def umt5(c: Config) -> Raw:
    """T5 with separate position biases in every layer."""
    if not c.class_ends(*_ENCODERS):
        c.require_value(True, "tie_word_embeddings", why="transformers' umt5 is always tied")
    raw = t5(c, classes=2, gates="gated-gelu")
    return raw | {"positions": raw["positions"] | {"apart": True}}


mt5 = partial(t5, gates="gated-gelu")


def half_of(c: Config, raw: Raw, half: str, act: str = "gelu") -> Raw:
    """Layers, heads and feed-forward of the encoder or the decoder (`half`)."""
    n_heads = c.size(f"{half}_attention_heads", *(("num_attention_heads",) if half == "encoder" else ()))
    c.divides(n_heads, raw["d_model"], f"{half}_attention_heads", "d_model")
    names = (f"{half}_layers", *(("num_hidden_layers",) if half == "encoder" else ()))
    activation = c.activation("activation_function", default=act)
    return {
        "n_layers": c.layers(*names),
        "attention": {"n_heads": n_heads, "d_head": max(1, raw["d_model"] // n_heads), "bias": True},
        "feed_forward": {"d_ff": c.size(f"{half}_ffn_dim"), "activation": activation, "bias": True},
    }


def bart_like(
    c: Config, place: str, rows: int, extra: int, embedded_norm: bool, positions: str = "learned", classes: int = 0,
    act: str = "gelu", crossed: bool = False,
) -> Raw:  # fmt: skip
    """Two stacks with learned positions, or only the decoder, with (`crossed`) another model's encoder or without one.
    The head's bias is a buffer. `extra` are rows of positions beyond `rows`."""
    decoder_only = crossed or c.class_ends("ForCausalLM")
    require_pair(c, decoder_only)
    why = "the place of norms is fixed in this class"
    c.require_value(place == "pre", "normalize_before", "add_final_layer_norm", why=why)
    norms = "a norm" if embedded_norm else "no norm"
    c.require_value(embedded_norm, "normalize_embedding", why=f"only {norms} after the embedding is supported")
    raw: Raw = {
        "kind": "encoder-decoder",
        "d_model": c.size("d_model", "hidden_size"),
        "vocab_size": c.size("vocab_size"),
    }
    c.padding_within(raw)
    table: Raw = {"form": positions}
    if positions == "learned":
        table["rows"] = c.size("max_position_embeddings", default=rows) + extra
    else:
        c.ignore("max_position_embeddings")
    raw |= {
        "norm": {"form": "layer", "place": place},
        "positions": table,
        "embedding": {"norm": embedded_norm},
        "encoder": half_of(c, raw, "encoder", act),
        "decoder": half_of(c, raw, "decoder", act),
    }
    return _decoder(c, raw, crossed) if decoder_only else _add_head(raw, joined_head(c, classes=classes))


def _decoder(c: Config, raw: Raw, crossed: bool) -> Raw:
    """The decoder alone; without an encoder its cross-attention does not run."""
    stack = without(raw, "encoder", "decoder")
    stack |= {"kind": "decoder", **raw["decoder"], "head": joined_head(c, True)}
    if crossed:
        return stack
    idle = raw["decoder"]["n_layers"] * cross_attention_params(raw["d_model"], raw["d_model"])
    return c.with_idle(stack, idle, "the decoder's cross-attention branches")


def cross_attention_params(d: int, d_source: int) -> int:
    """Parameters of cross-attention to states of width `d_source`, with biases and a norm."""
    return 2 * d * (d + 1) + 2 * d * (d_source + 1) + 2 * d


# Pegasus and Marian store their sinusoids as an embedding.
bart = partial(bart_like, place="post", rows=1024, extra=2, embedded_norm=True, classes=3)
mvp = partial(bart_like, place="post", rows=1024, extra=2, embedded_norm=True)
plbart = partial(bart_like, place="post", rows=1024, extra=2, embedded_norm=True, classes=2)
mbart = partial(bart_like, place="pre", rows=1024, extra=2, embedded_norm=True, classes=2)
pegasus = partial(bart_like, place="pre", rows=1024, extra=0, embedded_norm=False)
m2m_100 = partial(bart_like, place="pre", rows=1024, extra=0, embedded_norm=False, positions="sinusoidal")
blenderbot = partial(bart_like, place="pre", rows=128, extra=0, embedded_norm=False)
blenderbot_small = partial(bart_like, place="post", rows=512, extra=0, embedded_norm=True)


def bigbird_pegasus(c: Config) -> Raw:
    """Pegasus with block-sparse attention in the encoder; attention may have no biases."""
    raw = bart_like(c, "pre", 4096, 0, False, classes=2)
    bias, sparse = c.flag("use_bias", default=False), c.sparse_blocks()
    if raw["kind"] == "decoder":
        c.fault_class("an encoder–decoder class", "a single decoder is not supported")
        return raw
    for half in ("encoder", "decoder"):
        raw[half]["attention"]["bias"] = bias
    raw["encoder"]["attention"] |= sparse
    return raw


def marian(c: Config) -> Raw:
    raw = bart_like(c, "post", 1024, 0, False)
    c.require_value(raw["vocab_size"], "decoder_vocab_size", why="only a shared embedding is supported")
    return raw


def fsmt(c: Config) -> Raw:
    """Separate vocabularies of encoder and decoder; stored sinusoids, with further rows up to the padding's."""
    require_pair(c)
    c.head_of("lm")
    vocabulary = {"encoder": c.size("src_vocab_size"), "decoder": c.size("tgt_vocab_size", "vocab_size")}
    padding = c.count("pad_token_id", default=1)
    if padding >= min(vocabulary.values()):
        c.fault("pad_token_id", padding, "less than src_vocab_size and tgt_vocab_size")
    tied = c.flag("tie_word_embeddings", default=False)
    if tied and vocabulary["encoder"] != vocabulary["decoder"]:
        c.fault("tie_word_embeddings", True, "false if src_vocab_size and tgt_vocab_size differ")
    d_model, rows = c.size("d_model", "hidden_size"), c.size("max_position_embeddings", default=1024) + padding + 1
    raw: Raw = {
        "kind": "encoder-decoder",
        "d_model": d_model,
        "norm": {"form": "layer", "place": "post"},
        "positions": {"form": "learned", "rows": rows},
        "embedding": {"shared": tied},
        "head": {"tied": tied},
    }
    for half, size in vocabulary.items():
        raw[half] = {"vocab_size": size, **half_of(c, raw, half, act="relu")}
    return raw


def trocr(c: Config) -> Raw:
    """BART's decoder with a tied head."""
    raw: Raw = {"d_model": c.size("d_model", "hidden_size"), "vocab_size": c.size("vocab_size")}
    c.padding_within(raw)
    learned = c.flag("use_learned_position_embeddings", default=True)
    rows = c.size("max_position_embeddings", default=512)
    return raw | {
        **half_of(c, raw, "decoder"),
        "norm": {"form": "layer", "place": "post"},
        "positions": {"form": "learned", "rows": rows + 2} if learned else {"form": "sinusoidal"},
        "embedding": {"norm": c.flag("layernorm_embedding", default=True)},
        "head": {"tied": c.flag("tie_word_embeddings", default=True)},
    }


def trocr_alone(c: Config) -> Raw:
    """TrOCR's decoder without an image: its cross-attention does not run."""
    c.head_of("lm")
    raw = trocr(c)
    d, d_source = raw["d_model"], c.size("cross_attention_hidden_size", default=None, null=None)
    idle = raw["n_layers"] * cross_attention_params(d, d if d_source is None else d_source)
    return c.with_idle({"kind": "decoder", **raw}, idle, "the decoder's cross-attention branches")


def _mixture(sparse: list[bool], half: str) -> tuple[list[str], dict[str, Raw]]:
    """The dense and sparse layer kinds of the encoder or the decoder (`half`)."""
    parts = ["attention"] + ["cross_attention"] * (half == "decoder")
    kinds = ["sparse" if is_sparse else "dense" for is_sparse in sparse]
    return kinds, {"dense": {"parts": [*parts, "feed_forward"]}, "sparse": {"parts": [*parts, "experts"]}}


def nllb_moe(c: Config) -> Raw:
    """M2M-100 with experts in every `*_sparse_step`-th layer, two per token."""
    raw = bart_like(c, "pre", 1024, 0, False, positions="sinusoidal")
    number = c.size("num_experts", default=128)
    if number < 2:
        c.fault("num_experts", number, "at least 2: a token uses two")
    for half in ("encoder", "decoder"):
        table = raw[half]
        step = c.count(f"{half}_sparse_step", default=4)
        sparse = [step > 0 and (i + 1) % step == 0 for i in range(table["n_layers"])]
        table["experts"] = {**table["feed_forward"], "n_experts": number, "top_k": min(2, number), "gated": False}
        raw[half] = with_kinds(table, _mixture(sparse, half))
    return raw


def t5gemma(c: Config) -> Raw:
    """Gemma 2's layers in both stacks, with separate embeddings; the head is tied to the decoder's."""
    require_pair(c)
    halves: Raw = {}
    for half in ("encoder", "decoder"):
        table = c.table(half)
        if table is None:
            c.fault(half, c.data.get(half), f"an object, the {half}'s config")
            table = Config({}, c.model_type, f"{half}.", c)
        halves[half] = _gemma_half(table, half)
    decoder = halves["decoder"]
    c.require_value(decoder["vocab_size"], "vocab_size", why="the decoder's vocabulary")
    return {
        "kind": "encoder-decoder",
        "embedding": {"shared": False, "scale": decoder["d_model"] ** 0.5},
        "head": joined_head(c),
        **halves,
    }


def _gemma_half(c: Config, half: str) -> Raw:
    """A stack of Gemma 2; the encoder's windows are bidirectional."""
    raw: Raw = {
        "d_model": c.size("hidden_size"),
        "n_layers": c.layers("num_hidden_layers"),
        "vocab_size": c.size("vocab_size"),
    }
    c.padding_within(raw)
    n = raw["n_layers"]
    attention = c.heads(raw, kv=4, d_head=256, whole=True, attention_bias=False)
    raw |= {
        "attention": attention | {"softcap": c.real("attn_logit_softcapping", default=50.0)},
        "feed_forward": c.gated_mlp(act="gelu_pytorch_tanh"),
        "norm": c.rms(offset=True, place="sandwich"),
        "positions": c.rotary(attention["d_head"], kind=GLOBAL),
    }
    window = c.size("sliding_window", default=4096)
    types = c.layer_types(n, [GLOBAL if i % 2 else LOCAL for i in range(n)])
    return with_kinds(raw, c.windows(raw, window if half == "decoder" else window + 1, types))


def switch_transformers(c: Config) -> Raw:
    """T5 with experts in every n-th layer of each stack, one per token."""
    act = c.activation("dense_act_fn", default="relu")
    raw = t5(c, decoder_layers=12, classes=0)
    number = c.size("num_experts", default=8)
    ffn = raw.pop("feed_forward") | {"activation": act}
    for half in ("encoder", "decoder"):
        if raw["kind"] == "encoder" and half == "decoder":
            c.ignore("num_sparse_decoder_layers", "decoder_sparse_step")
            break
        table = raw if raw["kind"] == "encoder" else raw[half]
        n = table["n_layers"]
        sparse_layers = c.count(f"num_sparse_{half}_layers", default=3)
        step = c.count(f"{half}_sparse_step", default=None)
        if step is None:
            step = n // sparse_layers if sparse_layers else n
        sparse = [step > 0 and (i % step == 1 or step == 1) for i in range(n)]
        table |= {"feed_forward": ffn, "experts": {**ffn, "n_experts": number, "top_k": 1}}
        table |= with_kinds(table, _mixture(sparse, half))
    return raw
