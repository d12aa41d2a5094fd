"""What functions return: the document of their command, whose every key a class says, with its type.

A key that no class says, a value of another type and a key that no example has are all faults.
"""

from __future__ import annotations

import json
import pickle
import shlex
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from msgspec import convert
from typer.testing import CliRunner

import txcalc
from txcalc import InputError
from txcalc.cli import app
from txcalc.questions.deploy import DeployComparison

LLAMA = txcalc.load("llama-3.1-8b")
SMALL = "D=32 h=2 F=64 L=1 V=50"


def little() -> Any:
    """What `trace` is given."""
    import torch

    return torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 4))


# A call, and the command that is the same question.
SAME: list[tuple[Callable[[], Any], str]] = [
    (lambda: txcalc.show(LLAMA, tokens="2k"), "show llama-3.1-8b --tokens 2k"),
    (lambda: txcalc.show("mixtral-8x7b", past=99, weights="fp8"), "show mixtral-8x7b --past 99 --weights fp8"),
    (lambda: txcalc.show("deepseek-v3", mla="absorbed"), "show deepseek-v3 --mla absorbed"),
    (lambda: txcalc.show("gpt2", conventions=["palm"]), "show gpt2 --as palm"),
    (lambda: txcalc.show("whisper-large-v3"), "show whisper-large-v3"),
    (lambda: txcalc.show("llama-4-scout"), "show llama-4-scout"),
    (lambda: txcalc.show("gpt2", initial=True), "show gpt2 --initial"),
    (lambda: txcalc.show("gpt2", recompute="core", layout="fsdp=2"), "show gpt2 --recompute core --layout fsdp=2"),
    (lambda: txcalc.compare("gpt2", "vit-b", "t5-small"), "compare gpt2 vit-b t5-small"),
    (lambda: txcalc.compare("deepseek-v3", LLAMA, context="8k"), "compare deepseek-v3 llama-3.1-8b --contexts 8k"),
    (lambda: txcalc.compare("gpt2", "mistral-7b", attention="masked"), "compare gpt2 mistral-7b --attention masked"),
    (lambda: txcalc.compare("gpt2", "gpt2-medium", variants=[{"F": 2048}], match="params", by="F", context="1k"),
     "compare gpt2 gpt2-medium --set F=2048 --match params --by F --context 1k"),
    (lambda: txcalc.diff(LLAMA, "qwen3-8b", tokens=2048), "diff llama-3.1-8b qwen3-8b --tokens 2k"),
    (lambda: txcalc.diff("gpt2", "mixtral-8x7b"), "diff gpt2 mixtral-8x7b"),
    (lambda: txcalc.kv("gemma-3-27b", [8192], kv="fp8"), "kv gemma-3-27b --contexts 8k --kv-dtypes fp8"),
    (lambda: txcalc.kv("t5-small"), "kv t5-small"),
    (lambda: txcalc.kv("gpt2", without_cache=True), "kv gpt2 --without-cache"),
    (lambda: txcalc.crossover("deepseek-v3", "gemma-3-27b"), "crossover deepseek-v3 gemma-3-27b"),
    (lambda: txcalc.crossover("mamba-2.8b", formulas=False), "crossover mamba-2.8b --no-formulas"),
    (lambda: txcalc.formula("gpt2", "layers.0"), "formula gpt2 layers.0"),
    (lambda: txcalc.formula(), "formula"),
    (lambda: txcalc.sweep(LLAMA, over={"T": "1k:8k:2x"}), "sweep llama-3.1-8b --over T=1k:8k:2x"),
    (lambda: txcalc.sweep("gpt2", "gpt2-xl", over=["h=4,8"], changes={"F": "4*D"}, batch=2),
     "sweep gpt2 gpt2-xl --over h=4,8 --set F=4*D --batch 2"),
    (lambda: txcalc.formula("gpt2", layout="tp=2", optimizer="lion"), "formula gpt2 --layout tp=2 --optimizer lion"),
    (lambda: txcalc.deploy("mixtral-8x7b", "h100-sxm:8@2.5", concurrency=16, engine="vllm", prompt="1000..3000",
                           answer=500, rate=2.0, disaggregate="auto"),
     "deploy mixtral-8x7b --gpu h100-sxm:8@2.5 --concurrency 16 --engine vllm --prompt 1000..3000 --answer 500 "
     "--rate 2/s --disaggregate auto"),
    (lambda: txcalc.deploy(LLAMA, "h100", draft="3:llama-3.2-1b", acceptance=0.7, tpot=0.001,
                           simulate=True, requests=50),
     "deploy llama-3.1-8b --gpu h100 --draft 3:llama-3.2-1b --acceptance 70% --tpot 1ms --simulate --requests 50"),
    (lambda: txcalc.deploy("llama-3.1-8b", "rtx-4090:1", context="128k", concurrency=4),
     "deploy llama-3.1-8b --gpu rtx-4090:1 --context 128k --concurrency 4"),
    (lambda: txcalc.deploy(["gpt2", "t5-small"], ["h100", "rtx-4090:3"], tp=3),
     "deploy gpt2 t5-small --gpu h100 --gpu rtx-4090:3 --tp 3"),
    (lambda: txcalc.deploy("mixtral-8x7b", "h100-sxm:8", tp=4, dp=2, etp=8),
     "deploy mixtral-8x7b --gpu h100-sxm:8 --tp 4 --dp 2 --etp 8"),
    (lambda: txcalc.deploy("qwen3-30b-a3b", "rtx-4060-ti-16gb", ram="32GB@60GB/s", weights="Q4_K_M"),
     "deploy qwen3-30b-a3b --gpu rtx-4060-ti-16gb --ram 32GB@60GB/s --weights Q4_K_M"),
    (lambda: txcalc.fit("qwen3-32b", gpu="4090", ram="64GB@80GB/s"), "fit qwen3-32b --gpu 4090 --ram 64GB@80GB/s"),
    (lambda: txcalc.fit("gpt2", "mamba-2.8b", "t5-small", gpu=["4090", "m4-pro:3"], weights="native,Q8_0"),
     "fit gpt2 mamba-2.8b t5-small --gpu 4090 --gpu m4-pro:3 --weights native,Q8_0"),
    (lambda: txcalc.design(params="8B", gqa=4), "design --params 8B --gqa 4"),
    (lambda: txcalc.design("mixtral-8x7b", compute="1e23", train_tokens=1e12, changes={"h_kv": 4}),
     "design mixtral-8x7b --compute 1e23 --train-tokens 1T --set h_kv=4"),
    (lambda: txcalc.scale(LLAMA, train_tokens=15e12, bytes_per_token=4.2),
     "scale llama-3.1-8b --train-tokens 15T --bytes-per-token 4.2"),
    (lambda: txcalc.scale(compute="1e24", unique_tokens=1e12, laws="muennighoff"),
     "scale --compute 1e24 --unique-tokens 1T --law muennighoff"),
    (lambda: txcalc.entropy([0.5, 0.5], against="1/2,1/2"), "entropy 0.5,0.5 --against 0.5,0.5"),
    (lambda: txcalc.verify(SMALL, oracles=["parameters", "flops"], zero_cost=True),
     f"verify '{SMALL}' --oracle parameters --oracle flops --zero-cost"),
    (lambda: txcalc.verify(SMALL, oracles="peak", device="cpu"), f"verify '{SMALL}' --oracle peak --device cpu"),
    (lambda: txcalc.verify(SMALL, layout="fsdp=2", recipe="tokens=4"),
     f"verify '{SMALL}' --layout fsdp=2 --recipe tokens=4"),
    (lambda: txcalc.prove(LLAMA, "gpt2"), "prove llama-3.1-8b gpt2"),
    (lambda: txcalc.trace("test_results:little"), "trace test_results:little"),
    (lambda: txcalc.presets("llama*"), "presets 'llama*'"),
    (lambda: txcalc.presets("*", hardware=True), "presets --hardware"),
    (lambda: txcalc.measurements("cpu"), "measurements cpu"),
    (lambda: txcalc.train("gpt2", "h100:8@2.5", layout="pp=2,dp=4", zero=1, tokens="1k", train_tokens=1e9, rank=5,
                          deadline="30d", budget="1M", fits_on=True),
     "train gpt2 --gpu h100:8@2.5 --layout pp=2,dp=4 --zero 1 --tokens 1k --train-tokens 1B --rank 5 --deadline 30d "
     "--budget 1M --fits-on"),
    (lambda: txcalc.train(LLAMA, "h100:8", lora="r=8,targets=q+v,base=nf4", micro_batch=1),
     "train llama-3.1-8b --gpu h100:8 --lora r=8,targets=q+v,base=nf4 --micro-batch 1"),
]  # fmt: skip


