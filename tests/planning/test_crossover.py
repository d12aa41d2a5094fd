"""Crossovers: against brute force, against the textbook's closed forms, and "never" only where it is never."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from command import Command
from hypothesis import given, strategies as st
from paths import GOLDEN, HF
from strategies import decoders, encoder_decoders, encoders, share_of
from tiny import TINY

from txcalc.errors import InputError
from txcalc.ledger import walk
from txcalc.planning.crossover import RULES, CrossoverRule, Prefills, balances, crossovers, first, lengths
from txcalc.sources import build, load
from txcalc.sources.presets import names

LINEAR, WITH_HEAD = RULES[3].name, RULES[4].name


def crossover_tokens(model: str, **options: Any) -> dict[tuple[str, str], int | None]:
    return {(point.rule.name, point.attention): point.tokens for point in crossovers(lengths(load(model), **options))}


def holds(prefills: Prefills, rule: CrossoverRule, attention: str, tokens: int) -> bool:
    """Both sides of a rule, summed leaf by leaf."""
    cost = {"dense": "flops", "masked": "flops_masked"}[attention]
    left = right = 0
    for entry in walk(prefills.model.root, prefills.at(tokens)):
        flops = getattr(entry, cost)
        left += flops if entry.kind in rule.left else 0
        others = rule.right is None and entry.kind not in (*rule.left, *rule.without)
        right += flops if others or (rule.right and entry.kind in rule.right) else 0
    return left >= right > 0 and left > 0


# Classic blocks: T = 4·D, 2·D, 2·D, 6·D and 6·D + V/(2·L), twice that and one less where half the pairs are masked.


@pytest.mark.slow
@given(h=st.integers(1, 8), d_h=st.integers(1, 16), n=st.integers(1, 8), v=st.integers(1, 400))
def test_classic_blocks(h: int, d_h: int, n: int, v: int) -> None:
    d = h * d_h
    plain = crossover_tokens(f"D={d} h={h} F={4 * d} L={n} V={v} plain")
    gated = crossover_tokens(f"D={d} h={h} F={4 * d} L={n} V={v} gated")
    with_head = Fraction(v, 2 * n)
    sums: tuple[tuple[Any, list[Any]], ...] = (
        (plain, [4 * d, 2 * d, 2 * d, 6 * d, 6 * d + with_head]),
        (gated, [6 * d, 4 * d, 2 * d, 8 * d, 8 * d + with_head]),
    )
    for found_, exact in sums:
        for rule, length in zip(RULES, exact, strict=True):
            assert found_[rule.name, "dense"] == max(1, -(-length // 1))
            assert found_[rule.name, "masked"] == max(1, -(-(2 * length - 1) // 1))


def test_the_published_crossovers() -> None:
    llama = crossover_tokens("llama-3.1-8b")
    assert (llama[LINEAR, "dense"], llama[WITH_HEAD, "dense"]) == (26_624, 28_628)
    gpt2 = crossover_tokens("gpt2")
    assert [gpt2[rule.name, "dense"] for rule in RULES[:4]] == [4 * 768, 2 * 768, 2 * 768, 6 * 768]
    # 24·T ≥ 160,849
    assert gpt2[WITH_HEAD, "dense"] == 6703
    # The router's 8 columns and 2 of 8 experts are feed-forward: (E + 3·k·F)/2 tokens.
    mixtral = crossover_tokens("mixtral-8x7b")
    assert mixtral[RULES[0].name, "dense"] == (8 + 3 * 2 * 14_336) // 2
    # Mistral's window of 4,096 is shorter than any crossover; the rectangle of a prefill does not know it.
    mistral = crossover_tokens("mistral-7b")
    assert mistral[LINEAR, "dense"] == 26_624 and mistral[LINEAR, "masked"] is None


def small(raw: dict[str, Any]) -> Prefills:
    return lengths(build(raw, "a drawn description"))


@pytest.mark.slow
@share_of(25)
@given(raw=decoders() | encoder_decoders() | encoders(), data=st.data())
def test_the_first_length_and_no_earlier(raw: dict[str, Any], data: st.DataObject) -> None:
    """Where a length is found it holds there and at none of the shorter ones; where none is, it never holds."""
    prefills = small(raw)
    for point in crossovers(prefills):
        if point.tokens is None:
            assert point.why
            lengths_ = [*range(1, 80), *data.draw(st.lists(st.integers(80, 10**9), max_size=4))]
            assert not any(holds(prefills, point.rule, point.attention, tokens) for tokens in lengths_)
        else:
            assert holds(prefills, point.rule, point.attention, point.tokens)
            assert not any(
                holds(prefills, point.rule, point.attention, n) for n in range(max(1, point.tokens - 50), point.tokens)
            )
            shorter = data.draw(st.lists(st.integers(1, max(1, point.tokens - 1)), max_size=6))
            assert point.tokens == 1 or not any(holds(prefills, point.rule, point.attention, n) for n in shorter)


BLOCKS: dict[str, Any] = {
    "d_model": 16,
    "kind": "encoder",
    "n_layers": 2,
    "attention": {"n_heads": 2, "d_head": 8, "block": 5, "random_blocks": 1},
}
CHUNKS: dict[str, Any] = {
    "d_model": 16,
    "n_layers": 4,
    "attention": {"n_heads": 2, "d_head": 8},
    "layer": {"local": {"attention": {"window": 16, "chunked": True}}},
}
MIXED = CHUNKS | {"pattern": ["global", "3*local"], "layer": {"global": {}, **CHUNKS["layer"]}}
# Past `index_top_k` the core of selected keys grows by its index alone.
INDEX = {"index_heads": 2, "index_width": 4, "index_top_k": 10}
LATENT = {"n_heads": 2, "q_rank": 4, "kv_rank": 6, "d_nope": 2, "d_rope": 2, "d_v": 2, **INDEX}
SEARCHED = {
    "blocks": (BLOCKS, (6, 7, 40, 90)),  # what is let through jumps where they begin, and then at each
    "chunks alone": (CHUNKS | {"pattern": ["local"]}, (8, 24, 60)),
    "a global layer in four": (MIXED, (8, 24, 60)),
    "selected keys": ({"d_model": 16, "n_layers": 1, "latent": LATENT}, (64,)),
}


@pytest.mark.drawn(quick=3)
@pytest.mark.parametrize(
    ("kind", "width"), [(kind, width) for kind, (_, widths) in SEARCHED.items() for width in widths]
)
def test_the_first_length_is_that_of_a_search(kind: str, width: int) -> None:
    model = build(SEARCHED[kind][0] | {"feed_forward": {"d_ff": width}}, kind)
    prefills = lengths(model)
    assert prefills.filled == (5 if kind == "blocks" else 1)
    ledgers = {tokens: model.ledger(tokens=tokens) for tokens in range(1, 800)}
    for answer in crossovers(prefills):
        quantity = "flops" if answer.attention == "dense" else "flops_masked"
        sides = ((tokens, *answer.rule.sides(ledger.by_kind(quantity))) for tokens, ledger in ledgers.items())
        assert answer.tokens == next((tokens for tokens, left, right in sides if left >= right > 0), None)
        assert kind != "selected keys" or answer.tokens > 10  # type: ignore[operator]


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen4_exp", "qwen4_exp_text"])
def test_positions_in_groups_are_searched_by_remainder(name: str) -> None:
    """Costs of ⌈(a·T + b)/c⌉ positions, against all lengths up to 400; and no closed form is claimed."""
    pytest.importorskip("sympy", reason="closed forms need sympy")
    from txcalc.algebra.crossings import closed_forms

    config = json.loads((HF / "small.json").read_text())[name]["config"]
    prefills = lengths(load(config))
    answers, costs = crossovers(prefills), [walk(prefills.model.root, prefills.at(n)) for n in range(1, 401)]
    for answer in answers:
        quantity = "flops" if answer.attention == "dense" else "flops_masked"
        sides = [answer.rule.sides(ledger.by_kind(quantity)) for ledger in costs]
        reached = next((n for n, (left, right) in enumerate(sides, 1) if left >= right), None)
        assert answer.tokens == reached or (reached is None and (answer.tokens is None or answer.tokens > 400))
    assert prefills.filled > 1 and closed_forms(prefills, answers) == [None] * len(answers)


def test_why_there_is_none() -> None:
    why = {(point.rule.name, point.attention): point.why for point in crossovers(lengths(load("mamba-130m")))}
    assert set(why.values()) == {"no attention"}
    why = {(point.rule.name, point.attention): point.why for point in crossovers(lengths(load("mistral-7b")))}
    assert set(why.values()) == {"", "beyond its windows it grows no faster"}
    no_channel = build(
        {"d_model": 8, "n_layers": 1, "attention": {"n_heads": 2}, "layer": {"a": {"parts": ["attention"]}}}, "here"
    )
    first_rule, *_ = crossovers(lengths(no_channel))
    assert (first_rule.tokens, first_rule.why) == (None, "no such layers")


def test_a_table_of_distances_bends_the_cost(tmp_path: Path) -> None:
    """Below its reach DeBERTa meets fewer distances than its table has."""
    configs = json.loads((HF / "configs.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(configs["deberta-base"]))
    prefills = lengths(load(path))
    assert prefills.windows == (512,)
    for point in crossovers(prefills):
        if point.tokens is not None and point.tokens > 1:
            assert holds(prefills, point.rule, point.attention, point.tokens)
            assert not holds(prefills, point.rule, point.attention, point.tokens - 1)


def test_a_picture_has_no_length() -> None:
    with pytest.raises(InputError, match="vit-b: always has 197 positions"):
        lengths(load("vit-b"))


# The solver.


@st.composite
def pieces(draw: st.DrawFn) -> tuple[Callable[[int], int], tuple[int, ...]]:
    """A continuous function, quadratic between ends, that is above 0 before 1,500 or never."""
    ends = tuple(sorted(draw(st.sets(st.integers(1, 30), max_size=3))))
    bends = [draw(st.integers(-1, 1)) for _ in ends] + [draw(st.integers(0, 1))]
    slopes = [draw(st.integers(-5, 5)) for _ in bends]
    start = draw(st.integers(-300, 10))

    def f(n: int) -> int:
        value, low = start, 0
        for slope, bend, high in zip(slopes, bends, (*ends, n), strict=True):
            steps = max(0, min(n, high) - low)
            value += slope * steps + bend * steps * (steps - 1) // 2
            low = high
        return value

    return f, ends


@pytest.mark.slow
@share_of(300)
@given(pieces())
def test_first_against_brute_force(drawn: tuple[Callable[[int], int], tuple[int, ...]]) -> None:
    f, ends = drawn
    assert first(f, ends) == next((n for n in range(1, 1500) if f(n) >= 0), None)


def test_what_is_not_quadratic_is_refused() -> None:
    with pytest.raises(ArithmeticError, match="faster than the square"):
        first(lambda n: n**3 - 10**9)
    with pytest.raises(ArithmeticError, match="not quadratic"):
        first(lambda n: min(n, 50) + max(0, n - 50) // 2 - 100)


# Cache against weights.


def test_of_selected_keys_only_the_chosen_latents_are_read() -> None:
    """Past `index_top_k` a step reads one more key of the index a token, and no more of the latent."""
    model = build({"d_model": 4, "n_layers": 1, "latent": LATENT, "feed_forward": {"d_ff": 4}}, "small")
    for row in balances(lengths(model)):
        weights = model.params
        context = -(-weights // (12 * row.batch))  # 8 of the latent and 4 of the index, in as many bits
        if context > 10:
            context = -(-(weights - 80 * row.batch) // (4 * row.batch))
        assert row.context == context
        assert row.cache_bytes == 2 * row.batch * (8 * min(context, 10) + 4 * context)


def test_windows_and_states_stop_growing() -> None:
    assert [balance.context for balance in balances(lengths(load("mistral-7b")))][:2] == [None, None]
    assert [balance.context for balance in balances(lengths(load("mamba-130m")))] == [None, None, None, None, 1]
    assert balances(lengths(load("bert-base"))) == []


# Closed forms.


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["D=1 h=1 F=1 L=1 V=4 plain", *(name for name in names() if not name.startswith("vit"))]
)
def test_a_closed_form_rounds_up_to_the_length(name: str) -> None:
    sympy = pytest.importorskip("sympy")
    from txcalc import algebra
    from txcalc.algebra import crossings

    prefills = lengths(load(name))
    rows = crossovers(prefills)
    letters = algebra.values(algebra.symbolic(prefills.model).letters)
    if prefills.model.has_encoder_apart:
        letters[algebra.symbol("T_src")] = sympy.Integer(prefills.start.source)
    for row, form in zip(rows, crossings.closed_forms(prefills, rows), strict=True):
        if form is None:
            assert row.tokens in (None, 1)
            continue
        a, b, c = (sympy.sympify(part).xreplace(letters) for part in form)
        root = (b + sympy.sqrt(b * b + 4 * a * c)) / (2 * a)
        assert sympy.ceiling(root) == row.tokens, (row.rule.name, row.attention)


def test_closed_forms_as_written(update_golden: bool) -> None:
    pytest.importorskip("sympy")
    from txcalc.algebra import crossings

    plain, gated = ([form.write() for form in crossings.classic_forms(gate) if form] for gate in (False, True))
    assert plain[::2] == ["4·D", "2·D", "2·D", "6·D", "(12·L·D + V)/(2·L)"]
    assert plain[1::2] == ["8·D − 1", "4·D − 1", "4·D − 1", "12·D − 1", "(L·(12·D − 1) + V)/L"]
    assert gated[::2] == ["6·D", "4·D", "2·D", "8·D", "(16·L·D + V)/(2·L)"]
    prefills = lengths(load("gemma-3-27b"))
    forms: Any = crossings.closed_forms(prefills, crossovers(prefills))
    assert forms[5].write() == (
        "(b + √(b² + 4·a·c))/(2·a); a = L_global·h; "
        "b = 2·D·(L_global + L_local)·(h + h_kv) − L_global·h − 2·L_local·h·W; c = L_local·h·W·(W − 1)"
    )
    lines = []
    for name in ("gpt2", "t5", "zamba2", "doge", "chinchilla", "jamba", "apertus"):
        prefills = lengths(build(TINY[name], name))
        rows = crossovers(prefills)
        for row, form in zip(rows, crossings.closed_forms(prefills, rows), strict=True):
            closed = f"{form.write()} | {form.latex()}" if form else "-"
            lines.append(f"{name}: {row.rule.name}, {row.attention}, {row.tokens}: {closed}")
    path = GOLDEN / "crossings.txt"
    if update_golden:
        path.write_text("\n".join(lines) + "\n", "utf-8")
    assert lines == path.read_text("utf-8").splitlines()


def test_the_closed_form_is_that_of_its_piece() -> None:
    """At its last length a window does not yet show; one token less of it, and it does."""
    pytest.importorskip("sympy")
    from txcalc.algebra import crossings

    forms: dict[int, Any] = {}
    for window in (127, 126):
        prefills = lengths(load(f"D=16 h=2 F=64 L=1 plain window={window}"))
        found_ = crossovers(prefills)
        assert found_[1].tokens == (127 if window == 127 else 126 * 125 // 2 // (126 - 64) + 1)
        forms[window] = crossings.closed_forms(prefills, found_)[1]
    assert forms[127].write() == "(2·D·F − h·d_h)/(h·d_h)"
    assert forms[126].write() == "h·d_h·W·(W − 1)/(2·(h·d_h·W − D·F))"


# The command.


run = Command("crossover", columns=100, NO_COLOR="1")


@pytest.mark.parametrize(("windows", "message"), [((16, 16), ""), ((16, 8), "other lengths: [8, 16]")])
def test_chunks_beside_windows_of_another_length_have_no_crossover(windows: tuple[int, int], message: str) -> None:
    chunked, window = ({"attention": {"window": size}} for size in windows)
    chunked["attention"]["chunked"] = True
    raw = {
        "d_model": 16,
        "n_layers": 2,
        "attention": {"n_heads": 2},
        "feed_forward": {"d_ff": 32},
        "pattern": ["a", "b"],
    }
    try:
        assert lengths(build({**raw, "layer": {"a": chunked, "b": window}}, "mixed")).chunk == 16 and not message
    except InputError as error:
        assert message and message in str(error)
