"""Theorems: proved for every size, inherited by every model of the structure, and by none where that was not shown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import make_theorems
import pytest
from command import Command
from evidence_of import config, how_known, inherited
from extras import needs
from paths import HF, stored_rows
from tiny import TINY
from typer.testing import CliRunner

from txcalc import load, show
from txcalc.cli import app
from txcalc.errors import InputError
from txcalc.evidence import splits, store, theorems
from txcalc.evidence.domains import common, covers, everywhere
from txcalc.evidence.formulas import Formulas
from txcalc.evidence.known import Evidence
from txcalc.evidence.structures import with_numbers
from txcalc.evidence.theorems import Condition, QuantityEvidence, Size, Theorem, Unit, inheritance, units
from txcalc.ledger import Ledger, walk
from txcalc.model import Model
from txcalc.num import ceil_div, minimum
from txcalc.parts import spans
from txcalc.parts.attention import Attention
from txcalc.parts.block import Block
from txcalc.parts.feedforward import Experts
from txcalc.parts.latent import LatentCore
from txcalc.parts.linear import Linear
from txcalc.parts.mixers.pieces import Pieces
from txcalc.parts.norm import Norm, NormOptions
from txcalc.parts.options import ACTIVATIONS
from txcalc.parts.part import Cache, Workload
from txcalc.parts.spans import Window, Windowed
from txcalc.parts.tower import TowerStack
from txcalc.sources import build
from txcalc.sources.presets import names

TOY = "D=96 L=3 h=6 h_kv=2 F=200 V=1000"


pytestmark = pytest.mark.usefixtures("own_theorems")


# Who inherits.


@pytest.mark.slow
@pytest.mark.parametrize("number", [20, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_small_configs_are_shown_with_their_marks(number: int, draw: Random) -> None:
    """Also where a theorem is looked for in vain: a picture's size that listed leaves fix is part of the structure."""
    rows = [*json.loads((HF / "small.json").read_text()).items()]
    for name, entry in draw.sample(rows, min(number, len(rows))):
        for _, model in make_theorems.read("small", name, entry["config"]):
            assert show(model).params.total


@pytest.mark.slow
def test_every_preset_inherits() -> None:
    lacking = [name for name in names() if inherited(load(name), "flops") is None]
    assert lacking == [], "run: python tests/scripts/make_theorems.py"


@pytest.mark.slow
def test_configs_that_transformers_makes_by_itself_inherit(draw: Random) -> None:
    """Each of their classes that is read; a tenth of the types, drawn by the seed. What is not read is refused, and
    the reference has no modules for the towers of multimodal models. Voxtral's takes no primes."""
    transformers = pytest.importorskip("transformers")
    kinds = [*draw.sample(sorted(transformers.CONFIG_MAPPING), 45), "voxtral"]
    lacking = [
        name
        for name, described in make_theorems.defaults(kinds)
        for _, model in make_theorems.read("", name, described)
        if any(map(theorems.missing, units(model))) and not isinstance(model.root, TowerStack)
    ]
    assert lacking == [], "run: python tests/scripts/make_theorems.py"


@pytest.mark.parametrize("changes", [{"L": 7}, {"F": 1000}, {"V": 99}, {"h": 64}, {"d_h": 64}, {"D": 640}])
def test_another_size_of_the_same_structure_inherits(changes: dict[str, int]) -> None:
    model = load("llama-3.1-8b", changes)
    assert inherited(model, "flops") == ("proved", "all B, T ≥ 1") and inherited(model, "params") == ("proved", "")
    assert how_known(model, "flops") == Evidence("proved", "all B, T ≥ 1")


@pytest.mark.parametrize(
    "model",
    [
        *(build(TINY[name], name) for name in ("esm", "gemma3n", "gemma4")),
        build({**TINY["esm"], "n_layers": 7}, "esm"),
        config("default-gemma3n-text"),
    ],
    ids=str,
)
def test_a_figure_that_depends_on_the_number_of_layers_is_proved_for_every_number(model: Model) -> None:
    """Per-layer embeddings, and a regression on the heads of all layers."""
    assert how_known(model, "params") == Evidence("proved", "")
    assert how_known(model, "flops") == Evidence("proved", "all B, T ≥ 1")
    assert all(evidence.how == "proved" for evidence in (show(model).known[name] for name in ("params", "flops")))


def test_equal_sizes_and_multiples_are_structure() -> None:
    grouped, alike, single = (units(load(TOY, {"h_kv": n}))[1].key for n in (2, 6, 1))
    assert len({grouped, alike, single}) == 3
    assert units(load(TOY, {"h": 12}))[1].key == grouped and units(load(TOY, {"h_kv": 3}))[1].key == grouped


