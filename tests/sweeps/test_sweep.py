"""Sweeps: every figure of a grid equals the ledger of that one configuration, in ints, whatever the size of numbers."""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

import pytest
from command import Command
from hypothesis import given, settings, strategies as st

pytest.importorskip("numpy")

import numpy as np

from txcalc import InputError, MissingExtra, UnknownName, load
from txcalc.planning.memory import cache_bytes, saved_bytes, weights_bytes
from txcalc.sweeps.sweep import COLUMNS, WORKLOAD, Sweep, parse_axis

BLOCK = "D=512 h=8 F=1376 L=1"
DERIVED = {"weights_bytes": weights_bytes, "saved_bytes": saved_bytes, "cache_bytes": cache_bytes}


def rows(grid: Sweep) -> list[tuple[int, ...]]:
    return [row for block in grid for row in zip(*(column.tolist() for column in block), strict=True)]


def one_by_one(source: str, axes: dict[str, list[int]], quantities: list[str], **work: Any) -> list[tuple[int, ...]]:
    """The same table from ledgers of ints."""
    result = []
    for point in product(*axes.values()):
        at = dict(zip(axes, point, strict=True))
        changes = {key: value for key, value in at.items() if key not in WORKLOAD}
        lengths = {WORKLOAD[key]: value for key, value in at.items() if key in WORKLOAD}
        ledger = load(source, changes).ledger(**{**work, **lengths})
        figures = [DERIVED[q](ledger) if q in DERIVED else ledger.total(q) for q in quantities]
        result.append((*point, *figures))
    return result


def swept(source: str, axes: dict[str, list[int]], quantities: list[str], **work: Any) -> list[tuple[int, ...]]:
    grid = [parse_axis(f"{name}={','.join(map(str, values))}") for name, values in axes.items()]
    return rows(Sweep(load(source), grid, quantities, work))


# Grids.


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("T=1k:8k:2x", [1024, 2048, 4096, 8192]),
        ("T=1:100:10x", [1, 10, 100]),
        ("T=3:20:2x", [3, 6, 12]),
        ("D=512:2048:+512", [512, 1024, 1536, 2048]),
        ("D=512:2000:512", [512, 1024, 1536]),
        ("h=8, 16,32", [8, 16, 32]),
        ("T=5:5:1", [5]),
    ],
)
def test_grids(text: str, values: list[int]) -> None:
    axis = parse_axis(text)
    assert list(axis.values) == values
    assert axis.take(np.arange(len(values))).tolist() == values


def test_an_unknown_quantity_names_its_neighbour() -> None:
    with pytest.raises(UnknownName, match=r"no quantity named 'flop' \(did you mean flops"):
        Sweep(load(BLOCK), [parse_axis("T=1")], ["flop"])
    assert Sweep(load(BLOCK), [parse_axis("T=1,2,3")], ["flops"], most=3).points == 3


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (["h_kv=1,2,4,3,8"], "at h_kv = 3: h_kv is 3, expected a divisor of n_heads = 8"),
        (["D=512,513", "T=1:999:1"], "at D = 513, T = 1: attention.d_head is missing, expected a head size"),
        (["d_h=64,8", "positions.rotary_dims=4:12:+1"], "at d_h = 8, positions.rotary_dims = 9: positions.rotary_dims"),
    ],
)
def test_the_one_bad_combination_is_named(over: list[str], message: str) -> None:
    with pytest.raises(InputError) as error:
        rows(Sweep(load(BLOCK), [parse_axis(text) for text in over], ["flops"]))
    assert message in str(error.value)


def test_too_many_experts_per_token_are_found_in_arrays() -> None:
    with pytest.raises(InputError, match=r"at E = 8, k = 9: k is 9, expected at most E = 8"):
        rows(Sweep(load("D=64 h=1 F=64 L=2 E=8 k=2"), [parse_axis("E=16,8"), parse_axis("k=1:9:+1")], ["active"]))


# Figures.

lengths = st.lists(st.integers(1, 3000), min_size=1, max_size=3)
small = st.lists(st.integers(1, 40), min_size=1, max_size=3)
huge = st.lists(st.integers(1, 10**12) | st.sampled_from([2**26, 2**31 - 1, 2**31, 10**12]), min_size=1, max_size=3)
every = list(COLUMNS)


