"""Adapters: parts of the tree, whose figures PyTorch shows, and what training beside frozen weights takes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from tiny import TINY

from txcalc import load
from txcalc.errors import InputError
from txcalc.parts.adapters import KeptInput, adaptable, kept_input
from txcalc.planning.gradients import PASSES
from txcalc.sources import build


def adapted(name: str, modules: list[str]) -> Any:
    return build({**deepcopy(TINY[name]), "lora": {"rank": 3, "modules": modules}}, name)


@pytest.mark.parametrize(
    ("model", "changes", "learning"),
    [
        # What PEFT's print_trainable_parameters says of q_proj and v_proj, and of its "all-linear".
        ("llama-3.1-8b", {"lora.rank": 16}, 6_815_744),
        ("llama-3.1-8b", {"lora.rank": 16, "lora.modules": ["all"]}, 41_943_040),
        ("llama-2-7b", {"lora.rank": 8}, 4_194_304),
        ("mistral-7b", {"lora.rank": 8, "lora.modules": ["q", "k", "v", "o"]}, 6_815_744),
    ],
)
def test_trainable_parameters_as_peft_prints_them(model: str, changes: dict[str, Any], learning: int) -> None:
    tuned = load(model, changes)
    assert tuned.ledger().by_kind("params")["adapters"] == learning
    assert tuned.params == load(model).params + learning


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "gpt-neox",  # branches side by side, of which the first reads what the second does
        # Biases, experts with sinks, latents with an index, branches of one norm, a pooler.
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("gpt2", "gpt-oss", "deepseek-v3.2", "palm", "bert-pooler")
        ),
    ],
)
def test_torch_keeps_and_computes_what_the_tree_says(name: str) -> None:
    """All linear layers, or of every other model every second one: so that of those that read one tensor the first has
    no adapter."""
    from txcalc.verification import verify

    try:
        names = adaptable(adapted(name, ["all"]).root)
    except InputError as refusal:
        assert "lora" in str(refusal)
        pytest.skip(str(refusal))
    modules = ["all"] if list(TINY).index(name) % 2 else names[1::2] or names
    verdict = verify(adapted(name, modules), ["parameters", "flops", "training", "saved"], lengths="points")
    assert verdict.ok, [row for row in verdict.rows if not row.equal][:3]
    assert any("lora_b" in row.path for row in verdict.rows)


def test_the_theorem_of_adapters_is_inherited() -> None:
    from txcalc.evidence import theorems

    for modules in (["q", "v"], ["all"]):
        for unit in theorems.units(load("llama-3.2-1b", {"lora.rank": 64, "lora.modules": modules})):
            assert not theorems.obstacle(unit), unit.name


def test_an_adapter_keeps_the_first_input_of_its_width() -> None:
    """Of those that its own part read, then of those read before; none is kept twice."""
    narrow, wide, last = KeptInput(4, "yes"), KeptInput(8, "eager"), KeptInput(6, "yes")
    assert kept_input(8, [narrow, wide, last], ()) == ("eager", [narrow, last], ())
    assert kept_input(8, [wide, narrow, last], ()) == ("eager", [narrow, last], ())
    assert kept_input(8, [narrow], (last, wide, narrow)) == ("eager", [narrow], (last, narrow))
    assert kept_input(5, [narrow], (wide,)) == ("no", [narrow], (wide,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_input", "of_weight", "gradient"),
    [(True, True, "both"), (False, True, "weights"), (True, False, "input"), (False, False, "none")],
)
def test_products_of_a_step_are_those_that_autograd_runs(of_input: bool, of_weight: bool, gradient: str) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    read, weight = torch.ones(2, 3, requires_grad=of_input), torch.ones(3, 5, requires_grad=of_weight)
    with FlopCounterMode(display=False) as counter:
        product = read @ weight
        if product.requires_grad:
            product.sum().backward()
    assert counter.get_total_flops() == PASSES[gradient] * (2 * 2 * 3 * 5)
