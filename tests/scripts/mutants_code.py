"""Small faults in the formulas, one at a time, and whether the tests see them:

    python tests/scripts/mutants_code.py RESULTS.jsonl --map [TEST_FILE …] [--jobs 1] [TIER]
    python tests/scripts/mutants_code.py RESULTS.jsonl [--number 20] [--seed 1] [--seconds 500] [--under parts]
        [--tests 600] [--jobs 1] [TIER] [--only FILE:LINE …] [--again] [--listed]

TIER is one draw of the quick tier, as it runs without names of files: `--draw SEED` says which; `--every-case` takes
all its cases, `--slow` slow tests too.

Each mutant changes one operator, one constant, one comparison or one of the field's letters of a file: `--number` of
each folder, drawn by the seed. `--map` first runs the quick tier (or some files of it; with `--slow` slow tests too).
It writes into map.jsonl, beside RESULTS, at which places of the package each test meets a value that the change makes
another, and how long it takes. A mutant then runs the tests of its place, the quickest first, at
most `--tests` seconds of them; the first failure kills it. A process holds everything imported and collected, and forks
for each mutant: there the code of its functions is exchanged, or, for what a module or class computes when it is made,
everything of txcalc is imported from the changed source, and the tests that evaluate anything of its file come first.
Tests that start processes follow, in `--tests` seconds more: what their processes import is changed too.
A line of RESULTS is written for each; what is
there already is not run again. At the end: how many were killed, and every survivor with its line.
One that changes nothing that can be seen belongs into `tests/data/mutants.json`, with the reason, as the nth of those
with its line's text and its change. `--only` runs again all mutants of a line, `--again` those of RESULTS that
survived, `--listed` those that the list names.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import functools
import gc
import hashlib
import importlib.util
import json
import marshal
import os
import random
import signal
import sys
import tempfile
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from fractions import Fraction
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import accumulate, groupby
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = str(ROOT / "txcalc") + os.sep
FOLDERS = sorted({str(path.parent.relative_to(PACKAGE)) for path in Path(PACKAGE).rglob("*.py")})
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
WITHOUT = {"architecture", "packaging"}  # they read the source, not figures
# Values of which it can be said whether they are equal without asking anything else.
PLAIN = (int, float, bool, str, type(None), Fraction)
# Not tests: what is evaluated while modules are imported, and what by anything.
IMPORTED, REACHED = "imported", "reached"
# Among places: the test starts processes, which say nothing of what they evaluate.
STARTS = "started processes"
EQUAL = ROOT / "tests" / "data" / "mutants.json"
# `sitecustomize.py` of processes that tests start: they import the changed module too. It imports nothing that a test
# could take for an import of the package.
CHANGED = """\
import marshal, sys
from importlib.machinery import PathFinder

class Changed:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if name == {name!r} else None
        if spec and spec.origin == {file!r}:
            spec.loader.get_code = lambda _: marshal.loads({code!r})
        return spec

sys.meta_path.insert(0, Changed)
"""


class Mutant(NamedTuple):
    """A change of the n-th place of a file at which there is one; `nth`: of those with the same text of a line and the
    same change, from 1."""

    file: str
    place: int
    line: int
    text: str
    change: str
    nth: int


def identity(mutant: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells a mutant from all others, whatever lines stand above it."""
    return mutant["file"], mutant["text"], mutant["change"], mutant["nth"]