@cache
def answer(call: Callable[[], Any]) -> Any:
    return call()


@pytest.mark.slow
@pytest.mark.parametrize(("call", "command"), SAME, ids=[command for _, command in SAME])
def test_a_result_is_its_commands_document_and_typed(call: Callable[[], Any], command: str) -> None:
    found = answer(call)
    said = CliRunner().invoke(app, [*shlex.split(command), "--json"])
    assert found.to_dict() == json.loads(said.stdout)
    assert found.failed == bool(said.exit_code)
    if isinstance(found, DeployComparison):  # its rows are of two classes that JSON does not tell apart by a key
        for row, each in zip(found.to_dict()["deployments"], found.deployments, strict=True):
            assert convert(row, type(each)).to_dict() == each.to_dict()
    else:  # what it holds is of the types that its class declares
        assert convert(found.to_dict(), type(found)) == found
    again = found if command.startswith("verify") else call()  # which takes seconds
    assert found == again and hash(found) == hash(again)
    assert "<table" in found._repr_html_() and str(found) and repr(found).startswith("<txcalc.")


def test_records_have_only_what_they_say_and_never_change() -> None:
    found = txcalc.kv("gpt2", "1k", 1)
    assert found.rows[0].bytes == found.to_dict()["rows"][0]["bytes"]
    assert found.rows[0].cross_bytes is None, "no encoder"
    with pytest.raises(AttributeError, match="has no attribute 'byte'"):
        found.rows[0].byte  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="immutable"):
        found.rows = ()  # type: ignore[misc]
    assert txcalc.formula("gpt2").derivations == ()
    assert found.rows[0] == txcalc.kv("gpt2", "1k", 1).rows[0] != txcalc.kv("gpt2", "1k", 2).rows[0]
    assert pickle.loads(pickle.dumps(found.rows[0])) == found.rows[0]


