"""Entropy, cross-entropy and divergence against their definitions."""

from __future__ import annotations

import json
from math import log

import pytest
from command import Command

import txcalc
from txcalc import InputError
from txcalc.questions.entropy import distribution

run = Command()


def test_entropy_is_its_definition() -> None:
    answer = txcalc.entropy("0.5,0.5", "0.9,0.1")
    assert answer.cross_entropy is not None and answer.kl is not None
    assert answer.entropy.bits == 1
    assert answer.cross_entropy.bits == pytest.approx(-(log(0.9) + log(0.1)) / 2 / log(2))
    assert answer.kl.bits == pytest.approx(log(25 / 9) / 2 / log(2))
    assert txcalc.entropy("1/3,1/3,1/3").entropy.bits == pytest.approx(log(3) / log(2))
    assert txcalc.entropy([1, 0]).entropy.bits == 0


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(number: float) -> None:
    with pytest.raises(InputError, match=f"p is '{number}', expected probabilities"):
        txcalc.entropy([number, 1])


def test_equal_distributions_have_no_divergence() -> None:
    certain = txcalc.entropy([1], [1])
    assert certain.cross_entropy is not None and certain.kl is not None
    assert [str(certain.entropy.bits), str(certain.cross_entropy.bits), str(certain.kl.bits)] == ["0.0"] * 3  # not −0.0
    skewed = txcalc.entropy("0.9,0.1", "0.9,0.1")
    assert skewed.cross_entropy is not None and skewed.kl is not None
    assert (skewed.kl.bits, skewed.cross_entropy.bits) == (0, pytest.approx(skewed.entropy.bits))


def test_what_cannot_be_coded_is_infinite_and_no_number() -> None:
    code, out, _ = run("entropy", "1,0", "--against", "0,1", "--json")
    data = json.loads(out)
    assert (code, data["infinite"], data["kl"]["bits"], data["cross_entropy"]["perplexity"]) == (0, True, None, None)
    assert run("entropy", "1,0", "--against", "0,1")[2] == f"note: {data['notes'][0]}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.5,0.25,1/4", ""),
        ("0.33,0.33,0.33", "(write thirds as 1/3)"),
        ("0.5,0.55", "the sum of --p is 1.05, expected 1 exactly"),
        ("0.5,0.549", "thirds"),
        ("0.5,x", "--p is 'x', expected probabilities"),
        ("1/0,1", "expected probabilities"),
    ],
)
def test_probabilities_sum_to_one(text: str, message: str) -> None:
    try:
        assert sum(distribution(text, "--p")) == 1 and not message
    except InputError as error:
        assert message and message in str(error)
        assert ("thirds" in str(error)) == ("thirds" in message)
