"""T5Gemma 2: Gemma 3 in both halves, whose decoder attends to itself and to its encoder in one softmax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import LOCAL, Config, Raw, layered, periodic, piece
from txcalc.sources.huggingface.gemma import gemma3_text
from txcalc.sources.huggingface.seq2seq import joined


def t5gemma2(c: Config) -> Raw:
    """Tables, and the vector of a picture's end, are those of both halves and of the head."""
    from txcalc.sources.huggingface.beside import beside

    joined(c)
    c.ignore("dropout_rate", "classifier_dropout_rate", "image_token_index", "eoi_token_index")
    c.only(True, "tie_word_embeddings", why="untied, the halves would not share a table either")
    form = c.head_of("lm", "none")
    whole = _table(c, "encoder", "t5gemma2_encoder")
    text, behind = _table(whole, "text_config", "t5gemma2_text"), _table(c, "decoder", "t5gemma2_decoder")
    encoder, decoder = _half(text), _half(behind)
    for key in ("hidden_size", "vocab_size"):
        name = "d_model" if key == "hidden_size" else key
        if decoder[name] != encoder[name]:
            behind.fault(key, decoder[name], f"the encoder's {encoder[name]:,}")
    c.only(decoder["vocab_size"], "vocab_size", why="the decoder's table")
    window = text.size("sliding_window", default=4096)
    if LOCAL in _types(text, encoder) and window % 2 == 0:
        c.note(f"windows of {window:,} in the encoder: masked FLOPs count one key more to the left than it sees")
    local = {"attention": {"window": window // 2 + 1}}
    tables = {name: table | (local if name == "local" else {}) for name, table in encoder.pop("layer", {}).items()}
    if tables:
        encoder["layer"] = tables
    elif "window" in encoder["attention"]:
        encoder["attention"] |= local["attention"]
    encoder["around"] = [piece("eoi", "held", encoder["d_model"], kind="embedding")]
    whole.ignore(*whole.data)
    raw: Raw = {
        "kind": "encoder-decoder",
        "embedding": decoder["embedding"],
        "head": {"tied": True} if form == "lm" else {"form": "none"},
        "encoder": encoder,
        "decoder": _merged(behind, decoder),
    }
    return raw | beside(whole, text, encoder)


def _table(c: Config, key: str, model_type: str) -> Config:
    """A config in another, which holds only what differs from its class's defaults."""
    found = c.data.get(key)
    c.ignore(key)
    if not isinstance(found, Mapping):
        c.fault(key, ABSENT if found is None else found, "an object, the half's own config")
        found = {}
    return Config(found, model_type, f"{c.path}{key}.", c, partial=True)


def _half(c: Config) -> Raw:
    """A Gemma 3 without what both halves have."""
    c.only(None, "attn_logit_softcapping", why="scores without a cap are read")
    c.ignore("final_logit_softcapping", "tie_word_embeddings", "dropout_rate", "sliding_window")
    raw = gemma3_text(c)
    if c.data.get("sliding_window", 0) is None:
        c.fault("sliding_window", None, "a window, for its masks are made with one")
    return {key: value for key, value in raw.items() if key not in ("kind", "context", "head")}


def _types(c: Config, raw: Raw) -> list[str]:
    n = raw["n_layers"]
    return c.layer_types(n, periodic(n, c.size("sliding_window_pattern", "_sliding_window_pattern", default=6)))


def _merged(c: Config, raw: Raw) -> Raw:
    """Layers whose keys and values are the encoder's too: k and v run over both, q once."""
    d, a = raw["d_model"], raw["attention"]
    if a["bias"]:
        c.fault("attention_bias", True, "false", "a bias of keys that run twice is not read")
    width, kinds = a["d_head"], ["local" if kind == LOCAL else "global" for kind in _types(c, raw)]
    queries, pairs = a["n_heads"] * width, a["n_kv_heads"] * width
    heads: dict[str, Any] = {"groups": max(1, a["n_heads"] // a["n_kv_heads"])}

    def leaves(core: str, *span: int) -> list[Raw]:
        made = [
            piece("norm", "rms_norm", d),
            piece("q", "linear", d, queries, bias=False),
            piece("k", "linear", d, pairs, bias=False),
            piece("v", "linear", d, pairs, bias=False),
            piece("q_norm", "rms_norm", width, groups=a["n_heads"]),
            piece("k_norm", "rms_norm", width, groups=a["n_kv_heads"]),
            piece("rotary", "rotary", a["n_heads"] + a["n_kv_heads"], width),
            piece("source_k", "tied", d, pairs, at="source"),
            piece("source_v", "tied", d, pairs, at="source"),
            piece("source_norm", "rms_again", width, groups=a["n_kv_heads"], at="source"),
            piece("core", core, a["n_heads"], width, width, *span, bias=False, **heads),
            piece("source_core", "crossed", a["n_heads"], width, width, bias=False, **heads),
            piece("o", "linear", queries, d, bias=False),
            piece("norm_after", "rms_norm", d),
            piece("sum", "sum", d),
        ]
        return [one | {"kind": "norm" if "norm" in one["name"] else "attention"} for one in made]

    window = c.size("sliding_window", default=4096)
    spans = {"local": leaves("window", window), "global": leaves("causal")}
    norm = {"norm": {"without": ["pieces"]}}
    tables = {
        name: {"parts": ["pieces", "feed_forward"], "pieces": {"leaves": spans[name]}} | norm for name in set(kinds)
    }
    plain = {key: value for key, value in raw.items() if key not in ("attention", "layer", "pattern", "positions")}
    return layered(plain | {"positions": {"form": "none"}}, (kinds, tables))
