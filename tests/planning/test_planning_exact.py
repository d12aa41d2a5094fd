"""Planning piece by piece, each answer worked out by hand, by going over all there is, or as it was published."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from math import exp
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tiny import TINY

from txcalc import hardware, load
from txcalc.errors import InputError, UnknownName
from txcalc.evidence.formulas import Formulas
from txcalc.evidence.store import Theorem, TheoremFiles, save
from txcalc.evidence.structures import Size, leaf, probe, sized, units
from txcalc.evidence.theorems import Condition, inheritance
from txcalc.ledger import walk
from txcalc.num import ceil_div
from txcalc.parts.positions import RelativeBias
from txcalc.parts.work import COST
from txcalc.planning.crossover import elements_read, first_in_blocks, first_in_chunks, lengths
from txcalc.planning.fitting import ModelFit, best, shortage
from txcalc.planning.formats.modules import Modules, listed, names
from txcalc.planning.generation import FlopsLaw, generations, laws, summed
from txcalc.planning.gradients import flops_per_score, scores as scored
from txcalc.planning.layout import Layout, parse_layout, unserved
from txcalc.planning.matching import Near, matched
from txcalc.planning.parallelism import Sharding, parted, piece, sizes
from txcalc.planning.scaling import (
    LAWS,
    ScalingLaw,
    ScalingQuestion,
    ask,
    counted,
    effective_amount,
    laws as scaling_laws,
)
from txcalc.planning.serving.deployment import check, largest
from txcalc.planning.serving.durations import Cost, series
from txcalc.planning.serving.engine import engine
from txcalc.planning.serving.engine_profiles import offloading
from txcalc.planning.serving.layout_time import LayoutTime
from txcalc.planning.serving.offload import HostMemory, Offload
from txcalc.planning.serving.points import grown, request
from txcalc.planning.serving.rank_work import RankWork
from txcalc.planning.serving.speed import most_rate
from txcalc.planning.serving.traffic import Lengths, Requests
from txcalc.planning.shapes import DesignFamily, Likeness
from txcalc.planning.terms import by_product, parameters
from txcalc.planning.training import Recipe
from txcalc.planning.training.machine import Kernels, Machine
from txcalc.planning.training.step import StepTimer
from txcalc.sources import build

EXPERTS = "D=64 L=4 h=8 h_kv=4 F=96 V=250 E=4 k=2"
DENSE = "D=64 L=4 h=8 h_kv=4 F=96 V=250"

# Scaling laws.

# E, A, B, α and β, what they were fitted to, and the 95 % intervals, as the papers' notebooks print them.
PUBLISHED = {
    "besiroglu": (1.81686, 482.00572, 2085.4342, 0.34781, 0.36585, (57_300_000, 16_200_000_000),
                  (245_000_000, 318_000_000_000), None),
    "chinchilla": (1.6934, 406.4, 410.7, 0.3392, 0.2849, (70_000_000, 16_000_000_000),
                   (5_000_000_000, 500_000_000_000), None),
    "muennighoff": (exp(0.6254804), exp(6.255414), exp(7.3049974), 0.3526596, 0.3526596, (0, 8_700_000_000),
                    (0, 900_000_000_000), (15.387756, 5.309743)),
}  # fmt: skip
INTERVALS = {
    "E": (1.769, 1.871), "A": (285.214, 743.626), "B": (1042.357, 5810.344), "alpha": (0.317, 0.373),
    "beta": (0.331, 0.415),
}  # fmt: skip


@pytest.mark.parametrize("name", LAWS)
def test_constants_are_those_that_were_published(name: str) -> None:
    one = LAWS[name]
    assert (one.E, one.A, one.B, one.alpha, one.beta, one.params, one.tokens, one.repeats) == PUBLISHED[name]
    assert one.interval == (INTERVALS if name == "besiroglu" else {})


PLAIN = ScalingLaw("plain", "", 1.0, 8.0, 2.0, 1.0, 1.0, (10, 20), (100, 200), "", "")
AGAIN = PLAIN._replace(name="again", repeats=(4.0, 2.0))


def test_a_law_by_hand() -> None:
    """1 + 8/N + 2/D: N is twice the square root of C/6, D half of it."""
    assert (PLAIN.ratio, PLAIN.loss(4, 8), PLAIN.optimum(6 * 100)) == (2, 1 + 2 + 0.25, (20, 5))
    assert (PLAIN.tokens_for(20), PLAIN.params_for(5)) == (5, 20)
    assert effective_amount(10, 30, 4) == 10 * (1 + 4 * (1 - exp(-0.5))) and effective_amount(10, 5, 4) == 10
    # 30 tokens of which 10 are different; of 100 parameters 40 are the best for these.
    seen, size = 10 * (1 + 4 * (1 - exp(-0.5))), 40 * (1 + 2 * (1 - exp(-0.75)))
    assert AGAIN.loss(100, 30, 10) == pytest.approx(1 + 8 / size + 2 / seen)
    assert AGAIN.loss(20, 30, 10) == pytest.approx(1 + 8 / 20 + 2 / seen)
    assert AGAIN.loss(20, 30) == AGAIN.loss(20, 30, 50) == pytest.approx(1 + 8 / 20 + 2 / 30)


@pytest.mark.parametrize(
    ("question", "asked", "best"),
    [
        (ScalingQuestion(params=20, compute=600), (20, 5), (20, 5)),
        (ScalingQuestion(tokens=20, compute=600), (5, 20), (20, 5)),
        (ScalingQuestion(params=5, tokens=20), (5, 20), (20, 5)),
        (ScalingQuestion(params=20), (20, 5), (20, 5)),
        (ScalingQuestion(tokens=5), (20, 5), (20, 5)),
        (ScalingQuestion(compute=600), (20, 5), (20, 5)),
    ],
)
def test_what_is_asked_of_a_law(question: ScalingQuestion, asked: tuple[int, int], best: tuple[int, int]) -> None:
    found = ask(PLAIN, question)
    assert found.asked == (*asked, 1 + 8 / asked[0] + 2 / asked[1]) and found.compute == 600
    assert found.best == (*best, 1 + 8 / 20 + 2 / 5)


@pytest.mark.parametrize(
    ("question", "law", "words"),
    [
        (ScalingQuestion(params=10, tokens=100), PLAIN, []),
        (ScalingQuestion(params=20, tokens=200), PLAIN, []),
        (ScalingQuestion(params=9, tokens=100), PLAIN, ["plain: outside its fitted range: N = 9 (fitted to 10 to 20)"]),
        (ScalingQuestion(params=21, tokens=201), PLAIN, ["N = 21 (fitted to 10 to 20) and D = 201 (fitted to 100 to"]),
        (ScalingQuestion(params=10, tokens=176, unique=4), AGAIN, []),
        (ScalingQuestion(params=10, tokens=180, unique=4), AGAIN, ["again: 45 epochs are outside", "up to 44"]),
    ],
)
def test_a_law_says_where_it_was_not_fitted(question: ScalingQuestion, law: ScalingLaw, words: list[str]) -> None:
    said = "; ".join(ask(law, question).warnings)
    assert all(word in said for word in words) and bool(words) == bool(said)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (ScalingQuestion(), "give one or two of"),
        (ScalingQuestion(1, 1, 6000), "any two of them fix the third"),
        (ScalingQuestion(params=0, tokens=5), "--params is 0, expected a number above 0"),
        (ScalingQuestion(compute=6000, unique=0), "--unique-tokens is 0"),
        (ScalingQuestion(params=5, unique=5), "--unique-tokens with --params alone"),
        (ScalingQuestion(tokens=5, unique=5), "--unique-tokens with --train-tokens alone"),
        (ScalingQuestion(compute=6000, unique=5), ""),
        (ScalingQuestion(params=5, tokens=7, unique=5), ""),
        (ScalingQuestion(compute=5999), "at least 6,000 FLOPs"),
        (ScalingQuestion(tokens=2000, compute=11_999), "at least 12,000 FLOPs"),
        (ScalingQuestion(tokens=2000, compute=12_000), ""),
        (ScalingQuestion(params=5, compute=6000), ""),
    ],
)
def test_what_no_law_can_be_asked(question: ScalingQuestion, said: str) -> None:
    faults = ""
    try:
        question.checked()
    except InputError as error:
        faults = "; ".join(map(str, error.faults))
    assert said in faults and bool(said) == bool(faults)


def test_laws_by_name() -> None:
    everyone = ["besiroglu", "chinchilla", "muennighoff"]
    assert [one.name for one in scaling_laws(None, None)] == everyone
    assert [one.name for one in scaling_laws(" Chinchilla,besiroglu,chinchilla", None)] == everyone[1::-1]
    assert [one.name for one in scaling_laws(None, 5)] == [one.name for one in scaling_laws("muennighoff", 5)]
    for text, fault in (("kaplan", UnknownName), ("besiroglu,muennighoff", InputError)):
        with pytest.raises(fault):
            scaling_laws(text, 5)
    assert counted(load(DENSE)) == load(DENSE).params
    for source, said in ((EXPERTS, "describe dense models"), ("bert-base", "describe decoders")):
        with pytest.raises(InputError, match=said):
            counted(load(source))


# Sums over a generation's passes.


@pytest.mark.parametrize("ends", [(), (1,), (5, 9), (2, 3, 4, 8), (20,)])
@pytest.mark.parametrize(("first", "last"), [(1, 1), (1, 3), (1, 4), (3, 12), (0, 30), (5, 4)])
def test_sums_of_pieces_of_polynomials(ends: tuple[int, ...], first: int, last: int) -> None:
    def cost(n: int) -> int:
        passed = sum(n >= end for end in ends)
        return 7 + 5 * n + 3 * n * n + passed * (11 - 2 * n + passed * n * n)

    assert summed(cost, first, last, ends) == sum(map(cost, range(first, last + 1)))


def test_what_is_not_quadratic_is_no_sum() -> None:
    for cost in (lambda n: n**3, lambda n: 5 if n == 10 else 0, lambda n: 5 if n == 6 else 0):
        with pytest.raises(ArithmeticError, match="not quadratic from 1 to 10"):
            summed(cost, 1, 10, ())


@pytest.mark.parametrize("source", [DENSE, DENSE + " window=3", "gpt2"])
@pytest.mark.parametrize("attention", ["dense", "masked"])
@pytest.mark.parametrize("prompt", [1, 4])
def test_a_generation_is_the_sum_of_its_passes(source: str, attention: str, prompt: int) -> None:
    """And what its law says of any length."""
    model, quantity = load(source), {"dense": "flops", "masked": "flops_masked"}[attention]

    def passed(**asked: Any) -> int:
        return int(model.ledger(logits="last", **asked).total(quantity))

    for found in generations(model, (prompt, prompt + 6), prompt, attention):
        later = range(prompt, found.context)
        assert found.passes == 1 + len(later)
        assert found.flops == passed(tokens=prompt) + sum(passed(past=n) for n in later)
        assert found.flops_without == sum(passed(tokens=n) for n in range(prompt, found.context + 1))
        assert found.computed == found.context
        assert found.computed_without == sum(range(prompt, found.context + 1))
        assert found.redundant == found.computed_without - found.computed
    both = laws(model, prompt, attention)
    assert both
    start = max(prompt, both[0].start)
    for length in (start, start + 7):
        (found,) = generations(model, (length,), prompt, attention)
        assert (both[0].at(length), both[1].at(length)) == (found.flops, found.flops_without)


@pytest.mark.parametrize(
    ("coefficients", "below", "text"),
    [
        ((0, -7, 0, 5), 3, "(5·n³ − 7·n)/3"),
        ((2, 0, -1, 0), 1, "−1·n² + 2"),
        ((-4, 3, 2, 1), 1, "1·n³ + 2·n² + 3·n − 4"),
    ],
)
def test_a_law_is_written(coefficients: tuple[int, ...], below: int, text: str) -> None:
    law = FlopsLaw(1, coefficients, below)
    assert law.text() == text
    assert law.at(5) == Fraction(sum(factor * 5**power for power, factor in enumerate(coefficients)), below)


def test_a_prompt_is_no_longer_than_its_context() -> None:
    with pytest.raises(InputError, match="a whole number from 1 to 4 tokens"):
        generations(load(DENSE), (4,), 5)
    with pytest.raises(InputError, match="a whole number from 1 to 4 tokens"):
        generations(load(DENSE), (4,), 0)
    with pytest.raises(InputError, match="no decoder by itself"):
        generations(load("t5-small"), (4,))


# Layouts.


@pytest.mark.parametrize(
    ("layout", "gpus", "ways", "group", "sharing", "exchanges", "said"),
    [
        (Layout(), 1, 1, 1, 1, False, "one GPU"),
        (Layout(tp=4, pp=3, dp=2), 24, 4, 4, 1, False, "tp=4 pp=3 dp=2"),
        (Layout(tp=4, ep=2), 4, 2, 4, 1, False, "tp=4 ep=2"),
        (Layout(tp=4, ep=4), 4, 1, 4, 1, False, "tp=4 ep=4"),
        (Layout(tp=2, dp=8, ep=8), 16, 1, 8, 4, True, "tp=2 dp=8 ep=8"),
        (Layout(tp=4, dp=2, ep=4, etp=2), 8, 2, 8, 2, True, "tp=4 dp=2 ep=4 etp=2"),
        (Layout(tp=2, dp=2, etp=1), 4, 1, 1, 1, True, "tp=2 dp=2 etp=1"),
        (Layout(cp=2, fsdp=3, dp=5), 30, 1, 1, 1, False, "dp=5 fsdp=3 cp=2"),
    ],
)
def test_numbers_of_a_layout(
    layout: Layout, gpus: int, ways: int, group: int, sharing: int, exchanges: bool, said: str
) -> None:
    assert (layout.gpus, layout.expert_ways, layout.expert_group) == (gpus, ways, group)
    assert (layout.sharing, layout.exchanges, str(layout)) == (sharing, exchanges, said)
    shown = {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp, "ep": layout.ep}
    more = dict(word.split("=") for word in said.split() if "=" in word)
    assert layout.record() == shown | {name: int(number) for name, number in more.items()}
    assert said == "one GPU" or parse_layout(said.replace(" ", ",")) == layout


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (Layout(tp=1 << 16), ""),
        (Layout(tp=(1 << 16) + 1), "tp is 65537, expected a whole number from 1 to 65,536"),
        (Layout(dp=0), "dp is 0, expected a whole number from 1"),
        (Layout(tp=4, sp=2), "sp is 2, expected 1 or tp = 4"),
        (Layout(tp=4, sp=4), ""),
        (Layout(vpp=2), "vpp is 2, expected 1 where pp is 1"),
        (Layout(pp=2, vpp=2), ""),
        (
            Layout(tp=4, ep=3, dp=3),
            "ep is 3, expected a divisor of tp = 4, or a multiple of it that divides tp · dp = 12",
        ),
        (Layout(tp=4, ep=2, dp=3), ""),
        (Layout(tp=4, ep=8, dp=3), "ep is 8, expected a divisor of tp = 4"),
        (Layout(tp=2, ep=12, cp=2, fsdp=3), ""),
        (Layout(tp=2, ep=8, cp=2, fsdp=3), "divides tp · cp · fsdp · dp = 12"),
        (Layout(dp=4, ep=2, etp=2), ""),
        (Layout(dp=4, ep=2, etp=3), "ep · etp is 6, expected a divisor of tp · dp = 4"),
    ],
)
def test_what_is_no_layout(layout: Layout, said: str) -> None:
    faults = "; ".join(map(str, layout.faults()))
    assert said in faults and bool(said) == bool(faults)


def test_what_a_server_has_no_use_for() -> None:
    assert not unserved(Layout(tp=2, pp=2, dp=2, ep=4)) and not unserved(Layout(tp=2, dp=4, ep=2, etp=4))
    assert not unserved(Layout(tp=4, ep=2, etp=2))
    (fault,) = unserved(Layout(tp=2, dp=4, ep=2, etp=2))
    assert "ep · etp is 4, expected tp = 2, or tp · dp = 8" in str(fault)
    assert len(unserved(Layout(tp=2, sp=2, pp=2, vpp=2, fsdp=2, cp=2))) == 4


# A rank's tree.


@pytest.mark.parametrize(("layers", "pieces"), [(4, 4), (7, 3), (10, 4), (11, 4), (5, 1)])
def test_sizes_of_pieces(layers: int, pieces: int) -> None:
    """What is over with those before the last, one each."""
    found = sizes(layers, pieces)
    more = layers % pieces
    assert found == [layers // pieces + (pieces - 1 - more <= i < pieces - 1) for i in range(pieces)]


def test_a_piece_has_what_stands_before_or_behind() -> None:
    tied = load(DENSE + " tied").root
    first, middle, last = (piece(tied, range(i, i + 1), i == 0, i == 2) for i in range(3))  # type: ignore[arg-type]
    for one, (before, behind) in ((first, (True, False)), (middle, (False, False)), (last, (False, True))):
        assert (one.embedding is not None, one.final_norm is not None, one.head is not None) == (before, behind, behind)
    assert last.head and not last.head.projection.tied  # type: ignore[union-attr]
    whole = piece(tied, range(4), True, True)  # type: ignore[arg-type]
    assert whole.head and whole.head.projection.tied  # type: ignore[union-attr]
    assert [group.indices for group in piece(tied, (1, 3), False, False).groups] == [(1, 3)]  # type: ignore[arg-type]
    cut = parted(tied, (1, 3))
    assert [(group.indices, group.count) for group in cut.groups] == [((0,), 1), ((1, 2), 2), ((3,), 1)]
    assert cut.head and not cut.head.projection.tied  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("source", "layout", "serving", "said"),
    [
        ("t5-small", Layout(pp=2), True, "pp is 2, expected 1: only a single stack of layers"),
        (DENSE, Layout(pp=4), True, ""),
        (DENSE, Layout(pp=5), True, "pp is 5, expected at most the 4 layers"),
        (DENSE, Layout(pp=2, vpp=3), False, "pp · vpp is 6, expected at most the 4 layers"),
        (DENSE, Layout(tp=2, dp=2, etp=2), True, "etp is 2, expected 1: the model has no experts"),
        (DENSE, Layout(dp=2, etp=1), True, ""),
        (EXPERTS, Layout(dp=2, ep=3), True, "ep is 3, expected a divisor of tp = 1"),
        (DENSE, Layout(tp=0), True, "tp is 0"),
        ("llama-3.1-8b", Layout(tp=3), True, "tp is 3, expected a divisor of n_heads = 32"),
        ("qwen2.5-7b", Layout(tp=8), True, "tp is 8, expected a divisor of n_heads = 28"),
        ("mixtral-8x7b", Layout(dp=16, ep=16), True, "ep is 16, expected a divisor of n_experts = 8"),
        ("mixtral-8x7b", Layout(tp=4, ep=8), True, "ep is 8, expected a divisor of tp = 4, or a multiple"),
        (EXPERTS.replace("F=96", "F=95"), Layout(tp=4, ep=2), False, "tp is 4, expected a divisor of d_ff = 95"),
        (EXPERTS.replace("F=96", "F=95"), Layout(dp=4, ep=2, etp=2), False, "etp is 2, expected a divisor of d_ff"),
    ],
)
def test_layouts_that_a_model_does_not_allow(source: str, layout: Layout, serving: bool, said: str) -> None:
    faults = "; ".join(map(str, Sharding(load(source), serving).faults(layout)))
    assert said in faults and bool(said) == bool(faults)


@pytest.mark.parametrize("fixed", [{}, {"tp": 2}, {"pp": 4}, {"dp": 2}, {"ep": 4}, {"ep": 2, "etp": 2}, {"tp": 3}])
@pytest.mark.parametrize(("source", "gpus"), [(DENSE, 8), (EXPERTS, 8), (DENSE, 6), ("t5-small", 4)])
def test_all_layouts_that_a_model_allows(source: str, gpus: int, fixed: dict[str, int]) -> None:
    """Of all numbers: experts split like the rest or spread over a whole stage, unless it is said how."""
    sharding, expected = Sharding(load(source), serving=True), set()
    for tp, pp, dp in product(range(1, gpus + 1), repeat=3):
        if tp * pp * dp != gpus or {"tp": tp, "pp": pp, "dp": dp} | fixed != fixed | {"tp": tp, "pp": pp, "dp": dp}:
            continue
        spread = {fixed["ep"]} if "ep" in fixed else {1, tp * dp} if source == EXPERTS else {1}
        made = {Layout(tp=tp, pp=pp, dp=dp, ep=ep, etp=fixed.get("etp")) for ep in spread}
        expected |= {one for one in made if not sharding.faults(one)}
    found = list(sharding.layouts(gpus, fixed))
    assert len(found) == len(set(found)) and set(found) == expected


@pytest.mark.parametrize(
    ("source", "layout", "rows"),
    [
        (DENSE, Layout(tp=2), {"q": (0, "tp", 2, 1), "k": (0, "tp", 2, 1), "o": (1, "tp", 2, 1),
                               "gate": (0, "tp", 2, 1), "down": (1, "tp", 2, 1), "norm": (None, "tp", 1, 2)}),
        (DENSE, Layout(tp=4), {"tokens": (0, "tp", 4, 1), "projection": (0, "tp", 4, 1)}),  # 63 rows of 250
        (DENSE, Layout(tp=8), {"q": (0, "tp", 8, 1), "k": (0, "tp", 4, 2), "o": (1, "tp", 8, 1)}),
        (EXPERTS, Layout(tp=2), {"gate": (0, "etp", 2, 1), "router": (None, "tp", 1, 2), "down": (1, "etp", 2, 1)}),
        (EXPERTS, Layout(tp=2, ep=2), {"gate": (None, "etp", 1, 1), "q": (0, "tp", 2, 1)}),
    ],
)  # fmt: skip
def test_where_tensors_are(source: str, layout: Layout, rows: dict[str, tuple[Any, ...]]) -> None:
    """Of each: the dimension that is split, by which axis, into how many pieces, and how many ranks hold the same."""
    found = {
        one.entry.steps[-1].name.removeprefix("attention_"): one
        for one in Sharding(load(source)).placements(layout)
        if one.weight == "weight"
    }
    for name, row in rows.items():
        one = found[name]
        assert (one.dim, one.axis, one.pieces, one.alike) == row
        for dim, (whole, held) in enumerate(zip(one.whole, one.held, strict=True)):
            assert held == (-(-whole // one.pieces) if dim == one.dim else whole)
        assert one.times == one.entry.times * (layout.ep if one.axis == "etp" else 1)


# Names of modules.


@pytest.mark.parametrize(
    ("patterns", "named"),
    [
        (["q_proj"], {(0, "q"), (1, "q"), (2, "q"), (3, "q")}),
        (["model.layers.1.self_attn"], {(1, name) for name in "qkvo"}),
        (["layers.2.mlp.down_proj"], {(2, "down")}),
        (["re:.*layers\\.[13]\\.mlp\\.gate_proj"], {(1, "gate"), (3, "gate")}),
        (["*mlp.up_proj"], {(0, "up"), (1, "up"), (2, "up"), (3, "up")}),
        (["lm_head"], {(None, "projection")}),
        (["embed_tokens"], {(None, "tokens")}),
        (["self_attn.k_proj", "wv"], {(i, name) for i in range(4) for name in "kv"}),
        ([], set()),
    ],
)
def test_which_leaves_a_list_names(patterns: list[str], named: set[tuple[int | None, str]]) -> None:
    found, one = set(), Modules(patterns)
    for entry in load(DENSE).ledger():
        if not entry.params or entry.kind == "norm":
            continue
        for number in range(4) if entry.path.startswith("layers") else (None,):
            if one.have(entry, number):
                found.add((number, entry.steps[-1].name))
    assert found == named


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        ([f"layers.0.mlp.experts.{i}.gate_proj" for i in range(4)], ""),
        ([f"layers.0.mlp.experts.{i}.gate_proj" for i in range(3)], "names 3 of 4 experts"),
        (["re:.*experts.0.gate_proj"], "of some of 4 experts, not of all"),
        (["re:.*experts.3.gate_proj"], "of some of 4 experts, not of all"),
        (["re:.*experts.2.gate_proj"], "of some of 4 experts, not of all"),
        (["re:.*experts.[0-3].gate_proj"], ""),
    ],
)
def test_experts_of_a_layer_have_one_format(patterns: list[str], said: str) -> None:
    (gate,) = (entry for entry in load(EXPERTS).ledger() if entry.routed and entry.steps[-1].name == "gate")
    try:
        assert Modules(patterns).have(gate, 0) and not said
    except InputError as error:
        assert said and said in str(error)


def test_a_size_that_may_be_no_larger_is_what_is_nearest() -> None:
    """Two key/value heads of two: no further size may be, and one would have fewer parameters."""
    model = load("D=64 L=2 h=2 h_kv=2 F=96 V=250")
    found = matched(model, "h_kv", model.params + 1, lambda one: one.params)
    assert (found.best, found.below, found.above) == (Near(2, -1), Near(2, -1), None)


@pytest.mark.parametrize(("near", "most"), [(1, 1), (50, 1), (50, 49), (50, 50), (50, 64), (50, 101), (3, 400)])
def test_the_largest_is_found_from_wherever_it_is_looked_for(near: int, most: int) -> None:
    assert largest(lambda n: n <= most, 500, near) == most and largest(lambda n: n <= 0, 500, near) == 0
    assert largest(lambda n: True, most, min(near, most)) is None


@pytest.mark.parametrize(("room", "ram", "fits"), [(0, None, True), (0, 0, True), (-1, 0, False), (0, -1, False)])
def test_what_leaves_nothing_fits(room: int, ram: int | None, fits: bool) -> None:
    assert (shortage(room, ram) == 0) == fits


def test_a_design_s_least_width_may_be_the_widest() -> None:
    """2^15 is tried, a multiple of 2^16 alone is not."""
    assert DesignFamily(vocab=1000, d_head=4096, gqa=8).checked().step() == 2**15
    with pytest.raises(InputError, match="more than the 32,768 tried"):
        DesignFamily(vocab=1000, d_head=4096, gqa=16).checked()


def test_the_numbers_of_a_plan_end() -> None:
    check(2, 10**9, 1024, {"tp": 1024})
    with pytest.raises(InputError, match="concurrency is 1000000001, expected a whole number from 1 to 1,000,000,000"):
        check(2, 10**9 + 1, None, {})


def test_the_highest_rate_is_rounded_down_to_three_digits() -> None:
    assert most_rate(lambda rate: rate <= 3.33701, 0.1, 10.0) == pytest.approx(3.33)
    assert most_rate(lambda rate: rate <= 0.0333701, 0.001, 10.0) == pytest.approx(0.0333)
    assert most_rate(lambda rate: rate <= 333.701, 0.1, 1000.0) == 333
    assert most_rate(lambda rate: rate <= 0.042, 0.05, 10.0) == 0.0
    assert most_rate(lambda rate: True, 1.0, 1.01) == 1.01, "of one rate, that one"
    assert most_rate(lambda rate: True, 1.0, 25.0) == pytest.approx(24.9, abs=0.11)


def test_the_context_of_lengths() -> None:
    """The longest prompt and answer; beside one alone as many tokens again, and no fewer than 8,192."""
    assert grown(Lengths(5, 9000), Lengths(1, 7)) == 9007
    assert [grown(Lengths(9000, 9001)), grown(None, Lengths(1, 100))] == [18_002, 8192]
    assert [grown(trained=(1024, 512)), grown(trained=(131_072,))] == [512, 8192]
    assert [grown(Lengths(9, long), trained=(1024,)) for long in (900, 1024, 1025)] == [1024, 1024, 1025]
    assert [request(9, answer=answer).prompt for answer in (7, 8, 9)] == [2, 1, 1]
    assert [request(9, prompt).answer for prompt in (7, 8, 9)] == [2, 1, 1]


@pytest.mark.parametrize("attention", ["dense", "masked"])
def test_products_of_a_model_are_all_its_flops(attention: str) -> None:
    """Also where layers share their weights, or a token has two of eight experts."""
    for name in ("albert-base-v2", "mixtral-8x7b"):
        ledger = load(name).ledger(1, 16)
        total = ledger.total("flops" if attention == "dense" else "flops_masked")
        assert sum(by_product(ledger, attention).values()) == total


def test_weights_beside_products_are_norms_or_others() -> None:
    ledger = load("mamba2-2.7b").ledger(1, 8)
    found = {(entry.name, name) for entry in ledger for name, _ in parameters(entry, tied=False)}
    others = {(entry, name) for entry, name in found if name in ("norms", "other weights")}
    assert others == {
        ("layers.mamba2_norm", "norms"), ("layers.mamba2.norm", "norms"), ("final_norm", "norms"),
        ("layers.mamba2.scan", "other weights"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("order", "repeats", "first", "size"),
    [
        (["a"], True, 1, 1),
        (["a", "b"], False, 2, 1),
        (["a", "b", "b"], False, 2, 1),
        (["a", "b", "a", "b"], True, 2, 2),
        (["a", "a", "b", "c", "c"], False, 4, 1),
    ],
)
def test_a_family_s_shapes_are_rounds_or_end_in_its_last_kind(
    order: list[str], repeats: bool, first: int, size: int
) -> None:
    family = Likeness(load(DENSE))
    family.__dict__["order"] = order
    assert (family.repeats, family.first, family.round) == (repeats, first, size)


def test_a_cap_of_logits_is_over_the_vocabulary() -> None:
    assert load("gemma-2-9b").ledger(2, 3).at("head.softcap").total("saved") == 2 * 3 * 256_000


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 9])
def test_a_crossover_within_a_chunk_or_where_a_block_begins(number: int) -> None:
    assert first_in_chunks(lambda n: n * (n - number), 4) == number
    assert first_in_blocks(lambda n: ceil_div(n, 4) * 4 - number, 4) == (number - 1) // 4 * 4 + 1


@pytest.mark.parametrize("end", [3, 4, 5, 8, 18])
def test_a_crossover_of_blocks_with_a_jump_behind_an_end(end: int) -> None:
    for jump, start in product((-100, 20, 60), range(30, 150, 9)):

        def excess(n: int, jump: int = jump, start: int = start) -> int:
            return ceil_div(n, 4) * (n + 5) - start + (jump if n > end else 0)

        assert first_in_blocks(excess, 4, (end,)) == next(n for n in range(1, 100) if excess(n) >= 0)


@pytest.mark.parametrize(("windows", "said"), [((16, 16), ""), ((16, 8), "other lengths: [8, 16]")])
def test_chunks_beside_windows_of_another_length_have_no_crossover(windows: tuple[int, int], said: str) -> None:
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
        assert lengths(build({**raw, "layer": {"a": chunked, "b": window}}, "mixed")).chunk == 16 and not said
    except InputError as error:
        assert said and said in str(error)


def test_lists_of_names() -> None:
    assert listed(["a", ["b", "c"]], "ignore") == ["a", "b", "c"] and listed(["a", " "], "ignore") == []
    assert listed("a,b", "ignore") == [] and listed([1], "ignore") == [] and listed([[]], "ignore") == []
    assert listed("model.h.1,model.h.2", "block_name_to_quantize") == [r"re:model\.layers\.1", r"re:model\.layers\.2"]
    assert listed([["model.layers.1", "model.layers.2"]], "quant_block_list") == [r"re:model\.layers\."]
    assert names("decoder.layers.0.attention.q")[0] == "self_attn.q_proj"
    assert names("layers.4.mixer.odd") == ("4.mixer.odd",)


# Structures and theorems.


def test_a_size_is_a_sum_of_products() -> None:
    one = Size(((2, ("r",)), (1, ("s", "t")), (5, ())))
    assert (one.over({"r": 3, "s": 5, "t": 7}), str(one)) == (2 * 3 + 35 + 5, "2·r + s·t + 5")


def test_a_size_below_0_is_a_letter_taken_off() -> None:
    piece = {"form": "linear", "bias": False, "shared": False, "groups": 1, "sizes": [8, 6], "at": [2, -3], "keys": ""}
    assert [str(size) for size in leaf(piece).spec["leaf"]["at"]] == ["leaf.at.0", "-1·leaf.at.1"]


def test_widths_of_a_grouped_leaf_are_multiples_of_its_groups() -> None:
    piece = {"form": "grouped", "bias": False, "shared": False, "groups": 2, "sizes": [8, 6], "at": [1], "keys": ""}
    said = [str(size) for size in leaf(piece).spec["leaf"]["sizes"]]
    assert said == ["leaf.groups·leaf.d_in", "leaf.groups·leaf.d_out"]
    assert leaf(piece).values == {"leaf.groups": 2, "leaf.d_in": 4, "leaf.d_out": 3}


STREAM = {"d_model": 64, "feed_forward.d_ff": 96}
HEADS = {"attention.n_kv_heads": 4, "attention.n_heads/n_kv_heads": 2, "attention.d_head/2": 4}


@pytest.mark.parametrize(
    ("source", "changes", "values"),
    [
        (DENSE, {}, STREAM | HEADS),
        ("D=64 L=2 h=8 h_kv=1 F=96 V=250", {}, STREAM | {"attention.n_heads": 8, "attention.d_head/2": 4}),
        ("D=64 L=2 h=8 F=96 V=250", {}, STREAM | {"attention.n_kv_heads": 8, "attention.d_head/2": 4}),
        ("D=64 L=2 h=4 F=96 V=250 direct", {},
         {"attention.n_kv_heads": 4, "attention.d_head/2": 8, "feed_forward.d_ff": 96}),
        (DENSE, {"positions.rotary_dims": 4},
         STREAM | HEADS | {"positions.rotary_dims/2": 2, "attention.d_head-rotary/2": 2}),
        (DENSE, {"positions.rotary_dims": 2},
         STREAM | HEADS | {"attention.d_head-rotary/2": 3}),
        (DENSE, {"attention.d_head": 2}, STREAM | {name: HEADS[name] for name in [*HEADS][:2]}),
        (DENSE, {"positions.form": "sinusoidal"}, HEADS | {"d_model/2": 32, "feed_forward.d_ff": 96}),
        (EXPERTS, {}, {"d_model": 64, **HEADS, "experts.top_k": 2, "experts.idle": 2, "experts.d_ff": 96}),
        (EXPERTS.replace("k=2", "k=1"), {}, {"d_model": 64, **HEADS, "experts.n_experts": 4, "experts.d_ff": 96}),
    ],
)  # fmt: skip
def test_the_parameters_of_a_layer(source: str, changes: dict[str, Any], values: dict[str, int]) -> None:
    """h is h_kv·g unless one of them is 1, a head's width even (two, if there is no less) and, where part of it is
    turned, that and a rest; what heads together are as wide as is theirs; a stream of sines and cosines is even;
    experts are those that a token passes, if several, and the others."""
    *frame, layer = units(load(source, changes))
    assert layer.values == values
    width = "d_model/2" if changes.get("positions.form") == "sinusoidal" else "d_model"
    assert frame[0].values[width] == values.get(width, 64) and frame[0].values["vocab_size"] == 250
    numbers = probe(layer)
    assert list(numbers) == sorted(values) and list(numbers.values()) == list(primes(len(values)))


def test_what_is_absent_is_no_size() -> None:
    """A structure's key says nothing of a size of 0, and says of a size of 1 that it is one."""
    *_, layer = units(load(EXPERTS.replace("k=2", "k=1")))
    experts = layer.spec["stacks"][""]["layer"]["layer"]["experts"]
    assert (experts["d_ff_shared"], experts["top_k"]) == (0, Size(((1, ()),)))


