"""Tiny models of every architecture, as `data/tiny.toml` describes them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

V = 50
TINY: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "data" / "tiny.toml").read_text("utf-8"))
