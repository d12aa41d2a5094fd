"""The recipes of CONTRIBUTING.md, each followed in a copy of the package: what it names is enough."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from extras import needs
from paths import DATA, ROOT
from tiny import config_sizes

RECIPE_FILES = DATA / "recipes"
RECIPES = (ROOT / "CONTRIBUTING.md").read_text("utf-8")

PART = (RECIPE_FILES / "mechanism.txt").read_text("utf-8")
# A leaf that says no more than its cache, under what already stands there.
KEEPER = (RECIPE_FILES / "leaf.txt").read_text("utf-8")
MODULE = (RECIPE_FILES / "module.txt").read_text("utf-8")
DESCRIBED = (RECIPE_FILES / "toy.toml").read_text("utf-8")
FAMILY = """{"toy": {"like": "llama", "require": [[1, "toy_version", "only version 1 is supported"]],
"window": {"key": "local_span", "default": "required", "local": "but last", "period": 2}},
"""
CONFIG = config_sizes(64, 2, 4, 96, 100, model_type="toy", local_span=4)
QUANTITY = """

QUANTITIES["weights_read"] = "elements of weights that a pass reads"
Entry.weights_read = property(lambda self: self.traffic.weights)
"""
CONVENTION = """

def toy(model, ledger, attention, pp):
    describes("toy", model, ledger)
    return trained("toy", "6·N per token", "a test", weights(ledger, 3))


CONVENTIONS["toy"] = toy
"""
FORMAT = '''
from txcalc.render.report import heading_name

def as_headlines(report):
    """The headings of its tables alone."""
    return "\\n".join(" | ".join(map(heading_name, table.headings)) for table in report.tables)
'''

COLUMN = (
    (
        "questions/deployment.py",
        ("    requests_in_system: float | None\n", "    requests_per_gpu: float\n"),
        (
            "        requests_in_system=steady.in_system if timed else None,\n",
            "        requests_per_gpu=load.rate / load.gpus,\n",
        ),
    ),
    (
        "render/serving.py",
        (
            "        Column(LIMITED, lambda point: point.bound),\n",
            '        Column("requests/s per GPU", lambda point: _rate(point.steady.requests_per_gpu)),\n',
        ),
    ),
)
QUESTION = (RECIPE_FILES / "question.txt").read_text("utf-8")
TABLE = (RECIPE_FILES / "table.txt").read_text("utf-8")

# Commands in one process, which imports what they need once.
COMMANDS = """
import json, sys
from typer.testing import CliRunner
from txcalc.cli import app
for line in sys.stdin:
    ran = CliRunner().invoke(app, json.loads(line), prog_name="txcalc")
    print(json.dumps([ran.exit_code, ran.stdout, ran.stderr]), flush=True)
"""
Run = Callable[..., str]


def edited(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text("utf-8")
    after = change(before)
    assert after != before, path
    path.write_text(after, "utf-8")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs `txcalc` in a copy of the package where each recipe was followed."""
    home = tmp_path_factory.mktemp("recipes")
    for name in ("txcalc", "presets"):
        shutil.copytree(ROOT / name, home / name, ignore=shutil.ignore_patterns("__pycache__"))
    package = home / "txcalc"
    # A mechanism.
    (package / "parts/mixers/narrow.py").write_text(PART)
    (package / "reference/mixers/narrow.py").write_text(MODULE)
    (home / "toy.toml").write_text(DESCRIBED)
    # The same with a leaf that keeps something.
    kept = PART.replace("import Child, Composite", "import Cache, Child, Composite, Leaf, Workload") + KEEPER
    kept = kept.replace(
        '        yield Child("up"', '        yield Child("keeper", Keeper(width=self.width))\n        yield Child("up"'
    )
    (package / "parts/mixers/keeping.py").write_text(kept.replace("Narrow", "Keeping").replace("narrow", "keeping"))
    (home / "keeping.toml").write_text(DESCRIBED.replace("narrow", "keeping"))
    # A family: a row.
    edited(package / "sources/huggingface/decoders.json", lambda text: text.replace("{\n", FAMILY, 1))
    (home / "config.json").write_text(json.dumps(CONFIG))
    # An accelerator.
    (home / "presets/hardware/toy.toml").write_text(
        (home / "presets/hardware/l4.toml").read_text().replace('"24GiB"', '"48GiB"').replace("23034MiB", "46068MiB")
    )
    # A quantity.
    edited(package / "ledger.py", lambda text: text + QUANTITY)
    # A convention.
    edited(package / "planning/conventions.py", lambda text: text + CONVENTION)
    # An output format.
    (package / "render/headlines.py").write_text(FORMAT)
    edited(package / "render/__init__.py", lambda text: text.replace("FORMATS = (", 'FORMATS = ("headlines", '))
    # A column: where it is computed, and where it is shown.
    for place, *pairs in COLUMN:
        for old, new in pairs:
            assert (package / place).read_text().count(old) == 1, old
            edited(package / place, lambda text, old=old, new=new: text.replace(old, old + new))  # type: ignore[misc]

    # A format of the cache, which an engine has.
    table = "CACHE_FORMATS = {"
    edited(package / "units.py", lambda text: text.replace(table, table + '"toy6": CacheFormat(6, 16, 32),'))
    kv = 'kv.fp8 = { "" = "0.3" }\n'
    edited(home / "presets/engines.toml", lambda text: text.replace(kv, kv + 'kv.toy6 = { "" = "0.9" }\n', 1))
    # An optimizer.
    table = "OPTIMIZERS = {"
    entry = '"toy3": Optimizer("three moments in fp32", "a test", lambda shape, dtype, hidden: 12 * product(shape)),'
    edited(package / "planning/training/optimizers.py", lambda text: text.replace(table, f"{table}\n    {entry}"))
    # A command with an option.
    (package / "questions/norms.py").write_text(QUESTION)
    (package / "render/norms.py").write_text(TABLE)
    edited(package / "__init__.py", lambda text: text.replace("COMMANDS = (", 'COMMANDS = (\n    "norms",', 1))

    environment = {**os.environ, "PYTHONPATH": str(home), "XDG_DATA_HOME": str(home)}  # where `prove` keeps theorems
    command, pipe = [sys.executable, "-c", COMMANDS], subprocess.PIPE
    with subprocess.Popen(command, cwd=home, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin and process.stdout
        stdin, stdout = process.stdin, process.stdout

        def txcalc(*words: str) -> str:
            print(json.dumps(words), file=stdin, flush=True)
            code, out, err = json.loads(stdout.readline())
            assert code == 0, err
            return str(out)

        yield txcalc
        process.kill()


@pytest.mark.slow
def test_a_mechanism_counts_shards_and_plans(run: Run) -> None:
    shown = json.loads(run("show", "toy.toml", "--json"))
    assert shown["params"]["by_kind"]["attention"] == 2 * 2 * 32 * 8
    assert "16·D" in run("formula", "toy.toml", "layers.0.narrow")
    assert json.loads(run("deploy", "toy.toml", "--gpu", "toy:2", "--tp", "2", "--json"))["fits"]


@pytest.mark.slow
def test_a_leaf_that_keeps_something_is_planned_for_as_what_it_is(run: Run) -> None:
    cache_bytes = 2 * 2 * (8 * 1024 + 5)  # bytes of two layers, in 16 bits
    kept = json.loads(run("kv", "keeping.toml", "--context", "1k", "--batch", "1", "--json"))
    assert kept["rows"][0]["bytes"] == cache_bytes and kept["cache"]["elements_per_token"] == 2 * 8
    assert kept["holds"] == ["each of 2 layers caches Keeper: 8 elements per token and 5 more"]
    shown = json.loads(run("show", "keeping.toml", "--tokens", "1k", "--json"))
    assert shown["cache"]["bytes"] == cache_bytes and shown["cache"]["constant_elements"] == 2 * 5
    plan = json.loads(run("deploy", "keeping.toml", "--gpu", "l4", "--context", "1k", "--concurrency", "3", "--json"))
    assert plan["memory"][0]["cache_bytes"] == 3 * cache_bytes
    assert "16·D" in run("formula", "keeping.toml", "layers.0.keeping")
    assert json.loads(run("train", "keeping.toml", "--gpu", "l4:2", "--layout", "fsdp=2", "--json"))["fits"]


@pytest.mark.slow
def test_a_mechanism_is_proved(run: Run) -> None:
    needs("torch")
    assert json.loads(run("verify", "toy.toml", "--json"))["ok"]
    assert "proved" in run("prove", "toy.toml")


@pytest.mark.slow
def test_a_family_is_read(run: Run) -> None:
    document = json.loads(run("show", "config.json", "--tokens", "8", "--json"))
    assert document["cache"]["elements"] == 2 * 64 * (4 + 8)
    assert (
        document["model"]["model_type"] == "toy"
        and document["params"]["total"] == 2 * 100 * 64 + 2 * (4 * 64**2 + 3 * 64 * 96 + 2 * 64) + 64
    )


@pytest.mark.slow
def test_an_accelerator_is_known(run: Run) -> None:
    assert "toy" in run("presets", "--hardware")
    assert json.loads(run("deploy", "gpt2", "--gpu", "toy:1", "--json"))["fits"]


@pytest.mark.slow
def test_a_quantity_is_counted(run: Run) -> None:
    out = run("sweep", "gpt2", "--over", "tokens=1,2", "--quantity", "weights_read", "--format", "csv")
    assert "weights_read" in out


@pytest.mark.slow
def test_a_convention_is_compared(run: Run) -> None:
    published = json.loads(run("show", "gpt2", "--as", "toy", "--tokens", "1", "--json"))["as"]
    assert published["theirs"] == 6 * 124_439_808


@pytest.mark.slow
def test_an_output_format_is_written(run: Run) -> None:
    assert " | " in run("show", "gpt2", "--format", "headlines")


def test_a_format_of_the_cache_is_counted_and_planned(run: Run) -> None:
    arguments = ("llama-3.1-8b", "--context", "1k", "--kv", "toy6", "--json")
    assert json.loads(run("kv", *arguments, "--batch", "1"))["rows"][0]["bytes"] == 32 * 2 * 8 * 128 * 1024 * 13 // 16
    assert json.loads(run("deploy", *arguments, "--gpu", "h100", "--engine", "vllm"))["fits"]


def test_a_command_with_an_option_answers_and_is_shown(run: Run) -> None:
    assert [row["copies"] for row in json.loads(run("norms", "gpt2", "--least", "2", "--json"))["rows"]] == [12, 12]
    assert "final_norm" in run("norms", "gpt2") and "--least N" in run("norms", "-h")


def test_an_optimizer_is_planned_for(run: Run) -> None:
    plan = "train", "gpt2", "--gpu", "h100:1", "--layout", "dp=1", "--json", "--optimizer"
    (rank,) = json.loads(run(*plan, "toy3"))["ranks"]
    assert rank["bytes"]["optimizer"] == 12 * 124_439_808


def test_a_column_is_in_the_table_and_in_json(run: Run) -> None:
    plan = "deploy", "gpt2", "--gpu", "h100:2"
    loads = json.loads(run(*plan, "--json"))["speed"]["batches"]
    assert all(row["steady"]["requests_per_gpu"] == row["steady"]["requests_per_s"] / 2 for row in loads)
    assert "requests/s per GPU" in run(*plan).partition("Loads")[2]


def test_every_recipe_is_followed() -> None:
    headings = set(re.findall(r"^## (An? [^\n]+)", RECIPES, re.M))
    with_tests = {"A Hugging Face family", "A mechanism", "An accelerator", "A quantity", "A column", "An option"}
    assert headings == with_tests | {
        "A convention of FLOPs",
        "A command",
        "A format of the cache",
        "An optimizer",
        "An output format",
    }
