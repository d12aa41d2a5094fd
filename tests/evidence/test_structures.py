"""Structures of layers: their parameters, by which theorems hold for every size, and the conditions of theorems."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny import TINY

from txcalc import load
from txcalc.evidence.store import Theorem, TheoremFiles, save
from txcalc.evidence.structures import Size, leaf, probe, units
from txcalc.evidence.theorems import Condition
from txcalc.sources import build

MIXTURE = "D=64 L=4 h=8 h_kv=4 F=96 V=250 E=4 k=2"

DENSE = "D=64 L=4 h=8 h_kv=4 F=96 V=250"

STREAM = {"d_model": 64, "feed_forward.d_ff": 96}

HEADS = {"attention.n_kv_heads": 4, "attention.n_heads/n_kv_heads": 2, "attention.d_head/2": 4}


def primes(number: int) -> Iterator[int]:
    candidate = 11
    while number:
        if all(candidate % n for n in range(2, candidate)):
            number -= 1
            yield candidate
        candidate += 1


def test_a_size_is_a_sum_of_products() -> None:
    size = Size(((2, ("r",)), (1, ("s", "t")), (5, ())))
    assert (size.over({"r": 3, "s": 5, "t": 7}), str(size)) == (2 * 3 + 35 + 5, "2·r + s·t + 5")


def test_a_size_below_0_is_a_letter_taken_off() -> None:
    piece = {"form": "linear", "bias": False, "shared": False, "groups": 1, "sizes": [8, 6], "at": [2, -3], "keys": ""}
    assert [str(size) for size in leaf(piece).content["leaf"]["at"]] == ["leaf.at.0", "-1·leaf.at.1"]


def test_widths_of_a_grouped_leaf_are_multiples_of_its_groups() -> None:
    piece = {"form": "grouped", "bias": False, "shared": False, "groups": 2, "sizes": [8, 6], "at": [1], "keys": ""}
    sizes = [str(size) for size in leaf(piece).content["leaf"]["sizes"]]
    assert sizes == ["leaf.groups·leaf.d_in", "leaf.groups·leaf.d_out"]
    assert leaf(piece).values == {"leaf.groups": 2, "leaf.d_in": 4, "leaf.d_out": 3}


@pytest.mark.parametrize(
    ("source", "changes", "values"),
    [
        (DENSE, {}, STREAM | HEADS),
        ("D=64 L=2 h=8 h_kv=1 F=96 V=250", {}, STREAM | {"attention.n_heads": 8, "attention.d_head/2": 4}),
        ("D=64 L=2 h=8 F=96 V=250", {}, STREAM | {"attention.n_kv_heads": 8, "attention.d_head/2": 4}),
        ("D=64 L=2 h=4 F=96 V=250 direct", {},
         {"attention.n_kv_heads": 4, "attention.d_head/2": 8, "feed_forward.d_ff": 96}),
        (DENSE, {"positions.rotary_dims": 4},
         STREAM | HEADS | {"positions.rotary_dims/2": 2, "attention.d_head-rotary/2": 2}),
        (DENSE, {"positions.rotary_dims": 2},
         STREAM | HEADS | {"attention.d_head-rotary/2": 3}),
        (DENSE, {"attention.d_head": 2}, STREAM | {name: HEADS[name] for name in [*HEADS][:2]}),
        (DENSE, {"positions.form": "sinusoidal"}, HEADS | {"d_model/2": 32, "feed_forward.d_ff": 96}),
        (MIXTURE, {}, {"d_model": 64, **HEADS, "experts.top_k": 2, "experts.idle": 2, "experts.d_ff": 96}),
        (MIXTURE.replace("k=2", "k=1"), {}, {"d_model": 64, **HEADS, "experts.n_experts": 4, "experts.d_ff": 96}),
    ],
)  # fmt: skip
def test_the_parameters_of_a_layer(source: str, changes: dict[str, Any], values: dict[str, int]) -> None:
    """h is h_kv·g unless one of them is 1, a head's width even (two, if there is no less) and, where part of it is
    turned, that and a rest; what heads together are as wide as is theirs; a stream of sines and cosines is even;
    experts are those that a token passes, if several, and the others."""
    *frame, layer = units(load(source, changes))
    assert layer.values == values
    width = "d_model/2" if changes.get("positions.form") == "sinusoidal" else "d_model"
    assert frame[0].values[width] == values.get(width, 64) and frame[0].values["vocab_size"] == 250
    numbers = probe(layer)
    assert list(numbers) == sorted(values) and list(numbers.values()) == list(primes(len(values)))


def test_what_is_absent_is_no_size() -> None:
    """A structure's key says nothing of a size of 0, and says of a size of 1 that it is one."""
    *_, layer = units(load(MIXTURE.replace("k=2", "k=1")))
    experts = layer.description.last.layer["layer"].experts
    assert experts and (experts.d_ff_shared, experts.top_k) == (0, Size(((1, ()),)))


def test_a_width_is_divided_among_heads_where_there_are_any() -> None:
    assert units(build(TINY["mamba"], "mamba"))[-1].values["mamba.d_inner"] == 64
    assert units(build(TINY["mamba2"], "mamba2"))[-1].values["mamba2.n_heads/n_groups"] == 4


def test_what_a_head_has_beyond_its_turned_part_is_a_parameter() -> None:
    """Of 8 of a head 4 are turned, of 6 of the index as many; where all are, their number is the head's."""
    layers = {unit.name: unit.description.last.layer["layer"] for unit in units(build(TINY["laguna"], "laguna"))}
    turned = {name: str(layer.positions.get("rotary_dims")) for name, layer in layers.items()}
    attention = layers["layer local"].attention
    assert attention and turned["layer local"] == str(attention.d_head) == "2·attention.d_head/2"
    assert turned["layer wide"] == "2·positions.rotary_dims/2"
    *_, layer = units(build(TINY["compressed"], "compressed"))
    beyond = {name: value for name, value in layer.values.items() if "-d_rope" in name}
    assert beyond == {"compressed.d_head-d_rope/2": 2, "compressed.index_width-d_rope": 2}


@pytest.mark.parametrize(("number", "unequal", "least"), [(5, False, True), (6, True, True), (4, True, False)])
def test_a_condition_holds_or_not(number: int, unequal: bool, least: bool) -> None:
    size = Size(((1, ("n",)), (-5, ())))
    for relation, holds, sign in (("!=", unequal, "≠"), (">=", least, "≥")):
        condition = Condition(size, relation)
        assert condition.holds({"n": number}) == holds and str(condition) == f"n + -5 {sign} 0"


def test_theorems_are_those_of_the_first_file_that_has_them(tmp_path: Path) -> None:
    def file(**names: str) -> Path:
        save(path := tmp_path / "".join(names), {key: Theorem(name, {}, "", ()) for key, name in names.items()}, {})
        return path

    files = file(a="one", b="two"), file(b="other", c="three")
    kept = TheoremFiles({path: path.read_text("utf-8") for path in files})
    assert [kept[key].name for key in "abc"] == ["one", "two", "three"] and list(kept) == ["a", "b", "c"]
    assert len(kept) == 3 and "d" not in kept
