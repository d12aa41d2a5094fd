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
from txcalc.ledger import walk
from txcalc.parts.feedforward import FeedForward
from txcalc.parts.linear import Linear
from txcalc.parts.part import Workload
from txcalc.parts.spans import Causal, CentredWindow, Chunks, Cross, Full, Span, SparseBlocks, Window
from txcalc.planning.memory import cache_bytes, weights_bytes
from txcalc.planning.training import training_flops
from txcalc.sources import build


def decoder(*, L: int = 2, D: int = 24, h: int = 3, F: int = 96, V: int | None = None, **more: Any) -> Model:
    """A pre-norm decoder without biases, rotary."""
    gated = more.pop("gated", False)
    raw = {"d_model": D, "n_layers": L, "attention": {"n_heads": h}, "feed_forward": {"d_ff": F, "gated": gated}}
    return build(raw | ({"vocab_size": V} if V else {}) | more, "a decoder")


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


def test_feed_forward_with_biases() -> None:
    """Vaswani et al. 2017, equation 2: max(0, x·W1 + b1)·W2 + b2."""
    work = Workload(2, 5, 0, 5)
    ledger = walk(FeedForward(d_model=8, d_ff=32, gated=False, activation="relu", bias=True), work)
    assert ledger.total("params") == 8 * 32 + 32 + 32 * 8 + 8
    assert ledger.total("flops") == 2 * 10 * (8 * 32 + 32 * 8)
    assert ledger.total("flops_other") == 10 * (32 + 32 + 8)  # two biases, and a comparison a hidden element


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


def test_mamba_projects_with_6_d2_weights() -> None:
    """Gu and Dao 2023 (arXiv 2312.00752), section 3.4: 3·E·D² with E = 2 in the outer projections."""
    D, C, N, K, R = 32, 64, 16, 4, 2
    model = build({"d_model": D, "n_layers": 1, "mamba": {}, "norm": {"final": False}}, "a Mamba layer")
    ledger = model.ledger(tokens=9)
    outer = matrices(ledger).where(lambda entry: entry.path.endswith(("in_proj", "out_proj")))
    assert outer.total("params") == 3 * 2 * D * D
    assert ledger.total("params") == 6 * D * D + C * K + C + C * (R + 2 * N) + R * C + C + C * N + C + D
    assert ledger.total("flops") == 9 * 2 * (6 * D * D + C * K + C * (R + 2 * N) + R * C)
    assert ledger.total("cache") == C * N + C * K
    assert ledger.cache_terms.growth == 0


def test_mamba2_projects_once() -> None:
    """Dao and Gu 2024 (arXiv 2405.21060), figure 6: one projection makes z, x, B, C and the step sizes."""
    D, C, h, G, N, K = 64, 128, 8, 2, 16, 4
    table = {"d_head": 16, "n_groups": G, "d_state": N}
    ledger = build({"d_model": D, "n_layers": 1, "mamba2": table, "norm": {"final": False}}, "Mamba-2").ledger(tokens=3)
    mixed = C + 2 * G * N
    assert ledger.total("params") == D * (C + mixed + h) + mixed * K + mixed + 3 * h + C + C * D + D
    assert ledger.total("flops") == 3 * 2 * (D * (C + mixed + h) + mixed * K + C * D)
    assert ledger.total("cache") == C * N + mixed * K


def test_patches_are_a_convolution() -> None:
    """Dosovitskiy et al. 2020 (arXiv 2010.11929), equation 1: N = H·W/P² patches, each P²·C times a matrix."""
    raw = {
        "kind": "vision",
        "d_model": 48,
        "n_layers": 1,
        "attention": {"n_heads": 3},
        "feed_forward": {"d_ff": 96},
        "vision": {"image": 32, "patch": 8},
        "positions": {"form": "learned"},
        "head": {"form": "classifier", "classes": 10},
    }
    ledger = build(raw, "a ViT").ledger(batch=2)
    assert ledger.at("embedding.patches").total("flops") == 2 * 2 * 16 * (8 * 8 * 3) * 48
    assert ledger.at("embedding").total("params") == 48 * 192 + 48 + 48 + 17 * 48
    assert ledger.at("layers").by_kind("flops")["attention_core"] == 4 * 2 * 17 * 17 * 48
    assert ledger.at("head").total("flops") == 2 * 2 * 48 * 10  # one position


