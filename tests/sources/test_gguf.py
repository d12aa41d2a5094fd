"""GGUF files by their headers: written by the `gguf` package, read back to the model they were written from."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
from command import typed
from hypothesis import example, given, strategies as st
from paths import DATA

import txcalc
from txcalc.checkpoint import squeeze
from txcalc.description import as_tables
from txcalc.errors import InputError, UnknownName
from txcalc.ledger import QUANTITIES
from txcalc.planning.formats.names import weights_of
from txcalc.sources import build
from txcalc.sources.gguf import MAX_TENSORS
from txcalc.sources.huggingface import describe

gguf = pytest.importorskip("gguf", reason="GGUF files need gguf (pip install '.[test]')")
numpy = pytest.importorskip("numpy")

Shapes = dict[str, tuple[int, ...]]


def keys(arch: str, model: txcalc.Model) -> dict[str, Any]:
    """The keys that llama.cpp's converter writes for a model."""
    stack = as_tables(model.stacks[0])
    layers = list(stack["layer"].values())
    result: dict[str, Any] = {
        "block_count": stack["n_layers"],
        "context_length": model.context,
        "embedding_length": stack["d_model"],
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    heads = next((layer["attention"] for layer in layers if "attention" in layer), None)
    if heads:
        result |= {"attention.head_count": heads["n_heads"], "attention.head_count_kv": heads["n_kv_heads"]}
        result |= {"attention.key_length": heads["d_head"], "attention.value_length": heads["d_head"]}
        rotary = stack["positions"].get("rotary_dims") or heads["d_head"]
        result |= {"rope.dimension_count": rotary, "rope.freq_base": 500000.0}
        window = next((attn["window"] for layer in layers if (attn := layer.get("attention")) and attn["window"]), None)
        result |= {"attention.sliding_window": window} if window else {}
        caps = {"attn_logit_softcapping": heads["softcap"], "final_logit_softcapping": stack["head"]["softcap"]}
        result |= {key: float(value) for key, value in caps.items() if value}
    latent = next((layer["latent"] for layer in layers if "latent" in layer), None)
    if latent:
        result |= {"attention.head_count": latent["n_heads"], "attention.head_count_kv": 1}
        result |= {"attention.q_lora_rank": latent["q_rank"], "attention.kv_lora_rank": latent["kv_rank"]}
        result |= {"attention.key_length": latent["kv_rank"] + latent["d_rope"]}
        result |= {"attention.value_length": latent["kv_rank"], "rope.dimension_count": latent["d_rope"]}
        result |= {"attention.key_length_mla": latent["d_nope"] + latent["d_rope"]}
        result |= {"attention.value_length_mla": latent["d_v"]}
    dense = next((layer["feed_forward"] for layer in layers if "feed_forward" in layer), None)
    experts = next((layer["experts"] for layer in layers if "experts" in layer), None)
    result["feed_forward_length"] = dense["d_ff"] if dense else experts["d_ff"] if experts else 0
    if experts:
        result |= {"expert_count": experts["n_experts"], "expert_used_count": experts["top_k"]}
        result |= {"expert_feed_forward_length": experts["d_ff"], "expert_shared_count": experts["n_shared"]}
        result |= {"expert_shared_feed_forward_length": experts["d_ff_shared"]} if experts.get("d_ff_shared") else {}
        result["leading_dense_block_count"] = sum("feed_forward" in layer for layer in layers) and len(
            next(indices for name, indices in stack["groups"] if "feed_forward" in stack["layer"][name])
        )
    delta = next((layer["delta"] for layer in layers if "delta" in layer), None)
    if delta:
        result |= {"ssm.conv_kernel": delta["d_conv"], "ssm.group_count": delta["n_key_heads"]}
        result |= {"ssm.state_size": delta["d_key"], "ssm.time_step_rank": delta["n_heads"]}
        result |= {"ssm.inner_size": delta["n_heads"] * delta["d_value"], "full_attention_interval": 4}
    for name in ("mamba", "mamba2"):
        table = layers[0].get(name)
        if table:
            inner = table["d_inner"] if name == "mamba" else table["n_heads"] * table["d_head"]
            result |= {"ssm.conv_kernel": table["d_conv"], "ssm.inner_size": inner, "ssm.state_size": table["d_state"]}
            result["ssm.time_step_rank"] = table["dt_rank"] if name == "mamba" else table["n_heads"]
            result |= {"ssm.group_count": table["n_groups"]} if name == "mamba2" else {}
    return {f"{arch}.{key}": value for key, value in result.items()}


# llama.cpp's architecture of presets, and its names of a model's parts and of a block's.
# `TYPES`: by llama.cpp's name, a config of transformers', and the keys of the family's own.
FAMILIES, TOP, NAMES, TYPES = json.loads((DATA / "gguf_names.json").read_text()).values()


BOTH = ("delta.decay_proj", "delta.beta_proj")


def tensors(model: txcalc.Model, fused: bool) -> Shapes:
    """Names and shapes (rows first) as the converter writes them: Q, K and V in one where `fused`, experts stacked, the
    K and V expansion of MLA apart."""
    result: Shapes = {}
    for entry in model.ledger():
        copies = 1
        number = None
        for step in entry.steps:
            if step.name == "layers":
                numbers = list(step.indices or ())
                number = numbers[0]
            elif step.name == "routed":
                copies = step.times
        for weight in entry.leaf.weights():
            if number is None:
                stem = next((n for n in TOP if f"{entry.path}.{weight.name}".startswith(n)), None)
                assert stem, entry.path
                tail = f"{entry.path}.{weight.name}"[len(stem) :]
                result[TOP[stem] + tail] = weight.shape
                continue
            part = entry.path.split(".", 2)[2]
            for i in numbers:
                if copies > 1:
                    kind = part.rpartition(".")[2]
                    result[f"blk.{i}.ffn_{kind}_exps.{weight.name}"] = (copies, *weight.shape)
                elif part == "attention.kv_b":
                    latent = next(layer.latent for layer in model.description.layers if layer.latent)
                    heads, rank = latent.n_heads, latent.kv_rank
                    result[f"blk.{i}.attn_k_b.weight"] = (heads, rank, latent.d_nope)
                    result[f"blk.{i}.attn_v_b.weight"] = (heads, latent.d_v, rank)
                elif fused and part in ("attention.q", "attention.k", "attention.v"):
                    name = f"blk.{i}.attn_qkv.{weight.name}"
                    rows, *rest = weight.shape
                    result[name] = (result.get(name, (0,))[0] + rows, *rest)
                elif part == "attention.g" or (part in BOTH and model.description.model_type == "qwen3_next"):
                    name = f"blk.{i}.{'attn_q' if part == 'attention.g' else 'ssm_ba'}.{weight.name}"
                    rows, *rest = weight.shape
                    result[name] = (result.get(name, (0,))[0] + rows, *rest)
                elif part == "attention.q_norm" and weight.shape == (1536,):
                    result[f"blk.{i}.attn_q_a_norm.weight"] = weight.shape
                elif f"{part}.{weight.name}" in NAMES:
                    name = NAMES[f"{part}.{weight.name}"]
                    result[f"blk.{i}.{name}"] = weight.shape
                else:
                    result[f"blk.{i}.{NAMES[part]}.{weight.name}"] = weight.shape
    return result


def write(
    path: Path,
    arch: str,
    values: dict[str, Any],
    shapes: Shapes,
    dtype: Any = None,
    vocabulary: int = 0,
    wide: Any = gguf.GGMLQuantizationType.F16,
) -> Path:
    """A file by the package's own writer, with a hole for the weights: what `dtype` has no blocks for, in `wide`."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in values.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    if vocabulary:
        writer.add_token_list([f"token{i}" for i in range(vocabulary)])
        writer.add_token_merges([f"a{i} b{i}" for i in range(vocabulary)])
    size = 0
    for name, shape in shapes.items():
        shape = squeeze(shape) or (
            1,
        )  # the package drops sides of 1 no more than llama.cpp does; shapes are kept small
        matrix = len(shape) > 1 and name.endswith(".weight") and name != "position_embd.weight"
        quantised = dtype is not None and matrix and shape[-1] % gguf.GGML_QUANT_SIZES[dtype][0] == 0
        kind = dtype if quantised else wide
        block, bytes_ = gguf.GGML_QUANT_SIZES[kind]
        stored_bytes = prod(shape) // block * bytes_
        writer.add_tensor_info(name, shape, numpy.dtype(numpy.float16), stored_bytes, raw_dtype=kind)
        size += -(-stored_bytes // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(-(-path.stat().st_size // 32) * 32 + size)
    return path


@pytest.mark.parametrize("preset", FAMILIES)
def test_a_file_reads_back_to_the_model_it_was_written_from(preset: str, tmp_path: Path) -> None:
    model, arch = txcalc.load(preset), FAMILIES[preset]
    shapes = tensors(model, fused=arch in ("gpt2", "falcon", "bloom"))
    back = txcalc.load(write(tmp_path / f"{preset}.gguf", arch, keys(arch, model), shapes))
    assert back.name == preset
    works: list[dict[str, Any]] = [{"batch": 2, "tokens": 9}, {"tokens": 2, "past": 6000}]
    for work in works:
        mine, theirs = model.ledger(**work), back.ledger(**work)
        for quantity in QUANTITIES:
            assert theirs.by_kind(quantity) == mine.by_kind(quantity), quantity
        assert theirs.cache_terms == mine.cache_terms
    assert back.checkpoint is not None and back.checkpoint.agrees
    assert back.description.model_type == (model.description.model_type if preset != "mixtral-8x7b" else "llama")


SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL |= {"intermediate_size": 512, "vocab_size": 1000, "tie_word_embeddings": False, "max_position_embeddings": 512}


@pytest.mark.parametrize("arch", TYPES)
def test_a_file_is_read_as_the_config_of_its_type_is(arch: str, tmp_path: Path) -> None:
    config, type_keys = TYPES[arch]
    model = build(*describe(config if "text_config" in config else {**SMALL, **config}))
    values = keys(arch, model) | {f"{arch}.{key}": value for key, value in type_keys.items()}
    back = txcalc.load(write(tmp_path / "x.gguf", arch, values, tensors(model, fused=False)))
    assert back.description.model_type == model.description.model_type
    works: list[dict[str, Any]] = [{"batch": 2, "tokens": 9}, {"tokens": 2, "past": 60}]
    for work in works:
        mine, theirs = model.ledger(**work), back.ledger(**work)
        for quantity in QUANTITIES:
            assert theirs.by_kind(quantity) == mine.by_kind(quantity), quantity


@pytest.mark.parametrize("pattern", [6, [i % 6 != 5 for i in range(62)]])
def test_a_file_says_which_layers_have_the_window(pattern: Any, tmp_path: Path) -> None:
    """Newer files do: of every n-th layer that it has none, or layer by layer."""
    model = txcalc.load("gemma-3-27b")
    values = keys("gemma3", model) | {"gemma3.attention.sliding_window_pattern": pattern}
    back = txcalc.load(write(tmp_path / "x.gguf", "gemma3", values, tensors(model, fused=False)))
    work: dict[str, Any] = {"tokens": 2, "past": 6000}
    assert back.ledger(**work).by_kind("cache") == model.ledger(**work).by_kind("cache")
    values["gemma3.attention.sliding_window_pattern"] = [True] * 62
    every = txcalc.load(write(tmp_path / "y.gguf", "gemma3", values, tensors(model, fused=False)))
    assert every.ledger(**work).total("cache") < model.ledger(**work).total("cache")
    with pytest.raises(InputError, match="sliding_window_pattern is 1, expected a number above 1"):
        txcalc.load(small(tmp_path, change={"llama.attention.sliding_window": 4, KEY: 1}))


KEY = "llama.attention.sliding_window_pattern"


def test_the_header_is_what_the_package_reads(tmp_path: Path) -> None:
    small = txcalc.load("D=64 L=2 h=4 h_kv=2 F=96 V=100")
    path = write(
        tmp_path / "x.gguf", "llama", keys("llama", small) | {"llama.context_length": 128}, tensors(small, False)
    )
    checkpoint = txcalc.load(path).checkpoint
    assert checkpoint is not None
    theirs = gguf.GGUFReader(path)
    assert {t.name: (t.shape, t.dtype, t.bytes) for t in checkpoint.stored.tensors} == {
        t.name: (tuple(reversed(t.shape.tolist())), t.tensor_type.name, t.n_bytes) for t in theirs.tensors
    }


@pytest.mark.parametrize(("dtype", "bits"), [("Q4_K", 4.5), ("Q8_0", 8.5), ("Q6_K", 6.5625), ("MXFP4", 4.25)])
def test_bits_are_those_stored(dtype: str, bits: float, tmp_path: Path) -> None:
    model = txcalc.load("llama-3.1-8b")
    kind = gguf.GGMLQuantizationType[dtype]
    path = write(tmp_path / "x.gguf", "llama", keys("llama", model), tensors(model, False), kind)
    data = typed.data("show", str(path))["checkpoint"]
    norms = 65 * 4096
    assert data["format"] == "gguf"
    assert data["by_dtype"]["F16"] == {"tensors": 65, "elements": norms, "bytes": 2 * norms}
    assert data["by_dtype"][dtype]["bytes"] * 8 == (model.params - norms) * bits
    assert data["check"]["bits_per_weight"] == pytest.approx(bits, abs=0.001)
    assert data["check"]["explained"] == model.params


@pytest.mark.parametrize(("preset", "kind"), [*((name, "Q8_0") for name in FAMILIES), ("deepseek-v3", "Q4_K")])
def test_native_bytes_are_the_files(preset: str, kind: str, tmp_path: Path) -> None:
    """Matrices and routers in a type where its blocks divide their rows (not of MLA's keys, of 128), all else in
    fp32."""
    model, arch = txcalc.load(preset), FAMILIES[preset]
    shapes = tensors(model, fused=arch in ("gpt2", "falcon", "bloom"))
    narrow, wide = gguf.GGMLQuantizationType[kind], gguf.GGMLQuantizationType.F32
    back = txcalc.load(write(tmp_path / "x.gguf", arch, keys(arch, model), shapes, narrow, wide=wide))
    assert back.checkpoint is not None
    form = weights_of(back, "native")
    assert sum(form.bytes_of(entry) for entry in back.entries) == back.checkpoint.stored.size.bytes


def test_a_prediction_layer_in_a_file_is_no_layer_of_the_model(tmp_path: Path) -> None:
    """GLM-4.5's files count it among the blocks, and hold its tensors."""
    model = txcalc.load("glm-4.5-air")
    shapes, d = tensors(model, fused=False), 4096
    extra = {name.replace("blk.45.", "blk.46."): shape for name, shape in shapes.items() if name.startswith("blk.45.")}
    extra |= {"blk.46.nextn.eh_proj.weight": (d, 2 * d), "blk.46.nextn.enorm.weight": (d,)}
    values = keys("glm4moe", model) | {"glm4moe.block_count": 47, "glm4moe.nextn_predict_layers": 1}
    back = txcalc.load(write(tmp_path / "x.gguf", "glm4moe", values, shapes | extra))
    assert back.params == model.params and back.checkpoint is not None and back.checkpoint.beyond
    with pytest.raises(InputError, match="parameters of the description are not in it"):
        txcalc.load(write(tmp_path / "y.gguf", "glm4moe", values | {"glm4moe.nextn_predict_layers": 0}, shapes))


def test_a_split_file_is_one_model_whichever_part_is_named(tmp_path: Path) -> None:
    model = txcalc.load("llama-3.1-8b")
    shapes = list(tensors(model, False).items())
    for i in range(3):
        extra = {"split.no": i, "split.count": 3}
        write(
            tmp_path / f"big-{i + 1:05}-of-00003.gguf",
            "llama",
            (keys("llama", model) if i == 0 else {}) | extra,
            dict(shapes[i::3]),
        )
    back = txcalc.load(tmp_path / "big-00002-of-00003.gguf")
    assert (back.name, back.params) == ("big", model.params)
    assert back.checkpoint is not None and back.checkpoint.stored.files == 3
    (tmp_path / "big-00003-of-00003.gguf").unlink()
    with pytest.raises(InputError, match=r"1 of its 3 parts are missing, big-00003-of-00003\.gguf first"):
        txcalc.load(tmp_path / "big-00001-of-00003.gguf")


# Refusals.


def small(place: Path, arch: str = "llama", change: dict[str, Any] | None = None, extra: Shapes | None = None) -> Path:
    model = txcalc.load("D=64 L=2 h=4 h_kv=2 F=96 V=100")
    values = {**keys(arch, model), f"{arch}.context_length": 128, **(change or {})}
    values = {key: value for key, value in values.items() if value is not None}
    return write(place / "x.gguf", arch, values, tensors(model, False) | (extra or {}))


def test_an_architecture_that_is_not_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no supported GGUF architecture named 'rwkv6'"):
        txcalc.load(small(tmp_path, "rwkv6"))


def test_tensors_that_the_keys_do_not_explain_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"blk\.0\.attn_gate\.weight \[64, 64\] is not explained"):
        txcalc.load(small(tmp_path, extra={"blk.0.attn_gate.weight": (64, 64)}))
    with pytest.raises(InputError, match=r"layers\.\*\.feed_forward\.gate\.weight .* is missing"):
        txcalc.load(small(tmp_path, change={"llama.feed_forward_length": 97}))
    with pytest.raises(InputError, match="feed_forward_length is 0, expected"):
        txcalc.load(small(tmp_path, change={"llama.feed_forward_length": 0}))
    experts = {"qwen3moe.expert_count": 4, "qwen3moe.expert_used_count": 2, "qwen3moe.feed_forward_length": None}
    with pytest.raises(InputError, match=r"experts\.d_ff is 0, expected"):
        txcalc.load(small(tmp_path, "qwen3moe", change=experts))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"llama.block_count": None}, r"llama\.block_count is missing"),
        ({"llama.block_count": 0}, r"llama\.block_count is 0"),
        ({"llama.attention.head_count_kv": [2, 1]}, "the same for all layers"),
        ({"llama.interleave_moe_layer_step": 2}, "it may change a size"),
        ({"llama.attention.sliding_window": 64}, "its layers are not known"),
        ({"llama.attention.value_length": 8}, r"expected key_length = 16"),
    ],
)
def test_keys_are_read_or_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        txcalc.load(small(tmp_path, change=change))


