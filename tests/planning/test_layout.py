"""Layouts: what is written, what cannot be, and where the ranks of a group stand."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
from command import typed
from paths import stored_rows
from tiny import TINY

from txcalc import load
from txcalc.errors import InputError
from txcalc.ledger import walk
from txcalc.planning.layout import ORDER, SERVING_ORDER, Group, Layout, parse_layout, ranks_per_node, standing
from txcalc.planning.parallelism import Sharding
from txcalc.sources import build


def test_a_layout_is_read_by_name() -> None:
    layout = parse_layout("tp=8, pp=16,dp=4,vpp=2,sp=8")
    assert layout == Layout(tp=8, pp=16, dp=4, vpp=2, sp=8)
    assert (layout.gpus, layout.stage, layout.copies, str(layout)) == (512, 32, 4, "tp=8 sp=8 pp=16 vpp=2 dp=4")
    assert str(Layout()) == "one GPU"
    assert Layout(fsdp=8, dp=2).gpus == 16
    assert layout.record() == {"tp": 8, "sp": 8, "pp": 16, "vpp": 2, "dp": 4, "ep": 1}
    assert Layout().record() == {"tp": 1, "pp": 1, "dp": 1, "ep": 1}


@pytest.mark.parametrize("node", [1, 2, 4, 6, 8, 72])
def test_the_worst_group_is_that_of_all_ranks(node: int) -> None:
    """As a count of every rank of every group has it."""
    for size, stride, blocks in product((1, 2, 3, 5, 8, 13), (1, 2, 3, 4, 6, 8, 9), (1, 2, 3, 7)):
        period = size * stride
        groups = [
            Counter(
                (block * period + offset + i * stride) // ranks_per_node(node, blocks * period) for i in range(size)
            )
            for block in range(blocks)
            for offset in range(stride)
        ]
        expected = min(min(group.values()) for group in groups), max(map(len, groups))
        assert standing(size, stride, node, blocks * period) == expected, (size, stride, blocks)


@pytest.mark.parametrize(
    ("layout", "one_node"), [(Layout(tp=2, pp=3), True), (Layout(tp=3, pp=3), False), (Layout(pp=8), True)]
)
def test_the_ends_of_a_pipeline_stand_in_one_node_or_do_not(layout: Layout, one_node: bool) -> None:
    assert layout.ends(8) == Group(2, 2 if one_node else 1)
    assert layout.ends(None) == Group(2, 2)


# What ranks send.


def sent(name: str, layout: Layout, stage: int = 0, tokens: int = 7, **how: Any) -> dict[str, int]:
    """Elements that a rank sends, by kind of collective."""
    model = load(name)
    root = Sharding(model).stages(layout)[stage].root
    return walk(root, model.workload(2, tokens, **how)).by_kind("sent")


def test_formulas_of_a_rank_are_printed() -> None:
    pytest.importorskip("sympy")
    document = typed.data("formula", "llama-3.1-8b", "layers.0", "--layout", "tp=8,dp=2")
    assert document["layout"] == {"tp": 8, "pp": 1, "dp": 2, "ep": 1}
    (sent,) = [row for row in document["rows"] if row["part"] == "layers.0" and row["quantity"] == "sent"]
    assert (sent["formula"], sent["substituted"]) == ("4·B·T·D·(tp − 1)/tp", "14336·B·T")
    assert sent["value"] == 14_336
    assert {letter["letter"]: letter["value"] for letter in document["letters"]}["tp"] == 8
    small = ("formula", "D=64 L=4 h=4 F=128 V=4096", "--layout", "pp=2")
    first, fullest = (typed.data(*small, *options) for options in (("--stage", "0"), ()))
    assert (first["stage"], fullest["stage"]) == (0, 1)  # which has the logits
    assert next(row["formula"] for row in first["rows"] if row["part"] == "send") == "B·T·D"
    for options, words in (
        (["--layout", "tp=3"], "a divisor of n_heads = 32"),
        (["--layout", "pp=2", "--stage", "2"], "--stage is 2, expected a stage from 0 to 1 of pp=2"),
        (["--stage", "0"], "add --layout pp=N"),
        (["--layout", "tp=2", "--stage", "0"], "add --layout pp=N"),
    ):
        assert words in typed("formula", "llama-3.1-8b", *options).output
    assert "--layout needs a model" in typed("formula", "--layout", "tp=8").output


def test_an_axis_that_is_misspelt() -> None:
    with pytest.raises(InputError, match="did you mean dp"):
        parse_layout("dq=2")
    with pytest.raises(InputError, match="one of tp, "):
        parse_layout("replicas=2")


def test_where_ranks_of_experts_stand_one_by_one() -> None:
    """Every rank numbered from the axis of neighbours on: those of a stage in turn, each group of experts' ranks from
    one block of them."""
    for tp, pp, dp, ep, etp in (
        (2, 2, 2, 4, 1), (4, 2, 2, 8, 1), (2, 3, 2, 4, 1), (2, 2, 4, 8, 1), (1, 2, 6, 3, 1), (2, 1, 4, 8, 1),
        (2, 2, 6, 3, 2), (2, 3, 4, 4, 2), (4, 2, 3, 3, 4),
    ):  # fmt: skip
        layout = Layout(tp=tp, pp=pp, dp=dp, ep=ep, etp=etp)
        for node, order in product((2, 3, 4, 8), (ORDER, SERVING_ORDER)):
            degrees = [getattr(layout, axis) for axis in reversed(order)]
            stages: dict[int, list[int]] = {}
            for number, place in enumerate(product(*map(range, degrees))):
                stages.setdefault(dict(zip(reversed(order), place, strict=True))["pp"], []).append(number)
            per_node = ranks_per_node(node, layout.gpus)
            groups = [
                ranks[i + offset : i + ep * etp : etp]
                for ranks in stages.values()
                for i in range(0, len(ranks), ep * etp)
                for offset in range(etp)
            ]
            fewest = min(min(Counter(rank // per_node for rank in group).values()) for group in groups)
            assert layout.group("ep", node, order) == Group(ep, fewest), (layout, node, order)


def test_projected_positions_are_split_by_heads() -> None:
    """From the stream's width to that of all heads, which differ."""
    model = build({**TINY["chinchilla"], "attention": {"n_heads": 4, "d_head": 12}}, "wide heads")
    for ranks in (1, 2):
        root = Sharding(model).stages(Layout(tp=ranks))[0].root
        shapes = {entry.steps[-1].name: entry.leaf.matrix for entry in walk(root, model.workload(1, 4))}
        assert shapes["position"] == (32, 4 * 12 // ranks)


MIXTURE = "D=64 L=4 h=8 h_kv=4 F=96 V=250 E=4 k=2"

DENSE = "D=64 L=4 h=8 h_kv=4 F=96 V=250"


@pytest.mark.parametrize(
    ("layout", "gpus", "ways", "group", "sharing", "exchanges", "text"),
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
    layout: Layout, gpus: int, ways: int, group: int, sharing: int, exchanges: bool, text: str
) -> None:
    assert (layout.gpus, layout.expert_ways, layout.expert_group) == (gpus, ways, group)
    assert (layout.sharing, layout.exchanges, str(layout)) == (sharing, exchanges, text)
    shown = {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp, "ep": layout.ep}
    numbers = dict(word.split("=") for word in text.split() if "=" in word)
    assert layout.record() == shown | {name: int(number) for name, number in numbers.items()}
    assert text == "one GPU" or parse_layout(text.replace(" ", ",")) == layout


@pytest.mark.parametrize(("layout", "message"), stored_rows("refused.json", "layouts"))
def test_what_is_no_layout(layout: dict[str, int], message: str) -> None:
    faults = "; ".join(map(str, Layout(**layout).faults()))
    assert message in faults and bool(message) == bool(faults)


@pytest.mark.parametrize(("source", "layout", "serving", "message"), stored_rows("refused.json", "layouts of models"))
def test_layouts_that_a_model_does_not_allow(source: str, layout: dict[str, int], serving: bool, message: str) -> None:
    faults = "; ".join(map(str, Sharding(load(source), serving).faults(Layout(**layout))))
    assert message in faults and bool(message) == bool(faults)


@pytest.mark.parametrize("fixed", [{}, {"tp": 2}, {"pp": 4}, {"dp": 2}, {"ep": 4}, {"ep": 2, "etp": 2}, {"tp": 3}])
@pytest.mark.parametrize(("source", "gpus"), [(DENSE, 8), (MIXTURE, 8), (DENSE, 6), ("t5-small", 4)])
def test_all_layouts_that_a_model_allows(source: str, gpus: int, fixed: dict[str, int]) -> None:
    """Of all numbers: experts split like the rest or spread over a whole stage, unless it is said how."""
    sharding, expected = Sharding(load(source), serving=True), set()
    for tp, pp, dp in product(range(1, gpus + 1), repeat=3):
        if tp * pp * dp != gpus or {"tp": tp, "pp": pp, "dp": dp} | fixed != fixed | {"tp": tp, "pp": pp, "dp": dp}:
            continue
        spread = {fixed["ep"]} if "ep" in fixed else {1, tp * dp} if source == MIXTURE else {1}
        candidates = {Layout(tp=tp, pp=pp, dp=dp, ep=ep, etp=fixed.get("etp")) for ep in spread}
        expected |= {layout for layout in candidates if not sharding.faults(layout)}
    listed = list(sharding.layouts(gpus, fixed))
    assert len(listed) == len(set(listed)) and set(listed) == expected


@pytest.mark.parametrize(
    ("source", "layout", "rows"),
    [
        (DENSE, Layout(tp=2), {"q": (0, "tp", 2, 1), "k": (0, "tp", 2, 1), "o": (1, "tp", 2, 1),
                               "gate": (0, "tp", 2, 1), "down": (1, "tp", 2, 1), "norm": (None, "tp", 1, 2)}),
        (DENSE, Layout(tp=4), {"tokens": (0, "tp", 4, 1), "projection": (0, "tp", 4, 1)}),  # 63 rows of 250
        (DENSE, Layout(tp=8), {"q": (0, "tp", 8, 1), "k": (0, "tp", 4, 2), "o": (1, "tp", 8, 1)}),
        (MIXTURE, Layout(tp=2), {"gate": (0, "etp", 2, 1), "router": (None, "tp", 1, 2), "down": (1, "etp", 2, 1)}),
        (MIXTURE, Layout(tp=2, ep=2), {"gate": (None, "etp", 1, 1), "q": (0, "tp", 2, 1)}),
    ],
)  # fmt: skip
def test_where_tensors_are(source: str, layout: Layout, rows: dict[str, tuple[Any, ...]]) -> None:
    """Of each: the dimension that is split, by which axis, into how many pieces, and how many ranks hold the same."""
    by_name = {
        placement.entry.steps[-1].name.removeprefix("attention_"): placement
        for placement in Sharding(load(source)).placements(layout)
        if placement.weight == "weight"
    }
    for name, row in rows.items():
        placement = by_name[name]
        assert (placement.dim, placement.axis, placement.pieces, placement.alike) == row
        for dim, (whole, shard_size) in enumerate(zip(placement.whole, placement.shard, strict=True)):
            assert shard_size == (-(-whole // placement.pieces) if dim == placement.dim else whole)
        assert placement.times == placement.entry.times * (layout.ep if placement.axis == "etp" else 1)
