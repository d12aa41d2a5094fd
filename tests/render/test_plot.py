"""`--plot`: the numbers of a picture are the report's, its bytes are the same every time, and what cannot be drawn is
refused in one line before anything is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from command import Command
from hypothesis import given, strategies as st

import txcalc
from txcalc import hardware, load
from txcalc.questions.crossover import MAIN_RULES
from txcalc.questions.deploy import Deploy
from txcalc.questions.pictures import Mark, Panel, Picture, PlotAxis, Series
from txcalc.questions.sweep import SweepAxis, plot_axis
from txcalc.render import draw, terminal

ANSI = "\x1b["
COMMANDS = {
    "kv": ["kv", "gemma-3-27b", "--contexts", "1k,8k,128k", "--batches", "1,3", "--kv-dtypes", "bf16,fp8"],
    "crossover": ["crossover", "gemma-3-27b", "deepseek-v3", "--no-formulas"],
    "compare": ["compare", "mixtral-8x7b", "gpt2", "t5-small", "vit-b", "--contexts", "512,8k"],
    "sweep": ["sweep", "gpt2", "--over", "h=4,6,12", "--over", "T=1k:64k:2x", "--quantity", "cache_bytes"],
    "deploy": ["deploy", "llama-3.1-70b", "--gpu", "h100-sxm:8", "--context", "8k", "--concurrency", "64"],
}


run = Command()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Picture]:
    """Pictures that commands draw, in place of their files."""
    pictures: list[Picture] = []

    def keep(picture: Picture, suffix: str, style: draw.Style) -> bytes:
        pictures.append(picture)
        return b""

    monkeypatch.setattr(draw, "as_file", keep)
    monkeypatch.setattr(draw, "check", lambda place: None)
    return pictures


def test_a_swept_size_is_in_tokens_or_a_size() -> None:
    axes = {name: plot_axis(SweepAxis(name=name, values=(1, 8))) for name in ("T", "W", "past", "D", "h_kv")}
    assert [axis.unit for axis in axes.values()] == ["tokens"] * 3 + ["sizes"] * 2


def plotted(command: str, drawn: list[Picture], folder: Path, *options: str) -> tuple[Picture, dict[str, Any]]:
    """The picture of a command, and the data of its report."""
    if command == "sweep":
        pytest.importorskip("numpy")
    code, out, err = run(*COMMANDS[command], *options, "--json", "--plot", str(folder / "a.svg"))
    assert (code, err) == (0, f"note: the picture is in {folder / 'a.svg'}\n")
    (picture,) = drawn
    return picture, json.loads(out)


# Numbers.


def test_the_cache_drawn_is_the_cache_shown(drawn: list[Picture], tmp_path: Path) -> None:
    picture, data = plotted("kv", drawn, tmp_path)
    (panel,) = picture.panels
    lines = {line.label: dict(zip(line.xs, line.ys, strict=True)) for line in panel.series}
    assert len(data["rows"]) == 12 and len(lines) == 8
    for row in data["rows"]:
        label = f"{row['dtype']}, {'1 sequence' if row['batch'] == 1 else '3 sequences'}"
        assert lines[label][row["context"]] == row["bytes"]
        assert lines[f"{label}: full attention"][row["context"]] == row["dense_bytes"]
    assert {1024, 8192, 131072} == panel.series[0].marked


def test_crossings_drawn_are_those_found(drawn: list[Picture], tmp_path: Path) -> None:
    picture, data = plotted("crossover", drawn, tmp_path)
    assert [panel.title for panel in picture.panels] == ["gemma-3-27b", "deepseek-v3"]
    for panel in picture.panels:
        rules = [rule.name for rule in MAIN_RULES]
        rows = [row for row in data["rows"] if row["model"] == panel.title and row["rule"] in rules]
        assert [mark.x for mark in panel.marks] == [row["tokens"] for row in rows]
        lines = {line.label: dict(zip(line.xs, line.ys, strict=True)) for line in panel.series}
        rights = ("feed-forward", "feed-forward", "every linear layer but the head", "every linear layer but the head")
        for row, mark, right in zip(rows, panel.marks, rights, strict=True):
            left = lines[f"scores + values, {row['attention']}"]
            before = max(x for x in left if x < mark.x)
            assert mark.y == left[mark.x] >= lines[right][mark.x]
            assert left[before] < lines[right][before]
        ledger = load(panel.title).ledger(tokens=4096)
        for attention, quantity in (("dense", "flops"), ("masked", "flops_masked")):
            core = ledger.by_kind(quantity)["attention_core"]
            assert lines[f"scores + values, {attention}"][4096] == Fraction(core, 4096)


@pytest.mark.parametrize(
    ("name", "options", "attention", "quantity"),
    [("gemma-3-27b", {}, "masked", "flops_masked"), ("gemma-3-27b", {"attention": "dense"}, "dense", "flops"),
     ("gpt2", {}, "dense", "flops")],
)  # fmt: skip
def test_a_model_with_windows_is_drawn_by_what_its_mask_lets_through(
    name: str, options: Any, attention: str, quantity: str
) -> None:
    bars = txcalc.show(name, tokens=1024, **options).picture().panels[1]
    assert bars.y.label == f"FLOPs of a forward pass, {attention} attention"
    assert list(bars.series[0].ys) == [*load(name).ledger(tokens=1024).by_kind(quantity).values()]


def test_models_compared_are_drawn_as_they_are_shown(drawn: list[Picture], tmp_path: Path) -> None:
    picture, data = plotted("compare", drawn, tmp_path)
    rows = {(row["quantity"], row["tokens"]): row["values"] for row in data["rows"]}
    names = [model["name"] for model in data["models"]]
    bars, flops, core, cache = picture.panels
    share = {row["tokens"]: row for row in data["rows"] if row["quantity"] == "attention_core_flops"}[512]
    assert core.series[0].ys[core.series[0].xs.index(512)] * share["of"][0] == 100 * share["values"][0]
    assert [list(line.ys) for line in bars.series] == [rows["params", None], rows["active", None]]
    for panel, quantity in ((flops, "flops_per_token"), (cache, "cache_bytes")):
        for tokens in (512, 8192):
            heights = {names[s.of]: y for s in panel.series for x, y in zip(s.xs, s.ys, strict=True) if x == tokens}
            assert heights == {name: v for name, v in zip(names, rows[quantity, tokens], strict=True) if v is not None}
    beyond = [line for line in flops.series if line.dashed]
    assert [(names[line.of], line.label, min(line.xs)) for line in beyond] == [("t5-small", "", 512)]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_sweep_is_drawn_point_by_point(form: str, drawn: list[Picture], tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    code, out, _ = run(*COMMANDS["sweep"], "--format", form, "--plot", str(tmp_path / "a.png"))
    assert code == 0
    (panel,) = drawn[0].panels
    heights = {(line.label, x): y for line in panel.series for x, y in zip(line.xs, line.ys, strict=True)}
    if form == "json":
        rows = [(row["h"], row["T"], row["cache_bytes"]) for row in json.loads(out)["rows"]]
    else:
        cells = [line.split(",") for line in out.splitlines()[1:]]
        rows = [(int(h), int(tokens), int(value)) for h, tokens, value in cells]
    assert heights == {(f"h = {h}", tokens): value for h, tokens, value in rows}
    assert (panel.x.log, panel.y.log, panel.y.unit) == (2, 2, "bytes")


@pytest.mark.slow
def test_memory_drawn_is_the_fullest_gpus(drawn: list[Picture], tmp_path: Path) -> None:
    picture, data = plotted("deploy", drawn, tmp_path)
    panel = picture.panels[0]
    at = {line.label: dict(zip(line.xs, line.ys, strict=True)) for line in panel.series}
    (gpu,) = data["memory"]
    assert at["weights"][8192] == gpu["weights_bytes"]
    assert at["cache"][8192] == gpu["cache_bytes"]
    assert at["activations"][8192] == gpu["activations_bytes"]
    kept = data["gpu"]["memory_bytes"] - data["gpu"]["reserve_bytes"]  # of the usable memory, without the reserve
    assert at["reserve and engine"][8192] == data["gpu"]["visible_bytes"] - kept + gpu["rest_bytes"]
    memory, context, longest = panel.marks
    assert memory.y == data["gpu"]["visible_bytes"]
    assert (context.x, longest.x) == (8192, data["max_context"])
    assert sum(line[longest.x] for line in at.values()) <= memory.y
    above = min(x for x in at["cache"] if x > longest.x)
    assert sum(line[above] for line in at.values()) > memory.y


@pytest.mark.slow
def test_latency_drawn_is_that_of_every_batch(drawn: list[Picture], tmp_path: Path) -> None:
    picture, data = plotted("deploy", drawn, tmp_path, "--tpot", "40ms")
    panel = picture.panels[1]
    achievable, floor = panel.series
    points = data["speed"]["batches"]
    assert len(points) > 5
    assert list(achievable.xs) == list(floor.xs) == [point["sequences"] for point in points]
    assert achievable.ys == [point["tpot_s"] for point in points]
    assert floor.ys == [point["tpot_floor_s"] for point in points]
    at = {mark.label.partition(":")[0]: (mark.x, mark.y) for mark in panel.marks}
    assert at["this plan"] == (64, None)
    assert at["limit"] == (None, 0.04)
    assert data["speed"]["ridge"]["weights"] > max(achievable.xs)
    assert len(at) == 2
    first, second, front = picture.panels[2:5]
    for line, key in zip((*first.series, *second.series), ("ttft_s", "tpot_s"), strict=True):
        assert list(line.xs)[:2] == [8, 16]
        assert line.ys[0] == data["speed"]["steady"][key]["mean"] and line.ys[0] > line.ys[1]
    points = [point["steady"] for point in data["speed"]["front"]]
    assert front.series[0].xs == [1 / point["tpot_s"]["mean"] for point in points]
    assert front.series[0].ys == [point["per_gpu"] for point in points]


@pytest.mark.drawn(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("llama-3.1-70b", ["--gpu", "h100-sxm:8", "--concurrency", "64", "--weights", "fp8"]),
        ("mixtral-8x7b", ["--gpu", "a100-80gb-sxm:4", "--pp", "2", "--concurrency", "3"]),
        ("deepseek-v3", ["--gpu", "h200:8", "--weights", "fp8", "--concurrency", "16"]),
        ("mamba-2.8b", ["--gpu", "l4"]),
        ("t5-small", ["--gpu", "l4"]),
        ("bert-base", ["--gpu", "l4"]),
    ],
)
def test_every_operation_is_below_the_roof(
    model: str, options: list[str], drawn: list[Picture], tmp_path: Path
) -> None:
    code, _, err = run("deploy", model, *options, "--context", "4k", "--json", "--plot", str(tmp_path / "a.svg"))
    assert code == 0, err
    panel = drawn[0].panels[-1]
    kind = hardware.load(options[1].partition(":")[0])
    roofs = [line for line in panel.series if line.label.startswith("roof: ")]
    placed = [line for line in panel.series if line not in roofs]
    assert len(placed) >= 2
    for roof in roofs:
        peak = kind.peak(roof.label.rpartition(" ")[2])
        assert (roof.xs[1], roof.ys[1:]) == (Fraction(peak, kind.bandwidth), [peak, peak])
        assert roof.ys[0] == kind.bandwidth * Fraction(roof.xs[0])
    for line in placed:
        (x,), (y,) = line.xs, line.ys
        assert 0 < y <= min(kind.bandwidth * x, max(roof.ys[-1] for roof in roofs)) * (1 + Fraction(1, 10**9))
    if model == "llama-3.1-70b":  # a step of decode: every weight is read once, two FLOPs per sequence for each
        intensities = {line.label: line.xs[0] for line in placed}
        assert float(intensities["feed-forward, decode, batch 64"]) == pytest.approx(2 * 64)  # a byte a weight
        assert float(intensities["head, decode, batch 64"]) == pytest.approx(64)  # two
        # 64 query heads of a K and V head of 8, four FLOPs for two numbers of two bytes
        assert float(intensities["attention core, decode, batch 64"]) == pytest.approx(8)


# Files.

EVERY = Picture(
    "A picture",
    "its conventions",
    [
        Panel(
            "lines",
            PlotAxis("tokens", "tokens", 2),
            PlotAxis("count", log=10),
            [Series("one", [1, 2, 4], [10, None, 10**30]), Series("two", [1, 4], [Fraction(1, 3), 7], 1, True)],
            [Mark("here", 2, 100), Mark("a length", 3), Mark("a level", y=50)],
        ),
        Panel(
            "stack",
            PlotAxis("tokens", "tokens", 2),
            PlotAxis("bytes", "bytes"),
            [Series("weights", [1, 2, 4], [5, 5, 5]), Series("cache", [1, 2, 4], [1, 2, 4], 1)],
            [Mark("memory", y=8)],
            "stack",
        ),
        Panel("bars", PlotAxis(""), PlotAxis("count"), [Series("all", ["a", "b"], [3, None])], kind="bars"),
    ],
)


@pytest.mark.slow
def test_what_matplotlib_is_given_is_what_is_drawn() -> None:
    pytest.importorskip("matplotlib")
    lines, stack, bars = draw.figure(EVERY).axes
    first, second, *_ = lines.lines
    assert list(first.get_xdata()) == [1, 2, 4]
    assert first.get_ydata()[0] == 10 and first.get_ydata()[1] != first.get_ydata()[1] and first.get_ydata()[2] == 1e30
    assert list(second.get_ydata()) == [1 / 3, 7]
    assert {x for x, _ in stack.collections[1].get_paths()[0].vertices} == {1, 2, 4}
    tops = [max(y for _, y in area.get_paths()[0].vertices) for area in stack.collections]
    assert tops == [5, 9]
    assert [bar.get_width() for bar in bars.patches] == [3, 0] and bars.get_xlim() == pytest.approx(
        (0, 3 * 1.05 * 1.08)
    )
    assert lines.get_xlabel() == "tokens" and lines.get_xscale() == lines.get_yscale() == "log"
    assert [text.get_text() for text in lines.get_legend().get_texts()] == [
        "one", "two", "1  here", "a length", "a level"
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF"), (".pgf", b"% \\usepackage{pgf}")]
)
def test_a_file_has_the_same_bytes_every_time(suffix: str, start: bytes) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    first = draw.as_file(EVERY, suffix)
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False, "svg.fonttype": "none"}):  # a user's own settings
        assert draw.as_file(EVERY, suffix) == first
    assert first.startswith(start)
    if suffix == ".svg":
        assert ET.fromstring(first).tag.endswith("svg") and b"A picture" in first and b"<dc:date>" not in first


@pytest.mark.slow
@pytest.mark.parametrize("name", ["$\\frac{$", "_hidden", "a\x1b[31m\x00b", "模型 🤖", "<&>", "x" * 500, "--"])
def test_a_name_is_drawn_as_it_is_written(name: str) -> None:
    pytest.importorskip("matplotlib")
    panel = EVERY.panels[0]
    titled = Picture(name, name, [panel._replace(title=name, series=[s._replace(label=name) for s in panel.series])])
    ET.fromstring(draw.as_file(titled, ".svg"))
    legend = draw.figure(titled).axes[0].get_legend()
    assert len({text.get_text().strip() for text in legend.get_texts()} & {name, draw.shorten(name)}) == 1
    assert ANSI not in terminal.as_text(titled, 80, False)


# Terminals.


def test_lines_are_told_apart_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("plotille")
    monkeypatch.setenv("FORCE_COLOR", "1")
    powers = [2**i for i in range(16)]
    names = ["one", "two", "three", "four"]
    equal_series = [Series(name, powers, powers, i) for i, name in enumerate(names)]
    text = terminal.as_text(
        Picture("", "", [Panel("", PlotAxis("x", "tokens", 2), PlotAxis("y", log=10), equal_series)]), 60, False
    )
    canvas, legend = text.split("└")
    assert ANSI not in text
    assert [canvas.count(letter) for letter in "abcd"] == [3, 3, 3, 3]
    assert "a  one\nb  two\nc  three\nd  four\n" in legend


def test_a_stack_in_a_terminal_is_to_scale() -> None:
    pytest.importorskip("plotille")
    (panel,) = [panel for panel in EVERY.panels if panel.kind == "stack"]
    series = [line._replace(ys=[n] * 3) for line, n in zip(panel.series, (2, 6), strict=True)]
    flat = panel._replace(series=series, marks=[])
    text = terminal.as_text(Picture("", "", [flat]), 60, False)
    column = [f"{line:60}"[20] for line in text.splitlines() if "┤" in line or "│" in line]
    assert len(column) == terminal.HEIGHT == 16
    assert (column.count("█"), column.count("▓")) == (4, 11)  # of 8 and a twentieth, without colour


# Refusals.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--plot", "a.gif"],
            "--plot is 'a.gif', expected a file named .svg or .png or .pdf or .pgf, or - to draw here",
        ),
        (["--plot", ""], "--plot is '', expected a file named .svg or .png or .pdf or .pgf, or - to draw here"),
        (["--plot", "no/such/a.svg"], "no/such/a.svg: cannot be written: there is no folder no/such"),
        (["--plot", "{folder}"], "{folder}: is a folder, expected a file to write"),
        (["--plot", "-", "--json"], "--plot - needs --format table, not json"),
        (["--plot", "-", "--format", "csv"], "--plot - needs --format table, not csv"),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_place_is_refused_in_one_line(command: str, options: list[str], message: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "a.svg"
    folder.mkdir()
    argv = [option.format(folder=folder) for option in options]
    assert run(*COMMANDS[command], *argv) == (2, "", f"txcalc: {message.format(folder=folder)}\n")


def test_a_picture_that_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    place = tmp_path / "a.svg"
    place.write_text("mine")
    refused = f"txcalc: {place}: exists already (--force overwrites it)\n"
    assert run("kv", "gpt2", "--plot", str(place)) == (2, "", refused) and place.read_text() == "mine"
    assert run("kv", "gpt2", "--plot", str(place), "--force")[0] == 0 and "<svg" in place.read_text()
    assert run("kv", "gpt2", "--force")[2] == "txcalc: --force needs a file to write\n"


@pytest.mark.parametrize(("place", "package"), [("a.svg", "matplotlib"), ("-", "plotille")])
def test_without_the_extra_the_line_that_installs_it(
    place: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    needs = f"txcalc: --plot needs {package}, which is not installed (pip install 'txcalc[plot]')\n"
    for command in COMMANDS:
        assert run(*COMMANDS[command], "--plot", place) == (3, "", needs)


@pytest.mark.slow
def test_a_backend_that_is_none_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, "-m", "txcalc", "kv", "gpt2", "--plot", "a.svg"]
    environment = {**os.environ, "MPLBACKEND": "no such"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("txcalc: --plot: matplotlib does not start: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "packages"),
    [([], set()), (["--plot", "-"], {"plotille"}), (["--plot", "a.svg"], {"matplotlib", "numpy"})],
)
def test_libraries_are_loaded_only_when_asked_for(options: list[str], packages: set[str], tmp_path: Path) -> None:
    for package in packages:
        pytest.importorskip(package)
    script = f"""
