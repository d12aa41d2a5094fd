"""What the planners answer to many drawn questions, every option at several values beside every other, of tiny models.

As in `test_figures.py` nothing here says that a figure is right: a formula that gives another one anywhere in the space
of questions is seen, and is meant. Of a refusal its numbers are kept. `pytest tests/test_drawn.py --update-golden`
keeps what is answered now. `data/drawn.json` has the values of each option, and the names of options that go only
together; the first, which is the usual one, is drawn in half of all questions.
"""

from __future__ import annotations

import json
import random
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from test_figures import numbers
from tiny import TINY

import txcalc
from txcalc.errors import TxcalcError

GOLDEN = Path(__file__).parent / "golden" / "drawn.json"
SPACE: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "drawn.json").read_text("utf-8"))
ASKED = [name for name in SPACE if name.islower()]
NUMBER = dict.fromkeys(ASKED, 40) | {"train": 100, "deploy loads": 20, "crossover": 20, "design": 10}
TOGETHER = 10


def drawn(chance: random.Random, values: list[Any]) -> Any:
    """The usual value in half of all questions; a model by its name, or any tiny one, or one of experts."""
    value = values[0] if chance.random() < 0.5 else chance.choice(values)
    if isinstance(value, str) and value.startswith("tiny"):
        return chance.choice([model for model in TINY.values() if value[5:] in str(model)])
    return SPACE["MODELS"].get(value, value) if isinstance(value, str) else value


def question(name: str, number: int) -> dict[str, Any]:
    """The same on every machine."""
    chance, asked = random.Random(f"{name} {number}"), dict[str, Any]()
    space = {**SPACE.get(SPACE[name].get("like", ""), {}), **SPACE[name]}
    for options in [name for name in space if name != "like"]:
        value, several = drawn(chance, space[options]), options.split(", ")
        asked |= zip(several, value if len(several) > 1 else [value], strict=True)
    return asked


def answer(name: str, number: int) -> Any:
    """All numbers, by their keys; of a refusal its kind and numbers."""
    asked = question(name, number)
    sources = [asked.pop(key) for key in ("source", "sources") if key in asked]
    try:
        told = getattr(txcalc, name.split()[0])(*(one for one in sources if one is not None), **asked).to_dict()
    except TxcalcError as error:
        return type(error).__name__, re.findall(r"\d+", str(error))
    return numbers(told, "", {})


@pytest.mark.parametrize(
    ("name", "first"), [(name, first) for name in ASKED for first in range(0, NUMBER[name], TOGETHER)]
)
def test_answers_are_those_that_were_kept(name: str, first: int, update_golden: bool) -> None:
    asked = range(first, first + TOGETHER)
    now = [sha256(repr(answer(name, number)).encode()).hexdigest()[:4] for number in asked]
    kept = json.loads(GOLDEN.read_text())
    if update_golden:
        kept[f"{name} {first}"] = " ".join(now)
        GOLDEN.write_text(json.dumps(dict(sorted(kept.items())), indent=0) + "\n")
    before = kept[f"{name} {first}"].split()
    moved = [question(name, number) for number, one, other in zip(asked, before, now, strict=True) if one != other]
    assert not moved, f"{len(moved)} of {TOGETHER}; if this is meant: pytest {Path(__file__).name} --update-golden"
