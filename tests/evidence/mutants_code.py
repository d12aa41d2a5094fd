"""Small faults in the formulas, one at a time, and whether the tests see them:

    python tests/evidence/mutants_code.py RESULTS.jsonl --map [TEST_FILE …]
    python tests/evidence/mutants_code.py RESULTS.jsonl [--number 300] [--seed 1] [--seconds 500] [--under parts]
        [--tests 60] [--jobs 1] [--only FILE:LINE …] [--again]

Each mutant changes one operator, one constant, one comparison or one of the field's letters of a file, in turn over all
files, drawn by the seed. `--map` first runs the quick tier (or some files of it; slow tests too of those named with
`+`, as `+test_verify.py`) and writes beside RESULTS which functions of `parts/` and `planning/` each test calls, and
how long it takes. A mutant then runs the tests that call its function, at most `--tests` seconds of them: by turns one
of each test file, and the one that calls least besides; the first failure kills it. A process holds everything
imported and collected, and forks for each mutant: there the code of its functions is exchanged, or, for what a module
or class computes when it is made, everything of txcalc is imported from the changed source. A line of RESULTS is
written for each; what is there already is not run again. At the end: how many were killed, and every survivor with its
line. One that changes nothing that can be seen belongs into `tests/data/mutants.json`, with the reason. `--only` runs
again all mutants of a line, `--again` those of RESULTS that survived.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import functools
import gc
import importlib.util
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import groupby, zip_longest
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PLACES = tuple(str(ROOT / "txcalc" / name) + os.sep for name in ("parts", "planning"))
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
# They read the source, pages or the network, not figures.
WITHOUT = {
    "architecture", "device", "hostile", "hub", "idle", "packaging", "parquet", "plot", "tidy",
}  # fmt: skip
EQUAL = ROOT / "tests" / "data" / "mutants.json"


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


def outermost(code: CodeType) -> str:
    """The function that a test calls: one within it is named as it."""
    return code.co_qualname.split(".<locals>")[0]


def caches() -> list[Any]:
    """What remembers results of functions."""
    gc.unfreeze()  # what was there when all tests were collected is among no objects else
    return [one for one in gc.get_objects() if type(one) is functools._lru_cache_wrapper]


class Entered(ast.NodeTransformer):
    """Lets each function of a file say that it is entered, by the name of the outermost one."""

    def __init__(self, file: str) -> None:
        self.file, self.within, self.outermost = file, list[str](), ""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.within.append(node.name)
        self.generic_visit(node)
        self.within.pop()
        return node

    def _says(self, node: ast.AST, name: str) -> ast.expr:
        outer = self.outermost
        self.outermost = own = outer or ".".join([*self.within, name])
        self.generic_visit(node)
        self.outermost = outer
        return ast.parse(f"__entered__({f'{self.file}:{own}'!r})", mode="eval").body

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        said = ast.Expr(self._says(node, node.name))
        node.body.insert(0 if ast.get_docstring(node, clean=False) is None else 1, said)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        said = self._says(node, "<lambda>")
        node.body = ast.BoolOp(ast.Or(), [said, node.body])  # it returns None
        return node


class Calls:
    """Maps each test to the functions of `parts/` and `planning/` that it calls, and to its seconds."""

    def __init__(self, out: Path) -> None:
        self.out, self.seen = out, set[str]()
        builtins.__entered__ = self.seen.add  # type: ignore[attr-defined]
        sys.meta_path.insert(0, Sources(self._entering))

    def _entering(self, file: str) -> CodeType | None:
        return compiled(file, Entered(file)) if str(ROOT / file).startswith(PLACES) else None

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        remembered = caches()
        for file, items in groupby(session.items, key=lambda item: item.nodeid.split("::")[0]):
            self.file(file, list(items), remembered)
        return True

    def file(self, file: str, items: list[pytest.Item], remembered: list[Any]) -> None:
        """The tests of one file, those that fail left out."""
        found: list[tuple[str, float, list[str]]] = []
        for item, following in zip(items, [*items[1:], None], strict=True):
            for cache in remembered:
                cache.cache_clear()
            self.seen.clear()
            begun = time.perf_counter()
            failed = run(item, following)
            seconds = time.perf_counter() - begun
            if not failed and self.seen:
                found.append((item.nodeid, round(seconds, 3), sorted(self.seen)))
        known = json.loads(self.out.read_text()) if self.out.is_file() else {}
        self.out.write_text(json.dumps({**known, file: found}, ensure_ascii=False))
        print(f"{file}: {len(found)} of {len(items)} tests, {sum(test[1] for test in found):.1f} s", flush=True)


def run(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Whether a test fails; one that is skipped does not."""
    from _pytest.runner import runtestprotocol

    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


class Sources(MetaPathFinder):
    """Imports modules of txcalc from other code, where there is one."""

    def __init__(self, code: Callable[[str], CodeType | None]) -> None:
        self.code = code

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        place = name.replace(".", "/")
        file = f"{place}/__init__.py" if (ROOT / place).is_dir() else f"{place}.py"
        code = self.code(file) if name.startswith("txcalc") else None
        if code is None:
            return None
        spec = importlib.util.spec_from_file_location(name, ROOT / file)
        assert spec is not None and spec.loader is not None
        spec.loader.get_code = lambda _: code  # type: ignore[attr-defined]
        return spec


