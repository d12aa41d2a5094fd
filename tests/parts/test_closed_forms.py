"""Textbook closed forms, written out again from their sources, against the sums over the parts.

None of these formulas is used by txcalc: they are witnesses, each with its citation. Letters as in `symbols`.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

import txcalc
from txcalc import Ledger, Model
from txcalc.parts.linear import Linear
from txcalc.parts.part import Workload
from txcalc.parts.spans import Causal, Cross, Full, Span, SparseBlocks, Window
from txcalc.planning.memory import cache_bytes
from txcalc.sources import build


def decoder(*, L: int = 2, D: int = 24, h: int = 3, F: int = 96, V: int | None = None, **tables: Any) -> Model:
    """A pre-norm decoder without biases, rotary."""
    gated = tables.pop("gated", False)
    raw = {"d_model": D, "n_layers": L, "attention": {"n_heads": h}, "feed_forward": {"d_ff": F, "gated": gated}}
    return build(raw | ({"vocab_size": V} if V else {}) | tables, "a decoder")


def matrices(ledger: Ledger) -> Ledger:
    """The linear layers alone."""
    return ledger.where(lambda entry: type(entry.leaf) is Linear)


# Rules of thumb, where they are exact.


@pytest.mark.parametrize(("L", "D"), [(1, 64), (12, 768), (96, 12_288)])
def test_the_classic_block_has_12_d2_weights_and_24_d2_flops_a_token(L: int, D: int) -> None:
    """Kaplan et al. 2020 (arXiv 2001.08361), section 2.1: N ≈ 12·n_layer·d_model² where d_ff = 4·d_model."""
    ledger = matrices(decoder(L=L, D=D, h=4, F=4 * D).ledger())
    assert ledger.by_kind("params") == {"attention": 4 * D * D * L, "feed_forward": 8 * D * D * L}
    assert ledger.total("params") == 12 * L * D * D
    assert ledger.total("flops") == 24 * L * D * D


def test_kaplan_counts_any_widths() -> None:
    """Kaplan et al. 2020, table 1: N = 2·d_model·n_layer·(2·d_attn + d_ff); C = 2N and 2·n_layer·n_ctx·d_attn, which
    comes twice: for the scores and for the sum of values."""
    L, D, d_attn, F, T = 3, 40, 6 * 8, 100, 17
    model = decoder(L=L, D=D, F=F, attention={"n_heads": 6, "d_head": 8})
    N = 2 * D * L * (2 * d_attn + F)
    assert matrices(model.ledger()).total("params") == N
    assert model.ledger(tokens=T).total("flops") == T * (2 * N + 2 * (2 * L * T * d_attn))


def test_scaling_book() -> None:
    """Austin et al. 2025, How to Scale Your Model, chapter 4: an MLP of three matrices trains with 18·BTDF, attention
    with 12·BTD·(N + K)·H and 12·BT²·NH; the forward is a third."""
    B, T, D, F, N, K, H = 3, 32, 48, 128, 6, 2, 10
    attention = {"n_heads": N, "n_kv_heads": K, "d_head": H}
    model = decoder(L=1, D=D, F=F, gated=True, attention=attention)
    flops = model.ledger(batch=B, tokens=T).by_kind("flops")
    assert 3 * flops["feed_forward"] == 18 * B * T * D * F
    assert 3 * flops["attention"] == 12 * B * T * D * (N + K) * H
    assert 3 * flops["attention_core"] == 12 * B * T * T * N * H
    params = model.ledger().by_kind("params")
    assert params == {"attention": 2 * D * (N + K) * H, "feed_forward": 3 * D * F, "norm": 3 * D}


def test_megatron() -> None:
    """Narayanan et al. 2021 (arXiv 2104.04473), equation 3 without recomputation (72, not 96, and 12, not 16): a step
    of training is 72·B·s·l·h²·(1 + s/(6h) + V/(12·l·h))."""
    B, s, l, h, V = 5, 36, 4, 24, 1200  # noqa: E741
    forward = decoder(L=l, D=h, F=4 * h, V=V).ledger(batch=B, tokens=s).total("flops")
    assert 3 * forward == 72 * B * s * l * h * h * (1 + Fraction(s, 6 * h) + Fraction(V, 12 * l * h))


def test_palm() -> None:
    """Chowdhery et al. 2022 (arXiv 2204.02311), appendix B: 6N + 12·L·H·Q·T FLOPs per token of training, N here the
    weights that multiply every token."""
    L, H, Q, D, T, V = 4, 3, 8, 24, 50, 100
    model = decoder(L=L, D=D, h=H, F=96, V=V, gated=True, head={"tied": True})
    N = matrices(model.ledger()).total("params") + V * D
    assert 3 * model.ledger(tokens=T).total("flops") == T * (6 * N + 12 * L * H * Q * T)


def test_chinchilla() -> None:
    """Hoffmann et al. 2022 (arXiv 2203.15556), appendix F, without the embeddings and the softmax."""
    s, V, d, k, h, ffw, layers = 40, 300, 24, 8, 3, 96, 4
    attention = 2 * 3 * s * d * (k * h) + 2 * s * s * (k * h) + 2 * s * s * (k * h) + 2 * s * (k * h) * d
    dense = 2 * s * (d * ffw + ffw * d)
    model = decoder(L=layers, D=d, F=ffw, V=V)
    assert model.ledger(tokens=s).total("flops") == layers * (attention + dense) + 2 * s * d * V


def test_the_transformer_of_2017_as_pytorch_builds_it() -> None:
    """torch.nn.Transformer's defaults have 44,140,544 parameters, and FlopCounterMode counts 54,760,833,024 FLOPs with
    512 positions on both sides: projections of the encoder's output to K and V, T×S in the cross-attention."""
    model = build(
        {
            "kind": "encoder-decoder",
            "d_model": 512,
            "n_layers": 6,
            "attention": {"n_heads": 8, "bias": True},
            "feed_forward": {"d_ff": 2048, "activation": "relu", "bias": True},
            "norm": {"form": "layer", "place": "post", "final": True},
            "positions": {"form": "none"},
        },
        "nn.Transformer",
    )
    assert model.params == 44_140_544
    assert model.ledger(tokens=512).total("flops") == 54_760_833_024
    assert model.ledger(tokens=512, source=100).total("flops") == 6 * (
        100 * 2 * 12 * 512**2 + 4 * 100 * 100 * 512  # encoder
        + 512 * 2 * (4 + 2 + 8) * 512**2 + 4 * 512 * 512 * 512  # decoder, with q and o of the cross-attention
        + 100 * 2 * 2 * 512**2 + 4 * 512 * 100 * 512  # its k and v, and its core
    )  # fmt: skip