class Places(ast.NodeTransformer):
    """Counts the places where a file can be changed, and changes the one asked for."""

    def __init__(self, changed_place: int = -1) -> None:
        self.changed_place, self.places = changed_place, list[tuple[int, str]]()

    def _place(self, node: ast.expr, changed: ast.expr, change: str) -> ast.expr:
        self.places.append((node.lineno, change))
        return self.put(len(self.places) - 1, node, changed)

    def put(self, place: int, node: ast.expr, changed: ast.expr) -> ast.expr:
        return changed if place == self.changed_place else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        operator = BINARY.get(type(node.op))
        if not operator or (isinstance(node.left, ast.Constant | ast.JoinedStr) and not _number(node.left)):
            return node
        changed = ast.BinOp(node.left, operator(), node.right)
        return self._place(node, changed, f"{type(node.op).__name__} → {operator.__name__}")

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        operator = COMPARED.get(type(node.ops[0]))
        if not operator:
            return node
        changed = ast.Compare(node.left, [operator(), *node.ops[1:]], node.comparators)
        return self._place(node, changed, f"{type(node.ops[0]).__name__} → {operator.__name__}")

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value: Any = node.value
        return self._place(node, ast.Constant(value + 1), f"{value} → {value + 1}") if _number(node) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        attribute = TAKEN.get(node.attr)
        if not attribute or not isinstance(node.ctx, ast.Load):
            return node
        return self._place(node, ast.Attribute(node.value, attribute, node.ctx), f"{node.attr} → {attribute}")

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return self._place(node, ast.IfExp(node.test, node.orelse, node.body), "the other branch")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = self.visit(node.value) if node.value else None  # an annotation is no formula
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        node.defaults = [self.visit(default) for default in node.defaults]
        return node


def _number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def places(file: str) -> list[Mutant]:
    """All the changes that a file allows."""
    source = (ROOT / file).read_text()
    lines, look = source.splitlines(), Places()
    look.visit(ast.parse(source))
    before = Counter[tuple[str, str]]()
    mutants = list[Mutant]()
    for place, (line, change) in enumerate(look.places):
        text = lines[line - 1].strip()
        before[text, change] += 1
        mutants.append(Mutant(file, place, line, text, change, before[text, change]))
    return mutants


def drawn(folder: str, number: int, seed: int) -> Iterator[Mutant]:
    """So many of a folder, from its files in turn."""
    chance = random.Random(f"{seed} {folder}")
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "txcalc" / folder).glob("*.py"))
    chance.shuffle(files)
    left = [mutants for mutants in map(places, files) if mutants]
    for mutants in left:
        chance.shuffle(mutants)
    while left and number > 0:
        for mutants in left[:number]:
            yield mutants.pop()
        number -= len(left[:number])
        left = [mutants for mutants in left if mutants]


def caches() -> list[Any]:
    """What remembers results of functions."""
    gc.unfreeze()  # what was there when all tests were collected is among no objects else
    return [item for item in gc.get_objects() if type(item) is functools._lru_cache_wrapper]


