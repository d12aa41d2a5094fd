"""Options: one name for one thing in all commands, old names still read, help in groups, completion."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from txcalc import COMMANDS
from txcalc.cli import Commands, app, completion
from txcalc.questions.options import GROUPS


def run(line: str, columns: int = 80) -> tuple[int, str, str]:
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, shlex.split(line), prog_name="txcalc")
    return result.exit_code, result.stdout, result.stderr


def built(command: str) -> Any:
    return Commands(name="txcalc").get_command(None, command)


def kind(command: str) -> Any:
    """The class of a command, which has the sections and earlier names of its options."""
    return type(built(command))


def options(command: str) -> list[Any]:
    return [param for param in built(command).params if param.param_type_name == "option"]


def first(option: Any) -> str:
    """The placeholder of one value."""
    return str(option.metavar).split("[@")[0].split("|")[0].removesuffix(",…")


def test_an_option_means_the_same_in_every_command() -> None:
    """One section of the help, one placeholder, and a help that begins alike; earlier names are not shown."""
    meanings: dict[str, list[tuple[str, str, str]]] = {}
    for command in COMMANDS:
        groups, renamed = kind(command).groups, kind(command).renamed
        for option in options(command):
            flag, *others = option.opts
            assert not others and flag not in renamed and groups[flag] in GROUPS
            meanings.setdefault(flag, []).append((groups[flag], first(option), option.help.split()[0]))
    meanings["--against"] = meanings["--train"] = []  # logits or a distribution; a flag of show, GPUs of report
    meanings["--attention"] = []  # a choice; of compare the model's own where it is not given
    assert [flag for flag, several in meanings.items() if len(set(several)) > 1] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("show whisper-large-v3 --source 7", "show whisper-large-v3 --source-tokens 7"),
        ("show gpt2 --kv-dtype fp8", "show gpt2 --kv fp8"),
        ("show gpt2 --kv-dtype=fp8", "show gpt2 --kv=fp8"),
        ("compare gpt2 gpt2-xl --contexts 1k --kv-dtype fp8", "compare gpt2 gpt2-xl --context 1k --kv fp8"),
        ("compare gpt2 gpt2-xl --tokens 1k", "compare gpt2 gpt2-xl --context 1k"),
        ("kv gpt2 --contexts 1k --batches 1,2 --kv-dtypes fp8", "kv gpt2 --context 1k --batch 1,2 --kv fp8"),
        ("kv t5-small --tokens 10 --source 3", "kv t5-small --context 10 --source-tokens 3"),
    ],
)
def test_old_names_are_read_and_not_shown(old: str, new: str) -> None:
    outcome = run(f"{old} --json")
    assert outcome[0] == 0 and outcome == run(f"{new} --json")
    shown = run(f"{old.split()[0]} --help", 200)[1]
    names = {word.partition("=")[0] for word in old.split()} & kind(old.split()[0]).renamed.keys()
    assert names and not [name for name in names if f" {name} " in shown]


def test_an_error_has_the_name_that_was_typed() -> None:
    assert run("kv gpt2 --contexts x")[2].startswith("txcalc: --contexts is 'x'")
    assert run("kv gpt2 --context x")[2].startswith("txcalc: --context is 'x'")
    assert run("show t5-small --source x")[2].startswith("txcalc: --source is 'x'")


@pytest.mark.parametrize("columns", [60, 80, 150])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_in_groups_and_as_wide_as_the_terminal(
    command: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))  # what a runner of tests would force is 80
    group: Any = get_command(app)
    with group.make_context("txcalc", [command]) as parent:
        subcommand = group.get_command(parent, command)
        out = subcommand.get_help(subcommand.context_class(subcommand, info_name=command, parent=parent))
    lines = out.splitlines()
    assert max(map(len, lines)) <= columns
    assert columns < 150 or max(map(len, lines)) > 80 or command in ("entropy", "presets")
    headings = [line.removesuffix(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    groups = [f"Advanced, {group.lower()}" for group in GROUPS] if "Options" in headings else list(GROUPS)
    titles = ["Options", *groups]
    assert [name for name in headings if name != "Arguments"] == [title for title in titles if title in headings]


def test_the_list_of_commands_cuts_no_sentence() -> None:
    out = run("--help")[1]
    assert "..." not in out.partition("Commands:")[2] and max(map(len, out.splitlines())) <= 80
    assert out.count(".\n") >= len(COMMANDS)


class Typed:
    """What a completion sees of the words before."""

    def __init__(self, **params: Any) -> None:
        self.params = params


def test_completion() -> None:
    assert completion.source("llama-3.1") == ["llama-3.1-405b", "llama-3.1-70b", "llama-3.1-8b"]
    assert completion.accelerator("h100") == ["h100-nvl", "h100-pcie", "h100-sxm"]
    assert completion.weights("q4_k")[:1] == ["q4_k"] and "native" in completion.weights("")
    assert completion.weights("native,q8") == ["native,q8_0"]
    assert completion.key("h_k") == ["h_kv="] and "norm.place=" in completion.key("norm.")
    assert len(completion.key("")) == 200  # of more
    assert completion.key_alone("h_k") == ["h_kv"]
    assert completion.quantity("flops_m") == ["flops_masked"]
    assert completion.convention("palm,6") == ["palm,6n"]
    assert completion.oracle("f") == ["fvcore", "flops"] and completion.oracle("p") == ["parameters", "peak"]
    assert "llama.cpp" in completion.engine("") and completion.engine("vllm@0.8") == ["vllm@0.8"]
    others = (completion.served, completion.framework, completion.schedule, completion.offload, completion.law)
    assert [names("")[0] for names in others] == ["vllm", "fsdp2", "gpipe", "none", "besiroglu"]
    assert "muon" in completion.optimizer("m") and "q8_0" in completion.cache("q") and "bf16" in completion.dtype("b")
    assert completion.part(Typed(source="gpt2"), "layers.0.att") == ["layers.0.attention_norm", "layers.0.attention"]
    assert completion.part(Typed(source="gpt2"), "emb") == ["embedding"]
    assert completion.part(Typed(source="no such"), "") == completion.part(Typed(), "") == []


def test_quantities_that_are_completed_are_those_of_sweep() -> None:
    sweep = pytest.importorskip("txcalc.sweeps.sweep")
    assert completion.quantity("") == list(sweep.COLUMNS)


def test_the_shell_is_answered() -> None:
    words = {"_TXCALC_COMPLETE": "complete_bash", "COMP_WORDS": "txcalc show gpt2 --weights q4_k_", "COMP_CWORD": "4"}
    result = CliRunner(env=words).invoke(app, [], prog_name="txcalc")
    assert set(result.stdout.split()) == {"q4_k_s", "q4_k_m"}
    assert json.loads(run("presets l4 --hardware --json")[1])["hardware"]
