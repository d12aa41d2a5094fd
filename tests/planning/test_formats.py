"""Weights as published: quantisation configs, mixtures of llama.cpp and files, the same bytes in every command."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import Command
from msgspec.structs import replace
from paths import DATA, HF
from plans import plan
from tiny import config_sizes, tiny

from txcalc import hardware, load, train
from txcalc.errors import InputError
from txcalc.parts.part import Weight
from txcalc.planning.formats.mixtures import FALLBACK, MIXTURES, TENSORS, WHEN, Layer, stored
from txcalc.planning.formats.modules import Modules
from txcalc.planning.formats.names import covering, format_names, weights_of
from txcalc.planning.formats.quantised import READERS, from_config, native
from txcalc.planning.formats.weights import FORMATS, GGML, Mixed
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.planning.serving.deployment import Planner
from txcalc.planning.serving.engine import engine
from txcalc.planning.serving.engine_memory import EngineMemory
from txcalc.planning.serving.engine_profiles import profile
from txcalc.planning.serving.rank_memory import RankBytes
from txcalc.sources import build
from txcalc.sources.huggingface import describe
from txcalc.sources.presets import names as preset_names
from txcalc.units import CACHE_FORMATS

GIB = 2**30
SIZES = json.loads((DATA / "gguf_sizes.json").read_text())
QUANTISED = json.loads((DATA / "quantised.json").read_text())
SMALL = "D=256 L=3 h=4 h_kv=2 F=768 V=1000 untied"
ATTENTION, WIDE_FFN = 256 * (256 + 128 + 128 + 256), 3 * 256 * 768


run = Command(NO_COLOR="1")


def size(source: Any, weights: str = "native") -> int:
    model = load(source) if isinstance(source, str) else source
    form = weights_of(model, weights)
    return sum(form.bytes_of(entry) for entry in model.ledger())


def bits(config: dict[str, Any], source: str = SMALL) -> dict[str, int]:
    """Bits of every leaf's tensors under a config, by path."""
    model = load(source)
    form = from_config(model, config)
    return {entry.path: 8 * form.bytes_of(entry) for entry in model.ledger() if entry.leaf.params}


# Published checkpoints: total_size of their safetensors index, or the bytes of their files.


def besides(name: str) -> int:
    """Bytes of a checkpoint that are no parameters of the model described."""
    return sum(QUANTISED["besides"].get(name, {}).values())


@pytest.mark.parametrize("name", QUANTISED["totals"])
def test_native_bytes_are_the_published_checkpoints(name: str) -> None:
    assert size(name) == QUANTISED["totals"][name] - besides(name)


@pytest.mark.parametrize("name", QUANTISED["elements"])
def test_native_stores_the_elements_of_the_published_checkpoints(name: str) -> None:
    """The weights, and a scale for each block of those that the format stores."""
    model = load(name)
    form = weights_of(model, "native")
    scales = sum(
        (form.bits_of(weight, entry) - form.bits * weight.size) // form.scale * entry.times
        for entry in model.entries
        for weight in (entry.leaf.weights() if form.scale and entry.params else ())
        if form.stores(weight, entry)
    )
    assert model.params + scales == QUANTISED["elements"][name] - sum(
        QUANTISED["elements_besides"].get(name, {}).values()
    )


@pytest.mark.parametrize("name", QUANTISED["files"])
def test_native_bytes_are_the_files_less_their_headers(name: str) -> None:
    """A header has a line for each tensor and each tensor of scales: its name, dtype, shape and place, in 100 to 135
    bytes."""
    model = load(name)
    form = weights_of(model, "native")
    tensors = sum(
        (1 + (form.stores(weight, entry) and form.scale > 0)) * entry.times
        for entry in model.entries
        for weight in (entry.leaf.weights() if entry.params else ())
    )
    # Towers have tensors too, and Scout's experts are two for each layer, not 48.
    tensors += {"gemma-3-27b": 439, "llama-4-scout": 554 - 48 * 46}.get(name, 0)
    assert 100 * tensors < QUANTISED["files"][name] - besides(name) - size(name) < 135 * tensors


@pytest.mark.parametrize("name", QUANTISED["torch_files"])
def test_native_bytes_are_the_files_of_torch_less_what_names_tensors(name: str) -> None:
    """A tensor's name, dtype and shape take 360 to 393 bytes in a zip archive, and 170 to 185 in files of torch before
    1.6; the sizes in MiB are rounded to 524 bytes, 3 for each tensor of the smallest file."""
    whole, tensors = QUANTISED["torch_files"][name]
    bytes_per_tensor = (whole - besides(name) - size(name)) / tensors
    assert 170 < bytes_per_tensor < 185 if name.startswith("gpt2") else 360 < bytes_per_tensor < 393


