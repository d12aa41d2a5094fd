"""Tiny models of every architecture, as `data/tiny.toml` describes them."""

from __future__ import annotations

import tomllib
from typing import Any

from paths import DATA

from txcalc.model import Model
from txcalc.sources import build

V = 50
TINY: dict[str, dict[str, Any]] = tomllib.loads((DATA / "tiny.toml").read_text("utf-8"))

QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 100,
}


def tiny(name: str, **changes: Any) -> Model:
    return build({**TINY[name], **changes}, name)
