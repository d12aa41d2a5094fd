"""Published code that is not Llama's: each reader beside the tensors that a checkpoint of a small model has."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import pytest

import txcalc
from txcalc.errors import InputError
from txcalc.sources import build
from txcalc.sources.huggingface import describe
from txcalc.sources.huggingface.families import READERS

Config = dict[str, Any]

LLAMA: Config = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}


# By name: a small config, and what a checkpoint of it holds: tensors by shape, each with how many there are, or, where
# its card says so, its parameters; and whose code that is.
CASES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "data/hf/custom.json").read_text())
MIXED = {"num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_shared_experts": 2, "moe_intermediate_size": 24}


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_those_of_the_tensors(name: str) -> None:
    case = CASES[name]
    held = sum(map(prod, case["tensors"])) if "tensors" in case else case["params"]
    assert build(*describe(case["config"])).params == held


def test_rwkv7_without_sizes_that_its_class_derives() -> None:
    ranks = {f"{name}_low_rank_dim": 32 for name in ("decay", "a", "v", "gate")}
    config = {"model_type": "rwkv7", "hidden_size": 128, "num_hidden_layers": 2, "vocab_size": 100, "head_dim": 64}
    said = build(*describe(config | ranks | {"intermediate_size": 512})).params
    for nulls in ({"intermediate_size": None}, {"intermediate_size": None, "head_dim": None, "num_heads": 2}):
        assert build(*describe(config | ranks | nulls)).params == said
    with pytest.raises(InputError, match="num_heads is missing"):  # its class asks for one of the two
        describe(config | ranks | {"head_dim": None})


@pytest.mark.parametrize(("key", "value"), [("use_gate", False), ("use_gate", None), ("expand_v", None)])
def test_a_delta_rule_without_its_gate_or_the_width_of_its_values_is_refused(key: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{key} is"):
        describe(CASES["gated_deltanet"]["config"] | {key: value})


def test_every_type_has_a_case() -> None:
    # Another name of one that has a case, and what has a test of its own, or a row in published.json.
    twins = {
        "minimax_m1",
        "mixformer-sequential",
        "plamo2",
        "rwkv5",
        "rwkv7",
        "step3_text",
        "step3_vl",
        "unlimited-ocr",
    }
    custom = {name for name, (module, _) in READERS.items() if module in ("custom", "earlier", "flash")} - twins
    read = {describe(case["config"])[0]["model_type"] for case in CASES.values()}
    assert custom <= read and custom


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("phi3small", {"attention_bias": True}, "attention_bias"),
        ("phi3small", {"hidden_act": "silu"}, "hidden_act"),
        ("openelm", {"num_query_heads": [4, 4]}, "num_query_heads"),
        ("openelm", {"ffn_multipliers": None}, "ffn_multipliers"),
        ("openelm", {"num_kv_heads": [3, 2, 2]}, "num_kv_heads is 3"),
        ("jais", {"position_embedding_type": "rotary"}, "position_embedding_type"),
        ("plamo", {"n_shared_head": 3}, "n_shared_head is 3"),
        ("arctic", {"sliding_window": 64}, "sliding_window"),
        ("deepseek", {"topk_method": "other"}, "topk_method"),
        ("bailing_moe_v2", {"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
        ("hunyuan", {"num_experts": [4, 4, 4]}, "num_experts"),
        ("minimax_text_01", {"shared_intermediate_size": 96}, "shared_intermediate_size"),
        ("minimax_text_01", {"attn_type_list": [0, 1]}, "attn_type_list is a list of 3 items|3 items, one per layer"),
        ("codeshell", {"num_query_groups": 3}, "num_query_groups is 3"),
        ("phi-msft", {"num_local_experts": 4}, "num_local_experts"),
        ("hf_olmo", {"mlp_hidden_size": 97}, "mlp_hidden_size is 97"),
        ("hf_olmo, normed", {"attention_layer_norm_with_affine": False}, "attention_layer_norm_with_affine"),
        ("molmo", {"tie_word_embeddings": True}, "tie_word_embeddings"),
        ("new", {"position_embedding_type": "absolute"}, "position_embedding_type"),
        ("jina_bert", {"auto_map": {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--x"}}, "other norms"),
        ("jina_bert", {"feed_forward_type": "original"}, "feed_forward_type"),
        ("deepseek", {"architectures": ["DeepseekV3ForCausalLM"]}, "architectures"),
        ("deepseek_vl_v2", {"language_config": 7}, "language_config is 7"),
        ("deepseek_vl_v2", {"hidden_size": 65}, "language_config.hidden_size says the same thing"),
        ("deepseek_vl_v2", {"tie_word_embeddings": True}, "tie_word_embeddings"),
        ("eagle3", {"num_hidden_layers": 2}, "num_hidden_layers"),
        ("eagle3", {"draft_vocab_size": 101}, "draft_vocab_size is 101"),
        ("eagle3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1]}}, "three layers"),
        ("eagle3", {"attention_bias": True}, "attention_bias"),
        ("eagle3", {"sliding_window": 64}, "sliding_window is 64"),
        ("llada", {"block_type": "sequential"}, "block_type"),
        ("openelm", {"architectures": ["OpenELMForSequenceClassification"]}, "architectures"),
        ("Dream", {"architectures": ["Qwen2ForCausalLM"]}, "Qwen2ForCausalLM"),
        ("eagle3", {"architectures": ["MistralForCausalLM"]}, "draft_vocab_size"),
        ("dflash", {"dflash_config": {"target_layer_ids": 3}}, "target_layer_ids is 3"),
        ("dflash", {"dflash_config": {"projector_type": "domino"}}, "projector_type"),
        (
            "dspark, rnn",
            {"dflash_config": {"projector_type": "dspark", "markov_head_type": "other"}},
            "markov_head_type is 'other'",
        ),
        ("speculators, eagle3", {"norm_before_fc": True}, "norm_before_fc"),
        ("speculators, eagle3", {"transformer_layer_config": {**LLAMA, "model_type": "qwen3"}}, "norms of Q and K"),
        ("speculators, eagle3", {"transformer_layer_config": {**LLAMA, "model_type": "mixtral"}}, "model_type is 'mix"),
        (
            "speculators, eagle3",
            {"transformer_layer_config": 7},
            "transformer_layer_config is 7",
        ),
    ],
)
def test_what_the_code_cannot_be_is_refused(name: str, change: Config, message: str) -> None:
    with pytest.raises(InputError, match=message):
        describe({**CASES[name]["config"], **change})


def test_kimi_k3_may_be_dense_in_all_layers() -> None:
    whole = CASES["kimi_k3"]["config"]
    dense = {**whole, "text_config": {**whole["text_config"], "first_k_dense_replace": 5}}
    made = build(*describe(dense)).ledger()
    assert not any("experts" in entry.path for entry in made.entries) and made.total("params") > 0


def test_kimi_vl_counts_the_correction_of_its_own_code() -> None:
    text = {**LLAMA, **MIXED, "model_type": "deepseek_v3", "n_routed_experts": 4, "n_group": 1, "topk_group": 1}
    text |= {"kv_lora_rank": 12, "q_lora_rank": None, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 14}
    text |= {"num_key_value_heads": 8}
    whole = {"model_type": "kimi_vl", "text_config": text, "vision_config": {}}
    assert build(*describe(whole)).params - build(*describe(text)).params == 2 * 4  # two layers with four experts


WEIRD: list[Any] = [
    None,
    0,
    -1,
    1,
    3,
    10**9,
    1.5,
    float("nan"),
    "",
    "x",
    True,
    [],
    [1],
    [0, 1, 0],
    ["a"],
    {},
    {"a": 1},
    [[]],
]


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


def test_what_a_draft_costs() -> None:
    """Its features once a token; q, k and v twice as wide; a cache of its own."""
    case = CASES["eagle3"]
    ledger = build(*describe(case["config"])).ledger(1, 7)
    matrices = sum(map(prod, [one for one in case["tensors"] if len(one) == 3])) - 100 * 64  # but its table
    scores = 2 * 2 * 8 * 8 * 7 * 7
    assert ledger.total("flops") == 2 * 7 * matrices + scores
    assert ledger.total("cache") == 7 * 2 * 4 * 8


def test_what_a_draft_of_blocks_costs() -> None:
    """Every position passes the layers, and attends to all before it and those drafted with it; no head is its own."""
    config = {**CASES["dflash"]["config"], "layer_types": ["full_attention"] * 3}
    model = build(*describe(config))
    q, kv, d, f = 8 * 12, 4 * 12, 64, 96
    assert model.ledger(1, 8, 100).total("flops") == 3 * (
        2 * 8 * (2 * d * q + 2 * d * kv + 3 * d * f) + 4 * q * 8 * 108
    )
    notes = " ".join(model.notes)
    assert f"{2 * 3 * d * d + 4 * 3 * d * kv:,} FLOPs, once a token" in notes and "are not counted" in notes


def test_a_draft_of_blocks_has_no_time(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CASES["dflash"]["config"]))
    with pytest.raises(InputError, match="drafts a block in one pass"):
        txcalc.deploy("gpt2", "h100-sxm", draft=f"4:{tmp_path}", acceptance="70%")


TEXTS: dict[str, Config] = {
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "llama": {"model_type": "llama"},
    "qwen": {"model_type": "qwen"},
    "qwen3": {"model_type": "qwen3"},
    "internlm2": {"model_type": "internlm2", "architectures": ["InternLM2ForCausalLM"], "bias": False},
}
QWEN_1 = {"model_type": "qwen", "architectures": ["QWenLMHeadModel"], "kv_channels": 8} | {
    key: value for key, value in LLAMA.items() if key != "num_key_value_heads"
}
SMALL = {**LLAMA, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    ("whole", "text"),
    [
        ({"model_type": "internvl_chat", "llm_config": {**SMALL, **TEXTS["internlm2"]}}, "internlm2"),
        ({"model_type": "internvl_chat", "llm_config": {**SMALL, "architectures": ["Qwen2ForCausalLM"]}}, "qwen2"),
        ({"model_type": "sa2va_chat", "llm_config": {**SMALL, "architectures": ["Qwen2ForCausalLM"]}}, "qwen2"),
        ({"model_type": "h2ovl_chat", "llm_config": {**SMALL, **TEXTS["llama"]}}, "llama"),
        ({"model_type": "multi_modality", "language_config": SMALL, "vision_config": {}}, "llama"),
        ({"model_type": "llava_llama", "llm_cfg": {**SMALL, **TEXTS["llama"], "tokenizer_max": 9}}, "llama"),
        ({**SMALL, "model_type": "llava_qwen", "mm_hidden_size": 24}, "qwen2"),
        ({**SMALL, "model_type": "qwen2", "architectures": ["LlavaQwenForCausalLM"], "mm_hidden_size": 24}, "qwen2"),
        ({**SMALL, "model_type": "llava", "architectures": ["LlavaLlamaForCausalLM"]}, "llama"),
        ({**SMALL, "model_type": "minicpmv", "version": 2.6, "query_num": 64, "vision_config": {}}, "qwen2"),
        ({**SMALL, "model_type": "minicpmv", "version": 4.0, "query_num": 64}, "llama"),
        ({**SMALL, "model_type": "minicpmv", "query_num": 96}, "llama"),
        ({**SMALL, "model_type": "minicpmo", "version": "2.6"}, "qwen2"),
        ({**SMALL, "model_type": "dots_ocr", "architectures": ["DotsOCRForCausalLM"], "vision_config": {}}, "qwen2"),
        ({**SMALL, "model_type": "Keye", "vision_config": {}, "image_token_id": 7}, "qwen3"),
        ({**QWEN_1, "visual": {"width": 8}}, "qwen"),
        ({**QWEN_1, "audio": {"n_mels": 80}}, "qwen"),
    ],
)  # fmt: skip
def test_a_language_model_in_a_whole(whole: Config, text: str) -> None:
    alone, found = build(*describe({**(QWEN_1 if text == "qwen" else SMALL), **TEXTS[text]})), build(*describe(whole))
    assert found.params == alone.params
    said = ("the language model alone is counted", "params.whole is not known", "beside the language model")
    assert any(words in " ".join(found.notes) for words in said)


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        ({"model_type": "internvl_chat", "llm_config": {**SMALL, "model_type": "opt"}}, "llm_config.model_type"),
        ({"model_type": "internvl_chat"}, "llm_config is missing"),
        ({"base_model_name_or_path": "lmsys/vicuna-7b-v1.3", "medusa_num_heads": 5}, "hidden_size is missing"),
        (
            {"model_type": "internvl_chat", "llm_config": {**TEXTS["internlm2"], "model_type": "qwen2"}},
            r"llm_config.architectures\[0\]",
        ),
        ({**SMALL, "model_type": "minicpmv", "version": 9.1}, "version is 9.1"),
        ({**SMALL, "model_type": "llava_qwen", "num_experts": 8}, "num_experts"),
        ({**SMALL, "model_type": "llava_qwen", "architectures": ["BunnyQwenForCausalLM"]}, "architectures"),
    ],
)  # fmt: skip
def test_a_whole_that_says_something_else_is_refused(whole: Config, message: str) -> None:
    with pytest.raises(InputError, match=message):
        describe(whole)


STEP3 = {
    "model_type": "step3_text", "architectures": ["Step3TextForCausalLM"], "hidden_size": 7168,
    "intermediate_size": 18432, "num_attention_heads": 64, "num_attention_groups": 1, "num_hidden_layers": 61,
    "vocab_size": 128815, "moe_intermediate_size": 5120, "moe_num_experts": 48, "moe_top_k": 3, "head_dim": 256,
    "share_expert_dim": 5120, "share_q_dim": 2048, "moe_layers_enum": ",".join(map(str, range(4, 60))),
}  # fmt: skip


def test_step3() -> None:
    """The matrices of its published code: queries through a narrow one, one head of keys, 56 layers of experts."""
    d, narrow, heads, width, wide, rows = 7168, 2048, 64, 256, 5120, 128815
    attention = d * narrow + narrow + narrow * heads * width + 2 * d * width + heads * width * d
    sparse, dense = 49 * 3 * d * wide + 48 * d, 3 * d * 18432
    expected = 2 * rows * d + d + 61 * (attention + 2 * d) + 56 * sparse + 5 * dense
    beside = {"model_type": "step3_vl", "architectures": ["Step3VLForConditionalGeneration"], "text_config": STEP3}
    for config in (STEP3, beside):
        model = build(*describe(config))
        assert model.params == expected
        assert model.ledger(1, 7).total("cache") == 7 * 61 * 2 * width
    for change in ({"architectures": ["LlamaForCausalLM"]}, {"num_attention_groups": 2}, {"n_routed_experts": 8}):
        with pytest.raises(InputError, match=next(iter(change))):
            describe(STEP3 | change)


@pytest.mark.parametrize("said", ["1-2", "8,9", "", None, 7, True, [1, True], [1.0], {}])
def test_step3_names_layers_that_it_has(said: Any) -> None:
    small = STEP3 | {"num_hidden_layers": 3}
    listed, text = (build(*describe(small | {"moe_layers_enum": good})).params for good in ([1, 2], "1, 2"))
    assert listed == text
    with pytest.raises(InputError, match=r"moe_layers_enum is .*, expected numbers of layers from 0 to 2"):
        describe(small | {"moe_layers_enum": said})
