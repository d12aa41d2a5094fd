"""No key is ignored: whatever a description or a change says changes the model, or is refused and says why."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from command import typed
from tiny import TINY

from txcalc import InputError, load, sweep
from txcalc.model import Model
from txcalc.parts.mechanisms import PARTS
from txcalc.sources import build, idle, presets, spec
from txcalc.sources.idle import NOTHING, idle_paths
from txcalc.sources.resolve import resolve

KEYS = [f"{section}.{key}" if section else key for section in spec.SECTIONS for key in spec.SECTIONS[section]]
VALUES: dict[Any, tuple[Any, ...]] = {
    spec.size: (3,),
    spec.count: (0, 2),
    spec.layers: (1,),
    spec.flag: (True, False),
    spec.real: (0.5,),
    spec.biases: (["q"],),
    spec.texts: (["a"],),
    spec.tables: ([[3, 1]],),
    spec.parts_of: (["attention"],),
}


def values(path: str) -> tuple[Any, ...]:
    section, _, key = path.rpartition(".")
    check = spec.SECTIONS[section][key].check
    return VALUES.get(check) or getattr(check, "choices", None) or (["c2p"], ["q"], "layer")


def refused(make: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        make(*arguments, **options)
    return str(error.value)


def written(raw: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A description with a key in its outermost tables."""
    result = deepcopy(raw)
    *tables, key = path.split(".")
    table = result
    for name in tables:
        table = table.setdefault(name, {})
    table[key] = value
    return result


