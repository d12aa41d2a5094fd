"""What functions return: the document of their command, whose every key a class says, with its type.

A key that no class says, a value of another type and a key that no example has are all faults.
"""

from __future__ import annotations

import json
import pickle
import shlex
from typing import Any

import pytest
from command import typed
from msgspec import convert
from paths import DATA
from typer.testing import CliRunner

import txcalc
from txcalc import InputError
from txcalc.cli import app, entry
from txcalc.errors import quote
from txcalc.questions.deploy import DeployComparison
from txcalc.sources.objects import plain


def little() -> Any:
    """What `trace` is given."""
    import torch

    return torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 4))


# A function, its arguments ("load:NAME" is a loaded model) and the command that is the same question.
SAME: list[tuple[str, list[Any], dict[str, Any], str]] = json.loads((DATA / "questions.json").read_text("utf-8"))


def call(function: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    loaded = [
        txcalc.load(text.removeprefix("load:")) if isinstance(text, str) and text.startswith("load:") else text
        for text in arguments
    ]
    return getattr(txcalc, function)(*loaded, **keywords)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "arguments", "keywords", "command"), SAME, ids=[row[-1] for row in SAME])
def test_a_result_is_its_commands_document_and_typed(
    function: str, arguments: list[Any], keywords: dict[str, Any], command: str
) -> None:
    result = call(function, arguments, keywords)
    printed = CliRunner().invoke(app, [*shlex.split(command), "--json"])
    assert result.to_dict() == json.loads(printed.stdout)
    assert result.failed == bool(printed.exit_code)
    if isinstance(result, DeployComparison):  # its rows are of two classes that JSON does not tell apart by a key
        for row, deployment in zip(result.to_dict()["deployments"], result.deployments, strict=True):
            assert convert(row, type(deployment)).to_dict() == deployment.to_dict()
    else:  # what it holds is of the types that its class declares
        assert convert(result.to_dict(), type(result)) == result
    repeated = result if function == "verify" else call(function, arguments, keywords)  # which takes seconds
    assert result == repeated and hash(result) == hash(repeated)
    assert "<table" in result._repr_html_() and str(result) and repr(result).startswith("<txcalc.")


def test_records_have_only_what_they_say_and_never_change() -> None:
    result = txcalc.kv("gpt2", "1k", 1)
    assert result.rows[0].bytes == result.to_dict()["rows"][0]["bytes"]
    assert result.rows[0].cross_bytes is None, "no encoder"
    with pytest.raises(AttributeError, match="has no attribute 'byte'"):
        result.rows[0].byte  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="immutable"):
        result.rows = ()  # type: ignore[misc]
    assert txcalc.formula("gpt2").derivations == ()
    assert result.rows[0] == txcalc.kv("gpt2", "1k", 1).rows[0] != txcalc.kv("gpt2", "1k", 2).rows[0]
    assert pickle.loads(pickle.dumps(result.rows[0])) == result.rows[0]


@pytest.mark.slow
def test_rows_are_a_data_frame() -> None:
    pytest.importorskip("pandas", reason="needs pandas (pip install 'txcalc[frames]')")
    polars = pytest.importorskip("polars", reason="needs polars (pip install 'txcalc[frames]')")
    comparison = txcalc.compare("llama-3.1-8b", "gpt2", context="1k")
    frame = comparison.to_pandas().set_index(["quantity", "model"])
    assert frame.loc[("params", "gpt2"), "value"] == 124_439_808
    assert polars.DataFrame(comparison).height == len(comparison.rows) * 2
    assert polars.DataFrame(txcalc.kv("gpt2", "1k", [1, 2]))["bytes"].to_list() == [37748736, 75497472]
    interchange = pytest.importorskip("pyarrow.interchange")
    interchanged = interchange.from_dataframe(txcalc.compare("llama-3.1-405b", "gpt2", context="1k"))
    assert interchanged.column("quantity").to_pylist()[:2] == ["params", "params"] and interchanged.num_rows == 20
    for wide in (txcalc.kv("gpt2", "1M", 3 * 10**8), txcalc.kv("D=64 L=2 h=4 F=128", 2**34, 2**20)):  # from 2^63 on
        types = wide.to_arrow().schema
        assert [str(types.field(name).type) for name in ("batch", "bytes")] == ["int64", "decimal128(38, 0)"]
    with pytest.raises(InputError, match="no rows"):
        txcalc.formula().to_pandas()


def test_an_interrupt_ends_the_command_with_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("txcalc.cli.app", interrupted)
    with pytest.raises(SystemExit, match="130"):
        entry()


def test_the_largest_that_is_read_and_shown() -> None:
    nested: Any = 1
    for _ in range(60):
        nested = [nested]
    assert plain(nested, "a list") == nested
    with pytest.raises(InputError, match="is nested too deep"):
        plain([nested], "a list")
    assert quote([0] * 60) == "[" + "0, " * 19 + "0…" and quote([0] * 61) == "a list of 61 items"
    for argv in (
        "show gpt2 --digits 1",
        "show gpt2 --digits 15",
        "deploy gpt2 --gpu l4:1 --engine vllm --max-num-seqs 1",
    ):
        assert typed(*argv.split()).exit_code == 0
    with pytest.raises(InputError, match="more than any size"):
        list(txcalc.sweep("gpt2", over={"h": [2**21]}, changes={"F": "h*h*h/2"}).rows)


@pytest.mark.slow
def test_a_result_is_drawn_or_says_that_it_has_no_picture(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib (pip install 'txcalc[plot]')")
    result = txcalc.kv("gpt2")
    assert result.plot(tmp_path / "kv.svg")._repr_svg_().lstrip().startswith("<?xml")
    assert (tmp_path / "kv.svg").stat().st_size > 1000
    with pytest.raises(InputError, match=r"\.svg or \.png or \.pdf"):
        result.plot("kv.gif")
    with pytest.raises(InputError, match="has no picture"):
        txcalc.diff("gpt2", "gpt2-xl").plot()
    with pytest.raises(InputError, match="format is 'yaml'"):
        result.to_text("yaml")
