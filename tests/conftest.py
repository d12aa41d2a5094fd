"""What all tests share: a Hypothesis that draws the same examples on every machine and never times them, a width of
tables, and a switch that regenerates texts."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path
from random import Random, randrange
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, Phase, settings
from paths import TESTS

# One thread each, before PyTorch is imported and for every process that a test starts: tensors are tiny here, and
# threads of several workers that wait for each other on two cores cost seven times the work.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# As the command sets it, before SymPy is imported.
os.environ.setdefault("SYMPY_CACHE_SIZE", "10000")
# What is compiled is kept, also where a shell says not to: it is a third of the start of a process that tests start,
# and half of collecting the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# What a table looks like does not depend on the terminal that runs the tests.
os.environ["COLUMNS"] = "100"

settings.register_profile(
    "every",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=50,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# Other examples at every run: `pytest --hypothesis-profile random`; a failure prints the seed that repeats it.
settings.register_profile("random", parent=settings.get_profile("every"), derandomize=False, print_blob=True)
settings.register_profile("sample", parent=settings.get_profile("every"), max_examples=20)
settings.register_profile("quick", parent=settings.get_profile("every"), max_examples=10)


# Cases of a test in the inner loop, and of a slow test in a run of everything.
QUICK_CASES, SLOW_CASES = 3, 2


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers get the options of the first process
        config.option.seed = commit_seed() if config.option.seed is None else config.option.seed
        config.option.every_case |= config.args_source is config.ArgsSource.ARGS  # of a file that is named
    if config.option.hypothesis_profile is None:
        quick = config.option.markexpr == "not slow"
        settings.load_profile("quick" if quick else "every" if config.option.every_case else "sample")


@pytest.hookimpl(tryfirst=True)
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The inner loop does not import what is slow as a whole, nor the PyTorch behind it."""
    if config.option.markexpr == "not slow" and collection_path.suffix == ".py":
        text = collection_path.read_text("utf-8")
        return bool(re.search(r"^pytestmark = \[?\s*pytest\.mark\.slow\b", text, re.MULTILINE)) or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Nor does it make the thousands of slow tests that it would leave out."""
    marks = getattr(obj, "pytestmark", ()) if collector.config.option.markexpr == "not slow" else ()
    return [] if any(mark.name in ("slow", "nightly", "browser") for mark in marks) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported is no garbage, and is not searched for it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(200_000)  # what imports make is no garbage
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # what bindings hold (PyTorch's, DuckDB's) is let go before they look for leaks


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="regenerate texts, and run no other tests")
    parser.addoption("--every-case", action="store_true", help="all cases of tests of which some are drawn by default")
    parser.addoption("--seed", type=seed_of, help="a number, or random; the commit's number by default")


def seed_of(text: str) -> int:
    return randrange(10**6) if text == "random" else int(text)


def commit_seed() -> int:
    """A number of the commit, so that a commit draws the same cases on every machine and a red build is its author's;
    0 without a repository."""
    git = shutil.which("git")
    command = [git or "git", "-C", str(TESTS), "rev-parse", "--short=5", "HEAD"]
    text = subprocess.run(command, capture_output=True, text=True).stdout if git else ""
    return int(text or "0", 16)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> Generator[None]:
    for item in items:
        if item.get_closest_marker("browser") or item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.slow)
    yield  # what is not asked for is left out
    if config.option.update_golden:
        kept = {item for item in items if "update_golden" in getattr(item, "fixturenames", ())}
    elif config.option.every_case:
        return
    else:
        kept = drawn(items, config.option.seed, config.option.markexpr == "not slow")
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def drawn(items: list[pytest.Item], seed: int, quick: bool) -> set[pytest.Item]:
    """A few cases of a slow test, all of a quick one, or as many as a mark `drawn(cases, quick=…)` says; none of a
    nightly one."""
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if not item.get_closest_marker("nightly"):
            cases[item.nodeid.partition("[")[0]].append(item)
    kept = set[pytest.Item]()
    for test, group in cases.items():
        mark = group[0].get_closest_marker("drawn") or pytest.mark.drawn().mark
        usual = SLOW_CASES if any(item.get_closest_marker("slow") for item in group) else len(group)
        if quick:
            number = mark.kwargs.get("quick", QUICK_CASES)
        else:
            number = mark.args[0] if mark.args else max(usual, mark.kwargs.get("quick", 0))
        kept.update(Random(f"{seed} {test}").sample(group, min(number, len(group))))
    return kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.write_line(
        f"drawn with --seed {config.option.seed}"
        + ("" if config.option.every_case else "; --every-case runs all cases")
    )


_tests = count()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Of a test whose setup and teardown say nothing, a worker sends one report and not five messages, which are a
    third of what thousands of short tests take. What tests leave alive (compiled expressions, traced modules) is not
    searched for garbage again: many oracles collect, and a worker that has run for minutes would spend seconds in
    each."""
    if next(_tests) % 20 == 0:
        gc.collect()
        gc.freeze()
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed or report.duration > 1:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(report: object) -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
    """Nor the names of all that a passed test is within."""
    data = yield
    return data and data | {"keywords": {}} if getattr(report, "passed", False) else data


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def own_theorems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder for a user's own theorems, empty; the shipped ones are read again."""
    from txcalc.evidence.theorems import theorems

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "own"))
    theorems.cache_clear()
    yield
    theorems.cache_clear()


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> Random:
    """What a test draws for itself: the same for the same seed."""
    return Random(f"{request.config.option.seed} {request.node.nodeid}")
