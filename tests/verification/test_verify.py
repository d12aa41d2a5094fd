"""The proof: predicted equals measured for every architecture and quantity, and a wrong formula never passes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tomllib
import weakref
from collections.abc import Callable
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from command import Command
from evidence_of import how_known
from msgspec.structs import replace
from paths import DATA, HF
from strategies import LEAVES
from tiny import TINY, config_sizes, tiny

from txcalc import load, verify as verify_all
from txcalc.errors import InputError, Refuted, UnknownName
from txcalc.evidence import theorems
from txcalc.evidence.known import MEANING, Evidence
from txcalc.evidence.store import read
from txcalc.evidence.structures import with_numbers
from txcalc.parts.cores import AttentionCore
from txcalc.parts.linear import Linear, Unused
from txcalc.parts.norm import Norm
from txcalc.parts.part import Cache, Leaf, MatMul, Weight, Workload
from txcalc.parts.spans import Causal, Window
from txcalc.planning.conventions import korthikanti
from txcalc.planning.training import training_flops
from txcalc.sources import build, huggingface
from txcalc.sources.export import to_config
from txcalc.sources.presets import names

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
pytest.importorskip("fvcore")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from txcalc.evidence.theorems import FIGURES  # noqa: E402
from txcalc.reference import mode  # noqa: E402
from txcalc.reference.linear import FORMS  # noqa: E402
from txcalc.verification import NoDevice, NotForAll, Verdict, against_transformers, device, macs, shorten, verify  # noqa: E402
from txcalc.verification.coverage import ZERO_COST, costs_nothing  # noqa: E402
from txcalc.verification.flops import count  # noqa: E402
from txcalc.verification.sizes import SizeSymbols  # noqa: E402
from txcalc.verification.store_evidence import proofs, store  # noqa: E402
from txcalc.verification.subject import EVERY_LAYER_AT, POINTS, Subject  # noqa: E402
from txcalc.verification.symbolic import B, Fakes, SymbolicSize, Symbols, T  # noqa: E402
from txcalc.verification.verdict import module_paths  # noqa: E402

FOR_ALL = ("all B, T ≥ 2", "all B, T, T_src ≥ 2", "all B ≥ 2")


def where(verdict: Verdict, quantity: str, oracle: str) -> set[str]:
    """Sizes at which the whole model's figure was compared."""
    return {row.where for row in verdict.rows if (row.path, row.quantity, row.oracle) == ("", quantity, oracle)}


def failed(verdict: Verdict) -> list[tuple[str, str]]:
    return [(row.path, row.quantity) for row in verdict.failures]


