"""What people type: names of the hub, punctuation of presets, names of fields and methods, standard input."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command import Command

import txcalc
from txcalc.errors import InputError
from txcalc.sources import build, hub, presets
from txcalc.sources.huggingface import MAX_BYTES
from txcalc.sources.spec import stating_defaults

run = Command()
CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("gpt-2", "gpt2"), ("gpt-2-xl", "gpt2-xl"), ("Llama3.1-8B", "llama-3.1-8b"), ("t5small", "t5-small")],
)
def test_punctuation_of_a_preset_is_no_matter_and_is_told(typed: str, meant: str) -> None:
    model = txcalc.load(typed)
    assert (model.name, model.params) == (meant, txcalc.load(meant).params)
    assert model.notes[-1] == f"{typed} is the preset {meant}"
    assert not txcalc.load(meant).notes


def test_a_name_of_the_hub_needs_no_prefix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    repositories: list[str] = []

    def read(place: hub.Repository, ignore: Any = ()) -> Any:
        repositories.append(place.name)
        raise InputError("hub", ["was asked"])

    monkeypatch.setattr(hub, "read", read)
    monkeypatch.chdir(tmp_path)
    for name in ("Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct"):
        with pytest.raises(InputError, match="was asked"):
            txcalc.load(name)
    (tmp_path / "Qwen").mkdir()
    for path in ("Qwen/Qwen3-8B", "a/b.toml", "a/b/c", "./a/b", "/a/b"):
        with pytest.raises(InputError, match=r"cannot be read|no such|is not|directory"):
            txcalc.load(path)
    assert repositories == ["Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct"]


@pytest.mark.parametrize(
    ("unquoted", "whole"),
    [
        ("show D=64 L=2 h=4 F=128 plain --tokens 9 ln", ("show", "D=64 L=2 h=4 F=128 plain", "--tokens", "9", "ln")),
        ("show --json D=64 L=2 h=4 F=128", ("show", "--json", "D=64 L=2 h=4 F=128")),
        ("show gpt2 --set L=2 --json", ("show", "gpt2", "--set", "L=2", "--json")),
        ("compare gpt2 D=64 L=2 h=4 F=8*D --set h=2", ("compare", "gpt2", "D=64 L=2 h=4 F=8*D", "--set", "h=2")),
    ],
)
def test_a_description_needs_no_quotes(unquoted: str, whole: tuple[str, ...]) -> None:
    assert run(*unquoted.split()) == run(*whole)


def test_names_of_fields_are_letters() -> None:
    by_fields = txcalc.load("width=512 heads=8 layers=6 F=2048 gated vocab=100 kv_heads=2")
    assert by_fields.params == txcalc.load("D=512 h=8 L=6 F=2048 gated V=100 h_kv=2").params
    assert (
        txcalc.load("hidden_size=64 num_hidden_layers=2 n_heads=4 d_ff=128").params
        == txcalc.load("D=64 L=2 h=4 F=128").params
    )
    with pytest.raises(InputError, match="h is given twice"):
        txcalc.load("D=64 L=2 h=4 heads=4 F=128")


def test_a_kind_of_attention_is_hinted_at(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text('d_model = 64\nn_layers = 2\n[attention]\nkind = "mla"\nn_heads = 4\n[feed_forward]\nd_ff = 128\n')
    assert "latent.kv_rank=512, and latent.d_nope" in run("show", str(path))[2]
    assert "latent.kv_rank=512, and latent.d_nope" in run("show", "gpt2", "--set", "attention.kind=mla")[2]
    assert "latent.kv_rank=512, and latent.d_nope" in run("show", "D=64 L=2 h=4 F=128 attention.kind=mla")[2]


def test_names_of_configs_are_keys_that_are_set() -> None:
    names = {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "intermediate_size": 2048}
    letters = dict(zip("DLhF", names.values(), strict=True))
    assert txcalc.load("gpt2", names) == txcalc.load("gpt2", letters) and txcalc.load("gpt2", n_embd=960, h=15).notes
    with pytest.raises(InputError, match="no key named 'hidden_sizes'"):
        txcalc.load("gpt2", hidden_sizes=5)


def test_the_same_words_describe_the_same_model_in_every_form(tmp_path: Path) -> None:
    """Gated where nobody says, no final norm without a vocabulary; F = 4·D needs a word."""
    sizes: dict[str, Any] = {"d_model": 64, "n_layers": 2, "attention": {"n_heads": 4}}
    toml = "d_model = 64\nn_layers = 2\n[attention]\nn_heads = 4\n[feed_forward]\nd_ff = {}\n"
    path = tmp_path / "mine.toml"
    path.write_text(toml.format(128))
    dict_model = txcalc.load({**sizes, "feed_forward": {"d_ff": 128}})
    inline, gated = (txcalc.load(text).params for text in ("D=64 L=2 h=4 F=128", "D=64 L=2 h=4 F=128 gated"))
    assert dict_model.params == txcalc.load(path).params == inline == gated
    path.write_text(toml.format(256))
    for source in ({**sizes, "feed_forward": {"d_ff": 256}}, path, "D=64 L=2 h=4 F=256"):
        with pytest.raises(InputError, match=r"F = 256 is 4·D: is it gated, or plain"):
            txcalc.load(source)
    plain = txcalc.load({**sizes, "feed_forward": {"d_ff": 256, "gated": False}})
    assert plain.params == txcalc.load("D=64 L=2 h=4 F=256 plain").params


def test_whether_a_layer_is_gated_is_asked_kind_by_kind() -> None:
    """A kind's own word stands, and a kind without one is gated, wherever its width is written."""

    def params(shared: Any, **kinds: Any) -> int:
        layer = {name: {"feed_forward": table} for name, table in kinds.items()}
        sizes = {"d_model": 64, "n_layers": 2, "attention": {"n_heads": 4}, "pattern": ["a", "b"]}
        return txcalc.load({**sizes, "feed_forward": shared, "layer": layer}).params

    attention, matrix = 2 * (4 * 64 * 64 + 2 * 64), 64 * 256
    assert params({"d_ff": 256}, a={"gated": False}, b={"gated": True}) == attention + (2 + 3) * matrix
    assert params({"activation": "gelu"}, a={"d_ff": 256, "gated": False}, b={"d_ff": 128}) == attention + 3.5 * matrix
    with pytest.raises(InputError, match="F = 256 is 4·D"):
        params({"activation": "gelu"}, a={"d_ff": 256}, b={"d_ff": 128})
    with pytest.raises(InputError, match="F = 256 is 4·D"):
        params({"d_ff": 256}, a={"gated": False}, b={})
    params({"d_ff": 256, "gated": True}, a={"gated": False}, b={})
    halves: dict[str, Any] = {"encoder": {"n_layers": 1, "feed_forward": {"gated": False}}, "decoder": {"n_layers": 1}}
    sizes = {"kind": "encoder-decoder", "d_model": 64, "vocab_size": 9, "attention": {"n_heads": 4}}
    model = txcalc.load({**sizes, "feed_forward": {"d_ff": 128}, **halves})
    assert [layer.feed_forward and layer.feed_forward.gated for layer in model.description.layers] == [False, False]
    tower = {"kind": "vision", "d_model": 96, "n_layers": 1, "attention": {"n_heads": 4}, "feed_forward": {"d_ff": 360}}
    tower |= {"vision": {"image": 32, "patch": 16}}
    plain = {**tower, "feed_forward": {"d_ff": 360, "gated": False}}
    assert txcalc.load(tower).params == txcalc.load(plain).params  # encoders and pictures are plain
    with pytest.raises(InputError, match="feed_forward is 256, expected a table"):
        params(256, a={"d_ff": 100}, b={"d_ff": 100})


