"""Makes `presets/theorems.json`: every structure of the presets; and of common variants, of the tests' configs and of
each class of transformers at its type's own sizes the smallest ones that they are the sum of (`evidence.splits`), with
parameters and FLOPs alone.

    python tests/scripts/make_theorems.py [--again] [--further] [--jobs 2] [--prune] [FOLDER …]
    python tests/scripts/make_theorems.py --check [--part 3/10]

What has a theorem already is left, unless `--again`; `--further` also shows what those of the presets lack beyond
parameters and forward FLOPs (training, saved activations, decoding, masks). Structures that cannot be proved are
printed with the reason. A structure takes one to forty seconds. A FOLDER holds `truth.json` and `configs/NAME.json`, as
`tests/scripts/configs.py` has them. `--prune` drops theorems of structures that none of all these has. `--check` makes
kept theorems again and compares: exit code 1 where one is another; `--part 3/10` those of every tenth key, from the
third.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from tiny import TINY

from txcalc import load
from txcalc.description import as_tables
from txcalc.errors import TxcalcError
from txcalc.evidence import store, theorems
from txcalc.evidence.structures import with_numbers
from txcalc.evidence.theorems import Theorem, Unit
from txcalc.model import Model
from txcalc.parts.options import ACTIVATIONS
from txcalc.sources import build
from txcalc.sources.huggingface import describe, transformers_metadata as metadata
from txcalc.sources.presets import names

HELD = Path(__file__).parents[2] / "tests" / "data" / "hf"
# What people change with --set, and what sizes of one family differ in.
VARIANTS: tuple[dict[str, Any], ...] = (
    {"h_kv": 1}, {"attention.window": 4096}, {"attention.window": None}, {"head.tied": True}, {"head.tied": False},
    {"attention.bias": ["q", "k", "v"]}, {"attention.qk_norm": "head"}, {"feed_forward.gated": False},
)  # fmt: skip
# Of which any two are changed together.
CHANGES: tuple[dict[str, Any], ...] = (
    {"attention.bias": ["q", "k", "v", "o"]}, {"attention.bias": ["q", "k", "v"]}, {"attention.bias": ["o"]},
    {"attention.qk_norm": "head"}, {"attention.qk_norm": "width"}, {"attention.window": 9}, {"norm.form": "layer"},
    {"norm.place": "post"}, {"feed_forward.gated": False}, {"feed_forward.bias": True}, {"h_kv": 1},
)  # fmt: skip
CHANGED = ("llama-3.1-8b", "bert-base", "gpt2")
TUNED = ("llama-3.1-8b", "qwen2.5-7b", "qwen3-8b", "gemma-3-27b", "gpt2", "mixtral-8x7b")  # with adapters beside them


def models(folders: list[Path]) -> Iterator[tuple[str, Model]]:
    """Presets, variants of them, the tests' descriptions and configs, those of further folders: with their origin."""
    for name in names():
        yield "presets", load(name)
        heads = next((layer["attention"]["n_heads"] for layer in _layers(load(name)) if "attention" in layer), None)
        for change in (*VARIANTS, *([{"h_kv": heads}] if heads else [])):
            yield from changed(name, change)
    for name, (first, second) in product(CHANGED, combinations(CHANGES, 2)):
        yield from changed(name, first | second)
    for form in ACTIVATIONS:
        yield from changed(CHANGED[0], {"feed_forward.activation": form})
    for name in TUNED:
        for modules in (["q", "v"], ["q", "k", "v", "o"], ["all"]):
            yield from changed(name, {"lora.rank": 16, "lora.modules": modules})
    for name, description in TINY.items():
        yield "descriptions", build(description, name)
    for name, config in json.loads((HELD / "configs.json").read_text()).items():
        yield from read("configs", name, config)
    for origin in ("wild", "small"):
        for name, entry in json.loads((HELD / f"{origin}.json").read_text()).items():
            yield from read(origin, name, entry["config"])
    for name, config in defaults():
        yield from read("defaults", name, config)
    for folder in folders:
        for entry in json.loads((folder / "truth.json").read_text()):
            config = json.loads((folder / "configs" / f"{entry['name']}.json").read_text())
            if isinstance(config, dict) and config.get("_head") == "base":
                config["architectures"] = [entry["class"]]
            yield from read(folder.name, entry["name"], config)


