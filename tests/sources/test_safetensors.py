"""Checkpoints by their headers: real files of small models, what is explained of them, and hostile headers."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from itertools import cycle
from math import prod
from pathlib import Path
from typing import Any

import pytest
from command import typed
from hypothesis import given, strategies as st
from paths import GOLDEN
from tiny import config_sizes
from typer.testing import CliRunner

import txcalc
from txcalc.checkpoint import PACKED, Checkpoint, StoredTensor, check
from txcalc.cli import app
from txcalc.errors import InputError
from txcalc.planning.formats.names import weights_of
from txcalc.sources import safetensors
from txcalc.sources.safetensors import BITS, INDEX

Shapes = dict[str, tuple[str, tuple[int, ...]]]

TINY = config_sizes(64, 3, 4, 96, 100, num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5)
TINY |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
TINY |= dict.fromkeys(("tie_word_embeddings", "attention_bias", "mlp_bias"), False)


def llama(config: dict[str, Any] = TINY, dtype: str = "BF16") -> Shapes:
    """The tensors of a llama, by the names that transformers gives them."""
    d, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = d // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,)}
    for i in range(config["num_hidden_layers"]):
        for name, shape in {
            "self_attn.q_proj": (d, d),
            "self_attn.k_proj": (kv, d),
            "self_attn.v_proj": (kv, d),
            "self_attn.o_proj": (d, d),
            "mlp.gate_proj": (f, d),
            "mlp.up_proj": (f, d),
            "mlp.down_proj": (d, f),
            "input_layernorm": (d,),
            "post_attention_layernorm": (d,),
        }.items():
            shapes[f"model.layers.{i}.{name}.weight"] = shape
    shapes["lm_head.weight"] = (v, d)
    return {name: (dtype, shape) for name, shape in shapes.items()}


def header(tensors: Shapes) -> tuple[dict[str, Any], int]:
    """A header, and the bytes that follow it."""
    listed: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = prod(shape) * BITS[dtype] // 8
        listed[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return listed, at


def write(path: Path, listed: Any, room: int) -> Path:
    """A file with this header, and nothing but a hole behind it."""
    data = listed if isinstance(listed, bytes) else json.dumps(listed).encode()
    with path.open("wb") as file:
        file.write(len(data).to_bytes(8, "little") + data)
        file.truncate(8 + len(data) + room)
    return path


def folder(place: Path, tensors: Shapes, shards: int = 1, config: dict[str, Any] | None = TINY) -> Path:
    place.mkdir(exist_ok=True)
    if config is not None:
        (place / "config.json").write_text(json.dumps(config))
    if shards == 1:
        write(place / "model.safetensors", *header(tensors))
        return place
    names: list[str] = list(tensors)
    places: dict[str, str] = {}
    for k in range(shards):
        file = f"model-{k + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[k::shards]}
        write(place / file, *header(part))
        places |= dict.fromkeys(part, file)
    (place / INDEX).write_text(json.dumps({"metadata": {"total_size": 1.5}, "weight_map": places}))
    return place


# What real libraries write.


@pytest.mark.slow
def test_a_file_that_the_library_writes_is_read_and_explained(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("safetensors.torch")
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, (_, shape) in llama().items()}
    place = folder(tmp_path / "tiny", llama())
    library.save_file(tensors, place / "model.safetensors", {"format": "pt"})
    model = txcalc.load(place)
    assert model.checkpoint is not None
    assert model.checkpoint.agrees
    assert model.checkpoint.explained == model.params == sum(t.numel() for t in tensors.values())
    assert model.checkpoint.stored.size.bytes == sum(t.nbytes for t in tensors.values())
    assert {t.name: t.shape for t in model.checkpoint.stored.tensors} == {n: tuple(t.shape) for n, t in tensors.items()}


TWINS: dict[
    str, tuple[str, dict[str, Any]]
] = {  # presets, with the class of transformers whose checkpoints they describe
    "gpt2": ("GPT2LMHeadModel", {}),  # transposed, Q, K and V in one, a tied head
    "bert-base": ("BertModel", {}),
    "albert-base-v2": ("AlbertForMaskedLM", {"embedding_size": 128, "hidden_act": "gelu_new"}),  # layers share weights
    "falcon-7b": ("FalconForCausalLM", {}),
    "t5-small": ("T5ForConditionalGeneration", {"d_kv": 64, "feed_forward_proj": "relu"}),
    "mixtral-8x7b": ("MixtralForCausalLM", {"head_dim": 128}),  # experts stacked
    "mamba-130m": ("MambaForCausalLM", {"vocab_size": 50280, "num_hidden_layers": 24}),
    "qwen3-next-80b-a3b": ("Qwen3NextForCausalLM", {"num_hidden_layers": 4}),  # pairs of weights stacked
}


@pytest.mark.slow
@pytest.mark.parametrize("preset", TWINS)
def test_every_tensor_of_transformers_own_modules_is_explained(preset: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    name, keys = TWINS[preset]
    cls = getattr(transformers, name)
    model = txcalc.load(preset, {"L": 4} if name.startswith("Qwen") else {})
    stack = model.description.last
    config = cls.config_class(**{"vocab_size": stack.vocab_size, "tie_word_embeddings": stack.head.tied, **keys})
    if preset == "falcon-7b":
        config.update({"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71})
    if preset == "albert-base-v2":
        config.update({"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072})
    with torch.device("meta"):
        state = cls(config).state_dict()
    tensors = tuple(StoredTensor(name, tuple(t.shape), "F32", 4 * t.numel()) for name, t in state.items())
    checked = check(Checkpoint(preset, "safetensors", 1, tensors), model.ledger())
    assert checked.agrees, checked.differences()
    assert checked.by_kind == model.ledger().by_kind("params")
    assert sum(t.elements for t in tensors) == model.params + sum(
        t.elements for group in checked.extra.values() for t in group
    )


# Differences.


def edited(place: Path, edit: Callable[[Shapes], None]) -> Any:
    tensors = llama()
    edit(tensors)
    return txcalc.load(folder(place, tensors)).checkpoint


def test_a_missing_and_an_additional_tensor_are_named(tmp_path: Path) -> None:
    def edit(tensors: Shapes) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.1.adapter.weight"] = ("F32", (8, 64))

    checked = edited(tmp_path, edit)
    assert [(m.path, m.shape, m.copies) for m in checked.missing] == [("layers.*.feed_forward.up.weight", (96, 64), 1)]
    assert [t.name for t in checked.unexplained] == ["model.layers.1.adapter.weight"]
    assert checked.expected - checked.explained == 96 * 64
    assert "6,144 parameters of the description are not in it, 1 of its tensors are not explained" in checked.summary()


def test_layers_are_not_confused(tmp_path: Path) -> None:
    """The same shapes in total, but one layer with two of a matrix and another with none."""

    def edit(tensors: Shapes) -> None:
        tensors["model.layers.0.mlp.up_proj.weight_2"] = tensors.pop("model.layers.2.mlp.up_proj.weight")

    checked = edited(tmp_path, edit)
    assert [(m.path, m.copies) for m in checked.missing] == [("layers.*.feed_forward.up.weight", 1)]
    assert [t.name for t in checked.unexplained] == ["model.layers.0.mlp.up_proj.weight_2"]


def test_layers_beyond_those_described_are_told_apart(tmp_path: Path) -> None:
    """Multi-token-prediction layers stand behind the others in a checkpoint."""
    checked = edited(tmp_path, lambda tensors: tensors.update({"model.layers.3.eh_proj.weight": ("BF16", (64, 128))}))
    assert checked.beyond
    assert "all in layers beyond those described" in checked.summary()
    assert checked.differences() == ["model.layers.3.eh_proj.weight [64, 128] is not explained, 1 of it"]


def test_stored_integers_hold_weights_of_8_4_3_or_2_bits() -> None:
    bits = {dtype: [BITS[dtype] / per_integer for per_integer in packed] for dtype, packed in PACKED.items()}
    assert bits == {"I32": [8, 4, 3, 2], "U8": [4, 2], "I8": [4, 2], "F4": []}


def test_tied_copies_buffers_and_masks_are_no_parameters(tmp_path: Path) -> None:
    config = TINY | {"tie_word_embeddings": True}
    tensors = llama() | {"model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (8,))}
    checkpoint = txcalc.load(folder(tmp_path, tensors, config=config)).checkpoint
    assert checkpoint is not None and checkpoint.agrees
    assert {why: [t.name for t in group] for why, group in checkpoint.extra.items()} == {
        "tied": ["lm_head.weight"],
        "buffer": ["model.layers.0.self_attn.rotary_emb.inv_freq"],
    }
    assert checkpoint.explained == checkpoint.expected


def packed(name: str, shape: tuple[int, ...], method: str) -> Shapes:
    """A matrix as a quantiser stores it: 4 bits, groups of 32."""
    rows, columns = shape
    stem = name.removesuffix(".weight")
    if method == "gptq":
        return {
            f"{stem}.qweight": ("I32", (columns // 8, rows)),
            f"{stem}.qzeros": ("I32", (columns // 32, rows // 8)),
            f"{stem}.scales": ("F16", (columns // 32, rows)),
            f"{stem}.g_idx": ("I32", (columns,)),
        }
    if method == "bitsandbytes":
        return {
            name: ("U8", (rows * columns // 2, 1)),
            f"{name}.absmax": ("F32", (rows * columns // 64,)),
            f"{name}.quant_map": ("F32", (16,)),
            f"{name}.quant_state.bitsandbytes__nf4": ("U8", (82,)),
        }
    if method == "compressed-tensors":
        return {
            f"{stem}.weight_packed": ("I32", (rows, columns // 8)),
            f"{stem}.weight_scale": ("BF16", (rows, columns // 32)),
            f"{stem}.weight_shape": ("I64", (2,)),
        }
    return {name: ("F8_E4M3", shape), f"{stem}.weight_scale_inv": ("F32", (-(-rows // 128), -(-columns // 128)))}


@pytest.mark.parametrize("method", ["gptq", "bitsandbytes", "compressed-tensors", "fp8"])
def test_a_quantised_checkpoint_is_seen_as_it_is(method: str, tmp_path: Path) -> None:
    tensors: Shapes = {}
    for name, (dtype, shape) in llama(dtype="F16").items():
        tensors |= packed(name, shape, method) if "proj" in name else {name: (dtype, shape)}
    model = txcalc.load(folder(tmp_path, tensors))
    checkpoint = model.checkpoint
    assert checkpoint is not None and checkpoint.agrees, checkpoint and checkpoint.differences()
    assert checkpoint.explained == model.params
    assert set(checkpoint.extra) == {"scale"}
    linear = 3 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96)
    stored = {"fp8": ("F8_E4M3", linear), "bitsandbytes": ("U8", linear // 2 + 21 * 82)}
    dtype, size = stored.get(method, ("I32", linear // 2))
    stored_bytes = checkpoint.stored.by_dtype()[dtype].bytes
    assert stored_bytes == size if method != "gptq" else stored_bytes > size


# What each packer's files are, and what a config may say of them that is another format.
SAID: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": True},
    "gptq in 8 bits": {"quant_method": "gptq", "bits": 8, "group_size": 32, "desc_act": True, "sym": True},
    "gptq, groups of 16": {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True, "sym": True},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
}


@pytest.mark.parametrize("config_method", SAID)
@pytest.mark.parametrize("method", ["gptq", "bitsandbytes", "fp8"])
def test_a_config_gives_its_checkpoint_the_bytes_that_it_has(method: str, config_method: str, tmp_path: Path) -> None:
    """All but what bitsandbytes writes of each matrix beside it; any other format is refused with both sums."""
    wide = TINY | {"hidden_size": 512, "intermediate_size": 768, "torch_dtype": "float16"}
    tensors: Shapes = {}
    for name, (dtype, shape) in llama(wide, "F16").items():
        tensors |= packed(name, shape, method) if "proj" in name else {name: (dtype, shape)}
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", (100_000,))  # no parameter
    model = txcalc.load(folder(tmp_path, tensors, config=wide | {"quantization_config": SAID[config_method]}))
    assert model.checkpoint is not None and model.checkpoint.agrees
    stored_bytes = model.checkpoint.stored.size.bytes - 400_000
    if method != config_method:
        with pytest.raises(InputError, match=f"bytes by its keys, and its checkpoint's tensors have {stored_bytes:,}"):
            weights_of(model, "native")
        return
    extra_bytes = 21 * (82 + 16 * 4) if method == "bitsandbytes" else 0
    assert sum(weights_of(model, "native").bytes_of(entry) for entry in model.entries) == stored_bytes - extra_bytes


# Folders.


def test_a_config_that_contradicts_the_headers_is_refused(tmp_path: Path) -> None:
    """Both ways; a format that is named is counted all the same."""
    fp8_config = {**TINY, "quantization_config": {"quant_method": "fp8"}}
    wide = dict(zip(llama(), cycle(("BF16", "F16", "F32")), strict=False))
    unquantised = {name: (wide[name], shape) for name, (_, shape) in llama().items()}
    for place, tensors, config, words in (
        ("a", unquantised, fp8_config, "says 'fp8', and all matrices of its checkpoint are BF16, F16, F32"),
        ("b", llama(dtype="F8_E4M3"), TINY, "has no quantization_config, and matrices of its checkpoint are F8_E4M3"),
    ):
        (tmp_path / place).mkdir()
        model = txcalc.load(folder(tmp_path / place, tensors, config=config))
        with pytest.raises(InputError, match=re.escape(words)):
            weights_of(model, "native")
        assert weights_of(model, "bf16").name == "bf16"
    (tmp_path / "c").mkdir()  # norms and tables stay wide
    wide = {name: "BF16" for name in llama() if "proj" not in name}
    mixed = {name: (wide.get(name, dtype), shape) for name, (dtype, shape) in llama(dtype="F8_E4M3").items()}
    assert weights_of(txcalc.load(folder(tmp_path / "c", mixed, config=fp8_config)), "native").name == "fp8"


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    model = txcalc.load(folder(tmp_path, llama(), shards=4))
    assert model.checkpoint is not None
    assert model.checkpoint.agrees
    assert model.checkpoint.stored.files == 4


@pytest.mark.parametrize("file_name", ["model-00002-of-00004.safetensors", "part_b.safetensors"])
def test_a_shard_by_itself_lacks_what_the_others_hold(file_name: str, tmp_path: Path) -> None:
    """Its name says of how many files it is one, or the index beside it does."""
    place = folder(tmp_path, llama(), shards=4)
    index = place / INDEX
    (place / "model-00002-of-00004.safetensors").rename(place / file_name)
    index.write_text(index.read_text().replace("model-00002-of-00004.safetensors", file_name))
    model = txcalc.load(place / file_name)
    checkpoint = model.checkpoint
    assert checkpoint is not None and checkpoint.agrees and not checkpoint.missing
    elements = sum(tensor.elements for tensor in checkpoint.stored.tensors)
    assert 0 < elements == checkpoint.explained < model.params
    summary = f"1 of the 4 files of a checkpoint: {elements:,} of the {model.params:,} parameters are in it"
    assert checkpoint.summary() == summary
    shown = CliRunner().invoke(app, ["show", str(place / file_name)], env={"COLUMNS": "200"}).stdout
    assert summary in shown and "1 of 4 files" in shown and "not in the checkpoint" not in shown
    assert typed.data("show", str(place / file_name))["checkpoint"]["of_files"] == 4


def test_a_shard_with_a_tensor_too_many_says_so(tmp_path: Path) -> None:
    place = folder(tmp_path, llama() | {"model.layers.1.adapter.weight": ("F32", (8, 64))}, shards=2)
    checkpoints = [txcalc.load(shard).checkpoint for shard in sorted(place.glob("*.safetensors"))]
    assert [check.agrees for check in checkpoints if check] in ([True, False], [False, True])
    assert any(check and check.summary().endswith("; 1 of its tensors are not explained") for check in checkpoints)


def test_an_index_without_its_files_is_a_note_and_a_part_of_them_an_error(tmp_path: Path) -> None:
    place = folder(tmp_path, llama(), shards=3)
    shards = sorted(place.glob("*.safetensors"))
    shards[1].unlink()
    with pytest.raises(InputError, match=r"1 of its 3 files are missing, model-00002-of-00003\.safetensors first"):
        txcalc.load(place)
    for shard in (shards[0], shards[2]):
        shard.unlink()
    model = txcalc.load(place)
    assert model.checkpoint is None
    assert any("not checked" in note for note in model.notes)


def test_an_index_must_agree_with_its_files(tmp_path: Path) -> None:
    place = folder(tmp_path, llama(), shards=2)
    index = json.loads((place / INDEX).read_text())
    del index["weight_map"]["model.norm.weight"]
    index["weight_map"]["model.other.weight"] = "model-00001-of-00002.safetensors"
    (place / INDEX).write_text(json.dumps(index))
    with pytest.raises(InputError) as caught:
        txcalc.load(place)
    assert "'model.norm.weight' is in model-00002-of-00002.safetensors and not in the index" in str(caught.value)
    assert "'model.other.weight' is in the index and not in model-00001-of-00002.safetensors" in str(caught.value)


@pytest.mark.parametrize("file", ["../model.safetensors", "", "a/b", "..", 3, None])
def test_an_index_names_files_beside_it(file: Any, tmp_path: Path) -> None:
    place = folder(tmp_path, llama(), shards=2)
    (place / INDEX).write_text(json.dumps({"weight_map": {"w": file}}))
    with pytest.raises(InputError, match="the name of a file beside it"):
        txcalc.load(place)


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    place = folder(tmp_path, llama())
    (place / "model.safetensors").rename(place / "a.safetensors")
    assert txcalc.load(place).checkpoint is not None
    write(place / "b.safetensors", *header(llama()))
    with pytest.raises(InputError, match=r"which is the model\?"):
        txcalc.load(place)


def test_a_git_lfs_pointer_is_recognised(tmp_path: Path) -> None:
    place = folder(tmp_path, llama())
    (place / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    with pytest.raises(InputError, match="Git LFS pointer"):
        txcalc.load(place)


# Without a config.json.


def test_a_lone_file_has_no_model_and_a_report(tmp_path: Path) -> None:
    place = folder(tmp_path / "lone", llama(), config=None)
    file = place / "model.safetensors"
    with pytest.raises(InputError, match=r"config\.json is not beside it"):
        txcalc.load(file)
    for source in (place, file):
        data = typed.data("show", str(source))
        assert data["checkpoint"]["check"] is None
        assert data["checkpoint"]["elements"] == 3 * (2 * 4096 + 2 * 2048 + 3 * 6144 + 128) + 2 * 6400 + 64
        assert data["checkpoint"]["by_dtype"] == {
            "BF16": {k: data["checkpoint"][k] for k in ("tensors", "elements", "bytes")}
        }
        rows = {row["name"]: row for row in data["checkpoint"]["by_name"]}
        assert rows["model.layers.*.mlp.down_proj.weight"] == {
            "name": "model.layers.*.mlp.down_proj.weight",
            "shape": [64, 96],
            "dtype": "BF16",
            "tensors": 3,
            "elements": 3 * 64 * 96,
            "bytes": 2 * 3 * 64 * 96,
        }
        assert "config.json" in data["notes"][0]


def test_show_has_the_checkpoint_beside_the_model(tmp_path: Path) -> None:
    place = folder(tmp_path / "whole", llama())
    data = typed.data("show", str(place))
    assert data["checkpoint"]["check"] == {
        "agrees": True,
        "expected": data["params"]["total"],
        "explained": data["params"]["total"],
        "by_kind": data["params"]["by_kind"],
        "bits_per_weight": 16.0,
        "extra": {},
        "unexplained": [],
        "missing": [],
    }
    text = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["show", str(place)]).stdout
    assert "every tensor of it is explained" in " ".join(text.split())


def test_a_screen_shows_what_config_and_checkpoint_do_not_share(tmp_path: Path, update_golden: bool) -> None:
    tensors = llama() | {"model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (8,)), "x": ("F16", (7,))}
    del tensors["model.layers.1.mlp.up_proj.weight"]
    screens = list[str]()
    for config in (TINY | {"tie_word_embeddings": True}, None):
        ran = typed("show", str(folder(tmp_path / f"stored{len(screens)}", tensors, 2, config)), COLUMNS="1000")
        screens.append(ran.output.replace(str(tmp_path), "…"))
    kept, text = GOLDEN / "checkpoint.txt", "\n".join(screens)
    if update_golden:
        kept.write_text(text, "utf-8")
    assert text == kept.read_text("utf-8")


@pytest.mark.slow
def test_seventy_billion_parameters_in_eighty_files_are_read_without_a_weight(tmp_path: Path) -> None:
    """The whole command takes no more than three times what it takes for a preset, which is 0.1 s: the least of three
    fresh processes, for others use the machine too."""

    def spent(source: str) -> float:
        seconds = []
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-m", "txcalc", "show", source], capture_output=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime - before.ru_utime)
        return min(seconds)

    config = TINY | config_sizes(8192, 80, 64, 28672, 128256, num_key_value_heads=8)
    place = folder(tmp_path, llama(config), shards=80, config=config)
    model = txcalc.load(place)
    assert spent(str(place)) < 3 * spent("llama-3.1-70b")
    assert model.params == 70_553_706_496
    assert model.checkpoint is not None and model.checkpoint.agrees
    assert sum(file.stat().st_blocks for file in place.glob("*.safetensors")) * 512 < 10**7


# Hostile headers.


def header_of(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | changes}


HOSTILE = {
    "shape is 10^18": (header_of(shape=[10**18]), 24, "expected"),
    "negative shape": (header_of(shape=[-2, -3]), 24, "whole numbers from 0"),
    "fraction": (header_of(shape=[2.0, 3]), 24, "whole numbers from 0"),
    "true": (header_of(shape=[True, 6]), 24, "whole numbers from 0"),
    "overflow": (header_of(shape=[2**62, 2**62, 4]), 24, "less than 2"),
    "many dimensions": (header_of(shape=[1] * 100), 24, "whole numbers from 0"),
    "shape is text": (header_of(shape="23"), 24, "whole numbers from 0"),
    "no dtype": (header_of(dtype=None), 24, "expected one of"),
    "unknown dtype": (header_of(dtype="Q4"), 24, "expected one of"),
    "dtype is a list": (header_of(dtype=[]), 24, "expected one of"),
    "backwards": (header_of(data_offsets=[24, 0]), 24, "the second not below"),
    "negative offset": (header_of(data_offsets=[-24, 0]), 24, "two whole numbers"),
    "one offset": (header_of(data_offsets=[0]), 24, "two whole numbers"),
    "gap": (header_of(data_offsets=[8, 32]), 32, "a gap, or an overlap"),
    "overlap": (header_of() | {"b": header_of(data_offsets=[12, 36])["a"]}, 36, "a gap, or an overlap"),
    "same place": (header_of() | {"b": header_of()["a"]}, 24, "a gap, or an overlap"),
    "truncated data": (header_of(), 23, "truncated"),
    "trailing data": (header_of(), 25, "truncated, or followed"),
    "not an object": ([], 0, "an object of tensors"),
    "a number": (7, 0, "an object of tensors"),
    "entry is a number": ({"a": 7}, 0, "an object with dtype"),
    "unprintable name": ({"\x1b[2J": header_of()["a"]}, 24, "not a printable name"),
    "lone surrogate": (b'{"\\ud800": {}}', 0, "not a printable name"),
    "twice": (b'{"a": {}, "a": {}}', 0, "listed twice"),
    "not JSON": (b"{", 0, "not valid"),
    "not text": (b"\xff\xfe", 0, "not text"),
    "nested": (b"[" * 100_000, 0, "nested too deep|not valid"),
    "huge number": (b'{"a": {"shape": [' + b"9" * 10_000 + b"]}}", 1, "not valid"),
    "empty": (b"", 0, "not valid"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_header_is_one_clear_error(what: str, tmp_path: Path) -> None:
    listed, room, message = HOSTILE[what]
    with pytest.raises(InputError, match=message) as caught:
        safetensors.read(write(tmp_path / "x.safetensors", listed, room))
    assert len(str(caught.value)) < 500
    result = typed("show", str(tmp_path / "x.safetensors"))
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(
    "start", [b"", b"1234567", (2**64 - 1).to_bytes(8, "little"), (10**8 + 1).to_bytes(8, "little")]
)
def test_a_length_is_checked_before_it_is_read(start: bytes, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(start)
    os.truncate(file, max(len(start), 2 * 10**8 if start.startswith((10**8 + 1).to_bytes(8, "little")) else len(start)))
    with pytest.raises(InputError, match=r"truncated|at most 100,000,000"):
        safetensors.read(file)


@pytest.mark.slow
def test_memory_is_bounded_whatever_the_header_holds(tmp_path: Path) -> None:
    """Headers made to blow up when they are parsed, in a process that may take half a gigabyte."""
    most = 16 * safetensors.MAX_TENSORS - 2
    fillers = (b"{}," * (1 << 25), b'"xy",' * most, b"[]," * (2 * safetensors.MAX_TENSORS - 2), b"12345678," * most)
    for i, filler in enumerate(fillers):
        write(tmp_path / f"{i}.safetensors", b'{"a":[' + filler + b"0]}", 0)
    code = (
        "import sys; from pathlib import Path\n"
        "from txcalc.errors import InputError; from txcalc.sources import safetensors\n"
        "for i in range(4):\n"
        "    try: safetensors.read(Path(sys.argv[1]) / f'{i}.safetensors'); sys.exit(1)\n"
        "    except InputError as error: assert len(str(error)) < 500\n"
    )

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))

    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, preexec_fn=limited, timeout=60)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(sorted(BITS)) | json_values,
        "shape": st.lists(st.integers(-2, 9), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-2, 400), min_size=2, max_size=2) | json_values,
    }
)


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=6), entries | json_values, max_size=4), st.integers(0, 400))
def test_any_header_is_read_or_refused(listed: dict[str, Any], room: int) -> None:
    data = json.dumps(listed).encode()
    try:
        tensors = safetensors.parse(data, "x", room)
    except InputError:
        return
    assert sum(t.bytes for t in tensors) == room
    assert all(8 * t.bytes == t.elements * BITS[t.dtype] for t in tensors)
    assert len(tensors) == len(listed.keys() - {"__metadata__"})


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        safetensors.parse(data, "x", 0)
    except InputError as error:
        assert str(error)
