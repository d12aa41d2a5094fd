"""The tables of a description, and the module with each one's options and part, loaded on first use."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib import import_module
from pathlib import Path

from txcalc.parts.options import Options, Wrong, one_of

# In place of attention.
MIXERS = {
    "mamba": "recurrent",
    "mamba2": "recurrent",
    "delta": "delta",
    "rg_lru": "recurrent",
    "linear_attention": "linear_attention",
    "time_mix": "rwkv",
    "short_convolution": "convolution",
    "draft_attention": "drafts",
    # One file each.
    **{path.stem: f"mixers.{path.stem}" for path in sorted((Path(__file__).parent / "mixers").glob("[a-z]*.py"))},
}
# Parallel to it, or in place of the feed-forward.
OTHERS = {"channel_mix": "rwkv", "convolution": "convolution"}
# Tables that describe a layer's attention in place of [attention].
ATTENTIONS = {"latent": "latent"}
# Tables of a Transformer, around and in its layers.
TABLES = {
    "attention": "attention",
    **ATTENTIONS,
    "positions": "positions",
    "feed_forward": "feedforward",
    "experts": "feedforward",
    "layer_input": "feedforward",
    "shared": "shared",
    "norm": "norm",
    "embedding": "embedding",
    "head": "head",
    "lora": "adapters",
    "features": "drafts",
    "vision": "embedding",
    "audio": "embedding",
    "projector": "projectors",
}
ALL = TABLES | MIXERS | OTHERS
# Names of parts in a layer's list, and the tables that describe them.
PARTS = ("attention", "cross_attention", "feed_forward", "experts", *MIXERS, *OTHERS, "shared", "layer_input")
PART_TABLES = ("attention", *ATTENTIONS, *PARTS[2:])


def parts_of(value: object) -> list[str]:
    """Names of a layer's parts."""
    if isinstance(value, list) and all(isinstance(item, str) and item in PARTS for item in value):
        return value
    raise Wrong(f"a list out of {', '.join(PARTS)}")


def side_by_side(value: object) -> str | list[str]:
    """How the parts of a layer are parallel."""
    if isinstance(value, list):
        return parts_of(value)
    try:
        return str(_ALL(value))
    except Wrong as wrong:
        raise Wrong(f"{wrong.expected}, or a list of a layer's parts") from None


_ALL = one_of("no", "shared", "separate")
side_by_side.choices = _ALL.choices  # type: ignore[attr-defined]


def section_of(part: str, tables: Collection[str]) -> str:
    """The table that describes a part, given the tables of its layer."""
    if part == "cross_attention":
        return "attention"
    return next((name for name in ATTENTIONS if part == "attention" and name in tables), part)


@cache
def options(section: str) -> type[Options]:
    """The options of a table."""
    module = import_module(f"txcalc.parts.{ALL[section]}")
    classes = (value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Options))
    return next(kind for kind in classes if vars(kind).get("section") == section)
