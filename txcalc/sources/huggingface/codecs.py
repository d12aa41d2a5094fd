"""Codecs of sound beside models that write it, listed without where they work, and what these have between text and
codes.

EnCodec (arXiv 2210.13438) and Mimi (arXiv 2410.00037) are SEANet's convolutions down to frames and back; their
codebooks are buffers, no parameters.
"""

from __future__ import annotations

from math import ceil, prod
from typing import NamedTuple

from txcalc.sources.huggingface.config import Config, Raw, piece
from txcalc.sources.huggingface.leaves import Pieces, attends, fed, normed
from txcalc.sources.huggingface.reading import Projection, Tower, alone, resampled
from txcalc.sources.huggingface.seq2seq import t5 as halves
from txcalc.sources.spec import MAX_SIZE, size

MAKES = "it makes sound"


class _Convolutions(NamedTuple):
    """SEANet's of both ways, sizes by default; `lengths`: what each has beside its weights, one a channel that comes
    out, or, where it undoes a stride, the tensor's first axis."""

    lengths: str
    filters: int
    last: int
    shortcut: bool

    def conv(self, c_in: int, c_out: int, taps: int, times: int = 1, turned: bool = False) -> Pieces:
        """A convolution, or one that undoes a stride (`turned`), and what it has beside its weights."""
        made = [piece("conv", "convolution", c_in, c_out, taps, 1, times=times)]
        if self.lengths:
            width = c_in if turned and self.lengths == "scale" else c_out
            made.append(piece("lengths", self.lengths, width, times=times))
        return made

    def leaves(self, v: Config, d: int, ratios: list[int]) -> tuple[Pieces, int]:
        """Their leaves, and the most channels between them: each stage doubles these on the way down."""
        conv, f, channels = self.conv, v.size("num_filters", default=self.filters), v.size("audio_channels", default=1)
        blocks, taps = v.size("num_residual_layers", default=1), v.size("residual_kernel_size", default=3)
        first, last = v.size("kernel_size", default=7), v.size("last_kernel_size", default=self.last)
        compress = v.size("compress", default=2)
        v.size("dilation_growth_rate", default=2)
        if compress > f:
            v.fault("compress", compress, f"at most num_filters = {f:,}")
            compress = 1
        skip = v.flag("use_conv_shortcut", default=self.shortcut)
        if not v.flag("use_causal_conv", default=True) and v.real("trim_right_ratio", default=1.0) != 1:
            v.fault("trim_right_ratio", v.data["trim_right_ratio"], "1.0, where use_causal_conv is false")
        v.ignore("codebook_dim", "pad_mode", "sampling_rate", "trim_right_ratio")
        made, width = [*conv(channels, f, first), *conv(f, channels, last)], f
        for ratio in reversed(ratios):
            inner, both = width // compress, 2 * blocks
            made += [*conv(width, inner, taps, both), *conv(inner, width, 1, both)]
            made += conv(width, width, 1, both) if skip else []
            made += [*conv(width, 2 * width, 2 * ratio), *conv(2 * width, width, 2 * ratio, turned=True)]
            width *= 2
        if width > MAX_SIZE:
            v.fault("upsampling_ratios", ratios, "fewer of them")
        made += [*conv(width, d, last), *conv(d, width, first)]
        return [one | {"name": f"{one['name']}{i + 1}"} for i, one in enumerate(made)], width


def encodec(v: Config) -> Tower:
    """EnCodec: an LSTM on each side, and each convolution's directions and lengths apart, or a norm after it."""
    form = v.text("norm_type", default="weight_norm")
    if form not in ("weight_norm", "time_group_norm"):
        v.fault("norm_type", form, "'weight_norm' or 'time_group_norm'")
    d = v.size("hidden_size", default=128)
    ratios = v.items("upsampling_ratios", of=size, length=None, default=[8, 5, 4, 2])
    lengths = "scale" if form == "weight_norm" else "layer_norm"
    made, width = _Convolutions(lengths, filters=32, last=7, shortcut=True).leaves(v, d, ratios)
    if v.size("codebook_size", default=1024) < 2:
        v.fault("codebook_size", 1, "at least 2")
    v.ignore("target_bandwidths", "normalize", "chunk_length_s", "overlap")
    lstm = [piece(f"lstm_{name}", "linear", width, 4 * width, times=2 * v.size("num_lstm_layers", default=2))
            for name in ("input", "state")]  # fmt: skip
    return Tower(d, alone(d, [*made, *lstm]), why=MAKES)


