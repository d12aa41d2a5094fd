"""Towers and projectors: FLOPs and parameters are those of transformers' own modules."""

from __future__ import annotations

from importlib import import_module

import pytest
from tower_flops import CASES, compared

from txcalc.sources import build
from txcalc.sources.huggingface import describe
from txcalc.sources.huggingface.families import STANDALONE_TOWERS
from txcalc.sources.huggingface.transformers_metadata import classes

pytestmark = pytest.mark.slow


@pytest.mark.drawn(18)
@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_of_transformers(name: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    _, _, figures = compared(*CASES[name])
    assert all(ours == theirs for ours, theirs in figures.values()), figures


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STANDALONE_TOWERS)
def test_a_tower_by_itself_has_the_parameters_of_its_class(name: str) -> None:
    """As its class makes it where a config says nothing."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING[name]()
    code = import_module(type(config).__module__.replace("configuration_", "modeling_"))
    with torch.device("meta"):
        net = getattr(code, classes(name)[0])(config)
    assert build(*describe({"model_type": name})).params == sum(weight.numel() for weight in net.parameters())
