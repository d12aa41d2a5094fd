"""Configs of Hugging Face: exact against transformers' own numbers, or refused by name; never a wrong number."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from paths import HF
from strategies import share_of

from txcalc import load
from txcalc.errors import InputError, TxcalcError
from txcalc.ledger import KINDS, Ledger
from txcalc.model import Model
from txcalc.sources import build
from txcalc.sources.huggingface import describe, reader_of, supported_types, transformers_metadata as metadata
from txcalc.sources.huggingface.config import Config
from txcalc.sources.huggingface.families import PUBLISHED, READERS, WRAPPERS
from txcalc.sources.huggingface.transformers_metadata import IGNORED_KEYS

CONFIGS: dict[str, dict[str, Any]] = json.loads((HF / "configs.json").read_text())
TRUTH: dict[str, dict[str, Any]] = json.loads((HF / "truth.json").read_text())

SMALL: dict[str, dict[str, Any]] = json.loads((HF / "small.json").read_text())
# Written by hand; of two halves; what a class of transformers lacks where nothing is said, or would make wide.
HAND: dict[str, dict[str, Any]] = json.loads((HF / "hand.json").read_text())
HALVES: dict[str, dict[str, Any]] = json.loads((HF / "halves.json").read_text())
SAID: dict[str, dict[str, Any]] = json.loads((HF / "said.json").read_text())
LLAMA = HAND["llama"]

# transformers repeats K and V for all heads before it caches them; 8 heads of each are all that is needed.
WIDER_CACHE = {"falcon-40b", "falcon-180b"}


def read(config: Any) -> Model:
    return build(*describe(config))


# Kinds that a class's names do not tell apart: a recurrent mixer called an attention, or both called a block, and the
# experts' latent within a "mixer".
BLOCKS = ("attention", "recurrent")
MERGED: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("minimax-text-01", "recurrentgemma-2b", "rwkv-4-430m", "rwkv-4-7b"), BLOCKS
)
MERGED |= {"nvidia-nemotron-3-ultra-550b-a55b-bf16": ("feed_forward", "recurrent")}

# What the truth counts as another kind: OPT's projections before and after the layers, of the embedding and of the
# head; the scale of Doge's stream beside attention.
MOVED = {
    "opt-350m": (("embedding", "other", 512 * 1024), ("head", "other", 512 * 1024)),
    "default-doge": (("other", "attention", 32 * 1024),),
    "longformer-base-4096": (("other", "attention", 12 * 3 * 769 * 768),),
    # MobileBERT's scales in place of norms, the head's norm, and what attention reads in a narrower width.
    "mobilebert-uncased": (
        ("other", "norm", 24 * (7 * 128 + 512) + 512),
        ("norm", "head", 2 * 512),
        ("other", "attention", 24 * 513 * 128),
    ),
}

# Longformer's code fills a text up to whole windows, and computes overlapping windows: its core, of whole windows.
OVERLAPPING = {"longformer-base-4096": {"2x512": 24_159_191_040}}


def kinds(counts: dict[str, int], name: str, ours: bool = False) -> dict[str, int]:
    counts = dict(counts)
    for kind, target, number in MOVED.get(name, ()) if ours else ():
        counts |= {kind: counts[kind] - number, target: counts.get(target, 0) + number}
    merged = MERGED.get(name, ())
    together = sum(counts.pop(kind, 0) for kind in merged)
    return {kind: number for kind, number in {**counts, "+".join(merged): together}.items() if number}


def ledger_of(model: Model, batch: int, tokens: int) -> Ledger:
    source: dict[str, Any] = (
        {"source": 1500} if model.description.kind == "audio" else {"source": tokens} if model.has_encoder_apart else {}
    )
    return model.ledger(batch, tokens, **source)


def counted_flops(model: Model, batch: int, tokens: int) -> int:
    """FLOPs as the truth counts them: of recurrent layers the projections that are modules and nothing else."""
    ledger = ledger_of(model, batch, tokens)
    flops: int = ledger.total("flops")
    recurrent = [entry for entry in ledger if entry.kind == "recurrent"]
    uncounted = ("conv", "dt_proj", *(["x_proj"] if model.description.model_type == "zamba" else []))
    flops -= sum(entry.flops for entry in recurrent if entry.steps[-1].name in uncounted)
    if model.description.model_type in (
        "nemotron_h",
        "minimax",
    ):  # its core is not a module apart from the mixer's scan
        flops -= sum(entry.flops for entry in ledger if entry.kind == "attention_core")
    return flops


@pytest.mark.drawn(quick=1000)  # all: each is of another reader
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_exact(name: str) -> None:
    truth, model = TRUTH[name], read(CONFIGS[name])
    assert model.params == truth["total"]
    assert kinds(model.ledger().by_kind("params"), name, ours=True) == kinds(truth["kinds"], name)
    assert model.active == truth["active"]
    cores = OVERLAPPING.get(name)
    for point, flops in truth["flops"].items():
        batch, tokens = map(int, point.split("x"))
        if cores:
            core = ledger_of(model, batch, tokens).by_kind("flops")["attention_core"]
            flops = flops - cores[point] + core if point in cores else counted_flops(model, batch, tokens)
        assert counted_flops(model, batch, tokens) == flops, point
    for tokens, elements in truth.get("cache", {}).items():
        kept = ledger_of(model, 1, int(tokens)).total("cache")
        assert kept < elements if name in WIDER_CACHE else kept == elements, tokens


def test_one_softmax_over_a_decoders_keys_and_its_encoders() -> None:
    """T5Gemma 2 of two texts of 11 tokens and 7 of each decoder: FLOPs as transformers 5.23 ran it; and what is kept,
    64 elements per token, of 5 tokens in two layers, of all 7 in the others, and of the texts in each."""
    model = read(SMALL["t5gemma2"]["config"])
    assert model.ledger(batch=2, tokens=7, source=11).total("flops") == 6_205_440
    assert model.ledger(batch=1, tokens=7, source=11).total("cache") == 64 * (2 * 5 + 2 * 7 + 4 * 11)
    stacks = read(CONFIGS["default-t5gemma"]).description.stacks  # both ways, the token itself is not counted
    windows = [[a.get("window") for a in stacks[half].attentions] for half in ("encoder", "decoder")]
    assert windows == [[4097, None], [4096, None]]


@pytest.mark.drawn(quick=1000)
@pytest.mark.parametrize("name", SMALL)
def test_small(name: str) -> None:
    truth, model = SMALL[name], read(SMALL[name]["config"])
    assert model.params == truth["params"] and model.total_params in (None, truth.get("whole", model.params))
    for point, flops in truth["flops"].items():
        batch, tokens = map(int, point.split("x"))
        ledger = ledger_of(model, batch, tokens)
        if model.description.model_type == "longt5":  # whole blocks, each beside its two neighbours
            flops += sum(e.flops for e in ledger if e.kind == "attention_core" and "decoder" not in e.path)
            flops -= 2 * batch * 4 * (-(-tokens // 4) * 4) * (3 * 4) * 64
        if (
            model.description.model_type == "diffusion_gemma"
        ):  # it reads the text without a head, then a canvas beside it
            flops += sum(e.flops for e in ledger if e.path.startswith(("around", "head")))
            flops -= model.ledger(batch, 256, past=tokens).total("flops")
        if "inkling" in model.description.model_type:  # its short convolutions also run over the zeros after a text
            taps = SMALL[name]["config"].get("conv_kernel_size", 4)
            flops -= sum(e.flops for e in ledger if e.path.endswith("_conv")) * (taps - 1) // tokens
        assert ledger.total("flops") == flops, point
    for length, elements in truth.get("cache", {}).items():
        assert ledger_of(model, 1, int(length)).total("cache") == elements, length


def test_what_transformers_refuses_and_that_is_no_size_is_said() -> None:
    """A null, a text, and a whole number in place of one with a point; not a null that its class takes."""
    strange = {"hidden_dropout_prob": None, "use_cache": "yes", "initializer_range": 1, "classifier_dropout": None}
    notes = [note for note in read(SMALL["BertLMHeadModel"]["config"] | strange).notes if "refuses" in note]
    prefix = "transformers' bert refuses, though no size depends on it: "
    assert notes == [prefix + "hidden_dropout_prob = null, use_cache = 'yes', initializer_range = 1"]


@pytest.mark.parametrize(("model_type", "row"), [("emu3_text_model", 151643), ("ministral3", 11), ("smollm3", 128004)])
def test_a_row_for_padding_by_default_is_one_of_the_table(model_type: str, row: int) -> None:
    config = LLAMA | {"model_type": model_type, "num_key_value_heads": 2, "vocab_size": row}
    assert read(config | {"pad_token_id": 0}).params
    with pytest.raises(InputError, match=f"pad_token_id is {row:,}, expected less than vocab_size = "):
        read(config)
    assert read(config | {"vocab_size": row + 1}).params


@pytest.mark.slow
def test_a_module_of_layers_two_by_two_is_read() -> None:
    """transformers' LongCat-Flash holds rows of experts that do nothing; its description counts none."""
    pytest.importorskip("torch")
    from txcalc.verification.transformers_cost import instantiate

    row = SMALL["LongcatFlashForCausalLM"]
    idle = {**row["config"], "zero_expert_num": 3}
    assert load(instantiate(idle, "idle")).params == read(idle).params


