"""Janus: a tower that reads pictures, and beside the language model a codec, a table and a head that make them.

Shapes are those of transformers' janus classes, whose defaults absent keys take.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.tensors import Projection, Sizes, Tower, linear
from txcalc.sources.huggingface.towers import square, stack
from txcalc.sources.spec import MAX_SIZE, size


def tower(v: Config) -> Tower:
    """SigLIP's without a head; its feed-forward is so many times as wide."""
    d, heads, ratio = (
        v.size("hidden_size", default=1024),
        v.size("num_attention_heads", default=16),
        v.real("mlp_ratio", default=4.0),
    )
    v.divides(heads, d, "num_attention_heads", "hidden_size")
    if not 1 <= int(ratio * d) <= MAX_SIZE:
        v.fault("mlp_ratio", ratio, "a ratio that gives a width above 0")
        ratio = 1.0
    sizes = Sizes(d, int(ratio * d), v.size("num_hidden_layers", default=24), heads)
    biased = {"bias": True if v.flag("attention_bias", default=True) else ["o"]}
    act = v.activation("hidden_act", default="gelu")
    wide = v.size("projection_dim", default=2048)
    steps: list[Raw] = [{"linear": wide}]
    for _ in range(v.size("depth", default=2) - 1):
        steps += [{"activation": act}, {"linear": wide}]
    return Tower(d, stack(sizes, act, attention=biased, vision=square(v, 384, 16, class_token=False)), tuple(steps))


def projector(c: Config, v: Config, tower: Tower, raw: Raw) -> Projection:
    """What makes pictures: it runs by itself, and its parameters alone are counted."""
    c.ignore("vq_config")
    data = c.data.get("vq_config") or {}
    if not isinstance(data, Mapping):
        c.fault("vq_config", data, "an object, the codec's own config")
        data = {}
    q = Config(data, "janus_vqgan", "vq_config.", c)
    return Projection((), params=_codec(q) + _maker(q))


def _maker(q: Config) -> int:
    """The table of the codec's codes, the matrices after it, and the head that says the next."""
    codes, code, wide = (
        q.size("num_embeddings", default=16384),
        q.size("embed_dim", default=8),
        q.size("projection_dim", default=2048),
    )
    after = linear(code, wide) + (q.size("num_hidden_layers", default=2) - 1) * linear(wide, wide)
    read = q.size("image_token_embed_dim", default=2048)
    return int(codes * code + after + linear(read, wide) + linear(wide, codes))


def _codec(q: Config) -> int:
    """A convolutional encoder and decoder with a table of codes between them."""
    base, latent = q.size("base_channels", default=128), q.size("latent_channels", default=256)
    factors = q.items("channel_multiplier", of=size, length=None, default=[1, 1, 2, 2, 4]) or [1]
    number, code = q.size("num_res_blocks", default=2), q.size("embed_dim", default=8)
    doubled = 1 + q.flag("double_latent", default=False)
    widths = [base * factor for factor in factors]
    if base % 32:
        q.fault("base_channels", base, "a multiple of 32, for norms have 32 groups")
    last = widths[-1]
    middle = 2 * _residual(last, last) + _attention(last)
    encoder = _taps(q.size("in_channels", default=3), base) + middle + 2 * last + _taps(last, doubled * latent)
    encoder += sum(_level(before, after, number) for before, after in pairwise([base, *widths])) + number * _attention(
        last
    )
    encoder += sum(_taps(width, width) for width in widths[:-1])
    decoder = _taps(latent, last) + middle + 2 * widths[0] + _taps(widths[0], q.size("out_channels", default=3))
    decoder += sum(_level(before, after, number + 1) for before, after in pairwise([last, *reversed(widths)]))
    decoder += (number + 1) * _attention(last) + sum(_taps(width, width) for width in widths[1:])
    table = q.size("num_embeddings", default=16384) * code
    return int(encoder + decoder + table + linear(latent, code) + linear(code, latent))


def _taps(before: int, after: int) -> int:
    """A convolution of three by three."""
    return linear(9 * before, after)


def _residual(before: int, after: int) -> int:
    short = linear(before, after) if before != after else 0
    return 2 * before + _taps(before, after) + 2 * after + _taps(after, after) + short


def _level(before: int, after: int, number: int) -> int:
    return _residual(before, after) + (number - 1) * _residual(after, after)


def _attention(width: int) -> int:
    return 2 * width + 4 * linear(width, width)