@pytest.mark.parametrize(
    ("source", "changes", "equivalent"),
    [
        ("D=64 L=2 h=4 F=128", {"V": 9}, "D=64 L=2 h=4 F=128 V=9"),
        ("D=64 L=2 h=4 F=256", {"feed_forward.gated": True}, "D=64 L=2 h=4 F=256 gated"),
        ("D=64 L=2 h=4 F=256", {"F": 128}, "D=64 L=2 h=4 F=128"),
        ("D=64 L=2 h=4 F=128", {"F": 256}, "D=64 L=2 h=4 F=256 gated"),
    ],
)
def test_defaults_are_those_of_the_changed_description(source: str, changes: Any, equivalent: str) -> None:
    assert txcalc.load(source, changes).params == txcalc.load(equivalent).params
    with pytest.raises(InputError, match="F = 256 is 4·D"):
        txcalc.load("D=64 L=2 h=4 F=256", V=9)


def test_layer_kinds_without_tables_are_no_pattern() -> None:
    """All layers got the window, and the result was proved."""
    changes = {"pattern": ["near", "near", "far"], "window": 4}
    with pytest.raises(InputError, match=r"near and far have no tables, so they are the same layer \(layer\.far"):
        txcalc.load("D=64 L=3 h=4 F=128", changes)
    pattern = {"pattern": ["near", "near", "far"], "layer.near.attention.window": 4}
    model = txcalc.load("D=64 L=3 h=4 F=128", pattern)
    assert [layer.attention and layer.attention.get("window") for layer in model.description.layers] == [4, None]
    with pytest.raises(InputError, match=r"kv_rank is a key of a table that the model lacks: latent\.kv_rank=… adds"):
        txcalc.load("gpt2", kv_rank=8)