# Masks and caches, pair by pair.

MASKS: dict[str, tuple[Span, Callable[[int, int], bool]]] = {
    "causal": (Causal(), lambda i, j: j <= i),
    "window": (Window(window=4), lambda i, j: 0 <= i - j < 4),
    "window of one": (Window(window=1), lambda i, j: i == j),
    "wide window": (Window(window=99), lambda i, j: j <= i),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("past", [0, 1, 2, 3, 4, 5, 11])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 9])
def test_visible_pairs_one_by_one(name: str, past: int, tokens: int) -> None:
    span, sees = MASKS[name]
    queries = range(past, past + tokens)
    seen = {(i, j) for i in queries for j in range(past + tokens) if sees(i, j)}
    work = Workload(1, tokens, past, tokens)
    assert span.visible(work) == len(seen)
    first = min(j for _, j in seen)
    assert span.keys(work) == past + tokens - first  # the dense rectangle spans every key that some query sees
    elements = span.cache(work, 2).elements
    kept = {j for j in range(past + tokens) if sees(past + tokens - 1, j)}
    assert elements == 2 * len(kept)


@pytest.mark.parametrize("tokens", [1, 27, 28, 30, 31, 44])
def test_visible_pairs_of_blocks_one_by_one(tokens: int) -> None:
    """BigBird's blocks of 3, each with 2 at random: of those that it does not see, as the first and last see all."""
    number = -(-tokens // 3)
    inner = [len({0, i - 1, i, i + 1, number - 1}) + 2 for i in range(1, number - 1)]
    seen = 9 * (2 * number + sum(inner)) if tokens > (5 + 2 * 2) * 3 else tokens**2
    assert SparseBlocks(block=3, random=2).visible(Workload(1, tokens, 0, tokens)) == seen


def test_encoders_and_cross_attention_see_everything() -> None:
    work = Workload(2, 5, 0, 7)
    assert (Full().visible(work), Full().keys(work), Full().cache(work, 3)) == (25, 5, (0, 0, 0))
    assert (Cross().visible(work), Cross().keys(work), Cross().cache(work, 3)) == (35, 7, (0, 21, 21))


# Backward and traffic.


def test_a_decode_step_reads_the_weights_and_the_cache_once() -> None:
    """Pope et al. 2022 (arXiv 2211.05102), section 2: the memory time of a step is that of weights and cache."""
    model = txcalc.load("llama-3.1-8b")
    ledger = model.ledger(past=8191)
    moved = [entry.traffic for entry in ledger]
    assert sum(traffic.weights for traffic in moved) == model.params - 128_256 * 4096 + 4096  # one row of the table
    assert sum(traffic.cache for traffic in moved) == ledger.total("cache") == 8192 * 65_536
    activations = sum(traffic.activations for traffic in moved)
    assert ledger.total("bytes") == 2 * (8_030_261_248 - 128_255 * 4096 + 8192 * 65_536 + activations)
    assert model.ledger(past=8191, kv_dtype="fp8").total("bytes") == ledger.total("bytes") - 8192 * 65_536


# The numbers that everybody knows, or should.

LENGTHS = [(1, 1), (1, 2048), (3, 100), (7, 131_072)]


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("gpt2", lambda B, T: 1536 * B * T * (24 * T + 160_849)),
        ("llama-3.1-8b", lambda B, T: 524_288 * B * T * (T + 28_628)),
        ("deepseek-v3", lambda B, T: 16_384 * B * T * (305 * T + 4_470_776)),
    ],
    ids=["gpt2", "llama-3.1-8b", "deepseek-v3"],
)
@pytest.mark.parametrize(("B", "T"), LENGTHS)
def test_forward_flops_as_symbolic_traces_give_them(
    name: str, flops: Callable[[int, int], int], B: int, T: int
) -> None:
    assert txcalc.load(name).ledger(batch=B, tokens=T).total("flops") == flops(B, T)