@pytest.mark.parametrize(("form", "key"), [("masked-lm", "activation"), ("classifier", "transform")])
def test_an_activation_that_does_nothing_is_not_one_that_is_absent(form: str, key: str) -> None:
    """A layer of the head without one, and a head without that layer, or with its feed-forward's activation."""
    bert = {**TINY["bert"], "head": {"form": form} | ({"classes": 3} if form == "classifier" else {})}
    plain = build(bert, "absent")
    assert units(plain)[0].key != units(plain.set({f"head.{key}": "none"}))[0].key


def test_a_structure_has_its_own_theorem() -> None:
    assert {unit.name for unit in units(load("gemma-3-27b"))} == {"frame", "layer local", "layer global"}
    (whole,) = units(load("t5-small"))
    assert whole.name == "whole" and splits.components(whole) == []  # no sum of its last stack
    keys = {unit.key for name in ("gpt2", "llama-3.1-8b", "mixtral-8x7b") for unit in units(load(name))}
    assert len(keys) == 6


def test_what_is_measured_of_a_model_stands_in_for_its_structures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theorems of structures first, what was measured of the model at its own sizes next, then a citation."""
    gemma, gpt3 = load("gemma-2-9b"), load("gpt3-175b")
    assert inherited(gemma, "flops") == ("proved", "all B, T ≥ 1")
    assert how_known(gemma, "flops with cache") == Evidence("measured", "at 8 sizes")
    assert inherited(load("gemma-2-9b", {"F": 1000}), "flops with cache") is None
    assert how_known(gpt3, "params").how == "proved"
    monkeypatch.setattr(theorems, "theorems", lambda: store.TheoremFiles({}))
    assert how_known(gpt3, "params") == Evidence("published", gpt3.description.source)
    assert how_known(gemma, "flops") == how_known(load(TOY), "params") == Evidence("modelled", "")


def test_a_total_without_one_of_its_leaves_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    total = Ledger.total
    monkeypatch.setattr(Ledger, "total", lambda self, name: total(self.where(lambda leaf: leaf.kind != "head"), name))
    assert {show(TOY).known[name].how for name in ("params", "active", "flops")} == {"modelled"}


def test_parameters_other_than_a_preset_states_are_not_proved() -> None:
    how = [show(build({**load(TOY).raw, "params": n}, "toy")).known["params"].how for n in (load(TOY).params, 12_345)]
    assert how == ["proved", "modelled"]


@pytest.mark.parametrize(("name", "changes"), [("gemma-3-4b", {}), (TOY, {"norm.place": "after", "window": 50})])
def test_a_layer_without_a_norm_is_not_proved(name: str, changes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is the sum of smaller structures, which are built in the same way."""
    model, children = load(name, changes), Block.children
    assert inherited(model, "params") is not None
    monkeypatch.setattr(Block, "children", lambda self: (c for c in children(self) if not c.name.endswith("post_norm")))
    assert inherited(load(name, changes), "params") is None


def test_windows_that_are_taken_for_full_ones_have_lost_their_theorem(monkeypatch: pytest.MonkeyPatch) -> None:
    swin = config("swin-tiny")
    assert inherited(swin, "flops") is not None
    monkeypatch.setattr(spans, "window_pieces", lambda n, width: ((ceil_div(n, width), width),))
    assert inherited(swin, "flops") is None


