"""What differs between two models: every difference alone costs what a model with just that key changed costs more."""

from __future__ import annotations

from typing import Any

import pytest
from command import Command
from hypothesis import given, strategies as st
from strategies import descriptions

import txcalc
from txcalc.planning.differences import KeyDifference, cost, differences
from txcalc.sources import build
from txcalc.sources.explicit import explicit
from txcalc.sources.export import same_ledger
from txcalc.sources.presets import names


def diff(left: str, right: str, **work: Any) -> dict[str, KeyDifference]:
    rows = differences(txcalc.load(left), txcalc.load(right), work or {"tokens": 16})
    assert len({d.key for d in rows}) == len(rows)
    return {d.key: d for d in rows}


run = Command("diff", columns=100, NO_COLOR="1")


@pytest.mark.slow
def test_each_costs_what_the_same_change_by_hand_costs() -> None:
    by_key = diff("llama-3.1-8b", "qwen3-8b", tokens=2048)
    model = txcalc.load("llama-3.1-8b")
    before = model.ledger(tokens=2048)
    for key, letter in (("n_layers", "L"), ("vocab_size", "V"), ("feed_forward.d_ff", "F")):
        changed = txcalc.load("llama-3.1-8b", {letter: by_key[key].right}).ledger(tokens=2048)
        assert by_key[key].letter == letter
        assert by_key[key].cost == cost(before, changed)
    assert by_key["n_layers"].cost is not None
    layer = 4096 * 128 * (32 + 8) * 2 + 3 * 4096 * 14336 + 2 * 4096
    assert by_key["n_layers"].cost.params == 4 * layer
    assert by_key["n_layers"].cost.growth == 4 * 2 * 8 * 128
    assert {key: d.cost.params for key, d in by_key.items() if d.cost and d.cost.params} == {
        "n_layers": 4 * layer,
        "vocab_size": 2 * 4096 * (151_936 - 128_256),
        "attention.qk_norm": 32 * 2 * 128,
        "feed_forward.d_ff": 32 * 3 * 4096 * (12_288 - 14_336),
    }


def test_attention_is_told_from_experts_and_from_depth() -> None:
    """Each by hand: MLA over 126 dense layers of 16,384, experts under GQA in all but three, 61 layers of 126."""
    by_key = diff("llama-3.1-405b", "deepseek-v3")
    of_layers = {key: d for key, d in by_key.items() if key.startswith("layers.")}
    assert {key: (d.left, d.right) for key, d in of_layers.items()} == {
        "layers.n_layers": (126, 61),
        "layers.mixer": ("GQA", "MLA"),
        "layers.feed_forward": ("feed_forward", "3*feed_forward, 58*experts"),
    }
    assert [*of_layers] == ["layers.n_layers", "layers.mixer", "layers.feed_forward"]
    costs = {key: d.cost for key, d in of_layers.items() if d.cost}
    d, dense, expert = 16384, 3 * 16384 * 53248, 3 * 16384 * 2048
    gqa = 2 * d * 128 * (128 + 8)
    mla = d * 1536 + 1536 + 1536 * 128 * 192 + d * (512 + 64) + 512 + 512 * 128 * 256 + 128 * 128 * d
    assert costs["layers.mixer"].params == 126 * (mla - gqa)
    assert costs["layers.mixer"].growth == 126 * (512 + 64 - 2 * 8 * 128)
    assert costs["layers.feed_forward"].params == 123 * (257 * expert + 256 * d - dense)
    assert costs["layers.feed_forward"].growth == 0
    assert costs["layers.n_layers"].params == -65 * (gqa + dense + 2 * d)


def test_what_cannot_be_applied_alone_says_why() -> None:
    difference = diff("gpt2", "llama-3.1-8b")["attention.n_kv_heads"]
    assert difference.cost is None
    assert "expected a divisor of n_heads = 12" in difference.why


def test_halves_that_change_alike_are_one_difference() -> None:
    by_key = diff("t5-small", "t5-base")
    assert {key for key, d in by_key.items() if d.cost and d.cost.params} == {
        "d_model",
        "n_layers",
        "attention.n_heads",
        "feed_forward.d_ff",
    }


def test_a_single_stack_and_two_are_not_compared() -> None:
    (difference,) = diff("gpt2", "t5-small").values()
    assert difference.cost is None
    assert "an encoder and a decoder" in difference.why


@pytest.mark.slow
@given(st.sampled_from(names()), st.sampled_from(names()))
def test_any_two_models_are_compared_without_a_fault(left: str, right: str) -> None:
    rows = differences(txcalc.load(left), txcalc.load(right), {})
    assert (left == right) == (not rows) or txcalc.load(left).params == txcalc.load(right).params
    assert all((d.cost is None) == bool(d.why) for d in rows)


@pytest.mark.slow
@given(descriptions, descriptions)
def test_any_descriptions_are_compared_and_written_out_in_full(left: dict[str, Any], right: dict[str, Any]) -> None:
    mine, theirs = build(left, "one"), build(right, "other")
    whole = build(explicit(mine.description), "whole")
    assert same_ledger(mine, whole)
    assert differences(mine, whole, {}) == []
    assert all((d.cost is None) == bool(d.why) for d in differences(mine, theirs, {}))


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(["L", "h", "F", "V", "d_h"]), st.integers(1, 50).map(lambda n: 64 * n), min_size=1, max_size=4
    )
)
def test_changes_are_found_again(changes: dict[str, int]) -> None:
    model = txcalc.load("llama-2-7b")
    changed = txcalc.load("llama-2-7b", changes)
    stack = model.description.last
    layer = stack.layer["layer"]
    before = {**stack.values(), **layer.tables["attention"].values(), **layer.tables["feed_forward"].values()}
    keys = {"L": "n_layers", "h": "n_heads", "F": "d_ff", "V": "vocab_size", "d_h": "d_head"}
    by_letter = {d.letter: d for d in differences(model, changed, {"tokens": 3})}
    # h_kv is h in Llama 2, unless the file sets it apart
    assert set(by_letter) - {"h_kv"} == {letter for letter, value in changes.items() if before[keys[letter]] != value}
    if len(by_letter) == 1:
        (only,) = by_letter.values()
        assert only.cost == cost(model.ledger(tokens=3), changed.ledger(tokens=3))


# The command.


def test_layers_alike_of_a_named_kind_are_compared() -> None:
    rest = {"kind": "decoder", "d_model": 8, "n_layers": 3, "pattern": ["a"]}
    old = {**rest, "layer": {"a": {"parts": ["time_mix", "feed_forward"], "time_mix": {}}}, "feed_forward": {"d_ff": 8}}
    new = {**rest, "layer": {"a": {"parts": ["attention", "channel_mix"], "attention": {"n_heads": 1}}}}
    new |= {"channel_mix": {"d_ff": 8}}
    assert txcalc.diff(old, new).whole.params == txcalc.load(new).params - txcalc.load(old).params