def test_sound_is_halved_by_the_second_convolution() -> None:
    """Radford et al. 2022 (arXiv 2212.04356), section 2.2: two convolutions of width 3, the second of stride 2."""
    raw = {
        "kind": "audio",
        "d_model": 16,
        "vocab_size": 50,
        "attention": {"n_heads": 2},
        "feed_forward": {"d_ff": 32},
        "n_layers": 1,
        "encoder": {"audio": {"mels": 10, "positions": 15}, "positions": {"form": "sinusoidal"}},
    }
    embedding = build(raw, "a Whisper").ledger(tokens=4).at("encoder.embedding")
    assert embedding.at("encoder.embedding.conv1").total("flops") == 2 * 30 * 3 * 10 * 16
    assert embedding.at("encoder.embedding.conv2").total("flops") == 2 * 15 * 3 * 16 * 16
    assert embedding.total("params") == 16 * 10 * 3 + 16 + 16 * 16 * 3 + 16
    assert embedding.at("encoder.embedding.conv1_activation").total("flops_other") == 5 * 30 * 16
    assert embedding.at("encoder.embedding.conv2_activation").total("flops_other") == 5 * 15 * 16
    assert embedding.by_kind("flops_other") == {"embedding": 15 * 16, "other": 45 * 16 + 5 * 45 * 16}


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
    held = span.cache(work, 2).elements
    kept = {j for j in range(past + tokens) if sees(past + tokens - 1, j)}
    assert held == 2 * len(kept)


@pytest.mark.parametrize("past", [0, 1, 3, 4, 5, 11])
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 9])
def test_visible_pairs_of_chunks_one_by_one(past: int, tokens: int) -> None:
    seen = [(i, j) for i in range(past, past + tokens) for j in range(i + 1) if i // 4 == j // 4]
    assert Chunks(window=4).visible(Workload(1, tokens, past, tokens)) == len(seen)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 9])
def test_visible_pairs_around_one_by_one(tokens: int) -> None:
    seen = [(i, j) for i in range(tokens) for j in range(tokens) if abs(i - j) < 3]
    assert CentredWindow(window=3).visible(Workload(1, tokens, 0, tokens)) == len(seen)
    assert CentredWindow(window=3).keys(Workload(1, tokens, 0, tokens)) == tokens


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


# Latent attention.


def test_latent_attention_expanded_and_absorbed() -> None:
    """DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1: keys and values of all heads are expanded from a cached latent;
    absorbed, queries and results go through the latent's width instead, and no latent is expanded again."""
    D, h, r_q, r_kv, nope, rope, v, T, P = 40, 3, 12, 8, 5, 2, 6, 4, 9
    S = P + T
    table = {"n_heads": h, "q_rank": r_q, "kv_rank": r_kv, "d_nope": nope, "d_rope": rope, "d_v": v}
    model = build({"d_model": D, "n_layers": 1, "latent": table, "feed_forward": {"d_ff": 1}}, "MLA")
    down, up, out = D * r_q + D * (r_kv + rope), r_q * h * (nope + rope), h * v * D
    expand = r_kv * h * (nope + v)
    assert model.ledger().at("layers.0.attention").total("params") == down + r_q + up + r_kv + expand + out
    for mla, expanded, core in (
        ("expanded", S * expand, T * S * h * (nope + rope + v)),
        ("absorbed", T * expand, T * S * h * (r_kv + rope + r_kv)),
    ):
        ledger = model.ledger(tokens=T, past=P, mla=mla).at("layers.0.attention")
        assert ledger.total("flops") == 2 * (T * (down + up + out) + expanded + core), mla
        assert ledger.total("cache") == S * (r_kv + rope)


def test_the_index_of_sparse_attention_and_what_it_lets_through() -> None:
    """DeepSeek-AI 2025 (DeepSeek-V3.2-Exp), section 2.1: Σ w·relu(q·k) over the heads of an index for every pair, one
    key a token cached, and the attention itself on the k best; dense, on all."""
    D, h, r_q, r_kv, nope, rope, v, T, P = 40, 3, 12, 8, 5, 2, 6, 4, 9
    h_i, d_i, k, S = 7, 10, 11, P + T
    table = {"n_heads": h, "q_rank": r_q, "kv_rank": r_kv, "d_nope": nope, "d_rope": rope, "d_v": v}
    sizes = {"d_model": D, "n_layers": 1, "feed_forward": {"d_ff": 1}}
    plain = build({**sizes, "latent": table}, "MLA")
    index = {"index_heads": h_i, "index_width": d_i, "index_top_k": k}
    model = build({**sizes, "latent": {**table, **index}}, "DSA")
    products = r_q * h_i * d_i + D * d_i + D * h_i
    assert model.params - plain.params == products + 2 * d_i
    pairs, chosen = sum(i + 1 for i in range(P, S)), sum(min(i + 1, k) for i in range(P, S))
    for mla, width in (("expanded", nope + rope + v), ("absorbed", r_kv + rope + r_kv)):
        ours, theirs = (each.ledger(tokens=T, past=P, mla=mla) for each in (model, plain))
        more = 2 * (T * products + T * S * h_i * (d_i + 1))
        assert ours.total("flops") - theirs.total("flops") == more, mla
        masked = 2 * (T * products + pairs * h_i * (d_i + 1)) - 2 * (pairs - chosen) * h * width
        assert ours.total("flops_masked") - theirs.total("flops_masked") == masked, mla
        assert ours.total("cache") - theirs.total("cache") == S * d_i
        # A step of training has the index's forward alone, and all else three times; checkpointing repeats both.
        assert training_flops(ours) == 3 * theirs.total("flops") + more
        assert training_flops(ours, "blocks") == 4 * theirs.total("flops") + 2 * more
        core = theirs.by_kind("flops")["attention_core"]
        assert training_flops(ours, "core") == 3 * theirs.total("flops") + more + core
    # Absorbed, a step reads the latents of the keys that it chose, and every key of the index.
    step = model.ledger(past=S, mla="absorbed")
    assert sum(entry.traffic.cache for entry in step) == k * (r_kv + rope) + (S + 1) * d_i


