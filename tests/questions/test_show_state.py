"""`show --optimizer`: the training state is that of the optimizer asked for."""

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


@pytest.mark.parametrize(("rank", "trained"), [(8, 4_194_304), (16, 8_388_608)])
def test_adapters_say_how_much_is_trained(rank: int, trained: int) -> None:
    model = txcalc.load("llama-2-7b", {"lora.rank": rank})
    answer = txcalc.show(model)
    assert answer.memory.trained_params == trained
    assert f"trained: {trained:,} parameters" in answer.to_text()
