"""SeamlessM4T: text or speech into text, and what speaks, which no text runs."""

from __future__ import annotations

from txcalc.errors import shown
from txcalc.sources import build
from txcalc.sources.huggingface.config import Config, Raw, piece
from txcalc.sources.huggingface.leaves import attends, conformer, fed, listed, normed
from txcalc.sources.huggingface.seq2seq import bart_like
from txcalc.sources.spec import Wrong, size

# Of each class the encoder that runs, and what it holds beside it.
CLASSES = {
    "ForTextToText": ("text", ()),
    "ForSpeechToText": ("speech", ()),
    "ForTextToSpeech": ("text", ("voice",)),
    "ForSpeechToSpeech": ("speech", ("voice",)),
    "M4TModel": ("text", ("speech", "voice")),
    "M4Tv2Model": ("text", ("speech", "voice")),
}


def seamless_m4t(c: Config) -> Raw:
    """NLLB's halves, or an encoder of speech in the first one's place."""
    names, given = c.data.get("architectures"), c.data
    runs, more = next((row for ending, row in CLASSES.items() if c.named(ending)), CLASSES["ForTextToText"])
    if not names:
        c.note("no architectures: text into text is read, without the encoder of speech and what speaks")
    elif not c.named(*CLASSES):
        c.fault("architectures[0]", names, f"a class that ends in {', '.join(CLASSES)}", "others are parts of these")
    c.data = {k: v for k, v in given.items() if k not in ("architectures", "num_hidden_layers", "num_attention_heads")}
    raw = bart_like(c, "pre", 4096, 0, False, "sinusoidal", act="relu")
    c.data = given
    c.flag("is_encoder_decoder", default=True)
    c.count("decoder_start_token_id", default=3)
    decoder = raw["decoder"]
    c.only(decoder["n_layers"], "num_hidden_layers", why="it is another name of decoder_layers")
    c.only(decoder["attention"]["n_heads"], "num_attention_heads", why="it is another name of decoder_attention_heads")
    speech, voice = _speech(c, raw["d_model"], runs == "speech"), _units(c, raw["d_model"]) + _vocoder(c)
    if runs == "speech":
        raw["encoder"] = speech
        decoder |= {"vocab_size": raw.pop("vocab_size")}
    if c.faults or not more:
        return raw
    idle = voice
    if "speech" in more:
        idle += build(speech | {"kind": "encoder", "d_model": raw["d_model"]}, "speech").params
    what = f"{runs} into text is what runs: {' and '.join(more)} beside it"
    return raw | {"decoder": c.held(decoder, idle, what, "are held")}


_OF = "speech_encoder_"