def test_truth_is_complete() -> None:
    assert set(TRUTH) == set(CONFIGS) and len(CONFIGS) >= 254
    assert sum(bool(truth["flops"]) for truth in TRUTH.values()) > 220
    kinds = set(KINDS[: KINDS.index("other") + 1]) - {
        "attention_core",
        "adapters",
        "projector",  # of a tower alone
    }  # what follows is sent between ranks
    assert {kind for truth in TRUTH.values() for kind in truth["kinds"]} == kinds


LLAMA_PARAMS = 100 * 64 * 2 + 2 * (4 * 64 * 64 + 3 * 64 * 96 + 2 * 64) + 64


def test_absent_structure_is_an_assumption_and_an_absent_size_an_error() -> None:
    model = read(LLAMA)
    assert model.params == LLAMA_PARAMS
    assumptions = " ".join(model.assumptions)
    assert "num_key_value_heads = 4" in assumptions and "tie_word_embeddings = false" in assumptions
    assert not read(LLAMA | {"num_key_value_heads": 4, "tie_word_embeddings": False, "attention_bias": False,
                             "mlp_bias": False}).assumptions  # fmt: skip
    for key in set(LLAMA) - {"model_type"}:
        with pytest.raises(InputError) as error:
            read({name: value for name, value in LLAMA.items() if name != key})
        assert f"{key} is missing" in str(error.value)