@pytest.mark.slow
def test_rows_are_a_data_frame() -> None:
    pytest.importorskip("pandas", reason="needs pandas (pip install 'txcalc[frames]')")
    polars = pytest.importorskip("polars", reason="needs polars (pip install 'txcalc[frames]')")
    found = txcalc.compare("llama-3.1-8b", "gpt2", context="1k")
    frame = found.to_pandas().set_index(["quantity", "model"])
    assert frame.loc[("params", "gpt2"), "value"] == 124_439_808
    assert polars.DataFrame(found).height == len(found.rows) * 2
    assert polars.DataFrame(txcalc.kv("gpt2", "1k", [1, 2]))["bytes"].to_list() == [37748736, 75497472]
    interchange = pytest.importorskip("pyarrow.interchange")
    held = interchange.from_dataframe(txcalc.compare("llama-3.1-405b", "gpt2", context="1k"))
    assert held.column("quantity").to_pylist()[:2] == ["params", "params"] and held.num_rows == 20
    with pytest.raises(InputError, match="no rows"):
        txcalc.formula().to_pandas()


@pytest.mark.slow
def test_a_result_is_drawn_or_says_that_it_has_no_picture(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib (pip install 'txcalc[plot]')")
    found = txcalc.kv("gpt2")
    assert found.plot(tmp_path / "kv.svg")._repr_svg_().lstrip().startswith("<?xml")
    assert (tmp_path / "kv.svg").stat().st_size > 1000
    with pytest.raises(InputError, match=r"\.svg or \.png or \.pdf"):
        found.plot("kv.gif")
    with pytest.raises(InputError, match="has no picture"):
        txcalc.diff("gpt2", "gpt2-xl").plot()
    with pytest.raises(InputError, match="format is 'yaml'"):
        found.to_text("yaml")