def test_a_window_that_is_wrong_for_long_prompts_alone_has_lost_its_theorem(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt is right below the window, which every short one is: so the figures of a long one are asked for too."""
    monkeypatch.setattr(Windowed, "keys", lambda self, work: minimum(work.past + work.tokens, self.window))
    assert inherited(load("mistral-7b", {"attention.window": 4096}), "flops") is None
    assert inherited(load("gpt2"), "flops") is not None


def test_training_saved_decoding_cache_and_masks_are_inherited_too() -> None:
    """By a user's own sizes, windows and contexts; each by its own formula."""
    model = load("mistral-7b", {"F": 1000, "attention.window": 100})
    later = ("proved", "all B, T, past ≥ 1")
    assert inherited(model, "training flops") == ("proved", "all B, T ≥ 1")
    for saved in (theorems.FUSED, theorems.KEPT):
        assert inherited(model, saved) == ("proved", "all B, T ≥ 1")
    assert inherited(model, "cache") == ("proved", "all B, T ≥ 1, past ≥ 0")
    assert inherited(model, "flops with cache") == later
    assert inherited(model, "masked flops") == ("measured", "at 73 sizes around windows of 2, 3, 5, 8")


def test_a_changed_formula_of_the_cache_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Windowed.cache
    monkeypatch.setattr(Windowed, "cache", lambda self, work, width: before(self, work, width)._replace(elements=width))
    model = load("mistral-7b", {"F": 1000})
    assert inherited(model, "cache") is None and inherited(model, "flops with cache") is not None
    assert theorems.obstacle(units(model)[1]) == "" != theorems.own_evidence(units(model)[1])[1]  # `prove` runs again


@pytest.mark.slow
def test_the_orders_of_a_window_leave_no_size_out() -> None:
    """Each of W, past and T falls into one order, and gives every letter of it a value of 2 or more; each prompt is of
    one order or more."""
    pytest.importorskip("torch")
    from txcalc.verification.extra_quantities import orders

    passes, prompts = Counter[tuple[int, int, int]](), set[tuple[int, int]]()
    for order in orders(window=True):
        letters = order.letters(window=True)
        sizes = sympy.lambdify(letters, (order.window, order.past, order.tokens))
        triples = {sizes(*values) for values in product(range(2, 18), repeat=len(letters))}
        passes.update(triples)
        prompts |= {(window, past) for window, past, _ in triples}
    assert {passes[sizes] for sizes in product(range(2, 8), range(1, 8), range(1, 8))} == {1}
    assert prompts >= set(product(range(2, 8), range(1, 8)))


@pytest.mark.slow
def test_the_cases_of_a_length_leave_none_out() -> None:
    """Where tokens are pooled, so many into one, each T falls into one case: n groups and a rest, or less than one."""
    pytest.importorskip("torch")
    from txcalc.verification.sizes import Case, cases

    (unit,) = (unit for unit in units(config("deepseek-v4-pro")) if unit.name == "layer pooled")
    rate, tokens = sympy.symbols("compressed.rate T", integer=True, positive=True)
    met = Counter[tuple[int, int]]()
    for case in cases(unit):
        if "B" in case.ones:
            continue
        expressions = [1 if "T" in case.ones else case.formulas.get("T", tokens), case.formulas.get(str(rate), rate)]
        letters = sorted(set().union(*(sympy.sympify(side).free_symbols for side in expressions)), key=str)
        sizes = sympy.lambdify(letters, expressions)
        met.update(tuple(sizes(*values)) for values in product(range(2, 30), repeat=len(letters)))
    assert {met[length, pooled] for length, pooled in product(range(1, 20), range(2, 9))} == {1}
    assert cases(units(load(TOY))[0]) == [Case(), Case(("B",)), Case(("T",)), Case(("B", "T"))]


def test_other_forms_are_inherited() -> None:
    """The last logits alone, and latents that are not expanded: of the layers that have such, and of all others."""
    v3, later = load("deepseek-v3"), ("proved", "all B, T, past ≥ 1")
    forms = theorems.LAST, theorems.ABSORBED
    for some in ((forms[0],), (forms[1],), forms):
        assert inherited(v3, theorems.name_in_form("flops", *some)) == ("proved", "all B, T ≥ 1")
        assert inherited(v3, theorems.name_in_form("flops with cache", *some)) == later
    plain = load("mistral-7b")
    assert inherited(plain, theorems.name_in_form("flops", *forms)) == ("proved", "all B, T ≥ 1")
    answer = json.loads(
        CliRunner().invoke(app, "show deepseek-v3 --past 99 --mla absorbed --logits last --json").stdout
    )
    assert answer["known"]["flops"] == {"how": "proved", "where": later[1]}


def test_another_form_has_its_own_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = LatentCore.operations
    monkeypatch.setattr(
        LatentCore, "operations", lambda self, work: operations(self, work) * (2 if work.absorbed else 1)
    )
    model = load("deepseek-v3")
    assert inherited(model, "flops") is not None
    assert inherited(model, theorems.name_in_form("flops", theorems.ABSORBED)) is None


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("vit", [(10, 10)]),  # a picture of 9 patches and its class
        ("picture-reader", [(9, 9), (1, 9)]),  # its pool reads all with one query
        ("vit2trocr", [(10, 10), (7, 10), (7, 10)]),
        ("t5", [(5, 5), (7, 5), (7, 5)]),
    ],
)
def test_a_picture_is_as_long_as_it_is(name: str, lengths: list[tuple[int, int]]) -> None:
    walked = theorems.ledger(build(TINY[name], name).root, 2, 7, 5)
    cores = [entry.work for entry in walked if entry.kind == "attention_core" and entry.work]
    assert [(work.tokens, work.source) for work in cores] == lengths