def mimi(v: Config) -> Tower:
    """Mimi: layers with a scale on each branch on both sides of codebooks, at half the rate of its convolutions."""
    d, f = v.size("hidden_size", default=512), v.size("intermediate_size", default=2048)
    n = v.size("num_hidden_layers", default=8)
    heads, pairs = v.size("num_attention_heads", default=8), v.size("num_key_value_heads", default=8)
    v.divides(heads, d, "num_attention_heads", "hidden_size")
    v.divides(pairs, heads, "num_key_value_heads", "num_attention_heads")
    width, bias = v.size("head_dim", default=d // heads, null=d // heads), v.flag("attention_bias", default=False)
    ratios = v.items("upsampling_ratios", of=size, length=None, default=None) or [8, 6, 5, 4]
    made, _ = _Convolutions("", filters=64, last=3, shortcut=False).leaves(v, d, ratios)
    grouped, act = heads // pairs if heads % pairs == 0 else 1, v.activation("hidden_act", default="gelu")
    layer = attends("", d, heads, width, groups=grouped, bias="qkvo" if bias else "")
    layer += [normed("attention", d), *fed("fed", d, f, act, bias=False)]
    layer += [piece("attention_scale", "scale", d), piece("fed_scale", "scale", d)]
    made += [one | {"times": 2 * n} for one in layer]

    rate = v.size("sampling_rate", default=24000)
    fine, coarse = ceil(rate / prod(ratios)), rate / (2 * prod(ratios))
    if v.real("frame_rate", default=coarse) != coarse:
        v.fault("frame_rate", v.data["frame_rate"], f"{coarse}, half the rate of the convolutions")
    groups = v.size("upsample_groups", default=512)
    v.divides(groups, d, "upsample_groups", "hidden_size")
    taps = 2 * int(fine / coarse)
    made += [piece("down", "convolution", d, d, taps, 1, bias=False)]
    made += [piece("up", "convolution", d, d, taps, 1, bias=False, groups=groups)]

    code = v.size("vector_quantization_hidden_dimension", default=256)
    books, meanings = v.size("num_quantizers", default=32), v.size("num_semantic_quantizers", default=1)
    if meanings >= books:
        v.fault("num_semantic_quantizers", meanings, f"less than num_quantizers = {books:,}")
    words = v.size("codebook_size", default=2048)
    if words & (words - 1):
        v.fault("codebook_size", words, "a power of 2")
    made += [piece("codes", "linear", d, code, bias=False, times=4)] * (code != d)
    for half in ("encoder_config", "decoder_config"):
        if half in v.data:
            v.fault(half, v.data[half], "no such key", "a codec of one half is not read")
    v.ignore("max_position_embeddings", "norm_eps", "use_streaming", "rope_parameters", "rope_theta", "sliding_window",
             "layer_scale_initial_scale")  # fmt: skip
    return Tower(d, alone(d, made), why=MAKES)


def t5(v: Config) -> Tower:
    """T5's encoder with its table, as the class of the encoder alone."""
    inner = Config({**v.data, "architectures": ["T5EncoderModel"]}, "t5", v.path, v, partial=True)
    raw = halves(inner)
    v.ignore(*v.data)  # the inner one tells what is left over
    return Tower(raw["d_model"], raw)


def depth(v: Config) -> Tower:
    """Moshi's decoder of a frame's codes, whose matrices are one for each codebook; the whole's config overrules four
    of its sizes."""
    whole = v.parent
    assert isinstance(whole, Config)
    v.ignore("audio_vocab_size", "input_size", "vocab_size", "num_codebooks", "sliding_window", "rms_norm_eps",
             "max_position_embeddings", "hidden_act", "pad_token_id")  # fmt: skip
    d, n = v.size("hidden_size", default=1024), v.size("num_hidden_layers", default=6)
    heads = v.size("num_attention_heads", default=16)
    pairs, f = v.size("num_key_value_heads", default=heads, null=heads), v.size("ffn_dim", default=5632)
    v.divides(heads, d, "num_attention_heads", "hidden_size")
    v.divides(pairs, heads, "num_key_value_heads", "num_attention_heads")
    v.multiple("ffn_dim", f, 2)
    width = v.size("head_dim", default=d // heads, null=d // heads)
    books, codes = _codes(whole)
    words, read = whole.size("vocab_size", default=32000), whole.size("hidden_size", default=4096)
    sides = {"q": (d, heads * width), "kv": (d, 2 * pairs * width), "o": (heads * width, d), "up": (d, f)}
    sides |= {"down": (max(1, f // 2), d)}
    made = [piece(name, "linear", *both, bias=False, times=n * books) for name, both in sides.items()]
    made += [piece("norms", "rms_norm", d, times=2 * n), piece("word", "table", words + 1, d)]
    made += [piece("written", "table", codes + 1, d, times=books - 1)] * (books > 1)
    made += [piece("state", "linear", read, d, bias=False, times=books)]
    made += [piece("heads", "linear", d, codes, bias=False, times=books)]
    return Tower(d, alone(d, made), why="it writes a frame's codes one after the other")


def _codes(c: Config) -> tuple[int, int]:
    """How many codebooks Moshi writes, and how many codes each has."""
    audio = c.data.get("audio_encoder_config")
    known = audio.get("codebook_size") if isinstance(audio, dict) else None
    words = known if isinstance(known, int) else 2048
    return c.size("num_codebooks", default=8), c.size("audio_vocab_size", default=words, null=words)


# What stands between a codec, or a text, and the decoder.


def moshi(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A table for each codebook of both speakers."""
    books, codes = _codes(c)
    if books > v.size("num_quantizers", default=32):
        c.fault("num_codebooks", books, "at most as many as audio_encoder_config.num_quantizers")
    tables = [piece("codes", "table", codes + 1, raw["d_model"], times=2 * books)]
    return Projection((resampled(tables, 1, 1, raw["d_model"]),))


def none(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    return Projection(())


def musicgen(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """A matrix from the text's width where it is another."""
    read = c.data["decoder"].get("cross_attention_hidden_size")
    if read is not None:
        c.fault(
            "decoder.cross_attention_hidden_size", read, "null", "a text of another width is not read without a matrix"
        )
    return matrix(c, v, tower, raw)


def matrix(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """To the language model's width from another."""
    return Projection(({"linear": raw["d_model"]},) if tower.width != raw["d_model"] else ())


def notes(c: Config) -> Tower:
    """How strong each note is in each frame that MusicGen Melody hears, as it is."""
    d = c.size("num_chroma", default=12)
    return Tower(d, alone(d, []))
