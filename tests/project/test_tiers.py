"""Which cases a run takes: `drawn` in conftest.py."""

from __future__ import annotations

import pytest
from conftest import QUICK_CASES, SLOW_CASES, commit_seed, drawn, seed_of


@pytest.mark.parametrize("quick", [True, False])
def test_cases_are_drawn_by_the_seed(quick: bool, request: pytest.FixtureRequest) -> None:
    """The same for a seed, others for another, and all of them sooner or later; none of a nightly test."""

    def case(test: str, number: int, *marks: pytest.MarkDecorator) -> pytest.Function:
        item = pytest.Function.from_parent(request.node.parent, name=f"{test}[{number}]", callobj=lambda: None)
        for mark in marks:
            item.add_marker(mark)
        return item

    def names(seed: int) -> list[str]:
        return sorted(item.name for item in drawn(items, seed, quick))

    marked = {
        "plain": (),
        "slow": (pytest.mark.slow,),
        "dear": (pytest.mark.slow, pytest.mark.drawn(2, quick=1)),
        "exact": (pytest.mark.drawn(quick=1000),),
        "nightly": (pytest.mark.nightly,),
    }
    items: list[pytest.Item] = [case(test, n, *marks) for test, marks in marked.items() for n in range(30)]
    assert names(1) == names(1) and len({tuple(names(seed)) for seed in range(9)}) == 9
    number = {test: sum(name.startswith(test) for name in names(1)) for test in marked}
    usual = (QUICK_CASES, QUICK_CASES, 1) if quick else (30, SLOW_CASES, 2)
    assert number == dict(zip(marked, (*usual, 30, 0), strict=True))
    seen = {name for seed in range(300) for name in names(seed)}
    assert seen == {item.name for item in items if not item.name.startswith("nightly")}


def test_a_commit_has_one_seed() -> None:
    assert commit_seed() == commit_seed() and seed_of("7") == 7
    assert len({seed_of("random") for _ in range(9)}) > 1