def defaults(kinds: Collection[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each configuration of transformers (or some `kinds`) is by itself, for each of its classes, and for none."""
    import transformers

    for kind in kinds or transformers.CONFIG_MAPPING:
        try:
            config = json.loads(transformers.CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
        except Exception:  # it has sizes without defaults, or what no JSON holds
            continue
        for cls in (None, *metadata.classes(kind)):
            yield f"{kind} {cls}", {**config, "model_type": kind, "architectures": cls and [cls]}


def changed(name: str, changes: dict[str, Any]) -> Iterator[tuple[str, Model]]:
    """A preset with a change, unless it is refused."""
    try:
        yield "variants", load(name, changes)
    except TxcalcError:
        return


def read(origin: str, name: str, config: Any) -> Iterator[tuple[str, Model]]:
    """The model of a config, unless it is refused."""
    if isinstance(config, dict):
        config = {key: value for key, value in config.items() if key not in ("_source", "_head")}
    try:
        description, *_ = describe(config)
        yield origin, build(description, name)
    except TxcalcError:
        return


def _layers(model: Model) -> Iterator[dict[str, Any]]:
    yield from map(as_tables, model.description.layers)


def lacking(unit: Unit) -> set[str]:
    """The further quantities of which its theorem says nothing."""
    return set(theorems.FIGURES) - set(theorems.PROVED) - set(theorems.theorems()[unit.key].extra_quantities)


def attempt(task: tuple[str, Unit, bool], anew: bool = False) -> tuple[Theorem | None, str]:
    """In a process of its own: a theorem, or why there is none; of what has one, what is shown further."""
    from txcalc.verification.extra_quantities import prove_extra
    from txcalc.verification.prove import prove

    _, unit, preset = task
    kept = theorems.theorems().get(unit.key)
    try:
        if kept is not None and not anew and not theorems.obstacle(unit):
            proofs = {q: row for q, row in kept.extra_quantities.items() if row.digest == theorems.digest(unit, q)}
            added, rows = prove_extra(unit, proofs)
            theorem = kept._replace(extra_quantities={**proofs, **added})
        else:
            theorem, rows = prove(unit, preset or (kept is not None and bool(kept.extra_quantities)))
    except TxcalcError as refusal:
        return None, str(refusal)
    unequal = [f"{row.path} {row.quantity}: {row.predicted}, not {row.measured}" for row in rows if not row.equal]
    return (None, f"REFUTED: {unequal[0]}") if unequal else (theorem, ", ".join(theorem.extra_quantities))


def prune(folders: list[Path]) -> None:
    """Drops what no model has."""
    path = theorems.theorems_file()
    content = json.loads(path.read_text("utf-8"))
    met = set[str]()
    for _, model in models(folders):
        met.update(part.key for unit in theorems.units(model) for part in theorems.bearing(unit))
        met.update(with_numbers(part).key for part in (model, *model.towers.values()))
    kept = {key: theorem for key, theorem in theorems.read(path).items() if key in met}
    print(f"{len(content['theorems']) - len(kept)} dropped, {len(kept)} kept")
    store.save(path, kept, content["made_with"])


def check(folders: list[Path], part: tuple[int, int], jobs: int) -> int:
    """Makes kept theorems again, all or a part, and says which are others: 1 if any is."""
    kept = theorems.read(theorems.theorems_file())
    chosen = set(sorted(key for key, theorem in kept.items() if theorem.digests)[part[0] % part[1] :: part[1]])
    tasks: dict[str, tuple[str, Unit, bool]] = {}
    for _, model in models(folders):
        for unit in theorems.units(model):
            for piece in {piece.key: piece for piece in (unit, *theorems.bearing(unit))}.values():
                if piece.key in chosen:
                    tasks.setdefault(piece.key, (model.name, piece, False))
    differing = 0
    with ProcessPoolExecutor(jobs) as pool:
        answers = pool.map(partial(attempt, anew=True), tasks.values())
        for (name, unit, _), (theorem, reason) in zip(tasks.values(), answers, strict=True):
            before = kept[unit.key]
            equal = theorem is not None and theorem._replace(name=before.name, extra_quantities={}) == before._replace(
                extra_quantities={}
            )
            extra = {} if theorem is None else theorem.extra_quantities
            equal = equal and all(extra.get(quantity) == shown for quantity, shown in before.extra_quantities.items())
            differing += not equal
            print("same" if equal else "OTHER", unit.key, name, unit.name, "" if equal else reason, flush=True)
    print(
        f"{len(tasks)} of {len(chosen)} theorems made again, {differing} are others; {len(chosen) - len(tasks)} not met"
    )
    return int(differing > 0)


def make(folders: list[Path], anew: bool, extra: bool, jobs: int) -> None:
    """Proves what lacks a theorem, or all."""
    from txcalc.verification.prove import tracer_version

    tasks: dict[str, tuple[str, Unit, bool]] = {}
    for origin, model in models(folders):
        for unit in theorems.units(model):
            if origin == "presets":  # theorems of their own, which say more
                if anew or theorems.obstacle(unit) or (extra and lacking(unit)):
                    tasks.setdefault(unit.key, (model.name, unit, True))
                continue
            for part in [*theorems.missing(unit), *(theorems.bearing(unit) if anew else ())]:
                tasks.setdefault(part.key, (model.name, part, False))
    print(f"{len(tasks)} structures to prove", flush=True)
    with ProcessPoolExecutor(jobs) as pool:
        answers = pool.map(partial(attempt, anew=anew), tasks.values())
        for (name, unit, _), (theorem, reason) in zip(tasks.values(), answers, strict=True):
            print("proved" if theorem else "NOT", unit.key, name, unit.name, reason, flush=True)
            if theorem:
                theorems.write(theorems.theorems_file(), {unit.key: theorem}, tracer_version())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*", metavar="FOLDER")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--further", action="store_true")
    parser.add_argument("--prune", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--part", default="0/1", metavar="I/N")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    os.environ["XDG_DATA_HOME"] = os.devnull  # the user's own theorems are none of the package's
    if options.check:
        first, number = map(int, options.part.split("/"))
        sys.exit(check(options.folders, (first, number), options.jobs))
    if options.prune:
        prune(options.folders)
    else:
        make(options.folders, options.again, options.further, options.jobs)


if __name__ == "__main__":
    main()
