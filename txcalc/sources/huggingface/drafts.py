"""Models that propose tokens for another, whose hidden states they read: EAGLE's, by the code published with them."""

from __future__ import annotations

from txcalc.sources.huggingface.config import Config
from txcalc.sources.huggingface.shared import Raw, alone, gated, heads, layered, padding_within, rms, rotary

# Of Qwen's and others' configs, from which drafts are written: nothing here reads them.
UNREAD = ("max_window_layers", "sliding_window", "use_sliding_window", "decoder_sparse_step", "norm_output")


def _stack(c: Config) -> Raw:
    """The widths of a draft, and what its published code says nothing else of."""
    alone(c)
    raw: Raw = {
        "kind": "decoder",
        "d_model": c.size("hidden_size"),
        "n_layers": c.layers("num_hidden_layers"),
        "vocab_size": c.size("vocab_size"),
        "context": c.size("max_position_embeddings", default=2048),
    }
    padding_within(c, raw)
    c.only(False, "attention_bias", "mlp_bias", why="the published code has no biases")
    c.text("target_model_type", default=None)
    c.ignore("architectures", *UNREAD)
    return raw | {"norm": rms(c), "feed_forward": gated(c)}


def _proposing(c: Config, raw: Raw) -> Raw:
    """A head over the tokens that a draft proposes, fewer than it reads."""
    rows = raw["vocab_size"]
    proposed = c.size("draft_vocab_size", default=rows, null=rows)
    if proposed > rows:
        c.fault("draft_vocab_size", proposed, f"at most vocab_size = {rows:,}")
    if proposed == rows:
        c.only(False, "tie_word_embeddings", why="the published code has a head of its own")
    c.ignore("tie_word_embeddings")
    extra = max(0, rows - proposed)
    return {"vocab_size": rows - extra, "embedding": {"extra": extra}, "head": {"tied": False}}


def _features(c: Config, raw: Raw) -> Raw:
    """Hidden states of three layers of the model that it drafts for."""
    inner = c.table("eagle_config")
    if inner:
        inner.ignore("use_aux_hidden_state")
        listed = inner.items("eagle_aux_hidden_state_layer_ids", of=int, length=None, default=[0, 0, 0])
        if len(listed) != 3:
            inner.fault("eagle_aux_hidden_state_layer_ids", listed, "three layers")
    width = c.size("target_hidden_size", default=raw["d_model"], null=raw["d_model"])
    return {"number": 3, "width": width}


def eagle3(c: Config) -> Raw:
    """One layer, whose attention reads the tokens' embedding beside the features."""
    raw = _stack(c)
    c.only(1, "num_hidden_layers", why="EAGLE-3's published code has one layer")
    attention = heads(c, raw)
    features = _features(c, raw) | {"norm": c.flag("fc_norm", default=False)}
    layer = {"parts": ["draft_attention", "feed_forward"]}
    made = raw | _proposing(c, raw) | {"features": features, "draft_attention": attention}
    places = rotary(c, attention["d_head"])
    return layered(made | {"positions": places}, (["layer"] * raw["n_layers"], {"layer": layer}))


def peagle(c: Config) -> Raw:
    """P-EAGLE: EAGLE-3's layer, plain ones behind it, and a vector that stands for the features of tokens ahead."""
    raw = _stack(c)
    attention = heads(c, raw)
    places = rotary(c, attention["d_head"])
    features = _features(c, raw)
    c.flag("norm_before_residual", default=False)
    made = raw | _proposing(c, raw) | {
        "features": features,
        "idle": 3 * features["width"],
        "attention": attention,
        "draft_attention": attention,
        "positions": places,
    }  # fmt: skip
    c.note("the vector of features of tokens ahead is held; that it stands for some of them costs nothing")
    kinds = ["first", *["plain"] * (raw["n_layers"] - 1)]
    tables = {
        "first": {"parts": ["draft_attention", "feed_forward"]},
        "plain": {"parts": ["attention", "feed_forward"]},
    }
    return layered(made, (kinds, tables))


def eagle(c: Config) -> Raw:
    """EAGLE and EAGLE-2: layers on a product of embedding and features, no norm before the first attention, none after
    the last layer, and the head of the model that it drafts for."""
    raw = _stack(c)
    attention = heads(c, raw)
    c.ignore("tie_word_embeddings")
    bias = c.flag("bias", default=True)
    made = raw | {
        "features": {"number": 1, "embedded": True, "bias": bias},
        "attention": attention,
        "positions": rotary(c, attention["d_head"]),
        "norm": raw["norm"] | {"final": False},
        "head": {"form": "none"},
    }
    c.note("its head is that of the model that it drafts for, and is not counted")
    kinds = ["first", *["later"] * (raw["n_layers"] - 1)]
    return layered(made, (kinds, {"first": {"norm": {"without": ["attention"]}}, "later": {}}))
