"""What txcalc prints as JSON for every preset and every config it reads, one file a command, and what two such folders
differ in: a change of structure must leave every byte as it was.

    python tests/scripts/snapshot.py FOLDER [--presets]        writes the folder (of presets alone)
    python tests/scripts/snapshot.py BEFORE AFTER              says which files differ, exit code 1 if any does

Not a test: run it before and after a change. Refusals are kept too, with their exit code, and tracebacks, which are
named.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from typer.testing import CliRunner

from txcalc.cli import app
from txcalc.sources import presets

CONFIGS = Path(__file__).parents[2] / "tests" / "data" / "hf" / "configs.json"
COMMANDS = {
    "show": ("show",),
    "long": ("show", "--tokens", "4096", "--batch", "2", "--attention", "masked", "--logits", "last"),
    "step": ("show", "--tokens", "1", "--past", "9000", "--mla", "absorbed"),
    "kv": ("kv",),
    "deploy": ("deploy", "--gpu", "h100-sxm:8", "--context", "8k"),
    "crossover": ("crossover", "--no-formulas"),
}


def file_stem(model: str) -> str:
    """What its files are called: a version's dot is no ending, and a config may have a preset's name."""
    return Path(model).name.replace(".json", ".config")


def commands_of(names: list[str]) -> Iterator[tuple[str, list[str]]]:
    """A file's name and its command line: every command of every model, and every model beside the next."""
    for name, following in zip(names, names[1:] + names[:1], strict=True):
        for label, (command, *options) in COMMANDS.items():
            yield f"{file_stem(name)}.{label}", [command, name, *options, "--json"]
        yield f"{file_stem(name)}.compare", ["compare", name, following, "--json"]


def write(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for label, line in commands_of(names):
        result = CliRunner().invoke(app, line)
        text = result.stdout
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            print(label, repr(result.exception))
            text = repr(result.exception)
        elif result.exit_code > 1:
            text = f"exit code {result.exit_code}\n{result.stderr}"
        (folder / f"{label}.json").write_text(text, encoding="utf-8")


def differences(before: Path, after: Path) -> list[str]:
    """Names of files that only one folder has, or that differ."""
    earlier, later = ({path.name for path in folder.iterdir()} for folder in (before, after))
    _, changed, failed = filecmp.cmpfiles(before, after, sorted(earlier & later), shallow=False)
    return sorted([*(earlier ^ later), *changed, *failed])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("after", type=Path, nargs="?")
    parser.add_argument("--presets", action="store_true", help="presets alone")
    words = parser.parse_args()
    folder: Path = words.folder.resolve()
    if words.after:
        names = differences(folder, words.after)
        print(*names, f"{len(names)} files differ", sep="\n")
        return bool(names)
    write(folder, presets.names())
    if not words.presets:
        with tempfile.TemporaryDirectory() as home:
            os.chdir(home)  # paths are printed: they must not depend on the folder
            configs = json.loads(CONFIGS.read_text(encoding="utf-8"))
            for name, config in configs.items():
                Path(f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
            write(folder, [f"./{name}.json" for name in configs])
            os.chdir("/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
