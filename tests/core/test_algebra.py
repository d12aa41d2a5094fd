"""Letters stand for their numbers: what is written, read back and substituted, is the int ledger."""

from __future__ import annotations

import re
import subprocess
import sys
from fractions import Fraction
from functools import cache, partial
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from strategies import FAMILIES

from txcalc import hardware
from txcalc.errors import InputError
from txcalc.evidence.theorems import units
from txcalc.ledger import QUANTITIES, Ledger, walk
from txcalc.model import Model
from txcalc.notation import LATEX, Sum, tidy, write
from txcalc.parts.part import Workload
from txcalc.planning.gradients import passes
from txcalc.planning.layout import Layout
from txcalc.planning.machine import Machine
from txcalc.planning.training import Recipe, activations, rank_of
from txcalc.planning.training.stages import Pipeline
from txcalc.planning.training.step import StepTimer
from txcalc.sources import build, load
from txcalc.sources.presets import names
from txcalc.symbols import BY_LETTER

sympy = pytest.importorskip("sympy")
algebra = pytest.importorskip("txcalc.algebra")
textbook = pytest.importorskip("txcalc.algebra.textbook")

slow = partial(pytest.param, marks=pytest.mark.slow)

FIGURES = (*QUANTITIES, "cache_growth", "cache_constant")


def figure(ledger: Ledger, name: str) -> Any:
    if name in QUANTITIES:
        return ledger.total(name)
    return getattr(ledger.cache_terms, name.removeprefix("cache_"))


def read(text: str, symbols: set[Any]) -> Any:
    """The expression that a text says, as a reader would take it."""
    plain = text.replace("·", "*").replace("−", "-").replace("min(", "Min(").replace("⌈", "ceiling(").replace("⌉", ")")
    plain = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda match: "**" + "".join(str("⁰¹²³⁴⁵⁶⁷⁸⁹".index(c)) for c in match[0]), plain)
    placeholders = {f"x{i}": symbol for i, symbol in enumerate(symbols)}
    for place, symbol in placeholders.items():
        plain = re.sub(rf"(?<![\w]){re.escape(symbol.name)}(?![\w])", place, plain)
    return sympy.sympify(plain, locals=placeholders)


def value(formula: Sum) -> Any:
    """The expression that a tidied formula stands for."""
    total = sympy.Integer(0)
    for coefficient, powers, sums in formula:
        term = sympy.Rational(coefficient.numerator, coefficient.denominator)
        for atom, power in powers:
            term *= atom**power
        for inner in sums:
            term *= value(inner)
        total += term
    return total


def workloads(model: Model) -> list[Workload]:
    """A prefill, and where there is a cache a decode step, under every convention."""
    extra: dict[str, Any] = {"source": 5} if model.has_encoder_apart else {}
    works = [model.workload(2, 7, **extra), model.workload(1, 1, **extra, mla="absorbed", keep_scores=True)]
    if model.description.kind in ("decoder", "encoder-decoder", "audio"):
        works += [model.workload(3, 2, 5000, **extra, logits="last"), model.workload(1, 1, 9, **extra, mla="absorbed")]
    return works


def check(model: Model) -> None:
    tree = algebra.symbolic(model)
    for work in workloads(model):
        over, work_letters = algebra.over_letters(model, work)
        numbers = algebra.values({**work_letters, **tree.letters})
        ints, letters = walk(model.root, work), walk(tree.root, over)
        for name in FIGURES:
            formula = sympy.sympify(figure(letters, name))
            assert formula.free_symbols <= numbers.keys(), name
            assert formula.xreplace(numbers) == figure(ints, name), (name, work)
        for left, right in zip(ints, letters, strict=True):
            assert left.path == right.path


