"""Encoders of BERT's time that are listed leaf by leaf: XLNet and MobileBERT."""

from __future__ import annotations

from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.leaf_list import Leaves, leaf, leaf_stack, matrix, of_kind


def xlnet(c: Config) -> Raw:
    """Post-norm layers whose queries meet keys and, through a matrix of their own, distances; read in one stream."""
    c.require_single_stack()
    c.summary_activation("tanh")
    d, n = c.size("d_model", "hidden_size"), c.layers("n_layer", "num_hidden_layers")
    raw: Raw = {"kind": "encoder", "d_model": d, "n_layers": n, "vocab_size": c.size("vocab_size", "n_token")}
    h = c.size("n_head", "num_attention_heads")
    c.divides(h, d, "n_head", "d_model")
    w = max(1, d // h)
    c.require_value(w, "d_head", why="its class takes d_model / n_head")
    leaves = [matrix(name, d, d) for name in "qkv"]
    leaves += [matrix("distances", d, d, at=[2, 0, 1]), leaf("biases", "held", 5 * d)]
    leaves += [leaf("core", "attention", h, w, w, bias=False), leaf("far", "scores", h, w, keys=[2, 0, 1])]
    leaves += [matrix("o", d, d)]
    return raw | {
        "pieces": {"leaves": of_kind("attention", [*leaves, leaf("attention_sum", "sum", d)])},
        "layer": {"layer": {"parts": ["pieces", "feed_forward"]}},
        "feed_forward": c.mlp("d_inner", act_names=("ff_activation",)),
        "norm": c.layer_norm("layer_norm_eps", eps=1e-12, place="post"),
        "positions": {"form": "none"},
        "around": [leaf("mask", "held", d, kind="embedding")],
        "head": _xlnet_head(c),
    }


def _xlnet_head(c: Config) -> Raw:
    """The heads of XLNet: a language model's with a bias, or classes read off one position through a layer."""
    form = c.head_of("lm", "none", "sequence", "token", "choice", "question")
    if form == "lm":
        tied = c.flag("tie_word_embeddings", default=True)
        return {"form": "masked-lm", "plain": True, "tied": tied, "bias": True}
    c.ignore("tie_word_embeddings")
    if form == "none":
        return {"form": "none"}
    c.check_simple_answers(form)
    act = c.summary_activation("tanh") if form in ("sequence", "choice") else None
    return c.classifier(form) | ({"transform": act} if act else {})


def mobilebert(c: Config) -> Raw:
    """BERT whose layers work at a narrow width between a matrix down and one up, with several feed-forwards."""
    c.require_single_stack()
    raw: Raw = {"kind": "encoder", "d_model": c.size("hidden_size"), "n_layers": c.layers("num_hidden_layers")}
    rows = {"vocab_size": c.size("vocab_size")}
    c.padding_within(rows)
    d, v, wide = raw["d_model"], rows["vocab_size"], c.size("intermediate_size")
    narrow = c.flag("use_bottleneck", default=True)
    t = c.size("intra_bottleneck_size", default=128) if narrow else d
    c.require_value(t, "true_hidden_size", why="it is what the class derives")
    if narrow:
        c.require_value(True, "key_query_shared_bottleneck", why="queries and keys of the model's width are not read")
    heads, act = c.size("num_attention_heads", default=4), c.activation("hidden_act", default="relu")
    c.divides(heads, t, "num_attention_heads", "the narrow width")
    form = c.text("normalization_type", default="no_norm")
    if form not in ("no_norm", "layer_norm"):
        c.fault("normalization_type", form, "'no_norm' or 'layer_norm'")

    def norm_leaves(name: str, width: int) -> Leaves:
        if form == "layer_norm":
            return [leaf(name, "layer_norm", width, kind="norm")]
        return [
            leaf(f"{name}_scale", "scale", width, kind="norm"),
            leaf(f"{name}_shift", "shift", width, kind="norm"),
        ]

    def ffn(name: str) -> Leaves:
        up = leaf(f"{name}_up", "linear", t, wide), leaf(f"{name}_activation", act, wide)
        leaves = [
            *up,
            leaf(f"{name}_down", "linear", wide, t),
            *norm_leaves(f"{name}_norm", t),
            leaf(f"{name}_sum", "sum", t),
        ]
        return of_kind("feed_forward", leaves)

    layer: Leaves = []
    if narrow:
        for name in ("input", "attention_input"):
            layer += [leaf(name, "linear", d, t), *norm_leaves(f"{name}_norm", t)]
    layer += [leaf(name, "linear", d if name == "v" else t, t, kind="attention") for name in "qkv"]
    width = max(1, t // heads)
    layer += [leaf("core", "attention", heads, width, width, kind="attention", bias=False)]
    layer += [leaf("o", "linear", t, t, kind="attention")]
    layer += [*norm_leaves("attention_norm", t), leaf("attention_sum", "sum", t)]
    for i in range(c.size("num_feedforward_networks", default=4)):
        layer += ffn(f"feed_forward{i + 1}")
    if narrow:
        layer += [leaf("output", "linear", t, d), *norm_leaves("output_norm", d), leaf("output_sum", "sum", d)]
    inner = c.size("embedding_size", default=128)
    width_in = 3 * inner if c.flag("trigram_input", default=True) else inner
    around = [leaf("tokens", "table", v, inner, kind="embedding")]
    if width_in != d or width_in != inner:
        around.append(leaf("projection", "linear", width_in, d, kind="embedding"))
    for name, number in (("positions", c.size("max_position_embeddings", default=512)),
                         ("types", c.size("type_vocab_size", default=2))):  # fmt: skip
        around.append(leaf(name, "table", number, d, kind="embedding", bias=True))
    around += norm_leaves("embedding_norm", d)
    head_leaves, head = _mobilebert_head(c, raw, v, inner)
    return leaf_stack(raw | {"around": around + head_leaves, "head": head}, {"layer": layer}, [])


def _mobilebert_head(c: Config, raw: Raw, rows: int, inner: int) -> tuple[Leaves, Raw]:
    """MobileBERT's heads: the masked language model's multiplies by the token table and by a matrix beside it."""
    d, tasks = raw["d_model"], ("sequence", "token", "question", "choice", "pretraining", "pairs")
    form = c.head_of("masked-lm", "none", *tasks)
    leaves: Leaves = []
    if form in ("masked-lm", "pretraining"):
        c.require_value(True, "tie_word_embeddings", why="the head multiplies by the token table")
        if inner >= d:
            c.fault("embedding_size", inner, f"less than hidden_size = {d:,}")
        act = c.activation("hidden_act", default="relu")
        leaves = [
            leaf("transform", "linear", d, d),
            leaf("transform_activation", act, d),
            leaf("transform_norm", "layer_norm", d),
            leaf("scores", "tied", inner, rows),
            leaf("more_scores", "linear", max(1, d - inner), rows),
        ]
    pooled = c.flag("classifier_activation", default=True)  # else the first position as it is
    head = {"form": "none", "pooler": pooled and form in ("none", "pretraining")}
    if form in ("pretraining", "pairs", "sequence", "choice"):
        classes = 1 if form == "choice" else c.labels() if form == "sequence" else 2
        once = {"at": [0, 1, 1]}
        if pooled and form != "pretraining":
            leaves += [leaf("pooler", "linear", d, d, **once), leaf("pooler_activation", "tanh", d, **once)]
        leaves.append(leaf("classifier", "linear", d, classes, **once))
    elif form in ("token", "question"):
        leaves.append(leaf("classifier", "linear", d, c.labels()))
    return of_kind("head", leaves), head