@pytest.mark.nightly
def test_entries_of_several_tokens_are_counted_at_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many there are goes up in steps, which no trace holds for all lengths of."""
    monkeypatch.setattr("txcalc.verification.subject.POINTS", POINTS[3:])
    verdict = verify(tiny("compressed"), ["parameters", "fvcore", "flops", "cache"])
    assert failed(verdict) == [] and verdict.ok
    assert any("no proof for every batch and length" in note for note in verdict.notes)
    assert len(where(verdict, "flops", "FlopCounterMode")) > 1


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("kind", "where"), [("selected", "all B, T ≥ 2, "), ("pooled", "all B, T = 64")])
def test_what_pooled_tokens_keep_and_move_is_compared(kind: str, where: str) -> None:
    """For all lengths where a trace takes the quotient as a symbol, else at one length, past every window."""
    description = {key: TINY["compressed"][key] for key in ("d_model", "vocab_size", "compressed")}
    layer = {**TINY["compressed"]["layer"][kind], "parts": ["compressed", "feed_forward"]}
    description |= {"n_layers": 1, "pattern": [kind], "layer": {kind: layer}}
    description |= {"feed_forward": {"d_ff": 24, "gated": True}}
    model = build(description, kind)
    verdict = verify(model, ["saved", "traffic"])
    assert failed(verdict) == [] and verdict.ok
    assert any(row.path.endswith("compressor.pool") for row in verdict.rows)
    assert {row.quantity.partition(",")[0] for row in verdict.rows} == {"saved", "traffic"}
    assert all(row.where.startswith(where) for row in verdict.rows)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", [name for name in TINY if name != "compressed"])
def test_every_architecture_for_every_batch_and_length(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """fvcore, the second witness, is asked at two of its five sizes, one of them with every layer."""
    monkeypatch.setattr("txcalc.verification.subject.POINTS", POINTS[2:4])
    verdict = verify(tiny(name))
    assert failed(verdict) == [] and verdict.ok
    assert where(verdict, "params", "torch.nn") == {""}
    assert where(verdict, "flops", "FlopCounterMode") <= set(FOR_ALL)
    assert len(where(verdict, "flops", "FlopCounterMode")) == 1
    assert where(verdict, "flops", "fvcore") == {*map(str, Subject(tiny(name)).points)}


@pytest.mark.nightly
def test_several_processes_say_what_one_says() -> None:
    sources = ["D=32 h=2 F=64 L=1 V=50", "t5-small"]
    one, two = (verify_all(*sources, oracles="flops", workers=number) for number in (1, 2))
    assert one.ok and two.to_dict() == one.to_dict()
    refusal = NotForAll("T = 5")
    assert str(pickle.loads(pickle.dumps(refusal))) == str(refusal)


def test_presets_at_full_size() -> None:
    gpt2 = verify(load("gpt2"))
    (total,) = [row for row in gpt2.rows if row.path == "" and row.oracle == "FlopCounterMode"]
    assert total.measured.equals(1536 * B * T * (24 * T + 160849))
    assert {row.copies for row in gpt2.rows if row.path == "layers.0.attention.q"} == {12}
    assert gpt2.ok


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["gpt2", "llama-3.1-8b", "mixtral-8x7b"])
def test_backward_costs_what_training_says(name: str) -> None:
    verdict = verify(load(name), ["training"])
    assert failed(verdict) == []
    assert where(verdict, "training flops", "FlopCounterMode") == {FOR_ALL[0]}
    assert where(verdict, "training flops, blocks recomputed", "FlopCounterMode") == {FOR_ALL[0]}


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["vit", "whisper", "chinchilla", "vectors", "t5", "albert"])
def test_data_needs_no_gradient_and_hidden_states_do(name: str) -> None:
    assert failed(verify(tiny(name), ["training"])) == []


def test_training_is_three_forwards_and_a_fourth_where_blocks_are_recomputed() -> None:
    ledger = load("gpt2").ledger(2, 64)
    head, forward = ledger.at("head").total("flops"), ledger.total("flops")
    assert training_flops(ledger) == 3 * forward
    assert training_flops(ledger, "blocks") == 4 * forward - head
    assert training_flops(ledger, "core") == 3 * forward + ledger.by_kind("flops")["attention_core"]
    picture = load("vit-b").ledger(2)
    patches = picture.at("embedding.patches").total("flops")
    assert training_flops(picture) == 3 * picture.total("flops") - patches


DENSE = [
    f"D=64 L=2 h=4 h_kv={groups} F=96 V=50 {channel} {norm} learned=16"
    for groups in (4, 2, 1)
    for channel in ("plain", "gated")
    for norm in ("rms", "ln")
]


@pytest.mark.parametrize("source", DENSE)
def test_saved_elements_of_dense_blocks(source: str) -> None:
    verdict = verify(load(source), ["saved"])
    assert failed(verdict) == []
    for quantity in ("saved, attention matrix kept", "saved, fused attention"):
        assert where(verdict, quantity, "saved_tensors_hooks") == {FOR_ALL[0]}
    assert not any("modelled" in note for note in verdict.notes)


OTHERS = (
    "falcon gpt-neox palm olmo2 qwen3 bert albert vit vectors qwen3-next deberta deberta-v2 apertus axk1 "
    "mimo-v2-flash doge gemma3n"
)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", OTHERS.split())
def test_saved_elements_of_other_blocks(name: str) -> None:
    assert failed(verify(tiny(name), ["saved"])) == []


COMBINED = json.loads((DATA / "combined.json").read_text("utf-8"))


@pytest.mark.parametrize("tables", COMBINED, ids=range(len(COMBINED)))
def test_saved_elements_of_combinations_no_preset_has(tables: dict[str, Any]) -> None:
    """What random descriptions refuted: see tests/scripts/structures.py."""
    layers = {} if "decoder" in tables else {"n_layers": 1}
    shared = {"d_model": 16, "vocab_size": 17, "attention": {"n_heads": 4}, "feed_forward": {"d_ff": 20}}
    assert failed(verify(build(shared | layers | tables, "drawn"), ["saved"], lengths="points")) == []


def test_latents_of_one_head_are_not_compared_where_products_need_not_copy_them() -> None:
    """Of several heads PyTorch copies the values out of their projection; of one it keeps the whole projection."""
    tiny_latents = TINY["deepseek-v2"]
    single_head = build(tiny_latents | {"latent": tiny_latents["latent"] | {"n_heads": 1}}, "one head")
    verdict = verify(single_head, ["saved"])
    assert verdict.ok and any("one head" in note for note in verdict.notes)


def test_what_saved_only_models_is_said_and_not_compared() -> None:
    verdict = verify(tiny("jamba"), ["saved"])
    assert verdict.ok
    assert not any("experts" in row.path.split(".") or "mamba" in row.path.split(".") for row in verdict.rows)
    notes = " ".join(verdict.notes)
    assert "modelled, not compared: experts" in notes and "modelled, not compared: recurrent mixers" in notes


CACHED = ["gpt2", "mistral", "gemma3", "deepseek-v3", "t5", "mamba", "mamba2", "jamba", "qwen3-next", "channel-delta"]
CACHED += ["falcon-h1", "kimi-linear", "bailing-hybrid", "recurrent-gemma", "rwkv", "minimax", "deepseek-v3.2"]


@pytest.mark.parametrize("name", CACHED)
def test_cache_and_flops_of_decoding(name: str) -> None:
    verdict = verify(tiny(name), ["cache"])
    assert failed(verdict) == []
    assert {row.quantity for row in verdict.rows} == {"cache", "flops with cache"}


def test_a_full_window_stops_growing_and_a_state_is_constant() -> None:
    window = [row for row in verify(tiny("mistral"), ["cache"]).rows if row.quantity == "cache" and row.path]
    assert [row.measured for row in window if row.where.endswith("new")][-1] == 4 * 2 * 2 * 8  # W · 2 · h_kv · d_h
    cached = [row for row in verify(tiny("mamba"), ["cache"]).rows if row.quantity == "cache"]
    assert len({row.measured for row in cached if row.path.endswith("scan")}) == 1


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["gpt2", "mixtral", "mamba"])
def test_memory_by_category(name: str) -> None:
    verdict = verify(tiny(name), ["memory"])
    assert failed(verdict) == []
    assert {row.quantity.partition(",")[0] for row in verdict.rows} >= {"weights", "gradients", "optimizer state"}
    assert any(note.startswith("peak of a training step") for note in verdict.notes)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["gpt2", "deepseek-v3", "t5-small", "kimi-k2"])
def test_transformers_own_modules_agree(name: str) -> None:
    pytest.importorskip("transformers")
    assert verify(load(name), ["transformers"]).ok


def test_a_difference_from_transformers_modules_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    config = {**to_config(load("llama-3.2-1b"))[0], "num_key_value_heads": 4}
    monkeypatch.setattr(against_transformers, "to_config", lambda model: (config, ()))
    failures = verify(load("llama-3.2-1b"), ["transformers"]).failures
    differs = {row.path: (row.predicted, row.measured) for row in failures}
    assert differs["layers.*.attention.k.weight"] == ("(512, 2048)", "nothing")
    assert differs["model.layers.*.self_attn.k_proj.weight"] == ("nothing", "(256, 2048)")


@pytest.mark.filterwarnings("ignore")
def test_weights_that_no_token_runs_through_are_compared_in_total(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIT's tower: a number here, weights with names there."""
    pytest.importorskip("transformers")
    place = tmp_path / "config.json"
    small = json.loads((HF / "small.json").read_text())
    place.write_text(json.dumps(small["git tied"]["config"]))
    verdict = verify(load(place), ["transformers"])
    assert verdict.ok and any("only their total compared, 24,096 (idle)" in note for note in verdict.notes)
    monkeypatch.setattr(Unused, "weights", lambda self: (Weight("weight", (self.d_out + 1,)),))
    assert {row.quantity for row in verify(load(place), ["transformers"]).failures} == {"params", "shape"}


