"""`txcalc formula` as a command: its rows, formats, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import Command, typed

from txcalc import formula, show
from txcalc.planning.gradients import training_flops
from txcalc.sources import load

pytest.importorskip("sympy")


run = Command("formula", columns=100, NO_COLOR="1")


def rows(*argv: str) -> list[dict[str, Any]]:
    data = run.data(*argv)
    assert data["schema"] == "txcalc/formula/1"
    return data["rows"]


def total(table: list[dict[str, Any]], quantity: str) -> dict[str, Any]:
    (row,) = (row for row in table if row["part"] == "total" and row["quantity"] == quantity)
    return row


def test_the_numbers_everyone_knows() -> None:
    gpt2 = rows("gpt2", "--tokens", "1024")
    assert total(gpt2, "flops")["substituted"] == "1536·B·T·(24·T + 160849)"
    assert total(gpt2, "flops")["value"] == 291_648_307_200
    assert total(gpt2, "params")["value"] == 124_439_808
    llama = rows("llama-3.1-8b", "--tokens", "2048")
    assert total(llama, "flops")["substituted"] == "524288·B·T·(T + 28628)"
    assert total(llama, "flops")["value"] == 32_938_104_193_024
    assert total(llama, "flops_masked")["value"] == 31_839_129_436_160
    assert total(llama, "cache_growth")["formula"] == "2·L·h_kv·d_h"
    assert total(llama, "cache_growth")["substituted"] == "2·32·8·128"
    assert total(llama, "cache_growth")["latex"] == r"2 \cdot L \cdot h_{kv} \cdot d_{h}"


@pytest.mark.slow
def test_every_value_is_the_ledgers() -> None:
    model = load("deepseek-v3")
    ledger = model.ledger(2, 3, 100, mla="absorbed")
    table = rows("deepseek-v3", "--batch", "2", "--tokens", "3", "--past", "100", "--mla", "absorbed")
    assert {row["part"] for row in table} > {"total", "layers.0.attention.q_b", "layers.3.experts.routed", "head"}
    for row in table:
        if row["quantity"] in ("params", "active", "flops", "flops_masked", "saved", "cache"):
            part = "" if row["part"] == "total" else row["part"]
            assert row["value"] == ledger.at(part).total(row["quantity"]), row
    assert {row["part"]: row["times"] for row in table}["layers.3.attention.o"] == 58
    assert "P" in total(table, "flops")["substituted"]


def test_a_part_by_its_path() -> None:
    table = rows("llama-3.1-8b", "layers.31.attention")
    params = {row["part"].removeprefix("layers.31.attention"): row for row in table if row["quantity"] == "params"}
    assert list(params) == [".q", ".k", ".v", ".o", ""]
    assert params[""]["formula"] == "2·D·d_h·(h + h_kv)"
    assert params[""]["substituted"] == "2·4096·128·(32 + 8)"
    assert params[""]["value"] == 41_943_040
    assert all(row["times"] == 1 for row in table)


def test_without_a_model_the_rules_are_derived() -> None:
    result = run()
    assert result.exit_code == 0
    for line in (
        "q          D·h·d_h",
        "together   2·D·d_h·(h + h_kv)",
        "h·d_h = D  4·D²",
        "F = 4·D            12·L·D²",
    ):
        assert line in result.stdout
    data = json.loads(run("--json").stdout)
    assert data["schema"] == "txcalc/formula/1" and data["model"] is None
    last = [derivation["steps"][-1]["formula"] for derivation in data["derivations"]]
    assert last[:6] == ["4·D²", "8·D²", "8·D²", "12·L·D²", "2·V·D", "2·L·D"]
    assert data["derivations"][5]["steps"][1] == {
        "step": "L of them",
        "formula": "2·L·h_kv·d_h",
        "latex": r"2 \cdot L \cdot h_{kv} \cdot d_{h}",
    }


def test_a_table_shows_letters_over_numbers() -> None:
    lines = [line.rstrip() for line in run("llama-3.1-8b", "--tokens", "2k").stdout.splitlines()]
    at = next(i for i, line in enumerate(lines) if line.startswith("layers.0.attention  "))
    assert lines[at].split() == ["layers.0.attention", "32", "2·D·d_h·(h", "+", "h_kv)", "41,943,040"]
    assert lines[at + 1].strip() == "= 2·4096·128·(32 + 8)"
    assert any(line.split() == ["d_h", "head", "width", "(need", "not", "be", "D/h)", "128"] for line in lines)


@pytest.mark.slow
def test_a_part_that_costs_the_same_in_several_layer_kinds_is_shown_once() -> None:
    markdown = run("gemma-3-27b", "--format", "markdown").stdout
    assert "| layers.0.attention | L_global + L_local | 2·d_h·(D·(h + h_kv) + 1) |" in markdown
    cache_section = markdown.split("elements in total")[1].split("Elements kept")[0]
    assert "| layers.0.attention | L_local | 2·min(T, W)·h_kv·d_h |" in cache_section
    assert "| layers.5.attention | L_global | 2·T·h_kv·d_h |" in cache_section
    parts = [row["part"] for row in rows("gemma-3-27b") if row["quantity"] == "params"]
    assert {"layers.0.attention.q", "layers.5.attention.q"} < set(parts)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("name", ["deepseek-v3", "jamba-v0.1", "whisper-large-v3", "vit-b"])
def test_tables_keep_to_their_columns(name: str, columns: int) -> None:
    result = run(name, COLUMNS=str(columns))
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= columns


def test_other_formats() -> None:
    table = list(csv.DictReader(io.StringIO(run("gpt2", "--format", "csv").stdout)))
    cells = {(row["table"], row["row"], row["column"]): row["value"] for row in table}
    texts = {(row["table"], row["row"], row["column"]): row["text"] for row in table}
    assert texts["Parameters", "layers.0.attention", "formula"] == "D·(2·d_h·(h + h_kv) + 1) + d_h·(h + 2·h_kv)"
    assert cells["Parameters", "total", "value"] == "124439808"
    markdown = run("llama-3.1-8b", "--format", "markdown").stdout
    assert "| layers.0.feed_forward | L | 3·D·F | 3·4096·14336 | 176,160,768 |" in markdown
    latex = run("llama-3.1-8b", "--format", "latex").stdout
    assert r"feed\_forward & $L$ & $3 \cdot D \cdot F$ & $3 \cdot 4096 \cdot 14336$ & 176,160,768 \\" in latex


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "deepseek-v3", "whisper-large-v3", "gemma-3-27b", "jamba-v0.1"])
def test_a_whole_model_is_a_latex_document_within_its_margins(name: str, tmp_path: Path) -> None:
    """Compiled by a real TeX, where there is one: no error, and no line that is wider than the page."""
    result = typed("formula", name, "--latex")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(r"\documentclass")
    total = next(row for row in result.stdout.splitlines() if row.startswith(r"\texttt{total}"))
    assert f"{load(name).params:,}".replace(",", "{,}") in total
    compiler = shutil.which("pdflatex")
    if compiler is None:
        pytest.skip("no pdflatex here to compile it (apt-get install texlive-latex-base)")
    (tmp_path / "model.tex").write_text(result.stdout)
    command = [compiler, "-interaction=nonstopmode", "-halt-on-error", "model.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "model.pdf").is_file()
    assert "Overfull" not in (tmp_path / "model.log").read_text(errors="replace")


@pytest.mark.slow
def test_a_training_step_in_letters() -> None:
    """FLOPs with what is computed again, what is kept, and the optimizer's bytes: each is what `show` says."""
    arguments = ("llama-3.1-8b", "--tokens", "8k", "--optimizer", "adamw", "--recompute")
    ledger = load("llama-3.1-8b").ledger(1, 8192)
    blocks = rows(*arguments, "blocks")
    step = show("llama-3.1-8b", tokens="8k", optimizer="adamw", recompute="blocks").training
    assert step is not None
    training, state, saved = (total(blocks, quantity) for quantity in ("training", "optimizer", "saved"))
    assert training["value"] == step.flops == training_flops(ledger, "blocks")
    assert training["formula"] == "2·B·T·(4·L·(2·T·h·d_h + D·(2·d_h·(h + h_kv) + 3·F)) + 3·V·D)"
    assert state["value"] == step.optimizer_bytes == 8 * load("llama-3.1-8b").params
    assert saved["formula"] == "B·T·D·(L + 2)"  # of each block its input
    assert 2 * saved["value"] + 4 * 8192 == step.saved_bytes  # and the final norm's statistics
    core = rows(*arguments, "core")
    assert total(core, "training")["value"] == training_flops(ledger, "core")
    kept = [total(core, quantity)["value"] for quantity in ("saved", "saved_scores")]
    assert kept == [ledger.total("saved")] * 2  # no kernel keeps the attention matrix
    of_a_rank = rows("llama-3.1-8b", "--optimizer", "muon", "--layout", "tp=8")  # Megatron's: fp32 weights beside
    (gate,) = (r for r in of_a_rank if r["part"] == "layers.0.feed_forward.gate" and r["quantity"] == "optimizer")
    assert gate["formula"] == "8·D·F/tp"


