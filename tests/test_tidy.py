"""CSV and LaTeX of every command: tidy data with keys of their own, and tables that a page holds."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_screens import SCREENS, quick_first, screen

COMMANDS = SCREENS[:-1]  # the last runs PyTorch


@pytest.mark.parametrize("command", quick_first(COMMANDS))
def test_csv_has_keys_of_its_own_and_numbers_that_are_numbers(command: str) -> None:
    rows = list(csv.DictReader(screen(f"{command} --format csv", 80)))
    assert rows and all(None not in row and None not in row.values() for row in rows)
    columns = list(rows[0])
    assert all(columns) and len(set(columns)) == len(columns)
    if columns[0] == "id":
        assert columns == ["id", "table", "row", "column", "value", "unit", "known", "text"]
        assert len({row["id"] for row in rows}) == len(rows)
        places = {(row["table"], row["row"], row["column"]) for row in rows}
        assert len(places) == len(rows)  # what a pivot asks for
        for row in rows:
            assert bool(row["value"]) != bool(row["text"])
            assert not row["value"] or float(row["value"]) == float(row["value"])
            assert row["known"] in ("", "proved", "measured", "published", "modelled")
            assert "share" not in row["column"] or not row["value"] or 0 <= float(row["value"]) <= 1
        return
    for number in range(1, len(columns) + 1):
        keys = {tuple(list(row.values())[:number]) for row in rows}
        if len(keys) == len(rows):
            break
    assert len(keys) == len(rows)
    plain = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
    for row in rows:
        for name in columns[number:]:
            assert not re.match(r"[-−]?[\d,]*\d[ ,.\d]* ?(%|[KMBT]|[KMGT]iB|ms|s)?$", row[name]) or plain.fullmatch(
                row[name]
            )


@pytest.mark.parametrize("command", quick_first(COMMANDS))
def test_latex_is_plain_and_within_a_page(command: str) -> None:
    text = "\n".join(screen(f"{command} --format latex", 80))
    assert text.isascii(), sorted({sign for sign in text if not sign.isascii()})
    floats = re.findall(r"\\begin\{table\}.*?\\end\{table\}", text, re.DOTALL)
    assert floats and text.count(r"\begin{tabular}") == len(floats)
    labels = re.findall(r"\\label\{([^}]*)\}", text)
    assert len(set(labels)) == len(labels) == text.count(r"\caption{") == len(floats)
    for one in floats:
        assert all(rule in one for rule in (r"\toprule", r"\midrule", r"\bottomrule")) and r"\hline" not in one
        assert one.count("\\\\\n") <= 41
        columns = re.search(r"\\begin\{tabular\}\{(.*)\}\n", one)
        assert columns
        number = len(re.findall(r"[lr]|p\{[^}]*\}", columns[1]))
        lines = [line for line in one.splitlines() if line.endswith("\\\\")]
        assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines} == {number}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS[::4])
def test_latex_compiles(command: str, tmp_path: Path) -> None:
    engine = next(filter(None, map(shutil.which, ("pdflatex", "tectonic", "xelatex"))), None)
    if engine is None:
        pytest.skip("no LaTeX is installed (pdflatex, tectonic or xelatex)")
    found = shutil.which("kpsewhich")
    if found and not subprocess.run([found, "booktabs.sty"], capture_output=True, text=True).stdout:
        pytest.skip("this LaTeX has no booktabs")
    body = "\n".join(screen(f"{command} --format latex", 80))
    source = tmp_path / "table.tex"
    source.write_text(
        "\\documentclass{article}\\usepackage[margin=1in]{geometry}\\usepackage{booktabs,amsmath,amssymb}"
        f"\\begin{{document}}\n{body}\n\\end{{document}}\n"
    )
    halt = [] if "tectonic" in engine else ["-interaction=nonstopmode", "-halt-on-error"]
    made = subprocess.run([engine, *halt, source.name], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout[-2000:]
    wide = [float(points) for points in re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\)", made.stdout)]
    assert max(wide, default=0) < 20