@cache
def one_of_each() -> list[str]:
    """Presets of the same structures have the same formulas."""
    return sorted({frozenset(unit.key for unit in units(load(name))): name for name in names()}.values())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Not where these tests, which are slow, are left out."""
    if "preset" in metafunc.fixturenames:
        metafunc.parametrize("preset", one_of_each())


@pytest.mark.slow
def test_a_preset_substituted_is_its_ledger(preset: str) -> None:
    check(load(preset))


@pytest.mark.drawn(2)
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=6)
@given(data=st.data())
def test_any_description_substituted_is_its_ledger(family: str, data: st.DataObject) -> None:
    check(build(data.draw(FAMILIES[family]), "a drawn description"))


@cache
def tidied(expression: Any) -> Sum:
    """A formula as it is written, which says what was meant: once of the many presets that have it."""
    formula = tidy(expression)
    assert sympy.expand(value(formula) - expression) == 0
    assert sympy.expand(read(write(formula), expression.free_symbols) - expression) == 0, write(formula)
    return formula


@pytest.mark.slow
@pytest.mark.drawn(3)
def test_what_is_written_says_what_was_meant(preset: str) -> None:
    model = load(preset)
    rows, letters = algebra.formulas(model, model.workload(2, 6))
    numbers = algebra.values(letters)
    sizes = {symbol: n for symbol, n in numbers.items() if letters[symbol].entry.key}
    for row in rows:
        formula, symbols = tidied(row.expression), row.expression.free_symbols
        spelt = read(write(formula, numbers={s: int(n) for s, n in sizes.items()}), symbols)
        assert spelt.xreplace(numbers) == row.value, row.path
        collected = write(tidy(row.expression.xreplace(sizes)))
        assert read(collected, symbols).xreplace(numbers) == row.value
        assert row.copies.xreplace(numbers) == row.number


terms = st.lists(
    st.tuples(st.fractions(-9, 9, max_denominator=4), *[st.integers(0, 1)] * 2, *[st.integers(-1, 2)] * 3), max_size=9
)


@pytest.mark.slow
@given(terms)
def test_tidy_changes_no_polynomial(drawn: list[tuple[Any, ...]]) -> None:
    atoms = [algebra.symbol(name) for name in ("L_a", "L_b", "D", "h_kv", "T")]
    atoms[-1] = sympy.Min(atoms[-1], algebra.symbol("W"))
    expression = sympy.Integer(0)
    for number, *powers in drawn:
        product = sympy.Mul(*(atom**power for atom, power in zip(atoms, powers, strict=True)))
        expression += sympy.Rational(number.numerator, number.denominator) * product
    formula = tidy(expression)
    assert sympy.expand(value(formula) - expression) == 0
    assert sympy.expand(read(write(formula), expression.free_symbols) - expression) == 0
    assert tidy(value(formula)) == formula


TOTALS = {
    ("gpt2", "flops"): "1536·B·T·(24·T + 160849)",
    ("llama-3.1-8b", "flops"): "524288·B·T·(T + 28628)",
    ("deepseek-v3", "flops"): "16384·B·T·(305·T + 4470776)",
    ("llama-3.1-8b", "flops_masked"): "262144·B·T·(T + 57257)",
    ("gemma-3-27b", "cache"): "8192·(5·T + 26·min(T, 1024))",
    ("t5-small", "cache"): "6144·(T + T_src)",
}


@pytest.mark.parametrize(("name", "quantity"), TOTALS)
def test_totals_over_batch_and_length(name: str, quantity: str) -> None:
    model = load(name)
    over, _ = algebra.over_letters(model, model.workload(1, 8))
    tree = algebra.symbolic(model)
    total: Any = walk(tree.root, over).total(quantity)
    assert write(tidy(total.xreplace(algebra.values(tree.letters)))) == TOTALS[name, quantity]


PARTS = {
    ("llama-3.1-8b", "layers.5.attention", "params"): "2·D·d_h·(h + h_kv)",
    ("llama-3.1-8b", "layers.5.attention", "flops"): "4·B·T·d_h·(T·h + D·(h + h_kv))",
    ("llama-3.1-8b", "layers.5.attention", "flops_masked"): "2·B·T·d_h·(2·D·(h + h_kv) + h·(T + 1))",
    ("llama-3.1-8b", "", "params"): "D·(L·(2·d_h·(h + h_kv) + 3·F + 2) + 2·V + 1)",
    ("llama-3.1-8b", "", "cache_growth"): "2·L·h_kv·d_h",
    ("mixtral-8x7b", "layers.0.experts", "params"): "D·E·(3·F_e + 1)",
    ("mixtral-8x7b", "layers.0.experts", "active"): "D·(E + 3·k·F_e)",
    ("mixtral-8x7b", "layers.0.experts.routed.7.up", "flops"): "2·B·T·D·k·F_e/E",
    ("deepseek-v3", "", "cache"): "T·(L_dense + L_sparse)·(r_kv + d_rope)",
    ("deepseek-v3", "layers.0.feed_forward", "params"): "3·D·F",
    ("gemma-3-27b", "", "cache"): "2·h_kv·d_h·(T·L_global + min(T, W)·L_local)",
    ("albert-base-v2", "layers.3.feed_forward.up", "flops"): "2·B·T·D·F",
    ("bert-base", "pooler", "flops"): "2·B·D²",
    ("vit-b", "embedding.patches", "flops"): "2·B·D·p²·c·(T − 1)",
    ("whisper-large-v3", "encoder.embedding.positions", "params"): "D·P_max",
    ("whisper-large-v3", "decoder.embedding.positions", "params"): "D·P_max_decoder",
}


@pytest.mark.parametrize(("name", "path", "quantity"), PARTS)
def test_formulas_of_parts(name: str, path: str, quantity: str) -> None:
    model = load(name)
    rows, _ = algebra.formulas(model, model.workload(1, 8), path)
    (row,) = (row for row in rows if row.path == path and row.quantity == quantity)
    assert write(tidy(row.expression)) == PARTS[name, path, quantity]


def test_latex_uses_the_table_of_letters() -> None:
    tree = algebra.symbolic(load("deepseek-v3"))
    for symbol, letter in tree.letters.items():
        if not letter.where:
            bare = letter.entry.latex.replace("{", "").replace("}", "")
            assert write(tidy(symbol), LATEX).replace("{", "").replace("}", "") == bare
    length, window, layers = (algebra.symbol(name) for name in ("T", "W", "L_local"))
    assert write(tidy(sympy.Min(0, length - 3))) == "min(0, T − 3)"
    formula = tidy(layers * sympy.Min(length, window) ** 2 - layers * length / algebra.symbol("r_kv"))
    assert write(formula, LATEX) == (
        r"\frac{L_{\mathrm{local}} \cdot \left(\min\left(T, W\right)^{2} \cdot r_{kv} - T\right)}{r_{kv}}"
    )


LAYERS: dict[str, Any] = {
    "d_model": 64,
    "n_layers": 4,
    "vocab_size": 100,
    "attention": {"n_heads": 4},
    "feed_forward": {"d_ff": 128},
    "experts": {"n_experts": 4, "top_k": 2, "d_ff": 32},
    "pattern": ["a", "e", "b", "kv"],
    "layer": {
        "a": {"parts": ["attention", "experts"]},
        "e": {"parts": ["attention", "feed_forward"], "feed_forward": {"d_ff": 96}},
        "b": {"parts": ["attention", "feed_forward"]},
        "kv": {"parts": ["attention", "feed_forward"], "attention": {"n_heads": 2}, "feed_forward": {"d_ff": 96}},
    },
}


@pytest.mark.slow
def test_sizes_that_differ_have_letters_of_their_own() -> None:
    """The first layer kind has the plain letter; a suffix never makes another letter of the table (F of `b` here, h of
    `kv`)."""
    model = build({**LAYERS, "layer": {**LAYERS["layer"], "b": {**LAYERS["layer"]["b"]}}}, "here")
    letters = {symbol.name: letter for symbol, letter in algebra.symbolic(model).letters.items()}
    assert {name: letters[name].value for name in ("F", "F_b", "F_e", "h", "h_kv", "h_kv_2")} == {
        "F": 96,
        "F_b": 128,
        "F_e": 32,
        "h": 4,
        "h_kv": 4,
        "h_kv_2": 2,
    }
    assert letters["F_e"].entry.key == "experts.d_ff" and letters["h_kv"].entry.key == "attention.n_kv_heads"
    assert {"L_a", "L_b", "L_e", "L_kv"} < letters.keys() and "L" not in letters
    assert letters["F_b"].meaning == "feed-forward width (b)"
    check(model)


def test_a_suffix_never_makes_another_letter() -> None:
    """F of the layers called `e`, in a model without experts, is not F_e, an expert's width."""
    wide = {"parts": ["attention", "feed_forward"], "feed_forward": {"d_ff": 96}}
    raw = {**LAYERS, "pattern": ["b", "e"], "layer": {"b": LAYERS["layer"]["b"], "e": wide}}
    del raw["experts"]
    model = build(raw, "here")
    letters = {symbol.name: letter.value for symbol, letter in algebra.symbolic(model).letters.items()}
    assert letters["F"] == 128 and letters["F_e_2"] == 96 and "F_e" not in letters


