"""What parameters begin with: every one has a rule, and the reference begins so."""

from __future__ import annotations

import math
from typing import Any

import pytest
from command import typed
from tiny import TINY
from typer.testing import CliRunner

from txcalc import load
from txcalc.cli import app
from txcalc.planning.initial import initial_values
from txcalc.sources import build
from txcalc.sources.presets import names


@pytest.mark.parametrize("name", names())
def test_every_parameter_has_one_rule(name: str) -> None:
    model = load(name)
    assert sum(entry.params for entry in initial_values(model)) == model.params


def test_gpt2_begins_at_002_and_its_last_products_smaller() -> None:
    """Radford et al. 2019, section 2.3: 1/√N of N residual layers, two a block."""
    by_rule = {entry.rule: entry for entry in initial_values(load("gpt2"))}
    assert by_rule["N(0, σ²), σ = 0.02"].deviation == 0.02
    small = by_rule["N(0, σ²), σ = 0.02/√24"]
    assert small.deviation == pytest.approx(0.02 / math.sqrt(2 * 12), rel=1e-15)
    assert small.params == 12 * (768 * 768 + 3072 * 768)
    assert {entry.deviation for entry in initial_values(load("bert-base"))} == {0.02, 0.0}, (
        "post-norm: nothing is smaller"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "matrices", "shrunk"),
    [
        ("D=256 L=3 h=4 F=512 V=300 ln bias plain learned=160", 3 * 6 + 3, 3 * (256 * 256 + 512 * 256)),
    ],
)
def test_the_reference_begins_so(source: Any, matrices: int, shrunk: int) -> None:
    """Of each matrix of 40,000 numbers or more the deviation that it has, within five of the estimate's own."""
    pytest.importorskip("torch")
    import torch

    from txcalc.reference import build

    torch.manual_seed(0)
    model = load(source)
    net = build(model)
    expected = {"o": 0.02 / math.sqrt(6), "down": 0.02 / math.sqrt(6)}
    compared = 0
    for name, parameter in net.named_parameters():
        if parameter.numel() >= 40_000:
            part = [word for word in name.split(".")[:-1] if word != "routed" and not word.isdecimal()][-1]
            deviation = expected.get(part, 0.02)
            assert abs(parameter.std().item() / deviation - 1) < 5 / math.sqrt(2 * parameter.numel()), name
            compared += 1
    assert compared == matrices
    assert sum(entry.params for entry in initial_values(model) if "√6" in entry.rule) == shrunk


def test_the_terminal_shows_them() -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["show", "gpt2", "--initial"])
    assert result.exit_code == 0
    assert "0.02/√24" in result.stdout and "0.004082  35,389,440" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    data = typed.data("show", "gpt2", "--initial")
    assert sum(row["params"] for row in data["initial"]) == data["params"]["total"]


@pytest.mark.parametrize("name", ["albert", "deepseek-v3", "gemma3n", "mixtral", "t5", "zamba2"])
def test_every_parameter_begins_once(name: str) -> None:
    model = build(TINY[name], name)
    assert sum(values.params for values in initial_values(model)) == model.params
