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

import pytest
from msgspec import Struct
from paths import GOLDEN

import txcalc


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float | Fraction):
        yield from [float(value)] * (type(value) is not bool and isfinite(value))
    elif isinstance(value, Mapping | tuple | list | Set):
        for item in value.items() if isinstance(value, Mapping) else value:
            yield from numbers(item)
    elif not isinstance(value, type):
        yield from numbers([getattr(value, name, None) for name in getattr(value, "__struct_fields__", ())])


def shown(value: object) -> str:
    found = list(numbers(value))
    return f"{value}" if isinstance(value, int | float) and found else f"{len(found)} numbers, sum {fsum(found):.12g}"


def constants(path: str, owner: Any, module: str, own: Set[str]) -> Iterator[str]:
    """A module's or a class's own numbers, and what arguments of its functions and fields are by default."""
    for name, value in vars(owner).items():
        called = inspect.unwrap(getattr(value, "__func__", value))
        if inspect.isfunction(called) and called.__module__ == module and (name == "__init__" or name[:2] != "__"):
            defaults = {item.name: item.default for item in inspect.signature(called).parameters.values()}
        elif inspect.isclass(called) and called.__module__ == module:
            last = getattr(called, "__struct_defaults__", ()) if issubclass(called, Struct) else ()
            fields = getattr(called, "__struct_fields__", ())[-len(last) :] if last else ()
            defaults = getattr(called, "_field_defaults", dict(zip(fields, last, strict=True)))
            yield from constants(f"{path}.{name}", called, module, own)
        else:
            defaults = {"": value} if name in own else {}
        for key, item in defaults.items():
            if any(True for _ in numbers(item)):
                yield f"{path}.{name}{f'({key})' if key else ''} = {shown(item)}"


@pytest.mark.slow
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