def test_the_same_value_for_every_layer_is_one_value(tmp_path: Path) -> None:
    path = small(tmp_path, change={"llama.attention.head_count_kv": [2, 2]})
    assert txcalc.load(path).params == txcalc.load("D=64 L=2 h=4 h_kv=2 F=96 V=100").params


def test_without_the_extra_the_message_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small(tmp_path)
    for name in ("gguf", "gguf.constants"):
        monkeypatch.setitem(sys.modules, name, None)
    result = typed("show", str(path))
    assert result.exit_code == 3
    assert "txcalc[gguf]" in result.stderr


# Hostile headers.


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def head(tensors: int = 0, keys: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, keys)


def entry(name: bytes = b"t", shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", kind, offset)


ARRAY, STRING, U32 = struct.pack("<I", 9), struct.pack("<I", 8), struct.pack("<I", 4)
HOSTILE = {
    "empty": (b"", "cannot be read|no GGUF"),
    "magic": (head(magic=b"GGML"), "not a GGUF file"),
    "version": (head(version=1), "version 1"),
    "big-endian": (head(version=3 << 24), "big-endian"),
    "10^9 tensors": (head(tensors=10**9), "1,000,000,000 tensors"),
    "2^64 keys": (head(keys=2**64 - 1), "expected at most"),
    "truncated": (head(keys=1), "truncated"),
    "long name": (head(keys=1) + struct.pack("<Q", 2**63) + b"x", "truncated"),
    "unprintable": (head(keys=1) + text(b"\x1b[2J") + U32 + b"\0" * 4, "not a name"),
    "not UTF-8": (head(keys=1) + text(b"\xff") + U32 + b"\0" * 4, "not UTF-8"),
    "unknown value": (head(keys=1) + text(b"k") + struct.pack("<I", 99), "type 99"),
    "huge array": (head(keys=1) + text(b"k") + ARRAY + U32 + struct.pack("<Q", 2**60), "truncated"),
    "huge texts": (head(keys=1) + text(b"k") + ARRAY + STRING + struct.pack("<Q", 2**60), "truncated"),
    "arrays of arrays": (head(keys=1) + text(b"k") + ARRAY + ARRAY + struct.pack("<Q", 1), "array of type 9"),
    "key twice": (head(keys=2) + 2 * (text(b"k") + U32 + b"\0" * 4), "twice"),
    "alignment": (head(keys=1) + text(b"general.alignment") + U32 + b"\3\0\0\0", "power of two"),
    "tensor twice": (head(tensors=2) + entry() + entry(offset=128), "twice"),
    "dimensions": (head(tensors=1) + text(b"t") + struct.pack("<I", 10**9), "dimensions"),
    "overflow": (head(tensors=1) + entry(shape=(2**40, 2**40)), "which F32 cannot store"),
    "partial block": (head(tensors=1) + entry(shape=(33,), kind=2), "which Q4_0 cannot store"),
    "unknown type": (head(tensors=1) + entry(kind=999), "type numbered 999"),
    "behind the file": (head(tensors=1) + entry(shape=(2**30,)), "ends after the file"),
    "overlap": (head(tensors=2) + entry() + entry(b"u", offset=32) + bytes(400), "overlaps"),
    "not aligned": (head(tensors=1) + entry(offset=1) + bytes(400), "not aligned"),
    "no architecture": (head(), "general.architecture"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_header_is_one_clear_error(what: str, tmp_path: Path) -> None:
    data, message = HOSTILE[what]
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        txcalc.load(path)
    assert len(str(caught.value)) < 500


@pytest.mark.slow
def test_time_and_memory_are_bounded_whatever_a_file_claims(tmp_path: Path) -> None:
    """A vocabulary of 2^33 empty texts in a file with room for them."""
    path = tmp_path / "x.gguf"
    path.write_bytes(head(keys=1) + text(b"k") + ARRAY + STRING + struct.pack("<Q", 2**22))
    with path.open("r+b") as file:
        file.truncate(2**36)
    code = "import sys, txcalc\ntry: txcalc.load(sys.argv[1])\nexcept txcalc.InputError as error: print(error)"
    command = [sys.executable, "-c", code, str(path)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
    assert "general.architecture" in out  # the walk went through four million of them
    assert MAX_TENSORS == 262_144


@pytest.mark.slow
def test_a_large_vocabulary_costs_little(tmp_path: Path) -> None:
    """A list of 128,256 texts is walked over: ten times the reading of as many lengths at most."""
    from time import process_time

    def spent(work: Callable[[], object]) -> float:
        seconds = []
        for _ in range(3):
            start = process_time()
            work()
            seconds.append(process_time() - start)
        return min(seconds)

    model = txcalc.load("D=64 L=2 h=4 h_kv=2 F=96 V=100")
    values = keys("llama", model) | {"llama.context_length": 128}
    path = write(tmp_path / "x.gguf", "llama", values, tensors(model, False), vocabulary=128_256)
    assert txcalc.load(path).params == model.params
    text = b"".join(n.to_bytes(8, "little") for n in range(128_256))
    lengths = spent(lambda: [struct.unpack_from("<Q", text, 8 * i) for i in range(128_256)])
    assert spent(lambda: txcalc.load(path)) < 10 * lengths


@given(st.binary(max_size=120))
def test_any_bytes_are_refused_without_a_fault(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x.gguf"
    path.write_bytes(b"GGUF\3\0\0\0" + data)
    with pytest.raises(InputError):
        txcalc.load(path)


@given(at=st.integers(0, 3000), patch=st.binary(min_size=1, max_size=8))
@example(at=1428, patch=b"\0")  # a tensor of no elements
def test_a_damaged_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, at: int, patch: bytes) -> None:
    place = tmp_path_factory.getbasetemp() / "whole"
    path = place / "x.gguf"
    if not path.exists():
        place.mkdir(exist_ok=True)
        small(place)
    data = bytearray(path.read_bytes()[:4096])
    data[at : at + len(patch)] = patch
    damaged = place / "damaged.gguf"
    damaged.write_bytes(data)
    with damaged.open("r+b") as file:
        file.truncate(path.stat().st_size)
    try:
        model = txcalc.load(damaged)
    except InputError:
        return
    assert model.checkpoint is not None and model.checkpoint.agrees
