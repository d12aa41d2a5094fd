"""XLNet, whose layers are listed leaf by leaf, and two encoder-decoders that transcribe speech."""

from __future__ import annotations

from txcalc.sources.huggingface.config import Config, Raw, piece
from txcalc.sources.huggingface.leaf_list import Pieces
from txcalc.sources.huggingface.seq2seq import bart_like, joined
from txcalc.sources.spec import size


def of(kind: str, *pieces: Raw) -> Pieces:
    """Pieces that count as one kind where they have none of their own."""
    return [{"kind": kind} | one for one in pieces]


def xlnet(c: Config) -> Raw:
    """Post-norm layers whose queries meet keys and, through a matrix of their own, distances; read in one stream."""
    c.alone()
    c.summary("tanh")
    d, n = c.size("d_model", "hidden_size"), c.layers("n_layer", "num_hidden_layers")
    raw: Raw = {"kind": "encoder", "d_model": d, "n_layers": n, "vocab_size": c.size("vocab_size", "n_token")}
    h = c.size("n_head", "num_attention_heads")
    c.divides(h, d, "n_head", "d_model")
    w = max(1, d // h)
    c.only(w, "d_head", why="its class takes d_model / n_head")
    leaves = [piece(name, "linear", d, d, bias=False) for name in "qkv"]
    leaves += [piece("distances", "linear", d, d, bias=False, at=[2, 0, 1]), piece("biases", "held", 5 * d)]
    leaves += [piece("core", "attention", h, w, w, bias=False), piece("far", "scores", h, w, keys=[2, 0, 1])]
    leaves += [piece("o", "linear", d, d, bias=False)]
    return raw | {
        "pieces": {"leaves": of("attention", *leaves, piece("attention_sum", "sum", d))},
        "layer": {"layer": {"parts": ["pieces", "feed_forward"]}},
        "feed_forward": c.plain("d_inner", act_names=("ff_activation",)),
        "norm": c.layer_norm("layer_norm_eps", eps=1e-12, place="post"),
        "positions": {"form": "none"},
        "around": [piece("mask", "held", d, kind="embedding")],
        "head": _answers_of_xlnet(c),
    }


def _answers_of_xlnet(c: Config) -> Raw:
    """The heads of XLNet: a language model's with a bias, or classes read off one position through a layer."""
    form = c.head_of("lm", "none", "sequence", "token", "choice", "question")
    if form == "lm":
        tied = c.flag("tie_word_embeddings", default=True)
        return {"form": "masked-lm", "plain": True, "tied": tied, "bias": True}
    c.ignore("tie_word_embeddings")
    if form == "none":
        return {"form": "none"}
    if form == "question" and not c.named("Simple"):
        c.fault("architectures[0]", c.data["architectures"][0], "…ForQuestionAnsweringSimple", "its search of several "
                "answers is not read")  # fmt: skip
    act = c.summary("tanh") if form in ("sequence", "choice") else None
    return c.classifier(form) | ({"transform": act} if act else {})


def speech_to_text(c: Config) -> Raw:
    """BART's halves; the encoder reads what gated convolutions, each of which halves the positions, make of a sound's
    bands, and adds sinusoids."""
    raw = bart_like(c, "pre", 1024, 0, False, "sinusoidal", act="relu")
    d, mid, n = raw["d_model"], c.size("conv_channels", default=1024), c.size("num_conv_layers", default=2)
    taps = c.items("conv_kernel_sizes", of=size, length=None, default=[5, 5])
    bands = c.size("input_feat_per_channel", default=80) * c.size("input_channels", default=1)
    c.only(n, "num_conv_layers", why="it is the length of conv_kernel_sizes")
    if len(taps) != n or n > 20:
        c.fault("conv_kernel_sizes", taps, f"a list of num_conv_layers = {n:,} lengths, at most 20")
        return raw
    c.multiple("conv_channels", mid, 2)
    around, read = list[Raw](), bands
    for i, number in enumerate(taps):
        made, at = (2 * d if i == n - 1 else mid), {"at": [2 ** (n - 1 - i), 0, 1]}
        around.append(piece(f"conv{i + 1}", "convolution", read, made, number, 2, **at))
        read = max(1, made // 2)
        around.append(piece(f"conv{i + 1}_gate", "sigmoid", read, **at))
    raw["encoder"]["around"] = around
    c.note(f"--source counts the encoder's positions, one for {2**n} frames of sound")
    return raw


def moonshine(c: Config) -> Raw:
    """Three convolutions over samples; halves with rotary positions and norms without a bias, the decoder's gated."""
    joined(c)
    c.flag("is_encoder_decoder", default=True)
    c.count("decoder_start_token_id", default=1)
    raw: Raw = {"kind": "encoder-decoder", "d_model": c.size("hidden_size"), "vocab_size": c.size("vocab_size")}
    c.padding_within(raw)
    d, ff, bias = raw["d_model"], c.size("intermediate_size"), c.flag("attention_bias", default=False)
    halves: dict[str, Raw] = {}
    for half, usual in (("encoder", "gelu"), ("decoder", "silu")):
        keys = ("num_attention_heads", "num_key_value_heads", "num_hidden_layers", "hidden_act")
        heads, groups, layers, acts = ((f"{half}_{key}", *([key] if half == "decoder" else [])) for key in keys)
        attention = c.heads(raw, names=heads, kv_names=groups, width_names=())
        act = c.activation(*acts, default=usual)
        halves[half] = {
            "n_layers": c.layers(*layers),
            "attention": attention | {"bias": ["q", "k", "v"] if bias else False},
            "feed_forward": {"d_ff": ff, "gated": half == "decoder", "activation": act, "bias": True},
            "positions": c.rotary(attention["d_head"], partial=0.9) | {"interleaved": True},
        }
    several = halves["encoder"]["attention"]["n_heads"]
    for half in halves:
        for key in ("num_attention_heads", "num_key_value_heads"):
            c.only(several, f"{half}_{key}", why="transformers' class has as many everywhere")
    if c.size("pad_head_dim_to_multiple_of", default=None, null=None):
        c.note("pad_head_dim_to_multiple_of fills heads up with zeros for some kernels, which are not counted")
    around = [
        piece("conv1", "convolution", 1, d, 127, 64, bias=False, at=[6, 7, 1]),
        piece("conv1_tanh", "tanh", d, at=[6, 7, 1]),
        piece("conv1_norm", "layer_norm", d, kind="norm", at=[6, 7, 1]),
        piece("conv2", "convolution", d, 2 * d, 7, 3, at=[2, 1, 1]),
        piece("conv2_gelu", "gelu", 2 * d, at=[2, 1, 1]),
        piece("conv3", "convolution", 2 * d, d, 3, 2),
        piece("conv3_gelu", "gelu", d),
    ]
    halves["encoder"]["around"] = around
    c.note("--source counts the encoder's positions, one for 384 samples of sound")
    form = c.head_of("lm", "none")
    head: Raw = {"form": "none"} if form == "none" else {"tied": c.flag("tie_word_embeddings", default=True)}
    return raw | {"norm": {"form": "layer", "bias": False}, "head": head, **halves}
