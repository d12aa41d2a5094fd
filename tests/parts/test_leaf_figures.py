"""What leaves weigh, compute, keep and move, worked out by hand from shapes."""

from __future__ import annotations

from typing import Any

import pytest
from tiny import TINY

from txcalc import load
from txcalc.errors import InputError
from txcalc.ledger import walk
from txcalc.parts.cores import AttentionCore
from txcalc.parts.mechanisms import ATTENTIONS, MIXERS
from txcalc.parts.mixers.compressed import CompressedCore, Entries
from txcalc.parts.options import REQUIRED
from txcalc.parts.part import MatMul, Workload
from txcalc.parts.place import mechanism
from txcalc.parts.spans import Causal
from txcalc.parts.work import COST
from txcalc.planning.crossover import elements_read
from txcalc.planning.gradients import core_result, flops_per_score, saved_by_core, scores as scored
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.sources import build

GROUPED = [
    name
    for name in ("attention", "draft_attention", "shared", *ATTENTIONS, *MIXERS)
    if {"n_heads", "n_kv_heads"} <= {*mechanism(name).table()}
]


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize(("heads", "groups", "fits"), [(8, 2, True), (8, 8, True), (8, 3, False), (8, 16, False)])
def test_key_value_heads_divide_query_heads(name: str, heads: int, groups: int, fits: bool) -> None:
    keys = mechanism(name).table()
    usual = {key: field.default for key, field in keys.items() if field.default is not REQUIRED}
    required: dict[str, Any] = {"d_ff": 8} if name == "shared" else {"bias": []}
    table = usual | required | {"n_heads": heads, "n_kv_heads": groups, "d_head": 8}
    wished = [conflict.key for conflict in mechanism(name).of(table).conflicts()]
    assert ("n_kv_heads" not in wished) == fits


def test_what_a_core_keeps_that_is_computed_again() -> None:
    """What it reads, without what it gives: DeepSeek's queries and keys are 192 wide and its values 128, of 128
    heads."""
    for keep in (True, False):
        ledger = load("deepseek-v3").ledger(2, 8, keep_scores=keep)
        core = next(entry for entry in ledger if entry.kind == "attention_core")
        assert core_result(core) == 2 * 8 * 128 * 128
        read = 2 * 8 * 128 * (192 + 192 + 128)
        fused = core.leaf.saved(core.work._replace(keep_scores=False))  # type: ignore[union-attr]
        assert read <= fused - core_result(core) <= read + 2 * 8 * 128
        assert saved_by_core(core) == fused - keep * core_result(core)
        assert core_result(next(entry for entry in ledger if entry.kind == "norm")) == 0


@pytest.mark.parametrize("past", [0, 3])
def test_a_core_by_the_shapes_of_its_tensors(past: int) -> None:
    """Widths of keys and of values differ."""
    h, h_kv, d_qk, d_v, batch, tokens = 6, 3, 5, 7, 2, 4
    keys, pairs = past + tokens, sum(past + i + 1 for i in range(tokens))
    q, y = batch * h * tokens * d_qk, batch * h * tokens * d_v
    k, v = batch * h_kv * keys * d_qk, batch * h_kv * keys * d_v
    core = AttentionCore(n_heads=h, n_kv_heads=h_kv, d_qk=d_qk, d_v=d_v, span=Causal())
    work = Workload(batch, tokens, past, tokens)
    products = [op for op in core.operations(work) if isinstance(op, MatMul)]
    assert [op.flops for op in products] == [2 * batch * h * tokens * keys * width for width in (d_qk, d_v)]
    assert [op.flops_masked for op in products] == [2 * batch * h * pairs * width for width in (d_qk, d_v)]
    assert [(op.traffic.activations, op.traffic.cache) for op in products] == [(q, k), (y, v)]
    token = h_kv * (d_qk + d_v)
    assert core.token == token and core.cache(work).elements == token * keys
    assert core.describe_cache().startswith("K") and f"{h_kv:,} · ({d_qk} + {d_v})" in core.describe_cache()
    assert core.saved(work) == q + k + v + y
    assert core.saved(work._replace(keep_scores=True)) == q + k + v + batch * h * tokens * keys
    assert (core.rows_kept(work), core.rows_kept(work._replace(keep_scores=True))) == (h, 0)


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({"norm.bias": True, "norm.final_bias": True}, ["norm.bias"]),
        ({"norm.final_bias": True}, ["norm.final_bias"]),
        ({"norm.qk_bias": True, "norm.final_bias": True}, ["norm.final_bias", "norm.qk_bias"]),
    ],
)
def test_an_rms_norm_has_no_bias(changes: dict[str, Any], faults: list[str]) -> None:
    """Of biases that follow another, that one alone is named."""
    with pytest.raises(InputError) as error:
        load("D=64 L=1 h=4 F=96 V=50", changes)
    assert [
        key for key in ("norm.bias", "norm.final_bias", "norm.qk_bias") if f"{key} is" in str(error.value)
    ] == faults


