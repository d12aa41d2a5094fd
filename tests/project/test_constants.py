"""Numbers that modules and classes set, and that arguments are by default, kept in `golden/constants.txt`: limits,
tolerances, sizes of tables; of a table how many numbers it has, and their sum. A new value is a line of a diff, which
`pytest tests/project/test_constants.py --update-golden` writes.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Set
from fractions import Fraction
from importlib import import_module
from math import fsum, isfinite
from pkgutil import walk_packages
from typing import Any

import msgspec
import pytest
from paths import GOLDEN

import txcalc

pytestmark = pytest.mark.slow


def numbers(value: object) -> Iterator[float]:
    if isinstance(value, int | float | Fraction) and not isinstance(value, bool):
        yield float(value)
    elif isinstance(value, Mapping | tuple | list | Set):
        for item in value.items() if isinstance(value, Mapping) else value:
            yield from numbers(item)
    else:
        for name in getattr(value, "__struct_fields__", ()):
            yield from numbers(getattr(value, name, None))


def shown(value: object) -> str:
    if isinstance(value, int | float | Fraction):
        return "" if isinstance(value, bool) else f"{value}"
    found = [number for number in numbers(value) if isfinite(number)]
    return f"{len(found)} numbers, sum {fsum(found):.12g}" if found else ""


def by_default(value: Any) -> dict[str, object]:
    """What the arguments of a function, or the fields of a class, are by default."""
    if inspect.isfunction(value):
        return {item.name: item.default for item in inspect.signature(value).parameters.values()}
    if issubclass(value, msgspec.Struct):
        return dict(zip(reversed(value.__struct_fields__), reversed(value.__struct_defaults__), strict=False))
    return getattr(value, "_field_defaults", {})


def constants(path: str, owner: object, module: str, own: Set[str]) -> Iterator[str]:
    """Of a module or a class: its own numbers, and those that its functions and classes take by default."""
    for name, value in vars(owner).items():
        called = inspect.unwrap(getattr(value, "__func__", value))
        if inspect.isfunction(called) or inspect.isclass(called):
            if called.__module__ != module or (name.startswith("__") and name != "__init__"):
                continue
            defaults = ", ".join(f"{key}={text}" for key, item in by_default(called).items() if (text := shown(item)))
            yield from [f"{path}.{name}({defaults})"] * bool(defaults)
            if inspect.isclass(called):
                yield from constants(f"{path}.{name}", called, module, own)
        elif name in own and (text := shown(value)):
            yield f"{path}.{name} = {text}"


def test_no_number_changes_unseen(update_golden: bool) -> None:
    pytest.importorskip("torch")
    found, path = list[str](), GOLDEN / "constants.txt"
    for info in walk_packages(txcalc.__path__, "txcalc."):
        if not info.name.endswith("__main__"):
            module = import_module(info.name)
            nodes = ast.walk(ast.parse(inspect.getsource(module)))
            own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
            found += sorted(set(constants(info.name.removeprefix("txcalc."), module, info.name, own)))
    if update_golden:
        path.write_text("\n".join(found) + "\n", "utf-8")
    assert found == path.read_text("utf-8").splitlines()
