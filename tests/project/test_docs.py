"""The README and the pages of docs/ are executed: commands print what they show, Python runs, generated tables are
those of the code, and the site builds without a broken link.

`pytest tests/project/test_docs.py --update-golden` writes the generated parts again.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest
from paths import ROOT
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from txcalc import COMMANDS, hardware, load, show
from txcalc.cli import Commands, app
from txcalc.questions.measurements import folder
from txcalc.render.measurements import overview
from txcalc.sources import huggingface
from txcalc.sources.presets import names
from txcalc.sources.spec import IDENTITY, REQUIRED, SECTIONS, Wrong
from txcalc.symbols import TABLE
from txcalc.units import iec

README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NEEDS = {"formula": "sympy", "verify": "torch", "sweep": "numpy"}


def commands() -> str:
    """The table of commands, from their help."""
    rows = ["| command | what it answers |", "| --- | --- |"]
    group = Commands(name="txcalc")
    for name in COMMANDS:
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
    readable = huggingface.supported_types()
    exact: dict[str, list[str]] = {}  # by their first letter, so that a new type changes a short line
    refused: dict[str, list[str]] = {}
    for name, what in readable.items():
        group = exact.setdefault(name[0].lower(), []) if what == "exact" else refused.setdefault(what, [])
        group.append(f"`{name}`")
    rows = [f"{sum(map(len, exact.values()))} types are read exactly.", "", "| model types | read |", "| --- | --- |"]
    rows += [f"| {', '.join(names)} | exactly |" for _, names in sorted(exact.items())]
    rows += [f"| {', '.join(names)} | {why} |" for why, names in refused.items()]
    return "\n".join(rows)


def modules() -> str:
    """The modules of the package and of its folders, with their first line."""
    rows = ["| module | holds |", "| --- | --- |"]
    package = ROOT / "txcalc"
    for path in sorted(package.rglob("*.py"), key=lambda path: [part.removesuffix(".py") for part in path.parts]):
        place = path.parent if path.stem == "__init__" else path
        if place == package or path.stem == "__main__":
            continue
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        first = re.split(r"(?<=\.)\s", " ".join(docstring.split()))[0].rstrip(".")
        name = place.relative_to(package).as_posix()
        rows.append(f"| `{name}` | {first} |" if place == path else f"| **`{name}/`** | {first} |")
    return "\n".join(rows)


def keys() -> str:
    """The keys of a description, table by table, with what each may be and is when absent."""
    sections = {"": {**IDENTITY, **SECTIONS[""]}, **{name: fields for name, fields in SECTIONS.items() if name}}
    tables = []
    for section, fields in sections.items():
        rows = [f"## {f'`[{section}]`' if section else 'Of the model'}", ""]
        rows += ["| key | meaning | allowed values | default |", "| --- | --- | --- | --- |"]
        for key, field in fields.items():
            absent = "required" if field.default is REQUIRED else "derived" if callable(field.default) else ""
            shown = absent or f"`{json.dumps(field.default)}`"
            meaning = f"{field.meaning} ({field.when})" if field.when else field.meaning
            rows.append(f"| `{key}` | {meaning} | {_accepted(field.check)} | {shown} |")
        tables.append("\n".join(rows))
    return "\n\n".join(tables)


def _accepted(check: object) -> str:
    """What a check accepts, in the words of the fault that it raises."""
    try:
        check(object())  # type: ignore[operator]
    except Wrong as wrong:
        return wrong.expected.replace("|", "\\|")
    return ""


def presets() -> str:
    """Every preset with its counts, its source and what its authors print."""
    rows = [
        "| preset | parameters | active | context | source | published |",
        "| --- | ---: | ---: | ---: | --- | --- |",
    ]
    for name in names():
        model = load(name)
        context = f"{model.context:,}" if model.context else ""
        source, published = (
            text.replace("|", "\\|") for text in (model.description.source, model.description.published)
        )
        rows.append(f"| `{name}` | {model.params:,} | {model.active:,} | {context} | {source} | {published} |")
    return "\n".join(rows)


def accelerators() -> str:
    """Every accelerator with what its file says, and where that is from."""
    sources = ["", "## Sources", ""]
    rows = ["| accelerator | memory | bandwidth | link | FLOP/s |", "| --- | ---: | ---: | ---: | ---: |"]
    for name in hardware.names():
        card = hardware.load(name)
        rate = next(
            (f"{card.peaks[kind] / 1e12:,.4g} T {kind}" for kind in ("bf16", "fp16", "fp32") if kind in card.peaks), ""
        )
        link = f"{card.link / 1e9:,.0f} GB/s" if card.link else ""
        cells = iec(card.memory), f"{card.bandwidth / 1e9:,.0f} GB/s", link, rate
        rows.append(f"| `{name}` {card.title} | {' | '.join(cells)} |")
        sources.append(f"* `{name}`: {'; '.join(dict.fromkeys(card.sources.values()))}")
    return "\n".join(rows + sources)


def proved() -> str:
    """Presets of which each figure is proved, by the number of sequences: some theorems begin at two."""
    figures = {
        "training": "training FLOPs",
        "cache": "KV cache",
        "saved_kept": "saved activations, eager attention",
        "saved": "saved activations, fused attention",
    }
    rows = [f"| of {len(names())} presets | {' | '.join(figures.values())} |", "| --- | ---: | ---: | ---: | ---: |"]
    for batch, title in ((1, "one sequence"), (2, "two sequences")):
        answers = [show(name, batch=batch, tokens=64).known for name in names()]
        numbers = (str(sum(evidence[figure].how == "proved" for evidence in answers)) for figure in figures)
        rows.append(f"| {title} | {' | '.join(numbers)} |")
    return "\n".join(rows)


def helps() -> str:
    """The help of every command, at 80 columns."""
    sections, runner = [], CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"})
    for name in COMMANDS:
        printed = runner.invoke(app, [name, "--help"], prog_name="txcalc").stdout
        text = "\n".join(line.rstrip() for line in printed.strip().splitlines())
        sections.append(f"## {name}\n\n```text\n{text}\n```")
    return "\n\n".join(sections)


def measurements() -> str:
    """What was measured on real devices, from the files that `txcalc measure` wrote."""
    return overview(sorted(folder().glob("*.json")))


def console(block: re.Match[str], columns: int) -> str:
    """A console block with what its command prints now; of one that is refused, why. A comment before it,
    `<!-- show: header, Speed -->`, names the paragraphs that it shows, by the beginning of their title."""
    choice, command = block["choice"], block["command"]
    output = printed(command, columns, refused="\ntxcalc: " in block[0])
    if choice is None:
        return f"```console\n$ txcalc {command}\n{output}\n```"
    header, *tables = output.split("\n\n")
    shown = [
        header if name == "header" else next(table for table in tables if table.startswith(name))
        for name in choice.split(", ")
    ]
    text = "\n\n".join([*shown, "…"])
    return f"<!-- show: {choice} -->\n```console\n$ txcalc {command}\n{text}\n```"


@cache
def printed(command: str, columns: int, *, refused: bool) -> str:
    """What a command prints; on stderr, if it is refused."""
    argv = re.findall(r"'[^']*'|\"[^\"]*\"|\S+", command)
    environment = {"COLUMNS": str(columns), "NO_COLOR": "1"}
    result = CliRunner(env=environment).invoke(app, [word.strip("'\"") for word in argv])
    refused = refused and result.exit_code == 2
    assert result.exit_code == 0 or refused, result.output
    text = result.stderr if refused else result.stdout
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def picture() -> str:
    """The README's first command as a terminal shows it, without fonts from a network."""
    argv = ["show", "llama-3.1-8b", "--tokens", "2k"]
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "txcalc", *argv]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(Text.from_ansi("\n".join([f"$ txcalc {' '.join(argv)}", *printed.splitlines()[:31], "…"])))
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="txcalc"), flags=re.DOTALL)


