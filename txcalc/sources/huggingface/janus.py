"""Janus: a tower that reads pictures, and beside the language model a codec, a table and a head that make them.

Shapes are those of transformers' janus classes, whose defaults absent keys take.
"""

from __future__ import annotations

from itertools import pairwise

from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.leaf_list import Leaves, attention_leaves, leaf, norm_leaf
from txcalc.sources.huggingface.tower_types import Sizes, Tower, leaf_tower, mlp_width
from txcalc.sources.huggingface.towers import square, stack
from txcalc.sources.spec import size


def tower(v: Config) -> Tower:
    """SigLIP's without a head; its feed-forward is `mlp_ratio` times as wide."""
    d, heads = v.size("hidden_size", default=1024), v.size("num_attention_heads", default=16)
    v.divides(heads, d, "num_attention_heads", "hidden_size")
    sizes = Sizes(d, mlp_width(v, d, 4.0), v.size("num_hidden_layers", default=24), heads)
    biased = {"bias": True if v.flag("attention_bias", default=True) else ["o"]}
    act = v.activation("hidden_act", default="gelu")
    wide = v.size("projection_dim", default=2048)
    steps: list[Raw] = [{"linear": wide}]
    for _ in range(v.size("depth", default=2) - 1):
        steps += [{"activation": act}, {"linear": wide}]
    return Tower(d, stack(sizes, act, attention=biased, vision=square(v, 384, 16, class_token=False)), tuple(steps))


def maker(q: Config) -> Tower:
    """What makes pictures and runs by itself: the codec; the table of its codes, the matrices after it, and the head
    that says the next."""
    codes, code = q.size("num_embeddings", default=16384), q.size("embed_dim", default=8)
    wide = q.size("projection_dim", default=2048)
    embed_dim, more = q.size("image_token_embed_dim", default=2048), q.size("num_hidden_layers", default=2) - 1
    leaves = [leaf("codes", "table", codes, code), leaf("aligner", "linear", code, wide)]
    leaves += [leaf("aligners", "linear", wide, wide, times=more)] * (more > 0)
    leaves += [leaf("head_first", "linear", embed_dim, wide), leaf("head_last", "linear", wide, codes)]
    return Tower(wide, leaf_tower(wide, [*_codec(q), *leaves]), why="it makes pictures")


def _codec(q: Config) -> Leaves:
    """A convolutional encoder and decoder with a table of codes between them."""
    base, latent = q.size("base_channels", default=128), q.size("latent_channels", default=256)
    factors = q.items("channel_multiplier", of=size, length=None, default=[1, 1, 2, 2, 4]) or [1]
    number, code = q.size("num_res_blocks", default=2), q.size("embed_dim", default=8)
    doubled = 1 + q.flag("double_latent", default=False)
    widths = [base * factor for factor in factors]
    if base % 32:
        q.fault("base_channels", base, "a multiple of 32, for norms have 32 groups")
    last = widths[-1]
    middle = [*_residual(last, last, 2), *_attends(last, 1)]
    leaves = [*_taps(q.size("in_channels", default=3), base), *middle, norm_leaf("encoded", last)]
    leaves += _taps(last, doubled * latent)
    for before, after in pairwise([base, *widths]):
        leaves += _level(before, after, number)
    leaves += _attends(last, number)
    for width in widths[:-1]:
        leaves += _taps(width, width)
    leaves += [*_taps(latent, last), *middle, norm_leaf("decoded", widths[0])]
    leaves += _taps(widths[0], q.size("out_channels", default=3))
    for before, after in pairwise([last, *reversed(widths)]):
        leaves += _level(before, after, number + 1)
    leaves += _attends(last, number + 1)
    for width in widths[1:]:
        leaves += _taps(width, width)
    leaves += [leaf("vectors", "table", q.size("num_embeddings", default=16384), code)]
    leaves += [leaf("coded", "linear", latent, code), leaf("uncoded", "linear", code, latent)]
    return [item | {"name": f"codec{i + 1}_{item['name']}"} for i, item in enumerate(leaves)]


def _taps(before: int, after: int, times: int = 1) -> Leaves:
    """A convolution of three by three."""
    return [leaf("conv", "convolution", before, after, 9, 1, times=times)]


def _residual(before: int, after: int, times: int = 1) -> Leaves:
    short = [leaf("short", "linear", before, after, times=times)] * (before != after)
    first = [norm_leaf("first", before, times=times), *_taps(before, after, times)]
    return [*first, norm_leaf("second", after, times=times), *_taps(after, after, times), *short]


def _level(before: int, after: int, number: int) -> Leaves:
    return _residual(before, after) + (_residual(after, after, number - 1) if number > 1 else [])


def _attends(width: int, times: int) -> Leaves:
    return [norm_leaf("attention", width, times=times), *attention_leaves("", width, 1, width, times=times)]
