"""Where tests find their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
ROOT = TESTS.parent
DATA = TESTS / "data"
HF = DATA / "hf"
GOLDEN = TESTS / "golden"
SCRIPTS = ROOT / "tests" / "scripts"


def stored_rows(file: str, table: str) -> list[Any]:
    """The rows of a table of a file in `data`."""
    return list(json.loads((DATA / file).read_text("utf-8"))[table])