@pytest.mark.drawn(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mobilebert-base", "LongcatFlashForCausalLM"])
def test_transformers_own_modules_of_what_is_listed_leaf_by_leaf(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it has no module here; and of layers two by two, with rows of experts that do nothing."""
    pytest.importorskip("transformers")
    config = json.loads((HF / "small.json").read_text())[name]["config"]
    place = tmp_path / "config.json"
    place.write_text(json.dumps(config))
    model = load(place)
    verdict = verify_all(place, against="transformers", oracles=["transformers"] if name[0] == "L" else ())
    assert verdict.ok and any(row.quantity == "params" for row in verdict.rows)
    if name[0] != "L":
        assert any(row.quantity == "flops" for row in verdict.rows)
        with monkeypatch.context() as patched:
            patched.setattr("txcalc.verification.transformers_cost.forward_flops", lambda *_, **__: ({"": 1}, ""))
            assert [row.quantity for row in verify(model, ["transformers"]).failures] == ["flops"]
    place.write_text(json.dumps(config | {"vocab_size": 77}))
    misread = replace(load(place), raw=model.raw)
    place.write_text(json.dumps(config))
    assert not verify(misread, ["transformers"]).ok


def test_flops_are_compared_at_a_length_that_what_is_listed_holds_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    configs = json.loads((HF / "small.json").read_text())
    place, lengths = tmp_path / "config.json", list[int]()

    def against(name: str) -> Verdict:
        place.write_text(json.dumps(configs[name]["config"]))
        return verify(load(place), ["transformers"])

    def untold(net: Any, **point: Any) -> tuple[None, str]:
        lengths.append(point["tokens"])
        return None, ""

    with monkeypatch.context() as patched:
        patched.setattr("txcalc.verification.transformers_cost.forward_flops", untold)
        configs["Wav2Vec2ForXVector"]["config"] |= {"tdnn_kernel": [5, 3], "tdnn_dilation": [2, 3], "tdnn_dim": [9, 8]}
        assert against("Wav2Vec2ForXVector").ok
    assert lengths == [15]
    assert any(row.quantity == "flops" and row.equal for row in against("Speech2TextModel").rows)  # frames of a sound


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["flan-t5-base", "bart-base"])
def test_halves_are_compared_module_by_module(name: str) -> None:
    pytest.importorskip("transformers")
    configs = json.loads((HF / "configs.json").read_text())
    verdict = verify(build(*huggingface.describe(configs[name])), ["transformers"])
    compared = {row.path for row in verdict.rows if row.quantity == "flops"}
    assert verdict.ok
    of_both = {"encoder.layers.0.attention.q", "decoder.layers.0.attention.core", "decoder.layers.0.cross_attention.o"}
    assert of_both | {"encoder.layers.0.feed_forward.up", "decoder.layers.0.feed_forward.down"} <= compared


def test_a_tie_that_transformers_forces_is_explained() -> None:
    pytest.importorskip("transformers")
    untied = load("t5-small", {"head.tied": False, "L": 2})
    verdict = verify(untied, ["transformers"])
    assert verdict.ok and any("16,449,536 parameters less" in note for note in verdict.notes), verdict.notes
    llama = load("D=32 L=1 h=2 F=48 V=50")
    assert not any("ties" in note for note in verify(llama, ["transformers"]).notes)


def test_a_config_that_was_misread_differs_from_what_transformers_makes_of_it(tmp_path: Path) -> None:
    """The witness has the file itself: a description written back would repeat what was misread."""
    pytest.importorskip("transformers")
    config = config_sizes(32, 2, 4, 40, 50, model_type="llama", head_dim=12, architectures=["LlamaForCausalLM"])
    for name, bias in (("right", True), ("wrong", False)):
        (tmp_path / f"{name}.json").write_text(json.dumps({**config, "attention_bias": bias}))
    right, wrong = (load(tmp_path / f"{name}.json") for name in ("right", "wrong"))
    assert verify(right, ["transformers"]).ok
    misread = replace(wrong, raw=right.raw, origin=right.origin)
    paths = {row.path for row in verify(misread, ["transformers"]).failures}
    assert "model.layers.*.self_attn.q_proj.bias" in paths
    changed = load(tmp_path / "right.json", {"L": 3})
    assert verify(changed, ["transformers"]).ok  # no file says so: it is written back


# A wrong formula never passes: each formula of each leaf class doubled, in turn.

BY_NAME = {leaf.__name__: leaf for leaf in LEAVES}
DOUBLED = tomllib.loads((DATA / "doubled.toml").read_text("utf-8"))
REFUTED = [
    (BY_NAME[leaf], formula, name)
    for name, leaves in DOUBLED["refuted"].items()
    for leaf, formulas in leaves.items()
    for formula in formulas
]
ORACLE_OF = {"weights": "parameters", "operations": "flops", "saved": "saved", "cache": "cache"}
QUANTITY_OF = {"weights": "params", "operations": "flops", "saved": "saved", "cache": "cache"}


def doubled(leaf: type[Leaf], formula: str) -> Callable[..., Any]:
    """The formula, twice as large."""
    original = getattr(leaf, formula)

    def tampered(self: Leaf, *work: Workload) -> Any:
        value = original(self, *work)
        if formula == "weights":
            return tuple(Weight(weight.name, (2 * weight.shape[0], *weight.shape[1:])) for weight in value)
        if formula == "operations":
            return tuple(op._replace(count=2 * op.count) if isinstance(op, MatMul) else op for op in value)
        return Cache(*(2 * term for term in value)) if formula == "cache" else 2 * value

    return tampered


def test_every_formula_of_every_leaf_is_proved_or_known_to_be_a_model() -> None:
    there = set()
    for leaf, formula in product(LEAVES, ORACLE_OF):  # of its own, or of a core that is no leaf by itself
        has = next(cls for cls in leaf.__mro__ if formula in vars(cls))
        if has is not Leaf:
            there.add((leaf, formula))
    beyond = {key: {BY_NAME[name] for name in names.split()} for key, names in DOUBLED["unrefuted"].items()}
    left = {figure for figure in there if figure[0] in beyond["no_module"] or figure[0] in beyond.get(figure[1], ())}
    assert {(leaf, formula) for leaf, formula, _ in REFUTED} == there - left


@pytest.mark.drawn(5)
@pytest.mark.parametrize(("leaf", "formula", "name"), REFUTED, ids=lambda value: getattr(value, "__name__", value))
def test_a_tampered_formula_fails_at_its_path(
    leaf: type[Leaf], formula: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle, quantity = ORACLE_OF[formula], QUANTITY_OF[formula]
    ledger = tiny(name).ledger(2, 5, keep_scores=True)
    guilty = [e for e in ledger if isinstance(e.leaf, leaf) and getattr(e, quantity)]
    paths = {path for entry in guilty for path in module_paths(entry)}
    assert paths
    monkeypatch.setattr(leaf, formula, doubled(leaf, formula))
    verdict = verify(tiny(name), [oracle])
    assert not verdict.ok
    failing = {path for path, what in failed(verdict) if what.startswith(quantity) and path}
    assert failing and failing <= paths, "a part that was not touched differs"
    if oracle != "saved":  # where some parts are only modelled
        assert failing == paths


def test_a_formula_that_is_wrong_at_one_size_only_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    original = AttentionCore.operations
    wrong = lambda self, work: original(self, work._replace(tokens=work.tokens + 1 - 1 if work.tokens != 5 else 6))  # noqa: E731
    monkeypatch.setattr(AttentionCore, "operations", wrong)
    verdict = verify(tiny("llama"), lengths="points")
    assert {row.where for row in verdict.failures} == {"B = 3, T = 5"}


def test_a_weight_of_another_shape_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Linear.weights
    monkeypatch.setattr(
        Linear, "weights", lambda self: tuple(Weight(w.name, w.shape[::-1]) for w in original(self))
    )  # the same number of elements
    verdict = verify(tiny("llama"), ["parameters"])
    shapes = {row.path: (row.predicted, row.measured) for row in verdict.failures}
    assert shapes["layers.0.attention.k.weight"] == ("(32, 16)", "(16, 32)")
    assert {row.quantity for row in verdict.failures} == {"shape"}


# The coverage audit.


def test_fused_attention_under_fvcore_fails_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(macs, "tracing", lambda **forms: mode(static=True))
    verdict = verify(tiny("llama"), ["fvcore"])
    assert not verdict.ok
    assert ("layers.0.attention.core", "aten::scaled_dot_product_attention not counted") in failed(verdict)


def test_no_operator_that_multiplies_matrices_is_free() -> None:
    free = {name for group in ZERO_COST.values() for name in group}
    multiplying = "mm bmm addmm baddbmm matmul linear einsum conv1d convolution scaled_dot_product_attention lstm gru"
    assert not free & set(multiplying.split())
    assert costs_nothing("aten::relu_") and not costs_nothing("aten::_convolution") and not costs_nothing("mine::add")


@pytest.mark.parametrize("name", FORMS)
def test_every_activation_runs_free_operators_alone(name: str) -> None:
    """Forward and backward."""
    x = torch.randn(3, requires_grad=True)
    assert not count(nn.Identity(), lambda: FORMS[name](x).sum().backward()).uncounted


class Custom(nn.Module):
    """Attention in one fused call, as PyTorch's counter sees it on the CPU."""

    def forward(self, x: Any) -> Any:
        return nn.functional.scaled_dot_product_attention(x, x, x)


def test_fused_attention_on_the_cpu_is_not_counted_by_pytorch_either_and_named() -> None:
    net = Custom()
    with torch.no_grad():
        counter = count(net, lambda: net(torch.zeros(1, 2, 3, 4)))
    assert sum(counter.by_module.values()) == 0
    uncounted = [name for names in counter.uncounted.values() for name in names]
    assert uncounted == ["aten::_scaled_dot_product_flash_attention_for_cpu"]


# Symbols, points, and what a trace may not do.


class Fixed(nn.Module):
    """Takes another way at five tokens."""

    def forward(self, ids: Any) -> Any:
        return ids + 1 if ids.shape[1] == 5 else ids


def id_symbols(tokens: int) -> Symbols:
    ids = torch.zeros(3, tokens, dtype=torch.long, device="meta")
    return Symbols((ids,), ((SymbolicSize(B, 1), SymbolicSize(T, 1)),))


def test_a_trace_that_fixes_a_size_is_refused() -> None:
    symbols = id_symbols(5)
    with symbols.mode:
        Fixed()(*symbols.inputs)
    with pytest.raises(NotForAll, match="only where T = 5"):
        symbols.domain()


def test_equal_hints_are_not_equal_sizes() -> None:
    symbols = id_symbols(3)
    with symbols.mode:
        (ids,) = symbols.inputs
        assert symbols.read(ids.numel()) == B * T
    assert symbols.domain() == "all B, T ≥ 2"


def test_points_when_asked_for_and_when_the_trace_allows_no_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    points = verify(tiny("llama"), ["flops"], lengths="points")
    assert points.ok and len(where(points, "flops", "FlopCounterMode")) == 5
    assert {tokens % 2 for tokens in (1, 2, 3, 5, 8)} == {0, 1}

    def refuse(self: Symbols) -> str:
        raise NotForAll("the trace holds only where T = 5")

    monkeypatch.setattr(Symbols, "domain", refuse)
    fallen = verify(tiny("llama"), ["flops"])
    assert fallen.ok and len(where(fallen, "flops", "FlopCounterMode")) == 5
    assert any("only where T = 5" in note for note in fallen.notes)
    with pytest.raises(NotForAll):
        verify(tiny("llama"), ["flops"], lengths="symbolic")


def test_fakes_know_results_as_pytorch_computes_them() -> None:
    def results(fakes: Any, *tensors: Any) -> list[object]:
        with fakes:
            a, b = map(fakes.from_tensor, tensors)
            x = (a + b).float()
            values = [a + b, a * b, x / 3, x.sin(), 2.0**x, x.roll(1, -1), x.mean(-1, True), x.flatten()]
            return [(value.shape, value.stride(), value.dtype) for value in values]

    x = torch.ones(2, 3, 5)
    for pair in product([x, x.mT.contiguous().mT, x[:, :1], x[0, 0], x[..., :1], x.long(), x.int()], repeat=2):
        assert results(Fakes(), *pair) == results(FakeTensorMode(), *pair)
    with pytest.raises(RuntimeError, match="broadcast"):
        results(Fakes(), x, x.mT)
    symbols = SizeSymbols({}, (T,))
    assert symbols.symbols["T"] >= 5
    with pytest.raises(NotForAll, match="only where T >= 5"):
        symbols.conditions()
    with pytest.raises(RuntimeError), symbols.mode:
        torch.empty(symbols.symbols["T"], device="meta").unflatten(0, (-1, 2))


def test_every_layer_is_counted_at_one_point_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(tiny("gemma3"))
    assert {name.split(".")[1] for name, _ in subject.thin_net.named_modules() if name.startswith("layers.")} == {
        "0",
        "2",
    }
    counted: list[int] = []
    original = macs.count

    def counting(net: nn.Module, inputs: Any) -> Any:
        counted.append(len(net.layers))  # type: ignore[arg-type]
        return original(net, inputs)

    monkeypatch.setattr(macs, "count", counting)
    verify(tiny("gemma3"), ["fvcore"])
    assert counted == [3 if i == EVERY_LAYER_AT else 2 for i in range(5)]


def test_an_odd_layer_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(tiny("llama"))
    subject.net.layers[1].attention.q = subject.net.layers[1].attention.k  # type: ignore[index,union-attr]
    rows = list(import_module("txcalc.verification.parameters").rows(subject))
    assert "layers.1.attention.q" in {row.path for row in rows if not row.equal}


def test_saved_as_published_is_what_dropout_keeps() -> None:
    """A GPT layer with dropout, in 16 bits, keeps s·b·h·(34 + 5·a·s/h) bytes: Korthikanti et al. 2022, equation 1."""
    width, heads = 32, 4

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.qkvo = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def drop(self, x: Any) -> Any:
            return torch.native_dropout(x, 0.1, True)[0]  # the GPU's: its mask is a byte an element

        def forward(self, x: Any) -> Any:
            y = self.norms[0](x)
            q, k, v = (m(y).unflatten(2, (heads, -1)).transpose(1, 2) for m in list(self.qkvo)[:3])
            shares = self.drop((q @ k.transpose(2, 3)).softmax(-1))
            x = x + self.drop(self.qkvo[3]((shares @ v).transpose(1, 2).flatten(2)))
            return x + self.drop(self.down(nn.functional.gelu(self.up(self.norms[1](x)))))

    with torch.device("meta"):
        layer = Layer().to(torch.bfloat16)
        placeholder = torch.zeros(3, 5, width, dtype=torch.bfloat16)
    symbols = Symbols((placeholder,), ((SymbolicSize(B, 1), SymbolicSize(T, 1), None),))
    sizes: dict[int, Any] = {}
    holding = []

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        holding.append(storage)
        sizes[storage._cdata] = symbols.read(storage.nbytes())
        return tensor

    with symbols.mode, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(symbols.inputs[0].requires_grad_())
    kept = (
        sum(size for size in sizes.values() if not isinstance(size, int)) - 4 * 2 * 2 * B * T
    )  # two norms' statistics, float32
    assert (kept - B * T * width * 34 - 5 * heads * T**2 * B).expand() == 0


def test_the_published_count_beside_ours_term_by_term() -> None:
    model = load("gpt2")
    ledger = model.ledger(2, 64, keep_scores=True)
    comparison = korthikanti(model, ledger)
    s, b, h, a, layers = 64, 2, 768, 12, 12
    assert comparison.theirs == layers * (34 * s * b * h + 5 * a * s * s * b)
    assert comparison.ours == 2 * sum(entry.saved for entry in ledger if entry.path.startswith("layers"))
    assert comparison.theirs - comparison.ours == layers * (2 * s * b * h + 3 * a * s * s * b)
    assert all(term.why for term in comparison.terms if term.theirs != term.ours)
    assert not any(term.why for term in comparison.terms if term.theirs == term.ours)
    for name in ("llama-3.1-8b", "mamba-130m", "t5-small"):
        with pytest.raises(InputError, match="korthikanti"):
            korthikanti(load(name), load(name).ledger(2, 64, keep_scores=True))


# Devices and depth.


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["llama", "mixtral", "jamba"])
def test_on_the_cpu_the_modules_are_real(name: str) -> None:
    verdict = verify(tiny(name), ["parameters", "fvcore", "flops", "cache", "training"], device="cpu")
    assert failed(verdict) == []
    assert len(where(verdict, "flops", "FlopCounterMode")) == 5


def test_fewer_layers_keep_the_pattern_and_it_is_said() -> None:
    verdict = verify(shorten(load("deepseek-v3"), 4), ["parameters"])
    paths = {row.path for row in verdict.rows}
    assert verdict.ok and {"layers.0.feed_forward.up", "layers.3.experts.routed"} <= paths
    assert verdict.notes == ["only the first 4 of 61 layers, as the layer pattern orders them"]
    for number in (0, 62):
        with pytest.raises(InputError, match="--layers"):
            shorten(load("deepseek-v3"), number)


def test_too_little_memory_says_how_many_layers_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("gpt2")
    layer = 4 * model.ledger().at("layers.0").total("params")
    rest = 4 * model.params - 12 * layer
    monkeypatch.setattr(device, "free_bytes", lambda _: device.SPARE + rest + 3 * layer)
    with pytest.raises(Refuted, match=r"its first 3 layers of 12 fit \(--layers 3\)"):
        verify(model, device="cpu")
    assert verify(shorten(tiny("llama"), 1), ["parameters"], device="cpu").ok
    room = device.SPARE + rest + 3 * layer
    assert "first 3 layers of 12" in str(device.too_large(model, "cpu", torch.float32, 2 * room, working=True))
    monkeypatch.setattr(device, "free_bytes", lambda _: 0)
    with pytest.raises(Refuted, match="no layer fits"):
        verify(model, device="cpu")


def test_running_out_of_memory_says_how_many_layers_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(subject: Subject) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(macs, "rows", full)
    with pytest.raises(Refuted, match=r"layers of 2 fit|no layer fits"):
        verify(tiny("llama"), device="cpu")


def test_what_ran_out_of_memory_is_let_go_before_what_is_free_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    nets: list[weakref.ref[nn.Module]] = []
    alive: list[bool] = []

    def full(subject: Subject) -> Any:
        nets.append(weakref.ref(subject.net))
        raise RuntimeError("CUDA error: out of memory")

    def free(_: str) -> int:
        alive.append(bool(nets) and nets[0]() is not None)
        return 2**40

    monkeypatch.setattr(macs, "rows", full)
    monkeypatch.setattr(device, "free_bytes", free)
    with pytest.raises(Refuted, match="of which half must be left to compute: its first 2 layers of 2 fit"):
        verify(tiny("llama"), device="cpu")
    assert nets and alive == [False, False]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("where", ["meta", "cpu"])
def test_a_table_of_few_positions_is_not_run_past(rows: int, where: str) -> None:
    oracles = ["flops", "cache", "bytes", *(["fvcore", "memory", "saved"] if where == "meta" else [])]
    verdict = verify(load(f"D=12 L=1 h=2 F=8 V=5 learned={rows} window=3"), oracles, device=where)
    assert failed(verdict) == []
    assert where == "cpu" or ("all B ≥ 2" if rows == 1 else "all B, T ≥ 2") in {row.where for row in verdict.rows}


def test_work_that_backward_does_again_has_numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA, where backward runs in a thread with a counter of its own."""
    number = torch._C._autograd._get_sequence_nr
    monkeypatch.setattr(
        torch._C._autograd, "_get_sequence_nr", lambda: number() if torch._C._current_autograd_node() is None else 1
    )
    verdict = verify(load("D=8 L=12 h=2 F=16 V=10"), ["training"], device="cpu")
    assert failed(verdict) == [] and any("blocks recomputed" in row.quantity for row in verdict.rows)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "source",
    [
        "D=9 L=1 h=3 F=4 V=10",  # heads of an odd width, of which the last element is not rotated
        "D=8 L=2 h=8 h_kv=2 F=4 V=10",  # heads of one element
        "D=12 L=1 h=2 F=4 V=9 h_kv=1 d_h=2",  # as many elements of a key as heads: they are no statistics
        "D=1 L=1 h=2 F=7 V=5 d_h=4",  # norms of one element
    ],
)
def test_odd_sizes_are_not_refuted(source: str) -> None:
    assert failed(verify(load(source), ["fvcore", "flops", "training", "saved", "cache"])) == []


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NoDevice) as refused:
        verify(tiny("llama"), device="cuda")
    assert refused.value.exit_code == 3
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(NoDevice, match="PyTorch finds 2"):
        verify(tiny("llama"), device="cuda:2")
    with pytest.raises(InputError, match="expected meta, cpu or cuda"):
        verify(tiny("llama"), device="abacus")
    with pytest.raises(UnknownName, match="did you mean flops"):
        verify(tiny("llama"), ["flop"])


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "name", ["gpt2", "gpt1", "bert-base", "t5-small", "mixtral-8x7b", "gemma-2-9b", "qwen3-next-80b-a3b"]
)
def test_flops_are_those_of_transformers(name: str) -> None:
    """Full width, on meta; of a model with scans the parameters alone, whose fused weights are told apart."""
    pytest.importorskip("transformers")
    verdict = verify(load(name), ["transformers"])
    assert verdict.ok, verdict.failures
    assert {row.quantity for row in verdict.rows} == ({"params"} if "next" in name else {"params", "flops"})


def test_a_wrong_formula_is_not_that_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(Linear, "operations", doubled(Linear, "operations"))
    failures = verify(load("gpt2"), ["transformers"]).failures
    assert {row.quantity for row in failures} == {"flops"}
    fused = " + ".join(f"layers.0.attention.{matrix}" for matrix in "qkv")  # its c_attn
    assert {row.path for row in failures} >= {
        "", fused, "layers.0.attention.o", "layers.0.feed_forward.up", "layers.0.feed_forward.down", "head.projection"
    }  # fmt: skip


@pytest.mark.parametrize("name", ["gpt2", "bert-base", "t5-small", "mistral-7b", "gemma-3-27b", "deepseek-v3"])
def test_masks_let_through_what_is_said(name: str) -> None:
    verdict = verify(load(name), ["mask"])
    assert verdict.ok and {row.quantity for row in verdict.rows} == {"masked flops"}


@pytest.mark.parametrize("span", [Causal, Window])
def test_a_mask_that_is_off_by_one_is_refuted(span: type[Causal], monkeypatch: pytest.MonkeyPatch) -> None:
    visible = span.visible
    monkeypatch.setattr(span, "visible", lambda self, work: visible(self, work) + work.tokens)
    assert not verify(load("gemma-3-27b"), ["mask"]).ok


def test_masks_of_chunks_let_through_what_is_said() -> None:
    assert verify(tiny("llama4"), ["mask"]).ok


# How each figure is known.


def test_every_preset_is_proved_as_it_is_now() -> None:
    lacking = {
        name: [q for q in ("params", "flops", "training flops") if how_known(load(name), q).how != "proved"]
        for name in names()
    }
    assert {name: quantities for name, quantities in lacking.items() if quantities} == {}, (
        "run: python tests/scripts/make_theorems.py --further; txcalc verify MODEL --oracle training --record"
    )


def test_a_changed_description_inherits_what_holds_for_all_sizes() -> None:
    for changes in ({}, {"L": 11}):
        gpt2 = load("gpt2", changes)
        evidence = {quantity: how_known(gpt2, quantity).how for quantity in FIGURES}
        assert evidence == {**dict.fromkeys(FIGURES, "proved"), "masked flops": "measured"}
    assert how_known(load("gpt2"), "flops_other").how == "modelled"
    assert how_known(load("mixtral-8x7b"), theorems.FUSED).how == "modelled"  # its experts are
    assert how_known(load("mixtral-8x7b"), "active") == Evidence("measured", "at 2 sizes")
    assert {how_known(load(name), "params").how for name in names()} <= MEANING.keys()


def test_a_changed_formula_inherits_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Linear, "operations", doubled(Linear, "operations"))
    assert how_known(load("gpt2"), "flops").how == "modelled"
    assert how_known(load("gpt2"), "params").how == "proved"


def test_a_changed_formula_loses_what_was_measured_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    gemma = load("gemma-2-9b")
    assert how_known(gemma, "flops with cache").how == "measured"
    monkeypatch.setattr(Linear, "operations", doubled(Linear, "operations"))
    assert how_known(gemma, "flops with cache").how == "modelled" and how_known(gemma, "cache").how == "measured"


def test_keys_of_another_stream_inherit_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cross-attention that read T keys, and not T_src, would cost the same where both are equal."""
    (memory,) = {type(entry.leaf) for entry in load("t5-small").ledger() if entry.path.endswith("cross_attention.core")}
    wrong = memory.operations
    monkeypatch.setattr(memory, "operations", lambda self, work: wrong(self, work._replace(source=work.tokens)))
    assert how_known(load("t5-small"), "flops").how == "modelled"


def test_what_is_not_shown_again_is_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the model's structures show as surely is not kept of it; nothing is known of them here."""
    path = tmp_path / "theorems.json"
    monkeypatch.setattr("txcalc.verification.store_evidence.theorems_file", lambda: path)
    monkeypatch.setattr("txcalc.verification.store_evidence.by_structure", lambda formulas, quantities: {})
    model = tiny("llama")
    store({"llama": (model, proofs(model, verify(model, ["parameters", "flops"])))})
    assert read(path)[with_numbers(model).key].extra_quantities.keys() == {"params", "flops"}
    monkeypatch.setattr(Linear, "operations", doubled(Linear, "operations"))
    store({"llama": (model, proofs(model, verify(tiny("llama"), ["flops"])))})
    assert read(path)[with_numbers(model).key].extra_quantities.keys() == {"params"}


def test_what_theorems_show_is_not_kept_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "theorems.json"
    monkeypatch.setattr("txcalc.verification.store_evidence.theorems_file", lambda: path)
    store({"llama": (tiny("llama"), proofs(tiny("llama"), verify(tiny("llama"), ["parameters", "flops"])))})
    assert read(path) == {}


def test_a_verdict_says_what_was_shown() -> None:
    points = verify(tiny("llama"), ["flops", "saved", "traffic"], lengths="points")
    assert {evidence.how for evidence in points.known.values()} == {"measured"}
    assert {row.where for row in points.rows if row.quantity == "traffic"} == {"all B, T = 61"}
    shown = verify(tiny("llama"), ["parameters", "flops", "cache"]).known
    assert shown["flops"] == Evidence("proved", "all B, T ≥ 2") and shown["params"].how == "proved"
    assert shown["cache"].how == "measured" and verify(tiny("llama"), ["other"]).ok
    code, out, _ = run("D=32 L=2 h=4 F=64 V=50", "--points", "--oracle", "flops")
    assert code == 0 and ": measured, " in out.splitlines()[0] and out.splitlines()[1] == "measured at 5 sizes: flops"


# The command.


run = Command("verify", columns=100)


def test_json_and_exit_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = run.data("D=32 L=2 h=4 F=64 V=50")
    assert answer["schema"] == "txcalc/verify/1" and answer["ok"] is True
    assert answer["rows"][0].keys() >= {"path", "quantity", "predicted", "measured", "equal", "oracle"}
    assert all(row["equal"] is True for row in answer["rows"])
    (flops,) = [row for row in answer["rows"] if row["path"] == "" and row["where"] == "all B, T ≥ 2"]
    assert flops["predicted"] == flops["measured"] == "128·B·T·(2·T + 345)"
    monkeypatch.setattr(Norm, "weights", doubled(Norm, "weights"))
    code, out, _ = run("D=32 L=2 h=4 F=64 V=50", "--oracle", "parameters", "--json")
    answer = json.loads(out)
    assert code == 1 and answer["ok"] is False
    assert {row["path"] for row in answer["rows"] if not row["equal"]} >= {"final_norm", "layers.0.attention_norm", ""}


def test_nothing_to_compare_is_no_failure() -> None:
    code, out, err = run("vit-b", "--oracle", "cache")
    assert code == 0 and out == "vit-b: nothing to compare\n" and "keeps no cache" in err


@pytest.mark.parametrize("package", ["torch", "fvcore"])
@pytest.mark.parametrize("command", [["verify", "gpt2"], ["trace", "model.py:build"]])
def test_what_is_not_installed_is_said_with_the_line_that_installs_it(package: str, command: list[str]) -> None:
    absent = f"import sys; sys.modules[{package!r}] = None; sys.argv[1:] = {command!r}"
    script = f"{absent}; from txcalc.cli import entry; entry()"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer.returncode == 3 and answer.stdout == ""
    assert f"needs {package}, which is not installed (pip install 'txcalc[verify]')" in answer.stderr
    assert "Traceback" not in answer.stderr