def test_deepseek_v4_flashs_bytes_are_those_of_its_files() -> None:
    """By its files' headers: experts in fp4 with an eight-bit scale for every 32, fp8 in blocks of 128 × 128 with eight
    bits each, what pools the cache and routes in bf16, what mixes streams in fp32. With a prediction layer it is about
    149 GiB. Vectors of fp32 (3 MB) count as bf16 here."""
    configs = json.loads((HF / "configs.json").read_text())
    model = build(*describe(configs["deepseek-v4-flash"]))
    d, layers, fours, longs = 4096, 43, 21, 20

    def fp8(*shapes: tuple[int, int]) -> int:
        return sum(rows * columns * (128 * 128 + 1) // (128 * 128) for rows, columns in shapes)

    experts = layers * 256 * 3 * 2048 * d * 17 // 32
    attention = fp8((512, d), (8192, d), (d, 8192), (1024, d), (32_768, 1024))
    shared = fp8((2048, d), (2048, d), (d, 2048))
    indexes = fours * (fp8((8192, 1024)) + 2 * (64 * d + 2 * 256 * d + 4 * 256 + 128))
    pools = 2 * (fours * (2 * 1024 * d + 4 * 1024 + 512) + longs * (2 * 512 * d + 128 * 512 + 512))
    routers, norms = 2 * layers * 256 * d, 2 * (layers * (512 + 1024 + 2 * d) + d)
    streams = layers * 2 * (4 * 24 * 4 * d + 2 * (24 + 3)) + 4 * 4 * 4 * d + 2 * (4 + 1) + 2 * layers * 64
    whole = experts + layers * (attention + shared) + indexes + pools + routers + norms + streams + 2 * 2 * 129_280 * d
    assert size(model) == whole
    assert 0.97 < whole / 2**30 / 149 < 1


def test_glm_5_2s_bytes_are_those_of_its_checkpoint() -> None:
    """GLM-5 with an index in every fourth layer (index_topk_freq 4, index_skip_topk_offset 3): all bytes of its index,
    as public repositories quote them, are the model's, its prediction layer's and 76 routers' biases in fp32."""
    config = json.loads((DATA / "serving" / "configs" / "glm-5.json").read_text())
    model = build(*describe({**config, "index_topk_freq": 4, "index_skip_topk_offset": 3}))
    assert model.params == load("glm-5").params - 57 * (4096 * 2048 + (128 + 32) * 6144 + 2 * 128)
    assert size(model) + 2 * model.predictors + 4 * 76 * 256 == 1_506_659_919_872


def test_metas_own_fp8_leaves_attention_and_two_layers_wide() -> None:
    """Llama Team 2024, section 6.2. vLLM's log of the first upload, which had 16 key/value heads: 57.752 GiB."""
    model = load("llama-3.1-405b")
    ffn = 3 * 16_384 * 53_248
    rows = 4 * (2 * 53_248 + 16_384)
    assert size("llama-3.1-405b", "fp8") == 2 * model.params - 124 * (ffn - rows)
    first = load("llama-3.1-405b", {"h_kv": 16})
    rank = RankBytes(first, Sharding(first).stages(Layout(tp=8))[0], engine(first, "fp8"))
    assert rank.weights_bytes / GIB == pytest.approx(57.752, rel=0.005)


def test_a_checkpoint_in_its_own_dtype() -> None:
    assert (size("gpt2"), size("whisper-large-v3")) == (4 * 124_439_808, 2 * 1_543_490_560)


# quantization_config.

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
KIMI = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4}},
}


def test_kimis_int4_is_on_routed_experts_only() -> None:
    model = load("kimi-k2")
    form = from_config(model, KIMI)
    routed = sum(e.params for e in model.ledger() if e.kind == "experts")
    total = sum(form.bytes_of(entry) for entry in model.ledger())
    shapes = 16 * 60 * 384 * 3  # two integers of 64 bits beside every matrix
    assert total == routed * 9 // 16 + shapes + 2 * (model.params - routed)  # 4 bits, and 16 for every 32 elements
    assert total / 1e9 == pytest.approx(594, abs=1)  # the published folder: 594 GB


@pytest.mark.drawn(quick=12)
@pytest.mark.parametrize(("config", "formulas"), [(config, texts) for config, *texts in QUANTISED["bits"]])
def test_a_config_says_the_bits_of_a_matrix(config: dict[str, Any], formulas: list[str]) -> None:
    q, down = (
        eval(text, {"n": 256 * columns, "r": 256, "c": columns})
        for text, columns in ((formulas[0], 256), (formulas[-1], 768))
    )
    matrix_bits = bits(config)
    assert (matrix_bits["layers.0.attention.q"], matrix_bits["layers.0.feed_forward.down"]) == (3 * q, 3 * down)
    assert matrix_bits["embedding.tokens"] == matrix_bits["head.projection"] == 16 * 256 * 1000
    assert matrix_bits["final_norm"] == 16 * 256


