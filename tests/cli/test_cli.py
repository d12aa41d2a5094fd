"""The command line as a user meets it: help, formats, exit codes, colour and pipes."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib.util import find_spec
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from command import Command
from paths import ROOT

from txcalc import COMMANDS, __released__, __version__, load
from txcalc.cli import Commands
from txcalc.cli.adapters import question_of
from txcalc.cli.output import escape

NEEDS = {"formula": "sympy", "sweep": "numpy", "export": "tomli_w", "verify": "torch", "trace": "torch"}
POSSIBLE = {"deploy": {0, 1}}  # 1: the answer is that it does not fit
TXCALC = [sys.executable, "-m", "txcalc"]
ANSI = "\x1b["


run = Command()


def needs(command: str) -> None:
    if command in NEEDS and find_spec(NEEDS[command]) is None:
        pytest.skip(f"needs {NEEDS[command]}")


def example(command: str) -> list[str]:
    """The example in a command's help."""
    text = " ".join(Commands(name="txcalc").get_command(None, command).help.split())
    match = re.search(r"Example: txcalc (.*)\Z", text)
    assert match, f"the help of {command} does not end in an example"
    return shlex.split(match[1])


# Help.


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_with_an_example(command: str) -> None:
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert example(command)[0] == command
    assert "Example: txcalc" in out
    options = [
        param
        for param in Commands(name="txcalc").get_command(None, command).params
        if param.param_type_name == "option"
    ]
    assert [param.name for param in options if not param.help] == []


# Examples of trace and prove are about files of the user, that of report writes one; the others are slow.
APART = ("verify", "prove", "measure", "calibrate", "trace", "report")


@pytest.mark.drawn(1000)
@pytest.mark.slow
@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in APART])
def test_examples_run(command: str) -> None:
    needs(command)
    code, out, err = run(*example(command))
    assert code in POSSIBLE.get(command, {0}), err
    assert out
    assert max(map(len, out.splitlines())) <= 100


def test_help_lists_every_command_in_order() -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert re.findall(r"^  (\w+)  +\S", out.partition("Commands:")[2], re.MULTILINE) == list(COMMANDS)


@pytest.mark.drawn(quick=1)
@pytest.mark.parametrize("command", [command for command in COMMANDS if question_of(command).first])
def test_a_long_help_begins_with_what_people_use_first(command: str) -> None:
    """And each further example runs."""
    question = question_of(command)
    short, whole = (run(command, flag)[1].partition("\nOptions:\n")[2] for flag in ("-h", "--help"))
    common, _, advanced = short.partition("\nAdvanced:\n")
    options = [re.findall(r"^  (-[\w-]+)", text, re.M) for text in (common, whole)]
    assert options[0] == list(question.first) == options[1][: len(options[0])]
    assert f"txcalc {command} --help lists {len(options[1]) - len(options[0])} more: " in advanced
    for example in question.examples:
        code, _, err = run(*shlex.split(example.partition(": txcalc ")[2]))
        assert code == 0, err


@pytest.mark.parametrize("words", ["vaswani", "Attention Is All You Need"])
def test_presets_are_known_by_their_papers(words: str) -> None:
    out = run("presets", words)[1]
    assert "transformer-base" in out and "gpt2" not in out


def test_version() -> None:
    assert run("--version") == (0, f"txcalc {__version__}\n", "")


def test_cite_prints_what_the_citation_file_says() -> None:
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    cited = {key: value.strip('" ') for key, _, value in (line.partition(": ") for line in lines)}
    assert (cited["version"], cited["date-released"]) == (__version__, __released__)
    code, out, _ = run("--cite")
    assert code == 0 and all(f"{{{text}}}" in out for text in (cited["title"], __version__, __released__[:4]))
    assert "- name: The txcalc authors" in lines[5] and "{{The txcalc authors}}" in out


# Formats.


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in (*APART, "export")])
def test_json_is_one_object_with_a_schema(command: str) -> None:
    needs(command)
    code, out, err = run(*example(command), "--json")
    assert code in POSSIBLE.get(command, {0}), err
    data = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert data["schema"] == f"txcalc/{command}/1"
    if command in ("show", "compare", "kv"):  # one place decides for all (`options.chosen`)
        assert run(*example(command), "--format", "json")[1] == out


