"""What is refused: a command line of `data/refusals.toml` ends with exit code 2, nothing on stdout, and a message that
says so in those words. `golden/refusals.json` keeps every message whole.

FOLDER is one with three files that are no descriptions, and nothing is written into it.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from functools import cache
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
FILES = {"empty.toml": b"\n", "binary.toml": bytes(range(256)), "wrong.toml": b'd_model = 512\nkind = "decoder\n'}
run = Command(columns=200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("refused")
    for name, content in FILES.items():
        (place / name).write_bytes(content)
    return place


@cache
def messages() -> dict[str, str]:
    return dict(json.loads(KEPT.read_text("utf-8")))


@pytest.mark.drawn(1000)
@pytest.mark.parametrize(("command", "line", "message"), CASES)
def test_it_is_refused(
    command: str,
    line: str,
    message: str | list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    update_golden: bool,
) -> None:
    if command in NEEDS and find_spec(NEEDS[command]) is None:
        pytest.skip(f"needs {NEEDS[command]}")
    if "--plot" in line:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(ROOT)
    code, out, err = run(command, *(word.replace("FOLDER", str(folder)) for word in shlex.split(line)))
    text = " ".join(err.split()).replace(str(folder), "FOLDER")
    assert (code, out) == (2, "") and "Traceback" not in err
    assert (message if isinstance(message, str) else message[0]) in text
    if update_golden:
        with files.lock(Path(gettempdir(), KEPT.name)):  # other workers write it too
            messages.cache_clear()
            files.write(
                KEPT,
                json.dumps(messages() | {f"{command} {line}": text}, ensure_ascii=False, indent=0, sort_keys=True)
                + "\n",
                force=True,
            )
            messages.cache_clear()
    assert messages().get(f"{command} {line}") == text  # --update-golden writes it
    assert {path.name for path in folder.iterdir()} == FILES.keys()
