"""A resolved description: typed, frozen, and the same whatever is done to it and undone."""

from __future__ import annotations

from typing import Any

import pytest

from txcalc import load
from txcalc.description import as_tables, mapped
from txcalc.parts.attention import AttentionOptions
from txcalc.parts.options import Unsound


def test_its_tables_are_attributes() -> None:
    stack = load("gemma-3-27b").description.last
    windows = {name: layer.attention.get("window") for name, layer in stack.layer.items() if layer.attention}
    assert windows == {"local": 1024, "global": None}
    assert (stack.head.tied, stack.d_model, [number for _, _, number in stack.layer_counts]) == (True, 5376, [52, 10])


def test_a_copy_with_other_values_is_another() -> None:
    description = load("deepseek-v3").description
    assert mapped(description, lambda _, value: value) == description
    halved = mapped(description, lambda key, value: value // 2 if key == "kv_rank" else value)
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
