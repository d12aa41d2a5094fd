"""transformers' own module of a config.json: its figures against the truth, and one line for what it cannot say."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command import Command
from paths import GOLDEN, HF, stored_rows
from tiny import config_sizes

from txcalc.errors import InputError
from txcalc.sources import build
from txcalc.sources.huggingface import describe

pytest.importorskip("torch")
pytest.importorskip("fvcore")
pytest.importorskip("transformers")

from txcalc.verification.inputs import inputs_of
from txcalc.verification.symbolic import T_SRC, B, T
from txcalc.verification.transformers_cost import TransformersCost, measure

pytestmark = pytest.mark.slow

CONFIGS: dict[str, dict[str, Any]] = json.loads((HF / "configs.json").read_text())
TRUTH: dict[str, dict[str, Any]] = json.loads((HF / "truth.json").read_text())
MEASURED = json.loads((HF / "measured.json").read_text())  # of types without a reader
CONFIGS |= {name: row["config"] for name, row in MEASURED.items()}
TRUTH |= {name: row["truth"] for name, row in MEASURED.items()}
LAYERS = ("num_hidden_layers", "num_blocks")

TINY = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "vocab_size": 100,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


@cache
def cut(name: str, layers: int, batch: int, tokens: int, formulas: bool = True) -> TransformersCost:
    """A config with fewer layers, measured."""
    config = {key: value for key, value in CONFIGS[name].items() if key != "layer_types" or len(value) < layers}
    config |= {key: layers for key in LAYERS if key in config}
    return measure(config, name, batch, tokens, formulas=formulas)


def extended(name: str, layers: int, figure: Any, formulas: bool = False) -> Any:
    """A figure of all the layers, from the figures with `layers` and with one more: each further one costs the same."""
    first, second = (figure(cut(name, n, 1, 128, formulas)) for n in (layers, layers + 1))
    depth = next(CONFIGS[name][key] for key in LAYERS if key in CONFIGS[name])
    return second + (depth - layers - 1) * (second - first)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("name", "layers"),
    [("fnet-base", 1), ("convbert-base", 1), ("default-xlstm", 1), ("deepseek-v3.2", 4)],
)
def test_exact(name: str, layers: int) -> None:
    assert extended(name, layers, lambda cost: cost.params) == TRUTH[name]["total"]
    assert extended(name, layers, lambda cost: cost.flops) == TRUTH[name]["flops"]["1x128"]


def test_the_formula_holds_at_every_point() -> None:
    formula = extended("bitnet-b1.58-2b-4t", 1, lambda cost: cost.formula, formulas=True)
    for point, flops in TRUTH["bitnet-b1.58-2b-4t"]["flops"].items():
        batch, tokens = map(int, point.split("x"))
        assert formula.subs({B: batch, T: tokens}) == flops


def test_what_nobody_counts_is_listed_and_a_formula_that_is_none_is_not_given() -> None:
    cost = cut("fnet-base", 1, 1, 128)
    assert cost.uncounted == {"aten::_fft_c2c": 1}
    assert cost.formula is None and "holds only where B = " in cost.points


def test_what_depends_on_data_has_parameters_and_no_flops() -> None:
    cost = cut("longformer-base-4096", 12, 1, 128, False)
    assert cost.params == TRUTH["longformer-base-4096"]["total"]
    assert cost.flops is None and cost.why == "what it computes depends on data"


@pytest.mark.drawn(1)
@pytest.mark.parametrize("model_type", ["gpt2", "t5", "bert"])
def test_the_same_as_a_description(model_type: str) -> None:
    config: dict[str, Any] = {
        "gpt2": TINY,
        "t5": {"model_type": "t5", "d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 2, "num_heads": 4,
               "vocab_size": 100, "pad_token_id": 0, "decoder_start_token_id": 0},
        "bert": {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "intermediate_size": 48, "vocab_size": 100, "architectures": ["BertForMaskedLM"]},
    }[model_type]  # fmt: skip
    cost = measure(config, "tiny", 3, 5, 7 if model_type == "t5" else None)
    ledger = build(*describe(config)).ledger(3, 5, 0, 7 if model_type == "t5" else None)
    assert (cost.params, cost.flops) == (ledger.total("params"), ledger.total("flops"))
    assert cost.formula.subs({B: 3, T: 5, T_SRC: 7}) == cost.flops
    assert (T_SRC in cost.formula.free_symbols) == (model_type == "t5")
    assert sum(part.params for part in cost.parts) == cost.params
    assert sum(part.flops or 0 for part in cost.parts) == cost.flops


def test_a_multimodal_model_is_its_language_model_and_the_whole() -> None:
    config = CONFIGS["gemma-3-12b-it"]
    small = {key: value for key, value in config["text_config"].items() if key != "layer_types"}
    small |= {"num_hidden_layers": 2, "sliding_window_pattern": 2}
    config = config | {"text_config": small, "vision_config": config["vision_config"] | {"num_hidden_layers": 1}}
    cost = measure(config, "gemma-3", 1, 7)
    ledger = build(*describe(config)).ledger(1, 7)
    assert (cost.params, cost.flops) == (ledger.total("params"), ledger.total("flops"))
    assert cost.total_params is not None and cost.total_params > cost.params


def test_a_class_is_chosen_that_is_made_of_the_whole_config() -> None:
    """The causal class that transformers lists for some multimodal types is made of their text_config."""
    towers = json.loads((HF / "towers.json").read_text())
    for model_type, cls in (("llama4", "Llama4ForConditionalGeneration"), ("glmga", "Glm46VForConditionalGeneration")):
        config = next(row["config"] for row in towers.values() if row["config"]["model_type"] == model_type)
        cost = measure(config, model_type, formulas=False)
        assert cost.cls == cls and cost.params == build(*describe(config)).params


def test_a_picture() -> None:
    config = {"model_type": "vit", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
              "num_attention_heads": 4, "image_size": 16, "patch_size": 4, "num_labels": 7}  # fmt: skip
    cost = measure(config | {"id2label": {str(i): str(i) for i in range(7)}}, "vit", 2, 9)
    ledger = build(*describe(config)).ledger(2)
    assert (cost.cls, cost.params) == ("ViTForImageClassification", ledger.total("params"))
    assert cost.flops == ledger.total("flops")


@pytest.mark.drawn(1000)
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "my_net"}, "model_type is 'my_net', expected one that transformers"),
        ({"model_type": "my_net", "auto_map": {"AutoModel": "n.N"}}, "auto_map names code, which txcalc never runs"),
        (TINY | {"architectures": ["MyGPT2"]}, "architectures[0] is 'MyGPT2', expected a class that transformers"),
        (TINY | {"architectures": ["LlamaForCausalLM"]}, "architectures[0] is 'LlamaForCausalLM'"),
        (TINY | {"architectures": ["pipeline"]}, "architectures[0] is 'pipeline'"),
        (TINY | {"architectures": {"a": 1}}, "architectures[0] is {'a': 1}"),
        (TINY | {"n_head": 5}, "transformers makes no GPT2LMHeadModel of it"),
        (TINY | {"n_embd": "wide"}, "transformers makes no"),
        (TINY | {"n_layer": 10**7}, "num_hidden_layers is 10,000,000, expected at most 100,000"),
        ([TINY], "model_type is [{"),
        ({}, "model_type is missing"),
    ],
)
def test_refused(config: Any, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        measure(config, "config.json")
    assert message in str(refusal.value) and len(str(refusal.value).splitlines()) == 1


QWEN = config_sizes(64, 2, 4, 96, 100)
LLAMA = QWEN | {"model_type": "llama"}
REFUSED = stored_rows("refused.json", "via")


@pytest.mark.drawn(1000)
@pytest.mark.parametrize(("config", "messages"), [pytest.param(*rest, id=name) for name, *rest in REFUSED])
def test_a_size_that_transformers_would_not_take_from_the_file_is_a_fault(config: Any, messages: Any) -> None:
    with pytest.raises(InputError) as refusal:
        measure(config, "config.json")
    for message in messages:
        assert message in str(refusal.value)


def test_what_the_class_decides_is_an_assumption() -> None:
    cost = measure(LLAMA | {"num_hidden_layers_of": 0, "twin_heads": 4}, "config.json", formulas=False)
    assert "num_key_value_heads = 4, the default of LlamaConfig" in cost.assumptions
    assert "tie_word_embeddings = False, the default of LlamaConfig" in cost.assumptions
    assert "ignored, since LlamaConfig has no such keys: num_hidden_layers_of = 0" in cost.assumptions
    assert not any("hidden_size" in line for line in cost.assumptions)


def test_a_type_without_a_reader_is_measured() -> None:
    """A ResNet on pictures of 32 × 32; its class has no key for their size."""
    config = {
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [16, 32],
        "depths": [1, 2],
        "num_channels": 3,
    }
    unsaid, cost = (measure(config | options, "", formulas=False) for options in ({}, {"image_size": 32}))
    assert unsaid.params == cost.params and cost.flops is not None and cost.cache is None
    assert unsaid.flops is None and "has no image_size" in unsaid.why


def test_a_nested_size_is_an_assumption_and_one_that_a_class_moves_is_read() -> None:
    config = {"model_type": "llava", "text_config": {**QWEN, "model_type": "qwen2"},
              "vision_config": {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48,
                                "num_attention_heads": 4, "image_size": 28, "patch_size": 14}}  # fmt: skip
    cost = measure(config, "config.json", formulas=False)
    assert "vision_config.num_hidden_layers = 12, the default of CLIPVisionConfig" in cost.assumptions
    with pytest.raises(InputError, match=r"text_config\.num_layers is 7"):
        measure(config | {"text_config": {**QWEN, "model_type": "qwen2", "num_layers": 7}}, "config.json")
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 4}
    flat = measure({"model_type": "qwen2_vl", **QWEN, "vision_config": vision}, "config.json", formulas=False)
    nested = measure({"model_type": "qwen2_vl", "text_config": QWEN, "vision_config": vision}, "", formulas=False)
    assert flat.params == nested.params


@pytest.mark.parametrize("source", [None, 5])
def test_the_cache_is_what_a_description_says(source: int | None) -> None:
    t5 = {"model_type": "t5", "d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 100,
          "pad_token_id": 0, "decoder_start_token_id": 0}  # fmt: skip
    config = t5 if source else TINY
    cost = measure(config, "tiny", 3, 7, source, formulas=False)
    ledger = build(*describe(config)).ledger(3, 7, 0, source)
    assert cost.cache is not None and cost.cache.elements == ledger.total("cache")
    assert cost.cache.next_token == build(*describe(config)).ledger(3, 8, 0, source).total("cache") - ledger.total(
        "cache"
    )


def test_code_and_kernels_that_a_config_names_are_left_alone(tmp_path: Path) -> None:
    foreign = {"auto_map": {"AutoModelForCausalLM": "evil.Evil"}, "attn_implementation": "somebody/kernel",
            "_attn_implementation": "somebody/kernel", "use_kernels": True,
            "quantization_config": {"quant_method": "gptq", "bits": 4}}  # fmt: skip
    assert measure(TINY | foreign, str(tmp_path)).params == measure(TINY, "").params


shown = Command("show", columns=100)


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return str(path)


def test_the_command(tiny: str) -> None:
    answer = shown(tiny, "--via", "transformers", "--batch", "2", "--tokens", "7", "--json")
    data = json.loads(answer.stdout)
    ordinary = shown.data(tiny, "--batch", "2", "--tokens", "7")
    assert all(data[key] == ordinary[key] for key in ("schema", "convention", "workload"))
    assert set(ordinary) - set(data) == set() and set(ordinary["params"]) - set(data["params"]) == set()
    assert data["params"]["total"] == ordinary["params"]["total"] and data["params"]["active"] is None
    assert data["flops"]["forward"] == {"matmul": ordinary["flops"]["forward"]["matmul"], "other": None}
    assert data["memory"]["weights_bytes"] == ordinary["memory"]["weights_bytes"]
    assert data["cache"].items() <= ordinary["cache"].items()
    assert data["known"]["cache"]["how"] == "measured"
    assert data["known"]["flops"]["how"] == "measured"
    table = shown(tiny, "--via", "transformers", "--tokens", "7")
    assert "transformer.h.*.attn.c_attn" in table.stdout and "B·T·(" in table.stdout
    sizes = data["memory"]["weights_bytes"], data["params"]["total"]
    assert re.search(rf"weights \(\w+\), bytes +{sizes[0]:,} +[\d.]+ KiB\n", table.stdout)
    assert re.search(rf"parameters +{sizes[1]:,} +[\d.]+ K\n", table.stdout)
    assert "parameters are the same, FLOPs are the same" in table.stderr
    folder = shown(str(Path(tiny).parent), "--via", "transformers", "--json")
    assert json.loads(folder.stdout)["params"] == data["params"]


def test_kv_and_fit_take_what_is_measured(tiny: str) -> None:
    """Equal to those of a description, but for activations, which are not measured."""
    ordinary, measured = (
        json.loads(Command("kv")(tiny, "--context", "7,40", "--batch", "1,3", *via, "--json").stdout)
        for via in ((), ("--via", "transformers"))
    )
    sizes = [(row["context"], row["batch"], row["bytes"]) for row in ordinary["rows"]]
    assert [(row["context"], row["batch"], row["bytes"]) for row in measured["rows"]] == sizes
    assert measured["known"]["how"] == "measured" and measured["rows"][0]["dense_bytes"] is None
    assert measured["cache"].items() <= ordinary["cache"].items(), (measured["cache"], ordinary["cache"])
    single = Command("kv")(tiny, "--context", "7", "--via", "transformers").stdout
    assert "cache for the next token at 7" in single and "fixed" not in single  # one length does not tell
    unchecked = Command("kv")(tiny, "--kv", "bf16,q8_0", "--via", "transformers").stderr
    assert "q8_0: whether its blocks divide the heads is not checked" in unchecked and "bf16: whether" not in unchecked
    args = (tiny, "--gpu", "l4", "--gpu", "l4:2", "--context", "40", "--weights", "bf16,fp32,Q8_0,int4")
    half, wide, gguf, narrow, *two = json.loads(Command("fit")(*args, "--via", "transformers", "--json").stdout)["rows"]
    params = shown.data(tiny)["params"]["total"]
    assert half["need_bytes"] == 2 * params + sizes[2][2] and wide["need_bytes"] == half["need_bytes"] + 2 * params
    assert half["fits"] and half["best"] and half["known"]["how"] == "measured" and half["tokens_per_s"] is None
    assert (
        gguf["refused"]
        and "the matrices and scales that" in narrow["refused"]
        and {row["refused"] for row in two} == {"--via transformers measures one GPU"}
    )
    assert "measured on GPT2LMHeadModel" in Command("fit")(*args[:3], "--via", "transformers").stdout
    for argv, why in (
        (("fit", tiny, "--gpu", "l4", "--engine", "vllm"), "without --engine and --ram"),
        (("fit", "--gpu", "l4"), "needs a config.json"),
        (("kv", tiny, "--set", "L=3"), "--set and --ignore do not work with --via transformers"),
        (("kv", tiny, "--without-cache"), "--without-cache does not work with --via transformers"),
        (("deploy", tiny, "--gpu", "l4"), "deploy needs formulas; show, kv and fit take it"),
    ):
        refused = Command()(*argv, "--via", "transformers")
        assert refused.exit_code == 2 and why in " ".join(refused.stderr.split())


def test_the_command_leaves_out_ignored_keys(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"num_codes": 50}))
    assert "--ignore num_codes" in shown(str(path), "--via", "transformers").stderr
    data = json.loads(shown(str(path), "--via", "transformers", "--ignore", "num_codes", "--json").stdout)
    assert data["params"]["total"] == measure(LLAMA, "", formulas=False).params
    assert "ignored by --ignore: num_codes = 50" in data["notes"]


def test_the_command_refuses_what_it_does_not_measure(tiny: str) -> None:
    answer = shown(tiny, "--via", "transformers", "--past", "3", "--logits", "last")
    assert answer.exit_code == 2
    assert "--past does not work with --via transformers" in answer.stderr
    assert "--logits does not work" in answer.stderr
    assert shown("gpt2", "--via", "transformers").exit_code == 2


def test_the_way_out_is_named_where_it_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    answers = {}
    for model_type in ("lama", "perceiver"):
        path.write_text(json.dumps({"model_type": model_type}))
        answers[model_type] = shown(str(path)).stderr
    assert "--via transformers" in answers["perceiver"]
    assert "did you mean llama" in answers["lama"] and "--via" not in answers["lama"]  # transformers has no such type
    real = importlib.util.find_spec
    gone = lambda name, *arguments: None if name == "transformers" else real(name, *arguments)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", gone)
    refused = shown(str(path), "--via", "transformers")
    assert refused.exit_code == 3 and "pip install 'txcalc[transformers]'" in refused.stderr


def test_naming_the_way_out_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "lama"}))
    code = f"""
import sys, txcalc.cli
sys.argv = ["txcalc", "show", {str(path)!r}]
try:
    txcalc.cli.entry()
except SystemExit as done:
    assert done.code == 2
assert not {{"torch", "transformers", "sympy", "numpy"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_inputs_of_a_class_are_the_ones_kept(update_golden: bool) -> None:
    transformers, path = pytest.importorskip("transformers"), GOLDEN / "inputs.json"
    inputs = {}
    for name in json.loads(path.read_text("utf-8")):
        cls = getattr(transformers, name)
        net = cls.__new__(cls)
        object.__setattr__(net, "config", cls.config_class())
        inputs[name] = [str(inputs_of(net, 2, 5, source)) for source in (None, 3)]
    if update_golden:
        path.write_text(json.dumps(inputs, indent=1) + "\n", "utf-8")
    assert inputs == json.loads(path.read_text("utf-8"))