def test_a_width_is_divided_among_heads_where_there_are_any() -> None:
    assert units(build(TINY["mamba"], "mamba"))[-1].values["mamba.d_inner"] == 64
    assert units(build(TINY["mamba2"], "mamba2"))[-1].values["mamba2.n_heads/n_groups"] == 4


def test_what_a_head_has_beyond_its_turned_part_is_a_parameter() -> None:
    """Of 8 of a head 4 are turned, of 6 of the index as many; where all are, their number is the head's."""
    found = {unit.name: unit.spec["stacks"][""]["layer"]["layer"] for unit in units(build(TINY["laguna"], "laguna"))}
    turned = {name: str(layer["positions"]["rotary_dims"]) for name, layer in found.items()}
    assert turned["layer local"] == str(found["layer local"]["attention"]["d_head"]) == "2·attention.d_head/2"
    assert turned["layer wide"] == "2·positions.rotary_dims/2"
    *_, layer = units(build(TINY["compressed"], "compressed"))
    beyond = {name: value for name, value in layer.values.items() if "-d_rope" in name}
    assert beyond == {"compressed.d_head-d_rope/2": 2, "compressed.index_width-d_rope": 2}


def primes(number: int) -> Iterator[int]:
    found = 11
    while number:
        if all(found % n for n in range(2, found)):
            number -= 1
            yield found
        found += 1


