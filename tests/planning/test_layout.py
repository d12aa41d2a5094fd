"""Layouts: what is written, what cannot be, and where the ranks of a group stand."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from command import typed
from msgspec.structs import replace
from tiny import TINY

from txcalc import hardware, load
from txcalc.errors import InputError
from txcalc.ledger import walk
from txcalc.parts.sharding import Ways
from txcalc.planning import links
from txcalc.planning.layout import (
    AXES,
    ORDER,
    SERVING_ORDER,
    UNSERVED,
    Group,
    Layout,
    filled,
    parse_layout,
    standing,
    unserved,
)
from txcalc.planning.parallelism import Sharding, parted, piece, sizes
from txcalc.sources import build
from txcalc.sources.presets import names


def test_a_layout_is_read_by_name() -> None:
    found = parse_layout("tp=8, pp=16,dp=4,vpp=2,sp=8")
    assert found == Layout(tp=8, pp=16, dp=4, vpp=2, sp=8)
    assert (found.gpus, found.stage, found.copies, str(found)) == (512, 32, 4, "tp=8 sp=8 pp=16 vpp=2 dp=4")
    assert str(Layout()) == "one GPU"
    assert Layout(fsdp=8, dp=2).gpus == 16
    assert found.record() == {"tp": 8, "sp": 8, "pp": 16, "vpp": 2, "dp": 4, "ep": 1}
    assert Layout().record() == {"tp": 1, "pp": 1, "dp": 1, "ep": 1}


def test_every_axis_is_for_serving_or_refused_there() -> None:
    assert {"tp", "pp", "dp", "ep", "etp", *UNSERVED} == set(AXES)
    sharding = Sharding(load("gpt2"), serving=True)
    for layout in (Layout(cp=2), Layout(fsdp=2), Layout(pp=2, vpp=2), Layout(tp=2, sp=2), Layout(etp=2, tp=2)):
        (fault,) = sharding.faults(layout)
        assert "expected 1: " in str(fault)
        assert not Sharding(load("mixtral-8x7b")).faults(layout)


@pytest.mark.drawn(quick=1000)
@pytest.mark.parametrize(
    ("layout", "axis", "expected"),
    [
        (Layout(tp=8, dp=2), "tp", Group(8, 8)),
        (Layout(tp=16), "tp", Group(16, 8)),
        (Layout(tp=2, dp=16), "dp", Group(16, 4)),
        (Layout(tp=8, dp=4), "dp", Group(4, 1)),
        (Layout(tp=4, cp=2, fsdp=4), "cp", Group(2, 2)),
        (Layout(tp=4, cp=2, fsdp=4), "fsdp", Group(4, 1)),
        (Layout(tp=2, pp=2, dp=4), "pp", Group(2, 1)),
        (Layout(dp=16, ep=16), "ep", Group(16, 8)),
        (Layout(tp=4, ep=2), "ep", Group(2, 2)),
        (Layout(tp=4, dp=4, ep=4, etp=4), "ep", Group(4, 2)),
        (Layout(tp=4, dp=4, ep=4, etp=4), "etp", Group(4, 4)),
        (Layout(tp=8, pp=2, dp=2, ep=16), "ep", Group(16, 8)),
        # Twelve stand in two nodes, six in each.
        (Layout(tp=2, fsdp=3, dp=2), "fsdp", Group(3, 3)),
        (Layout(tp=3, dp=4), "tp", Group(3, 3)),
        (Layout(tp=2, pp=5), "pp", Group(5, 3)),
        (Layout(dp=12, ep=3), "ep", Group(3, 3)),
        # Of twenty in nodes of eight some groups stand in one node, as that of the first rank, and some in two.
        (Layout(tp=5, dp=4), "tp", Group(5, 1)),
        (Layout(tp=2, fsdp=5, dp=2), "fsdp", Group(5, 1)),
        (Layout(dp=20, ep=10), "ep", Group(10, 2)),
        (Layout(tp=3, pp=2), "pp", Group(2, 2)),
        (Layout(tp=3, pp=4), "pp", Group(4, 2)),
    ],
)
def test_ranks_of_a_group_stand_in_nodes_of_eight(layout: Layout, axis: str, expected: Group) -> None:
    assert layout.group(axis, 8) == expected
    assert layout.group(axis, 8).crosses == (expected.local < expected.size)
    assert layout.group(axis, None) == Group(expected.size, expected.size)


def test_a_job_takes_as_many_of_every_node() -> None:
    assert filled(72, 256) == 64  # of four racks
    assert [filled(8, ranks) for ranks in (1, 8, 10, 12, 13, 16, 20)] == [1, 8, 5, 6, 8, 8, 8]
    assert Layout(dp=64, pp=4, ep=32).group("ep", 72) == Group(32, 32)
    assert Layout(tp=4, pp=16, dp=4).ends(72) == Group(2, 1)
    assert Layout(pp=9, dp=8).ends(72) == Group(2, 2)


@pytest.mark.parametrize("node", [1, 2, 4, 6, 8, 72])
def test_the_worst_group_is_that_of_all_ranks(node: int) -> None:
    """As a count of every rank of every group has it."""
    for size, stride, blocks in product((1, 2, 3, 5, 8, 13), (1, 2, 3, 4, 6, 8, 9), (1, 2, 3, 7)):
        period = size * stride
        groups = [
            Counter((block * period + offset + i * stride) // filled(node, blocks * period) for i in range(size))
            for block in range(blocks)
            for offset in range(stride)
        ]
        expected = min(min(group.values()) for group in groups), max(map(len, groups))
        assert standing(size, stride, node, blocks * period) == expected, (size, stride, blocks)


@pytest.mark.parametrize(
    ("layout", "same"), [(Layout(tp=2, pp=3), True), (Layout(tp=3, pp=3), False), (Layout(pp=8), True)]
)
def test_the_ends_of_a_pipeline_stand_in_one_node_or_do_not(layout: Layout, same: bool) -> None:
    assert layout.ends(8) == Group(2, 2 if same else 1)
    assert layout.ends(None) == Group(2, 2)


def test_a_server_keeps_the_stages_of_a_copy_together() -> None:
    layout = Layout(tp=2, pp=2, dp=4)
    assert layout.group("pp", 8, SERVING_ORDER) == Group(2, 2)
    assert layout.group("dp", 8, SERVING_ORDER) == Group(4, 2)
    assert Layout(tp=4, pp=2, dp=2, ep=8).group("ep", 8, SERVING_ORDER) == Group(8, 4)
    # Ranks 0, 1, 6, 7 of the first stage stand in one node; 2, 3, 8, 9 of the second do not.
    assert Layout(tp=2, pp=3, dp=2, ep=4).group("ep", 8, SERVING_ORDER) == Group(4, 2)


# What ranks send.


def sent(name: str, layout: Layout, stage: int = 0, tokens: int = 7, **how: Any) -> dict[str, int]:
    """Elements that a rank sends, by kind of collective."""
    model = load(name)
    root = Sharding(model).stages(layout)[stage].root
    return walk(root, model.workload(2, tokens, **how)).by_kind("sent")


def test_a_head_gathers_positions_behind_its_transform() -> None:
    """ALBERT's is from 768 to 128, of a rank's share of the positions: 2 sequences of 8 tokens. Its embedding adds
    positions to tokens, which are summed at all positions before."""
    root = Sharding(load("albert-base-v2")).stages(Layout(tp=2, sp=2))[0].root
    ledger = walk(root, load("albert-base-v2").workload(2, 8))
    (gather,) = (entry for entry in ledger if entry.path == "head.gather")
    assert gather.sent == 2 * 8 * 128 // 2
    (join,) = (entry for entry in ledger if entry.path == "embedding.join")
    assert (join.leaf.kind, join.sent) == ("all_reduce", 2 * 8 * 128)


def test_tensor_parallel_sums_every_branch_and_gathers_the_logits() -> None:
    """2·3/4 of the residual stream for the embedding and 2 · 80 branches, 3/4 of the logits; one layer by its path."""
    message = 2 * 7 * 8192
    expected = {"all_reduce": 161 * message * 3 // 2, "all_gather": 2 * 7 * 128_256 * 3 // 4}
    assert sent("llama-3.1-70b", Layout(tp=4)) == expected
    assert sent("llama-3.1-70b", Layout(tp=4), logits="last")["all_gather"] == 2 * 128_256 * 3 // 4
    model = load("llama-3.1-70b")
    ledger = walk(Sharding(model).stages(Layout(tp=4))[0].root, model.workload(2, 7))
    assert ledger.total("sent") == sum(expected.values())
    assert ledger.at("layers.7.attention_join").total("sent") == message * 3 // 2
    assert sent("llama-3.1-70b", Layout()) == {}


def test_sequence_parallel_sends_as_much_in_halves() -> None:
    """A reduce-scatter and an all-gather are an all-reduce: Korthikanti et al. 2022, section 4.2.2."""
    whole, split = sent("llama-3.1-70b", Layout(tp=4)), sent("llama-3.1-70b", Layout(tp=4, sp=4))
    logits = 2 * 7 * 128_256 * 3 // 4
    assert split == {"reduce_scatter": whole["all_reduce"] // 2, "all_gather": whole["all_reduce"] // 2 + logits}


def test_a_parallel_block_sums_once() -> None:
    assert sent("falcon-7b", Layout(tp=1)) == {}
    layers, message = 118, 2 * 7 * 18_432
    assert sent("palm-540b", Layout(tp=8))["all_reduce"] == (layers + 1) * message * 7 // 4
    root = Sharding(load("palm-540b")).stages(Layout(tp=8, sp=8))[0].root  # gathered before the first branch
    paths = {step.path for step in walk(root, load("palm-540b").workload(2, 7)) if step.path.startswith("layers.0.")}
    assert {path for path in paths if path.endswith(("gather", "join"))} == {
        "layers.0.attention_gather", "layers.0.feed_forward_join",
    }  # fmt: skip


def test_tokens_go_to_their_experts_and_back() -> None:
    """8 of 256 experts on 16 ranks, of which tp = 4 hold the same tokens: a quarter each, to 15·(1 − (15/16)^8) others,
    there and back, then together again; the shared expert's columns are summed for the same quarter."""
    found = sent("deepseek-v3", Layout(tp=4, dp=4, ep=16))
    message = 2 * 7 * 7168
    assert found["all_to_all"] == 58 * 2 * Fraction(message, 4) * 15 * (1 - Fraction(15, 16) ** 8)
    assert found["all_gather"] == 58 * message * 3 // 4 + 2 * 7 * 129_280 * 3 // 4
    assert found["reduce_scatter"] == 58 * message * 3 // 4
    assert found["all_reduce"] == (1 + 61 + 3) * message * 3 // 2  # embedding, attention, three dense layers
    assert sent("deepseek-v3", Layout(tp=4, ep=4)).keys() == {"all_reduce", "all_gather"}  # all tokens are there


