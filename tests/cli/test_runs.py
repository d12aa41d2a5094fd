"""Whole answers of the commands, kept as JSON in `golden/runs`: a diff shows each number, key and text that changed.

Other tests show that an answer is right. `pytest tests/cli/test_runs.py --update-golden` writes the files again; a new
run is a file with its `command` alone.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from command import typed
from paths import GOLDEN

RUNS = [
    pytest.param(file, id=file.stem, marks=[pytest.mark.slow] if file.stem.startswith(("prove", "verify")) else [])
    for file in sorted((GOLDEN / "runs").glob("*.json"))
]
NEEDS = {"formula": "sympy", "sweep": "numpy", "verify": "torch"}

pytestmark = pytest.mark.drawn(quick=len(RUNS))


def rounded(value: Any) -> Any:
    """Floats to 9 digits: the last ones depend on the machine's mathematics library."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def pretty(value: Any, indent: str = "") -> str:
    """JSON with a line for each row, so that a diff shows which row changed."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(indent + line) <= 150:
        return line
    inner = indent + " "
    if isinstance(value, dict):
        rows = [f"{json.dumps(key)}: {pretty(item, inner)}" for key, item in value.items()]
    else:
        rows = [pretty(item, inner) for item in value]
    first, last = line[0], line[-1]
    return first + ",".join(f"\n{inner}{row}" for row in rows) + f"\n{indent}{last}"


@pytest.mark.parametrize("file", RUNS)
def test_an_answer_is_the_one_kept(file: Path, update_golden: bool) -> None:
    kept = json.loads(file.read_text("utf-8"))
    command = shlex.split(kept["command"])
    pytest.importorskip(NEEDS.get(command[0], "json"))
    ran = typed(*command, "--json")
    assert ran.exit_code in (0, 1), ran.output
    answer = {"command": kept["command"], "exit_code": ran.exit_code, "answer": rounded(json.loads(ran.stdout))}
    if update_golden:
        file.write_text(pretty(answer) + "\n", "utf-8")
    assert answer == json.loads(file.read_text("utf-8"))
