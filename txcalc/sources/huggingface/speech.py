"""Speech models: wav2vec 2.0 and its descendants, Whisper, Moonshine, and Fast Conformer (arXiv 2305.05084) as an
encoder, with a classifier of frames (Parakeet), or with Cohere's decoder."""

from __future__ import annotations

from txcalc.sources.huggingface import towers
from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.keys import REQUIRED
from txcalc.sources.huggingface.leaf_list import (
    Leaves,
    attention_leaves,
    conformer_leaves,
    leaf,
    leaf_stack,
    matrix,
    norm_leaf,
    of_kind,
)
from txcalc.sources.huggingface.seq2seq import bart_like, half_of, joined_head, require_pair
from txcalc.sources.spec import size


def wav2vec2(c: Config, adapters: bool = True) -> Raw:
    """Convolutions over samples, a grouped convolution as positions, and post-norm or (`do_stable_layer_norm`) pre-norm
    layers; the latter may have `adapters`."""
    c.ignore("do_stable_layer_norm", "feat_extract_norm")
    raw: Raw = {"kind": "encoder", "d_model": c.size("hidden_size"), "n_layers": c.layers("num_hidden_layers")}
    stable = c.has_key("do_stable_layer_norm") and c.flag("do_stable_layer_norm", default=False)
    attention = c.mha(raw, whole=True)
    last, around = _samples(c, raw)
    around += _convolved_positions(c, raw) + _adapters(c, raw, stable and adapters)
    if not stable:
        around.append(leaf("norm", "layer_norm", raw["d_model"], kind="norm"))
    head_leaves, head = _heads(c, raw, last)
    c.note("tokens are frames, of the smallest number of samples from which the convolutions make them")
    return raw | {
        "attention": attention | {"bias": True},
        "feed_forward": c.mlp(),
        "norm": c.layer_norm("layer_norm_eps", place="pre" if stable else "post"),
        "positions": {"form": "none"},
        "around": around + head_leaves,
        "head": head,
    }


def wav2vec2_conformer(c: Config) -> Raw:
    """wav2vec 2.0's convolutions and heads around Conformer layers with relative attention; the convolution of
    positions is counted but not run."""
    raw: Raw = {"kind": "encoder", "d_model": c.size("hidden_size"), "n_layers": c.layers("num_hidden_layers")}
    d, attention, distances = raw["d_model"], c.mha(raw, whole=True), [2, -1, 1]
    heads, width = attention["n_heads"], attention["d_head"]
    relative = [matrix("distances", d, d, at=distances, shared=True), leaf("offsets", "held", 2 * d)]
    relative.append(leaf("distance_scores", "scores", heads, width, keys=distances))
    inner = [leaf("conv_inner_scale", "scale", d), leaf("conv_inner_shift", "shift", d)]
    form, layer = _conformer_layer(c, d, attention, "gelu", "relative", relative, inner)
    if form in ("relative", "rotary"):
        c.multiple("hidden_size", d, 2 if form == "relative" else 2 * heads)
    last, around = _samples(c, raw)
    positions = _convolved_positions(c, raw)
    around += [item | {"runs": 0} for item in positions if item["form"] in ("held", "convolution")]
    head_leaves, head = _heads(c, raw, last, REQUIRED)
    c.note("tokens are frames, of the smallest number of samples from which the convolutions make them")
    around = [*around, leaf("norm", "layer_norm", d, kind="norm"), *head_leaves]
    return leaf_stack(raw | {"around": around, "head": head}, {"layer": layer}, [])


def _conformer_layer(
    c: Config, d: int, attention: Raw, act: str, default: str, distances: Leaves, inner: Leaves
) -> tuple[str | None, Leaves]:
    """The form of positions and a layer: `distances` are the leaves of the form `default`, the class's default; `act`
    is the default activation, `inner` the norm within the convolution."""
    form = c.text("position_embeddings_type", default=default, null=None)
    if form not in (default, "rotary", None):
        c.fault("position_embeddings_type", form, f"'{default}', 'rotary' or null")
    taps = c.size("conv_depthwise_kernel_size", default=31)
    if not taps % 2:
        c.fault("conv_depthwise_kernel_size", taps, "an odd number")
    heads, width = attention["n_heads"], attention["d_head"]
    positions = distances if form == default else [leaf("rotary", "rotary", heads, width)] if form == "rotary" else []
    mixer = [norm_leaf("attention", d), *attention_leaves("", d, heads, width, before=positions)]
    ff, activation = c.size("intermediate_size"), c.activation("hidden_act", default=act)
    return form, conformer_leaves(d, ff, activation, mixer, taps, inner)


