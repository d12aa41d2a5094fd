"""Any module that takes token ids: its parameters and FLOPs as formulas in B and T, beside what fvcore counts."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from txcalc.errors import Fault, InputError, Refuted, UnknownName
from txcalc.verify import flops, macs
from txcalc.verify.symbolic import B, Size, Symbols, T

POINT = (3, 5)


class Part(NamedTuple):
    """A module: its class, the parameters and FLOPs (a formula) that are its own, and fvcore's count at `POINT`."""

    path: str
    kind: str
    params: int
    flops: Any
    fvcore: int


class Trace(NamedTuple):
    """What a module costs, and the sizes for which the formulas hold (`domain`).

    `free` are the operators that ran and multiply no matrices; `skipped` those that PyTorch's counter or fvcore did not
    count and of which nobody knows that; `untraced` why fvcore could not read the module at all, else "".
    """

    name: str
    parts: list[Part]
    domain: str
    free: list[str]
    skipped: dict[str, Counter[str]]
    untraced: str


def trace(source: str) -> Trace:
    """The costs of `FILE.py:factory` or `module:Class`, called without arguments on the meta device.

    Errors: `InputError` for what cannot be loaded, makes no module or takes no token ids; `Refuted` where a size or the
    data decides what is computed.
    """
    net = module(source)
    given = torch.zeros(POINT, dtype=torch.long, device="meta")
    symbols = Symbols((given,), ((Size(B, 1), Size(T, 1)),))
    with torch.no_grad(), _theirs():
        with symbols.mode:
            counter = flops.count(net, lambda: _run(source, net, symbols.inputs[0]))
        domain = symbols.domain()
        found, skipped, untraced = _fvcore(net, given)
    costs = {path: symbols.read(value) for path, value in counter.by_module.items()}
    owned: Counter[str] = Counter()
    for name, weight in net.named_parameters():
        owned[name.rpartition(".")[0]] += weight.numel()
    parts = [
        Part(path, type(part).__name__, owned[path], costs.get(path, 0), found.get(path, 0))
        for path, part in net.named_modules()
        if owned[path] or costs.get(path, 0) or found.get(path, 0)
    ]
    missed = {flops.ORACLE: _sum(counter.uncounted), macs.ORACLE: _sum(skipped)}
    free = sorted(name for name in counter.free if not name.startswith("prim::"))
    return Trace(source, parts, domain, free, {name: names for name, names in missed.items() if names}, untraced)


def _fvcore(net: nn.Module, ids: Tensor) -> tuple[dict[str, int], dict[str, Counter[str]], str]:
    try:
        return *macs.count(net, (ids,)), ""
    except Exception as error:  # its trace is older than many an operator
        return {}, {}, _line(error)


def _sum(counts: dict[str, Counter[str]]) -> Counter[str]:
    return sum(counts.values(), Counter[str]())


def _run(source: str, net: nn.Module, ids: Tensor) -> None:
    """One forward pass of token ids. What goes wrong inside is the user's to see in one line."""
    try:
        net(ids)
    except Refuted:
        raise
    except (Exception, SystemExit) as error:
        if "data-dependent" in str(error) or type(error).__name__ == "GuardOnDataDependentSymNode":
            raise Refuted(f"{source}: what it computes depends on data, no formula holds ({_line(error)})") from None
        raise InputError(source, [f"does not run on token ids (batch, length): {_line(error)}"]) from None


def module(source: str) -> nn.Module:
    """The module that `FILE.py:name` or `package.module:name` makes, with its weights on meta."""
    place, colon, name = source.rpartition(":")
    if not colon or not place or not name:
        raise InputError("trace", [Fault("source", source, "FILE.py:factory or module:Class")])
    holder = _loaded(source, place)
    if not hasattr(holder, name):
        known = [key for key, value in vars(holder).items() if callable(value) or isinstance(value, nn.Module)]
        raise UnknownName(place, "factory or module", name, known)
    made = getattr(holder, name)
    if not isinstance(made, nn.Module):
        if not callable(made):
            raise InputError(source, [f"is {type(made).__name__}, expected a function or class that makes a module"])
        made = _attempt(source, "fails", made)
    if not isinstance(made, nn.Module):
        raise InputError(source, [f"returns {type(made).__name__}, expected an nn.Module"])
    return cast(
        nn.Module, _attempt(source, "has weights that PyTorch's meta device does not take", made.to, "meta")
    ).eval()


def _loaded(source: str, place: str) -> Any:
    """A Python file, or a module by its name (of the current folder, too)."""
    if not place.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        return _attempt(place, "cannot be imported", importlib.import_module, place)
    path = Path(place)
    if not path.is_file():
        raise InputError(place, ["is not a file"])
    spec = importlib.util.spec_from_file_location(f"traced_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    holder = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    sys.path.insert(0, str(path.parent.resolve()))
    _attempt(place, "cannot be imported", spec.loader.exec_module, holder)
    return holder


@contextmanager
def _theirs() -> Iterator[None]:
    """Somebody else's code at work: what it prints is no result, and what PyTorch logs of its errors is told once."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        logging.disable(before)


def _attempt(where: str, what: str, work: Callable[..., Any], *arguments: Any) -> Any:
    """Somebody else's code: whatever it raises is one line. What cannot be made on meta (it reads a number of a tensor)
    is made again as it is."""
    try:
        with _theirs():
            try:
                with torch.device("meta"):
                    return work(*arguments)
            except (RuntimeError, TypeError, NotImplementedError) as error:
                if "meta" not in str(error):
                    raise
                return work(*arguments)
    except (Exception, SystemExit) as error:
        said = ": ".join(dict.fromkeys((type(error).__name__, _line(error))))
        raise InputError(where, [f"{what}: {said}"]) from None


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 160 else text[:159] + "…"