@pytest.mark.parametrize(
    ("change", "sharing"),
    [
        ({"index_topk_freq": 4}, 45),
        ({"index_topk_pattern": "FS" * 30 + "F"}, 30),
        ({"indexer_types": ["full"] * 60 + ["shared"]}, 1),
    ],
)
def test_layers_that_use_an_earlier_choice_of_keys_have_no_index(change: dict[str, Any], sharing: int) -> None:
    glm = CONFIGS["deepseek-v3.2"] | {"model_type": "glm_moe_dsa", "architectures": ["GlmMoeDsaForCausalLM"]}
    assert read(glm | {"index_topk_freq": 1, "indexer_types": ["full"] * 61}).params == read(glm).params
    index = 1536 * 64 * 128 + 7168 * 128 + 2 * 128 + 7168 * 64  # queries from their latent, keys, norm, weights
    assert read(glm).params - read(glm | change).params == sharing * index
    with pytest.raises(InputError, match="there is no earlier index to share"):
        read(glm | {"indexer_types": ["shared"] + ["full"] * 60})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("bogus_weight", 5, "sparse_attention_config.bogus_weight is 5, a key that is not understood"),
        ("use_sparse_attention", False, "use_sparse_attention is False, expected true"),
        ("sparse_attention_freq", 1, "sparse_attention_freq is 1, expected a list"),
        ("sparse_attention_freq", [0, 2, 1], "expected a list out of 0, 1"),
        ("sparse_attention_freq", [0, 1], "expected a list of 3 items"),
        ("moe_layer_freq", 1, "moe_layer_freq is 1, expected a list"),
        ("moe_layer_freq", [0, "a", 1], "expected a list out of 0, 1"),
    ],
)
def test_minimax_m3_says_layer_by_layer(key: str, value: Any, message: str) -> None:
    config = {key: value for key, value in SMALL["minimax-m3"]["config"].items() if not key.endswith("layer_types")}
    table: dict[str, Any] = {"use_sparse_attention": True, "sparse_num_index_heads": 2, "sparse_score_type": "max"}
    good = config | {
        "moe_layer_freq": [0, 1, 1],
        "sparse_attention_config": table | {"sparse_attention_freq": [0, 1, 1]},
    }
    assert read(good).params == read(SMALL["minimax-m3"]["config"]).params
    is_outside = key == "moe_layer_freq"
    with pytest.raises(InputError, match=re.escape(message)):
        read(good | ({key: value} if is_outside else {"sparse_attention_config": table | {key: value}}))


def test_what_a_selection_of_keys_leaves_is_said_and_counted_masked() -> None:
    model = read(CONFIGS["deepseek-v3.2"])
    assert any("dense FLOPs of attention count every key" in note and "2,048" in note for note in model.notes)
    short, long = model.ledger(tokens=2048), model.ledger(tokens=2049)
    core = 61 * 2 * 128 * (128 + 64 + 128)
    index = 61 * 2 * 64 * (128 + 1)
    rest = long.total("flops") - short.total("flops") - (core + index) * (2049**2 - 2048**2)
    assert long.total("flops_masked") - short.total("flops_masked") - rest == core * 2048 + index * 2049


def test_a_text_whose_only_class_has_no_head_is_read_with_the_one_of_the_whole() -> None:
    text = LLAMA | {"model_type": "qwen2_vl_text", "num_key_value_heads": 4}
    note = "a language-model head is counted, as in the multimodal class: Qwen2VLTextModel has none"
    assert note in read(text).notes and note not in read({"model_type": "qwen2_vl", "text_config": text}).notes
    flat = read(text | {"model_type": "qwen2_vl", "vision_config": {}})  # as older files of the whole are written
    assert note not in flat.notes and flat.params == read(text).params
    assert read(text).params - read(text | {"architectures": ["Qwen2VLTextModel"]}).params == 100 * 64


def test_all_faults_at_once() -> None:
    with pytest.raises(InputError) as error:
        read({"model_type": "llama", "hidden_size": "wide", "num_attention_heads": 0, "depth": 3})
    assert len(error.value.faults) >= 5


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised ('fp8')"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Llama"}}, "auto_map names code, which is not run"),
    ],
)
def test_notes(change: dict[str, Any], note: str) -> None:
    model = read(LLAMA | change)
    assert model.params == LLAMA_PARAMS and note in " ".join(model.notes)


def test_extra_prediction_layers_are_named() -> None:
    assert "1 multi-token-prediction layer is not counted" in read(CONFIGS["deepseek-v3"]).notes


def equal_costs(a: Any, b: Any) -> bool:
    first, second = read(a), read(b)
    return first.ledger(2, 8).by_kind("flops") == second.ledger(2, 8).by_kind("flops") and (
        first.ledger().by_kind("params") == second.ledger().by_kind("params")
    )


