"""Every preset against the count it must give, and, where there is one, against an independent instantiation.

`data/oracle.json` holds what transformers' own classes gave for the same sizes: parameters by group, FLOPs at up to
three points, cache elements. Everything is compared exactly; where txcalc counts on purpose what transformers does not
(a window keeps W tokens, transformers W − 1), the difference is a rule written out here, never a tolerance.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from paths import DATA

import txcalc
from txcalc.ledger import Entry, Ledger
from txcalc.parts.recurrent import SelectiveScan
from txcalc.parts.spans import Windowed
from txcalc.parts.taps import Convolution
from txcalc.sources import presets

ORACLE: dict[str, dict[str, Any]] = json.loads((DATA / "oracle.json").read_text())["models"]

REQUIRED = """
transformer-base transformer-big gpt1 gpt2 gpt2-medium gpt2-large gpt2-xl
gpt3-125m gpt3-350m gpt3-760m gpt3-1.3b gpt3-2.7b gpt3-6.7b gpt3-13b gpt3-175b
bert-base bert-large t5-small t5-base t5-large t5-3b t5-11b vit-b vit-l vit-h whisper-large-v3
palm-8b palm-62b palm-540b chinchilla-70b llama-7b llama-65b llama-2-7b llama-2-13b llama-2-70b
llama-3.1-8b llama-3.1-70b llama-3.1-405b mistral-7b mixtral-8x7b mixtral-8x22b
gemma-2b gemma-7b gemma-2-9b gemma-2-27b gemma-3-27b falcon-7b falcon-40b
qwen2.5-7b qwen2.5-72b qwen3-8b qwen3-30b-a3b qwen3-235b-a22b deepseek-v2 deepseek-v3 kimi-k2
gpt-oss-20b gpt-oss-120b mamba-130m mamba-2.8b mamba2-2.7b jamba-v0.1
qwen3-next-80b-a3b
"""

# The oracle's groups in our words. `mixer` is compared module by module below.
KIND = {
    "embeddings": "embedding",
    "attention": "attention",
    "attention_proj": "attention",
    "attention_core": "attention_core",
    "mlp": "feed_forward",
    "experts": "experts",
    "shared_expert": "shared_experts",
    "router": "router",
    "mixer": "recurrent",
    "norms": "norm",
    "head": "head",
    "other": "other",
}

every_preset = pytest.mark.parametrize("name", presets.names())
POINTS = [
    pytest.param(name, point, id=f"{name}-{point}")
    for name, truth in ORACLE.items()
    for point, measured in truth["flops"].items()
    if measured
]


def in_our_words(groups: dict[str, int]) -> dict[str, int]:
    assert len({KIND[group] for group in groups}) == len(groups)
    return {KIND[group]: value for group, value in groups.items()}


def at(name: str, point: str) -> tuple[Ledger, int, int]:
    """The ledger at a point of the oracle, `2x512`, with its batch and tokens."""
    batch, tokens = map(int, point.split("x"))
    return txcalc.load(name).ledger(batch, tokens), batch, tokens


def test_no_required_preset_is_missing() -> None:
    assert not set(REQUIRED.split()) - set(presets.names())
    assert not set(ORACLE) - set(presets.names())


@every_preset
def test_it_says_where_it_comes_from(name: str) -> None:
    model = txcalc.load(name)
    text = (presets.folder() / "models" / f"{name}.toml").read_text()
    assert model.origin == name == name.strip().lower()
    assert text.startswith("# ") and all(len(line) <= 120 for line in text.splitlines())
    assert all(getattr(model.description, key) for key in ("family", "kind", "source", "published", "params"))
    assert not model.assumptions and not model.notes


@every_preset
def test_it_gives_its_count(name: str) -> None:
    model = txcalc.load(name)
    assert model.params == model.description.params
    assert model.active == (model.description.active or model.description.params)
    routed = any(entry.kind == "experts" for entry in model.ledger())
    assert (model.description.active is not None) == routed


@pytest.mark.parametrize("name", ORACLE)
def test_parameters_by_group(name: str) -> None:
    ledger, truth = txcalc.load(name).ledger(), ORACLE[name]
    assert ledger.by_kind("params") == in_our_words(truth["params_by_group"])
    assert ledger.total("params") == truth["params_total"]
    assert ledger.total("active") == truth["params_active"]


@pytest.mark.parametrize(("name", "point"), POINTS)
def test_flops_by_group(name: str, point: str) -> None:
    ledger, *_ = at(name, point)
    truth = ORACLE[name]["flops"][point]
    ours, theirs = ledger.by_kind("flops"), in_our_words(truth["by_group"])
    if "recurrent" in ours:  # the scan's FLOPs are those of transformers' slow path: see below
        del ours["recurrent"], theirs["recurrent"]
    else:
        assert ledger.total("flops") == truth["total"]
    assert ours == theirs


@pytest.mark.parametrize(("name", "point"), [p for p in POINTS if "mixer" in ORACLE[p.values[0]]["params_by_group"]])  # type: ignore[index]
def test_flops_of_recurrent_mixers_by_module(name: str, point: str) -> None:
    ledger, batch, tokens = at(name, point)
    mixer = dict(ORACLE[name]["flops"][point]["mixer"])
    mixer_flops = mixer.pop("own")

    def flops(leaf: str, among: Ledger = ledger) -> int:
        return among.where(lambda entry: entry.kind == "recurrent" and entry.steps[-1].name == leaf).total("flops")

    assert set(mixer) >= {"in_proj", "out_proj"}
    assert mixer == {module: flops(module) for module in mixer}
    # Mamba-1's slow path multiplies dt_proj's weight itself, convolves K − 1 padded positions that it then drops, and
    # reads the states out by a matrix product. Mamba-2's works in chunks: only its projections can be compared.
    scans = [(entry.leaf, entry.runs) for entry in ledger if isinstance(entry.leaf, SelectiveScan)]
    if scans:
        (taps,) = {entry.leaf.taps for entry in ledger if isinstance(entry.leaf, Convolution)}
        padded = txcalc.load(name).ledger(batch, tokens + taps - 1)
        read_out = sum(2 * batch * tokens * scan.channels * scan.states * runs for scan, runs in scans)
        assert mixer_flops == flops("dt_proj") + flops("conv", padded) + read_out


def held_by_transformers(entry: Entry, tokens: int) -> int:
    """The elements transformers holds where we count `entry.cache`."""
    span = getattr(entry.leaf, "span", None)
    if isinstance(span, Windowed) and tokens >= span.window:  # it keeps W − 1 of the W tokens
        return entry.cache // span.window * (span.window - 1)
    return entry.cache


# Its Falcon repeats K and V for every query head before it caches them.
REPEATED = {"falcon-40b": 128 // 8}
WITHOUT_CACHE = {"albert-base-v2", "bert-base", "vit-l", "gpt1"}  # encoders; and transformers' GPT-1 has no cache


@pytest.mark.parametrize("name", ORACLE)
def test_cache_elements(name: str) -> None:
    truth, model = ORACLE[name]["kv"], txcalc.load(name)
    assert (truth is None) == (name in WITHOUT_CACHE)
    if truth is None:
        assert name == "gpt1" or model.ledger(tokens=128).total("cache") == 0
        return
    times = REPEATED.get(name, 1)
    for length, elements in truth["total_elements_at"].items():
        tokens = int(length)
        ledger = model.ledger(tokens=tokens)
        assert sum(held_by_transformers(entry, tokens) for entry in ledger) * times == elements
    growth, constant, _ = model.ledger(tokens=1).cache_terms
    windowed = truth["elements_per_token_past_the_window"] is not None
    if windowed:
        assert growth == truth["elements_per_token_past_the_window"]
        full = sum(e.cache_terms.constant // e.leaf.span.window for e in model.ledger() if e.cache_terms.constant)  # type: ignore[attr-defined]
        assert growth + full == truth["elements_per_token"]
    elif model.kind == "encoder-decoder":  # its source grew with its tokens
        assert growth + constant == truth["elements_per_token"]
    else:
        assert growth * times == truth["elements_per_token"]
        assert constant == truth["constant_elements"]


def test_a_forward_pass_of_two_by_hand() -> None:
    """The counts of Mixtral 8x7B and Llama-3.1-8B at 2,048 tokens, from their sizes alone."""
    tokens, width, layers = 2048, 4096, 32
    attention = 2 * tokens * width * 128 * (2 * 32 + 2 * 8) + 4 * tokens * tokens * 32 * 128
    swiglu = 2 * tokens * 3 * width * 14_336
    mixtral = layers * (attention + 2 * swiglu + 2 * tokens * width * 8) + 2 * tokens * width * 32_000
    llama = layers * (attention + swiglu) + 2 * tokens * width * 128_256
    assert txcalc.load("mixtral-8x7b").ledger(tokens=tokens).total("flops") == mixtral == 54_417_235_640_320
    assert txcalc.load("llama-3.1-8b").ledger(tokens=tokens).total("flops") == llama == 32_938_104_193_024


def test_chinchilla_as_its_comment_derives_it() -> None:
    """13·L·D² + V·D and norms; a token's FLOPs are two a parameter outside the norms, and 6·L·D a key."""
    layers, width, rows, tokens = 80, 8192, 32_000, 2048
    model = txcalc.load("chinchilla-70b")
    matrices = 13 * layers * width**2 + rows * width
    assert model.params == matrices + (2 * layers + 1) * width
    assert model.ledger(tokens=tokens).total("flops") == 2 * tokens * matrices + 6 * layers * width * tokens**2
    assert model.ledger().at("layers.0.attention.position").total("params") == width**2