@pytest.mark.parametrize(("number", "unequal", "least"), [(5, False, True), (6, True, True), (4, True, False)])
def test_a_condition_holds_or_not(number: int, unequal: bool, least: bool) -> None:
    size = Size(((1, ("n",)), (-5, ())))
    for relation, holds, sign in (("!=", unequal, "≠"), (">=", least, "≥")):
        one = Condition(size, relation)
        assert one.holds({"n": number}) == holds and str(one) == f"n + -5 {sign} 0"


def test_theorems_are_those_of_the_first_file_that_has_them(tmp_path: Path) -> None:
    def file(**names: str) -> Path:
        save(path := tmp_path / "".join(names), {key: Theorem(name, {}, "", ()) for key, name in names.items()}, {})
        return path

    files = file(a="one", b="two"), file(b="other", c="three")
    kept = TheoremFiles({path: path.read_text("utf-8") for path in files})
    assert [kept[key].name for key in "abc"] == ["one", "two", "three"] and list(kept) == ["a", "b", "c"]
    assert len(kept) == 3 and "d" not in kept


# What parts say of themselves beside their formulas.

# Each operation of an element of what is no matrix product, as the textbooks write it; an exp is one.
SPELT = {
    "add": "add", "layer_norm": "mean subtract square mean scale weight bias",
    "layer_norm_nobias": "mean subtract square mean scale weight", "rms_norm": "square mean scale weight",
    "softmax": "scale subtract exp sum divide", "rotary": "multiply multiply add", "relu": "larger",
    "relu2": "larger square", "relu6": "larger smaller", "hard_swish": "add larger smaller multiply divide",
    "gelu": "scale erf add multiply multiply",
    "gelu_tanh": "square cube multiply add multiply tanh add multiply multiply",
    "quick_gelu": "scale exp add divide", "silu": "negate exp add divide",
    "clamped_silu": "clamp clamp add scale exp add divide multiply", "sigmoid": "exp add divide", "tanh": "tanh",
    "softplus": "exp log", "xielu": "exp subtract subtract multiply multiply add",
    "cut": "square mean mean deviation cut larger", "none": "",
}  # fmt: skip