def whisper(c: Config) -> Raw:
    """Two convolutions over mel bands, an encoder of fixed length and a decoder, k without a bias; or only the encoder
    with a classifier."""
    if c.class_ends("ForAudioClassification"):
        return _audio_encoder(c)
    require_pair(c)
    raw: Raw = {"kind": "audio", "d_model": c.size("d_model", "hidden_size"), "vocab_size": c.size("vocab_size")}
    c.padding_within(raw)
    halves = {half: half_of(c, raw, half) for half in ("encoder", "decoder")}
    n_heads = halves["encoder"]["attention"]["n_heads"]
    c.require_value(n_heads, "num_key_value_heads", why="it repeats encoder_attention_heads")
    for half in halves.values():
        half["attention"]["bias"] = ["q", "v", "o"]
    audio = {"mels": c.size("num_mel_bins", default=80), "positions": c.size("max_source_positions", default=1500)}
    halves["encoder"] |= {"audio": audio, "positions": {"form": "learned"}}
    halves["decoder"]["positions"] = {"form": "learned", "rows": c.size("max_target_positions", default=448)}
    return raw | {"norm": {"form": "layer"}, "head": joined_head(c), **halves}


def _audio_encoder(c: Config) -> Raw:
    """Whisper's encoder with a classifier."""
    raw = towers.whisper(c, *(REQUIRED,) * 4, bands=80).raw
    require_pair(c, half=True)
    c.ignore("decoder_attention_heads", "decoder_ffn_dim", "decoder_layers", "max_target_positions", "vocab_size")
    c.ignore("scale_embedding", "tie_word_embeddings")
    head_leaves, head = _heads(c, raw, raw["d_model"])
    c.note("the length of the audio is fixed: the number of tokens does not change it")
    return raw | {"projector": {"steps": []}, "around": head_leaves, "head": head}


def _adapters(c: Config, raw: Raw, known: bool) -> list[Raw]:
    """MMS' adapters: a norm and two low-rank matrices after each layer."""
    width, d = c.size("adapter_attn_dim", default=None, null=None), raw["d_model"]
    if width is None:
        return []
    if not known:
        c.fault("adapter_attn_dim", width, "null: these layers have no adapters")
    leaves = [
        norm_leaf("adapter", d), leaf("adapter_down", "linear", d, width),
        leaf("adapter_activation", "relu", width), leaf("adapter_up", "linear", width, d),
        leaf("adapter_sum", "sum", d),
    ]  # fmt: skip
    return [item | {"times": raw["n_layers"]} for item in leaves]


# wav2vec 2.0's default convolutions.
CONVOLUTIONS = {"dim": [512] * 7, "kernel": [10, 3, 3, 3, 3, 2, 2], "stride": [5, 2, 2, 2, 2, 2, 2]}


def _samples(c: Config, raw: Raw) -> tuple[int, list[Raw]]:
    """The output width of the convolutions over samples, and their leaves, with the projection after them."""
    lists = [c.items(f"conv_{key}", of=size, length=None, default=default) for key, default in CONVOLUTIONS.items()]
    widths, taps, strides = lists
    if len({*map(len, lists)}) > 1 or not widths:
        c.fault("conv_dim", widths, "a list as long as conv_kernel and conv_stride")
        return 1, []
    form = c.text("feat_extract_norm", default="group") if c.has_key("feat_extract_norm") else "layer"
    if form not in ("group", "layer"):
        c.fault("feat_extract_norm", form, "'group' or 'layer'")
    act, bias = c.activation("feat_extract_activation", default="gelu"), c.flag("conv_bias", default=False)
    pieces, a, b, here = list[Raw](), 1, 0, {"at": [1, 0, 1]}
    for i in reversed(range(len(widths))):
        at = {"at": [a, b, 1]}
        c_in = widths[i - 1] if i else 1
        conv = [leaf(f"conv{i + 1}", "convolution", c_in, widths[i], taps[i], strides[i], bias=bias, **at)]
        if form == "layer" or i == 0:
            conv.append(norm_leaf(f"conv{i + 1}", widths[i], **at))
        pieces = [*conv, leaf(f"conv{i + 1}_activation", act, widths[i], **at), *pieces]
        a, b = a * strides[i], (b - 1) * strides[i] + taps[i]
    if not c.has_key("feat_proj_layer_norm") or c.flag("feat_proj_layer_norm", default=True):
        pieces.append(norm_leaf("projection", widths[-1], **here))
    pieces.append(leaf("projection", "linear", widths[-1], raw["d_model"], **here))
    masks = max(c.real("mask_time_prob", default=0.05), c.real("mask_feature_prob", default=0.0)) > 0
    if masks or c.model_type == "unispeech-sat":  # its class has the vector even without masks
        pieces.append(leaf("mask_token", "held", raw["d_model"]))
    return widths[-1], pieces


