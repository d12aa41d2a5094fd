"""Every command on a terminal of 80 columns: the screen is the one kept in `golden/screens`, with its notes; no line is
wider, no word and no number is cut; exit code 1 is the last line. `golden/formats` keeps some answers as CSV, LaTeX,
Markdown, a plot, or words with their styles: NAME.csv belongs to the screen NAME.txt. `--update-golden` writes the
files again; a new screen starts with its command alone, a new format with an empty file.
"""

from __future__ import annotations

import csv
import re
import shlex
from contextlib import redirect_stdout, suppress
from importlib.util import find_spec
from io import StringIO
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
from command import Ran, typed
from paths import GOLDEN
from typer.testing import CliRunner

from txcalc.cli import app, output
from txcalc.cli.output import fold_notes
from txcalc.render import FORMATS, written
from txcalc.render.lines import FINE, JOINTS, as_lines, wrap
from txcalc.render.terminal import as_text

NEEDS = {"formula": "sympy", "crossover": "sympy", "sweep": "numpy", "verify": "torch", "trace": "torch"}
FILES = {}
for path in sorted((GOLDEN / "screens").glob("*.txt")):
    FILES[path.read_text("utf-8").partition("\n")[0].removeprefix("$ txcalc ")] = path
SCREENS = list(FILES)
NO_TABLE = re.compile(r"^verify|--(help|format|latex|plot|emit|rows|digits)")


def printed(command: str, width: int) -> Ran:
    argv = shlex.split(command)
    if argv[0] in NEEDS and find_spec(NEEDS[argv[0]]) is None:
        pytest.skip(f"needs {NEEDS[argv[0]]}")
    result = typed(*argv, COLUMNS=str(width))
    assert result.exit_code in (0, 1), result.stderr
    return result


def screen(command: str, width: int) -> list[str]:
    return printed(command, width).stdout.splitlines()


def pieces(word: str) -> set[str]:
    """A word, and what it may break into: at its joints, one after another."""
    ends = sorted({0, len(word), *(match.end() for joints in (JOINTS, FINE) for match in joints.finditer(word))})
    return {word[start:end] for i, start in enumerate(ends) for end in ends[i + 1 :]} | {word}


def in_format(answer: Any, form: str) -> str:
    if form == "styles":  # the words that are not plain
        styled = (piece for line in as_lines(answer.report("table"), 80) for piece in line)
        return "\n".join(f"{style}: {text}" for text, style in styled if style and text.strip())
    return as_text(answer.picture(), 90, True) if form == "plot" else written(answer.report(form), form)


def tidy(command: str, text: str) -> None:
    """CSV has keys of its own, and numbers that are numbers."""
    rows = list(csv.DictReader(text.splitlines()))
    assert rows and all(None not in row and None not in row.values() for row in rows)
    columns = list(rows[0])
    assert all(columns) and len(set(columns)) == len(columns)
    if not command.startswith("sweep "):  # whose points are told apart by their axes
        assert columns[0] == "id" and len({row["id"] for row in rows}) == len(rows)
    if columns[1:] == ["table", "row", "column", "value", "unit", "known", "text"]:
        places = {(row["table"], row["row"], row["column"]) for row in rows}
        assert len(places) == len(rows)  # what a pivot asks for
        for row in rows:
            assert row["table"] and bool(row["value"]) != bool(row["text"])
            assert not row["value"] or float(row["value"]) == float(row["value"])
            assert row["known"] in ("", "proved", "measured", "published", "modelled", "by convention", "listed")
            assert "share" not in row["column"] or not row["value"] or 0 <= float(row["value"]) <= 1
        return
    plain = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
    for row in rows:
        for name in columns[1:]:
            assert not re.match(r"[-−]?[\d,]*\d[ ,.\d]* ?(%|[KMBT]|[KMGT]iB|ms|s)?$", row[name]) or plain.fullmatch(
                row[name]
            )