def renamed(config: dict[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in config.items()}


def test_spellings_agree() -> None:
    gpt2 = CONFIGS["gpt2"] | {"n_embd": 768}
    new = renamed(gpt2, n_embd="hidden_size", n_layer="num_hidden_layers", n_head="num_attention_heads")
    assert new != gpt2 and equal_costs(gpt2, new)
    old = LLAMA | {"rope_theta": 500000.0, "torch_dtype": "bfloat16", "rope_scaling": {"type": "linear", "factor": 2}}
    stretched = {"rope_type": "linear", "rope_theta": 500000.0, "factor": 2}
    assert equal_costs(old, LLAMA | {"rope_parameters": stretched, "dtype": "bfloat16"})
    with pytest.raises(InputError) as error:
        read(gpt2 | {"hidden_size": 1024})
    assert "hidden_size is 1,024, expected 768, the value of n_embd (both keys mean the same)" in str(error.value)


def test_layer_types_and_the_pattern_agree() -> None:
    config = {key: value for key, value in CONFIGS["gemma3-1b-it"].items() if key != "layer_types"}
    n = config["num_hidden_layers"]
    types = ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(n)]
    listed, counted = read(config | {"layer_types": types}), read(config | {"sliding_window_pattern": 6})
    assert listed.ledger(1, 4096).total("cache") == counted.ledger(1, 4096).total("cache")
    with pytest.raises(InputError) as error:
        read(config | {"layer_types": types[1:]})
    assert f"expected a list of {n} items" in str(error.value)


VISION = {"model_type": "siglip_vision_model", "hidden_size": 32}


def test_multimodal_gives_its_language_model() -> None:
    whole = {"model_type": "llava", "text_config": LLAMA, "vision_config": VISION, "image_token_index": 99}
    model = read(whole)
    assert model.params == LLAMA_PARAMS
    assert any("only the language model" in note and "vision_config" in note for note in model.notes)
    tied = read(whole | {"tie_word_embeddings": True})
    assert tied.params == LLAMA_PARAMS - 6400
    with pytest.raises(InputError) as error:
        read(whole | {"text_config": LLAMA | {"hidden_size": 0}})
    assert "text_config.hidden_size is 0" in str(error.value)


@pytest.mark.parametrize(
    ("model_type", "ties"),
    [  # whether the head is tied by the whole's key (true, false, absent), of each by the text's (true, false)
        ("llava", "yyynyn"),
        ("internvl", "yynnyy"),
        ("idefics3", "yynnnn"),
        ("mistral3", "yynnyy"),
        ("minimax_m3_vl", "yyynyn"),
        ("muse_spark", "nnnnnn"),
        ("voxtral", "nnnnnn"),
    ],
)
def test_which_key_ties_a_multimodal_head(model_type: str, ties: str) -> None:
    """As transformers 5.23 builds these classes on meta."""
    heads = LLAMA | {"num_key_value_heads": 4, "head_dim": 16}
    pairs = [(whole, text) for whole in (True, False, None) for text in (True, False)]
    for tied, (whole, text) in zip(ties, pairs, strict=True):
        outer = {} if whole is None else {"tie_word_embeddings": whole}
        model = read({"model_type": model_type, **outer, "text_config": heads | {"tie_word_embeddings": text}})
        assert model.params == LLAMA_PARAMS - (6400 if tied == "y" else 0), (whole, text)
        notes = [note for note in model.notes if "no effect" in note]
        assert notes or text == (tied == "y")
        assert all(("its default: set" in note) == (whole is None) for note in notes if "y" in ties)


@pytest.mark.parametrize(("tie", "saved"), [({}, 0), ({"tie_word_embeddings": True}, 6400)])
def test_a_multimodal_file_of_transformers_4_is_tied_as_its_text_says(tie: dict[str, bool], saved: int) -> None:
    """Mistral Small 3.1's, whose checkpoint has a head of its own: transformers 5 ties its class where nothing does."""
    text = LLAMA | {"num_key_value_heads": 4, "head_dim": 16, **tie}
    model = read({"model_type": "mistral3", "transformers_version": "4.50.0", "text_config": text})
    assert model.params == LLAMA_PARAMS - saved
    assert any("transformers 5 assumes true" in note for note in model.assumptions + model.notes) is not bool(tie)


def test_multimodal_keys_beside_the_tower() -> None:
    text = {key: value for key, value in LLAMA.items() if key != "model_type"} | {"num_key_value_heads": 2}
    flat = {"model_type": "qwen2_vl", **text, "vision_config": VISION}
    assert equal_costs(flat, {"model_type": "qwen2_vl", "text_config": text, "vision_config": VISION})


