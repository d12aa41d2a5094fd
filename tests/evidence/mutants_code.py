"""Small faults in the formulas, one at a time, and whether the tests see them:

    python tests/evidence/mutants_code.py RESULTS.jsonl [--number 300] [--seed 1] [--seconds 3600] [--under parts]
        [--first]

Each mutant changes one operator, one constant, one comparison or one of the field's letters in a copy of the tree, in
turn over all files, drawn by the seed. The tests of its file (`FIRST`) run first, then the rest of the quick tier (not
with `--first`: it takes minutes for each survivor); the first failure kills it. A line of RESULTS is written for each;
what is there already is not run again: it goes on where it ended. At the end: how many were killed, and every survivor
with its line. One that changes nothing that can be seen belongs into `EQUAL`, with the reason.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
COPIED = ("txcalc", "presets", "tests", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE")
BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult,
    ast.Mod: ast.Mult,
}  # fmt: skip
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
# Letters that are easily taken for each other.
TAKEN = {
    "n_heads": "n_kv_heads", "n_kv_heads": "n_heads", "tokens": "source", "source": "tokens", "keys": "tokens",
    "d_in": "d_out", "d_out": "d_in", "d_qk": "d_v", "d_v": "d_qk", "top_k": "n_experts", "n_experts": "top_k",
    "runs": "times", "times": "runs", "active_times": "times", "compute": "memory", "flops": "flops_masked",
}  # fmt: skip
# Which test files are likely to see a fault in a file; the others come after.
FIRST = {
    "parts": ["test_tamper.py", "test_closed_forms.py", "test_ledger.py", "test_operators.py"],
    "planning/training": ["test_train.py", "test_train_memory.py", "test_layouts.py"],
    "planning": ["test_serving.py", "test_deploy.py", "test_steady.py", "test_sizing.py", "test_conventions.py",
                 "test_crossover.py", "test_fit.py", "test_scale.py", "test_engine_memory.py"],
}  # fmt: skip
# Mutants that no one can see, by file, line's text and change, and why.
EQUAL: dict[tuple[str, str, str], str] = {}


class Mutant(NamedTuple):
    """A change of the n-th place of a file at which there is one."""

    file: str
    place: int
    line: int
    text: str
    change: str


class Places(ast.NodeTransformer):
    """Counts the places where a file can be changed, and changes the one asked for."""

    def __init__(self, wanted: int = -1) -> None:
        self.wanted, self.found = wanted, list[tuple[int, str]]()

    def _place(self, node: ast.AST, change: str) -> bool:
        self.found.append((getattr(node, "lineno", 0), change))
        return len(self.found) - 1 == self.wanted

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        other = BINARY.get(type(node.op))
        text = isinstance(node.left, ast.Constant | ast.JoinedStr) and not _number(node.left)
        if other and not text and self._place(node, f"{type(node.op).__name__} → {other.__name__}"):
            node.op = other()
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        other = COMPARED.get(type(node.ops[0]))
        if other and self._place(node, f"{type(node.ops[0]).__name__} → {other.__name__}"):
            node.ops[0] = other()
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value: Any = node.value
        if _number(node) and self._place(node, f"{value} → {value + 1}"):
            return ast.Constant(value + 1)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        other = TAKEN.get(node.attr)
        if other and isinstance(node.ctx, ast.Load) and self._place(node, f"{node.attr} → {other}"):
            node.attr = other
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        if self._place(node, "the other branch"):
            node.body, node.orelse = node.orelse, node.body
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = self.visit(node.value) if node.value else None  # an annotation is no formula
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        node.defaults = [self.visit(one) for one in node.defaults]
        return node


def _number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def places(file: str) -> list[Mutant]:
    """All the changes that a file allows."""
    source = (ROOT / file).read_text()
    lines, look = source.splitlines(), Places()
    look.visit(ast.parse(source))
    return [Mutant(file, i, line, lines[line - 1].strip(), change) for i, (line, change) in enumerate(look.found)]


def drawn(under: list[str], number: int, seed: int) -> Iterator[Mutant]:
    """So many, from all files in turn."""
    chance = random.Random(seed)
    files = sorted(str(p.relative_to(ROOT)) for name in under for p in (ROOT / "txcalc" / name).rglob("*.py"))
    left = [found for found in map(places, files) if found]
    for found in left:
        chance.shuffle(found)
    while left and number > 0:
        for found in left[:number]:
            yield found.pop()
        number -= len(left[:number])
        left = [found for found in left if found]


def killed(mutant: Mutant, tree: Path, seconds: float, only_first: bool) -> str | None:
    """The test that sees it; "" where none does; None: the tests did not end, maybe on a busy machine."""
    path, source = tree / mutant.file, (ROOT / mutant.file).read_text()
    try:
        path.write_text(ast.unparse(Places(mutant.place).visit(ast.parse(source))))
        name = mutant.file.removeprefix("txcalc/")
        own = f"test_{Path(name).stem}.py"
        first = [own, *next((files for start, files in FIRST.items() if name.startswith(start + "/")), [])]
        there = [f"tests/{file}" for file in dict.fromkeys(first) if (tree / "tests" / file).is_file()]
        rest = [f"--ignore={file}" for file in there]
        for chosen in (there,) if only_first else (there, ["tests", *rest]):
            found = failed(tree, chosen, seconds)
            if found != "":
                return found
        return ""
    finally:
        path.write_text(source)


def failed(tree: Path, chosen: list[str], seconds: float) -> str | None:
    """The first test of the quick tier that fails, "" where none does; None: they did not end."""
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--tb=no"]
    env = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    deselect = [
        "--ignore=tests/test_architecture.py",
        "--ignore=tests/test_docs.py",
    ]  # they read the source, not figures
    try:
        ran = subprocess.run(
            [*pytest, *deselect, *chosen], cwd=tree, env=env, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return None
    if ran.returncode in (0, 5):
        return ""
    seen = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return seen[0].split(" - ")[0] if seen else f"pytest ended with {ran.returncode}"


def main() -> int:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("results", type=Path)
    about.add_argument("--number", type=int, default=300)
    about.add_argument("--seed", type=int, default=1)
    about.add_argument("--seconds", type=float, default=3600, help="after which no other is begun")
    about.add_argument("--each", type=float, default=600, help="seconds of tests for one")
    about.add_argument("--first", action="store_true", help="the tests of its file alone")
    about.add_argument("--under", nargs="+", default=["parts", "planning"])
    asked = about.parse_args()
    done = [json.loads(line) for line in asked.results.read_text().splitlines()] if asked.results.is_file() else []
    known = {(one["file"], one["text"], one["change"]) for one in done}
    end = time.monotonic() + asked.seconds
    if hasattr(os, "nice"):
        os.nice(10)
    with tempfile.TemporaryDirectory() as folder, asked.results.open("a") as out:
        tree = Path(folder)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, tree / name)
        for mutant in drawn(asked.under, asked.number, asked.seed):
            if (mutant.file, mutant.text, mutant.change) in known:
                continue
            if time.monotonic() > end:
                break
            by = killed(mutant, tree, asked.each, asked.first)
            if by is None:
                print(f"{mutant.file}:{mutant.line}: {mutant.change}: undecided after {asked.each:.0f} s", flush=True)
                continue
            done.append({**mutant._asdict(), "killed_by": by})
            print(f"{mutant.file}:{mutant.line}: {mutant.change}: {by or 'SURVIVED'}", flush=True)
            out.write(json.dumps(done[-1], ensure_ascii=False) + "\n")
            out.flush()
    report(done)
    return 0


def report(done: list[dict[str, str]]) -> None:
    """Killed of those that change something, and who lived."""
    alive = [one for one in done if not one["killed_by"]]
    equal = [one for one in alive if (one["file"], one["text"], one["change"]) in EQUAL]
    counted = len(done) - len(equal)
    rate = f" ({100 * (len(done) - len(alive)) / counted:.1f} %)" if counted else ""
    print(f"{len(done) - len(alive)} of {counted} killed{rate}, {len(equal)} change nothing")
    for one in alive:
        why = EQUAL.get((one["file"], one["text"], one["change"]), "")
        print(f"  {one['file']}:{one['line']}: {one['change']}: {one['text']}" + (f"  [{why}]" if why else ""))


if __name__ == "__main__":
    sys.exit(main())