# show.


def shown(*argv: str) -> dict[str, Any]:
    code, out, err = run("show", *argv, "--json")
    assert code == 0, err
    data: dict[str, Any] = json.loads(out)
    return data


def test_show_says_what_a_model_is_made_of_and_why_the_published_number_is_another() -> None:
    out = run("show", "transformer-big")[1]
    assert "213 M would need about 36,000" in " ".join(out.split())
    assert "LayerNorm, post-norm; relu; sinusoidal positions; F/D = 4" in out
    assert "published:" not in run("show", "transformer-big", "--set", "h=8")[1]  # which is no longer that model
    assert "chunks of 8,192" in run("show", "llama-4-scout")[1]
    assert "1 of 16 experts + 1 shared" in run("show", "llama-4-scout")[1]
    assert "no norms; gelu; rotary positions" in run("show", "D=2 h=1 L=1 F=4 plain direct nonorm")[1]
    biased, plain = (load(f"D=8 h=2 L=1 F=4 plain direct{word}").params for word in (" bias", ""))
    assert biased - plain == 3 * 8 + 4 + 8  # of queries, keys and values, and of the feed-forward part: none of outputs
    data = shown("transformer-big")
    assert data["published"].startswith("213 M")
    blocks = next(rule for rule in data["rules"] if rule["formula"] == "12·L·D²")
    assert blocks["gives"] == 12 * 12 * 1024**2 and blocks["exact"] == data["sums"]["blocks"]
    assert blocks["relative_error"] == pytest.approx(blocks["gives"] / blocks["exact"] - 1)


def test_what_is_counted_under_other_and_added_to_the_stream_is_said() -> None:
    assert re.search(r"of these: scan, skip +[\d,]{9,}", run("show", "mamba-130m", "--detail")[1])
    assert "of these" not in run("show", "gpt2", "--detail")[1]
    out = run("show", "llama-3.2-1b", "--set", "norm.residual=0.22")[1]
    assert "RMSNorm, pre-norm, branches × 0.22" in " ".join(out.split())


@pytest.mark.parametrize(
    "keys", [["h_kv=4", "F=12k"], ['pattern=["5*local", "global"]', "layer.local.attention.window=1024"]]
)
def test_keys_of_one_set_are_separated_by_commas_in_every_command(keys: list[str]) -> None:
    model = run.data("show", "llama-3.1-8b", "--set", ",".join(keys))
    assert model == run.data("show", "llama-3.1-8b", *(word for key in keys for word in ("--set", key)))
    compared = run.data("compare", "llama-3.1-8b", "--set", ",".join(keys))["rows"][0]["values"]
    assert compared == [8030261248, model["params"]["total"]]


def test_masked_stands_beside_dense_where_there_is_a_window() -> None:
    out = run("show", "gemma-3-27b", "--tokens", "100k", "--detail")[1]
    first = " ".join(out.split())
    assert re.search(r"[\d.]+ B FLOPs per token as masked \(\w+\), [\d.]+ B dense", first)  # what is computed first
    dense, masked = (re.search(rf"forward per token, {way} .* ([\d.]+) B", out) for way in ("dense", "masked"))
    assert dense and masked and float(masked[1]) < float(dense[1]) / 2
    assert "forward per token, masked" not in run("show", "llama-3.1-8b", "--detail")[1]
    assert "FLOPs per token, dense" not in run("compare", "gpt2", "gpt2-xl")[1]


# Processes: what only a real one shows.


def test_colour_changes_no_character() -> None:
    plain, coloured = run("compare", "gpt2", "gpt2-xl")[1], run("compare", "gpt2", "gpt2-xl", FORCE_COLOR="1")[1]
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in bare.splitlines()] == plain.splitlines()