def _convolved_positions(c: Config, raw: Raw) -> list[Raw]:
    """A grouped convolution as positions; weight norm stores one length per tap."""
    d, taps = raw["d_model"], c.size("num_conv_pos_embeddings", default=128)
    groups = c.size("num_conv_pos_embedding_groups", default=16)
    c.divides(groups, d, "num_conv_pos_embedding_groups", "hidden_size")
    if c.has_key("conv_pos_kernel_size"):
        act, width = c.activation("feat_extract_activation", default="gelu"), c.size("conv_pos_kernel_size", default=19)
        times = c.size("num_conv_pos_embeddings", default=5)
        here = {"times": times, "at": [1, 1 - width % 2, 1]}
        return [
            leaf("positions", "convolution", d, d, width, 1, groups=groups, **here),
            leaf("positions_activation", act, d, times=times), leaf("positions_sum", "sum", d),
        ]  # fmt: skip
    batch_norm = c.has_key("conv_pos_batch_norm") and c.flag("conv_pos_batch_norm", default=False)
    lengths = norm_leaf("positions", d) if batch_norm else leaf("lengths", "held", taps)
    return [
        lengths,
        leaf("positions", "convolution", d, d, taps, 1, groups=groups, at=[1, 1 - taps % 2, 1]),
        leaf("positions_activation", c.activation("feat_extract_activation", default="gelu"), d),
        leaf("positions_sum", "sum", d),
    ]


# Types whose class for pretraining is wav2vec 2.0's, with its codebooks.
QUANTISED = frozenset({"wav2vec2", "wav2vec2-conformer"})


def _heads(c: Config, raw: Raw, last: int, classes: object = 32, width: int = 256) -> tuple[list[Raw], Raw]:
    """The head, and its leaves that no head describes. `last` is the width of the convolutions; `classes` and `width`
    are the class's defaults of vocab_size and classifier_proj_size."""
    d, quantised = raw["d_model"], ("pretraining",) * (c.model_type in QUANTISED)
    form = c.head_of("none", "ctc", "sequence", "frames", "speaker", *quantised)
    if form == "ctc":
        return [], {"form": "classifier", "classes": c.size("vocab_size", default=classes), "every": True}
    weighed = c.flag("use_weighted_layer_sum", default=False) and form in ("sequence", "frames", "speaker")
    leaves = [leaf("layer_weights", "held", raw["n_layers"] + 1)] * weighed
    if form == "frames":
        return leaves, {"form": "classifier", "classes": c.labels(), "every": True}
    if form == "sequence":
        width = c.size("classifier_proj_size", default=width)
        leaves += [leaf("projector", "linear", d, width, kind="head")]
        leaves += [leaf("classifier", "linear", width, c.labels(), kind="head", at=[0, 1, 1])]
    if form == "speaker":
        leaves += _speaker(c, d)
    if form == "pretraining":
        words, groups = c.size("num_codevectors_per_group", default=320), c.size("num_codevector_groups", default=2)
        code, width = c.size("codevector_dim", default=256), c.size("proj_codevector_dim", default=256)
        c.divides(groups, code, "num_codevector_groups", "codevector_dim")
        leaves += [leaf("codebook", "held", words * code), leaf("choice", "linear", last, words * groups)]
        leaves += [leaf("project_hidden", "linear", d, width), leaf("project_codes", "linear", code, width)]
    return leaves, {"form": "none"}


