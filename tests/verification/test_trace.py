"""Anybody's module: formulas from the symbolic trace, fvcore beside them, and one line for what cannot be traced."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command import Command, typed
from paths import DATA

from txcalc.errors import InputError, Refuted, UnknownName

pytest.importorskip("torch")
pytest.importorskip("fvcore")

from txcalc.verification.symbolic import B, T
from txcalc.verification.trace import depends_on_data, trace

pytestmark = pytest.mark.slow

SOURCE = (DATA / "trace_modules.txt").read_text("utf-8")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return str(path)


def test_formulas_by_module(file: str) -> None:
    result = trace(f"{file}:Tied")
    parts = {part.path: part for part in result.parts}
    assert result.domain == "all B, T ≥ 2"
    assert sum(part.params for part in result.parts) == 80 + 3 * (8 * 24 + 24 + 8 * 8 + 8 + 16)
    assert parts["layers.2.qkv"].flops.equals(2 * 8 * 24 * B * T)
    assert parts["layers.0"].flops.equals(4 * 8 * B * T**2)  # the fused attention that no child owns
    assert (parts["head"].params, parts["head"].flops.equals(160 * B * T)) == (0, True)
    assert parts["table"].params == 80
    assert parts["layers.0.o"].fvcore == 2 * 8 * 8 * 3 * 5
    assert parts["layers.0"].fvcore == 0
    assert result.skipped == {"fvcore": {"aten::scaled_dot_product_attention": 3}}
    assert "aten::native_layer_norm" in result.free


def test_a_module_that_is_there_already_and_one_by_its_name(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(file).parent)
    assert trace(f"{file}:ready").parts == trace("mine:Tied").parts == trace("mine.py:Tied").parts


def test_einsum_is_counted_by_one_and_named_for_the_other(file: str) -> None:
    result = trace(f"{file}:Einsum")
    (part,) = [part for part in result.parts if part.path == ""]
    assert part.flops.equals(2 * 8 * 6 * B * T) and part.params == 48
    assert result.skipped == {"fvcore": {"aten::einsum": 1}}


@pytest.mark.drawn(1000)
@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("Recurrent", Refuted, "only where T = 5"),
        ("Odd", Refuted, "Mod(T, 2)"),
        ("Routed", Refuted, "depends on data"),
        ("Branch", Refuted, "depends on data, no formula holds (at "),
        ("Wide", InputError, "does not run on token ids"),
        ("Asserts", InputError, "(batch, length): AssertionError"),
        ("Exits", InputError, "(batch, length): 7"),
        ("Pictures", InputError, "does not run on token ids"),
        ("Two", InputError, "does not run on token ids"),
        ("fails", InputError, "fails: RuntimeError: no config at hand"),
        ("leaves", InputError, "fails: SystemExit: 3"),
        ("number", InputError, "returns int, expected an nn.Module"),
        ("constant", InputError, "is int, expected a function or class"),
        ("tied", UnknownName, "did you mean Tied?"),
    ],
)
def test_what_cannot_be_traced_is_one_line(file: str, name: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as refused:
        trace(f"{file}:{name}")
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["Wide", "Exits"])
def test_one_line_is_all_that_is_said(file: str, name: str) -> None:
    """What PyTorch logs of an error, traceback and all, is not."""
    answer = subprocess.run(
        [sys.executable, "-m", "txcalc", "trace", f"{file}:{name}"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2 and answer.stdout == "" and len(answer.stderr.splitlines()) == 1


def test_what_a_module_prints_is_no_result(file: str) -> None:
    result = typed("trace", f"{file}:Talks", "--json")
    assert json.loads(result.stdout)["total"]["params"] == 992 and "made\ncalled" in result.stderr


def test_lengths_that_are_divided_and_lengths_that_end(file: str) -> None:
    result = typed("trace", f"{file}:Strided", "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0 and answer["total"]["flops"] == "384·B·(⌈T/2⌉ − 1)"  # (T - 3) // 2 + 1 places
    assert answer["total"]["flops_at_point"] == 2 * 3 * 8 * 8 * 3 * 2  # 3 taps; 3 sequences of 2 places
    assert trace(f"{file}:Positions").domain == "all B, T ≥ 2, T ≠ 16, T ≤ 16"


def test_what_meta_cannot_make_is_made_as_it_is(file: str) -> None:
    assert [part.params for part in trace(f"{file}:Decayed").parts] == [80]


@pytest.mark.drawn(1000)
@pytest.mark.parametrize("source", ["mine.py", "", ":", "mine.py:", ":Tied", "nowhere.py:Tied", "no.such.module:Tied"])
def test_bad_sources(source: str) -> None:
    result = typed("trace", source)
    assert result.exit_code == 2 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1 and "Traceback" not in result.stderr


def test_a_file_that_is_not_python(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def (:\n")
    with pytest.raises(InputError, match="cannot be imported: SyntaxError"):
        trace(f"{path}:Tied")


def test_the_command(file: str) -> None:
    result = typed("trace", f"{file}:Tied", "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0 and answer["schema"] == "txcalc/trace/1"
    total = answer["total"]
    assert (total["params"], total["flops"]) == (992, "32·B·T·(3·T + 53)")
    assert total["flops_at_point"] == 32 * 15 * (15 + 53)
    assert total["flops_at_point"] - total["fvcore_at_point"] == 3 * 4 * 8 * 3 * 25  # the attention that fvcore lost
    shown = typed("trace", f"{file}:Tied")
    coloured = typed("trace", f"{file}:Tied", FORCE_COLOR="1").stdout.splitlines()
    assert [line.split()[0] for line in coloured if "\x1b[33m" in line] == ["layers.*"]
    folded = next(line.split() for line in shown.stdout.splitlines() if line.startswith("layers.*.qkv"))
    assert folded[1] == "3" and "total" in shown.stdout
    assert "not counted by fvcore: aten::scaled_dot_product_attention (× 3)" in shown.stderr
    refused = typed("trace", f"{file}:Recurrent")
    assert refused.exit_code == 1 and refused.stdout == ""


invoke = Command("trace", columns=100)


def test_grouped_products_are_counted(file: str) -> None:
    (part,) = [part for part in trace(f"{file}:Grouped").parts if part.path == ""]
    assert part.flops.equals(2 * 16 * 24 * B * T)


def test_transformers_experts_are_counted(tmp_path: Path) -> None:
    """q, k, v and o, the two products of attention, the router, three products of each of k experts, and the head."""
    pytest.importorskip("transformers")
    sizes = "vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4"
    path = tmp_path / "mixture.py"
    path.write_text(
        "from transformers import MixtralConfig, MixtralForCausalLM\n"
        f"def build():\n    config = MixtralConfig({sizes}, num_key_value_heads=2, num_local_experts=4)\n"
        "    return MixtralForCausalLM(config)\n"
        "def half():\n    return build().bfloat16()\n"
    )
    projections, router, experts = 2 * 16 * (16 + 8 + 8 + 16), 2 * 16 * 4, 2 * 2 * 3 * 16 * 24
    expected = B * T * (2 * (projections + router + experts + 4 * 16 * T) + 2 * 16 * 50)
    for name in ("build", "half"):
        result = trace(f"{path}:{name}")
        assert result.complete and (sum(part.flops for part in result.parts) - expected).expand() == 0
    grouped = "def grouped():\n    net = half()\n    net.set_experts_implementation = None\n    return net\n"
    path.write_text(path.read_text() + grouped)
    result = trace(f"{path}:grouped")
    assert result.complete and (sum(part.flops for part in result.parts) - expected).expand() == 0


def test_an_operator_that_may_cost_makes_it_a_bound(file: str) -> None:
    code, out, err = invoke(f"{file}:Distances")
    assert code == 1 and "lower bound on FLOPs" in " ".join(out.split()) and "aten::_cdist_forward (× 1)" in err
    code, out, _ = invoke(f"{file}:Distances", "--json")
    assert code == 1 and json.loads(out)["complete"] is False
    assert invoke.data(f"{file}:Tied")["complete"] is True


def test_a_class_is_not_free_for_its_name(file: str) -> None:
    assert trace(f"{file}:Disguised").skipped == {"fvcore": {"prim::PythonOp.relu": 1}}


def test_what_no_symbol_can_pass_is_measured(file: str) -> None:
    code, out, err = invoke(f"{file}:Recurrent")
    assert code == 1 and out == "" and "mine.py:" in err and "for t in range(ids.shape[1])" in err
    answer = invoke.data(f"{file}:Recurrent", "--tokens", "7")
    assert (
        answer["domain"] == "B = 3, T = 7"
        and invoke.data(f"{file}:Recurrent", "--tokens", "7", "--batch", "1")
        and answer["total"]["flops"] == str(7 * 3 * 2 * 8 * 8)
    )
    assert "--device cpu" in invoke(f"{file}:Routed")[2]
    assert [depends_on_data(RuntimeError(text)) for text in ("nonzero on meta", "nonzero", "meta")] == [
        True,
        False,
        False,
    ]
    answer = invoke.data(f"{file}:Routed", "--device", "cpu", "--batch", "2", "--tokens", "4")
    assert answer["total"]["params"] == 152 and 0 <= int(answer["total"]["flops"]) <= 2 * 4 * 2 * 64


def test_inputs_by_name(file: str) -> None:
    inputs = ["--input", "ids=B,T:int64", "--input", "source=B,T_src:int64"]
    answer = invoke.data(f"{file}:Translates", *inputs)
    assert answer["total"]["flops"] == "16·B·T_src·(T + 8)"
    assert answer["point"] == {"batch": 3, "tokens": 5, "source_tokens": 2}
    assert answer["total"]["fvcore_at_point"] is None
    picture = invoke.data(f"{file}:Pictures", "--input", "B,3,8,8:float32")
    assert picture["total"]["flops"] == f"{2 * 3 * 9 * 4 * 36}·B"


@pytest.mark.drawn(1000)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--input", "ids=B,T"], "NAME=SIZES:DTYPE"),
        (["--input", "ids=B,Q:int64"], "B, T, T_src or numbers"),
        (["--input", "ids=B,T:int65"], "NAME=SIZES:DTYPE"),
        (["--input", "a=B:int64", "--input", "a=B:int64"], "expected a different name for each"),
        (["--input", "nobody=B,T:int64"], "does not run on nobody"),
        (["--batch", "0"], "--batch is 0"),
        (["--device", "abacus"], "expected meta, cpu or cuda"),
    ],
)
def test_bad_options(file: str, options: list[str], message: str) -> None:
    code, out, err = invoke(f"{file}:Tied", *options)
    assert code == 2 and out == "" and message in err and "Traceback" not in err
