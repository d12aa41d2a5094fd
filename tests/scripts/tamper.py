"""Wrong formulas that keep their mark: `python tests/scripts/tamper.py [--drawn 60] [--seed 1]`, six minutes.

Each tamper is an edit of a source file: those of `data/tampers.toml`, by hand, and others drawn from all of `parts/`,
the ledger and the rules of gradients (an operator, a constant or a letter is another). A process of its own runs with
it, and asks for every figure of `MODELS` at `WORKLOADS` and for its evidence. A figure that is another than without the
edit and is still called proved, listed or measured is a fault, and the exit code 1. An edit of a default makes another
model, of which its figures are right: what a description means is compared with published counts, not proved.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.util
import json
import os
import random
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "txcalc"
TEXT = (ROOT / "tests" / "data" / "tampers.toml").read_text(encoding="utf-8")
MODELS = (
    "gpt2", "llama-3.1-8b", "mistral-7b", "gemma-3-4b", "mixtral-8x7b", "deepseek-v3", "t5-small", "whisper-large-v3",
    "vit-b", "bert-base", "mamba-2.8b", "mamba2-2.7b", "jamba-v0.1", "albert-base-v2", "gpt-oss-20b", "qwen3-8b",
    "D=20480 L=2 h=160 h_kv=8 F=50000 V=70000", "D=1000 L=3 h=10 h_kv=5 F=3000 V=5000 ln bias window=50",
)  # fmt: skip
WORKLOADS: tuple[dict[str, Any], ...] = (
    {}, {"batch": 3, "tokens": 5}, {"batch": 2, "tokens": 9000}, {"batch": 32, "tokens": 448},
    {"batch": 3, "tokens": 2, "past": 9000}, {"tokens": 1, "past": 3},
    {"batch": 2, "tokens": 3, "past": 5000, "logits": "last", "mla": "absorbed"},
)  # fmt: skip
SURE = ("proved", "listed", "measured")
PLACES = ("parts", "ledger.py", "planning/gradients.py")


class Tamper(NamedTuple):
    """An edit: what it does, the file below the package, and its source before and after."""

    name: str
    file: str
    before: str
    after: str


TAMPERS = [Tamper(**edit) for edit in tomllib.loads(TEXT)["tamper"]]


class _Edited(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module of the package with other source."""

    def __init__(self, file: str, source: str) -> None:
        self.module = "txcalc." + file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        self.source, self.file = source, str(PACKAGE / file)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name == self.module else None

    def exec_module(self, module: Any) -> None:
        exec(compile(self.source, self.file, "exec"), module.__dict__)


def answers() -> dict[str, tuple[int, str]]:
    """Every figure with its evidence; an error is an answer too."""
    from txcalc import load
    from txcalc.description import as_tables
    from txcalc.evidence.known import show_known
    from txcalc.planning.gradients import training_flops

    table: dict[str, tuple[int, str]] = {}
    for name in MODELS:
        model = load(name)
        tables = repr([as_tables(stack) for stack in model.description.stacks.values()])
        described = f"{name} {crc32(tables.encode()):08x}"
        for sizes in WORKLOADS:
            if "past" in sizes and not model.decodes:
                continue
            work: dict[str, Any] = {"batch": 1, "tokens": min(model.usual_tokens, sizes.get("tokens", 2048)), **sizes}
            shown, kept = model.ledger(**work), model.ledger(**work, keep_scores=True)
            figures = {
                quantity: shown.total(quantity)
                for quantity in ("params", "active", "flops", "flops_masked", "cache", "saved")
            }
            figures |= {"training": training_flops(shown), "saved_kept": kept.total("saved")}
            evidence = show_known(model, shown, kept)
            for quantity, figure in figures.items():
                table[f"{described} {sizes} {quantity}"] = int(figure), evidence[quantity].how
    return table