def _speaker(c: Config, d: int) -> list[Raw]:
    """An x-vector head: convolutions over frames, their mean and standard deviation, and two layers."""
    once: Raw = {"at": [0, 1, 1]}
    widths = c.items("tdnn_dim", of=size, length=None, default=[512, 512, 512, 512, 1500])
    taps = c.items("tdnn_kernel", of=size, length=len(widths), default=[5, 3, 3, 1, 1]) if widths else [1]
    if not widths:
        c.fault("tdnn_dim", widths, "a list of widths")
        widths = [1]
    dilations = c.items("tdnn_dilation", of=size, length=len(widths), default=[1, 2, 3, 1, 1]) if widths else [1]
    width = c.size("xvector_output_dim", default=512)
    leaves, lost = [leaf("projector", "linear", d, widths[0])], 0
    for i, (channels, number, dilation) in enumerate(zip(widths, taps, dilations, strict=False)):
        lost += (number - 1) * dilation
        at: Raw = {"at": [1, -lost, 1], "least": lost + 1}
        leaves.append(leaf(f"tdnn{i + 1}", "convolution", widths[max(0, i - 1)], channels, number, 1, **at))
        leaves.append(leaf(f"tdnn{i + 1}_activation", "relu", channels, **at))
    leaves.append(leaf("extractor", "linear", 2 * widths[-1], width, **once))
    leaves.append(leaf("classifier", "linear", width, width, **once))
    c.note(f"the speaker head needs at least {lost + 1:,} frames")
    return of_kind("head", [*leaves, leaf("margins", "held", width * c.labels())])


def wavlm(c: Config) -> Raw:
    """wav2vec 2.0 with relative position biases that all layers share, gated per head by the input."""
    raw = wav2vec2(c, adapters=False)
    attention, n, h = raw["attention"], raw["n_layers"], raw["attention"]["n_heads"]
    gates = leaf("gates", "linear", attention["d_head"], 8, times=n, at=[h, 0, 1], kind="attention")
    table = leaf("distances", "held", c.size("num_buckets", default=320) * h, kind="attention")
    return raw | {"around": [*raw["around"], gates, leaf("gate_scales", "held", h, times=n), table]}


def wav2vec2_bert(c: Config) -> Raw:
    """Conformer layers on pairs of spectrogram frames, with relative attention and a causal convolution."""
    raw: Raw = {"kind": "encoder", "d_model": c.size("hidden_size"), "n_layers": c.layers("num_hidden_layers")}
    d, bands, attention = raw["d_model"], c.size("feature_projection_input_dim", default=160), c.mha(raw)
    c.require_value(d, "output_hidden_size", why="only an adapter gives another width")
    rows = 1 + c.count("left_max_position_embeddings", default=64)
    rows += c.count("right_max_position_embeddings", default=8)
    distances = [leaf("distances", "held", rows * attention["d_head"])]
    distances.append(leaf("distance_scores", "scores", attention["n_heads"], attention["d_head"], keys=[1, 0, 1]))
    _, layer = _conformer_layer(c, d, attention, "silu", "relative_key", distances, [norm_leaf("conv_inner", d)])
    around = [norm_leaf("frames", bands), leaf("frames", "linear", bands, d, kind="embedding")]
    if max(c.real("mask_time_prob", default=0.05), c.real("mask_feature_prob", default=0.0)) > 0:
        around.append(leaf("mask_token", "held", d))
    head_leaves, head = _heads(c, raw, d, REQUIRED, 768)
    c.note("a token is two successive frames of a spectrogram")
    return leaf_stack(raw | {"around": around + head_leaves, "head": head}, {"layer": layer}, [])


