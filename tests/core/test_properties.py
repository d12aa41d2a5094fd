"""What must hold for every model, whatever its sizes: Hypothesis draws the models."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st
from msgspec.structs import replace
from strategies import FAMILIES, LEAVES, decoders, descriptions, expert_tables, share_of, workloads

from txcalc.ledger import QUANTITIES, Ledger, walk
from txcalc.model import Model
from txcalc.parts.feedforward import Experts, FeedForward
from txcalc.parts.linear import Linear, Lookup, Unused, Vector
from txcalc.parts.model import LayerGroup, Stack
from txcalc.parts.norm import Norm
from txcalc.parts.part import Workload
from txcalc.parts.positions import RelativeBias
from txcalc.sources import build

LINEAR_IN_BATCH = ("flops", "flops_masked", "flops_other", "saved")
lengths = st.integers(1, 12)


def model_of(raw: dict[str, Any]) -> Model:
    return build(raw, "a drawn description")


def figures(ledger: Ledger) -> dict[str, Any]:
    return {quantity: ledger.total(quantity) for quantity in QUANTITIES} | {"cache terms": ledger.cache_terms}


def workload(model: Model, tokens: int, past: int = 0) -> dict[str, Any]:
    """Encoders and vision have no past."""
    return {"tokens": tokens, "past": 0 if model.description.kind in ("encoder", "vision") else past}


@pytest.mark.slow
@given(descriptions, lengths, lengths, st.integers(2, 5))
def test_linear_in_the_batch(raw: dict[str, Any], tokens: int, past: int, batch: int) -> None:
    model = model_of(raw)
    one, two, many = (model.ledger(batch=b, **workload(model, tokens, past)) for b in (1, 2, batch))
    once = any(stack.positions.form == "disentangled" for stack in model.stacks)
    for quantity in LINEAR_IN_BATCH:
        step = two.total(quantity) - one.total(quantity) if once else one.total(quantity)
        assert many.total(quantity) == one.total(quantity) + (batch - 1) * step, quantity
    for quantity in ("params", "active", "cache"):
        assert many.total(quantity) == one.total(quantity), quantity
    if not any(entry.routed for entry in one):  # of experts, more are read by more tokens, until it is all of them
        step = two.total("bytes") - one.total("bytes")
        assert many.total("bytes") == one.total("bytes") + (batch - 1) * step


@pytest.mark.slow
@given(descriptions, lengths, lengths)
def test_parameters_do_not_depend_on_the_workload(raw: dict[str, Any], tokens: int, past: int) -> None:
    model = model_of(raw)
    ledger = model.ledger(batch=3, **workload(model, tokens, past), logits="last", mla="absorbed", keep_scores=True)
    assert ledger.by_kind("params") == model.ledger().by_kind("params")
    assert (ledger.total("params"), ledger.total("active")) == (model.params, model.active)
    assert ledger.total("active") <= ledger.total("params")


@given(decoders(), st.integers(1, 9), st.integers(0, 9))
def test_a_prompt_is_the_sum_of_its_decode_steps(raw: dict[str, Any], tokens: int, past: int) -> None:
    """Of what the mask lets through; MLA in the form that does not expand the latents again."""
    model = model_of(raw)
    prompt = model.ledger(tokens=tokens, past=past, mla="absorbed")
    steps = [model.ledger(past=past + i, mla="absorbed") for i in range(tokens)]
    for kind, flops in prompt.by_kind("flops_masked").items():
        assert flops == sum(step.by_kind("flops_masked").get(kind, 0) for step in steps), kind
    assert prompt.total("cache") == steps[-1].total("cache")


@pytest.mark.slow
@given(decoders(window=False), lengths, lengths, st.integers(0, 9))
def test_a_window_as_long_as_the_context_is_none(raw: dict[str, Any], tokens: int, past: int, extra: int) -> None:
    windowed = deepcopy(raw)
    for layer in windowed["layer"].values():
        if "attention" in layer:
            layer["attention"]["window"] = tokens + past + extra
    unlimited, limited = (model.ledger(tokens=tokens, past=past) for model in (model_of(raw), model_of(windowed)))
    for quantity in QUANTITIES:
        assert unlimited.by_kind(quantity) == limited.by_kind(quantity), quantity


@pytest.mark.slow
@given(decoders(), lengths, lengths)
def test_masked_is_never_more_than_dense(raw: dict[str, Any], tokens: int, past: int) -> None:
    ledger = model_of(raw).ledger(tokens=tokens, past=past)
    masked = ledger.by_kind("flops_masked")
    for kind, flops in ledger.by_kind("flops").items():
        assert masked[kind] == flops if kind != "attention_core" else masked[kind] <= flops


@given(st.integers(1, 30), st.integers(1, 30), st.booleans(), st.booleans(), workloads)
def test_one_expert_without_a_router_is_a_feed_forward(
    width: int, inner: int, gated: bool, bias: bool, work: Workload
) -> None:
    channel = FeedForward(d_model=width, d_ff=inner, gated=gated, activation="silu", bias=bias)
    assert figures(
        walk(Experts(d_model=width, n_experts=1, top_k=1, expert=channel, router=None, shared=None), work)
    ) == figures(walk(channel, work))


@given(expert_tables(), workloads)
def test_all_experts_chosen_are_so_many_feed_forwards(table: dict[str, Any], work: Workload) -> None:
    number = table["n_experts"]
    channel = FeedForward(d_model=8, d_ff=table["d_ff"], gated=table["gated"], activation="silu", bias=table["bias"])
    all_of_them = figures(
        walk(Experts(d_model=8, n_experts=number, top_k=number, expert=channel, router=None, shared=None), work)
    )
    single = figures(walk(channel, work))
    for quantity in set(QUANTITIES) - {"bytes"}:
        assert all_of_them[quantity] == number * single[quantity], quantity


@given(decoders())
def test_active_parameters_leave_out_the_experts_that_rest(raw: dict[str, Any]) -> None:
    """Total − routed experts × (1 − k/E); all else is active."""
    ledger = model_of(raw).ledger()
    params, active = ledger.by_kind("params"), ledger.by_kind("active")
    if "experts" in raw:
        top, number = raw["experts"]["top_k"], raw["experts"]["n_experts"]
        assert number * active.pop("experts") == top * params.pop("experts")
    assert active == params


@pytest.mark.slow
@given(decoders(), lengths)
def test_tying_changes_a_table_and_no_flops(raw: dict[str, Any], tokens: int) -> None:
    assume("vocab_size" in raw)
    tied, untied = (
        model_of({**raw, "head": {**raw["head"], "tied": tied}}).ledger(tokens=tokens) for tied in (True, False)
    )
    table = raw["vocab_size"] * raw["d_model"]
    assert untied.total("params") == tied.total("params") + table
    assert untied.total("active") == tied.total("active") + table
    for quantity in set(QUANTITIES) - {"params", "active"}:
        assert untied.total(quantity) == tied.total(quantity), quantity


@pytest.mark.slow
@given(st.sampled_from(["encoder-decoder", "audio"]).flatmap(FAMILIES.__getitem__), lengths, lengths)
def test_a_decode_step_leaves_the_encoder_alone(raw: dict[str, Any], past: int, source: int) -> None:
    model = model_of(raw)
    step = model.ledger(past=past, source=source)
    assert step.at("encoder").total("flops") == step.at("encoder").total("flops_other") == 0
    cross = [entry for entry in step if "cross_attention" in map(str, entry.steps)]
    projected = {entry.steps[-1].name: entry.flops for entry in cross if entry.steps[-1].name in ("k", "v")}
    assert "k" in projected and not any(projected.values())
    assert model.ledger(source=source).at("encoder").total("flops") > 0


@pytest.mark.slow
@given(decoders(), st.integers(0, 3), lengths)
def test_splitting_a_layer_group_changes_no_total(raw: dict[str, Any], first: int, tokens: int) -> None:
    raw["shared_layers"] = False
    stack = model_of(raw).root
    assert isinstance(stack, Stack)
    groups: list[LayerGroup] = []
    for group in stack.groups:
        number = min(first, group.count)
        halves = (group.indices[:number], group.indices[number:])
        groups += [group._replace(indices=half, count=len(half)) for half in halves if half]
    work = Workload(2, tokens, 3, tokens)
    split = walk(replace(stack, groups=tuple(groups)), work)
    whole = walk(stack, work)
    assert figures(split) == figures(whole)
    assert [split.by_kind(quantity) for quantity in QUANTITIES] == [whole.by_kind(quantity) for quantity in QUANTITIES]


@pytest.mark.slow
@share_of(25)
@given(descriptions, lengths)
def test_the_parts_sum_to_the_whole(raw: dict[str, Any], tokens: int) -> None:
    """By kind, one step below the root, and over every leaf of every copy (a share of an expert is a fraction)."""
    raw = {**raw, "shared_layers": False}  # each copy would have all the weights that they share
    ledger = model_of(raw).ledger(tokens=tokens)
    leaves = set(leaf_paths(ledger))
    first_steps = {path.split(".")[0] for path in leaves}
    for quantity in QUANTITIES:
        total = ledger.total(quantity)
        assert sum(ledger.by_kind(quantity).values()) == total, quantity
        assert sum(ledger.at(step).total(quantity) for step in first_steps) == total, quantity
        if quantity != "bytes":  # rounded up, where a share is not whole
            assert sum(ledger.at(path).total(quantity) for path in leaves) == total, quantity
    assert ledger.at("").total("flops") == ledger.total("flops")


def leaf_paths(ledger: Ledger) -> list[str]:
    """The path of every leaf, every copy apart."""
    all_paths = []
    for entry in ledger:
        paths = [""]
        for step in entry.steps:
            names = [step.name] if step.indices is None else [f"{step.name}.{i}" for i in step.indices]
            paths = [f"{above}.{name}".lstrip(".") for above in paths for name in names]
        all_paths += paths
    return all_paths


@given(decoders(), st.integers(0, 80), st.integers(1, 9))
def test_the_cache_grows_as_it_says(raw: dict[str, Any], past: int, tokens: int) -> None:
    """Once every window is full: elements = growth·S + constant; before that it only holds what there is."""
    model = model_of(raw)
    ledger = model.ledger(tokens=tokens, past=past)
    growth, constant, elements = ledger.cache_terms
    keys = past + tokens
    assert elements == ledger.total("cache") <= growth * keys + constant
    windows = [attention.get("window") for attention in model.description.last.attentions]
    if all(window is None or window <= keys for window in windows):
        assert elements == growth * keys + constant
        assert model.ledger(tokens=tokens + 1, past=past).total("cache") == elements + growth
    assert model.ledger(tokens=1, past=keys - 1).total("cache") == elements


@given(st.sampled_from(["encoder", "vision"]).flatmap(FAMILIES.__getitem__), lengths)
def test_encoders_keep_nothing(raw: dict[str, Any], tokens: int) -> None:
    assert model_of(raw).ledger(tokens=tokens).cache_terms == (0, 0, 0)


@pytest.mark.slow
@given(decoders(), lengths)
def test_conventions_change_only_what_they_say(raw: dict[str, Any], tokens: int) -> None:
    model = model_of(raw)
    plain, last = model.ledger(tokens=tokens), model.ledger(tokens=tokens, logits="last")
    eager, absorbed = model.ledger(tokens=tokens, keep_scores=True), model.ledger(tokens=tokens, mla="absorbed")
    head = plain.by_kind("flops").get("head", 0)
    assert plain.total("flops") - last.total("flops") == head - head // tokens
    assert figures(eager) | {"saved": 0} == figures(plain) | {"saved": 0}
    assert plain.total("cache") == absorbed.total("cache")
    if not any(layer.latent for layer in model.description.layers):
        assert figures(plain) == figures(absorbed)


@pytest.mark.parametrize("kind", [leaf for leaf in LEAVES if leaf not in (Lookup, RelativeBias, Unused, Vector)])
@share_of(15)
@given(data=st.data())
def test_every_weight_is_read_once(kind: type, data: st.DataObject) -> None:
    """A table is read row by row, a bias of the scores with them; a tied weight is read and not owned."""
    leaf, work = data.draw(LEAVES[kind]), data.draw(workloads)
    (entry,) = walk(leaf, work).entries
    shared = leaf.d_in * leaf.d_out if isinstance(leaf, Linear) and (leaf.tied or leaf.borrowed) else 0
    if isinstance(leaf, Norm) and leaf.borrowed:
        shared = sum(weight.size for weight in leaf.all_weights)
    shared += leaf.d_out if isinstance(leaf, Linear) and leaf.borrowed and leaf.bias else 0
    assert entry.traffic.weights == entry.params + shared


@pytest.mark.parametrize("kind", LEAVES)
@share_of(15)
@given(data=st.data())
def test_a_leaf_says_what_it_keeps_for_later_tokens(kind: type, data: st.DataObject) -> None:
    """Pages hold at least what is needed, and no window keeps more than all; a state is whole, whatever the pages."""
    leaf, work = data.draw(LEAVES[kind]), data.draw(workloads)
    growth, constant, elements = leaf.cache(work)
    assert (leaf.cache_kind == "nothing") == (growth == constant == elements == 0)
    assert leaf.cache_kind in ("nothing", "tokens", "steps", "source", "state")
    assert growth == 0 or leaf.cache_kind in ("tokens", "steps")
    if leaf.cache_kind != "nothing":
        assert leaf.describe_cache().endswith("elements")
    block, chunk = data.draw(st.integers(1, 64)), data.draw(st.integers(1, 64))
    assert leaf.dense(work) >= elements
    assert leaf.paged(work, block, chunk) >= elements
    if leaf.cache_kind in ("nothing", "state"):
        assert leaf.dense(work) == leaf.paged(work, block, chunk) == elements


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@share_of(20)
@given(data=st.data())
def test_what_costs_nothing_is_not_there(family: str, data: st.DataObject) -> None:
    """No figure is negative, every entry has a kind of the table, paths are unique."""
    ledger = model_of(data.draw(FAMILIES[family])).ledger(tokens=data.draw(lengths))
    paths = leaf_paths(ledger)
    assert len(paths) == len(set(paths))
    for entry in ledger:
        figures = [getattr(entry, quantity) for quantity in set(QUANTITIES) - {"bytes"}]
        assert all(figure >= 0 for figure in (*figures, *entry.traffic))
        assert entry.flops_masked <= entry.flops
