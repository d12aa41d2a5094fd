"""Config files as people have them: read right or refused, never wrong; and what a file may hold that is not read."""

from __future__ import annotations

import json
import runpy
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from command import typed
from paths import HF, SCRIPTS
from tiny import QWEN3

from txcalc import load
from txcalc.errors import InputError
from txcalc.sources import build
from txcalc.sources.huggingface import describe, transformers_metadata as metadata
from txcalc.sources.huggingface.families import REFUSED as NOT_READ

judge = runpy.run_path(str(SCRIPTS / "configs.py"))["judge"]

WILD: dict[str, dict[str, Any]] = json.loads((HF / "wild.json").read_text())

# Those that are refused, a list that may only shrink; and those answered where the truth has no number: transformers
# needs the model type that these files lack, or do not name, or it is the published code's language model.
VERDICTS = json.loads((HF / "wild_verdicts.json").read_text())


@pytest.mark.slow
def test_right_or_refused_by_name() -> None:
    by_verdict: dict[str, list[str]] = {}
    for name, record in sorted(WILD.items()):
        by_verdict.setdefault(judge(record["config"], record)[0], []).append(name)
    assert set(by_verdict) <= {"right", "no number, refused", *VERDICTS}
    assert {verdict: by_verdict[verdict] for verdict in VERDICTS} == VERDICTS


def notes(config: dict[str, Any]) -> str:
    return " ".join(build(*describe(config)).notes)


@pytest.mark.parametrize("value", [False, True, 0, -1, 0.5, "text", [], {}, {"inner": {}}, None])
def test_a_key_that_the_code_never_names_passes_where_it_is_no_size(value: object) -> None:
    model = build(*describe(QWEN3 | {"shiny_new_thing": value}))
    assert model.params == build(*describe(QWEN3)).params
    assert value is None or "shiny_new_thing = " in " ".join(model.notes)


@pytest.mark.parametrize("key", ["type_vocab_size", "max_seq_length", "num_train_epochs"])
def test_a_number_that_people_write_beside_a_model_passes_where_its_code_never_names_it(key: str) -> None:
    assert build(*describe(QWEN3 | {key: 16})).params == build(*describe(QWEN3)).params
    for change in ({key: [16]}, {key: 16, "num_classes": 16}):
        with pytest.raises(InputError, match=r"a key that is not understood in a config of qwen3"):
            describe(QWEN3 | change)
    with pytest.raises(InputError, match=f"{key} is 16, a key that is not understood in a config of yuan"):
        describe(json.loads((HF / "custom.json").read_text())["yuan"]["config"] | {key: 16})


@pytest.mark.parametrize("value", [1, 7, [1], [[]], {"a": 1}, {"a": {"b": 1}}])
def test_what_may_be_a_size_is_a_fault(value: object) -> None:
    with pytest.raises(InputError, match=r"shiny_new_thing is .* \(--ignore shiny_new_thing if it does not\)"):
        describe(QWEN3 | {"shiny_new_thing": value})


def test_a_twin_of_a_key_that_was_read_passes_and_a_like_number_does_not() -> None:
    assert "embedding_hidden_width = 64" in notes(QWEN3 | {"embedding_hidden_width": 64})
    for unknown in ({"embedding_hidden_width": 65}, {"shiny_width": 64}):
        with pytest.raises(InputError):
            describe(QWEN3 | unknown)
    stable = {key: value for key, value in QWEN3.items() if key != "head_dim"}
    stable |= {"model_type": "stablelm_epoch", "norm_eps": 1e-5}  # whose code no table has
    assert "num_heads = 4" in notes(stable | {"num_heads": 4})
    for odd in ({"num_heads": 8}, {"num_heads": False}, {"num_other_heads": 4}):
        with pytest.raises(InputError, match="heads is"):
            describe(stable | odd)


