"""BERT's and T5's kin whose layers attend in blocks or to near tokens alone."""

from __future__ import annotations

from typing import Any

from txcalc.sources.huggingface.config import Config, Raw, layered
from txcalc.sources.huggingface.encoder import bert_like
from txcalc.sources.huggingface.leaf_list import leaf, of_kind
from txcalc.sources.huggingface.seq2seq import bart_like, t5
from txcalc.sources.spec import Wrong, size


def big_bird(c: Config) -> Raw:
    """BERT that attends in blocks; its classifier has a layer with its own activation."""
    act = c.activation("hidden_act", default="gelu_new")
    raw = bert_like(c, rows=4096, act="gelu_new", deciding=act)
    raw["attention"]["bias"] = ["o"]
    if c.flag("use_bias", default=True):
        raw["attention"]["bias"] = True
    raw["attention"] |= c.sparse_blocks()
    if c.class_ends("ForQuestionAnswering"):  # through one more feed-forward
        d, wide = raw["d_model"], raw["feed_forward"]["d_ff"]
        layer = [leaf("up", "linear", d, wide), leaf("up_activation", act, wide), leaf("down", "linear", wide, d)]
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
    """`attention_window`, half of it to either side, the same in all layers or one per layer; and a second q, k and v,
    for positions that attend to all others."""
    n, d = raw["n_layers"], raw["d_model"]
    if isinstance(c.data.get("attention_window"), list):
        windows = c.items("attention_window", of=_even, length=n, default=[512] * n)
    else:
        width = c.size("attention_window", default=512)
        if width % 2:
            c.fault("attention_window", width, "an even number above 0, or a list of them, one per layer")
        windows = [width] * n
    what = "no position attends to all others: the projections for such ones"
    filled = f"its code fills a text up to whole windows of {max(windows):,} and multiplies windows that overlap"
    raw = c.with_idle(raw, 3 * n * d * (d + 1), what, f"are held and not run; {filled}")
    tables = {f"{width}": {"attention": {"window": width // 2 + 1}} for width in windows}
    return layered(raw, ([f"{width}" for width in windows], tables))


def longformer(c: Config) -> Raw:
    """RoBERTa with windows."""
    return _windows(c, bert_like(c, deciding="tanh"))


def led(c: Config) -> Raw:
    """BART whose encoder has windows."""
    raw = bart_like(c, "post", 0, 0, True, positions="sinusoidal", deciding=3)
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
        why = "global tokens that sum up blocks are not supported yet"
        c.fault("encoder_attention_type", form, "'local'", why)
    window = c.size("local_radius", default=127) + 1
    c.note(f"its code fills a text up to whole blocks of {window:,} and multiplies three blocks for each")
    raw = t5(c, deciding=0)
    if raw["kind"] == "encoder":
        raw["attention"] = {**raw["attention"], "window": window}
    else:
        raw["encoder"]["attention"] = {**raw["attention"], "window": window}
    return raw