def test_experts_of_a_latent_and_shared_ones_are_joined_apart() -> None:
    """With sp, shared experts need the positions of all ranks; of a latent only what it holds goes to the experts."""
    rows, layout = 2 * 7, Layout(tp=4, dp=4, ep=16)
    experts = {"n_experts": 32, "top_k": 2, "d_ff": 64, "d_ff_shared": 128}
    base = {"d_model": 256, "n_layers": 1, "attention": {"n_heads": 8, "d_head": 32}}

    def layer(layout: Layout, **more: int) -> dict[str, int]:
        model = build({**base, "experts": {**experts, **more}}, "a drawn mixture")
        (stage,) = Sharding(model).stages(layout)
        return walk(stage.root, model.workload(2, 7)).at("layers.0.experts").by_kind("sent")

    part = rows * 256 * 3 // 4
    reached = 15 * (1 - Fraction(15, 16) ** 2)
    sent = {"all_to_all": 2 * Fraction(rows * 256, 4) * reached, "reduce_scatter": part, "all_gather": part}
    assert layer(layout) == sent
    assert layer(layout.replace(sp=4)) == sent  # before the shared ones, not after the routed ones
    latent = {"all_to_all": 2 * Fraction(rows * 64, 4) * reached, "all_reduce": 2 * part, "all_gather": part // 4}
    assert layer(layout, latent=64) == latent


def test_a_pipeline_hands_the_residual_stream_on() -> None:
    first, last = (sent("llama-3.1-8b", Layout(tp=2, pp=2), stage) for stage in (0, 1))
    assert first["send"] == 2 * 7 * 4096 // 2 and "send" not in last
    root = Sharding(load("llama-3.1-8b")).stages(Layout(tp=2, pp=2))[1].root
    (received,) = [each for entry in walk(root, load("llama-3.1-8b").workload(2, 7)) for each in entry.transfers][:1]
    assert (received.kind, received.received, received.sent) == ("receive", 2 * 7 * 4096 // 2, 0)


def test_interleaved_stages_hold_every_pp_th_piece() -> None:
    """32 layers in 2 · 4 pieces of 4: a rank of the first stage holds 0–3, 8–11, …, and its last piece is handed on."""
    model, layout = load("llama-3.1-8b"), Layout(pp=2, vpp=4)
    first, last = Sharding(model).stages(layout)
    held = [next(iter(stage.root.groups)).indices for stage in (first, last)]  # type: ignore[attr-defined]
    assert held[0] == tuple(i for i in range(32) if i // 4 % 2 == 0)
    assert sorted((*held[0], *held[1])) == list(range(32))
    stream = 2 * 7 * 4096
    assert [sent("llama-3.1-8b", layout, stage)["send"] for stage in (0, 1)] == [4 * stream, 3 * stream]
    ledgers = [walk(stage.root, model.workload(2, 7)) for stage in (first, last)]
    received = [sum(each.received * e.runs for e in ledger for each in e.transfers) for ledger in ledgers]
    assert received == [3 * stream, 4 * stream]
    assert sum(ledger.total("params") for ledger in ledgers) == model.params
    for number in (0, 1):
        assert sum(at.shard[0] for at in Sharding(model).placements(layout, number) if "norm" in at.entry.path) > 0
    assert [stage.copies for stage in Sharding(model).stages(Layout(pp=4, vpp=2))] == [1, 2, 1]


def test_norms_and_steps_over_what_is_split_are_summed_too() -> None:
    """Mamba's Δ, B and C, Mamba-2's mean square, heads of all ranks for a norm over all of them."""
    rows = 2 * 7
    assert sent("mamba-2.8b", Layout(tp=2))["all_reduce"] == 65 * rows * 2560 + 64 * rows * (160 + 32)
    assert sent("mamba2-2.7b", Layout(tp=2))["all_reduce"] == 65 * rows * 2560 + 64 * rows
    model = build(
        {
            "d_model": 64,
            "n_layers": 3,
            "attention": {"n_heads": 8, "n_kv_heads": 4, "d_head": 16, "qk_norm": "width"},
            "feed_forward": {"d_ff": 128},
        },
        "OLMo-2's norms",
    )
    (stage,) = Sharding(model).stages(Layout(tp=2))
    assert walk(stage.root, model.workload(2, 7)).by_kind("sent")["all_gather"] == 3 * rows * 12 * 16 // 2


def test_formulas_of_a_rank_are_printed() -> None:
    pytest.importorskip("sympy")
    found = typed.data("formula", "llama-3.1-8b", "layers.0", "--layout", "tp=8,dp=2")
    assert found["layout"] == {"tp": 8, "pp": 1, "dp": 2, "ep": 1}
    (sent,) = [row for row in found["rows"] if row["part"] == "layers.0" and row["quantity"] == "sent"]
    assert (sent["formula"], sent["substituted"]) == ("4·B·T·D·(tp − 1)/tp", "14336·B·T")
    assert sent["value"] == 14_336
    assert {letter["letter"]: letter["value"] for letter in found["letters"]}["tp"] == 8
    small = ("formula", "D=64 L=4 h=4 F=128 V=4096", "--layout", "pp=2")
    first, fullest = (typed.data(*small, *said) for said in (("--stage", "0"), ()))
    assert (first["stage"], fullest["stage"]) == (0, 1)  # which has the logits
    assert next(row["formula"] for row in first["rows"] if row["part"] == "send") == "B·T·D"
    for said, words in (
        (["--layout", "tp=3"], "a divisor of n_heads = 32"),
        (["--layout", "pp=2", "--stage", "2"], "--stage is 2, expected a stage from 0 to 1 of pp=2"),
        (["--stage", "0"], "add --layout pp=N"),
        (["--layout", "tp=2", "--stage", "0"], "add --layout pp=N"),
    ):
        assert words in typed("formula", "llama-3.1-8b", *said).output
    assert "--layout needs a model" in typed("formula", "--layout", "tp=8").output


def test_every_preset_under_two_ranks_sends_what_joins_it() -> None:
    """At least the message once for every block; nothing alone."""
    for name in names():
        model = load(name)
        sharding = Sharding(model)
        if not sharding.faults(Layout(tp=2)):
            work = model.workload(1, 4)
            assert walk(sharding.stages(Layout(tp=2))[0].root, work).total("sent") > 0, name
        assert walk(model.root, work).total("sent") == 0, name


def test_bytes_take_the_links_within_and_between_nodes() -> None:
    """450 GB/s within a node of an H100, 50 GB/s between nodes; both at the same time, and the slower decides."""
    h100 = hardware.load("h100-sxm")
    even = replace(h100, link=h100.link_between)

    def taken(ranks: int, local: int, kind: str, gigabytes: float, least: bool = False, card: Any = h100) -> float:
        return links.datasheet_seconds(card, links.Message(kind, Group(ranks, local), gigabytes * 1e9), least)

    assert taken(8, 8, "all_reduce", 450) == taken(8, 8, "send", 450) == pytest.approx(1)
    assert taken(64, 8, "all_to_all", 63) == pytest.approx(56 / 50)
    assert taken(16, 12, "all_to_all", 15, card=even) == pytest.approx(11 / 50)  # most of the others are in the node
    assert taken(4, 1, "send", 50) == pytest.approx(1)
    assert taken(4, 2, "send", 450) == pytest.approx((9 + 1 + 1) / 3)  # one hop of three leaves the node
    assert taken(5, 2, "send", 450) == pytest.approx((9 + 9 + 1 + 1) / 4)
    assert taken(16, 8, "all_gather", 400) == taken(16, 8, "all_reduce", 400, least=True) == pytest.approx(1)
    assert taken(64, 8, "all_gather", 450, least=True) == pytest.approx(max(1, 450 / 50 / 8 * 56 / 63))
    alone = replace(h100, link=None)
    assert taken(2, 2, "send", 64, card=alone) == pytest.approx(8)  # through the host, a slot of four lanes
    assert taken(2, 2, "send", 64, least=True, card=alone) == pytest.approx(1)


def test_pieces_of_stages_are_of_a_pipeline() -> None:
    assert Layout(pp=2, vpp=2).faults() == [] == Layout(vpp=1).faults()
    assert "vpp is 2, expected 1 where pp is 1" in str(Layout(vpp=2).faults()[0])


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
            per_node = filled(node, layout.gpus)
            groups = [
                ranks[i + beside : i + ep * etp : etp]
                for ranks in stages.values()
                for i in range(0, len(ranks), ep * etp)
                for beside in range(etp)
            ]
            fewest = min(min(Counter(rank // per_node for rank in group).values()) for group in groups)
            assert layout.group("ep", node, order) == Group(ep, fewest), (layout, node, order)


def test_one_expert_s_ranks_exchange_among_themselves() -> None:
    """With experts on every rank of two, tokens go to the other half of each expert, and to no other expert."""
    for ep, etp, steps in ((1, 2, ["dispatch_gather"]), (2, 1, ["dispatch"]), (2, 2, ["dispatch", "dispatch_gather"])):
        ways = Ways(tp=8, ep=ep, etp=etp, sp=True)
        assert [name for name, _ in ways.dispatch(64, 2)] == steps
        assert [name.replace("scatter", "gather") for name, _ in ways.combine(64, 2)] == [
            name.replace("dispatch", "combine") for name in reversed(steps)
        ]


def test_a_vocabulary_that_is_padded_says_to_what() -> None:
    for pads, said in ((1, "a multiple of tp = 4"), (128, "a multiple of 512"), (0, "does not divide by tp = 4")):
        ways = Ways(tp=4, pads=pads)
        assert ways.rows(250) == (128 if pads > 1 else 63) and any(note.endswith(said) for note in ways.notes)
    even = Ways(tp=4)
    assert even.rows(252) == 63 and not [*even.notes]


def test_pairs_of_query_heads_are_split() -> None:
    """Eight heads are four pairs, whose four key/value heads are repeated where there are more ranks."""
    sharding = Sharding(build(TINY["diffllama"], "pairs"))
    assert not sharding.faults(Layout(tp=4)) and "pairs of n_heads" in str(sharding.faults(Layout(tp=8)))


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
        (MIXTURE, Layout(dp=2, ep=3), True, "ep is 3, expected a divisor of tp = 1"),
        (DENSE, Layout(tp=0), True, "tp is 0"),
        ("llama-3.1-8b", Layout(tp=3), True, "tp is 3, expected a divisor of n_heads = 32"),
        ("qwen2.5-7b", Layout(tp=8), True, "tp is 8, expected a divisor of n_heads = 28"),
        ("mixtral-8x7b", Layout(dp=16, ep=16), True, "ep is 16, expected a divisor of n_experts = 8"),
        ("mixtral-8x7b", Layout(tp=4, ep=8), True, "ep is 8, expected a divisor of tp = 4, or a multiple"),
        (MIXTURE.replace("F=96", "F=95"), Layout(tp=4, ep=2), False, "tp is 4, expected a divisor of d_ff = 95"),
        (MIXTURE.replace("F=96", "F=95"), Layout(dp=4, ep=2, etp=2), False, "etp is 2, expected a divisor of d_ff"),
    ],
)
def test_layouts_that_a_model_does_not_allow(source: str, layout: Layout, serving: bool, said: str) -> None:
    faults = "; ".join(map(str, Sharding(load(source), serving).faults(layout)))
    assert said in faults and bool(said) == bool(faults)


@pytest.mark.parametrize("fixed", [{}, {"tp": 2}, {"pp": 4}, {"dp": 2}, {"ep": 4}, {"ep": 2, "etp": 2}, {"tp": 3}])
@pytest.mark.parametrize(("source", "gpus"), [(DENSE, 8), (MIXTURE, 8), (DENSE, 6), ("t5-small", 4)])
def test_all_layouts_that_a_model_allows(source: str, gpus: int, fixed: dict[str, int]) -> None:
    """Of all numbers: experts split like the rest or spread over a whole stage, unless it is said how."""
    sharding, expected = Sharding(load(source), serving=True), set()
    for tp, pp, dp in product(range(1, gpus + 1), repeat=3):
        if tp * pp * dp != gpus or {"tp": tp, "pp": pp, "dp": dp} | fixed != fixed | {"tp": tp, "pp": pp, "dp": dp}:
            continue
        spread = {fixed["ep"]} if "ep" in fixed else {1, tp * dp} if source == MIXTURE else {1}
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
        (MIXTURE, Layout(tp=2), {"gate": (0, "etp", 2, 1), "router": (None, "tp", 1, 2), "down": (1, "etp", 2, 1)}),
        (MIXTURE, Layout(tp=2, ep=2), {"gate": (None, "etp", 1, 1), "q": (0, "tp", 2, 1)}),
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
        for dim, (whole, held) in enumerate(zip(one.whole, one.shard, strict=True)):
            assert held == (-(-whole // one.pieces) if dim == one.dim else whole)
        assert one.times == one.entry.times * (layout.ep if one.axis == "etp" else 1)