def shown(how: str, *domains: str) -> list[QuantityEvidence]:
    return [QuantityEvidence("", how, domain, ()) for domain in domains]


@pytest.mark.parametrize(
    ("domains", "domain"),
    [
        (["all B, T ≥ 1", "all B ≥ 1"], "all B, T ≥ 1"),
        (["all B, T ≥ 1", "all B, T ≥ 2"], "all B, T ≥ 2"),
        (["all B, T ≥ 2", "all B, T, T_src ≥ 1"], "all B, T ≥ 2, T_src ≥ 1"),
        (["all B, T, past ≥ 1", "all B ≥ 2, T ≥ 1, past ≥ 2"], "all B ≥ 2, T ≥ 1, past ≥ 2"),
        (["all B, T ≥ 2", "all B, T ≥ 1, its parts", "all B ≥ 1, its leaves"], "all B, T ≥ 2, its parts, its leaves"),
        (["nothing in it is masked"] * 2, "nothing in it is masked"),
        (["", ""], ""),
    ],
)
def test_several_proofs_hold_together_where_each_does(domains: list[str], domain: str) -> None:
    assert common(domains) == domain and theorems.weakest(shown("proved", *domains)) == ("proved", domain)
    assert everywhere(domain) == (domain in ("", "all B, T ≥ 1", "nothing in it is masked"))
    measured = shown("measured", "at 73 sizes around windows of 2, 3, 5, 8", "at 11 sizes")
    assert theorems.weakest([*shown("proved", *domains), *measured]) == ("measured", "at 11 sizes")  # the fewest


def test_a_domain_bounds_each_length_by_itself() -> None:
    for letter, length in zip(("B", "T", "past", "T_src"), work := Workload(5, 6, 7, 8), strict=False):
        assert [covers(f"all {letter} ≥ {bound}", work) for bound in (length, length + 1)] == [True, False]


# Structures that are the sum of smaller ones.


def combined() -> tuple[Model, Unit]:
    """A model whose layer has no theorem, though each of its parts has."""
    model = load(TOY, {"attention.qk_norm": "width", "feed_forward.bias": True, "feed_forward.activation": "relu6"})
    return model, next(unit for unit in units(model) if unit.name == "layer")


def test_a_layer_inherits_from_its_parts_where_it_has_no_theorem_of_its_own() -> None:
    model, layer = combined()
    assert theorems.obstacle(layer) == "it has no theorem yet"
    borne = {part.name for part in theorems.bearing(layer)}
    assert borne == {"part attention", "part feed_forward", "leaf rms_norm", "leaf relu6"}
    evidence = theorems.inheritance(model)
    assert evidence["params"] == ("proved", "") and evidence["flops"] == ("proved", f"all B, T ≥ 1, {theorems.APART}")
    assert not {"training flops", "cache", theorems.FUSED} & {*evidence}


@pytest.mark.parametrize("lost", [0, 1])
def test_a_layer_that_is_more_than_the_sum_of_its_parts_inherits_nothing(
    lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    components = splits.components
    monkeypatch.setattr(splits, "components", lambda unit: [p for i, p in enumerate(components(unit)) if i != lost])
    model, layer = combined()
    assert theorems.bearing(layer) == [] and theorems.inheritance(model) == {}


@pytest.mark.slow
def test_the_sum_is_what_the_module_is() -> None:
    needs("torch")
    _, layer = combined()
    assert unequal(layer) == set()


def test_parts_whose_formulas_changed_bear_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    flops = Linear.operations
    monkeypatch.setattr(Linear, "operations", lambda self, work: flops(self, work._replace(batch=work.batch + 1)))
    assert theorems.bearing(combined()[1]) == []


@pytest.mark.parametrize("form", ["relu", "none"])
def test_every_other_activation_is_asked_for_by_the_key_of_its_structure(form: str) -> None:
    def layer(active: str) -> Unit:
        model = load(TOY, {"feed_forward.gated": False, "feed_forward.activation": active})
        return next(unit for unit in units(model) if unit.name == "layer")

    by_form = {active: layer(active).key for active in ACTIVATIONS if active != form}
    assert len({*by_form.values()}) == len(ACTIVATIONS) - 1
    for key in by_form.values():
        ((piece, single_leaf),) = splits.candidates(layer(form), {key})
        assert piece.key == key and single_leaf.name == f"leaf {form}"


@pytest.mark.parametrize("changes", [{"vision.image": 256}, {"vision.patch": 8}])
def test_pictures_of_another_size_inherit(changes: dict[str, int]) -> None:
    assert inherited(load("vit-b", changes), "flops") == ("proved", "all B ≥ 1")


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"at": [0, 49, 1]}, (2, 49, 5)),
        ({"at": [1, -1, 4, 3]}, (2, 6, 5)),
        ({"at": "source", "shared": True}, (1, 5, 5)),
        ({"keys": [2, 1, 3]}, (2, 7, 5)),
        ({"keys": "batch"}, (1, 2, 2)),
    ],
)
def test_where_a_leaf_works(options: dict[str, Any], place: tuple[int, int, int]) -> None:
    assert splits.workload_at(splits.ANYWHERE | options, 2, 7, 5) == place
    piece = {"name": "a", "kind": "other", "times": 1, "runs": 1, "form": "linear", "sizes": [3, 4], "bias": False}
    work = Workload(2, 7, 0, 5)
    if options.get("keys") != "batch":
        (entry,) = walk(Pieces(pieces=(piece | {"groups": 1} | splits.ANYWHERE | options,)), work)
        assert entry.flops == 2 * place[0] * place[1] * 3 * 4


