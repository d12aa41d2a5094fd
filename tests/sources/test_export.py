"""Descriptions written and read back, and presets of one's own: nothing may be lost on the way."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from command import Command
from paths import HF

import txcalc
from txcalc.errors import InputError, UnknownName
from txcalc.ledger import QUANTITIES
from txcalc.sources import build, huggingface
from txcalc.sources.explicit import explicit
from txcalc.sources.export import same_ledger, to_config, to_toml
from txcalc.sources.presets import names

pytest.importorskip("tomli_w", reason="writing TOML needs tomli_w (pip install '.[test]')")

each_preset = pytest.mark.parametrize("preset", names())
# No config.json has these: relative positions with a projection, and the 2017 Transformer's halves.
NO_CONFIG = {
    **dict.fromkeys(
        (
            "chinchilla-70b",
            "transformer-base",
            "transformer-big",
            "llama-4-scout",
            "llama-4-maverick",
        ),
        "cannot say all of this description",
    ),
}


def rows(model: txcalc.Model, **work: Any) -> dict[str, list[Any]]:
    """Every quantity of every leaf."""
    ledger = model.ledger(**work)
    return {e.path: [getattr(e, q) for q in QUANTITIES if q != "bytes"] + [e.traffic, e.cache_terms] for e in ledger}


run = Command(columns=100)


@pytest.mark.drawn(1000)
@pytest.mark.slow
@each_preset
def test_a_preset_comes_back_from_toml_leaf_by_leaf(preset: str) -> None:
    model = txcalc.load(preset)
    written = to_toml(model)
    back = build(tomllib.loads(written), "back", written=True)
    assert rows(back, batch=2, tokens=5) == rows(model, batch=2, tokens=5)
    assert back.description.params == model.params
    assert to_toml(back).splitlines()[1:] == written.splitlines()[1:]  # the first names it


@pytest.mark.drawn(quick=1)
@pytest.mark.parametrize(
    "name", ["blip-2 blip_2_vision_model", "gemma4 gemma4_vision", "qwen3_vl qwen3_vl", "minicpmv4_6 default"]
)
def test_towers_come_back_from_toml_leaf_by_leaf(name: str) -> None:
    """TOML writes tables behind values, so that a step of a projector need not begin with what it does."""
    config = json.loads((HF / "towers.json").read_text())[name]["config"]
    model = build(*huggingface.describe(config))
    back = build(tomllib.loads(to_toml(model)), "back", written=True)
    assert model.towers and back.total_params == model.total_params
    for tower, original in model.towers.items():
        assert rows(back.towers[tower], tokens=64) == rows(original, tokens=64)


def test_models_with_the_same_resolved_towers_are_equal() -> None:
    """The file states a default of the tower, which the preset leaves out."""
    model = txcalc.load("qwen3.5-27b")
    raw = tomllib.loads(to_toml(model))
    assert build(raw, "back", written=True) == model
    raw["towers"]["vision"]["n_layers"] += 1
    assert build(raw, "back", written=True) != model


def test_what_a_change_has_taken_away_is_not_written() -> None:
    """A file's keys must count: a gate on no shared experts would be refused."""
    model = txcalc.load("qwen3-next-80b-a3b", {"n_shared": 0})
    raw = tomllib.loads(to_toml(model))
    assert model.raw["experts"]["shared_gate"] and "shared_gate" not in raw["experts"]
    assert rows(build(raw, "back", written=True)) == rows(model)


@each_preset
def test_an_explicit_description_leaves_nothing_to_a_default(preset: str) -> None:
    model = txcalc.load(preset)
    back = build(explicit(model.description), "back")
    assert rows(back, batch=2, tokens=5) == rows(model, batch=2, tokens=5)
    assert explicit(back.description) == explicit(model.description)