# Backward and traffic.


def test_what_a_llama_block_keeps_for_backward() -> None:
    """Without the attention matrix: the inputs of both norms and of what follows them (4D), q, k, v and the fused
    kernel's own result, gate, its activation, up and their product (4F). The matrix replaces that result by h·T, and o
    then keeps its input."""
    D, h, h_kv, d_h, F, T = 32, 4, 2, 8, 80, 6
    raw: dict[str, Any] = {"feed_forward": {"d_ff": F, "gated": True}, "norm": {"final": False}}
    model = decoder(L=1, D=D, attention={"n_heads": h, "n_kv_heads": h_kv, "d_head": d_h}, **raw)
    rest = 4 * D + h * d_h + 2 * h_kv * d_h + 4 * F
    assert model.ledger(batch=2, tokens=T).total("saved") == 2 * T * (rest + h * d_h)
    assert model.ledger(batch=2, tokens=T, keep_scores=True).total("saved") == 2 * T * (rest + h * T + h * d_h)


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


def test_the_windows_of_gemma_3() -> None:
    """52 local layers of 1,024 tokens and 10 global ones, 2 × 16 heads of 128: 1.031 GiB at 8,192 tokens, and 3.875 if
    the window is ignored."""
    held = cache_bytes(txcalc.load("gemma-3-27b").ledger(tokens=8192))
    assert held == 2 * (2 * 16 * 128) * (10 * 8192 + 52 * 1024)
    assert round(held / 2**30, 3) == 1.031
    everywhere = txcalc.load("gemma-3-27b", {"window": 8192}).ledger(tokens=8192)
    assert cache_bytes(everywhere) / 2**30 == 3.875


def test_palm_540b() -> None:
    """Chowdhery et al. 2022, table 1 prints 540.35 B: its matrices; the norms would make it 540.36."""
    kinds = txcalc.load("palm-540b").ledger().by_kind("params")
    assert round((sum(kinds.values()) - kinds["norm"]) / 1e9, 2) == 540.35


@pytest.mark.parametrize(("L", "D", "gigabytes"), [(32, 4096, 12.885), (40, 5120, 25.166)])
def test_the_lesson_of_12_l_d2_at_two_bytes(L: int, D: int, gigabytes: float) -> None:
    blocks = matrices(decoder(L=L, D=D, h=32, F=4 * D).ledger())
    assert round(weights_bytes(blocks) / 1e9, 3) == gigabytes


def test_llama_3_1_8b_has_the_same_l_and_d_and_does_not_fit_16_gb() -> None:
    assert round(weights_bytes(txcalc.load("llama-3.1-8b").ledger()) / 1e9, 2) == 16.06


def test_values_of_a_width_of_their_own_are_read_by_the_output() -> None:
    sizes = {"attention.d_v": 5}
    one = txcalc.load("D=48 L=1 h=4 h_kv=2 F=96 V=99", sizes).ledger(2, 3)
    assert one.at("layers.0.attention.o").total("params") == 4 * 5 * 48
    assert one.at("layers.0.attention.core").total("flops") == 2 * 2 * 3 * 3 * 4 * (12 + 5)


def test_what_is_added_to_narrow_tokens_is_as_wide_as_they() -> None:
    """Or, projected before, as the stream (`embedding.early`)."""
    for early, wide in ((False, 16), (True, 48)):
        raw = {"embedding.rank": 16, "embedding.early": early, "positions.form": "learned", "positions.rows": 10}
        found = txcalc.load("D=48 L=1 h=4 F=96 V=99", raw).ledger()
        assert found.at("embedding.positions").total("params") == 10 * wide
        assert found.at("embedding.tokens").total("params") == 99 * 16


def test_an_xielu_is_six_operations_an_element() -> None:
    for form, each in (("relu", 1), ("xielu", 6)):
        found = txcalc.load("D=48 L=1 h=4 F=96 V=99 plain", {"feed_forward.activation": form}).ledger(2, 3)
        assert found.at("layers.0.feed_forward.activation").total("flops_other") == each * 2 * 3 * 96


def test_norms_of_what_crosses_over_are_at_the_encoders_positions() -> None:
    """Keys and values of cross-attention, none of them in a decode step."""
    joined = txcalc.load("t5-small", {"attention.qk_norm": "width", "attention.v_norm": True})
    for name, tokens in (("q_norm", 3), ("k_norm", 7), ("v_norm", 7)):
        (norm,) = joined.ledger(2, 3, source=7).at(f"decoder.layers.0.cross_attention.{name}").entries
        assert norm.work is not None and norm.work.positions == 2 * tokens
    assert joined.ledger(2, 1, 9, source=7).at("decoder.layers.0.cross_attention.k_norm").total("flops_other") == 0