def test_what_a_quantiser_says_twice_is_the_same() -> None:
    quantization = {"group_size": 64, "bits": 4}
    assert "quantised ('MLX')" in notes(QWEN3 | {"quantization": quantization, "quantization_config": quantization})
    with pytest.raises(InputError, match=r"quantization is .*, expected the value of quantization_config"):
        describe(QWEN3 | {"quantization": quantization, "quantization_config": quantization | {"bits": 8}})


def test_a_name_that_shared_code_asks_of_a_layer_alone_is_no_key() -> None:
    assert "bias = False" in notes(QWEN3 | {"bias": False})
    with pytest.raises(InputError, match="bias is 7"):
        describe(QWEN3 | {"bias": 7})


@pytest.mark.parametrize(
    ("architecture", "fine"),
    [
        ({"block_cls": "parallel", "mlp": {"mlp_cls": "fused_mlp"}}, True),
        ({"block_cls": "parallel", "mixer": {}, "mlp": {"mlp_cls": "mlp"}}, True),
        ({"block_cls": "sequential"}, False),
        ({"mixer": {"mixer_cls": "mha"}}, False),
        ({"mlp": {"mlp_cls": "moe"}}, False),
        ({"mlp": None}, False),
        ({"head": {}, "heads": 4}, False),
    ],
)
def test_blocks_of_the_first_phi(architecture: dict[str, Any], fine: bool) -> None:
    phi = {"model_type": "mixformer-sequential", "n_embd": 2560, "n_head": 32, "n_layer": 32, "vocab_size": 51200}
    phi |= {"architecture": architecture}
    if fine:  # Phi-2: total_size 11,118,735,360 of its index, in fp32 (github.com/bacoco/Phi-2)
        assert 4 * build(*describe(phi)).params == 11_118_735_360
        return
    with pytest.raises(InputError, match=r"architecture\."):
        describe(phi)