@pytest.mark.parametrize(
    ("changes", "tied"),
    [
        ({}, False), ({"positions.form": "none"}, True), ({"attention.qk_norm": "head"}, True),
        ({"attention.qk_norm": "head", "attention.v_norm": True}, False),
    ],
)  # fmt: skip
def test_where_keys_and_values_are_one_tensor(changes: dict[str, Any], tied: bool) -> None:
    """Of one projection: not where K is rotated, but where a norm of K saves what V is, unless V has its own."""
    model = load("D=64 L=1 h=4 F=96 V=50", {"attention.tied_kv": True, **changes})
    (core,) = (leaf for leaf in model.root.leaves() if isinstance(leaf, AttentionCore))
    assert core.tied == tied


def test_a_mask_is_of_a_window_alone() -> None:
    """Compressed entries are selected beside it."""
    cores = [leaf for leaf in build(TINY["compressed"], "x").root.leaves() if isinstance(leaf, CompressedCore)]
    assert {core.entries is None for core in cores} == {True, False}
    assert all(core.masked == (core.entries is None) for core in cores)


@pytest.mark.parametrize(("rate", "top_k"), [(1, None), (4, None), (4, 3), (3, 5), (5, 1)])
def test_entries_seen_are_counted_one_by_one(rate: int, top_k: int | None) -> None:
    entries = Entries(rate=rate, top_k=top_k)
    seen = [i // rate if top_k is None else min(i // rate, top_k) for i in range(80)]
    for past, tokens in ((0, 1), (0, 20), (7, 9), (30, 40), (2, 77)):
        assert entries.visible(Workload(1, tokens, past, 0)) == sum(seen[past + 1 : past + tokens + 1])


MIXTURE = "D=64 L=4 h=8 h_kv=4 F=96 V=250 E=4 k=2"

DENSE = "D=64 L=4 h=8 h_kv=4 F=96 V=250"

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


def test_a_norm_before_o_is_cut_as_values_are() -> None:
    attention = {"n_heads": 8, "d_head": 8, "d_v": 16, "inner_norm": True}
    model = build({"d_model": 64, "n_layers": 1, "attention": attention, "feed_forward": {"d_ff": 96}}, "normed")
    (stage,) = Sharding(model).stages(Layout(tp=2))
    (norm,) = (entry for entry in walk(stage.root, model.workload()) if entry.path.endswith("inner_norm"))
    assert norm.params == 4 * 16


def test_a_norm_keeps_a_number_of_a_row_and_a_core_one_of_each_head() -> None:
    """Its deviation, and the log-sum of a head's scores; all else keeps none."""
    for source, heads in ((DENSE, 8), ("gpt2", 12)):
        for entry in load(source).ledger(2, 8):
            kept = {"norm": 1, "attention_core": heads}.get(entry.kind, 0)
            assert entry.work is not None and entry.leaf.rows_kept(entry.work) == kept


def test_what_has_no_score_yet_costs_nothing() -> None:
    """A first token has no block of earlier ones that could be selected."""
    model = build(TINY["compressed"], "compressed")
    index = next(e for e in model.ledger(1, 1) if e.path.endswith("selector.core"))
    assert (scored(index.operations), flops_per_score(index.operations)) == (0, 1)


def test_weights_that_a_step_reads_are_read_once() -> None:
    """ALBERT's layers are one; of experts those of so many tokens, at most all."""
    albert = build(TINY["albert"], "albert").ledger(1, 3)
    assert sum(map(elements_read, albert)) == sum(e.leaf.untied.params for e in albert if e.leaf.row is None)
    for tokens, read in ((1, 2), (2, 4), (3, 4)):
        gates = [e for e in load(MIXTURE).ledger(1, tokens) if e.routed and e.steps[-1].name == "gate"]
        assert sum(map(elements_read, gates)) == 4 * read * 64 * 96