@pytest.mark.slow
@given(st.data())
def test_every_figure_is_that_of_one_ledger(data: st.DataObject) -> None:
    source, keys = data.draw(
        st.sampled_from(
            [
                (BLOCK, ("F", "L", "W")),
                ("D=512 h=8 F=1376 L=3 V=99 E=40 k=1 tied", ("k", "F", "V")),
                ("gemma-3-27b", ("F", "W", "V")),
                ("deepseek-v3", ("r_q", "d_rope", "n_shared", "F_e")),
                ("mixtral-8x7b", ("E", "F_e")),
                ("jamba-v0.1", ("mamba.d_state", "F_e")),
                ("mamba2-2.7b", ("N_2", "D")),
                ("t5-small", ("F", "L", "T_src", "P")),
                ("whisper-large-v3", ("P", "m")),
                ("albert-base-v2", ("L", "r_e")),
            ]
        )
    )
    chosen = data.draw(st.lists(st.sampled_from(keys), unique=True, max_size=2))
    axes: dict[str, list[int]] = {}
    for key in chosen:
        least = 2 if key == "E" else 1
        values = data.draw(st.lists(st.integers(least, 40), min_size=1, max_size=3))
        axes[key] = (
            [v - 1 for v in values] if key in ("P", "n_shared") else [64 * v for v in values] if key == "D" else values
        )
    for letter in data.draw(st.lists(st.sampled_from(["B", "T"]), unique=True, max_size=2)):
        axes[letter] = data.draw(lengths)
    if not axes:
        axes["T"] = [1]
    assert swept(source, axes, every) == one_by_one(source, axes, every)


@pytest.mark.slow
@given(huge, huge)
def test_figures_of_any_size_are_exact(tokens: list[int], batch: list[int]) -> None:
    axes = {"T": tokens, "B": batch}
    assert swept("llama-3.1-8b", axes, every) == one_by_one("llama-3.1-8b", axes, every)
    assert swept("gemma-3-27b", axes, every) == one_by_one("gemma-3-27b", axes, every)


@pytest.mark.slow
@given(huge, st.lists(st.integers(0, 10**12), min_size=1, max_size=3))
def test_a_small_difference_of_large_squares_is_exact(tokens: list[int], past: list[int]) -> None:
    axes = {"T": [1, *tokens], "P": past}
    quantities = ["flops_masked", "cache", "cache_bytes"]
    assert swept("gpt2", axes, quantities) == one_by_one("gpt2", axes, quantities)


@pytest.mark.slow
@settings(max_examples=6)
@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=2), st.lists(st.integers(1, 10**6), min_size=2, max_size=2))
def test_descriptions_of_any_size_are_exact(widths: list[int], rows_of_table: list[int]) -> None:
    axes = {"D": [512 * w for w in widths], "V": rows_of_table, "F": widths}
    source = "D=512 h=8 F=1376 L=100000 V=99"
    assert swept(source, axes, every, tokens=10**5) == one_by_one(source, axes, every, tokens=10**5)


def test_a_long_past_and_a_large_batch_are_exact() -> None:
    axes = {"P": [999_999_700_002, 999_999_700_008], "B": [3, 40_001, 90_001]}  # where a float64 is furthest off
    assert swept("llama-3.1-405b", axes, ["flops_masked"]) == one_by_one("llama-3.1-405b", axes, ["flops_masked"])


# Structure, blocks and order.


def test_layers_of_a_pattern_are_counted_one_by_one_in_the_order_of_the_grid() -> None:
    axes = {"T": [8192, 2048, 8192], "L": [12, 6, 62, 13]}
    got = swept("gemma-3-27b", axes, ["params", "cache"])
    assert [row[:2] for row in got] == list(product([8192, 2048, 8192], [12, 6, 62, 13]))
    assert got == one_by_one("gemma-3-27b", axes, ["params", "cache"])


def test_no_shared_expert_is_not_one_of_width_zero() -> None:
    """Which would have a bias."""
    source, axes = "D=512 h=8 F=1376 L=3 E=40 k=1 bias", {"n_shared": [0, 2, 1], "F": [3, 5]}
    assert swept(source, axes, every) == one_by_one(source, axes, every)


@pytest.mark.slow
def test_blocks_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    axes = {"F": [7, 9, 11], "T": [1, 2, 3, 5], "P": [0, 4]}
    whole = swept(BLOCK, axes, ["flops"])
    monkeypatch.setattr(sys.modules[Sweep.__module__], "BLOCK", 7)
    assert swept(BLOCK, axes, ["flops"]) == whole == one_by_one(BLOCK, axes, ["flops"])


# The command.


run = Command("sweep", columns=100)


def test_without_numpy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name in ("txcalc.sweeps.sweep", "txcalc.render.sweep")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtra, match=r"pip install 'txcalc\[sweep\]'"):
        __import__("txcalc.sweeps.sweep")
    code, out, err = run("gpt2", "--over", "T=1,2")
    assert (code, out) == (3, "")
    assert "pip install 'txcalc[sweep]'" in err
