"""Where tests find their files."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
DATA = TESTS / "data"
HF = DATA / "hf"
GOLDEN = TESTS / "golden"
SCRIPTS = ROOT / "tests" / "scripts"