def test_sizes_outside_the_conditions_inherit_nothing() -> None:
    (unit, *_) = units(load(TOY))
    at_least = Condition(Size(((1, ("d_model",)), (-1, ("vocab_size",)))), ">=")
    kept = Theorem("frame", {q: theorems.digest(unit, q) for q in theorems.PROVED}, "all B, T ≥ 1", (at_least,))
    evidence = {
        "cache": QuantityEvidence("1", "measured", "B = 2", ()),
        "masked flops": QuantityEvidence("2", "proved", "all", (at_least,)),
    }
    for path, quantities in ((theorems.user_file().with_name("one.json"), {}), (theorems.user_file(), evidence)):
        theorems.write(path, {"x": kept._replace(extra_quantities=quantities)}, {})
        assert theorems.read(path) == {"x": kept._replace(extra_quantities=quantities)} and "[]" not in path.read_text()
    theorems.user_file().unlink()
    theorems.write(theorems.user_file(), {units(load(TOY, {"norm.form": "layer"}))[0].key: kept}, {})
    assert str(at_least) == "d_model + -1·vocab_size ≥ 0" and not at_least.holds(unit.values)
    assert at_least.holds({"d_model": 5, "vocab_size": 5})
    assert theorems.read(theorems.user_file()).popitem()[1] == kept


ENTRY = {"name": "x", "digests": {}, "domain": "all", "conditions": [], "checksum": ""}


@pytest.mark.parametrize(
    "entries",
    [
        "[]", "{", '{"theorems": {}}', "\0", {"a": {}}, {"a": ENTRY | {"digests": {"speed": "1"}}},
        {"a": ENTRY | {"conditions": [[[[1, ["D"]]], "<"]]}},
        {"a": ENTRY | {"further": {"flops": {"how": "certain", "digest": "1", "where": ""}}}},
    ],
)  # fmt: skip
def test_a_file_of_the_user_s_that_holds_something_else_is_a_note(entries: Any) -> None:
    """It is not used; in a file of the package it is a fault."""
    path = theorems.user_file()
    path.parent.mkdir(parents=True)
    path.write_text(entries if isinstance(entries, str) else json.dumps({"schema": store.SCHEMA, "theorems": entries}))
    assert inherited(load(TOY), "flops") is not None
    assert "your own theorems are not used" in " ".join(CliRunner().invoke(app, ["show", TOY]).output.split())
    with pytest.raises(InputError, match="holds no theorems"):
        theorems.read(path)


def test_the_user_s_theorems_of_an_earlier_version_are_not_used_and_written_over() -> None:
    path = theorems.user_file()
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"schema": store.EARLIER, "theorems": {"a": {"name": "x"}}}))
    assert theorems.theorems().notes == () and theorems.read(path) == {}
    theorems.write(path, {"x": Theorem("frame", {}, "", ())}, {})
    assert theorems.read(path).keys() == {"x"}


def test_a_theorem_of_the_package_that_says_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "theorems.json"
    path.write_text(theorems.theorems_file().read_text("utf-8").replace('"how": "proved"', '"how": "certain"'), "utf-8")
    monkeypatch.setattr(store, "theorems_file", lambda: path)
    with pytest.raises(InputError, match="known how: 'certain'"):
        inherited(load("mistral-7b"), "flops")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert theorems.user_file() == Path.home() / ".local" / "share" / "txcalc" / "theorems.json"