@pytest.mark.slow
@pytest.mark.parametrize("source", ["gpt2", "gemma-2-9b", "t5-small"])
def test_layers_that_are_recomputed_are_counted_apart(source: str) -> None:
    """Each figure is what `show` says; of 8-bit states with their scales, which small tensors have not."""
    options: dict[str, Any] = {"tokens": 64, "recompute": "every:5", "optimizer": "adamw-8bit"}
    table, step = formula(source, **options).rows, show(source, **options).training
    assert step is not None
    sums = {row.quantity: row for row in table if row.part in ("", "total")}
    assert sums["training"].value == step.flops > 3 * load(source).ledger(1, 64).total("flops")
    assert sums["optimizer"].value == step.optimizer_bytes
    assert "L_" in sums["training"].formula and "⌈" in sums["optimizer"].formula


@pytest.mark.drawn(quick=1)
@pytest.mark.parametrize(("source", "layout"), [("gpt2", "fsdp=7"), ("llama-3.1-8b", "fsdp=1000,tp=2")])
def test_a_share_of_every_weight(source: str, layout: str) -> None:
    """The first rank's rows of each, which `show` counts in fp32, and its optimizer's state."""
    options: dict[str, Any] = {"tokens": 64, "optimizer": "adamw-8bit", "layout": layout}
    sums = {row.quantity: row for row in formula(source, **options).rows if row.part in ("", "total")}
    step = show(source, **options).training
    assert step is not None
    assert 4 * sums["params"].value == step.parameters_bytes
    assert sums["optimizer"].value == step.optimizer_bytes
    assert "/fsdp⌉" in sums["params"].formula
