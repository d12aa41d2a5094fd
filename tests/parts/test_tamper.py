"""The pinned numbers of every leaf and composite, worked out by hand in `data/parts.toml`; and the proof that they
notice a change.

Sizes are different primes, so that no two formulas agree by accident. Each row is checked as it is, and again with
every formula behind it doubled, every operation's every number changed, and every child dropped: it must go red.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from msgspec import NODEFAULT, Struct
from paths import DATA
from strategies import COMPOSITES, LEAVES
from structs import struct_fields

import txcalc
from txcalc.ledger import walk
from txcalc.parts.adapters import Frozen, LowRank
from txcalc.parts.forms import pieces
from txcalc.parts.part import Cache, Leaf, Workload
from txcalc.parts.place import Place, mechanism
from txcalc.parts.positions import PositionsOptions
from txcalc.sources import build

pytestmark = pytest.mark.drawn(quick=1000)  # all: they see most of what a formula has of letters and numbers

# 2 sequences of 3 new tokens after 5 cached ones: 6 rows, 8 keys, 3·5 + 1 + 2 + 3 = 21 visible pairs; 14 source rows.
WORK = Workload(2, 3, 5, 7)
PARTS = Path(txcalc.__file__).parent / "parts"
CLASSES: dict[str, Any] = {
    name: cls
    for path in sorted(PARTS.rglob("[a-z]*.py"))
    for module in [import_module(".".join(("txcalc.parts", *path.relative_to(PARTS).with_suffix("").parts)))]
    for name, cls in inspect.getmembers(module, inspect.isclass)
    if cls.__module__ == module.__name__
}


def construct(table: Any) -> Any:
    """A part, or what one holds, as the file says it."""
    if isinstance(table, list):
        return tuple(map(construct, table))
    if not isinstance(table, Mapping):
        return table
    if "range" in table:
        return range(table["range"])
    if "form" in table and "is" not in table:
        return pieces([table])[0]
    cls = CLASSES[table["is"]]
    values: dict[str, Any] = dict.fromkeys(table.get("none", ()))
    if issubclass(cls, Struct):
        values |= {field.name: None for field in struct_fields(cls) if field.default is NODEFAULT}
        types = {field.name: field.type for field in struct_fields(cls)}
    else:
        types = {name: "" for name in cls._fields}
        values |= {name: None for name in cls._fields if name not in cls._field_defaults}
    for name, value in table.items():
        if name in types:
            values[name] = frozenset(value) if types[name].startswith("frozenset") else construct(value)
    return cls(**values)


def number(value: Any) -> Any:
    """A number, or a sum of products written out."""
    if isinstance(value, list):
        return tuple(map(number, value))
    if isinstance(value, str):
        return Fraction(value) if "/" in value else eval(value, {"__builtins__": {}})
    return value


def row(table: Mapping[str, Any]) -> tuple[Any, Workload, dict[str, Any]]:
    """What is not given: all parameters active, no mask, nothing else."""
    pinned = {name: number(value) for name, value in table.items() if name not in ("part", "work")}
    if "params" in pinned:
        pinned.setdefault("active", pinned["params"])
    if "flops" in pinned:
        pinned.setdefault("flops_masked", pinned["flops"])
    return construct(table["part"]), WORK._replace(**table.get("work", {})), pinned


ROWS = {name: row(table) for name, table in tomllib.loads((DATA / "parts.toml").read_text("utf-8")).items()}


# What a description says of parts that are pinned: its table, of a layer with rotary positions where "rotary".
HEADS, DELTA = {"n_heads": 3, "d_head": 5}, {"n_heads": 3, "n_key_heads": 1, "d_key": 5, "d_value": 7, "d_conv": 2}
MAMBA = {"d_inner": 13, "d_state": 5, "d_conv": 4, "dt_rank": 3, "n_heads": None}
MAMBA2 = HEADS | {"n_groups": 1, "d_state": 7, "d_conv": 4}
SAID: dict[str, tuple[str, dict[str, Any]]] = {
    "attention of a draft": ("draft_attention", {"n_heads": 6, "n_kv_heads": 3, "d_head": 7, "rotary": True}),
    "linear attention": ("linear_attention", HEADS | {"activation": "silu"}),
    "mamba": ("mamba", MAMBA | {"bias": False, "conv_bias": True, "norms": True}),
    "mamba-2": ("mamba2", MAMBA2 | {"bias": False, "conv_bias": True, "norm": True}),
    "mamba-2 without a norm": ("mamba2", MAMBA2 | {"bias": True, "conv_bias": False, "norm": False}),
    "griffin": ("rg_lru", HEADS | {"d_conv": 2, "bias": True, "conv_bias": True, "activation": "gelu_tanh"}),
    "delta net": (
        "delta",
        DELTA | {"decay": "head", "bound": None, "rank": None, "gate": "silu", "signed": False, "whole_gate": False},
    ),
    "delta net by channel": (
        "delta",
        DELTA | {"decay": "channel", "bound": -5, "rank": 2, "gate": "sigmoid", "signed": False, "whole_gate": False},
    ),
    "time mix": ("time_mix", {"d_inner": 13}),
    "channel mix": ("channel_mix", {"d_ff": 13}),
    "short convolution": ("short_convolution", {"taps": 5, "bias": True}),
    "convolution over time": ("convolution", {"taps": 5, "activation": "gelu"}),
}


def figures(part: Any, work: Workload) -> dict[str, Any]:
    """Every quantity that is not zero; traffic is (weights, activations, cache), cache (growth, constant, held)."""
    ledger = walk(part, work)
    moved = [entry.traffic for entry in ledger]
    sums = ("params", "active", "flops", "flops_masked", "flops_other", "saved", "sent")
    sums_by_name: dict[str, Any] = {name: ledger.total(name) for name in sums}
    sums_by_name["received"] = sum(transfer.received * entry.runs for entry in ledger for transfer in entry.transfers)
    sums_by_name["traffic"] = tuple(sum(column) for column in zip(*moved, strict=True))
    sums_by_name["cache"] = tuple(ledger.cache_terms)
    return {name: value for name, value in sums_by_name.items() if value not in (0, (0, 0, 0))}


FORMULAS = ("weights", "operations", "saved", "cache", "transfers")


@pytest.mark.parametrize("name", ROWS)
def test_pinned(name: str) -> None:
    part, work, pinned = ROWS[name]
    assert figures(part, work) == pinned


@pytest.mark.parametrize("name", SAID)
def test_a_description_makes_what_is_pinned(name: str) -> None:
    _, work, pinned = ROWS[name]
    section, table = SAID[name]
    model = build({"d_model": 11, "n_layers": 1, "attention": {"n_heads": 1}, "feed_forward": {"d_ff": 3}}, "")
    layer = model.description.last.layer["layer"]
    positions = layer.positions.values() | {"form": "rotary" if table.get("rotary") else "none"}
    place = Place(11, layer.norm, PositionsOptions.of(positions), "decoder")
    assert figures(mechanism(section).of(table).build(place), work) == pinned


def test_every_part_is_pinned() -> None:
    adapters = {LowRank, Frozen}  # pinned in test_adapters, beside what torch has
    assert {type(part) for part, _, _ in ROWS.values()} == {*LEAVES, *COMPOSITES} - adapters


def fresh(part: Any) -> Any:
    """The same part without what it remembers of its children and weights."""
    return type(part)(**{name: getattr(part, name) for name in part.__struct_fields__})


def doubled(value: Any) -> Any:
    """Twice as much of everything: a tuple of weights or operations twice, a number or cache times two."""
    if type(value) is Cache:
        return Cache(*(2 * item for item in value))
    return (*value, *value) if isinstance(value, tuple) else 2 * value


DEFINED = [
    (cls, formula) for cls in LEAVES for formula in FORMULAS if getattr(cls, formula) is not getattr(Leaf, formula)
]


@pytest.mark.parametrize(("cls", "formula"), DEFINED, ids=lambda item: getattr(item, "__name__", item))
def test_a_doubled_formula_is_noticed(cls: type[Leaf], formula: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = getattr(cls, formula)
    monkeypatch.setattr(cls, formula, lambda *arguments: doubled(honest(*arguments)))
    rows = [(fresh(part), work, pinned) for part, work, pinned in ROWS.values() if type(part) is cls]
    assert any(figures(part, work) != pinned for part, work, pinned in rows)


def feels(child: Any, changed: Any, work: Workload) -> bool:
    """False for what is done once, whatever the batch."""
    return figures(child.part, child.on(work)) != figures(child.part, changed.on(work))


@pytest.mark.parametrize("name", [name for name, (part, _, _) in ROWS.items() if not isinstance(part, Leaf)])
def test_every_child_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped, there twice, or with a batch of one more."""
    part, work, pinned = ROWS[name]
    honest = list(part.children())
    for i, child in enumerate(honest):
        done = None if child.on(work) is None else figures(child.part, child.on(work)).keys() - {"params", "active"}
        owns = child.part.params if isinstance(child.part, Leaf) else True
        wider = child._replace(on=lambda work, on=child.on: on(work)._replace(batch=work.batch + 1))
        replacements = ([[], [child, child]] if done or owns else []) + (
            [[wider]] if done and feels(child, wider, work) else []
        )
        assert replacements or done is None, f"{child.name} does nothing"
        for replacement in replacements:
            tampered = [*honest[:i], *replacement, *honest[i + 1 :]]
            monkeypatch.setattr(type(part), "children", lambda self, tampered=tampered: iter(tampered))
            assert figures(fresh(part), work) != pinned, child.name