import sys, txcalc.cli
sys.argv = ["txcalc", "kv", "gpt2", *{options!r}]
try:
    txcalc.cli.entry()
except SystemExit as done:
    assert not done.code
print("loaded:", *({{"matplotlib", "matplotlib.pyplot", "numpy", "plotille"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()[-1].split()[1:]) == packages


# Axes.


@given(
    st.sampled_from(["", "bytes", "tokens", "seconds", "sizes"]),
    st.sampled_from([0, 2, 10]),
    st.lists(st.integers(1, 10**15), min_size=1),
    st.integers(3, 12),
)
def test_ticks_are_few_and_within(unit: str, log: int, values: list[int], most: int) -> None:
    axis = PlotAxis("", unit, log)
    low, high = draw.limits(axis, values)
    assert low < high
    assert low <= min(values) and max(values) <= high
    ticks = draw.ticks(axis, low, high, most)
    assert ticks == sorted(set(ticks))
    assert all(low * (1 - 1e-6) <= tick <= high * (1 + 1e-6) for tick in ticks)
    assert len(ticks) <= max(most + 1, 7)
    if log == 10 and high > 2 * low:
        assert len(ticks) > 1, "what a decade or less has no scale"
    assert all(axis.write(tick) for tick in ticks)


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("tokens", 32 << 10, "32k"),
        ("tokens", 1 << 20, "1M"),
        ("tokens", 1000, "1,000"),
        ("bytes", 16 << 30, "16 GiB"),
        ("", 8_030_261_248, "8.03 B"),
        ("sizes", 4096, "4,096"),
        ("seconds", Fraction(1, 400), "2.50 ms"),
        ("seconds", Fraction(3), "3 s"),
    ],
)
def test_ticks_are_written_as_people_read_them(unit: str, value: Any, text: str) -> None:
    assert PlotAxis("", unit).write(value) == text


def test_show_draws_its_parts_and_their_share_over_the_length() -> None:
    ledger = load("deepseek-v3").ledger(tokens=2048)
    params, flops, over = txcalc.show("deepseek-v3", tokens=2048).picture().panels
    assert sum(params.series[0].ys) == ledger.total("params") and sum(flops.series[0].ys) == ledger.total("flops")
    at = over.series[0].xs.index(2048)
    assert over.kind == "stack" and sum(line.ys[at] for line in over.series) * 2048 == ledger.total("flops")
    masked = txcalc.show("deepseek-v3", tokens=2048, attention="masked").picture().panels[1].series[0]
    assert sum(masked.ys) == ledger.total("flops_masked") < ledger.total("flops")


def test_a_sweep_by_kind_is_a_stack_for_every_model() -> None:
    pytest.importorskip("numpy")
    answer = txcalc.sweep("gpt2", "mixtral-8x7b", over={"D": "768:3072:2x"}, quantities="params", by_kind=True)
    gpt2, moe = answer.picture().panels
    assert (gpt2.kind, moe.kind) == ("stack", "stack")
    assert [line.label for line in gpt2.series] == ["embedding", "attention", "feed-forward", "norm"]
    assert {line.label: line.of for line in gpt2.series}["norm"] == {line.label: line.of for line in moe.series}["norm"]
    for panel, name in ((gpt2, "gpt2"), (moe, "mixtral-8x7b")):
        for i, width in enumerate(panel.series[0].xs):
            assert sum(line.ys[i] for line in panel.series) == load(name, {"D": width}).params


def test_one_panel_has_no_text_above_it(tmp_path: Path) -> None:
    plan = ("deploy", "llama-3.1-8b", "--gpu", "h100:2")
    code, _, err = run(*plan, "--plot", str(tmp_path / "front.svg"), "--panel", "pareto")
    text = (tmp_path / "front.svg").read_text()
    assert code == 0, err
    assert "tokens/s per user" in text and "llama-3.1-8b" not in text and "Pareto" not in text
    code, _, err = run(*plan, "--plot", str(tmp_path / "none.svg"), "--panel", "nowhere")
    assert code == 2 and "no panel named 'nowhere'" in err and "Roofline" in err
    for option in ("--panel", "--size", "--font"):
        assert run(*plan, option, "8")[2] == f"txcalc: {option}: needs --plot FILE\n"


@pytest.mark.slow
def test_a_plot_has_the_size_and_the_font_of_a_paper(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    answer = txcalc.kv("gpt2")
    wide, column = (ET.fromstring(answer.plot(size=size)._repr_svg_()).get("width") for size in (None, "column"))
    assert (wide, column) == ("576pt", f"{draw.COLUMN * 72:g}pt")
    panels = txcalc.deploy("gpt2", "h100:1").picture()
    sides = [draw.figure(panels, draw.style(size)).get_figwidth() for size in (None, 8.5)]
    assert len(panels.panels) > 3 and sides == [16, 8.5]  # two columns, unless a size is given
    answer.plot(tmp_path / "a.pgf", size="3.3x2.5", font=7)
    text = (tmp_path / "a.pgf").read_text()
    assert r"{\pgfqpoint{3.300000in}{2.500000in}}" in text and r"\fontsize{7.000000}" in text
    assert text.count(r"\begin{pgfscope}") == text.count(r"\end{pgfscope}") > 20
    assert text.count("{") - text.count("}") == 0


@pytest.mark.slow
def test_axes_of_ones_own_are_drawn_into_and_returned() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    assert txcalc.compare("gpt2", "gpt2-xl").plot(ax=axes, panel="cache") is axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["gpt2", "gpt2-xl"]
    assert axes.get_title() == "" and axes.get_xscale() == "log"


def test_accelerators_are_drawn_on_common_axes() -> None:
    answer = txcalc.deploy("llama-3.1-8b", ["h100:1@2.5", "l40s:1@1"], concurrency=8, context="4k")
    panels = {panel.title: panel for panel in answer.picture().panels}
    front = panels["Pareto front: tokens/s per user and per GPU"]
    assert len(front.series) == 2
    for deployment, line in zip(answer.deployments, front.series, strict=True):
        assert isinstance(deployment, Deploy) and deployment.speed
        assert list(line.ys) == [point.steady.tokens_per_s_gpu for point in deployment.speed.front]
        at = panels["Cost per hour"].series[0]
        assert dict(zip(at.xs, at.ys, strict=True))[line.label] == deployment.speed.cost_per_hour
    many = EVERY.panels[0]._replace(series=[EVERY.panels[0].series[0]._replace(of=i) for i in range(21)])
    assert [draw.colour(many.series[i], many)[0] for i in (0, 20)] == pytest.approx([0.267, 0.741], abs=1e-3)  # type: ignore[index]
    with pytest.raises(txcalc.InputError, match="0 deployments fit"):
        txcalc.deploy("llama-3.1-405b", ["l4:1", "t4:1"]).picture()
