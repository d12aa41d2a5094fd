"""CSV and LaTeX of every command: rows with keys of their own, and tables that a page holds."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest
from command import Command
from test_screens import NO_TABLE, SCREENS, screen

import txcalc
from txcalc.render.latex import in_one_line

COMMANDS = [command for command in SCREENS if not NO_TABLE.search(command)]


@pytest.mark.parametrize(
    "command",
    [
        "show gpt2 --tokens {0} --batch {0}",
        "deploy gpt2 --gpu h100 --context 51{0} --concurrency {0} --price {0}",
        "train gpt2 --gpu h100:8@{0} --layout dp=8 --tokens 512 --train-tokens {0}B --budget {0}000 --deadline {0}d",
    ],
)
def test_an_id_of_csv_holds_nothing_that_was_asked(command: str) -> None:
    """Loads and the front over batches have a row for each of what there is."""

    def ids(number: int) -> set[str]:
        rows = csv.DictReader(screen(f"{command.format(number)} --format csv", 80))
        return {row["id"] for row in rows if row["table"] not in ("Loads", "Pareto front of latency and throughput")}

    assert ids(2) == ids(3)


def latex(command: str) -> str:
    """The tables of a command, each of which is plain, told apart and within a page."""
    text = "\n".join(screen(f"{command} --format latex", 80))
    assert text.isascii(), sorted({sign for sign in text if not sign.isascii()})
    floats = re.findall(r"\\begin\{table\}.*?\\end\{table\}", text, re.DOTALL)
    assert floats and text.count(r"\begin{tabular}") == len(floats)
    labels = re.findall(r"\\label\{([^}]*)\}", text)
    assert len(set(labels)) == len(labels) == text.count(r"\caption{") == len(floats)
    for table in floats:
        assert all(rule in table for rule in (r"\toprule", r"\midrule", r"\bottomrule")) and r"\hline" not in table
        assert table.count("\\\\\n") <= 41
        columns = re.search(r"\\begin\{tabular\}\{(.*)\}\n", table)
        assert columns
        number = len(re.findall(r"[lr]|p\{[^}]*\}", columns[1]))
        lines = [line for line in table.splitlines() if line.endswith("\\\\")]
        whole = [line for line in lines if line.startswith(f"\\multicolumn{{{number}}}{{l}}{{")]
        assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines if line not in whole} == {number}
    return text


@pytest.mark.slow
def test_latex_of_every_command_compiles_and_no_table_is_wider_than_a_page(
    tmp_path: Path, draw: Random, pytestconfig: pytest.Config
) -> None:
    """In one document, so that a TeX starts once: with margins of an inch, as `latex.PAGE` has them."""
    engine = next(filter(None, map(shutil.which, ("pdflatex", "tectonic", "xelatex"))), None)
    if engine is None:
        pytest.skip("no LaTeX is installed (pdflatex, tectonic or xelatex)")
    kpsewhich = shutil.which("kpsewhich")
    if kpsewhich and not subprocess.run([kpsewhich, "booktabs.sty"], capture_output=True, text=True).stdout:
        pytest.skip("this LaTeX has no booktabs (apt-get install texlive-latex-recommended)")
    commands = COMMANDS if pytestconfig.option.every_case else draw.sample(COMMANDS, 30)
    tables = [rf"\typeout{{COMMAND {command}}}{latex(command)}\clearpage" for command in commands]
    source = tmp_path / "table.tex"
    packages = r"\usepackage[margin=1in]{geometry}\usepackage{booktabs,amsmath,amssymb}"
    document = [rf"\documentclass{{article}}{packages}\begin{{document}}", *tables, r"\end{document}"]
    source.write_text("\n".join(document))
    halt = [] if "tectonic" in engine else ["-interaction=nonstopmode", "-halt-on-error"]
    compiled = subprocess.run([engine, *halt, source.name], cwd=tmp_path, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stdout[-2000:]
    wide = re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\)", compiled.stdout)
    assert not [points for points in wide if float(points) >= 3], compiled.stdout[-20_000:]


@pytest.mark.parametrize(
    ("fraction", "line"),
    [
        (r"$\frac{D \cdot (h + k)}{2 \cdot t_{p}}$", r"$D \cdot (h + k) / (2 \cdot t_{p})$"),
        (r"$\frac{a + b}{c}$", "$(a + b) / c$"),
        (r"$\frac{a}{b} + c$", r"$\frac{a}{b} + c$"),
        ("$a + b$", "$a + b$"),
    ],
)
def test_a_fraction_in_a_paragraph_is_in_one_line(fraction: str, line: str) -> None:
    assert in_one_line(fraction) == line


def test_rows_and_digits_are_chosen() -> None:
    run, two = Command(), ("compare", "llama-3.1-8b", "gemma-3-12b")
    assert "total & 8.030 B" in txcalc.show("llama-3.1-8b").to_latex(rows=["total", "norm"], digits=4)
    assert run(*two, "--rows", "nothing")[2].startswith("txcalc: --rows: no row named 'nothing'")
    for digits in ("0", "16"):
        assert f"--digits is {digits}, expected a whole number from 1 to 15" in run(*two, "--digits", digits)[2]
    assert run(*two, "--digits", "2", "--json")[2].startswith("txcalc: --rows and --digits apply to tables")