@pytest.mark.parametrize("key", ["is_causal", "attention_chunk_size", "head_dims", "num_experts"])
def test_a_key_that_the_code_names_is_a_fault_whatever_it_holds(key: str) -> None:
    is_named = not metadata.is_unnamed("qwen3", key)
    assert is_named == (key in ("is_causal", "attention_chunk_size"))
    if is_named:
        with pytest.raises(InputError, match=key):
            describe(QWEN3 | {"model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 8, key: False})


def test_keys_of_other_peoples_code_pass_only_beside_what_makes_them_harmless() -> None:
    bert = {"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 96, "vocab_size": 100, "architectures": ["BertModel"]}  # fmt: skip
    assert "of BLIP's cross-attention" in notes(bert | {"encoder_width": 32, "add_cross_attention": False})
    description = describe(bert | {"encoder_width": 32, "add_cross_attention": True})
    assert description[0]["model_type"] == "blip_med" and any("only BLIP has" in line for line in description[2])
    for options in ({}, {"add_cross_attention": True, "cross_freq": 2}):
        with pytest.raises(InputError):
            describe(bert | {"encoder_width": 32} | options)


@pytest.mark.parametrize(
    ("keys", "like"),
    [("embedding_size", "albert"), ("embedding_size summary_use_proj", "electra"),
     ("embedding_size intra_bottleneck_size true_hidden_size", "mobilebert"),
     ("pos_att_type relative_attention type_vocab_size", "deberta"),
     ("pos_att_type relative_attention position_buckets type_vocab_size", "deberta-v2"),
     ("type_vocab_size", "bert"), ("", "")],
)  # fmt: skip
def test_a_file_without_a_type_is_asked_about_by_its_keys(keys: str, like: str) -> None:
    sizes = {key: value for key, value in QWEN3.items() if key != "model_type"} | dict.fromkeys(keys.split(), 1)
    with pytest.raises(InputError, match="model_type is missing") as error:
        describe(sizes)
    assert (f'add "model_type": "{like}" if it is one' in str(error.value)) == bool(like)


def test_keys_of_types_whose_code_is_not_known_are_faults() -> None:
    assert not metadata.is_unnamed("kimi_k2", "anything") and not metadata.is_unnamed("", "anything")


def test_ignore(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN3 | {"odd": 7, "even": 8}))
    with pytest.raises(InputError, match="odd is 7") as error:
        load(file, ignore=["even"])
    assert "even" not in str(error.value)
    model = load(file, ignore=["odd", "even"])
    assert model.params == build(*describe(QWEN3)).params
    assert "ignored by --ignore: odd = 7" in model.notes
    with pytest.raises(InputError, match="has no key 'old' to ignore"):
        load(file, ignore=["old"])
    with pytest.raises(InputError, match=r"--ignore: leaves keys out of a config\.json, and gpt2 is not one"):
        load("gpt2", ignore=["odd"])
    shown = typed("show", str(file), "--ignore", "odd", "--ignore", "even", "--json")
    assert shown.exit_code == 0
    assert "ignored by --ignore: even = 8" in json.loads(shown.stdout)["notes"]


def test_ignore_within_a_table() -> None:
    config = {"model_type": "llava", "text_config": {**QWEN3, "odd": 7}, "vision_config": {}}
    with pytest.raises(InputError, match=r"--ignore text_config\.odd"):
        describe(config)
    assert "ignored by --ignore: text_config.odd = 7" in " ".join(describe(config, ignore=["text_config.odd"])[3])
    assert config["text_config"]["odd"] == 7  # type: ignore[index]


def test_a_text_config_holds_what_differs_from_its_class() -> None:
    _, _, assumptions, _ = describe({"model_type": "llava", "text_config": {"model_type": "qwen2"}})
    assert "text_config.hidden_size = 4096, the default of qwen2" in assumptions
    words = QWEN3 | {"model_type": "mllama_text_model", "num_attention_heads": 16, "cross_attention_layers": [1]}
    words = {key: value for key, value in words.items() if key not in ("num_key_value_heads", "head_dim")}
    assert describe({"model_type": "mllama", "text_config": words})[0]["attention"]["n_kv_heads"] == 8
    with pytest.raises(InputError, match="hidden_size is missing"):
        describe({"model_type": "qwen2"})


def test_types_of_transformers_that_are_not_read_name_the_way_to_measure_them() -> None:
    measurable = [name for name in NOT_READ if metadata.knows(name)]
    assert {"resnet", "detr", "sam2", "segformer", "musicgen", "moshi", "reformer", "owlvit"} <= {*measurable}
    for name in measurable:
        with pytest.raises(InputError, match=r"which is not read: .*; show --via transformers"):
            describe({"model_type": name})


@pytest.mark.parametrize(
    ("model_type", "cls", "owner"),
    [
        ("mixtral", "LlamaForCausalLM", "a class of llama"),
        ("qwen2", "BunnyQwenForCausalLM", "a class of other code"),
        ("llama", "MistralForCausalLM", "a class of mistral"),
        ("bert", "BertForEverything", "a class of other code"),
        ("t5", "MT5ForConditionalGeneration", "a class of mt5"),
    ],
)
def test_class_and_type_agree(model_type: str, cls: str, owner: str) -> None:
    with pytest.raises(InputError, match=rf"architectures\[0\] is '{cls}', expected a class of {model_type}.*{owner}"):
        describe(QWEN3 | {"model_type": model_type, "architectures": [cls]})


def test_the_spelling_of_capitals_is_free() -> None:
    config = {key: value for key, value in QWEN3.items() if key != "head_dim"} | {"model_type": "llama"}
    spelled = build(*describe(config | {"architectures": ["LLaMAForCausalLM"]}))
    assert spelled.params == build(*describe(config)).params


OLD_GPT: dict[str, Any] = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128, "n_ctx": 128, "vocab_size": 100,
                           "layer_norm_epsilon": 1e-5, "initializer_range": 0.02}  # fmt: skip
OLD_ALBERT: dict[str, Any] = {"embedding_size": 16, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "vocab_size": 100, "type_vocab_size": 2, "max_position_embeddings": 128, "gap_size": 0,
    "inner_group_num": 1, "net_structure_type": 0, "num_hidden_groups": 1, "num_memory_blocks": 0}  # fmt: skip


@pytest.mark.parametrize(
    ("old", "model_type", "without"),
    [
        (OLD_GPT, "gpt2", "layer_norm_epsilon"),
        (OLD_GPT | {"afn": "gelu", "n_special": 0}, "openai-gpt", "n_ctx"),
        (OLD_ALBERT, "albert", "net_structure_type"),
    ],
)
def test_keys_that_one_type_alone_wrote_tell_it(old: dict[str, Any], model_type: str, without: str) -> None:
    inferred, explicit = describe(old), describe({**old, "model_type": model_type})
    assert build(*inferred).params == build(*explicit).params and inferred[0]["model_type"] == model_type
    assert inferred[2][0].startswith(f"model_type = {model_type!r}, inferred from the keys")
    fewer = {key: value for key, value in old.items() if key != without}
    for config in (fewer, {**old, "architectures": ["SomeModel"]}):
        with pytest.raises(InputError, match="model_type is missing"):
            describe(config)
    for foreign in ({"n_memories": 7}, {"rotary": True}, {"norm_kind": "pre"}, {"dff": 128}, {"n_special": 5}):
        with pytest.raises(InputError, match="model_type is missing"):
            describe(old | foreign)
    harmless: dict[str, Any] = {"n_special": 0, "output_past": True, "finetuning_task": None, "pruned_heads": {}}
    assert build(*describe(old | harmless)).params == build(*inferred).params


def test_a_missing_model_type_is_that_of_the_class() -> None:
    config = {
        key: value for key, value in QWEN3.items() if key not in ("model_type", "head_dim", "num_key_value_heads")
    }
    _, _, assumptions, _ = describe(config | {"architectures": ["BertForMaskedLM"]})
    assert "model_type = 'bert', which has the class BertForMaskedLM" in assumptions
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    assert describe(config | {"architectures": ["GPT2Model"], "model_type": "gpt2-ja"})[2][0].startswith("model_type")
    published = QWEN3 | {"architectures": ["InternLM2ForCausalLM"], "bias": False}
    del published["model_type"], published["head_dim"]
    assert describe(published)[2][0] == "model_type = 'internlm2', which has the class InternLM2ForCausalLM"
    for names in ([], None, ["OddForCausalLM"], [7], "BertForMaskedLM"):
        with pytest.raises(InputError, match="model_type is missing"):
            describe(config | {"architectures": names})


@pytest.mark.slow
def test_transformers_is_offered_where_it_has_the_type() -> None:
    pytest.importorskip("transformers")
    for model_type, offered in (("perceiver", True), ("yodel", False)):
        with pytest.raises(InputError) as error:
            describe({"model_type": model_type})
        assert ("--via transformers" in str(error.value)) == offered


SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
WORDS, PICTURES = SMALL | {"vocab_size": 100}, SMALL | {"image_size": 70}  # whose last pixels are cut off
PAIRS: dict[str, dict[str, Any]] = {
    "clip": {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "text_config": WORDS,
        "vision_config": PICTURES,
        "projection_dim": 24,
    },
    "blip": {"model_type": "blip", "text_config": WORDS, "vision_config": PICTURES},
    "words": {"model_type": "clip_text_model", "architectures": ["CLIPTextModelWithProjection"], **WORDS},
    "pictures": {"model_type": "clip_vision_model", "architectures": ["CLIPVisionModelWithProjection"], **PICTURES},
}


def test_one_picture_s_features_are_kept_for_each_text() -> None:
    """Of CLIP's projected outputs, 24 numbers of each of three."""
    model = build(*describe(PAIRS["clip"]))
    assert [entry.saved for entry in model.ledger(3, 7) if entry.name == "memory"] == [3 * 24]


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_pictures_and_words_are_those_of_transformers_and_proved(name: str) -> None:
    pytest.importorskip("fvcore")
    pytest.importorskip("transformers")
    from txcalc.verification import verify
    from txcalc.verification.transformers_cost import instantiate

    model = build(*describe(PAIRS[name]))
    assert model.params == sum(weight.numel() for weight in instantiate(PAIRS[name], name).parameters())
    assert verify(model).ok


@pytest.mark.slow
def test_each_text_of_a_batch_is_multiplied_by_each_picture() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    from txcalc.verification import verify
    from txcalc.verification.transformers_cost import instantiate

    model, net = build(*describe(PAIRS["clip"])), instantiate(PAIRS["clip"], "clip")
    for batch in (1, 3):
        with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
            net(input_ids=torch.zeros(batch, 7).long(), pixel_values=torch.zeros(batch, 3, 70, 70))
        ledger = model.ledger(batch, 7)
        assert ledger.total("flops") == counter.get_total_flops()
        assert ledger.at("matched").total("flops") == 2 * batch**2 * 24
    assert verify(model, ["saved"]).ok  # each half's vectors alone are kept for it


@pytest.mark.parametrize("name", ["metaclip_2"])
def test_recorded_words_see_those_before_them_alone(name: str) -> None:
    config = json.loads((HF / "small.json").read_text())[name]["config"]
    text, ledger = config["text_config"], build(*describe(config)).ledger(1, 6)
    unseen = 6 * 5 // 2 * 4 * text["hidden_size"] * text["num_hidden_layers"]
    assert ledger.total("flops") - ledger.total("flops_masked") == unseen
    assert ledger.total("cache") == 0


def test_halves_of_other_widths_are_not_matched() -> None:
    raw, *_ = describe(PAIRS["clip"])
    head = {**raw["decoder"]["head"], "classes": 25}
    with pytest.raises(InputError, match=r"decoder\.matched is True, expected false: it needs two classifiers"):
        build({**raw, "decoder": {**raw["decoder"], "head": head}}, "clip")


def test_the_config_of_an_encoder_that_is_there_twice() -> None:
    config = {**PAIRS["clip"], "text_config_dict": {"hidden_size": 64, "num_attention_heads": 4}}
    assert "text_config.num_hidden_layers = 12, the default of clip_text_model" in describe(config)[2]
    with pytest.raises(InputError, match=r"text_config\.hidden_size is 64, expected 32"):
        describe({**PAIRS["clip"], "text_config_dict": {"hidden_size": 32}})


@pytest.mark.slow
@pytest.mark.parametrize("number", [60, pytest.param(240, marks=pytest.mark.nightly)])
def test_mutants_are_those_of_transformers_or_refused(number: int) -> None:
    """A short run of `tests/scripts/mutants.py`; a long one is made by hand."""
    pytest.importorskip("fvcore")
    pytest.importorskip("transformers")
    mutants = runpy.run_path(str(SCRIPTS / "mutants.py"))
    outcomes = list(mutants["outcomes"](mutants["tiny"](), range(number), 20261122))
    assert [outcome for outcome in outcomes if outcome.verdict == mutants["DIFFER"]] == []
    assert sum(outcome.verdict == mutants["AGREE"] for outcome in outcomes) > number // 4


def test_what_minimax_publishes_beside_its_sizes() -> None:
    """The official files' keys, which nothing of transformers' reads (MiniMaxAI/MiniMax-M2)."""
    sizes = QWEN3 | {"model_type": "minimax_m2", "num_local_experts": 4, "num_experts_per_tok": 2}
    extras = {"attn_type_list": [1, 1], "mtp_transformer_layers": 1, "num_mtp_modules": 3, "qk_norm_type": "per_layer",
            "shared_intermediate_size": 0, "use_mtp": True, "use_qk_norm": True, "use_routing_bias": True}  # fmt: skip
    model = build(*describe(sizes | extras))
    assert model.params == build(*describe(sizes)).params
    assert "3 multi-token-prediction modules (num_mtp_modules) are not counted" in model.notes
    with pytest.raises(InputError, match="attn_type_list"):
        describe(sizes | extras | {"attn_type_list": [1, 0]})


def test_minimax_m3_without_its_tower_is_read_by_its_class() -> None:
    """NVIDIA's aiconfigurator has such a file of the official sizes; as many parameters as transformers' class for the
    text has on the meta device."""
    official = {"vocab_size": 200064, "hidden_size": 6144, "num_hidden_layers": 60, "num_attention_heads": 64,
                "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 3072, "dense_intermediate_size": 12288,
                "num_local_experts": 128, "num_experts_per_tok": 4, "moe_layer_freq": [0] * 3 + [1] * 57,
                "sparse_attention_config": {"sparse_attention_freq": [0] * 3 + [1] * 57}}  # fmt: skip
    official |= {"model_type": "minimax_m3", "architectures": ["MiniMaxM3ForCausalLM"], "tie_word_embeddings": False}
    extras = {"first_k_dense_replace": 3, "n_shared_experts": 1, "num_mtp_modules": 7, "num_nextn_predict_layers": 1}
    model = build(*describe(official | extras))
    assert model.params == 426_174_565_632
    assert "7 multi-token-prediction modules (num_mtp_modules) are not counted" in model.notes
    for change in ({"first_k_dense_replace": 4}, {"n_shared_experts": 2}):
        with pytest.raises(InputError, match=next(iter(change))):
            describe(official | change)


def test_of_a_model_of_other_code_its_language_model_is_read_alone_where_that_is_asked() -> None:
    config = {
        "model_type": "my_eyes",
        "auto_map": {"AutoModel": "eyes.Eyes"},
        "llm_config": QWEN3,
        "torch_dtype": "float16",
    }
    with pytest.raises(InputError, match="--ignore model_type reads only its llm_config, a qwen3"):
        describe(config)
    language_model = build(*describe(config, ignore=["model_type"]))
    assert language_model.params == build(*describe(QWEN3)).params and language_model.description.dtype == "fp16"
    assert "only llm_config is read, as a qwen3: the rest of the model is not counted" in language_model.notes
    tied = describe({**config, "tie_word_embeddings": True}, ignore=["model_type"])
    assert build(*tied).params == build(*describe(QWEN3 | {"tie_word_embeddings": True})).params
    with pytest.raises(InputError, match=r"no supported model_type named 'my_eyes'.*--ignore model_type"):
        describe({"model_type": "my_eyes", "text_config": QWEN3})
    nulls = {**config, "llm_config": {**QWEN3, "torch_dtype": None}}
    assert build(*describe(nulls, ignore=["model_type"])).description.dtype == "fp16"
    for inner in ({}, {**QWEN3, "model_type": {}}):
        with pytest.raises(InputError, match="model_type is missing"):
            describe({**config, "llm_config": inner}, ignore=["model_type"])
    assert build(*describe({**config, "model_type": []}, ignore=["model_type"])).params == language_model.params


def test_sizes_beside_a_text_that_nothing_reads() -> None:
    """PaliGemma's published files have a vocabulary there that is smaller than the model's."""
    config = json.loads((HF / "towers.json").read_text())["paligemma default"]["config"]
    model = build(*describe(config | {"vocab_size": 257152}))
    assert model.params == build(*describe(config)).params
    assert "vocab_size has no effect: transformers' paligemma reads only text_config.vocab_size" in model.notes


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("small", 250), ("towers", 150)])
def test_what_transformers_saves_again_is_read_alike(name: str, least: int) -> None:
    transformers = pytest.importorskip("transformers")
    rows = json.loads((HF / f"{name}.json").read_text()).items()
    configs = {key: row["config"] for key, row in rows if row["config"]["model_type"] in transformers.CONFIG_MAPPING}
    assert len(configs) > least
    for key, config in configs.items():
        architectures = {"architectures": config["architectures"]} if "architectures" in config else {}
        parsed = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(deepcopy(config))
        saved = json.loads(parsed.to_json_string()) | architectures
        before, after = build(*describe(config)), build(*describe(saved))
        assert after.params == before.params, key
        assert before.total_params is None or after.total_params == before.total_params, key