def test_gptqs_bytes_are_those_of_a_stored_checkpoint() -> None:
    """Qwen-VL-Chat-Int4: total_size 9,731,786,240 of its index (github.com/x1ngzai/Qwen-VL-Chat-Int4, 1cd721a)."""
    qwen = {"model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32}
    qwen |= {"num_attention_heads": 32, "kv_channels": 128, "vocab_size": 151936, "visual": {"width": 1664}}
    calibrated = {"module_name_preceding_first_block": ["model.embed_tokens"], "dataset": ["wikitext2"]}  # by optimum
    gptq = {"bits": 4, "group_size": 128, "desc_act": False, "sym": True, "quant_method": "gptq", **calibrated}
    model = build(*describe({**qwen, "torch_dtype": "float16", "quantization_config": gptq}))
    tower = 2 * 1_935_610_624  # Qwen-VL's visual.py, in 16 bits
    joined = 32 * 2 * 4096 * 4  # its q, k and v are one matrix, whose inputs are said once
    zeros = 32 * 2 * (2 * 11_008 + 4096 + 4096)  # AutoGPTQ stores a bias of modules that have none
    assert sum(native(model).bytes_of(entry) for entry in model.ledger()) + tower - joined + zeros == 9_731_786_240


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
def test_mlx_packs_tables_too(key: str) -> None:
    """A scale and a bias of 16 bits for each group; Qwen3-1.7B in 4 bits is a file of 968 MB."""
    qwen = {"model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28}
    qwen |= {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
    model = build(*describe({**qwen, "tie_word_embeddings": True, key: {"group_size": 64, "bits": 4}}))
    norms = 28 * (2 * 2048 + 2 * 128) + 2048
    assert sum(native(model).bytes_of(e) for e in model.ledger()) == (model.params - norms) * 9 // 16 + 2 * norms
    broad = build(*describe({**qwen, "tie_word_embeddings": True, key: {"group_size": 128, "bits": 4}}))
    assert sum(native(broad).bytes_of(e) for e in broad.ledger()) == (model.params - norms) * 17 // 32 + 2 * norms
    for mode, bits_, group in (("mxfp4", 4, 32), ("nvfp4", 4, 16), ("mxfp8", 8, 32)):
        config = {"group_size": group, "bits": bits_, "mode": mode, "self_attn.q_proj": {"group_size": 64, "bits": 8}}
        floats = build(*describe({**qwen, "tie_word_embeddings": True, key: config}))
        q, bits_per_weight = 28 * 2048 * 2048, bits_ + Fraction(8, group)
        expected = (model.params - norms - q) * bits_per_weight / 8 + q * Fraction(17, 16) + 2 * norms
        assert sum(native(floats).bytes_of(e) for e in floats.ledger()) == expected
    mixed_table = {"group_size": 64, "bits": 4, "model.embed_tokens": {"bits": 8, "group_size": 32}, "lm_head": False}
    table = 151936 * 2048
    mixed = build(*describe({**qwen, "tie_word_embeddings": True, key: mixed_table}))
    wider = sum(native(mixed).bytes_of(e) for e in mixed.ledger()) - sum(
        native(model).bytes_of(e) for e in model.ledger()
    )
    assert wider == table * 9 // 8 - table * 9 // 16
    of, card = profile("vllm"), hardware.load("h100-sxm")
    assert of
    with pytest.raises(InputError, match=r"mlx-lm and the plugin vllm-metal have it"):
        engine(model, memory=EngineMemory(of, card, 8192))


@pytest.mark.parametrize(
    ("file", "quantization", "bits_"),
    [
        ("hf_quant_config.json", {"producer": {}, "quantization": {"quant_algo": "FP8"}}, lambda r, c: 8 * r * c + 64),
        ("quantize_config.json", {"bits": 8, "group_size": 256}, lambda r, c: 8 * r * c + 24 * r * c // 256 + 32 * c),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 64}, lambda r, c: 4 * r * c + 20 * r * c // 64),
        ("", {"quant_method": "fbgemm_fp8"}, lambda r, c: 8 * r * c + 32 * r),
    ],
)
def test_a_quantisers_own_file_is_read(tmp_path: Path, file: str, quantization: dict[str, Any], bits_: Any) -> None:
    """ModelOpt's, AutoGPTQ's and AutoAWQ's beside a config.json that says nothing; and compression_config within it."""
    keys = {"hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 768}
    llama = {"model_type": "llama", **keys, "num_key_value_heads": 2, "vocab_size": 1000, "dtype": "bfloat16"}
    if file:
        (tmp_path / file).write_text(json.dumps(quantization))
    (tmp_path / "config.json").write_text(json.dumps(llama if file else {**llama, "compression_config": quantization}))
    matrices = [(256, 256), (128, 256), (128, 256), (256, 256), (768, 256), (768, 256), (256, 768)]
    narrow = sum(bits_(*matrix) for matrix in matrices) // 8
    model = load(tmp_path)
    assert size(model) == narrow + 2 * (model.params - ATTENTION - WIDE_FFN)
    assert any("--weights native counts its bytes" in note for note in model.notes)


def test_experts_named_one_by_one_are_those_of_a_layer() -> None:
    """Lists of ModelOpt and llm-compressor name every expert; some of them alone are refused, not taken for none."""
    model = load("D=256 L=2 h=4 h_kv=2 F=128 V=1000 E=4 k=2")
    routed = sum(entry.params for entry in model.ledger() if entry.kind == "experts")

    def bytes_of_named(experts: int, ends: Sequence[str] = ("gate", "up", "down")) -> int:
        names = [f"model.layers.{i}.mlp.experts.{j}.{end}_proj" for i in (0, 1) for j in range(experts) for end in ends]
        layers = {name: {"quant_algo": "NVFP4", "group_size": 16} for name in names}
        config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
        form = from_config(model, config)
        return sum(form.bytes_of(entry) for entry in model.ledger())

    assert bytes_of_named(4) == routed * 9 // 16 + 8 * 24 + 2 * (model.params - routed)
    with pytest.raises(InputError, match=r"names 3 of 4 experts: layers\.0\.mlp\.experts\.\*\.gate_proj"):
        bytes_of_named(3)
    some = {
        "quant_method": "compressed-tensors",
        "ignore": ["re:.*experts\\.[01]\\..*"],
        "config_groups": {"g": {"weights": INT4}},
    }
    with pytest.raises(InputError, match="a pattern for some of 4 experts, not for all"):
        from_config(model, some)


def test_what_a_module_is_called_is_known_or_lists_of_layers_are_refused() -> None:
    mamba = load("mamba2-130m")
    narrow = from_config(
        mamba, {"quant_method": "fp8", "ignore": [f"backbone.layers.{i}.mixer.in_proj" for i in range(24)]}
    )
    assert {e.path for e in mamba.ledger() if narrow.dtype_of(e) == "fp8"} == {"layers.0.mamba2.out_proj"}
    with pytest.raises(InputError, match=r"what rg_lru\.in_proj is called there is not known"):
        from_config(
            tiny("recurrent-gemma"), {"quant_method": "fp8", "ignore": ["model.layers.0.temporal_block.linear_x"]}
        )


TOWERS = [
    "visual.blocks",
    "model.sam_model.blocks",
    "model.vision_tower.encoder.layers",
    "audio_tower.layers",
    "mtp.layers",
]


@pytest.mark.parametrize("of", TOWERS)
def test_a_towers_layers_are_not_the_language_models(of: str) -> None:
    """Lists of multimodal checkpoints name each module of their towers, some of which are called like a language
    model's (Qwen2.5-VL's `visual.blocks.0.mlp.gate_proj`)."""
    for patterns in ([f"{of}.0.mlp.gate_proj"], [f"{of}.{i}.self_attn.q_proj" for i in range(3)]):
        assert bits({"quant_method": "fp8", "ignore": [*patterns, "lm_head"]}) == bits({"quant_method": "fp8"})
    tower = from_config(load("vit-b"), {"quant_method": "fp8", "ignore": ["vit.layers.0.attention.q_proj"]})
    assert isinstance(tower, Mixed) and tower.table["layers.attention.q"][0] is None


def test_expressions_of_heads_and_towers_name_no_layer() -> None:
    """Of a model whose layers' names are not known here, too."""
    whisper = load("whisper-large-v3")
    quantization = {"quant_method": "fp8", "ignore": ["re:.*lm_head", "re:.*vision_tower.*", "proj_out"]}
    assert from_config(whisper, quantization).name == "fp8"
    for pattern in ("re:.*fc1", "re:.*(lm_head|fc1)", "model.decoder.layers.0.fc1"):
        with pytest.raises(InputError, match="is called there is not known here"):
            from_config(whisper, {"quant_method": "fp8", "ignore": [pattern]})


def test_a_named_module_that_is_called_otherwise_here_is_refused() -> None:
    """Of norms and routers no quantiser takes the weights; layers after the last are a prediction layer's."""
    fine = ["input_layernorm", "self_attn.k_norm", "mlp.gate", "mlp.gate.e_score_correction_bias", "linear_attn.conv1d"]
    modules = [f"model.layers.{i}.{name}" for i in range(3) for name in fine]
    everywhere = bits({"quant_method": "fp8"})
    assert bits({"quant_method": "fp8", "ignore": [*modules, "model.layers.3.eh_proj", "model.layers.3"]}) == everywhere
    for name in ("layers.1.mlp.lin1", "blocks.2.norm_attn_norm.attn.qkv", "layers.0.mlp.experts.0.linear"):
        called = "names unknown modules: " + name.replace("blocks", "layers").replace(".0.linear", ".*.linear")
        with pytest.raises(InputError, match=re.escape(called)):
            bits({"quant_method": "fp8", "ignore": [f"model.{name}"]})


@pytest.mark.parametrize(("method", "by"), [("gptq", 32), ("awq", 8)])
def test_a_matrix_that_a_packer_does_not_take_is_refused(method: str, by: int) -> None:
    """AutoGPTQ takes infeatures and outfeatures of 32; its last group may be short, AutoAWQ's not."""
    config = {"quant_method": method, "bits": 4, "group_size": 4}
    with pytest.raises(InputError, match=rf"packs multiples of {by}, which \S+gate \(100 × 64\) is not"):
        bits(config, "D=64 L=1 h=4 F=100 V=50 untied")
    short, config = "D=64 L=1 h=4 F=160 V=50 untied", {**config, "group_size": 128}
    if method == "gptq":  # each input's group is said in 32 bits
        assert bits(config, short)["layers.0.feed_forward.down"] == 64 * (160 * 4 + 2 * 20) + 160 * 32
    else:
        with pytest.raises(InputError, match="a divisor of every row"):
            bits(config, short)


def packed(width: int, group: int) -> int:
    """Bits of one layer's down projection of `SMALL` in integers with a scale and a zero point per group (0: row)."""
    return 256 * 768 * width + 256 * (768 // group if group else 1) * (16 + width)


@pytest.mark.drawn(quick=12)
@pytest.mark.parametrize(("config", "words"), QUANTISED["refused"])
def test_a_config_that_is_not_understood_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        bits(config)
    assert words in str(error.value), error.value


def test_a_quantised_config_json_is_counted_as_published(tmp_path: Path) -> None:
    llama = config_sizes(256, 3, 4, 768, 1000, model_type="llama", num_key_value_heads=2, tie_word_embeddings=False)
    llama |= {"torch_dtype": "float16"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**llama, "quantization_config": {"quant_method": "fp8"}}))
    narrow = 3 * (ATTENTION + WIDE_FFN)
    assert size(str(path)) == 2 * (load(str(path)).params - narrow) + narrow + 3 * 7 * 4
    assert weights_of(load(str(path)), "native").wide == 16
    path.write_text(json.dumps({**llama, "quantization_config": {"quant_method": "hqq"}}))
    code, _, err = run("deploy", str(path), "--gpu", "l4")
    assert code == 2 and "say --weights FORMAT instead" in err
    assert run("deploy", str(path), "--gpu", "l4", "--weights", "bf16")[0] == 0
    assert run("show", str(path))[0] == 0  # parameters are known all the same
    path.write_text(json.dumps({**llama, "quantization_config": ["fp8"]}))
    assert "quantization_config is ['fp8'], expected an object" in run("show", str(path))[2]


FLOAT8 = {"dynamic": False, "num_bits": 8, "type": "float"}
CACHES: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": FLOAT8}, "fp8"),
    ({"producer": {}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}}, "fp4"),
    ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "INT8"}, "int8"),
    ({"quant_method": "fp8", "kv_cache_scheme": None}, ""),
]


