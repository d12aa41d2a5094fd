"""Utilisation both ways: every published figure that `tests/scripts/utilisation.py` prints, within what it claims."""

from __future__ import annotations

import csv
from fractions import Fraction
from statistics import median

import pytest
import utilisation as evidence

from txcalc import load
from txcalc.errors import InputError
from txcalc.planning.utilisation import REPORTED, parse_measured, utilisation


@pytest.mark.slow
def test_llm_foundrys_table() -> None:
    """Within 0.1 point; where the printed tokens per second, cut to a whole number, are few, what one of them is."""
    figures = list(evidence.foundry())
    rates = [float(row["tokens_s"]) for row in evidence.rows("llm-foundry.csv") for _ in "mh"]
    assert len(figures) == len(rates) >= 200
    for figure, rate in zip(figures, rates, strict=True):
        assert figure.off <= max(0.1, figure.published / rate + 0.02), figure
    assert sum(figure.off <= 0.1 for figure in figures) >= len(figures) - 2


def test_nanotrons_playbook() -> None:
    figures = list(evidence.nanotron())
    assert len(figures) > 1000
    assert max(figure.off for figure in figures) <= 0.1


def test_megatron_bridges_rates() -> None:
    """Within 2 % but for one row, whose own two figures are 2.2 % from those of the same model and GPU beside it."""
    figures = list(evidence.bridge())
    assert len(figures) >= 90
    assert sum(figure.off > 2 for figure in figures) <= 1
    assert median(figure.off for figure in figures) < 0.1


def test_megatrons_days() -> None:
    """To a day: days are printed rounded or cut off, and the rates as whole TFLOP/s (half of one of 48 is 1.5 days)."""
    figures = list(evidence.days())
    assert len(figures) == 12
    assert all(figure.off < 1 for figure in figures)


def test_what_zero_shares() -> None:
    """To half of the last printed digit."""
    figures = list(evidence.zero())
    assert [figure.published for figure in figures] == [120, 31.4, 16.6, 1.9]
    assert all(figure.off < 0.05 for figure in figures)


def test_papers() -> None:
    """To the last printed digit; Llama 3's TFLOP/s are printed to tens (1 % of 430 or 400)."""
    within = {"PaLM MFU": 0.05, "MT-NLG MFU": 0.055, "Llama 3 MFU": 0.6, "Llama 3 FLOPs, 1e25": 0.05}
    figures = list(evidence.papers())
    assert len(figures) == 8
    for figure in figures:
        assert figure.off <= within.get(figure.source, 0.0015 * figure.published), figure


@pytest.mark.slow
def test_the_evidence_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    evidence.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 17 and lines[0].startswith("llm-foundry MFU: 129 rows")


def test_recomputation_is_in_hfu_alone() -> None:
    model = load("gpt3-175b")
    ledger = model.ledger(1, 2048)
    by_mode = {mode: utilisation(model, ledger, 100, 312e12, mode) for mode in ("none", "core", "blocks")}
    for none, core, blocks in zip(*by_mode.values(), strict=True):
        assert none.mfu == none.hfu == core.mfu == blocks.mfu
        assert none.hfu <= core.hfu < blocks.hfu
    (half,) = utilisation(model, ledger, 100, 312e12, "blocks", share=Fraction(1, 2), names=("palm",))
    assert half.hfu == pytest.approx(half.mfu * 7 / 6)
    assert [entry.name for entry in by_mode["none"]] == list(REPORTED)


def test_a_model_has_the_conventions_that_describe_it() -> None:
    model = load("deepseek-v3")
    assert [entry.name for entry in utilisation(model, model.ledger(1, 4096), 1, 1)] == [
        "megatron-lm",
        "torchtitan",
        "llama-3",
    ]
    with pytest.raises(InputError, match="knows one head width"):
        utilisation(model, model.ledger(1, 4096), 1, 1, names=("palm",))
    with pytest.raises(InputError, match="counts a forward pass"):
        utilisation(model, model.ledger(1, 4096), 1, 1, names=("2n",))


def test_rates_as_people_write_them() -> None:
    assert parse_measured("1007tok/s").tokens_s(2**20, 8, 1e9) == 1007
    assert parse_measured("1.42 s").tokens_s(1420, 10, 1e9) == pytest.approx(100)
    assert parse_measured("400TFLOPS").tokens_s(1, 1, 4e9) == pytest.approx(1e5)
    for text in ("1007", "0tok/s", "fast", "-1s", "1e9s"):
        with pytest.raises(InputError, match="--measured is"):
            parse_measured(text)


def test_the_data_is_the_visible_half() -> None:
    """What the README of the data says of it."""
    folder = evidence.DATA
    assert {path.name for path in folder.glob("*.csv")} >= {"llm-foundry.csv", "nanotron.csv", "megatron.csv"}
    text = (folder / "README.md").read_text()
    for name in ("llm-foundry.csv", "nanotron.csv", "megatron.csv"):
        with (folder / name).open() as file:
            assert f"`{name}`: {len(list(csv.DictReader(file))):,} runs" in text