@pytest.mark.drawn(1000, quick=4)
@pytest.mark.parametrize("command", SCREENS)
def test_a_screen_is_the_one_kept_and_nothing_is_cut(
    command: str, update_golden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = [(None, "table")]

    def keep(*call: Any) -> None:
        calls.append(call)
        output.print_answer(*call)

    monkeypatch.setattr("txcalc.cli.build.print_answer", keep)
    result = printed(command, 80)
    monkeypatch.undo()
    answer = calls[-1][0]
    if not NO_TABLE.search(command):
        tidy(command, in_format(answer, "csv"))
        ElementTree.fromstring(in_format(answer, "html").removeprefix("<!doctype html>"))
    for form in (*FORMATS, "plot", "styles"):
        path = GOLDEN / "formats" / f"{FILES[command].stem}.{form}"
        if path.exists():
            shown = in_format(answer, form)
            if update_golden:
                path.write_text(shown, "utf-8")
            assert path.read_text("utf-8").splitlines() == shown.splitlines()
    monkeypatch.setenv("COLUMNS", "1000")
    with redirect_stdout(StringIO()) as stdout, suppress(typer.Exit):
        output.print_answer(*calls[-1])  # the answer again, wider
    narrow, wide = result.stdout.splitlines(), stdout.getvalue().splitlines() or screen(command, 1000)
    text = f"$ txcalc {command}\n{result.output}" + "exit code 1\n" * result.exit_code
    if update_golden:
        FILES[command].write_text(text, "utf-8")
    assert FILES[command].read_text("utf-8") == text
    if re.search("--(emit|format|latex|plot)", command):
        return
    assert max(map(len, narrow)) <= 80
    whole = {word for line in wide for word in line.split()}
    whole_pieces = set().union(*map(pieces, whole))
    cut = {word for line in narrow for word in line.split() if not re.fullmatch("─+", word)} - whole_pieces
    assert not cut


LOAD = "--rate 0.8/s --context 8k --prompt 4k --ttft 2s --tpot 50ms --engine vllm"
SHORT = {
    f"deploy llama-3.1-70b --gpu h100-sxm:8@2.5 {LOAD}": 30,
    f"deploy llama-3.1-70b --gpu h100-sxm:8@2.5 {LOAD} --simulate --requests 200": 33,
    "train gemma-3-27b --gpu h100@2.5 --train-tokens 1T --deadline 30d --budget 1M": 40,
}


@pytest.mark.slow
@pytest.mark.parametrize("command", SHORT)
def test_a_plan_is_a_screen_of_30_or_40_lines(command: str) -> None:
    assert 20 < len(screen(command, 80)) <= SHORT[command]


WIDER = {
    "show gpt2": "/token, masked",
    "deploy gpt2 --gpu l4:1": "end to end",
    "fit gpt2 --gpu l4": "needed",
    "kv gpt2": "per token",
    "crossover gpt2 --no-formulas": "masked, of the context",
    "scale --compute 1e21": "tokens fitted to",
    "train gpt2 --gpu l4:1": "of the GPU",
}


@pytest.mark.parametrize("command", WIDER)
def test_a_wide_terminal_shows_more(command: str) -> None:
    wide, narrow = ("\n".join(screen(command, width)) for width in (120, 80))
    assert f"{WIDER[command]}\n" in wide and f"{WIDER[command]}\n" not in narrow


def test_a_line_breaks_after_a_semicolon_and_not_beside_an_equals_sign_or_before_a_unit() -> None:
    assert wrap("D = 4,096, V = 50,257", 18) == ["D = 4,096,", "V = 50,257"]
    assert wrap("of 40,478 tokens, 124 M on release", 21) == ["of 40,478 tokens,", "124 M on release"]
    assert wrap("latent 512; 8 of 384 experts, F = 2,048", 30) == ["latent 512; 8 of 384 experts,", "F = 2,048"]
    assert wrap("latent 512 + 64; 8 of 384, F = 2,048", 30) == ["latent 512 + 64;", "8 of 384, F = 2,048"]


def test_joints_are_no_places_within_a_word_or_a_number() -> None:
    for text in ("attention", "1,234,567.89", "16.06", "h_kv", "−59.38", "TFLOP/s", "0.5", "fp8_e4m3"[:3], "²·³"[:1]):
        assert pieces(text) == {text}
    assert [match.end() for match in JOINTS.finditer("layers.0.attention.o_proj")] == [9, 19]


def test_notes_that_are_one_but_for_a_name_are_told_once() -> None:
    assert fold_notes(["a: is so", "b: is so", "alone", "a: is other", "b: is so", "alone"]) == [
        "a, b: is so",
        "alone",
        "a: is other",
    ]


@pytest.mark.parametrize(("gpus", "start"), [("h100:2", "\x1b[1;32mfits"), ("h100:1", "\x1b[1;31mdoes not fit")])
def test_the_verdict_is_first_and_bright_on_a_terminal(gpus: str, start: str) -> None:
    for command in ("deploy llama-3.1-70b", "train llama-2-7b --layout fsdp=" + gpus[-1]):
        argv = [*command.split(), "--gpu", gpus]
        assert CliRunner(env={"FORCE_COLOR": "1"}).invoke(app, argv).stdout.startswith(start)
        assert "\x1b" not in CliRunner(env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).invoke(app, argv).stdout
