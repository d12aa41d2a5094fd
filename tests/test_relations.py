"""Relations that hold for every mechanism, format or convention of a kind, and at the very ends of ranges."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from txcalc import load
from txcalc.errors import InputError
from txcalc.parts.mechanisms import ATTENTIONS, MIXERS, mechanism
from txcalc.parts.options import REQUIRED
from txcalc.planning.activations import korthikanti
from txcalc.planning.conventions import CONVENTIONS
from txcalc.planning.deployment import Choice
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.planning.quantised import READERS, configured
from txcalc.planning.serving import Serving

GROUPED = [
    name
    for name in ("attention", "draft_attention", *ATTENTIONS, *MIXERS)
    if {"n_heads", "n_kv_heads"} <= {*mechanism(name).table()}
]


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize(("heads", "groups", "fits"), [(8, 2, True), (8, 8, True), (8, 3, False), (8, 16, False)])
def test_key_value_heads_divide_query_heads(name: str, heads: int, groups: int, fits: bool) -> None:
    keys = mechanism(name).table()
    usual = {key: field.default for key, field in keys.items() if field.default is not REQUIRED}
    table = usual | {"n_heads": heads, "n_kv_heads": groups, "d_head": 8, "bias": []}
    wished = [each.key for each in mechanism(name).partly(table).misfits()]
    assert ("n_kv_heads" not in wished) == fits


@pytest.mark.parametrize("stages", [2, 3])
def test_no_more_stages_than_layers(stages: int) -> None:
    for layers in (stages - 1, stages):
        faults = Sharding(load(f"D=64 L={layers} h=2 F=96 V=50")).faults(Layout(pp=stages))
        assert bool(faults) == (layers < stages)


def test_memory_that_is_just_enough_suffices() -> None:
    for free, ram, limit in ((0, 0, "cache"), (5, 0, "cache"), (0, None, "cache"), (5, -1, "RAM"), (-1, -1, "cache")):
        fullest: Any = SimpleNamespace(free=free, limit="cache")
        choice = Choice(Layout(), fullest, 1, ram)
        assert (choice.fits, choice.limit) == (free >= 0 and (ram is None or ram >= 0), limit)


def test_seats_are_those_of_every_copy() -> None:
    timer: Any = SimpleNamespace(seats=lambda layout: 7)
    for copies in (1, 2, 3):
        served: Any = SimpleNamespace(timer=timer, chosen=SimpleNamespace(layout=Layout(dp=copies)))
        assert Serving.seats.fget(served) == 7 * copies  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(CONVENTIONS))
def test_without_a_vocabulary_there_are_no_logits(name: str) -> None:
    model = load("D=64 L=2 h=2 F=256")
    try:
        found = CONVENTIONS[name](model, model.ledger(2, 8), "dense")
    except InputError:
        return
    assert all(each.theirs == 0 for each in found.terms if each.name in ("logits", "embeddings"))


def test_korthikanti_s_terms_are_all_that_the_layers_keep() -> None:
    model = load("D=64 L=3 h=2 F=256 V=50 plain ln bias")
    ledger = model.ledger(2, 8, keep_scores=True)
    assert korthikanti(model, ledger).ours == 2 * sum(e.saved for e in ledger if e.steps[0].name == "layers")


@pytest.mark.parametrize("value", ["x", None, 0, -1, 2.5, True, [], {}])
@pytest.mark.parametrize("method", sorted(READERS))
def test_no_value_of_a_quantisation_is_a_traceback(method: str, value: Any) -> None:
    """Each key of numbers, at a value that it may not have: read or refused."""
    model = load("D=256 L=1 h=4 F=256 V=50")
    for key in ("bits", "w_bit", "group_size", "q_group_size", "weight_block_size", "modules_to_not_convert"):
        try:
            configured(model, {"quant_method": method, key: value})
        except InputError:
            continue