def compiled(file: str, change: ast.NodeTransformer) -> CodeType:
    """A file's code, changed."""
    tree = ast.fix_missing_locations(change.visit(ast.parse((ROOT / file).read_text())))
    return compile(tree, str(ROOT / file), "exec", dont_inherit=True)


def code_of(mutant: Mutant, wanted: int | None = None) -> CodeType:
    """A file's code with the change, or, where -1 is wanted, as it is."""
    return compiled(mutant.file, Places(mutant.place if wanted is None else wanted))


def pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The functions of a module that differ, from the module itself inwards."""
    if old != new:
        yield old, new
        within = ([one for one in code.co_consts if isinstance(one, CodeType)] for code in (old, new))
        for one, other in zip(*within, strict=True):  # in the same order: a constant may stand before more of them
            yield from pairs(one, other)


class Mutants:
    """The loop over mutants, in a process that has collected all tests."""

    def __init__(self, todo: list[Mutant], asked: argparse.Namespace) -> None:
        self.todo, self.asked = todo, asked
        self.tests = [test for tests in json.loads(map_of(asked.results).read_text()).values() for test in tests]
        self.tests.sort(key=lambda test: test[1] / len(test[2]))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        self.live: dict[CodeType, list[FunctionType]] = {}
        self.caches = caches()
        for one in gc.get_objects():
            if type(one) is FunctionType and one.__code__.co_filename.startswith(PLACES):
                self.live.setdefault(one.__code__, []).append(one)
        assert self.live and self.caches, "no function is found: every mutant would be imported anew"
        end = time.monotonic() + self.asked.seconds
        gc.freeze()
        workers = [self.worker(self.todo[first :: self.asked.jobs], end) for first in range(self.asked.jobs)]
        for worker in workers:
            os.waitpid(worker, 0)
        return True

    def worker(self, mutants: list[Mutant], end: float) -> int:
        child = os.fork()
        if child:
            return child
        for mutant in mutants:
            if time.monotonic() > end:
                break
            begun = time.monotonic()
            by = self.tried(mutant)
            line = json.dumps({**mutant._asdict(), "killed_by": by}, ensure_ascii=False)
            with self.asked.results.open("a") as out:
                out.write(line + "\n")
            took = time.monotonic() - begun
            sys.stderr.write(f"{mutant.file}:{mutant.line}: {mutant.change}: {by or 'SURVIVED'} ({took:.1f} s)\n")
        os._exit(0)

    def chosen(self, names: set[str]) -> tuple[list[str], float]:
        """The tests that call one of these functions, and their seconds: by turns one of each file, the quickest for
        what it calls first, and of all the one that calls least besides."""
        files: dict[str, list[tuple[str, float]]] = {}
        calling = [one for one in self.tests if one[0] in self.items and not names.isdisjoint(one[2])]
        for test, seconds, _ in calling:
            files.setdefault(test.split("::")[0], []).append((test, seconds))
        broad = [one for some in zip_longest(*files.values()) for one in some if one]
        narrow = [(test, seconds) for test, seconds, called in sorted(calling, key=lambda one: len(one[2]))]
        spent, found = 0.0, list[str]()
        for test, seconds in (one for pair in zip(broad, narrow, strict=True) for one in pair):
            if test not in found and spent + seconds < self.asked.tests:
                found.append(test)
                spent += seconds
        return found, spent

    def importing(self, file: str) -> list[str]:
        """The quick tests that call nothing of parts or planning, of the files that import a module, or all: they may
        read its tables."""
        module, mapped = module_of(file), {test for test, _, _ in self.tests}
        return [
            test
            for test, item in self.items.items()
            if test not in mapped
            and not item.get_closest_marker("slow")
            and any(way in _text(item.path) for way in (f"{module} import", "walk_packages"))
        ]

    def tried(self, mutant: Mutant) -> str:
        """The test that sees it; "" where none does."""
        changed = list(pairs(code_of(mutant, -1), code_of(mutant)))
        swapped = [pair for pair in changed if pair[0] in self.live]
        names = {f"{mutant.file}:{outermost(old)}" for old, _ in changed}
        if all(names.isdisjoint(called) for _, _, called in self.tests):
            swapped = []  # called while modules are imported, if ever
        if not swapped:  # a module's or a class's own lines
            every = {name for _, _, called in self.tests for name in called}
            names = {name for name in every if name.startswith(mutant.file + ":")}
            names = names or {name for name in every if f"{module_of(mutant.file)} import" in _text(place_of(name))}
        tests, seconds = self.chosen(names)
        tests += [] if swapped else [test for test in self.importing(mutant.file) if test not in tests]
        if not tests:
            return ""
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            signal.alarm(int(60 + 8 * seconds))  # one that does not end is seen too
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            try:
                found = self.swapped(swapped, tests) if swapped else self.imported(mutant, tests)
            except BaseException as error:  # it goes no further than this process
                found = f"it cannot be imported: {error!r}"
            os.write(writer, found.encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as said:
            found = said.read()
        _, status = os.waitpid(child, 0)
        return found if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 else f"it did not end ({status})"

    def swapped(self, changed: list[tuple[CodeType, CodeType]], tests: list[str]) -> str:
        """With the code of functions exchanged where they are."""
        for old, new in changed:
            for function in self.live[old]:
                function.__code__ = new
        for cache in self.caches:
            cache.cache_clear()
        items = [self.items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            if run(item, following):
                return item.nodeid
        return ""

    def imported(self, mutant: Mutant, tests: list[str]) -> str:
        """With txcalc and the tests imported again."""
        ours = [name for name, module in sys.modules.items() if inside(module)]
        for name in ours:
            del sys.modules[name]
        sys.meta_path.insert(0, Sources(lambda file: code_of(mutant) if file == mutant.file else None))
        first = First(tests)
        pytest.main([*QUIET, "-x", *dict.fromkeys(test.split("::")[0] for test in tests)], plugins=[first])
        return first.failed or ""


def module_of(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".")


def place_of(function: str) -> Path:
    return ROOT / function.partition(":")[0]


@functools.cache
def _text(path: Path) -> str:
    return path.read_text()


class First:
    """The first test that fails, of those asked for: by their names alone, pytest does not find all of them again."""

    failed: str | None = None

    def __init__(self, tests: list[str]) -> None:
        self.places = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self.places]
        items[:] = sorted(chosen, key=lambda item: self.places[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid


def inside(module: Any) -> bool:
    """Whether a module is the package's or the tests' own."""
    return (
        str(getattr(module, "__file__", None) or "").startswith(str(ROOT) + os.sep)
        and module is not sys.modules[__name__]
    )


QUIET = ["-q", "-s", "-p", "no:cacheprovider", "--tb=no"]


def map_of(results: Path) -> Path:
    return results.with_suffix(".map.json")


def quick(files: list[str]) -> list[str]:
    """Pytest's arguments for the quick tier, or for some files."""
    found = sorted(path.name for path in (ROOT / "tests").glob("test_*.py"))
    chosen = [name.removeprefix("+") for name in files] or [name for name in found if name[5:-3] not in WITHOUT]
    slow = [name for name in files if name.startswith("+")]
    return [*QUIET, *([] if slow else ["-m", "not slow"]), *(str(ROOT / "tests" / name) for name in chosen)]