def test_halves_share_letters_of_equal_sizes() -> None:
    t5 = {symbol.name for symbol in algebra.symbolic(load("t5-small")).letters}
    assert t5 <= BY_LETTER.keys()
    whisper = {symbol.name for symbol in algebra.symbolic(load("whisper-large-v3")).letters}
    assert whisper - BY_LETTER.keys() == {"P_max_decoder"}


def test_a_part_that_is_not_there_is_named() -> None:
    from txcalc.errors import UnknownName

    model = load("mixtral-8x7b")
    for path in ("layers.32", "layers.0.experts.routed.8", "attention"):
        with pytest.raises(UnknownName, match="no part named"):
            algebra.formulas(model, model.workload(), path)


@pytest.mark.slow
def test_sums_of_parts_are_the_whole() -> None:
    for name in ("deepseek-v3", "gemma-3-27b", "whisper-large-v3", "jamba-v0.1", "vit-b", "albert-base-v2"):
        model = load(name)
        rows, letters = algebra.formulas(model, model.workload(1, 9))
        numbers = algebra.values(letters)
        top = {row.path for row in rows if row.depth == 1}
        for quantity in {row.quantity for row in rows}:
            parts = [row for row in rows if row.quantity == quantity and row.path in top]
            (whole,) = (row for row in rows if row.quantity == quantity and row.depth == 0)
            assert sum(row.number * row.value for row in parts) == whole.value, (name, quantity)
            assert sympy.expand(sum(row.copies * row.expression for row in parts) - whole.expression) == 0
            assert whole.expression.xreplace(numbers) == whole.value