@pytest.mark.drawn(32)
@pytest.mark.parametrize(
    "preset", [pytest.param(name, marks=[pytest.mark.slow] if i % 4 else []) for i, name in enumerate(names())]
)
def test_a_config_comes_back_to_the_same_ledger_or_is_refused(preset: str) -> None:
    model = txcalc.load(preset)
    if preset in NO_CONFIG:
        with pytest.raises(InputError, match=NO_CONFIG[preset]):
            to_config(model)
        return
    config, notes = to_config(model)
    back = build(*huggingface.describe(json.loads(json.dumps(config))))
    works: list[dict[str, Any]] = [{"batch": 3, "tokens": 11}, {"tokens": 1, "past": 9000}]
    for work in works:
        if work.get("past") and model.description.kind in ("encoder", "vision"):
            continue
        mine, theirs = model.ledger(**work), back.ledger(**work)
        for quantity in QUANTITIES:
            assert theirs.by_kind(quantity) == mine.by_kind(quantity), quantity
        assert theirs.cache_terms == mine.cache_terms
    assert back.assumptions == ()  # every key that decides is there
    assert bool(model.description.model_type) or notes[0].startswith("written as ")


CONFIGS = json.loads((HF / "configs.json").read_text())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("all-mpnet-base-v2", {"max_position_embeddings": 99, "relative_attention_num_buckets": 40}),
        ("bert-for-seq-generation-l-24", {"is_decoder": True, "architectures": ["BertGenerationDecoder"]}),
        ("default-gte", {"type_vocab_size": 0}),
        ("esmc-300m", {}),
        ("eurobert-210m", {"num_key_value_heads": 4, "mlp_bias": True}),
        ("flaubert-base-cased", {"pre_norm": True, "n_langs": 7}),
        ("layoutlm-base-uncased", {"max_2d_position_embeddings": 99}),
        ("nomic-embed-text-v1.5", {}),
        ("roformer-chinese-base", {"max_position_embeddings": 99, "embedding_size": 100}),
        ("tapas-base-masklm", {"type_vocab_sizes": [3, 4, 5]}),
        ("xlm-mlm-100-1280", {"gelu_activation": False}),
    ],
)
def test_an_encoders_config_comes_back(name: str, change: dict[str, Any]) -> None:
    model = build(*huggingface.describe(CONFIGS[name] | change))
    config, _ = to_config(model)
    back = build(*huggingface.describe(json.loads(json.dumps(config))))
    assert rows(back, batch=2, tokens=5) == rows(model, batch=2, tokens=5)


@pytest.mark.slow
@pytest.mark.drawn(1000)
@pytest.mark.parametrize(
    ("preset", "name"),
    [
        ("llama-3.1-8b", "LlamaForCausalLM"),
        ("mixtral-8x7b", "MixtralForCausalLM"),
        ("gemma-3-27b", "Gemma3ForCausalLM"),
        ("gpt-oss-20b", "GptOssForCausalLM"),
        ("deepseek-v3", "DeepseekV3ForCausalLM"),
        ("falcon-40b", "FalconForCausalLM"),
        ("jamba-v0.1", "JambaForCausalLM"),
        ("t5-small", "T5ForConditionalGeneration"),
        ("whisper-large-v3", "WhisperForConditionalGeneration"),
        ("bert-base", "BertModel"),
        ("gpt3-13b", "GPT2LMHeadModel"),
    ],
)
def test_transformers_makes_the_same_parameters_of_a_written_config(preset: str, name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = txcalc.load(preset)
    config, _ = to_config(model)
    cls = getattr(transformers, name)
    with torch.device("meta"):
        module = cls(cls.config_class.from_dict(config))
    assert sum(p.numel() for p in module.parameters()) == model.params


@pytest.mark.parametrize(
    ("source", "model_type"),
    [
        ("D=512 L=4 h=8 h_kv=2 F=1376 V=1000", "llama"),
        ("D=512 L=4 h=8 h_kv=2 F=1376 V=1000 window=64", "mistral"),
        ("D=512 L=4 h=8 F=1376 V=1000 E=8 k=2", "mixtral"),
        ("D=512 L=4 h=8 F=2048 V=1000 plain ln bias tied learned=128", "gpt2"),
    ],
)
def test_a_description_without_a_model_type_gets_one_with_the_same_ledger(source: str, model_type: str) -> None:
    config, notes = to_config(txcalc.load(source))
    assert config["model_type"] == model_type
    assert notes[0] == f"written as {model_type}, a model type with the same ledger"


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["deepseek_v32", "glm_moe_dsa"])
def test_an_index_that_selects_keys_comes_back(model_type: str) -> None:
    """DeepSeek-V3.2 is found where nobody names it; that GLM's index rotates neighbours changes no count."""
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 99}
    sizes |= {"intermediate_size": 64, "moe_intermediate_size": 32, "index_n_heads": 6, "index_topk": 9}
    model = build(*huggingface.describe({"model_type": model_type, **sizes}))
    written, _ = to_config(model)
    assert written["model_type"] == model_type
    assert [written[key] for key in ("index_n_heads", "index_head_dim", "index_topk")] == [6, 128, 9]
    unnamed = build({key: value for key, value in model.raw.items() if key != "model_type"}, "x")
    assert to_config(unnamed)[0]["model_type"] == "deepseek_v32"


