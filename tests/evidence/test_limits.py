"""The tables of docs/limits.md are what `tests/scripts/accuracy.py` computes of every measured row."""

from __future__ import annotations

from collections.abc import Callable

import accuracy
import pytest
from paths import ROOT

pytestmark = pytest.mark.slow
PAGE = ROOT / "docs" / "limits.md"


@pytest.mark.nightly
@pytest.mark.parametrize("computed", accuracy.TABLES, ids=lambda computed: computed.__name__)
def test_a_table_of_errors_is_current(computed: Callable[[], str], update_golden: bool) -> None:
    before, after = PAGE.read_text().split(f"<!-- {computed.__name__} -->\n")
    _, rest = after.split("<!-- end -->", 1)
    text = f"{before}<!-- {computed.__name__} -->\n{computed()}\n<!-- end -->{rest}"
    if update_golden:
        PAGE.write_text(text)
    assert PAGE.read_text() == text


def test_an_error_is_what_its_cell_says() -> None:
    """Of ten ratios the median of the errors, and the error that nine are within."""
    ratios = [1.0, 1.02, 0.98, 1.04, 0.96, 1.06, 0.94, 1.08, 0.92, 2.0]
    assert accuracy.typical(ratios) == "5 % (100 %)"
    assert accuracy.typical([1.001] * 3) == "0.1 % (0.1 %)"
