"""Tiny models of every architecture, as `data/tiny.toml` describes them."""

from __future__ import annotations

import tomllib
from typing import Any

from paths import DATA

from txcalc.model import Model
from txcalc.sources import build

V = 50
TINY: dict[str, dict[str, Any]] = tomllib.loads((DATA / "tiny.toml").read_text("utf-8"))


def config_sizes(width: int, layers: int, heads: int, d_ff: int, vocab: int, **others: Any) -> dict[str, Any]:
    """The sizes of a config.json by their usual keys, and other keys."""
    usual = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**usual, "intermediate_size": d_ff, "vocab_size": vocab, **others}


QWEN3 = config_sizes(64, 2, 4, 96, 100, model_type="qwen3", num_key_value_heads=4, head_dim=16)


def tiny(name: str, **changes: Any) -> Model:
    return build({**TINY[name], **changes}, name)
