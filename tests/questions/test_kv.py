"""`txcalc kv`: what the cache holds, against hand arithmetic, over kinds of models."""

from __future__ import annotations

import pytest
from command import Command

from txcalc import load
from txcalc.planning.generation import FLOPS, generations, laws
from txcalc.sources.presets import names

GIB = 2**30


run = Command("kv", columns=100)


def rows(*argv: str) -> list[dict[str, int]]:
    data = run.data(*argv)
    assert data["schema"] == "txcalc/kv/1"
    return data["rows"]


def test_windows_hold_their_tokens_and_the_dense_bound_all() -> None:
    """Gemma-3 27B, 10 of 62 layers global: 1.031 GiB at 8,192 tokens, not 3.875."""
    (row,) = rows("gemma-3-27b", "--contexts", "8k", "--batches", "1")
    token = 2 * 16 * 128 * 2
    assert row == {
        "context": 8192,
        "batch": 1,
        "dtype": "bf16",
        "bytes": token * (10 * 8192 + 52 * 1024),
        "dense_bytes": token * 62 * 8192,
    }
    assert round(row["bytes"] / GIB, 3) == 1.031
    assert row["dense_bytes"] / GIB == 3.875


def test_a_latent_is_one_for_all_heads() -> None:
    (row,) = rows("deepseek-v3", "--contexts", "1", "--batch", "1")
    assert row["bytes"] == row["dense_bytes"] == 70_272


def test_four_bits_are_half_a_byte() -> None:
    """K and V of one head of width 1 in one layer: a byte a token."""
    (small, large) = rows("D=64 h=1 d_h=1 F=64 L=1 E=1 k=1", "--contexts", "1", "--batch", "1,3", "--kv-dtypes", "int4")
    assert (small["bytes"], large["bytes"]) == (1, 3)


def test_a_format_with_scales_counts_those_of_each_block() -> None:
    """A head of 64: two scales of 16 bits in q8_0, one scale and one bias in int6; both for K and for V."""
    sizes = [rows("D=64 h=1 F=64 L=1", "--context", "1", "--batch", "1", "--kv", kv)[0] for kv in ("q8_0", "int6")]
    assert [row["bytes"] for row in sizes] == [2 * (64 + 2 * 2), 2 * (48 + 4)]


def test_a_head_that_blocks_do_not_divide_is_refused() -> None:
    """llama.cpp: "K cache type q8_0 with block size 32 does not divide n_embd_head_k=80"."""
    message = "expected a format whose blocks divide a head of 80 (q8_0 has blocks of 32 elements) (--kv bf16)"
    assert message in run("D=80 h=1 F=64 L=1", "--kv", "q8_0").stderr
    assert load("vit-h").ledger(kv_dtype="q8_0").total("cache") == 0  # its heads are of 80, and none is cached


def test_a_recurrent_state_does_not_grow() -> None:
    sizes = {row["bytes"] for row in rows("mamba2-2.7b", "--contexts", "1,1k,1M", "--batches", "1")}
    assert sizes == {2 * 64 * (80 * 64 * 128 + (80 * 64 + 2 * 128) * 4)}


def test_cross_attention_is_constant_and_apart() -> None:
    short, long = rows("t5-small", "--contexts", "1,512", "--batches", "2", "--source", "100")
    token = 2 * 8 * 64 * 2 * 6
    assert short["cross_bytes"] == long["cross_bytes"] == 2 * 100 * token
    assert (short["bytes"], long["bytes"]) == (2 * (100 + 1) * token, 2 * (100 + 512) * token)


def test_without_a_length_the_source_is_as_long_as_the_context() -> None:
    short, long = rows("t5-small", "--contexts", "10,20", "--batches", "1")
    assert (short["cross_bytes"], long["cross_bytes"]) == tuple(2 * 8 * 64 * 2 * 6 * n for n in (10, 20))
    assert "as many source positions as tokens" in run("t5-small", "--contexts", "10,20")[1]


@pytest.mark.parametrize("name", names())
def test_every_preset_has_a_table_or_a_reason(name: str) -> None:
    code, out, err = run(name)
    if load(name).description.kind in ("encoder", "vision"):
        assert (code, out) == (2, "")
        assert err == f"txcalc: {name}: has no cache\n"
    else:
        assert code == 0, err
        assert "of cache per token" in out


@pytest.mark.slow
def test_without_the_cache_a_thousand_tokens_compute_half_a_million_keys() -> None:
    """The teaching texts' 499,500 redundant computations; FLOPs against the sum of all 2,000 passes."""
    data = run.data("gpt2", "--contexts", "1000", "--without-cache")
    (row,) = data["generation"]["rows"]
    model = load("gpt2")
    assert row == {
        "context": 1000,
        "passes": 1000,
        "kv_computed": 1000,
        "kv_computed_without_cache": 500_500,
        "kv_redundant": 499_500,
        "flops": sum(model.ledger(past=t, logits="last").total("flops") for t in range(1000)),
        "flops_without_cache": sum(model.ledger(tokens=t, logits="last").total("flops") for t in range(1, 1001)),
    }
    assert data["generation"]["formulas"]["kv_redundant"] == "n·(n − 1)/2"
    assert data["rows"], "what the cache holds is there too"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "length"),
    [
        ("D=64 L=2 h=4 F=128 V=100 window=16", 60),
        ("deepseek-v3", 9),
        ("gemma-3-27b", 9),
        ("mamba-130m", 9),
        ("llama-4-scout", 9),
    ],
)
@pytest.mark.parametrize("attention", ["dense", "masked"])
@pytest.mark.parametrize("prompt", [1, 5])
def test_a_generation_is_the_sum_of_its_passes(source: str, length: int, attention: str, prompt: int) -> None:
    model, quantity = load(source), FLOPS[attention]
    for context in range(prompt, length):
        (generation,) = generations(model, [context], prompt, attention)
        steps = [model.ledger(past=t, logits="last", mla="absorbed") for t in range(prompt, context)]
        prompt_flops = [model.ledger(tokens=t, logits="last").total(quantity) for t in range(prompt, context + 1)]
        assert generation.flops == prompt_flops[0] + sum(step.total(quantity) for step in steps)
        assert generation.flops_without_cache == sum(prompt_flops)
        assert generation.kv_computed_without_cache == sum(range(prompt, context + 1))


def test_a_ratio_of_ten_thousand_is_short() -> None:
    assert " 199,970,001  10 K\n" in run("gpt2", "--contexts", "19999", "--without-cache")[1]


def test_chunks_of_attention_have_figures_and_no_formula() -> None:
    assert laws(load("llama-4-scout")) is None
    code, out, err = run("llama-4-scout", "--contexts", "20000", "--without-cache")
    assert code == 0, err
    assert "FLOPs of all passes" in out
    assert "FLOPs without" not in out