def test_encoder_decoders_of_2017() -> None:
    """Parameters of the base and big Transformer: one matrix of tokens, no bias in attention, two in each FFN."""
    for name, width, inner in (("transformer-base", 512, 2048), ("transformer-big", 1024, 4096)):
        ffn, norm = 2 * width * inner + inner + width, 2 * width
        encoder, decoder = 4 * width**2 + ffn + 2 * norm, 8 * width**2 + ffn + 3 * norm
        assert txcalc.load(name).params == 6 * (encoder + decoder) + 37_000 * width


def test_published_figures_that_another_size_explains() -> None:
    """What `published` says of them, from the counts: GPT-2's paper has GPT-1's vocabulary, ViT-L patches of 32."""
    rows = txcalc.load("gpt1").raw["vocab_size"]
    paper = [txcalc.load(f"gpt2{size}", V=rows).params for size in ("", "-medium", "-large", "-xl")]
    assert rows == 40_478 and [round(params / 1e6) for params in paper] == [117, 345, 762, 1542]
    assert round(txcalc.load("vit-l", {"vision.patch": 32}).params / 1e6) == 307
    assert txcalc.load("t5-large", tied=False).params == 770_567_168
    assert math.ceil(txcalc.load("mistral-7b").params / 1e8) == 73
    for name, billions in (("gemma-4-26b-a4b", 26), ("qwen3.5-397b-a17b", 397)):
        model = txcalc.load(name)
        assert model.total_params and round(model.total_params / 1e9) == billions != round(model.params / 1e9)
    kimi = txcalc.load("kimi-k2")
    assert round((kimi.params + kimi.ledger().at("layers.60").total("params")) / 1e9) == 1043
    for name, layers, billions in (("glm-4.5", 1, 355), ("glm-4.5-air", 0, 106), ("qwen3-next-80b-a3b", 0, 79)):
        model = txcalc.load(name)
        kinds = model.ledger().by_kind("params")
        left = model.params + layers * model.predictors - kinds["embedding"] - kinds["head"]
        assert round(left / 1e9) == billions != round(model.params / 1e9)
    albert = txcalc.load("albert-base-v2")
    head = albert.ledger().at("head").total("params")
    assert head == 128_688 and round((albert.params - head + 768 * 768 + 768) / 1e6, 1) == 11.7


@pytest.mark.parametrize(
    ("name", "without", "billions"),
    [
        ("glm-4.5", ("embedding", "head"), 32),
        ("glm-4.6", ("embedding", "head"), 32),
        ("glm-4.5-air", ("embedding", "head"), 12),
        ("minimax-m2", ("embedding", "head"), 10),
        ("kimi-k2", ("embedding",), 32),
        ("deepseek-v3", ("embedding",), 37),
        ("deepseek-r1", ("embedding",), 37),
        ("deepseek-v3.2", ("embedding",), 37),
        ("kimi-k2.5", ("embedding",), 32),
    ],
)
def test_published_active_parameters_leave_tables_out(name: str, without: tuple[str, ...], billions: int) -> None:
    ledger = txcalc.load(name).ledger()
    left = ledger.total("active") - sum(ledger.by_kind("active")[kind] for kind in without)
    assert round(left / 1e9) == billions != round(ledger.total("active") / 1e9)
    words = "without embedding and head" if len(without) > 1 else "without the embedding"
    published = txcalc.load(name).description.published
    assert f"{billions} B activat" in published and words in published.partition(f"{billions} B activat")[2]
