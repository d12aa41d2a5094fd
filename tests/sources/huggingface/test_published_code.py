"""Models that transformers has no class of, whose code is published beside their weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from paths import HF

from txcalc import load
from txcalc.errors import InputError
from txcalc.sources import build
from txcalc.sources.huggingface import describe
from txcalc.sources.huggingface.families import PUBLISHED, READERS

ROWS: dict[str, dict[str, Any]] = json.loads((HF / "published.json").read_text())
CUSTOM: dict[str, dict[str, Any]] = json.loads((HF / "custom.json").read_text())  # see test_custom_code
ORIGINAL: dict[str, dict[str, Any]] = json.loads((HF / "original.json").read_text())  # params.json
WILD: dict[str, dict[str, Any]] = json.loads((HF / "wild.json").read_text())
TYPES = {name for name, (module, _) in READERS.items() if module == "remote_decoders"}
WHOLES = {name: row["config"] for name, row in ROWS.items() if row.get("whole")}  # multimodal; null: not known
EVERY = {name: row["config"] for name, row in ROWS.items() if "whole" not in row} | {
    name: row["config"]
    for name, row in WILD.items()
    if row["params_total"] and row["config"].get("model_type") in TYPES
}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_parameters_and_cache(name: str) -> None:
    model = build(*describe(ROWS[name]["config"]))
    assert model.params == ROWS[name]["params"] and model.total_params == ROWS[name].get("whole", model.params)
    assert model.ledger(1, 7).total("cache") == 7 * ROWS[name]["kv_per_token"] + ROWS[name].get("state", 0)


@pytest.mark.parametrize("name", WHOLES)
def test_a_key_more_makes_the_whole_unknown(name: str) -> None:
    config = WHOLES[name]
    tables = [key for key in ("vision_config", "img_processor", "projector_config", "embd_layer") if key in config]
    for change in ({key: {**config[key], "depth_multiplier": 7}} for key in tables):
        model = build(*describe({**config, **change}))
        assert model.params == ROWS[name]["params"] and model.total_params is None
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
    assert model.total_params is None and f"params.whole is not known: {next(iter(change))}" in " ".join(model.notes)


def test_every_type_has_a_row() -> None:
    """Except types that another row stands for, and drafts and multimodal types, which have tests of their own."""
    others = {"minimax_m1", "mixformer-sequential", "step3_text", "step3_vl", "LLaVAOneVision1_5_text"}
    modules = PUBLISHED - {"drafts", "remote_multimodal"}
    rows = {describe(row["config"])[0]["model_type"] for row in (*ROWS.values(), *CUSTOM.values())}
    assert rows >= {name for name, (module, _) in READERS.items() if module in modules} - others


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


@pytest.mark.parametrize("name", sorted(ORIGINAL))
def test_a_params_json_has_the_parameters_that_were_published(name: str, tmp_path: Path) -> None:
    file = tmp_path / name / "params.json"
    file.parent.mkdir()
    file.write_text(json.dumps(ORIGINAL[name]["config"]))
    model = load(file)
    assert (model.name, model.params) == (name, ORIGINAL[name]["params"])