# What every textbook says, here at the end of a derivation.
TEXTBOOK = {
    "Attention: parameters": "4·D²",
    "Feed-forward: parameters": "8·D²",
    "Gated feed-forward: parameters": "8·D²",
    "All layers: parameters": "12·L·D²",
    "Embedding and head: parameters": "2·V·D",
    "Cache: elements that each token adds": "2·L·D",
    "Attention: forward FLOPs": "4·B·T·D·(T + 2·D)",
    "Forward FLOPs": "2·B·T·D·(2·L·(T + 6·D) + V)",
    "One layer: saved activations in elements, fused attention": "16·B·T·D",
}


def test_the_textbook_is_derived() -> None:
    derived = {title: [(what, write(tidy(cost))) for what, cost in steps] for title, steps in textbook.derivations()}
    assert {title: steps[-1][1] for title, steps in derived.items()} == TEXTBOOK
    assert ("L of them", "2·L·h_kv·d_h") in derived["Cache: elements that each token adds"]
    assert derived["Attention: parameters"] == [
        ("q", "D·h·d_h"),
        ("k", "D·h_kv·d_h"),
        ("v", "D·h_kv·d_h"),
        ("o", "D·h·d_h"),
        ("together", "2·D·d_h·(h + h_kv)"),
        ("h_kv = h", "4·D·h·d_h"),
        ("h·d_h = D", "4·D²"),
    ]


def test_each_derivation_adds_up() -> None:
    for derivation in textbook.derivations():
        sums = [i for i, step in enumerate(derivation.steps) if step.what == "together"]
        for i in sums:
            parts = sum(step.expression for step in derivation.steps[:i])
            assert sympy.expand(parts - derivation.steps[i].expression) == 0, derivation.title
        assert sums or derivation.title.startswith("Cache")  # one part has no sum


WITHOUT = "import sys; sys.modules['sympy'] = None; from txcalc.cli import entry; entry()"