def test_operations_of_an_element_are_counted() -> None:
    assert {name: len(operations.split()) for name, operations in SPELT.items()} == COST


def test_whisper_s_convolutions_read_each_position_once() -> None:
    """1,500 positions of 3,000 steps of 128 bands: the second one takes every other of what the first one gives."""
    found = {e.steps[-1].name: e for e in load("whisper-large-v3").ledger(2, 8) if "conv" in e.path and e.params}
    assert (found["conv1"].saved, found["conv2"].saved) == (2 * 3000 * 128, 2 * 3000 * 1280)
    assert found["conv1"].operations[0].traffic.activations == 2 * 3000 * (128 + 1280)
    assert found["conv2"].operations[0].traffic.activations == 2 * (3000 + 1500) * 1280


@pytest.mark.parametrize(("gate", "fused", "stored"), [("none", 0, 16 * 64), ("head", 16 * 64, 16 * 64)])
def test_a_norm_before_o_reads_what_the_core_keeps(gate: str, fused: int, stored: int) -> None:
    """Unless its result is gated between, or the core's scores are kept and not its result."""
    attention = {"n_heads": 8, "inner_norm": True, "gate": gate}
    model = build({"d_model": 64, "n_layers": 1, "attention": attention, "feed_forward": {"d_ff": 96}}, "normed")
    for scores, size in ((False, fused), (True, stored)):
        (norm,) = (entry for entry in model.ledger(2, 8, keep_scores=scores) if entry.path.endswith("inner_norm"))
        assert norm.saved == size


