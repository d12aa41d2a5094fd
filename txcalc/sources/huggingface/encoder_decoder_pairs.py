"""Encoder–decoders with a config for each stack: transformers' generic pairs; T5Gemma 2, whose self- and
cross-attention share a softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from txcalc.errors import ABSENT, Fault, InputError
from txcalc.sources.huggingface.config import LOCAL, Config, Raw, periodic, with_kinds
from txcalc.sources.huggingface.decoders import decoder
from txcalc.sources.huggingface.encoder import encoder
from txcalc.sources.huggingface.gemma import gemma3_text
from txcalc.sources.huggingface.keys import without
from txcalc.sources.huggingface.leaf_list import leaf, matrix
from txcalc.sources.huggingface.seq2seq import bart, mbart, require_pair, trocr
from txcalc.sources.huggingface.vision import beit, deit, dinov2, donut_swin, swin, swinv2, vit

Readers = Mapping[str, Callable[[Config], Raw]]
# Encoders that transformers also makes decoders with cross-attention.
ENCODERS: Readers = dict.fromkeys(("bert", "camembert", "roberta", "xlm-roberta"), encoder)
IMAGE_ENCODERS: Readers = {
    "beit": beit, "deit": deit, "dinov2": dinov2, "donut-swin": donut_swin, "swin": swin, "swinv2": swinv2, "vit": vit,
}  # fmt: skip
BARTS: Readers = {"bart": partial(bart, crossed=True), "mbart": partial(mbart, crossed=True)}
DECODERS: Readers = {**ENCODERS, **BARTS, "gpt2": partial(decoder, name="gpt2"), "trocr": trocr}
# Keys that must be true for cross-attention; other decoders always have it.
CROSSING = {**dict.fromkeys(ENCODERS, ("is_decoder", "add_cross_attention")), "gpt2": ("add_cross_attention",)}
# Decoders whose cross-attention can read states of another width.
ANY_WIDTH = frozenset(("trocr",))
CROSS_ATTENTION_KEYS = ("is_decoder", "add_cross_attention", "cross_attention_hidden_size")


def encoder_decoder(c: Config, encoders: Readers = ENCODERS) -> Raw:
    """An encoder without a head and a decoder with one; they share nothing."""
    c.head_of("none")
    first, second = _half(c, "encoder", encoders), _half(c, "decoder", DECODERS)
    encoder, decoder = encoders[first.model_type](first), DECODERS[second.model_type](second)
    encoder["embedding"] = {**encoder.get("embedding", {}), "shared": False}
    d_source, widths = c.data["decoder"].get("cross_attention_hidden_size"), (encoder["d_model"], decoder["d_model"])
    if d_source is not None and (d_source != widths[0] or type(d_source) is not int):
        second.fault("cross_attention_hidden_size", d_source, f"the encoder's {widths[0]:,}")
    if d_source is None:
        decoder["projected"] = widths[0] != widths[1]
    elif widths[0] != widths[1] and second.model_type not in ANY_WIDTH:
        name = second.spelling("hidden_size", "d_model", "n_embd")
        second.fault(name, widths[1], f"the encoder's {widths[0]:,}", "its cross-attention requires equal widths")
    halves = {"encoder": encoder, "decoder": decoder}
    stacks = {half: without(raw, "kind", "context") for half, raw in halves.items()}
    return {"kind": "encoder-decoder", **stacks}


vision_encoder_decoder = partial(encoder_decoder, encoders=IMAGE_ENCODERS)


def _half(c: Config, half: str, readers: Readers) -> Config:
    """The config of the encoder or the decoder (`half`), for the class that transformers uses."""
    c.ignore(half)
    data = c.data.get(half)
    if not isinstance(data, Mapping):
        got = ABSENT if data is None else data
        raise InputError(c.model_type, [Fault(half, got, f"an object, the {half}'s config")])
    name = data.get("model_type")
    if not isinstance(name, str) or name not in readers:
        got = name if "model_type" in data else ABSENT
        raise InputError(c.model_type, [Fault(f"{half}.model_type", got, f"one of {', '.join(readers)}")])
    hidden = ("architectures", *(CROSS_ATTENTION_KEYS if half == "decoder" else ("tie_word_embeddings",)))  # no head
    visible = {key: value for key, value in data.items() if key not in hidden}
    if half == "encoder":
        visible["architectures"] = [f"{name}Model"]
    inner = Config(visible, name, f"{half}.", c, partial=True)
    for key in CROSSING.get(name, ()) if half == "decoder" else ():
        if data.get(key) is not True:
            inner.fault(key, data.get(key, ABSENT), "true: the decoder needs cross-attention")
    return inner


def t5gemma2(c: Config) -> Raw:
    """Gemma 3's layers; encoder, decoder and head share the embedding and the end-of-image vector."""
    from txcalc.sources.huggingface.tower_registry import describe_towers

    require_pair(c)
    form = c.head_of("lm", "none")
    outer = _table(c, "encoder", "t5gemma2_encoder")
    text, target = _table(outer, "text_config", "t5gemma2_text"), _table(c, "decoder", "t5gemma2_decoder")
    encoder, decoder = _gemma3(text), _gemma3(target)
    for key in ("hidden_size", "vocab_size"):
        name = "d_model" if key == "hidden_size" else key
        if decoder[name] != encoder[name]:
            target.fault(key, decoder[name], f"the encoder's {encoder[name]:,}")
    c.require_value(decoder["vocab_size"], "vocab_size", why="the decoder's vocabulary")
    window = text.size("sliding_window", default=4096)
    if LOCAL in _types(text, encoder) and window % 2 == 0:
        c.note(f"windows of {window:,} in the encoder: masked FLOPs count one key too many to the left")
    local = {"attention": {"window": window // 2 + 1}}
    tables = {name: table | (local if name == "local" else {}) for name, table in encoder.pop("layer", {}).items()}
    if tables:
        encoder["layer"] = tables
    elif "window" in encoder["attention"]:
        encoder["attention"] |= local["attention"]
    encoder["around"] = [leaf("eoi", "held", encoder["d_model"], kind="embedding")]
    outer.ignore(*outer.data)
    raw: Raw = {
        "kind": "encoder-decoder",
        "embedding": decoder["embedding"],
        "head": {"tied": True} if form == "lm" else {"form": "none"},
        "encoder": encoder,
        "decoder": _merge_attention(target, decoder),
    }
    return raw | describe_towers(outer, text, encoder)


def _table(c: Config, key: str, model_type: str) -> Config:
    """A nested config, which has only what differs from its class's defaults."""
    table = c.data.get(key)
    c.ignore(key)
    if not isinstance(table, Mapping):
        c.fault(key, ABSENT if table is None else table, "an object, the config of that part")
        table = {}
    return Config(table, model_type, f"{c.path}{key}.", c, partial=True)


def _gemma3(c: Config) -> Raw:
    """A stack of Gemma 3, without the keys that belong to the pair."""
    c.ignore("final_logit_softcapping", "tie_word_embeddings", "dropout_rate", "sliding_window")
    raw = gemma3_text(c)
    if c.data.get("sliding_window", 0) is None:
        c.fault("sliding_window", None, "a window: its masks require one")
    return without(raw, "kind", "context", "head")


def _types(c: Config, raw: Raw) -> list[str]:
    n = raw["n_layers"]
    return c.layer_types(n, periodic(n, c.size("sliding_window_pattern", "_sliding_window_pattern", default=6)))


def _merge_attention(c: Config, raw: Raw) -> Raw:
    """Layers with merged self- and cross-attention: k and v also run over the encoder's states."""
    d, a = raw["d_model"], raw["attention"]
    if a["bias"]:
        c.fault("attention_bias", True, "false", "biases are not supported in merged attention")
    width, kinds = a["d_head"], ["local" if kind == LOCAL else "global" for kind in _types(c, raw)]
    queries, kv = a["n_heads"] * width, a["n_kv_heads"] * width
    heads: Raw = {"groups": max(1, a["n_heads"] // a["n_kv_heads"])}

    def leaves(core: str, *span: int) -> list[Raw]:
        layer = [
            leaf("norm", "rms_norm", d),
            matrix("q", d, queries),
            matrix("k", d, kv),
            matrix("v", d, kv),
            leaf("q_norm", "rms_norm", width, groups=a["n_heads"]),
            leaf("k_norm", "rms_norm", width, groups=a["n_kv_heads"]),
            leaf("rotary", "rotary", a["n_heads"] + a["n_kv_heads"], width),
            leaf("source_k", "tied", d, kv, at="source"),
            leaf("source_v", "tied", d, kv, at="source"),
            leaf("source_norm", "rms_again", width, groups=a["n_kv_heads"], at="source"),
            leaf("core", core, a["n_heads"], width, width, *span, bias=False, **heads),
            leaf("source_core", "crossed", a["n_heads"], width, width, bias=False, **heads),
            matrix("o", queries, d),
            leaf("norm_after", "rms_norm", d),
            leaf("sum", "sum", d),
        ]
        return [item | {"kind": "norm" if "norm" in item["name"] else "attention"} for item in layer]

    window = c.size("sliding_window", default=4096)
    spans = {"local": leaves("window", window), "global": leaves("causal")}
    norm = {"norm": {"without": ["pieces"]}}
    tables = {
        name: {"parts": ["pieces", "feed_forward"], "pieces": {"leaves": spans[name]}} | norm for name in set(kinds)
    }
    shared = without(raw, "attention", "layer", "pattern", "positions")
    return with_kinds(shared | {"positions": {"form": "none"}}, (kinds, tables))