def main() -> int:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("results", type=Path)
    about.add_argument("--map", nargs="*", metavar="TEST_FILE")
    about.add_argument("--number", type=int, default=300)
    about.add_argument("--seed", type=int, default=1)
    about.add_argument("--seconds", type=float, default=500, help="after which no other is begun")
    about.add_argument("--tests", type=float, default=60, help="seconds of tests for one, at most")
    about.add_argument("--jobs", type=int, default=1)
    about.add_argument("--only", nargs="+", metavar="FILE:LINE", default=[])
    about.add_argument("--again", action="store_true")
    about.add_argument("--under", nargs="+", default=["parts", "planning"])
    asked = about.parse_args()
    if asked.map is not None:
        return int(pytest.main(quick(asked.map), plugins=[Calls(map_of(asked.results))]))
    done = [json.loads(line) for line in asked.results.read_text().splitlines()] if asked.results.is_file() else []
    known = {(one["file"], one["text"], one["change"]) for one in done}
    todo = [
        one for one in drawn(asked.under, asked.number, asked.seed) if (one.file, one.text, one.change) not in known
    ]
    if asked.only:
        files = {where.split(":")[0] for where in asked.only}
        todo = [one for file in files for one in places(file) if f"{file}:{one.line}" in asked.only]
    if asked.again:
        last = {(one["file"], one["text"], one["change"]): one for one in done}
        alive = {key for key, one in last.items() if not one["killed_by"]}
        todo = [
            one
            for file in {key[0] for key in alive}
            for one in places(file)
            if (one.file, one.text, one.change) in alive
        ]
    pytest.main([*QUIET, str(ROOT / "tests")], plugins=[Mutants(todo, asked)])
    report([json.loads(line) for line in asked.results.read_text().splitlines()])
    return 0


def report(done: list[dict[str, str]]) -> None:
    """Killed of those that change something, and who lived; of one that was run twice, the last."""
    whys = {(one["file"], one["text"], one["change"]): one["why"] for one in json.loads(EQUAL.read_text())}
    last = {(one["file"], one["text"], one["change"]): one for one in done}
    alive = {key: one for key, one in last.items() if not one["killed_by"]}
    equal = alive.keys() & whys.keys()
    counted, dead = len(last) - len(equal), len(last) - len(alive)
    rate = f" ({100 * dead / counted:.1f} %)" if counted else ""
    print(f"{dead} of {counted} killed{rate}, {len(equal)} change nothing")
    for key, one in alive.items():
        why = whys.get(key, "")
        print(f"  {one['file']}:{one['line']}: {one['change']}: {one['text']}" + (f"  [{why}]" if why else ""))


if __name__ == "__main__":
    sys.exit(main())
