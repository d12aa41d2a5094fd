"""What parts read, write and compute element by element, from every operator that PyTorch runs in them."""

from __future__ import annotations

from typing import Any

import pytest
from tiny import TINY

pytest.importorskip("torch")

from txcalc import load
from txcalc.model import Model
from txcalc.parts.cores import AttentionCore
from txcalc.parts.linear import Activation, Linear, Lookup, Sum
from txcalc.parts.norm import Norm
from txcalc.parts.part import COST
from txcalc.parts.positions import Rotary
from txcalc.sources import build
from txcalc.verification import verify

pytestmark = pytest.mark.slow

LLAMA = "D=32 L=2 h=4 h_kv=2 F=48 V=50"
GPT = "D=32 L=2 h=4 F=48 V=50 plain ln bias learned=64 tied"


@pytest.fixture(scope="module", params=[LLAMA, GPT], ids=["llama", "gpt"])
def model(request: pytest.FixtureRequest) -> Model:
    return load(request.param)


@pytest.mark.parametrize(("oracle", "least"), [("traffic", 18), ("other", 6)])
def test_the_operators_move_and_compute_what_the_formulas_say(model: Model, oracle: str, least: int) -> None:
    verdict = verify(model, [oracle])
    assert verdict.ok, verdict.failures[:3]
    assert sum(row.copies for row in verdict.rows) >= least and all(row.for_all for row in verdict.rows)


def changed(part: type[Any], number: str) -> Any:
    """The operations of a leaf, each with one of its numbers 1 more for every element."""
    before = part.operations

    def operations(self: Any, work: Any) -> Any:
        for operation in before(self, work):
            moved = operation.traffic
            if number != "cost":
                yield operation._replace(traffic=moved._replace(**{number: getattr(moved, number) + work.batch}))
            else:
                yield operation._replace(cost=operation.cost + 1) if hasattr(operation, "cost") else operation

    return lambda self, work: tuple(operations(self, work))


@pytest.mark.parametrize("number", ["weights", "activations", "cache", "cost"])
@pytest.mark.parametrize("part", [Linear, Norm, Sum, Rotary, Activation, AttentionCore, Lookup])
def test_another_number_is_refuted(part: type[Any], number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if part is Lookup and number == "cost":
        pytest.skip("a lookup computes nothing")
    monkeypatch.setattr(part, "operations", changed(part, number))
    bias = " bias" if (part, number) == (Linear, "cost") else ""
    verdict = verify(load(LLAMA + bias), ["other" if number == "cost" else "traffic"])
    assert not verdict.ok


@pytest.mark.parametrize("form", ["layer_norm", "rms_norm", "gelu", "silu", "softmax", "rotary", "add"])
def test_another_cost_is_refuted(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COST, form, COST[form] + 1)
    assert not verify(load(GPT if form in ("layer_norm", "gelu") else LLAMA), ["other"]).ok


def test_a_fused_activation_leaves_its_middle_on_the_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Activation, "on_chip", lambda self, work: 0)
    failed_paths = {row.path for row in verify(load(LLAMA), ["traffic"]).failures}
    assert failed_paths == {f"layers.{i}.feed_forward.activation" for i in (0, 1)}


def test_the_core_of_latents_reads_what_was_expanded_and_no_latent() -> None:
    rows = verify(build(TINY["deepseek-v2"], "tiny"), ["traffic"]).rows
    cores = [row for row in rows if row.path.endswith("attention.core")]
    assert cores and all(row.equal for row in cores)


def test_which_leaves_are_witnessed(model: Model) -> None:
    """All that move something, and all that compute something beside products."""
    kinds = {entry.path: entry.leaf.label for entry in model.ledger()}
    working = {entry.leaf.label for entry in model.ledger() if entry.flops_other}
    for oracle, expected in (("traffic", {*kinds.values()}), ("other", working - {"Lookup"})):
        assert {kinds[row.path] for row in verify(model, [oracle]).rows} == expected


def test_what_is_not_witnessed_is_said() -> None:
    verdict = verify(load("mamba-130m"), ["traffic"])
    assert verdict.ok and any("not compared" in note and "Scan" in note for note in verdict.notes), verdict.notes


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "name",
    ["gemma3n", "deberta", "transformer", "gpt-oss", "zamba2", "t5", "chinchilla", "vit", "mixtral", "deepseek-v2"],
)
def test_every_kind_of_model_has_witnesses(name: str) -> None:
    verdict = verify(build(TINY[name], name), ["traffic", "other"])
    assert verdict.ok and len(verdict.rows) > 12, verdict.failures[:3]
    experts = {row.quantity for row in verdict.rows if row.path.endswith("experts.routed")}
    assert experts == ({"traffic", "other flops"} if name in ("mixtral", "deepseek-v2", "gpt-oss") else set()), name
