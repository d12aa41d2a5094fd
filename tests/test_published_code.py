"""Models that transformers has no class of, whose code is published beside their weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from txcalc import load
from txcalc.errors import InputError
from txcalc.sources import build
from txcalc.sources.huggingface import describe
from txcalc.sources.huggingface.families import READERS

DATA = Path(__file__).parent / "data" / "hf"
ROWS: dict[str, dict[str, Any]] = json.loads((DATA / "published.json").read_text())
ORIGINAL: dict[str, dict[str, Any]] = json.loads((DATA / "original.json").read_text())  # params.json
WILD: dict[str, dict[str, Any]] = json.loads((DATA / "wild.json").read_text())
TYPES = {name for name, (module, _) in READERS.items() if module == "published"}
WHOLES = {name: row["config"] for name, row in ROWS.items() if row.get("whole")}  # multimodal; null: not known
EVERY = {name: row["config"] for name, row in ROWS.items() if "whole" not in row} | {
    name: row["config"]
    for name, row in WILD.items()
    if row["params_total"] and row["config"].get("model_type") in TYPES
}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_parameters_and_cache(name: str) -> None:
    model = build(*describe(ROWS[name]["config"]))
    assert model.params == ROWS[name]["params"] and model.whole == ROWS[name].get("whole", model.params)
    assert model.ledger(1, 7).total("cache") == 7 * ROWS[name]["kv_per_token"] + ROWS[name].get("state", 0)


@pytest.mark.parametrize("name", WHOLES)
def test_a_key_more_makes_the_whole_unknown(name: str) -> None:
    config = WHOLES[name]
    tables = [key for key in ("vision_config", "img_processor", "projector_config", "embd_layer") if key in config]
    for change in ({key: {**config[key], "depth_multiplier": 7}} for key in tables):
        model = build(*describe({**config, **change}))
        assert model.params == ROWS[name]["params"] and model.whole is None
        assert f"params.whole is not known: {next(iter(change))}" in " ".join(model.notes)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("InternVL2.5-1B", {"force_image_size": 224}),
        ("InternVL2.5-1B", {"use_llm_lora": 16}),
        ("InternVL2.5-1B", {"aligner_depth": 2}),
        ("MiniCPM-V-2.6", {"drop_vision_last_layer": True}),
        ("MiniCPM-V-2.6", {"version": 4.5}),
        ("Kimi-VL-A3B", {"projection_hidden_size": 96}),
        ("DeepSeek-OCR", {"vision_config": {}}),
        ("DeepSeek-OCR", {"architectures": ["DeepseekOCR2ForCausalLM"]}),
        ("dots.ocr", {"vision_config": {"hidden_size": 2048}}),
        ("dots.ocr", {"vision_config": {"temporal_patch_size": 2}}),
    ],
)
def test_what_the_code_has_otherwise_makes_the_whole_unknown(name: str, change: dict[str, Any]) -> None:
    model = build(*describe({**WHOLES[name], **change}))
    assert model.whole is None and f"params.whole is not known: {next(iter(change))}" in " ".join(model.notes)


def test_every_type_has_a_row() -> None:
    custom = json.loads((DATA / "custom.json").read_text()).values()  # whose tensors test_custom_code has
    rows = [describe(config)[0]["model_type"] for config in (*EVERY.values(), *(case["config"] for case in custom))]
    assert set(rows) >= TYPES


@pytest.mark.parametrize("name", sorted(EVERY))
def test_a_key_more_or_another_class_is_refused(name: str) -> None:
    """No code says which keys these types have: a size that is not read is a fault, and so is a class of others."""
    config = EVERY[name]
    for change, message in (
        ({"num_memory_heads": 8}, "num_memory_heads"),
        ({"tower_config": {"hidden_size": 64}}, "tower_config"),
        ({"architectures": ["LlamaForCausalLM"]}, r"architectures\[0\] is 'LlamaForCausalLM'"),
    ):
        with pytest.raises(InputError, match=message):
            describe({**config, **change})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llm-tpu.qwen-7b-chat", {"kv_channels": 64}),
        ("llm-tpu.qwen-7b-chat", {"intermediate_size": 22017}),
        ("llm-tpu.chatglm3-6b-32k", {"post_layer_norm": False}),
        ("llm-tpu.chatglm3-6b-32k", {"multi_query_group_num": 3}),
        ("llm-tpu.chatglm3-6b-32k", {"pre_seq_len": 128}),
        ("llm-tpu.chatglm3-6b-32k", {"quantization_config": {"quant_method": "awq"}, "quantization_bit": 4}),
        ("llm-tpu.chatglm3-6b-32k", {"architectures": ["ChatGLMForSequenceClassification"]}),
        ("EXAONE-3.5-2.4B", {"head_dim": 128}),
        ("MiMo-7B", {"attention_bias": False}),
        ("TeleChat-7B", {"embed_layernorm": True}),
        ("DeciLM, groups of its own", {"num_key_value_heads_per_layer": [3] * 32}),
    ],
)
def test_what_the_code_cannot_be_is_refused(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        describe({**EVERY[name], **change})


def test_notes_say_what_was_read() -> None:
    assert "which is not run: read as the published qwen" in " ".join(describe(EVERY["llm-tpu.qwen-7b-chat"])[3])
    assert "held, and not run" in " ".join(describe(EVERY["MiMo-7B"])[3])
    unmixed = EVERY["plamo-2-1b"] | {"mamba_enabled": False}
    assert ["scan itself" in " ".join(describe(one)[3]) for one in (EVERY["plamo-2-1b"], unmixed)] == [True, False]
    assert "vision tower 303,507,456" in " ".join(build(*describe(WHOLES["Phi-3.5-vision"])).notes)


NAS = "nemotron-nas, five layers"


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("attention", {"n_heads_in_group": 4}, "n_heads_in_group is 4, expected a divisor"),
        ("attention", {"replace_with_linear": True}, "replace_with_linear is True"),
        ("attention", {"window_length": 8}, "window_length is 8"),
        ("attention", {"mamba": {"d_state": 4}}, "mamba"),
        ("ffn", {"ffn_mult": 0}, "ffn_mult is 0"),
        ("ffn", {"intermediate_size": 99}, r"block_configs\[0\]\.ffn\.intermediate_size is 99"),
    ],
)
def test_a_layers_choice(part: str, change: dict[str, Any], message: str) -> None:
    config = EVERY[NAS]
    first, *rest = config["block_configs"]
    with pytest.raises(InputError, match=message):
        describe({**config, "block_configs": [{**first, part: {**first[part], **change}}, *rest]})


@pytest.mark.parametrize(
    "blocks", [None, 7, [], [{}] * 5, [{"attention": {"no_op": True}, "ffn": {"no_op": True}}] * 5]
)
def test_choices_that_are_none(blocks: Any) -> None:
    with pytest.raises(InputError, match="block_configs"):
        describe({**EVERY[NAS], "block_configs": blocks})


@pytest.mark.parametrize("name", sorted(ORIGINAL))
def test_a_params_json_has_the_parameters_that_were_published(name: str, tmp_path: Path) -> None:
    file = tmp_path / name / "params.json"
    file.parent.mkdir()
    file.write_text(json.dumps(ORIGINAL[name]["config"]))
    model = load(file)
    assert (model.name, model.params) == (name, ORIGINAL[name]["params"])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama-2-7b", {"vocab_size": -1}),
        ("llama-2-7b", {"ffn_dim_multiplier": 0}),
        ("llama-2-7b", {"hidden_dim": 11008}),
        ("llama-3-8b", {"moe_args": {"num_experts": 16}}),
        ("mistral-7b", {"head_dim": None}),
        ("mixtral-8x7b", {"moe": {"num_experts": 8}}),
        ("mixtral-8x7b", {"moe": {}}),
    ],
)
def test_a_params_json_is_refused_by_its_own_keys(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"params\.json: {next(iter(change))}\b"):
        describe({**ORIGINAL[name]["config"], **change}, "params.json")