def test_a_norm_before_o_is_cut_as_values_are() -> None:
    attention = {"n_heads": 8, "d_head": 8, "d_v": 16, "inner_norm": True}
    model = build({"d_model": 64, "n_layers": 1, "attention": attention, "feed_forward": {"d_ff": 96}}, "normed")
    (stage,) = Sharding(model).stages(Layout(tp=2))
    (norm,) = (entry for entry in walk(stage.root, model.workload()) if entry.path.endswith("inner_norm"))
    assert norm.params == 4 * 16


def test_half_of_wide_differential_heads_are_normed() -> None:
    """A pair of heads together, of twice a head's width; keys and values have half as many heads."""
    heads = {"n_heads": 8, "n_kv_heads": 4, "d_head": 8}
    raw = {"d_model": 64, "n_layers": 1, "feed_forward": {"d_ff": 96}, "differential_attention": heads}
    model = build(raw, "differential")
    (norm,) = (entry.leaf for entry in model.ledger() if entry.path.endswith("inner_norm"))
    assert (norm.width, norm.groups) == (16, 4)  # type: ignore[attr-defined]
    assert model.ledger().by_kind("params")["attention"] == 2 * 64 * 64 + 2 * 64 * 32 + 4 * 8
    assert next(e for e in model.ledger(1, 2) if e.path.endswith("rotary")).flops_other == 2 * 3 * (8 + 4) * 8
    core = next(e.leaf for e in model.ledger() if e.path.endswith(".core"))
    assert core.token == 4 * (8 + 8)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("parts", "sums"), [(["attention", "feed_forward"], 2), (["pieces"], 0), (["attention", "pieces"], 1)]
)
def test_a_branch_is_added_once_unless_its_pieces_are(parts: list[str], sums: int) -> None:
    """Where what it is added to is scaled too, twice."""
    piece = {"name": "x", "form": "linear", "sizes": [64, 64]}
    tables = {"attention": {"n_heads": 8}, "feed_forward": {"d_ff": 96}, "pieces": {"leaves": [piece]}}
    raw = {"d_model": 64, "n_layers": 1, "layer": {"layer": {"parts": parts, **{name: tables[name] for name in parts}}}}
    for scaled, norm in ((False, {}), (True, {"residual": 0.5})):
        model = build({**raw, "norm": norm}, "sums")
        (added,) = (entry for entry in model.ledger(2, 8) if entry.path.endswith(".residual"))
        assert added.flops_other == (1 + scaled) * sums * 16 * 64