class Telling(Places):
    """Lets each place of a file say what it would be with the change and without it."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.key = key(file)

    def put(self, place: int, node: ast.expr, changed: ast.expr) -> ast.expr:
        first, second = ast.Name("a", ast.Load()), ast.Name("b", ast.Load())
        was, now, operands = node, changed, list[ast.expr]()
        match node:  # these are told apart by what they stand between, which is evaluated once
            case ast.BinOp():
                operands = [node.left, node.right]
                was, now = (ast.BinOp(first, side.op, second) for side in (node, changed))  # type: ignore[attr-defined]
            case ast.Compare(ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()]):
                operands = [node.left, *node.comparators]
                was, now = (ast.Compare(first, side.ops, [second]) for side in (node, changed))  # type: ignore[attr-defined]
            case ast.Attribute():
                operands = [node.value]
                was, now = (ast.Attribute(first, side.attr, node.ctx) for side in (node, changed))  # type: ignore[attr-defined]
        names = ast.arguments([], [ast.arg(name) for name in "ab"[: len(operands)]], None, [], [], None, [])
        hook = ast.Name("__compared__" if operands else "__reached__", ast.Load())
        lambdas = [ast.Lambda(names, was), ast.Lambda(names, now)] if operands else [node]
        return ast.Call(hook, [ast.Constant(f"{self.key}#{place}"), *lambdas, *operands], [])


class Seen:
    """Maps each test to the places at which it would see a change, and to its seconds."""

    def __init__(self, out: Path, jobs: int) -> None:
        self.out, self.jobs, self.within = out, jobs, False
        self.seen, self.reached = set[str](), set[str]()
        builtins.__compared__, builtins.__reached__ = self.compare_values, self.note  # type: ignore[attr-defined]
        sys.meta_path.insert(0, Sources(lambda file: compiled(file, Telling(file)) if ours(file) else None))
        sys.addaudithook(lambda event, _: self.seen.add(f"{STARTS}#0") if event == "subprocess.Popen" else None)
        start: Callable[[BaseProcess], None] = BaseProcess.start

        def noted(worker: BaseProcess) -> None:
            self.seen.add(f"{STARTS}#0")
            start(worker)

        setattr(BaseProcess, "start", noted)  # noqa: B010

    def note(self, place: str, value: Any) -> Any:
        if not self.within:
            self.seen.add(place)
        return value

    def compare_values(self, place: str, was: Callable[..., Any], now: Callable[..., Any], *operands: Any) -> Any:
        value = was(*operands)
        if place not in self.seen and not self.within:
            self.reached.add(place)
            self.within = True  # what a change would call is not told
            try:
                changed = now(*operands)
            except Exception:
                changed = None
            if type(value) is not type(changed) or type(value) not in PLAIN or repr(value) != repr(changed):
                self.seen.add(place)
            self.within = False
        return value

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        remembered = caches()
        self.write(IMPORTED, 0.0)
        files = [(file, list(items)) for file, items in groupby(session.items, key=lambda item: file_of(item.nodeid))]
        side_by_side(self.jobs, lambda first: self.files(files[first :: self.jobs], remembered))
        return True

    def files(self, files: list[tuple[str, list[pytest.Item]]], remembered: list[Any]) -> None:
        """The tests of some files, each with fixtures of its own; those that fail are left out."""
        for file, items in files:
            good, spent = 0, 0.0
            for item in items:
                for cache in remembered:
                    cache.cache_clear()
                self.reached |= self.seen
                self.seen.clear()
                begun = sum(os.times()[:4])  # of processes that it starts too, whatever else the machine does
                failed = run(item, None)
                seconds = sum(os.times()[:4]) - begun
                good, spent = good + (not failed), spent + seconds
                if not failed:
                    self.write(item.nodeid, seconds)
            sys.stderr.write(f"{file}: {good} of {len(items)} tests, {spent:.1f} s\n")
        self.seen = self.reached | self.seen
        self.write(REACHED, 0.0)

    def write(self, test: str, seconds: float) -> None:
        """One line, at once: others write to the file too."""
        places: dict[str, list[int]] = {}
        for seen_place in self.seen:
            file, _, place = seen_place.partition("#")
            places.setdefault(file, []).append(int(place))
        line = json.dumps({"test": test, "seconds": round(seconds, 3), "places": places}) + "\n"
        with self.out.open("ab", buffering=0) as out:
            out.write(line.encode())


def limited(seconds: float) -> None:
    """Ends this process when it has worked for several times as long, or waited: what does not end is seen too."""
    signal.setitimer(signal.ITIMER_PROF, 30 + 3 * seconds)
    signal.setitimer(signal.ITIMER_REAL, 120 + 20 * seconds)


def side_by_side(jobs: int, work: Callable[[int], None]) -> None:
    """So many processes, each told which it is."""
    children = list[int]()
    for number in range(jobs):
        child = os.fork()
        if not child:
            work(number)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


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


def code_of(mutant: Mutant, place: int | None = None) -> CodeType:
    """A file's code with the change, or, where -1 is wanted, as it is."""
    return compiled(mutant.file, Places(mutant.place if place is None else place))


def pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The functions of a module that differ, from the module itself inwards."""
    if old != new:
        yield old, new
        within = ([value for value in code.co_consts if isinstance(value, CodeType)] for code in (old, new))
        for before, after in zip(*within, strict=True):  # in the same order: a constant may stand before more of them
            yield from pairs(before, after)


class Mutants:
    """The loop over mutants, in a process that has collected all tests."""

    def __init__(self, todo: list[Mutant], options: argparse.Namespace) -> None:
        self.todo, self.options = todo, options
        chosen = {f"{key(mutant.file)}#{mutant.place}" for mutant in todo}
        self.seconds, self.calling = dict[str, float](), dict[str, list[str]]()
        self.starting = set[str]()
        for line in map_of(options.results).read_text().splitlines():
            test, seconds, places = json.loads(line).values()
            self.seconds[test] = seconds
            if places.pop(STARTS, None):
                self.starting.add(test)
            for file, numbers in places.items():
                for position in [file, *(place for place in (f"{file}#{n}" for n in numbers) if place in chosen)]:
                    self.calling.setdefault(position, []).append(test)
        unmapped = {mutant.file for mutant in todo if key(mutant.file) not in self.calling}
        if changed := unmapped & {position.partition("@")[0] for position in self.calling}:
            sys.exit(f"changed since the map was made: {', '.join(sorted(changed))}")
        if unmapped:
            sys.stderr.write(f"no test of the map imports: {', '.join(sorted(unmapped))}\n")
        self.todo = [mutant for mutant in todo if mutant.file not in unmapped]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        self.live: dict[CodeType, list[FunctionType]] = {}
        for file in Path(PACKAGE).rglob("*.py"):  # a function of a module that is not there yet cannot be exchanged
            if file.stem not in ("__main__", "__init__"):
                importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
        self.caches = caches()
        for function in gc.get_objects():
            if type(function) is FunctionType and function.__code__.co_filename.startswith(PACKAGE):
                self.live.setdefault(function.__code__, []).append(function)
        assert self.live and self.caches, "no function is found: every mutant would be imported again"
        end = time.monotonic() + self.options.seconds
        gc.freeze()
        side_by_side(self.options.jobs, lambda first: self.all(self.todo[first :: self.options.jobs], end))
        return True

    def all(self, mutants: list[Mutant], end: float) -> None:
        path = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
        for mutant in mutants:
            if time.monotonic() > end:
                break
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as site:
                Path(site, "sitecustomize.py").write_text(in_children(mutant), "utf-8")
                os.environ["PYTHONPATH"] = os.pathsep.join([site, *path])
                by, tests = self.tried(mutant)
            line = json.dumps({**mutant._asdict(), "killed_by": by, "tests": tests}, ensure_ascii=False)
            with self.options.results.open("a") as out:
                out.write(line + "\n")
            took = time.monotonic() - begun
            verdict = f"{by or 'SURVIVED'} ({tests}, {took:.1f} s)"
            sys.stderr.write(f"{mutant.file}:{mutant.line}: {mutant.change}: {verdict}\n")

    def chosen(self, file: str, tests: set[str], others: bool) -> tuple[list[str], str]:
        """These, the quickest first, and then all others, as many as there is time for, and in as much time again those
        that start processes; and how many that is."""
        candidates = self.items.keys() & (self.seconds.keys() if others else tests)
        first = self.quickest(candidates, tests)
        mirror = f"tests{file.removeprefix('txcalc').rpartition('/')[0]}/"  # what it tests may run in processes alone
        near = {test for test in self.starting if test.startswith(mirror)}
        then = self.quickest(self.items.keys() & self.starting - set(first), tests | near)
        return first + then, f"{len(first)} of {len(candidates)} tests, {len(then)} that start processes"

    def quickest(self, candidates: Set[str], tests: set[str]) -> list[str]:
        """Of a test's cases, each stands behind those before it: they ask the same question."""
        before, costs = Counter[str](), dict[str, float]()
        for test in sorted(candidates, key=self.seconds.__getitem__):
            before[test.partition("[")[0]] += 1
            costs[test] = self.seconds[test] * before[test.partition("[")[0]]
        quickest = sorted(candidates, key=lambda test: (test not in tests, costs[test]))
        return quickest[: bisect(list(accumulate(self.seconds[test] for test in quickest)), self.options.tests)]

    def tried(self, mutant: Mutant) -> tuple[str, str]:
        """The test that sees it, "" where none does; and how many there were to try."""
        file = key(mutant.file)
        swapped = [pair for pair in pairs(code_of(mutant, -1), code_of(mutant)) if pair[0] in self.live]
        calling = set(self.calling.get(f"{file}#{mutant.place}", []))
        reached = REACHED in calling
        if not swapped or calling == {IMPORTED, REACHED}:  # a module's or class's own lines, or what they call
            swapped, calling = [], set(self.calling.get(file, []))
        tests, note = self.chosen(mutant.file, calling, others=not swapped)
        if not tests:
            note = "the same value in every test" if reached else "no test evaluates it"
        return self.in_child(mutant, swapped, tests), note

    def in_child(self, mutant: Mutant, swapped: list[tuple[CodeType, CodeType]], tests: list[str]) -> str:
        """What a process of its own finds, and those that its tests start."""
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.setpgrp()
            try:
                verdict = self.swapped(swapped, tests) if swapped else self.imported(mutant, tests)
            except BaseException as error:  # it goes no further than this process
                verdict = f"it cannot be imported: {error!r}"
            os.write(writer, verdict.encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            verdict = pipe.read()
        _, status = os.waitpid(child, 0)
        with suppress(ProcessLookupError):  # its tests may have been ended before what they started
            os.killpg(child, signal.SIGKILL)
        return verdict if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 else f"it did not end ({status})"

    def swapped(self, changed: list[tuple[CodeType, CodeType]], tests: list[str]) -> str:
        """With the code of functions exchanged where they are."""
        for old, new in changed:
            for function in self.live[old]:
                function.__code__ = new
        for cache in self.caches:
            cache.cache_clear()
        items = [self.items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=False):
            limited(self.seconds[item.nodeid])
            if run(item, following):
                return item.nodeid
        return ""

    def imported(self, mutant: Mutant, tests: list[str]) -> str:
        """With txcalc and the tests imported again."""
        ours = [name for name, module in sys.modules.items() if inside(module)]
        for name in ours:
            del sys.modules[name]
        sys.meta_path.insert(0, Sources(lambda file: code_of(mutant) if file == mutant.file else None))
        first = First(tests, self.seconds)
        pytest.main([*QUIET, "-x", *dict.fromkeys(map(file_of, tests))], plugins=[first])
        return first.failed or ""


def in_children(mutant: Mutant) -> str:
    """What a process that a test starts does first."""
    name = mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return CHANGED.format(name=name, file=str(ROOT / mutant.file), code=marshal.dumps(code_of(mutant)))


def file_of(test: str) -> str:
    return test.partition("::")[0]


@functools.cache
def key(file: str) -> str:
    """A file as it is now: a map of another tells nothing of it."""
    return f"{file}@{hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:8]}"


def ours(file: str) -> bool:
    return str(ROOT / file).startswith(PACKAGE)


class First:
    """The first test that fails, of those asked for: by their names alone, pytest does not find all of them again."""

    failed: str | None = None

    def __init__(self, tests: list[str], seconds: dict[str, float]) -> None:
        self.places, self.seconds = {test: place for place, test in enumerate(tests)}, seconds

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self.places]
        items[:] = sorted(chosen, key=lambda item: self.places[item.nodeid])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        limited(self.seconds[item.nodeid])

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
    return results.with_name("map.jsonl")


