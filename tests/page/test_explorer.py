"""The fourth reading: programs of recorded numbers give the library's own, at any sizes, and refuse what it refuses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from evidence_of import inherited
from hypothesis import strategies as st
from paths import GOLDEN
from tiny import TINY

import txcalc
from txcalc.model import Model
from txcalc.num import ceil_div, divides, exact_div, exceeds, minimum, nearest_square
from txcalc.program import OutOfDomain, Program, Tape, written
from txcalc.questions.explorer import TOTALS, Explorer, explore
from txcalc.sources import build
from txcalc.sources.assemble import assemble
from txcalc.sources.presets import names
from txcalc.sources.resolve import resolve
from txcalc.sources.spec import change_keys

# One model of each kind of structure that a page is tried with.
KINDS = {
    "dense": "gpt2",
    "GQA": "llama-3.1-8b",
    "MLA": "deepseek-v3",
    "window": "gemma-3-27b",
    "experts": "mixtral-8x7b",
    "hybrid": "jamba-v0.1",
    "encoder–decoder": "t5-small",
    "audio": "whisper-large-v3",
    "vision": "vit-b",
}


def recorded(tape: Tape) -> Any:
    """The recorded numbers of a tape, as formulas take them."""
    return tape.letters.values()


def settings(explorer: Explorer, number: int, seed: int = 0) -> list[dict[str, int]]:
    """Random values of some of the sliders: near the model's, far from them, and such as do not fit together."""
    draw = random.Random(seed)
    base = explorer.values()
    chosen_settings = []
    for _ in range(number):
        chosen = {}
        for slider in explorer.sliders:
            value = base[slider.letter]
            near = (draw.randint(1, 2 * value), value, max(1, value // 2), 2 * value, 1 << draw.randint(0, 10))
            if draw.random() < 0.5:
                chosen[slider.letter] = draw.choice(near)
        chosen_settings.append(chosen)
    return chosen_settings


def workload(explorer: Explorer, values: dict[str, int]) -> dict[str, Any]:
    """What a ledger is asked for at these values of sliders."""
    work = {"B": "batch", "T": "tokens", "T_src": "source"}
    return {work[s.letter]: values.get(s.letter, s.value) for s in explorer.sliders if s.letter in work}


def library(source: str, explorer: Explorer, values: dict[str, int]) -> dict[str, Any] | None:
    """What the library says of the model at these values of sliders; None where it refuses them."""
    try:
        model = txcalc.load(source, explorer.changes(values))
    except txcalc.InputError:
        return None
    ledger = model.ledger(**workload(explorer, values))
    figures: dict[str, Any] = {name: ledger.total(name) for name in TOTALS}
    for quantity in ("flops", "params"):
        figures |= {f"{quantity} {kind}": value for kind, value in ledger.by_kind(quantity).items()}
    figures["cache_growth"] = ledger.cache_terms.growth
    figures["parts"] = [(entry.params, entry.flops, entry.cache) for entry in ledger]
    figures["proved"] = inherited(model, "params") is not None
    return figures


def here(explorer: Explorer, chosen: dict[str, int]) -> dict[str, Any] | None:
    """What its programs say."""
    try:
        values = explorer.values(chosen)
        figures: dict[str, Any] = {**explorer.totals.run(values)}
        leaf_figures = list(explorer.leaves.run(values).values())
    except OutOfDomain:
        return None
    figures["parts"] = [tuple(leaf_figures[i : i + 3]) for i in range(0, len(leaf_figures), 3)]
    parts = {domain.part for domain in explorer.domains}
    figures["proved"] = bool(parts) and all(
        any(holds(domain.program, values) for domain in explorer.domains if domain.part == part) for part in parts
    )
    return figures


def holds(program: Program, values: dict[str, int]) -> bool:
    try:
        program.run(values)
    except OutOfDomain:
        return False
    return True


@pytest.mark.slow
@pytest.mark.drawn(3)
@pytest.mark.parametrize("source", KINDS.values(), ids=KINDS)
def test_a_program_gives_what_the_library_gives(source: str) -> None:
    explorer = explore(txcalc.load(source))
    answered = proved = 0
    for chosen in settings(explorer, 30):
        mine, true = here(explorer, chosen), library(source, explorer, chosen)
        assert (mine is None) == (true is None), chosen
        if mine is None or true is None:
            continue
        assert {name: mine.get(name, 0) for name in true} == true, chosen
        answered, proved = answered + 1, proved + mine["proved"]
    assert answered > 10 and proved > 5


@pytest.mark.slow
@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", TINY)
def test_every_architecture_gives_what_the_library_gives(name: str) -> None:
    base = build(TINY[name], name)
    explorer = explore(base)
    for chosen in settings(explorer, 12):
        mine = here(explorer, chosen)
        try:
            raw = change_keys(TINY[name], explorer.changes(chosen))
            resolved = resolve(raw, name)
        except txcalc.InputError:
            assert mine is None, chosen
            continue
        assert mine is not None, chosen
        ledger = Model(name, assemble(resolved), raw, resolved, name).ledger(**workload(explorer, chosen))
        assert {q: mine[q] for q in TOTALS} == {q: ledger.total(q) for q in TOTALS}, chosen


@pytest.mark.slow
@pytest.mark.drawn(12)
@pytest.mark.parametrize("name", names())
def test_every_preset_has_an_explorer(name: str) -> None:
    model = txcalc.load(name)
    explorer = explore(model)
    assert explorer.totals.run(explorer.values())["params"] == model.params
    assert {"D", "L"} <= {slider.symbol.letter for slider in explorer.sliders}
    assert not explorer.fixed and explorer.domains


def lines(kind: str, explorer: Explorer) -> Iterator[str]:
    """Sliders, recorded formulas, and the conditions under which they and theorems apply."""
    yield f"{kind}: {', '.join(f'{slider.letter} = {slider.value}' for slider in explorer.sliders)}"
    for program in (explorer.totals, *explorer.follows.values()):
        yield from (f"{name} = {formula}" for name, formula in program.results.items())
        yield f"if {'; '.join(map(str, program.conditions))}"
    yield from (f"{domain.part}: {'; '.join(map(str, domain.program.conditions))}" for domain in explorer.domains)
    yield from (f"{part.path}, {part.kind} × {part.copies}: {dict(part.formulas)}" for part in explorer.parts)


def test_explorers_are_the_ones_kept(update_golden: bool) -> None:
    text = "\n".join(line for kind, name in KINDS.items() for line in lines(kind, explore(txcalc.load(name))))
    path = GOLDEN / "explorers.txt"
    if update_golden:
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")


def test_a_formula_that_is_tampered_with_differs() -> None:
    explorer = explore(txcalc.load("llama-3.1-8b"))
    results = {name: number + 1 for name, number in explorer.totals.results.items()}
    spoilt = explorer.totals._replace(results=results).run(explorer.values())
    assert spoilt["params"] != txcalc.load("llama-3.1-8b").params


numbers = st.integers(1, 50)


def test_a_division_that_leaves_a_rest_is_refused() -> None:
    tape = Tape("xy")
    x, y = recorded(tape)
    program = Program(("x", "y"), {"it": exact_div(x, y)})
    assert program.run({"x": 6, "y": 3}) == {"it": 2}
    with pytest.raises(OutOfDomain, match="4 does not divide 6"):
        program.run({"x": 6, "y": 4})


def test_what_formulas_ask_becomes_a_condition() -> None:
    tape = Tape("xy")
    x, y = recorded(tape)
    assert divides(y, x) and not exceeds(y, x)
    assert [str(condition) for condition in tape.conditions] == ["y divides x", "y ≤ x"]
    program = Program(("x", "y"), {"it": x * y}, tuple(tape.conditions))
    assert program.run({"x": 6, "y": 3}) == {"it": 18}
    with pytest.raises(OutOfDomain, match="y divides x does not hold: 4 and 6"):
        program.run({"x": 6, "y": 4})


def test_what_decides_on_structure_cannot_be_asked() -> None:
    (x,) = Tape("x").letters.values()
    for ask in (bool, int, lambda n: n > 3, lambda n: n == 3, range):
        with pytest.raises(TypeError, match="cannot be compared"):
            ask(x)


def test_equal_steps_are_one() -> None:
    x, y = Tape("xy").letters.values()
    assert (x + y) * 2 is (x + y) * 2
    assert x * 1 is x and x + 0 is x and x * 0 == 0
    assert type(x - x) is int


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x, y: x + x, "2·x"),
        (lambda x, y: x * x * 3 * y, "3·x²·y"),
        (lambda x, y: (x + y) * (x - 2), "(x + y)·(x − 2)"),
        (lambda x, y: 2 - x - y, "2 − x − y"),
        (lambda x, y: y * minimum(x, y - 1) * 4, "4·y·min(x, y − 1)"),
        (lambda x, y: ceil_div(x * y, 8), "⌈x·y/8⌉"),
        (lambda x, y: exact_div(x, y) * 2, "2·(x/y)"),
        (lambda x, y: nearest_square(x * y) * 2, "2·rows(x·y)"),
        (lambda x, y: 2 * x - (x + x), "0"),
        (lambda x, y: 128_256 * x, "128,256·x"),
    ],
)
def test_a_formula_is_written(make: Any, text: str) -> None:
    formula = make(*Tape("xy").letters.values())
    assert written(formula) == text


def test_javascript_names_what_is_used_twice() -> None:
    x, y = recorded(Tape(["x", "d_h"]))
    product: Any = x * y
    program = Program(("x", "d_h"), {"a": product * product, "b": minimum(x, 7), "c": exact_div(2 - (x - y), 1)})
    assert program.javascript() == "($x,$d_h)=>{const a=$x*$d_h;return[a*a,M($x,7n),2n-($x-$d_h)]}"