def attempts(name: str) -> Iterator[tuple[str, Any]]:
    """Every key of every table, and values that it does not have yet; of tables that the model lacks one key each."""
    raw = TINY[name]
    halves = [raw, *(raw[half] for half in ("encoder", "decoder") if half in raw)]
    layers = [layer for half in halves for layer in half.get("layer", {}).values()]
    lacking: set[str] = set()
    for path in KEYS:
        section = path.rpartition(".")[0]
        if section not in spec.ALWAYS and not any(section in table for table in (*halves, *layers)):
            if section in lacking:
                continue
            lacking.add(section)
        yield from ((path, value) for value in values(path))


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_every_changed_key_changes_the_tree_or_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`repr` compares trees apart from how txcalc does it. What all changes are compared with is made once."""
    raw, tree = TINY[name], repr(build(TINY[name], name).root)
    unchanged = idle.usable(spec.rename_keys(raw))
    monkeypatch.setattr(idle, "usable", lambda _: unchanged)
    changed = 0
    for path, value in attempts(name):
        try:
            model = build(raw, name, changes={path: value})
        except InputError:
            continue
        idle_notes = [note for note in model.notes if note.startswith("already so: ")]
        assert bool(idle_notes) == (repr(model.root) == tree), (path, value)
        assert model.params > 0
        changed += not idle_notes
    assert changed > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "bert", "deepseek-v3", "mamba", "vit", "t5", "whisper", "qwen3-next"])
def test_every_written_key_changes_the_tree_or_is_refused(name: str) -> None:
    """Or spells out what is so: a default, nothing, or a size that others give. Asked of that key alone: what a file
    says is asked of each."""
    for path, value in attempts(name):
        line = written(TINY[name], path, value)
        usable = idle.usable(line)
        if usable is None or (tuple(path.split(".")), value) in idle_paths(usable):
            continue
        table, _, key = path.rpartition(".")
        default = spec.SECTIONS[table][key].default
        try:
            model, without = build(line, name), build(idle.without_key(line, tuple(path.split("."))), name)
        except InputError:
            continue
        so = value in NOTHING or default is None or without.stacks == model.stacks
        assert so or repr(model.root) != repr(without.root), (path, value)


def test_chunks_of_attention_without_windows_are_refused() -> None:
    llama = TINY["llama"]
    masked = {**llama, "attention": {**llama["attention"], "keep": 3}}
    assert build(masked, "model", written=True).params > 0
    with pytest.raises(InputError, match=r"attention\.chunked is True, which changes nothing"):
        build({**masked, "attention": {**masked["attention"], "chunked": True}}, "model", written=True)


BOTH = {**TINY["compressed"], "latent": {"kv_rank": 8}}


@pytest.mark.parametrize(
    ("raw", "key", "fault"),
    [
        (BOTH, "q_rank", "--set: q_rank is a key of several tables (latent.q_rank or compressed.q_rank?)"),
        (TINY["deepseek-v2"], "h_kv", "h_kv is attention.n_kv_heads: attention is a table that no layer uses (they "
         "have experts, latent; latent has n_heads, "),
        (TINY["deepseek-v2"], "rotary_dims", "changes nothing here: it counts with rotary positions of [attention]"),
    ],
)  # fmt: skip
def test_a_change_that_other_tables_of_attention_have_not(raw: Any, key: str, fault: str) -> None:
    assert fault in refused(build, raw, "tiny", changes={key: 4})
    assert build(TINY["deepseek-v2"], "tiny", changes={"kv_rank": 4}).params > 0  # latent alone has that key


def test_a_change_to_latent_attention_replaces_the_heads_of_keys() -> None:
    """With the query heads that there were."""
    latent = {"latent.kv_rank": 512, "latent.d_nope": 128, "latent.d_rope": 64, "latent.d_v": 128}
    assert load("llama-3.1-8b", latent).outline()[1] == "MLA 32 heads, latent 512 + 64; gated F = 14,336"
    assert load("llama-3.1-8b", {**latent, "latent.n_heads": 16}).outline()[1].startswith("MLA 16 heads")
    rank, *others = latent
    swept = sweep("llama-3.1-8b", over={rank: [256, 512]}, changes={key: latent[key] for key in others}).rows
    assert [row["params"] for row in swept] == [load("llama-3.1-8b", latent | {rank: n}).params for n in (256, 512)]
    missing = refused(load, "llama-3.1-8b", {"latent.kv_rank": 512})
    assert "3 faults" in missing and "latent.d_nope is missing" in missing
    windowed, plain = load("mistral-7b", latent), load("mistral-7b", {**latent, "latent.window": 64})
    assert [len({leaf.max_keys for leaf in model.root.leaves()} - {None}) for model in (windowed, plain)] == [1, 1]
    for name, changes, why in (
        ("llama-3.1-8b", {"h_kv": 2}, "attention.n_kv_heads is 2, which [latent] does not have"),
        ("qwen2.5-7b", {}, "attention.bias is"),
        ("gemma-3-27b", {}, "layers of kind local have their own attention (write the model by export"),
    ):
        assert why in refused(load, name, {**changes, **latent})


def test_no_shared_expert_is_none() -> None:
    """Its gate goes with it: a key that a change leaves without a part is no fault."""
    whole, without = load("qwen3-next-80b-a3b"), load("qwen3-next-80b-a3b", {"n_shared": 0})
    assert whole.params - without.params == 151_093_248 == 48 * (3 * 2048 * 512 + 2048)


def test_what_is_so_already_is_said_and_not_called_a_change() -> None:
    unchanged = load("llama-3.1-8b", {"h_kv": 8})
    assert unchanged.notes == ("already so: h_kv = 8",) and not unchanged.changed
    assert load("llama-3.1-8b", {"h_kv": 4}).changed
    assert load("llama-3.1-8b", {"h_kv": 8, "L": 2}).notes == ("changed: L = 2", "already so: h_kv = 8")


def test_a_command_takes_what_is_so_already_beside_what_changes() -> None:
    """Another key, or another of its models; alone it is refused: `refusals.toml`."""
    assert typed("show", "llama-3.1-8b", "--set", "h_kv=8", "--set", "L=2").exit_code == 0
    assert typed("crossover", "llama-3.1-8b", "llama-2-7b", "--set", "h_kv=8").exit_code == 0


def test_what_a_model_is_called_and_for_is_no_size() -> None:
    model = load("llama-3.1-8b", {"context": 4096, "name": "mine"})
    assert model.context == 4096 and model.name == "mine"
    assert model.notes == ("changed: context = 4096, name = mine",)


GOOD = """
d_model = 32
n_layers = 2
vocab_size = 50
attention = {n_heads = 4}
feed_forward = {d_ff = 48}
"""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "head = {rank = 8}",
            "head.rank is 8, which changes nothing here: it counts with a masked-lm head or embedding.early",
        ),
        (
            "positions = {buckets = 8}",
            "positions.buckets is 8, which changes nothing here: it counts with positions.form = 'relative'",
        ),
        (
            "pattern = ['a', 'b']\nattention.window = 3\nlayer.a.attention.window = 4\nlayer.b.attention.window = 5",
            "attention.window is 3, which changes nothing here: layer.a.attention.window and layer.b.attention.window "
            "override it",
        ),
        ("layer.a.norm.final = true\nnorm.final = false", "layer.a.norm.final is True, which changes nothing here"),
    ],
)
def test_files(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(GOOD.replace("attention = {n_heads = 4}", "attention.n_heads = 4") + line)
    assert refused(load, path) == f"{path}: {message}"


def test_inline() -> None:
    assert "learned is 64, which changes nothing here" in refused(load, "D=32 L=2 h=4 F=48 learned=64")


def test_a_change_may_mend_a_file(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(GOOD.replace("n_layers = 2", ""))
    assert "n_layers is missing" in refused(load, path)
    assert load(path, {"L": 2}).params > 0
    assert "L is 2" not in refused(load, path, {"L": 2, "head.rank": 0})


@pytest.mark.drawn(1000)
@pytest.mark.slow
@pytest.mark.parametrize("name", presets.names())
def test_every_key_of_a_preset_counts(name: str) -> None:
    raw, *_ = presets.find(name)
    assert not list(idle_paths(idle.Built(raw, resolve(raw, ""))))


# Faulty keys.

SIZE = "expected a whole number from 1 to 1,000,000,000"
KINDS = "expected one of decoder, encoder, encoder-decoder, vision, audio"


@pytest.mark.parametrize(
    ("name", "changes", "faults"),
    [
        ("deberta", {"positions.distance": 0.5}, ["positions.distance is 0.5, expected a whole number above 0"]),
        ("deberta", {"positions.rows": "x"}, ["positions.rows is 'x', expected a whole number above 0"]),
        ("llama", {"attention.n_heads": 0}, [f"attention.n_heads is 0, {SIZE}"]),
        ("llama", {"attention": 5}, ["attention is 5, expected a table"]),
        ("gemma4", {"pattern": 3}, ["pattern is 3, expected a list of texts"]),
        ("llama", {"kind": "decode"}, [f"kind is 'decode', {KINDS}"]),
        ("t5", {"kind": 1}, [f"kind is 1, {KINDS}"]),
        ("vit", {"vision.image": 0}, [f"vision.image is 0, {SIZE}"]),
        ("deepseek-v3.2", {"latent.index_width": 0}, [f"latent.index_width is 0, {SIZE}"]),
        ("gemma4", {"layer.local.attention.window": -3}, [f"layer.local.attention.window is -3, {SIZE}"]),
        ("gemma4", {"layer.local.parts": 5}, [f"layer.local.parts is 5, expected a list out of {', '.join(PARTS)}"]),
    ],
)
def test_no_fault_rests_on_another(name: str, changes: dict[str, Any], faults: list[str]) -> None:
    raw = TINY[name]
    for path, value in changes.items():
        raw = written(raw, path, value)
    with pytest.raises(InputError) as error:
        build(raw, name)
    assert list(map(str, error.value.faults)) == faults


def test_a_fault_in_the_kind_hides_none_in_a_table() -> None:
    raw = written(written(TINY["t5"], "kind", 1), "attention.n_heads", 0)
    assert len(refused(build, raw, "t5").splitlines()) == 3


ODD: tuple[Any, ...] = (None, True, -1, 0, 0.5, "x", [], {}, [[]], float("nan"), 10**30)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_faulty_key_is_one_fault_and_no_traceback(name: str) -> None:
    """Any odd value in any key that is there: refused for that key alone, or made into a model."""
    raw = TINY[name]
    for path in [path for path in KEYS if spec.sets(raw, path.split("."))]:
        for value in ODD:
            try:
                result: Model | InputError = build(written(raw, path, value), name)
            except InputError as error:
                result = error
            if isinstance(result, InputError) and type(value) is not int and value not in ({}, []):
                assert all(path in str(fault) for fault in result.faults), (path, value, str(result))
