"""What is refused: a command line of `data/refusals.toml` ends with exit code 2, nothing on stdout, and a message that
says so in those words. `golden/refusals.json` keeps every message whole.

FOLDER is one with three files that are no descriptions, and nothing is written into it.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir

import pytest
from command import Command
from paths import DATA, GOLDEN, ROOT

from txcalc.sources import files

NEEDS = {"formula": "sympy", "sweep": "numpy", "verify": "torch", "measure": "torch", "calibrate": "torch"}
REFUSALS = tomllib.loads((DATA / "refusals.toml").read_text("utf-8"))
CASES = [
    pytest.param(command, line, message, id=f"{command} {line}"[:100], marks=pytest.mark.slow if slow else ())
    for command, lines in REFUSALS.items()
    for slow in [NEEDS.get(command) == "torch"]
    for line, message in lines.items()
]
KEPT = GOLDEN / "refusals.json"
run = Command(columns=200)


@pytest.mark.drawn(1000)
@pytest.mark.parametrize(("command", "line", "message"), CASES)
def test_it_is_refused(
    command: str,
    line: str,
    message: str | list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    update_golden: bool,
) -> None:
    if command in NEEDS and find_spec(NEEDS[command]) is None:
        pytest.skip(f"needs {NEEDS[command]}")
    if "--plot" in line:
        pytest.importorskip("matplotlib")
    (tmp_path / "empty.toml").write_text("\n")
    (tmp_path / "binary.toml").write_bytes(bytes(range(256)))
    (tmp_path / "wrong.toml").write_text('d_model = 512\nkind = "decoder\n')
    monkeypatch.chdir(ROOT)
    code, out, err = run(command, *(word.replace("FOLDER", str(tmp_path)) for word in shlex.split(line)))
    text = " ".join(err.split()).replace(str(tmp_path), "FOLDER")
    assert (code, out) == (2, "") and "Traceback" not in err
    assert (message if isinstance(message, str) else message[0]) in text
    if update_golden:
        with files.lock(Path(gettempdir(), KEPT.name)):  # other workers write it too
            messages = json.loads(KEPT.read_text("utf-8")) | {f"{command} {line}": text}
            files.write(KEPT, json.dumps(messages, ensure_ascii=False, indent=0, sort_keys=True) + "\n", force=True)
    assert json.loads(KEPT.read_text("utf-8")).get(f"{command} {line}") == text  # --update-golden writes it
    assert sorted(path.name for path in tmp_path.iterdir()) == ["binary.toml", "empty.toml", "wrong.toml"]
