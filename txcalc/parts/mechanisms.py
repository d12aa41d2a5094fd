"""The mechanisms that have a table of their own name, and in which module each one's part and options are.

A module is loaded when one of its mechanisms is first asked for.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from txcalc.parts.options import Options

# In the place of attention.
MIXERS = {
    "mamba": "recurrent",
    "mamba2": "recurrent",
    "delta": "linear_attention",
    "rg_lru": "recurrent",
    "linear_attention": "linear_attention",
    "matrix_memory": "linear_attention",
    "time_mix": "linear_attention",
    "short_convolution": "convolution",
    "rnn": "cells",
    "hyena": "hyena",
}
# Beside it, or in the place of the feed-forward.
OTHERS = {"channel_mix": "linear_attention", "convolution": "convolution", "fourier": "convolution"}


@cache
def options(section: str) -> type[Options]:
    """The options of a mechanism."""
    module = import_module(f"txcalc.parts.{(MIXERS | OTHERS)[section]}")
    found = (each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Options))
    return next(each for each in found if vars(each).get("section") == section)