def test_an_entry_that_was_edited_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured made proved, another domain, a condition or a digest less: its checksum is another."""
    (unit, *_) = units(load("mistral-7b"))[1:]
    content = json.loads(theorems.theorems_file().read_text("utf-8"))
    monkeypatch.setattr(store, "theorems_file", lambda: tmp_path / "theorems.json")

    def edited(change: Callable[[dict[str, Any]], None]) -> str:
        entry = json.loads(json.dumps(content["theorems"][unit.key]))
        change(entry)
        kept = {**content, "theorems": {**content["theorems"], unit.key: entry}}
        store.theorems_file().write_text(json.dumps(kept, ensure_ascii=False), "utf-8")
        theorems.theorems.cache_clear()
        return theorems.obstacle(unit)

    assert edited(lambda entry: None) == ""
    for change in (
        lambda entry: entry["further"]["masked flops"].update(how="proved"),
        lambda entry: entry.update(domain="all B, T ≥ 0"),
        lambda entry: entry["further"]["cache"].update(where="all B, T, past ≥ 0"),
        lambda entry: entry["conditions"].append([[[1, ["d_model"]]], "!="]),
        lambda entry: entry["further"].pop("cache"),
        lambda entry: entry.update(checksum="0"),
    ):
        assert "checksum" in edited(change)


def test_what_has_no_theorem_yet_is_sent_to_prove_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theorems, "theorems", lambda: store.TheoremFiles({}))
    output = " ".join(CliRunner().invoke(app, ["show", TOY]).output.split())
    assert "it has no theorem yet" in output and output.count("prove tries") == 1


# What is proved.

needs("torch")
sympy = pytest.importorskip("sympy")


def prove(unit: Unit, extra: bool = False) -> Any:
    """A theorem of parameters and of a prompt's FLOPs alone, or of all quantities."""
    from txcalc.verification.prove import prove as proved

    return proved(unit, extra)


def unequal(unit: Unit) -> set[str]:
    """The parts that the first of a unit's cases, all lengths 2 or more, refutes; `prove` asks the others too."""
    from txcalc.verification.extra_quantities import trace_step
    from txcalc.verification.prove import prove_at
    from txcalc.verification.sizes import Case, SizeSymbols

    rows = prove_at(unit, trace_step(unit, Case(), SizeSymbols(unit.values), backward=False))
    return {row.path for row in rows if not row.equal}


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_kept_theorem_is_proved_again(whole: bool, draw: Random) -> None:
    """One, drawn by the seed, whole each night; `python tests/scripts/make_theorems.py --again` proves all."""
    kept = {unit.key: (name, unit) for name in names() for unit in units(load(name))}
    key = draw.choice(sorted(kept))
    name, unit = kept[key]
    theorem, rows = prove(unit, extra=whole)
    assert all(row.equal for row in rows), (name, unit.name)
    before = theorems.theorems()[key]
    # Its name is that of the first model that had it.
    assert theorem._replace(extra_quantities={}, name="") == before._replace(extra_quantities={}, name=""), (
        name,
        unit.name,
    )
    assert not whole or before.extra_quantities.items() <= theorem.extra_quantities.items(), (name, unit.name)


@pytest.mark.slow
@pytest.mark.drawn(5)
@pytest.mark.parametrize(
    ("name", "part", "quantity", "domain", "measured"),
    [
        ("gemma3", "local", "masked flops", "at 73 sizes around windows of 2, 3, 5, 8", 56165824),
        ("t5", "whole", "masked flops", "at 11 sizes", 1226368),
        ("bert", "whole", "masked flops", "at 5 sizes", 471328),
        ("mixtral", "layer", "active", "at 2 sizes", 102600),
        ("deepseek-v3", "sparse", "active", "at 2 sizes", 395640),
    ],
)
def test_masks_and_active_experts_are_measured(name: str, part: str, quantity: str, domain: str, measured: int) -> None:
    from txcalc.verification.extra_quantities import prove_extra

    unit = next(unit for unit in units(build(TINY[name], name)) if unit.name.endswith(part))
    evidence, rows = prove_extra(unit, theorems.FIGURES.keys() - {quantity})
    assert {name: shown_as[1:3] for name, shown_as in evidence.items()} == {quantity: ("measured", domain)}
    assert all(row.equal for row in rows) and sum(row.measured for row in rows) == measured


def off_by_one(self: Window, work: Any, width: Any) -> Any:
    tokens = minimum(work.keys, self.window - 1)  # as many as a later query sees, not as many as are kept
    return Cache(0, width * self.window, width * tokens)


