"""The README and the pages of docs/ are executed: commands print what they show, Python runs, and generated tables are
those of the code.

`pytest tests/test_docs.py --update-golden` writes the generated parts anew.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from txcalc.cli import NAMES, Commands, app
from txcalc.render.measurements import folder, overview
from txcalc.sources import huggingface
from txcalc.symbols import TABLE

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
NEEDS = {"formula": "sympy", "verify": "torch", "sweep": "numpy"}


def commands() -> str:
    """The table of commands, from their help."""
    rows = ["| command | what it answers |", "| --- | --- |"]
    group = Commands(name="txcalc")
    for name in NAMES:
        text = " ".join(group.get_command(None, name).help.split("\n\n")[0].split())
        rows.append(f"| `txcalc {name}` | {text} |")
    return "\n".join(rows)


def symbols() -> str:
    """The table of letters."""
    rows = ["| letter | key | meaning | unit |", "| --- | --- | --- | --- |"]
    rows += [f"| `{s.letter}` | {f'`{s.key}`' if s.key else ''} | {s.meaning} | {s.unit} |" for s in TABLE]
    return "\n".join(rows)


def families() -> str:
    """The model types of Hugging Face configs: read, or refused and why."""
    known = huggingface.families()
    exact = [f"`{name}`" for name, what in known.items() if what == "exact"]
    refused: dict[str, list[str]] = {}
    for name, what in known.items():
        if what != "exact":
            refused.setdefault(what.removeprefix("refused: "), []).append(f"`{name}`")
    rows = ["| model types | read |", "| --- | --- |", f"| {', '.join(exact)} | exactly ({len(exact)}) |"]
    rows += [f"| {', '.join(names)} | refused: {why} |" for why, names in refused.items()]
    return "\n".join(rows)


def layout() -> str:
    """The rooms of the package, with their first line."""
    rows = ["| room | holds |", "| --- | --- |"]
    for path in sorted((ROOT / "txcalc").iterdir()):
        if path.name.startswith("_") or not (path.suffix == ".py" or (path / "__init__.py").exists()):
            continue
        docstring = ast.get_docstring(ast.parse((path if path.is_file() else path / "__init__.py").read_text())) or ""
        shown = path.name if path.is_file() else f"{path.name}/"
        first = re.split(r"(?<=[.:])\s", " ".join(docstring.split()))[0].rstrip(".:")
        rows.append(f"| [`{shown}`](txcalc/{shown}) | {first} |")
    return "\n".join(rows)


def measurements() -> str:
    """What was measured on real devices, from the files that `txcalc verify --suite` wrote."""
    return overview(sorted(folder().glob("*.json")))


def console(block: re.Match[str], columns: int = 100) -> str:
    """A console block with what its command prints now; of one that is refused, why."""
    argv = re.findall(r"'[^']*'|\"[^\"]*\"|\S+", block[1])
    environment = {"COLUMNS": str(columns), "NO_COLOR": "1"}
    result = CliRunner(env=environment).invoke(app, [word.strip("'\"") for word in argv])
    refused = result.exit_code == 2 and "\ntxcalc: " in block[0]
    assert result.exit_code == 0 or refused, result.output
    printed = result.stderr if refused else result.stdout
    output = "\n".join(line.rstrip() for line in printed.rstrip().splitlines())
    return f"```console\n$ txcalc {block[1]}\n{output}\n```"


CONSOLE = re.compile(r"```console\n\$ txcalc ([^\n]*)\n.*?```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_pages_print_what_the_commands_print(page: Path, update_golden: bool) -> None:
    text = page.read_text()
    for block in CONSOLE.finditer(text):
        pytest.importorskip(NEEDS.get(block[1].split()[0], "txcalc"))
        text = text.replace(block[0], console(block, 80))
    if update_golden:
        page.write_text(text)
    assert page.read_text() == text
    assert CONSOLE.search(text), "a page of docs/ is made by running commands"


def test_the_readme_prints_what_the_commands_print(update_golden: bool) -> None:
    text = README.read_text()
    for block in CONSOLE.finditer(text):
        pytest.importorskip(NEEDS.get(block[1].split()[0], "txcalc"))
        text = text.replace(block[0], console(block))
    _same(text, update_golden)


@pytest.mark.parametrize("table", [commands, symbols, families, layout, measurements], ids=lambda table: table.__name__)
def test_generated_tables_are_current(table, update_golden: bool) -> None:
    marker = f"<!-- {table.__name__} -->"
    text = README.read_text()
    assert marker in text
    before, after = text.split(marker)
    rest = re.sub(r"\A\n+(\|[^\n]*\n)*", "", after)
    _same(f"{before}{marker}\n{table()}\n\n{rest.lstrip()}", update_golden)


def _same(text: str, update: bool) -> None:
    if update:
        README.write_text(text)
    assert README.read_text() == text


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert "attention_core" in capsys.readouterr().out


def test_links_in_the_readme_exist() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text()):
        assert (ROOT / target).exists(), target