def test_a_head_of_the_wholes_own_size_is_refused() -> None:
    text = {"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128}  # fmt: skip
    whole = {"model_type": "ovis2", "text_config": text, "hidden_size": 64, "vocab_size": 128}
    assert read(whole).params > 0
    for key in ("hidden_size", "vocab_size"):
        with pytest.raises(InputError, match=rf"\b{key} is missing|\b{key} is \d"):
            read({name: value for name, value in whole.items() if name != key})


def test_kinds_of_layers_by_their_older_names() -> None:
    config = CONFIGS["deepseek-v3.2"]
    n = config["num_hidden_layers"]
    older, newer = (config | {"layer_types": [f"{kind}_attention"] * n} for kind in ("deepseek_sparse", "indexed"))
    assert equal_costs(older, newer) and equal_costs(older, config)
    with pytest.raises(InputError, match="layer_types"):
        read(config | {"layer_types": ["sparse_attention"] * n})


def test_the_head_is_that_of_the_class_named() -> None:
    assert read(LLAMA | {"architectures": ["LlamaModel"]}).params == LLAMA_PARAMS - 6400
    assert read(LLAMA | {"architectures": ["LlamaForCausalLM"]}).params == LLAMA_PARAMS
    bert = CONFIGS["bert-base-multilingual-cased"]
    bare, masked = read(bert | {"architectures": ["BertModel"]}), read(bert | {"architectures": ["BertForMaskedLM"]})
    assert (
        masked.params - bare.params == 2 * 768 + bert["vocab_size"]
    )  # norm and biases against none, pooler = transform


def test_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    for source in (folder, folder / "config.json", str(folder), str(folder / "config.json")):
        model = load(source)
        assert (model.params, model.name) == (LLAMA_PARAMS, "tiny-llama")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(LLAMA).encode())))
    assert load("-").params == LLAMA_PARAMS
    assert load(folder, {"h_kv": 1}).params == LLAMA_PARAMS - 2 * 2 * 64 * 48


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"{", "is not valid JSON"),
        (b"\x80{}", "is not text"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}", "is not valid JSON"),
        (b"7", "holds 7, expected an object with model_type"),
        (b"null", "holds null, expected an object with model_type"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        load(path)
    assert message in str(error.value)


def test_a_folder_without_one(tmp_path: Path) -> None:
    with pytest.raises(TxcalcError):
        load(tmp_path)


def test_experts_that_do_nothing() -> None:
    """LongCat-Flash: a row of the router each, and no weights; a token passes none of them."""
    config = SMALL["LongcatFlashForCausalLM"]["config"]
    without, with_idle = (read(config | {"zero_expert_num": number}) for number in (0, 2))
    assert with_idle.params - without.params == 2 * config["num_layers"] * config["hidden_size"]
    assert with_idle.active - without.active == with_idle.params - without.params
    assert any("a token uses 0 to 2 experts, 1.33 on average" in note for note in with_idle.notes) and not without.notes


def test_supported_types() -> None:
    table = supported_types()
    assert table["llama"] == "exact" and table["perceiver"].startswith("refused: ")
    read_types = {CONFIGS[name]["model_type"] for name in CONFIGS}
    assert {model_type for model_type in read_types if table[model_type] != "exact"} == set()


def test_keys_are_set_aside_for_types_that_are_there() -> None:
    types = {place.partition("/")[0] for place in IGNORED_KEYS}
    assert [name for name in types if name not in READERS and not metadata.knows(name)] == []
    rows = metadata.table("ignored_keys.json")
    assert list(rows) == sorted(rows)
    with pytest.raises(InputError, match=re.escape("rope_scaling_layers is 7, a key that is not understood")):
        read(CONFIGS["codellama-13b"] | {"rope_scaling_layers": 7})  # Molmo 2's code alone names it


@pytest.mark.parametrize(
    ("name", "key", "value", "only"),
    [
        ("diffusion_gemma", "tie_word_embeddings", False, True),
        ("Wav2Vec2BertForCTC", "use_intermediate_ffn_before_adapter", True, False),
        ("qwen4_exp_text", "hidden_act", "relu", "silu"),
    ],
)
def test_what_a_key_makes_otherwise_and_is_not_read_is_refused(name: str, key: str, value: Any, only: Any) -> None:
    assert read(SMALL[name]["config"] | {key: only}).params == SMALL[name]["params"]
    with pytest.raises(InputError, match=f"{key} is {value!r}, expected {str(only).lower()}"):
        read(SMALL[name]["config"] | {key: value})


def test_every_reader_exists_and_is_light() -> None:
    code = """
import json, sys
from txcalc.sources.huggingface import describe, reader_of
from txcalc.sources.huggingface.config import Config
from txcalc.sources.huggingface.families import READERS, REFUSED, WRAPPERS
describe(json.loads(sys.argv[1]))
loaded = {name.rpartition(".")[2] for name in sys.modules if name.startswith("txcalc.sources.huggingface.")}
assert loaded == {"config", "decoders", "families", "heads", "keys", "transformers_metadata"}, loaded
assert not {"torch", "numpy", "sympy", "transformers"} & set(sys.modules)
for model_type in READERS:
    assert callable(reader_of("", Config({}, model_type))), model_type
assert not set(READERS) & set(REFUSED)
assert not (set(WRAPPERS.values()) - set(READERS) - set(REFUSED)), set(WRAPPERS.values()) - set(READERS)
"""
    subprocess.run([sys.executable, "-c", code, json.dumps(LLAMA)], check=True)


# transformers' own configs, as its classes write them: what they are when nothing is said, with few layers.
FEW = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "encoder_layers", "decoder_layers")
# Their `num_hidden_layers` is derived, or a list of theirs names layers behind the fourth.
SAID_LAYERS = {"got_ocr2_vision", "nemotron_h", "longcat_flash"}
ALIASES = {"kimi_k2": "deepseek_v3"}  # model types of which transformers has the class under another name