def test_a_norm_keeps_a_number_of_a_row_and_a_core_one_of_each_head() -> None:
    """Its deviation, and the log-sum of a head's scores; all else keeps none."""
    for source, heads in ((DENSE, 8), ("gpt2", 12)):
        for entry in load(source).ledger(2, 8):
            kept = {"norm": 1, "attention_core": heads}.get(entry.kind, 0)
            assert entry.work is not None and entry.leaf.rows_kept(entry.work) == kept


def test_biases_of_distances_look_both_ways_where_the_mask_does() -> None:
    """T5's encoder and decoder, BEiT's patches."""
    found = [leaf.bidirectional for leaf in load("t5-small").root.leaves() if isinstance(leaf, RelativeBias)]
    assert found == [True, False]


def test_a_prediction_layer_is_its_stack_s_first() -> None:
    own = load("deepseek-v3").predictor
    assert own and {entry.numbers for entry in own.entries if entry.layer} == {(0,)}


def test_the_digest_of_a_proof_is_of_how_often_layers_run() -> None:
    """ALBERT's layers are one that runs again: as many parameters however often."""
    once, twice = (load("albert-base-v2", {"n_layers": layers}) for layers in (6, 12))
    assert once.params == twice.params and sized(once).key != sized(twice).key
    assert Formulas(sized(once)).digest("flops") != Formulas(sized(twice)).digest("flops")
    ledger = once.ledger(1, 8)
    assert inheritance(once, ("flops",), ledger)["flops"][0] == "proved"
    assert inheritance(twice, ("flops",), ledger) == {}  # another model's figures


