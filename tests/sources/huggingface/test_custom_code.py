"""Published code that is not Llama's: each reader beside the tensors that a checkpoint of a small model has."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import pytest
from paths import HF
from tiny import config_sizes

import txcalc
from txcalc.errors import InputError
from txcalc.sources import build
from txcalc.sources.huggingface import describe
from txcalc.sources.huggingface.families import WHOLES

Config = dict[str, Any]

LLAMA: Config = config_sizes(64, 3, 8, 96, 100, num_key_value_heads=4, max_position_embeddings=128)


# Described in README.md beside it.
CASES: dict[str, dict[str, Any]] = json.loads((HF / "custom.json").read_text())
STEP3: Config = json.loads((HF / "hand.json").read_text())["step3"]
MIXED = {"num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_shared_experts": 2, "moe_intermediate_size": 24}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_parameters_and_flops_are_those_of_the_tensors_or_of_the_class(case: dict[str, Any]) -> None:
    model = build(*describe(case["config"]))
    assert model.params == (sum(map(prod, case["tensors"])) if "tensors" in case else case["params"])
    flops = {point: model.ledger(*map(int, point.split("x"))).total("flops") for point in case.get("flops", ())}
    assert flops == case.get("flops", {})
    if "cache" in case:
        assert model.ledger(1, 8).total("cache") == case["cache"]


def test_kimi_vl_counts_the_correction_of_its_own_code() -> None:
    text = {**LLAMA, **MIXED, "model_type": "deepseek_v3", "n_routed_experts": 4, "n_group": 1, "topk_group": 1}
    text |= {"kv_lora_rank": 12, "q_lora_rank": None, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 14}
    text |= {"num_key_value_heads": 8}
    whole = {"model_type": "kimi_vl", "text_config": text, "vision_config": {}}
    assert build(*describe(whole)).params - build(*describe(text)).params == 2 * 4  # two layers with four experts


WEIRD: list[Any] = [
    None, 0, -1, 1, 3, 10**9, 1.5, float("nan"), "", "x", True, [], [1], [0, 1, 0], ["a"], {}, {"a": 1}, [[]]
]  # fmt: skip


def test_mutants_are_answered_or_refused() -> None:
    """Any value in the place of any other: an answer or an `InputError`, and nothing else."""
    luck = Random(15)
    configs = [case["config"] for case in CASES.values()]
    answered = 0
    for _ in range(300):
        mutant = dict(luck.choice(configs))
        inner = [key for key, value in mutant.items() if isinstance(value, dict) and value]
        key = luck.choice(list(mutant))
        if inner and luck.random() < 0.5:
            table = luck.choice(inner)
            mutant[table] = {**mutant[table], luck.choice(list(mutant[table])): luck.choice(WEIRD)}
        else:
            mutant[key] = luck.choice(WEIRD)
        try:
            answered += build(*describe(mutant)).params > 0
        except InputError:
            continue
    assert 20 < answered < 200


def test_a_draft_of_blocks_has_no_time(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CASES["dflash"]["config"]))
    with pytest.raises(InputError, match="draft a block at once"):
        txcalc.deploy("gpt2", "h100-sxm", draft=f"4:{tmp_path}", acceptance="70%")


@pytest.mark.parametrize(("whole", "text"), json.loads((HF / "wholes.json").read_text()))
def test_a_language_model_in_a_whole(whole: Config, text: Config) -> None:
    text_model, whole_model = build(*describe(text)), build(*describe(whole))
    assert whole_model.params == text_model.params
    notes = ("only the language model is counted", "params.whole is not known", "beside the language model")
    assert any(words in " ".join(whole_model.notes) for words in notes)


def test_ultravox_with_another_files_language_model_or_adapters_is_refused() -> None:
    config = {"model_type": "ultravox", "text_config": LLAMA | {"model_type": "llama"}}
    off = {"text_model_lora_config": {"r": 0}, "text_model_id": None}
    assert build(*describe(config | off)).params == build(*describe(LLAMA | {"model_type": "llama"})).params
    for change in ({"text_model_lora_config": {"r": 8}}, {"text_model_id": "another/file"}):
        with pytest.raises(InputError, match=r"adapters in the language model|names another file"):
            describe(config | change)


BESIDE_THEIR_LANGUAGE = [(name, row) for name, row in WHOLES.items() if row.get("hidden", "").startswith("mm_")]


@pytest.mark.parametrize(("name", "row"), BESIDE_THEIR_LANGUAGE, ids=[name for name, _ in BESIDE_THEIR_LANGUAGE])
def test_a_class_after_llavas(name: str, row: dict[str, str]) -> None:
    """A language model's class, with a tower and a projector that the config's other keys describe."""
    sizes = {"d_model": 64, "n_layers": 3, "n_heads": 8, "vocab_size": 100} if row["texts"] == "mpt" else LLAMA
    mixed = {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 48} if "moe" in row["texts"] else {}
    text, cls = {**sizes, **mixed, "model_type": row["texts"], "pad_token_id": 0}, row["classes"].split()[0]
    whole = {**text, "model_type": name, "architectures": [cls], "mm_hidden_size": 24, "tune_mm_mlp_adapter": True}
    if row["texts"] == "stablelm_epoch":
        text["use_qkv_bias"] = True  # its own default, which is not the type's
    params = build(*describe(text)).params - (100 if row["texts"] == "phi" and name != "imp" else 0)
    assert {build(*describe({**whole, "architectures": value})).params for value in ([cls], [], None, 3)} == {params}
    for change in ({"further_layers": 2}, {"architectures": ["LlavaForTestsOnly"]}):
        with pytest.raises(InputError):
            describe({**whole, **change})


def test_step3() -> None:
    """The matrices of its published code: queries through a narrow one, one head of keys, 56 layers of experts."""
    d, narrow, heads, width, wide, rows = 7168, 2048, 64, 256, 5120, 128815
    attention = d * narrow + narrow + narrow * heads * width + 2 * d * width + heads * width * d
    sparse, dense = 49 * 3 * d * wide + 48 * d, 3 * d * 18432
    expected = 2 * rows * d + d + 61 * (attention + 2 * d) + 56 * sparse + 5 * dense
    whole = {"model_type": "step3_vl", "architectures": ["Step3VLForConditionalGeneration"], "text_config": STEP3}
    for config in (STEP3, whole):
        model = build(*describe(config))
        assert model.params == expected
        assert model.ledger(1, 7).total("cache") == 7 * 61 * 2 * width
    for change in ({"architectures": ["LlamaForCausalLM"]}, {"num_attention_groups": 2}, {"n_routed_experts": 8}):
        with pytest.raises(InputError, match=next(iter(change))):
            describe(STEP3 | change)


@pytest.mark.parametrize("layers", ["1-2", "8,9", "", None, 7, True, [1, True], [1.0], {}])
def test_step3_names_layers_that_it_has(layers: Any) -> None:
    small = STEP3 | {"num_hidden_layers": 3}
    listed, text = (build(*describe(small | {"moe_layers_enum": good})).params for good in ([1, 2], "1, 2"))
    assert listed == text
    with pytest.raises(InputError, match=r"moe_layers_enum is .*, expected indexes of layers from 0 to 2"):
        describe(small | {"moe_layers_enum": layers})
