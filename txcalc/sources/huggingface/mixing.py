"""BERT's and T5's kin whose layers mix tokens otherwise: near ones alone, groups, Fourier transforms, convolutions."""

from __future__ import annotations

from txcalc.sources.huggingface.config import Config, Raw, layered, piece
from txcalc.sources.huggingface.encoder import bert_like
from txcalc.sources.huggingface.seq2seq import bart_like, t5
from txcalc.sources.spec import Wrong, size


def squeezebert(c: Config) -> Raw:
    """BERT whose linear layers are convolutions of one tap, in groups; its pooler always runs."""
    raw = bert_like(c)
    if c.size("embedding_size", default=768) != raw["d_model"]:
        c.fault("embedding_size", c.data.get("embedding_size", 768), f"hidden_size = {raw['d_model']:,}")
    of_qkv = [c.size(f"{letter}_groups", default=4) for letter in "qkv"]
    raw["attention"] |= _in_groups([*of_qkv, c.size("post_attention_groups", default=1)])
    raw["feed_forward"] |= _in_groups([c.size(f"{name}_groups", default=4) for name in ("intermediate", "output")])
    raw["head"]["pooler"] = True
    return raw


def big_bird(c: Config) -> Raw:
    """BERT that attends in blocks; its classifier has a layer with its own activation."""
    act = c.activation("hidden_act", default="gelu_new")
    raw = bert_like(c, rows=4096, act="gelu_new", deciding=act)
    raw["attention"]["bias"] = ["o"]
    if c.flag("use_bias", default=True):
        raw["attention"]["bias"] = True
    raw["attention"] |= c.blocks()
    if c.named("ForQuestionAnswering"):  # through one more feed-forward
        d, wide = raw["d_model"], raw["feed_forward"]["d_ff"]
        layer = [piece("up", "linear", d, wide), piece("up_activation", act, wide), piece("down", "linear", wide, d)]
        layer += [piece("answer_sum", "sum", d), piece("answer_norm", "layer_norm", d)]
        raw["around"] = [one | {"kind": "head"} for one in layer]
    elif raw["head"]["form"] != "none":
        raw["head"]["pooler"] = True
    return raw


def fnet(c: Config) -> Raw:
    """BERT with a Fourier transform for attention, a projection after the embedding's norm; its pooler always runs."""
    raw = bert_like(c, n_heads=(), types=4, act="gelu_new")
    raw["embedding"]["rank"] = raw["d_model"]
    raw["head"]["pooler"] = True
    if raw["head"]["form"] == "masked-lm":
        raw["head"]["rank"] = raw["d_model"]
    c.note("the Fourier transforms themselves are not among the FLOPs: they are no matrix products")
    return raw | {"layer": {"layer": {"parts": ["fourier", "feed_forward"]}}}


