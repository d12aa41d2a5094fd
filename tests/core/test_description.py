"""A resolved description: typed, frozen, and the same whatever is done to it and undone."""

from __future__ import annotations

from typing import Any

import pytest

from txcalc import load
from txcalc.description import as_tables, map_values
from txcalc.parts.attention import AttentionOptions
from txcalc.parts.options import Unsound


def test_a_copy_with_other_values_is_another() -> None:
    description = load("deepseek-v3").description
    assert map_values(description, lambda _, value: value) == description
    halved = map_values(description, lambda key, value: value // 2 if key == "kv_rank" else value)
    assert [layer.latent.kv_rank for layer in halved.layers if layer.latent] == [256, 256]
    assert halved != description
    assert as_tables(halved)["stacks"][""]["layer"]["dense"]["latent"]["kv_rank"] == 256
    with pytest.raises(AttributeError, match="frozen"):
        description.last.d_model = 1


def test_a_faulty_key_cannot_be_read() -> None:
    table: dict[str, Any] = {"n_heads": 4}
    attention = AttentionOptions.chosen(table).filled(table, ["d_head"])
    assert attention.n_heads == 4
    for read in (lambda: attention.d_head, lambda: attention.get("d_head")):
        with pytest.raises(Unsound):
            read()
