"""Arbitrary input: a model, or a TxcalcError that says what is wrong; never a traceback, never a wait."""

from __future__ import annotations

import inspect
import re
import tempfile
import tomllib
import tracemalloc
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, strategies as st
from strategies import FAMILIES, descriptions, share_of

from txcalc import Model, TxcalcError, load
from txcalc.description import expected_params
from txcalc.ledger import QUANTITIES
from txcalc.parts.forms import pieces
from txcalc.parts.projectors import steps_of
from txcalc.sources import build, inline, presets, spec
from txcalc.sources.spec import IDENTITY, SECTIONS, change_keys
from txcalc.symbols import BY_LETTER
from txcalc.units import iec, parse_bytes, parse_count, parse_tokens, short, si_bytes

pytestmark = pytest.mark.slow

NAMES = [*SECTIONS, "layer", "encoder", "decoder", "latent", "local", "parts"]
KEYS = sorted({key for fields in SECTIONS.values() for key in fields} | {*IDENTITY} | {*NAMES})
WORDS = sorted(
    {"a", "2*a", "0*a", "*a", "1e9*a", "q", "decoder", "encoder", "vision", "audio", "encoder-decoder", "recurrent"}
    | {"rms", "layer", "learned", "relative", "relative-projection", "classifier", "lm", "masked-lm", "latent", "none"}
    | {
        "attention",
        "cross_attention",
        "feed_forward",
        "experts",
        "mamba",
        "mamba2",
        "delta",
        "rg_lru",
        "time_mix",
        "channel_mix",
        "shared",
        "post",
        "silu",
    }
)

numbers = st.integers(-3, 9) | st.sampled_from([10**6, 10**9, 10**30, -(10**30), 2**64]) | st.floats()
scalars = st.none() | st.booleans() | numbers | st.sampled_from(WORDS) | st.text(max_size=6)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


valid = descriptions | st.sampled_from(presets.names()).map(lambda name: dict(presets.find(name)[0]))


def bears(make: Any, *arguments: Any) -> None:
    """It gives whole numbers for every quantity, or it says in a few lines what is wrong."""
    try:
        model: Model = make(*arguments)
        ledger = model.ledger(batch=2, tokens=3)
        figures = [ledger.total(quantity) for quantity in QUANTITIES] + [model.params, model.active]
    except TxcalcError as error:
        assert 0 < len(str(error)) < 20_000 + 2 * len(repr(arguments))
        assert "Traceback" not in str(error)
    else:
        assert all(type(figure) is int and figure >= 0 for figure in figures), figures
        assert model.kind in {*FAMILIES, "recurrent", "hybrid"}


@share_of(150)
@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), values, max_size=8))
def test_nested_tables(raw: dict[str, Any]) -> None:
    bears(build, raw, "a table")


def plausible(check: Any) -> st.SearchStrategy[Any]:
    """Values that a key accepts, seen alone."""
    choices = getattr(check, "choices", None) or inspect.getclosurevars(check).nonlocals.get("choices")
    if choices:
        return st.sampled_from(choices)
    if number := inspect.getclosurevars(check).nonlocals.get("number"):
        return st.lists(st.integers(1, 4), min_size=number, max_size=number)
    return {
        spec.size: st.integers(1, 12),
        spec.count: st.integers(0, 12),
        spec.layers: st.integers(1, 6),
        expected_params: st.integers(1, 10**12),
        spec.flag: st.booleans(),
        spec.text: st.sampled_from(WORDS),
        spec.real: st.floats(0.1, 10),
        spec.texts: st.lists(st.sampled_from(["a", "b", "2*a"]), min_size=1, max_size=3),
        spec.biases: st.booleans() | st.lists(st.sampled_from("qkvo"), max_size=4),
        spec.parts_of: st.lists(st.sampled_from(spec.PARTS), max_size=2),
        steps_of: st.lists(st.sampled_from([{"norm": "rms"}, {"merge": 2}, {"linear": 8, "bias": True}]), max_size=3),
        pieces: st.just([{"name": "x", "form": "linear", "sizes": [3, 5]}]),
        spec.tables: st.lists(st.lists(st.integers(1, 12), min_size=2, max_size=2), max_size=2),
    }[check]


def test_every_check_has_right_values() -> None:
    for fields in SECTIONS.values():
        for field in fields.values():
            assert plausible(field.check) is not None


@st.composite
def combinations(draw: st.DrawFn) -> dict[str, Any]:
    """A valid description with up to four keys set, each to a value that is right in itself."""
    raw = deepcopy(draw(valid))
    for _ in range(draw(st.integers(1, 4))):
        section = draw(st.sampled_from([*filter(SECTIONS.get, SECTIONS), "", "kind"]))
        place = raw
        if section == "kind":
            raw["kind"] = draw(plausible(IDENTITY["kind"].check))
            continue
        above = draw(st.sampled_from([[], [], ["encoder"], ["decoder"], ["layer", "a"]]))
        for name in [*above, section] if section else above:
            place = place.setdefault(name, {})
        key = draw(st.sampled_from(sorted(SECTIONS[section])))
        place[key] = draw(plausible(SECTIONS[section][key].check))
        if above == ["layer", "a"] and draw(st.booleans()):
            raw["layer"]["a"]["parts"] = draw(st.lists(st.sampled_from(spec.PARTS), min_size=1, max_size=3))
    return raw


@share_of(250)
@given(combinations())
def test_right_keys_in_any_combination(raw: dict[str, Any]) -> None:
    bears(build, raw, "a combination")


