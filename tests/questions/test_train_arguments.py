"""The typed arguments of `train`: classes of options, a layout, an accelerator, a whole recipe."""

from __future__ import annotations

from typing import Any

import pytest

import txcalc
from txcalc import Cluster, InputError, Layout, Mfu, Recipe, RecipeOptions, Run

GPUS = "h100-sxm:8@2"
FLAT = txcalc.train(
    "gpt2", GPUS, layout="pp=2,dp=4", zero=1, micro_batch="2", recipe="reduce=bf16", node=4, train_tokens="1B",
    budget="1k", measured="400TFLOPS", conventions="palm",
)  # fmt: skip


def test_classes_of_options_are_their_fields_as_keywords() -> None:
    answer = txcalc.train(
        "gpt2",
        GPUS,
        layout=Layout(pp=2, dp=4),
        recipe=RecipeOptions(zero=1, micro_batch=2, recipe="reduce=bf16"),
        cluster=Cluster(node=4),
        run=Run(train_tokens=10**9, budget=1000),
        mfu=Mfu(measured="400TFLOPS", conventions=["palm"]),
    )
    assert answer == FLAT
    assert answer.recipe.micro_batch == 2 and answer.layout.zero == 1 and answer.run is not None
    assert answer.run.budget is not None and answer.run.budget.money == 1000


def test_a_number_and_a_price_are_given_once() -> None:
    with pytest.raises(InputError, match="gpu='h100-sxm:8@2' and gpus=16 contradict each other"):
        txcalc.train("gpt2", GPUS, layout="fsdp=8", cluster=Cluster(gpus=16))
    with pytest.raises(InputError, match="h100-sxm has two prices: 2 and 9"):
        txcalc.train("gpt2", GPUS, layout="fsdp=8", run=Run(train_tokens="1B", price=9))


def test_a_recipe_has_layout_and_length() -> None:
    recipe = Recipe(Layout(fsdp=8), micro_batch=4, accumulation=4, tokens=512, recompute="blocks")
    answer = txcalc.train("gpt2", GPUS, recipe=recipe)
    flat = dict[str, Any](micro_batch=4, global_batch=128, tokens=512, recompute="blocks")
    assert answer.recipe == txcalc.train("gpt2", GPUS, layout="fsdp=8", **flat).recipe
    with pytest.raises(InputError, match="a Recipe has layout and tokens of its own"):
        txcalc.train("gpt2", GPUS, recipe=recipe, layout="fsdp=8")
    with pytest.raises(InputError, match="recipe and zero say the same thing twice"):
        txcalc.train("gpt2", GPUS, recipe=recipe, zero=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": Layout(tp=3, sp=2)}, "sp is 2, expected 1 or tp = 3"),
        ({"recipe": RecipeOptions(zero="1")}, "zero is '1', expected a whole number"),  # type: ignore[arg-type]
        ({"recipe": 3}, "recipe is 3, expected a text"),
        ({"mfu": "400TFLOPS"}, "mfu is '400TFLOPS', expected a Mfu"),
        ({"framwork": "megatron"}, "framwork"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        txcalc.train("gpt2", GPUS, **options)


def test_a_host_link_that_nothing_uses_is_a_note() -> None:
    notes = {
        offload: txcalc.train("gpt2", gpu="h100:1", tokens=512, host_link="10GB/s", offload=offload).notes
        for offload in (None, "optimizer")
    }
    unused = "--host-link is ignored: nothing is offloaded to the host (--offload optimizer)"
    assert unused in notes[None] and unused not in notes["optimizer"]
