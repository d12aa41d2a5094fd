"""FLOPs of whole generations: sums over their passes, one by one."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from txcalc import load
from txcalc.errors import InputError
from txcalc.planning.generation import FlopsLaw, generations, laws, sum_quadratic

DENSE = "D=64 L=4 h=8 h_kv=4 F=96 V=250"


def test_what_is_not_quadratic_is_no_sum() -> None:
    for cost in (lambda n: n**3, lambda n: 5 if n == 10 else 0, lambda n: 5 if n == 6 else 0):
        with pytest.raises(ArithmeticError, match="not quadratic from 1 to 10"):
            sum_quadratic(cost, 1, 10, ())


@pytest.mark.parametrize("source", [DENSE, DENSE + " window=3", "gpt2"])
@pytest.mark.parametrize("attention", ["dense", "masked"])
@pytest.mark.parametrize("prompt", [1, 4])
def test_a_generation_is_the_sum_of_its_passes(source: str, attention: str, prompt: int) -> None:
    """And what its law says of any length."""
    model, quantity = load(source), {"dense": "flops", "masked": "flops_masked"}[attention]

    def passed(**work: Any) -> int:
        return int(model.ledger(logits="last", **work).total(quantity))

    for generation in generations(model, (prompt, prompt + 6), prompt, attention):
        later = range(prompt, generation.context)
        assert generation.passes == 1 + len(later)
        assert generation.flops == passed(tokens=prompt) + sum(passed(past=n) for n in later)
        assert generation.flops_without_cache == sum(passed(tokens=n) for n in range(prompt, generation.context + 1))
        assert generation.kv_computed == generation.context
        assert generation.kv_computed_without_cache == sum(range(prompt, generation.context + 1))
        assert generation.kv_redundant == generation.kv_computed_without_cache - generation.kv_computed
    lines = laws(model, prompt, attention)
    assert lines
    start = max(prompt, lines[0].start)
    for length in (start, start + 7):
        (generation,) = generations(model, (length,), prompt, attention)
        assert (lines[0].at(length), lines[1].at(length)) == (generation.flops, generation.flops_without_cache)


@pytest.mark.parametrize(
    ("coefficients", "below", "text"),
    [
        ((0, -7, 0, 5), 3, "(5·n³ − 7·n)/3"),
        ((2, 0, -1, 0), 1, "−1·n² + 2"),
        ((-4, 3, 2, 1), 1, "1·n³ + 2·n² + 3·n − 4"),
    ],
)
def test_a_law_is_written(coefficients: tuple[int, ...], below: int, text: str) -> None:
    law = FlopsLaw(1, coefficients, below)
    assert law.text() == text
    assert law.at(5) == Fraction(sum(factor * 5**power for power, factor in enumerate(coefficients)), below)


def test_a_prompt_is_no_longer_than_its_context() -> None:
    with pytest.raises(InputError, match="a whole number from 1 to 4 tokens"):
        generations(load(DENSE), (4,), 5)
    with pytest.raises(InputError, match="a whole number from 1 to 4 tokens"):
        generations(load(DENSE), (4,), 0)
    with pytest.raises(InputError, match="not a plain decoder"):
        generations(load("t5-small"), (4,))
