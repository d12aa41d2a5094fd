"""How stored configs are read, and what is written of them, kept in `golden/configs/`: totals of each; how many numbers
its TOML and its config.json have, and their sum; and of one of each type, what happens where a key is missing or has
another value (null in published configs, other sizes and words in small ones): how many changes are refused, how many
are idle, how many outcomes there are, and the sum of their numbers: a default is one of them.

Other tests show that totals are right, beside transformers and published code. `--update-golden` writes the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from paths import GOLDEN, HF

from txcalc.errors import InputError
from txcalc.sources import build
from txcalc.sources.export import to_config, to_toml
from txcalc.sources.huggingface import describe

SMALL = ("small", "custom", "hand")  # sizes are small, and each type has all of its keys
NUMBER = re.compile(r"\d[\d.,]*")


def changes(value: Any, values: bool) -> Iterator[Any]:
    if not values:
        yield None
    if isinstance(value, bool):
        yield not value
    elif values:
        yield from (0, value + 1) if isinstance(value, int | float) else ("other", []) if value else ()


def altered(config: dict[str, Any], values: bool) -> Iterator[dict[str, Any]]:
    """A config without each of its keys, and with other values of each, in tables too."""
    for key, value in config.items():
        yield {name: config[name] for name in config if name != key}
        yield from ({**config, key: new} for new in changes(value, values))
        if isinstance(value, dict):
            yield from ({**config, key: table} for table in altered(value, values))


def values_of(raw: Any, key: str = "") -> Iterator[str]:
    """What a description says, whatever its kinds of layers are called."""
    if isinstance(raw, dict):
        for name, value in raw.items():
            yield from values_of(value, name)
    elif key == "pattern":
        yield f"pattern {[raw.index(kind) for kind in raw]}"
    elif isinstance(raw, list | tuple):
        for value in raw:
            yield from values_of(value, key)
    elif " " not in str(raw):
        yield f"{key} {raw}"


def outcome(config: dict[str, Any]) -> str:
    """What is described, or where it is faulty; and numbers of the texts about it."""
    try:
        raw, _, *texts = describe(config)
    except InputError as error:
        return " ".join(
            ["refused", *(getattr(fault, "key", "") for fault in error.faults), *NUMBER.findall(str(error))]
        )
    return " ".join([*sorted(values_of(raw)), *NUMBER.findall(str(texts))])


def figures(text: str) -> str:
    """How many numbers there are, and their sum."""
    numbers = [float(number.rstrip(".,").replace(",", "")) for number in NUMBER.findall(text)]
    return f"{len(numbers)} numbers, sum {sum(numbers):,.10g}"


def written(model: Any) -> str:
    try:
        config = figures(json.dumps(to_config(model)[0], sort_keys=True))
    except InputError:
        config = "refused"
    return f"TOML {figures(re.sub('^#.*', '', to_toml(model), flags=re.MULTILINE))}; config {config}"


def of_changes(config: dict[str, Any], values: bool) -> str:
    idle, outcomes = outcome(config), [outcome(change) for change in altered(config, values)]
    refused = sum(text.startswith("refused") for text in outcomes)
    counts = f"{len(outcomes)} changes, {refused} refused, {outcomes.count(idle)} idle, {len(set(outcomes))} outcomes"
    return f"{counts}; {figures(' '.join(text for text in outcomes if not text.startswith('refused')))}"


def row(config: dict[str, Any]) -> str:
    try:
        model = build(*describe(config))
    except InputError:
        return "refused"
    ledger = model.ledger(2, 70)
    totals = [ledger.total(name) for name in ("params", "flops", "flops_other", "cache", "saved")]
    return f"{' '.join(map(str, totals))}; {written(model)}"


@cache
def configs(file: str) -> dict[str, dict[str, Any]]:
    stored = json.loads((HF / f"{file}.json").read_text("utf-8"))
    return {name: config.get("config", config) for name, config in stored.items()}


@pytest.mark.drawn(1000)
@pytest.mark.slow
@pytest.mark.parametrize("file", ["configs", "small", "towers", "custom", "hand", "halves", "published"])
def test_configs_are_read_as_before(file: str, update_golden: bool) -> None:
    rows, values = [], file in SMALL
    types = set() if values else {config.get("model_type") for small in SMALL for config in configs(small).values()}
    for name, config in configs(file).items():
        rows.append(f"{name}: {row(config)}")
        if config.get("model_type") not in types:
            types.add(config.get("model_type"))
            rows.append(f"  {of_changes(config, values)}")
    path = GOLDEN / "configs" / f"{file}.txt"
    if update_golden:
        path.write_text("\n".join(rows) + "\n", "utf-8")
    assert rows == path.read_text("utf-8").splitlines()
