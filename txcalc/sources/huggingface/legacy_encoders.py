"""MobileBERT, and encoders with block-sparse or window attention."""

from __future__ import annotations

from typing import Any

from txcalc.sources.huggingface.config import Config, Raw, with_kinds
from txcalc.sources.huggingface.encoder import bert_like
from txcalc.sources.huggingface.leaf_list import Leaves, leaf, leaf_stack, of_kind
from txcalc.sources.huggingface.seq2seq import bart_like, t5
from txcalc.sources.spec import Wrong, size


def mobilebert(c: Config) -> Raw:
    """BERT with bottleneck layers: a matrix down, attention and several feed-forwards, and a matrix up."""
    c.require_single_stack()
    raw: Raw = {"kind": "encoder", "d_model": c.size("hidden_size"), "n_layers": c.layers("num_hidden_layers")}
    rows = {"vocab_size": c.size("vocab_size")}
    c.padding_within(rows)
    d, v, d_ff = raw["d_model"], rows["vocab_size"], c.size("intermediate_size")
    bottleneck = c.flag("use_bottleneck", default=True)
    t = c.size("intra_bottleneck_size", default=128) if bottleneck else d
    c.require_value(t, "true_hidden_size", why="the class computes it")
    if bottleneck:
        c.require_value(
            True, "key_query_shared_bottleneck", why="only queries and keys of the bottleneck are supported"
        )
    heads, act = c.size("num_attention_heads", default=4), c.activation("hidden_act", default="relu")
    c.divides(heads, t, "num_attention_heads", "the bottleneck's width")
    form = c.text("normalization_type", default="no_norm")
    if form not in ("no_norm", "layer_norm"):
        c.fault("normalization_type", form, "'no_norm' or 'layer_norm'")

    def norm_leaves(name: str, width: int) -> Leaves:
        if form == "layer_norm":
            return [leaf(name, "layer_norm", width, kind="norm")]
        return [leaf(f"{name}_{form}", form, width, kind="norm") for form in ("scale", "shift")]

    def ffn(name: str) -> Leaves:
        leaves = [leaf(f"{name}_up", "linear", t, d_ff), leaf(f"{name}_activation", act, d_ff)]
        leaves += [leaf(f"{name}_down", "linear", d_ff, t), *norm_leaves(f"{name}_norm", t)]
        return of_kind("feed_forward", [*leaves, leaf(f"{name}_sum", "sum", t)])

    layer: Leaves = []
    if bottleneck:
        for name in ("input", "attention_input"):
            layer += [leaf(name, "linear", d, t), *norm_leaves(f"{name}_norm", t)]
    layer += [leaf(name, "linear", d if name == "v" else t, t, kind="attention") for name in "qkv"]
    width = max(1, t // heads)
    layer += [leaf("core", "attention", heads, width, width, kind="attention", bias=False)]
    layer += [leaf("o", "linear", t, t, kind="attention")]
    layer += [*norm_leaves("attention_norm", t), leaf("attention_sum", "sum", t)]
    for i in range(c.size("num_feedforward_networks", default=4)):
        layer += ffn(f"feed_forward{i + 1}")
    if bottleneck:
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
    """MobileBERT's heads; the masked-LM head is the tied embedding and a further matrix."""
    d, tasks = raw["d_model"], ("sequence", "token", "question", "choice", "pretraining", "pairs")
    form = c.head_of("masked-lm", "none", *tasks)
    leaves: Leaves = []
    if form in ("masked-lm", "pretraining"):
        c.require_value(True, "tie_word_embeddings", why="the head uses the embedding")
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
    pooler = c.flag("classifier_activation", default=True)  # else the first position's state
    head = {"form": "none", "pooler": pooler and form in ("none", "pretraining")}
    if form in ("pretraining", "pairs", "sequence", "choice"):
        classes = 1 if form == "choice" else c.labels() if form == "sequence" else 2
        first = {"at": [0, 1, 1]}
        if pooler and form != "pretraining":
            leaves += [leaf("pooler", "linear", d, d, **first), leaf("pooler_activation", "tanh", d, **first)]
        leaves.append(leaf("classifier", "linear", d, classes, **first))
    elif form in ("token", "question"):
        leaves.append(leaf("classifier", "linear", d, c.labels()))
    return of_kind("head", leaves), head


def big_bird(c: Config) -> Raw:
    """BERT with block-sparse attention; the layer before its classifier has the model's activation."""
    act = c.activation("hidden_act", default="gelu_new")
    raw = bert_like(c, rows=4096, act="gelu_new", sequence_layer=act)
    raw["attention"]["bias"] = ["o"]
    if c.flag("use_bias", default=True):
        raw["attention"]["bias"] = True
    raw["attention"] |= c.sparse_blocks()
    if c.class_ends("ForQuestionAnswering"):  # its head has a feed-forward
        d, d_ff = raw["d_model"], raw["feed_forward"]["d_ff"]
        layer = [leaf("up", "linear", d, d_ff), leaf("up_activation", act, d_ff), leaf("down", "linear", d_ff, d)]
        layer += [leaf("answer_sum", "sum", d), leaf("answer_norm", "layer_norm", d)]
        raw["around"] = of_kind("head", layer)
    elif raw["head"]["form"] != "none":
        raw["head"]["pooler"] = True
    return raw


def _even(value: Any) -> int:
    if type(size(value)) is not int or value % 2:
        raise Wrong("an even number above 0, or a list of them, one per layer")
    return int(value)


def _windows(c: Config, raw: Raw) -> Raw:
    """Windows of `attention_window`, half of it to either side, equal in all layers or one per layer; and separate q, k
    and v for global positions, which do not run."""
    n, d = raw["n_layers"], raw["d_model"]
    if isinstance(c.data.get("attention_window"), list):
        windows = c.items("attention_window", of=_even, length=n, default=[512] * n)
    else:
        width = c.size("attention_window", default=512)
        if width % 2:
            c.fault("attention_window", width, "an even number above 0, or a list of them, one per layer")
        windows = [width] * n
    padding = f"its code pads a text to whole windows of {max(windows):,} and computes overlapping windows"
    status = f"are counted but not run; {padding}"
    raw = c.with_idle(raw, 3 * n * d * (d + 1), "the projections of global positions", status)
    tables = {f"{width}": {"attention": {"window": width // 2 + 1}} for width in windows}
    return with_kinds(raw, ([f"{width}" for width in windows], tables))


def longformer(c: Config) -> Raw:
    """RoBERTa with windows."""
    return _windows(c, bert_like(c, sequence_layer="tanh"))


def led(c: Config) -> Raw:
    """BART whose encoder has windows."""
    raw = bart_like(c, "post", 0, 0, True, positions="sinusoidal", classes=3)
    rows = {half: c.size(f"max_{half}_position_embeddings", default=default) for half, default in ROWS.items()}
    for half, number in rows.items():
        raw[half]["positions"] = {"form": "learned", "rows": number}
    raw.pop("positions")
    raw["encoder"] = _windows(c, raw["encoder"] | {"d_model": raw["d_model"]})
    raw["encoder"].pop("d_model")
    return raw


ROWS = {"encoder": 16384, "decoder": 1024}


def longt5(c: Config) -> Raw:
    """T5 whose encoder attends to `local_radius` positions to either side."""
    if (form := c.text("encoder_attention_type", default="local")) != "local":
        why = "transient global tokens are not supported yet"
        c.fault("encoder_attention_type", form, "'local'", why)
    window = c.size("local_radius", default=127) + 1
    c.note(f"its code pads a text to whole blocks of {window:,} and computes three blocks for each")
    raw = t5(c, classes=0)
    if raw["kind"] == "encoder":
        raw["attention"] = {**raw["attention"], "window": window}
    else:
        raw["encoder"]["attention"] = {**raw["attention"], "window": window}
    return raw