# What a pass asks of any accelerator.


def test_a_pass_is_worked_out_once_for_each_of_an_engine_s_formats() -> None:
    """In pages of any size; a cache of half the bits is half the bytes, and four layers in RAM are told from none."""
    model, layout = load(DENSE), Layout()
    (stage,), wide = Sharding(model).stages(layout), engine(model, "bf16")
    aside = replace(wide, offload=Offload(HostMemory(10**9), 4, 4))
    held, half, away = (RankWork.of(stage, layout, one) for one in (wide, engine(model, "bf16", kv="fp8"), aside))
    assert RankWork.of(stage, layout, engine(model, "bf16", block=32)) is held
    work = model.workload(1, 1, 99)
    cached, narrow, _ = (sum(one.cache for one in each.loads(work)) for each in (held, half, away))
    assert cached == 2 * narrow > 0
    here = [leaf.entry.name for leaf in away.leaves if not leaf.in_ram]
    assert here == ["final_norm", "head.projection"] and not any(leaf.in_ram for leaf in held.leaves)


def test_experts_activations_stay_in_their_kernel() -> None:
    """Of two experts in each of four layers, for 8 tokens: an activation of 96 numbers is read and written, and it, the
    other half and their product."""
    model = load(EXPERTS)
    work = RankWork(Sharding(model, serving=True).stages(Layout())[0], Layout(), engine(model))
    loads = {work.leaves[load.leaf].entry.name: load for load in work.loads(model.workload(1, 8))}
    activation = loads["layers.experts.routed.activation"]
    assert (activation.moved, activation.on_chip) == (0, 8 * 8 * (2 + 3) * 96 * 2)


@pytest.mark.parametrize("name", ["zamba", "zamba2"])
def test_weights_of_another_layer_are_read_where_it_computes(name: str) -> None:
    """Those that a layer shares with an earlier one are held there, and read in both."""
    model, layout = build(TINY[name], name), Layout()
    work = RankWork(Sharding(model, serving=True).stages(layout)[0], layout, engine(model))
    work.loads(model.workload())
    read = {leaf.entry.path: leaf.weights for leaf in work.leaves}
    held = {entry.path: entry for entry in model.ledger()}
    borrowed = [path for path, entry in held.items() if entry.leaf.matrix and not entry.params]
    assert {"q", "down"} <= {path.rpartition(".")[2] for path in borrowed}
    for path in borrowed:
        if path.startswith("layers"):
            d_in, d_out = held[path].leaf.matrix or (0, 0)
            bias = d_out * ("feed_forward" in path and name == "zamba2")
            assert read[path] == 2 * (d_in * d_out + bias), path


