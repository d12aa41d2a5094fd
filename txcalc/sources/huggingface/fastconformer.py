"""Fast Conformer (arXiv 2305.05084), alone or with a classifier of frames (Parakeet), or Cohere's decoder behind it."""

from __future__ import annotations

from txcalc.sources.huggingface.config import Config, Raw
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
from txcalc.sources.huggingface.seq2seq import joined

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


def _encoder(c: Config, **usual: int) -> Config:
    """The encoder's config, which the class of the whole fills up."""
    inner = c.nested("encoder_config", "parakeet_encoder", {})
    inner.data = {**usual, **inner.data}
    if inner.data.get("model_type", inner.model_type) != inner.model_type:
        inner.fault("model_type", inner.data["model_type"], f"{inner.model_type!r}", "other encoders are not read")
    return inner


def cohere_asr(c: Config) -> Raw:
    """A matrix brings the encoder's states to the decoder's width."""
    joined(c)
    raw = c.widths("encoder-decoder")
    n, d, bias = raw.pop("n_layers"), raw["d_model"], c.flag("attention_bias", default=True)
    wide, several, around, layer = _layers(_encoder(c, **_COHERE))
    around.append(leaf("read", "linear", wide, d, kind="attention"))
    stack: Raw = {"n_layers": several, "around": around, "embedding": {"shared": False}}
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
    """The width, the number of layers, what stands before them and one of them."""
    d, n, ff = c.size("hidden_size"), c.layers("num_hidden_layers"), c.size("intermediate_size")
    heads = c.size("num_attention_heads")
    width = c.size("head_dim", default=max(1, d // heads))
    bias, act = c.flag("attention_bias", default=True), c.activation("hidden_act", default="silu")
    biased, taps = c.flag("convolution_bias", default=True), c.size("conv_kernel_size", default=9)
    if taps % 2 == 0:
        c.fault("conv_kernel_size", taps, "an odd number")
    c.multiple("hidden_size", d, 2)
    c.require_value(heads, "num_key_value_heads", why="its class says so of itself")
    c.ignore("scale_input", "max_position_embeddings")
    distances = [2, -1, 1]
    placed = [matrix("distances", d, heads * width, at=distances)]
    placed += [
        leaf("offsets", "held", 2 * heads * width),
        leaf("distance_scores", "scores", heads, width, keys=distances),
    ]
    mixed = [
        norm_leaf("attention", d),
        *attention_leaves("", d, heads, width, bias="qkvo" if bias else "", before=placed),
    ]
    inner = [leaf("conv_shift", "shift", d)] * biased
    inner += [leaf("conv_inner_scale", "scale", d), leaf("conv_inner_shift", "shift", d)]
    layer = conformer_leaves(d, ff, act, mixed, taps, inner, bias=biased, ffn_bias=bias)
    c.note("positions are of frames of sound, several of which its convolutions join")
    return d, n, _joined(c, d), layer


def _joined(c: Config, d: int) -> Leaves:
    """Convolutions over frames and bands, all but the first one channel by channel, and a matrix of what they make."""
    bands, channels = c.size("num_mel_bins", default=80), c.size("subsampling_conv_channels", default=256)
    side, step = c.size("subsampling_conv_kernel_size", default=3), c.size("subsampling_conv_stride", default=2)
    number = c.size("subsampling_factor", default=8).bit_length() - 1
    left = bands // step**number if number < 32 else 0
    if step < 2 or not 0 < number < 32 or not left:
        c.fault("subsampling_factor", 2**number, "at least 2, and a stride of 2 or more, which leave a band")
        return []
    leaves, c_in, lost = list[Raw](), 1, 2 * ((side - 1) // 2) - side
    for i in range(number):
        bands = (bands + lost) // step + 1
        here, name = {"at": [step ** (number - 1 - i) * bands, 0, 1]}, f"conv{i + 1}"
        leaves.append(leaf(name, "convolution", c_in, channels, side**2, step**2, groups=c_in, **here))
        leaves += [leaf(f"{name}_mixed", "linear", channels, channels, **here)] * (i > 0)
        leaves.append(leaf(f"{name}_relu", "relu", channels, **here))
        c_in = channels
    if bands != left:
        c.fault(
            "num_mel_bins", c.data.get("num_mel_bins"), f"a number of which {number} strides leave {left}, not {bands}"
        )
    return of_kind("embedding", [*leaves, leaf("frames", "linear", channels * left, d)])