def _speech(c: Config, d: int, runs: bool) -> Raw:
    """Conformer layers on frames of bands, and layers after them that each read every n-th position."""
    relative = c.model_type == "seamless_m4t"
    bands, ff = c.size("feature_projection_input_dim", default=160), c.size(f"{_OF}intermediate_size", default=4096)
    heads, act = c.size(f"{_OF}attention_heads", default=16), c.activation(f"{_OF}hidden_act", default="silu")
    c.divides(heads, d, f"{_OF}attention_heads", "hidden_size")
    width = max(1, d // heads)
    taps = c.size("conv_depthwise_kernel_size", default=31)
    if not taps % 2:
        c.fault("conv_depthwise_kernel_size", taps, "an odd number")
    after, a, b = _adapter(c, d, ff, heads)
    form = c.text("position_embeddings_type", default="relative" if relative else "relative_key")
    placed: list[Raw] = []
    if relative and form == "relative":
        c.multiple("hidden_size", d, 2)
        every = [2 * a, 2 * b - 1, 1]
        placed = [piece("distances", "linear", d, d, bias=False, at=every, shared=True)]
        placed += [piece("offsets", "held", 2 * d), piece("distance_scores", "scores", heads, width, keys=every)]
    elif relative and form == "rotary":
        placed = [piece("rotary", "rotary", heads, width)]
    elif not relative and form == "relative_key":
        ends = (c.count(f"{side}_max_position_embeddings", default=n) for side, n in (("left", 64), ("right", 8)))
        placed = [piece("distances", "held", (sum(ends) + 1) * width)]
        placed += [piece("distance_scores", "scores", heads, width, keys=[a, b, 1])]
    mixed = [normed("attention", d), *attends("", d, heads, width, before=placed)]
    inner = [piece("conv_scale", "scale", d), piece("conv_shift", "shift", d)]
    if not relative:
        inner = [piece("conv_inner_norm", "layer_norm", d, kind="norm")]
    here = {"at": [a, b, 1]}
    layer = [here | one for one in conformer(d, ff, act, mixed, taps, inner)]
    before = [
        piece("frames_norm", "layer_norm", bands, kind="norm"),
        piece("frames", "linear", bands, d, kind="embedding"),
    ]
    before += [piece("layers_norm", "layer_norm", d, kind="norm"), *fed("between", d, ff, "relu", norm="")]
    around = [*(here | one for one in before), *after, piece("norm", "layer_norm", d, kind="norm")]
    n = c.layers("speech_encoder_layers")
    if runs:
        c.note("--source counts the encoder's positions, of as many frames of speech as give them")
        chunk = c.data.get("speech_encoder_chunk_size")
        if not relative and chunk is not None:
            c.note(f"masked FLOPs are those of all frames: past {shown(chunk)} of them attention stays within chunks")
    return listed({"n_layers": n, "around": around, "embedding": {"shared": False}}, {"layer": layer}, [])


def _adapter(c: Config, d: int, ff: int, heads: int) -> tuple[list[Raw], int, int]:
    """Layers of which each reads every n-th position, the last one first; a and b: the first reads a·T + b."""
    taps, stride = c.size("adaptor_kernel_size", default=8), c.size("adaptor_stride", default=8)
    n = c.count("num_adapter_layers", default=1) if c.flag("add_adapter", default=True) else 0
    c.ignore("num_adapter_layers")
    least = taps - 2 * (stride // 2)
    if least + stride < 2 or n > 8:
        c.fault("adaptor_kernel_size", taps, f"at least {2 - stride + 2 * (stride // 2)}, in at most 8 layers")
        n = 0
    made, a, b = list[Raw](), 1, 0
    for i in reversed(range(n)):
        here, name = {"at": [a, b, 1]}, f"adapter{i + 1}_"
        a, b = a * stride, b * stride + least - 1
        layer: list[Raw] = []
        for read in ("residual", "conv"):
            layer += [piece(f"{name}{read}_norm", "layer_norm", d, kind="norm", at=[a, b, 1])]
            layer.append(piece(f"{name}{read}", "convolution", d, 2 * d, taps, stride))
            layer.append(piece(f"{name}{read}_gate", "sigmoid", d))
        layer += [one | {"kind": "other"} for one in attends(name, d, heads, max(1, d // heads))]
        layer += [*fed(f"{name}feed_forward", d, ff, "relu")]
        made = [*(here | one for one in layer), *made]
    return made, a, b


def _units(c: Config, d: int) -> int:
    """Parameters of what makes units of speech of a text decoder's states: halves as the text's; in the second version
    the decoder is none, for it attends to its encoder no more and has convolutions in its feed-forwards' place."""
    sizes = {
        half: (c.layers(f"t2u_{half}_layers"), c.size(f"t2u_{half}_ffn_dim", default=8192))
        for half in ("encoder", "decoder")
    }
    for half in sizes:
        heads = c.size(f"t2u_{half}_attention_heads", default=16)
        c.divides(heads, d, f"t2u_{half}_attention_heads", "hidden_size")
    rows, padding = c.size("t2u_vocab_size", default=10082), c.count("t2u_pad_token_id", default=1, null=0)
    if padding >= rows:
        c.fault("t2u_pad_token_id", padding, f"less than t2u_vocab_size = {rows:,}")
    attention, norm = 4 * d * (d + 1), 2 * d
    (n, ff), (more, wide) = sizes["encoder"], sizes["decoder"]
    made = n * (attention + 2 * norm + 2 * d * ff + ff + d) + 2 * norm + rows * d
    if c.model_type == "seamless_m4t":
        return int(made + more * (2 * attention + 3 * norm + 2 * d * wide + wide + d))
    read, inner = (
        c.size(f"t2u_variance_predictor_{name}_dim", default=n) for name, n in (("embed", 1024), ("hidden", 256))
    )
    seen = c.size("char_vocab_size", default=10943) * d + 2
    durations = _predictor(read, inner, c.size("t2u_variance_predictor_kernel_size", default=3))
    return int(made + seen + durations + more * (attention + 2 * norm + 2 * (7 * d * d + d)))


def _predictor(read: int, inner: int, taps: int) -> int:
    return (taps * (read + inner) + 7) * inner + 1


def _vocoder(c: Config) -> int:
    """Parameters of HiFi-GAN on units, with tables of speakers and languages: convolutions that widen time."""
    unit, voice, tongue = (
        c.size(f"{name}_embed_dim", default=n) for name, n in (("unit", 1280), ("spkr", 256), ("lang", 256))
    )
    tables = c.size("unit_hifi_gan_vocab_size", default=10000) * unit
    tables += c.size("vocoder_num_spkrs", default=200) * voice + c.size("vocoder_num_langs", default=36) * tongue
    rates = c.items("upsample_rates", of=size, length=None, default=[5, 4, 4, 2, 2])
    wide = c.items("upsample_kernel_sizes", of=size, length=None, default=[11, 8, 8, 4, 4])
    taps = c.items("resblock_kernel_sizes", of=size, length=None, default=[3, 7, 11])
    apart = c.items("resblock_dilation_sizes", of=_sizes, length=None, default=[[1, 3, 5]] * 3)
    channels = c.size("upsample_initial_channel", default=512)
    made = 7 * (unit + voice + tongue) * channels + channels
    for _, number in zip(rates, wide, strict=False):
        if channels < 2:
            c.fault("upsample_initial_channel", channels, "a number that can be halved for each of upsample_rates")
            break
        half = channels // 2
        made += channels * half * number + half
        made += sum(2 * len(steps) * (half * half * k + half) for k, steps in zip(taps, apart, strict=False))
        channels = half
    own = _predictor(unit, unit, c.size("variance_predictor_kernel_size", default=3))
    return int(tables + own + made + 7 * channels + 1)


def _sizes(value: object) -> list[int]:
    if not isinstance(value, list):
        raise Wrong("a list of lists")
    return [size(one) for one in value]


seamless_m4t_v2 = seamless_m4t