def convbert(c: Config) -> Raw:
    """ELECTRA with as many heads of attention, a fraction of those said, as of convolutions that positions make."""
    act, narrow = c.activation("hidden_act", default="gelu"), ("embedding_size", 768)
    raw = bert_like(c, narrow=narrow, pooler=False, deciding=act, choosing=c.summary(None, False))
    said, ratio = c.size("num_attention_heads"), c.size("head_ratio", default=2)
    heads = max(1, said // ratio)
    width = raw["d_model"] // heads // 2
    if 2 * heads * width != raw["d_model"]:
        c.fault("hidden_size", raw["d_model"], f"a multiple of 2·{heads}, twice the heads of attention that are left")
    taps = c.size("conv_kernel_size", default=9)
    if taps % 2 == 0:
        c.fault("conv_kernel_size", taps, "an odd number", "its output would be longer")
    biases = raw.pop("attention")["bias"]
    raw["span_attention"] = {"n_heads": heads, "d_head": max(1, width), "taps": taps, "bias": biases}
    raw["feed_forward"] |= _in_groups([c.size("num_groups", default=1)] * 2)
    if raw["head"]["form"] == "masked-lm":
        raw["head"]["activation"] = "gelu"
    return raw


def nystromformer(c: Config) -> Raw:
    """BERT whose softmax is over landmarks, the means of segments of positions, beside a convolution over values."""
    act = c.activation("hidden_act", default="gelu_new")
    raw = bert_like(c, rows=510, act="gelu_new", pooler=False, deciding=act, choosing="relu", eps=1e-5)
    raw["positions"]["rows"] += 2
    marks, length = c.size("num_landmarks", default=64), c.size("segment_means_seq_len", default=64)
    taps = c.size("conv_kernel_size", default=65, null=0)
    raw = _convolved(raw, taps)
    if marks == length:
        return raw
    c.divides(marks, length, "num_landmarks", "segment_means_seq_len")
    c.note(f"its landmarks are means of a text of {length:,} positions: at other lengths its code does not run")
    h, w = raw["attention"]["n_heads"], max(1, raw["d_model"] // raw["attention"]["n_heads"])
    here = {"at": [0, marks, 1]}
    return _with_pieces(
        raw,
        piece("queries", "product", h, w, marks, least=length), piece("landmarks", "product", h, w, marks, **here),
        piece("keys", "product", h, w, marks), piece("inverse", "product", h, marks, marks, runs=24, **here),
        piece("scores", "product", h, marks, marks), piece("values", "product", h, marks, w),
        piece("core", "product", h, marks, w),
    )  # fmt: skip


def yoso(c: Config) -> Raw:
    """BERT whose softmax is a function of angles, of which hashes are samples, beside a convolution over values."""
    act = c.activation("hidden_act", default="gelu")
    raw = bert_like(c, rows=4096, types=1, pooler=False, deciding=act, choosing="relu")
    raw["positions"]["rows"] += 2
    raw = _convolved(raw, c.size("conv_window", default=None))
    if c.flag("use_expectation", default=True):
        return raw
    c.note("sums of hash tables are no products: they are not among the FLOPs")
    return _with_pieces(raw)


def mra(c: Config) -> Raw:
    """BERT whose scores are those of blocks' means, and exact for a number of blocks."""
    act = c.activation("hidden_act", default="gelu")
    raw = bert_like(c, types=1, pooler=False, deciding=act, choosing="relu", eps=1e-5)
    rows, form = raw["positions"]["rows"], c.text("approx_mode", default="full")
    raw["positions"]["rows"] += 2
    if form not in ("full", "sparse"):
        c.fault("approx_mode", form, "'full' or 'sparse'")
    number = min(rows // 32 * c.size("block_per_row", default=4), (rows // 32) ** 2)
    c.note(f"{number:,} blocks of 32 by 32 scores, as many as its code takes of a text of {rows:,} tokens")
    h, w = raw["attention"]["n_heads"], max(32, raw["d_model"] // raw["attention"]["n_heads"])
    means = piece("means", "attention", h, w, w if form == "full" else 1, at=[1, 0, 32])
    exact = piece("blocks", "product", h, w, 32 * 32, runs=2, at=[0, max(1, number), 1])
    return _with_pieces(raw, means, exact)


def _convolved(raw: Raw, taps: int | None) -> Raw:
    """With a convolution over the positions of each head's values in every layer."""
    if not taps:
        return raw
    h, n = raw["attention"]["n_heads"], raw["n_layers"]
    at = {"at": [max(1, raw["d_model"] // h), 1 - taps % 2, 1], "times": n, "kind": "attention"}
    return raw | {"around": [piece("taps", "convolution", h, h, taps, 1, groups=h, bias=False, **at)]}


def _with_pieces(raw: Raw, *core: Raw) -> Raw:
    """BERT's layers with another core between the matrices of queries, keys and values and that of results."""
    d = raw["d_model"]
    leaves = [piece(name, "linear", d, d) for name in "qkv"] + [*core, piece("o", "linear", d, d)]
    leaves = [{"kind": "attention"} | one for one in [*leaves, piece("attention_sum", "sum", d)]]
    raw = {key: value for key, value in raw.items() if key != "attention"}
    return raw | {"layer": {"layer": {"parts": ["pieces", "feed_forward"], "pieces": {"leaves": leaves}}}}


def _in_groups(groups: list[int]) -> Raw:
    return {"groups": groups} if any(number != 1 for number in groups) else {}


def _even(value: object) -> int:
    if type(size(value)) is not int or value % 2:  # type: ignore[operator]
        raise Wrong("an even number above 0, or a list of them, one per layer")
    return value  # type: ignore[return-value]


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
    raw = c.held(raw, 3 * n * d * (d + 1), what, f"are held and not run; {filled}")
    tables = {f"{width}": {"attention": {"window": width // 2 + 1}} for width in windows}
    return layered(raw, ([f"{width}" for width in windows], tables))


def longformer(c: Config) -> Raw:
    """RoBERTa with windows."""
    return _windows(c, bert_like(c, deciding="tanh"))


def led(c: Config) -> Raw:
    """BART whose encoder has windows."""
    raw = bart_like(c, "post", 0, 0, True, positions="sinusoidal", deciding=3)
    rows = {half: c.size(f"max_{half}_position_embeddings", default=most) for half, most in ROWS.items()}
    for half, number in rows.items():
        raw[half]["positions"] = {"form": "learned", "rows": number}
    raw.pop("positions")
    raw["encoder"] = _windows(c, raw["encoder"] | {"d_model": raw["d_model"]})
    raw["encoder"].pop("d_model")
    return raw


ROWS = {"encoder": 16384, "decoder": 1024}


def longt5(c: Config) -> Raw:
    """T5 whose encoder attends to `local_radius` positions to either side."""
    if c.text("encoder_attention_type", default="local") != "local":
        c.fault(
            "encoder_attention_type",
            c.data["encoder_attention_type"],
            "'local'",
            "global tokens that sum up blocks are not supported yet",
        )
    window = c.size("local_radius", default=127) + 1
    c.note(f"its code fills a text up to whole blocks of {window:,} and multiplies three blocks for each")
    raw = t5(c, deciding=0)
    if raw["kind"] == "encoder":
        raw["attention"] = {**raw["attention"], "window": window}
    else:
        raw["encoder"]["attention"] = {**raw["attention"], "window": window}
    return raw