@pytest.mark.parametrize(("config", "cache"), CACHES)
def test_a_checkpoint_with_scales_for_its_cache_is_told(tmp_path: Path, config: dict[str, Any], cache: str) -> None:
    sizes = {"hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 768}
    path, llama = tmp_path / "config.json", {"model_type": "llama", **sizes, "vocab_size": 1000, "dtype": "bfloat16"}
    method = {"quant_method": "modelopt"} if "quantization" in config else {}
    path.write_text(json.dumps({**llama, "quantization_config": {**config, **method}}))
    notes = [
        note for note in run("deploy", str(path), "--gpu", "b200")[2].split("\n") if "has scales for a cache" in note
    ]
    assert notes == (
        [f"note: the checkpoint has scales for a cache in {cache}, which --kv {cache} counts"] if cache else []
    )
    assert "has scales" not in run("deploy", str(path), "--gpu", "b200", "--kv", "fp8")[2]


# Mixtures of llama.cpp.


@pytest.mark.parametrize("weights", SIZES["bits_per_weight"]["llama-3.1-8b"])
def test_a_mixture_has_the_bits_a_weight_of_real_files(weights: str) -> None:
    rope_freqs = 4 * 64  # a table of frequencies, which is no parameter
    bits_per_weight = 8 * (size("llama-3.1-8b", weights) + rope_freqs) / load("llama-3.1-8b").params
    assert round(bits_per_weight, 4) == SIZES["bits_per_weight"]["llama-3.1-8b"][weights]


@pytest.mark.parametrize(
    ("name", "weights", "gib"), [(name, w, gib) for name, row in SIZES["gib"].items() for w, gib in row.items()]
)
def test_a_mixture_has_the_size_of_real_files(name: str, weights: str, gib: float) -> None:
    assert round(size(name, weights) / GIB, 2) == gib


@pytest.mark.parametrize("name", SIZES["files"])
def test_a_mixture_has_the_bytes_of_real_files(name: str) -> None:
    """What a file has beside the tensors is one header, the same in every mixture to its padding of 32 bytes and no
    larger than a vocabulary: every tensor is as large as in the file, together."""
    model, row = load(name), SIZES["files"][name]
    narrow = 2 * sum(entry.params for entry in model.entries if entry.kind == "router")  # of fp32 here
    headers = [file + narrow - size(model, weights) for weights, file in row.items()]
    assert max(headers) - min(headers) <= 32
    assert 500_000 < min(headers) < 8_000_000


def numbers(text: str) -> list[int]:
    """`0-4 7` as 0, 1, 2, 3, 4, 7."""
    ends = [[int(end) for end in piece.split("-")] for piece in text.split()]
    return [i for pair in ends for i in range(pair[0], pair[-1] + 1)]


@pytest.mark.parametrize(("name", "weights"), [(name, w) for name, row in SIZES["types"].items() for w in row])
def test_a_mixture_has_the_types_of_llama_cpps_own_quantiser(name: str, weights: str) -> None:
    """Tensor by tensor and layer by layer; of rows that a type does not divide, what it falls back to."""
    model, types = load(name), dict(SIZES["types"][name][weights])
    model = replace(model, description=model.description.replace(quantization=None))  # of 16 bits: it keeps MXFP4
    default = MIXTURES[weights.lower()].default
    chosen = {"output": types.pop("output"), "token_embd": types.pop("token_embd", default)}
    chosen |= {f"{key.split()[0]} {i}": key.split()[1] for key, layers in types.items() for i in numbers(layers)}
    form = weights_of(model, weights)
    assert isinstance(form, Mixed)
    ends = {end: tensor for tensor, all_ends in TENSORS.items() for end in all_ends if not tensor.endswith("qkv")}
    compared = 0
    for path, number, assigned in (
        (path, number, assigned) for path, row in form.table.items() for number, assigned in row.items()
    ):
        tensor = "token_embd" if number is None and "embedding" in path else "output"
        if number is not None:
            tensor = f"{next(t for end, t in ends.items() if path.endswith('.' + end))} {number}"
        kind = chosen.pop(tensor, default)
        width = 2880 if name == "gpt-oss-120b" and not tensor.startswith("attn_output") else 256
        assert assigned and assigned.name == (FALLBACK.get(kind, kind) if width % GGML[kind].long else kind), tensor
        compared += 1
    assert not chosen
    assert compared == 7 * model.n_layers + 2


@pytest.mark.parametrize(("name", "weights"), [(name, w) for name, row in SIZES["counts"].items() for w in row])
def test_a_mixture_has_as_many_tensors_of_each_type_as_a_files_header(name: str, weights: str) -> None:
    model = load(name)
    form, ids = weights_of(model, weights), {entry.name for entry in model.entries if entry.params}  # a tied head: none
    assert isinstance(form, Mixed)
    counts = Counter(kind.name for path in ids & form.table.keys() for kind in form.table[path].values() if kind)
    assert counts == SIZES["counts"][name][weights]


def test_falcon_falls_back_in_96_tensors_of_its_layers() -> None:
    """llama-quantize said 97 of 130 of Falcon-7B as Q4_K_M, with the table: rows of 4,544 are no multiple of 256."""
    form = weights_of(load("falcon-7b"), "Q4_K_M")
    assert isinstance(form, Mixed)
    fell = [path.replace("attention.k", "attention.q").replace("attention.v", "attention.q") + str(number)
            for path, row in form.table.items() for number, kind in row.items()
            if number is not None and kind and kind.long == 32]  # fmt: skip
    assert len(set(fell)) == 96


CONDITIONS: dict[str, list[int]] = {
    "": [*range(32)],
    "more": [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31],
    "first 2": [0, 1],
    "first 4": [0, 1, 2, 3],
    "first 1/16": [0, 1],
    "first 1/8": [0, 1, 2, 3],
    "between": [*range(4, 28)],
    "grouped": [],
    "grouped or sparse": [],
    "8 experts": [],
    "8 experts, more": [],
}
# (query heads per key/value head, experts) → the conditions that hold there besides.
SIZED: dict[tuple[int, int], list[str]] = {
    (3, 3): [],
    (4, 0): ["grouped", "grouped or sparse"],
    (1, 4): ["grouped or sparse"],
    (1, 7): ["grouped or sparse"],
    (1, 8): ["grouped or sparse", "8 experts", "8 experts, more"],
    (1, 9): ["grouped or sparse"],
}


@pytest.mark.parametrize("when", WHEN)
def test_every_condition_of_a_mixture_holds_where_it_says(when: str) -> None:
    for (groups, experts), besides in SIZED.items():
        layers = [i for i in range(32) if WHEN[when](Layer(i, 32, groups, experts))]
        expected = CONDITIONS["more" if when.endswith("more") else ""] if when in besides else CONDITIONS[when]
        assert layers == expected, (groups, experts)


def in_file(kinds: dict[str, str]) -> dict[str, int]:
    """Bytes of the leaves of `SMALL` whose tensors a .gguf file has in these types."""
    model, tensors = load(SMALL), [SimpleNamespace(name=f"{name}.weight", dtype=kind) for name, kind in kinds.items()]
    checkpoint: Any = SimpleNamespace(stored=SimpleNamespace(tensors=tensors))
    form = stored(replace(model, checkpoint=checkpoint))
    assert form.name == "+".join(sorted({kind.lower() for kind in kinds.values()} - {"f32"}))
    return {entry.path: form.bytes_of(entry) for entry in model.ledger()}


def test_a_file_holds_its_tensors_each_in_its_own_type() -> None:
    """What is in fp32, or in no file, has 32 bits; a head that is not there is the table."""
    kinds = {"token_embd": "Q8_0", "output": "F16", "blk.0.attn_q": "F32", "output_norm": "F32"}
    kinds |= {"blk.0.attn_v": "Q6_K", "blk.1.attn_v": "Q4_K", "blk.2.attn_v": "BF16"}
    sizes = in_file(kinds)
    assert sizes["embedding.tokens"] == 1000 * 256 // 32 * 34 and sizes["head.projection"] == 1000 * 256 * 2
    assert sizes["layers.0.attention.v"] == 128 * (210 + 144 + 2 * 256)
    assert sizes["layers.0.attention.q"] == 3 * 256 * 256 * 4 and sizes["final_norm"] == 256 * 4
    del kinds["output"]
    assert in_file(kinds)["head.projection"] == 1000 * 256 // 32 * 34
    with pytest.raises(InputError, match="tensors of type Q8_K, whose size is not known"):
        in_file({"blk.0.attn_q": "Q8_K"})


def test_what_no_mixture_quantises() -> None:
    """Gemma 3n: of its four streams and its low-rank residual 16 bits are kept, or 32; the table of the layers' inputs
    is as the tied one."""
    configs = json.loads((HF / "configs.json").read_text())
    model = build(*describe(configs["default-gemma3n-text"]))
    for weights, table in (("Q4_K_M", "q6_k"), ("Q8_0", "q8_0"), ("IQ2_S", "q5_k")):
        form = weights_of(model, weights)
        kinds = {e.name: {f and f.name for f, _ in form.parts(e.leaf.tensors[0], e)} for e in model.entries if e.params}
        assert kinds["embedding.tokens"] == kinds["layer_inputs.tokens"] == {table}
        for name in ("spread.projections", "layer_inputs.projection", "layers.laurel.left", "layers.streams.router"):
            assert kinds[name] == {"fp16"}
        assert kinds["layers.streams.predict"] == kinds["layers.streams.correct"] == {None}
        assert kinds["layers.layer_input.gate"] <= {"q4_k", "q8_0", "iq2_xs"}


@pytest.mark.parametrize(("group", "format_name"), [(128, "int4"), (64, "int4-g64")])
@pytest.mark.parametrize("method", ["awq", "compressed-tensors"])
def test_a_format_of_groups_is_called_by_their_size(method: str, group: int, format_name: str) -> None:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group}
    tables: dict[str, dict[str, Any]] = {"awq": {"bits": 4, "group_size": group}}
    tables["compressed-tensors"] = {"config_groups": {"all": {"targets": ["Linear"], "weights": weights}}}
    assert from_config(load(SMALL), {"quant_method": method, **tables[method]}).name == format_name
    if method == "compressed-tensors":
        weights |= {"type": "float", "group_size": group // 4}
        form = from_config(load(SMALL), {"quant_method": method, **tables[method]})
        assert form.name == {128: "mxfp4", 64: "nvfp4"}[group]


def test_experts_published_in_mxfp4_stay_so_in_files() -> None:
    """What files of gpt-oss-120b have besides is their header, 13 MB of each, where sizes have two digits in GiB."""
    model = load("gpt-oss-120b")
    besides = {
        weights: gibibytes - sum(weights_of(model, weights).bytes_of(entry) for entry in model.entries) / 2**30
        for weights, gibibytes in SIZES["rounded"]["gpt-oss-120b"].items()
    }
    assert len(besides) == 11
    assert all(0.0125 - 0.005 <= left <= 0.0125 + 0.005 for left in besides.values()), besides


# One vocabulary.


@pytest.mark.drawn(quick=3)
@pytest.mark.parametrize("weights", ["native", "int4", "fp8", "mxfp4", "nvfp4", "Q4_K_M", "iq4_xs", "bf16"])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-20b"])
def test_the_same_word_gives_the_same_bytes_everywhere(name: str, weights: str) -> None:
    expected = size(name, weights)
    _, out, _ = run("show", name, "--weights", weights, "--json")
    assert json.loads(out)["memory"]["weights_bytes"] == expected
    _, out, _ = run("deploy", name, "--gpu", "b200:1", "--weights", weights, "--engine", "none", "--json")
    assert json.loads(out)["memory"][0]["weights_bytes"] == expected


def test_every_presets_formats_are_the_same_bytes_on_a_rank() -> None:
    """Each preset in three formats of all, beside its towers; what is refused is refused in both."""
    for i, name in enumerate(preset_names()):
        model = load(name)
        (stage,) = Sharding(model).stages(Layout())
        for weights in format_names()[i % 14 :: 14]:
            try:
                expected = size(model, weights)
            except InputError as error:
                with pytest.raises(InputError, match=re.escape(str(error))):
                    RankBytes(model, stage, engine(model, weights))
                continue
            rank = RankBytes(model, stage, engine(model, weights))
            assert rank.weights_bytes - rank.towers_bytes == expected, (name, weights)


@pytest.mark.drawn(quick=1)
@pytest.mark.parametrize("base", ["bf16", "int8", "nf4"])
def test_a_frozen_base_has_the_bytes_of_its_format(base: str) -> None:
    training = train("llama-3.1-8b", gpu="b200:1", lora=f"r=16,base={base}", tokens=512)
    assert training.ranks[0].bytes["parameters"] == size("llama-3.1-8b", base)


def test_a_bare_weights_still_asks_for_headers() -> None:
    assert run("show", "gpt2", "--weights")[1] == run("show", "gpt2", "--headers")[1] == run("show", "gpt2")[1]


def test_a_format_that_a_card_does_not_multiply_in_is_read_narrow_and_multiplied_wide() -> None:
    """Engines run fp8 checkpoints on an A100 with 16-bit products (Marlin): memory as fp8, speed of bf16 products."""
    model = load("llama-3.1-8b")
    a100 = hardware.load("a100-80gb-sxm")
    deployment = plan(Planner(model, a100, engine(model, "fp8")), 8192, 1, 1)
    assert deployment.best.fits and deployment.best.fullest.weights == size("llama-3.1-8b", "fp8")
    assert any("does not multiply in fp8" in note for note in deployment.notes)
    for card, is_noted in (("gb10", False), ("m4-max", True)):  # whose system takes a part of the memory
        notes = plan(Planner(model, hardware.load(card), engine(model, "int4")), 8192, 1, 1).notes
        assert any("iogpu.wired_limit_mb" in note for note in notes) == is_noted
    code, out, _ = run("deploy", "llama-3.1-8b", "--gpu", "a100-80gb-sxm:1", "--weights", "fp8")
    assert code == 0 and "TTFT" in out


@pytest.mark.parametrize("name", FORMATS)
def test_bits_of_a_matrix_block_by_block(name: str) -> None:
    form = FORMATS[name]
    assert covering(form, ["experts"]) is form and (covering(form, ["norm"]) is form) == (name != "mxfp4")
    for rows, columns in ((1, 256), (5, 768), (130, 512), (3, 100)):
        tall, long = form.block if isinstance(form.block, tuple) else (1, form.block or columns)
        scales = len({(i // tall, j // long) for i in range(rows) for j in range(columns)}) if form.block else 0
        total = rows * columns * form.bits + scales * form.scale + rows * form.row + columns * form.column + form.tensor
        assert form.matrix_bits(Weight("weight", (rows, columns))) == total
        twice = replace(form, pooled=1000)
        assert twice.matrix_bits(Weight("weight", (rows, columns))) == total + 32 * -(-rows * columns // 1000)
    blocked = form.block[0] * form.block[1] if isinstance(form.block, tuple) else form.block
    assert form.bits_per_weight == form.bits + (Fraction(form.scale, blocked) if blocked else 0)


# Bytes of a block of 256, as ggml-common.h has them (of 32: eight of these).
def test_bytes_of_ggmls_blocks() -> None:
    assert {name: GGML[name].bits_per_weight * 32 for name in GGML} == {
        "q4_0": 144, "q4_1": 160, "q5_0": 176, "q5_1": 192, "q8_0": 272, "iq1_s": 50, "iq1_m": 56, "q2_k": 84,
        "q3_k": 110, "q4_k": 144, "q5_k": 176, "q6_k": 210, "iq2_xxs": 66, "iq2_xs": 74, "iq2_s": 82, "iq3_xxs": 98,
        "iq3_s": 110, "iq4_nl": 144, "iq4_xs": 136, "tq1_0": 54, "tq2_0": 66, "q1_0": 36, "mxfp4": 136, "nvfp4": 144,
    }  # fmt: skip
    for name in CACHE_FORMATS.keys() & GGML.keys():
        assert CACHE_FORMATS[name] == (GGML[name].bits, GGML[name].scale, 32)


@pytest.mark.parametrize("value", ["x", None, 0, -1, 2.5, True, [], {}])
@pytest.mark.parametrize("method", sorted(READERS))
def test_no_value_of_a_quantisation_is_a_traceback(method: str, value: Any) -> None:
    """Each key of numbers, at a value that it may not have: read or refused."""
    model = load("D=256 L=1 h=4 F=256 V=50")
    for key in ("bits", "w_bit", "group_size", "q_group_size", "weight_block_size", "modules_to_not_convert"):
        try:
            from_config(model, {"quant_method": method, key: value})
        except InputError:
            continue


def test_a_head_is_quantised_where_it_is_said() -> None:
    model = load("D=256 L=1 h=4 F=256 V=256 untied")
    for config, packed in (({}, False), ({"lm_head": True}, True)):
        form = from_config(model, {"quant_method": "auto-round", "bits": 4, "group_size": 128, **config})
        head = next(entry for entry in model.ledger() if entry.kind == "head" and entry.leaf.params)
        assert 8 * form.bytes_of(head) == (256 * 256 * 4 + 2 * 256 * 20 if packed else 16 * 256 * 256)


MIXTURE = "D=64 L=4 h=8 h_kv=4 F=96 V=250 E=4 k=2"


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ([f"layers.0.mlp.experts.{i}.gate_proj" for i in range(4)], ""),
        ([f"layers.0.mlp.experts.{i}.gate_proj" for i in range(3)], "names 3 of 4 experts"),
        (["re:.*experts.0.gate_proj"], "for some of 4 experts, not for all"),
        (["re:.*experts.3.gate_proj"], "for some of 4 experts, not for all"),
        (["re:.*experts.2.gate_proj"], "for some of 4 experts, not for all"),
        (["re:.*experts.[0-3].gate_proj"], ""),
    ],
)
def test_experts_of_a_layer_have_one_format(patterns: list[str], message: str) -> None:
    (gate,) = (entry for entry in load(MIXTURE).ledger() if entry.routed and entry.steps[-1].name == "gate")
    try:
        assert Modules(patterns).have(gate, 0) and not message
    except InputError as error:
        assert message and message in str(error)


def packed_by_awq(group: int, rows: int, columns: int) -> list[tuple[int, int]]:
    groups = columns // group
    return [(columns * rows // 8, 32), (groups * rows // 8, 32), (groups * rows, 16)]


# Tensors of a matrix (rows, columns) as its packer makes them, each with the bits of an element:
# AutoAWQ's WQLinear_GEMM (qweight and qzeros of int32, eight numbers each; scales of fp16), bitsandbytes' Linear4bit
# (packed bytes, absmax of fp32 for 64) and Linear8bitLt (SCB of fp32 a row), DeepSeek-V3's weight_scale_inv of fp32 for
# 128 × 128, OCP's mxfp4 as gpt-oss stores it (blocks and scales of bytes), ModelOpt's nvfp4 (packed bytes, weight_scale
# of fp8 for 16, weight_scale_2 of fp32), vLLM's fp8 on loading (weight_scale of fp32).
PACKED: dict[str, Callable[[int, int], list[tuple[int, int]]]] = {
    "int4": partial(packed_by_awq, 128), "int4-g64": partial(packed_by_awq, 64), "int4-g32": partial(packed_by_awq, 32),
    "nf4": lambda rows, columns: [(rows * columns // 2, 8), (rows * columns // 64, 32)],
    "int8": lambda rows, columns: [(rows * columns, 8), (rows, 32)],
    "fp8": lambda rows, columns: [(rows * columns, 8), (1, 32)],
    "fp8-block": lambda rows, columns: [(rows * columns, 8), (-(-rows // 128) * -(-columns // 128), 32)],
    "mxfp4": lambda rows, columns: [(rows * columns // 32 * 16, 8), (rows * columns // 32, 8)],
    "nvfp4": lambda rows, columns: [(rows * columns // 2, 8), (rows * columns // 16, 8), (1, 32)],
    "bf16": lambda rows, columns: [(rows * columns, 16)],
    "fp16": lambda rows, columns: [(rows * columns, 16)],
    "fp32": lambda rows, columns: [(rows * columns, 32)],
}  # fmt: skip


@pytest.mark.drawn(quick=1000)
@pytest.mark.parametrize("name", [name for name in FORMATS if name not in GGML or name in PACKED])
def test_a_matrix_has_the_bits_of_its_packers_tensors(name: str) -> None:
    for rows, columns in ((128, 256), (384, 640), (8, 128)):
        tensors = PACKED[name](rows, columns)
        assert FORMATS[name].matrix_bits(Weight("weight", (rows, columns))) == sum(n * bits for n, bits in tensors)


@pytest.mark.drawn(quick=1000)
@pytest.mark.parametrize("name", GGML)
def test_a_ggml_type_has_the_block_of_gguf_s_own_package(name: str) -> None:
    constants = pytest.importorskip("gguf.constants")
    kind = getattr(constants.GGMLQuantizationType, name.upper(), None)
    if kind is None:
        pytest.skip("newer than this version of gguf")
    block, size = constants.GGML_QUANT_SIZES[kind]
    assert GGML[name].matrix_bits(Weight("weight", (3, 2 * block))) == 3 * 2 * 8 * size
