"""Sizes that meet a budget: what trying every one of them finds."""

from __future__ import annotations

import pytest

from txcalc import load
from txcalc.planning.matching import Near, match_size
from txcalc.sources.spec import MAX_LAYERS


@pytest.mark.slow
def test_a_size_that_meets_a_budget_is_the_one_above() -> None:
    """Of sizes tried one by one: the largest below, the smallest that is not, and of two as near the smaller."""
    model = load("D=64 L=9 h=4 F=96 V=50 untied")
    for budget in (0, 7, 8, 9, 10, 63, 64, 65, 6400):
        match = match_size(model, "L", 3 * budget + 1, lambda candidate: 3 * candidate.n_layers)
        exact = [(n, 3 * n - 3 * budget - 1) for n in range(1, MAX_LAYERS + 1)]
        below = max((candidate for candidate in exact if candidate[1] < 0), default=None)
        above = min((candidate for candidate in exact if candidate[1] >= 0), default=None)
        assert (match.below, match.above) == (below and Near(*below), above and Near(*above)), budget
        met = match_size(model, "L", 3 * budget + 3, lambda candidate: 3 * candidate.n_layers)
        assert (met.best, met.above) == (Near(budget + 1, 0),) * 2 and met.model.n_layers == budget + 1
        assert met.below == (Near(budget, -3) if budget and budget + 1 != 9 else None)


def test_a_size_that_may_be_no_larger_is_what_is_nearest() -> None:
    """Two key/value heads of two: no further size may be, and one would have fewer parameters."""
    model = load("D=64 L=2 h=2 h_kv=2 F=96 V=250")
    match = match_size(model, "h_kv", model.params + 1, lambda candidate: candidate.params)
    assert (match.best, match.below, match.above) == (Near(2, -1), Near(2, -1), None)