def on_a_terminal(*argv: str, **environment: str) -> str:
    """What a command writes to a terminal of its own."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    child = subprocess.Popen(
        [*TXCALC, *argv], stdout=theirs, stderr=theirs, env={**clean, "TERM": "xterm", **environment}
    )
    os.close(theirs)
    written = read_all(ours)
    assert child.wait() == 0
    return written.decode()


def read_all(terminal: int) -> bytes:
    written = []
    try:
        while piece := os.read(terminal, 1 << 16):
            written.append(piece)
    except OSError as error:  # Linux's way to say that the other end is closed
        assert error.errno == errno.EIO
    finally:
        os.close(terminal)
    return b"".join(written)


@pytest.mark.slow
def test_a_terminal_gets_colour_unless_it_says_no() -> None:
    assert ANSI in on_a_terminal("compare", "gpt2", "gpt2-xl")
    assert ANSI not in on_a_terminal("compare", "gpt2", "gpt2-xl", NO_COLOR="1")


@pytest.mark.slow
@pytest.mark.parametrize("columns", [50, 80])
def test_notes_and_errors_are_as_wide_as_their_terminal(columns: int) -> None:
    """Whatever becomes of the result: each stands beside its label. In a pipe each note is one line."""
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    notes = [*TXCALC, "train", "gpt2", "--gpu", "h100:8", "--layout", "fsdp=8"]
    error = [*TXCALC, "show", "llama-3.1-8b", "--batch", "of many at once"]
    for argv, label in ((notes, "note: "), (error, "txcalc: ")):
        piped = subprocess.run(argv, capture_output=True, text=True).stderr.splitlines()
        assert all(line.startswith(label) for line in piped) and max(map(len, piped)) > columns
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, columns))
        plain = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
        child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=theirs, env={**plain, "TERM": "xterm"})
        os.close(theirs)
        lines = read_all(ours).decode().splitlines()
        child.wait()
        assert max(map(len, lines)) <= columns and len(lines) > len(piped)
        assert all(line.startswith((label, " " * len(label))) for line in lines)
        assert " ".join(" ".join(lines).split()) == " ".join(piped)


@pytest.mark.slow
@pytest.mark.parametrize("argv", [["show", "llama-3.1-8b"], ["sweep", "gpt2", "--over", "T=1:1M:1", "--format", "csv"]])
def test_a_closed_pipe_is_no_error(argv: list[str]) -> None:
    needs(argv[0])
    child = subprocess.Popen([*TXCALC, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout and child.stderr
    assert child.stdout.readline()
    child.stdout.close()
    with child.stderr:
        assert child.stderr.read() == ""
    assert child.wait() == 0


@pytest.mark.parametrize(
    ("output", "message"),
    [(">/dev/full", "the result cannot be written: no space left on device"), (">&-", "standard output is closed")],
)
def test_a_full_disk_and_a_closed_output_are_said(output: str, message: str) -> None:
    argv = ["sh", "-c", f'exec "$@" {output}', "sh", *TXCALC, "show", "gpt2"]
    ran = subprocess.run(argv, stderr=subprocess.PIPE, text=True)
    assert (ran.returncode, ran.stderr) == (2, f"txcalc: {message}\n")


def test_json_is_escaped_where_the_output_has_no_other_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(BytesIO(), "ascii"))
    assert escape('{"unit":"µs"}') == '{\n  "unit": "\\u00b5s"\n}'


@pytest.mark.slow
def test_a_long_sweep_shows_its_progress_and_writes_every_row(tmp_path: Path) -> None:
    needs("sweep")
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    path = tmp_path / "rows.csv"
    argv = [*TXCALC, "sweep", "gpt2", "--over", "T=1:3M:1", "--quantity", "flops", "--format", "csv"]
    with path.open("w") as file:
        child = subprocess.Popen(argv, stdout=file, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    assert b"points" in read_all(ours)
    assert child.wait() == 0
    assert path.read_bytes().count(b"\n") == 3 * 2**20 + 1


def test_ctrl_c_is_130_and_quiet() -> None:
    needs("sweep")
    argv = ["sweep", "gpt2", "--over", "T=1:90M:1", "--format", "csv"]
    # A job in the background would inherit that SIGINT is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        child = subprocess.Popen([*TXCALC, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert child.stdout and child.stderr
    assert child.stdout.readline() == "T,params,flops\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, "")
    assert out.count("\n") < 90 * 2**20


def test_the_module_and_the_command_are_one() -> None:
    answer = subprocess.run([*TXCALC, "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout == f"txcalc {__version__}\n"