CONSOLE = re.compile(
    r"(?:<!-- show: (?P<choice>[^\n]*) -->\n)?```console\n\$ txcalc (?P<command>[^\n]*)\n.*?```", re.DOTALL
)
GENERATED = (commands, helps, symbols, keys, families, presets, proved, accelerators, measurements, modules)


@pytest.mark.drawn(1000)
@pytest.mark.slow
@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.stem)
def test_pages_print_what_the_commands_print(page: Path, update_golden: bool) -> None:
    text = page.read_text()
    for block in CONSOLE.finditer(text):
        pytest.importorskip(NEEDS.get(block["command"].split()[0], "txcalc"))
        text = text.replace(block[0], console(block, 80))
    _same(page, text, update_golden)


@pytest.mark.drawn(quick=1)
@pytest.mark.parametrize("generate", GENERATED, ids=lambda generate: generate.__name__)
def test_generated_parts_are_current(generate: Callable[[], str], update_golden: bool) -> None:
    """From its marker to the end of the page, or to where `<!-- end -->` says."""
    marker = f"<!-- {generate.__name__} -->"
    (page,) = [page for page in (README, *PAGES) if marker in page.read_text()]
    before, after = page.read_text().split(marker)
    end = after.find("<!-- end -->")
    rest = after[end:] if end >= 0 else ""
    _same(page, f"{before}{marker}\n{generate()}\n{rest}", update_golden)


