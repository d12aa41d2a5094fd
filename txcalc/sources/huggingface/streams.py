"""Families whose positions are no tokens: distances beside them, streams of further tokens, fewer in each block.

Their layers are listed leaf by leaf (`parts.mixers.pieces`).
"""

from __future__ import annotations

import math
from typing import Any

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import Config, Raw, piece
from txcalc.sources.huggingface.keys import any_of
from txcalc.sources.huggingface.leaves import Pieces, listed, preceded
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


def prophetnet(c: Config) -> Raw:
    """Post-norm halves; the decoder runs a stream of its tokens and one for each of the next `ngram`, which see both
    themselves and the first."""
    joined(c, crossing=True)
    d, v = c.size("hidden_size", "d_model"), c.size("vocab_size")
    c.padding_within({"vocab_size": v})
    rows, act = c.size("max_position_embeddings", default=512), c.activation("activation_function", default="gelu")
    g, buckets = c.size("ngram", default=2), c.size("num_buckets", default=32)
    halves: dict[str, Raw] = {}
    for half in ("encoder", "decoder"):
        h, wide = c.size(f"num_{half}_attention_heads"), c.size(f"{half}_ffn_dim")
        c.divides(h, d, f"num_{half}_attention_heads", "hidden_size")
        attention = {"n_heads": h, "d_head": max(1, d // h), "bias": True}
        channel = {"d_ff": wide, "activation": act, "bias": True}
        halves[half] = {"n_layers": c.layers(f"num_{half}_layers"), "attention": attention, "feed_forward": channel}
    h, wide = halves["decoder"]["attention"]["n_heads"], halves["decoder"]["feed_forward"]["d_ff"]
    w, on = max(1, d // h), {"at": [1 + g, 0, 1]}
    own = [piece(name, "linear", d, d, **on) for name in "qkv"] + [piece("distances", "linear", d, buckets * h, **on)]
    own += [
        piece("core", "causal", h, w, w, bias=False),
        piece("next_core", "reading", h, w, w, bias=False, keys=[1, 0, 1], runs=g),
        piece("own_core", "attention", h, w, w, bias=False, runs=g),
    ]
    own += [piece("o", "linear", d, d, **on), piece("attention_sum", "sum", d, **on)]
    own += [piece("attention_norm", "layer_norm", d, kind="norm", **on), piece("cross_q", "linear", d, d, **on)]
    own += [piece(f"cross_{name}", "linear", d, d, at="source") for name in "kv"]
    own += [piece("cross_core", "crossed", h, w, w, **on), piece("cross_o", "linear", d, d, **on)]
    own += [piece("cross_sum", "sum", d, **on), piece("cross_norm", "layer_norm", d, kind="norm", **on)]
    leaves = of("attention", *own) + fed(d, wide, act, "layer_norm", **on)
    around = [piece("streams", "table", g, d, kind="embedding")]
    head: Raw = {"form": "none"}
    if c.head_of("lm", "none") == "lm":
        c.only(True, "tie_word_embeddings", why="its head is the token table")
        head = {"tied": True}
        if g > 1:
            around.append(piece("further_scores", "tied", d, v, at=[g - 1, 0, 1], kind="head"))
    halves["decoder"] |= {
        "layer": {"layer": {"parts": ["pieces"], "pieces": {"leaves": leaves}}},
        "norm": {"without": ["pieces"]}, "around": around, "head": head,
    }  # fmt: skip
    return {
        "kind": "encoder-decoder", "d_model": d, "vocab_size": v,
        "norm": {"form": "layer", "place": "post"}, "positions": {"form": "learned", "rows": rows},
        "embedding": {"norm": True}, **halves,
    }  # fmt: skip


def fed(d: int, wide: int, act: str, normed: str = "", **on: Any) -> Pieces:
    """A plain feed-forward with biases and its sum, before a norm where one is named."""
    made = [piece("up", "linear", d, wide, **on), piece("activation", act, wide, **on)]
    made += [piece("down", "linear", wide, d, **on), piece("feed_forward_sum", "sum", d, **on)]
    return of("feed_forward", *made, *([piece("feed_forward_norm", normed, d, kind="norm", **on)] * bool(normed)))


def pegasus_x(c: Config) -> Raw:
    """BART whose encoder attends within blocks, every other layer's half a block on, and to a few tokens of its own,
    which attend to all."""
    raw = bart_like(c, "pre", 16384, 0, False, "sinusoidal")
    g, block = c.size("num_global_tokens", default=32), c.size("block_size", default=512)
    if block % 2:
        c.fault("block_size", block, "an even number")
    for half in ("encoder", "decoder"):
        raw[half]["attention"]["bias"] = False
    staggered = c.flag("stagger_local_blocks", default=True)
    half = raw["encoder"]
    kinds = {"block": _near_and_few(raw["d_model"], half, g, block, 0)}
    order = ["block"] * half["n_layers"]
    if staggered and half["n_layers"] > 1:
        kinds["staggered"] = _near_and_few(raw["d_model"], half, g, block, block)
        order[1::2] = ["staggered"] * (half["n_layers"] // 2)
    half |= {"layer": {name: {"parts": ["pieces"], "pieces": {"leaves": leaves}} for name, leaves in kinds.items()}}
    half |= {"norm": {"without": ["pieces"]}} | ({"pattern": order} if len(kinds) > 1 else {})
    table = piece("globals", "table", g, raw["d_model"], kind="embedding", at=[0, g, 1])
    raw["encoder"] = {key: value for key, value in half.items() if key not in ("attention", "feed_forward")}
    raw["encoder"]["around"] = [table]
    return raw


def _near_and_few(d: int, half: Raw, g: int, block: int, more: int) -> Pieces:
    h, w = half["attention"]["n_heads"], half["attention"]["d_head"]
    wide, act = half["feed_forward"]["d_ff"], half["feed_forward"]["activation"]
    few: Raw = {"at": [0, g, 1]}
    filled: Raw = {"at": [1, 0, block], "runs": block}
    local: Raw = {"at": [1, more, block], "runs": block}
    made = [piece(name, "linear", d, d, bias=False, **local) for name in "qkvo"]
    made += [piece(f"few_{name}", "tied", d, d, **few) for name in "qkvo"]
    made += [piece("near", "product", h, w, block, at=local["at"], runs=2 * block)]
    made += [piece("with_few", "product", h, w, g, at=local["at"], runs=4 * block)]
    made += [piece("few", "product", h, w, g, at=few["at"], runs=2), piece("attention_sum", "sum", d, **filled)]
    norms = [piece("attention_norm", "layer_norm", d, **filled), piece("few_norm", "layer_norm", d, **few)]
    norms += [piece("feed_forward_norm", "layer_norm", d, **filled), piece("few_norm_again", "norm_again", d, **few)]
    again = [piece("few_up", "tied", d, wide, **few), piece("few_activation", act, wide, **few)]
    again += [piece("few_down", "tied", wide, d, **few), piece("few_sums", "sum", d, groups=2, **few)]
    return of("attention", *made) + of("norm", *norms) + fed(d, wide, act, **filled) + of("feed_forward", *again)


def funnel(c: Config) -> Raw:
    """Layers in blocks, of which each has half as many positions as the one before it, then a few with all of them."""
    c.alone()
    sizes = c.items("block_sizes", of=size, length=None, default=[4, 4, 4])
    if not sizes:
        c.fault("block_sizes", sizes, "a list of layers, a number for each block")
        sizes = [1]
    repeats = c.items("block_repeats", of=size, length=len(sizes), default=None) or [1] * len(sizes)
    d, v, wide = c.size("d_model", "hidden_size"), c.size("vocab_size"), c.size("d_inner")
    c.padding_within({"vocab_size": v})
    h, w = c.size("n_head", "num_attention_heads"), c.size("d_head", default=64)
    act, form = c.activation("hidden_act", default="gelu_new"), c.text("attention_type", default="relative_shift")
    if form not in ("relative_shift", "factorized"):
        c.fault("attention_type", form, "'relative_shift' or 'factorized'")
    queries_only = c.flag("pool_q_only", default=True)
    tasks = ("masked-lm", "none", "pretraining", "sequence", "token", "question", "choice")
    task = "base" if c.named("BaseModel") else c.head_of(*tasks)
    inner, factored = h * w, form == "factorized"
    # A first position that is kept apart, and a last one that is not cut off, make one more of a block's positions.
    apart, cut = c.flag("separate_cls", default=True), c.flag("truncate_seq", default=True)
    longer, most = apart and not cut, 2 ** max(0, len(sizes) - 2)
    least = 1 if len(sizes) == 1 else most + 2 if longer else 2 * most + 1 if apart else most + 1

    def of_block(block: int) -> list[int]:
        return [1, longer * (2**block - 1), 2**block]

    def layer(block: int, first: bool, several: int) -> Pieces:
        on: Raw = {"at": of_block(block), "runs": several, "least": least}
        made = [piece("q", "linear", d, inner, bias=False, **on), piece("biases", "held", 5 * inner)]
        made += [piece("segments", "product", h, w, 2, **on), piece("o", "linear", inner, d, **on)]
        distances = piece("distances", "linear", d, inner, bias=False, **on)
        if not factored:  # two for each query, whatever the batch
            distances |= {"runs": 2 * several, "shared": True}
            made.append(piece("far", "scores", h, w, keys=on["at"], **on | {"runs": 2 * several}))
        made.append(distances)
        wider = first and queries_only  # the first time a layer's keys are those of the block before
        reads = [(of_block(block - wider), 1)] * first + [(on["at"], several - first)]
        for i, (keys, times) in enumerate(one for one in reads if one[1]):
            again = "_again" * (i > 0)
            for name in "kv":
                made.append(piece(name + again, "tied" if again else "linear", d, inner, at=keys, runs=times))
            if wider and not again and not factored:
                made.append(piece("further", "tied", d, inner, at=keys, shared=True))
                made.append(piece("further_scores", "scores", h, w, at=on["at"], keys=keys))
            scores = w + 2 * d if factored else w
            made.append(piece("core" + again, "reading", h, scores, w, bias=False, at=on["at"], keys=keys, runs=times))
        made.append(piece("attention_sum", "sum", d, **on))
        norm = piece("attention_norm", "layer_norm", d, kind="norm", **on)
        return of("attention", *made, norm) + fed(d, wide, act, "layer_norm", **on)

    kinds: dict[str, Pieces] = {}
    order = list[str]()
    for block, number in enumerate(sizes):
        kinds[f"block{block}"] = layer(block, False, repeats[block])
        if block:
            kinds[f"pool{block}"] = layer(block, True, repeats[block])
        order += [f"pool{block}" if block else "block0"] + [f"block{block}"] * (number - 1)
    if task not in ("base", "sequence", "choice"):  # those have no decoder
        kinds["last"] = layer(0, False, 1)
        order += ["block0" if repeats[0] == 1 else "last"] * c.count("num_decoder_layers", default=2)
    if len(sizes) > 1:
        c.note(f"exact from {least:,} tokens on: fewer are not halved so often")
    around = [piece("tokens", "table", v, d, kind="embedding")]
    around.append(piece("embedding_norm", "layer_norm", d, kind="norm"))
    found, head = _answers_of_funnel(c, "none" if task == "base" else task, d, v, act)
    raw: Raw = {"kind": "encoder", "d_model": d, "n_layers": len(order), "around": around + found, "head": head}
    return listed(raw, {name: kinds[name] for name in dict.fromkeys(order)}, order)


def _answers_of_funnel(c: Config, task: str, d: int, v: int, act: str) -> tuple[Pieces, Raw]:
    if task == "masked-lm":
        c.only(True, "tie_word_embeddings", why="its head multiplies by the token table")
        return of("head", piece("scores", "tied", d, v), piece("scores_bias", "shift", v)), {"form": "none"}
    c.ignore("tie_word_embeddings")
    if task == "pretraining":
        layer = [piece("discriminator", "linear", d, d), piece("discriminator_activation", act, d)]
        return of("head", *layer, piece("replaced", "linear", d, 1)), {"form": "none"}
    if task == "none":
        return [], {"form": "none"}
    return [], c.classifier(task) | ({"transform": "tanh"} if task in ("sequence", "choice") else {})


def reformer(c: Config) -> Raw:
    """Two streams, of which layers add to one what they make of the other; positions meet those of their chunk and its
    neighbours, of the text or of it sorted by hashes; the head reads both."""
    c.ignore("is_decoder", "tie_word_embeddings")
    causal = c.data.get("is_decoder") is True
    if c.named("ReformerModelWithLMHead") and not causal:
        c.fault("is_decoder", c.data.get("is_decoder", ABSENT), "true, which ReformerModelWithLMHead asks for")
    d, v, rows = c.size("hidden_size"), c.size("vocab_size"), c.size("max_position_embeddings", default=4096)
    h, w = c.size("num_attention_heads", default=12), c.size("attention_head_size", default=64)
    wide, act = c.size("feed_forward_size"), c.activation("hidden_act", default="relu")
    order = c.items("attn_layers", of=any_of("local", "lsh"), length=None, default=["local", "lsh"] * 3)
    if not order:
        c.fault("attn_layers", order, "a list of 'local' and 'lsh'")
        order = ["local"]
    c.only(len(order), "num_hidden_layers", why="it is the length of attn_layers")
    hashes, buckets = c.size("num_hashes", default=1), c.data.get("num_buckets")
    c.ignore("num_buckets")
    if isinstance(buckets, list) and not all(type(number) is int and number > 0 for number in buckets):
        c.fault("num_buckets", buckets, "a whole number above 0, or a list of such")
        buckets = None
    lengths = {form: c.size(f"{form}_attn_chunk_length", default=64) for form in ("local", "lsh") if form in order}
    chunk = math.lcm(*lengths.values())
    on: Raw = {"at": [1, 0, chunk], "runs": chunk}
    layers: dict[str, Pieces] = {}
    for form, length in lengths.items():
        sides = [c.count(f"{form}_num_chunks_{side}", default=1 - i) for i, side in enumerate(("before", "after"))]
        several = {**on, "runs": chunk * (hashes if form == "lsh" else 1), "least": chunk + 1}
        made = [piece(name, "linear", d, h * w, bias=False, **on) for name in (("qk", "v") if form == "lsh" else "qkv")]
        if form == "lsh" and isinstance(buckets, int | list):
            turned = sum(buckets) if isinstance(buckets, list) else buckets
            made.append(piece("hashes", "product", h, w, max(1, turned // 2), **several))
        for name in ("scores", "values"):
            made.append(piece(name, "product", h, w, length * (1 + sum(sides)), **several))
        made += [piece("o", "linear", h * w, d, bias=False, **on), piece("attention_sum", "sum", d, **on)]
        norms = [piece(f"{name}_norm", "layer_norm", d, **on) for name in ("attention", "feed_forward")]
        if causal:  # of every token the layer's input and, of each head and hashing, the number of its bucket
            made.append(piece("states", "stored", d + (h * hashes if form == "lsh" else 0)))
        layers[form] = of("attention", *made) + of("norm", *norms) + fed(d, wide, act, **on)
    c.note(f"of a text longer than {chunk:,} tokens, filled up to whole chunks: a shorter one has fewer keys")
    if "lsh" in lengths and not isinstance(buckets, int | list):
        c.note("num_buckets follows from the length of the first text: the products that hash are not counted")
    if causal:
        c.note("a further token is counted as a whole chunk, of which keys and values are made of states again")
    around = [piece("tokens", "table", v, d, kind="embedding")]
    if c.flag("axial_pos_embds", default=True):
        shape = c.items("axial_pos_shape", of=size, length=None, default=[64, 64])
        widths = c.items("axial_pos_embds_dim", of=size, length=None, default=[64, 192])
        if len(shape) != len(widths) or sum(widths) != d:
            c.fault("axial_pos_embds_dim", widths, f"as many as axial_pos_shape, {d:,} together")
        held = sum(number * width for number, width in zip(shape, widths, strict=False))
        around.append(piece("positions", "held", held, kind="embedding"))
    else:
        c.ignore("axial_pos_shape", "axial_pos_embds_dim")
        around.append(piece("positions", "table", rows, d, kind="embedding", bias=True))
    around.append(piece("norm", "layer_norm", 2 * d, kind="norm"))
    task = c.head_of("lm", "none", "sequence", "question", *(["masked-lm"] if not causal else []))
    once = {"at": [0, 1, 1]}
    heads = {
        "lm": [piece("scores", "linear", 2 * d, v)],
        "sequence": [piece("transform", "linear", 2 * d, d, **once), piece("transform_activation", "tanh", d, **once),
                     piece("classifier", "linear", d, c.labels() if task == "sequence" else 2, **once)],
        "question": [piece("answers", "linear", 2 * d, 2)],
    }  # fmt: skip
    around += of("head", *heads.get("lm" if task == "masked-lm" else task, []))
    raw: Raw = {"kind": "decoder" if causal else "encoder", "d_model": d, "n_layers": len(order), "around": around}
    return listed(raw | {"head": {"form": "none"}}, layers, order)


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


def decision_transformer(c: Config) -> Raw:
    """GPT-2's layers over a return, a state and an action of each step, and matrices from them back to those."""
    c.head_of("none")
    c.only(False, "add_cross_attention", why="layers that read nothing else are read")
    raw: Raw = {
        "kind": "encoder",
        "d_model": c.size("hidden_size"),
        "n_layers": c.layers("n_layer", "num_hidden_layers"),
    }
    d, heads = raw["d_model"], c.size("n_head", "num_attention_heads", default=1)
    ff = c.size("n_inner", default=4 * d, null=4 * d)
    act = c.activation("activation_function", default="relu")
    told = {"return": 1, "state": c.size("state_dim", default=17), "action": c.size("act_dim", default=4)}
    steps, rows = c.size("max_ep_len", default=4096), c.size("n_positions", "max_position_embeddings", default=1024)
    idle, tanh = c.size("vocab_size", default=1), c.flag("action_tanh", default=True)
    c.divides(heads, d, "n_head", "hidden_size")
    c.ignore("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "scale_attn_weights")
    here: Raw = {"at": [3, 0, 1]}
    width = max(1, d // heads)
    core = piece("core", "once", heads, width, width, bias=False, **here)
    around = [piece(name, "linear", wide, d) for name, wide in told.items()]
    around += [piece("steps", "table", steps, d, bias=True), piece("tokens_held", "held", idle * d)]
    around += [piece("positions", "table", rows, d, bias=True, **here)]
    around = [one | {"kind": "embedding"} for one in around]
    around += [piece(name, "layer_norm", d, kind="norm", **here) for name in ("embedding_norm", "last_norm")]
    found = [piece(f"next_{name}", "linear", d, wide, kind="head") for name, wide in told.items()]
    found += [piece("next_action_activation", "tanh", told["action"], kind="head")] * tanh
    c.note("tokens are steps: a return, a state and an action each, which are three positions")
    raw |= {"around": around + found, "head": {"form": "none"}}
    return listed(raw, {"layer": preceded(d, [core], ff, act, True, here, here)}, [])
