"""Memory in `show`: the training state is that of the optimizer asked for, and bytes of a format say by which rule."""

from __future__ import annotations

import pytest

import txcalc


def test_the_training_state_is_the_optimizers() -> None:
    answer = txcalc.show("gpt2", optimizer="sgd", detail=True)
    state = {part.name: part.bytes for part in answer.memory.training_state}
    assert state["optimizer state (sgd)"] == 0
    assert answer.training and state["gradients"] == answer.training.gradients_bytes
    assert answer.memory.training_state_bytes == sum(state.values())
    assert "moment" not in answer.to_text()
    assert "second moment (fp32), 4 B/param" in txcalc.show("gpt2", detail=True).to_text()


def test_a_step_of_a_layout_names_its_rank_and_micro_batches() -> None:
    for layout, words in (("pp=2", "rank 1 of pp=2, 2 micro-batches: modelled"), ("dp=2", "rank 0 of dp=2: modelled")):
        assert f"A training step of {words}" in txcalc.show("gpt2", layout=layout, detail=True).to_text()


@pytest.mark.parametrize(("rank", "trained"), [(8, 4_194_304), (16, 8_388_608)])
def test_adapters_say_how_much_is_trained(rank: int, trained: int) -> None:
    model = txcalc.load("llama-2-7b", {"lora.rank": rank})
    answer = txcalc.show(model)
    assert answer.memory.trained_params == trained
    assert f"trained: {trained:,} parameters" in answer.to_text()


def test_bytes_of_a_format_say_by_which_rule() -> None:
    """8 bits of every weight alone, and with fp8's rule: linear layers in 8 bits with a scale of 32 for each matrix."""
    memory = txcalc.show("llama-3.1-8b", dtype="fp8").memory
    wide, matrices = 2 * 128_256 * 4096 + 65 * 4096, 32 * 7
    assert memory.unscaled_bytes == 8_030_261_248
    assert memory.weights_bytes == 8_030_261_248 + wide + 4 * matrices
    rule = (
        "one fp32 scale per tensor, as vLLM quantises on loading; leaves embedding, head, norms and biases at 16 bits"
    )
    assert memory.format_rule == rule
    plain = txcalc.show("llama-3.1-8b", dtype="bf16").memory
    assert plain.unscaled_bytes is None and plain.format_rule == ""


def test_intensity_is_of_flops_and_of_operands_read_and_results_written_once() -> None:
    """Of the head's product, in 2 bytes each: the matrix, 16 vectors and 16 rows of logits."""
    traffic, d, v = txcalc.show("llama-3.1-8b", tokens=1, past=8192, batch=16).traffic, 4096, 128_256
    assert traffic.bytes_by_kind["head"] == 2 * (d * v + 16 * d + 16 * v)
    assert traffic.flops_per_byte_by_kind["head"] == 2 * 16 * d * v / traffic.bytes_by_kind["head"]
    assert traffic.bytes == sum(traffic.bytes_by_kind.values()) > 2 * 8_030_261_248 - 2 * d * v
    fp8 = txcalc.show("llama-3.1-8b", tokens=1, past=8192, batch=16, dtype="fp8").traffic.bytes_by_kind
    narrower = 96 * (d * 14_336 - 4)  # a byte per weight, and a scale of 32 bits for each matrix
    assert fp8 == traffic.bytes_by_kind | {
        "feed_forward": traffic.bytes_by_kind["feed_forward"] - narrower,
        "attention": traffic.bytes_by_kind["attention"] - 32 * (2 * d * (d + 1024) - 4 * 4),
    }
    tied = [
        txcalc.show("gemma-2-9b", tokens=1, dtype=dtype).traffic.bytes_by_kind["head"] for dtype in ("bf16", "Q8_0")
    ]
    assert tied[0] - tied[1] == 256_000 * 3584 * (16 - 8.5) / 8
    masked = txcalc.show("llama-3.1-8b", tokens=64, attention="masked").traffic
    assert masked.flops_per_byte < txcalc.show("llama-3.1-8b", tokens=64).traffic.flops_per_byte