def quick(options: argparse.Namespace) -> list[str]:
    """Pytest's arguments for the quick tier, as it is run without any of ours, or for all tests, or for some files."""
    os.chdir(ROOT)
    tier = [] if options.slow else ["-m", "not slow"]
    cases = ["--every-case"] if options.every_case else ["--seed", str(options.draw)]
    files = [str(next((ROOT / "tests").rglob(name))) for name in options.map or []]
    left = [f"--ignore-glob=*/test_{name}.py" for name in sorted(WITHOUT)]
    return [*QUIET, *tier, *cases, *(files or left)]


def main() -> int:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("results", type=Path)
    about.add_argument("--map", nargs="*", metavar="TEST_FILE")
    about.add_argument("--number", type=int, default=20, help="of each folder")
    about.add_argument("--seed", type=int, default=1)
    about.add_argument("--seconds", type=float, default=500, help="after which no other is begun")
    about.add_argument("--tests", type=float, default=600, help="seconds of tests for one, at most")
    about.add_argument("--jobs", type=int, default=1)
    about.add_argument("--slow", action="store_true", help="slow tests too")
    about.add_argument("--draw", type=int, default=1, help="the seed of the cases that the quick tier draws")
    about.add_argument("--every-case", action="store_true", help="all of them")
    about.add_argument("--only", nargs="+", metavar="FILE:LINE", default=[])
    about.add_argument("--again", action="store_true")
    about.add_argument("--listed", action="store_true", help="those of mutants.json")
    about.add_argument("--under", nargs="+", default=FOLDERS)
    options = about.parse_args()
    if options.map is not None:
        return int(pytest.main(quick(options), plugins=[Seen(map_of(options.results), options.jobs)]))
    done = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.is_file() else []
    last = {identity(mutant): mutant for mutant in done}
    sample = [mutant for folder in options.under for mutant in drawn(folder, options.number, options.seed)]
    todo = [mutant for mutant in sample if identity(mutant._asdict()) not in last]
    if options.only:
        files = {where.split(":")[0] for where in options.only}
        todo = [mutant for file in files for mutant in places(file) if f"{file}:{mutant.line}" in options.only]
    if options.again or options.listed:
        listed = json.loads(EQUAL.read_text()) if options.listed else []
        alive = set(map(identity, listed or (mutant for mutant in last.values() if not mutant["killed_by"])))
        todo = [mutant for file in sorted({which[0] for which in alive}) for mutant in places(file)]
        todo = [mutant for mutant in todo if identity(mutant._asdict()) in alive]
        for which in alive - {identity(mutant._asdict()) for mutant in todo}:
            sys.stderr.write(f"{which[0]} has no such place: {which[2]}: {which[1]}\n")
    pytest.main(quick(options), plugins=[Mutants(todo, options)])
    report([json.loads(line) for line in options.results.read_text().splitlines()])
    return 0


def report(done: list[dict[str, Any]]) -> None:
    """Killed of those that change something, and who lived; of one that was run twice, the last."""
    whys = {identity(row): row["why"] for row in json.loads(EQUAL.read_text())}
    last = {identity(row): row for row in done}
    alive = {key: row for key, row in last.items() if not row["killed_by"]}
    equal = alive.keys() & whys.keys()
    counted = Counter(str(Path(file).parent) for file, *_ in last.keys() - equal)
    survived = Counter(str(Path(file).parent) for file, *_ in alive.keys() - equal)
    for folder, number in sorted(counted.items()):
        print(f"{folder}: {number - survived[folder]} of {number} killed")
    dead = len(last) - len(alive)
    print(f"{dead} of {counted.total()} killed ({dead / (counted.total() or 1):.1%}), {len(equal)} change nothing")
    for key, row in alive.items():
        why = whys.get(key, "")
        print(f"  {row['file']}:{row['line']}: {row['change']}: {row['text']}" + (f"  [{why}]" if why else ""))


if __name__ == "__main__":
    sys.exit(main())