def class_of(model_type: str) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.CONFIG_MAPPING[ALIASES.get(model_type, model_type)]


def dumped(model_type: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A family's default config with four layers, in full and as it is saved."""
    cls = class_of(model_type)
    options = SAID.get(model_type, {})
    few = {} if model_type in SAID_LAYERS else dict.fromkeys([key for key in FEW if hasattr(cls, key)], 4)
    config = cls(**few, **options)
    name = {"model_type": model_type}
    return config.to_dict() | name, config.to_diff_dict() | few | name


@pytest.mark.drawn(110)
@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(name for name in READERS if READERS[name][0] not in PUBLISHED))
@pytest.mark.filterwarnings("ignore")
def test_what_transformers_writes_is_read_and_its_nulls_are_kept(model_type: str) -> None:
    """Keys of a class that are whole numbers or flags, and may not be null there, may not be null here."""
    full, saved = dumped(model_type)
    assert equal_costs(full, saved)
    c = Config(full, model_type)
    reader_of("", c)(c)
    cls = class_of(model_type)
    kinds = {field.name: field.type for field in dataclasses.fields(cls)}
    kinds |= {alias: kinds[name] for alias, name in cls.attribute_map.items() if name in kinds}
    for key in sorted(c.keys_read & kinds.keys()):
        if kinds[key] in (int, bool) and metadata.knows(model_type):
            with pytest.raises(InputError, match=rf"\b{key} is null"):
                read(full | {key: None})


ODD = {"cohere_compass", "deepseek_ocr2", "diffusion_gemma", "ovis2", "phi4_multimodal", "qwen3_omni_moe_thinker"}
ODD |= {"qwen4_exp"}


@pytest.mark.drawn(1000)
@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(set(WRAPPERS) - ODD))
@pytest.mark.filterwarnings("ignore")
def test_what_transformers_writes_of_a_multimodal_model_is_read(model_type: str) -> None:
    """As its language model; refused where that is. The default Ovis-2 contradicts itself, and of the default
    Cohere Compass, DeepSeek-OCR-2 and Qwen3-Omni transformers makes no model that runs."""
    config = class_of(model_type)()
    for data in (config.to_dict(), config.to_diff_dict()):
        text = data["text_config"]["model_type"]
        if text in READERS:
            tie = data.get("tie_word_embeddings") or False
            inner = dict(data["text_config"]) | ({} if model_type in OWN_TIES else {"tie_word_embeddings": tie})
            inner = {key: value for key, value in inner.items() if key not in PROMPT}
            assert read(data | {"model_type": model_type}).params == read(inner).params
        else:
            with pytest.raises(InputError, match=text):
                read(data | {"model_type": model_type})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_language_model_beside_its_towers_configs() -> None:
    """Phi-4's class holds its text's sizes itself, and no adapters; it looks at no text_config."""
    config = class_of("phi4_multimodal")()
    for data in (config.to_dict(), config.to_diff_dict() | {"model_type": "phi4_multimodal"}):
        data |= PHI4
        model = read(data)
        assert model.params == 3_836_021_760  # that of microsoft/Phi-4-mini-instruct
        assert model.total_params is None and any("vision_config" in note for note in model.notes)
    adapted = read(data | {"vision_lora": {"r": 256, "lora_alpha": 512}, "speech_lora": None})
    assert adapted.params == 3_836_021_760 and "vision_lora (rank 256) is a separate adapter" in " ".join(adapted.notes)
    for change in ({"text_config": LLAMA}, {"vision_lora": 256}):
        with pytest.raises(InputError, match=next(iter(change))):
            read(data | change)
    with pytest.raises(InputError, match="r is 256, a key that is not understood"):
        read(data | {"r": 256})


PHI4 = {"hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 24, "vocab_size": 200064,
        "intermediate_size": 8192, "tie_word_embeddings": True}  # fmt: skip
OWN_TIES = frozenset({"blip-2", "instructblip", "instructblipvideo"})  # their text's key alone decides
# What PaliGemma writes into its text's config about the prompt.
PROMPT = ("use_bidirectional_attention", "num_image_tokens")


@pytest.mark.slow
@pytest.mark.parametrize("name", HALVES)
@pytest.mark.filterwarnings("ignore")
def test_two_configs_in_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters and FLOPs of transformers' class, from what it is made of and from what it writes."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import masking_utils

    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda *_: None)  # it looks at values
    config = HALVES[name]
    parsed = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
    seeing = config["model_type"].startswith("vision")
    cls = transformers.VisionEncoderDecoderModel if seeing else transformers.EncoderDecoderModel
    with torch.device("meta"):
        theirs = cls._from_config(parsed, attn_implementation="eager").eval()
    ids = torch.zeros(2, 8, dtype=torch.long, device="meta")
    source = {"pixel_values": torch.zeros(2, 3, 32, 32, device="meta")} if seeing else {"input_ids": ids[:, :5]}
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        theirs(decoder_input_ids=ids, use_cache=False, **source)
    for variant in (config, parsed.to_dict(), parsed.to_diff_dict()):
        model = read({**variant, "model_type": config["model_type"]})
        assert model.params == sum(weight.numel() for weight in theirs.parameters())
        assert model.ledger(2, 8, source=None if seeing else 5).total("flops") == counter.get_total_flops()