def test_what_a_config_cannot_say_is_told() -> None:
    _, notes = to_config(txcalc.load("t5-small"))
    assert notes == ("head.scale = 0.0441942 is not in this config.json",)


def test_a_model_type_that_is_not_read_is_refused_by_name() -> None:
    raw = dict(txcalc.load("gpt2").raw)
    with pytest.raises(InputError, match=r"a config\.json of perceiver cannot be written"):
        to_config(build({**raw, "model_type": "perceiver"}, "x"))
    with pytest.raises(UnknownName, match="no writer for model_type named 'gpt-2'"):
        to_config(build({**raw, "model_type": "gpt-2"}, "x"))


def test_a_family_that_cannot_say_a_change_refuses() -> None:
    with pytest.raises(InputError, match=r"a config\.json of gpt2 cannot say all"):
        to_config(txcalc.load("gpt2", {"feed_forward.gated": True}))


def test_a_changed_model_forgets_what_was_published() -> None:
    raw = tomllib.loads(to_toml(txcalc.load("llama-3.1-8b", {"h_kv": 32})))
    assert "published" not in raw and "source" not in raw
    assert raw["params"] == txcalc.load("llama-3.1-8b", {"h_kv": 32}).params
    assert raw["attention"]["n_kv_heads"] == 32


def test_the_command_writes_files_that_load_back(tmp_path: Path) -> None:
    for to, file in (("toml", "x.toml"), ("config.json", "config.json")):
        result = run("export", "qwen3-30b-a3b", str(tmp_path / file), "--to", to)
        assert (result.exit_code, result.stdout) == (0, "")
        assert same_ledger(txcalc.load(tmp_path / file), txcalc.load("qwen3-30b-a3b"))
    result = run("export", "gpt2", "--to", "config.json")
    assert json.loads(result.stdout)["n_embd"] == 768
    assert run("export", "gpt2", str(tmp_path / "no" / "x"), "--to", "toml").exit_code == 2


def test_without_the_extra_the_message_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tomli_w", None)
    result = run("export", "gpt2", "--to", "toml")
    assert result.exit_code == 3
    assert "txcalc[export]" in result.stderr


# Presets of one's own.


@pytest.mark.parametrize("inner", ["", "models"])
def test_a_preset_of_ones_own_goes_first(inner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / inner
    place.mkdir(exist_ok=True)
    (place / "gpt2.toml").write_text(to_toml(txcalc.load("gpt2", {"L": 13})))
    (place / "mine-7b.toml").write_text(to_toml(txcalc.load("llama-7b")))
    monkeypatch.setenv("TXCALC_PRESETS", str(tmp_path))
    model = txcalc.load("gpt2")
    assert model.description.last.n_layers == 13
    assert model.notes == (f"read from {place / 'gpt2.toml'}",)
    assert txcalc.load("mine-7b").params == txcalc.load("llama-7b").params
    assert {"mine-7b", "gpt2", "llama-7b"} <= set(names())
    assert "mine-7b" in run("presets", "mine").stdout


def test_the_configuration_folder_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TXCALC_PRESETS", raising=False)
    for variable, base in (("XDG_CONFIG_HOME", tmp_path / "xdg"), ("HOME", tmp_path / "home" / ".config")):
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        monkeypatch.setenv(variable, str(base.parent if variable == "HOME" else base))
        assert "own" not in names()
        place = base / "txcalc" / "presets"
        place.mkdir(parents=True)
        (place / "own.toml").write_text(to_toml(txcalc.load("gpt2")))
        assert txcalc.load("own").params == 124_439_808
        (place / "own.toml").unlink()


def test_a_folder_that_is_named_and_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXCALC_PRESETS", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"TXCALC_PRESETS is .*expected a folder"):
        txcalc.load("gpt2")
