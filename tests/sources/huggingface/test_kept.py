"""How stored configs are read, and what is written of them, kept in `golden/configs/`: totals of each; how many numbers
its TOML and its config.json have, their sum, and their length; and of one of each type, what happens where a key is
missing or has another value (another size, word or list; in published configs, null too): how many changes are
refused, how many are idle, how many outcomes there are, and their numbers and length: a default is one of them.

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

# Files, and in how many parts each is read; those of small sizes have all keys of a type.
PARTS = {"configs": 8, "small": 8, "towers": 5, "custom": 3, "hand": 1, "halves": 1, "published": 3}
SMALL = ("small", "custom", "hand")
NUMBER = re.compile(r"\d[\d.,]*")


def changes(value: Any, null: bool) -> Iterator[Any]:
    if null:
        yield None
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from {0, 1, value + 1} - {value}
    elif isinstance(value, list):
        yield from ([], value[1:], [*value, *value[-1:]])
    elif value:
        yield "other"


def altered(config: dict[str, Any], null: bool) -> Iterator[dict[str, Any]]:
    """A config without each of its keys, and with other values of each, in tables too."""
    for key, value in config.items():
        yield {name: config[name] for name in config if name != key}
        yield from ({**config, key: new} for new in changes(value, null))
        if isinstance(value, dict):
            yield from ({**config, key: table} for table in altered(value, null))


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
    """How many numbers there are, their sum, and how long it is with its words."""
    numbers = [float(number.rstrip(".,").replace(",", "")) for number in NUMBER.findall(text)]
    return f"{len(numbers)} numbers, sum {sum(numbers):,.10g}, {len(text):,} characters"


def written(model: Any) -> str:
    try:
        config = figures(json.dumps(to_config(model)[0], sort_keys=True))
    except InputError:
        config = "refused"
    return f"TOML {figures(re.sub('^#.*', '', to_toml(model), flags=re.MULTILINE))}; config {config}"


def of_changes(config: dict[str, Any], null: bool) -> str:
    idle, outcomes = outcome(config), [outcome(change) for change in altered(config, null)]
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


def type_of(file: str, config: dict[str, Any]) -> object:
    """What other code calls by one model type may be several."""
    name = config.get("model_type")
    return (name, str(config.get("architectures"))) if file == "custom" else name


def row_of(file: str, number: int) -> str:
    """A config's totals; of the first of a type, also what its changes give."""
    stored = list(configs(file).items())
    name, config = stored[number]
    types = {type_of(file, other) for _, other in stored[:number]}
    if file not in SMALL:
        types |= {other.get("model_type") for small in SMALL for other in configs(small).values()}
    return f"{name}: {row(config)}" + (
        "" if type_of(file, config) in types else f"\n  {of_changes(config, file not in SMALL)}"
    )


@pytest.mark.drawn(1000)
@pytest.mark.slow
@pytest.mark.parametrize(("file", "part"), [(file, part) for file, parts in PARTS.items() for part in range(parts)])
def test_configs_are_read_as_before(file: str, part: int, update_golden: bool) -> None:
    path, numbers = GOLDEN / "configs" / f"{file}.txt", range(len(configs(file)))
    if update_golden and part == 0:
        path.write_text("\n".join(row_of(file, number) for number in numbers) + "\n", "utf-8")
    kept = re.split(r"\n(?! )", path.read_text("utf-8").rstrip("\n"))
    assert len(kept) == len(numbers)
    if not update_golden:
        mine = slice(part, None, PARTS[file])
        assert [row_of(file, number) for number in numbers[mine]] == kept[mine]
