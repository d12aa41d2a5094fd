"""Classifiers instead of language models: exact beside transformers' own classes, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from paths import HF

from txcalc.errors import InputError
from txcalc.sources import build
from txcalc.sources.export import to_config
from txcalc.sources.huggingface import describe

pytestmark = pytest.mark.slow

CONFIGS: dict[str, dict[str, Any]] = json.loads((HF / "configs.json").read_text())
CASES: list[tuple[str, str]] = json.loads((HF / "heads.json").read_text())  # a type, and a class of it
BERT: dict[str, Any] = json.loads((HF / "hand.json").read_text())["bert"]
LAYERS = {"num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers",
          "num_decoder_layers"}  # fmt: skip
PER_LAYER = {"layer_types", "pad_token_id", "architectures", "id2label", "label2id", "num_labels"}

LLAMA = BERT | {"model_type": "llama"}
# Families without a config of their own, and one whose keys are theirs.
LIKE = {"mbart": "bart", "mvp": "bart", "umt5": "t5"}

UNREAD = ("ep_size", "max_window_layers", "moe_layer_freq")  # keys of published files that transformers never reads


def small(model_type: str, cls: str, classes: int) -> dict[str, Any]:
    """The first config of a model type with two layers, a class and its labels."""
    like = LIKE.get(model_type, model_type)
    config = next((c for c in CONFIGS.values() if c["model_type"] == like), BERT) | {"model_type": model_type}
    config = {key: 2 if key in LAYERS else value for key, value in config.items() if key not in PER_LAYER}
    return config | {"architectures": [cls], "id2label": {str(i): str(i) for i in range(classes)}}


@pytest.mark.drawn(4)
@pytest.mark.parametrize(("model_type", "cls"), CASES, ids=[cls for _, cls in CASES])
def test_exact(model_type: str, cls: str) -> None:
    pytest.importorskip("fvcore")
    pytest.importorskip("transformers")
    from txcalc.verification.transformers_cost import measure

    config = small(model_type, cls, 2 if cls.endswith("ForQuestionAnswering") else 7)
    batch, tokens = (8, 4) if cls.endswith("ForMultipleChoice") else (1, 5)
    ledger = build(*describe(config)).ledger(batch, tokens)
    read = {key: value for key, value in config.items() if key not in UNREAD}
    theirs = measure(read, cls, batch, tokens, formulas=False)
    assert theirs.cls == cls
    assert (ledger.total("params"), ledger.total("flops")) == (theirs.params, theirs.flops)


def test_what_a_head_adds() -> None:
    bare = build(*describe(BERT | {"architectures": ["BertModel"]}))
    sentences = build(*describe(BERT | {"architectures": ["BertForSequenceClassification"], "num_labels": 3}))
    assert sentences.params - bare.params == 3 * (64 + 1)
    assert sentences.ledger().by_kind("params")["head"] == 3 * 65
    assert sentences.ledger().by_kind("params")["other"] == 64 * 65  # the pooler
    assert sentences.ledger(2, 9).by_kind("flops")["head"] == 2 * 2 * 64 * 3
    tokens = build(*describe(BERT | {"architectures": ["BertForTokenClassification"], "num_labels": 3}))
    assert tokens.params == sentences.params - 64 * 65
    assert tokens.ledger(2, 9).by_kind("flops")["head"] == 2 * 2 * 9 * 64 * 3
    llama = build(*describe(LLAMA | {"architectures": ["LlamaForSequenceClassification"], "num_labels": 3}))
    assert llama.params - build(*describe(LLAMA | {"architectures": ["LlamaModel"]})).params == 3 * 64


def test_the_number_of_classes() -> None:
    classifier = BERT | {"architectures": ["BertForSequenceClassification"]}
    assert "num_labels = 2, the default of bert" in " ".join(build(*describe(classifier)).assumptions)
    labels = {"id2label": {"0": "a", "1": "b", "2": "c"}}
    assert build(*describe(classifier | labels)).params == build(*describe(classifier | {"num_labels": 3})).params
    bart = {**CONFIGS["bart-base"], "architectures": ["BartForSequenceClassification"]}
    bart = {key: value for key, value in bart.items() if key not in ("id2label", "label2id", "num_labels")}
    assert build(*describe(bart)).description.last.head.get("classes") == 3


@pytest.mark.parametrize(
    "config", [BERT | {"architectures": ["BertForTokenClassification"]},
               LLAMA | {"architectures": ["LlamaForSequenceClassification"]}], ids=["bert", "llama"]
)  # fmt: skip
def test_a_head_is_written_back(config: dict[str, Any]) -> None:
    model = build(*describe(config | {"num_labels": 5}))
    written, _ = to_config(model)
    assert build(*describe(written)).ledger(2, 3).by_kind("flops") == model.ledger(2, 3).by_kind("flops")
    assert written["num_labels"] == 5


def test_a_head_s_bias_is_that_of_the_language_model() -> None:
    """`lm_head_bias` says nothing about a classifier (Phi-3.5-MoE)."""
    config = LLAMA | {"model_type": "phimoe", "num_key_value_heads": 4, "num_local_experts": 4, "lm_head_bias": True}
    config |= {"architectures": ["PhimoeForSequenceClassification"], "num_labels": 3, "num_experts_per_tok": 2}
    assert build(*describe(config)).ledger().by_kind("params")["head"] == 3 * 64
    config["architectures"] = ["PhimoeForCausalLM"]
    assert build(*describe(config)).ledger().by_kind("params")["head"] == 100 * 65


def test_a_decoder_that_is_not_read_alone() -> None:
    whisper = next(c for c in CONFIGS.values() if c["model_type"] == "whisper")
    with pytest.raises(InputError, match="a single decoder of whisper is not supported"):
        describe(whisper | {"architectures": ["WhisperForCausalLM"]})


def test_an_encoder_of_sound_that_is_read_alone() -> None:
    """WhisperForAudioClassification; the figures are those of transformers' class, and of PyTorch's counter at it."""
    config = {
        "model_type": "whisper", "architectures": ["WhisperForAudioClassification"], "d_model": 64, "num_labels": 3,
        "encoder_layers": 2, "encoder_ffn_dim": 96, "encoder_attention_heads": 4, "num_mel_bins": 40,
        "max_source_positions": 50, "use_weighted_layer_sum": True,
    }  # fmt: skip
    model = build(*describe(config))
    assert (model.params, model.ledger(2, 9).total("flops")) == (99_398, 22_838_272)
    with pytest.raises(InputError, match="d_model is missing"):
        describe({key: value for key, value in config.items() if key != "d_model"})


def test_what_a_second_head_needs() -> None:
    from txcalc import load

    with pytest.raises(InputError, match=r"head\.pairs is 2, expected none without head\.pooler"):
        load("bert-base", {"head.pairs": 2, "head.pooler": False})


def test_layers_that_only_a_picture_runs() -> None:
    """Llama 3.2 Vision over a text: layers that attend to a picture are held and cost nothing."""
    pytest.importorskip("fvcore")
    pytest.importorskip("transformers")
    from txcalc.verification.transformers_cost import instantiate, language_params

    text = {
        **LLAMA,
        "model_type": "mllama_text_model",
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "pad_token_id": 0,
    }
    config = {"model_type": "mllama", "architectures": ["MllamaForConditionalGeneration"],
              "text_config": {**text, "cross_attention_layers": [1, 3]}}  # fmt: skip
    model = build(*describe(config))
    assert model.params == language_params(instantiate(config, "mllama"))
    fewer = build(*describe({**LLAMA, "num_key_value_heads": 2}))
    assert model.ledger(2, 9).total("flops") == fewer.ledger(2, 9).total("flops")
    assert model.ledger(2, 9).total("cache") == fewer.ledger(2, 9).total("cache")
    with pytest.raises(InputError, match="fewer layers than num_hidden_layers"):
        describe({**text, "cross_attention_layers": [0, 1, 2, 3]})
