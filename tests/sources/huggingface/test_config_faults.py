"""What a config.json cannot be: `data/hf/refused.json` has, by a good one's name (the file that it is in, and its own),
what is changed in it, and words of the fault; under no name, whole configs."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from paths import HF

from txcalc.errors import InputError
from txcalc.model import Model
from txcalc.sources import build
from txcalc.sources.huggingface import describe

REFUSED: dict[str, list[tuple[Any, str]]] = json.loads((HF / "refused.json").read_text())
FILES = {name: json.loads((HF / f"{name}.json").read_text()) for name in {n.partition("/")[0] for n in REFUSED} if name}


def good(name: str) -> Any:
    file, _, key = name.partition("/")
    entry = FILES[file][key]
    return entry.get("config", entry)


def read(name: str, config: Any) -> Model:
    return build(*describe(config, "params.json" if name.startswith("original/") else "config.json"))


def changed(name: str, change: Any) -> Any:
    """A good config with values at paths into it; a number is a place in a list."""
    if not name:
        return change
    config = deepcopy(good(name))
    for path, value in change.items():
        *above, last = path.split(".")
        table = config
        for key in above:
            table = table[int(key) if isinstance(table, list) else key]
        table[last] = value
    return config


ROWS = [
    pytest.param(name, *row, id=f"{name} {number}")
    for name, refused in REFUSED.items()
    for number, row in enumerate(refused)
]


@pytest.mark.parametrize(("name", "change", "message"), ROWS)
def test_it_is_refused(name: str, change: Any, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        read(name, changed(name, change))
    assert message in str(refusal.value)


@pytest.mark.parametrize("name", [name for name in REFUSED if name])
def test_it_is_read_unchanged(name: str) -> None:
    assert read(name, good(name)).params


def test_what_transformers_refuses_is_said_where_no_size_depends_on_it() -> None:
    assert describe(good("hand/llama") | {"torch_dtype": "relu"})[3] == (
        "its dtype is 'relu', which transformers may not accept: bf16 is counted",
    )


def test_a_width_of_heads_that_its_class_derives_may_stand_beside() -> None:
    config = {"model_type": "codegen", "n_embd": 64, "n_layer": 2, "n_head": 8, "vocab_size": 100, "rotary_dim": 4}
    assert build(*describe(config | {"head_dim": 8})).params == build(*describe(config)).params
    with pytest.raises(InputError, match="head_dim is 16, expected 8"):
        describe(config | {"head_dim": 16})
