"""Makes `presets/theorems.json`: every structure of the presets, of the tests' configs and of common variants.

    python tests/make_theorems.py [--again] [FOLDER OF config.json FILES …]

What has a theorem already is left, unless `--again`; structures that cannot be proved are printed with the reason. A
structure takes one to forty seconds; two work side by side.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tiny import TINY

from txcalc import load
from txcalc.errors import Refuted, TxcalcError
from txcalc.model import Model
from txcalc.planning import theorems
from txcalc.planning.theorems import Theorem, Unit
from txcalc.sources import build
from txcalc.sources.presets import names

CONFIGS = Path(__file__).parent / "data" / "hf" / "configs.json"
# What people change with --set, and what sizes of one family differ in.
VARIANTS: tuple[dict[str, Any], ...] = (
    {"h_kv": 1}, {"attention.window": 4096}, {"attention.window": None}, {"head.tied": True}, {"head.tied": False},
    {"attention.bias": ["q", "k", "v"]}, {"attention.qk_norm": "head"}, {"feed_forward.gated": False},
)  # fmt: skip
TUNED = ("llama-3.1-8b", "qwen2.5-7b", "qwen3-8b", "gemma-3-27b", "gpt2", "mixtral-8x7b")  # with adapters beside them


def models(folders: list[str]) -> Iterator[Model]:
    """Presets, the tests' descriptions and configs, further folders of them, and variants of the presets."""
    for name in names():
        yield from read(name)
        heads = next((layer["attention"]["n_heads"] for layer in _layers(load(name)) if "attention" in layer), None)
        for change in (*VARIANTS, *([{"h_kv": heads}] if heads else [])):
            yield from read(name, change)
    for name in TUNED:
        for modules in (["q", "v"], ["q", "k", "v", "o"], ["all"]):
            yield from read(name, {"lora.rank": 16, "lora.modules": modules})
    for name, description in TINY.items():
        yield build(description, name)
    with TemporaryDirectory() as place:
        for name, config in json.loads(CONFIGS.read_text()).items():
            path = Path(place) / f"{name}.json"
            path.write_text(json.dumps(config))
            yield from read(path)
    for path in (path for folder in folders for path in sorted(Path(folder).glob("*.json"))):
        yield from read(path)


def read(source: str | Path, changes: dict[str, Any] | None = None) -> list[Model]:
    """The model, unless it is refused."""
    try:
        return [load(source, changes)]
    except TxcalcError:
        return []


def _layers(model: Model) -> Iterator[dict[str, Any]]:
    for stack in model.spec["stacks"].values():
        yield from stack["layer"].values()


def attempt(unit: Unit) -> tuple[Theorem | None, str]:
    """In a process of its own: a theorem, or why there is none."""
    from txcalc.verify.prove import prove

    try:
        theorem, rows = prove(unit)
    except Refuted as refusal:
        return None, str(refusal)
    unequal = [f"{row.path} {row.quantity}: {row.predicted}, not {row.measured}" for row in rows if not row.equal]
    return (None, f"REFUTED: {unequal[0]}") if unequal else (theorem, "")


def main(folders: list[str], again: bool) -> None:
    from txcalc.verify.prove import made_with

    wanted: dict[str, tuple[str, Unit]] = {}
    for model in models(folders):
        for unit in theorems.units(model):
            if again or theorems.obstacle(unit):
                wanted.setdefault(unit.key, (model.name, unit))
    print(f"{len(wanted)} structures to prove")
    with ProcessPoolExecutor(2) as pool:
        answers = pool.map(attempt, [unit for _, unit in wanted.values()])
        for (name, unit), (theorem, reason) in zip(wanted.values(), answers, strict=True):
            print("proved" if theorem else "NOT", unit.key, name, unit.name, reason, flush=True)
            if theorem:
                theorems.write(theorems.theorems_file(), {unit.key: theorem}, made_with())


if __name__ == "__main__":
    options = sys.argv[1:]
    main([option for option in options if option != "--again"], "--again" in options)