def test_a_pictures_positions_are_not_the_users() -> None:
    model = read(HALVES["vit, trocr"])
    assert model.workload(2, 8).source == model.workload(2, 8, source=16).source == 17


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("fsmt", {}),
        ("fsmt", {"pad_token_id": 7}),
        ("fsmt", {"src_vocab_size": 120, "tie_word_embeddings": True}),
        ("t5gemma", {}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_halves_of_unlike_sizes(name: str, change: dict[str, Any]) -> None:
    """Small ones of transformers on the CPU, for they look at values: parameters, FLOPs and cache."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    config = HAND[name] | change
    parsed = transformers.CONFIG_MAPPING[name].from_dict(config)
    cls = {"fsmt": "FSMTForConditionalGeneration", "t5gemma": "T5GemmaForConditionalGeneration"}[name]
    theirs = getattr(transformers, cls)._from_config(parsed, attn_implementation="eager").eval()
    model, ids = read(config), torch.full((2, 8), 5)
    assert model.params == sum(weight.numel() for weight in theirs.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        theirs(input_ids=ids[:, :3], decoder_input_ids=ids, use_cache=False)
        cache = theirs(input_ids=ids[:1, :3], decoder_input_ids=ids[:1, :4]).past_key_values
    assert model.ledger(2, 8, source=3).total("flops") + model.ledger(1, 4, source=3).total("flops") == (
        counter.get_total_flops()
    )
    layers = (*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers)
    kept = sum(tensor.numel() for layer in layers for tensor in (layer.keys, layer.values))
    assert model.ledger(1, 4, source=3).total("cache") == kept


# A config changed by a careless or hostile hand.
READ = sorted(CONFIGS)
odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["🦙", "\ud800", "4096", "auto", "inf"]),
    st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2),
)
PRIMARY = (
    "hidden_size", "n_embd", "d_model", "dim", "num_hidden_layers", "n_layer", "vocab_size", "num_attention_heads",
)  # fmt: skip


@pytest.mark.slow
@share_of(400)
@given(name=st.sampled_from(READ), data=st.data())
def test_mutations_give_a_model_or_a_fault(name: str, data: st.DataObject) -> None:
    config = json.loads(json.dumps(CONFIGS[name]))
    tables = [config, *(table for table in config.values() if isinstance(table, dict) and table)]
    table = data.draw(st.sampled_from(tables))
    key = data.draw(st.sampled_from(sorted(table)))
    action = data.draw(st.sampled_from(["drop", "change", "nest", "negate", "huge", "add"]))
    if action == "drop":
        del table[key]
    elif action == "nest":
        table[key] = {key: table[key]}
    elif action == "negate" and isinstance(table[key], int | float):
        table[key] = -table[key]
    elif action == "huge" and type(table[key]) is int:
        table[key] = table[key] * 10 ** data.draw(st.integers(1, 40))
    elif action == "add":
        table[data.draw(st.text(max_size=5))] = data.draw(odd_values)
    else:
        table[key] = data.draw(odd_values)
    try:
        model = read(config)
    except TxcalcError as error:
        assert str(error).encode("utf-8")
        return
    assert model.params > 0 and ledger_of(model, 1, 4).total("flops") > 0
    if table is config.get("vision_config") or (name == "wmt19-en-ru" and table is config.get("decoder")):
        return  # the language model alone is read, and FSMT's class drops what stands under decoder
    sizes = {name: table[name] for name in PRIMARY if name in table}
    assert all(type(value) is int and value > 0 for value in sizes.values()), sizes


@pytest.mark.slow
@share_of(100)
@given(config=st.recursive(odd_values, lambda inner: st.dictionaries(st.text(max_size=8), inner, max_size=4)))
def test_anything_else_is_a_fault(config: Any) -> None:
    with pytest.raises(InputError):
        read(config)


# transformers itself, where it is installed: a config that it refuses for its sizes, or counts otherwise, gives no
# number.
CHANGED: dict[str, list[str]] = json.loads((HF / "changed.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("model_type", CHANGED)
def test_transformers_agrees(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    base = next(config for name, config in CONFIGS.items() if config["model_type"] == model_type and name in READ)
    layers = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers")
    small = base | {key: 8 for key in layers if key in base} | {"tie_word_embeddings": True}
    small = {key: value for key, value in small.items() if key not in ("quantization_config", "architectures")}
    agreed = 0
    for key in CHANGED[model_type]:
        value = small.get(key, False)
        values = (not value, not value) if isinstance(value, bool) else (value + 1, value * 2)
        for changed in values:
            config = small | {key: changed}
            try:
                ours = read(config).params
            except TxcalcError:
                continue
            fields = {name: value for name, value in config.items() if name != "model_type"}
            parsed = transformers.CONFIG_MAPPING[model_type].from_dict(fields)
            with torch.device("meta"):
                model = _class(transformers, model_type)._from_config(parsed)
            assert ours == sum(weight.numel() for weight in {id(w): w for w in model.parameters()}.values()), config
            agreed += 1
    assert agreed


def _class(transformers: Any, model_type: str) -> Any:
    from transformers.models.auto import modeling_auto as auto

    for names in (
        {"emu3_text_model": "Emu3ForCausalLM"},  # which no mapping has
        auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
        if READERS[model_type][0] in ("encoder", "rotary_encoders") or model_type in ("big_bird", "longformer")
        else {},
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    ):
        if model_type in names:
            return getattr(transformers, names[model_type])
    raise AssertionError(model_type)


# Families of which `small.py` makes no rows: transformers' defaults, and two changes of each.
ALTERED: dict[str, list[dict[str, Any]]] = json.loads((HF / "altered.json").read_text())


@pytest.mark.parametrize("model_type", ["gemma4_text", "gemma4_unified_text"])
def test_widths_by_layer_that_say_nothing(model_type: str) -> None:
    """Where the key is there, transformers asks no other for the widths of global layers."""
    config = LLAMA | {"model_type": model_type, "head_dim": 16, "num_key_value_heads": 2, "global_head_dim": 32}
    alike = read(config | {"per_layer_config": {}})
    assert alike.params == read(config | {"global_head_dim": 16}).params != read(config).params
    with pytest.raises(InputError, match=r"per_layer_config is .*expected an object with the widths"):
        read(config | {"per_layer_config": None})


def test_a_rotated_part_of_two_names_has_one_width() -> None:
    config = CONFIGS["default-axk1"]
    assert read(config | {"head_dim": 64}).params == read(config).params
    with pytest.raises(InputError, match="head_dim is 62, expected 64"):
        read(config | {"head_dim": 62})


def test_a_learned_activation_at_full_size() -> None:
    assert read(HAND["apertus-8b"]).params == 8_053_338_176  # 64 slopes among them
    with pytest.raises(InputError, match="qk_norm is False, expected true"):
        read(HAND["apertus-8b"] | {"qk_norm": False})


def test_values_narrower_than_keys_at_full_size() -> None:
    """309B with 15B active, as published; cached by nine layers of four heads, and by 39 with a window of eight."""
    model = read(HAND["mimo-v2-flash"])
    assert (model.params, model.active) == (308_778_768_832, 15_445_924_288)
    terms = model.ledger().cache_terms
    assert (terms.growth, terms.constant) == (9 * 4 * (192 + 128), 39 * 8 * (192 + 128) * 129)
    for change in ({"swa_head_dim": 128}, {"hybrid_layer_pattern": [0] * 48}, {"moe_layer_freq": [1] * 48}):
        with pytest.raises(InputError, match=next(iter(change))):
            read(HAND["mimo-v2-flash"] | change)


@pytest.mark.slow
@pytest.mark.drawn(4)
@pytest.mark.parametrize("model_type", ALTERED)
@pytest.mark.filterwarnings("ignore")
def test_families_without_small_configs(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters, and FLOPs from a trace, of a default config with few layers and of two changes of it."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import masking_utils
    from transformers.initialization import no_init_weights

    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda *_: None)  # it looks at values
    ids = torch.zeros(1, 8, dtype=torch.long, device="meta")
    for change in ({}, *ALTERED[model_type]):
        sizes = dict.fromkeys([key for key in FEW if hasattr(class_of(model_type), key)], 4) | SAID.get(model_type, {})
        config = class_of(model_type)(**{**sizes, **change})
        with torch.device("meta"), no_init_weights():
            theirs = _class(transformers, model_type)._from_config(config, attn_implementation="eager").eval()
            theirs.tie_weights()
        model = read(config.to_dict() | {"model_type": model_type})
        assert model.params == sum(weight.numel() for weight in theirs.parameters()), change
        if "expert" in "".join(config.to_dict()):
            theirs.set_experts_implementation("batched_mm")
        with FlopCounterMode(display=False, depth=9) as counter, torch.no_grad():
            theirs(input_ids=ids, use_cache=False, **({"decoder_input_ids": ids} if model.has_encoder_apart else {}))
        assert counted_flops(model, 1, 8) == counter.get_total_flops() - scanned(theirs, counter), change


def scanned(theirs: Any, counter: Any) -> int:
    """FLOPs of what recurrent mixers do but for the projections that are modules."""
    counts = {name: sum(count.values()) for name, count in counter.get_flop_counts().items()}
    mixers = [name for name, module in theirs.named_modules() if hasattr(module, "conv1d")]
    projections = [name for name, module in theirs.named_modules() if type(module).__name__ == "Linear"]
    root = type(theirs).__name__
    inside = [name for name in projections if any(name.startswith(f"{mixer}.") for mixer in mixers)]
    everything, modules = (sum(counts.get(f"{root}.{name}", 0) for name in names) for names in (mixers, inside))
    return everything - modules


@pytest.mark.parametrize("name", ["mobilebert-base", "wav2vec2-ctc"])
@pytest.mark.parametrize("key", ["D", "n_layers", "attention.n_heads"])
def test_a_change_that_leaves_one_by_one_would_not_follow_is_refused(name: str, key: str) -> None:
    with pytest.raises(InputError, match="does not change the sizes written out in "):
        read(SMALL[name]["config"]).set(**{key: 2})
    assert read(SMALL[name]["config"]).set(family="other").params == SMALL[name]["params"]
