"""The letters of every formula, from `symbols.json`: meaning, key in a description, unit.

Inline descriptions, `--set`, headings, help, the README's table and SymPy's symbols all use this table.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple


class Symbol(NamedTuple):
    """`letter` in formulas, `key` in a description (dotted; "" for the workload), `meaning`, `unit`, `latex`."""

    letter: str
    key: str
    meaning: str
    unit: str
    latex: str


TABLE = tuple(Symbol(*row) for row in json.loads(Path(__file__).with_suffix(".json").read_text("utf-8")))
BY_LETTER = {symbol.letter: symbol for symbol in TABLE}

# Other names of sizes in configs.
OTHER_NAMES = {
    **dict.fromkeys(("layers", "n_layer", "num_layers", "num_hidden_layers"), "L"),
    **dict.fromkeys(("width", "dim", "hidden", "n_embd", "hidden_size"), "D"),
    **dict.fromkeys(("heads", "n_head", "num_heads", "num_attention_heads"), "h"),
    **dict.fromkeys(("kv_heads", "num_kv_heads", "num_key_value_heads"), "h_kv"),
    **dict.fromkeys(("ff", "ffn", "n_inner", "intermediate_size"), "F"),
    **dict.fromkeys(("experts", "num_experts", "num_local_experts", "n_routed_experts"), "E"),
    "head_dim": "d_h",
    "vocab": "V",
    "sliding_window": "W",
    "num_experts_per_tok": "k",
    "moe_intermediate_size": "F_e",
}
