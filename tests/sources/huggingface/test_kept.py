"""How stored configs are read, and what is written of them, kept in `golden/configs/`: totals of each; digests of its
TOML and its config.json written again; and of one of each type, of what it is where a key is missing, null or changed.

Other tests show that totals are right, beside transformers and published code. `--update-golden` writes the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest
from paths import GOLDEN, HF

from txcalc.errors import InputError
from txcalc.sources import build
from txcalc.sources.export import to_config, to_toml
from txcalc.sources.huggingface import describe

NUMBER = re.compile(r"\d[\d.,]*")


def changes(value: Any, values: bool) -> Iterator[Any]:
    yield None
    if isinstance(value, bool):
        yield not value
    elif values:
        yield from (0, value + 1) if isinstance(value, int | float) else ("other", []) if value else ()


def altered(config: dict[str, Any], values: bool) -> Iterator[dict[str, Any]]:
    """A config without each of its keys, and with other values of each, in tables too."""
    for key, value in config.items():
        yield {other: config[other] for other in config if other != key}
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
        return " ".join([*(getattr(fault, "key", "") for fault in error.faults), *NUMBER.findall(str(error))])
    return " ".join([*sorted(values_of(raw)), *NUMBER.findall(str(texts))])


def digest(texts: Iterator[str]) -> str:
    return sha256("\n".join(texts).encode()).hexdigest()[:12]


def written(model: Any) -> Iterator[str]:
    yield " ".join(NUMBER.findall(re.sub(r"^#.*\n", "", to_toml(model), flags=re.MULTILINE)))
    try:
        yield json.dumps(to_config(model)[0], sort_keys=True)
    except InputError as error:
        yield " ".join(NUMBER.findall(str(error)))


def row(config: dict[str, Any], values: bool | None) -> str:
    changed = "" if values is None else digest(map(outcome, altered(config, values)))
    try:
        model = build(*describe(config))
    except InputError:
        return changed
    ledger = model.ledger(2, 70)
    totals = [ledger.total(name) for name in ("params", "flops", "flops_other", "cache", "saved")]
    return " ".join([*map(str, totals), digest(written(model)), changed])


@pytest.mark.drawn(1000)
@pytest.mark.slow
@pytest.mark.parametrize("file", ["configs", "small", "towers", "custom", "hand", "halves", "published"])
def test_configs_are_read_as_before(file: str, update_golden: bool) -> None:
    rows, types = [], set[str]()
    for name, config in json.loads((HF / f"{file}.json").read_text("utf-8")).items():
        config = config.get("config", config)
        values = None if config.get("model_type") in types else file in ("small", "custom", "hand")
        rows.append(f"{name}: {row(config, values)}".rstrip())
        types.add(config.get("model_type"))
    path = GOLDEN / "configs" / f"{file}.txt"
    if update_golden:
        path.write_text("\n".join(rows) + "\n", "utf-8")
    assert rows == path.read_text("utf-8").splitlines()