def speech_to_text(c: Config) -> Raw:
    """BART with sinusoidal positions; gated convolutions over mel bands, each with stride 2, precede the encoder."""
    raw = bart_like(c, "pre", 1024, 0, False, "sinusoidal", act="relu")
    d, mid, n = raw["d_model"], c.size("conv_channels", default=1024), c.size("num_conv_layers", default=2)
    taps = c.items("conv_kernel_sizes", of=size, length=None, default=[5, 5])
    bands = c.size("input_feat_per_channel", default=80) * c.size("input_channels", default=1)
    c.require_value(n, "num_conv_layers", why="it is the length of conv_kernel_sizes")
    if len(taps) != n or n > 20:
        c.fault("conv_kernel_sizes", taps, f"a list of num_conv_layers = {n:,} lengths, at most 20")
        return raw
    c.multiple("conv_channels", mid, 2)
    around, c_in = list[Raw](), bands
    for i, number in enumerate(taps):
        c_out, at = (2 * d if i == n - 1 else mid), {"at": [2 ** (n - 1 - i), 0, 1]}
        around.append(leaf(f"conv{i + 1}", "convolution", c_in, c_out, number, 2, **at))
        c_in = max(1, c_out // 2)
        around.append(leaf(f"conv{i + 1}_gate", "sigmoid", c_in, **at))
    raw["encoder"]["around"] = around
    c.note(f"--source is the encoder's number of positions, one per {2**n} audio frames")
    return raw


def moonshine(c: Config) -> Raw:
    """Three convolutions over samples; rotary positions, norms without a bias, gated feed-forwards in the decoder."""
    require_pair(c)
    c.flag("is_encoder_decoder", default=True)
    c.count("decoder_start_token_id", default=1)
    raw: Raw = {"kind": "encoder-decoder", "d_model": c.size("hidden_size"), "vocab_size": c.size("vocab_size")}
    c.padding_within(raw)
    d, ff, bias = raw["d_model"], c.size("intermediate_size"), c.flag("attention_bias", default=False)
    halves: dict[str, Raw] = {}
    for half, default in (("encoder", "gelu"), ("decoder", "silu")):
        keys = ("num_attention_heads", "num_key_value_heads", "num_hidden_layers", "hidden_act")
        heads, groups, layers, acts = ((f"{half}_{key}", *([key] if half == "decoder" else [])) for key in keys)
        attention = c.heads(raw, names=heads, kv_names=groups, width_names=())
        act = c.activation(*acts, default=default)
        halves[half] = {
            "n_layers": c.layers(*layers),
            "attention": attention | {"bias": ["q", "k", "v"] if bias else False},
            "feed_forward": {"d_ff": ff, "gated": half == "decoder", "activation": act, "bias": True},
            "positions": c.rotary(attention["d_head"], partial=0.9) | {"interleaved": True},
        }
    n_heads = halves["encoder"]["attention"]["n_heads"]
    for half in halves:
        for key in ("num_attention_heads", "num_key_value_heads"):
            c.require_value(n_heads, f"{half}_{key}", why="transformers' class has the same number everywhere")
    if c.size("pad_head_dim_to_multiple_of", default=None, null=None):
        c.note("pad_head_dim_to_multiple_of pads heads with zeros for some kernels, which are not counted")
    around = [
        leaf("conv1", "convolution", 1, d, 127, 64, bias=False, at=[6, 7, 1]),
        leaf("conv1_tanh", "tanh", d, at=[6, 7, 1]),
        norm_leaf("conv1", d, at=[6, 7, 1]),
        leaf("conv2", "convolution", d, 2 * d, 7, 3, at=[2, 1, 1]),
        leaf("conv2_gelu", "gelu", 2 * d, at=[2, 1, 1]),
        leaf("conv3", "convolution", 2 * d, d, 3, 2),
        leaf("conv3_gelu", "gelu", d),
    ]
    halves["encoder"]["around"] = around
    c.note("--source is the encoder's number of positions, one per 384 audio samples")
    form = c.head_of("lm", "none")
    head: Raw = {"form": "none"} if form == "none" else {"tied": c.flag("tie_word_embeddings", default=True)}
    return raw | {"norm": {"form": "layer", "bias": False}, "head": head, **halves}


_COHERE = {"hidden_size": 1280, "num_hidden_layers": 48, "num_attention_heads": 8, "intermediate_size": 5120,
           "num_mel_bins": 128}  # fmt: skip


def parakeet_encoder(c: Config) -> Raw:
    c.head_of("none")
    d, n, around, layer = _layers(c)
    raw: Raw = {"kind": "encoder", "d_model": d, "n_layers": n, "around": around, "head": {"form": "none"}}
    return leaf_stack(raw, {"layer": layer}, [])


def parakeet_ctc(c: Config) -> Raw:
    raw = parakeet_encoder(_encoder(c))
    form, classes = c.head_of("ctc", "none"), c.size("vocab_size", default=1025)
    return raw | ({"head": {"form": "classifier", "classes": classes, "every": True}} if form == "ctc" else {})


def _encoder(c: Config, **defaults: int) -> Config:
    """The encoder's config, with the outer class's defaults."""
    inner = c.nested("encoder_config", "parakeet_encoder", {})
    inner.data = {**defaults, **inner.data}
    if inner.data.get("model_type", inner.model_type) != inner.model_type:
        inner.fault("model_type", inner.data["model_type"], f"{inner.model_type!r}", "other encoders are not supported")
    return inner


def cohere_asr(c: Config) -> Raw:
    """A Fast Conformer and a decoder; a matrix projects the encoder's states to the decoder's width."""
    require_pair(c)
    raw = c.widths("encoder-decoder")
    n, d, bias = raw.pop("n_layers"), raw["d_model"], c.flag("attention_bias", default=True)
    width, n_layers, around, layer = _layers(_encoder(c, **_COHERE))
    around.append(leaf("read", "linear", width, d, kind="attention"))
    stack: Raw = {"n_layers": n_layers, "around": around, "embedding": {"shared": False}}
    raw["encoder"] = leaf_stack(stack, {"layer": layer}, [])
    raw["decoder"] = {
        "n_layers": n,
        "vocab_size": raw.pop("vocab_size"),
        "attention": c.heads(raw, whole=None, bias=bias),
        "feed_forward": c.mlp(act="relu"),
        "positions": {"form": "learned", "rows": c.size("max_position_embeddings", default=1024)},
        "embedding": {"norm": True},
    }
    form, tied = c.head_of("lm", "none"), c.flag("tie_word_embeddings", default=False)
    head: Raw = {"tied": tied, "bias": True} if form == "lm" else {"form": "none"}
    return raw | {"norm": {"form": "layer"}, "head": head}


def _layers(c: Config) -> tuple[int, int, Leaves, Leaves]:
    """The width, the number of layers, the leaves before them, and one layer."""
    d, n, ff = c.size("hidden_size"), c.layers("num_hidden_layers"), c.size("intermediate_size")
    heads = c.size("num_attention_heads")
    width = c.size("head_dim", default=max(1, d // heads))
    bias, act = c.flag("attention_bias", default=True), c.activation("hidden_act", default="silu")
    conv_bias, taps = c.flag("convolution_bias", default=True), c.size("conv_kernel_size", default=9)
    if taps % 2 == 0:
        c.fault("conv_kernel_size", taps, "an odd number")
    c.multiple("hidden_size", d, 2)
    c.require_value(heads, "num_key_value_heads", why="its class has as many as query heads")
    c.ignore("scale_input", "max_position_embeddings")
    distances = [2, -1, 1]
    relative = [matrix("distances", d, heads * width, at=distances), leaf("offsets", "held", 2 * heads * width)]
    relative.append(leaf("distance_scores", "scores", heads, width, keys=distances))
    attention = attention_leaves("", d, heads, width, bias="qkvo" if bias else "", before=relative)
    inner = [leaf("conv_shift", "shift", d)] * conv_bias
    inner += [leaf("conv_inner_scale", "scale", d), leaf("conv_inner_shift", "shift", d)]
    mixer = [norm_leaf("attention", d), *attention]
    layer = conformer_leaves(d, ff, act, mixer, taps, inner, bias=conv_bias, ffn_bias=bias)
    c.note("a position is several audio frames, which its convolutions merge")
    return d, n, _subsampling(c, d), layer


def _subsampling(c: Config, d: int) -> Leaves:
    """Strided convolutions over frames and bands, depthwise except for the first, and a matrix."""
    bands, channels = c.size("num_mel_bins", default=80), c.size("subsampling_conv_channels", default=256)
    side, step = c.size("subsampling_conv_kernel_size", default=3), c.size("subsampling_conv_stride", default=2)
    number = c.size("subsampling_factor", default=8).bit_length() - 1
    remaining = bands // step**number if number < 32 else 0
    if step < 2 or not 0 < number < 32 or not remaining:
        c.fault("subsampling_factor", 2**number, "at least 2, with a stride of 2 or more, and a band left at the end")
        return []
    leaves, c_in, lost = list[Raw](), 1, 2 * ((side - 1) // 2) - side
    for i in range(number):
        bands = (bands + lost) // step + 1
        here, name = {"at": [step ** (number - 1 - i) * bands, 0, 1]}, f"conv{i + 1}"
        leaves.append(leaf(name, "convolution", c_in, channels, side**2, step**2, groups=c_in, **here))
        leaves += [leaf(f"{name}_mixed", "linear", channels, channels, **here)] * (i > 0)
        leaves.append(leaf(f"{name}_relu", "relu", channels, **here))
        c_in = channels
    if bands != remaining:
        expected = f"a number that {number} strides reduce to {remaining}, not {bands}"
        c.fault("num_mel_bins", c.data.get("num_mel_bins"), expected)
    return of_kind("embedding", [*leaves, leaf("frames", "linear", channels * remaining, d)])