def without_window(self: Window, work: Any) -> Any:
    return work.keys


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "wrong", "quantity"), [("cache", off_by_one, "cache"), ("keys", without_window, "flops with cache")]
)
def test_a_window_off_by_one_is_refuted_by_name(
    method: str, wrong: Any, quantity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from txcalc.verification.extra_quantities import orders, prove_passes

    (unit,) = (unit for unit in units(load("mistral-7b")) if unit.name != "frame")
    monkeypatch.setattr(Window, method, wrong)
    rows, _ = prove_passes(unit, orders(window=True)[:1])
    unequal = {(row.path, row.quantity) for row in rows if not row.equal}
    assert ("layers.0.attention.core", quantity) in unequal


@pytest.mark.slow
def test_a_wrong_backward_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    from txcalc.planning import gradients
    from txcalc.verification.extra_quantities import prove_training

    monkeypatch.setitem(gradients.PASSES, "both", 2)
    _, rows = prove_training(units(load(TOY))[0])
    assert any(not row.equal for row in rows)


@pytest.mark.slow
def test_one_tensor_more_that_is_kept_is_refuted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from txcalc.verification.extra_quantities import prove_saved

    kept, unit = Norm.saved, units(load(TOY))[1]
    assert [shown.where for shown in prove_saved(unit)[0].values()] == ["all B, T ≥ 1"] * 2
    monkeypatch.setattr(Norm, "saved", lambda self, work: 2 * kept(self, work))
    quantities, rows = prove_saved(unit)
    unequal = {(row.path, row.quantity) for row in rows if not row.equal}
    assert unequal >= {("layers.0.attention_norm", quantity) for quantity in quantities} and len(quantities) == 2


def wrong_groups(self: Attention) -> Any:
    for child in UNTOUCHED[Attention](self):
        leaf = child.part
        if child.name == "k" and isinstance(leaf, Linear):  # h for h_kv
            leaf = Linear(d_in=leaf.d_in, d_out=self.n_heads * self.d_head, bias=leaf.bias)
        yield child._replace(part=leaf)


def wrong_choice(self: Experts) -> Any:
    for child in UNTOUCHED[Experts](self):
        yield child._replace(runs=self.n_experts) if child.routed else child  # E for k


UNTOUCHED: dict[Any, Any] = {Attention: Attention.children, Experts: Experts.children}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "method", "wrong", "source", "guilty"),
    [
        (Attention, "children", wrong_groups, "llama-3.1-8b", "layers.0.attention.k"),
        (Experts, "children", wrong_choice, "mixtral-8x7b", "layers.0.experts.routed"),
    ],
)
def test_a_wrong_formula_is_refuted_by_name(
    part: type[Any], method: str, wrong: Any, source: str, guilty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(source)
    assert not list(unequal(units(model)[-1]))
    monkeypatch.setattr(part, method, wrong)
    assert any(path.startswith(guilty) for path in unequal(units(model)[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1])
def test_a_module_that_costs_more_of_one_is_refuted(axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch or a length of 1, which no symbol is."""
    from txcalc.reference.linear import Linear as Module

    once = Module.forward

    def twice(self: Module, x: Any) -> Any:
        if x.shape[axis] == 1:
            once(self, x)
        return once(self, x)

    monkeypatch.setattr(Module, "forward", twice)
    _, rows = prove(units(load(TOY))[1])
    expected = {"B = 1, T = 1", ("B = 1, T ≥ 2", "T = 1, B ≥ 2")[axis]}
    assert {row.where for row in rows if not row.equal} == expected


@pytest.mark.slow
def test_a_forgotten_tie_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    (frame, _) = units(load("gpt2"))
    weights = Linear.weights
    monkeypatch.setattr(
        Linear, "weights", lambda self: weights(Linear(d_in=self.d_in, d_out=self.d_out, bias=self.bias))
    )
    assert unequal(frame) >= {"head.projection"}


@pytest.mark.slow
def test_keys_of_the_other_stream_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    cross = next(e.leaf for e in load("t5-small").ledger() if e.path.endswith("cross_attention.core"))
    operations = type(cross).operations
    monkeypatch.setattr(
        type(cross), "operations", lambda self, work: operations(self, work._replace(source=work.tokens))
    )
    assert any(path.endswith("cross_attention.core") for path in unequal(units(load("t5-small"))[0]))


@pytest.mark.slow
@pytest.mark.drawn(1000)
@pytest.mark.parametrize(("text", "true"), stored_rows("units.json", "conditions"))
def test_what_is_true_of_all_sizes(text: str, true: bool) -> None:
    from txcalc.verification.sizes import always

    a, b = sympy.symbols("a b", integer=True, positive=True)
    condition = sympy.sympify(text, locals={"a": a, "b": b, "Mod": sympy.Mod, "Max": sympy.Max})
    assert always(condition) is true


@pytest.mark.nightly
@pytest.mark.slow
def test_a_condition_becomes_part_of_the_theorem() -> None:
    """DeepSeek-V3.2's index turns a part of each head: there has to be a rest."""
    unit = next(unit for unit in units(config("deepseek-v3.2")) if unit.name == "layer dense")
    theorem, rows = prove(unit)
    assert all(row.equal for row in rows) and theorem.conditions
    assert all(condition.holds(unit.values) for condition in theorem.conditions)
    narrow = {**unit.values, "latent.index_width/2": unit.values["latent.d_rope/2"] - 1}
    assert not all(condition.holds(narrow) for condition in theorem.conditions)


# The command.


run = Command("prove", columns=100)


@pytest.mark.slow
def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from txcalc.verification import prove as proofs

    monkeypatch.setattr(store, "theorems_file", lambda: Path("nowhere.json"))
    monkeypatch.setattr(proofs, "prove", partial(proofs.prove, extra=False))
    assert inherited(load(TOY), "flops") is None
    code, out, err = run(TOY)
    assert code == 0 and out.splitlines()[0] == "2 of 2 structures are proved for every size" and "written to" in err
    assert inherited(load("D=128 L=1 h=4 h_kv=2 F=72 V=50"), "flops") == ("proved", "all B, T ≥ 1")
    answer = run.data(TOY)
    assert answer["schema"] == "txcalc/prove/1" and [s["new"] for s in answer["structures"]] == [False, False]
    assert [s["how"] for s in answer["structures"]] == ["known", "known"]
    assert run(TOY)[1].splitlines()[0] == "2 of 2 structures are known for every size"
    operations = Linear.operations
    monkeypatch.setattr(Linear, "operations", lambda self, work: operations(self, work) * 2)
    code, out, err = run(TOY)
    assert code == 1 and "REFUTED" in out and "predicted" in err


def test_figures_that_are_wrong_for_numbers_alone_are_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """The formulas over letters are still those that were proved."""
    clipped = property(lambda work: work.batch * (min(work.tokens, 9999) if type(work.tokens) is int else work.tokens))
    assert run(TOY)[0] == 0
    monkeypatch.setattr(Workload, "positions", clipped)
    code, out, err = run(TOY)
    assert code == 1 and "2 of 2" in out and "its own figures are not what these formulas give" in err


@pytest.mark.slow
def test_a_proof_that_contradicts_the_package_s_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither formulas nor module have the final norm."""
    monkeypatch.setattr(NormOptions, "last", lambda self, width: None)
    code, out, err = run(TOY)
    assert code == 1 and "1 of 2" in out and "txcalc's own theorem of this structure has other formulas" in err


def test_bad_input() -> None:
    assert run()[0] == 2 and run("gpt2", "--all")[0] == 2 and run("gpt3")[0] == 2


@pytest.mark.nightly
@pytest.mark.slow
def test_the_cache_of_pooled_tokens_is_measured_around_the_ends_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    from txcalc.parts.mixers.compressed import Pool
    from txcalc.verification.extra_quantities import prove_decoding

    unit = next(u for u in theorems.units(build(TINY["compressed"], "tiny")) if u.name == "layer pooled")
    quantities, rows = prove_decoding(unit)
    assert {shown.how for shown in quantities.values()} == {"measured"} and all(row.equal for row in rows)
    right = Pool.cache
    monkeypatch.setattr(Pool, "cache", lambda self, work: right(self, work._replace(past=work.past + 1)))
    assert not all(row.equal for row in prove_decoding(unit)[1])


def test_the_digest_of_a_proof_is_of_how_often_layers_run() -> None:
    """ALBERT's layers are one that runs again: as many parameters however often."""
    once, twice = (load("albert-base-v2", {"n_layers": layers}) for layers in (6, 12))
    assert once.params == twice.params and with_numbers(once).key != with_numbers(twice).key
    assert Formulas(with_numbers(once)).digest("flops") != Formulas(with_numbers(twice)).digest("flops")
    ledger = once.ledger(1, 8)
    assert inheritance(once, ("flops",), ledger)["flops"][0] == "proved"
    assert inheritance(twice, ("flops",), ledger) == {}  # another model's figures
