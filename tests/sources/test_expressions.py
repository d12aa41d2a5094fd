"""Sizes as expressions in others: exact, rounded where it is said, and nothing but arithmetic."""

from __future__ import annotations

import csv
import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st
from paths import stored_rows
from typer.testing import CliRunner

from txcalc import InputError, load
from txcalc.cli import app
from txcalc.sources.expressions import Expression, Unreadable, size_of

SIZES = {"D": 4096, "h": 32, "h_kv": 8, "attention.d_head": 128}


@pytest.mark.parametrize(("text", "value"), stored_rows("units.json", "expressions"))
def test_values_are_exact(text: str, value: Any) -> None:
    assert Expression(text).evaluate(SIZES.__getitem__) == Fraction(value)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "().__class__", "[D]", "D if h else h", "lambda: 1", "D; h", "f'{D}'",
        "D < h", "True", "None", "9**9**9", "2**17", "D**0.5", "(" * 300, "1e400", "9" * 150,
        "ceil(D, base=2)", "ceil(*D)", "eval(D)", "round(1, 2, 3)", "D @ h", "", "D D", "(10**16)**16*D",
        "max(1, 2, 3, 4, 5, 6, 7, 8, 9)",
    ],
)  # fmt: skip
def test_nothing_else_is_one(text: str) -> None:
    with pytest.raises(Unreadable):
        Expression(text)


@given(st.text("Dh8/3*+-().,%^ ceilmax_'\"[]", max_size=30))
def test_any_text_is_a_number_or_refused(text: str) -> None:
    try:
        value = Expression(text).evaluate(lambda name: {"D": 64, "h": 8}[name])
    except (Unreadable, KeyError):
        return
    assert isinstance(value, int | Fraction)


def test_a_size_follows_what_is_set_beside_it() -> None:
    model = load("llama-3.1-8b", {"F": "8/3*D", "D": 3072, "h": "D/128", "h_kv": "h/4"})
    whole = load("llama-3.1-8b", {"F": 8192, "D": 3072, "h": 24, "h_kv": 6})
    assert model.params == whole.params
    assert "F = 8/3*D = 8,192" in model.notes
    assert "F = 8/3*D = 10,922.67, rounded to 10,923" in load("llama-3.1-8b", {"F": "8/3*D"}).notes
    assert load("llama-3.1-8b", {"F": "2*F"}).params == load("llama-3.1-8b", {"F": 28672}).params


def test_sizes_that_follow_from_others_have_names_too() -> None:
    assert size_of(load("llama-3.1-8b").raw, "d_h") == 128
    assert size_of(load("gpt2").raw, "h_kv") == 12
    assert size_of(load("deepseek-v3").raw, "r_kv") == 512
    with pytest.raises(InputError, match=r"1,024 in its layers|none"):
        size_of(load("gpt2").raw, "W")


def sweep(*argv: str) -> Any:
    pytest.importorskip("numpy")
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["sweep", *argv])
    assert result.exit_code == 0, result.stderr
    return result


def test_in_a_sweep_a_size_follows_the_swept_ones() -> None:
    follow = {"h": "D/64", "h_kv": "ceil(h/3)*0+h", "F": "8/3*D"}
    argv = [
        "llama-3.1-8b",
        "--over",
        "D=512:2048:+512",
        "--over",
        "T=1,7",
        "--quantity",
        "params",
        "--quantity",
        "flops",
    ]
    argv += [item for key, value in follow.items() for item in ("--set", f"{key}={value}")]
    result = sweep(*argv, "--format", "csv")
    rows = [{key: int(value) for key, value in row.items()} for row in csv.DictReader(result.stdout.splitlines())]
    assert len(rows) == 8
    for row in rows:
        heads = row["D"] // 64
        assert (row["h"], row["h_kv"]) == (heads, heads)
        assert row["F"] == (16 * row["D"] + 3) // 6, "to the nearest"
        ledger = load("llama-3.1-8b", {key: row[key] for key in ("D", "h", "h_kv", "F")}).ledger(tokens=row["T"])
        assert (row["params"], row["flops"]) == (ledger.total("params"), ledger.total("flops"))
    assert "F = 8/3*D at every point, rounded to the nearest whole number" in result.stderr
    assert "h = D/64 at every point\n" in result.stderr
    data = json.loads(sweep(*argv, "--json").stdout)
    assert data["follow"] == follow
    assert data["rows"] == rows


def test_a_followed_count_may_be_nothing() -> None:
    """Shared experts, of which there are none at some points."""
    argv = ["D=64 h=1 F=64 L=2 E=8 k=2", "--over", "k=1,2,3", "--set", "experts.n_shared=k-1", "--quantity", "params"]
    rows = json.loads(sweep(*argv, "--json").stdout)["rows"]
    for row in rows:
        changes = {"k": row["k"], "experts.n_shared": row["k"] - 1}
        assert row["params"] == load("D=64 h=1 F=64 L=2 E=8 k=2", changes).params


def test_kinds_sum_to_the_whole_for_every_model() -> None:
    argv = ["llama-3.1-8b", "mixtral-8x7b", "jamba-v0.1", "--over", "T=1k:1M:32x"]
    quantities = ["params", "flops", "bytes", "cache_bytes"]
    argv += [item for name in quantities for item in ("--quantity", name)]
    whole = json.loads(sweep(*argv, "--json").stdout)
    by_kind = json.loads(sweep(*argv, "--by-kind", "--json").stdout)
    assert [model["name"] for model in by_kind["models"]] == ["llama-3.1-8b", "mixtral-8x7b", "jamba-v0.1"]
    for row, kinds in zip(whole["rows"], by_kind["rows"], strict=True):
        assert (row["model"], row["T"]) == (kinds["model"], kinds["T"])
        ledger = load(row["model"]).ledger(tokens=row["T"])
        for quantity in ("params", "flops"):
            parts = {k.split(".")[1]: n for k, n in kinds.items() if k.startswith(f"{quantity}.") and n}
            assert parts == ledger.by_kind(quantity)
            assert sum(parts.values()) == row[quantity]


def test_a_kind_alone_and_a_table_of_80_columns() -> None:
    out = sweep("gpt2", "--over", "L=1:12:2x", "--quantity", "params.attention", "--format", "csv").stdout
    assert out.splitlines()[1] == f"1,{4 * 768 * 768 + 4 * 768}"
    text = sweep("deepseek-v3", "jamba-v0.1", "--over", "T=1k:1M:2x", "--quantity", "bytes", "--by-kind").stdout
    assert max(map(len, text.splitlines())) <= 80


def test_a_line_may_have_expressions_in_any_order() -> None:
    model = load("F=ceil(8/3*D,256) h_kv=heads/4 heads=D/64 D=512 L=8 V=100")
    assert model.params == load("D=512 L=8 h=8 h_kv=2 F=1536 V=100").params
    rounded = load("D=512 L=2 F=8/3*D")
    assert rounded.params == load("D=512 L=2 F=1365").params
    assert "F = 8/3*D = 1,365.33, rounded to 1,365" in rounded.assumptions
    assert "h = D/64 = 1" in load("D=64 L=1 F=8 V=9").assumptions and "h = 1" in load("D=63 L=1 F=8 V=9").assumptions
    for line, fault in (
        ("F=8/3*X", "needs X"),
        ("F=8/0*D", "divides by 0"),
        ("F=F*2", "needs F"),
        ("F=f(D)*2", "not arithm"),
    ):
        with pytest.raises(InputError, match=fault) as refusal:
            load(f"D=512 L=2 {line}")
        assert "faults" not in str(refusal.value), "one mistake is one fault"