def test_a_post_norm_decoder_without_a_vocabulary_comes_back_without_a_final_norm() -> None:
    """What its table leaves to the default of its place."""
    post = {"attention": {"n_heads": 4}, "feed_forward": {"d_ff": 128}, "norm": {"place": "post"}}
    model = build({"d_model": 64, "n_layers": 2, **post}, "post")
    assert build(stating_defaults(model.raw), "post", written=True).params == model.params


@pytest.mark.parametrize("source", ["-", "/dev/stdin"])
def test_standard_input_is_a_description_or_a_config(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    toml = "d_model = 64\nn_layers = 2\n[attention]\nn_heads = 4\n[feed_forward]\nd_ff = 128\ngated = false\n"
    for text, equivalent in ((toml, "D=64 L=2 h=4 F=128 plain"), (json.dumps(CONFIG), None)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        model = txcalc.load(source)
        assert model.params == (txcalc.load(equivalent) if equivalent else txcalc.load(CONFIG)).params
    large = "{" + " " * MAX_BYTES
    for wrong, message in (
        ("nonsense", "is not valid TOML"),
        ("{", "is not valid JSON"),
        ("", "is empty"),
        (large, "is larger"),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(wrong.encode())))
        with pytest.raises(InputError, match=f"standard input: {message}"):
            txcalc.load(source)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen3-8B", "qwen3-8b"),
        ("gemma-2-9b-it", "gemma-2-9b"),
        ("Mistral-7B-v0.3", "mistral-7b"),
        ("bark", None),
    ],
)
def test_a_name_of_the_hub_is_near_a_preset(name: str, near: str | None) -> None:
    assert presets.nearest_to(name) == near


def test_ignore_is_read_by_every_command_that_reads_configs(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "strange_width": 77}))
    for command in (["compare", str(path), "gpt2"], ["diff", "gpt2", str(path)], ["show", str(path)]):
        assert run(*command)[0] == 2
        code, out, err = run(*command, "--ignore", "strange_width")
        assert (code, bool(out)) == (0, True), err
        assert run(*command, "--ignore", "no_such_key")[0] == 2
    assert run("compare", "gpt2", "gpt2-xl", "--ignore", "x")[2].startswith("txcalc: --ignore: needs a config.json")
