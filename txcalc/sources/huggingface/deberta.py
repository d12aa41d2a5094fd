"""DeBERTa: encoders with separate attention products for tokens and distances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import Config, Raw, layered
from txcalc.sources.huggingface.encoder import masked_lm


def deberta(c: Config) -> Raw:
    """Distances in products of their own, of no more than occur; a fused projection with biases on Q and V alone."""
    raw = _disentangled(c)
    raw["attention"]["bias"] = ["q", "v", "o"]
    if raw["positions"]["form"] == "disentangled":
        terms = raw["positions"]["terms"]
        raw["positions"] |= {"clipped": True, "bias": ["q"] if "p2c" in terms else []}
    return raw


def deberta_v2(c: Config) -> Raw:
    """Distances in buckets, which q and k may project themselves; a convolution beside the first layer."""
    raw = _disentangled(c)
    places = raw["positions"]
    both = ["c2p", "p2c"]
    shared = c.flag("share_att_key", default=False)
    norms = [norm.strip() for norm in c.text("norm_rel_ebd", default="none").lower().split("|")]
    unknown = [norm for norm in norms if norm not in ("none", "layer_norm")]
    if unknown:
        c.fault("norm_rel_ebd", c.data["norm_rel_ebd"], "'layer_norm' or 'none'")
    has_norm = "layer_norm" in norms
    if places["form"] == "disentangled":
        terms = places["terms"]
        if shared and set(terms) != set(both):
            c.fault("share_att_key", True, "false with one pos_att_type", "q and k both project the distances")
        places |= {"shared": shared, "norm": has_norm, "bias": [] if shared else _letters(terms)}
        buckets = _positive(c, "position_buckets")
        if buckets is not None:
            places["rows"] = 2 * buckets
            if buckets >= places["distance"]:
                c.fault("position_buckets", buckets, f"less than the longest distance = {places['distance']:,}")
    else:
        c.ignore("position_buckets")
        if has_norm:
            c.fault("norm_rel_ebd", c.data["norm_rel_ebd"], "'none' without relative_attention")
    taps = c.count("conv_kernel_size", default=0)
    if not taps:
        c.ignore("conv_act")
        return raw
    if taps % 2 == 0:
        c.fault("conv_kernel_size", taps, "an odd number", "its output would be shorter")
    convolution = {"taps": taps, "activation": c.activation("conv_act", default="tanh")}
    starts = ["first" if i == 0 else "later" for i in range(raw["n_layers"])]
    first = {"parts": ["attention", "feed_forward", "convolution"], "convolution": convolution}
    return layered(raw, (starts, {"first": first, "later": {}}))


def _letters(terms: Sequence[str]) -> list[str]:
    """The projections of the distances: as keys for c2p, as queries for p2c."""
    return [letter for letter, term in (("q", "p2c"), ("k", "c2p")) if term in terms]


def _disentangled(c: Config) -> Raw:
    raw = c.widths("encoder")
    c.require_value(raw["d_model"], "embedding_size", why="a table as wide as the model is read")
    types = c.count("type_vocab_size", default=0)
    attention = c.mha(raw)
    c.require_value(attention["d_head"], "attention_head_size", why="it is the width over the heads")
    c.require_value(raw["d_model"], "pooler_hidden_size", why="a pooler as wide as the model is read")
    pooled = c.activation("pooler_hidden_act", default="gelu")  # of the layer before a classifier of sequences
    raw |= {
        "attention": attention | {"bias": True},
        "feed_forward": c.mlp(),
        "norm": c.layer_norm("layer_norm_eps", eps=1e-7, place="post"),
        "embedding": {"norm": True} | ({"types": types} if types else {}),
        "head": masked_lm(c, False, False, dict.fromkeys(("sequence", "choice"), pooled)),
        "positions": {"form": "none"},
    }
    terms = _terms(c)
    biased = c.flag("position_biased_input", default=True)
    reach = _positive(c, "max_relative_positions")
    if c.flag("relative_attention", default=False):
        if biased:
            c.fault("position_biased_input", True, "false with relative_attention", "both tables are not read")
        if not terms:
            c.fault("pos_att_type", c.data.get("pos_att_type", ABSENT), "'c2p', 'p2c' or both with relative_attention")
        reach = c.size("max_position_embeddings", default=512) if reach is None else reach
        raw["positions"] = {"form": "disentangled", "rows": 2 * reach, "distance": reach, "terms": terms or ["c2p"]}
        return raw
    c.ignore("share_att_key")
    raw["attention"]["scale"] = (attention["d_head"] * (1 + len(terms))) ** -0.5
    if biased:
        raw["positions"] = {"form": "learned", "rows": c.size("max_position_embeddings", default=512)}
    return raw


def _terms(c: Config) -> list[str]:
    """`pos_att_type`: a list, or its items with bars between them."""
    c.ignore("pos_att_type")
    given = c.data.get("pos_att_type") if "pos_att_type" in c else None
    terms = [term.strip() for term in given.lower().split("|")] if isinstance(given, str) else given or []
    known = ["c2p", "p2c"]
    if not isinstance(terms, list) or any(term not in known for term in terms) or len(set(terms)) < len(terms):
        c.fault("pos_att_type", given, "a list out of 'c2p' and 'p2c', each once")
        return ["c2p"]
    return [term for term in known if term in terms]


def _positive(c: Config, key: str) -> Any:
    """A size, or None where it is absent or −1."""
    if key not in c or (type(c.data[key]) is int and c.data[key] == -1):
        c.ignore(key)
        return None
    return c.size(key)