def run(file: str = "", source: str = "", ask: Callable[[], Any] = answers) -> Any:
    """What a process of its own answers with an edited file; or, as a text, why it does not."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.environ["XDG_DATA_HOME"] = os.devnull
        sys.path.insert(0, str(ROOT))
        if file:
            sys.meta_path.insert(0, _Edited(file, source))
        try:
            answer: Any = ask()
        except Exception as error:  # a tampered formula may fail in any way
            answer = f"{type(error).__name__}: {error}"[:200]
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else "no answer"


def called() -> list[str]:
    """The functions of the package that run for the answers, as "FILE NAME"."""
    functions = set[str]()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            functions.add(f"{os.path.relpath(frame.f_code.co_filename, PACKAGE)} {frame.f_code.co_name}")

    sys.setprofile(note)
    answers()
    sys.setprofile(None)
    return sorted(functions)


SWAPS: dict[type, type] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add}


def drawn(seed: int, functions: set[str]) -> Iterator[Tamper]:
    """Edits of the functions that are called, in an order drawn by a seed: another operator, a constant plus one,
    another of a function's names."""
    draw = random.Random(seed)
    files = [
        path
        for place in PLACES
        for path in sorted([PACKAGE / place] if place.endswith(".py") else (PACKAGE / place).rglob("*.py"))
    ]
    places = [(path, at) for path in files for at, _ in enumerate(_edits(ast.parse(_text(path)), path, functions))]
    draw.shuffle(places)
    for path, at in places:
        before = _text(path)
        tree = ast.parse(before)
        edit = list(_edits(tree, path, functions))[at]
        line, text = edit[0].lineno, ast.unparse(edit[0])
        edit[1]()
        name = f"{path.relative_to(PACKAGE)}:{line}: {text} → {ast.unparse(edit[0])}"
        yield Tamper(name, str(path.relative_to(PACKAGE)), before, ast.unparse(tree))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _edits(tree: ast.Module, path: Path, functions: set[str]) -> Iterator[tuple[Any, Any]]:
    """Nodes of the functions that are called, with what edits each in place."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or f"{path.relative_to(PACKAGE)} {function.name}" not in functions:
            continue
        names = sorted(
            {
                node.attr
                for node in ast.walk(function)
                if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
            }
        )
        for node in ast.walk(function):
            if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
                yield node, lambda node=node: setattr(node, "op", SWAPS[type(node.op)]())
            elif isinstance(node, ast.Constant) and type(node.value) is int:
                yield node, lambda node=node: setattr(node, "value", node.value + 1)
            elif isinstance(node, ast.Attribute) and node.attr in names and len(names) > 1:
                attribute = names[(names.index(node.attr) + 1) % len(names)]
                yield node, lambda node=node, attribute=attribute: setattr(node, "attr", attribute)


def tampered(tamper: Tamper) -> Any:
    """What a process answers with a tamper."""
    source = _text(PACKAGE / tamper.file)
    assert tamper.before in source, f"{tamper.name} does not apply"
    edited = source.replace(tamper.before, tamper.after, 1)
    if tamper.file == "parts/work.py":
        edited = edited.replace("from txcalc.num import ", "from txcalc.num import exact_div, minimum, ")
    return run(tamper.file, edited)


def faults(honest: dict[str, tuple[int, str]], tampered: dict[str, tuple[int, str]]) -> tuple[int, list[str]]:
    """How many figures of models with the same description are others, and which of them are still marked."""
    changed = [name for name, (figure, _) in tampered.items() if name in honest and figure != honest[name][0]]
    return len(changed), [
        f"{name}: {tampered[name]}, not {honest[name][0]:,}" for name in changed if tampered[name][1] in SURE
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drawn", type=int, default=60, help="edits beside TAMPERS, of those that change a figure")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--by-hand", action="store_true", help="only those of TAMPERS")
    options = parser.parse_args(arguments)
    honest = run()
    assert isinstance(honest, dict), honest
    marked = sum(how in SURE for _, how in honest.values())
    print(f"{len(honest):,} figures, {marked:,} of them proved, listed or measured")
    wrong, changed, kept = 0, 0, 0
    tampers = chain(TAMPERS, () if options.by_hand else drawn(options.seed, set(run(ask=called))))
    with ThreadPoolExecutor(options.jobs) as pool:
        while changed < len(TAMPERS) + options.drawn and (batch := list(islice(tampers, 4 * options.jobs))):
            for tamper, result in zip(batch, pool.map(tampered, batch), strict=True):
                if isinstance(result, str):
                    print(f"fails    {tamper.name}: {result}")
                    continue
                number, still = faults(honest, result)
                changed += number > 0
                wrong += bool(still)
                kept += number == 0
                same = "no figure" if result.keys() == honest.keys() else "another model"
                verdict = "MARKED  " if still else "unmarked" if number else same
                print("\n    ".join([f"{verdict} {tamper.name}: {number} figures differ", *still[:3]]))
    print(f"{changed} edits change figures, {kept} change none; {wrong} leave a wrong figure marked")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
