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


def diff(one: str, other: str, **work: Any) -> dict[str, KeyDifference]:
    found = differences(txcalc.load(one), txcalc.load(other), work or {"tokens": 16})
    assert len({d.key for d in found}) == len(found)
    return {d.key: d for d in found}


run = Command("diff", columns=100, NO_COLOR="1")


@pytest.mark.slow
def test_each_costs_what_the_same_change_by_hand_costs() -> None:
    found = diff("llama-3.1-8b", "qwen3-8b", tokens=2048)
    model = txcalc.load("llama-3.1-8b")
    before = model.ledger(tokens=2048)
    for key, letter in (("n_layers", "L"), ("vocab_size", "V"), ("feed_forward.d_ff", "F")):
        changed = txcalc.load("llama-3.1-8b", {letter: found[key].right}).ledger(tokens=2048)
        assert found[key].letter == letter
        assert found[key].cost == cost(before, changed)
    assert found["n_layers"].cost is not None
    layer = 4096 * 128 * (32 + 8) * 2 + 3 * 4096 * 14336 + 2 * 4096
    assert found["n_layers"].cost.params == 4 * layer
    assert found["n_layers"].cost.growth == 4 * 2 * 8 * 128
    assert {key: d.cost.params for key, d in found.items() if d.cost and d.cost.params} == {
        "n_layers": 4 * layer,
        "vocab_size": 2 * 4096 * (151_936 - 128_256),
        "attention.qk_norm": 32 * 2 * 128,
        "feed_forward.d_ff": 32 * 3 * 4096 * (12_288 - 14_336),
    }


def test_attention_is_told_from_experts_and_from_depth() -> None:
    """Each by hand: MLA over 126 dense layers of 16,384, experts under GQA in all but three, 61 layers of 126."""
    found = diff("llama-3.1-405b", "deepseek-v3")
    alone = {key: d for key, d in found.items() if key.startswith("layers.")}
    assert {key: (d.left, d.right) for key, d in alone.items()} == {
        "layers.n_layers": (126, 61),
        "layers.mixer": ("GQA", "MLA"),
        "layers.feed_forward": ("feed_forward", "3*feed_forward, 58*experts"),
    }
    assert [*alone] == ["layers.n_layers", "layers.mixer", "layers.feed_forward"]
    costs = {key: d.cost for key, d in alone.items() if d.cost}
    d, dense, expert = 16384, 3 * 16384 * 53248, 3 * 16384 * 2048
    gqa = 2 * d * 128 * (128 + 8)
    mla = d * 1536 + 1536 + 1536 * 128 * 192 + d * (512 + 64) + 512 + 512 * 128 * 256 + 128 * 128 * d
    assert costs["layers.mixer"].params == 126 * (mla - gqa)
    assert costs["layers.mixer"].growth == 126 * (512 + 64 - 2 * 8 * 128)
    assert costs["layers.feed_forward"].params == 123 * (257 * expert + 256 * d - dense)
    assert costs["layers.feed_forward"].growth == 0
    assert costs["layers.n_layers"].params == -65 * (gqa + dense + 2 * d)


def test_what_cannot_be_applied_alone_says_why() -> None:
    found = diff("gpt2", "llama-3.1-8b")["attention.n_kv_heads"]
    assert found.cost is None
    assert "expected a divisor of n_heads = 12" in found.why


def test_halves_that_change_alike_are_one_difference() -> None:
    found = diff("t5-small", "t5-base")
    assert {key for key, d in found.items() if d.cost and d.cost.params} == {
        "d_model",
        "n_layers",
        "attention.n_heads",
        "feed_forward.d_ff",
    }


def test_a_single_stack_and_two_are_not_compared() -> None:
    (found,) = diff("gpt2", "t5-small").values()
    assert found.cost is None
    assert "an encoder and a decoder" in found.why


@pytest.mark.slow
@given(st.sampled_from(names()), st.sampled_from(names()))
def test_any_two_models_are_compared_without_a_fault(one: str, other: str) -> None:
    found = differences(txcalc.load(one), txcalc.load(other), {})
    assert (one == other) == (not found) or txcalc.load(one).params == txcalc.load(other).params
    assert all((d.cost is None) == bool(d.why) for d in found)


@pytest.mark.slow
@given(descriptions, descriptions)
def test_any_descriptions_are_compared_and_written_out_in_full(one: dict[str, Any], other: dict[str, Any]) -> None:
    mine, theirs = build(one, "one"), build(other, "other")
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
    found = {d.letter: d for d in differences(model, changed, {"tokens": 3})}
    # h_kv is h in Llama 2, unless the file sets it apart
    assert set(found) - {"h_kv"} == {letter for letter, value in changes.items() if before[keys[letter]] != value}
    if len(found) == 1:
        (only,) = found.values()
        assert only.cost == cost(model.ledger(tokens=3), changed.ledger(tokens=3))


# The command.


def test_layers_alike_of_a_named_kind_are_compared() -> None:
    rest = {"kind": "decoder", "d_model": 8, "n_layers": 3, "pattern": ["a"]}
    one = {**rest, "layer": {"a": {"parts": ["time_mix", "feed_forward"], "time_mix": {}}}, "feed_forward": {"d_ff": 8}}
    other = {**rest, "layer": {"a": {"parts": ["attention", "channel_mix"], "attention": {"n_heads": 1}}}}
    other |= {"channel_mix": {"d_ff": 8}}
    assert txcalc.diff(one, other).whole.params == txcalc.load(other).params - txcalc.load(one).params
