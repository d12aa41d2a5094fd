"""Towers and projectors: FLOPs and parameters are those of transformers' own modules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).with_name("evidence")))

from tower_flops import CASES, compared

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_of_transformers(name: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    _, _, both = compared(*CASES[name])
    assert all(ours == theirs for ours, theirs in both.values()), both