MIXTRAL = "D=4096 L=32 h=32 h_kv=8 F=14336 V=32000 E=8 k=2"


@pytest.mark.parametrize(
    ("source", "params"),
    [
        ("D=512 h=8 F=1376 L=1", 3_163_136),
        ("D=256 F=688 L=6 final", 4_746_496),
        ("L=12 D=768 F=2048 V=50257 tied", 123_551_232),
        ("D=4096 L=32 h=32 h_kv=8 F=14336 V=128256", 8_030_261_248),
        (MIXTRAL, 46_702_792_704),
        ("llama-3.1-8b", 8_030_261_248),
        ("gpt2", 124_439_808),
        ("deepseek-v3", 671_026_404_352),
        ("gemma-3-27b", 27_009_346_304),
        ("jamba-v0.1", 51_570_323_328),
    ],
)
def test_parameters(source: str, params: int) -> None:
    assert txcalc.load(source).params == params


@pytest.mark.parametrize(
    ("source", "active"),
    [("deepseek-v3", 37_552_282_624), (MIXTRAL, 46_702_792_704 - 6 * 32 * 3 * 4096 * 14_336), ("gpt2", 124_439_808)],
)
def test_active_parameters(source: str, active: int) -> None:
    assert txcalc.load(source).active == active


def test_flops_of_a_prompt() -> None:
    llama = txcalc.load("llama-3.1-8b").ledger(tokens=2048)
    assert llama.total("flops") == 32_938_104_193_024
    assert llama.total("flops_masked") == 31_839_129_436_160
    mixtral = txcalc.load(MIXTRAL).ledger(tokens=2048)
    assert mixtral.total("flops") == 54_417_235_640_320
    assert mixtral.total("flops_masked") == 53_318_260_883_456
    assert txcalc.load("deepseek-v3").ledger(tokens=2048).total("flops_masked") == 160_499_186_532_352
    assert txcalc.load("gpt2").ledger(tokens=1024).total("flops_masked") == 272_339_828_736


def test_cache_bytes_a_token() -> None:
    for name, width in (("llama-3.1-8b", 131_072), ("deepseek-v3", 70_272), ("gpt2", 36_864)):
        model = txcalc.load(name)
        assert cache_bytes(model.ledger(tokens=1)) == width
        assert 2 * model.ledger(tokens=9).cache_terms.growth == width


def test_palm_540b() -> None:
    """Chowdhery et al. 2022, table 1 prints 540.35 B: its matrices; the norms would make it 540.36."""
    kinds = txcalc.load("palm-540b").ledger().by_kind("params")
    assert round((sum(kinds.values()) - kinds["norm"]) / 1e9, 2) == 540.35