def test_without_sympy_the_extra_is_named() -> None:
    result = subprocess.run([sys.executable, "-c", WITHOUT, "formula", "gpt2"], capture_output=True, text=True)
    assert result.returncode == 3 and not result.stdout
    assert result.stderr == (
        "txcalc: a formula in letters needs sympy, which is not installed (pip install 'txcalc[symbolic]')\n"
    )


RANKS = [
    ("llama-3.1-8b", Layout(tp=8)),
    ("llama-3.1-8b", Layout(tp=16)),  # more ranks than key/value heads
    ("gpt2", Layout(tp=4)),  # a vocabulary that is padded
    ("falcon-7b", Layout(dp=2)),
    ("palm-540b", Layout(tp=8)),
    ("deepseek-v3", Layout(tp=4, ep=2)),
    ("deepseek-v3", Layout(tp=4, dp=4, ep=16)),
    ("mixtral-8x7b", Layout(tp=4, dp=4, ep=8)),
    ("mixtral-8x7b", Layout(tp=4, dp=4, ep=4, etp=4)),
    ("mamba2-2.7b", Layout(tp=2)),
    ("jamba-v0.1", Layout(tp=4)),
    ("qwen3-next-80b-a3b", Layout(tp=4)),
    ("t5-small", Layout(tp=2)),
    ("whisper-large-v3", Layout(tp=4)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout"), RANKS, ids=lambda value: str(value).replace(" ", ","))
def test_formulas_of_a_rank_give_its_numbers(name: str, layout: Layout) -> None:
    """Every figure of every part, in letters and in ints; and each can be written."""
    model = load(name)
    work = model.workload(2, 24)
    rows, letters = algebra.formulas(model, work, layout=layout)
    numbers = algebra.values(letters)
    for row in rows:
        assert row.expression.xreplace(numbers) == sympy.Rational(str(row.value)), (row.path, row.quantity)
        assert write(tidy(row.expression))
    sent = [row for row in rows if row.quantity == "sent" and not row.path]
    assert bool(sent) == (layout.tp > 1 or layout.ep > 1)
    if layout.tp > 1:
        assert algebra.symbol("tp") in sent[0].expression.free_symbols


def test_what_a_rank_sends_is_written() -> None:
    model = load("deepseek-v3")
    rows, _ = algebra.formulas(model, model.workload(), "layers.3.experts", Layout(tp=4, dp=4, ep=16))
    written = {row.path.rpartition(".")[2]: write(tidy(row.expression)) for row in rows if row.quantity == "sent"}
    assert written["gather"] == "B·T·D·(tp − 1)/tp"
    assert written["dispatch"] == "B·T·D·(((ep − 1)/ep)^k·(1 − ep) + ep − 1)/tp"
    dispatch = next(row for row in rows if row.path.endswith("dispatch") and row.quantity == "sent")
    assert r"^{k}" in write(tidy(dispatch.expression), LATEX)


@pytest.mark.drawn(quick=1)
@pytest.mark.parametrize("recompute", ["none", "core", "blocks", "every:2"])
@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", *(slow(name) for name in ("gemma-2-9b", "gpt2", "bert-base", "mixtral-8x7b"))]
)
def test_a_rank_of_sequence_parallel_keeps_what_training_counts(
    name: str, recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the statistics of a row, which are no elements: leaf by leaf there, part by part here."""
    monkeypatch.setattr(activations, "STATISTIC", 0)
    model, work = load(name), load(name).workload(2, 24)
    recipe = Recipe(Layout(tp=4, sp=4), micro_batch=2, tokens=24, recompute=recompute)
    rows, letters = algebra.formulas(model, work, layout=recipe.layout, recipe=recipe)
    (row,) = (row for row in rows if row.quantity == "saved" and not row.path)
    (piece,) = Pipeline(model, recipe).pieces
    assert 2 * row.value == activations.saved_activations(piece, recipe, model.d_model).saved
    assert row.expression.xreplace(algebra.values(letters)) == row.value
    for formula in rows:
        assert formula.expression.xreplace(algebra.values(letters)) == sympy.Rational(str(formula.value)), formula.path


EVEN, ODD = "D=64 L=8 h=8 h_kv=4 F=96 V=1024", "D=72 L=4 h=9 h_kv=3 F=99 V=251"


@pytest.mark.drawn(quick=2)
@pytest.mark.parametrize(
    ("source", "layout", "framework", "recompute"),
    [
        (EVEN, Layout(pp=4, tp=2, cp=2, dp=2), "megatron", "none"),
        (EVEN.replace("1024", "1000"), Layout(tp=2, pp=2), "megatron", "none"),
        (EVEN, Layout(pp=2, vpp=2, tp=2, sp=2, cp=2), "megatron", "blocks"),
        (EVEN, Layout(tp=4, sp=4, dp=2), "megatron", "none"),
        (EVEN, Layout(pp=4, tp=2, sp=2, fsdp=3), "fsdp2", "core"),
        (EVEN + " tied", Layout(pp=2, cp=4, fsdp=3), "fsdp2", "every:3"),
        (ODD, Layout(pp=3, cp=3, fsdp=2), "fsdp2", "none"),
        slow("deepseek-v2", Layout(pp=4, tp=2, dp=2, ep=4), "megatron", "none"),
        slow("deepseek-v2", Layout(pp=4, dp=4, ep=4), "megatron", "none"),
    ],
    ids=str,
)
def test_formulas_of_every_stage_are_what_train_counts(
    source: str, layout: Layout, framework: str, recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first rank of each: parameters, optimizer and saved activations to the byte, but for the statistics of a
    row, which are no elements; FLOPs, and what a forward pass sends; and what is in letters gives each number."""
    monkeypatch.setattr(activations, "STATISTIC", 0)
    model, batches = load(source), layout.pp * layout.vpp
    recipe = Recipe(layout, 2, batches, 48, recompute, framework=framework, parameter="bf16")
    recipe = replace(recipe, schedule="interleaved" if layout.vpp > 1 else "1f1b")
    timer = StepTimer(model, recipe, Machine.of(hardware.load("h100-sxm")))
    for stage in range(layout.pp):
        rows, letters = algebra.formulas(model, model.workload(2, 48), "", layout, recipe, stage)
        numbers = algebra.values(letters)
        assert all(row.expression.xreplace(numbers) == sympy.Rational(str(row.value)) for row in rows)
        totals = {row.quantity: row.value for row in rows if not row.path}
        pieces, state = timer.pipeline.of_stage(stage), rank_of(model, recipe, stage * layout.stage).state
        assert (2 * totals["params"], totals["optimizer"]) == (state.parameters, state.optimizer)
        assert 2 * totals["saved"] == sum(
            activations.saved_activations(piece, recipe, model.d_model).saved for piece in pieces
        )
        leaves = [(leaf, activations.recomputed(piece, recipe)) for piece in pieces for leaf in piece.leaves]
        assert totals["flops"] == sum(leaf.flops(layout) for leaf, _ in leaves)
        assert totals["training"] == sum(
            leaf.flops(layout)
            * (passes(leaf.entry) + Fraction(leaf.recomputed_in(recompute, recomputed_parts), len(leaf.layers) or 1))
            for leaf, recomputed_parts in leaves
        )
        cores = [leaf for leaf, _ in leaves if leaf.entry.kind == "attention_core" and layout.cp > 1]
        sent = [(message, 1) for piece in pieces for message in timer.sends(piece)]
        joins = [join for piece in pieces for join in piece.collectives]
        sent += [(message, join.entry.runs * join.passes[0]) for join in joins for message in timer.exchanged(join)]
        sent += [(timer.keys(leaf), leaf.entry.runs) for leaf in cores]
        assert 2 * totals.get("sent", 0) == pytest.approx(sum(message.sent * runs for message, runs in sent), rel=1e-12)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(pp=2, vpp=2), "pp is 2, expected 1: only a single stack"),
        (Layout(cp=2), "cp is 2, expected 1: only a training step splits"),
        (Layout(tp=4, sp=4), "--tokens is 1,022, expected a multiple of sp = 4\\n.*--source is 63, expected a"),
    ],
)
def test_what_is_not_written_in_letters_is_refused(layout: Layout, message: str) -> None:
    model = load("t5-small")
    with pytest.raises(InputError, match=message):
        algebra.formulas(model, model.workload(1, 1022, source=63), layout=layout)