@st.composite
def mutations(draw: st.DrawFn) -> dict[str, Any]:
    """A valid description with one to three places changed: dropped, retyped, negated, nested, huge, misspelt."""
    raw = deepcopy(draw(valid))
    for _ in range(draw(st.integers(1, 3))):
        table: Any = raw
        while table:
            key = draw(st.sampled_from(sorted(table)))
            if isinstance(table[key], dict) and draw(st.integers(0, 3)):
                table = table[key]
                continue
            change = draw(st.sampled_from(["drop", "replace", "negate", "nest", "huge", "misspell", "add", "swap"]))
            if isinstance(table[key], str) and change != "drop":
                table[key] = draw(st.sampled_from(WORDS))
            elif change == "drop":
                del table[key]
            elif change == "replace":
                table[key] = draw(values)
            elif change == "negate":
                table[key] = -table[key] if isinstance(table[key], int | float) else not table[key]
            elif change == "nest":
                table[key] = {key: table[key]}
            elif change == "huge":
                table[key] = 10**30
            elif change == "misspell":
                table[key + draw(st.sampled_from(["s", "é", "\n", "\ud800", "." * 200]))] = table.pop(key)
            elif change == "add":
                table[draw(st.sampled_from(KEYS))] = draw(values)
            else:
                table[key] = table[draw(st.sampled_from(sorted(table)))]
            break
    return raw


@share_of(300)
@given(mutations())
def test_mutated_models(raw: dict[str, Any]) -> None:
    bears(build, raw, "a mutant")


def test_the_largest_sizes_take_little_memory() -> None:
    """Nothing is made an expert, a row or a token at a time; layers cost a number each."""
    raw = {
        "d_model": spec.MAX_SIZE,
        "n_layers": spec.MAX_LAYERS,
        "vocab_size": spec.MAX_SIZE,
        "pattern": ["99998*a", "b"],
        "layer": {"b": {}},
        "attention": {"n_heads": spec.MAX_SIZE, "d_head": spec.MAX_SIZE},
        "experts": {"n_experts": spec.MAX_SIZE, "top_k": spec.MAX_SIZE, "d_ff": spec.MAX_SIZE},
    }
    tracemalloc.start()
    ledger = build(raw, "a giant").ledger(batch=10**12, tokens=10**12, past=10**12)
    assert all(ledger.total(quantity) > 0 for quantity in QUANTITIES if quantity != "sent")  # on one GPU
    assert ledger.at("layers.99999.experts.routed.999999999.up").total("params") == 10**18
    assert tracemalloc.get_traced_memory()[1] < 30e6
    tracemalloc.stop()


@share_of(150)
@given(
    st.sampled_from(presets.names()),
    st.dictionaries(
        st.sampled_from([*KEYS, *BY_LETTER, "attention.window", "layer.a.b", ".", "a."]) | st.text(max_size=5),
        values,
        max_size=3,
    ),
)
def test_changed_keys(name: str, changes: dict[str, Any]) -> None:
    bears(load, name, changes)


@share_of(300)
@given(st.text(max_size=60))
@example("\0=1")
@example("=" * 5000)
@example("D=" + "9" * 5000)
@example("D=512 " * 2000)
def test_arbitrary_text_as_a_source(text: str) -> None:
    assume(text != "-")  # standard input
    bears(load, text)


items = st.builds(
    "{}{}{}".format,
    st.sampled_from([*inline.LETTERS, *inline.WORDS, "d", "W", "h-kv", "𝐷", ""]),
    st.sampled_from(["=", "=", "=", "", "==", ":"]),
    st.sampled_from(["1", "8", "512", "32k", "1M", "0", "-1", "1.5", "nan", "1e3", "9" * 40, "32q", "²", "", "8,8"]),
)


@share_of(300)
@given(st.lists(items, max_size=14), st.sampled_from([" ", ",", "  ,", "\t"]))
def test_items_of_inline_descriptions(words: list[str], gap: str) -> None:
    bears(load, "D=64 L=2 F=8 " + gap.join(words))


@share_of(100)
@given(st.text(max_size=80) | st.binary(max_size=80))
def test_arbitrary_files(content: str | bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        bears(load, path)


@share_of(100)
@given(st.sampled_from(presets.names()), st.data())
def test_mangled_preset_files(name: str, data: st.DataObject) -> None:
    content = (presets.folder() / "models" / f"{name}.toml").read_text()
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, min(start + 40, len(content))))
    mangled = (
        content[:start]
        + data.draw(st.text(max_size=8) | st.sampled_from(["[", "]]", "=", "'''", "1_0", "-"]))
        + content[end:]
    )
    try:
        raw = tomllib.loads(mangled)
    except (tomllib.TOMLDecodeError, ValueError):
        return
    bears(build, raw, "a mangled preset")


@given(st.text(max_size=30) | st.from_regex(r"\d+[.,_]?\d*[kKmMgGtTbBiI]{0,3}", fullmatch=True))
@pytest.mark.parametrize("parse", [parse_tokens, parse_count, parse_bytes])
def test_sizes_as_text(parse: Any, text: str) -> None:
    try:
        assert parse(text) >= 0
    except TxcalcError as error:
        assert repr(text)[:20] in str(error)


@given(st.integers(-(10**40), 10**40) | st.fractions())
def test_any_number_can_be_shown(number: Any) -> None:
    for shown in (short(number), iec(number), si_bytes(number)):
        assert re.fullmatch(r"−?\d+(\.\d+)?( [A-Za-z]+)?", shown), shown


@given(st.sampled_from(presets.names()), st.dictionaries(st.text(max_size=4), scalars, max_size=2))
def test_changing_leaves_the_description_as_it_was(name: str, changes: dict[str, Any]) -> None:
    raw = presets.find(name)[0]
    before = deepcopy(raw)
    with suppress(TxcalcError):
        change_keys(raw, changes)
    assert raw == before
