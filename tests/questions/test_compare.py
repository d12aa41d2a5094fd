"""`txcalc compare`: figures are the ledgers' own, ratios are to the first, what a model lacks is empty."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from command import Command
from paths import HF, stored_rows

from txcalc import InputError, load
from txcalc.planning.crossover import lengths
from txcalc.planning.matching import SizeSearch
from txcalc.render.compare import fold, ratio_text
from txcalc.sources.presets import names

WINDOWED = "D=512 h=8 F=1376 L=2 window=64"


run = Command("compare", columns=100)


def rows(*argv: str) -> dict[tuple[str, int | None], dict[str, Any]]:
    data = run.data(*argv)
    assert data["schema"] == "txcalc/compare/1"
    return {(row["quantity"], row["tokens"]): row for row in data["rows"]}


def test_never_is_not_nothing() -> None:
    key = "crossover: scores + values ≥ feed-forward", None
    row = rows(WINDOWED, "gpt2", "--attention", "masked")[key]
    assert (row["values"][0], row["never"]) == (None, [True, False])
    assert "never" in run(WINDOWED, "gpt2", "--attention", "masked")[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_preset_compares(name: str) -> None:
    code, out, err = run(name, "llama-3.1-8b", "vit-b", "t5-small", "mamba-130m")
    assert code == 0, err
    assert "parameters" in out


@pytest.mark.parametrize(("ratio", "text"), stored_rows("units.json", "ratios"))
def test_ratios_in_few_characters(ratio: str, text: str) -> None:
    assert ratio_text(Fraction(ratio)) == text


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("gpt2", ["gpt2"]),
        ("whisper-large-v3", ["whisper-", "large-v3"]),
        ("transformer-base", ["transfor", "mer-base"]),
        ("D=512 h=8 F=1376 L=1", ["D=512", "h=8", "F=1376…"]),
        ("averyveryverylongname-without-end", ["averyver", "yverylon", "gname-…"]),
    ],
)
def test_names_are_folded(name: str, lines: list[str]) -> None:
    assert fold(name, 8).split("\n") == lines


def matched(*argv: str) -> Any:
    return run.data(*argv)["match"]


@pytest.mark.drawn(quick=3)
@pytest.mark.parametrize(
    ("source", "quantity", "key"),
    [
        ("mistral-7b", "params", "F"),
        ("gpt2", "params", "D"),
        ("llama-2-7b", "params", "L"),
        ("mixtral-8x7b", "params", "F_e"),
        ("mistral-7b", "flops", "F"),
        ("deepseek-v3", "cache", "r_kv"),
        ("gemma-3-27b", "cache", "W"),
        ("llama-2-7b", "cache", "h_kv"),
    ],
)
def test_budgets_are_met_as_nearly_as_whole_numbers_can(source: str, quantity: str, key: str) -> None:
    """The neighbours on both sides are counted by themselves, and no size between them can be."""
    document = matched("llama-3.1-8b", source, "--contexts", "64k", "--match", quantity, "--by", key)
    (model,) = document["models"]

    def cost(name: str, changes: dict[str, int]) -> int:
        ledger = load(name, changes).ledger(tokens=65_536 if quantity != "params" else 1)
        return int(ledger.total("flops_masked" if quantity == "flops" and source == "mistral-7b" else quantity))

    assert document["budget"] == cost("llama-3.1-8b", {})
    sides = [model["below"], model["above"]]
    assert sides[0]["value"] < sides[1]["value"]
    assert sides[0]["difference"] < 0 <= sides[1]["difference"]
    for side in sides:
        assert cost(source, {key: side["value"]}) - document["budget"] == side["difference"]
    for between in range(sides[0]["value"] + 1, sides[1]["value"]):
        with pytest.raises(InputError):
            load(source, {key: between})
    best = min(sides, key=lambda side: abs(side["difference"]))
    assert (model["value"], model["difference"]) == (best["value"], best["difference"])


@pytest.mark.slow
def test_an_exact_budget_and_one_out_of_reach() -> None:
    (exact,) = matched("llama-3.1-8b", "mistral-7b", "--match", "params", "--by", "V")["models"]
    assert (exact["value"], exact["difference"]) == (128_256, 0)
    (window,) = matched("llama-3.1-8b", "mistral-7b", "--match", "cache", "--by", "W", "--contexts", "64k")["models"]
    assert (window["value"], window["difference"]) == (65_536, 0), "the smallest of those that meet it"
    (far,) = matched("llama-3.1-8b", "llama-2-7b", "--match", "params", "--by", "h_kv")["models"]
    assert (far["value"], far["above"]) == (32, None)
    assert far["difference"] == load("llama-2-7b").params - load("llama-3.1-8b").params
    (far,) = matched("llama-3.1-8b", "deepseek-v3", "--match", "params", "--by", "V")["models"]
    assert (far["value"], far["below"]) == (1, None)


@pytest.mark.parametrize(
    "allowed", [range(1, 61), range(3, 61, 3), (1, 7, 20, 21, 55), (0, 7, 20, 55, 61), (40,), range(30, 33)]
)
def test_neighbours_of_a_budget_are_what_trying_all_finds(allowed: Any) -> None:
    """Of sizes that can be, from every one of them up to 60, for every budget: the last below it and the first that is
    not."""

    class Sizes(SizeSearch):
        def __init__(self, budget: int) -> None:
            self.key, self.most, self.budget = "F", 60, budget

        def excess(self, value: int) -> int | None:
            return 3 * value + 2 - self.budget if value in allowed else None

    tried = [size for size in allowed if 1 <= size <= 60]
    for budget, start in product(range(0, 200, 7), tried):
        below = max((size for size in tried if 3 * size + 2 < budget), default=None)
        above = min((size for size in tried if 3 * size + 2 >= budget), default=None)
        if len(allowed) == 1 and 3 * start + 2 != budget:
            continue  # it does not change
        values = [near and near.value for near in Sizes(budget).neighbours(start)]
        assert values == ([None, start] if 3 * start + 2 == budget else [below, above]), (budget, start)


def test_a_model_without_a_crossover_is_compared_all_the_same(tmp_path: Path) -> None:
    """DeepSeek-V4's pools and windows together are no polynomial of the length."""
    configs = json.loads((HF / "configs.json").read_text())
    file = tmp_path / "config.json"
    file.write_text(json.dumps(configs["deepseek-v4-flash"]))
    with pytest.raises(InputError, match="mixes chunks"):
        lengths(load(str(file)))
    table = rows(str(file), "llama-3.1-8b", "--contexts", "1k")
    reference = rows("llama-2-7b", "llama-3.1-8b", "--contexts", "1k", "--attention", "masked")
    key = ("crossover: scores + values ≥ every linear layer", None)
    assert table[key]["values"] == [None, reference[key]["values"][1]]