def _same(page: Path, text: str, update: bool) -> None:
    if update:
        page.write_text(text)
    assert page.read_text() == text


def test_the_picture_is_current(update_golden: bool) -> None:
    _same(ROOT / "docs" / "images" / "show.svg", picture(), update_golden)


@pytest.mark.parametrize("page", ["../README", "library", "architecture", "tutorials/researcher"])
def test_the_python_examples_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}  # a page is read from its beginning
    for code in re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL):
        exec(compile(code, page, "exec"), names)
    assert capsys.readouterr().err == ""


def test_the_readme_is_short_and_its_links_exist() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 200
    for target in re.findall(r"\]\((?!http)([^)#]+)\)|src=\"([^\"]+)\"", text):
        assert (ROOT / (target[0] or target[1])).exists(), target


NAMED = re.compile(r"\]\(\.\./txcalc/([\w/]+)\.py\)(?: \|)? `([\w.]+)`")
NOTES = [DOCS / "architecture.md", *(ROOT / "txcalc").rglob("README.md")]


@pytest.mark.drawn(quick=1)
@pytest.mark.parametrize("page", NOTES, ids=lambda page: page.parent.name)
def test_what_a_page_names_of_the_code_exists(page: Path) -> None:
    """Files that are linked, functions after such a link, and files and folders of a picture."""
    text = page.read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (page.parent / target).exists(), target
    for module, name in NAMED.findall(text):
        attrgetter(name)(import_module(f"txcalc.{module.replace('/', '.')}"))
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
        for line in re.findall(r'class="place">([^<]+)<', (page.parent / picture).read_text()):
            assert [place for place in line.split() if not (ROOT / "txcalc" / place).exists()] == []


def test_a_missing_function_of_the_architecture_is_noticed() -> None:
    assert len(NAMED.findall(NOTES[0].read_text())) >= 14
    ((module, name),) = NAMED.findall("| [`ledger.py`](../txcalc/ledger.py) | `Entry.nothing` | |")
    with pytest.raises(AttributeError):
        attrgetter(name)(import_module(f"txcalc.{module}"))


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    """Every page is in its contents, and no link leads nowhere: `strict` in mkdocs.yml makes each a fault."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", str(ROOT / "mkdocs.yml"), "-d", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "reference" / "commands" / "index.html").exists()
    library = (tmp_path / "library" / "index.html").read_text()
    assert "<blockquote>" not in library  # what `>>>` is in Markdown
    assert library.count('class="gp"') > 30  # prompts of highlighted examples
    assert "<td>Dtype of the KV cache: bf16, fp8, int8, q8_0 …</td>" in library
