"""The package as users get it: a wheel with its presets, an editable install, a bare checkout; light to start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from paths import ROOT

import txcalc
from txcalc.sources.presets import names


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="building a wheel needs hatchling (pip install '.[test]')")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.slow
def test_a_wheel_holds_every_preset_and_its_licence(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel).namelist()
    presets = {Path(file).stem for file in files if file.startswith("txcalc/presets/models/")}
    assert presets == set(names())
    assert any(file.endswith("licenses/LICENSE") for file in files)


@pytest.mark.slow
def test_a_wheel_holds_what_was_measured(wheel: Path) -> None:
    files = {Path(file).name for file in zipfile.ZipFile(wheel).namelist() if "presets/measurements/" in file}
    assert files == {path.name for path in (ROOT / "presets" / "measurements").iterdir()} != set()


@pytest.mark.slow
def test_a_wheel_holds_what_a_page_is_made_of(wheel: Path) -> None:
    page = ROOT / "txcalc" / "render" / "page"
    files = {file for file in zipfile.ZipFile(wheel).namelist() if file.startswith("txcalc/render/page/")}
    written = {str(path.relative_to(ROOT)) for path in page.rglob("*.*") if path.suffix != ".pyc"}
    assert files == written >= {"txcalc/render/page/style.css", "txcalc/render/page/vendor/LICENSES.txt"}


@pytest.mark.slow
def test_a_wheel_finds_its_presets_where_there_is_no_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    answer = _run("import txcalc; print(txcalc.__file__, txcalc.load('llama-3.1-8b').params)", tmp_path)
    file, params = answer.split()
    assert Path(file).is_relative_to(tmp_path)
    assert params == "8030261248"


def test_a_bare_checkout_finds_its_presets() -> None:
    assert _run("import txcalc; print(txcalc.load('gpt2').params)", ROOT).strip() == "124439808"


def test_the_module_runs_as_the_command_does() -> None:
    command = [sys.executable, "-m", "txcalc", "--version"]
    assert subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout == (
        f"txcalc {txcalc.__version__}\n"
    )


OTHERS = (
    *("transformers", "huggingface_hub", "tokenizers", "gguf", "torch", "numpy", "sympy", "pandas", "polars", "duckdb"),
    *("dask", "distributed", "matplotlib", "IPython", "typer", "rich"),
)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_users_type_checker_sees_the_types(wheel: Path, tmp_path: Path) -> None:
    """The notebook's cells as one file, from the installed package, and two lines that are wrong."""
    pytest.importorskip("mypy", reason="type checking needs mypy (pip install '.[test]')")
    site = tmp_path / "site-packages"
    zipfile.ZipFile(wheel).extractall(site)
    assert (site / "txcalc" / "py.typed").is_file()
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())
    cells = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    code = "\n".join("".join(source) for source in cells if not source[0].startswith("!"))
    script = tmp_path / "script.py"
    script.write_text(f"{code}\nwrong: str = txcalc.load('gpt2').params\nmissing = cache.rows[0].byte\n")
    settings = tmp_path / "mypy.ini"  # whose types other libraries have is not asked, and takes most of the time
    others = ",".join(f"{name}.*" for name in OTHERS)
    settings.write_text(f"[mypy]\nstrict = true\nfollow_imports = silent\n[mypy-{others}]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", f"--config-file={settings}", str(script)]
    environment = {**os.environ, "MYPYPATH": str(site)}
    output = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    last = len(script.read_text().splitlines())
    wrong, missing = (line for line in output.splitlines() if ": error:" in line)
    assert wrong.startswith(f'script.py:{last - 1}: error: Incompatible types in assignment (expression has type "int"')
    assert missing.startswith(f"script.py:{last}: error:"), output


def test_core_dependencies_are_light() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [dependency.split(">")[0] for dependency in project["dependencies"]] == ["typer", "rich", "msgspec"]
    assert {"symbolic", "sweep", "verify", "test"} <= set(project["optional-dependencies"])


def test_the_version_heads_the_changelog() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    head = next(line for line in lines if line.startswith("## ") and line != "## Unreleased")
    assert head.split()[1] == txcalc.__version__


def _run(code: str, place: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(place)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=place, env=environment, check=True, capture_output=True, text=True).stdout