@pytest.mark.parametrize(
    ("name", "leaf", "scores", "each"),
    [
        ("llama", "core", 4 * 2 * 24 * 24, 2 * (8 + 8)),
        ("diffllama", "core", 2 * 8 * 2 * 24 * 24, 2 * (6 + 6)),  # each half of the heads twice
        ("deepseek-v3", "core", 4 * 2 * 24 * 24, 2 * (12 + 6)),
        # A query's one vector of weights, of as many elements as there are heads, and not of as many as there are keys.
        ("deepseek-v3.2", "indexer.core", 8 * 2 * 24 * 24, 2 * (6 + 1)),
        ("chinchilla", "core", 4 * 2 * 24 * 24, 2 * (8 + 8 + 8)),  # and of a projected distance for each key
        # Content, values, and each of both with 12 relative positions.
        ("deberta", "core", 4 * 2 * 24 * 24, 2 * (8 + 8) + 2 * 2 * 8 * Fraction(12, 24)),
    ],
)
def test_what_one_score_costs(
    name: str, leaf: str, scores: int, each: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two sequences of 24 tokens, in a server's pass and in a training step; FLOPs add up."""
    model, layout = build(TINY[name], name), Layout()
    entry = next(e for e in model.ledger(2, 24) if e.path.endswith(f"attention.{leaf}"))
    assert scored(entry.operations) == scores and flops_per_score(entry.operations) == pytest.approx(float(each))
    work = model.workload(2, 24)._replace(tokens=96)
    passes = RankWork(Sharding(model, serving=True).stages(layout)[0], layout, engine(model))
    (load, *_) = (one for one in passes.loads(work) if passes.leaves[one.leaf].entry.path.endswith(f"attention.{leaf}"))
    assert load.core and load.core.score * load.core.scores * load.runs == pytest.approx(load.core.dense)
    asked = list[float]()

    def core(*given: Any, backward: bool = False) -> float:
        asked.append(given[5])
        return 0.0

    monkeypatch.setattr(Kernels, "core", core)
    recipe = Recipe(tokens=24, micro_batch=2)
    assert StepTimer(model, recipe, Machine.of(hardware.load("h100-sxm"))).works
    assert any(score == pytest.approx(float(each)) for score in asked)


def test_what_has_no_score_yet_costs_nothing() -> None:
    """A first token has no block of earlier ones that could be selected."""
    model = build(TINY["compressed"], "compressed")
    index = next(e for e in model.ledger(1, 1) if e.path.endswith("selector.core"))
    assert (scored(index.operations), flops_per_score(index.operations)) == (0, 1)


def test_a_layer_that_runs_again_starts_its_kernels_again() -> None:
    """ALBERT's layers are one: its weights are there once and run three times."""
    model, layout = build(TINY["albert"], "albert"), Layout()
    (stage,) = Sharding(model).stages(layout)
    passes = RankWork.of(stage, layout, engine(model))
    loads = passes.loads(model.workload(1, 1))
    sizes = {(one.inputs, one.outputs) for one in loads if passes.leaves[one.leaf].entry.leaf.matrix is None}
    assert sizes == {(0, 0)}  # of what is no product
    (query,) = (leaf for leaf in passes.leaves if leaf.entry.name == "layers.attention.q")
    assert (query.entry.times, query.entry.runs, query.starts) == (1, 3, 3)


def test_llama_cpp_keeps_layers_in_ram_where_no_engine_is_named() -> None:
    assert (offloading("none"), offloading("llama.cpp")) == ("llama.cpp", "llama.cpp")
    with pytest.raises(InputError, match=r"expected llama\.cpp: the others"):
        offloading("vllm")


def test_forgetting_heads_share_keys_evenly() -> None:
    heads = {"n_heads": 4, "n_kv_heads": 3, "d_head": 5}
    said = {
        "d_model": 16,
        "n_layers": 1,
        "vocab_size": 50,
        "forgetting": heads,
        "layer": {"a": {"parts": ["forgetting"]}},
    }
    with pytest.raises(InputError, match="n_kv_heads"):
        build(said, "test")
    assert build(said | {"forgetting": heads | {"n_kv_heads": 2}}, "test").params > 0


def test_weights_that_a_step_reads_are_read_once() -> None:
    """ALBERT's layers are one; of experts those of so many tokens, at most all."""
    albert = build(TINY["albert"], "albert").ledger(1, 3)
    assert sum(map(elements_read, albert)) == sum(e.leaf.untied.params for e in albert if e.leaf.row is None)
    for tokens, read in ((1, 2), (2, 4), (3, 4)):
        gates = [e for e in load(EXPERTS).ledger(1, tokens) if e.routed and e.steps[-1].name == "gate"]
        assert sum(map(elements_read, gates)) == 4 * read * 64 * 96


def test_of_formats_beside_ram_the_one_that_leaves_most_of_it() -> None:
    none = ModelFit.refusal(load(EXPERTS), "bf16", "bf16", "", 1, "no kernel")
    first, second = (replace(none, fits=True, room_bytes=5, in_ram="experts", ram_free_bytes=ram) for ram in (0, 1))
    assert best([first, second]) == second and best([second, first]) == second
    refused = [replace(none, weights=name) for name in ("bf16", "fp8")]
    assert best(refused) == refused[0]


def test_a_prompt_is_at_least_one_token_longer_than_its_prefix() -> None:
    """Of 5 tokens 4 are the prefix's, which are nobody's own; of 20 half are cached, 2 of which are it."""
    for prompt, prefix, new, own in ((5, 10, 1, 0), (20, 2, 10, 8), (20, 19, 1, 0)):
        (job,) = Requests(Lengths(prompt, prompt), Lengths(3, 3), cached=0.5, prefix=prefix).jobs(1, 0)
        assert (job.prompt, job.cached) == (new, own)


def test_a_series_of_five_asks_for_four() -> None:
    """A parabola through three and a fourth that lies on it."""
    asked = list[int]()

    def term(i: int) -> Cost:
        asked.append(i)
        return Cost(compute=1.0 + i * i)

    assert series(term, 5).compute == 5 + 30 and asked == [0, 1, 2, 4]


def test_the_first_token_of_a_cached_prompt_is_no_sooner_for_chunks() -> None:
    """The floor is of 3,000 tokens at once after 1,000 cached ones, in however many chunks they come."""
    model = load("llama-3.1-8b")
    sharding, card = Sharding(model), hardware.load("h100-sxm")
    whole, cut = (LayoutTime(model, sharding, Layout(), card, engine(model, chunk=size)) for size in (3000, 512))
    assert whole.prefill(4000, 1000).floor == pytest.approx(cut.prefill(4000, 1000).floor, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "leaf", "again"), [("llama", "core", 1), ("gpt2", "core", 0), ("deepseek-v3.2", "indexer.core", 0)]
)
def test_heads_that_share_keys_read_them_again(name: str, leaf: str, again: int) -> None:
    """Two heads a group: once more; an index has no groups."""
    model, layout = build(TINY[name], name), Layout()
    passes = RankWork(Sharding(model, serving=True).stages(layout)[0], layout, engine(model))
    loads = {passes.leaves[load.leaf].entry.path: load.core for load in passes.loads(model.workload(1, 1, 9))}
    core = loads[f"layers.0.attention.{leaf}"]
    assert core and (core.again, core.grouped) == (again, again > 0)
