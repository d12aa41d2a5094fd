"""The tables of a description that have options of their own, and in which module each one's options and part are.

A module is loaded when its options are first asked for.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from txcalc.parts.options import Options, Wrong, one_of

# In the place of attention.
MIXERS = {
    "mamba": "recurrent",
    "mamba2": "recurrent",
    "delta": "delta",
    "rg_lru": "recurrent",
    "linear_attention": "linear_attention",
    "matrix_memory": "linear_attention",
    "time_mix": "rwkv",
    "short_convolution": "convolution",
    "rnn": "cells",
    "hyena": "hyena",
    "draft_attention": "drafts",
    # Those that are a file by themselves.
    **{path.stem: f"mixers.{path.stem}" for path in sorted((Path(__file__).parent / "mixers").glob("[a-z]*.py"))},
}
# Beside it, or in the place of the feed-forward.
OTHERS = {"channel_mix": "rwkv", "convolution": "convolution", "fourier": "convolution"}
# What a layer's attention may be described by in the place of [attention].
ATTENTIONS = {
    "latent": "latent",
    "differential_attention": "differential",
    "expert_attention": "routed",
    "span_attention": "convolution",
}
# What a Transformer has, and what stands around its layers.
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
# The tables that parts of a layer have, and the names that parts have in a layer's list.
PARTS = ("attention", "cross_attention", "feed_forward", "experts", *MIXERS, *OTHERS, "shared", "layer_input")
PART_TABLES = ("attention", *ATTENTIONS, *PARTS[2:])


def parts_of(value: Any) -> list[str]:
    """Names of a layer's parts."""
    if isinstance(value, list) and all(isinstance(item, str) and item in PARTS for item in value):
        return value
    raise Wrong(f"a list out of {', '.join(PARTS)}")


def side_by_side(value: Any) -> str | list[str]:
    """How the parts of a layer stand side by side."""
    if isinstance(value, list):
        return parts_of(value)
    try:
        return str(_ALL(value))
    except Wrong as wrong:
        raise Wrong(f"{wrong.expected}, or a list of a layer's parts") from None


_ALL = one_of("no", "shared", "separate")
side_by_side.choices = _ALL.choices  # type: ignore[attr-defined]


def section_of(part: str, tables: Collection[str]) -> str:
    """The table that describes a part of a layer, of those that there are."""
    if part == "cross_attention":
        return "attention"
    return next((name for name in ATTENTIONS if part == "attention" and name in tables), part)


@cache
def options(section: str) -> type[Options]:
    """The options of a table."""
    module = import_module(f"txcalc.parts.{ALL[section]}")
    found = (each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Options))
    return next(each for each in found if vars(each).get("section") == section)
